//! The same blocks without a disk: on a context tree in memory, and on a plain sorted map.
//!
//! The tree keeps the directories, hashes and versions of the context store: the version before a
//! block stays as it was, and a block ends with the hash of its root. The map, from whole paths to
//! values, keeps none of them: a block changes it in place. So the map is the floor of what the
//! operations cost, and the difference is the price of hashes and versions.
//!
//! Each gets the starting state and the blocks of the run, on one thread, one after the other; each
//! read is compared. The commits of the tree have the hashes that the store has given.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use terrane::context::{CommitInfo as HashedCommit, Error as TreeError, Hash, Rules, Tree};

use super::block::Block;
use super::report::{InMemoryPhase, InMemoryReport};
use super::{Generator, Options};
use crate::workloads::{Result, seconds};
use terrane_replay::engines::context::{
    CommitHash, CommitInfo, Context, HASH_BYTES, Steps, StepsBuf,
};
use terrane_replay::engines::engine::{EngineError, Result as EngineResult};
use terrane_replay::latency::Latency;
use terrane_replay::monitor::{Monitor, Phase};

/// Values between two reports to the monitor.
const TOLD_EVERY: u64 = 10_000;

/// Blocks to build.
pub(super) struct Work<'a> {
    /// Options of the generator of the blocks.
    pub(super) drawn: Options,
    /// Blocks that are not measured.
    pub(super) warm_up: u64,
    /// Blocks that are measured.
    pub(super) blocks: u64,
    /// Metadata of the commit of the starting state; all commits have its author.
    pub(super) state: CommitInfo<'a>,
}

/// Measures both; returns also the last commit of the tree. `None` if the run is to stop.
pub(super) fn measure(
    work: &Work<'_>,
    monitor: &mut dyn Monitor,
) -> Result<Option<(InMemoryReport, CommitHash)>> {
    let tree = TreeContext::new().map_err(EngineError::from)?;
    let Some((tree, tip)) = work.measure(tree, monitor)? else { return Ok(None) };
    let Some((mut map, _)) = work.measure(MapContext::default(), monitor)? else {
        return Ok(None);
    };

    // A commit of the map is no work.
    map.commit_latency_ms = None;
    Ok(Some((InMemoryReport { tree, map }, tip)))
}

impl Work<'_> {
    /// Loads the starting state into an empty context, and measures its blocks.
    fn measure(
        &self,
        mut context: impl Context,
        monitor: &mut dyn Monitor,
    ) -> Result<Option<(InMemoryPhase, CommitHash)>> {
        let mut generator = Generator::new(self.drawn)?;
        let mut path = StepsBuf::new();
        let mut value = Vec::new();

        let start = Instant::now();
        let count = generator.state().count();
        for number in 0..count {
            generator.state().entry(number, &mut path, &mut value);
            context.add(path.steps(), &value)?;
            if number % TOLD_EVERY == 0 {
                monitor.progress(Phase::Fill, number, Some(count));
                if monitor.stop() {
                    return Ok(None);
                }
            }
        }
        let mut tip = context.commit(&self.state, &[])?;
        let load_s = seconds(start);

        let mut block = Block::new();
        let [mut operations, mut commits, mut blocks] = [(); 3].map(|()| Latency::new());
        let mut in_operations = Duration::ZERO;
        let mut all = Duration::ZERO;
        let mut ops = 0;

        for number in 0..self.warm_up + self.blocks {
            // Drawing is not measured.
            generator.next_block(&mut block);
            let start = Instant::now();
            block.apply(&mut context, &mut value)?;
            let built = start.elapsed();
            let info = CommitInfo { date: block.date, author: self.state.author, message: b"" };
            tip = context.commit(&info, &[tip])?;
            let ended = start.elapsed();

            if number >= self.warm_up {
                operations.record(built);
                commits.record(ended.saturating_sub(built));
                blocks.record(ended);
                in_operations += built;
                all += ended;
                ops += block.count() as u64;
            }
            monitor.progress(Phase::Replay, number + 1, Some(self.warm_up + self.blocks));
            if monitor.stop() {
                return Ok(None);
            }
        }

        let rate =
            |count: u64, time: Duration| count as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE);
        let phase = InMemoryPhase {
            load_s,
            blocks: self.blocks,
            ops,
            wall_s: all.as_secs_f64(),
            blocks_per_s: rate(self.blocks, all),
            ops_per_s: rate(ops, in_operations),
            block_latency_ms: blocks.spread(),
            operations_latency_ms: operations.spread(),
            commit_latency_ms: Some(commits.spread()),
        };
        Ok(Some((phase, tip)))
    }
}

/// Context tree in memory.
#[derive(Debug)]
struct TreeContext {
    tree: Tree,
    /// The version of the last commit.
    committed: Tree,
}

impl TreeContext {
    fn new() -> std::result::Result<Self, TreeError> {
        let tree = Tree::new(Rules::TEZOS)?;
        Ok(Self { committed: tree.clone(), tree })
    }
}

impl Context for TreeContext {
    fn fork(&self) -> Box<dyn Context> {
        Box::new(Self { tree: self.tree.clone(), committed: self.committed.clone() })
    }

    fn mem(&mut self, path: Steps<'_>) -> EngineResult<bool> {
        Ok(path.with_list(|steps| self.tree.mem(steps))?)
    }

    fn mem_tree(&mut self, path: Steps<'_>) -> EngineResult<bool> {
        Ok(path.with_list(|steps| self.tree.mem_tree(steps))?)
    }

    fn find(&mut self, path: Steps<'_>, value: &mut Vec<u8>) -> EngineResult<bool> {
        let found = path.with_list(|steps| {
            self.tree.find_with(steps, |found| {
                value.clear();
                value.extend_from_slice(found);
            })
        })?;
        Ok(found.is_some())
    }

    fn add(&mut self, path: Steps<'_>, value: &[u8]) -> EngineResult<()> {
        path.with_list(|steps| self.tree.add(steps, value))?;
        Ok(())
    }

    fn remove(&mut self, path: Steps<'_>) -> EngineResult<()> {
        path.with_list(|steps| self.tree.remove(steps))?;
        Ok(())
    }

    fn copy(&mut self, from: Steps<'_>, to: Steps<'_>) -> EngineResult<bool> {
        let Some(tree) = from.with_list(|steps| self.tree.find_tree(steps))? else {
            return Ok(false);
        };
        to.with_list(|steps| self.tree.add_tree(steps, &tree))?;
        Ok(true)
    }

    fn commit(
        &mut self,
        info: &CommitInfo<'_>,
        parents: &[CommitHash],
    ) -> EngineResult<CommitHash> {
        let root = self.tree.hash();
        self.committed = self.tree.clone();
        let parents: Vec<Hash> = parents.iter().map(|parent| Hash(parent.0)).collect();
        let CommitInfo { date, author, message } = *info;
        let commit = HashedCommit { root: &root, parents: &parents, date, author, message };
        Ok(CommitHash(self.tree.rules().commit_hash(&commit).0))
    }
}

/// Sorted map from whole paths to values.
///
/// A path is its steps, each behind its length, so what is below a path begins with the path.
/// The map has no directories: adding a value looks at no other path.
#[derive(Debug, Clone, Default)]
struct MapContext {
    values: BTreeMap<Box<[u8]>, Vec<u8>>,
    /// Buffer of the path of an operation.
    path: Vec<u8>,
    commits: u64,
}

/// Appends the key of a path.
fn put_key(path: Steps<'_>, key: &mut Vec<u8>) {
    for step in path.iter() {
        key.push(u8::try_from(step.len()).expect("a step has at most 255 bytes"));
        key.extend_from_slice(step);
    }
}

impl MapContext {
    /// Makes the path of an operation the one in the buffer.
    fn key(&mut self, path: Steps<'_>) {
        self.path.clear();
        put_key(path, &mut self.path);
    }

    /// Entries at the path in the buffer and below.
    fn below(&self) -> impl Iterator<Item = (&[u8], &Vec<u8>)> {
        let path = self.path.as_slice();
        let from = (std::ops::Bound::Included(path), std::ops::Bound::Unbounded);
        let entries = self.values.range::<[u8], _>(from).map(|(key, value)| (&**key, value));
        entries.take_while(move |(key, _)| key.starts_with(path))
    }
}

impl Context for MapContext {
    fn fork(&self) -> Box<dyn Context> {
        Box::new(self.clone())
    }

    fn mem(&mut self, path: Steps<'_>) -> EngineResult<bool> {
        self.key(path);
        Ok(self.values.contains_key(&*self.path))
    }

    fn mem_tree(&mut self, path: Steps<'_>) -> EngineResult<bool> {
        self.key(path);
        Ok(self.below().next().is_some())
    }

    fn find(&mut self, path: Steps<'_>, value: &mut Vec<u8>) -> EngineResult<bool> {
        self.key(path);
        let Some(found) = self.values.get(&*self.path) else { return Ok(false) };
        value.clone_from(found);
        Ok(true)
    }

    fn add(&mut self, path: Steps<'_>, value: &[u8]) -> EngineResult<()> {
        self.key(path);
        match self.values.get_mut(&*self.path) {
            Some(found) => {
                found.clear();
                found.extend_from_slice(value);
            }
            None => drop(self.values.insert(self.path.as_slice().into(), value.to_vec())),
        }
        Ok(())
    }

    fn remove(&mut self, path: Steps<'_>) -> EngineResult<()> {
        self.key(path);
        // Nothing is below a value.
        if self.values.remove(&*self.path).is_some() {
            return Ok(());
        }
        let gone: Vec<Box<[u8]>> = self.below().map(|(key, _)| key.into()).collect();
        for key in &gone {
            self.values.remove(key);
        }
        Ok(())
    }

    fn copy(&mut self, from: Steps<'_>, to: Steps<'_>) -> EngineResult<bool> {
        let mut target = Vec::new();
        put_key(to, &mut target);
        self.key(from);
        let moved = |key: &[u8]| [&target, &key[self.path.len()..]].concat().into();
        let copied: Vec<(Box<[u8]>, Vec<u8>)> =
            self.below().map(|(key, value)| (moved(key), value.clone())).collect();
        if copied.is_empty() {
            return Ok(false);
        }
        self.remove(to)?;
        self.values.extend(copied);
        Ok(true)
    }

    /// Returns the number of the commit in the place of a hash.
    fn commit(&mut self, _: &CommitInfo<'_>, _: &[CommitHash]) -> EngineResult<CommitHash> {
        let mut hash = [0; HASH_BYTES];
        hash[..8].copy_from_slice(&self.commits.to_le_bytes());
        self.commits += 1;
        Ok(CommitHash(hash))
    }
}
