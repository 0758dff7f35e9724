//! A reader in another process: one published state at a time, without stopping the writer.
//!
//! A reader takes the tree of the newest superblock and puts the updates above it that the log has. It looks for more only when
//! it is told to ([`IndexReader::sync`]): then it reads the superblock, and what was appended to the log since. Its lease says
//! which tree it stands at, so the writer does not write over the pages of that tree; what it has cached stays right, as
//! pages never change in place.
//!
//! Invariants: what is visible is the state after some flush, never before one that was seen; between two calls of `sync` it
//! stands still. A reader whose pages were given away after all, as it stayed behind for too long, sees
//! [`Error::StaleReader`], never a wrong entry.

use std::collections::VecDeque;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrane_io::{Access, Disk, OpenMode};

use crate::index::index::{
    Index, LOCK_FILE, check_sizes, enter, existing_tree, read_drained, replay, tree_of,
};
use crate::index::lease::Lease;
use crate::index::writer::opened;
use crate::log::applied::Drained;
use crate::log::pending::Deltas;
use crate::log::wal::{Frame, LogReader, durable_mark, is_not_found, lost};
use crate::page::error::{Error, Result};
use crate::pager::config::{Config, Limits};
use crate::pager::pager::Pager;
use crate::pager::stats::Stats;
use crate::pager::superblock::{self, Superblock};
use crate::tree::cursor::{Cursor, bounds_of, bounds_of_prefix};
use crate::tree::state::{Core, State};
use crate::tree::tree::Epoch;

/// Superblocks that are taken up at most before giving up: a writer would have to publish that many while a reader
/// reads one page.
const ATTEMPTS_MAX: usize = 1_000;

/// Updates that a reader may have above twice those that it began with: beyond that it reads the log anew, to forget what
/// the tree has.
const UPDATES_SLACK: usize = 1 << 16;

/// What a reader follows.
#[derive(Debug)]
struct Follower {
    disk: Arc<dyn Disk>,
    lease: Lease,
    /// The newest one known; visible is its tree, unless `is_behind`.
    superblock: Superblock,
    is_behind: bool,
    log: LogReader,
    /// Of the tree that is visible and of older ones that cursors still have, ascending.
    epochs: VecDeque<Arc<Epoch>>,
    /// Updates that there were when the log was last read from its beginning.
    updates: usize,
}

/// An index that can be read while another process writes it. What is visible is the state after some flush of the writer,
/// and stands still between two calls of [`sync`](IndexReader::sync).
#[derive(Debug)]
pub struct IndexReader {
    core: Arc<Core>,
    limits: Limits,
    follower: Mutex<Option<Follower>>,
}

/// A superblock whose tree the writer keeps for this lease, which goes on for trees from `oldest` on.
fn take_up(disk: &dyn Disk, path: &Path, lease: &Lease, oldest: u64) -> Result<Superblock> {
    let mut superblock = superblock::read(disk, path)?;
    for _ in 0..ATTEMPTS_MAX {
        lease.renew(superblock.generation.min(oldest))?;
        let again = superblock::read(disk, path)?;
        if again.generation == superblock.generation {
            return Ok(superblock);
        }
        superblock = again;
    }
    let (generation, oldest) = (superblock.generation, superblock.oldest);
    Err(Error::StaleReader { generation, oldest })
}

impl IndexReader {
    /// Opens an index for reading. Nothing is written but a lease; any number of readers may be there, and a writer.
    ///
    /// Where nobody can write a lease (a read-only or full file system, a directory of another user) the reader goes without one:
    /// under a shared lock, which keeps writers away, or, if a writer is at work already, without any. The reader then gets
    /// [`Error::StaleReader`] once the writer has used its pages again, and never a wrong entry.
    ///
    /// Cost: reads the superblock and the log.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::TreeMissing`], [`Error::ConfigMismatch`], [`Error::NotAnIndex`],
    /// [`Error::UnsupportedVersion`], [`Error::TooManyReaders`], [`Error::InvalidConfig`], [`Error::Corrupt`], [`Error::Disk`].
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, config: &Config) -> Result<Self> {
        let limits = config.check()?;
        let (dir, anchor) = enter(disk.as_ref(), dir)?;
        let path = existing_tree(disk.as_ref(), &dir)?;
        let lease = Lease::take(disk.as_ref(), &dir, &dir.join(LOCK_FILE))?;
        let superblock = take_up(disk.as_ref(), &path, &lease, u64::MAX)?;
        check_sizes(&dir, &limits, &superblock)?;
        let file = disk.open(&path, OpenMode::Read, Access::Direct)?;
        let cache_bytes = limits.memory_bytes / 2;
        let pager = Pager::new(disk.clone(), file, superblock.tree, limits.sizes, cache_bytes);
        let state = opened(tree_of(&superblock), Deltas::default(), 0);
        pager.is_unprotected.store(!lease.protects(), Ordering::Relaxed);
        let log = LogReader::new(disk.clone(), &dir, superblock.tree, superblock.log_start);
        let core = Arc::new(Core::new(anchor, dir, pager, state));
        let mut follower = Follower {
            disk,
            lease,
            superblock,
            is_behind: true,
            log,
            epochs: VecDeque::new(),
            updates: 0,
        };
        follower.begin(&core, limits.sizes)?;
        let reader = Self { core, limits, follower: Mutex::new(Some(follower)) };
        reader.adapt_cache()?;
        Ok(reader)
    }

    fn follower(&self) -> MutexGuard<'_, Option<Follower>> {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adapt_cache(&self) -> Result<()> {
        let taken = self.core.state()?.pending.memory_bytes() + self.limits.other_bytes;
        self.core.pager.cache.set_bytes(self.limits.memory_bytes.saturating_sub(taken));
        Ok(())
    }

    /// Catches up with the writer's last flush; whether anything was new.
    ///
    /// Cost: one read if nothing is new; else what was appended to the log since, and, after a checkpoint of the
    /// writer, one page more. Pages that are cached stay cached.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Disk`], [`Error::Corrupt`]: what is visible is as it was.
    pub fn sync(&self) -> Result<bool> {
        let mut follower = self.follower();
        let follower = follower.as_mut().ok_or(Error::Closed)?;
        let changed = follower.sync(&self.core, self.limits.sizes)?;
        if changed {
            self.adapt_cache()?;
        }
        Ok(changed)
    }

    /// As [`Index::find`](crate::Index::find).
    ///
    /// # Errors
    /// Also [`Error::StaleReader`].
    pub fn find(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.core.find(key)
    }

    /// As [`Index::mem`](crate::Index::mem).
    ///
    /// # Errors
    /// Also [`Error::StaleReader`].
    pub fn mem(&self, key: &[u8]) -> Result<bool> {
        Ok(self.core.find(key)?.is_some())
    }

    /// As [`Index::find_many`](crate::Index::find_many).
    ///
    /// # Errors
    /// Also [`Error::StaleReader`].
    pub fn find_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        self.core.find_many(keys)
    }

    /// Entries, as of the last sync.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn len(&self) -> Result<u64> {
        Ok(self.core.state()?.entries)
    }

    /// Whether there is no entry.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// All entries, ascending, as of the last sync; later ones change nothing for the cursor, whose tree is kept.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    #[expect(clippy::iter_not_returning_iterator, reason = "making one can fail")]
    pub fn iter(&self) -> Result<Cursor> {
        self.range::<&[u8]>(..)
    }

    /// The entries of a range, ascending.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        Cursor::ascending(&self.core, bounds_of(&range))
    }

    /// The entries of a range, descending.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn range_back<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        Cursor::descending(&self.core, bounds_of(&range))
    }

    /// The entries whose keys begin with a prefix, ascending.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn prefix(&self, prefix: &[u8]) -> Result<Cursor> {
        Cursor::ascending(&self.core, bounds_of_prefix(prefix))
    }

    /// The entries whose keys begin with a prefix, descending.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn prefix_back(&self, prefix: &[u8]) -> Result<Cursor> {
        Cursor::descending(&self.core, bounds_of_prefix(prefix))
    }

    /// What is read of the index, and what this reader has done.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = self.core.stats()?;
        let follower = self.follower();
        let follower = follower.as_ref().ok_or(Error::Closed)?;
        stats.generation = follower.superblock.generation;
        stats.file_bytes = self.core.pager.file().len()?;
        Ok(stats)
    }

    /// Ends the lease; the same again does nothing.
    pub fn close(&self) {
        self.core.close();
        *self.follower() = None;
    }
}

impl Index {
    /// Opens an index for reading, beside a writer or on a medium that nobody can write: see [`IndexReader::open`].
    ///
    /// # Errors
    /// Those of [`IndexReader::open`].
    pub fn open_read_only(disk: Arc<dyn Disk>, dir: &Path, config: &Config) -> Result<IndexReader> {
        IndexReader::open(disk, dir, config)
    }
}

impl Drop for IndexReader {
    fn drop(&mut self) {
        self.close();
    }
}

impl Follower {
    /// Reads the newest superblock, whose tree is kept from now on, as are those that are in use.
    fn take_up(&mut self, core: &Core) -> Result<()> {
        let oldest = self.epochs.front().map_or(u64::MAX, |epoch| epoch.0);
        self.superblock = take_up(self.disk.as_ref(), core.pager.path(), &self.lease, oldest)?;
        self.is_behind = true;
        Ok(())
    }

    /// Takes the tree of the superblock, and all of the log above it.
    fn begin(&mut self, core: &Core, sizes: crate::page::leaf::Sizes) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            match self.try_begin(core, sizes) {
                // The log was cut meanwhile, as a newer tree has it.
                Err(error) if is_not_found(&error) => {}
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(error),
            }
            let generation = self.superblock.generation;
            self.take_up(core)?;
            if self.superblock.generation == generation {
                let durable = durable_mark(self.disk.as_ref(), &core.dir, self.superblock.tree);
                let must_reach = durable.max(self.superblock.log_end);
                return Err(lost(&core.dir, self.log.position(), must_reach));
            }
        }
        let (generation, oldest) = (self.superblock.generation, self.superblock.oldest);
        Err(Error::StaleReader { generation, oldest })
    }

    /// Whether the log reached as far as the tree needs.
    fn try_begin(&mut self, core: &Core, sizes: crate::page::leaf::Sizes) -> Result<bool> {
        let superblock = &self.superblock;
        let drained = read_drained(&core.pager, superblock)?;
        let start = superblock.log_start;
        // Before the log is read, as a writer may go on meanwhile.
        let durable = durable_mark(self.disk.as_ref(), &core.dir, superblock.tree);
        let must_reach = durable.max(superblock.log_end);
        self.log = LogReader::new(self.disk.clone(), &core.dir, superblock.tree, start);
        let (mut pending, mut entries) = (Deltas::default(), superblock.entries);
        while let Some(frame) = self.log.next_of(superblock.replaced)? {
            entries = if frame.next > superblock.log_end { frame.entries } else { entries };
            replay(&mut pending, &frame, &drained, sizes, &core.dir)?;
        }
        if self.log.position() < must_reach {
            return Ok(false);
        }
        self.updates = pending.len();
        self.install(core, |state| {
            state.pending = pending;
            state.entries = entries;
        })?;
        Ok(true)
    }

    /// Makes the tree of the superblock visible, with what `change` does to the rest, and lets go of trees that nobody uses.
    fn install(&mut self, core: &Core, change: impl FnOnce(&mut State)) -> Result<()> {
        let generation = self.superblock.generation;
        {
            let mut state = core.state_mut();
            if self.epochs.back().is_none_or(|epoch| epoch.0 != generation) {
                let tree = tree_of(&self.superblock);
                self.epochs.push_back(tree.epoch.clone());
                state.tree = Arc::new(tree);
            }
            change(&mut state);
        }
        let before = self.epochs.front().map(|epoch| epoch.0);
        while self.epochs.front().is_some_and(|epoch| Arc::strong_count(epoch) == 1) {
            self.epochs.pop_front();
        }
        let oldest = self.epochs.front().map_or(generation, |epoch| epoch.0);
        core.pager.stands_at.store(oldest, Ordering::Relaxed);
        self.is_behind = false;
        if before == Some(oldest) { Ok(()) } else { self.lease.renew(oldest) }
    }

    fn sync(&mut self, core: &Core, sizes: crate::page::leaf::Sizes) -> Result<bool> {
        let newest = superblock::read(self.disk.as_ref(), core.pager.path())?;
        let replaced = self.superblock.replaced;
        let was_behind = self.is_behind;
        let is_newer = newest.generation != self.superblock.generation;
        if is_newer {
            self.take_up(core)?;
        }
        let has_many = core.state()?.pending.len() > 2 * self.updates + UPDATES_SLACK;
        if was_behind || self.superblock.replaced != replaced || (is_newer && has_many) {
            self.begin(core, sizes)?;
            return Ok(true);
        }
        let frames = match self.new_frames() {
            Ok(frames) if self.log.position() >= self.superblock.log_end => frames,
            // The log was cut before it was read; the tree of the newest superblock has what was cut.
            Err(error) if !is_not_found(&error) => {
                self.is_behind = true;
                return Err(error);
            }
            _ => {
                self.take_up(core)?;
                self.begin(core, sizes)?;
                return Ok(true);
            }
        };
        if frames.is_empty() && !is_newer {
            return Ok(false);
        }
        // A tree that replaced another one may have other entries where the log has not grown.
        let is_at_tree = self.log.position() == self.superblock.log_end;
        let entries = is_at_tree.then_some(self.superblock.entries);
        let entries = entries.or(frames.last().map(|frame| frame.entries));
        let everything = Drained::up_to(0);
        let mut pending = core.state()?.pending.clone();
        for frame in &frames {
            replay(&mut pending, frame, &everything, sizes, &core.dir)?;
        }
        self.install(core, |state| {
            state.pending = pending;
            state.entries = entries.unwrap_or(state.entries);
        })?;
        Ok(true)
    }

    fn new_frames(&mut self) -> Result<Vec<Frame>> {
        let mut frames = Vec::new();
        while let Some(frame) = self.log.next_of(self.superblock.replaced)? {
            frames.push(frame);
        }
        Ok(frames)
    }
}
