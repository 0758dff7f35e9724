// Radix states: trees of addresses with a root for every commit, and proofs.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"unsafe"
)

// Root is the hash of a state.
type Root [32]byte

func (r *Root) c() *C.uint8_t {
	return (*C.uint8_t)(&r[0])
}

// Radix is the radix state of a directory. Goroutines may share it.
type Radix struct {
	handle handle
}

// OpenRadix opens the radix state of a directory, whatever its back-end, or makes one over LSM
// tables.
func OpenRadix(ctx context.Context, dir string, durability Durability) (*Radix, error) {
	state := &Radix{}
	err := open(ctx, &state.handle, func(out *unsafe.Pointer) code {
		path, length := cText(dir)
		var made *C.struct_terrane_radix
		failed := C.terrane_radix_open(path, length, C.uint32_t(durability), &made)
		*out = unsafe.Pointer(made)
		return failed
	})
	return opened(state, err)
}

// Close closes the state. The directory stays locked until its trees are closed, too.
func (r *Radix) Close() error {
	return r.handle.close(func(pointer unsafe.Pointer) code {
		return C.terrane_radix_close((*C.struct_terrane_radix)(pointer))
	})
}

// Tree opens a named tree, or makes one.
func (r *Radix) Tree(ctx context.Context, name string) (*RadixTree, error) {
	tree := &RadixTree{}
	err := r.handle.use(ctx, func(pointer unsafe.Pointer) code {
		text, length := cText(name)
		var made *C.struct_terrane_radix_tree
		failed := C.terrane_radix_tree_open((*C.struct_terrane_radix)(pointer), text, length, &made)
		tree.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(tree, err)
}

// RadixTree is a named tree of a radix state. Goroutines may share it.
type RadixTree struct {
	handle handle
}

// Close frees the handle; the tree stays.
func (t *RadixTree) Close() error {
	return t.handle.close(func(pointer unsafe.Pointer) code {
		C.terrane_radix_tree_free((*C.struct_terrane_radix_tree)(pointer))
		return C.TERRANE_OK
	})
}

func (t *RadixTree) use(
	ctx context.Context,
	body func(tree *C.struct_terrane_radix_tree) code,
) error {
	return t.handle.use(ctx, func(pointer unsafe.Pointer) code {
		return body((*C.struct_terrane_radix_tree)(pointer))
	})
}

// EmptyRadixRoot returns the root of the empty state.
func EmptyRadixRoot() Root {
	var root Root
	// Writing 32 bytes cannot fail.
	_ = call(func() code { return C.terrane_radix_empty_root(root.c()) })
	return root
}

// Commit sets the values of addresses and deletes others, on top of the retained root parent, and
// returns the new root. An address that is deleted must have a value; none is named twice.
//
// Cost: reads the nodes on the paths, level by level, and writes the new ones.
func (t *RadixTree) Commit(
	ctx context.Context,
	parent Root,
	addresses, values, deletes *Rows,
) (Root, error) {
	var root Root
	if addresses.Len() != values.Len() {
		return root, badInput("as many addresses as values are needed")
	}
	count, setBytes, setOffsets := addresses.c()
	_, valueBytes, valueOffsets := values.c()
	deleteCount, deleteBytes, deleteOffsets := deletes.c()
	err := t.use(ctx, func(tree *C.struct_terrane_radix_tree) code {
		return C.terrane_radix_commit(tree, parent.c(), count, setBytes, setOffsets, valueBytes,
			valueOffsets, deleteCount, deleteBytes, deleteOffsets, root.c())
	})
	return root, err
}

// GetMany looks up addresses in the state of a root and fills out: as [Table.GetMany].
func (t *RadixTree) GetMany(ctx context.Context, root Root, addresses *Rows, out *Answers) error {
	count, bytes, offsets := addresses.c()
	return out.fill(addresses.Len(), func(to answers) error {
		return t.use(ctx, func(tree *C.struct_terrane_radix_tree) code {
			return C.terrane_radix_get_many(tree, root.c(), count, bytes, offsets,
				to.values, to.capacity, to.offsets, to.found)
		})
	})
}

// Prove proves the values of addresses in the state of a root, or that they have none, for
// [VerifyRadix]. compact chooses the smaller form.
func (t *RadixTree) Prove(
	ctx context.Context,
	root Root,
	addresses *Rows,
	compact bool,
) ([]byte, error) {
	count, bytes, offsets := addresses.c()
	return buffer(func(out *C.uint8_t, capacity C.size_t, length *C.size_t) error {
		return t.use(ctx, func(tree *C.struct_terrane_radix_tree) code {
			return C.terrane_radix_prove(tree, root.c(), count, bytes, offsets, C.bool(compact), out,
				capacity, length)
		})
	})
}

// Prune removes a version of the tree. Nodes that no other version reaches go with it.
func (t *RadixTree) Prune(ctx context.Context, root Root) error {
	return t.use(ctx, func(tree *C.struct_terrane_radix_tree) code {
		return C.terrane_radix_prune(tree, root.c())
	})
}
