//! The traits of all I/O, and the promises of each call.
//!
//! **Durability.** Written bytes are durable once [`DiskFile::sync`] has returned without error;
//! the *name* of a file or directory only after [`Disk::sync_dir`] of its directory. Without these,
//! any subset of the written 512-byte sectors and any subset of the names may survive a loss of
//! power. After a failed sync it is unknown for good which bytes are durable.
//!
//! **Direct I/O.** Files opened with [`Access::Direct`] bypass the page cache where the file system
//! allows it ([`DiskFile::access`] tells). Whole [`AlignedBuf`]s at offsets that are multiples of
//! [`ALIGN`](crate::ALIGN) go straight to the device; other reads and writes take a detour through
//! an aligned copy.
//!
//! **Queues.** An [`IoQueue`] keeps many requests in flight at once. Requests own their buffers and
//! hold their file open, so they stay valid even if the thread that made them dies.

use std::any::Any;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::aligned::AlignedBuf;
use crate::clock::Clock;
pub use crate::entry_kind::EntryKind;
use crate::error::Result;

/// Mode of opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; the file must exist.
    Read,
    /// For reading and writing; the file must exist.
    ReadWrite,
    /// For reading and writing; the file must not exist yet.
    CreateNew,
    /// Like [`CreateNew`](Self::CreateNew), for a file that others must not read: its permissions
    /// are [`FileModes::private`](crate::FileModes::private).
    CreatePrivate,
    /// For reading and writing; an existing file is emptied, under all of its names. Files of a
    /// store are removed and made with [`CreateNew`](Self::CreateNew) instead.
    Truncate,
}

impl OpenMode {
    /// Whether the mode can create a file.
    #[must_use]
    pub fn creates(self) -> bool {
        matches!(self, Self::CreateNew | Self::CreatePrivate | Self::Truncate)
    }
}

/// Way of reads and writes: through the page cache or past it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Access {
    /// Through the page cache.
    Buffered,
    /// Past the page cache.
    Direct,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, without the directory. Names that are not UTF-8 are given lossily; no engine makes
    /// such a name.
    pub name: String,
    /// The kind of the entry.
    pub kind: EntryKind,
}

/// Guard that keeps a directory anchored; see [`Disk::anchor`].
pub trait Anchor: Send + Sync + Debug {}

/// An anchor of a disk that has no links to follow.
#[derive(Debug)]
struct NoLinks;

impl Anchor for NoLinks {}

/// A lock on a file. Dropping the guard releases the lock, and so does the end of the process.
pub trait LockGuard: Send + Sync + Debug {}

/// Implementation of the queues of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum QueueKind {
    /// Linux `io_uring`.
    IoUring,
    /// A pool of threads with positioned reads and writes.
    Threads,
    /// In memory, at once.
    Memory,
    /// In memory, in an order drawn from the seed.
    Simulated,
}

impl QueueKind {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Threads => "threads",
            Self::Memory => "memory",
            Self::Simulated => "simulated",
        }
    }
}

/// A file system as engines see it. Paths are taken as they are; nothing is searched for.
#[doc(alias = "env")]
#[doc(alias = "vfs")]
#[doc(alias = "filesystem")]
pub trait Disk: Send + Sync + Debug {
    /// Anchors a directory: while the guard lives, every path below `dir` is resolved from the
    /// directory that `dir` names now.
    ///
    /// Symbolic links, FIFOs, sockets and devices below it are neither followed nor opened:
    /// [`WrongKind`](crate::Error::WrongKind). Of nested anchors the innermost counts. Engines
    /// anchor the directory of a store before they look into it.
    ///
    /// Cost: one open directory.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io) if there is no such directory.
    fn anchor(&self, dir: &Path) -> Result<Box<dyn Anchor>> {
        match self.kind(dir)? {
            Some(EntryKind::Directory) => Ok(Box::new(NoLinks)),
            // Fails as the listing of a missing directory does.
            _ => self.list(dir).map(|_| Box::new(NoLinks) as Box<dyn Anchor>),
        }
    }

    /// Returns the same path from the root on, which a change of the working directory does not
    /// affect. Links stay as they are.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io) if the working directory is gone.
    fn absolute(&self, path: &Path) -> Result<PathBuf> {
        Ok(path.to_owned())
    }

    /// Opens a file. If the file system refuses direct I/O, the file is buffered.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io), among others of kind `NotFound` and `AlreadyExists`.
    fn open(&self, path: &Path, mode: OpenMode, access: Access) -> Result<Arc<dyn DiskFile>>;

    /// Creates a directory in an existing one. Its name is durable after a sync of the parent.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn create_dir(&self, path: &Path) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn remove_dir(&self, path: &Path) -> Result<()>;

    /// Removes a file's name; the bytes go with the last handle.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn remove(&self, path: &Path) -> Result<()>;

    /// Renames a file or directory; a file of the new name is replaced atomically.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Gives a file a second name, which must be free.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()>;

    /// The entries of a directory, sorted by name.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn list(&self, dir: &Path) -> Result<Vec<Entry>>;

    /// The kind of the entry at `path`; `None` if there is nothing.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn kind(&self, path: &Path) -> Result<Option<EntryKind>>;

    /// Makes the names in a directory durable; the empty path is the current directory.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn sync_dir(&self, dir: &Path) -> Result<()>;

    /// Takes an exclusive lock on a file, creating it if need be, without waiting.
    ///
    /// # Errors
    /// [`Locked`](crate::Error::Locked) if another handle holds the lock, [`Io`](crate::Error::Io).
    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>>;

    /// Takes a shared lock on an existing file, without waiting. While it is held, nobody gets the
    /// exclusive lock. Needs only the right to read the file, and changes nothing.
    ///
    /// # Errors
    /// [`Locked`](crate::Error::Locked) if another handle holds the [`lock`](Self::lock),
    /// [`Io`](crate::Error::Io), of kind `NotFound` if there is no such file.
    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>>;

    /// Whether somebody holds the exclusive [`lock`](Self::lock) of a file; false if there is no
    /// such file. Needs only the right to read the file, and changes nothing.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn is_locked(&self, path: &Path) -> Result<bool>;

    /// Bytes that an unprivileged process can still write to the file system of `dir`.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn free_bytes(&self, dir: &Path) -> Result<u64>;

    /// Bytes that a file takes: its blocks if the file system tells, otherwise its length.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn allocated_bytes(&self, path: &Path) -> Result<u64> {
        // A file without holes takes as many bytes as it is long.
        self.open(path, OpenMode::Read, Access::Buffered)?.len()
    }

    /// The clock of this disk.
    fn clock(&self) -> &dyn Clock;

    /// Returns a queue that keeps up to `depth` requests in flight.
    ///
    /// Cost: no I/O; a queue that an earlier caller gave back is reused.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io) if the system refuses the resources and there is no fallback.
    fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>>;

    /// The implementation of the queues.
    fn queue_kind(&self) -> QueueKind;
}

/// An open file. All methods take `&self` and may run at once on several threads; the caller must
/// avoid overlapping reads and writes.
pub trait DiskFile: Send + Sync + Debug {
    /// The path of the open call.
    fn path(&self) -> &Path;

    /// Whether reads and writes bypass the page cache.
    fn access(&self) -> Access;

    /// Length in bytes.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn len(&self) -> Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// [`ShortRead`](crate::Error::ShortRead) if the file ends before, [`Io`](crate::Error::Io).
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// Writes all of `bytes` at `offset`; the file grows if need be.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io); some of the bytes may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Writes all of `bytes` at the end of the file. Returns their offset. One appender at a time.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io); some of the bytes may have been written.
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        // The end is read and written in two calls, so a file has one appender.
        let offset = self.len()?;
        self.write_at(bytes, offset)?;
        Ok(offset)
    }

    /// Cuts or grows the file to `len` bytes; new bytes are zero.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn set_len(&self, len: u64) -> Result<()>;

    /// Reserves space for the first `len` bytes without changing the length.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io), among others when the disk is full. A file system that cannot
    /// reserve answers `Ok`.
    fn allocate(&self, len: u64) -> Result<()>;

    /// Makes the bytes and the length durable (`fdatasync`).
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io); from then on it is unknown which bytes are durable.
    fn sync(&self) -> Result<()>;

    /// Advises the system to drop clean pages of `len` bytes from `offset` on from the page cache.
    /// Cannot fail.
    fn forget(&self, offset: u64, len: u64);

    /// This file, for downcasts of the disk that made it.
    fn as_any(&self) -> &dyn Any;
}

/// Direction of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the file into the buffer; short files are an error.
    Read,
    /// From the buffer into the file.
    Write,
}

/// A read or write of a whole buffer.
#[derive(Debug)]
pub struct Request {
    /// Comes back with the completion; the queue does not look at it.
    pub tag: u64,
    /// The file, opened by the disk that made the queue.
    pub file: Arc<dyn DiskFile>,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The buffer, whose whole length is read or written.
    pub buffer: AlignedBuf,
    /// Direction of the bytes.
    pub direction: Direction,
}

impl Request {
    /// Carries the request out with positioned calls, and waits for them.
    #[must_use]
    pub fn carry_out(mut self) -> Completion {
        let result = self.transfer();
        Completion { tag: self.tag, buffer: self.buffer, result }
    }

    pub(crate) fn transfer(&mut self) -> Result<()> {
        match self.direction {
            Direction::Read => self.file.read_at(&mut self.buffer, self.offset),
            Direction::Write => self.file.write_at(&self.buffer, self.offset),
        }
    }
}

/// A request that has succeeded or failed.
#[derive(Debug)]
pub struct Completion {
    /// The tag of the request.
    pub tag: u64,
    /// The buffer of the request. After a failed read its content is unspecified.
    pub buffer: AlignedBuf,
    /// Whether the whole buffer was transferred.
    pub result: Result<()>,
}

/// Requests in flight. Completions come in any order.
///
/// One caller at a time owns a queue. Dropping a queue waits for the requests in flight.
pub trait IoQueue: Send {
    /// Hands a request over. The queue may start it in [`pop`](Self::pop), [`poll`](Self::poll) or
    /// [`submit`](Self::submit); requests beyond the depth wait for their turn.
    fn push(&mut self, request: Request);

    /// Starts as many requests as the depth allows, and does not wait for them.
    fn submit(&mut self);

    /// Returns the next completion, waiting if need be; `None` if no request is outstanding.
    fn pop(&mut self) -> Option<Completion>;

    /// Returns a completion that is there already; `None` if there is none at the moment.
    fn poll(&mut self) -> Option<Completion>;

    /// Number of requests whose completion has not been taken.
    fn outstanding(&self) -> usize;

    /// Most requests in flight at once.
    fn depth(&self) -> usize;
}
