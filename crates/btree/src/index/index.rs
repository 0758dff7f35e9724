//! The index for the one process that writes it.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrane_io::EntryKind;
use terrane_io::{Access, Anchor, Disk, DiskFile, LockGuard, OpenMode, Reserve};

use crate::index::lease::{self, READERS_DIR};
use crate::index::scrub::{self, ScrubReport};
use crate::index::snapshot::Snapshot;
use crate::index::writer::{Figures, FlushCallback, Writer, makes_room, opened};
use crate::log::applied::Drained;
use crate::log::pending::Deltas;
use crate::log::quarantine::LeftOut;
use crate::log::wal::{self, FrameBody, LOG_DIR, Log, Tail};
use crate::page::block::{self, Block};
use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result, unless_no_space};
use crate::page::leaf::Fences;
use crate::page::page::{BODY_OFFSET, Kind, PAGE_SIZE, PageNo, PageRef, u32_at};
use crate::pager::config::{Config, Limits};
use crate::pager::free_map::{LIST_MAPS, MAP_PAGES, Space};
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

/// The file of the pages.
pub(crate) const TREE_FILE: &str = "tree";

/// The tree file while the index is being made.
pub(crate) const TREE_TEMPORARY: &str = "tree.tmp";

/// The file whose lock the writer has.
pub(crate) const LOCK_FILE: &str = "lock";

/// An update of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update<'a> {
    /// Puts a value in place of what there was of a key.
    Replace(&'a [u8], &'a [u8]),
    /// Removes a key, if it is there.
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

/// An index that can be written.
///
/// All calls take `&self` and may come from many threads: lookups go side by side, updates one after the other.
#[derive(Debug)]
pub struct Index {
    core: Arc<Core>,
    tail: Arc<Tail>,
    writer: Mutex<Option<Writer>>,
    /// What the writer had when the last call that it took part in ended.
    figures: Mutex<Figures>,
}

/// Refuses an index with other sizes of keys or values.
pub(crate) fn check_sizes(dir: &Path, limits: &Limits, superblock: &Superblock) -> Result<()> {
    let says = |size: Option<u16>| size.map_or("of any size".to_owned(), |bytes| bytes.to_string());
    let pairs = [
        ("key_bytes", superblock.sizes.key, limits.sizes.key),
        ("value_bytes", superblock.sizes.value, limits.sizes.value),
    ];
    match pairs.into_iter().find(|(_, stored, given)| stored != given) {
        Some((option, stored, given)) => {
            let (stored, given) = (says(stored), says(given));
            Err(Error::ConfigMismatch { path: dir.to_owned(), option, stored, given })
        }
        None => Ok(()),
    }
}

/// What of the log a published tree has.
pub(crate) fn read_drained(pager: &Pager, superblock: &Superblock) -> Result<Drained> {
    let Some(page) = superblock.drained else { return Ok(Drained::up_to(superblock.log_start)) };
    let (count, bytes) = pager.load_other(page, Kind::Drained)?;
    let drained = Drained::decode(count, &bytes[BODY_OFFSET..]).filter(|drained| {
        drained.oldest().0 == superblock.log_start && drained.newest() <= superblock.log_end
    });
    drained.ok_or_else(|| {
        let (page, count) = (u64::from(page.number), count as u64);
        pager.corrupt(Corrupt { page, rule: "ranges of the drained", expected: count, found: 0 })
    })
}

/// The tree of a superblock.
pub(crate) fn tree_of(superblock: &Superblock) -> Tree {
    Tree {
        root: superblock.root.map(Child::Stored),
        height: superblock.height,
        level_pages: superblock.level_pages,
        fresh_nodes: 0,
        epoch: Arc::new(Epoch(superblock.generation)),
    }
}

/// The map of used pages of a superblock.
pub(crate) fn read_space(pager: &Pager, superblock: &Superblock) -> Result<(Space, Vec<PageRef>)> {
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
    let space = Space::from_maps(superblock.pages, bodies).ok_or_else(|| broken(root))?;
    Ok((space, maps))
}

/// The absolute path of a directory, and an anchor of it: from then on no call below it follows a link.
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

/// The tree file of an index.
///
/// # Errors
/// [`Error::NotFound`]; [`Error::TreeMissing`] if there is a log of an index, or a lease of a reader.
pub(crate) fn existing_tree(disk: &dyn Disk, dir: &Path) -> Result<PathBuf> {
    let path = dir.join(TREE_FILE);
    if disk.kind(&path)?.is_some() {
        return Ok(path);
    }
    let Some(trace) = trace_of_index(disk, dir)? else {
        return Err(Error::NotFound { path: dir.to_owned() });
    };
    // A creation may have ended meanwhile.
    if disk.kind(&path)?.is_some() {
        return Ok(path);
    }
    Err(Error::TreeMissing { path: dir.to_owned(), trace })
}

/// A file that an index alone leaves behind, where its tree file is missing.
fn trace_of_index(disk: &dyn Disk, dir: &Path) -> Result<Option<PathBuf>> {
    if disk.kind(&dir.join(LOG_DIR))? != Some(EntryKind::Directory) {
        return Ok(None);
    }
    let lost = wal::find_lost_tree(disk, dir)?;
    Ok(lost.filter(|_| !is_unfinished(disk, dir)).map(|_| dir.join(LOG_DIR)))
}

/// Whether a creation was interrupted: it begins with a temporary tree file and an empty log.
fn is_unfinished(disk: &dyn Disk, dir: &Path) -> bool {
    let has_temporary = disk.kind(&dir.join(TREE_TEMPORARY)).is_ok_and(|kind| kind.is_some());
    let has_readers = disk.list(&dir.join(READERS_DIR)).is_ok_and(|names| !names.is_empty());
    has_temporary && !has_readers && wal::is_unused(disk, dir)
}

/// Refuses to make an index in a directory where something else has its log or its readers.
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

/// Makes a tree file that an index without entries begins with, durably; its name is not durable yet.
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
    let mut bytes = vec![0; PAGE_SIZE];
    bytes.extend(superblock.encode());
    file.write_at(&bytes, 0)?;
    file.sync()?;
    Ok(file)
}

impl Index {
    /// Makes an index without entries in a directory, which is made if need be, durably.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::InvalidConfig`], [`Error::Locked`], [`Error::Disk`]; [`Error::TreeMissing`] if the
    /// directory has the log of an index whose tree file is lost, [`Error::DirectoryInUse`] if something else is there in
    /// `log` or `readers`. Nothing was changed then, but the directory and its lock file may have been made.
    pub fn create(disk: Arc<dyn Disk>, dir: &Path, config: &Config) -> Result<Self> {
        let limits = config.check()?;
        let dir = &disk.absolute(dir)?;
        terrane_io::files::create_dirs(disk.as_ref(), dir)?;
        let anchor = disk.anchor(dir)?;
        if let Some(parent) = dir.parent() {
            // It may be there since an attempt that failed before this.
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

    /// Opens an index, or makes one if there is none.
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

    /// Writes what an empty index consists of; the tree file gets its name last.
    ///
    /// The temporary tree file comes first, so that a log without either is known to have lost its tree.
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
        Log::create(disk, dir, owner, 0, limits.segment_bytes)?;
        disk.rename(&temporary, &dir.join(TREE_FILE))?;
        Ok(disk.sync_dir(dir)?)
    }

    /// Opens an index for writing, and brings back what was flushed before a crash.
    ///
    /// Cost: reads the map of used pages (a bit for each page) and the log: what was not in leaves when it was last used.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Locked`], [`Error::ConfigMismatch`], [`Error::NotAnIndex`],
    /// [`Error::UnsupportedVersion`], [`Error::InvalidConfig`], [`Error::Corrupt`], [`Error::Disk`].
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, config: &Config) -> Result<Self> {
        let limits = config.check()?;
        let (dir, anchor) = enter(disk.as_ref(), dir)?;
        existing_tree(disk.as_ref(), &dir)?;
        let lock = Self::lock(disk.as_ref(), &dir)?;
        Self::open_locked(disk, &dir, limits, (anchor, lock))
    }

    pub(crate) fn open_locked(
        disk: Arc<dyn Disk>,
        dir: &Path,
        limits: Limits,
        (anchor, lock): (Box<dyn Anchor>, Box<dyn LockGuard>),
    ) -> Result<Self> {
        if disk.kind(&dir.join(READERS_DIR))?.is_none() {
            disk.create_dir(&dir.join(READERS_DIR))?;
        }
        // Its creation may have been interrupted before the name was durable.
        disk.sync_dir(dir)?;
        let path = dir.join(TREE_FILE);
        let superblock = superblock::read(disk.as_ref(), &path)?;
        check_sizes(dir, &limits, &superblock)?;
        let file = disk.open(&path, OpenMode::ReadWrite, Access::Direct)?;
        let cache_bytes = limits.memory_bytes / 2;
        let pager = Pager::new(disk.clone(), file, superblock.tree, limits.sizes, cache_bytes);
        let (mut space, maps) = if superblock.lists.is_empty() {
            (Space::new(), Vec::new())
        } else {
            read_space(&pager, &superblock)?
        };
        let drained = read_drained(&pager, &superblock)?;
        let (mut pending, mut entries) = (Deltas::default(), superblock.entries);
        let reach = (superblock.log_start, superblock.log_end);
        let mut log =
            Log::recover(&disk, dir, superblock.tree, reach, limits.segment_bytes, |frame| {
                if frame.replaced > superblock.replaced {
                    // The superblock that goes with it is lost, and the tree of the other one is not what it was above.
                    let (expected, found) = (frame.replaced, superblock.replaced);
                    let what = Corrupt::rule("replaced", expected, found);
                    return Err(Error::Corrupt { path: path.clone(), what });
                }
                entries = if frame.next > superblock.log_end { frame.entries } else { entries };
                replay(&mut pending, frame, &drained, limits.sizes, dir)
            })?;
        log.replaced = superblock.replaced;
        let reserve_bytes = log.reserve_bytes(&FrameBody::default());
        let reserve = match log.reserve_file() {
            Some(file) => Reserve::open(file, reserve_bytes),
            None => Reserve::none(),
        };
        if reserve.is_full() {
            tracing::warn!(path = %dir.display(), bytes = reserve.bytes(), "reserve.missing");
        }
        let readers = lease::oldest(disk.as_ref(), dir)?;
        if readers.0.is_some_and(|oldest| oldest < superblock.generation) {
            // Which of the free pages they need is not known.
            space.hold_all_free(superblock.generation - 1);
        }
        let tree = tree_of(&superblock);
        let epochs = VecDeque::from([tree.epoch.clone()]);
        let core =
            Arc::new(Core::new(anchor, dir.to_owned(), pager, opened(tree, pending, entries)));
        let writer = Writer {
            disk,
            limits,
            space,
            log,
            reserve,
            body: FrameBody::default(),
            drained,
            opened_generation: superblock.generation,
            superblock,
            maps,
            flushed_entries: entries,
            epochs,
            readers,
            left_out: LeftOut::default(),
            scrub_from: Vec::new(),
            before_flush: None,
            poisoned: None,
            _lock: lock,
        };
        let figures = Mutex::new(writer.figures());
        let tail = writer.log.tail();
        Ok(Self { core, tail, writer: Mutex::new(Some(writer)), figures })
    }

    fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_writer<T>(&self, act: impl FnOnce(&mut Writer, &Core) -> Result<T>) -> Result<T> {
        let mut writer = self.writer();
        let writer = writer.as_mut().filter(|_| !self.core.is_closed()).ok_or(Error::Closed)?;
        let done = act(writer, &self.core);
        *self.figures() = writer.figures();
        done
    }

    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a key.
    ///
    /// Cost: none if the key was updated lately; else a read of 4 KiB for each level that is not in memory: one if all but
    /// the leaves is, at most the height and one more.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Disk`], [`Error::Corrupt`].
    pub fn find(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.core.find(key)
    }

    /// Whether a key is there. Cost and errors as of [`find`](Self::find).
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn mem(&self, key: &[u8]) -> Result<bool> {
        Ok(self.core.find(key)?.is_some())
    }

    /// The value of each key, in their order. The reads of one level go side by side; a page that several keys share is read
    /// once.
    ///
    /// # Errors
    /// As [`find`](Self::find); no partial result.
    pub fn find_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        self.core.find_many(keys)
    }

    /// Puts a value in place of what there was of a key. It is visible at once, and durable after a [`flush`](Self::flush).
    ///
    /// Cost: a lookup, which tells whether the key is new; now and then a part of what draining and publishing take.
    ///
    /// # Errors
    /// [`Error::KeySize`], [`Error::ValueSize`], [`Error::BatchTooLarge`], [`Error::Closed`], [`Error::Poisoned`],
    /// [`Error::FlushRefused`], [`Error::Disk`], [`Error::Full`]; [`Error::Corrupt`] if the page of the key is damaged, or if
    /// the buffer is full of updates of damaged pages and there is nothing else to drain.
    pub fn replace(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.apply(&[Update::Replace(key, value)]).map(|_| ())
    }

    /// Replaces many entries at once: all of them or none, also after a crash.
    ///
    /// Cost: the lookups go side by side.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub fn replace_many(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let updates: Vec<Update<'_>> =
            entries.iter().map(|(key, value)| Update::Replace(key, value)).collect();
        self.apply(&updates).map(|_| ())
    }

    /// Removes a key; whether it was there. Cost and errors as of [`replace`](Self::replace).
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        Ok(self.apply(&[Update::Remove(key)])? > 0)
    }

    /// Applies updates in their order: all of them or none, also after a crash. Returns how many of the removed keys were
    /// there.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
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

    /// Applies updates in their order and appends them to the log, all of them or none: after a crash, and also if the call
    /// fails. They become visible at one moment. Returns a position of the log, greater than that of any commit before, for
    /// [`sync_to`](Self::sync_to): until then they survive the end of the process.
    ///
    /// Cost: the lookups of [`apply`](Self::apply), one write to the log; two syncs and a file more when a segment is full.
    ///
    /// # Errors
    /// As [`replace`](Self::replace). Nothing was changed.
    pub fn commit(&self, updates: &[Update<'_>]) -> Result<u64> {
        self.commit_if(updates, |core| was_there(core, updates))
    }

    /// The same by a caller who knows of each update whether its key is there when its turn comes: without the lookups. What
    /// it knows must be so, or [`len`](Self::len) is wrong from then on; an update that removes what is not there is left out.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Panics
    /// If there are not as many answers as updates.
    pub fn commit_known(&self, updates: &[Update<'_>], was_there: Vec<bool>) -> Result<u64> {
        assert_eq!(updates.len(), was_there.len(), "an answer for each update");
        self.commit_if(updates, |_| Ok(was_there))
    }

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

    /// Makes commits durable up to the position of one; other calls go on meanwhile, and all that are waited for at the same
    /// time share a sync.
    ///
    /// Cost: one sync, or none if the log is durable up to there.
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
            failed => self.with_writer(|writer, _| writer.noting(failed.map(drop))),
        }
    }

    /// Whether a sync of the log, or one before it, has failed, so that nothing can be written any more. Waits for nobody.
    pub fn is_poisoned(&self) -> bool {
        self.figures().is_poisoned
    }

    /// The index as it is now, which stands still while it goes on.
    ///
    /// Cost: some reference counts. While there is a snapshot, an update of what it has, too, copies a block of 4 KiB of
    /// the buffer; and the pages of its tree are not used again.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn snapshot(&self) -> Result<Snapshot> {
        let state = self.core.state()?.clone();
        Ok(Snapshot::new(self.core.clone(), state))
    }

    /// Entries, the unflushed ones included. Costs nothing.
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

    /// All entries, ascending, as they are now.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Disk`], [`Error::Corrupt`].
    #[expect(clippy::iter_not_returning_iterator, reason = "making one can fail")]
    pub fn iter(&self) -> Result<Cursor> {
        self.range::<&[u8]>(..)
    }

    /// The entries of a range, ascending, as they are now.
    ///
    /// # Errors
    /// As [`iter`](Self::iter).
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        Cursor::ascending(&self.core, bounds_of(&range))
    }

    /// The entries of a range, descending, as they are now.
    ///
    /// # Errors
    /// As [`iter`](Self::iter).
    pub fn range_back<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        Cursor::descending(&self.core, bounds_of(&range))
    }

    /// The entries whose keys begin with a prefix, ascending.
    ///
    /// # Errors
    /// As [`iter`](Self::iter).
    pub fn prefix(&self, prefix: &[u8]) -> Result<Cursor> {
        Cursor::ascending(&self.core, bounds_of_prefix(prefix))
    }

    /// The entries whose keys begin with a prefix, descending.
    ///
    /// # Errors
    /// As [`iter`](Self::iter).
    pub fn prefix_back(&self, prefix: &[u8]) -> Result<Cursor> {
        Cursor::descending(&self.core, bounds_of_prefix(prefix))
    }

    /// Publishes all earlier updates to readers; with `sync` they are durable on return.
    ///
    /// Cost: one write to the log, and one sync.
    ///
    /// # Errors
    /// [`Error::FlushRefused`] if the function of [`before_flush`](Self::before_flush) failed; [`Error::Poisoned`] if the
    /// sync failed; [`Error::Disk`], [`Error::Closed`].
    pub fn flush(&self, sync: bool) -> Result<()> {
        self.with_writer(|writer, core| writer.flush(core, sync))
    }

    /// What is to be called before any update of a flush reaches the disk, so that what entries point to can be written
    /// first. A flush happens also when very much is unflushed.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn before_flush(&self, callback: FlushCallback) -> Result<()> {
        self.with_writer(|writer, _| {
            writer.before_flush = Some(callback);
            Ok(())
        })
    }

    /// Publishes the tree as draining has left it, durably, so that the next opening reads less of the log. It is done as
    /// needed without being asked for.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn checkpoint(&self) -> Result<()> {
        self.with_writer(|writer, core| {
            writer.flush(core, true)?;
            writer.with_reserve(core, |writer| writer.checkpoint(core))
        })
    }

    /// Removes all entries, and gives their space back once no reader needs it; all or nothing, durably.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn clear(&self) -> Result<()> {
        self.with_writer(|writer, core| {
            writer.with_reserve(core, |writer| {
                let before = writer.space.clone();
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

    /// Keeps the entries for which `keep` is true, and removes all others: all of that or nothing, durably. If `keep`
    /// panics, nothing has changed.
    ///
    /// Cost: reads each leaf, writes those that change. Lookups go on meanwhile; updates wait.
    ///
    /// # Errors
    /// As [`flush`](Self::flush), and [`Error::Corrupt`].
    pub fn filter(&self, keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.with_writer(|writer, core| {
            writer.flush(core, true)?;
            writer.begin_leaves(core)?;
            let mut change = Filter { core, keep, removed: 0, done: Vec::new() };
            let entries = core.state()?.entries;
            let before = writer.space.clone();
            let rewritten = writer.rewrite(core, &mut change, &mut |_| {})?;
            let left = entries.saturating_sub(change.removed);
            let (tree, gone) = rewritten;
            writer.replace(core, tree, gone, left, before)
        })
    }

    /// Fills an index without entries from sorted input, with pages filled to `fill_percent` of 50 to 100 (90 is usual): all
    /// of it or nothing, durably.
    ///
    /// Cost: writes each page once, in large pieces; two checkpoints.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::InvalidConfig`]; [`Error::NotSorted`], [`Error::DuplicateKey`] with the position;
    /// those of the input; as [`flush`](Self::flush).
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
            let before = writer.space.clone();
            let gone = writer.tree_pages();
            let built = writer.or_as_before(|writer| {
                let space = &mut writer.space;
                bulk::build(&core.pager, space, generation, fill_percent, input, &mut progress)
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

    /// The same from input in any order, through an external sort in the directory and memory of `options`. After a crash the
    /// same call with the same input goes on where the sort was; its files are removed in the end.
    ///
    /// # Errors
    /// As [`build_sorted`](Self::build_sorted), and those of [`Sorter`].
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
        sorted.remove_files()?;
        Ok(entries)
    }

    /// Applies all updates that only the log has, so that it takes no room any more, packs the entries of neighbouring leaves into
    /// fewer where that makes an eighth fewer, moves pages from the end of the file into free ones before it and cuts the file,
    /// while lookups go on. Returns the bytes that the file became shorter by.
    ///
    /// Cost: reads each leaf; writes those that updates wait for, those that were packed, and each page behind the place where
    /// the file could end. The file grows by a sixteenth meanwhile; if a snapshot needs the leaves that were packed, no more are.
    ///
    /// # Errors
    /// As [`flush`](Self::flush), and [`Error::Corrupt`].
    pub fn compact(&self) -> Result<u64> {
        self.with_writer(|writer, core| {
            let before = writer.space.pages();
            match writer.apply_all(core).and_then(|()| writer.pack(core)) {
                Err(error) if error.is_no_space() => {
                    writer.give_reserve_up(core)?;
                    unless_no_space(writer.flush(core, true))?;
                    unless_no_space(writer.collect_log(core))?;
                    // What was collected may have made the room.
                    unless_no_space(writer.apply_all(core).and_then(|()| writer.pack(core)))?;
                }
                applied => applied?,
            }
            unless_no_space(move_to_front(writer, core))?;
            Ok(before.saturating_sub(writer.space.pages()) * PAGE_SIZE as u64)
        })
    }

    /// Reads up to `leaves` more leaves, and the nodes above them, past the cache, from where the last call ended: to find out
    /// which pages have rotted. A damaged page that is whole in memory is written again; others are reported.
    ///
    /// Cost: a read of 4 KiB for each leaf, and for the nodes above. Called with a few leaves now and then it scrubs in the
    /// background at whatever rate the device can spare; updates wait meanwhile.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Disk`], [`Error::Poisoned`].
    pub fn scrub(&self, leaves: u64) -> Result<ScrubReport> {
        self.with_writer(|writer, core| {
            writer.check_usable()?;
            let done = scrub::scrub(core, &writer.scrub_from, leaves);
            let (report, from) = writer.noting(done)?;
            writer.scrub_from = from;
            Ok(report)
        })
    }

    /// What the index has and has done since it was opened. Waits for nobody: while a call changes the index, sizes of files are
    /// those before it.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn stats(&self) -> Result<Stats> {
        let stats = self.core.stats()?;
        let figures = *self.figures();
        Ok(Stats {
            file_bytes: figures.file_pages * PAGE_SIZE as u64,
            used_bytes: figures.used_pages * PAGE_SIZE as u64,
            held_bytes: figures.held_pages * PAGE_SIZE as u64,
            log_bytes: figures.log_bytes,
            reserve_bytes: figures.reserve_bytes,
            generation: figures.generation,
            readers: figures.readers,
            damaged_ranges: figures.damaged_ranges,
            ..stats
        })
    }

    /// Makes everything durable and gives the index back; the same again does nothing.
    ///
    /// # Errors
    /// As [`flush`](Self::flush); the index is closed nevertheless.
    pub fn close(&self) -> Result<()> {
        let mut writer = self.writer();
        let Some(open) = writer.as_mut() else { return Ok(()) };
        let result = open.close(&self.core);
        self.core.close();
        *writer = None;
        result
    }
}

/// As [`close`](Index::close), whose error nobody sees here.
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

/// Keeps what a function wants to keep, of leaves and of what is pending above them.
struct Filter<'a, F> {
    core: &'a Core,
    keep: F,
    removed: u64,
    /// Keys below were asked for. Their leaves come again if they were joined with the next ones.
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

/// Moves pages that lie behind a place in the file.
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
        let pages = writer.space.pages();
        let mut change = Move { limit: writer.space.used_pages() as PageNo };
        let (tree, gone) = writer.rewrite(core, &mut change, &mut |_| {})?;
        writer.space.change_all();
        writer.install(core, tree, gone);
        writer.free_gone(core)?;
        writer.cut_file(core, 0)?;
        if writer.space.pages() >= pages {
            return Ok(());
        }
    }
}

/// Whether the key of each update is there when its turn comes.
fn was_there(core: &Core, updates: &[Update<'_>]) -> Result<Vec<bool>> {
    if let [only] = updates {
        return Ok(vec![core.find(only.key())?.is_some()]);
    }
    let keys: Vec<&[u8]> = updates.iter().map(Update::key).collect();
    let mut there = vec![false; keys.len()];
    core.find_each(&keys, |at, value| there[at] = value.is_some())?;
    let mut latest: HashMap<&[u8], bool> = HashMap::with_capacity(updates.len());
    for (was_there, update) in there.iter_mut().zip(updates) {
        let before = latest.insert(update.key(), update.value().is_some());
        *was_there = before.unwrap_or(*was_there);
    }
    Ok(there)
}

/// Makes the updates of a frame pending, but for those that the tree has.
pub(crate) fn replay(
    pending: &mut Deltas,
    frame: &crate::log::wal::Frame,
    drained: &Drained,
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
        if frame.position >= drained.position(key) {
            pending.insert(key, value);
        }
    }
    Ok(())
}

/// A number that no other tree has: from the clock and the path.
fn creation_number(disk: &dyn Disk, dir: &Path) -> u64 {
    let mut seed = terrane_io::bytes::Writer::new();
    seed.u64(disk.clock().wall().as_nanos() as u64).put(dir.as_os_str().as_encoded_bytes());
    let low = terrane_io::checksum::crc32c(seed.bytes());
    let high = terrane_io::checksum::crc32c(seed.u8(1).bytes());
    u64::from(high) << 32 | u64::from(low)
}
