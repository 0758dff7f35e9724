//! Loading a table from entries in any order, faster than updates can: an external merge sort.
//!
//! Entries are collected in memory; what has come together is sorted and written as a run without a
//! filter, on the session's background thread if the table has its merges there. At the end all
//! these runs are merged into one, which is the table's last level, by one thread that merges and
//! one that writes, if the table has its merges on the background thread. So each entry is written
//! twice, whatever the size of the table; with more than [`FAN_IN`] runs, groups of as many are
//! merged first, and it is written once more.
//!
//! Invariant: runs are kept in the order of their entries' arrival, so that the last update of a
//! key counts, and upserts combine as they would in a table. A batch is added as a whole or not at
//! all: what was there is written before any of a batch is added that does not fit beside it, and a
//! batch that is larger than what is sorted at once begins with an empty buffer, so that its own
//! runs can be let go.

use std::ops::ControlFlow;
use std::sync::Arc;

use terrane_io::QueueKind;
use terrane_io::sync::atomic::Ordering;

use crate::block::codec::Compression;
use crate::block::index::IndexKind;
use crate::compaction::compaction::{Compaction, CompactionSpec, Input, ONE_RUN};
use crate::compaction::levels::{Capacity, CompactionEnv, Level, Levels};
use crate::config::{CompactionThread, LEVELS_MAX, TableConfig};
use crate::entry::entry::{ENTRY_OVERHEAD_BYTES, Update};
use crate::entry::mask::{Masking, Span};
use crate::error::{Error, Result};
use crate::memory::budget::{TableMemory, budget_min, check_budget};
use crate::memory::grants::Grant;
use crate::memtable::memtable::Memtable;
use crate::memtable::part::Room;
use crate::run::run::{Purpose, Run};
use crate::session::inner::Registered;
use crate::table::table::{Table, check_batch};

/// Weight of the entries that are sorted in memory, without a memory budget.
const SORTED_BYTES: u64 = 64 << 20;

/// The share of a memory budget that they may weigh: two sets of them exist at once, and a set
/// takes up to about twice its weight.
const BUDGET_SHARE: u64 = 8;

/// Weights of a full memtable for the weight of what is sorted: two sets of entries take up to four
/// times the weight of one, and a grant is three times that of a memtable.
const GRANT_SHARE: u64 = 2;

/// Runs that are merged at once.
const FAN_IN: usize = 512;

/// Pages of a merge between two looks at whether to go on.
const STEP_PAGES: u64 = 4_096;

fn is_range(update: &Update<'_>) -> bool {
    matches!(update, Update::DeleteRange(_))
}

/// Loads entries in any order into a new table: see
/// [`Session::bulk_load`](crate::Session::bulk_load).
///
/// Dropping the loader before [`finish`](Self::finish) discards the loaded entries.
#[derive(Debug)]
pub struct BulkLoader {
    // Fields drop in order: the files of runs go while the session still holds the lock.
    config: TableConfig,
    buffer: Memtable,
    /// The buffer before this one, on its way to becoming a run.
    flushing: Option<Arc<Compaction>>,
    /// Runs that have been written and merged so often, oldest first.
    tiers: Vec<Vec<Arc<Run>>>,
    written_bytes: u64,
    /// Weight of the entries that are sorted in memory.
    sorted_bytes: u64,
    /// Memory for them, in a session with a budget.
    grant: Option<Grant>,
    session: Registered,
}

impl BulkLoader {
    pub(crate) fn new(session: Registered, config: TableConfig) -> Self {
        let grant = session.memory().map(Grant::new);
        if let (Some(grant), Some(budget)) = (&grant, config.memory_budget) {
            grant.note_own(budget, budget);
        }

        let mut loader = Self {
            session,
            config,
            buffer: Memtable::default(),
            flushing: None,
            tiers: Vec::new(),
            written_bytes: 0,
            sorted_bytes: 0,
            grant,
        };
        loader.size_buffer();
        loader
    }

    /// Finds out how much may be sorted in memory; only while nothing is.
    fn size_buffer(&mut self) {
        debug_assert!(self.buffer.is_empty(), "what is in memory was allowed before");
        self.sorted_bytes = match (self.config.memory_budget, &self.grant) {
            (Some(budget), _) => budget / BUDGET_SHARE,
            (None, Some(grant)) => grant.renew(SORTED_BYTES * GRANT_SHARE) / GRANT_SHARE,
            (None, None) => SORTED_BYTES,
        };
    }

    /// Adds updates, whose keys may come in any order and more than once: what comes later counts
    /// as if it had been given to [`Table::write_batch`] later.
    ///
    /// Cost: no read; each entry is written once by this, in whole pages. Memory: an eighth of the
    /// table's memory budget or 64 MiB of keys, values and 40 bytes for each, twice, and what they
    /// take beside, whatever the size of a batch; less if the session has a budget and grants less.
    ///
    /// # Errors
    /// The errors of [`Table::write_batch`]: after any error nothing of the batch has been added,
    /// so it can be given again.
    pub fn write_batch<K: AsRef<[u8]>>(&mut self, batch: &[(K, Update<'_>)]) -> Result<()> {
        self.session.check_writable()?;
        self.session.check_room_for(batch)?;
        let (room, blob_bytes) = check_batch(batch)?;

        if batch.is_empty() {
            return Ok(());
        }

        // A range deletion applies to everything loaded before it, so such a batch is added in
        // steps.
        if batch.iter().any(|(_, update)| is_range(update)) {
            return self.add_with_ranges(batch);
        }
        let weight = room.weight_bytes() + blob_bytes as u64;
        self.merge_groups()?;

        // If the batch does not fit beside the buffer, the buffer is written first, so that a
        // failure can be undone in memory.
        if self.buffer.weight_bytes() + weight > self.sorted_bytes {
            self.flush()?;
        }
        if weight <= self.sorted_bytes { self.add(batch, room) } else { self.add_in_parts(batch) }
    }

    /// Adds a batch in which ranges are deleted, or nothing of it.
    fn add_with_ranges<K: AsRef<[u8]>>(&mut self, batch: &[(K, Update<'_>)]) -> Result<()> {
        // The run under way must be among the tiers before they are copied for an undo.
        self.settle()?;
        debug_assert!(self.flushing.is_none(), "an undo brings no run back");
        let before = (self.buffer.clone(), self.tiers.clone(), self.written_bytes);

        let mut parts = batch.chunk_by(|one, other| is_range(&one.1) == is_range(&other.1));
        let added = parts.try_for_each(|part| {
            if !is_range(&part[0].1) {
                return self.write_batch(part);
            }
            // Masks cover whole runs, so the run under way must be finished.
            self.settle()?;
            for (from, update) in part {
                let Update::DeleteRange(end) = *update else { continue };
                let span = Span { from: from.as_ref().to_vec(), end: end.map(<[u8]>::to_vec) };
                let mut masking = Masking::new(&span);
                self.buffer.mask(&mut masking);
                for run in self.tiers.iter_mut().flatten() {
                    *run = run.with_mask(&masking.on(run.mask()));
                }
            }
            Ok(())
        });

        if added.is_err() {
            (self.buffer, self.tiers, self.written_bytes) = before;
            self.flushing = None;
        }

        added
    }

    /// Adds a batch to what is in memory, or nothing of it.
    fn add<K: AsRef<[u8]>>(&mut self, batch: &[(K, Update<'_>)], room: Room) -> Result<()> {
        let salt = self.session.salt();
        let resolve = &self.config.merge_operator;
        let mut undo = self.buffer.begin(room, resolve)?;
        for (key, update) in batch {
            let update = (key.as_ref(), *update);
            if let Err(error) = self.buffer.put_update(update, salt, resolve, Some(&mut undo)) {
                self.buffer.roll_back(&undo);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Adds a batch that is larger than what is sorted at once, or nothing of it. Nothing else is
    /// in memory but what is on its way to becoming a run.
    fn add_in_parts<K: AsRef<[u8]>>(&mut self, batch: &[(K, Update<'_>)]) -> Result<()> {
        self.settle()?;
        // Until the batch is in, runs are only added to the newest tier, so a failure cuts that
        // tier back.
        debug_assert!(self.flushing.is_none(), "the run under way is among the tiers");
        let runs = self.tiers.first().map_or(0, Vec::len);
        let written_bytes = self.written_bytes;

        let added = self.parts(batch).into_iter().try_for_each(|part| {
            self.flush()?;
            self.add(part, Room::default())
        });

        if added.is_err() {
            self.buffer = Memtable::default();
            self.flushing = None;
            self.tiers.iter_mut().take(1).for_each(|newest| newest.truncate(runs));
            self.written_bytes = written_bytes;
        }

        added
    }

    /// Cuts a batch into parts that can be sorted at once, or are a single entry.
    fn parts<'a, 'u, K: AsRef<[u8]>>(
        &self,
        batch: &'a [(K, Update<'u>)],
    ) -> Vec<&'a [(K, Update<'u>)]> {
        let limit = self.sorted_bytes;
        let mut parts = Vec::new();

        let mut start = 0;
        let mut weight = 0;
        for (at, (key, update)) in batch.iter().enumerate() {
            let (_, value, blob) = update.parts();
            let bytes = key.as_ref().len() + value.len() + blob.map_or(0, <[u8]>::len);
            let own = bytes as u64 + ENTRY_OVERHEAD_BYTES;
            // An entry above the limit is a part of its own.
            if weight + own > limit && at > start {
                parts.push(&batch[start..at]);
                (start, weight) = (at, 0);
            }
            weight += own;
        }

        parts.push(&batch[start..]);
        debug_assert_eq!(
            parts.iter().map(|part| part.len()).sum::<usize>(),
            batch.len(),
            "the parts are all of the batch"
        );
        parts
    }

    /// A merge into a run that is only read in order.
    fn begin_merge(&self, inputs: Vec<Input>) -> Arc<Compaction> {
        let spec = CompactionSpec {
            inputs,
            slices: Vec::new(),
            slice_entries: ONE_RUN,
            drop_deletes: false,
            operator: self.config.merge_operator.clone(),
            filter: None,
            prefix_bytes: self.config.prefix_bytes.unwrap_or(0),
            index: IndexKind::Ordinary,
            compression: Compression::None,
            access: self.config.disk_cache.access(LEVELS_MAX),
            salt: self.session.salt(),
            purpose: Purpose::Level,
        };
        Arc::new(Compaction::new(self.session.files(), spec))
    }

    /// Whether a merge may have a second thread: where the configuration gives merges one, but on a
    /// simulated disk, whose calls are to come in one order.
    fn has_two_threads(&self) -> bool {
        self.config.compaction_thread == CompactionThread::Background
            && self.session.disk().queue_kind() != QueueKind::Simulated
    }

    /// Begins to write what is in memory, once what was before it has been written.
    fn flush(&mut self) -> Result<()> {
        self.settle()?;
        if self.buffer.is_empty() {
            return Ok(());
        }
        let buffer = std::mem::take(&mut self.buffer);
        self.size_buffer();
        let compaction = self.begin_merge(vec![Input::Buffer(buffer)]);
        if self.config.compaction_thread == CompactionThread::Background {
            // No update paces this merge, so the thread may go on to its end.
            compaction.requested.store(u64::MAX, Ordering::Release);
            self.session.worker().advance(&compaction);
        }
        self.flushing = Some(compaction);
        Ok(())
    }

    /// Ends the writing that is under way.
    fn settle(&mut self) -> Result<()> {
        let Some(compaction) = &self.flushing else { return Ok(()) };
        let run = compaction.finish_one()?;
        self.flushing = None;
        self.add_run(0, run);
        Ok(())
    }

    /// Merges runs in groups, so that there are not too many to be merged at once.
    fn merge_groups(&mut self) -> Result<()> {
        let mut tier = 0;
        while let Some(runs) = self.tiers.get(tier) {
            let Some(oldest) = runs.get(..FAN_IN) else {
                tier += 1;
                continue;
            };
            // The oldest runs of a tier go together, so that the order of arrival is kept across
            // tiers.
            let run = self.begin_merge(newest_first(oldest)).finish_one()?;
            self.tiers[tier].drain(..FAN_IN);
            self.add_run(tier + 1, run);
        }
        debug_assert!(
            self.tiers.iter().all(|runs| runs.len() < FAN_IN),
            "no tier is left with a group"
        );
        Ok(())
    }

    fn add_run(&mut self, tier: usize, run: Option<Arc<Run>>) {
        debug_assert!(tier <= self.tiers.len(), "tiers follow each other");
        if self.tiers.len() <= tier {
            self.tiers.push(Vec::new());
        }
        self.written_bytes += run.as_ref().map_or(0, |run| run.meta().file_bytes());
        self.tiers[tier].extend(run);
    }

    /// The table with all that was added.
    ///
    /// Cost: reads what was written by [`write_batch`](Self::write_batch) and writes it once more.
    /// Memory: the filter and the index of the table, 128 KiB for each run, and half a megabyte if
    /// the table has its merges on the background thread, where one thread then merges and this one
    /// writes.
    ///
    /// # Errors
    /// The errors of [`Table::write_batch`]; [`Error::InvalidConfig`] if the memory budget is too
    /// small for a table of this size.
    pub fn finish(self) -> Result<Table> {
        let done = self.finish_watched(&mut |_, _| ControlFlow::<()>::Continue(()))?;
        match done {
            ControlFlow::Continue(table) => Ok(table),
            ControlFlow::Break(()) => Err(Error::SessionClosed),
        }
    }

    /// Like [`finish`](Self::finish), telling `watch` from time to time how many pages of how many
    /// have been merged; what it breaks off with is returned, and what was loaded is lost then.
    ///
    /// # Errors
    /// The errors of [`finish`](Self::finish).
    pub fn finish_watched<B>(
        mut self,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B, Table>> {
        self.flush()?;
        self.settle()?;
        self.merge_groups()?;
        debug_assert!(self.flushing.is_none() && self.buffer.is_empty(), "all is in runs");
        // A higher tier holds older runs, so tiers come in their order.
        let inputs: Vec<Input> = self.tiers.iter().flat_map(|runs| newest_first(runs)).collect();

        let context = CompactionEnv {
            set: self.session.files(),
            config: &self.config,
            capacity: Capacity::of(&self.config, None),
            salt: self.session.salt(),
            table: self.session.id(),
        };

        let weight: u64 = inputs.iter().filter_map(Input::run).map(|r| context.run_size(r)).sum();
        let level = context.last_level_of(weight);
        // The output is the whole table, so it keeps no deletions.
        let spec = context.spec(inputs, (level, level), true, &TableMemory::default());

        let compaction = Compaction::new(self.session.files(), spec);
        if self.has_two_threads()
            && let ControlFlow::Break(reason) = compaction.merge_on_two_threads(watch)?
        {
            return Ok(ControlFlow::Break(reason));
        }

        while !compaction.is_complete() {
            if let ControlFlow::Break(reason) = watch(compaction.done(), compaction.total()) {
                return Ok(ControlFlow::Break(reason));
            }
            compaction.advance_to(compaction.done() + STEP_PAGES)?;
        }

        let mut tree = Levels { written_bytes: self.written_bytes, ..Levels::default() };
        let runs = compaction.finish()?;
        if !runs.is_empty() {
            // The budget is checked only now: the size of the index depends on the keys.
            if let Some(budget) = self.config.memory_budget {
                let index_bytes: usize = runs.iter().map(|run| run.memory_bytes().1).sum();
                let least = budget_min(index_bytes as u64, self.config.memory_goal);
                check_budget(budget, least, "for a table of this size")?;
            }
            tree.written_bytes += runs.iter().map(|run| run.meta().file_bytes()).sum::<u64>();
            tree.levels = vec![Level::default(); level];
            tree.levels[level - 1] = Level::of(runs.to_vec());
        }

        Ok(ControlFlow::Continue(Table::new(self.session, tree, self.config)))
    }
}

fn newest_first(runs: &[Arc<Run>]) -> Vec<Input> {
    runs.iter().rev().map(|run| Input::Run(Arc::clone(run))).collect()
}
