//! What can go wrong between an engine and its disk.
//!
//! Every error names the system call and the path. Errors are cheap to clone, so that a fault met by
//! a shared piece of work can be reported to each of its owners.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

/// The result of a call on a disk.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a disk, grouped by what the caller can do about it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed. Nothing that the call was to make durable may be relied on.
    #[error("{call} failed on {}: {source}", .path.display())]
    Io {
        /// The system call, by its POSIX name.
        call: &'static str,
        /// The file or directory it was applied to.
        path: PathBuf,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// Another handle, in this process or in another one, holds the lock.
    #[error("{} is locked{}", .path.display(), .pid.map(|pid| format!(" by process {pid}")).unwrap_or_default())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that holds the lock, where the system tells.
        pid: Option<u32>,
    },
    /// The file ends before the last byte asked for.
    #[error(
        "{} ends early: {expected} bytes wanted at offset {offset}, {found} found",
        .path.display()
    )]
    ShortRead {
        /// The file.
        path: PathBuf,
        /// Where the read began, in bytes.
        offset: u64,
        /// Bytes asked for.
        expected: usize,
        /// Bytes that were there.
        found: usize,
    },
}

impl Error {
    /// Wraps the system's answer to `call` on `path`.
    #[must_use]
    pub fn io(call: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { call, path: path.to_owned(), source: Arc::new(source) }
    }

    /// The kind of the system's error, if this is one.
    #[must_use]
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }

    /// Whether the file or directory was not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.kind() == Some(io::ErrorKind::NotFound)
    }

    /// Whether this process or the machine has no descriptor left for another file.
    #[must_use]
    pub fn is_too_many_files(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        matches!(Errno::from_io_error(source), Some(Errno::MFILE | Errno::NFILE))
    }

    /// Whether the device, the quota or the reserve is used up.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self.kind(), Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}
