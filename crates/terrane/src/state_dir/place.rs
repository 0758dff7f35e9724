//! The directory of a radix store, anchored: no call on a name in it follows a symbolic link, or
//! waits for a FIFO.
//!
//! Back-ends that take a path open the database by themselves, so that the kind of the database is
//! looked at before.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access as Right, access};
use rustix::io::Errno;
use terrane_io::{Access, Disk, LockGuard, OpenMode, RealDisk};
use terrane_io::{Anchor, EntryKind};

use super::{DATABASE, Error, LOCK, MARKER_BYTES_MAX, Result};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Place {
    disk: Arc<dyn Disk>,
    /// From the root on.
    dir: PathBuf,
    _anchor: Box<dyn Anchor>,
}

impl Place {
    /// A directory; `None` if there is no such directory.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn of(dir: &Path) -> Result<Option<Self>> {
        let disk: Arc<dyn Disk> = RealDisk::auto();
        let dir = disk.absolute(dir)?;
        match disk.anchor(&dir) {
            Ok(anchor) => Ok(Some(Self { disk, dir, _anchor: anchor })),
            Err(error) if error.is_not_found() || error.is_not_a_directory() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A directory that must be there.
    ///
    /// # Errors
    /// [`Error::Absent`], those of the system.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        Self::of(dir)?.ok_or_else(|| Error::Absent { dir: dir.to_owned() })
    }

    pub(super) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The kind of a name; `None` if there is nothing. A name that cannot be looked at is an
    /// error, and not missing.
    pub(super) fn kind(&self, name: &str) -> Result<Option<EntryKind>> {
        Ok(self.disk.kind(&self.path(name))?)
    }

    pub(super) fn has(&self, name: &str) -> Result<bool> {
        Ok(self.kind(name)?.is_some())
    }

    /// The bytes of a marker; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it has more than [`MARKER_BYTES_MAX`]; those of the system.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        let file = match self.disk.open(&path, OpenMode::Read, Access::Buffered) {
            Err(error) if error.is_not_found() => return Ok(None),
            file => file?,
        };
        let length = file.len()?;
        if length > MARKER_BYTES_MAX {
            let rule = format!("the marker has more than {MARKER_BYTES_MAX} bytes");
            return Err(Error::Corrupt { path, rule });
        }
        let mut bytes = vec![0; length as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(Some(bytes))
    }

    /// Makes a file of these bytes, durable but for its name; one of that name is removed first.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.remove(name)?;
        let file = self.disk.open(&self.path(name), OpenMode::CreateNew, Access::Buffered)?;
        file.write_at(bytes, 0)?;
        Ok(file.sync()?)
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(self.disk.rename(&self.path(from), &self.path(to))?)
    }

    /// Removes a name, if it is there; of a link the link.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        match self.disk.remove(&self.path(name)) {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Removes a name, and what is below it.
    pub(super) fn remove_all(&self, path: &Path, kind: EntryKind) -> Result<()> {
        if kind != EntryKind::Directory {
            return Ok(self.disk.remove(path)?);
        }
        for entry in self.disk.list(path)? {
            self.remove_all(&path.join(entry.name), entry.kind)?;
        }
        Ok(self.disk.remove_dir(path)?)
    }

    /// The names in the directory, and what they stand for.
    pub(super) fn entries(&self) -> Result<Vec<(String, EntryKind)>> {
        let entries = self.disk.list(&self.dir)?;
        Ok(entries.into_iter().map(|entry| (entry.name, entry.kind)).collect())
    }

    pub(super) fn sync(&self) -> Result<()> {
        Ok(self.disk.sync_dir(&self.dir)?)
    }

    /// The lock of the store, for as long as the guard lives.
    pub(super) fn lock(&self) -> Result<Box<dyn LockGuard>> {
        self.disk.lock(&self.path(LOCK)).map_err(|error| self.locked(error))
    }

    /// The lock that readers share where they can write nothing; `None` if nobody ever made it.
    pub(super) fn lock_shared(&self) -> Result<Option<Box<dyn LockGuard>>> {
        match self.disk.lock_shared(&self.path(LOCK)) {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(self.locked(error)),
        }
    }

    fn locked(&self, error: terrane_io::Error) -> Error {
        match error {
            terrane_io::Error::Locked { pid, .. } => Error::Locked { dir: self.dir.clone(), pid },
            error => error.into(),
        }
    }

    /// Whether this process can write beside the database, and the database itself.
    pub(super) fn can_write(&self) -> Result<bool> {
        for path in [&self.dir, &self.path(DATABASE)] {
            match access(path, Right::WRITE_OK) {
                Ok(()) => {}
                Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => return Ok(false),
                Err(errno) => return Err(Error::io(path, errno.into())),
            }
        }
        Ok(true)
    }

    /// Refuses a database that is missing or empty, a link, or anything but a file or a directory.
    pub(super) fn check_database(&self) -> Result<()> {
        let path = self.path(DATABASE);
        let is_empty = match self.kind(DATABASE)? {
            Some(EntryKind::File) => {
                self.disk.open(&path, OpenMode::Read, Access::Buffered)?.is_empty()?
            }
            Some(EntryKind::Directory) => self.disk.list(&path)?.is_empty(),
            None => {
                return Err(Error::Corrupt { path, rule: "the database is missing".to_owned() });
            }
            Some(found) => return Err(terrane_io::Error::WrongKind { path, found }.into()),
        };
        if is_empty {
            // A back-end would make a new database of it.
            return Err(Error::Corrupt { path, rule: "the database is empty".to_owned() });
        }
        Ok(())
    }
}
