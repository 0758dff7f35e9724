//! Radix states: versions of a map from addresses to values, each with its root.

use std::path::Path;
use std::sync::Arc;

use terrane::radix::{Change, Form, NodeHash, Root, Tree};
use terrane::state_dir::{OpenOptions, OpenStore};
use terrane_verify::bytes::{Rows, answer_rows, give_buffer, give_bytes, hash, text};
use terrane_verify::error::{Failure, free, give_handle, guard, handle, take, terrane_code};
use terrane_verify::verifier::radix_addresses;

use crate::store::durability;

/// The radix state of a directory. Freed by `terrane_radix_close`. Threads may share it.
#[derive(Debug)]
pub struct terrane_radix(Arc<OpenStore>);

/// A named tree of a radix state. Freed by `terrane_radix_tree_free`, before or after its state is
/// closed; the directory stays locked until then. Threads may share it.
#[derive(Debug)]
pub struct terrane_radix_tree {
    tree: Tree,
    _store: Arc<OpenStore>,
}

/// Opens the radix state of a directory, whatever its back-end, or makes one over LSM tables.
/// `durability_of_commits` is a `terrane_durability`. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_radix_open(
    dir: *const u8,
    dir_len: usize,
    durability_of_commits: u32,
    out: *mut *mut terrane_radix,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let dir = unsafe { text(dir, dir_len) }?;
        let options = OpenOptions::default().durability(durability(durability_of_commits)?);
        let store = Arc::new(options.open_or_create(Path::new(dir))?);
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_radix(store)) }
    })
}

/// Closes a radix state and frees the handle, also if the call fails. Null is nothing.
///
/// # Safety
/// `state` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_radix_close(state: *mut terrane_radix) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let Some(state) = (unsafe { take(state) }) else { return Ok(()) };
        Ok(state.0.close()?)
    })
}

/// Opens a named tree, or makes one. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_radix_tree_open(
    state: *const terrane_radix,
    name: *const u8,
    name_len: usize,
    out: *mut *mut terrane_radix_tree,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let state = unsafe { handle(state) }?;
        // SAFETY: the caller keeps the contract.
        let tree = state.0.tree_or_create(unsafe { text(name, name_len) }?)?;
        let tree = terrane_radix_tree { tree, _store: Arc::clone(&state.0) };
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, tree) }
    })
}

/// Frees a tree's handle; the tree stays. Null is nothing.
///
/// # Safety
/// `tree` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_radix_tree_free(tree: *mut terrane_radix_tree) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(tree) };
}

/// Gives the root of the empty state, 32 bytes.
///
/// # Safety
/// `root` is valid for writes of 32 bytes, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_radix_empty_root(root: *mut u8) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        unsafe { give_bytes(root, &Root::EMPTY.0) }
    })
}

/// Sets the values of `count` addresses and deletes those of `delete_count`, on top of the retained
/// root `parent`, and gives the new root. All are rows as of `terrane_batch_put_many`. An address
/// that is deleted must have a value; none is named twice. Roots have 32 bytes; `root` may be
/// `parent`.
///
/// Cost: reads the nodes on the paths, level by level, and writes the new ones.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_radix_commit(
    tree: *const terrane_radix_tree,
    parent: *const u8,
    count: usize,
    set_addresses: *const u8,
    set_offsets: *const usize,
    values: *const u8,
    value_offsets: *const usize,
    delete_count: usize,
    delete_addresses: *const u8,
    delete_offsets: *const usize,
    root: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let tree = unsafe { handle(tree) }?;
        // SAFETY: the caller keeps the contract.
        let parent = NodeHash(unsafe { hash(parent) }?);
        // SAFETY: the caller keeps the contract.
        let set = unsafe { Rows::new(count, set_addresses, set_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let values = unsafe { Rows::new(count, values, value_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let deleted = unsafe { Rows::new(delete_count, delete_addresses, delete_offsets) }?;
        if root.is_null() {
            return Err(Failure::bad_input("an out-parameter is null"));
        }

        let set = radix_addresses(set)?.into_iter().zip(values.iter());
        let mut changes: Vec<Change> =
            set.map(|(address, value)| Change::Set(address, value.to_vec())).collect();
        changes.extend(radix_addresses(deleted)?.into_iter().map(Change::Delete));
        let committed = tree.tree.commit(&parent, &changes)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_bytes(root, &committed.root.0) }
    })
}

/// Looks up `count` addresses in the state of a root: as `terrane_view_get_many`.
///
/// # Safety
/// The contract of `terrane_view_get_many`; `root` is valid for reads of 32 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_radix_get_many(
    tree: *const terrane_radix_tree,
    root: *const u8,
    count: usize,
    keys: *const u8,
    key_offsets: *const usize,
    values_out: *mut u8,
    capacity: usize,
    value_offsets: *mut usize,
    found: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let tree = unsafe { handle(tree) }?;
        // SAFETY: the caller keeps the contract.
        let root = NodeHash(unsafe { hash(root) }?);
        // SAFETY: the caller keeps the contract.
        let keys = radix_addresses(unsafe { Rows::new(count, keys, key_offsets) }?)?;
        let values = tree.tree.get(&root, &keys)?;
        // SAFETY: the caller keeps the contract.
        unsafe { answer_rows(values, (values_out, capacity), value_offsets, found) }
    })
}

/// Proves the values of `count` addresses in the state of a root, or that they have none, for
/// `terrane_radix_verify`. `compact` chooses the smaller form. If `capacity` is too small, the call
/// fails with `TERRANE_TOO_SMALL` and `*len` is how much is needed.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null; `root` for reads of 32 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_radix_prove(
    tree: *const terrane_radix_tree,
    root: *const u8,
    count: usize,
    keys: *const u8,
    key_offsets: *const usize,
    compact: bool,
    proof: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let tree = unsafe { handle(tree) }?;
        // SAFETY: the caller keeps the contract.
        let root = NodeHash(unsafe { hash(root) }?);
        // SAFETY: the caller keeps the contract.
        let keys = radix_addresses(unsafe { Rows::new(count, keys, key_offsets) }?)?;
        let form = if compact { Form::Compact } else { Form::Full };
        let made = tree.tree.prove(&root, &keys)?.to_bytes(form);
        // SAFETY: the caller keeps the contract.
        unsafe { give_buffer(proof, capacity, len, &made) }
    })
}

/// Removes a version of a tree. Nodes that no other version reaches go with it.
///
/// # Safety
/// `tree` is a handle and `root` valid for reads of 32 bytes, or either is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_radix_prune(
    tree: *const terrane_radix_tree,
    root: *const u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let tree = unsafe { handle(tree) }?;
        // SAFETY: the caller keeps the contract.
        tree.tree.prune(&NodeHash(unsafe { hash(root) }?))?;
        Ok(())
    })
}
