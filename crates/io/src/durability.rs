//! Durability of a commit: one scale for all engines.

/// Failures that a commit survives once its call has returned, weakest first.
///
/// | level | end of the process | loss of power | cost |
/// |---|---|---|---|
/// | [`None`](Self::None) | lost, unless a checkpoint or snapshot came later | the same | no log |
/// | [`Buffered`](Self::Buffered) | survives | the last commits go, never one before a surviving one | a write |
/// | [`Group`](Self::Group) | survives | survives once the caller has waited for it | an fsync for all that wait |
/// | [`Each`](Self::Each) | survives | survives | an fsync in the call |
///
/// | engine | levels |
/// |---|---|
/// | LSM store | all; waiting is `Ticket::wait` |
/// | B+tree index | a flush with or without an fsync: `Each` or `Buffered` |
/// | context store | `Each` and `Buffered`; `Group` means `Each`, `None` means `Buffered` |
/// | `kv::Database` | each back-end takes some and refuses the others; waiting is `Database::settle` |
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[doc(alias("WriteOptions", "synchronous", "PersistMode"))]
pub enum Durability {
    /// Nothing, until a checkpoint or a snapshot. As the default of a store: no log is written. For
    /// one commit of a store that has a log: as [`Buffered`](Self::Buffered).
    #[doc(alias("SnapshotOnly", "disable_wal"))]
    None,
    /// The end of the process: the commit is written, and the system syncs it later. A loss of
    /// power takes a suffix of the commits.
    #[doc(alias("Async", "Relaxed", "NoSync", "Eventual"))]
    #[cfg_attr(feature = "serde", serde(rename = "async"))]
    Buffered,
    /// Like [`Buffered`](Self::Buffered) until the caller has waited for the commit, then a loss of
    /// power. Commits that are waited for at the same time, and all before them, share one fsync
    /// (group commit).
    #[default]
    Group,
    /// A loss of power: the call returns after an fsync, which it shares as
    /// [`Group`](Self::Group) does.
    #[doc(alias("Durable", "Immediate", "SyncAll", "FULL"))]
    Each,
}

impl Durability {
    /// The name that benchmarks and commands use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Buffered => "async",
            Self::Group => "group",
            Self::Each => "each",
        }
    }
}
