//! Errors of reading and writing a trace of a versioned tree.

use std::io;

use super::limits::Family;
use crate::engines::context::NoCommitHash;
use crate::error::Class;

/// The result of reading or writing a trace.
pub type Result<T> = std::result::Result<T, Error>;

/// A trace cannot be read or written. Rows are counted from 0, offsets in bytes from the start of
/// the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input cannot be read.
    #[error("offset {offset}: {source}")]
    Read {
        /// Offset of the read.
        offset: u64,
        /// Answer of the system.
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("row {row} cannot be written: {source}")]
    Write {
        /// The row that was to be written.
        row: u64,
        /// Answer of the system.
        source: io::Error,
    },
    /// The file is too short to be a trace.
    #[error(
        "{bytes} bytes are not a trace: magic and version alone have {}",
        super::limits::PREAMBLE_BYTES
    )]
    TooShort {
        /// Bytes of the file.
        bytes: u64,
    },
    /// The file does not begin as a trace of the family does.
    #[error("not a trace of {expected}: the file begins with {:?}", String::from_utf8_lossy(.found))]
    Magic {
        /// The family that was asked for.
        expected: Family,
        /// First bytes of the file.
        found: [u8; 8],
    },
    /// The version is another one than is known here.
    #[error("version {found} of traces of {family} is not known, only {}", super::limits::VERSION)]
    UnknownVersion {
        /// The family.
        family: Family,
        /// The version.
        found: i32,
    },
    /// The header is damaged or cut.
    #[error("header at offset {offset}: {what}")]
    Header {
        /// Offset of the row.
        offset: u64,
        /// The rule that it breaks.
        what: Malformed,
    },
    /// The trace ends inside a row. Those before it are whole.
    #[error("the trace ends inside row {row}, which begins at offset {offset}")]
    TruncatedTrace {
        /// The row.
        row: u64,
        /// Offset of the row.
        offset: u64,
    },
    /// A row cannot be decoded.
    #[error("row {row} at offset {offset}: {what}")]
    Malformed {
        /// The row.
        row: u64,
        /// Offset of the wrong bytes.
        offset: u64,
        /// The rule that they break.
        what: Malformed,
    },
}

/// Rule that a row or a header breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The row ends inside one of its parts.
    #[error("too short for the content")]
    Short,
    /// The row goes on behind its last part.
    #[error("{0} bytes follow the last part")]
    Excess(u64),
    /// The row is longer than any that was ever recorded.
    #[error("{0} bytes are too many")]
    TooLong(u64),
    /// A number does not end, or goes beyond its range.
    #[error("a number is out of range")]
    Number,
    /// No row, event or variant has this tag.
    #[error("no {kind} has tag {tag}")]
    Tag {
        /// Kind of the item.
        kind: &'static str,
        /// The tag.
        tag: u8,
    },
    /// Directories lie in each other deeper than in any context.
    #[error("a tree is deeper than {} directories", super::limits::DEPTH_MAX)]
    Depth,
    /// The hash of a commit is none.
    #[error(transparent)]
    Hash(#[from] NoCommitHash),
}

impl Error {
    /// Returns the class of the error, from which the exit code follows.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Read { .. } | Self::Write { .. } => Class::Environment,
            _ => Class::Input,
        }
    }
}
