//! Write batches and their commits.

use std::iter;
use std::ops::Bound;

use terrane::lsm::{NamedTable, Ticket, Update, WriteBatch};
use terrane_verify::bytes::{Rows, end, slice};
use terrane_verify::error::{
    Failure, Outcome, free, give, give_handle, guard, handle, handle_mut, terrane_code,
};

use crate::store::{terrane_store, terrane_table};

/// Updates of any tables of one store, which own their bytes. Freed by `terrane_batch_free`. One
/// thread at a time. A batch that holds updates keeps their store open.
#[derive(Debug)]
pub struct terrane_batch(WriteBatch);

/// Makes an empty batch. The caller owns `*out`.
///
/// # Safety
/// `out` is valid for a write, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_batch_new(out: *mut *mut terrane_batch) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_batch(WriteBatch::new())) }
    })
}

/// Frees a batch; its updates are gone. Null is nothing.
///
/// # Safety
/// `batch` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_batch_free(batch: *mut terrane_batch) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(batch) };
}

/// Removes all updates and keeps the memory for others.
///
/// # Safety
/// `batch` is a handle that no other thread uses, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_batch_clear(batch: *mut terrane_batch) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        unsafe { handle_mut(batch) }?.0.clear();
        Ok(())
    })
}

/// Sets the values of `count` keys. Keys and values are rows: bytes, and `count` + 1 offsets.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null; no other thread uses `batch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_batch_put_many(
    batch: *mut terrane_batch,
    table: *const terrane_table,
    count: usize,
    keys: *const u8,
    key_offsets: *const usize,
    values: *const u8,
    value_offsets: *const usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let batch = unsafe { handle_mut(batch) }?;
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let values = unsafe { Rows::new(count, values, value_offsets) }?;
        for (key, value) in keys.iter().zip(values.iter()) {
            batch.0.insert(&table.0, key, value);
        }
        Ok(())
    })
}

/// Removes `count` keys, rows as of `terrane_batch_put_many`. An absent key is no error.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_batch_delete_many(
    batch: *mut terrane_batch,
    table: *const terrane_table,
    count: usize,
    keys: *const u8,
    key_offsets: *const usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let batch = unsafe { handle_mut(batch) }?;
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        for key in keys.iter() {
            batch.0.delete(&table.0, key);
        }
        Ok(())
    })
}

/// Kinds of updates of `terrane_batch_update_many`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum terrane_update {
    /// Remove the key; the value means nothing.
    TERRANE_DELETE = 0,
    /// Set the value of the key.
    TERRANE_PUT = 1,
    /// Remove all keys from the key on that are below the value.
    TERRANE_DELETE_RANGE = 2,
    /// Remove all keys from the key on; the value means nothing.
    TERRANE_DELETE_FROM = 3,
}

/// Rows of updates as a caller gives them: a kind, a key and a value each.
#[derive(Debug, Clone, Copy)]
struct Updates<'a> {
    kinds: &'a [u8],
    keys: Rows<'a>,
    values: Rows<'a>,
}

impl<'a> Updates<'a> {
    /// Borrows `count` updates.
    ///
    /// # Safety
    /// `kinds` is valid for reads of `count` bytes while the result lives; keys and values keep the
    /// contract of [`Rows::new`].
    unsafe fn new(
        count: usize,
        kinds: *const u8,
        (keys, key_offsets): (*const u8, *const usize),
        (values, value_offsets): (*const u8, *const usize),
    ) -> Outcome<Self> {
        // SAFETY: the caller keeps the contract.
        let kinds = unsafe { slice(kinds, count) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let values = unsafe { Rows::new(count, values, value_offsets) }?;
        if let Some(kind) = kinds.iter().find(|kind| **kind > 3) {
            return Err(Failure::bad_input(format!("{kind} is not a terrane_update")));
        }
        Ok(Self { kinds, keys, values })
    }

    /// The updates of one table in the caller's memory: a commit copies them from there.
    fn entries(self) -> Vec<(&'a [u8], Update<'a>)> {
        let rows = self.kinds.iter().zip(self.keys.iter()).zip(self.values.iter());
        let updates = rows.filter_map(|((kind, key), value)| {
            let update = match kind {
                0 => Update::Delete,
                1 => Update::Insert(value),
                2 if value > key => Update::DeleteRange(Some(value)),
                2 => return None, // an empty range
                _ => Update::DeleteRange(None),
            };
            Some((key, update))
        });
        let mut entries = Vec::with_capacity(self.kinds.len());
        entries.extend(updates);
        entries
    }

    /// Adds the updates, in their order, to a batch; `tables` has the table of each.
    fn add_to<'b>(self, batch: &mut WriteBatch, tables: impl Iterator<Item = &'b NamedTable>) {
        let rows = self.kinds.iter().zip(self.keys.iter()).zip(self.values.iter());
        for (((kind, key), value), table) in rows.zip(tables) {
            let from = Bound::Included(key);
            match kind {
                0 => batch.delete(table, key),
                1 => batch.insert(table, key, value),
                2 if value > key => {
                    batch.delete_range::<[u8], _>(table, (from, Bound::Excluded(value)));
                }
                2 => {} // an empty range
                _ => batch.delete_range::<[u8], _>(table, (from, Bound::Unbounded)),
            }
        }
    }
}

/// Adds `count` updates of mixed kinds to a batch, in their order: for each a byte of `kinds`, a
/// `terrane_update`, and rows of keys and values as of `terrane_batch_put_many`.
///
/// # Safety
/// The contract of `terrane_batch_put_many`; `kinds` is valid for `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_batch_update_many(
    batch: *mut terrane_batch,
    table: *const terrane_table,
    count: usize,
    kinds: *const u8,
    keys: *const u8,
    key_offsets: *const usize,
    values: *const u8,
    value_offsets: *const usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let batch = unsafe { handle_mut(batch) }?;
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        let (keys, values) = ((keys, key_offsets), (values, value_offsets));
        // SAFETY: the caller keeps the contract.
        let updates = unsafe { Updates::new(count, kinds, keys, values) }?;
        updates.add_to(&mut batch.0, iter::repeat(&table.0));
        Ok(())
    })
}

/// Commits `count` updates of one table, as a batch of `terrane_batch_update_many` in one call, and
/// gives the number of the commit. `commit` may be null.
///
/// # Safety
/// The contract of `terrane_batch_update_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_table_update_many(
    store: *const terrane_store,
    table: *const terrane_table,
    count: usize,
    kinds: *const u8,
    keys: *const u8,
    key_offsets: *const usize,
    values: *const u8,
    value_offsets: *const usize,
    commit: *mut u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        let (keys, values) = ((keys, key_offsets), (values, value_offsets));
        // SAFETY: the caller keeps the contract.
        let updates = unsafe { Updates::new(count, kinds, keys, values) }?;
        let ticket = store.0.commit(&[(&table.0, updates.entries().as_slice())])?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_commit(commit, &ticket) }
    })
}

/// Commits `count` updates of `table_count` tables in one call, all of them or nothing, and gives
/// the number of the commit. `table_of` has the place of each update's table in `tables`; null
/// means the first. Kinds and rows are as of `terrane_batch_update_many`. If `last_commit` is not
/// null, the call fails with `TERRANE_CONFLICT` once a later commit is there. `commit` may be null.
///
/// # Safety
/// The contract of `terrane_batch_update_many`; `tables` is valid for `table_count` handles,
/// `table_of` for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_update_many(
    store: *const terrane_store,
    table_count: usize,
    tables: *const *const terrane_table,
    count: usize,
    table_of: *const u32,
    kinds: *const u8,
    keys: *const u8,
    key_offsets: *const usize,
    values: *const u8,
    value_offsets: *const usize,
    last_commit: *const u64,
    commit: *mut u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let handles = unsafe { slice(tables, table_count) }?;
        let mut tables = Vec::with_capacity(table_count);
        for table in handles {
            // SAFETY: the caller keeps the contract.
            tables.push(&unsafe { handle(*table) }?.0);
        }
        let (keys, values) = ((keys, key_offsets), (values, value_offsets));
        // SAFETY: the caller keeps the contract.
        let updates = unsafe { Updates::new(count, kinds, keys, values) }?;

        let mut batch = WriteBatch::new();
        if table_of.is_null() {
            let first = tables.first().copied().filter(|_| count > 0);
            if count > 0 && first.is_none() {
                return Err(Failure::bad_input("updates of no table"));
            }
            if let Some(table) = first.filter(|_| last_commit.is_null()) {
                let ticket = store.0.commit(&[(table, updates.entries().as_slice())])?;
                // SAFETY: the caller keeps the contract.
                return unsafe { give_commit(commit, &ticket) };
            }
            updates.add_to(&mut batch, first.into_iter().cycle());
        } else {
            // SAFETY: the caller keeps the contract.
            let table_of = unsafe { slice(table_of, count) }?;
            if table_of.iter().any(|place| *place as usize >= tables.len()) {
                return Err(Failure::bad_input("a table of an update is not among the tables"));
            }
            updates.add_to(&mut batch, table_of.iter().map(|place| tables[*place as usize]));
        }

        // SAFETY: null, or valid by the caller's contract.
        let ticket = match unsafe { last_commit.as_ref() } {
            Some(last) => store.0.write_if(&batch, *last)?,
            None => store.0.write(&batch)?,
        };
        // SAFETY: the caller keeps the contract.
        unsafe { give_commit(commit, &ticket) }
    })
}

/// Removes all keys from `from` on and below `to`, at the cost of one update. Null for `to` means
/// to the last key.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_batch_delete_range(
    batch: *mut terrane_batch,
    table: *const terrane_table,
    from: *const u8,
    from_len: usize,
    to: *const u8,
    to_len: usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let batch = unsafe { handle_mut(batch) }?;
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        let from = Bound::Included(unsafe { slice(from, from_len) }?);
        // SAFETY: the caller keeps the contract.
        let to = unsafe { end(to, to_len) }?;
        batch.0.delete_range::<[u8], _>(&table.0, (from, to));
        Ok(())
    })
}

/// Sets the value of one key.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_batch_put(
    batch: *mut terrane_batch,
    table: *const terrane_table,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let batch = unsafe { handle_mut(batch) }?;
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        let key = unsafe { slice(key, key_len) }?;
        // SAFETY: the caller keeps the contract.
        let value = unsafe { slice(value, value_len) }?;
        batch.0.insert(&table.0, key, value);
        Ok(())
    })
}

/// Removes one key. An absent key is no error.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_batch_delete(
    batch: *mut terrane_batch,
    table: *const terrane_table,
    key: *const u8,
    key_len: usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let batch = unsafe { handle_mut(batch) }?;
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        batch.0.delete(&table.0, unsafe { slice(key, key_len) }?);
        Ok(())
    })
}

/// Gives the number of a commit to a caller who wants it.
///
/// # Safety
/// The contract of [`give`].
pub(crate) unsafe fn give_commit(out: *mut u64, ticket: &Ticket) -> Outcome<()> {
    if out.is_null() {
        return Ok(());
    }
    // SAFETY: the caller keeps the contract.
    unsafe { give(out, ticket.commit()) }
}

/// Commits a batch, all of it or nothing, with the store's durability, and gives the number of the
/// commit. The batch stays as it is. With `TERRANE_GROUP`, `terrane_store_sync_to` waits for the
/// commit. `commit` may be null.
///
/// # Safety
/// Pointers are valid as their types say, or null; no other thread uses `batch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_write(
    store: *const terrane_store,
    batch: *const terrane_batch,
    commit: *mut u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let ticket = store.0.write(&unsafe { handle(batch) }?.0)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_commit(commit, &ticket) }
    })
}

/// Commits like `terrane_store_write` if no commit came after `last_commit`; `TERRANE_CONFLICT`
/// otherwise.
///
/// # Safety
/// The contract of `terrane_store_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_write_if(
    store: *const terrane_store,
    batch: *const terrane_batch,
    last_commit: u64,
    commit: *mut u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let ticket = store.0.write_if(&unsafe { handle(batch) }?.0, last_commit)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_commit(commit, &ticket) }
    })
}

/// Gives the number of updates in a batch.
///
/// # Safety
/// Pointers are valid as their types say, or null; no other thread changes `batch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_batch_len(
    batch: *const terrane_batch,
    out: *mut usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let len = unsafe { handle(batch) }?.0.len();
        // SAFETY: the caller keeps the contract.
        unsafe { give(out, len) }
    })
}
