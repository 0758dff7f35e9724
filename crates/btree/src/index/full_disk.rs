//! Removals on a full disk: how the log of an index gets shorter while there is hardly any room.
//!
//! A removal takes room before it gives any: it is a frame of the log. The writer keeps a [`Reserve`](terrane_io::Reserve) behind
//! the durable mark, as long as the longest segment of the log and a little more. While it is given up, the writer *collects* the
//! oldest segments of the log before the room is used up. A segment is collected in three steps:
//!
//! 1. Its removals that are still pending are applied to the leaves of the tree, a few leaves at a time. A leaf never becomes
//!    longer by that, and a checkpoint frees the pages that were let go, so this needs a few free pages only.
//! 2. Its insertions that are still pending are appended to the log again: at most as many bytes as the segment has.
//! 3. A checkpoint says that the log begins with the next segment, and the writer removes the file.
//!
//! Invariants: an update leaves the log only when it is in the published tree, is in a later frame, or was replaced by a later
//! frame; whatever fails in between, the published tree with its log is what was flushed.

use crate::index::writer::Writer;
use crate::log::wal::FrameBody;
use crate::page::block::Block;
use crate::page::error::{Error, Result};
use crate::page::leaf::Fences;
use crate::page::page::PageNo;
use crate::tree::edit::{Change, step};
use crate::tree::state::Core;

/// Leaves that one step of a collection changes: with the nodes above them and two checkpoints, within the slack of the reserve.
const PRUNED_LEAVES_MAX: usize = 3;

/// The part of the slack of the reserve that collecting a segment may take.
const COLLECTION_BYTES: u64 = 64 << 10;

/// Bytes of a frame that a collection writes.
const COLLECTED_FRAME_BYTES: usize = 16 << 10;

/// Applies removals, and nothing else, to a few leaves.
struct Prune<'a> {
    /// Ascending.
    removed: &'a [Vec<u8>],
    leaves: usize,
    /// Where the leaves begin that are left for the next step.
    until: Option<Vec<u8>>,
}

impl Prune<'_> {
    fn of(&self, fences: Fences<'_>) -> &[Vec<u8>] {
        let first = self.removed.partition_point(|key| key.as_slice() < fences.low);
        let behind = |high: &[u8]| self.removed.partition_point(|key| key.as_slice() < high);
        let last = fences.high.map_or(self.removed.len(), behind);
        &self.removed[first..last.max(first)]
    }
}

impl Change for Prune<'_> {
    fn touches(&mut self, fences: Fences<'_>, _page: PageNo) -> bool {
        if self.until.is_some() || self.of(fences).is_empty() {
            return false;
        }
        if self.leaves == PRUNED_LEAVES_MAX {
            self.until = Some(fences.low.to_vec());
            return false;
        }
        self.leaves += 1;
        true
    }

    fn apply(&mut self, fences: Fences<'_>, entries: &Block) -> Option<Block> {
        let removed = self.of(fences);
        let mut kept = Block::with_capacity(entries.bytes(), entries.len());
        for (key, value) in entries.iter() {
            if removed.binary_search_by(|removed| removed.as_slice().cmp(key)).is_err() {
                kept.push(key, value);
            }
        }
        (kept.len() < entries.len()).then_some(kept)
    }
}

impl Writer {
    fn out_of_space(&self, core: &Core) -> Error {
        let (path, reserve_bytes) = (core.dir.clone(), self.reserve.bytes());
        let source = terrane_io::Error::no_space("fallocate", &path);
        Error::OutOfSpace { path, reserve_bytes, source }
    }

    /// Takes the reserve back if it was given up: nothing but what makes room goes on without it.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`], [`Error::Disk`].
    pub(crate) fn take_reserve_back(&mut self, core: &Core) -> Result<()> {
        if self.reserve.take_back(self.disk.as_ref(), &core.dir)? {
            return Ok(());
        }
        Err(self.out_of_space(core))
    }

    /// Gives the reserve up; whether there was any.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub(crate) fn give_reserve_up(&mut self, core: &Core) -> Result<bool> {
        let bytes = self.reserve.bytes();
        let is_given_up = self.reserve.give_up()?;
        if is_given_up {
            tracing::warn!(path = %core.dir.display(), bytes, "reserve.given_up");
        }
        Ok(is_given_up)
    }

    /// Appends a frame. One that makes room, or is not to be refused, may take the room of the reserve; before any other
    /// the reserve is made long enough for the log with the frame.
    ///
    /// # Errors
    /// Those of the log; [`Error::OutOfSpace`]. Nothing was appended.
    pub(crate) fn append(
        &mut self,
        core: &Core,
        body: &mut FrameBody,
        entries: u64,
        may_take_reserve: bool,
    ) -> Result<()> {
        let before = self.log.end();
        let appended = if may_take_reserve {
            self.append_on_full_disk(core, body, entries)
        } else {
            self.take_reserve_back(core)?;
            self.reserve.grow(self.log.reserve_bytes(body))?;
            self.log.append(body, entries)
        };
        self.noting(appended)?;
        core.pager.counters.log_bytes.add(self.log.end().saturating_sub(before));
        Ok(())
    }

    fn append_on_full_disk(
        &mut self,
        core: &Core,
        body: &mut FrameBody,
        entries: u64,
    ) -> Result<()> {
        if !self.reserve.is_full() {
            match self.log.append(body, entries) {
                Err(error) if error.is_no_space() && self.give_reserve_up(core)? => {}
                appended => return appended,
            }
        }
        self.collect_for(core, body.bytes() as u64)?;
        self.log.append(body, entries)
    }

    /// Gives the reserve up if an act fails for want of room, and repeats the act then.
    pub(crate) fn with_reserve<T>(
        &mut self,
        core: &Core,
        mut act: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<T> {
        match act(self) {
            Err(error) if error.is_no_space() && self.give_reserve_up(core)? => act(self),
            done => done,
        }
    }

    /// Collects segments of the log until there is room for a frame and for the next collection; each segment once at the most.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`] if there is not enough room in the end.
    fn collect_for(&mut self, core: &Core, frame_bytes: u64) -> Result<()> {
        let end = self.log.end();
        loop {
            let next = self.log.oldest_bytes() + COLLECTION_BYTES;
            let wanted = frame_bytes.saturating_add(next);
            if self.disk.free_bytes(&core.dir)? >= wanted {
                return Ok(());
            }
            let is_through = self.log.start() >= end;
            if is_through || !self.collect_oldest(core).map_err(|error| self.short(core, error))? {
                return Err(self.out_of_space(core));
            }
        }
    }

    fn short(&self, core: &Core, error: Error) -> Error {
        if error.is_no_space() { self.out_of_space(core) } else { error }
    }

    /// Collects each segment of the log once.
    ///
    /// # Errors
    /// As of writing; segments that were collected before stay so.
    pub(crate) fn collect_log(&mut self, core: &Core) -> Result<()> {
        let end = self.log.end();
        while self.log.start() < end && self.collect_oldest(core)? {}
        Ok(())
    }

    /// Removes the oldest segment of the log; false if that is empty. See the [module](self).
    fn collect_oldest(&mut self, core: &Core) -> Result<bool> {
        self.check_usable()?;
        if self.log.end() == self.log.start() {
            return Ok(false);
        }
        if self.log.has_one_segment() {
            self.cut_log(core)?;
        }
        let (frames, next) = self.log.oldest_frames()?;
        let mut removed: Vec<Vec<u8>> = Vec::new();
        for frame in &frames {
            let state = core.state()?;
            let pending = frame
                .updates()
                .flatten()
                .filter(|(key, value)| value.is_none() && state.pending.get(key) == Some(None));
            removed.extend(pending.map(|(key, _)| key.to_vec()));
        }
        removed.sort_unstable();
        removed.dedup();
        self.prune(core, &removed)?;

        let mut body = FrameBody::default();
        for frame in &frames {
            for (key, value) in frame.updates().flatten() {
                let is_live = frame.position >= self.drained.position(key)
                    && core.state()?.pending.get(key) == Some(value);
                if is_live {
                    body.push(key, value);
                }
                if body.bytes() > COLLECTED_FRAME_BYTES {
                    self.append_collected(&mut body)?;
                }
            }
        }
        self.append_collected(&mut body)?;
        self.drained.raise(next);
        self.checkpoint(core)?;
        Ok(true)
    }

    fn append_collected(&mut self, body: &mut FrameBody) -> Result<()> {
        if !body.is_empty() {
            let appended = self.log.append(body, self.flushed_entries);
            self.noting(appended)?;
            body.clear();
        }
        Ok(())
    }

    /// Applies pending removals, ascending by key, to the leaves of the tree. Those of damaged leaves stay pending.
    fn prune(&mut self, core: &Core, removed: &[Vec<u8>]) -> Result<()> {
        let mut rest = removed;
        while let Some(from) = rest.first() {
            let generation = self.begin_leaves(core)?;
            let tree = core.state()?.tree.clone();
            let mut change = Prune { removed: rest, leaves: 0, until: None };
            let changed = step(&core.pager, &mut self.space, generation, &tree, from, &mut change);
            drop(tree);
            let Prune { until, .. } = change;
            let changed = match changed {
                Err(Error::Corrupt { .. }) => return Ok(()),
                changed => changed?,
            };
            let high = until.or(changed.high);
            let done = high.as_ref().map_or(rest.len(), |high| {
                rest.partition_point(|key| key.as_slice() < high.as_slice())
            });
            {
                let mut state = core.state_mut();
                for key in &rest[..done] {
                    let behind = [key.as_slice(), &[0]].concat();
                    state.pending.remove_range(key, Some(&behind));
                }
            }
            self.install(core, changed.tree, changed.gone);
            if changed.leaves > 0 {
                self.free_gone(core)?;
            }
            // A step begins with the leaf of its first key, so it gets ahead.
            rest = &rest[done.max(1)..];
        }
        Ok(())
    }
}
