//! Lookup plan: the order in which a lookup visits the runs of a table, and how the entries that it
//! finds combine.
//!
//! Runs are numbered: the table's own, newest first; then, if there is a union below, its slices,
//! then the runs of each of its tables, left to right, numbered in the same way. So each table has
//! a span of numbers, and so has each union. A decisive entry ends the search in the span of its
//! table; outside of unions that is everything.
//!
//! Runs whose keys follow each other, as [`slices`](crate::run::slices) do, make one *column*: a
//! key can be in one of them at most, which is found in memory before any filter is asked.
//!
//! Invariant: of a union, a key is looked for either in the slices or in the tables, never in both.

use std::ops::Range;
use std::sync::Arc;

use terrane_io::key_order::key_prefix;

use crate::compaction::sources::{Frontier, Sources, UnionSources};
use crate::entry::entry::Kind;
use crate::entry::merge_operator::{MergeOperator, TooLarge};
use crate::error::Result;
use crate::lookup::result::Lookup;
use crate::memtable::memtable::Memtable;
use crate::run::blob::BlobRef;
use crate::run::run::Run;
use crate::run::slices::follows;

/// An entry that a run has of a key.
#[derive(Debug)]
pub(crate) struct RunEntry {
    pub(crate) run: u32,
    pub(crate) kind: Kind,
    pub(crate) value: Vec<u8>,
    pub(crate) blob: Option<BlobRef>,
}

/// Entries found so far of one key.
#[derive(Debug, Default)]
pub(crate) struct KeyProgress {
    /// Upserts in the memtable.
    pub(crate) memory: Option<Vec<u8>>,
    /// In the order of the runs.
    pub(crate) entries: Vec<RunEntry>,
}

/// The condition on which a span of runs is looked into.
#[derive(Debug)]
struct Guard {
    /// The condition on the span around this one.
    outer: Option<u32>,
    frontier: Frontier,
    /// Whether the keys that the frontier covers are meant, or the others.
    covered: bool,
    /// The run after the span.
    end: u32,
}

#[derive(Debug, Clone, Copy)]
struct RunPlace {
    /// The run after those of the same table.
    table_end: u32,
    guard: Option<u32>,
}

#[derive(Debug)]
struct TableSpan {
    /// The run after the table's own.
    own_end: u32,
    union: Option<UnionSpan>,
}

#[derive(Debug)]
struct UnionSpan {
    slices_end: u32,
    tables: Vec<TableSpan>,
}

/// Runs of which a key can be in one at most.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) runs: Range<u32>,
    /// First bytes of the smallest key of each run but the first, as numbers; none for one run.
    firsts: Vec<u64>,
}

/// The runs of a table, in order.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Memtables that are newer than all runs.
    pub(crate) buffers: Vec<Memtable>,
    pub(crate) runs: Vec<Arc<Run>>,
    /// All runs, by columns.
    columns: Vec<Column>,
    /// The runs after those of each level of the table.
    level_ends: Vec<usize>,
    places: Vec<RunPlace>,
    guards: Vec<Guard>,
    root: TableSpan,
}

impl Plan {
    pub(crate) fn new(mut sources: Sources) -> Self {
        let mut plan = Self {
            buffers: std::mem::take(&mut sources.buffers),
            runs: Vec::new(),
            columns: Vec::new(),
            level_ends: std::mem::take(&mut sources.level_ends),
            places: Vec::new(),
            guards: Vec::new(),
            root: TableSpan { own_end: 0, union: None },
        };
        plan.root = plan.add_table(sources, None);
        debug_assert_eq!(plan.places.len(), plan.runs.len(), "each run has a place");
        debug_assert!(plan.own_count() <= plan.runs.len());
        debug_assert!(plan.guards.iter().all(|guard| guard.end <= plan.next_run()));
        plan
    }

    fn next_run(&self) -> u32 {
        self.runs.len() as u32
    }

    fn add_runs(&mut self, runs: Vec<Arc<Run>>, guard: Option<u32>) {
        self.places.extend(runs.iter().map(|_| RunPlace { table_end: 0, guard }));
        let first = self.next_run();
        let mut before = None;
        for (at, run) in (first..).zip(&runs) {
            // Columns do not go beyond a level, so that each is counted on its own.
            let is_next = before.is_some_and(|before: &Arc<Run>| follows(before, run))
                && !self.level_ends.contains(&(at as usize));
            match self.columns.last_mut().filter(|_| is_next) {
                Some(column) => {
                    column.runs.end = at + 1;
                    column.firsts.push(key_prefix(run.min_key()));
                }
                None => self.columns.push(Column { runs: at..at + 1, firsts: Vec::new() }),
            }
            before = Some(run);
        }
        self.runs.extend(runs);
        debug_assert_eq!(self.places.len(), self.runs.len(), "each run has a place");
    }

    /// The recursion is as deep as unions are nested.
    fn add_table(&mut self, sources: Sources, guard: Option<u32>) -> TableSpan {
        let first = self.next_run();
        self.add_runs(sources.runs, guard);
        let own_end = self.next_run();
        let union = sources.union.map(|union| self.add_union(*union, guard));
        let table_end = self.next_run();
        debug_assert!(first <= own_end && own_end <= table_end);
        for place in &mut self.places[first as usize..own_end as usize] {
            place.table_end = table_end;
        }
        TableSpan { own_end, union }
    }

    fn add_union(&mut self, union: UnionSources, outer: Option<u32>) -> UnionSpan {
        let UnionSources { slices, frontier, tables } = union;
        let first = self.next_run();
        let of_slices = self.add_guard(outer, frontier.clone(), true);
        self.add_runs(slices, Some(of_slices));
        let slices_end = self.next_run();
        let of_tables = self.add_guard(outer, frontier, false);
        let tables =
            tables.into_iter().map(|table| self.add_table(table, Some(of_tables))).collect();
        let end = self.next_run();
        debug_assert!(first <= slices_end && slices_end <= end);

        // The ends are known now that all runs are numbered.
        for (guard, end) in [(of_slices, slices_end), (of_tables, end)] {
            self.guards[guard as usize].end = end;
        }

        // A slice decides for its whole union.
        for place in &mut self.places[first as usize..slices_end as usize] {
            place.table_end = end;
        }

        UnionSpan { slices_end, tables }
    }

    fn add_guard(&mut self, outer: Option<u32>, frontier: Frontier, covered: bool) -> u32 {
        self.guards.push(Guard { outer, frontier, covered, end: 0 });
        self.guards.len() as u32 - 1
    }

    /// The first run from `run` on that `key` may be looked for in.
    pub(crate) fn first_allowed(&self, run: u32, key: &[u8]) -> u32 {
        let mut allowed = run;
        let mut guard = self.places[run as usize].guard;
        // The conditions nest, and the outermost one that refuses the key decides.
        while let Some(at) = guard {
            let Guard { outer, frontier, covered, end } = &self.guards[at as usize];
            // If a condition refuses the key, the search passes the whole span.
            if frontier.covers(key) != *covered {
                allowed = *end;
            }
            guard = *outer;
        }
        debug_assert!(run <= allowed, "the search goes on to older runs");
        debug_assert!(allowed <= self.next_run());
        allowed
    }

    /// All runs, by columns; those of the table come first.
    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Whether a column has several runs.
    pub(crate) fn has_slices(&self) -> bool {
        self.columns.len() < self.runs.len()
    }

    /// The run of a column that may have a key.
    #[inline]
    pub(crate) fn run_of(&self, column: &Column, key: &[u8]) -> u32 {
        if column.firsts.is_empty() {
            return column.runs.start;
        }
        let prefix = key_prefix(key);
        // Those that begin with the same bytes are told apart by their whole keys.
        let mut at = column.firsts.partition_point(|&first| first < prefix);
        while column.firsts.get(at) == Some(&prefix)
            && self.runs[column.runs.start as usize + at + 1].min_key() <= key
        {
            at += 1;
        }
        debug_assert!(at < column.runs.len(), "a run of the column");
        column.runs.start + at as u32
    }

    /// How many runs are the table's own, not those of a union below.
    pub(crate) fn own_count(&self) -> usize {
        self.root.own_end as usize
    }

    /// The level of one of the table's own runs, from 0. That of a flush that has not entered the
    /// levels is the first.
    pub(crate) fn level_of(&self, run: usize) -> usize {
        self.level_ends.partition_point(|&end| end <= run)
    }

    /// The first run that still matters when `run` had a decisive entry.
    pub(crate) fn after_decision(&self, run: u32) -> u32 {
        let end = self.places[run as usize].table_end;
        debug_assert!(run < end, "the search goes on to older runs");
        end
    }

    /// Combines the entries of one key.
    ///
    /// # Errors
    /// [`Error::UpsertTooLarge`](crate::Error::UpsertTooLarge).
    pub(crate) fn conclude(
        &self,
        key: &[u8],
        partial: KeyProgress,
        operator: &MergeOperator,
    ) -> Result<Lookup> {
        let KeyProgress { memory, entries } = partial;
        debug_assert!(entries.is_sorted_by_key(|entry| entry.run), "newer runs come first");
        let newest = memory.map(|value| RunEntry { run: 0, kind: Kind::Upsert, value, blob: None });
        let mut rest = entries.into_iter().peekable();
        let all = conclude_table(&self.root, newest, &mut rest, operator);
        debug_assert!(rest.peek().is_none(), "every entry is of a table of the plan");
        all.map_or(Ok(Lookup::NotFound), |entry| entry.into_lookup(key))
    }
}

type Rest = std::iter::Peekable<std::vec::IntoIter<RunEntry>>;

/// Combines a table's entries; `None` or a deletion for an absent key.
fn conclude_table(
    table: &TableSpan,
    newest: Option<RunEntry>,
    rest: &mut Rest,
    operator: &MergeOperator,
) -> Option<RunEntry> {
    let mut all = newest;
    // Entries come in the order of runs: those of the table before those of the union below.
    while let Some(older) = rest.next_if(|entry| entry.run < table.own_end) {
        all = Some(RunEntry::over(all, older, operator));
    }
    if let Some(union) = &table.union
        && let Some(older) = conclude_union(union, rest, operator)
    {
        all = Some(RunEntry::over(all, older, operator));
    }
    all
}

fn conclude_union(
    union: &UnionSpan,
    rest: &mut Rest,
    operator: &MergeOperator,
) -> Option<RunEntry> {
    let mut all: Option<RunEntry> = None;
    // Keys of slices do not overlap, so at most one of them has an entry.
    while let Some(entry) = rest.next_if(|entry| entry.run < union.slices_end) {
        all = all.or(Some(entry));
    }

    for table in &union.tables {
        let right = conclude_table(table, None, rest, operator);
        // A deletion in one table of a union hides nothing in another.
        let Some(right) = right.filter(|right| right.kind != Kind::Delete) else { continue };
        match &mut all {
            Some(left) if left.kind == Kind::TooLarge => {}
            Some(left) => {
                let right = (right.kind, &*right.value);
                let has_blob = left.blob.is_some();
                if operator.combine_stored(&mut left.value, right, has_blob) {
                    (left.kind, left.blob) = (Kind::TooLarge, None);
                }
            }
            None => {
                let kind = match right.kind {
                    Kind::TooLarge => Kind::TooLarge,
                    _ if right.blob.is_some() => Kind::InsertBlob,
                    _ => Kind::Insert,
                };
                all = Some(RunEntry { kind, ..right });
            }
        }
    }

    all
}

impl RunEntry {
    /// Converts the entry to the result of `key`, with no older entry left.
    pub(crate) fn into_lookup(self, key: &[u8]) -> Result<Lookup> {
        match (self.kind, self.blob) {
            (Kind::Delete, _) => Ok(Lookup::NotFound),
            (Kind::TooLarge, _) => Err(TooLarge::error(key, &self.value)),
            (_, Some(blob)) => Ok(Lookup::FoundWithBlob(self.value.into(), blob)),
            (_, None) => Ok(Lookup::Found(self.value.into())),
        }
    }

    /// Combines an older entry of a table with a newer one, if there is one.
    fn over(newer: Option<Self>, older: Self, operator: &MergeOperator) -> Self {
        match newer {
            None => older,
            Some(newer) if newer.kind.is_decisive() => newer,
            Some(mut newer) => {
                let entry = (older.kind, &*older.value);
                let is_too_large = older.kind != Kind::Delete
                    && operator.combine_stored(&mut newer.value, entry, false);
                let kind = if is_too_large { Kind::TooLarge } else { older.kind.under_upsert() };
                Self { kind, ..newer }
            }
        }
    }
}
