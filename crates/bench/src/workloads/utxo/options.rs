//! Options of a run.

use serde::Serialize;

use crate::model::Goal;

/// Order of lookups and updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A batch of lookups, its updates, the next batch.
    Sequential,
    /// Lookups of later batches beside updates of earlier ones.
    Pipelined,
    /// No updates.
    LookupOnly,
    /// No lookups.
    UpdateOnly,
}

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The order of things.
    pub mode: Mode,
    /// Batches.
    pub batches: u64,
    /// Operations in each.
    pub batch_size: u64,
    /// Batches of lookups under way at once.
    pub in_flight: u64,
    /// Threads that work: 1, or 2 for merges on a thread of their own.
    pub threads: u64,
    /// Reads that a batch of lookups keeps in flight.
    pub queue_depth: u32,
    /// Whether the table is read and compared at the end.
    pub check: bool,
    /// The table's memory budget, if not the one that it was set up with.
    pub memory_budget: Option<u64>,
    /// Kind of lookups that the memory is spent on first.
    pub memory_goal: Goal,
}
