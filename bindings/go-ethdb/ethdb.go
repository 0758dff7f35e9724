// Package terraneethdb makes a table of a Terrane store an ethdb.KeyValueStore of go-ethereum.
//
// Reads see all commits before them. An iterator sees the table as of its making. A batch is one
// commit and one call of the engine. Writes survive the end of the process; SyncKeyValue makes all
// of them survive a loss of power.
//
// This module uses the public interface of go-ethereum only. It is not part of the released library
// of Terrane, because go-ethereum is under the LGPL.
package terraneethdb

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/ethdb"

	"terrane"
)

// ErrNotFound is the error of Get for a key that is not there.
var ErrNotFound = errors.New("terrane: not found")

// tableName is the table of stores that Open makes.
const tableName = "main"

// Store is a table of a Terrane store. Goroutines may share it.
type Store struct {
	store *terrane.Store
	table *terrane.Table
	owns  bool
}

var _ ethdb.KeyValueStore = (*Store)(nil)

// Open opens the store of a directory, or makes one, with a table of its own.
func Open(dir string, options ...terrane.Option) (*Store, error) {
	ctx := context.Background()
	options = append([]terrane.Option{
		terrane.CreateDir(),
		terrane.WithDurability(terrane.Buffered),
	}, options...)
	store, err := terrane.Open(ctx, dir, options...)
	if err != nil {
		return nil, err
	}
	table, err := store.CreateTable(ctx, tableName)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &Store{store: store, table: table, owns: true}, nil
}

// New makes a table of an open store a key-value store. Close leaves both open.
func New(store *terrane.Store, table *terrane.Table) *Store {
	return &Store{store: store, table: table}
}

// Close closes what Open has opened.
func (s *Store) Close() error {
	if !s.owns {
		return nil
	}
	return errors.Join(s.table.Close(), s.store.Close())
}

// Has reports whether a key is there.
func (s *Store) Has(key []byte) (bool, error) {
	_, found, err := s.table.Get(context.Background(), key)
	return found, err
}

// Get returns a copy of the value of a key; ErrNotFound if there is none.
func (s *Store) Get(key []byte) ([]byte, error) {
	value, found, err := s.table.Get(context.Background(), key)
	if err == nil && !found {
		err = ErrNotFound
	}
	return value, err
}

// Put sets the value of a key.
func (s *Store) Put(key, value []byte) error {
	_, err := s.table.Put(context.Background(), key, value)
	return err
}

// Delete removes a key. An absent key is no error.
func (s *Store) Delete(key []byte) error {
	_, err := s.table.Delete(context.Background(), key)
	return err
}

// DeleteRange removes the keys from start on and below end, at the cost of one update. Nil stands
// for the first key, and for the end of all.
func (s *Store) DeleteRange(start, end []byte) error {
	var batch terrane.Batch
	batch.DeleteRange(s.table, terrane.Range{From: start, To: end})
	_, err := s.store.Write(context.Background(), &batch)
	return err
}

// Stat describes the table in lines.
func (s *Store) Stat() (string, error) {
	stats, err := s.table.Stats(context.Background())
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("entries at most: %d\nruns: %d\nmemory: %d bytes\nlookups: %d, found: %d\n"+
		"pages read by lookups: %d\nupdates: %d of %d bytes\nwritten: %d bytes\n",
		stats.Entries, stats.Runs, stats.MemoryBytes, stats.Lookups, stats.Found, stats.LookupReads,
		stats.Updates, stats.UpdateBytes, stats.WrittenBytes), nil
}

// SyncKeyValue waits until all commits survive a loss of power.
func (s *Store) SyncKeyValue() error {
	ctx := context.Background()
	commit, err := s.store.LastCommit(ctx)
	if err != nil {
		return err
	}
	return s.store.Sync(ctx, commit)
}

// Compact merges the runs of the whole store, whatever the range.
func (s *Store) Compact(_, _ []byte) error {
	return s.store.Compact(context.Background())
}

// NewIterator iterates over the keys that begin with prefix, from prefix and start on.
func (s *Store) NewIterator(prefix, start []byte) ethdb.Iterator {
	in := terrane.Prefix(prefix)
	in.From = append(append([]byte{}, prefix...), start...)
	cursor, err := s.table.Cursor(context.Background(), in)
	return &iterator{cursor: cursor, err: err}
}

// iterator is a cursor, or the reason why there is none.
type iterator struct {
	cursor *terrane.Cursor
	err    error
}

func (i *iterator) Next() bool {
	return i.err == nil && i.cursor.Next()
}

func (i *iterator) Error() error {
	if i.err != nil {
		return i.err
	}
	return i.cursor.Err()
}

func (i *iterator) Key() []byte {
	if i.err != nil {
		return nil
	}
	return i.cursor.Key()
}

func (i *iterator) Value() []byte {
	if i.err != nil {
		return nil
	}
	return i.cursor.Value()
}

func (i *iterator) Release() {
	if i.err == nil {
		// Freeing a cursor cannot fail.
		_ = i.cursor.Close()
	}
}

// NewBatch makes a batch, which is one commit.
func (s *Store) NewBatch() ethdb.Batch {
	return &batch{store: s}
}

// NewBatchWithSize makes a batch. It grows as needed, so the size means nothing.
func (s *Store) NewBatchWithSize(int) ethdb.Batch {
	return s.NewBatch()
}

// batch is updates in memory.
type batch struct {
	store   *Store
	updates terrane.Batch
}

func (b *batch) Put(key, value []byte) error {
	b.updates.Put(b.store.table, key, value)
	return nil
}

func (b *batch) Delete(key []byte) error {
	b.updates.Delete(b.store.table, key)
	return nil
}

func (b *batch) DeleteRange(start, end []byte) error {
	b.updates.DeleteRange(b.store.table, terrane.Range{From: start, To: end})
	return nil
}

func (b *batch) ValueSize() int {
	return b.updates.Size()
}

func (b *batch) Write() error {
	_, err := b.store.store.Write(context.Background(), &b.updates)
	return err
}

func (b *batch) Reset() {
	b.updates.Reset()
}

func (b *batch) Close() {
	b.updates = terrane.Batch{}
}

// Replay gives the updates in their order to another writer, which must delete ranges if the batch
// has any.
func (b *batch) Replay(to ethdb.KeyValueWriter) error {
	for update := range b.updates.All() {
		if err := replay(to, update); err != nil {
			return err
		}
	}
	return nil
}

func replay(to ethdb.KeyValueWriter, update terrane.Update) error {
	switch update.Kind {
	case terrane.Put:
		return to.Put(update.Key, update.Value)
	case terrane.Delete:
		return to.Delete(update.Key)
	}
	ranges, ok := to.(ethdb.KeyValueRangeDeleter)
	if !ok {
		return errors.New("terrane: the batch deletes ranges, and its reader cannot")
	}
	end := update.Value
	if update.Kind == terrane.DeleteFrom {
		end = nil
	}
	return ranges.DeleteRange(update.Key, end)
}
