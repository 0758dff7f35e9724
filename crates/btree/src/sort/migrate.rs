//! Migration: the directory of a mirage/index store as a stream of records. Reads only.
//!
//! The store has up to three files below `index/`, read in this order, in which later records
//! override earlier ones: `data` (ordered by a hash of the key), `log_async`, `log` (both in the
//! order of their writing). Missing files have no records. The order by hash is of no use here, so
//! the records are sorted like any other input. All integers are big-endian:
//!
//! | size    | field        | meaning                                                  |
//! |---------|--------------|----------------------------------------------------------|
//! | 8       | `offset`     | bytes of records; what stands behind them was not flushed |
//! | 8       | `version`    | `00000001`                                               |
//! | 8       | `generation` | merges so far; means nothing here                        |
//! | 8       | `fan_bytes`  | bytes of the fan-out, a multiple of 8                    |
//! | ..      | `fan`        | offsets into `data`; mean nothing here                   |
//! | ..      | records      | key, then value, of fixed sizes                          |

use std::path::Path;
use std::vec;

use terrane_io::EntryKind;
use terrane_io::bytes::Reader;
use terrane_io::{Access, Disk, DiskFile, OpenMode};

use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};
use crate::sort::input::{FileInput, FixedRecords, Records, check_sizes};

/// The files below the directory, oldest records first.
const FILES: [&str; 3] = ["index/data", "index/log_async", "index/log"];

/// Bytes before the fan-out.
const HEADER_SIZE: usize = 32;

/// The only version of the format.
const VERSION: &[u8; 8] = b"00000001";

/// Bytes of an offset in the fan-out.
const FAN_ENTRY_SIZE: u64 = 8;

/// The place of the records in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    start: u64,
    end: u64,
}

impl Extent {
    /// Reads the header of a file.
    fn read(file: &dyn DiskFile, record_bytes: u64) -> Result<Self> {
        let mut header = [0; HEADER_SIZE];
        file.read_at(&mut header, 0)?;
        let path = || file.path().to_owned();
        Self::decode(header, file.len()?, record_bytes)
            .map_err(|what| Error::Corrupt { path: path(), what })
    }

    /// The extent that the header of a file of `len` bytes gives.
    fn decode(
        header: [u8; HEADER_SIZE],
        len: u64,
        record_bytes: u64,
    ) -> std::result::Result<Self, Corrupt> {
        let mut fields = [0; 4];
        for (field, bytes) in fields.iter_mut().zip(header.chunks_exact(8)) {
            // Integers of the format are big-endian, those of the reader little-endian.
            *field = Reader::new(bytes).u64().unwrap_or(0).swap_bytes();
        }

        let [offset, version, _generation, fan_bytes] = fields;
        let expected = u64::from_le_bytes(*VERSION).swap_bytes();
        if version != expected {
            return Err(Corrupt::rule("version", expected, version));
        }

        let room = len.saturating_sub(HEADER_SIZE as u64);
        if fan_bytes > room || fan_bytes % FAN_ENTRY_SIZE != 0 {
            return Err(Corrupt::rule("bytes of the fan-out", room, fan_bytes));
        }

        let room = room - fan_bytes;
        if offset > room || offset % record_bytes != 0 {
            return Err(Corrupt::rule("bytes of records", room, offset));
        }

        let start = HEADER_SIZE as u64 + fan_bytes;
        Ok(Self { start, end: start + offset })
    }
}

/// The records of a mirage/index store; records that override others come behind them. A key can
/// come several times.
///
/// Memory: 256 KiB.
#[derive(Debug)]
pub struct MirageIndex {
    /// The rest of the current file.
    current: Option<FixedRecords<FileInput>>,
    later: vec::IntoIter<FileInput>,
    key_bytes: usize,
    value_bytes: usize,
    records: u64,
}

impl MirageIndex {
    /// Opens the store in `dir`, whose directory `index` has the files, with keys and values of
    /// these sizes (in the context store of Tezos: 32 and 13 bytes).
    ///
    /// Nothing may write to the store meanwhile. Cost: a read for each file.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for sizes that no index has; [`Error::Disk`], of kind `NotFound` if
    /// there is none of the files; [`Error::Corrupt`] if a header is not one of such a store, or a
    /// file is shorter than its header says.
    pub fn open(disk: &dyn Disk, dir: &Path, key_bytes: usize, value_bytes: usize) -> Result<Self> {
        check_sizes(key_bytes, value_bytes)?;
        let record_bytes = (key_bytes + value_bytes) as u64;
        let mut files = Vec::new();
        let mut records = 0;
        let mut missing = None;

        for name in FILES {
            let path = dir.join(name);

            // Opening a FIFO would wait for a writer.
            if let Some(found @ EntryKind::Other) = disk.kind(&path)? {
                return Err(terrane_io::Error::WrongKind { path, found }.into());
            }

            match disk.open(&path, OpenMode::Read, Access::Buffered) {
                Err(error) if error.is_not_found() => missing = Some(error),
                opened => {
                    let file = opened?;
                    let extent = Extent::read(file.as_ref(), record_bytes)?;
                    records += (extent.end - extent.start) / record_bytes;
                    files.push(FileInput::part(file, extent.start, extent.end));
                }
            }
        }

        // A store need not have all of the files, but it has one of them.
        match missing {
            Some(error) if files.is_empty() => Err(error.into()),
            _ => {
                let later = files.into_iter();
                Ok(Self { current: None, later, key_bytes, value_bytes, records })
            }
        }
    }

    /// Number of records in all files together, including overridden ones.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Bytes of all keys and values together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.records * (self.key_bytes + self.value_bytes) as u64
    }
}

impl Records for MirageIndex {
    /// Cost: a read for each 256 KiB.
    ///
    /// # Errors
    /// [`Error::Disk`].
    fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        loop {
            let is_ended = match &mut self.current {
                Some(records) => !records.fill()?,
                None => true,
            };
            if !is_ended {
                break;
            }
            let Some(input) = self.later.next() else { return Ok(None) };
            self.current = Some(FixedRecords::new(input, self.key_bytes, self.value_bytes)?);
        }

        match &mut self.current {
            Some(records) => records.next_ref(),
            None => Ok(None),
        }
    }
}
