package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable/block"
)

// pebbleEngine is Pebble with the newest table format, blocks of 4 KiB, Bloom filters of ten bits
// on all levels, no compression, and half of the memory as its cache, since it reads through the
// page cache.
type pebbleEngine struct {
	db    *pebble.DB
	cache *pebble.Cache
	write *pebble.WriteOptions
	t     terms
	log   bool
}

func openPebble(dir string, t terms) (engine, error) {
	cache := pebble.NewCache(t.memory / 2)
	options := &pebble.Options{
		Cache:              cache,
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       uint64(t.memory / 16),
		DisableWAL:         !t.durable,
		MaxOpenFiles:       10_000,
		Logger:             quiet{},
	}
	for i := range options.Levels {
		options.Levels[i].BlockSize = 4096
		options.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		options.Levels[i].Compression = func() *block.CompressionProfile { return block.NoCompression }
	}
	db, err := pebble.Open(dir, options)
	if err != nil {
		return nil, err
	}
	write := pebble.NoSync
	if t.durable {
		write = pebble.Sync
	}
	return &pebbleEngine{db: db, cache: cache, write: write, t: t, log: t.durable}, nil
}

// quiet drops what an engine logs, and ends the process where the engine cannot go on.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (quiet) Warningf(string, ...any)           {}
func (quiet) Debugf(string, ...any)             {}

func (p *pebbleEngine) version() string { return moduleVersion("github.com/cockroachdb/pebble/v2") }

func (p *pebbleEngine) settings() map[string]string {
	return map[string]string{
		"cache": fmt.Sprint(p.t.memory / 2), "memtable": fmt.Sprint(p.t.memory / 16),
		"block_size": "4096", "filter": "Bloom 10 bits, all levels", "compression": "none",
		"wal": map[bool]string{true: "synced", false: "off"}[p.log], "format": "newest",
	}
}

func (p *pebbleEngine) commit(batch []op, options *pebble.WriteOptions) error {
	b := p.db.NewBatch()
	defer b.Close()
	for _, o := range batch {
		var err error
		if o.value == nil {
			err = b.Delete(o.key, nil)
		} else {
			err = b.Set(o.key, o.value, nil)
		}
		if err != nil {
			return err
		}
	}
	return b.Commit(options)
}

func (p *pebbleEngine) load(batch []op) error { return p.commit(batch, pebble.NoSync) }

func (p *pebbleEngine) settle() error {
	if err := p.db.Flush(); err != nil {
		return err
	}
	return p.db.Compact(context.Background(), []byte{0}, bytes.Repeat([]byte{0xff}, 40), false)
}

func (p *pebbleEngine) get(key []byte, found func([]byte) error) error {
	value, closer, err := p.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return found(nil)
	}
	if err != nil {
		return err
	}
	defer closer.Close()
	return found(value)
}

func (p *pebbleEngine) writeBatch(batch []op) error { return p.commit(batch, p.write) }

func (p *pebbleEngine) scan(from []byte, limit int, each func(key, value []byte) error) (int, error) {
	iterator, err := p.db.NewIter(&pebble.IterOptions{LowerBound: from})
	if err != nil {
		return 0, err
	}
	defer iterator.Close()
	count := 0
	for valid := iterator.First(); valid && count < limit; valid = iterator.Next() {
		if err := each(iterator.Key(), iterator.Value()); err != nil {
			return count, err
		}
		count++
	}
	return count, iterator.Error()
}

func (p *pebbleEngine) close() error {
	// Without a log, what the memtable has would be lost.
	if err := p.db.Flush(); err != nil {
		return err
	}
	defer p.cache.Unref()
	return p.db.Close()
}
