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
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrane_io::EntryKind;
use terrane_io::{Access, Anchor, Disk, DiskFile, LockGuard, OpenMode, Reserve};

use crate::index::lease::{self, READERS_DIR};
use crate::index::scrub::{self, ScrubReport};
use crate::index::snapshot::Snapshot;
use crate::index::writer::{FlushCallback, Writer, WriterStats, makes_room, opened_state};
use crate::log::applied::Applied;
use crate::log::pending::UpdateBuffer;
use crate::log::quarantine::Quarantine;
use crate::log::wal::{self, Frame, FrameBody, LOG_DIR, Tail, Wal};
use crate::page::block::{self, Block};
use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result, unless_no_space};
use crate::page::leaf::Fences;
use crate::page::page::{BODY_OFFSET, Kind, PAGE_SIZE, PageNo, PageRef, u32_at};
use crate::pager::config::{Config, Limits};
use crate::pager::free_map::{FreeMap, LIST_MAPS, MAP_PAGES};
use crate::pager::pager::Pager;
use crate::pager::stats::Stats;
use crate::pager::superblock::{self, LevelPages, NUMBER_MAX, Owner, Superblock};
use crate::sort::input::Records;
use crate::sort::sort::{SortOptions, Sorter};
use crate::tree::bulk::{self, FILL_PERCENT_MIN};
use crate::tree::cursor::{Cursor, bounds_of, bounds_of_prefix};
use crate::tree::edit::Change;
use crate::tree::state::Core;
use crate::tree::tree::{Child, Epoch, Tree};

/// Name of the file of pages.
pub(crate) const TREE_FILE: &str = "tree";

/// Name of the tree file while the index is being created.
pub(crate) const TREE_TEMPORARY: &str = "tree.tmp";

/// Name of the file whose lock the writer holds.
pub(crate) const LOCK_FILE: &str = "lock";

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

/// Refuses an index whose keys or values have other sizes.
pub(crate) fn check_sizes(dir: &Path, limits: &Limits, superblock: &Superblock) -> Result<()> {
    let says = |size: Option<u16>| size.map_or("of any size".to_owned(), |bytes| bytes.to_string());
    let pairs = [
        ("key_bytes", superblock.sizes.key, limits.sizes.key),
        ("value_bytes", superblock.sizes.value, limits.sizes.value),
    ];
    match pairs.into_iter().find(|(_, stored, given)| stored != given) {
        Some((option, stored, given)) => {
            let stored = says(stored);
            let given = says(given);
            Err(Error::ConfigMismatch { path: dir.to_owned(), option, stored, given })
        }
        None => Ok(()),
    }
}

/// Reads how far a published tree has the updates of the WAL.
pub(crate) fn read_applied(pager: &Pager, superblock: &Superblock) -> Result<Applied> {
    let Some(page) = superblock.applied else { return Ok(Applied::up_to(superblock.log_start)) };
    let (count, bytes) = pager.load_other(page, Kind::Applied)?;

    let applied = Applied::decode(count, &bytes[BODY_OFFSET..]).filter(|applied| {
        applied.oldest().0 == superblock.log_start && applied.newest() <= superblock.log_end
    });

    applied.ok_or_else(|| {
        let page = u64::from(page.number);
        let count = count as u64;
        pager.corrupt(Corrupt { page, rule: "ranges of the drained", expected: count, found: 0 })
    })
}

/// The tree that a superblock publishes.
pub(crate) fn tree_of(superblock: &Superblock) -> Tree {
    Tree {
        root: superblock.root.map(Child::Stored),
        height: superblock.height,
        level_pages: superblock.level_pages,
        fresh_nodes: 0,
        epoch: Arc::new(Epoch(superblock.generation)),
    }
}

/// Reads the free map of a superblock, and the references of its pages.
pub(crate) fn read_free_map(
    pager: &Pager,
    superblock: &Superblock,
) -> Result<(FreeMap, Vec<PageRef>)> {
    let broken = |page: PageRef| {
        let page = u64::from(page.number);
        pager.corrupt(Corrupt { page, rule: "map of used pages", expected: 0, found: page })
    };

    let mut maps = Vec::new();
    for &list in &superblock.lists {
        let (count, bytes) = pager.load_other(list, Kind::MapList)?;
        if count > LIST_MAPS {
            return Err(broken(list));
        }
        for at in (BODY_OFFSET..BODY_OFFSET + 8 * count).step_by(8) {
            let map = PageRef { number: u32_at(&bytes, at), crc: u32_at(&bytes, at + 4) };
            if u64::from(map.number) >= superblock.pages {
                return Err(broken(list));
            }
            maps.push(map);
        }
    }

    // Every page has its bit, and none more: a list of another length belongs to another file.
    let root = superblock.root.unwrap_or(PageRef { number: 0, crc: 0 });
    if superblock.pages > 1 << 32
        || maps.len() as u64 != superblock.pages.div_ceil(MAP_PAGES as u64)
    {
        return Err(broken(root));
    }

    let mut bodies = Vec::with_capacity(maps.len());
    for &map in &maps {
        bodies.push(pager.load_other(map, Kind::Map)?.1);
    }

    let bodies = bodies.iter().map(|bytes| &bytes[BODY_OFFSET..]);
    let free_map = FreeMap::from_maps(superblock.pages, bodies).ok_or_else(|| broken(root))?;
    Ok((free_map, maps))
}

/// Returns the absolute path of a directory, and an anchor: from then on no call below it follows a
/// link.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Disk`].
pub(crate) fn enter(disk: &dyn Disk, dir: &Path) -> Result<(PathBuf, Box<dyn Anchor>)> {
    let dir = disk.absolute(dir)?;
    match disk.anchor(&dir) {
        Ok(anchor) => Ok((dir, anchor)),
        Err(error) if error.is_not_found() => Err(Error::NotFound { path: dir }),
        Err(error) => Err(error.into()),
    }
}

/// Returns the path of the tree file of an index.
///
/// # Errors
/// [`Error::NotFound`]; [`Error::TreeMissing`] if the WAL of an index or the lease of a reader is
/// present.
pub(crate) fn existing_tree(disk: &dyn Disk, dir: &Path) -> Result<PathBuf> {
    let path = dir.join(TREE_FILE);
    if disk.kind(&path)?.is_some() {
        return Ok(path);
    }

    let Some(trace) = trace_of_index(disk, dir)? else {
        return Err(Error::NotFound { path: dir.to_owned() });
    };

    // A creation may have ended since the first look.
    if disk.kind(&path)?.is_some() {
        return Ok(path);
    }

    Err(Error::TreeMissing { path: dir.to_owned(), trace })
}

/// A file that only an index leaves behind, if the tree file is missing.
fn trace_of_index(disk: &dyn Disk, dir: &Path) -> Result<Option<PathBuf>> {
    if disk.kind(&dir.join(LOG_DIR))? != Some(EntryKind::Directory) {
        return Ok(None);
    }
    let lost = wal::find_lost_tree(disk, dir)?;
    Ok(lost.filter(|_| !is_unfinished(disk, dir)).map(|_| dir.join(LOG_DIR)))
}

/// Whether a creation was interrupted: it begins with a temporary tree file and an empty WAL.
fn is_unfinished(disk: &dyn Disk, dir: &Path) -> bool {
    let has_temporary = disk.kind(&dir.join(TREE_TEMPORARY)).is_ok_and(|kind| kind.is_some());
    let has_readers = disk.list(&dir.join(READERS_DIR)).is_ok_and(|names| !names.is_empty());
    has_temporary && !has_readers && wal::is_unused(disk, dir)
}

/// Refuses a directory in which something else has the place of the WAL or of the readers.
fn check_vacant(disk: &dyn Disk, dir: &Path) -> Result<()> {
    if is_unfinished(disk, dir) {
        return Ok(());
    }

    if let Some(trace) = trace_of_index(disk, dir)? {
        return Err(Error::TreeMissing { path: dir.to_owned(), trace });
    }

    for name in [LOG_DIR, READERS_DIR] {
        let path = dir.join(name);
        match disk.kind(&path)? {
            None => {}
            Some(EntryKind::Directory) if disk.list(&path)?.is_empty() => {}
            Some(_) => return Err(Error::DirectoryInUse { path: dir.to_owned(), found: path }),
        }
    }

    Ok(())
}

/// Writes and syncs the tree file of an empty index; its name is not durable yet.
pub(crate) fn write_first_superblock(
    disk: &dyn Disk,
    path: &Path,
    owner: Owner,
) -> Result<Arc<dyn DiskFile>> {
    let superblock = Superblock::first(owner);
    if disk.kind(path)?.is_some() {
        disk.remove(path)?;
    }

    let file = disk.open(path, OpenMode::CreateNew, Access::Buffered)?;

    // The first superblock of a tree is the second page; the page before it stays zero.
    let mut bytes = vec![0; PAGE_SIZE];
    bytes.extend(superblock.encode());
    file.write_at(&bytes, 0)?;
    file.sync()?;
    Ok(file)
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
    fn with_writer<T>(&self, act: impl FnOnce(&mut Writer, &Core) -> Result<T>) -> Result<T> {
        let mut writer = self.writer();
        let writer = writer.as_mut().filter(|_| !self.core.is_closed()).ok_or(Error::Closed)?;
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
    pub fn sync_to(&self, position: u64) -> Result<()> {
        if self.core.is_closed() {
            return Err(Error::Closed);
        }
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
    pub fn checkpoint(&self) -> Result<()> {
        self.with_writer(|writer, core| {
            writer.flush(core, true)?;
            writer.with_reserve(core, |writer| writer.checkpoint(core))
        })
    }

    /// Removes all entries: all or nothing, durably. Their space is free once no reader needs it.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    pub fn clear(&self) -> Result<()> {
        self.with_writer(|writer, core| {
            writer.with_reserve(core, |writer| {
                let before = writer.free_map.clone();
                let gone = writer.tree_pages();
                let empty = Tree {
                    root: None,
                    height: 0,
                    level_pages: LevelPages::default(),
                    fresh_nodes: 0,
                    epoch: core.state()?.tree.epoch.clone(),
                };
                writer.replace(core, empty, gone, 0, before)
            })
        })
    }

    /// Keeps the entries for which `keep` is true and removes all others: all or nothing, durably.
    /// If `keep` panics, nothing has changed.
    ///
    /// Cost: reads each leaf, writes those that change. Lookups go on meanwhile; updates wait.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush), and [`Error::Corrupt`].
    pub fn filter(&self, keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.with_writer(|writer, core| {
            writer.flush(core, true)?;
            writer.begin_leaves(core)?;

            let mut change = Filter { core, keep, removed: 0, done: Vec::new() };
            let entries = core.state()?.entries;
            let before = writer.free_map.clone();
            let rewritten = writer.rewrite(core, &mut change, &mut |_| {})?;
            let left = entries.saturating_sub(change.removed);
            let (tree, gone) = rewritten;
            writer.replace(core, tree, gone, left, before)
        })
    }

    /// Fills an empty index from sorted input: all of it or nothing, durably. Pages are filled to
    /// `fill_percent` of 50 to 100; 90 is usual.
    ///
    /// Cost: writes each page once, in large pieces; two checkpoints.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::InvalidConfig`]; [`Error::NotSorted`], [`Error::DuplicateKey`]
    /// with the position; those of the input; as [`flush`](Self::flush).
    #[doc(alias = "bulk_load")]
    #[doc(alias = "ingest")]
    pub fn build_sorted(
        &self,
        input: &mut dyn Records,
        fill_percent: u32,
        mut progress: impl FnMut(u64),
    ) -> Result<u64> {
        if !(FILL_PERCENT_MIN..=100).contains(&fill_percent) {
            let value = fill_percent.to_string();
            let allowed = "50 to 100 per cent are allowed";
            return Err(Error::InvalidConfig { option: "fill_percent", value, allowed });
        }

        self.with_writer(|writer, core| {
            if core.state()?.entries > 0 {
                return Err(Error::NotEmpty { path: core.dir.clone() });
            }

            writer.flush(core, true)?;
            let generation = writer.begin_leaves(core)?;

            // The new tree takes free pages only, so a failure leaves the old one as it was.
            let before = writer.free_map.clone();
            let gone = writer.tree_pages();
            let built = writer.or_restore_free_map(|writer| {
                let free_map = &mut writer.free_map;
                bulk::build(&core.pager, free_map, generation, fill_percent, input, &mut progress)
            })?;

            let tree = Tree {
                root: built.root,
                height: built.height,
                level_pages: built.level_pages,
                fresh_nodes: 0,
                epoch: core.state()?.tree.epoch.clone(),
            };
            writer.replace(core, tree, gone, built.entries, before)?;
            Ok(built.entries)
        })
    }

    /// Like [`build_sorted`](Self::build_sorted) for input in any order, through an external sort
    /// in the directory and memory of `options`.
    ///
    /// After a crash the same call with the same input resumes the sort. The files of the sort are
    /// removed in the end.
    ///
    /// # Errors
    /// Those of [`build_sorted`](Self::build_sorted), and those of [`Sorter`].
    pub fn build_unsorted(
        &self,
        input: &mut dyn Records,
        options: SortOptions,
        fill_percent: u32,
        mut progress: impl FnMut(u64),
    ) -> Result<u64> {
        let disk = self.with_writer(|writer, _| Ok(writer.disk.clone()))?;
        let mut sorter = Sorter::open(disk, options)?;
        sorter.push_all(input, &mut progress)?;
        let mut sorted = sorter.finish(&mut progress)?;

        let entries = self.build_sorted(&mut sorted, fill_percent, progress)?;

        // Only now: the records are durable in the index.
        sorted.remove_files()?;
        Ok(entries)
    }

    /// Makes the index smaller while lookups go on. Returns by how many bytes the file became
    /// shorter.
    ///
    /// - Applies all updates that only the WAL has, so that the WAL shrinks to nothing.
    /// - Packs the entries of neighbouring leaves into fewer leaves where that saves an eighth of
    ///   them.
    /// - Moves pages from the end of the file into free ones before it, and cuts the file.
    ///
    /// Cost: reads each leaf; writes the changed and the packed leaves, and each page behind the
    /// future end of the file. The file grows by a sixteenth meanwhile. Packing stops if a snapshot
    /// needs the packed leaves.
    ///
    /// Rejected: a new tree beside the old one (twice the room, when there is least of it); a
    /// higher limit for joining leaves at every removal (each later insertion would divide them).
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush), and [`Error::Corrupt`].
    pub fn compact(&self) -> Result<u64> {
        self.with_writer(|writer, core| {
            let before = writer.free_map.pages();
            match writer.apply_all(core).and_then(|()| writer.pack(core)) {
                Err(error) if error.is_no_space() => {
                    writer.give_reserve_up(core)?;
                    unless_no_space(writer.flush(core, true))?;
                    unless_no_space(writer.collect_log(core))?;
                    // The collection may have made the room.
                    unless_no_space(writer.apply_all(core).and_then(|()| writer.pack(core)))?;
                }
                applied => applied?,
            }

            unless_no_space(move_to_front(writer, core))?;
            Ok(before.saturating_sub(writer.free_map.pages()) * PAGE_SIZE as u64)
        })
    }

    /// Reads up to `leaves` more leaves and the nodes above them, past the cache, and reports
    /// damaged pages. Goes on where the last call ended. A damaged page that is whole in memory is
    /// written again.
    ///
    /// Cost: a read of 4 KiB for each leaf and each node above. A few leaves now and then scrub in
    /// the background at whatever rate the device can spare; updates wait meanwhile.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Disk`], [`Error::Poisoned`].
    pub fn scrub(&self, leaves: u64) -> Result<ScrubReport> {
        self.with_writer(|writer, core| {
            writer.check_usable()?;
            let done = scrub::scrub(core, &writer.scrub_from, leaves);
            let (report, from) = writer.poison_if_failed(done)?;
            writer.scrub_from = from;
            Ok(report)
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
        if let Some(writer) = self.writer().as_mut()
            && writer.poisoned.is_none()
            && let Err(error) = writer.close(&self.core)
        {
            tracing::warn!(path = %self.core.dir.display(), %error, "close.failed");
        }
        self.core.close();
    }
}

/// The change that keeps what `keep` wants, of leaves and of the pending updates above them.
struct Filter<'a, F> {
    core: &'a Core,
    keep: F,
    removed: u64,
    /// Upper end of the keys that `keep` has seen. Their leaf may come again, joined with the next
    /// one.
    done: Vec<u8>,
}

impl<F: FnMut(&[u8], &[u8]) -> bool> Change for Filter<'_, F> {
    fn touches(&mut self, _fences: Fences<'_>, _page: PageNo) -> bool {
        true
    }

    fn apply(&mut self, fences: Fences<'_>, entries: &Block) -> Option<Block> {
        let state = self.core.state().ok()?;
        let done = std::mem::take(&mut self.done);
        let low = fences.low.max(&done);
        let pending = state.pending.clone();
        drop(state);

        let mut updates = pending.range(low, fences.high).peekable();
        let is_updated = updates.peek().is_some();
        let merged = block::apply(entries, updates);

        // Keys below `low` were asked about already; `keep` sees each key once.
        let mut kept = Block::with_capacity(merged.bytes(), merged.len());
        for (key, value) in merged.iter() {
            if key < low || (self.keep)(key, value.unwrap_or_default()) {
                kept.push(key, value);
            }
        }

        self.done = fences.high.unwrap_or_default().to_vec();
        self.removed += (merged.len() - kept.len()) as u64;
        (is_updated || kept.len() < merged.len()).then_some(kept)
    }
}

/// The change that moves pages at or behind a limit in the file.
struct Move {
    limit: PageNo,
}

impl Change for Move {
    fn touches(&mut self, _fences: Fences<'_>, page: PageNo) -> bool {
        page >= self.limit
    }

    fn moves(&self, page: PageNo) -> bool {
        page >= self.limit
    }
}

/// Moves pages from the end of the file into free ones before it, and cuts the file.
fn move_to_front(writer: &mut Writer, core: &Core) -> Result<()> {
    loop {
        let pages = writer.free_map.pages();
        // Without a free page before its end, the file would have this length.
        let mut change = Move { limit: writer.free_map.used_pages() as PageNo };
        let (tree, gone) = writer.rewrite(core, &mut change, &mut |_| {})?;

        writer.free_map.change_all();
        writer.install(core, tree, gone);
        writer.free_gone(core)?;
        writer.cut_file(core, 0)?;

        if writer.free_map.pages() >= pages {
            return Ok(());
        }
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

/// Makes the updates of a frame pending, except those that the tree has.
pub(crate) fn replay(
    pending: &mut UpdateBuffer,
    frame: &Frame,
    applied: &Applied,
    sizes: crate::page::leaf::Sizes,
    dir: &Path,
) -> Result<()> {
    if frame.entries > NUMBER_MAX {
        let what = Corrupt::rule("entries of a frame of the log", NUMBER_MAX, frame.entries);
        return Err(Error::Corrupt { path: dir.join(LOG_DIR), what });
    }

    for (number, update) in frame.updates().enumerate() {
        let Some((key, value)) = update.filter(|(key, value)| sizes.check(key, *value).is_ok())
        else {
            let what = Corrupt::rule("update of a frame of the log", 0, number as u64);
            return Err(Error::Corrupt { path: dir.join(LOG_DIR), what });
        };
        if frame.position >= applied.position(key) {
            pending.insert(key, value);
        }
    }

    Ok(())
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

/// A number for a new tree, from the clock and the path, that no other tree has.
fn creation_number(disk: &dyn Disk, dir: &Path) -> u64 {
    let mut seed = terrane_io::bytes::Writer::new();
    seed.u64(disk.clock().wall().as_nanos() as u64).put(dir.as_os_str().as_encoded_bytes());
    let low = terrane_io::checksum::crc32c(seed.bytes());
    let high = terrane_io::checksum::crc32c(seed.u8(1).bytes());
    u64::from(high) << 32 | u64::from(low)
}
