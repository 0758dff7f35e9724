//! Errors between an engine and its disk.
//!
//! Every error names the system call and the path. Errors are cheap to clone, so that a fault met
//! by a shared piece of work can be reported to each of its owners.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use crate::entry_kind::EntryKind;
use crate::error_kind::ErrorKind;

/// The result of a call on a disk.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a disk, grouped by what the caller can do about it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed. Its effect must not be relied on.
    #[error("{call} failed on {}: {source}", .path.display())]
    Io {
        /// The system call, by its POSIX name.
        call: &'static str,
        /// The file or directory it was applied to.
        path: PathBuf,
        /// The answer of the system.
        source: Arc<io::Error>,
    },
    /// Another handle, in this process or in another one, holds the lock.
    #[error("{} is locked{}", .path.display(), .pid.map(|pid| format!(" by process {pid}")).unwrap_or_default())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that holds the lock, if the system tells.
        pid: Option<u32>,
    },
    /// A symbolic link or a special file stands in the place of a file or directory of a store. It
    /// was neither followed nor opened.
    #[error(
        "{} is a {}: a store has files and directories of its own; put the real one in its place",
        .path.display(), .found.name()
    )]
    WrongKind {
        /// The name.
        path: PathBuf,
        /// Kind of the entry.
        found: EntryKind,
    },
    /// A lock file has several names (hard links), so one of them may belong to another store or to
    /// none. Nothing was written to the file.
    #[error(
        "{} has several names (hard links), and another may not be of this store: put a copy in its place",
        .path.display()
    )]
    SeveralNames {
        /// The name.
        path: PathBuf,
    },
    /// The handle was made by the process that this one was forked off, and stays with it. Nothing
    /// was done.
    #[error(
        "{} was opened before a fork, by the parent of this process: open it anew in the child, once the parent has closed it, or read beside the parent",
        .path.display()
    )]
    Forked {
        /// A file or directory of the store.
        path: PathBuf,
    },
    /// The file ends before the last requested byte.
    #[error(
        "{} ends early: {expected} bytes wanted at offset {offset}, {found} found",
        .path.display()
    )]
    ShortRead {
        /// The file.
        path: PathBuf,
        /// Offset of the read, in bytes.
        offset: u64,
        /// Number of requested bytes.
        expected: usize,
        /// Number of bytes found.
        found: usize,
    },
}

impl Error {
    /// Wraps the answer of the system to `call` on `path`.
    #[must_use]
    pub fn io(call: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { call, path: path.to_owned(), source: Arc::new(source) }
    }

    /// The error of a call for which the disk has no room, for engines that know so before the
    /// call.
    #[must_use]
    pub fn no_space(call: &'static str, path: &Path) -> Self {
        Self::io(call, path, Errno::NOSPC.into())
    }

    /// The error of a call that would change a medium that is only read, for disks that are such a
    /// medium.
    #[must_use]
    pub fn read_only(call: &'static str, path: &Path) -> Self {
        Self::io(call, path, Errno::ROFS.into())
    }

    pub(crate) fn wrong_kind(path: &Path, found: EntryKind) -> Self {
        Self::WrongKind { path: path.to_owned(), found }
    }

    /// The error number of the system, if this is an error of the system.
    fn errno(&self) -> Option<Errno> {
        match self {
            Self::Io { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }

    /// The kind of the system's error, if this is one.
    #[must_use]
    pub fn system_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }

    /// Reaction of a caller to the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        // Read-only media and missing rights are told apart before the kinds of the system.
        match self {
            Self::Locked { .. } => ErrorKind::Locked,
            Self::Forked { .. } => ErrorKind::Closed,
            Self::ShortRead { .. } | Self::WrongKind { .. } | Self::SeveralNames { .. } => {
                ErrorKind::Corrupt
            }
            Self::Io { .. } if self.is_read_only() => ErrorKind::ReadOnly,
            Self::Io { .. } if self.is_permission() => ErrorKind::Permission,
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
                io::ErrorKind::Unsupported => ErrorKind::Unsupported,
                _ => ErrorKind::Io,
            },
        }
    }

    /// Whether a part of the path is not a directory.
    #[must_use]
    pub fn is_not_a_directory(&self) -> bool {
        self.errno() == Some(Errno::NOTDIR)
    }

    /// Whether this process or the machine has no file descriptor left.
    #[must_use]
    pub fn is_too_many_files(&self) -> bool {
        // Either the process or the whole system has too many files open.
        matches!(self.errno(), Some(Errno::MFILE | Errno::NFILE))
    }

    /// Whether this user lacks the permission.
    #[must_use]
    pub fn is_permission(&self) -> bool {
        matches!(self.errno(), Some(Errno::ACCESS | Errno::PERM))
    }

    /// Whether the file system is mounted read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.errno() == Some(Errno::ROFS)
    }

    /// Whether this process can write nothing there, although it may be able to read: the file
    /// system is read-only or full, or belongs to another user.
    #[must_use]
    pub fn cannot_write(&self) -> bool {
        self.is_read_only() || self.is_permission() || self.is_no_space()
    }

    /// Whether the medium or the system refused to give bytes that should exist. An unreadable copy
    /// counts as a damaged one.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::ShortRead { .. } | Self::WrongKind { .. })
            || self.is_permission()
            || self.errno() == Some(Errno::IO)
    }
}

crate::error_kind_questions!(Error);
