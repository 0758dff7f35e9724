//! Conformance suite: the rules that every back-end keeps, to be run on any back-end.
//!
//! A [`Subject`] opens databases of the back-end. [`check`] runs the [`RULES`] on it, each with
//! databases of its own, up to the first broken rule. The [`Failure`] names the rule and the step,
//! what was expected and what was found. The suite does not panic, sleeps never, and does not
//! depend on the speed of the back-end. Random numbers follow from [`Extent::seed`].
//!
//! ```
//! use std::sync::Arc;
//!
//! use terrane_kv::{Database, Result};
//! use terrane_kv::conformance::{Extent, Subject, check};
//! use terrane_kv::Memory;
//!
//! struct InMemory;
//!
//! impl Subject for InMemory {
//!     fn fresh(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
//!         Ok(Arc::new(Memory::new(indexes)?))
//!     }
//!
//!     fn reopen(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
//!         self.fresh(indexes)
//!     }
//!
//!     fn is_persistent(&self) -> bool {
//!         false
//!     }
//! }
//!
//! # fn main() -> std::result::Result<(), terrane_kv::conformance::Failure> {
//! let report = check(&mut InMemory, &Extent::small(7))?;
//! assert!(report.skipped.contains(&"reopening"));
//! # Ok(())
//! # }
//! ```

mod trial;
mod cursors;
mod entries;
mod handles;
mod histories;
mod snapshots;
mod threads;
mod transactions;

use std::sync::Arc;

use crate::database::{Database, Error, Result};

use self::trial::Trial;

/// Opener of databases of the back-end under test.
pub trait Subject {
    /// Creates an empty database with these indexes. Databases of earlier calls are closed or
    /// dropped and may be deleted.
    ///
    /// # Errors
    /// Those of the back-end, which fail the rule that asked.
    fn fresh(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>>;

    /// Opens the database of the last call of [`fresh`](Self::fresh) again, with all its data and
    /// perhaps with other indexes. The earlier handle and its readers are closed and dropped. Never
    /// called for a back-end that is not persistent.
    ///
    /// # Errors
    /// Those of the back-end, which fail the rule that asked.
    fn reopen(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>>;

    /// Whether a database can be opened again.
    fn is_persistent(&self) -> bool;
}

/// Extent of the suite. A back-end should pass the default; a smaller extent is for a first look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Seed of the random histories and entries.
    pub seed: u64,
    /// Random histories.
    pub histories: usize,
    /// Steps of each.
    pub steps: usize,
    /// Entries of the large transaction.
    pub batch_entries: usize,
    /// Bytes of the largest value that is written.
    pub value_bytes_max: usize,
    /// Commits beside which readers and other writers run.
    pub rounds: usize,
}

impl Default for Extent {
    /// Writes about 150 MB of values.
    fn default() -> Self {
        Self {
            seed: 1,
            histories: 20,
            steps: 150,
            batch_entries: 100_000,
            value_bytes_max: 20 << 20,
            rounds: 100,
        }
    }
}

impl Extent {
    /// A hundredth of the default, or less.
    #[must_use]
    pub fn small(seed: u64) -> Self {
        Self {
            seed,
            histories: 2,
            steps: 40,
            batch_entries: 1000,
            value_bytes_max: 64 << 10,
            rounds: 20,
        }
    }
}

/// A broken rule.
#[derive(Debug, thiserror::Error)]
#[error("rule {rule}: {step}: expected {expected}, found {found}")]
pub struct Failure {
    /// The rule.
    pub rule: &'static str,
    /// The step; in a random history with its seed and number.
    pub step: String,
    /// Behaviour that the rule asks for.
    pub expected: String,
    /// Behaviour of the back-end.
    pub found: String,
    /// The error of the back-end, if there was one.
    pub source: Option<Box<Error>>,
}

/// Outcome of a passed suite.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Rules that the back-end keeps.
    pub kept: Vec<&'static str>,
    /// Rules that do not concern it, since it is not persistent.
    pub skipped: Vec<&'static str>,
}

/// A rule of the suite.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// Whether it is about opening a database again.
    pub needs_persistence: bool,
    run: fn(&mut Trial<'_>) -> std::result::Result<(), Failure>,
}

const fn rule(
    name: &'static str,
    run: fn(&mut Trial<'_>) -> std::result::Result<(), Failure>,
) -> Rule {
    Rule { name, needs_persistence: false, run }
}

const fn rule_of_persistence(
    name: &'static str,
    run: fn(&mut Trial<'_>) -> std::result::Result<(), Failure>,
) -> Rule {
    Rule { name, needs_persistence: true, run }
}

/// The rules, the simple ones first.
pub const RULES: &[Rule] = &[
    rule("changes", entries::changes),
    rule("reads", entries::reads),
    rule("tables", entries::tables),
    rule("unknown index", entries::unknown_index),
    rule("names of indexes", entries::names_of_indexes),
    rule("sizes of keys", entries::sizes_of_keys),
    rule("sizes of values", entries::sizes_of_values),
    rule("atomic commits", transactions::atomic_commits),
    rule("rollback", transactions::rollback),
    rule("own reads", transactions::own_reads),
    rule("one writer of a thread", transactions::one_writer_of_a_thread),
    rule("refused calls", transactions::refused_calls),
    rule("cursor order", cursors::order),
    rule("cursor seeks", cursors::seeks),
    rule("cursor of a writer", cursors::of_a_writer),
    rule("snapshots", snapshots::of_all_ages),
    rule("snapshot cursors", snapshots::cursors_half_way),
    rule("snapshots beside a writer", snapshots::beside_a_writer),
    rule("snapshots elsewhere", snapshots::elsewhere),
    rule("receipts", handles::receipts),
    rule("counts", handles::counts),
    rule("guarantee", handles::guarantee),
    rule("compaction", handles::compaction),
    rule("closing", handles::closing),
    rule("histories", histories::histories),
    rule("large transactions", entries::large_transactions),
    rule("one writer", threads::one_writer),
    rule("whole commits for readers", threads::whole_commits),
    rule_of_persistence("reopening", handles::reopening),
    rule_of_persistence("indexes at reopening", handles::indexes_at_reopening),
];

/// Checks all rules.
///
/// # Errors
/// The first rule that the back-end breaks.
pub fn check(subject: &mut dyn Subject, extent: &Extent) -> std::result::Result<Report, Failure> {
    let mut report = Report::default();
    // The first broken rule ends the check.
    for rule in RULES {
        if check_rule(rule, subject, extent)? {
            report.kept.push(rule.name);
        } else {
            report.skipped.push(rule.name);
        }
    }
    Ok(report)
}

/// Checks one rule; false if it does not concern the back-end.
///
/// # Errors
/// A [`Failure`] if the back-end breaks the rule.
pub fn check_rule(
    rule: &Rule,
    subject: &mut dyn Subject,
    extent: &Extent,
) -> std::result::Result<bool, Failure> {
    // A database that cannot be opened again has nothing to keep.
    if rule.needs_persistence && !subject.is_persistent() {
        return Ok(false);
    }
    match (rule.run)(&mut Trial { subject, extent }) {
        Ok(()) => Ok(true),
        Err(failure) => Err(Failure { rule: rule.name, ..failure }),
    }
}
