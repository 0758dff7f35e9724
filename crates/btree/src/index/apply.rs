//! Apply: how pending updates get into the leaves.
//!
//! One apply takes the updates of the range that has waited longest to the leaves below one node.
//! Ranges with damaged pages go into quarantine, and the next range is applied instead.
//!
//! Invariant: an update leaves the buffer in the moment in which the tree has it.
//!
//! Rejected: refusing all updates while one leaf is damaged; keeping the WAL for the updates of
//! damaged leaves (it would never be cut again).

use std::sync::Arc;

use crate::index::writer::Writer;
use crate::log::wal::FrameBody;
use crate::page::block::{self, Block};
use crate::page::error::{Error, Result};
use crate::page::leaf::Fences;
use crate::page::page::PageNo;
use crate::tree::edit::{Change, step};
use crate::tree::state::Core;

/// Attempts of one apply to find updates whose pages are whole.
pub(super) const ATTEMPTS_MAX: usize = 8;

/// About how many bytes of updates one apply takes; all of them may be for one leaf.
const APPLY_BYTES_MAX: usize = 512 << 10;

/// The change that takes pending updates to their leaves.
struct ApplyPending<'a> {
    core: &'a Core,
    updates: u64,
    bytes: usize,
    /// First key that this apply leaves to the next one.
    until: Option<Vec<u8>>,
}

impl ApplyPending<'_> {
    /// Upper end of the updates that this apply takes from a range.
    fn end<'b>(&'b self, high: Option<&'b [u8]>) -> Option<&'b [u8]> {
        match (high, self.until.as_deref()) {
            (Some(high), Some(until)) => Some(high.min(until)),
            (high, until) => high.or(until),
        }
    }
}

impl Change for ApplyPending<'_> {
    fn touches(&mut self, fences: Fences<'_>, _page: PageNo) -> bool {
        let Ok(state) = self.core.state() else { return false };
        if self.until.as_deref().is_some_and(|until| fences.low >= until) {
            return false;
        }

        let high = self.until.clone();
        let high = fences.high.into_iter().chain(high.as_deref()).min();

        // Stops at the byte limit, in the middle of a leaf if need be: the rest waits for the next
        // apply.
        let before = self.updates;
        for (key, value) in state.pending.range(fences.low, high) {
            if self.bytes > APPLY_BYTES_MAX {
                self.until = Some(key.to_vec());
                break;
            }
            self.updates += 1;
            self.bytes += block::entry_bytes(key, value);
        }

        self.updates > before
    }

    fn apply(&mut self, fences: Fences<'_>, entries: &Block) -> Option<Block> {
        let state = self.core.state().ok()?;
        let high = self.end(fences.high);
        Some(block::apply(entries, state.pending.range(fences.low, high)))
    }
}

impl Writer {
    /// Applies all updates that only the WAL has, so that the WAL can shrink to nothing.
    pub(crate) fn apply_all(&mut self, core: &Core) -> Result<()> {
        self.flush(core, true)?;
        // With a new segment begun, all segments before it can go.
        self.cut_log(core)?;
        self.apply_buffered(core)?;
        self.free_gone(core)
    }

    /// Returns the generation of the leaves to be written.
    ///
    /// Publishes once before the first leaf is written. A crash or a failed call may have left
    /// leaves of the next generation behind; a repair that goes by age alone must find the valid
    /// leaves newer than those.
    pub(crate) fn begin_leaves(&mut self, core: &Core) -> Result<u64> {
        if self.superblock.generation == self.opened_generation {
            self.checkpoint(core)?;
        }
        core.pager.begin_step();
        Ok(self.generation())
    }

    /// Applies all pending updates to their leaves, except those of damaged pages. After the next
    /// checkpoint nothing of the WAL is needed.
    pub(crate) fn apply_buffered(&mut self, core: &Core) -> Result<()> {
        // Frames that are appended meanwhile lie behind this end.
        let end = self.wal.end();
        let mut last = None;
        loop {
            let (position, start) = self.applied.oldest();
            let oldest = (position, start.to_vec());
            // No progress since the last round: only damaged ranges are left.
            if position >= end || last.as_ref() == Some(&oldest) {
                return Ok(());
            }

            last = Some(oldest);
            self.apply_oldest(core)?;
        }
    }

    /// Applies the updates of the range that has waited longest to the leaves of one node. Returns
    /// the bytes of these updates.
    ///
    /// Ranges with damaged pages go into quarantine. An error says that every pending update waits
    /// for such a page.
    pub(super) fn apply_oldest(&mut self, core: &Core) -> Result<usize> {
        let position = self.wal.end();
        let (oldest, start) = self.applied.oldest();
        let start = start.to_vec();
        let is_older = oldest < position;

        // The first update at or behind the start of that range; keys before it have nothing to
        // apply.
        let first = {
            let state = core.state()?;
            state.pending.range(&start, None).next().map(|(key, _)| key.to_vec())
        };

        let Some(mut first) = first else {
            // No update waits from there on, so these keys are applied up to the end of the log.
            self.applied.set(&start, None, position);
            self.publish_if_due(core)?;
            return Ok(0);
        };

        // Keys before the first update have nothing to apply: their position moves on for free.
        let is_progress = is_older && start < first;
        self.applied.set(&start, Some(&first), position);

        for _ in 0..ATTEMPTS_MAX {
            let error = match self.apply_from(core, &first) {
                // Damage puts its range aside; any other error ends the apply.
                Err(error @ Error::Corrupt { .. }) => error,
                done => return done,
            };
            match self.quarantine_range(core, &first, error) {
                Ok(Some(next)) => first = next,
                Ok(None) => break,
                // The range that waited longest had no updates, and its position moved on: that is
                // progress.
                Err(Error::Corrupt { .. }) if is_progress => break,
                Err(error) => return Err(error),
            }
        }

        Ok(0)
    }

    /// Applies updates from a key on, up to the next quarantined range.
    fn apply_from(&mut self, core: &Core, first: &[u8]) -> Result<usize> {
        let position = self.wal.end();
        let generation = self.begin_leaves(core)?;
        let tree = core.state()?.tree.clone();
        // Updates of a damaged page wait, so this apply ends before their range.
        let until = self.quarantine.end_from(first);
        let mut change = ApplyPending { core, updates: 0, bytes: 0, until };
        let step = step(&core.pager, &mut self.free_map, generation, &tree, first, &mut change)?;

        core.pager.counters.drained_updates.add(change.updates);
        core.pager.counters.drained_leaves.add(step.leaves);

        let high = change.end(step.high.as_deref());
        {
            // Under one lock, so that a lookup finds each update in the buffer or in its leaf.
            let mut state = core.state_mut();
            state.pending.remove_range(&step.low, high);
            state.tree = Arc::new(step.tree);
        }

        debug_assert!(high.is_none_or(|high| step.low.as_slice() <= high), "a range of keys");

        // Everything up to the end of the WAL is in these leaves now, since the buffer had all of
        // it.
        self.applied.set(&step.low, high, position);
        self.quarantine.forget(&step.low, high);
        self.free_map.hold(self.superblock.generation, step.gone);
        self.publish_if_due(core)?;
        Ok(change.bytes)
    }

    /// Puts the range of a damaged page into quarantine. Returns the key to go on with, or `None`
    /// if their updates were appended again, so that old frames can go.
    fn quarantine_range(
        &mut self,
        core: &Core,
        first: &[u8],
        error: Error,
    ) -> Result<Option<Vec<u8>>> {
        let Error::Corrupt { what, .. } = &error else { return Err(error) };
        let tree = core.state()?.tree.clone();

        // The damaged page may be a neighbour's, read to be joined with a leaf of this range.
        let (mut low, mut high) = tree.damaged_range(&core.pager, first, what.page)?;
        if low.as_slice() > first && !self.quarantine.begins_at(&low) {
            // The updates before the damaged page may have whole pages.
            return if self.quarantine.note(&low, high.as_deref()) {
                Ok(Some(first.to_vec()))
            } else {
                Err(error)
            };
        }

        let contains =
            |low: &[u8], high: Option<&[u8]>| low <= first && high.is_none_or(|h| first < h);
        if !contains(&low, high.as_deref()) {
            // A range that was quarantined earlier reaches over the page.
            (low, high) = tree.damaged_range(&core.pager, first, u64::MAX)?;
        }

        if !self.quarantine.note(&low, high.as_deref()) {
            return Err(error);
        }

        tracing::warn!(path = %core.dir.display(), %error, "drain.left_out");
        if self.append_again(core, first, (&low, high.as_deref()))? {
            return Ok(None);
        }

        let next = self.quarantine.first_outside(&core.state()?.pending);
        next.map(Some).ok_or(error)
    }

    /// Appends the pending updates of a range, from `first` on, to the WAL once more, so that their
    /// old frames can go.
    ///
    /// Does nothing and returns false if that, done for all quarantined ranges, were most of what
    /// is written.
    fn append_again(
        &mut self,
        core: &Core,
        first: &[u8],
        (low, high): (&[u8], Option<&[u8]>),
    ) -> Result<bool> {
        let mut body = FrameBody::default();
        for (key, value) in core.state()?.pending.range(low, high) {
            body.push(key, value);
        }

        let position = self.wal.end();

        // The writer appends only once the WAL has grown by several times as much, so that the same
        // updates are not written over and over.
        let kept = position.saturating_sub(self.applied.position(first));
        if (body.bytes() * self.quarantine.len()) as u64 > kept / 2 {
            return Ok(false);
        }

        let appended = self.wal.append(&mut body, self.flushed_entries);
        self.poison_if_failed(appended)?;
        core.pager.counters.log_bytes.add(self.wal.end() - position);
        self.applied.set(low, high, position);
        self.publish_if_due(core)?;
        Ok(true)
    }
}
