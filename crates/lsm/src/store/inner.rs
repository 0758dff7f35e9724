//! State that the handles of one store share: tables, end of the WAL, manifest; see
//! [`crate::store::store`].
//!
//! Invariants: commits have numbers without gaps, and after a crash the tables hold all commits up
//! to some number that is not below the last durable one. Locks are taken in the order `published`,
//! `state`, `slot`, `durable`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use terrane_io::{Access, Durability, OpenMode};

use crate::entry::entry::Update;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::manifest::manifest::StoreManifest;
use crate::manifest::wal::{
    LOG, Made, RECORD_BYTES_MAX, RecordBuilder, SegmentHeader, UPDATE_BYTES, WalDir, WalEnd,
    segment_name, segments,
};
use crate::session::current_manifest::CurrentManifest;
use crate::session::group_commit::GroupCommit;
use crate::session::inner::SessionInner;
use crate::session::snapshot::WrittenOut;
use crate::store::options::{CheckpointThread, StoreOptions, TableName};
use crate::store::write_sets::WriteSets;
use crate::table::session::Session;
use crate::table::table::{Applied, Table};
use crate::trace::event;

/// Segments that the log is made of when it is as long as it may be.
pub(crate) const SEGMENTS: u64 = 4;

/// Bytes of a found log that are written again at once.
const SECURED_BYTES: usize = 1 << 20;

/// Segments of a found log that make no checkpoint due: those of a log of full length. Each process
/// that ends without a checkpoint leaves one more, and each opening reads all of them.
const FOUND_SEGMENTS_MAX: u64 = SEGMENTS + 1;

/// Old segments that are kept to be written again.
const SPARES_MAX: usize = SEGMENTS as usize;

/// Part of the WAL that a checkpoint leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogRoom {
    /// Segments for the commits that follow.
    Ordinary,
    /// One that is as small as may be: nobody knows when the next commit comes.
    Least,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) inner: Arc<SessionInner>,
    pub(crate) session: Session,
    pub(crate) options: StoreOptions,
    pub(crate) log_bytes_max: u64,
    pub(crate) log_dir: WalDir,
    /// Held by whoever writes another manifest.
    pub(crate) published: Mutex<CurrentManifest>,
    pub(crate) state: Mutex<State>,
    pub(crate) durable: GroupCommit,
    /// Bytes that this process has written to the log.
    pub(crate) log_written: AtomicU64,
    /// Bytes of the log since the last checkpoint, and when the next one is due.
    pub(crate) log_bytes: AtomicU64,
    pub(crate) due_at: AtomicU64,
    /// Whether a checkpoint is being made in the background.
    pub(crate) is_checkpointing: AtomicBool,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
    /// Write sets of recent commits, for the validation of transactions.
    pub(crate) write_sets: WriteSets,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tables: BTreeMap<u64, Named>,
    /// The number of the last commit.
    pub(crate) commit: u64,
    /// The end of the log. A process never goes on in a segment that it has found, as nobody knows
    /// what stands behind its last record: it seals that one and begins the next.
    pub(crate) log: Option<WalEnd>,
    /// Whether the manifest on disk leads there: nothing is committed to a segment that recovery
    /// would not find.
    pub(crate) is_linked: bool,
    /// Whether a commit has not ended, as the store is to be poisoned then: tables may hold a part
    /// of it.
    pub(crate) is_torn: bool,
    /// Counts what was done to tables.
    pub(crate) changes: u64,
    /// The number of the newest segment that there ever was.
    pub(crate) segment: u64,
    /// Segments that no manifest needs, to be written again.
    pub(crate) spares: Vec<u64>,
    /// Where the records of sealed segments end, by number. What is behind is given back if a
    /// segment stays for the sake of a version.
    pub(crate) ends: BTreeMap<u64, u64>,
    /// The log that another process has left, until this one goes on behind it.
    pub(crate) found: Option<FoundLog>,
}

#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) table: Table,
    /// Its last change, and the last one that a manifest has.
    pub(crate) changed: u64,
    pub(crate) written: u64,
    pub(crate) slot: Arc<Slot>,
}

/// The part of the log that another process has left, which was applied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundLog {
    /// Its first segment.
    pub(crate) from: u64,
    /// Its last segment, and where the records of that end.
    pub(crate) last: u64,
    pub(crate) end: u64,
}

impl FoundLog {
    fn segments(&self) -> u64 {
        debug_assert!(self.from <= self.last, "the found WAL has a segment");
        self.last - self.from + 1
    }

    /// Makes all of it durable. Returns its end, for the next segment to follow on.
    ///
    /// Bytes of a process that died, or whose sync failed, can be seen and not be durable, and the
    /// system may take them for written. So every byte is written again where it stands, which
    /// takes no room, and synced then. What stands behind the last record counts for nothing once
    /// the segment is sealed.
    ///
    /// # Errors
    /// Those of the disk. Nothing has changed then.
    pub(crate) fn secure(&self, inner: &SessionInner) -> Result<WalEnd> {
        let files = inner.files().handles();
        let _right = files.may_write()?;

        let mut bytes = Vec::new();
        for number in self.from..=self.last {
            let path = inner.dir().join(LOG).join(segment_name(number));
            let open = || inner.disk().open(&path, OpenMode::ReadWrite, Access::Buffered);
            let file = files.with_room(open)?;
            let end = if number == self.last { self.end } else { file.len()? };
            for at in (0..end).step_by(SECURED_BYTES) {
                bytes.resize((end - at).min(SECURED_BYTES as u64) as usize, 0);
                file.read_at(&mut bytes, at)?;
                file.write_at(&bytes, at)?;
            }
            inner.files().synced(&path, file.sync())?;
            if number == self.last {
                return Ok(WalEnd::found(files, file, number, end));
            }
        }

        // `from` is no greater than `last`.
        Err(Error::SessionClosed)
    }
}

/// A named table, as its handles know it.
#[derive(Debug, Clone)]
pub(crate) struct TableKey {
    pub(crate) id: u64,
    pub(crate) name: TableName,
}

/// Changes of one commit to one table.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) key: &'a TableKey,
    pub(crate) updates: Vec<(&'a [u8], Update<'a>)>,
}

impl<'a> Batch<'a> {
    /// Its updates, with the number of the table.
    pub(crate) fn of_table(&self) -> impl Iterator<Item = (u64, &'a [u8], Update<'a>)> + Clone {
        self.updates.iter().map(|(key, update)| (self.key.id, *key, *update))
    }

    /// About what it takes in the log.
    fn bytes(&self) -> usize {
        let size = |(key, update): &(&[u8], Update<'_>)| {
            let (_, value, blob) = update.parts();
            key.len() + value.len() + blob.map_or(0, <[u8]>::len) + UPDATE_BYTES
        };
        self.updates.iter().map(size).sum()
    }
}

/// State that the readers of a table share.
#[derive(Debug, Default)]
pub(crate) struct Slot(pub(crate) Mutex<Reading>);

#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// The table as the last commit left it.
    pub(crate) view: Option<Arc<Table>>,
    /// Whether anybody has asked for it since the commit before.
    pub(crate) is_wanted: bool,
}

pub(crate) fn corrupted(path: &Path, reason: impl Into<String>) -> Error {
    Error::StoreCorrupted { path: path.to_owned(), reason: reason.into() }
}

/// An error met while the tables or the log of a store were read: as the damage that it is, if so.
pub(crate) fn damaged(error: Error) -> Error {
    match error.damage() {
        Some((path, reason)) => corrupted(path, reason),
        None => error,
    }
}

impl StoreManifest {
    pub(crate) fn find(&self, name: &TableName) -> Result<u64> {
        let table = self.tables.iter().find(|table| table.name == name.0);
        Ok(table.ok_or_else(|| Error::TableDoesNotExist { name: name.to_string() })?.id)
    }
}

impl State {
    pub(crate) fn table(&self, id: u64, name: &TableName) -> Result<&Named> {
        let table = self.tables.get(&id);
        table.ok_or_else(|| Error::TableDoesNotExist { name: name.to_string() })
    }

    /// Applies batches of different tables; what was done of them is in `applied`, also after an
    /// error.
    fn apply(&mut self, batches: &[Batch<'_>], applied: &mut Vec<(u64, Applied)>) -> Result<()> {
        for Batch { key, updates } in batches {
            self.table(key.id, &key.name)?;
            if let Some(named) = self.tables.get_mut(&key.id) {
                applied.push((key.id, named.table.apply_batch(updates)?));
            }
        }
        Ok(())
    }

    fn take_back(&mut self, applied: Vec<(u64, Applied)>) {
        for (id, applied) in applied.into_iter().rev() {
            if let Some(named) = self.tables.get_mut(&id) {
                named.table.take_back(applied);
            }
        }
    }

    /// Lets readers see what a commit has left.
    fn show(&mut self, ids: impl Iterator<Item = u64>) {
        self.changes += 1;
        for id in ids {
            let Some(named) = self.tables.get_mut(&id) else { continue };
            named.changed = self.changes;
            let mut reading = lock(&named.slot.0);
            // Where nobody reads, nothing is duplicated. Where it fails, the next reader is told.
            let is_wanted = std::mem::take(&mut reading.is_wanted);
            reading.view = is_wanted.then(|| named.table.fork().ok()).flatten().map(Arc::new);
        }
    }
}

impl Shared {
    fn is_logged(&self) -> bool {
        self.options.durability > Durability::None
    }

    /// The state, ready for a commit. Before the first one the log is begun, behind what was found
    /// of it. Makes a checkpoint if one is due, here or on the thread; an error only if the log is
    /// too long. Even then a commit that `frees` room goes on if the disk is full.
    pub(crate) fn state_to_commit(self: &Arc<Self>, frees: bool) -> Result<MutexGuard<'_, State>> {
        let state = lock(&self.state);
        let is_begun = !self.is_logged() || state.is_linked;

        // An attempt takes a segment, so not each commit that frees room makes one after a failure.
        let is_put_off = frees && !self.is_due_again();
        if is_begun && (!self.is_due() || is_put_off) {
            return Ok(state);
        }
        drop(state);

        if !is_begun {
            self.begin_logging(&mut lock(&self.published))?;
        }

        match self.make_checkpoint_if_due() {
            Err(error) if frees && error.is_no_space() => {
                let due_at = self.log_bytes.load(Ordering::Relaxed) + self.log_bytes_max / 2;
                self.due_at.store(due_at, Ordering::Relaxed);
                event!(WARN, "checkpoint.failed", self.inner.dir(), %error);
            }
            made => made?,
        }

        Ok(lock(&self.state))
    }

    /// Makes commits possible: behind the log that was found, else behind a checkpoint.
    fn begin_logging(&self, published: &mut CurrentManifest) -> Result<()> {
        match self.take_up_log() {
            Ok(true) => Ok(()),
            Ok(false) => self.checkpoint_over(published),
            Err(error) => {
                self.inner.files().check_poisoned()?;
                event!(WARN, "log.unreadable", self.inner.dir(), %error);
                self.checkpoint_over(published)
            }
        }
    }

    /// Makes the log that was found durable, for commits to go on behind it; says whether there is
    /// one.
    fn take_up_log(&self) -> Result<bool> {
        self.inner.check_writable()?;

        let mut state = lock(&self.state);
        let state = &mut *state;
        if state.is_linked {
            return Ok(true);
        }
        let Some(found) = state.found.filter(|_| state.log.is_none()) else { return Ok(false) };
        let end = found.secure(&self.inner)?;

        if found.segments() > FOUND_SEGMENTS_MAX {
            self.due_at.store(0, Ordering::Relaxed);
        }
        self.durable.reach(state.commit, Some((&end.log, state.commit)));
        state.log = Some(end);
        state.is_linked = true;
        state.found = None;
        Ok(true)
    }

    /// Makes the directory of the log, unless it is there.
    fn make_log_dir(&self) -> Result<()> {
        let disk = self.inner.disk();
        let dir = self.inner.dir().join(LOG);
        if disk.kind(&dir)?.is_some() {
            return Ok(());
        }
        self.inner.files().handles().with_space(|| disk.create_dir(&dir))?;

        let synced = self.inner.sync_root();
        if synced.is_err()
            // No later sync can be trusted with this name; the next attempt makes a new one.
            && let Err(error) = disk.remove_dir(&dir)
        {
            event!(WARN, "cleanup.failed", self.inner.dir(), %error);
        }

        synced
    }

    /// Begins another segment of the log, for a record of so many bytes. If the manifest leads to
    /// the old one, what is in that is durable then.
    fn begin_segment(&self, state: &mut State, record: usize, room: LogRoom) -> Result<()> {
        let files = self.inner.files();
        files.check_poisoned()?;
        let _right = files.handles().may_write()?;

        if state.log.is_none() {
            self.make_log_dir()?;
        }
        let header = SegmentHeader { number: state.segment + 1, first: state.commit + 1 };

        let made = match room {
            LogRoom::Ordinary => state.spares.pop().map_or(Made::New, Made::Again),
            LogRoom::Least => Made::Least,
        };

        let end = self.log_dir.begin(header, record, made)?;
        self.inner.sync_dir(LOG)?;
        if let Some(old) = state.log.as_ref().filter(|_| state.is_linked) {
            // The seal says that all of this is durable, so it comes after.
            let file = &old.log.file;
            self.durable.sync_in_turn(file, state.commit)?;
            old.seal(state.commit).or_else(|error| self.inner.poison(file.path(), error))?;
            self.durable.sync_in_turn(file, state.commit)?;
            self.durable.set_end(&end.log, state.commit);
            state.ends.insert(old.log.number, old.end());
        }

        debug_assert!(state.ends.keys().all(|&sealed| sealed < header.number));
        state.segment = header.number;
        state.log = Some(end);
        Ok(())
    }

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

    /// Applies a commit and writes its record to the log. Returns its number.
    pub(crate) fn commit(
        &self,
        state: &mut State,
        batches: &[Batch<'_>],
        record: RecordBuilder,
    ) -> Result<u64> {
        self.inner.check_writable()?;
        if self.is_logged() && !state.log.as_ref().is_some_and(|log| log.has_room(record.len())) {
            self.begin_segment(state, record.len(), LogRoom::Ordinary)?;
        }

        assert!(!state.is_torn, "a commit that did not end has poisoned the store");
        debug_assert!(
            !self.is_logged() || state.log.as_ref().is_some_and(|log| log.has_room(record.len())),
            "a record is written to one segment"
        );

        // A merge operator that panics leaves a part of the commit behind.
        let unwinding = Unwinding(self);
        state.is_torn = true;
        let mut applied = Vec::new();

        let done = state.apply(batches, &mut applied);
        let done = done.and_then(|()| self.write(state, record));
        if done.is_err() {
            state.take_back(applied);
        }
        state.is_torn = false;
        std::mem::forget(unwinding);
        done?;
        state.commit += 1;
        self.write_sets.note(state.commit, batches.iter().flat_map(Batch::of_table));
        state.show(batches.iter().map(|batch| batch.key.id));
        Ok(state.commit)
    }

    /// Writes the next commit to the log, if there is one.
    fn write(&self, state: &mut State, record: RecordBuilder) -> Result<()> {
        let Some(log) = state.log.as_mut().filter(|_| self.is_logged()) else { return Ok(()) };
        let _right = self.inner.files().handles().may_write()?;
        let commit = state.commit + 1;
        let known = self.durable.commit();
        debug_assert!(known < commit, "only written commits are durable");

        let record = record.finish(self.inner.salt(), log.log.number, commit, known);
        if let Err(error) = log.write(&record) {
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

    /// Waits until a commit is durable, and syncs if nobody else does.
    pub(crate) fn wait_for(&self, commit: u64) -> Result<()> {
        // Without an end of the log: recovered, and not committed to since; or there is no log.
        if self.durable.wait_for(commit)? { Ok(()) } else { self.checkpoint() }
    }

    /// Makes all commits so far durable.
    pub(crate) fn make_durable(&self, published: &mut CurrentManifest) -> Result<()> {
        if !self.is_logged() {
            return self.checkpoint_over(published);
        }
        self.begin_logging(published)?;
        let last = lock(&self.state).commit;
        if self.durable.wait_for(last)? { Ok(()) } else { self.checkpoint_over(published) }
    }

    /// A checkpoint, here or on the thread, if the log is long enough. An error only if it is too
    /// long.
    fn make_checkpoint_if_due(self: &Arc<Self>) -> Result<()> {
        if !self.is_due() {
            return Ok(());
        }
        if self.log_bytes.load(Ordering::Relaxed) >= self.log_bytes_max {
            return self.checkpoint_if_due();
        }
        match self.options.checkpoint_thread {
            CheckpointThread::Caller => self.checkpoint_or_tell(),
            CheckpointThread::Background => self.checkpoint_in_background(),
        }
        Ok(())
    }

    /// Whether a checkpoint is due even if the last attempt has failed.
    fn is_due_again(&self) -> bool {
        self.log_bytes.load(Ordering::Relaxed) >= self.due_at.load(Ordering::Relaxed)
    }

    fn is_due(&self) -> bool {
        let bytes = self.log_bytes.load(Ordering::Relaxed);
        self.is_logged() && bytes >= self.due_at.load(Ordering::Relaxed).min(self.log_bytes_max)
    }

    /// A checkpoint, unless somebody else has made it meanwhile. After a failure the next one is
    /// due an eighth of the log later.
    fn checkpoint_if_due(&self) -> Result<()> {
        let mut published = lock(&self.published);
        if !self.is_due() {
            return Ok(());
        }
        let made = self.checkpoint_over(&mut published);
        let due_at = match &made {
            Ok(()) => self.log_bytes_max / 2,
            Err(_) => self.log_bytes.load(Ordering::Relaxed) + self.log_bytes_max / 8,
        };
        self.due_at.store(due_at, Ordering::Relaxed);
        made
    }

    fn checkpoint_or_tell(&self) {
        if let Err(error) = self.checkpoint_if_due() {
            event!(WARN, "checkpoint.failed", self.inner.dir(), %error);
        }
    }

    fn checkpoint_in_background(self: &Arc<Self>) {
        if self.is_checkpointing.swap(true, Ordering::AcqRel) {
            return;
        }

        let shared = Arc::clone(self);
        let run = move || {
            // Also if it panics.
            let running = Checkpointing(&shared);
            shared.checkpoint_or_tell();
            drop(running);
        };

        match std::thread::Builder::new().name("terrane-checkpoint".into()).spawn(run) {
            // An earlier one has ended.
            Ok(thread) => drop(lock(&self.thread).replace(thread)),
            Err(_) => {
                self.is_checkpointing.store(false, Ordering::Release);
                self.checkpoint_or_tell();
            }
        }
    }

    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.checkpoint_over(&mut lock(&self.published))
    }

    pub(crate) fn checkpoint_over(&self, published: &mut CurrentManifest) -> Result<()> {
        self.checkpoint_leaving(published, LogRoom::Ordinary)
    }

    /// A checkpoint that leaves so much of the log. What is less than wanted is not cut for more.
    pub(crate) fn checkpoint_leaving(
        &self,
        published: &mut CurrentManifest,
        room: LogRoom,
    ) -> Result<()> {
        self.inner.check_writable()?;
        let mut next = published.manifest.clone();
        let (copies, log_bytes) = {
            let mut state = lock(&self.state);
            let state = &mut *state;
            let copies = state.changed_copies()?;
            let is_begun = !self.is_logged() || state.is_linked && state.has_no_more_than(room);
            if state.commit == published.manifest.commit && copies.is_empty() && is_begun {
                return Ok(());
            }
            next.segment = self.cut_log(state, room)?;
            next.commit = state.commit;
            (copies, self.log_bytes.load(Ordering::Relaxed))
        };

        let commit = next.commit;
        event!(DEBUG, "store.checkpoint", self.inner.dir(), commit);
        let written = write_out(&copies, &mut next)?;
        let both = published.publish(&self.inner, next)?;

        for written in &written {
            written.share(&self.inner);
        }
        {
            let mut state = lock(&self.state);
            for (id, changed, _) in &copies {
                if let Some(named) = state.tables.get_mut(id) {
                    debug_assert!(*changed <= named.changed, "changes are counted upwards");
                    named.written = *changed;
                }
            }
            debug_assert!(state.commit >= commit, "commits go on during a checkpoint");
            self.link(&mut state, commit, log_bytes);
        }

        if both {
            published.age_chain();
            self.recycle(published, room);
        }

        event!(DEBUG, "store.checkpointed", self.inner.dir(), commit);
        Ok(())
    }

    /// Lets the log, if there is one, go on in a new segment, unless the present one has no record;
    /// the number of that segment is for a manifest.
    fn cut_log(&self, state: &mut State, room: LogRoom) -> Result<u64> {
        // Nothing is committed to a segment that is not linked: if there is an empty one, it
        // follows on the last commit.
        let is_enough =
            |log: &WalEnd| log.is_empty() && (room == LogRoom::Ordinary || log.is_least());
        if state.log.as_ref().is_some_and(is_enough) {
            return Ok(state.segment);
        }
        self.begin_log(state, room)
    }

    /// Lets the log, if there is one, go on in a new segment, whose number is for a manifest.
    pub(crate) fn begin_log(&self, state: &mut State, room: LogRoom) -> Result<u64> {
        if !self.is_logged() {
            return Ok(0);
        }
        let before = state.segment;
        self.begin_segment(state, 0, room)?;
        debug_assert_eq!(state.segment, before + 1, "segments are numbered without a gap");
        Ok(state.segment)
    }

    /// Notes that the manifest on disk leads to the present segment and has all up to `commit`,
    /// which so many bytes of the log were for.
    pub(crate) fn link(&self, state: &mut State, commit: u64, log_bytes: u64) {
        let before = self.log_bytes.fetch_sub(log_bytes, Ordering::Relaxed);
        debug_assert!(before >= log_bytes, "a checkpoint takes off only what was counted");
        self.due_at.store(self.log_bytes_max / 2, Ordering::Relaxed);
        state.is_linked = self.is_logged();
        state.found = None;
        debug_assert!(!state.is_linked || state.log.is_some(), "a linked store has a segment");
        let end = state.log.as_ref().filter(|_| state.is_linked);
        self.durable.reach(commit, end.map(|log| (&log.log, state.commit)));
    }

    /// Keeps some of the segments that a manifest, which both copies hold, does not need, and
    /// removes the others.
    pub(crate) fn recycle(&self, published: &CurrentManifest, room: LogRoom) {
        let mut state = lock(&self.state);
        if let Err(error) = self.recycle_from(&mut state, published, room) {
            event!(WARN, "cleanup.failed", self.inner.dir(), %error);
        }
    }

    fn recycle_from(
        &self,
        state: &mut State,
        published: &CurrentManifest,
        room: LogRoom,
    ) -> Result<()> {
        if state.segment == 0 {
            return Ok(());
        }
        let _right = self.inner.files().handles().may_write()?;

        let needed_from = match published.manifest.segment {
            0 => state.segment + 1,
            segment => segment,
        };

        let leased_from = self.inner.leased_segment()?;
        let spares_max = match room {
            LogRoom::Ordinary if self.is_logged() => SPARES_MAX,
            LogRoom::Ordinary | LogRoom::Least => 0,
        };

        if room == LogRoom::Least {
            state.spares.clear();
        }

        for number in segments(self.inner.disk(), self.inner.dir())? {
            if number >= needed_from.min(leased_from) || state.spares.contains(&number) {
                continue;
            }
            debug_assert!(number < state.segment || state.log.is_none(), "the last segment stays");
            if published.needs_segment(number) {
                self.trim(state, number)?;
            } else if state.spares.len() < spares_max {
                state.spares.push(number);
                debug_assert!(state.spares.len() <= spares_max);
            } else {
                self.inner.disk().remove(&self.log_dir.path(number))?;
            }
            state.ends.remove(&number);
        }

        Ok(())
    }

    /// Gives the room behind the records of a sealed segment back. Only of one that this process
    /// has sealed: of others it does not know where they end.
    fn trim(&self, state: &State, number: u64) -> Result<()> {
        let Some(&end) = state.ends.get(&number) else { return Ok(()) };
        let files = self.inner.files().handles();
        let path = self.log_dir.path(number);
        let open = || self.inner.disk().open(&path, OpenMode::ReadWrite, Access::Buffered);
        Ok(files.with_room(open)?.set_len(end)?)
    }
}

/// Poisons a store if it is dropped: nobody knows what a commit has left that did not end.
struct Unwinding<'a>(&'a Shared);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        let inner = &self.0.inner;
        inner.files().handles().panicked(inner.dir());
    }
}

/// The turn of the background thread; given back on drop.
struct Checkpointing<'a>(&'a Shared);

impl Drop for Checkpointing<'_> {
    fn drop(&mut self) {
        self.0.is_checkpointing.store(false, Ordering::Release);
    }
}

impl State {
    /// Whether the log takes no more room than a checkpoint is to leave.
    fn has_no_more_than(&self, room: LogRoom) -> bool {
        let is_least = |log: &WalEnd| log.is_least();
        room == LogRoom::Ordinary
            || self.spares.is_empty() && self.log.as_ref().is_some_and(is_least)
    }

    /// Duplicates of the tables that have changed, with their last change.
    pub(crate) fn changed_copies(&self) -> Result<Vec<(u64, u64, Table)>> {
        let changed = self.tables.iter().filter(|(_, named)| named.changed > named.written);
        changed.map(|(id, named)| Ok((*id, named.changed, named.table.fork()?))).collect()
    }
}

/// Writes tables out, and puts what they need into a manifest.
pub(crate) fn write_out(
    copies: &[(u64, u64, Table)],
    manifest: &mut StoreManifest,
) -> Result<Vec<WrittenOut>> {
    let mut all = Vec::with_capacity(copies.len());
    for (id, _, table) in copies {
        let written = table.write_out()?;
        for named in manifest.tables.iter_mut().filter(|named| named.id == *id) {
            named.meta.clone_from(&written.meta);
        }
        all.push(written);
    }
    Ok(all)
}
