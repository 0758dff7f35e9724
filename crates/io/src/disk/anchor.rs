//! Anchored directories of the real disk, and the way to a name below one of them.
//!
//! An anchor is an open handle of a directory. Every path below the directory is resolved from the
//! handle, one component at a time, and no component may be a symbolic link. So a link that
//! somebody put into a store leads no call out of the store, and a directory that is renamed while
//! a store in it is open stays the store's.
//!
//! Paths below no anchor are the user's, and are resolved by the system, links included.
//!
//! Rejected: `openat2` with `RESOLVE_NO_SYMLINKS`, which old kernels and some sandboxes lack, so
//! that the walk by components would be needed beside it; a second disk type per store, which every
//! engine would have to pass to each of its parts.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, statat};
use rustix::io::{Errno, retry_on_intr};

use crate::disk::disk::{Anchor, EntryKind};
use crate::error::{Error, Result};
use crate::sync::{Arc, PoisonError, RwLock};

/// Directories that are anchored at the moment, by their paths. Of several anchors of one path the
/// newest counts, so that a directory made anew is found while a handle of the removed one lives.
#[derive(Debug, Default)]
pub(crate) struct Anchors {
    dirs: RwLock<BTreeMap<PathBuf, Vec<Arc<OwnedFd>>>>,
}

/// Keeps a directory anchored.
#[derive(Debug)]
struct DirAnchor {
    anchors: Arc<Anchors>,
    path: PathBuf,
    dir: Arc<OwnedFd>,
}

impl Anchor for DirAnchor {}

impl Drop for DirAnchor {
    fn drop(&mut self) {
        let mut dirs = self.anchors.dirs.write().unwrap_or_else(PoisonError::into_inner);
        let Some(handles) = dirs.get_mut(&self.path) else { return };

        // Several anchors may hold one directory.
        handles.retain(|handle| !Arc::ptr_eq(handle, &self.dir));
        if handles.is_empty() {
            dirs.remove(&self.path);
        }
    }
}

/// A name, and the directory that it is looked up in.
pub(crate) struct AnchoredPath<'path> {
    /// The path as the caller gave it, for messages.
    pub(crate) path: &'path Path,
    /// The directory of an anchored name; `None` leaves the whole path to the system.
    dir: Option<Arc<OwnedFd>>,
    /// One component below `dir`, `.` for `dir` itself, or the whole path.
    pub(crate) name: &'path Path,
}

impl AnchoredPath<'_> {
    /// The directory that `name` is relative to.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_ref().map_or(CWD, |dir| dir.as_fd())
    }

    /// Whether links and special files are refused here.
    pub(crate) fn is_anchored(&self) -> bool {
        self.dir.is_some()
    }

    /// Added to the flags of an `openat`.
    pub(crate) fn open_flags(&self) -> OFlags {
        // Below an anchor no link is followed, so nobody can lead the path elsewhere.
        let follow = if self.is_anchored() { OFlags::NOFOLLOW } else { OFlags::empty() };
        OFlags::CLOEXEC | follow
    }

    /// Flags of calls that look a name up without opening it.
    pub(crate) fn at_flags(&self) -> AtFlags {
        if self.is_anchored() { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() }
    }

    /// The error of a call that the system answered with `errno`.
    pub(crate) fn error(&self, call: &'static str, errno: Errno) -> Error {
        match errno {
            Errno::LOOP if self.is_anchored() => Error::wrong_kind(self.path, EntryKind::Link),
            // A link in the place of a directory is no directory either, and the system says only
            // that.
            Errno::NOTDIR if self.is_anchored() => match self.stat() {
                Ok(found @ (EntryKind::Link | EntryKind::Other)) => {
                    Error::wrong_kind(self.path, found)
                }
                _ => Error::io(call, self.path, io::Error::from(errno)),
            },
            _ => Error::io(call, self.path, io::Error::from(errno)),
        }
    }

    /// Kind of the entry; a link is a link.
    fn stat(&self) -> rustix::io::Result<EntryKind> {
        let stat = retry_on_intr(|| statat(self.dir(), self.name, AtFlags::SYMLINK_NOFOLLOW))?;
        Ok(kind_of(FileType::from_raw_mode(stat.st_mode)))
    }

    /// Refuses a link, and whatever else is neither a file nor a directory, in the place of a file
    /// of a store. Looks before the file is opened, since opening a FIFO waits for its other end.
    pub(crate) fn check_kind(&self, call: &'static str) -> Result<()> {
        // Without an anchor links are allowed.
        if !self.is_anchored() {
            return Ok(());
        }
        match self.stat() {
            // If the name does not exist, the next call says so, or creates the file.
            Err(Errno::NOENT) | Ok(EntryKind::File | EntryKind::Directory) => Ok(()),
            Err(errno) => Err(self.error(call, errno)),
            Ok(found) => Err(Error::wrong_kind(self.path, found)),
        }
    }
}

/// The kind of a file type of the system.
pub(crate) fn kind_of(file_type: FileType) -> EntryKind {
    match file_type {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Link,
        _ => EntryKind::Other,
    }
}

/// Opens a directory below another one, for nothing but looking names up in it.
fn step(dir: BorrowedFd<'_>, name: &Path) -> rustix::io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    let access = OFlags::PATH;
    #[cfg(not(target_os = "linux"))]
    let access = OFlags::RDONLY;

    let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| openat(dir, name, flags, Mode::empty()))
}

impl Anchors {
    /// Anchors `path` until the guard goes. The last component may be a link: the caller named it.
    pub(crate) fn anchor(self: &Arc<Self>, path: &Path) -> Result<Box<dyn Anchor>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = self.name_of("open", path)?;
        let dir = retry_on_intr(|| {
            openat(place.dir(), place.name, flags | place.open_flags(), Mode::empty())
        });
        let dir = Arc::new(dir.map_err(|errno| place.error("open", errno))?);

        let mut dirs = self.dirs.write().unwrap_or_else(PoisonError::into_inner);
        dirs.entry(path.to_owned()).or_default().push(Arc::clone(&dir));
        Ok(Box::new(DirAnchor { anchors: Arc::clone(self), path: path.to_owned(), dir }))
    }

    /// The place that `path` names; for an anchored directory, the directory itself.
    pub(crate) fn place<'path>(
        &self,
        call: &'static str,
        path: &'path Path,
    ) -> Result<AnchoredPath<'path>> {
        let Some(dir) = self.newest(path) else { return self.name_of(call, path) };
        Ok(AnchoredPath { path, dir: Some(dir), name: Path::new(".") })
    }

    /// The place of the *name* `path`, for calls that make, move or remove names: an anchored
    /// directory counts as a name in its parent.
    pub(crate) fn name_of<'path>(
        &self,
        call: &'static str,
        path: &'path Path,
    ) -> Result<AnchoredPath<'path>> {
        let anchored =
            path.ancestors().skip(1).find_map(|ancestor| Some((ancestor, self.newest(ancestor)?)));
        let Some((anchor, mut dir)) = anchored else {
            return Ok(AnchoredPath { path, dir: None, name: path });
        };

        let below = path.strip_prefix(anchor).expect("an ancestor is a prefix");

        let mut names = below.components().peekable();
        let mut walked = anchor.to_owned();
        while let Some(component) = names.next() {
            let Component::Normal(name) = component else { break };
            let name = Path::new(name);
            if names.peek().is_none() {
                return Ok(AnchoredPath { path, dir: Some(dir), name });
            }
            walked.push(name);

            dir = Arc::new(step(dir.as_fd(), name).map_err(|errno| {
                // A link is not a directory either, and the system says no more.
                let is_link = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink());
                if is_link {
                    Error::wrong_kind(&walked, EntryKind::Link)
                } else {
                    Error::io(call, path, errno.into())
                }
            })?);
        }

        // `..` would lead out of the anchored directory.
        Err(Error::io(call, path, Errno::INVAL.into()))
    }

    fn newest(&self, path: &Path) -> Option<Arc<OwnedFd>> {
        let dirs = self.dirs.read().unwrap_or_else(PoisonError::into_inner);
        dirs.get(path)?.last().map(Arc::clone)
    }
}
