//! Lists and changes of tables, backups, digests, statistics.

use terrane::lsm::BackupPlace;
use terrane_verify::bytes::{give_buffer, give_bytes, text};
use terrane_verify::error::{give, guard, handle, terrane_code};

use crate::store::{table_name, terrane_store, terrane_table};
use crate::view::terrane_view;

/// Gives the names of all tables, sorted, each followed by a zero byte, and the bytes of all in
/// `*len`. If `capacity` is too small, the call fails with `TERRANE_TOO_SMALL` and `*len` is right.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_table_list(
    store: *const terrane_store,
    names: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let tables = unsafe { handle(store) }?.0.tables()?;
        let mut all = Vec::new();
        for table in &tables {
            all.extend_from_slice(table.name.as_str().as_bytes());
            all.push(0);
        }
        // SAFETY: the caller keeps the contract.
        unsafe { give_buffer(names, capacity, len, &all) }
    })
}

/// Renames a table. Handles of the table stay.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_table_rename(
    store: *const terrane_store,
    from: *const u8,
    from_len: usize,
    to: *const u8,
    to_len: usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let from = table_name(unsafe { text(from, from_len) }?)?;
        // SAFETY: the caller keeps the contract.
        let to = table_name(unsafe { text(to, to_len) }?)?;
        Ok(store.0.rename_table(&from, &to)?)
    })
}

/// Report of a backup.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct terrane_backup_report {
    /// Number of the last commit in the backup.
    pub commit: u64,
    /// Number of its tables.
    pub tables: u64,
    /// Number of its retained versions.
    pub versions: u64,
    /// Number of its snapshots.
    pub snapshots: u64,
    /// Bytes of files that were written.
    pub bytes_copied: u64,
    /// Bytes of files that were there from an earlier backup.
    pub bytes_shared: u64,
}

/// Makes or renews a backup in a directory, while commits go on. `report` may be null.
///
/// Cost: a checkpoint; reads and writes each file that is not there yet once.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_back_up(
    store: *const terrane_store,
    dir: *const u8,
    dir_len: usize,
    report: *mut terrane_backup_report,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let place = BackupPlace::new(unsafe { text(dir, dir_len) }?);
        let made = store.0.back_up(&place, &mut |_, _| {})?;
        if report.is_null() {
            return Ok(());
        }
        let made = terrane_backup_report {
            commit: made.commit,
            tables: made.tables,
            versions: made.versions,
            snapshots: made.snapshots,
            bytes_copied: made.bytes_copied,
            bytes_shared: made.bytes_shared,
        };
        // SAFETY: the caller keeps the contract.
        unsafe { give(report, made) }
    })
}

/// Merges the runs of all tables, so that nothing is left of deleted and overwritten entries.
///
/// Cost: reads and writes every table once.
///
/// # Safety
/// `store` is a handle, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_store_compact(store: *const terrane_store) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        Ok(unsafe { handle(store) }?.0.compact(&mut |_, _| {})?)
    })
}

/// Gives the number of entries of a view, and the SHA-256 of its canonical export, 32 bytes. Either
/// may be null.
///
/// Cost: a scan of the whole view.
///
/// # Safety
/// Pointers are valid as their types say, or null; `digest` for writes of 32 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_view_digest(
    view: *const terrane_view,
    count: *mut u64,
    digest: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let summary = unsafe { handle(view) }?.0.export_canonical(std::io::sink())?;
        if !count.is_null() {
            // SAFETY: the caller keeps the contract.
            unsafe { give(count, summary.count) }?;
        }
        if digest.is_null() {
            return Ok(());
        }
        // SAFETY: the caller keeps the contract.
        unsafe { give_bytes(digest, &summary.digest) }
    })
}

/// Shape of a table, and what it has counted since it was opened.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct terrane_table_stats {
    /// Entries at most: a key counts once for each run that has it.
    pub entries: u64,
    /// Number of runs.
    pub runs: u64,
    /// Memory of memtable, filters, indexes and cached pages.
    pub memory_bytes: u64,
    /// Memory of filters.
    pub filter_bytes: u64,
    /// Memory of indexes.
    pub index_bytes: u64,
    /// Memory of cached pages.
    pub cache_bytes: u64,
    /// Pages of compaction that are not done yet.
    pub merge_debt_pages: u64,
    /// Keys that were looked up.
    pub lookups: u64,
    /// Keys that were there.
    pub found: u64,
    /// Pages that lookups have read from disk.
    pub lookup_reads: u64,
    /// Updates of keys.
    pub updates: u64,
    /// Bytes of their keys and values.
    pub update_bytes: u64,
    /// Bytes that flushes and compactions have written.
    pub written_bytes: u64,
}

/// Gives the shape of a table and what it has counted.
///
/// Cost: no I/O.
///
/// # Safety
/// Pointers are valid as their types say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_table_get_stats(
    table: *const terrane_table,
    out: *mut terrane_table_stats,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let stats = unsafe { handle(table) }?.0.stats()?;
        let stats = terrane_table_stats {
            entries: stats.entries(),
            runs: stats.runs(),
            memory_bytes: stats.memory_bytes(),
            filter_bytes: stats.filter_bytes,
            index_bytes: stats.index_bytes,
            cache_bytes: stats.cache_bytes,
            merge_debt_pages: stats.merge_debt_pages,
            lookups: stats.lookups,
            found: stats.found,
            lookup_reads: stats.lookup_reads,
            updates: stats.updates,
            update_bytes: stats.update_bytes,
            written_bytes: stats.written_bytes,
        };
        // SAFETY: the caller keeps the contract.
        unsafe { give(out, stats) }
    })
}
