//! Views of tables: batched lookups into the caller's memory, cursors that give chunks.

use std::ops::Bound;
use std::sync::Arc;

use terrane::lsm::{Cursor, Table, Values};
use terrane_verify::bytes::{Arena, Rows, answer_rows, end, slice};
use terrane_verify::error::{
    Failure, Outcome, free, give, give_handle, guard, handle, handle_mut, terrane_code,
};

use crate::store::terrane_table;

/// A table as of one commit, unchanged by later ones. Freed by `terrane_view_free`. Threads may
/// share it.
#[derive(Debug)]
pub struct terrane_view(pub(crate) Arc<Table>);

/// A cursor over a range of a view. Freed by `terrane_cursor_free`. One thread at a time.
#[derive(Debug)]
pub struct terrane_cursor(Cursor);

/// Makes a view of a table as of the last commit. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_table_view(
    table: *const terrane_table,
    out: *mut *mut terrane_view,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let view = unsafe { handle(table) }?.0.view()?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_view(view)) }
    })
}

/// Frees a view. Null is nothing.
///
/// # Safety
/// `view` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_view_free(view: *mut terrane_view) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(view) };
}

/// Looks rows of keys up and gives the answers.
///
/// # Safety
/// The contract of [`answer_rows`].
unsafe fn answer_keys(
    keys: Rows<'_>,
    look_up: impl FnOnce(&[&[u8]], &mut Values) -> terrane::lsm::Result<()>,
    values: (*mut u8, usize),
    offsets: *mut usize,
    found: *mut u8,
) -> Outcome<()> {
    let keys: Vec<&[u8]> = keys.iter().collect();
    // The caller tells how much there is room for, but may have more of it than is needed.
    let mut answers = Values::with_capacity(keys.len(), values.1.min(1 << 16));
    look_up(&keys, &mut answers)?;
    // SAFETY: the caller keeps the contract.
    unsafe { answer_rows(answers.iter(), values, offsets, found) }
}

/// Looks up `count` keys of a view. Keys are rows: bytes, and `count` + 1 offsets.
///
/// Writes the values one behind the other to `values`, `count` + 1 offsets to `value_offsets`, and
/// for each key 1 or 0 to `found`; an absent key has no bytes. If `capacity` is too small, the call
/// fails with `TERRANE_TOO_SMALL`, `value_offsets[count]` is how much is needed, `value_offsets`
/// and `found` are right, and the bytes of `values` are unspecified.
///
/// Cost: one read of a page for each present key that no cache has, all in flight at once.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null; nobody else uses the memory for
/// answers during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_view_get_many(
    view: *const terrane_view,
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
        let view = unsafe { handle(view) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        let look_up = |keys: &[&[u8]], answers: &mut _| view.0.get_many_into(keys, answers);
        // SAFETY: the caller keeps the contract.
        unsafe { answer_keys(keys, look_up, (values_out, capacity), value_offsets, found) }
    })
}

/// Looks up `count` keys of a table as of its last commit: as `terrane_view_get_many`.
///
/// # Safety
/// The contract of `terrane_view_get_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_table_get_many(
    table: *const terrane_table,
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
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        let look_up = |keys: &[&[u8]], answers: &mut _| table.0.get_many_into(keys, answers);
        // SAFETY: the caller keeps the contract.
        unsafe { answer_keys(keys, look_up, (values_out, capacity), value_offsets, found) }
    })
}

/// Makes a cursor over the keys of a view from `from` on and below `to`, ascending. Null for `to`
/// means to the last key. The cursor may outlive the view. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_cursor_new(
    view: *const terrane_view,
    from: *const u8,
    from_len: usize,
    to: *const u8,
    to_len: usize,
    out: *mut *mut terrane_cursor,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let view = unsafe { handle(view) }?;
        // SAFETY: the caller keeps the contract.
        let from = unsafe { slice(from, from_len) }?;
        // SAFETY: the caller keeps the contract.
        let to = unsafe { end(to, to_len) }?;
        let cursor = view.0.range::<[u8], _>((Bound::Included(from), to))?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_cursor(cursor)) }
    })
}

/// Frees a cursor. Null is nothing.
///
/// # Safety
/// `cursor` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_cursor_free(cursor: *mut terrane_cursor) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(cursor) };
}

/// Writes the next entries of a cursor, as many as fit and at most `rows_max`, and passes them.
/// Gives their number, which is 0 at the end of the range only.
///
/// Keys and values are written one behind the other, with one offset more than there are entries;
/// `key_offsets` and `value_offsets` have room for `rows_max` + 1. If the first entry alone does
/// not fit, the call fails with `TERRANE_TOO_SMALL`, passes nothing, and `key_offsets[1]` and
/// `value_offsets[1]` are how much it needs.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null; nobody else uses the cursor or the
/// memory during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_cursor_next_chunk(
    cursor: *mut terrane_cursor,
    rows_max: usize,
    keys: *mut u8,
    key_capacity: usize,
    key_offsets: *mut usize,
    values: *mut u8,
    value_capacity: usize,
    value_offsets: *mut usize,
    rows: *mut usize,
) -> terrane_code {
    // SAFETY: the caller keeps the contract.
    let fill = |cursor: &mut Cursor| unsafe {
        fill_chunk(
            cursor,
            Way::Up,
            (rows_max, rows),
            (keys, key_capacity, key_offsets),
            (values, value_capacity, value_offsets),
        )
    };
    // SAFETY: the caller keeps the contract.
    guard(|| fill(&mut unsafe { handle_mut(cursor) }?.0))
}

/// Goes behind the last entry of the range of a cursor, for `terrane_cursor_prev_chunk`. Reads
/// nothing.
///
/// # Safety
/// `cursor` is a handle that no other thread uses, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_cursor_seek_to_end(cursor: *mut terrane_cursor) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        unsafe { handle_mut(cursor) }?.0.seek_to_end();
        Ok(())
    })
}

/// Writes the entries before the position of a cursor, the nearest first, and passes them: as
/// `terrane_cursor_next_chunk` downwards.
///
/// # Safety
/// The contract of `terrane_cursor_next_chunk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_cursor_prev_chunk(
    cursor: *mut terrane_cursor,
    rows_max: usize,
    keys: *mut u8,
    key_capacity: usize,
    key_offsets: *mut usize,
    values: *mut u8,
    value_capacity: usize,
    value_offsets: *mut usize,
    rows: *mut usize,
) -> terrane_code {
    // SAFETY: the caller keeps the contract.
    let fill = |cursor: &mut Cursor| unsafe {
        fill_chunk(
            cursor,
            Way::Down,
            (rows_max, rows),
            (keys, key_capacity, key_offsets),
            (values, value_capacity, value_offsets),
        )
    };
    // SAFETY: the caller keeps the contract.
    guard(|| fill(&mut unsafe { handle_mut(cursor) }?.0))
}

/// Direction of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// Fills a chunk with entries of a cursor and passes them.
///
/// # Safety
/// The contract of [`terrane_cursor_next_chunk`].
unsafe fn fill_chunk(
    cursor: &mut Cursor,
    way: Way,
    (rows_max, rows): (usize, *mut usize),
    (keys, key_capacity, key_offsets): (*mut u8, usize, *mut usize),
    (values, value_capacity, value_offsets): (*mut u8, usize, *mut usize),
) -> Outcome<()> {
    if rows.is_null() || rows_max == 0 {
        return Err(Failure::bad_input("rows is null, or rows_max is 0"));
    }
    // SAFETY: the caller keeps the contract.
    let mut keys = unsafe { Arena::new(rows_max, keys, key_capacity, key_offsets) }?;
    // SAFETY: the caller keeps the contract.
    let mut values = unsafe { Arena::new(rows_max, values, value_capacity, value_offsets) }?;

    let mut passed = 0;
    while passed < rows_max {
        let next = if way == Way::Up { cursor.peek()? } else { cursor.peek_prev()? };
        let Some(entry) = next else { break };
        if !keys.has_room(entry.key.len()) || !values.has_room(entry.value.len()) {
            if passed > 0 {
                break;
            }
            keys.push(entry.key);
            values.push(entry.value);
            return Err(Failure::too_small("an entry"));
        }
        keys.push(entry.key);
        values.push(entry.value);
        passed += 1;
        // The entry has been read already, so that passing it cannot fail.
        if way == Way::Up {
            cursor.next_ref()?;
        } else {
            cursor.prev_ref()?;
        }
    }
    // SAFETY: the caller keeps the contract.
    unsafe { give(rows, passed) }
}
