//! The visible state of an index, and lookups in it: the common part of writers and readers.
//!
//! The visible state is a tree with two buffers above it: *pending* updates, which the WAL has, and
//! above these *unflushed* updates, which only a writer has. A lookup asks the buffers under a lock
//! that it holds for microseconds, takes the tree, and reads pages without any lock.

use std::path::PathBuf;

use terrane_io::Anchor;
use terrane_io::process::Process;
use terrane_io::sync::atomic::{AtomicBool, Ordering};
use terrane_io::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::log::pending::UpdateBuffer;
use crate::page::error::{Error, Result};
use crate::page::leaf::Leaf;
use crate::page::page::PAGE_SIZE;
use crate::pager::pager::Pager;
use crate::pager::stats::{Counter, Stats};
use crate::tree::tree::Tree;

/// Most keys whose leaves a lookup holds in memory at a time.
const LOOKUPS_MAX: usize = 1024;

/// A visible state. A copy does not change, and shares everything that stays the same.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) tree: Arc<Tree>,
    pub(crate) pending: UpdateBuffer,
    pub(crate) unflushed: UpdateBuffer,
    /// Number of entries with all updates.
    pub(crate) entries: u64,
}

impl State {
    /// The update of a key that the tree does not have yet.
    #[expect(
        clippy::option_option,
        reason = "no update, and an update that removes, are two things"
    )]
    fn update(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        self.unflushed.get(key).or_else(|| self.pending.get(key))
    }

    /// Calls `found` for the keys with such an update. Returns the places of the other keys.
    fn find_updates(
        &self,
        keys: &[&[u8]],
        found: &mut impl FnMut(usize, Option<&[u8]>),
    ) -> Vec<usize> {
        let mut rest = Vec::with_capacity(keys.len());
        for (at, key) in keys.iter().enumerate() {
            match self.update(key) {
                Some(update) => found(at, update),
                None => rest.push(at),
            }
        }
        rest
    }
}

/// An index as lookups see it.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) dir: PathBuf,
    pub(crate) pager: Pager,
    state: RwLock<State>,
    is_closed: AtomicBool,
    /// The process that opened the index, and may use it.
    process: Process,
    /// Keeps every call below the directory in it, whatever happens to the path.
    _anchor: Box<dyn Anchor>,
}

impl Core {
    pub(crate) fn new(anchor: Box<dyn Anchor>, dir: PathBuf, pager: Pager, state: State) -> Self {
        let state = RwLock::new(state);
        let is_closed = AtomicBool::new(false);
        let process = Process::current();
        Self { dir, pager, state, is_closed, process, _anchor: anchor }
    }

    /// The visible state.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Disk`] in a child of the process that opened the index.
    pub(crate) fn state(&self) -> Result<RwLockReadGuard<'_, State>> {
        self.check_open()?;
        Ok(self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The visible state, to be changed.
    pub(crate) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the index. Returns whether it was open.
    pub(crate) fn close(&self) -> bool {
        !self.is_closed.swap(true, Ordering::AcqRel)
    }

    /// Refuses a call in a child of the process that opened the index.
    pub(crate) fn check_process(&self) -> Result<()> {
        Ok(self.process.check(&self.dir)?)
    }

    /// The same, and refuses a call on a closed index.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_process()?;
        if self.is_closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Returns the value of a key in the visible state.
    pub(crate) fn find(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        // The lock is given back before a page is read.
        let tree = {
            let state = self.state()?;
            if let Some(update) = state.update(key) {
                return Ok(update.map(<[u8]>::to_vec));
            }
            state.tree.clone()
        };
        self.find_in_tree(&tree, key)
    }

    /// Returns the value of a key in a snapshot of the state.
    pub(crate) fn find_in(&self, state: &State, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match state.update(key) {
            Some(update) => Ok(update.map(<[u8]>::to_vec)),
            None => self.find_in_tree(&state.tree, key),
        }
    }

    fn find_in_tree(&self, tree: &Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let leaf = tree.leaf_for(&self.pager, key)?;
        Ok(leaf.and_then(|leaf| Leaf::of(&leaf).find(key).map(<[u8]>::to_vec)))
    }

    /// Looks keys up in the visible state, and calls `found` with the place and the value of each
    /// key.
    pub(crate) fn find_each(
        &self,
        keys: &[&[u8]],
        mut found: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let (rest, tree) = {
            let state = self.state()?;
            (state.find_updates(keys, &mut found), state.tree.clone())
        };
        self.find_each_in_tree(&tree, keys, rest, found)
    }

    /// Looks up the keys at the places `order` in a tree.
    fn find_each_in_tree(
        &self,
        tree: &Tree,
        keys: &[&[u8]],
        mut order: Vec<usize>,
        mut found: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        order.sort_unstable_by_key(|&at| keys[at]);
        let ascending: Vec<&[u8]> = order.iter().map(|&at| keys[at]).collect();

        // In the order of the keys, so that keys of one leaf meet, and a bounded number of leaves
        // at once.
        for (order, keys_of) in order.chunks(LOOKUPS_MAX).zip(ascending.chunks(LOOKUPS_MAX)) {
            let leaves = tree.leaves_for(&self.pager, keys_of)?;
            let mut rest = order.iter();
            for (leaf, count) in &leaves {
                let leaf = Leaf::of(leaf);
                for &at in rest.by_ref().take(*count) {
                    found(at, leaf.find(keys[at]));
                }
            }
            // A tree without entries has no leaf for these.
            for &at in rest {
                found(at, None);
            }
        }

        Ok(())
    }

    /// Returns the value of each key in the visible state.
    pub(crate) fn find_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = vec![None; keys.len()];
        self.find_each(keys, |at, value| values[at] = value.map(<[u8]>::to_vec))?;
        Ok(values)
    }

    /// Returns the value of each key in a snapshot of the state.
    pub(crate) fn find_many_in(
        &self,
        state: &State,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = vec![None; keys.len()];
        let mut found = |at: usize, value: Option<&[u8]>| values[at] = value.map(<[u8]>::to_vec);

        let rest = state.find_updates(keys, &mut found);
        self.find_each_in_tree(&state.tree, keys, rest, found)?;
        Ok(values)
    }

    /// Statistics of lookups and of the tree.
    pub(crate) fn stats(&self) -> Result<Stats> {
        let counters = &self.pager.counters;
        let state = self.state()?;
        let levels = usize::from(state.tree.height) + 1;
        let of = |counts: &[Counter]| counts[..levels].iter().map(Counter::get).collect();
        let cached = self.pager.cache.pages_by_level();

        Ok(Stats {
            entries: state.entries,
            height: u32::from(state.tree.height),
            level_pages: state.tree.level_pages[..levels].to_vec(),
            buffered_updates: (state.pending.len() + state.unflushed.len()) as u64,
            buffer_bytes: (state.pending.memory_bytes() + state.unflushed.memory_bytes()) as u64,
            fresh_node_bytes: state.tree.fresh_nodes * PAGE_SIZE as u64,
            cached_pages: cached[..levels].iter().map(|&pages| pages as u64).collect(),
            page_reads: of(&counters.page_reads),
            cache_hits: of(&counters.cache_hits),
            page_writes: counters.page_writes.get(),
            write_calls: counters.write_calls.get(),
            log_bytes_written: counters.log_bytes.get(),
            syncs: counters.syncs.get(),
            splits: counters.splits.get(),
            merges: counters.merges.get(),
            drained_updates: counters.drained_updates.get(),
            drained_leaves: counters.drained_leaves.get(),
            checkpoints: counters.checkpoints.get(),
            ..Stats::default()
        })
    }
}
