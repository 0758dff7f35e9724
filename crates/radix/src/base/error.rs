//! Errors of a radix state: one variant for each reaction of the caller.

use terrane_io::ErrorKind;

use crate::base::address::{Address, AddressError, Prefix};
use crate::base::node_hash::{NodeHash, Root, RootTextError};

/// An error of a radix state. Unless it says otherwise, nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text that is no address. The caller's mistake.
    #[error("{}invalid address {text:?}: {why}", at(*.index))]
    InvalidAddress {
        /// The text, or the hex form of the bytes.
        text: String,
        /// Which change of the batch it is in, if it is in one.
        index: Option<usize>,
        /// Reason.
        why: AddressError,
    },
    /// A batch that names an address twice, in any combination of changes.
    #[error("address {address:?} is named by change {first} and by change {second}")]
    DuplicateAddress {
        /// The address, or the prefix that is to be deleted.
        address: Prefix,
        /// The change that comes first in the batch.
        first: usize,
        /// The other one.
        second: usize,
    },
    /// An address that is to be deleted holds no value.
    #[error("{}no value at address {address}", at(Some(*.index)))]
    AddressNotFound {
        /// The address.
        address: Address,
        /// Which change of the batch it is.
        index: usize,
    },
    /// There is no leaf below a prefix.
    #[error("no address begins with {prefix}")]
    PrefixNotFound {
        /// The prefix.
        prefix: Prefix,
    },
    /// A text that is no root. The caller's mistake.
    #[error("invalid root {text:?}: {why}")]
    InvalidRoot {
        /// The text.
        text: String,
        /// Reason.
        why: RootTextError,
    },
    /// A root that no retained version of the tree has: it never was there, or was pruned. A root
    /// whose record was lost gives the same error; [`Store::verify`](crate::Store::verify) tells
    /// them apart.
    #[error("root {root} is not in tree {tree:?}")]
    UnknownRoot {
        /// The root.
        root: Root,
        /// The name of the tree.
        tree: String,
    },
    /// A tree that does not exist. A tree whose record was lost gives the same error;
    /// [`Store::verify`](crate::Store::verify) tells them apart.
    #[error("no tree {name:?}")]
    UnknownTree {
        /// Its name.
        name: String,
    },
    /// A tree that is there already.
    #[error("tree {name:?} exists")]
    TreeExists {
        /// Its name.
        name: String,
    },
    /// A name that a tree cannot have.
    #[error("invalid name of a tree: {bytes} bytes; it has 1 to {max}")]
    InvalidTreeName {
        /// Bytes that it has.
        bytes: usize,
        /// Most bytes it may have.
        max: usize,
    },
    /// A value that is larger than every back-end can hold. Split it.
    #[error("{}the value of address {address} has {bytes} bytes; at most {max} are taken", at(*.index))]
    ValueTooLarge {
        /// Its address.
        address: Address,
        /// Which change of the batch it is in, if it is in one.
        index: Option<usize>,
        /// Bytes that it has.
        bytes: usize,
        /// Most bytes it may have.
        max: usize,
    },
    /// A size that the store or this back-end does not take: of a key or value of the metadata map,
    /// of a version's metadata, of a record, or of a transaction.
    #[error("{what} of {bytes} bytes; {min} to {max} are taken")]
    Size {
        /// Name of the thing.
        what: &'static str,
        /// Bytes that it has.
        bytes: usize,
        /// Fewest bytes it may have.
        min: usize,
        /// Most bytes it may have.
        max: usize,
    },
    /// A node is missing, cannot be read, or is not what was written. Restore the store from a
    /// copy, or drop the damaged versions with [`Store::repair`](crate::Store::repair). Pruning the
    /// root does not help: it reads the same nodes.
    #[error("corrupted: {what} below root {} at {path:?}, node {node}", root_text(*.root))]
    Corruption {
        /// The root that was read, where there is one.
        root: Option<Root>,
        /// The address of the node.
        path: Prefix,
        /// The hash that the node must have.
        node: NodeHash,
        /// Which rule is broken.
        what: String,
    },
    /// A record of a tree or version breaks the format or contradicts another record, or the
    /// back-end found damage that belongs to no known node. React as to
    /// [`Corruption`](Self::Corruption).
    #[error("corrupted: {what}")]
    CorruptRecord {
        /// Which record, and which rule it breaks.
        what: String,
    },
    /// An earlier call of the transaction failed half way. Drop the transaction and begin another.
    #[error("the transaction failed before and cannot be finished: begin another")]
    Aborted,
    /// The back-end is full. Reads go on; repeat the call when there is room.
    #[error("the store is full: {0}")]
    StoreFull(#[source] terrane_kv::Error),
    /// Another writer or process holds the lock. Try again.
    #[error("the store is busy: {0}")]
    Busy(#[source] terrane_kv::Error),
    /// The store was opened for reading.
    #[error("the store is open for reading only: {0}")]
    ReadOnly(#[source] terrane_kv::Error),
    /// The back-end cannot do what was asked for.
    #[error("unsupported: {0}")]
    Unsupported(#[source] terrane_kv::Error),
    /// The back-end failed.
    #[error("the back-end failed: {0}")]
    BackEnd(#[source] terrane_kv::Error),
}

impl Error {
    /// The kind of the error, the same for all calls.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidAddress { .. }
            | Self::InvalidRoot { .. }
            | Self::InvalidTreeName { .. }
            | Self::ValueTooLarge { .. }
            | Self::Size { .. }
            | Self::Aborted => ErrorKind::InvalidInput,
            Self::DuplicateAddress { .. } | Self::TreeExists { .. } => ErrorKind::AlreadyExists,
            Self::AddressNotFound { .. }
            | Self::PrefixNotFound { .. }
            | Self::UnknownRoot { .. }
            | Self::UnknownTree { .. } => ErrorKind::NotFound,
            Self::Corruption { .. } | Self::CorruptRecord { .. } => ErrorKind::Corrupt,
            Self::StoreFull(source)
            | Self::Busy(source)
            | Self::ReadOnly(source)
            | Self::Unsupported(source)
            | Self::BackEnd(source) => source.kind(),
        }
    }

    /// Adds the root that was read, if the error names none.
    pub(crate) fn below(self, below: &Root) -> Self {
        match self {
            Self::Corruption { root, path, node, what } => {
                Self::Corruption { root: root.or(Some(*below)), path, node, what }
            }
            other => other,
        }
    }
}

terrane_io::error_kind_questions!(Error);

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

fn at(index: Option<usize>) -> String {
    index.map_or(String::new(), |index| format!("change {index}: "))
}

fn root_text(root: Option<Root>) -> String {
    root.map_or("(none)".into(), |root| root.to_string())
}

impl From<terrane_kv::Error> for Error {
    fn from(error: terrane_kv::Error) -> Self {
        match error {
            terrane_kv::Error::StoreFull { .. } => Self::StoreFull(error),
            terrane_kv::Error::Busy { .. } | terrane_kv::Error::Locked { .. } => Self::Busy(error),
            terrane_kv::Error::ReadOnly { .. } => Self::ReadOnly(error),
            terrane_kv::Error::Unsupported { .. } => Self::Unsupported(error),
            terrane_kv::Error::Size { what, bytes, min, max } => {
                Self::Size { what, bytes, min, max }
            }
            terrane_kv::Error::Corruption { .. } => {
                Self::CorruptRecord { what: with_causes(&error) }
            }
            _ => Self::BackEnd(error),
        }
    }
}

/// Text of an error with its causes, joined by colons.
pub(crate) fn with_causes(error: &terrane_kv::Error) -> String {
    let mut parts = vec![error.to_string()];
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        parts.push(error.to_string());
        cause = error.source();
    }
    parts.join(": ")
}
