//! What a store counts.

use std::time::Duration;

/// Bytes of a block of the hash of Tezos: what its time goes with.
pub const HASH_BLOCK_BYTES: usize = 128;
/// The largest number of blocks that is counted on its own.
const BLOCKS_MAX: usize = 1024;

/// What a store holds, and what it has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Commits that were ever made.
    pub commits: u64,
    /// Chunks that are kept.
    pub chunks: u32,
    /// Bytes of decoded objects in memory.
    pub cache_bytes: u64,
    /// Objects that were found in memory.
    pub cache_hits: u64,
    /// Objects that were read from the pack.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Batches that some of them were read in: by [`Tree::prefetch`](crate::Tree::prefetch).
    pub batches: u64,
    /// Bytes appended to the pack.
    pub written_bytes: u64,
    /// Appends.
    pub frames: u64,
    /// Syncs of the pack.
    pub syncs: u64,
    /// What commits and flushes consisted of.
    pub committed: CommitStats,
}

/// What commits and flushes consisted of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitStats {
    /// Nodes and values that were hashed.
    pub hashed: u64,
    /// Bytes of their preimages.
    pub hashed_bytes: u64,
    /// Values that are stored in nodes, hashed again for the nodes' sake; not among those above.
    pub hashed_again: u64,
    /// Directories and inodes that were written.
    pub nodes: u64,
    /// Values that were written on their own.
    pub values: u64,
    /// Time for hashing.
    pub hash_time: Duration,
    /// Time for encoding what was written.
    pub encode_time: Duration,
    /// Time for handing it to the disk.
    pub write_time: Duration,
    /// Time that commits waited until they were durable.
    pub sync_time: Duration,
}

/// How long the preimages were that commits and flushes have hashed: how many there were of each number of blocks of
/// [`HASH_BLOCK_BYTES`], the last one of a preimage counted as a whole. One of more than 128 KiB counts as several.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PreimageSizes(Vec<u64>);

impl PreimageSizes {
    pub(crate) fn add(&mut self, bytes: usize) {
        let blocks = bytes.div_ceil(HASH_BLOCK_BYTES).max(1);
        let last = blocks.min(BLOCKS_MAX);
        if self.0.len() <= last {
            self.0.resize(last + 1, 0);
        }
        self.0[last] += (blocks / last) as u64;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (sum, count) in self.0.iter_mut().zip(&other.0) {
            *sum += count;
        }
    }

    /// Numbers of blocks, ascending, and how many preimages have so many.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().copied().enumerate().filter(|&(_, count)| count > 0)
    }

    /// What was added since `before`, which was the same earlier.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let earlier = before.0.iter().copied().chain(std::iter::repeat(0));
        Self(self.0.iter().zip(earlier).map(|(now, before)| now - before).collect())
    }
}
