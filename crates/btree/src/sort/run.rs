//! A sorted run in a file: blocks of one size, each with whole records and a checksum over them and
//! their place.
//!
//! A run has neither header nor footer: the manifest says how many blocks it has. Its keys are
//! strictly ascending.

use std::path::Path;
use std::sync::Arc;

use terrane_io::bytes::Reader;
use terrane_io::checksum::{crc32c, crc32c_append};
use terrane_io::files::create_afresh;
use terrane_io::{Access, Disk, DiskFile, OpenMode};

use super::manifest::{Parameters, Run};
use crate::page::block::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};

/// Bytes of a block before its records: checksum, and length of the records.
pub(super) const BLOCK_HEADER_SIZE: usize = 8;

/// Bytes of a record before its key: both lengths.
pub(super) const RECORD_HEADER_SIZE: usize = 4;

/// Bytes of a record's position, if records carry it.
pub(super) const POSITION_SIZE: usize = 8;

/// Longest record, in bytes.
pub(super) const RECORD_BYTES_MAX: usize =
    RECORD_HEADER_SIZE + POSITION_SIZE + KEY_BYTES_MAX + VALUE_BYTES_MAX;

/// Alignment of blocks, in bytes.
pub(super) const BLOCK_ALIGN: usize = 4096;

const _: () = assert!(BLOCK_HEADER_SIZE + RECORD_BYTES_MAX <= BLOCK_ALIGN);

/// The file name of run `number`.
pub(super) fn run_name(number: u64) -> String {
    format!("sort.{number:08}.run")
}

/// The number of the run with that file name.
pub(super) fn run_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("sort.")?.strip_suffix(".run")?.parse().ok()?;
    // Another spelling of the number is no file of a sort.
    (run_name(number) == name).then_some(number)
}

/// A stored record whose lengths have been checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    /// Position in the input; 0 unless records carry it.
    pub(super) position: u64,
    /// All bytes of the record.
    pub(super) bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Appends a record.
    pub(super) fn put(out: &mut Vec<u8>, key: &[u8], value: &[u8], position: Option<u64>) {
        out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        out.extend_from_slice(&(value.len() as u16).to_le_bytes());
        if let Some(position) = position {
            out.extend_from_slice(&position.to_le_bytes());
        }
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }

    /// The record at the beginning of `bytes`; `None` if it goes past their end.
    #[inline]
    pub(super) fn first_of(bytes: &'a [u8], has_position: bool) -> Option<Self> {
        let (lengths, mut rest) = bytes.split_first_chunk::<RECORD_HEADER_SIZE>()?;
        let key_bytes = usize::from(u16::from_le_bytes([lengths[0], lengths[1]]));
        let value_bytes = usize::from(u16::from_le_bytes([lengths[2], lengths[3]]));
        let mut position = 0;
        if has_position {
            let (stored, behind) = rest.split_first_chunk::<POSITION_SIZE>()?;
            position = u64::from_le_bytes(*stored);
            rest = behind;
        }
        let (key, rest) = rest.split_at_checked(key_bytes)?;
        let (value, rest) = rest.split_at_checked(value_bytes)?;
        Some(Self { key, value, position, bytes: bytes.get(..bytes.len() - rest.len())? })
    }
}

/// The checksum of a block: of its place, then of the bytes behind the checksum.
fn checksum(parameters: &Parameters, run: u64, block: u64, bytes: &[u8]) -> u32 {
    let mut place = [0; 24];
    place[..8].copy_from_slice(&parameters.identity.to_le_bytes());
    place[8..16].copy_from_slice(&run.to_le_bytes());
    place[16..].copy_from_slice(&block.to_le_bytes());
    crc32c_append(crc32c(&place), bytes)
}

/// Writes a run, record by record, with one write for each block.
#[derive(Debug)]
pub(super) struct RunWriter {
    file: Arc<dyn DiskFile>,
    parameters: Parameters,
    run: Run,
    /// The block that is being filled, including its header.
    block: Vec<u8>,
}

impl RunWriter {
    /// Begins `run`, of which only the number and the covered part of the input are known.
    pub(super) fn create(
        disk: &dyn Disk,
        dir: &Path,
        parameters: Parameters,
        run: Run,
    ) -> Result<Self> {
        let path = dir.join(run_name(run.number));
        let file = create_afresh(disk, &path, OpenMode::CreateNew, Access::Buffered)?;
        let mut block = Vec::with_capacity(parameters.block_bytes as usize);
        block.resize(BLOCK_HEADER_SIZE, 0);
        Ok(Self { file, parameters, run: Run { records: 0, blocks: 0, ..run }, block })
    }

    /// Memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.block.capacity()
    }

    /// Appends a record, whose key must be above all before.
    pub(super) fn push(&mut self, record: &Record<'_>) -> Result<()> {
        if self.block.len() + record.bytes.len() > self.parameters.block_bytes as usize {
            self.write_block()?;
        }
        debug_assert!(
            self.block.len() + record.bytes.len() <= self.parameters.block_bytes as usize,
            "a record fits into a block of its own"
        );
        self.block.extend_from_slice(record.bytes);
        self.run.records += 1;
        Ok(())
    }

    /// Seals and writes the block that is being filled.
    fn write_block(&mut self) -> Result<()> {
        debug_assert!(BLOCK_HEADER_SIZE < self.block.len(), "a block has a record");
        let length = (self.block.len() - BLOCK_HEADER_SIZE) as u32;
        self.block[4..8].copy_from_slice(&length.to_le_bytes());
        // Blocks have one size, so that a reader finds each by its number.
        self.block.resize(self.parameters.block_bytes as usize, 0);
        let crc = checksum(&self.parameters, self.run.number, self.run.blocks, &self.block[4..]);
        self.block[..4].copy_from_slice(&crc.to_le_bytes());

        let offset = self.run.blocks * u64::from(self.parameters.block_bytes);
        self.file.write_at(&self.block, offset)?;
        self.run.blocks += 1;
        self.block.truncate(BLOCK_HEADER_SIZE);
        Ok(())
    }

    /// Writes the last block, and makes the whole run durable except for the name of the file.
    pub(super) fn finish(mut self) -> Result<Run> {
        if self.block.len() > BLOCK_HEADER_SIZE {
            self.write_block()?;
        }
        self.file.sync()?;
        Ok(self.run)
    }
}

/// Reads a run, record by record, with one read for each block.
#[derive(Debug)]
pub(super) struct RunReader {
    file: Arc<dyn DiskFile>,
    parameters: Parameters,
    run: Run,
    /// Number of the next block.
    next_block: u64,
    block: Vec<u8>,
    /// Offset of the end of the block's records.
    end: usize,
    /// Offset of the current record; `end` at the end of the run.
    at: usize,
    records_left: u64,
}

impl RunReader {
    /// Opens `run` and goes to its first record.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        parameters: Parameters,
        run: Run,
    ) -> Result<Self> {
        let file = disk.open(&dir.join(run_name(run.number)), OpenMode::Read, Access::Buffered)?;
        let block = vec![0; parameters.block_bytes as usize];
        let records_left = run.records;
        let mut reader =
            Self { file, parameters, run, next_block: 0, block, end: 0, at: 0, records_left };
        reader.settle()?;
        Ok(reader)
    }

    /// Memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.block.capacity()
    }

    /// The current record; `None` at the end.
    #[inline]
    pub(super) fn current(&self) -> Option<Record<'_>> {
        Record::first_of(self.block.get(self.at..self.end)?, self.parameters.is_unique)
    }

    /// Goes to the next record.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<()> {
        if let Some(record) = self.current() {
            self.at += record.bytes.len();
            self.records_left = self.records_left.saturating_sub(1);
        }
        self.settle()
    }

    /// Makes sure that a whole record is current, unless the run ends.
    #[inline]
    fn settle(&mut self) -> Result<()> {
        debug_assert!(self.at <= self.end, "the current record lies in the block");
        if self.at == self.end {
            if self.next_block == self.run.blocks {
                return match self.records_left {
                    0 => Ok(()),
                    left => Err(self.broken(
                        "records of a run",
                        self.run.records,
                        self.run.records - left,
                    )),
                };
            }
            self.read_block()?;
        }

        match self.current() {
            Some(_) => Ok(()),
            None => Err(self.broken("record", self.end as u64, self.at as u64)),
        }
    }

    /// Reads and checks the next block.
    fn read_block(&mut self) -> Result<()> {
        let size = u64::from(self.parameters.block_bytes);
        let offset = self.next_block * size;
        self.file.read_at(&mut self.block, offset)?;

        // Each block is read once only.
        self.file.forget(offset, size);

        let mut input = Reader::new(&self.block);
        let crc = input.u32().unwrap_or(0);
        let length = input.u32().unwrap_or(0);

        // The place is part of the checksum: a block of another run or place is damage.
        let computed =
            checksum(&self.parameters, self.run.number, self.next_block, &self.block[4..]);
        if computed != crc {
            return Err(self.broken("crc", computed.into(), crc.into()));
        }

        let room = self.block.len() - BLOCK_HEADER_SIZE;
        if length == 0 || length as usize > room {
            return Err(self.broken("length", room as u64, length.into()));
        }

        self.at = BLOCK_HEADER_SIZE;
        self.end = BLOCK_HEADER_SIZE + length as usize;
        self.next_block += 1;
        Ok(())
    }

    /// The error of a broken rule in the current block.
    fn broken(&self, rule: &'static str, expected: u64, found: u64) -> Error {
        let page = self.next_block * u64::from(self.parameters.block_bytes) / BLOCK_ALIGN as u64;
        Error::Corrupt {
            path: self.file.path().to_owned(),
            what: Corrupt { page, rule, expected, found },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_name() {
        assert_eq!(run_number(&run_name(7)), Some(7));
        assert_eq!(run_number(&run_name(u64::MAX)), Some(u64::MAX));
        for name in ["sort.7.run", "sort.000000007.run", "sort.+0000007.run", "sort.manifest"] {
            assert_eq!(run_number(name), None, "{name}");
        }
    }

    #[test]
    fn a_record_that_goes_past_the_end_is_none() {
        for position in [None, Some(9)] {
            let mut bytes = Vec::new();
            Record::put(&mut bytes, b"key", b"value", position);
            let record = Record::first_of(&bytes, position.is_some()).unwrap();
            assert_eq!((record.key, record.value), (&b"key"[..], &b"value"[..]));
            assert_eq!(record.position, position.unwrap_or(0));
            assert_eq!(record.bytes, bytes);
            for cut in 0..bytes.len() {
                assert!(Record::first_of(&bytes[..cut], position.is_some()).is_none());
            }
        }
    }
}
