//! Chunks: the files that the pack consists of. A chunk is a head of 64 bytes and a chain of [frames](crate::frame).
//!
//! | offset | size | field        | meaning |
//! |--------|------|--------------|---------|
//! | 0      | 8    | `magic`      | `TRNMPACK` |
//! | 8      | 4    | `version`    | format version, now 1 |
//! | 12     | 4    | `number`     | number of the chunk |
//! | 16     | 8    | `store`      | identity of the store |
//! | 24     | 4    | `before`     | where the chunk before ends, in units of 8 bytes; 0 for the first chunk |
//! | 28     | 4    | `chain`      | what the first frame chains to |
//! | 32     | 28   |              | zero |
//! | 60     | 4    | `crc`        | CRC-32C of bytes `0..60` |
//!
//! The file of chunk n is named `chunk-` ‖ n in 8 hexadecimal digits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::checksum::crc32c;
use terrane_io::{Access, Disk, DiskFile, OpenMode};

use crate::address::{Address, Place, UNIT_BYTES};
use crate::corrupt::Corrupt;
use crate::error::{Error, Result};
use crate::frame::open_record;

pub(crate) const CHUNK_HEAD_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"TRNMPACK";
/// Format version of chunks.
pub(crate) const CHUNK_VERSION: u32 = 1;
const NAME: &str = "chunk-";

/// The first unit behind the head.
pub(crate) const FIRST_UNIT: u32 = (CHUNK_HEAD_BYTES as u64 / UNIT_BYTES) as u32;

/// What stands in the head of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkHead {
    pub(crate) number: u32,
    pub(crate) store: u64,
    /// Where the chunk before ends.
    pub(crate) before: u32,
    pub(crate) chain: u32,
}

impl ChunkHead {
    pub(crate) fn encode(&self) -> [u8; CHUNK_HEAD_BYTES] {
        let mut bytes = [0; CHUNK_HEAD_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&CHUNK_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.store.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.before.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.chain.to_le_bytes());
        let crc = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(path: &Path, bytes: &[u8; CHUNK_HEAD_BYTES]) -> Result<Self> {
        let corrupt = |what| Error::Corrupt { path: path.to_owned(), address: None, what };
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if bytes[..8] != *MAGIC {
            return Err(Error::NotAContextStore { path: path.to_owned() });
        }
        let (stored, computed) = (word(60), crc32c(&bytes[..60]));
        if stored != computed {
            let what = Corrupt::rule("checksum of a head", u64::from(computed), u64::from(stored));
            return Err(corrupt(what));
        }
        if word(8) != CHUNK_VERSION {
            return Err(Error::UnsupportedVersion {
                path: path.to_owned(),
                found: word(8),
                newest: CHUNK_VERSION,
            });
        }
        let store = u64::from(word(16)) | u64::from(word(20)) << 32;
        Ok(Self { number: word(12), store, before: word(24), chain: word(28) })
    }
}

/// The path of a chunk.
pub(crate) fn chunk_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{NAME}{number:08x}"))
}

/// The number of the chunk whose file has this name.
pub(crate) fn chunk_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(NAME).filter(|digits| digits.len() == 8)?;
    u32::from_str_radix(digits, 16).ok()
}

/// An open chunk.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) head: ChunkHead,
    pub(crate) file: Arc<dyn DiskFile>,
}

impl Chunk {
    /// Makes a chunk. Its name and head are durable after a sync of the directory and of the file.
    pub(crate) fn create(disk: &dyn Disk, dir: &Path, head: ChunkHead) -> Result<Self> {
        let path = chunk_path(dir, head.number);
        let file = disk.open(&path, OpenMode::Truncate, Access::Buffered)?;
        file.write_at(&head.encode(), 0)?;
        Ok(Self { head, file })
    }

    /// Opens a chunk, for writing too if `mode` says so.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, number: u32, mode: OpenMode) -> Result<Self> {
        let path = chunk_path(dir, number);
        let file = disk.open(&path, mode, Access::Buffered)?;
        let mut bytes = [0; CHUNK_HEAD_BYTES];
        file.read_at(&mut bytes, 0)?;
        let head = ChunkHead::decode(&path, &bytes)?;
        if head.number != number {
            let what =
                Corrupt::rule("number of a chunk", u64::from(number), u64::from(head.number));
            return Err(Error::Corrupt { path, address: None, what });
        }
        Ok(Self { head, file })
    }

    pub(crate) fn corrupt(&self, at: Address, what: Corrupt) -> Error {
        Error::Corrupt { path: self.file.path().to_owned(), address: Some(at), what }
    }

    /// The body of a record.
    ///
    /// Cost: one read of the record's length.
    pub(crate) fn read(&self, place: Place) -> Result<Vec<u8>> {
        let mut bytes = vec![0; place.bytes as usize];
        self.file.read_at(&mut bytes, place.at.offset()).map_err(|error| match error {
            terrane_io::Error::ShortRead { .. } => {
                self.corrupt(place.at, Corrupt::short("a record lies in its chunk"))
            }
            other => other.into(),
        })?;
        let (start, len) = {
            let (body, used) =
                open_record(place.at, &bytes).map_err(|what| self.corrupt(place.at, what))?;
            if used != bytes.len() {
                let what = Corrupt::rule("length of a record", bytes.len() as u64, used as u64);
                return Err(self.corrupt(place.at, what));
            }
            (used - 4 - body.len(), body.len())
        };
        bytes.truncate(start + len);
        bytes.drain(..start);
        Ok(bytes)
    }
}
