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
//! whoever keeps all versions of a buffer has each entry once, and five to ten bytes for it in each of the
//! tables, of which there are O(log n). The order of keys is worked out when somebody wants to read in order.
//!
//! Invariant: at most one slot for a key in a chunk; a newer chunk of a segment hides an older one, and a
//! newer segment an older one.

use std::sync::{Arc, OnceLock};

use hashbrown::HashTable;
use terrane_io::hint::prefetch;

use crate::entry::{EntryRef, Kind, key_prefix, weight_bytes};

/// So many neighbouring segments of like size are folded into one, so that a buffer of *n* entries that is
/// duplicated again and again has O(log n) segments, and each entry is in O(log n) hash tables.
const SEGMENTS_PER_TIER: usize = 4;

/// Smaller chunks than this, on average, are copied into one when they are folded, so that what a chunk
/// takes beside its entries is shared by many of them.
const CHUNK_ENTRIES_MIN: usize = 64;

/// How far ahead of an ordered reader keys are fetched; their slots twice as far.
const PREFETCH_ENTRIES: usize = 8;

/// Dead bytes beyond which a chunk is rewritten, if they are most of it.
const GARBAGE_BYTES_MIN: usize = 256 << 10;

/// Room that a new segment has from the start, at the most: beyond it, it grows as it needs.
const ROOM_MAX: Room = Room { entries: 4096, bytes: 1 << 20 };

/// What a batch is going to take.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Room {
    pub(crate) entries: usize,
    /// Of keys and values.
    pub(crate) bytes: usize,
}

/// An entry of a chunk.
#[derive(Debug, Clone, Copy)]
struct Slot {
    hash: u64,
    key_start: u64,
    value_start: u64,
    value_len: u32,
    key_len: u16,
    kind: Kind,
}

impl Slot {
    fn weight_bytes(&self) -> u64 {
        weight_bytes(self.key_len.into(), self.value_len as usize)
    }
}

/// Some entries, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    arena: Vec<u8>,
    slots: Vec<Slot>,
    table: HashTable<u32>,
    /// Keys, values and the overhead of each entry.
    weight_bytes: u64,
    /// Bytes of the arena that no slot refers to.
    garbage_bytes: usize,
    /// Slots in key order, made on demand. Invariant: empty while the chunk changes.
    order: OnceLock<Box<[u32]>>,
}

/// The slots of `at`, by key.
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
        EntryRef { key: self.key(slot), kind: slot.kind, value }
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

    /// Sets the entries of another chunk.
    fn put_all(&mut self, other: &Self) {
        for slot in &other.slots {
            self.put(slot.hash, other.entry(slot), &mut Vec::new());
        }
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

    /// Slots in key order.
    fn order(&self) -> &[u32] {
        self.order.get_or_init(|| {
            let key = |at| self.key(&self.slots[at as usize]);
            in_key_order(0..self.slots.len() as u32, key)
        })
    }

    fn memory_bytes(&self) -> usize {
        self.arena.capacity()
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
    /// Number of the first slot of each chunk, where all slots are numbered through.
    starts: Vec<u32>,
    /// The newest slot of each key.
    table: HashTable<u32>,
    /// Keys, values and the overhead of the newest slots.
    weight_bytes: u64,
    /// Newest slots in key order, made on demand.
    order: OnceLock<Box<[u32]>>,
}

impl Folded {
    fn new(chunks: Vec<Arc<Chunk>>) -> Self {
        let mut starts = Vec::with_capacity(chunks.len());
        let mut count = 0;
        for chunk in &chunks {
            starts.push(count as u32);
            count += chunk.slots.len();
        }
        let table = HashTable::with_capacity(count);
        let mut folded = Self { chunks, starts, table, weight_bytes: 0, order: OnceLock::new() };
        for chunk in 0..folded.chunks.len() {
            folded.index(chunk);
        }
        folded
    }

    /// Enters the slots of a chunk, newer than those entered before.
    fn index(&mut self, chunk: usize) {
        let mut table = std::mem::take(&mut self.table);
        let mut weight_bytes = self.weight_bytes;
        let newer = &self.chunks[chunk];
        for (at, slot) in (self.starts[chunk]..).zip(&newer.slots) {
            let key = newer.key(slot);
            let older = table.find_mut(slot.hash, |&at| {
                let (chunk, older) = self.slot(at);
                older.hash == slot.hash && self.chunks[chunk].key(older) == key
            });
            weight_bytes += slot.weight_bytes();
            if let Some(older) = older {
                weight_bytes -= self.slot(*older).1.weight_bytes();
                *older = at;
            } else {
                table.insert_unique(slot.hash, at, |&at| self.slot(at).1.hash);
            }
        }
        (self.table, self.weight_bytes) = (table, weight_bytes);
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

    fn get(&self, hash: u64, key: &[u8]) -> Option<EntryRef<'_>> {
        let found = self.table.find(hash, |&at| {
            let (chunk, slot) = self.slot(at);
            slot.hash == hash && self.chunks[chunk].key(slot) == key
        })?;
        let (chunk, slot) = self.slot(*found);
        Some(self.chunks[chunk].entry(slot))
    }

    fn order(&self) -> &[u32] {
        self.order.get_or_init(|| in_key_order(self.table.iter().copied(), |at| self.key(at)))
    }

    fn memory_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.memory_bytes()).sum::<usize>()
            + self.starts.len() * (size_of::<u32>() + size_of::<Arc<Chunk>>())
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
    fn fold(segments: &[Self]) -> Self {
        let chunks: Vec<_> = segments.iter().flat_map(Self::chunks).cloned().collect();
        let count: usize = chunks.iter().map(|chunk| chunk.slots.len()).sum();
        if count >= chunks.len() * CHUNK_ENTRIES_MIN {
            let folded = Folded::new(chunks);
            // Where most is hidden nothing is gained by sharing it.
            if folded.table.len() >= count / 2 {
                return Self::Folded(Arc::new(folded));
            }
        }
        let mut copied = Chunk::default();
        segments.iter().flat_map(Self::chunks).for_each(|chunk| copied.put_all(chunk));
        Self::Chunk(Arc::new(copied))
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

    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<EntryRef<'_>> {
        match self {
            Self::Chunk(chunk) => chunk.get(hash, key),
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

    /// The smallest and the largest key.
    pub(crate) fn key_range(&self) -> Option<(&[u8], &[u8])> {
        let order = self.order();
        Some((self.key(*order.first()?), self.key(*order.last()?)))
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Self::Chunk(chunk) => chunk.memory_bytes(),
            Self::Folded(folded) => folded.memory_bytes(),
        }
    }
}

/// A position in a segment, in key order.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    segment: Segment,
    at: usize,
    /// The slot at this position, with the index of its chunk; `None` at the end.
    slot: Option<(usize, Slot)>,
}

impl SegmentReader {
    /// A reader at the first entry.
    pub(crate) fn new(segment: Segment) -> Self {
        Self::at_slot(segment, 0)
    }

    /// A reader at the first entry whose key is at least `key`.
    pub(crate) fn at(segment: Segment, key: &[u8]) -> Self {
        let at = segment.order().partition_point(|&at| segment.key(at) < key);
        Self::at_slot(segment, at)
    }

    fn at_slot(segment: Segment, at: usize) -> Self {
        let mut reader = Self { segment, at, slot: None };
        reader.load();
        reader
    }

    fn load(&mut self) {
        self.slot = self.segment.order().get(self.at).map(|&at| {
            let (chunk, slot) = self.segment.slot(at);
            (chunk, *slot)
        });
    }

    /// The current key; `None` at the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.slot.as_ref().map(|(chunk, slot)| self.segment.chunks()[*chunk].key(slot))
    }

    /// The current entry; `None` at the end.
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        self.slot.as_ref().map(|(chunk, slot)| self.segment.chunks()[*chunk].entry(slot))
    }

    /// The salted hash of the current key.
    pub(crate) fn hash(&self) -> Option<u64> {
        self.slot.map(|(_, slot)| slot.hash)
    }

    /// Goes to the next entry.
    pub(crate) fn advance(&mut self) {
        self.at += 1;
        self.load();
        // Entries stand in order of arrival, so each step in key order would wait for memory twice.
        let segment = &self.segment;
        let ahead = |by: usize| segment.order().get(self.at + by).map(|&at| segment.slot(at));
        if let Some((_, slot)) = ahead(2 * PREFETCH_ENTRIES) {
            prefetch(slot);
        }
        if let Some((chunk, slot)) = ahead(PREFETCH_ENTRIES)
            && let Some(key) = segment.chunks()[chunk].arena.get(slot.key_start as usize)
        {
            prefetch(key);
        }
    }
}

/// What it takes to undo the updates of one batch, as long as they are all in one chunk.
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
    segments: Vec<Segment>,
    /// Weight and entries of all segments but the last.
    older: (u64, usize),
}

/// How to go back to the buffer as it was when the batch began.
#[derive(Debug)]
pub(crate) struct Undo {
    /// Segments at the beginning of the batch that were complete then.
    kept: Vec<Segment>,
    /// What the batch has changed in the chunk that it writes to.
    savepoint: Savepoint,
}

impl From<Vec<Segment>> for WriteBuffer {
    fn from(segments: Vec<Segment>) -> Self {
        let older = &segments[..segments.len().saturating_sub(1)];
        let weight_bytes = older.iter().map(Segment::weight_bytes).sum();
        let len = older.iter().map(Segment::len).sum();
        Self { segments, older: (weight_bytes, len) }
    }
}

impl WriteBuffer {
    /// The segments, oldest first.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Keys, values and overhead; a key in several segments counts in each.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.older.0 + self.segments.last().map_or(0, Segment::weight_bytes)
    }

    /// Entries; a key in several segments counts in each.
    pub(crate) fn len(&self) -> usize {
        self.older.1 + self.segments.last().map_or(0, Segment::len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.segments.iter().map(Segment::memory_bytes).sum()
    }

    /// The newest entry of a key.
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<EntryRef<'_>> {
        self.segments.iter().rev().find_map(|segment| segment.get(hash, key))
    }

    fn last_chunk(&mut self) -> Option<&mut Chunk> {
        self.segments.last_mut().and_then(Segment::writable)
    }

    /// Makes the last segment writable, adding one if the last is shared.
    fn open_segment(&mut self, room: Room) -> &mut Chunk {
        if self.last_chunk().is_none() {
            let mut segments = std::mem::take(&mut self.segments);
            fold(&mut segments);
            segments.push(Segment::Chunk(Arc::new(Chunk::with_room(room))));
            *self = segments.into();
        }
        let last = self.last_chunk().expect("made writable above");
        if last.garbage_bytes > GARBAGE_BYTES_MIN && last.garbage_bytes > last.arena.len() / 2 {
            let mut rewritten = Chunk::default();
            rewritten.put_all(last);
            *last = rewritten;
        }
        last
    }

    /// Begins a batch that takes about so much: what is put until the next call can be undone together.
    pub(crate) fn begin(&mut self, room: Room) -> Undo {
        let last = self.open_segment(room);
        let savepoint = Savepoint {
            arena: last.arena.len(),
            slots: last.slots.len(),
            weight_bytes: last.weight_bytes,
            garbage_bytes: last.garbage_bytes,
            replaced: Vec::new(),
        };
        let (_, kept) = self.segments.split_last().expect("a segment was opened");
        Undo { kept: kept.to_vec(), savepoint }
    }

    /// Sets the entry of a key. The batch must have been begun; `undo` is what that gave, unless the buffer
    /// was replaced by an empty one since.
    pub(crate) fn put(&mut self, hash: u64, entry: EntryRef<'_>, undo: Option<&mut Undo>) {
        if self.segments.is_empty() {
            self.segments.push(Segment::Chunk(Arc::default()));
        }
        let last = self.last_chunk().expect("`begin` made the last segment writable");
        match undo {
            Some(undo) => last.put(hash, entry, &mut undo.savepoint.replaced),
            None => last.put(hash, entry, &mut Vec::new()),
        }
    }
}

/// Folds the newest segments, as long as enough of them are no larger than the newest one's tier.
fn fold(segments: &mut Vec<Segment>) {
    let tier = |segment: &Segment| segment.len().max(1).ilog(SEGMENTS_PER_TIER);
    while let Some(newest) = segments.last().map(tier) {
        let alike = segments.iter().rev().take_while(|older| tier(older) <= newest).count();
        if alike < SEGMENTS_PER_TIER {
            break;
        }
        let alike = segments.split_off(segments.len() - alike);
        segments.push(Segment::fold(&alike));
    }
}

impl Undo {
    /// Takes the batch back in the buffer that it was put into.
    pub(crate) fn roll_back(self, buffer: &mut WriteBuffer) {
        match buffer.last_chunk() {
            Some(last) => last.roll_back(&self.savepoint),
            // Being flushed, hence shared: what the batch found is copied out of it.
            None => *buffer = self.rebuild(buffer),
        }
        if buffer.segments.last().is_some_and(|last| last.len() == 0) {
            let mut segments = std::mem::take(&mut buffer.segments);
            segments.pop();
            *buffer = segments.into();
        }
    }

    fn rebuild(self, buffer: &WriteBuffer) -> WriteBuffer {
        let Self { kept: mut segments, savepoint } = self;
        if let Some(Segment::Chunk(last)) = buffer.segments.last() {
            let mut slots = last.slots[..savepoint.slots].to_vec();
            for &(at, slot) in savepoint.replaced.iter().rev() {
                if let Some(found) = slots.get_mut(at as usize) {
                    *found = slot;
                }
            }
            let mut before = Chunk::default();
            for slot in &slots {
                before.put(slot.hash, last.entry(slot), &mut Vec::new());
            }
            segments.push(Segment::Chunk(Arc::new(before)));
        }
        segments.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::key_hash;

    fn put(buffer: &mut WriteBuffer, number: u64) {
        let key = number.to_le_bytes();
        let entry = EntryRef { key: &key, kind: Kind::Insert, value: &key };
        let mut undo = buffer.begin(Room::default());
        buffer.put(key_hash(1, &key), entry, Some(&mut undo));
    }

    fn number_of(entry: EntryRef<'_>) -> u64 {
        u64::from_le_bytes(*entry.value.first_chunk().expect("eight bytes"))
    }

    /// Entries in the chunks of some buffers and bytes of everything, what they share counted once.
    fn held(buffers: &[WriteBuffer]) -> (usize, usize) {
        let (mut entries, mut bytes) = (0, 0);
        let mut seen = std::collections::BTreeSet::new();
        for segment in buffers.iter().flat_map(WriteBuffer::segments) {
            if let Segment::Folded(folded) = segment
                && seen.insert(Arc::as_ptr(folded).addr())
            {
                let chunks: usize = folded.chunks.iter().map(|chunk| chunk.memory_bytes()).sum();
                bytes += folded.memory_bytes() - chunks;
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
        assert!(most <= Some(3 * 6 + 1), "{most:?} segments");
        let (copies, _) = held(&versions);
        assert!(copies <= 4096 * 4, "{copies} entries for 4096 updates");
        for (number, version) in versions.iter().enumerate() {
            let has = |n: usize| {
                let key = (n as u64).to_le_bytes();
                version.get(key_hash(1, &key), &key).is_some()
            };
            assert!(has(number) && has(0) && !has(number + 1), "version {number}");
        }
    }

    /// A duplicate after every block of a ledger, all kept: each entry is there once.
    #[test]
    fn versions_of_a_buffer_share_their_entries() {
        const CHANGES: u64 = 256;
        let mut buffer = WriteBuffer::default();
        let mut versions = Vec::new();
        let key = |number: u64| [number.to_le_bytes(); 5].concat()[..34].to_vec();
        for block in 0..80 {
            let bytes = (CHANGES * (2 * 34 + 60)) as usize;
            let mut undo = buffer.begin(Room { entries: 2 * CHANGES as usize, bytes });
            for number in block * CHANGES..(block + 1) * CHANGES {
                let (made, spent) = (key(number), key(number / 2));
                let value = [number.to_le_bytes(); 8].concat();
                let made = EntryRef { key: &made, kind: Kind::Insert, value: &value[..60] };
                buffer.put(key_hash(1, made.key), made, Some(&mut undo));
                let spent = EntryRef { key: &spent, kind: Kind::Delete, value: &[] };
                buffer.put(key_hash(1, spent.key), spent, Some(&mut undo));
            }
            versions.push(buffer.clone());
        }
        let (entries, bytes) = held(&versions);
        // Half of the deletions are of keys that the same block has deleted already.
        assert!(entries <= 80 * CHANGES as usize * 3 / 2, "{entries} entries");
        let each = bytes as f64 / (80 * 2 * CHANGES) as f64;
        assert!(each < 120.0, "{each} bytes an update");
        for (block, version) in (0..).zip(&versions) {
            assert!(version.segments().len() <= 3 * 4 + 1);
            let (spent, made) = ((block + 1) * CHANGES / 2, (block + 1) * CHANGES);
            for number in (0..made + 10).step_by(7) {
                let key = key(number);
                let found = version.get(key_hash(1, &key), &key);
                let expected = match number {
                    _ if number < spent => Some((Kind::Delete, None)),
                    _ if number < made => Some((Kind::Insert, Some(number))),
                    _ => None,
                };
                let found = found.map(|entry| {
                    let number = (entry.kind == Kind::Insert).then(|| number_of(entry));
                    (entry.kind, number)
                });
                assert_eq!(found, expected, "key {number} after block {block}");
            }
        }
        // In order, each segment gives the newest entry of each key, and its sums are theirs.
        let last = versions.last().expect("80 versions");
        let (mut len, mut weight) = (0, 0);
        for segment in last.segments() {
            let mut reader = SegmentReader::new(segment.clone());
            let mut before: Option<Vec<u8>> = None;
            while let Some(entry) = reader.current() {
                assert!(before.as_deref() < Some(entry.key));
                assert_eq!(reader.hash(), Some(key_hash(1, entry.key)));
                assert_eq!(segment.get(key_hash(1, entry.key), entry.key), Some(entry));
                before = Some(entry.key.to_vec());
                (len, weight) = (len + 1, weight + entry.weight_bytes());
                reader.advance();
            }
        }
        assert_eq!((last.len(), last.weight_bytes()), (len, weight));
    }

    /// One key again and again, with a duplicate that is dropped after each update.
    #[test]
    fn what_no_version_needs_does_not_stay() {
        let mut buffer = WriteBuffer::default();
        for round in 0..1_000 {
            let _version = buffer.clone();
            for number in 0..100 {
                let key = u64::to_le_bytes(number);
                let entry = EntryRef { key: &key, kind: Kind::Insert, value: &key };
                let mut undo = buffer.begin(Room::default());
                buffer.put(key_hash(1, &key), entry, Some(&mut undo));
            }
            assert!(buffer.len() <= 100 * SEGMENTS_PER_TIER, "{} in round {round}", buffer.len());
            let bytes = buffer.memory_bytes();
            assert!(bytes < 100 * 1_000, "{bytes} bytes in round {round}");
        }
    }

    #[test]
    fn a_batch_that_is_rolled_back_leaves_nothing() {
        let mut buffer = WriteBuffer::default();
        (0..100).for_each(|number| put(&mut buffer, number));
        let before = (buffer.len(), buffer.weight_bytes());
        let mut undo = buffer.begin(Room::default());
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
