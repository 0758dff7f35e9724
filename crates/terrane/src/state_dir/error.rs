//! Errors of radix stores in directories.

use std::io;
use std::path::{Path, PathBuf};

use terrane_io::{self as disk, ErrorKind};
use terrane_kv as kv;
use terrane_radix as radix;

use crate::back_end::{BackEnd, OpenError};

/// Reason why a radix store of a directory cannot be opened, or its marker not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The back-end refuses or fails to open the database.
    #[error(transparent)]
    Database(Box<kv::Error>),
    /// The radix store in the database refuses to open, or one of its calls failed.
    #[error(transparent)]
    Store(Box<radix::Error>),
    /// This build lacks the back-end.
    #[error("this program was built without {back_end}; build it with `--features {back_end}`")]
    NotBuilt {
        /// The back-end.
        back_end: BackEnd,
    },
    /// The disk refuses a call, or a link or a special file stands where a file of the store
    /// belongs.
    #[error(transparent)]
    Disk(Box<disk::Error>),
    /// The system refuses a file or a directory.
    #[error("{}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Answer of the system.
        source: io::Error,
    },
    /// The directory holds something else, which is left as it is.
    #[error("{} is not a radix store of Terrane: it has {name:?}", .dir.display())]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// Name of an entry that no radix store has.
        name: String,
    },
    /// The directory is missing, or holds no radix store.
    #[error("{} is not a radix store of Terrane", .dir.display())]
    Absent {
        /// The directory.
        dir: PathBuf,
    },
    /// Creation of the store was interrupted. The directory holds no data yet.
    #[error(
        "creation of the radix store {}{} was interrupted; it is empty. Repeat the command that created it, or delete the directory",
        .dir.display(),
        .back_end.map(|back_end| format!(" (back-end {back_end})")).unwrap_or_default()
    )]
    Unfinished {
        /// The directory.
        dir: PathBuf,
        /// Back-end of the interrupted creation, if its marker is whole.
        back_end: Option<BackEnd>,
    },
    /// Another process, or another handle of this process, has the store open.
    #[error(
        "{} is in use{}; try again when it has been closed",
        .dir.display(),
        .pid.map(|pid| format!(" by process {pid}")).unwrap_or_default()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Number of that process, if the lock file says it.
        pid: Option<u32>,
    },
    /// The marker is damaged, or the database that it names is missing.
    #[error("{}: {rule}", .path.display())]
    Corrupt {
        /// The marker, or the database.
        path: PathBuf,
        /// The rule that is broken.
        rule: String,
    },
    /// The request does not fit the store, or contradicts itself.
    #[error("{0}")]
    Refused(String),
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl From<kv::Error> for Error {
    fn from(error: kv::Error) -> Self {
        Self::Database(Box::new(error))
    }
}

impl From<disk::Error> for Error {
    fn from(error: disk::Error) -> Self {
        Self::Disk(Box::new(error))
    }
}

impl From<radix::Error> for Error {
    fn from(error: radix::Error) -> Self {
        Self::Store(Box::new(error))
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Database(error) => error.into(),
            OpenError::NotBuilt(back_end) => Self::NotBuilt { back_end },
            OpenError::Io { path, source } => Self::Io { path, source },
            OpenError::Refused(why) => Self::Refused(why),
        }
    }
}

impl Error {
    /// Returns why the back-end cannot do what was asked, if that is the error.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let error = match self {
            Self::Database(error) => error.as_ref(),
            Self::Store(error) => match error.as_ref() {
                radix::Error::Unsupported(error) => error,
                _ => return None,
            },
            Self::NotBuilt { .. } => return Some(self.to_string()),
            _ => return None,
        };

        match error {
            kv::Error::Unsupported { why, .. } => Some(why.clone()),
            _ => None,
        }
    }

    /// Whether another process or handle has the store.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        match self {
            Self::Database(error) => {
                matches!(**error, kv::Error::Locked { .. } | kv::Error::Busy { .. })
            }
            Self::Store(error) => matches!(**error, radix::Error::Busy(_)),
            Self::Locked { .. } => true,
            _ => false,
        }
    }

    /// Returns what a caller can do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Database(error) => error.kind(),
            Self::Store(error) => error.kind(),
            Self::NotBuilt { .. } => ErrorKind::Unsupported,
            Self::Absent { .. } => ErrorKind::NotFound,
            Self::Foreign { .. } | Self::Unfinished { .. } | Self::Refused(_) => {
                ErrorKind::InvalidInput
            }
            Self::Disk(error) => error.kind(),
            Self::Io { path, source } => {
                let source = io::Error::from(source.kind());
                disk::Error::io("open", path, source).kind()
            }
            Self::Locked { .. } => ErrorKind::Locked,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
        }
    }

    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

terrane_io::error_kind_questions!(Error);
