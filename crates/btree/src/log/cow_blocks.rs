//! Blocks of a buffer by the key that each begins at: copies share what neither changes.
//!
//! Blocks stand on *shelves* of up to [`SHELF_BLOCKS_MAX`] of them. A copy takes one reference count; who changes a block that
//! a copy has, too, copies that block, its shelf and the list of shelves, which takes some microseconds for a buffer of
//! gigabytes, and the list only the first time.
//!
//! Invariants: keys ascend strictly over all shelves; no shelf is empty.

use std::cmp::Ordering;
use std::sync::Arc;

use terrane_io::key_order::key_prefix;

use crate::page::block::Block;

/// A shelf is divided when it has more blocks than this.
const SHELF_BLOCKS_MAX: usize = if cfg!(test) { 4 } else { 256 };

/// A block with the key that it begins at, whose first bytes stand here too: what is looked for is nearly always told by them.
#[derive(Debug, Clone, Default)]
struct Placed {
    prefix: u64,
    start: Arc<[u8]>,
    block: Arc<Block>,
}

impl Placed {
    fn new(start: Arc<[u8]>, block: Block) -> Self {
        Self { prefix: key_prefix(&start), start, block: Arc::new(block) }
    }

    /// How the key that it begins at stands to another, of which the first bytes are given.
    fn compare(&self, prefix: u64, key: &[u8]) -> Ordering {
        self.prefix.cmp(&prefix).then_with(|| (*self.start).cmp(key))
    }
}

/// Blocks in order. See the [module](self).
#[derive(Debug, Clone, Default)]
pub(crate) struct Shelves {
    shelves: Arc<Vec<Arc<Vec<Placed>>>>,
    blocks: usize,
}

/// Where a block stands: its shelf, and its place there.
pub(crate) type Place = (usize, usize);

impl Shelves {
    /// How many blocks there are.
    pub(crate) fn len(&self) -> usize {
        self.blocks
    }

    /// The last block that begins at `key` or before.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Place> {
        let prefix = key_prefix(key);
        let begins_by = |placed: &Placed| placed.compare(prefix, key).is_le();
        let shelf = self.shelves.partition_point(|shelf| shelf.first().is_some_and(begins_by));
        let shelf = shelf.checked_sub(1)?;
        Some((shelf, self.shelves[shelf].partition_point(begins_by) - 1))
    }

    pub(crate) fn get(&self, (shelf, at): Place) -> &Block {
        &self.shelves[shelf][at].block
    }

    /// A block to be changed; others that have it keep it as it is.
    pub(crate) fn get_mut(&mut self, (shelf, at): Place) -> &mut Block {
        let shelves = Arc::make_mut(&mut self.shelves);
        Arc::make_mut(&mut Arc::make_mut(&mut shelves[shelf])[at].block)
    }

    /// Lets the first block begin before all keys; makes one if there is none. Returns its place.
    pub(crate) fn begin_before_all(&mut self) -> Place {
        let shelves = Arc::make_mut(&mut self.shelves);
        match shelves.first_mut() {
            Some(shelf) => {
                let first = &mut Arc::make_mut(shelf)[0];
                (first.prefix, first.start) = (0, Arc::default());
            }
            None => {
                shelves.push(Arc::new(vec![Placed::default()]));
                self.blocks = 1;
            }
        }
        (0, 0)
    }

    /// Puts a block behind the one at a place; its key is above that one's and below the next one's.
    pub(crate) fn insert_after(&mut self, (shelf, at): Place, start: Arc<[u8]>, block: Block) {
        self.blocks += 1;
        let shelves = Arc::make_mut(&mut self.shelves);
        let blocks = Arc::make_mut(&mut shelves[shelf]);
        blocks.insert(at + 1, Placed::new(start, block));
        if blocks.len() > SHELF_BLOCKS_MAX {
            // Ascending keys leave full shelves behind.
            let is_last = at + 2 == blocks.len();
            let upper = blocks.split_off(if is_last { at + 1 } else { blocks.len() / 2 });
            shelves.insert(shelf + 1, Arc::new(upper));
        }
    }

    /// Puts blocks in place of those from one place on and before another; their keys are between those of the neighbours.
    pub(crate) fn replace(&mut self, from: Place, to: Place, by: Vec<(Arc<[u8]>, Block)>) {
        let shelves = Arc::make_mut(&mut self.shelves);
        let before: usize =
            shelves[from.0..shelves.len().min(to.0 + 1)].iter().map(|s| s.len()).sum();
        let mut kept: Vec<Placed> = match shelves.get(from.0) {
            Some(shelf) => shelf[..from.1].to_vec(),
            None => Vec::new(),
        };
        kept.extend(by.into_iter().map(|(start, block)| Placed::new(start, block)));
        if let Some(shelf) = shelves.get(to.0) {
            kept.extend_from_slice(&shelf[to.1..]);
        }
        let after = kept.len();
        let end = shelves.len().min(to.0 + 1);
        let mut rest = kept.chunks(SHELF_BLOCKS_MAX).map(|blocks| Arc::new(blocks.to_vec()));
        shelves.splice(from.0.min(end)..end, &mut rest);
        self.blocks = self.blocks + after - before;
    }

    /// The places of the blocks that can have keys from `low` on and below `high`: from the first on, and before the second.
    pub(crate) fn reach(&self, low: &[u8], high: Option<&[u8]>) -> (Place, Place) {
        let from = self.find(low).unwrap_or_default();
        let end = (self.shelves.len(), 0);
        let Some(high) = high else { return (from, end) };
        if high <= low {
            return (from, from);
        }
        let prefix = key_prefix(high);
        let is_below = |placed: &Placed| placed.compare(prefix, high).is_lt();
        let shelf = self.shelves.partition_point(|shelf| shelf.first().is_some_and(is_below));
        let to = match shelf.checked_sub(1) {
            Some(shelf) => (shelf, self.shelves[shelf].partition_point(is_below)),
            None => (0, 0),
        };
        (from, to)
    }

    /// The blocks from one place on and before another, ascending.
    pub(crate) fn between(
        &self,
        from: Place,
        to: Place,
    ) -> impl DoubleEndedIterator<Item = (&Arc<[u8]>, &Block)> {
        let end = self.shelves.len().min(to.0 + 1);
        let shelves = self.shelves[from.0.min(end)..end].iter().enumerate();
        shelves.flat_map(move |(number, shelf)| {
            let number = from.0 + number;
            let first = if number == from.0 { from.1 } else { 0 };
            let last = if number == to.0 { to.1 } else { shelf.len() };
            shelf[first.min(last)..last].iter().map(|placed| (&placed.start, placed.block.as_ref()))
        })
    }

    /// All blocks, ascending.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Arc<[u8]>, &Block)> {
        self.between((0, 0), (self.shelves.len(), 0))
    }
}
