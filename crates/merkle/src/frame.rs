//! Frames: what is appended to a chunk at once, and the records in them.
//!
//! A chunk is a chain of frames; a frame is whole or it is not there. All integers are little-endian.
//!
//! | offset | size | field     | meaning |
//! |--------|------|-----------|---------|
//! | 0      | 4    | `magic`   | `TMF1` |
//! | 4      | 4    | `bytes`   | length of the payload, a multiple of 8 |
//! | 8      | 4    | `kind`    | 1 objects, 2 objects and a commit as the last record, 3 changes of branches, and tables |
//! | 12     | 4    | `chain`   | `crc` of the frame before; of the first frame of a store, its identity |
//! | 16     | 4    | `content` | CRC-32C of the payload |
//! | 20     | 4    | `crc`     | CRC-32C of bytes `0..20` |
//! | 24     | ..   | payload   | records, each at a multiple of 8, zeros between |
//!
//! A record is leb(length of its body) ‖ body ‖ CRC-32C of its address (u64: chunk × 2^32 + unit) and its body.

use terrane_io::checksum::{crc32c, crc32c_append};

use crate::address::{Address, Place, UNIT_BYTES, put_leb, take_leb};
use crate::corrupt::Corrupt;
use crate::encode::Sink;
use crate::error::{Error, Result};
use crate::hash::Hash;

pub(crate) const FRAME_HEAD_BYTES: usize = 24;
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"TMF1");
/// The largest frame: a commit of more is written by several flushes before.
pub(crate) const FRAME_BYTES_MAX: usize = 1 << 30;
const CRC_BYTES: usize = 4;

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Objects = 1,
    Commit = 2,
    Branches = 3,
}

/// The head of a frame that is whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameHead {
    pub(crate) kind: FrameKind,
    /// Length of the payload.
    pub(crate) bytes: usize,
    /// Checksum of the payload.
    content: u32,
    /// What the next frame chains to.
    pub(crate) crc: u32,
}

/// The head of a frame that follows one of `chain`; none if it is not whole.
pub(crate) fn parse_head(head: &[u8; FRAME_HEAD_BYTES], chain: u32) -> Option<FrameHead> {
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let kind = match word(8) {
        1 => FrameKind::Objects,
        2 => FrameKind::Commit,
        3 => FrameKind::Branches,
        _ => return None,
    };
    let whole = word(0) == FRAME_MAGIC
        && word(4) % UNIT_BYTES as u32 == 0
        && word(12) == chain
        && word(20) == crc32c(&head[..20]);
    let bytes = word(4) as usize;
    whole.then_some(FrameHead { kind, bytes, content: word(16), crc: word(20) })
}

/// The frame at the beginning of `bytes` that follows one of `chain`; none if there is none that is whole.
pub(crate) fn parse(bytes: &[u8], chain: u32) -> Option<FrameHead> {
    let (head, rest) = bytes.split_first_chunk::<FRAME_HEAD_BYTES>()?;
    let frame = parse_head(head, chain)?;
    let payload = rest.get(..frame.bytes)?;
    (frame.content == crc32c(payload)).then_some(frame)
}

/// The checksum of a record.
fn record_crc(at: Address, body: &[u8]) -> u32 {
    crc32c_append(crc32c(&at.to_u64().to_le_bytes()), body)
}

/// The body of the record at `at`, whose bytes these are from its beginning on; and how many of them it takes.
pub(crate) fn open_record(
    at: Address,
    bytes: &[u8],
) -> std::result::Result<(&[u8], usize), Corrupt> {
    let mut rest = bytes;
    let len = take_leb(&mut rest)? as usize;
    let short = Corrupt::rule("length of a record", bytes.len() as u64, len as u64);
    let (body, rest) = rest.split_at_checked(len).ok_or(short)?;
    let (stored, rest) = rest.split_first_chunk::<CRC_BYTES>().ok_or(short)?;
    let (stored, computed) = (u32::from_le_bytes(*stored), record_crc(at, body));
    if stored != computed {
        return Err(Corrupt::rule("checksum of a record", u64::from(computed), u64::from(stored)));
    }
    Ok((body, bytes.len() - rest.len()))
}

/// The records of a payload that begins at `at`, in order, with their places.
pub(crate) fn records(
    at: Address,
    payload: &[u8],
) -> impl Iterator<Item = std::result::Result<(Place, &[u8]), Corrupt>> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let bytes = payload.get(offset..).filter(|bytes| !bytes.is_empty())?;
        let at = Address { chunk: at.chunk, unit: at.unit + (offset as u64 / UNIT_BYTES) as u32 };
        match open_record(at, bytes) {
            Ok((body, used)) => {
                offset += used.next_multiple_of(UNIT_BYTES as usize);
                Some(Ok((Place { at, bytes: used as u32 }, body)))
            }
            Err(error) => {
                offset = payload.len();
                Some(Err(error))
            }
        }
    })
}

/// A frame being made.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    /// Where the frame begins.
    start: Address,
    bytes: Vec<u8>,
    body: Vec<u8>,
}

impl FrameWriter {
    pub(crate) fn new(start: Address) -> Self {
        let bytes = vec![0; FRAME_HEAD_BYTES];
        Self { start, bytes, body: Vec::new() }
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The whole frame, and what the next one chains to.
    pub(crate) fn finish(mut self, kind: FrameKind, chain: u32) -> (Vec<u8>, u32) {
        let payload = &self.bytes[FRAME_HEAD_BYTES..];
        let words = [FRAME_MAGIC, payload.len() as u32, kind as u32, chain, crc32c(payload)];
        for (slot, word) in self.bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c(&self.bytes[..20]);
        self.bytes[20..FRAME_HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
        (self.bytes, crc)
    }
}

impl Sink for FrameWriter {
    fn next(&self) -> Address {
        let unit = self.start.unit + (self.bytes.len() as u64 / UNIT_BYTES) as u32;
        Address { chunk: self.start.chunk, unit }
    }

    fn put(&mut self, write: &mut dyn FnMut(&mut Vec<u8>)) -> Result<Place> {
        let at = self.next();
        self.body.clear();
        write(&mut self.body);
        if self.bytes.len() + self.body.len() > FRAME_BYTES_MAX {
            return Err(Error::CommitTooLarge { limit: FRAME_BYTES_MAX });
        }
        let start = self.bytes.len();
        put_leb(&mut self.bytes, self.body.len() as u64);
        self.bytes.extend_from_slice(&self.body);
        self.bytes.extend_from_slice(&record_crc(at, &self.body).to_le_bytes());
        let bytes = (self.bytes.len() - start) as u32;
        self.bytes.resize(self.bytes.len().next_multiple_of(UNIT_BYTES as usize), 0);
        Ok(Place { at, bytes })
    }

    fn known(&mut self, _is_value: bool, _hash: &Hash) -> Result<Option<Place>> {
        Ok(None)
    }
}
