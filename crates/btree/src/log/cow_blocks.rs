//! Copy-on-write blocks of a buffer, ordered by the key that each block begins at.
//!
//! Blocks stand in *chunks* of up to [`CHUNK_BLOCKS_MAX`]. A copy costs one reference count. The
//! first change of a block that a copy shares copies the block, its chunk and the list of chunks:
//! some microseconds for a buffer of gigabytes, and the list only once.
//!
//! Invariants: keys ascend strictly over all chunks; no chunk is empty.
//!
//! Rejected: a plain `BTreeMap`, which a snapshot would have to copy as a whole.

use std::cmp::Ordering;
use std::sync::Arc;

use terrane_io::key_order::key_prefix;

use crate::page::block::Block;

/// A chunk with more blocks than this is divided.
const CHUNK_BLOCKS_MAX: usize = if cfg!(test) { 4 } else { 256 };

/// A block and the key that it begins at. The first bytes of the key decide nearly every
/// comparison, so they stand here, too.
#[derive(Debug, Clone, Default)]
struct SharedBlock {
    prefix: u64,
    start: Arc<[u8]>,
    block: Arc<Block>,
}

impl SharedBlock {
    fn new(start: Arc<[u8]>, block: Block) -> Self {
        Self { prefix: key_prefix(&start), start, block: Arc::new(block) }
    }

    /// Compares the key that the block begins at with another key, whose first bytes are `prefix`.
    fn compare(&self, prefix: u64, key: &[u8]) -> Ordering {
        self.prefix.cmp(&prefix).then_with(|| (*self.start).cmp(key))
    }
}

/// Blocks in order. See the [module](self).
#[derive(Debug, Clone, Default)]
pub(crate) struct CowBlocks {
    chunks: Arc<Vec<Arc<Vec<SharedBlock>>>>,
    blocks: usize,
}

/// Position of a block: its chunk, and its place in the chunk.
pub(crate) type BlockPos = (usize, usize);

impl CowBlocks {
    /// Number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks
    }

    /// The last block that begins at `key` or before.
    pub(crate) fn find(&self, key: &[u8]) -> Option<BlockPos> {
        let prefix = key_prefix(key);
        let begins_by = |block: &SharedBlock| block.compare(prefix, key).is_le();
        let chunk = self.chunks.partition_point(|chunk| chunk.first().is_some_and(begins_by));
        let chunk = chunk.checked_sub(1)?;
        // The first block of the chunk begins by the key.
        Some((chunk, self.chunks[chunk].partition_point(begins_by) - 1))
    }

    /// The block at a position.
    pub(crate) fn get(&self, (chunk, at): BlockPos) -> &Block {
        &self.chunks[chunk][at].block
    }

    /// The block at a position, to be changed; copies keep it as it is.
    pub(crate) fn get_mut(&mut self, (chunk, at): BlockPos) -> &mut Block {
        let chunks = Arc::make_mut(&mut self.chunks);
        Arc::make_mut(&mut Arc::make_mut(&mut chunks[chunk])[at].block)
    }

    /// Lets the first block begin before all keys, and makes an empty one if there is none. Returns
    /// its position.
    pub(crate) fn begin_before_all(&mut self) -> BlockPos {
        let chunks = Arc::make_mut(&mut self.chunks);
        match chunks.first_mut() {
            Some(chunk) => {
                let first = &mut Arc::make_mut(chunk)[0];
                (first.prefix, first.start) = (0, Arc::default());
            }
            None => {
                chunks.push(Arc::new(vec![SharedBlock::default()]));
                self.blocks = 1;
            }
        }
        (0, 0)
    }

    /// Puts a block behind another. The key of the new block is above those of the other block and
    /// below the next one's.
    pub(crate) fn insert_after(&mut self, (chunk, at): BlockPos, start: Arc<[u8]>, block: Block) {
        self.blocks += 1;
        let chunks = Arc::make_mut(&mut self.chunks);
        let blocks = Arc::make_mut(&mut chunks[chunk]);
        debug_assert!(blocks[at].start < start, "keys ascend over the blocks");
        blocks.insert(at + 1, SharedBlock::new(start, block));

        if blocks.len() > CHUNK_BLOCKS_MAX {
            // Ascending keys leave full chunks behind.
            let is_last = at + 2 == blocks.len();
            let upper = blocks.split_off(if is_last { at + 1 } else { blocks.len() / 2 });
            chunks.insert(chunk + 1, Arc::new(upper));
        }
    }

    /// Replaces the blocks from one position on and before another. The new keys lie between those
    /// of the neighbours.
    pub(crate) fn replace(&mut self, from: BlockPos, to: BlockPos, by: Vec<(Arc<[u8]>, Block)>) {
        debug_assert!(from <= to, "positions are in order");
        let chunks = Arc::make_mut(&mut self.chunks);
        let before: usize =
            chunks[from.0..chunks.len().min(to.0 + 1)].iter().map(|s| s.len()).sum();

        // The changed chunks are filled anew, with what stays of the first and the last.
        let mut kept: Vec<SharedBlock> = match chunks.get(from.0) {
            Some(chunk) => chunk[..from.1].to_vec(),
            None => Vec::new(),
        };

        kept.extend(by.into_iter().map(|(start, block)| SharedBlock::new(start, block)));
        if let Some(chunk) = chunks.get(to.0) {
            kept.extend_from_slice(&chunk[to.1..]);
        }

        let after = kept.len();
        let end = chunks.len().min(to.0 + 1);
        let mut rest = kept.chunks(CHUNK_BLOCKS_MAX).map(|blocks| Arc::new(blocks.to_vec()));
        chunks.splice(from.0.min(end)..end, &mut rest);
        self.blocks = self.blocks + after - before;
        debug_assert_eq!(
            self.blocks,
            self.chunks.iter().map(|chunk| chunk.len()).sum::<usize>(),
            "each block counts once"
        );
    }

    /// The positions of the blocks that can have keys from `low` on and below `high`: from the
    /// first on, and before the second.
    pub(crate) fn reach(&self, low: &[u8], high: Option<&[u8]>) -> (BlockPos, BlockPos) {
        let from = self.find(low).unwrap_or_default();
        let end = (self.chunks.len(), 0);
        let Some(high) = high else { return (from, end) };

        if high <= low {
            return (from, from);
        }

        let prefix = key_prefix(high);

        let is_below = |block: &SharedBlock| block.compare(prefix, high).is_lt();
        let chunk = self.chunks.partition_point(|chunk| chunk.first().is_some_and(is_below));
        let to = match chunk.checked_sub(1) {
            Some(chunk) => (chunk, self.chunks[chunk].partition_point(is_below)),
            None => (0, 0),
        };

        (from, to)
    }

    /// The blocks from one position on and before another, ascending.
    pub(crate) fn between(
        &self,
        from: BlockPos,
        to: BlockPos,
    ) -> impl DoubleEndedIterator<Item = (&Arc<[u8]>, &Block)> {
        let end = self.chunks.len().min(to.0 + 1);

        let chunks = self.chunks[from.0.min(end)..end].iter().enumerate();
        chunks.flat_map(move |(number, chunk)| {
            let number = from.0 + number;
            let first = if number == from.0 { from.1 } else { 0 };
            let last = if number == to.0 { to.1 } else { chunk.len() };
            chunk[first.min(last)..last].iter().map(|block| (&block.start, block.block.as_ref()))
        })
    }

    /// All blocks, ascending.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Arc<[u8]>, &Block)> {
        self.between((0, 0), (self.chunks.len(), 0))
    }
}
