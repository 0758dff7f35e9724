//! A disk without syncs: written bytes stay with the system, which writes them back when it likes.
//!
//! A store on this disk survives the end of its process and nothing else: after a loss of power any
//! of the unsynced writes may be there and any may not, in any order.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::clock::Clock;
use crate::disk::disk::{
    Access, Anchor, Disk, DiskFile, Entry, EntryKind, IoQueue, LockGuard, OpenMode, QueueKind,
    Request,
};
use crate::error::Result;
use crate::wrap::forward_queue::{Below, ForwardQueue};

/// A disk without syncs; another disk does everything else.
#[derive(Debug)]
pub struct NoSyncDisk {
    inner: Arc<dyn Disk>,
}

impl NoSyncDisk {
    /// Wraps `inner`, and leaves its syncs out.
    #[must_use]
    pub fn new(inner: Arc<dyn Disk>) -> Arc<Self> {
        Arc::new(Self { inner })
    }
}

impl Disk for NoSyncDisk {
    fn anchor(&self, dir: &Path) -> Result<Box<dyn Anchor>> {
        self.inner.anchor(dir)
    }

    fn absolute(&self, path: &Path) -> Result<PathBuf> {
        self.inner.absolute(path)
    }

    fn open(&self, path: &Path, mode: OpenMode, access: Access) -> Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(NoSyncFile { inner: self.inner.open(path, mode, access)? }))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.inner.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.inner.remove_dir(path)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.hard_link(from, to)
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.inner.list(dir)
    }

    fn kind(&self, path: &Path) -> Result<Option<EntryKind>> {
        self.inner.kind(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        match self.inner.kind(dir)? {
            Some(_) => Ok(()),
            // Fails as a directory does that is not there.
            None => self.inner.list(dir).map(drop),
        }
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.inner.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.inner.lock_shared(path)
    }

    fn is_locked(&self, path: &Path) -> Result<bool> {
        self.inner.is_locked(path)
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.inner.free_bytes(dir)
    }

    fn allocated_bytes(&self, path: &Path) -> Result<u64> {
        self.inner.allocated_bytes(path)
    }

    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>> {
        let below: Below = |file| Some(file.downcast_ref::<NoSyncFile>()?.inner.clone());
        let inner = self.inner.queue(depth)?;
        Ok(Box::new(ForwardQueue { inner, below, pass: |_: &Request| {} }))
    }

    fn queue_kind(&self) -> QueueKind {
        self.inner.queue_kind()
    }
}

#[derive(Debug)]
struct NoSyncFile {
    inner: Arc<dyn DiskFile>,
}

impl DiskFile for NoSyncFile {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn access(&self) -> Access {
        self.inner.access()
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.inner.write_at(bytes, offset)
    }

    fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.inner.append(bytes)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len)
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.inner.allocate(len)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn forget(&self, offset: u64, len: u64) {
        self.inner.forget(offset, len);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
