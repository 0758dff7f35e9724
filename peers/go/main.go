// Command peers-go runs Go engines on the workloads of terrane-peers, which starts it.
//
// Keys, values and checks are those of harness/src/work.rs, written again, because a line protocol
// between two processes would be part of every lookup. The harness limits memory and counts the
// device; this program loads, works, checks and prints one JSON object.
//
//	peers-go -engine pebble -workload utxo -entries 1000000 -phase load -dir DIR
//	peers-go -engine pebble -workload utxo -entries 1000000 -phase measure -dir DIR
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"time"
)

// errCannot is the error of an engine that cannot do a workload by design.
var errCannot = errors.New("cannot")

// terms are the terms under which an engine is opened; the same for all.
type terms struct {
	memory  int64 // bytes of process and page cache together
	durable bool  // each commit survives a loss of power
}

// op is one change of a batch; a nil value deletes.
type op struct{ key, value []byte }

// engine is what a workload asks of an engine. Goroutines share it.
type engine interface {
	settings() map[string]string
	version() string
	// load writes entries in the order of their keys.
	load(batch []op) error
	// settle ends a load: everything is on disk, merges have ended.
	settle() error
	// get calls found with the value, nil if the key is absent. The value is valid in the call only.
	get(key []byte, found func([]byte) error) error
	writeBatch(batch []op) error
	scan(from []byte, limit int, each func(key, value []byte) error) (int, error)
	close() error
}

// root is a root over all entries. Two engines of one scheme have the same root over the same
// entries.
type root struct {
	Scheme string `json:"scheme"`
	Hash   string `json:"hash"`
}

// rootEngine is an engine each of whose commits makes a root.
type rootEngine interface {
	engine
	// stateRoot is the root over all entries.
	stateRoot() root
	// commitRoot commits changes durably and returns the root after them.
	commitRoot(batch []op) (root, error)
	// loadOrder is the order in which load wants its entries.
	loadOrder(key []byte) []byte
}

func open(name, dir string, t terms) (engine, error) {
	switch name {
	case "pebble":
		return openPebble(dir, t)
	case "badger":
		return openBadger(dir, t)
	case "pathdb":
		return openPathdb(dir, t)
	}
	return nil, fmt.Errorf("%s: no such engine", name)
}

func main() {
	name := flag.String("engine", "pebble", "pebble, badger or pathdb")
	workload := flag.String("workload", "utxo", "as of terrane-peers")
	entries := flag.Uint64("entries", 1_000_000, "entries that are loaded")
	memory := flag.Int64("memory", 256<<20, "bytes of process and page cache together")
	warm := flag.Float64("warm", 5, "seconds of warm-up")
	seconds := flag.Float64("seconds", 20, "seconds that are measured")
	seed := flag.Uint64("seed", 1, "seed of keys, values and draws")
	phase := flag.String("phase", "measure", "load or measure")
	dir := flag.String("dir", "", "folder of the store")
	flag.Parse()
	report, err := run(*name, *dir, *phase, &work{
		name: *workload, entries: *entries, seed: *seed,
	}, *memory, *warm, *seconds)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		os.Exit(1)
	}
}

// run does one phase. What an engine cannot do is part of the report.
func run(name, dir, phase string, w *work, memory int64, warm, seconds float64) (map[string]any, error) {
	// The collector's own limit, below that of the control group, which a load does not have.
	if phase != "load" {
		debug.SetMemoryLimit(memory * 3 / 4)
	}
	t := terms{memory: memory, durable: w.isDurable()}
	e, err := open(name, dir, t)
	if err != nil {
		return nil, err
	}
	about := map[string]any{"version": e.version(), "settings": e.settings()}
	if phase == "load" {
		if err := w.load(e); err != nil {
			return nil, err
		}
		return map[string]any{"about": about}, e.close()
	}
	if err := e.close(); err != nil {
		return nil, err
	}
	begun := time.Now()
	if e, err = open(name, dir, t); err != nil {
		return nil, err
	}
	openS := time.Since(begun).Seconds()
	w.prepare()
	if _, err := w.run(e, warm); err != nil {
		return cannot(about, err)
	}
	before := used()
	m, err := w.run(e, seconds)
	if err != nil {
		return cannot(about, err)
	}
	after := used()
	if err := e.close(); err != nil {
		return nil, err
	}
	if e, err = open(name, dir, t); err != nil {
		return nil, err
	}
	checked, err := w.check(e)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"about": about, "open_s": openS, "ops": m.ops, "seconds": m.seconds,
		"reads_us": percentiles(m.reads), "writes_us": percentiles(m.writes),
		"cpu_s": after.cpu - before.cpu, "read_bytes": after.read - before.read,
		"write_bytes": after.written - before.written, "rss_peak_bytes": after.rssPeak,
		"checked": checked, "roots": w.rootsReport(),
	}, e.close()
}

func cannot(about map[string]any, err error) (map[string]any, error) {
	if errors.Is(err, errCannot) {
		return map[string]any{"about": about, "cannot": err.Error()}, nil
	}
	return nil, err
}
