//! A store: a session whose named tables last, with a log that makes commits durable and a
//! manifest.
//!
//! **Commit.** A batch, for one table or several, is applied in memory and written to the log; if
//! either fails, it is taken back. How durable it is when the call returns is the caller's choice,
//! [`Durability`]; all that wait for an fsync at the same time share one.
//!
//! **Checkpoint.** When the log has grown, all tables that have changed are written out as a
//! snapshot would be, from duplicates, so that commits go on meanwhile; then the manifest says so,
//! and the segments of the log before it are used again.
//!
//! **Recovery.** The manifest names the tables and their files; the log is applied from where it
//! says, in memory, up to 128 MiB in each table. So opening takes time in proportion to the log.
//! The first commit makes the log that was found durable, seals it and goes on behind it; the next
//! checkpoint writes out what was applied. So a deletion on a full disk takes no more than one
//! small segment. The merges that are due then are shares of later updates.

use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::path::Path;

use terrane_io::rare;
use terrane_io::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrane_io::sync::{Arc, Mutex, Weak};
use terrane_io::{Disk, Durability, RealDisk};

use crate::compaction::compaction::Compaction;
use crate::config::TableConfig;
use crate::entry::entry::Update;
use crate::entry::key_range::KeyRange;
use crate::entry::mask::Span;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::lookup::result::{Lookup, Values};
use crate::manifest::history::{self, HistoryEvent};
use crate::manifest::manifest::{self, COPIES, NamedMeta, StoreManifest};
use crate::manifest::snapshot_meta::SnapshotMeta;
use crate::manifest::wal::WalDir;
use crate::memory::grants::check_session_budget;
use crate::run::check::Progress;
use crate::session::current_manifest::{CurrentManifest, sync_edits};
use crate::session::group_commit::GroupCommit;
use crate::session::inner::{Holder, TMP_SUFFIX};
use crate::session::snapshot::SnapshotName;
use crate::stats::TableStats;
use crate::store::backup::{self, BackupPlace, BackupReport, Source};
use crate::store::helper::HelperThread;
use crate::store::index_entries::Indexes;
use crate::store::inner::{Batch, LogRoom, Named, SEGMENTS, Shared, Slot, State, TableKey};
use crate::store::options::{StoreOptions, TableName, WRITE_SET_BYTES};
use crate::store::recovery::{open_tables, recover};
use crate::store::write_sets::WriteSets;
use crate::table::cursor::Cursor;
use crate::table::session::Session;
use crate::table::table::Table;
use crate::trace::event;

/// A handle on a store; clones are the same store.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
}

/// A handle on a named table; clones are the same table. Threads may share it.
///
/// Each call that changes the table is a commit of its own and gives a [`Ticket`].
#[derive(Debug, Clone)]
pub struct NamedTable {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: TableKey,
    pub(crate) slot: Arc<Slot>,
}

/// A named table in a list of them.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TableInfo {
    /// Its name.
    pub name: TableName,
    /// Its configuration.
    pub config: TableConfig,
}

/// The receipt of a commit, which is applied and written to the log. A loss of power may still take
/// the commit back.
///
/// [`wait`](Self::wait) returns when the commit survives that. With [`Durability::Group`], the
/// default, the wait makes the commit durable. To commit without waiting is a choice: `drop` the
/// ticket then; [`Store::sync`] or a later ticket makes the commit durable, too.
///
/// A ticket keeps nothing open: when the last handle on the store has gone, so has the store.
#[derive(Debug, Clone)]
#[must_use = "the commit is in the log, and survives a loss of power only once `wait` has returned"]
pub struct Ticket {
    shared: Weak<Shared>,
    /// The last commit that was durable when the store was last heard of.
    durable: Arc<AtomicU64>,
    commit: u64,
}

impl Store {
    /// Opens a store on the real disk: [`open`](Self::open) with [`RealDisk::auto`].
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_dir(dir: impl AsRef<Path>, options: &StoreOptions) -> Result<Self> {
        Self::open(RealDisk::auto(), dir.as_ref(), options)
    }

    /// Opens the store in `dir`, a directory of a session, or makes one if the directory is empty.
    ///
    /// Cost: that of opening a session and one snapshot for each named table, and of reading the
    /// log since the last checkpoint, which is applied in memory: a table's write buffer grows to
    /// 128 MiB for it, if it has no memory budget, and is flushed beyond that. The first commit
    /// writes the log that was found once more, where it stands, and syncs it.
    ///
    /// # Errors
    /// The errors of [`Session::open`]; [`Error::StoreCorrupted`],
    /// [`Error::MergeOperatorMismatch`], [`Error::InvalidConfig`]. A log that ends before the last
    /// commit that is known to have been durable is corrupted; what is known is said at
    /// [`StoreOptions::durability`].
    #[expect(clippy::needless_pass_by_value, reason = "a store keeps its disk")]
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: &StoreOptions) -> Result<Self> {
        let log_bytes_max = options.log_bytes()?;
        let dir = &disk.absolute(dir)?;
        let session = Session::open_for_store(&disk, dir, &options.session)?;
        let inner = Arc::clone(session.inner());
        let disk = inner.disk();

        let found = manifest::read(disk, dir)?;
        if found.manifest.is_some() {
            // In their place there is nothing to lose.
            for path in &found.stale {
                inner.write_whole(path, &found.bytes)?;
            }
            if !found.stale.is_empty() {
                inner.sync_root()?;
            }
        }

        sync_edits(&inner, found.manifests())?;
        let older = found.older.iter().flat_map(StoreManifest::numbers).collect();

        // From here on it is a store of its own.
        let manifest = StoreManifest { is_backup: false, ..found.manifest.unwrap_or_default() };
        for name in COPIES {
            let unfinished = dir.join(format!("{name}{TMP_SUFFIX}"));
            if disk.kind(&unfinished)?.is_some() {
                disk.remove(&unfinished)?;
            }
        }

        if let Some(budget) = options.session.memory_budget {
            let own = manifest.tables.iter().filter_map(|table| table.meta.config.memory_budget);
            check_session_budget(budget, own.fold(0, u64::saturating_add))?;
        }

        let mut state = State {
            tables: open_tables(&inner, &manifest, &options.merge_operators)?,
            dropped: BTreeMap::new(),
            commit: manifest.commit,
            log: None,
            is_linked: false,
            changes: 0,
            segment: 0,
            next: None,
            is_next_refused: false,
            spares: Vec::new(),
            ends: BTreeMap::new(),
            found: None,
        };

        let is_logged = options.durability > Durability::None;
        let place = (is_logged, &mut state);
        let log_bytes = recover(&inner, &manifest, found.older.as_ref(), place)?;
        event!(DEBUG, "store.recovered", dir, from = manifest.commit, to = state.commit, log_bytes);

        let indexes = Indexes::of(&manifest, &Indexes::default(), None);
        let write_set_bytes = options.write_set_bytes_max.unwrap_or(WRITE_SET_BYTES);
        let write_sets = WriteSets::new(write_set_bytes, state.commit);
        let durable = GroupCommit::new(Arc::clone(&inner), manifest.commit);
        let shared = Arc::new(Shared {
            log_dir: WalDir::new(
                Arc::clone(inner.files().handles()),
                dir,
                log_bytes_max / SEGMENTS,
            ),
            inner,
            session,
            options: options.clone(),
            log_bytes_max,
            published: Mutex::new(CurrentManifest::found(manifest, older)),
            bare_writer: Mutex::default(),
            making: Mutex::default(),
            state: Mutex::new(state),
            durable,
            is_torn: AtomicBool::new(false),
            log_written: AtomicU64::new(0),
            log_bytes: AtomicU64::new(log_bytes),
            due_at: AtomicU64::new(log_bytes_max / 2),
            checkpointer: HelperThread::new("terrane-checkpoint"),
            wal_helper: HelperThread::new("terrane-wal"),
            write_sets,
            indexes: Mutex::new(Arc::new(indexes)),
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
    /// [`Error::SessionClosed`]. After an error, or a crash, there is no such table, or an empty
    /// one.
    pub fn create_table(
        &self,
        name: &(impl AsRef<str> + ?Sized),
        config: &TableConfig,
    ) -> Result<NamedTable> {
        let name = &TableName::new(name.as_ref())?;
        config.validate()?;
        let shared = &self.shared;
        let mut published = lock(&shared.published);
        shared.inner.check_writable()?;
        event!(DEBUG, "store.create_table", shared.inner.dir(), %name);

        if published.manifest.tables.iter().any(|table| table.name == name.0) {
            return Err(Error::TableExists { name: name.to_string() });
        }
        let table = shared.session.new_table(config)?;
        let id = published.manifest.next_table;

        let meta = SnapshotMeta {
            created_ns: shared.inner.disk().clock().wall().as_nanos() as u64,
            resolve: config.merge_operator.name().to_owned(),
            config: config.clone(),
            ..SnapshotMeta::default()
        };

        shared.make_durable(&mut published)?;
        let mut next = published.manifest.clone();
        next.next_table += 1;
        next.tables.push(NamedMeta { id, name: name.0.clone(), derived: None, meta });
        let created = |table: &NamedMeta| HistoryEvent::Created(history::bare(table));
        shared.note_table(&published, &mut next, id, created)?;
        published.publish(&shared.inner, next)?;
        let slot = Slot::of(table);
        lock(&shared.state).tables.insert(id, Arc::clone(&slot));
        shared.durable.tell();

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
    pub fn table(&self, name: &(impl AsRef<str> + ?Sized)) -> Result<NamedTable> {
        let name = &TableName::new(name.as_ref())?;
        self.shared.inner.check_open()?;
        let published = lock(&self.shared.published);
        let id = published.manifest.find(name)?;
        let slot = Arc::clone(lock(&self.shared.state).slot(id, name)?);
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
        self.shared.inner.check_open()?;
        let published = lock(&self.shared.published);
        let mut tables = Vec::new();
        for table in &published.manifest.tables {
            let name = TableName(table.name.clone());
            let slot = Arc::clone(lock(&self.shared.state).slot(table.id, &name)?);
            let config = lock(&slot.table).as_ref().map(|named| named.table.config().clone());
            tables.extend(config.map(|config| TableInfo { name, config }));
        }
        tables.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(tables)
    }

    /// Gives a table another name, durably; all commits before are durable then, too. Handles on it
    /// stay valid.
    ///
    /// Cost: as [`create_table`](Self::create_table).
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`], [`Error::TableExists`], [`Error::Disk`], [`Error::Poisoned`],
    /// [`Error::SessionClosed`]. After an error, or a crash, it has the one name or the other.
    pub fn rename_table(
        &self,
        from: &(impl AsRef<str> + ?Sized),
        to: &(impl AsRef<str> + ?Sized),
    ) -> Result<()> {
        let from = &TableName::new(from.as_ref())?;
        let to = &TableName::new(to.as_ref())?;
        let mut published = lock(&self.shared.published);
        self.shared.inner.check_writable()?;
        event!(DEBUG, "store.rename_table", self.shared.inner.dir(), name = %from, %to);
        let id = published.manifest.find(from)?;

        if published.manifest.tables.iter().any(|table| table.name == to.0) {
            return Err(Error::TableExists { name: to.to_string() });
        }
        self.shared.make_durable(&mut published)?;

        let mut next = published.manifest.clone();
        for table in next.tables.iter_mut().filter(|table| table.id == id) {
            table.name.clone_from(&to.0);
        }
        let renamed =
            |_: &NamedMeta| HistoryEvent::Renamed { id, from: from.0.clone(), to: to.0.clone() };
        self.shared.note_table(&published, &mut next, id, renamed)?;
        published.publish(&self.shared.inner, next)?;
        self.shared.durable.tell();
        self.shared.renew_indexes(&lock(&self.shared.state), &published.manifest, None);
        Ok(())
    }

    /// Removes a table and its indexes, durably; all commits before are durable then, too. Views,
    /// duplicates and snapshots of it stay. An index may be removed alone.
    ///
    /// Cost: as [`create_table`](Self::create_table); unlinks the files that nobody else needs.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`], [`Error::Disk`], [`Error::Poisoned`],
    /// [`Error::SessionClosed`]. After an error, or a crash, the table is there as it was, or gone.
    pub fn drop_table(&self, name: &(impl AsRef<str> + ?Sized)) -> Result<()> {
        let name = &TableName::new(name.as_ref())?;
        let mut published = lock(&self.shared.published);
        let id = published.manifest.find(name)?;
        // One by one: a manifest makes one change of the list. A table may lack indexes, and no
        // index lacks its table.
        let indexes: Vec<_> =
            published.manifest.indexes_of(id).map(|index| TableName(index.name.clone())).collect();
        for index in &indexes {
            self.drop_one(&mut published, index)?;
        }
        self.drop_one(&mut published, name)
    }

    /// Removes a table without indexes.
    fn drop_one(&self, published: &mut CurrentManifest, name: &TableName) -> Result<()> {
        let shared = &self.shared;
        shared.inner.check_writable()?;
        event!(DEBUG, "store.drop_table", shared.inner.dir(), %name);
        let id = published.manifest.find(name)?;
        debug_assert!(published.manifest.indexes_of(id).next().is_none(), "indexes go first");
        let source = published.manifest.tables.iter().find(|table| table.id == id);
        let source = source.and_then(|table| table.derived).map(|derived| derived.source);
        let (slot, others) = {
            let state = lock(&shared.state);
            let source = source.and_then(|id| Some((id, Arc::clone(state.tables.get(&id)?))));
            (Arc::clone(state.slot(id, name)?), source)
        };

        // No commit to the table may come in between that would be durable and yet for nothing, and
        // none to the table of an index. Those to other tables go on.
        let mut slots: Vec<_> = others.iter().map(|(id, slot)| (*id, slot)).collect();
        slots.push((id, &slot));
        slots.sort_by_key(|(id, _)| *id);
        let writers: Vec<_> = slots.iter().map(|(_, slot)| lock(&slot.writer)).collect();
        shared.make_durable(published)?;
        let mut next = published.manifest.clone();
        let dropped = |table: &NamedMeta| HistoryEvent::Dropped(history::bare(table));
        shared.note_table(published, &mut next, id, dropped)?;
        next.tables.retain(|table| table.id != id);
        published.publish(&shared.inner, next)?;
        shared.durable.tell();

        let dropped = lock(&slot.table).take();
        {
            let mut state = lock(&shared.state);
            state.tables.remove(&id);
            state.dropped.retain(|_, slot| slot.strong_count() > 0);
            state.dropped.insert(id, Arc::downgrade(&slot));
            shared.write_sets.note_dropped(state.commit, id);
            shared.renew_indexes(&state, &published.manifest, None);
        }
        let view = lock(&slot.reading).view.take();
        drop(writers);
        drop((dropped, view));
        Ok(())
    }

    /// Several tables as one commit left them all: [`NamedTable::view`] of each, at one moment.
    ///
    /// Cost: as of `view`, for each; waits for commits to these tables that are being applied, and
    /// for no slow work.
    ///
    /// # Errors
    /// The errors of [`NamedTable::view`].
    pub fn views(&self, tables: &[&NamedTable]) -> Result<Vec<Arc<Table>>> {
        self.shared.inner.check_open()?;
        // Locks of several tables are taken in one order, each once.
        let slots: BTreeMap<u64, &Arc<Slot>> =
            tables.iter().map(|table| (table.key.id, &table.slot)).collect();
        let locked: BTreeMap<u64, _> =
            slots.into_iter().map(|(id, slot)| (id, lock(&slot.table))).collect();
        let view = |table: &&NamedTable| table.view_in(locked[&table.key.id].as_ref());
        tables.iter().map(view).collect()
    }

    /// Commits batches for several tables, all or nothing, with the durability of the store. The
    /// batches are applied in their order; a table may come more than once. A
    /// [`WriteBatch`](crate::WriteBatch) owns its entries and takes keys of any type.
    ///
    /// With [`Durability::Group`], the default, the commit is written to the log when this returns,
    /// and durable when [`Ticket::wait`] returns.
    ///
    /// # Errors
    /// The errors of [`commit_with`](Self::commit_with).
    pub fn commit<K: AsRef<[u8]>>(
        &self,
        batches: &[(&NamedTable, &[(K, Update<'_>)])],
    ) -> Result<Ticket> {
        self.commit_with(batches, self.shared.options.durability)
    }

    /// The same with a durability of its own. In a store without a log, what becomes durable does
    /// so by a checkpoint.
    ///
    /// Cost: as [`Table::write_batch`]; one write to the log, as long as the batches, and what the
    /// durability asks for. Now and then a checkpoint, see [`StoreOptions::log_bytes_max`].
    ///
    /// # Errors
    /// Those of [`Table::write_batch`]; [`Error::CommitTooLarge`]; [`Error::TableDoesNotExist`] for
    /// a table that was dropped or belongs to another store. Nothing was changed then. But if the
    /// waiting of [`Each`](Durability::Each) fails, the commit is seen and not durable: a failed
    /// fsync poisons the store; in a store without a log [`sync`](Self::sync) tries again.
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
                None => {
                    let updates = updates.collect();
                    grouped.push(Batch { key: &table.key, slot: &table.slot, updates });
                }
            }
        }

        self.commit_batches(grouped, durability, |_| Ok(()))
    }

    /// Commits batches, one for each table, unless `check` refuses. The check gets the number of
    /// the commit before; no other commit comes between the check and this one.
    ///
    /// # Errors
    /// The errors of [`commit_with`](Self::commit_with), and of `check`.
    pub(crate) fn commit_batches(
        &self,
        batches: Vec<Batch<'_>>,
        durability: Durability,
        check: impl FnOnce(u64) -> Result<()>,
    ) -> Result<Ticket> {
        let shared = &self.shared;
        for batch in &batches {
            shared.inner.check_room_for(&batch.updates)?;
        }
        let frees = batches
            .iter()
            .flat_map(|batch| &batch.updates)
            .all(|(_, update)| matches!(update, Update::Delete));

        shared.prepare_to_commit(frees)?;
        let commit = shared.commit_if(batches, check)?;
        let ticket = Ticket::new(shared, commit);
        if durability == Durability::Each {
            ticket.wait()?;
        }
        Ok(ticket)
    }

    /// Whether a sync has failed, so that nothing can be written any more.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.shared.inner.files().check_poisoned().is_err()
    }

    /// The number of the last commit; 0 before the first.
    #[must_use]
    pub fn last_commit(&self) -> u64 {
        lock(&self.shared.state).commit
    }

    /// The number of the last commit that is known to survive a loss of power.
    #[must_use]
    pub fn durable_commit(&self) -> u64 {
        self.shared.durable.commit()
    }

    /// Waits until a commit survives a loss of power, as [`Ticket::wait`] does. One that is still
    /// to come is not waited for.
    ///
    /// # Errors
    /// The errors of [`sync`](Self::sync).
    pub fn sync_to(&self, commit: u64) -> Result<()> {
        self.shared.wait_for(commit.min(self.last_commit()))
    }

    /// Makes all commits so far durable.
    ///
    /// Cost: an fsync of the log, unless there is nothing to sync; in a store without a log, a
    /// checkpoint.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Poisoned`], [`Error::SessionClosed`].
    pub fn sync(&self) -> Result<()> {
        self.shared.wait_for(self.last_commit())
    }

    /// Writes out what is only in memory and in the log, so that neither is needed to open the
    /// store.
    ///
    /// Cost: for each table that has changed since the last one as [`Table::save_snapshot`], but
    /// for one small file: the two copies of the manifest are written and synced for all together.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Poisoned`], [`Error::SessionClosed`]. Nothing is lost then; the
    /// next one does it.
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.checkpoint()
    }

    /// Copies the store to the directory of a backup: all tables as of the last commit, retained
    /// versions and snapshots. The directory is made if it is missing (its parent must exist) or
    /// empty; an earlier backup of this store there is made like the store again, bringing only the
    /// runs that are not there yet and letting go of those that are not needed. Commits go on
    /// meanwhile. `progress` is told of bytes, of which more may turn out to be to do; it must not
    /// close the store itself, since closing waits for this. A backup is opened, read, inspected
    /// and verified like any store.
    ///
    /// Cost: a [`checkpoint`](Self::checkpoint); reads and writes each run that is not there yet
    /// once, in large chunks, and checks every page's checksum.
    ///
    /// # Errors
    /// [`Error::NotABackup`] if something else is there, or a store that was committed to;
    /// [`Error::SessionDirLocked`] if somebody has the backup open for writing;
    /// [`Error::StoreCorrupted`] and [`Error::SnapshotCorrupted`] (after all else has been copied)
    /// for damage here; [`Error::Disk`], [`Error::Poisoned`], [`Error::SessionClosed`]. After an
    /// error, or a crash, the tables there are those of the earlier backup or of this one, and each
    /// snapshot is whole or absent.
    pub fn back_up(&self, place: &BackupPlace, progress: Progress<'_>) -> Result<BackupReport> {
        let shared = &self.shared;
        let _call = shared.inner.register(Holder::Call);
        let (manifest, _held, _log) = {
            let mut published = lock(&shared.published);
            shared.checkpoint_over(&mut published)?;
            let manifest = published.manifest.clone();
            let held: Vec<_> =
                manifest.numbers().map(|run| shared.inner.files().attach(run)).collect();
            let log = shared.inner.keep_log(manifest.first_segment_of_versions());
            (manifest, held, log)
        };

        let commit = manifest.commit;
        let changed = BTreeMap::new();
        let source = Source { inner: &shared.inner, manifest: &manifest, commit, changed };
        backup::back_up(&source, place, progress)
    }

    /// Makes a [`checkpoint`](Self::checkpoint), if the store has a log, lets go of the log but for
    /// its smallest segment, and ends the store and its session for all handles. If the disk has no
    /// room for the checkpoint, the log keeps what it would have written, durably.
    ///
    /// # Errors
    /// Those of [`checkpoint`](Self::checkpoint), but for a full disk, and [`Session::close`]. The
    /// store is closed in any case.
    pub fn close(&self) -> Result<()> {
        let shared = &self.shared;
        shared.inner.check_process()?;
        let is_ours = {
            let state = lock(&shared.state);
            state.is_linked && state.log.as_ref().is_some_and(|log| !log.is_found())
        };

        let written = if is_ours && shared.inner.check_writable().is_ok() {
            let made = shared.checkpoint_leaving(&mut lock(&shared.published), LogRoom::Least);
            made.or_else(|error| {
                if !error.is_no_space() {
                    return Err(error);
                }
                rare::taken("a store closes without its last checkpoint");
                event!(WARN, "checkpoint.failed", shared.inner.dir(), %error);
                shared.durable.wait_for(self.last_commit()).map(drop)
            })
        } else {
            Ok(())
        };

        let closed = shared.session.close();
        // Feeds that wait find it closed.
        shared.durable.tell();
        // They tell what they fail at as events.
        shared.checkpointer.join();
        shared.wal_helper.join();

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
    /// Cost: as [`Table::fork`], once for all that read between two commits. It waits for no flush,
    /// compaction or checkpoint.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`] if it was dropped, [`Error::SessionClosed`];
    /// [`Error::Poisoned`] if a merge operator has panicked in a commit, so that only what
    /// somebody has read before is known to be whole.
    pub fn view(&self) -> Result<Arc<Table>> {
        self.shared.inner.check_open()?;
        {
            let mut reading = lock(&self.slot.reading);
            reading.is_wanted = true;
            if let Some(view) = &reading.view {
                return Ok(Arc::clone(view));
            }
        }
        self.view_in(lock(&self.slot.table).as_ref())
    }

    /// Returns the same as [`Table::work_ahead`].
    pub(crate) fn work_ahead(&self) -> Result<Vec<(Arc<Compaction>, u64)>> {
        let table = lock(&self.slot.table);
        Ok(table.as_ref().ok_or_else(|| self.is_gone())?.table.work_ahead())
    }

    /// Refuses what changes the files of a store that is closed or poisoned.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.shared.inner.check_writable()
    }

    /// Does something to the table that changes nothing of what it holds, for the next checkpoint
    /// to write out. It is done to a copy: commits to this table wait, and nobody else.
    pub(crate) fn rearrange<T>(&self, act: impl FnOnce(&mut Table) -> Result<T>) -> Result<T> {
        let _writer = lock(&self.slot.writer);
        self.shared.rearrange(&self.slot, act)?.ok_or_else(|| self.is_gone())
    }

    fn is_gone(&self) -> Error {
        Error::TableDoesNotExist { name: self.key.name.to_string() }
    }

    /// The view of the table, which the caller has locked.
    fn view_in(&self, named: Option<&Named>) -> Result<Arc<Table>> {
        let named = named.ok_or_else(|| self.is_gone())?;
        self.shared.check_whole()?;
        self.slot.view_of(named)
    }

    /// Like [`Table::get`] of the [`view`](Self::view).
    ///
    /// # Errors
    /// The errors of [`Table::get_many`] and [`view`](Self::view).
    #[doc(alias("lookup"))]
    pub fn get(&self, key: &[u8]) -> Result<Lookup> {
        self.view()?.get(key)
    }

    /// Like [`Table::get_many`] of the [`view`](Self::view).
    ///
    /// # Errors
    /// The errors of [`Table::get_many`] and [`view`](Self::view).
    #[doc(alias("multi_get", "lookups"))]
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Lookup>> {
        self.view()?.get_many(keys)
    }

    /// Like [`Table::get_many_into`] of the [`view`](Self::view).
    ///
    /// # Errors
    /// The errors of [`Table::get_many`] and [`view`](Self::view).
    pub fn get_many_into<K: AsRef<[u8]>>(&self, keys: &[K], values: &mut Values) -> Result<()> {
        self.view()?.get_many_into(keys, values)
    }

    /// Like [`Table::cursor`] of the [`view`](Self::view); other cursors are made from a view.
    ///
    /// # Errors
    /// The errors of [`view`](Self::view).
    pub fn cursor(&self) -> Result<Cursor> {
        self.view()?.cursor()
    }

    /// An independent table of the same content, which does not last.
    ///
    /// # Errors
    /// The errors of [`view`](Self::view).
    #[doc(alias("duplicate", "clone"))]
    pub fn fork(&self) -> Result<Table> {
        self.view()?.fork()
    }

    /// Like [`Table::save_snapshot`] of the [`view`](Self::view).
    ///
    /// # Errors
    /// The errors of [`Table::save_snapshot`] and [`view`](Self::view).
    pub fn save_snapshot(&self, name: &SnapshotName, label: &str) -> Result<()> {
        self.view()?.save_snapshot(name, label)
    }

    /// Like [`Table::stats`]; counts of lookups are those of the views' own.
    ///
    /// # Errors
    /// The errors of [`view`](Self::view).
    pub fn stats(&self) -> Result<TableStats> {
        let table = lock(&self.slot.table);
        Ok(table.as_ref().ok_or_else(|| self.is_gone())?.table.stats())
    }

    /// Commits a batch with the durability of the store: [`Store::commit`] for one table.
    ///
    /// With [`Durability::Group`], the default, the commit is durable when [`Ticket::wait`]
    /// returns.
    ///
    /// # Errors
    /// The errors of [`Store::commit_with`].
    #[doc(alias("updates", "put_many"))]
    pub fn write_batch<K: AsRef<[u8]>>(&self, batch: &[(K, Update<'_>)]) -> Result<Ticket> {
        Store { shared: Arc::clone(&self.shared) }.commit(&[(self, batch)])
    }

    /// Commits the insertion of one entry.
    ///
    /// With [`Durability::Group`], the default, the commit is durable when [`Ticket::wait`]
    /// returns.
    ///
    /// # Errors
    /// The errors of [`Store::commit_with`].
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<Ticket> {
        self.write_batch(&[(key, Update::Insert(value))])
    }

    /// Commits an upsert of one key.
    ///
    /// With [`Durability::Group`], the default, the commit is durable when [`Ticket::wait`]
    /// returns.
    ///
    /// # Errors
    /// The errors of [`Store::commit_with`].
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Ticket> {
        self.write_batch(&[(key, Update::Upsert(value))])
    }

    /// Changes the configuration, durably: see [`Table::set_config`].
    ///
    /// Cost: a [`Store::checkpoint`].
    ///
    /// # Errors
    /// The errors of [`Table::set_config`] and [`Store::checkpoint`]; [`Error::TableDoesNotExist`].
    /// After an error the table has the configuration that it had.
    pub fn set_config(&self, config: &TableConfig) -> Result<()> {
        let mut published = lock(&self.shared.published);
        let set = |config: &TableConfig| -> Result<TableConfig> {
            let _writer = lock(&self.slot.writer);
            let mut table = lock(&self.slot.table);
            let named = table.as_mut().ok_or_else(|| self.is_gone())?;
            let before = named.table.config().clone();
            named.table.set_config(config)?;
            let mut state = lock(&self.shared.state);
            state.changes += 1;
            named.changed = state.changes;
            lock(&self.slot.reading).view = None;
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
    /// With [`Durability::Group`], the default, the commit is durable when [`Ticket::wait`]
    /// returns.
    ///
    /// # Errors
    /// The errors of [`Store::commit_with`].
    pub fn delete(&self, key: &[u8]) -> Result<Ticket> {
        self.write_batch(&[(key, Update::Delete)])
    }
}

impl NamedTable {
    /// Commits the deletion of all keys in a range, with the durability of the store.
    ///
    /// With [`Durability::Group`], the default, the commit is durable when [`Ticket::wait`]
    /// returns.
    ///
    /// Cost: that of [`Table::delete_range`], and one small record of the log, whatever the range
    /// holds. Other commits and lookups wait for no longer than for that of one key.
    ///
    /// # Errors
    /// The errors of [`Store::commit_with`].
    pub fn delete_range<K: AsRef<[u8]> + ?Sized, R: RangeBounds<K>>(
        &self,
        range: R,
    ) -> Result<Ticket> {
        self.delete_over(&KeyRange::new(&range))
    }

    /// Commits the deletion of all keys that begin with `prefix`: as
    /// [`delete_range`](Self::delete_range).
    ///
    /// With [`Durability::Group`], the default, the commit is durable when [`Ticket::wait`]
    /// returns.
    ///
    /// # Errors
    /// The errors of [`delete_range`](Self::delete_range).
    pub fn delete_prefix(&self, prefix: &[u8]) -> Result<Ticket> {
        self.delete_over(&KeyRange::prefix(prefix))
    }

    fn delete_over(&self, range: &KeyRange) -> Result<Ticket> {
        // A range without keys is committed, too, so that the ticket is that of a commit.
        let span = Span::of(range).unwrap_or(Span { from: Vec::new(), end: Some(Vec::new()) });
        self.write_batch(&[(&span.from, Update::DeleteRange(span.end.as_deref()))])
    }
}

impl Ticket {
    pub(crate) fn new(shared: &Arc<Shared>, commit: u64) -> Self {
        Self { shared: Arc::downgrade(shared), durable: shared.durable.reached(), commit }
    }

    /// The number of the commit.
    #[must_use]
    pub fn commit(&self) -> u64 {
        self.commit
    }

    /// Whether the commit is known to survive a loss of power.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Acquire) >= self.commit
    }

    /// Waits until the commit survives a loss of power, with an fsync that all share who wait.
    ///
    /// Cost: nothing if it is durable, else an fsync of the log; in a store without a log, a
    /// checkpoint.
    ///
    /// # Errors
    /// The errors of [`Store::sync`]; [`Error::SessionClosed`] if no handle on the store is left,
    /// and the commit was not durable when the last one went.
    pub fn wait(&self) -> Result<()> {
        match self.shared.upgrade() {
            _ if self.is_durable() => Ok(()),
            Some(shared) => shared.wait_for(self.commit),
            None => Err(Error::SessionClosed),
        }
    }
}
