//! What a store counts.

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
    /// Bytes that were hashed, about.
    pub hashed_bytes: u64,
    /// Directories and inodes that were written.
    pub nodes: u64,
    /// Values that were written on their own.
    pub values: u64,
}
