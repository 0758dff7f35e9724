// Merkle context stores: trees of paths, committed as in a version control system, and proofs.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"time"
	"unsafe"
)

// Context is a context store. Goroutines may share it.
type Context struct {
	handle handle
}

// OpenContext opens the context store of a directory, or makes one, with the rules of Tezos and a
// B+tree as the index of its commits.
func OpenContext(ctx context.Context, dir string, durability Durability) (*Context, error) {
	store := &Context{}
	err := open(ctx, &store.handle, func(out *unsafe.Pointer) code {
		path, length := cText(dir)
		var made *C.struct_terrane_context
		failed := C.terrane_context_open(path, length, C.uint32_t(durability), &made)
		*out = unsafe.Pointer(made)
		return failed
	})
	return opened(store, err)
}

// Close closes the store. Close its trees before.
func (c *Context) Close() error {
	return c.handle.close(func(pointer unsafe.Pointer) code {
		return C.terrane_context_close((*C.struct_terrane_context)(pointer))
	})
}

// CommitHash is the hash of a commit of a context store.
type CommitHash [32]byte

// Checkout gives the tree of a commit, or the empty tree for nil; ErrNotFound if there is no such
// commit.
func (c *Context) Checkout(ctx context.Context, commit *CommitHash) (*ContextTree, error) {
	tree := &ContextTree{store: c}
	err := c.handle.use(ctx, func(pointer unsafe.Pointer) code {
		var hash *C.uint8_t
		if commit != nil {
			hash = (*C.uint8_t)(&commit[0])
		}
		var made *C.struct_terrane_context_tree
		failed := C.terrane_context_checkout((*C.struct_terrane_context)(pointer), hash, &made)
		tree.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(tree, err)
}

// ContextTree is a working tree, with the commit that it came from.
type ContextTree struct {
	handle handle
	store  *Context
}

// Close frees the tree.
func (t *ContextTree) Close() error {
	return t.handle.close(func(pointer unsafe.Pointer) code {
		C.terrane_context_tree_free((*C.struct_terrane_context_tree)(pointer))
		return C.TERRANE_OK
	})
}

func (t *ContextTree) use(
	ctx context.Context,
	body func(tree *C.struct_terrane_context_tree) code,
) error {
	return t.handle.useAlone(ctx, func(pointer unsafe.Pointer) code {
		return body((*C.struct_terrane_context_tree)(pointer))
	})
}

// PutMany binds paths such as data/contracts/a to values. If it fails, the paths before the failing
// one are bound.
func (t *ContextTree) PutMany(ctx context.Context, paths, values *Rows) error {
	if paths.Len() != values.Len() {
		return badInput("as many paths as values are needed")
	}
	count, pathBytes, pathOffsets := paths.c()
	_, valueBytes, valueOffsets := values.c()
	return t.use(ctx, func(tree *C.struct_terrane_context_tree) code {
		return C.terrane_context_put_many(tree, count, pathBytes, pathOffsets, valueBytes, valueOffsets)
	})
}

// DeleteMany unbinds paths, values and whole trees alike. An absent path is no error.
func (t *ContextTree) DeleteMany(ctx context.Context, paths *Rows) error {
	count, bytes, offsets := paths.c()
	return t.use(ctx, func(tree *C.struct_terrane_context_tree) code {
		return C.terrane_context_delete_many(tree, count, bytes, offsets)
	})
}

// GetMany looks up the values of paths and fills out: as [Table.GetMany]. A directory has no value.
func (t *ContextTree) GetMany(ctx context.Context, paths *Rows, out *Answers) error {
	count, bytes, offsets := paths.c()
	return out.fill(paths.Len(), func(to answers) error {
		return t.use(ctx, func(tree *C.struct_terrane_context_tree) code {
			return C.terrane_context_get_many(tree, count, bytes, offsets,
				to.values, to.capacity, to.offsets, to.found)
		})
	})
}

// Root returns the hash of the tree: what proofs are checked against.
func (t *ContextTree) Root(ctx context.Context) (Root, error) {
	var root Root
	err := t.use(ctx, func(tree *C.struct_terrane_context_tree) code {
		return C.terrane_context_root(tree, root.c())
	})
	return root, err
}

// Commit commits the tree and returns the hash of the commit. The next commit of the tree is a
// child of this one.
func (t *ContextTree) Commit(
	ctx context.Context,
	date time.Time,
	author, message string,
) (CommitHash, error) {
	var commit CommitHash
	err := t.use(ctx, func(tree *C.struct_terrane_context_tree) code {
		t.store.handle.lock.RLock()
		defer t.store.handle.lock.RUnlock()
		authorText, authorLength := cText(author)
		messageText, messageLength := cText(message)
		// The library refuses null.
		return C.terrane_context_commit((*C.struct_terrane_context)(t.store.handle.pointer), tree,
			C.int64_t(date.Unix()), authorText, authorLength, messageText, messageLength,
			(*C.uint8_t)(&commit[0]))
	})
	return commit, err
}

// Prove proves the values of paths, or that they have none, for [VerifyContext].
func (t *ContextTree) Prove(ctx context.Context, paths *Rows) ([]byte, error) {
	count, bytes, offsets := paths.c()
	return buffer(func(out *C.uint8_t, capacity C.size_t, length *C.size_t) error {
		return t.use(ctx, func(tree *C.struct_terrane_context_tree) code {
			return C.terrane_context_prove(tree, count, bytes, offsets, out, capacity, length)
		})
	})
}
