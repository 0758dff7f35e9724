//! Traces of operations on an index, as the programs that Terrane's index comes from have recorded
//! them.
//!
//! A trace has neither magic nor header: each record is the length of its body (i32, big-endian)
//! and the body, which is one operation and uses exactly that length; the end of the file ends the
//! trace. What a body means depends on the program that wrote it, the *dialect*, see [`Dialect`].
//! The caller names the dialect, or detection finds the one dialect that reads all of the first
//! records.
//!
//! [`Recorder`] writes traces of our own, in the first dialect and with removals, which that one
//! does not have.
//!
//! Records are counted from 0.

// Bottom-up: a module imports only from modules above it.
mod dialect;
mod error;
mod record;

use std::collections::VecDeque;
use std::io::{BufReader, ErrorKind, Read, Write};

pub use self::dialect::Dialect;
pub use self::error::{Error, Malformed, Result};
pub use self::record::{KEY_BYTES, Op, VALUE_BYTES};

/// Extension of the names of files that [`Recorder`] writes; the number at its end is the version.
pub const RECORDED_EXTENSION: &str = "terrane-index-trace-1";

/// Longest body. The longest operation there is has less than 100 bytes, so a file of another kind
/// is known by it.
const BODY_BYTES_MAX: usize = 1024;

/// Most records that are looked at to find out a dialect.
const DETECTED_RECORDS_MAX: usize = 1 << 16;

/// The bodies of a trace.
struct Bodies<R> {
    input: BufReader<R>,
    /// Number of the next record.
    record: u64,
}

impl<R: Read> Bodies<R> {
    /// Reads the next body into `body`; `false` at the end.
    fn next(&mut self, body: &mut Vec<u8>) -> Result<bool> {
        let mut length = [0; 4];
        match self.fill(&mut length)? {
            0 => return Ok(false),
            4 => {}
            _ => return Err(Error::TruncatedTrace { record: self.record }),
        }

        #[expect(clippy::big_endian_bytes, reason = "the format of others")]
        let length = i32::from_be_bytes(length);
        let bytes = usize::try_from(length).ok().filter(|bytes| *bytes <= BODY_BYTES_MAX);
        let Some(bytes) = bytes else {
            return Err(Error::Length { record: self.record, length });
        };
        // The length is bounded, so a damaged length takes no memory.
        body.resize(bytes, 0);

        if self.fill(body)? < bytes {
            return Err(Error::TruncatedTrace { record: self.record });
        }

        self.record += 1;
        Ok(true)
    }

    /// Fills `buffer` as far as there are bytes, and says how far.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        // A read may give fewer bytes than were asked for.
        while filled < buffer.len() {
            match self.input.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Read { record: self.record, source }),
            }
        }
        Ok(filled)
    }
}

/// The operations of a trace, in their order. The first error ends it.
pub struct Trace<R> {
    bodies: Bodies<R>,
    dialect: Dialect,
    /// Bodies read while detecting the dialect, and the error that ended the detection.
    ahead: VecDeque<Vec<u8>>,
    failure: Option<Error>,
    body: Vec<u8>,
    /// Number of the next operation.
    record: u64,
    has_ended: bool,
}

impl<R: Read> Trace<R> {
    /// The trace that `input` is, in this dialect.
    pub fn new(input: R, dialect: Dialect) -> Self {
        let bodies = Bodies { input: BufReader::with_capacity(1 << 16, input), record: 0 };
        Self {
            bodies,
            dialect,
            ahead: VecDeque::new(),
            failure: None,
            body: Vec::new(),
            record: 0,
            has_ended: false,
        }
    }

    /// The trace that `input` is, in the only dialect that reads its first records. A trace without
    /// a record is of the first dialect.
    ///
    /// Cost: holds records until one dialect is left, 65,536 at most; as a rule it is a few.
    ///
    /// # Errors
    /// [`Error::UnknownDialect`], [`Error::AmbiguousDialect`]. Whatever else is wrong with the
    /// trace is said when its operations are read.
    pub fn detect(input: R) -> Result<Self> {
        let mut trace = Self::new(input, Dialect::ALL[0]);
        let mut fitting = Dialect::ALL.to_vec();
        // Records are read until one dialect is left that can read all of them.
        while trace.failure.is_none() && fitting.len() > 1 {
            if trace.ahead.len() == DETECTED_RECORDS_MAX {
                break;
            }
            let mut body = Vec::new();
            match trace.bodies.next(&mut body) {
                Ok(true) => {
                    fitting.retain(|dialect| Op::decode(*dialect, &body).is_ok());
                    trace.ahead.push_back(body);
                }
                Ok(false) => break,
                Err(error) => trace.failure = Some(error),
            }
        }

        let records = trace.ahead.len() as u64;
        match fitting.as_slice() {
            [] => Err(Error::UnknownDialect { record: records - 1 }),
            [dialect] => {
                trace.dialect = *dialect;
                Ok(trace)
            }
            _ if records == 0 => Ok(trace),
            [first, second, ..] => {
                Err(Error::AmbiguousDialect { first: *first, second: *second, records })
            }
        }
    }

    /// The dialect that is read.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn read(&mut self) -> Result<Option<Op>> {
        if let Some(body) = self.ahead.pop_front() {
            self.body = body;
        } else if let Some(failure) = self.failure.take() {
            return Err(failure);
        } else if !self.bodies.next(&mut self.body)? {
            return Ok(None);
        }

        let record = self.record;
        let op = Op::decode(self.dialect, &self.body);
        self.record += 1;
        op.map(Some).map_err(|what| Error::Malformed { record, what })
    }
}

impl<R: Read> Iterator for Trace<R> {
    type Item = Result<Op>;

    fn next(&mut self) -> Option<Result<Op>> {
        if self.has_ended {
            return None;
        }
        let next = self.read().transpose();
        // After an error the trace has ended.
        self.has_ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Writes a trace in the first dialect, and removals besides.
///
/// Each operation is one write of the output; give it a buffered one.
pub struct Recorder<W> {
    output: W,
    record: u64,
}

impl<W: Write> Recorder<W> {
    /// Begins a trace.
    pub fn new(output: W) -> Self {
        Self { output, record: 0 }
    }

    /// Appends an operation.
    ///
    /// # Errors
    /// [`Error::Unwritable`] if the dialect has no such operation, a question has no answer, or the
    /// length in a value is negative; nothing is written then. [`Error::Write`].
    pub fn record(&mut self, op: &Op) -> Result<()> {
        let record = self.record;
        let body = op.encode().ok_or(Error::Unwritable { record })?;
        // A body is much shorter than 2 GiB.
        #[expect(clippy::big_endian_bytes, reason = "the format of others")]
        let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(&body);
        self.output.write_all(&bytes).map_err(|source| Error::Write { record, source })?;
        self.record += 1;
        Ok(())
    }

    /// Ends the trace and gives the output back, flushed.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn finish(mut self) -> Result<W> {
        let record = self.record;
        self.output.flush().map_err(|source| Error::Write { record, source })?;
        Ok(self.output)
    }
}

#[cfg(test)]
mod tests;
