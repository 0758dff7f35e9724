//! Commits: batches for several tables, all or none, with one number.
//!
//! A commit holds the writers of its tables from its slow work to its record, and everything that
//! readers and other tables need only for a moment:
//!
//! 1. Without any lock: the WAL is begun, and a checkpoint is made if one is due.
//! 2. With the writers: the [batches of the indexes](crate::store::index_batches) of its tables;
//!    [slow work](SlowWork) of each table. Shares of compactions are done in
//!    place, since tables only share them. A flush, or a deletion that reads keys, is done on a
//!    copy of the table together with the whole batch.
//! 3. With the tables: the other batches go into the memtables.
//! 4. With tables and state: a transaction is validated; the record is written; copies take the
//!    place of their tables.
//! 5. Without any lock: the next segment of the WAL is made ahead, if half of this one is written;
//!    the memtable of an idle table is flushed, if the session's memory budget wants it back.
//!
//! Errors of the slow work are those of the commit that owes it. No table has changed then, and
//! nothing is logged. If the record cannot be written, the batches are taken back, and the copies
//! are dropped. So a table that cannot be compacted takes no more updates than its memtable has
//! room for, and memory stays bounded.
//!
//! *Rejected:* slow work after the commit (its error would come after the promise, and a writer
//! could outrun its compactions); a copy for each commit (it freezes the memtable part); the
//! insertion into memtables with the state held (tables would wait for each other).

use terrane_io::rare;
use terrane_io::sync::atomic::Ordering;
use terrane_io::sync::{Arc, MutexGuard};

use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::manifest::wal::{RECORD_BYTES_MAX, RecordBuilder};
use crate::store::inner::{Batch, LogRoom, Named, Shared, Slot, State};
use crate::table::table::{Applied, SlowWork, Table};
use crate::trace::event;

/// A batch whose slow work is done.
enum Ready<'a> {
    /// To be put into the memtable.
    Batch(&'a Batch<'a>),
    /// Applied to a copy of the table.
    Copy(Box<Table>),
}

/// A batch as it was applied, to be taken back if the record cannot be written.
#[expect(clippy::large_enum_variant, reason = "few at a time, and a box costs each small commit")]
enum Done {
    Batch(Applied),
    Copy(Box<Table>),
}

/// Views, tables and batches that a commit has replaced. The last user of a run removes its file,
/// so these are dropped without locks.
#[derive(Default)]
struct Replaced {
    views: Vec<Arc<Table>>,
    copies: Vec<Table>,
    applied: Vec<Applied>,
}

type Tables<'a> = Vec<MutexGuard<'a, Option<Named>>>;

impl Shared {
    /// Record that a commit of these batches appends to the WAL; `None` without a WAL.
    ///
    /// # Errors
    /// [`Error::CommitTooLarge`].
    pub(crate) fn record(&self, batches: &[Batch<'_>]) -> Result<RecordBuilder> {
        if !self.is_logged() {
            return Ok(RecordBuilder::default());
        }
        let bytes = batches.iter().map(Batch::bytes).sum();
        let limit = RECORD_BYTES_MAX;

        if bytes > limit {
            return Err(Error::CommitTooLarge { bytes, limit });
        }

        let mut record = RecordBuilder::with_capacity(bytes);
        for batch in batches {
            record.part(batch.key.id, &batch.updates);
        }

        if record.len() > limit {
            return Err(Error::CommitTooLarge { bytes: record.len(), limit });
        }
        Ok(record)
    }

    /// Prepares for a commit. Before the first one the log is begun, behind what was found of it.
    /// Makes a checkpoint if one is due, here or on the thread; an error only if the log is too
    /// long. Even then a commit that `frees` room goes on if the disk is full.
    pub(crate) fn prepare_to_commit(self: &Arc<Self>, frees: bool) -> Result<()> {
        let is_begun = !self.is_logged() || lock(&self.state).is_linked;

        // An attempt takes a segment, so not each commit that frees room makes one after a failure.
        let is_put_off = frees && !self.is_due_again();
        if is_begun && (!self.is_due() || is_put_off) {
            return Ok(());
        }

        if !is_begun {
            self.begin_logging(&mut lock(&self.published))?;
        }

        match self.make_checkpoint_if_due() {
            Err(error) if frees && error.is_no_space() => {
                rare::taken("a deletion goes on without its checkpoint");
                let due_at = self.log_bytes.load(Ordering::Relaxed) + self.log_bytes_max / 2;
                self.due_at.store(due_at, Ordering::Relaxed);
                event!(WARN, "checkpoint.failed", self.inner.dir(), %error);
                Ok(())
            }
            made => made,
        }
    }

    /// Applies a commit and writes its record to the log. Returns its number. The batches are of
    /// different tables.
    pub(crate) fn commit(self: &Arc<Self>, batches: Vec<Batch<'_>>) -> Result<u64> {
        self.commit_if(batches, |_| Ok(()))
    }

    /// The same unless `check` refuses, which is given the number of the commit before: no other
    /// commit comes between the check and this one.
    pub(crate) fn commit_if(
        self: &Arc<Self>,
        batches: Vec<Batch<'_>>,
        check: impl FnOnce(u64) -> Result<()>,
    ) -> Result<u64> {
        // Comes to an end: somebody would have to change the list of indexes each time.
        loop {
            let indexes = self.changed_indexes(batches.iter().map(|batch| batch.key.id))?;
            let record = if indexes.is_empty() { Some(self.record(&batches)?) } else { None };

            // Locks of several tables are taken in one order.
            let mut slots: Vec<_> = batches
                .iter()
                .map(|batch| (batch.key.id, batch.slot))
                .chain(indexes.slots())
                .collect();
            slots.sort_by_key(|(id, _)| *id);
            debug_assert!(slots.windows(2).all(|pair| pair[0].0 < pair[1].0));
            let writers: Vec<_> = slots.iter().map(|(_, slot)| lock(&slot.writer)).collect();
            if !self.are_current(&indexes) {
                continue;
            }
            self.inner.check_writable()?;

            if let Some(record) = record {
                return self.commit_held(batches, record, writers, check);
            }
            let made = indexes.batches(&batches)?;
            let mut all = batches;
            for made in &made {
                let batch = made.batch();
                self.inner.check_room_for(&batch.updates)?;
                all.push(batch);
            }
            let record = self.record(&all)?;
            return self.commit_held(all, record, writers, check);
        }
    }

    /// The same; the caller holds the writers of the tables.
    fn commit_held(
        self: &Arc<Self>,
        mut batches: Vec<Batch<'_>>,
        record: RecordBuilder,
        writers: Vec<MutexGuard<'_, ()>>,
        check: impl FnOnce(u64) -> Result<()>,
    ) -> Result<u64> {
        batches.sort_by_key(|batch| batch.key.id);
        debug_assert!(batches.windows(2).all(|pair| pair[0].key.id < pair[1].key.id));
        let bare = batches.is_empty().then(|| lock(&self.bare_writer));

        let mut ready = Vec::with_capacity(batches.len());
        for batch in &batches {
            ready.push(make_ready(batch)?);
        }
        debug_assert!(ready.len() <= writers.len(), "each part has its writer");
        let (commit, wants_care, replaced) = self.commit_ready(&batches, ready, record, check)?;

        drop((writers, bare));
        drop(replaced);
        if wants_care {
            self.tend_log();
        }
        if let Some(grant) = self.inner.memory().and_then(|memory| memory.take_asked()) {
            self.flush_for_memory(grant);
        }
        Ok(commit)
    }

    /// Flushes the memtable that the session's memory budget wants back, if it is that of a named
    /// table: the table may never be updated again.
    fn flush_for_memory(&self, grant: u64) {
        let is_it = |slot: &Arc<Slot>| {
            lock(&slot.table).as_ref().is_some_and(|named| named.table.has_grant(grant))
        };
        let Some((_, slot)) = self.slots().into_iter().find(|(_, slot)| is_it(slot)) else {
            return;
        };
        // Otherwise a commit to the table is under way, and the next one flushes it.
        let Ok(_writer) = slot.writer.try_lock() else { return };

        // The commit is done, and a flush that is due reports the same error.
        if let Err(error) = self.rearrange(&slot, Table::release_memtable) {
            event!(WARN, "memory.flush_failed", self.inner.dir(), %error);
        }
    }

    /// Commits batches whose slow work is done. Returns the number of the commit, whether the log
    /// wants care, and what is to be dropped.
    fn commit_ready<'a>(
        &self,
        batches: &'a [Batch<'a>],
        mut ready: Vec<Ready<'a>>,
        record: RecordBuilder,
        check: impl FnOnce(u64) -> Result<()>,
    ) -> Result<(u64, bool, Replaced)> {
        let record_bytes = record.len();
        let (mut tables, done, mut state, has_switched) = loop {
            let mut tables = lock_tables(batches)?;
            let done = self.apply(&mut tables, ready)?;

            let mut state = lock(&self.state);
            match self.make_log_room(&mut state, record_bytes) {
                Ok(Some(has_switched)) => break (tables, done, state, has_switched),
                // Rare: a segment is full, and the next one has not been made ahead. Others go on.
                Ok(None) => ready = take_back(&mut tables, done, batches),
                Err(error) => {
                    take_back(&mut tables, done, batches);
                    return Err(error);
                }
            }
            drop(state);
            drop(tables);
            self.make_next(record_bytes, LogRoom::Ordinary)?;
        };

        debug_assert_eq!(done.len(), tables.len(), "each table has its part of the commit");
        let written = check(state.commit).and_then(|()| self.write(&mut state, record));
        if let Err(error) = written {
            take_back(&mut tables, done, batches);
            return Err(error);
        }
        state.commit += 1;
        state.changes += 1;
        let commit = state.commit;
        self.write_sets.note(commit, batches.iter().flat_map(Batch::of_table));
        let changes = state.changes;
        let wants_care = has_switched || state.wants_next();
        // No reader finds an older view once the commit has its number.
        let mut replaced = Replaced::default();
        let wanted = hide_views(batches, &mut replaced);
        drop(state);

        for (table, done) in tables.iter_mut().zip(done) {
            let Some(named) = &mut **table else { continue };
            named.changed = changes;
            match done {
                Done::Copy(mut copy) => {
                    named.table.adopt(&mut copy);
                    replaced.copies.push(*copy);
                }
                Done::Batch(applied) => replaced.applied.push(applied),
            }
        }
        for at in wanted {
            // Where it fails, the next reader is told.
            let view = tables[at].as_ref().and_then(|named| named.table.fork().ok());
            lock(&batches[at].slot.reading).view = view.map(Arc::new);
        }

        Ok((commit, wants_care, replaced))
    }

    /// Puts batches into memtables. If one is refused, all are taken back.
    fn apply(&self, tables: &mut Tables<'_>, ready: Vec<Ready<'_>>) -> Result<Vec<Done>> {
        self.check_whole()?;

        // A merge operator that panics leaves a part of the commit behind. Nobody reads that: this
        // is dropped before the tables are free.
        let unwinding = Unwinding(self);
        let mut done = Vec::with_capacity(ready.len());
        let mut refused = None;
        for (table, ready) in tables.iter_mut().zip(ready) {
            let Some(named) = &mut **table else { continue };
            match ready {
                Ready::Copy(copy) => done.push(Done::Copy(copy)),
                Ready::Batch(batch) => match named.table.apply_ready(&batch.updates) {
                    Ok(applied) => done.push(Done::Batch(applied)),
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                },
            }
        }
        std::mem::forget(unwinding);

        let Some(error) = refused else { return Ok(done) };
        for (table, done) in tables.iter_mut().zip(done).rev() {
            if let (Some(named), Done::Batch(applied)) = (&mut **table, done) {
                named.table.take_back(applied);
            }
        }
        Err(error)
    }

    /// Lets the log have room for a record, without waiting for the disk: says whether it has gone
    /// on in another segment for that; `None` if the next segment must be made first.
    fn make_log_room(&self, state: &mut State, record_bytes: usize) -> Result<Option<bool>> {
        self.inner.check_writable()?;
        if !self.is_logged() || state.has_room(record_bytes) {
            return Ok(Some(false));
        }
        Ok(self.switch(state, record_bytes, LogRoom::Ordinary)?.then_some(true))
    }

    /// Writes the next commit to the log, if there is one, which has room.
    fn write(&self, state: &mut State, record: RecordBuilder) -> Result<()> {
        let Some(log) = state.log.as_mut().filter(|_| self.is_logged()) else { return Ok(()) };
        assert!(log.has_room(record.len()), "a record is written to one segment");
        debug_assert!(state.is_linked, "recovery finds the segment");
        let _right = self.inner.files().handles().may_write()?;
        let commit = state.commit + 1;
        let known = self.durable.commit();
        debug_assert!(known < commit, "only written commits are durable");

        let record = record.finish(self.inner.salt(), log.log.number, commit, known);
        if let Err(error) = log.write(&record) {
            rare::taken("the record of a commit that failed is taken back");
            // Nobody must read what there may be of it, now or later.
            let withdrawn = log.withdraw(&error);
            let file = &log.log.file;
            withdrawn.or_else(|error| self.inner.poison(file.path(), error))?;
            self.inner.files().synced(file.path(), file.sync())?;
            return Err(error);
        }

        self.log_bytes.fetch_add(record.len() as u64, Ordering::Relaxed);
        self.log_written.fetch_add(record.len() as u64, Ordering::Relaxed);
        self.durable.set_end(&log.log, commit);
        Ok(())
    }
}

/// Does the slow work of a batch, for which the caller holds the writer of its table.
///
/// # Errors
/// Those of [`Table::write_batch`]. The table has not changed then.
fn make_ready<'a>(batch: &'a Batch<'a>) -> Result<Ready<'a>> {
    let work = match &*lock(&batch.slot.table) {
        Some(named) => named.table.slow_work(&batch.updates)?,
        None => return Err(is_gone(batch)),
    };

    match work {
        SlowWork::Nothing => Ok(Ready::Batch(batch)),
        SlowWork::Shares(shares) => {
            shares.run()?;
            Ok(Ready::Batch(batch))
        }
        SlowWork::Copy(mut copy) => {
            copy.apply_batch(&batch.updates)?;
            Ok(Ready::Copy(copy))
        }
    }
}

fn is_gone(batch: &Batch<'_>) -> Error {
    Error::TableDoesNotExist { name: batch.key.name.to_string() }
}

/// The tables of a commit, all of them there.
fn lock_tables<'a>(batches: &'a [Batch<'_>]) -> Result<Tables<'a>> {
    let tables: Tables<'a> = batches.iter().map(|batch| lock(&batch.slot.table)).collect();
    match batches.iter().zip(&tables).find(|(_, table)| table.is_none()) {
        Some((batch, _)) => Err(is_gone(batch)),
        None => Ok(tables),
    }
}

/// Takes applied batches back; returns them for another attempt.
fn take_back<'a>(
    tables: &mut Tables<'_>,
    done: Vec<Done>,
    batches: &'a [Batch<'a>],
) -> Vec<Ready<'a>> {
    debug_assert_eq!(done.len(), batches.len(), "all were applied");
    let mut ready = Vec::with_capacity(batches.len());
    for ((table, done), batch) in tables.iter_mut().zip(done).zip(batches) {
        match (&mut **table, done) {
            (Some(named), Done::Batch(applied)) => {
                named.table.take_back(applied);
                ready.push(Ready::Batch(batch));
            }
            (None, Done::Batch(_)) => {}
            (_, Done::Copy(copy)) => ready.push(Ready::Copy(copy)),
        }
    }
    ready
}

/// Takes the views of tables away that a commit makes old. Returns which tables somebody wants a
/// view of: where nobody reads, nothing is forked.
fn hide_views(batches: &[Batch<'_>], replaced: &mut Replaced) -> Vec<usize> {
    let mut wanted = Vec::new();
    for (at, batch) in batches.iter().enumerate() {
        let mut reading = lock(&batch.slot.reading);
        replaced.views.extend(reading.view.take());
        if std::mem::take(&mut reading.is_wanted) {
            wanted.push(at);
        }
    }
    wanted
}

/// Poisons a store if it is dropped: nobody knows what a commit has left that did not end.
struct Unwinding<'a>(&'a Shared);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        let inner = &self.0.inner;
        inner.files().handles().panicked(inner.dir());
        self.0.is_torn.store(true, Ordering::Release);
    }
}
