//! The run files of a session: their numbers, their users, and their removal.
//!
//! A run is the file `<number>.run` in the directory `active`, and, if it has blobs,
//! `<number>.blobs` beside it, which goes with it. It is *held* by handles in memory (a run shared
//! by tables, merges and cursors has one handle) and *pinned* by snapshots. When the last holder
//! goes and nothing pins it, the file set removes the file, a large one on the thread of the
//! [`reclaimer`](crate::files::reclaim). The next opening of the session removes the files that a
//! crash leaves behind.
//!
//! Snapshots also pin the files of runs that are still being written. The file set notes which
//! pages of such a file are durable. No run builder writes a page again that a snapshot relies on,
//! and one run builder at a time writes a file; it [takes over](FileSet::take_over) a file that it
//! did not create. Bytes without such a note mean nothing: after a loss of power a file may look
//! whole and not be.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use terrane_io::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use terrane_io::{Access, Disk};

use crate::error::{Error, Result};
use crate::files::handles::{FileHandles, PooledFile};
use crate::files::reclaim::Reclaimer;
use crate::files::write_queue::WriteQueue;
use crate::stats::RunSums;
use crate::trace::event;

/// Locks, also after a panic of another thread: what the mutexes of this crate guard is whole at
/// every point where code can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part of an unfinished run that is in its files for good: the output of a merge under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Partial {
    pub(crate) number: u64,
    pub(crate) identity: u64,
    /// Pages at the beginning of the run file: whole entries, in order.
    pub(crate) data_pages: u32,
    /// Where the blobs of these entries end.
    pub(crate) blob_bytes: u64,
    /// Pages of work that the merge had done for it, as it counts them.
    pub(crate) work: u64,
}

/// A run that a snapshot refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunRef {
    pub(crate) number: u64,
    pub(crate) identity: u64,
    /// Its data pages; what follows them may be rebuilt.
    pub(crate) data_pages: u32,
}

/// State of a run's files, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Content {
    /// Unknown: no run builder may continue the file.
    #[default]
    Unknown,
    /// A run, to which nothing is added.
    Whole,
    /// A run that is being written, or was until its builder was dropped.
    Unfinished { has_writer: bool },
}

#[derive(Debug, Default, Clone, Copy)]
struct Usage {
    handles: u32,
    pins: u32,
    /// Whether there is a file of blobs.
    has_blobs: bool,
    /// Bytes of all files of the run, as far as known.
    bytes: u64,
    content: Content,
    /// Whether some of the content may not be durable.
    is_unsynced: bool,
    /// Durable part of a run that was unfinished when a snapshot saved it.
    durable: Option<Partial>,
}

impl Usage {
    /// Notes that the last handle has gone: bytes that are not durable now never will be.
    fn forget_unsynced(&mut self) {
        if self.is_unsynced && self.content == Content::Whole {
            self.content = Content::Unfinished { has_writer: false };
        }
    }
}

/// The last user removes smaller files at once, which takes a millisecond at the most.
const SWEPT_FILE_BYTES_MIN: u64 = 4 << 20;

/// The files of a run without users.
#[derive(Debug, Clone, Copy)]
struct Unused {
    has_blobs: bool,
    bytes: u64,
}

#[derive(Debug, Default)]
struct FileSetState {
    usage: BTreeMap<u64, Usage>,
    /// Greater than every number in use.
    next_number: u64,
    /// After closing, handles that are still around touch nothing.
    closed: bool,
    /// Whether another process has the files: none is created or removed here.
    is_read_only: bool,
    /// The first failure to remove a file; reported when the session is closed.
    failed: Option<terrane_io::Error>,
    /// Calls of the disk under way on behalf of this set; closing waits for them.
    calls: u32,
}

/// All run files of a session.
#[derive(Debug)]
pub(crate) struct FileSet {
    open: Arc<FileHandles>,
    behind: Arc<WriteQueue>,
    dir: PathBuf,
    /// Never held during a call of the disk: unlinking a large file takes its time.
    state: Mutex<FileSetState>,
    /// Told when `calls` falls.
    idle: Condvar,
    sums: RunSums,
}

/// The name of run file `number`.
pub(crate) fn file_name(number: u64) -> String {
    format!("{number:08}.run")
}

/// The name of the blobs of run `number`.
pub(crate) fn blobs_name(number: u64) -> String {
    format!("{number:08}.blobs")
}

/// The largest number of a run file. No session reaches it, and there is room to count on from it.
pub(crate) const RUN_NUMBER_MAX: u64 = 1 << 62;

/// The number of a file of that name, if it is the name of a run file.
pub(crate) fn file_number(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".run")?.parse().ok()?;
    // A number has one name: other spellings of it are foreign files.
    (number <= RUN_NUMBER_MAX && file_name(number) == name).then_some(number)
}

/// The number of the run whose blobs are in a file of that name.
pub(crate) fn blobs_number(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".blobs")?.parse().ok()?;
    (number <= RUN_NUMBER_MAX && blobs_name(number) == name).then_some(number)
}

impl FileSet {
    /// The files in `dir`, opened in `open`; new ones are numbered from `next_number`.
    pub(crate) fn new(open: Arc<FileHandles>, dir: PathBuf, next_number: u64) -> Self {
        Self::with_state(open, dir, FileSetState { next_number, ..FileSetState::default() })
    }

    /// Opens the files in `dir` for reading only: another process, or none, owns them.
    pub(crate) fn read_only(open: Arc<FileHandles>, dir: PathBuf) -> Self {
        open.only_read();
        Self::with_state(open, dir, FileSetState { is_read_only: true, ..FileSetState::default() })
    }

    fn with_state(open: Arc<FileHandles>, dir: PathBuf, state: FileSetState) -> Self {
        let behind = WriteQueue::new(&open);
        let state = Mutex::new(state);
        Self { open, behind, dir, state, idle: Condvar::new(), sums: RunSums::default() }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        lock(&self.state).is_read_only
    }

    /// Fails once a sync has failed, for good.
    pub(crate) fn check_poisoned(&self) -> Result<()> {
        self.open.check_poisoned()
    }

    /// Passes the result of a sync of `path` on, and remembers a failure.
    pub(crate) fn synced(&self, path: &Path, result: terrane_io::Result<()>) -> Result<()> {
        Ok(self.open.synced(path, result)?)
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        self.open.disk()
    }

    /// The files of the session that are open.
    pub(crate) fn handles(&self) -> &Arc<FileHandles> {
        &self.open
    }

    /// Where what is out of use goes.
    pub(crate) fn reclaimer(&self) -> &Reclaimer {
        self.open.reclaimer()
    }

    /// Returns the queue of writes that compactions do not wait for.
    pub(crate) fn write_queue(&self) -> &Arc<WriteQueue> {
        &self.behind
    }

    /// The directory of the session.
    pub(crate) fn session_dir(&self) -> &Path {
        self.dir.parent().unwrap_or(&self.dir)
    }

    /// Returns the sums over all open runs, and over everything written.
    pub(crate) fn sums(&self) -> &RunSums {
        &self.sums
    }

    /// Numbers of the runs with a handle.
    pub(crate) fn held(&self) -> Vec<u64> {
        let state = lock(&self.state);
        // A pin alone is no handle.
        state.usage.iter().filter(|(_, usage)| usage.handles > 0).map(|(&n, _)| n).collect()
    }

    pub(crate) fn path(&self, number: u64) -> PathBuf {
        self.dir.join(file_name(number))
    }

    /// Where the blobs of run `number` are.
    pub(crate) fn blobs_path(&self, number: u64) -> PathBuf {
        self.dir.join(blobs_name(number))
    }

    /// Creates the file for the blobs of a run that is being written.
    pub(crate) fn create_blobs(&self, handle: &FileHandle, access: Access) -> Result<PooledFile> {
        // Noted first, so that the file goes with the run even if it is half created.
        self.note_blobs(handle.number);
        self.open.create(self.blobs_path(handle.number), access)
    }

    /// The existing, durable file of a run's blobs, to be opened when it is used.
    pub(crate) fn blobs(&self, number: u64, access: Access) -> PooledFile {
        self.open.file(self.blobs_path(number), access)
    }

    /// Notes that run `number` has a file of blobs.
    pub(crate) fn note_blobs(&self, number: u64) {
        lock(&self.state).usage.entry(number).or_default().has_blobs = true;
    }

    /// Whether run `number` has a file of blobs.
    pub(crate) fn has_blobs(&self, number: u64) -> bool {
        lock(&self.state).usage.get(&number).is_some_and(|usage| usage.has_blobs)
    }

    /// Creates the next file and a handle on it, which is the right to write it.
    pub(crate) fn create(self: &Arc<Self>, access: Access) -> Result<(FileHandle, PooledFile)> {
        let number = {
            let mut state = lock(&self.state);
            if state.closed || state.is_read_only {
                return Err(Error::SessionClosed);
            }

            // A number is used once, even if the creation fails.
            let number = state.next_number;
            state.next_number += 1;
            let usage = state.usage.entry(number).or_default();
            usage.handles += 1;
            usage.content = Content::Unfinished { has_writer: true };
            usage.is_unsynced = true;
            state.calls += 1;
            number
        };

        // Outside the lock: creating a file may wait for the disk.
        let created = self.open.create(self.path(number), access);
        let mut state = self.end_call();
        if created.is_err() {
            state.usage.remove(&number);
        }

        drop(state);
        let file = created?;
        Ok((FileHandle { set: Arc::clone(self), number, is_writer: true }, file))
    }

    fn end_call(&self) -> MutexGuard<'_, FileSetState> {
        let mut state = lock(&self.state);
        assert!(state.calls > 0);
        state.calls -= 1;
        self.idle.notify_all();
        state
    }

    /// A handle on an existing file.
    pub(crate) fn attach(self: &Arc<Self>, number: u64) -> FileHandle {
        lock(&self.state).usage.entry(number).or_default().handles += 1;
        FileHandle { set: Arc::clone(self), number, is_writer: false }
    }

    /// A handle on the file of a whole run, if a handle or a pin keeps it.
    pub(crate) fn attach_if_there(self: &Arc<Self>, number: u64) -> Option<FileHandle> {
        let mut state = lock(&self.state);
        let usage = state.usage.get_mut(&number)?;
        // A file without a user may be on its way out.
        if usage.content != Content::Whole || usage.handles + usage.pins == 0 {
            return None;
        }
        usage.handles += 1;
        Some(FileHandle { set: Arc::clone(self), number, is_writer: false })
    }

    /// Notes that the file of a run is whole.
    pub(crate) fn note_whole(&self, number: u64) {
        lock(&self.state).usage.entry(number).or_default().content = Content::Whole;
    }

    /// Whether the file of a run is known to be whole.
    pub(crate) fn is_whole(&self, number: u64) -> bool {
        let state = lock(&self.state);
        state.usage.get(&number).is_some_and(|usage| usage.content == Content::Whole)
    }

    /// Notes what is durable of an unfinished run; of two such notes the one that says more counts.
    pub(crate) fn note_durable(&self, partial: Partial) {
        let mut state = lock(&self.state);
        let usage = state.usage.entry(partial.number).or_default();
        // A whole run stays whole: its durable part says less.
        if usage.content == Content::Unknown {
            usage.content = Content::Unfinished { has_writer: false };
        }
        if usage.durable.is_none_or(|known| known.data_pages < partial.data_pages) {
            usage.durable = Some(partial);
        }
    }

    /// Whether so much of an unfinished run is known to be durable.
    pub(crate) fn is_durable(&self, partial: &Partial) -> bool {
        let state = lock(&self.state);
        // A run may have grown since this part was noted.
        let durable = state.usage.get(&partial.number).and_then(|usage| usage.durable);
        durable.is_some_and(|known| known.data_pages >= partial.data_pages)
    }

    /// Takes over an unfinished run without a writer. Returns the right to write it and its durable
    /// part, which is at least `wanted`.
    pub(crate) fn take_over(self: &Arc<Self>, wanted: &Partial) -> Option<(FileHandle, Partial)> {
        let mut state = lock(&self.state);
        // A closed session writes nothing more.
        if state.closed || state.is_read_only {
            return None;
        }

        let usage = state.usage.get_mut(&wanted.number)?;
        // Another run may have had this number, which only the identity tells.
        let durable = usage.durable.filter(|durable| durable.identity == wanted.identity)?;
        if usage.content != (Content::Unfinished { has_writer: false }) {
            return None;
        }

        usage.content = Content::Unfinished { has_writer: true };
        usage.is_unsynced = true;
        usage.handles += 1;
        let set = Arc::clone(self);
        let number = wanted.number;

        Some((FileHandle { set, number, is_writer: true }, durable))
    }

    /// Marks an unfinished run as damaged, so that no run builder continues it.
    pub(crate) fn distrust(&self, number: u64) {
        if let Some(usage) = lock(&self.state).usage.get_mut(&number) {
            usage.content = Content::Unknown;
        }
    }

    /// The files of an unfinished run, for its writer: that of the entries and, if there is one,
    /// that of the blobs.
    pub(crate) fn files_to_write(
        &self,
        handle: &FileHandle,
        access: Access,
    ) -> (PooledFile, Option<PooledFile>) {
        let open = |path| self.open.file_to_write(path, access);
        let blobs = self.has_blobs(handle.number).then(|| open(self.blobs_path(handle.number)));
        (open(self.path(handle.number)), blobs)
    }

    /// Makes a whole run durable that this session has written, unless it is. Does nothing once a
    /// sync has failed: the session promises no durability then.
    pub(crate) fn sync_whole(&self, number: u64) -> Result<()> {
        let usage = lock(&self.state).usage.get(&number).copied().unwrap_or_default();
        if !usage.is_unsynced || self.check_poisoned().is_err() {
            return Ok(());
        }
        // Without the lock: a sync takes its time.
        self.file(number, Access::Buffered).sync_so_far()?;
        if usage.has_blobs {
            self.blobs(number, Access::Buffered).sync_so_far()?;
        }
        self.note_synced(number);
        Ok(())
    }

    fn note_synced(&self, number: u64) {
        if let Some(usage) = lock(&self.state).usage.get_mut(&number) {
            usage.is_unsynced = false;
        }
    }

    /// An existing, durable file, to be opened when it is used.
    pub(crate) fn file(&self, number: u64, access: Access) -> PooledFile {
        self.open.file(self.path(number), access)
    }

    /// Keeps the files until they are unpinned as often as pinned.
    pub(crate) fn pin(&self, numbers: impl IntoIterator<Item = u64>) {
        let mut state = lock(&self.state);
        // A pin on a file that is not known yet makes the file known.
        for number in numbers {
            state.usage.entry(number).or_default().pins += 1;
        }
    }

    /// Unpins each of the files and removes those without users. Continues after a failure and
    /// returns the first one; closing the session tries again.
    pub(crate) fn unpin(&self, numbers: impl IntoIterator<Item = u64>) -> Result<()> {
        // The first failure is reported, and the other files go all the same.
        let mut first = Ok(());
        for number in numbers {
            let unused = self.release(number, |usage| {
                assert!(usage.pins > 0);
                usage.pins -= 1;
            });
            let removed = unused.map(|unused| self.remove_unused(number, unused));
            first = first.and(removed.unwrap_or(Ok(())));
        }
        Ok(first?)
    }

    /// Ends a use of a file. If the use was the last one, the caller must
    /// [remove](Self::remove_unused) the file.
    #[must_use]
    fn release(&self, number: u64, give_up: impl FnOnce(&mut Usage)) -> Option<Unused> {
        let mut state = lock(&self.state);
        let is_closed = state.closed;
        let usage = state.usage.get_mut(&number)?;
        give_up(usage);

        if usage.handles == 0 {
            usage.forget_unsynced();
        }

        // A closed set removes unpinned files itself.
        if usage.handles > 0 || usage.pins > 0 || is_closed {
            return None;
        }

        let unused = Unused { has_blobs: usage.has_blobs, bytes: usage.bytes };
        // Forgotten under the lock, so nobody attaches to files that are about to go.
        state.usage.remove(&number);
        if state.is_read_only {
            return None;
        }

        state.calls += 1;
        Some(unused)
    }

    /// Removes a file after [`release`](Self::release) of its last use.
    fn remove_unused(&self, number: u64, unused: Unused) -> terrane_io::Result<()> {
        let Unused { has_blobs, .. } = unused;
        let removed = self.remove(number, has_blobs);
        let mut state = self.end_call();
        if removed.is_err() {
            // Not forgotten: closing tries again.
            state.usage.insert(number, Usage { has_blobs, ..Usage::default() });
        }
        removed
    }

    fn remove(&self, number: u64, has_blobs: bool) -> terrane_io::Result<()> {
        // A file that is gone already counts as removed.
        let remove = |path: &Path| match self.disk().remove(path) {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        };
        let removed = remove(&self.path(number));
        if has_blobs { removed.and(remove(&self.blobs_path(number))) } else { removed }
    }

    /// Whether a snapshot pins the file.
    pub(crate) fn is_pinned(&self, number: u64) -> bool {
        lock(&self.state).usage.get(&number).is_some_and(|usage| usage.pins > 0)
    }

    /// Removes every file that no snapshot pins; handles still around lose the right to write and
    /// to remove any. Returns the first failure of this or of an earlier removal.
    pub(crate) fn close(&self) -> Result<()> {
        if std::mem::replace(&mut lock(&self.state).closed, true) || self.is_read_only() {
            return Ok(());
        }

        // A merge of another thread may be between two of its writes.
        self.open.end_writing();
        self.behind.end();
        self.reclaimer().wait();

        // Removals that began before must end, or they would meet the next session.
        let mut state = lock(&self.state);
        while state.calls > 0 {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }

        let mut first = state.failed.take().map_or(Ok(()), Err);
        let unpinned = state.usage.iter().filter(|(_, usage)| usage.pins == 0);
        let unpinned: Vec<(u64, bool)> =
            unpinned.map(|(&number, usage)| (number, usage.has_blobs)).collect();
        // No lock is held while files are removed.
        drop(state);

        for (number, has_blobs) in unpinned {
            first = first.and(self.remove(number, has_blobs));
        }

        Ok(first?)
    }
}

/// The right to use a file; the last one to go removes the file unless a snapshot pins it.
#[derive(Debug)]
pub(crate) struct FileHandle {
    set: Arc<FileSet>,
    number: u64,
    is_writer: bool,
}

impl FileHandle {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn set(&self) -> &Arc<FileSet> {
        &self.set
    }

    /// Another handle on the same file.
    pub(crate) fn attach(&self) -> Self {
        self.set.attach(self.number)
    }

    /// Ends the writing of a run, all of which is written now.
    pub(crate) fn finish_writing(&mut self) {
        self.is_writer = false;
        self.set.note_whole(self.number);
    }

    /// Notes the size of the files, so that no caller waits for the removal of large ones.
    pub(crate) fn note_bytes(&self, bytes: u64) {
        lock(&self.set.state).usage.entry(self.number).or_default().bytes = bytes;
    }

    /// Notes that all bytes of a whole run are durable.
    pub(crate) fn note_synced(&self) {
        self.set.note_synced(self.number);
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        let is_writer = self.is_writer;
        let give_up = |usage: &mut Usage| {
            debug_assert!(usage.handles > 0, "each handle ends its own use");
            usage.handles -= 1;
            if let Content::Unfinished { has_writer } = &mut usage.content {
                *has_writer &= !is_writer;
            }
        };

        // The last user removes the file.
        let number = self.number;
        let Some(unused) = self.set.release(number, give_up) else { return };

        let set = Arc::clone(&self.set);
        let remove = move || {
            if let Err(error) = set.remove_unused(number, unused) {
                event!(WARN, "cleanup.failed", set.session_dir(), %error);
                lock(&set.state).failed.get_or_insert(error);
            }
        };

        // Removing a large file takes long, so the reclaimer does it.
        if unused.bytes < SWEPT_FILE_BYTES_MIN {
            remove();
        } else {
            self.set.reclaimer().sweep(remove);
        }
    }
}
