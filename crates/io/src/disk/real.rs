//! The real disk: the file system of the machine, with the best queue that the system allows.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::clock::{Clock, SystemClock};
use crate::disk::anchor::Anchors;
use crate::disk::disk::{
    Access, Anchor, Disk, DiskFile, Entry, EntryKind, IoQueue, LockGuard, OpenMode, QueueKind,
};
use crate::disk::posix::{self, FileModes};
use crate::disk::threads::Pool;
use crate::disk::uring::{RingPool, UringQueue};
use crate::error::{Error, Result};
use crate::process::Process;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, PoisonError};

/// Choice of the queues of a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum QueueChoice {
    /// `io_uring` where the system has and allows it, threads elsewhere.
    #[default]
    Auto,
    /// `io_uring`, or an error.
    IoUring,
    /// Threads.
    Threads,
}

/// Options of a [`RealDisk`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RealOptions {
    /// The queues.
    pub queue: QueueChoice,
    /// Number of threads of the pool, at least one. The pool starts when it is first needed; all
    /// queues of the disk share it.
    pub threads: usize,
    /// Permissions of new files and directories.
    pub modes: FileModes,
}

impl Default for RealOptions {
    /// The best queue of the system; 32 threads, if it comes to threads.
    fn default() -> Self {
        Self { queue: QueueChoice::Auto, threads: 32, modes: FileModes::default() }
    }
}

impl RealOptions {
    crate::setters! {
        queue: QueueChoice,
        threads: usize,
        modes: FileModes,
    }
}

/// The file system of the machine.
pub struct RealDisk {
    /// `None` if queues use threads.
    rings: Option<Arc<RingPool>>,
    /// Whether a ring was refused, so that there are queues of threads all the same.
    has_fallen_back: AtomicBool,
    /// Started when first needed.
    pool: Mutex<Option<Arc<Pool>>>,
    threads: usize,
    modes: FileModes,
    anchors: Arc<Anchors>,
    clock: SystemClock,
    process: Process,
}

impl RealDisk {
    /// Opens the file system of the machine. With [`QueueChoice::Auto`], this call finds out
    /// whether `io_uring` can be used; [`queue_kind`](Disk::queue_kind) tells the outcome.
    ///
    /// # Errors
    /// [`Io`](Error::Io) if the options demand `io_uring` and the system does not offer it.
    pub fn new(options: RealOptions) -> Result<Arc<Self>> {
        let rings = match options.queue {
            QueueChoice::Auto => RingPool::probe().ok(),
            QueueChoice::IoUring => Some(RingPool::probe().map_err(set_up_error)?),
            QueueChoice::Threads => None,
        };
        Ok(Self::with_rings(rings, options))
    }

    /// Opens the file system of the machine with the best queue that the system allows.
    #[must_use]
    pub fn auto() -> Arc<Self> {
        Self::with_rings(RingPool::probe().ok(), RealOptions::default())
    }

    fn with_rings(rings: Option<Arc<RingPool>>, options: RealOptions) -> Arc<Self> {
        Arc::new(Self {
            rings,
            has_fallen_back: AtomicBool::new(false),
            pool: Mutex::new(None),
            threads: options.threads,
            modes: options.modes,
            anchors: Arc::default(),
            clock: SystemClock::new(),
            process: Process::current(),
        })
    }

    /// Makes a queue over `ring`, or over threads if there is no ring or the system refuses it.
    fn queue_or_fall_back(
        &self,
        ring: Option<io::Result<UringQueue>>,
        depth: usize,
    ) -> Result<Box<dyn IoQueue>> {
        // A later ring can fail for want of memory where the first one did not.
        match ring {
            Some(Ok(queue)) => return Ok(Box::new(queue)),
            Some(Err(_)) => self.has_fallen_back.store(true, Ordering::Relaxed),
            None => {}
        }
        let pool =
            self.pool().map_err(|error| Error::io("clone", Path::new("this system"), error))?;
        Ok(Box::new(pool.queue(depth)))
    }

    fn pool(&self) -> io::Result<Arc<Pool>> {
        // Threads start with the first queue, not with the disk.
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        Ok(Arc::clone(pool.insert(Pool::new(self.threads)?)))
    }
}

fn set_up_error(error: io::Error) -> Error {
    Error::io("io_uring_setup", Path::new("this system"), error)
}

impl fmt::Debug for RealDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RealDisk")
            .field("queue_kind", &self.queue_kind())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Disk for RealDisk {
    fn anchor(&self, dir: &Path) -> Result<Box<dyn Anchor>> {
        self.process.check(dir)?;
        self.anchors.anchor(dir)
    }

    fn absolute(&self, path: &Path) -> Result<PathBuf> {
        std::path::absolute(path).map_err(|error| Error::io("getcwd", path, error))
    }

    fn open(&self, path: &Path, mode: OpenMode, access: Access) -> Result<Arc<dyn DiskFile>> {
        self.process.check(path)?;
        let place = self.anchors.place("open", path)?;
        Ok(Arc::new(posix::open(&place, mode, access, self.modes)?))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.process.check(path)?;
        posix::create_dir(&self.anchors.name_of("mkdir", path)?, self.modes)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.process.check(path)?;
        posix::remove_dir(&self.anchors.name_of("rmdir", path)?)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.process.check(path)?;
        posix::remove(&self.anchors.name_of("unlink", path)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.process.check(from)?;
        let from = self.anchors.name_of("rename", from)?;
        posix::rename(&from, &self.anchors.name_of("rename", to)?)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.process.check(from)?;
        let from = self.anchors.name_of("link", from)?;
        posix::hard_link(&from, &self.anchors.name_of("link", to)?)
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.process.check(dir)?;
        posix::list(&self.anchors.place("readdir", dir)?)
    }

    fn kind(&self, path: &Path) -> Result<Option<EntryKind>> {
        self.process.check(path)?;
        match self.anchors.place("stat", path) {
            // A directory on the way is missing, or is a file.
            Err(error) if error.is_not_found() || error.is_not_a_directory() => Ok(None),
            place => posix::kind(&place?),
        }
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.process.check(dir)?;
        // The parent of a bare name, as `Path::parent` gives it.
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        posix::sync_dir(&self.anchors.place("fsync", dir)?)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.process.check(path)?;
        posix::lock(&self.anchors.place("open", path)?, self.modes)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.process.check(path)?;
        posix::lock_shared(&self.anchors.place("open", path)?)
    }

    fn is_locked(&self, path: &Path) -> Result<bool> {
        self.process.check(path)?;
        match self.anchors.place("open", path) {
            Err(error) if error.is_not_found() => Ok(false),
            place => posix::is_locked(&place?),
        }
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.process.check(dir)?;
        posix::free_bytes(&self.anchors.place("statvfs", dir)?)
    }

    fn allocated_bytes(&self, path: &Path) -> Result<u64> {
        self.process.check(path)?;
        posix::allocated_bytes(&self.anchors.place("stat", path)?)
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    /// A queue of threads if the system has no resources left for another ring.
    fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>> {
        self.process.check(Path::new("this disk"))?;
        self.queue_or_fall_back(self.rings.as_ref().map(|rings| rings.queue(depth)), depth)
    }

    /// Threads as soon as one queue was given threads in the place of a ring, so that a report
    /// never claims too much.
    fn queue_kind(&self) -> QueueKind {
        match self.rings {
            Some(_) if !self.has_fallen_back.load(Ordering::Relaxed) => QueueKind::IoUring,
            _ => QueueKind::Threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report said `io_uring` of a run whose queues had been threads for want of resources.
    #[test]
    fn a_disk_whose_ring_was_refused_says_threads() {
        let disk = RealDisk::auto();
        let before = disk.queue_kind();
        drop(disk.queue(1).unwrap());
        assert_eq!(disk.queue_kind(), before);
        let refused = || Some(Err(io::ErrorKind::OutOfMemory.into()));
        drop(disk.queue_or_fall_back(refused(), 1).unwrap());
        assert_eq!(disk.queue_kind(), QueueKind::Threads);
    }
}
