//! Errors of reading and writing a trace of an index.

use std::io;

use super::dialect::Dialect;
use crate::error::Class;

/// The result of reading or writing a trace.
pub type Result<T> = std::result::Result<T, Error>;

/// A trace cannot be read or written. Records are counted from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input cannot be read.
    #[error("record {record}: {source}")]
    Read {
        /// The record that was to be read.
        record: u64,
        /// Answer of the system.
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("record {record} cannot be written: {source}")]
    Write {
        /// The record that was to be written.
        record: u64,
        /// Answer of the system.
        source: io::Error,
    },
    /// The trace ends inside a record. Those before it are whole.
    #[error("the trace ends inside record {record}")]
    TruncatedTrace {
        /// The record.
        record: u64,
    },
    /// A record has a length that none can have: this is no trace, or it is damaged.
    #[error("record {record}: no record has {length} bytes")]
    Length {
        /// The record.
        record: u64,
        /// The length that is said.
        length: i32,
    },
    /// A record is no operation of the dialect.
    #[error("record {record}: {what}")]
    Malformed {
        /// The record.
        record: u64,
        /// The rule that it breaks.
        what: Malformed,
    },
    /// No dialect reads the first records: this is no trace, or it is damaged.
    #[error(
        "record {record}: no dialect reads the trace up to here; name the dialect of the trace"
    )]
    UnknownDialect {
        /// The first record that the last dialect left does not read.
        record: u64,
    },
    /// Several dialects read the first records, and mean different things.
    #[error(
        "the first {records} records can be in dialect {first} and in {second}; name the dialect of the trace"
    )]
    AmbiguousDialect {
        /// One dialect.
        first: Dialect,
        /// Another one.
        second: Dialect,
        /// Records looked at.
        records: u64,
    },
    /// The dialect of the recorder has no such operation.
    #[error("record {record}: the dialect of the recorder has no such operation")]
    Unwritable {
        /// The record that was to be written.
        record: u64,
    },
}

/// Rule that the body of a record breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// No operation of the dialect has this tag.
    #[error("no operation has tag {0}")]
    Tag(u8),
    /// The body ends inside the operation.
    #[error("the record is too short for its operation")]
    Short,
    /// The body goes on behind the operation.
    #[error("{0} bytes follow the operation")]
    Excess(usize),
    /// A number does not end, or goes beyond its range.
    #[error("a number is out of range")]
    Number,
    /// A key has another length than keys have.
    #[error("a key of {0} bytes")]
    KeyLength(u64),
    /// A value has another length than values have.
    #[error("a value of {0} bytes")]
    ValueLength(u64),
    /// A key is no base58 text, or its checksum is wrong.
    #[error("a key is damaged: its checksum does not fit")]
    KeyChecksum,
    /// A key is the text of something else than a hash of a context.
    #[error("a key is not the hash of a context (`Co…`)")]
    KeyKind,
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
