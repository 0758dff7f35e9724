// Objects of the C library: shared by calls, freed once, never used afterwards.
//
// Invariants: a pointer is not nil until close has run; close waits for calls under way; the
// message of a failed call is taken on the thread that made it.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"runtime"
	"sync"
	"unsafe"
)

// code is what calls of the library return.
type code = C.terrane_code

// handle is an object of the C library.
type handle struct {
	lock    sync.RWMutex
	pointer unsafe.Pointer
}

// call runs a call of the library and makes an error of its code.
func call(body func() code) error {
	// The message belongs to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if failed := body(); failed != C.TERRANE_OK {
		return &Error{Code: Code(failed), Message: C.GoString(C.terrane_error_message())}
	}
	return nil
}

// use runs a call of an object that threads may share.
func (h *handle) use(ctx context.Context, body func(pointer unsafe.Pointer) code) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h.lock.RLock()
	defer h.lock.RUnlock()
	if h.pointer == nil {
		return &Error{Code: ErrClosed, Message: "the object was closed"}
	}
	return call(func() code { return body(h.pointer) })
}

// useAlone runs a call of an object that belongs to one thread at a time.
func (h *handle) useAlone(ctx context.Context, body func(pointer unsafe.Pointer) code) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h.lock.Lock()
	defer h.lock.Unlock()
	if h.pointer == nil {
		return &Error{Code: ErrClosed, Message: "the object was closed"}
	}
	return call(func() code { return body(h.pointer) })
}

// close waits for calls under way and frees the object. A second close does nothing.
func (h *handle) close(free func(pointer unsafe.Pointer) code) error {
	h.lock.Lock()
	defer h.lock.Unlock()
	pointer := h.pointer
	if pointer == nil {
		return nil
	}
	h.pointer = nil
	return call(func() code { return free(pointer) })
}

// await runs work that the engine cannot stop. If the context ends first, the caller goes on, and
// the work ends behind it.
func await(ctx context.Context, work func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ctx.Done() == nil {
		return work()
	}
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cBytes and cText give memory of Go to a call that copies it. Null stands for nil only, so that an
// empty end of a range is not the same as none.
func cBytes(bytes []byte) (*C.uint8_t, C.size_t) {
	return (*C.uint8_t)(unsafe.SliceData(bytes)), C.size_t(len(bytes))
}

func cText(text string) (*C.uint8_t, C.size_t) {
	return (*C.uint8_t)(unsafe.StringData(text)), C.size_t(len(text))
}
