//! Counters of tables and sessions, and the shape of a table at one moment.
//!
//! Counting is done with additions in memory, for each call and not for each key where possible;
//! nothing here is ever read from disk.

use terrane_io::sync::atomic::{AtomicU64, Ordering};
use terrane_io::sync::{Mutex, MutexGuard, PoisonError};

use crate::latency::{Latencies, LatencyRecorder};

/// Counts of lookups in the runs of one level, and of the answers of their filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct FilterStats {
    /// Questions that a filter answered with no.
    pub denied: u64,
    /// Questions that it answered with perhaps, and the run had an entry of the key.
    pub found: u64,
    /// Questions that it answered with perhaps, and the run had none.
    pub false_positives: u64,
}

impl FilterStats {
    /// How often the filters said perhaps of a key that was not there; `None` before the first such
    /// question.
    #[must_use]
    pub fn false_positive_rate(&self) -> Option<f64> {
        let absent = self.denied + self.false_positives;
        (absent > 0).then(|| self.false_positives as f64 / absent as f64)
    }

    /// The sum of both.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            denied: self.denied + other.denied,
            found: self.found + other.found,
            false_positives: self.false_positives + other.false_positives,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts of one batch of lookups.
#[derive(Debug, Default)]
pub(crate) struct LookupTally {
    pub(crate) keys: u64,
    pub(crate) found: u64,
    pub(crate) memory_hits: u64,
    pub(crate) reads: u64,
    pub(crate) cache_hits: u64,
    /// Level 1 first.
    pub(crate) filters: Vec<FilterStats>,
}

/// Counters of a table handle, or of all handles of a session, updated without a lock.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    lookups: AtomicU64,
    found: AtomicU64,
    memory_hits: AtomicU64,
    lookup_reads: AtomicU64,
    cache_hits: AtomicU64,
    filters: Mutex<Vec<FilterStats>>,
    updates: AtomicU64,
    update_bytes: AtomicU64,
    pub(crate) lookup_times: LatencyRecorder,
    pub(crate) update_times: LatencyRecorder,
    pub(crate) save_times: LatencyRecorder,
}

impl Counters {
    pub(crate) fn add_lookups(&self, tally: &LookupTally) {
        let add = |counter: &AtomicU64, count| counter.fetch_add(count, Ordering::Relaxed);
        add(&self.lookups, tally.keys);
        add(&self.found, tally.found);
        add(&self.memory_hits, tally.memory_hits);
        add(&self.lookup_reads, tally.reads);
        add(&self.cache_hits, tally.cache_hits);

        let mut filters = lock(&self.filters);
        if filters.len() < tally.filters.len() {
            filters.resize_with(tally.filters.len(), FilterStats::default);
        }

        debug_assert!(tally.filters.len() <= filters.len(), "no level is left out");
        for (sum, more) in filters.iter_mut().zip(&tally.filters) {
            *sum = sum.plus(*more);
        }
    }

    pub(crate) fn add_updates(&self, count: u64, bytes: u64) {
        self.updates.fetch_add(count, Ordering::Relaxed);
        self.update_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts of lookups by level, level 1 first.
    pub(crate) fn filters(&self) -> Vec<FilterStats> {
        lock(&self.filters).clone()
    }

    pub(crate) fn activity(&self) -> Activity {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Activity {
            lookups: read(&self.lookups),
            found: read(&self.found),
            memory_hits: read(&self.memory_hits),
            lookup_reads: read(&self.lookup_reads),
            cache_hits: read(&self.cache_hits),
            updates: read(&self.updates),
            update_bytes: read(&self.update_bytes),
            lookup_times: self.lookup_times.snapshot(),
            update_times: self.update_times.snapshot(),
            save_times: self.save_times.snapshot(),
        }
    }
}

/// A copy of [`Counters`] at one moment.
#[derive(Debug)]
pub(crate) struct Activity {
    pub(crate) lookups: u64,
    pub(crate) found: u64,
    pub(crate) memory_hits: u64,
    pub(crate) lookup_reads: u64,
    pub(crate) cache_hits: u64,
    pub(crate) updates: u64,
    pub(crate) update_bytes: u64,
    pub(crate) lookup_times: Latencies,
    pub(crate) update_times: Latencies,
    pub(crate) save_times: Latencies,
}

/// Sums over the open runs of a session, each counted once however many tables share it, and what
/// was written.
#[derive(Debug, Default)]
pub(crate) struct RunSums {
    pub(crate) runs: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) deletes: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) filter_bytes: AtomicU64,
    pub(crate) index_bytes: AtomicU64,
    /// Memory of the filters and indexes that compactions and unions are building.
    pub(crate) unfinished_bytes: AtomicU64,
    /// Bytes of the runs written by flushes, merges and unions.
    pub(crate) written_bytes: AtomicU64,
    /// Bytes of the images of memtables, written by snapshots.
    pub(crate) image_bytes: AtomicU64,
}

/// A level of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct LevelStats {
    /// Runs that a lookup may have to look into. Slices of one count as one; so do those that a
    /// merge has written, beside its inputs.
    pub runs: u64,
    /// Files of these runs: each slice has its own.
    pub files: u64,
    /// Physical entries in them: an upper bound of the live ones.
    pub entries: u64,
    /// How many of these are deletions.
    pub deletes: u64,
    /// Bytes of these runs' files.
    pub bytes: u64,
    /// Memory of their filters.
    pub filter_bytes: u64,
    /// Memory of their indexes.
    pub index_bytes: u64,
    /// Counts of lookups through this handle on this level, as the level was at the time.
    pub filter: FilterStats,
    /// Pages of work that a merge on this level has in all, 0 without one.
    pub merge_pages: u64,
    /// How many of them are done.
    pub merge_pages_done: u64,
}

/// The shape of a table at one moment, and what its handle has counted since it was made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
#[doc(alias = "Statistics")]
pub struct TableStats {
    /// Level 1 first.
    pub levels: Vec<LevelStats>,
    /// The union below all levels, until it is complete.
    pub union: LevelStats,
    /// Entries in the memtable and in a flush that is under way.
    pub buffer_entries: u64,
    /// Memory of these.
    pub buffer_bytes: u64,
    /// Memory of all filters.
    pub filter_bytes: u64,
    /// Memory of all indexes.
    pub index_bytes: u64,
    /// Memory of the filters and indexes that flushes and merges under way are writing.
    pub unfinished_bytes: u64,
    /// Memory of the cache of pages, which the table shares with its forks, or with all tables of a
    /// session that has a memory budget.
    pub cache_bytes: u64,
    /// Key pages that the indexes point to.
    pub key_pages: u64,
    /// Pages of merge work not yet done.
    pub merge_debt_pages: u64,
    /// Keys looked up.
    pub lookups: u64,
    /// How many of them were present.
    pub found: u64,
    /// How many of them memtables decided, present or not.
    pub memory_hits: u64,
    /// Reads that lookups took; those that the system's page cache answers count as well.
    pub lookup_reads: u64,
    /// Pages that lookups found in the table's cache, each of which saved a read.
    pub cache_hits: u64,
    /// Counts of lookups in the runs of all levels.
    pub filter: FilterStats,
    /// Updates accepted.
    pub updates: u64,
    /// Bytes of their keys, values and blobs.
    pub update_bytes: u64,
    /// Bytes of the runs that flushes, merges and a union have brought into the levels. What merges
    /// under way have written is not among them yet; what forks share counts in each of them.
    pub written_bytes: u64,
    /// How long batches of lookups took.
    pub lookup_times: Latencies,
    /// How long batches of updates took.
    pub update_times: Latencies,
    /// How long saving snapshots took.
    pub save_times: Latencies,
}

/// One number for each of another; `None` if there is none of the other.
fn ratio(of: u64, to: u64) -> Option<f64> {
    (to > 0).then(|| of as f64 / to as f64)
}

impl TableStats {
    /// Runs on all levels; slices of one count as one.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.levels.iter().map(|level| level.runs).sum()
    }

    /// Files of the runs on all levels.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.levels.iter().map(|level| level.files).sum()
    }

    /// Memory of memtables, filters, indexes and the cache of pages: what a memory budget is
    /// for.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let tables = self.filter_bytes + self.index_bytes + self.unfinished_bytes;
        self.buffer_bytes + tables + self.cache_bytes
    }

    /// Physical entries: an upper bound of the live ones.
    /// [`Table::count_exact`](crate::Table::count_exact) counts those.
    #[must_use]
    pub fn entries(&self) -> u64 {
        let levels = self.levels.iter().map(|level| level.entries).sum::<u64>();
        self.buffer_entries + levels + self.union.entries
    }

    /// Reads for each key found; `None` if none was.
    #[must_use]
    pub fn read_amplification(&self) -> Option<f64> {
        ratio(self.lookup_reads, self.found)
    }

    /// Bytes written for each byte of an update; `None` before the first.
    #[must_use]
    pub fn write_amplification(&self) -> Option<f64> {
        ratio(self.written_bytes, self.update_bytes)
    }
}

/// Memory budget of a session, and the bytes that its consumers hold of it at one moment.
///
/// [`SessionOptions::memory_budget`](crate::SessionOptions::memory_budget) says how the consumers
/// share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
#[doc(alias = "WriteBufferManager")]
pub struct MemoryStats {
    /// The budget.
    pub budget_bytes: u64,
    /// Bytes granted to the write buffers of tables without a budget of their own, or in use if
    /// that is more.
    pub write_buffer_bytes: u64,
    /// Memory of these write buffers.
    pub write_buffer_used_bytes: u64,
    /// Memory of all filters.
    pub filter_bytes: u64,
    /// Memory of all indexes.
    pub index_bytes: u64,
    /// Memory of the filters and indexes that flushes, compactions and unions are writing.
    pub unfinished_bytes: u64,
    /// Memory of the session's page cache.
    pub cache_bytes: u64,
    /// Memory of the chunks that cursors and diffs have read ahead.
    pub cursor_bytes: u64,
    /// Bytes that tables with a budget of their own have beside filters and indexes: for write
    /// buffers and cached pages.
    pub own_budget_bytes: u64,
    /// Largest sum so far. The session looks at the sum after each batch of updates, when a table
    /// gets another grant, and when it is asked for statistics.
    pub peak_bytes: u64,
}

impl MemoryStats {
    /// Sum over all consumers.
    #[must_use]
    pub fn granted_bytes(&self) -> u64 {
        let runs = self.filter_bytes + self.index_bytes + self.unfinished_bytes;
        let tables = self.write_buffer_bytes + self.own_budget_bytes;
        runs + tables + self.cache_bytes + self.cursor_bytes
    }
}

/// State of a session at one moment, and the counts of all of its handles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct SessionStats {
    /// Tables that are open.
    pub tables: u64,
    /// Cursors and diffs that are open.
    pub cursors: u64,
    /// Snapshots, damaged ones included.
    pub snapshots: u64,
    /// Files that are open at this moment.
    pub open_files: u64,
    /// Bytes of the disk that are kept in reserve; 0 for no reserve.
    pub reserve_bytes: u64,
    /// Whether the disk was full and the reserve is in use: insertions are refused until it can be
    /// taken back.
    pub is_full: bool,
    /// Runs that tables, cursors and merges hold, each counted once.
    pub runs: u64,
    /// Physical entries in them.
    pub entries: u64,
    /// How many of these are deletions.
    pub deletes: u64,
    /// Bytes of these runs' files.
    pub bytes: u64,
    /// Memory of their filters.
    pub filter_bytes: u64,
    /// Memory of their indexes.
    pub index_bytes: u64,
    /// The memory budget and its consumers; `None` without a budget.
    pub memory: Option<MemoryStats>,
    /// Keys looked up.
    pub lookups: u64,
    /// How many of them were present.
    pub found: u64,
    /// How many of them memtables decided, present or not.
    pub memory_hits: u64,
    /// Reads that lookups took.
    pub lookup_reads: u64,
    /// Pages that lookups found in the caches of their tables.
    pub cache_hits: u64,
    /// Counts of lookups in the runs of all levels.
    pub filter: FilterStats,
    /// Updates accepted.
    pub updates: u64,
    /// Bytes of their keys, values and blobs.
    pub update_bytes: u64,
    /// Bytes of the runs that flushes, merges and unions have completed; a merge that several
    /// tables share is done, and counted, once.
    pub written_bytes: u64,
    /// Bytes of the images of memtables that snapshots have written.
    pub image_bytes: u64,
    /// How long batches of lookups took.
    pub lookup_times: Latencies,
    /// How long batches of updates took.
    pub update_times: Latencies,
    /// How long saving snapshots took.
    pub save_times: Latencies,
}

impl SessionStats {
    /// Reads for each key found; `None` if none was.
    #[must_use]
    pub fn read_amplification(&self) -> Option<f64> {
        ratio(self.lookup_reads, self.found)
    }

    /// Bytes written for each byte of an update; `None` before the first. Images for snapshots do
    /// not count.
    #[must_use]
    pub fn write_amplification(&self) -> Option<f64> {
        ratio(self.written_bytes, self.update_bytes)
    }
}
