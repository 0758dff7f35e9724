//! The levels of a table, and the schedule of its compactions.
//!
//! Level 1 is the newest. A *tiering* level shows up to T - 1 *resident* runs, above a wide last
//! level up to 3 T, and one *incoming* run or merge; a *levelling* level has only the incoming one,
//! which is merged with what arrives.
//! Under lazy levelling every level tiers but the last one (unless it is level 1).
//!
//! Each flush offers a run to level 1. A level that is offered runs first takes its finished
//! incoming run r (it must be finished by now, see below), then:
//!
//! - tiering, and r would still fit the level above: r is merged again with what arrives (*hold
//!   back*);
//! - tiering, and full: r and all residents move down together; what arrives becomes incoming;
//! - tiering, with room: r becomes resident; what arrives becomes incoming;
//! - levelling, and r too large for the level: r moves down alone and becomes the new last level;
//! - levelling otherwise: what arrives is merged with r.
//!
//! Where the output has slices, r is the first of them and the others are residents. These go with
//! r, as do residents that a levelling level has from a time when it was a tiering one (the policy
//! may change, and the last level may become another one), or from a union, which are older: down,
//! or into the merge.
//!
//! **Credits.** Time is counted in *ticks*, [`TICKS_PER_FLUSH`] for each filling of the memtable. A
//! compaction on level l is due T^(l-1) flushes after it began, because the next run arrives there
//! no earlier. At any moment between, the share of its work that must be done equals the share of
//! its time that has passed, rounded up once from the running total. So each compaction is complete
//! exactly when it is needed, and no update does more than its part.
//!
//! **Last level.** From [`SLICED_LEVEL_MIN`] on the output of a merge on a levelling last level is
//! cut into [`slices`](crate::run::slices), [`SLICES`] of them or fewer. The old slices are let go
//! of one by one as the new ones are made, so old and new are never there together. Such a merge
//! gets half of the time until as much arrives again, T^(l-1) flushes at most, since what arrives
//! is on the disk for as long.
//!
//! Under lazy levelling such a level takes T times as much as its number says. The level above
//! hands its runs down as soon as they delete a third of its entries ([`ENTRIES_PER_DELETED`]),
//! are as large, or are [`RUNS_ABOVE_LAST_MAX`] times T: what is deleted stays on the disk until
//! then.
//!
//! Time stands still while the WAL is [replayed](crate::table::table::Table::replay): the memtable
//! grows beyond its capacity by the replayed updates, and no compaction is due any earlier. The
//! flush comes when later updates have filled the capacity that was left; it takes longer by the
//! share of replayed entries.
//!
//! A flush is such a compaction too, of the memtable alone, due one flush after it began. Until it
//! is complete, lookups find its entries in memory.
//!
//! Invariant: from newest to oldest, a reader sees: memtable, flush under way, level 1
//! incoming, level 1 residents (newest first), level 2 incoming, ... No entry hides one that is
//! newer.

use std::sync::Arc;

use crate::block::page::PAGE_SIZE;
use crate::compaction::compaction::{Compaction, CompactionSpec, Input, ONE_RUN, View, planned};
use crate::compaction::sources::Sources;
use crate::compaction::union::{
    Piece, Stage, UNION_DEPTH_MAX, UNION_RUNS_MAX, Union, UnionProgress, UnionTable,
};
use crate::config::{
    CompactionPolicy, LEVELS_MAX, RUNS_ABOVE_LAST_MAX, SLICED_LEVEL_MIN, TableConfig,
    WriteBuffer as BufferSize,
};
use crate::entry::mask::{Mask, Masking, Span};
use crate::error::{Error, Result};
use crate::files::file_set::FileSet;
use crate::memory::budget::{Planned, TableMemory};
use crate::memtable::memtable::Memtable;
use crate::memtable::part::{MemtablePart, Room};
use crate::run::run::{Purpose, Run};
use crate::run::slices::groups;
use crate::trace::debug_event;

/// Slices of a last level, about. More would free space sooner, and each lookup has to find its
/// slice.
const SLICES: u64 = 16;

/// A sliced level is merged with the runs above once these delete one of so many of its entries.
/// With a larger number updates write more, with a smaller one more stays on the disk.
const ENTRIES_PER_DELETED: u64 = 3;

/// Ticks from one flush to the next.
pub(crate) const TICKS_PER_FLUSH: u64 = 1 << 20;

/// A compaction in a table's levels, with the time that this table gives it.
#[derive(Debug, Clone)]
pub(crate) struct ScheduledCompaction {
    pub(crate) compaction: Arc<Compaction>,
    /// Time at which it began, in ticks.
    pub(crate) start: u64,
    /// Time at which it must be complete, in ticks. Invariant: above `start`.
    pub(crate) due: u64,
    /// Pages of work that were done when it began for this table. Invariant: at most the total.
    pub(crate) base: u64,
    /// Keys that this table has deleted since the compaction began; other tables that share it may
    /// not have.
    pub(crate) mask: Mask,
}

impl ScheduledCompaction {
    /// Schedules a new compaction, from `start` to `due`.
    fn new(compaction: Arc<Compaction>, start: u64, due: u64) -> Self {
        assert!(start < due, "progress is divided by the time that a compaction has");
        Self { compaction, start, due, base: 0, mask: Mask::default() }
    }

    /// Returns the view of this table's readers.
    pub(crate) fn view(&self) -> View {
        self.compaction.view().under_mask(&self.mask)
    }

    /// Does the rest of the work and returns the output as this table sees it: slices, one run, or
    /// none.
    pub(crate) fn finish(&self) -> Result<Vec<Arc<Run>>> {
        let slices = self.compaction.finish()?;
        let masked = slices.iter().map(|run| run.under_mask(&self.mask));
        // A slice whose keys are all masked shows nothing, so its file can go.
        let shows = |run: &Arc<Run>| !run.mask().covers_all(run.min_key(), run.max_key());
        Ok(masked.filter(shows).collect())
    }

    /// Pages of work that must be done by `now`.
    pub(crate) fn required(&self, now: u64) -> u64 {
        debug_assert!(self.start < self.due && self.base <= self.compaction.total());
        let passed = now.min(self.due).saturating_sub(self.start);
        let span = self.due - self.start;
        let work = self.compaction.total() - self.base;
        let share = (u128::from(work) * u128::from(passed)).div_ceil(u128::from(span)) as u64;
        debug_assert!(share <= work, "no more is required than there is");
        self.base + share
    }

    /// Returns the first tick at which `pages` pages of work must be done.
    pub(crate) fn when(&self, pages: u64) -> u64 {
        debug_assert!(self.start < self.due && self.base <= self.compaction.total());
        let work = (self.compaction.total() - self.base).max(1);
        let span = self.due - self.start;
        let wanted = pages.saturating_sub(self.base).min(work);
        let ticks = (u128::from(span) * u128::from(wanted) / u128::from(work)) as u64;
        debug_assert!(ticks <= span, "all work is required when it is due");
        self.start + ticks
    }
}

/// The newest input of a level: a finished run, or the compaction producing it.
#[derive(Debug, Clone)]
pub(crate) enum Incoming {
    Single(Arc<Run>),
    Compaction(ScheduledCompaction),
}

/// One level: the incoming run or compaction, and the residents.
#[derive(Debug, Clone, Default)]
pub(crate) struct Level {
    /// `None` only if a compaction left nothing.
    pub(crate) incoming: Option<Incoming>,
    /// Newest first.
    pub(crate) residents: Vec<Arc<Run>>,
}

impl Level {
    /// A level of slices, of one run, or of none.
    pub(crate) fn of(runs: Vec<Arc<Run>>) -> Self {
        let mut runs = runs.into_iter();
        let incoming = runs.next().map(Incoming::Single);
        Self { incoming, residents: runs.collect() }
    }

    /// Whether nothing is on the level, and nothing is being merged into it.
    fn is_empty(&self) -> bool {
        self.incoming.is_none() && self.residents.is_empty()
    }
}

/// Content of a table: memtable, flush under way, levels and union. Cheap to clone.
#[derive(Debug, Clone, Default)]
#[expect(
    clippy::struct_field_names,
    reason = "the levels below memtable and flush have no other name"
)]
pub(crate) struct Levels {
    pub(crate) buffer: Memtable,
    /// Part of the memtable's size that does not count as time: the updates of a replay.
    pub(crate) untimed: u64,
    /// The flush of the previous memtable.
    pub(crate) flushing: Option<ScheduledCompaction>,
    /// Level 1 first.
    pub(crate) levels: Vec<Level>,
    /// Union below all levels, until it is complete and becomes a run of a level.
    pub(crate) union: Option<Arc<Union>>,
    /// Keys that this table has deleted since the union was made.
    pub(crate) union_mask: Mask,
    /// Flushes begun so far.
    pub(crate) flushes: u64,
    /// Bytes of the runs that flushes, compactions and unions have put into the levels.
    pub(crate) written_bytes: u64,
}

/// Size of a full memtable, and how its size is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capacity {
    /// Keys, values and overhead.
    Weight(u64),
    /// The same or the charge for the memory that the memtable takes, if that is more.
    Charged(u64),
    Entries(u64),
}

impl Capacity {
    /// Capacity of a table's memtable: the stated one, or less if the session grants less.
    pub(crate) fn of(config: &TableConfig, granted: Option<u64>) -> Self {
        let is_charged = config.memory_budget.is_some() || granted.is_some();
        let capacity = match config.effective_write_buffer() {
            BufferSize::Bytes(size) if is_charged => {
                Self::Charged(granted.map_or(size, |granted| granted.min(size)))
            }
            BufferSize::Bytes(size) => Self::Weight(size),
            BufferSize::Entries(count) => Self::Entries(count),
        };
        debug_assert!(capacity.size() > 0, "time is divided by the capacity");
        capacity
    }

    fn size(self) -> u64 {
        let (Self::Weight(size) | Self::Charged(size) | Self::Entries(size)) = self;
        size
    }
}

/// Environment of a table's compactions: files, configuration and salt.
#[derive(Debug)]
pub(crate) struct CompactionEnv<'a> {
    pub(crate) set: &'a Arc<FileSet>,
    pub(crate) config: &'a TableConfig,
    /// Capacity of the memtable.
    pub(crate) capacity: Capacity,
    pub(crate) salt: u64,
    /// The table's number, for events.
    pub(crate) table: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LevelPolicy {
    Tiering,
    Levelling,
}

fn level_policy(policy: CompactionPolicy, level: usize, last: usize) -> LevelPolicy {
    debug_assert!((1..=last).contains(&level), "levels count from 1");
    match policy {
        // A lone first level tiers: levelling would rewrite the whole table with each flush.
        CompactionPolicy::LazyLevelling if level == last && level > 1 => LevelPolicy::Levelling,
        CompactionPolicy::LazyLevelling | CompactionPolicy::Tiering => LevelPolicy::Tiering,
        CompactionPolicy::Levelling => LevelPolicy::Levelling,
    }
}

impl CompactionEnv<'_> {
    /// Size of a run in the unit of the write buffer's capacity: bytes or entries.
    pub(crate) fn run_size(&self, run: &Run) -> u64 {
        match self.capacity {
            Capacity::Weight(_) | Capacity::Charged(_) => run.meta().weight_bytes(),
            Capacity::Entries(_) => run.meta().entries,
        }
    }

    /// Size of a batch in the unit of the write buffer's capacity.
    fn batch_size(&self, batch: Room) -> u64 {
        match self.capacity {
            Capacity::Weight(_) | Capacity::Charged(_) => batch.weight_bytes(),
            Capacity::Entries(_) => batch.entries as u64,
        }
    }

    fn buffer_capacity(&self) -> u64 {
        self.capacity.size()
    }

    /// Size of the largest run that stays on `level` (from 1; level 0 stands for the memtable).
    fn run_size_max(&self, level: usize, policy: LevelPolicy) -> u64 {
        let exponent = match policy {
            LevelPolicy::Tiering => level.saturating_sub(1),
            LevelPolicy::Levelling if self.config.has_wide_last(level) => level + 1,
            LevelPolicy::Levelling => level,
        };
        // Saturates: a level of 2^64 bytes holds any run.
        let ratio = u64::from(self.config.size_ratio);
        self.buffer_capacity().saturating_mul(ratio.saturating_pow(exponent as u32))
    }

    /// Returns the level on which a single run of this size belongs, as the last level of a table.
    pub(crate) fn last_level_of(&self, size: u64) -> usize {
        let fits = |level: &usize| {
            let policy = level_policy(self.config.compaction_policy, *level, *level);
            size <= self.run_size_max(*level, policy)
        };
        (1..LEVELS_MAX).find(fits).unwrap_or(LEVELS_MAX)
    }

    /// Plans a compaction of `inputs` on level `at.0` of `at.1` levels, within the memory of the
    /// table.
    pub(crate) fn spec(
        &self,
        inputs: Vec<Input>,
        at: (usize, usize),
        drop_deletes: bool,
        memory: &TableMemory,
    ) -> CompactionSpec {
        let (level, last) = at;
        let prefix_bytes = self.config.prefix_bytes.unwrap_or(0);
        let planned = planned(&inputs, prefix_bytes);
        let slice_entries = self.slice_entries(at, drop_deletes, planned);

        // Level 1 gets filters as if a level were below: it has several runs even if it is the
        // last.
        let last = last.max(2) as u32;
        debug_assert!((1..=last as usize).contains(&level), "levels count from 1");
        let filter = match self.config.memory_budget {
            None => self.config.filter_allocation(level as u32, last),
            Some(budget) => {
                let budget = (budget, self.config.memory_goal);
                memory.make_room(budget, planned, self.config.index, drop_deletes)
            }
        };

        CompactionSpec {
            inputs,
            slices: Vec::new(),
            slice_entries,
            drop_deletes,
            operator: self.config.merge_operator.clone(),
            filter: Some(filter),
            prefix_bytes,
            index: self.config.index,
            compression: self.config.compression_of(level, last as usize),
            access: self.config.disk_cache.access(level),
            salt: self.salt,
            purpose: Purpose::Level,
        }
    }

    /// Whether level `at.0` of `at.1` levels has slices.
    fn is_sliced(&self, at: (usize, usize)) -> bool {
        let (level, last) = at;
        let policy = level_policy(self.config.compaction_policy, level, last);
        level >= SLICED_LEVEL_MIN && level == last && policy == LevelPolicy::Levelling
    }

    /// Entries of a slice of a compaction on a level.
    fn slice_entries(&self, at: (usize, usize), is_oldest: bool, planned: Planned) -> u64 {
        if !is_oldest || !self.is_sliced(at) {
            return ONE_RUN;
        }
        // Of less than a memtable, filter, index and footer would take too much.
        let memtable = match self.capacity {
            Capacity::Entries(entries) => entries,
            Capacity::Weight(bytes) | Capacity::Charged(bytes) => {
                let entries = u128::from(planned.entries) * u128::from(bytes);
                let bytes = u128::from(planned.key_pages.max(1)) * PAGE_SIZE as u128;
                u64::try_from(entries / bytes).unwrap_or(ONE_RUN)
            }
        };
        planned.entries.div_ceil(SLICES).max(memtable).max(1)
    }

    /// Prepares a union of tables that has made some progress.
    pub(crate) fn union(&self, tables: Vec<UnionTable>, progress: UnionProgress) -> Union {
        // No entry is older, so the union is a last level whatever comes above.
        let mut memory = TableMemory::default();
        let inputs = tables.iter().flat_map(UnionTable::all_runs).chain(progress.slices.clone());
        let inputs: Vec<_> = inputs.map(Input::Run).collect();
        // The runs stay readable until the union is complete, so their filters use the same budget.
        if self.config.memory_budget.is_some() {
            inputs.iter().filter_map(Input::run).for_each(|run| memory.add_run(run));
        }
        let spec = self.spec(inputs, (LEVELS_MAX, LEVELS_MAX), true, &memory);
        // The inputs served the plan; the union must not hold runs that its tables have replaced.
        let spec = CompactionSpec { inputs: Vec::new(), slice_entries: ONE_RUN, ..spec };
        Union::new(self.set, spec, self.config.compaction_batch_pages, tables, progress)
    }

    /// Ticks from one merge on a level to the next one there.
    pub(crate) fn merge_ticks(&self, level: usize) -> u64 {
        let ratio = u64::from(self.config.size_ratio);
        // 2^40 flushes of 2^20 ticks are 2^60 ticks, so sums of times stay within 64 bits.
        let flushes = ratio.saturating_pow(level as u32 - 1).min(1 << 40);
        debug_assert!(flushes > 0, "a merge has time");
        flushes * TICKS_PER_FLUSH
    }

    /// Ticks that a merge on a sliced level has, into which runs of this size arrive: half of
    /// those that as much takes to arrive again, but those from one run to the next at the least,
    /// and those of a merge without slices at most.
    fn hasty_ticks(&self, level: usize, arriving: u64) -> u64 {
        let capacity = u128::from(self.buffer_capacity());
        let ticks = u128::from(arriving) * u128::from(TICKS_PER_FLUSH) / (2 * capacity);
        let most = self.merge_ticks(level);
        u64::try_from(ticks).map_or(most, |ticks| ticks.clamp(self.merge_ticks(level - 1), most))
    }

    /// Ticks that a merge of some runs, which was begun some time ago, has had.
    pub(crate) fn merge_span(&self, at: (usize, usize), runs: &[Arc<Run>]) -> u64 {
        if !self.is_sliced(at) {
            return self.merge_ticks(at.0);
        }
        // Most of the runs by far are what was there; the others have arrived.
        let sizes =
            groups(runs).map(|group| runs[group].iter().map(|run| self.run_size(run)).sum());
        let sizes: Vec<u64> = sizes.collect();
        let there = sizes.iter().max().copied().unwrap_or(0);
        self.hasty_ticks(at.0, sizes.iter().sum::<u64>() - there)
    }

    fn trace_run_added(&self, run: &Run, level: usize) {
        debug_event!(
            "table.run_added",
            self.set.session_dir(),
            table = self.table,
            level,
            run = run.number(),
            entries = run.meta().entries,
        );
    }

    /// Begins a compaction of runs on a level, those that arrive and those that are there, due when
    /// the next run can arrive. A single run without deletions to drop is taken as it is.
    fn merge(
        &self,
        (arriving, there): (Vec<Arc<Run>>, Vec<Arc<Run>>),
        now: u64,
        at: (usize, usize),
        drop: bool,
        memory: &TableMemory,
    ) -> Incoming {
        let level = at.0;
        let ticks = if self.is_sliced(at) {
            self.hasty_ticks(level, arriving.iter().map(|run| self.run_size(run)).sum())
        } else {
            self.merge_ticks(level)
        };
        let runs = [arriving, there].concat();
        assert!(!runs.is_empty(), "a compaction has inputs");

        // A single run is moved, not rewritten, unless rewriting drops deletions or masked keys.
        if let [run] = runs.as_slice()
            && (!drop || run.is_clean())
        {
            self.trace_run_added(run, level);
            return Incoming::Single(run.with_access(self.config.disk_cache.access(level)));
        }

        debug_event!(
            "merge.started",
            self.set.session_dir(),
            table = self.table,
            level,
            policy = ?self.config.compaction_policy,
            inputs = ?runs.iter().map(|run| run.meta().entries).collect::<Vec<_>>(),
        );

        let inputs = runs.into_iter().map(Input::Run).collect();
        let compaction = Arc::new(Compaction::new(self.set, self.spec(inputs, at, drop, memory)));
        let due = now + ticks;

        Incoming::Compaction(ScheduledCompaction::new(compaction, now, due))
    }
}

/// Completes a compaction that is due.
fn finish(pending: &ScheduledCompaction, context: &CompactionEnv<'_>) -> Result<Vec<Arc<Run>>> {
    // Credits should have paid for all of the work, so a rest is worth an event.
    let left = pending.compaction.left();
    if left > 0 {
        debug_event!("merge.forced", context.set.session_dir(), table = context.table, left);
    }
    pending.finish()
}

impl Levels {
    /// Returns the time, in ticks.
    pub(crate) fn now(&self, context: &CompactionEnv<'_>) -> u64 {
        let fill = self.timed_size(context).saturating_mul(TICKS_PER_FLUSH);
        let fill = fill / context.buffer_capacity();
        // A memtable beyond its capacity waits at the last tick of its flush.
        self.flushes * TICKS_PER_FLUSH + fill.min(TICKS_PER_FLUSH)
    }

    /// Whether the memtable has reached its capacity.
    pub(crate) fn is_full(&self, context: &CompactionEnv<'_>) -> bool {
        self.buffer_size(context) >= context.buffer_capacity()
    }

    /// Part of the memtable's size that counts as time.
    fn timed_size(&self, context: &CompactionEnv<'_>) -> u64 {
        self.buffer_size(context).saturating_sub(self.untimed)
    }

    /// Sets the time, between this flush and the next, to at most the time that the memtable's size
    /// implies.
    pub(crate) fn set_time(&mut self, context: &CompactionEnv<'_>, now: u64) {
        let passed = now.saturating_sub(self.flushes * TICKS_PER_FLUSH).min(TICKS_PER_FLUSH);
        let capacity = u128::from(context.buffer_capacity());
        // Rounded up, so that the time does not fall behind `now`.
        let timed = (u128::from(passed) * capacity).div_ceil(u128::from(TICKS_PER_FLUSH)) as u64;
        debug_assert!(u128::from(timed) <= capacity, "time ends with the capacity");
        self.untimed = self.buffer_size(context).saturating_sub(timed);
    }

    /// Returns a size of the memtable below which the time is before `moment`.
    pub(crate) fn size_at(&self, context: &CompactionEnv<'_>, moment: u64) -> u64 {
        let ticks = moment.saturating_sub(self.flushes * TICKS_PER_FLUSH).min(TICKS_PER_FLUSH);
        let timed = u128::from(ticks) * u128::from(context.buffer_capacity());
        self.untimed + (timed / u128::from(TICKS_PER_FLUSH)) as u64
    }

    /// Size of the memtable in the unit of its capacity.
    pub(crate) fn buffer_size(&self, context: &CompactionEnv<'_>) -> u64 {
        match context.capacity {
            Capacity::Charged(_) => self.buffer.charged_bytes(),
            Capacity::Weight(_) => self.buffer.weight_bytes(),
            Capacity::Entries(_) => self.buffer.len() as u64,
        }
    }

    /// Returns the part of a batch that the memtable will take before the next flush.
    pub(crate) fn room_for(&self, context: &CompactionEnv<'_>, batch: Room) -> Room {
        let size = context.batch_size(batch);
        let left = context.buffer_capacity().saturating_sub(self.timed_size(context));
        if size <= left { batch } else { batch.part(left as f64 / size as f64) }
    }

    /// Returns the time once the memtable has taken a batch, at the latest.
    pub(crate) fn time_after(&self, context: &CompactionEnv<'_>, batch: Room) -> u64 {
        let size = context.batch_size(batch);
        let fill = self.timed_size(context).saturating_add(size).saturating_mul(TICKS_PER_FLUSH);
        let fill = fill / context.buffer_capacity();
        self.flushes * TICKS_PER_FLUSH + fill.min(TICKS_PER_FLUSH)
    }

    /// Tick of the next flush.
    pub(crate) fn next_flush(&self) -> u64 {
        (self.flushes + 1) * TICKS_PER_FLUSH
    }

    /// Iterates over all compactions that are not known to be complete.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &ScheduledCompaction> {
        let merges = self.levels.iter().filter_map(|level| match &level.incoming {
            Some(Incoming::Compaction(pending)) => Some(pending),
            _ => None,
        });
        self.flushing.iter().chain(merges).filter(|pending| !pending.compaction.is_complete())
    }

    /// Begins the flush of the memtable, which must not be empty. Completes the flush before it
    /// first: its run enters the levels.
    ///
    /// # Errors
    /// Errors of the compactions that are due. Only their progress has changed then.
    pub(crate) fn flush(&self, context: &CompactionEnv<'_>) -> Result<Self> {
        assert!(!self.buffer.is_empty(), "an empty memtable is never flushed");
        // The previous flush comes first: its run is older and enters level 1 before this one.
        let mut next = self.with_flush_finished(context)?;
        debug_assert!(next.flushing.is_none(), "one flush is under way at a time");
        next.fold_union(context);
        next.flushes += 1;
        next.untimed = 0;
        let now = next.flushes * TICKS_PER_FLUSH;
        let memory = next.memory(context, &next);
        let dir = context.set.session_dir();
        let table = context.table;
        debug_event!("table.flush", dir, table, entries = next.buffer.len());
        let inputs = vec![Input::Buffer(std::mem::take(&mut next.buffer))];
        // A flush keeps deletions, because they hide older entries on the levels.
        let spec = context.spec(inputs, (1, next.levels.len()), false, &memory);
        let compaction = Arc::new(Compaction::new(context.set, spec));
        let flush = ScheduledCompaction::new(compaction, now, now + TICKS_PER_FLUSH);
        next.flushing = Some(flush);
        debug_assert_eq!(next.flushes, self.flushes + 1, "flushes are counted one by one");
        debug_assert!(next.buffer.is_empty(), "the flush takes all of the memtable");

        Ok(next)
    }

    /// Returns the levels with the flush under way completed and its run in place.
    pub(crate) fn with_flush_finished(&self, context: &CompactionEnv<'_>) -> Result<Self> {
        let mut next = self.clone();
        if let Some(pending) = next.flushing.take()
            && let Some(run) = finish(&pending, context)?.pop()
        {
            next.written_bytes += run.meta().file_bytes();
            next.offer(context, self, 1, vec![run])?;
        }
        debug_assert!(next.flushing.is_none(), "the flush is finished");
        debug_assert!(next.written_bytes >= self.written_bytes, "written bytes are only added");
        debug_assert!(next.levels.len() >= self.levels.len(), "a flush takes no level away");
        Ok(next)
    }

    /// Returns the levels without the keys of a span. Drops runs that have no other keys.
    ///
    /// Cost: no I/O; a reference for each run and each part of the memtable.
    pub(crate) fn without(&self, span: &Span) -> Self {
        let mut next = self.clone();

        // A span of all keys leaves nothing to mask, so the table starts empty, at the same time.
        if span.is_everything() {
            let Self { flushes, written_bytes, .. } = *self;
            return Self { flushes, written_bytes, ..Self::default() };
        }

        let mut masking = Masking::new(span);
        next.buffer.mask(&mut masking);
        if let Some(pending) = &mut next.flushing {
            pending.mask = masking.on(&pending.mask);
        }

        let mut masked = |run: &Arc<Run>| {
            let run = run.with_mask(&masking.on(run.mask()));
            // A run whose keys are all masked shows nothing, so its file can go.
            (!run.mask().covers_all(run.min_key(), run.max_key())).then_some(run)
        };

        for level in &mut next.levels {
            if let Some(Incoming::Single(run)) = &level.incoming {
                level.incoming = masked(run).map(Incoming::Single);
            }
            level.residents = level.residents.iter().filter_map(&mut masked).collect();
        }

        for level in &mut next.levels {
            if let Some(Incoming::Compaction(pending)) = &mut level.incoming {
                pending.mask = masking.on(&pending.mask);
            }
        }

        // Without a union the mask stays empty, or it would hide keys of the next union.
        if next.union.is_some() {
            next.union_mask = masking.on(&next.union_mask);
        }

        next
    }

    /// Whether every mask has room for one more span.
    pub(crate) fn has_room_for(&self, span: &Span) -> bool {
        let parts = self.buffer.parts().iter().filter_map(MemtablePart::mask);
        let merges = self.pending().map(|pending| &pending.mask);
        let incoming = self.levels.iter().filter_map(|level| match &level.incoming {
            Some(Incoming::Single(run)) => Some(run),
            None | Some(Incoming::Compaction(_)) => None,
        });
        let runs = self.levels.iter().flat_map(|level| &level.residents).chain(incoming);
        let masks = parts.chain(merges).chain(runs.map(|run| run.mask()));
        span.is_everything() || masks.chain([&self.union_mask]).all(|mask| mask.has_room_for(span))
    }

    /// Begins a full compaction: returns the levels with all runs as its inputs on the last level,
    /// and the compaction. The memtable and an unfinished flush stay as they are. `None` if there
    /// is nothing to merge and no deletion to drop.
    ///
    /// Compactions under way end here: their inputs become inputs of the full compaction.
    pub(crate) fn compacting(
        &self,
        context: &CompactionEnv<'_>,
    ) -> Option<(Self, Arc<Compaction>)> {
        let mut next = self.clone();
        next.fold_union(context);

        let mut readable = Sources::default();
        let flushing = next.flushing.as_ref().map(ScheduledCompaction::view);
        if let Some(view @ View::Output(_)) = flushing {
            next.flushing = None;
            next.written_bytes += file_bytes(&view.runs());
            readable.add(view);
        }

        let is_flushed = !readable.runs.is_empty();
        let is_on_one_level = next.levels.iter().rev().skip(1).all(Level::is_empty);
        let last = next.levels.len();
        next.levels.drain(..).for_each(|level| readable.add_level(&level));

        let runs = readable.runs;
        // The output is as large as its inputs at most, so it belongs on the level of their sum.
        let size = runs.iter().map(|run| context.run_size(run)).sum();
        let level = context.last_level_of(size);
        // One run, or slices, without deletions is what a full compaction would write. Runs of
        // several levels that follow each other by chance are not.
        let are_slices = || {
            is_on_one_level
                && !is_flushed
                && context.is_sliced((last, last))
                && runs.len() <= SLICES as usize
                && groups(&runs).count() == 1
        };
        if (runs.len() <= 1 || are_slices()) && runs.iter().all(|run| run.is_clean()) {
            return None;
        }

        // A union below holds older entries, which the deletions have to go on hiding.
        let oldest = next.union.is_none();
        let memory = next.memory(context, self);
        let inputs = runs.into_iter().map(Input::Run).collect();
        let spec = context.spec(inputs, (level, level), oldest, &memory);
        let compaction = Arc::new(Compaction::new(context.set, spec));
        let start = next.now(context);
        let due = start + context.merge_ticks(level);
        let pending = ScheduledCompaction::new(Arc::clone(&compaction), start, due);

        // All levels were drained, so the full compaction stands alone on its level.
        assert!((1..=LEVELS_MAX).contains(&level) && next.levels.is_empty());
        next.levels.resize_with(level, Level::default);
        next.levels[level - 1].incoming = Some(Incoming::Compaction(pending));

        Some((next, compaction))
    }

    /// Ends a full compaction: moves its run up to the highest level that it fits, across empty
    /// levels. If the compaction is not complete, its inputs stay on its level as residents.
    pub(crate) fn compacted(
        &self,
        context: &CompactionEnv<'_>,
        compaction: &Arc<Compaction>,
    ) -> Self {
        let mut next = self.clone();
        let is_it = |level: &Level| match &level.incoming {
            Some(Incoming::Compaction(pending)) => Arc::ptr_eq(&pending.compaction, compaction),
            _ => false,
        };

        // An update may have completed it meanwhile and made its output the input of another
        // compaction.
        let Some(mut at) = next.levels.iter().position(is_it) else { return next };
        let Some(Incoming::Compaction(pending)) = &next.levels[at].incoming else { return next };
        let view = pending.view();
        let runs = view.runs();
        if let View::Inputs { .. } = view {
            // In front of the residents: the inputs are newer.
            next.levels[at].residents.splice(..0, runs);
            next.levels[at].incoming = None;
            return next;
        }

        let level = context.last_level_of(runs.iter().map(|run| context.run_size(run)).sum());
        // Slices stay on a level that can have some.
        let can_be_on = |level: usize| runs.len() <= 1 || level >= SLICED_LEVEL_MIN;
        while at + 1 == next.levels.len()
            && at >= level
            && can_be_on(at)
            && next.levels[at - 1].is_empty()
        {
            at -= 1;
            next.levels.remove(at);
        }

        debug_assert!(at < next.levels.len(), "the level has moved with its run");
        next.written_bytes += file_bytes(&runs);
        let access = context.config.disk_cache.access(at + 1);
        let residents = std::mem::take(&mut next.levels[at].residents);
        next.levels[at] = Level::of(runs.iter().map(|run| run.with_access(access)).collect());
        next.levels[at].residents.extend(residents);
        next
    }

    /// Memory of everything but the filters of readable runs: memtables, indexes, and the outputs
    /// of compactions. A compaction that other tables share counts as planned, because they may
    /// advance it.
    ///
    /// Sharing is asked now. A fork is made by a call of this table, which asks anew. A count that
    /// is too high for a moment, as while a flush has two values of `Levels`, only makes a cache
    /// smaller. A table that is opened later from a snapshot with the compaction in it is not seen:
    /// its work, at most as planned, is counted with the next update of this table.
    pub(crate) fn unfiltered_bytes(&self) -> u64 {
        let sources = self.sources();
        let buffers = std::iter::once(&self.buffer).chain(&sources.buffers);
        let mut bytes = buffers.map(|buffer| buffer.memory_bytes() as u64).sum::<u64>();
        let mut memory = TableMemory::default();
        sources.for_each_run(&mut |run| memory.add_run(run));
        bytes += memory.index_bytes();

        bytes += self
            .pending()
            .map(|ScheduledCompaction { compaction, .. }| match Arc::strong_count(compaction) {
                1 => compaction.built_bytes(),
                _ => compaction.planned_bytes().max(compaction.built_bytes()),
            })
            .sum::<u64>();

        bytes + self.union.as_ref().map_or(0, |union| union.built_bytes())
    }

    /// Memory of the table while it is only read, without its filters.
    pub(crate) fn memory_bytes_min(&self) -> u64 {
        let mut memory = TableMemory::default();
        self.sources().for_each_run(&mut |run| memory.add_run(run));
        self.unfiltered_bytes() + memory.filter_bytes_min()
    }

    /// Returns the bytes of a budget that are left for a page cache, and the numbers of all runs.
    pub(crate) fn left_for_pages(
        &self,
        context: &CompactionEnv<'_>,
        budget: u64,
        is_updated: bool,
    ) -> (u64, Vec<u64>) {
        let memory = self.memory(context, self);
        let budget = (budget, context.config.memory_goal);
        (memory.left_for_pages(budget, self.unfiltered_bytes(), is_updated), memory.run_numbers())
    }

    /// Returns the bytes of a table's own budget beside the filters and indexes of its runs, and of
    /// what compactions are planned to build.
    pub(crate) fn beside_runs(&self, context: &CompactionEnv<'_>, budget: u64) -> u64 {
        self.memory(context, self).beside_runs(budget)
    }

    /// Memory of the memtable, and of the one that is being flushed.
    pub(crate) fn buffer_memory_bytes(&self) -> u64 {
        let flushing = self.flushing.as_ref().map(|flush| flush.compaction.view());
        let flushing = match &flushing {
            Some(View::Inputs { inputs, .. }) => inputs.iter().map(Input::memory_bytes).sum(),
            None | Some(View::Output(_)) => 0,
        };
        self.buffer.memory_bytes() as u64 + flushing
    }

    /// Numbers of all runs.
    pub(crate) fn run_numbers(&self) -> Vec<u64> {
        let mut memory = TableMemory::default();
        self.sources().for_each_run(&mut |run| memory.add_run(run));
        memory.run_numbers()
    }

    /// Folds filters to make room for a full memtable and for the outputs of compactions under way.
    pub(crate) fn make_room_to_write(&self, context: &CompactionEnv<'_>, budget: u64) {
        self.memory(context, self).make_room_to_write(budget, context.config.memory_goal);
    }

    /// Memory of the table when a compaction begins: the runs that were readable in `before`, and
    /// the outputs of all compactions under way.
    fn memory(&self, context: &CompactionEnv<'_>, before: &Self) -> TableMemory {
        let mut memory = TableMemory::default();
        if context.config.memory_budget.is_some() {
            before.sources().for_each_run(&mut |run| memory.add_run(run));
            self.pending()
                .for_each(|pending| memory.add_output(pending.compaction.planned_bytes()));
            memory.add_output(self.union.as_ref().map_or(0, |union| union.planned_bytes()));
        }
        memory
    }

    /// Returns the incoming run of a level, or its slices; completes its compaction first.
    fn finished_incoming(
        &mut self,
        context: &CompactionEnv<'_>,
        level: usize,
    ) -> Result<Vec<Arc<Run>>> {
        let runs = match &self.levels[level - 1].incoming {
            None => Vec::new(),
            Some(Incoming::Single(run)) => return Ok(vec![Arc::clone(run)]),
            Some(Incoming::Compaction(pending)) => finish(pending, context)?,
        };
        // A single run is moved, not written, so only a compaction adds to the bytes.
        self.written_bytes += file_bytes(&runs);
        Ok(runs)
    }

    /// Offers runs, newest first, to a level; `before` is the levels before anything moved. The
    /// recursion is as deep as there are levels.
    fn offer(
        &mut self,
        context: &CompactionEnv<'_>,
        before: &Self,
        level: usize,
        arriving: Vec<Arc<Run>>,
    ) -> Result<()> {
        debug_assert!(!arriving.is_empty(), "only runs are offered to a level");
        debug_assert!((1..=self.levels.len() + 1).contains(&level), "levels follow each other");
        if level > self.levels.len() {
            self.add_last_level(context, before, arriving);
            return Ok(());
        }

        let last = self.levels.len();
        let policy = level_policy(context.config.compaction_policy, level, last);

        let finished = self.finished_incoming(context, level)?;
        let mut there = Vec::new();
        match policy {
            LevelPolicy::Tiering if finished.is_empty() => {}
            LevelPolicy::Tiering => {
                let above = context.run_size_max(level - 1, LevelPolicy::Tiering);
                let size: u64 = finished.iter().map(|run| context.run_size(run)).sum();
                let is_full = self.is_full_with(context, level, &finished, before.next_flush());
                let residents = &mut self.levels[level - 1].residents;
                // Hold back: a run that fits the level above is too small to be a resident here.
                if level > 1 && size <= above {
                    there = finished;
                } else if is_full {
                    // The incoming run is newer than the residents.
                    let mut down = finished;
                    down.append(residents);
                    self.offer(context, before, level + 1, down)?;
                } else {
                    for run in &finished {
                        context.trace_run_added(run, level);
                    }
                    residents.splice(..0, finished);
                }
            }
            LevelPolicy::Levelling => {
                // Residents are further slices, or from a time of tiering or from a union: older.
                let residents = std::mem::take(&mut self.levels[level - 1].residents);
                there = [finished, residents].concat();
                let size: u64 = there.iter().map(|run| context.run_size(run)).sum();
                if size > context.run_size_max(level, LevelPolicy::Levelling) {
                    self.offer(context, before, level + 1, std::mem::take(&mut there))?;
                }
            }
        }

        let last = self.levels.len();

        // Deletions can be dropped only if no entry of the table is older than the inputs.
        let is_last = level == last && self.levels[level - 1].residents.is_empty();
        let oldest = is_last && self.union.is_none();
        let memory = self.memory(context, before);
        // The flush that causes the move is not counted in `before` yet.
        let now = before.next_flush();
        let incoming = context.merge((arriving, there), now, (level, last), oldest, &memory);
        self.levels[level - 1].incoming = Some(incoming);

        Ok(())
    }

    /// Whether a tiering level hands its runs down, with those that are finished.
    fn is_full_with(
        &self,
        context: &CompactionEnv<'_>,
        level: usize,
        finished: &[Arc<Run>],
        now: u64,
    ) -> bool {
        let residents = &self.levels[level - 1].residents;
        let count = residents.len() + 1;
        let ratio = context.config.size_ratio as usize;
        if level + 1 != self.levels.len() || !context.config.has_wide_last(level + 1) {
            return count >= ratio;
        }

        // What arrives before a merge is due would have it completed at once.
        if let Some(Incoming::Compaction(pending)) = &self.levels[level].incoming
            && pending.due > now
            && !pending.compaction.is_complete()
        {
            return false;
        }

        let mut last = Sources::default();
        last.add_level(&self.levels[level]);
        let above = || residents.iter().chain(finished);

        // What was deleted may be as many entries of the last level.
        let deleted: u64 = above().map(|run| run.meta().deletes).sum();
        let entries: u64 = last.runs.iter().map(|run| run.meta().entries).sum();
        let size_above: u64 = above().map(|run| context.run_size(run)).sum();
        let size: u64 = last.runs.iter().map(|run| context.run_size(run)).sum();
        deleted.saturating_mul(ENTRIES_PER_DELETED) >= entries
            || size_above >= size
            || count >= RUNS_ABOVE_LAST_MAX * ratio
    }

    /// Adds a level below all others, with the arriving runs as its incoming one.
    fn add_last_level(
        &mut self,
        context: &CompactionEnv<'_>,
        before: &Self,
        arriving: Vec<Arc<Run>>,
    ) {
        self.levels.push(Level::default());
        let level = self.levels.len();
        let dir = context.set.session_dir();
        debug_event!("table.level_added", dir, table = context.table, level);

        let oldest = self.union.is_none();
        // Slices are moved, not rewritten, as a single run is.
        if groups(&arriving).count() == 1 && (!oldest || arriving.iter().all(|run| run.is_clean()))
        {
            let access = context.config.disk_cache.access(level);
            for run in &arriving {
                context.trace_run_added(run, level);
            }
            let runs = arriving.iter().map(|run| run.with_access(access)).collect();
            self.levels[level - 1] = Level::of(runs);
            return;
        }

        let memory = self.memory(context, before);
        let now = before.next_flush();
        let incoming = context.merge((arriving, Vec::new()), now, (level, level), oldest, &memory);
        self.levels[level - 1].incoming = Some(incoming);
    }

    /// Returns the union of some tables, left to right, with the configuration of the context.
    ///
    /// Cost: writes the memtables as runs; finishes the flushes under way.
    ///
    /// # Errors
    /// Those of the disk; [`Error::UnionTooLarge`] and [`Error::UnionTooDeep`].
    pub(crate) fn unite(context: &CompactionEnv<'_>, trees: &[&Self]) -> Result<Self> {
        let mut tables = Vec::new();
        for tree in trees {
            let table = tree.as_united(context)?;
            if !table.pieces.is_empty() || table.older.is_some() {
                tables.push(table);
            }
        }

        if tables.is_empty() {
            return Ok(Self::default());
        }

        let runs = tables.iter().map(UnionTable::run_count).sum::<usize>();
        if runs > UNION_RUNS_MAX {
            return Err(Error::UnionTooLarge { runs, limit: UNION_RUNS_MAX });
        }

        let union = context.union(tables, UnionProgress::default());
        if union.depth() > UNION_DEPTH_MAX {
            return Err(Error::UnionTooDeep { limit: UNION_DEPTH_MAX });
        }

        Ok(Self { union: Some(Arc::new(union)), ..Self::default() })
    }

    /// Returns the table as a part of a union.
    fn as_united(&self, context: &CompactionEnv<'_>) -> Result<UnionTable> {
        let mut table = UnionTable::default();
        // Pieces stand newest first: the memtable, the flush under way, then level by level.
        if !self.buffer.is_empty() {
            let inputs = vec![Input::Buffer(self.buffer.clone())];
            let memory = self.memory(context, self);
            let spec = context.spec(inputs, (1, self.levels.len()), false, &memory);
            let run = Compaction::new(context.set, spec).finish_one()?;
            table.pieces.extend(run.map(Piece::Run));
        }

        if let Some(pending) = &self.flushing {
            table.pieces.extend(pending.finish()?.into_iter().map(Piece::Run));
        }

        for level in &self.levels {
            table.pieces.extend(match &level.incoming {
                None => None,
                Some(Incoming::Single(run)) => Some(Piece::Run(Arc::clone(run))),
                Some(Incoming::Compaction(pending)) => {
                    Some(Piece::Compaction(Arc::clone(&pending.compaction), pending.mask.clone()))
                }
            });
            table.pieces.extend(level.residents.iter().cloned().map(Piece::Run));
        }

        if let Some(union) = &self.union {
            // A complete union is a run like any other; an incomplete one nests.
            match union.stage() {
                Stage::Complete(run) => {
                    let run = run.map(|run| run.under_mask(&self.union_mask));
                    table.pieces.extend(run.map(Piece::Run));
                }
                Stage::Uniting { .. } | Stage::Joining(_) => {
                    table.older = Some((Arc::clone(union), self.union_mask.clone()));
                }
            }
        }

        Ok(table)
    }

    /// Turns a complete union into a run of the last level, or of a new level that is large enough
    /// for it.
    pub(crate) fn fold_union(&mut self, context: &CompactionEnv<'_>) {
        let Some(Stage::Complete(run)) = self.union.as_ref().map(|union| union.stage()) else {
            return;
        };
        self.union = None;
        let mask = std::mem::take(&mut self.union_mask);
        let Some(run) = run.map(|run| run.under_mask(&mask)) else { return };

        let policy = match context.config.compaction_policy {
            CompactionPolicy::Tiering => LevelPolicy::Tiering,
            CompactionPolicy::LazyLevelling | CompactionPolicy::Levelling => LevelPolicy::Levelling,
        };

        let size = context.run_size(&run);
        let fits = |level: &usize| size <= context.run_size_max(*level, policy);
        let level = (1..LEVELS_MAX).find(fits).unwrap_or(LEVELS_MAX);
        self.written_bytes += run.meta().file_bytes();
        let dir = context.set.session_dir();
        let table = context.table;
        debug_event!("table.union_folded", dir, table, level = level.max(self.levels.len()));
        let run = run.with_access(context.config.disk_cache.access(level.max(self.levels.len())));

        if level > self.levels.len() {
            self.levels.resize_with(level, Level::default);
            self.levels[level - 1].incoming = Some(Incoming::Single(run));
        } else if let Some(last) = self.levels.last_mut() {
            // The union is older than all levels, so its run is the oldest resident.
            last.residents.push(run);
        }
    }

    /// Returns all runs, newest first, the memtables of a flush under way, and the union.
    pub(crate) fn sources(&self) -> Sources {
        let mut sources = Sources::default();
        if let Some(pending) = &self.flushing {
            sources.add(pending.view());
        }
        for level in &self.levels {
            sources.add_level(level);
            sources.level_ends.push(sources.runs.len());
        }
        debug_assert_eq!(sources.level_ends.len(), self.levels.len(), "each level has its end");
        debug_assert!(sources.level_ends.is_sorted(), "levels follow each other");
        let of_union = |union: &Arc<Union>| union.sources().under_mask(&self.union_mask);
        sources.union = self.union.as_ref().map(|union| Box::new(of_union(union)));
        sources
    }
}

/// Bytes of the files of some runs.
fn file_bytes(runs: &[Arc<Run>]) -> u64 {
    runs.iter().map(|run| run.meta().file_bytes()).sum()
}

impl Sources {
    /// Adds the runs that a level shows, which must be older than the sources so far.
    pub(crate) fn add_level(&mut self, level: &Level) {
        match &level.incoming {
            None => {}
            Some(Incoming::Single(run)) => self.runs.push(Arc::clone(run)),
            Some(Incoming::Compaction(pending)) => self.add(pending.view()),
        }
        self.runs.extend(level.residents.iter().cloned());
    }
}
