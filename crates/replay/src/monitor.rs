//! Monitor: progress from a replay or benchmark to its caller, and the caller's wish to stop.

use std::fmt::Display;

/// Phase of a replay or benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Reading the headers of the input; counted in bytes.
    Scan,
    /// Going back; counted in blocks.
    Rollback,
    /// Applying; counted in blocks.
    Replay,
    /// Reading the final state; counted in entries.
    Digest,
    /// Drawing operations; counted in operations.
    Draw,
    /// Filling tables; counted in entries.
    Fill,
    /// Copying from one place to another; counted in entries.
    Copy,
    /// Compacting; counted in pages.
    Merge,
    /// Waiting until a cost is steady; counted in operations.
    WarmUp,
    /// Measuring; counted in rounds.
    Measure,
    /// Measuring; counted in operations.
    Operations,
    /// Checking results; counted in finds.
    Check,
}

/// Receiver of the progress of a replay or benchmark.
pub trait Monitor {
    /// Reports that `done` of `total` units of `phase` are done; `None` if the total is unknown.
    fn progress(&mut self, phase: Phase, done: u64, total: Option<u64>);

    /// Reports a finding that does not stop the work.
    fn warn(&mut self, message: &dyn Display);

    /// Whether to stop at the next whole block.
    fn stop(&self) -> bool;
}

/// Monitor that ignores reports and never stops the work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Monitor for Silent {
    fn progress(&mut self, _: Phase, _: u64, _: Option<u64>) {}

    fn warn(&mut self, _: &dyn Display) {}

    fn stop(&self) -> bool {
        false
    }
}
