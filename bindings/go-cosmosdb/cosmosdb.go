// Package terranecosmosdb makes a table of a Terrane store a DB of cosmos-db, the interface between
// the stores of the Cosmos SDK and a database.
//
// Reads see all commits before them. An iterator sees the table as of its making, so that writes
// may go on beside it. A batch is one commit and one call of the engine. Set, Delete and Write
// survive the end of the process, SetSync, DeleteSync and WriteSync a loss of power.
//
// This module is not part of the released library of Terrane: what cosmos-db depends on is under
// licences of its own.
package terranecosmosdb

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	db "github.com/cosmos/cosmos-db"

	"terrane"
)

var (
	// ErrEmptyKey is the error for a key that is nil or empty.
	ErrEmptyKey = errors.New("terrane: the key is empty")
	// ErrNilValue is the error for a value that is nil.
	ErrNilValue = errors.New("terrane: the value is nil")
	// ErrBatchEnded is the error of a batch that was written or closed.
	ErrBatchEnded = errors.New("terrane: the batch was written or closed")
)

// tableName is the table of stores that Open makes.
const tableName = "main"

// DB is a table of a Terrane store. Goroutines may share it.
type DB struct {
	store *terrane.Store
	table *terrane.Table
	owns  bool
}

var _ db.DB = (*DB)(nil)

// Open opens the store of a directory, or makes one, with a table of its own.
func Open(dir string, options ...terrane.Option) (*DB, error) {
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
	return &DB{store: store, table: table, owns: true}, nil
}

// New makes a table of an open store a DB. Close leaves both open.
func New(store *terrane.Store, table *terrane.Table) *DB {
	return &DB{store: store, table: table}
}

// Close closes what Open has opened.
func (d *DB) Close() error {
	if !d.owns {
		return nil
	}
	return errors.Join(d.table.Close(), d.store.Close())
}

// Get returns a copy of the value of a key, or nil if there is none.
func (d *DB) Get(key []byte) ([]byte, error) {
	if len(key) == 0 {
		return nil, ErrEmptyKey
	}
	value, _, err := d.table.Get(context.Background(), key)
	return value, err
}

// Has reports whether a key is there.
func (d *DB) Has(key []byte) (bool, error) {
	if len(key) == 0 {
		return false, ErrEmptyKey
	}
	_, found, err := d.table.Get(context.Background(), key)
	return found, err
}

// Set sets the value of a key.
func (d *DB) Set(key, value []byte) error {
	return d.write(key, value, false, (*batch).Write)
}

// SetSync sets the value of a key and waits until it survives a loss of power.
func (d *DB) SetSync(key, value []byte) error {
	return d.write(key, value, false, (*batch).WriteSync)
}

// Delete removes a key. An absent key is no error.
func (d *DB) Delete(key []byte) error {
	return d.write(key, nil, true, (*batch).Write)
}

// DeleteSync removes a key and waits until that survives a loss of power.
func (d *DB) DeleteSync(key []byte) error {
	return d.write(key, nil, true, (*batch).WriteSync)
}

// write commits one update.
func (d *DB) write(key, value []byte, isDelete bool, commit func(*batch) error) error {
	one := &batch{db: d}
	var err error
	if isDelete {
		err = one.Delete(key)
	} else {
		err = one.Set(key, value)
	}
	if err != nil {
		return err
	}
	return commit(one)
}

// Iterator iterates upwards over the keys from start on and below end. Nil stands for the first
// key, and for the end of all.
func (d *DB) Iterator(start, end []byte) (db.Iterator, error) {
	return d.iterate(terrane.Range{From: start, To: end})
}

// ReverseIterator iterates downwards over the same keys as Iterator.
func (d *DB) ReverseIterator(start, end []byte) (db.Iterator, error) {
	return d.iterate(terrane.Range{From: start, To: end, Reverse: true})
}

func (d *DB) iterate(in terrane.Range) (db.Iterator, error) {
	if (in.From != nil && len(in.From) == 0) || (in.To != nil && len(in.To) == 0) {
		return nil, ErrEmptyKey
	}
	cursor, err := d.table.Cursor(context.Background(), in)
	if err != nil {
		return nil, err
	}
	return &iterator{in: in, cursor: cursor, isValid: cursor.Next()}, nil
}

// iterator stands on an entry, or is invalid forever.
type iterator struct {
	in      terrane.Range
	cursor  *terrane.Cursor
	isValid bool
}

func (i *iterator) Domain() (start, end []byte) {
	return i.in.From, i.in.To
}

func (i *iterator) Valid() bool {
	return i.isValid
}

func (i *iterator) Next() {
	i.mustBeValid()
	i.isValid = i.cursor.Next()
}

// Key returns a copy, which callers may keep.
func (i *iterator) Key() []byte {
	i.mustBeValid()
	return append([]byte{}, i.cursor.Key()...)
}

// Value returns a copy, which callers may keep.
func (i *iterator) Value() []byte {
	i.mustBeValid()
	return append([]byte{}, i.cursor.Value()...)
}

func (i *iterator) mustBeValid() {
	if !i.isValid {
		panic("terrane: the iterator is invalid")
	}
}

func (i *iterator) Error() error {
	return i.cursor.Err()
}

func (i *iterator) Close() error {
	i.isValid = false
	return i.cursor.Close()
}

// NewBatch makes a batch, which is one commit.
func (d *DB) NewBatch() db.Batch {
	return &batch{db: d}
}

// NewBatchWithSize makes a batch. It grows as needed, so the size means nothing.
func (d *DB) NewBatchWithSize(int) db.Batch {
	return d.NewBatch()
}

// batch is updates in memory, until it is written or closed.
type batch struct {
	db       *DB
	updates  terrane.Batch
	hasEnded bool
}

func (b *batch) Set(key, value []byte) error {
	switch {
	case len(key) == 0:
		return ErrEmptyKey
	case value == nil:
		return ErrNilValue
	case b.hasEnded:
		return ErrBatchEnded
	}
	b.updates.Put(b.db.table, key, value)
	return nil
}

func (b *batch) Delete(key []byte) error {
	switch {
	case len(key) == 0:
		return ErrEmptyKey
	case b.hasEnded:
		return ErrBatchEnded
	}
	b.updates.Delete(b.db.table, key)
	return nil
}

func (b *batch) Write() error {
	_, err := b.commit()
	return err
}

func (b *batch) WriteSync() error {
	commit, err := b.commit()
	if err != nil {
		return err
	}
	return b.db.store.Sync(context.Background(), commit)
}

// commit commits the updates and ends the batch. A batch that could not be committed stays.
func (b *batch) commit() (uint64, error) {
	if b.hasEnded {
		return 0, ErrBatchEnded
	}
	commit, err := b.db.store.Write(context.Background(), &b.updates)
	b.hasEnded = err == nil
	return commit, err
}

func (b *batch) Close() error {
	b.hasEnded = true
	b.updates = terrane.Batch{}
	return nil
}

func (b *batch) GetByteSize() (int, error) {
	if b.hasEnded {
		return 0, ErrBatchEnded
	}
	return b.updates.Size(), nil
}

// Print prints all entries, in hexadecimal.
func (d *DB) Print() error {
	scan := d.table.Scan(context.Background(), terrane.Range{})
	for key, value := range scan.All() {
		fmt.Printf("[%X]:\t[%X]\n", key, value)
	}
	return scan.Err()
}

// Stats returns what the table has counted, by name. It is empty once the table is closed.
func (d *DB) Stats() map[string]string {
	stats, err := d.table.Stats(context.Background())
	if err != nil {
		return map[string]string{}
	}
	named := map[string]uint64{
		"database.entries":      stats.Entries,
		"database.runs":         stats.Runs,
		"database.memory_bytes": stats.MemoryBytes,
		"database.cache_bytes":  stats.CacheBytes,
		"lookups":               stats.Lookups,
		"lookups.found":         stats.Found,
		"lookups.pages_read":    stats.LookupReads,
		"updates":               stats.Updates,
		"updates.bytes":         stats.UpdateBytes,
		"written_bytes":         stats.WrittenBytes,
	}
	texts := make(map[string]string, len(named))
	for name, value := range named {
		texts[name] = strconv.FormatUint(value, 10)
	}
	return texts
}
