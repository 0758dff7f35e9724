//! A disk that counts calls and bytes: the source of every test of an I/O budget.
//!
//! It counts calls when they are made, whether or not they succeed. A queued request counts as a
//! read or write, and under `queued` besides.

use crate::disk::disk::{
    Access, Direction, Disk, DiskFile, Entry, EntryKind, IoQueue, LockGuard, OpenMode, Request,
};
use crate::error::Result;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::wrap::forward_queue::{Below, ForwardQueue};
use std::any::Any;
use std::ops::Sub;
use std::path::Path;
use std::sync::Arc;

/// Unit of `read_pages` and `write_pages`, in bytes.
const PAGE_BYTES: usize = 4096;

/// Declares the plain struct and the struct of atomics from one list of fields.
macro_rules! counts {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// Numbers of calls by kind, and bytes. The difference of two gives what happened between.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct Counts {
            $($(#[$doc])* pub $field: u64,)*
        }

        /// [`Counts`] that are still growing; shared by a disk, its files and its queues.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($field: AtomicU64,)*
        }

        impl Counters {
            /// The numbers so far. Not one moment's picture if other threads go on counting.
            #[must_use]
            pub(crate) fn snapshot(&self) -> Counts {
                Counts { $($field: self.$field.load(Ordering::Relaxed),)* }
            }
        }

        impl From<Counts> for Counters {
            fn from(counts: Counts) -> Self {
                Self { $($field: AtomicU64::new(counts.$field),)* }
            }
        }

        impl Sub for Counts {
            type Output = Counts;

            fn sub(self, earlier: Counts) -> Counts {
                Counts { $($field: self.$field - earlier.$field,)* }
            }
        }
    };
}

counts! {
    /// Files opened, created ones included.
    opens,
    /// Files opened in a mode that creates or empties them.
    creates,
    /// Reads.
    reads,
    /// Bytes asked for by reads.
    read_bytes,
    /// Pages of 4 KiB asked for by reads, rounded up per read.
    read_pages,
    /// Writes, appends included.
    writes,
    /// Bytes handed over by writes.
    write_bytes,
    /// Pages of 4 KiB handed over by writes, rounded up per write.
    write_pages,
    /// Reads and writes that went through a queue.
    queued,
    /// Changes of length.
    set_lens,
    /// Reservations of space.
    allocates,
    /// Syncs of files.
    syncs,
    /// Syncs of directories.
    dir_syncs,
    /// Directories made.
    dirs_created,
    /// Directories removed.
    dirs_removed,
    /// Names of files removed.
    removes,
    /// Renames.
    renames,
    /// Hard links made.
    links,
    /// Directories listed.
    lists,
    /// Questions what a path stands for.
    kinds,
    /// Locks asked for.
    locks,
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn open(&self, mode: OpenMode) {
        count(&self.opens, 1);
        if mode.creates() {
            count(&self.creates, 1);
        }
    }

    pub(crate) fn read(&self, bytes: usize) {
        count(&self.reads, 1);
        count(&self.read_bytes, bytes);
        count(&self.read_pages, bytes.div_ceil(PAGE_BYTES));
    }

    pub(crate) fn write(&self, bytes: usize) {
        count(&self.writes, 1);
        count(&self.write_bytes, bytes);
        count(&self.write_pages, bytes.div_ceil(PAGE_BYTES));
    }

    pub(crate) fn queued(&self) {
        count(&self.queued, 1);
    }

    pub(crate) fn set_len(&self) {
        count(&self.set_lens, 1);
    }

    pub(crate) fn allocate(&self) {
        count(&self.allocates, 1);
    }

    pub(crate) fn sync(&self) {
        count(&self.syncs, 1);
    }

    pub(crate) fn sync_dir(&self) {
        count(&self.dir_syncs, 1);
    }

    pub(crate) fn create_dir(&self) {
        count(&self.dirs_created, 1);
    }

    pub(crate) fn remove_dir(&self) {
        count(&self.dirs_removed, 1);
    }

    pub(crate) fn remove(&self) {
        count(&self.removes, 1);
    }

    pub(crate) fn rename(&self) {
        count(&self.renames, 1);
    }

    pub(crate) fn hard_link(&self) {
        count(&self.links, 1);
    }

    pub(crate) fn list(&self) {
        count(&self.lists, 1);
    }

    pub(crate) fn kind(&self) {
        count(&self.kinds, 1);
    }

    pub(crate) fn lock(&self) {
        count(&self.locks, 1);
    }
}

/// A disk that counts the calls on another disk.
#[derive(Debug)]
pub struct CountedDisk {
    inner: Arc<dyn Disk>,
    counters: Arc<Counters>,
}

impl CountedDisk {
    /// Wraps `inner`, and counts the calls through the returned disk.
    #[must_use]
    pub fn new(inner: Arc<dyn Disk>) -> Arc<Self> {
        Arc::new(Self { inner, counters: Arc::default() })
    }

    /// The numbers so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.snapshot()
    }
}

impl Disk for CountedDisk {
    crate::forward!(inner: anchor, absolute, free_bytes, allocated_bytes, clock, queue_kind);

    fn open(&self, path: &Path, mode: OpenMode, access: Access) -> Result<Arc<dyn DiskFile>> {
        // Calls are counted before they are made, so failed ones count too.
        self.counters.open(mode);
        let inner = self.inner.open(path, mode, access)?;
        Ok(Arc::new(CountedFile { inner, counters: Arc::clone(&self.counters) }))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.counters.create_dir();
        self.inner.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.counters.remove_dir();
        self.inner.remove_dir(path)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.counters.remove();
        self.inner.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.counters.rename();
        self.inner.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.counters.hard_link();
        self.inner.hard_link(from, to)
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.counters.list();
        self.inner.list(dir)
    }

    fn kind(&self, path: &Path) -> Result<Option<EntryKind>> {
        self.counters.kind();
        self.inner.kind(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.counters.sync_dir();
        self.inner.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.counters.lock();
        self.inner.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.counters.lock();
        self.inner.lock_shared(path)
    }

    fn is_locked(&self, path: &Path) -> Result<bool> {
        self.counters.lock();
        self.inner.is_locked(path)
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>> {
        let below: Below = |file| Some(file.downcast_ref::<CountedFile>()?.inner.clone());
        let counters = Arc::clone(&self.counters);
        let pass = move |request: &Request| {
            // A request counts twice: as queued, and as a read or a write.
            counters.queued();
            match request.direction {
                Direction::Read => counters.read(request.buffer.len()),
                Direction::Write => counters.write(request.buffer.len()),
            }
        };
        Ok(Box::new(ForwardQueue { inner: self.inner.queue(depth)?, below, pass }))
    }
}

#[derive(Debug)]
struct CountedFile {
    inner: Arc<dyn DiskFile>,
    counters: Arc<Counters>,
}

impl DiskFile for CountedFile {
    crate::forward!(inner: path, access, len, forget);

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.counters.read(buffer.len());
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.counters.write(bytes.len());
        self.inner.write_at(bytes, offset)
    }

    fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.counters.write(bytes.len());
        self.inner.append(bytes)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.counters.set_len();
        self.inner.set_len(len)
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.counters.allocate();
        self.inner.allocate(len)
    }

    fn sync(&self) -> Result<()> {
        self.counters.sync();
        self.inner.sync()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
