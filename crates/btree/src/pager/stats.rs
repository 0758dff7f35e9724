//! Counters of an index, cheap enough to be always on.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pager::cache::LEVELS_MAX;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What an index counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) page_reads: [Counter; LEVELS_MAX],
    pub(crate) cache_hits: [Counter; LEVELS_MAX],
    pub(crate) page_writes: Counter,
    pub(crate) write_calls: Counter,
    pub(crate) log_bytes: Counter,
    pub(crate) syncs: Counter,
    pub(crate) splits: Counter,
    pub(crate) merges: Counter,
    pub(crate) drained_updates: Counter,
    pub(crate) drained_leaves: Counter,
    pub(crate) checkpoints: Counter,
}

/// What an index has and has done since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Entries of the index.
    pub entries: u64,
    /// Levels of inner nodes; 0 for a tree of one leaf or none.
    pub height: u32,
    /// Pages of each level, from the leaves up.
    pub level_pages: Vec<u64>,
    /// Bytes of the tree file.
    pub file_bytes: u64,
    /// Bytes of pages in use, those that wait until no older tree is needed included.
    pub used_bytes: u64,
    /// Bytes of pages that only older trees need: of the last checkpoint, of readers, of cursors.
    pub held_bytes: u64,
    /// Bytes of the log that the next opening would read.
    pub log_bytes: u64,
    /// Bytes allocated for removals on a full disk; 0 while they are given up.
    pub reserve_bytes: u64,
    /// Updates that are not in leaves yet.
    pub buffered_updates: u64,
    /// Memory of these, in bytes.
    pub buffer_bytes: u64,
    /// Ranges of keys whose updates stay buffered, as a page is damaged that they need: repair the index.
    pub damaged_ranges: u64,
    /// Memory of inner nodes that no checkpoint has written yet, in bytes.
    pub fresh_node_bytes: u64,
    /// Cached pages of each level, from the leaves up.
    pub cached_pages: Vec<u64>,
    /// Generation of the last checkpoint.
    pub generation: u64,
    /// Readers in other processes, as of the last checkpoint.
    pub readers: u32,
    /// Pages read from the disk, by level.
    pub page_reads: Vec<u64>,
    /// Pages found in memory, by level.
    pub cache_hits: Vec<u64>,
    /// Pages written.
    pub page_writes: u64,
    /// Writes of pages: neighbours are written at once.
    pub write_calls: u64,
    /// Bytes appended to the log.
    pub log_bytes_written: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// Leaves and nodes that became several.
    pub splits: u64,
    /// Leaves and nodes that were joined with a neighbour.
    pub merges: u64,
    /// Updates applied to leaves.
    pub drained_updates: u64,
    /// Leaves written for that.
    pub drained_leaves: u64,
    /// Checkpoints made.
    pub checkpoints: u64,
}
