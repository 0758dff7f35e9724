//! Errors of object storage, grouped by the caller's reaction.

use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::ErrorKind;

/// The result of a call on a bucket.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a bucket, or of the store or disk on the other side of a copy.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address names no bucket.
    #[error(
        "{address} is no address of a bucket: {reason}; write s3://BUCKET/PREFIX, gs://, az:// or file:///DIR"
    )]
    Address {
        /// The address.
        address: String,
        /// Reason.
        reason: String,
    },
    /// A request failed, after the retries of the client. Its effect is unknown if it was a write;
    /// nothing that was there before is lost. The call may be made again.
    #[error("{call} of {key} failed: {source}")]
    Request {
        /// Kind of the request.
        call: &'static str,
        /// The object, or the prefix of a list.
        key: String,
        /// Answer of the service, or reason why there is none.
        source: Arc<object_store::Error>,
    },
    /// The thread of requests has ended, or a request panicked.
    #[error("the thread of requests ended during {call}; open the bucket anew")]
    Ended {
        /// Kind of the request.
        call: &'static str,
    },
    /// The thread of requests could not be started.
    #[error("the thread of requests cannot be started: {source}")]
    Start {
        /// Answer of the system.
        source: Arc<std::io::Error>,
    },
    /// An object is not as it was put. Restore from another backup, or another copy of the bucket.
    #[error("{key} is damaged: {reason}")]
    Damaged {
        /// The object.
        key: String,
        /// Broken rule.
        reason: String,
    },
    /// An object that a backup needs is gone: somebody deleted it.
    #[error("{key} is missing; verify the backups, and restore from one that is whole")]
    Missing {
        /// The object.
        key: String,
    },
    /// The object has a format that this program does not read.
    #[error("{key} has format version {found}; this program reads {newest}")]
    UnknownVersion {
        /// The object.
        key: String,
        /// Version of the object.
        found: u64,
        /// Newest version that this program reads.
        newest: u64,
    },
    /// The prefix has no backup.
    #[error("{address} has no backup; make one with `terrane backup --to {address}`")]
    NoBackup {
        /// The bucket.
        address: String,
    },
    /// No backup has this name.
    #[error("{address} has no backup {id}; list them with `terrane backups list {address}`")]
    UnknownBackup {
        /// The bucket.
        address: String,
        /// The name.
        id: String,
    },
    /// No backup reaches this commit.
    #[error("no backup has commit {commit}; these can be restored: {reachable}")]
    Unreachable {
        /// The commit.
        commit: u64,
        /// Ranges of commits that can be restored.
        reachable: String,
    },
    /// The prefix belongs to another store. Nothing was changed there.
    #[error("{address} has the backups of another store; choose another prefix")]
    ForeignStore {
        /// The bucket.
        address: String,
    },
    /// The bucket has a later commit than the store, which was restored or lost commits. Nothing
    /// was changed there.
    #[error(
        "{address} has commit {there}, the store only commit {here}; choose another prefix, or drop the later backups"
    )]
    StoreIsOlder {
        /// The bucket.
        address: String,
        /// Last commit in the bucket.
        there: u64,
        /// Last commit of the store.
        here: u64,
    },
    /// Another process has given the upload up as abandoned. Earlier backups are whole; begin
    /// again.
    #[error("upload {id} was given up as abandoned by `terrane backups drop`; begin again")]
    UploadRevoked {
        /// The upload.
        id: String,
    },
    /// A list of the service is older than the objects that it serves. Wait, and call again.
    #[error("{address}: the service lists an old state of the catalog; wait and try again")]
    StaleList {
        /// The bucket.
        address: String,
    },
    /// Other writers of the catalog came first, again and again.
    #[error("{address}: other writers changed the catalog {attempts} times meanwhile; try again")]
    Contention {
        /// The bucket.
        address: String,
        /// Attempts that were made.
        attempts: u32,
    },
    /// The target of a restore holds something else.
    #[error("{} is not empty, and no interrupted restore of this store; choose an empty directory", .path.display())]
    TargetNotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] terrane_lsm::Error),
    /// An error of the local disk.
    #[error(transparent)]
    Disk(#[from] terrane_io::Error),
}

impl Error {
    /// Reaction that the error calls for.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Address { .. } | Self::ForeignStore { .. } | Self::StoreIsOlder { .. } => {
                ErrorKind::InvalidInput
            }
            Self::Request { source, .. } => match **source {
                object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. } => ErrorKind::Permission,
                object_store::Error::NotImplemented { .. }
                | object_store::Error::NotSupported { .. } => ErrorKind::Unsupported,
                _ => ErrorKind::Io,
            },
            Self::Ended { .. } | Self::Start { .. } => ErrorKind::Io,
            Self::Damaged { .. } | Self::Missing { .. } => ErrorKind::Corrupt,
            Self::UnknownVersion { .. } => ErrorKind::Unsupported,
            Self::NoBackup { .. } | Self::UnknownBackup { .. } | Self::Unreachable { .. } => {
                ErrorKind::NotFound
            }
            Self::UploadRevoked { .. } | Self::StaleList { .. } | Self::Contention { .. } => {
                ErrorKind::Conflict
            }
            Self::TargetNotEmpty { .. } => ErrorKind::AlreadyExists,
            Self::Store(error) => error.kind(),
            Self::Disk(error) => error.kind(),
        }
    }

    pub(crate) fn damaged(key: &str, reason: impl Into<String>) -> Self {
        Self::Damaged { key: key.to_owned(), reason: reason.into() }
    }
}
