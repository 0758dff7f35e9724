//! Records of the tree: how a directory and a value are stored, and their decoded form.
//!
//! A record is written once and points at earlier ones only; it holds the hashes of what it points at, so that a
//! change of one child needs no other to be read. An inner delta is never based on another, so that a node costs two reads at
//! most.

#![doc = include_str!("../../../docs/format/context-record.md")]

use std::cmp::Ordering;

use crate::address::{Address, Link, Place, put_leb, take_bytes, take_leb, take_u8};
use crate::corrupt::Corrupt;
use crate::path::HEIGHT_MAX;

/// The longest value that is stored in its directory, in bytes.
pub const INLINE_BYTES_MAX: usize = 48;

pub(crate) const VALUE: u8 = 1;
pub(crate) const FLAT: u8 = 2;
pub(crate) const LEAF: u8 = 3;
pub(crate) const INNER: u8 = 4;
pub(crate) const INNER_DELTA: u8 = 5;

pub(crate) const TAG_INLINE: u8 = 1;
pub(crate) const TAG_VALUE: u8 = 2;
pub(crate) const TAG_DIR: u8 = 3;

/// A decoded directory node. Immutable; shared by the cache and by trees.
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

/// The steps of a flat directory or of a leaf of an inode.
///
/// Invariant: `items` are the entries of `bytes` in ascending order of their steps, and every payload is whole.
#[derive(Debug)]
pub(crate) struct Entries {
    pub(crate) leaf: bool,
    /// Where the record lies, for the references in it.
    at: Address,
    bytes: Box<[u8]>,
    items: Box<[Item]>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    /// Where its step begins in the bytes.
    step: u32,
    step_len: u8,
    tag: u8,
}

/// What an entry of a record holds.
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
    /// Entries below.
    pub(crate) count: u64,
    /// One bit for each bucket that is not empty.
    pub(crate) mask: u32,
    /// In ascending order of the buckets.
    pub(crate) links: Box<[Link]>,
    /// The full record, and which buckets differ from it: zero for a full record itself.
    pub(crate) full: Place,
    pub(crate) changed: u32,
}

impl Inner {
    /// The link of a bucket.
    pub(crate) fn link(&self, bucket: usize) -> Option<&Link> {
        let bit = 1u32 << bucket;
        let rank = (self.mask & (bit - 1)).count_ones() as usize;
        (self.mask & bit != 0).then(|| &self.links[rank])
    }
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn step(&self, ordinal: usize) -> &[u8] {
        let item = self.items[ordinal];
        let start = item.step as usize;
        &self.bytes[start..start + usize::from(item.step_len)]
    }

    pub(crate) fn stored(&self, ordinal: usize) -> Stored<'_> {
        let item = self.items[ordinal];
        let mut payload = &self.bytes[item.step as usize + usize::from(item.step_len)..];
        let broken = "checked when the record was decoded";
        if item.tag == TAG_INLINE {
            let len = take_leb(&mut payload).expect(broken) as usize;
            return Stored::Inline(&payload[..len]);
        }
        let link = Link::take(self.at, &mut payload).expect(broken);
        if item.tag == TAG_VALUE { Stored::Value(link) } else { Stored::Dir(link) }
    }

    pub(crate) fn is_value(&self, ordinal: usize) -> bool {
        self.items[ordinal].tag != TAG_DIR
    }

    /// The ordinal of `step`.
    pub(crate) fn find(&self, step: &[u8]) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
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

/// What a record is decoded to: a node, or what is still missing for one.
#[derive(Debug)]
pub(crate) enum Decoded {
    Record(Record),
    /// The links that are not those of the record at `full`, which must be read and [applied](Delta::apply).
    Delta(Delta),
}

#[derive(Debug)]
pub(crate) struct Delta {
    height: u16,
    inner: Inner,
}

impl Delta {
    pub(crate) fn full(&self) -> Place {
        self.inner.full
    }

    /// The node, given the record that it is based on.
    pub(crate) fn apply(self, full: &Record) -> Result<Record, Corrupt> {
        let RecordBody::Inner(base) = &full.body else {
            return Err(Corrupt::rule("an inner delta is based on an inner record", 4, 2));
        };
        if base.changed != 0 || base.depth != self.inner.depth {
            return Err(Corrupt::rule(
                "an inner delta is based on a full record of its depth",
                u64::from(self.inner.depth),
                u64::from(base.depth),
            ));
        }
        let Delta { height, mut inner } = self;
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
        inner.links = links.into();
        Ok(Record { height, body: RecordBody::Inner(inner) })
    }
}

impl Record {
    /// What it takes in memory, about.
    pub(crate) fn weight(&self) -> usize {
        let body = match &self.body {
            RecordBody::Entries(entries) => entries.bytes.len() + size_of_val(&*entries.items),
            RecordBody::Inner(inner) => size_of_val(&*inner.links),
        };
        body + size_of::<Self>() + 64
    }

    /// Decodes the body of a record that lies at `place`.
    pub(crate) fn decode(place: Place, body: &[u8]) -> Result<Decoded, Corrupt> {
        let mut bytes = body;
        let kind = take_u8(&mut bytes)?;
        if !(FLAT..=INNER_DELTA).contains(&kind) {
            return Err(Corrupt::rule(
                "kind of a directory record",
                u64::from(FLAT),
                u64::from(kind),
            ));
        }
        let height = take_leb(&mut bytes)?;
        let height = u16::try_from(height)
            .ok()
            .filter(|height| (1..=HEIGHT_MAX).contains(height))
            .ok_or(Corrupt::rule("height", u64::from(HEIGHT_MAX), height))?;
        let decoded = match kind {
            FLAT | LEAF => {
                let entries = decode_entries(place.at, kind == LEAF, &mut bytes)?;
                Decoded::Record(Self { height, body: RecordBody::Entries(entries) })
            }
            INNER => {
                let inner = decode_inner(place, &mut bytes)?;
                Decoded::Record(Self { height, body: RecordBody::Inner(inner) })
            }
            _ => Decoded::Delta(Delta { height, inner: decode_delta(place, &mut bytes)? }),
        };
        if !bytes.is_empty() {
            return Err(Corrupt::rule("nothing follows in a record", 0, bytes.len() as u64));
        }
        Ok(decoded)
    }

    /// A record of entries that have just been encoded.
    pub(crate) fn of_entries(height: u16, encoded: EntriesWriter) -> Self {
        let EntriesWriter { leaf, at, bytes, items } = encoded;
        let entries = Entries { leaf, at, bytes: bytes.into(), items: items.into() };
        Self { height, body: RecordBody::Entries(entries) }
    }
}

fn decode_entries(at: Address, leaf: bool, bytes: &mut &[u8]) -> Result<Entries, Corrupt> {
    let count = take_leb(bytes)? as usize;
    let whole = *bytes;
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
        match tag {
            TAG_INLINE => {
                let len = take_leb(bytes)? as usize;
                take_bytes(bytes, len)?;
            }
            TAG_VALUE | TAG_DIR => drop(Link::take(at, bytes)?),
            _ => return Err(Corrupt::rule("tag of an entry", 3, u64::from(tag))),
        }
        last = Some(step);
        items.push(Item { step: start as u32, step_len, tag });
    }
    let used = whole.len() - bytes.len();
    Ok(Entries { leaf, at, bytes: whole[..used].into(), items: items.into() })
}

fn take_mask(bytes: &mut &[u8]) -> Result<u32, Corrupt> {
    let (mask, rest) = bytes.split_first_chunk::<4>().ok_or(Corrupt::short("a mask"))?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*mask))
}

/// No bucket is empty.
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

fn decode_inner(place: Place, bytes: &mut &[u8]) -> Result<Inner, Corrupt> {
    let depth = take_u8(bytes)?;
    let count = take_leb(bytes)?;
    let mask = take_mask(bytes)?;
    check_count(count, mask)?;
    let links = take_links(place.at, mask.count_ones(), bytes)?;
    Ok(Inner { depth, count, mask, links, full: place, changed: 0 })
}

fn decode_delta(place: Place, bytes: &mut &[u8]) -> Result<Inner, Corrupt> {
    let depth = take_u8(bytes)?;
    let count = take_leb(bytes)?;
    let full = Place::take(place.at, bytes)?;
    let mask = take_mask(bytes)?;
    let changed = take_mask(bytes)?;
    check_count(count, mask)?;
    if changed & !mask != 0 || changed == 0 {
        return Err(Corrupt::rule(
            "changed buckets are there",
            u64::from(mask),
            u64::from(changed),
        ));
    }
    let links = take_links(place.at, changed.count_ones(), bytes)?;
    Ok(Inner { depth, count, mask, links, full, changed })
}

/// Encodes the entries of a directory or of a leaf, one after the other.
#[derive(Debug)]
pub(crate) struct EntriesWriter {
    leaf: bool,
    at: Address,
    bytes: Vec<u8>,
    items: Vec<Item>,
}

impl EntriesWriter {
    pub(crate) fn new(leaf: bool, at: Address, count: usize) -> Self {
        Self { leaf, at, bytes: Vec::with_capacity(count * 64), items: Vec::with_capacity(count) }
    }

    pub(crate) fn put(&mut self, step: &[u8], stored: Stored<'_>) {
        let tag = match stored {
            Stored::Inline(_) => TAG_INLINE,
            Stored::Value(_) => TAG_VALUE,
            Stored::Dir(_) => TAG_DIR,
        };
        self.bytes.extend_from_slice(&[tag, step.len() as u8]);
        let item = Item { step: self.bytes.len() as u32, step_len: step.len() as u8, tag };
        self.items.push(item);
        self.bytes.extend_from_slice(step);
        match stored {
            Stored::Inline(value) => {
                put_leb(&mut self.bytes, value.len() as u64);
                self.bytes.extend_from_slice(value);
            }
            Stored::Value(link) | Stored::Dir(link) => link.put(self.at, &mut self.bytes),
        }
    }

    /// The body of the record.
    pub(crate) fn body(&self, height: u16, out: &mut Vec<u8>) {
        out.push(if self.leaf { LEAF } else { FLAT });
        put_leb(out, u64::from(height));
        put_leb(out, self.items.len() as u64);
        out.extend_from_slice(&self.bytes);
    }
}

/// The body of the record of an inode with buckets: a delta where that is less than half.
pub(crate) fn inner_body(at: Address, height: u16, inner: &Inner, out: &mut Vec<u8>) {
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
    use crate::hash::Hash;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    const PLACE: Place = Place { at: Address { chunk: 3, unit: 500 }, bytes: 0 };

    fn link(unit: u32) -> Link {
        let place = Place { at: Address { chunk: 3, unit }, bytes: 77 };
        Link { place, hash: Hash([unit as u8; 32]) }
    }

    /// Records of each kind.
    fn bodies() -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        for leaf in [false, true] {
            let mut out = EntriesWriter::new(leaf, PLACE.at, 3);
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
            (inner.full, inner.changed) = (link(250).place, changed);
            let mut body = Vec::new();
            inner_body(PLACE.at, 7, &inner, &mut body);
            bodies.push(body);
        }
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
            let mut body = bodies().swap_remove(rng.index(4));
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
            let kind = [rng.below(6) as u8];
            assert!(Record::decode(PLACE, &[&kind, random.as_slice()].concat()).is_err());
        });
        assert!(decoded > 100, "{decoded}");
    }

    #[test]
    fn a_delta_needs_a_full_record_that_has_its_buckets() {
        let [_, _, full, delta] = <[Vec<u8>; 4]>::try_from(bodies()).unwrap();
        let decode = |body: &[u8]| Record::decode(PLACE, body).unwrap();
        let Decoded::Record(full) = decode(&full) else { panic!("a full record") };
        let Decoded::Delta(whole) = decode(&delta) else { panic!("a delta") };
        let applied = whole.apply(&full).unwrap();
        let RecordBody::Inner(inner) = &applied.body else { panic!("an inode") };
        assert_eq!(inner.links.len(), 4);
        let Decoded::Delta(twice) = decode(&delta) else { panic!("a delta") };
        assert!(twice.apply(&applied).is_err(), "not based on another delta");
    }
}
