//! Errors that end a replay of Bitcoin's blocks.

use std::io;
use std::path::PathBuf;

use bitcoin::{BlockHash, Network};
use terrane::io::ErrorKind;

use super::block::Fault;
use crate::engines::engine::EngineError;
use crate::error::Class;
use crate::ledger::history;

/// A replay of Bitcoin's blocks failed. The state is that of the last good block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path given is of no use.
    #[error("{}: {what}", .path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Reason why the file is of no use.
        what: &'static str,
    },
    /// The system failed to read a block file.
    #[error("reading {} failed: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Answer of the system.
        source: io::Error,
    },
    /// Magic or size of a record is damaged, so what follows in the file cannot be told apart.
    #[error("{} at byte {offset}: {what}", .path.display())]
    Framing {
        /// The file.
        path: PathBuf,
        /// Offset of the damage.
        offset: u64,
        /// The rule that is broken.
        what: String,
    },
    /// A header's hash does not have the work that it claims.
    #[error("{} at byte {offset}: the header's hash {hash} fails its proof of work", .path.display())]
    ProofOfWork {
        /// The file.
        path: PathBuf,
        /// Offset of the record in its file, in bytes.
        offset: u64,
        /// The hash of the header as it stands.
        hash: BlockHash,
    },
    /// A block on the best chain is not valid.
    #[error("block {height} {hash} in {} at byte {offset}: {fault}", .path.display())]
    Block {
        /// Height of the block.
        height: u32,
        /// Hash of the block.
        hash: BlockHash,
        /// The file.
        path: PathBuf,
        /// Offset of the record in its file, in bytes.
        offset: u64,
        /// The rule that is broken.
        fault: Box<Fault>,
    },
    /// No block of the input leads back to genesis, and the store is empty.
    #[error("no block of the input leads back to the genesis block of {network}")]
    NoGenesis {
        /// The network.
        network: Network,
    },
    /// The best chain leaves the store's chain below the oldest block that can be gone back to.
    #[error(
        "the best chain ends in {hash} and leaves the store's below block {oldest}, the oldest \
         block kept"
    )]
    ForkTooDeep {
        /// The best chain's last block.
        hash: BlockHash,
        /// The oldest block kept.
        oldest: u64,
    },
    /// The table or the undo log is not what a replay wrote.
    #[error("the store is damaged: {0}")]
    Corrupt(&'static str),
    /// The engine or the undo log failed.
    #[error(transparent)]
    History(#[from] history::Error),
    /// The monitor asked to stop.
    #[error("interrupted; the state is that of {}", .height.map_or_else(
        || "the empty store".to_owned(), |height| format!("block {height}")))]
    Interrupted {
        /// The height of the state; `None` if it is empty.
        height: Option<u64>,
    },
}

impl Error {
    /// Returns the class of the error, from which the exit code follows.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Path { .. }
            | Self::Framing { .. }
            | Self::NoGenesis { .. }
            | Self::ForkTooDeep { .. } => Class::Input,
            Self::Read { .. } => Class::Environment,
            Self::ProofOfWork { .. } | Self::Block { .. } | Self::Corrupt(_) => Class::Check,
            Self::History(error) => error.class(),
            Self::Interrupted { .. } => Class::Interrupted,
        }
    }
}

impl Error {
    /// Returns the kind of the error, if it says more than the class.
    #[must_use]
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::History(error) => error.kind(),
            Self::Corrupt(_) => Some(ErrorKind::Corrupt),
            _ => None,
        }
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        Self::History(error.into())
    }
}
