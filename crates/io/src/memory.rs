//! A disk in memory: files are bytes behind a lock each, and requests are done when they are asked for.
//!
//! For tests of programs that use a store, and for measuring what an engine costs without a device. It makes no
//! promise that outlives the process, so a sync is nothing; whoever wants to see what a crash leaves takes the
//! simulated disk. Time is the system's. A file occupies its length: holes take memory, reserved space takes
//! none. What memory has no room for is an error, no abort, as far as the system tells in time.
//!
//! The root directory `/` exists from the start; relative paths start there as well.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

use crate::clock::{Clock, SystemClock};
use crate::disk::{
    Access, Completion, Disk, DiskFile, Entry, EntryKind, IoQueue, LockGuard, OpenMode, QueueKind,
    Request,
};
use crate::error::{Error, Result};

/// What [`Disk::free_bytes`] answers: the system does not tell how much memory it would still give.
const FREE_BYTES: u64 = 1 << 40;

type Outcome<T> = std::result::Result<T, Errno>;
type Names = BTreeMap<Arc<str>, Node>;

/// A disk in memory. See the [module](self).
#[derive(Debug)]
pub struct MemoryDisk {
    root: RwLock<Node>,
    clock: SystemClock,
}

/// What a name stands for.
#[derive(Debug)]
enum Node {
    File(Arc<Content>),
    Dir(Names),
}

/// A file, whatever names and handles it has.
#[derive(Default)]
struct Content {
    bytes: RwLock<Vec<u8>>,
    /// Whether a [`LockGuard`] of it is alive.
    is_locked: AtomicBool,
}

/// The names on the way from the root to `path`; a relative path starts at the root as well.
pub(crate) fn names_of(path: &Path) -> Outcome<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => names.push(name.to_str().ok_or(Errno::INVAL)?),
            Component::ParentDir | Component::Prefix(_) => return Err(Errno::INVAL),
        }
    }
    Ok(names)
}

/// The directory that holds a path's last name, as the names on the way to it, and that name.
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

    /// What the names lead to from here.
    fn find(&self, names: &[&str]) -> Outcome<&Self> {
        names.iter().try_fold(self, |node, &name| node.dir()?.get(name).ok_or(Errno::NOENT))
    }

    /// The directory that the names lead to from here.
    fn find_dir(&mut self, names: &[&str]) -> Outcome<&mut Names> {
        let mut dir = self.dir_mut()?;
        for &name in names {
            dir = dir.get_mut(name).ok_or(Errno::NOENT)?.dir_mut()?;
        }
        Ok(dir)
    }

    /// The file of a name, made if there is none and `may_create` says so.
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

    /// Gives a name that must be free to a node.
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

    /// Removes a name if `check` finds nothing against it.
    fn remove(&mut self, path: &Path, check: impl Fn(&Self) -> Outcome<()>) -> Outcome<()> {
        let (dir, name) = split_last(path)?;
        let names = self.find_dir(&dir)?;
        check(names.get(name).ok_or(Errno::NOENT)?)?;
        names.remove(name);
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Outcome<()> {
        let (from, to) = (names_of(from)?, names_of(to)?);
        let ([from_dir @ .., from_name], [to_dir @ .., to_name]) = (&*from, &*to) else {
            return Err(Errno::BUSY);
        };
        self.find(from_dir)?.dir()?;
        self.find(to_dir)?.dir()?;
        let node = self.find(&from)?;
        if to.len() > from.len() && to.starts_with(&from) {
            return Err(Errno::INVAL);
        }
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
            OpenMode::CreateNew => {
                let content = Arc::<Content>::default();
                root.add(path, Node::File(Arc::clone(&content)))?;
                Ok(content)
            }
        })?;
        if mode == OpenMode::Truncate {
            content.write().clear();
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
            // A name that is taken is told before a directory that cannot be linked.
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
        if content.is_locked.swap(true, Ordering::AcqRel) {
            return Err(Error::Locked { path: path.to_owned(), pid: Some(std::process::id()) });
        }
        Ok(Box::new(MemoryLock(content)))
    }

    fn is_locked(&self, path: &Path) -> Result<bool> {
        self.look("flock", path, |root| match root.find(&names_of(path)?) {
            Err(Errno::NOENT) => Ok(false),
            found => Ok(found?.file()?.is_locked.load(Ordering::Acquire)),
        })
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.look("statvfs", dir, |root| root.find(&names_of(dir)?).map(|_| FREE_BYTES))
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>> {
        Ok(Box::new(MemoryQueue { depth: depth.max(1), waiting: VecDeque::new() }))
    }

    fn queue_kind(&self) -> QueueKind {
        QueueKind::Memory
    }
}

#[derive(Debug)]
struct MemoryLock(Arc<Content>);

impl LockGuard for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.0.is_locked.store(false, Ordering::Release);
    }
}

impl Content {
    /// Nothing panics while it holds one of these locks, so the bytes are whole.
    fn read(&self) -> RwLockReadGuard<'_, Vec<u8>> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<u8>> {
        self.bytes.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} bytes)", self.read().len())
    }
}

/// Grows `bytes` with zeros to at least `len`.
fn grow(bytes: &mut Vec<u8>, len: usize) -> Outcome<()> {
    if len > bytes.len() {
        bytes.try_reserve(len - bytes.len()).map_err(|_| Errno::NOSPC)?;
        bytes.resize(len, 0);
    }
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

impl DiskFile for MemoryFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn access(&self) -> Access {
        self.access
    }

    fn len(&self) -> Result<u64> {
        Ok(self.content.read().len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let bytes = self.content.read();
        let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..));
        let rest = rest.unwrap_or_default();
        let (expected, found) = (buffer.len(), buffer.len().min(rest.len()));
        buffer[..found].copy_from_slice(&rest[..found]);
        if found < expected {
            return Err(Error::ShortRead { path: self.path.clone(), offset, expected, found });
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.check_writable("pwrite", Errno::BADF)?;
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(bytes.len())?));
        let range = range.ok_or_else(|| self.error("pwrite", Errno::FBIG))?;
        let mut content = self.content.write();
        grow(&mut content, range.end).map_err(|errno| self.error("pwrite", errno))?;
        content[range].copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.check_writable("ftruncate", Errno::INVAL)?;
        let len = usize::try_from(len).map_err(|_| self.error("ftruncate", Errno::FBIG))?;
        let mut content = self.content.write();
        content.truncate(len);
        grow(&mut content, len).map_err(|errno| self.error("ftruncate", errno))
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

/// A queue whose requests are carried out when their completion is taken, in order.
struct MemoryQueue {
    depth: usize,
    waiting: VecDeque<Request>,
}

impl IoQueue for MemoryQueue {
    fn push(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    fn submit(&mut self) {}

    fn pop(&mut self) -> Option<Completion> {
        self.waiting.pop_front().map(Request::carry_out)
    }

    fn poll(&mut self) -> Option<Completion> {
        self.pop()
    }

    fn outstanding(&self) -> usize {
        self.waiting.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

/// Requests in flight are carried out, as the contract has it: writes are not lost with their queue.
impl Drop for MemoryQueue {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
