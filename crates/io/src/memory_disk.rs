//! A disk in memory: files are bytes behind a lock each, and requests are carried out at once.
//!
//! It serves tests of programs that use a store, and measurements of an engine without a device. It
//! promises nothing beyond the end of the process, so a sync does nothing; the simulated disk shows
//! what a crash leaves. Time is the system's. A file occupies its length: holes take memory,
//! reserved space takes none. A lack of memory is an error and no abort, as far as the system tells
//! in time.
//!
//! Files lie in blocks, on huge pages where the system has them. A queue prefetches the memory of
//! the next read while it carries out another. Otherwise a page in no cache of the processor would
//! cost more than all that an engine does with it.
//!
//! The root directory `/` exists from the start; relative paths start there as well.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::clock::{Clock, SystemClock};
use crate::disk::disk::{
    Access, Completion, Direction, Disk, DiskFile, Entry, EntryKind, IoQueue, LockGuard, OpenMode,
    QueueKind, Request,
};
use crate::error::{Error, Result};
use crate::prefetch::{huge_pages, prefetch};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The answer of [`Disk::free_bytes`]: the system does not tell how much memory it would still
/// give.
const FREE_BYTES: u64 = 1 << 40;

/// Bytes of a block: large enough for most of it to lie on huge pages wherever it begins.
const BLOCK_BYTES: usize = 16 << 20;

/// Size above which a block gets all of its address space.
const SMALL_BYTES: usize = 1 << 20;

/// Bytes at the front of the next read that are prefetched. The processor guesses that more
/// follows. Prefetching a whole page would wait for room for that many lines, and gain nothing.
const AHEAD_BYTES: usize = 768;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

type Outcome<T> = std::result::Result<T, Errno>;
type Names = BTreeMap<Arc<str>, Node>;

/// A disk in memory. See the [module](self).
#[derive(Debug)]
pub struct MemoryDisk {
    root: RwLock<Node>,
    clock: SystemClock,
}

/// An entry of a directory.
#[derive(Debug)]
enum Node {
    File(Arc<Content>),
    Dir(Names),
}

/// A file, whatever its names and handles.
#[derive(Default)]
struct Content {
    bytes: RwLock<Bytes>,
    lock: Mutex<LockState>,
}

/// Holders of the lock of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LockState {
    #[default]
    Free,
    Exclusive,
    /// Number of shared holders, at least one.
    Shared(usize),
}

impl LockState {
    /// Takes the lock; `false` if another holder is in the way.
    pub(crate) fn take(&mut self, is_shared: bool) -> bool {
        *self = match (*self, is_shared) {
            (Self::Free, false) => Self::Exclusive,
            (Self::Free, true) => Self::Shared(1),
            (Self::Shared(holders), true) => Self::Shared(holders + 1),
            (Self::Exclusive, _) | (Self::Shared(_), false) => return false,
        };
        true
    }

    /// Releases the lock of one holder.
    pub(crate) fn release(&mut self) {
        *self = match *self {
            Self::Shared(holders) if holders > 1 => Self::Shared(holders - 1),
            Self::Free | Self::Exclusive | Self::Shared(_) => Self::Free,
        };
    }
}

/// The names on the way from the root to `path`; a relative path starts at the root as well.
pub(crate) fn names_of(path: &Path) -> Outcome<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        // No store makes a path that goes up.
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => names.push(name.to_str().ok_or(Errno::INVAL)?),
            Component::ParentDir | Component::Prefix(_) => return Err(Errno::INVAL),
        }
    }
    Ok(names)
}

/// The directory of a path's last name, as the names on the way to it, and that name.
fn split_last(path: &Path) -> Outcome<(Vec<&str>, &str)> {
    let mut names = names_of(path)?;
    let name = names.pop().ok_or(Errno::BUSY)?;
    Ok((names, name))
}

impl Node {
    fn kind(&self) -> EntryKind {
        match self {
            Self::File(_) => EntryKind::File,
            Self::Dir(_) => EntryKind::Directory,
        }
    }

    fn file(&self) -> Outcome<&Arc<Content>> {
        match self {
            Self::File(content) => Ok(content),
            Self::Dir(_) => Err(Errno::ISDIR),
        }
    }

    fn dir(&self) -> Outcome<&Names> {
        match self {
            Self::File(_) => Err(Errno::NOTDIR),
            Self::Dir(names) => Ok(names),
        }
    }

    fn dir_mut(&mut self) -> Outcome<&mut Names> {
        match self {
            Self::File(_) => Err(Errno::NOTDIR),
            Self::Dir(names) => Ok(names),
        }
    }

    /// The entry that a path leads to from here.
    fn find(&self, names: &[&str]) -> Outcome<&Self> {
        names.iter().try_fold(self, |node, &name| node.dir()?.get(name).ok_or(Errno::NOENT))
    }

    /// The directory that a path leads to from here.
    fn find_dir(&mut self, names: &[&str]) -> Outcome<&mut Names> {
        let mut dir = self.dir_mut()?;
        for &name in names {
            dir = dir.get_mut(name).ok_or(Errno::NOENT)?.dir_mut()?;
        }
        Ok(dir)
    }

    /// The file of a name; created if there is none and `may_create` is set.
    fn file_or_new(&mut self, path: &Path, may_create: bool) -> Outcome<Arc<Content>> {
        match self.find(&names_of(path)?) {
            Err(Errno::NOENT) if may_create => {
                let (dir, name) = split_last(path)?;
                let content = Arc::<Content>::default();
                self.find_dir(&dir)?.insert(name.into(), Self::File(Arc::clone(&content)));
                Ok(content)
            }
            found => Ok(Arc::clone(found?.file()?)),
        }
    }

    /// Gives a free name to a node.
    fn add(&mut self, path: &Path, node: Self) -> Outcome<()> {
        if names_of(path)?.is_empty() {
            return Err(Errno::EXIST);
        }
        let (dir, name) = split_last(path)?;
        let names = self.find_dir(&dir)?;
        if names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        names.insert(name.into(), node);
        Ok(())
    }

    /// Removes a name unless `check` objects.
    fn remove(&mut self, path: &Path, check: impl Fn(&Self) -> Outcome<()>) -> Outcome<()> {
        let (dir, name) = split_last(path)?;
        let names = self.find_dir(&dir)?;
        check(names.get(name).ok_or(Errno::NOENT)?)?;
        names.remove(name);
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Outcome<()> {
        let from = names_of(from)?;
        let to = names_of(to)?;
        let ([from_dir @ .., from_name], [to_dir @ .., to_name]) = (&*from, &*to) else {
            return Err(Errno::BUSY);
        };

        self.find(from_dir)?.dir()?;
        self.find(to_dir)?.dir()?;
        let node = self.find(&from)?;

        // A directory cannot move into itself.
        if to.len() > from.len() && to.starts_with(&from) {
            return Err(Errno::INVAL);
        }

        // The target holds the source, so it is not empty.
        if from.len() > to.len() && from.starts_with(&to) {
            return Err(Errno::NOTEMPTY);
        }

        match (node, self.find(&to)) {
            (_, Err(Errno::NOENT)) => {}
            (Self::File(old), Ok(Self::File(new))) if Arc::ptr_eq(old, new) => return Ok(()),
            (Self::File(_), replaced) => drop(replaced?.file()?),
            _ if from == to => return Ok(()),
            (Self::Dir(_), replaced) => {
                if !replaced?.dir()?.is_empty() {
                    return Err(Errno::NOTEMPTY);
                }
            }
        }

        // All is checked before the first name changes.
        let node = self.find_dir(from_dir)?.remove(*from_name).ok_or(Errno::NOENT)?;
        self.find_dir(to_dir)?.insert((*to_name).into(), node);
        Ok(())
    }
}

impl MemoryDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { root: RwLock::new(Node::Dir(Names::new())), clock: SystemClock::new() })
    }

    fn look<T>(
        &self,
        call: &'static str,
        path: &Path,
        act: impl FnOnce(&Node) -> Outcome<T>,
    ) -> Result<T> {
        let root = self.root.read().unwrap_or_else(PoisonError::into_inner);
        act(&root).map_err(|errno| Error::io(call, path, errno.into()))
    }

    fn change<T>(
        &self,
        call: &'static str,
        path: &Path,
        act: impl FnOnce(&mut Node) -> Outcome<T>,
    ) -> Result<T> {
        let mut root = self.root.write().unwrap_or_else(PoisonError::into_inner);
        act(&mut root).map_err(|errno| Error::io(call, path, errno.into()))
    }
}

impl Disk for MemoryDisk {
    fn open(&self, path: &Path, mode: OpenMode, access: Access) -> Result<Arc<dyn DiskFile>> {
        let content = self.change("open", path, |root| match mode {
            OpenMode::Read | OpenMode::ReadWrite => root.file_or_new(path, false),
            OpenMode::Truncate => root.file_or_new(path, true),
            OpenMode::CreateNew | OpenMode::CreatePrivate => {
                let content = Arc::<Content>::default();
                root.add(path, Node::File(Arc::clone(&content)))?;
                Ok(content)
            }
        })?;

        // The old content goes only after the open has succeeded.
        if mode == OpenMode::Truncate {
            content.write().truncate(0);
        }

        let is_writable = mode != OpenMode::Read;
        Ok(Arc::new(MemoryFile { content, path: path.to_owned(), access, is_writable }))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.change("mkdir", path, |root| root.add(path, Node::Dir(Names::new())))
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.change("rmdir", path, |root| {
            root.remove(
                path,
                |node| {
                    if node.dir()?.is_empty() { Ok(()) } else { Err(Errno::NOTEMPTY) }
                },
            )
        })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.change("unlink", path, |root| root.remove(path, |node| node.file().map(drop)))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.change("rename", from, |root| root.rename(from, to))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.change("link", to, |root| {
            let node = match root.find(&names_of(from)?)? {
                Node::File(content) => Some(Node::File(Arc::clone(content))),
                Node::Dir(_) => None,
            };
            // A taken name counts before a directory that cannot be linked.
            if root.find(&names_of(to)?).is_ok() {
                return Err(Errno::EXIST);
            }
            let (dir, _) = split_last(to)?;
            root.find(&dir)?.dir()?;
            root.add(to, node.ok_or(Errno::PERM)?)
        })
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.look("readdir", dir, |root| {
            let names = root.find(&names_of(dir)?)?.dir()?;
            let entry = |(name, node): (&Arc<str>, &Node)| Entry {
                name: name.to_string(),
                kind: node.kind(),
            };
            Ok(names.iter().map(entry).collect())
        })
    }

    fn kind(&self, path: &Path) -> Result<Option<EntryKind>> {
        self.look("stat", path, |root| match root.find(&names_of(path)?) {
            Ok(node) => Ok(Some(node.kind())),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        })
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.look("fsync", dir, |root| root.find(&names_of(dir)?)?.dir().map(drop))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        let content = self.change("flock", path, |root| root.file_or_new(path, true))?;
        MemoryLock::take(content, path, false)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        let content = self.change("open", path, |root| root.file_or_new(path, false))?;
        MemoryLock::take(content, path, true)
    }

    fn is_locked(&self, path: &Path) -> Result<bool> {
        self.look("flock", path, |root| match root.find(&names_of(path)?) {
            Err(Errno::NOENT) => Ok(false),
            found => Ok(*found?.file()?.lock() == LockState::Exclusive),
        })
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.look("statvfs", dir, |root| root.find(&names_of(dir)?).map(|_| FREE_BYTES))
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>> {
        Ok(Box::new(MemoryQueue {
            depth: depth.max(1),
            waiting: VecDeque::new(),
            done: VecDeque::new(),
        }))
    }

    fn queue_kind(&self) -> QueueKind {
        QueueKind::Memory
    }
}

#[derive(Debug)]
struct MemoryLock(Arc<Content>);

impl LockGuard for MemoryLock {}

impl MemoryLock {
    fn take(content: Arc<Content>, path: &Path, is_shared: bool) -> Result<Box<dyn LockGuard>> {
        if !content.lock().take(is_shared) {
            return Err(Error::Locked { path: path.to_owned(), pid: Some(std::process::id()) });
        }
        Ok(Box::new(Self(content)))
    }
}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.0.lock().release();
    }
}

impl Content {
    /// Locks a file. Nothing panics while it holds this lock, so the bytes are whole.
    fn read(&self) -> RwLockReadGuard<'_, Bytes> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, LockState> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Bytes> {
        self.bytes.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} bytes)", self.read().len)
    }
}

/// The bytes of a file.
///
/// Invariant: all blocks but the last have [`BLOCK_BYTES`], the last has some, and `len` is the
/// sum.
#[derive(Default)]
struct Bytes {
    blocks: Vec<Vec<u8>>,
    len: usize,
}

impl Bytes {
    /// The bytes from `offset` to the end of its block; none at the end of the file and behind it.
    fn block_at(&self, offset: usize) -> &[u8] {
        let block = self.blocks.get(offset / BLOCK_BYTES).map_or([].as_slice(), Vec::as_slice);
        block.get(offset % BLOCK_BYTES..).unwrap_or_default()
    }

    /// Copies bytes from `offset` on. Returns their number.
    fn read(&self, mut offset: usize, buffer: &mut [u8]) -> usize {
        let mut found = 0;
        while found < buffer.len() {
            let bytes = self.block_at(offset);
            let count = bytes.len().min(buffer.len() - found);
            if count == 0 {
                break;
            }
            buffer[found..found + count].copy_from_slice(&bytes[..count]);
            found += count;
            offset += count;
        }
        found
    }

    /// Overwrites bytes, and goes on behind the end, with zeros up to `offset` if that lies behind
    /// the end. If there is no room, nothing has grown.
    fn write(&mut self, mut offset: usize, mut bytes: &[u8]) -> Outcome<()> {
        let len = self.len;
        // A write behind the end fills the gap with zeros.
        self.grow(offset)?;
        while offset < self.len && !bytes.is_empty() {
            let at = offset % BLOCK_BYTES;
            let block = &mut self.blocks[offset / BLOCK_BYTES][at..];
            let count = block.len().min(bytes.len());
            block[..count].copy_from_slice(&bytes[..count]);
            (offset, bytes) = (offset + count, &bytes[count..]);
        }

        while !bytes.is_empty() {
            let appended = self.append(bytes.len(), |block, count| {
                block.extend_from_slice(&bytes[..count]);
            });
            match appended {
                Ok(count) => bytes = &bytes[count..],
                Err(errno) => {
                    self.truncate(len);
                    return Err(errno);
                }
            }
        }

        Ok(())
    }

    /// Grows with zeros to at least `len`. If there is no room, nothing has grown.
    fn grow(&mut self, len: usize) -> Outcome<()> {
        let before = self.len;
        if len.saturating_sub(before) > BLOCK_BYTES {
            // An impossible length is refused before memory is filled with zeros for it.
            Vec::<u8>::new().try_reserve_exact(len - before).map_err(|_| Errno::NOSPC)?;
        }

        while self.len < len {
            let more = len - self.len;
            if let Err(errno) =
                self.append(more, |block, count| block.resize(block.len() + count, 0))
            {
                self.truncate(before);
                return Err(errno);
            }
        }

        Ok(())
    }

    /// Adds up to `more` bytes, as many as the last block has room for. Returns their number.
    fn append(&mut self, more: usize, add: impl FnOnce(&mut Vec<u8>, usize)) -> Outcome<usize> {
        // Every block but the last one is full.
        if self.len.is_multiple_of(BLOCK_BYTES) {
            self.blocks.push(Vec::new());
        }
        let block = self.blocks.last_mut().ok_or(Errno::NOSPC)?;
        let count = more.min(BLOCK_BYTES - block.len());
        if let Err(errno) = make_room(block, count) {
            // A block that got no memory must not stay.
            self.blocks.pop_if(|block| block.is_empty());
            return Err(errno);
        }
        add(block, count);
        self.len += count;
        Ok(count)
    }

    fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.blocks.truncate(len.div_ceil(BLOCK_BYTES));
            self.len = len;
            // The last block ends where the file does.
            if let Some(last) = self.blocks.last_mut() {
                last.truncate(len - (len - 1) / BLOCK_BYTES * BLOCK_BYTES);
            }
        }
    }

    /// Prefetches the memory of a read at `offset`.
    fn ask_ahead(&self, offset: usize, len: usize) {
        let bytes = self.block_at(offset);
        let front = &bytes[..bytes.len().min(len).min(AHEAD_BYTES)];
        front.iter().step_by(LINE_BYTES).for_each(prefetch);
    }
}

/// Makes room in a block for `more` bytes.
fn make_room(block: &mut Vec<u8>, more: usize) -> Outcome<()> {
    let len = block.len() + more;
    if len <= block.capacity() {
        return Ok(());
    }
    // Small files grow by doubling; larger ones get whole blocks, which huge pages can back.
    if len <= SMALL_BYTES {
        return block.try_reserve(more).map_err(|_| Errno::NOSPC);
    }
    block.try_reserve_exact(BLOCK_BYTES - block.len()).map_err(|_| Errno::NOSPC)?;
    huge_pages(block);
    Ok(())
}

#[derive(Debug)]
struct MemoryFile {
    content: Arc<Content>,
    path: PathBuf,
    access: Access,
    is_writable: bool,
}

impl MemoryFile {
    fn error(&self, call: &'static str, errno: Errno) -> Error {
        Error::io(call, &self.path, errno.into())
    }

    fn check_writable(&self, call: &'static str, refusal: Errno) -> Result<()> {
        if self.is_writable { Ok(()) } else { Err(self.error(call, refusal)) }
    }
}

/// Fills a buffer from the bytes of a file.
fn read_from(bytes: &Bytes, path: &Path, buffer: &mut [u8], offset: u64) -> Result<()> {
    let expected = buffer.len();
    let found = usize::try_from(offset).map_or(0, |offset| bytes.read(offset, buffer));
    if found < expected {
        return Err(Error::ShortRead { path: path.to_owned(), offset, expected, found });
    }
    Ok(())
}

impl DiskFile for MemoryFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn access(&self) -> Access {
        self.access
    }

    fn len(&self) -> Result<u64> {
        Ok(self.content.read().len as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        read_from(&self.content.read(), &self.path, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.check_writable("pwrite", Errno::BADF)?;
        let start = usize::try_from(offset).ok();
        let start = start.filter(|start| start.checked_add(bytes.len()).is_some());
        let start = start.ok_or_else(|| self.error("pwrite", Errno::FBIG))?;
        self.content.write().write(start, bytes).map_err(|errno| self.error("pwrite", errno))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.check_writable("ftruncate", Errno::INVAL)?;
        let len = usize::try_from(len).map_err(|_| self.error("ftruncate", Errno::FBIG))?;
        let mut content = self.content.write();
        content.truncate(len);
        content.grow(len).map_err(|errno| self.error("ftruncate", errno))
    }

    fn allocate(&self, _len: u64) -> Result<()> {
        self.check_writable("fallocate", Errno::BADF)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn forget(&self, _offset: u64, _len: u64) {}

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A queue whose requests are carried out when a completion is taken, in order. Reads of one file
/// that follow each other share its lock: threads that read the same file would spend their time
/// with handing the lock's memory from one core of the processor to the other.
struct MemoryQueue {
    depth: usize,
    waiting: VecDeque<Request>,
    done: VecDeque<Completion>,
}

/// Reads that share a lock, at most: their pages stay in the nearest cache until they are taken.
const READS_TOGETHER: usize = 4;

/// The content of the file that a request reads, unless the file is of another disk.
fn content_read(request: &Request) -> Option<&Arc<Content>> {
    let file = request.file.as_any().downcast_ref::<MemoryFile>()?;
    (request.direction == Direction::Read).then_some(&file.content)
}

/// Prefetches the memory of a read.
fn ask_ahead(bytes: &Bytes, request: &Request) {
    if let Ok(offset) = usize::try_from(request.offset) {
        bytes.ask_ahead(offset, request.buffer.len());
    }
}

impl MemoryQueue {
    /// Carries out the next requests.
    fn carry_out_next(&mut self) {
        let Some(request) = self.waiting.pop_front() else { return };
        let Some(content) = content_read(&request).map(Arc::clone) else {
            self.done.push_back(request.carry_out());
            return;
        };

        let bytes = content.read();
        let mut next = Some(request);
        while let Some(mut request) = next.take() {
            let follows = self.waiting.front().filter(|other| {
                content_read(other).is_some_and(|other| Arc::ptr_eq(other, &content))
            });
            if let Some(other) = follows {
                ask_ahead(&bytes, other);
                if self.done.len() + 1 < READS_TOGETHER {
                    next = self.waiting.pop_front();
                }
            }
            let Request { tag, ref file, offset, ref mut buffer, .. } = request;
            let result = read_from(&bytes, file.path(), buffer, offset);
            self.done.push_back(Completion { tag, buffer: request.buffer, result });
        }
        debug_assert!(self.done.len() <= READS_TOGETHER);
        drop(bytes);

        // The lock of another file is taken only without the one of this file.
        if let Some(other) = self.waiting.front()
            && let Some(other_content) = content_read(other)
            && !Arc::ptr_eq(other_content, &content)
        {
            ask_ahead(&other_content.read(), other);
        }
    }
}

impl IoQueue for MemoryQueue {
    fn push(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    fn submit(&mut self) {}

    fn pop(&mut self) -> Option<Completion> {
        if self.done.is_empty() {
            self.carry_out_next();
        }
        self.done.pop_front()
    }

    fn poll(&mut self) -> Option<Completion> {
        self.pop()
    }

    fn outstanding(&self) -> usize {
        self.waiting.len() + self.done.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

/// Carries out the requests in flight, as the contract demands: no write is lost with its queue.
impl Drop for MemoryQueue {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All bytes, read at once.
    fn all(bytes: &Bytes) -> Vec<u8> {
        let mut all = vec![0xAA; bytes.len + 1];
        assert_eq!(bytes.read(0, &mut all), bytes.len);
        all.truncate(bytes.len);
        all
    }

    #[test]
    fn files_go_on_from_block_to_block() {
        let mut bytes = Bytes::default();
        let mut expected = Vec::new();
        let steps = [
            (BLOCK_BYTES - 3, 7),
            (BLOCK_BYTES - 1, 1),
            (5, SMALL_BYTES + 3),
            (2 * BLOCK_BYTES - 2, 2),
            (2 * BLOCK_BYTES, 1),
            (2 * BLOCK_BYTES - 1, 5),
        ];

        for (step, (offset, count)) in (1..).zip(steps) {
            let written = vec![step; count];
            bytes.write(offset, &written).unwrap();
            expected.resize(expected.len().max(offset + count), 0);
            expected[offset..offset + count].copy_from_slice(&written);
            assert!(all(&bytes) == expected, "step {step}");
        }

        for len in [2 * BLOCK_BYTES, 2 * BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES - 2, 1, 0] {
            bytes.truncate(len);
            expected.truncate(len);
            assert!(all(&bytes) == expected, "cut to {len}");
            assert_eq!(bytes.blocks.len(), len.div_ceil(BLOCK_BYTES));
        }
    }

    #[test]
    fn what_there_is_no_room_for_leaves_a_file_as_it_is() {
        let mut bytes = Bytes::default();
        bytes.write(0, b"here").unwrap();
        assert_eq!(bytes.grow(usize::MAX / 4).unwrap_err(), Errno::NOSPC);
        assert_eq!(bytes.write(usize::MAX / 4, b"there").unwrap_err(), Errno::NOSPC);
        assert_eq!(all(&bytes), b"here");
    }
}
