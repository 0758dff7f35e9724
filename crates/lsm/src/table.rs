//! A table: an ordered map from key bytes to value bytes.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::{MEMORY_BUDGET_MAX, MergeSchedule, MergeThread, TableConfig};
use crate::cursor::{Cursor, after_prefix};
use crate::entry::{EntryRef, KEY_BYTES_MAX, Lookup, Update, VALUE_BYTES_MAX, key_hash};
use crate::error::{Error, Result};
use crate::levels::{Context, Incoming, Pending, Sources, Tree};
use crate::lookup::{LookupContext, lookup_batch};
use crate::memory::budget_min;
use crate::merging::View;
use crate::run::Run;
use crate::session_core::SessionCore;
use crate::snapshot::{self, SnapshotName};
use crate::stats::{Counters, LevelStats, TableStats};
use crate::write_buffer::Undo;

/// How far a background thread may fall behind before updates help, in batches of merge work.
const LAG_BATCHES_MAX: u64 = 64;

/// A handle on a table.
///
/// Readers share it; updates take it exclusively. Duplicates are independent and may live on other
/// threads. A table lives as long as its handle: what is not in a snapshot is lost with it.
#[derive(Debug)]
pub struct Table {
    // Fields drop in order: the files of the tree go while the session still holds the lock.
    tree: Tree,
    config: TableConfig,
    /// No merge needs work before this moment, in ticks.
    next_work: u64,
    counters: Counters,
    session: Arc<SessionCore>,
}

impl Table {
    pub(crate) fn new(session: Arc<SessionCore>, tree: Tree, config: TableConfig) -> Self {
        Self { tree, config, next_work: 0, counters: Counters::default(), session }
    }

    fn context(&self) -> Context<'_> {
        Context { set: self.session.files(), config: &self.config, salt: self.session.salt() }
    }

    /// The table's configuration.
    #[must_use]
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Changes the configuration. The content stays the same, whatever is changed.
    ///
    /// In force with the next update: `merge_schedule`, `merge_thread`, `merge_batch_pages` and the write
    /// buffer, which is flushed earlier or later than it would have been; with the next lookup:
    /// `queue_depth`. With the next flush: `merge_policy` and `size_ratio`, level by level as runs arrive
    /// there; a merge that is wanted earlier than it had been planned for is completed at once. For runs
    /// written from then on: `filter`, `index`, `disk_cache` and, as far as it is about filters,
    /// `memory_budget`. Duplicates and snapshots made before keep theirs.
    ///
    /// Cost: no I/O.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], also for a memory budget that the indexes of this table would not leave
    /// room in; [`Error::SessionClosed`]. Nothing has changed then.
    pub fn set_config(&mut self, config: &TableConfig) -> Result<()> {
        self.session.check_open()?;
        config.validate()?;
        if let Some(budget) = config.memory_budget {
            let least = budget_min(self.stats().index_bytes as u64);
            if budget < least {
                let value = format!("bytes: {budget}");
                let allowed = format!("{least} to {MEMORY_BUDGET_MAX}, for a table of this size");
                return Err(Error::InvalidConfig { option: "memory_budget", value, allowed });
            }
        }
        self.config = config.clone();
        // Time has another measure now.
        self.next_work = 0;
        Ok(())
    }

    /// Sets the value of a key.
    ///
    /// Cost: no read. Written about `size_ratio · levels / 2` times in the end, in whole pages, by merges
    /// that this and later updates do their share of.
    ///
    /// # Errors
    /// As [`updates`](Self::updates).
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.updates(&[(key, Update::Insert(value))])
    }

    /// Removes a key; no effect if it is absent. Cost: as [`insert`](Self::insert).
    ///
    /// # Errors
    /// As [`updates`](Self::updates).
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.updates(&[(key, Update::Delete)])
    }

    /// Applies a batch of any size, in its order: the same as one by one, but all or nothing.
    ///
    /// # Errors
    /// [`Error::KeyTooLarge`], [`Error::ValueTooLarge`], [`Error::Disk`] (a merge or a flush failed; call
    /// again after making space), [`Error::Corrupt`] (a merge met a damaged page), [`Error::Poisoned`],
    /// [`Error::SessionClosed`]. After any error the table is as it was before the call.
    pub fn updates<K: AsRef<[u8]>>(&mut self, batch: &[(K, Update<'_>)]) -> Result<()> {
        self.session.check_writable()?;
        for (key, update) in batch {
            let (key, value) = (key.as_ref(), update.parts().1);
            if key.len() > KEY_BYTES_MAX {
                return Err(Error::KeyTooLarge { bytes: key.len(), limit: KEY_BYTES_MAX });
            }
            if value.len() > VALUE_BYTES_MAX {
                return Err(Error::ValueTooLarge { bytes: value.len(), limit: VALUE_BYTES_MAX });
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        let mut undo = Some(self.tree.buffer.begin());
        // The table as it was when a flush took the buffer away, and how to take the batch back there.
        let mut before = None;
        let result = self.apply(batch, &mut undo, &mut before);
        if result.is_err() {
            if let Some((tree, taken)) = before {
                self.tree = tree;
                undo = Some(taken);
            }
            if let Some(undo) = undo {
                undo.roll_back(&mut self.tree.buffer);
            }
            self.next_work = 0;
        }
        result
    }

    fn apply<K: AsRef<[u8]>>(
        &mut self,
        batch: &[(K, Update<'_>)],
        undo: &mut Option<Undo>,
        before: &mut Option<(Tree, Undo)>,
    ) -> Result<()> {
        let salt = self.session.salt();
        for (key, update) in batch {
            let key = key.as_ref();
            let (kind, value) = update.parts();
            let entry = EntryRef { key, kind, value };
            self.tree.buffer.put(key_hash(salt, key), entry, undo.as_mut());
            let now = self.tree.now(&self.context());
            if now >= self.next_work {
                if now >= self.tree.next_flush() {
                    let next = self.flush()?;
                    let old = std::mem::replace(&mut self.tree, next);
                    *before = before.take().or(undo.take().map(|undo| (old, undo)));
                }
                self.work()?;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<Tree> {
        let context = self.context();
        let next = self.tree.flush(&context)?;
        match self.config.merge_schedule {
            MergeSchedule::Incremental => Ok(next),
            MergeSchedule::OneShot => next.settled(&context),
        }
    }

    /// Does the merge work that is due by now, and finds out when the next is.
    fn work(&mut self) -> Result<()> {
        let now = self.tree.now(&self.context());
        let mut next_work = self.tree.next_flush();
        let batch = u64::from(self.config.merge_batch_pages);
        for pending in self.tree.pending() {
            match self.config.merge_schedule {
                MergeSchedule::OneShot => {
                    pending.merging.finish()?;
                    continue;
                }
                MergeSchedule::Incremental => self.work_on(pending, now, batch)?,
            }
            let target = pending.merging.done() + batch;
            next_work = next_work.min(pending.when(target).max(now + 1));
        }
        self.next_work = next_work;
        Ok(())
    }

    fn work_on(&self, pending: &Pending, now: u64, batch: u64) -> Result<()> {
        let required = pending.required(now);
        let merging = &pending.merging;
        if required < merging.done() + batch && required < merging.total() {
            return Ok(());
        }
        match self.config.merge_thread {
            MergeThread::Caller => merging.advance_to(required),
            MergeThread::Background => {
                merging.requested.fetch_max(required, Ordering::AcqRel);
                self.session.worker().advance(merging);
                // Credit: what the thread may owe. Beyond it this call pays.
                let floor = required.saturating_sub(LAG_BATCHES_MAX * batch);
                merging.advance_to(floor)
            }
        }
    }

    /// Looks up one key. Cost: as for a batch of one.
    ///
    /// # Errors
    /// As [`lookups`](Self::lookups).
    pub fn lookup(&self, key: &[u8]) -> Result<Lookup> {
        let mut results = self.lookups(&[key])?;
        Ok(results.pop().unwrap_or(Lookup::NotFound))
    }

    /// Looks up a batch of any size; results in the order of the keys, which may repeat.
    ///
    /// Cost: a key decided by the write buffer, none; a key that is present, 1 page read and for each
    /// newer run as many as its filter's false-positive rate; an absent key only the latter: at the
    /// default configuration together at most 0.01. Reads of a batch run side by side. Held by the test
    /// `budgets`.
    ///
    /// # Errors
    /// [`Error::Disk`] if a read fails, [`Error::Corrupt`] if a page fails its checks,
    /// [`Error::SessionClosed`]; no partial result.
    pub fn lookups<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Lookup>> {
        self.session.check_open()?;
        let context = LookupContext {
            salt: self.session.salt(),
            queue_depth: self.config.queue_depth as usize,
            counters: &self.counters,
            spare: self.session.spare_pages(),
        };
        lookup_batch(&self.tree, &context, keys)
    }

    /// An independent, writable table of the same content.
    ///
    /// Cost: no I/O; a few reference counts.
    ///
    /// # Errors
    /// [`Error::SessionClosed`].
    pub fn duplicate(&self) -> Result<Self> {
        self.session.check_open()?;
        let (session, config) = (Arc::clone(&self.session), self.config.clone());
        Ok(Self { next_work: self.next_work, ..Self::new(session, self.tree.clone(), config) })
    }

    /// Saves the table as it is now under a name; durable when this returns. The table stays usable.
    /// `label` is checked on opening; it is meant to say what the table holds.
    ///
    /// Cost: finishes the flush under way, writes the write buffer and one small file, and syncs the runs that no earlier snapshot
    /// has synced: O(runs) file operations.
    ///
    /// # Errors
    /// [`Error::SnapshotExists`], [`Error::Disk`], [`Error::Poisoned`], [`Error::SessionClosed`]. After an
    /// error, or a crash, there is no snapshot of that name, or a whole one.
    pub fn save_snapshot(&self, name: &SnapshotName, label: &str) -> Result<()> {
        snapshot::save(&self.session, &self.tree, &self.config, name, label)
    }

    /// A cursor at the first entry.
    ///
    /// Cost: one page read for each run, or two where the index is compact.
    ///
    /// # Errors
    /// As [`Cursor::next`].
    pub fn cursor(&self) -> Result<Cursor> {
        self.cursor_at(&[])
    }

    /// A cursor at the first entry whose key is at least `key`.
    ///
    /// Cost: one page read for each run, or two where the index is compact.
    ///
    /// # Errors
    /// As [`Cursor::next`].
    pub fn cursor_at(&self, key: &[u8]) -> Result<Cursor> {
        self.range::<[u8], _>((Bound::Included(key), Bound::Unbounded))
    }

    /// A cursor over the entries whose keys are in `range`: all kinds of bounds; empty if the lower one is
    /// above the upper one.
    ///
    /// Cost: one page read for each run that may hold such keys, or two where the index is compact.
    ///
    /// # Errors
    /// As [`Cursor::next`].
    pub fn range<K: AsRef<[u8]> + ?Sized, R: RangeBounds<K>>(&self, range: R) -> Result<Cursor> {
        self.session.check_open()?;
        let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        let (from, to) = (owned(range.start_bound()), owned(range.end_bound()));
        Cursor::new(Arc::clone(&self.session), &self.tree, from, to)
    }

    /// A cursor over the entries whose keys begin with `prefix`.
    ///
    /// Cost: as [`range`](Self::range).
    ///
    /// # Errors
    /// As [`Cursor::next`].
    pub fn prefix(&self, prefix: &[u8]) -> Result<Cursor> {
        self.session.check_open()?;
        let (from, to) = (Bound::Included(prefix.to_vec()), after_prefix(prefix));
        Cursor::new(Arc::clone(&self.session), &self.tree, from, to)
    }

    /// The shape of the table and what it counted. Cost: no I/O.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        let mut stats = TableStats {
            buffer_entries: self.tree.buffer.len(),
            buffer_bytes: self.tree.buffer.memory_bytes(),
            lookups: self.counters.lookups.load(Ordering::Relaxed),
            lookup_reads: self.counters.lookup_reads.load(Ordering::Relaxed),
            ..TableStats::default()
        };
        let sources = self.tree.sources();
        for buffer in &sources.buffers {
            stats.buffer_entries += buffer.len();
            stats.buffer_bytes += buffer.memory_bytes();
        }
        for run in &sources.runs {
            let (filter, index, _) = run.memory_bytes();
            stats.filter_bytes += filter;
            stats.index_bytes += index;
            stats.key_pages += u64::from(run.meta().key_pages);
        }
        for pending in self.tree.pending() {
            stats.merge_debt_pages += pending.merging.total() - pending.merging.done();
            stats.unfinished_bytes += pending.merging.built_bytes() as usize;
        }
        for level in &self.tree.levels {
            let mut shape = LevelStats::default();
            if let Some(Incoming::Merging(pending)) = &level.incoming {
                shape.merge_pages = pending.merging.total();
                shape.merge_pages_done = pending.merging.done();
            }
            let mut sources = Sources::default();
            sources.add_level(level);
            for run in &sources.runs {
                count_run(&mut shape, run);
            }
            stats.levels.push(shape);
        }
        // The run of a complete flush enters level 1 with the next flush, but is read from now on.
        if let Some(flushing) = &self.tree.flushing
            && let View::Output(Some(run)) = flushing.merging.view()
        {
            if stats.levels.is_empty() {
                stats.levels.push(LevelStats::default());
            }
            count_run(&mut stats.levels[0], &run);
        }
        stats
    }
}

fn count_run(shape: &mut LevelStats, run: &Run) {
    shape.runs += 1;
    shape.entries += run.meta().entries;
    shape.deletes += run.meta().deletes;
    shape.bytes += run.meta().pages() * crate::page::PAGE_SIZE as u64;
    let (filter_bytes, index_bytes, _) = run.memory_bytes();
    shape.filter_bytes += filter_bytes;
    shape.index_bytes += index_bytes;
}
