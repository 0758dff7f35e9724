//! Snapshots of tables, and versions of all tables.

use std::sync::Arc;

use terrane::lsm::SnapshotName;
use terrane_verify::bytes::{slice_mut, text};
use terrane_verify::error::{Failure, Outcome, give, give_handle, guard, handle, terrane_code};

use crate::store::{terrane_store, terrane_table};
use crate::view::terrane_view;

pub(crate) fn snapshot_name(name: &str) -> Outcome<SnapshotName> {
    Ok(SnapshotName::new(name)?)
}

/// Saves a table as a durable snapshot, which `terrane_snapshot_open` opens with the same label.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_snapshot_save(
    table: *const terrane_table,
    name: *const u8,
    name_len: usize,
    label: *const u8,
    label_len: usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        let name = snapshot_name(unsafe { text(name, name_len) }?)?;
        // SAFETY: the caller keeps the contract.
        let label = unsafe { text(label, label_len) }?;
        Ok(table.0.save_snapshot(&name, label)?)
    })
}

/// Opens a snapshot as a view. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_snapshot_open(
    store: *const terrane_store,
    name: *const u8,
    name_len: usize,
    label: *const u8,
    label_len: usize,
    out: *mut *mut terrane_view,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let name = snapshot_name(unsafe { text(name, name_len) }?)?;
        // SAFETY: the caller keeps the contract.
        let label = unsafe { text(label, label_len) }?;
        let table = store.0.session().open_snapshot(&name, label)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_view(Arc::new(table))) }
    })
}

/// Deletes a snapshot. Views of it stay.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_snapshot_delete(
    store: *const terrane_store,
    name: *const u8,
    name_len: usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let name = snapshot_name(unsafe { text(name, name_len) }?)?;
        Ok(store.0.session().delete_snapshot(&name)?)
    })
}

/// Retains all tables as of the last commit and gives the number of the version. A null `name`
/// makes a version without a name.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_version_retain(
    store: *const terrane_store,
    name: *const u8,
    name_len: usize,
    number: *mut u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        if number.is_null() {
            return Err(Failure::bad_input("an out-parameter is null"));
        }
        let name = if name.is_null() {
            None
        } else {
            // SAFETY: the caller keeps the contract.
            Some(snapshot_name(unsafe { text(name, name_len) }?)?)
        };
        let retained = store.0.retain(name.as_ref())?;
        // SAFETY: the caller keeps the contract.
        unsafe { give(number, retained) }
    })
}

/// Releases a version. Views of it stay.
///
/// # Safety
/// `store` is a handle, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_version_release(
    store: *const terrane_store,
    number: u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        Ok(unsafe { handle(store) }?.0.release(number)?)
    })
}

/// Gives the numbers of all versions, oldest first, and how many there are in `*count`. If
/// `capacity` is too small, the call fails with `TERRANE_TOO_SMALL` and `*count` is right.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_version_list(
    store: *const terrane_store,
    numbers: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let versions = unsafe { handle(store) }?.0.versions()?;
        // SAFETY: the caller keeps the contract.
        let numbers = unsafe { slice_mut(numbers, capacity) }?;
        // SAFETY: the caller keeps the contract.
        unsafe { give(count, versions.len()) }?;
        if versions.len() > numbers.len() {
            return Err(Failure::too_small("numbers"));
        }
        for (place, version) in numbers.iter_mut().zip(&versions) {
            place.write(version.number);
        }
        Ok(())
    })
}

/// Opens a table of a version as a view. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_version_view(
    store: *const terrane_store,
    number: u64,
    table: *const u8,
    table_len: usize,
    out: *mut *mut terrane_view,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let table = unsafe { text(table, table_len) }?;
        let view = store.0.version(number)?.table(table)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_view(view)) }
    })
}

/// Makes all tables what they were in a version, as one commit, and gives its number. `commit` may
/// be null.
///
/// # Safety
/// Pointers are valid as their types say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_roll_back(
    store: *const terrane_store,
    number: u64,
    commit: *mut u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let made = unsafe { handle(store) }?.0.roll_back(number)?;
        if commit.is_null() {
            return Ok(());
        }
        // SAFETY: the caller keeps the contract.
        unsafe { give(commit, made) }
    })
}
