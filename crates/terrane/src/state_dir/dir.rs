//! Directory of a radix store, anchored: no call on a name in it follows a symbolic link, or waits
//! for a FIFO.
//!
//! Back-ends that take a path open the database by themselves. [`StateDir::check_database`]
//! therefore looks at the kind of the database before a back-end opens it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access as Right, access};
use rustix::io::Errno;
use terrane_io::{Access, Disk, LockGuard, OpenMode, RealDisk};
use terrane_io::{Anchor, EntryKind};

use super::error::{Error, Result};

/// Bytes of a marker at most.
pub const MARKER_BYTES_MAX: u64 = 65_536;

/// Name of the marker.
pub(super) const MARKER: &str = "radix-store";
/// Name of the marker while the store is being created.
pub(super) const MARKER_NEW: &str = "radix-store.new";
/// Name of the lock.
pub(super) const LOCK: &str = "radix-store.lock";
/// Name of the database, and beginning of the names of the files beside the database.
pub(super) const DATABASE: &str = "database";

/// Anchored directory of a radix store; see the [module](self).
#[derive(Debug)]
pub(super) struct StateDir {
    disk: Arc<dyn Disk>,
    /// Absolute path.
    dir: PathBuf,
    _anchor: Box<dyn Anchor>,
}

impl StateDir {
    /// Anchors a directory; `None` if there is no such directory.
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

    /// Anchors a directory that must exist.
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

    /// Returns the kind of a name; `None` if nothing has the name. If the system cannot tell, that
    /// is an error, and the name does not count as missing.
    pub(super) fn kind(&self, name: &str) -> Result<Option<EntryKind>> {
        Ok(self.disk.kind(&self.path(name))?)
    }

    pub(super) fn has(&self, name: &str) -> Result<bool> {
        Ok(self.kind(name)?.is_some())
    }

    /// Returns the bytes of a marker; `None` if there is no marker.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the marker has more than [`MARKER_BYTES_MAX`]; those of the system.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        let file = match self.disk.open(&path, OpenMode::Read, Access::Buffered) {
            Err(error) if error.is_not_found() => return Ok(None),
            file => file?,
        };

        // The bound stands before the allocation: a damaged directory may name a file of any
        // length.
        let length = file.len()?;
        if length > MARKER_BYTES_MAX {
            let rule = format!("the marker has more than {MARKER_BYTES_MAX} bytes");
            return Err(Error::Corrupt { path, rule });
        }

        let mut bytes = vec![0; length as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(Some(bytes))
    }

    /// Writes a new file with these bytes and syncs the file. An older file of that name is removed
    /// first. The name is durable after [`sync`](Self::sync).
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.remove(name)?;
        let file = self.disk.open(&self.path(name), OpenMode::CreateNew, Access::Buffered)?;
        file.write_at(bytes, 0)?;
        Ok(file.sync()?)
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(self.disk.rename(&self.path(from), &self.path(to))?)
    }

    /// Removes a name, if it exists. Of a symbolic link, the link goes and its target stays.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        match self.disk.remove(&self.path(name)) {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Removes a name, and everything below the name.
    pub(super) fn remove_all(&self, path: &Path, kind: EntryKind) -> Result<()> {
        if kind != EntryKind::Directory {
            return Ok(self.disk.remove(path)?);
        }
        for entry in self.disk.list(path)? {
            self.remove_all(&path.join(entry.name), entry.kind)?;
        }
        Ok(self.disk.remove_dir(path)?)
    }

    /// Lists the names in the directory with their kinds.
    pub(super) fn entries(&self) -> Result<Vec<(String, EntryKind)>> {
        let entries = self.disk.list(&self.dir)?;
        Ok(entries.into_iter().map(|entry| (entry.name, entry.kind)).collect())
    }

    pub(super) fn sync(&self) -> Result<()> {
        Ok(self.disk.sync_dir(&self.dir)?)
    }

    /// Takes the exclusive lock of the store, which the guard holds.
    pub(super) fn lock(&self) -> Result<Box<dyn LockGuard>> {
        self.disk.lock(&self.path(LOCK)).map_err(|error| self.locked(error))
    }

    /// Takes the lock shared, as readers do on media that they cannot write; `None` if no writer
    /// has ever created the lock.
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

    /// Whether this process may write the database, and new files beside the database.
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

    /// Refuses a database that is missing or empty, and one that is neither a file nor a directory.
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
            // A back-end would create a new database here, and hide the loss.
            return Err(Error::Corrupt { path, rule: "the database is empty".to_owned() });
        }

        Ok(())
    }
}
