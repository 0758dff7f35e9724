// Cursors, which fetch entries by chunk, and ranges of entries as iter.Seq2.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"iter"
	"unsafe"
)

// Range is the keys from From on and below To.
type Range struct {
	// From is the first key; nil begins with the first of all.
	From []byte
	// To is the key behind the last one; nil goes to the last of all.
	To []byte
	// Reverse descends.
	Reverse bool
}

// Prefix returns the range of the keys that begin with a prefix.
func Prefix(prefix []byte) Range {
	in := Range{From: prefix}
	// The first key behind: the prefix without trailing 0xff, its last byte one more.
	for end := len(prefix); end > 0; end-- {
		if prefix[end-1] < 0xff {
			in.To = append([]byte(nil), prefix[:end]...)
			in.To[end-1]++
			break
		}
	}
	return in
}

// Rows and bytes of a cursor's memory for entries. Chunks double, up to rowsMax.
const (
	rowsFirst      = 16
	rowsMax        = 256
	keyBytesRow    = 40
	valueBytesRow  = 80
	valueBytesMost = 1 << 16
)

// chunk is memory for entries, and those of the last call.
type chunk struct {
	keys, values             []byte
	keyOffsets, valueOffsets []C.size_t
	rows, at                 int
}

// fill reads the next entries: as many as fit, at least one unless there is none.
func (c *chunk) fill(read func(c *chunk, rows *C.size_t) error) error {
	if most := min(rowsMax, max(rowsFirst, 2*c.rows)); most >= len(c.keyOffsets) {
		c.keys = make([]byte, max(len(c.keys), keyBytesRow*most))
		c.values = make([]byte, max(len(c.values), min(valueBytesRow*most, valueBytesMost)))
		c.keyOffsets, c.valueOffsets = make([]C.size_t, most+1), make([]C.size_t, most+1)
	}
	c.rows, c.at = 0, 0
	for {
		var rows C.size_t
		err := read(c, &rows)
		switch {
		case err == nil:
			c.rows = int(rows)
			return nil
		case isTooSmall(err):
			// The first entry alone does not fit.
			c.keys = make([]byte, max(len(c.keys), int(c.keyOffsets[1])))
			c.values = make([]byte, max(len(c.values), int(c.valueOffsets[1])))
		default:
			return err
		}
	}
}

// Cursor walks over a range. It begins before the first entry. One goroutine at a time.
type Cursor struct {
	ctx    context.Context
	handle handle
	read   func(pointer unsafe.Pointer, c *chunk, rows *C.size_t) code
	free   func(pointer unsafe.Pointer)
	chunk  chunk
	key    []byte
	value  []byte
	err    error
}

// Next goes to the next entry and reports whether there is one. It looks at the context before each
// chunk of entries; after a failure it stays at the end, and Err has the reason.
func (c *Cursor) Next() bool {
	c.key, c.value = nil, nil
	if c.err != nil {
		return false
	}
	if c.chunk.at == c.chunk.rows {
		c.err = c.chunk.fill(func(chunk *chunk, rows *C.size_t) error {
			return c.handle.useAlone(c.ctx, func(pointer unsafe.Pointer) code {
				return c.read(pointer, chunk, rows)
			})
		})
		if c.err != nil || c.chunk.rows == 0 {
			return false
		}
	}
	at := c.chunk.at
	from, to := c.chunk.keyOffsets[at], c.chunk.keyOffsets[at+1]
	c.key = c.chunk.keys[from:to:to]
	from, to = c.chunk.valueOffsets[at], c.chunk.valueOffsets[at+1]
	c.value = c.chunk.values[from:to:to]
	c.chunk.at++
	return true
}

// Key returns the key of the entry, which changes with Next; nil if there is no entry.
func (c *Cursor) Key() []byte { return c.key }

// Value returns the value of the entry, which changes with Next; nil if there is no entry.
func (c *Cursor) Value() []byte { return c.value }

// Err returns why Next failed; nil at the end of the range.
func (c *Cursor) Err() error { return c.err }

// Close frees the cursor.
func (c *Cursor) Close() error {
	return c.handle.close(func(pointer unsafe.Pointer) code {
		c.free(pointer)
		return C.TERRANE_OK
	})
}

// Cursor opens a cursor over a range, which may outlive the view.
func (v *View) Cursor(ctx context.Context, in Range) (*Cursor, error) {
	cursor := &Cursor{ctx: ctx, read: readUp, free: freeCursor}
	if in.Reverse {
		cursor.read = readDown
	}
	err := v.use(ctx, func(view *C.struct_terrane_view) code {
		from, fromLength := cBytes(in.From)
		to, toLength := cBytes(in.To)
		var made *C.struct_terrane_cursor
		failed := C.terrane_cursor_new(view, from, fromLength, to, toLength, &made)
		if failed == C.TERRANE_OK && in.Reverse {
			failed = C.terrane_cursor_seek_to_end(made)
		}
		cursor.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(cursor, err)
}

// Cursor opens a cursor over a range as of the last commit.
func (t *Table) Cursor(ctx context.Context, in Range) (*Cursor, error) {
	view, err := t.View(ctx)
	if err != nil {
		return nil, err
	}
	cursor, err := view.Cursor(ctx, in)
	if failed := view.Close(); err == nil {
		err = failed
	}
	return opened(cursor, err)
}

func readUp(pointer unsafe.Pointer, c *chunk, rows *C.size_t) code {
	return C.terrane_cursor_next_chunk((*C.struct_terrane_cursor)(pointer),
		C.size_t(len(c.keyOffsets)-1),
		(*C.uint8_t)(unsafe.SliceData(c.keys)), C.size_t(len(c.keys)), &c.keyOffsets[0],
		(*C.uint8_t)(unsafe.SliceData(c.values)), C.size_t(len(c.values)), &c.valueOffsets[0],
		rows)
}

func readDown(pointer unsafe.Pointer, c *chunk, rows *C.size_t) code {
	return C.terrane_cursor_prev_chunk((*C.struct_terrane_cursor)(pointer),
		C.size_t(len(c.keyOffsets)-1),
		(*C.uint8_t)(unsafe.SliceData(c.keys)), C.size_t(len(c.keys)), &c.keyOffsets[0],
		(*C.uint8_t)(unsafe.SliceData(c.values)), C.size_t(len(c.values)), &c.valueOffsets[0],
		rows)
}

func freeCursor(pointer unsafe.Pointer) {
	C.terrane_cursor_free((*C.struct_terrane_cursor)(pointer))
}

// Scan is a range to iterate over. A scan has no resources until it is iterated.
type Scan struct {
	open func() (*Cursor, error)
	err  error
}

// Scan gives a range of entries of the view.
func (v *View) Scan(ctx context.Context, in Range) *Scan {
	return &Scan{open: func() (*Cursor, error) { return v.Cursor(ctx, in) }}
}

// Scan gives a range of entries as of the last commit before the iteration.
func (t *Table) Scan(ctx context.Context, in Range) *Scan {
	return &Scan{open: func() (*Cursor, error) { return t.Cursor(ctx, in) }}
}

// All gives the entries in their order. Keys and values change with the next one: copy what you
// keep. Ask Err afterwards.
func (s *Scan) All() iter.Seq2[[]byte, []byte] {
	return func(yield func([]byte, []byte) bool) {
		cursor, err := s.open()
		if s.err = err; err != nil {
			return
		}
		defer func() {
			if failed := cursor.Close(); s.err == nil {
				s.err = failed
			}
		}()
		for cursor.Next() {
			if !yield(cursor.Key(), cursor.Value()) {
				return
			}
		}
		s.err = cursor.Err()
	}
}

// Err returns why the last iteration ended early; nil if it did not fail.
func (s *Scan) Err() error { return s.err }
