//! The container of all families: magic, version, header, rows.

use std::io::{BufRead, ErrorKind, Read, Write};

use super::codes::{Decode, Input, Output};
use super::error::{Error, Malformed, Result};
use super::limits::{Family, PREAMBLE_BYTES, VERSION};

/// Longest header: the known ones have less than 200 bytes.
const HEADER_BYTES_MAX: u64 = 1 << 16;

/// Most bytes of a varint.
const VARINT_BYTES_MAX: usize = 10;

/// The rows of a trace, one after the other.
#[derive(Debug)]
pub(super) struct Rows<R> {
    input: R,
    family: Family,
    /// Bytes read.
    offset: u64,
    /// Number of the next row.
    next: u64,
    row: Vec<u8>,
    /// Offset of the bytes of the present row, behind their length.
    row_offset: u64,
}

impl<R: BufRead> Rows<R> {
    /// Reads what stands before the rows; returns them and the header.
    pub(super) fn open(input: R, family: Family) -> Result<(Self, Vec<u8>)> {
        let mut rows = Self { input, family, offset: 0, next: 0, row: Vec::new(), row_offset: 0 };
        let mut header = Vec::new();
        // A file without a whole preamble is no trace.
        if !rows.read(PREAMBLE_BYTES as u64, &mut header)? {
            return Err(Error::TooShort { bytes: rows.offset });
        }
        let (magic, version) = header.split_first_chunk::<8>().expect("twelve bytes were read");

        if magic != family.magic() {
            return Err(Error::Magic { expected: family, found: *magic });
        }

        let version = version.first_chunk().expect("twelve bytes were read");
        #[expect(clippy::big_endian_bytes, reason = "the format of others")]
        let found = i32::from_be_bytes(*version);
        if found != VERSION {
            return Err(Error::UnknownVersion { family, found });
        }
        let broken = |what| Error::Header { offset: PREAMBLE_BYTES as u64, what };

        // The header is bounded, so a damaged length takes no memory.
        let bytes = match rows.length()? {
            Length::Bytes(bytes) if bytes <= HEADER_BYTES_MAX => bytes,
            Length::Bytes(bytes) => return Err(broken(Malformed::TooLong(bytes))),
            Length::Cut | Length::End => return Err(broken(Malformed::Short)),
            Length::Endless => return Err(broken(Malformed::Number)),
        };

        if !rows.read(bytes, &mut header)? {
            return Err(broken(Malformed::Short));
        }
        Ok((rows, header))
    }

    /// Decodes the header.
    pub(super) fn header<'a, T>(
        &self,
        header: &'a [u8],
        decode: impl FnOnce(&mut Input<'a>) -> std::result::Result<T, Malformed>,
    ) -> Result<T> {
        let mut input = Input::new(header);
        let decoded = decode(&mut input).and_then(|header| input.finish().map(|()| header));
        // The header ends where the rows begin.
        let start = self.offset - header.len() as u64;
        decoded.map_err(|what| Error::Header { offset: start + input.offset(), what })
    }

    /// Decodes the next row; `None` at the end.
    pub(super) fn decode<'a, T: Decode<'a>>(&'a mut self) -> Result<Option<T>> {
        if !self.next()? {
            return Ok(None);
        }
        let place = self.place();
        let mut input = Input::new(&self.row);
        let decoded = input.read().and_then(|row| input.finish().map(|()| row));

        decoded.map(Some).map_err(|what| Error::Malformed {
            row: place.row,
            offset: place.offset + input.offset(),
            what,
        })
    }

    /// Reads the next row; `false` at the end.
    ///
    /// Memory grows as bytes are there, not as the length says.
    fn next(&mut self) -> Result<bool> {
        let row = self.next;
        let offset = self.offset;
        let broken = |what| Error::Malformed { row, offset, what };

        // Rows are bounded, so a damaged length takes no memory.
        let bytes = match self.length()? {
            Length::Bytes(bytes) if bytes <= self.family.row_bytes_max() => bytes,
            Length::Bytes(bytes) => return Err(broken(Malformed::TooLong(bytes))),
            Length::End => return Ok(false),
            Length::Cut => return Err(Error::TruncatedTrace { row, offset }),
            Length::Endless => return Err(broken(Malformed::Number)),
        };

        self.row_offset = self.offset;
        // The buffer of the last row serves this one.
        let mut bytes_of_row = std::mem::take(&mut self.row);
        let is_whole = self.read(bytes, &mut bytes_of_row)?;
        self.row = bytes_of_row;

        if !is_whole {
            return Err(Error::TruncatedTrace { row, offset });
        }
        self.next += 1;

        Ok(true)
    }

    /// Returns the place of the present row.
    pub(super) fn place(&self) -> RowPlace {
        RowPlace { row: self.next.saturating_sub(1), offset: self.row_offset }
    }

    /// Replaces `bytes` by the next `count` ones; `false` if there are fewer.
    fn read(&mut self, count: u64, bytes: &mut Vec<u8>) -> Result<bool> {
        bytes.clear();
        // No memory is taken for bytes that do not come.
        let read = self.input.by_ref().take(count).read_to_end(bytes);
        self.offset += bytes.len() as u64;
        read.map_err(|source| Error::Read { offset: self.offset, source })?;
        Ok(bytes.len() as u64 == count)
    }

    fn length(&mut self) -> Result<Length> {
        let mut number = 0_u64;
        for at in 0..VARINT_BYTES_MAX {
            let Some(byte) = self.byte()? else {
                return Ok(if at == 0 { Length::End } else { Length::Cut });
            };
            let bits = u64::from(byte & 0x7F);
            let shift = 7 * at;
            // The last byte has room for one bit.
            if bits << shift >> shift != bits {
                return Ok(Length::Endless);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(Length::Bytes(number));
            }
        }

        Ok(Length::Endless)
    }

    fn byte(&mut self) -> Result<Option<u8>> {
        loop {
            match self.input.fill_buf() {
                Ok(bytes) => {
                    let Some(&byte) = bytes.first() else { return Ok(None) };
                    self.input.consume(1);
                    self.offset += 1;
                    return Ok(Some(byte));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Read { offset: self.offset, source }),
            }
        }
    }
}

/// Varint in the file: complete, cut, or too long.
enum Length {
    Bytes(u64),
    /// The file ended before it.
    End,
    /// The file ended inside it.
    Cut,
    /// A varint of more than 64 bits.
    Endless,
}

/// Place of a row in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowPlace {
    /// Number of the row.
    pub(super) row: u64,
    /// Offset of its bytes.
    pub(super) offset: u64,
}

/// Writes the container of a trace.
#[derive(Debug)]
pub(super) struct RowsWriter<W> {
    output: W,
    row: u64,
    frame: Output,
}

impl<W: Write> RowsWriter<W> {
    /// Begins a trace without a header.
    pub(super) fn new(output: W, family: Family) -> Result<Self> {
        Self::with_header(output, family, &[])
    }

    /// Begins a trace.
    pub(super) fn with_header(mut output: W, family: Family, header: &[u8]) -> Result<Self> {
        let mut start = Output(family.magic().to_vec());
        #[expect(clippy::big_endian_bytes, reason = "the format of others")]
        start.0.extend_from_slice(&VERSION.to_be_bytes());
        start.string(header);
        output.write_all(&start.0).map_err(|source| Error::Write { row: 0, source })?;
        Ok(Self { output, row: 0, frame: Output::default() })
    }

    /// Appends a row.
    pub(super) fn write(&mut self, row: &[u8]) -> Result<()> {
        self.frame.0.clear();
        self.frame.number(row.len() as u64);
        let written =
            self.output.write_all(&self.frame.0).and_then(|()| self.output.write_all(row));
        written.map_err(|source| Error::Write { row: self.row, source })?;
        self.row += 1;
        Ok(())
    }

    /// Flushes the output and gives it back.
    pub(super) fn finish(mut self) -> Result<W> {
        self.output.flush().map_err(|source| Error::Write { row: self.row, source })?;
        Ok(self.output)
    }
}
