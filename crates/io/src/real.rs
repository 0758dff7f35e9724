//! The real disk: the file system of the machine, with the best queue that the system allows.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::{Clock, SystemClock};
use crate::disk::{
    Access, Disk, DiskFile, Entry, EntryKind, IoQueue, LockGuard, OpenMode, QueueKind,
};
use crate::error::{Error, Result};
use crate::posix;
use crate::threads::Pool;
use crate::uring::{RingPool, UringQueue};

/// By which means a disk carries out queued requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum QueueChoice {
    /// `io_uring` where the system has and allows it, threads elsewhere.
    #[default]
    Auto,
    /// `io_uring` or nothing.
    IoUring,
    /// Threads.
    Threads,
}

/// How a [`RealDisk`] works.
#[derive(Debug, Clone, Copy)]
pub struct RealOptions {
    /// The means for queued requests.
    pub queue: QueueChoice,
    /// Threads of the pool, at least one. The pool starts when it is first needed; all queues of the
    /// disk share it.
    pub threads: usize,
}

impl Default for RealOptions {
    /// The system's best queue; 32 threads, should it come to threads.
    fn default() -> Self {
        Self { queue: QueueChoice::Auto, threads: 32 }
    }
}

/// The file system of the machine.
pub struct RealDisk {
    /// `None` if queues are made of threads.
    rings: Option<Arc<RingPool>>,
    /// Whether a ring was refused, so that there are queues of threads all the same.
    has_fallen_back: AtomicBool,
    /// Started when first needed.
    pool: Mutex<Option<Arc<Pool>>>,
    threads: usize,
    clock: SystemClock,
}

impl RealDisk {
    /// The file system of the machine. With [`QueueChoice::Auto`] it is found out here, once, whether
    /// `io_uring` can be used; [`queue_kind`](Disk::queue_kind) tells the outcome.
    ///
    /// # Errors
    /// [`Io`](Error::Io) if `io_uring` is demanded and not to be had.
    pub fn new(options: RealOptions) -> Result<Arc<Self>> {
        let rings = match options.queue {
            QueueChoice::Auto => RingPool::probe().ok(),
            QueueChoice::IoUring => Some(RingPool::probe().map_err(set_up_error)?),
            QueueChoice::Threads => None,
        };
        Ok(Self::with_rings(rings, options.threads))
    }

    /// The file system of the machine with the best queue that the system allows.
    #[must_use]
    pub fn auto() -> Arc<Self> {
        Self::with_rings(RingPool::probe().ok(), RealOptions::default().threads)
    }

    fn with_rings(rings: Option<Arc<RingPool>>, threads: usize) -> Arc<Self> {
        Arc::new(Self {
            rings,
            has_fallen_back: AtomicBool::new(false),
            pool: Mutex::new(None),
            threads,
            clock: SystemClock::new(),
        })
    }

    /// A queue over `ring`, or over threads if there is none or it was refused.
    fn queue_or_fall_back(
        &self,
        ring: Option<io::Result<UringQueue>>,
        depth: usize,
    ) -> Result<Box<dyn IoQueue>> {
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
    fn open(&self, path: &Path, mode: OpenMode, access: Access) -> Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(posix::open(path, mode, access)?))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        posix::create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        posix::remove_dir(path)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        posix::remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        posix::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        posix::hard_link(from, to)
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        posix::list(dir)
    }

    fn kind(&self, path: &Path) -> Result<Option<EntryKind>> {
        posix::kind(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        posix::sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        posix::lock(path)
    }

    fn is_locked(&self, path: &Path) -> Result<bool> {
        posix::is_locked(path)
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        posix::free_bytes(dir)
    }

    fn allocated_bytes(&self, path: &Path) -> Result<u64> {
        posix::allocated_bytes(path)
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    /// A system that has no resources left for another ring gives a queue of threads.
    fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>> {
        self.queue_or_fall_back(self.rings.as_ref().map(|rings| rings.queue(depth)), depth)
    }

    /// Threads as soon as one queue has been given threads in the place of a ring, so that a report
    /// claims no more than was so all the time.
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
