//! The memtable: the newest entries of a table, in memory.
//!
//! A memtable is a list of [parts](crate::memtable::part). Updates write to the last part as long
//! as nothing else refers to it. A fork, a cursor or a flush takes a reference and so freezes it;
//! the next update starts a new part. So a fork costs a few reference counts at any size, and two
//! tables that evolve apart share their common parts.
//!
//! A part of [`PART_ENTRIES_MAX`] entries is also closed, and sorted. So the flush of a large
//! memtable, which reads it in key order, has at most one part left to sort, and no update stalls
//! for longer.
//!
//! All versions of a memtable share a [`Sketch`] of the keys in all parts but the last. So a lookup
//! of an absent key looks into the last part only.
//!
//! Invariant: an entry of a newer part hides one of an older part, or combines with it if it
//! is an upsert.

use std::sync::Arc;

use crate::entry::entry::{EntryRef, Update, key_hash};
use crate::entry::mask::{Mask, Masking};
use crate::entry::merge_operator::MergeOperator;
use crate::error::Result;
use crate::filter::sketch::Sketch;
use crate::memtable::part::{Chunk, MemtablePart, NewEntry, Room, Undo, charge_for};

/// Neighbouring parts of similar size that are folded into one. So a memtable of *n* entries that
/// is forked after every update has O(log n) parts, and each entry is in O(log n) hash tables.
const PARTS_PER_TIER: usize = 8;

/// Entries from which on the next batch closes a part. Sorting this many takes a few milliseconds.
const PART_ENTRIES_MAX: usize = 1 << 15;

/// The memtable of a table.
#[derive(Debug, Default, Clone)]
pub(crate) struct Memtable {
    /// Parts, oldest first. Invariant: only the last one changes, and only while nothing else
    /// refers to it.
    parts: Vec<MemtablePart>,
    older: OlderParts,
}

/// Sums over all parts but the last.
#[derive(Debug, Default, Clone)]
struct OlderParts {
    weight_bytes: u64,
    len: usize,
    /// Memory, that of the sketch included.
    memory_bytes: u64,
    /// Sketch of their keys, and possibly of others.
    sketch: Option<Arc<Sketch>>,
}

impl Memtable {
    /// Returns a memtable of one part, for reading.
    pub(crate) fn of(part: MemtablePart) -> Self {
        Self { parts: vec![part], older: OlderParts::default() }
    }

    /// Returns a memtable of frozen parts, oldest first.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin).
    pub(crate) fn of_parts(all: Vec<MemtablePart>, operator: &MergeOperator) -> Result<Self> {
        let mut parts = Vec::new();
        for part in all {
            fold(&mut parts, operator)?;
            parts.push(part);
        }

        let mut buffer = Self { parts, older: OlderParts::default() };
        if buffer.parts.len() > 1 {
            let sketch = buffer.sketch_of_all();
            let parts = std::mem::take(&mut buffer.parts);
            buffer.set_parts(parts, sketch);
        }

        Ok(buffer)
    }

    /// The parts, oldest first.
    pub(crate) fn parts(&self) -> &[MemtablePart] {
        &self.parts
    }

    /// Drops parts of a memtable that is only read.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&MemtablePart) -> bool) {
        let mut parts = std::mem::take(&mut self.parts);
        parts.retain(|part| is_wanted(part));
        // The sketch keeps keys of dropped parts: it claims too many keys, never too few.
        let sketch = self.older.sketch.take();
        self.set_parts(parts, sketch);
    }

    /// Keys, values and overhead; a key in several parts counts in each.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.older.weight_bytes + self.parts.last().map_or(0, MemtablePart::weight_bytes)
    }

    /// Charge under a memory budget: at least four fifths of the memory that the memtable takes.
    pub(crate) fn charged_bytes(&self) -> u64 {
        let last = self.parts.last().map_or(0, |last| match last {
            MemtablePart::Chunk(chunk) => chunk.charged_bytes(),
            MemtablePart::Folded(_) | MemtablePart::Masked(_) => {
                charge_for(last.memory_bytes_in_order())
            }
        });
        charge_for(self.older.memory_bytes) + last
    }

    /// Entries; a key in several parts counts in each.
    pub(crate) fn len(&self) -> usize {
        self.older.len + self.parts.last().map_or(0, MemtablePart::len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        let sketch = self.older.sketch.as_ref().map_or(0, |sketch| sketch.memory_bytes());
        sketch + self.parts.iter().map(MemtablePart::memory_bytes).sum::<usize>()
    }

    /// The entries of a key, newest first, with the chunks that hold them.
    pub(crate) fn entries<'a>(
        &'a self,
        hash: u64,
        key: &'a [u8],
    ) -> impl Iterator<Item = (&'a Chunk, EntryRef<'a>)> {
        let (last, mut older) = match self.parts.split_last() {
            Some((last, older)) => (Some(last), older),
            None => (None, &[][..]),
        };
        // Most keys are in no older part, which the sketch knows without a look at them.
        if self.older.sketch.as_ref().is_some_and(|sketch| !sketch.may_hold(hash)) {
            older = &[];
        }
        let parts = last.into_iter().chain(older.iter().rev());
        parts.filter_map(move |part| part.get(hash, key))
    }

    /// Whether entries may have blobs.
    pub(crate) fn has_blobs(&self) -> bool {
        self.parts.iter().flat_map(MemtablePart::chunks).any(|chunk| chunk.has_blobs())
    }

    /// Returns the sketch with the keys of the last part added; a larger sketch if it is full.
    fn sketch_of_all(&self) -> Option<Arc<Sketch>> {
        let last = self.parts.last()?;
        if let Some(sketch) = &self.older.sketch
            && sketch.has_room(last.slots())
        {
            sketch.add(last.hashes());
            return Some(Arc::clone(sketch));
        }
        // Twice as many slots, so that the next parts find room in the same sketch.
        let sketch = Sketch::new(2 * self.parts.iter().map(MemtablePart::slots).sum::<usize>());
        self.parts.iter().for_each(|part| sketch.add(part.hashes()));
        Some(Arc::new(sketch))
    }

    /// Replaces all parts; the sketch must have the keys of all but the last.
    fn set_parts(&mut self, parts: Vec<MemtablePart>, sketch: Option<Arc<Sketch>>) {
        debug_assert!(parts.len() <= 1 || sketch.is_some(), "older parts have a sketch");
        let older = &parts[..parts.len().saturating_sub(1)];
        let weight_bytes = older.iter().map(MemtablePart::weight_bytes).sum();
        let len = older.iter().map(MemtablePart::len).sum();
        let memory_bytes = older.iter().map(MemtablePart::memory_bytes_in_order).sum::<u64>();
        let memory_bytes = memory_bytes + sketch.as_ref().map_or(0, |s| s.memory_bytes() as u64);
        *self = Self { parts, older: OlderParts { weight_bytes, len, memory_bytes, sketch } };
    }

    fn last_chunk(&mut self) -> Option<&mut Chunk> {
        self.parts.last_mut().and_then(MemtablePart::writable)
    }

    /// Returns the last part's chunk; begins a new part if the last one is shared or full.
    fn open_chunk(&mut self, room: Room, operator: &MergeOperator) -> Result<&mut Chunk> {
        let full = self.parts.last().filter(|last| last.len() >= PART_ENTRIES_MAX);
        if let Some(full) = full {
            full.sort();
        }

        if full.is_some() || self.last_chunk().is_none() {
            let mut parts = self.parts.clone();
            fold(&mut parts, operator)?;
            parts.push(MemtablePart::Chunk(Arc::new(Chunk::with_room(room))));
            let sketch = self.sketch_of_all();
            self.set_parts(parts, sketch);
        }

        debug_assert!(self.parts.last().is_some_and(|last| last.len() < PART_ENTRIES_MAX));
        Ok(self.last_chunk().expect("made writable above"))
    }

    /// Begins a batch of about this size: all entries put until the next call can be undone
    /// together.
    ///
    /// # Errors
    /// [`Error::ValueTooLarge`](crate::Error::ValueTooLarge) if two upserts make too large a value.
    pub(crate) fn begin(&mut self, room: Room, operator: &MergeOperator) -> Result<Undo> {
        Ok(self.open_chunk(room, operator)?.begin())
    }

    /// Sets the entry of a key, in a batch. `undo` is the result of [`begin`](Self::begin), or
    /// `None` if a flush has replaced the memtable since.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin).
    #[inline(never)] // so that `cargo xtask counts` sees it apart
    pub(crate) fn put(
        &mut self,
        entry: NewEntry<'_>,
        operator: &MergeOperator,
        undo: Option<&mut Undo>,
    ) -> Result<()> {
        if let Some(last) = self.last_chunk() {
            return last.put(entry, operator, undo);
        }
        // The memtable is empty since a flush, or masked since a range deletion.
        self.open_chunk(Room::default(), operator)?.put(entry, operator, undo)
    }

    /// Puts an update of a key, in a session with this salt.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin).
    pub(crate) fn put_update(
        &mut self,
        (key, update): (&[u8], Update<'_>),
        salt: u64,
        operator: &MergeOperator,
        undo: Option<&mut Undo>,
    ) -> Result<()> {
        let (kind, value, blob) = update.parts();
        let blob = blob.map(Arc::from);
        let hash = key_hash(salt, key);
        self.put(NewEntry { key, hash, kind, value, blob: blob.as_ref() }, operator, undo)
    }

    /// Removes the keys of a span from all parts. Cost: a reference for each part.
    pub(crate) fn mask(&mut self, masking: &mut Masking<'_>) {
        self.replace_parts(|part| part.masked(masking));
    }

    /// Returns the memtable without the keys that a mask covers.
    pub(crate) fn under_mask(&self, mask: &Mask) -> Self {
        let mut buffer = self.clone();
        if !mask.is_empty() {
            buffer.replace_parts(|part| part.under_mask(mask));
        }
        buffer
    }

    fn replace_parts(&mut self, replaced: impl FnMut(&MemtablePart) -> MemtablePart) {
        let parts = self.parts.iter().map(replaced).collect();
        let sketch = self.older.sketch.take();
        self.set_parts(parts, sketch);
    }

    /// Undoes the batch that `undo` stands for.
    pub(crate) fn roll_back(&mut self, undo: &Undo) {
        let Some(MemtablePart::Chunk(last)) = self.parts.last_mut() else { return };
        match Arc::get_mut(last) {
            Some(last) => last.roll_back(undo),
            // A flush shares the chunk, so the entries from before the batch are copied out of it.
            None => *last = Arc::new(last.before(undo)),
        }

        // With an empty part the memtable would not count as empty.
        if last.is_empty() {
            let mut parts = std::mem::take(&mut self.parts);
            parts.pop();
            let sketch = self.older.sketch.take();
            self.set_parts(parts, sketch);
        }
    }
}

/// Folds the newest parts, as long as enough of them are no larger than the newest one's tier. Full
/// parts stay as they are, sorted.
fn fold(parts: &mut Vec<MemtablePart>, operator: &MergeOperator) -> Result<()> {
    let tier = |part: &MemtablePart| part.len().max(1).ilog(PARTS_PER_TIER);
    let is_small = |part: &MemtablePart| part.len() < PART_ENTRIES_MAX;
    // Each round makes one part of several, so the loop ends.
    while let Some(newest) = parts.last().map(tier) {
        let alike = |older: &&MemtablePart| is_small(older) && tier(older) <= newest;
        let alike = parts.iter().rev().take_while(alike).count();
        if alike < PARTS_PER_TIER {
            break;
        }
        let first = parts.len() - alike;
        let folded = MemtablePart::fold(&parts[first..], operator)?;
        debug_assert!(
            folded.len() <= parts[first..].iter().map(MemtablePart::len).sum::<usize>(),
            "folding makes no more entries"
        );
        parts.truncate(first);
        parts.push(folded);
    }

    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::entry::{ENTRY_OVERHEAD_BYTES, Kind, Order, key_hash};
    use crate::entry::key_range::KeyRange;
    use crate::memtable::part::MemtablePartReader;
    use crate::run::blob::Blob;

    fn put_with(
        buffer: &mut Memtable,
        (key, kind, value): (&[u8], Kind, &[u8]),
        blob: Option<&Arc<[u8]>>,
        undo: &mut Undo,
    ) {
        let operator = MergeOperator::concatenate();
        let new = NewEntry { key, hash: key_hash(1, key), kind, value, blob };
        buffer.put(new, &operator, Some(undo)).unwrap();
    }

    #[test]
    fn a_blob_that_is_replaced_again_and_again_takes_no_more_room() {
        let mut buffer = Memtable::default();
        let blob: Arc<[u8]> = Arc::default();
        for _ in 0..40_000 {
            let mut undo = begin(&mut buffer);
            put_with(&mut buffer, (b"key", Kind::InsertBlob, b""), Some(&blob), &mut undo);
        }
        assert_eq!(buffer.len(), 1);
        assert!(buffer.memory_bytes() < 400 << 10, "{} bytes", buffer.memory_bytes());
    }

    fn begin(buffer: &mut Memtable) -> Undo {
        buffer.begin(Room::default(), &MergeOperator::concatenate()).unwrap()
    }

    fn put_with_one(buffer: &mut Memtable, entry: (&[u8], Kind, &[u8])) {
        let mut undo = begin(buffer);
        put_with(buffer, entry, None, &mut undo);
    }

    fn put(buffer: &mut Memtable, number: u64) {
        let key = number.to_le_bytes();
        let mut undo = begin(buffer);
        put_with(buffer, (&key, Kind::Insert, &key), None, &mut undo);
    }

    /// The newest entry.
    fn newest(buffer: &Memtable, key: &[u8]) -> Option<(Kind, Vec<u8>)> {
        let mut entries = buffer.entries(key_hash(1, key), key);
        entries.next().map(|(_, entry)| (entry.kind, entry.value.to_vec()))
    }

    /// Entries in the chunks of some buffers and bytes of everything, what they share counted once.
    fn held(buffers: &[Memtable]) -> (usize, usize) {
        let mut entries = 0;

        let mut bytes = 0;
        let mut seen = std::collections::BTreeSet::new();
        for part in buffers.iter().flat_map(Memtable::parts) {
            if let MemtablePart::Folded(folded) = part
                && seen.insert(Arc::as_ptr(folded).addr())
            {
                bytes += folded.memory_bytes();
            }
            for chunk in part.chunks() {
                if seen.insert(Arc::as_ptr(chunk).addr()) {
                    entries += MemtablePart::Chunk(Arc::clone(chunk)).len();
                    bytes += chunk.memory_bytes();
                }
            }
        }

        (entries, bytes)
    }

    /// A fork after every update, all kept: few parts in each, and little copying in all.
    #[test]
    fn a_buffer_duplicated_after_every_update_keeps_few_parts() {
        let mut buffer = Memtable::default();
        let mut versions = Vec::new();
        for number in 0..4096 {
            put(&mut buffer, number);
            versions.push(buffer.clone());
        }

        let most = versions.iter().map(|version| version.parts().len()).max();
        let tiers = 1 + 4096_usize.ilog(PARTS_PER_TIER) as usize;
        assert!(most <= Some((PARTS_PER_TIER - 1) * tiers + 1), "{most:?} parts");
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

    /// The entries of each part in order; each must be the one that is found by its key.
    fn read(buffer: &Memtable) -> Vec<Vec<Read>> {
        let read = |part: &MemtablePart| {
            let mut entries = Vec::new();
            let all = KeyRange::ALL;
            let mut reader = MemtablePartReader::new(part, &all, Order::Ascending);
            while let Some(entry) = reader.current() {
                let hash = key_hash(1, entry.key);
                assert_eq!(reader.hash(), Some(hash));
                assert_eq!(part.get(hash, entry.key).map(|(_, entry)| entry), Some(entry));
                let from = all.from(std::ops::Bound::Included(entry.key.to_vec()));
                let mut at = MemtablePartReader::new(part, &from, Order::Ascending);
                assert_eq!(at.current(), Some(entry));
                at.advance();
                entries.push((entry.key.to_vec(), entry.kind, entry.value.to_vec()));
                reader.advance();
                assert_eq!(at.current(), reader.current());
            }

            let bounds = entries.first().zip(entries.last());
            let bounds = bounds.map(|(first, last)| (first.0.as_slice(), last.0.as_slice()));
            assert_eq!(part.key_range(), bounds);
            assert!(entries.is_sorted_by(|left, right| left.0 < right.0));
            entries
        };

        buffer.parts().iter().map(read).collect()
    }

    /// A fork after every block of a ledger, all kept: each entry is there once.
    #[test]
    fn versions_of_a_buffer_share_their_entries() {
        const BLOCKS: u64 = 80;
        const CHANGES: u64 = 256;
        let operator = MergeOperator::concatenate();
        let mut buffer = Memtable::default();
        let mut versions = Vec::new();
        let value = |number: u64| [number.to_le_bytes(); 8].concat()[..60].to_vec();

        for block in 0..BLOCKS {
            let entries = 2 * CHANGES as usize;
            let room = Room { entries, bytes: entries * (34 + 30) };
            let mut undo = buffer.begin(room, &operator).unwrap();
            for at in 0..CHANGES {
                let made = (long_key(block * CHANGES + at), value(block * CHANGES + at));
                put_with(&mut buffer, (&made.0, Kind::Insert, &made.1), None, &mut undo);
                // Every second key that the block before has made.
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
            let count = version.parts().len();
            assert!(count <= (PARTS_PER_TIER - 1) * 2 + 2, "{count} parts");
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
        let parts = read(last);
        assert_eq!(last.len(), parts.iter().map(Vec::len).sum::<usize>());
        let overhead = ENTRY_OVERHEAD_BYTES as usize;
        let weight = |entry: &Read| entry.0.len() + entry.2.len() + overhead;
        let weight: usize = parts.iter().flatten().map(weight).sum();

        assert_eq!(last.weight_bytes(), weight as u64);
    }

    /// Whatever is folded, and however: the same answers, at every stage, from every version.
    #[test]
    fn folded_upserts_and_blobs_are_those_that_were_put() {
        let operator = MergeOperator::concatenate();
        for kinds in [
            &[Kind::Insert, Kind::InsertBlob, Kind::Delete][..],
            &[Kind::Upsert, Kind::Insert, Kind::Delete, Kind::InsertBlob],
        ] {
            let mut buffer = Memtable::default();
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
            let folded = |part: &MemtablePart| part.chunks().len() > 1;
            let shared = versions.iter().any(|version| version.0.parts().iter().any(folded));
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
                            Some(newer) => operator.combine(newer, entry.value).unwrap(),
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

    /// Updates the same keys again and again, with a fork that is dropped after each update.
    #[test]
    fn what_no_version_needs_does_not_stay() {
        let mut buffer = Memtable::default();
        for round in 0..300 {
            for number in 0..100 {
                let _version = buffer.clone();
                put(&mut buffer, number);
            }
            assert!(buffer.len() <= 100 * PARTS_PER_TIER, "{} in round {round}", buffer.len());
            let bytes = buffer.memory_bytes();
            assert!(bytes < 100 * 1_000, "{bytes} bytes in round {round}");
        }
    }

    #[test]
    fn a_full_segment_is_closed_and_hidden_by_newer_ones() {
        let mut buffer = Memtable::default();
        let count = PART_ENTRIES_MAX as u64;
        for number in 0..count {
            put(&mut buffer, number);
        }

        assert_eq!(buffer.parts().len(), 1);

        // A batch that begins another part, and is taken back.
        let key = 7_u64.to_le_bytes();
        let mut undo = begin(&mut buffer);
        put_with(&mut buffer, (&key, Kind::Delete, b""), None, &mut undo);
        assert_eq!(newest(&buffer, &key), Some((Kind::Delete, Vec::new())));
        assert_eq!(buffer.parts().len(), 2);
        buffer.roll_back(&undo);
        assert_eq!(newest(&buffer, &key), Some((Kind::Insert, key.to_vec())));
        assert_eq!(buffer.len(), PART_ENTRIES_MAX);

        // And one that stays.
        put_with_one(&mut buffer, (&key, Kind::Upsert, b"!"));
        let of_key = buffer.entries(key_hash(1, &key), &key).map(|(_, entry)| entry.kind);
        assert_eq!(of_key.collect::<Vec<_>>(), [Kind::Upsert, Kind::Insert]);

        for number in (0..count).step_by(97) {
            let key = number.to_le_bytes();
            assert!(newest(&buffer, &key).is_some(), "{number}");
        }

        assert_eq!(newest(&buffer, &count.to_le_bytes()), None);
    }

    /// Large vectors grow by an eighth, so what counts is what is in them.
    #[test]
    fn a_large_buffer_is_charged_for_little_more_than_its_entries() {
        let mut buffer = Memtable::default();
        let mut undo = begin(&mut buffer);
        for number in 0..40_000_u64 {
            let key = long_key(number);
            put_with(&mut buffer, (&key, Kind::Insert, &[7; 60]), None, &mut undo);
            let charged = buffer.charged_bytes();
            let weight = buffer.weight_bytes();
            let is_large = number >= 5_000;
            assert!(!is_large || 100 * charged <= 105 * weight, "{number}: {charged} of {weight}");
        }
    }

    /// A memory budget relies on this: memory is at most 5/4 of the charge, also just after vectors
    /// and hash tables have grown, and with room reserved.
    #[test]
    fn a_buffer_takes_at_most_five_quarters_of_what_it_charges() {
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
                let mut buffer = Memtable::default();
                let mut versions = Vec::new();
                let check = |buffer: &Memtable| {
                    let held = buffer.memory_bytes() as u64;
                    let charged = buffer.charged_bytes();
                    assert!(4 * held <= 5 * charged + 1024, "{held} bytes, {charged} charged");
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
                    let mut undo = buffer.begin(room, &MergeOperator::concatenate()).unwrap();
                    let entry = (key.as_slice(), kind, &*vec![7; value_len]);
                    put_with(&mut buffer, entry, blob.as_ref(), &mut undo);
                    check(&buffer);
                }

                // Sorts the entries, like a flush.
                assert!(buffer.parts().iter().all(|part| part.key_range().is_some()));
                check(&buffer);
            }
        }
    }

    #[test]
    fn a_batch_that_is_rolled_back_leaves_nothing() {
        let mut buffer = Memtable::default();
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
        buffer.roll_back(&undo);
        assert_eq!((buffer.len(), buffer.weight_bytes()), before);
        assert_eq!(Arc::strong_count(&blob), 1);

        for number in 0..150_u64 {
            let key = number.to_le_bytes();
            let expected = (number < 100).then_some((Kind::Insert, key.to_vec()));
            assert_eq!(newest(&buffer, &key), expected, "key {number}");
        }
    }

    /// A list-valued account that one block of updates appends to thousands of times: each value
    /// that the batch replaces again is garbage at once, and nobody waits for the next batch to
    /// collect it.
    #[test]
    fn a_hot_key_takes_no_more_memory_than_a_few_of_its_values() {
        let blob: Arc<[u8]> = Arc::from([7; 500]);
        for (kind, is_undoable) in [
            (Kind::Upsert, true),
            (Kind::Upsert, false),
            (Kind::Insert, true),
            (Kind::InsertBlob, true),
        ] {
            let mut buffer = Memtable::default();
            let operator = MergeOperator::concatenate();
            put_with_one(&mut buffer, (b"hot", Kind::Insert, &[1; 300]));
            put_with_one(&mut buffer, (b"cold", Kind::Insert, b"cold"));
            let before = (buffer.len(), buffer.weight_bytes());

            let mut undo = begin(&mut buffer);
            let mut most = 0;
            for number in 0..2_000_u32 {
                let blob = (kind == Kind::InsertBlob).then_some(&blob);
                for key in [b"hot".as_slice(), b"new"] {
                    let value = &[number as u8; 200];
                    let entry = NewEntry { key, hash: key_hash(1, key), kind, value, blob };
                    let undo = is_undoable.then_some(&mut undo);
                    buffer.put(entry, &operator, undo).unwrap();
                }
                most = most.max(buffer.memory_bytes() as u64);
            }
            assert_eq!(buffer.len(), 3);
            let live = buffer.weight_bytes();
            assert!(most <= 8 * live + (2 << 20), "{kind:?}: {most} bytes for {live}");
            let len = if kind == Kind::Upsert { 400_000 } else { 200 };
            assert_eq!(newest(&buffer, b"new").unwrap().1.len(), len);

            if is_undoable {
                buffer.roll_back(&undo);
                assert_eq!((buffer.len(), buffer.weight_bytes()), before);
                assert_eq!(newest(&buffer, b"hot"), Some((Kind::Insert, vec![1; 300])));
                assert_eq!(newest(&buffer, b"new"), None);
            }
            assert_eq!(newest(&buffer, b"cold"), Some((Kind::Insert, b"cold".to_vec())));
        }

        assert_eq!(Arc::strong_count(&blob), 1);
    }

    /// Values of all sizes, empty ones too, over keys from before the batch and new ones: while
    /// garbage is collected and after that the buffer holds what was put, and can be rolled back to
    /// what it held before.
    #[test]
    fn collecting_within_a_batch_keeps_what_was_put_and_what_was_there() {
        for seed in 0..8_u64 {
            let mut buffer = Memtable::default();
            let mut model = std::collections::BTreeMap::new();
            for number in 0..20_u64 {
                let value = vec![number as u8; if number % 3 == 0 { 0 } else { 50 }];
                put_with_one(&mut buffer, (&number.to_le_bytes(), Kind::Insert, &value));
                model.insert(number, (Kind::Insert, value));
            }

            let before = model.clone();

            let mut undo = begin(&mut buffer);
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            for step in 0..600_u64 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
                let number = (state >> 33) % 30;
                let size = (state >> 40) % 4;
                let kind =
                    [Kind::Delete, Kind::Insert, Kind::InsertBlob][(state >> 50) as usize % 3];
                let value = match kind {
                    Kind::Delete => Vec::new(),
                    _ => vec![step as u8; [0, 10, 3_000, 9_000][size as usize]],
                };

                let blob: Arc<[u8]> = Arc::from(vec![step as u8; 100]);
                let blob = (kind == Kind::InsertBlob).then_some(&blob);
                put_with(&mut buffer, (&number.to_le_bytes(), kind, &value), blob, &mut undo);
                model.insert(number, (kind, value));
            }

            for (number, entry) in &model {
                let key = number.to_le_bytes();
                assert_eq!(newest(&buffer, &key).as_ref(), Some(entry), "seed {seed}, {number}");
                let (chunk, entry) = buffer.entries(key_hash(1, &key), &key).next().unwrap();
                let Some(Blob::Memory(blob)) = chunk.blob_of(&entry) else { continue };
                assert!(entry.value.is_empty() || blob[0] == entry.value[0], "blob of {number}");
            }

            assert!(buffer.memory_bytes() < 3 << 20, "{} bytes", buffer.memory_bytes());
            buffer.roll_back(&undo);
            for number in 0..30_u64 {
                assert_eq!(newest(&buffer, &number.to_le_bytes()), before.get(&number).cloned());
            }
        }
    }

    #[test]
    fn an_upsert_combines_with_what_the_buffer_has() {
        let mut buffer = Memtable::default();
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
