//! Parts of a memtable: entries in memory that are written once and then shared.
//!
//! A *chunk* keeps keys and values back to back in one arena, a slot for each key with the key's
//! salted hash (which lookups and filters need anyway), and a hash table of slots. A part is a
//! chunk, or it is *folded*: several chunks, shared with the parts that they were before, under one
//! hash table. So the versions of a memtable together hold each entry once, and five to ten bytes
//! for it in each of O(log n) hash tables. The first reader in key order sorts the keys.
//!
//! A blob is a piece of memory of its own, so that references to it can be weak.
//!
//! A chunk or a folded part that was saved knows its *image*, the run that holds its entries. It
//! never changes from then on, and the next snapshot refers to the same run
//! ([`snapshot`](crate::session::snapshot)).
//!
//! Invariant: at most one slot for a key in a chunk; in a folded part an entry of a newer chunk
//! hides one of an older chunk.

use std::ops::Range;

use hashbrown::HashTable;
use terrane_io::key_order::key_prefix;
use terrane_io::prefetch::prefetch;
use terrane_io::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::entry::entry::{BlobSpan, ENTRY_OVERHEAD_BYTES, EntryRef, Kind, Order};
use crate::entry::key_range::KeyRange;
use crate::entry::mask::{Mask, Masking};
use crate::entry::merge_operator::MergeOperator;
use crate::error::Result;
use crate::files::file_set::{FileHandle, FileSet, RunRef, lock};
use crate::run::blob::Blob;

/// A folded part of more chunks than this is saved as one image, so that a snapshot names few.
const IMAGES_PER_PART_MAX: usize = 64;

/// Smaller chunks than this, on average, are copied into one when they are folded, so that many
/// entries share what a chunk takes beside them.
const CHUNK_ENTRIES_MIN: usize = 64;

/// How far ahead of an ordered reader keys are fetched; their slots twice as far.
const PREFETCH_ENTRIES: usize = 8;

/// Bytes from which on a vector of a chunk grows by an eighth instead of doubling. Moving large
/// vectors costs little, because the system moves their pages; unused memory counts against the
/// budget.
const GROWN_BYTES: usize = 128 << 10;

/// Dead bytes beyond which a chunk is rewritten, if they are most of it.
const GARBAGE_BYTES_MIN: usize = 256 << 10;

/// Overhead of a blob in memory, and half of the spare capacity of a vector of references.
const BLOB_OVERHEAD_BYTES: u64 = 32;

/// Total overhead of a blob: also its index in the arena.
const BLOB_EXTRA_BYTES: usize = BLOB_OVERHEAD_BYTES as usize + size_of::<u32>();

/// Approximate size of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Room {
    pub(crate) entries: usize,
    /// Bytes of keys and values.
    pub(crate) bytes: usize,
}

impl Room {
    /// Returns this share of the size.
    pub(crate) fn part(self, share: f64) -> Self {
        let part = |whole: usize| (whole as f64 * share) as usize;
        Self { entries: part(self.entries), bytes: part(self.bytes) }
    }

    /// Weight of a batch of this size in a memtable bounded in bytes, without blobs.
    pub(crate) fn weight_bytes(self) -> u64 {
        self.bytes as u64 + self.entries as u64 * ENTRY_OVERHEAD_BYTES
    }
}

/// Maximum initial capacity of a chunk; it grows beyond that as needed.
const ROOM_MAX: Room = Room { entries: 4096, bytes: 1 << 20 };

/// Minimum charge under a budget for a memtable's memory: four fifths.
pub(crate) fn charge_for(memory_bytes: u64) -> u64 {
    memory_bytes - memory_bytes / 5
}

/// An entry of a chunk.
#[derive(Debug, Clone, Copy)]
struct EntrySlot {
    hash: u64,
    key_start: u64,
    /// Offset of the value in the arena; the index of the blob follows it, if there is one.
    value_start: u64,
    value_len: u32,
    key_len: u16,
    kind: Kind,
}

/// An entry on its way into a memtable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEntry<'a> {
    pub(crate) key: &'a [u8],
    /// The salted hash of the key.
    pub(crate) hash: u64,
    pub(crate) kind: Kind,
    pub(crate) value: &'a [u8],
    /// Blob of an insert with blob.
    pub(crate) blob: Option<&'a Arc<[u8]>>,
}

/// Some entries, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    arena: Vec<u8>,
    slots: Vec<EntrySlot>,
    table: HashTable<u32>,
    /// Blobs, also of entries that have been replaced.
    blobs: Vec<Arc<[u8]>>,
    /// Keys, values, blobs and the overhead of each entry.
    weight_bytes: u64,
    /// Bytes of all blobs.
    blob_bytes: usize,
    /// Bytes of arena and blobs that no slot refers to, with what these blobs take beside their
    /// bytes.
    garbage_bytes: usize,
    /// Slots in key order, made on demand. Invariant: empty while the chunk changes.
    order: OnceLock<Box<[u32]>>,
    /// Invariant: empty while the chunk changes.
    image: Image,
}

/// Image of a chunk or a folded part: the run that holds its entries, once it was saved.
#[derive(Debug, Default)]
pub(crate) struct Image(Mutex<Option<(Weak<FileSet>, RunRef)>>);

impl Image {
    /// Returns the run and a handle that keeps it, if a snapshot or another holder still keeps it
    /// among these files.
    pub(crate) fn attach(&self, files: &Arc<FileSet>) -> Option<(RunRef, FileHandle)> {
        // The session may have gone: an image counts only among the files that it was written to.
        let (_, run) = lock(&self.0)
            .clone()
            .filter(|(set, _)| std::ptr::eq(set.as_ptr(), &raw const **files))?;
        Some((run, files.attach_if_there(run.number)?))
    }

    /// Notes the run, all of whose bytes are durable.
    pub(crate) fn set(&self, files: &Arc<FileSet>, run: RunRef) {
        *lock(&self.0) = Some((Arc::downgrade(files), run));
    }

    /// Needs no lock, because every put asks.
    fn is_set(&mut self) -> bool {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Undo record of a batch: the state of its chunk when the batch began.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    arena: usize,
    blobs: usize,
    slots: usize,
    weight_bytes: u64,
    garbage_bytes: usize,
    /// Slots from before the batch that it replaced, each at most once. Slots of the batch itself
    /// need no record.
    replaced: Vec<(u32, EntrySlot)>,
    /// Garbage behind `arena` and `blobs`: values that the batch made and replaced again.
    dead_bytes: usize,
}

impl Undo {
    /// Whether the batch made the value of a slot. An older value begins at `arena` at the latest
    /// (if it is empty); a value of the batch begins behind it, see [`Chunk::pad`].
    fn is_of_batch(&self, at: u32, slot: &EntrySlot) -> bool {
        at as usize >= self.slots || slot.value_start > self.arena as u64
    }
}

/// Makes room for `more` elements.
#[inline]
fn make_room<T>(vec: &mut Vec<T>, more: usize) {
    if vec.capacity() - vec.len() < more {
        grow(vec, more);
    }
}

#[cold]
fn grow<T>(vec: &mut Vec<T>, more: usize) {
    // Small vectors double; large ones grow by an eighth, since their room counts towards the
    // budget.
    if vec.capacity() * size_of::<T>() < GROWN_BYTES {
        vec.reserve(more);
    } else {
        vec.reserve_exact(more.max(vec.capacity() / 8));
    }
}

/// Slots by their keys.
fn in_key_order<'a>(slots: impl Iterator<Item = u32>, key: impl Fn(u32) -> &'a [u8]) -> Box<[u32]> {
    // The first eight bytes decide nearly all comparisons without a look into the arena.
    let mut order: Vec<(u64, u32)> = slots.map(|at| (key_prefix(key(at)), at)).collect();
    order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| key(a.1).cmp(key(b.1))));
    debug_assert!(order.is_sorted_by(|a, b| key(a.1) < key(b.1)), "each key has one slot");
    order.into_iter().map(|(_, at)| at).collect()
}

impl Chunk {
    pub(crate) fn with_room(room: Room) -> Self {
        // A very large batch takes no more memory than this in advance.
        let entries = room.entries.min(ROOM_MAX.entries);
        Self {
            arena: Vec::with_capacity(room.bytes.min(ROOM_MAX.bytes)),
            slots: Vec::with_capacity(entries),
            table: HashTable::with_capacity(entries),
            ..Self::default()
        }
    }

    fn key(&self, slot: &EntrySlot) -> &[u8] {
        &self.arena[slot.key_start as usize..][..usize::from(slot.key_len)]
    }

    fn entry(&self, slot: &EntrySlot) -> EntryRef<'_> {
        let value = &self.arena[slot.value_start as usize..][..slot.value_len as usize];
        let blob = self.blob(slot).map_or(BlobSpan::default(), |(index, blob)| BlobSpan {
            offset: index as u64,
            len: blob.len() as u32,
        });
        EntryRef { key: self.key(slot), kind: slot.kind, value, blob }
    }

    /// The blob of a slot and its index.
    fn blob(&self, slot: &EntrySlot) -> Option<(usize, &Arc<[u8]>)> {
        if slot.kind != Kind::InsertBlob {
            return None;
        }
        // The index of the blob stands behind the value.
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
    fn as_new(&self, slot: &EntrySlot) -> NewEntry<'_> {
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
            debug_assert!(u32::try_from(self.blobs.len()).is_ok(), "an index has 32 bits");
            let index = self.blobs.len() as u32;
            self.append(&index.to_le_bytes());
            self.blob_bytes += blob.len();
            self.blobs.push(Arc::clone(blob));
        }
        start
    }

    /// Bytes of value and blob that a slot refers to.
    fn content_bytes(&self, slot: &EntrySlot) -> usize {
        slot.value_len as usize + self.blob(slot).map_or(0, |(_, blob)| blob.len())
    }

    /// Sets the entry of a key, or combines it with the one that is there; a replaced slot is noted
    /// in `undo`.
    ///
    /// # Errors
    /// [`Error::ValueTooLarge`](crate::Error::ValueTooLarge): nothing has changed.
    pub(crate) fn put(
        &mut self,
        new: NewEntry<'_>,
        operator: &MergeOperator,
        undo: Option<&mut Undo>,
    ) -> Result<()> {
        let combine = |newer: &mut Vec<u8>, (kind, older): (Kind, &[u8])| match kind {
            Kind::TooLarge => Ok(operator.combine_stored(newer, (kind, older), false)),
            _ => operator.combine(newer, older).map(|()| false),
        };
        self.put_with(new, combine, undo)
    }

    /// Puts an entry that was put before into this chunk. Unlike [`put`](Self::put), a value that
    /// is too long becomes an entry of kind [`Kind::TooLarge`].
    fn put_again(&mut self, new: NewEntry<'_>, operator: &MergeOperator) -> Result<()> {
        let combine = |newer: &mut Vec<u8>, older: (Kind, &[u8])| {
            Ok(operator.combine_stored(newer, older, false))
        };
        self.put_with(new, combine, None)
    }

    /// Puts an entry; `combine` returns whether an upsert on an older entry becomes one of
    /// [`Kind::TooLarge`].
    fn put_with(
        &mut self,
        new: NewEntry<'_>,
        combine: impl FnOnce(&mut Vec<u8>, (Kind, &[u8])) -> Result<bool>,
        mut undo: Option<&mut Undo>,
    ) -> Result<()> {
        // The order that a reader has made does not hold after this put.
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
                // If the older entry decides, so does the combined one.
                kind = old.kind.under_upsert();
                if old.kind != Kind::Delete {
                    combined.extend_from_slice(value);
                    if combine(&mut combined, (old.kind, self.entry(&old).value))? {
                        kind = Kind::TooLarge;
                    }
                    value = &combined;
                }
            }

            // The old value stays in the arena as garbage, which an undo may need.
            let weight = value.len() + blob.map_or(0, |blob| blob.len());
            let dead = self.content_bytes(&old);
            let has_blob = old.kind == Kind::InsertBlob;
            let garbage = dead + if has_blob { BLOB_EXTRA_BYTES } else { 0 };
            self.garbage_bytes += garbage;

            if let Some(undo) = &mut undo {
                if undo.is_of_batch(at, &old) {
                    undo.dead_bytes += garbage;
                } else {
                    self.pad(undo);
                    undo.replaced.push((at, old));
                }
            }

            let value_start = self.append_value(value, blob);
            debug_assert!(dead as u64 <= self.weight_bytes, "the old entry was weighed");
            self.weight_bytes = self.weight_bytes - dead as u64 + weight as u64;
            let value_len = value.len() as u32;
            self.slots[at as usize] = EntrySlot { value_start, value_len, kind, ..old };
            self.collect_if_worth_it(undo);
            return Ok(());
        }

        self.add(new);
        Ok(())
    }

    /// Ensures that the next value of a batch begins behind every value from before the batch.
    fn pad(&mut self, undo: &Undo) {
        if self.arena.len() == undo.arena {
            self.arena.push(0);
            self.garbage_bytes += 1;
        }
        debug_assert!(undo.arena < self.arena.len());
    }

    /// Collects garbage that no undo needs, if it is most of the memory. So a key that one batch
    /// sets thousands of times takes no more than a few of its values.
    fn collect_if_worth_it(&mut self, undo: Option<&mut Undo>) {
        let is_worth_it = |dead: usize, live: u64| dead > GARBAGE_BYTES_MIN && dead as u64 > live;
        match undo {
            Some(undo) => {
                // Values from before the batch cannot move, since the undo knows their places.
                let live = self.arena.len() - undo.arena;
                let live = live.saturating_sub(undo.dead_bytes) as u64;
                if is_worth_it(undo.dead_bytes, live) {
                    self.collect_batch(undo);
                }
            }
            None if is_worth_it(self.garbage_bytes, self.weight_bytes) => {
                // Without an undo nothing refers to places in the arena, so live entries are
                // copied.
                *self = self.with_slots(&self.slots);
            }
            None => {}
        }
    }

    /// Rewrites the live values of a batch. Values from before the batch stay where they are.
    fn collect_batch(&mut self, undo: &mut Undo) {
        let tail = self.arena.split_off(undo.arena);
        let blobs = self.blobs.split_off(undo.blobs);
        self.blob_bytes -= blobs.iter().map(|blob| blob.len()).sum::<usize>();
        debug_assert!(undo.dead_bytes <= self.garbage_bytes, "dead bytes are garbage");
        debug_assert_eq!(self.arena.len(), undo.arena);
        debug_assert_eq!(self.blobs.len(), undo.blobs);
        self.garbage_bytes -= std::mem::take(&mut undo.dead_bytes);

        // The padding byte in front of the values, see `pad`.
        self.arena.push(0);

        // Live values of the batch are those of its slots and of the slots that it replaced.
        let made = undo.slots..self.slots.len();
        let replaced = undo.replaced.iter().map(|(at, _)| *at as usize);
        for at in replaced.chain(made) {
            let mut slot = self.slots[at];
            let in_tail = |start: u64| start as usize - undo.arena;
            debug_assert!(undo.arena as u64 <= slot.value_start, "the batch made the value");
            // A slot of the batch has its key behind the undo point too.
            if at >= undo.slots {
                let key = &tail[in_tail(slot.key_start)..][..usize::from(slot.key_len)];
                slot.key_start = self.append(key);
            }

            let value = &tail[in_tail(slot.value_start)..];
            let (value, behind) = value.split_at(slot.value_len as usize);

            let index = behind.first_chunk().filter(|_| slot.kind == Kind::InsertBlob);
            let blob = index.and_then(|index| {
                blobs.get((u32::from_le_bytes(*index) as usize).checked_sub(undo.blobs)?)
            });
            slot.value_start = self.append_value(value, blob);
            self.slots[at] = slot;
        }
    }

    /// Adds the entry of a key that the chunk does not have.
    fn add(&mut self, new: NewEntry<'_>) {
        let NewEntry { key, hash, kind, value, blob } = new;
        make_room(&mut self.arena, key.len() + value.len() + size_of::<u32>());
        let key_start = self.append(key);
        let value_start = self.append_value(value, blob);
        debug_assert!(u32::try_from(self.slots.len()).is_ok(), "a slot's number has 32 bits");
        let at = self.slots.len() as u32;
        debug_assert!(u16::try_from(key.len()).is_ok(), "the length of a key was checked");
        let key_len = key.len() as u16;
        let value_len = value.len() as u32;
        make_room(&mut self.slots, 1);
        self.slots.push(EntrySlot { hash, key_start, value_start, value_len, key_len, kind });
        // The table keeps no hashes, so it looks them up when it grows.
        let slots = &self.slots;
        self.table.insert_unique(hash, at, |&at| slots[at as usize].hash);
        debug_assert_eq!(self.table.len(), self.slots.len(), "each slot is in the table");
        let content = value.len() + blob.map_or(0, |blob| blob.len());

        self.weight_bytes += key.len() as u64 + content as u64 + ENTRY_OVERHEAD_BYTES;
    }

    /// Weight of an entry in a memtable bounded in bytes.
    fn entry_weight_bytes(&self, slot: &EntrySlot) -> u64 {
        u64::from(slot.key_len) + self.content_bytes(slot) as u64 + ENTRY_OVERHEAD_BYTES
    }

    /// Puts all entries of a newer chunk.
    fn put_all(&mut self, newer: &Self, operator: &MergeOperator) -> Result<()> {
        debug_assert_eq!(newer.table.len(), newer.slots.len(), "each slot is in the table");
        let mut slots = newer.slots.iter();
        slots.try_for_each(|slot| self.put_again(newer.as_new(slot), operator))
    }

    /// Begins a batch: all entries put from here on can be undone together.
    pub(crate) fn begin(&mut self) -> Undo {
        // Without a batch under way no undo refers to the arena, so garbage can go.
        if self.garbage_bytes > GARBAGE_BYTES_MIN && self.garbage_bytes as u64 > self.weight_bytes {
            *self = self.with_slots(&self.slots);
        }

        Undo {
            arena: self.arena.len(),
            blobs: self.blobs.len(),
            slots: self.slots.len(),
            weight_bytes: self.weight_bytes,
            garbage_bytes: self.garbage_bytes,
            replaced: Vec::new(),
            dead_bytes: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn has_blobs(&self) -> bool {
        !self.blobs.is_empty()
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// Returns a chunk of these slots only, all of different keys.
    fn with_slots(&self, slots: &[EntrySlot]) -> Self {
        let mut copy = Self::default();
        for slot in slots {
            copy.add(self.as_new(slot));
        }
        copy
    }

    /// Undoes a batch.
    pub(crate) fn roll_back(&mut self, undo: &Undo) {
        debug_assert!(undo.slots <= self.slots.len() && undo.arena <= self.arena.len());
        debug_assert!(undo.blobs <= self.blobs.len(), "the blobs of before are still there");

        self.order.take();
        // Newest slots first, so that the table still finds each slot by its place.
        for at in (undo.slots..self.slots.len()).rev() {
            let hash = self.slots[at].hash;
            if let Ok(found) = self.table.find_entry(hash, |&other| other as usize == at) {
                found.remove();
            }
        }

        // A slot is replaced by the batch at most once, so each record restores the state before.
        for &(at, slot) in undo.replaced.iter().rev() {
            self.slots[at as usize] = slot;
        }

        self.slots.truncate(undo.slots);
        self.arena.truncate(undo.arena);
        debug_assert_eq!(self.table.len(), self.slots.len(), "each slot is in the table");
        self.blob_bytes -= self.blobs.drain(undo.blobs..).map(|blob| blob.len()).sum::<usize>();
        self.weight_bytes = undo.weight_bytes;

        self.garbage_bytes = undo.garbage_bytes;
    }

    /// Returns a copy without the changes of a batch.
    pub(crate) fn before(&self, undo: &Undo) -> Self {
        debug_assert!(undo.slots <= self.slots.len(), "a batch takes no slot away");
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

    /// Charge of the chunk under a memory budget, see [`charge_for`]; it also covers vectors and a
    /// hash table that have just grown.
    pub(crate) fn charged_bytes(&self) -> u64 {
        let blobs = self.blobs.len() as u64 * BLOB_OVERHEAD_BYTES;
        let content = self.weight_bytes + self.garbage_bytes as u64 + blobs;
        content.max(charge_for(self.memory_bytes() as u64))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.arena.capacity()
            + self.blob_bytes
            + self.blobs.capacity() * size_of::<Arc<[u8]>>()
            + self.slots.capacity() * size_of::<EntrySlot>()
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
    image: Image,
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

        debug_assert_eq!(starts.len(), chunks.len());
        debug_assert!(u32::try_from(count).is_ok(), "a slot's number has 32 bits");
        let table = HashTable::new();
        let order = OnceLock::new();
        let image = Image::default();
        let mut folded = Self { chunks, starts, table, weight_bytes: 0, order, image };

        // The table stays apart while it is filled, since its hash function looks into the rest.
        let mut table = HashTable::with_capacity(count);
        for (&start, chunk) in folded.starts.iter().zip(&folded.chunks) {
            for (at, slot) in (start..).zip(&chunk.slots) {
                let key = chunk.key(slot);
                let older = table.find_mut(slot.hash, |&older| {
                    let (chunk, older) = folded.slot(older);
                    older.hash == slot.hash && folded.chunks[chunk].key(older) == key
                });

                // Each key counts once: the weight of the older entry is taken off below.
                folded.weight_bytes += chunk.entry_weight_bytes(slot);

                if let Some(older) = older {
                    // Combining makes a new value, which a table over shared chunks cannot hold.
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

        debug_assert!(table.len() <= count, "at most one slot of each key is the newest");
        folded.table = table;
        Some(folded)
    }

    /// The slot of that number, with the index of its chunk.
    fn slot(&self, at: u32) -> (usize, &EntrySlot) {
        debug_assert!(self.starts.first() == Some(&0), "each slot has a chunk");
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
    pub(crate) fn memory_bytes(&self) -> usize {
        self.starts.len() * (size_of::<u32>() + size_of::<Arc<Chunk>>())
            + self.table.allocation_size()
            + self.order.get().map_or(0, |order| order.len() * size_of::<u32>())
    }
}

/// A part without the keys that a mask covers.
#[derive(Debug)]
pub(crate) struct MaskedPart {
    /// Never masked itself.
    inner: MemtablePart,
    mask: Mask,
    /// The newest slots that the mask leaves, in key order, made on demand.
    order: OnceLock<Box<[u32]>>,
}

impl MaskedPart {
    fn order(&self) -> &[u32] {
        self.order.get_or_init(|| {
            let all = self.inner.order();
            let mut left = Vec::with_capacity(all.len());
            let mut start = 0;
            for span in self.mask.spans() {
                let from = all.partition_point(|&at| self.inner.key(at) < span.from.as_slice());
                left.extend_from_slice(&all[start..from.max(start)]);
                let is_below = |&at: &u32| {
                    span.end.as_ref().is_none_or(|end| self.inner.key(at) < end.as_slice())
                };
                start = all.partition_point(is_below);
            }

            left.extend_from_slice(&all[start..]);
            debug_assert!(left.len() <= all.len(), "a mask adds no entry");
            left.into()
        })
    }
}

/// Some entries, one for each key. Clones are the same part.
#[derive(Debug, Clone)]
pub(crate) enum MemtablePart {
    Chunk(Arc<Chunk>),
    Folded(Arc<Folded>),
    Masked(Arc<MaskedPart>),
}

impl MemtablePart {
    /// Makes one part of several, oldest first.
    pub(crate) fn fold(parts: &[Self], operator: &MergeOperator) -> Result<Self> {
        let chunks: Vec<_> = parts.iter().flat_map(Self::chunks).cloned().collect();
        let count: usize = chunks.iter().map(|chunk| chunk.slots.len()).sum();
        let weight_bytes: u64 = chunks.iter().map(|chunk| chunk.weight_bytes).sum();
        let is_masked = parts.iter().any(|part| matches!(part, Self::Masked(_)));

        // Small chunks take more than their entries, and hidden keys of a masked part have to go.
        if count >= chunks.len() * CHUNK_ENTRIES_MIN
            && !is_masked
            && let Some(folded) = Folded::new(chunks)
            // If newer entries hide most of the chunks, a copy takes less than sharing them.
            && folded.weight_bytes >= weight_bytes / 2
        {
            return Ok(Self::Folded(Arc::new(folded)));
        }

        let mut copied = Chunk::default();
        for part in parts {
            match part {
                Self::Chunk(chunk) => copied.put_all(chunk, operator)?,
                Self::Folded(folded) => {
                    for &at in &folded.table {
                        let (chunk, slot) = folded.slot(at);
                        let entry = folded.chunks[chunk].as_new(slot);
                        copied.put_again(entry, operator)?;
                    }
                }
                Self::Masked(masked) => {
                    for &at in masked.order() {
                        let (chunk, slot) = part.slot(at);
                        let entry = part.chunks()[chunk].as_new(slot);
                        copied.put(entry, operator, None)?;
                    }
                }
            }
        }

        debug_assert!(copied.slots.len() <= count, "folding makes no more entries");
        Ok(Self::Chunk(Arc::new(copied)))
    }

    pub(crate) fn chunks(&self) -> &[Arc<Chunk>] {
        match self {
            Self::Chunk(chunk) => std::slice::from_ref(chunk),
            Self::Folded(folded) => &folded.chunks,
            Self::Masked(masked) => masked.inner.chunks(),
        }
    }

    /// Returns the part without the keys that one more span covers.
    pub(crate) fn masked(&self, masking: &mut Masking<'_>) -> Self {
        self.with_mask(masking.on(self.mask().unwrap_or(&Mask::default())))
    }

    /// Returns the part without the keys that a mask covers, in addition to its own mask.
    pub(crate) fn under_mask(&self, mask: &Mask) -> Self {
        match self.mask() {
            _ if mask.is_empty() => self.clone(),
            Some(own) => self.with_mask(own.union(mask)),
            None => self.with_mask(mask.clone()),
        }
    }

    fn with_mask(&self, mask: Mask) -> Self {
        let inner = match self {
            Self::Masked(masked) => masked.inner.clone(),
            Self::Chunk(_) | Self::Folded(_) => self.clone(),
        };
        Self::Masked(Arc::new(MaskedPart { inner, mask, order: OnceLock::new() }))
    }

    /// Whether both are the same piece of memory under the same mask.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Chunk(one), Self::Chunk(other)) => Arc::ptr_eq(one, other),
            (Self::Folded(one), Self::Folded(other)) => Arc::ptr_eq(one, other),
            (Self::Masked(one), Self::Masked(other)) => {
                Arc::ptr_eq(one, other) || one.mask == other.mask && one.inner.is_same(&other.inner)
            }
            _ => false,
        }
    }

    /// The keys that the part is seen without, if it is masked.
    pub(crate) fn mask(&self) -> Option<&Mask> {
        match self {
            Self::Masked(masked) => Some(&masked.mask),
            Self::Chunk(_) | Self::Folded(_) => None,
        }
    }

    /// Returns the chunk, if it is neither shared nor saved.
    pub(crate) fn writable(&mut self) -> Option<&mut Chunk> {
        match self {
            Self::Chunk(chunk) => {
                // A chunk that a fork shares, or that a snapshot has saved, never changes again.
                let chunk = Arc::get_mut(chunk)?;
                if chunk.image.is_set() { None } else { Some(chunk) }
            }
            Self::Folded(_) | Self::Masked(_) => None,
        }
    }

    /// The parts that are saved for this one, oldest first: each of its chunks, which may have been
    /// saved before it was folded, unless they are many. They are not masked: references to their
    /// images carry the mask.
    pub(crate) fn saved_as(&self) -> Vec<Self> {
        match self {
            Self::Folded(folded) if folded.chunks.len() <= IMAGES_PER_PART_MAX => {
                folded.chunks.iter().cloned().map(Self::Chunk).collect()
            }
            Self::Masked(masked) => masked.inner.saved_as(),
            Self::Chunk(_) | Self::Folded(_) => vec![self.clone()],
        }
    }

    /// The run of its entries, masked ones included.
    pub(crate) fn image(&self) -> &Image {
        match self {
            Self::Chunk(chunk) => &chunk.image,
            Self::Folded(folded) => &folded.image,
            Self::Masked(masked) => masked.inner.image(),
        }
    }

    /// Entries, one for each key; masked ones count.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Chunk(chunk) => chunk.slots.len(),
            Self::Folded(folded) => folded.table.len(),
            Self::Masked(masked) => masked.inner.len(),
        }
    }

    pub(crate) fn weight_bytes(&self) -> u64 {
        match self {
            Self::Chunk(chunk) => chunk.weight_bytes,
            Self::Folded(folded) => folded.weight_bytes,
            Self::Masked(masked) => masked.inner.weight_bytes(),
        }
    }

    /// The entry of a key, with its chunk.
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<(&Chunk, EntryRef<'_>)> {
        match self {
            Self::Chunk(chunk) => Some((chunk, chunk.get(hash, key)?)),
            Self::Folded(folded) => folded.get(hash, key),
            Self::Masked(masked) if masked.mask.covers(key) => None,
            Self::Masked(masked) => masked.inner.get(hash, key),
        }
    }

    /// Sorts the keys now, so that no later reader has to.
    pub(crate) fn sort(&self) {
        self.order();
    }

    /// Newest slots in key order.
    fn order(&self) -> &[u32] {
        match self {
            Self::Chunk(chunk) => chunk.order(),
            Self::Folded(folded) => folded.order(),
            Self::Masked(masked) => masked.order(),
        }
    }

    /// The slot of that number, with the index of its chunk.
    fn slot(&self, at: u32) -> (usize, &EntrySlot) {
        match self {
            Self::Chunk(chunk) => (0, &chunk.slots[at as usize]),
            Self::Folded(folded) => folded.slot(at),
            Self::Masked(masked) => masked.inner.slot(at),
        }
    }

    fn key(&self, at: u32) -> &[u8] {
        let (chunk, slot) = self.slot(at);
        self.chunks()[chunk].key(slot)
    }

    /// Slots in all chunks, hidden ones included.
    pub(crate) fn slots(&self) -> usize {
        self.chunks().iter().map(|chunk| chunk.slots.len()).sum()
    }

    /// Length of their longest value. Cost: that of a look at each entry.
    pub(crate) fn longest_value_bytes(&self) -> u64 {
        let slots = self.chunks().iter().flat_map(|chunk| &chunk.slots);
        slots.map(|slot| slot.value_len).max().unwrap_or(0).into()
    }

    /// The hashes of their keys.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = u64> {
        self.chunks().iter().flat_map(|chunk| &chunk.slots).map(|slot| slot.hash)
    }

    /// The smallest and the largest key.
    pub(crate) fn key_range(&self) -> Option<(&[u8], &[u8])> {
        let order = self.order();
        Some((self.key(*order.first()?), self.key(*order.last()?)))
    }

    /// Memory that will be held when the entries have been put in order.
    pub(crate) fn memory_bytes_in_order(&self) -> u64 {
        let entries: usize = self.chunks().iter().map(|chunk| chunk.slots.len()).sum();
        (self.memory_bytes() + (entries + self.len()) * size_of::<u32>()) as u64
    }

    /// Memory held, chunks included.
    pub(crate) fn memory_bytes(&self) -> usize {
        let own = match self {
            Self::Chunk(_) => 0,
            Self::Folded(folded) => folded.memory_bytes(),
            Self::Masked(masked) => {
                let order = masked.order.get().map_or(0, |order| order.len() * size_of::<u32>());
                let inner = masked.inner.memory_bytes();
                return inner + masked.mask.memory_bytes() + order;
            }
        };
        own + self.chunks().iter().map(|chunk| chunk.memory_bytes()).sum::<usize>()
    }
}

/// A position in the part of a part that is in a range of keys, in key order or against it.
#[derive(Debug)]
pub(crate) struct MemtablePartReader {
    part: MemtablePart,
    order: Order,
    /// Places in the order of keys that have not been passed; the current one is the first or the
    /// last.
    places: Range<usize>,
    /// The slot at the current place, with the index of its chunk; `None` at the end.
    slot: Option<(usize, EntrySlot)>,
}

impl MemtablePartReader {
    /// A reader at the first entry in the range, in this order.
    pub(crate) fn new(part: &MemtablePart, range: &KeyRange, order: Order) -> Self {
        let key = |&at: &u32| part.key(at);
        let start = part.order().partition_point(|at| range.is_below(key(at)));
        let end = part.order().partition_point(|at| !range.is_above(key(at)));
        let part = part.clone();
        let mut reader = Self { part, order, places: start..end, slot: None };
        reader.load();
        reader
    }

    fn load(&mut self) {
        let order = self.part.order();
        // The slot that is `by` entries ahead of the current one.
        let ahead = |by: usize| {
            if by >= self.places.len() {
                return None;
            }
            let place = match self.order {
                Order::Ascending => self.places.start + by,
                Order::Descending => self.places.end - 1 - by,
            };
            order.get(place).map(|&at| self.part.slot(at))
        };

        // Entries stand in order of arrival, so each step in key order would wait for memory twice.
        if let Some((_, slot)) = ahead(2 * PREFETCH_ENTRIES) {
            prefetch(slot);
        }
        if let Some((chunk, slot)) = ahead(PREFETCH_ENTRIES)
            && let Some(key) = self.part.chunks()[chunk].arena.get(slot.key_start as usize)
        {
            prefetch(key);
        }

        self.slot = ahead(0).map(|(chunk, slot)| (chunk, *slot));
    }

    /// The current slot, with its chunk; `None` at the end.
    fn slot(&self) -> Option<(&Chunk, &EntrySlot)> {
        self.slot.as_ref().map(|(chunk, slot)| (self.part.chunks()[*chunk].as_ref(), slot))
    }

    /// The current key; `None` at the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.slot().map(|(chunk, slot)| chunk.key(slot))
    }

    /// The current entry; `None` at the end.
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        self.slot().map(|(chunk, slot)| chunk.entry(slot))
    }

    /// The kind of the current entry; `None` at the end.
    pub(crate) fn kind(&self) -> Option<Kind> {
        self.slot.map(|(_, slot)| slot.kind)
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
    }
}
