//! File handles: the open files of a session, no more than its options allow.
//!
//! The first use of a [`PooledFile`] opens the file, which stays open until another file needs the
//! room. A clock chooses the file to close: its hand passes over files that were used since its
//! last visit, and closes the first file that was not. A use of an open file touches nothing but
//! that file.
//!
//! **In use.** A reader or writer holds the file (`Arc<dyn DiskFile>`) for as long as that takes,
//! and no file is closed under them. If all files that may be open are in use, [`PooledFile::get`]
//! opens one more, so the limit can be passed by one file for each call that runs at that moment,
//! and no call waits for another. A caller that has several files in use at once asks with
//! [`PooledFile::get_if_room`].
//!
//! **Not yet durable.** The system reports a failed write-back to a later sync only as long as a
//! descriptor of the file is open. So a file whose bytes are not durable is synced before it is
//! closed; the hand passes over such files more often.
//!
//! **No descriptors left.** A call that the system refuses because the process (or the machine) has
//! too many open files is repeated after all idle files have been closed.
//!
//! **No room left.** A write that fails because the disk is full is made once more after all files
//! have gone that are on their way out ([`Reclaimer`]), and then after the [`Reserve`] has been let
//! go.
//!
//! **Descriptors of others.** The queue of a cursor or a merge that reads ahead may take one, and
//! so may that of the writes of all merges; each takes a [`OpenFilePermit`].
//!
//! **The end of the session.** [`FileHandles::end_writing`] waits for the writes under way and
//! refuses all that come later, even where the file is still open: by then another session may have
//! the directory, and a file of the same name may be its own.
//!
//! Invariant: a slot is in the clock exactly when its file is open. Locks are taken in the order
//! slot, clock. A thread that holds the clock only tries the lock of a slot. A thread that changes
//! the reserve holds neither.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use terrane_io::rare;
use terrane_io::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use terrane_io::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError,
};
use terrane_io::{self as io, Access, Disk, DiskFile, OpenMode, QueueKind};

use crate::error::{Error, Result};
use crate::files::reclaim::Reclaimer;
use crate::files::reserve::Reserve;
use crate::trace::event;

/// Files that a session keeps open if its options do not say.
pub(crate) const OPEN_FILES_DEFAULT: usize = 128;

/// Range of values that a session's options may choose.
pub(crate) const OPEN_FILES_MAX: RangeInclusive<usize> = 4..=65_536;

/// How often the hand passes over a file after a use.
const CHANCES: u8 = 1;

/// Number of passes for a file whose closing costs a sync.
const CHANCES_UNSYNCED: u8 = 4;

/// A file that may be open.
#[derive(Debug)]
struct HandleSlot {
    path: PathBuf,
    mode: OpenMode,
    access: Access,
    /// `None` while it is closed.
    file: RwLock<Option<Arc<dyn DiskFile>>>,
    /// How often the hand will pass over it.
    chances: AtomicU8,
    /// Whether all bytes written are durable.
    durable: AtomicBool,
}

impl HandleSlot {
    fn write(&self) -> RwLockWriteGuard<'_, Option<Arc<dyn DiskFile>>> {
        self.file.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, if it is open.
    fn use_open(&self) -> Option<Arc<dyn DiskFile>> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        let file = Arc::clone(file.as_ref()?);
        self.mark_used();
        Some(file)
    }

    fn mark_used(&self) {
        let chances = if self.is_durable() { CHANCES } else { CHANCES_UNSYNCED };
        // Mostly so already, and then the line of memory stays shared.
        if self.chances.load(Ordering::Relaxed) != chances {
            self.chances.store(chances, Ordering::Relaxed);
        }
    }

    fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Acquire)
    }

    /// Locks an open file for closing it, unless it is in use.
    fn idle(&self) -> Option<RwLockWriteGuard<'_, Option<Arc<dyn DiskFile>>>> {
        let guard = match self.file.try_write() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // While this thread holds the lock, no other thread gets a reference.
        let idle = guard.as_ref().is_some_and(|file| Arc::strong_count(file) == 1);
        idle.then_some(guard)
    }
}

/// Which files are open.
#[derive(Debug, Default)]
struct Clock {
    open: Vec<Arc<HandleSlot>>,
    hand: usize,
    /// Files that are being opened.
    opening: usize,
    /// Descriptors of others, see [`OpenFilePermit`].
    permits: usize,
}

impl Clock {
    fn count(&self) -> usize {
        self.open.len() + self.opening + self.permits
    }

    /// The file to close next; `None` if all are in use.
    fn victim(&mut self) -> Option<Arc<HandleSlot>> {
        let count = self.open.len();
        let mut any_idle = false;
        // Bounds the search: every idle file has used up its chances in that many rounds.
        for step in 0..count * (usize::from(CHANCES_UNSYNCED) + 1) {
            // A round that met no idle file shows that all are in use.
            if step == count && !any_idle {
                break;
            }

            self.hand = (self.hand + 1) % count;
            let slot = &self.open[self.hand];
            if slot.idle().is_none() {
                continue;
            }

            any_idle = true;
            match slot.chances.load(Ordering::Relaxed) {
                0 => return Some(Arc::clone(slot)),
                chances => slot.chances.store(chances - 1, Ordering::Relaxed),
            }
        }

        None
    }

    fn remove(&mut self, slot: &Arc<HandleSlot>) {
        let at = self.open.iter().position(|open| Arc::ptr_eq(open, slot));
        self.open.swap_remove(at.expect("an open file is in the clock"));
    }
}

/// Reason why the session may not write any more.
#[derive(Debug)]
enum Poison {
    /// A failed sync of this file or directory.
    Sync(PathBuf),
    /// A panic in the middle of a commit to this store, such as of a merge operator.
    Panic(PathBuf),
}

/// The open files of a session, and whether what they hold can still be made durable.
#[derive(Debug)]
pub(crate) struct FileHandles {
    disk: Arc<dyn Disk>,
    files_max: usize,
    reserve: Reserve,
    reclaimer: Reclaimer,
    clock: Mutex<Clock>,
    /// Why nothing new is promised to be durable any more.
    poisoned: OnceLock<Poison>,
    /// Whether writing has ended. Calls that create or change a file hold it for reading.
    ended: RwLock<bool>,
    /// Whether nothing was ever to be written: then no file goes because of that.
    is_read_only: AtomicBool,
    /// Files that are of no use as far as anybody knows, and go when the disk is full.
    dispensable: Mutex<Vec<PathBuf>>,
}

impl FileHandles {
    /// No files, and no reserve; up to `files_max` will be kept open.
    pub(crate) fn new(disk: Arc<dyn Disk>, files_max: usize) -> Arc<Self> {
        Self::with_reserve(disk, files_max, Reserve::none())
    }

    /// Opens the handles of a session with a reserve.
    pub(crate) fn with_reserve(
        disk: Arc<dyn Disk>,
        files_max: usize,
        reserve: Reserve,
    ) -> Arc<Self> {
        assert!(files_max > 0);
        let clock = Mutex::default();
        let poisoned = OnceLock::new();
        let ended = RwLock::default();
        let reclaimer = Reclaimer::new(disk.queue_kind() == QueueKind::Simulated);
        let is_read_only = AtomicBool::new(false);
        let dispensable = Mutex::default();

        Arc::new(Self {
            disk,
            files_max,
            reserve,
            reclaimer,
            clock,
            poisoned,
            ended,
            is_read_only,
            dispensable,
        })
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Reclaimer of files and memory out of use.
    pub(crate) fn reclaimer(&self) -> &Reclaimer {
        &self.reclaimer
    }

    /// Files that may be open.
    pub(crate) fn files_max(&self) -> usize {
        self.files_max
    }

    /// Files that are open.
    pub(crate) fn count(&self) -> usize {
        self.clock().open.len()
    }

    /// Fails once a sync has failed or a commit has panicked, for good.
    pub(crate) fn check_poisoned(&self) -> Result<()> {
        match self.poisoned.get() {
            None => Ok(()),
            Some(Poison::Sync(path)) => Err(Error::Poisoned { path: path.clone() }),
            Some(Poison::Panic(dir)) => Err(Error::Panicked { dir: dir.clone() }),
        }
    }

    /// Notes that a commit to the store in `dir` has panicked.
    pub(crate) fn panicked(&self, dir: &Path) {
        self.poisoned.get_or_init(|| Poison::Panic(dir.to_owned()));
    }

    /// Passes the result of a sync of `path` on, and remembers a failure.
    pub(crate) fn synced(&self, path: &Path, result: io::Result<()>) -> io::Result<()> {
        if result.is_err() {
            // The first failure is the one that explains the others.
            self.poisoned.get_or_init(|| Poison::Sync(path.to_owned()));
        }
        result
    }

    /// Refuses to create or to change files from now on. Waits for calls that do so now.
    pub(crate) fn end_writing(&self) {
        *self.ended.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Refuses all writing: the files belong to another process or to nobody, and are only read.
    pub(crate) fn only_read(&self) {
        self.is_read_only.store(true, Ordering::Relaxed);
        self.end_writing();
    }

    /// Notes files that go when the disk is full.
    pub(crate) fn note_dispensable(&self, paths: impl Iterator<Item = PathBuf>) {
        let mut dispensable = self.dispensable.lock().unwrap_or_else(PoisonError::into_inner);
        dispensable.extend(paths);
    }

    /// Removes the files that go when the disk is full; says whether there were any.
    fn give_up_dispensable(&self) -> bool {
        let mut dispensable = self.dispensable.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = std::mem::take(&mut *dispensable);
        for path in &paths {
            if let Err(error) = self.disk.remove(path)
                && !error.is_not_found()
            {
                event!(WARN, "cleanup.failed", self.reserve.dir(), %error);
            }
        }
        !paths.is_empty()
    }

    /// The right to create or to change a file, which is to be held for no longer than the call.
    pub(crate) fn may_write(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let ended = self.ended.read().unwrap_or_else(PoisonError::into_inner);
        if *ended { Err(Error::SessionClosed) } else { Ok(ended) }
    }

    /// Makes a call that takes a descriptor; if there is none left, once more with idle files
    /// closed.
    pub(crate) fn with_room<T>(&self, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match call() {
            Err(error) if error.is_too_many_files() => {
                self.close_idle()?;
                call()
            }
            result => result,
        }
    }

    /// Makes a call that may need room on the disk; if there is none, once more when the files that
    /// were on their way out have gone, once more without the files in `lost+found`, and once more
    /// with the reserve let go. The caller must hold [the right to write](Self::may_write), and the
    /// call must be repeatable.
    pub(crate) fn with_space<T>(&self, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let was_full = self.reserve.is_full();
        let mut result = call();
        let steps: [fn(&Self) -> bool; 2] =
            [|open| open.reclaimer.wait(), Self::give_up_dispensable];

        // Cheapest first: files on their way out cost nothing, the reserve ends insertions.
        for make_room in steps {
            if result.as_ref().is_err_and(io::Error::is_no_space) && make_room(self) {
                result = call();
            }
        }

        let error = match result {
            Err(error) if error.is_no_space() && self.reserve.bytes() > 0 => error,
            result => return result,
        };

        let _changing = self.reserve.changing();
        if !self.reserve.is_full() {
            rare::taken("a table store gives its reserve up");
            if let Err(failed) = self.with_room(|| self.reserve.release(self.disk.as_ref())) {
                event!(WARN, "cleanup.failed", self.reserve.dir(), error = %failed);
                return Err(error);
            }
        } else if was_full {
            return Err(error);
        }

        call()
    }

    /// The reserve.
    pub(crate) fn disk_reserve(&self) -> &Reserve {
        &self.reserve
    }

    /// Takes the reserve back, if it was released. The caller must hold [the right to
    /// write](Self::may_write).
    ///
    /// # Errors
    /// [`Error::OutOfSpace`], [`Error::Disk`].
    pub(crate) fn take_reserve_back(&self) -> Result<()> {
        self.reclaimer.wait();
        let _changing = self.reserve.changing();
        if self.with_room(|| self.reserve.take_back(self.disk.as_ref()))? {
            return Ok(());
        }
        let path = self.reserve.dir().to_owned();
        Err(Error::OutOfSpace { path, reserve_bytes: self.reserve.bytes() })
    }

    /// An existing, durable file; not opened yet.
    pub(crate) fn file(self: &Arc<Self>, path: PathBuf, access: Access) -> PooledFile {
        self.closed(path, OpenMode::Read, access)
    }

    /// Returns a file for reading and writing.
    pub(crate) fn file_to_write(self: &Arc<Self>, path: PathBuf, access: Access) -> PooledFile {
        self.closed(path, OpenMode::ReadWrite, access)
    }

    fn closed(self: &Arc<Self>, path: PathBuf, mode: OpenMode, access: Access) -> PooledFile {
        let slot = HandleSlot {
            path,
            mode,
            access,
            file: RwLock::default(),
            chances: AtomicU8::new(0),
            durable: AtomicBool::new(true),
        };
        PooledFile { pool: Arc::clone(self), slot: Arc::new(slot) }
    }

    /// Creates a file, which must not exist.
    pub(crate) fn create(self: &Arc<Self>, path: PathBuf, access: Access) -> Result<PooledFile> {
        let _right = self.may_write()?;
        self.reserve(true)?;
        let open = || self.disk.open(&path, OpenMode::CreateNew, access);
        let opened = self.with_space(|| self.with_room(open));

        let slot = HandleSlot {
            path,
            mode: OpenMode::ReadWrite,
            access,
            file: RwLock::default(),
            chances: AtomicU8::new(CHANCES_UNSYNCED),
            durable: AtomicBool::new(false),
        };

        let file = PooledFile { pool: Arc::clone(self), slot: Arc::new(slot) };
        let mut open = file.slot.write();
        *open = self.entered(&file.slot, opened).map(Some)?;
        drop(open);

        Ok(file)
    }

    /// Returns a permit for a descriptor that is no file's; `None` if all files that may be open
    /// are in use, or if `permits_max` permits are out.
    pub(crate) fn permit(
        self: &Arc<Self>,
        permits_max: usize,
    ) -> io::Result<Option<OpenFilePermit>> {
        if !self.reserve(false)? {
            return Ok(None);
        }
        let mut clock = self.clock();
        debug_assert!(clock.opening > 0, "room was reserved above");
        clock.opening -= 1;
        let is_free = clock.permits < permits_max;
        clock.permits += usize::from(is_free);
        debug_assert!(!is_free || clock.permits <= permits_max);
        drop(clock);
        Ok(is_free.then(|| OpenFilePermit { pool: Arc::clone(self) }))
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for one more open file. If all are in use there is none, and it depends on
    /// `beyond` whether it is taken all the same.
    fn reserve(&self, beyond: bool) -> io::Result<bool> {
        loop {
            let victim = {
                let mut clock = self.clock();
                let has_room = clock.count() < self.files_max;
                let victim = if has_room { None } else { clock.victim() };
                if victim.is_none() {
                    if !has_room && !beyond {
                        return Ok(false);
                    }
                    clock.opening += 1;
                    return Ok(true);
                }
                victim
            };

            // Without the lock of the clock: closing may sync.
            if let Some(slot) = victim {
                self.close(&slot)?;
            }
        }
    }

    /// Notes the outcome of an opening for which room was reserved.
    fn entered<T>(&self, slot: &Arc<HandleSlot>, opened: io::Result<T>) -> io::Result<T> {
        let mut clock = self.clock();
        debug_assert!(clock.opening > 0, "room was reserved before");
        clock.opening -= 1;
        if opened.is_ok() {
            clock.open.push(Arc::clone(slot));
        }
        opened
    }

    /// Closes a file, unless it is in use.
    fn close(&self, slot: &Arc<HandleSlot>) -> io::Result<()> {
        // The file may have come into use since the hand passed over it.
        let Some(mut open) = slot.idle() else { return Ok(()) };
        if let Some(file) = open.as_ref()
            && !slot.is_durable()
            && self.check_poisoned().is_ok()
        {
            self.synced(&slot.path, file.sync())?;
            slot.durable.store(true, Ordering::Release);
        }

        let mut clock = self.clock();
        clock.remove(slot);
        *open = None;
        Ok(())
    }

    /// Closes all idle files; files that need a sync only if there are no others.
    pub(crate) fn close_idle(&self) -> io::Result<()> {
        let open = self.clock().open.clone();
        let (durable, unsynced): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|slot| slot.is_durable());
        let before = self.clock().open.len();

        for slot in &durable {
            self.close(slot)?;
        }

        // Syncs are worth their time only if closing durable files has freed nothing.
        if self.clock().open.len() == before {
            for slot in &unsynced {
                self.close(slot)?;
            }
        }

        Ok(())
    }

    fn open(
        &self,
        slot: &Arc<HandleSlot>,
        open: &mut Option<Arc<dyn DiskFile>>,
    ) -> io::Result<Arc<dyn DiskFile>> {
        let opened = self.with_room(|| self.disk.open(&slot.path, slot.mode, slot.access));
        let file = self.entered(slot, opened)?;
        slot.mark_used();
        *open = Some(Arc::clone(&file));
        Ok(file)
    }
}

/// The right to one more descriptor, which counts as an open file for as long as this is held.
#[derive(Debug)]
pub(crate) struct OpenFilePermit {
    pool: Arc<FileHandles>,
}

impl Drop for OpenFilePermit {
    fn drop(&mut self) {
        let mut clock = self.pool.clock();
        debug_assert!(clock.permits > 0);
        clock.permits -= 1;
    }
}

/// A file that is open when it is used. Dropping it closes the file.
#[derive(Debug)]
pub(crate) struct PooledFile {
    pool: Arc<FileHandles>,
    slot: Arc<HandleSlot>,
}

impl PooledFile {
    pub(crate) fn path(&self) -> &Path {
        &self.slot.path
    }

    /// The file, opened if need be. To be held for no longer than a call.
    ///
    /// # Errors
    /// [`Error::SessionClosed`] if it is gone since the session was closed, [`Error::FileMissing`]
    /// if it is gone otherwise; [`Error::Disk`].
    pub(crate) fn get(&self) -> Result<Arc<dyn DiskFile>> {
        let file = self.get_or_open(true)?;
        Ok(file.expect("opened beyond the limit if need be"))
    }

    /// The file, opened if need be; `None` if all files that may be open are in use.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub(crate) fn get_if_room(&self) -> Result<Option<Arc<dyn DiskFile>>> {
        self.get_or_open(false)
    }

    fn get_or_open(&self, beyond: bool) -> Result<Option<Arc<dyn DiskFile>>> {
        if let Some(file) = self.slot.use_open() {
            return Ok(Some(file));
        }

        let mut open = self.slot.write();
        // Another thread may have opened the file while this one waited for the lock.
        if let Some(file) = open.as_ref() {
            return Ok(Some(Arc::clone(file)));
        }

        if !self.pool.reserve(beyond)? {
            return Ok(None);
        }

        match self.pool.open(&self.slot, &mut open) {
            Err(error) if error.is_not_found() => {
                if !self.pool.is_read_only.load(Ordering::Relaxed) {
                    // The next session has the directory, and has removed what it does not need.
                    drop(self.pool.may_write()?);
                }
                Err(Error::FileMissing { path: self.slot.path.clone() })
            }
            opened => Ok(Some(opened?)),
        }
    }

    /// The file for a change, which is not durable then, and the right to make it.
    pub(crate) fn to_change(&self) -> Result<(RwLockReadGuard<'_, bool>, Arc<dyn DiskFile>)> {
        let right = self.pool.may_write()?;
        let file = self.get()?;
        // While the file is in use, no other thread closes it and so none syncs it.
        self.slot.durable.store(false, Ordering::Release);
        Ok((right, file))
    }

    /// Writes bytes, which are not durable then.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let (_right, file) = self.to_change()?;
        Ok(self.pool.with_space(|| file.write_at(bytes, offset))?)
    }

    /// Cuts or grows the file; its length is not durable then.
    pub(crate) fn set_len(&self, len: u64) -> Result<()> {
        let (_right, file) = self.to_change()?;
        Ok(self.pool.with_space(|| file.set_len(len))?)
    }

    /// Makes the bytes durable that were written before this call, while others may be being
    /// written.
    pub(crate) fn sync_so_far(&self) -> Result<()> {
        self.pool.check_poisoned()?;
        let file = self.get()?;
        Ok(self.pool.synced(&self.slot.path, file.sync())?)
    }

    /// Makes the bytes durable, unless they are. No other thread may be writing.
    pub(crate) fn sync(&self) -> Result<()> {
        if !self.slot.is_durable() {
            self.pool.check_poisoned()?;
            let file = self.get()?;
            self.pool.synced(&self.slot.path, file.sync())?;
            self.slot.durable.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for PooledFile {
    fn drop(&mut self) {
        let mut open = self.slot.write();
        if open.is_some() {
            self.pool.clock().remove(&self.slot);
            *open = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use terrane_io::{FaultKind, FaultPlan, Repeat};
    use terrane_io::{SimDisk, Survival};

    use super::*;

    /// A pool of this many files, and files of eight bytes that are in no pool yet.
    fn pool(files_max: usize, files: usize) -> (Arc<SimDisk>, Arc<FileHandles>, Vec<PooledFile>) {
        let disk = SimDisk::new(1);
        let pool = FileHandles::new(Arc::clone(&disk) as _, files_max);
        let path = |n: usize| PathBuf::from(format!("/{n}"));
        (0..files).for_each(|n| disk.write_raw(path(n), &n.to_le_bytes()));
        let files = (0..files).map(|n| pool.file(path(n), Access::Buffered)).collect();
        (disk, pool, files)
    }

    fn read(file: &PooledFile) -> usize {
        let mut bytes = [0; 8];
        file.get().unwrap().read_at(&mut bytes, 0).unwrap();
        usize::from_le_bytes(bytes)
    }

    #[test]
    fn no_more_files_are_open_than_allowed_and_those_in_use_stay() {
        let (disk, _pool, files) = pool(4, 12);
        for round in 0..50 {
            // File 0 all the time, the others in turn.
            let at = 1 + round % 11;
            assert_eq!((read(&files[0]), read(&files[at])), (0, at));
            assert!(disk.open_files() <= 4, "{} are open", disk.open_files());
        }

        // Once at first, and never again although the others came and went; these once for each
        // turn.
        let opens = disk.counts().opens;
        assert_eq!(opens, 1 + 50);
        drop(files);
        assert_eq!(disk.open_files(), 0);
    }

    #[test]
    fn a_file_in_use_is_not_closed_and_the_limit_is_kept_again_when_it_is_free() {
        let (disk, _pool, files) = pool(4, 8);
        let held: Vec<_> = (0..4).map(|at| files[at].get_if_room().unwrap().unwrap()).collect();
        assert!(files[4].get_if_room().unwrap().is_none(), "all four are in use");

        // One of these is open, so it takes no room.
        assert!(files[2].get_if_room().unwrap().is_some());
        assert_eq!((read(&files[4]), read(&files[5])), (4, 5), "whoever must goes on");

        // The fifth file was closed for the sixth.
        assert_eq!(disk.open_files(), 5);
        let mut bytes = [0; 8];
        held[0].read_at(&mut bytes, 0).unwrap();
        drop(held);
        assert_eq!(read(&files[7]), 7);

        assert_eq!(disk.open_files(), 4);
    }

    #[test]
    fn what_is_closed_is_durable() {
        let (disk, pool, files) = pool(4, 8);
        let written = pool.create("/new".into(), Access::Buffered).unwrap();
        for step in 0..100 {
            written.write_at(&[step; 512], 512 * u64::from(step)).unwrap();
            // All of the others; more often than a file that is not durable is passed over.
            for _ in 0..8 {
                files.iter().enumerate().for_each(|(at, file)| assert_eq!(read(file), at));
            }
            assert!(disk.open_files() <= 4);
            assert!(written.slot.is_durable());
        }

        assert_eq!(disk.counts().syncs, 100);
        disk.sync_dir(Path::new("/")).unwrap();
        let survived = disk.after_crash(Survival::Nothing).read_raw("/new").unwrap();
        assert_eq!(survived.len(), 51_200);

        // Nothing is left to do.
        written.sync().unwrap();
        assert_eq!(disk.counts().syncs, 100);
    }

    #[test]
    fn a_file_that_is_not_durable_stays_open_longer() {
        let (disk, pool, files) = pool(4, 8);
        let written = pool.create("/new".into(), Access::Buffered).unwrap();
        let mut opened = 0;
        while disk.counts().syncs == 0 {
            read(&files[opened % 8]);
            opened += 1;
            assert!(opened < 100);
        }
        assert!(opened > 8, "closed for the file number {opened}");
        drop(written);
    }

    #[test]
    fn a_sync_that_fails_on_closing_is_an_error_and_loses_nothing() {
        let (disk, pool, files) = pool(4, 8);
        let written = pool.create("/new".into(), Access::Buffered).unwrap();
        written.write_at(&[7; 8], 0).unwrap();
        disk.set_plan(FaultPlan::fail(disk.calls(), FaultKind::FailedSync, Repeat::Forever));

        let mut failed = 0;
        for round in 0..100 {
            failed += usize::from(files[round % 8].get().is_err());
            assert_eq!(failed > 0, pool.check_poisoned().is_err());
        }

        // Reported once; after that nothing is promised, and nothing is in the way of reading.
        assert_eq!(failed, 1);
        assert!(disk.open_files() <= 4);
        assert_eq!(read(&written), usize::from_le_bytes([7; 8]));
        let refused = written.sync();

        assert!(matches!(&refused, Err(Error::Poisoned { path }) if path == Path::new("/new")));
    }

    #[test]
    fn once_writing_has_ended_nothing_is_created_or_changed() {
        let (disk, pool, files) = pool(4, 8);
        let written = pool.create("/new".into(), Access::Buffered).unwrap();
        written.write_at(&[7; 8], 0).unwrap();
        pool.end_writing();
        let closed = |result: Result<()>| assert!(matches!(result, Err(Error::SessionClosed)));

        // The file is open, and then it is not.
        for _ in 0..2 {
            closed(written.write_at(&[8; 8], 0));
            closed(written.set_len(0));
            (0..100).for_each(|round| assert_eq!(read(&files[round % 8]), round % 8));
        }

        closed(pool.create("/newer".into(), Access::Buffered).map(drop));
        assert!(disk.read_raw("/newer").is_none());
        assert_eq!(read(&written), usize::from_le_bytes([7; 8]));
    }

    #[test]
    fn where_the_system_has_no_descriptors_idle_files_are_closed() {
        let (disk, pool, files) = pool(100, 12);
        disk.set_plan(FaultPlan { open_files_max: Some(3), ..FaultPlan::default() });
        let written = pool.create("/new".into(), Access::Buffered).unwrap();

        for at in (0..12).chain(0..12) {
            assert_eq!(read(&files[at]), at);
        }

        assert_eq!(disk.counts().syncs, 0, "the others were enough");
        let held: Vec<_> = files[..2].iter().map(|file| file.get().unwrap()).collect();

        // These and the new file: it is closed, too.
        assert_eq!(read(&files[5]), 5);
        assert_eq!(disk.counts().syncs, 1);

        // And with three in use there is nothing to close.
        let more = written.get().unwrap();
        let refused = files[8].get().unwrap_err();
        let is_meant = matches!(&refused, Error::Disk(error) if error.is_too_many_files());
        assert!(is_meant, "{refused}");
        drop((held, more));

        assert_eq!(read(&files[8]), 8);
    }
}
