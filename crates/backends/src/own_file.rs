//! Files of back-ends that open them by name themselves: LMDB and SQLite.
//!
//! Both libraries lock a file by a second file whose name follows from the first. A file with two
//! names would have two locks, and two writers at once. Opening a database therefore resolves the
//! path once, and refuses a file that is a symbolic link, has a second name (a hard link), or is no
//! regular file.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use terrane_kv::{Error, Result};

/// A back-end, and how its errors name it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnFiles(pub(crate) &'static str);

impl OwnFiles {
    fn failed(self, call: &'static str, path: &Path, error: &io::Error) -> Error {
        let source = io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        Error::BackEnd { back_end: self.0, call, source: source.into() }
    }

    fn refused(self, path: &Path, why: &str) -> Error {
        let why = format!("{} {why}", path.display());
        Error::Unsupported { back_end: self.0, option: "path".to_owned(), why }
    }

    /// The absolute path of a file, without links. The file may be missing.
    ///
    /// # Errors
    /// Those of the system, also if the directory is missing.
    pub(crate) fn canonical(self, path: &Path) -> Result<PathBuf> {
        match path.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            resolved => return resolved.map_err(|error| self.failed("open", path, &error)),
        }
        // A file that is yet to be made has no canonical path, but its directory has one.
        let dir = match path.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        };
        let dir = dir.canonicalize().map_err(|error| self.failed("open", dir, &error))?;
        Ok(path.file_name().map_or_else(|| dir.clone(), |name| dir.join(name)))
    }

    /// Checks that a file, if it exists, is a regular file with one name. Returns whether it
    /// exists.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is something else; those of the system.
    pub(crate) fn check(self, path: &Path) -> Result<bool> {
        // A link must be seen as a link, not as the file behind it.
        let metadata = match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            metadata => metadata.map_err(|error| self.failed("stat", path, &error))?,
        };

        if metadata.is_symlink() {
            return Err(self.refused(path, "is a symbolic link: put the file itself in its place"));
        }
        if !metadata.is_file() {
            return Err(self.refused(path, "is not a regular file"));
        }

        if metadata.nlink() > 1 {
            let why = "has several names (hard links), of which each would have a lock of its own: make a copy of \
                       its own, as by `cp`, and remove the other name";
            return Err(self.refused(path, why));
        }

        Ok(true)
    }

    /// Whether this process may write a file or directory; `false` if there is none.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn can_write(self, path: &Path) -> Result<bool> {
        // The system is asked, since modes alone do not tell.
        match access(path, Access::WRITE_OK) {
            Ok(()) => Ok(true),
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.failed("access", path, &errno.into())),
        }
    }
}

/// A path with something added to its last name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
