// Snapshots of tables, and versions of all tables of a store.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"unsafe"
)

// SaveSnapshot saves the table as a durable snapshot, which OpenSnapshot opens with the same label.
func (t *Table) SaveSnapshot(ctx context.Context, name, label string) error {
	return t.use(ctx, func(table *C.struct_terrane_table) code {
		text, length := cText(name)
		labelText, labelLength := cText(label)
		return C.terrane_snapshot_save(table, text, length, labelText, labelLength)
	})
}

// OpenSnapshot opens a snapshot as a view.
func (s *Store) OpenSnapshot(ctx context.Context, name, label string) (*View, error) {
	return s.view(ctx, func(store *C.struct_terrane_store, out **C.struct_terrane_view) code {
		text, length := cText(name)
		labelText, labelLength := cText(label)
		return C.terrane_snapshot_open(store, text, length, labelText, labelLength, out)
	})
}

// view runs a call of the store that makes a view.
func (s *Store) view(
	ctx context.Context,
	make func(store *C.struct_terrane_store, out **C.struct_terrane_view) code,
) (*View, error) {
	view := &View{}
	err := s.use(ctx, func(store *C.struct_terrane_store) code {
		var made *C.struct_terrane_view
		failed := make(store, &made)
		view.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(view, err)
}

// DeleteSnapshot deletes a snapshot. Views of it stay.
func (s *Store) DeleteSnapshot(ctx context.Context, name string) error {
	return s.use(ctx, func(store *C.struct_terrane_store) code {
		text, length := cText(name)
		return C.terrane_snapshot_delete(store, text, length)
	})
}

// Retain keeps all tables as of the last commit and returns the number of the version. An empty
// name makes a version without one.
func (s *Store) Retain(ctx context.Context, name string) (uint64, error) {
	var number C.uint64_t
	err := s.use(ctx, func(store *C.struct_terrane_store) code {
		text, length := cText(name)
		if name == "" {
			text = nil
		}
		return C.terrane_version_retain(store, text, length, &number)
	})
	return uint64(number), err
}

// Release lets go of a version. Views of it stay.
func (s *Store) Release(ctx context.Context, number uint64) error {
	return s.use(ctx, func(store *C.struct_terrane_store) code {
		return C.terrane_version_release(store, C.uint64_t(number))
	})
}

// Versions returns the numbers of all versions, oldest first.
func (s *Store) Versions(ctx context.Context) ([]uint64, error) {
	numbers := make([]uint64, 16)
	for {
		var count C.size_t
		err := s.use(ctx, func(store *C.struct_terrane_store) code {
			out := (*C.uint64_t)(unsafe.SliceData(numbers))
			return C.terrane_version_list(store, out, C.size_t(len(numbers)), &count)
		})
		if !isTooSmall(err) {
			return numbers[:min(int(count), len(numbers))], err
		}
		numbers = make([]uint64, count)
	}
}

// VersionView opens a table of a version as a view.
func (s *Store) VersionView(ctx context.Context, number uint64, table string) (*View, error) {
	return s.view(ctx, func(store *C.struct_terrane_store, out **C.struct_terrane_view) code {
		text, length := cText(table)
		return C.terrane_version_view(store, C.uint64_t(number), text, length, out)
	})
}

// RollBack makes all tables what they were in a version, as one commit, and returns its number.
func (s *Store) RollBack(ctx context.Context, number uint64) (uint64, error) {
	var commit C.uint64_t
	err := s.use(ctx, func(store *C.struct_terrane_store) code {
		return C.terrane_store_roll_back(store, C.uint64_t(number), &commit)
	})
	return uint64(commit), err
}
