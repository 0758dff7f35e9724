package main

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// badgerEngine is Badger with values in its tables (they are far below its threshold), one version
// a key, no compression, a quarter of the memory for blocks and an eighth for indexes and filters;
// tables are mapped.
type badgerEngine struct {
	db *badger.DB
	t  terms
}

func openBadger(dir string, t terms) (engine, error) {
	o := badger.DefaultOptions(dir).
		WithLogger(quiet{}).
		WithCompression(options.None).
		WithBlockSize(4096).
		WithBlockCacheSize(t.memory / 4).
		WithIndexCacheSize(t.memory / 8).
		WithMemTableSize(t.memory / 16).
		WithNumMemtables(2).
		WithNumVersionsToKeep(1).
		WithValueThreshold(1 << 10).
		WithSyncWrites(t.durable).
		WithDetectConflicts(false)
	db, err := badger.Open(o)
	if err != nil {
		return nil, err
	}
	return &badgerEngine{db, t}, nil
}

func (b *badgerEngine) version() string { return moduleVersion("github.com/dgraph-io/badger/v4") }

func (b *badgerEngine) settings() map[string]string {
	return map[string]string{
		"block_cache": fmt.Sprint(b.t.memory / 4), "index_cache": fmt.Sprint(b.t.memory / 8),
		"memtable": fmt.Sprintf("2 of %d", b.t.memory/16), "block_size": "4096",
		"compression": "none", "sync_writes": fmt.Sprint(b.t.durable), "versions": "1",
	}
}

func (b *badgerEngine) load(batch []op) error {
	w := b.db.NewWriteBatch()
	defer w.Cancel()
	for _, o := range batch {
		if err := w.Set(o.key, o.value); err != nil {
			return err
		}
	}
	return w.Flush()
}

func (b *badgerEngine) settle() error { return b.db.Flatten(2) }

func (b *badgerEngine) get(key []byte, found func([]byte) error) error {
	return b.db.View(func(t *badger.Txn) error {
		item, err := t.Get(key)
		if errors.Is(err, badger.ErrKeyNotFound) {
			return found(nil)
		}
		if err != nil {
			return err
		}
		return item.Value(found)
	})
}

func (b *badgerEngine) writeBatch(batch []op) error {
	return b.db.Update(func(t *badger.Txn) error {
		for _, o := range batch {
			var err error
			if o.value == nil {
				err = t.Delete(o.key)
			} else {
				err = t.Set(o.key, o.value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *badgerEngine) scan(from []byte, limit int, each func(key, value []byte) error) (int, error) {
	count := 0
	err := b.db.View(func(t *badger.Txn) error {
		o := badger.DefaultIteratorOptions
		o.PrefetchSize = limit
		iterator := t.NewIterator(o)
		defer iterator.Close()
		for iterator.Seek(from); iterator.Valid() && count < limit; iterator.Next() {
			item := iterator.Item()
			if err := item.Value(func(value []byte) error { return each(item.Key(), value) }); err != nil {
				return err
			}
			count++
		}
		return nil
	})
	return count, err
}

func (b *badgerEngine) close() error { return b.db.Close() }

// moduleVersion is the version of a module that this program was built with.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, module := range info.Deps {
		if module.Path == path {
			return module.Version
		}
	}
	return "unknown"
}
