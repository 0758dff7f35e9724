//! Errors of an Ethereum state: one variant for each reaction of the caller.

use terrane_io::ErrorKind;

use crate::base::path::Path;

/// An error of a trie or a state. Unless it says otherwise, nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key that a trie does not take. The caller's mistake.
    #[error("a key of {bytes} bytes; at most {max} are taken")]
    KeyTooLong {
        /// Bytes that it has.
        bytes: usize,
        /// Most bytes it may have.
        max: usize,
    },
    /// Keys that are not in strictly ascending order, where they must be.
    #[error("key {index} is not above the key before it")]
    KeyOrder {
        /// Index of the key in its batch.
        index: usize,
    },
    /// An empty value, which no leaf of a trie has. Delete the key instead.
    #[error("the value of key {index} is empty: delete the key instead")]
    EmptyValue {
        /// Index of the key in its batch.
        index: usize,
    },
    /// Answers that do not fit what an update wanted, in number or kind. The caller's mistake.
    #[error("the answers do not fit what the update wants")]
    AnswerMismatch,
    /// A stored node or flat entry breaks the format, or contradicts another one.
    #[error("corrupted: {what} at path {path}")]
    Corruption {
        /// The path of the node.
        path: Path,
        /// Which rule is broken.
        what: &'static str,
    },
    /// Bytes of an account that are not those of one.
    #[error("corrupted: the bytes of an account: {0}")]
    CorruptAccount(#[source] alloy_rlp::Error),
}

impl Error {
    /// The kind of the error, the same for all calls.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::KeyTooLong { .. }
            | Self::KeyOrder { .. }
            | Self::EmptyValue { .. }
            | Self::AnswerMismatch => ErrorKind::InvalidInput,
            Self::Corruption { .. } | Self::CorruptAccount(_) => ErrorKind::Corrupt,
        }
    }

    /// Damage at the node of `path`.
    pub(crate) fn corruption(path: &Path, what: &'static str) -> Self {
        Self::Corruption { path: path.clone(), what }
    }
}

terrane_io::error_kind_questions!(Error);

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;
