//! One union: merges the content of several tables into one run, in steps.
//!
//! All tables that have a union share it, so its work is done once. All runs of all tables are
//! merged in one pass, in key order, table by table first (the newest entry counts, upserts
//! combine), then left to right. The output is cut into *slices*, each a run of its own that
//! readers use as soon as it is complete: keys up to the *frontier* are read from a slice, one page
//! each, the others from the tables. So lookups get faster with every slice. At the end the slices
//! are joined to one run by a [`Compaction`] like any other.
//!
//! **Debt** is counted in entries: those of the tables that are not united yet, each counted once
//! for uniting and once for joining, and those of the slices, which are to be joined. It is an
//! upper bound, since entries of one key become one.
//!
//! A step that fails starts its slice again; complete slices stay.
//!
//! Invariant: up to the frontier the slices hold exactly what the tables amount to, without
//! deletions; the reported debt never rises.

use terrane_io::sync::atomic::{AtomicU64, Ordering};
use terrane_io::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::compaction::compaction::{
    Compaction, CompactionSpec, ENTRIES_PER_LOOK, Input, UnfinishedBytes,
};
use crate::compaction::loser_tree::MergeIterator;
use crate::compaction::sources::{Frontier, Scan, Sources, UnionSources};
use crate::entry::entry::{EntryRef, Kind, Order, key_hash};
use crate::entry::key_range::KeyRange;
use crate::entry::mask::Mask;
use crate::error::Result;
use crate::files::file_set::{FileSet, lock};
use crate::memory::budget::Planned;
use crate::run::chunk_reader::Reading;
use crate::run::run::Run;
use crate::run::writer::{RunBuilder, RunPlan};

/// Approximate number of slices of a union.
const SLICES: u64 = 64;

/// Entries united in a slice, at least, for each page of merge work that is saved up: one page of
/// small entries.
const SLICE_ENTRIES_PER_BATCH_PAGE: u64 = 40;

/// Maximum depth of nested unions.
pub(crate) const UNION_DEPTH_MAX: usize = 32;

/// Maximum number of runs of a union, each counted as often as it occurs: nested unions of one
/// table could have one run 2^32 times.
pub(crate) const UNION_RUNS_MAX: usize = 1 << 16;

/// A run of a table, or a merge that will be one.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    Run(Arc<Run>),
    /// With the keys that the table is seen without.
    Compaction(Arc<Compaction>, Mask),
}

/// A table of a union, as it was when the union was made.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnionTable {
    /// Newest first.
    pub(crate) pieces: Vec<Piece>,
    /// Older than all of them, with the keys that the table is seen without.
    pub(crate) older: Option<(Arc<Union>, Mask)>,
}

impl UnionTable {
    /// Without the union below.
    fn own_sources(&self) -> Sources {
        let mut sources = Sources::default();
        for piece in &self.pieces {
            match piece {
                Piece::Run(run) => sources.runs.push(Arc::clone(run)),
                Piece::Compaction(compaction, mask) => {
                    sources.add(compaction.view().under_mask(mask));
                }
            }
        }
        sources
    }

    fn sources(&self) -> Sources {
        let older = self.older.as_ref();
        let union = older.map(|(union, mask)| Box::new(union.sources().under_mask(mask)));
        Sources { union, ..self.own_sources() }
    }

    /// All of its runs, those of the unions below included.
    pub(crate) fn all_runs(&self) -> Vec<Arc<Run>> {
        let mut runs = Vec::new();
        self.sources().for_each_run(&mut |run| runs.push(Arc::clone(run)));
        runs
    }

    /// Its own runs, newest first.
    pub(crate) fn runs(&self) -> Vec<Arc<Run>> {
        self.own_sources().runs
    }

    /// Number of its runs, including the initial runs of the unions below. Cost: a step for each
    /// run of its own.
    pub(crate) fn run_count(&self) -> usize {
        self.runs().len() + self.older.as_ref().map_or(0, |(union, _)| union.run_count)
    }

    /// Entries that merging the table would read, at most.
    fn entries(&self) -> u64 {
        let older = self.older.as_ref().map_or(0, |(union, _)| union.entries());
        older + self.runs().iter().map(|run| run.meta().entries).sum::<u64>()
    }

    fn depth(&self) -> usize {
        self.older.as_ref().map_or(0, |(union, _)| union.depth)
    }
}

/// Stage of a union.
#[derive(Debug, Clone)]
pub(crate) enum Stage {
    Uniting {
        tables: Arc<[UnionTable]>,
        slices: Vec<Arc<Run>>,
        frontier: Frontier,
    },
    Joining(Arc<Compaction>),
    /// Nothing may be left.
    Complete(Option<Arc<Run>>),
}

#[derive(Debug)]
struct Uniting {
    merge: MergeIterator,
    builder: Option<Box<RunBuilder>>,
    /// Entries passed up to the frontier; and how many of them the merge counts.
    passed_before: u64,
    merge_before: u64,
    /// The key that was passed last.
    last: Vec<u8>,
    /// Entries of the slice that is being written.
    written: u64,
}

impl Uniting {
    fn passed(&self) -> u64 {
        self.passed_before + (self.merge.entries_passed() - self.merge_before)
    }
}

/// A union, shared.
#[derive(Debug)]
pub(crate) struct Union {
    set: Arc<FileSet>,
    /// How runs are written: that of the output, but for the inputs.
    spec: CompactionSpec,
    /// Entries of the tables that are united in a slice.
    slice_entries: u64,
    depth: usize,
    /// Runs of its tables in the beginning.
    run_count: usize,
    stage: RwLock<Stage>,
    /// Entries of the tables and how many of them are united: once work has begun.
    total: AtomicU64,
    passed: AtomicU64,
    /// Entries of the slice that is being written.
    slice_written: AtomicU64,
    /// Memory of its filter and its index.
    built_bytes: UnfinishedBytes,
    /// Debt reported last.
    debt: AtomicU64,
    job: Mutex<Option<Box<Uniting>>>,
}

/// Progress of a union, as a snapshot keeps it.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnionProgress {
    pub(crate) slices: Vec<Arc<Run>>,
    pub(crate) frontier: Frontier,
    /// Entries passed up to the frontier.
    pub(crate) passed: u64,
}

impl Union {
    /// Prepares the union of some tables; does no work. `batch_pages` is the merge batch of its
    /// table.
    pub(crate) fn new(
        set: &Arc<FileSet>,
        spec: CompactionSpec,
        batch_pages: u32,
        tables: Vec<UnionTable>,
        progress: UnionProgress,
    ) -> Self {
        let depth = 1 + tables.iter().map(UnionTable::depth).max().unwrap_or(0);
        let total: u64 = tables.iter().map(UnionTable::entries).sum();
        let slice_min = u64::from(batch_pages) * SLICE_ENTRIES_PER_BATCH_PAGE;
        assert!(slice_min > 0, "a slice of no entries would never end");
        let UnionProgress { slices, frontier, passed } = progress;

        let union = Self {
            set: Arc::clone(set),
            spec,
            slice_entries: total.div_ceil(SLICES).max(slice_min),
            depth,
            run_count: tables.iter().map(UnionTable::run_count).sum(),
            stage: RwLock::new(Stage::Uniting { tables: tables.into(), slices, frontier }),
            // Unknown until work begins: compactions of other holders may lessen the entries.
            total: AtomicU64::new(u64::MAX),
            passed: AtomicU64::new(passed),
            slice_written: AtomicU64::new(0),
            built_bytes: UnfinishedBytes::new(set),
            debt: AtomicU64::new(u64::MAX),
            job: Mutex::new(None),
        };

        // Notes the first debt; from here on the reported debt only falls.
        union.debt();
        union
    }

    /// Unions on the longest way down, itself included.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn stage(&self) -> Stage {
        self.stage.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the tables and the progress for a snapshot.
    pub(crate) fn progress(&self) -> (Arc<[UnionTable]>, UnionProgress) {
        // Read under the lock of the job, so that the count of passed entries matches the frontier.
        let job = lock(&self.job);
        let passed = job.as_ref().map_or_else(|| self.passed(), |job| job.passed_before);
        match self.stage() {
            Stage::Uniting { tables, slices, frontier } => {
                (tables, UnionProgress { slices, frontier, passed })
            }
            Stage::Joining(compaction) => {
                let slices = compaction.view().runs();
                (Arc::new([]), UnionProgress { slices, frontier: Frontier::Everything, passed })
            }
            Stage::Complete(run) => {
                let slices = run.into_iter().collect();
                (Arc::new([]), UnionProgress { slices, frontier: Frontier::Everything, passed })
            }
        }
    }

    /// Returns the sources for readers.
    pub(crate) fn sources(&self) -> UnionSources {
        match self.stage() {
            Stage::Uniting { tables, slices, frontier } => {
                let tables = tables.iter().map(UnionTable::sources).collect();
                UnionSources { slices, frontier, tables }
            }
            Stage::Joining(compaction) => UnionSources::complete(compaction.view().runs()),
            Stage::Complete(run) => UnionSources::complete(run.into_iter().collect()),
        }
    }

    fn passed(&self) -> u64 {
        self.passed.load(Ordering::Acquire)
    }

    /// Entries of the tables: until work has begun what they are now, which other holders' merges
    /// lessen.
    fn total(&self, tables: &[UnionTable]) -> u64 {
        match self.total.load(Ordering::Acquire) {
            u64::MAX => tables.iter().map(UnionTable::entries).sum(),
            total => total,
        }
    }

    /// Entries that merging the union would read, at most.
    fn entries(&self) -> u64 {
        match self.stage() {
            Stage::Uniting { tables, slices, .. } => {
                let united: u64 = slices.iter().map(|run| run.meta().entries).sum();
                united + self.total(&tables).saturating_sub(self.passed())
            }
            Stage::Joining(_) | Stage::Complete(_) => {
                self.sources().slices.iter().map(|run| run.meta().entries).sum()
            }
        }
    }

    /// Memory set aside for the filters and indexes that are still to be built, in bytes.
    pub(crate) fn planned_bytes(&self) -> u64 {
        match self.stage() {
            Stage::Uniting { tables, slices, .. } => {
                let mut planned = Planned::default();
                let runs = tables.iter().flat_map(UnionTable::all_runs);
                runs.for_each(|run| planned.add_run(&run, self.spec.prefix_bytes));
                let built = |run: &Arc<Run>| run.memory_bytes().0 + run.memory_bytes().1;
                let built = slices.iter().map(built).sum::<usize>() as u64;
                planned.bytes(self.spec.filter, self.spec.index).saturating_sub(built)
            }
            Stage::Joining(compaction) => compaction.planned_bytes(),
            Stage::Complete(_) => 0,
        }
    }

    /// Memory of the filter and the index that are being built, in bytes.
    pub(crate) fn built_bytes(&self) -> u64 {
        match self.stage() {
            Stage::Uniting { .. } => self.built_bytes.get(),
            Stage::Joining(compaction) => compaction.built_bytes(),
            Stage::Complete(_) => 0,
        }
    }

    /// Work left, in entries: at least 1 until the union is complete.
    pub(crate) fn debt(&self) -> u64 {
        let now = match self.stage() {
            Stage::Uniting { ref tables, ref slices, .. } => {
                let left = self.total(tables).saturating_sub(self.passed());
                let united: u64 = slices.iter().map(|run| run.meta().entries).sum();
                // An entry that is left is united and then joined; the 1 stays until the union is
                // complete.
                united + self.slice_written.load(Ordering::Acquire) + 2 * left + 1
            }
            Stage::Joining(compaction) => {
                let runs = compaction.view().runs();
                let entries: u64 = runs.iter().map(|run| run.meta().entries).sum();
                let left = u128::from(compaction.left());
                let left = u128::from(entries) * left;
                left.div_ceil(u128::from(compaction.total().max(1))) as u64 + 1
            }
            Stage::Complete(_) => 0,
        };

        // A slice that starts again has more left, but a reported debt never rises.
        self.debt.fetch_min(now, Ordering::AcqRel).min(now)
    }

    /// Works until the debt has fallen by `credits` or is paid; returns the unused credits.
    ///
    /// # Errors
    /// Any error of the disk, damaged inputs, and values that combine to one that is too large.
    /// Complete slices stay; the slice under way starts again.
    pub(crate) fn supply(&self, credits: u64) -> Result<u64> {
        let mut job = lock(&self.job);
        let before = self.debt();
        let target = before.saturating_sub(credits);

        while self.debt() > target {
            let result = self.step(&mut job);
            let builder = job.as_ref().and_then(|uniting| uniting.builder.as_ref());
            let built = builder.map_or(0, |builder| builder.memory_bytes());
            self.built_bytes.set(built as u64);
            if result.is_err() {
                // The positions of the sources are unknown after an error.
                self.begin_slice_anew(&mut job);
                result?;
            }
        }

        Ok(credits.saturating_sub(before))
    }

    fn begin_slice_anew(&self, job: &mut Option<Box<Uniting>>) {
        if let Some(uniting) = job.take() {
            self.passed.store(uniting.passed_before, Ordering::Release);
            self.slice_written.store(0, Ordering::Release);
            self.built_bytes.set(0);
        }
    }

    fn step(&self, job: &mut Option<Box<Uniting>>) -> Result<()> {
        match self.stage() {
            Stage::Complete(_) => Ok(()),
            Stage::Joining(compaction) => {
                compaction.advance_to((compaction.done() + 1).min(compaction.total()))?;
                if compaction.is_complete() {
                    self.enter(Stage::Complete(compaction.finish_one()?));
                }
                Ok(())
            }
            Stage::Uniting { .. } => {
                if job.as_ref().is_none_or(|uniting| !uniting.merge.is_whole()) {
                    // Also if a merge operator panicked in an earlier step.
                    self.begin_slice_anew(job);
                    *job = Some(self.begin()?);
                }
                let Some(uniting) = job else { return Ok(()) };
                if self.unite(uniting)? {
                    *job = None;
                    self.join();
                }
                Ok(())
            }
        }
    }

    fn enter(&self, stage: Stage) {
        let mut now = self.stage.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *now, stage);
        debug_assert!(!matches!(before, Stage::Complete(_)), "what is complete stays so");
        drop(now);
        // Dropped without the lock: the last holder of a run removes its file, and no reader should
        // wait for that.
        drop(before);
    }

    fn begin(&self) -> Result<Box<Uniting>> {
        // The merge holds the runs that it will read, so the total stands still from here on.
        if let Stage::Uniting { tables, .. } = self.stage() {
            self.total.store(self.total(&tables), Ordering::Release);
        }

        let order = Order::Ascending;
        let operator = self.spec.operator.clone();
        let sources = self.sources();

        // The reads ahead of a merge are shared among its runs, so their number comes first.
        let mut runs = 0;
        sources.for_each_run(&mut |_| runs += 1);
        let scan = Scan { order, operator, reading: Reading::merge(&self.set, runs) };
        let mut merge = scan.of_union(&sources, &KeyRange::ALL);
        merge.load()?;
        let passed_before = self.passed();
        let builder = None;
        let last = Vec::new();
        let written = 0;
        let merge_before = 0;

        Ok(Box::new(Uniting { merge, builder, passed_before, merge_before, last, written }))
    }

    /// Merges some entries; returns whether all are united.
    fn unite(&self, uniting: &mut Uniting) -> Result<bool> {
        let salt = self.spec.salt;
        for _ in 0..ENTRIES_PER_LOOK {
            let Some(entry) = uniting.merge.current() else {
                self.close_slice(uniting, Frontier::Everything)?;
                // Entries that combined or were masked were never counted, but nothing is left.
                self.passed.store(self.total.load(Ordering::Acquire), Ordering::Release);
                return Ok(true);
            };

            uniting.last.clear();
            uniting.last.extend_from_slice(entry.key);
            if entry.kind != Kind::Delete {
                let builder = match &mut uniting.builder {
                    Some(builder) => builder,
                    none => none.insert(Box::new(RunBuilder::new(&self.set, &self.plan())?)),
                };

                let blob = uniting.merge.blob();
                let kind = match entry.kind {
                    Kind::TooLarge => Kind::TooLarge,
                    _ if blob.is_some() => Kind::InsertBlob,
                    _ => Kind::Insert,
                };

                let entry = EntryRef { kind, ..entry };
                builder.push(entry, blob.as_ref(), || key_hash(salt, entry.key))?;
                uniting.written += 1;
            }

            uniting.merge.advance()?;
            // A slice ends between two keys: the frontier divides keys, not entries of one key.
            if uniting.passed() - uniting.passed_before >= self.slice_entries {
                let frontier = Frontier::UpTo(uniting.last.as_slice().into());
                self.close_slice(uniting, frontier)?;
                break;
            }
        }

        let passed = uniting.passed();
        self.passed.store(passed.min(self.total.load(Ordering::Acquire)), Ordering::Release);
        self.slice_written.store(uniting.written, Ordering::Release);
        Ok(false)
    }

    fn plan(&self) -> RunPlan {
        let mut planned = Planned::default();
        let mut bounds = None::<(Vec<u8>, Vec<u8>)>;
        self.sources().for_each_run(&mut |run| {
            planned.add_run(run, self.spec.prefix_bytes);
            let (lower, upper) =
                bounds.get_or_insert_with(|| (run.min_key().to_vec(), run.max_key().to_vec()));
            if run.min_key() < lower.as_slice() {
                *lower = run.min_key().to_vec();
            }
            if run.max_key() > upper.as_slice() {
                *upper = run.max_key().to_vec();
            }
        });

        let (lower, upper) = bounds.unwrap_or_default();
        // A key page holds at least one entry, so a slice has no more pages than entries.
        let plan = RunPlan {
            purpose: self.spec.purpose,
            salt: self.spec.salt,
            access: self.spec.access,
            lower,
            upper,
            entries_max: planned.entries,
            prefix_bytes: self.spec.prefix_bytes,
            members_max: planned.members,
            entries_between: self.slice_entries,
            pages_between: planned.key_pages.min(self.slice_entries),
            filter: self.spec.filter,
            index: self.spec.index,
            compression: self.spec.compression,
        };
        plan.part(self.slice_entries)
    }

    /// Finishes the current slice and moves the frontier.
    fn close_slice(&self, uniting: &mut Uniting, reached: Frontier) -> Result<()> {
        let run = match uniting.builder.take() {
            Some(builder) => builder.finish()?.map(Arc::new),
            None => None,
        };

        if let Some(run) = &run {
            run.count_written();
        }

        let passed = uniting.passed();
        let mut stage = self.stage.write().unwrap_or_else(PoisonError::into_inner);
        if let Stage::Uniting { slices, frontier, .. } = &mut *stage {
            debug_assert!(
                match &reached {
                    Frontier::Nothing => false,
                    Frontier::UpTo(key) => !frontier.covers(key),
                    Frontier::Everything => true,
                },
                "the frontier rises"
            );
            debug_assert!(
                run.as_ref().is_none_or(|run| !frontier.covers(run.min_key())),
                "slices follow each other"
            );
            debug_assert_eq!(
                run.as_ref().map_or(0, |run| run.meta().entries),
                uniting.written,
                "a slice has all that was written to it"
            );
            slices.extend(run);
            *frontier = reached;
        }

        drop(stage);
        uniting.passed_before = passed;
        uniting.merge_before = uniting.merge.entries_passed();
        uniting.written = 0;

        Ok(())
    }

    /// Enters the next stage once all entries are united.
    fn join(&self) {
        let Stage::Uniting { mut slices, .. } = self.stage() else { return };
        // One slice is the result; a join would only copy it.
        if slices.len() <= 1 {
            self.enter(Stage::Complete(slices.pop()));
            return;
        }
        let inputs = slices.into_iter().map(Input::Run).collect();
        let spec = CompactionSpec { inputs, ..self.spec.clone() };
        self.enter(Stage::Joining(Arc::new(Compaction::new(&self.set, spec))));
    }
}

impl UnionSources {
    fn complete(slices: Vec<Arc<Run>>) -> Self {
        Self { slices, frontier: Frontier::Everything, tables: Vec::new() }
    }
}
