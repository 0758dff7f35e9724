//! A read-only disk over a backup in a bucket, so that a store is read where it lies.
//!
//! [`BucketDisk`] has one directory, the store as of a commit. Reads go through a cache of blocks
//! of 64 KiB, bounded in bytes; a read of several missing blocks is one request. Requests of one
//! queue run side by side. Pages carry checksums, so the engine checks what it reads; this disk
//! checks the files that it holds in memory.
//!
//! Every call that would change something fails with "read-only file system", so a reader takes no
//! lease: nothing in a bucket changes, and a backup that is dropped meanwhile ends the reader with
//! an error.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

use bytes::Bytes;
use terrane_io::cache::{Cache, Key, Weigh};
use terrane_io::clock::SystemClock;
use terrane_io::{
    Access, Clock, Completion, Direction, Disk, DiskFile, Entry, EntryKind, IoQueue, LockGuard,
    OpenMode, QueueKind, Request,
};

use crate::bucket::Bucket;
use crate::catalog::BackupInfo;
use crate::error::{Error, Result};
use crate::point::{Content, Point};

/// Bytes of a block of the cache.
pub const BLOCK_BYTES: u64 = 64 << 10;

/// Bytes of the cache of a reader that asks for none in particular.
pub const CACHE_BYTES_DEFAULT: u64 = 256 << 20;

/// A block of an object, by the number of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockKey {
    file: u32,
    block: u32,
}

impl Key for BlockKey {
    fn hash(self) -> u64 {
        // The multiplier of splitmix64 spreads neighbouring blocks over all bits.
        let mixed = (u64::from(self.file) << 32 | u64::from(self.block))
            .wrapping_add(0x9E37_79B9_7F4A_7C15)
            .wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 31)
    }
}

#[derive(Debug, Clone)]
struct Block(Bytes);

impl Weigh for Block {
    fn weight(&self) -> usize {
        self.0.len()
    }
}

/// A store in a bucket as of a commit, as a read-only disk. See the [module](self).
///
/// ```no_run
/// use terrane_lsm::{ReaderOptions, StoreReader};
/// use terrane_object::{Bucket, CACHE_BYTES_DEFAULT};
///
/// let bucket = Bucket::open("s3://ledger-backups/main")?;
/// let disk = bucket.open_disk(None, CACHE_BYTES_DEFAULT)?;
/// let dir = disk.dir().to_owned();
/// let reader = StoreReader::open(disk, &dir, &ReaderOptions::default())?;
/// println!("commit {}", reader.last_commit());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BucketDisk {
    shared: Arc<Shared>,
    dir: PathBuf,
    commit: u64,
    files: BTreeMap<PathBuf, FileSource>,
    clock: SystemClock,
}

#[derive(Debug)]
struct Shared {
    bucket: Bucket,
    cache: Cache<BlockKey, Block>,
}

/// Where the bytes of a file are.
#[derive(Debug, Clone)]
struct FileSource {
    /// Number of the file in this disk.
    number: u32,
    bytes: u64,
    content: Content,
}

impl Bucket {
    /// Opens the store in the newest backup that reaches `commit`, or as of the last commit, for
    /// reading, with a cache of up to `cache_bytes`.
    ///
    /// Cost: six requests. Opening the store reads the footer, filter and index of each run.
    ///
    /// # Errors
    /// [`Error::NoBackup`], [`Error::Unreachable`], [`Error::Missing`], [`Error::Damaged`],
    /// [`Error::Request`].
    pub fn open_disk(&self, commit: Option<u64>, cache_bytes: u64) -> Result<Arc<BucketDisk>> {
        Ok(self.disk_over(self.point(commit)?, cache_bytes))
    }

    /// Opens the store as of the last commit of a backup.
    ///
    /// # Errors
    /// The errors of [`open_disk`](Self::open_disk).
    pub(crate) fn disk_of_backup(
        &self,
        info: &BackupInfo,
        cache_bytes: u64,
    ) -> Result<Arc<BucketDisk>> {
        Ok(self.disk_over(self.point_of_backup(info)?, cache_bytes))
    }

    fn disk_over(&self, point: Point, cache_bytes: u64) -> Arc<BucketDisk> {
        let dir = PathBuf::from(self.address().trim_end_matches('/'));
        let mut files = BTreeMap::new();
        for (number, file) in (0..).zip(&point.files) {
            let mut content = file.content.clone();
            if file.path == "metadata" {
                content = Content::Bytes(Arc::new(point.metadata.clone()));
            }
            files.insert(dir.join(&file.path), FileSource { number, bytes: file.bytes, content });
        }
        let shared = Shared { bucket: self.clone(), cache: Cache::new(cache_bytes as usize) };
        Arc::new(BucketDisk {
            shared: Arc::new(shared),
            dir,
            commit: point.commit,
            files,
            clock: SystemClock::new(),
        })
    }
}

impl BucketDisk {
    /// The one directory of this disk: the store.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The commit that the store is as of.
    #[must_use]
    pub fn commit(&self) -> u64 {
        self.commit
    }

    /// Bytes that the cache holds.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.shared.cache.bytes() as u64
    }

    fn is_dir(&self, path: &Path) -> bool {
        let folders = ["active", "log", "snapshots"].map(|folder| self.dir.join(folder));
        path == self.dir || folders.iter().any(|folder| folder == path)
    }
}

fn refuse<T>(call: &'static str, path: &Path) -> terrane_io::Result<T> {
    Err(terrane_io::Error::read_only(call, path))
}

fn absent<T>(call: &'static str, path: &Path) -> terrane_io::Result<T> {
    let absent = io::Error::from(io::ErrorKind::NotFound);
    Err(terrane_io::Error::io(call, path, absent))
}

/// The error of a request as that of a disk. Its text has the object and the answer.
fn of_request(path: &Path, error: Error) -> terrane_io::Error {
    let kind = match &error {
        Error::Missing { .. } => io::ErrorKind::NotFound,
        Error::Damaged { .. } => io::ErrorKind::UnexpectedEof,
        error if error.kind() == terrane_io::ErrorKind::Permission => {
            io::ErrorKind::PermissionDenied
        }
        _ => io::ErrorKind::Other,
    };
    terrane_io::Error::io("read", path, io::Error::new(kind, error))
}

impl Disk for BucketDisk {
    fn open(
        &self,
        path: &Path,
        mode: OpenMode,
        access: Access,
    ) -> terrane_io::Result<Arc<dyn DiskFile>> {
        if mode != OpenMode::Read {
            return refuse("open", path);
        }
        match self.files.get(path) {
            Some(source) => Ok(Arc::new(BucketFile {
                path: path.to_owned(),
                access,
                shared: Arc::clone(&self.shared),
                source: source.clone(),
            })),
            None => absent("open", path),
        }
    }

    fn create_dir(&self, path: &Path) -> terrane_io::Result<()> {
        refuse("mkdir", path)
    }

    fn remove_dir(&self, path: &Path) -> terrane_io::Result<()> {
        refuse("rmdir", path)
    }

    fn remove(&self, path: &Path) -> terrane_io::Result<()> {
        refuse("unlink", path)
    }

    fn rename(&self, from: &Path, _to: &Path) -> terrane_io::Result<()> {
        refuse("rename", from)
    }

    fn hard_link(&self, from: &Path, _to: &Path) -> terrane_io::Result<()> {
        refuse("link", from)
    }

    fn list(&self, dir: &Path) -> terrane_io::Result<Vec<Entry>> {
        if !self.is_dir(dir) {
            return absent("readdir", dir);
        }
        let mut entries: Vec<Entry> = Vec::new();
        for path in self.files.keys().filter_map(|path| path.strip_prefix(dir).ok()) {
            let mut parts = path.components();
            let Some(name) = parts.next() else { continue };
            let name = name.as_os_str().to_string_lossy().into_owned();
            let kind = if parts.next().is_some() { EntryKind::Directory } else { EntryKind::File };
            if entries.last().is_none_or(|last| last.name != name) {
                entries.push(Entry { name, kind });
            }
        }
        if dir == self.dir {
            for folder in ["active", "log", "snapshots"] {
                if !entries.iter().any(|entry| entry.name == folder) {
                    let kind = EntryKind::Directory;
                    entries.push(Entry { name: folder.to_owned(), kind });
                }
            }
        }
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    fn kind(&self, path: &Path) -> terrane_io::Result<Option<EntryKind>> {
        Ok(match self.files.contains_key(path) {
            true => Some(EntryKind::File),
            false if self.is_dir(path) => Some(EntryKind::Directory),
            false => None,
        })
    }

    fn sync_dir(&self, dir: &Path) -> terrane_io::Result<()> {
        refuse("fsync", dir)
    }

    fn lock(&self, path: &Path) -> terrane_io::Result<Box<dyn LockGuard>> {
        refuse("flock", path)
    }

    fn lock_shared(&self, path: &Path) -> terrane_io::Result<Box<dyn LockGuard>> {
        // A backup has no file to lock, and nobody writes to it.
        absent("flock", path)
    }

    fn is_locked(&self, _path: &Path) -> terrane_io::Result<bool> {
        Ok(false)
    }

    fn free_bytes(&self, _dir: &Path) -> terrane_io::Result<u64> {
        Ok(0)
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn queue(&self, depth: usize) -> terrane_io::Result<Box<dyn IoQueue>> {
        let (done, completions) = mpsc::channel();
        Ok(Box::new(BucketQueue {
            shared: Arc::clone(&self.shared),
            depth: depth.max(1),
            waiting: VecDeque::new(),
            in_flight: 0,
            done,
            completions,
        }))
    }

    fn queue_kind(&self) -> QueueKind {
        QueueKind::Threads
    }
}

/// A file of a backup.
#[derive(Debug)]
struct BucketFile {
    path: PathBuf,
    access: Access,
    shared: Arc<Shared>,
    source: FileSource,
}

impl FileSource {
    /// Fills a buffer from a file.
    async fn read(
        &self,
        shared: &Shared,
        path: &Path,
        buffer: &mut [u8],
        offset: u64,
    ) -> terrane_io::Result<()> {
        let end = offset.saturating_add(buffer.len() as u64);
        if end > self.bytes {
            let found = self.bytes.saturating_sub(offset) as usize;
            let expected = buffer.len();
            let path = path.to_owned();
            return Err(terrane_io::Error::ShortRead { path, offset, expected, found });
        }
        let key = match &self.content {
            Content::Bytes(bytes) => {
                buffer.copy_from_slice(&bytes[offset as usize..end as usize]);
                return Ok(());
            }
            Content::Object { key, .. } => key,
        };

        let mut at = offset;
        while at < end {
            let block = at / BLOCK_BYTES;
            let bytes = match shared.cache.get(self.key(block)) {
                Some(Block(bytes)) => bytes,
                None => {
                    self.fetch(shared, key, block, end).await.map_err(|e| of_request(path, e))?
                }
            };
            let skipped = (at - block * BLOCK_BYTES) as usize;
            let taken = (bytes.len() - skipped).min((end - at) as usize);
            debug_assert!(taken > 0, "a block that is read has the byte asked for");
            let into = (at - offset) as usize;
            buffer[into..into + taken].copy_from_slice(&bytes[skipped..skipped + taken]);
            at += taken as u64;
        }
        Ok(())
    }

    fn key(&self, block: u64) -> BlockKey {
        BlockKey { file: self.number, block: block as u32 }
    }

    /// Reads a block, and those behind it up to byte `end` that are not in the cache, with one
    /// request; returns all of them.
    async fn fetch(&self, shared: &Shared, key: &str, block: u64, end: u64) -> Result<Bytes> {
        let mut behind = block + 1;
        while behind * BLOCK_BYTES < end && shared.cache.get(self.key(behind)).is_none() {
            behind += 1;
        }
        let from = block * BLOCK_BYTES;
        let len = (behind * BLOCK_BYTES).min(self.bytes) - from;
        let bytes = shared.bucket.get_range(key, from, len).await?;
        for number in block..behind {
            let start = ((number - block) * BLOCK_BYTES) as usize;
            let stop = (start + BLOCK_BYTES as usize).min(bytes.len());
            // A copy of its own, so that the cache does not keep the whole answer for one block.
            let own = Bytes::copy_from_slice(&bytes[start..stop]);
            shared.cache.insert(self.key(number), Block(own));
        }
        Ok(bytes)
    }
}

impl DiskFile for BucketFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn access(&self) -> Access {
        self.access
    }

    fn len(&self) -> terrane_io::Result<u64> {
        Ok(self.source.bytes)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> terrane_io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let source = self.source.clone();
        let path = self.path.clone();
        let mut bytes = vec![0; buffer.len()];
        let read = async move {
            let read = source.read(&shared, &path, &mut bytes, offset).await;
            read.map(|()| bytes)
        };
        let read = self.shared.bucket.runtime().wait("get", read);
        buffer.copy_from_slice(&read.map_err(|error| of_request(&self.path, error))??);
        Ok(())
    }

    fn write_at(&self, _bytes: &[u8], _offset: u64) -> terrane_io::Result<()> {
        refuse("write", &self.path)
    }

    fn set_len(&self, _len: u64) -> terrane_io::Result<()> {
        refuse("ftruncate", &self.path)
    }

    fn allocate(&self, _len: u64) -> terrane_io::Result<()> {
        refuse("fallocate", &self.path)
    }

    fn sync(&self) -> terrane_io::Result<()> {
        refuse("fsync", &self.path)
    }

    fn forget(&self, _offset: u64, _len: u64) {}

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Requests that run side by side on the thread of the bucket.
struct BucketQueue {
    shared: Arc<Shared>,
    depth: usize,
    waiting: VecDeque<Request>,
    /// Invariant: at most `depth`.
    in_flight: usize,
    done: mpsc::Sender<Completion>,
    completions: mpsc::Receiver<Completion>,
}

impl BucketQueue {
    fn start(&mut self, mut request: Request) {
        let done = self.done.clone();
        let file = request.file.as_any().downcast_ref::<BucketFile>();
        self.in_flight += 1;
        let Some(file) = file.filter(|_| request.direction == Direction::Read) else {
            let result = refuse("write", request.file.path());
            let Request { tag, buffer, .. } = request;
            // The queue itself holds the other end.
            let _ = done.send(Completion { tag, buffer, result });
            return;
        };

        let (source, path) = (file.source.clone(), file.path.clone());
        let shared = Arc::clone(&self.shared);
        drop(self.shared.bucket.runtime().spawn(async move {
            let result = source.read(&shared, &path, &mut request.buffer, request.offset).await;
            let Request { tag, buffer, .. } = request;
            // A queue that was dropped has waited for its requests.
            let _ = done.send(Completion { tag, buffer, result });
        }));
    }
}

impl IoQueue for BucketQueue {
    fn push(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    fn submit(&mut self) {
        while self.in_flight < self.depth
            && let Some(request) = self.waiting.pop_front()
        {
            self.start(request);
        }
    }

    fn pop(&mut self) -> Option<Completion> {
        self.submit();
        if self.in_flight == 0 {
            return None;
        }
        let completion = self.completions.recv().ok()?;
        self.in_flight -= 1;
        Some(completion)
    }

    fn poll(&mut self) -> Option<Completion> {
        self.submit();
        let completion = self.completions.try_recv().ok()?;
        self.in_flight -= 1;
        Some(completion)
    }

    fn outstanding(&self) -> usize {
        self.waiting.len() + self.in_flight
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl Drop for BucketQueue {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
