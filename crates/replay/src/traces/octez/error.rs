//! Errors that end the replay of a trace of Octez.

use std::fmt;

use terrane::context;

use crate::engines::context::CommitHash;
use crate::engines::engine::EngineError;
use crate::error::Class;
use crate::traces::container;

/// Result of a replay.
pub type Result<T> = std::result::Result<T, Error>;

/// Place in a trace. Blocks and events are counted from 0, events in their block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventPlace {
    /// The block.
    pub block: u64,
    /// Level of the block in the chain, if the trace says it.
    pub level: Option<u64>,
    /// The event.
    pub event: u64,
}

impl fmt::Display for EventPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, level, event } = self;
        match level {
            Some(level) => write!(f, "block {block} (level {level}), event {event}"),
            None => write!(f, "block {block}, event {event}"),
        }
    }
}

/// A replay has ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] container::Error),
    /// The store failed.
    #[error("{place}: {source}")]
    Store {
        /// Place in the trace.
        place: EventPlace,
        /// Error of the store.
        source: EngineError,
    },
    /// The store's answer is not the recorded one.
    #[error("{place}: {question} {path:?}: recorded {expected}, found {found}")]
    ResultMismatch {
        /// Place in the trace.
        place: EventPlace,
        /// The question.
        question: &'static str,
        /// Path of the question.
        path: String,
        /// Answer in the trace.
        expected: bool,
        /// Answer of the store.
        found: bool,
    },
    /// A fold visits more, or less, than when the trace was recorded.
    #[error("{place}: a fold visits {} than the recorded fold", if *.is_more { "more" } else { "less" })]
    FoldMismatch {
        /// Place in the trace.
        place: EventPlace,
        /// Whether it visits more.
        is_more: bool,
    },
    /// The hash of a commit is not the recorded one.
    #[error("{place}: commit {got}, recorded {expected}")]
    HashMismatch {
        /// Place in the trace.
        place: EventPlace,
        /// The recorded hash.
        expected: CommitHash,
        /// The store's hash.
        got: CommitHash,
    },
    /// A context or a tree is used that the trace has not made, or has forgotten.
    #[error("{place}: the trace has no {kind} {number} here")]
    Unknown {
        /// Place in the trace.
        place: EventPlace,
        /// `context` or `tree`.
        kind: &'static str,
        /// Number of the object.
        number: u64,
    },
    /// A commit is used that is not in the store.
    #[error(
        "{place}: no commit {commit} in the store; a trace that begins in the middle of a chain needs what is before it, \
         see `terrane context import`"
    )]
    UnknownCommit {
        /// Place in the trace.
        place: EventPlace,
        /// Hash of the commit in the trace.
        commit: String,
    },
    /// An event is where none of its kind can be.
    #[error("{place}: {what}")]
    Unexpected {
        /// Place in the trace.
        place: EventPlace,
        /// The rule that is broken.
        what: &'static str,
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
            Self::Store { source, .. } => source.class(),
            Self::ResultMismatch { .. } | Self::HashMismatch { .. } | Self::FoldMismatch { .. } => {
                Class::Check
            }
            Self::Unknown { .. } | Self::UnknownCommit { .. } | Self::Unexpected { .. } => {
                Class::Input
            }
            Self::Interrupted => Class::Interrupted,
        }
    }
}

/// The place is set by who knows it.
impl From<context::Error> for Error {
    fn from(error: context::Error) -> Self {
        Self::Store { place: EventPlace::default(), source: error.into() }
    }
}

impl Error {
    /// Returns the error with its place: errors of the store do not know it.
    pub(super) fn at(self, here: EventPlace) -> Self {
        match self {
            Self::Store { place, source } if place == EventPlace::default() => {
                Self::Store { place: here, source }
            }
            other => other,
        }
    }
}
