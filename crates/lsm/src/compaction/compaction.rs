//! One compaction: merges several runs, or a memtable, into one run or into slices, in steps.
//!
//! All tables that have a compaction in their levels share it, so its work is done once. Readers
//! look into its inputs until it is complete, and into its output afterwards. So progress never
//! changes a result.
//!
//! On a large last level the output is cut into [`slices`](crate::run::slices). Readers look into a
//! slice as soon as it is whole, and see the inputs without the keys up to its last one. An input
//! that has no others is let go of there. So inputs and output are never on the disk together, if
//! the inputs are slices too.
//!
//! The unit of work is a page: pages passed in the inputs, then pages of filter, index and footer
//! written for the output. A step can have any size. It holds in memory a few chunks of each input
//! and of the output, and the output's filter and index.
//!
//! If a page cannot be written (a full disk, say), the compaction stays where it was and the next
//! step goes on. If an input cannot be read, the compaction drops its unfinished output and starts
//! again; its inputs are unchanged.
//!
//! A snapshot can [flush](Compaction::flush) the output written so far. A
//! [resumed](Compaction::resumed) compaction first reads that output again, which counts as work,
//! and then continues behind its last key. If that output is damaged or cannot be read, the
//! compaction starts again with another file.
//!
//! Invariants: `done <= total`, and `done == total` exactly when the output is there. What slices
//! and inputs together amount to never changes.

use std::ops::{Bound, ControlFlow};
use std::sync::OnceLock;

use terrane_io::Access;
use terrane_io::sync::atomic::{AtomicU64, Ordering};
use terrane_io::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};

use crate::block::codec::Compression;
use crate::block::index::IndexKind;
use crate::block::page::PAGE_SIZE;
use crate::compaction::loser_tree::{Combine, MergeIterator, Rules, Source};
use crate::compaction::merge_pipe::{PipeReader, PipeWriter, merge_pipe};
use crate::compaction::resume::{ResumedOutput, ResumedPages};
use crate::entry::entry::{EntryRef, Kind, Order, key_hash};
use crate::entry::key_range::KeyRange;
use crate::entry::mask::{Mask, Span};
use crate::entry::merge_operator::MergeOperator;
use crate::error::{Error, Result};
use crate::files::file_set::{FileSet, lock};
use crate::filter::filter::FilterAllocation;
use crate::memory::budget::Planned;
use crate::memtable::memtable::Memtable;
use crate::memtable::part::MemtablePartReader;
use crate::run::chunk_reader::Reading;
use crate::run::run::{Origin, Purpose, Run, SliceOrigin};
use crate::run::slices::{SlicesReader, follows};
use crate::run::writer::{Flushed, RunBuilder, RunFinisher, RunPlan};
use crate::trace::debug_event;

/// Entries merged between two comparisons of the work done with the target.
pub(crate) const ENTRIES_PER_LOOK: u32 = 16;

/// Pages reread for one page of work: a merged page is read and written, a reread page only read.
const REREAD_PAGES_PER_PAGE: u64 = 2;

/// An input of a compaction.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    Run(Arc<Run>),
    Buffer(Memtable),
}

impl Input {
    /// The run, if it is one.
    pub(crate) fn run(&self) -> Option<&Arc<Run>> {
        match self {
            Self::Run(run) => Some(run),
            Self::Buffer(_) => None,
        }
    }

    /// Memory of a memtable; a run's belongs to all who read it.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Run(_) => 0,
            Self::Buffer(buffer) => buffer.memory_bytes() as u64,
        }
    }

    fn under_mask(&self, mask: &Mask) -> Self {
        match self {
            Self::Run(run) => Self::Run(run.under_mask(mask)),
            Self::Buffer(buffer) => Self::Buffer(buffer.under_mask(mask)),
        }
    }

    /// Whether two inputs are runs of which the second follows the first.
    fn are_slices(one: &Self, next: &Self) -> bool {
        one.run().zip(next.run()).is_some_and(|(one, next)| follows(one, next))
    }
}

/// The inputs without the keys that a slice of the output, or an earlier one, has.
fn beyond(slice: &Run, inputs: &[Input]) -> Vec<Input> {
    let last = slice.max_key();
    let range = KeyRange::ALL.to(Bound::Included(last.to_vec()));
    let mask = Span::of(&range).map_or_else(Mask::default, |span| Mask::default().with(&span));

    // Those at the end that follow each other stay as they are: no key of the slice was in or
    // behind them. Every other one changes, as does what is older than it (`table::divergence`).
    let at_end = inputs.chunk_by(Input::are_slices).last().map_or(0, <[_]>::len);
    let others = inputs.len() - at_end;
    let rest = inputs.iter().enumerate().filter_map(|(at, input)| match input {
        Input::Run(run) if run.max_key() <= last => None,
        Input::Run(run) if at >= others && run.min_key() > last => Some(input.clone()),
        Input::Run(_) | Input::Buffer(_) => Some(input.under_mask(&mask)),
    });
    rest.collect()
}

/// Slices of one compaction, at most.
const SLICES_MAX: u64 = 1_000;

/// Entries of a slice where the output is one run: more than any run has.
pub(crate) const ONE_RUN: u64 = u64::MAX;

/// Plan of a compaction: its inputs and the properties of its output.
#[derive(Debug, Clone)]
pub(crate) struct CompactionSpec {
    /// Newest first.
    pub(crate) inputs: Vec<Input>,
    /// Slices that there are already, of a compaction that was interrupted.
    pub(crate) slices: Vec<Arc<Run>>,
    /// Entries of a slice; [`ONE_RUN`] if there is only one.
    pub(crate) slice_entries: u64,
    /// Whether the inputs are the oldest entries of the table, so that deletions can be dropped.
    pub(crate) drop_deletes: bool,
    pub(crate) operator: MergeOperator,
    pub(crate) filter: Option<FilterAllocation>,
    /// Bytes of the prefixes that the filter holds; 0 for none.
    pub(crate) prefix_bytes: u8,
    pub(crate) index: IndexKind,
    pub(crate) compression: Compression,
    pub(crate) access: Access,
    pub(crate) salt: u64,
    pub(crate) purpose: Purpose,
}

impl CompactionSpec {
    /// Goes on behind some slices, each of so many entries.
    pub(crate) fn resuming(self, slices: Vec<Arc<Run>>, slice_entries: u64) -> Self {
        // Whatever a snapshot says, no entry comes twice, and there are not too many slices.
        let inputs = match slices.last() {
            Some(last) => beyond(last, &self.inputs),
            None => self.inputs,
        };
        let least = planned(&inputs, self.prefix_bytes).entries / SLICES_MAX;
        Self { slice_entries: slice_entries.max(least).max(1), slices, inputs, ..self }
    }

    /// Adds a slice that is whole: what is behind it is left to do.
    pub(crate) fn with_slice(self, slice: Arc<Run>) -> Self {
        let inputs = beyond(&slice, &self.inputs);
        let mut slices = self.slices;
        slices.push(slice);
        Self { inputs, slices, ..self }
    }
}

/// View of a compaction, for readers: its inputs or its output.
#[derive(Debug, Clone)]
pub(crate) enum View {
    /// Not complete: the slices so far, in key order, and the inputs, newest first, without the
    /// keys up to the last one of the slices.
    Inputs { slices: Arc<[Arc<Run>]>, inputs: Arc<[Input]> },
    /// Complete: the output, in slices or as one run; nothing may be left.
    Output(Arc<[Arc<Run>]>),
}

impl View {
    /// Returns the view without the keys that a mask covers.
    pub(crate) fn under_mask(self, mask: &Mask) -> Self {
        match self {
            view if mask.is_empty() => view,
            Self::Inputs { slices, inputs } => {
                let inputs = inputs.iter().map(|input| input.under_mask(mask)).collect();
                Self::Inputs { slices: runs_under(&slices, mask), inputs }
            }
            Self::Output(slices) => Self::Output(runs_under(&slices, mask)),
        }
    }

    /// All runs, newest first.
    pub(crate) fn runs(&self) -> Vec<Arc<Run>> {
        match self {
            Self::Inputs { slices, inputs } => {
                slices.iter().chain(inputs.iter().filter_map(Input::run)).cloned().collect()
            }
            Self::Output(slices) => slices.to_vec(),
        }
    }
}

/// Runs without the keys that a mask covers.
pub(crate) fn runs_under(runs: &[Arc<Run>], mask: &Mask) -> Arc<[Arc<Run>]> {
    runs.iter().map(|run| run.under_mask(mask)).collect()
}

/// Conversion of pages passed into work done. After an interruption some passed pages are no work
/// of this compaction, and some work passed no page.
#[derive(Debug, Clone, Copy, Default)]
struct WorkTally {
    /// Pages passed before the interruption, as noted then.
    skipped: u64,
    /// Work done by rereading the output.
    reread: u64,
    /// Pages of the inputs in front of the key at which the compaction continued.
    pages_before: u64,
    /// Pages of filter, index and footer of the slices that are whole, and of their blobs.
    finished: u64,
    finished_blobs: u64,
}

impl WorkTally {
    fn done(self, passed: u64) -> u64 {
        self.reread + passed.saturating_sub(self.skipped) + self.finished
    }
}

#[derive(Debug)]
enum Job {
    Idle,
    Interrupted(Box<ResumedPages>),
    ResumedOutput(Box<ResumedOutput>),
    Entries {
        merge: Box<MergeIterator>,
        builder: Box<RunBuilder>,
    },
    /// The entries of a slice, or of all, are written. `rest` gives those of the next slices.
    Finishing {
        finisher: Box<RunFinisher>,
        passed: u64,
        rest: Option<Box<MergeIterator>>,
    },
    /// A slice is whole and the next one not begun.
    BetweenSlices(Box<MergeIterator>),
    Done,
}

/// Why a step of merging has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The pages that were asked for are done.
    Target,
    /// The slice has its entries.
    SliceFull,
    /// The inputs are used up.
    End,
}

impl Job {
    /// Whether the step can be repeated after a failure: the job is in a known state.
    fn can_go_on(&self) -> bool {
        match self {
            Self::Idle => false,
            Self::Entries { merge, builder } => merge.is_whole() && builder.is_whole(),
            Self::BetweenSlices(merge) => merge.is_whole(),
            Self::Interrupted(_) | Self::ResumedOutput(_) | Self::Finishing { .. } | Self::Done => {
                true
            }
        }
    }

    /// Memory of the filter and the index that are being built.
    fn memory_bytes(&self) -> u64 {
        match self {
            Self::Idle | Self::Interrupted(_) | Self::BetweenSlices(_) | Self::Done => 0,
            Self::ResumedOutput(resumed) => resumed.memory_bytes() as u64,
            Self::Entries { builder, .. } => builder.memory_bytes() as u64,
            Self::Finishing { finisher, .. } => finisher.memory_bytes() as u64,
        }
    }
}

/// Memory of the filter and the index of an output that is being written; counted for the session
/// as well, until it is dropped.
#[derive(Debug)]
pub(crate) struct UnfinishedBytes {
    set: Arc<FileSet>,
    bytes: AtomicU64,
}

impl UnfinishedBytes {
    pub(crate) fn new(set: &Arc<FileSet>) -> Self {
        Self { set: Arc::clone(set), bytes: AtomicU64::new(0) }
    }

    pub(crate) fn get(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the bytes; one thread does so at a time.
    pub(crate) fn set(&self, bytes: u64) {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        let sum = &self.set.sums().unfinished_bytes;
        // Wraps if the memory has shrunk, and so subtracts.
        sum.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl Drop for UnfinishedBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A compaction, shared by tables.
#[derive(Debug)]
pub(crate) struct Compaction {
    set: Arc<FileSet>,
    /// Plan of the output, without the bounds of the keys, which are found as a run is begun.
    plan: RunPlan,
    /// Entries of a slice; [`ONE_RUN`] if there is only one.
    slice_entries: u64,
    /// Slices that were there when it began.
    slices_before: usize,
    /// Where the output comes from, if all inputs are runs.
    origin: Option<Arc<Origin>>,
    drop_deletes: bool,
    operator: MergeOperator,
    /// Memory for the output's filter and index while they are built, as planned.
    planned_bytes: u64,
    /// Memory of the filter and the index after the last step.
    built_bytes: UnfinishedBytes,
    /// Pages of work from the beginning, as planned.
    work: u64,
    /// Pages of work. Never falls; rises if a resumed compaction has to start again.
    total: AtomicU64,
    /// Pages of the memtables among the inputs, as estimated.
    buffer_pages: u64,
    /// Pages of entries of the runs that were its inputs when it began, and pages of their blobs.
    run_pages: u64,
    blob_pages: u64,
    done: AtomicU64,
    /// Pages of work that tables have asked the background thread for.
    pub(crate) requested: AtomicU64,
    view: RwLock<View>,
    job: Mutex<(Job, WorkTally)>,
    /// An error of the background thread, for the next caller.
    failed: Mutex<Option<Error>>,
}

/// Entries that are merged between two looks at the work done, which visit each source: so the cost
/// per entry stays constant.
fn entries_per_look(sources: usize) -> usize {
    sources.max(ENTRIES_PER_LOOK as usize)
}

fn pages_of(weight_bytes: u64) -> u64 {
    weight_bytes.div_ceil(PAGE_SIZE as u64) + 1
}

/// Returns the memory that a compaction of `inputs` will hold, whose filter has prefixes of so many
/// bytes.
pub(crate) fn planned(inputs: &[Input], prefix_bytes: u8) -> Planned {
    let mut planned = Planned::default();
    for input in inputs {
        match input {
            Input::Run(run) => planned.add_run(run, prefix_bytes),
            Input::Buffer(buffer) => {
                // Entries of one key may become one later, so both counts are upper bounds.
                let entries = buffer.len() as u64;
                planned.entries += entries;
                planned.members += if prefix_bytes > 0 { 2 * entries } else { entries };
                planned.key_pages += pages_of(buffer.weight_bytes());
            }
        }
    }
    planned
}

impl Compaction {
    /// Prepares a compaction; does no work.
    pub(crate) fn new(set: &Arc<FileSet>, spec: CompactionSpec) -> Self {
        let planned = planned(&spec.inputs, spec.prefix_bytes);
        let mut run_pages = 0;
        let mut blob_pages = 0;

        let mut buffer_pages = 0;
        for input in &spec.inputs {
            match input {
                Input::Run(run) => {
                    run_pages += u64::from(run.meta().data_pages);
                    blob_pages += run.meta().blob_pages();
                }
                Input::Buffer(buffer) => buffer_pages += pages_of(buffer.weight_bytes()),
            }
        }

        let plan = RunPlan {
            purpose: spec.purpose,
            salt: spec.salt,
            access: spec.access,
            lower: Vec::new(),
            upper: Vec::new(),
            entries_max: planned.entries,
            prefix_bytes: spec.prefix_bytes,
            members_max: planned.members,
            entries_between: planned.entries,
            pages_between: planned.key_pages,
            filter: spec.filter,
            index: spec.index,
            compression: spec.compression,
        };

        // The index takes a page for each 2,000 to 3,000 pages.
        assert!(spec.slice_entries > 0, "a slice has entries");
        let slices = planned.entries.div_ceil(spec.slice_entries).max(1);
        let finishing = plan.filter_pages() + (run_pages + buffer_pages) / 2048 + 2 * slices;
        let work = run_pages + blob_pages + buffer_pages + finishing;
        assert!(work > 0, "the footer is a page of work");

        let of_run = |input: &Input| {
            let run = input.run()?;
            // A weak reference, so that an origin keeps no file of an input.
            Some((run.number(), run.mask().clone(), Arc::downgrade(run)))
        };
        let inputs: Option<Vec<_>> = spec.inputs.iter().map(of_run).collect();
        let origin = inputs.filter(|inputs| !inputs.is_empty()).map(|inputs| {
            let is_oldest = spec.drop_deletes;
            Arc::new(Origin { inputs, is_oldest, slice_count: OnceLock::new() })
        });

        Self {
            set: Arc::clone(set),
            plan,
            slice_entries: spec.slice_entries,
            slices_before: spec.slices.len(),
            origin,
            drop_deletes: spec.drop_deletes,
            operator: spec.operator,
            planned_bytes: planned.bytes(spec.filter, spec.index),
            built_bytes: UnfinishedBytes::new(set),
            work,
            total: AtomicU64::new(work),
            buffer_pages,
            run_pages,
            blob_pages,
            done: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            view: RwLock::new(View::Inputs {
                slices: spec.slices.into(),
                inputs: spec.inputs.into(),
            }),
            job: Mutex::new((Job::Idle, WorkTally::default())),
            failed: Mutex::new(None),
        }
    }

    /// Prepares a compaction of runs that was interrupted, to continue behind its written output;
    /// does no work.
    pub(crate) fn resumed(set: &Arc<FileSet>, spec: CompactionSpec, taken: ResumedPages) -> Self {
        assert!(spec.inputs.iter().all(|input| input.run().is_some()));
        let compaction = Self::new(set, spec);
        // The noted work comes from a snapshot, so it is clamped before it is subtracted.
        let skipped = taken.partial.work.min(compaction.work);
        // The written part need not be merged again, only reread at a lower price.
        let reread = taken.pages().div_ceil(REREAD_PAGES_PER_PAGE);
        let total = (compaction.work - skipped + reread).max(1);
        assert!(0 < total && skipped <= compaction.work);
        debug_assert!(reread <= total, "rereading is a part of the work");
        debug_assert_eq!(compaction.done(), 0, "nothing was done before it is shared");

        let tally = WorkTally { skipped, reread, ..WorkTally::default() };
        let job = (Job::Interrupted(Box::new(taken)), tally);
        Self { total: AtomicU64::new(total), job: Mutex::new(job), ..compaction }
    }

    /// Returns a complete compaction with `run` as its output.
    pub(crate) fn completed(set: &Arc<FileSet>, run: Arc<Run>) -> Self {
        let spec = CompactionSpec {
            inputs: Vec::new(),
            slices: Vec::new(),
            slice_entries: ONE_RUN,
            drop_deletes: false,
            operator: MergeOperator::default(),
            filter: None,
            prefix_bytes: 0,
            index: IndexKind::Ordinary,
            compression: Compression::None,
            access: Access::Buffered,
            salt: run.meta().salt,
            purpose: run.meta().purpose,
        };

        let compaction = Self {
            view: RwLock::new(View::Output([run].into())),
            job: Mutex::new((Job::Done, WorkTally::default())),
            ..Self::new(set, spec)
        };

        compaction.done.store(compaction.total(), Ordering::Release);
        debug_assert!(
            compaction.is_complete(),
            "nobody works on a compaction that was made complete"
        );
        compaction
    }

    /// Pages of work in all; for a resumed compaction, of the rest.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Acquire)
    }

    /// Pages of work from the beginning, interrupted or not.
    pub(crate) fn work(&self) -> u64 {
        self.work
    }

    /// Pages of work done.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// Pages of work left; another thread may do them meanwhile.
    pub(crate) fn left(&self) -> u64 {
        // `done` is read first, because the total never falls: it cannot be below a `done` of
        // earlier. The other way round a compaction that starts again in between, and gets a higher
        // total, could have done more than the total that was read, and the difference would wrap.
        let done = self.done();
        let total = self.total();
        debug_assert!(done <= total, "no more is done than there is");
        total - done
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.left() == 0
    }

    /// Access mode of lookups to the output.
    pub(crate) fn access(&self) -> Access {
        self.plan.access
    }

    /// Memory set aside for the output's filter and index while they are built, in bytes; slices
    /// that are whole count as the runs that they are.
    pub(crate) fn planned_bytes(&self) -> u64 {
        let View::Inputs { slices, .. } = self.view() else { return self.planned_bytes };
        let bytes = |run: &Arc<Run>| run.memory_bytes().0 + run.memory_bytes().1;
        let built = slices.iter().skip(self.slices_before).map(bytes).sum::<usize>() as u64;
        self.planned_bytes.saturating_sub(built)
    }

    /// Entries of a slice, for a snapshot.
    pub(crate) fn slice_entries(&self) -> u64 {
        self.slice_entries
    }

    /// Memory of the output's filter and index, as far as they are built, in bytes.
    pub(crate) fn built_bytes(&self) -> u64 {
        self.built_bytes.get()
    }

    /// Whether deletions are dropped.
    pub(crate) fn drops_deletes(&self) -> bool {
        self.drop_deletes
    }

    /// Returns the current view of readers.
    pub(crate) fn view(&self) -> View {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Flushes the output for a snapshot. Returns the view of readers and, if the compaction is not
    /// complete, the flushed part of the output.
    ///
    /// Cost: at most two writes for the pages of entries and three for those of blobs, of which the
    /// first waits for one under way.
    pub(crate) fn flush(&self) -> Result<(View, Option<Flushed>)> {
        let mut guard = lock(&self.job);
        // A job that a panic left half way has nothing that could be flushed.
        self.begin_anew_unless_whole(&mut guard);

        let tally = guard.1;
        // Whoever goes on has the inputs that there are now, without those that were let go of.
        let gone = self.pages_gone() + tally.finished_blobs.min(self.blob_pages);
        let work = |passed: u64| passed.saturating_sub(gone);
        let flushed = match &mut guard.0 {
            Job::Idle | Job::BetweenSlices(_) | Job::Done => None,
            Job::Interrupted(taken) => Some(taken.flushed()),
            Job::ResumedOutput(resumed) => Some(resumed.flushed()),
            Job::Entries { merge, builder } => {
                builder.flush(work(self.passed(merge, builder, tally)))?
            }
            Job::Finishing { finisher, passed, .. } => Some(finisher.flush(work(*passed))?),
        };

        // Read under the lock of the job: nothing can complete the compaction between flush and
        // view.
        let view = self.view();
        debug_assert!(
            flushed.is_none() || matches!(view, View::Inputs { .. }),
            "only an unfinished output is flushed"
        );
        Ok((view, flushed))
    }

    /// Does the rest of the work and returns the output: slices, one run, or none.
    pub(crate) fn finish(&self) -> Result<Arc<[Arc<Run>]>> {
        self.advance_to(u64::MAX)?;
        match self.view() {
            View::Output(slices) => Ok(slices),
            View::Inputs { .. } => unreachable!("complete after advancing to the end"),
        }
    }

    /// Does the rest of the work and returns the output, which is to be one run; `None` if nothing
    /// is left.
    pub(crate) fn finish_one(&self) -> Result<Option<Arc<Run>>> {
        assert_eq!(self.slice_entries, ONE_RUN, "only then the output is one run");
        Ok(self.finish()?.first().cloned())
    }

    /// Works until at least `target` pages are done; from `total` on, until the output is complete.
    ///
    /// # Errors
    /// Errors of the disk, and damaged inputs. The next call continues or starts again.
    pub(crate) fn advance_to(&self, target: u64) -> Result<()> {
        // An error of the background thread has one reader: the first caller.
        if let Some(error) = lock(&self.failed).take() {
            return Err(error);
        }
        if self.done() >= target || self.is_complete() {
            return Ok(());
        }
        self.advance_job(&mut lock(&self.job), target)
    }

    /// Works up to the requested pages, on the background thread, which stores an error for the
    /// next caller.
    pub(crate) fn advance_in_background(&self) {
        let target = self.requested.load(Ordering::Acquire).min(self.total());
        if self.done() >= target || lock(&self.failed).is_some() {
            return;
        }
        let mut job = lock(&self.job);
        if let Err(error) = self.advance_job(&mut job, target) {
            // Stored under the lock of the job, so that the next caller meets the error before it
            // can complete the compaction.
            lock(&self.failed).get_or_insert(error);
        }
    }

    /// Works like [`advance_to`](Self::advance_to), but returns at once while another thread works
    /// on the compaction.
    ///
    /// # Errors
    /// Those of [`advance_to`](Self::advance_to).
    pub(crate) fn advance_unless_busy(&self, target: u64) -> Result<()> {
        if let Some(error) = lock(&self.failed).take() {
            return Err(error);
        }
        if self.done() >= target || self.is_complete() {
            return Ok(());
        }
        match self.job.try_lock() {
            Ok(mut job) => self.advance_job(&mut job, target),
            Err(TryLockError::Poisoned(job)) => self.advance_job(&mut job.into_inner(), target),
            Err(TryLockError::WouldBlock) => Ok(()),
        }
    }

    /// Does one page of work inside a lookup, if it needs no wait for a read or a write; returns
    /// whether it did. A lookup never does the first step, which opens the inputs, or the last
    /// step, which removes them: their duration is unbounded.
    ///
    /// # Errors
    /// Those of [`advance_to`](Self::advance_to). The update that needs the work repeats it, and
    /// meets the error if it persists.
    pub(crate) fn advance_unasked(&self) -> Result<bool> {
        // A lookup never waits for the step of another thread.
        let Ok(mut job) = self.job.try_lock() else { return Ok(false) };
        if self.is_complete() || lock(&self.failed).is_some() {
            return Ok(false);
        }

        // One page is the smallest step, so it delays the lookup least.
        let target = self.done() + 1;
        self.advance_job_by(&mut job, |(job, tally)| match job {
            Job::Entries { merge, builder } if !builder.may_wait() && !merge.may_wait() => {
                let stop = self.merge_entries(merge, builder, *tally, target)?;
                Ok(stop == Stop::Target)
            }
            Job::Finishing { finisher, passed, .. } if finisher.can_step() => {
                finisher.step(1)?;
                self.note(self.done().max(tally.done(*passed)).saturating_add(1));
                Ok(true)
            }
            _ => Ok(false),
        })
    }

    /// Merges all entries on a second thread while this thread writes them. Calls `watch` with the
    /// pages done; leaves filter and index to [`finish`](Self::finish). No other table may share
    /// the compaction.
    ///
    /// Cost: that of the merge, and half a megabyte of memory.
    ///
    /// # Errors
    /// Those of [`advance_to`](Self::advance_to). The compaction is then back at its beginning, as
    /// after a break.
    pub(crate) fn merge_on_two_threads<B>(
        &self,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        // Held to the end: nobody else may step the compaction while two threads work on it.
        let mut job = lock(&self.job);
        job.0 = self.start()?;
        let (job_now, tally) = &mut *job;
        let Job::Entries { merge, builder } = job_now else {
            return Ok(ControlFlow::Continue(()));
        };

        let (writer, reader) = merge_pipe();
        let (merged, written) = terrane_io::sync::thread::scope(move |scope| {
            // Each side of the pipe drops with its thread's work, however that ends, so that the
            // other side never waits for it.
            let compaction = scope.spawn(move || self.write_to_pipe(merge, &writer));
            let written = self.read_from_pipe((builder, tally), &reader, watch);
            drop(reader);
            let merged = compaction.join();
            (merged.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), written)
        });

        // A read error ends the pipe early, so it takes precedence over the writer's result.
        let done = merged.and(written).and_then(|watched| {
            if watched.is_continue() {
                self.end_entries(&mut job)?;
            }
            Ok(watched)
        });

        // After an error or a break, the merge has passed entries that the builder does not have.
        if !matches!(done, Ok(ControlFlow::Continue(()))) {
            job.0 = Job::Idle;
            self.begin_anew_unless_whole(&mut job);
        }

        self.built_bytes.set(job.0.memory_bytes());
        done
    }

    /// Sends all entries that are to be written, until the reader has gone.
    fn write_to_pipe(&self, merge: &mut MergeIterator, writer: &PipeWriter) -> Result<()> {
        while let Some(mut batch) = writer.next_empty() {
            while !batch.is_full() {
                let Some(entry) = merge.current() else {
                    writer.send(batch);
                    return Ok(());
                };
                if let Some(entry) = self.kept(entry) {
                    let has_blob = entry.kind == Kind::InsertBlob;
                    batch.push(entry, if has_blob { merge.blob() } else { None });
                }
                merge.advance()?;
            }

            batch.pages_passed = merge.pages_passed();
            writer.send(batch);
        }

        Ok(())
    }

    /// Writes the entries that arrive through the pipe.
    fn read_from_pipe<B>(
        &self,
        (builder, tally): (&mut Box<RunBuilder>, &mut WorkTally),
        reader: &PipeReader,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        let salt = self.plan.salt;
        while let Some(batch) = reader.receive() {
            for (entry, blob) in batch.entries() {
                if builder.entries() >= self.slice_entries {
                    builder.finish_last_page()?;
                    let View::Inputs { inputs, .. } = self.view() else { break };
                    let after = builder.last_key().to_vec();
                    let next = RunBuilder::new(&self.set, &self.plan_after(&inputs, Some(&after)))?;
                    let whole = std::mem::replace(builder, Box::new(next));
                    if let Some(mut finisher) = whole.finish_entries()? {
                        finisher.step(u32::MAX)?;
                        self.add_slice(finisher, tally);
                    }
                }
                builder.push(entry, blob, || key_hash(salt, entry.key))?;
            }
            // The plan counts blobs of runs only, so blobs of memtables must not raise the count
            // further.
            let blob_pages = tally.finished_blobs + u64::from(builder.blob_pages());
            let blob_pages = blob_pages.min(self.blob_pages);
            self.note(tally.done(batch.pages_passed + blob_pages));
            reader.recycle(batch);
            let watched = watch(self.done(), self.total());
            if watched.is_break() {
                return Ok(watched);
            }
        }

        Ok(ControlFlow::Continue(()))
    }

    fn advance_job(&self, job: &mut (Job, WorkTally), target: u64) -> Result<()> {
        self.advance_job_by(job, |job| self.work_to(job, target))
    }

    fn advance_job_by<T>(
        &self,
        job: &mut (Job, WorkTally),
        work: impl FnOnce(&mut (Job, WorkTally)) -> Result<T>,
    ) -> Result<T> {
        // A merge operator may have panicked in an earlier step, which leaves the job in an unknown
        // state.
        self.begin_anew_unless_whole(job);
        let result = work(job);
        if result.is_err() {
            self.begin_anew_unless_whole(job);
        }
        self.built_bytes.set(job.0.memory_bytes());
        debug_assert!(self.done() <= self.total());
        result
    }

    /// Pages of entries of the inputs that were let go of.
    fn pages_gone(&self) -> u64 {
        let View::Inputs { inputs, .. } = self.view() else { return self.run_pages };
        let pages = |run: &Arc<Run>| u64::from(run.meta().data_pages);
        self.run_pages - inputs.iter().filter_map(Input::run).map(pages).sum::<u64>()
    }

    fn begin_anew_unless_whole(&self, job: &mut (Job, WorkTally)) {
        if !job.0.can_go_on() {
            // All planned work is ahead again, but for that of the slices that are whole.
            let WorkTally { finished, finished_blobs, .. } = job.1;
            let pages_before = self.pages_gone();
            let tally =
                WorkTally { pages_before, finished, finished_blobs, ..WorkTally::default() };
            *job = (Job::Idle, tally);
            self.total.fetch_max(self.work, Ordering::AcqRel);
            let done = tally.done(pages_before + finished_blobs.min(self.blob_pages));
            self.done.store(done.min(self.total() - 1), Ordering::Release);
        }
    }

    /// Returns the plan of the next slice of the output: the keys of `inputs` that are not in the
    /// slices there are.
    fn next_plan(&self, slices: &[Arc<Run>], inputs: &[Input]) -> RunPlan {
        self.plan_after(inputs, slices.last().map(|run| run.max_key()))
    }

    /// Returns the plan of a slice of `inputs` behind a key.
    fn plan_after(&self, inputs: &[Input], after: Option<&[u8]>) -> RunPlan {
        let mut bounds: Option<(Vec<u8>, Vec<u8>)> = None;
        let mut widen = |min: &[u8], max: &[u8]| {
            let (lower, upper) = bounds.get_or_insert_with(|| (min.to_vec(), max.to_vec()));
            if min < lower.as_slice() {
                *lower = min.to_vec();
            }
            if max > upper.as_slice() {
                *upper = max.to_vec();
            }
        };

        for input in inputs {
            match input {
                Input::Run(run) => widen(run.min_key(), run.max_key()),
                Input::Buffer(buffer) => {
                    let ranges = buffer.parts().iter().filter_map(|part| part.key_range());
                    ranges.for_each(|(min, max)| widen(min, max));
                }
            }
        }

        // Inputs without entries have no bounds, and no key is ever compared with the default.
        let (mut lower, upper) = bounds.unwrap_or_default();

        // Between two looks at its size a slice takes a few entries more.
        let slice_entries =
            self.slice_entries.saturating_add(entries_per_look(inputs.len()) as u64);
        let entries_max = self.plan.entries_max.min(slice_entries);
        let mut plan = self.plan.clone();
        if self.slice_entries != ONE_RUN {
            // Where keys have more prefixes of their own, the old slices there tell.
            let near = self.planned_near(inputs, entries_max);
            (plan.entries_max, plan.members_max) = (near.entries, near.members);
        }
        plan = plan.part(entries_max);

        if let Some(after) = after {
            let left = |run: &Arc<Run>| u64::from(run.meta().data_pages - run.pages_before(after));
            let pages_left: u64 = inputs.iter().filter_map(Input::run).map(left).sum();
            // The index tells keys apart as if all that is left were to be in this slice.
            let left = |count: u64| {
                let left = u128::from(count) * u128::from(pages_left);
                left.div_ceil(u128::from(self.run_pages.max(1))) as u64
            };
            plan.entries_between = left(plan.entries_between).max(plan.entries_max);
            plan.pages_between = left(plan.pages_between);
            lower = lower.max(after.to_vec()).min(upper.clone());
        }

        debug_assert!(lower <= upper, "the smallest key is no larger than the largest");
        RunPlan { lower, upper, ..plan }
    }

    /// The oldest inputs behind the slices there are: about so many of their entries.
    fn planned_near(&self, inputs: &[Input], entries: u64) -> Planned {
        let mut near = Planned::default();
        let oldest = inputs.chunk_by(Input::are_slices).last().unwrap_or_default();
        for run in oldest.iter().filter_map(Input::run) {
            near.add_run(run, self.plan.prefix_bytes);
            if near.entries >= entries {
                break;
            }
        }
        near
    }

    /// Opens the merge of those entries of the inputs that are in a range.
    fn merge_of(&self, inputs: &[Input], range: &KeyRange) -> Result<Box<MergeIterator>> {
        let combine = Combine::Levels;
        let order = Order::Ascending;
        let operator = self.operator.clone();
        let groups = || inputs.chunk_by(Input::are_slices);
        // Only runs read ahead, and of slices one; they share the memory for it.
        let readers = groups().filter(|group| group[0].run().is_some()).count();
        let reading = Reading::merge(&self.set, readers);
        let pages = |group: &[Input]| -> u64 {
            group.iter().filter_map(Input::run).map(|run| u64::from(run.meta().data_pages)).sum()
        };
        let all_pages = pages(inputs);

        let mut sources = Vec::new();
        for group in groups() {
            if let Input::Buffer(buffer) = &group[0] {
                // The newest part stands last, and a merge takes its newest source first.
                let parts = buffer.parts().iter().rev();
                let readers = parts.map(|part| MemtablePartReader::new(part, range, order));
                sources.extend(readers.map(Source::Memtable));
            }
            let slices: Vec<_> = group.iter().filter_map(Input::run).cloned().collect();
            let reading = reading.with_share(pages(group), all_pages);
            let reader = SlicesReader::new(&slices, range, order, reading);
            sources.extend(reader.map(|reader| Source::Runs(Box::new(reader))));
        }

        debug_assert!(readers <= sources.len(), "runs are sources");
        let mut merge = Box::new(MergeIterator::new(sources, Rules { combine, operator, order }));
        merge.load()?;
        Ok(merge)
    }

    fn start(&self) -> Result<Job> {
        let View::Inputs { slices, inputs } = self.view() else { return Ok(Job::Done) };
        let builder = Box::new(RunBuilder::new(&self.set, &self.next_plan(&slices, &inputs))?);
        Ok(Job::Entries { merge: self.merge_of(&inputs, &KeyRange::ALL)?, builder })
    }

    /// Rereads part of an interrupted output, enough for `target`. After the last page, opens the
    /// inputs behind the output's last key. If the output is damaged, the compaction is back at its
    /// beginning.
    ///
    /// # Errors
    /// Errors of the disk, and damaged inputs.
    fn reread(&self, job: &mut (Job, WorkTally), target: u64) -> Result<()> {
        let View::Inputs { slices, inputs } = self.view() else { return Ok(()) };
        // A reread page costs half of a merged one.
        let pages = target.saturating_sub(self.done()).saturating_mul(REREAD_PAGES_PER_PAGE);
        // The job is idle while its output is out, so a panic in here leads to a new beginning.
        let mut resumed = match std::mem::replace(&mut job.0, Job::Idle) {
            Job::Interrupted(taken) => {
                Box::new(ResumedOutput::new(*taken, &self.next_plan(&slices, &inputs)))
            }
            Job::ResumedOutput(resumed) => resumed,
            other => {
                job.0 = other;
                return Ok(());
            }
        };

        debug_assert!(self.done() <= job.1.reread, "nothing but rereading has been done so far");
        debug_assert!(
            inputs.iter().all(|input| input.run().is_some()),
            "only merges of runs are resumed"
        );
        debug_assert_eq!(job.1.pages_before, 0, "an output is reread once");

        let number = resumed.number();
        let read = resumed.step(pages).map(|has_ended| {
            // Rounding must not count more than was planned for rereading.
            self.note((resumed.pages_read() / REREAD_PAGES_PER_PAGE).min(job.1.reread));
            if !has_ended {
                job.0 = Job::ResumedOutput(resumed);
                return None;
            }
            Some(resumed.finish())
        });

        match read {
            Ok(None) => Ok(()),
            Ok(Some(builder)) => {
                // All keys up to the last written one are in the output, so the inputs open behind
                // it.
                let last = builder.last_key();
                let runs = inputs.iter().filter_map(Input::run);
                job.1.pages_before = runs.map(|run| u64::from(run.pages_before(last))).sum();
                let range = KeyRange::ALL.from(Bound::Excluded(last.to_vec()));
                job.0 = Job::Entries { merge: self.merge_of(&inputs, &range)?, builder };
                Ok(())
            }
            // Damage of the old output is no loss while the inputs are there: start again.
            Err(error) => {
                self.set.distrust(number);
                self.begin_anew_unless_whole(job);
                if error.is_damage() { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Notes progress, up to one page below `total`: only completion reaches `total`.
    fn note(&self, done: u64) {
        debug_assert!(0 < self.total());
        let done = done.min(self.total() - 1);
        self.done.fetch_max(done, Ordering::AcqRel);
    }

    /// Lets readers look into a slice that is whole, and counts its pages as work.
    fn add_slice(&self, finisher: RunFinisher, tally: &mut WorkTally) {
        tally.finished += u64::from(finisher.pages());
        let run = finisher.into_run();
        tally.finished_blobs += run.meta().blob_pages();
        let slice = self.counted(run);

        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let View::Inputs { slices, inputs } = &*view else { return };
        debug_assert!(slices.last().is_none_or(|last| follows(last, &slice)), "keys follow");
        let inputs = beyond(&slice, inputs).into();
        let slices = slices.iter().cloned().chain([slice]).collect();
        let before = std::mem::replace(&mut *view, View::Inputs { slices, inputs });
        drop(view);
        // As in `complete`: no reader waits for the removal of files.
        drop(before);
    }

    /// A run of the output, counted as written, with its origin.
    fn counted(&self, run: Run) -> Arc<Run> {
        debug_assert!(run.meta().entries <= self.plan.entries_max, "entries only combine");
        debug_assert!(run.meta().entries > 0, "no run is without entries");
        run.count_written();
        let Some(origin) = &self.origin else { return Arc::new(run) };
        let slice = self.own_slices(&self.view().runs());
        Arc::new(run.with_origin(SliceOrigin { origin: Arc::clone(origin), slice }))
    }

    /// How many of some runs this compaction has made.
    fn own_slices(&self, runs: &[Arc<Run>]) -> usize {
        let is_own = |run: &&Arc<Run>| {
            let origins = run.origin().zip(self.origin.as_ref());
            origins.is_some_and(|(of_run, own)| Arc::ptr_eq(&of_run.origin, own))
        };
        runs.iter().filter(is_own).count()
    }

    fn complete(&self, output: Option<Run>) {
        assert!(self.done() < self.total(), "a compaction completes once");
        debug_event!(
            "merge.completed",
            self.set.session_dir(),
            run = output.as_ref().map(Run::number),
            entries = output.as_ref().map_or(0, |run| run.meta().entries),
        );

        let output = output.map(|run| self.counted(run));
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let View::Inputs { slices, .. } = &*view else { return };
        let slices: Arc<[_]> = slices.iter().cloned().chain(output).collect();
        debug_assert!(slices.is_sorted_by(|one, next| follows(one, next)), "keys follow");
        if let Some(origin) = &self.origin {
            origin.slice_count.get_or_init(|| self.own_slices(&slices));
        }
        let inputs = std::mem::replace(&mut *view, View::Output(slices));
        drop(view);
        // Readers must find the output before the compaction counts as complete.
        self.done.store(self.total(), Ordering::Release);

        // Dropped without the lock of the view: the last holder of an input removes its file, and
        // no reader should wait for that.
        let View::Inputs { inputs, .. } = inputs else { return };
        let buffers = inputs.iter().filter_map(|input| match input {
            Input::Buffer(buffer) => Some(buffer.clone()),
            Input::Run(_) => None,
        });

        let buffers: Vec<Memtable> = buffers.collect();
        drop(inputs);
        let bytes = buffers.iter().map(Memtable::memory_bytes).sum();

        self.set.reclaimer().reclaim(buffers, bytes);
    }

    fn work_to(&self, job: &mut (Job, WorkTally), target: u64) -> Result<()> {
        while self.done() < target {
            let tally = job.1;
            match &mut job.0 {
                Job::Idle => job.0 = self.start()?,
                Job::Interrupted(_) | Job::ResumedOutput(_) => self.reread(job, target)?,
                Job::Entries { merge, builder } => {
                    if self.merge_entries(merge, builder, tally, target)? != Stop::Target {
                        self.end_entries(job)?;
                    }
                }
                Job::BetweenSlices(_) => self.begin_slice(job)?,
                Job::Finishing { finisher, passed, .. } => {
                    debug_assert!(!self.is_complete(), "the output is not there yet");
                    // The total is an estimate, and a caller that asks for it needs the output.
                    let is_last = target >= self.total();
                    let wanted = if is_last { u64::MAX } else { target - self.done() };
                    let left = finisher.step(u32::try_from(wanted).unwrap_or(u32::MAX))?;
                    if left > 0 {
                        self.note(self.done().max(tally.done(*passed)).saturating_add(wanted));
                    } else {
                        self.end_finishing(job);
                    }
                }
                Job::Done => {
                    debug_assert!(self.is_complete(), "a job that is done has its output");
                    return Ok(());
                }
            }
        }

        Ok(())
    }

    /// Continues with filter and index once a slice has its entries or the inputs are used up.
    fn end_entries(&self, (job, tally): &mut (Job, WorkTally)) -> Result<()> {
        let Job::Entries { merge, builder } = job else { return Ok(()) };
        debug_assert!(merge.is_whole(), "a merge that failed begins anew");

        // The page is written while the job is whole, so the step can be repeated on a full disk.
        builder.finish_last_page()?;
        let has_ended = merge.current().is_none();
        let passed = if has_ended {
            tally.pages_before + merge.pages_passed() + self.blob_pages + self.buffer_pages
        } else {
            self.passed(merge, builder, *tally)
        };

        let Job::Entries { merge, builder } = std::mem::replace(job, Job::Idle) else {
            return Ok(());
        };

        let rest = (!has_ended).then_some(merge);
        if let Some(finisher) = builder.finish_entries()? {
            *job = Job::Finishing { finisher: Box::new(finisher), passed, rest };
        } else {
            debug_assert!(rest.is_none(), "a slice that is full has entries");
            *job = Job::Done;
            self.complete(None);
        }

        Ok(())
    }

    /// Lets readers look into a run that is whole; it may be the last one.
    fn end_finishing(&self, (job, tally): &mut (Job, WorkTally)) {
        let Job::Finishing { finisher, rest, passed } = std::mem::replace(job, Job::Done) else {
            return;
        };
        match rest {
            None => self.complete(Some(finisher.into_run())),
            Some(merge) => {
                self.add_slice(*finisher, tally);
                self.note(tally.done(passed));
                *job = Job::BetweenSlices(merge);
            }
        }
    }

    /// Begins the next slice.
    fn begin_slice(&self, (job, _): &mut (Job, WorkTally)) -> Result<()> {
        let View::Inputs { slices, inputs } = self.view() else { return Ok(()) };
        // Without a file the job stays as it is, and the step can be repeated.
        let builder = Box::new(RunBuilder::new(&self.set, &self.next_plan(&slices, &inputs))?);
        match std::mem::replace(job, Job::Idle) {
            Job::BetweenSlices(merge) => *job = Job::Entries { merge, builder },
            other => *job = other,
        }
        Ok(())
    }

    /// Returns the entry as it is written; `None` if it is dropped.
    #[inline]
    fn kept<'a>(&self, entry: EntryRef<'a>) -> Option<EntryRef<'a>> {
        match entry.kind {
            Kind::Delete if self.drop_deletes => None,
            // No older entry exists to combine with.
            Kind::Upsert if self.drop_deletes => Some(EntryRef { kind: Kind::Insert, ..entry }),
            _ => Some(entry),
        }
    }

    /// Pages passed in the inputs, with an estimate for memtables and blobs.
    fn passed(&self, merge: &MergeIterator, builder: &RunBuilder, tally: WorkTally) -> u64 {
        let blob_pages = u64::from(builder.blob_pages());
        // Memtables have no pages to pass, so written pages stand for them, up to the estimate.
        let written = (u64::from(builder.pages()) + blob_pages).min(self.buffer_pages);
        let pages = tally.pages_before + merge.pages_passed();
        pages + (tally.finished_blobs + blob_pages).min(self.blob_pages) + written
    }

    /// Merges entries until there is a reason to stop.
    #[inline(never)] // so that `cargo xtask counts` sees it apart
    fn merge_entries(
        &self,
        merge: &mut MergeIterator,
        builder: &mut RunBuilder,
        tally: WorkTally,
        target: u64,
    ) -> Result<Stop> {
        let salt = self.plan.salt;

        let per_look = entries_per_look(merge.source_count());
        loop {
            if builder.entries() >= self.slice_entries && merge.current().is_some() {
                return Ok(Stop::SliceFull);
            }

            let has_ended = merge.pass_to(per_look, |entry, blob, hash| {
                let Some(entry) = self.kept(entry) else { return Ok(()) };
                builder.push(entry, blob, || hash.unwrap_or_else(|| key_hash(salt, entry.key)))
            })?;
            if has_ended {
                return Ok(Stop::End);
            }

            let done = tally.done(self.passed(merge, builder, tally));
            self.note(done);
            // From the total on, only the end of the inputs ends the step.
            if done >= target && target < self.total() {
                return Ok(Stop::Target);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use terrane_io::SimDisk;

    use super::*;
    use crate::memtable::part::{NewEntry, Room};
    use crate::table::session::{Session, SessionOptions};

    fn run_of(set: &Arc<FileSet>, keys: &[u8]) -> Arc<Run> {
        let operator = MergeOperator::newest();
        let mut buffer = Memtable::default();
        buffer.begin(Room::default(), &operator).unwrap();
        for key in keys {
            let key = std::slice::from_ref(key);
            let hash = key_hash(1, key);
            let entry = NewEntry { key, hash, kind: Kind::Insert, value: b"", blob: None };
            buffer.put(entry, &operator, None).unwrap();
        }

        let spec = CompactionSpec {
            inputs: vec![Input::Buffer(buffer)],
            slices: Vec::new(),
            slice_entries: ONE_RUN,
            drop_deletes: false,
            operator,
            filter: None,
            prefix_bytes: 0,
            index: IndexKind::Ordinary,
            compression: Compression::None,
            access: Access::Buffered,
            salt: 1,
            purpose: Purpose::Level,
        };
        Compaction::new(set, spec).finish_one().unwrap().unwrap()
    }

    /// Behind a slice an input that has some of its keys is masked or gone, and so is each that is
    /// newer than such a one; a diff takes a run under the same mask for a sign that what is older
    /// is the same. Only the old slices at the end stay as they are.
    #[test]
    fn whatever_is_newer_than_what_a_slice_replaces_changes_with_it() {
        let options = SessionOptions::with_salt(1).create_dir();
        let session = Session::open(SimDisk::new(1), "/session".as_ref(), &options).unwrap();
        let set = session.inner().files();
        let runs = [&[1, 5][..], &[8, 9], &[0, 9], &[0, 3], &[6, 7], &[8, 9]];
        let inputs: Vec<Input> = runs.iter().map(|keys| Input::Run(run_of(set, keys))).collect();
        let numbers: Vec<u64> = inputs.iter().filter_map(Input::run).map(|r| r.number()).collect();

        let rest = beyond(&run_of(set, &[0, 5]), &inputs);
        let shape = rest.iter().filter_map(Input::run);
        let shape: Vec<_> = shape.map(|run| (run.number(), run.mask().is_empty())).collect();
        let expected = [(1, false), (2, false), (4, true), (5, true)];
        assert_eq!(shape, expected.map(|(at, is_whole)| (numbers[at], is_whole)));
    }
}
