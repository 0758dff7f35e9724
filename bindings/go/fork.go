// Forks of tables, which go their own way, and differences of views.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"iter"
	"unsafe"
)

// Fork is a fork of a table. Its entries are gone with it unless a snapshot or Store.Install keeps
// them.
type Fork struct {
	handle handle
}

// Fork makes a fork of the view. It shares all data.
//
// Cost: no I/O.
func (v *View) Fork(ctx context.Context) (*Fork, error) {
	fork := &Fork{}
	err := v.use(ctx, func(view *C.struct_terrane_view) code {
		var made *C.struct_terrane_fork
		failed := C.terrane_view_fork(view, &made)
		fork.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(fork, err)
}

// use runs a call of the fork.
func (f *Fork) use(ctx context.Context, body func(fork *C.struct_terrane_fork) code) error {
	return f.handle.useAlone(ctx, func(pointer unsafe.Pointer) code {
		return body((*C.struct_terrane_fork)(pointer))
	})
}

// PutMany sets the values of keys: as many keys as values.
func (f *Fork) PutMany(ctx context.Context, keys, values *Rows) error {
	if keys.Len() != values.Len() {
		return badInput("as many keys as values are needed")
	}
	count, keyBytes, keyOffsets := keys.c()
	_, valueBytes, valueOffsets := values.c()
	return f.use(ctx, func(fork *C.struct_terrane_fork) code {
		return C.terrane_fork_put_many(fork, count, keyBytes, keyOffsets, valueBytes, valueOffsets)
	})
}

// DeleteMany removes keys. An absent key is no error.
func (f *Fork) DeleteMany(ctx context.Context, keys *Rows) error {
	count, bytes, offsets := keys.c()
	return f.use(ctx, func(fork *C.struct_terrane_fork) code {
		return C.terrane_fork_delete_many(fork, count, bytes, offsets)
	})
}

// View makes a view of the fork as it is now.
func (f *Fork) View(ctx context.Context) (*View, error) {
	view := &View{}
	err := f.use(ctx, func(fork *C.struct_terrane_fork) code {
		var made *C.struct_terrane_view
		failed := C.terrane_fork_view(fork, &made)
		view.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(view, err)
}

// SaveSnapshot saves the fork as a durable snapshot: as [Table.SaveSnapshot].
func (f *Fork) SaveSnapshot(ctx context.Context, name, label string) error {
	return f.use(ctx, func(fork *C.struct_terrane_fork) code {
		text, length := cText(name)
		labelText, labelLength := cText(label)
		return C.terrane_fork_save(fork, text, length, labelText, labelLength)
	})
}

// Install names a fork as a new table, durably. The fork stays and goes its own way.
func (s *Store) Install(ctx context.Context, name string, fork *Fork) (*Table, error) {
	table := &Table{store: s}
	err := s.use(ctx, func(store *C.struct_terrane_store) code {
		fork.handle.lock.Lock()
		defer fork.handle.lock.Unlock()
		text, length := cText(name)
		var made *C.struct_terrane_table
		// The library refuses null.
		failed := C.terrane_store_install(store, text, length,
			(*C.struct_terrane_fork)(fork.handle.pointer), &made)
		table.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(table, err)
}

// Close frees the fork.
func (f *Fork) Close() error {
	return f.handle.close(func(pointer unsafe.Pointer) code {
		C.terrane_fork_free((*C.struct_terrane_fork)(pointer))
		return C.TERRANE_OK
	})
}

// Change is a key whose values differ between two views: nil stands for none.
type Change struct {
	Key, Old, New []byte
}

// Diff is the difference of two views. A difference has no resources until it is iterated.
type Diff struct {
	ctx          context.Context
	older, newer *View
	err          error
}

// Diff gives the keys whose values differ between this view and a newer one of the same store,
// ascending.
//
// Cost: reads what the views do not share.
func (v *View) Diff(ctx context.Context, newer *View) *Diff {
	return &Diff{ctx: ctx, older: v, newer: newer}
}

// Rows of a chunk of changes, and the first memory for their keys and values.
const (
	changesMax       = 64
	changeKeyBytes   = 4 << 10
	changeValueBytes = 16 << 10
)

// All gives the changes. They change with the next one: copy what you keep. Ask Err afterwards.
func (d *Diff) All() iter.Seq[Change] {
	return func(yield func(Change) bool) {
		var pointer *C.struct_terrane_diff
		d.err = d.older.use(d.ctx, func(older *C.struct_terrane_view) code {
			// A view is locked once: a Close that waits would block the second lock.
			if d.newer != d.older {
				d.newer.handle.lock.RLock()
				defer d.newer.handle.lock.RUnlock()
			}
			newer := (*C.struct_terrane_view)(d.newer.handle.pointer)
			return C.terrane_diff_new(older, newer, &pointer)
		})
		if d.err != nil {
			return
		}
		defer C.terrane_diff_free(pointer)

		keys, values := make([]byte, changeKeyBytes), make([]byte, changeValueBytes)
		var keyOffsets [changesMax + 1]C.size_t
		var valueOffsets [2*changesMax + 1]C.size_t
		var found [2 * changesMax]byte
		for {
			if d.err = d.ctx.Err(); d.err != nil {
				return
			}
			var rows C.size_t
			err := call(func() code {
				return C.terrane_diff_next_chunk(pointer, changesMax,
					(*C.uint8_t)(&keys[0]), C.size_t(len(keys)), &keyOffsets[0],
					(*C.uint8_t)(&values[0]), C.size_t(len(values)), &valueOffsets[0],
					(*C.uint8_t)(&found[0]), &rows)
			})
			if isTooSmall(err) {
				// The first change alone does not fit.
				keys = make([]byte, max(len(keys), int(keyOffsets[1])))
				values = make([]byte, max(len(values), int(valueOffsets[2])))
				continue
			}
			if d.err = err; err != nil || rows == 0 {
				return
			}

			value := func(at int) []byte {
				if found[at] == 0 {
					return nil
				}
				return values[valueOffsets[at]:valueOffsets[at+1]:valueOffsets[at+1]]
			}
			for at := range int(rows) {
				change := Change{
					Key: keys[keyOffsets[at]:keyOffsets[at+1]:keyOffsets[at+1]],
					Old: value(2 * at),
					New: value(2*at + 1),
				}
				if !yield(change) {
					return
				}
			}
		}
	}
}

// Err returns why the last iteration ended early; nil if it did not fail.
func (d *Diff) Err() error { return d.err }
