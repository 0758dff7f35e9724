//! Replay of the traces of Octez, replayable and raw, over Terrane's context store.
//!
//! A block is one row of a replayable trace, or all events of a raw trace up to a commit, with the
//! commit. Keys are logical: they lie below `data`. The replay compares every recorded answer, and
//! the hashes of commits unless the options ignore them. Without hashes, a commit of the trace
//! stands for the commit of the store that was made in its place.
//!
//! Folds nest. The events between the start and the end of a fold belong to its callback, once for
//! each visit, and the callback executes them. A fold recorded in *undefined* order runs in the
//! order of this store, so an answer that depends on the order can differ.
//!
//! The replay keeps contexts and trees of a replayable trace until their last use, which the trace
//! marks. A raw trace has no such marks: the replay keeps them until the end of the next block.

// Bottom-up: a module imports only from modules above it.
mod error;
mod raw;

use std::collections::HashMap;
use std::io::BufRead;
use std::time::Instant;

use bitcoin::base58;
use terrane::context::{
    self as store, ChainId, Context, GcPace, Hash, Kind, Meta, Retain, Store, TestChain,
    TezosContext, Tree,
};

pub use self::error::{Error, EventPlace, Result};
use crate::engines::context::CommitHash;
use crate::monitor::{Monitor, Phase};
use crate::traces::container::replayable::{Blocks, Event, MadeCommit, Tracker, UsedCommit};
use crate::traces::container::{
    self, Depth, DepthKind, Fold, Key, Order, RawTree, Scoped, Status, TreeKind, TreeOperation,
};
use crate::traces::irmin::{Collection, Counts, Options, Report};

/// Author of all commits of Octez.
const AUTHOR: &[u8] = b"Tezos";

/// Message of the first commit of a chain.
const GENESIS: &[u8] = b"Genesis";

/// Depth of nested folds at most. Real folds nest three deep.
const FOLDS_MAX: u32 = 64;

/// Bytes of a hash.
const HASH_BYTES: usize = 32;
/// Bytes of the identity of a chain.
const CHAIN_BYTES: usize = 4;

type Operation<'a> = TreeOperation<'a, Tracker, bool, ()>;

/// Replays a replayable trace.
///
/// Cost: memory of one block, and of the contexts and trees that the trace has not forgotten.
///
/// # Errors
/// [`Error::ResultMismatch`], [`Error::FoldMismatch`], [`Error::HashMismatch`] if the store, or the
/// trace, is wrong; [`Error::Unknown`], [`Error::UnknownCommit`], [`Error::Unexpected`] if the
/// trace makes no sense; [`Error::Trace`]; [`Error::Store`]; [`Error::Interrupted`]. A trace that
/// is cut in its last row is not an error; see [`Report::truncated_at`].
pub fn replay(
    input: impl BufRead,
    store: &Store,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report> {
    let mut blocks = Blocks::open(input)?;
    // The trace says how many blocks it has, which gives the progress a total.
    let total = options.until.unwrap_or(u64::MAX).min(blocks.header().block_count);
    let mut replay = Replay::new(store, !options.ignores_hashes);
    replay.report.transactions = Some(0);
    let start = Instant::now();

    while options.until.is_none_or(|until| replay.place.block < until) {
        let block_start = Instant::now();
        let block = match blocks.next_block() {
            Ok(Some(block)) => block,
            Ok(None) => break,
            Err(error) => {
                replay.report.truncated_at = Some(truncated(error, monitor)?);
                break;
            }
        };

        // Errors name the level of the block.
        replay.place.level = Some(block.statistics.level);
        replay.block(&mut block.events())?;
        if let Some(transactions) = &mut replay.report.transactions {
            *transactions = transactions.saturating_add(block.statistics.tzop_count_tx);
        }
        replay.report.blocks.record(block_start.elapsed());
        replay.ended_block(options.collection, Some(total), monitor)?;
    }

    replay.report.wall_s = start.elapsed().as_secs_f64();
    Ok(replay.report)
}

pub use self::raw::replay as replay_raw;

/// Returns the place where a trace is cut, if its only fault is the cut.
fn truncated(error: container::Error, monitor: &mut dyn Monitor) -> Result<u64> {
    // A trace that was cut off is replayed as far as it goes.
    match error {
        container::Error::TruncatedTrace { offset, .. } => {
            monitor.warn(&error);
            Ok(offset)
        }
        error => Err(error.into()),
    }
}

/// First commit of a chain, between its start and its end.
struct Genesis {
    chain: ChainId,
    time: i64,
    protocol: [u8; HASH_BYTES],
    context: TezosContext,
}

/// State of a replay between two events.
struct Replay<'s> {
    store: &'s Store,
    compares_hashes: bool,
    /// Empty tree of the store, from which other trees are made.
    blank: Tree,
    contexts: HashMap<u64, TezosContext>,
    trees: HashMap<u64, Tree>,
    /// Commits of the store by the commits of the trace.
    commits: HashMap<Vec<u8>, Hash>,
    genesis: Option<Genesis>,
    report: Report,
    place: EventPlace,
}

/// Remaining events of a block.
type Rest<'r, 'a> = dyn Iterator<Item = Event<'a>> + 'r;

fn steps(key: Key<'_>) -> Vec<&[u8]> {
    key.items().collect()
}

fn fold_of(depth: Option<Depth>, order: Order) -> store::Fold {
    let bound = |depth: u64| usize::try_from(depth).unwrap_or(usize::MAX);
    store::Fold {
        depth: depth.map(|Depth { kind, depth }| match kind {
            DepthKind::Eq => store::Depth::Eq(bound(depth)),
            DepthKind::Ge => store::Depth::Ge(bound(depth)),
            DepthKind::Gt => store::Depth::Gt(bound(depth)),
            DepthKind::Le => store::Depth::Le(bound(depth)),
            DepthKind::Lt => store::Depth::Lt(bound(depth)),
        }),
        order: match order {
            Order::Sorted => store::Order::Sorted,
            Order::Undefined => store::Order::Undefined,
        },
        ..store::Fold::default()
    }
}

/// The last `N` bytes of what a trace has of a hash: the bytes themselves, or their text in base58
/// with a checksum.
fn digest<const N: usize>(recorded: &[u8]) -> Option<[u8; N]> {
    /// No text of a hash is longer; decoding takes time with the square of the length.
    const TEXT_CHARS_MAX: usize = 64;
    if let Ok(bytes) = recorded.try_into() {
        return Some(bytes);
    }
    let text = str::from_utf8(recorded).ok().filter(|text| text.len() <= TEXT_CHARS_MAX)?;
    let bytes = base58::decode_check(text).ok()?;
    // Two or three bytes before the hash say its kind.
    bytes.last_chunk().filter(|_| bytes.len() <= N + 3).copied()
}

/// Returns the object of a number, and forgets the object after its last use.
fn take<T: Clone>(all: &mut HashMap<u64, T>, of: Tracker) -> Option<T> {
    // The last use gives the object away, which saves a copy.
    if of.is_last { all.remove(&of.value) } else { all.get(&of.value).cloned() }
}

/// Lets a number stand for something from now on, if it is used again.
fn put<T>(all: &mut HashMap<u64, T>, to: Tracker, value: T) {
    // A result that no event uses is not kept.
    if to.is_last {
        all.remove(&to.value);
    } else {
        all.insert(to.value, value);
    }
}

/// Returns the hash of a commit as text.
fn commit_text(recorded: &[u8]) -> String {
    match digest(recorded) {
        Some(hash) => CommitHash(hash).to_string(),
        None => String::from_utf8_lossy(recorded).into_owned(),
    }
}

impl<'s> Replay<'s> {
    fn new(store: &'s Store, compares_hashes: bool) -> Self {
        Self {
            store,
            compares_hashes,
            blank: store.empty().tree().clone(),
            contexts: HashMap::new(),
            trees: HashMap::new(),
            commits: HashMap::new(),
            genesis: None,
            report: Report::new(),
            place: EventPlace::default(),
        }
    }

    /// Executes the events of a block.
    fn block(&mut self, events: &mut Rest<'_, '_>) -> Result<()> {
        self.place.event = 0;
        while let Some(event) = events.next() {
            self.apply(&event, events, 0).map_err(|error| error.at(self.place))?;
            self.place.event += 1;
        }
        Ok(())
    }

    /// Counts a block, and collects old commits where a collection is due.
    fn ended_block(
        &mut self,
        collection: Option<Collection>,
        total: Option<u64>,
        monitor: &mut dyn Monitor,
    ) -> Result<()> {
        self.place.block += 1;
        // `every` may be 0, and then means every block.
        let is_due = |of: &Collection| self.place.block.is_multiple_of(of.every.max(1));
        if let Some(Collection { distance, .. }) = collection.filter(is_due) {
            let collected = self.collect(&Retain::newest(distance));
            collected.map_err(|error| error.at(self.place))?;
        }

        monitor.progress(Phase::Replay, self.place.block, total);
        if monitor.stop() { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn collect(&mut self, retain: &Retain) -> Result<()> {
        let start = Instant::now();
        self.store.collect(retain, &mut |_| GcPace::Go)?;
        self.report.collections.record(start.elapsed());
        Ok(())
    }

    fn counts(&mut self) -> &mut Counts {
        &mut self.report.counts
    }

    fn unexpected<T>(&self, what: &'static str) -> Result<T> {
        Err(Error::Unexpected { place: self.place, what })
    }

    fn hash_of<const N: usize>(&self, recorded: &[u8]) -> Result<[u8; N]> {
        digest(recorded)
            .map_or_else(|| self.unexpected("a hash has a wrong length or checksum"), Ok)
    }

    fn context(&mut self, of: Tracker) -> Result<TezosContext> {
        let place = self.place;
        let number = of.value;
        take(&mut self.contexts, of).ok_or(Error::Unknown { place, kind: "context", number })
    }

    fn tree(&mut self, of: Tracker) -> Result<Tree> {
        let place = self.place;
        let number = of.value;
        take(&mut self.trees, of).ok_or(Error::Unknown { place, kind: "tree", number })
    }

    fn put_context(&mut self, to: Tracker, context: TezosContext) {
        put(&mut self.contexts, to, context);
    }

    fn put_tree(&mut self, to: Tracker, tree: Tree) {
        put(&mut self.trees, to, tree);
    }

    fn put_found(&mut self, to: Option<Tracker>, found: Option<Tree>) {
        if let Some((to, found)) = to.zip(found) {
            self.put_tree(to, found);
        }
    }

    /// Compares an answer with the recorded answer.
    fn check(
        &mut self,
        question: &'static str,
        key: &[&[u8]],
        (expected, found): (bool, bool),
    ) -> Result<()> {
        if expected != found {
            let text = |step: &&[u8]| String::from_utf8_lossy(step).into_owned();
            let path = key.iter().map(text).collect::<Vec<_>>().join("/");
            let place = self.place;
            return Err(Error::ResultMismatch { place, question, path, expected, found });
        }

        self.report.checks_passed += 1;
        Ok(())
    }

    /// Executes an event, with the events of its callback if the event begins a fold.
    fn apply(&mut self, event: &Event<'_>, rest: &mut Rest<'_, '_>, folds: u32) -> Result<()> {
        match *event {
            Event::Tree(TreeOperation::FoldStart(Fold { depth, order, of, key })) => {
                let tree = self.tree(of)?;
                let start = tree.find_tree(&steps(key))?;
                self.fold(start, fold_of(depth, order), rest, folds)
            }
            Event::FoldStart(Fold { depth, order, of, key }) => {
                let context = self.context(of)?;
                let start = context.find_tree(&steps(key))?;
                self.fold(start, fold_of(depth, order), rest, folds)
            }
            Event::Tree(ref operation) => self.tree_operation(operation),
            Event::Mem { .. }
            | Event::MemTree { .. }
            | Event::Find { .. }
            | Event::FindTree { .. }
            | Event::GetProtocol { .. }
            | Event::FindPredecessorBlock { .. }
            | Event::FindPredecessorOps { .. }
            | Event::GetTestChain { .. }
            | Event::Hash { .. }
            | Event::Exists { .. } => self.read(event),
            Event::FoldEnter { .. } | Event::FoldExit { .. } | Event::FoldEnd => {
                self.unexpected("a visit of a fold outside of one")
            }
            Event::Add { context, to, .. }
            | Event::AddTree { context, to, .. }
            | Event::Remove { context, to, .. }
            | Event::AddProtocol { context, to, .. }
            | Event::AddPredecessorBlock { context, to, .. }
            | Event::AddPredecessorOps { context, to, .. }
            | Event::AddTestChain { context, to, .. }
            | Event::RemoveTestChain { context, to, .. }
            | Event::ForkTestChain { context, to, .. } => {
                let mut changed = self.context(context)?;
                self.change(event, &mut changed)?;
                self.put_context(to, changed);
                Ok(())
            }
            _ => self.store_event(event),
        }
    }

    /// Folds, with what the trace has of the callback.
    fn fold(
        &mut self,
        start: Option<Tree>,
        fold: store::Fold,
        rest: &mut Rest<'_, '_>,
        folds: u32,
    ) -> Result<()> {
        // Folds come from the trace, and each takes stack.
        if folds == FOLDS_MAX {
            return self.unexpected("folds lie in each other too deep");
        }
        self.counts().folds += 1;

        // A fold below a path that is not there visits nothing.
        if let Some(start) = start {
            let root: [&[u8]; 0] = [];
            start.fold(&root, fold, (), |_, tree, ()| self.visit(tree, rest, folds + 1))?;
        }

        // The store has visited all children, so the fold must end in the trace too.
        match self.next(rest)? {
            Event::FoldEnd | Event::Tree(TreeOperation::FoldEnd { .. }) => {
                self.report.checks_passed += 1;
                Ok(())
            }
            Event::FoldEnter { .. } | Event::Tree(TreeOperation::FoldEnter { .. }) => {
                Err(Error::FoldMismatch { place: self.place, is_more: false })
            }
            _ => self.unexpected("an event of a callback outside of a visit"),
        }
    }

    fn next<'a>(&mut self, rest: &mut Rest<'_, 'a>) -> Result<Event<'a>> {
        self.place.event += 1;
        match rest.next() {
            Some(event) => Ok(event),
            None => self.unexpected("the block ends in a fold"),
        }
    }

    /// Executes what is recorded of one call of a callback.
    fn visit(&mut self, tree: Tree, rest: &mut Rest<'_, '_>, folds: u32) -> Result<()> {
        // Each visit of the store must be one of the trace, in the same order.
        match self.next(rest)? {
            Event::FoldEnter { tree: to } | Event::Tree(TreeOperation::FoldEnter { tree: to }) => {
                self.put_tree(to, tree);
            }
            Event::FoldEnd | Event::Tree(TreeOperation::FoldEnd { .. }) => {
                return Err(Error::FoldMismatch { place: self.place, is_more: true });
            }
            _ => return self.unexpected("an event of a callback outside of a visit"),
        }

        loop {
            match self.next(rest)? {
                Event::FoldExit { tree } | Event::Tree(TreeOperation::FoldExit { tree }) => {
                    // The callback has used the tree for the last time.
                    if tree.is_last {
                        self.trees.remove(&tree.value);
                    }
                    return Ok(());
                }
                event => {
                    let place = self.place;
                    self.apply(&event, rest, folds).map_err(|error| error.at(place))?;
                }
            }
        }
    }

    /// Executes a question to a context or to the store.
    fn read(&mut self, event: &Event<'_>) -> Result<()> {
        match *event {
            Event::Mem { context, key, answer } => {
                self.counts().mems += 1;
                let found = self.context(context)?.mem(&steps(key))?;
                self.check("mem", &steps(key), (answer, found))
            }
            Event::MemTree { context, key, answer } => {
                self.counts().mem_trees += 1;
                let found = self.context(context)?.mem_tree(&steps(key))?;
                self.check("mem_tree", &steps(key), (answer, found))
            }
            Event::Find { context, key, found: answer } => {
                self.counts().finds += 1;
                let found = self.context(context)?.find(&steps(key))?.is_some();
                self.check("find", &steps(key), (answer, found))
            }
            Event::FindTree { context, key, to } => {
                self.counts().find_trees += 1;
                let found = self.context(context)?.find_tree(&steps(key))?;
                self.check("find_tree", &steps(key), (to.is_some(), found.is_some()))?;
                self.put_found(to, found);
                Ok(())
            }
            Event::Exists { commit, answer } => {
                self.counts().others += 1;
                let known = self.known(commit);
                let found = known.map_or(Ok(false), |hash| self.store.exists(&hash))?;
                // A commit that is asked about for the last time is forgotten.
                self.forget(commit);
                self.check("exists", &[commit_text(commit.hash.value).as_bytes()], (answer, found))
            }
            Event::Hash { time: date, message, context } => {
                self.counts().others += 1;
                let context = self.context(context)?;
                let message = message.unwrap_or_default();
                // The hash is computed for its cost: the trace does not tell what it was.
                self.store.hash(context.context(), &Meta { date, author: AUTHOR, message });
                Ok(())
            }
            _ => self.read_metadata(event),
        }
    }

    /// Executes a question about the metadata of a context. The trace records no answers to it.
    fn read_metadata(&mut self, event: &Event<'_>) -> Result<()> {
        // The trace does not tell the answers, so the calls alone are replayed.
        self.counts().others += 1;
        match *event {
            Event::GetProtocol { context } => {
                self.context(context)?.protocol()?;
            }
            Event::FindPredecessorBlock { context } => {
                self.context(context)?.predecessor_block_metadata_hash()?;
            }
            Event::FindPredecessorOps { context } => {
                self.context(context)?.predecessor_ops_metadata_hash()?;
            }
            Event::GetTestChain { context } => {
                self.context(context)?.test_chain()?;
            }
            _ => unreachable!("not a question"),
        }

        Ok(())
    }

    /// Executes a change of a context.
    fn change(&mut self, event: &Event<'_>, context: &mut TezosContext) -> Result<()> {
        match *event {
            Event::Add { key, value, .. } => {
                self.counts().adds += 1;
                context.add(&steps(key), value)?;
            }
            Event::AddTree { key, tree, .. } => {
                self.counts().add_trees += 1;
                let tree = self.tree(tree)?;
                context.add_tree(&steps(key), &tree)?;
            }
            Event::Remove { key, .. } => {
                self.counts().removes += 1;
                context.remove(&steps(key))?;
            }
            _ => {
                self.counts().others += 1;
                self.change_chain(event, context)?;
            }
        }

        Ok(())
    }

    /// Executes a change of what a context has beside the data of the protocol.
    fn change_chain(&self, event: &Event<'_>, context: &mut TezosContext) -> Result<()> {
        match *event {
            Event::AddProtocol { hash, .. } => context.set_protocol(&self.hash_of(hash)?)?,
            Event::AddPredecessorBlock { hash, .. } => {
                context.set_predecessor_block_metadata_hash(&self.hash_of(hash)?)?;
            }
            Event::AddPredecessorOps { hash, .. } => {
                context.set_predecessor_ops_metadata_hash(&self.hash_of(hash)?)?;
            }
            Event::AddTestChain { status, .. } => context.set_test_chain(self.status(status)?)?,
            Event::RemoveTestChain { .. } => context.remove_test_chain()?,
            Event::ForkTestChain { protocol, time: expiration, .. } => {
                let protocol = self.hash_of(protocol)?;
                context.set_test_chain(TestChain::Forking { protocol, expiration })?;
            }
            _ => unreachable!("no change of a context"),
        }

        Ok(())
    }

    fn status(&self, status: Status<'_>) -> Result<TestChain> {
        Ok(match status {
            Status::NotRunning => TestChain::NotRunning,
            Status::Forking { protocol, expiration } => {
                TestChain::Forking { protocol: self.hash_of(protocol)?, expiration }
            }
            Status::Running { chain, genesis, protocol, expiration } => TestChain::Running {
                chain: self.chain(chain)?,
                genesis: self.hash_of(genesis)?,
                protocol: self.hash_of(protocol)?,
                expiration,
            },
        })
    }

    fn chain(&self, recorded: &[u8]) -> Result<ChainId> {
        Ok(ChainId(self.hash_of::<CHAIN_BYTES>(recorded)?))
    }

    /// Executes what is neither a question to a context nor a change of one.
    fn store_event(&mut self, event: &Event<'_>) -> Result<()> {
        match *event {
            Event::Checkout { commit, to } => {
                self.counts().checkouts += 1;
                let hash = self.commit_of(commit)?;
                let found = self.store.checkout_tezos(&hash)?;
                let context = found.ok_or_else(|| self.unknown(commit))?;
                self.forget(commit);
                self.put_context(to, context);
                Ok(())
            }
            Event::Commit { time, message, context, commit } => {
                let context = self.context(context)?;
                self.commit(context.context(), (time, message.unwrap_or_default()), commit)?;
                Ok(())
            }
            Event::CommitGenesisStart { .. }
            | Event::PatchContextEnter { .. }
            | Event::PatchContextExit { .. }
            | Event::CommitGenesisEnd { .. } => self.genesis_event(event),
            Event::ClearTestChain { chain } => {
                self.counts().others += 1;
                self.store.clear_test_chain(self.chain(chain)?)?;
                Ok(())
            }
            Event::Gc { commit } => {
                self.counts().others += 1;
                let hash = self.commit_of(commit)?;
                self.forget(commit);
                self.collect(&Retain::since(hash))
            }
            Event::Split => {
                self.counts().others += 1;
                match self.store.split() {
                    Err(store::Error::EmptyChunk) => Ok(()),
                    split => Ok(split?),
                }
            }
            Event::Init { .. } => {
                self.counts().others += 1;
                Ok(())
            }
            _ => unreachable!("an event of contexts"),
        }
    }

    fn genesis_event(&mut self, event: &Event<'_>) -> Result<()> {
        const NONE: &str = "no first commit of a chain is being made";
        match *event {
            Event::CommitGenesisStart { chain, time, protocol } => {
                let chain = self.chain(chain)?;
                let protocol = self.hash_of(protocol)?;
                let context = TezosContext::from(self.store.empty());
                self.genesis = Some(Genesis { chain, time, protocol, context });
                Ok(())
            }
            Event::PatchContextEnter { context } => {
                let Some(genesis) = &self.genesis else { return self.unexpected(NONE) };
                let patched = genesis.context.clone();
                self.put_context(context, patched);
                Ok(())
            }
            Event::PatchContextExit { from, to } => {
                let patched = self.context(Scoped { is_last: false, ..to })?;
                for used in [from, to].iter().filter(|used| used.is_last) {
                    self.contexts.remove(&used.value);
                }
                let Some(genesis) = &mut self.genesis else { return self.unexpected(NONE) };
                genesis.context = patched;
                Ok(())
            }
            Event::CommitGenesisEnd { commit } => {
                let Some(genesis) = self.genesis.take() else { return self.unexpected(NONE) };
                let Genesis { chain, time, protocol, mut context } = genesis;
                context.set_protocol(&protocol)?;
                context.set_test_chain(TestChain::NotRunning)?;
                let hash = self.commit(context.context(), (time, GENESIS), commit)?;
                self.store.set_head(chain, &hash)?;
                Ok(())
            }
            _ => unreachable!("no event of a first commit"),
        }
    }

    /// The commit of the store that one of the trace is, as far as is known. What the trace has not
    /// made can be there all the same.
    fn known(&self, commit: UsedCommit<'_>) -> Option<Hash> {
        let recorded = commit.hash.value;
        let made = self.commits.get(recorded).copied();
        made.or_else(|| digest(recorded).map(Hash))
    }

    fn commit_of(&self, commit: UsedCommit<'_>) -> Result<Hash> {
        self.known(commit).ok_or_else(|| self.unknown(commit))
    }

    fn unknown(&self, commit: UsedCommit<'_>) -> Error {
        let commit = commit_text(commit.hash.value);
        Error::UnknownCommit { place: self.place, commit }
    }

    fn forget(&mut self, commit: UsedCommit<'_>) {
        if commit.hash.is_last {
            self.commits.remove(commit.hash.value);
        }
    }

    fn commit(
        &mut self,
        context: &Context,
        (date, message): (i64, &[u8]),
        made: MadeCommit<'_>,
    ) -> Result<Hash> {
        let start = Instant::now();
        let hash = self.store.commit(context, &Meta { date, author: AUTHOR, message })?;
        self.report.commits.record(start.elapsed());
        self.counts().commits += 1;
        let got = CommitHash(*hash.as_bytes());
        self.report.last_commit = Some(got);
        let recorded = made.hash.value;

        if self.compares_hashes {
            let expected = CommitHash(self.hash_of(recorded)?);
            if got != expected {
                return Err(Error::HashMismatch { place: self.place, expected, got });
            }
            self.report.checks_passed += 1;
        }

        if made.hash.is_last {
            // An equal commit may exist already.
            self.commits.remove(recorded);
        } else {
            self.commits.insert(recorded.to_vec(), hash);
        }

        Ok(hash)
    }

    /// Executes an operation on a tree that is not part of a fold.
    fn tree_operation(&mut self, operation: &Operation<'_>) -> Result<()> {
        use TreeOperation as Op;
        match *operation {
            Op::Mem { tree, key, answer } => {
                self.counts().mems += 1;
                let found = self.tree(tree)?.mem(&steps(key))?;
                self.check("mem of a tree", &steps(key), (answer, found))
            }
            Op::MemTree { tree, key, answer } => {
                self.counts().mem_trees += 1;
                let found = self.tree(tree)?.mem_tree(&steps(key))?;
                self.check("mem_tree of a tree", &steps(key), (answer, found))
            }
            Op::Find { tree, key, found: answer } => {
                self.counts().finds += 1;
                let found = self.tree(tree)?.find(&steps(key))?.is_some();
                self.check("find of a tree", &steps(key), (answer, found))
            }
            Op::FindTree { tree, key, to } => {
                self.counts().find_trees += 1;
                let found = self.tree(tree)?.find_tree(&steps(key))?;
                self.check("find_tree of a tree", &steps(key), (to.is_some(), found.is_some()))?;
                self.put_found(to, found);
                Ok(())
            }
            Op::Add { tree, key, value, to } => {
                self.counts().adds += 1;
                let mut changed = self.tree(tree)?;
                changed.add(&steps(key), value)?;
                self.put_tree(to, changed);
                Ok(())
            }
            Op::AddTree { tree, key, child, to } => {
                self.counts().add_trees += 1;
                let mut changed = self.tree(tree)?;
                let child = self.tree(child)?;
                changed.add_tree(&steps(key), &child)?;
                self.put_tree(to, changed);
                Ok(())
            }
            Op::Remove { tree, key, to } => {
                self.counts().removes += 1;
                let mut changed = self.tree(tree)?;
                changed.remove(&steps(key))?;
                self.put_tree(to, changed);
                Ok(())
            }
            _ => {
                self.counts().others += 1;
                self.rare_tree_operation(operation)
            }
        }
    }

    fn rare_tree_operation(&mut self, operation: &Operation<'_>) -> Result<()> {
        use TreeOperation as Op;
        match *operation {
            Op::Empty { context, to } => {
                let empty = self.context(context)?.context().tree().empty();
                self.put_tree(to, empty);
            }
            Op::OfValue { context, value, to } => {
                let tree = self.context(context)?.context().tree().of_value(value);
                self.put_tree(to, tree);
            }
            Op::OfRaw { raw, to } => {
                let tree = self.of_raw(raw)?;
                self.put_tree(to, tree);
            }
            Op::IsEmpty { tree, answer } => {
                let found = self.tree(tree)?.is_empty();
                self.check("is_empty", &[], (answer, found))?;
            }
            Op::Kind { tree, kind } => {
                let found = self.tree(tree)?.kind() == Kind::Value;
                self.check("is a value", &[], (kind == TreeKind::Value, found))?;
            }
            Op::Hash { tree, hash: () } => drop(self.tree(tree)?.hash()),
            Op::Equal { left, right, answer } => {
                // Both operands may be one object, used for the last time.
                let found = self.tree(Scoped { is_last: false, ..left })? == self.tree(right)?;
                if left.is_last {
                    self.trees.remove(&left.value);
                }
                self.check("equal", &[], (answer, found))?;
            }
            Op::ToValue { tree, found: answer } => {
                let found = self.tree(tree)?.to_value()?.is_some();
                self.check("to_value", &[], (answer, found))?;
            }
            Op::Clear { tree, .. } => {
                let mut cleared = self.tree(tree)?;
                cleared.clear();
                if !tree.is_last {
                    self.trees.insert(tree.value, cleared);
                }
            }
            Op::List(_) => return self.unexpected("a list, of which the trace does not say what"),
            _ => return self.unexpected("a visit of a fold outside of one"),
        }

        Ok(())
    }

    /// The tree that stands in the trace. It nests no deeper than the reader of traces allows.
    fn of_raw(&self, raw: RawTree<'_>) -> Result<Tree> {
        match raw {
            RawTree::Value(value) => Ok(self.blank.of_value(value)),
            RawTree::Directory(children) => {
                let mut tree = self.blank.empty();
                for (step, child) in children.items() {
                    tree.add_tree(&[step], &self.of_raw(child)?)?;
                }
                Ok(tree)
            }
        }
    }
}

#[cfg(test)]
mod tests;
