//! What two tables have in common: layers of entries that both hold in the same order.
//!
//! A table is a sequence of *layers*, newest first: the chunks of its write buffers, its runs, and what a
//! union has not united yet. The entries of a key in all layers, combined in this order, are what the table
//! has of it ([`crate::entry`]). Layers that two tables share, in the same order in both, divide the others into
//! *blocks*:
//!
//! ```text
//! older   (a1 a2)  S1  ()  S2  (a3)
//! newer   (b1)     S1  ()  S2  (b2 b3 b4)
//! ```
//!
//! Combining is associative, so where all blocks of a key amount to the same in both tables, the tables have
//! the same; and a key that is in no block need not be looked at. In the newest block what a key amounts to is
//! what the table has, if it is decisive.
//!
//! Chunks are the same if they are the same piece of memory, runs if they are the same file, unions if they
//! are made of the same.

use std::sync::Arc;

use crate::key_range::KeyRange;
use crate::kmerge::{Combine, KMerge, Rules, Source};
use crate::run::Run;
use crate::run_reader::RunReader;
use crate::segment::{Chunk, Segment, SegmentReader};
use crate::sources::{Scan, Sources, UnionSources};

/// Entries of which each is newer than those of its key in the next layer.
#[derive(Debug, Clone)]
pub(crate) enum Layer {
    Chunk(Arc<Chunk>),
    Run(Arc<Run>),
    /// The tables of a union, as far as they are not in its slices, which are layers of their own.
    Union(Box<UnionSources>),
}

impl Layer {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Chunk(one), Self::Chunk(other)) => Arc::ptr_eq(one, other),
            (Self::Run(one), Self::Run(other)) => one.number() == other.number(),
            (Self::Union(one), Self::Union(other)) => are_same_unions(one, other),
            _ => false,
        }
    }

    fn source(&self, scan: &Scan, range: &KeyRange) -> Source {
        match self {
            Self::Chunk(chunk) => {
                let segment = Segment::Chunk(Arc::clone(chunk));
                Source::Segment(SegmentReader::new(&segment, range, scan.order))
            }
            Self::Run(run) => {
                let reader = RunReader::new(run, range, scan.order, scan.reading.clone());
                Source::Run(Box::new(reader))
            }
            Self::Union(union) => Source::Merge(Box::new(scan.of_union(union, range))),
        }
    }
}

/// The entries of layers, as they combine. Reads nothing.
pub(crate) fn merge_of(layers: &[Layer], scan: &Scan) -> KMerge {
    let sources = layers.iter().map(|layer| layer.source(scan, &KeyRange::ALL)).collect();
    let (combine, resolve, order) = (Combine::Levels, scan.resolve.clone(), scan.order);
    KMerge::new(sources, Rules { combine, resolve, order })
}

/// The layers of a table, newest first; its own write buffer must be among the sources.
pub(crate) fn layers_of(sources: &Sources) -> Vec<Layer> {
    let segments = sources.buffers.iter().flat_map(|buffer| buffer.segments().iter().rev());
    let chunks = segments.flat_map(|segment| segment.chunks().iter().rev());
    let mut layers: Vec<_> = chunks.cloned().map(Layer::Chunk).collect();
    layers.extend(sources.runs.iter().cloned().map(Layer::Run));
    if let Some(union) = &sources.union {
        // Their keys follow each other, so any order will do.
        layers.extend(union.slices.iter().cloned().map(Layer::Run));
        if !union.tables.is_empty() {
            layers.push(Layer::Union(union.clone()));
        }
    }
    layers
}

/// Whether two unions are made of the same and have got equally far, so that what is not in their slices is the
/// same. The depth of the recursion is that of unions of unions.
fn are_same_unions(one: &UnionSources, other: &UnionSources) -> bool {
    let are_same = |(one, other): (&Sources, &Sources)| {
        let (one, other) = (layers_of(one), layers_of(other));
        one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| one.is_same(other))
    };
    one.frontier == other.frontier
        && one.tables.len() == other.tables.len()
        && one.tables.iter().zip(&other.tables).all(are_same)
}

/// Layers of two tables between those that they share.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) older: Vec<Layer>,
    pub(crate) newer: Vec<Layer>,
}

impl Block {
    pub(crate) fn is_empty(&self) -> bool {
        self.older.is_empty() && self.newer.is_empty()
    }
}

/// All layers of two tables but those that they share, newest block first. The first block is above, and the
/// last one below all that is shared; any of them may be empty.
pub(crate) fn blocks_of(older: Vec<Layer>, newer: Vec<Layer>) -> Vec<Block> {
    // From the oldest on, where all that does not change stands.
    let mut shared = Vec::new();
    let mut end = newer.len();
    for (at, layer) in older.iter().enumerate().rev() {
        if let Some(found) = newer[..end].iter().rposition(|other| layer.is_same(other)) {
            shared.push((at, found));
            end = found;
        }
    }
    let (mut older, mut newer) = (older, newer);
    let mut blocks = Vec::with_capacity(shared.len() + 1);
    for (of_older, of_newer) in shared {
        let block =
            Block { older: older.split_off(of_older + 1), newer: newer.split_off(of_newer + 1) };
        blocks.push(block);
        older.pop();
        newer.pop();
    }
    blocks.push(Block { older, newer });
    blocks.reverse();
    blocks
}
