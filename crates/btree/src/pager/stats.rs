//! Counters of an index, cheap enough to be always on, and the statistics made of them.

use terrane_io::sync::atomic::{AtomicU64, Ordering};

use crate::pager::cache::LEVELS_MAX;

/// A number that only grows. Relaxed: no other memory depends on it.
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

/// Counters of an index since it was opened.
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

/// Statistics of an index since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct Stats {
    /// Number of entries.
    pub entries: u64,
    /// Levels of inner nodes; 0 for a tree of one leaf or none.
    pub height: u32,
    /// Pages of each level, from the leaves up.
    pub level_pages: Vec<u64>,
    /// Bytes of the tree file.
    pub file_bytes: u64,
    /// Bytes of pages in use, including pages that are held for older trees.
    pub used_bytes: u64,
    /// Bytes of pages that only older trees need: those of the last checkpoint, of readers, of
    /// cursors.
    pub held_bytes: u64,
    /// Bytes of the WAL that the next opening would read.
    pub log_bytes: u64,
    /// Bytes allocated for removals on a full disk; 0 while the reserve is given up.
    pub reserve_bytes: u64,
    /// Updates that no leaf has yet.
    pub buffered_updates: u64,
    /// Memory of the updates that no leaf has yet, in bytes.
    pub buffer_bytes: u64,
    /// Ranges of keys in quarantine: their updates stay buffered, as a page is damaged. Repair the
    /// index.
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
    /// Calls that write pages; neighbours are written with one call.
    pub write_calls: u64,
    /// Bytes appended to the WAL.
    pub log_bytes_written: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// Leaves and nodes that were divided.
    pub splits: u64,
    /// Leaves and nodes that were joined with a neighbour.
    pub merges: u64,
    /// Updates applied to leaves.
    pub drained_updates: u64,
    /// Leaves written to apply these updates.
    pub drained_leaves: u64,
    /// Checkpoints made.
    pub checkpoints: u64,
}
