//! Files by positioned system calls: the ground that every queue stands on and falls back to.
//!
//! Interrupted calls are made again, and short ones continued, here and nowhere else. Syncs are not
//! made again: whatever interrupted one may have taken the report of a failed write with it. Direct files
//! take whole blocks of [`ALIGN`] bytes; whatever is not such a block is read through an aligned copy,
//! and written through a second, buffered descriptor of the same file. The kernel keeps the two in
//! step: it writes cached pages back before a direct read and drops them after a direct write. That
//! descriptor is opened through `/proc`, so without `/proc` such a write is an error.

use std::any::Any;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::aligned::{ALIGN, AlignedBuf};
use crate::disk::{Access, DiskFile, Entry, EntryKind, LockGuard, OpenMode};
use crate::error::{Error, Result};

/// An open file of a real file system.
#[derive(Debug)]
pub(crate) struct PosixFile {
    path: PathBuf,
    file: File,
    access: Access,
    is_writable: bool,
    /// A buffered descriptor of the same file, for writes that direct I/O cannot carry. Opened when
    /// first needed; always empty when `access` is buffered.
    buffered: OnceLock<File>,
}

/// Opens a file; a file system that refuses direct I/O gives a buffered one.
pub(crate) fn open(path: &Path, mode: OpenMode, access: Access) -> Result<PosixFile> {
    let mut options = OpenOptions::new();
    options.read(true);
    match mode {
        OpenMode::Read => &mut options,
        OpenMode::ReadWrite => options.write(true),
        OpenMode::CreateNew => options.write(true).create_new(true),
        OpenMode::Truncate => options.write(true).create(true).truncate(true),
    };
    let (file, access) = match access {
        Access::Buffered => (options.open(path), Access::Buffered),
        Access::Direct => open_direct(options, path, mode),
    };
    let file = file.map_err(|error| Error::io("open", path, error))?;
    Ok(PosixFile {
        path: path.to_owned(),
        file,
        access,
        is_writable: mode != OpenMode::Read,
        buffered: OnceLock::new(),
    })
}

#[cfg(target_os = "linux")]
fn open_direct(
    mut options: OpenOptions,
    path: &Path,
    mode: OpenMode,
) -> (io::Result<File>, Access) {
    use std::os::unix::fs::OpenOptionsExt;

    let flag = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let refusal = match options.clone().custom_flags(flag).open(path) {
        Err(error) if is_invalid(&error) => error,
        opened => return (opened, Access::Direct),
    };
    if mode == OpenMode::CreateNew {
        // A kernel that refuses the flag may have created the file before; had it been there
        // already, the refusal would have been another one.
        options.create_new(false).create(true);
    }
    let opened = options.open(path);
    (opened.map_err(|error| if is_invalid(&error) { refusal } else { error }), Access::Buffered)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(options: OpenOptions, path: &Path, _mode: OpenMode) -> (io::Result<File>, Access) {
    (options.open(path), Access::Buffered)
}

fn is_invalid(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

/// Whether direct I/O can carry `bytes` to or from `offset`.
fn is_aligned(bytes: &[u8], offset: u64) -> bool {
    let align = ALIGN as u64;
    (bytes.as_ptr() as u64 | bytes.len() as u64 | offset) & (align - 1) == 0
}

/// Calls `transfer(done)` until `wanted` bytes are done or nothing more happens; `transfer` is told
/// how many of the bytes to skip, and answers how many it moved after those.
///
/// On direct files a transfer that ended within a block is repeated from the start of that block.
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
    /// The descriptor, open for as long as `self` lives.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn error(&self, call: &'static str, error: io::Error) -> Error {
        Error::io(call, &self.path, error)
    }

    /// The buffered descriptor of a direct file.
    fn buffered(&self) -> io::Result<&File> {
        if let Some(file) = self.buffered.get() {
            return Ok(file);
        }
        // By number and not by path: the path may stand for another file by now.
        let link = format!("/proc/self/fd/{}", self.raw_fd());
        let file = OpenOptions::new().read(true).write(self.is_writable).open(link)?;
        Ok(self.buffered.get_or_init(|| file))
    }

    /// Reads until `buffer` is full or the file ends; returns the bytes read.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.access == Access::Buffered {
            return read_all(&self.file, Access::Buffered, buffer, offset);
        }
        if !is_aligned(buffer, offset) {
            return self.read_unaligned(buffer, offset);
        }
        match read_all(&self.file, Access::Direct, buffer, offset) {
            // A device with blocks larger than ours.
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
            // A device with blocks larger than ours.
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
        let metadata = self.file.metadata().map_err(|error| self.error("fstat", error))?;
        Ok(metadata.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let found = self.read(buffer, offset).map_err(|error| self.error("pread", error))?;
        if found < buffer.len() {
            let expected = buffer.len();
            return Err(Error::ShortRead { path: self.path.clone(), offset, expected, found });
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.write(bytes, offset).map_err(|error| self.error("pwrite", error))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(|error| self.error("ftruncate", error))
    }

    fn allocate(&self, len: u64) -> Result<()> {
        allocate(&self.file, len).map_err(|error| self.error("fallocate", error))
    }

    fn sync(&self) -> Result<()> {
        sync_data(&self.file).map_err(|error| self.error("fdatasync", error))
    }

    fn forget(&self, offset: u64, len: u64) {
        #[cfg(target_os = "linux")]
        if let Some(len) = std::num::NonZeroU64::new(len) {
            // Advice that is not taken costs nothing but memory.
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
    use rustix::io::{Errno, retry_on_intr};

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

// The standard library repeats a sync that was interrupted, and the second one may find nothing
// left to report.

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

pub(crate) fn create_dir(path: &Path) -> Result<()> {
    fs::create_dir(path).map_err(|error| Error::io("mkdir", path, error))
}

pub(crate) fn remove_dir(path: &Path) -> Result<()> {
    fs::remove_dir(path).map_err(|error| Error::io("rmdir", path, error))
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).map_err(|error| Error::io("unlink", path, error))
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|error| Error::io("rename", from, error))
}

pub(crate) fn hard_link(from: &Path, to: &Path) -> Result<()> {
    fs::hard_link(from, to).map_err(|error| Error::io("link", to, error))
}

pub(crate) fn list(dir: &Path) -> Result<Vec<Entry>> {
    let read = || {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let kind = kind_of(entry.file_type()?);
            entries.push(Entry { name: entry.file_name().to_string_lossy().into_owned(), kind });
        }
        Ok(entries)
    };
    let mut entries = read().map_err(|error| Error::io("readdir", dir, error))?;
    entries.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    Ok(entries)
}

fn kind_of(file_type: fs::FileType) -> EntryKind {
    if file_type.is_file() {
        EntryKind::File
    } else if file_type.is_dir() {
        EntryKind::Directory
    } else {
        EntryKind::Other
    }
}

/// What `path` stands for, symbolic links followed.
pub(crate) fn kind(path: &Path) -> Result<Option<EntryKind>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(kind_of(metadata.file_type()))),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(Error::io("stat", path, error)),
        },
    }
}

pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    // The parent of a bare name, as `Path::parent` gives it.
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let sync = || sync_all(&File::open(dir)?);
    sync().map_err(|error| Error::io("fsync", dir, error))
}

pub(crate) fn free_bytes(dir: &Path) -> Result<u64> {
    let system =
        rustix::fs::statvfs(dir).map_err(|error| Error::io("statvfs", dir, error.into()))?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Bytes of the blocks that a file has; those of a part never written do not count.
pub(crate) fn allocated_bytes(path: &Path) -> Result<u64> {
    let metadata = fs::metadata(path).map_err(|error| Error::io("stat", path, error))?;
    // The unit is fixed, whatever blocks the file system has.
    Ok(metadata.blocks() * 512)
}

/// A lock by `flock`, which belongs to the open file: a second open in the same process is refused
/// as well, and the kernel releases it when the process ends, however it ends.
#[derive(Debug)]
struct FileLock {
    /// Invariant: the lock is held while this is open; closing it is the release.
    _file: File,
}

impl LockGuard for FileLock {}

/// Bytes of the process number in a lock file, line end included.
const LOCK_FILE_BYTES: usize = 11;

/// Takes the lock, and leaves our process number in the file for whoever is refused.
///
/// A holder may remove the file before it lets go: who had opened it by then locks nothing that others see, and tries again.
///
/// The number only tells; a file left behind by a dead process stops nobody. It has a fixed width,
/// so writing it again needs no space and works on a full disk; failing to write it is no error.
pub(crate) fn lock(path: &Path) -> Result<Box<dyn LockGuard>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = loop {
        let file = options.open(path).map_err(|error| Error::io("open", path, error))?;
        match file.try_lock() {
            Ok(()) if is_at(&file, path)? => break file,
            // Each further round is another holder's removal.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked { path: path.to_owned(), pid: locking_pid(&file) });
            }
            Err(TryLockError::Error(error)) => return Err(Error::io("flock", path, error)),
        }
    };
    let pid = format!("{:>width$}\n", std::process::id(), width = LOCK_FILE_BYTES - 1);
    let _ = write_all(&file, Access::Buffered, pid.as_bytes(), 0);
    Ok(Box::new(FileLock { _file: file }))
}

/// Whether an open file is the one of a name.
fn is_at(file: &File, path: &Path) -> Result<bool> {
    let failed = |error| Error::io("stat", path, error);
    let ours = file.metadata().map_err(failed)?;
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        there => {
            let there = there.map_err(failed)?;
            Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino()))
        }
    }
}

/// Whether somebody holds the lock of a file.
pub(crate) fn is_locked(path: &Path) -> Result<bool> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(|error| Error::io("open", path, error))?,
    };
    // Shared, which a file that is open for reading is enough for everywhere.
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(Error::io("flock", path, error)),
    }
}

fn locking_pid(file: &File) -> Option<u32> {
    let mut bytes = [0; LOCK_FILE_BYTES];
    let read = read_all(file, Access::Buffered, &mut bytes, 0).ok()?;
    std::str::from_utf8(&bytes[..read]).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let file = open(Path::new("/proc/self/maps"), OpenMode::Read, Access::Direct).unwrap();
        assert_eq!(file.access(), Access::Buffered);
        file.read_at(&mut [0; 10], 1).unwrap();
        let created = Path::new("/proc/self/none");
        let error = open(created, OpenMode::CreateNew, Access::Direct).unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }

    #[test]
    fn errors_end_a_transfer() {
        let done = transfer_all(10, Access::Buffered, |_| Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
