// Optimistic transactions, serialisable.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"errors"
	"unsafe"
)

// Transaction is reads of one moment, and writes. It ends with Commit or Rollback.
type Transaction struct {
	handle handle
}

// Begin begins a transaction at the last commit. Tables that are made later are not seen.
func (s *Store) Begin(ctx context.Context) (*Transaction, error) {
	transaction := &Transaction{}
	err := s.use(ctx, func(store *C.struct_terrane_store) code {
		var made *C.struct_terrane_transaction
		failed := C.terrane_transaction_begin(store, &made)
		transaction.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(transaction, err)
}

// Transact runs body in a transaction and commits it, again as often as another commit came first
// and the context goes on. Returns the number of the commit. An error of body ends the transaction.
func (s *Store) Transact(
	ctx context.Context,
	body func(transaction *Transaction) error,
) (uint64, error) {
	for {
		transaction, err := s.Begin(ctx)
		if err != nil {
			return 0, err
		}
		if err := body(transaction); err != nil {
			transaction.Rollback()
			return 0, err
		}
		commit, err := transaction.Commit(ctx)
		if !errors.Is(err, ErrConflict) {
			return commit, err
		}
	}
}

// use runs a call of the transaction with a table.
func (t *Transaction) use(
	ctx context.Context,
	table *Table,
	body func(transaction *C.struct_terrane_transaction, table *C.struct_terrane_table) code,
) error {
	return t.handle.useAlone(ctx, func(pointer unsafe.Pointer) code {
		table.handle.lock.RLock()
		defer table.handle.lock.RUnlock()
		// The library refuses null.
		return body((*C.struct_terrane_transaction)(pointer),
			(*C.struct_terrane_table)(table.handle.pointer))
	})
}

// GetMany looks up keys as the transaction sees them, its own writes included, and fills out. The
// commit fails if another commit has changed any of them.
func (t *Transaction) GetMany(
	ctx context.Context,
	table *Table,
	keys *Rows,
	out *Answers,
) error {
	count, bytes, offsets := keys.c()
	return out.fill(keys.Len(), func(to answers) error {
		return t.use(ctx, table, func(
			transaction *C.struct_terrane_transaction,
			table *C.struct_terrane_table,
		) code {
			return C.terrane_transaction_get_many(transaction, table, count, bytes, offsets,
				to.values, to.capacity, to.offsets, to.found)
		})
	})
}

// Get returns a copy of the value of a key, and whether the key is there: as GetMany.
func (t *Transaction) Get(ctx context.Context, table *Table, key []byte) ([]byte, bool, error) {
	var out Answers
	return out.one(t.GetMany(ctx, table, RowsOf(key), &out))
}

// PutMany sets the values of keys: as many keys as values.
func (t *Transaction) PutMany(ctx context.Context, table *Table, keys, values *Rows) error {
	if keys.Len() != values.Len() {
		return badInput("as many keys as values are needed")
	}
	count, keyBytes, keyOffsets := keys.c()
	_, valueBytes, valueOffsets := values.c()
	return t.use(ctx, table, func(
		transaction *C.struct_terrane_transaction,
		table *C.struct_terrane_table,
	) code {
		return C.terrane_transaction_put_many(transaction, table, count, keyBytes, keyOffsets,
			valueBytes, valueOffsets)
	})
}

// Put sets the value of a key.
func (t *Transaction) Put(ctx context.Context, table *Table, key, value []byte) error {
	return t.PutMany(ctx, table, RowsOf(key), RowsOf(value))
}

// DeleteMany removes keys. An absent key is no error.
func (t *Transaction) DeleteMany(ctx context.Context, table *Table, keys *Rows) error {
	count, bytes, offsets := keys.c()
	return t.use(ctx, table, func(
		transaction *C.struct_terrane_transaction,
		table *C.struct_terrane_table,
	) code {
		return C.terrane_transaction_delete_many(transaction, table, count, bytes, offsets)
	})
}

// Delete removes a key. An absent key is no error.
func (t *Transaction) Delete(ctx context.Context, table *Table, key []byte) error {
	return t.DeleteMany(ctx, table, RowsOf(key))
}

// Commit commits and ends the transaction, also if it fails, and returns the number of the commit.
// ErrConflict if another commit has changed what was read: begin anew.
func (t *Transaction) Commit(ctx context.Context) (uint64, error) {
	if err := ctx.Err(); err != nil {
		t.Rollback()
		return 0, err
	}
	t.handle.lock.Lock()
	defer t.handle.lock.Unlock()
	pointer := (*C.struct_terrane_transaction)(t.handle.pointer)
	if pointer == nil {
		return 0, &Error{Code: ErrClosed, Message: "the transaction has ended"}
	}
	t.handle.pointer = nil
	var commit C.uint64_t
	err := call(func() code { return C.terrane_transaction_commit(pointer, &commit) })
	return uint64(commit), err
}

// Rollback ends the transaction; its writes are gone. After Commit it does nothing.
func (t *Transaction) Rollback() {
	// Freeing cannot fail.
	_ = t.handle.close(func(pointer unsafe.Pointer) code {
		C.terrane_transaction_rollback((*C.struct_terrane_transaction)(pointer))
		return C.TERRANE_OK
	})
}
