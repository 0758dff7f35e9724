//! Records of the tree: how a directory and a value are stored, and their form in memory.
//!
//! Invariant: a record is written once and refers to earlier records only. It has the hashes of its
//! targets, so a change of one child reads no other child.
//!
//! **In memory** the body of a node is the preimage of its hash: a list of entries, or of buckets,
//! exactly as it is hashed. Beside the list stand the extents of the children and the bytes of
//! short values. A change of a child overwrites 32 bytes. A node in memory may be newer than its
//! record: a *stale* child has another hash than the list says, a *changed* one differs from the
//! full record that the next delta is based on.
//!
//! **Deltas.** A delta of entries is based on a full record. A delta of an inode with buckets is
//! based on a full record, or on such a delta, the *middle* one. So a node costs three reads at
//! most, and two if it has entries. A delta is worth writing while its number of changes, times its
//! bytes, is below a multiple of the bytes of its base: twice as many for single changes, since the
//! deltas up to the next base then take about the bytes of that base, which minimizes the sum. The
//! multiples are measured ones: blocks make several changes at once, and middle deltas are rarer
//! than changes.

#![doc = include_str!("../../../../docs/format/context-record.md")]

use std::cmp::Ordering;

use crate::base::address::{
    Address, Extent, Link, put_leb, take_bytes, take_leb, take_u8, take_u32,
};
use crate::base::corrupt::Corrupt;
use crate::base::hash::{HASH_BYTES, Hash};
use crate::base::hashing::{BUCKET_BYTES, EntryLayout, STEP_BYTES_MAX};
use crate::base::path::HEIGHT_MAX;

/// The longest value that is stored in its directory, in bytes.
pub(crate) const INLINE_BYTES_MAX: usize = 48;

pub(crate) const VALUE: u8 = 1;
pub(crate) const FLAT: u8 = 2;
pub(crate) const LEAF: u8 = 3;
pub(crate) const INNER: u8 = 4;
pub(crate) const INNER_DELTA: u8 = 5;
pub(crate) const ENTRIES_DELTA: u8 = 6;

/// Returns whether a delta is worth writing that has this number of changes, and of bytes, for a
/// node whose full record has `full` bytes. Its base is used for as long as the product of both is
/// below `budget`.
fn is_delta_worth(changes: usize, bytes: usize, budget: usize, full: usize) -> bool {
    changes > 0 && changes * bytes < budget && bytes < full
}

/// Approximate bytes of an extent in a record.
const EXTENT_BYTES: usize = 5;
/// Approximate bytes of a record beside its entries or links: its head, its frame, its padding.
const RECORD_BYTES: usize = 24;

pub(crate) const TAG_INLINE: u8 = 1;
pub(crate) const TAG_VALUE: u8 = 2;
pub(crate) const TAG_DIR: u8 = 3;
/// Flag of the tag: the step consists of hexadecimal digits, two in a byte.
pub(crate) const TAG_HEX: u8 = 0x10;
/// Flag of the tag in a delta: the step is that of an entry of the full record, named by its
/// number.
pub(crate) const TAG_KEPT: u8 = 0x20;

/// The shortest step that is written as hexadecimal digits, in bytes.
const HEX_STEP_BYTES_MIN: usize = 8;

/// Returns whether a step is written as hexadecimal digits.
fn is_hex(step: &[u8]) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    step.len() >= HEX_STEP_BYTES_MIN && step.len().is_multiple_of(2) && step.iter().all(is_digit)
}

/// Writes a step of hexadecimal digits, two in a byte.
fn put_hex(step: &[u8], out: &mut Vec<u8>) {
    // The low bits of a digit, and nine more for a letter, without a branch.
    let digit = |byte: u8| (byte & 15) + 9 * (byte >> 6);
    let (pairs, _) = step.as_chunks::<2>();
    out.extend(pairs.iter().map(|[high, low]| digit(*high) << 4 | digit(*low)));
}

/// Reads the step of an entry with this tag.
fn take_step<'a, 'b: 'a>(
    tag: u8,
    bytes: &mut &'b [u8],
    room: &'a mut [u8; STEP_BYTES_MAX],
) -> Result<&'a [u8], Corrupt> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";

    let len = usize::from(take_u8(bytes)?);
    let step = take_bytes(bytes, len)?;
    if tag & TAG_HEX == 0 {
        // A step has one encoding.
        return if is_hex(step) {
            Err(Corrupt::rule("a step of hexadecimal digits takes half of its bytes", 1, 0))
        } else {
            Ok(step)
        };
    }
    let most = STEP_BYTES_MAX / 2;
    let Some(room) = room.get_mut(..2 * len).filter(|room| room.len() >= HEX_STEP_BYTES_MIN) else {
        return Err(Corrupt::rule("bytes of hexadecimal digits", most as u64, len as u64));
    };
    for (pair, byte) in room.chunks_exact_mut(2).zip(step) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    Ok(room)
}

/// Directory node.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// Lower bound of the levels of directories from here down, this one included.
    pub(crate) height: u16,
    pub(crate) body: RecordBody,
}

#[derive(Debug, Clone)]
pub(crate) enum RecordBody {
    Entries(Entries),
    Inner(Inner),
}

/// Form of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The node is as it was read.
    Read,
    /// A delta, which no delta can be based on.
    Delta,
    /// A delta on a full record, which later deltas can be based on.
    Middle,
    /// A full record, which later deltas can be based on.
    Full,
    /// Another record of the same content, of which nothing else is known.
    Other,
}

/// Extent of a child that is not stored.
pub(crate) const NOWHERE: Extent = Extent { at: Address { chunk: 0, unit: 0 }, bytes: 0 };

/// Entries of a flat directory, or of a leaf of an inode.
///
/// Invariant: the entries of `list` ascend by their steps, and each has an item.
#[derive(Debug, Clone)]
pub(crate) struct Entries {
    pub(crate) leaf: bool,
    /// Entries as they are hashed.
    list: Vec<u8>,
    items: Vec<Item>,
    /// Bytes of the values of more than 12 bytes that are stored here, and of some that were
    /// replaced.
    values: Vec<u8>,
    /// Full record that a delta can be based on, and the number of its entries.
    full: Option<(Extent, u32)>,
    /// Steps of the full record that are not here any more, ascending.
    gone: Vec<Box<[u8]>>,
}

/// Entry beside the list.
#[derive(Debug, Clone, Copy)]
struct Item {
    /// Start of the step in the list.
    start: u32,
    step_len: u8,
    /// Hash of the step, which rules out most other steps without reading their bytes.
    mark: u8,
    /// Tag, and flags.
    kind: u8,
    /// Length of a value that is stored here.
    value_len: u8,
    /// Extent of the child, or a short value, or the start of a longer one.
    payload: [u8; TINY_BYTES_MAX],
}

/// The longest value that is stored in its item, in bytes.
const TINY_BYTES_MAX: usize = 12;

/// Bits of the tag.
const TAG: u8 = 3;
/// Flag of an item whose hash in the list is not that of its child.
const STALE: u8 = 4;
/// Flag of an item that the full record lacks, or has otherwise.
const CHANGED: u8 = 8;
/// Flag of a changed item whose step the full record lacks.
const NEW: u8 = 16;
/// Flag of an item whose step is written as hexadecimal digits.
const HEX: u8 = 32;

impl Item {
    fn tag(self) -> u8 {
        self.kind & TAG
    }

    fn has(self, flag: u8) -> bool {
        self.kind & flag != 0
    }

    fn is_tiny(self) -> bool {
        usize::from(self.value_len) <= TINY_BYTES_MAX
    }

    fn word(self, number: usize) -> u32 {
        let (words, _) = self.payload.as_chunks::<4>();
        u32::from_le_bytes(words[number])
    }

    fn extent(self) -> Extent {
        let at = Address { chunk: self.word(0), unit: self.word(1) };
        Extent { at, bytes: self.word(2) }
    }

    fn set_extent(&mut self, Extent { at, bytes }: Extent) {
        self.payload[..4].copy_from_slice(&at.chunk.to_le_bytes());
        self.payload[4..8].copy_from_slice(&at.unit.to_le_bytes());
        self.payload[8..].copy_from_slice(&bytes.to_le_bytes());
    }

    /// Start of a value in the values of the node.
    fn value_start(self) -> usize {
        debug_assert!(!self.is_tiny(), "short values are in the item");
        self.word(0) as usize
    }

    fn set_value_start(&mut self, start: usize) {
        debug_assert!(u32::try_from(start).is_ok(), "offsets have 32 bits");
        self.payload[..4].copy_from_slice(&(start as u32).to_le_bytes());
    }
}

/// Hash of the first and the last 8 bytes, which differ between most steps.
fn mark(step: &[u8]) -> u8 {
    let (near, far) = match (step.first_chunk(), step.last_chunk()) {
        (Some(near), Some(far)) => (u64::from_le_bytes(*near), u64::from_le_bytes(*far)),
        // A short step is both.
        _ => {
            let word = step.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            (word, word)
        }
    };
    let mixed = (near ^ far.rotate_left(29)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

/// Largest number of items that are searched linearly, by their marks.
const MARKED_MAX: usize = 512;

/// Content of an entry in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stored<'a> {
    Inline(&'a [u8]),
    Value(Link),
    Dir(Link),
    /// Only its hash is known here, if the hash is not stale: the child is in memory or blinded.
    Nowhere {
        is_value: bool,
        hash: Option<Hash>,
    },
}

/// An inode with buckets.
#[derive(Debug, Clone)]
pub(crate) struct Inner {
    pub(crate) depth: u8,
    /// Entries below the inode.
    pub(crate) count: u64,
    /// Bit mask of the buckets that are not empty.
    mask: u32,
    /// Buckets as they are hashed, ascending.
    list: Vec<u8>,
    /// Extents of the buckets, ascending.
    extents: Vec<Extent>,
    /// Mask of the buckets whose hash in the list is not that of the inode.
    stale: u32,
    /// Full record that a delta can be based on.
    full: Option<Extent>,
    /// Mask of the buckets that differ from the full record.
    changed: u32,
    /// Delta on the full record that a delta can be based on.
    middle: Option<Extent>,
    /// Mask of the buckets that differ from this delta.
    recent: u32,
}

impl Inner {
    /// Creates an inode of a depth without buckets, below which are `count` entries. It has room
    /// for `buckets` of them.
    pub(crate) fn new(depth: u8, count: u64, buckets: usize) -> Self {
        let extents = Vec::with_capacity(buckets);
        let list = Vec::with_capacity(buckets * BUCKET_BYTES);
        Self {
            depth,
            count,
            mask: 0,
            list,
            extents,
            stale: 0,
            full: None,
            changed: 0,
            middle: None,
            recent: 0,
        }
    }

    /// Number of buckets that are not empty.
    pub(crate) fn len(&self) -> usize {
        self.extents.len()
    }

    /// Buckets as they are hashed.
    pub(crate) fn list(&self) -> &[u8] {
        &self.list
    }

    /// Mask of the buckets whose hash in the list is not that of the inode.
    pub(crate) fn stale(&self) -> u32 {
        self.stale
    }

    /// Buckets that are not empty, ascending.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = usize> + use<> {
        let mask = self.mask;
        (0..32).filter(move |bucket| mask >> bucket & 1 == 1)
    }

    /// Number of the bucket among those that are not empty.
    pub(crate) fn rank(&self, bucket: usize) -> Option<usize> {
        let bit = 1u32 << bucket;
        (self.mask & bit != 0).then(|| self.rank_of(bucket))
    }

    fn rank_of(&self, bucket: usize) -> usize {
        debug_assert!(bucket < 32, "an inode has at most 32 buckets");
        (self.mask & ((1u32 << bucket) - 1)).count_ones() as usize
    }

    /// Position of the hash of a rank in the list.
    pub(crate) fn hash_at(rank: usize) -> usize {
        rank * BUCKET_BYTES + 1
    }

    /// Hash of a rank in the list.
    pub(crate) fn hash(&self, rank: usize) -> Hash {
        hash_in(&self.list, Self::hash_at(rank))
    }

    /// Extent of a rank; [`NOWHERE`] if the inode is not stored.
    pub(crate) fn extent(&self, rank: usize) -> Extent {
        self.extents[rank]
    }

    /// Returns the link of a rank, if the inode is stored.
    pub(crate) fn link(&self, rank: usize) -> Option<Link> {
        let extent = self.extents[rank];
        (extent != NOWHERE).then(|| Link { extent, hash: self.hash(rank) })
    }

    /// Adds a bucket that was empty, of a child that is in memory or blinded; returns its rank.
    pub(crate) fn insert(&mut self, bucket: usize, hash: Option<&Hash>) -> usize {
        let rank = self.rank_of(bucket);
        debug_assert_eq!(self.mask >> bucket & 1, 0, "the bucket was empty");
        let mut entry = [0; BUCKET_BYTES];
        entry[0] = bucket as u8;
        entry[1..].copy_from_slice(&hash.unwrap_or(&Hash([0; HASH_BYTES])).0);
        let at = rank * BUCKET_BYTES;
        self.list.splice(at..at, entry);
        self.extents.insert(rank, NOWHERE);
        self.mask |= 1 << bucket;
        self.changed |= 1 << bucket;
        self.recent |= 1 << bucket;
        if hash.is_none() {
            self.stale |= 1 << bucket;
        }
        self.check();
        rank
    }

    /// Notes that the inode of a bucket changed.
    pub(crate) fn change(&mut self, bucket: usize) {
        let rank = self.rank_of(bucket);
        self.extents[rank] = NOWHERE;
        self.stale |= 1 << bucket;
        self.changed |= 1 << bucket;
        self.recent |= 1 << bucket;
        self.check();
    }

    /// Stores the link of a bucket.
    pub(crate) fn settle(&mut self, bucket: usize, link: &Link) {
        let rank = self.rank_of(bucket);
        self.extents[rank] = link.extent;
        let at = Self::hash_at(rank);
        self.list[at..at + HASH_BYTES].copy_from_slice(&link.hash.0);
        self.stale &= !(1 << bucket);
        self.check();
    }

    /// Empties a bucket; returns the rank that it had.
    pub(crate) fn remove(&mut self, bucket: usize) -> usize {
        let rank = self.rank_of(bucket);
        let at = rank * BUCKET_BYTES;
        self.list.drain(at..at + BUCKET_BYTES);
        self.extents.remove(rank);
        let bit = 1 << bucket;
        self.mask &= !bit;
        self.changed &= !bit;
        self.recent &= !bit;
        self.stale &= !bit;
        self.check();
        rank
    }

    fn check(&self) {
        debug_assert_eq!(self.extents.len(), self.mask.count_ones() as usize, "an extent each");
        debug_assert_eq!(self.list.len(), self.extents.len() * BUCKET_BYTES, "a hash each");
        let flagged = self.stale | self.changed | self.recent;
        debug_assert_eq!(flagged & !self.mask, 0, "buckets that are there");
    }

    /// Bases later deltas on a full record of this content, or on none.
    pub(crate) fn rebase(&mut self, full: Option<Extent>) {
        self.full = full;
        self.changed = if full.is_some() { 0 } else { self.mask };
        (self.middle, self.recent) = (None, self.changed);
    }

    /// Bases later deltas on a delta of this content, which is based on the full record.
    pub(crate) fn rebase_middle(&mut self, middle: Extent) {
        debug_assert!(self.full.is_some(), "a delta is based on a full record");
        (self.middle, self.recent) = (Some(middle), 0);
    }

    /// Full record of the content, or of the content that it differs from.
    pub(crate) fn full(&self) -> Option<Extent> {
        self.full
    }
}

/// Makes room for `more` elements, and an eighth of those that are there: nodes stay in memory for
/// long, and few of them grow again.
fn make_room<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() - list.len() < more {
        list.reserve_exact(more + list.len() / 8);
    }
}

fn hash_in(list: &[u8], at: usize) -> Hash {
    Hash(*list[at..].first_chunk().expect("a hash follows"))
}

impl Entries {
    /// Creates a directory or a leaf without entries.
    pub(crate) fn new(leaf: bool) -> Self {
        Self {
            leaf,
            list: Vec::new(),
            items: Vec::new(),
            values: Vec::new(),
            full: None,
            gone: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Entries as they are hashed.
    pub(crate) fn list(&self) -> &[u8] {
        &self.list
    }

    pub(crate) fn step(&self, item: usize) -> &[u8] {
        let Item { start, step_len, .. } = self.items[item];
        &self.list[start as usize..start as usize + usize::from(step_len)]
    }

    pub(crate) fn is_value(&self, item: usize) -> bool {
        self.items[item].tag() != TAG_DIR
    }

    /// Returns whether the value of an item is stored here.
    pub(crate) fn is_inline(&self, item: usize) -> bool {
        self.items[item].tag() == TAG_INLINE
    }

    /// Returns whether the hash of an item in the list is not that of its child.
    pub(crate) fn is_stale(&self, item: usize) -> bool {
        self.items[item].has(STALE)
    }

    /// Items whose hash in the list is not that of their child.
    pub(crate) fn stale(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.len()).filter(|item| self.is_stale(*item))
    }

    /// Position of the hash of an item in the list.
    pub(crate) fn hash_at(&self, item: usize) -> usize {
        let Item { start, step_len, .. } = self.items[item];
        start as usize + usize::from(step_len) + EntryLayout::of(self.leaf).between
    }

    /// Hash of an item in the list.
    pub(crate) fn hash(&self, item: usize) -> Hash {
        hash_in(&self.list, self.hash_at(item))
    }

    /// Extent of the child of an item; [`NOWHERE`] if the child is not stored. The value must not
    /// be stored here.
    pub(crate) fn extent(&self, item: usize) -> Extent {
        debug_assert!(!self.is_inline(item), "the value is elsewhere");
        self.items[item].extent()
    }

    /// Value of an item that is stored here.
    fn value(&self, item: usize) -> &[u8] {
        let len = usize::from(self.items[item].value_len);
        if self.items[item].is_tiny() {
            return &self.items[item].payload[..len];
        }
        let start = self.items[item].value_start();
        &self.values[start..start + len]
    }

    pub(crate) fn stored(&self, item: usize) -> Stored<'_> {
        let tag = self.items[item].tag();
        if tag == TAG_INLINE {
            return Stored::Inline(self.value(item));
        }
        let extent = self.items[item].extent();
        if extent == NOWHERE {
            let hash = (!self.is_stale(item)).then(|| self.hash(item));
            return Stored::Nowhere { is_value: tag != TAG_DIR, hash };
        }
        let link = Link { extent, hash: self.hash(item) };
        if tag == TAG_VALUE { Stored::Value(link) } else { Stored::Dir(link) }
    }

    /// Returns the number of the entry of `step`.
    pub(crate) fn find(&self, step: &[u8]) -> Option<usize> {
        if self.len() > MARKED_MAX {
            return self.position(step).ok();
        }
        // A scan of the marks reads few steps.
        let len = step.len() as u8;
        let mark = mark(step);
        let mut numbered = self.items.iter().enumerate();
        numbered.find_map(|(number, item)| {
            let may_be = item.mark == mark && item.step_len == len;
            (may_be && self.step(number) == step).then_some(number)
        })
    }

    /// Returns the number of the entry of `step`, or its insertion point.
    pub(crate) fn position(&self, step: &[u8]) -> std::result::Result<usize, usize> {
        let mut low = 0;
        let mut high = self.len();
        while low < high {
            let middle = low.midpoint(high);
            match self.step(middle).cmp(step) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }

        debug_assert!(low == high && low <= self.len(), "one insertion point");
        Err(low)
    }

    /// Gives back memory that appended entries did not need.
    pub(crate) fn shrink(&mut self) {
        self.list.shrink_to_fit();
        self.items.shrink_to_fit();
        self.values.shrink_to_fit();
    }

    /// Appends an entry, whose step is the largest.
    pub(crate) fn push(&mut self, step: &[u8], content: Stored<'_>) {
        debug_assert!(self.is_empty_or_before(step), "steps ascend");
        self.insert_at(self.len(), step, content);
    }

    fn is_empty_or_before(&self, step: &[u8]) -> bool {
        self.len().checked_sub(1).is_none_or(|last| self.step(last) < step)
    }

    /// Inserts a new entry at its insertion point.
    pub(crate) fn insert(&mut self, item: usize, step: &[u8], content: Stored<'_>) {
        debug_assert_eq!(self.position(step), Err(item), "the step is new, and belongs here");
        make_room(&mut self.list, EntryLayout::of(self.leaf).bytes(step.len()));
        make_room(&mut self.items, 1);
        self.insert_at(item, step, content);
        // The full record has the step, with another child.
        if let Ok(gone) = self.gone.binary_search_by(|gone| (**gone).cmp(step)) {
            self.gone.remove(gone);
            self.items[item].kind &= !NEW;
        }
    }

    fn insert_at(&mut self, item: usize, step: &[u8], content: Stored<'_>) {
        let hash = content.hash();
        debug_assert!(!step.is_empty() && step.len() <= 255, "a step has 1 to 255 bytes");
        let layout = EntryLayout::of(self.leaf);
        let at = match self.items.get(item) {
            Some(next) => next.start as usize - layout.before(usize::from(next.step_len)),
            None => self.list.len(),
        };

        // The list is kept as it is hashed, so the entries behind move.
        let start = at + layout.before(step.len());
        let is_value = content.is_value();
        let blank = Hash([0; HASH_BYTES]);
        if at == self.list.len() {
            layout.put(&mut self.list, step, is_value, hash.as_ref().unwrap_or(&blank));
        } else {
            let bytes = layout.bytes(step.len());
            let mut entry = Vec::with_capacity(bytes);
            layout.put(&mut entry, step, is_value, hash.as_ref().unwrap_or(&blank));
            self.list.splice(at..at, entry);
            for behind in &mut self.items[item..] {
                behind.start += bytes as u32;
            }
        }
        debug_assert!(u32::try_from(self.list.len()).is_ok(), "offsets have 32 bits");

        let new = Item {
            start: start as u32,
            step_len: step.len() as u8,
            mark: mark(step),
            kind: CHANGED
                | NEW
                | if hash.is_none() { STALE } else { 0 }
                | if is_hex(step) { HEX } else { 0 },
            value_len: 0,
            payload: [0; TINY_BYTES_MAX],
        };
        self.items.insert(item, new);
        self.put_content(item, content);
    }

    /// Stores a content in an item, whose hash and flags stay.
    fn put_content(&mut self, item: usize, content: Stored<'_>) {
        let mut new = self.items[item];
        new.value_len = 0;
        let tag = match content {
            Stored::Inline(value) => {
                debug_assert!(value.len() <= INLINE_BYTES_MAX, "longer values are elsewhere");
                new.value_len = value.len() as u8;
                if new.is_tiny() {
                    new.payload[..value.len()].copy_from_slice(value);
                } else {
                    new.set_value_start(self.values.len());
                    self.values.extend_from_slice(value);
                }
                TAG_INLINE
            }
            Stored::Value(link) => {
                new.set_extent(link.extent);
                TAG_VALUE
            }
            Stored::Dir(link) => {
                new.set_extent(link.extent);
                TAG_DIR
            }
            Stored::Nowhere { is_value, .. } => {
                new.set_extent(NOWHERE);
                if is_value { TAG_VALUE } else { TAG_DIR }
            }
        };
        new.kind = new.kind & !TAG | tag;
        self.items[item] = new;
    }

    /// Replaces the content of an item.
    pub(crate) fn set(&mut self, item: usize, content: Stored<'_>) {
        let was_value = self.is_value(item);
        let old = self.items[item];
        let is_as_long = |value: &[u8]| {
            old.tag() == TAG_INLINE && usize::from(old.value_len) == value.len() && !old.is_tiny()
        };
        match content {
            Stored::Inline(value) if is_as_long(value) => {
                let start = old.value_start();
                self.values[start..start + value.len()].copy_from_slice(value);
            }
            content => self.put_content(item, content),
        }

        if content.is_value() != was_value {
            let Item { start, step_len, .. } = self.items[item];
            let layout = EntryLayout::of(self.leaf);
            let kind = layout.kind_at(start as usize, usize::from(step_len));
            self.list[kind] = layout.kind(content.is_value());
        }

        self.items[item].kind |= CHANGED;
        match content.hash() {
            Some(hash) => self.put_hash(item, &hash),
            None => self.items[item].kind |= STALE,
        }
        self.drop_replaced_values();
    }

    /// Drops the bytes of replaced values when they are most of the bytes.
    fn drop_replaced_values(&mut self) {
        const SLACK_BYTES: usize = 256;

        if self.values.len() <= SLACK_BYTES {
            return;
        }
        let is_here = |item: &Item| item.tag() == TAG_INLINE && !item.is_tiny();
        let here = self.items.iter().filter(|item| is_here(item));
        let live: usize = here.map(|item| usize::from(item.value_len)).sum();
        if self.values.len() <= 2 * live + SLACK_BYTES {
            return;
        }
        let mut values = Vec::with_capacity(live);
        for item in self.items.iter_mut().filter(|item| is_here(item)) {
            let start = item.value_start();
            item.set_value_start(values.len());
            values.extend_from_slice(&self.values[start..start + usize::from(item.value_len)]);
        }
        self.values = values;
    }

    /// Stores the hash of the child of an item.
    pub(crate) fn put_hash(&mut self, item: usize, hash: &Hash) {
        let at = self.hash_at(item);
        self.list[at..at + HASH_BYTES].copy_from_slice(&hash.0);
        self.items[item].kind &= !STALE;
    }

    /// Stores the link of the child of an item.
    pub(crate) fn settle(&mut self, item: usize, link: &Link) {
        debug_assert!(!self.is_inline(item), "the child is elsewhere");
        self.items[item].set_extent(link.extent);
        self.put_hash(item, &link.hash);
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, item: usize) {
        let Item { start, step_len, .. } = self.items[item];
        let layout = EntryLayout::of(self.leaf);
        let at = start as usize - layout.before(usize::from(step_len));
        let end = self.hash_at(item) + HASH_BYTES;

        // The next delta says that an entry of the full record is gone.
        if self.full.is_some() && !self.items[item].has(NEW) {
            let step: Box<[u8]> = self.step(item).into();
            if let Err(gone) = self.gone.binary_search(&step) {
                self.gone.insert(gone, step);
            }
        }

        self.list.drain(at..end);
        self.items.remove(item);
        for behind in &mut self.items[item..] {
            behind.start -= (end - at) as u32;
        }
    }
}

impl Entries {
    /// Bases later deltas on a full record of this content, or on none.
    pub(crate) fn rebase(&mut self, full: Option<Extent>) {
        let len = self.len() as u32;
        self.full = full.map(|extent| (extent, len));
        self.gone.clear();
        for item in &mut self.items {
            if full.is_some() {
                item.kind &= !(CHANGED | NEW);
            } else {
                item.kind |= CHANGED | NEW;
            }
        }
    }

    /// Full record on which a delta of the content is best based; `None` if the content is best
    /// written in full.
    fn delta_base(&self) -> Option<Extent> {
        let (full, _) = self.full?;
        let mut changes = self.gone.len();
        let mut changed_bytes = RECORD_BYTES + EXTENT_BYTES + changes;
        let mut full_bytes = RECORD_BYTES;
        for item in &self.items {
            let step = usize::from(item.step_len) >> u8::from(item.has(HEX));
            let content = match item.tag() {
                TAG_INLINE => 1 + usize::from(item.value_len),
                _ => EXTENT_BYTES + HASH_BYTES,
            };
            full_bytes += 2 + step + content;
            if item.has(CHANGED) {
                changes += 1;
                changed_bytes += 2 + content + if item.has(NEW) { step } else { 0 };
            }
        }
        let budget = full_bytes * 3 / 2;
        is_delta_worth(changes, changed_bytes, budget, full_bytes).then_some(full)
    }

    /// Writes the body of a record at `at`, given the links of the children that are nowhere, in
    /// the order of their entries. Returns its form.
    pub(crate) fn put(
        &self,
        at: Address,
        height: u16,
        links: &mut dyn Iterator<Item = Link>,
        out: &mut Vec<u8>,
    ) -> Form {
        let kind = if self.leaf { LEAF } else { FLAT };
        let base = self.delta_base();
        match base {
            Some(full) => {
                out.extend_from_slice(&[ENTRIES_DELTA, kind]);
                put_leb(out, u64::from(height));
                full.put(at, out);
                self.put_gone(out);
            }
            None => {
                out.push(kind);
                put_leb(out, u64::from(height));
            }
        }

        let is_own = |item: &usize| base.is_none() || self.items[*item].has(CHANGED);
        put_leb(out, (0..self.len()).filter(is_own).count() as u64);
        let mut numbers = FullNumbers::new(self);
        let mut next = 0;
        for item in 0..self.len() {
            let number = if base.is_some() { numbers.pass(item) } else { None };
            if !is_own(&item) {
                // The child was written with the base, by a node that kept no place.
                if !self.is_inline(item) && self.extent(item) == NOWHERE {
                    links.next();
                }
                continue;
            }
            let stored = match self.stored(item) {
                Stored::Nowhere { is_value, .. } => {
                    let link = links.next().expect("one for each child that is nowhere");
                    if is_value { Stored::Value(link) } else { Stored::Dir(link) }
                }
                stored => stored,
            };
            match number {
                // The full record has the step.
                Some(number) => {
                    out.push(tag(&stored) | TAG_KEPT);
                    put_leb(out, u64::from(number - next));
                    next = number + 1;
                    put_payload(at, stored, out);
                }
                None => put_entry(at, (self.step(item), self.items[item].has(HEX)), stored, out),
            }
        }
        debug_assert!(links.next().is_none(), "each link belongs to a child");

        if base.is_none() { Form::Full } else { Form::Delta }
    }

    /// Writes which entries of the full record are not here any more: their number, and for each
    /// one the entries between it and the one before.
    fn put_gone(&self, out: &mut Vec<u8>) {
        put_leb(out, self.gone.len() as u64);
        if self.gone.is_empty() {
            return;
        }
        let mut numbers = FullNumbers::new(self);
        (0..self.len()).for_each(|item| _ = numbers.pass(item));
        let mut next = 0;
        for number in numbers.gone() {
            put_leb(out, u64::from(number - next));
            next = number + 1;
        }
    }
}

/// Numbers of entries in the full record, in whose order the items pass.
struct FullNumbers<'a> {
    entries: &'a Entries,
    /// Number of the next entry of the full record.
    next: u32,
    /// Numbers of the entries before it that are gone.
    gone: Vec<u32>,
}

impl<'a> FullNumbers<'a> {
    fn new(entries: &'a Entries) -> Self {
        Self { entries, next: 0, gone: Vec::new() }
    }

    /// Passes an item; returns its number if the full record has its step.
    fn pass(&mut self, item: usize) -> Option<u32> {
        let Entries { gone, items, .. } = self.entries;
        while gone.get(self.gone.len()).is_some_and(|gone| **gone < *self.entries.step(item)) {
            self.pass_gone();
        }
        if items[item].has(NEW) {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }

    fn pass_gone(&mut self) {
        self.gone.push(self.next);
        self.next += 1;
    }

    /// Numbers of all entries that are gone, after the last item.
    fn gone(mut self) -> Vec<u32> {
        while self.gone.len() < self.entries.gone.len() {
            self.pass_gone();
        }
        self.gone
    }
}

/// Writes the body of a full record of ascending entries.
pub(crate) fn put_entries<'a>(
    at: Address,
    (leaf, height): (bool, u16),
    entries: impl ExactSizeIterator<Item = (&'a [u8], Stored<'a>)>,
    out: &mut Vec<u8>,
) {
    out.push(if leaf { LEAF } else { FLAT });
    put_leb(out, u64::from(height));
    put_leb(out, entries.len() as u64);
    entries.for_each(|(step, stored)| put_entry(at, (step, is_hex(step)), stored, out));
}

/// Tag of the entry of a content.
fn tag(stored: &Stored<'_>) -> u8 {
    match stored {
        Stored::Inline(_) => TAG_INLINE,
        Stored::Value(_) => TAG_VALUE,
        Stored::Dir(_) => TAG_DIR,
        Stored::Nowhere { .. } => unreachable!("children are written before their directory"),
    }
}

/// Writes an entry of a record at `at`.
fn put_entry(at: Address, (step, is_hex): (&[u8], bool), stored: Stored<'_>, out: &mut Vec<u8>) {
    let tag = tag(&stored);
    debug_assert!(!step.is_empty() && step.len() <= 255, "a step has 1 to 255 bytes");
    if is_hex {
        out.extend_from_slice(&[tag | TAG_HEX, (step.len() / 2) as u8]);
        put_hex(step, out);
    } else {
        out.extend_from_slice(&[tag, step.len() as u8]);
        out.extend_from_slice(step);
    }
    put_payload(at, stored, out);
}

/// Writes the content of an entry of a record at `at`.
fn put_payload(at: Address, stored: Stored<'_>, out: &mut Vec<u8>) {
    match stored {
        Stored::Inline(value) => {
            put_leb(out, value.len() as u64);
            out.extend_from_slice(value);
        }
        Stored::Value(link) | Stored::Dir(link) => link.put(at, out),
        Stored::Nowhere { .. } => {}
    }
}

impl Stored<'_> {
    pub(crate) fn is_value(&self) -> bool {
        match self {
            Self::Inline(_) | Self::Value(_) => true,
            Self::Dir(_) => false,
            Self::Nowhere { is_value, .. } => *is_value,
        }
    }

    /// Hash of the child, if it is known without hashing.
    fn hash(&self) -> Option<Hash> {
        match self {
            Self::Inline(_) => None,
            Self::Value(link) | Self::Dir(link) => Some(link.hash),
            Self::Nowhere { hash, .. } => *hash,
        }
    }
}

impl Inner {
    /// Record on which a delta of the content is best based, and the buckets that differ from it;
    /// `None` if the content is best written in full.
    fn delta_base(&self) -> Option<(Extent, u32)> {
        const LINK_BYTES: usize = EXTENT_BYTES + HASH_BYTES;

        let full_bytes = RECORD_BYTES + self.len() * LINK_BYTES;
        let is_worth = |own: u32, budget: usize| {
            let changes = own.count_ones() as usize;
            let bytes = RECORD_BYTES + EXTENT_BYTES + changes * LINK_BYTES;
            is_delta_worth(changes, bytes, budget, full_bytes)
        };
        let full = self.full?;
        match self.middle {
            // A read less if the deltas are the same.
            Some(middle)
                if self.recent != self.changed
                    && is_worth(self.recent, 2 * middle.bytes as usize) =>
            {
                Some((middle, self.recent))
            }
            _ => is_worth(self.changed, 8 * full_bytes).then_some((full, self.changed)),
        }
    }

    /// Writes the body of a record at `at`, given the links of the buckets that are nowhere, in
    /// ascending order. Returns its form.
    pub(crate) fn put(
        &self,
        at: Address,
        height: u16,
        links: &mut dyn Iterator<Item = Link>,
        out: &mut Vec<u8>,
    ) -> Form {
        let base = self.delta_base();
        out.push(if base.is_some() { INNER_DELTA } else { INNER });
        put_leb(out, u64::from(height));
        out.push(self.depth);
        put_leb(out, self.count);
        if let Some((base, _)) = base {
            base.put(at, out);
        }
        out.extend_from_slice(&self.mask.to_le_bytes());
        if let Some((_, own)) = base {
            out.extend_from_slice(&own.to_le_bytes());
        }

        // A delta stores the links of changed buckets only.
        let own = base.map_or(self.mask, |(_, own)| own);
        for (rank, bucket) in self.buckets().enumerate() {
            let link = self.link(rank).or_else(|| links.next());
            if own >> bucket & 1 == 1 {
                link.expect("one for each bucket that is nowhere").put(at, out);
            }
        }
        debug_assert!(links.next().is_none(), "each link belongs to a bucket");

        match base {
            None => Form::Full,
            Some((base, _)) if Some(base) == self.full => Form::Middle,
            Some(_) => Form::Delta,
        }
    }
}

/// Decoded record: a node, or a delta that still needs its base.
#[derive(Debug)]
pub(crate) enum Decoded {
    Record(Record),
    /// Difference from the record at `base`, which the caller must read and [apply](Delta::apply).
    Delta(Delta),
}

#[derive(Debug)]
pub(crate) struct Delta {
    /// Where the delta is.
    extent: Extent,
    base: Extent,
    height: u16,
    changes: Changes,
}

#[derive(Debug)]
enum Changes {
    /// Links of the changed buckets.
    Inner {
        depth: u8,
        count: u64,
        mask: u32,
        changed: u32,
        links: Vec<Link>,
    },
    Entries(EntriesDelta),
}

/// Differences of the entries of a node from those of a full record.
#[derive(Debug)]
struct EntriesDelta {
    leaf: bool,
    /// Numbers of the entries of the full record that are gone, ascending.
    gone: Vec<usize>,
    /// New and changed entries, ascending.
    own: Vec<OwnEntry>,
}

/// Entry of a delta.
#[derive(Debug)]
struct OwnEntry {
    name: OwnName,
    content: OwnContent,
}

#[derive(Debug)]
enum OwnName {
    /// Number of the entry of the full record that has the step.
    Kept(usize),
    New(Box<[u8]>),
}

#[derive(Debug)]
enum OwnContent {
    Inline(Box<[u8]>),
    Value(Link),
    Dir(Link),
}

impl OwnContent {
    fn of(stored: Stored<'_>) -> Self {
        match stored {
            Stored::Inline(bytes) => Self::Inline(bytes.into()),
            Stored::Value(link) => Self::Value(link),
            Stored::Dir(link) => Self::Dir(link),
            Stored::Nowhere { .. } => unreachable!("what is decoded is stored"),
        }
    }

    fn stored(&self) -> Stored<'_> {
        match self {
            Self::Inline(bytes) => Stored::Inline(bytes),
            Self::Value(link) => Stored::Value(*link),
            Self::Dir(link) => Stored::Dir(*link),
        }
    }
}

impl Delta {
    /// Record that the delta is based on: a full one, or for an inode with buckets a delta on one.
    pub(crate) fn base(&self) -> Extent {
        self.base
    }

    /// Returns the node, given the record that the delta is based on.
    pub(crate) fn apply(self, base: &Record) -> Result<Record, Corrupt> {
        let body = match (self.changes, &base.body) {
            (changes @ Changes::Inner { .. }, RecordBody::Inner(base)) if base.is_base() => {
                RecordBody::Inner(apply_links(self.extent, changes, base)?)
            }
            (Changes::Entries(delta), RecordBody::Entries(base)) if base.is_full() => {
                RecordBody::Entries(apply_entries(&delta, base)?)
            }
            _ => return Err(Corrupt::rule("a delta is based on a base of its kind", 1, 0)),
        };
        Ok(Record { height: self.height, body })
    }
}

impl Inner {
    /// Returns whether the node is as its full record, or its middle one, has it.
    fn is_base(&self) -> bool {
        self.full.is_some() && (self.changed == 0 || self.middle.is_some() && self.recent == 0)
    }

    /// Appends a bucket of a record, the highest so far.
    fn push(&mut self, bucket: usize, link: &Link) {
        debug_assert_eq!(u64::from(self.mask) >> bucket, 0, "buckets ascend");
        self.list.push(bucket as u8);
        self.list.extend_from_slice(&link.hash.0);
        self.extents.push(link.extent);
        self.mask |= 1 << bucket;
        self.check();
    }
}

impl Entries {
    fn is_full(&self) -> bool {
        self.full.is_some_and(|(_, len)| len as usize == self.len())
            && self.gone.is_empty()
            && self.items.iter().all(|item| !item.has(CHANGED))
    }
}

fn apply_links(extent: Extent, changes: Changes, base: &Inner) -> Result<Inner, Corrupt> {
    let Changes::Inner { depth, count, mask, changed, links } = changes else {
        return Err(Corrupt::rule("a delta is based on a full record of its kind", 1, 0));
    };
    if base.depth != depth {
        let expected = u64::from(depth);
        let found = u64::from(base.depth);
        return Err(Corrupt::rule("a delta is based on a record of its depth", expected, found));
    }

    // Changed buckets come from the delta, the others from the base.
    let mut own = links.iter();
    let mut inner = Inner::new(depth, count, mask.count_ones() as usize);
    for bucket in (0..32).filter(|bucket| mask >> bucket & 1 == 1) {
        let link = if changed >> bucket & 1 == 1 {
            own.next().copied()
        } else {
            base.rank(bucket).and_then(|rank| base.link(rank))
        };
        let link = link.ok_or(Corrupt::rule("a bucket that is kept is in the base", 1, 0))?;
        inner.push(bucket, &link);
    }

    debug_assert!(own.next().is_none(), "changed buckets are not empty");
    inner.full = base.full;
    if base.changed == 0 {
        (inner.changed, inner.middle) = (changed, Some(extent));
    } else {
        inner.changed = (base.changed | changed) & mask;
        (inner.middle, inner.recent) = (base.middle, changed);
    }
    inner.check();
    Ok(inner)
}

fn apply_entries(delta: &EntriesDelta, base: &Entries) -> Result<Entries, Corrupt> {
    if base.leaf != delta.leaf {
        return Err(Corrupt::rule("a delta is based on a record of its kind", 1, 0));
    }
    let len = base.len();
    let lacks = |number: usize| {
        Corrupt::rule("a delta names entries of the full record", len as u64, number as u64)
    };
    if let Some(&last) = delta.gone.last().filter(|last| **last >= len) {
        return Err(lacks(last));
    }

    // First what keeps its number, then what changes those behind it, from the last one on.
    let mut entries = base.clone();
    let mut before: Option<&[u8]> = None;
    for own in &delta.own {
        let step = match &own.name {
            OwnName::New(step) => &**step,
            OwnName::Kept(number) if *number >= len => return Err(lacks(*number)),
            OwnName::Kept(number) if delta.gone.binary_search(number).is_ok() => {
                return Err(Corrupt::rule("an entry that is gone is not there", 0, *number as u64));
            }
            OwnName::Kept(number) => {
                entries.set(*number, own.content.stored());
                base.step(*number)
            }
        };
        // The order of the entries has one encoding.
        if before.is_some_and(|before| before >= step) {
            return Err(Corrupt::rule("steps ascend", 1, step.len() as u64));
        }
        before = Some(step);
    }
    for number in delta.gone.iter().rev() {
        entries.remove(*number);
    }
    for own in &delta.own {
        let OwnName::New(step) = &own.name else { continue };
        match entries.position(step) {
            Err(position) if base.position(step).is_err() => {
                entries.insert(position, step, own.content.stored());
            }
            _ => return Err(Corrupt::rule("the full record lacks a new step", 0, 1)),
        }
    }
    Ok(entries)
}

impl Record {
    /// Approximate size in memory, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let body = match &self.body {
            RecordBody::Entries(entries) => {
                entries.list.capacity()
                    + entries.values.capacity()
                    + entries.items.capacity() * size_of::<Item>()
            }
            RecordBody::Inner(inner) => {
                inner.list.capacity() + inner.extents.capacity() * size_of::<Extent>()
            }
        };
        body + size_of::<Self>() + 64
    }

    /// Decodes the body of a record at `extent`.
    pub(crate) fn decode(extent: Extent, body: &[u8]) -> Result<Decoded, Corrupt> {
        let mut bytes = body;
        let kind = take_u8(&mut bytes)?;
        if !(FLAT..=ENTRIES_DELTA).contains(&kind) {
            return Err(Corrupt::rule(
                "kind of a directory record",
                u64::from(FLAT),
                u64::from(kind),
            ));
        }

        // A delta names the kind of its entries, since the base is not read yet.
        let leaf = match kind {
            ENTRIES_DELTA => match take_u8(&mut bytes)? {
                FLAT => false,
                LEAF => true,
                other => return Err(Corrupt::rule("kind of entries", 2, u64::from(other))),
            },
            _ => kind == LEAF,
        };

        // Bounds recursion and lists of all that walk the tree.
        let height = take_leb(&mut bytes)?;
        let height = u16::try_from(height)
            .ok()
            .filter(|height| (1..=HEIGHT_MAX).contains(height))
            .ok_or(Corrupt::rule("height", u64::from(HEIGHT_MAX), height))?;

        let decoded = match kind {
            FLAT | LEAF => {
                let mut entries = decode_entries(extent, leaf, &mut bytes)?;
                entries.rebase(Some(extent));
                Decoded::Record(Self { height, body: RecordBody::Entries(entries) })
            }
            INNER => {
                let inner = decode_inner(extent, &mut bytes)?;
                Decoded::Record(Self { height, body: RecordBody::Inner(inner) })
            }
            INNER_DELTA => {
                let (base, changes) = decode_inner_delta(extent, &mut bytes)?;
                Decoded::Delta(Delta { extent, base, height, changes })
            }
            _ => {
                let base = Extent::take(extent.at, &mut bytes)?;
                let changes = Changes::Entries(decode_entries_delta(extent, leaf, &mut bytes)?);
                Decoded::Delta(Delta { extent, base, height, changes })
            }
        };

        // A record has one encoding: trailing bytes would be a second one.
        if !bytes.is_empty() {
            return Err(Corrupt::rule("nothing follows in a record", 0, bytes.len() as u64));
        }

        Ok(decoded)
    }
}

/// Reads the number of an entry of a full record, whose first possible one is `next`.
fn take_number(bytes: &mut &[u8], next: &mut usize) -> Result<usize, Corrupt> {
    let number = *next + take_u32(bytes)? as usize;
    *next = number + 1;
    Ok(number)
}

fn decode_entries_delta(
    extent: Extent,
    leaf: bool,
    bytes: &mut &[u8],
) -> Result<EntriesDelta, Corrupt> {
    // The counts come from the disk: capacities are bounded by the bytes that are there.
    let count = take_leb(bytes)? as usize;
    let mut gone = Vec::with_capacity(count.min(bytes.len()));
    let mut next = 0;
    for _ in 0..count {
        gone.push(take_number(bytes, &mut next)?);
    }

    let count = take_leb(bytes)? as usize;
    let mut own = Vec::with_capacity(count.min(bytes.len() / 3));
    let mut next = 0;
    for _ in 0..count {
        let tag = take_u8(bytes)?;
        let name = if tag & TAG_KEPT == 0 {
            let mut room = [0; STEP_BYTES_MAX];
            let step = take_step(tag, bytes, &mut room)?;
            if step.is_empty() {
                return Err(Corrupt::rule("bytes of a step", 1, 0));
            }
            OwnName::New(step.into())
        } else {
            OwnName::Kept(take_number(bytes, &mut next)?)
        };
        let flag = if tag & TAG_KEPT == 0 { TAG_HEX } else { TAG_KEPT };
        let content = OwnContent::of(take_content(extent, tag & !flag, bytes)?);
        own.push(OwnEntry { name, content });
    }
    Ok(EntriesDelta { leaf, gone, own })
}

/// Reads the content of an entry with this tag.
fn take_content<'a>(extent: Extent, tag: u8, bytes: &mut &'a [u8]) -> Result<Stored<'a>, Corrupt> {
    match tag {
        TAG_INLINE => {
            let len = take_leb(bytes)? as usize;
            if len > INLINE_BYTES_MAX {
                let most = INLINE_BYTES_MAX as u64;
                return Err(Corrupt::rule("bytes of a value in place", most, len as u64));
            }
            Ok(Stored::Inline(take_bytes(bytes, len)?))
        }
        TAG_VALUE => Ok(Stored::Value(Link::take(extent.at, bytes)?)),
        TAG_DIR => Ok(Stored::Dir(Link::take(extent.at, bytes)?)),
        _ => Err(Corrupt::rule("tag of an entry", 3, u64::from(tag))),
    }
}

/// Bytes of the list and of the values of encoded entries, up to the first that is damaged.
fn sizes(leaf: bool, count: usize, mut bytes: &[u8]) -> (usize, usize) {
    let layout = EntryLayout::of(leaf);
    let mut list = 0;
    let mut values = 0;
    let mut entry = || -> Result<(), Corrupt> {
        let tag = take_u8(&mut bytes)?;
        let encoded_len = usize::from(take_u8(&mut bytes)?);
        take_bytes(&mut bytes, encoded_len)?;
        let step_len = if tag & TAG_HEX == 0 { encoded_len } else { 2 * encoded_len };
        if step_len > STEP_BYTES_MAX {
            return Err(Corrupt::short("a step"));
        }
        list += layout.bytes(step_len);
        if tag & !TAG_HEX == TAG_INLINE {
            let len = take_leb(&mut bytes)? as usize;
            take_bytes(&mut bytes, len)?;
            values += if len > TINY_BYTES_MAX { len } else { 0 };
        } else {
            Extent::skip(&mut bytes)?;
            take_bytes(&mut bytes, HASH_BYTES)?;
        }
        Ok(())
    };

    // The decoding names the damage.
    for _ in 0..count {
        if entry().is_err() {
            break;
        }
    }
    (list, values)
}

fn decode_entries(extent: Extent, leaf: bool, bytes: &mut &[u8]) -> Result<Entries, Corrupt> {
    let count = take_leb(bytes)? as usize;
    let mut entries = Entries::new(leaf);

    // The count comes from the disk: capacities are bounded by the bytes that are there.
    let (list, values) = sizes(leaf, count, bytes);
    entries.items.reserve_exact(count.min(bytes.len() / 3));
    entries.list.reserve_exact(list);
    entries.values.reserve_exact(values);

    for item in 0..count {
        let tag = take_u8(bytes)?;
        let mut room = [0; STEP_BYTES_MAX];
        let step = take_step(tag, bytes, &mut room)?;
        if step.is_empty() || !entries.is_empty_or_before(step) {
            return Err(Corrupt::rule("steps ascend", item as u64, step.len() as u64));
        }

        let stored = take_content(extent, tag & !TAG_HEX, bytes)?;
        entries.push(step, stored);
    }

    debug_assert_eq!(entries.len(), count, "an item for each entry");
    Ok(entries)
}

fn take_mask(bytes: &mut &[u8]) -> Result<u32, Corrupt> {
    let (mask, rest) = bytes.split_first_chunk::<4>().ok_or(Corrupt::short("a mask"))?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*mask))
}

/// Refuses empty buckets.
fn check_count(count: u64, mask: u32) -> Result<(), Corrupt> {
    let buckets = u64::from(mask.count_ones());
    if buckets == 0 || count < buckets {
        return Err(Corrupt::rule("buckets that are there have entries", buckets, count));
    }
    Ok(())
}

fn decode_inner(extent: Extent, bytes: &mut &[u8]) -> Result<Inner, Corrupt> {
    let depth = take_u8(bytes)?;
    let count = take_leb(bytes)?;
    let mask = take_mask(bytes)?;
    check_count(count, mask)?;
    let mut inner = Inner::new(depth, count, mask.count_ones() as usize);
    for bucket in (0..32).filter(|bucket| mask >> bucket & 1 == 1) {
        inner.push(bucket, &Link::take(extent.at, bytes)?);
    }
    inner.rebase(Some(extent));
    Ok(inner)
}

fn decode_inner_delta(extent: Extent, bytes: &mut &[u8]) -> Result<(Extent, Changes), Corrupt> {
    let depth = take_u8(bytes)?;
    let count = take_leb(bytes)?;
    let base = Extent::take(extent.at, bytes)?;
    let mask = take_mask(bytes)?;
    let changed = take_mask(bytes)?;
    check_count(count, mask)?;

    // A delta without changes, or with changes in empty buckets, is never written.
    if changed & !mask != 0 || changed == 0 {
        return Err(Corrupt::rule(
            "changed buckets are there",
            u64::from(mask),
            u64::from(changed),
        ));
    }

    let links = (0..changed.count_ones()).map(|_| Link::take(extent.at, bytes));
    let links: Vec<Link> = links.collect::<Result<_, Corrupt>>()?;
    Ok((base, Changes::Inner { depth, count, mask, changed, links }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    const PLACE: Extent = Extent { at: Address { chunk: 3, unit: 500 }, bytes: 0 };

    fn link(unit: u32) -> Link {
        let extent = Extent { at: Address { chunk: 3, unit }, bytes: 77 };
        Link { extent, hash: Hash([unit as u8; 32]) }
    }

    /// Records of each kind.
    fn bodies() -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        for leaf in [false, true] {
            let entries: [(&[u8], _); 3] = [
                (b"a", Stored::Inline(b"value")),
                (b"bb", Stored::Value(link(100))),
                (b"c", Stored::Dir(link(200))),
            ];
            let mut body = Vec::new();
            put_entries(PLACE.at, (leaf, 2), entries.into_iter(), &mut body);
            bodies.push(body);
        }

        let mut inner = Inner::new(1, 99, 0);
        for (unit, bucket) in (300..).zip([3, 5, 6, 8]) {
            inner.push(bucket, &link(unit));
        }

        for changed in [0, 0b0010_1000] {
            (inner.full, inner.changed) = (Some(link(250).extent), changed);
            let mut body = Vec::new();
            let form = inner.put(PLACE.at, 7, &mut std::iter::empty(), &mut body);
            assert_eq!(form, if changed == 0 { Form::Full } else { Form::Middle });
            bodies.push(body);
        }

        let mut delta = vec![ENTRIES_DELTA, FLAT, 2];
        link(250).extent.put(PLACE.at, &mut delta);
        delta.extend_from_slice(&[1, 0, 2, TAG_KEPT | TAG_INLINE, 1, 1, 9]);
        delta.extend_from_slice(&[TAG_INLINE, 1, b'd', 2, 7, 7]);
        bodies.push(delta);

        bodies
    }

    /// Nodes stay in memory for long: a list that doubled when it grew held up to half unused.
    #[test]
    fn nodes_have_little_memory_to_spare() {
        let spare = |capacity: usize, len: usize| capacity - len;
        for buckets in 1..=32 {
            let mut inner = Inner::new(1, 99, 0);
            (0..buckets).for_each(|bucket| inner.push(bucket, &link(300)));
            let mut body = Vec::new();
            inner.put(PLACE.at, 7, &mut std::iter::empty(), &mut body);
            let Ok(Decoded::Record(record)) = Record::decode(PLACE, &body) else {
                panic!("a record of {buckets} buckets")
            };
            let RecordBody::Inner(inner) = record.body else { panic!("an inode") };
            assert_eq!(spare(inner.list.capacity(), inner.list.len()), 0);
            assert_eq!(spare(inner.extents.capacity(), inner.extents.len()), 0);
        }

        let mut entries = Entries::new(true);
        for number in 0..500_u32 {
            let step = format!("{:08}", number.wrapping_mul(2_654_435_761));
            let Err(item) = entries.position(step.as_bytes()) else { panic!("it is new") };
            entries.insert(item, step.as_bytes(), Stored::Inline(b"value"));
            let bytes = 8 + 2 + HASH_BYTES;
            let list = spare(entries.list.capacity(), entries.list.len());
            assert!(list <= entries.list.len() / 8 + 2 * bytes, "{number}: {list}");
            let items = spare(entries.items.capacity(), entries.items.len());
            assert!(items <= entries.items.len() / 8 + 1, "{number}: {items}");
        }
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error() {
        for body in bodies() {
            assert!(Record::decode(PLACE, &body).is_ok(), "{body:?}");
            for len in 0..body.len() {
                assert!(Record::decode(PLACE, &body[..len]).is_err(), "{len} bytes");
            }
            let longer = [body.as_slice(), &[0]].concat();
            assert!(Record::decode(PLACE, &longer).is_err());
        }

        let mut decoded = 0;
        for_each_seed("any_bytes_are_a_record_or_an_error", 2_000, |rng, _| {
            let mut body = bodies().swap_remove(rng.index(5));
            for _ in 0..=rng.below(3) {
                let at = rng.index(body.len());
                body[at] = [0, 1, 0x7F, 0x80, 0xFF, rng.below(256) as u8][rng.index(6)];
            }
            if let Ok(Decoded::Record(record)) = Record::decode(PLACE, &body) {
                decoded += 1;
                assert!(record.weight() < 4_096);
                if let RecordBody::Entries(entries) = &record.body {
                    for ordinal in 0..entries.len() {
                        assert!(ordinal == 0 || entries.step(ordinal - 1) < entries.step(ordinal));
                        entries.stored(ordinal);
                    }
                }
            }
            let random = rng.bytes(40);
            let kind = [rng.below(7) as u8];
            assert!(Record::decode(PLACE, &[&kind, random.as_slice()].concat()).is_err());
        });

        assert!(decoded > 100, "{decoded}");
    }

    #[test]
    fn a_delta_needs_a_full_record_of_its_kind() {
        let decode = |body: &[u8]| Record::decode(PLACE, body).unwrap();
        let full = |body: &[u8]| match decode(body) {
            Decoded::Record(record) => record,
            Decoded::Delta(_) => panic!("a full record"),
        };

        let delta = |body: &[u8]| match decode(body) {
            Decoded::Record(_) => panic!("a delta"),
            Decoded::Delta(delta) => delta,
        };

        let bodies = bodies();
        let flat = full(&bodies[0]);
        let leaf = full(&bodies[1]);
        let inner = full(&bodies[2]);
        let applied = delta(&bodies[3]).apply(&inner).unwrap();
        let RecordBody::Inner(links) = &applied.body else { panic!("an inode") };
        assert_eq!(links.len(), 4);

        // A delta can be based on the middle one, and no delta on that.
        let second = delta(&bodies[3]).apply(&applied).unwrap();
        let RecordBody::Inner(links) = &second.body else { panic!("an inode") };
        assert_eq!((links.len(), links.recent, links.changed), (4, 0b0010_1000, 0b0010_1000));
        for other in [&second, &flat, &leaf] {
            assert!(delta(&bodies[3]).apply(other).is_err());
        }
        let applied = delta(&bodies[4]).apply(&flat).unwrap();
        let RecordBody::Entries(entries) = &applied.body else { panic!("entries") };
        let steps: Vec<&[u8]> = (0..entries.len()).map(|ordinal| entries.step(ordinal)).collect();
        assert_eq!(steps, [b"bb".as_slice(), b"c", b"d"]);
        assert!(matches!(entries.stored(0), Stored::Inline([9])));

        for other in [&applied, &inner, &leaf] {
            assert!(delta(&bodies[4]).apply(other).is_err());
        }
    }

    /// A delta of entries names those of its base by number. Each number, and each step, has one
    /// way to be named.
    #[test]
    fn a_delta_of_entries_names_what_the_full_record_has() {
        const KEPT: u8 = TAG_KEPT | TAG_INLINE;

        let Decoded::Record(full) = Record::decode(PLACE, &bodies()[0]).unwrap() else {
            panic!("a full record")
        };
        let apply = |rest: &[u8]| {
            let mut body = vec![ENTRIES_DELTA, FLAT, 2];
            link(250).extent.put(PLACE.at, &mut body);
            body.extend_from_slice(rest);
            match Record::decode(PLACE, &body)? {
                Decoded::Record(_) => panic!("a delta"),
                Decoded::Delta(delta) => delta.apply(&full),
            }
        };
        // Steps of the full record: `a`, `bb`, `c`.
        let sound: [&[u8]; 4] = [
            &[1, 2, 1, KEPT, 1, 0],
            &[3, 0, 0, 0, 1, TAG_INLINE, 1, b'd', 0],
            &[0, 2, KEPT, 0, 0, KEPT, 1, 1, 7],
            &[1, 0, 2, TAG_INLINE, 1, b'b', 0, KEPT, 1, 0],
        ];
        for rest in sound {
            assert!(apply(rest).is_ok(), "{rest:?}");
        }
        let forged: [&[u8]; 8] = [
            // Numbers that the full record does not have.
            &[1, 3, 1, KEPT, 0, 0],
            &[0, 1, KEPT, 3, 0],
            &[0, 2, KEPT, 1, 0, KEPT, 1, 0],
            // An entry that is gone and there.
            &[1, 1, 1, KEPT, 1, 0],
            // A new step that the full record has, gone or not.
            &[0, 1, TAG_INLINE, 1, b'a', 0],
            &[1, 0, 1, TAG_INLINE, 1, b'a', 0],
            // Steps that do not ascend.
            &[0, 2, KEPT, 2, 0, TAG_INLINE, 1, b'b', 0],
            &[0, 1, KEPT | TAG_HEX, 0, 0],
        ];
        for rest in forged {
            assert!(apply(rest).is_err(), "{rest:?}");
        }
    }

    /// The chain of records of a node says what the node is after any changes.
    #[test]
    fn a_node_written_block_after_block_is_read_as_it_was() {
        let mut forms = [0; 3];
        for_each_seed("a_node_written_block_after_block", 6, |rng, _| {
            let mut inner = Inner::new(2, 900, 0);
            let mut entries = Entries::new(rng.chance(1, 2));
            let mut records: Vec<(Extent, Vec<u8>)> = Vec::new();
            for number in 0..120 {
                let at = Address { chunk: 3, unit: 1_000 + 1_000 * number };
                for unit in 0..=rng.below(3) as u32 {
                    let link = Link {
                        extent: Extent { at: Address { chunk: 3, unit: 1 + unit }, bytes: 50 },
                        hash: Hash([number as u8; 32]),
                    };
                    let bucket = rng.index(32);
                    if inner.rank(bucket).is_none() {
                        inner.insert(bucket, None);
                    } else if rng.chance(1, 4) && inner.len() > 1 {
                        inner.remove(bucket);
                        continue;
                    } else {
                        inner.change(bucket);
                    }
                    inner.settle(bucket, &link);

                    let step = [b's', rng.below(60) as u8 + b'0'];
                    let stored = if rng.chance(1, 2) {
                        Stored::Dir(link)
                    } else {
                        Stored::Inline(&[number as u8; 20][..rng.index(20)])
                    };
                    match entries.position(&step) {
                        Ok(item) if rng.chance(1, 3) => entries.remove(item),
                        Ok(item) => entries.set(item, stored),
                        Err(item) => entries.insert(item, &step, stored),
                    }
                }

                let mut body = Vec::new();
                let form = inner.put(at, 7, &mut std::iter::empty(), &mut body);
                let extent = Extent { at, bytes: body.len() as u32 + 5 };
                match form {
                    Form::Full => inner.rebase(Some(extent)),
                    Form::Middle => inner.rebase_middle(extent),
                    _ => {}
                }
                forms[usize::from(form == Form::Middle) + 2 * usize::from(form == Form::Delta)] +=
                    1;
                records.push((extent, body));
                let RecordBody::Inner(read) = chain(&records).body else { panic!("an inode") };
                assert_eq!((read.list(), &read.extents), (inner.list(), &inner.extents));
                assert_eq!(
                    (read.mask, read.changed, read.full),
                    (inner.mask, inner.changed, inner.full)
                );
                assert_eq!((read.middle, read.recent), (inner.middle, inner.recent));

                let mut body = Vec::new();
                let at = Address { unit: at.unit + 500, ..at };
                let form = entries.put(at, 7, &mut std::iter::empty(), &mut body);
                let extent = Extent { at, bytes: body.len() as u32 + 5 };
                if form == Form::Full {
                    entries.rebase(Some(extent));
                }
                records.push((extent, body));
                let RecordBody::Entries(read) = chain(&records).body else { panic!("entries") };
                let all = |entries: &Entries| -> Vec<String> {
                    let entry =
                        |item| format!("{:?} {:?}", entries.step(item), entries.stored(item));
                    (0..entries.len()).map(entry).collect()
                };
                assert_eq!(all(&read), all(&entries));
                assert_eq!((&read.gone, read.full), (&entries.gone, entries.full));
            }
        });
        assert!(forms.iter().all(|count| *count > 20), "{forms:?}");
    }

    /// Reads the last record, with the bases that it needs.
    fn chain(records: &[(Extent, Vec<u8>)]) -> Record {
        let find = |wanted: Extent| {
            let at =
                records.iter().position(|(extent, _)| *extent == wanted).expect("it was written");
            &records[..=at]
        };
        let (extent, body) = records.last().unwrap();
        match Record::decode(*extent, body).unwrap() {
            Decoded::Record(record) => record,
            Decoded::Delta(delta) => {
                let base = chain(find(delta.base()));
                delta.apply(&base).unwrap()
            }
        }
    }
}
