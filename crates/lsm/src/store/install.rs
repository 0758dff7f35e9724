//! Installation: any table of the store's session becomes a named table, atomically with a commit.
//!
//! The table is written out and synced as a checkpoint would write it: its memtable as images, the
//! rest as the runs that are there. Then a manifest names it. No entry goes through the log, so a
//! bulk-loaded table costs what the bulk load wrote.
//!
//! **A new name alone** is a change of the list of tables, as the creation of an empty table is: it
//! has no number. The log knows no record for the new table's number, so nothing else changes.
//!
//! **With a batch, or in the place of a table,** the installation is a commit that the manifest
//! makes ([`crate::store::manifest_commit`]). Most of the work is a checkpoint before, while
//! commits go on. Then, with all writers held, the batch is applied to copies, what has changed
//! since the checkpoint is written out, and one manifest has all of it. So commits wait for images
//! of a short stretch of commits, a new segment and one manifest; views wait for nothing.
//!
//! Rejected: a record of the log that names a snapshot. Recovery and every reader would have to
//! open tables in the middle of the log, and a version could not share a base across it.

use std::sync::Arc;

use crate::config::TableConfig;
use crate::entry::entry::Update;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::manifest::history::{self, HistoryEvent};
use crate::manifest::manifest::{Derived, NamedMeta, StoreManifest};
use crate::session::snapshot::{WrittenOut, resolve_of};
use crate::store::checkpoint::{TableCopy, write_out};
use crate::store::index_batches::IndexBatch;
use crate::store::index_entries::Derivation;
use crate::store::inner::{Batch, LogRoom, Named, Shared, Slot, State, TableKey};
use crate::store::options::TableName;
use crate::store::store::{NamedTable, Store};
use crate::store::write_batch::WriteBatch;
use crate::table::bulk_load::BulkLoader;
use crate::table::table::Table;
use crate::trace::event;

/// A table that is about to be named: all of it is on disk.
pub(crate) struct Incoming {
    name: TableName,
    table: Table,
    written: WrittenOut,
    index: Option<NewIndex>,
}

/// Source and function of a table that is installed as an index.
#[derive(Debug, Clone)]
pub(crate) struct NewIndex {
    pub(crate) source: u64,
    pub(crate) derivation: Derivation,
}

/// Whether the incoming table takes a new name or the place of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    New,
    Existing,
}

/// The table of the name, or the table's number to come.
fn place_of(manifest: &StoreManifest, name: &TableName, target: Target) -> Result<u64> {
    match (manifest.find(name), target) {
        (Ok(_), Target::New) => Err(Error::TableExists { name: name.to_string() }),
        (Err(_), Target::New) => Ok(manifest.next_table),
        (found, Target::Existing) => found,
    }
}

/// Names the incoming table in a manifest.
fn name_table(manifest: &mut StoreManifest, id: u64, incoming: &Incoming) {
    let meta = incoming.written.meta.clone();
    let derived = incoming
        .index
        .as_ref()
        .map(|index| Derived { source: index.source, version: index.derivation.version });
    manifest.has_indexes |= derived.is_some();
    if id == manifest.next_table {
        manifest.next_table += 1;
        manifest.tables.push(NamedMeta { id, name: incoming.name.0.clone(), derived, meta });
        return;
    }
    for named in manifest.tables.iter_mut().filter(|named| named.id == id) {
        named.meta.clone_from(&meta);
        named.derived = derived;
    }
}

/// Refuses a table that the incoming one may not take the place of: an index and its table stand
/// together, and only an index takes the place of an index.
fn check_replaceable(manifest: &StoreManifest, id: u64, index: Option<&NewIndex>) -> Result<()> {
    for table in manifest.tables.iter().filter(|table| table.id == id) {
        if let Some(index) = index {
            let is_it = table.derived.is_some_and(|derived| derived.source == index.source);
            return if is_it {
                Ok(())
            } else {
                Err(Error::TableExists { name: table.name.clone() })
            };
        }
        if table.derived.is_some() {
            return Err(Error::TableIsIndex { table: table.name.clone() });
        }
        if let Some(index) = manifest.indexes_of(id).next() {
            return Err(Error::TableHasIndex {
                table: table.name.clone(),
                index: index.name.clone(),
            });
        }
    }
    Ok(())
}

impl Store {
    /// Installs a table under a new name, durably; all commits before are durable then, too. The
    /// named table is a fork: `table` stays as it is, and may be dropped.
    ///
    /// Any table of the [session](Self::session) will do: from a bulk load, a union (a debt is paid
    /// by later updates as before), an opened snapshot, an import, a fork or a
    /// [view](NamedTable::view) of another named table. The named table has its configuration.
    ///
    /// ```
    /// use terrane_lsm::{Store, StoreOptions, TableConfig, Update};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
    /// let mut loader = store.session().bulk_load(&TableConfig::default())?;
    /// loader.write_batch(&[("alice", Update::Insert(b"100")), ("bob", Update::Insert(b"7"))])?;
    /// let accounts = store.install("accounts", &loader.finish()?)?;
    /// assert!(accounts.get(b"bob")?.is_found());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Cost: writes the table's memtable, finishes its flush under way, and syncs the runs that no
    /// checkpoint or snapshot has synced; then that of [`create_table`](Self::create_table). Writes
    /// nothing to the log. Held by the test `install`.
    ///
    /// # Errors
    /// [`Error::TableExists`]; [`Error::TableOfOtherSession`], also for a table of a reader or a
    /// read-only session; [`Error::MergeOperatorMismatch`] if the store was not opened with the
    /// table's merge operator, and so could not be opened again; [`Error::SnapshotTooLarge`],
    /// [`Error::Disk`], [`Error::Poisoned`], [`Error::SessionClosed`]. After an error, or a crash,
    /// there is no such table, or all of it.
    pub fn install(&self, name: &(impl AsRef<str> + ?Sized), table: &Table) -> Result<NamedTable> {
        self.install_changing(name.as_ref(), table, |_| ())
    }

    /// The same with another change of the same manifest.
    pub(crate) fn install_changing(
        &self,
        name: &str,
        table: &Table,
        change: impl FnOnce(&mut StoreManifest),
    ) -> Result<NamedTable> {
        let shared = &self.shared;
        let incoming = self.write_incoming(name, table, Target::New)?;
        let mut published = lock(&shared.published);
        shared.inner.check_writable()?;
        let id = place_of(&published.manifest, &incoming.name, Target::New)?;
        shared.make_durable(&mut published)?;

        let mut next = published.manifest.clone();
        change(&mut next);
        name_table(&mut next, id, &incoming);
        let installed = |table: &NamedMeta| HistoryEvent::Installed {
            table: history::whole(table),
            is_load: true,
        };
        shared.note_table(&published, &mut next, id, installed)?;
        published.publish(&shared.inner, next)?;
        shared.durable.tell();
        incoming.written.share(&shared.inner);
        let slot = Slot::of(incoming.table);
        lock(&shared.state).tables.insert(id, Arc::clone(&slot));
        Ok(self.installed(id, incoming.name, slot))
    }

    /// Installs a table and commits a batch, both or neither, durably. The number of the commit is
    /// [`last_commit`](Self::last_commit) if no other commit comes in between.
    ///
    /// Cost: that of [`install`](Self::install), of a [`checkpoint`](Self::checkpoint), and of a
    /// small one during which commits wait: it writes the batch, and what was committed since the
    /// first one.
    ///
    /// # Errors
    /// The errors of [`install`](Self::install), and those of [`write`](Self::write). After an
    /// error, or a crash, both are there or neither.
    pub fn install_with(
        &self,
        name: &(impl AsRef<str> + ?Sized),
        table: &Table,
        batch: &WriteBatch,
    ) -> Result<NamedTable> {
        self.install_at(name.as_ref(), table, Target::New, batch)
    }

    /// Installs a table under a new name or in the place of a table, and commits a batch.
    pub(crate) fn install_at(
        &self,
        name: &str,
        table: &Table,
        target: Target,
        batch: &WriteBatch,
    ) -> Result<NamedTable> {
        let incoming = self.write_incoming(name, table, target)?;
        let name = incoming.name.clone();
        let batches = batch.batches(&self.shared)?;
        self.commit_by_manifest(&name, target, batches, || Ok(incoming))
    }

    /// Puts a table in the place of a named one, durably, as a commit of its own. Handles on the
    /// named table stay valid and read the new content; views, forks, snapshots and retained
    /// versions keep the old content. The named table takes the configuration of the new table, its
    /// merge operator included. A live transaction that has read from the table conflicts.
    ///
    /// Cost: as [`install_with`](Self::install_with); the files of the old content go when nobody
    /// needs them.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`]; [`Error::TableIsIndex`] and [`Error::TableHasIndex`] for an
    /// index and for a table that has one: drop the index before; the errors of
    /// [`install`](Self::install). After an error, or a crash, the table has the old content or the
    /// new one.
    pub fn replace(&self, name: &(impl AsRef<str> + ?Sized), table: &Table) -> Result<NamedTable> {
        self.install_at(name.as_ref(), table, Target::Existing, &WriteBatch::new())
    }

    /// A named table, made with `config` if it is missing. A table that is there keeps its
    /// configuration.
    ///
    /// # Errors
    /// The errors of [`table`](Self::table) and [`create_table`](Self::create_table).
    #[doc(alias("open_or_create", "get_or_create"))]
    pub fn table_or_create(
        &self,
        name: &(impl AsRef<str> + ?Sized),
        config: &TableConfig,
    ) -> Result<NamedTable> {
        let name = TableName::new(name.as_ref())?;
        match self.table(&name) {
            Err(Error::TableDoesNotExist { .. }) => {}
            found => return found,
        }
        match self.create_table(&name, config) {
            // Another thread was faster.
            Err(Error::TableExists { .. }) => self.table(&name),
            made => made,
        }
    }

    /// An empty table without a name, which does not last: only a snapshot or an
    /// [installation](Self::install) keeps what it holds. Cost: no I/O.
    ///
    /// # Errors
    /// The errors of [`Session::new_table`](crate::Session::new_table).
    pub fn new_volatile_table(&self, config: &TableConfig) -> Result<Table> {
        self.shared.session.new_table(config)
    }

    /// Loads a new named table from entries in any order, several times faster than commits do, and
    /// without the log. The table is there when [`StoreLoader::finish`] returns, and not before.
    ///
    /// ```
    /// use terrane_lsm::{Store, StoreOptions, TableConfig, Update};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
    /// let mut loader = store.bulk_load("accounts", &TableConfig::default())?;
    /// loader.write_batch(&[("alice", Update::Insert(b"100")), ("bob", Update::Insert(b"7"))])?;
    /// let accounts = loader.finish()?;
    /// assert!(accounts.get(b"bob")?.is_found());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Cost: no I/O; see [`BulkLoader`].
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::InvalidTableName`], and the errors of
    /// [`Session::bulk_load`](crate::Session::bulk_load).
    #[doc(alias("IngestExternalFile"))]
    pub fn bulk_load(
        &self,
        name: &(impl AsRef<str> + ?Sized),
        config: &TableConfig,
    ) -> Result<StoreLoader> {
        let name = TableName::new(name.as_ref())?;
        place_of(&lock(&self.shared.published).manifest, &name, Target::New)?;
        let loader = self.shared.session.bulk_load(config)?;
        Ok(StoreLoader { store: self.clone(), name, loader })
    }

    /// Checks a table that is to be installed and writes all of it out, while everything goes on.
    fn write_incoming(&self, name: &str, table: &Table, target: Target) -> Result<Incoming> {
        let shared = &self.shared;
        let name = TableName::new(name)?;
        if !table.is_of(&shared.inner) {
            return Err(Error::TableOfOtherSession { name: name.to_string() });
        }
        shared.inner.check_writable()?;
        event!(DEBUG, "store.install", shared.inner.dir(), %name);

        let operator = &table.config().merge_operator;
        let given =
            shared.options.merge_operators.iter().find(|given| given.name() == operator.name());
        resolve_of(name.as_str(), operator.name(), given)?;

        // Another thread may take the name later; here it spares the work.
        place_of(&lock(&shared.published).manifest, &name, target)?;
        let table = table.fork()?;
        let written = table.write_out()?;
        Ok(Incoming { name, table, written, index: None })
    }

    /// Writes a table out that is to be an index.
    pub(crate) fn write_index(
        name: &TableName,
        table: &Table,
        index: NewIndex,
    ) -> Result<Incoming> {
        let table = table.fork()?;
        let written = table.write_out()?;
        Ok(Incoming { name: name.clone(), table, written, index: Some(index) })
    }

    fn installed(&self, id: u64, name: TableName, slot: Arc<Slot>) -> NamedTable {
        event!(DEBUG, "store.installed", self.shared.inner.dir(), %name);
        NamedTable { shared: Arc::clone(&self.shared), key: TableKey { id, name }, slot }
    }

    /// Installs a table and commits batches by one manifest. `incoming` gives the table while no
    /// commit goes on.
    pub(crate) fn commit_by_manifest(
        &self,
        name: &TableName,
        target: Target,
        batches: Vec<Batch<'_>>,
        incoming: impl FnOnce() -> Result<Incoming>,
    ) -> Result<NamedTable> {
        let shared = &self.shared;
        for batch in &batches {
            shared.inner.check_room_for(&batch.updates)?;
        }
        shared.prepare_to_commit(false)?;
        let mut published = lock(&shared.published);
        let id = place_of(&published.manifest, name, target)?;

        // What this leaves is written while commits wait.
        shared.checkpoint_over(&mut published)?;
        let slots = shared.slots();
        let writers: Vec<_> = slots.iter().map(|(_, slot)| lock(&slot.writer)).collect();
        let bare = lock(&shared.bare_writer);
        shared.inner.check_writable()?;

        let incoming = incoming()?;
        if target == Target::Existing {
            check_replaceable(&published.manifest, id, incoming.index.as_ref())?;
        }
        let changed = shared.changed_indexes(batches.iter().map(|batch| batch.key.id))?;
        let made = changed.batches(&batches)?;
        let mut batches = batches;
        batches.extend(made.iter().map(IndexBatch::batch));
        let batches = batches.as_slice();

        let copies = copies_with(&slots, batches, id)?;
        let mut next = published.manifest.clone();
        let written = write_out(&copies, &mut next)?;
        name_table(&mut next, id, &incoming);
        let loaded = |segment, before: &StoreManifest, after: &StoreManifest| {
            let is_it = |table: &&NamedMeta| table.id == id;
            let table = after.tables.iter().find(is_it).expect("named just before");
            let is_new = !before.tables.iter().any(|table| table.id == id);
            // Changes of a batch stand nowhere but in the tables.
            let is_load = batches.is_empty();
            let table = if is_load { history::whole(table) } else { history::bare(table) };
            HistoryEvent::Loaded { segment, table, is_new, is_load }
        };
        let done = shared.publish_commit(&mut published, next, loaded)?;

        for written in written.iter().chain([&incoming.written]) {
            written.share(&shared.inner);
        }
        let commit = published.manifest.commit;
        let change = Change { slots: &slots, copies, batches, id, table: incoming.table };
        let (slot, replaced) = change.make(shared, |state| {
            shared.write_sets.note(commit, batches.iter().flat_map(Batch::of_table));
            if target == Target::Existing {
                shared.write_sets.note_replaced(commit, Some(vec![id]));
            }
            shared.link(state, commit, done.log_bytes);
            let added = incoming.index.as_ref().map(|index| (id, &index.derivation));
            shared.renew_indexes(state, &published.manifest, added);
        });
        drop((writers, bare));
        drop(replaced);

        if done.both {
            shared.recycle(&published, LogRoom::Ordinary);
        }
        Ok(self.installed(id, incoming.name, slot))
    }
}

/// Copies of all tables that the manifest does not have as they are, with the batches applied; none
/// of the table that is about to be replaced.
fn copies_with(
    slots: &[(u64, Arc<Slot>)],
    batches: &[Batch<'_>],
    replaced: u64,
) -> Result<Vec<TableCopy>> {
    let mut copies = Vec::new();
    for (id, slot) in slots {
        let batch = batches.iter().find(|batch| batch.key.id == *id);
        let is_wanted =
            |named: &&Named| batch.is_some() || named.changed > named.written && *id != replaced;

        let copied = match lock(&slot.table).as_ref().filter(is_wanted) {
            Some(named) => (named.changed, named.table.copy()?),
            None => continue,
        };
        let (changed, mut table) = copied;
        if let Some(batch) = batch {
            // A merge operator that panics here leaves a part of the batch in a copy only.
            drop(table.apply_batch(&batch.updates)?);
        }
        copies.push(TableCopy { id: *id, changed, table });
    }

    let is_there = |batch: &&Batch<'_>| copies.iter().any(|copy| copy.id == batch.key.id);
    match batches.iter().find(|batch| !is_there(batch)) {
        Some(batch) => Err(Error::TableDoesNotExist { name: batch.key.name.to_string() }),
        None => Ok(copies),
    }
}

/// Tables that a manifest has from now on.
struct Change<'a> {
    slots: &'a [(u64, Arc<Slot>)],
    copies: Vec<TableCopy>,
    /// The batches that some of the copies have.
    batches: &'a [Batch<'a>],
    /// The installed table and its number.
    id: u64,
    table: Table,
}

/// Tables and views that were replaced. The last user of a run removes its file, so these are
/// dropped without locks.
#[derive(Default)]
struct Replaced {
    copies: Vec<TableCopy>,
    tables: Vec<Named>,
    views: Vec<Arc<Table>>,
}

impl Change<'_> {
    /// Makes the tables what the manifest has; `end` is called at the same moment. Returns the slot
    /// of the installed table.
    fn make(self, shared: &Shared, end: impl FnOnce(&mut State)) -> (Arc<Slot>, Replaced) {
        let mut replaced = Replaced::default();
        let mut tables: Vec<_> = self.slots.iter().map(|(_, slot)| lock(&slot.table)).collect();
        let mut state = lock(&shared.state);
        state.changes += 1;
        let change = state.changes;
        let place = |wanted: u64| self.slots.binary_search_by_key(&wanted, |(id, _)| *id);

        for mut copy in self.copies {
            let Ok(at) = place(copy.id) else { continue };
            let Some(named) = &mut *tables[at] else { continue };
            debug_assert_eq!(named.changed, copy.changed, "no commit came in between");
            if self.batches.iter().any(|batch| batch.key.id == copy.id) {
                named.table.adopt(&mut copy.table);
                named.changed = change;
                replaced.views.extend(lock(&self.slots[at].1.reading).view.take());
            }
            named.written = named.changed;
            replaced.copies.push(copy);
        }

        let slot = match place(self.id) {
            Ok(at) => {
                let slot = &self.slots[at].1;
                let named = Named { table: self.table, changed: change, written: change };
                replaced.tables.extend(tables[at].replace(named));
                replaced.views.extend(lock(&slot.reading).view.take());
                Arc::clone(slot)
            }
            Err(_) => {
                let slot = Slot::of(self.table);
                state.tables.insert(self.id, Arc::clone(&slot));
                slot
            }
        };

        end(&mut state);
        (slot, replaced)
    }
}

/// Loads entries in any order into a new named table: see [`Store::bulk_load`].
///
/// Dropping the loader before [`finish`](Self::finish) discards the loaded entries.
#[derive(Debug)]
pub struct StoreLoader {
    store: Store,
    name: TableName,
    loader: BulkLoader,
}

impl StoreLoader {
    /// Adds updates, whose keys may come in any order and more than once: see
    /// [`BulkLoader::write_batch`], also for the cost.
    ///
    /// # Errors
    /// The errors of [`BulkLoader::write_batch`]. Nothing of the batch has been added then.
    pub fn write_batch<K: AsRef<[u8]>>(&mut self, batch: &[(K, Update<'_>)]) -> Result<()> {
        self.loader.write_batch(batch)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// The errors of [`write_batch`](Self::write_batch).
    pub fn insert(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.loader.write_batch(&[(key, Update::Insert(value.as_ref()))])
    }

    /// Installs the table with all that was added, durably.
    ///
    /// Cost: that of [`BulkLoader::finish`] and [`Store::install`]: each byte is written once
    /// beyond the last level, and nothing to the log. Held by the test `install`.
    ///
    /// # Errors
    /// The errors of [`BulkLoader::finish`] and [`Store::install`]. The loaded entries are lost
    /// then.
    pub fn finish(self) -> Result<NamedTable> {
        self.store.install(&self.name, &self.loader.finish()?)
    }

    /// The same together with the commit of a batch: both or neither.
    ///
    /// # Errors
    /// The errors of [`BulkLoader::finish`] and [`Store::install_with`]. The loaded entries are
    /// lost then.
    pub fn finish_with(self, batch: &WriteBatch) -> Result<NamedTable> {
        self.store.install_with(&self.name, &self.loader.finish()?, batch)
    }
}
