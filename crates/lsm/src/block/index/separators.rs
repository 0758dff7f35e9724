//! Ordinary index: for each page a string that separates it from the page before.
//!
//! The *separator* of a page is the shortest string above all keys of the page before that is not
//! above any of its own; for the first page it is empty. What all keys have in common at the front
//! is dropped. A search for the last separator that is not above the key names the one page that
//! can hold it: no key ever needs a second page, whatever the keys are like.
//!
//! Separators stand front-coded in blocks of 16: the first of a block whole, each other as the
//! number of bytes it shares with the one before, and its tail. Evenly spread keys take 3 bytes per
//! page, and another byte in memory for the directory of blocks.
//!
//! The format is in `docs/format/index.md`.

use super::{Bounds, KIND_ORDINARY, PageCandidate, common_size, eight_bytes, grow};
use crate::corrupt::Corrupt;
use std::cmp::Ordering;
use terrane_io::bytes::{Reader, Writer};

/// Separators in a block. More make the directory smaller and searching a block slower.
const BLOCK_COUNT: usize = 16;
/// A size from which on it does not fit into `sizes`.
const SIZE_ESCAPE: usize = 15;

/// Most bytes of a coded number.
const NUMBER_BYTES_MAX: usize = 5;

/// Separators of a run that is still being written.
#[derive(Debug)]
pub(super) struct SeparatorsBuilder {
    separators: Separators,
    last_separator: Vec<u8>,
}

impl SeparatorsBuilder {
    pub(super) fn new(bounds: &Bounds<'_>) -> Self {
        let separators = Separators::empty(bounds.common_prefix());
        Self { separators, last_separator: Vec::new() }
    }

    /// Begins a page whose first key is `key`, after one whose last key is `before`.
    pub(super) fn start_page(&mut self, key: &[u8], before: &[u8]) {
        // The common prefix of all keys is stored once.
        let skip = self.separators.prefix.len();

        let key = key.get(skip..).unwrap_or_default();
        let before = before.get(skip..).unwrap_or_default();
        // The first page begins with the empty separator, which is below every key.
        let separator = if self.separators.pages == 0 {
            &[]
        } else {
            assert!(before < key, "keys come in order");
            &key[..=common_size(before, key)]
        };

        self.separators.push(&self.last_separator, separator);
        self.last_separator.clear();
        self.last_separator.extend_from_slice(separator);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.last_separator.capacity() + self.separators.memory_bytes()
    }

    pub(super) fn finish(mut self) -> Separators {
        self.separators.bytes.shrink_to_fit();
        self.separators.fronts.shrink_to_fit();
        self.separators.starts.shrink_to_fit();
        self.separators
    }
}

/// Separators of a complete run.
///
/// Invariant: `bytes` holds `pages` separators as in the format. [`SeparatorsBuilder`] and
/// [`Separators::decode`] see to it.
#[derive(Debug)]
pub(super) struct Separators {
    prefix: Vec<u8>,
    pages: u32,
    bytes: Vec<u8>,
    /// For each block, the first eight bytes of its first separator: most comparisons end here.
    fronts: Vec<u64>,
    /// For each block, where it begins in `bytes`.
    starts: Vec<usize>,
}

impl Separators {
    fn empty(prefix: &[u8]) -> Self {
        let bytes = Vec::new();
        let fronts = Vec::new();
        let starts = Vec::new();
        Self { prefix: prefix.to_vec(), pages: 0, bytes, fronts, starts }
    }

    /// Appends a separator.
    #[expect(clippy::cast_possible_truncation, reason = "at most 15")]
    fn push(&mut self, last: &[u8], separator: &[u8]) {
        // The first separator of a block stands whole, so that a search can begin there.
        let shared = if self.starts_block() { 0 } else { common_size(last, separator) };
        self.note_block(self.bytes.len(), separator);
        let tail = &separator[shared..];
        // Room for the byte of sizes, two escaped numbers and the tail.
        grow(&mut self.bytes, 1 + 2 * NUMBER_BYTES_MAX + tail.len());
        let sizes = [shared, tail.len()].map(|size| size.min(SIZE_ESCAPE) as u8);
        self.bytes.push(sizes[0] << 4 | sizes[1]);

        for size in [shared, tail.len()] {
            if size >= SIZE_ESCAPE {
                put_number(&mut self.bytes, size - SIZE_ESCAPE);
            }
        }

        self.bytes.extend_from_slice(tail);
        self.pages = self.pages.checked_add(1).expect("pages are numbered with 32 bits");
        debug_assert_eq!(self.starts.len(), (self.pages as usize).div_ceil(BLOCK_COUNT));
        debug_assert_eq!(self.fronts.len(), self.starts.len());
    }

    /// Whether the next separator is the first of a block.
    fn starts_block(&self) -> bool {
        (self.pages as usize).is_multiple_of(BLOCK_COUNT)
    }

    /// Enters the next separator into the directory if it starts a block.
    fn note_block(&mut self, start: usize, separator: &[u8]) {
        if self.starts_block() {
            grow(&mut self.fronts, 1);
            grow(&mut self.starts, 1);
            self.fronts.push(eight_bytes(separator));
            self.starts.push(start);
        }
    }

    #[cfg(test)]
    pub(super) fn pages(&self) -> u32 {
        self.pages
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.prefix.capacity()
            + self.bytes.capacity()
            + self.fronts.capacity() * size_of::<u64>()
            + self.starts.capacity() * size_of::<usize>()
    }

    pub(super) fn search(&self, key: &[u8]) -> PageCandidate {
        // A key without the common prefix stands before or behind all pages.
        let front = key.get(..self.prefix.len()).unwrap_or(key);
        let ordinal = match front.cmp(&self.prefix) {
            Ordering::Less => 0,
            Ordering::Equal => self.ordinal(key.get(self.prefix.len()..).unwrap_or_default()),
            Ordering::Greater => self.pages.saturating_sub(1),
        };
        PageCandidate { ordinal, earlier: false }
    }

    /// The last separator that is not above `key`, which is without the prefix.
    fn ordinal(&self, key: &[u8]) -> u32 {
        let front = eight_bytes(key);

        // Blocks whose front is lower begin below the key; those whose front is equal are to be
        // compared in full, which for most keys are none.
        let below = self.fronts.partition_point(|&other| other < front);
        let equal_or_above = self.fronts.get(below..).unwrap_or_default();
        let equal_count = equal_or_above.partition_point(|&other| other == front);
        let equal = self.starts.get(below..below + equal_count).unwrap_or_default();
        let within = equal.partition_point(|&start| self.whole_at(start) <= key);
        let block = (below + within).saturating_sub(1);
        let rest = self.starts.get(block).and_then(|&start| self.bytes.get(start..));
        let skipped = last_at_most(rest.unwrap_or_default(), key);

        u32::try_from(block * BLOCK_COUNT + skipped).unwrap_or(u32::MAX)
    }

    /// The first separator of a block.
    fn whole_at(&self, start: usize) -> &[u8] {
        self.bytes.get(start..).and_then(split_separator).map_or(&[], |(coded, _)| coded.tail)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u8(KIND_ORDINARY).put(&[0; 3]).u32(self.pages).string(&self.prefix);
        writer.put(&self.bytes);
        writer.into_bytes()
    }

    /// Reads what [`Separators::encode`] wrote, from after `kind`.
    pub(super) fn decode(reader: &mut Reader<'_>, pages: u32) -> Result<Self, Corrupt> {
        let left = reader.rest().len() as u64;
        let mut header = || Ok((reader.take(3)?, reader.u32()?, reader.string()?));
        let header = header()
            .map_err(|_: terrane_io::bytes::Overrun| broken("separators: header", left + 1, left));
        let (zeros, count, prefix) = header?;

        if zeros != [0; 3] {
            return Err(broken("separators: bytes 1 to 3", 0, 1));
        }

        if count != pages {
            return Err(broken("separators: pages", pages.into(), count.into()));
        }

        let bytes = reader.take(reader.rest().len()).unwrap_or_default();
        // Only the separators are stored: the directory is built from them again.
        let mut separators = Self::empty(prefix);
        let mut last = Vec::new();

        let mut rest = bytes;
        while separators.pages < pages {
            let ordinal = u64::from(separators.pages);
            let Some((coded, after)) = split_separator(rest) else {
                return Err(broken("separators: count", pages.into(), ordinal));
            };

            if !separators.allows(&coded, &last) {
                return Err(broken("separators: order", ordinal, ordinal));
            }

            last.truncate(coded.shared);
            last.extend_from_slice(coded.tail);
            separators.note_block(bytes.len() - rest.len(), &last);
            separators.pages += 1;
            rest = after;
        }

        if !rest.is_empty() {
            return Err(broken("separators: bytes after the last", 0, rest.len() as u64));
        }

        separators.bytes = bytes.to_vec();
        Ok(separators)
    }

    /// Whether `coded` may come next, after `last`.
    fn allows(&self, coded: &Coded<'_>, last: &[u8]) -> bool {
        if self.pages == 0 {
            return coded.shared == 0 && coded.tail.is_empty();
        }
        if self.starts_block() {
            return coded.shared == 0 && last < coded.tail;
        }
        // The first byte not shared must exist and differ, and for the order it must be higher.
        coded.shared <= last.len() && coded.tail.first() > last.get(coded.shared)
    }
}

/// The index, within a block, of its last separator that is not above `key`; 0 if all are.
fn last_at_most(mut rest: &[u8], key: &[u8]) -> usize {
    let mut last = 0;

    // Bytes that the key has in common with the separator before.
    let mut matched = 0;
    for index in 0..BLOCK_COUNT {
        let Some((coded, after)) = split_separator(rest) else { break };

        // The separator before is not above the key. One that shares more with it than the key does
        // relates to the key as it does; one that shares less is above both.
        if coded.shared < matched {
            break;
        }

        if coded.shared == matched {
            let key = key.get(matched..).unwrap_or_default();
            let common = common_size(coded.tail, key);
            if coded.tail.get(common) > key.get(common) {
                break;
            }
            matched += common;
        }

        last = index;
        rest = after;
    }

    last
}

/// A separator as it is stored.
struct Coded<'a> {
    shared: usize,
    tail: &'a [u8],
}

/// Splits off the first separator; none if the bytes do not hold one.
#[inline]
fn split_separator(bytes: &[u8]) -> Option<(Coded<'_>, &[u8])> {
    let (&sizes, mut rest) = bytes.split_first()?;
    let mut sizes = [usize::from(sizes >> 4), usize::from(sizes & 15)];
    for size in &mut sizes {
        if *size == SIZE_ESCAPE {
            let (number, after) = split_number(rest)?;
            *size = SIZE_ESCAPE.checked_add(number)?;
            rest = after;
        }
    }
    let (tail, rest) = rest.split_at_checked(sizes[1])?;
    Some((Coded { shared: sizes[0], tail }, rest))
}

/// Appends a number, seven bits per byte.
#[expect(clippy::cast_possible_truncation, reason = "seven bits are wanted")]
fn put_number(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        bytes.push((number & 0x7F) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Splits off a number of at most [`NUMBER_BYTES_MAX`] bytes, in its one valid form.
fn split_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut number = 0u64;
    for (index, &byte) in bytes.iter().take(NUMBER_BYTES_MAX).enumerate() {
        number |= u64::from(byte & 0x7F) << (7 * index);
        if byte < 0x80 {
            // A last byte of 0 would be a longer form of a smaller number.
            let canonical = byte != 0 || index == 0;
            return Some((
                usize::try_from(number).ok().filter(|_| canonical)?,
                &bytes[index + 1..],
            ));
        }
    }

    None
}

fn broken(rule: &'static str, expected: u64, found: u64) -> Corrupt {
    Corrupt { page: 0, rule, expected, found }
}
