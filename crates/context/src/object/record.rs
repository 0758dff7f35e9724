//! Records of the tree: how a directory and a value are stored.
//!
//! Invariant: a record is written once and refers to earlier records only. It has the hashes of its
//! targets, so a change of one child reads no other child.
//!
//! In memory the body of a node is the preimage of its hash, see [entries](crate::object::entries)
//! and [inodes](crate::object::inner).
//!
//! **Deltas.** A delta is based on a full record, or on a delta on one, the *middle* one. So a node
//! costs three reads at most. A delta is worth writing while its number of changes, times its
//! bytes, is below a multiple of the bytes of its base: twice as many for single changes, since the
//! deltas up to the next base then take about the bytes of that base, which minimizes the sum. The
//! multiples are measured ones: blocks make several changes at once, and middle deltas are rarer
//! than changes.

#![doc = include_str!("../../../../docs/format/context-record.md")]

use crate::base::address::{
    Extent, Link, Origin, put_leb, take_bytes, take_leb, take_u8, take_u32,
};
use crate::base::corrupt::Corrupt;
use crate::base::hash::HASH_BYTES;
use crate::base::hashing::STEP_BYTES_MAX;
use crate::base::path::HEIGHT_MAX;
use crate::object::entries::{
    Base, Collecting, Entries, HEX, HEX_STEP_BYTES_MIN, INLINE_BYTES_MAX, Item, Sizes, Stored,
    TAG_DIR, TAG_INLINE, TAG_VALUE, is_hex,
};
use crate::object::inner::Inner;

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

/// Multiple of the bytes of a middle delta that is the [budget](is_delta_worth) of deltas on it.
const MIDDLE_TIMES: usize = 2;

/// Approximate bytes of an extent in a record.
const EXTENT_BYTES: usize = 5;
/// Approximate bytes of a record beside its entries or links: its head, its frame, its padding.
const RECORD_BYTES: usize = 24;

/// Flag of the tag: the step consists of hexadecimal digits, two in a byte.
pub(crate) const TAG_HEX: u8 = 0x10;
/// Flag of the tag in a delta: the step is that of an entry of the base, named by its number.
pub(crate) const TAG_KEPT: u8 = 0x20;

/// Writes a step of hexadecimal digits, two in a byte.
fn put_hex(step: &[u8], out: &mut Vec<u8>) {
    // The low bits of a digit, and nine more for a letter, without a branch.
    let digit = |byte: u8| (byte & 15) + 9 * (byte >> 6);
    let (pairs, _) = step.as_chunks::<2>();
    out.extend(pairs.iter().map(|[high, low]| digit(*high) << 4 | digit(*low)));
}

/// The two digits of each byte.
static HEX_PAIRS: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < pairs.len() {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Reads the step of an entry with this tag.
fn take_step<'a, 'b: 'a>(
    tag: u8,
    bytes: &mut &'b [u8],
    room: &'a mut [u8; STEP_BYTES_MAX],
) -> Result<&'a [u8], Corrupt> {
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
    let (pairs, _) = room.as_chunks_mut();
    for (pair, byte) in pairs.iter_mut().zip(step) {
        *pair = HEX_PAIRS[usize::from(*byte)];
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

impl Entries {
    /// Record on which a delta of the content is best based, and the number of entries that differ
    /// from it; `None` if the content is best written in full.
    fn delta_base(&self) -> Option<(Base, usize)> {
        self.base(Base::Full)?;
        let mut full_bytes = RECORD_BYTES;
        let mut of_full = Differences::new(self, Base::Full);
        let mut of_middle = Differences::new(self, Base::Middle);
        for item in self.items() {
            let step = usize::from(item.step_len) >> u8::from(item.has(HEX));
            let content = match item.tag() {
                TAG_INLINE => 1 + usize::from(item.value_len),
                _ => EXTENT_BYTES + HASH_BYTES,
            };
            full_bytes += 2 + step + content;
            of_full.add(item, step, content);
            of_middle.add(item, step, content);
        }

        let is_worth = |differences: &Differences, budget: usize| {
            let changes = differences.own + self.gone(differences.base).len();
            is_delta_worth(changes, differences.bytes, budget, full_bytes)
        };
        match self.base(Base::Middle) {
            // A read less if the deltas are the same.
            Some(middle)
                if of_middle.bytes < of_full.bytes
                    && is_worth(&of_middle, MIDDLE_TIMES * middle.bytes as usize) =>
            {
                Some((Base::Middle, of_middle.own))
            }
            _ => is_worth(&of_full, 3 * full_bytes).then_some((Base::Full, of_full.own)),
        }
    }

    /// Writes the body of a record at `at`, given the links of the children that are nowhere, in
    /// the order of their entries. Returns its form.
    pub(crate) fn put(
        &self,
        at: Origin,
        height: u16,
        links: &mut dyn Iterator<Item = Link>,
        out: &mut Vec<u8>,
    ) -> Form {
        let kind = if self.leaf { LEAF } else { FLAT };
        let delta = self.delta_base();
        let base = delta.map(|(base, _)| base);
        match base {
            Some(base) => {
                out.extend_from_slice(&[ENTRIES_DELTA, kind]);
                put_leb(out, u64::from(height));
                self.base(base).expect("there is such a base").put(at, out);
                self.put_gone(base, out);
            }
            None => {
                out.push(kind);
                put_leb(out, u64::from(height));
            }
        }

        put_leb(out, delta.map_or(self.len(), |(_, own)| own) as u64);
        let mut numbers = base.map(|base| BaseNumbers::new(self, base));
        let mut next = 0;
        for (item, beside) in self.items().enumerate() {
            let number = numbers.as_mut().and_then(|numbers| numbers.pass(item, beside));
            if base.is_some_and(|base| !beside.has(base.changed_flag())) {
                // The child was written with the base, by a node that kept no place.
                if beside.is_nowhere() {
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
                // The base has the step.
                Some(number) => {
                    out.push(tag(&stored) | TAG_KEPT);
                    put_leb(out, u64::from(number - next));
                    next = number + 1;
                    put_payload(at, stored, out);
                }
                None => put_entry(at, (self.step(item), beside.has(HEX)), stored, out),
            }
        }
        debug_assert!(links.next().is_none(), "each link belongs to a child");

        match base {
            None => Form::Full,
            Some(Base::Full) => Form::Middle,
            Some(Base::Middle) => Form::Delta,
        }
    }

    /// Writes which entries of a base are not here any more: their number, and for each one the
    /// entries between it and the one before.
    fn put_gone(&self, base: Base, out: &mut Vec<u8>) {
        put_leb(out, self.gone(base).len() as u64);
        if self.gone(base).is_empty() {
            return;
        }
        let mut numbers = BaseNumbers::new(self, base);
        self.items().enumerate().for_each(|(item, beside)| _ = numbers.pass(item, beside));
        let mut next = 0;
        for number in numbers.gone() {
            put_leb(out, u64::from(number - next));
            next = number + 1;
        }
    }
}

/// Differences of entries from a base.
struct Differences {
    base: Base,
    /// Entries that differ.
    own: usize,
    /// Approximate bytes of the delta.
    bytes: usize,
}

impl Differences {
    fn new(entries: &Entries, base: Base) -> Self {
        let bytes = RECORD_BYTES + EXTENT_BYTES + entries.gone(base).len();
        Self { base, own: 0, bytes }
    }

    /// Passes an item, whose step and content take so many bytes.
    fn add(&mut self, item: Item, step: usize, content: usize) {
        if item.has(self.base.changed_flag()) {
            self.own += 1;
            self.bytes += 2 + content + if item.has(self.base.new_flag()) { step } else { 0 };
        }
    }
}

/// Numbers of entries in a base, in whose order the items pass.
struct BaseNumbers<'a> {
    entries: &'a Entries,
    base: Base,
    /// Number of the next entry of the base.
    next: u32,
    /// Numbers of the entries before it that are gone.
    gone: Vec<u32>,
}

impl<'a> BaseNumbers<'a> {
    fn new(entries: &'a Entries, base: Base) -> Self {
        Self { entries, base, next: 0, gone: Vec::new() }
    }

    /// Passes an item; returns its number if the base has its step.
    fn pass(&mut self, item: usize, beside: Item) -> Option<u32> {
        let gone = self.entries.gone(self.base);
        while gone.get(self.gone.len()).is_some_and(|gone| **gone < *self.entries.step(item)) {
            self.pass_gone();
        }
        if beside.has(self.base.new_flag()) {
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
        while self.gone.len() < self.entries.gone(self.base).len() {
            self.pass_gone();
        }
        self.gone
    }
}

/// Writes the body of a full record of ascending entries.
pub(crate) fn put_entries<'a>(
    at: Origin,
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
fn put_entry(at: Origin, (step, is_hex): (&[u8], bool), stored: Stored<'_>, out: &mut Vec<u8>) {
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
fn put_payload(at: Origin, stored: Stored<'_>, out: &mut Vec<u8>) {
    match stored {
        Stored::Inline(value) => {
            put_leb(out, value.len() as u64);
            out.extend_from_slice(value);
        }
        Stored::Value(link) | Stored::Dir(link) => link.put(at, out),
        Stored::Nowhere { .. } => {}
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
                    && is_worth(self.recent, MIDDLE_TIMES * middle.bytes as usize) =>
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
        at: Origin,
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
        out.extend_from_slice(&self.mask().to_le_bytes());
        if let Some((_, own)) = base {
            out.extend_from_slice(&own.to_le_bytes());
        }

        // A delta stores the links of changed buckets only.
        let own = base.map_or(self.mask(), |(_, own)| own);
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

/// Differences of the entries of a node from those of its base.
#[derive(Debug)]
struct EntriesDelta {
    leaf: bool,
    /// Numbers of the entries of the base that are gone, ascending.
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
    /// Number of the entry of the base that has the step.
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
    /// Record that the delta is based on: a full one, or a delta on one.
    pub(crate) fn base(&self) -> Extent {
        self.base
    }

    /// Returns the node, given the record that the delta is based on.
    pub(crate) fn apply(self, base: &Record) -> Result<Record, Corrupt> {
        let body = match (self.changes, &base.body) {
            (changes @ Changes::Inner { .. }, RecordBody::Inner(base)) if base.is_base() => {
                RecordBody::Inner(apply_links(self.extent, changes, base)?)
            }
            (Changes::Entries(delta), RecordBody::Entries(base)) if base.is_base() => {
                RecordBody::Entries(apply_entries(self.extent, &delta, base)?)
            }
            _ => return Err(Corrupt::rule("a delta is based on a base of its kind", 1, 0)),
        };
        Ok(Record { height: self.height, body })
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
    let mut inner = Inner::of_links((depth, count, mask), |bucket| {
        let link = if changed >> bucket & 1 == 1 {
            own.next().copied()
        } else {
            base.rank(bucket).and_then(|rank| base.link(rank))
        };
        link.ok_or(Corrupt::rule("a bucket that is kept is in the base", 1, 0))
    })?;

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

fn apply_entries(extent: Extent, delta: &EntriesDelta, base: &Entries) -> Result<Entries, Corrupt> {
    if base.leaf != delta.leaf {
        return Err(Corrupt::rule("a delta is based on a record of its kind", 1, 0));
    }
    let len = base.len();
    let lacks = |number: usize| {
        Corrupt::rule("a delta names entries of its base", len as u64, number as u64)
    };
    if let Some(&last) = delta.gone.last().filter(|last| **last >= len) {
        return Err(lacks(last));
    }

    // An entry takes less than 400 bytes, with the longest step and value.
    check_bytes(base.weight().saturating_add(delta.own.len().saturating_mul(400)))?;

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
            _ => return Err(Corrupt::rule("the base lacks a new step", 0, 1)),
        }
    }
    if base.is_as(Base::Full) {
        entries.rebase_middle(extent);
    }
    Ok(entries)
}

impl RecordBody {
    /// Full record of the content, or of the content that it differs from.
    pub(crate) fn full(&self) -> Option<Extent> {
        match self {
            Self::Entries(entries) => entries.base(Base::Full),
            Self::Inner(inner) => inner.full,
        }
    }
}

impl Record {
    /// Approximate size in memory, in bytes.
    pub(crate) fn weight(&self) -> usize {
        // Allocators round up to their size classes.
        let beside = self.beside();
        beside + beside / 8 + size_of::<Self>() + 64
    }

    /// Size of what stands beside the record itself, in bytes.
    pub(crate) fn beside(&self) -> usize {
        match &self.body {
            RecordBody::Entries(entries) => entries.weight(),
            RecordBody::Inner(inner) => inner.weight(),
        }
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

        // Trailing bytes would be of no entry.
        if !bytes.is_empty() {
            return Err(Corrupt::rule("nothing follows in a record", 0, bytes.len() as u64));
        }

        Ok(decoded)
    }
}

/// Reads the number of an entry of a base, whose first possible one is `next`.
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

    // A chain of deltas without changes would have no end that is known.
    if gone.is_empty() && own.is_empty() {
        return Err(Corrupt::rule("a delta has changes", 1, 0));
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

/// Refuses entries that take more than 32 bits can count in memory.
fn check_bytes(bytes: usize) -> Result<(), Corrupt> {
    let most = u64::from(u32::MAX);
    if bytes as u64 <= most {
        Ok(())
    } else {
        Err(Corrupt::rule("bytes of a node", most, bytes as u64))
    }
}

/// Sizes of encoded entries in memory. Stops at the first that is damaged, as the decoding does,
/// which names the damage.
fn sizes(leaf: bool, count: usize, mut bytes: &[u8]) -> Sizes {
    let mut sizes = Sizes::default();
    let mut entry = || -> Result<(), Corrupt> {
        let tag = take_u8(&mut bytes)?;
        let encoded_len = usize::from(take_u8(&mut bytes)?);
        take_bytes(&mut bytes, encoded_len)?;
        let step_len = if tag & TAG_HEX == 0 { encoded_len } else { 2 * encoded_len };
        if step_len == 0 || step_len > STEP_BYTES_MAX {
            return Err(Corrupt::short("a step"));
        }
        let mut value_len = None;
        if tag & !TAG_HEX == TAG_INLINE {
            let len = take_leb(&mut bytes)? as usize;
            take_bytes(&mut bytes, len)?;
            if len > INLINE_BYTES_MAX {
                return Err(Corrupt::short("a value in place"));
            }
            value_len = Some(len);
        } else {
            Extent::skip(&mut bytes)?;
            take_bytes(&mut bytes, HASH_BYTES)?;
        }
        sizes.add(leaf, step_len, value_len);
        Ok(())
    };

    // The count comes from the disk: each entry that is counted has bytes there.
    for _ in 0..count {
        if entry().is_err() {
            break;
        }
    }
    sizes
}

fn decode_entries(extent: Extent, leaf: bool, bytes: &mut &[u8]) -> Result<Entries, Corrupt> {
    let count = take_leb(bytes)? as usize;
    let sizes = sizes(leaf, count, bytes);
    check_bytes(sizes.bytes())?;
    let mut entries = Collecting::new(leaf, sizes);

    for number in 0..count {
        let tag = take_u8(bytes)?;
        let mut room = [0; STEP_BYTES_MAX];
        let step = take_step(tag, bytes, &mut room)?;
        if step.is_empty() || !entries.is_next(step) {
            return Err(Corrupt::rule("steps ascend", number as u64, step.len() as u64));
        }

        let stored = take_content(extent, tag & !TAG_HEX, bytes)?;
        entries.push((step, tag & TAG_HEX != 0), stored);
    }

    Ok(entries.finish())
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
    let link = |_| Link::take(extent.at, bytes);
    let mut inner = Inner::of_links((depth, count, mask), link)?;
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
    use crate::base::address::Address;
    use crate::base::hash::Hash;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    const PLACE: Extent = Extent { at: Address { chunk: 3, unit: 500 }, bytes: 0 };
    const PLACE_BEFORE: Extent = Extent { at: Address { chunk: 3, unit: 250 }, bytes: 77 };
    const ORIGIN: Origin = Origin { at: PLACE.at, frame: Address { chunk: 3, unit: 200 } };

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
            put_entries(ORIGIN, (leaf, 2), entries.into_iter(), &mut body);
            bodies.push(body);
        }

        let mut inner = Inner::new(1, 99, 0);
        for (unit, bucket) in (300..).zip([3, 5, 6, 8]) {
            inner.insert(bucket, None);
            inner.settle(bucket, &link(unit));
        }

        for changed in [0, 0b0010_1000] {
            (inner.full, inner.changed) = (Some(link(250).extent), changed);
            let mut body = Vec::new();
            let form = inner.put(ORIGIN, 7, &mut std::iter::empty(), &mut body);
            assert_eq!(form, if changed == 0 { Form::Full } else { Form::Middle });
            bodies.push(body);
        }

        let mut delta = vec![ENTRIES_DELTA, FLAT, 2];
        link(250).extent.put(ORIGIN, &mut delta);
        delta.extend_from_slice(&[1, 0, 2, TAG_KEPT | TAG_INLINE, 1, 1, 9]);
        delta.extend_from_slice(&[TAG_INLINE, 1, b'd', 2, 7, 7]);
        bodies.push(delta);

        // Steps and values of all kinds.
        let long = [b'x'; 200];
        let entries: [(&[u8], _); 4] = [
            (b"0123456789abcdef", Stored::Inline(&[1; 20])),
            (b"a", Stored::Inline(&[2; 13])),
            (b"odd", Stored::Inline(&[3; INLINE_BYTES_MAX])),
            (&long, Stored::Inline(&[4; 12])),
        ];
        let mut body = Vec::new();
        put_entries(ORIGIN, (true, 2), entries.into_iter(), &mut body);
        bodies.push(body);

        bodies
    }

    /// Nodes stay in memory for long: a list that doubled when it grew held up to half unused.
    #[test]
    fn nodes_have_little_memory_to_spare() {
        for buckets in 1..=32 {
            let mut inner = Inner::new(1, 99, 0);
            for bucket in 0..buckets {
                inner.insert(bucket, None);
                inner.settle(bucket, &link(300));
            }
            let mut body = Vec::new();
            inner.put(ORIGIN, 7, &mut std::iter::empty(), &mut body);
            let Ok(Decoded::Record(record)) = Record::decode(PLACE, &body) else {
                panic!("a record of {buckets} buckets")
            };
            let RecordBody::Inner(inner) = record.body else { panic!("an inode") };
            assert_eq!(inner.weight(), buckets * (1 + HASH_BYTES + Extent::BYTES));
        }

        let mut entries = Entries::new(true, &[]);
        let mut needed = 0;
        for number in 0..500_u32 {
            let step = format!("{:08}", number.wrapping_mul(2_654_435_761));
            let Err(item) = entries.position(step.as_bytes()) else { panic!("it is new") };
            entries.insert(item, step.as_bytes(), Stored::Inline(b"value"));
            needed += 20 + 2 + step.len() + HASH_BYTES;
            let spare = entries.weight() - needed;
            assert!(spare <= needed / 8, "{number}: {spare}");
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
            let mut body = bodies().swap_remove(rng.index(6));
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
    fn a_delta_needs_a_base_of_its_kind() {
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

        // One that takes `c` away, of both, and one that takes `d` away, which the full one lacks.
        for (gone, of_full) in [(1, 2), (2, 1)] {
            let mut body = vec![ENTRIES_DELTA, FLAT, 2];
            PLACE_BEFORE.put(ORIGIN, &mut body);
            body.extend_from_slice(&[1, gone, 1, TAG_KEPT | TAG_INLINE, 0, 1, 8]);
            let second = delta(&body).apply(&applied).unwrap();
            let RecordBody::Entries(entries) = &second.body else { panic!("entries") };
            assert!(matches!(entries.stored(0), Stored::Inline([8])));
            assert_eq!((entries.len(), entries.base(Base::Middle)), (2, Some(PLACE)));
            assert_eq!(
                (entries.gone(Base::Full).len(), entries.gone(Base::Middle).len()),
                (of_full, 1)
            );
            for other in [&second, &inner, &leaf] {
                assert!(delta(&body).apply(other).is_err());
            }
        }
    }

    /// A delta of entries names those of its base by number. Each number, and each step, has one
    /// way to be named.
    #[test]
    fn a_delta_of_entries_names_what_its_base_has() {
        const KEPT: u8 = TAG_KEPT | TAG_INLINE;

        let Decoded::Record(full) = Record::decode(PLACE, &bodies()[0]).unwrap() else {
            panic!("a full record")
        };
        let apply = |rest: &[u8]| {
            let mut body = vec![ENTRIES_DELTA, FLAT, 2];
            PLACE_BEFORE.put(ORIGIN, &mut body);
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
        let forged: [&[u8]; 9] = [
            // No change.
            &[0, 0],
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
        let mut forms = [[0; 3]; 2];
        let number_of =
            |form| usize::from(form == Form::Middle) + 2 * usize::from(form == Form::Delta);
        for_each_seed("a_node_written_block_after_block", 6, |rng, _| {
            let mut inner = Inner::new(2, 900, 0);
            let mut entries = Entries::new(rng.chance(1, 2), &[]);
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

                // Bases and children are in the frame, or before it.
                let frame = Address { unit: rng.below(u64::from(at.unit)) as u32, ..at };
                let mut body = Vec::new();
                let origin = Origin { at, frame };
                let form = inner.put(origin, 7, &mut std::iter::empty(), &mut body);
                let extent = Extent { at, bytes: body.len() as u32 + 5 };
                match form {
                    Form::Full => inner.rebase(Some(extent)),
                    Form::Middle => inner.rebase_middle(extent),
                    _ => {}
                }
                forms[0][number_of(form)] += 1;
                records.push((extent, body));
                let RecordBody::Inner(read) = chain(&records).body else { panic!("an inode") };
                let extents = |inner: &Inner| -> Vec<Extent> {
                    (0..inner.len()).map(|rank| inner.extent(rank)).collect()
                };
                assert_eq!((read.list(), extents(&read)), (inner.list(), extents(&inner)));
                assert_eq!(
                    (read.mask(), read.changed, read.full),
                    (inner.mask(), inner.changed, inner.full)
                );
                assert_eq!((read.middle, read.recent), (inner.middle, inner.recent));

                let mut body = Vec::new();
                let at = Address { unit: at.unit + 500, ..at };
                let origin = Origin { at, frame };
                let form = entries.put(origin, 7, &mut std::iter::empty(), &mut body);
                let extent = Extent { at, bytes: body.len() as u32 + 5 };
                forms[1][number_of(form)] += 1;
                match form {
                    Form::Full => entries.rebase(Some(extent)),
                    Form::Middle => entries.rebase_middle(extent),
                    _ => {}
                }
                records.push((extent, body));
                let RecordBody::Entries(read) = chain(&records).body else { panic!("entries") };
                let all = |entries: &Entries| -> Vec<String> {
                    let entry =
                        |item| format!("{:?} {:?}", entries.step(item), entries.stored(item));
                    (0..entries.len()).map(entry).collect()
                };
                assert_eq!(all(&read), all(&entries));
                for base in [Base::Full, Base::Middle] {
                    assert_eq!(read.base(base), entries.base(base));
                    assert_eq!(read.gone(base), entries.gone(base));
                }
                assert_eq!(read.is_base(), entries.is_base());
            }
        });
        assert!(forms.iter().flatten().all(|count| *count > 20), "{forms:?}");
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
