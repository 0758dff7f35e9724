package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/crypto/sha3"
)

const (
	batchSize   = 256
	readers     = 8
	scanned     = 1_000
	committed   = 10
	checkedKeys = 4_096
	commitsFrom = 1 << 40
	absentFrom  = 1 << 41

	blockReads      = 1_313
	blockOverwrites = 998
	blockRemovals   = 99
	removed         = 255
	step            = 0x9E3779B97F4A7C15
)

func splitmix(n uint64) uint64 {
	z := n + step
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// draws is the stream that harness/src/work.rs draws from.
type draws struct{ state uint64 }

func (d *draws) next() uint64 {
	z := splitmix(d.state)
	d.state += step
	return z
}

func (d *draws) below(bound uint64) uint64 {
	high, _ := bits.Mul64(d.next(), bound)
	return high
}

func mix(seed, number uint64) uint64 { return splitmix(splitmix(seed) + number) }

// stream is a SplitMix64 stream that is read at any place.
type stream uint64

func (s stream) output(at uint64) uint64 { return splitmix(uint64(s) + at*step) }

func fill(to []byte, state uint64) {
	var word [8]byte
	for len(to) > 0 {
		binary.LittleEndian.PutUint64(word[:], state)
		to = to[copy(to, word[:]):]
		state = splitmix(state)
	}
}

// work is the state of a workload over its warm-up and its measured part.
type work struct {
	name          string
	entries, seed uint64
	live, dead    []uint32
	following     uint64
	draws         draws
	commits       atomic.Uint64
	versions      []byte // of state: version of each number's value, or removed
	blocks        uint64
	roots         []blockRoot
}

// blockRoot is the root after so many blocks.
type blockRoot struct {
	block uint64
	root  root
}

type measured struct {
	ops           int64
	seconds       float64
	reads, writes *hdrhistogram.Histogram
}

func histogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 1e11, 3) }

func (w *work) isDurable() bool { return !w.loads() || w.name == "state" }

// loads tells whether entries are loaded before.
func (w *work) loads() bool { return !strings.HasPrefix(w.name, "commits") }

// hashed returns the key of a counter.
func hashed(number uint64) []byte {
	var counter [32]byte
	binary.BigEndian.PutUint64(counter[24:], number)
	hash := sha3.NewLegacyKeccak256()
	hash.Write(counter[:])
	return hash.Sum(nil)
}

// account returns the value of a number of state after so many changes.
func account(seed, number uint64, version byte) []byte {
	s := stream(mix(mix(seed, number), uint64(version)))
	drawn := s.output(0)
	var balance [8]byte
	binary.LittleEndian.PutUint64(balance[:], s.output(1))
	// A single byte below 0x80 would stand for itself.
	balance[0] |= 0x80
	extra := byte((drawn >> 8) % 9)
	value := []byte{0xf8, 68 + extra, 1 + byte(drawn%127), 0x80 + extra}
	value = append(value, balance[:extra]...)
	for _, first := range []uint64{2, 6} {
		value = append(value, 0xa0)
		for at := first; at < first+4; at++ {
			value = binary.LittleEndian.AppendUint64(value, s.output(at))
		}
	}
	return value
}

// entry returns the key and the value of a number.
func (w *work) entry(number uint64) ([]byte, []byte) {
	if w.name == "kvget" {
		s := stream(mix(mix(w.seed, number), 0))
		value := make([]byte, 110)
		var word [8]byte
		for at := 0; at*8 < len(value); at++ {
			binary.LittleEndian.PutUint64(word[:], s.output(uint64(at)))
			copy(value[at*8:], word[:])
		}
		return hashed(number), value
	}
	if w.name == "state" {
		var version byte
		if number < uint64(len(w.versions)) {
			version = w.versions[number]
		}
		return hashed(number), account(w.seed, number, version)
	}
	key, value := make([]byte, 34), make([]byte, 60)
	fill(key, splitmix(w.seed^number))
	fill(value, splitmix(^w.seed^number))
	if w.name == "index" {
		return key[:32], value[:13]
	}
	return key, value
}

func (w *work) load(e engine) error {
	if !w.loads() {
		if err := e.load([]op{{make([]byte, 34), make([]byte, 60)}}); err != nil {
			return err
		}
		return e.settle()
	}
	type place struct {
		first  uint64
		number uint32
	}
	order := make([]place, w.entries)
	of := func(key []byte) []byte { return key }
	if e, ok := e.(rootEngine); ok {
		of = e.loadOrder
	}
	for n := range order {
		key, _ := w.entry(uint64(n))
		key = of(key)
		order[n] = place{binary.BigEndian.Uint64(key), uint32(n)}
	}
	slices.SortFunc(order, func(a, b place) int { return cmp.Compare(a.first, b.first) })
	for part := range slices.Chunk(order, 10_000) {
		batch := make([]op, len(part))
		for i, p := range part {
			batch[i].key, batch[i].value = w.entry(uint64(p.number))
		}
		if err := e.load(batch); err != nil {
			return err
		}
	}
	return e.settle()
}

func (w *work) prepare() {
	w.draws = draws{w.seed ^ 0x5EED}
	w.following = w.entries
	w.commits.Store(commitsFrom)
	if w.name == "utxo" {
		w.live = make([]uint32, w.entries)
		for n := range w.live {
			w.live[n] = uint32(n)
		}
	}
	if w.name == "state" {
		w.versions = make([]byte, w.entries, w.entries+1<<20)
	}
}

func (w *work) run(e engine, seconds float64) (measured, error) {
	limit := time.Duration(seconds * float64(time.Second))
	switch w.name {
	case "utxo":
		return w.utxo(e, limit)
	case "kvget":
		return w.kvget(e, limit)
	case "index":
		return w.index(e, limit)
	case "scan":
		return w.scan(e, limit)
	case "commits-1":
		return w.durable(e, limit, 1)
	case "commits-8":
		return w.durable(e, limit, 8)
	case "state":
		if e, ok := e.(rootEngine); ok {
			return w.state(e, limit)
		}
		return measured{}, errCannot
	}
	return measured{}, fmt.Errorf("%s: no such workload", w.name)
}

func (w *work) utxo(e engine, limit time.Duration) (measured, error) {
	m := measured{reads: histogram(), writes: histogram()}
	var spent time.Duration
	for spent < limit {
		size := len(w.live)
		for i := range batchSize {
			position := w.draws.below(uint64(size - i))
			w.live[position], w.live[size-1-i] = w.live[size-1-i], w.live[position]
		}
		drawn := w.live[size-batchSize:]
		changes := make([]op, 0, 2*batchSize)
		values := make([][]byte, batchSize)
		for i, number := range drawn {
			var key []byte
			key, values[i] = w.entry(uint64(number))
			changes = append(changes, op{key: key})
		}
		for number := w.following; number < w.following+batchSize; number++ {
			key, value := w.entry(number)
			changes = append(changes, op{key, value})
		}
		begun := time.Now()
		for i := range batchSize {
			err := e.get(changes[i].key, func(value []byte) error {
				if !bytes.Equal(value, values[i]) || value == nil {
					return fmt.Errorf("wrong answer: live entry %d is missing or differs", drawn[i])
				}
				return nil
			})
			if err != nil {
				return m, err
			}
		}
		read := time.Since(begun)
		if err := e.writeBatch(changes); err != nil {
			return m, err
		}
		all := time.Since(begun)
		m.reads.RecordValue(int64(read))
		m.writes.RecordValue(int64(all - read))
		spent += all
		m.ops += batchSize
		w.dead = append(w.dead[:0], drawn...)
		for i := range drawn {
			drawn[i] = uint32(w.following) + uint32(i)
		}
		w.following += batchSize
	}
	m.seconds = spent.Seconds()
	return m, nil
}

// parallel runs n goroutines and merges what they recorded.
func parallel(n int, one func(*hdrhistogram.Histogram) error) (*hdrhistogram.Histogram, error) {
	all := histogram()
	var group sync.WaitGroup
	var lock sync.Mutex
	var first error
	for range n {
		group.Go(func() {
			own := histogram()
			err := one(own)
			lock.Lock()
			defer lock.Unlock()
			all.Merge(own)
			if first == nil {
				first = err
			}
		})
	}
	group.Wait()
	return all, first
}

func (w *work) kvget(e engine, limit time.Duration) (measured, error) {
	begun := time.Now()
	var lock sync.Mutex
	reads, err := parallel(readers, func(own *hdrhistogram.Histogram) error {
		lock.Lock()
		stream := draws{w.draws.next()}
		lock.Unlock()
		for time.Since(begun) < limit {
			key, expected := w.entry(stream.below(w.entries))
			start := time.Now()
			err := e.get(key, func(value []byte) error {
				if !bytes.Equal(value, expected) {
					return fmt.Errorf("wrong answer: a loaded key has another value")
				}
				return nil
			})
			if err != nil {
				return err
			}
			own.RecordValue(int64(time.Since(start)))
		}
		return nil
	})
	return measured{reads.TotalCount(), time.Since(begun).Seconds(), reads, histogram()}, err
}

// index inserts in 10 of 99 operations, finds in 69, and looks for an absent key in 20.
func (w *work) index(e engine, limit time.Duration) (measured, error) {
	m := measured{reads: histogram(), writes: histogram()}
	var spent time.Duration
	for spent < limit {
		kind := w.draws.below(99)
		if kind < 10 {
			key, value := w.entry(w.following)
			begun := time.Now()
			if err := e.writeBatch([]op{{key, value}}); err != nil {
				return m, err
			}
			took := time.Since(begun)
			m.writes.RecordValue(int64(took))
			spent += took
			w.following++
			m.ops++
			continue
		}
		number := w.draws.below(w.following)
		present := kind < 79
		if !present {
			number += absentFrom
		}
		key, expected := w.entry(number)
		begun := time.Now()
		err := e.get(key, func(value []byte) error {
			if present != (value != nil) || present && !bytes.Equal(value, expected) {
				return fmt.Errorf("wrong answer: entry %d, which is present: %t", number, present)
			}
			return nil
		})
		if err != nil {
			return m, err
		}
		took := time.Since(begun)
		m.reads.RecordValue(int64(took))
		spent += took
		m.ops++
	}
	m.seconds = spent.Seconds()
	return m, nil
}

func (w *work) scan(e engine, limit time.Duration) (measured, error) {
	m := measured{reads: histogram(), writes: histogram()}
	var spent time.Duration
	for spent < limit {
		from, value := w.entry(w.draws.below(w.entries))
		var last []byte
		begun := time.Now()
		_, err := e.scan(from, scanned, func(key, got []byte) error {
			if len(last) == 0 && !(bytes.Equal(key, from) && bytes.Equal(got, value)) {
				return fmt.Errorf("wrong answer: a scan does not begin with the key it was given")
			}
			if bytes.Compare(key, last) <= 0 {
				return fmt.Errorf("wrong answer: keys of a scan do not ascend")
			}
			last = append(last[:0], key...)
			return nil
		})
		if err != nil {
			return m, err
		}
		m.reads.RecordValue(int64(time.Since(begun)))
		spent += time.Since(begun)
		m.ops++
	}
	m.seconds = spent.Seconds()
	return m, nil
}

func (w *work) durable(e engine, limit time.Duration, threads int) (measured, error) {
	begun := time.Now()
	writes, err := parallel(threads, func(own *hdrhistogram.Histogram) error {
		for time.Since(begun) < limit {
			first := w.commits.Add(committed) - committed
			batch := make([]op, committed)
			for i := range batch {
				batch[i].key, batch[i].value = w.entry(first + uint64(i))
			}
			start := time.Now()
			if err := e.writeBatch(batch); err != nil {
				return err
			}
			own.RecordValue(int64(time.Since(start)))
		}
		return nil
	})
	return measured{writes.TotalCount(), time.Since(begun).Seconds(), histogram(), writes}, err
}

// state reads and changes keys by blocks.
func (w *work) state(e rootEngine, limit time.Duration) (measured, error) {
	if w.entries < 2*blockReads {
		return measured{}, fmt.Errorf("state needs %d entries", 2*blockReads)
	}
	if len(w.roots) == 0 {
		w.roots = append(w.roots, blockRoot{0, e.stateRoot()})
	}
	m := measured{reads: histogram(), writes: histogram()}
	var spent time.Duration
	for spent < limit {
		drawn := make([]uint64, 0, blockReads)
		isDrawn := make(map[uint64]struct{}, blockReads)
		for len(drawn) < blockReads {
			number := w.draws.below(w.following)
			if _, ok := isDrawn[number]; ok || w.versions[number] == removed {
				continue
			}
			isDrawn[number] = struct{}{}
			drawn = append(drawn, number)
		}
		expected := make([]op, blockReads)
		for i, number := range drawn {
			expected[i].key, expected[i].value = w.entry(number)
		}

		// The first of the drawn numbers are overwritten, the next removed.
		changes := make([]op, 0, blockReads)
		for _, number := range drawn[:blockOverwrites] {
			w.versions[number] = (w.versions[number] + 1) % removed
			key, value := w.entry(number)
			changes = append(changes, op{key, value})
		}
		w.dead = w.dead[:0]
		for i := blockOverwrites; i < blockOverwrites+blockRemovals; i++ {
			w.versions[drawn[i]] = removed
			changes = append(changes, op{key: expected[i].key})
			w.dead = append(w.dead, uint32(drawn[i]))
		}
		for len(changes) < blockReads {
			w.versions = append(w.versions, 0)
			key, value := w.entry(w.following)
			changes = append(changes, op{key, value})
			w.following++
		}

		begun := time.Now()
		for i := range expected {
			err := e.get(expected[i].key, func(value []byte) error {
				if !bytes.Equal(value, expected[i].value) {
					return fmt.Errorf("wrong answer: entry %d is missing or differs", drawn[i])
				}
				return nil
			})
			if err != nil {
				return m, err
			}
		}
		read := time.Since(begun)
		after, err := e.commitRoot(changes)
		if err != nil {
			return m, err
		}
		all := time.Since(begun)
		m.reads.RecordValue(int64(read))
		m.writes.RecordValue(int64(all - read))
		spent += all
		m.ops++
		w.blocks++
		// The root before stays if its number of blocks is one that all engines keep.
		last := w.roots[len(w.roots)-1].block
		if bits.OnesCount64(last) > 1 {
			w.roots = w.roots[:len(w.roots)-1]
		}
		w.roots = append(w.roots, blockRoot{w.blocks, after})
	}
	m.seconds = spent.Seconds()
	return m, nil
}

// rootsReport is the roots as pairs.
func (w *work) rootsReport() [][2]any {
	report := make([][2]any, len(w.roots))
	for i, r := range w.roots {
		report[i] = [2]any{r.block, r.root}
	}
	return report
}

// check looks up keys that must be there, or must be gone; after durable commits, all of them; of
// state, the root must be the last one.
func (w *work) check(e engine) (int, error) {
	var present, absent []uint64
	for _, number := range w.dead {
		absent = append(absent, uint64(number))
	}
	switch {
	case w.name == "utxo":
		every := (len(w.live) + checkedKeys - 1) / checkedKeys
		for i := len(w.live) - 1; i >= 0; i -= every {
			present = append(present, uint64(w.live[i]))
		}
	case w.name == "state":
		e, ok := e.(rootEngine)
		if !ok {
			return 0, errCannot
		}
		if last := w.roots[len(w.roots)-1].root; e.stateRoot() != last {
			return 0, fmt.Errorf("wrong answer: %s is not the last root", e.stateRoot().Hash)
		}
		add := func(number uint64) {
			if w.versions[number] != removed {
				present = append(present, number)
			}
		}
		for number := w.following - min(checkedKeys, w.following); number < w.following; number++ {
			add(number)
		}
		for range checkedKeys {
			add(w.draws.below(w.following))
		}
	case !w.loads():
		for number := uint64(commitsFrom); number < w.commits.Load(); number++ {
			present = append(present, number)
		}
	case w.name == "index":
		for number := w.following - min(checkedKeys, w.following); number < w.following; number++ {
			present = append(present, number)
		}
		for number := uint64(absentFrom); number < absentFrom+checkedKeys; number++ {
			absent = append(absent, number)
		}
		fallthrough
	default:
		for range min(checkedKeys, w.entries) {
			present = append(present, w.draws.below(w.entries))
		}
	}
	for _, number := range present {
		key, expected := w.entry(number)
		err := e.get(key, func(value []byte) error {
			if !bytes.Equal(value, expected) {
				return fmt.Errorf("wrong answer: entry %d must be there", number)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	for _, number := range absent {
		key, _ := w.entry(number)
		err := e.get(key, func(value []byte) error {
			if value != nil {
				return fmt.Errorf("wrong answer: entry %d must be gone", number)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return len(present) + len(absent), nil
}

// percentiles are in microseconds, nil of an empty histogram.
func percentiles(h *hdrhistogram.Histogram) map[string]float64 {
	if h.TotalCount() == 0 {
		return nil
	}
	at := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / 1e3 }
	return map[string]float64{
		"p50": at(50), "p99": at(99), "p999": at(99.9), "p9999": at(99.99), "max": float64(h.Max()) / 1e3,
	}
}

type usage struct {
	cpu                    float64
	read, written, rssPeak int64
}

// used reads what Linux counts of this process.
func used() usage {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	field := func(path, name string) int64 {
		text, _ := os.ReadFile(path)
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, name); ok {
				n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				return n
			}
		}
		return 0
	}
	return usage{
		cpu:     seconds(r.Utime) + seconds(r.Stime),
		read:    field("/proc/self/io", "read_bytes:"),
		written: field("/proc/self/io", "write_bytes:"),
		rssPeak: field("/proc/self/status", "VmHWM:") << 10,
	}
}
