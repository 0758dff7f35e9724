//! Records the workload as a trace of irmin's benchmark, for other programs to do the same work.
//!
//! The first commit is the starting state, value by value. A context is used for the last time by
//! the next operation, and a commit by the block that goes on from it.

use std::io::Write;

use super::block::{Block, Operation};
use super::{Generator, START_S};
use crate::workloads::Result;
use terrane_replay::engines::context::{CommitHash, CommitInfo, ContextEngine, StepsBuf};
use terrane_replay::traces::container::Scoped;
use terrane_replay::traces::container::irmin::{ContextId, Question, Recorder};

/// The author of all commits; a replay has the same.
const AUTHOR: &[u8] = b"Tezos";

/// A trace that is being written, and what is known of it.
struct Trace<W> {
    recorder: Recorder<W>,
    /// The context that the next operation uses.
    context: ContextId,
    /// The last context that was made.
    made: ContextId,
}

impl<W: Write> Trace<W> {
    /// The context that an operation changes, and the one that it makes.
    fn step(&mut self) -> (Scoped<ContextId>, Scoped<ContextId>) {
        let from = self.context;
        self.made += 1;
        self.context = self.made;
        (Scoped { is_last: true, value: from }, keep(self.made))
    }

    fn operation(&mut self, operation: Operation<'_>) -> Result<()> {
        let context = keep(self.context);
        match operation {
            Operation::Mem { path, expected } => {
                self.recorder.ask(Question::Mem, (path, expected), context)?;
            }
            Operation::MemTree { path, expected } => {
                self.recorder.ask(Question::MemTree, (path, expected), context)?;
            }
            Operation::Find { path, expected } => {
                self.recorder.ask(Question::Find, (path, expected.is_some()), context)?;
            }
            Operation::Add { path, value } => {
                let step = self.step();
                self.recorder.add((path, value), step)?;
            }
            Operation::Remove { path } => {
                let step = self.step();
                self.recorder.remove(path, step)?;
            }
            Operation::Copy { from, to } => {
                let step = self.step();
                self.recorder.copy((from, to), step)?;
            }
        }

        Ok(())
    }

    fn commit(
        &mut self,
        hash: Scoped<CommitHash>,
        parents: &[Scoped<CommitHash>],
        date: i64,
    ) -> Result<()> {
        let context = Scoped { is_last: true, value: self.context };
        Ok(self.recorder.commit((hash, parents), (date, b""), context)?)
    }
}

fn keep<T>(value: T) -> Scoped<T> {
    Scoped { is_last: false, value }
}

/// Does the starting state and the next `blocks` blocks of a new generator in `engine`, whose
/// hashes the trace gets, and writes them to `output`, which is better a buffered one. Returns the
/// hash of the last block that is not abandoned.
///
/// # Errors
/// [`Error::Wrong`](crate::workloads::Error::Wrong) if the engine gives a wrong answer,
/// [`Error::Context`](crate::workloads::Error::Context),
/// [`Error::Record`](crate::workloads::Error::Record).
pub fn record(
    generator: &mut Generator,
    engine: &mut dyn ContextEngine,
    blocks: u64,
    output: impl Write,
) -> Result<CommitHash> {
    let mut trace = Trace { recorder: Recorder::new(output)?, context: 0, made: 0 };
    let mut tip = load(generator, engine, &mut trace)?;

    let mut block = Block::new();
    let mut value = Vec::new();
    for _ in 0..blocks {
        generator.next_block(&mut block);
        let absent = || super::Error::Wrong(format!("the engine has lost commit {tip}"));
        let mut context = engine.checkout(&tip)?.ok_or_else(absent)?;
        block.apply(&mut *context, &mut value)?;
        let info = CommitInfo { date: block.date, author: AUTHOR, message: b"" };
        let commit = context.commit(&info, &[tip])?;
        trace.made += 1;
        trace.context = trace.made;
        trace.recorder.checkout(keep(tip), keep(trace.context))?;

        for operation in block.operations() {
            trace.operation(operation)?;
        }
        let is_abandoned = block.is_abandoned;
        let parent = Scoped { is_last: !is_abandoned, value: tip };
        let made = Scoped { is_last: is_abandoned, value: commit };
        trace.commit(made, &[parent], block.date)?;

        if !is_abandoned {
            tip = commit;
        }
    }

    trace.recorder.finish()?;
    Ok(tip)
}

/// Commits and records the starting state.
fn load<W: Write>(
    generator: &Generator,
    engine: &mut dyn ContextEngine,
    trace: &mut Trace<W>,
) -> Result<CommitHash> {
    let mut context = engine.empty();

    let mut path = StepsBuf::new();
    let mut value = Vec::new();
    for number in 0..generator.state().count() {
        generator.state().entry(number, &mut path, &mut value);
        context.add(path.steps(), &value)?;
        trace.operation(Operation::Add { path: path.steps(), value: &value })?;
    }

    let info = CommitInfo { date: START_S, author: AUTHOR, message: b"" };
    let commit = context.commit(&info, &[])?;
    trace.commit(keep(commit), &[], START_S)?;
    Ok(commit)
}
