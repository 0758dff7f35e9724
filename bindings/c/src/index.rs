//! B+tree indexes.

use std::ops::Bound;
use std::path::Path;

use terrane::btree::{Config, Cursor, Index, Update};
use terrane::io::RealDisk;
use terrane_verify::bytes::{Arena, Rows, answer_rows, end, slice, text};
use terrane_verify::error::{
    Failure, free, give, give_handle, guard, handle, handle_mut, take, terrane_code,
};

/// A B+tree index: a map on disk for one writer and many reader processes. Freed by
/// `terrane_index_close`. Threads may share it.
#[derive(Debug)]
pub struct terrane_index(Index);

/// Opens the index of a directory for writing, or makes one for keys and values of any length.
/// `memory_bytes` is for its pages and updates; 0 for the default. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_index_open(
    dir: *const u8,
    dir_len: usize,
    memory_bytes: usize,
    out: *mut *mut terrane_index,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let dir = unsafe { text(dir, dir_len) }?;
        let mut config = Config::variable();
        if memory_bytes > 0 {
            config = config.memory_bytes(memory_bytes);
        }
        let index = Index::open_or_create(RealDisk::auto(), Path::new(dir), &config)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_index(index)) }
    })
}

/// Flushes and closes an index and frees the handle, also if the call fails. Null is nothing.
///
/// # Safety
/// `index` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_index_close(index: *mut terrane_index) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let Some(index) = (unsafe { take(index) }) else { return Ok(()) };
        Ok(index.0.close()?)
    })
}

/// Sets the values of `count` keys, all or none: rows as of `terrane_batch_put_many`. The update is
/// visible at once, and durable after `terrane_index_flush`.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_index_put_many(
    index: *const terrane_index,
    count: usize,
    keys: *const u8,
    key_offsets: *const usize,
    values: *const u8,
    value_offsets: *const usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let index = unsafe { handle(index) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let values = unsafe { Rows::new(count, values, value_offsets) }?;
        let entries: Vec<(&[u8], &[u8])> = keys.iter().zip(values.iter()).collect();
        Ok(index.0.replace_many(&entries)?)
    })
}

/// Removes `count` keys, all or none, and gives how many were there. `removed` may be null.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_index_delete_many(
    index: *const terrane_index,
    count: usize,
    keys: *const u8,
    key_offsets: *const usize,
    removed: *mut usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let index = unsafe { handle(index) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        let updates: Vec<Update<'_>> = keys.iter().map(Update::Remove).collect();
        let count = index.0.apply(&updates)?;
        if removed.is_null() {
            return Ok(());
        }
        // SAFETY: the caller keeps the contract.
        unsafe { give(removed, count) }
    })
}

/// Looks up `count` keys: as `terrane_view_get_many`.
///
/// # Safety
/// The contract of `terrane_view_get_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_index_get_many(
    index: *const terrane_index,
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
        let index = unsafe { handle(index) }?;
        // SAFETY: the caller keeps the contract.
        let keys: Vec<&[u8]> = unsafe { Rows::new(count, keys, key_offsets) }?.iter().collect();
        let values = index.0.find_many(&keys)?;
        // SAFETY: the caller keeps the contract.
        unsafe { answer_rows(values, (values_out, capacity), value_offsets, found) }
    })
}

/// Gives the number of entries. Costs nothing.
///
/// # Safety
/// Pointers are valid as their types say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_index_len(
    index: *const terrane_index,
    out: *mut u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let len = unsafe { handle(index) }?.0.len()?;
        // SAFETY: the caller keeps the contract.
        unsafe { give(out, len) }
    })
}

/// Shows all updates to readers in other processes; with `sync`, they survive a loss of power, too.
///
/// # Safety
/// `index` is a handle, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_index_flush(
    index: *const terrane_index,
    sync: bool,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        Ok(unsafe { handle(index) }?.0.flush(sync)?)
    })
}

/// A cursor over a range of an index as it was when the cursor was made. Freed by
/// `terrane_index_cursor_free`. One thread at a time.
#[derive(Debug)]
pub struct terrane_index_cursor {
    cursor: Cursor,
    /// An entry that was read and did not fit.
    next: Option<(Vec<u8>, Vec<u8>)>,
}

/// Makes a cursor over the keys from `from` on and below `to`, ascending. Null for `to` means to
/// the last key. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_index_cursor_new(
    index: *const terrane_index,
    from: *const u8,
    from_len: usize,
    to: *const u8,
    to_len: usize,
    out: *mut *mut terrane_index_cursor,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let index = unsafe { handle(index) }?;
        // SAFETY: the caller keeps the contract.
        let from = unsafe { slice(from, from_len) }?;
        // SAFETY: the caller keeps the contract.
        let to = unsafe { end(to, to_len) }?;
        let cursor = index.0.range::<&[u8]>((Bound::Included(from), to))?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_index_cursor { cursor, next: None }) }
    })
}

/// Frees a cursor. Null is nothing.
///
/// # Safety
/// `cursor` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_index_cursor_free(cursor: *mut terrane_index_cursor) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(cursor) };
}

/// Writes the next entries and passes them: as `terrane_cursor_next_chunk`.
///
/// # Safety
/// The contract of `terrane_cursor_next_chunk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_index_cursor_next_chunk(
    cursor: *mut terrane_index_cursor,
    rows_max: usize,
    keys: *mut u8,
    key_capacity: usize,
    key_offsets: *mut usize,
    values: *mut u8,
    value_capacity: usize,
    value_offsets: *mut usize,
    rows: *mut usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let cursor = unsafe { handle_mut(cursor) }?;
        if rows.is_null() || rows_max == 0 {
            return Err(Failure::bad_input("rows is null, or rows_max is 0"));
        }
        // SAFETY: the caller keeps the contract.
        let mut keys = unsafe { Arena::new(rows_max, keys, key_capacity, key_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let mut values = unsafe { Arena::new(rows_max, values, value_capacity, value_offsets) }?;

        let mut passed = 0;
        while passed < rows_max {
            let kept = cursor.next.take();
            let entry = match &kept {
                Some((key, value)) => Some((key.as_slice(), value.as_slice())),
                None => cursor.cursor.next_ref()?,
            };
            let Some((key, value)) = entry else { break };
            let fits = keys.has_room(key.len()) && values.has_room(value.len());
            if fits || passed == 0 {
                keys.push(key);
                values.push(value);
            }
            if !fits {
                let entry = (key.to_vec(), value.to_vec());
                cursor.next = Some(entry);
                if passed == 0 {
                    return Err(Failure::too_small("an entry"));
                }
                break;
            }
            passed += 1;
        }
        // SAFETY: the caller keeps the contract.
        unsafe { give(rows, passed) }
    })
}
