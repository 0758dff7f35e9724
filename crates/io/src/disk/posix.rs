//! Files by positioned system calls: the base of every queue, and its fallback.
//!
//! Interrupted calls are repeated, and short ones continued, here and nowhere else. Syncs are never
//! repeated: the interrupted sync may have taken the report of a failed write with it.
//!
//! Direct files take whole blocks of [`ALIGN`] bytes. Other reads go through an aligned copy. Other
//! writes go through a second, buffered descriptor of the same file. The kernel keeps the two in
//! step: it writes cached pages back before a direct read and drops them after a direct write. The
//! second descriptor is opened through `/proc`; without `/proc` such a write is an error.

use std::any::Any;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RawMode, fstatvfs, linkat, mkdirat, openat, renameat,
    statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};

use crate::aligned::{ALIGN, AlignedBuf};
use crate::disk::anchor::{AnchoredPath, kind_of};
use crate::disk::disk::{Access, DiskFile, Entry, EntryKind, LockGuard, OpenMode};
use crate::error::{Error, Result};
use crate::process::Process;

/// An open file of a real file system.
#[derive(Debug)]
pub(crate) struct PosixFile {
    path: PathBuf,
    file: File,
    access: Access,
    is_writable: bool,
    /// A buffered descriptor of the same file, for writes that direct I/O cannot carry. Opened when
    /// first needed; never opened if `access` is buffered.
    buffered: OnceLock<File>,
    process: Process,
}

/// Permissions of new files and directories, before the umask of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileModes {
    /// Permissions of files.
    pub file: u32,
    /// Permissions of files with secrets of a store, such as the salt of its hashes.
    pub private: u32,
    /// Permissions of directories.
    pub dir: u32,
}

impl Default for FileModes {
    /// All that the umask allows; files with secrets are for their owner alone (0600).
    fn default() -> Self {
        Self { file: 0o666, private: 0o600, dir: 0o777 }
    }
}

impl FileModes {
    /// Permissions `mode` for files. Whoever can read files can enter directories; files with
    /// secrets allow nothing to others.
    #[must_use]
    pub fn of_files(mode: u32) -> Self {
        Self { file: mode, private: mode & 0o700, dir: mode | (mode & 0o444) >> 2 }
    }
}

/// Opens a file. If the file system refuses direct I/O, the file is buffered.
pub(crate) fn open(
    place: &AnchoredPath<'_>,
    mode: OpenMode,
    access: Access,
    modes: FileModes,
) -> Result<PosixFile> {
    let flags = match mode {
        OpenMode::Read => OFlags::RDONLY,
        OpenMode::ReadWrite => OFlags::RDWR,
        OpenMode::CreateNew | OpenMode::CreatePrivate => {
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL
        }
        OpenMode::Truncate => OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
    };

    let permissions = if mode == OpenMode::CreatePrivate { modes.private } else { modes.file };
    let open = |flags: OFlags| open_at(place, flags, permissions);

    // A file to be created cannot be a FIFO or a device.
    if !flags.contains(OFlags::EXCL) {
        place.check_kind("open")?;
    }

    let (file, access) = match access {
        Access::Buffered => (open(flags), Access::Buffered),
        Access::Direct => open_direct(open, flags),
    };

    let file = file.map_err(|errno| place.error("open", errno))?;
    Ok(PosixFile {
        path: place.path.to_owned(),
        file,
        access,
        is_writable: mode != OpenMode::Read,
        buffered: OnceLock::new(),
        process: Process::current(),
    })
}

/// Opens a name below its anchor.
fn open_at(place: &AnchoredPath<'_>, flags: OFlags, permissions: u32) -> rustix::io::Result<File> {
    let flags = flags | place.open_flags();
    let permissions = Mode::from_raw_mode(permissions as RawMode);
    retry_on_intr(|| openat(place.dir(), place.name, flags, permissions)).map(File::from)
}

#[cfg(target_os = "linux")]
fn open_direct(
    open: impl Fn(OFlags) -> rustix::io::Result<File>,
    flags: OFlags,
) -> (rustix::io::Result<File>, Access) {
    match open(flags | OFlags::DIRECT) {
        Err(Errno::INVAL) => {}
        opened => return (opened, Access::Direct),
    }
    // A kernel that refuses the flag may have created the file before. If the file had been there
    // already, the refusal would have been another one.
    (open(flags - OFlags::EXCL), Access::Buffered)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(
    open: impl Fn(OFlags) -> rustix::io::Result<File>,
    flags: OFlags,
) -> (rustix::io::Result<File>, Access) {
    (open(flags), Access::Buffered)
}

fn is_invalid(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

/// Whether direct I/O can carry `bytes` to or from `offset`.
fn is_aligned(bytes: &[u8], offset: u64) -> bool {
    let align = ALIGN as u64;
    (bytes.as_ptr() as u64 | bytes.len() as u64 | offset) & (align - 1) == 0
}

/// Calls `transfer(skipped)` until `wanted` bytes are done or nothing more happens. `transfer`
/// skips that many bytes, and returns how many it moved behind them.
///
/// On direct files, a transfer that ended within a block is repeated from the start of that block.
fn transfer_all(
    wanted: usize,
    access: Access,
    mut transfer: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < wanted {
        let start = match access {
            Access::Buffered => done,
            Access::Direct => done / ALIGN * ALIGN,
        };
        match transfer(start) {
            Ok(moved) if start + moved > done => done = start + moved,
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }

    debug_assert!(done <= wanted, "no more bytes are moved than there are");
    Ok(done)
}

fn read_all(file: &File, access: Access, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    transfer_all(buffer.len(), access, |start| {
        file.read_at(&mut buffer[start..], offset + start as u64)
    })
}

fn write_all(file: &File, access: Access, bytes: &[u8], offset: u64) -> io::Result<()> {
    let written = transfer_all(bytes.len(), access, |start| {
        file.write_at(&bytes[start..], offset + start as u64)
    })?;
    if written < bytes.len() {
        return Err(io::Error::from(io::ErrorKind::WriteZero));
    }
    Ok(())
}

impl PosixFile {
    /// The descriptor, which is open as long as `self` lives.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Refuses a call in a child of the process that opened the file.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.process.check(&self.path)
    }

    fn error(&self, call: &'static str, error: io::Error) -> Error {
        Error::io(call, &self.path, error)
    }

    /// The buffered descriptor of a direct file.
    fn buffered(&self) -> io::Result<&File> {
        if let Some(file) = self.buffered.get() {
            return Ok(file);
        }
        // By number and not by path: the path may name another file by now.
        let link = format!("/proc/self/fd/{}", self.raw_fd());
        let file = OpenOptions::new().read(true).write(self.is_writable).open(link)?;
        Ok(self.buffered.get_or_init(|| file))
    }

    /// Reads until `buffer` is full or the file ends. Returns the number of bytes read.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.access == Access::Buffered {
            return read_all(&self.file, Access::Buffered, buffer, offset);
        }

        if !is_aligned(buffer, offset) {
            return self.read_unaligned(buffer, offset);
        }

        match read_all(&self.file, Access::Direct, buffer, offset) {
            // The blocks of this device are larger than `ALIGN`.
            Err(error) if is_invalid(&error) => {
                read_all(self.buffered()?, Access::Buffered, buffer, offset)
            }
            read => read,
        }
    }

    fn read_unaligned(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let skipped = usize::try_from(offset % ALIGN as u64).expect("below ALIGN");
        let mut blocks = AlignedBuf::zeroed(skipped + buffer.len());
        let read = self.read(&mut blocks, offset - skipped as u64)?;
        let read = read.saturating_sub(skipped).min(buffer.len());
        buffer[..read].copy_from_slice(&blocks[skipped..skipped + read]);
        Ok(read)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.access == Access::Buffered {
            return write_all(&self.file, Access::Buffered, bytes, offset);
        }

        if !is_aligned(bytes, offset) {
            return write_all(self.buffered()?, Access::Buffered, bytes, offset);
        }

        match write_all(&self.file, Access::Direct, bytes, offset) {
            // The blocks of this device are larger than `ALIGN`.
            Err(error) if is_invalid(&error) => {
                write_all(self.buffered()?, Access::Buffered, bytes, offset)
            }
            written => written,
        }
    }
}

impl DiskFile for PosixFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn access(&self) -> Access {
        self.access
    }

    fn len(&self) -> Result<u64> {
        self.check_process()?;
        let metadata = self.file.metadata().map_err(|error| self.error("fstat", error))?;
        Ok(metadata.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.check_process()?;
        let found = self.read(buffer, offset).map_err(|error| self.error("pread", error))?;
        if found < buffer.len() {
            let expected = buffer.len();
            return Err(Error::ShortRead { path: self.path.clone(), offset, expected, found });
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_process()?;
        self.write(bytes, offset).map_err(|error| self.error("pwrite", error))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.check_process()?;
        self.file.set_len(len).map_err(|error| self.error("ftruncate", error))
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.check_process()?;
        allocate(&self.file, len).map_err(|error| self.error("fallocate", error))
    }

    fn sync(&self) -> Result<()> {
        self.check_process()?;
        sync_data(&self.file).map_err(|error| self.error("fdatasync", error))
    }

    fn forget(&self, offset: u64, len: u64) {
        #[cfg(target_os = "linux")]
        if let Some(len) = std::num::NonZeroU64::new(len) {
            // Advice that is not taken costs memory and nothing else.
            let _ =
                rustix::fs::fadvise(&self.file, offset, Some(len), rustix::fs::Advice::DontNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, len);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(target_os = "linux")]
fn allocate(file: &File, len: u64) -> io::Result<()> {
    use rustix::fs::FallocateFlags;

    if len == 0 {
        return Ok(());
    }
    match retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_file: &File, _len: u64) -> io::Result<()> {
    Ok(())
}

// The standard library repeats an interrupted sync, and the second sync may find nothing left to
// report.

#[cfg(target_os = "linux")]
fn sync_data(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fdatasync(file)?)
}

#[cfg(target_os = "linux")]
fn sync_all(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fsync(file)?)
}

#[cfg(not(target_os = "linux"))]
fn sync_data(file: &File) -> io::Result<()> {
    file.sync_data()
}

#[cfg(not(target_os = "linux"))]
fn sync_all(file: &File) -> io::Result<()> {
    file.sync_all()
}

pub(crate) fn create_dir(place: &AnchoredPath<'_>, modes: FileModes) -> Result<()> {
    let permissions = Mode::from_raw_mode(modes.dir as RawMode);
    mkdirat(place.dir(), place.name, permissions).map_err(|errno| place.error("mkdir", errno))
}

pub(crate) fn remove_dir(place: &AnchoredPath<'_>) -> Result<()> {
    unlinkat(place.dir(), place.name, AtFlags::REMOVEDIR)
        .map_err(|errno| place.error("rmdir", errno))
}

pub(crate) fn remove(place: &AnchoredPath<'_>) -> Result<()> {
    unlinkat(place.dir(), place.name, AtFlags::empty())
        .map_err(|errno| place.error("unlink", errno))
}

pub(crate) fn rename(from: &AnchoredPath<'_>, to: &AnchoredPath<'_>) -> Result<()> {
    renameat(from.dir(), from.name, to.dir(), to.name).map_err(|errno| from.error("rename", errno))
}

pub(crate) fn hard_link(from: &AnchoredPath<'_>, to: &AnchoredPath<'_>) -> Result<()> {
    from.check_kind("link")?;
    linkat(from.dir(), from.name, to.dir(), to.name, AtFlags::empty())
        .map_err(|errno| to.error("link", errno))
}

/// Opens a directory, to list or to sync it.
fn open_dir(place: &AnchoredPath<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | place.open_flags();
    retry_on_intr(|| openat(place.dir(), place.name, flags, Mode::empty()))
}

pub(crate) fn list(place: &AnchoredPath<'_>) -> Result<Vec<Entry>> {
    let read = || {
        let dir = open_dir(place)?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not tell the kind.
                FileType::Unknown => {
                    let stat = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    kind_of(FileType::from_raw_mode(stat.st_mode))
                }
                known => kind_of(known),
            };
            entries.push(Entry { name: name.to_string_lossy().into_owned(), kind });
        }
        Ok(entries)
    };

    let mut entries = read().map_err(|errno| place.error("readdir", errno))?;
    entries.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    Ok(entries)
}

/// The kind of the entry at a path. Links below an anchor are links; other links are followed.
pub(crate) fn kind(place: &AnchoredPath<'_>) -> Result<Option<EntryKind>> {
    match retry_on_intr(|| statat(place.dir(), place.name, place.at_flags())) {
        Ok(stat) => Ok(Some(kind_of(FileType::from_raw_mode(stat.st_mode)))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(place.error("stat", errno)),
    }
}

pub(crate) fn sync_dir(place: &AnchoredPath<'_>) -> Result<()> {
    let sync = || sync_all(&File::from(open_dir(place)?));
    sync().map_err(|error: io::Error| match Errno::from_io_error(&error) {
        Some(errno) => place.error("fsync", errno),
        None => Error::io("fsync", place.path, error),
    })
}

pub(crate) fn free_bytes(place: &AnchoredPath<'_>) -> Result<u64> {
    let system =
        open_dir(place).and_then(fstatvfs).map_err(|errno| place.error("statvfs", errno))?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Bytes of the blocks of a file, without parts that were never written.
pub(crate) fn allocated_bytes(place: &AnchoredPath<'_>) -> Result<u64> {
    let stat = retry_on_intr(|| statat(place.dir(), place.name, place.at_flags()))
        .map_err(|errno| place.error("stat", errno))?;
    // The unit is fixed, whatever the block size of the file system.
    Ok((stat.st_blocks as u64) * 512)
}

/// A lock by `flock`, which belongs to the open file. A second open in the same process is refused
/// as well, and the kernel releases the lock when the process ends, however it ends.
#[derive(Debug)]
struct FileLock {
    /// Invariant: the lock is held while this value lives.
    file: File,
    process: Process,
}

impl FileLock {
    fn of(file: File) -> Self {
        Self { file, process: Process::current() }
    }
}

impl LockGuard for FileLock {}

impl Drop for FileLock {
    /// Releases the lock. Closing the file is not enough: a child process that another thread has
    /// just forked holds the same open file until it runs its own program. The child itself must
    /// not release it: the lock belongs to the open file, so the parent would lose it.
    fn drop(&mut self) {
        if self.process.is_current() {
            let _ = self.file.unlock();
        }
    }
}

/// Bytes of the process number in a lock file, with the end of the line.
const LOCK_FILE_BYTES: usize = 11;

/// Takes the lock, and leaves our process number in the file for those who are refused.
///
/// A holder may remove the file before it releases the lock. Whoever had opened the file by then
/// has locked nothing that others see, and tries again.
///
/// The number only informs; a file left by a dead process stops nobody. Its width is fixed, so
/// writing it again needs no space and works on a full disk. A failure to write it is no error. A
/// file with several names is refused before: under another name it may be anybody's.
pub(crate) fn lock(place: &AnchoredPath<'_>, modes: FileModes) -> Result<Box<dyn LockGuard>> {
    let file = loop {
        place.check_kind("open")?;
        let file = open_at(place, OFlags::RDWR | OFlags::CREATE, modes.file)
            .map_err(|errno| place.error("open", errno))?;
        match file.try_lock() {
            Ok(()) if is_at(&file, place)? => break file,
            // Each further round is the removal by another holder.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked(place, &file)),
            Err(TryLockError::Error(error)) => return Err(Error::io("flock", place.path, error)),
        }
    };

    // Under another name the file may belong to another store: nothing is written to it.
    let metadata = file.metadata().map_err(|error| Error::io("fstat", place.path, error))?;
    if metadata.nlink() > 1 {
        return Err(Error::SeveralNames { path: place.path.to_owned() });
    }

    let pid = format!("{:>width$}\n", std::process::id(), width = LOCK_FILE_BYTES - 1);
    let _ = write_all(&file, Access::Buffered, pid.as_bytes(), 0);
    Ok(Box::new(FileLock::of(file)))
}

/// Takes the shared lock of an existing file. Needs no right to write, and writes nothing.
pub(crate) fn lock_shared(place: &AnchoredPath<'_>) -> Result<Box<dyn LockGuard>> {
    let file = open_for_lock(place)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(Box::new(FileLock::of(file))),
        Err(TryLockError::WouldBlock) => Err(locked(place, &file)),
        Err(TryLockError::Error(error)) => Err(Error::io("flock", place.path, error)),
    }
}

/// The error of a lock that another handle holds.
fn locked(place: &AnchoredPath<'_>, file: &File) -> Error {
    Error::Locked { path: place.path.to_owned(), pid: locking_pid(file) }
}

/// Opens an existing lock file for reading.
fn open_for_lock(place: &AnchoredPath<'_>) -> Result<File> {
    place.check_kind("open")?;
    open_at(place, OFlags::RDONLY, 0).map_err(|errno| place.error("open", errno))
}

/// Whether an open file is still the file of a name.
fn is_at(file: &File, place: &AnchoredPath<'_>) -> Result<bool> {
    let ours = rustix::fs::fstat(file).map_err(|errno| place.error("fstat", errno))?;
    match retry_on_intr(|| statat(place.dir(), place.name, place.at_flags())) {
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(place.error("stat", errno)),
        Ok(there) => Ok((there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)),
    }
}

/// Whether somebody holds the exclusive lock of a file.
pub(crate) fn is_locked(place: &AnchoredPath<'_>) -> Result<bool> {
    let file = match open_for_lock(place) {
        Err(error) if error.is_not_found() => return Ok(false),
        opened => opened?,
    };

    // A shared lock: a file open for reading is enough for that everywhere.
    match file.try_lock_shared() {
        Ok(()) => {
            drop(FileLock::of(file));
            Ok(false)
        }
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(Error::io("flock", place.path, error)),
    }
}

/// The process number in a lock file, if there is one.
fn locking_pid(file: &File) -> Option<u32> {
    let mut bytes = [0; LOCK_FILE_BYTES];
    let read = read_all(file, Access::Buffered, &mut bytes, 0).ok()?;
    std::str::from_utf8(&bytes[..read]).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::anchor::Anchors;

    #[test]
    fn a_descriptor_in_a_child_process_does_not_keep_a_released_lock() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let open = || File::open(&path).unwrap();
        let file = open();
        file.try_lock().unwrap();
        let of_child = file.try_clone().unwrap();

        drop(FileLock::of(file));
        open().try_lock().expect("nobody holds the lock");
        drop(of_child);
    }

    #[test]
    fn transfers_continue_after_short_and_interrupted_calls() {
        let mut answers = vec![Ok(3), Err(io::ErrorKind::Interrupted), Ok(2), Ok(5)].into_iter();
        let mut starts = Vec::new();
        let done = transfer_all(10, Access::Buffered, |start| {
            starts.push(start);
            answers.next().unwrap().map_err(io::Error::from)
        });
        assert_eq!(done.unwrap(), 10);
        assert_eq!(starts, [0, 3, 3, 5]);
    }

    #[test]
    fn direct_transfers_continue_at_a_block_and_end_where_nothing_is_gained() {
        let mut answers = [ALIGN + 100, 4000, 4000].into_iter();
        let mut starts = Vec::new();
        let done = transfer_all(4 * ALIGN, Access::Direct, |start| {
            starts.push(start);
            Ok(answers.next().unwrap())
        });
        assert_eq!(done.unwrap(), ALIGN + 4000);
        assert_eq!(starts, [0, ALIGN, ALIGN]);
    }

    /// No direct I/O on procfs.
    #[cfg(target_os = "linux")]
    #[test]
    fn file_systems_that_refuse_direct_files_give_buffered_ones() {
        let anchors = Anchors::default();
        let open_direct = |path, mode| {
            let place = anchors.place("open", Path::new(path)).unwrap();
            open(&place, mode, Access::Direct, FileModes::default())
        };
        let file = open_direct("/proc/self/maps", OpenMode::Read).unwrap();
        assert_eq!(file.access(), Access::Buffered);
        file.read_at(&mut [0; 10], 1).unwrap();
        let error = open_direct("/proc/self/none", OpenMode::CreateNew).unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }

    #[test]
    fn errors_end_a_transfer() {
        let done = transfer_all(10, Access::Buffered, |_| Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
