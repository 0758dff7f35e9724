//! State that the handles of one store share: tables, end of the WAL, manifest; see
//! [`crate::store::store`].
//!
//! **Locks.** In this order; a thread skips locks, and never takes one that stands before one that
//! it holds:
//!
//! | lock | held for | by |
//! |---|---|---|
//! | `published` | a manifest and all that goes before it | checkpoints, changes of the list of tables, versions |
//! | `writer` of a slot, by number | a commit with its slow work | commits; whoever replaces or drops the table |
//! | `making` | making or recycling a segment | whoever needs a segment; the WAL thread |
//! | `table` of a slot, by number | a moment: memtable, fork | everybody |
//! | `state` | a moment: one write to the WAL | everybody |
//! | `reading` of a slot | a moment | everybody |
//! | `indexes` | a moment | commits; whoever changes the list of tables |
//! | the lock of the write sets | a moment | transactions; commits while transactions live |
//! | the lock of the group commit | a moment | everybody |
//! | the accounts of the session's memory budget | a moment | everybody |
//!
//! Invariants:
//! - Nobody waits for the disk with `table`, `state` or `reading` held, but for the write of a
//!   record or of a segment's header.
//! - The order of commits in the WAL is the order in which their tables were changed: a commit
//!   holds all its tables until its record is written.
//! - Whoever holds all tables sees them as one commit left them.
//! - Commits have numbers without gaps, and after a crash the tables hold all commits up to some
//!   number that is not below the last durable one.

use std::collections::BTreeMap;
use std::path::Path;

use terrane_io::Durability;
use terrane_io::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrane_io::sync::{Arc, Mutex, Weak};

use crate::entry::entry::Update;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::manifest::history::HistoryEvent;
use crate::manifest::manifest::{NamedMeta, StoreManifest};
use crate::manifest::wal::{BlankSegment, UPDATE_BYTES, WalDir, WalEnd};
use crate::session::current_manifest::CurrentManifest;
use crate::session::group_commit::GroupCommit;
use crate::session::inner::SessionInner;
use crate::store::helper::HelperThread;
use crate::store::index_entries::Indexes;
use crate::store::options::{StoreOptions, TableName};
use crate::store::write_sets::WriteSets;
use crate::table::session::Session;
use crate::table::table::Table;

/// Segments that the log is made of when it is as long as it may be.
pub(crate) const SEGMENTS: u64 = 4;

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
    /// The writer of commits that change no table: taken behind those of tables.
    pub(crate) bare_writer: Mutex<()>,
    /// Held by whoever makes or recycles segments.
    pub(crate) making: Mutex<()>,
    pub(crate) state: Mutex<State>,
    pub(crate) durable: GroupCommit,
    /// Whether a commit has not ended, and the store is poisoned: tables may hold a part of it.
    pub(crate) is_torn: AtomicBool,
    /// Bytes that this process has written to the log.
    pub(crate) log_written: AtomicU64,
    /// Bytes of the log since the last checkpoint, and when the next one is due.
    pub(crate) log_bytes: AtomicU64,
    pub(crate) due_at: AtomicU64,
    /// Makes checkpoints, if the options say that a thread does.
    pub(crate) checkpointer: HelperThread,
    /// Makes segments ahead and seals old ones, likewise.
    pub(crate) wal_helper: HelperThread,
    /// Write sets of recent commits, for the validation of transactions.
    pub(crate) write_sets: WriteSets,
    /// Indexes, with the functions that are registered.
    pub(crate) indexes: Mutex<Arc<Indexes>>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Slots of the tables that are there, by number.
    pub(crate) tables: BTreeMap<u64, Arc<Slot>>,
    /// Slots of tables that were dropped, for as long as handles have them: going back to a
    /// version may bring the table back.
    pub(crate) dropped: BTreeMap<u64, Weak<Slot>>,
    /// The number of the last commit.
    pub(crate) commit: u64,
    /// The end of the log. A process never goes on in a segment that it has found, as nobody knows
    /// what stands behind its last record: it seals that one and begins the next.
    pub(crate) log: Option<WalEnd>,
    /// Whether the manifest on disk leads there: nothing is committed to a segment that recovery
    /// would not find.
    pub(crate) is_linked: bool,
    /// Counts what was done to tables.
    pub(crate) changes: u64,
    /// The number of the newest segment that was begun.
    pub(crate) segment: u64,
    /// The segment behind that, made and not begun. Only the holder of `making` makes one.
    pub(crate) next: Option<BlankSegment>,
    /// Whether making it ahead has failed: then a commit makes it that needs it.
    pub(crate) is_next_refused: bool,
    /// Segments that no manifest needs, to be written again. Only the holder of `making` changes
    /// the list.
    pub(crate) spares: Vec<u64>,
    /// Where the records of sealed segments end, by number. What is behind is given back if a
    /// segment stays for the sake of a version.
    pub(crate) ends: BTreeMap<u64, u64>,
    /// The log that another process has left, until this one goes on behind it.
    pub(crate) found: Option<FoundLog>,
}

/// A named table, and what its writers and readers share. It outlives the table: handles keep it.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Held by a commit from its slow work to its record, and by whoever replaces or drops the
    /// table.
    pub(crate) writer: Mutex<()>,
    /// The table; `None` once it is dropped.
    pub(crate) table: Mutex<Option<Named>>,
    pub(crate) reading: Mutex<Reading>,
}

#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) table: Table,
    /// Its last change, and the last one that a manifest has.
    pub(crate) changed: u64,
    pub(crate) written: u64,
}

impl Named {
    /// A table that the manifest has as it is.
    pub(crate) fn new(table: Table) -> Self {
        Self { table, changed: 0, written: 0 }
    }
}

/// State that the readers of a table share.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// The table as the last commit left it.
    pub(crate) view: Option<Arc<Table>>,
    /// Whether anybody has asked for it since the commit before.
    pub(crate) is_wanted: bool,
}

impl Slot {
    pub(crate) fn of(table: Table) -> Arc<Self> {
        Arc::new(Self { table: Mutex::new(Some(Named::new(table))), ..Self::default() })
    }

    /// The view of the table, which the caller has locked.
    pub(crate) fn view_of(&self, named: &Named) -> Result<Arc<Table>> {
        let mut reading = lock(&self.reading);
        reading.is_wanted = true;
        match &reading.view {
            Some(view) => Ok(Arc::clone(view)),
            None => {
                let view = Arc::new(named.table.fork()?);
                reading.view = Some(Arc::clone(&view));
                Ok(view)
            }
        }
    }
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
    pub(crate) slot: &'a Arc<Slot>,
    pub(crate) updates: Vec<(&'a [u8], Update<'a>)>,
}

impl<'a> Batch<'a> {
    /// Its updates, with the number of the table.
    pub(crate) fn of_table(&self) -> impl Iterator<Item = (u64, &'a [u8], Update<'a>)> + Clone {
        self.updates.iter().map(|(key, update)| (self.key.id, *key, *update))
    }

    /// About what it takes in the log.
    pub(crate) fn bytes(&self) -> usize {
        let size = |(key, update): &(&[u8], Update<'_>)| {
            let (_, value, blob) = update.parts();
            key.len() + value.len() + blob.map_or(0, <[u8]>::len) + UPDATE_BYTES
        };
        self.updates.iter().map(size).sum()
    }
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
    pub(crate) fn slot(&self, id: u64, name: &TableName) -> Result<&Arc<Slot>> {
        let slot = self.tables.get(&id);
        slot.ok_or_else(|| Error::TableDoesNotExist { name: name.to_string() })
    }
}

impl Shared {
    pub(crate) fn is_logged(&self) -> bool {
        self.options.durability > Durability::None
    }

    /// The slots of all tables, by number.
    pub(crate) fn slots(&self) -> Vec<(u64, Arc<Slot>)> {
        let state = lock(&self.state);
        state.tables.iter().map(|(id, slot)| (*id, Arc::clone(slot))).collect()
    }

    /// Does something to a copy of a table that changes nothing of what it holds, and puts the copy
    /// in its place; the caller holds the table's writer. `None` if the table was dropped.
    pub(crate) fn rearrange<T>(
        &self,
        slot: &Slot,
        act: impl FnOnce(&mut Table) -> Result<T>,
    ) -> Result<Option<T>> {
        self.inner.check_writable()?;
        let mut copy = match &*lock(&slot.table) {
            Some(named) => named.table.copy()?,
            None => return Ok(None),
        };
        let done = act(&mut copy)?;

        let view = {
            let mut table = lock(&slot.table);
            let Some(named) = &mut *table else { return Ok(None) };
            named.table.adopt(&mut copy);
            let mut state = lock(&self.state);
            state.changes += 1;
            named.changed = state.changes;
            lock(&slot.reading).view.take()
        };
        drop((view, copy));
        Ok(Some(done))
    }

    /// Notes a change of one table in the manifest that makes it, if the store keeps a history.
    pub(crate) fn note_table(
        &self,
        published: &CurrentManifest,
        next: &mut StoreManifest,
        id: u64,
        event: impl FnOnce(&NamedMeta) -> HistoryEvent,
    ) -> Result<()> {
        if self.inner.has_feeds()? {
            let commit = lock(&self.state).commit;
            let table = next.tables.iter().find(|table| table.id == id);
            let event = event(table.expect("the table is in the manifest"));
            next.note(&published.manifest, commit, event);
        }
        Ok(())
    }

    /// Refuses to read tables that may hold a part of a commit.
    pub(crate) fn check_whole(&self) -> Result<()> {
        if self.is_torn.load(Ordering::Acquire) {
            self.inner.files().check_poisoned()?;
        }
        Ok(())
    }

    /// Waits until a commit is durable, and syncs if nobody else does.
    pub(crate) fn wait_for(&self, commit: u64) -> Result<()> {
        // Without an end of the log: recovered, and not committed to since; or there is no log.
        if self.durable.wait_for(commit)? { Ok(()) } else { self.checkpoint() }
    }
}
