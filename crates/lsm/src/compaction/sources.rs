//! Sources of a table for a reader, and the merge that reads them in order.
//!
//! A table is its memtables, its runs and, if it was made by a union, what the union has so
//! far: the *slices* that have been written, whose keys follow each other from the smallest one on,
//! and the tables where the keys beyond the *frontier* are. Read in order, that is a tree of
//! merges:
//!
//! ```text
//! levels ─┬─ parts of memtables, newest first
//!         ├─ runs, newest first; slices as one
//!         ├─ slices of the union
//!         └─ union, beyond the frontier ─┬─ levels of the first table
//!                                        └─ levels of the second table, ...
//! ```
//!
//! Making the tree reads nothing, and going through it reads from a run, a slice say, when its turn
//! comes.
//!
//! Invariant: from newest to oldest stand the memtables, the runs, and the union. No entry
//! hides one that is newer.

use std::ops::Bound;
use std::sync::Arc;

use crate::compaction::compaction::{Input, View};
use crate::compaction::loser_tree::{Combine, MergeIterator, Rules, Source};
use crate::entry::entry::Order;
use crate::entry::key_range::KeyRange;
use crate::entry::mask::Mask;
use crate::entry::merge_operator::MergeOperator;
use crate::memtable::memtable::Memtable;
use crate::memtable::part::MemtablePartReader;
use crate::run::chunk_reader::Reading;
use crate::run::run::Run;
use crate::run::slices::{SlicesReader, groups};

/// Sources of a table for a reader.
#[derive(Debug, Default, Clone)]
pub(crate) struct Sources {
    /// Memtables, newest first; newer than all runs. A table's own, which updates
    /// go to, is not among them.
    pub(crate) buffers: Vec<Memtable>,
    /// Newest first.
    pub(crate) runs: Vec<Arc<Run>>,
    /// For each level, the number of runs on it and on the levels above. Empty for a table without
    /// levels.
    pub(crate) level_ends: Vec<usize>,
    /// Older than all of them.
    pub(crate) union: Option<Box<UnionSources>>,
}

/// Frontier of a union: the key up to which its slices hold everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Frontier {
    /// No key yet.
    #[default]
    Nothing,
    /// All keys up to this one, included.
    UpTo(Arc<[u8]>),
    /// All keys.
    Everything,
}

impl Frontier {
    /// Whether what the union has of `key` is in its slices.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        match self {
            Self::Nothing => false,
            Self::UpTo(last) => key <= last.as_ref(),
            Self::Everything => true,
        }
    }

    /// The keys of a range that are beyond the frontier; `None` if there can be none.
    fn beyond(&self, range: &KeyRange) -> Option<KeyRange> {
        match self {
            Self::Nothing => Some(range.clone()),
            Self::UpTo(last) => {
                // A range that ends at or before the frontier has no key beyond it.
                let can_be_some = match &range.to {
                    Bound::Included(to) | Bound::Excluded(to) => to.as_slice() > last.as_ref(),
                    Bound::Unbounded => true,
                };
                can_be_some.then(|| range.from(Bound::Excluded(last.to_vec())))
            }
            Self::Everything => None,
        }
    }
}

/// Sources of a union for a reader.
#[derive(Debug, Clone)]
pub(crate) struct UnionSources {
    /// United part so far: runs whose keys follow each other.
    pub(crate) slices: Vec<Arc<Run>>,
    pub(crate) frontier: Frontier,
    /// Where the other keys are, left to right.
    pub(crate) tables: Vec<Sources>,
}

impl Sources {
    /// Adds the view of a compaction, which must be older than the sources so far.
    pub(crate) fn add(&mut self, view: View) {
        match view {
            View::Output(slices) => self.runs.extend(slices.iter().cloned()),
            View::Inputs { slices, inputs } => {
                // First, so that what is older than a slice is the same to whoever has it: later
                // slices, or the inputs that these are made of (`table::divergence`).
                self.runs.extend(slices.iter().cloned());
                for input in inputs.iter() {
                    match input {
                        Input::Run(run) => self.runs.push(Arc::clone(run)),
                        Input::Buffer(buffer) => self.buffers.push(buffer.clone()),
                    }
                }
            }
        }
    }

    /// Calls `visit` with every run, including those of the union.
    pub(crate) fn for_each_run(&self, visit: &mut dyn FnMut(&Arc<Run>)) {
        self.runs.iter().for_each(&mut *visit);
        if let Some(union) = &self.union {
            union.for_each_run(visit);
        }
    }

    /// Returns the sources without the keys that a mask covers. The recursion is as deep as unions
    /// are nested.
    fn under_mask(self, mask: &Mask) -> Self {
        let Self { buffers, runs, level_ends, union } = self;
        Self {
            buffers: buffers.iter().map(|buffer| buffer.under_mask(mask)).collect(),
            runs: runs.iter().map(|run| run.under_mask(mask)).collect(),
            level_ends,
            union: union.map(|union| Box::new(union.under_mask(mask))),
        }
    }

    /// Drops the sources that cannot hold keys of a range. The recursion is as deep as unions are
    /// nested.
    ///
    /// Cost: no I/O; entries of memtables are sorted if the range is bounded and no reader has
    /// sorted them before. The filters of runs are asked if they hold prefixes.
    pub(crate) fn narrow(&mut self, range: &KeyRange) {
        if *range == KeyRange::ALL {
            return;
        }

        for buffer in &mut self.buffers {
            buffer
                .retain(|part| part.key_range().is_some_and(|(min, max)| !range.misses(min, max)));
        }

        self.buffers.retain(|buffer| !buffer.is_empty());
        self.runs.retain(|run| run.may_meet(range));
        if let Some(union) = &mut self.union {
            union.slices.retain(|run| run.may_meet(range));
            // Tables are read beyond the frontier only.
            match union.frontier.beyond(range) {
                Some(beyond) => union.tables.iter_mut().for_each(|table| table.narrow(&beyond)),
                None => union.tables.clear(),
            }
        }
    }
}

impl UnionSources {
    /// Returns the sources without the keys that a mask covers. The recursion is as deep as unions
    /// are nested.
    pub(crate) fn under_mask(self, mask: &Mask) -> Self {
        if mask.is_empty() {
            return self;
        }
        let Self { slices, frontier, tables } = self;
        Self {
            slices: slices.iter().map(|run| run.under_mask(mask)).collect(),
            frontier,
            tables: tables.into_iter().map(|table| table.under_mask(mask)).collect(),
        }
    }

    /// Calls `visit` with every run. The recursion is as deep as unions are nested.
    pub(crate) fn for_each_run(&self, visit: &mut dyn FnMut(&Arc<Run>)) {
        self.slices.iter().for_each(&mut *visit);
        self.tables.iter().for_each(|table| table.for_each_run(visit));
    }
}

/// Order and means of reading sources in key order.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    pub(crate) order: Order,
    pub(crate) operator: MergeOperator,
    pub(crate) reading: Reading,
}

impl Scan {
    /// Returns the merge of a table's entries with keys in `range`. Reads nothing.
    pub(crate) fn of_table(&self, table: &Sources, range: &KeyRange) -> MergeIterator {
        let mut sources = Vec::new();
        // Newest first: among equal keys a merge takes the first source.
        for part in table.buffers.iter().flat_map(|buffer| buffer.parts().iter().rev()) {
            let reader = MemtablePartReader::new(part, range, self.order);
            sources.push(Source::Memtable(reader));
        }

        self.add_runs(&mut sources, &table.runs, range);
        if let Some(union) = &table.union {
            self.add_runs(&mut sources, &union.slices, range);
            sources.push(Source::Merge(Box::new(self.of_union(union, range))));
        }

        self.merge(Combine::Levels, sources)
    }

    /// Adds those of some runs, newest first, that can hold keys in `range`.
    fn add_runs(&self, sources: &mut Vec<Source>, runs: &[Arc<Run>], range: &KeyRange) {
        let runs: Vec<_> = runs.iter().filter(|run| is_in(run, range)).cloned().collect();
        for group in groups(&runs) {
            let reading = self.reading.clone();
            let reader = SlicesReader::new(&runs[group], range, self.order, reading);
            sources.extend(reader.map(|reader| Source::Runs(Box::new(reader))));
        }
    }

    /// Returns the merge of a union's entries with keys in `range` that are not in its slices.
    /// Reads nothing. The recursion is as deep as unions are nested.
    pub(crate) fn of_union(&self, union: &UnionSources, range: &KeyRange) -> MergeIterator {
        let beyond = union.frontier.beyond(range);
        let tables = beyond.iter().flat_map(|beyond| {
            let merge = |table| Source::Merge(Box::new(self.of_table(table, beyond)));
            union.tables.iter().map(merge)
        });
        self.merge(Combine::Union, tables.collect())
    }

    fn merge(&self, combine: Combine, sources: Vec<Source>) -> MergeIterator {
        MergeIterator::new(
            sources,
            Rules { combine, operator: self.operator.clone(), order: self.order },
        )
    }
}

fn is_in(run: &Run, range: &KeyRange) -> bool {
    !range.misses(run.min_key(), run.max_key())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::entry::{Kind, key_hash};
    use crate::memtable::part::{NewEntry, Room};

    #[test]
    fn write_buffers_outside_a_range_are_let_go_of() {
        let mut buffer = Memtable::default();
        let operator = MergeOperator::newest();
        for key in [b"b", b"d"] {
            // A shared part is frozen, so the next update begins another one.
            let _kept = buffer.clone();
            buffer.begin(Room::default(), &operator).unwrap();
            let hash = key_hash(1, key);
            let kind = Kind::Insert;
            let entry = NewEntry { key, hash, kind, value: b"", blob: None };
            buffer.put(entry, &operator, None).unwrap();
        }

        let parts = |range: &KeyRange| {
            let mut sources = Sources { buffers: vec![buffer.clone()], ..Sources::default() };
            sources.narrow(range);
            sources.buffers.iter().map(|buffer| buffer.parts().len()).collect::<Vec<_>>()
        };

        assert_eq!(parts(&KeyRange::ALL), [2]);
        assert_eq!(parts(&KeyRange::new(&(b"a".as_slice()..b"e".as_slice()))), [2]);
        assert_eq!(parts(&KeyRange::new(&(b"c".as_slice()..))), [1]);
        assert_eq!(parts(&KeyRange::prefix(b"b")), [1]);

        assert_eq!(parts(&KeyRange::prefix(b"c")), [0; 0]);
    }
}
