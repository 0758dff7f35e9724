//! Replay of a trace of irmin's benchmark over an engine of versioned trees.
//!
//! A block is all operations up to a commit and with it. Contexts and commits can fork, so all are
//! kept until the trace forgets them; context 0 is the empty tree and always there. Recorded
//! answers are compared with the engine's; so are the hashes of commits if the engine has those of
//! Tezos, otherwise a commit of the trace stands for one of the engine.
//!
//! The time of a block is that of the engine's calls and of decoding; a row is decoded in well
//! under a microsecond.

mod error;

use std::collections::HashMap;
use std::io::BufRead;
use std::time::Instant;

use serde::Serialize;

pub use self::error::{Error, Result};
use crate::engines::context::{CommitHash, CommitInfo, Context, ContextEngine, Steps, StepsBuf};
use crate::latency::Latency;
use crate::monitor::{Monitor, Phase};
use crate::traces::container::irmin::{ContextId, Operation, Operations, Question};
use crate::traces::container::{self, Key, Scoped, as_it_is};

/// The author of all commits of Octez; traces do not record it.
const AUTHOR: &[u8] = b"Tezos";

/// The context that is there from the start.
const EMPTY: ContextId = 0;

/// Options of a replay.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Commits after which the replay ends; all if `None`.
    pub until: Option<u64>,
    /// Does not compare the hashes of commits, even if the engine has those of Tezos.
    pub ignores_hashes: bool,
    /// Collects old commits now and then.
    pub collection: Option<Collection>,
}

/// When old commits are collected, and which; a trace that checks one of them out cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collection {
    /// Commits from one collection to the next; at least 1.
    pub every: u64,
    /// Newest commits that are kept.
    pub distance: u64,
}

/// Counts of the operations of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Checkouts.
    pub checkouts: u64,
    /// Values put.
    pub adds: u64,
    /// Removals.
    pub removes: u64,
    /// Copies.
    pub copies: u64,
    /// Look-ups of values.
    pub finds: u64,
    /// Questions for values.
    pub mems: u64,
    /// Questions for values or directories.
    pub mem_trees: u64,
    /// Commits.
    pub commits: u64,
    /// Look-ups of trees; in traces of Octez only, as what follows.
    pub find_trees: u64,
    /// Trees put.
    pub add_trees: u64,
    /// Folds, without what is done in them.
    pub folds: u64,
    /// Other operations.
    pub others: u64,
}

impl Counts {
    /// All operations.
    #[must_use]
    pub fn total(&self) -> u64 {
        let reads = self.finds + self.mems + self.mem_trees;
        let writes = self.adds + self.removes + self.copies;
        let trees = self.find_trees + self.add_trees + self.folds;
        reads + writes + trees + self.checkouts + self.commits + self.others
    }
}

/// Report of a replay.
#[derive(Debug, Clone)]
pub struct Report {
    /// Operations.
    pub counts: Counts,
    /// Answers and hashes that were compared.
    pub checks_passed: u64,
    /// Latencies of blocks.
    pub blocks: Latency,
    /// Latencies of commits, a part of those of their blocks.
    pub commits: Latency,
    /// Durations of collections, between blocks.
    pub collections: Latency,
    /// The engine's hash of the last commit.
    pub last_commit: Option<CommitHash>,
    /// Offset of the last row, if the trace ends inside of it.
    pub truncated_at: Option<u64>,
    /// Transactions of the chain in the blocks, if the trace says how many.
    pub transactions: Option<u64>,
    /// Time from the first operation to the last one, in seconds.
    pub wall_s: f64,
}

impl Report {
    /// Returns the report of a replay that has done nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            counts: Counts::default(),
            checks_passed: 0,
            blocks: Latency::new(),
            commits: Latency::new(),
            collections: Latency::new(),
            last_commit: None,
            truncated_at: None,
            transactions: None,
            wall_s: 0.0,
        }
    }
}

/// State of a replay between two operations.
struct Replay<'e> {
    engine: &'e mut dyn ContextEngine,
    compares_hashes: bool,
    contexts: HashMap<ContextId, Box<dyn Context>>,
    /// Commits of the trace and what they are in the engine.
    commits: HashMap<CommitHash, CommitHash>,
    report: Report,
    path: StepsBuf,
    target: StepsBuf,
    value: Vec<u8>,
    row: u64,
}

/// Replays the trace that `input` is.
///
/// Cost: memory of the contexts that the trace has not forgotten, and one row.
///
/// # Errors
/// [`Error::ResultMismatch`], [`Error::HashMismatch`], [`Error::AbsentSource`] if the engine, or
/// the trace, is wrong; [`Error::UnknownContext`], [`Error::UnknownCommit`] if the trace uses what
/// it has not made; [`Error::Trace`]; [`Error::Engine`]; [`Error::Interrupted`]. A trace that is
/// cut in its last row is no error, see [`Report::truncated_at`].
pub fn replay(
    input: impl BufRead,
    engine: &mut dyn ContextEngine,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report> {
    let mut trace = Operations::open(input)?;
    // Only an engine with Tezos hashes can give the recorded hashes.
    let compares_hashes = engine.has_tezos_hashes() && !options.ignores_hashes;
    let mut replay = Replay::new(engine, compares_hashes);
    let start = Instant::now();

    let mut block_start = start;
    while options.until.is_none_or(|until| replay.report.counts.commits < until) {
        let operation = match trace.next_operation() {
            Ok(Some(operation)) => operation,
            Ok(None) => break,
            Err(error @ container::Error::TruncatedTrace { offset, .. }) => {
                monitor.warn(&error);
                replay.report.truncated_at = Some(offset);
                break;
            }
            Err(error) => return Err(error.into()),
        };

        // A commit ends a block of the trace.
        let is_commit = matches!(operation, Operation::Commit { .. });
        replay.apply(&operation)?;
        replay.row += 1;

        if is_commit {
            replay.report.blocks.record(block_start.elapsed());
            replay.collect(options.collection)?;
            block_start = Instant::now();
            monitor.progress(Phase::Replay, replay.report.counts.commits, options.until);
            if monitor.stop() {
                return Err(Error::Interrupted);
            }
        }
    }

    replay.report.wall_s = start.elapsed().as_secs_f64();
    Ok(replay.report)
}

impl<'e> Replay<'e> {
    fn new(engine: &'e mut dyn ContextEngine, compares_hashes: bool) -> Self {
        Self {
            engine,
            compares_hashes,
            contexts: HashMap::new(),
            commits: HashMap::new(),
            report: Report::new(),
            path: StepsBuf::new(),
            target: StepsBuf::new(),
            value: Vec::new(),
            row: 0,
        }
    }

    /// The block that is being built, counted from 0.
    fn block(&self) -> u64 {
        self.report.counts.commits
    }

    /// Collects old commits if it is time to.
    fn collect(&mut self, collection: Option<Collection>) -> Result<()> {
        // `every` may be 0, and then means every block.
        let is_due = |collection: &Collection| self.block().is_multiple_of(collection.every.max(1));
        if let Some(Collection { distance, .. }) = collection.filter(is_due) {
            let start = Instant::now();
            self.engine.collect(distance)?;
            self.report.collections.record(start.elapsed());
        }
        Ok(())
    }

    fn apply(&mut self, operation: &Operation<'_>) -> Result<()> {
        match *operation {
            Operation::Checkout { commit, context } => {
                self.report.counts.checkouts += 1;
                self.checkout(commit, context)
            }
            Operation::Add { key, value, from, to } => {
                self.report.counts.adds += 1;
                self.change(key, (from, to), |context, path| Ok(context.add(path, value)?))
            }
            Operation::Remove { key, from, to } => {
                self.report.counts.removes += 1;
                self.change(key, (from, to), |context, path| Ok(context.remove(path)?))
            }
            Operation::Copy { source, target, from, to } => {
                self.report.counts.copies += 1;
                self.copy((source, target), (from, to))
            }
            Operation::Ask { question, key, answer, context } => {
                self.ask(question, (key, answer), context)
            }
            Operation::Commit { hash, date, message, parents, context } => {
                let info = CommitInfo { date, author: AUTHOR, message };
                // Parents are named as they were recorded; the engine may have given them other
                // hashes.
                let mut ours = Vec::new();
                for parent in parents.items() {
                    ours.push(self.commit_of(parent.value)?);
                }
                self.commit(hash, (&info, &ours), context)?;
                // Parents are forgotten only after the commit has used them.
                for parent in parents.items().filter(|parent| parent.is_last) {
                    self.commits.remove(&parent.value);
                }
                Ok(())
            }
        }
    }

    /// The commit that one of the trace is. What this replay has not made can be there all the same
    /// if hashes agree.
    fn commit_of(&self, commit: CommitHash) -> Result<CommitHash> {
        match self.commits.get(&commit) {
            Some(commit) => Ok(*commit),
            None if self.compares_hashes => Ok(commit),
            None => Err(self.unknown(commit)),
        }
    }

    fn unknown(&self, commit: CommitHash) -> Error {
        Error::UnknownCommit { block: self.block(), row: self.row, commit }
    }

    fn checkout(&mut self, commit: Scoped<CommitHash>, to: Scoped<ContextId>) -> Result<()> {
        let ours = self.commit_of(commit.value)?;
        let Some(context) = self.engine.checkout(&ours)? else {
            return Err(self.unknown(commit.value));
        };
        if commit.is_last {
            self.commits.remove(&commit.value);
        }
        self.put(to, context);
        Ok(())
    }

    fn put(&mut self, to: Scoped<ContextId>, context: Box<dyn Context>) {
        if to.is_last {
            self.contexts.remove(&to.value);
        } else {
            self.contexts.insert(to.value, context);
        }
    }

    /// The context `from`, which is there.
    fn context(&mut self, from: ContextId) -> Result<&mut Box<dyn Context>> {
        // No operation of a trace makes the empty context.
        if from == EMPTY && !self.contexts.contains_key(&EMPTY) {
            self.contexts.insert(EMPTY, self.engine.empty());
        }
        let error = Error::UnknownContext { block: self.block(), row: self.row, context: from };
        self.contexts.get_mut(&from).ok_or(error)
    }

    /// Returns the context `from` to be changed: itself after its last use, otherwise a fork.
    fn take(&mut self, from: Scoped<ContextId>) -> Result<Box<dyn Context>> {
        let context = self.context(from.value)?;
        // A context that is used again must not be changed.
        if !from.is_last {
            return Ok(context.fork());
        }
        Ok(self.contexts.remove(&from.value).expect("it is there"))
    }

    fn change(
        &mut self,
        key: Key<'_>,
        (from, to): (Scoped<ContextId>, Scoped<ContextId>),
        change: impl FnOnce(&mut dyn Context, Steps<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut context = self.take(from)?;
        as_it_is(key, &mut self.path);
        change(&mut *context, self.path.steps())?;
        self.put(to, context);
        Ok(())
    }

    fn copy(
        &mut self,
        (source, target): (Key<'_>, Key<'_>),
        (from, to): (Scoped<ContextId>, Scoped<ContextId>),
    ) -> Result<()> {
        let mut context = self.take(from)?;
        as_it_is(source, &mut self.path);
        as_it_is(target, &mut self.target);

        // The source was there when the trace was recorded.
        if !context.copy(self.path.steps(), self.target.steps())? {
            let path = self.path.steps().to_string();
            return Err(Error::AbsentSource { block: self.block(), row: self.row, path });
        }

        self.put(to, context);
        Ok(())
    }

    fn ask(
        &mut self,
        question: Question,
        (key, expected): (Key<'_>, bool),
        of: Scoped<ContextId>,
    ) -> Result<()> {
        // The buffers are taken out while the context borrows the rest.
        let mut path = std::mem::take(&mut self.path);
        let mut value = std::mem::take(&mut self.value);
        as_it_is(key, &mut path);

        let context = self.context(of.value)?;
        let (kind, answer) = match question {
            Question::Find => ("find", context.find(path.steps(), &mut value)),
            Question::Mem => ("mem", context.mem(path.steps())),
            Question::MemTree => ("mem_tree", context.mem_tree(path.steps())),
        };

        let found = answer?;
        let counts = &mut self.report.counts;
        *match question {
            Question::Find => &mut counts.finds,
            Question::Mem => &mut counts.mems,
            Question::MemTree => &mut counts.mem_trees,
        } += 1;

        // Another answer means another state, on which all later figures would be worthless.
        if found != expected {
            let block = self.block();
            let path = path.steps().to_string();
            return Err(Error::ResultMismatch {
                block,
                row: self.row,
                kind,
                path,
                expected,
                found,
            });
        }

        self.report.checks_passed += 1;
        if of.is_last {
            self.contexts.remove(&of.value);
        }
        (self.path, self.value) = (path, value);

        Ok(())
    }

    fn commit(
        &mut self,
        hash: Scoped<CommitHash>,
        (info, parents): (&CommitInfo<'_>, &[CommitHash]),
        of: Scoped<ContextId>,
    ) -> Result<()> {
        // Nothing but the commit is timed.
        let start = Instant::now();
        let got = self.context(of.value)?.commit(info, parents)?;
        self.report.commits.record(start.elapsed());

        if self.compares_hashes {
            let expected = hash.value;
            if got != expected {
                let block = self.block();
                let row = self.row;
                return Err(Error::HashMismatch { block, row, expected, got });
            }
            self.report.checks_passed += 1;
        }

        // Later operations name the commit by its recorded hash.
        if hash.is_last {
            self.commits.remove(&hash.value);
        } else {
            self.commits.insert(hash.value, got);
        }

        if of.is_last {
            self.contexts.remove(&of.value);
        }
        self.report.counts.commits += 1;
        self.report.last_commit = Some(got);

        Ok(())
    }
}

#[cfg(test)]
mod tests;
