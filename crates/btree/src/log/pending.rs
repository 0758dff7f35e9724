//! The buffer of updates that no leaf has yet: an ordered map in memory that shares blocks with its
//! copies.
//!
//! Entries lie packed in blocks of about 4 KiB: 73 bytes for an update of 45. A clone copies no
//! entry and is a consistent snapshot; an update copies a block only while a clone has the block,
//! too.
//!
//! Invariants: no block is empty. The key that a block begins at is not above its first entry, and
//! above all entries of the block before.
//!
//! Rejected: dirty leaves in memory (4,096 bytes for what takes 73: at fifty million entries and
//! 256 MiB hardly two updates meet in a leaf); messages in inner nodes, as in a Bε-tree (a find
//! must look for them on its way down, or they must be in memory, as here).

use crate::log::cow_blocks::CowBlocks;
use crate::page::block::{Block, EntryRef, entry_bytes};

/// Size at which a block is divided, in bytes.
const BLOCK_BYTES: usize = 4096;

/// Cost of a block besides its own memory, in bytes: its place, its key, its counters.
const BLOCK_OVERHEAD_BYTES: usize = 200;

/// Updates by key. See the [module](self).
#[derive(Debug, Clone, Default)]
pub(crate) struct UpdateBuffer {
    blocks: CowBlocks,
    entries: usize,
    block_bytes: usize,
}

impl UpdateBuffer {
    /// Number of updates.
    pub(crate) fn len(&self) -> usize {
        self.entries
    }

    /// Memory in bytes, including the blocks shared with copies.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.block_bytes + self.blocks.len() * BLOCK_OVERHEAD_BYTES
    }

    /// The update of a key, if there is one; a value of `None` removes the key.
    #[expect(
        clippy::option_option,
        reason = "no update, and an update that removes, are two things"
    )]
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let block = self.blocks.get(self.blocks.find(key)?);
        block.search(key).ok().map(|at| block.get(at).1)
    }

    /// Sets the update of a key.
    pub(crate) fn insert(&mut self, key: &[u8], value: Option<&[u8]>) {
        let bytes = entry_bytes(key, value);
        loop {
            // Keys below the first block go into the first block.
            let found = self.blocks.find(key);
            let place = found.unwrap_or_else(|| self.blocks.begin_before_all());
            let block = self.blocks.get(place);
            let entries = block.len();
            let memory = block.memory_bytes();

            // Measured before: a block that this copies has no memory to spare.
            let block = self.blocks.get_mut(place);

            // A block of one entry cannot be divided.
            if block.bytes() + bytes <= BLOCK_BYTES || entries < 2 {
                block.insert(key, value);
                self.entries = self.entries + block.len() - entries;
                debug_assert!(self.entries > 0, "an update was put in");
                self.block_bytes = self.block_bytes + block.memory_bytes() - memory;
                return;
            }

            // Ascending keys leave full blocks behind.
            let is_above_all = block.search(key) == Err(entries);
            let upper = block.split_off(if is_above_all { entries - 1 } else { entries / 2 });
            self.block_bytes =
                self.block_bytes + block.memory_bytes() + upper.memory_bytes() - memory;
            self.blocks.insert_after(place, upper.key(0).into(), upper);
        }
    }

    /// Removes the updates of the keys from `low` on and below `high`.
    pub(crate) fn remove_range(&mut self, low: &[u8], high: Option<&[u8]>) {
        let (from, to) = self.blocks.reach(low, high);
        let mut kept = Vec::new();
        let mut gone = 0;
        let mut gone_bytes = 0;

        for (start, block) in self.blocks.between(from, to) {
            gone += block.len();
            gone_bytes += block.memory_bytes();
            // A block at either end may keep some of its entries.
            let (first, last) = bounds(block, low, high);
            let below = block.slice(0, first);
            let above = block.slice(last, block.len());
            if !below.is_empty() {
                kept.push((start.clone(), below));
            }
            if !above.is_empty() {
                kept.push((above.key(0).into(), above));
            }
        }

        // With nothing to remove, the blocks stay shared with copies.
        if gone == 0 {
            return;
        }

        debug_assert!(gone <= self.entries, "no more updates go than there are");
        let blocks = || kept.iter().map(|(_, block)| block);
        self.entries = self.entries - gone + blocks().map(Block::len).sum::<usize>();
        let kept_bytes: usize = blocks().map(Block::memory_bytes).sum();
        self.block_bytes = self.block_bytes - gone_bytes + kept_bytes;
        self.blocks.replace(from, to, kept);
    }

    /// The updates of a range, ascending.
    pub(crate) fn range<'a>(
        &'a self,
        low: &'a [u8],
        high: Option<&'a [u8]>,
    ) -> impl DoubleEndedIterator<Item = EntryRef<'a>> {
        let (from, to) = self.blocks.reach(low, high);
        self.blocks.between(from, to).flat_map(move |(_, block)| {
            let (from, to) = bounds(block, low, high);
            (from..to).map(|at| block.get(at))
        })
    }

    /// All updates, ascending.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = EntryRef<'_>> {
        self.blocks.iter().flat_map(|(_, block)| block.iter())
    }
}

/// The part of a block's entries that a range has.
fn bounds(block: &Block, low: &[u8], high: Option<&[u8]>) -> (usize, usize) {
    let place = |key| block.search(key).unwrap_or_else(|at| at);
    let from = place(low);
    (from, high.map_or(block.len(), place).max(from))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;
    use crate::page::block::ENTRY_HEAD_BYTES;

    type Model = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

    fn list<'a>(entries: impl Iterator<Item = EntryRef<'a>>) -> Vec<EntryRef<'a>> {
        entries.collect()
    }

    fn expect<'a>(model: &'a Model, low: &[u8], high: Option<&[u8]>) -> Vec<EntryRef<'a>> {
        let is_in = |key: &[u8]| low <= key && high.is_none_or(|high| key < high);
        let entries = model.iter().filter(|(key, _)| is_in(key));
        entries.map(|(key, value)| (key.as_slice(), value.as_deref())).collect()
    }

    #[test]
    fn update_buffers_are_maps_whose_copies_share_blocks() {
        for_each_seed("deltas_are_a_map_whose_copies_stand_still", 30, |rng, _| {
            let mut updates = UpdateBuffer::default();
            let mut model = Model::new();
            let mut view = (UpdateBuffer::default(), Model::new());
            for round in 0..2_000 {
                let key = rng.below(1_000).to_string().into_bytes();
                if rng.chance(1, 100) {
                    let high = rng.below(1_000).to_string().into_bytes();
                    let high = rng.chance(9, 10).then_some(high);
                    let found = list(updates.range(&key, high.as_deref()));
                    assert_eq!(found, expect(&model, &key, high.as_deref()));
                    let mut backward = list(updates.range(&key, high.as_deref()).rev());
                    backward.reverse();
                    assert_eq!(found, backward);
                    if round % 3 == 0 {
                        updates.remove_range(&key, high.as_deref());
                        model.retain(|k, _| k < &key || high.as_ref().is_some_and(|h| k >= h));
                    }
                    assert_eq!(list(view.0.iter()), expect(&view.1, b"", None));
                    view = (updates.clone(), model.clone());
                }
                let value = rng.chance(3, 4).then(|| vec![1; rng.index(40)]);
                updates.insert(&key, value.as_deref());
                assert_eq!(updates.get(&key), Some(value.as_deref()));
                model.insert(key, value);
                assert_eq!(updates.len(), model.len());
            }
            assert_eq!(list(updates.iter()), expect(&model, b"", None));
            let memory: usize = updates.blocks.iter().map(|(_, block)| block.memory_bytes()).sum();
            assert_eq!(updates.block_bytes, memory);
            assert!(updates.blocks.iter().all(|(_, block)| !block.is_empty()));
            assert!(updates.blocks.iter().map(|(start, _)| start).is_sorted_by(|a, b| a < b));
            assert_eq!(updates.blocks.len(), updates.blocks.iter().count());
            updates.remove_range(b"", None);
            assert_eq!((updates.len(), updates.memory_bytes()), (0, 0));
        });
    }

    #[test]
    fn ascending_keys_fill_their_blocks() {
        let mut updates = UpdateBuffer::default();
        for number in 0..20_000_u32 {
            // Big-endian, so that keys ascend.
            let mut key = number.to_le_bytes();
            key.reverse();
            updates.insert(&key, Some(&[0; 13]));
        }
        let bytes = 20_000 * (ENTRY_HEAD_BYTES + 4 + 13 + 4);
        assert!(updates.block_bytes < bytes * 3 / 2, "{} of {bytes}", updates.block_bytes);
    }
}
