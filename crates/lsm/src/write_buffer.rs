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
//! Invariant: at most one slot for a key in a segment; a newer segment hides an older one.

use std::sync::{Arc, OnceLock};

use hashbrown::HashTable;
use terrane_io::hint::prefetch;

use crate::entry::{EntryRef, Kind, key_prefix};

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
    value_start: u64,
    value_len: u32,
    key_len: u16,
    kind: Kind,
}

/// Some entries, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    arena: Vec<u8>,
    slots: Vec<Slot>,
    table: HashTable<u32>,
    /// Keys, values and the overhead of each entry.
    weight_bytes: u64,
    /// Bytes of the arena that no slot refers to.
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
        EntryRef { key: self.key(slot), kind: slot.kind, value }
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

    /// Sets the entry of a key; a replaced slot is noted in `undo`.
    fn put(&mut self, hash: u64, entry: EntryRef<'_>, undo: &mut Vec<(u32, Slot)>) {
        self.order.take();
        let found = self.table.find(hash, |&at| {
            let slot = &self.slots[at as usize];
            slot.hash == hash && self.key(slot) == entry.key
        });
        let value_len = entry.value.len() as u32;
        if let Some(&at) = found {
            let old = self.slots[at as usize];
            undo.push((at, old));
            let value_start = self.append(entry.value);
            self.garbage_bytes += old.value_len as usize;
            self.weight_bytes -= u64::from(old.value_len);
            self.weight_bytes += u64::from(value_len);
            self.slots[at as usize] = Slot { value_start, value_len, kind: entry.kind, ..old };
            return;
        }
        let key_start = self.append(entry.key);
        let value_start = self.append(entry.value);
        let at = self.slots.len() as u32;
        let key_len = entry.key.len() as u16;
        self.slots.push(Slot {
            hash,
            key_start,
            value_start,
            value_len,
            key_len,
            kind: entry.kind,
        });
        let slots = &self.slots;
        self.table.insert_unique(hash, at, |&at| slots[at as usize].hash);
        self.weight_bytes += entry.weight_bytes();
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
        self.weight_bytes = savepoint.weight_bytes;
        self.garbage_bytes = savepoint.garbage_bytes;
    }

    fn slot_in_order(&self, at: usize) -> Option<Slot> {
        self.order().get(at).map(|&slot| self.slots[slot as usize])
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

/// A position in a segment, in key order.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    segment: Arc<Segment>,
    at: usize,
    /// The slot at this position; `None` at the end.
    slot: Option<Slot>,
}

impl SegmentReader {
    /// A reader at the first entry.
    pub(crate) fn new(segment: Arc<Segment>) -> Self {
        Self { slot: segment.slot_in_order(0), segment, at: 0 }
    }

    /// A reader at the first entry whose key is at least `key`.
    pub(crate) fn at(segment: Arc<Segment>, key: &[u8]) -> Self {
        let below = |&at: &u32| segment.key(&segment.slots[at as usize]) < key;
        let at = segment.order().partition_point(below);
        Self { slot: segment.slot_in_order(at), segment, at }
    }

    /// The current key; `None` at the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.slot.as_ref().map(|slot| self.segment.key(slot))
    }

    /// The current entry; `None` at the end.
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        self.slot.as_ref().map(|slot| self.segment.entry(slot))
    }

    /// The salted hash of the current key.
    pub(crate) fn hash(&self) -> Option<u64> {
        self.slot.map(|slot| slot.hash)
    }

    /// Goes to the next entry.
    pub(crate) fn advance(&mut self) {
        self.at += 1;
        self.slot = self.segment.slot_in_order(self.at);
        // Entries stand in order of arrival, so each step in key order would wait for memory twice.
        let segment = &self.segment;
        let ahead = |by: usize| segment.order().get(self.at + by).map(|&at| at as usize);
        if let Some(slot) = ahead(2 * PREFETCH_ENTRIES).and_then(|at| segment.slots.get(at)) {
            prefetch(slot);
        }
        if let Some(slot) = ahead(PREFETCH_ENTRIES).and_then(|at| segment.slots.get(at))
            && let Some(key) = segment.arena.get(slot.key_start as usize)
        {
            prefetch(key);
        }
    }
}

/// What it takes to undo the updates of one batch, as long as they are all in one segment.
#[derive(Debug, Default)]
struct Savepoint {
    arena: usize,
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

    /// Keys, values and overhead; a key in several segments counts in each.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.weight_bytes).sum()
    }

    /// Bytes of values that were overwritten and are still held.
    pub(crate) fn garbage_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.garbage_bytes as u64).sum()
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
                + segment.slots.capacity() * size_of::<Slot>()
                + segment.table.allocation_size()
                + segment.order.get().map_or(0, |order| order.len() * size_of::<u32>())
        };
        self.segments.iter().map(segment_bytes).sum()
    }

    /// The newest entry of a key.
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<EntryRef<'_>> {
        self.segments.iter().rev().find_map(|segment| segment.get(hash, key))
    }

    /// Makes the last segment writable, adding one if the last is shared.
    fn open_segment(&mut self) {
        let writable =
            self.segments.last_mut().is_some_and(|segment| Arc::get_mut(segment).is_some());
        if !writable {
            self.fold();
            self.segments.push(Arc::new(Segment::default()));
        }
        let last = self.segments.last_mut().and_then(Arc::get_mut).expect("made writable above");
        if last.garbage_bytes > GARBAGE_BYTES_MIN && last.garbage_bytes > last.arena.len() / 2 {
            let live = last.slots.iter().map(|slot| (slot.hash, last.entry(slot)));
            let mut rewritten = Segment::default();
            live.for_each(|(hash, entry)| rewritten.put(hash, entry, &mut Vec::new()));
            *last = rewritten;
        }
    }

    /// Folds the newest segments, as long as enough of them are no larger than the newest one's tier.
    fn fold(&mut self) {
        let tier = |segment: &Arc<Segment>| segment.len().max(1).ilog(SEGMENTS_PER_TIER);
        while let Some(newest) = self.segments.last().map(tier) {
            let alike =
                self.segments.iter().rev().take_while(|older| tier(older) <= newest).count();
            if alike < SEGMENTS_PER_TIER {
                break;
            }
            let mut folded = Segment::default();
            for segment in self.segments.split_off(self.segments.len() - alike) {
                for slot in &segment.slots {
                    folded.put(slot.hash, segment.entry(slot), &mut Vec::new());
                }
            }
            self.segments.push(Arc::new(folded));
        }
    }

    /// Begins a batch: what is put until the next call can be undone together.
    pub(crate) fn begin(&mut self) -> Undo {
        self.open_segment();
        let (last, kept) = self.segments.split_last().expect("a segment was opened");
        Undo {
            kept: kept.to_vec(),
            savepoint: Savepoint {
                arena: last.arena.len(),
                slots: last.slots.len(),
                weight_bytes: last.weight_bytes,
                garbage_bytes: last.garbage_bytes,
                replaced: Vec::new(),
            },
        }
    }

    /// Sets the entry of a key. The batch must have been begun; `undo` is what that gave, unless the buffer
    /// was replaced by an empty one since.
    pub(crate) fn put(&mut self, hash: u64, entry: EntryRef<'_>, undo: Option<&mut Undo>) {
        if self.segments.is_empty() {
            self.segments.push(Arc::new(Segment::default()));
        }
        let last = self.segments.last_mut().and_then(Arc::get_mut);
        let last = last.expect("`begin` made the last segment writable");
        match undo {
            Some(undo) => last.put(hash, entry, &mut undo.savepoint.replaced),
            None => last.put(hash, entry, &mut Vec::new()),
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
            let mut before = Segment::default();
            for slot in &slots {
                before.put(slot.hash, last.entry(slot), &mut Vec::new());
            }
            segments.push(Arc::new(before));
        }
        WriteBuffer { segments }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::key_hash;

    fn put(buffer: &mut WriteBuffer, number: u64) {
        let key = number.to_le_bytes();
        let entry = EntryRef { key: &key, kind: Kind::Insert, value: &key };
        let mut undo = buffer.begin();
        buffer.put(key_hash(1, &key), entry, Some(&mut undo));
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
                version.get(key_hash(1, &key), &key).is_some()
            };
            assert!(has(number) && has(0) && !has(number + 1), "version {number}");
        }
    }

    /// What a memory budget counts with: memory is at most twice the weight and what was overwritten, whatever
    /// vectors and hash tables have grown to just now.
    #[test]
    fn a_buffer_takes_at_most_twice_its_weight() {
        for (key_len, value_len) in [(8, 0), (8, 8), (34, 60), (1, 1), (100, 1_000), (8, 9_000)] {
            let mut buffer = WriteBuffer::default();
            for number in 0..3_000_u64 {
                let mut key = vec![0; key_len];
                // Every third update overwrites.
                let number = if number % 3 == 2 { number / 2 } else { number };
                key.iter_mut().zip(number.to_le_bytes()).for_each(|(to, from)| *to = from);
                let value = vec![7; value_len];
                let entry = EntryRef { key: &key, kind: Kind::Insert, value: &value };
                let mut undo = buffer.begin();
                buffer.put(key_hash(1, &key), entry, Some(&mut undo));
                let held = buffer.memory_bytes() as u64;
                let bound = 2 * (buffer.weight_bytes() + buffer.garbage_bytes()) + 512;
                assert!(held <= bound, "{held} bytes, {bound} allowed after {number}");
            }
            // As a flush does, which puts the entries in order.
            assert!(buffer.segments()[0].key_range().is_some());
            let held = buffer.memory_bytes() as u64;
            let bound = 2 * (buffer.weight_bytes() + buffer.garbage_bytes()) + 512;
            assert!(held <= bound, "{held} bytes in order, {bound} allowed");
        }
    }

    #[test]
    fn a_batch_that_is_rolled_back_leaves_nothing() {
        let mut buffer = WriteBuffer::default();
        (0..100).for_each(|number| put(&mut buffer, number));
        let before = (buffer.len(), buffer.weight_bytes());
        let mut undo = buffer.begin();
        for number in 50..150_u64 {
            let key = number.to_le_bytes();
            let entry = EntryRef { key: &key, kind: Kind::Delete, value: &[] };
            buffer.put(key_hash(1, &key), entry, Some(&mut undo));
        }
        assert_eq!(buffer.len(), 150);
        undo.roll_back(&mut buffer);
        assert_eq!((buffer.len(), buffer.weight_bytes()), before);
        for number in 0..150_u64 {
            let key = number.to_le_bytes();
            let found = buffer.get(key_hash(1, &key), &key).map(|entry| entry.kind);
            assert_eq!(found, (number < 100).then_some(Kind::Insert), "key {number}");
        }
    }
}
