// Random histories of a store beside maps, under seeds that a failure prints.
//
// TERRANE_SEED=N runs one history alone, TERRANE_EFFORT=full many more.

package terrane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// model is the entries of a table.
type model map[string]string

// entry is a row of a scan.
type entry struct{ key, value string }

// entries gives the entries of a range, sorted.
func (m model) entries(in Range) []entry {
	var found []entry
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if key >= string(in.From) && (in.To == nil || key < string(in.To)) {
			found = append(found, entry{key, m[key]})
		}
	}
	if in.Reverse {
		slices.Reverse(found)
	}
	return found
}

// history is a store, its model, and what was kept of earlier moments.
type history struct {
	testing.TB
	ctx      context.Context
	random   *rand.Rand
	dir      string
	store    *Store
	tables   [2]*Table
	models   [2]model
	views    []keptView
	versions map[uint64][2]model
	batch    Batch
	answers  Answers
}

// keptView is a view and the entries that it must go on to have.
type keptView struct {
	view  *View
	model model
}

var tableNames = [2]string{"left", "right"}

func (h *history) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func (h *history) open() {
	store, err := Open(h.ctx, h.dir, CreateDir(), WithDurability(Buffered))
	h.must(err)
	h.store = store
	for at, name := range tableNames {
		h.tables[at], err = store.CreateTable(h.ctx, name)
		h.must(err)
	}
}

func (h *history) close() {
	for _, kept := range h.views {
		h.must(kept.view.Close())
	}
	h.views = nil
	for _, table := range h.tables {
		h.must(table.Close())
	}
	h.must(h.store.Close())
}

// key is one of a few hundred, so that histories meet the same keys again.
func (h *history) key() []byte {
	return fmt.Appendf(nil, "%0*d", 1+h.random.IntN(4), h.random.IntN(150))
}

// value is empty, short, or longer than the memory of a cursor.
func (h *history) value() []byte {
	length := h.random.IntN(40)
	if h.random.IntN(200) == 0 {
		length = 100_000
	}
	value := make([]byte, length)
	for at := range value {
		value[at] = byte(h.random.Uint32())
	}
	return value
}

func (h *history) interval() Range {
	in := Range{Reverse: h.random.IntN(2) == 0}
	if h.random.IntN(4) > 0 {
		in.From = h.key()
	}
	if h.random.IntN(4) > 0 {
		in.To = h.key()
	}
	if h.random.IntN(4) == 0 {
		in = Prefix(h.key()[:1])
	}
	return in
}

// write commits a batch of any updates of both tables.
func (h *history) write() {
	h.batch.Reset()
	for range h.random.IntN(60) {
		at := h.random.IntN(2)
		table, model := h.tables[at], h.models[at]
		switch h.random.IntN(20) {
		case 0:
			in := h.interval()
			h.batch.DeleteRange(table, in)
			in.Reverse = false
			for _, gone := range model.entries(in) {
				delete(model, gone.key)
			}
		case 1, 2, 3, 4:
			key := h.key()
			h.batch.Delete(table, key)
			delete(model, string(key))
		default:
			key, value := h.key(), h.value()
			h.batch.Put(table, key, value)
			model[string(key)] = string(value)
		}
	}
	if h.random.IntN(4) > 0 {
		_, err := h.store.Write(h.ctx, &h.batch)
		h.must(err)
		return
	}
	last, err := h.store.LastCommit(h.ctx)
	h.must(err)
	if last > 0 {
		if _, err := h.store.WriteIf(h.ctx, &h.batch, last-1); !errors.Is(err, ErrConflict) {
			h.Fatalf("a commit came between, yet %v", err)
		}
	}
	_, err = h.store.WriteIf(h.ctx, &h.batch, last)
	h.must(err)
}

// check compares lookups and a range with a model.
func (h *history) check(reader Reader, model model) {
	h.Helper()
	keys := &Rows{}
	for range 1 + h.random.IntN(30) {
		keys.Append(h.key())
	}
	h.must(reader.GetMany(h.ctx, keys, &h.answers))
	if h.answers.Len() != keys.Len() {
		h.Fatalf("%d answers to %d keys", h.answers.Len(), keys.Len())
	}
	for at, key := range keys.All() {
		value, found := h.answers.Get(at)
		expected, isThere := model[string(key)]
		if found != isThere || string(value) != expected {
			h.Fatalf("key %q: %q %v, not %q %v", key, value, found, expected, isThere)
		}
	}
	value, found, err := reader.Get(h.ctx, keys.At(0))
	h.must(err)
	if expected, isThere := model[string(keys.At(0))]; found != isThere || string(value) != expected {
		h.Fatalf("key %q alone: %q %v, not %q %v", keys.At(0), value, found, expected, isThere)
	}

	in := h.interval()
	var scanned []entry
	scan := reader.Scan(h.ctx, in)
	for key, value := range scan.All() {
		scanned = append(scanned, entry{string(key), string(value)})
	}
	h.must(scan.Err())
	if expected := model.entries(in); !slices.Equal(scanned, expected) {
		h.Fatalf("range %q to %q, reverse %v: %d entries, not %d", in.From, in.To, in.Reverse,
			len(scanned), len(expected))
	}
}

// keep makes a view that later steps look at again.
func (h *history) keep() {
	at := h.random.IntN(2)
	view, err := h.tables[at].View(h.ctx)
	h.must(err)
	h.views = append(h.views, keptView{view, maps.Clone(h.models[at])})
	if len(h.views) > 6 {
		h.must(h.views[0].view.Close())
		h.views = h.views[1:]
	}
}

// fork changes a fork of a kept view, which the view does not see, and names it as a table.
func (h *history) fork(kept keptView) {
	fork, err := kept.view.Fork(h.ctx)
	h.must(err)
	model := maps.Clone(kept.model)
	key, value := h.key(), h.value()
	h.must(fork.PutMany(h.ctx, RowsOf(key), RowsOf(value)))
	model[string(key)] = string(value)
	gone := h.key()
	h.must(fork.DeleteMany(h.ctx, RowsOf(gone)))
	delete(model, string(gone))
	view, err := fork.View(h.ctx)
	h.must(err)
	h.check(view, model)
	h.check(kept.view, kept.model)

	diff := kept.view.Diff(h.ctx, view)
	changes := 0
	for change := range diff.All() {
		changes++
		for _, side := range []struct {
			value   []byte
			entries map[string]string
		}{{change.Old, kept.model}, {change.New, model}} {
			expected, isThere := side.entries[string(change.Key)]
			if isThere != (side.value != nil) || string(side.value) != expected {
				h.Fatalf("change of %q: %q, not %q %v", change.Key, side.value, expected, isThere)
			}
		}
		if bytes.Equal(change.Old, change.New) && (change.Old == nil) == (change.New == nil) {
			h.Fatalf("%q did not change", change.Key)
		}
	}
	h.must(diff.Err())
	if changes > 2 {
		h.Fatalf("%d changes of two keys", changes)
	}

	installed, err := h.store.Install(h.ctx, "fork", fork)
	h.must(err)
	h.check(installed, model)
	h.must(installed.Close())
	h.must(h.store.DropTable(h.ctx, "fork"))
	h.must(view.Close())
	h.must(fork.Close())
}

// transact reads and writes in a transaction; a commit that changes what was read comes between, or
// does not.
func (h *history) transact() {
	table, model := h.tables[0], h.models[0]
	read, written, value := h.key(), h.key(), h.value()
	transaction, err := h.store.Begin(h.ctx)
	h.must(err)
	h.must(transaction.Put(h.ctx, table, written, value))
	for _, key := range [][]byte{read, written} {
		found, isThere, err := transaction.Get(h.ctx, table, key)
		h.must(err)
		expected, isKnown := model[string(key)]
		if bytes.Equal(key, written) {
			expected, isKnown = string(value), true
		}
		if isThere != isKnown || string(found) != expected {
			h.Fatalf("transaction: %q %q, not %q", key, found, expected)
		}
	}
	disturbed := h.random.IntN(2) == 0 && !bytes.Equal(read, written)
	if disturbed {
		_, err := table.Put(h.ctx, read, []byte("disturbed"))
		h.must(err)
		model[string(read)] = "disturbed"
	}
	_, err = transaction.Commit(h.ctx)
	if disturbed != errors.Is(err, ErrConflict) || (!disturbed && err != nil) {
		h.Fatalf("disturbed %v: %v", disturbed, err)
	}
	if !disturbed {
		model[string(written)] = string(value)
	}
}

// version retains all tables, or goes back to what was retained.
func (h *history) version() {
	if len(h.versions) < 3 {
		number, err := h.store.Retain(h.ctx, "")
		h.must(err)
		h.versions[number] = [2]model{maps.Clone(h.models[0]), maps.Clone(h.models[1])}
		return
	}
	numbers, err := h.store.Versions(h.ctx)
	h.must(err)
	if !slices.Equal(numbers, slices.Sorted(maps.Keys(h.versions))) {
		h.Fatalf("versions %v", numbers)
	}
	number := numbers[h.random.IntN(len(numbers))]
	view, err := h.store.VersionView(h.ctx, number, tableNames[1])
	h.must(err)
	h.check(view, h.versions[number][1])
	h.must(view.Close())
	if h.random.IntN(2) == 0 {
		_, err := h.store.RollBack(h.ctx, number)
		h.must(err)
		for at, model := range h.versions[number] {
			h.models[at] = maps.Clone(model)
		}
	}
	h.must(h.store.Release(h.ctx, number))
	delete(h.versions, number)
}

func (h *history) step() {
	switch h.random.IntN(40) {
	case 0:
		h.must(h.store.Checkpoint(h.ctx))
	case 1:
		h.must(h.store.Compact(h.ctx))
	case 2:
		h.close()
		h.open()
	case 3, 4:
		h.version()
	case 5, 6, 7:
		h.keep()
	case 8, 9, 10:
		h.transact()
	case 11:
		if len(h.views) > 0 {
			h.fork(h.views[h.random.IntN(len(h.views))])
		}
	default:
		h.write()
	}
	for at, table := range h.tables {
		h.check(table, h.models[at])
	}
	for _, kept := range h.views {
		h.check(kept.view, kept.model)
	}
}

func TestHistories(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4}
	if os.Getenv("TERRANE_EFFORT") == "full" {
		for seed := range uint64(200) {
			seeds = append(seeds, 100+seed)
		}
	}
	if text := os.Getenv("TERRANE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("TERRANE_SEED=%d", seed), func(t *testing.T) {
			h := &history{
				TB:       t,
				ctx:      t.Context(),
				random:   rand.New(rand.NewPCG(seed, 0)),
				dir:      t.TempDir(),
				models:   [2]model{{}, {}},
				versions: map[uint64][2]model{},
			}
			h.open()
			for range 150 {
				h.step()
			}
			h.close()
		})
	}
}
