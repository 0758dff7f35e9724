//! Reader of era1 files: e2store records, whose headers and bodies are snappy frames of RLP.
//!
//! ```text
//! record  type u16 | length u32 | reserved u16 = 0 | data        integers little-endian
//! file    version, then for each block header, body, receipts, total difficulty, then
//!         accumulator and index
//! index   height of the first block i64 | offset of each block i64 | number of blocks i64
//! ```

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use snap::read::FrameDecoder;

use crate::ethereum::block::Block;
use crate::ethereum::error::Error;

const VERSION: u16 = 0x3265;
const HEADER: u16 = 0x03;
const BODY: u16 = 0x04;
const RECEIPTS: u16 = 0x05;
const TOTAL_DIFFICULTY: u16 = 0x06;
const ACCUMULATOR: u16 = 0x07;
const INDEX: u16 = 0x3266;

/// Bytes before the data of a record.
const RECORD_HEAD_BYTES: u64 = 8;

/// Most bytes of a header or body, packed or not: far above those of any block.
const PART_BYTES_MAX: u64 = 64 << 20;

/// An era1 file that is being read.
#[derive(Debug)]
pub(super) struct Era1 {
    path: PathBuf,
    file: BufReader<File>,
    offset: u64,
    first_height: u64,
    block_count: u64,
    next_height: u64,
}

impl Era1 {
    /// Opens a file and reads the heights of its blocks.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let read_error = |source| Error::Read { path: path.to_owned(), source };
        let file = BufReader::new(File::open(path).map_err(read_error)?);
        let mut era = Self {
            path: path.to_owned(),
            file,
            offset: 0,
            first_height: 0,
            block_count: 0,
            next_height: 0,
        };
        let (kind, length) = era.head()?.ok_or_else(|| era.framing("the file is empty"))?;
        if (kind, length) != (VERSION, 0) {
            return Err(era.framing("not an era1 file"));
        }

        let end = era.file.seek(SeekFrom::End(0)).map_err(read_error)?;
        let tail = |at: u64| end.checked_sub(at);
        era.block_count = match tail(8) {
            Some(at) => era.number_at(at)?,
            None => return Err(era.framing("the file ends early")),
        };
        let start = era.block_count.checked_add(2).and_then(|words| words.checked_mul(8));
        let start = start.and_then(tail).ok_or_else(|| era.framing("the index is damaged"))?;
        era.first_height = era.number_at(start)?;
        if era.first_height.checked_add(era.block_count).is_none() {
            return Err(era.framing("the index is damaged"));
        }
        era.next_height = era.first_height;
        era.file.seek(SeekFrom::Start(RECORD_HEAD_BYTES)).map_err(read_error)?;
        era.offset = RECORD_HEAD_BYTES;
        Ok(era)
    }

    pub(super) fn first_height(&self) -> u64 {
        self.first_height
    }

    pub(super) fn block_count(&self) -> u64 {
        self.block_count
    }

    /// The next block; `None` behind the last one.
    pub(super) fn next_block(&mut self) -> Result<Option<Block>, Error> {
        let mut header = None;
        while let Some((kind, length)) = self.head()? {
            match kind {
                HEADER => header = Some(self.unpack(length)?),
                BODY => {
                    let Some(header) = header.take() else {
                        return Err(self.framing("a body without a header"));
                    };
                    let body = self.unpack(length)?;
                    let block = Block::read(self.next_height, &header, &body)?;
                    self.next_height += 1;
                    return Ok(Some(block));
                }
                RECEIPTS | TOTAL_DIFFICULTY | ACCUMULATOR => self.skip(length)?,
                INDEX => break,
                _ => return Err(self.framing("a record of unknown type")),
            }
        }
        if self.next_height != self.first_height + self.block_count {
            return Err(self.framing("the file has not as many blocks as its index"));
        }
        Ok(None)
    }

    /// The type and length of the next record; `None` at the end of the file.
    fn head(&mut self) -> Result<Option<(u16, u64)>, Error> {
        let mut head = [0; RECORD_HEAD_BYTES as usize];
        let first = self.file.read(&mut head[..1]).map_err(|source| self.read_error(source))?;
        if first == 0 {
            return Ok(None);
        }
        self.read_exact(&mut head[1..])?;
        let [kind_low, kind_high, length @ .., 0, 0] = head else {
            return Err(self.framing("a record whose reserved bytes are not zero"));
        };
        self.offset += RECORD_HEAD_BYTES;
        let kind = u16::from_le_bytes([kind_low, kind_high]);
        Ok(Some((kind, u64::from(u32::from_le_bytes(length)))))
    }

    /// The data of a record, unpacked.
    fn unpack(&mut self, length: u64) -> Result<Vec<u8>, Error> {
        if PART_BYTES_MAX < length {
            return Err(self.framing("a record that is too large"));
        }
        let mut packed = vec![0; length as usize];
        self.read_exact(&mut packed)?;
        self.offset += length;

        let mut bytes = Vec::new();
        let mut frames = FrameDecoder::new(&packed[..]).take(PART_BYTES_MAX + 1);
        let is_whole = frames.read_to_end(&mut bytes).is_ok();
        if !is_whole || PART_BYTES_MAX < bytes.len() as u64 {
            return Err(self.framing("a record that cannot be unpacked"));
        }
        Ok(bytes)
    }

    fn skip(&mut self, length: u64) -> Result<(), Error> {
        // A length has 32 bits.
        self.file.seek_relative(length.cast_signed()).map_err(|source| self.read_error(source))?;
        self.offset += length;
        Ok(())
    }

    fn number_at(&mut self, offset: u64) -> Result<u64, Error> {
        self.file.seek(SeekFrom::Start(offset)).map_err(|source| self.read_error(source))?;
        self.offset = offset;
        let mut bytes = [0; 8];
        self.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact(bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.framing("the file ends early"),
            _ => self.read_error(error),
        })
    }

    fn read_error(&self, source: std::io::Error) -> Error {
        Error::Read { path: self.path.clone(), source }
    }

    fn framing(&self, what: &'static str) -> Error {
        Error::Framing { path: self.path.clone(), offset: self.offset, what }
    }
}
