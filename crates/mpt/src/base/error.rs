//! Errors of an Ethereum state: one variant for each reaction of the caller.

use alloy_primitives::B256;
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
    /// A block that does not follow the tip. Go back to its parent first.
    #[error("block {height} on {parent} does not follow the tip, block {tip}")]
    NotOnTip {
        /// Height of the block.
        height: u64,
        /// Hash of its parent.
        parent: B256,
        /// Height of the tip.
        tip: u64,
    },
    /// A height at which the state knows no block, or no longer.
    #[error("no block at height {height}")]
    UnknownHeight {
        /// The height.
        height: u64,
    },
    /// A block has another root than expected.
    #[error("the root is {computed}; {expected} was expected")]
    RootMismatch {
        /// The expected root.
        expected: B256,
        /// The root of the entries.
        computed: B256,
    },
    /// A slot is set, and its account does not exist after the block.
    #[error("account {account} has slots and does not exist after the block")]
    SlotWithoutAccount {
        /// Hash of the address.
        account: B256,
    },
    /// An import into the state has not been finished: go on with it, or delete the directory.
    #[error("an import into this state has not been finished")]
    ImportUnfinished,
    /// An import goes on with another account than the given one, or has none to go on with.
    #[error("the import goes on with account {account}")]
    ImportPosition {
        /// Hash of the address of the account whose slots were being imported.
        account: B256,
    },
    /// An import into a state that has blocks.
    #[error("the state has blocks already; an import needs an empty directory")]
    NotEmpty,
    /// The slots of an imported account have another root than the account.
    #[error("the slots of account {account} have the root {computed}, the account {expected}")]
    StorageRootMismatch {
        /// Hash of the address.
        account: B256,
        /// The storage root of the account.
        expected: B256,
        /// The root of the slots.
        computed: B256,
    },
    /// A range that was to be imported proves nothing.
    #[error("a range proves nothing")]
    Range(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store holds something other than a state.
    #[error("not an Ethereum state: {why}")]
    NotAState {
        /// Reason.
        why: &'static str,
    },
    /// The state was written by another version of the program.
    #[error("format version {found}; this program reads {newest}")]
    UnknownVersion {
        /// Its version.
        found: u32,
        /// The newest version that this program reads.
        newest: u32,
    },
    /// The store failed.
    #[error("the store of the state failed")]
    Store(#[from] terrane_lsm::Error),
    /// An entry of the store breaks the format.
    #[error("corrupted: {what}")]
    CorruptEntry {
        /// Which entry.
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
            | Self::AnswerMismatch
            | Self::NotOnTip { .. }
            | Self::RootMismatch { .. }
            | Self::SlotWithoutAccount { .. }
            | Self::ImportPosition { .. }
            | Self::StorageRootMismatch { .. }
            | Self::Range(_)
            | Self::NotAState { .. } => ErrorKind::InvalidInput,
            Self::NotEmpty => ErrorKind::AlreadyExists,
            Self::ImportUnfinished => ErrorKind::Conflict,
            Self::UnknownHeight { .. } => ErrorKind::NotFound,
            Self::UnknownVersion { .. } => ErrorKind::Unsupported,
            Self::Store(source) => source.kind(),
            Self::Corruption { .. } | Self::CorruptEntry { .. } | Self::CorruptAccount(_) => {
                ErrorKind::Corrupt
            }
        }
    }

    /// Damage at the node of `path`.
    pub(crate) fn corruption(path: &Path, what: &'static str) -> Self {
        Self::Corruption { path: path.clone(), what }
    }

    /// Damage of an entry.
    pub(crate) fn corrupt_entry(what: &'static str) -> Self {
        Self::CorruptEntry { what }
    }
}

terrane_io::error_kind_questions!(Error);

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;
