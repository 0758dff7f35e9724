//! The traits that every engine does its I/O through, and what each call promises.
//!
//! **Durability.** Bytes written are durable after [`DiskFile::sync`] returned without error, the
//! *name* of a file or directory only after [`Disk::sync_dir`] of the directory that holds it.
//! Without them, any subset of the 512-byte sectors written and any subset of the names may survive
//! a loss of power. After a failed sync the state of what was not yet durable is unknown, for good.
//!
//! **Direct I/O.** Files opened with [`Access::Direct`] bypass the page cache where the file system
//! allows it ([`DiskFile::access`] tells). Whole [`AlignedBuf`]s at offsets that are
//! multiples of [`ALIGN`](crate::ALIGN) go straight to the device; other reads and writes are
//! accepted as well and take a detour through an aligned copy.
//!
//! **Queues.** [`IoQueue`] is how many requests are in flight at once. Requests own their buffers
//! and hold their file open, so they stay valid even when the thread that made them dies.

use std::any::Any;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::aligned::AlignedBuf;
use crate::clock::Clock;
pub use crate::entry_kind::EntryKind;
use crate::error::Result;

/// How a file is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; the file must exist.
    Read,
    /// For reading and writing; the file must exist.
    ReadWrite,
    /// For reading and writing; the file must not exist yet.
    CreateNew,
    /// As [`CreateNew`](Self::CreateNew), for a file that others must not read: its permissions are
    /// [`FileModes::private`](crate::FileModes::private).
    CreatePrivate,
    /// For reading and writing; an existing file is emptied, under all of its names. Files of a
    /// store are removed and made with [`CreateNew`](Self::CreateNew) instead.
    Truncate,
}

impl OpenMode {
    /// Whether the mode can bring a file into being.
    #[must_use]
    pub fn creates(self) -> bool {
        matches!(self, Self::CreateNew | Self::CreatePrivate | Self::Truncate)
    }
}

/// Whether reads and writes go through the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Through the page cache.
    Buffered,
    /// Past the page cache.
    Direct,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, without the directory. Names that are not UTF-8 are given lossily; none of ours
    /// is.
    pub name: String,
    /// What it stands for.
    pub kind: EntryKind,
}

/// Keeps a directory anchored; see [`Disk::anchor`].
pub trait Anchor: Send + Sync + Debug {}

/// An anchor of a disk that has no links to follow.
#[derive(Debug)]
struct NoLinks;

impl Anchor for NoLinks {}

/// A lock on a file; released on drop, and by the system when the process ends.
pub trait LockGuard: Send + Sync + Debug {}

/// How a disk carries out queued requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// Linux `io_uring`.
    IoUring,
    /// A pool of threads with positioned reads and writes.
    Threads,
    /// In memory, on the spot.
    Memory,
    /// In memory, in an order drawn from the seed.
    Simulated,
}

impl QueueKind {
    /// The name used in reports.
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

/// A file system as engines see it. All paths are taken as they are; none is searched for.
pub trait Disk: Send + Sync + Debug {
    /// Anchors a directory: as long as the guard lives, every path below `dir` is resolved from the
    /// directory that `dir` names now, and neither a symbolic link nor a FIFO, socket or device
    /// below it is followed or opened: [`WrongKind`](crate::Error::WrongKind). Of nested anchors
    /// the innermost counts. Engines anchor the directory of a store before they look into it.
    ///
    /// Cost: one open directory.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io) if there is no such directory.
    fn anchor(&self, dir: &Path) -> Result<Box<dyn Anchor>> {
        match self.kind(dir)? {
            Some(EntryKind::Directory) => Ok(Box::new(NoLinks)),
            // Fails as a directory does that is not there.
            _ => self.list(dir).map(|_| Box::new(NoLinks) as Box<dyn Anchor>),
        }
    }

    /// The same path from the root on, so that it means the same after a change of the working
    /// directory. Links stay as they are.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io) if the working directory is gone.
    fn absolute(&self, path: &Path) -> Result<PathBuf> {
        Ok(path.to_owned())
    }

    /// Opens a file. A file system that refuses direct I/O gives a buffered file instead.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io), among others of kind `NotFound` and `AlreadyExists`.
    fn open(&self, path: &Path, mode: OpenMode, access: Access) -> Result<Arc<dyn DiskFile>>;

    /// Makes a directory in an existing one. Its name is durable after a sync of the parent.
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

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn list(&self, dir: &Path) -> Result<Vec<Entry>>;

    /// What `path` stands for; `None` if there is nothing.
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
    /// [`Locked`](crate::Error::Locked) if any other handle holds it, [`Io`](crate::Error::Io).
    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>>;

    /// Takes a shared lock on a file that is there, without waiting: as long as it is held nobody
    /// gets the exclusive one. Needs no right but to read the file, and changes nothing.
    ///
    /// # Errors
    /// [`Locked`](crate::Error::Locked) if another handle holds the [`lock`](Self::lock),
    /// [`Io`](crate::Error::Io), of kind `NotFound` if there is no such file.
    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>>;

    /// Whether somebody holds the exclusive [`lock`](Self::lock) of a file; no, if there is no such
    /// file. Changes nothing, and needs no right but to read the file.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn is_locked(&self, path: &Path) -> Result<bool>;

    /// Bytes that an unprivileged process can still write to the file system of `dir`.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn free_bytes(&self, dir: &Path) -> Result<u64>;

    /// Bytes that a file takes: its blocks where the file system tells, else its length.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn allocated_bytes(&self, path: &Path) -> Result<u64> {
        self.open(path, OpenMode::Read, Access::Buffered)?.len()
    }

    /// The clock that goes with this disk.
    fn clock(&self) -> &dyn Clock;

    /// A queue that keeps up to `depth` requests in flight.
    ///
    /// Cost: no I/O; a queue given back by an earlier caller is used again.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io) if the system refuses the resources and there is no fallback.
    fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>>;

    /// How queued requests are carried out.
    fn queue_kind(&self) -> QueueKind;
}

/// An open file. All methods take `&self` and may run at once on several threads; reads and writes
/// that overlap are a race for the caller to avoid.
pub trait DiskFile: Send + Sync + Debug {
    /// The path that the file was opened by.
    fn path(&self) -> &Path;

    /// Whether the page cache is bypassed.
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

    /// Writes all of `bytes` at `offset`, growing the file if need be.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io); some of the bytes may have been written then.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Writes all of `bytes` at the end of the file; returns where they begin. One appender at a
    /// time.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io); some of the bytes may have been written then.
    fn append(&self, bytes: &[u8]) -> Result<u64> {
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
    /// [`Io`](crate::Error::Io); what was not yet durable is then in an unknown state.
    fn sync(&self) -> Result<()>;

    /// Tells the system that the first `len` bytes from `offset` on will not be read again soon, so
    /// that the page cache drops what is clean. Advice only: cannot fail.
    fn forget(&self, offset: u64, len: u64);

    /// The file itself, for the disk that made it.
    fn as_any(&self) -> &dyn Any;
}

/// Which way the bytes of a request go.
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
    /// Given back with the completion; the queue does not look at it.
    pub tag: u64,
    /// The file, opened by the disk that made the queue.
    pub file: Arc<dyn DiskFile>,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// Its whole length is read or written.
    pub buffer: AlignedBuf,
    /// Which way.
    pub direction: Direction,
}

impl Request {
    /// Carries the request out with positioned calls, waiting for them: what a queue does when it
    /// has nothing better.
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

/// A request that has been carried out, or has failed.
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// The request's buffer: of a read that failed its content is unspecified, of a write what was
    /// to be written.
    pub buffer: AlignedBuf,
    /// Whether it was carried out in full.
    pub result: Result<()>,
}

/// Requests in flight. Completions come in any order.
///
/// Owned by one caller at a time. Dropping a queue waits for what is in flight.
pub trait IoQueue: Send {
    /// Hands a request over. It may wait in the queue until [`pop`](Self::pop),
    /// [`poll`](Self::poll) or [`submit`](Self::submit); requests beyond the depth wait for their
    /// turn.
    fn push(&mut self, request: Request);

    /// Starts as many of the requests handed over as the depth allows; does not wait for them.
    fn submit(&mut self);

    /// The next completion, waiting for it; `None` when no request is outstanding.
    fn pop(&mut self) -> Option<Completion>;

    /// A completion that is already there; `None` if there is none at the moment.
    fn poll(&mut self) -> Option<Completion>;

    /// Requests handed over whose completion has not been taken.
    fn outstanding(&self) -> usize;

    /// The most requests that are in flight at once.
    fn depth(&self) -> usize;
}
