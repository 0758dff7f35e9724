//! Merkle context stores: versioned trees with the hashes of Tezos.

use std::path::Path;
use std::sync::Arc;

use terrane::backends::BtreeIndexes;
use terrane::context::{Context, Hash, Meta, Options, Store};
use terrane::context::{Error, produce_tree_proof};
use terrane::io::{Disk, RealDisk};
use terrane_verify::bytes::{Rows, answer_rows, give_buffer, give_bytes, hash, slice, text};
use terrane_verify::error::{
    Failure, free, give_handle, guard, handle, handle_mut, take, terrane_code,
};
use terrane_verify::verifier::steps;

use crate::store::durability;

/// A context store. Freed by `terrane_context_close`. Threads may share it.
#[derive(Debug)]
pub struct terrane_context(Store);

/// A working tree, with the commit that it came from. Freed by `terrane_context_tree_free`, before
/// its store is closed. One thread at a time.
#[derive(Debug)]
pub struct terrane_context_tree(Context);

/// Opens the context store of a directory, or makes one, with the rules of Tezos and a B+tree as
/// the index of its commits. `durability_of_commits` is a `terrane_durability`. The caller owns
/// `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_context_open(
    dir: *const u8,
    dir_len: usize,
    durability_of_commits: u32,
    out: *mut *mut terrane_context,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let dir = Path::new(unsafe { text(dir, dir_len) }?);
        let options = Options::new(Arc::new(BtreeIndexes::default()));
        let options = options.durability(durability(durability_of_commits)?);
        let disk: Arc<dyn Disk> = RealDisk::auto();
        let store = match Store::open(Arc::clone(&disk), dir, &options) {
            Err(Error::NotFound { .. }) => Store::create(disk, dir, &options)?,
            opened => opened?,
        };
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_context(store)) }
    })
}

/// Closes a context store and frees the handle, also if the call fails. Null is nothing.
///
/// # Safety
/// `store` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_context_close(store: *mut terrane_context) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let Some(store) = (unsafe { take(store) }) else { return Ok(()) };
        Ok(store.0.close()?)
    })
}

/// Gives the tree of a commit, 32 bytes; null for the empty tree. `TERRANE_NOT_FOUND` if there is
/// no such commit. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types say, or null; `commit` for reads of 32 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_context_checkout(
    store: *const terrane_context,
    commit: *const u8,
    out: *mut *mut terrane_context_tree,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        let tree = if commit.is_null() {
            store.0.empty()
        } else {
            // SAFETY: the caller keeps the contract.
            let found = store.0.checkout(&Hash(unsafe { hash(commit) }?))?;
            found.ok_or_else(|| Failure::not_found("there is no such commit"))?
        };
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_context_tree(tree)) }
    })
}

/// Frees a working tree. Null is nothing.
///
/// # Safety
/// `tree` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_context_tree_free(tree: *mut terrane_context_tree) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(tree) };
}

/// Binds `count` paths to values: rows as of `terrane_batch_put_many`. A path is text such as
/// `data/contracts/a`. If the call fails, the paths before the failing one are bound.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_context_put_many(
    tree: *mut terrane_context_tree,
    count: usize,
    paths: *const u8,
    path_offsets: *const usize,
    values: *const u8,
    value_offsets: *const usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let tree = unsafe { handle_mut(tree) }?;
        // SAFETY: the caller keeps the contract.
        let paths = unsafe { Rows::new(count, paths, path_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let values = unsafe { Rows::new(count, values, value_offsets) }?;
        for (path, value) in paths.iter().zip(values.iter()) {
            tree.0.add(&steps(path), value.to_vec())?;
        }
        Ok(())
    })
}

/// Unbinds `count` paths, values and whole trees alike: rows as of `terrane_context_put_many`. An
/// absent path is no error.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_context_delete_many(
    tree: *mut terrane_context_tree,
    count: usize,
    paths: *const u8,
    path_offsets: *const usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let tree = unsafe { handle_mut(tree) }?;
        // SAFETY: the caller keeps the contract.
        let paths = unsafe { Rows::new(count, paths, path_offsets) }?;
        for path in paths.iter() {
            tree.0.remove(&steps(path))?;
        }
        Ok(())
    })
}

/// Looks up the values of `count` paths: as `terrane_view_get_many`. A directory has no value.
///
/// # Safety
/// The contract of `terrane_view_get_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_context_get_many(
    tree: *const terrane_context_tree,
    count: usize,
    paths: *const u8,
    path_offsets: *const usize,
    values_out: *mut u8,
    capacity: usize,
    value_offsets: *mut usize,
    found: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let tree = unsafe { handle(tree) }?;
        // SAFETY: the caller keeps the contract.
        let paths = unsafe { Rows::new(count, paths, path_offsets) }?;
        let values: Result<Vec<_>, _> =
            paths.iter().map(|path| tree.0.tree().find(&steps(path))).collect();
        // SAFETY: the caller keeps the contract.
        unsafe { answer_rows(values?, (values_out, capacity), value_offsets, found) }
    })
}

/// Gives the hash of a working tree, 32 bytes: the root that proofs are checked against.
///
/// # Safety
/// `tree` is a handle and `root` valid for writes of 32 bytes, or either is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_context_root(
    tree: *const terrane_context_tree,
    root: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let found = unsafe { handle(tree) }?.0.tree().hash();
        // SAFETY: the caller keeps the contract.
        unsafe { give_bytes(root, &found.0) }
    })
}

/// Commits a working tree and gives the hash of the commit, 32 bytes. The next commit of the tree
/// is a child of this one. `date` is in seconds since the Unix epoch.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_context_commit(
    store: *const terrane_context,
    tree: *mut terrane_context_tree,
    date: i64,
    author: *const u8,
    author_len: usize,
    message: *const u8,
    message_len: usize,
    commit: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let tree = unsafe { handle_mut(tree) }?;
        // SAFETY: the caller keeps the contract.
        let author = unsafe { slice(author, author_len) }?;
        // SAFETY: the caller keeps the contract.
        let message = unsafe { slice(message, message_len) }?;
        let made = store.0.commit(&tree.0, &Meta { date, author, message })?;
        tree.0.advance(made);
        // SAFETY: the caller keeps the contract.
        unsafe { give_bytes(commit, &made.0) }
    })
}

/// Proves the values of `count` paths, or that they have none, for `terrane_context_verify`. If
/// `capacity` is too small, the call fails with `TERRANE_TOO_SMALL` and `*len` is how much is
/// needed.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_context_prove(
    tree: *const terrane_context_tree,
    count: usize,
    paths: *const u8,
    path_offsets: *const usize,
    proof: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let tree = unsafe { handle(tree) }?;
        // SAFETY: the caller keeps the contract.
        let paths = unsafe { Rows::new(count, paths, path_offsets) }?;
        let made = produce_tree_proof(tree.0.tree(), |tree| {
            for path in paths.iter() {
                tree.find(&steps(path))?;
            }
            Ok((tree, ()))
        });
        let (made, ()) = made.map_err(|error| Failure::proof(&error))?;
        let made = made.encode().map_err(|error| Failure::proof(&error))?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_buffer(proof, capacity, len, &made) }
    })
}
