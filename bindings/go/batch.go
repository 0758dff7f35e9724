// Batches: updates in Go memory, handed to the engine in one call.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"fmt"
	"iter"
	"unsafe"
)

// Kind is the kind of an update.
type Kind uint8

// Kinds of updates.
const (
	// Delete removes the key.
	Delete Kind = C.TERRANE_DELETE
	// Put sets the value of the key.
	Put Kind = C.TERRANE_PUT
	// DeleteRange removes all keys from the key on that are below the value.
	DeleteRange Kind = C.TERRANE_DELETE_RANGE
	// DeleteFrom removes all keys from the key on.
	DeleteFrom Kind = C.TERRANE_DELETE_FROM
)

// Batch is a list of updates of any tables of one store, in their order. The zero value is empty.
// Closing a table that a batch names makes its commit fail. One goroutine at a time.
type Batch struct {
	tables       []*Table
	tableOf      []uint32
	kinds        []byte
	keys, values Rows
	pointers     []*C.struct_terrane_table
}

// Update is one update of a batch. Key and value share the memory of the batch.
type Update struct {
	Table      *Table
	Kind       Kind
	Key, Value []byte
}

// Put sets the value of a key.
func (b *Batch) Put(table *Table, key, value []byte) {
	b.add(table, Put, key, value)
}

// PutMany sets the values of keys, as many as there are values: less work for a row than
// [Batch.Put]. On an error the batch is as it was.
func (b *Batch) PutMany(table *Table, keys, values *Rows) error {
	if keys.Len() != values.Len() {
		return badInput(fmt.Sprintf("%d keys and %d values", keys.Len(), values.Len()))
	}
	if keys.Len() == 0 {
		return nil
	}
	place := b.place(table)
	for range keys.Len() {
		b.tableOf = append(b.tableOf, place)
		b.kinds = append(b.kinds, byte(Put))
	}
	b.keys.AppendRows(keys)
	b.values.AppendRows(values)
	return nil
}

// Delete removes a key. An absent key is no error.
func (b *Batch) Delete(table *Table, key []byte) {
	b.add(table, Delete, key, nil)
}

// DeleteRange removes all keys of a range, at the cost of one update. Reverse means nothing.
func (b *Batch) DeleteRange(table *Table, in Range) {
	if in.To == nil {
		b.add(table, DeleteFrom, in.From, nil)
		return
	}
	b.add(table, DeleteRange, in.From, in.To)
}

func (b *Batch) add(table *Table, kind Kind, key, value []byte) {
	b.tableOf = append(b.tableOf, b.place(table))
	b.kinds = append(b.kinds, byte(kind))
	b.keys.Append(key)
	b.values.Append(value)
}

// place is the number of a table in the batch. Most batches have few tables.
func (b *Batch) place(table *Table) uint32 {
	for at, known := range b.tables {
		if known == table {
			return uint32(at)
		}
	}
	b.tables = append(b.tables, table)
	return uint32(len(b.tables) - 1)
}

// Len returns the number of updates.
func (b *Batch) Len() int {
	return len(b.kinds)
}

// Size returns the bytes of all keys and values.
func (b *Batch) Size() int {
	return b.keys.Size() + b.values.Size()
}

// Reset removes all updates and keeps the memory for others.
func (b *Batch) Reset() {
	clear(b.tables)
	b.tables, b.tableOf, b.kinds = b.tables[:0], b.tableOf[:0], b.kinds[:0]
	b.keys.Reset()
	b.values.Reset()
}

// All gives the updates in their order.
func (b *Batch) All() iter.Seq[Update] {
	return func(yield func(Update) bool) {
		for at, kind := range b.kinds {
			update := Update{
				Table: b.tables[b.tableOf[at]],
				Kind:  Kind(kind),
				Key:   b.keys.At(at),
				Value: b.values.At(at),
			}
			if !yield(update) {
				return
			}
		}
	}
}

// Write commits a batch, all of it or nothing, with the store's durability, and returns the number
// of the commit. The batch stays as it is. With [Group], [Store.Sync] waits for the commit.
func (s *Store) Write(ctx context.Context, batch *Batch) (uint64, error) {
	return s.write(ctx, batch, nil)
}

// WriteIf commits like [Store.Write] if no commit came after lastCommit; ErrConflict otherwise.
func (s *Store) WriteIf(ctx context.Context, batch *Batch, lastCommit uint64) (uint64, error) {
	return s.write(ctx, batch, &lastCommit)
}

func (s *Store) write(ctx context.Context, batch *Batch, lastCommit *uint64) (uint64, error) {
	// The tables stay open during the call.
	batch.pointers = batch.pointers[:0]
	for _, table := range batch.tables {
		table.handle.lock.RLock()
		defer table.handle.lock.RUnlock()
		if table.handle.pointer == nil {
			return 0, &Error{Code: ErrClosed, Message: "a table of the batch was closed"}
		}
		batch.pointers = append(batch.pointers, (*C.struct_terrane_table)(table.handle.pointer))
	}

	var tableOf *C.uint32_t
	if len(batch.tables) > 1 {
		tableOf = (*C.uint32_t)(unsafe.SliceData(batch.tableOf))
	}
	count, keys, keyOffsets := batch.keys.c()
	_, values, valueOffsets := batch.values.c()
	var commit C.uint64_t
	err := s.use(ctx, func(store *C.struct_terrane_store) code {
		return C.terrane_store_update_many(store,
			C.size_t(len(batch.pointers)), unsafe.SliceData(batch.pointers),
			count, tableOf, (*C.uint8_t)(unsafe.SliceData(batch.kinds)),
			keys, keyOffsets, values, valueOffsets, (*C.uint64_t)(lastCommit), &commit)
	})
	return uint64(commit), err
}
