//! Reading: what an index and a reader have in common.
//!
//! What is visible is a tree with two buffers above it: *pending* updates, which are in the log, above these *unflushed* ones,
//! which only a writer has. A lookup asks the buffers under a lock that is held for microseconds, takes the tree, and reads
//! its pages without any lock.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use terrane_io::Anchor;

use crate::log::pending::Deltas;
use crate::page::error::{Error, Result};
use crate::page::leaf::Leaf;
use crate::page::page::PAGE_SIZE;
use crate::pager::pager::Pager;
use crate::pager::stats::{Counter, Stats};
use crate::tree::tree::Tree;

/// Keys whose leaves are in memory at a time.
const LOOKUPS_MAX: usize = 1024;

/// What is visible. A copy stands still, and shares all that does not change.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) tree: Arc<Tree>,
    pub(crate) pending: Deltas,
    pub(crate) unflushed: Deltas,
    /// Entries with all updates.
    pub(crate) entries: u64,
}

impl State {
    /// The update of a key that is not in the tree yet.
    #[expect(
        clippy::option_option,
        reason = "no update, and an update that removes, are two things"
    )]
    fn update(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        self.unflushed.get(key).or_else(|| self.pending.get(key))
    }

    /// Calls `found` for the keys that have such an update; returns the numbers of the others.
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

/// An index as it is read.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) dir: PathBuf,
    pub(crate) pager: Pager,
    state: RwLock<State>,
    is_closed: AtomicBool,
    /// Keeps every call below the directory in it.
    _anchor: Box<dyn Anchor>,
}

impl Core {
    pub(crate) fn new(anchor: Box<dyn Anchor>, dir: PathBuf, pager: Pager, state: State) -> Self {
        let (state, is_closed) = (RwLock::new(state), AtomicBool::new(false));
        Self { dir, pager, state, is_closed, _anchor: anchor }
    }

    /// What is visible.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub(crate) fn state(&self) -> Result<RwLockReadGuard<'_, State>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is visible, for changing it.
    pub(crate) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes it; whether it was open.
    pub(crate) fn close(&self) -> bool {
        !self.is_closed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn find(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let tree = {
            let state = self.state()?;
            if let Some(update) = state.update(key) {
                return Ok(update.map(<[u8]>::to_vec));
            }
            state.tree.clone()
        };
        self.find_in_tree(&tree, key)
    }

    /// Looks a key up in a state that stands still.
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

    /// Looks keys up; calls `found` with the number of each key and its value.
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

    fn find_each_in_tree(
        &self,
        tree: &Tree,
        keys: &[&[u8]],
        mut order: Vec<usize>,
        mut found: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        order.sort_unstable_by_key(|&at| keys[at]);
        let ascending: Vec<&[u8]> = order.iter().map(|&at| keys[at]).collect();
        for (order, keys_of) in order.chunks(LOOKUPS_MAX).zip(ascending.chunks(LOOKUPS_MAX)) {
            let leaves = tree.leaves_for(&self.pager, keys_of)?;
            let mut rest = order.iter();
            for (leaf, count) in &leaves {
                let leaf = Leaf::of(leaf);
                for &at in rest.by_ref().take(*count) {
                    found(at, leaf.find(keys[at]));
                }
            }
            for &at in rest {
                found(at, None);
            }
        }
        Ok(())
    }

    pub(crate) fn find_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = vec![None; keys.len()];
        self.find_each(keys, |at, value| values[at] = value.map(<[u8]>::to_vec))?;
        Ok(values)
    }

    /// Looks keys up in a state that stands still.
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

    /// What reading knows of itself.
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
