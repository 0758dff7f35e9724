// Tables with a root, and the states of Ethereum chains: Merkle-Patricia tries and their proofs.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"unsafe"
)

// CommittedTable is a table of a store whose entries have a root: that of a Merkle-Patricia trie
// over the hashes of the keys. Goroutines may share it; of two writes at once one fails.
type CommittedTable struct {
	handle handle
	store  *Store
}

// CommittedTable opens a table with a root, or makes one.
func (s *Store) CommittedTable(ctx context.Context, name string) (*CommittedTable, error) {
	table := &CommittedTable{store: s}
	err := s.use(ctx, func(store *C.struct_terrane_store) code {
		text, length := cText(name)
		var made *C.struct_terrane_committed
		failed := C.terrane_committed_open(store, text, length, &made)
		table.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(table, err)
}

// Close frees the handle; the table stays.
func (t *CommittedTable) Close() error {
	return t.handle.close(func(pointer unsafe.Pointer) code {
		C.terrane_committed_free((*C.struct_terrane_committed)(pointer))
		return C.TERRANE_OK
	})
}

func (t *CommittedTable) use(
	ctx context.Context,
	body func(table *C.struct_terrane_committed) code,
) error {
	return t.handle.use(ctx, func(pointer unsafe.Pointer) code {
		return body((*C.struct_terrane_committed)(pointer))
	})
}

// Entries gives the entries as a table, for reading only: a change of theirs would not change the
// root.
func (t *CommittedTable) Entries(ctx context.Context) (*Table, error) {
	entries := &Table{store: t.store}
	err := t.use(ctx, func(table *C.struct_terrane_committed) code {
		var made *C.struct_terrane_table
		failed := C.terrane_committed_entries(table, &made)
		entries.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(entries, err)
}

// Root returns the root.
func (t *CommittedTable) Root(ctx context.Context) (Root, error) {
	var root Root
	err := t.use(ctx, func(table *C.struct_terrane_committed) code {
		return C.terrane_committed_root(table, root.c())
	})
	return root, err
}

// Write sets the values of keys and deletes others in one commit, with the store's durability, and
// returns the new root. No key is named twice; deleting an absent key changes nothing. ErrConflict
// if another commit of the store came between: do it again.
func (t *CommittedTable) Write(ctx context.Context, keys, values, deletes *Rows) (Root, error) {
	var root Root
	if keys.Len() != values.Len() {
		return root, badInput("as many keys as values are needed")
	}
	count, keyBytes, keyOffsets := keys.c()
	_, valueBytes, valueOffsets := values.c()
	deleteCount, deleteBytes, deleteOffsets := deletes.c()
	err := t.use(ctx, func(table *C.struct_terrane_committed) code {
		return C.terrane_committed_write(table, count, keyBytes, keyOffsets, valueBytes, valueOffsets,
			deleteCount, deleteBytes, deleteOffsets, root.c())
	})
	return root, err
}

// Prove proves the value of a key, or its absence, for [VerifyCommitted]: the nodes on its path,
// from the root down.
func (t *CommittedTable) Prove(ctx context.Context, key []byte) (*Rows, error) {
	return nodes(func(out nodesOut) error {
		return t.use(ctx, func(table *C.struct_terrane_committed) code {
			bytes, length := cBytes(key)
			return C.terrane_committed_prove(table, bytes, length, out.max, out.nodes, out.capacity,
				out.offsets, out.count)
		})
	})
}

// Address is the address of an account.
type Address [20]byte

func (a *Address) c() *C.uint8_t {
	return (*C.uint8_t)(&a[0])
}

// Account is an account of an Ethereum state.
type Account struct {
	// Nonce is the count of transactions sent, or of contracts created.
	Nonce uint64
	// Balance is in wei, big-endian.
	Balance [32]byte
	// CodeHash is the Keccak-256 of the code; all zero for none.
	CodeHash [32]byte
}

// AccountChange is a change of an account. A nil account goes, with all its storage.
type AccountChange struct {
	Address Address
	Account *Account
}

// SlotChange is a change of a slot; a value of zero deletes it. Slot and value are big-endian.
type SlotChange struct {
	Address Address
	Slot    [32]byte
	Value   [32]byte
}

// Block is the changes of a block: accounts in their order, then slots.
type Block struct {
	Height uint64
	// Parent is the hash of the block before, all zero for the first one.
	Parent [32]byte
	// Hash is the hash of this block.
	Hash     [32]byte
	Accounts []AccountChange
	Slots    []SlotChange
	// Codes are the codes that accounts of the block refer to; nil for none.
	Codes *Rows
}

// MPT is the state of an Ethereum chain. Goroutines may share it; they take turns.
type MPT struct {
	handle handle
}

// OpenMPT opens the state of a directory, or makes one. With history, blocks keep what ReorgTo and
// older heights need.
func OpenMPT(ctx context.Context, dir string, durability Durability, history bool) (*MPT, error) {
	state := &MPT{}
	err := open(ctx, &state.handle, func(out *unsafe.Pointer) code {
		path, length := cText(dir)
		var made *C.struct_terrane_mpt
		failed := C.terrane_mpt_open(path, length, C.uint32_t(durability), C.bool(history), &made)
		*out = unsafe.Pointer(made)
		return failed
	})
	return opened(state, err)
}

// Close closes the state.
func (m *MPT) Close() error {
	return m.handle.close(func(pointer unsafe.Pointer) code {
		return C.terrane_mpt_close((*C.struct_terrane_mpt)(pointer))
	})
}

func (m *MPT) use(ctx context.Context, body func(state *C.struct_terrane_mpt) code) error {
	return m.handle.use(ctx, func(pointer unsafe.Pointer) code {
		return body((*C.struct_terrane_mpt)(pointer))
	})
}

// Commit commits a block and returns the new root.
func (m *MPT) Commit(ctx context.Context, block *Block) (Root, error) {
	accounts := make([]C.struct_terrane_mpt_account, len(block.Accounts))
	for at, change := range block.Accounts {
		to := &accounts[at]
		*(*Address)(unsafe.Pointer(&to.address)) = change.Address
		to.is_deleted = change.Account == nil
		if account := change.Account; account != nil {
			to.nonce = C.uint64_t(account.Nonce)
			*(*[32]byte)(unsafe.Pointer(&to.balance)) = account.Balance
			*(*[32]byte)(unsafe.Pointer(&to.code_hash)) = account.CodeHash
		}
	}
	slots := make([]C.struct_terrane_mpt_slot, len(block.Slots))
	for at, change := range block.Slots {
		to := &slots[at]
		*(*Address)(unsafe.Pointer(&to.address)) = change.Address
		*(*[32]byte)(unsafe.Pointer(&to.slot)) = change.Slot
		*(*[32]byte)(unsafe.Pointer(&to.value)) = change.Value
	}

	parent, hash := Root(block.Parent), Root(block.Hash)
	codeCount, codes, codeOffsets := block.Codes.c()
	var root Root
	err := m.use(ctx, func(state *C.struct_terrane_mpt) code {
		return C.terrane_mpt_commit(state, C.uint64_t(block.Height), parent.c(), hash.c(),
			C.size_t(len(accounts)), unsafe.SliceData(accounts),
			C.size_t(len(slots)), unsafe.SliceData(slots),
			codeCount, codes, codeOffsets, root.c())
	})
	return root, err
}

// Tip returns the height of the last block and the root after it; ErrNotFound before the first one.
func (m *MPT) Tip(ctx context.Context) (height uint64, root Root, err error) {
	err = m.use(ctx, func(state *C.struct_terrane_mpt) code {
		return C.terrane_mpt_tip(state, (*C.uint64_t)(&height), root.c())
	})
	return height, root, err
}

// Slot names a slot of an account, big-endian.
type Slot struct {
	Address Address
	Slot    [32]byte
}

// Slots looks up slots: values of 32 bytes, big-endian, zero for an absent one.
func (m *MPT) Slots(ctx context.Context, slots []Slot) ([][32]byte, error) {
	addresses, keys := make([]Address, len(slots)), make([][32]byte, len(slots))
	for at, slot := range slots {
		addresses[at], keys[at] = slot.Address, slot.Slot
	}
	values := make([][32]byte, len(slots))
	err := m.use(ctx, func(state *C.struct_terrane_mpt) code {
		return C.terrane_mpt_get_slots(state, C.size_t(len(slots)),
			(*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(addresses))),
			(*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(keys))),
			(*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(values))))
	})
	return values, err
}

// Account returns an account; ErrNotFound if there is none.
func (m *MPT) Account(ctx context.Context, address Address) (Account, error) {
	var found C.struct_terrane_mpt_account
	err := m.use(ctx, func(state *C.struct_terrane_mpt) code {
		return C.terrane_mpt_get_account(state, address.c(), &found)
	})
	return Account{
		Nonce:    uint64(found.nonce),
		Balance:  *(*[32]byte)(unsafe.Pointer(&found.balance)),
		CodeHash: *(*[32]byte)(unsafe.Pointer(&found.code_hash)),
	}, err
}

// ProveAccount proves an account, or that there is none, at the last block: nodes for [VerifyMPT].
// The key is the Keccak-256 of the address, under the root of the state.
func (m *MPT) ProveAccount(ctx context.Context, address Address) (*Rows, error) {
	return m.prove(ctx, address, nil)
}

// ProveSlot proves a slot of an account at the last block: nodes for [VerifyMPT]. The key is the
// Keccak-256 of the slot, under the storage root in the account's leaf.
func (m *MPT) ProveSlot(ctx context.Context, slot Slot) (*Rows, error) {
	return m.prove(ctx, slot.Address, (*C.uint8_t)(&slot.Slot[0]))
}

func (m *MPT) prove(ctx context.Context, address Address, slot *C.uint8_t) (*Rows, error) {
	return nodes(func(out nodesOut) error {
		return m.use(ctx, func(state *C.struct_terrane_mpt) code {
			return C.terrane_mpt_prove(state, address.c(), slot, out.max, out.nodes, out.capacity,
				out.offsets, out.count)
		})
	})
}

// ReorgTo goes back to the state after an earlier block and returns its root.
func (m *MPT) ReorgTo(ctx context.Context, height uint64) (Root, error) {
	var root Root
	err := m.use(ctx, func(state *C.struct_terrane_mpt) code {
		return C.terrane_mpt_reorg_to(state, C.uint64_t(height), root.c())
	})
	return root, err
}
