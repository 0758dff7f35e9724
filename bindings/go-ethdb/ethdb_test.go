// The suite of go-ethereum for implementations of ethdb.KeyValueStore, and what it leaves out.

package terraneethdb

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/ethdb"
	"github.com/ethereum/go-ethereum/ethdb/dbtest"
	"github.com/ethereum/go-ethereum/ethdb/memorydb"

	"terrane"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	store, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func TestSuiteOfGoEthereum(t *testing.T) {
	dbtest.TestDatabaseSuite(t, func() ethdb.KeyValueStore {
		return open(t, t.TempDir())
	})
}

func TestSyncedWritesAreThereAfterOpening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	store := open(t, dir)
	if err := store.Put([]byte("a"), []byte("1")); err != nil {
		t.Fatal(err)
	}
	if err := store.SyncKeyValue(); err != nil {
		t.Fatal(err)
	}
	if err := store.Compact(nil, nil); err != nil {
		t.Fatal(err)
	}
	stat, err := store.Stat()
	if err != nil || !strings.Contains(stat, "updates: 1 of 2 bytes") {
		t.Fatalf("%q %v", stat, err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = store.Get([]byte("a"))
	if !errors.Is(err, terrane.ErrClosed) {
		t.Fatalf("a closed store: %v", err)
	}
	iterator := store.NewIterator(nil, nil)
	if iterator.Next() || iterator.Key() != nil || !errors.Is(iterator.Error(), terrane.ErrClosed) {
		t.Fatalf("an iterator of a closed store: %v", iterator.Error())
	}
	iterator.Release()

	store = open(t, dir)
	value, err := store.Get([]byte("a"))
	if err != nil || string(value) != "1" {
		t.Fatalf("%q %v", value, err)
	}
	_, err = store.Get([]byte("b"))
	if !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
}

func TestReplaysDeleteRanges(t *testing.T) {
	store := open(t, t.TempDir())
	batch := store.NewBatchWithSize(100)
	for _, key := range []string{"a", "b", "c"} {
		if err := errors.Join(batch.Put([]byte(key), []byte("1")), store.Put([]byte(key), nil)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(batch.DeleteRange(nil, []byte("b")), batch.DeleteRange([]byte("c"), nil)); err != nil {
		t.Fatal(err)
	}
	memory := memorydb.New()
	for name, to := range map[string]ethdb.KeyValueStore{"memory": memory, "terrane": store} {
		if err := batch.Replay(to); err != nil {
			t.Fatal(name, err)
		}
		for key, expected := range map[string]bool{"a": false, "b": true, "c": false} {
			if found, err := to.Has([]byte(key)); found != expected || err != nil {
				t.Errorf("%s: %s: %v %v", name, key, found, err)
			}
		}
	}
	if err := batch.Replay(onlyKeys{}); err == nil {
		t.Error("a writer without ranges took ranges")
	}
	batch.Close()
}

// onlyKeys is a writer that knows no ranges.
type onlyKeys struct{}

func (onlyKeys) Put([]byte, []byte) error { return nil }
func (onlyKeys) Delete([]byte) error      { return nil }

func TestTablesOfAnOpenStoreStayOpen(t *testing.T) {
	ctx := t.Context()
	store, err := terrane.Open(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	table, err := store.CreateTable(ctx, "chain")
	if err != nil {
		t.Fatal(err)
	}
	adapter := New(store, table)
	if err := errors.Join(adapter.Put([]byte("a"), []byte("1")), adapter.Close()); err != nil {
		t.Fatal(err)
	}
	value, found, err := table.Get(ctx, []byte("a"))
	if err != nil || !found || string(value) != "1" {
		t.Fatalf("%q %v", value, err)
	}
	if err := errors.Join(table.Close(), store.Close()); err != nil {
		t.Fatal(err)
	}
}
