//! The writer of an index: the WAL, the buffer of updates, their application to leaves,
//! checkpoints.
//!
//! An update goes into the unflushed buffer.
//!
//! - A *flush* appends the unflushed updates to the WAL as one frame and makes them pending.
//! - An *apply* takes the pending updates of the range that has waited longest to the leaves of one
//!   node, once the buffer or the WAL is too long.
//! - A *checkpoint* writes and syncs the new nodes, the applied positions and the free map, and
//!   then switches the superblock to the tree that the applies have led to.
//!
//! Invariants: the WAL has an update before any leaf has it. A published tree has only updates up
//! to which the WAL is durable. A published tree with the WAL behind it is what was flushed.
//!
//! A failed call leaves everything as it was, with two exceptions that poison the writer: a failed
//! sync, and a superblock write whose outcome is unknown.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::{Disk, LockGuard, Reserve};

use crate::index::lease;
use crate::log::applied::Applied;
use crate::log::pending::UpdateBuffer;
use crate::log::quarantine::Quarantine;
use crate::log::wal::{FrameBody, Wal};
use crate::page::block::{self, Block, EntryRef};
use crate::page::error::{Error, Result, unless_no_space};
use crate::page::leaf::Fences;
use crate::page::page::{BODY_OFFSET, Header, Kind, PAGE_SIZE, Page, PageNo, PageRef, seal};
use crate::pager::config::Limits;
use crate::pager::free_map::{FreeMap, LIST_MAPS};
use crate::pager::pager::{NewPage, Pager};
use crate::pager::superblock::Superblock;
use crate::tree::edit::{Change, step, take_page};
use crate::tree::state::{Core, State};
use crate::tree::tree::{Child, Epoch, Tree};

/// Attempts of one apply to find updates whose pages are whole.
const ATTEMPTS_MAX: usize = 8;

/// Most applies in one call. Bounds the latency of a call: each apply reads and writes at most
/// [`APPLY_LEAVES_MAX`] leaves.
const APPLIES_MAX: usize = 32;

/// About how many bytes of updates one apply takes; all of them may be for one leaf.
const APPLY_BYTES_MAX: usize = 512 << 10;

/// Most leaves that one apply writes.
const APPLY_LEAVES_MAX: u64 = 256;

/// Pages of a checkpoint besides its new nodes: superblock, applied positions, parts of the free
/// map.
const CHECKPOINT_PAGES: u64 = 32;

/// Least size of the unflushed buffer, in bytes.
const UNFLUSHED_BYTES_MIN: usize = 16 << 10;

/// Part of the used pages that may be held before a checkpoint is due.
const HELD_PART: u64 = 16;

/// Held pages below which no checkpoint is due, however small the tree.
const HELD_PAGES_MIN: u64 = 256;

/// Part of the used pages that may be held for readers; readers that fall further behind lose their
/// tree.
const STALE_PART: u64 = 4;

/// Held pages below which no reader loses its tree.
const STALE_PAGES_MIN: u64 = 16_384;

/// Updates that become pending under one lock: bounds how long lookups wait.
const PENDING_CHUNK: usize = 1_000;

/// The user's function that a flush calls before it writes anything.
pub(crate) type FlushCallback = Box<dyn FnMut() -> std::result::Result<(), String> + Send>;

/// The writer of an index. See the [module](self).
pub(crate) struct Writer {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) limits: Limits,
    pub(crate) free_map: FreeMap,
    pub(crate) wal: Wal,
    /// Disk space that removals may take on a full disk.
    pub(crate) reserve: Reserve,
    /// The unflushed updates, encoded as the next frame of the WAL.
    pub(crate) body: FrameBody,
    pub(crate) applied: Applied,
    /// The published superblock.
    pub(crate) superblock: Superblock,
    /// Generation of the superblock that the index was opened with.
    pub(crate) opened_generation: u64,
    /// Pages of the stored free map.
    pub(crate) maps: Vec<PageRef>,
    /// Number of entries as of the last flush.
    pub(crate) flushed_entries: u64,
    /// Epochs of the published tree and of older trees that somebody still reads, ascending.
    pub(crate) epochs: VecDeque<Arc<Epoch>>,
    /// Readers in other processes as of the last checkpoint: their oldest generation, and their
    /// number.
    pub(crate) readers: (Option<u64>, u32),
    pub(crate) quarantine: Quarantine,
    /// Key that the next scrub begins with.
    pub(crate) scrub_from: Vec<u8>,
    pub(crate) before_flush: Option<FlushCallback>,
    /// The file whose state on disk is unknown after a failed sync; nothing may be written any
    /// more.
    pub(crate) poisoned: Option<PathBuf>,
    pub(crate) _lock: Box<dyn LockGuard>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("superblock", &self.superblock).finish_non_exhaustive()
    }
}

/// Figures of a writer for [`Stats`](crate::Stats).
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriterStats {
    pub(crate) file_pages: u64,
    pub(crate) used_pages: u64,
    pub(crate) held_pages: u64,
    pub(crate) log_bytes: u64,
    pub(crate) reserve_bytes: u64,
    pub(crate) generation: u64,
    pub(crate) readers: u32,
    pub(crate) damaged_ranges: u64,
    pub(crate) is_poisoned: bool,
}

/// Fill level of the buffer and the WAL, whichever is nearer to its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pressure {
    /// Far from it: calls apply nothing.
    Low,
    /// Three quarters are reached: each call applies in proportion to its own updates.
    High,
    /// The limit is reached: each call applies as much as one call may.
    Full,
}

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
    pub(crate) fn stats(&self) -> WriterStats {
        WriterStats {
            file_pages: self.free_map.pages(),
            used_pages: self.free_map.used_pages(),
            held_pages: self.free_map.held_pages(),
            log_bytes: self.wal.end() - self.wal.start(),
            reserve_bytes: if self.reserve.is_full() { 0 } else { self.reserve.bytes() },
            generation: self.superblock.generation,
            readers: self.readers.1,
            damaged_ranges: self.quarantine.len() as u64,
            is_poisoned: self.poisoned.is_some(),
        }
    }

    /// Refuses to go on once the writer is poisoned.
    pub(crate) fn check_usable(&self) -> Result<()> {
        match &self.poisoned {
            Some(path) => Err(Error::Poisoned { path: path.clone() }),
            None => Ok(()),
        }
    }

    /// Poisons the writer if `result` is a failed sync.
    pub(crate) fn poison_if_failed<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(Error::Poisoned { path }) = &result {
            self.poisoned = Some(path.clone());
        }
        result
    }

    /// Makes room for a batch of `bytes` bytes: flushes, applies and publishes as needed.
    ///
    /// On a full disk a batch that makes room itself goes on without; any other batch is refused.
    pub(crate) fn make_room(&mut self, core: &Core, bytes: usize, makes_room: bool) -> Result<()> {
        self.check_usable()?;
        if !makes_room {
            self.take_reserve_back(core)?;
        }

        if !self.body.is_empty() && self.body.bytes() + bytes > self.unflushed_bytes_max() {
            self.flush(core, false)?;
        }

        if self.reserve.is_full() {
            // On a full disk an apply would write its updates once more before the WAL gets
            // shorter.
            return self.adapt_cache(core);
        }

        if self.pressure(core)? != Pressure::Low {
            match self.reserve_pages(core) {
                Err(error) if makes_room && error.is_no_space() => return self.adapt_cache(core),
                reserved => reserved?,
            }
        }

        // Half as much again as comes in: the calls that follow one large flush apply it bit by
        // bit.
        let mut owed = bytes + bytes / 2;

        for _ in 0..APPLIES_MAX {
            match self.pressure(core)? {
                Pressure::Low => break,
                Pressure::High if owed == 0 => break,
                pressure => match self.apply_oldest(core) {
                    Ok(bytes) => owed = owed.saturating_sub(bytes),
                    // Updates of damaged leaves stop other updates only once the buffer has no room
                    // left.
                    Err(Error::Corrupt { .. }) if pressure == Pressure::High => break,
                    Err(error) if makes_room && error.is_no_space() => break,
                    Err(error) => return Err(error),
                },
            }
        }

        self.adapt_cache(core)
    }

    /// Most bytes that may be unflushed. One frame must fit into the reserve, which may be all the
    /// room there is.
    fn unflushed_bytes_max(&self) -> usize {
        self.limits.unflushed_bytes.min(self.wal.segment_limit() as usize).max(UNFLUSHED_BYTES_MIN)
    }

    /// Grows the tree file so that the next apply and the checkpoint behind it find their free
    /// pages.
    fn reserve_pages(&mut self, core: &Core) -> Result<()> {
        let used = self.free_map.used_pages();
        let (leaves, fresh) = {
            let state = core.state()?;
            let updates = (state.pending.memory_bytes() / (PAGE_SIZE / 2)) as u64;
            (
                (used.min(APPLY_LEAVES_MAX / 4) + updates).min(APPLY_LEAVES_MAX),
                state.tree.fresh_nodes,
            )
        };

        let wanted = used + leaves + fresh + CHECKPOINT_PAGES;
        if self.free_map.pages() >= wanted {
            return Ok(());
        }

        core.pager.file().allocate(wanted * PAGE_SIZE as u64)?;

        if self.free_map.grow(wanted) {
            Ok(())
        } else {
            Err(Error::Full { path: core.pager.path().to_owned() })
        }
    }

    /// Fill level of the buffer and the WAL.
    fn pressure(&self, core: &Core) -> Result<Pressure> {
        let buffered = core.state()?.pending.memory_bytes();
        let logged = self.wal.end().saturating_sub(self.applied.oldest().0);
        let buffer_max = self.limits.buffer_bytes;
        let log_max = self.limits.log_bytes;

        Ok(if buffered > buffer_max || logged > log_max {
            Pressure::Full
        } else if buffered > buffer_max - buffer_max / 4 || logged > log_max - log_max / 4 {
            Pressure::High
        } else {
            Pressure::Low
        })
    }

    /// Gives the page cache the memory that nothing else takes.
    fn adapt_cache(&self, core: &Core) -> Result<()> {
        let state = core.state()?;
        let taken = state.pending.memory_bytes()
            + state.unflushed.memory_bytes()
            + self.body.bytes()
            + state.tree.fresh_nodes as usize * (PAGE_SIZE + 256)
            + self.limits.other_bytes;
        drop(state);

        core.pager.cache.set_bytes(self.limits.memory_bytes.saturating_sub(taken));
        Ok(())
    }

    /// Appends the unflushed updates to the WAL, and makes the WAL durable if `sync` is set.
    ///
    /// Cost: one write, one sync; a write and two syncs more when a segment of the WAL is full.
    pub(crate) fn flush(&mut self, core: &Core, sync: bool) -> Result<()> {
        self.check_usable()?;

        if !self.body.is_empty() {
            if let Some(callback) = &mut self.before_flush {
                callback().map_err(|reason| Error::FlushRefused { reason })?;
            }

            let entries = core.state()?.entries;
            let mut body = std::mem::take(&mut self.body);
            let appended = self.append(core, &mut body, entries, entries < self.flushed_entries);
            self.body = body;
            appended?;
            self.body.clear();
            self.flushed_entries = entries;
            // Only now: a frame that was not appended leaves its updates unflushed.
            make_pending(core)?;
        }

        if sync {
            let synced = self.wal.sync();
            core.pager.counters.syncs.add(u64::from(self.poison_if_failed(synced)?));
        }

        Ok(())
    }

    /// Begins a new segment, so that the WAL can be removed up to here once all flushed updates are
    /// applied and published.
    pub(crate) fn cut_log(&mut self, core: &Core) -> Result<()> {
        let before = self.wal.end();
        let cut = self.wal.cut(self.flushed_entries);
        core.pager.counters.log_bytes.add(self.wal.end() - before);
        self.poison_if_failed(cut)
    }

    /// Applies all updates that only the WAL has, so that the WAL can shrink to nothing.
    pub(crate) fn apply_all(&mut self, core: &Core) -> Result<()> {
        self.flush(core, true)?;
        self.cut_log(core)?;
        self.apply_buffered(core)?;
        self.free_gone(core)
    }

    /// Publishes the tree and frees the pages that the tree let go, unless somebody reads them.
    pub(crate) fn free_gone(&mut self, core: &Core) -> Result<()> {
        // The first checkpoint lets pages go, the second one frees them.
        self.checkpoint(core)?;
        self.checkpoint(core)
    }

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

            from = next.filter(|_| self.free_map.held_pages() == 0);
        }

        Ok(())
    }

    /// Applies updates and appends them to the WAL as one frame: all of them or none, whatever
    /// fails. Returns the end of the WAL behind the frame.
    ///
    /// Cost: the lookups, and one write; as [`flush`](Self::flush) when a segment of the WAL is
    /// full.
    pub(crate) fn commit(
        &mut self,
        core: &Core,
        updates: &[EntryRef<'_>],
        was_there: impl FnOnce(&Core) -> Result<Vec<bool>>,
    ) -> Result<u64> {
        let bytes = updates.iter().map(|&(key, value)| block::entry_bytes(key, value)).sum();
        let was_there = was_there(core)?;
        let makes_room = makes_room(updates.iter().map(|(_, value)| *value).zip(&was_there));
        self.make_room(core, bytes, makes_room)?;

        // Unflushed updates of other callers, who asked for no flush, get a frame of their own.
        // Others, of which nobody has said that they are to be flushed with these.
        self.flush(core, false)?;

        let mut body = FrameBody::with_capacity(bytes);
        let mut entries = core.state()?.entries;

        // A removal of a missing key changes nothing: the frame leaves it out.
        let has_effect =
            |&((_, value), was_there): &(EntryRef<'_>, bool)| value.is_some() || was_there;
        let updates = updates.iter().copied().zip(was_there).filter(has_effect);
        for ((key, value), was_there) in updates.clone() {
            entries = (entries + u64::from(value.is_some())).saturating_sub(u64::from(was_there));
            body.push(key, value);
        }

        if let Some(callback) = &mut self.before_flush {
            callback().map_err(|reason| Error::FlushRefused { reason })?;
        }

        self.append(core, &mut body, entries, makes_room)?;

        // The frame is appended: nothing can fail any more.
        self.flushed_entries = entries;
        let mut state = core.state_mut();
        state.entries = entries;
        for ((key, value), _) in updates {
            state.pending.insert(key, value);
        }

        Ok(self.wal.end())
    }

    /// The generation that new pages get: one above the published one.
    fn generation(&self) -> u64 {
        self.superblock.generation + 1
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
    fn apply_oldest(&mut self, core: &Core) -> Result<usize> {
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
            self.applied.set(&start, None, position);
            self.publish_if_due(core)?;
            return Ok(0);
        };

        let is_progress = is_older && start < first;
        self.applied.set(&start, Some(&first), position);

        for _ in 0..ATTEMPTS_MAX {
            let error = match self.apply_from(core, &first) {
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
        let until = self.quarantine.end_from(first);
        let mut change = ApplyPending { core, updates: 0, bytes: 0, until };
        let step = step(&core.pager, &mut self.free_map, generation, &tree, first, &mut change)?;

        core.pager.counters.drained_updates.add(change.updates);
        core.pager.counters.drained_leaves.add(step.leaves);

        let high = change.end(step.high.as_deref());
        {
            let mut state = core.state_mut();
            state.pending.remove_range(&step.low, high);
            state.tree = Arc::new(step.tree);
        }

        debug_assert!(high.is_none_or(|high| step.low.as_slice() <= high), "a range of keys");
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

    /// Makes a checkpoint if too many pages are held, too many nodes are new, or the WAL is too
    /// long.
    fn publish_if_due(&mut self, core: &Core) -> Result<()> {
        let held_max = (self.free_map.used_pages() / HELD_PART).max(HELD_PAGES_MIN);
        let is_due = self.free_map.held_pages_of(self.superblock.generation) > held_max
            || core.state()?.tree.fresh_nodes > self.limits.fresh_nodes
            || self.applied.oldest().0.saturating_sub(self.superblock.log_start)
                > self.limits.log_bytes / 8;
        if is_due { self.checkpoint(core) } else { Ok(()) }
    }

    /// Publishes the tree as it is.
    ///
    /// Cost: writes each new node, the changed pages of the free map and two or three more pages;
    /// three syncs.
    pub(crate) fn checkpoint(&mut self, core: &Core) -> Result<()> {
        let tree = core.state()?.tree.clone();
        self.publish(core, &tree, self.applied.clone(), self.flushed_entries, |_| {})?;
        // While this clone lives, its pages cannot be freed.
        drop(tree);
        self.clean_up(core);
        Ok(())
    }

    /// Publishes a tree with all updates of the WAL up to the applied positions. `install` changes
    /// the visible state at the moment that the tree becomes visible.
    pub(crate) fn publish(
        &mut self,
        core: &Core,
        tree: &Tree,
        applied: Applied,
        entries: u64,
        install: impl FnOnce(&mut State),
    ) -> Result<()> {
        debug_assert!(
            applied.newest() <= self.wal.end(),
            "no update is applied before it is logged"
        );
        self.check_usable()?;

        // A published tree must never be ahead of the durable WAL.
        let synced = self.wal.sync();
        self.poison_if_failed(synced)?;

        // If a page cannot be written, every page taken for this checkpoint goes back.
        let before = self.free_map.clone();
        let prepared = self.prepare(core, tree, &applied, entries);
        let (superblock, maps, tree) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.free_map = before;
                return self.poison_if_failed(Err(error));
            }
        };

        let written = write_superblock(&core.pager, &superblock);
        if written.is_err() {
            // Either superblock may be the newest one now.
            self.poisoned = Some(core.pager.path().to_owned());
        }

        written?;

        core.pager.counters.checkpoints.add(1);
        assert!(self.superblock.generation < superblock.generation, "epochs ascend");
        let epoch = Arc::new(Epoch(superblock.generation));
        self.epochs.push_back(epoch.clone());
        {
            let mut state = core.state_mut();
            state.tree = Arc::new(Tree { epoch, ..tree });
            install(&mut state);
        }

        core.pager.begin_generation();
        self.superblock = superblock;
        self.maps = maps;
        self.applied = applied;
        self.free_map.set_stored();
        Ok(())
    }

    /// Writes and syncs everything that the next superblock refers to.
    fn prepare(
        &mut self,
        core: &Core,
        tree: &Tree,
        applied: &Applied,
        entries: u64,
    ) -> Result<(Superblock, Vec<PageRef>, Tree)> {
        let pager = &core.pager;
        let generation = self.generation();
        let epoch = self.superblock.generation;
        let mut written: Vec<NewPage> = Vec::new();

        let free_map = &mut self.free_map;
        let mut take = || take_page(pager, free_map);
        let tree = tree.store(pager.tree, generation, &mut take, &mut written)?;
        let nodes = written.len();

        let (count, body) = applied.encode();
        let number = take_page(pager, &mut self.free_map)?;
        let (applied_page, page) =
            make_page(pager, generation, Kind::Applied, count, (number, &body));
        written.push(page);

        // The pages of the previous checkpoint become free once this one is published.
        let old = self.superblock.lists.iter().chain(&self.superblock.applied);
        self.free_map.hold(epoch, old.map(|page| page.number).collect());
        let (maps, lists) = self.store_free_map(pager, generation, &mut written)?;

        // One write in file order, and one sync before any superblock refers to these pages.
        let cached: Vec<NewPage> = written[..nodes].to_vec();
        written.sort_unstable_by_key(|(number, _)| *number);
        pager.write(&written)?;
        pager.sync()?;
        for (number, page) in cached {
            pager.cache.put(number, page);
        }

        let root = match &tree.root {
            Some(Child::Stored(page)) => Some(*page),
            _ => None,
        };

        assert!(generation > self.superblock.generation, "generations only grow");
        let log_start = applied.oldest().0;
        debug_assert!(self.superblock.log_start <= log_start, "applied positions only move on");
        debug_assert!(
            self.wal.end() <= self.wal.synced(),
            "the tree is not ahead of the durable log"
        );
        let superblock = Superblock {
            generation,
            oldest: self.oldest_readable(generation),
            height: tree.height,
            root,
            applied: Some(applied_page),
            pages: self.free_map.pages(),
            entries,
            log_start,
            log_end: self.wal.end(),
            replaced: self.wal.replaced,
            level_pages: tree.level_pages,
            lists,
            ..self.superblock.clone()
        };

        Ok((superblock, maps, tree))
    }

    /// Makes pages of the changed parts of the free map. Returns the references of all its parts,
    /// and those of its list pages.
    fn store_free_map(
        &mut self,
        pager: &Pager,
        generation: u64,
        written: &mut Vec<NewPage>,
    ) -> Result<(Vec<PageRef>, Vec<PageRef>)> {
        let epoch = self.superblock.generation;

        // A file that was cut needs fewer parts of the free map.
        let unneeded = self.maps.iter().skip(self.free_map.map_count()).map(|page| page.number);
        self.free_map.hold(epoch, unneeded.collect());

        // The bodies are made only now: taking pages for them has changed the map.
        let (map_numbers, list_numbers) = self.place_maps(pager, epoch)?;
        let mut maps = self.maps.clone();
        let contents = self.free_map.write_maps(map_numbers.iter().map(|(map, _)| *map));
        maps.resize(self.free_map.map_count(), PageRef { number: 0, crc: 0 });
        for ((map, number), body) in map_numbers.into_iter().zip(&contents) {
            let (page_ref, page) = make_page(pager, generation, Kind::Map, 0, (number, body));
            maps[map] = page_ref;
            written.push(page);
        }
        assert!(maps.iter().all(|map| map.number != 0), "every part of the map has a page");

        let mut lists = Vec::new();
        for (number, maps) in list_numbers.into_iter().zip(maps.chunks(LIST_MAPS)) {
            let entry = |map: &PageRef| [map.number.to_le_bytes(), map.crc.to_le_bytes()].concat();
            let body: Vec<u8> = maps.iter().flat_map(entry).collect();
            let count = maps.len() as u16;
            let (page_ref, page) =
                make_page(pager, generation, Kind::MapList, count, (number, &body));
            lists.push(page_ref);
            written.push(page);
        }
        Ok((maps, lists))
    }

    /// Takes pages for the changed parts of the free map and for its lists. Taking a page changes
    /// the map once more, so this goes on until nothing changes.
    #[expect(clippy::type_complexity, reason = "two lists, taken apart at once")]
    fn place_maps(
        &mut self,
        pager: &Pager,
        epoch: u64,
    ) -> Result<(Vec<(usize, PageNo)>, Vec<PageNo>)> {
        let mut maps: Vec<(usize, PageNo)> = Vec::new();
        let mut lists = Vec::new();
        loop {
            let is_new = |map: &usize| maps.iter().all(|(placed, _)| placed != map);
            let next = self.free_map.changed_maps().find(is_new);
            if let Some(map) = next {
                if let Some(old) = self.maps.get(map) {
                    self.free_map.hold(epoch, vec![old.number]);
                }
                maps.push((map, take_page(pager, &mut self.free_map)?));
            } else if lists.len() < self.free_map.map_count().div_ceil(LIST_MAPS) {
                lists.push(take_page(pager, &mut self.free_map)?);
            } else {
                return Ok((maps, lists));
            }
        }
    }

    /// Oldest generation that stays readable; readers far behind lose their pages.
    fn oldest_readable(&self, generation: u64) -> u64 {
        let most = (self.free_map.used_pages() / STALE_PART).max(STALE_PAGES_MIN);
        let behind = self.readers.0.is_some_and(|oldest| oldest + 1 < generation);
        if behind && self.free_map.held_pages() > most {
            generation
        } else {
            self.superblock.oldest
        }
    }

    /// Frees the pages and segments that nobody needs. A failure is logged and made up for by the
    /// next checkpoint.
    fn clean_up(&mut self, core: &Core) {
        if let Err(error) = self.try_clean_up(core) {
            tracing::warn!(path = %core.dir.display(), %error, "cleanup.failed");
        }
    }

    fn try_clean_up(&mut self, core: &Core) -> Result<()> {
        self.readers = lease::oldest(self.disk.as_ref(), &core.dir)?;
        while self.epochs.len() > 1
            && self.epochs.front().is_some_and(|e| Arc::strong_count(e) == 1)
        {
            self.epochs.pop_front();
        }

        let published = self.superblock.generation;
        let in_use = self.epochs.front().map_or(published, |epoch| epoch.0);
        let read = self.readers.0.map_or(published, |read| read.max(self.superblock.oldest));

        for page in self.free_map.release(published.min(in_use).min(read)) {
            core.pager.cache.remove(page);
        }

        debug_assert!(self.superblock.log_start <= self.wal.synced(), "the tree has what goes");
        self.wal.trim(self.superblock.log_start);
        let slack = (self.free_map.pages() / 8).max(2 * APPLY_LEAVES_MAX);
        self.cut_file(core, slack)
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

    /// Cuts the free pages off the end of the file, if there are more than `slack` of them.
    pub(crate) fn cut_file(&mut self, core: &Core, slack: u64) -> Result<()> {
        let needed = self.free_map.needed_pages();
        if needed + slack < self.free_map.pages() {
            core.pager.file().set_len(needed * PAGE_SIZE as u64)?;
            self.free_map.cut(needed);
        }

        Ok(())
    }

    /// Makes everything durable and publishes the end of the WAL, so that a damaged end is told
    /// from a torn one.
    pub(crate) fn close(&mut self, core: &Core) -> Result<()> {
        self.with_reserve(core, |writer| writer.flush(core, true))?;
        let is_published = self.superblock.log_end == self.wal.end()
            && self.free_map.held_pages_of(self.superblock.generation) == 0
            && core.state()?.tree.fresh_nodes == 0;

        // On a full disk the checkpoint may fail: the WAL has everything.
        if is_published { Ok(()) } else { unless_no_space(self.checkpoint(core)) }
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
        let end = self.wal.end();
        let replaced = std::mem::replace(&mut self.wal.replaced, end);

        let published = self.publish(core, &tree, Applied::up_to(end), entries, |state| {
            state.pending = UpdateBuffer::default();
            state.unflushed = UpdateBuffer::default();
            state.entries = entries;
        });

        if let Err(error) = published {
            if self.poisoned.is_none() {
                self.free_map = before;
                self.wal.replaced = replaced;
            }
            return Err(error);
        }

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

/// Whether a batch gives disk space back: it only removes, or leaves fewer entries than before.
/// Takes the value of each update and whether its key is present.
pub(crate) fn makes_room<'a>(updates: impl Iterator<Item = (Option<&'a [u8]>, &'a bool)>) -> bool {
    let mut puts = 0;
    let mut more = 0;
    for (value, &was_there) in updates {
        puts += u64::from(value.is_some());
        more += i64::from(value.is_some()) - i64::from(was_there);
    }
    puts == 0 || more < 0
}

/// Makes a page that belongs to no level of the tree. Returns its reference, too.
fn make_page(
    pager: &Pager,
    generation: u64,
    kind: Kind,
    count: u16,
    (number, body): (PageNo, &[u8]),
) -> (PageRef, NewPage) {
    let mut bytes = [0; PAGE_SIZE];
    bytes[BODY_OFFSET..BODY_OFFSET + body.len()].copy_from_slice(body);
    let header = Header { kind, level: 0, count, tree: pager.tree, generation, number, step: 0 };
    let crc = seal(&mut bytes, &header);
    (PageRef { number, crc }, (number, Page::new(&bytes)))
}

/// Makes all unflushed updates pending. Each update is visible throughout, in one buffer or in
/// both.
fn make_pending(core: &Core) -> Result<()> {
    let flushed = core.state()?.unflushed.clone();
    let mut updates = flushed.iter().peekable();
    while updates.peek().is_some() {
        let mut state = core.state_mut();
        for (key, value) in updates.by_ref().take(PENDING_CHUNK) {
            state.pending.insert(key, value);
        }
    }
    core.state_mut().unflushed = UpdateBuffer::default();
    Ok(())
}

/// Writes and syncs a superblock.
pub(crate) fn write_superblock(pager: &Pager, superblock: &Superblock) -> Result<()> {
    let mut bytes = terrane_io::AlignedBuf::zeroed(PAGE_SIZE);
    bytes.copy_from_slice(&superblock.encode());
    pager.file().write_at(&bytes, superblock.page() * PAGE_SIZE as u64)?;
    pager.sync()
}

/// The visible state of an index right after opening.
pub(crate) fn opened_state(tree: Tree, pending: UpdateBuffer, entries: u64) -> State {
    State { tree: Arc::new(tree), pending, unflushed: UpdateBuffer::default(), entries }
}
