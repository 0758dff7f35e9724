//! A store: a session whose named tables last, with a log that makes commits durable and a manifest.
//!
//! **Commit.** A batch, for one table or several, is applied in memory and written to the log; if either
//! fails, it is taken back. How durable it is when the call returns is the caller's choice, [`Durability`];
//! all that wait for an fsync at the same time share one.
//!
//! **Checkpoint.** When the log has grown, all tables that have changed are written out as a snapshot would be,
//! from duplicates, so that commits go on meanwhile; then the manifest says so, and the segments of the log
//! before it are used again.
//!
//! **Recovery.** The manifest names the tables and their files; the log is applied from where it says. So opening
//! takes time in proportion to the log. What the log was applied to is in memory and in files that no manifest
//! names yet, as after any commit.
//!
//! Invariants: commits have numbers without gaps, and after a crash the tables hold all commits up to some number
//! that is not below the last durable one. Locks are taken in the order `published`, `state`, `slot`, `durable`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use terrane_io::{Disk, DiskFile, RealDisk};

use crate::answer::Lookup;
use crate::config::TableConfig;
use crate::cursor::Cursor;
use crate::entry::Update;
use crate::error::{Error, Result};
use crate::files::lock;
use crate::log::{
    LOG, LogDir, LogEnd, RECORD_BYTES_MAX, RecordBuilder, SegmentHeader, SegmentScan, segment_name,
    segments,
};
use crate::manifest::{MANIFEST_BYTES_MAX, SnapshotMeta};
use crate::resolve::Resolve;
use crate::session::{Session, SessionOptions};
use crate::session_core::{ACTIVE, Holder, SessionCore, TMP_SUFFIX};
use crate::snapshot::{self, SnapshotName, Verify, WrittenOut, is_name};
use crate::stats::TableStats;
use crate::store_manifest::{self, COPIES, NamedMeta, StoreManifest};
use crate::table::{Applied, Table, deletions};
use crate::trace::event;

/// Smallest [`StoreOptions::log_bytes_max`].
pub const LOG_BYTES_MIN: u64 = 64 << 10;

/// Largest [`StoreOptions::log_bytes_max`].
pub const LOG_BYTES_MAX: u64 = 1 << 40;

/// Segments that the log is made of when it is as long as it may be.
const SEGMENTS: u64 = 4;

/// Old segments that are kept to be written again.
const SPARES_MAX: usize = SEGMENTS as usize;

/// The name of a table: as that of a snapshot, see [`SnapshotName`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName(String);

impl TableName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`Error::InvalidTableName`].
    pub fn new(text: &str) -> Result<Self> {
        if is_name(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::InvalidTableName { text: text.to_owned() })
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TableName {
    /// `main`.
    fn default() -> Self {
        Self("main".to_owned())
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a commit has survived when its call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Nothing, until a [`Store::checkpoint`] or a snapshot. As the default of a store: no log is written. For
    /// one commit of a store that has a log: as [`Buffered`](Self::Buffered).
    SnapshotOnly,
    /// The end of the process: the log is written, not synced. A loss of power takes a suffix of the commits.
    Buffered,
    /// As [`Buffered`](Self::Buffered), until [`Ticket::wait`] returns: then a loss of power. All commits that
    /// are waited for at the same time, and all before them, share one fsync.
    #[default]
    Group,
    /// A loss of power: an fsync in the call, which it shares as [`Group`](Self::Group) does.
    Each,
}

/// Where checkpoints are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CheckpointThread {
    /// In the commit that finds the log long enough.
    #[default]
    Caller,
    /// On a thread of the store; commits wait only if it falls behind by half of the log.
    Background,
}

/// How a store is opened.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StoreOptions {
    /// How its session is opened.
    pub session: SessionOptions,
    /// Of commits that do not say.
    pub durability: Durability,
    /// Bytes of the log, 64 KiB to 1 TiB; 64 MiB unless set. A checkpoint is due when half of it is written since
    /// the last one, and commits wait for it when all of it is. More takes longer to recover and rewrites less.
    pub log_bytes_max: Option<u64>,
    /// Where checkpoints are made.
    pub checkpoint_thread: CheckpointThread,
    /// Resolve functions of the tables that are not ready-made ones: the store knows their names.
    pub resolves: Vec<Resolve>,
}

impl StoreOptions {
    /// The same for a session opened otherwise.
    #[must_use]
    pub fn session(self, session: SessionOptions) -> Self {
        Self { session, ..self }
    }

    /// The same, creating a missing directory.
    #[must_use]
    pub fn create_dir(self) -> Self {
        Self { session: self.session.create_dir(), ..self }
    }

    /// The same with another [`durability`](Self::durability).
    #[must_use]
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// The same with another [`log_bytes_max`](Self::log_bytes_max).
    #[must_use]
    pub fn log_bytes_max(self, bytes: u64) -> Self {
        Self { log_bytes_max: Some(bytes), ..self }
    }

    /// The same with another [`checkpoint_thread`](Self::checkpoint_thread).
    #[must_use]
    pub fn checkpoint_thread(self, checkpoint_thread: CheckpointThread) -> Self {
        Self { checkpoint_thread, ..self }
    }

    /// The same with one more resolve function.
    #[must_use]
    pub fn resolve(mut self, resolve: Resolve) -> Self {
        self.resolves.push(resolve);
        self
    }

    fn log_bytes(&self) -> Result<u64> {
        let bytes = self.log_bytes_max.unwrap_or(64 << 20);
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes) {
            return Err(Error::InvalidConfig {
                option: "log_bytes_max",
                value: bytes.to_string(),
                allowed: format!("{LOG_BYTES_MIN} to {LOG_BYTES_MAX}"),
            });
        }
        Ok(bytes)
    }
}

/// A handle on a store; clones are the same store.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

/// A handle on a named table; clones are the same table. Threads may share it.
#[derive(Debug, Clone)]
pub struct NamedTable {
    shared: Arc<Shared>,
    key: TableKey,
    slot: Arc<Slot>,
}

/// A named table in a list of them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TableInfo {
    /// Its name.
    pub name: TableName,
    /// Its configuration.
    pub config: TableConfig,
}

/// The receipt of a commit.
#[derive(Debug, Clone)]
pub struct Ticket {
    shared: Arc<Shared>,
    commit: u64,
}

#[derive(Debug)]
struct Shared {
    core: Arc<SessionCore>,
    session: Session,
    options: StoreOptions,
    log_bytes_max: u64,
    log_dir: LogDir,
    /// Held by whoever writes another manifest.
    published: Mutex<Published>,
    state: Mutex<State>,
    durable: Mutex<Durable>,
    /// Told when `durable` changes.
    synced: Condvar,
    /// Bytes of the log since the last checkpoint, and when the next one is due.
    log_bytes: AtomicU64,
    due_at: AtomicU64,
    /// Whether a checkpoint is being made in the background.
    is_checkpointing: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct State {
    tables: BTreeMap<u64, Named>,
    /// The number of the last commit.
    commit: u64,
    /// The end of the log, once this process has begun a segment of it. It never goes on in one that it has
    /// found: nobody knows what stands behind its last record.
    log: Option<LogEnd>,
    /// Whether the manifest on disk leads there: nothing is committed to a segment that recovery would not find.
    is_linked: bool,
    /// Counts what was done to tables.
    changes: u64,
    /// The number of the newest segment that there ever was.
    segment: u64,
    /// Segments that no manifest needs, to be written again.
    spares: Vec<u64>,
}

#[derive(Debug)]
struct Named {
    table: Table,
    /// Its last change, and the last one that a manifest has.
    changed: u64,
    written: u64,
    slot: Arc<Slot>,
}

/// The manifest on disk.
#[derive(Debug)]
struct Published {
    manifest: StoreManifest,
    /// Files that an older copy names, which may be the one that survives; pinned until both are new.
    older: Vec<u64>,
}

/// A named table, as its handles know it.
#[derive(Debug, Clone)]
struct TableKey {
    id: u64,
    name: TableName,
}

/// What a commit does to one table.
#[derive(Debug)]
struct Batch<'a> {
    key: &'a TableKey,
    updates: Vec<(&'a [u8], Update<'a>)>,
}

impl Batch<'_> {
    /// About what it takes in the log.
    fn bytes(&self) -> usize {
        let size = |(key, update): &(&[u8], Update<'_>)| {
            let (_, value, blob) = update.parts();
            key.len() + value.len() + blob.map_or(0, <[u8]>::len) + 16
        };
        self.updates.iter().map(size).sum()
    }
}

/// What readers of a table have in common.
#[derive(Debug, Default)]
struct Slot(Mutex<Reading>);

#[derive(Debug, Default)]
struct Reading {
    /// The table as the last commit left it.
    view: Option<Arc<Table>>,
    /// Whether anybody has asked for it since the commit before.
    is_wanted: bool,
}

/// What is known to survive a loss of power.
#[derive(Debug)]
struct Durable {
    commit: u64,
    is_syncing: bool,
    /// The end of the log: its file, and the last commit written to it.
    end: Option<(Arc<dyn DiskFile>, u64)>,
}

/// Whether a rename has failed, and may have been done.
fn is_of_rename(error: &Error) -> bool {
    matches!(error, Error::Disk(terrane_io::Error::Io { call: "rename", .. }))
}

fn corrupted(path: &Path, reason: impl Into<String>) -> Error {
    Error::StoreCorrupted { path: path.to_owned(), reason: reason.into() }
}

/// An error met while the tables or the log of a store were read: as the damage that it is, if so.
fn damaged(error: Error) -> Error {
    match error {
        Error::Corrupt { path, what } => corrupted(&path, what.to_string()),
        Error::Disk(terrane_io::Error::Io { path, source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            corrupted(&path, "the file is missing")
        }
        Error::Disk(terrane_io::Error::ShortRead { path, .. }) => {
            corrupted(&path, "the file ends early")
        }
        error => error,
    }
}

impl Store {
    /// Opens a store on the real disk: [`open`](Self::open) with [`RealDisk::auto`].
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_dir(dir: impl AsRef<Path>, options: &StoreOptions) -> Result<Self> {
        Self::open(RealDisk::auto(), dir.as_ref(), options)
    }

    /// Opens the store in `dir`, a directory of a session, or makes one if the directory is empty.
    ///
    /// Cost: that of opening a session and one snapshot for each named table, and of applying the log since the
    /// last checkpoint.
    ///
    /// # Errors
    /// As [`Session::open`]; [`Error::StoreCorrupted`], [`Error::ResolveNotCompatible`],
    /// [`Error::InvalidConfig`].
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: &StoreOptions) -> Result<Self> {
        let log_bytes_max = options.log_bytes()?;
        let session = Session::open(Arc::clone(&disk), dir, &options.session)?;
        let core = Arc::clone(session.core());
        let found = store_manifest::read(disk.as_ref(), dir)?;
        let older = found.older.iter().flat_map(StoreManifest::numbers).collect();
        let manifest = found.manifest.unwrap_or_default();
        for name in COPIES {
            let unfinished = dir.join(format!("{name}{TMP_SUFFIX}"));
            if disk.kind(&unfinished)?.is_some() {
                disk.remove(&unfinished)?;
            }
        }
        let mut state = State {
            tables: open_tables(&core, &manifest, &options.resolves)?,
            commit: manifest.commit,
            log: None,
            is_linked: false,
            changes: 0,
            segment: 0,
            spares: Vec::new(),
        };
        let log_bytes = recover(&core, &manifest, &mut state)?;
        let durable = Durable { commit: manifest.commit, is_syncing: false, end: None };
        let shared = Arc::new(Shared {
            log_dir: LogDir::new(disk, dir, log_bytes_max / SEGMENTS),
            core,
            session,
            options: options.clone(),
            log_bytes_max,
            published: Mutex::new(Published { manifest, older }),
            state: Mutex::new(state),
            durable: Mutex::new(durable),
            synced: Condvar::new(),
            log_bytes: AtomicU64::new(log_bytes),
            due_at: AtomicU64::new(log_bytes_max / 2),
            is_checkpointing: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        Ok(Self { shared })
    }

    /// The store's session, for tables that do not last, and for snapshots.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.shared.session
    }

    /// Makes an empty table, durably; all commits before are durable then, too.
    ///
    /// Cost: writes and syncs the two copies of the manifest, and syncs the log.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::InvalidConfig`], [`Error::Disk`], [`Error::Poisoned`],
    /// [`Error::SessionClosed`]. After an error, or a crash, there is no such table, or an empty one.
    pub fn create_table(&self, name: &TableName, config: &TableConfig) -> Result<NamedTable> {
        config.validate()?;
        let shared = &self.shared;
        let mut published = lock(&shared.published);
        shared.core.check_writable()?;
        if published.manifest.tables.iter().any(|table| table.name == name.0) {
            return Err(Error::TableExists { name: name.to_string() });
        }
        let table = shared.session.new_table(config)?;
        let id = published.manifest.next_table;
        let meta = SnapshotMeta {
            created_ns: shared.core.disk().clock().wall().as_nanos() as u64,
            resolve: config.resolve.name().to_owned(),
            config: config.clone(),
            ..SnapshotMeta::default()
        };
        shared.make_durable(&mut published)?;
        let mut next = published.manifest.clone();
        next.next_table += 1;
        next.tables.push(NamedMeta { id, name: name.0.clone(), meta });
        shared.publish(&mut published, next)?;
        let slot = Arc::new(Slot::default());
        let named = Named { table, changed: 0, written: 0, slot: Arc::clone(&slot) };
        lock(&shared.state).tables.insert(id, named);
        Ok(NamedTable {
            shared: Arc::clone(shared),
            key: TableKey { id, name: name.clone() },
            slot,
        })
    }

    /// A named table. Cost: no I/O.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`], [`Error::SessionClosed`].
    pub fn table(&self, name: &TableName) -> Result<NamedTable> {
        self.shared.core.check_open()?;
        let published = lock(&self.shared.published);
        let id = published.manifest.find(name)?;
        let state = lock(&self.shared.state);
        let named = state.table(id, name)?;
        let slot = Arc::clone(&named.slot);
        Ok(NamedTable {
            shared: Arc::clone(&self.shared),
            key: TableKey { id, name: name.clone() },
            slot,
        })
    }

    /// The named tables, sorted by name. Cost: no I/O.
    ///
    /// # Errors
    /// [`Error::SessionClosed`].
    pub fn tables(&self) -> Result<Vec<TableInfo>> {
        self.shared.core.check_open()?;
        let published = lock(&self.shared.published);
        let state = lock(&self.shared.state);
        let mut tables = Vec::new();
        for table in &published.manifest.tables {
            let name = TableName(table.name.clone());
            let config = state.table(table.id, &name)?.table.config().clone();
            tables.push(TableInfo { name, config });
        }
        tables.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(tables)
    }

    /// Gives a table another name, durably; all commits before are durable then, too. Handles on it stay
    /// valid.
    ///
    /// Cost: as [`create_table`](Self::create_table).
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`], [`Error::TableExists`], [`Error::Disk`], [`Error::Poisoned`],
    /// [`Error::SessionClosed`]. After an error, or a crash, it has the one name or the other.
    pub fn rename_table(&self, from: &TableName, to: &TableName) -> Result<()> {
        let mut published = lock(&self.shared.published);
        self.shared.core.check_writable()?;
        let id = published.manifest.find(from)?;
        if published.manifest.tables.iter().any(|table| table.name == to.0) {
            return Err(Error::TableExists { name: to.to_string() });
        }
        self.shared.make_durable(&mut published)?;
        let mut next = published.manifest.clone();
        for table in next.tables.iter_mut().filter(|table| table.id == id) {
            table.name.clone_from(&to.0);
        }
        self.shared.publish(&mut published, next).map(drop)
    }

    /// Removes a table, durably; all commits before are durable then, too. Views, duplicates and snapshots of
    /// it stay.
    ///
    /// Cost: as [`create_table`](Self::create_table); unlinks the files that nobody else needs.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`], [`Error::Disk`], [`Error::Poisoned`], [`Error::SessionClosed`]. After an
    /// error, or a crash, the table is there as it was, or gone.
    pub fn drop_table(&self, name: &TableName) -> Result<()> {
        let shared = &self.shared;
        let mut published = lock(&shared.published);
        shared.core.check_writable()?;
        let id = published.manifest.find(name)?;
        shared.make_durable(&mut published)?;
        let mut next = published.manifest.clone();
        next.tables.retain(|table| table.id != id);
        // No commit may come in between that would be durable and yet for nothing.
        let mut state = lock(&shared.state);
        shared.publish(&mut published, next)?;
        let dropped = state.tables.remove(&id);
        drop(state);
        if let Some(named) = dropped {
            lock(&named.slot.0).view = None;
        }
        Ok(())
    }

    /// Commits batches for several tables, all or nothing, with the durability of the store. The batches are
    /// applied in their order; a table may come more than once.
    ///
    /// # Errors
    /// As [`commit_with`](Self::commit_with).
    pub fn commit<K: AsRef<[u8]>>(
        &self,
        batches: &[(&NamedTable, &[(K, Update<'_>)])],
    ) -> Result<Ticket> {
        self.commit_with(batches, self.shared.options.durability)
    }

    /// The same with a durability of its own. In a store without a log, what becomes durable does so by a
    /// checkpoint.
    ///
    /// Cost: as [`Table::updates`]; one write to the log, as long as the batches, and what the durability
    /// asks for. Now and then a checkpoint, see [`StoreOptions::log_bytes_max`].
    ///
    /// # Errors
    /// Those of [`Table::updates`]; [`Error::CommitTooLarge`]; [`Error::TableDoesNotExist`] for a table that
    /// was dropped or belongs to another store. Nothing was changed then. But if the waiting of
    /// [`Each`](Durability::Each) fails, the commit is seen and not durable: a failed fsync poisons the store; in
    /// a store without a log [`sync`](Self::sync) tries again.
    pub fn commit_with<K: AsRef<[u8]>>(
        &self,
        batches: &[(&NamedTable, &[(K, Update<'_>)])],
        durability: Durability,
    ) -> Result<Ticket> {
        let shared = &self.shared;
        // One for each table: what is taken back is the last thing that was done to it.
        let mut grouped: Vec<Batch<'_>> = Vec::with_capacity(batches.len());
        for (table, updates) in batches {
            if !Arc::ptr_eq(&table.shared, shared) {
                return Err(Error::TableDoesNotExist { name: table.key.name.to_string() });
            }
            let updates = updates.iter().map(|(key, update)| (key.as_ref(), *update));
            match grouped.iter_mut().find(|batch| batch.key.id == table.key.id) {
                Some(batch) => batch.updates.extend(updates),
                None => grouped.push(Batch { key: &table.key, updates: updates.collect() }),
            }
        }
        shared.begin_log()?;
        shared.make_checkpoint_if_due()?;
        let commit = shared.commit(&mut lock(&shared.state), &grouped)?;
        let ticket = Ticket { shared: Arc::clone(shared), commit };
        if durability == Durability::Each {
            ticket.wait()?;
        }
        Ok(ticket)
    }

    /// The number of the last commit; 0 before the first.
    #[must_use]
    pub fn last_commit(&self) -> u64 {
        lock(&self.shared.state).commit
    }

    /// The number of the last commit that is known to survive a loss of power.
    #[must_use]
    pub fn durable_commit(&self) -> u64 {
        lock(&self.shared.durable).commit
    }

    /// Makes all commits so far durable.
    ///
    /// Cost: an fsync of the log, unless there is nothing to sync; in a store without a log, a checkpoint.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Poisoned`], [`Error::SessionClosed`].
    pub fn sync(&self) -> Result<()> {
        self.shared.wait_for(self.last_commit())
    }

    /// Writes out what is only in memory and in the log, so that neither is needed to open the store.
    ///
    /// Cost: for each table that has changed since the last one as [`Table::save_snapshot`], but for one small
    /// file: the two copies of the manifest are written and synced for all together.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Poisoned`], [`Error::SessionClosed`]. Nothing is lost then; the next one does
    /// it.
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.checkpoint()
    }

    /// Makes a [`checkpoint`](Self::checkpoint), if the store has a log, and ends the store and its session for all
    /// handles.
    ///
    /// # Errors
    /// Those of [`checkpoint`](Self::checkpoint) and [`Session::close`]. The store is closed in any case.
    pub fn close(&self) -> Result<()> {
        let shared = &self.shared;
        let is_ours = lock(&shared.state).is_linked;
        let written = if is_ours && shared.core.check_writable().is_ok() {
            shared.checkpoint()
        } else {
            Ok(())
        };
        let closed = shared.session.close();
        if let Some(thread) = lock(&shared.thread).take() {
            // It tells what it fails at as an event.
            drop(thread.join());
        }
        written.and(closed)
    }
}

impl NamedTable {
    /// Its name when the handle was made.
    #[must_use]
    pub fn name(&self) -> &TableName {
        &self.key.name
    }

    /// The table as the last commit left it: later ones change nothing in it.
    ///
    /// Cost: as [`Table::duplicate`], once for all that read between two commits.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`] if it was dropped, [`Error::SessionClosed`].
    pub fn view(&self) -> Result<Arc<Table>> {
        self.shared.core.check_open()?;
        {
            let mut reading = lock(&self.slot.0);
            reading.is_wanted = true;
            if let Some(view) = &reading.view {
                return Ok(Arc::clone(view));
            }
        }
        let state = lock(&self.shared.state);
        let named = state.table(self.key.id, &self.key.name)?;
        let mut reading = lock(&named.slot.0);
        if reading.view.is_none() {
            reading.view = Some(Arc::new(named.table.duplicate()?));
        }
        reading.view.clone().ok_or(Error::SessionClosed)
    }

    /// As [`Table::lookup`] of the [`view`](Self::view).
    ///
    /// # Errors
    /// As [`Table::lookups`] and [`view`](Self::view).
    pub fn lookup(&self, key: &[u8]) -> Result<Lookup> {
        self.view()?.lookup(key)
    }

    /// As [`Table::lookups`] of the [`view`](Self::view).
    ///
    /// # Errors
    /// As [`Table::lookups`] and [`view`](Self::view).
    pub fn lookups<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Lookup>> {
        self.view()?.lookups(keys)
    }

    /// As [`Table::cursor`] of the [`view`](Self::view); other cursors are made from a view.
    ///
    /// # Errors
    /// As [`view`](Self::view).
    pub fn cursor(&self) -> Result<Cursor> {
        self.view()?.cursor()
    }

    /// An independent table of the same content, which does not last.
    ///
    /// # Errors
    /// As [`view`](Self::view).
    pub fn duplicate(&self) -> Result<Table> {
        self.view()?.duplicate()
    }

    /// As [`Table::save_snapshot`] of the [`view`](Self::view).
    ///
    /// # Errors
    /// As [`Table::save_snapshot`] and [`view`](Self::view).
    pub fn save_snapshot(&self, name: &SnapshotName, label: &str) -> Result<()> {
        self.view()?.save_snapshot(name, label)
    }

    /// As [`Table::stats`]; counts of lookups are those of the views' own.
    ///
    /// # Errors
    /// As [`view`](Self::view).
    pub fn stats(&self) -> Result<TableStats> {
        let state = lock(&self.shared.state);
        Ok(state.table(self.key.id, &self.key.name)?.table.stats())
    }

    /// Commits a batch with the durability of the store: [`Store::commit`] for one table.
    ///
    /// # Errors
    /// As [`Store::commit_with`].
    pub fn updates<K: AsRef<[u8]>>(&self, batch: &[(K, Update<'_>)]) -> Result<Ticket> {
        Store { shared: Arc::clone(&self.shared) }.commit(&[(self, batch)])
    }

    /// Commits the insertion of one entry.
    ///
    /// # Errors
    /// As [`Store::commit_with`].
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<Ticket> {
        self.updates(&[(key, Update::Insert(value))])
    }

    /// Commits an upsert of one key.
    ///
    /// # Errors
    /// As [`Store::commit_with`].
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Ticket> {
        self.updates(&[(key, Update::Upsert(value))])
    }

    /// Changes the configuration, durably: see [`Table::set_config`].
    ///
    /// Cost: a [`Store::checkpoint`].
    ///
    /// # Errors
    /// As [`Table::set_config`] and [`Store::checkpoint`]; [`Error::TableDoesNotExist`]. After an error the
    /// table has the configuration that it had.
    pub fn set_config(&self, config: &TableConfig) -> Result<()> {
        let mut published = lock(&self.shared.published);
        let set = |config: &TableConfig| -> Result<TableConfig> {
            let mut state = lock(&self.shared.state);
            let before = state.table(self.key.id, &self.key.name)?.table.config().clone();
            let change = state.changes + 1;
            if let Some(named) = state.tables.get_mut(&self.key.id) {
                named.table.set_config(config)?;
                named.changed = change;
                lock(&named.slot.0).view = None;
            }
            state.changes = change;
            Ok(before)
        };
        let before = set(config)?;
        self.shared.checkpoint_over(&mut published).or_else(|error| {
            set(&before)?;
            Err(error)
        })
    }

    /// Commits the deletion of one key.
    ///
    /// # Errors
    /// As [`Store::commit_with`].
    pub fn delete(&self, key: &[u8]) -> Result<Ticket> {
        self.updates(&[(key, Update::Delete)])
    }
}

impl NamedTable {
    /// Commits the deletion of all keys in a range, with the durability of the store; says how many there were.
    ///
    /// Cost: reads the range, while other commits wait, and commits as many deletions.
    ///
    /// # Errors
    /// As [`Store::commit_with`] and [`Cursor::next`].
    pub fn delete_range<K: AsRef<[u8]> + ?Sized, R: RangeBounds<K>>(
        &self,
        range: R,
    ) -> Result<(u64, Ticket)> {
        self.delete_over(|table| table.range::<K, R>(range))
    }

    /// Commits the deletion of all keys that begin with `prefix`: as [`delete_range`](Self::delete_range).
    ///
    /// # Errors
    /// As [`delete_range`](Self::delete_range).
    pub fn delete_prefix(&self, prefix: &[u8]) -> Result<(u64, Ticket)> {
        self.delete_over(|table| table.prefix(prefix))
    }

    fn delete_over(&self, cursor: impl FnOnce(&Table) -> Result<Cursor>) -> Result<(u64, Ticket)> {
        let shared = &self.shared;
        shared.begin_log()?;
        shared.make_checkpoint_if_due()?;
        let (count, commit) = {
            let mut state = lock(&shared.state);
            let keys =
                cursor(&state.table(self.key.id, &self.key.name)?.table)?.take_keys(usize::MAX)?;
            let batch = Batch { key: &self.key, updates: deletions(&keys) };
            let commit = shared.commit(&mut state, &[batch])?;
            (keys.len() as u64, commit)
        };
        let ticket = Ticket { shared: Arc::clone(shared), commit };
        if shared.options.durability == Durability::Each {
            ticket.wait()?;
        }
        Ok((count, ticket))
    }
}

impl Ticket {
    /// The number of the commit.
    #[must_use]
    pub fn commit(&self) -> u64 {
        self.commit
    }

    /// Whether the commit is known to survive a loss of power.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        lock(&self.shared.durable).commit >= self.commit
    }

    /// Waits until the commit survives a loss of power, with an fsync that all share who wait.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn wait(&self) -> Result<()> {
        self.shared.wait_for(self.commit)
    }
}

impl StoreManifest {
    fn find(&self, name: &TableName) -> Result<u64> {
        let table = self.tables.iter().find(|table| table.name == name.0);
        Ok(table.ok_or_else(|| Error::TableDoesNotExist { name: name.to_string() })?.id)
    }
}

impl State {
    fn table(&self, id: u64, name: &TableName) -> Result<&Named> {
        let table = self.tables.get(&id);
        table.ok_or_else(|| Error::TableDoesNotExist { name: name.to_string() })
    }

    /// Applies batches of different tables; what was done of them is in `applied`, also after an error.
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
            reading.view = is_wanted.then(|| named.table.duplicate().ok()).flatten().map(Arc::new);
        }
    }
}

impl Shared {
    fn is_logged(&self) -> bool {
        self.options.durability > Durability::SnapshotOnly
    }

    /// Before the first commit: begins the log, unless that has been done, with what was recovered behind it.
    fn begin_log(&self) -> Result<()> {
        let is_begun = !self.is_logged() || lock(&self.state).is_linked;
        if is_begun { Ok(()) } else { self.checkpoint_over(&mut lock(&self.published)) }
    }

    /// Makes the directory of the log, unless it is there.
    fn make_log_dir(&self) -> Result<()> {
        let (disk, dir) = (self.core.disk(), self.core.dir().join(LOG));
        if disk.kind(&dir)?.is_some() {
            return Ok(());
        }
        disk.create_dir(&dir)?;
        let synced = self.core.sync_root();
        if synced.is_err()
            // No later sync can be trusted with this name; the next attempt makes a new one.
            && let Err(error) = disk.remove_dir(&dir)
        {
            event!(WARN, "cleanup.failed", self.core.dir(), %error);
        }
        synced
    }

    /// Writes a manifest whose files are durable. Says whether both copies are new.
    fn publish(&self, published: &mut Published, next: StoreManifest) -> Result<bool> {
        let next = StoreManifest { sequence: published.manifest.sequence + 1, ..next };
        let (core, files) = (&self.core, self.core.files());
        let bytes = next.encode();
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(Error::SnapshotTooLarge { bytes: bytes.len(), limit: MANIFEST_BYTES_MAX });
        }
        core.sync_dir(ACTIVE)?;
        files.pin(next.numbers());
        let _right = files.open_files().may_write()?;
        let [first, second] = COPIES.map(|name| core.dir().join(name));
        if let Err(error) = core.write_whole(&first, &bytes) {
            if is_of_rename(&error) {
                // Nobody knows whether it has its name.
                self.poison(&first, error)?;
            } else {
                self.unpin(next.numbers().collect());
                return Err(error);
            }
        }
        let both = core.write_whole(&second, &bytes);
        // After a failed sync the copies may be there or not: what they name stays.
        core.sync_root()?;
        let old = std::mem::replace(&mut published.manifest, next);
        published.older.extend(old.numbers());
        if let Err(error) = both {
            event!(WARN, "cleanup.failed", core.dir(), %error);
            return Ok(false);
        }
        self.unpin(std::mem::take(&mut published.older));
        Ok(true)
    }

    /// Lets go of files that no manifest names any more.
    fn unpin(&self, numbers: Vec<u64>) {
        if let Err(error) = self.core.files().unpin(numbers) {
            event!(WARN, "cleanup.failed", self.core.dir(), %error);
        }
    }

    /// After a failure that leaves it open what is on disk: as after a failed sync.
    fn poison(&self, path: &Path, error: Error) -> Result<()> {
        event!(WARN, "cleanup.failed", self.core.dir(), %error);
        match error {
            Error::Disk(error) => self.core.files().synced(path, Err(error)),
            error => Err(error),
        }
    }

    /// Begins another segment of the log, for a record of so many bytes. If the manifest leads to the old one,
    /// what is in that is durable then.
    fn begin_segment(&self, state: &mut State, record: usize) -> Result<()> {
        let files = self.core.files();
        files.check_poisoned()?;
        let _right = files.open_files().may_write()?;
        if state.log.is_none() {
            self.make_log_dir()?;
        }
        let header = SegmentHeader { number: state.segment + 1, first: state.commit + 1 };
        let spare = state.spares.pop();
        let end = files.open_files().with_room(|| self.log_dir.begin(header, record, spare))?;
        files.synced(end.file.path(), end.file.sync())?;
        self.core.sync_dir(LOG)?;
        if let Some(old) = state.log.as_ref().filter(|_| state.is_linked) {
            // The seal says that all of this is durable, so it comes after.
            self.sync_in_turn(&old.file, state.commit)?;
            old.seal(state.commit).or_else(|error| self.poison(old.file.path(), error))?;
            self.sync_in_turn(&old.file, state.commit)?;
            lock(&self.durable).end = Some((Arc::clone(&end.file), state.commit));
        }
        state.segment = header.number;
        state.log = Some(end);
        Ok(())
    }

    /// Syncs a file of the log that has the commits up to `last`, when nobody else does: a failure is told
    /// once only.
    fn sync_in_turn(&self, file: &Arc<dyn DiskFile>, last: u64) -> Result<()> {
        let mut durable = lock(&self.durable);
        while durable.is_syncing {
            durable = self.synced.wait(durable).unwrap_or_else(PoisonError::into_inner);
        }
        self.sync_now(durable, file, last).map(drop)
    }

    /// Takes the turn, syncs, and gives it back.
    fn sync_now<'a>(
        &'a self,
        mut durable: MutexGuard<'a, Durable>,
        file: &Arc<dyn DiskFile>,
        last: u64,
    ) -> Result<MutexGuard<'a, Durable>> {
        self.core.files().check_poisoned()?;
        durable.is_syncing = true;
        drop(durable);
        let synced = self.core.files().synced(file.path(), file.sync());
        let mut durable = lock(&self.durable);
        durable.is_syncing = false;
        if synced.is_ok() {
            durable.commit = durable.commit.max(last);
        }
        self.synced.notify_all();
        synced.map(|()| durable)
    }

    /// Applies a commit and writes it to the log. Returns its number.
    fn commit(&self, state: &mut State, batches: &[Batch<'_>]) -> Result<u64> {
        let mut record = RecordBuilder::new();
        if self.is_logged() {
            let (bytes, limit) = (batches.iter().map(Batch::bytes).sum(), RECORD_BYTES_MAX);
            if bytes > limit {
                return Err(Error::CommitTooLarge { bytes, limit });
            }
            for batch in batches {
                record.part(batch.key.id, &batch.updates);
            }
        }
        self.core.check_writable()?;
        if self.is_logged() && !state.log.as_ref().is_some_and(|log| log.has_room(record.len())) {
            self.begin_segment(state, record.len())?;
        }
        // A resolve function that panics leaves a part of the commit behind.
        let unwinding = Unwinding(self);
        let mut applied = Vec::new();
        let done = state.apply(batches, &mut applied);
        let done = done.and_then(|()| self.write(state, record));
        if done.is_err() {
            state.take_back(applied);
        }
        std::mem::forget(unwinding);
        done?;
        state.commit += 1;
        state.show(batches.iter().map(|batch| batch.key.id));
        Ok(state.commit)
    }

    /// Writes the next commit to the log, if there is one.
    fn write(&self, state: &mut State, record: RecordBuilder) -> Result<()> {
        let Some(log) = state.log.as_mut().filter(|_| self.is_logged()) else { return Ok(()) };
        let _right = self.core.files().open_files().may_write()?;
        let commit = state.commit + 1;
        let known = lock(&self.durable).commit;
        let record = record.finish(self.core.salt(), log.number, commit, known);
        if let Err(error) = log.write(&record) {
            // Nobody must read what there may be of it, now or later.
            let path = log.file.path();
            log.withdraw().or_else(|error| self.poison(path, error))?;
            self.core.files().synced(path, log.file.sync())?;
            return Err(error);
        }
        self.log_bytes.fetch_add(record.len() as u64, Ordering::Relaxed);
        lock(&self.durable).end = Some((Arc::clone(&log.file), commit));
        Ok(())
    }

    /// Waits until a commit is durable, and syncs if nobody else does.
    fn wait_for(&self, commit: u64) -> Result<()> {
        let mut durable = lock(&self.durable);
        loop {
            if durable.commit >= commit {
                return Ok(());
            }
            self.core.check_writable()?;
            if durable.is_syncing {
                durable = self.synced.wait(durable).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some((file, last)) = durable.end.clone() else {
                // Recovered, and not committed to since; or there is no log.
                drop(durable);
                return self.checkpoint();
            };
            durable = self.sync_now(durable, &file, last)?;
        }
    }

    /// Makes all commits so far durable.
    fn make_durable(&self, published: &mut Published) -> Result<()> {
        let (last, is_linked) = {
            let state = lock(&self.state);
            (state.commit, state.is_linked)
        };
        if is_linked { self.wait_for(last) } else { self.checkpoint_over(published) }
    }

    /// A checkpoint, here or on the thread, if the log is long enough. An error only if it is too long.
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

    fn is_due(&self) -> bool {
        let bytes = self.log_bytes.load(Ordering::Relaxed);
        self.is_logged() && bytes >= self.due_at.load(Ordering::Relaxed).min(self.log_bytes_max)
    }

    /// A checkpoint, unless somebody else has made it meanwhile. After a failure the next one is due an eighth
    /// of the log later.
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
            event!(WARN, "checkpoint.failed", self.core.dir(), %error);
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

    fn checkpoint(&self) -> Result<()> {
        self.checkpoint_over(&mut lock(&self.published))
    }

    fn checkpoint_over(&self, published: &mut Published) -> Result<()> {
        self.core.check_writable()?;
        let mut next = published.manifest.clone();
        let (copies, log_bytes) = {
            let mut state = lock(&self.state);
            let state = &mut *state;
            let copies = state.changed_copies()?;
            let is_begun = !self.is_logged() || state.is_linked;
            if state.commit == published.manifest.commit && copies.is_empty() && is_begun {
                return Ok(());
            }
            if self.is_logged() {
                let is_empty = state.log.as_ref().is_some_and(LogEnd::is_empty);
                if !(state.is_linked && is_empty) {
                    self.begin_segment(state, 0)?;
                }
                next.segment = state.segment;
            } else {
                next.segment = 0;
            }
            next.commit = state.commit;
            (copies, self.log_bytes.load(Ordering::Relaxed))
        };
        let commit = next.commit;
        event!(DEBUG, "store.checkpoint", self.core.dir(), commit);
        let written = write_out(&copies, &mut next)?;
        let both = self.publish(published, next)?;
        for written in &written {
            written.share(&self.core);
        }
        self.log_bytes.fetch_sub(log_bytes, Ordering::Relaxed);
        {
            let mut state = lock(&self.state);
            for (id, changed, _) in &copies {
                if let Some(named) = state.tables.get_mut(id) {
                    named.written = *changed;
                }
            }
            state.is_linked = self.is_logged();
            let mut durable = lock(&self.durable);
            durable.commit = durable.commit.max(commit);
            if durable.end.is_none() {
                let end = state.log.as_ref().filter(|_| state.is_linked);
                durable.end = end.map(|log| (Arc::clone(&log.file), state.commit));
            }
        }
        self.synced.notify_all();
        if both {
            self.recycle(published.manifest.segment);
        }
        event!(DEBUG, "store.checkpointed", self.core.dir(), commit);
        Ok(())
    }

    /// Keeps some of the segments that are not needed any more, and removes the others.
    fn recycle(&self, needed_from: u64) {
        let mut state = lock(&self.state);
        if let Err(error) = self.recycle_from(&mut state, needed_from) {
            event!(WARN, "cleanup.failed", self.core.dir(), %error);
        }
    }

    fn recycle_from(&self, state: &mut State, needed_from: u64) -> Result<()> {
        if state.segment == 0 {
            return Ok(());
        }
        let _right = self.core.files().open_files().may_write()?;
        let needed_from = if needed_from == 0 { state.segment + 1 } else { needed_from };
        for number in segments(self.core.disk(), self.core.dir())? {
            if number >= needed_from || state.spares.contains(&number) {
                continue;
            }
            if self.is_logged() && state.spares.len() < SPARES_MAX {
                state.spares.push(number);
            } else {
                self.core.disk().remove(&self.log_dir.path(number))?;
            }
        }
        Ok(())
    }
}

/// Poisons a store if it is dropped: nobody knows what a commit has left that did not end.
struct Unwinding<'a>(&'a Shared);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        let dir = self.0.core.dir();
        let error = terrane_io::Error::io("commit", dir, std::io::Error::other("a panic"));
        drop(self.0.core.files().synced(dir, Err(error)));
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
    /// Duplicates of the tables that have changed, with their last change.
    fn changed_copies(&self) -> Result<Vec<(u64, u64, Table)>> {
        let changed = self.tables.iter().filter(|(_, named)| named.changed > named.written);
        changed.map(|(id, named)| Ok((*id, named.changed, named.table.duplicate()?))).collect()
    }
}

/// Writes tables out, and puts what they need into a manifest.
fn write_out(
    copies: &[(u64, u64, Table)],
    manifest: &mut StoreManifest,
) -> Result<Vec<WrittenOut>> {
    let mut all = Vec::new();
    for (id, _, table) in copies {
        let written = table.write_out()?;
        for named in manifest.tables.iter_mut().filter(|named| named.id == *id) {
            named.meta.clone_from(&written.meta);
        }
        all.push(written);
    }
    Ok(all)
}

/// Opens all named tables.
fn open_tables(
    core: &Arc<SessionCore>,
    manifest: &StoreManifest,
    resolves: &[Resolve],
) -> Result<BTreeMap<u64, Named>> {
    let mut tables = BTreeMap::new();
    for NamedMeta { id, name, meta } in &manifest.tables {
        let session = core.register(Holder::Table);
        let mut meta = meta.clone();
        let given = resolves.iter().find(|resolve| resolve.name() == meta.resolve);
        meta.config.resolve = snapshot::resolve_of(name, &meta.resolve, given)?;
        let tree = snapshot::open_tree(&session, name, &meta, Verify::Lazy).map_err(damaged)?;
        let table = Table::new(session, tree, meta.config);
        let named = Named { table, changed: 0, written: 0, slot: Arc::default() };
        tables.insert(*id, named);
    }
    Ok(tables)
}

/// Applies the log from where the manifest says. Returns how long that part is.
fn recover(core: &SessionCore, manifest: &StoreManifest, state: &mut State) -> Result<u64> {
    let (disk, dir) = (core.disk(), core.dir());
    let has_log = disk.kind(&dir.join(LOG))?.is_some();
    let numbers = if has_log { segments(disk, dir)? } else { Vec::new() };
    if manifest.segment == 0 {
        state.segment = numbers.last().copied().unwrap_or(0);
        state.spares = numbers;
        return Ok(0);
    }
    let mut log_bytes = 0;
    state.segment = manifest.segment - 1;
    loop {
        let number = state.segment + 1;
        let is_there = numbers.contains(&number);
        let scan = if is_there { SegmentScan::open(disk, dir, core.salt(), number)? } else { None };
        let Some(scan) = scan else {
            // The segment before says that it was there.
            let path = dir.join(LOG).join(segment_name(number));
            let reason = if is_there { "not a segment of the log" } else { "the file is missing" };
            return Err(corrupted(&path, reason));
        };
        let is_sealed = scan.sealed.is_some();
        log_bytes += apply_segment(scan, state).map_err(damaged)?;
        state.segment = number;
        if !is_sealed {
            break;
        }
    }
    for number in numbers {
        if number < manifest.segment {
            state.spares.push(number);
        } else if number > state.segment {
            if let Some(mut scan) = SegmentScan::open(disk, dir, core.salt(), number)?
                && scan.next()?.is_some()
            {
                // Records are written to a segment only when the one before is sealed.
                let path = dir.join(LOG).join(segment_name(state.segment));
                return Err(corrupted(&path, "the seal is missing"));
            }
            // It was being made when the process ended.
            disk.remove(&dir.join(LOG).join(segment_name(number)))?;
        }
    }
    Ok(log_bytes)
}

/// Applies the records of a segment. Returns the length of the segment up to there.
fn apply_segment(mut scan: SegmentScan, state: &mut State) -> Result<u64> {
    let first = scan.header.first;
    if first != state.commit + 1 {
        return Err(scan.damage(0, "first commit of the segment", state.commit + 1, first));
    }
    loop {
        let at = scan.position();
        let Some(record) = scan.next()? else { break };
        if record.commit != state.commit + 1 {
            return Err(scan.damage(at, "number of the commit", state.commit + 1, record.commit));
        }
        let Ok(parts) = record.parts() else {
            return Err(scan.damage(at, "updates of the commit", record.commit, 0));
        };
        for part in &parts {
            // A table that is not there was dropped since.
            if let Some(named) = state.tables.get_mut(&part.table) {
                named.table.updates(&part.updates)?;
                (state.changes, named.changed) = (state.changes + 1, state.changes + 1);
            }
        }
        state.commit = record.commit;
    }
    match scan.sealed {
        Some(last) if last != state.commit => {
            return Err(scan.damage(
                scan.position(),
                "last commit of the segment",
                last,
                state.commit,
            ));
        }
        Some(_) => {}
        None => scan.check_end(state.commit)?,
    }
    Ok(scan.position())
}
