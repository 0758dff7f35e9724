// Rows of bytes in contiguous memory, and memory for answers that calls fill.
//
// Layout of rows: bytes one behind the other, and one offset more than there are rows, from 0 on.

package terrane

// #include "terrane.h"
import "C"

import (
	"iter"
	"unsafe"
)

// Rows are byte strings in contiguous memory: the keys or the values of a batch. The zero value has
// none. One goroutine at a time.
type Rows struct {
	bytes   []byte
	offsets []C.size_t
}

// RowsOf copies rows.
func RowsOf[T ~[]byte | ~string](rows ...T) *Rows {
	made := &Rows{}
	for _, row := range rows {
		made.Append([]byte(row))
	}
	return made
}

// Append copies a row to the end.
func (r *Rows) Append(row []byte) {
	if len(r.offsets) == 0 {
		r.offsets = append(r.offsets, 0)
	}
	r.bytes = append(r.bytes, row...)
	r.offsets = append(r.offsets, C.size_t(len(r.bytes)))
}

// AppendRows copies rows to the end.
func (r *Rows) AppendRows(rows *Rows) {
	if rows.Len() == 0 {
		return
	}
	if len(r.offsets) == 0 {
		r.offsets = append(r.offsets, 0)
	}
	start := C.size_t(len(r.bytes))
	r.bytes = append(r.bytes, rows.bytes...)
	for _, end := range rows.offsets[1:] {
		r.offsets = append(r.offsets, start+end)
	}
}

// Reset removes all rows and keeps the memory.
func (r *Rows) Reset() {
	r.bytes, r.offsets = r.bytes[:0], r.offsets[:0]
}

// Len returns the number of rows.
func (r *Rows) Len() int {
	if r == nil || len(r.offsets) == 0 {
		return 0
	}
	return len(r.offsets) - 1
}

// Size returns the number of bytes of all rows.
func (r *Rows) Size() int {
	if r == nil {
		return 0
	}
	return len(r.bytes)
}

// At returns a row, which shares the memory of the rows.
func (r *Rows) At(at int) []byte {
	from, to := r.offsets[at], r.offsets[at+1]
	return r.bytes[from:to:to]
}

// All gives the rows with their numbers.
func (r *Rows) All() iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for at := range r.Len() {
			if !yield(at, r.At(at)) {
				return
			}
		}
	}
}

// c gives the rows to a call.
func (r *Rows) c() (count C.size_t, bytes *C.uint8_t, offsets *C.size_t) {
	if r.Len() == 0 {
		return 0, nil, nil
	}
	return C.size_t(r.Len()), (*C.uint8_t)(unsafe.SliceData(r.bytes)), unsafe.SliceData(r.offsets)
}

// Answers are the values that a batch of lookups has found. A call fills them anew and reuses their
// memory, so that one Answers serves any number of calls. One goroutine at a time.
type Answers struct {
	bytes   []byte
	offsets []C.size_t
	found   []byte
}

// Len returns the number of answers.
func (a *Answers) Len() int {
	return len(a.found)
}

// Get returns a value and whether its key is there. The value shares the memory of the answers: it
// changes with the next call that fills them.
func (a *Answers) Get(at int) (value []byte, found bool) {
	from, to := a.offsets[at], a.offsets[at+1]
	return a.bytes[from:to:to], a.found[at] == 1
}

// All gives the values of the keys that are there, with the number of each key.
func (a *Answers) All() iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for at := range a.found {
			if value, found := a.Get(at); found && !yield(at, value) {
				return
			}
		}
	}
}

// answers is memory that a call writes answers to.
type answers struct {
	values   *C.uint8_t
	capacity C.size_t
	offsets  *C.size_t
	found    *C.uint8_t
}

// valueBytesGuess is the memory for a value before any was seen.
const valueBytesGuess = 64

// fill has a call write its answers, again with more memory as long as it does not suffice.
func (a *Answers) fill(count int, look func(to answers) error) error {
	if cap(a.offsets) < count+1 {
		a.offsets = make([]C.size_t, count+1)
	}
	if cap(a.found) < count {
		a.found = make([]byte, count)
	}
	if cap(a.bytes) == 0 {
		a.bytes = make([]byte, 0, valueBytesGuess*count)
	}
	a.offsets, a.found = a.offsets[:count+1], a.found[:count]

	for {
		err := look(answers{
			values:   (*C.uint8_t)(unsafe.SliceData(a.bytes)),
			capacity: C.size_t(cap(a.bytes)),
			offsets:  unsafe.SliceData(a.offsets),
			found:    (*C.uint8_t)(unsafe.SliceData(a.found)),
		})
		switch {
		case err == nil:
			a.bytes = a.bytes[:a.offsets[count]]
			return nil
		case isTooSmall(err):
			a.bytes = make([]byte, 0, a.offsets[count])
		default:
			a.offsets, a.found = a.offsets[:1], a.found[:0]
			return err
		}
	}
}

// one is the answer to a single key, which the caller owns.
func (a *Answers) one(err error) ([]byte, bool, error) {
	if err != nil {
		return nil, false, err
	}
	value, found := a.Get(0)
	if !found {
		return nil, false, nil
	}
	return value, true, nil
}

// buffer has a call write bytes of a length that it says.
func buffer(write func(out *C.uint8_t, capacity C.size_t, length *C.size_t) error) ([]byte, error) {
	out := make([]byte, 1024)
	for {
		var length C.size_t
		err := write((*C.uint8_t)(unsafe.SliceData(out)), C.size_t(len(out)), &length)
		switch {
		case err == nil:
			return out[:length:length], nil
		case isTooSmall(err):
			out = make([]byte, length)
		default:
			return nil, err
		}
	}
}

// nodesOut is memory that a call writes the nodes of a proof to.
type nodesOut struct {
	max      C.size_t
	nodes    *C.uint8_t
	capacity C.size_t
	offsets  *C.size_t
	count    *C.size_t
}

// nodes has a call write the nodes of a proof.
func nodes(write func(out nodesOut) error) (*Rows, error) {
	bytes, offsets := make([]byte, 4096), make([]C.size_t, 65)
	for {
		var count C.size_t
		most := C.size_t(len(offsets) - 1)
		err := write(nodesOut{
			max:      most,
			nodes:    (*C.uint8_t)(unsafe.SliceData(bytes)),
			capacity: C.size_t(len(bytes)),
			offsets:  unsafe.SliceData(offsets),
			count:    &count,
		})
		switch {
		case err == nil:
			return &Rows{bytes: bytes[:offsets[count]], offsets: offsets[:count+1]}, nil
		case !isTooSmall(err):
			return nil, err
		case count > most:
			offsets = make([]C.size_t, count+1)
		default:
			bytes = make([]byte, offsets[count])
		}
	}
}
