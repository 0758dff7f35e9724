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

/// Where a record is written: what its references are seen from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Address of the record.
    pub(crate) at: Address,
    /// Address of the frame of the record.
    pub(crate) frame: Address,
}

/// Bytes of the checksum behind a record.
pub(crate) const RECORD_CRC_BYTES: usize = 4;

/// Bytes of a record with a body of this length, without the padding after it.
pub(crate) fn record_bytes(body: usize) -> usize {
    let groups = (usize::BITS - body.leading_zeros()).div_ceil(7).max(1);
    groups as usize + body + RECORD_CRC_BYTES
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
    /// Writes the extent as seen from a record, which is later.
    ///
    /// In the frame of the record: leb of twice the distance in units. In an earlier one: 1, then
    /// leb of the chunk, then leb of the unit. Then leb of the length. So the bytes of a record do
    /// not depend on where its frame is.
    pub(crate) fn put(self, from: Origin, out: &mut Vec<u8>) {
        assert!(self.at < from.at, "a record points at earlier ones only");
        let start = out.len();
        if self.at >= from.frame {
            debug_assert_eq!(self.at.chunk, from.at.chunk, "a frame is in one chunk");
            put_leb(out, u64::from(from.at.unit - self.at.unit) << 1);
        } else {
            out.push(1);
            put_leb(out, u64::from(self.at.chunk));
            put_leb(out, u64::from(self.at.unit));
        }
        put_leb(out, u64::from(self.bytes));
        debug_assert!(out.len() - start <= 16, "a byte, and at most three numbers of five");
    }

    pub(crate) fn take(from: Address, bytes: &mut &[u8]) -> Result<Self, Corrupt> {
        let first = take_leb(bytes)?;
        let distance = u32::try_from(first >> 1)
            .map_err(|_| Corrupt::rule("place of a record", u64::from(u32::MAX), first >> 1))?;

        // Chunks of version 5 say the distance of another chunk.
        let at = match (first & 1, distance) {
            (0, _) => {
                let unit = from.unit.checked_sub(distance);
                unit.map(|unit| Address { chunk: from.chunk, unit })
            }
            (_, 0) => Some(Address { chunk: take_u32(bytes)?, unit: take_u32(bytes)? }),
            (_, _) => {
                let unit = take_u32(bytes)?;
                from.chunk.checked_sub(distance).map(|chunk| Address { chunk, unit })
            }
        };

        // The record itself, a later one, or one before the beginning is no earlier record.
        let Some(at) = at.filter(|at| *at < from) else {
            return Err(Corrupt::rule("a reference points back", from.to_u64(), first));
        };
        let length = take_u32(bytes)?;
        if length == 0 {
            return Err(Corrupt::rule("length of a record", 1, 0));
        }

        Ok(Self { at, bytes: length })
    }
}

impl Extent {
    /// Passes an extent.
    pub(crate) fn skip(bytes: &mut &[u8]) -> Result<(), Corrupt> {
        let first = take_leb(bytes)?;
        if first == 1 {
            take_leb(bytes)?;
        }
        if first & 1 == 1 {
            take_leb(bytes)?;
        }
        take_leb(bytes).map(drop)
    }
}

impl Link {
    pub(crate) fn put(&self, from: Origin, out: &mut Vec<u8>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_leads_to_an_earlier_record_or_is_refused() {
        let at = Address { chunk: 70, unit: 5_000 };
        let put = |target: Address, frame: Address| {
            let mut bytes = Vec::new();
            Extent { at: target, bytes: 300 }.put(Origin { at, frame }, &mut bytes);
            bytes
        };
        let first = Address { chunk: 0, unit: 0 };
        for chunk in [0, 1, 69, 70] {
            for unit in [0, 4, 63, 64, 4_999] {
                let target = Address { chunk, unit };
                for frame in [at, Address { chunk: 70, unit: 64 }] {
                    let bytes = put(target, frame);
                    let mut rest = bytes.as_slice();
                    let extent = Extent::take(at, &mut rest).unwrap();
                    assert_eq!((extent.at, extent.bytes, rest.len()), (target, 300, 0));

                    // The same bytes elsewhere are of the same target, or of one as far away.
                    let later = Address { chunk: 71, unit: 6_000 };
                    let moved = Extent::take(later, &mut bytes.as_slice()).unwrap().at;
                    let near = Address { chunk: 71, unit: unit + 1_000 };
                    assert_eq!(moved, if target < frame { target } else { near });
                    // A record before the target has no such reference.
                    assert!(Extent::take(first, &mut bytes.as_slice()).is_err());
                }
            }
        }

        let leb = |numbers: &[u64]| {
            let mut bytes = Vec::new();
            for number in numbers {
                put_leb(&mut bytes, *number);
            }
            bytes
        };

        // Chunks of version 5 say the distance of another chunk.
        let mut bytes = leb(&[2 << 1 | 1, 9, 5]);
        bytes.push(7);
        let mut rest = bytes.as_slice();
        let target = Address { chunk: 68, unit: 9 };
        assert_eq!(Extent::take(at, &mut rest), Ok(Extent { at: target, bytes: 5 }));
        assert_eq!(rest, [7]);
        for numbers in [[2 << 1 | 1, 9, 5].as_slice(), &[1, 3, 9, 5], &[8, 5]] {
            let bytes = leb(numbers);
            let mut rest = bytes.as_slice();
            Extent::skip(&mut rest).unwrap();
            assert!(rest.is_empty(), "{numbers:?}");
        }

        // The record itself, in both forms; later ones; one before the beginning of the chunk.
        let own = [0, 5].as_slice();
        for numbers in [
            own,
            &[1, 70, 5_000, 5],
            &[1, 70, 5_001, 5],
            &[1, 71, 0, 5],
            &[143, 0, 5],
            &[10_002, 5],
            &[u64::MAX, 0, 5],
        ] {
            assert!(Extent::take(at, &mut leb(numbers).as_slice()).is_err(), "{numbers:?}");
        }
    }

    #[test]
    fn the_bytes_of_a_record_are_those_of_its_length_its_body_and_its_checksum() {
        for body in [0, 1, 127, 128, 16_383, 16_384, 1 << 28] {
            let mut length = Vec::new();
            put_leb(&mut length, body as u64);
            assert_eq!(record_bytes(body), length.len() + body + 4, "{body}");
        }
    }
}
