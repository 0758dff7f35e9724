// Stores, their options and their tables by name.

package terrane

// #include "terrane.h"
import "C"

import (
	"bytes"
	"context"
	"unsafe"
)

// Durability is what a commit survives, weakest first.
type Durability uint32

// Durabilities.
const (
	// None survives nothing until a checkpoint. As the default of a store: no log is written.
	None Durability = C.TERRANE_NONE
	// Buffered survives the end of the process.
	Buffered Durability = C.TERRANE_BUFFERED
	// Group survives a loss of power once Store.Sync has waited for the commit; commits share an
	// fsync.
	Group Durability = C.TERRANE_GROUP
	// Each survives a loss of power when the call returns.
	Each Durability = C.TERRANE_EACH
)

// Option changes how a store is opened.
type Option func(*C.struct_terrane_options)

// CreateDir makes a missing directory.
func CreateDir() Option {
	return func(options *C.struct_terrane_options) { options.create_dir = true }
}

// WithDurability sets the durability of commits; [Group] without.
func WithDurability(durability Durability) Option {
	return func(options *C.struct_terrane_options) { options.durability = C.uint32_t(durability) }
}

// WithMemoryBudget sets the bytes for write buffers, filters, indexes and cached pages of all
// tables. Without, each table has its own.
func WithMemoryBudget(bytes uint64) Option {
	return func(options *C.struct_terrane_options) { options.memory_budget = C.uint64_t(bytes) }
}

// Store is an open store of named tables. Goroutines may share it.
type Store struct {
	handle handle
}

// Open opens the store in a directory, or creates one in an empty directory.
//
// Cost: reads the manifest and the log since the last checkpoint.
func Open(ctx context.Context, dir string, options ...Option) (*Store, error) {
	given := C.terrane_options_default()
	for _, option := range options {
		option(&given)
	}
	store := &Store{}
	err := open(ctx, &store.handle, func(out *unsafe.Pointer) code {
		path, length := cText(dir)
		var made *C.struct_terrane_store
		failed := C.terrane_store_open(path, length, &given, &made)
		*out = unsafe.Pointer(made)
		return failed
	})
	return opened(store, err)
}

// open runs a call that makes an object of none.
func open(ctx context.Context, h *handle, make func(out *unsafe.Pointer) code) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return call(func() code { return make(&h.pointer) })
}

// opened is an object, or the reason why there is none.
func opened[T any](object *T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return object, nil
}

// Close closes the store in good order; commits that were not durable are, unless it fails. Tables
// and views answer ErrClosed from then on and are still to be closed.
func (s *Store) Close() error {
	return s.handle.close(func(pointer unsafe.Pointer) code {
		return C.terrane_store_close((*C.struct_terrane_store)(pointer))
	})
}

// use runs a call of the store.
func (s *Store) use(ctx context.Context, body func(store *C.struct_terrane_store) code) error {
	return s.handle.use(ctx, func(pointer unsafe.Pointer) code {
		return body((*C.struct_terrane_store)(pointer))
	})
}

// Checkpoint writes all tables to disk and lets go of the log.
func (s *Store) Checkpoint(ctx context.Context) error {
	return await(ctx, func() error {
		return s.use(context.WithoutCancel(ctx), func(store *C.struct_terrane_store) code {
			return C.terrane_store_checkpoint(store)
		})
	})
}

// Sync waits until a commit survives a loss of power, with an fsync that all share who wait.
func (s *Store) Sync(ctx context.Context, commit uint64) error {
	return await(ctx, func() error {
		return s.use(context.WithoutCancel(ctx), func(store *C.struct_terrane_store) code {
			return C.terrane_store_sync_to(store, C.uint64_t(commit))
		})
	})
}

// LastCommit returns the number of the last commit.
func (s *Store) LastCommit(ctx context.Context) (uint64, error) {
	var commit C.uint64_t
	err := s.use(ctx, func(store *C.struct_terrane_store) code {
		return C.terrane_store_last_commit(store, &commit)
	})
	return uint64(commit), err
}

// Table opens a named table; ErrNotFound if there is none.
func (s *Store) Table(ctx context.Context, name string) (*Table, error) {
	return s.table(ctx, name, false)
}

// CreateTable opens a named table and makes a missing one.
func (s *Store) CreateTable(ctx context.Context, name string) (*Table, error) {
	return s.table(ctx, name, true)
}

func (s *Store) table(ctx context.Context, name string, create bool) (*Table, error) {
	table := &Table{store: s}
	err := s.use(ctx, func(store *C.struct_terrane_store) code {
		text, length := cText(name)
		var made *C.struct_terrane_table
		failed := C.terrane_table_open(store, text, length, C.bool(create), &made)
		table.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(table, err)
}

// DropTable removes a named table with its entries, as a commit of its own.
func (s *Store) DropTable(ctx context.Context, name string) error {
	return s.use(ctx, func(store *C.struct_terrane_store) code {
		text, length := cText(name)
		return C.terrane_table_drop(store, text, length)
	})
}

// RenameTable renames a table. Handles of the table stay.
func (s *Store) RenameTable(ctx context.Context, from, to string) error {
	return s.use(ctx, func(store *C.struct_terrane_store) code {
		fromText, fromLength := cText(from)
		toText, toLength := cText(to)
		return C.terrane_table_rename(store, fromText, fromLength, toText, toLength)
	})
}

// Tables returns the names of all tables, sorted.
func (s *Store) Tables(ctx context.Context) ([]string, error) {
	list, err := buffer(func(out *C.uint8_t, capacity C.size_t, length *C.size_t) error {
		return s.use(ctx, func(store *C.struct_terrane_store) code {
			return C.terrane_table_list(store, out, capacity, length)
		})
	})
	if err != nil {
		return nil, err
	}
	// Each name ends with a zero byte.
	var names []string
	for name := range bytes.SplitSeq(list, []byte{0}) {
		names = append(names, string(name))
	}
	return names[:len(names)-1], nil
}
