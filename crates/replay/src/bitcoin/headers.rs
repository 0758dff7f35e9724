//! The tree of headers, and the chain through it with the most work.
//!
//! Blocks come in any order and may be stale. A node keeps where a block lies and what its chain
//! is worth, about 120 bytes, never its transactions.

use std::collections::HashMap;

use bitcoin::hashes::Hash as _;
use bitcoin::{BlockHash, Work};

use super::files::Location;

/// A node's number, in the order of insertion.
pub(super) type Index = usize;

#[derive(Debug)]
struct Node {
    hash: BlockHash,
    previous: BlockHash,
    /// Work of this block alone until the node is connected, then of its whole chain.
    work: Work,
    /// `None` until the node is connected to a root.
    height: Option<u32>,
    location: Option<Location>,
}

/// A block on a connected chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) hash: BlockHash,
    pub(super) height: u32,
    pub(super) work: Work,
    /// Location of the block; `None` if only the store knows the block.
    pub(super) location: Option<Location>,
}

/// All headers known.
#[derive(Debug, Default)]
pub(super) struct Headers {
    nodes: Vec<Node>,
    by_hash: HashMap<BlockHash, Index>,
    /// Further locations of blocks that the input has several times.
    copies: HashMap<Index, Vec<Location>>,
}

impl Headers {
    /// Adds a block of which height and work are known: a root for others to connect to.
    pub(super) fn add_root(&mut self, hash: BlockHash, height: u32, work: Work) {
        let previous = BlockHash::all_zeros();
        self.add(Node { hash, previous, work, height: Some(height), location: None });
    }

    /// Adds a block read from a file. Of several copies the first one counts, the others are there
    /// should it be damaged.
    pub(super) fn add_block(
        &mut self,
        hash: BlockHash,
        previous: BlockHash,
        work: Work,
        location: Location,
    ) {
        self.add(Node { hash, previous, work, height: None, location: Some(location) });
    }

    fn add(&mut self, node: Node) {
        // A block may lie in several files: the first location stands, others are copies.
        if let Some(&index) = self.by_hash.get(&node.hash) {
            let Some(known) = self.nodes.get_mut(index) else { return };
            if known.location.is_none() {
                // A root of the store gets its location and its parent here.
                (known.location, known.previous) = (node.location, node.previous);
            } else if let Some(location) = node.location {
                self.copies.entry(index).or_default().push(location);
            }
            return;
        }

        self.by_hash.insert(node.hash, self.nodes.len());
        self.nodes.push(node);
    }

    /// Returns the number of a block; `None` if it is not known.
    pub(super) fn find(&self, hash: &BlockHash) -> Option<Index> {
        self.by_hash.get(hash).copied()
    }

    /// Returns the block before one; `None` for genesis, a root, or one that is not known.
    pub(super) fn parent(&self, index: Index) -> Option<Index> {
        self.find(&self.nodes.get(index)?.previous)
    }

    /// Returns a block and those before it, down to genesis or to what is not known.
    pub(super) fn chain(&self, tip: Option<Index>) -> impl Iterator<Item = Index> + '_ {
        std::iter::successors(tip, |&index| self.parent(index))
    }

    /// Returns a block that is connected; `None` if it is not.
    pub(super) fn placed(&self, index: Index) -> Option<Placed> {
        let &Node { hash, work, height, location, .. } = self.nodes.get(index)?;
        Some(Placed { hash, height: height?, work, location })
    }

    /// Returns where a block lies, the place that counts first.
    pub(super) fn locations(&self, hash: &BlockHash) -> Vec<Location> {
        let Some(index) = self.find(hash) else { return Vec::new() };
        // Most blocks have one location, which is in the node.
        let first = self.nodes.get(index).and_then(|node| node.location);
        first.into_iter().chain(self.copies.get(&index).into_iter().flatten().copied()).collect()
    }

    /// Returns the numbers of all blocks.
    pub(super) fn indexes(&self) -> std::ops::Range<Index> {
        0..self.nodes.len()
    }

    /// Gives height and accumulated work to every block that leads back to `genesis` or to a root.
    pub(super) fn connect(&mut self, genesis: &BlockHash) {
        // The genesis block has no parent that could give it a height.
        if let Some(node) = self.find(genesis).and_then(|index| self.nodes.get_mut(index)) {
            node.height = Some(0);
        }
        let mut path = Vec::new();
        let mut leads_nowhere = vec![false; self.nodes.len()];

        for start in self.indexes() {
            // Hashes cannot form a cycle: the walk ends at a node that is connected, at one that is
            // known to lead nowhere, or at one whose parent is missing.
            let mut next = Some(start);
            while let Some(index) = next {
                if self.placed(index).is_some() || leads_nowhere[index] {
                    break;
                }
                path.push(index);
                next = self.parent(index);
            }

            let Some(below) = next.and_then(|index| self.placed(index)) else {
                path.drain(..).for_each(|index| leads_nowhere[index] = true);
                continue;
            };

            // Heights and work add up from the connected block to the start.
            let mut height = below.height;
            let mut work = below.work;
            while let Some(node) = path.pop().and_then(|index| self.nodes.get_mut(index)) {
                (height, work) = (height + 1, work + node.work);
                (node.height, node.work) = (Some(height), work);
            }
        }
    }

    /// Returns the block whose chain has the most work. Among equals the first one known stands, as
    /// in Bitcoin Core; the store's own blocks are known before those of files.
    pub(super) fn best(&self) -> Option<Index> {
        // Among chains of equal work the first one stands.
        let connected = self.indexes().filter_map(|index| Some((index, self.placed(index)?.work)));
        connected
            .reduce(|best, next| if next.1 > best.1 { next } else { best })
            .map(|(index, _)| index)
    }

    /// Returns the block at `height` on the chain of `index`, or `index` itself if it is not
    /// higher.
    pub(super) fn ancestor(&self, mut index: Index, height: u32) -> Index {
        while self.placed(index).is_some_and(|placed| placed.height > height) {
            let Some(parent) = self.parent(index) else { break };
            index = parent;
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(name: u8) -> BlockHash {
        BlockHash::from_byte_array([name; 32])
    }

    fn work(amount: u8) -> Work {
        let mut bytes = [0; 32];
        bytes[0] = amount;
        Work::from_le_bytes(bytes)
    }

    fn place(offset: u64) -> Location {
        Location { file: 0, offset, size: 81 }
    }

    #[test]
    fn the_chain_with_most_work_wins_in_any_order() {
        // 1 - 2 - 3 - 4 with work 1 each, 2 - 5 with work 3, and 9 that connects to nothing.
        let mut blocks = [(1, 0, 1), (2, 1, 1), (3, 2, 1), (4, 3, 1), (5, 2, 3), (9, 8, 200)];
        for turn in 0..blocks.len() {
            blocks.rotate_left(1);
            let mut headers = Headers::default();
            for (name, previous, amount) in blocks {
                headers.add_block(hash(name), hash(previous), work(amount), place(name.into()));
            }
            headers.connect(&hash(1));
            let best = headers.best().unwrap();
            let placed = headers.placed(best).unwrap();
            assert_eq!((placed.hash, placed.height), (hash(5), 2), "turn {turn}");
            assert_eq!(placed.work, work(5));
            let fork = headers.placed(headers.ancestor(best, 1)).unwrap();
            assert_eq!(fork.hash, hash(2));
            assert!(headers.placed(headers.find(&hash(9)).unwrap()).is_none());
        }
    }

    #[test]
    fn among_equals_the_store_then_the_first_stands() {
        let mut headers = Headers::default();
        headers.add_root(hash(2), 7, work(9));
        headers.add_block(hash(1), hash(0), work(8), place(1));
        headers.add_block(hash(3), hash(1), work(1), place(3));
        headers.connect(&hash(1));
        assert_eq!(headers.best(), headers.find(&hash(2)));
        headers.add_block(hash(4), hash(2), work(1), place(4));
        headers.add_block(hash(5), hash(2), work(1), place(5));
        headers.connect(&hash(1));
        let best = headers.placed(headers.best().unwrap()).unwrap();
        assert_eq!((best.hash, best.height), (hash(4), 8));
    }
}
