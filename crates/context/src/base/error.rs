//! Errors of the context store, grouped by what the caller does next.
//!
//! Invariant: after an error the store and the tree are as they were before the call.

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
    /// A disk call failed. The store stays at its last commit, and reads still work.
    #[error(transparent)]
    Disk(#[from] terrane_io::Error),
    /// The index failed. The store stays at its last commit; lookups that need no index still work.
    ///
    /// If the index is damaged, [`repair`](crate::repair()) rebuilds it from the pack.
    #[error("index of commits: {reason}; `terrane verify --repair` rebuilds a damaged index")]
    Index {
        /// Message of the index.
        reason: String,
        /// Reaction that the caller can take.
        kind: ErrorKind,
        /// The error of the index.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Stored bytes are not the bytes that were written. Other objects still work; `terrane verify`
    /// lists the damage.
    #[error("{}, {}: {what}", .path.display(), .address.map_or_else(|| "head of the file".to_owned(), |at| at.to_string()))]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The damaged record, if the damage is in a record.
        address: Option<Address>,
        /// The rule.
        what: Corrupt,
    },
    /// An earlier fsync failed, so the durable state is unknown. Reads still work; close the store
    /// and open it again.
    #[error("an earlier fsync of {} failed; close the store and open it anew", .path.display())]
    Poisoned {
        /// The file of the failed fsync.
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
    /// Another handle has the store open for writing. A reader can be opened beside it.
    #[error("{} is being written to by {}; open it for reading", .path.display(),
        .pid.map_or_else(|| "another".to_owned(), |pid| format!("process {pid}")))]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that has the store open, if the system tells.
        pid: Option<u32>,
    },
    /// A file is not a file of a context store. Nothing was changed in the file.
    #[error("{} is not a file of a Terrane context store", .path.display())]
    NotAContextStore {
        /// The file.
        path: PathBuf,
    },
    /// A chunk, or a part of a chunk, belongs to another store, after a wrong restore or exchanged
    /// mounts.
    ///
    /// Nothing was changed in the file. Restore the file of this store.
    #[error("{} belongs to another store; put the file of this store back", .path.display())]
    ForeignChunk {
        /// The file.
        path: PathBuf,
    },
    /// The control record is lost: the directory has chunks and no control record. Nothing was
    /// changed.
    #[error("{0} has chunks of a context store and no control record; `terrane verify --repair {0}` rebuilds it", .path.display())]
    LostControl {
        /// The directory.
        path: PathBuf,
    },
    /// Durable commits are lost, and a repair would drop them. Nothing was changed. Restore a
    /// backup, or accept the loss.
    #[error("{0} has lost {1} from {at} on; nothing was repaired. Restore a backup, or run \
        `terrane verify --repair --accept-loss {0}`", .path.display(), lost_text(*.commits, *.is_lower_bound))]
    WouldLose {
        /// The directory.
        path: PathBuf,
        /// Number of lost commits.
        commits: u64,
        /// Whether more commits than `commits` may be lost.
        is_lower_bound: bool,
        /// Address of the first damage.
        at: Address,
    },
    /// A repair would have nothing to keep, or would lose commits that it cannot name. Nothing was
    /// changed. Restore a backup.
    #[error("{} cannot be repaired: {reason}; nothing was changed. Restore a backup", .path.display())]
    Irreparable {
        /// The directory.
        path: PathBuf,
        /// The damage, and what is missing behind it.
        reason: String,
    },
    /// A file has a format version that this program does not read. Use the program that wrote the
    /// file.
    #[error("{}: format version {found}; this program reads {newest}", .path.display())]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// The version that this program reads and writes.
        newest: u32,
    },
    /// The store was created with other rules. Open the store with its own rules.
    #[error("{}: the store has {option} {stored}, not {given}", .path.display())]
    ConfigMismatch {
        /// The directory.
        path: PathBuf,
        /// `scheme`, `branching`, `flat_limit` or `indexing`.
        option: &'static str,
        /// Recorded value.
        stored: String,
        /// Value that the caller gave.
        given: String,
    },
    /// A call exceeds its limit. Ask for a part of the tree, or raise the limit.
    ///
    /// Walks over a tree count a shared part at each of its paths, so a small store may hold a
    /// tree without bounds.
    #[error("more than {limit} {unit}; ask for less, or raise the limit")]
    LimitExceeded {
        /// The limit.
        limit: u64,
        /// Unit of the limit.
        unit: &'static str,
    },
    /// An option is out of its range.
    #[error("{option} is {value}; {allowed}")]
    InvalidConfig {
        /// The option.
        option: &'static str,
        /// Value of the option.
        value: String,
        /// Allowed values.
        allowed: &'static str,
    },
    /// An import into the directory was interrupted. Import again, or remove the directory.
    #[error("an import into {} was interrupted; import again, or delete the directory", .path.display())]
    IncompleteImport {
        /// The directory.
        path: PathBuf,
    },
    /// Reading or writing the stream of a snapshot failed. A partial import is not a commit.
    #[error("reading or writing the stream of the snapshot failed")]
    Stream {
        /// Error of the stream.
        source: Arc<std::io::Error>,
    },
    /// The stream does not begin like a snapshot.
    #[error("the stream is no snapshot of a Terrane context store")]
    NotASnapshot,
    /// The snapshot has a format version that this program does not read. Use the program that
    /// wrote the snapshot.
    #[error("the snapshot has format version {found}; this program reads {newest}")]
    SnapshotVersion {
        /// The version in the stream.
        found: u32,
        /// The version that this program reads and writes.
        newest: u32,
    },
    /// The stream ends before the snapshot does. Fetch the snapshot again.
    #[error("the snapshot ends after {offset} bytes, before its end")]
    TruncatedStream {
        /// End of the stream, in bytes.
        offset: u64,
    },
    /// The head or the end of a snapshot breaks the format. Fetch the snapshot again.
    #[error("the snapshot, before byte {offset}: {what}")]
    DamagedStream {
        /// Offset in the stream, in bytes.
        offset: u64,
        /// The rule.
        what: Corrupt,
    },
    /// The hash of an element differs from the hash that the stream states. Fetch the snapshot
    /// again.
    #[error("element {index} of the snapshot has another hash than the snapshot states")]
    WrongHash {
        /// Number of the element, from 0.
        index: u64,
    },
    /// An element breaks the format, or stands where it may not. Fetch the snapshot again.
    #[error("element {index} of the snapshot: {what}")]
    UnexpectedElement {
        /// Number of the element, from 0.
        index: u64,
        /// The rule.
        what: Corrupt,
    },
    /// The elements of a snapshot make another commit than the head states.
    #[error("the elements of the snapshot make commit {found}, not {expected}")]
    RootMismatch {
        /// Commit in the head.
        expected: Hash,
        /// Commit of the elements.
        found: Hash,
    },
    /// An export has no commits: none was given, or none lies in the range. Nothing was written.
    #[error("there are no commits to export")]
    NothingToExport,
    /// The handle is closed.
    #[error("the store is closed")]
    Closed,
    /// A step is empty or longer than 255 bytes. Nothing was changed.
    #[error("a step of {bytes} bytes; a step has 1 to 255")]
    StepSize {
        /// Length of the step.
        bytes: usize,
    },
    /// The tree would have more than 512 levels of directories. Nothing was changed.
    #[error("{levels} levels of directories; a tree has at most {}", HEIGHT_MAX)]
    TooDeep {
        /// Levels that the tree would have.
        levels: usize,
    },
    /// A value has 512 MiB or more. Nothing was changed.
    #[error("a value of {bytes} bytes; it must have less than 512 MiB")]
    ValueSize {
        /// Length of the value.
        bytes: usize,
    },
    /// A commit would write more than one frame holds. Flush the tree now and then.
    #[error("a commit writes at most {limit} bytes at once; flush the tree now and then before it")]
    CommitTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The tree of a commit is a value.
    #[error("the tree of a commit is a directory, not a value")]
    NotADirectory,
    /// The disk is full, and a collection used the reserve of the store. Nothing was changed.
    ///
    /// Collections still work. Commits work again once the disk has room for the reserve.
    #[error(
        "no space left for {}: its reserve of {reserve_bytes} bytes is in use; run `terrane context gc --store {}`, or make \
        room on the disk",
        .path.display(), .path.display()
    )]
    OutOfSpace {
        /// The directory.
        path: PathBuf,
        /// Length of the reserve.
        reserve_bytes: u64,
    },
    /// Another collection or import is running.
    #[error("another collection or import is running")]
    GcRunning,
    /// A collection was interrupted while it removed garbage. Collect everything again to remove
    /// the rest.
    #[error("a collection was interrupted; collect everything again")]
    GcUnfinished,
    /// The newest volume is still empty. Collect into it first.
    #[error("{} is still empty; collect into it before you add another", .path.display())]
    EmptyVolume {
        /// The directory of the volume.
        path: PathBuf,
    },
    /// A volume is missing, and none of the present volumes has the object.
    ///
    /// Mount the volume, or restore it. The rest of the store still works.
    #[error("the object at {address} is in the archive, and {} is missing or not mounted", .path.display())]
    VolumeMissing {
        /// Directory of the first missing volume.
        path: PathBuf,
        /// Address of the object in the pack.
        address: Address,
    },
    /// A volume has no marker: its directory is gone, or is the mount point of a disk that is away.
    /// Mount the disk.
    #[error("{} has no marker of a volume; mount the disk that the volume is on", .path.display())]
    AbsentVolume {
        /// The directory of the volume.
        path: PathBuf,
    },
    /// A directory outside the store, for its archive or its index, is missing or has no marker.
    ///
    /// The directory may be the mount point of a disk that is away. Mount the disk, or open the
    /// store with the option that names the new directory.
    #[error(
        "{0}, where the {part} of the store is, is missing or has no marker; mount the disk, or name its \
        new directory with `{part}_dir` (`--{part}-dir`)",
        .path.display()
    )]
    AbsentLocation {
        /// `archive` or `index`.
        part: &'static str,
        /// The directory.
        path: PathBuf,
    },
    /// A directory outside the store, for its archive or its index, belongs to another store. Mount
    /// the right disk, or choose another directory.
    #[error("{} has the {part} of another store; mount the right disk, or choose another directory", .path.display())]
    ForeignLocation {
        /// `archive` or `index`.
        part: &'static str,
        /// The directory.
        path: PathBuf,
    },
    /// The directory of a volume has the marker of another volume or of another store.
    ///
    /// Mount the right disk, or choose an empty directory for a new volume.
    #[error("{} is another volume, or a volume of another store; mount the right disk", .path.display())]
    ForeignVolume {
        /// The directory of the volume.
        path: PathBuf,
    },
    /// A volume already has the part that the collection would write. Parts are never replaced.
    ///
    /// Something other than the store wrote the part since the collection began: collect again.
    #[error("{} already exists, and parts are never replaced; collect again", .path.display())]
    PartExists {
        /// The part.
        path: PathBuf,
    },
    /// The caller cancelled the collection. All that the collection had not begun to remove is
    /// still there.
    #[error("the collection was cancelled")]
    GcCancelled,
    /// The chunk has no commits since it was begun.
    #[error("nothing was written since the chunk was begun")]
    EmptyChunk,
    /// The commit does not exist, or a collection removed it.
    #[error("there is no commit {hash}; it was never made in this store, or was collected")]
    UnknownCommit {
        /// Hash that the caller asked for.
        hash: Hash,
    },
    /// The branch does not exist.
    #[error("there is no branch {name:?}")]
    UnknownBranch {
        /// Name that the caller asked for.
        name: String,
    },
    /// The branch is already at the commit.
    #[error("branch {name} is already at the commit")]
    NoChange {
        /// The branch.
        name: String,
    },
    /// The commit does not descend from the head of the branch, or the branch moved meanwhile.
    /// Merge instead.
    #[error("the head of branch {name} does not lead to the commit; merge instead")]
    Rejected {
        /// The branch.
        name: String,
    },
    /// Other writers moved the branch during each attempt. Try again.
    #[error("the branch moved {count} times meanwhile; try again")]
    TooManyRetries {
        /// Retries.
        count: usize,
    },
    /// The search for common ancestors reached its depth limit. Allow more generations.
    #[error("the common ancestors are more than {depth} generations back; allow more")]
    MaxDepthReached {
        /// Allowed generations.
        depth: usize,
    },
    /// More lowest common ancestors exist than the limit allows. Raise the limit.
    #[error("there are more than {limit} lowest common ancestors; allow more")]
    TooManyLcas {
        /// Allowed ancestors.
        limit: usize,
    },
    /// The name of a branch is empty or longer than 255 bytes.
    #[error("the name of a branch has 1 to 255 bytes, not {bytes}")]
    BranchName {
        /// Length of the name.
        bytes: usize,
    },
    /// A collection removed the object. Check out a newer commit.
    #[error("the object at {address} was collected; check out a newer commit")]
    Collected {
        /// Address of the object before the collection.
        address: Address,
    },
    /// The tree has only the hash of the object, and no object of this hash is stored.
    #[error("{path} is known by its hash {hash} only, and no object of this hash is stored")]
    DanglingHash {
        /// The hash.
        hash: Hash,
        /// The path that leads there.
        path: PathText,
    },
    /// The proof does not contain the part that the verification read. The part may or may not
    /// exist.
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
        /// Message of the merge function.
        message: String,
    },
    /// A value of a Tezos context does not have the format that its path requires.
    #[error("the value of {path}: {what}")]
    Malformed {
        /// The path.
        path: PathText,
        /// The rule.
        what: Corrupt,
    },
    /// The version of the hashes is not 0.
    #[error("hash version {version}; there is only version 0")]
    UnsupportedHashVersion {
        /// The version.
        version: u8,
    },
    /// A required path is absent: the source of a copy, or a part of a Tezos context.
    #[error("{path} is absent")]
    Absent {
        /// The path.
        path: PathText,
    },
}

/// Number of lost durable commits, in words.
fn lost_text(commits: u64, is_lower_bound: bool) -> String {
    match (commits, is_lower_bound) {
        (0, true) => "an unknown number of durable commits".to_owned(),
        (1, true) => "at least 1 durable commit".to_owned(),
        (more, true) => format!("at least {more} durable commits"),
        (1, false) => "1 durable commit".to_owned(),
        (count, false) => format!("{count} durable commits"),
    }
}

impl Error {
    /// Reaction of the caller to the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Disk(error) => error.kind(),
            Self::Index { kind, .. } => *kind,
            Self::Corrupt { .. }
            | Self::ForeignChunk { .. }
            | Self::LostControl { .. }
            | Self::WouldLose { .. }
            | Self::Irreparable { .. }
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
            Self::AlreadyExists { .. } | Self::PartExists { .. } => ErrorKind::AlreadyExists,
            Self::Conflict { .. } | Self::TooManyRetries { .. } => ErrorKind::Conflict,
            Self::Poisoned { .. } => ErrorKind::Poisoned,
            Self::Closed => ErrorKind::Closed,
            Self::GcCancelled => ErrorKind::Interrupted,
            Self::Stream { .. } | Self::VolumeMissing { .. } => ErrorKind::Io,
            Self::NotAContextStore { .. }
            | Self::ConfigMismatch { .. }
            | Self::LimitExceeded { .. }
            | Self::InvalidConfig { .. }
            | Self::IncompleteImport { .. }
            | Self::NotASnapshot
            | Self::TruncatedStream { .. }
            | Self::UnexpectedElement { .. }
            | Self::NothingToExport
            | Self::StepSize { .. }
            | Self::TooDeep { .. }
            | Self::ValueSize { .. }
            | Self::CommitTooLarge { .. }
            | Self::NotADirectory
            | Self::GcUnfinished
            | Self::EmptyVolume { .. }
            | Self::ForeignLocation { .. }
            | Self::ForeignVolume { .. }
            | Self::EmptyChunk
            | Self::NoChange { .. }
            | Self::Rejected { .. }
            | Self::MaxDepthReached { .. }
            | Self::TooManyLcas { .. }
            | Self::BranchName { .. }
            | Self::ForeignTree
            | Self::Malformed { .. } => ErrorKind::InvalidInput,
        }
    }

    /// Wraps the error of an index, and tells disk failures from damage.
    pub(crate) fn index(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
        let mut kind = ErrorKind::Corrupt;
        while let Some(error) = cause {
            if let Some(disk) = error.downcast_ref::<terrane_io::Error>() {
                kind = disk.kind();
                break;
            }

            // Engines wrap an error of the disk in their own type; only its cause is a known type.
            if let Some(system) = error.downcast_ref::<Arc<std::io::Error>>() {
                kind = terrane_io::Error::Io {
                    call: "index",
                    path: PathBuf::new(),
                    source: Arc::clone(system),
                }
                .kind();
                break;
            }

            cause = error.source();
        }

        Self::Index { reason: error.to_string(), kind, source: error.into() }
    }
}

terrane_io::error_kind_questions!(Error);
