//! Retained versions of a store: what its tables were after some commit, kept until it is released.
//!
//! A version is an entry of the manifest: its *base*, which is what a checkpoint left of the
//! tables, and the commit up to which the log leads from there. So retaining writes neither entries
//! nor a manifest. It syncs the log and appends an [edit](crate::manifest::manifest) of some forty
//! bytes to both copies. The segments between the base and the commit stay. A version has the
//! number of its commit and perhaps a name, and outlives the process.
//!
//! **Bases.** Versions share a base as long as the log behind it is short ([`CHAIN_LOGS`]) and each
//! checkpoint has had a version before it. Each base keeps the runs of its checkpoint, which merges
//! would have removed; each byte of the log behind a base is read when a version is opened. A store
//! without a log makes a checkpoint, which is the base of that one version.
//!
//! **Rollback** writes a manifest whose tables are those of the version. It is a commit of its own,
//! in between no other, and durable when the call returns.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrane_io::sync::atomic::Ordering;

use crate::entry::merge_operator::MergeOperator;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::manifest::history::{self, HistoryEvent};
use crate::manifest::manifest::{Edit, StoreManifest, VersionBase, VersionMeta};
use crate::manifest::snapshot_meta::MANIFEST_BYTES_MAX;
use crate::session::current_manifest::{Chain, CurrentManifest};
use crate::session::inner::{Holder, SessionInner};
use crate::session::snapshot::SnapshotName;
use crate::store::checkpoint::{TableCopy, write_out};
use crate::store::inner::{LogRoom, Named, Shared, Slot, State, damaged};
use crate::store::options::TableName;
use crate::store::recovery::{apply_log_of_version, open_table};
use crate::store::store::Store;
use crate::table::table::Table;
use crate::trace::event;

/// Versions share a base until the log behind it is so many times as long as
/// [`log_bytes_max`](crate::StoreOptions::log_bytes_max).
const CHAIN_LOGS: u64 = 2;

/// Or until it has so many bytes.
const CHAIN_BYTES_MAX: u64 = 256 << 20;

/// A retained version in a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct VersionInfo {
    /// The number of the last commit in it.
    pub number: u64,
    /// Its name, if it has one.
    pub name: Option<SnapshotName>,
    /// Its tables, sorted by name.
    pub tables: Vec<TableName>,
}

/// A retained version that was opened: its tables stay as long as they are held, also when the
/// version is released.
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

    /// A table as the version has it. [`Table::diff`] compares it with another version's, or with
    /// the [view](crate::NamedTable::view) of the present. Cost: no I/O.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`].
    pub fn table(&self, name: &(impl AsRef<str> + ?Sized)) -> Result<Arc<Table>> {
        let name = name.as_ref();
        let table = self.tables.get(name).cloned();
        table.ok_or_else(|| Error::TableDoesNotExist { name: name.to_owned() })
    }
}

impl StoreManifest {
    /// Retained versions, as lists show them.
    pub(crate) fn version_infos(&self) -> Vec<VersionInfo> {
        let info = |version: &VersionMeta| {
            let mut tables: Vec<_> =
                version.base.tables.iter().map(|table| TableName(table.name.clone())).collect();
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

/// Opens the tables of a version whose files stay, by number; `next_table` is a number that no
/// table has.
pub(crate) fn open_tables(
    inner: &Arc<SessionInner>,
    version: &VersionMeta,
    next_table: u64,
    merge_operators: &[MergeOperator],
) -> Result<BTreeMap<u64, Table>> {
    let mut tables = BTreeMap::new();
    for named in &version.base.tables {
        tables.insert(named.id, open_table(inner, named, merge_operators)?);
    }
    apply_log_of_version(inner, version, next_table, &mut tables).map_err(damaged)?;
    Ok(tables)
}

/// Opens a version whose files stay; `next_table` is a number that no table has.
pub(crate) fn open_version(
    inner: &Arc<SessionInner>,
    version: &VersionMeta,
    next_table: u64,
    merge_operators: &[MergeOperator],
) -> Result<Version> {
    let mut opened = open_tables(inner, version, next_table, merge_operators)?;
    let mut tables = BTreeMap::new();
    for named in &version.base.tables {
        let table = opened.remove(&named.id).map(Arc::new);
        tables.extend(table.map(|table| (named.name.clone(), table)));
    }
    debug_assert!(opened.is_empty(), "each table has its name");
    Ok(Version { number: version.number, tables })
}

impl Shared {
    /// Makes all commits so far durable. Returns the last one, and the segment of the log that it
    /// is in or that follows on it; 0 without a log.
    fn durable_place(&self, published: &mut CurrentManifest) -> Result<(u64, u64)> {
        self.make_durable(published)?;
        // The log is read up to that segment when the version is opened.
        self.durable.seal_in_turn()?;
        let state = lock(&self.state);
        let segment = if state.is_linked { state.segment } else { 0 };
        // In between another commit may have come, which is in the log and not durable yet.
        let commit = self.durable.commit().min(state.commit);
        Ok((commit, segment))
    }

    /// The base of a version that is retained now: that of the last one, or the last checkpoint.
    fn base_of_version(&self, published: &mut CurrentManifest) -> Arc<VersionBase> {
        let StoreManifest { commit, segment, tables, .. } = &published.manifest;
        let written = self.log_written.load(Ordering::Relaxed);
        let most = (CHAIN_LOGS * self.log_bytes_max).min(CHAIN_BYTES_MAX);

        let is_short = |start: u64| written - start <= most;
        if let Some(chain) = published.live_chain()
            && is_short(chain.start)
            && chain.base.has_tables(tables)
        {
            return Arc::clone(&chain.base);
        }

        let base =
            Arc::new(VersionBase { commit: *commit, segment: *segment, tables: tables.clone() });
        let start = written.saturating_sub(self.log_bytes.load(Ordering::Relaxed));
        let chain = Chain { base: Arc::clone(&base), start, is_used: true };
        published.chain = (*segment > 0).then_some(chain);
        base
    }
}

/// Tables and views that a roll-back has replaced: the last user of a run removes its file, so
/// these are dropped without locks.
struct Replaced {
    tables: Vec<Named>,
    views: Vec<Arc<Table>>,
}

impl Shared {
    /// Puts other tables in the place of all that are there; `end` is called at the same moment.
    fn replace_tables(
        &self,
        old: &[(u64, Arc<Slot>)],
        copies: Vec<TableCopy>,
        end: impl FnOnce(&mut State),
    ) -> Replaced {
        let mut slots: BTreeMap<u64, Arc<Slot>> = old.iter().cloned().collect();
        for copy in &copies {
            let back = || {
                let dropped = lock(&self.state).dropped.remove(&copy.id);
                dropped.and_then(|slot| slot.upgrade()).unwrap_or_default()
            };
            slots.entry(copy.id).or_insert_with(back);
        }
        let mut named: BTreeMap<u64, Named> =
            copies.into_iter().map(|copy| (copy.id, Named::new(copy.into_table()))).collect();

        let mut replaced = Replaced { tables: Vec::new(), views: Vec::new() };
        let mut tables: Vec<_> = slots.values().map(|slot| lock(&slot.table)).collect();
        let mut state = lock(&self.state);
        state.tables.clear();
        for ((id, slot), table) in slots.iter().zip(&mut tables) {
            let next = named.remove(id);
            if next.is_some() {
                state.tables.insert(*id, Arc::clone(slot));
            } else {
                state.dropped.insert(*id, Arc::downgrade(slot));
            }
            replaced.tables.extend(std::mem::replace(&mut **table, next));
            replaced.views.extend(lock(&slot.reading).view.take());
        }
        debug_assert!(named.is_empty(), "each copy has its slot");
        debug_assert!(replaced.tables.len() <= slots.len(), "a slot had one table at most");
        end(&mut state);
        replaced
    }
}

impl Store {
    /// Retains all named tables as they are now, durably, under the number of the last commit,
    /// which is returned, and perhaps a name. If that version is retained already, it gets the name
    /// unless it has one. If tables were made, renamed, dropped or configured since that was done,
    /// a commit of nothing is made first.
    ///
    /// Cost: syncs the log, unless it is durable up to there; appends about 40 bytes to each copy
    /// of the manifest and syncs it. Now and then writes both copies anew, so that K versions write
    /// some 100 K bytes of manifests in all. What the log has up to the version stays on the disk,
    /// and the runs of a checkpoint before. In a store without a log: a
    /// [`checkpoint`](Self::checkpoint), if there was a commit since the last one.
    ///
    /// Beside undo records in the same commit, over 200 durable blocks of 512 updates: half the
    /// bytes written (1.0 × those without versions, undo records 2.0 ×), and one fsync of a
    /// manifest more (14 ms a block, undo records 10 ms, neither 8 ms; `terrane bench
    /// retained 200` in a development build, on a machine with other work).
    ///
    /// # Errors
    /// [`Error::VersionExists`] if another version has the name, or this one has another;
    /// [`Error::SnapshotTooLarge`] if a manifest could hardly hold more versions; those of
    /// [`sync`](Self::sync).
    pub fn retain(&self, name: Option<&SnapshotName>) -> Result<u64> {
        let shared = &self.shared;
        let mut published = lock(&shared.published);
        shared.inner.check_writable()?;
        let (mut number, mut segment) = shared.durable_place(&mut published)?;
        let StoreManifest { versions, tables, .. } = &published.manifest;

        let is_other = |last: &VersionMeta| last.number == number && !last.base.has_tables(tables);
        if versions.last().is_some_and(is_other) {
            // Tables were made, renamed or dropped since, or configured: another version needs
            // another number.
            shared.commit(Vec::new())?;
            (number, segment) = shared.durable_place(&mut published)?;
        }

        event!(DEBUG, "store.retain", shared.inner.dir(), number);
        let versions = &published.manifest.versions;
        debug_assert!(
            versions.last().is_none_or(|last| last.number <= number),
            "versions are of commits that were made"
        );

        let wanted = name.map_or("", SnapshotName::as_str);
        let taken = |version: &&VersionMeta| {
            !wanted.is_empty() && version.name == wanted && version.number != number
        };

        if let Some(version) = versions.iter().find(taken) {
            let name = wanted.to_owned();
            let number = version.number;
            return Err(Error::VersionExists { name, number });
        }

        let version = match versions.last().filter(|version| version.number == number) {
            Some(version) if wanted.is_empty() || version.name == wanted => return Ok(number),
            Some(version) if version.name.is_empty() => {
                VersionMeta { name: wanted.to_owned(), ..version.clone() }
            }
            Some(version) => {
                return Err(Error::VersionExists { name: version.name.clone(), number });
            }
            None => {
                let base = shared.base_of_version(&mut published);
                let until = if base.commit == number { 0 } else { segment };
                debug_assert!(base.commit <= number, "a version lies on the log behind its base");
                debug_assert!(
                    until == 0 || 0 < base.segment && base.segment <= until,
                    "a version that no log leads to is refused"
                );
                VersionMeta { number, name: wanted.to_owned(), base, until }
            }
        };

        let bytes = published.bytes() as usize;
        let limit = MANIFEST_BYTES_MAX / 2;
        if bytes as u64 > limit {
            // What is left is for the tables to grow.
            return Err(Error::SnapshotTooLarge { bytes, limit });
        }

        published.amend(&shared.inner, Edit::Retain(version))?;
        if let Some(chain) = &mut published.chain {
            chain.is_used = true;
        }
        Ok(number)
    }

    /// Retains a version no longer, durably. What was opened of it stays.
    ///
    /// Cost: as [`retain`](Self::retain) of a version that is durable; removes the files that
    /// nobody else needs.
    ///
    /// # Errors
    /// [`Error::VersionDoesNotExist`], [`Error::Disk`], [`Error::Poisoned`],
    /// [`Error::SessionClosed`].
    pub fn release(&self, number: u64) -> Result<()> {
        let shared = &self.shared;
        let mut published = lock(&shared.published);
        shared.inner.check_writable()?;
        event!(DEBUG, "store.release", shared.inner.dir(), number);
        let until = published.manifest.version(number)?.until;
        let both = published.amend(&shared.inner, Edit::Release(number))?;
        if both && until > 0 && !published.needs_segment(until) {
            shared.recycle(&published, LogRoom::Ordinary);
        }
        Ok(())
    }

    /// The retained versions, oldest first. Cost: no I/O.
    ///
    /// # Errors
    /// [`Error::SessionClosed`].
    pub fn versions(&self) -> Result<Vec<VersionInfo>> {
        self.shared.inner.check_open()?;
        Ok(lock(&self.shared.published).manifest.version_infos())
    }

    /// Opens a retained version.
    ///
    /// Cost: as [`Session::open_snapshot`](crate::Session::open_snapshot), for each of its tables;
    /// and reads what the log has between its base and the version, which is applied in memory.
    /// That is up to twice [`log_bytes_max`](crate::StoreOptions::log_bytes_max).
    ///
    /// # Errors
    /// [`Error::VersionDoesNotExist`], and those of [`open`](Self::open).
    pub fn version(&self, number: u64) -> Result<Version> {
        let shared = &self.shared;
        shared.inner.check_open()?;
        let _call = shared.inner.register(Holder::Call);
        let (version, next_table, _log, _runs) = {
            let published = lock(&shared.published);
            let version = published.manifest.version(number)?.clone();
            let log = shared.inner.keep_log(version.first_segment());
            let runs: Vec<_> =
                version.base.numbers().map(|run| shared.inner.files().attach(run)).collect();
            (version, published.manifest.next_table, log, runs)
        };
        open_version(&shared.inner, &version, next_table, &shared.options.merge_operators)
    }

    /// The number of the retained version of that name, if there is one.
    pub(crate) fn version_number(&self, name: &SnapshotName) -> Option<u64> {
        lock(&self.shared.published).manifest.version_named(name).ok()
    }

    /// Opens the retained version of that name.
    ///
    /// # Errors
    /// The errors of [`version`](Self::version).
    pub fn version_named(&self, name: &SnapshotName) -> Result<Version> {
        let number = lock(&self.shared.published).manifest.version_named(name)?;
        self.version(number)
    }

    /// Makes all named tables what they were in a retained version, durably; returns the number of
    /// the commit that this is. Tables made since are gone, those dropped since are there again;
    /// handles on the others stay valid. Every live transaction that has read anything conflicts
    /// with it. Versions, also those in between, stay retained: going
    /// forward again is going back, too. Indexes are what they were in the version: one that was
    /// made since is gone, and one of another version of its function must be
    /// [derived](crate::NamedTable::derive) again before the next commit to its table.
    ///
    /// Cost: as opening a version; writes out what the log has for it, as a
    /// [`checkpoint`](Self::checkpoint) would; and writes and syncs the two copies of the manifest.
    /// Whatever has happened since: nothing is undone step by step.
    ///
    /// # Errors
    /// Those of [`version`](Self::version); [`Error::SnapshotTooLarge`], [`Error::Disk`],
    /// [`Error::Poisoned`]. The tables are then as they were; but after an error that poisons the
    /// store, the next opening may find that it was done.
    pub fn roll_back(&self, number: u64) -> Result<u64> {
        let shared = &self.shared;
        shared.prepare_to_commit(false)?;
        let mut published = lock(&shared.published);
        shared.inner.check_writable()?;
        event!(DEBUG, "store.roll_back", shared.inner.dir(), number);
        let version = published.manifest.version(number)?.clone();
        let next_table = published.manifest.next_table;
        let tables =
            open_tables(&shared.inner, &version, next_table, &shared.options.merge_operators)?;
        let mut next = published.manifest.clone();
        next.tables.clone_from(&version.base.tables);
        let copies: Vec<_> =
            tables.into_iter().map(|(id, table)| TableCopy::new(id, table)).collect();
        let written = if version.until == 0 { Vec::new() } else { write_out(&copies, &mut next)? };

        // From here on nobody commits, and the list of tables is ours.
        let old = shared.slots();
        let writers: Vec<_> = old.iter().map(|(_, slot)| lock(&slot.writer)).collect();
        let bare = lock(&shared.bare_writer);
        let rolled_back = |segment, before: &StoreManifest, after: &StoreManifest| {
            let gone = history::only_in(&before.tables, &after.tables);
            let back = history::only_in(&after.tables, &before.tables);
            HistoryEvent::RolledBack { to: number, segment, gone, back }
        };
        let done = shared.publish_commit(&mut published, next, rolled_back)?;
        for written in &written {
            written.share(&shared.inner);
        }
        let commit = published.manifest.commit;
        let replaced = shared.replace_tables(&old, copies, |state| {
            shared.write_sets.note_replaced(commit, None);
            shared.link(state, commit, done.log_bytes);
            shared.renew_indexes(state, &published.manifest, None);
        });
        drop((writers, bare));
        drop(replaced);

        if done.both {
            shared.recycle(&published, LogRoom::Ordinary);
        }
        Ok(published.manifest.commit)
    }
}
