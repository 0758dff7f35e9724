//! Errors of the index, grouped by what the caller does next. After an error the index is as it was before the call.

use std::path::PathBuf;

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
    /// Bytes read back are not bytes that this program wrote. Other keys still work; `terrane verify --repair`
    /// rebuilds what can be rebuilt.
    #[error("{}: {what}", .path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The place and the rule.
        what: Corrupt,
    },
    /// An earlier sync failed, so what is on disk is unknown. Reads go on; close the index and open it anew.
    #[error("an earlier fsync of {} failed; close the index and open it anew", .path.display())]
    Poisoned {
        /// What was to be synced.
        path: PathBuf,
    },
    /// The directory holds an index already.
    #[error("{} holds an index already; open it, or choose an empty directory", .path.display())]
    AlreadyExists {
        /// The directory.
        path: PathBuf,
    },
    /// The index has entries, and the call is for one without.
    #[error("{} has entries; clear it first, or build another one", .path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// There is no index.
    #[error("{} holds no index; create one first", .path.display())]
    NotFound {
        /// The directory.
        path: PathBuf,
    },
    /// A directory has the log of an index, but the tree file is missing. Nothing was changed. A repair can rebuild what
    /// the log has.
    #[error(
        "{} holds no `tree` file, but {} is of an index: put the file back, or run `terrane verify --repair --accept-loss {}` \
        to rebuild what the log has",
        .path.display(), .trace.display(), .path.display()
    )]
    TreeMissing {
        /// The directory.
        path: PathBuf,
        /// What tells of the index.
        trace: PathBuf,
    },
    /// Something that is not of an index has a name that a new index needs. Nothing was changed.
    #[error("{} is not of a B+tree, and in the way of a new one in {}; choose an empty directory", .found.display(), .path.display())]
    DirectoryInUse {
        /// The directory.
        path: PathBuf,
        /// What is in the way.
        found: PathBuf,
    },
    /// Another handle writes to the index; a reader can be opened beside it.
    #[error(
        "{} is being written to by another{}; open it for reading",
        .path.display(),
        .pid.map(|pid| format!(", process {pid}")).unwrap_or_default()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, where the system tells.
        pid: Option<u32>,
    },
    /// A file is none of ours. Nothing was changed in it.
    #[error("{} is no B+tree of Terrane", .path.display())]
    NotAnIndex {
        /// The file.
        path: PathBuf,
    },
    /// A file is of a format version that this program does not read. Use the program that wrote it.
    #[error("{}: format version {found}; this program reads {newest}", .path.display())]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
        /// The version that this program reads and writes.
        newest: u32,
    },
    /// The index has keys or values of another size. Open it with its own.
    #[error("{}: {option} is {stored} there, not {given}", .path.display())]
    ConfigMismatch {
        /// The directory.
        path: PathBuf,
        /// `key_bytes` or `value_bytes`.
        option: &'static str,
        /// What is recorded.
        stored: String,
        /// What was asked for.
        given: String,
    },
    /// The handle was closed before.
    #[error("the index is closed")]
    Closed,
    /// A call that changes something, on a reader. The process that writes can do it.
    #[error("the index is open for reading only")]
    ReadOnly,
    /// A reader stayed behind for so long that its pages were written again. Call `sync` and go on.
    #[error(
        "the reader stands at generation {generation}, and the oldest that can be read is {oldest}; call sync"
    )]
    StaleReader {
        /// What the reader had.
        generation: u64,
        /// What there is.
        oldest: u64,
    },
    /// So many readers have the index open already.
    #[error("{} has {limit} readers already; close some of them first", .path.display())]
    TooManyReaders {
        /// The directory.
        path: PathBuf,
        /// The limit.
        limit: u32,
    },
    /// A key has not the size that it must have. Nothing was changed.
    #[error("a key of {bytes} bytes; {allowed}")]
    KeySize {
        /// Its length.
        bytes: usize,
        /// What is allowed.
        allowed: String,
    },
    /// A value has not the size that it must have. Nothing was changed.
    #[error("a value of {bytes} bytes; {allowed}")]
    ValueSize {
        /// Its length.
        bytes: usize,
        /// What is allowed.
        allowed: String,
    },
    /// The updates of one call take more than the configuration allows. Nothing was changed.
    #[error(
        "updates of {bytes} bytes in one call; the limit is {limit}: divide them among several"
    )]
    BatchTooLarge {
        /// What they take.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The function to be called before a flush failed, so nothing was flushed. The updates are still there; flush again.
    #[error("the flush was refused: {reason}")]
    FlushRefused {
        /// What the function said.
        reason: String,
    },
    /// The file would need more than 2^32 pages.
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
    /// The disk is full, and the reserve of the index is in use. Nothing was changed. Removals and compaction go on; insertions
    /// do once the disk has room for the reserve again.
    #[error(
        "no space left for {}: its reserve of {reserve_bytes} bytes is in use; remove entries, run `terrane compact --store {}`, \
        or make room on the disk",
        .path.display(), .path.display()
    )]
    OutOfSpace {
        /// The directory.
        path: PathBuf,
        /// What the disk must have free.
        reserve_bytes: u64,
        /// The error of the disk that this is.
        source: terrane_io::Error,
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
    /// What the error means, whichever call it came from.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Disk(error) => error.error_kind(),
            Self::Corrupt { .. } | Self::TreeMissing { .. } => ErrorKind::Corrupt,
            Self::Locked { .. } | Self::TooManyReaders { .. } => ErrorKind::Locked,
            Self::NoSpace { .. } | Self::OutOfSpace { .. } => ErrorKind::NoSpace,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::ReadOnly => ErrorKind::ReadOnly,
            Self::UnsupportedVersion { .. } => ErrorKind::Unsupported,
            Self::Poisoned { .. }
            | Self::Closed
            | Self::StaleReader { .. }
            | Self::FlushRefused { .. }
            | Self::Input { .. } => ErrorKind::Environment,
            Self::AlreadyExists { .. }
            | Self::NotEmpty { .. }
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
            | Self::InvalidConfig { .. } => ErrorKind::BadInput,
        }
    }

    /// Whether the disk has no room.
    pub(crate) fn is_no_space(&self) -> bool {
        self.kind() == ErrorKind::NoSpace
    }

    /// What reading an input stream gave. A stream on a disk gives the error of the disk.
    pub(crate) fn input(error: std::io::Error) -> Self {
        match error.downcast::<terrane_io::Error>() {
            Ok(error) => Self::Disk(error),
            Err(error) => Self::Input { reason: error.to_string() },
        }
    }
}

/// The same result, unless the disk has no room: then the caller goes on without.
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
        assert_eq!(kinds, ["not_found", "environment", "permission", "no_space", "read_only"]);
        let path = PathBuf::from("/i");
        let missing = Error::TreeMissing { path: path.clone(), trace: path.clone() };
        let errors =
            [missing, Error::NotFound { path: path.clone() }, Error::Locked { path, pid: None }];
        let kinds = errors.map(|error| error.kind().name());
        assert_eq!(kinds, ["corrupt", "not_found", "locked"]);
    }
}
