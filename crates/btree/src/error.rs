//! Errors of the index, grouped by what the caller does next. After an error the index is as it was before the call.

use std::path::PathBuf;

use crate::corrupt::Corrupt;

/// The result of a call on an index.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of an index, a reader, a cursor or a build.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call on the disk failed. The index is as it was before the call; reads go on.
    #[error(transparent)]
    Disk(#[from] terrane_io::Error),
    /// Bytes read back are not bytes that this program wrote. Other keys still work; `terrane verify --repair`
    /// rebuilds what can be rebuilt.
    #[error("{}: {what}", .path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The place and the rule.
        what: Corrupt,
    },
    /// Sorted input is not in ascending order of keys. Nothing was built.
    #[error("record {position} of the input is not above the one before it; sort the input first")]
    NotSorted {
        /// Number of the record, counted from 0.
        position: u64,
    },
    /// Two records of the input have one key, and that was ruled out. Nothing was built.
    #[error(
        "record {position} of the input has the key of another; remove duplicates or let the last one win"
    )]
    DuplicateKey {
        /// Number of the later record, counted from 0 in the order of the input.
        position: u64,
    },
    /// The input ends in the middle of a record.
    #[error("the input ends inside record {position}: {bytes} bytes are left of it")]
    TruncatedInput {
        /// Number of the record, counted from 0.
        position: u64,
        /// Bytes that are there.
        bytes: u64,
    },
    /// The disk cannot hold what a sort or a build needs. Nothing was changed.
    #[error("{} has {free_bytes} bytes free; {needed_bytes} are needed", .path.display())]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// What is free.
        free_bytes: u64,
        /// What is needed.
        needed_bytes: u64,
    },
    /// Reading an input stream failed.
    #[error("reading the input failed: {reason}")]
    Input {
        /// What the system says.
        reason: String,
    },
    /// A record of the input has a key or a value that no index takes.
    #[error(
        "record {position} of the input is too large: {key_bytes} bytes of key, {value_bytes} of value"
    )]
    RecordTooLarge {
        /// Number of the record, counted from 0.
        position: u64,
        /// Bytes of its key.
        key_bytes: usize,
        /// Bytes of its value.
        value_bytes: usize,
    },
    /// An option is out of its range.
    #[error("{option} is {value}; {allowed}")]
    InvalidConfig {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

impl Error {
    /// What reading an input stream gave. A stream on a disk gives the error of the disk.
    pub(crate) fn input(error: std::io::Error) -> Self {
        match error.downcast::<terrane_io::Error>() {
            Ok(error) => Self::Disk(error),
            Err(error) => Self::Input { reason: error.to_string() },
        }
    }
}
