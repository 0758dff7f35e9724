//! What a table counts, and what it can say of its shape.

use std::sync::atomic::AtomicU64;

/// Counters of one table handle.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) lookups: AtomicU64,
    pub(crate) lookup_reads: AtomicU64,
}

/// A level of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LevelStats {
    /// Runs that a lookup may have to look into; the inputs of a merge that is not complete count, its
    /// output does not.
    pub runs: usize,
    /// Physical entries in them.
    pub entries: u64,
    /// How many of these are deletions.
    pub deletes: u64,
    /// Bytes of these runs' files.
    pub bytes: u64,
    /// Memory of their filters.
    pub filter_bytes: usize,
    /// Memory of their indexes.
    pub index_bytes: usize,
    /// Pages of work that a merge on this level has in all, 0 without one.
    pub merge_pages: u64,
    /// How many of them are done.
    pub merge_pages_done: u64,
}

/// The shape of a table at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TableStats {
    /// Level 1 first.
    pub levels: Vec<LevelStats>,
    /// Entries in the write buffer and in a flush that is under way.
    pub buffer_entries: usize,
    /// Memory of these.
    pub buffer_bytes: usize,
    /// Memory of all filters.
    pub filter_bytes: usize,
    /// Memory of all indexes.
    pub index_bytes: usize,
    /// Memory of the filters and indexes that flushes and merges under way are writing.
    pub unfinished_bytes: usize,
    /// Key pages that the indexes point to.
    pub key_pages: u64,
    /// Pages of merge work not yet done.
    pub merge_debt_pages: u64,
    /// Keys looked up through this handle.
    pub lookups: u64,
    /// Reads that these took.
    pub lookup_reads: u64,
}

impl TableStats {
    /// Runs on all levels.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.levels.iter().map(|level| level.runs).sum()
    }

    /// Memory of write buffers, filters and indexes: what a memory budget is for.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.buffer_bytes + self.filter_bytes + self.index_bytes + self.unfinished_bytes
    }

    /// Physical entries: an upper bound of the live ones.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.buffer_entries as u64 + self.levels.iter().map(|level| level.entries).sum::<u64>()
    }
}
