//! A table: an ordered map from key bytes to value bytes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::{Bound, RangeBounds};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use terrane_io::sync::{Arc, Mutex};

use crate::compaction::compaction::{Compaction, View};
use crate::compaction::levels::{
    Capacity, CompactionEnv, Incoming, Level, Levels, ScheduledCompaction,
};
use crate::compaction::sources::Sources;
use crate::compaction::value_room::ValueRoom;
use crate::config::{CompactionSchedule, CompactionThread, TableConfig};
use crate::entry::entry::{BLOB_BYTES_MAX, BLOB_SPAN_SIZE, KEY_BYTES_MAX, Update, VALUE_BYTES_MAX};
use crate::entry::key_range::KeyRange;
use crate::entry::mask::{SPAN_KEY_BYTES_MAX, Span};
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::lookup::lookup::{Batch, Idle, LookupEnv, begin_batch, lookup_batch};
use crate::lookup::plan::Plan;
use crate::lookup::result::{Answers, Lookup, Record, Values};
use crate::lookup::submitted::{PendingLookups, Submitted};
use crate::memory::budget::{budget_min, check_budget};
use crate::memtable::memtable::Memtable;
use crate::memtable::part::{Room, Undo};
use crate::run::page_cache::CacheShare;
use crate::run::run::Run;
use crate::run::slices::groups;
use crate::session::inner::{Holder, Registered, SessionInner};
use crate::session::snapshot::{self, SnapshotName, WrittenOut};
use crate::stats::{Counters, FilterStats, LevelStats, TableStats};
use crate::table::canonical::{self, CanonicalSummary};
use crate::table::cursor::Cursor;
use crate::table::diff::Diff;
use crate::table::shares::{DueShares, ShareConfig};
use crate::trace::event;

mod memory;

use memory::{TableGrant, new_cache};

/// Short ranges that are read side by side. Each holds a page for each run.
const SCANS_TOGETHER: usize = 64;

/// Fewer keys than this are deleted one by one where masks have no
/// [room](crate::entry::mask::Mask::has_room_for) for another span. So each further span removes as
/// many keys.
const MASKED_KEYS_MIN: usize = 4_096;

/// A handle on a table.
///
/// Readers share it; updates take it exclusively. Duplicates are independent and may live on other
/// threads. A table lives as long as its handle: what is not in a snapshot is lost with it
/// (named tables of a [`Store`](crate::Store) last).
#[derive(Debug)]
pub struct Table {
    // Fields drop in order: the files of the tree go while the session still holds the lock.
    tree: Levels,
    config: TableConfig,
    /// No merge needs work before this moment, in ticks.
    next_work: u64,
    /// How long values can get.
    value_room: ValueRoom,
    /// The ticks that the last batch of updates took, and about as many the next one will.
    batch_ticks: u64,
    counters: Arc<Counters>,
    /// Whether there is room in memory for updates, if there is a budget.
    has_room_to_write: bool,
    /// Pages that lookups have read, as far as the memory budget has room for them.
    cache: Option<CacheShare>,
    /// Capacity of the memtable.
    capacity: Capacity,
    grant: TableGrant,
    /// Blob files of the references given out since the last update; shared with the
    /// duplicates made since then, which the references are as valid for.
    anchor: Arc<Mutex<Anchor>>,
    session: Registered,
}

/// Sources that are kept although the table may no longer need them: a merge or a union that
/// another holder completes lets go of its inputs.
#[derive(Debug, Default)]
struct Anchor {
    buffers: Vec<Memtable>,
    /// By address, since a run may be there more than once.
    runs: BTreeMap<usize, Arc<Run>>,
}

impl Anchor {
    /// Keeps what these results of a lookup refer to. Nothing but an update brings other write
    /// buffers.
    fn keep(&mut self, results: &[Lookup], buffers: &[Memtable]) {
        for blob in results.iter().filter_map(Lookup::blob).filter(|blob| !blob.is_empty()) {
            match blob.run() {
                Some(run) => {
                    self.runs.entry(Arc::as_ptr(&run).addr()).or_insert(run);
                }
                None if self.buffers.is_empty() => {
                    let buffers = buffers.iter().filter(|buffer| buffer.has_blobs());
                    self.buffers = buffers.cloned().collect();
                }
                None => {}
            }
        }
    }
}

/// Work that a batch needs before it can be applied within a moment.
#[derive(Debug)]
pub(crate) enum SlowWork {
    Nothing,
    /// Shares of compactions, which may be done in place.
    Shares(DueShares),
    /// A flush, or reads: the batch is applied to this copy, which then takes the place of the
    /// table.
    Copy(Box<Table>),
}

/// Whether a batch does the merge work that is due with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shares {
    InCall,
    /// It was done before.
    Done,
}

/// How to take a batch back.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// In the write buffer, unless a flush has taken it away.
    undo: Option<Undo>,
    /// The table as it was when a flush took the buffer away, and how to take the batch back there.
    before: Option<(Levels, Undo)>,
}

impl Table {
    /// A table that has been entered in the session.
    pub(crate) fn new(session: Registered, tree: Levels, config: TableConfig) -> Self {
        let cache = new_cache(&session, &config);
        let mut table = Self::with_cache(session, tree, config, cache);
        table.join_session_memory();
        table.limit_cache(&table.tree);
        table
    }

    fn with_cache(
        session: Registered,
        tree: Levels,
        config: TableConfig,
        cache: Option<CacheShare>,
    ) -> Self {
        event!(DEBUG, "table.newed", session.dir(), table = session.id());
        Self {
            cache,
            capacity: Capacity::of(&config, None),
            grant: TableGrant::default(),
            tree,
            config,
            next_work: 0,
            value_room: ValueRoom::default(),
            batch_ticks: 0,
            counters: Arc::default(),
            has_room_to_write: false,
            anchor: Arc::default(),
            session,
        }
    }

    fn context(&self) -> CompactionEnv<'_> {
        context(&self.session, &self.config, self.capacity)
    }

    fn lookup_context(&self) -> LookupEnv<'_> {
        LookupEnv {
            salt: self.session.salt(),
            queue_depth: self.config.queue_depth as usize,
            operator: &self.config.merge_operator,
            cache: self.cache.as_ref().map(CacheShare::cache),
            spare: self.session.spare_pages(),
            idle: None,
        }
    }

    /// Counts something for this handle and for the session.
    fn count(&self, add: impl Fn(&Counters)) {
        add(&self.counters);
        add(self.session.counters());
    }

    /// The time, for telling how long a call took.
    fn clock(&self) -> Duration {
        self.session.disk().clock().monotonic()
    }

    fn took(&self, start: Duration) -> Duration {
        self.clock().saturating_sub(start)
    }

    /// The table's configuration.
    #[must_use]
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Changes the configuration. The content stays the same, whatever is changed.
    ///
    /// In force with the next update: `compaction_schedule`, `compaction_thread`,
    /// `compaction_batch_pages` and the write buffer, which is flushed earlier or later than it
    /// would have been; with the next lookup: `queue_depth`. With the next flush:
    /// `compaction_policy` and `size_ratio`, level by level as runs arrive there; a merge that is
    /// wanted earlier than it had been planned for is completed at once. For runs written from then
    /// on: `filter`, `index`, `disk_cache`; a lower `memory_budget` also folds filters that are
    /// there, for all tables that share the runs. `merge_operator` stays as it is. Duplicates and
    /// snapshots made before keep theirs.
    ///
    /// Cost: no I/O.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], also for another merge operator and for a memory budget that the
    /// indexes of this table would not leave room in, or that of the session has no room for;
    /// [`Error::SessionClosed`]. Nothing has changed
    /// then.
    pub fn set_config(&mut self, config: &TableConfig) -> Result<()> {
        self.session.check_open()?;
        event!(DEBUG, "table.set_config", self.session.dir(), table = self.session.id());
        config.validate()?;

        let refused = |option, value, allowed| Error::InvalidConfig { option, value, allowed };
        if config.merge_operator != self.config.merge_operator {
            let value = config.merge_operator.name().to_owned();
            let kept = self.config.merge_operator.name();
            let allowed = format!("{kept}, which the table was made with");
            return Err(refused("merge_operator", value, allowed));
        }

        if let Some(budget) = config.memory_budget
            && (config.memory_budget, config.memory_goal)
                != (self.config.memory_budget, self.config.memory_goal)
        {
            let least = budget_min(self.stats().index_bytes, config.memory_goal);
            check_budget(budget, least, "for a table of this size")?;
        }

        let had = self.grant.own().map_or(0, |grant| grant.own_budget());
        self.session.check_own_budget(config, had)?;

        let now = self.tree.now(&self.context());
        self.config = config.clone();
        self.capacity = Capacity::of(config, None);
        self.cache = new_cache(&self.session, config);
        self.join_session_memory();

        if std::mem::take(&mut self.has_room_to_write) {
            self.make_room_to_write();
        } else {
            self.limit_cache(&self.tree);
        }

        // Time has another measure now.
        self.next_work = 0;
        if config.memory_budget.is_some() {
            self.tree.untimed = 0;
        } else if self.tree.untimed > 0 {
            self.tree.set_time(&context(&self.session, &self.config, self.capacity), now);
        }

        event!(DEBUG, "table.config_set", self.session.dir(), table = self.session.id());
        Ok(())
    }

    /// Sets the value of a key.
    ///
    /// Cost: no read. Written about `size_ratio · levels / 2` times in the end, in whole pages, by
    /// merges that this and later updates do their share of.
    ///
    /// # Errors
    /// The errors of [`write_batch`](Self::write_batch).
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write_batch(&[(key, Update::Insert(value))])
    }

    /// Sets the value of a key and its blob, which lookups refer to but do not read. Cost: as
    /// [`insert`](Self::insert) of a value as long as both.
    ///
    /// # Errors
    /// The errors of [`write_batch`](Self::write_batch).
    pub fn insert_with_blob(&mut self, key: &[u8], value: &[u8], blob: &[u8]) -> Result<()> {
        self.write_batch(&[(key, Update::InsertWithBlob(value, blob))])
    }

    /// Sets the value of a key that is absent; otherwise combines it with the old value by the
    /// table's merge operator, without reading. Removes the key's blob. Cost: as
    /// [`insert`](Self::insert).
    ///
    /// # Errors
    /// The errors of [`write_batch`](Self::write_batch).
    pub fn upsert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write_batch(&[(key, Update::Upsert(value))])
    }

    /// Removes a key; no effect if it is absent. Cost: as [`insert`](Self::insert).
    ///
    /// # Errors
    /// The errors of [`write_batch`](Self::write_batch).
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.write_batch(&[(key, Update::Delete)])
    }

    /// Removes all keys in a range.
    ///
    /// Cost: no read and no write, whatever the range holds: a reference for each run and each
    /// segment of the write buffer, which the table sees without the range from then on. Merges
    /// leave out what is deleted, and files go when nobody needs them; what a merge does not come
    /// to stays on the disk until [`compact`](Self::compact). Where a run has 1,000 ranges to be
    /// left out already that do not touch this one, up to 4,096 keys of the range are read, and if
    /// it has fewer these are deleted one by one.
    ///
    /// # Errors
    /// The errors of [`write_batch`](Self::write_batch), and [`Cursor::next_ref`] where keys are
    /// read. After any error the table is as it was before.
    pub fn delete_range<K: AsRef<[u8]> + ?Sized, R: RangeBounds<K>>(
        &mut self,
        range: R,
    ) -> Result<()> {
        self.delete_over(&KeyRange::new(&range))
    }

    /// Removes all keys that begin with `prefix`: as [`delete_range`](Self::delete_range).
    ///
    /// # Errors
    /// The errors of [`delete_range`](Self::delete_range).
    pub fn delete_prefix(&mut self, prefix: &[u8]) -> Result<()> {
        self.delete_over(&KeyRange::prefix(prefix))
    }

    fn delete_over(&mut self, range: &KeyRange) -> Result<()> {
        match Span::of(range) {
            Some(Span { from, end }) => {
                self.write_batch(&[(from, Update::DeleteRange(end.as_deref()))])
            }
            None => self.session.check_writable(),
        }
    }

    /// Applies a batch of any size, in its order: the same as one by one, but all or nothing.
    ///
    /// Cost: that of each of its updates, as [`insert`](Self::insert) says.
    ///
    /// # Errors
    /// [`Error::KeyTooLarge`], [`Error::ValueTooLarge`], [`Error::UpsertTooLarge`] (upserts grow to
    /// such a value), [`Error::BlobTooLarge`], [`Error::TableTooLarge`], [`Error::Disk`] (a merge
    /// or a flush failed; call again after making space), [`Error::OutOfSpace`] (of a session with
    /// a reserve, unless all are deletions), [`Error::Corrupt`] (a merge met a damaged page),
    /// [`Error::Poisoned`], [`Error::SessionClosed`]. After any error the table is as it was before
    /// the call.
    #[doc(alias("updates", "put_many"))]
    pub fn write_batch<K: AsRef<[u8]>>(&mut self, batch: &[(K, Update<'_>)]) -> Result<()> {
        self.session.check_room_for(batch)?;
        self.apply_batch(batch).map(drop)
    }

    /// Applies a batch that may be taken back as long as nothing else is done to the table.
    ///
    /// # Errors
    /// The errors of [`write_batch`](Self::write_batch).
    pub(crate) fn apply_batch<K: AsRef<[u8]>>(
        &mut self,
        batch: &[(K, Update<'_>)],
    ) -> Result<Applied> {
        self.apply_as(batch, Shares::InCall)
    }

    /// The same for a batch whose [slow work](Self::slow_work) is done.
    ///
    /// Cost: no I/O.
    ///
    /// # Errors
    /// The errors of [`write_batch`](Self::write_batch).
    pub(crate) fn apply_ready<K: AsRef<[u8]>>(
        &mut self,
        batch: &[(K, Update<'_>)],
    ) -> Result<Applied> {
        self.apply_as(batch, Shares::Done)
    }

    /// Slow work that a batch needs before it is [applied](Self::apply_ready).
    ///
    /// Cost: no I/O; for a copy as [`fork`](Self::fork).
    ///
    /// # Errors
    /// Those of [`write_batch`](Self::write_batch) for what is too long; [`Error::SessionClosed`].
    pub(crate) fn slow_work<K: AsRef<[u8]>>(&self, batch: &[(K, Update<'_>)]) -> Result<SlowWork> {
        let (room, _) = check_batch(batch)?;
        let after = self.tree.time_after(&self.context(), room);
        debug_assert!(after <= self.tree.next_flush(), "time waits for the flush");
        let must_flush = after >= self.tree.next_flush() || self.must_make_room();
        if self.must_read(batch, room.bytes as u64) || must_flush {
            return Ok(SlowWork::Copy(Box::new(self.copy()?)));
        }
        if after < self.next_work {
            return Ok(SlowWork::Nothing);
        }
        Ok(SlowWork::Shares(DueShares {
            session: Arc::clone(&self.session),
            work: ShareConfig::of(&self.config),
            pending: self.tree.pending().cloned().collect(),
            now: after,
        }))
    }

    /// Whether a batch may have to read keys: before it deletes a range, or before it upserts.
    fn must_read<K: AsRef<[u8]>>(&self, batch: &[(K, Update<'_>)], bytes: u64) -> bool {
        let mut has_upsert = false;
        let mut ranges = 0;
        for (key, update) in batch {
            match update {
                Update::DeleteRange(end) => {
                    ranges += 1;
                    let from = key.as_ref().to_vec();
                    let span = Span { from, end: end.map(<[u8]>::to_vec) };
                    // Masks that have room for one span may have none for the next.
                    if ranges > 1 || !self.tree.has_room_for(&span) {
                        return true;
                    }
                }
                Update::Upsert(_) => has_upsert = true,
                _ => {}
            }
        }

        let limit = self.config.merge_operator.value_bytes_max() as u64;
        has_upsert && !self.value_room.has_room(bytes, limit)
    }

    /// A fork that counts for this table, for slow work while nothing else changes the table; see
    /// [`adopt`](Self::adopt).
    ///
    /// # Errors
    /// The errors of [`fork`](Self::fork).
    pub(crate) fn copy(&self) -> Result<Self> {
        let mut copy = self.fork()?;
        copy.tree.written_bytes = self.tree.written_bytes;
        copy.counters = Arc::clone(&self.counters);
        copy.batch_ticks = self.batch_ticks;
        copy.grant = self.grant.clone();
        Ok(copy)
    }

    /// Becomes what its [copy](Self::copy) is; the copy has what the table was, for the caller to
    /// drop. Cost: no I/O.
    pub(crate) fn adopt(&mut self, copy: &mut Self) {
        debug_assert!(Arc::ptr_eq(&self.counters, &copy.counters), "a copy of this table");
        std::mem::swap(&mut self.tree, &mut copy.tree);
        std::mem::swap(&mut self.anchor, &mut copy.anchor);
        self.next_work = copy.next_work;
        self.value_room = copy.value_room;
        self.batch_ticks = copy.batch_ticks;
        self.has_room_to_write = copy.has_room_to_write;
        self.capacity = copy.capacity;
        self.grant = copy.grant.clone();
        self.limit_cache(&self.tree);
    }

    fn apply_as<K: AsRef<[u8]>>(
        &mut self,
        batch: &[(K, Update<'_>)],
        shares: Shares,
    ) -> Result<Applied> {
        self.session.check_writable()?;
        let start = self.clock();
        let id = self.session.id();
        event!(TRACE, "table.updates", self.session.dir(), table = id, count = batch.len());
        let (room, blob_bytes) = check_batch(batch)?;
        let bytes = (room.bytes + blob_bytes) as u64;

        if batch.is_empty() {
            return Ok(Applied::default());
        }
        let tries_upserts = self.tries_upserts(batch, room.bytes as u64);
        debug_assert!(shares == Shares::InCall || !tries_upserts, "a batch that reads is slow");
        // An update ends the validity of blob references given out before, so the anchor lets go of
        // their sources.
        self.anchor = Arc::default();
        self.make_room_to_write();
        if self.shares_session_memory() {
            match shares {
                Shares::InCall => self.make_room_in_session(),
                Shares::Done => self.renew_grant(),
            }
        }

        let room = match self.capacity {
            Capacity::Charged(_) => Room::default(),
            _ => self.tree.room_for(&self.context(), room),
        };

        let undo = Some(self.tree.buffer.begin(room, &self.config.merge_operator)?);
        let mut applied = Applied { undo, before: None };
        let ticks = self.tree.now(&self.context());

        // A merge operator that panics leaves a part of the batch behind. A merge that it was
        // called by begins anew by itself.
        let done = catch_unwind(AssertUnwindSafe(|| match shares {
            Shares::InCall => self.apply(batch, &mut applied, tries_upserts),
            Shares::Done => self.put_all(batch, &mut applied),
        }));
        match done {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.take_back(applied);
                return Err(error);
            }
            Err(panic) => {
                self.take_back(applied);
                resume_unwind(panic);
            }
        }

        // `merge_ahead` assumes that the next batch takes as many ticks as this one.
        self.batch_ticks = self.tree.now(&self.context()).saturating_sub(ticks);
        self.note_buffers();
        let time = self.took(start);
        self.count(|counters| {
            counters.add_updates(batch.len() as u64, bytes);
            counters.update_times.record(time);
        });

        event!(TRACE, "table.updated", self.session.dir(), table = id);
        Ok(applied)
    }

    /// Applies a batch out of the log. No merge is due for it, since time stands still for what
    /// comes this way: the write buffer grows beyond its capacity. If it weighs `flush_at` bytes or
    /// more after that, and is full, it is flushed, with all that its flush makes due; it never is
    /// without that bound. But a table with a memory budget, or of a session with one, keeps to it,
    /// unless there is no bound: the batch is then applied as any other.
    ///
    /// Cost: no I/O but that of a flush, and of reading a range that is deleted key by key.
    ///
    /// # Errors
    /// The errors of [`write_batch`](Self::write_batch). The batch may have been applied in part
    /// then.
    pub(crate) fn replay<K: AsRef<[u8]>>(
        &mut self,
        batch: &[(K, Update<'_>)],
        flush_at: Option<u64>,
    ) -> Result<()> {
        let has_budget = self.config.memory_budget.is_some() || self.session.memory().is_some();
        if has_budget && flush_at.is_some() {
            // What was committed counts, also on a full disk.
            return self.apply_batch(batch).map(drop);
        }

        if batch.is_empty() {
            return Ok(());
        }
        self.anchor = Arc::default();
        self.make_room_to_write();
        let (room, _) = check_batch(batch)?;
        self.value_room.note(room.bytes as u64);
        // Replayed updates pass no time, so `set_time` restores this moment at the end.
        let now = self.tree.now(&self.context());
        self.tree.buffer.begin(room, &self.config.merge_operator)?;

        for (key, update) in batch {
            match *update {
                Update::DeleteRange(end) => {
                    self.delete_span(key.as_ref(), end, &mut Applied::default())?;
                }
                update => self.put(key.as_ref(), update, None)?,
            }
        }

        if flush_at.is_some_and(|bytes| self.tree.buffer.weight_bytes() >= bytes)
            && self.tree.is_full(&self.context())
        {
            // The flush schedules new compactions, so the next update looks for due work again.
            self.tree = self.flush()?;
            self.next_work = 0;
        } else {
            self.tree.set_time(&context(&self.session, &self.config, self.capacity), now);
            // The write buffer may take more than what was set aside for it.
            self.limit_cache(&self.tree);
        }

        self.note_buffers();
        Ok(())
    }

    /// Notes a batch of so many bytes; says whether its upserts must be tried, since they may make
    /// values that are too long.
    fn tries_upserts<K>(&mut self, batch: &[(K, Update<'_>)], bytes: u64) -> bool {
        let limit = self.config.merge_operator.value_bytes_max() as u64;
        let mut has_room = self.value_room.has_room(bytes, limit);
        if !has_room {
            let is_upsert = |(_, update): &(K, Update<'_>)| matches!(update, Update::Upsert(_));
            // Without upserts nothing grows.
            if batch.iter().any(is_upsert) {
                self.value_room.measure(&self.tree.buffer, &self.tree.sources(), limit);
                has_room = self.value_room.has_room(bytes, limit);
            } else {
                has_room = true;
            }
        }

        self.value_room.note(bytes);
        !has_room
    }

    /// Refuses an upsert that makes too long a value of what its key has.
    fn try_upsert(&self, key: &[u8], operand: &[u8]) -> Result<()> {
        let stored = self.get(key)?;
        let Some(stored) = stored.value() else { return Ok(()) };

        let mut combined = operand.to_vec();
        match self.config.merge_operator.combine(&mut combined, stored) {
            Err(Error::ValueTooLarge { bytes, limit }) => Err(Error::UpsertTooLarge {
                key: key.to_vec(),
                stored_bytes: stored.len(),
                operand_bytes: operand.len(),
                bytes,
                limit,
            }),
            combined => combined,
        }
    }

    /// Puts an update into the write buffer, in which a batch has been begun.
    fn put(&mut self, key: &[u8], update: Update<'_>, undo: Option<&mut Undo>) -> Result<()> {
        let salt = self.session.salt();
        let resolve = &self.config.merge_operator;
        self.tree.buffer.put_update((key, update), salt, resolve, undo)
    }

    /// Makes the table what it was before a batch, the last thing that was done to it.
    pub(crate) fn take_back(&mut self, applied: Applied) {
        let Applied { mut undo, before } = applied;
        // If a flush replaced the tree within the batch, the undo belongs to the tree before the
        // flush.
        if let Some((tree, taken)) = before {
            self.tree = tree;
            self.limit_cache(&self.tree);
            undo = Some(taken);
        }
        if let Some(undo) = undo {
            self.tree.buffer.roll_back(&undo);
        }
        // The schedule was made for the tree that has just gone, so the next update looks for due
        // work.
        self.next_work = 0;
    }

    fn apply<K: AsRef<[u8]>>(
        &mut self,
        batch: &[(K, Update<'_>)],
        applied: &mut Applied,
        tries_upserts: bool,
    ) -> Result<()> {
        // Below this size of the write buffer no work is due, so most updates skip the schedule.
        let mut next_size = 0;
        for (key, update) in batch {
            if let Update::Upsert(operand) = update
                && tries_upserts
            {
                self.try_upsert(key.as_ref(), operand)?;
            }

            match *update {
                Update::DeleteRange(end) => {
                    if self.delete_span(key.as_ref(), end, applied)? {
                        // Time has not passed; if the write buffer has gone, with all there was, it
                        // begins anew.
                        next_size = 0;
                        continue;
                    }
                }
                update => self.put(key.as_ref(), update, applied.undo.as_mut())?,
            }

            let context = self.context();
            if self.tree.buffer_size(&context) < next_size {
                continue;
            }

            let now = self.tree.now(&context);
            if now >= self.next_work {
                // The flush comes first: the work below then includes what the flush makes due.
                if now >= self.tree.next_flush() {
                    self.replace_tree(self.flush()?, applied);
                }
                self.work()?;
            }

            next_size = self.tree.size_at(&self.context(), self.next_work);
        }

        Ok(())
    }

    /// Applies a batch whose slow work is done.
    fn put_all<K: AsRef<[u8]>>(
        &mut self,
        batch: &[(K, Update<'_>)],
        applied: &mut Applied,
    ) -> Result<()> {
        for (key, update) in batch {
            match *update {
                Update::DeleteRange(end) => {
                    let is_masked = self.delete_span(key.as_ref(), end, applied)?;
                    debug_assert!(is_masked, "masks had room for the span");
                }
                update => self.put(key.as_ref(), update, applied.undo.as_mut())?,
            }
        }

        // If the memtable has grown further than was foreseen, the next batch does the rest.
        if self.tree.now(&self.context()) >= self.next_work {
            self.plan_work();
        }
        Ok(())
    }

    /// Deletes a range as an update of a batch: true if masks do it, false if its keys were deleted
    /// one by one.
    #[cold]
    fn delete_span(
        &mut self,
        from: &[u8],
        end: Option<&[u8]>,
        applied: &mut Applied,
    ) -> Result<bool> {
        let span = Span { from: from.to_vec(), end: end.map(<[u8]>::to_vec) };
        if !self.tree.has_room_for(&span) {
            // Without room for another span, a range of few keys is deleted key by key, which needs
            // no span.
            let keys = self.cursor_over(span.range())?.next_keys(MASKED_KEYS_MIN)?;
            if keys.len() < MASKED_KEYS_MIN {
                for key in &keys {
                    self.put(key, Update::Delete, applied.undo.as_mut())?;
                }
                return Ok(false);
            }
        }

        self.replace_tree(self.tree.without(&span), applied);
        self.next_work = 0;
        Ok(true)
    }

    /// Goes over to another tree within a batch. What it was before is kept, if it may be asked
    /// for.
    fn replace_tree(&mut self, next: Levels, Applied { undo, before }: &mut Applied) {
        let old = std::mem::replace(&mut self.tree, next);
        // Only the first replacement in a batch keeps the old tree: `undo` belongs to that tree.
        *before = before.take().or(undo.take().map(|undo| (old, undo)));
    }

    /// Whether lookups may do merge work that the next batch of updates will ask for.
    fn can_merge_ahead(&self) -> bool {
        self.batch_ticks > 0
            && self.config.compaction_thread == CompactionThread::Caller
            && self.config.compaction_schedule == CompactionSchedule::Incremental
    }

    /// Does a page of merge work that the next batch of updates will ask for, and says whether it
    /// could be done now; `None` if there is none.
    fn merge_ahead(&self) -> Result<Option<bool>> {
        // The next batch of updates will ask for all work up to this moment.
        let soon = self.tree.now(&self.context()) + self.batch_ticks;
        let mut done = None;
        for ScheduledCompaction { compaction, .. } in
            self.tree.pending().filter(|pending| pending.compaction.done() < pending.required(soon))
        {
            if compaction.advance_unasked()? {
                return Ok(Some(true));
            }
            // Another caller holds this compaction, so the loop tries the next one.
            done = Some(false);
        }
        Ok(done)
    }

    fn flush(&self) -> Result<Levels> {
        let context = self.context();
        let mut next = self.tree.flush(&context)?;
        // The page cache gives way before the new tree is in use, so that both fit the budget.
        self.limit_cache(&next);
        if self.config.compaction_schedule == CompactionSchedule::OneShot {
            let with_flush_finished = next.with_flush_finished(&context);
            // The table stays as it is if that failed.
            self.limit_cache(with_flush_finished.as_ref().unwrap_or(&self.tree));
            next = with_flush_finished?;
        }
        Ok(next)
    }

    /// Does the merge work that is due by now, and finds out when the next is.
    fn work(&mut self) -> Result<()> {
        let now = self.tree.now(&self.context());
        let work = ShareConfig::of(&self.config);
        for pending in self.tree.pending() {
            work.run(&self.session, pending, now)?;
        }
        self.plan_work();
        Ok(())
    }

    /// Finds out when the next merge work is due.
    fn plan_work(&mut self) {
        let now = self.tree.now(&self.context());
        let work = ShareConfig::of(&self.config);
        let next = self.tree.pending().filter_map(|pending| work.next_share(pending, now)).min();
        let flush = self.tree.next_flush();
        self.next_work = next.map_or(flush, |next| next.min(flush));
    }

    /// The merges that are under way, and how far each must be when the next flush begins.
    pub(crate) fn work_ahead(&self) -> Vec<(Arc<Compaction>, u64)> {
        let moment = self.tree.next_flush();
        let pending = self.tree.pending();
        pending.map(|merge| (Arc::clone(&merge.compaction), merge.required(moment))).collect()
    }

    /// Begins the flush of the write buffer, unless it is empty; returns the flush that is under
    /// way then, if there is one.
    ///
    /// Cost: what is left of [`work_ahead`](Self::work_ahead).
    pub(crate) fn begin_flush(&mut self) -> Result<Option<Arc<Compaction>>> {
        if !self.tree.buffer.is_empty() {
            self.anchor = Arc::default();
            self.make_room_to_write();
            self.tree = self.flush()?;
            self.next_work = 0;
        }
        Ok(self.tree.flushing.as_ref().map(|flush| Arc::clone(&flush.compaction)))
    }

    /// Begins a merge of all runs; `None` if there is nothing for it to do. Cost: no I/O.
    pub(crate) fn begin_compaction(&mut self) -> Option<Arc<Compaction>> {
        self.make_room_to_write();
        let (tree, compaction) = self.tree.compacting(&self.context())?;
        self.anchor = Arc::default();
        self.set_tree(tree);
        Some(compaction)
    }

    /// Ends such a merge, whether it is complete or not. Cost: no I/O.
    pub(crate) fn end_compaction(&mut self, compaction: &Arc<Compaction>) {
        self.set_tree(self.tree.compacted(&self.context(), compaction));
    }

    fn set_tree(&mut self, tree: Levels) {
        self.tree = tree;
        self.next_work = 0;
        self.limit_cache(&self.tree);
    }

    /// Whether it is a table of that session.
    pub(crate) fn is_of(&self, session: &Arc<SessionInner>) -> bool {
        Arc::ptr_eq(&*self.session, session)
    }

    /// Refuses what changes the files of a session that is closed, poisoned or read only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.session.check_writable()
    }

    /// Looks up one key. Cost: as for a batch of one.
    ///
    /// # Errors
    /// The errors of [`get_many`](Self::get_many).
    #[doc(alias("lookup"))]
    pub fn get(&self, key: &[u8]) -> Result<Lookup> {
        let mut results = self.get_many(&[key])?;
        Ok(results.pop().unwrap_or(Lookup::NotFound))
    }

    /// Looks up a batch of any size; results in the order of the keys, which may repeat.
    ///
    /// Cost: a key decided by the write buffer, none; a page that the table's cache has, none; a
    /// key that is present, 1 page read and for each newer run as many as its filter's
    /// false-positive rate; an absent key only the latter: at the default configuration together at
    /// most 0.01. Reads of a batch run side by side. Held by the test `budgets`.
    ///
    /// # Errors
    /// [`Error::Disk`] if a read fails, [`Error::Corrupt`] if a page fails its checks,
    /// [`Error::SessionClosed`]; no partial result.
    #[doc(alias("multi_get", "lookups"))]
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Lookup>> {
        let (results, plan) = self.look_up(keys, Vec::with_capacity(keys.len()))?;
        // Blob references stay readable until the next update: the anchor holds their files.
        if results.iter().any(|result: &Lookup| result.blob().is_some()) {
            lock(&self.anchor).keep(&results, &plan.buffers);
        }
        Ok(results)
    }

    /// Like [`get_many`](Self::get_many), but the values go to memory that the caller keeps for
    /// further batches: a key that the memtable decides costs no allocation. Blobs are not told.
    /// After an error there are no values.
    ///
    /// # Errors
    /// The errors of [`get_many`](Self::get_many).
    pub fn get_many_into<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<()> {
        values.clear();
        let result = self.look_up(keys, &mut *values).map(|_| ());
        if result.is_err() {
            values.clear();
        }
        result
    }

    fn look_up<K: AsRef<[u8]>, A: Answers>(
        &self,
        keys: &[K],
        answers: A,
    ) -> Result<(A, Arc<Plan>)> {
        self.session.check_open()?;
        let start = self.clock();
        let id = self.session.id();
        event!(TRACE, "table.lookups", self.session.dir(), table = id, count = keys.len());
        // While reads are in flight, the calling thread does merge work that updates will ask for.
        let ahead = MergeAhead { table: self, is_over: Cell::new(false) };
        let idle: Option<&dyn Idle> = if self.can_merge_ahead() { Some(&ahead) } else { None };
        let context = LookupEnv { idle, ..self.lookup_context() };
        let (answers, plan, tally) = lookup_batch(&self.tree, &context, keys, answers)?;

        let time = self.took(start);
        self.count(|counters| {
            counters.add_lookups(&tally);
            counters.lookup_times.record(time);
        });
        Ok((answers, plan))
    }

    /// Begins a batch of lookups whose results are taken later. Any number of threads may do so; up
    /// to [`SUBMITTED_MAX`](crate::SUBMITTED_MAX) batches of a session may be under way. The
    /// results are those of this moment, whatever is done to the table afterwards; references to
    /// blobs are valid as those of [`get_many`](Self::get_many) at this moment.
    ///
    /// Cost: as [`get_many`](Self::get_many). What needs no read is done here; the reads of all
    /// batches of a session are done by one thread, which is started when it is first needed,
    /// through one queue.
    ///
    /// # Errors
    /// [`Error::TooManyLookups`], [`Error::SessionClosed`], [`Error::UpsertTooLarge`]; the others
    /// come with the results.
    pub fn submit<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<PendingLookups> {
        self.session.check_open()?;
        let start = self.clock();
        let id = self.session.id();
        event!(TRACE, "table.submit", self.session.dir(), table = id, count = keys.len());
        let context = self.lookup_context();
        // The reads outlive this call, so the batch owns its keys.
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.as_ref().to_vec()).collect();
        let (batch, ready) = begin_batch(&self.tree, &context, &keys)?;
        let call = self.session.register(Holder::Call);
        let resolve = self.config.merge_operator.clone();
        let counters = Arc::clone(&self.counters);
        // The batch keeps the anchor of this moment, which a later update replaces in the table.
        let anchor = Arc::clone(&self.anchor);

        let conclude = Box::new(move |batch: Batch, keys: &[Vec<u8>]| {
            let (results, plan, tally) = batch.conclude(keys, &resolve)?;
            lock(&anchor).keep(&results, &plan.buffers);
            let time = call.disk().clock().monotonic().saturating_sub(start);
            for counters in [&*counters, call.counters()] {
                counters.add_lookups(&tally);
                counters.lookup_times.record(time);
            }
            Ok(results)
        });

        let submitted = Submitted { keys, batch, ready, conclude };
        self.session.lookup_thread().submit(self.session.files().disk(), submitted)
    }

    /// Whether the keys are present, in their order. No blob is read. Cost: as
    /// [`get_many`](Self::get_many).
    ///
    /// # Errors
    /// The errors of [`get_many`](Self::get_many).
    pub fn contains<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<bool>> {
        Ok(self.get_many(keys)?.iter().map(Lookup::is_found).collect())
    }

    /// The union of some tables of one session; see [`Session::incremental_union`](crate::Session).
    pub(crate) fn incremental_union(session: &Arc<SessionInner>, tables: &[&Self]) -> Result<Self> {
        session.check_writable()?;
        // The union takes the configuration of the last table, so every table is compared with the
        // last.
        let Some(last) = tables.last() else { return Err(Error::UnionOfNothing) };
        for (at, table) in tables.iter().enumerate() {
            let differ = |what: &str| Error::TableUnionNotCompatible {
                left: at,
                right: tables.len() - 1,
                reason: what.to_owned(),
            };
            if !Arc::ptr_eq(&*table.session, session) {
                return Err(differ("not all of them are tables of this session"));
            }
            if table.config.merge_operator != last.config.merge_operator {
                let left = table.config.merge_operator.name();
                let right = last.config.merge_operator.name();
                return Err(differ(&format!("merge operators `{left}` and `{right}`")));
            }
        }

        // A union of one table has nothing to merge, so a fork will do.
        if let [table] = tables {
            return table.fork();
        }
        let trees: Vec<&Levels> = tables.iter().map(|table| &table.tree).collect();
        let registered = session.register(Holder::Table);
        let inputs: Vec<u64> = tables.iter().map(|table| table.session.id()).collect();
        let id = registered.id();
        event!(DEBUG, "table.new", session.dir(), table = id, union_of = ?inputs);
        let tree = Levels::unite(&CompactionEnv { table: id, ..last.context() }, &trees)?;
        Ok(Self::new(registered, tree, last.config.clone()))
    }

    /// Upper bound of the work left until the union of the table is one run, in entries to merge. 0
    /// for a table that is no union, or no more. It never rises. Cost: no I/O.
    #[must_use]
    pub fn remaining_union_debt(&self) -> u64 {
        event!(TRACE, "table.union_debt", self.session.dir(), table = self.session.id());
        // A union that is not yet folded into the levels is unfinished, so its debt is at least 1.
        self.tree.union.as_ref().map_or(0, |union| union.debt().max(1))
    }

    /// Does at least `credits` entries' worth of the work of the table's union, or all that is
    /// left, and returns the credits that were not needed: if any, the union is complete. The debt
    /// falls by at least `credits`, for all tables that share the union.
    ///
    /// Cost: pages of the entries merged, read once and written once; what is merged is read with
    /// one page for each key from then on.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Corrupt`], [`Error::TableTooLarge`],
    /// [`Error::Poisoned`], [`Error::SessionClosed`]. What was done before stays done.
    pub fn supply_union_credits(&mut self, credits: u64) -> Result<u64> {
        self.session.check_writable()?;
        let id = self.session.id();
        let dir = self.session.dir();
        event!(TRACE, "table.supply_union_credits", dir, table = id, credits);

        let Some(union) = self.tree.union.clone().filter(|_| credits > 0) else {
            return Ok(credits);
        };
        self.anchor = Arc::default();
        self.make_room_to_write();
        let unused = union.supply(credits)?;
        let mut tree = self.tree.clone();
        tree.fold_union(&self.context());
        self.tree = tree;
        event!(TRACE, "table.union_credits_supplied", self.session.dir(), table = id, unused);
        Ok(unused)
    }

    /// An independent, writable table of the same content.
    ///
    /// Cost: no I/O; a reference count for each run and each segment of the write buffer.
    ///
    /// # Errors
    /// [`Error::SessionClosed`].
    #[doc(alias("duplicate", "clone"))]
    pub fn fork(&self) -> Result<Self> {
        self.session.check_open()?;
        let session = self.session.register(Holder::Table);
        let (id, original) = (session.id(), self.session.id());
        event!(DEBUG, "table.new", session.dir(), table = id, duplicate_of = original);
        // The fork itself has written nothing yet.
        let tree = Levels { written_bytes: 0, ..self.tree.clone() };
        let cache = self.cache.as_ref().map(CacheShare::share);
        let mut copy = Self::with_cache(session, tree, self.config.clone(), cache);
        copy.next_work = self.next_work;
        copy.value_room = self.value_room;
        copy.has_room_to_write = self.has_room_to_write;
        copy.capacity = self.capacity;
        copy.anchor = Arc::clone(&self.anchor);
        copy.grant = self.grant.for_fork();

        if !self.has_room_to_write {
            // Either may now advance the merges of both; who is updated has set memory aside for
            // that.
            self.limit_cache(&self.tree);
            copy.limit_cache(&copy.tree);
        }

        Ok(copy)
    }

    /// Saves the table as it is now under a name; durable when this returns. The table stays
    /// usable. `label` is checked on opening; it is meant to say what the table holds.
    ///
    /// Cost: finishes the flush under way, writes the write buffer, at most 130 pages of each merge
    /// under way and one small file, and syncs these merges and the runs that no earlier snapshot
    /// has synced: O(runs) file operations.
    ///
    /// # Errors
    /// [`Error::SnapshotExists`], [`Error::LabelTooLarge`], [`Error::SnapshotTooLarge`],
    /// [`Error::Disk`], [`Error::Poisoned`], [`Error::SessionClosed`]. After an error, or a crash,
    /// there is no snapshot of that name, or a whole one.
    pub fn save_snapshot(&self, name: &SnapshotName, label: &str) -> Result<()> {
        let start = self.clock();
        let id = self.session.id();
        event!(DEBUG, "table.save_snapshot", self.session.dir(), table = id, snapshot = %name);
        snapshot::save(&self.session, &self.context(), &self.tree, name, label)?;
        let time = self.took(start);
        self.count(|counters| counters.save_times.record(time));
        event!(DEBUG, "table.saved", self.session.dir(), table = id, snapshot = %name);
        Ok(())
    }

    /// Writes all of the table that is in memory only, durably but for the names of files.
    pub(crate) fn write_out(&self) -> Result<WrittenOut> {
        snapshot::write_out(&self.session, &self.context(), &self.tree, "")
    }

    /// The same with the write buffer written to another session of the same salt. Nothing else may
    /// be in memory only: of a reader's table nothing is.
    pub(crate) fn write_out_to(&self, target: &SessionInner) -> Result<WrittenOut> {
        let context = CompactionEnv { set: target.files(), ..self.context() };
        snapshot::write_out(target, &context, &self.tree, "")
    }

    /// Writes what the table holds now as a stream of bytes that is the same for equal contents,
    /// whatever their history: see `docs/format/canonical.md`. `out` is flushed, not synced.
    ///
    /// Cost: that of a scan, and of reading the blobs.
    ///
    /// # Errors
    /// [`Error::Stream`] if `out` fails, and those of [`Cursor::next_ref`].
    pub fn export_canonical(&self, out: impl Write) -> Result<CanonicalSummary> {
        let id = self.session.id();
        event!(DEBUG, "table.export_canonical", self.session.dir(), table = id);
        canonical::export(&self.session, self.cursor()?, out)
    }

    /// A cursor before the first entry.
    ///
    /// Cost: reads nothing.
    ///
    /// # Errors
    /// [`Error::SessionClosed`].
    pub fn cursor(&self) -> Result<Cursor> {
        self.cursor_over(KeyRange::ALL)
    }

    /// A cursor over the entries from `key` on, before the first of them.
    ///
    /// Cost: reads nothing.
    ///
    /// # Errors
    /// [`Error::SessionClosed`].
    pub fn cursor_at(&self, key: &[u8]) -> Result<Cursor> {
        self.range::<[u8], _>((Bound::Included(key), Bound::Unbounded))
    }

    /// A cursor over the entries whose keys are in `range`, before the first of them: all kinds of
    /// bounds; empty if the lower one is above the upper one. It can be read in both directions.
    ///
    /// Cost: reads nothing. Sorts the entries of the write buffer, as the first read would.
    ///
    /// # Errors
    /// [`Error::SessionClosed`].
    pub fn range<K: AsRef<[u8]> + ?Sized, R: RangeBounds<K>>(&self, range: R) -> Result<Cursor> {
        self.cursor_over(KeyRange::new(&range))
    }

    /// A cursor over the entries whose keys begin with `prefix`, before the first of them.
    ///
    /// Cost: as [`range`](Self::range).
    ///
    /// # Errors
    /// [`Error::SessionClosed`].
    pub fn prefix(&self, prefix: &[u8]) -> Result<Cursor> {
        self.cursor_over(KeyRange::prefix(prefix))
    }

    /// A cursor over a range.
    pub(crate) fn cursor_over(&self, range: KeyRange) -> Result<Cursor> {
        self.session.check_open()?;
        let (session, table) = (self.session.register(Holder::Cursor), self.session.id());
        event!(TRACE, "table.range_lookup", session.dir(), table);
        event!(DEBUG, "cursor.new", session.dir(), cursor = session.id(), table);
        let cache = self.cache.as_ref().map(|share| Arc::clone(share.cache()));
        let operator = self.config.merge_operator.clone();
        Ok(Cursor::new(session, &self.tree, range, operator, cache))
    }

    /// The first entries of many ranges: up to `count` of each, in the order of the ranges, which
    /// may overlap.
    ///
    /// ```
    /// # use terrane_lsm::{Session, SessionOptions, TableConfig};
    /// # let folder = tempfile::tempdir()?;
    /// # let session = Session::open_dir(folder.path(), &SessionOptions::default())?;
    /// # let mut table = session.new_table(&TableConfig::default())?;
    /// table.insert(b"alice/2026", b"7")?;
    /// table.insert(b"carol/2025", b"9")?;
    /// let people = [b"alice/".as_slice().., b"bob/".as_slice()..];
    /// let first = table.scan_many::<&[u8], _>(&people, 1)?;
    /// assert_eq!(first[0][0].key, b"alice/2026");
    /// assert_eq!(first[1][0].key, b"carol/2025");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Cost: as many pages as a cursor at each range would read for its first entry, those that the
    /// table's cache has left out; 64 ranges are read side by side. Entries on further pages cost
    /// what they cost a [cursor](Self::range).
    ///
    /// # Errors
    /// The errors of [`Cursor::next_ref`]; no partial result.
    #[doc(alias("multi_scan", "range_lookups"))]
    pub fn scan_many<K, R>(&self, ranges: &[R], count: usize) -> Result<Vec<Vec<Record>>>
    where
        K: AsRef<[u8]> + ?Sized,
        R: RangeBounds<K>,
    {
        let mut found = Vec::with_capacity(ranges.len());
        for together in ranges.chunks(SCANS_TOGETHER) {
            let prefetcher = self.session.prefetcher();
            let mut cursors = Vec::with_capacity(together.len());
            for range in together {
                let mut cursor = self.cursor_over(KeyRange::new(range))?;
                cursor.ask_first(&prefetcher);
                cursors.push(cursor);
            }
            prefetcher.submit();
            for mut cursor in cursors {
                found.push(cursor.next_many(count)?);
            }
        }
        debug_assert_eq!(found.len(), ranges.len(), "entries of each range");
        Ok(found)
    }

    /// Changes of a newer version of the table: the keys whose value or blob differs between the
    /// two, in key order, each with what both have. Both stay as they are. Any two tables of a
    /// session can be compared, in either order; what they have in common is what makes it cheap.
    ///
    /// Two entries are the same if their values are equal and their blobs are, byte for byte, or
    /// neither has one. Blobs that both tables have in the same place are not read for that; two
    /// others are only if value and length are equal, which reads both: those of up to 1,000 keys
    /// side by side, fewer once they come to 4 MiB.
    ///
    /// Cost: reads nothing yet. Going through it reads, once and in key order, the runs of each
    /// table that are newer than the newest run or write buffer that both have. Keys of which these
    /// say the same in both cost nothing more. The others are looked up in each table whose newer
    /// runs do not decide them, one page for a key that is there, 1,000 keys at a time side by
    /// side. A run that was merged from runs of the other table since the session was opened counts
    /// as these, if all of them are still held by some table or cursor; so of versions that follow
    /// each other at most the last flush of the write buffer is read. For versions so far apart
    /// that most keys differ, two cursors read less. Held by the test `diff`.
    ///
    /// # Errors
    /// [`Error::TablesOfDifferentSessions`], [`Error::SessionClosed`].
    pub fn diff(&self, newer: &Self) -> Result<Diff> {
        self.session.check_open()?;
        if !Arc::ptr_eq(&*self.session, &*newer.session) {
            return Err(Error::TablesOfDifferentSessions);
        }
        let (session, table) = (self.session.register(Holder::Cursor), self.session.id());
        let (id, of) = (session.id(), newer.session.id());
        event!(DEBUG, "diff.new", session.dir(), cursor = id, table, newer = of);
        Ok(Diff::new(session, (&self.tree, &self.config), (&newer.tree, &newer.config)))
    }

    /// How many keys the table has. [`TableStats::entries`] is an upper bound that costs nothing.
    ///
    /// Cost: a scan of the whole table.
    ///
    /// # Errors
    /// The errors of [`Cursor::next_ref`].
    pub fn count_exact(&self) -> Result<u64> {
        let mut cursor = self.cursor()?;
        let mut count = 0;
        while cursor.next_ref()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// The shape of the table and what its handle has counted. Cost: no I/O.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        let activity = self.counters.activity();
        let filters = self.counters.filters();
        let mut stats = TableStats {
            levels: self.tree.levels.iter().map(level_stats).collect(),
            union: self.union_stats(),
            buffer_entries: self.tree.buffer.len() as u64,
            buffer_bytes: self.tree.buffer.memory_bytes() as u64,
            lookups: activity.lookups,
            found: activity.found,
            memory_hits: activity.memory_hits,
            lookup_reads: activity.lookup_reads,
            cache_hits: activity.cache_hits,
            cache_bytes: self.cache.as_ref().map_or(0, CacheShare::bytes),
            filter: filters.iter().copied().fold(FilterStats::default(), FilterStats::plus),
            updates: activity.updates,
            update_bytes: activity.update_bytes,
            written_bytes: self.tree.written_bytes,
            lookup_times: activity.lookup_times,
            update_times: activity.update_times,
            save_times: activity.save_times,
            ..TableStats::default()
        };

        let sources = self.tree.sources();
        for buffer in &sources.buffers {
            stats.buffer_entries += buffer.len() as u64;
            stats.buffer_bytes += buffer.memory_bytes() as u64;
        }

        let mut seen = BTreeSet::new();
        sources.for_each_run(&mut |run| {
            // A union may have one twice.
            if !seen.insert(run.number()) {
                return;
            }
            let (filter, index, _) = run.memory_bytes();
            stats.filter_bytes += filter as u64;
            stats.index_bytes += index as u64;
            stats.key_pages += u64::from(run.meta().key_pages);
        });

        for pending in self.tree.pending() {
            stats.merge_debt_pages += pending.compaction.left();
            stats.unfinished_bytes += pending.compaction.built_bytes();
        }

        if let Some(union) = &self.tree.union {
            stats.unfinished_bytes += union.built_bytes();
        }

        // The run of a complete flush enters level 1 with the next flush, but is read from now on.
        let flushed = self.tree.flushing.as_ref().map(|flushing| flushing.compaction.view());
        if let Some(View::Output(runs)) = flushed {
            if stats.levels.is_empty() {
                stats.levels.push(LevelStats::default());
            }
            runs.iter().for_each(|run| count_run(&mut stats.levels[0], run));
        }

        for (level, filter) in stats.levels.iter_mut().zip(filters) {
            level.filter = filter;
        }
        stats
    }

    fn union_stats(&self) -> LevelStats {
        let mut shape = LevelStats::default();
        if let Some(union) = &self.tree.union {
            union.sources().for_each_run(&mut |run| count_run(&mut shape, run));
        }
        shape
    }
}

/// Settings that all compactions of a table share.
fn context<'a>(
    session: &'a Registered,
    config: &'a TableConfig,
    capacity: Capacity,
) -> CompactionEnv<'a> {
    let table = session.id();
    CompactionEnv { set: session.files(), config, capacity, salt: session.salt(), table }
}

/// Merges of a table, as work for a batch of its lookups while they wait.
#[derive(Debug)]
struct MergeAhead<'a> {
    table: &'a Table,
    /// Whether all is done, or a step has failed: then it is left to the update that needs it.
    is_over: Cell<bool>,
}

impl Idle for MergeAhead<'_> {
    fn work(&self) -> bool {
        if self.is_over.get() {
            return false;
        }
        let done = self.table.merge_ahead().unwrap_or(None);
        self.is_over.set(done.is_none());
        done == Some(true)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        event!(DEBUG, "table.close", self.session.dir(), table = self.session.id());
    }
}

fn level_stats(level: &Level) -> LevelStats {
    let mut shape = LevelStats::default();
    if let Some(Incoming::Compaction(pending)) = &level.incoming {
        shape.merge_pages = pending.compaction.total();
        shape.merge_pages_done = pending.compaction.done();
    }
    let mut sources = Sources::default();
    sources.add_level(level);
    sources.runs.iter().for_each(|run| count_run(&mut shape, run));
    // A lookup looks into one of some slices.
    shape.runs = groups(&sources.runs).count() as u64;
    shape
}

/// Refuses what is longer than the formats can hold; returns the bytes of key and value.
fn check_sizes(key: &[u8], update: Update<'_>) -> Result<usize> {
    let (_, value, blob) = update.parts();
    let is_range = matches!(update, Update::DeleteRange(_));

    let limit = if is_range { SPAN_KEY_BYTES_MAX } else { KEY_BYTES_MAX };
    let longest = if is_range { key.len().max(value.len()) } else { key.len() };
    if longest > limit {
        return Err(Error::KeyTooLarge { bytes: longest, limit });
    }

    let limit = VALUE_BYTES_MAX - if blob.is_some() { BLOB_SPAN_SIZE } else { 0 };
    if value.len() > limit {
        return Err(Error::ValueTooLarge { bytes: value.len(), limit });
    }

    match blob {
        Some(blob) if blob.len() > BLOB_BYTES_MAX => {
            Err(Error::BlobTooLarge { bytes: blob.len(), limit: BLOB_BYTES_MAX })
        }
        _ => Ok(key.len() + value.len()),
    }
}

/// Refuses a batch in which anything is longer than the formats can hold; returns what it takes,
/// and the bytes of its blobs.
pub(crate) fn check_batch<K: AsRef<[u8]>>(batch: &[(K, Update<'_>)]) -> Result<(Room, usize)> {
    let mut room = Room { entries: batch.len(), bytes: 0 };
    let mut blob_bytes = 0;
    for (key, update) in batch {
        room.bytes += check_sizes(key.as_ref(), *update)?;
        blob_bytes += update.parts().2.map_or(0, <[u8]>::len);
    }
    Ok((room, blob_bytes))
}

fn count_run(shape: &mut LevelStats, run: &Run) {
    shape.runs += 1;
    shape.files += 1;
    shape.entries += run.meta().entries;
    shape.deletes += run.meta().deletes;
    shape.bytes += run.meta().file_bytes();
    let (filter_bytes, index_bytes, _) = run.memory_bytes();
    shape.filter_bytes += filter_bytes as u64;
    shape.index_bytes += index_bytes as u64;
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use terrane_io::{Access, SimDisk};

    use super::*;
    use crate::config::{CompactionPolicy, DiskCache, WriteBuffer as BufferSize};
    use crate::table::session::{Session, SessionOptions};

    /// Runs on levels up to `cached` are read through the page cache and the others past it:
    /// whether they were written there, came down alone, or were opened from a snapshot. Returns
    /// the levels seen.
    fn check_access(table: &Table, cached: usize) -> usize {
        for (number, level) in (1..).zip(&table.tree.levels) {
            let wanted = if number <= cached { Access::Buffered } else { Access::Direct };
            let mut runs = Sources::default();
            // The inputs of a merge are on their way here from the level above.
            let compaction = matches!(&level.incoming, Some(Incoming::Compaction(pending))
                if !pending.compaction.is_complete());
            let there = Level {
                incoming: level.incoming.clone().filter(|_| !compaction),
                residents: level.residents.clone(),
            };
            runs.add_level(&there);
            for run in &runs.runs {
                assert_eq!(run.access(), wanted, "run {} on level {number}", run.number());
            }
        }

        table.tree.levels.len()
    }

    #[test]
    fn each_run_is_read_in_the_way_of_its_level() {
        let disk = SimDisk::new(1);
        let options = SessionOptions::with_salt(1).create_dir();

        let session = Session::open(disk, Path::new("/session"), &options).unwrap();
        for compaction_policy in [
            CompactionPolicy::LazyLevelling,
            CompactionPolicy::Levelling,
            CompactionPolicy::Tiering,
        ] {
            let config = TableConfig {
                compaction_policy,
                size_ratio: 2,
                write_buffer: BufferSize::Entries(4),
                disk_cache: DiskCache::LevelsUpTo(2),
                ..TableConfig::default()
            };
            let mut table = session.new_table(&config).unwrap();
            let mut levels = 0;
            for number in 0..400_u64 {
                // Ascending at first, so that whole runs move down.
                let key = if number < 200 { number } else { number.wrapping_mul(0x9E37_79B9) };
                let key = key.to_le_bytes().iter().rev().copied().collect::<Vec<_>>();
                table.insert(&key, b"value").unwrap();
                levels = levels.max(check_access(&table, 2));
                if number % 50 == 49 {
                    let name = SnapshotName::new(&format!("at-{number}")).unwrap();
                    table.save_snapshot(&name, "").unwrap();
                    drop(table);
                    table = session.open_snapshot(&name, "").unwrap();
                    session.delete_snapshot(&name).unwrap();
                    check_access(&table, 2);
                }
            }
            assert!(levels >= 4, "{compaction_policy:?}: {levels} levels");
        }
    }

    /// Applies 5,000 updates of different keys in batches, with values of 100 bytes.
    fn replay(table: &mut Table, flush_at: Option<u64>, after_each: impl Fn(&Table)) {
        for first in (0..5_000_u64).step_by(50) {
            let keys: Vec<_> = (first..first + 50).map(u64::to_le_bytes).collect();
            let batch: Vec<_> = keys.iter().map(|key| (key, Update::Insert(&[7; 100]))).collect();
            table.replay(&batch, flush_at).unwrap();
            after_each(table);
        }
    }

    fn session() -> Session {
        let options = SessionOptions::with_salt(1).create_dir();
        Session::open(SimDisk::new(1), Path::new("/session"), &options).unwrap()
    }

    #[test]
    fn a_replay_stays_within_its_bound_in_memory() {
        const BOUND: u64 = 50_000;
        const BATCH: u64 = 50 * 148;

        let session = session();

        // What is larger counts: the write buffer or the bound.
        for (write_buffer, most) in
            [(BufferSize::Entries(64), BOUND), (BufferSize::Bytes(200_000), 200_000)]
        {
            let config = TableConfig { write_buffer, ..TableConfig::default() };
            let mut table = session.new_table(&config).unwrap();
            replay(&mut table, Some(BOUND), |table| {
                let bytes = table.tree.buffer.weight_bytes();
                assert!(bytes < most + BATCH, "{bytes} bytes");
            });
            assert!(table.tree.flushes >= 3, "{} flushes", table.tree.flushes);
            assert!(table.stats().runs() >= 2, "{:?}", table.stats());
            assert_eq!(table.count_exact().unwrap(), 5_000);
        }
    }

    /// A reader's write buffer grows beyond what a budget gives to it; the cache of pages gives
    /// way.
    #[test]
    fn cached_pages_make_room_for_what_is_replayed() {
        const BUDGET: u64 = 1 << 20;
        let session = session();
        let memory_budget = Some(BUDGET);
        let disk_cache = DiskCache::None;
        let config = TableConfig { memory_budget, disk_cache, ..TableConfig::default() };

        let mut table = session.new_table(&config).unwrap();
        let keys: Vec<_> = (1 << 40..(1 << 40) + 20_000_u64).map(u64::to_le_bytes).collect();
        for key in &keys {
            table.insert(key, &[7; 100]).unwrap();
        }

        for _ in 0..2 {
            assert!(table.get_many(&keys).unwrap().iter().all(Lookup::is_found));
        }
        let cached = table.stats().cache_bytes;
        assert!(cached > BUDGET / 2, "{cached} bytes");

        replay(&mut table, None, |table| {
            let stats = table.stats();
            assert!(stats.memory_bytes() <= BUDGET.max(stats.buffer_bytes * 5 / 4), "{stats:?}");
        });

        let stats = table.stats();
        assert!(stats.buffer_bytes > BUDGET / 2 && stats.cache_bytes < cached / 2, "{stats:?}");
    }

    /// With and without what was replayed the same merges are due with the same update, also after
    /// a snapshot.
    #[test]
    fn time_stands_still_while_a_log_is_replayed() {
        let session = session();
        let config =
            TableConfig { write_buffer: BufferSize::Entries(64), ..TableConfig::default() };

        let mut table = session.new_table(&config).unwrap();
        for number in 0..64 * 30 + 20_u64 {
            table.insert(&(1 << 40 | number).to_le_bytes(), &[7; 100]).unwrap();
        }

        let done = |table: &Table| -> Vec<(u64, u64)> {
            table.tree.pending().map(|merge| (merge.compaction.done(), merge.due)).collect()
        };
        let before = done(&table);
        let now = table.tree.now(&table.context());
        assert!(before.len() >= 2, "{before:?}");
        replay(&mut table, None, |table| assert_eq!(table.tree.now(&table.context()), now));
        assert_eq!((done(&table), table.tree.buffer.len()), (before, 5_020));

        let name = SnapshotName::new("replayed").unwrap();
        table.save_snapshot(&name, "").unwrap();
        let mut opened = session.open_snapshot(&name, "").unwrap();
        assert_eq!(opened.tree.now(&opened.context()), now);

        for table in [&mut table, &mut opened] {
            let flushes = table.tree.flushes;
            for number in 0..43_u64 {
                table.insert(&(1 << 41 | number).to_le_bytes(), b"").unwrap();
            }
            assert_eq!((table.tree.flushes, table.tree.buffer.len()), (flushes, 5_063));
            table.insert(b"last", b"").unwrap();
            assert_eq!((table.tree.flushes, table.tree.buffer.len()), (flushes + 1, 0));
            assert_eq!(table.count_exact().unwrap(), 64 * 30 + 20 + 5_000 + 44);
        }
    }
}
