//! One compaction: merges several runs, or a memtable, into one run, in steps.
//!
//! All tables that have a compaction in their levels share it, so its work is done once. Readers
//! look into its inputs until it is complete, and into its output afterwards. So progress never
//! changes a result.
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
//! Invariant: `done <= total`, and `done == total` exactly when the output is there.

use std::ops::{Bound, ControlFlow};

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
use crate::entry::mask::Mask;
use crate::entry::merge_operator::MergeOperator;
use crate::error::{Error, Result};
use crate::files::file_set::{FileSet, lock};
use crate::filter::filter::FilterAllocation;
use crate::memory::budget::Planned;
use crate::memtable::memtable::Memtable;
use crate::memtable::part::MemtablePartReader;
use crate::run::chunk_reader::Reading;
use crate::run::reader::RunReader;
use crate::run::run::{Origin, Purpose, Run};
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
}

/// Plan of a compaction: its inputs and the properties of its output.
#[derive(Debug, Clone)]
pub(crate) struct CompactionSpec {
    /// Newest first.
    pub(crate) inputs: Vec<Input>,
    /// Whether the inputs are the oldest entries of the table, so that deletions can be dropped.
    pub(crate) drop_deletes: bool,
    pub(crate) operator: MergeOperator,
    pub(crate) filter: Option<FilterAllocation>,
    pub(crate) index: IndexKind,
    pub(crate) compression: Compression,
    pub(crate) access: Access,
    pub(crate) salt: u64,
    pub(crate) purpose: Purpose,
}

/// View of a compaction, for readers: its inputs or its output.
#[derive(Debug, Clone)]
pub(crate) enum View {
    /// Not complete: the inputs, newest first.
    Inputs(Arc<[Input]>),
    /// Complete: the output, unless nothing was left.
    Output(Option<Arc<Run>>),
}

impl View {
    /// Returns the view without the keys that a mask covers.
    pub(crate) fn under_mask(self, mask: &Mask) -> Self {
        match self {
            view if mask.is_empty() => view,
            Self::Inputs(inputs) => {
                Self::Inputs(inputs.iter().map(|input| input.under_mask(mask)).collect())
            }
            Self::Output(run) => Self::Output(run.map(|run| run.under_mask(mask))),
        }
    }
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
}

impl WorkTally {
    fn done(self, passed: u64) -> u64 {
        self.reread + passed.saturating_sub(self.skipped)
    }
}

#[derive(Debug)]
enum Job {
    Idle,
    Interrupted(Box<ResumedPages>),
    ResumedOutput(Box<ResumedOutput>),
    Entries { merge: Box<MergeIterator>, builder: Box<RunBuilder> },
    Finishing { finisher: Box<RunFinisher>, passed: u64 },
    Done,
}

impl Job {
    /// Whether the step can be repeated after a failure: the job is in a known state.
    fn can_go_on(&self) -> bool {
        match self {
            Self::Idle => false,
            Self::Entries { merge, builder } => merge.is_whole() && builder.is_whole(),
            Self::Interrupted(_) | Self::ResumedOutput(_) | Self::Finishing { .. } | Self::Done => {
                true
            }
        }
    }

    /// Memory of the filter and the index that are being built.
    fn memory_bytes(&self) -> u64 {
        match self {
            Self::Idle | Self::Interrupted(_) | Self::Done => 0,
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
    /// Plan of the output, without the bounds of the keys, which the first step finds.
    plan: RunPlan,
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
    /// Pages of blobs of the runs among the inputs.
    blob_pages: u64,
    done: AtomicU64,
    /// Pages of work that tables have asked the background thread for.
    pub(crate) requested: AtomicU64,
    view: RwLock<View>,
    job: Mutex<(Job, WorkTally)>,
    /// An error of the background thread, for the next caller.
    failed: Mutex<Option<Error>>,
}

fn pages_of(weight_bytes: u64) -> u64 {
    weight_bytes.div_ceil(PAGE_SIZE as u64) + 1
}

/// Returns the memory that a compaction of `inputs` will hold.
pub(crate) fn planned(inputs: &[Input]) -> Planned {
    let mut planned = Planned::default();
    for input in inputs {
        match input {
            Input::Run(run) => planned.add_run(run),
            Input::Buffer(buffer) => {
                // Entries of one key may become one later, so both counts are upper bounds.
                planned.entries += buffer.len() as u64;
                planned.key_pages += pages_of(buffer.weight_bytes());
            }
        }
    }
    planned
}

impl Compaction {
    /// Prepares a compaction; does no work.
    pub(crate) fn new(set: &Arc<FileSet>, spec: CompactionSpec) -> Self {
        let planned = planned(&spec.inputs);
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
            pages_max: planned.key_pages,
            filter: spec.filter,
            index: spec.index,
            compression: spec.compression,
        };

        // The index takes a page for each 2,000 to 3,000 pages.
        let finishing = plan.filter_pages() + (run_pages + buffer_pages) / 2048 + 2;
        let work = run_pages + blob_pages + buffer_pages + finishing;
        assert!(work > 0, "the footer is a page of work");

        Self {
            set: Arc::clone(set),
            plan,
            drop_deletes: spec.drop_deletes,
            operator: spec.operator,
            planned_bytes: planned.bytes(spec.filter, spec.index),
            built_bytes: UnfinishedBytes::new(set),
            work,
            total: AtomicU64::new(work),
            buffer_pages,
            blob_pages,
            done: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            view: RwLock::new(View::Inputs(spec.inputs.into())),
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

        let tally = WorkTally { skipped, reread, pages_before: 0 };
        let job = (Job::Interrupted(Box::new(taken)), tally);
        Self { total: AtomicU64::new(total), job: Mutex::new(job), ..compaction }
    }

    /// Returns a complete compaction with `run` as its output.
    pub(crate) fn completed(set: &Arc<FileSet>, run: Arc<Run>) -> Self {
        let spec = CompactionSpec {
            inputs: Vec::new(),
            drop_deletes: false,
            operator: MergeOperator::default(),
            filter: None,
            index: IndexKind::Ordinary,
            compression: Compression::None,
            access: Access::Buffered,
            salt: run.meta().salt,
            purpose: run.meta().purpose,
        };

        let compaction = Self {
            view: RwLock::new(View::Output(Some(run))),
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

    /// Memory set aside for the output's filter and index while they are built, in bytes.
    pub(crate) fn planned_bytes(&self) -> u64 {
        self.planned_bytes
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
        let flushed = match &mut guard.0 {
            Job::Idle | Job::Done => None,
            Job::Interrupted(taken) => Some(taken.flushed()),
            Job::ResumedOutput(resumed) => Some(resumed.flushed()),
            Job::Entries { merge, builder } => builder.flush(self.passed(merge, builder, tally))?,
            Job::Finishing { finisher, passed } => Some(finisher.flush(*passed)?),
        };

        // Read under the lock of the job: nothing can complete the compaction between flush and
        // view.
        let view = self.view();
        debug_assert!(
            flushed.is_none() || matches!(view, View::Inputs(_)),
            "only an unfinished output is flushed"
        );
        Ok((view, flushed))
    }

    /// Does the rest of the work and returns the output; `None` if nothing is left.
    pub(crate) fn finish(&self) -> Result<Option<Arc<Run>>> {
        self.advance_to(u64::MAX)?;
        match self.view() {
            View::Output(run) => Ok(run),
            View::Inputs(_) => unreachable!("complete after advancing to the end"),
        }
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
                self.merge_entries(merge, builder, *tally, target).map(|has_ended| !has_ended)
            }
            Job::Finishing { finisher, passed } if finisher.can_step() => {
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
        let Job::Entries { merge, builder } = &mut job.0 else {
            return Ok(ControlFlow::Continue(()));
        };

        let (writer, reader) = merge_pipe();
        let (merged, written) = terrane_io::sync::thread::scope(move |scope| {
            // Each side of the pipe drops with its thread's work, however that ends, so that the
            // other side never waits for it.
            let compaction = scope.spawn(move || self.write_to_pipe(merge, &writer));
            let written = self.read_from_pipe(builder, &reader, watch);
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
        builder: &mut RunBuilder,
        reader: &PipeReader,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        let salt = self.plan.salt;
        while let Some(batch) = reader.receive() {
            for (entry, blob) in batch.entries() {
                builder.push(entry, blob, || key_hash(salt, entry.key))?;
            }
            // The plan counts blobs of runs only, so blobs of memtables must not raise the count
            // further.
            let blob_pages = u64::from(builder.blob_pages()).min(self.blob_pages);
            self.note(batch.pages_passed + blob_pages);
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

    fn begin_anew_unless_whole(&self, job: &mut (Job, WorkTally)) {
        if !job.0.can_go_on() {
            // Without the output of the interrupted attempt all planned work is ahead again.
            *job = (Job::Idle, WorkTally::default());
            self.done.store(0, Ordering::Release);
            self.total.fetch_max(self.work, Ordering::AcqRel);
        }
    }

    /// Returns the plan with the bounds of the keys.
    fn bounded_plan(&self, inputs: &[Input]) -> RunPlan {
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
        let (lower, upper) = bounds.unwrap_or_default();
        debug_assert!(lower <= upper, "the smallest key is no larger than the largest");
        RunPlan { lower, upper, ..self.plan.clone() }
    }

    /// Opens the merge of those entries of the inputs that are in a range.
    fn merge_of(&self, inputs: &[Input], range: &KeyRange) -> Result<Box<MergeIterator>> {
        let combine = Combine::Levels;
        let order = Order::Ascending;
        let operator = self.operator.clone();
        // Only runs read ahead; they share the memory for it.
        let runs = inputs.iter().filter(|input| input.run().is_some()).count();
        let reading = Reading::merge(&self.set, runs);

        let mut sources = Vec::new();
        for input in inputs {
            match input {
                Input::Run(run) => {
                    let reader = RunReader::new(run, range, order, reading.clone());
                    sources.push(Source::Run(Box::new(reader)));
                }
                Input::Buffer(buffer) => {
                    // The newest part stands last, and a merge takes its newest source first.
                    let parts = buffer.parts().iter().rev();
                    let readers = parts.map(|part| MemtablePartReader::new(part, range, order));
                    sources.extend(readers.map(Source::Memtable));
                }
            }
        }

        debug_assert!(runs <= sources.len(), "each run is a source");
        let mut merge = Box::new(MergeIterator::new(sources, Rules { combine, operator, order }));
        merge.load()?;
        Ok(merge)
    }

    fn start(&self) -> Result<Job> {
        let View::Inputs(inputs) = self.view() else { return Ok(Job::Done) };
        let builder = Box::new(RunBuilder::new(&self.set, &self.bounded_plan(&inputs))?);
        Ok(Job::Entries { merge: self.merge_of(&inputs, &KeyRange::ALL)?, builder })
    }

    /// Rereads part of an interrupted output, enough for `target`. After the last page, opens the
    /// inputs behind the output's last key. If the output is damaged, the compaction is back at its
    /// beginning.
    ///
    /// # Errors
    /// Errors of the disk, and damaged inputs.
    fn reread(&self, job: &mut (Job, WorkTally), target: u64) -> Result<()> {
        let View::Inputs(inputs) = self.view() else { return Ok(()) };
        // A reread page costs half of a merged one.
        let pages = target.saturating_sub(self.done()).saturating_mul(REREAD_PAGES_PER_PAGE);
        // The job is idle while its output is out, so a panic in here leads to a new beginning.
        let mut resumed = match std::mem::replace(&mut job.0, Job::Idle) {
            Job::Interrupted(taken) => {
                Box::new(ResumedOutput::new(*taken, &self.bounded_plan(&inputs)))
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

    fn complete(&self, output: Option<Run>) {
        assert!(self.done() < self.total(), "a compaction completes once");
        if let Some(run) = &output {
            debug_assert!(run.meta().entries <= self.plan.entries_max, "entries only combine");
            debug_assert!(run.meta().entries > 0, "no run is without entries");
            run.count_written();
        }

        debug_event!(
            "merge.completed",
            self.set.session_dir(),
            run = output.as_ref().map(Run::number),
            entries = output.as_ref().map_or(0, |run| run.meta().entries),
        );

        // The origin names the inputs, which the view shows until here.
        let output = View::Output(output.map(|run| Arc::new(self.with_origin(run))));
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let inputs = std::mem::replace(&mut *view, output);
        drop(view);
        // Readers must find the output before the compaction counts as complete.
        self.done.store(self.total(), Ordering::Release);

        // Dropped without the lock of the view: the last holder of an input removes its file, and
        // no reader should wait for that.
        debug_assert!(matches!(inputs, View::Inputs(_)), "a compaction completes once");
        let View::Inputs(inputs) = inputs else { return };
        let buffers = inputs.iter().filter_map(|input| match input {
            Input::Buffer(buffer) => Some(buffer.clone()),
            Input::Run(_) => None,
        });

        let buffers: Vec<Memtable> = buffers.collect();
        drop(inputs);
        let bytes = buffers.iter().map(Memtable::memory_bytes).sum();

        self.set.reclaimer().reclaim(buffers, bytes);
    }

    /// Returns the output with its origin, if all inputs are runs.
    fn with_origin(&self, output: Run) -> Run {
        let View::Inputs(inputs) = self.view() else { return output };
        let runs = inputs.iter().map(|input| {
            let run = input.run()?;
            // A weak reference, so that an origin keeps no file of an input.
            Some((run.number(), run.mask().clone(), Arc::downgrade(run)))
        });
        match runs.collect() {
            Some(inputs) => output.with_origin(Origin { inputs, is_oldest: self.drop_deletes }),
            None => output,
        }
    }

    fn work_to(&self, job: &mut (Job, WorkTally), target: u64) -> Result<()> {
        while self.done() < target {
            let tally = job.1;
            match &mut job.0 {
                Job::Idle => job.0 = self.start()?,
                Job::Interrupted(_) | Job::ResumedOutput(_) => self.reread(job, target)?,
                Job::Entries { merge, builder } => {
                    if self.merge_entries(merge, builder, tally, target)? {
                        self.end_entries(job)?;
                    }
                }
                Job::Finishing { finisher, passed } => {
                    debug_assert!(!self.is_complete(), "the output is not there yet");
                    // The total is an estimate, and a caller that asks for it needs the output.
                    let is_last = target >= self.total();
                    let wanted = if is_last { u64::MAX } else { target - self.done() };
                    let left = finisher.step(u32::try_from(wanted).unwrap_or(u32::MAX))?;
                    if left > 0 {
                        self.note(self.done().max(tally.done(*passed)).saturating_add(wanted));
                    } else if let Job::Finishing { finisher, .. } =
                        std::mem::replace(&mut job.0, Job::Done)
                    {
                        self.complete(Some(finisher.into_run()));
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

    /// Continues with filter and index once the inputs are used up.
    fn end_entries(&self, (job, tally): &mut (Job, WorkTally)) -> Result<()> {
        let Job::Entries { merge, builder } = job else { return Ok(()) };
        debug_assert!(merge.current().is_none(), "every entry of the inputs was merged");
        debug_assert!(merge.is_whole(), "a merge that failed begins anew");

        // The page is written while the job is whole, so the step can be repeated on a full disk.
        builder.finish_last_page()?;
        let pages = tally.pages_before + merge.pages_passed();
        let passed = pages + self.blob_pages + self.buffer_pages;

        let Job::Entries { builder, .. } = std::mem::replace(job, Job::Idle) else {
            return Ok(());
        };

        if let Some(finisher) = builder.finish_entries()? {
            *job = Job::Finishing { finisher: Box::new(finisher), passed };
        } else {
            *job = Job::Done;
            self.complete(None);
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
        pages + blob_pages.min(self.blob_pages) + written
    }

    /// Merges entries until `target` is reached (false) or the inputs are used up (true).
    #[inline(never)] // so that `cargo xtask counts` sees it apart
    fn merge_entries(
        &self,
        merge: &mut MergeIterator,
        builder: &mut RunBuilder,
        tally: WorkTally,
        target: u64,
    ) -> Result<bool> {
        let salt = self.plan.salt;

        // Computing the work done visits each source, so the cost per entry stays constant.
        let per_look = merge.source_count().max(ENTRIES_PER_LOOK as usize);
        loop {
            let has_ended = merge.pass_to(per_look, |entry, blob, hash| {
                let Some(entry) = self.kept(entry) else { return Ok(()) };
                builder.push(entry, blob, || hash.unwrap_or_else(|| key_hash(salt, entry.key)))
            })?;
            if has_ended {
                return Ok(true);
            }

            let done = tally.done(self.passed(merge, builder, tally));
            self.note(done);
            // From the total on, only the end of the inputs ends the step.
            if done >= target && target < self.total() {
                return Ok(false);
            }
        }
    }
}
