//! Raw traces, made replayable block by block: what replayable traces have no event for is left
//! out.
//!
//! A block is all events up to a commit and with it; what follows the last commit is not executed.
//! Left out are, beside what the recorder did not handle, changes of branches, proofs,
//! synchronisation, questions for what a commit says of itself, the first commits of test chains,
//! and lists, of which the trace does not say where; what is made by them is not there later. A
//! checkout that found nothing becomes a question for the commit.

use std::io::BufRead;
use std::time::Instant;

use terrane::context::Store;

use super::{Operation, Replay, Result, truncated};
use crate::monitor::Monitor;
use crate::traces::container::raw::{self, Events, Lookup};
use crate::traces::container::replayable::{Event, EventsBuf, MadeCommit, Tracker, UsedCommit};
use crate::traces::container::{self, Fold, Scoped, TreeOperation};
use crate::traces::irmin::{Options, Report};

/// Replays a raw trace.
///
/// Cost: memory of two blocks, with the contexts and trees made in them.
///
/// # Errors
/// Those of [`replay`](super::replay).
pub fn replay(
    input: impl BufRead,
    store: &Store,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report> {
    let mut trace = Events::open(input)?;
    let mut replay = Replay::new(store, !options.ignores_hashes);
    let mut events = EventsBuf::default();
    let mut last_block = Numbers::default();
    let start = Instant::now();

    while options.until.is_none_or(|until| replay.place.block < until) {
        let block_start = Instant::now();
        match read_block(&mut trace, &mut events) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                replay.report.truncated_at = Some(truncated(error, monitor)?);
                break;
            }
        }
        replay.block(&mut events.events())?;
        // Raw traces do not tell which use is the last, so objects that a block has left over go
        // with the next.
        last_block = last_block.forgotten(&mut replay);
        replay.report.blocks.record(block_start.elapsed());
        replay.ended_block(options.collection, options.until, monitor)?;
    }

    replay.report.wall_s = start.elapsed().as_secs_f64();
    Ok(replay.report)
}

/// Reads events up to a commit; `false` if there is none any more.
fn read_block<R: BufRead>(
    trace: &mut Events<R>,
    events: &mut EventsBuf,
) -> container::Result<bool> {
    events.clear();
    // A block of a raw trace ends with its commit.
    while let Some(event) = trace.next_event()? {
        if let Some(event) = replayable(event) {
            events.push(&event);
            if matches!(event, Event::Commit { .. } | Event::CommitGenesisEnd { .. }) {
                return Ok(true);
            }
        }
    }

    Ok(false)
}

/// Objects alive at the end of a block.
#[derive(Default)]
struct Numbers {
    contexts: Vec<u64>,
    trees: Vec<u64>,
}

impl Numbers {
    /// Takes away what was there at the end of the block before; returns what is left.
    fn forgotten(self, replay: &mut Replay<'_>) -> Self {
        for number in &self.contexts {
            replay.contexts.remove(number);
        }
        for number in &self.trees {
            replay.trees.remove(number);
        }
        Self {
            contexts: replay.contexts.keys().copied().collect(),
            trees: replay.trees.keys().copied().collect(),
        }
    }
}

fn keep(value: u64) -> Tracker {
    Scoped { is_last: false, value }
}

fn used(hash: &[u8]) -> UsedCommit<'_> {
    UsedCommit { is_instantiated: false, hash: Scoped { is_last: false, value: hash } }
}

fn made(hash: &[u8]) -> MadeCommit<'_> {
    MadeCommit { is_first: true, hash: Scoped { is_last: false, value: hash } }
}

fn fold(Fold { depth, order, of, key }: Fold<'_, u64>) -> Fold<'_, Tracker> {
    Fold { depth, order, of: keep(of), key }
}

/// The replayable event that a raw one is; none if it is left out.
fn replayable(event: raw::Event<'_>) -> Option<Event<'_>> {
    use raw::Event as Raw;
    Some(match event {
        Raw::Tree(operation) => Event::Tree(tree_operation(operation)?),
        Raw::FindTree { context, key, to } => {
            Event::FindTree { context: keep(context), key, to: to.map(keep) }
        }
        Raw::FoldStart(start) => Event::FoldStart(fold(start)),
        Raw::FoldEnter { tree } => Event::FoldEnter { tree: keep(tree) },
        Raw::FoldExit { tree } => Event::FoldExit { tree: keep(tree) },
        Raw::FoldEnd { .. } => Event::FoldEnd,
        Raw::Mem { context, key, answer } => Event::Mem { context: keep(context), key, answer },
        Raw::MemTree { context, key, answer } => {
            Event::MemTree { context: keep(context), key, answer }
        }
        Raw::Find { context, key, found } => {
            Event::Find { context: keep(context), key, found: found.is_some() }
        }
        Raw::GetProtocol { context, .. } => Event::GetProtocol { context: keep(context) },
        Raw::Hash { time, message, context, .. } => {
            Event::Hash { time, message, context: keep(context) }
        }
        Raw::FindPredecessorBlock { context, .. } => {
            Event::FindPredecessorBlock { context: keep(context) }
        }
        Raw::FindPredecessorOps { context, .. } => {
            Event::FindPredecessorOps { context: keep(context) }
        }
        Raw::GetTestChain { context, .. } => Event::GetTestChain { context: keep(context) },
        Raw::Add { .. }
        | Raw::AddTree { .. }
        | Raw::Remove { .. }
        | Raw::AddProtocol { .. }
        | Raw::AddPredecessorBlock { .. }
        | Raw::AddPredecessorOps { .. }
        | Raw::AddTestChain { .. }
        | Raw::RemoveTestChain { .. }
        | Raw::ForkTestChain { .. } => return change(event),
        other => return store_event(other),
    })
}

/// A change of a context.
fn change(event: raw::Event<'_>) -> Option<Event<'_>> {
    use raw::Event as Raw;
    Some(match event {
        Raw::Add { context, key, value, to } => {
            Event::Add { context: keep(context), key, value, to: keep(to) }
        }
        Raw::AddTree { context, key, tree, to } => {
            Event::AddTree { context: keep(context), key, tree: keep(tree), to: keep(to) }
        }
        Raw::Remove { context, key, to } => {
            Event::Remove { context: keep(context), key, to: keep(to) }
        }
        Raw::AddProtocol { context, hash, to } => {
            Event::AddProtocol { context: keep(context), hash, to: keep(to) }
        }
        Raw::AddPredecessorBlock { context, hash, to } => {
            Event::AddPredecessorBlock { context: keep(context), hash, to: keep(to) }
        }
        Raw::AddPredecessorOps { context, hash, to } => {
            Event::AddPredecessorOps { context: keep(context), hash, to: keep(to) }
        }
        Raw::AddTestChain { context, status, to } => {
            Event::AddTestChain { context: keep(context), status, to: keep(to) }
        }
        Raw::RemoveTestChain { context, to } => {
            Event::RemoveTestChain { context: keep(context), to: keep(to) }
        }
        Raw::ForkTestChain { context, protocol, time, to } => {
            Event::ForkTestChain { context: keep(context), protocol, time, to: keep(to) }
        }
        _ => return None,
    })
}

/// Returns the event of the store that a raw event is, if the store executes it.
fn store_event(event: raw::Event<'_>) -> Option<Event<'_>> {
    use raw::Event as Raw;
    Some(match event {
        Raw::Exists { commit, answer, .. } => Event::Exists { commit: used(commit), answer },
        Raw::Checkout { commit, to, .. } | Raw::CheckoutExn { commit, to, .. } => match to {
            Some(to) => Event::Checkout { commit: used(commit), to: keep(to) },
            None => Event::Exists { commit: used(commit), answer: false },
        },
        Raw::CommitGenesisStart { chain, time, protocol, .. } => {
            Event::CommitGenesisStart { chain, time, protocol }
        }
        Raw::CommitGenesisEnd { commit, .. } => Event::CommitGenesisEnd { commit: made(commit?) },
        Raw::ClearTestChain { chain } => Event::ClearTestChain { chain },
        Raw::Commit { time, message, context, commit, .. } => {
            Event::Commit { time, message, context: keep(context), commit: made(commit) }
        }
        Raw::Init { is_readonly } => Event::Init { is_readonly },
        Raw::PatchContextEnter { context } => Event::PatchContextEnter { context: keep(context) },
        Raw::PatchContextExit { from, to } => {
            Event::PatchContextExit { from: keep(from), to: keep(to?) }
        }
        Raw::Gc { commit, .. } => Event::Gc { commit: used(commit) },
        Raw::Split => Event::Split,
        _ => return None,
    })
}

fn tree_operation<'a>(
    operation: TreeOperation<'a, u64, Option<Lookup<'a>>, &'a [u8]>,
) -> Option<Operation<'a>> {
    use TreeOperation as Op;
    Some(match operation {
        Op::Empty { context, to } => Op::Empty { context: keep(context), to: keep(to) },
        Op::OfValue { context, value, to } => {
            Op::OfValue { context: keep(context), value, to: keep(to) }
        }
        Op::OfRaw { raw, to } => Op::OfRaw { raw, to: keep(to) },
        Op::Mem { tree, key, answer } => Op::Mem { tree: keep(tree), key, answer },
        Op::MemTree { tree, key, answer } => Op::MemTree { tree: keep(tree), key, answer },
        Op::Find { tree, key, found } => Op::Find { tree: keep(tree), key, found: found.is_some() },
        Op::IsEmpty { tree, answer } => Op::IsEmpty { tree: keep(tree), answer },
        Op::Kind { tree, kind } => Op::Kind { tree: keep(tree), kind },
        Op::Hash { tree, .. } => Op::Hash { tree: keep(tree), hash: () },
        Op::Equal { left, right, answer } => {
            Op::Equal { left: keep(left), right: keep(right), answer }
        }
        Op::ToValue { tree, found } => Op::ToValue { tree: keep(tree), found: found.is_some() },
        Op::Clear { depth, tree } => Op::Clear { depth, tree: keep(tree) },
        Op::FindTree { tree, key, to } => Op::FindTree { tree: keep(tree), key, to: to.map(keep) },
        Op::List(_) => return None,
        Op::Add { tree, key, value, to } => Op::Add { tree: keep(tree), key, value, to: keep(to) },
        Op::AddTree { tree, key, child, to } => {
            Op::AddTree { tree: keep(tree), key, child: keep(child), to: keep(to) }
        }
        Op::Remove { tree, key, to } => Op::Remove { tree: keep(tree), key, to: keep(to) },
        Op::FoldStart(start) => Op::FoldStart(fold(start)),
        Op::FoldEnter { tree } => Op::FoldEnter { tree: keep(tree) },
        Op::FoldExit { tree } => Op::FoldExit { tree: keep(tree) },
        Op::FoldEnd { count } => Op::FoldEnd { count },
    })
}
