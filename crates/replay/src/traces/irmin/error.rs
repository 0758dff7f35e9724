//! Errors that end the replay of a trace.

use crate::engines::context::CommitHash;
use crate::engines::engine::EngineError;
use crate::error::Class;
use crate::traces::container;

/// Result of a replay.
pub type Result<T> = std::result::Result<T, Error>;

/// A replay has ended early. Blocks and rows are counted from 0.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] container::Error),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine's answer is not the recorded one.
    #[error("block {block}, row {row}: {kind} {path}: recorded {expected}, found {found}")]
    ResultMismatch {
        /// The block.
        block: u64,
        /// The row.
        row: u64,
        /// The question.
        kind: &'static str,
        /// Path of the question.
        path: String,
        /// Answer in the trace.
        expected: bool,
        /// Answer of the engine.
        found: bool,
    },
    /// The hash of a commit is not the recorded one.
    #[error("block {block}, row {row}: commit {got}, recorded {expected}")]
    HashMismatch {
        /// The block.
        block: u64,
        /// The row.
        row: u64,
        /// The recorded hash.
        expected: CommitHash,
        /// The engine's hash.
        got: CommitHash,
    },
    /// Nothing is where something was copied from when the trace was recorded.
    #[error("block {block}, row {row}: nothing is at {path}, which is to be copied")]
    AbsentSource {
        /// The block.
        block: u64,
        /// The row.
        row: u64,
        /// From where.
        path: String,
    },
    /// A context is used that the trace has not made, or has forgotten.
    #[error("block {block}, row {row}: the trace has no context {context} here")]
    UnknownContext {
        /// The block.
        block: u64,
        /// The row.
        row: u64,
        /// Number of the context.
        context: i64,
    },
    /// A commit is used that is not in the store.
    #[error(
        "block {block}, row {row}: no commit {commit} in the store; the trace may begin in the middle of a chain"
    )]
    UnknownCommit {
        /// The block.
        block: u64,
        /// The row.
        row: u64,
        /// Hash of the commit in the trace.
        commit: CommitHash,
    },
    /// The monitor asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Returns the class of the error, from which the exit code follows.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Trace(error) => error.class(),
            Self::Engine(error) => error.class(),
            Self::ResultMismatch { .. } | Self::HashMismatch { .. } | Self::AbsentSource { .. } => {
                Class::Check
            }
            Self::UnknownContext { .. } | Self::UnknownCommit { .. } => Class::Input,
            Self::Interrupted => Class::Interrupted,
        }
    }
}
