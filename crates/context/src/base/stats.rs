//! Counters of a store.

use std::time::Duration;

use crate::base::latency::Latencies;

/// Block size of `BLAKE2b`, the hash of Tezos. Hashing time is proportional to the number of
/// blocks.
pub const HASH_BLOCK_BYTES: usize = 128;
/// Largest number of blocks with a counter of its own.
const BLOCKS_MAX: usize = 1024;

/// Contents of a store, and its work since it was opened.
#[doc(alias = "Statistics")]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Stats {
    /// Commits ever made.
    pub commits: u64,
    /// Chunks in the pack.
    pub chunks: u32,
    /// Bytes of decoded objects in memory.
    pub cache_bytes: u64,
    /// Objects found in the cache.
    pub cache_hits: u64,
    /// Objects read from the pack.
    pub reads: u64,
    /// Bytes of the objects read from the pack.
    pub read_bytes: u64,
    /// Batches of reads by [`Tree::prefetch`](crate::Tree::prefetch).
    pub batches: u64,
    /// Bytes appended to the pack.
    pub written_bytes: u64,
    /// Appended frames.
    pub frames: u64,
    /// Syncs of the pack.
    pub syncs: u64,
    /// Work of commits and flushes.
    pub committed: CommitStats,
    /// Latencies of commits and their parts, of checkouts and of finds.
    pub latencies: Latencies,
}

/// Work of commits and flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct CommitStats {
    /// Hashed nodes and values.
    pub hashed: u64,
    /// Bytes of their preimages.
    pub hashed_bytes: u64,
    /// Values stored in nodes, hashed again for the hash of the node; not counted in `hashed`.
    pub hashed_again: u64,
    /// Written directories and inodes.
    pub nodes: u64,
    /// Values written as records of their own.
    pub values: u64,
    /// Time for hashing, and for applying the values that wait until then. On several threads also
    /// for encoding most nodes.
    pub hash_time: Duration,
    /// Time for encoding records that are not encoded with the hashing.
    pub encode_time: Duration,
    /// Time for writing frames.
    pub write_time: Duration,
    /// Time that commits waited for an fsync.
    pub sync_time: Duration,
}

/// Histogram of the lengths of hashed preimages, in blocks of [`HASH_BLOCK_BYTES`], rounded up. A
/// preimage of more than 128 KiB counts as several.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PreimageSizes(Vec<u64>);

impl PreimageSizes {
    pub(crate) fn add(&mut self, bytes: usize) {
        let blocks = bytes.div_ceil(HASH_BLOCK_BYTES).max(1);

        // A preimage beyond the last counter counts as several of the largest size.
        let last = blocks.min(BLOCKS_MAX);
        if self.0.len() <= last {
            self.0.resize(last + 1, 0);
        }
        debug_assert!((1..=BLOCKS_MAX).contains(&last), "each counter is one of the histogram");
        debug_assert!(last <= blocks, "a preimage counts at least once");
        self.0[last] += (blocks / last) as u64;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        debug_assert!(other.0.len() <= self.0.len(), "each counter of the other has one here");
        for (sum, count) in self.0.iter_mut().zip(&other.0) {
            *sum += count;
        }
    }

    /// Returns the numbers of blocks, ascending, each with its number of preimages.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().copied().enumerate().filter(|&(_, count)| count > 0)
    }

    /// Returns the difference to `before`, an earlier state of the same histogram.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let earlier = before.0.iter().copied().chain(std::iter::repeat(0));
        Self(self.0.iter().zip(earlier).map(|(now, before)| now - before).collect())
    }
}
