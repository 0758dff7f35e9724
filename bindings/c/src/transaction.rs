//! Optimistic transactions.

use terrane::lsm::{Lookup, Transaction};
use terrane_verify::bytes::{Rows, answer_rows};
use terrane_verify::error::{
    Failure, Outcome, free, give_handle, guard, handle, take, terrane_code,
};

use crate::batch::give_commit;
use crate::store::{terrane_store, terrane_table};

/// A transaction: reads of one moment, and writes. Ended by `terrane_transaction_commit` or
/// `terrane_transaction_rollback`. One thread at a time.
#[derive(Debug)]
pub struct terrane_transaction(Transaction);

/// Begins a transaction at the last commit. Tables that are made later are not seen. The caller
/// owns `*out`.
///
/// # Safety
/// Pointers are valid as their types say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_transaction_begin(
    store: *const terrane_store,
    out: *mut *mut terrane_transaction,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let transaction = unsafe { handle(store) }?.0.transaction()?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_transaction(transaction)) }
    })
}

/// Looks up `count` keys as the transaction sees them, its own writes included: as
/// `terrane_view_get_many`. The commit fails if another commit has changed any of them.
///
/// # Safety
/// The contract of `terrane_view_get_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_transaction_get_many(
    transaction: *const terrane_transaction,
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
        let transaction = unsafe { handle(transaction) }?;
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        let keys: Vec<&[u8]> = keys.iter().collect();
        let lookups = transaction.0.get_many(&table.0, &keys)?;
        let answers = lookups.iter().map(Lookup::value);
        // SAFETY: the caller keeps the contract.
        unsafe { answer_rows(answers, (values_out, capacity), value_offsets, found) }
    })
}

/// Sets the values of `count` keys: rows as of `terrane_batch_put_many`.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_transaction_put_many(
    transaction: *const terrane_transaction,
    table: *const terrane_table,
    count: usize,
    keys: *const u8,
    key_offsets: *const usize,
    values: *const u8,
    value_offsets: *const usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let transaction = unsafe { handle(transaction) }?;
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let values = unsafe { Rows::new(count, values, value_offsets) }?;
        for (key, value) in keys.iter().zip(values.iter()) {
            transaction.0.insert(&table.0, key, value)?;
        }
        Ok(())
    })
}

/// Removes `count` keys: rows as of `terrane_batch_delete_many`.
///
/// # Safety
/// The contract of `terrane_batch_put_many`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_transaction_delete_many(
    transaction: *const terrane_transaction,
    table: *const terrane_table,
    count: usize,
    keys: *const u8,
    key_offsets: *const usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let transaction = unsafe { handle(transaction) }?;
        // SAFETY: the caller keeps the contract.
        let table = unsafe { handle(table) }?;
        // SAFETY: the caller keeps the contract.
        let keys = unsafe { Rows::new(count, keys, key_offsets) }?;
        for key in keys.iter() {
            transaction.0.delete(&table.0, key)?;
        }
        Ok(())
    })
}

/// Commits and frees a transaction, also if the call fails, and gives the number of the commit.
/// `TERRANE_CONFLICT` if another commit has changed what was read: begin anew. `commit` may be
/// null.
///
/// # Safety
/// `transaction` is a handle that nobody uses during or after the call, or null; `commit` is valid
/// for a write, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_transaction_commit(
    transaction: *mut terrane_transaction,
    commit: *mut u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let transaction: Outcome<_> =
            unsafe { take(transaction) }.ok_or_else(|| Failure::bad_input("a handle is null"));
        let ticket = transaction?.0.commit()?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_commit(commit, &ticket) }
    })
}

/// Frees a transaction; its writes are gone. Null is nothing.
///
/// # Safety
/// `transaction` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_transaction_rollback(transaction: *mut terrane_transaction) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(transaction) };
}
