//! Errors of the table engine, grouped by what the caller does next.
//!
//! A call that fails returns its error and has changed nothing. A failure that no call can return
//! (a file that could not be removed when its last user was dropped) becomes the event
//! `cleanup.failed`, and closing the session returns it. If cleaning up after an error fails too,
//! the caller gets the first error and the event has the second.
//!
//! Errors of the Haskell library `lsm-tree`, and their counterparts here:
//!
//! | there | here |
//! |---|---|
//! | `SessionDirDoesNotExist`, `SessionDirLocked`, `SessionDirCorrupted`, `SessionClosed` | the same |
//! | `TableClosed`, `CursorClosed` | ruled out by the type system: a handle is closed by dropping it |
//! | `TableCorrupted` | [`Error::Corrupt`], also for a file that ends early; [`Error::FileMissing`] |
//! | `TableTooLarge` | the same |
//! | `TableUnionNotCompatible` | the same, also for another merge operator; [`Error::UnionOfNothing`], [`Error::UnionTooDeep`], [`Error::UnionTooLarge`] |
//! | `SnapshotExists`, `SnapshotDoesNotExist`, `SnapshotCorrupted` | the same; [`Error::SnapshotTooLarge`] |
//! | `SnapshotNotCompatible` | the same for labels, [`Error::MergeOperatorMismatch`] for functions; another salt is no error, filters are made anew |
//! | `SnapshotExportDirExists`, `SnapshotImportDirDoesNotExist` | the same |
//! | `InvalidSnapshotName` | the same; [`Error::InvalidMergeOperatorName`] |
//! | `BlobRefInvalid` | the same |
//! | `KeyTooLarge`, `ValueTooLarge`, `BlobTooLarge` | the same; [`Error::UpsertTooLarge`], [`Error::LabelTooLarge`] |
//! | `InvalidConfig` | the same, with the option, the value and what is allowed |
//! | a full disk | [`Error::Disk`]; where the session has a reserve [`Error::OutOfSpace`] for insertions, while deletions go on |
//! | an I/O error | [`Error::Disk`], with operation, file and the system's error; after a failed sync [`Error::Poisoned`] |
//!
//! [`Error::NotTerrane`] and [`Error::UnknownVersion`] are for files of others and of programs with
//! another format (of canonical exports: [`Error::CanonicalMalformed`]); [`Error::Stream`],
//! [`Error::CanonicalMalformed`] and [`Error::CanonicalDigestMismatch`] for canonical exports.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::ErrorKind;

use crate::conflict::{Conflict, key_text};
use crate::corrupt::Corrupt;

/// The result of a call on the table engine.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a session, a table, a cursor or a snapshot.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call on the disk failed. The table is as it was before the call; reads go on.
    #[error(transparent)]
    Disk(terrane_io::Error),
    /// Stored bytes are damaged: this program did not write them so. Restore from a snapshot or a
    /// copy.
    #[error("{}: {what}", .path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The place and the rule.
        what: Corrupt,
    },
    /// A file that the store needs is missing. Restore it from a copy; `terrane verify` lists its
    /// users.
    #[error("{}: the file is missing", .path.display())]
    FileMissing {
        /// Where it was.
        path: PathBuf,
    },
    /// The path is not a Terrane file or directory. The call changed nothing in it.
    #[error("{} is not a Terrane file or directory: expected {expected}, found {found}", .path.display())]
    NotTerrane {
        /// The file or directory.
        path: PathBuf,
        /// Kind of file that was expected.
        expected: &'static str,
        /// Bytes that were found instead.
        found: String,
    },
    /// A file is of a format version that this program does not read. Use the program that wrote
    /// it.
    #[error("{}: format version {found}; this program reads {newest}", .path.display())]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
        /// The version that this program reads and writes.
        newest: u32,
    },
    /// An earlier sync failed, so the durable content is unknown. Reads go on. Close the session
    /// and open it again, which goes back to the newest snapshots.
    #[error("an earlier fsync of {} failed; close the session and open it again", .path.display())]
    Poisoned {
        /// File or directory that was to be synced.
        path: PathBuf,
    },
    /// A commit panicked, as a merge operator may, and left a part of itself in memory, which no
    /// call reads or makes durable. Close the store and open it again: it has the commits before.
    #[error(
        "a commit to {} panicked, perhaps in a merge operator; close the store and open it again",
        .dir.display()
    )]
    Panicked {
        /// The directory of the session.
        dir: PathBuf,
    },
    /// The disk is full, and the session keeps the rest of its reserve for calls that free space.
    /// The call changed nothing. Delete entries, tables or snapshots, or free space on the disk
    /// otherwise, and call again: once the whole reserve can be allocated the session goes on.
    #[error(
        "no space left for {}: its reserve of {reserve_bytes} bytes is in use, and only calls that free space go on; \
         delete entries, drop tables, delete snapshots or compact until {reserve_bytes} bytes are free, or open it \
         with a reserve of 0",
        .path.display()
    )]
    OutOfSpace {
        /// The directory of the session.
        path: PathBuf,
        /// Bytes of its reserve, which must be free.
        reserve_bytes: u64,
    },
    /// The disk has no room for the reserve that the caller asked for. The call changed nothing.
    #[error(
        "no room for a reserve of {bytes} bytes in {}: {free} bytes are free; ask for less, or for 0",
        .path.display()
    )]
    ReserveTooLarge {
        /// The directory of the session.
        path: PathBuf,
        /// Bytes of the reserve.
        bytes: u64,
        /// Bytes that are free, those of the present reserve included.
        free: u64,
    },
    /// The directory to open a session in is missing.
    #[error("{} does not exist; create the directory first", .path.display())]
    SessionDirDoesNotExist {
        /// The directory.
        path: PathBuf,
    },
    /// Another handle holds the session.
    #[error("{} is in use{}", .path.display(), .pid.map(|pid| format!(" by process {pid}")).unwrap_or_default())]
    SessionDirLocked {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, where the system tells.
        pid: Option<u32>,
    },
    /// The directory is not a session, or lacks a part of one. Nothing was changed in it.
    #[error("{} is not a usable session directory: {reason}", .path.display())]
    SessionDirCorrupted {
        /// The directory.
        path: PathBuf,
        /// Name of the missing or unexpected part.
        reason: String,
    },
    /// The session was closed before.
    #[error("the session is closed")]
    SessionClosed,
    /// A store that was opened for reading only. The process that holds it can change it; if there
    /// is none, open it as a [`Store`](crate::Store).
    #[error("{} is open for reading only", .path.display())]
    ReadOnly {
        /// The directory.
        path: PathBuf,
    },
    /// The directory to back up to holds something else than a backup of this store. Nothing was
    /// changed in it.
    #[error("{} is not a backup of this store: {reason}; choose an empty directory", .path.display())]
    NotABackup {
        /// The directory.
        path: PathBuf,
        /// Description of what is there instead.
        reason: String,
    },
    /// The directory holds something else than a follower of this store, or one that was changed.
    /// Nothing was changed in it.
    #[error("{} does not follow this store: {reason}; choose an empty directory", .path.display())]
    NotAFollower {
        /// The directory.
        path: PathBuf,
        /// Description of what is there instead.
        reason: String,
    },
    /// The store has its maximum of readers already.
    #[error("{} has {limit} readers already; close some of them first", .path.display())]
    TooManyReaders {
        /// The directory.
        path: PathBuf,
        /// The limit.
        limit: u32,
    },
    /// A key is longer than [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX). Nothing was changed.
    #[error("a key of {bytes} bytes; the limit is {limit}")]
    KeyTooLarge {
        /// Length of the key.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A value is longer than [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX). Nothing was changed.
    #[error("a value of {bytes} bytes; the limit is {limit}")]
    ValueTooLarge {
        /// Length of the value.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// An upsert makes a value longer than [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX) of what its
    /// key has. Nothing was changed.
    ///
    /// Reading a key gives this error, too, if upserts made such a value where no call could refuse
    /// them: by a merge operator that makes more than it is given, or in a union. Insert or delete
    /// the key then.
    #[error(
        "an upsert of {operand_bytes} bytes makes {bytes} of the {stored_bytes} that key {} has; \
         the limit is {limit}: delete or replace the value",
        key_text(key)
    )]
    UpsertTooLarge {
        /// The key.
        key: Vec<u8>,
        /// Length of the value that the key has.
        stored_bytes: usize,
        /// Length of the value of the upsert.
        operand_bytes: usize,
        /// Length of what the merge operator makes of both.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A blob is longer than [`BLOB_BYTES_MAX`](crate::BLOB_BYTES_MAX). Nothing was changed.
    #[error("a blob of {bytes} bytes; the limit is {limit}")]
    BlobTooLarge {
        /// Length of the blob.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The blob that a reference points to is gone: its table was updated or dropped. Look the key
    /// up again.
    #[error("blob reference {index} is not valid any more; look its key up again")]
    BlobRefInvalid {
        /// Index of the first such reference.
        index: usize,
    },
    /// A text is not the name of a merge operator of one's own.
    #[error("`{text}` cannot name a merge operator: 1 to 64 bytes, not beginning with `terrane.`")]
    InvalidMergeOperatorName {
        /// The text.
        text: String,
    },
    /// The table of a snapshot, or a named table, has another merge operator than the one given.
    /// Open it with the one named.
    #[error("`{name}` needs the merge operator `{stored}`, {}", match .given {
        Some(given) => format!("not `{given}`"),
        None => "which is not ready-made and must be given".to_owned(),
    })]
    MergeOperatorMismatch {
        /// The name of the snapshot or table.
        name: String,
        /// Name of the function stored.
        stored: String,
        /// Name of the function given, if one was.
        given: Option<String>,
    },
    /// The tables of a union do not belong together.
    #[error("tables {left} and {right} of the union differ: {reason}")]
    TableUnionNotCompatible {
        /// Position of one of them.
        left: usize,
        /// Position of the other one.
        right: usize,
        /// In what they differ: session, merge operator.
        reason: String,
    },
    /// A union of unions of unions, too many times. Pay the debt of the inner ones first.
    #[error("more than {limit} unions inside each other; pay the debt of the inner ones first")]
    UnionTooDeep {
        /// The limit.
        limit: usize,
    },
    /// A union of more runs than a snapshot can name; a run that several of the tables have counts
    /// as often. Pay the debt of inner unions first, or unite fewer tables at a time.
    #[error(
        "a union of {runs} runs, the limit is {limit}; unite fewer tables, or pay the debt of inner unions"
    )]
    UnionTooLarge {
        /// Runs of all tables together.
        runs: usize,
        /// The limit.
        limit: usize,
    },
    /// A union of no tables at all.
    #[error("a union needs at least one table")]
    UnionOfNothing,
    /// Two tables to be compared are not of one session. Export one of them to the other's session.
    #[error("the tables to compare are of different sessions")]
    TablesOfDifferentSessions,
    /// The metadata of a snapshot would be longer than what is read. Pay the debt of the table's
    /// union first.
    #[error(
        "a snapshot with {bytes} bytes of metadata, the limit is {limit}; pay the debt of the union"
    )]
    SnapshotTooLarge {
        /// Length of the metadata.
        bytes: usize,
        /// The limit.
        limit: u64,
    },
    /// A label is longer than [`LABEL_BYTES_MAX`](crate::LABEL_BYTES_MAX). Nothing was changed.
    #[error("a label of {bytes} bytes; the limit is {limit}")]
    LabelTooLarge {
        /// Length of the label.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A run would need more pages than its format can number. Nothing was changed.
    #[error("the table would hold a run of more than {limit} pages")]
    TableTooLarge {
        /// The limit.
        limit: u64,
    },
    /// An option is out of its range, or contradicts another one.
    #[error("option {option} is {value}; allowed: {allowed}")]
    InvalidConfig {
        /// The option, by its field name.
        option: &'static str,
        /// Value that was given.
        value: String,
        /// Values that are allowed.
        allowed: String,
    },
    /// A text is not a snapshot name.
    #[error(
        "`{text}` is not a snapshot name: 1 to 64 characters of a-z, 0-9, `_`, `-`, no device name"
    )]
    InvalidSnapshotName {
        /// The text.
        text: String,
    },
    /// The name is taken.
    #[error("snapshot `{name}` exists already")]
    SnapshotExists {
        /// The name.
        name: String,
    },
    /// There is no snapshot of that name.
    #[error("snapshot `{name}` does not exist")]
    SnapshotDoesNotExist {
        /// The name.
        name: String,
    },
    /// A file of the snapshot is damaged or missing. Other snapshots are not affected; this one can
    /// be deleted, and `terrane verify` says what is wrong.
    #[error("snapshot `{name}` is damaged: {}: {reason}", .path.display())]
    SnapshotCorrupted {
        /// The name.
        name: String,
        /// The file.
        path: PathBuf,
        /// Rule that is broken.
        reason: String,
    },
    /// The snapshot was saved under another label.
    #[error("snapshot `{name}` has the label `{actual}`, not `{expected}`")]
    SnapshotNotCompatible {
        /// The name.
        name: String,
        /// The label asked for.
        expected: String,
        /// The label stored.
        actual: String,
    },
    /// The directory to export to is there and is something else. Nothing was changed in it.
    #[error("{} exists and is not a store; export to a new directory, an empty directory, or a store", .path.display())]
    SnapshotExportDirExists {
        /// The directory to export to.
        path: PathBuf,
    },
    /// The directory to import from is missing.
    #[error("{} does not exist, so there is nothing to import", .path.display())]
    SnapshotImportDirDoesNotExist {
        /// The directory to import from.
        path: PathBuf,
    },
    /// A text is not the name of a table.
    #[error(
        "`{text}` is not a table name: 1 to 64 characters of a-z, 0-9, `_`, `-`, no device name"
    )]
    InvalidTableName {
        /// The text.
        text: String,
    },
    /// The name of a table is taken.
    #[error("table `{name}` exists already")]
    TableExists {
        /// The name.
        name: String,
    },
    /// The store has no table of that name, or not any more.
    #[error("table `{name}` does not exist")]
    TableDoesNotExist {
        /// The name.
        name: String,
    },
    /// The table is a secondary index: only commits to its table change it.
    #[error("table `{table}` is an index: commits to its table change it")]
    TableIsIndex {
        /// Name of the index.
        table: String,
    },
    /// The table is no secondary index: a key in it is none that an index has.
    #[error("the table is not an index: it has a key that no index makes")]
    NotAnIndex,
    /// No other table can take the place of a table that has an index.
    #[error("table `{table}` has the index `{index}`: drop the index first")]
    TableHasIndex {
        /// Name of the table.
        table: String,
        /// Name of its index.
        index: String,
    },
    /// A table was to be changed whose index this process cannot change with it: the function was
    /// not registered, or is of another version than the one that made the index. Nothing was
    /// changed. Call [`NamedTable::derive`](crate::NamedTable::derive) first.
    #[error(
        "the function of index `{index}` is not registered: derive the index before writing to its table"
    )]
    IndexNotRegistered {
        /// Name of the index.
        index: String,
    },
    /// The store retains no such version, or not any more.
    #[error("version {version} is not retained")]
    VersionDoesNotExist {
        /// Its number, or its name.
        version: String,
    },
    /// The name of a version is taken, or the version has another one.
    #[error("version {number} has the name `{name}` already")]
    VersionExists {
        /// The name.
        name: String,
        /// The number of the version that has it.
        number: u64,
    },
    /// A text is not the name of a feed.
    #[error(
        "`{text}` is not the name of a feed: 1 to 64 characters of a-z, 0-9, `_`, `-`, no device name"
    )]
    InvalidFeedName {
        /// The text.
        text: String,
    },
    /// The name of a feed is taken.
    #[error("feed `{name}` exists already")]
    FeedExists {
        /// The name.
        name: String,
    },
    /// The store has no feed of that name, or not any more.
    #[error("feed `{name}` does not exist")]
    FeedDoesNotExist {
        /// The name.
        name: String,
    },
    /// Another consumer has the feed open. A feed has one consumer at a time.
    #[error("feed `{name}` is in use{}", .pid.map(|pid| format!(" by process {pid}")).unwrap_or_default())]
    FeedLocked {
        /// The name.
        name: String,
        /// The process that has it open, where the system tells.
        pid: Option<u32>,
    },
    /// The store has let go of commits that a feed was to tell: the WAL behind a checkpoint is kept
    /// only for cursors within their limit and for versions. Begin with a copy of the store (a
    /// backup) and go on behind its commit, or begin at the first commit that is there.
    #[error(
        "commit {wanted} is no longer in the WAL; the first available commit is {first}: begin there, or with a backup"
    )]
    FeedGap {
        /// The commit that the feed was to go on with.
        wanted: u64,
        /// The first commit from which on the feed can tell everything.
        first: u64,
    },
    /// A commit was to be acknowledged that the feed has not told in full.
    #[error("commit {commit} cannot be acknowledged: the feed is at commit {position}")]
    FeedAhead {
        /// The commit.
        commit: u64,
        /// The last commit that was told in full.
        position: u64,
    },
    /// A commit is larger than a record of the log. Nothing was changed; make several of it.
    #[error("a commit of {bytes} bytes; the limit is {limit}")]
    CommitTooLarge {
        /// Its size in the log.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The manifest or the log of a store is damaged, or a file of one of its named tables is
    /// damaged or missing. Snapshots are not affected: the session opens, and they can be opened.
    #[error("the store is damaged: {}: {reason}", .path.display())]
    StoreCorrupted {
        /// The file.
        path: PathBuf,
        /// Rule that is broken.
        reason: String,
    },
    /// A commit came in between that changed what a transaction had read, or any commit did where
    /// [`Store::write_if`](crate::Store::write_if) expected none. Nothing was committed. Read again
    /// and repeat; [`Store::transact`](crate::Store::transact) does.
    #[error("conflict: {0}; read again and repeat")]
    Conflict(Box<Conflict>),
    /// A table to be installed belongs to another session than the store's, or to a reader. Save a
    /// snapshot of it, import that into the store's session, and install what is opened from it.
    #[error("the table to install as `{name}` is of another session; import its snapshot first")]
    TableOfOtherSession {
        /// The name that it was to get.
        name: String,
    },
    /// Too many lookup batches are in flight. Take the results of some before submitting more.
    #[error("more than {limit} lookup batches are in flight; take the results of some first")]
    TooManyLookups {
        /// The limit.
        limit: usize,
    },
    /// The caller's stream, to write to or to read from, failed.
    #[error("the stream to read or write failed: {source}")]
    Stream {
        /// Error of the stream.
        source: Arc<io::Error>,
    },
    /// The input is not a canonical export, or a damaged one.
    #[error("byte {offset} of the canonical export: {reason}")]
    CanonicalMalformed {
        /// Where, from the first byte on.
        offset: u64,
        /// Rule that is broken there.
        reason: String,
    },
    /// The entries of a canonical export are not those that it was made of.
    #[error("the canonical export has the digest {}, its entries {}", hex(.expected), hex(.found))]
    CanonicalDigestMismatch {
        /// The digest at the end of the export.
        expected: [u8; 32],
        /// The digest of the entries.
        found: [u8; 32],
    },
}

impl From<terrane_io::Error> for Error {
    /// A file that ends before the bytes that must be there is damaged; all else is the disk's
    /// answer.
    fn from(error: terrane_io::Error) -> Self {
        match error {
            terrane_io::Error::ShortRead { path, offset, expected, found } => {
                // A file that ends early is damaged, and its page tells where.
                let page = u32::try_from(offset / terrane_io::ALIGN as u64).unwrap_or(u32::MAX);
                let expected = expected as u64;
                let found = found as u64;
                let what = Corrupt { page, rule: "the file ends early", expected, found };
                Self::Corrupt { path, what }
            }
            error => Self::Disk(error),
        }
    }
}

/// Why a file cannot be read, where that is a matter of this file: a bad sector, no right to read
/// it, something else in its place. A second copy of what it holds may be readable then.
pub(crate) fn unreadable(error: &terrane_io::Error) -> Option<String> {
    use io::ErrorKind as Kind;
    // These errors are of what stands at the path, not of the device.
    let is_odd = matches!(error.system_kind(), Some(Kind::FileTooLarge | Kind::IsADirectory));
    (is_odd || error.is_unreadable()).then(|| format!("cannot be read: {error}"))
}

fn hex(digest: &[u8; 32]) -> String {
    digest.map(|byte| format!("{byte:02x}")).concat()
}

impl Error {
    /// Reaction that the error calls for.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Disk(error) => error.kind(),
            Self::Corrupt { .. }
            | Self::FileMissing { .. }
            | Self::SessionDirCorrupted { .. }
            | Self::SnapshotCorrupted { .. }
            | Self::StoreCorrupted { .. }
            | Self::CanonicalDigestMismatch { .. } => ErrorKind::Corrupt,
            Self::SessionDirDoesNotExist { .. }
            | Self::SnapshotDoesNotExist { .. }
            | Self::SnapshotImportDirDoesNotExist { .. }
            | Self::TableDoesNotExist { .. }
            | Self::VersionDoesNotExist { .. }
            | Self::FeedDoesNotExist { .. }
            | Self::FeedGap { .. } => ErrorKind::NotFound,
            Self::SnapshotExists { .. }
            | Self::SnapshotExportDirExists { .. }
            | Self::TableExists { .. }
            | Self::VersionExists { .. }
            | Self::FeedExists { .. } => ErrorKind::AlreadyExists,
            Self::SessionDirLocked { .. }
            | Self::TooManyReaders { .. }
            | Self::FeedLocked { .. } => ErrorKind::Locked,
            Self::OutOfSpace { .. } | Self::ReserveTooLarge { .. } => ErrorKind::NoSpace,
            Self::ReadOnly { .. } => ErrorKind::ReadOnly,
            Self::UnknownVersion { .. } => ErrorKind::Unsupported,
            Self::Poisoned { .. } | Self::Panicked { .. } => ErrorKind::Poisoned,
            Self::SessionClosed => ErrorKind::Closed,
            Self::Stream { .. } => ErrorKind::Io,
            Self::Conflict(_) => ErrorKind::Conflict,
            Self::NotTerrane { .. }
            | Self::NotABackup { .. }
            | Self::NotAFollower { .. }
            | Self::KeyTooLarge { .. }
            | Self::ValueTooLarge { .. }
            | Self::UpsertTooLarge { .. }
            | Self::BlobTooLarge { .. }
            | Self::BlobRefInvalid { .. }
            | Self::InvalidMergeOperatorName { .. }
            | Self::MergeOperatorMismatch { .. }
            | Self::TableUnionNotCompatible { .. }
            | Self::UnionTooDeep { .. }
            | Self::UnionTooLarge { .. }
            | Self::UnionOfNothing
            | Self::TablesOfDifferentSessions
            | Self::TableOfOtherSession { .. }
            | Self::SnapshotTooLarge { .. }
            | Self::LabelTooLarge { .. }
            | Self::TableTooLarge { .. }
            | Self::InvalidConfig { .. }
            | Self::InvalidSnapshotName { .. }
            | Self::SnapshotNotCompatible { .. }
            | Self::InvalidTableName { .. }
            | Self::TableIsIndex { .. }
            | Self::NotAnIndex
            | Self::TableHasIndex { .. }
            | Self::IndexNotRegistered { .. }
            | Self::InvalidFeedName { .. }
            | Self::FeedAhead { .. }
            | Self::CommitTooLarge { .. }
            | Self::TooManyLookups { .. }
            | Self::CanonicalMalformed { .. } => ErrorKind::InvalidInput,
        }
    }

    /// The file that is not as it was written, and what is wrong with it, if the error says that.
    pub(crate) fn damage(&self) -> Option<(&Path, String)> {
        match self {
            Self::Corrupt { path, what } => Some((path, what.to_string())),
            Self::Disk(terrane_io::Error::Io { path, source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                Some((path, "the file is missing".to_owned()))
            }
            Self::FileMissing { path } => Some((path, "the file is missing".to_owned())),
            Self::Disk(error @ terrane_io::Error::WrongKind { path, .. }) => {
                Some((path, error.to_string()))
            }
            _ => None,
        }
    }

    /// Whether it says that a file is not as it was written.
    pub(crate) fn is_damage(&self) -> bool {
        self.damage().is_some()
    }

    /// Damage in the file at `path`.
    pub(crate) fn corrupt(path: &Path, what: Corrupt) -> Self {
        Self::Corrupt { path: path.to_owned(), what }
    }
}

terrane_io::error_kind_questions!(Error);
