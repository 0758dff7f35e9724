//! Divergence of two tables: the sources above the newest source that both share.
//!
//! A table is a sequence of *layers*, newest first: the chunks of its write buffers, its runs, and
//! what a union has not united yet. The entries of a key in all layers, combined in this order, are
//! what the table has of it ([`crate::entry::entry`]).
//!
//! Invariant: what is older than a layer amounts to the same in all tables that have the layer. A
//! layer is made on top of what a table holds; duplicates and snapshots share both, updates go to
//! newer layers, and merges change how older ones are divided, never what they amount to. So two
//! tables differ in the keys of those layers at most that are newer than the newest one that both
//! have:
//!
//! ```text
//! older   a1 a2    S  r1 r2
//! newer   b1 b2 b3 S  m            m is what r1 and r2 were merged to
//! ```
//!
//! A merge that one table has completed, and the other not begun, replaces a run by others that
//! hold the same. So where the other table has what a run was merged from, directly or through
//! other merges, and all of that is still there, these runs stand for it as layers. The same goes
//! for all slices of a merge, or for those that there are and what is left of the inputs. The runs
//! are held by whoever has them, never for the sake of this: with the last version between two
//! others, what only that had goes.
//!
//! Slices stand in front of what is left of the inputs, in key order. So what is older than a slice
//! is the same whether the next ones are there or what they are made of.
//!
//! Chunks are the same if they are the same piece of memory, runs if they are the same file, unions
//! if they are made of the same; and all of them only under the same mask. A deleted range masks
//! every layer that is there, so of a table and of its duplicate that has deleted a range all
//! layers differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::compaction::loser_tree::{Combine, MergeIterator, Rules, Source};
use crate::compaction::sources::{Scan, Sources, UnionSources};
use crate::entry::key_range::KeyRange;
use crate::entry::mask::Mask;
use crate::memtable::part::{Chunk, MemtablePart, MemtablePartReader};
use crate::run::run::{Run, SliceOrigin};
use crate::run::slices::SlicesReader;

/// Entries of which each is newer than those of its key in the next layer.
#[derive(Debug, Clone)]
pub(crate) enum Layer {
    Chunk(Arc<Chunk>),
    /// A masked segment of a write buffer.
    Masked(MemtablePart),
    Run(Arc<Run>),
    /// The tables of a union, as far as they are not in its slices, which are layers of their own.
    Union(Box<UnionSources>),
}

impl Layer {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Chunk(one), Self::Chunk(other)) => Arc::ptr_eq(one, other),
            (Self::Masked(one), Self::Masked(other)) => one.is_same(other),
            (Self::Run(one), Self::Run(other)) => place_of(one) == place_of(other),
            (Self::Union(one), Self::Union(other)) => are_same_unions(one, other),
            _ => false,
        }
    }

    fn source(&self, scan: &Scan, range: &KeyRange) -> Option<Source> {
        Some(match self {
            Self::Chunk(chunk) => {
                let segment = MemtablePart::Chunk(Arc::clone(chunk));
                Source::Memtable(MemtablePartReader::new(&segment, range, scan.order))
            }
            Self::Masked(segment) => {
                Source::Memtable(MemtablePartReader::new(segment, range, scan.order))
            }
            Self::Run(run) => {
                let run = std::slice::from_ref(run);
                let reader = SlicesReader::new(run, range, scan.order, scan.reading.clone())?;
                Source::Runs(Box::new(reader))
            }
            Self::Union(union) => Source::Merge(Box::new(scan.of_union(union, range))),
        })
    }
}

/// The entries of layers, as they combine. Reads nothing.
pub(crate) fn merge_of(layers: &[Layer], scan: &Scan) -> MergeIterator {
    let sources = layers.iter().filter_map(|layer| layer.source(scan, &KeyRange::ALL)).collect();
    let combine = Combine::Levels;
    let operator = scan.operator.clone();
    let order = scan.order;
    MergeIterator::new(sources, Rules { combine, operator, order })
}

/// The layers of a table, newest first; its own write buffer must be among the sources.
pub(crate) fn layers_of(sources: &Sources) -> Vec<Layer> {
    let segments = sources.buffers.iter().flat_map(|buffer| buffer.parts().iter().rev());
    let mut layers = Vec::new();
    for segment in segments {
        match segment {
            MemtablePart::Masked(_) => layers.push(Layer::Masked(segment.clone())),
            MemtablePart::Chunk(_) | MemtablePart::Folded(_) => {
                layers.extend(segment.chunks().iter().rev().cloned().map(Layer::Chunk));
            }
        }
    }

    // Runs are older than all parts of the memtable.
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

/// Whether two unions are made of the same and have got equally far, so that what is not in their
/// slices is the same. The depth of the recursion is that of unions of unions.
fn are_same_unions(one: &UnionSources, other: &UnionSources) -> bool {
    // Unions that got equally far over the same tables have equal rests.
    let are_same = |(one, other): (&Sources, &Sources)| {
        let one = layers_of(one);
        let other = layers_of(other);
        one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| one.is_same(other))
    };
    one.frontier == other.frontier
        && one.tables.len() == other.tables.len()
        && one.tables.iter().zip(&other.tables).all(are_same)
}

/// The number of a run and the keys that it is seen without.
type Place = (u64, Mask);

fn place_of(run: &Run) -> Place {
    (run.number(), run.mask().clone())
}

/// Runs by their numbers and masks.
type Runs = BTreeMap<Place, Arc<Run>>;

fn runs_in(layers: &[Layer]) -> impl Iterator<Item = &Arc<Run>> {
    layers.iter().filter_map(|layer| match layer {
        Layer::Run(run) => Some(run),
        Layer::Chunk(_) | Layer::Masked(_) | Layer::Union(_) => None,
    })
}

/// Inputs of the compaction that wrote a run, or one slice, newest first and under its mask, if all
/// of them remain.
fn inputs_of(run: &Run, there: &Runs) -> Option<Vec<Arc<Run>>> {
    let inputs = run.origin()?.origin.inputs.iter();
    let found = inputs.map(|(number, mask, input)| {
        // Any view of the run serves: masks are put on below.
        let any_mask = there.range((*number, Mask::default())..).next();
        let known = any_mask.filter(|((found, _), _)| found == number).map(|(_, run)| run);
        let input = known.cloned().or_else(|| input.upgrade())?;
        Some(input.with_mask(&mask.union(run.mask())))
    });
    found.collect()
}

/// Some runs, and what they were merged from, as far as it is there.
fn with_ancestors<'a>(runs: impl Iterator<Item = &'a Arc<Run>>, there: &Runs) -> Runs {
    let mut all = Runs::new();
    // A run may be reached on several ways, and is followed once.
    let mut rest: Vec<_> = runs.cloned().collect();
    while let Some(run) = rest.pop() {
        all.entry(place_of(&run)).or_insert_with(|| {
            rest.extend(inputs_of(&run, there).into_iter().flatten());
            run
        });
    }
    all
}

/// How many of the runs at the end of `rest`, newest last, have been made of the inputs of `run` or
/// are what is left of these: further slices of its compaction, and the inputs without the keys
/// that are in slices. `None` if all of them together are not what the inputs are.
fn others_of(run: &Run, inputs: &[Arc<Run>], rest: &[Layer]) -> Option<usize> {
    let SliceOrigin { origin, slice } = run.origin()?;
    // Without the first slices the others stand for a part of the inputs only.
    if *slice > 0 {
        return None;
    }

    let mut behind = rest.iter().rev().map_while(|layer| match layer {
        Layer::Run(run) => Some(run),
        Layer::Chunk(_) | Layer::Masked(_) | Layer::Union(_) => None,
    });
    let is_next = |next: &Arc<Run>, slice: usize| {
        let of_next = next.origin().filter(|of| Arc::ptr_eq(&of.origin, origin));
        of_next.is_some_and(|of| of.slice == slice) && next.mask() == run.mask()
    };

    let mut slices = 1;
    let mut last = run;
    let mut next = behind.next();
    while let Some(slice) = next.filter(|next| is_next(next, slices)) {
        slices += 1;
        last = slice;
        next = behind.next();
    }

    // What is left of the inputs stands behind the slices, in the same order.
    let mut left = 0;
    if origin.slice_count.get() != Some(&slices) {
        for input in inputs.iter().filter(|input| input.max_key() > last.max_key()) {
            next.filter(|next| next.number() == input.number())?;
            left += 1;
            next = behind.next();
        }
    }

    Some(slices - 1 + left)
}

/// The layers with runs replaced by what they were merged from, where that leads to some of the
/// `others`.
fn traced_to(others: &Runs, layers: Vec<Layer>, there: &Runs) -> Vec<Layer> {
    let mut traced = Vec::with_capacity(layers.len());
    // Layers are taken from the end, so the newest one must stand there.
    let mut rest = layers;
    rest.reverse();

    while let Some(layer) = rest.pop() {
        let found = match &layer {
            Layer::Run(run) if !others.contains_key(&place_of(run)) => {
                inputs_of(run, there).and_then(|inputs| {
                    let behind = rest.len() - others_of(run, &inputs, &rest)?;
                    // What dropped deletions stands for its inputs only if nothing is older.
                    let is_oldest = run.origin()?.origin.is_oldest;
                    (behind == 0 || !is_oldest).then_some((inputs, behind))
                })
            }
            _ => None,
        };

        let leads_there = |inputs: &[Arc<Run>]| {
            let ancestors = with_ancestors(inputs.iter(), there);
            ancestors.keys().any(|place| others.contains_key(place))
        };

        match found.filter(|(inputs, _)| leads_there(inputs)) {
            Some((inputs, behind)) => {
                rest.truncate(behind);
                rest.extend(inputs.into_iter().rev().map(Layer::Run));
            }
            None => traced.push(layer),
        }
    }

    traced
}

/// The layers of two tables, with runs of the one replaced by what they were merged from where the
/// other has that.
fn trace(older: Vec<Layer>, newer: Vec<Layer>) -> (Vec<Layer>, Vec<Layer>) {
    // Runs of either table may be inputs of runs of the other.
    let runs = runs_in(&older).chain(runs_in(&newer));
    let there: Runs = runs.map(|run| (place_of(run), Arc::clone(run))).collect();
    let of_older = with_ancestors(runs_in(&older), &there);
    let of_newer = with_ancestors(runs_in(&newer), &there);
    (traced_to(&of_newer, older, &there), traced_to(&of_older, newer, &there))
}

/// The layers of two tables that are newer than the newest one that both have.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) older: Vec<Layer>,
    pub(crate) newer: Vec<Layer>,
    /// Whether these are all layers of both tables, so that nothing is older.
    pub(crate) is_everything: bool,
}

impl Difference {
    /// Divergence of two tables of one session that have the same merge operator.
    pub(crate) fn new(older: Vec<Layer>, newer: Vec<Layer>) -> Self {
        let (mut older, mut newer) = trace(older, newer);
        // The newest shared layer ends the difference: whatever is older amounts to the same in
        // both.
        let shared = older.iter().enumerate().find_map(|(at, layer)| {
            Some((at, newer.iter().position(|other| layer.is_same(other))?))
        });
        if let Some((of_older, of_newer)) = shared {
            older.truncate(of_older);
            newer.truncate(of_newer);
        }
        Self { older, newer, is_everything: shared.is_none() }
    }
}
