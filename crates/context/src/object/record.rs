//! Records of the tree: how a directory and a value are stored, and their decoded form.
//!
//! Invariant: a record is written once and refers to earlier records only. It has the hashes of its
//! targets, so a change of one child reads no other child.
//!
//! **Deltas.** A delta is never based on a delta, so a node costs two reads at most. A delta is
//! worth writing while its changes number less than the square root of twice the size of its base.
//! The deltas up to the next full record then take about the bytes of that full record, which
//! minimizes the sum.

#![doc = include_str!("../../../../docs/format/context-record.md")]

use std::cmp::Ordering;
use std::sync::Arc;

use crate::base::address::{Address, Extent, Link, put_leb, take_bytes, take_leb, take_u8};
use crate::base::corrupt::Corrupt;
use crate::base::hash::{HASH_BYTES, Hash};
use crate::base::path::HEIGHT_MAX;

/// The longest value that is stored in its directory, in bytes.
pub(crate) const INLINE_BYTES_MAX: usize = 48;

pub(crate) const VALUE: u8 = 1;
pub(crate) const FLAT: u8 = 2;
pub(crate) const LEAF: u8 = 3;
pub(crate) const INNER: u8 = 4;
pub(crate) const INNER_DELTA: u8 = 5;
pub(crate) const ENTRIES_DELTA: u8 = 6;

/// Largest number of entries of the full record that never gets a delta.
const DELTA_ENTRIES_MIN: usize = 8;

/// Returns whether a delta of `changes` is worth writing for a node of `count` entries or links.
pub(crate) fn is_delta_worth(changes: usize, count: usize) -> bool {
    changes > 0 && changes * changes < 2 * count
}

pub(crate) const TAG_INLINE: u8 = 1;
pub(crate) const TAG_VALUE: u8 = 2;
pub(crate) const TAG_DIR: u8 = 3;

/// Decoded directory node. Immutable; shared by the cache and by trees.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) height: u16,
    pub(crate) body: RecordBody,
}

#[derive(Debug)]
pub(crate) enum RecordBody {
    Entries(Entries),
    Inner(Inner),
}

/// Entries of a flat directory, or of a leaf of an inode.
///
/// Invariant: `items` ascend by their steps. Own items index entries of `bytes` whose payload is
/// complete; the others are numbers of entries of `base`, a full record.
#[derive(Debug)]
pub(crate) struct Entries {
    pub(crate) leaf: bool,
    /// Extent of the record; references in the record are relative to it.
    extent: Extent,
    base: Option<Arc<Record>>,
    bytes: Box<[u8]>,
    items: Box<[Item]>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    /// Start of the step in `bytes`, or the number of the entry in the base.
    start: u32,
    step_len: u8,
    /// Hash of the step, which rules out most other steps without reading their bytes.
    mark: u8,
    /// Tag of the entry, and [`IS_BASE`].
    kind: u8,
    /// Bytes between the step and the inline value or the hash.
    head: u8,
}

/// Flag of an item that is an entry of the base.
const IS_BASE: u8 = 0x80;

impl Item {
    fn new(start: u32, step: &[u8], tag: u8, head: usize) -> Self {
        debug_assert!(u8::try_from(step.len()).is_ok() && u8::try_from(head).is_ok());
        debug_assert!(!step.is_empty(), "a step has 1 to 255 bytes");
        debug_assert!((TAG_INLINE..=TAG_DIR).contains(&tag), "the tag was checked");
        let step_len = step.len() as u8;
        let mark = mark(step);
        Self { start, step_len, mark, kind: tag, head: head as u8 }
    }

    /// Returns the item of entry `ordinal` of the base.
    fn of_base(self, ordinal: usize) -> Self {
        debug_assert!(!self.is_base(), "the entries of a full record are its own");
        debug_assert!(u32::try_from(ordinal).is_ok(), "ordinals have 32 bits");
        Self { start: ordinal as u32, kind: self.kind | IS_BASE, ..self }
    }

    fn is_base(self) -> bool {
        self.kind & IS_BASE != 0
    }

    fn tag(self) -> u8 {
        self.kind & !IS_BASE
    }
}

/// Hash of the first and the last 8 bytes, which differ between most steps.
fn mark(step: &[u8]) -> u8 {
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let near = &step[..step.len().min(8)];
    let far = &step[step.len().saturating_sub(8)..];
    let mixed = (word(near) ^ word(far).rotate_left(29)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

/// Largest number of items that are searched linearly, by their marks.
const MARKED_MAX: usize = 512;

/// Part of an entry that goes into the hash of its node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hashable<'a> {
    Inline(&'a [u8]),
    Hash(Hash),
}

/// Content of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stored<'a> {
    Inline(&'a [u8]),
    Value(Link),
    Dir(Link),
}

/// An inode with buckets.
#[derive(Debug, Clone)]
pub(crate) struct Inner {
    pub(crate) depth: u8,
    /// Entries below the inode.
    pub(crate) count: u64,
    /// Bit mask of the buckets that are not empty.
    pub(crate) mask: u32,
    /// Links of the buckets, ascending.
    pub(crate) links: Box<[Link]>,
    /// Full record, and the mask of the buckets that differ from it: zero in a full record.
    pub(crate) full: Extent,
    pub(crate) changed: u32,
}

impl Inner {
    /// Position in `links` of the link of a bucket.
    pub(crate) fn rank(&self, bucket: usize) -> Option<usize> {
        debug_assert!(bucket < 32, "an inode has at most 32 buckets");
        let bit = 1u32 << bucket;
        (self.mask & bit != 0).then(|| (self.mask & (bit - 1)).count_ones() as usize)
    }

    /// Returns the link of a bucket, if the bucket is not empty.
    pub(crate) fn link(&self, bucket: usize) -> Option<&Link> {
        self.rank(bucket).map(|rank| &self.links[rank])
    }
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the entries that have the bytes of an item, and the item there.
    fn source(&self, ordinal: usize) -> (&Self, Item) {
        let item = self.items[ordinal];

        // Items of the base refer to bytes of the base, which stays in memory with the delta.
        match self.base.as_deref() {
            Some(Record { body: RecordBody::Entries(base), .. }) if item.is_base() => {
                debug_assert!(base.base.is_none(), "a delta is based on a full record");
                (base, base.items[item.start as usize])
            }
            _ => {
                debug_assert!(!item.is_base(), "items of a base have one");
                (self, item)
            }
        }
    }

    pub(crate) fn step(&self, ordinal: usize) -> &[u8] {
        let (source, item) = self.source(ordinal);
        let start = item.start as usize;
        &source.bytes[start..start + usize::from(item.step_len)]
    }

    pub(crate) fn stored(&self, ordinal: usize) -> Stored<'_> {
        let (source, item) = self.source(ordinal);
        let mut payload = &source.bytes[item.start as usize + usize::from(item.step_len)..];
        let broken = "checked when the record was decoded";
        if item.tag() == TAG_INLINE {
            let len = take_leb(&mut payload).expect(broken) as usize;
            return Stored::Inline(&payload[..len]);
        }
        let link = Link::take(source.extent.at, &mut payload).expect(broken);
        if item.tag() == TAG_VALUE { Stored::Value(link) } else { Stored::Dir(link) }
    }

    /// Returns the part of an entry that the hash of the node needs beside the step.
    pub(crate) fn hashable(&self, ordinal: usize) -> Hashable<'_> {
        let (source, item) = self.source(ordinal);
        let payload = &source.bytes[item.start as usize + usize::from(item.step_len)..];
        let (mut head, content) = payload.split_at(usize::from(item.head));
        let broken = "checked when the record was decoded";
        if item.tag() == TAG_INLINE {
            let len = take_leb(&mut head).expect(broken) as usize;
            return Hashable::Inline(&content[..len]);
        }
        Hashable::Hash(Hash(*content.first_chunk().expect(broken)))
    }

    pub(crate) fn is_value(&self, ordinal: usize) -> bool {
        self.items[ordinal].tag() != TAG_DIR
    }

    /// Number of the entry in the full record.
    pub(crate) fn ordinal_in_full(&self, ordinal: usize) -> Option<usize> {
        let item = self.items[ordinal];
        match &self.base {
            Some(_) => item.is_base().then_some(item.start as usize),
            None => Some(ordinal),
        }
    }

    /// Returns the full record that the entries are based on; `own`, which has these entries, if it
    /// is full.
    pub(crate) fn full<'a>(&'a self, own: &'a Arc<Record>) -> &'a Arc<Record> {
        self.base.as_ref().unwrap_or(own)
    }

    /// Returns the number of the entry of `step`.
    pub(crate) fn find(&self, step: &[u8]) -> Option<usize> {
        // A scan of the marks touches few cache lines; beyond the limit, binary search wins.
        if self.len() <= MARKED_MAX {
            let len = step.len() as u8;
            let mark = mark(step);
            let mut numbered = self.items.iter().enumerate();
            return numbered.find_map(|(ordinal, item)| {
                let may_be = item.mark == mark && item.step_len == len;
                (may_be && self.step(ordinal) == step).then_some(ordinal)
            });
        }

        let mut low = 0;
        let mut high = self.len();
        while low < high {
            let middle = low.midpoint(high);
            match self.step(middle).cmp(step) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Some(middle),
                Ordering::Greater => high = middle,
            }
        }

        None
    }
}

/// Decoded record: a node, or a delta that still needs its base.
#[derive(Debug)]
pub(crate) enum Decoded {
    Record(Record),
    /// Difference from the record at `full`, which the caller must read and [apply](Delta::apply).
    Delta(Delta),
}

#[derive(Debug)]
pub(crate) struct Delta {
    full: Extent,
    height: u16,
    changes: Changes,
}

#[derive(Debug)]
enum Changes {
    /// Links of the changed buckets.
    Inner(Inner),
    /// New and changed entries, and the removed steps.
    Entries(Entries, Vec<Box<[u8]>>),
}

impl Delta {
    pub(crate) fn full(&self) -> Extent {
        self.full
    }

    /// Returns the node, given the record that the delta is based on.
    pub(crate) fn apply(self, full: &Arc<Record>) -> Result<Record, Corrupt> {
        let body = match (self.changes, &full.body) {
            (Changes::Inner(inner), RecordBody::Inner(base)) if base.changed == 0 => {
                RecordBody::Inner(apply_links(inner, base)?)
            }
            (Changes::Entries(own, gone), RecordBody::Entries(base)) if base.base.is_none() => {
                RecordBody::Entries(apply_entries(own, &gone, full, base)?)
            }
            _ => return Err(Corrupt::rule("a delta is based on a full record of its kind", 1, 0)),
        };
        Ok(Record { height: self.height, body })
    }
}

fn apply_links(mut inner: Inner, base: &Inner) -> Result<Inner, Corrupt> {
    if base.depth != inner.depth {
        let expected = u64::from(inner.depth);
        let found = u64::from(base.depth);
        return Err(Corrupt::rule("a delta is based on a record of its depth", expected, found));
    }

    // Changed buckets come from the delta, the others from the base.
    let mut own = inner.links.iter();
    let mut links = Vec::with_capacity(inner.mask.count_ones() as usize);
    for bucket in (0..32).filter(|bucket| inner.mask >> bucket & 1 == 1) {
        let changed = inner.changed >> bucket & 1 == 1;
        let link = if changed { own.next() } else { base.link(bucket) };
        links.push(*link.ok_or(Corrupt::rule(
            "a bucket that is kept is in the full record",
            1,
            0,
        ))?);
    }

    debug_assert!(own.next().is_none(), "changed buckets are not empty");
    debug_assert_eq!(
        links.len(),
        inner.mask.count_ones() as usize,
        "each bucket that is not empty has a link"
    );
    inner.links = links.into();
    Ok(inner)
}

fn apply_entries(
    own: Entries,
    gone: &[Box<[u8]>],
    full: &Arc<Record>,
    base: &Entries,
) -> Result<Entries, Corrupt> {
    if base.leaf != own.leaf {
        return Err(Corrupt::rule("a delta is based on a record of its kind", 1, 0));
    }

    // Both lists ascend by step, so one merge replaces, removes and keeps entries.
    let mut items = Vec::with_capacity(base.len() + own.len());
    let mut next = 0;
    let mut gone = gone.iter().peekable();

    for ordinal in 0..base.len() {
        let step = base.step(ordinal);
        while next < own.len() && own.step(next) < step {
            items.push(own.items[next]);
            next += 1;
        }

        if next < own.len() && own.step(next) == step {
            items.push(own.items[next]);
            next += 1;
        } else if gone.peek().is_some_and(|gone| ***gone == *step) {
            gone.next();
        } else {
            items.push(base.items[ordinal].of_base(ordinal));
        }
    }

    items.extend_from_slice(&own.items[next..]);

    // A removed step that the base lacks would make the delta ambiguous.
    if gone.next().is_some() {
        return Err(Corrupt::rule("a step that is gone is in the full record", 1, 0));
    }
    debug_assert!(items.len() >= own.len(), "each entry of the delta is there");
    debug_assert!(items.len() <= base.len() + own.len(), "each entry is there once");
    Ok(Entries { base: Some(Arc::clone(full)), items: items.into(), ..own })
}

impl Record {
    /// Approximate size in memory, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let body = match &self.body {
            RecordBody::Entries(entries) => entries.bytes.len() + size_of_val(&*entries.items),
            RecordBody::Inner(inner) => size_of_val(&*inner.links),
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
                let entries = decode_entries(extent, leaf, &mut bytes)?;
                Decoded::Record(Self { height, body: RecordBody::Entries(entries) })
            }
            INNER => {
                let inner = decode_inner(extent, &mut bytes)?;
                Decoded::Record(Self { height, body: RecordBody::Inner(inner) })
            }
            INNER_DELTA => {
                let inner = decode_delta(extent, &mut bytes)?;
                let full = inner.full;
                Decoded::Delta(Delta { full, height, changes: Changes::Inner(inner) })
            }
            _ => {
                let full = Extent::take(extent.at, &mut bytes)?;
                let gone = take_steps(&mut bytes)?;
                let own = decode_entries(extent, leaf, &mut bytes)?;
                Decoded::Delta(Delta { full, height, changes: Changes::Entries(own, gone) })
            }
        };

        // A record has one encoding: trailing bytes would be a second one.
        if !bytes.is_empty() {
            return Err(Corrupt::rule("nothing follows in a record", 0, bytes.len() as u64));
        }

        Ok(decoded)
    }
}

/// Reads steps, which must ascend.
fn take_steps(bytes: &mut &[u8]) -> Result<Vec<Box<[u8]>>, Corrupt> {
    let count = take_leb(bytes)? as usize;
    let mut steps: Vec<Box<[u8]>> = Vec::with_capacity(count.min(bytes.len() / 2));
    for _ in 0..count {
        let len = take_u8(bytes)?;
        let step = take_bytes(bytes, usize::from(len))?;
        if step.is_empty() || steps.last().is_some_and(|last| **last >= *step) {
            return Err(Corrupt::rule("steps ascend", steps.len() as u64, u64::from(len)));
        }
        steps.push(step.into());
    }
    Ok(steps)
}

fn decode_entries(extent: Extent, leaf: bool, bytes: &mut &[u8]) -> Result<Entries, Corrupt> {
    let count = take_leb(bytes)? as usize;
    let whole = *bytes;

    // The count comes from the disk: the capacity is bounded by the bytes that are there.
    let mut items = Vec::with_capacity(count.min(whole.len() / 3));
    let mut last: Option<&[u8]> = None;

    for _ in 0..count {
        let tag = take_u8(bytes)?;
        let step_len = take_u8(bytes)?;
        let start = whole.len() - bytes.len();

        let step = take_bytes(bytes, usize::from(step_len))?;
        if step.is_empty() || last.is_some_and(|last| last >= step) {
            return Err(Corrupt::rule("steps ascend", items.len() as u64, u64::from(step_len)));
        }

        // Checks the payload here, so that later reads of the entry cannot fail.
        let payload = bytes.len();
        let content = match tag {
            TAG_INLINE => {
                let len = take_leb(bytes)? as usize;
                take_bytes(bytes, len)?.len()
            }
            TAG_VALUE | TAG_DIR => Link::take(extent.at, bytes).map(|_| HASH_BYTES)?,
            _ => return Err(Corrupt::rule("tag of an entry", 3, u64::from(tag))),
        };

        last = Some(step);

        items.push(Item::new(start as u32, step, tag, payload - bytes.len() - content));
    }

    debug_assert_eq!(items.len(), count, "an item for each entry");
    let used = whole.len() - bytes.len();
    Ok(Entries { leaf, extent, base: None, bytes: whole[..used].into(), items: items.into() })
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

fn take_links(from: Address, count: u32, bytes: &mut &[u8]) -> Result<Box<[Link]>, Corrupt> {
    (0..count).map(|_| Link::take(from, bytes)).collect()
}

fn decode_inner(extent: Extent, bytes: &mut &[u8]) -> Result<Inner, Corrupt> {
    let depth = take_u8(bytes)?;
    let count = take_leb(bytes)?;
    let mask = take_mask(bytes)?;
    check_count(count, mask)?;
    let links = take_links(extent.at, mask.count_ones(), bytes)?;
    Ok(Inner { depth, count, mask, links, full: extent, changed: 0 })
}

fn decode_delta(extent: Extent, bytes: &mut &[u8]) -> Result<Inner, Corrupt> {
    let depth = take_u8(bytes)?;
    let count = take_leb(bytes)?;
    let full = Extent::take(extent.at, bytes)?;
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

    let links = take_links(extent.at, changed.count_ones(), bytes)?;
    Ok(Inner { depth, count, mask, links, full, changed })
}

/// Encoder of the entries of a directory or a leaf, in full or as a delta.
#[derive(Debug)]
pub(crate) struct EntriesWriter {
    leaf: bool,
    at: Address,
    /// Full record of a delta, and the number of its entries that were passed.
    base: Option<(Arc<Record>, usize)>,
    /// Count and bytes of the steps of the full record that are removed.
    gone: (u64, Vec<u8>),
    own: u64,
    bytes: Vec<u8>,
    items: Vec<Item>,
}

/// Buffers of an [`EntriesWriter`], to be used again.
#[derive(Debug, Default)]
pub(crate) struct EntriesBuffers {
    bytes: Vec<u8>,
    items: Vec<Item>,
}

impl EntriesWriter {
    pub(crate) fn new(
        leaf: bool,
        at: Address,
        base: Option<&Arc<Record>>,
        EntriesBuffers { mut bytes, mut items }: EntriesBuffers,
    ) -> Self {
        debug_assert!(
            base.is_none_or(
                |base| matches!(&base.body, RecordBody::Entries(full) if full.base.is_none())
            ),
            "a delta is based on a full record of its kind"
        );
        bytes.clear();
        items.clear();
        let base = base.map(|base| (Arc::clone(base), 0));
        Self { leaf, at, base, gone: (0, Vec::new()), own: 0, bytes, items }
    }

    /// Keeps entry `ordinal` of the full record as the next entry.
    pub(crate) fn keep(&mut self, ordinal: usize) {
        let (base, passed) = self.base.take().expect("entries are kept in deltas only");
        debug_assert!(passed <= ordinal, "entries are kept in ascending order");
        if let RecordBody::Entries(entries) = &base.body {
            self.pass(entries, passed, ordinal);
            let item = entries.items[ordinal];
            self.items.push(item.of_base(ordinal));
        }
        self.base = Some((base, ordinal + 1));
    }

    /// Notes entries of the full record that are not kept: they are changed or removed.
    fn pass(&mut self, entries: &Entries, from: usize, to: usize) {
        for ordinal in from..to {
            let step = entries.step(ordinal);
            // Own entries since the last kept entry ascend, so only these can be changes of a
            // passed entry.

            let own = self.items.iter().rev().take_while(|item| !item.is_base());
            let mut steps = own.map(|item| {
                let start = item.start as usize;
                &self.bytes[start..start + usize::from(item.step_len)]
            });

            if !steps.any(|own| own == step) {
                self.gone.0 += 1;
                self.gone.1.push(step.len() as u8);
                self.gone.1.extend_from_slice(step);
            }
        }
    }

    pub(crate) fn put(&mut self, step: &[u8], stored: Stored<'_>) {
        let tag = match stored {
            Stored::Inline(_) => TAG_INLINE,
            Stored::Value(_) => TAG_VALUE,
            Stored::Dir(_) => TAG_DIR,
        };

        debug_assert!(!step.is_empty() && step.len() <= 255, "a step has 1 to 255 bytes");
        self.own += 1;
        self.bytes.extend_from_slice(&[tag, step.len() as u8]);
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(step);
        let payload = self.bytes.len();

        let content = match stored {
            Stored::Inline(value) => {
                put_leb(&mut self.bytes, value.len() as u64);
                self.bytes.extend_from_slice(value);
                value.len()
            }
            Stored::Value(link) | Stored::Dir(link) => {
                link.put(self.at, &mut self.bytes);
                HASH_BYTES
            }
        };

        let head = self.bytes.len() - payload - content;

        self.items.push(Item::new(start, step, tag, head));
    }

    /// Ends the entries. [`body`](Self::body) and [`record`](Self::record) follow.
    pub(crate) fn end(&mut self) {
        if let Some((base, passed)) = self.base.take() {
            if let RecordBody::Entries(entries) = &base.body {
                debug_assert!(passed <= entries.len(), "the entries end once");
                self.pass(entries, passed, entries.len());
            }
            self.base = Some((base, usize::MAX));
        }
    }

    /// Writes the body of the record.
    pub(crate) fn body(&self, height: u16, out: &mut Vec<u8>) {
        debug_assert!(self.base.as_ref().is_none_or(|base| base.1 == usize::MAX), "ended before");
        debug_assert!(self.own <= self.items.len() as u64, "own entries are entries");
        let kind = if self.leaf { LEAF } else { FLAT };
        match &self.base {
            Some((base, _)) => {
                out.extend_from_slice(&[ENTRIES_DELTA, kind]);
                put_leb(out, u64::from(height));
                if let RecordBody::Entries(entries) = &base.body {
                    entries.extent.put(self.at, out);
                }
                put_leb(out, self.gone.0);
                out.extend_from_slice(&self.gone.1);
            }
            None => {
                out.push(kind);
                put_leb(out, u64::from(height));
            }
        }

        put_leb(out, self.own);
        out.extend_from_slice(&self.bytes);
    }

    /// Returns the record, which the sink put at `extent`, and the buffers.
    pub(crate) fn record(self, height: u16, extent: Extent) -> (Record, EntriesBuffers) {
        debug_assert!(self.base.as_ref().is_none_or(|base| base.1 == usize::MAX), "ended before");
        debug_assert!(
            self.base.is_some() || self.own == self.items.len() as u64,
            "a full record has all of its entries"
        );
        let entries = Entries {
            leaf: self.leaf,
            extent,
            base: self.base.map(|(base, _)| base),
            bytes: self.bytes.as_slice().into(),
            items: self.items.as_slice().into(),
        };
        let record = Record { height, body: RecordBody::Entries(entries) };
        (record, EntriesBuffers { bytes: self.bytes, items: self.items })
    }
}

/// Returns the full record if the entries of a node, `kept` of which are entries of it, are best
/// written as a delta.
pub(crate) fn delta_base(
    record: Option<&Arc<Record>>,
    kept: usize,
    count: usize,
) -> Option<&Arc<Record>> {
    let record = record?;
    let RecordBody::Entries(entries) = &record.body else { return None };
    let full = entries.full(record);
    let RecordBody::Entries(base) = &full.body else { return None };

    // Entries of the node that are not kept, and entries of the base that are gone or changed.
    debug_assert!(kept <= count && kept <= base.len(), "kept entries are in both");
    let changes = (count - kept) + (base.len() - kept);
    (base.len() > DELTA_ENTRIES_MIN && is_delta_worth(changes, base.len())).then_some(full)
}

/// Writes the body of an inode with buckets, as a delta if `changed` is not zero.
pub(crate) fn inner_body(at: Address, height: u16, inner: &Inner, out: &mut Vec<u8>) {
    debug_assert_eq!(inner.links.len(), inner.mask.count_ones() as usize);
    debug_assert!(inner.changed & !inner.mask == 0, "changed buckets are not empty");
    let delta = inner.changed != 0;
    out.push(if delta { INNER_DELTA } else { INNER });
    put_leb(out, u64::from(height));
    out.push(inner.depth);
    put_leb(out, inner.count);

    if delta {
        inner.full.put(at, out);
    }
    out.extend_from_slice(&inner.mask.to_le_bytes());

    if delta {
        out.extend_from_slice(&inner.changed.to_le_bytes());
    }

    // A delta stores the links of changed buckets only.
    let stored = if delta { inner.changed } else { inner.mask };
    for bucket in (0..32).filter(|bucket| stored >> bucket & 1 == 1) {
        if let Some(link) = inner.link(bucket) {
            link.put(at, out);
        }
    }
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
            let mut out = EntriesWriter::new(leaf, PLACE.at, None, EntriesBuffers::default());
            out.put(b"a", Stored::Inline(b"value"));
            out.put(b"bb", Stored::Value(link(100)));
            out.put(b"c", Stored::Dir(link(200)));
            let mut body = Vec::new();
            out.body(2, &mut body);
            bodies.push(body);
        }

        let links: Vec<Link> = (0..4).map(|unit| link(300 + unit)).collect();
        let mut inner = Inner {
            depth: 1,
            count: 99,
            mask: 0b1_0110_1000,
            links: links.into(),
            full: PLACE,
            changed: 0,
        };

        for changed in [0, 0b0010_1000] {
            (inner.full, inner.changed) = (link(250).extent, changed);
            let mut body = Vec::new();
            inner_body(PLACE.at, 7, &inner, &mut body);
            bodies.push(body);
        }

        let mut delta = vec![ENTRIES_DELTA, FLAT, 2];
        link(250).extent.put(PLACE.at, &mut delta);
        delta.extend_from_slice(&[1, 1, b'a', 1, TAG_INLINE, 1, b'd', 2, 7, 7]);
        bodies.push(delta);

        bodies
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
            Decoded::Record(record) => Arc::new(record),
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
        let applied = Arc::new(delta(&bodies[3]).apply(&inner).unwrap());
        let RecordBody::Inner(links) = &applied.body else { panic!("an inode") };
        assert_eq!(links.links.len(), 4);

        for other in [&applied, &flat, &leaf] {
            assert!(delta(&bodies[3]).apply(other).is_err());
        }
        let applied = Arc::new(delta(&bodies[4]).apply(&flat).unwrap());
        let RecordBody::Entries(entries) = &applied.body else { panic!("entries") };
        let steps: Vec<&[u8]> = (0..entries.len()).map(|ordinal| entries.step(ordinal)).collect();
        assert_eq!(steps, [b"bb".as_slice(), b"c", b"d"]);

        for other in [&applied, &inner, &leaf] {
            assert!(delta(&bodies[4]).apply(other).is_err());
        }
    }
}
