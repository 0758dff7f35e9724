//! A disk without syncs: written bytes stay with the system, which writes them back when it likes.
//!
//! A store on this disk survives the end of its process and nothing else: after a loss of power any
//! of the unsynced writes may be there and any may not, in any order.

use crate::disk::disk::{Access, Disk, DiskFile, IoQueue, OpenMode, Request};
use crate::error::Result;
use crate::wrap::forward_queue::{Below, ForwardQueue};
use std::any::Any;
use std::path::Path;
use std::sync::Arc;

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
    crate::forward!(
        inner: anchor, absolute, create_dir, remove_dir, remove, rename, hard_link, list, kind,
        lock, lock_shared, is_locked, free_bytes, allocated_bytes, clock, queue_kind
    );

    fn open(&self, path: &Path, mode: OpenMode, access: Access) -> Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(NoSyncFile { inner: self.inner.open(path, mode, access)? }))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        match self.inner.kind(dir)? {
            Some(_) => Ok(()),
            // Fails as a directory does that is not there.
            None => self.inner.list(dir).map(drop),
        }
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>> {
        // Requests name files of this disk, and the queue below needs its own.
        let below: Below = |file| Some(file.downcast_ref::<NoSyncFile>()?.inner.clone());
        let inner = self.inner.queue(depth)?;
        Ok(Box::new(ForwardQueue { inner, below, pass: |_: &Request| {} }))
    }
}

#[derive(Debug)]
struct NoSyncFile {
    inner: Arc<dyn DiskFile>,
}

impl DiskFile for NoSyncFile {
    crate::forward!(inner: path, access, len, read_at, write_at, append, set_len, allocate, forget);

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
