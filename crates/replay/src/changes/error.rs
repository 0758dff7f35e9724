//! Errors that end a replay of changes.

use std::io;

use super::input::LinePlace;
use super::record::Malformed;
use terrane::io::ErrorKind;

use crate::engines::engine::EngineError;
use crate::error::Class;
use crate::ledger::history;

/// A replay of changes failed. The state is that of the last whole block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input cannot be read, or its compression is damaged.
    #[error("{place}: {source}")]
    Read {
        /// The line that was to be read.
        place: LinePlace,
        /// Answer of the system or of the decoder.
        source: io::Error,
    },
    /// A line breaks the format.
    #[error("{place}: {what}")]
    Malformed {
        /// The line.
        place: LinePlace,
        /// The rule that it breaks.
        what: Malformed,
    },
    /// The file ends inside a block, which is discarded.
    #[error("{place}: the file ends inside block {block}, which is discarded")]
    Truncated {
        /// The end.
        place: LinePlace,
        /// The block.
        block: u64,
    },
    /// The state is not what the history says.
    #[error("{place}, {}: {check}: expected {expected}, found {found}", block_name(*.block))]
    Check {
        /// The line with the check.
        place: LinePlace,
        /// The block of the state checked, or the one being built; `None` for the empty state.
        block: Option<u64>,
        /// Name of the check.
        check: String,
        /// Value in the history.
        expected: String,
        /// Answer of the engine.
        found: String,
    },
    /// The history goes back to where the store cannot.
    #[error("{place}: {source}")]
    Rollback {
        /// The line.
        place: LinePlace,
        /// Reason of the history.
        source: history::Error,
    },
    /// The store has blocks and the caller did not ask to go on from them.
    #[error("the store is already at block {tip}; resume to go on from there")]
    NotEmpty {
        /// The newest block.
        tip: u64,
    },
    /// The input's history is not the one that led to the store's state.
    #[error("the input does not lead to the store's state at block {tip}")]
    OtherHistory {
        /// The store's newest block.
        tip: u64,
    },
    /// The state or the undo log is not what a replay wrote.
    #[error("the store is damaged: {0}")]
    Corrupt(&'static str),
    /// The engine or the undo log failed.
    #[error(transparent)]
    History(#[from] history::Error),
    /// The monitor asked to stop.
    #[error("interrupted; the state is that of {}", block_name(*.height))]
    Interrupted {
        /// The newest block; `None` if the state is empty.
        height: Option<u64>,
    },
}

fn block_name(block: Option<u64>) -> String {
    block.map_or_else(|| "the empty state".to_owned(), |block| format!("block {block}"))
}

impl Error {
    /// Returns the class of the error, from which the exit code follows.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::InvalidData
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::UnexpectedEof => Class::Input,
                _ => Class::Environment,
            },
            Self::Malformed { .. }
            | Self::Truncated { .. }
            | Self::NotEmpty { .. }
            | Self::OtherHistory { .. } => Class::Input,
            Self::Check { .. } | Self::Corrupt(_) => Class::Check,
            Self::Rollback { source, .. } | Self::History(source) => source.class(),
            Self::Interrupted { .. } => Class::Interrupted,
        }
    }
}

impl Error {
    /// Returns the kind of the error, if it says more than the class.
    #[must_use]
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Rollback { source, .. } | Self::History(source) => source.kind(),
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
