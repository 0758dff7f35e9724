//! Errors of the index, one per reaction of the caller. After an error the index is as it was
//! before the call.

use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::ErrorKind;

use crate::page::corrupt::Corrupt;

/// The result of a call on an index.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of an index, a reader, a cursor or a build.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call on the disk failed. The index is as it was before the call; reads go on.
    #[error(transparent)]
    Disk(#[from] terrane_io::Error),
    /// Stored bytes are damaged. Other keys still work; `terrane verify --repair` rebuilds all that
    /// can be rebuilt.
    #[error("{}: {what}", .path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The place and the rule.
        what: Corrupt,
    },
    /// An earlier sync failed, so the state on disk is unknown. Reads go on; close the index and
    /// open it again.
    #[error("an earlier fsync of {} failed; close the index and open it anew", .path.display())]
    Poisoned {
        /// The file that could not be synced.
        path: PathBuf,
    },
    /// The directory already holds an index.
    #[error("{} holds an index already; open it, or choose an empty directory", .path.display())]
    AlreadyExists {
        /// The directory.
        path: PathBuf,
    },
    /// The index has entries, and the call needs an empty one.
    #[error("{} has entries; clear it first, or build another one", .path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The directory holds no index.
    #[error("{} holds no index; create one first", .path.display())]
    NotFound {
        /// The directory.
        path: PathBuf,
    },
    /// The directory has the WAL of an index, but no tree file. Nothing was changed. A repair can
    /// rebuild all updates that the WAL has.
    #[error(
        "{} holds no `tree` file, but {} is of an index: put the file back, or run `terrane verify --repair --accept-loss {}` \
        to rebuild what the log has",
        .path.display(), .trace.display(), .path.display()
    )]
    TreeMissing {
        /// The directory.
        path: PathBuf,
        /// The file that tells of the index.
        trace: PathBuf,
    },
    /// A foreign file or directory has a name that a new index needs. Nothing was changed.
    #[error("{} does not belong to a B+tree, and is in the way of a new one in {}; choose an empty directory", .found.display(), .path.display())]
    DirectoryInUse {
        /// The directory.
        path: PathBuf,
        /// The file or directory in the way.
        found: PathBuf,
    },
    /// Another handle writes to the index; readers can be opened beside it.
    #[error(
        "{} is being written to by another{}; open it for reading",
        .path.display(),
        .pid.map(|pid| format!(", process {pid}")).unwrap_or_default()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that holds the lock, if the system tells.
        pid: Option<u32>,
    },
    /// The file is not a tree file of Terrane. Nothing was changed in it.
    #[error("{} is not a Terrane B+tree", .path.display())]
    NotAnIndex {
        /// The file.
        path: PathBuf,
    },
    /// The file has a format version that this program does not read. Use the program that wrote
    /// it.
    #[error("{}: format version {found}; this program reads {newest}", .path.display())]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
        /// The version that this program reads and writes.
        newest: u32,
    },
    /// The index has keys or values of another size. Open it with its own sizes.
    #[error("{}: {option} is {stored} there, not {given}", .path.display())]
    ConfigMismatch {
        /// The directory.
        path: PathBuf,
        /// `key_bytes` or `value_bytes`.
        option: &'static str,
        /// The recorded size.
        stored: String,
        /// The size in the configuration.
        given: String,
    },
    /// The handle has been closed.
    #[error("the index is closed")]
    Closed,
    /// The call changes something, and the index is open for reading. Call it in the process that
    /// writes.
    #[error("the index is open for reading only")]
    ReadOnly,
    /// The reader fell so far behind that its pages were reused. Call `sync` and go on.
    #[error(
        "the reader stands at generation {generation}, and the oldest that can be read is {oldest}; call sync"
    )]
    StaleReader {
        /// The generation of the reader.
        generation: u64,
        /// The oldest generation that can be read.
        oldest: u64,
    },
    /// Too many readers have the index open.
    #[error("{} has {limit} readers already; close some of them first", .path.display())]
    TooManyReaders {
        /// The directory.
        path: PathBuf,
        /// The limit.
        limit: u32,
    },
    /// The key has a length that this index does not allow. Nothing was changed.
    #[error("a key of {bytes} bytes; {allowed}")]
    KeySize {
        /// Its length.
        bytes: usize,
        /// The allowed length.
        allowed: String,
    },
    /// The value has a length that this index does not allow. Nothing was changed.
    #[error("a value of {bytes} bytes; {allowed}")]
    ValueSize {
        /// Its length.
        bytes: usize,
        /// The allowed length.
        allowed: String,
    },
    /// The updates of one call take more room than the configuration allows. Nothing was changed.
    #[error(
        "updates of {bytes} bytes in one call; the limit is {limit}: divide them among several"
    )]
    BatchTooLarge {
        /// Bytes of the updates.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The function that a flush calls failed, so nothing was flushed. The updates are still there;
    /// flush again.
    #[error("the flush was refused: {reason}")]
    FlushRefused {
        /// The message of the function.
        reason: String,
    },
    /// The tree file would need more than 2^32 pages.
    #[error("{} is full: a tree has at most 2^32 pages", .path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// Sorted input is not in ascending order of keys. Nothing was built.
    #[error("record {position} of the input is not above the one before it; sort the input first")]
    NotSorted {
        /// Number of the record, counted from 0.
        position: u64,
    },
    /// Two records of the input have the same key, and the options do not allow that. Nothing was
    /// built.
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
        /// Bytes of that record that are there.
        bytes: u64,
    },
    /// The disk cannot hold the files of a sort or a build. Nothing was changed.
    #[error("{} has {free_bytes} bytes free; {needed_bytes} are needed", .path.display())]
    NoSpace {
        /// The directory.
        path: PathBuf,
        /// Free bytes of the disk.
        free_bytes: u64,
        /// Needed bytes.
        needed_bytes: u64,
    },
    /// The disk is full, and the reserve of the index is in use. Nothing was changed. Removals and
    /// compaction go on; insertions go on once the disk has room for the whole reserve again.
    #[error(
        "no space left for {}: its reserve of {reserve_bytes} bytes is in use; remove entries, run `terrane compact --store {}`, \
        or make room on the disk",
        .path.display(), .path.display()
    )]
    OutOfSpace {
        /// The directory.
        path: PathBuf,
        /// Bytes that the disk must have free.
        reserve_bytes: u64,
        /// The error of the disk.
        source: terrane_io::Error,
    },
    /// Reading the input stream failed.
    #[error("reading the input failed: {reason}")]
    Input {
        /// The message of the system.
        reason: String,
        /// The error of the system, if there is one.
        source: Option<Arc<std::io::Error>>,
    },
    /// A record of the input has a key or a value that is too long for any index.
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
        /// The allowed range.
        allowed: &'static str,
    },
}

impl Error {
    /// The kind of the error, whichever call it came from.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Disk(error) => error.kind(),
            Self::Corrupt { .. } | Self::TreeMissing { .. } => ErrorKind::Corrupt,
            Self::Locked { .. } | Self::TooManyReaders { .. } => ErrorKind::Locked,
            Self::NoSpace { .. } | Self::OutOfSpace { .. } => ErrorKind::NoSpace,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::ReadOnly => ErrorKind::ReadOnly,
            Self::UnsupportedVersion { .. } => ErrorKind::Unsupported,
            Self::AlreadyExists { .. } => ErrorKind::AlreadyExists,
            Self::Poisoned { .. } => ErrorKind::Poisoned,
            Self::Closed => ErrorKind::Closed,
            Self::StaleReader { .. } => ErrorKind::Conflict,
            Self::FlushRefused { .. } | Self::Input { .. } => ErrorKind::Io,
            Self::NotEmpty { .. }
            | Self::DirectoryInUse { .. }
            | Self::NotAnIndex { .. }
            | Self::ConfigMismatch { .. }
            | Self::KeySize { .. }
            | Self::ValueSize { .. }
            | Self::BatchTooLarge { .. }
            | Self::Full { .. }
            | Self::NotSorted { .. }
            | Self::DuplicateKey { .. }
            | Self::TruncatedInput { .. }
            | Self::RecordTooLarge { .. }
            | Self::InvalidConfig { .. } => ErrorKind::InvalidInput,
        }
    }

    /// The error of a key that is not above the one before it.
    pub(crate) fn not_ascending(is_equal: bool, position: u64) -> Self {
        if is_equal { Self::DuplicateKey { position } } else { Self::NotSorted { position } }
    }

    /// The error of an input stream. A stream on a disk gives the error of the disk.
    pub(crate) fn input(error: std::io::Error) -> Self {
        match error.downcast::<terrane_io::Error>() {
            Ok(error) => Self::Disk(error),
            Err(error) => Self::Input { reason: error.to_string(), source: Some(Arc::new(error)) },
        }
    }
}

terrane_io::error_kind_questions!(Error);

/// Turns a lack of room into success: then the caller goes on without.
pub(crate) fn unless_no_space(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_no_space() => {
            tracing::warn!(%error, "full_disk.passed_over");
            Ok(())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn io(errno: i32) -> Error {
        let source = std::io::Error::from_raw_os_error(errno);
        terrane_io::Error::io("open", Path::new("/i/tree"), source).into()
    }

    #[test]
    fn what_the_system_refuses_has_a_kind_of_its_own() {
        let (no_entry, eio, eacces, enospc, erofs) = (2, 5, 13, 28, 30);
        let kinds = [no_entry, eio, eacces, enospc, erofs].map(|errno| io(errno).kind().name());
        assert_eq!(kinds, ["not_found", "io", "permission", "no_space", "read_only"]);
        let path = PathBuf::from("/i");
        let missing = Error::TreeMissing { path: path.clone(), trace: path.clone() };
        let errors =
            [missing, Error::NotFound { path: path.clone() }, Error::Locked { path, pid: None }];
        let kinds = errors.map(|error| error.kind().name());
        assert_eq!(kinds, ["corrupt", "not_found", "locked"]);
    }
}
