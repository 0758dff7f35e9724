//! A reader of an index in another process: one published state at a time, beside the writer.
//!
//! A reader takes the tree of the newest superblock and puts the updates of the WAL above that
//! tree. It looks for newer updates only in [`IndexReader::sync`], which reads the superblock and
//! the frames appended since. Its lease names the tree that it reads, so the writer does not reuse
//! the pages of that tree. Cached pages stay valid, as pages never change in place.
//!
//! Invariants: the visible state is that after some flush, never older than one seen before, and
//! does not change between two calls of `sync`. A reader that fell too far behind may lose its
//! pages; it then sees [`Error::StaleReader`], never a wrong entry.

use std::collections::VecDeque;
use std::ops::RangeBounds;
use std::path::Path;

use terrane_io::sync::atomic::Ordering;
use terrane_io::sync::{Arc, Mutex, MutexGuard, PoisonError};
use terrane_io::{Access, Disk, OpenMode};

use crate::index::directory::{LOCK_FILE, enter, existing_tree};
use crate::index::index::Index;
use crate::index::lease::Lease;
use crate::index::published::{check_sizes, read_applied, replay, tree_of};
use crate::index::writer::opened_state;
use crate::log::applied::Applied;
use crate::log::pending::UpdateBuffer;
use crate::log::wal::{Frame, WalReader, durable_mark, is_not_found, lost};
use crate::page::error::{Error, Result};
use crate::pager::config::{Config, Limits};
use crate::pager::pager::Pager;
use crate::pager::stats::Stats;
use crate::pager::superblock::{self, Superblock};
use crate::tree::cursor::{Cursor, bounds_of, bounds_of_prefix};
use crate::tree::state::{Core, State};
use crate::tree::tree::Epoch;

/// Most superblocks that one call takes up before it gives up. A writer would have to publish that
/// many while the reader reads one page.
const ATTEMPTS_MAX: usize = 1_000;

/// Updates that a reader may hold above twice those that it began with. Above that it reads the WAL
/// anew and forgets the updates that the tree has.
const UPDATES_SLACK: usize = 1 << 16;

/// The part of a reader that follows the writer.
#[derive(Debug)]
struct Follower {
    disk: Arc<dyn Disk>,
    lease: Lease,
    /// The newest superblock known. Its tree is the visible one, unless `is_behind`.
    superblock: Superblock,
    is_behind: bool,
    wal: WalReader,
    /// Epochs of the visible tree and of older trees that cursors still read, ascending.
    epochs: VecDeque<Arc<Epoch>>,
    /// Number of updates when the WAL was last read from its beginning.
    updates: usize,
}

/// An index that is read while another process may write it.
///
/// The visible state is that after some flush of the writer; it changes only in
/// [`sync`](IndexReader::sync).
#[doc(alias = "secondary")]
#[derive(Debug)]
pub struct IndexReader {
    core: Arc<Core>,
    limits: Limits,
    follower: Mutex<Option<Follower>>,
}

/// Reads the newest superblock and protects its tree, and trees from `oldest` on, with the lease.
///
/// The superblock is read again behind the write of the lease: if it has changed, the writer may
/// not have seen the lease in time.
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
    let generation = superblock.generation;
    let oldest = superblock.oldest;
    Err(Error::StaleReader { generation, oldest })
}

impl IndexReader {
    /// Opens an index for reading, beside any number of other readers and a writer. Writes nothing
    /// but a lease.
    ///
    /// Where no lease can be written (a read-only or full file system, a directory of another
    /// user), the reader takes a shared lock, which keeps writers away. If a writer has the lock
    /// already, the reader goes without protection: it gets [`Error::StaleReader`] once the writer
    /// has reused its pages, and never a wrong entry.
    ///
    /// Cost: reads the superblock and the WAL.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::TreeMissing`], [`Error::ConfigMismatch`],
    /// [`Error::NotAnIndex`], [`Error::UnsupportedVersion`], [`Error::TooManyReaders`],
    /// [`Error::InvalidConfig`], [`Error::Corrupt`], [`Error::Disk`].
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, config: &Config) -> Result<Self> {
        let limits = config.check()?;
        let (dir, anchor) = enter(disk.as_ref(), dir)?;
        let path = existing_tree(disk.as_ref(), &dir)?;

        // The lease comes before the superblock that counts: from then on the writer keeps its
        // tree.
        let lease = Lease::take(disk.as_ref(), &dir, &dir.join(LOCK_FILE))?;
        let superblock = take_up(disk.as_ref(), &path, &lease, u64::MAX)?;
        check_sizes(&dir, &limits, &superblock)?;
        let file = disk.open(&path, OpenMode::Read, Access::Direct)?;
        let cache_bytes = limits.memory_bytes / 2;
        let pager = Pager::new(disk.clone(), file, superblock.tree, limits.sizes, cache_bytes);

        let state = opened_state(tree_of(&superblock), UpdateBuffer::default(), 0);
        pager.is_unprotected.store(!lease.protects(), Ordering::Relaxed);
        let wal = WalReader::new(disk.clone(), &dir, superblock.tree, superblock.log_start);
        let core = Arc::new(Core::new(anchor, dir, pager, state));

        let mut follower = Follower {
            disk,
            lease,
            superblock,
            is_behind: true,
            wal,
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

    /// Catches up with the writer's last flush. Returns whether anything was new.
    ///
    /// Cost: one read if nothing is new; otherwise also the frames appended since, and one page
    /// more after a checkpoint of the writer. Cached pages stay cached.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Disk`], [`Error::Corrupt`]: the visible state has not changed.
    pub fn sync(&self) -> Result<bool> {
        let mut follower = self.follower();
        let follower = follower.as_mut().ok_or(Error::Closed)?;
        let changed = follower.sync(&self.core, self.limits.sizes)?;
        if changed {
            self.adapt_cache()?;
        }
        Ok(changed)
    }

    /// Returns the value of a key, as [`Index::find`](crate::Index::find).
    ///
    /// # Errors
    /// Also [`Error::StaleReader`].
    pub fn find(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.core.find(key)
    }

    /// Returns whether a key is present, as [`Index::mem`](crate::Index::mem).
    ///
    /// # Errors
    /// Also [`Error::StaleReader`].
    pub fn mem(&self, key: &[u8]) -> Result<bool> {
        Ok(self.core.find(key)?.is_some())
    }

    /// Returns the value of each key, as [`Index::find_many`](crate::Index::find_many).
    ///
    /// # Errors
    /// Also [`Error::StaleReader`].
    pub fn find_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        self.core.find_many(keys)
    }

    /// Number of entries as of the last sync.
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

    /// All entries as of the last sync, ascending. Later syncs do not change the cursor.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    #[expect(clippy::iter_not_returning_iterator, reason = "making one can fail")]
    pub fn iter(&self) -> Result<Cursor> {
        self.range::<&[u8]>(..)
    }

    /// The entries of a range, ascending.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        Cursor::ascending(&self.core, bounds_of(&range))
    }

    /// The entries of a range, descending.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub fn range_back<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        Cursor::descending(&self.core, bounds_of(&range))
    }

    /// The entries whose keys begin with a prefix, ascending.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub fn prefix(&self, prefix: &[u8]) -> Result<Cursor> {
        Cursor::ascending(&self.core, bounds_of_prefix(prefix))
    }

    /// The entries whose keys begin with a prefix, descending.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub fn prefix_back(&self, prefix: &[u8]) -> Result<Cursor> {
        Cursor::descending(&self.core, bounds_of_prefix(prefix))
    }

    /// Statistics of the index as this reader sees it, and of the reader's own work.
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

    /// Ends the lease. A second call does nothing.
    pub fn close(&self) {
        self.core.close();
        *self.follower() = None;
    }
}

impl Index {
    /// Opens an index for reading, beside a writer or on a read-only medium. See
    /// [`IndexReader::open`].
    ///
    /// # Errors
    /// Those of [`IndexReader::open`].
    pub fn open_read_only(disk: Arc<dyn Disk>, dir: &Path, config: &Config) -> Result<IndexReader> {
        IndexReader::open(disk, dir, config)
    }
}

impl Drop for IndexReader {
    fn drop(&mut self) {
        // In a child, another thread may have held the locks.
        if self.core.check_process().is_ok() {
            self.close();
        }
    }
}

impl Follower {
    /// Takes up the newest superblock and protects its tree, and the trees still in use.
    fn take_up(&mut self, core: &Core) -> Result<()> {
        // Cursors may still read older trees: the lease stays at the oldest of them.
        let oldest = self.epochs.front().map_or(u64::MAX, |epoch| epoch.0);
        self.superblock = take_up(self.disk.as_ref(), core.pager.path(), &self.lease, oldest)?;
        self.is_behind = true;
        Ok(())
    }

    /// Makes the newest tree visible, with all of the WAL above it.
    fn begin(&mut self, core: &Core, sizes: crate::page::leaf::Sizes) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            match self.try_begin(core, sizes) {
                // The writer cut the WAL meanwhile: a newer tree has those updates.
                Err(error) if is_not_found(&error) => {}
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(error),
            }
            let generation = self.superblock.generation;
            self.take_up(core)?;
            // No newer tree has the missing part of the WAL.
            if self.superblock.generation == generation {
                let durable = durable_mark(self.disk.as_ref(), &core.dir, self.superblock.tree);
                let must_reach = durable.max(self.superblock.log_end);
                return Err(lost(&core.dir, self.wal.position(), must_reach));
            }
        }

        let generation = self.superblock.generation;
        let oldest = self.superblock.oldest;
        Err(Error::StaleReader { generation, oldest })
    }

    /// Tries [`begin`](Self::begin) once. Returns whether the WAL reached as far as the tree needs.
    fn try_begin(&mut self, core: &Core, sizes: crate::page::leaf::Sizes) -> Result<bool> {
        let superblock = &self.superblock;
        let applied = read_applied(&core.pager, superblock)?;

        let start = superblock.log_start;

        // Read before the WAL: a writer may append and sync meanwhile.
        let durable = durable_mark(self.disk.as_ref(), &core.dir, superblock.tree);
        let must_reach = durable.max(superblock.log_end);

        self.wal = WalReader::new(self.disk.clone(), &core.dir, superblock.tree, start);

        let mut pending = UpdateBuffer::default();
        let mut entries = superblock.entries;
        while let Some(frame) = self.wal.next_of(superblock.replaced)? {
            entries = if frame.next > superblock.log_end { frame.entries } else { entries };
            replay(&mut pending, &frame, &applied, sizes, &core.dir)?;
        }

        // The writer may have cut the WAL meanwhile; `begin` then looks for a newer tree.
        if self.wal.position() < must_reach {
            return Ok(false);
        }

        self.updates = pending.len();
        self.install(core, |state| {
            state.pending = pending;
            state.entries = entries;
        })?;

        Ok(true)
    }

    /// Makes the tree of the superblock visible together with `change`, and lets go of trees that
    /// nobody reads.
    fn install(&mut self, core: &Core, change: impl FnOnce(&mut State)) -> Result<()> {
        let generation = self.superblock.generation;
        let is_older = |epoch: &Arc<Epoch>| epoch.0 <= generation;
        debug_assert!(self.epochs.back().is_none_or(is_older), "a reader never goes back");

        {
            let mut state = core.state_mut();
            if self.epochs.back().is_none_or(|epoch| epoch.0 != generation) {
                let tree = tree_of(&self.superblock);
                self.epochs.push_back(tree.epoch.clone());
                state.tree = Arc::new(tree);
            }
            change(&mut state);
        }

        // A lease costs a write: the reader renews it only if its oldest tree has changed.
        let before = self.epochs.front().map(|epoch| epoch.0);
        while self.epochs.front().is_some_and(|epoch| Arc::strong_count(epoch) == 1) {
            self.epochs.pop_front();
        }

        let oldest = self.epochs.front().map_or(generation, |epoch| epoch.0);
        core.pager.stands_at.store(oldest, Ordering::Relaxed);
        self.is_behind = false;
        if before == Some(oldest) { Ok(()) } else { self.lease.renew(oldest) }
    }

    /// Catches up with the writer. Returns whether anything was new.
    fn sync(&mut self, core: &Core, sizes: crate::page::leaf::Sizes) -> Result<bool> {
        // Without a newer superblock the tree stays, and only new frames count.
        let newest = superblock::read(self.disk.as_ref(), core.pager.path())?;
        let replaced = self.superblock.replaced;
        let was_behind = self.is_behind;

        let is_newer = newest.generation != self.superblock.generation;
        if is_newer {
            self.take_up(core)?;
        }

        // The updates that were read pile up above old trees: now and then the reader begins anew.
        let has_many = core.state()?.pending.len() > 2 * self.updates + UPDATES_SLACK;
        if was_behind || self.superblock.replaced != replaced || (is_newer && has_many) {
            self.begin(core, sizes)?;
            return Ok(true);
        }

        let frames = match self.new_frames() {
            Ok(frames) if self.wal.position() >= self.superblock.log_end => frames,
            // The writer cut the WAL before this reader read it; the newest tree has those updates.
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

        // A tree that replaced another one may have other entries although the WAL has not grown.
        let is_at_tree = self.wal.position() == self.superblock.log_end;
        let entries = is_at_tree.then_some(self.superblock.entries);
        let entries = entries.or(frames.last().map(|frame| frame.entries));
        // The last update of a key wins, even if the newer tree has it already.
        let everything = Applied::up_to(0);

        // A copy, so that lookups see all of the new frames or none.
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

    /// The frames appended since the last call, up to a replacement of all entries.
    fn new_frames(&mut self) -> Result<Vec<Frame>> {
        let mut frames = Vec::new();
        while let Some(frame) = self.wal.next_of(self.superblock.replaced)? {
            frames.push(frame);
        }
        Ok(frames)
    }
}
