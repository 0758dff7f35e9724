//! The index as its one writing process sees it: opening, updates, lookups, and maintenance.
//!
//! [`Index`] is a handle around three parts, each of which can be used without the others:
//!
//! - [`Core`] is what lookups need: the visible state under a read-write lock, and the pager.
//! - [`Tail`] is the end of the WAL: callers wait there for durability while other calls go on.
//! - [`Writer`] is everything else, under one mutex: an update holds it from its lookup to its last
//!   write.
//!
//! Lock order: the writer's mutex, then the visible state, then a shard of the page cache. A lookup
//! takes the visible state alone, for microseconds. Statistics of the writer are copied behind each
//! call, so nobody waits for the writer to read them.
//!
//! `len` is exact, since each update looks its key up; that is the dearest part of an insertion far
//! beyond the cache. Rejected: counting when leaves are read anyway, which would make `len` cost an
//! apply of everything.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeBounds;
use std::path::Path;

use terrane_io::sync::{Arc, Mutex, MutexGuard, PoisonError};
use terrane_io::{Access, Anchor, Disk, LockGuard, OpenMode, Reserve};

use crate::index::directory::{
    LOCK_FILE, TREE_FILE, TREE_TEMPORARY, check_vacant, creation_number, enter, existing_tree,
    write_first_superblock,
};
use crate::index::flush::makes_room;
use crate::index::lease::{self, READERS_DIR};
use crate::index::published::{check_sizes, read_applied, read_free_map, replay, tree_of};
use crate::index::snapshot::Snapshot;
use crate::index::writer::{FlushCallback, Writer, WriterStats, opened_state};
use crate::log::applied::Applied;
use crate::log::pending::UpdateBuffer;
use crate::log::quarantine::Quarantine;
use crate::log::wal::{self, Frame, FrameBody, LOG_DIR, Tail, Wal};
use crate::page::block;
use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};
use crate::page::page::PAGE_SIZE;
use crate::pager::config::{Config, Limits};
use crate::pager::free_map::FreeMap;
use crate::pager::pager::Pager;
use crate::pager::stats::Stats;
use crate::pager::superblock::{self, Owner, Superblock};
use crate::tree::cursor::{Cursor, bounds_of, bounds_of_prefix};
use crate::tree::state::Core;

/// One update of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update<'a> {
    /// Sets the value of a key, whether the key is present or not.
    Replace(&'a [u8], &'a [u8]),
    /// Removes a key, if it is present.
    Remove(&'a [u8]),
}

impl<'a> Update<'a> {
    fn key(&self) -> &'a [u8] {
        match self {
            Self::Replace(key, _) | Self::Remove(key) => key,
        }
    }

    fn value(&self) -> Option<&'a [u8]> {
        match self {
            Self::Replace(_, value) => Some(value),
            Self::Remove(_) => None,
        }
    }
}

/// An index open for writing.
///
/// All calls take `&self` and may come from many threads: lookups run side by side, updates one
/// after the other.
#[doc(alias = "environment")]
#[doc(alias = "database")]
#[derive(Debug)]
pub struct Index {
    core: Arc<Core>,
    tail: Arc<Tail>,
    writer: Mutex<Option<Writer>>,
    /// Figures of the writer as of the end of the last call that used it.
    writer_stats: Mutex<WriterStats>,
}

impl Index {
    /// Creates an empty index in a directory, durably. Creates the directory if need be.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::InvalidConfig`], [`Error::Locked`],
    /// [`Error::Disk`]; [`Error::TreeMissing`] if the directory has the WAL of an index whose tree
    /// file is lost; [`Error::DirectoryInUse`] if something else is in `log` or `readers`. Nothing
    /// was changed then, except that the directory and its lock file may have been created.
    pub fn create(disk: Arc<dyn Disk>, dir: &Path, config: &Config) -> Result<Self> {
        let limits = config.check()?;
        let dir = &disk.absolute(dir)?;
        terrane_io::files::create_dirs(disk.as_ref(), dir)?;
        let anchor = disk.anchor(dir)?;

        if let Some(parent) = dir.parent() {
            // An earlier attempt may have created the directory and then failed.
            disk.sync_dir(parent)?;
        }

        let lock = Self::lock(disk.as_ref(), dir)?;
        if disk.kind(&dir.join(TREE_FILE))?.is_some() {
            return Err(Error::AlreadyExists { path: dir.to_owned() });
        }

        check_vacant(disk.as_ref(), dir)?;
        Self::lay_out(&disk, dir, &limits)?;
        Self::open_locked(disk, dir, limits, (anchor, lock))
    }

    /// Opens an index, or creates an empty one if there is none.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(disk: Arc<dyn Disk>, dir: &Path, config: &Config) -> Result<Self> {
        match Self::open(disk.clone(), dir, config) {
            Err(Error::NotFound { .. }) => Self::create(disk, dir, config),
            other => other,
        }
    }

    /// Takes the writer's lock.
    pub(crate) fn lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn LockGuard>> {
        disk.lock(&dir.join(LOCK_FILE)).map_err(|error| match error {
            terrane_io::Error::Locked { pid, .. } => Error::Locked { path: dir.to_owned(), pid },
            error => error.into(),
        })
    }

    /// Writes the files of an empty index; the tree file gets its name last.
    ///
    /// The temporary tree file comes first: a WAL without either file is known to have lost its
    /// tree.
    fn lay_out(disk: &Arc<dyn Disk>, dir: &Path, limits: &Limits) -> Result<()> {
        for name in [READERS_DIR, LOG_DIR] {
            if disk.kind(&dir.join(name))?.is_none() {
                disk.create_dir(&dir.join(name))?;
            }
        }

        let owner = Owner { tree: creation_number(disk.as_ref(), dir), sizes: limits.sizes };
        let temporary = dir.join(TREE_TEMPORARY);
        write_first_superblock(disk.as_ref(), &temporary, owner)?;
        disk.sync_dir(dir)?;

        wal::remove_unused(disk.as_ref(), dir)?;
        Wal::create(disk, dir, owner, 0, limits.segment_bytes)?;
        disk.rename(&temporary, &dir.join(TREE_FILE))?;
        Ok(disk.sync_dir(dir)?)
    }

    /// Opens an index for writing, and recovers the updates that were flushed before a crash.
    ///
    /// Cost: reads the free map (a bit for each page) and the part of the WAL that no leaf had when
    /// the index was last used.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Locked`], [`Error::ConfigMismatch`], [`Error::NotAnIndex`],
    /// [`Error::UnsupportedVersion`], [`Error::InvalidConfig`], [`Error::Corrupt`],
    /// [`Error::Disk`].
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, config: &Config) -> Result<Self> {
        let limits = config.check()?;
        let (dir, anchor) = enter(disk.as_ref(), dir)?;
        existing_tree(disk.as_ref(), &dir)?;
        let lock = Self::lock(disk.as_ref(), &dir)?;
        Self::open_locked(disk, &dir, limits, (anchor, lock))
    }

    /// Opens an index whose directory is anchored and locked.
    pub(crate) fn open_locked(
        disk: Arc<dyn Disk>,
        dir: &Path,
        limits: Limits,
        (anchor, lock): (Box<dyn Anchor>, Box<dyn LockGuard>),
    ) -> Result<Self> {
        if disk.kind(&dir.join(READERS_DIR))?.is_none() {
            disk.create_dir(&dir.join(READERS_DIR))?;
        }

        // The creation of the index may have been interrupted before the name was durable.
        disk.sync_dir(dir)?;
        let path = dir.join(TREE_FILE);
        let superblock = superblock::read(disk.as_ref(), &path)?;
        check_sizes(dir, &limits, &superblock)?;

        let file = disk.open(&path, OpenMode::ReadWrite, Access::Direct)?;
        let cache_bytes = limits.memory_bytes / 2;
        let pager = Pager::new(disk.clone(), file, superblock.tree, limits.sizes, cache_bytes);

        let (mut free_map, maps) = if superblock.lists.is_empty() {
            (FreeMap::new(), Vec::new())
        } else {
            read_free_map(&pager, &superblock)?
        };

        let applied = read_applied(&pager, &superblock)?;
        let (wal, pending, entries) = recover_wal(&disk, dir, &limits, &superblock, &applied)?;

        // The reserve comes after the WAL, whose longest segment gives its length.
        let reserve = open_reserve(&wal, dir);

        // Readers of older trees need some of the free pages; which ones is not recorded.
        let readers = lease::oldest(disk.as_ref(), dir)?;
        if readers.0.is_some_and(|oldest| oldest < superblock.generation) {
            // All of them, until the readers are gone.
            free_map.hold_all_free(superblock.generation - 1);
        }

        let tree = tree_of(&superblock);
        let epochs = VecDeque::from([tree.epoch.clone()]);
        let state = opened_state(tree, pending, entries);
        let core = Arc::new(Core::new(anchor, dir.to_owned(), pager, state));

        let writer = Writer {
            disk,
            limits,
            free_map,
            wal,
            reserve,
            body: FrameBody::default(),
            applied,
            opened_generation: superblock.generation,
            superblock,
            maps,
            flushed_entries: entries,
            epochs,
            readers,
            quarantine: Quarantine::default(),
            scrub_from: Vec::new(),
            before_flush: None,
            poisoned: None,
            _lock: lock,
        };

        let writer_stats = Mutex::new(writer.stats());
        let tail = writer.wal.tail();
        Ok(Self { core, tail, writer: Mutex::new(Some(writer)), writer_stats })
    }

    fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` with the writer, and keeps the writer's figures for calls that do not wait for
    /// it.
    pub(super) fn with_writer<T>(
        &self,
        act: impl FnOnce(&mut Writer, &Core) -> Result<T>,
    ) -> Result<T> {
        self.core.check_open()?;
        let mut writer = self.writer();
        let writer = writer.as_mut().ok_or(Error::Closed)?;
        let done = act(writer, &self.core);
        *self.writer_stats() = writer.stats();
        done
    }

    fn writer_stats(&self) -> MutexGuard<'_, WriterStats> {
        self.writer_stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value of a key.
    ///
    /// Cost: nothing if the key was updated lately. Otherwise a read of 4 KiB for each level that
    /// is not in memory: one if only the leaves are not, at most the height and one more.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Disk`], [`Error::Corrupt`].
    #[doc(alias = "get")]
    pub fn find(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.core.find(key)
    }

    /// Returns whether a key is present. Cost and errors as of [`find`](Self::find).
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    #[doc(alias = "contains_key")]
    pub fn mem(&self, key: &[u8]) -> Result<bool> {
        Ok(self.core.find(key)?.is_some())
    }

    /// Returns the value of each key, in the order of `keys`. The reads of one level run side by
    /// side; a page that several keys share is read once.
    ///
    /// # Errors
    /// Those of [`find`](Self::find); no partial result.
    #[doc(alias = "multi_get")]
    pub fn find_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        self.core.find_many(keys)
    }

    /// Sets the value of a key. The update is visible at once, and durable after a
    /// [`flush`](Self::flush).
    ///
    /// Cost: a lookup, which tells whether the key is new; now and then a share of applying and
    /// publishing.
    ///
    /// # Errors
    /// [`Error::KeySize`], [`Error::ValueSize`], [`Error::BatchTooLarge`], [`Error::Closed`],
    /// [`Error::Poisoned`], [`Error::FlushRefused`], [`Error::Disk`], [`Error::Full`];
    /// [`Error::Corrupt`] if the page of the key is damaged, or if the buffer is full of updates of
    /// damaged pages and no other update can be applied.
    #[doc(alias = "put")]
    pub fn replace(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.apply(&[Update::Replace(key, value)]).map(|_| ())
    }

    /// Sets the values of many keys at once: all of them or none, also after a crash.
    ///
    /// Cost: the lookups run side by side.
    ///
    /// # Errors
    /// Those of [`replace`](Self::replace).
    pub fn replace_many(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let updates: Vec<Update<'_>> =
            entries.iter().map(|(key, value)| Update::Replace(key, value)).collect();
        self.apply(&updates).map(|_| ())
    }

    /// Removes a key. Returns whether it was present. Cost and errors as of
    /// [`replace`](Self::replace).
    ///
    /// # Errors
    /// Those of [`replace`](Self::replace).
    #[doc(alias = "delete")]
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        Ok(self.apply(&[Update::Remove(key)])? > 0)
    }

    /// Applies updates in their order: all of them or none, also after a crash. Returns how many of
    /// the removed keys were present.
    ///
    /// # Errors
    /// Those of [`replace`](Self::replace).
    #[doc(alias = "write_batch")]
    pub fn apply(&self, updates: &[Update<'_>]) -> Result<usize> {
        for update in updates {
            self.core.pager.sizes.check(update.key(), update.value())?;
        }

        let bytes = |update: &Update<'_>| block::entry_bytes(update.key(), update.value());
        let bytes = updates.iter().map(bytes).sum();

        self.with_writer(|writer, core| {
            let limit = writer.limits.batch_bytes;
            if bytes > limit {
                return Err(Error::BatchTooLarge { bytes, limit });
            }

            let was_there = was_there(core, updates)?;
            let values = updates.iter().map(Update::value);
            writer.make_room(core, bytes, makes_room(values.zip(&was_there)))?;

            // Nothing can fail from here on: all updates become visible under one lock.
            let mut state = core.state_mut();
            let mut removed = 0;
            for (update, was_there) in updates.iter().zip(was_there) {
                match (update.value(), was_there) {
                    // A removal of a missing key changes nothing, and is not logged.
                    (None, false) => continue,
                    (None, true) => {
                        removed += 1;
                        state.entries = state.entries.saturating_sub(1);
                    }
                    (Some(_), false) => state.entries += 1,
                    (Some(_), true) => {}
                }
                state.unflushed.insert(update.key(), update.value());
                writer.body.push(update.key(), update.value());
            }

            Ok(removed)
        })
    }

    /// Applies updates in their order and appends them to the WAL: all of them or none, also after
    /// a crash or if the call fails. The updates become visible at one moment.
    ///
    /// Returns a position of the WAL for [`sync_to`](Self::sync_to), greater than that of any
    /// commit before. Until that sync, the updates survive the end of the process.
    ///
    /// Cost: the lookups of [`apply`](Self::apply), one write to the WAL; two syncs and a file more
    /// when a segment is full.
    ///
    /// # Errors
    /// Those of [`replace`](Self::replace). Nothing was changed.
    pub fn commit(&self, updates: &[Update<'_>]) -> Result<u64> {
        self.commit_if(updates, |core| was_there(core, updates))
    }

    /// Like [`commit`](Self::commit), without lookups: the caller says of each update whether its
    /// key is present when its turn comes.
    ///
    /// A wrong answer makes [`len`](Self::len) wrong from then on. A removal of a key that is not
    /// present has no effect.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit).
    ///
    /// # Panics
    /// If there is not one answer for each update.
    pub fn commit_known(&self, updates: &[Update<'_>], was_there: Vec<bool>) -> Result<u64> {
        assert_eq!(updates.len(), was_there.len(), "an answer for each update");
        self.commit_if(updates, |_| Ok(was_there))
    }

    /// Checks the updates, and commits them if they are not too large.
    fn commit_if(
        &self,
        updates: &[Update<'_>],
        was_there: impl FnOnce(&Core) -> Result<Vec<bool>>,
    ) -> Result<u64> {
        let mut entries = Vec::with_capacity(updates.len());
        for update in updates {
            self.core.pager.sizes.check(update.key(), update.value())?;
            entries.push((update.key(), update.value()));
        }

        let bytes = entries.iter().map(|&(key, value)| block::entry_bytes(key, value)).sum();

        self.with_writer(|writer, core| {
            let limit = writer.limits.batch_bytes;
            if bytes > limit {
                return Err(Error::BatchTooLarge { bytes, limit });
            }
            writer.commit(core, &entries, was_there)
        })
    }

    /// Makes commits durable up to a position that [`commit`](Self::commit) returned. Other calls
    /// go on meanwhile; callers that arrive during an fsync share the next one (group commit).
    ///
    /// Cost: one sync, or none if the WAL is durable up to there.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Closed`].
    #[doc(alias = "sync_wal")]
    pub fn sync_to(&self, position: u64) -> Result<()> {
        self.core.check_open()?;
        match self.tail.sync(position) {
            Ok(is_synced) => {
                self.core.pager.counters.syncs.add(u64::from(is_synced));
                Ok(())
            }
            failed => self.with_writer(|writer, _| writer.poison_if_failed(failed.map(drop))),
        }
    }

    /// Whether a sync has failed, so that the index accepts no more updates. Never waits.
    pub fn is_poisoned(&self) -> bool {
        self.writer_stats().is_poisoned
    }

    /// A consistent snapshot of the index; later updates do not change it.
    ///
    /// Cost: some reference counts. While there is a snapshot, the first update of a shared block
    /// of the buffer copies the block (4 KiB), and the pages of the snapshot's tree are not reused.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn snapshot(&self) -> Result<Snapshot> {
        let state = self.core.state()?.clone();
        Ok(Snapshot::new(self.core.clone(), state))
    }

    /// Number of entries, the unflushed ones included. Costs nothing.
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

    /// All entries as they are now, ascending.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Disk`], [`Error::Corrupt`].
    #[expect(clippy::iter_not_returning_iterator, reason = "making one can fail")]
    pub fn iter(&self) -> Result<Cursor> {
        self.range::<&[u8]>(..)
    }

    /// The entries of a range as they are now, ascending.
    ///
    /// # Errors
    /// Those of [`iter`](Self::iter).
    #[doc(alias = "scan")]
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        Cursor::ascending(&self.core, bounds_of(&range))
    }

    /// The entries of a range as they are now, descending.
    ///
    /// # Errors
    /// Those of [`iter`](Self::iter).
    pub fn range_back<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        Cursor::descending(&self.core, bounds_of(&range))
    }

    /// The entries whose keys begin with a prefix, ascending.
    ///
    /// # Errors
    /// Those of [`iter`](Self::iter).
    pub fn prefix(&self, prefix: &[u8]) -> Result<Cursor> {
        Cursor::ascending(&self.core, bounds_of_prefix(prefix))
    }

    /// The entries whose keys begin with a prefix, descending.
    ///
    /// # Errors
    /// Those of [`iter`](Self::iter).
    pub fn prefix_back(&self, prefix: &[u8]) -> Result<Cursor> {
        Cursor::descending(&self.core, bounds_of_prefix(prefix))
    }

    /// Publishes all earlier updates to readers. With `sync`, the updates are durable on return.
    ///
    /// Cost: one write to the WAL, and one sync.
    ///
    /// # Errors
    /// [`Error::FlushRefused`] if the function of [`before_flush`](Self::before_flush) failed;
    /// [`Error::Poisoned`] if the sync failed; [`Error::Disk`], [`Error::Closed`].
    pub fn flush(&self, sync: bool) -> Result<()> {
        self.with_writer(|writer, core| writer.flush(core, sync))
    }

    /// Registers a function that every flush calls before any of its updates reaches the disk, so
    /// that the caller can first write what entries point to. A full buffer also flushes.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn before_flush(&self, callback: FlushCallback) -> Result<()> {
        self.with_writer(|writer, _| {
            writer.before_flush = Some(callback);
            Ok(())
        })
    }

    /// Publishes the tree with all updates applied so far, durably, so that the next opening reads
    /// less of the WAL. Checkpoints also happen as needed.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    #[doc(alias = "wal_checkpoint")]
    pub fn checkpoint(&self) -> Result<()> {
        self.with_writer(|writer, core| {
            // Flushed first: the WAL must be durable as far as the tree has its updates.
            writer.flush(core, true)?;
            writer.with_reserve(core, |writer| writer.checkpoint(core))
        })
    }

    /// Statistics of the index since it was opened. Never waits: during an update the sizes of
    /// files are those before it.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn stats(&self) -> Result<Stats> {
        let stats = self.core.stats()?;
        let writer = *self.writer_stats();
        Ok(Stats {
            file_bytes: writer.file_pages * PAGE_SIZE as u64,
            used_bytes: writer.used_pages * PAGE_SIZE as u64,
            held_bytes: writer.held_pages * PAGE_SIZE as u64,
            log_bytes: writer.log_bytes,
            reserve_bytes: writer.reserve_bytes,
            generation: writer.generation,
            readers: writer.readers,
            damaged_ranges: writer.damaged_ranges,
            ..stats
        })
    }

    /// Makes everything durable and closes the index. A second call does nothing.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush); the index is closed nevertheless.
    pub fn close(&self) -> Result<()> {
        self.core.check_process()?;
        let mut writer = self.writer();
        let Some(open) = writer.as_mut() else { return Ok(()) };
        let result = open.close(&self.core);
        self.core.close();
        *writer = None;
        result
    }
}

/// Like [`close`](Index::close); an error goes to the log of the program.
impl Drop for Index {
    fn drop(&mut self) {
        // A child of the process that opened the index changes nothing.
        if self.core.check_process().is_err() {
            return;
        }
        // A poisoned writer can make nothing durable any more.
        if let Some(writer) = self.writer().as_mut()
            && writer.poisoned.is_none()
            && let Err(error) = writer.close(&self.core)
        {
            tracing::warn!(path = %self.core.dir.display(), %error, "close.failed");
        }
        self.core.close();
    }
}

/// Returns for each update whether its key is present when its turn comes.
fn was_there(core: &Core, updates: &[Update<'_>]) -> Result<Vec<bool>> {
    if let [only] = updates {
        return Ok(vec![core.find(only.key())?.is_some()]);
    }

    let keys: Vec<&[u8]> = updates.iter().map(Update::key).collect();
    let mut there = vec![false; keys.len()];
    core.find_each(&keys, |at, value| there[at] = value.is_some())?;

    // An earlier update of the batch counts before what the index has.
    let mut latest: HashMap<&[u8], bool> = HashMap::with_capacity(updates.len());
    for (was_there, update) in there.iter_mut().zip(updates) {
        let before = latest.insert(update.key(), update.value().is_some());
        *was_there = before.unwrap_or(*was_there);
    }

    Ok(there)
}

/// Recovers the WAL above a published tree. Returns it with the updates that the tree does not
/// have, and the number of entries with them.
fn recover_wal(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    limits: &Limits,
    superblock: &Superblock,
    applied: &Applied,
) -> Result<(Wal, UpdateBuffer, u64)> {
    let mut pending = UpdateBuffer::default();
    let mut entries = superblock.entries;
    let reach = (superblock.log_start, superblock.log_end);

    let each = |frame: &Frame| {
        if frame.replaced > superblock.replaced {
            // The superblock of that replacement is lost; the other superblock's tree does not
            // belong below these frames.
            let what = Corrupt::rule("replaced", frame.replaced, superblock.replaced);
            return Err(Error::Corrupt { path: dir.join(TREE_FILE), what });
        }
        // Frames up to the checkpoint are in the superblock's number already.
        entries = if frame.next > superblock.log_end { frame.entries } else { entries };
        replay(&mut pending, frame, applied, limits.sizes, dir)
    };

    let mut wal = Wal::recover(disk, dir, superblock.tree, reach, limits.segment_bytes, each)?;
    wal.replaced = superblock.replaced;
    Ok((wal, pending, entries))
}

/// Opens the reserve of an index; without room for it the index begins with its reserve given up.
fn open_reserve(wal: &Wal, dir: &Path) -> Reserve {
    let bytes = wal.reserve_bytes(&FrameBody::default());
    let reserve = match wal.reserve_file() {
        Some(file) => Reserve::open(file, bytes),
        None => Reserve::none(),
    };
    if reserve.is_full() {
        tracing::warn!(path = %dir.display(), bytes = reserve.bytes(), "reserve.missing");
    }
    reserve
}
