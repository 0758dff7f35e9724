// The contract of cosmos-db's interface, as its documentation has it, and histories beside its
// database in memory, under seeds that a failure prints.

package terranecosmosdb

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	db "github.com/cosmos/cosmos-db"

	"terrane"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, err, expected error) {
	t.Helper()
	if !errors.Is(err, expected) {
		t.Fatalf("%v, not %v", err, expected)
	}
}

func open(t *testing.T) *DB {
	t.Helper()
	opened, err := Open(t.TempDir())
	must(t, err)
	t.Cleanup(func() { must(t, opened.Close()) })
	return opened
}

// entries gives what an iterator has, as text.
func entries(t *testing.T, iterator db.Iterator, err error) string {
	t.Helper()
	must(t, err)
	var text bytes.Buffer
	for ; iterator.Valid(); iterator.Next() {
		fmt.Fprintf(&text, "%s=%s ", iterator.Key(), iterator.Value())
	}
	must(t, iterator.Error())
	must(t, iterator.Close())
	return text.String()
}

func TestHistoriesEqualThoseInMemory(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			ours, memory := open(t), db.NewMemDB()
			both := []db.DB{ours, memory}
			key := func() []byte { return fmt.Append(nil, random.IntN(300)) }
			for range 300 {
				switch random.IntN(6) {
				case 0:
					key, value := key(), fmt.Append(nil, random.Uint32())
					for _, one := range both {
						must(t, one.Set(key, value))
					}
				case 1:
					key := key()
					for _, one := range both {
						must(t, one.Delete(key))
					}
				case 2:
					batches := []db.Batch{ours.NewBatch(), memory.NewBatchWithSize(10)}
					for range random.IntN(50) {
						key, value := key(), fmt.Append(nil, random.Uint32())
						for _, batch := range batches {
							if value[0] < '3' {
								must(t, batch.Delete(key))
							} else {
								must(t, batch.Set(key, value))
							}
						}
					}
					for _, batch := range batches {
						must(t, batch.Write())
						must(t, batch.Close())
					}
				case 3:
					key := key()
					found, err := ours.Get(key)
					must(t, err)
					expected, err := memory.Get(key)
					must(t, err)
					has, err := ours.Has(key)
					must(t, err)
					if !bytes.Equal(found, expected) || has != (expected != nil) {
						t.Fatalf("%q: %q, not %q", key, found, expected)
					}
				default:
					var start, end []byte
					if random.IntN(3) > 0 {
						start = key()
					}
					if random.IntN(3) > 0 {
						end = key()
					}
					up, err := ours.Iterator(start, end)
					found := entries(t, up, err)
					up, err = memory.Iterator(start, end)
					if expected := entries(t, up, err); found != expected {
						t.Fatalf("%q to %q: %s, not %s", start, end, found, expected)
					}
					down, err := ours.ReverseIterator(start, end)
					found = entries(t, down, err)
					down, err = memory.ReverseIterator(start, end)
					if expected := entries(t, down, err); found != expected {
						t.Fatalf("%q down to %q: %s, not %s", end, start, found, expected)
					}
				}
			}
		})
	}
}

func TestKeysAreNotEmptyAndValuesNotNil(t *testing.T) {
	opened := open(t)
	for _, key := range [][]byte{nil, {}} {
		_, err := opened.Get(key)
		refused(t, err, ErrEmptyKey)
		_, err = opened.Has(key)
		refused(t, err, ErrEmptyKey)
		refused(t, opened.Set(key, []byte("1")), ErrEmptyKey)
		refused(t, opened.SetSync(key, []byte("1")), ErrEmptyKey)
		refused(t, opened.Delete(key), ErrEmptyKey)
		refused(t, opened.DeleteSync(key), ErrEmptyKey)
	}
	refused(t, opened.Set([]byte("a"), nil), ErrNilValue)
	_, err := opened.Iterator([]byte{}, nil)
	refused(t, err, ErrEmptyKey)
	_, err = opened.ReverseIterator(nil, []byte{})
	refused(t, err, ErrEmptyKey)

	// An empty value is a value.
	must(t, opened.SetSync([]byte("a"), []byte{}))
	value, err := opened.Get([]byte("a"))
	must(t, err)
	if value == nil || len(value) != 0 {
		t.Fatalf("%v", value)
	}
	value, err = opened.Get([]byte("b"))
	must(t, err)
	if value != nil {
		t.Fatalf("%v", value)
	}
	must(t, opened.DeleteSync([]byte("a")))
	must(t, opened.Delete([]byte("a")))
}

func TestBatchesEndWithTheirWrite(t *testing.T) {
	opened := open(t)
	batch := opened.NewBatch()
	must(t, batch.Set([]byte("a"), []byte("12")))
	size, err := batch.GetByteSize()
	must(t, err)
	if size != 3 {
		t.Fatalf("%d bytes", size)
	}
	has, err := opened.Has([]byte("a"))
	must(t, err)
	if has {
		t.Fatal("a batch is seen before it is written")
	}
	must(t, batch.WriteSync())
	refused(t, batch.Set([]byte("a"), []byte("1")), ErrBatchEnded)
	refused(t, batch.Delete([]byte("a")), ErrBatchEnded)
	refused(t, batch.Write(), ErrBatchEnded)
	refused(t, batch.WriteSync(), ErrBatchEnded)
	_, err = batch.GetByteSize()
	refused(t, err, ErrBatchEnded)
	must(t, batch.Close())
	must(t, batch.Close())
}

func TestIteratorsSeeOneMoment(t *testing.T) {
	opened := open(t)
	must(t, opened.Set([]byte("a"), []byte("1")))
	must(t, opened.Set([]byte("b"), []byte("2")))
	iterator, err := opened.Iterator([]byte("a"), []byte("z"))
	must(t, err)
	must(t, opened.Delete([]byte("b")))
	if start, end := iterator.Domain(); string(start) != "a" || string(end) != "z" {
		t.Fatalf("%q to %q", start, end)
	}
	key := iterator.Key()
	if found := entries(t, iterator, nil); found != "a=1 b=2 " || string(key) != "a" {
		t.Fatalf("%s, key %s", found, key)
	}
	for _, call := range []func(){
		iterator.Next,
		func() { iterator.Key() },
		func() { iterator.Value() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("an invalid iterator went on")
				}
			}()
			call()
		}()
	}
}

func TestStatisticsAndTablesOfAnOpenStore(t *testing.T) {
	ctx := t.Context()
	store, err := terrane.Open(ctx, t.TempDir())
	must(t, err)
	table, err := store.CreateTable(ctx, "application")
	must(t, err)
	opened := New(store, table)
	must(t, opened.Set([]byte("a"), []byte("1")))
	must(t, opened.Print())
	if stats := opened.Stats(); stats["updates"] != "1" {
		t.Fatalf("%v", stats)
	}
	must(t, opened.Close())
	_, found, err := table.Get(ctx, []byte("a"))
	must(t, err)
	if !found {
		t.Fatal("the table of an open store was closed")
	}
	must(t, table.Close())
	if stats := opened.Stats(); len(stats) > 0 {
		t.Fatalf("%v", stats)
	}
	must(t, store.Close())
}
