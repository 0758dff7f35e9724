//! Errors of the context store, grouped by what the caller does next. After an error the store and the tree are as
//! they were before the call.

use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::ErrorKind;

use crate::base::address::Address;
use crate::base::corrupt::Corrupt;
use crate::base::hash::Hash;
use crate::base::path::{HEIGHT_MAX, PathText};

/// The result of a call on a tree or a store.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a tree, a context or a store.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call on the disk failed. The store stays at its last commit; reads go on.
    #[error(transparent)]
    Disk(#[from] terrane_io::Error),
    /// The index of commits failed. The store stays at its last commit; what is found without it still works. If it is damaged,
    /// [`repair`](crate::store::repair()) makes it again of the pack.
    #[error("the index of commits: {reason}; `terrane verify --repair` makes a damaged one again")]
    Index {
        /// What the index says.
        reason: String,
        /// What can be done about it.
        kind: ErrorKind,
    },
    /// Bytes read back are not bytes that this program wrote. Other objects still work; `terrane verify` lists what
    /// is damaged.
    #[error("{}, {}: {what}", .path.display(), .address.map_or_else(|| "head of the file".to_owned(), |at| at.to_string()))]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The record, if it is in one.
        address: Option<Address>,
        /// The rule.
        what: Corrupt,
    },
    /// An earlier sync failed, so what is on disk is unknown. Reads go on; close the store and open it anew.
    #[error("an earlier fsync of {} failed; close the store and open it anew", .path.display())]
    Poisoned {
        /// What was to be synced.
        path: PathBuf,
    },
    /// The directory holds a store already.
    #[error("{} holds a store already; open it, or choose an empty directory", .path.display())]
    AlreadyExists {
        /// The directory.
        path: PathBuf,
    },
    /// There is no store.
    #[error("{} holds no context store; create one first", .path.display())]
    NotFound {
        /// The directory.
        path: PathBuf,
    },
    /// Another handle writes to the store; a reader can be opened beside it.
    #[error("{} is being written to by {}; open it for reading", .path.display(),
        .pid.map_or_else(|| "another".to_owned(), |pid| format!("process {pid}")))]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that writes to it, where the system tells.
        pid: Option<u32>,
    },
    /// A file is none of ours. Nothing was changed in it.
    #[error("{} is no file of a context store of Terrane", .path.display())]
    NotAContextStore {
        /// The file.
        path: PathBuf,
    },
    /// A chunk, or a part of one, belongs to another store: a misplaced restore, or exchanged mounts. Nothing was changed in it.
    /// Put the file of this store back.
    #[error("{} belongs to another store; put the file of this store back", .path.display())]
    ForeignChunk {
        /// The file.
        path: PathBuf,
    },
    /// The directory has chunks and no control record, which was lost. Nothing was changed.
    #[error("{0} has chunks of a context store and no control record; `terrane verify --repair {0}` makes that again", .path.display())]
    LostControl {
        /// The directory.
        path: PathBuf,
    },
    /// Commits that were durable are lost, and a repair would have to let go of them. Nothing was changed. Restore a copy, or accept
    /// the loss.
    #[error("{0} has lost {commits} commits that were durable, from {at} on; nothing was repaired: restore a copy, or type \
        `terrane verify --repair --accept-loss {0}`", .path.display())]
    WouldLose {
        /// The directory.
        path: PathBuf,
        /// How many, as far as that is known.
        commits: u64,
        /// Where the first damage is.
        at: Address,
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
    /// The store was made with other rules. Open it with its own.
    #[error("{}: {option} is {stored} there, not {given}", .path.display())]
    ConfigMismatch {
        /// The directory.
        path: PathBuf,
        /// `scheme`, `branching`, `flat_limit` or `indexing`.
        option: &'static str,
        /// What is recorded.
        stored: String,
        /// What was asked for.
        given: String,
    },
    /// A call takes more than its limit. In walks over a tree a part that stands in several places
    /// counts in each, so a small store may hold a tree without bounds. Ask for a part of the tree,
    /// or give a larger limit.
    #[error("more than {limit} {unit}; ask for less, or raise the limit")]
    LimitExceeded {
        /// The limit.
        limit: u64,
        /// What is counted.
        unit: &'static str,
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
    /// An import into the directory did not end. Import once more, or remove the directory.
    #[error("an import into {} did not end; import once more, or remove the directory", .path.display())]
    IncompleteImport {
        /// The directory.
        path: PathBuf,
    },
    /// The stream of a snapshot failed. What was imported so far is no commit.
    #[error("the stream of the snapshot")]
    Stream {
        /// What it says.
        source: Arc<std::io::Error>,
    },
    /// The stream does not begin as a snapshot does.
    #[error("the stream is no snapshot of a context store of Terrane")]
    NotASnapshot,
    /// The snapshot is of a format version that this program does not read. Use the program that wrote it.
    #[error("the snapshot has format version {found}; this program reads {newest}")]
    SnapshotVersion {
        /// The version in the stream.
        found: u32,
        /// The version that this program reads and writes.
        newest: u32,
    },
    /// The stream ends before the snapshot does. Get it once more.
    #[error("the snapshot ends after {offset} bytes, before its end")]
    TruncatedStream {
        /// Where it ends, in bytes.
        offset: u64,
    },
    /// The head or the end of a snapshot breaks the format. Get it once more.
    #[error("the snapshot, before byte {offset}: {what}")]
    DamagedStream {
        /// Where, in bytes.
        offset: u64,
        /// The rule.
        what: Corrupt,
    },
    /// An element of a snapshot does not have the hash that the stream gives it. Get it once more.
    #[error("element {index} of the snapshot has another hash than the snapshot says")]
    WrongHash {
        /// Its number, counted from 0.
        index: u64,
    },
    /// An element of a snapshot breaks the format, or is not where it may be. Get it once more.
    #[error("element {index} of the snapshot: {what}")]
    UnexpectedElement {
        /// Its number, counted from 0.
        index: u64,
        /// The rule.
        what: Corrupt,
    },
    /// The elements of a snapshot make another commit than its head says.
    #[error("the snapshot is of commit {found}, not of {expected}")]
    RootMismatch {
        /// The commit that the head names.
        expected: Hash,
        /// The commit that is there.
        found: Hash,
    },
    /// The handle was closed before.
    #[error("the store is closed")]
    Closed,
    /// A step is empty or longer than 255 bytes. Nothing was changed.
    #[error("a step of {bytes} bytes; a step has 1 to 255")]
    StepSize {
        /// Its length.
        bytes: usize,
    },
    /// The tree would have more than 512 levels of directories. Nothing was changed.
    #[error("{levels} levels of directories; a tree has at most {}", HEIGHT_MAX)]
    TooDeep {
        /// How many there would be.
        levels: usize,
    },
    /// A value of 512 MiB or more. Nothing was changed.
    #[error("a value of {bytes} bytes; it must have less than 512 MiB")]
    ValueSize {
        /// Its length.
        bytes: usize,
    },
    /// A commit would write more than a frame holds. Flush the tree now and then.
    #[error("a commit writes at most {limit} bytes at once; flush the tree now and then before")]
    CommitTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The tree of a commit is a value.
    #[error("the tree of a commit is a directory, not a value")]
    NotADirectory,
    /// The disk is full, and a collection took the reserve of the store. Nothing was changed. Collections go on; commits do
    /// once the disk has room for the reserve again.
    #[error(
        "no space left for {}: its reserve of {reserve_bytes} bytes is in use; run `terrane context gc --store {}`, or make \
        room on the disk",
        .path.display(), .path.display()
    )]
    OutOfSpace {
        /// The directory.
        path: PathBuf,
        /// Bytes that the disk must have free.
        reserve_bytes: u64,
    },
    /// A collection, or an import, runs already. It goes on.
    #[error("a collection or an import runs already")]
    GcRunning,
    /// A collection that took garbage away was interrupted. Collect everything once more, which takes the rest.
    #[error("a collection was interrupted; collect everything once more")]
    GcUnfinished,
    /// The volume that was added last is still empty. Collect into it first.
    #[error("{} is still empty; collect into it before another is added", .path.display())]
    EmptyVolume {
        /// The directory of the volume.
        path: PathBuf,
    },
    /// A volume of the archive is not there, and an object that was looked for is not in the others. Mount the volume, or put
    /// it back; the rest of the store still works.
    #[error("the object at {address} was archived, and {} is missing or not mounted", .path.display())]
    VolumeMissing {
        /// The directory of the volume, the first one that is missing.
        path: PathBuf,
        /// Where the object was before.
        address: Address,
    },
    /// A volume has no marker: its directory is gone, or is the mount point of a disk that is away. Mount the disk.
    #[error("{} has no marker of a volume; mount the disk that the volume is on", .path.display())]
    AbsentVolume {
        /// The directory of the volume.
        path: PathBuf,
    },
    /// A directory outside the store, which the store keeps its archive or its index in, is not there, or has no marker: it may be
    /// the mount point of a disk that is away. Mount the disk, or open the store with the option that names where the directory
    /// is now.
    #[error(
        "{0}, where the {part} of the store is, is missing or has no marker; mount the disk, or say with `{part}_dir` \
        (`--{part}-dir`) where it is now",
        .path.display()
    )]
    AbsentLocation {
        /// `archive` or `index`.
        part: &'static str,
        /// The directory.
        path: PathBuf,
    },
    /// A directory outside the store, for its archive or its index, is one of another store. Mount the right disk, or choose another
    /// directory.
    #[error("{} is the directory of the {part} of another store; mount the right disk, or choose another directory", .path.display())]
    ForeignLocation {
        /// `archive` or `index`.
        part: &'static str,
        /// The directory.
        path: PathBuf,
    },
    /// The directory of a volume has the marker of another one, or of another store. Mount the right disk, or choose an empty
    /// directory for a new volume.
    #[error("{} is another volume, or one of another store; mount the right disk", .path.display())]
    ForeignVolume {
        /// The directory of the volume.
        path: PathBuf,
    },
    /// A volume has a part already that was to be made; no part is ever replaced. Something else than the store has put it there
    /// since the collection began: collect again.
    #[error("{} is there already, and no part is replaced; collect again", .path.display())]
    PartExists {
        /// The part.
        path: PathBuf,
    },
    /// A collection was cancelled. What it had not begun to take away is still there.
    #[error("the collection was cancelled")]
    GcCancelled,
    /// Nothing was written since the last split.
    #[error("nothing was written since the chunk was begun")]
    EmptyChunk,
    /// No such commit, or it was collected.
    #[error("there is no commit {hash}; it was never made here, or it was collected")]
    UnknownCommit {
        /// What was looked for.
        hash: Hash,
    },
    /// No such branch.
    #[error("there is no branch {name:?}")]
    UnknownBranch {
        /// What was looked for.
        name: String,
    },
    /// The branch is at the commit already.
    #[error("branch {name} is there already")]
    NoChange {
        /// The branch.
        name: String,
    },
    /// The head of the branch does not lead to the commit, or moved meanwhile. Merge instead.
    #[error("the head of branch {name} does not lead to the commit; merge instead")]
    Rejected {
        /// The branch.
        name: String,
    },
    /// Others changed the branch each time. Try again.
    #[error("the branch moved {count} times meanwhile; try again")]
    TooManyRetries {
        /// How often it was tried again.
        count: usize,
    },
    /// The search for common ancestors goes further back than is allowed. Allow more.
    #[error("the common ancestors are more than {depth} generations back; allow more")]
    MaxDepthReached {
        /// What was allowed.
        depth: usize,
    },
    /// There are more lowest common ancestors than are allowed. Allow more.
    #[error("there are more than {limit} lowest common ancestors; allow more")]
    TooManyLcas {
        /// What was allowed.
        limit: usize,
    },
    /// A name of a branch is empty or longer than 255 bytes.
    #[error("the name of a branch has 1 to 255 bytes, not {bytes}")]
    BranchName {
        /// Its length.
        bytes: usize,
    },
    /// The object was collected. Check a newer commit out.
    #[error("the object at {address} was collected; check a newer commit out")]
    Collected {
        /// Where it was.
        address: Address,
    },
    /// Only the hash of the object is known, and no object of that hash is stored.
    #[error("only the hash {hash} of {path} is known, and no such object is stored")]
    DanglingHash {
        /// The hash.
        hash: Hash,
        /// The path that leads there.
        path: PathText,
    },
    /// A proof does not hold what the verification looked at. It says nothing about whether it is there.
    #[error("the proof does not hold {path}")]
    NotProvided {
        /// The path.
        path: PathText,
    },
    /// The tree belongs to another store. Copy it with `to_memory` first.
    #[error("the tree belongs to another store; copy it with to_memory first")]
    ForeignTree,
    /// Two changes of the same path cannot be merged.
    #[error("{path} cannot be merged: {message}")]
    Conflict {
        /// The path.
        path: PathText,
        /// Why.
        message: String,
    },
    /// A value of a Tezos context is not what belongs there.
    #[error("the value of {path}: {what}")]
    Malformed {
        /// The path.
        path: PathText,
        /// The rule.
        what: Corrupt,
    },
    /// A version of hashes that there is none of.
    #[error("hash version {version}; there is only version 0")]
    UnsupportedHashVersion {
        /// The version.
        version: u8,
    },
    /// Something that must be there is not: a source to copy, a part of a Tezos context.
    #[error("{path} is absent")]
    Absent {
        /// The path.
        path: PathText,
    },
}

impl Error {
    /// What a caller can do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Disk(error) => error.error_kind(),
            Self::Index { kind, .. } => *kind,
            Self::Corrupt { .. }
            | Self::ForeignChunk { .. }
            | Self::LostControl { .. }
            | Self::WouldLose { .. }
            | Self::DamagedStream { .. }
            | Self::WrongHash { .. }
            | Self::RootMismatch { .. }
            | Self::NotProvided { .. } => ErrorKind::Corrupt,
            Self::NotFound { .. }
            | Self::UnknownCommit { .. }
            | Self::UnknownBranch { .. }
            | Self::Collected { .. }
            | Self::DanglingHash { .. }
            | Self::AbsentVolume { .. }
            | Self::AbsentLocation { .. }
            | Self::Absent { .. } => ErrorKind::NotFound,
            Self::Locked { .. } | Self::GcRunning => ErrorKind::Locked,
            Self::OutOfSpace { .. } => ErrorKind::NoSpace,
            Self::UnsupportedVersion { .. }
            | Self::SnapshotVersion { .. }
            | Self::UnsupportedHashVersion { .. } => ErrorKind::Unsupported,
            Self::Stream { .. }
            | Self::Poisoned { .. }
            | Self::VolumeMissing { .. }
            | Self::Closed
            | Self::GcCancelled => ErrorKind::Environment,
            _ => ErrorKind::BadInput,
        }
    }

    /// The error of an index. What the system refuses is told from damage.
    #[expect(clippy::needless_pass_by_value, reason = "`map_err` gives the error away")]
    pub(crate) fn index(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
        let mut kind = ErrorKind::Corrupt;
        while let Some(error) = cause {
            if let Some(disk) = error.downcast_ref::<terrane_io::Error>() {
                kind = disk.error_kind();
                break;
            }
            // Engines show an error of the disk as their own, so that only its cause is met.
            if let Some(system) = error.downcast_ref::<Arc<std::io::Error>>() {
                kind = terrane_io::Error::Io {
                    call: "index",
                    path: PathBuf::new(),
                    source: Arc::clone(system),
                }
                .error_kind();
                break;
            }
            cause = error.source();
        }
        Self::Index { reason: error.to_string(), kind }
    }
}
