//! Updates that are not in the leaves yet: an ordered map in memory that shares its blocks with views of it.
//!
//! Entries lie packed in blocks of about 4 KiB. Who needs the state of a moment clones the blocks of a range, which copies no
//! entry; an update copies a block only while somebody else has it.
//!
//! Invariants: blocks are not empty; the key of a block in the map is not above its first entry, and above all entries of
//! the block before it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::block::{Block, EntryRef, entry_bytes};

/// A block is divided when it would grow beyond this.
const BLOCK_BYTES: usize = 4096;

/// What a block costs besides its own memory: its place in the map, its key, its counters.
const BLOCK_OVERHEAD_BYTES: usize = 200;

/// Updates by key. See the [module](self).
#[derive(Debug, Clone, Default)]
pub(crate) struct Deltas {
    blocks: BTreeMap<Arc<[u8]>, Arc<Block>>,
    entries: usize,
    block_bytes: usize,
}

impl Deltas {
    pub(crate) fn len(&self) -> usize {
        self.entries
    }

    /// Memory that it takes, blocks shared with views included.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.block_bytes + self.blocks.len() * BLOCK_OVERHEAD_BYTES
    }

    /// The update of a key, if there is one; a value of `None` says that the key is removed.
    #[expect(
        clippy::option_option,
        reason = "no update, and an update that removes, are two things"
    )]
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let up_to = (Bound::Unbounded, Bound::Included(key));
        let (_, block) = self.blocks.range::<[u8], _>(up_to).next_back()?;
        block.search(key).ok().map(|at| block.get(at).1)
    }

    /// Puts an update in place of what there was of its key.
    pub(crate) fn insert(&mut self, key: &[u8], value: Option<&[u8]>) {
        let up_to = (Bound::Unbounded, Bound::Included(key));
        let Some((_, shared)) = self.blocks.range_mut::<[u8], _>(up_to).next_back() else {
            // The first block is for whatever is below the second.
            let first = self.blocks.pop_first().map(|(_, block)| block);
            self.blocks.insert(Arc::default(), first.unwrap_or_default());
            return self.insert(key, value);
        };
        let (entries, memory) = (shared.len(), shared.memory_bytes());
        let block = Arc::make_mut(shared);
        let bytes = entry_bytes(key, value);
        if block.bytes() + bytes <= BLOCK_BYTES || entries < 2 {
            block.insert(key, value);
            self.entries = self.entries + block.len() - entries;
            self.block_bytes = self.block_bytes + block.memory_bytes() - memory;
            return;
        }
        // Ascending keys leave full blocks behind.
        let is_above_all = block.search(key) == Err(entries);
        let upper = block.split_off(if is_above_all { entries - 1 } else { entries / 2 });
        self.block_bytes = self.block_bytes + block.memory_bytes() + upper.memory_bytes() - memory;
        self.blocks.insert(upper.key(0).into(), Arc::new(upper));
        self.insert(key, value);
    }

    /// Forgets the updates of the keys from `low` on and below `high`.
    pub(crate) fn remove_range(&mut self, low: &[u8], high: Option<&[u8]>) {
        let starts: Vec<Arc<[u8]>> = self.reach(low, high).map(|(key, _)| key.clone()).collect();
        for start in starts {
            let block = self.blocks.remove(&start).expect("it was found");
            self.entries -= block.len();
            self.block_bytes -= block.memory_bytes();
            let (from, to) = bounds(&block, low, high);
            let (below, above) = (block.slice(0, from), block.slice(to, block.len()));
            self.keep(start, below);
            if !above.is_empty() {
                self.keep(above.key(0).into(), above);
            }
        }
    }

    fn keep(&mut self, start: Arc<[u8]>, block: Block) {
        if !block.is_empty() {
            self.entries += block.len();
            self.block_bytes += block.memory_bytes();
            self.blocks.insert(start, Arc::new(block));
        }
    }

    /// Blocks that can have updates of a range.
    fn reach<'a>(
        &'a self,
        low: &[u8],
        high: Option<&'a [u8]>,
    ) -> impl DoubleEndedIterator<Item = (&'a Arc<[u8]>, &'a Arc<Block>)> {
        let up_to = (Bound::Unbounded, Bound::Included(low));
        let first = self.blocks.range::<[u8], _>(up_to).next_back().map(|(key, _)| key.clone());
        let from = first.map_or(Bound::Unbounded, Bound::Included);
        let to = high.map_or(Bound::Unbounded, Bound::Excluded);
        let is_empty = high.is_some_and(|high| high <= low);
        let from: Bound<&[u8]> = match &from {
            Bound::Included(key) => Bound::Included(key),
            _ => Bound::Unbounded,
        };
        let to = if is_empty { Bound::Excluded(&[] as &[u8]) } else { to };
        let from = if is_empty { Bound::Unbounded } else { from };
        self.blocks.range::<[u8], _>((from, to))
    }

    /// The updates of a range, ascending.
    pub(crate) fn range<'a>(
        &'a self,
        low: &'a [u8],
        high: Option<&'a [u8]>,
    ) -> impl DoubleEndedIterator<Item = EntryRef<'a>> {
        self.reach(low, high).flat_map(move |(_, block)| {
            let (from, to) = bounds(block, low, high);
            (from..to).map(|at| block.get(at))
        })
    }

    /// A view of the updates of a range, and of some beside it.
    pub(crate) fn view(&self, low: &[u8], high: Option<&[u8]>) -> Self {
        let mut view = Self::default();
        for (key, block) in self.reach(low, high) {
            view.entries += block.len();
            view.block_bytes += block.memory_bytes();
            view.blocks.insert(key.clone(), block.clone());
        }
        view
    }

    /// All updates, ascending.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = EntryRef<'_>> {
        self.blocks.values().flat_map(|block| block.iter())
    }
}

/// Where the entries of a range begin and end in a block.
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
    use crate::block::ENTRY_HEAD_BYTES;

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
    fn deltas_are_a_map_whose_views_stand_still() {
        for_each_seed("deltas_are_a_map_whose_views_stand_still", 30, |rng, _| {
            let (mut deltas, mut model) = (Deltas::default(), Model::new());
            let mut view = (Deltas::default(), Model::new());
            for round in 0..2_000 {
                let key = rng.below(1_000).to_string().into_bytes();
                if rng.chance(1, 100) {
                    let high = rng.below(1_000).to_string().into_bytes();
                    let high = rng.chance(9, 10).then_some(high);
                    let found = list(deltas.range(&key, high.as_deref()));
                    assert_eq!(found, expect(&model, &key, high.as_deref()));
                    let mut backward = list(deltas.range(&key, high.as_deref()).rev());
                    backward.reverse();
                    assert_eq!(found, backward);
                    let sliced = deltas.view(&key, high.as_deref());
                    assert_eq!(list(sliced.range(&key, high.as_deref())), found);
                    if round % 3 == 0 {
                        deltas.remove_range(&key, high.as_deref());
                        model.retain(|k, _| k < &key || high.as_ref().is_some_and(|h| k >= h));
                    }
                    assert_eq!(list(view.0.iter()), expect(&view.1, b"", None));
                    view = (deltas.clone(), model.clone());
                }
                let value = rng.chance(3, 4).then(|| vec![1; rng.index(40)]);
                deltas.insert(&key, value.as_deref());
                assert_eq!(deltas.get(&key), Some(value.as_deref()));
                model.insert(key, value);
                assert_eq!(deltas.len(), model.len());
            }
            assert_eq!(list(deltas.iter()), expect(&model, b"", None));
            let memory: usize = deltas.blocks.values().map(|block| block.memory_bytes()).sum();
            assert_eq!(deltas.block_bytes, memory);
            assert!(deltas.blocks.values().all(|block| !block.is_empty()));
            deltas.remove_range(b"", None);
            assert_eq!((deltas.len(), deltas.memory_bytes()), (0, 0));
        });
    }

    #[test]
    fn ascending_keys_fill_their_blocks() {
        let mut deltas = Deltas::default();
        for number in 0..20_000_u32 {
            // Big-endian, so that keys ascend.
            let mut key = number.to_le_bytes();
            key.reverse();
            deltas.insert(&key, Some(&[0; 13]));
        }
        let bytes = 20_000 * (ENTRY_HEAD_BYTES + 4 + 13 + 4);
        assert!(deltas.block_bytes < bytes * 3 / 2, "{} of {bytes}", deltas.block_bytes);
    }
}
