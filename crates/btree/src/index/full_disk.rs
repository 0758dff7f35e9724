//! Removals on a full disk: how the WAL gets shorter while there is hardly any room.
//!
//! A removal takes room, a frame of the WAL, before it gives any. The writer therefore keeps a
//! [`Reserve`](terrane_io::Reserve) behind the durable mark, as long as the longest segment and
//! some slack. While the reserve is given up, the writer *collects* the oldest segments before that
//! room is used up. The writer collects a segment in three steps:
//!
//! 1. It applies the segment's pending removals to the leaves, a few leaves at a time. No leaf
//!    becomes longer, and a checkpoint frees the old pages, so this needs a few free pages only.
//! 2. It appends the segment's pending insertions to the WAL again: at most as many bytes as the
//!    segment has.
//! 3. It makes a checkpoint that says that the WAL begins with the next segment, and removes the
//!    file.
//!
//! Invariants: an update leaves the WAL only if the published tree or a later frame has it, or a
//! later frame replaced it. Whatever fails in between, the published tree with its WAL is what was
//! flushed.
//!
//! Rejected: applying everything (needs room for all pending updates before the WAL gets shorter);
//! reserved pages in the tree file (of no use to the WAL); an option (who forgets it cannot
//! delete).

use terrane_io::rare;

use crate::index::writer::Writer;
use crate::log::wal::FrameBody;
use crate::page::block::Block;
use crate::page::error::{Error, Result};
use crate::page::leaf::Fences;
use crate::page::page::PageNo;
use crate::tree::edit::{Change, step};
use crate::tree::state::Core;

/// Leaves that one step of a collection changes. With the nodes above them and two checkpoints they
/// fit into the slack of the reserve.
const PRUNED_LEAVES_MAX: usize = 3;

/// Part of the slack of the reserve that collecting one segment may take, in bytes.
const COLLECTION_BYTES: u64 = 64 << 10;

/// Size of a frame that a collection writes, in bytes.
const COLLECTED_FRAME_BYTES: usize = 16 << 10;

/// The change that applies removals, and nothing else, to a few leaves.
struct Prune<'a> {
    /// Keys to be removed, ascending.
    removed: &'a [Vec<u8>],
    leaves: usize,
    /// Low fence of the first leaf that is left for the next step.
    until: Option<Vec<u8>>,
}

impl Prune<'_> {
    /// The removals between two fences.
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
    /// The error of a disk on which even the reserve is used up.
    fn out_of_space(&self, core: &Core) -> Error {
        let path = core.dir.clone();
        let reserve_bytes = self.reserve.bytes();
        let source = terrane_io::Error::no_space("fallocate", &path);
        Error::OutOfSpace { path, reserve_bytes, source }
    }

    /// Takes the reserve back if it was given up. Without the reserve only batches that make room
    /// go on.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`], [`Error::Disk`].
    pub(crate) fn take_reserve_back(&mut self, core: &Core) -> Result<()> {
        if self.reserve.take_back(self.disk.as_ref(), &core.dir)? {
            return Ok(());
        }
        Err(self.out_of_space(core))
    }

    /// Gives the reserve up. Returns whether there was any.
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

    /// Appends a frame to the WAL.
    ///
    /// A batch that makes room may take the room of the reserve. Before any other batch the reserve
    /// grows to the length that the WAL with the new frame needs.
    ///
    /// # Errors
    /// Those of the WAL; [`Error::OutOfSpace`]. Nothing was appended.
    pub(crate) fn append(
        &mut self,
        core: &Core,
        body: &mut FrameBody,
        entries: u64,
        may_take_reserve: bool,
    ) -> Result<()> {
        let before = self.wal.end();
        let appended = if may_take_reserve {
            self.append_on_full_disk(core, body, entries)
        } else {
            self.take_reserve_back(core)?;
            self.reserve.grow(self.wal.reserve_bytes(body))?;
            self.wal.append(body, entries)
        };

        self.poison_if_failed(appended)?;
        core.pager.counters.log_bytes.add(self.wal.end().saturating_sub(before));
        Ok(())
    }

    /// Appends a frame, if need be into the room of the reserve or of a collected segment.
    fn append_on_full_disk(
        &mut self,
        core: &Core,
        body: &mut FrameBody,
        entries: u64,
    ) -> Result<()> {
        if !self.reserve.is_full() {
            match self.wal.append(body, entries) {
                Err(error) if error.is_no_space() && self.give_reserve_up(core)? => {}
                appended => return appended,
            }
        }

        rare::taken("an index collects its WAL for the room of a removal");
        // The reserve is used up, so the room must come from older segments.
        self.collect_for(core, body.bytes() as u64)?;
        self.wal.append(body, entries)
    }

    /// Runs `act`; if it fails for want of room, gives the reserve up and runs it once more.
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

    /// Collects segments until there is room for a frame and for the next collection. Collects each
    /// segment at most once.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`] if there is not enough room in the end.
    fn collect_for(&mut self, core: &Core, frame_bytes: u64) -> Result<()> {
        let end = self.wal.end();
        loop {
            let next = self.wal.oldest_bytes() + COLLECTION_BYTES;
            // Room for the next collection is kept, so that the disk is never too full to collect.
            let wanted = frame_bytes.saturating_add(next);
            if self.disk.free_bytes(&core.dir)? >= wanted {
                return Ok(());
            }

            // The segments up to `end` have all been collected: more rounds would only move the
            // same updates.
            let is_through = self.wal.start() >= end;
            if is_through || !self.collect_oldest(core).map_err(|error| self.short(core, error))? {
                return Err(self.out_of_space(core));
            }
        }
    }

    /// Turns a lack of room into the error that names the reserve.
    fn short(&self, core: &Core, error: Error) -> Error {
        if error.is_no_space() { self.out_of_space(core) } else { error }
    }

    /// Collects each segment of the WAL once.
    ///
    /// # Errors
    /// Those of writing; segments collected before the failure stay collected.
    pub(crate) fn collect_log(&mut self, core: &Core) -> Result<()> {
        let end = self.wal.end();
        while self.wal.start() < end && self.collect_oldest(core)? {}
        Ok(())
    }

    /// Collects the oldest segment; returns false if it is empty. See the [module](self).
    fn collect_oldest(&mut self, core: &Core) -> Result<bool> {
        self.check_usable()?;
        if self.wal.end() == self.wal.start() {
            return Ok(false);
        }

        // A segment that still grows cannot go, so it is ended first.
        if self.wal.has_one_segment() {
            self.cut_log(core)?;
        }

        let (frames, next) = self.wal.oldest_frames()?;

        // Step 1: removals, so that the tree lets go of pages before anything else is written.
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
        // Several frames may remove one key.
        removed.dedup();
        self.prune(core, &removed)?;

        // Step 2: insertions that no leaf and no later frame has.
        let mut body = FrameBody::default();
        for frame in &frames {
            for (key, value) in frame.updates().flatten() {
                let is_live = frame.position >= self.applied.position(key)
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

        // Step 3: the WAL begins with the next segment.
        self.applied.raise(next);
        self.checkpoint(core)?;
        debug_assert!(next <= self.superblock.log_start, "no leaf needs the collected segment");
        Ok(true)
    }

    /// Appends the collected insertions as a frame of their own, if there are any.
    fn append_collected(&mut self, body: &mut FrameBody) -> Result<()> {
        if !body.is_empty() {
            let appended = self.wal.append(body, self.flushed_entries);
            self.poison_if_failed(appended)?;
            body.clear();
        }
        Ok(())
    }

    /// Applies pending removals, ascending by key, to the leaves. Removals of damaged leaves stay
    /// pending.
    fn prune(&mut self, core: &Core, removed: &[Vec<u8>]) -> Result<()> {
        let mut rest = removed;

        while let Some(from) = rest.first() {
            let generation = self.begin_leaves(core)?;
            let tree = core.state()?.tree.clone();
            let mut change = Prune { removed: rest, leaves: 0, until: None };

            let changed =
                step(&core.pager, &mut self.free_map, generation, &tree, from, &mut change);
            // While this clone lives, its pages cannot be freed.
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
                    // No key lies between a key and that key with a zero byte behind it.
                    let behind = [key.as_slice(), &[0]].concat();
                    state.pending.remove_range(key, Some(&behind));
                }
            }

            self.install(core, changed.tree, changed.gone);
            if changed.leaves > 0 {
                self.free_gone(core)?;
            }

            // A step begins with the leaf of its first key, so each round handles at least one
            // removal.
            rest = &rest[done.max(1)..];
        }

        Ok(())
    }
}
