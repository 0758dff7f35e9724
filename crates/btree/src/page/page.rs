//! Pages: the 4 KiB units of a tree file, and their common header.
//!
//! A page is written once and never changed in place; its number can be given to another page
//! later. `docs/format/btree.md` has the format of each kind.
//!
//! Invariant: every reference holds the number *and* the checksum of its page ([`PageRef`]), so a
//! page that was lost, misdirected, torn or reused is never taken for the one that is meant. A page
//! of zeros is of no kind.

use std::fmt;
use std::sync::Arc;

use terrane_io::checksum::crc32c;

use crate::page::corrupt::Corrupt;

/// Size of a page, in bytes.
pub const PAGE_SIZE: usize = 4096;

/// Offset of the body.
pub(crate) const BODY_OFFSET: usize = 32;

/// Size of the body, in bytes.
pub(crate) const BODY_BYTES: usize = PAGE_SIZE - BODY_OFFSET;

/// Number of a page of a tree file, counted from 0: a file has at most 16 TiB.
pub(crate) type PageNo = u32;

/// A range of keys: from the first on, and below the second if there is one.
pub(crate) type KeyRange = (Vec<u8>, Option<Vec<u8>>);

/// Number of pages that the superblocks take.
pub(crate) const SUPERBLOCKS: PageNo = 2;

/// The kind of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Leaf = 1,
    Inner = 2,
    Map = 3,
    MapList = 4,
    Applied = 5,
}

impl Kind {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Leaf, Self::Inner, Self::Map, Self::MapList, Self::Applied]
            .into_iter()
            .find(|&kind| kind as u8 == byte)
    }
}

/// Reference of a page: its number, and the checksum that it must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageRef {
    pub(crate) number: PageNo,
    pub(crate) crc: u32,
}

/// The header of a page, without its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) level: u8,
    pub(crate) count: u16,
    pub(crate) tree: u64,
    pub(crate) generation: u64,
    pub(crate) number: PageNo,
    /// Number of the step that wrote a leaf, counted within its generation; 0 for other kinds.
    pub(crate) step: u32,
}

/// A page in memory, shared. It was checked, or this program made it.
#[derive(Clone)]
pub(crate) struct Page(Arc<[u8; PAGE_SIZE]>);

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Page").field(&self.level()).field(&self.count()).finish()
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

impl Page {
    /// A page with these bytes, which have a checksum once they are [`sealed`](seal).
    pub(crate) fn new(bytes: &[u8; PAGE_SIZE]) -> Self {
        Self(Arc::new(*bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8; PAGE_SIZE] {
        &self.0
    }

    /// The reference of a sealed page.
    pub(crate) fn reference(&self) -> PageRef {
        let bytes = self.0.as_slice();
        PageRef { number: u32_at(bytes, 24), crc: u32_at(bytes, 0) }
    }

    /// Level of a page of the tree: 0 for a leaf.
    pub(crate) fn level(&self) -> u8 {
        self.0[5]
    }

    /// Number of entries or children.
    pub(crate) fn count(&self) -> usize {
        usize::from(u16_at(self.0.as_slice(), 6))
    }
}

/// Writes the header and the checksum into the bytes of a page. Returns the checksum.
pub(crate) fn seal(bytes: &mut [u8], header: &Header) -> u32 {
    assert_eq!(bytes.len(), PAGE_SIZE);

    bytes[4] = header.kind as u8;
    bytes[5] = header.level;
    bytes[6..8].copy_from_slice(&header.count.to_le_bytes());
    bytes[8..16].copy_from_slice(&header.tree.to_le_bytes());
    bytes[16..24].copy_from_slice(&header.generation.to_le_bytes());
    bytes[24..28].copy_from_slice(&header.number.to_le_bytes());
    bytes[28..32].copy_from_slice(&header.step.to_le_bytes());

    let crc = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Reads the header of a page of any kind, which must have this tree and number.
///
/// # Errors
/// [`Corrupt`] if the checksum, the kind, the tree or the number is wrong.
pub(crate) fn open(bytes: &[u8], tree: u64, number: PageNo) -> Result<Header, Corrupt> {
    let broken = |rule, expected, found| Corrupt { page: u64::from(number), rule, expected, found };
    if bytes.len() != PAGE_SIZE {
        return Err(broken("page size", PAGE_SIZE as u64, bytes.len() as u64));
    }

    let crc = crc32c(&bytes[4..]);
    let found = u32_at(bytes, 0);
    if crc != found {
        return Err(broken("crc", u64::from(crc), u64::from(found)));
    }

    let Some(kind) = Kind::from_byte(bytes[4]) else {
        return Err(broken("kind", 1, u64::from(bytes[4])));
    };

    let header = Header {
        kind,
        level: bytes[5],
        count: u16_at(bytes, 6),
        tree: u64_at(bytes, 8),
        generation: u64_at(bytes, 16),
        number: u32_at(bytes, 24),
        step: u32_at(bytes, 28),
    };

    if header.tree != tree {
        return Err(broken("tree", tree, header.tree));
    }

    if header.number != number {
        return Err(broken("number", u64::from(number), u64::from(header.number)));
    }

    // Only leaves count steps.
    if header.step != 0 && kind != Kind::Leaf {
        return Err(broken("step", 0, u64::from(header.step)));
    }

    Ok(header)
}

/// Reads the header of the page that a reference means.
///
/// # Errors
/// Those of [`open`]; [`Corrupt`] also if another whole page stands there.
pub(crate) fn open_ref(bytes: &[u8], tree: u64, page: PageRef) -> Result<Header, Corrupt> {
    let header = open(bytes, tree, page.number)?;
    let found = u32_at(bytes, 0);
    if found != page.crc {
        let page_no = u64::from(page.number);
        let expected = u64::from(page.crc);
        return Err(Corrupt {
            page: page_no,
            rule: "crc in the reference",
            expected,
            found: u64::from(found),
        });
    }

    Ok(header)
}

/// Length of the longest common prefix of two keys.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { kind: Kind::Leaf, level: 0, count: 3, tree: 77, generation: 5, number: 9, step: 4 }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let mut bytes = [0_u8; PAGE_SIZE];
        bytes[BODY_OFFSET..].fill(0x5A);
        let crc = seal(&mut bytes, &header());
        assert_eq!(open_ref(&bytes, 77, PageRef { number: 9, crc }), Ok(header()));
        for bit in (0..BODY_OFFSET * 8).chain((0..PAGE_SIZE * 8).step_by(97)) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&bytes, 77, 9).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn pages_of_other_trees_places_and_times_are_refused() {
        let mut bytes = [0_u8; PAGE_SIZE];
        let crc = seal(&mut bytes, &header());
        assert_eq!(open(&bytes, 78, 9).unwrap_err().rule, "tree");
        assert_eq!(open(&bytes, 77, 8).unwrap_err().rule, "number");
        let other = PageRef { number: 9, crc: crc ^ 1 };
        assert_eq!(open_ref(&bytes, 77, other).unwrap_err().rule, "crc in the reference");
        assert!(open(&[0; PAGE_SIZE], 77, 0).is_err());
    }
}
