//! Compaction: flushes, merges of runs and unions, and the schedule that says when each is due.
//!
//! This folder imports `run`, `memtable`, `memory` and what stands below. `table` drives it with
//! each batch of updates, and `session` saves and resumes what is under way.
//!
//! Begin with [`levels`]: the levels of a table, where a run goes, and how much of each compaction
//! must be done by when. [`compaction`](self::compaction::Compaction) is one of them, done in steps
//! and shared by all tables that have it. It merges with the [`loser_tree`] over what [`sources`]
//! opens, [`merge_pipe`] puts merging and writing on two threads, and [`resume`] goes on after an
//! interruption. [`union`] merges several tables; [`value_room`] bounds the values of upserts;
//! [`background`] is the optional thread.
//!
//! Lock order: the job of a compaction, then its view or its error. A reader takes the view only.
//!
//! Invariants: progress of a compaction never changes what a reader sees; `done <= total`; a
//! [`ScheduledCompaction`](levels::ScheduledCompaction) starts before it is due.
//!
//! Rejected:
//! - adding up the credits of all tables that share a compaction: a thousand forks would do a
//!   thousand times the work early;
//! - trusting an interrupted output that looks whole: after a loss of power the footer may be there
//!   and pages before it not;
//! - closing the output as a run of its own at each save: it multiplies runs;
//! - merging the tables of a union one by one first: no lookup is faster before the end;
//! - a tree of pairwise unions: each entry is written log2 of the tables times.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod resume;
pub(crate) mod loser_tree;
pub(crate) mod merge_pipe;
pub(crate) mod compaction;
pub(crate) mod sources;
pub(crate) mod value_room;
pub(crate) mod union;
pub(crate) mod levels;
pub(crate) mod background;
