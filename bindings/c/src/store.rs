//! Stores, named tables and commits.

use terrane::lsm::{Durability, NamedTable, Store, StoreOptions, TableConfig, TableName};
use terrane_verify::bytes::text;
use terrane_verify::error::{
    Failure, Outcome, free, give, give_handle, guard, handle, take, terrane_code,
};

/// An open store. Freed by `terrane_store_close`. Threads may share it.
#[derive(Debug)]
pub struct terrane_store(pub(crate) Store);

/// A named table of a store. Freed by `terrane_table_free`, before or after its store is closed.
/// Threads may share it.
#[derive(Debug)]
pub struct terrane_table(pub(crate) NamedTable);

/// Failures that a commit survives, weakest first.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum terrane_durability {
    /// Nothing, until a checkpoint. As the default of a store: no log is written.
    TERRANE_NONE = 0,
    /// The end of the process.
    TERRANE_BUFFERED = 1,
    /// A loss of power, once `terrane_store_sync_to` has waited for the commit; commits share an
    /// fsync.
    TERRANE_GROUP = 2,
    /// A loss of power, when the call returns.
    TERRANE_EACH = 3,
}

/// Number of a durability, as C passes one: any number.
pub(crate) fn durability(number: u32) -> Outcome<Durability> {
    match number {
        0 => Ok(Durability::None),
        1 => Ok(Durability::Buffered),
        2 => Ok(Durability::Group),
        3 => Ok(Durability::Each),
        _ => Err(Failure::bad_input(format!("{number} is not a terrane_durability"))),
    }
}

/// Options of a store. Begin with `terrane_options_default`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct terrane_options {
    /// Whether to create a missing directory.
    pub create_dir: bool,
    /// Default durability of commits: a `terrane_durability`.
    pub durability: u32,
    /// Bytes for write buffers, filters, indexes and cached pages of all tables; 0 for each table's
    /// own.
    pub memory_budget: u64,
}

/// Returns the options that `terrane_store_open` takes without any.
#[unsafe(no_mangle)]
pub extern "C" fn terrane_options_default() -> terrane_options {
    terrane_options {
        create_dir: false,
        durability: terrane_durability::TERRANE_GROUP as u32,
        memory_budget: 0,
    }
}

/// Opens the store in a directory, or creates one in an empty directory. `options` may be null.
/// The caller owns `*out`.
///
/// Cost: reads the manifest and the log since the last checkpoint.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_open(
    dir: *const u8,
    dir_len: usize,
    options: *const terrane_options,
    out: *mut *mut terrane_store,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let dir = unsafe { text(dir, dir_len) }?;
        // SAFETY: null, or valid by the caller's contract.
        let given = unsafe { options.as_ref() }.copied();
        let given = given.unwrap_or_else(|| terrane_options_default());
        let mut options = StoreOptions::default().durability(durability(given.durability)?);
        if given.create_dir {
            options = options.create_dir();
        }
        if given.memory_budget > 0 {
            options = options.memory_budget(given.memory_budget);
        }
        let store = Store::open_dir(dir, &options)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_store(store)) }
    })
}

/// Closes a store in good order and frees the handle, also if the call fails. Commits that were not
/// durable are, unless it fails. Tables, views and cursors of the store answer `TERRANE_CLOSED`
/// from then on and are still to be freed. Null is nothing.
///
/// # Safety
/// `store` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_close(store: *mut terrane_store) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let Some(store) = (unsafe { take(store) }) else { return Ok(()) };
        Ok(store.0.close()?)
    })
}

/// Writes all tables to disk and lets go of the log.
///
/// # Safety
/// `store` is a handle, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_checkpoint(store: *const terrane_store) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        Ok(unsafe { handle(store) }?.0.checkpoint()?)
    })
}

/// Waits until a commit survives a loss of power, with an fsync that all share who wait.
///
/// # Safety
/// `store` is a handle, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_sync_to(
    store: *const terrane_store,
    commit: u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        Ok(unsafe { handle(store) }?.0.sync_to(commit)?)
    })
}

/// Gives the number of the last commit.
///
/// # Safety
/// `store` is a handle and `out` valid for a write, or either is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_last_commit(
    store: *const terrane_store,
    out: *mut u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let commit = unsafe { handle(store) }?.0.last_commit();
        // SAFETY: the caller keeps the contract.
        unsafe { give(out, commit) }
    })
}

pub(crate) fn table_name(name: &str) -> Outcome<TableName> {
    Ok(TableName::new(name)?)
}

/// Opens a named table; `create` makes a missing one. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_table_open(
    store: *const terrane_store,
    name: *const u8,
    name_len: usize,
    create: bool,
    out: *mut *mut terrane_table,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let name = table_name(unsafe { text(name, name_len) }?)?;
        let table = if create {
            store.0.table_or_create(&name, &TableConfig::default())?
        } else {
            store.0.table(&name)?
        };
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_table(table)) }
    })
}

/// Removes a named table with its entries, as a commit of its own.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_table_drop(
    store: *const terrane_store,
    name: *const u8,
    name_len: usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let name = table_name(unsafe { text(name, name_len) }?)?;
        Ok(store.0.drop_table(&name)?)
    })
}

/// Frees a table's handle; the table stays. Null is nothing.
///
/// # Safety
/// `table` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_table_free(table: *mut terrane_table) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(table) };
}
