//! Addresses, extents and links: direct pointers to the records of the pack.
//!
//! Invariant: the address of a record never changes while the record is kept. A compacted chunk
//! gets a map from addresses to offsets of its file.

use std::fmt;

use crate::base::corrupt::Corrupt;
use crate::base::hash::{HASH_BYTES, Hash};

/// Alignment of records in their chunk, in bytes.
pub(crate) const UNIT_BYTES: u64 = 8;

/// Position of a record: the number of its chunk, and the offset there in units of 8 bytes.
///
/// Later records have higher addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Address {
    /// Number of the chunk, counted from 0.
    pub chunk: u32,
    /// Offset in the chunk as it was written, in units of 8 bytes.
    pub unit: u32,
}

impl Address {
    /// Returns the address as one number, in the same order.
    pub fn to_u64(self) -> u64 {
        u64::from(self.chunk) << 32 | u64::from(self.unit)
    }

    /// Returns the address of a number from [`to_u64`](Self::to_u64).
    pub fn from_u64(number: u64) -> Self {
        Self { chunk: (number >> 32) as u32, unit: number as u32 }
    }

    /// Address `bytes` further in the same chunk.
    pub(crate) fn plus(self, bytes: usize) -> Self {
        debug_assert!(
            (bytes as u64).is_multiple_of(UNIT_BYTES),
            "records and frames take whole units"
        );
        debug_assert!(
            u32::try_from(bytes as u64 / UNIT_BYTES).is_ok(),
            "a chunk has fewer units than 2^32"
        );
        Self { chunk: self.chunk, unit: self.unit + (bytes as u64 / UNIT_BYTES) as u32 }
    }

    /// Offset in the chunk as it was written, in bytes.
    pub fn offset(self) -> u64 {
        u64::from(self.unit) * UNIT_BYTES
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "record {}:{}", self.chunk, self.offset())
    }
}

/// Address and length of a record, so that one read fetches the record: the *place* of the format
/// documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) at: Address,
    /// Length of the record with its head and checksum, without the padding after it.
    pub(crate) bytes: u32,
}

/// Extent of a child that is not stored.
pub(crate) const NOWHERE: Extent = Extent { at: Address { chunk: 0, unit: 0 }, bytes: 0 };

/// Extent of a record and the hash of the object there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) extent: Extent,
    pub(crate) hash: Hash,
}

impl Extent {
    /// Bytes of an extent in a node in memory.
    pub(crate) const BYTES: usize = 12;

    /// Returns chunk, unit and length, each in four bytes.
    pub(crate) fn write(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.at.chunk.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.at.unit.to_le_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    pub(crate) fn read(bytes: &[u8; Self::BYTES]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let word = |number: usize| u32::from_le_bytes(words[number]);
        Self { at: Address { chunk: word(0), unit: word(1) }, bytes: word(2) }
    }
}

impl Extent {
    /// Writes the extent relative to a record at `from`, which is later.
    ///
    /// In the same chunk: leb of twice the distance in units. In another chunk: leb of twice the
    /// distance in chunks plus one, then leb of the unit. Then leb of the length.
    pub(crate) fn put(self, from: Address, out: &mut Vec<u8>) {
        assert!(self.at < from, "a record points at earlier ones only");
        let start = out.len();
        if self.at.chunk == from.chunk {
            put_leb(out, u64::from(from.unit - self.at.unit) << 1);
        } else {
            put_leb(out, u64::from(from.chunk - self.at.chunk) << 1 | 1);
            put_leb(out, u64::from(self.at.unit));
        }
        put_leb(out, u64::from(self.bytes));
        debug_assert!(out.len() - start <= 15, "at most three numbers of five bytes");
    }

    pub(crate) fn take(from: Address, bytes: &mut &[u8]) -> Result<Self, Corrupt> {
        // The lowest bit says whether the target lies in another chunk.
        let first = take_leb(bytes)?;
        let distance = u32::try_from(first >> 1).map_err(|_| {
            Corrupt::rule("distance of a reference", u64::from(u32::MAX), first >> 1)
        })?;

        let (chunk, unit) = if first & 1 == 0 {
            (Some(from.chunk), from.unit.checked_sub(distance).filter(|_| distance > 0))
        } else {
            (from.chunk.checked_sub(distance).filter(|_| distance > 0), take_u32(bytes)?.into())
        };

        // A distance of zero, or beyond the beginning, is no reference to an earlier record.
        let (Some(chunk), Some(unit)) = (chunk, unit) else {
            return Err(Corrupt::rule("a reference points back", from.to_u64(), first));
        };
        let length = take_u32(bytes)?;
        if length == 0 {
            return Err(Corrupt::rule("length of a record", 1, 0));
        }
        let at = Address { chunk, unit };
        debug_assert!(at < from, "the distances were checked");

        Ok(Self { at, bytes: length })
    }
}

impl Extent {
    /// Passes an extent.
    pub(crate) fn skip(bytes: &mut &[u8]) -> Result<(), Corrupt> {
        if take_leb(bytes)? & 1 == 1 {
            take_leb(bytes)?;
        }
        take_leb(bytes).map(drop)
    }
}

impl Link {
    pub(crate) fn put(&self, from: Address, out: &mut Vec<u8>) {
        self.extent.put(from, out);
        out.extend_from_slice(&self.hash.0);
    }

    pub(crate) fn take(from: Address, bytes: &mut &[u8]) -> Result<Self, Corrupt> {
        let extent = Extent::take(from, bytes)?;
        Ok(Self { extent, hash: take_hash(bytes)? })
    }
}

pub(crate) fn take_hash(bytes: &mut &[u8]) -> Result<Hash, Corrupt> {
    let (hash, rest) = bytes.split_first_chunk::<HASH_BYTES>().ok_or(Corrupt::short("a hash"))?;
    *bytes = rest;
    Ok(Hash(*hash))
}

/// Unsigned LEB128: seven bits a byte, the lowest first.
pub(crate) fn put_leb(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    debug_assert!(value < 0x80, "the last group has no continuation bit");
    out.push(value as u8);
}

/// Unsigned LEB128 of at most 64 bits, in its shortest form.
pub(crate) fn take_leb(bytes: &mut &[u8]) -> Result<u64, Corrupt> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take_u8(bytes)?;
        let bits = u64::from(byte & 0x7F);
        if bits << shift >> shift != bits || byte == 0 && shift > 0 {
            return Err(Corrupt::rule("a number in its shortest form", 0, u64::from(byte)));
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }

    Err(Corrupt::rule("a number of 64 bits", 10, 11))
}

pub(crate) fn take_u32(bytes: &mut &[u8]) -> Result<u32, Corrupt> {
    let number = take_leb(bytes)?;
    u32::try_from(number)
        .map_err(|_| Corrupt::rule("a number of 32 bits", u64::from(u32::MAX), number))
}

pub(crate) fn take_u8(bytes: &mut &[u8]) -> Result<u8, Corrupt> {
    let (&byte, rest) = bytes.split_first().ok_or(Corrupt::short("a byte"))?;
    *bytes = rest;
    Ok(byte)
}

pub(crate) fn take_bytes<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], Corrupt> {
    let (taken, rest) = bytes.split_at_checked(len).ok_or(Corrupt::short("bytes"))?;
    *bytes = rest;
    Ok(taken)
}
