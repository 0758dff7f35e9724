//! The operations of traces of irmin's benchmark: one in a row.
//!
//! | tag | operation | fields |
//! |---|---|---|
//! | 0 | checkout | scoped hash, scoped context that it makes |
//! | 1 | add | key, value, scoped context, scoped context that it makes |
//! | 2 | remove | key, scoped context, scoped context that it makes |
//! | 3 | copy | key of the source, key of the target, scoped context, scoped context that it makes |
//! | 4, 5, 6 | find, mem, mem-tree | key, whether it was there, scoped context |
//! | 7 | commit | scoped hash, date (i64), message, list of scoped parents, scoped context |
//!
//! Contexts are numbers (i64); 0 is the empty tree and is there from the start. Hashes are texts.
//! Keys are physical.

use std::io::{BufRead, Write};

use super::codes::{Decode, Input, Key, List, Output, Scoped};
use super::error::{Malformed, Result};
use super::limits::Family;
use super::rows::{Rows, RowsWriter};
use crate::engines::context::{CommitHash, Steps};

/// A context of the trace.
pub type ContextId = i64;

/// Question about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// For the value.
    Find,
    /// Whether there is a value.
    Mem,
    /// Whether there is a value or a directory.
    MemTree,
}

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operands are in the table of the module")]
pub enum Operation<'a> {
    /// Makes a context of a commit.
    Checkout { commit: Scoped<CommitHash>, context: Scoped<ContextId> },
    /// Puts a value.
    Add { key: Key<'a>, value: &'a [u8], from: Scoped<ContextId>, to: Scoped<ContextId> },
    /// Removes a value or a directory.
    Remove { key: Key<'a>, from: Scoped<ContextId>, to: Scoped<ContextId> },
    /// Puts what is at one path at another one.
    Copy { source: Key<'a>, target: Key<'a>, from: Scoped<ContextId>, to: Scoped<ContextId> },
    /// Asks what is there.
    Ask { question: Question, key: Key<'a>, answer: bool, context: Scoped<ContextId> },
    /// Commits.
    Commit {
        hash: Scoped<CommitHash>,
        date: i64,
        message: &'a [u8],
        parents: List<'a, Scoped<CommitHash>>,
        context: Scoped<ContextId>,
    },
}

impl<'a> Decode<'a> for Operation<'a> {
    fn decode(input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        // The three questions have one layout.
        let ask = |question, input: &mut Input<'a>| {
            let (key, answer) = input.read()?;
            Ok(Self::Ask { question, key, answer, context: input.read()? })
        };

        match input.u8()? {
            0 => Ok(Self::Checkout { commit: input.read()?, context: input.read()? }),
            1 => {
                let (key, value) = input.read()?;
                Ok(Self::Add { key, value, from: input.read()?, to: input.read()? })
            }
            2 => Ok(Self::Remove { key: input.read()?, from: input.read()?, to: input.read()? }),
            3 => {
                let (source, target) = input.read()?;
                Ok(Self::Copy { source, target, from: input.read()?, to: input.read()? })
            }
            4 => ask(Question::Find, input),
            5 => ask(Question::Mem, input),
            6 => ask(Question::MemTree, input),
            7 => Ok(Self::Commit {
                hash: input.read()?,
                date: input.read()?,
                message: input.read()?,
                parents: input.read()?,
                context: input.read()?,
            }),
            tag => Err(Malformed::Tag { kind: "operation", tag }),
        }
    }
}

/// The operations of a trace, read one after the other.
#[derive(Debug)]
pub struct Operations<R> {
    rows: Rows<R>,
}

impl<R: BufRead> Operations<R> {
    /// Reads what stands before the operations.
    ///
    /// # Errors
    /// [`TooShort`](super::Error::TooShort), [`Magic`](super::Error::Magic),
    /// [`UnknownVersion`](super::Error::UnknownVersion), [`Header`](super::Error::Header),
    /// [`Read`](super::Error::Read).
    pub fn open(input: R) -> Result<Self> {
        let (rows, header) = Rows::open(input, Family::Irmin)?;
        rows.header(&header, |_| Ok(()))?;
        Ok(Self { rows })
    }

    /// Reads the next operation; `None` at the end.
    ///
    /// # Errors
    /// [`TruncatedTrace`](super::Error::TruncatedTrace), [`Malformed`](super::Error::Malformed),
    /// [`Read`](super::Error::Read); reading ends with it.
    pub fn next_operation(&mut self) -> Result<Option<Operation<'_>>> {
        self.rows.decode()
    }

    /// Number of the operation that was read last.
    #[must_use]
    pub fn row(&self) -> u64 {
        self.rows.place().row
    }
}

/// Writes a trace.
///
/// Each operation is two writes of the output; give it a buffered one.
#[derive(Debug)]
pub struct Recorder<W> {
    rows: RowsWriter<W>,
    row: Output,
}

impl<W: Write> Recorder<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// [`Write`](super::Error::Write), as of all that write.
    pub fn new(output: W) -> Result<Self> {
        let rows = RowsWriter::new(output, Family::Irmin)?;
        Ok(Self { rows, row: Output::default() })
    }

    fn write(&mut self, tag: u8, fields: impl FnOnce(&mut Output)) -> Result<()> {
        // One buffer serves all rows.
        self.row.0.clear();
        self.row.u8(tag);
        fields(&mut self.row);
        self.rows.write(&self.row.0)
    }

    /// Records that `context` was made of `commit`.
    ///
    /// # Errors
    /// [`Write`](super::Error::Write).
    pub fn checkout(
        &mut self,
        commit: Scoped<CommitHash>,
        context: Scoped<ContextId>,
    ) -> Result<()> {
        self.write(0, |row| {
            put_hash(row, commit);
            put_context(row, context);
        })
    }

    /// Records that a value was put.
    ///
    /// # Errors
    /// [`Write`](super::Error::Write).
    pub fn add(
        &mut self,
        (path, value): (Steps<'_>, &[u8]),
        (from, to): (Scoped<ContextId>, Scoped<ContextId>),
    ) -> Result<()> {
        self.write(1, |row| {
            put_path(row, path);
            row.string(value);
            put_context(row, from);
            put_context(row, to);
        })
    }

    /// Records that something was removed.
    ///
    /// # Errors
    /// [`Write`](super::Error::Write).
    pub fn remove(
        &mut self,
        path: Steps<'_>,
        (from, to): (Scoped<ContextId>, Scoped<ContextId>),
    ) -> Result<()> {
        self.write(2, |row| {
            put_path(row, path);
            put_context(row, from);
            put_context(row, to);
        })
    }

    /// Records that something was copied.
    ///
    /// # Errors
    /// [`Write`](super::Error::Write).
    pub fn copy(
        &mut self,
        (source, target): (Steps<'_>, Steps<'_>),
        (from, to): (Scoped<ContextId>, Scoped<ContextId>),
    ) -> Result<()> {
        self.write(3, |row| {
            put_path(row, source);
            put_path(row, target);
            put_context(row, from);
            put_context(row, to);
        })
    }

    /// Records a question and its answer.
    ///
    /// # Errors
    /// [`Write`](super::Error::Write).
    pub fn ask(
        &mut self,
        question: Question,
        (path, answer): (Steps<'_>, bool),
        context: Scoped<ContextId>,
    ) -> Result<()> {
        let tag = match question {
            Question::Find => 4,
            Question::Mem => 5,
            Question::MemTree => 6,
        };

        self.write(tag, |row| {
            put_path(row, path);
            row.u8(u8::from(answer));
            put_context(row, context);
        })
    }

    /// Records a commit.
    ///
    /// # Errors
    /// [`Write`](super::Error::Write).
    pub fn commit(
        &mut self,
        (hash, parents): (Scoped<CommitHash>, &[Scoped<CommitHash>]),
        (date, message): (i64, &[u8]),
        context: Scoped<ContextId>,
    ) -> Result<()> {
        self.write(7, |row| {
            put_hash(row, hash);
            row.i64(date);
            row.string(message);
            row.number(parents.len() as u64);
            for &parent in parents {
                put_hash(row, parent);
            }
            put_context(row, context);
        })
    }

    /// Ends the trace and gives the output back, flushed.
    ///
    /// # Errors
    /// [`Write`](super::Error::Write).
    pub fn finish(self) -> Result<W> {
        self.rows.finish()
    }
}

fn put_path(row: &mut Output, path: Steps<'_>) {
    row.number(path.count() as u64);
    path.iter().for_each(|step| row.string(step));
}

fn put_hash(row: &mut Output, hash: Scoped<CommitHash>) {
    row.scope(hash.is_last);
    row.hash(&hash.value);
}

fn put_context(row: &mut Output, context: Scoped<ContextId>) {
    row.scope(context.is_last);
    row.i64(context.value);
}
