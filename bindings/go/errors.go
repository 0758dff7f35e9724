// Codes of the C library, and errors that carry one.

package terrane

// #include "terrane.h"
import "C"

// Code is the reason why a call failed. A code is an error itself, so that errors.Is(err,
// terrane.ErrNotFound) asks for one.
type Code uint32

// Codes. Numbers keep their meaning in all versions.
const (
	// ErrBadInput means that the request makes no sense.
	ErrBadInput Code = C.TERRANE_BAD_INPUT
	// ErrNotFound means that there is no such store, table, snapshot, version or key.
	ErrNotFound Code = C.TERRANE_NOT_FOUND
	// ErrAlreadyExists means that the name is taken.
	ErrAlreadyExists Code = C.TERRANE_ALREADY_EXISTS
	// ErrCorrupt means that stored bytes are not as they were written, or are gone.
	ErrCorrupt Code = C.TERRANE_CORRUPT
	// ErrLocked means that another process, or another handle of this one, holds the store.
	ErrLocked Code = C.TERRANE_LOCKED
	// ErrConflict means that another change came first.
	ErrConflict Code = C.TERRANE_CONFLICT
	// ErrNoSpace means that the disk, the quota or the reserve is used up.
	ErrNoSpace Code = C.TERRANE_NO_SPACE
	// ErrPermission means that the system does not allow it to this user.
	ErrPermission Code = C.TERRANE_PERMISSION
	// ErrReadOnly means that the store was opened, or can only be opened, for reading.
	ErrReadOnly Code = C.TERRANE_READ_ONLY
	// ErrUnsupported means a format or a feature that this library or this system does not have.
	ErrUnsupported Code = C.TERRANE_UNSUPPORTED
	// ErrClosed means that the store, or the object itself, was closed.
	ErrClosed Code = C.TERRANE_CLOSED
	// ErrPoisoned means that an earlier fsync failed: close the store and open it anew.
	ErrPoisoned Code = C.TERRANE_POISONED
	// ErrInterrupted means that the caller stopped the work.
	ErrInterrupted Code = C.TERRANE_INTERRUPTED
	// ErrIO is any other failure of the system.
	ErrIO Code = C.TERRANE_IO
	// ErrInvalidProof means that a proof proves something else, or nothing.
	ErrInvalidProof Code = C.TERRANE_INVALID_PROOF
	// ErrPanic is a bug of the library. Close the object and use it no more.
	ErrPanic Code = C.TERRANE_PANIC
)

// tooSmall means that memory for answers does not suffice. Methods retry, so no caller sees it.
const tooSmall Code = C.TERRANE_TOO_SMALL

var codeNames = map[Code]string{
	ErrBadInput:      "bad input",
	ErrNotFound:      "not found",
	ErrAlreadyExists: "already exists",
	ErrCorrupt:       "corrupt",
	ErrLocked:        "locked",
	ErrConflict:      "conflict",
	ErrNoSpace:       "no space",
	ErrPermission:    "permission",
	ErrReadOnly:      "read-only",
	ErrUnsupported:   "unsupported",
	ErrClosed:        "closed",
	ErrPoisoned:      "poisoned",
	ErrInterrupted:   "interrupted",
	ErrIO:            "io",
	tooSmall:         "too small",
	ErrInvalidProof:  "invalid proof",
	ErrPanic:         "panic",
}

// Error returns the name of the code.
func (c Code) Error() string {
	if name, ok := codeNames[c]; ok {
		return "terrane: " + name
	}
	return "terrane: unknown code"
}

// Error is a failed call: its code, and the message of the library.
type Error struct {
	Code    Code
	Message string
}

// Error returns the message.
func (e *Error) Error() string {
	return "terrane: " + e.Message
}

// Is reports whether target is the code of the error.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

func badInput(message string) error {
	return &Error{Code: ErrBadInput, Message: message}
}

// isTooSmall reports whether a call asks for more memory.
func isTooSmall(err error) bool {
	failed, ok := err.(*Error)
	return ok && failed.Code == tooSmall
}
