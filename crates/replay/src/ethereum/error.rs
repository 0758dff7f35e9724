//! Errors that end a replay of Ethereum's blocks.

use std::io;
use std::path::PathBuf;

use terrane::io::ErrorKind;
use terrane::mpt::{self, B256};

use crate::error::Class;

/// A replay of Ethereum's blocks failed. The state is that of the last good block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system failed to read a file.
    #[error("reading {} failed: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Answer of the system.
        source: io::Error,
    },
    /// The bytes of a file are not those of an era1 file.
    #[error("{} at byte {offset}: {what}", .path.display())]
    Framing {
        /// The file.
        path: PathBuf,
        /// Offset of the record.
        offset: u64,
        /// The rule that is broken.
        what: &'static str,
    },
    /// A block breaks a rule, or needs a virtual machine.
    #[error("block {height}: {what}")]
    Block {
        /// Its height.
        height: u64,
        /// The rule that is broken.
        what: &'static str,
    },
    /// The state after a block has another root than its header.
    #[error("block {height}: the state has the root {computed}, the header {expected}")]
    Root {
        /// Its height.
        height: u64,
        /// The root of the header.
        expected: B256,
        /// The root of the state.
        computed: B256,
    },
    /// The accounts of block 0 that come with the program cannot be read.
    #[error("the accounts of block 0 cannot be read")]
    Genesis,
    /// The state failed.
    #[error(transparent)]
    State(#[from] mpt::Error),
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
            Self::Framing { .. } => Class::Input,
            Self::Read { .. } => Class::Environment,
            Self::Block { .. } | Self::Root { .. } | Self::Genesis => Class::Check,
            Self::State(error) => Class::from(error),
            Self::Interrupted { .. } => Class::Interrupted,
        }
    }

    /// Returns the kind of the error, if it says more than the class.
    #[must_use]
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::State(error) => Some(error.kind()),
            _ => None,
        }
    }
}
