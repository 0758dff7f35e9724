//! Forks of tables, and differences of views.

use std::sync::Arc;

use terrane::lsm::{Change, Diff, Table, Update};
use terrane_verify::bytes::{Arena, Rows, slice_mut, text};
use terrane_verify::error::{
    Failure, free, give, give_handle, guard, handle, handle_mut, terrane_code,
};

use crate::kept::snapshot_name;
use crate::store::{terrane_store, terrane_table};
use crate::view::terrane_view;

/// A fork of a table, which goes its own way. Its entries are gone with it unless a snapshot or
/// `terrane_store_install` keeps them. Freed by `terrane_fork_free`. One thread at a time.
#[derive(Debug)]
pub struct terrane_fork(Table);

/// Makes a fork of a view. It shares all data. The caller owns `*out`.
///
/// Cost: no I/O.
///
/// # Safety
/// Pointers are valid as their types say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_view_fork(
    view: *const terrane_view,
    out: *mut *mut terrane_fork,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let fork = unsafe { handle(view) }?.0.fork()?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_fork(fork)) }
    })
}

/// Frees a fork. Null is nothing.
///
/// # Safety
/// `fork` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_fork_free(fork: *mut terrane_fork) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(fork) };
}

/// Sets the values of `count` keys of a fork: rows as of `terrane_batch_put_many`.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_fork_put_many(
    fork: *mut terrane_fork,
    count: usize,
    keys: *const u8,
    key_offsets: *const usize,
    values: *const u8,
    value_offsets: *const usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let fork = unsafe { handle_mut(fork) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let values = unsafe { Rows::new(count, values, value_offsets) }?;
        let updates: Vec<(&[u8], Update<'_>)> =
            keys.iter().zip(values.iter().map(Update::Insert)).collect();
        Ok(fork.0.write_batch(&updates)?)
    })
}

/// Removes `count` keys of a fork: rows as of `terrane_batch_delete_many`.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_fork_delete_many(
    fork: *mut terrane_fork,
    count: usize,
    keys: *const u8,
    key_offsets: *const usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let fork = unsafe { handle_mut(fork) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        let updates: Vec<(&[u8], Update<'_>)> =
            keys.iter().map(|key| (key, Update::Delete)).collect();
        Ok(fork.0.write_batch(&updates)?)
    })
}

/// Makes a view of a fork as it is now. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_fork_view(
    fork: *const terrane_fork,
    out: *mut *mut terrane_view,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let view = unsafe { handle(fork) }?.0.fork()?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_view(Arc::new(view))) }
    })
}

/// Saves a fork as a durable snapshot: as `terrane_snapshot_save`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_fork_save(
    fork: *const terrane_fork,
    name: *const u8,
    name_len: usize,
    label: *const u8,
    label_len: usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let fork = unsafe { handle(fork) }?;
        // SAFETY: the caller keeps the contract.
        let name = snapshot_name(unsafe { text(name, name_len) }?)?;
        // SAFETY: the caller keeps the contract.
        Ok(fork.0.save_snapshot(&name, unsafe { text(label, label_len) }?)?)
    })
}

/// Names a fork as a new table, durably. The fork stays and goes its own way. The caller owns
/// `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_install(
    store: *const terrane_store,
    name: *const u8,
    name_len: usize,
    fork: *const terrane_fork,
    out: *mut *mut terrane_table,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let name = unsafe { text(name, name_len) }?;
        if out.is_null() {
            return Err(Failure::bad_input("an out-parameter is null"));
        }
        // SAFETY: the caller keeps the contract.
        let table = store.0.install(name, &unsafe { handle(fork) }?.0)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_table(table)) }
    })
}

/// The keys whose values differ between two views, ascending. Freed by `terrane_diff_free`. One
/// thread at a time.
#[derive(Debug)]
pub struct terrane_diff {
    diff: Diff,
    /// A change that was read and did not fit.
    next: Option<Change>,
}

/// Begins the difference of two views of one store. Both may be freed. The caller owns `*out`.
///
/// Cost: reads nothing yet; then what the views do not share.
///
/// # Safety
/// Pointers are valid as their types say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_diff_new(
    older: *const terrane_view,
    newer: *const terrane_view,
    out: *mut *mut terrane_diff,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let older = unsafe { handle(older) }?;
        // SAFETY: the caller keeps the contract.
        let diff = older.0.diff(&unsafe { handle(newer) }?.0)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_diff { diff, next: None }) }
    })
}

/// Frees a difference. Null is nothing.
///
/// # Safety
/// `diff` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_diff_free(diff: *mut terrane_diff) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(diff) };
}

/// Writes the next changes, as many as fit and at most `rows_max`, and passes them. Gives their
/// number, which is 0 at the end only.
///
/// `values` has two rows for each change, the older value and the newer one, and `value_offsets`
/// has room for 2 `rows_max` + 1. `found` has two bytes for each change: whether each value is
/// there. `key_offsets` has room for `rows_max` + 1. If the first change alone does not fit, the
/// call fails with `TERRANE_TOO_SMALL`, passes nothing, and `key_offsets[1]` and `value_offsets[2]`
/// are how much it needs.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null; nobody else uses the difference or
/// the memory during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_diff_next_chunk(
    diff: *mut terrane_diff,
    rows_max: usize,
    keys: *mut u8,
    key_capacity: usize,
    key_offsets: *mut usize,
    values: *mut u8,
    value_capacity: usize,
    value_offsets: *mut usize,
    found: *mut u8,
    rows: *mut usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let diff = unsafe { handle_mut(diff) }?;
        let value_rows = rows_max.checked_mul(2).filter(|rows| *rows > 0);
        let (Some(value_rows), false) = (value_rows, rows.is_null()) else {
            return Err(Failure::bad_input("rows is null, or rows_max is 0"));
        };
        // SAFETY: the caller keeps the contract.
        let mut keys = unsafe { Arena::new(rows_max, keys, key_capacity, key_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let mut values = unsafe { Arena::new(value_rows, values, value_capacity, value_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let found = unsafe { slice_mut(found, value_rows) }?;

        let mut passed = 0;
        while passed < rows_max {
            let next = diff.next.take().map(Ok).or_else(|| diff.diff.next());
            let Some(change) = next.transpose()? else { break };
            let (old, new) = (change.old.value(), change.new.value());
            let value_bytes = [old, new].into_iter().flatten().map(<[u8]>::len).sum();
            let fits = keys.has_room(change.key.len()) && values.has_room(value_bytes);
            if fits || passed == 0 {
                keys.push(&change.key);
                for (value, place) in [old, new].into_iter().zip(&mut found[2 * passed..]) {
                    values.push(value.unwrap_or_default());
                    place.write(u8::from(value.is_some()));
                }
            }
            if !fits {
                diff.next = Some(change);
                if passed == 0 {
                    return Err(Failure::too_small("a change"));
                }
                break;
            }
            passed += 1;
        }
        // SAFETY: the caller keeps the contract.
        unsafe { give(rows, passed) }
    })
}
