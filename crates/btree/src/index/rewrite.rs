//! Changes of the whole tree: packing, filtering, moving pages, and replacing all entries.
//!
//! Such a change makes a tree that nobody sees, and publishes it: all of it or nothing. A failure
//! or a panic on the way gives back the pages that were taken.
//!
//! Invariant: the tree in the making takes no page that the visible tree has.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::index::checkpoint::{HELD_PAGES_MIN, HELD_PART};
use crate::index::writer::Writer;
use crate::log::applied::Applied;
use crate::log::pending::UpdateBuffer;
use crate::log::quarantine::Quarantine;
use crate::page::error::{Error, Result};
use crate::page::leaf::Fences;
use crate::page::page::PageNo;
use crate::pager::free_map::FreeMap;
use crate::tree::edit::{Change, step};
use crate::tree::state::Core;
use crate::tree::tree::Tree;

/// The change that packs leaves and leaves every entry as it is.
struct Pack;

impl Change for Pack {
    fn touches(&mut self, _fences: Fences<'_>, _page: PageNo) -> bool {
        true
    }

    fn packs(&self) -> bool {
        true
    }
}

impl Writer {
    /// Packs the entries of neighbouring leaves into fewer leaves where that saves an eighth of
    /// them.
    ///
    /// All flushed updates must be applied before. Stops at a damaged leaf, and as soon as somebody
    /// reads the leaves that were let go: going on would grow the file by all of them.
    ///
    /// Cost: reads each leaf, writes the packed ones. The file grows by the leaves packed between
    /// two checkpoints.
    pub(crate) fn pack(&mut self, core: &Core) -> Result<()> {
        let leaves_max = (self.free_map.used_pages() / HELD_PART).max(HELD_PAGES_MIN);
        let fresh_max = self.limits.fresh_nodes;
        let is_enough = |tree: &Tree, leaves| leaves >= leaves_max || tree.fresh_nodes > fresh_max;

        let mut from = Some(Vec::new());
        while let Some(start) = from {
            let tree = core.state()?.tree.as_ref().clone();
            let packed = self.or_restore_free_map(|writer| {
                writer.change_from(core, tree, start, &is_enough, &mut Pack, &mut |_| {})
            });

            let (tree, gone, next) = match packed {
                Err(Error::Corrupt { .. }) => return Ok(()),
                packed => packed?,
            };

            if !gone.is_empty() {
                self.install(core, tree, gone);
                self.free_gone(core)?;
            }

            // If somebody reads the pages that were let go, packing on would grow the file.
            from = next.filter(|_| self.free_map.held_pages() == 0);
        }

        Ok(())
    }

    /// Pages of the published tree.
    pub(crate) fn tree_pages(&self) -> Vec<PageNo> {
        let lists = self.superblock.lists.iter().chain(&self.superblock.applied);
        let others: Vec<PageNo> = lists.chain(&self.maps).map(|page| page.number).collect();
        self.free_map.all_but(&others)
    }

    /// Changes every leaf in turn, in a tree that nobody sees yet. Returns the new tree and the
    /// pages that the new tree does not have.
    ///
    /// Memory: all nodes above the changed leaves.
    pub(crate) fn rewrite(
        &mut self,
        core: &Core,
        change: &mut dyn Change,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Tree, Vec<PageNo>)> {
        let tree = core.state()?.tree.as_ref().clone();
        let (tree, gone, _) = self.or_restore_free_map(|writer| {
            writer.change_from(core, tree, Vec::new(), &|_, _| false, change, progress)
        })?;
        Ok((tree, gone))
    }

    /// Runs `act`, which takes pages, and gives the pages back if `act` fails or panics (it may
    /// call functions of the user).
    pub(crate) fn or_restore_free_map<T>(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let before = self.free_map.clone();
        let done = catch_unwind(AssertUnwindSafe(|| act(self)));
        if !matches!(done, Ok(Ok(_))) {
            self.free_map = before;
        }
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Changes leaves in turn from a key on, until `is_enough` says so. Returns the tree, the pages
    /// that the tree does not have, and the key to go on from.
    fn change_from(
        &mut self,
        core: &Core,
        mut tree: Tree,
        mut from: Vec<u8>,
        is_enough: &dyn Fn(&Tree, u64) -> bool,
        change: &mut dyn Change,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Tree, Vec<PageNo>, Option<Vec<u8>>)> {
        let mut gone = Vec::new();
        let mut leaves = 0;
        let generation = self.generation();

        loop {
            let step = step(&core.pager, &mut self.free_map, generation, &tree, &from, change)?;
            tree = step.tree;
            gone.extend(step.gone);
            leaves += step.leaves;
            progress(leaves);
            match step.high {
                Some(high) if !is_enough(&tree, leaves) => from = high,
                high => return Ok((tree, gone, high)),
            }
        }
    }

    /// Makes a tree with the same entries the visible one.
    pub(crate) fn install(&mut self, core: &Core, tree: Tree, gone: Vec<PageNo>) {
        debug_assert!(
            gone.iter().all(|&page| self.free_map.is_used(page)),
            "pages of the old tree"
        );
        self.free_map.hold(self.superblock.generation, gone);
        core.state_mut().tree = Arc::new(tree);
    }

    /// Publishes a tree in place of all entries. `before` is the free map from before the tree was
    /// made; the tree takes no page that was used then.
    pub(crate) fn replace(
        &mut self,
        core: &Core,
        tree: Tree,
        gone: Vec<PageNo>,
        entries: u64,
        before: FreeMap,
    ) -> Result<()> {
        self.free_map.hold(self.superblock.generation, gone);

        // From here on every frame of the WAL names this position, so no reader puts later updates
        // above an older tree.
        let end = self.wal.end();
        let replaced = std::mem::replace(&mut self.wal.replaced, end);

        let published = self.publish(core, &tree, Applied::up_to(end), entries, |state| {
            state.pending = UpdateBuffer::default();
            state.unflushed = UpdateBuffer::default();
            state.entries = entries;
        });

        if let Err(error) = published {
            // Of a poisoned writer nobody knows which tree is published, so nothing is taken back.
            if self.poisoned.is_none() {
                self.free_map = before;
                self.wal.replaced = replaced;
            }
            return Err(error);
        }

        // These updates belong to the entries that were replaced.
        self.body.clear();
        self.quarantine = Quarantine::default();
        self.flushed_entries = entries;
        drop(tree);

        // A second checkpoint puts the tree into both superblocks: the loss of one does not bring
        // the old entries back, and the old pages are free. The replacement itself is durable
        // already, so a failure here is logged only.
        if let Err(error) = self.checkpoint(core) {
            tracing::warn!(path = %core.dir.display(), %error, "cleanup.failed");
        }

        self.adapt_cache(core)
    }
}
