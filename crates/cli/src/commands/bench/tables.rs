//! Benchmarks of one property each: of tables and stores, and of the queues below them.
//!
//! Each file has one command: arguments, examples, and the lines for people. The work is done in
//! `terrane_bench`. The folder imports `ui`, and the arguments that all benchmarks of stores have
//! from its parent. Begin with [`ingest`]; [`recover`] is the only one with a second process.
//!
//! The JSON objects are described field by field in `terrane_bench::workloads::tables` and
//! `terrane_bench::workloads::queue`: `Report` of each module.
//!
//! Invariant: without `--keep` a command leaves nothing below the directory that it is given, but
//! for an empty session, whether or not it succeeds.
//!
//! Rejected: one command with the property as an option. Each property has options of its own.

mod diff;
mod forks;
mod ingest;
mod queue;
mod recover;
mod retained;
mod scan;

use clap::Subcommand;

use super::CommonArgs;
use crate::ui::exit::Failure;

/// Sub-commands of `terrane bench` that measure one property each.
#[derive(Debug, Subcommand)]
pub(crate) enum TableBench {
    /// Inserts, deletes and looks up, compaction included
    #[command(after_help = ingest::EXAMPLES)]
    Ingest(ingest::IngestArgs),
    /// Reads whole tables with a cursor, forward and backward
    #[command(after_help = scan::EXAMPLES)]
    Scan(scan::ScanArgs),
    /// Counts the pages that the difference of two versions of a table reads
    #[command(after_help = diff::EXAMPLES)]
    Diff(diff::DiffArgs),
    /// Forks a table for each block, and keeps the newest forks
    #[command(after_help = forks::EXAMPLES)]
    Forks(forks::ForksArgs),
    /// Retains a version of a store for each block, beside undo records
    #[command(after_help = retained::EXAMPLES)]
    Retained(retained::RetainedArgs),
    /// Opens a store whose process was killed
    #[command(after_help = recover::EXAMPLES)]
    Recover(recover::RecoverArgs),
    /// Reads random pages of a file through a queue of the disk
    #[command(after_help = queue::EXAMPLES)]
    Queue(queue::QueueArgs),
}

impl TableBench {
    pub(super) fn command(&self) -> &'static str {
        match self {
            Self::Ingest(_) => "bench ingest",
            Self::Scan(_) => "bench scan",
            Self::Diff(_) => "bench diff",
            Self::Forks(_) => "bench forks",
            Self::Retained(_) => "bench retained",
            Self::Recover(_) => "bench recover",
            Self::Queue(_) => "bench queue",
        }
    }

    pub(super) fn run(&self) -> Result<(), Failure> {
        let command = self.command();
        match self {
            Self::Ingest(ingest) => ingest.run(command),
            Self::Scan(scan) => scan.run(command),
            Self::Diff(diff) => diff.run(command),
            Self::Forks(forks) => forks.run(command),
            Self::Retained(retained) => retained.run(command),
            Self::Recover(recover) => recover.run(command),
            Self::Queue(queue) => queue.run(command),
        }
    }
}
