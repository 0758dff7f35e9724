//! Checkpoints of a store: the tables that have changed are written out from forks, then a manifest
//! says so, and the WAL before it is recycled.
//!
//! The cut holds all tables and the state for a moment: it forks the changed tables, O(runs) each,
//! and lets the WAL go on in a segment that was made before. Everything else is done without them,
//! so commits and views go on.
//!
//! Invariant: a manifest that leads to a segment is published when that segment is durable as it
//! was begun, and the one before it is sealed.

use std::sync::Arc;

use terrane_io::sync::MutexGuard;
use terrane_io::sync::atomic::Ordering;

use crate::error::Result;
use crate::files::file_set::lock;
use crate::manifest::history;
use crate::manifest::manifest::StoreManifest;
use crate::session::current_manifest::CurrentManifest;
use crate::session::snapshot::WrittenOut;
use crate::store::inner::{LogRoom, Named, Shared, Slot, State};
use crate::store::options::CheckpointThread;
use crate::table::table::Table;
use crate::trace::event;

/// A fork of a table, to be written out.
#[derive(Debug)]
pub(crate) struct TableCopy {
    pub(crate) id: u64,
    /// The last change of the table that the fork has.
    pub(crate) changed: u64,
    pub(crate) table: Table,
}

impl TableCopy {
    /// A copy of a table that is not in the store yet.
    pub(crate) fn new(id: u64, table: Table) -> Self {
        Self { id, changed: 0, table }
    }

    pub(crate) fn into_table(self) -> Table {
        self.table
    }
}

/// Tables and log as they are at one moment.
#[derive(Debug)]
struct Cut {
    copies: Vec<TableCopy>,
    commit: u64,
    /// The segment that follows on that commit.
    segment: u64,
    /// Bytes of the log that the copies make unnecessary.
    log_bytes: u64,
}

/// Forks of the tables that have changed since they were written out.
fn changed_copies(
    slots: &[(u64, Arc<Slot>)],
    tables: &[MutexGuard<'_, Option<Named>>],
) -> Result<Vec<TableCopy>> {
    debug_assert_eq!(slots.len(), tables.len(), "a lock for each slot");
    let mut copies = Vec::new();
    for ((id, _), table) in slots.iter().zip(tables) {
        if let Some(named) = table.as_ref().filter(|named| named.changed > named.written) {
            copies.push(TableCopy { id: *id, changed: named.changed, table: named.table.fork()? });
        }
    }
    debug_assert!(copies.is_sorted_by(|one, next| one.id < next.id), "slots are sorted");
    Ok(copies)
}

impl Shared {
    /// Makes all commits so far durable.
    pub(crate) fn make_durable(&self, published: &mut CurrentManifest) -> Result<()> {
        if !self.is_logged() {
            return self.checkpoint_over(published);
        }
        self.begin_logging(published)?;
        let last = lock(&self.state).commit;
        if self.durable.wait_for(last)? { Ok(()) } else { self.checkpoint_over(published) }
    }

    /// Makes commits possible: behind the log that was found, else behind a checkpoint.
    pub(crate) fn begin_logging(&self, published: &mut CurrentManifest) -> Result<()> {
        match self.take_up_log(published) {
            Ok(true) => Ok(()),
            Ok(false) => self.checkpoint_over(published),
            Err(error) => {
                self.inner.files().check_poisoned()?;
                event!(WARN, "log.unreadable", self.inner.dir(), %error);
                self.checkpoint_over(published)
            }
        }
    }

    /// A checkpoint, here or on the thread, if the log is long enough. An error only if it is too
    /// long.
    pub(crate) fn make_checkpoint_if_due(self: &Arc<Self>) -> Result<()> {
        if !self.is_due() {
            return Ok(());
        }
        if self.log_bytes.load(Ordering::Relaxed) >= self.log_bytes_max {
            return self.checkpoint_if_due();
        }
        match self.options.checkpoint_thread {
            CheckpointThread::Caller => self.checkpoint_or_tell(),
            CheckpointThread::Background => {
                let shared = Arc::clone(self);
                if self.checkpointer.run(move || shared.checkpoint_or_tell()).is_err() {
                    self.checkpoint_or_tell();
                }
            }
        }
        Ok(())
    }

    /// Whether a checkpoint is due even if the last attempt has failed.
    pub(crate) fn is_due_again(&self) -> bool {
        self.log_bytes.load(Ordering::Relaxed) >= self.due_at.load(Ordering::Relaxed)
    }

    pub(crate) fn is_due(&self) -> bool {
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
        let Some(cut) = self.cut(published, room)? else { return Ok(()) };
        self.settle_log()?;

        let commit = cut.commit;
        debug_assert!(commit >= published.manifest.commit, "commits are counted upwards");
        let mut next = published.manifest.clone();
        (next.segment, next.commit) = (cut.segment, commit);
        event!(DEBUG, "store.checkpoint", self.inner.dir(), commit);
        if !next.history.is_empty() {
            let floor = self.inner.cursor_needs()?.commit.min(commit);
            history::prune(&mut next.history, floor);
        }
        let written = write_out(&cut.copies, &mut next)?;
        let both = published.publish(&self.inner, next)?;

        for written in &written {
            written.share(&self.inner);
        }
        self.note_written(&cut);
        {
            let mut state = lock(&self.state);
            debug_assert!(state.commit >= commit, "commits go on during a checkpoint");
            self.link(&mut state, commit, cut.log_bytes);
        }

        if both {
            published.age_chain();
            self.recycle(published, room);
        }

        event!(DEBUG, "store.checkpointed", self.inner.dir(), commit);
        Ok(())
    }

    /// Cuts tables and log at one commit; `None` if the manifest has everything.
    fn cut(&self, published: &CurrentManifest, room: LogRoom) -> Result<Option<Cut>> {
        // The list of tables stays as it is: the caller holds the manifest.
        let slots = self.slots();

        // Comes to an end: only commits that fill a segment in between take the next one away.
        loop {
            {
                let tables: Vec<_> = slots.iter().map(|(_, slot)| lock(&slot.table)).collect();
                let mut state = lock(&self.state);
                let copies = changed_copies(&slots, &tables)?;
                let is_begun = !self.is_logged() || state.is_linked && state.has_no_more_than(room);
                if state.commit == published.manifest.commit && copies.is_empty() && is_begun {
                    return Ok(None);
                }
                if let Some(segment) = self.cut_log(&mut state, room)? {
                    let commit = state.commit;
                    let log_bytes = self.log_bytes.load(Ordering::Relaxed);
                    return Ok(Some(Cut { copies, commit, segment, log_bytes }));
                }
            }
            self.make_next(0, room)?;
        }
    }

    /// Notes that the manifest has the tables of a cut.
    fn note_written(&self, cut: &Cut) {
        let slots = self.slots();
        for copy in &cut.copies {
            let Ok(at) = slots.binary_search_by_key(&copy.id, |(id, _)| *id) else { continue };
            if let Some(named) = &mut *lock(&slots[at].1.table) {
                debug_assert!(copy.changed <= named.changed, "changes are counted upwards");
                debug_assert!(named.written <= copy.changed, "what is written never falls");
                named.written = copy.changed;
            }
        }
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
}

/// Writes tables out, and puts what they need into a manifest.
pub(crate) fn write_out(
    copies: &[TableCopy],
    manifest: &mut StoreManifest,
) -> Result<Vec<WrittenOut>> {
    let mut all = Vec::with_capacity(copies.len());
    for copy in copies {
        let written = copy.table.write_out()?;
        for named in manifest.tables.iter_mut().filter(|named| named.id == copy.id) {
            named.meta.clone_from(&written.meta);
        }
        all.push(written);
    }
    debug_assert_eq!(all.len(), copies.len(), "each copy is written");
    Ok(all)
}
