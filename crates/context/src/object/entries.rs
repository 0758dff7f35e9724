//! Entries of a flat directory, or of a leaf of an inode, in memory.
//!
//! **Layout.** One buffer has what belongs to a node: an item of 20 bytes for each entry, the
//! *list* of the entries exactly as it is hashed, and the bytes of values of 13 to 48 bytes. The
//! items say where a step stands in the list, and have the extent of the child or a short value.
//!
//! **Search.** Memory is slow to reach, so a search touches few lines of it. A *mark* of a step
//! rules out most other steps. Of up to 32 entries the node itself has the marks, and a search
//! loads the item of the step, and the step. Of up to 512 a search passes all items, which have the
//! marks too; of more it is a binary search of the steps.
//!
//! A node in memory may be newer than its record: a *stale* child has another hash than the list
//! says, a *changed* one differs from the full record that later deltas are based on, a *recent*
//! one from the delta on the full record that they are based on.
//!
//! Invariant: the entries of the list ascend by their steps, and each has an item. Items stand in
//! the order of the entries.
//!
//! Rejected: items, list and values in three lists (three allocations for each node, and a line of
//! memory more for each); marks in the items only (a search then loads all items).

use std::cmp::Ordering;

use crate::base::address::{Extent, Link, NOWHERE};
use crate::base::hash::{HASH_BYTES, Hash};
use crate::base::hashing::EntryLayout;

/// The longest value that is stored in its directory, in bytes.
pub(crate) const INLINE_BYTES_MAX: usize = 48;

pub(crate) const TAG_INLINE: u8 = 1;
pub(crate) const TAG_VALUE: u8 = 2;
pub(crate) const TAG_DIR: u8 = 3;

/// The shortest step that is written as hexadecimal digits, in bytes.
pub(crate) const HEX_STEP_BYTES_MIN: usize = 8;

/// Returns whether a step is written as hexadecimal digits.
pub(crate) fn is_hex(step: &[u8]) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    step.len() >= HEX_STEP_BYTES_MIN && step.len().is_multiple_of(2) && step.iter().all(is_digit)
}

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

impl Stored<'_> {
    pub(crate) fn is_value(&self) -> bool {
        match self {
            Self::Inline(_) | Self::Value(_) => true,
            Self::Dir(_) => false,
            Self::Nowhere { is_value, .. } => *is_value,
        }
    }

    /// Length of a value that is stored here.
    fn inline_len(&self) -> Option<usize> {
        match self {
            Self::Inline(value) => Some(value.len()),
            _ => None,
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

/// Entries of a flat directory, or of a leaf of an inode. See the [module](self).
///
/// The fields that a search reads stand first.
#[derive(Debug, Clone)]
#[repr(C)]
pub(crate) struct Entries {
    /// Items, list, and values: those that are stored here, and some that were replaced.
    bytes: Vec<u8>,
    /// Number of entries.
    len: u32,
    list_bytes: u32,
    pub(crate) leaf: bool,
    /// Marks of the first entries.
    marks: [u8; MARKS],
    /// Full record that a delta can be based on; [`NOWHERE`] if there is none.
    full: Extent,
    /// Delta on the full record that a delta can be based on; [`NOWHERE`] if there is none.
    middle: Extent,
    gone: Option<Box<Gone>>,
}

/// Steps of the bases that are not here any more, ascending.
#[derive(Debug, Clone, Default)]
struct Gone {
    full: Vec<Box<[u8]>>,
    middle: Vec<Box<[u8]>>,
}

/// Record that a delta is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Full,
    /// A delta on the full record.
    Middle,
}

impl Base {
    /// Flag of an item that this record lacks, or has otherwise.
    pub(super) fn changed_flag(self) -> u8 {
        match self {
            Self::Full => CHANGED,
            Self::Middle => RECENT,
        }
    }

    /// Flag of an item whose step this record lacks.
    pub(super) fn new_flag(self) -> u8 {
        match self {
            Self::Full => NEW,
            Self::Middle => RECENT_NEW,
        }
    }
}

/// Entry beside the list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    /// Start of the step in the list.
    start: u32,
    pub(super) step_len: u8,
    /// [Mark](mark) of the step.
    mark: u8,
    /// Tag, and flags.
    kind: u8,
    /// Length of a value that is stored here.
    pub(super) value_len: u8,
    /// Extent of the child, or a short value, or the start of a longer one.
    payload: [u8; TINY_BYTES_MAX],
}

/// Bytes of an item.
const ITEM_BYTES: usize = 8 + TINY_BYTES_MAX;
/// Position of the kind in an item.
const KIND_AT: usize = 6;

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
pub(super) const HEX: u8 = 32;
/// Flag of a changed item that the middle delta lacks, or has otherwise.
const RECENT: u8 = 64;
/// Flag of a recent item whose step the middle delta lacks.
const RECENT_NEW: u8 = 128;
/// Flags of an item that no base has.
const OF_NO_BASE: u8 = CHANGED | NEW | RECENT | RECENT_NEW;

impl Item {
    fn read(bytes: &[u8; ITEM_BYTES]) -> Self {
        let [a, b, c, d, step_len, mark, kind, value_len, payload @ ..] = *bytes;
        Self { start: u32::from_le_bytes([a, b, c, d]), step_len, mark, kind, value_len, payload }
    }

    fn write(self) -> [u8; ITEM_BYTES] {
        let mut bytes = [0; ITEM_BYTES];
        bytes[..4].copy_from_slice(&self.start.to_le_bytes());
        bytes[4..8].copy_from_slice(&[self.step_len, self.mark, self.kind, self.value_len]);
        bytes[8..].copy_from_slice(&self.payload);
        bytes
    }

    pub(super) fn tag(self) -> u8 {
        self.kind & TAG
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.kind & flag != 0
    }

    /// Returns whether the child is not stored.
    pub(super) fn is_nowhere(self) -> bool {
        self.tag() != TAG_INLINE && self.payload == [0; TINY_BYTES_MAX]
    }

    fn is_tiny(self) -> bool {
        usize::from(self.value_len) <= TINY_BYTES_MAX
    }

    /// Start of a value in the values of the node.
    fn value_start(self) -> usize {
        debug_assert!(!self.is_tiny(), "short values are in the item");
        let [a, b, c, d, ..] = self.payload;
        u32::from_le_bytes([a, b, c, d]) as usize
    }

    fn set_value_start(&mut self, start: usize) {
        debug_assert!(u32::try_from(start).is_ok(), "offsets have 32 bits");
        self.payload[..4].copy_from_slice(&(start as u32).to_le_bytes());
    }

    /// Returns the item of a new step that starts at a position in the list.
    fn of(start: usize, (step, hex): (&[u8], bool), is_stale: bool) -> Self {
        debug_assert!(!step.is_empty() && step.len() <= 255, "a step has 1 to 255 bytes");
        debug_assert_eq!(hex, is_hex(step), "a step has one encoding");
        let stale = if is_stale { STALE } else { 0 };
        let hex = if hex { HEX } else { 0 };
        Self {
            start: start as u32,
            step_len: step.len() as u8,
            mark: mark(step),
            kind: OF_NO_BASE | stale | hex,
            value_len: 0,
            payload: [0; TINY_BYTES_MAX],
        }
    }

    /// Takes a content; flags stay. Returns a value that the caller must put among the values of
    /// the node.
    fn set<'a>(&mut self, content: Stored<'a>) -> Option<&'a [u8]> {
        self.value_len = 0;
        let (tag, extent) = match content {
            Stored::Inline(value) => {
                debug_assert!(value.len() <= INLINE_BYTES_MAX, "longer values are elsewhere");
                self.kind = self.kind & !TAG | TAG_INLINE;
                self.value_len = value.len() as u8;
                if !self.is_tiny() {
                    return Some(value);
                }
                self.payload[..value.len()].copy_from_slice(value);
                return None;
            }
            Stored::Value(link) => (TAG_VALUE, link.extent),
            Stored::Dir(link) => (TAG_DIR, link.extent),
            Stored::Nowhere { is_value: true, .. } => (TAG_VALUE, NOWHERE),
            Stored::Nowhere { is_value: false, .. } => (TAG_DIR, NOWHERE),
        };
        self.kind = self.kind & !TAG | tag;
        self.payload = extent.write();
        None
    }
}

/// Steps that have marks in the node: as many as a leaf of a Tezos inode has.
const MARKS: usize = 32;

/// Largest number of items that are searched linearly, by the marks in them.
const MARKED_MAX: usize = 512;

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

/// Returns the bit mask of the marks that equal `mark`.
fn equal(marks: &[u8; MARKS], mark: u8) -> u32 {
    /// All bits but the highest of each byte.
    const LOW: u64 = 0x7F7F_7F7F_7F7F_7F7F;
    /// Moves the lowest bits of the bytes together, into the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;

    let (words, _) = marks.as_chunks::<8>();
    let wanted = u64::from_le_bytes([mark; 8]);
    let mut found = 0;
    for (number, word) in words.iter().enumerate() {
        let differing = u64::from_le_bytes(*word) ^ wanted;
        // The highest bit of each byte that is zero, without a carry into the next one.
        let zeros = !(((differing & LOW) + LOW) | differing | LOW);
        let bits = (zeros >> 7).wrapping_mul(GATHER) >> 56;
        found |= (bits as u32) << (8 * number);
    }
    found
}

/// Makes room for `more` bytes, and an eighth of those that are there: nodes stay in memory for
/// long, and few of them grow again.
pub(super) fn make_room(bytes: &mut Vec<u8>, more: usize) {
    if bytes.capacity() - bytes.len() < more {
        bytes.reserve_exact(more + bytes.len() / 8);
    }
}

/// Opens a gap of zeros at a position. There is [room](make_room).
pub(super) fn open_gap(bytes: &mut Vec<u8>, at: usize, gap: usize) {
    let end = bytes.len();
    bytes.resize(end + gap, 0);
    bytes.copy_within(at..end, at + gap);
    bytes[at..at + gap].fill(0);
}

pub(super) fn hash_in(list: &[u8], at: usize) -> Hash {
    Hash(*list[at..].first_chunk().expect("a hash follows"))
}

/// Numbers and bytes of entries to come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sizes {
    entries: usize,
    list: usize,
    values: usize,
}

impl Sizes {
    /// Counts an entry with a step of a length, and a value of a length if the value is stored
    /// here.
    pub(super) fn add(&mut self, leaf: bool, step_len: usize, value_len: Option<usize>) {
        self.entries += 1;
        self.list += EntryLayout::of(leaf).bytes(step_len);
        self.values += value_len.filter(|len| *len > TINY_BYTES_MAX).unwrap_or(0);
    }

    /// Bytes of the entries in memory, which must fit 32 bits.
    pub(super) fn bytes(&self) -> usize {
        self.entries * ITEM_BYTES + self.list + self.values
    }
}

/// Entries that are being collected, in ascending order, into memory of their size.
pub(super) struct Collecting {
    /// All entries, of which some are missing.
    entries: Entries,
    /// Number of the next entry.
    next: usize,
    /// Ends of the list and of the values so far.
    list_end: usize,
    values_end: usize,
}

impl Collecting {
    pub(super) fn new(leaf: bool, sizes: Sizes) -> Self {
        debug_assert!(u32::try_from(sizes.bytes()).is_ok(), "offsets have 32 bits");
        let entries = Entries {
            bytes: vec![0; sizes.bytes()],
            len: sizes.entries as u32,
            list_bytes: sizes.list as u32,
            leaf,
            marks: [0; MARKS],
            full: NOWHERE,
            middle: NOWHERE,
            gone: None,
        };
        let (list_end, values_end) = (entries.list_at(), entries.values_at());
        Self { entries, next: 0, list_end, values_end }
    }

    /// Returns whether a step may come next.
    pub(super) fn is_next(&self, step: &[u8]) -> bool {
        self.next.checked_sub(1).is_none_or(|last| self.entries.step(last) < step)
    }

    /// Appends an entry, which was counted, with its step and whether that is written as
    /// hexadecimal digits.
    pub(super) fn push(&mut self, (step, hex): (&[u8], bool), content: Stored<'_>) {
        debug_assert!(self.is_next(step), "steps ascend");
        let entries = &mut self.entries;
        let layout = EntryLayout::of(entries.leaf);
        let start = self.list_end - entries.list_at() + layout.before(step.len());
        let bytes = layout.bytes(step.len());
        let hash = content.hash();
        let entry = &mut entries.bytes[self.list_end..self.list_end + bytes];
        layout.write(entry, step, content.is_value(), hash.as_ref());

        let mut item = Item::of(start, (step, hex), hash.is_none());
        if let Some(long) = item.set(content) {
            item.set_value_start(self.values_end - entries.values_at());
            entries.bytes[self.values_end..self.values_end + long.len()].copy_from_slice(long);
            self.values_end += long.len();
        }
        entries.put_item(self.next, item);
        if let Some(mark) = entries.marks.get_mut(self.next) {
            *mark = item.mark;
        }
        self.list_end += bytes;
        self.next += 1;
    }

    pub(super) fn finish(self) -> Entries {
        let Self { entries, next, list_end, values_end } = self;
        debug_assert_eq!(next, entries.len(), "all entries are there");
        debug_assert_eq!(list_end, entries.values_at(), "the list is whole");
        debug_assert_eq!(values_end, entries.bytes.len(), "all values are there");
        entries
    }
}

impl Entries {
    /// Creates a directory or a leaf of ascending entries.
    pub(crate) fn new(leaf: bool, entries: &[(&[u8], Stored<'_>)]) -> Self {
        let mut sizes = Sizes::default();
        for (step, content) in entries {
            sizes.add(leaf, step.len(), content.inline_len());
        }
        let mut collecting = Collecting::new(leaf, sizes);
        for (step, content) in entries {
            collecting.push((step, is_hex(step)), *content);
        }
        collecting.finish()
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Position of the list in the buffer.
    fn list_at(&self) -> usize {
        self.len() * ITEM_BYTES
    }

    /// Position of the values in the buffer.
    fn values_at(&self) -> usize {
        self.list_at() + self.list_bytes as usize
    }

    /// Entries as they are hashed.
    pub(crate) fn list(&self) -> &[u8] {
        &self.bytes[self.list_at()..self.values_at()]
    }

    pub(super) fn item(&self, number: usize) -> Item {
        debug_assert!(number < self.len(), "an item each");
        Item::read(self.bytes[number * ITEM_BYTES..].first_chunk().expect("an item each"))
    }

    pub(super) fn items(&self) -> impl Iterator<Item = Item> + '_ {
        self.items_from(0).map(|(_, item)| item)
    }

    /// Items from a number on, with their numbers.
    fn items_from(&self, first: usize) -> impl Iterator<Item = (usize, Item)> + '_ {
        let end = self.list_at();
        let (items, _) = self.bytes[(first * ITEM_BYTES).min(end)..end].as_chunks();
        (first..).zip(items.iter().map(Item::read))
    }

    fn put_item(&mut self, number: usize, item: Item) {
        debug_assert!(number < self.len(), "an item each");
        let at = number * ITEM_BYTES;
        self.bytes[at..at + ITEM_BYTES].copy_from_slice(&item.write());
    }

    /// Notes where in the list the steps from an item on start now.
    fn move_steps(&mut self, first: usize, moved: impl Fn(u32) -> u32) {
        for number in first..self.len() {
            let item = self.item(number);
            self.put_item(number, Item { start: moved(item.start), ..item });
        }
    }

    fn kind_mut(&mut self, number: usize) -> &mut u8 {
        debug_assert!(number < self.len(), "an item each");
        &mut self.bytes[number * ITEM_BYTES + KIND_AT]
    }

    pub(crate) fn step(&self, number: usize) -> &[u8] {
        let Item { start, step_len, .. } = self.item(number);
        let at = self.list_at() + start as usize;
        &self.bytes[at..at + usize::from(step_len)]
    }

    pub(crate) fn is_value(&self, number: usize) -> bool {
        self.item(number).tag() != TAG_DIR
    }

    /// Returns whether the value of an item is stored here.
    pub(crate) fn is_inline(&self, number: usize) -> bool {
        self.item(number).tag() == TAG_INLINE
    }

    /// Returns whether the child of an item is a directory that is stored.
    pub(crate) fn is_stored_dir(&self, number: usize) -> bool {
        let item = self.item(number);
        item.tag() == TAG_DIR && !item.is_nowhere()
    }

    /// Returns whether the hash of an item in the list is not that of its child.
    pub(crate) fn is_stale(&self, number: usize) -> bool {
        self.item(number).has(STALE)
    }

    /// Items whose hash in the list is not that of their child.
    pub(crate) fn stale(&self) -> impl Iterator<Item = usize> + '_ {
        self.stale_from(0)
    }

    /// Such items from a number on.
    pub(crate) fn stale_from(&self, first: usize) -> impl Iterator<Item = usize> + '_ {
        let stale = self.items_from(first).filter(|(_, item)| item.has(STALE));
        stale.map(|(number, _)| number)
    }

    /// Position of the hash of an item in the list.
    pub(crate) fn hash_at(&self, number: usize) -> usize {
        let Item { start, step_len, .. } = self.item(number);
        start as usize + usize::from(step_len) + EntryLayout::of(self.leaf).between
    }

    /// Hash of an item in the list.
    pub(crate) fn hash(&self, number: usize) -> Hash {
        hash_in(&self.bytes, self.list_at() + self.hash_at(number))
    }

    pub(crate) fn stored(&self, number: usize) -> Stored<'_> {
        let item = self.item(number);
        if item.tag() == TAG_INLINE {
            let len = usize::from(item.value_len);
            let at = if item.is_tiny() {
                number * ITEM_BYTES + ITEM_BYTES - TINY_BYTES_MAX
            } else {
                self.values_at() + item.value_start()
            };
            return Stored::Inline(&self.bytes[at..at + len]);
        }

        let extent = Extent::read(&item.payload);
        let is_value = item.tag() == TAG_VALUE;
        if extent == NOWHERE {
            let hash = (!item.has(STALE)).then(|| self.hash(number));
            return Stored::Nowhere { is_value, hash };
        }
        let link = Link { extent, hash: self.hash(number) };
        if is_value { Stored::Value(link) } else { Stored::Dir(link) }
    }

    /// Returns the number of the entry of `step`.
    pub(crate) fn find(&self, step: &[u8]) -> Option<usize> {
        let mark = mark(step);
        if self.len() <= MARKS {
            let mut found = equal(&self.marks, mark);
            while found != 0 {
                let number = found.trailing_zeros() as usize;
                if number >= self.len() {
                    break;
                }
                if self.step(number) == step {
                    return Some(number);
                }
                found &= found - 1;
            }
            return None;
        }
        if self.len() > MARKED_MAX {
            return self.position(step).ok();
        }

        // A scan of the items reads few steps.
        let mut numbered = self.items().enumerate();
        numbered.find_map(|(number, item)| {
            let may_be = item.mark == mark && usize::from(item.step_len) == step.len();
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

    /// Inserts a new entry at its insertion point.
    pub(crate) fn insert(&mut self, number: usize, step: &[u8], content: Stored<'_>) {
        debug_assert_eq!(self.position(step), Err(number), "the step is new, and belongs here");
        let layout = EntryLayout::of(self.leaf);
        let bytes = layout.bytes(step.len());
        let at = if number == self.len() {
            self.list_bytes as usize
        } else {
            let next = self.item(number);
            next.start as usize - layout.before(usize::from(next.step_len))
        };
        let mut sizes = Sizes::default();
        sizes.add(self.leaf, step.len(), content.inline_len());
        make_room(&mut self.bytes, sizes.bytes());

        // The list is kept as it is hashed, so the entries behind move.
        let hash = content.hash();
        let place = self.list_at() + at;
        open_gap(&mut self.bytes, place, bytes);
        let entry = &mut self.bytes[place..place + bytes];
        layout.write(entry, step, content.is_value(), hash.as_ref());
        open_gap(&mut self.bytes, number * ITEM_BYTES, ITEM_BYTES);
        self.len += 1;
        self.list_bytes += bytes as u32;
        debug_assert!(u32::try_from(self.bytes.len()).is_ok(), "offsets have 32 bits");
        self.move_steps(number + 1, |start| start + bytes as u32);

        let start = at + layout.before(step.len());
        let item = Item::of(start, (step, is_hex(step)), hash.is_none());
        self.put_item(number, item);
        if number < MARKS {
            self.marks.copy_within(number..MARKS - 1, number + 1);
            self.marks[number] = item.mark;
        }
        self.put_content(number, content);

        // A base that has the step has it with another child.
        for base in [Base::Full, Base::Middle] {
            if let Ok(gone) = self.gone(base).binary_search_by(|gone| (**gone).cmp(step)) {
                self.gone_mut(base).remove(gone);
                *self.kind_mut(number) &= !base.new_flag();
            }
        }
    }

    /// Items from a number on whose child is not stored.
    pub(crate) fn nowhere_from(&self, first: usize) -> impl Iterator<Item = usize> + '_ {
        let nowhere = self.items_from(first).filter(|(_, item)| item.is_nowhere());
        nowhere.map(|(number, _)| number)
    }

    /// Stores a content in an item, whose hash and flags stay.
    fn put_content(&mut self, number: usize, content: Stored<'_>) {
        let mut item = self.item(number);
        if let Some(long) = item.set(content) {
            item.set_value_start(self.bytes.len() - self.values_at());
            make_room(&mut self.bytes, long.len());
            self.bytes.extend_from_slice(long);
        }
        self.put_item(number, item);
    }

    /// Replaces the content of an item.
    pub(crate) fn set(&mut self, number: usize, content: Stored<'_>) {
        let old = self.item(number);
        let is_as_long = |value: &[u8]| {
            old.tag() == TAG_INLINE && usize::from(old.value_len) == value.len() && !old.is_tiny()
        };
        match content {
            Stored::Inline(value) if is_as_long(value) => {
                let at = self.values_at() + old.value_start();
                self.bytes[at..at + value.len()].copy_from_slice(value);
            }
            content => self.put_content(number, content),
        }

        if content.is_value() != (old.tag() != TAG_DIR) {
            let layout = EntryLayout::of(self.leaf);
            let kind = layout.kind_at(old.start as usize, usize::from(old.step_len));
            let at = self.list_at() + kind;
            self.bytes[at] = layout.kind(content.is_value());
        }

        *self.kind_mut(number) |= CHANGED | RECENT;
        match content.hash() {
            Some(hash) => self.put_hash(number, &hash),
            None => *self.kind_mut(number) |= STALE,
        }
        self.drop_replaced_values();
    }

    /// Drops the bytes of replaced and removed values when they are most of the bytes.
    fn drop_replaced_values(&mut self) {
        const SLACK_BYTES: usize = 256;

        let values = self.bytes.len() - self.values_at();
        if values <= SLACK_BYTES {
            return;
        }
        let is_here = |item: &Item| item.tag() == TAG_INLINE && !item.is_tiny();
        let here = self.items().filter(is_here);
        let live: usize = here.map(|item| usize::from(item.value_len)).sum();
        if values <= 2 * live + SLACK_BYTES {
            return;
        }

        let values_at = self.values_at();
        let mut values = Vec::with_capacity(live);
        for number in 0..self.len() {
            let mut item = self.item(number);
            if is_here(&item) {
                let at = values_at + item.value_start();
                item.set_value_start(values.len());
                values.extend_from_slice(&self.bytes[at..at + usize::from(item.value_len)]);
                self.put_item(number, item);
            }
        }
        self.bytes.truncate(values_at);
        self.bytes.extend_from_slice(&values);
    }

    /// Stores the hash of the child of an item.
    pub(crate) fn put_hash(&mut self, number: usize, hash: &Hash) {
        let at = self.list_at() + self.hash_at(number);
        self.bytes[at..at + HASH_BYTES].copy_from_slice(&hash.0);
        *self.kind_mut(number) &= !STALE;
    }

    /// Stores the link of the child of an item.
    pub(crate) fn settle(&mut self, number: usize, link: &Link) {
        debug_assert!(!self.is_inline(number), "the child is elsewhere");
        let item = self.item(number);
        self.put_item(number, Item { payload: link.extent.write(), ..item });
        self.put_hash(number, &link.hash);
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, number: usize) {
        let item = self.item(number);
        let layout = EntryLayout::of(self.leaf);
        let step_len = usize::from(item.step_len);
        let bytes = layout.bytes(step_len);

        // The next delta says that an entry of its base is gone.
        for base in [Base::Full, Base::Middle] {
            if self.base(base).is_none() || item.has(base.new_flag()) {
                continue;
            }
            let step: Box<[u8]> = self.step(number).into();
            if let Err(gone) = self.gone(base).binary_search(&step) {
                self.gone_mut(base).insert(gone, step);
            }
        }

        self.move_steps(number + 1, |start| start - bytes as u32);
        let at = self.list_at() + item.start as usize - layout.before(step_len);
        self.bytes.drain(at..at + bytes);
        self.bytes.drain(number * ITEM_BYTES..(number + 1) * ITEM_BYTES);
        self.len -= 1;
        self.list_bytes -= bytes as u32;
        if number < MARKS {
            self.marks.copy_within(number + 1.., number);
            // The mark that comes from behind; none if all have marks.
            let next = (self.len() >= MARKS).then(|| self.item(MARKS - 1).mark);
            self.marks[MARKS - 1] = next.unwrap_or(0);
        }
        self.drop_replaced_values();
    }

    /// Record that a delta can be based on.
    pub(super) fn base(&self, base: Base) -> Option<Extent> {
        let extent = match base {
            Base::Full => self.full,
            Base::Middle => self.middle,
        };
        (extent != NOWHERE).then_some(extent)
    }

    /// Steps of a base that are not here any more, ascending.
    pub(super) fn gone(&self, base: Base) -> &[Box<[u8]>] {
        match (&self.gone, base) {
            (None, _) => &[],
            (Some(gone), Base::Full) => &gone.full,
            (Some(gone), Base::Middle) => &gone.middle,
        }
    }

    fn gone_mut(&mut self, base: Base) -> &mut Vec<Box<[u8]>> {
        let gone = self.gone.get_or_insert_default();
        match base {
            Base::Full => &mut gone.full,
            Base::Middle => &mut gone.middle,
        }
    }

    /// Bases later deltas on a full record of this content, or on none.
    pub(crate) fn rebase(&mut self, full: Option<Extent>) {
        (self.full, self.middle, self.gone) = (full.unwrap_or(NOWHERE), NOWHERE, None);
        for number in 0..self.len() {
            let kind = self.kind_mut(number);
            if full.is_some() {
                *kind &= !OF_NO_BASE;
            } else {
                *kind |= OF_NO_BASE;
            }
        }
    }

    /// Bases later deltas on a delta of this content, which is based on the full record.
    pub(crate) fn rebase_middle(&mut self, middle: Extent) {
        debug_assert!(self.base(Base::Full).is_some(), "a delta is based on a full record");
        self.middle = middle;
        if let Some(gone) = &mut self.gone {
            gone.middle = Vec::new();
        }
        for number in 0..self.len() {
            *self.kind_mut(number) &= !(RECENT | RECENT_NEW);
        }
    }

    /// Returns whether the content is that of a base.
    pub(super) fn is_as(&self, base: Base) -> bool {
        self.base(base).is_some()
            && self.gone(base).is_empty()
            && self.items().all(|item| !item.has(base.changed_flag()))
    }

    /// Returns whether the content is that of its full record, or of its middle delta.
    pub(super) fn is_base(&self) -> bool {
        self.is_as(Base::Full) || self.is_as(Base::Middle)
    }

    /// Approximate size in memory beside the node itself, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;
    use crate::base::address::Address;

    #[test]
    fn equal_marks_are_found_in_each_place() {
        for_each_seed("equal_marks_are_found", 200, |rng, _| {
            // Few different bytes, with those that a carry between bytes would confuse.
            let marks: [u8; MARKS] =
                std::array::from_fn(|_| [0, 1, 0x7F, 0x80, 0xFF][rng.index(5)]);
            for mark in 0..=u8::MAX {
                let found = equal(&marks, mark);
                for (number, own) in marks.iter().enumerate() {
                    assert_eq!(found >> number & 1 == 1, *own == mark, "{marks:?} {mark}");
                }
            }
        });
    }

    /// Entries are a map from steps to contents, of any size and after any changes.
    #[test]
    fn entries_are_a_sorted_map_of_steps() {
        let mut most = 0;
        for_each_seed("entries_are_a_sorted_map", 12, |rng, _| {
            let leaf = rng.chance(1, 2);
            let mut entries = Entries::new(leaf, &[]);
            let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            let names = [40, 90, 1_500][rng.index(3)];

            for round in 0..1_500_u32 {
                let mut step = format!("{:x}", rng.below(names)).into_bytes();
                step.resize(1 + step.len() * rng.index(60), b'x');
                let value = vec![round as u8; rng.index(INLINE_BYTES_MAX + 1)];
                match entries.find(&step) {
                    Some(number) if rng.chance(1, 3) => {
                        entries.remove(number);
                        model.remove(&step);
                    }
                    Some(number) => {
                        assert!(model.contains_key(&step));
                        entries.set(number, Stored::Inline(&value));
                        model.insert(step, value);
                    }
                    None => {
                        let number = entries.position(&step).unwrap_err();
                        entries.insert(number, &step, Stored::Inline(&value));
                        assert_eq!(model.insert(step, value), None, "it was new");
                    }
                }
                most = most.max(entries.len());
                if round % 50 == 0 {
                    check(&entries, &model);
                }
            }
            check(&entries, &model);

            // As a record is decoded.
            let list: Vec<_> =
                model.iter().map(|(step, value)| (&**step, Stored::Inline(value))).collect();
            let collected = Entries::new(leaf, &list);
            check(&collected, &model);
            assert_eq!(collected.weight(), collected.bytes.len(), "no byte is spare");

            // Down to none, past each size at which a search goes another way.
            let mut left = collected;
            while let Some(number) = left.len().checked_sub(1).map(|last| rng.index(last + 1)) {
                model.remove(left.step(number));
                left.remove(number);
                if left.len() <= MARKS + 2 || left.len().is_multiple_of(100) {
                    check(&left, &model);
                }
            }
        });
        assert!(most > MARKED_MAX, "{most} entries at most");
    }

    fn check(entries: &Entries, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
        assert_eq!(entries.len(), model.len());
        let layout = EntryLayout::of(entries.leaf);
        let mut list = Vec::new();
        for (number, (step, value)) in model.iter().enumerate() {
            assert_eq!(entries.step(number), step);
            assert_eq!(entries.find(step), Some(number));
            assert!(matches!(entries.stored(number), Stored::Inline(own) if own == value));
            assert!(entries.is_stale(number) && entries.is_inline(number));
            layout.put(&mut list, step, true, &Hash([0; HASH_BYTES]));
        }
        assert_eq!(entries.list(), list);
        assert_eq!(entries.find(b"absent"), None);

        let is_long = |value: &&Vec<u8>| value.len() > TINY_BYTES_MAX;
        let live: usize = model.values().filter(is_long).map(Vec::len).sum();
        let values = entries.bytes.len() - entries.values_at();
        assert!(values <= 2 * live + 256, "{values} bytes for values of {live}");
    }

    #[test]
    fn a_settled_child_has_its_link() {
        let link = |unit| {
            let extent = Extent { at: Address { chunk: 3, unit }, bytes: 77 };
            Link { extent, hash: Hash([unit as u8; HASH_BYTES]) }
        };
        for leaf in [false, true] {
            let nowhere = Stored::Nowhere { is_value: false, hash: None };
            let list: [(&[u8], _); 3] =
                [(b"a", Stored::Dir(link(5))), (b"b", nowhere), (b"c", Stored::Inline(b"value"))];
            let mut entries = Entries::new(leaf, &list);
            assert_eq!(entries.nowhere_from(0).collect::<Vec<_>>(), [1]);
            assert_eq!(entries.stale().collect::<Vec<_>>(), [1, 2]);

            entries.settle(1, &link(7));
            assert!(matches!(entries.stored(1), Stored::Dir(own) if own == link(7)));
            assert_eq!(entries.stale_from(1).collect::<Vec<_>>(), [2]);
            assert_eq!(entries.nowhere_from(0).count(), 0);

            // A child of the other kind changes the list, too.
            entries.set(0, Stored::Value(link(9)));
            assert!(matches!(entries.stored(0), Stored::Value(own) if own == link(9)));
            let mut expected = Vec::new();
            let layout = EntryLayout::of(leaf);
            for (step, is_value, hash) in [
                (b"a", true, link(9).hash),
                (b"b", false, link(7).hash),
                (b"c", true, Hash([0; 32])),
            ] {
                layout.put(&mut expected, step, is_value, &hash);
            }
            assert_eq!(entries.list(), expected);
        }
    }
}
