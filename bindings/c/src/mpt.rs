//! Tables with a root, and states of an Ethereum chain.

use std::sync::{Mutex, PoisonError};

use terrane::lsm::{StoreOptions, WriteBatch};
use terrane::mpt::{Account, Address, B256, Bytes, CommittedTable, Options, State, U256};
use terrane_verify::bytes::{Arena, Rows, give_bytes, hash, slice, text};
use terrane_verify::error::{
    Failure, Outcome, free, give, give_handle, guard, handle, take, terrane_code,
};

use crate::store::{durability, terrane_store, terrane_table};

/// A table of a store whose entries have a root: that of a Merkle-Patricia trie over the hashes of
/// the keys. Freed by `terrane_committed_free`. Threads may share it; of two commits at once one
/// fails.
#[derive(Debug)]
pub struct terrane_committed {
    store: terrane::lsm::Store,
    table: CommittedTable,
}

/// Opens a table with a root, or makes one. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_committed_open(
    store: *const terrane_store,
    name: *const u8,
    name_len: usize,
    out: *mut *mut terrane_committed,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?.0.clone();
        // SAFETY: the caller keeps the contract.
        let table = CommittedTable::open(&store, unsafe { text(name, name_len) }?)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_committed { store, table }) }
    })
}

/// Frees a table's handle; the table stays. Null is nothing.
///
/// # Safety
/// `table` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_committed_free(table: *mut terrane_committed) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(table) };
}

/// Gives the entries as a table, for reading only: a change of theirs would not change the root.
/// The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_committed_entries(
    table: *const terrane_committed,
    out: *mut *mut terrane_table,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let entries = unsafe { handle(table) }?.table.entries().clone();
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_table(entries)) }
    })
}

/// Gives the root, 32 bytes.
///
/// # Safety
/// `table` is a handle and `root` valid for writes of 32 bytes, or either is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_committed_root(
    table: *const terrane_committed,
    root: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let found = unsafe { handle(table) }?.table.root()?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_bytes(root, found.as_slice()) }
    })
}

/// Sets the values of `count` keys and deletes `delete_count` keys in one commit, with the store's
/// durability, and gives the new root. All are rows as of `terrane_batch_put_many`; no key is named
/// twice. Deleting an absent key changes nothing. `TERRANE_CONFLICT` if another commit of the store
/// came between: do it again.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null; `root` for writes of 32 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_committed_write(
    table: *const terrane_committed,
    count: usize,
    keys: *const u8,
    key_offsets: *const usize,
    values: *const u8,
    value_offsets: *const usize,
    delete_count: usize,
    delete_keys: *const u8,
    delete_offsets: *const usize,
    root: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let values = unsafe { Rows::new(count, values, value_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let deleted = unsafe { Rows::new(delete_count, delete_keys, delete_offsets) }?;
        if root.is_null() {
            return Err(Failure::bad_input("an out-parameter is null"));
        }

        let set = keys.iter().zip(values.iter());
        let set = set.map(|(key, value)| (key.to_vec(), Some(value.to_vec())));
        let changes: Vec<_> = set.chain(deleted.iter().map(|key| (key.to_vec(), None))).collect();
        let mut batch = WriteBatch::new();
        let staged = table.table.stage(&changes, &mut batch)?;
        let _ = table.store.write_if(&batch, staged.commit)?; // `terrane_store_sync_to` waits
        // SAFETY: the caller keeps the contract.
        unsafe { give_bytes(root, staged.root.as_slice()) }
    })
}

/// Writes the nodes of a proof as rows.
///
/// # Safety
/// `nodes` is valid for writes of `capacity` bytes, `offsets` for `nodes_max` + 1 items, `count`
/// for a write, or null.
unsafe fn give_nodes(
    found: &[Bytes],
    nodes_max: usize,
    (nodes, capacity): (*mut u8, usize),
    offsets: *mut usize,
    count: *mut usize,
) -> Outcome<()> {
    // SAFETY: the caller keeps the contract.
    unsafe { give(count, found.len()) }?;
    if found.len() > nodes_max {
        return Err(Failure::too_small("offsets of nodes"));
    }
    // SAFETY: the caller keeps the contract.
    let mut arena = unsafe { Arena::new(nodes_max, nodes, capacity, offsets) }?;
    for node in found {
        arena.push(node);
    }
    if arena.is_whole() { Ok(()) } else { Err(Failure::too_small("nodes")) }
}

/// Proves the value of a key, or its absence, for `terrane_committed_verify`: the nodes on its
/// path, from the root down, as rows, and their number in `*node_count`. `node_offsets` has room
/// for `nodes_max` + 1. If either memory is too small, the call fails with `TERRANE_TOO_SMALL`;
/// `*node_count` is right then, and if that is at most `nodes_max`, so is
/// `node_offsets[*node_count]`.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_committed_prove(
    table: *const terrane_committed,
    key: *const u8,
    key_len: usize,
    nodes_max: usize,
    nodes: *mut u8,
    capacity: usize,
    node_offsets: *mut usize,
    node_count: *mut usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        let found = table.table.prove(unsafe { slice(key, key_len) }?)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_nodes(&found, nodes_max, (nodes, capacity), node_offsets, node_count) }
    })
}

/// The state of an Ethereum chain. Freed by `terrane_mpt_close`. Threads may share it; they take
/// turns.
#[derive(Debug)]
pub struct terrane_mpt(Mutex<State>);

impl terrane_mpt {
    fn with<T>(&self, body: impl FnOnce(&mut State) -> Outcome<T>) -> Outcome<T> {
        // A panic has been a code already, and the caller was told not to use the handle.
        body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A change of an account.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct terrane_mpt_account {
    /// Address.
    pub address: [u8; 20],
    /// Whether the account goes, with all its storage; the fields that follow mean nothing then.
    pub is_deleted: bool,
    /// Count of transactions sent, or of contracts created.
    pub nonce: u64,
    /// Balance in wei, big-endian.
    pub balance: [u8; 32],
    /// Keccak-256 of the code; all zero for none.
    pub code_hash: [u8; 32],
}

/// A change of a slot.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct terrane_mpt_slot {
    /// Address of the account, which exists after the block.
    pub address: [u8; 20],
    /// Slot, big-endian.
    pub slot: [u8; 32],
    /// New value, big-endian; zero deletes the slot.
    pub value: [u8; 32],
}

/// Opens the state of a directory, or makes one. `durability_of_blocks` is a `terrane_durability`.
/// With `history`, blocks keep what `terrane_mpt_reorg_to` and older heights need. The caller owns
/// `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_mpt_open(
    dir: *const u8,
    dir_len: usize,
    durability_of_blocks: u32,
    history: bool,
    out: *mut *mut terrane_mpt,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let dir = unsafe { text(dir, dir_len) }?;
        let store = StoreOptions::default().create_dir();
        let store = store.durability(durability(durability_of_blocks)?);
        let state = State::open_dir(dir, &Options::default().store(store).history(history))?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_mpt(Mutex::new(state))) }
    })
}

/// Closes a state and frees the handle, also if the call fails. Null is nothing.
///
/// # Safety
/// `state` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_mpt_close(state: *mut terrane_mpt) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let Some(state) = (unsafe { take(state) }) else { return Ok(()) };
        Ok(state.0.into_inner().unwrap_or_else(PoisonError::into_inner).close()?)
    })
}

/// Commits a block: accounts in their order, then slots, and codes as rows. `parent` is the hash of
/// the block before, all zero for the first one; `block` is the hash of this one. Gives the new
/// root. Hashes have 32 bytes.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_mpt_commit(
    state: *const terrane_mpt,
    height: u64,
    parent: *const u8,
    block: *const u8,
    account_count: usize,
    accounts: *const terrane_mpt_account,
    slot_count: usize,
    slots: *const terrane_mpt_slot,
    code_count: usize,
    codes: *const u8,
    code_offsets: *const usize,
    root: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let state = unsafe { handle(state) }?;
        // SAFETY: the caller keeps the contract.
        let parent = B256::from(unsafe { hash(parent) }?);
        // SAFETY: the caller keeps the contract.
        let block = B256::from(unsafe { hash(block) }?);
        // SAFETY: the caller keeps the contract.
        let accounts = unsafe { slice(accounts, account_count) }?;
        // SAFETY: the caller keeps the contract.
        let slots = unsafe { slice(slots, slot_count) }?;
        // SAFETY: the caller keeps the contract.
        let codes = unsafe { Rows::new(code_count, codes, code_offsets) }?;
        if root.is_null() {
            return Err(Failure::bad_input("an out-parameter is null"));
        }

        let made = state.with(|state| {
            let mut batch = state.block(height, parent)?;
            for change in accounts {
                let address = Address::from(change.address);
                if change.is_deleted {
                    batch.delete_account(address);
                    continue;
                }
                let mut account = Account::new(change.nonce, U256::from_be_bytes(change.balance));
                if change.code_hash != [0; 32] {
                    account = account.code_hash(B256::from(change.code_hash));
                }
                batch.set_account(address, &account);
            }
            for change in slots {
                let (slot, value) = (B256::from(change.slot), U256::from_be_bytes(change.value));
                batch.set_slot(Address::from(change.address), slot, value);
            }
            for code in codes.iter() {
                batch.set_code(code);
            }
            // The store's durability holds; who wants more closes the state or waits for its store.
            Ok(batch.commit(block)?.block.root)
        })?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_bytes(root, made.as_slice()) }
    })
}

/// Gives the root after the last block, and the height of that block; `TERRANE_NOT_FOUND` before
/// the first one. Either may be null.
///
/// # Safety
/// Pointers are valid as their types say, or null; `root` for writes of 32 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_mpt_tip(
    state: *const terrane_mpt,
    height: *mut u64,
    root: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let tip = unsafe { handle(state) }?.with(|state| Ok(state.tip()))?;
        let tip = tip.ok_or_else(|| Failure::not_found("the state has no block yet"))?;
        if !height.is_null() {
            // SAFETY: the caller keeps the contract.
            unsafe { give(height, tip.height) }?;
        }
        if root.is_null() {
            return Ok(());
        }
        // SAFETY: the caller keeps the contract.
        unsafe { give_bytes(root, tip.root.as_slice()) }
    })
}

/// Looks up `count` slots, each of an account: values of 32 bytes, big-endian, zero for an absent
/// one. `addresses` has 20 bytes for each, `slots` 32.
///
/// # Safety
/// Pointers are valid for as many bytes as `count` says, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_mpt_get_slots(
    state: *const terrane_mpt,
    count: usize,
    addresses: *const u8,
    slots: *const u8,
    values: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let state = unsafe { handle(state) }?;
        // SAFETY: the caller keeps the contract; the arrays are no longer than memory.
        let addresses = unsafe { slice(addresses.cast::<[u8; 20]>(), count) }?;
        // SAFETY: the caller keeps the contract.
        let slots = unsafe { slice(slots.cast::<[u8; 32]>(), count) }?;
        let asked = addresses.iter().zip(slots);
        let asked = asked.map(|(address, slot)| (Address::from(address), B256::from(slot)));
        let asked: Vec<(Address, B256)> = asked.collect();
        let found = state.with(|state| Ok(state.slots(&asked)?))?;
        let bytes: Vec<u8> = found.iter().flat_map(U256::to_be_bytes::<32>).collect();
        // SAFETY: the caller keeps the contract.
        unsafe { give_bytes(values, &bytes) }
    })
}

/// Gives an account; `TERRANE_NOT_FOUND` if there is none. `address` has 20 bytes.
///
/// # Safety
/// Pointers are valid as their types say, or null; `address` for reads of 20 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_mpt_get_account(
    state: *const terrane_mpt,
    address: *const u8,
    out: *mut terrane_mpt_account,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let state = unsafe { handle(state) }?;
        // SAFETY: the caller keeps the contract.
        let address = Address::from_slice(unsafe { slice(address, 20) }?);
        let found = state.with(|state| Ok(state.account(&address)?))?;
        let found = found.ok_or_else(|| Failure::not_found("there is no such account"))?;
        let account = terrane_mpt_account {
            address: address.into_array(),
            is_deleted: false,
            nonce: found.nonce,
            balance: found.balance.to_be_bytes(),
            code_hash: found.code_hash.0,
        };
        // SAFETY: the caller keeps the contract.
        unsafe { give(out, account) }
    })
}

/// Proves an account, or one of its slots if `slot` is not null, at the last block: nodes as of
/// `terrane_committed_prove`, for `terrane_mpt_verify`. The key of an account is the Keccak-256 of
/// its address, under the root of the state. That of a slot is the Keccak-256 of the slot, under
/// the storage root in the account's leaf.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null; `address` for reads of 20 bytes,
/// `slot` of 32.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_mpt_prove(
    state: *const terrane_mpt,
    address: *const u8,
    slot: *const u8,
    nodes_max: usize,
    nodes: *mut u8,
    capacity: usize,
    node_offsets: *mut usize,
    node_count: *mut usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let state = unsafe { handle(state) }?;
        // SAFETY: the caller keeps the contract.
        let address = Address::from_slice(unsafe { slice(address, 20) }?);
        let slots = if slot.is_null() {
            Vec::new()
        } else {
            // SAFETY: the caller keeps the contract.
            vec![B256::from(unsafe { hash(slot) }?)]
        };
        let mut proof = state.with(|state| Ok(state.prove(&address, &slots)?))?;
        let found = proof.slots.pop().map_or(proof.nodes, |slot| slot.nodes);
        // SAFETY: the caller keeps the contract.
        unsafe { give_nodes(&found, nodes_max, (nodes, capacity), node_offsets, node_count) }
    })
}

/// Goes back to the state after an earlier block and gives its root.
///
/// # Safety
/// `state` is a handle and `root` valid for writes of 32 bytes, or either is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_mpt_reorg_to(
    state: *const terrane_mpt,
    height: u64,
    root: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let state = unsafe { handle(state) }?;
        let found = state.with(|state| Ok(state.reorg_to(height)?.block.root))?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_bytes(root, found.as_slice()) }
    })
}
