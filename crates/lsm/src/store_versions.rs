//! Retained versions of a store: what its tables were after some commit, kept until it is released.
//!
//! A version is an entry of the manifest, which names the same files as the tables did in the checkpoint that it was
//! made with; so retaining copies nothing, and costs space only for what the tables go away from. It has the
//! number of its commit and perhaps a name, and outlives the process.
//!
//! **Rollback** writes a manifest whose tables are those of the version. It is a commit of its own, in between
//! no other, and durable when the call returns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::files::lock;
use crate::manifest::MANIFEST_BYTES_MAX;
use crate::recovery::open_table;
use crate::resolve::Resolve;
use crate::session_core::SessionCore;
use crate::snapshot::SnapshotName;
use crate::store::Store;
use crate::store_core::{LogRoom, Named};
use crate::store_manifest::{StoreManifest, VersionMeta};
use crate::store_options::TableName;
use crate::table::Table;
use crate::trace::event;

/// A retained version in a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VersionInfo {
    /// The number of the last commit in it.
    pub number: u64,
    /// Its name, if it has one.
    pub name: Option<SnapshotName>,
    /// Its tables, sorted by name.
    pub tables: Vec<TableName>,
}

/// A retained version that was opened: its tables stay as long as they are held, also when the version is
/// released.
#[derive(Debug)]
pub struct Version {
    number: u64,
    tables: BTreeMap<String, Arc<Table>>,
}

impl Version {
    /// The number of the last commit in it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The names of its tables, sorted.
    #[must_use]
    pub fn tables(&self) -> Vec<TableName> {
        self.tables.keys().cloned().map(TableName).collect()
    }

    /// A table as the version has it. [`Table::diff`] compares it with another version's, or with the
    /// [view](crate::NamedTable::view) of the present. Cost: no I/O.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`].
    pub fn table(&self, name: &TableName) -> Result<Arc<Table>> {
        let table = self.tables.get(name.as_str()).cloned();
        table.ok_or_else(|| Error::TableDoesNotExist { name: name.to_string() })
    }
}

impl StoreManifest {
    /// Retained versions, as lists show them.
    pub(crate) fn version_infos(&self) -> Vec<VersionInfo> {
        let info = |version: &VersionMeta| {
            let mut tables: Vec<_> =
                version.tables.iter().map(|table| TableName(table.name.clone())).collect();
            tables.sort();
            let name = SnapshotName::new(&version.name).ok();
            VersionInfo { number: version.number, name, tables }
        };
        self.versions.iter().map(info).collect()
    }

    /// The retained version of that number.
    pub(crate) fn version(&self, number: u64) -> Result<&VersionMeta> {
        let found = self.versions.iter().find(|version| version.number == number);
        found.ok_or_else(|| Error::VersionDoesNotExist { version: number.to_string() })
    }

    /// The number of the version of that name.
    pub(crate) fn version_named(&self, name: &SnapshotName) -> Result<u64> {
        let found = self.versions.iter().find(|version| version.name == name.as_str());
        let missing = || Error::VersionDoesNotExist { version: format!("`{name}`") };
        Ok(found.ok_or_else(missing)?.number)
    }
}

/// Opens a version whose files stay.
pub(crate) fn open_version(
    core: &Arc<SessionCore>,
    version: &VersionMeta,
    resolves: &[Resolve],
) -> Result<Version> {
    let mut tables = BTreeMap::new();
    for named in &version.tables {
        tables.insert(named.name.clone(), Arc::new(open_table(core, named, resolves)?));
    }
    Ok(Version { number: version.number, tables })
}

impl Store {
    /// Retains all named tables as they are now, durably, under the number of the last commit, which is
    /// returned, and perhaps a name. If that version is retained already, it gets the name unless it has one. If
    /// tables were made, renamed, dropped or configured since that was done, a commit of nothing is made first.
    ///
    /// Cost: a [`checkpoint`](Self::checkpoint), if there was a commit since the last one; and writes and syncs the
    /// two copies of the manifest.
    ///
    /// # Errors
    /// [`Error::VersionExists`] if another version has the name, or this one has another;
    /// [`Error::SnapshotTooLarge`] if a manifest could hardly hold more versions; those of
    /// [`checkpoint`](Self::checkpoint).
    pub fn retain(&self, name: Option<&SnapshotName>) -> Result<u64> {
        let shared = &self.shared;
        let mut published = lock(&shared.published);
        shared.checkpoint_over(&mut published)?;
        let StoreManifest { versions, commit, tables, .. } = &published.manifest;
        let is_other = |last: &VersionMeta| last.number == *commit && !last.has_tables(tables);
        if versions.last().is_some_and(is_other) {
            // Tables were made, renamed or dropped since, or configured: another version needs another number.
            shared.commit(&mut lock(&shared.state), &[], shared.record(&[])?)?;
            shared.checkpoint_over(&mut published)?;
        }
        let mut next = published.manifest.clone();
        let number = next.commit;
        event!(DEBUG, "store.retain", shared.core.dir(), number);
        let wanted = name.map_or("", SnapshotName::as_str);
        let taken = |version: &&VersionMeta| {
            !wanted.is_empty() && version.name == wanted && version.number != number
        };
        if let Some(version) = next.versions.iter().find(taken) {
            let (name, number) = (wanted.to_owned(), version.number);
            return Err(Error::VersionExists { name, number });
        }
        match next.versions.last_mut().filter(|version| version.number == number) {
            Some(version) if wanted.is_empty() || version.name == wanted => return Ok(number),
            Some(version) if version.name.is_empty() => wanted.clone_into(&mut version.name),
            Some(version) => {
                return Err(Error::VersionExists { name: version.name.clone(), number });
            }
            None => {
                let tables = next.tables.clone();
                next.versions.push(VersionMeta { number, name: wanted.to_owned(), tables });
            }
        }
        let (bytes, limit) = (next.encode().len(), MANIFEST_BYTES_MAX / 2);
        if bytes as u64 > limit {
            // What is left is for the tables to grow.
            return Err(Error::SnapshotTooLarge { bytes, limit });
        }
        published.publish(&shared.core, next)?;
        Ok(number)
    }

    /// Retains a version no longer, durably. What was opened of it stays.
    ///
    /// Cost: writes and syncs the two copies of the manifest; unlinks the files that nobody else needs.
    ///
    /// # Errors
    /// [`Error::VersionDoesNotExist`], [`Error::Disk`], [`Error::Poisoned`], [`Error::SessionClosed`].
    pub fn release(&self, number: u64) -> Result<()> {
        let shared = &self.shared;
        let mut published = lock(&shared.published);
        shared.core.check_writable()?;
        event!(DEBUG, "store.release", shared.core.dir(), number);
        published.manifest.version(number)?;
        let mut next = published.manifest.clone();
        next.versions.retain(|version| version.number != number);
        published.publish(&shared.core, next).map(drop)
    }

    /// The retained versions, oldest first. Cost: no I/O.
    ///
    /// # Errors
    /// [`Error::SessionClosed`].
    pub fn versions(&self) -> Result<Vec<VersionInfo>> {
        self.shared.core.check_open()?;
        Ok(lock(&self.shared.published).manifest.version_infos())
    }

    /// Opens a retained version.
    ///
    /// Cost: as [`Session::open_snapshot`](crate::Session::open_snapshot), for each of its tables.
    ///
    /// # Errors
    /// [`Error::VersionDoesNotExist`], and those of [`open`](Self::open).
    pub fn version(&self, number: u64) -> Result<Version> {
        let shared = &self.shared;
        shared.core.check_open()?;
        // Held, so that its files stay while they are opened.
        let published = lock(&shared.published);
        let version = published.manifest.version(number)?;
        open_version(&shared.core, version, &shared.options.resolves)
    }

    /// Opens the retained version of that name.
    ///
    /// # Errors
    /// As [`version`](Self::version).
    pub fn version_named(&self, name: &SnapshotName) -> Result<Version> {
        let number = lock(&self.shared.published).manifest.version_named(name)?;
        self.version(number)
    }

    /// Makes all named tables what they were in a retained version, durably; returns the number of the commit that
    /// this is. Tables made since are gone, those dropped since are there again; handles on the others stay
    /// valid. Versions, also those in between, stay retained: going forward again is going back, too.
    ///
    /// Cost: as opening a version, and writes and syncs the two copies of the manifest. Whatever has happened since:
    /// nothing is undone step by step.
    ///
    /// # Errors
    /// Those of [`version`](Self::version); [`Error::SnapshotTooLarge`], [`Error::Disk`], [`Error::Poisoned`]. The tables are then as they
    /// were; but after an error that poisons the store, the next opening may find that it was done.
    pub fn roll_back(&self, number: u64) -> Result<u64> {
        let shared = &self.shared;
        drop(shared.state_to_commit()?);
        let mut published = lock(&shared.published);
        shared.core.check_writable()?;
        event!(DEBUG, "store.roll_back", shared.core.dir(), number);
        let version = published.manifest.version(number)?.clone();
        let mut tables = Vec::new();
        for named in &version.tables {
            tables.push((named.id, open_table(&shared.core, named, &shared.options.resolves)?));
        }
        let mut next = published.manifest.clone();
        next.tables.clone_from(&version.tables);
        let mut guard = lock(&shared.state);
        let state = &mut *guard;
        // It has a number, but no record: the log of the manifest before ends with the commit before.
        let log_bytes = shared.log_bytes.load(Ordering::Relaxed);
        let (log, segment, is_linked) = (state.log.clone(), state.segment, state.is_linked);
        state.commit += 1;
        state.is_linked = false;
        next.commit = state.commit;
        let made = shared.begin_log(state, LogRoom::Ordinary).and_then(|segment| {
            next.segment = segment;
            published.publish(&shared.core, next)
        });
        if made.is_err() {
            // The log goes on where it was; the segment that was begun is the next one to be begun again.
            state.commit -= 1;
            (state.log, state.segment, state.is_linked) = (log, segment, is_linked);
        }
        let both = made?;
        let mut slots: BTreeMap<u64, _> = std::mem::take(&mut state.tables)
            .into_iter()
            .map(|(id, named)| (id, named.slot))
            .collect();
        for slot in slots.values() {
            lock(&slot.0).view = None;
        }
        for (id, table) in tables {
            let slot = slots.remove(&id).unwrap_or_default();
            state.tables.insert(id, Named { table, changed: 0, written: 0, slot });
        }
        shared.link(state, published.manifest.commit, log_bytes);
        drop(guard);
        if both {
            shared.recycle(published.manifest.segment, LogRoom::Ordinary);
        }
        Ok(published.manifest.commit)
    }
}
