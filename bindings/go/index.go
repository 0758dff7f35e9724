// B+tree indexes: maps on disk for one writer and many reader processes.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"unsafe"
)

// Index is a B+tree index, open for writing. Goroutines may share it.
type Index struct {
	handle handle
}

// OpenIndex opens the index of a directory, or makes one for keys and values of any length.
// memoryBytes is for its pages and updates; 0 for the default.
func OpenIndex(ctx context.Context, dir string, memoryBytes int) (*Index, error) {
	index := &Index{}
	err := open(ctx, &index.handle, func(out *unsafe.Pointer) code {
		path, length := cText(dir)
		var made *C.struct_terrane_index
		failed := C.terrane_index_open(path, length, C.size_t(max(memoryBytes, 0)), &made)
		*out = unsafe.Pointer(made)
		return failed
	})
	return opened(index, err)
}

// Close flushes and closes the index.
func (i *Index) Close() error {
	return i.handle.close(func(pointer unsafe.Pointer) code {
		return C.terrane_index_close((*C.struct_terrane_index)(pointer))
	})
}

func (i *Index) use(ctx context.Context, body func(index *C.struct_terrane_index) code) error {
	return i.handle.use(ctx, func(pointer unsafe.Pointer) code {
		return body((*C.struct_terrane_index)(pointer))
	})
}

// PutMany sets the values of keys, all or none. The update is visible at once, and durable after
// Flush.
func (i *Index) PutMany(ctx context.Context, keys, values *Rows) error {
	if keys.Len() != values.Len() {
		return badInput("as many keys as values are needed")
	}
	count, keyBytes, keyOffsets := keys.c()
	_, valueBytes, valueOffsets := values.c()
	return i.use(ctx, func(index *C.struct_terrane_index) code {
		return C.terrane_index_put_many(index, count, keyBytes, keyOffsets, valueBytes, valueOffsets)
	})
}

// DeleteMany removes keys, all or none, and returns how many were there.
func (i *Index) DeleteMany(ctx context.Context, keys *Rows) (int, error) {
	count, bytes, offsets := keys.c()
	var removed C.size_t
	err := i.use(ctx, func(index *C.struct_terrane_index) code {
		return C.terrane_index_delete_many(index, count, bytes, offsets, &removed)
	})
	return int(removed), err
}

// GetMany looks up keys and fills out: as [Table.GetMany].
func (i *Index) GetMany(ctx context.Context, keys *Rows, out *Answers) error {
	count, bytes, offsets := keys.c()
	return out.fill(keys.Len(), func(to answers) error {
		return i.use(ctx, func(index *C.struct_terrane_index) code {
			return C.terrane_index_get_many(index, count, bytes, offsets,
				to.values, to.capacity, to.offsets, to.found)
		})
	})
}

// Get returns a copy of the value of a key, and whether the key is there.
func (i *Index) Get(ctx context.Context, key []byte) ([]byte, bool, error) {
	var out Answers
	return out.one(i.GetMany(ctx, RowsOf(key), &out))
}

// Len returns the number of entries. Costs nothing.
func (i *Index) Len(ctx context.Context) (uint64, error) {
	var count C.uint64_t
	err := i.use(ctx, func(index *C.struct_terrane_index) code {
		return C.terrane_index_len(index, &count)
	})
	return uint64(count), err
}

// Flush shows all updates to readers in other processes; with sync, they survive a loss of power,
// too.
func (i *Index) Flush(ctx context.Context, sync bool) error {
	return await(ctx, func() error {
		return i.use(context.WithoutCancel(ctx), func(index *C.struct_terrane_index) code {
			return C.terrane_index_flush(index, C.bool(sync))
		})
	})
}

// Cursor opens a cursor over a range of the index as it is now. Ascending only: Reverse is
// ErrUnsupported.
func (i *Index) Cursor(ctx context.Context, in Range) (*Cursor, error) {
	if in.Reverse {
		return nil, &Error{Code: ErrUnsupported, Message: "cursors of an index ascend"}
	}
	cursor := &Cursor{ctx: ctx, read: readIndex, free: freeIndexCursor}
	err := i.use(ctx, func(index *C.struct_terrane_index) code {
		from, fromLength := cBytes(in.From)
		to, toLength := cBytes(in.To)
		var made *C.struct_terrane_index_cursor
		failed := C.terrane_index_cursor_new(index, from, fromLength, to, toLength, &made)
		cursor.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(cursor, err)
}

// Scan gives a range of entries as of the beginning of the iteration; ascending only.
func (i *Index) Scan(ctx context.Context, in Range) *Scan {
	return &Scan{open: func() (*Cursor, error) { return i.Cursor(ctx, in) }}
}

func readIndex(pointer unsafe.Pointer, c *chunk, rows *C.size_t) code {
	return C.terrane_index_cursor_next_chunk((*C.struct_terrane_index_cursor)(pointer),
		C.size_t(len(c.keyOffsets)-1),
		(*C.uint8_t)(unsafe.SliceData(c.keys)), C.size_t(len(c.keys)), &c.keyOffsets[0],
		(*C.uint8_t)(unsafe.SliceData(c.values)), C.size_t(len(c.values)), &c.valueOffsets[0],
		rows)
}

func freeIndexCursor(pointer unsafe.Pointer) {
	C.terrane_index_cursor_free((*C.struct_terrane_index_cursor)(pointer))
}
