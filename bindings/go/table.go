// Named tables, views of them as of one commit, and their lookups.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"unsafe"
)

// Reader is what tables and views have in common: lookups and ranges.
type Reader interface {
	// Get returns a copy of the value of a key, and whether the key is there.
	Get(ctx context.Context, key []byte) (value []byte, found bool, err error)
	// GetMany looks up keys in one call.
	GetMany(ctx context.Context, keys *Rows, out *Answers) error
	// Scan gives a range of entries.
	Scan(ctx context.Context, in Range) *Scan
	// Cursor opens a cursor over a range of entries.
	Cursor(ctx context.Context, in Range) (*Cursor, error)
}

// Table is a named table of a store. Goroutines may share it.
type Table struct {
	handle handle
	store  *Store
}

// Close frees the handle; the table stays in its store.
func (t *Table) Close() error {
	return t.handle.close(func(pointer unsafe.Pointer) code {
		C.terrane_table_free((*C.struct_terrane_table)(pointer))
		return C.TERRANE_OK
	})
}

// use runs a call of the table.
func (t *Table) use(ctx context.Context, body func(table *C.struct_terrane_table) code) error {
	return t.handle.use(ctx, func(pointer unsafe.Pointer) code {
		return body((*C.struct_terrane_table)(pointer))
	})
}

// GetMany looks up keys as of the last commit and fills out. One call of the engine.
//
// Cost: one read of a page for each present key that no cache has, all in flight at once.
func (t *Table) GetMany(ctx context.Context, keys *Rows, out *Answers) error {
	count, bytes, offsets := keys.c()
	return out.fill(keys.Len(), func(to answers) error {
		return t.use(ctx, func(table *C.struct_terrane_table) code {
			return C.terrane_table_get_many(table, count, bytes, offsets,
				to.values, to.capacity, to.offsets, to.found)
		})
	})
}

// Get returns a copy of the value of a key as of the last commit, and whether the key is there.
func (t *Table) Get(ctx context.Context, key []byte) ([]byte, bool, error) {
	var out Answers
	bytes, length := cBytes(key)
	offsets := [2]C.size_t{0, length}
	return out.one(out.fill(1, func(to answers) error {
		return t.use(ctx, func(table *C.struct_terrane_table) code {
			return C.terrane_table_get_many(table, 1, bytes, &offsets[0],
				to.values, to.capacity, to.offsets, to.found)
		})
	}))
}

// Put sets the value of a key, as a commit of its own, and returns its number.
func (t *Table) Put(ctx context.Context, key, value []byte) (uint64, error) {
	var batch Batch
	batch.Put(t, key, value)
	return t.store.Write(ctx, &batch)
}

// Delete removes a key, as a commit of its own, and returns its number. An absent key is no error.
func (t *Table) Delete(ctx context.Context, key []byte) (uint64, error) {
	var batch Batch
	batch.Delete(t, key)
	return t.store.Write(ctx, &batch)
}

// View makes a view of the table as of the last commit.
func (t *Table) View(ctx context.Context) (*View, error) {
	view := &View{}
	err := t.use(ctx, func(table *C.struct_terrane_table) code {
		var made *C.struct_terrane_view
		failed := C.terrane_table_view(table, &made)
		view.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(view, err)
}

// View is a table as of one commit, unchanged by later ones. Goroutines may share it.
type View struct {
	handle handle
}

// Close frees the view.
func (v *View) Close() error {
	return v.handle.close(func(pointer unsafe.Pointer) code {
		C.terrane_view_free((*C.struct_terrane_view)(pointer))
		return C.TERRANE_OK
	})
}

// use runs a call of the view.
func (v *View) use(ctx context.Context, body func(view *C.struct_terrane_view) code) error {
	return v.handle.use(ctx, func(pointer unsafe.Pointer) code {
		return body((*C.struct_terrane_view)(pointer))
	})
}

// GetMany looks up keys and fills out: as [Table.GetMany].
func (v *View) GetMany(ctx context.Context, keys *Rows, out *Answers) error {
	count, bytes, offsets := keys.c()
	return out.fill(keys.Len(), func(to answers) error {
		return v.use(ctx, func(view *C.struct_terrane_view) code {
			return C.terrane_view_get_many(view, count, bytes, offsets,
				to.values, to.capacity, to.offsets, to.found)
		})
	})
}

// Get returns a copy of the value of a key, and whether the key is there.
func (v *View) Get(ctx context.Context, key []byte) ([]byte, bool, error) {
	var out Answers
	bytes, length := cBytes(key)
	offsets := [2]C.size_t{0, length}
	return out.one(out.fill(1, func(to answers) error {
		return v.use(ctx, func(view *C.struct_terrane_view) code {
			return C.terrane_view_get_many(view, 1, bytes, &offsets[0],
				to.values, to.capacity, to.offsets, to.found)
		})
	}))
}

// Digest returns the number of entries and the SHA-256 of the canonical export.
//
// Cost: a scan of the whole view.
func (v *View) Digest(ctx context.Context) (count uint64, digest [32]byte, err error) {
	err = v.use(ctx, func(view *C.struct_terrane_view) code {
		return C.terrane_view_digest(view, (*C.uint64_t)(&count), (*C.uint8_t)(&digest[0]))
	})
	return count, digest, err
}
