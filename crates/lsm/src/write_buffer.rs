//! The newest entries of a table, in memory.
//!
//! A write buffer is a list of *segments*. The last one is written to as long as nobody else looks at
//! it; a duplicate, a cursor or a flush that takes a reference to it thereby freezes it, and the next
//! update starts a new one. So a duplicate costs a few reference counts whatever the buffer holds, and
//! two tables that evolve apart share what they had in common.
//!
//! A *chunk* keeps keys and values back to back in one arena, a slot for each key with the key's salted
//! hash (which lookups and filters need anyway), and a hash table of slots. A segment is a chunk, or it is
//! *folded*: several chunks, shared with the segments that they were before, under one hash table. So
//! whoever keeps all versions of a buffer holds each entry once, and five to ten bytes for it in each of
//! O(log n) hash tables. The order of keys is worked out when somebody wants to read in order.
//!
//! All versions of a buffer share a [`Sketch`] of the keys in their segments but the last, so that a lookup
//! of a key that none of them has looks into the last one and nowhere else.
//!
//! A blob is a piece of memory of its own, so that references to it can be weak.
//!
//! Invariant: at most one slot for a key in a chunk; in a folded segment an entry of a newer chunk hides one
//! of an older chunk; an entry of a newer segment hides one of an older segment, or combines with it if it is
//! an upsert.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use hashbrown::HashTable;
use terrane_io::hint::prefetch;

use crate::blob::Blob;
use crate::entry::{BlobSpan, ENTRY_OVERHEAD_BYTES, EntryRef, Kind, Order, key_prefix};
use crate::error::Result;
use crate::key_range::KeyRange;
use crate::resolve::Resolve;
use crate::sketch::Sketch;

/// So many neighbouring segments of like size are folded into one, so that a buffer of *n* entries that is
/// duplicated again and again has O(log n) segments, and each entry is in O(log n) hash tables.
const SEGMENTS_PER_TIER: usize = 8;

/// Smaller chunks than this, on average, are copied into one when they are folded, so that many entries
/// share what a chunk takes beside them.
const CHUNK_ENTRIES_MIN: usize = 64;

/// How far ahead of an ordered reader keys are fetched; their slots twice as far.
const PREFETCH_ENTRIES: usize = 8;

/// What a blob in memory takes beside its bytes, and half of what a vector of references may have in reserve.
const BLOB_OVERHEAD_BYTES: u64 = 32;

/// Dead bytes beyond which a chunk is rewritten, if they are most of it.
const GARBAGE_BYTES_MIN: usize = 256 << 10;

/// What a batch is going to take, about.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Room {
    pub(crate) entries: usize,
    /// Of keys and values.
    pub(crate) bytes: usize,
}

impl Room {
    /// As much of it as has this share of its size.
    pub(crate) fn part(self, share: f64) -> Self {
        let part = |whole: usize| (whole as f64 * share) as usize;
        Self { entries: part(self.entries), bytes: part(self.bytes) }
    }

    /// What that much counts for in a buffer bounded in bytes, but for blobs.
    pub(crate) fn weight_bytes(self) -> u64 {
        self.bytes as u64 + self.entries as u64 * ENTRY_OVERHEAD_BYTES
    }
}

/// Room that a chunk has from the start, at the most; beyond it, it grows as it needs.
const ROOM_MAX: Room = Room { entries: 4096, bytes: 1 << 20 };

/// An entry of a chunk.
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
pub(crate) struct Chunk {
    arena: Vec<u8>,
    slots: Vec<Slot>,
    table: HashTable<u32>,
    /// Also those of entries that have been replaced.
    blobs: Vec<Arc<[u8]>>,
    /// Keys, values, blobs and the overhead of each entry.
    weight_bytes: u64,
    /// Of all blobs.
    blob_bytes: usize,
    /// Bytes of arena and blobs that no slot refers to.
    garbage_bytes: usize,
    /// Slots in key order, made on demand. Invariant: empty while the chunk changes.
    order: OnceLock<Box<[u32]>>,
}

/// Slots by their keys.
fn in_key_order<'a>(slots: impl Iterator<Item = u32>, key: impl Fn(u32) -> &'a [u8]) -> Box<[u32]> {
    let mut order: Vec<(u64, u32)> = slots.map(|at| (key_prefix(key(at)), at)).collect();
    order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| key(a.1).cmp(key(b.1))));
    order.into_iter().map(|(_, at)| at).collect()
}

impl Chunk {
    fn with_room(room: Room) -> Self {
        let entries = room.entries.min(ROOM_MAX.entries);
        Self {
            arena: Vec::with_capacity(room.bytes.min(ROOM_MAX.bytes)),
            slots: Vec::with_capacity(entries),
            table: HashTable::with_capacity(entries),
            ..Self::default()
        }
    }

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

    /// The blob of an entry of this chunk, if it has one.
    pub(crate) fn blob_of(&self, entry: &EntryRef<'_>) -> Option<Blob> {
        let has_blob = entry.kind == Kind::InsertBlob;
        let blob = has_blob.then(|| self.blobs.get(entry.blob.offset as usize)).flatten();
        blob.map(|blob| Blob::Memory(Arc::clone(blob)))
    }

    /// An entry as it is put into another chunk.
    fn as_new(&self, slot: &Slot) -> NewEntry<'_> {
        let EntryRef { key, kind, value, .. } = self.entry(slot);
        let blob = self.blob(slot).map(|(_, blob)| blob);
        NewEntry { key, hash: slot.hash, kind, value, blob }
    }

    fn get(&self, hash: u64, key: &[u8]) -> Option<EntryRef<'_>> {
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
            self.blob_bytes += blob.len();
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

    /// What an entry counts for in a buffer bounded in bytes.
    fn entry_weight_bytes(&self, slot: &Slot) -> u64 {
        u64::from(slot.key_len) + self.content_bytes(slot) as u64 + ENTRY_OVERHEAD_BYTES
    }

    /// Puts all entries of a newer chunk.
    fn put_all(&mut self, newer: &Self, resolve: &Resolve) -> Result<()> {
        let mut slots = newer.slots.iter();
        slots.try_for_each(|slot| self.put(newer.as_new(slot), resolve, &mut Vec::new()))
    }

    /// A chunk of these slots only, all of different keys.
    fn with_slots(&self, slots: &[Slot]) -> Self {
        let mut copy = Self::default();
        for slot in slots {
            copy.add(self.as_new(slot));
        }
        copy
    }

    /// Takes a batch back.
    fn roll_back(&mut self, undo: &Undo) {
        self.order.take();
        for at in (undo.slots..self.slots.len()).rev() {
            let hash = self.slots[at].hash;
            if let Ok(found) = self.table.find_entry(hash, |&other| other as usize == at) {
                found.remove();
            }
        }
        for &(at, slot) in undo.replaced.iter().rev() {
            self.slots[at as usize] = slot;
        }
        self.slots.truncate(undo.slots);
        self.arena.truncate(undo.arena);
        self.blob_bytes -= self.blobs.drain(undo.blobs..).map(|blob| blob.len()).sum::<usize>();
        self.weight_bytes = undo.weight_bytes;
        self.garbage_bytes = undo.garbage_bytes;
    }

    /// A copy without what a batch has changed.
    fn before(&self, undo: &Undo) -> Self {
        let mut slots = self.slots[..undo.slots].to_vec();
        for &(at, slot) in undo.replaced.iter().rev() {
            if let Some(found) = slots.get_mut(at as usize) {
                *found = slot;
            }
        }
        self.with_slots(&slots)
    }

    /// Slots in key order.
    fn order(&self) -> &[u32] {
        self.order.get_or_init(|| {
            in_key_order(0..self.slots.len() as u32, |at| self.key(&self.slots[at as usize]))
        })
    }

    /// Half of the memory held, at least, also when vectors and hash table have just grown.
    fn charged_bytes(&self) -> u64 {
        let blobs = self.blobs.len() as u64 * BLOB_OVERHEAD_BYTES;
        let content = self.weight_bytes + self.garbage_bytes as u64 + blobs;
        content.max(self.memory_bytes() as u64 / 2)
    }

    fn memory_bytes(&self) -> usize {
        self.arena.capacity()
            + self.blob_bytes
            + self.blobs.capacity() * size_of::<Arc<[u8]>>()
            + self.slots.capacity() * size_of::<Slot>()
            + self.table.allocation_size()
            + self.order.get().map_or(0, |order| order.len() * size_of::<u32>())
    }
}

/// Several chunks under one hash table.
#[derive(Debug)]
pub(crate) struct Folded {
    /// Oldest first.
    chunks: Vec<Arc<Chunk>>,
    /// The number of each chunk's first slot; slots are numbered through.
    starts: Vec<u32>,
    /// The newest slot of each key.
    table: HashTable<u32>,
    /// Keys, values, blobs and overhead of the newest slots.
    weight_bytes: u64,
    /// Newest slots in key order, made on demand.
    order: OnceLock<Box<[u32]>>,
}

impl Folded {
    /// Folds chunks, oldest first; `None` if an upsert is to be combined with an older entry.
    fn new(chunks: Vec<Arc<Chunk>>) -> Option<Self> {
        let mut starts = Vec::with_capacity(chunks.len());
        let mut count = 0;
        for chunk in &chunks {
            starts.push(count as u32);
            count += chunk.slots.len();
        }
        let order = OnceLock::new();
        let mut folded = Self { chunks, starts, table: HashTable::new(), weight_bytes: 0, order };
        let mut table = HashTable::with_capacity(count);
        for (&start, chunk) in folded.starts.iter().zip(&folded.chunks) {
            for (at, slot) in (start..).zip(&chunk.slots) {
                let key = chunk.key(slot);
                let older = table.find_mut(slot.hash, |&older| {
                    let (chunk, older) = folded.slot(older);
                    older.hash == slot.hash && folded.chunks[chunk].key(older) == key
                });
                folded.weight_bytes += chunk.entry_weight_bytes(slot);
                if let Some(older) = older {
                    if slot.kind == Kind::Upsert {
                        return None;
                    }
                    let (chunk, slot) = folded.slot(*older);
                    folded.weight_bytes -= folded.chunks[chunk].entry_weight_bytes(slot);
                    *older = at;
                } else {
                    table.insert_unique(slot.hash, at, |&at| folded.slot(at).1.hash);
                }
            }
        }
        folded.table = table;
        Some(folded)
    }

    /// The slot of that number, with the index of its chunk.
    fn slot(&self, at: u32) -> (usize, &Slot) {
        let chunk = self.starts.partition_point(|&start| start <= at) - 1;
        (chunk, &self.chunks[chunk].slots[(at - self.starts[chunk]) as usize])
    }

    fn key(&self, at: u32) -> &[u8] {
        let (chunk, slot) = self.slot(at);
        self.chunks[chunk].key(slot)
    }

    fn get(&self, hash: u64, key: &[u8]) -> Option<(&Chunk, EntryRef<'_>)> {
        let found = self.table.find(hash, |&at| {
            let (chunk, slot) = self.slot(at);
            slot.hash == hash && self.chunks[chunk].key(slot) == key
        })?;
        let (chunk, slot) = self.slot(*found);
        let chunk = &self.chunks[chunk];
        Some((chunk, chunk.entry(slot)))
    }

    fn order(&self) -> &[u32] {
        self.order.get_or_init(|| in_key_order(self.table.iter().copied(), |at| self.key(at)))
    }

    /// Memory beside that of the chunks.
    fn memory_bytes(&self) -> usize {
        self.starts.len() * (size_of::<u32>() + size_of::<Arc<Chunk>>())
            + self.table.allocation_size()
            + self.order.get().map_or(0, |order| order.len() * size_of::<u32>())
    }
}

/// Some entries, one for each key. Clones are the same segment.
#[derive(Debug, Clone)]
pub(crate) enum Segment {
    Chunk(Arc<Chunk>),
    Folded(Arc<Folded>),
}

impl Segment {
    /// Makes one segment of several, oldest first.
    fn fold(segments: &[Self], resolve: &Resolve) -> Result<Self> {
        let chunks: Vec<_> = segments.iter().flat_map(Self::chunks).cloned().collect();
        let count: usize = chunks.iter().map(|chunk| chunk.slots.len()).sum();
        let weight_bytes: u64 = chunks.iter().map(|chunk| chunk.weight_bytes).sum();
        if count >= chunks.len() * CHUNK_ENTRIES_MIN
            && let Some(folded) = Folded::new(chunks)
            // Where most is hidden nothing is gained by sharing it.
            && folded.weight_bytes >= weight_bytes / 2
        {
            return Ok(Self::Folded(Arc::new(folded)));
        }
        let mut copied = Chunk::default();
        for segment in segments {
            match segment {
                Self::Chunk(chunk) => copied.put_all(chunk, resolve)?,
                Self::Folded(folded) => {
                    for &at in &folded.table {
                        let (chunk, slot) = folded.slot(at);
                        let entry = folded.chunks[chunk].as_new(slot);
                        copied.put(entry, resolve, &mut Vec::new())?;
                    }
                }
            }
        }
        Ok(Self::Chunk(Arc::new(copied)))
    }

    fn chunks(&self) -> &[Arc<Chunk>] {
        match self {
            Self::Chunk(chunk) => std::slice::from_ref(chunk),
            Self::Folded(folded) => &folded.chunks,
        }
    }

    /// The chunk, if it is one that nobody shares.
    fn writable(&mut self) -> Option<&mut Chunk> {
        match self {
            Self::Chunk(chunk) => Arc::get_mut(chunk),
            Self::Folded(_) => None,
        }
    }

    /// Entries, one for each key.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Chunk(chunk) => chunk.slots.len(),
            Self::Folded(folded) => folded.table.len(),
        }
    }

    fn weight_bytes(&self) -> u64 {
        match self {
            Self::Chunk(chunk) => chunk.weight_bytes,
            Self::Folded(folded) => folded.weight_bytes,
        }
    }

    /// The entry of a key, with its chunk.
    fn get(&self, hash: u64, key: &[u8]) -> Option<(&Chunk, EntryRef<'_>)> {
        match self {
            Self::Chunk(chunk) => Some((chunk, chunk.get(hash, key)?)),
            Self::Folded(folded) => folded.get(hash, key),
        }
    }

    /// Newest slots in key order.
    fn order(&self) -> &[u32] {
        match self {
            Self::Chunk(chunk) => chunk.order(),
            Self::Folded(folded) => folded.order(),
        }
    }

    /// The slot of that number, with the index of its chunk.
    fn slot(&self, at: u32) -> (usize, &Slot) {
        match self {
            Self::Chunk(chunk) => (0, &chunk.slots[at as usize]),
            Self::Folded(folded) => folded.slot(at),
        }
    }

    fn key(&self, at: u32) -> &[u8] {
        let (chunk, slot) = self.slot(at);
        self.chunks()[chunk].key(slot)
    }

    /// Slots in all chunks, hidden ones included.
    fn slots(&self) -> usize {
        self.chunks().iter().map(|chunk| chunk.slots.len()).sum()
    }

    /// The hashes of their keys.
    fn hashes(&self) -> impl Iterator<Item = u64> {
        self.chunks().iter().flat_map(|chunk| &chunk.slots).map(|slot| slot.hash)
    }

    /// The smallest and the largest key.
    pub(crate) fn key_range(&self) -> Option<(&[u8], &[u8])> {
        let order = self.order();
        Some((self.key(*order.first()?), self.key(*order.last()?)))
    }

    /// Memory that will be held when the entries have been put in order.
    fn memory_bytes_in_order(&self) -> u64 {
        let entries: usize = self.chunks().iter().map(|chunk| chunk.slots.len()).sum();
        (self.memory_bytes() + (entries + self.len()) * size_of::<u32>()) as u64
    }

    /// Memory held, chunks included.
    fn memory_bytes(&self) -> usize {
        let own = match self {
            Self::Chunk(_) => 0,
            Self::Folded(folded) => folded.memory_bytes(),
        };
        own + self.chunks().iter().map(|chunk| chunk.memory_bytes()).sum::<usize>()
    }
}

/// A position in the part of a segment that is in a range of keys, in key order or against it.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    segment: Segment,
    order: Order,
    /// Places in the order of keys that have not been passed; the current one is the first or the last.
    places: Range<usize>,
    /// The slot at the current place, with the index of its chunk; `None` at the end.
    slot: Option<(usize, Slot)>,
}

impl SegmentReader {
    /// A reader at the first entry in the range, in this order.
    pub(crate) fn new(segment: &Segment, range: &KeyRange, order: Order) -> Self {
        let key = |&at: &u32| segment.key(at);
        let start = segment.order().partition_point(|at| range.is_below(key(at)));
        let end = segment.order().partition_point(|at| !range.is_above(key(at)));
        let segment = segment.clone();
        let mut reader = Self { segment, order, places: start..end, slot: None };
        reader.load();
        reader
    }

    fn load(&mut self) {
        self.slot = self.ahead(0).map(|(chunk, slot)| (chunk, *slot));
    }

    /// The slot that is `by` entries ahead of the current one.
    fn ahead(&self, by: usize) -> Option<(usize, &Slot)> {
        if by >= self.places.len() {
            return None;
        }
        let place = match self.order {
            Order::Ascending => self.places.start + by,
            Order::Descending => self.places.end - 1 - by,
        };
        self.segment.order().get(place).map(|&at| self.segment.slot(at))
    }

    /// The current slot, with its chunk; `None` at the end.
    fn slot(&self) -> Option<(&Chunk, &Slot)> {
        self.slot.as_ref().map(|(chunk, slot)| (self.segment.chunks()[*chunk].as_ref(), slot))
    }

    /// The current key; `None` at the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.slot().map(|(chunk, slot)| chunk.key(slot))
    }

    /// The current entry; `None` at the end.
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        self.slot().map(|(chunk, slot)| chunk.entry(slot))
    }

    /// The blob of the current entry, if it has one.
    pub(crate) fn blob(&self) -> Option<Blob> {
        let (chunk, slot) = self.slot()?;
        let (_, blob) = chunk.blob(slot)?;
        Some(Blob::Memory(Arc::clone(blob)))
    }

    /// The salted hash of the current key.
    pub(crate) fn hash(&self) -> Option<u64> {
        self.slot.map(|(_, slot)| slot.hash)
    }

    /// Goes to the next entry.
    pub(crate) fn advance(&mut self) {
        match self.order {
            _ if self.places.is_empty() => return,
            Order::Ascending => self.places.start += 1,
            Order::Descending => self.places.end -= 1,
        }
        self.load();
        // Entries stand in order of arrival, so each step in key order would wait for memory twice.
        if let Some((_, slot)) = self.ahead(2 * PREFETCH_ENTRIES) {
            prefetch(slot);
        }
        if let Some((chunk, slot)) = self.ahead(PREFETCH_ENTRIES)
            && let Some(key) = self.segment.chunks()[chunk].arena.get(slot.key_start as usize)
        {
            prefetch(key);
        }
    }
}

/// The write buffer of a table.
#[derive(Debug, Default, Clone)]
pub(crate) struct WriteBuffer {
    /// Oldest first. Only the last one may change, and only while nobody else refers to it.
    segments: Vec<Segment>,
    older: Older,
}

/// What is known of all segments but the last.
#[derive(Debug, Default, Clone)]
struct Older {
    weight_bytes: u64,
    len: usize,
    /// Memory, that of the sketch included.
    memory_bytes: u64,
    /// Their keys, and others.
    sketch: Option<Arc<Sketch>>,
}

/// How to go back to the buffer as it was when the batch began: what the batch has changed in the chunk
/// that it writes to, which is the last segment.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    arena: usize,
    blobs: usize,
    slots: usize,
    weight_bytes: u64,
    garbage_bytes: usize,
    replaced: Vec<(u32, Slot)>,
}

impl WriteBuffer {
    /// The segments, oldest first.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Lets go of segments, of a buffer that is only read.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&Segment) -> bool) {
        let mut segments = std::mem::take(&mut self.segments);
        segments.retain(|segment| is_wanted(segment));
        let sketch = self.older.sketch.take();
        self.set_segments(segments, sketch);
    }

    /// Keys, values and overhead; a key in several segments counts in each.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.older.weight_bytes + self.segments.last().map_or(0, Segment::weight_bytes)
    }

    /// What the buffer counts for under a memory budget: half of the memory that it takes, at least.
    pub(crate) fn charged_bytes(&self) -> u64 {
        let last = self.segments.last().map_or(0, |last| match last {
            Segment::Chunk(chunk) => chunk.charged_bytes(),
            Segment::Folded(_) => last.memory_bytes_in_order().div_ceil(2),
        });
        self.older.memory_bytes.div_ceil(2) + last
    }

    /// Entries; a key in several segments counts in each.
    pub(crate) fn len(&self) -> usize {
        self.older.len + self.segments.last().map_or(0, Segment::len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        let sketch = self.older.sketch.as_ref().map_or(0, |sketch| sketch.memory_bytes());
        sketch + self.segments.iter().map(Segment::memory_bytes).sum::<usize>()
    }

    /// The entries of a key, newest first, with the chunks that hold them.
    pub(crate) fn entries<'a>(
        &'a self,
        hash: u64,
        key: &'a [u8],
    ) -> impl Iterator<Item = (&'a Chunk, EntryRef<'a>)> {
        let (last, mut older) = match self.segments.split_last() {
            Some((last, older)) => (Some(last), older),
            None => (None, &[][..]),
        };
        if self.older.sketch.as_ref().is_some_and(|sketch| !sketch.may_hold(hash)) {
            older = &[];
        }
        let segments = last.into_iter().chain(older.iter().rev());
        segments.filter_map(move |segment| segment.get(hash, key))
    }

    /// Whether entries may have blobs.
    pub(crate) fn has_blobs(&self) -> bool {
        self.segments.iter().flat_map(Segment::chunks).any(|chunk| !chunk.blobs.is_empty())
    }

    /// The sketch with the keys of the last segment added; a larger one if it is full.
    fn sketch_of_all(&self) -> Option<Arc<Sketch>> {
        let last = self.segments.last()?;
        if let Some(sketch) = &self.older.sketch
            && sketch.has_room(last.slots())
        {
            sketch.add(last.hashes());
            return Some(Arc::clone(sketch));
        }
        let sketch = Sketch::new(2 * self.segments.iter().map(Segment::slots).sum::<usize>());
        self.segments.iter().for_each(|segment| sketch.add(segment.hashes()));
        Some(Arc::new(sketch))
    }

    /// Replaces all segments; the sketch must have the keys of all but the last.
    fn set_segments(&mut self, segments: Vec<Segment>, sketch: Option<Arc<Sketch>>) {
        let older = &segments[..segments.len().saturating_sub(1)];
        let weight_bytes = older.iter().map(Segment::weight_bytes).sum();
        let len = older.iter().map(Segment::len).sum();
        let memory_bytes = older.iter().map(Segment::memory_bytes_in_order).sum::<u64>();
        let memory_bytes = memory_bytes + sketch.as_ref().map_or(0, |s| s.memory_bytes() as u64);
        *self = Self { segments, older: Older { weight_bytes, len, memory_bytes, sketch } };
    }

    fn last_chunk(&mut self) -> Option<&mut Chunk> {
        self.segments.last_mut().and_then(Segment::writable)
    }

    /// The last segment's chunk; a new one if the last is shared.
    fn open_chunk(&mut self, room: Room, resolve: &Resolve) -> Result<&mut Chunk> {
        if self.last_chunk().is_none() {
            let mut segments = self.segments.clone();
            fold(&mut segments, resolve)?;
            segments.push(Segment::Chunk(Arc::new(Chunk::with_room(room))));
            let sketch = self.sketch_of_all();
            self.set_segments(segments, sketch);
        }
        let last = self.last_chunk().expect("made writable above");
        if last.garbage_bytes > GARBAGE_BYTES_MIN && last.garbage_bytes as u64 > last.weight_bytes {
            *last = last.with_slots(&last.slots);
        }
        Ok(last)
    }

    /// Begins a batch that takes about so much: what is put until the next call can be undone together.
    ///
    /// # Errors
    /// [`Error::ValueTooLarge`](crate::Error::ValueTooLarge) if two upserts make too large a value.
    pub(crate) fn begin(&mut self, room: Room, resolve: &Resolve) -> Result<Undo> {
        let last = self.open_chunk(room, resolve)?;
        Ok(Undo {
            arena: last.arena.len(),
            blobs: last.blobs.len(),
            slots: last.slots.len(),
            weight_bytes: last.weight_bytes,
            garbage_bytes: last.garbage_bytes,
            replaced: Vec::new(),
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
            self.segments.push(Segment::Chunk(Arc::default()));
        }
        let last = self.last_chunk().expect("`begin` made the last segment writable");
        match undo {
            Some(undo) => last.put(entry, resolve, &mut undo.replaced),
            None => last.put(entry, resolve, &mut Vec::new()),
        }
    }
}

/// Folds the newest segments, as long as enough of them are no larger than the newest one's tier.
fn fold(segments: &mut Vec<Segment>, resolve: &Resolve) -> Result<()> {
    let tier = |segment: &Segment| segment.len().max(1).ilog(SEGMENTS_PER_TIER);
    while let Some(newest) = segments.last().map(tier) {
        let alike = segments.iter().rev().take_while(|older| tier(older) <= newest).count();
        if alike < SEGMENTS_PER_TIER {
            break;
        }
        let first = segments.len() - alike;
        let folded = Segment::fold(&segments[first..], resolve)?;
        segments.truncate(first);
        segments.push(folded);
    }
    Ok(())
}

impl Undo {
    /// Takes the batch back in the buffer that it was put into.
    pub(crate) fn roll_back(self, buffer: &mut WriteBuffer) {
        let Some(Segment::Chunk(last)) = buffer.segments.last_mut() else { return };
        match Arc::get_mut(last) {
            Some(last) => last.roll_back(&self),
            // Being flushed, hence shared: what the batch found is copied out of it.
            None => *last = Arc::new(last.before(&self)),
        }
        if last.slots.is_empty() {
            let mut segments = std::mem::take(&mut buffer.segments);
            segments.pop();
            let sketch = buffer.older.sketch.take();
            buffer.set_segments(segments, sketch);
        }
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
        buffer.begin(Room::default(), &Resolve::concatenate()).unwrap()
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

    /// Entries in the chunks of some buffers and bytes of everything, what they share counted once.
    fn held(buffers: &[WriteBuffer]) -> (usize, usize) {
        let (mut entries, mut bytes) = (0, 0);
        let mut seen = std::collections::BTreeSet::new();
        for segment in buffers.iter().flat_map(WriteBuffer::segments) {
            if let Segment::Folded(folded) = segment
                && seen.insert(Arc::as_ptr(folded).addr())
            {
                bytes += folded.memory_bytes();
            }
            for chunk in segment.chunks() {
                if seen.insert(Arc::as_ptr(chunk).addr()) {
                    entries += chunk.slots.len();
                    bytes += chunk.memory_bytes();
                }
            }
        }
        (entries, bytes)
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
        let tiers = 1 + 4096_usize.ilog(SEGMENTS_PER_TIER) as usize;
        assert!(most <= Some((SEGMENTS_PER_TIER - 1) * tiers + 1), "{most:?} segments");
        let (copies, _) = held(&versions);
        assert!(copies <= 4096 * 4, "{copies} entries for 4096 updates");
        for (number, version) in versions.iter().enumerate() {
            let has = |n: usize| {
                let key = (n as u64).to_le_bytes();
                newest(version, &key).is_some()
            };
            assert!(has(number) && has(0) && !has(number + 1), "version {number}");
        }
    }

    fn long_key(number: u64) -> Vec<u8> {
        [number.to_le_bytes(); 5].concat()[..34].to_vec()
    }

    /// Key, kind and value.
    type Read = (Vec<u8>, Kind, Vec<u8>);

    /// The entries of each segment in order; each must be the one that is found by its key.
    fn read(buffer: &WriteBuffer) -> Vec<Vec<Read>> {
        let read = |segment: &Segment| {
            let mut entries = Vec::new();
            let all = KeyRange::ALL;
            let mut reader = SegmentReader::new(segment, &all, Order::Ascending);
            while let Some(entry) = reader.current() {
                let hash = key_hash(1, entry.key);
                assert_eq!(reader.hash(), Some(hash));
                assert_eq!(segment.get(hash, entry.key).map(|(_, entry)| entry), Some(entry));
                let from = all.from(std::ops::Bound::Included(entry.key.to_vec()));
                let mut at = SegmentReader::new(segment, &from, Order::Ascending);
                assert_eq!(at.current(), Some(entry));
                at.advance();
                entries.push((entry.key.to_vec(), entry.kind, entry.value.to_vec()));
                reader.advance();
                assert_eq!(at.current(), reader.current());
            }
            let bounds = entries.first().zip(entries.last());
            let bounds = bounds.map(|(first, last)| (first.0.as_slice(), last.0.as_slice()));
            assert_eq!(segment.key_range(), bounds);
            assert!(entries.is_sorted_by(|left, right| left.0 < right.0));
            entries
        };
        buffer.segments().iter().map(read).collect()
    }

    /// A duplicate after every block of a ledger, all kept: each entry is there once.
    #[test]
    fn versions_of_a_buffer_share_their_entries() {
        const BLOCKS: u64 = 80;
        const CHANGES: u64 = 256;
        let resolve = Resolve::concatenate();
        let mut buffer = WriteBuffer::default();
        let mut versions = Vec::new();
        let value = |number: u64| [number.to_le_bytes(); 8].concat()[..60].to_vec();
        for block in 0..BLOCKS {
            let entries = 2 * CHANGES as usize;
            let room = Room { entries, bytes: entries * (34 + 30) };
            let mut undo = buffer.begin(room, &resolve).unwrap();
            for at in 0..CHANGES {
                let made = (long_key(block * CHANGES + at), value(block * CHANGES + at));
                put_with(&mut buffer, (&made.0, Kind::Insert, &made.1), None, &mut undo);
                // What the block before has made, every other one of it.
                let before = (block * CHANGES + at).checked_sub(CHANGES);
                let spent = long_key(before.unwrap_or(u64::MAX - at) & !1);
                put_with(&mut buffer, (&spent, Kind::Delete, &[]), None, &mut undo);
            }
            versions.push(buffer.clone());
        }
        let (entries, bytes) = held(&versions);
        assert!(entries as u64 <= BLOCKS * CHANGES * 3 / 2, "{entries} entries");
        let each = bytes as f64 / entries as f64;
        assert!(each < 170.0, "{each} bytes an entry of 34 + 40 on average");
        for (block, version) in (0..BLOCKS).zip(&versions) {
            let count = version.segments().len();
            assert!(count <= (SEGMENTS_PER_TIER - 1) * 2 + 2, "{count} segments");
            for number in (0..(block + 1) * CHANGES + 10).step_by(7) {
                let is_spent = number < block * CHANGES && number % 2 == 0;
                let expected = match number {
                    _ if is_spent => Some((Kind::Delete, Vec::new())),
                    _ if number < (block + 1) * CHANGES => Some((Kind::Insert, value(number))),
                    _ => None,
                };
                let found = newest(version, &long_key(number));
                assert_eq!(found, expected, "key {number} after block {block}");
            }
        }
        let last = versions.last().unwrap();
        let segments = read(last);
        assert_eq!(last.len(), segments.iter().map(Vec::len).sum::<usize>());
        let overhead = ENTRY_OVERHEAD_BYTES as usize;
        let weight = |entry: &Read| entry.0.len() + entry.2.len() + overhead;
        let weight: usize = segments.iter().flatten().map(weight).sum();
        assert_eq!(last.weight_bytes(), weight as u64);
    }

    /// Whatever is folded, and however: the same answers, at every stage, from every version.
    #[test]
    fn folded_upserts_and_blobs_are_those_that_were_put() {
        let resolve = Resolve::concatenate();
        for kinds in [
            &[Kind::Insert, Kind::InsertBlob, Kind::Delete][..],
            &[Kind::Upsert, Kind::Insert, Kind::Delete, Kind::InsertBlob],
        ] {
            let mut buffer = WriteBuffer::default();
            let mut versions = Vec::new();
            let mut model = std::collections::BTreeMap::<u64, Vec<u8>>::new();
            let mut blobs = std::collections::BTreeMap::<u64, Vec<u8>>::new();
            for step in 0..200_u64 {
                let mut undo = begin(&mut buffer);
                for at in 0..100 {
                    let number = (step * 61 + at * (1 + step % 5)) % 4_000;
                    let kind = kinds[(step + at * at) as usize % kinds.len()];
                    let text = format!("{step}.{at} ").into_bytes();
                    let blob: Arc<[u8]> = Arc::from([b"blob ".as_slice(), &text].concat());
                    let value = if kind == Kind::Delete { Vec::new() } else { text.clone() };
                    let of_kind = (kind == Kind::InsertBlob).then_some(&blob);
                    put_with(&mut buffer, (&long_key(number), kind, &value), of_kind, &mut undo);
                    blobs.remove(&number);
                    match kind {
                        Kind::Delete => drop(model.remove(&number)),
                        Kind::Upsert => {
                            let older = model.remove(&number).unwrap_or_default();
                            model.insert(number, [older, text].concat());
                        }
                        _ => drop(model.insert(number, text)),
                    }
                    if kind == Kind::InsertBlob {
                        blobs.insert(number, blob.to_vec());
                    }
                }
                versions.push((buffer.clone(), model.clone(), blobs.clone()));
            }
            let folded = |segment: &Segment| segment.chunks().len() > 1;
            let shared = versions.iter().any(|version| version.0.segments().iter().any(folded));
            assert_eq!(shared, !kinds.contains(&Kind::Upsert), "upserts meet older entries");
            for (version, model, blobs) in versions.iter().step_by(11) {
                for number in 0..4_000 {
                    let key = long_key(number);
                    let mut found: Option<Vec<u8>> = None;
                    let mut blob = None;
                    for (chunk, entry) in version.entries(key_hash(1, &key), &key) {
                        if entry.kind == Kind::Delete {
                            break;
                        }
                        if found.is_none() {
                            blob = chunk.blob_of(&entry);
                        }
                        match &mut found {
                            Some(newer) => resolve.combine(newer, entry.value).unwrap(),
                            None => found = Some(entry.value.to_vec()),
                        }
                        if entry.kind != Kind::Upsert {
                            break;
                        }
                    }
                    assert_eq!(found.as_ref(), model.get(&number), "key {number}");
                    let blob = blob.map(|blob| match blob {
                        Blob::Memory(bytes) => bytes.to_vec(),
                        Blob::Run { .. } => panic!("nothing was flushed"),
                    });
                    assert_eq!(blob.as_ref(), blobs.get(&number), "blob of key {number}");
                }
                read(version);
            }
        }
    }

    /// The same keys again and again, with a duplicate that is dropped after each update.
    #[test]
    fn what_no_version_needs_does_not_stay() {
        let mut buffer = WriteBuffer::default();
        for round in 0..300 {
            for number in 0..100 {
                let _version = buffer.clone();
                put(&mut buffer, number);
            }
            assert!(buffer.len() <= 100 * SEGMENTS_PER_TIER, "{} in round {round}", buffer.len());
            let bytes = buffer.memory_bytes();
            assert!(bytes < 100 * 1_000, "{bytes} bytes in round {round}");
        }
    }

    /// What a memory budget counts with: memory is at most twice what is charged, whatever vectors and hash
    /// tables have grown to just now, and whatever room was made for more.
    #[test]
    fn a_buffer_takes_at_most_twice_what_it_charges() {
        for (key_len, value_len, blob_len) in [
            (8, 0, None),
            (8, 8, Some(0)),
            (34, 60, None),
            (1, 1, None),
            (100, 1_000, Some(300)),
            (8, 9_000, None),
            (8, 20, Some(5)),
        ] {
            for duplicates in [false, true] {
                let mut buffer = WriteBuffer::default();
                let mut versions = Vec::new();
                let check = |buffer: &WriteBuffer| {
                    let (held, charged) = (buffer.memory_bytes() as u64, buffer.charged_bytes());
                    assert!(held <= 2 * charged + 512, "{held} bytes, {charged} charged");
                };
                for number in 0..2_000_u64 {
                    let mut key = vec![0; key_len];
                    // Every third update overwrites.
                    let number = if number % 3 == 2 { number / 2 } else { number };
                    key.iter_mut().zip(number.to_le_bytes()).for_each(|(to, from)| *to = from);
                    let blob = blob_len.map(|len| Arc::from(vec![7; len]));
                    let kind = if blob.is_some() { Kind::InsertBlob } else { Kind::Insert };
                    if duplicates && number % 50 == 0 {
                        versions.push(buffer.clone());
                    }
                    // Room for more than comes, at times.
                    let room = Room { entries: 80, bytes: 2_000 };
                    let mut undo = buffer.begin(room, &Resolve::concatenate()).unwrap();
                    let entry = (key.as_slice(), kind, &*vec![7; value_len]);
                    put_with(&mut buffer, entry, blob.as_ref(), &mut undo);
                    check(&buffer);
                }
                // As a flush does, which puts the entries in order.
                assert!(buffer.segments().iter().all(|segment| segment.key_range().is_some()));
                check(&buffer);
            }
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
