//! The newest entries of a table, in memory.
//!
//! A write buffer is a list of *segments*. The last one is written to as long as nobody else looks at
//! it; a duplicate, a cursor or a flush that takes a reference to it thereby freezes it, and the next
//! update starts a new one. So a duplicate costs a few reference counts whatever the buffer holds, and
//! two tables that evolve apart share what they had in common.
//!
//! A segment keeps keys and values back to back in one arena, a slot for each key with the key's salted
//! hash (which lookups and filters need anyway), and a hash table of slots; the order of keys is worked
//! out when somebody wants to read in order.
//!
//! A blob is a piece of memory of its own, so that references to it can be weak.
//!
//! Invariant: at most one slot for a key in a segment; an entry of a newer segment hides one of an older
//! segment, or combines with it if it is an upsert.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use hashbrown::HashTable;
use terrane_io::hint::prefetch;

use crate::blob::Blob;
use crate::entry::{BlobSpan, ENTRY_OVERHEAD_BYTES, EntryRef, Kind, Order, key_prefix};
use crate::error::Result;
use crate::key_range::KeyRange;
use crate::resolve::Resolve;

/// So many neighbouring segments of like size are folded into one, so that a buffer of *n* entries that is
/// duplicated again and again has O(log n) segments, and each entry is copied O(log n) times.
const SEGMENTS_PER_TIER: usize = 4;

/// How far ahead of an ordered reader keys are fetched; their slots twice as far.
const PREFETCH_ENTRIES: usize = 8;

/// Dead bytes beyond which a segment is rewritten, if they are most of it.
const GARBAGE_BYTES_MIN: usize = 256 << 10;

/// An entry of a segment.
#[derive(Debug, Clone, Copy)]
struct Slot {
    hash: u64,
    key_start: u64,
    /// Where the value begins; behind it stands the index of the blob if there is one.
    value_start: u64,
    value_len: u32,
    key_len: u16,
    kind: Kind,
}

/// An entry on its way into a write buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEntry<'a> {
    pub(crate) key: &'a [u8],
    /// The salted hash of the key.
    pub(crate) hash: u64,
    pub(crate) kind: Kind,
    pub(crate) value: &'a [u8],
    /// Of an insert with blob.
    pub(crate) blob: Option<&'a Arc<[u8]>>,
}

/// Some entries, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    arena: Vec<u8>,
    slots: Vec<Slot>,
    table: HashTable<u32>,
    /// Also those of entries that have been replaced.
    blobs: Vec<Arc<[u8]>>,
    /// Keys, values, blobs and the overhead of each entry.
    weight_bytes: u64,
    /// Bytes of arena and blobs that no slot refers to.
    garbage_bytes: usize,
    /// Slots in key order, made on demand. Invariant: empty while the segment changes.
    order: OnceLock<Box<[u32]>>,
}

impl Segment {
    fn key(&self, slot: &Slot) -> &[u8] {
        &self.arena[slot.key_start as usize..][..usize::from(slot.key_len)]
    }

    fn entry(&self, slot: &Slot) -> EntryRef<'_> {
        let value = &self.arena[slot.value_start as usize..][..slot.value_len as usize];
        let blob = self.blob(slot).map_or(BlobSpan::default(), |(index, blob)| BlobSpan {
            offset: index as u64,
            len: blob.len() as u32,
        });
        EntryRef { key: self.key(slot), kind: slot.kind, value, blob }
    }

    /// The blob of a slot and its index.
    fn blob(&self, slot: &Slot) -> Option<(usize, &Arc<[u8]>)> {
        if slot.kind != Kind::InsertBlob {
            return None;
        }
        let value_end = slot.value_start as usize + slot.value_len as usize;
        let index = u32::from_le_bytes(*self.arena[value_end..].first_chunk()?) as usize;
        Some((index, self.blobs.get(index)?))
    }

    /// The blob of an entry of this segment, if it has one.
    pub(crate) fn blob_of(&self, entry: &EntryRef<'_>) -> Option<Blob> {
        let has_blob = entry.kind == Kind::InsertBlob;
        let blob = has_blob.then(|| self.blobs.get(entry.blob.offset as usize)).flatten();
        blob.map(|blob| Blob::Memory(Arc::clone(blob)))
    }

    /// Whether entries may have blobs.
    pub(crate) fn has_blobs(&self) -> bool {
        !self.blobs.is_empty()
    }

    /// An entry as it is put into another segment.
    fn as_new(&self, slot: &Slot) -> NewEntry<'_> {
        let EntryRef { key, kind, value, .. } = self.entry(slot);
        let blob = self.blob(slot).map(|(_, blob)| blob);
        NewEntry { key, hash: slot.hash, kind, value, blob }
    }

    /// Entries, one for each key.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<EntryRef<'_>> {
        let found = self.table.find(hash, |&at| {
            let slot = &self.slots[at as usize];
            slot.hash == hash && self.key(slot) == key
        })?;
        Some(self.entry(&self.slots[*found as usize]))
    }

    fn append(&mut self, bytes: &[u8]) -> u64 {
        let start = self.arena.len() as u64;
        self.arena.extend_from_slice(bytes);
        start
    }

    /// Appends value and blob; returns where the value begins.
    fn append_value(&mut self, value: &[u8], blob: Option<&Arc<[u8]>>) -> u64 {
        let start = self.append(value);
        if let Some(blob) = blob {
            let index = self.blobs.len() as u32;
            self.append(&index.to_le_bytes());
            self.blobs.push(Arc::clone(blob));
        }
        start
    }

    /// Bytes of value and blob that a slot refers to.
    fn content_bytes(&self, slot: &Slot) -> usize {
        slot.value_len as usize + self.blob(slot).map_or(0, |(_, blob)| blob.len())
    }

    /// Sets the entry of a key, or combines it with the one that is there; a replaced slot is noted in
    /// `undo`.
    fn put(
        &mut self,
        new: NewEntry<'_>,
        resolve: &Resolve,
        undo: &mut Vec<(u32, Slot)>,
    ) -> Result<()> {
        self.order.take();
        let NewEntry { key, hash, mut kind, value, blob } = new;
        let found = self.table.find(hash, |&at| {
            let slot = &self.slots[at as usize];
            slot.hash == hash && self.key(slot) == key
        });
        if let Some(&at) = found {
            let old = self.slots[at as usize];
            let mut combined = Vec::new();
            let mut value = value;
            if kind == Kind::Upsert {
                kind = old.kind.under_upsert();
                if old.kind != Kind::Delete {
                    combined.extend_from_slice(value);
                    resolve.combine(&mut combined, self.entry(&old).value)?;
                    value = &combined;
                }
            }
            let weight = value.len() + blob.map_or(0, |blob| blob.len());
            undo.push((at, old));
            let value_start = self.append_value(value, blob);
            let dead = self.content_bytes(&old);
            self.garbage_bytes += dead;
            self.weight_bytes = self.weight_bytes - dead as u64 + weight as u64;
            let value_len = value.len() as u32;
            self.slots[at as usize] = Slot { value_start, value_len, kind, ..old };
            return Ok(());
        }
        self.add(new);
        Ok(())
    }

    /// Adds the entry of a key that is not there.
    fn add(&mut self, new: NewEntry<'_>) {
        let NewEntry { key, hash, kind, value, blob } = new;
        let key_start = self.append(key);
        let value_start = self.append_value(value, blob);
        let at = self.slots.len() as u32;
        let (key_len, value_len) = (key.len() as u16, value.len() as u32);
        self.slots.push(Slot { hash, key_start, value_start, value_len, key_len, kind });
        let slots = &self.slots;
        self.table.insert_unique(hash, at, |&at| slots[at as usize].hash);
        let content = value.len() + blob.map_or(0, |blob| blob.len());
        self.weight_bytes += key.len() as u64 + content as u64 + ENTRY_OVERHEAD_BYTES;
    }

    /// A segment of these slots only, all of different keys.
    fn with_slots(&self, slots: &[Slot]) -> Self {
        let mut copy = Self::default();
        for slot in slots {
            copy.add(self.as_new(slot));
        }
        copy
    }

    /// Takes back everything since the savepoint.
    fn roll_back(&mut self, savepoint: &Savepoint) {
        self.order.take();
        for at in (savepoint.slots..self.slots.len()).rev() {
            let hash = self.slots[at].hash;
            if let Ok(found) = self.table.find_entry(hash, |&other| other as usize == at) {
                found.remove();
            }
        }
        for &(at, slot) in savepoint.replaced.iter().rev() {
            self.slots[at as usize] = slot;
        }
        self.slots.truncate(savepoint.slots);
        self.arena.truncate(savepoint.arena);
        self.blobs.truncate(savepoint.blobs);
        self.weight_bytes = savepoint.weight_bytes;
        self.garbage_bytes = savepoint.garbage_bytes;
    }

    /// The smallest and the largest key.
    pub(crate) fn key_range(&self) -> Option<(&[u8], &[u8])> {
        let order = self.order();
        let key = |at: &u32| self.key(&self.slots[*at as usize]);
        Some((key(order.first()?), key(order.last()?)))
    }

    /// Slots in key order.
    fn order(&self) -> &[u32] {
        self.order.get_or_init(|| {
            let prefix = |slot: &Slot| key_prefix(self.key(slot));
            let mut order: Vec<(u64, u32)> =
                self.slots.iter().enumerate().map(|(at, slot)| (prefix(slot), at as u32)).collect();
            order.sort_unstable_by(|a, b| {
                a.0.cmp(&b.0).then_with(|| {
                    let (a, b) = (&self.slots[a.1 as usize], &self.slots[b.1 as usize]);
                    self.key(a).cmp(self.key(b))
                })
            });
            order.into_iter().map(|(_, at)| at).collect()
        })
    }
}

/// A position in the part of a segment that is in a range of keys, in key order or against it.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    segment: Arc<Segment>,
    order: Order,
    /// Places in the order of keys that have not been passed; the current one is the first or the last.
    places: Range<usize>,
    /// The slot at the current place; `None` at the end.
    slot: Option<Slot>,
}

impl SegmentReader {
    /// A reader at the first entry in the range, in this order.
    pub(crate) fn new(segment: &Arc<Segment>, range: &KeyRange, order: Order) -> Self {
        let key = |&at: &u32| segment.key(&segment.slots[at as usize]);
        let start = segment.order().partition_point(|at| range.is_below(key(at)));
        let end = segment.order().partition_point(|at| !range.is_above(key(at)));
        let segment = Arc::clone(segment);
        let mut reader = Self { segment, order, places: start..end, slot: None };
        reader.slot = reader.slot_ahead(0);
        reader
    }

    /// The slot that is `by` entries ahead of the current one.
    fn slot_ahead(&self, by: usize) -> Option<Slot> {
        let at = self.number_ahead(by)?;
        self.segment.slots.get(at).copied()
    }

    /// The number of that slot.
    fn number_ahead(&self, by: usize) -> Option<usize> {
        if by >= self.places.len() {
            return None;
        }
        let place = match self.order {
            Order::Ascending => self.places.start + by,
            Order::Descending => self.places.end - 1 - by,
        };
        self.segment.order().get(place).map(|&at| at as usize)
    }

    /// The current key; `None` at the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.slot.as_ref().map(|slot| self.segment.key(slot))
    }

    /// The current entry; `None` at the end.
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        self.slot.as_ref().map(|slot| self.segment.entry(slot))
    }

    /// The kind of the current entry; `None` at the end.
    pub(crate) fn kind(&self) -> Option<Kind> {
        self.slot.map(|slot| slot.kind)
    }

    /// The blob of the current entry, if it has one.
    pub(crate) fn blob(&self) -> Option<Blob> {
        let (_, blob) = self.segment.blob(self.slot.as_ref()?)?;
        Some(Blob::Memory(Arc::clone(blob)))
    }

    /// The salted hash of the current key.
    pub(crate) fn hash(&self) -> Option<u64> {
        self.slot.map(|slot| slot.hash)
    }

    /// Goes to the next entry.
    pub(crate) fn advance(&mut self) {
        match self.order {
            _ if self.places.is_empty() => return,
            Order::Ascending => self.places.start += 1,
            Order::Descending => self.places.end -= 1,
        }
        self.slot = self.slot_ahead(0);
        // Entries stand in order of arrival, so each step in key order would wait for memory twice.
        let slots = &self.segment.slots;
        if let Some(slot) = self.number_ahead(2 * PREFETCH_ENTRIES).and_then(|at| slots.get(at)) {
            prefetch(slot);
        }
        if let Some(slot) = self.number_ahead(PREFETCH_ENTRIES).and_then(|at| slots.get(at))
            && let Some(key) = self.segment.arena.get(slot.key_start as usize)
        {
            prefetch(key);
        }
    }
}

/// What it takes to undo the updates of one batch, as long as they are all in one segment.
#[derive(Debug, Default)]
struct Savepoint {
    arena: usize,
    blobs: usize,
    slots: usize,
    weight_bytes: u64,
    garbage_bytes: usize,
    replaced: Vec<(u32, Slot)>,
}

/// The write buffer of a table.
#[derive(Debug, Default, Clone)]
pub(crate) struct WriteBuffer {
    /// Oldest first. Only the last one may change, and only while nobody else refers to it.
    segments: Vec<Arc<Segment>>,
}

/// How to go back to the buffer as it was when the batch began.
#[derive(Debug)]
pub(crate) struct Undo {
    /// Segments at the beginning of the batch that were complete then.
    kept: Vec<Arc<Segment>>,
    /// What the batch has changed in the segment that it writes to.
    savepoint: Savepoint,
}

impl WriteBuffer {
    /// The segments, oldest first.
    pub(crate) fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// Lets go of segments, of a buffer that is only read.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&Segment) -> bool) {
        self.segments.retain(|segment| is_wanted(segment));
    }

    /// Keys, values and overhead; a key in several segments counts in each.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.weight_bytes).sum()
    }

    /// Entries; a key in several segments counts in each.
    pub(crate) fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        let segment_bytes = |segment: &Arc<Segment>| {
            segment.arena.capacity()
                + segment.blobs.iter().map(|blob| blob.len()).sum::<usize>()
                + segment.blobs.capacity() * size_of::<Arc<[u8]>>()
                + segment.slots.capacity() * size_of::<Slot>()
                + segment.table.allocation_size()
                + segment.order.get().map_or(0, |order| order.len() * size_of::<u32>())
        };
        self.segments.iter().map(segment_bytes).sum()
    }

    /// The entries of a key, newest first.
    pub(crate) fn entries<'a>(
        &'a self,
        hash: u64,
        key: &'a [u8],
    ) -> impl Iterator<Item = (&'a Segment, EntryRef<'a>)> {
        let segments = self.segments.iter().rev();
        segments.filter_map(move |segment| Some((segment.as_ref(), segment.get(hash, key)?)))
    }

    /// Whether entries may have blobs.
    pub(crate) fn has_blobs(&self) -> bool {
        self.segments.iter().any(|segment| segment.has_blobs())
    }

    /// Makes the last segment writable, adding one if the last is shared.
    fn open_segment(&mut self, resolve: &Resolve) -> Result<()> {
        let writable =
            self.segments.last_mut().is_some_and(|segment| Arc::get_mut(segment).is_some());
        if !writable {
            self.fold(resolve)?;
            self.segments.push(Arc::new(Segment::default()));
        }
        let last = self.segments.last_mut().and_then(Arc::get_mut).expect("made writable above");
        if last.garbage_bytes > GARBAGE_BYTES_MIN && last.garbage_bytes as u64 > last.weight_bytes {
            *last = last.with_slots(&last.slots);
        }
        Ok(())
    }

    /// Folds the newest segments, as long as enough of them are no larger than the newest one's tier.
    fn fold(&mut self, resolve: &Resolve) -> Result<()> {
        let tier = |segment: &Arc<Segment>| segment.len().max(1).ilog(SEGMENTS_PER_TIER);
        while let Some(newest) = self.segments.last().map(tier) {
            let alike =
                self.segments.iter().rev().take_while(|older| tier(older) <= newest).count();
            if alike < SEGMENTS_PER_TIER {
                break;
            }
            let mut folded = Segment::default();
            let first = self.segments.len() - alike;
            for segment in &self.segments[first..] {
                for slot in &segment.slots {
                    folded.put(segment.as_new(slot), resolve, &mut Vec::new())?;
                }
            }
            self.segments.truncate(first);
            self.segments.push(Arc::new(folded));
        }
        Ok(())
    }

    /// Begins a batch: what is put until the next call can be undone together.
    ///
    /// # Errors
    /// [`Error::ValueTooLarge`](crate::Error::ValueTooLarge) if two upserts make too large a value.
    pub(crate) fn begin(&mut self, resolve: &Resolve) -> Result<Undo> {
        self.open_segment(resolve)?;
        let (last, kept) = self.segments.split_last().expect("a segment was opened");
        Ok(Undo {
            kept: kept.to_vec(),
            savepoint: Savepoint {
                arena: last.arena.len(),
                blobs: last.blobs.len(),
                slots: last.slots.len(),
                weight_bytes: last.weight_bytes,
                garbage_bytes: last.garbage_bytes,
                replaced: Vec::new(),
            },
        })
    }

    /// Sets the entry of a key. The batch must have been begun; `undo` is what that gave, unless the buffer
    /// was replaced by an empty one since.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub(crate) fn put(
        &mut self,
        entry: NewEntry<'_>,
        resolve: &Resolve,
        undo: Option<&mut Undo>,
    ) -> Result<()> {
        if self.segments.is_empty() {
            self.segments.push(Arc::new(Segment::default()));
        }
        let last = self.segments.last_mut().and_then(Arc::get_mut);
        let last = last.expect("`begin` made the last segment writable");
        match undo {
            Some(undo) => last.put(entry, resolve, &mut undo.savepoint.replaced),
            None => last.put(entry, resolve, &mut Vec::new()),
        }
    }
}

impl Undo {
    /// Takes the batch back in the buffer that it was put into.
    pub(crate) fn roll_back(self, buffer: &mut WriteBuffer) {
        match buffer.segments.last_mut().and_then(Arc::get_mut) {
            Some(last) => last.roll_back(&self.savepoint),
            // Being flushed, hence shared: what the batch found is copied out of it.
            None => *buffer = self.rebuild(buffer),
        }
        if buffer.segments.last().is_some_and(|last| last.len() == 0) {
            buffer.segments.pop();
        }
    }

    fn rebuild(self, buffer: &WriteBuffer) -> WriteBuffer {
        let Self { kept: mut segments, savepoint } = self;
        if let Some(last) = buffer.segments.last() {
            let mut slots = last.slots[..savepoint.slots].to_vec();
            for &(at, slot) in savepoint.replaced.iter().rev() {
                if let Some(found) = slots.get_mut(at as usize) {
                    *found = slot;
                }
            }
            segments.push(Arc::new(last.with_slots(&slots)));
        }
        WriteBuffer { segments }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::key_hash;

    fn put_with(
        buffer: &mut WriteBuffer,
        (key, kind, value): (&[u8], Kind, &[u8]),
        blob: Option<&Arc<[u8]>>,
        undo: &mut Undo,
    ) {
        let resolve = Resolve::concatenate();
        let new = NewEntry { key, hash: key_hash(1, key), kind, value, blob };
        buffer.put(new, &resolve, Some(undo)).unwrap();
    }

    fn begin(buffer: &mut WriteBuffer) -> Undo {
        buffer.begin(&Resolve::concatenate()).unwrap()
    }

    fn put(buffer: &mut WriteBuffer, number: u64) {
        let key = number.to_le_bytes();
        let mut undo = begin(buffer);
        put_with(buffer, (&key, Kind::Insert, &key), None, &mut undo);
    }

    /// The newest entry.
    fn newest(buffer: &WriteBuffer, key: &[u8]) -> Option<(Kind, Vec<u8>)> {
        let mut entries = buffer.entries(key_hash(1, key), key);
        entries.next().map(|(_, entry)| (entry.kind, entry.value.to_vec()))
    }

    /// A duplicate after every update, all kept: few segments in each, and little copying in all.
    #[test]
    fn a_buffer_duplicated_after_every_update_keeps_few_segments() {
        let mut buffer = WriteBuffer::default();
        let mut versions = Vec::new();
        for number in 0..4096 {
            put(&mut buffer, number);
            versions.push(buffer.clone());
        }
        let most = versions.iter().map(|version| version.segments().len()).max();
        assert!(most <= Some(3 * 6 + 1), "{most:?} segments");
        let mut distinct: Vec<_> = versions
            .iter()
            .flat_map(WriteBuffer::segments)
            .map(|s| (Arc::as_ptr(s), s.len()))
            .collect();
        distinct.sort_unstable();
        distinct.dedup();
        let copies: usize = distinct.iter().map(|(_, len)| len).sum();
        assert!(copies <= 4096 * 7, "{copies} entries for 4096 updates");
        for (number, version) in versions.iter().enumerate() {
            let has = |n: usize| {
                let key = (n as u64).to_le_bytes();
                newest(version, &key).is_some()
            };
            assert!(has(number) && has(0) && !has(number + 1), "version {number}");
        }
    }

    #[test]
    fn a_batch_that_is_rolled_back_leaves_nothing() {
        let mut buffer = WriteBuffer::default();
        (0..100).for_each(|number| put(&mut buffer, number));
        let before = (buffer.len(), buffer.weight_bytes());
        let mut undo = begin(&mut buffer);
        let blob: Arc<[u8]> = Arc::from([7; 1000]);
        for number in 50..150_u64 {
            let key = number.to_le_bytes();
            match number % 3 {
                0 => put_with(&mut buffer, (&key, Kind::Delete, &[]), None, &mut undo),
                1 => put_with(&mut buffer, (&key, Kind::Upsert, b"u"), None, &mut undo),
                _ => put_with(&mut buffer, (&key, Kind::InsertBlob, b"v"), Some(&blob), &mut undo),
            }
        }
        assert_eq!(buffer.len(), 150);
        assert!(buffer.weight_bytes() > before.1 + 30_000, "blobs count");
        assert_eq!(Arc::strong_count(&blob), 35);
        undo.roll_back(&mut buffer);
        assert_eq!((buffer.len(), buffer.weight_bytes()), before);
        assert_eq!(Arc::strong_count(&blob), 1);
        for number in 0..150_u64 {
            let key = number.to_le_bytes();
            let expected = (number < 100).then_some((Kind::Insert, key.to_vec()));
            assert_eq!(newest(&buffer, &key), expected, "key {number}");
        }
    }

    #[test]
    fn an_upsert_combines_with_what_the_buffer_has() {
        let mut buffer = WriteBuffer::default();
        let blob: Arc<[u8]> = Arc::from([7; 10]);
        for (key, kind, expected) in [
            (b"i".as_slice(), Kind::Insert, (Kind::Insert, b"old new".to_vec())),
            (b"b", Kind::InsertBlob, (Kind::Insert, b"old new".to_vec())),
            (b"d", Kind::Delete, (Kind::Insert, b" new".to_vec())),
            (b"u", Kind::Upsert, (Kind::Upsert, b"old new".to_vec())),
        ] {
            let mut undo = begin(&mut buffer);
            let has_blob = kind == Kind::InsertBlob;
            let value: &[u8] = if kind == Kind::Delete { b"" } else { b"old" };
            put_with(&mut buffer, (key, kind, value), has_blob.then_some(&blob), &mut undo);
            put_with(&mut buffer, (key, Kind::Upsert, b" new"), None, &mut undo);
            assert_eq!(newest(&buffer, key), Some(expected), "{kind:?}");
        }
    }
}
