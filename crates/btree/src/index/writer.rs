//! Writing: the log, the buffer of updates, the draining into leaves, and checkpoints.
//!
//! An update goes into the unflushed buffer. A *flush* appends all of these to the log as one frame and makes them pending. When
//! there are too many pending updates, or the log is too long, a *drain* applies those of the range that waits longest
//! to the leaves of one node. A *checkpoint* makes the tree that draining has led to the published one: fresh nodes, what
//! of the log the tree has, and the map of used pages are written and synced, then the superblock.
//!
//! Invariants: no update is in a leaf before it is in the log, and none is in a published tree before the log is durable up to
//! it; a published tree with the log behind it is what was flushed. What fails leaves everything as it was, except a failed sync
//! or a superblock that may or may not have been written: then nothing is written any more.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::{Disk, LockGuard, Reserve};

use crate::index::lease;
use crate::log::applied::Drained;
use crate::log::pending::Deltas;
use crate::log::quarantine::LeftOut;
use crate::log::wal::{FrameBody, Log};
use crate::page::block::{self, Block, EntryRef};
use crate::page::error::{Error, Result, unless_no_space};
use crate::page::leaf::Fences;
use crate::page::page::{BODY_OFFSET, Header, Kind, PAGE_SIZE, Page, PageNo, PageRef, seal};
use crate::pager::config::Limits;
use crate::pager::free_map::{LIST_MAPS, Space};
use crate::pager::pager::{NewPage, Pager};
use crate::pager::superblock::Superblock;
use crate::tree::edit::{Change, step, take_page};
use crate::tree::state::{Core, State};
use crate::tree::tree::{Child, Epoch, Tree};

/// Attempts of one drain to find updates whose pages are whole.
const ATTEMPTS_MAX: usize = 8;

/// Most drains in a call, which bounds how long it takes: at most so many pages are read and written for each.
const DRAINS_MAX: usize = 32;

/// About how many bytes of updates one drain takes: many may be for one leaf.
const DRAIN_BYTES_MAX: usize = 512 << 10;

/// Leaves that a drain writes at the most, and pages of a checkpoint besides those of fresh nodes.
const DRAIN_LEAVES: u64 = 256;
const CHECKPOINT_PAGES: u64 = 32;

/// Least bytes that may be unflushed.
const UNFLUSHED_BYTES_MIN: usize = 16 << 10;

/// A checkpoint is made when this part of the used pages is held, and no fewer than so many.
const HELD_PART: u64 = 16;
const HELD_PAGES_MIN: u64 = 256;

/// Readers that stay behind while this part of the used pages is held for them, and no fewer than so many, lose their tree.
const STALE_PART: u64 = 4;
const STALE_PAGES_MIN: u64 = 16_384;

/// Updates that become pending under one lock.
const PENDING_CHUNK: usize = 1_000;

/// What is called before a flush writes anything.
pub(crate) type FlushCallback = Box<dyn FnMut() -> std::result::Result<(), String> + Send>;

/// The one who writes an index. See the [module](self).
pub(crate) struct Writer {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) limits: Limits,
    pub(crate) space: Space,
    pub(crate) log: Log,
    /// Room that removals may take on a full disk.
    pub(crate) reserve: Reserve,
    /// What is not in the log yet.
    pub(crate) body: FrameBody,
    pub(crate) drained: Drained,
    /// The last one published.
    pub(crate) superblock: Superblock,
    /// That was the published one when the index was opened.
    pub(crate) opened_generation: u64,
    /// Pages of the map.
    pub(crate) maps: Vec<PageRef>,
    /// Entries as of the last flush.
    pub(crate) flushed_entries: u64,
    /// Of this generation and earlier ones, as long as somebody has a tree of them.
    pub(crate) epochs: VecDeque<Arc<Epoch>>,
    /// Readers as of the last checkpoint: the oldest generation, and how many.
    pub(crate) readers: (Option<u64>, u32),
    pub(crate) left_out: LeftOut,
    /// Where the next scrub goes on.
    pub(crate) scrub_from: Vec<u8>,
    pub(crate) before_flush: Option<FlushCallback>,
    /// Set when what is on disk is unknown.
    pub(crate) poisoned: Option<PathBuf>,
    pub(crate) _lock: Box<dyn LockGuard>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("superblock", &self.superblock).finish_non_exhaustive()
    }
}

/// What a writer tells of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
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

/// How near the buffer or the log is to its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pressure {
    None,
    /// Three quarters are reached: calls drain in proportion to their updates.
    Some,
    /// The limit is reached: calls drain as much as one call may.
    Much,
}

/// Applies pending updates to leaves.
struct Drain<'a> {
    core: &'a Core,
    updates: u64,
    bytes: usize,
    /// What is left for the next drain: all updates from here on.
    until: Option<Vec<u8>>,
}

impl Drain<'_> {
    /// Where the updates of a range end, as far as they are drained now.
    fn end<'b>(&'b self, high: Option<&'b [u8]>) -> Option<&'b [u8]> {
        match (high, self.until.as_deref()) {
            (Some(high), Some(until)) => Some(high.min(until)),
            (high, until) => high.or(until),
        }
    }
}

impl Change for Drain<'_> {
    fn touches(&mut self, fences: Fences<'_>, _page: PageNo) -> bool {
        let Ok(state) = self.core.state() else { return false };
        if self.until.as_deref().is_some_and(|until| fences.low >= until) {
            return false;
        }
        let high = self.until.clone();
        let high = fences.high.into_iter().chain(high.as_deref()).min();
        let before = self.updates;
        for (key, value) in state.pending.range(fences.low, high) {
            if self.bytes > DRAIN_BYTES_MAX {
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

/// Packs leaves; changes no entry.
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
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            file_pages: self.space.pages(),
            used_pages: self.space.used_pages(),
            held_pages: self.space.held_pages(),
            log_bytes: self.log.end() - self.log.start(),
            reserve_bytes: if self.reserve.is_full() { 0 } else { self.reserve.bytes() },
            generation: self.superblock.generation,
            readers: self.readers.1,
            damaged_ranges: self.left_out.len() as u64,
            is_poisoned: self.poisoned.is_some(),
        }
    }

    /// Refuses to go on after a failed sync.
    pub(crate) fn check_usable(&self) -> Result<()> {
        match &self.poisoned {
            Some(path) => Err(Error::Poisoned { path: path.clone() }),
            None => Ok(()),
        }
    }

    /// Notes a failed sync.
    pub(crate) fn noting<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(Error::Poisoned { path }) = &result {
            self.poisoned = Some(path.clone());
        }
        result
    }

    /// Makes room for a batch that takes so many bytes: flushes, drains and publishes as needed. On a full disk a batch that
    /// makes room is not held up by that, and any other is refused.
    pub(crate) fn make_room(&mut self, core: &Core, bytes: usize, makes_room: bool) -> Result<()> {
        self.check_usable()?;
        if !makes_room {
            self.take_reserve_back(core)?;
        }
        if !self.body.is_empty() && self.body.bytes() + bytes > self.unflushed_bytes_max() {
            self.flush(core, false)?;
        }
        if self.reserve.is_full() {
            // Draining writes what it drains once more before the log gets shorter.
            return self.adapt_cache(core);
        }
        if self.pressure(core)? != Pressure::None {
            match self.reserve_pages(core) {
                Err(error) if makes_room && error.is_no_space() => return self.adapt_cache(core),
                reserved => reserved?,
            }
        }
        // Half as much again as comes: what a flush has brought at once is drained in the course of the following calls.
        let mut owed = bytes + bytes / 2;
        for _ in 0..DRAINS_MAX {
            match self.pressure(core)? {
                Pressure::None => break,
                Pressure::Some if owed == 0 => break,
                pressure => match self.drain(core) {
                    Ok(bytes) => owed = owed.saturating_sub(bytes),
                    // Updates of damaged leaves stop others only when there is no room left for any.
                    Err(Error::Corrupt { .. }) if pressure == Pressure::Some => break,
                    Err(error) if makes_room && error.is_no_space() => break,
                    Err(error) => return Err(error),
                },
            }
        }
        self.adapt_cache(core)
    }

    /// How much may be unflushed: one frame must fit where the reserve is all the room there is.
    fn unflushed_bytes_max(&self) -> usize {
        self.limits.unflushed_bytes.min(self.log.segment_limit() as usize).max(UNFLUSHED_BYTES_MIN)
    }

    /// Lets the tree file have the free pages that a drain and the checkpoint behind it take at the most.
    fn reserve_pages(&mut self, core: &Core) -> Result<()> {
        let used = self.space.used_pages();
        let (leaves, fresh) = {
            let state = core.state()?;
            let updates = (state.pending.memory_bytes() / (PAGE_SIZE / 2)) as u64;
            ((used.min(DRAIN_LEAVES / 4) + updates).min(DRAIN_LEAVES), state.tree.fresh_nodes)
        };
        let wanted = used + leaves + fresh + CHECKPOINT_PAGES;
        if self.space.pages() >= wanted {
            return Ok(());
        }
        core.pager.file().allocate(wanted * PAGE_SIZE as u64)?;
        if self.space.grow(wanted) {
            Ok(())
        } else {
            Err(Error::Full { path: core.pager.path().to_owned() })
        }
    }

    fn pressure(&self, core: &Core) -> Result<Pressure> {
        let buffered = core.state()?.pending.memory_bytes();
        let logged = self.log.end().saturating_sub(self.drained.oldest().0);
        let (buffer_max, log_max) = (self.limits.buffer_bytes, self.limits.log_bytes);
        Ok(if buffered > buffer_max || logged > log_max {
            Pressure::Much
        } else if buffered > buffer_max - buffer_max / 4 || logged > log_max - log_max / 4 {
            Pressure::Some
        } else {
            Pressure::None
        })
    }

    /// Gives to the page cache what nothing else takes.
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

    /// Appends what is not flushed to the log, and makes it durable if asked to.
    ///
    /// Cost: one write, one sync; a write and two syncs more when a segment of the log is full.
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
            make_pending(core)?;
        }
        if sync {
            let synced = self.log.sync();
            core.pager.counters.syncs.add(u64::from(self.noting(synced)?));
        }
        Ok(())
    }

    /// Lets the log go on in another segment, so that nothing of it is kept once all that was flushed is drained and published.
    pub(crate) fn cut_log(&mut self, core: &Core) -> Result<()> {
        let before = self.log.end();
        let cut = self.log.cut(self.flushed_entries);
        core.pager.counters.log_bytes.add(self.log.end() - before);
        self.noting(cut)
    }

    /// Applies all updates that only the log has, so that the log takes no room any more.
    pub(crate) fn apply_all(&mut self, core: &Core) -> Result<()> {
        self.flush(core, true)?;
        self.cut_log(core)?;
        self.drain_all(core)?;
        self.free_gone(core)
    }

    /// Publishes the tree so that pages that it let go are free, unless somebody reads them.
    pub(crate) fn free_gone(&mut self, core: &Core) -> Result<()> {
        // The second one frees what the first one let go.
        self.checkpoint(core)?;
        self.checkpoint(core)
    }

    /// Packs the entries of neighbouring leaves into fewer where that makes an eighth fewer. All that was flushed must be
    /// applied. Ends before a damaged leaf, and once somebody reads the leaves that were let go, so that the file does not grow
    /// by all of them.
    ///
    /// Cost: reads each leaf, writes those that are packed. The file grows by what is packed between two checkpoints.
    pub(crate) fn pack(&mut self, core: &Core) -> Result<()> {
        let leaves_max = (self.space.used_pages() / HELD_PART).max(HELD_PAGES_MIN);
        let fresh_max = self.limits.fresh_nodes;
        let is_enough = |tree: &Tree, leaves| leaves >= leaves_max || tree.fresh_nodes > fresh_max;
        let mut from = Some(Vec::new());
        while let Some(start) = from {
            let tree = core.state()?.tree.as_ref().clone();
            let packed = self.or_as_before(|writer| {
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
            from = next.filter(|_| self.space.held_pages() == 0);
        }
        Ok(())
    }

    /// Applies updates and appends them to the log, as one frame: all of them or none, whatever fails. Returns where the log
    /// ends then.
    ///
    /// Cost: the lookups, and one write; as [`flush`](Self::flush) when a segment of the log is full.
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
        // Others, of which nobody has said that they are to be flushed with these.
        self.flush(core, false)?;
        let mut body = FrameBody::with_capacity(bytes);
        let mut entries = core.state()?.entries;
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
        self.flushed_entries = entries;
        let mut state = core.state_mut();
        state.entries = entries;
        for ((key, value), _) in updates {
            state.pending.insert(key, value);
        }
        Ok(self.log.end())
    }

    /// The pages of the tree are of the next generation.
    fn generation(&self) -> u64 {
        self.superblock.generation + 1
    }

    /// The generation that leaves are written for.
    ///
    /// Publishes once before the first of them: a crash or a failure may have left leaves of the next generation
    /// behind, and those that count are to be newer than these wherever a repair has nothing else to tell them by.
    pub(crate) fn begin_leaves(&mut self, core: &Core) -> Result<u64> {
        if self.superblock.generation == self.opened_generation {
            self.checkpoint(core)?;
        }
        core.pager.begin_step();
        Ok(self.generation())
    }

    /// Applies all updates that wait to their leaves, but for those of damaged pages. Nothing of the log is needed any more after
    /// the next checkpoint.
    pub(crate) fn drain_all(&mut self, core: &Core) -> Result<()> {
        let end = self.log.end();
        let mut last = None;
        loop {
            let (position, start) = self.drained.oldest();
            let oldest = (position, start.to_vec());
            if position >= end || last.as_ref() == Some(&oldest) {
                return Ok(());
            }
            last = Some(oldest);
            self.drain(core)?;
        }
    }

    /// Applies the updates of the range that waits longest to the leaves of one node; returns the bytes of these updates.
    ///
    /// Ranges whose pages are damaged are left out: an error says that all updates there are wait for such pages.
    fn drain(&mut self, core: &Core) -> Result<usize> {
        let position = self.log.end();
        let (oldest, start) = self.drained.oldest();
        let start = start.to_vec();
        let is_older = oldest < position;
        let first = {
            let state = core.state()?;
            state.pending.range(&start, None).next().map(|(key, _)| key.to_vec())
        };
        let Some(mut first) = first else {
            self.drained.set(&start, None, position);
            self.publish_if_due(core)?;
            return Ok(0);
        };
        let is_progress = is_older && start < first;
        self.drained.set(&start, Some(&first), position);
        for _ in 0..ATTEMPTS_MAX {
            let error = match self.drain_from(core, &first) {
                Err(error @ Error::Corrupt { .. }) => error,
                done => return done,
            };
            match self.leave_out(core, &first, error) {
                Ok(Some(next)) => first = next,
                Ok(None) => break,
                // It was a range without updates that waited longest.
                Err(Error::Corrupt { .. }) if is_progress => break,
                Err(error) => return Err(error),
            }
        }
        Ok(0)
    }

    /// Applies updates from a key on, as far as no range is left out.
    fn drain_from(&mut self, core: &Core, first: &[u8]) -> Result<usize> {
        let position = self.log.end();
        let generation = self.begin_leaves(core)?;
        let tree = core.state()?.tree.clone();
        let until = self.left_out.end_from(first);
        let mut change = Drain { core, updates: 0, bytes: 0, until };
        let step = step(&core.pager, &mut self.space, generation, &tree, first, &mut change)?;
        core.pager.counters.drained_updates.add(change.updates);
        core.pager.counters.drained_leaves.add(step.leaves);
        let high = change.end(step.high.as_deref());
        {
            let mut state = core.state_mut();
            state.pending.remove_range(&step.low, high);
            state.tree = Arc::new(step.tree);
        }
        self.drained.set(&step.low, high, position);
        self.left_out.forget(&step.low, high);
        self.space.hold(self.superblock.generation, step.gone);
        self.publish_if_due(core)?;
        Ok(change.bytes)
    }

    /// Leaves out the range whose page is damaged. Returns a key to go on with, or nothing if the log was helped along.
    fn leave_out(&mut self, core: &Core, first: &[u8], error: Error) -> Result<Option<Vec<u8>>> {
        let Error::Corrupt { what, .. } = &error else { return Err(error) };
        let tree = core.state()?.tree.clone();
        let (mut low, mut high) = tree.damaged_range(&core.pager, first, what.page)?;
        if low.as_slice() > first && !self.left_out.begins_at(&low) {
            // What is before it may be whole.
            return if self.left_out.note(&low, high.as_deref()) {
                Ok(Some(first.to_vec()))
            } else {
                Err(error)
            };
        }
        let contains =
            |low: &[u8], high: Option<&[u8]>| low <= first && high.is_none_or(|h| first < h);
        if !contains(&low, high.as_deref()) {
            // A range that was noted earlier reaches over the page.
            (low, high) = tree.damaged_range(&core.pager, first, u64::MAX)?;
        }
        if !self.left_out.note(&low, high.as_deref()) {
            return Err(error);
        }
        tracing::warn!(path = %core.dir.display(), %error, "drain.left_out");
        if self.log_again(core, first, (&low, high.as_deref()))? {
            return Ok(None);
        }
        let next = self.left_out.first_outside(&core.state()?.pending);
        next.map(Some).ok_or(error)
    }

    /// Writes the pending updates of a range, from `first` on, to the log again, so that it need not be kept for them; not if that, done for
    /// all ranges that are left out, would be most of what is written.
    fn log_again(
        &mut self,
        core: &Core,
        first: &[u8],
        (low, high): (&[u8], Option<&[u8]>),
    ) -> Result<bool> {
        let (mut body, entries) = (FrameBody::default(), self.flushed_entries);
        for (key, value) in core.state()?.pending.range(low, high) {
            body.push(key, value);
        }
        let position = self.log.end();
        let kept = position.saturating_sub(self.drained.position(first));
        if (body.bytes() * self.left_out.len()) as u64 > kept / 2 {
            return Ok(false);
        }
        let appended = self.log.append(&mut body, entries);
        self.noting(appended)?;
        core.pager.counters.log_bytes.add(self.log.end() - position);
        self.drained.set(low, high, position);
        self.publish_if_due(core)?;
        Ok(true)
    }

    fn publish_if_due(&mut self, core: &Core) -> Result<()> {
        let held_max = (self.space.used_pages() / HELD_PART).max(HELD_PAGES_MIN);
        let is_due = self.space.held_pages_of(self.superblock.generation) > held_max
            || core.state()?.tree.fresh_nodes > self.limits.fresh_nodes
            || self.drained.oldest().0.saturating_sub(self.superblock.log_start)
                > self.limits.log_bytes / 8;
        if is_due { self.checkpoint(core) } else { Ok(()) }
    }

    /// Publishes the tree as it is.
    ///
    /// Cost: writes each fresh node, the changed pages of the map and two or three more pages; three syncs.
    pub(crate) fn checkpoint(&mut self, core: &Core) -> Result<()> {
        let tree = core.state()?.tree.clone();
        self.publish(core, &tree, self.drained.clone(), self.flushed_entries, |_| {})?;
        // What only this tree has can be freed at once.
        drop(tree);
        self.clean_up(core);
        Ok(())
    }

    /// Publishes a tree which has what the log has up to where it was drained; `install` changes what is visible together with
    /// the tree.
    pub(crate) fn publish(
        &mut self,
        core: &Core,
        tree: &Tree,
        drained: Drained,
        entries: u64,
        install: impl FnOnce(&mut State),
    ) -> Result<()> {
        self.check_usable()?;
        let synced = self.log.sync();
        self.noting(synced)?;
        let before = self.space.clone();
        let prepared = self.prepare(core, tree, &drained, entries);
        let (superblock, maps, tree) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.space = before;
                return self.noting(Err(error));
            }
        };
        let written = write_superblock(&core.pager, &superblock);
        if written.is_err() {
            self.poisoned = Some(core.pager.path().to_owned());
        }
        written?;
        core.pager.counters.checkpoints.add(1);
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
        self.drained = drained;
        self.space.set_stored();
        Ok(())
    }

    /// Writes everything that the next superblock leads to, durably.
    fn prepare(
        &mut self,
        core: &Core,
        tree: &Tree,
        drained: &Drained,
        entries: u64,
    ) -> Result<(Superblock, Vec<PageRef>, Tree)> {
        let pager = &core.pager;
        let (generation, epoch) = (self.generation(), self.superblock.generation);
        let mut written: Vec<NewPage> = Vec::new();
        let space = &mut self.space;
        let mut take = || take_page(pager, space);
        let tree = tree.store(pager.tree, generation, &mut take, &mut written)?;
        let nodes = written.len();
        let (count, body) = drained.encode();
        let make = |kind, number: PageNo, count, body: &[u8]| {
            let mut bytes = [0; PAGE_SIZE];
            bytes[BODY_OFFSET..BODY_OFFSET + body.len()].copy_from_slice(body);
            let (tree, step) = (pager.tree, 0);
            let header = Header { kind, level: 0, count, tree, generation, number, step };
            let crc = seal(&mut bytes, &header);
            (PageRef { number, crc }, (number, Page::new(&bytes)))
        };
        let (drained_page, page) =
            make(Kind::Drained, take_page(pager, &mut self.space)?, count, &body);
        written.push(page);
        let old = self.superblock.lists.iter().chain(&self.superblock.drained);
        self.space.hold(epoch, old.map(|page| page.number).collect());

        // A file that was cut needs fewer maps.
        let unneeded = self.maps.iter().skip(self.space.map_count()).map(|page| page.number);
        self.space.hold(epoch, unneeded.collect());
        let (map_numbers, list_numbers) = self.place_maps(pager, epoch)?;
        let mut maps = self.maps.clone();
        let contents = self.space.write_maps(map_numbers.iter().map(|(map, _)| *map));
        maps.resize(self.space.map_count(), PageRef { number: 0, crc: 0 });
        for ((map, number), body) in map_numbers.into_iter().zip(&contents) {
            let (page_ref, page) = make(Kind::Map, number, 0, body);
            maps[map] = page_ref;
            written.push(page);
        }
        let mut lists = Vec::new();
        for (number, maps) in list_numbers.into_iter().zip(maps.chunks(LIST_MAPS)) {
            let entry = |map: &PageRef| [map.number.to_le_bytes(), map.crc.to_le_bytes()].concat();
            let body: Vec<u8> = maps.iter().flat_map(entry).collect();
            let (page_ref, page) = make(Kind::MapList, number, maps.len() as u16, &body);
            lists.push(page_ref);
            written.push(page);
        }
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
        let superblock = Superblock {
            generation,
            oldest: self.oldest_readable(generation),
            height: tree.height,
            root,
            drained: Some(drained_page),
            pages: self.space.pages(),
            entries,
            log_start: drained.oldest().0,
            log_end: self.log.end(),
            replaced: self.log.replaced,
            level_pages: tree.level_pages,
            lists,
            ..self.superblock.clone()
        };
        Ok((superblock, maps, tree))
    }

    /// Finds new pages for the parts of the map that change, which changes the map, until nothing more does; and for its lists.
    #[expect(clippy::type_complexity, reason = "two lists, taken apart at once")]
    fn place_maps(
        &mut self,
        pager: &Pager,
        epoch: u64,
    ) -> Result<(Vec<(usize, PageNo)>, Vec<PageNo>)> {
        let (mut maps, mut lists) = (Vec::new(), Vec::new());
        loop {
            let is_new = |map: &usize| maps.iter().all(|(placed, _)| placed != map);
            let next = self.space.changed_maps().find(is_new);
            if let Some(map) = next {
                if let Some(old) = self.maps.get(map) {
                    self.space.hold(epoch, vec![old.number]);
                }
                maps.push((map, take_page(pager, &mut self.space)?));
            } else if lists.len() < self.space.map_count().div_ceil(LIST_MAPS) {
                lists.push(take_page(pager, &mut self.space)?);
            } else {
                return Ok((maps, lists));
            }
        }
    }

    /// The oldest generation that stays readable: readers far behind lose their pages.
    fn oldest_readable(&self, generation: u64) -> u64 {
        let most = (self.space.used_pages() / STALE_PART).max(STALE_PAGES_MIN);
        let behind = self.readers.0.is_some_and(|oldest| oldest + 1 < generation);
        if behind && self.space.held_pages() > most { generation } else { self.superblock.oldest }
    }

    /// Frees what nobody needs any more. What cannot be freed now is at the next checkpoint.
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
        for page in self.space.release(published.min(in_use).min(read)) {
            core.pager.cache.remove(page);
        }
        self.log.trim(self.superblock.log_start);
        let slack = (self.space.pages() / 8).max(2 * DRAIN_LEAVES);
        self.cut_file(core, slack)
    }

    /// Pages that the tree has.
    pub(crate) fn tree_pages(&self) -> Vec<PageNo> {
        let lists = self.superblock.lists.iter().chain(&self.superblock.drained);
        let others: Vec<PageNo> = lists.chain(&self.maps).map(|page| page.number).collect();
        self.space.all_but(&others)
    }

    /// Changes every leaf in turn, in a tree that nobody sees yet; returns it, and the pages that it does not have.
    ///
    /// Takes the memory of all nodes above the leaves that changed.
    pub(crate) fn rewrite(
        &mut self,
        core: &Core,
        change: &mut dyn Change,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Tree, Vec<PageNo>)> {
        let tree = core.state()?.tree.as_ref().clone();
        let (tree, gone, _) = self.or_as_before(|writer| {
            writer.change_from(core, tree, Vec::new(), &|_, _| false, change, progress)
        })?;
        Ok((tree, gone))
    }

    /// Does something that takes pages, and gives them back if it fails. It may call functions of the user, and so panic.
    pub(crate) fn or_as_before<T>(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let before = self.space.clone();
        let done = catch_unwind(AssertUnwindSafe(|| act(self)));
        if !matches!(done, Ok(Ok(_))) {
            self.space = before;
        }
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Changes leaves in turn from a key on, until the tree and the number of those written are enough; returns the tree, the
    /// pages that it does not have, and the key to go on from.
    fn change_from(
        &mut self,
        core: &Core,
        mut tree: Tree,
        mut from: Vec<u8>,
        is_enough: &dyn Fn(&Tree, u64) -> bool,
        change: &mut dyn Change,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Tree, Vec<PageNo>, Option<Vec<u8>>)> {
        let (mut gone, mut leaves) = (Vec::new(), 0);
        let generation = self.generation();
        loop {
            let step = step(&core.pager, &mut self.space, generation, &tree, &from, change)?;
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
        self.space.hold(self.superblock.generation, gone);
        core.state_mut().tree = Arc::new(tree);
    }

    /// Cuts off the free pages at the end of the file, if they are more than so many.
    pub(crate) fn cut_file(&mut self, core: &Core, slack: u64) -> Result<()> {
        let needed = self.space.needed_pages();
        if needed + slack < self.space.pages() {
            core.pager.file().set_len(needed * PAGE_SIZE as u64)?;
            self.space.cut(needed);
        }
        Ok(())
    }

    /// Makes everything durable, and publishes how far the log reaches: then a damaged end of it is known to be damaged.
    pub(crate) fn close(&mut self, core: &Core) -> Result<()> {
        self.with_reserve(core, |writer| writer.flush(core, true))?;
        let is_published = self.superblock.log_end == self.log.end()
            && self.space.held_pages_of(self.superblock.generation) == 0
            && core.state()?.tree.fresh_nodes == 0;
        // The log has what a checkpoint has no room for.
        if is_published { Ok(()) } else { unless_no_space(self.checkpoint(core)) }
    }

    /// Publishes a tree in place of everything that there is. It takes no page of `before`, which is how things were.
    pub(crate) fn replace(
        &mut self,
        core: &Core,
        tree: Tree,
        gone: Vec<PageNo>,
        entries: u64,
        before: Space,
    ) -> Result<()> {
        self.space.hold(self.superblock.generation, gone);
        let end = self.log.end();
        let replaced = std::mem::replace(&mut self.log.replaced, end);
        let published = self.publish(core, &tree, Drained::up_to(end), entries, |state| {
            state.pending = Deltas::default();
            state.unflushed = Deltas::default();
            state.entries = entries;
        });
        if let Err(error) = published {
            if self.poisoned.is_none() {
                self.space = before;
                self.log.replaced = replaced;
            }
            return Err(error);
        }
        self.body.clear();
        self.left_out = LeftOut::default();
        self.flushed_entries = entries;
        drop(tree);
        // Then both superblocks have it, so the loss of one does not bring back what was before, and what only the older
        // tree had is free. It has happened already: what fails now comes again.
        if let Err(error) = self.checkpoint(core) {
            tracing::warn!(path = %core.dir.display(), %error, "cleanup.failed");
        }
        self.adapt_cache(core)
    }
}

/// Whether updates only remove, or leave fewer entries than there were; by the value of each, and whether its key is there.
pub(crate) fn makes_room<'a>(updates: impl Iterator<Item = (Option<&'a [u8]>, &'a bool)>) -> bool {
    let (mut puts, mut more) = (0, 0);
    for (value, &was_there) in updates {
        puts += u64::from(value.is_some());
        more += i64::from(value.is_some()) - i64::from(was_there);
    }
    puts == 0 || more < 0
}

/// Makes all unflushed updates pending. Each is visible throughout.
fn make_pending(core: &Core) -> Result<()> {
    let flushed = core.state()?.unflushed.clone();
    let mut updates = flushed.iter().peekable();
    while updates.peek().is_some() {
        let mut state = core.state_mut();
        for (key, value) in updates.by_ref().take(PENDING_CHUNK) {
            state.pending.insert(key, value);
        }
    }
    core.state_mut().unflushed = Deltas::default();
    Ok(())
}

/// Writes a superblock, durably.
pub(crate) fn write_superblock(pager: &Pager, superblock: &Superblock) -> Result<()> {
    let mut bytes = terrane_io::AlignedBuf::zeroed(PAGE_SIZE);
    bytes.copy_from_slice(&superblock.encode());
    pager.file().write_at(&bytes, superblock.page() * PAGE_SIZE as u64)?;
    pager.sync()
}

/// What is visible when an index has been opened.
pub(crate) fn opened(tree: Tree, pending: Deltas, entries: u64) -> State {
    State { tree: Arc::new(tree), pending, unflushed: Deltas::default(), entries }
}
