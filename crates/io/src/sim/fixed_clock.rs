//! A disk whose clock stands still, for files whose bytes must not depend on when or after how many
//! calls they were written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::disk::disk::{
    Access, Anchor, Disk, DiskFile, Entry, EntryKind, IoQueue, LockGuard, OpenMode, QueueKind,
};
use crate::error::Result;

/// The moment at which it stands: the beginning of the year 2026, and a fraction of a second that
/// shows in every digit.
const MOMENT: Duration = Duration::new(1_767_225_600, 123_456_789);

/// A disk whose clock stands still; another disk does everything else.
#[derive(Debug)]
pub struct FixedClockDisk {
    disk: Arc<dyn Disk>,
    clock: FixedClock,
}

#[derive(Debug)]
struct FixedClock;

impl FixedClockDisk {
    /// Wraps `disk`, with a clock that stands still.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> Arc<Self> {
        Arc::new(Self { disk, clock: FixedClock })
    }
}

impl Clock for FixedClock {
    fn wall(&self) -> Duration {
        MOMENT
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

impl Disk for FixedClockDisk {
    fn anchor(&self, dir: &Path) -> Result<Box<dyn Anchor>> {
        self.disk.anchor(dir)
    }

    fn absolute(&self, path: &Path) -> Result<PathBuf> {
        self.disk.absolute(path)
    }

    fn open(&self, path: &Path, mode: OpenMode, access: Access) -> Result<Arc<dyn DiskFile>> {
        self.disk.open(path, mode, access)
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.disk.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.disk.remove_dir(path)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.disk.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.disk.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.disk.hard_link(from, to)
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.disk.list(dir)
    }

    fn kind(&self, path: &Path) -> Result<Option<EntryKind>> {
        self.disk.kind(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.disk.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.disk.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.disk.lock_shared(path)
    }

    fn is_locked(&self, path: &Path) -> Result<bool> {
        self.disk.is_locked(path)
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.disk.free_bytes(dir)
    }

    fn allocated_bytes(&self, path: &Path) -> Result<u64> {
        self.disk.allocated_bytes(path)
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>> {
        self.disk.queue(depth)
    }

    fn queue_kind(&self) -> QueueKind {
        self.disk.queue_kind()
    }
}
