//! A copy of a store that takes over the commits of its source: what followers have in common,
//! whether they read a directory ([`Follower`](crate::Follower)) or backups in object storage.
//!
//! The number of the source's commit is in a table of the copy, [`FOLLOW_TABLE`], and is written in
//! the same commit as the changes; so after a crash nothing is repeated and nothing is missing.
//!
//! Invariants:
//! - Between two calls the tables of the copy are those of the source after the commit that the
//!   copy names, but for tables that were made or dropped since.
//! - A table that the source has loaded comes with its mark in one commit, once all of its entries
//!   are here.
//! - The mark has the number of the commit that wrote it: a copy that somebody else has committed
//!   to is refused.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Disk, Durability};

use crate::config::TableConfig;
use crate::entry::entry::Update;
use crate::entry::merge_operator::MergeOperator;
use crate::error::{Error, Result};
use crate::lookup::result::Lookup;
use crate::manifest::manifest::{self, StoreManifest};
use crate::run::blob::BlobRef;
use crate::store::feed::{
    Changes, FeedChange, FeedItem, FeedOptions, FeedPart, FeedTable, FeedUpdate,
};
use crate::store::install::Target;
use crate::store::options::{StoreOptions, TableName};
use crate::store::reader::{ReaderOptions, StoreReader};
use crate::store::store::{NamedTable, Store};
use crate::store::versions::Version;
use crate::store::write_batch::WriteBatch;
use crate::table::bulk_load::BulkLoader;
use crate::table::session::Session;
use crate::table::table::Table;
use crate::trace::event;

/// The table in which a follower keeps up to which commit of its source it is.
pub const FOLLOW_TABLE: &str = "terrane-follow";

/// The key of its only entry.
const KEY: &[u8] = b"source";

/// Bytes of changes that are committed before the copy is synced.
const SYNC_BYTES: usize = 4 << 20;

/// How a follower works.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FollowOptions {
    /// Name of the follower's feed in its source; `follower` unless set. Each follower of a source
    /// has a name of its own.
    pub feed: String,
    /// How the feed is read, and how much of the WAL it may hold.
    pub feed_options: FeedOptions,
    /// Merge operators that are not built in.
    pub merge_operators: Vec<MergeOperator>,
    /// How the copy is opened.
    pub store: StoreOptions,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self {
            feed: "follower".to_owned(),
            feed_options: FeedOptions::default(),
            merge_operators: Vec::new(),
            store: StoreOptions::default(),
        }
    }
}

impl FollowOptions {
    /// The same with another name of the [`feed`](Self::feed).
    #[must_use]
    pub fn feed(self, name: impl Into<String>) -> Self {
        Self { feed: name.into(), ..self }
    }

    /// The same with the feed read in another way.
    #[must_use]
    pub fn feed_options(self, feed_options: FeedOptions) -> Self {
        Self { feed_options, ..self }
    }

    /// The same with one more merge operator.
    #[must_use]
    pub fn merge_operator(mut self, operator: MergeOperator) -> Self {
        self.merge_operators.push(operator);
        self
    }

    /// The same with the copy opened in another way.
    #[must_use]
    pub fn store(self, store: StoreOptions) -> Self {
        Self { store, ..self }
    }
}

/// Where a follower is, and what it has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FollowReport {
    /// The last commit of the source that the copy has.
    pub source_commit: u64,
    /// Commits of the source that were applied one for one.
    pub commits: u64,
    /// Changes in them.
    pub updates: u64,
    /// Roll-backs of the source that were applied.
    pub roll_backs: u64,
    /// Tables that the source has loaded, and whose entries were applied.
    pub loads: u64,
    /// How often a whole view of the source was taken over, as after a gap.
    pub takeovers: u64,
}

/// A table of the source and of the copy, compared.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowedTable {
    /// Its name.
    pub name: TableName,
    /// How many entries each has, and their digests: of the source, then of the copy. `None` for a
    /// table that is not there.
    pub digests: [Option<(u64, [u8; 32])>; 2],
}

impl FollowedTable {
    /// Whether both have the same entries.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.digests[0] == self.digests[1]
    }
}

/// Number of the source's commit and of the copy's, as the copy has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) source: u64,
    /// The manifest of the source whose change of the list of tables the copy has.
    pub(crate) sequence: u64,
    /// The copy's own commit that wrote this.
    pub(crate) own: u64,
    /// Place that the source's commits are read from; empty for the directory of the source.
    pub(crate) origin: String,
}

impl Mark {
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.source, self.sequence, self.own];
        let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.extend_from_slice(self.origin.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (source, rest) = bytes.split_first_chunk::<8>()?;
        let (sequence, rest) = rest.split_first_chunk::<8>()?;
        let (own, origin) = rest.split_first_chunk::<8>()?;
        Some(Self {
            source: u64::from_le_bytes(*source),
            sequence: u64::from_le_bytes(*sequence),
            own: u64::from_le_bytes(*own),
            origin: std::str::from_utf8(origin).ok()?.to_owned(),
        })
    }
}

/// A copy of a store that takes over commits which its holder reads somewhere: out of backups that
/// are shipped to another place, for one. [`Follower`](crate::Follower) follows a directory.
pub struct FollowedCopy {
    pub(crate) store: Store,
    mark_table: NamedTable,
    pub(crate) mark: Mark,
    /// Parts of the commit that is being told.
    parts: Vec<FeedPart>,
    /// The table whose entries are being told.
    loading: Option<(TableName, BulkLoader)>,
    unsynced_bytes: usize,
    merge_operators: Vec<MergeOperator>,
    report: FollowReport,
}

impl fmt::Debug for FollowedCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowedCopy").field("report", &self.report()).finish_non_exhaustive()
    }
}

/// Changes of one table.
type Batch<'a> = Vec<(&'a [u8], Update<'a>)>;

/// A place on a disk.
pub(crate) type Site<'a> = (&'a Arc<dyn Disk>, &'a Path);

/// Effect of an item of a feed on a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The copy has it, or had it already, or it is a part of a commit.
    Done,
    /// A whole commit of this number.
    Commit(u64),
    /// Not applied: the source went back to a version.
    RolledBack { commit: u64, to: u64, gone: Vec<FeedTable>, back: Vec<FeedTable> },
    /// Not applied: only a view of the source has what the feed does not tell.
    NeedsView,
}

pub(crate) fn refused(dir: &Path, reason: impl Into<String>) -> Error {
    Error::NotAFollower { path: dir.to_owned(), reason: reason.into() }
}

pub(crate) fn store_options(options: &FollowOptions) -> StoreOptions {
    let mut store = options.store.clone();
    store.merge_operators.extend(options.merge_operators.iter().cloned());
    store
}

impl FollowedCopy {
    /// Whether a directory is a copy that was begun.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub fn is_begun(copy: (&Arc<dyn Disk>, &Path), options: &FollowOptions) -> Result<bool> {
        let (disk, dir) = copy;
        let mut reader = ReaderOptions::default();
        reader.merge_operators.clone_from(&options.merge_operators);
        Ok(disk.kind(dir)?.is_some()
            && StoreReader::open(Arc::clone(disk), dir, &reader)
                .is_ok_and(|copy| copy.tables().iter().any(|t| t.name.as_str() == FOLLOW_TABLE)))
    }

    /// Makes a copy of a store that has all of some commit of its source, atomically: a backup, or
    /// a store that was restored. `origin` is any short text, which says where the commits come
    /// from and is written with each of them.
    ///
    /// Indexes become ordinary tables: the source tells their changes, too.
    ///
    /// # Errors
    /// The errors of [`Store::open`] and [`Store::install`].
    pub fn begin(
        copy: (&Arc<dyn Disk>, &Path),
        options: &FollowOptions,
        origin: &str,
    ) -> Result<()> {
        // As the source has counted it: what the feed tells of that manifest is known.
        let found = manifest::read(copy.0.as_ref(), copy.1)?;
        let sequence = found.manifest.map_or(0, |manifest| manifest.sequence);
        let store = Store::open(Arc::clone(copy.0), copy.1, &store_options(options))?;
        let mark = (store.last_commit(), sequence);
        Self::begin_store(&store, mark, origin)
    }

    /// The same for an open store, with the commit and the manifest of the source that it has.
    pub(crate) fn begin_store(
        store: &Store,
        (source, sequence): (u64, u64),
        origin: &str,
    ) -> Result<()> {
        let own = store.last_commit();
        let mark = Mark { source, sequence, own, origin: origin.to_owned() };
        let mut table = store.new_volatile_table(&TableConfig::default())?;
        table.insert(KEY, &mark.encode())?;
        let installed = store.install_changing(FOLLOW_TABLE, &table, StoreManifest::forget_indexes);
        drop(table);
        let closed = store.close();
        installed.map(drop).and(closed)
    }

    /// Opens a copy that was begun.
    ///
    /// # Errors
    /// [`Error::NotAFollower`] if somebody else has committed to it, or if it is none; those of
    /// [`Store::open`].
    pub fn open(copy: (&Arc<dyn Disk>, &Path), options: &FollowOptions) -> Result<Self> {
        let (disk, dir) = copy;
        let store = Store::open(Arc::clone(disk), dir, &store_options(options))?;
        let mark_table = match store.table(FOLLOW_TABLE) {
            Err(Error::TableDoesNotExist { .. }) => return Err(refused(dir, "it has no mark")),
            table => table?,
        };
        let entry = mark_table.get(KEY)?;
        let mark = entry.value().and_then(Mark::decode);
        let mark = mark.ok_or_else(|| refused(dir, "its mark is not one"))?;
        if mark.own != store.last_commit() {
            return Err(refused(dir, "somebody else has committed to it"));
        }
        Ok(Self {
            store,
            mark_table,
            mark,
            parts: Vec::new(),
            loading: None,
            unsynced_bytes: 0,
            merge_operators: options.merge_operators.clone(),
            report: FollowReport::default(),
        })
    }

    /// The copy, for reading. Whoever commits to it ends its following.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The last commit of the source that the copy has.
    #[must_use]
    pub fn source_commit(&self) -> u64 {
        self.mark.source
    }

    /// Text that was given with the last commit.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.mark.origin
    }

    /// Where the copy is, and what was done since it was opened.
    #[must_use]
    pub fn report(&self) -> FollowReport {
        FollowReport { source_commit: self.mark.source, ..self.report }
    }

    /// Takes over all commits that a feed tells, and makes them durable. The feed begins behind
    /// [`source_commit`](Self::source_commit), and tells of the same source. Returns whether that
    /// is all: false if the feed has come to something that only a view of the source has, as a
    /// roll-back or entries of a table that the feed does not tell.
    ///
    /// # Errors
    /// Those of [`Changes::poll`] and [`Store::commit`]. The copy is at some commit of its source;
    /// the call may be repeated.
    pub fn take_all(&mut self, changes: &mut Changes, origin: &str) -> Result<bool> {
        origin.clone_into(&mut self.mark.origin);
        self.forget_parts();
        while let Some(item) = changes.poll()? {
            let place = (changes.position(), changes.given_sequence());
            match self.take(item, place)? {
                Taken::Done => {}
                Taken::Commit(_) if self.unsynced_bytes < SYNC_BYTES => {}
                Taken::Commit(_) => self.sync()?,
                Taken::RolledBack { .. } | Taken::NeedsView => {
                    self.sync()?;
                    return Ok(false);
                }
            }
        }
        self.sync()?;
        Ok(true)
    }

    /// Makes the copy equal to a view of its source, by one commit with what differs, and durable.
    /// Tables that are new come one by one before.
    ///
    /// Cost: a scan of all tables on both sides. Memory: what differs.
    ///
    /// # Errors
    /// Those of scans and of [`Store::commit`]. The call may be repeated.
    pub fn take_over(&mut self, reader: &StoreReader, origin: &str) -> Result<()> {
        origin.clone_into(&mut self.mark.origin);
        self.take_over_view(reader, reader.last_commit())
    }

    /// Compares all tables of the copy with those of a view of its source, by their digests.
    ///
    /// Cost: a scan of all tables on both sides.
    ///
    /// # Errors
    /// Those of scans. Tables that differ are no error.
    pub fn compare(&self, reader: &StoreReader) -> Result<Vec<FollowedTable>> {
        let tables = reader.tables().into_iter().map(|info| info.name);
        let own = self.store.tables()?.into_iter().map(|info| info.name);
        let mut names: BTreeSet<TableName> = tables.chain(own).collect();
        names.retain(|name| name.as_str() != FOLLOW_TABLE);
        let mut compared = Vec::new();
        for name in names {
            let of_source = reader.table(&name);
            let of_copy = self.store.table(&name).and_then(|table| table.view());
            let digests = [digest(of_source)?, digest(of_copy)?];
            compared.push(FollowedTable { name, digests });
        }
        Ok(compared)
    }

    /// Makes everything durable and closes the copy.
    ///
    /// # Errors
    /// Those of [`Store::close`].
    pub fn close(mut self) -> Result<()> {
        self.sync()?;
        self.store.close()
    }

    /// Makes everything durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.store.sync()?;
        self.unsynced_bytes = 0;
        Ok(())
    }

    /// Whether so much was committed that it is to be made durable.
    pub(crate) fn is_sync_due(&self) -> bool {
        self.unsynced_bytes >= SYNC_BYTES
    }

    /// Forgets the parts of a commit that was not told to its end.
    pub(crate) fn forget_parts(&mut self) {
        self.parts.clear();
        self.loading = None;
    }

    /// Takes an item of a feed, which is at `position` now and has told the change of manifest
    /// `sequence`, or 0.
    pub(crate) fn take(
        &mut self,
        item: FeedItem,
        (position, sequence): (u64, u64),
    ) -> Result<Taken> {
        // What the copy has already is told again: the feed goes on behind what was acknowledged.
        let is_list_change = match &item {
            FeedItem::Commit(commit) if commit.number <= self.mark.source => {
                return Ok(Taken::Done);
            }
            FeedItem::RolledBack { commit, .. }
            | FeedItem::TableLoaded { commit: Some(commit), .. }
            | FeedItem::TableEntries { commit: Some(commit), .. }
                if *commit <= self.mark.source =>
            {
                return Ok(Taken::Done);
            }
            FeedItem::Commit(_)
            | FeedItem::RolledBack { .. }
            | FeedItem::TableLoaded { commit: Some(_), .. }
            | FeedItem::TableEntries { commit: Some(_), .. } => false,
            _ => true,
        };
        if is_list_change {
            if position < self.mark.source {
                return Ok(Taken::Done);
            }
            // What the copy has already.
            if (1..=self.mark.sequence).contains(&sequence) {
                return Ok(Taken::Done);
            }
        }

        match item {
            FeedItem::Commit(commit) => {
                if commit.is_first {
                    self.parts.clear();
                }
                self.parts.extend(commit.tables);
                if !commit.is_last {
                    return Ok(Taken::Done);
                }
                let parts = std::mem::take(&mut self.parts);
                self.report.commits += 1;
                self.apply(&parts, commit.number)?;
                Ok(Taken::Commit(commit.number))
            }
            FeedItem::TableCreated { table, config, merge_operator } => {
                let config = self.config(&table.name, config, &merge_operator)?;
                match self.store.create_table(&table.name, &config) {
                    // Made before a crash, or part of the backup.
                    Err(Error::TableExists { .. }) => {}
                    made => drop(made?),
                }
                self.note_list_change(sequence)
            }
            FeedItem::TableDropped { table } => {
                self.drop_table(&table.name)?;
                self.note_list_change(sequence)
            }
            FeedItem::TableRenamed { table, from } => {
                match self.store.rename_table(&from, &table.name) {
                    // Done before a crash.
                    Err(Error::TableDoesNotExist { .. })
                        if self.store.table(&table.name).is_ok() => {}
                    renamed => renamed?,
                }
                self.note_list_change(sequence)
            }
            FeedItem::TableLoaded { has_entries: false, .. } => Ok(Taken::NeedsView),
            FeedItem::TableLoaded { table, config, merge_operator, .. } => {
                let config = self.config(&table.name, config, &merge_operator)?;
                let loader = self.store.session().bulk_load(&config)?;
                self.loading = Some((table.name, loader));
                Ok(Taken::Done)
            }
            FeedItem::TableEntries { commit, is_last, updates, .. } => {
                let Some((_, loader)) = &mut self.loading else { return Ok(Taken::Done) };
                let batch: Vec<_> =
                    updates.iter().map(|update| (&update.key, update.update())).collect();
                loader.write_batch(&batch)?;
                self.report.updates += updates.len() as u64;
                match self.loading.take() {
                    Some((name, loader)) if is_last => {
                        self.install(&name, loader, commit, sequence)
                    }
                    unfinished => {
                        self.loading = unfinished;
                        Ok(Taken::Done)
                    }
                }
            }
            FeedItem::RolledBack { commit, to, gone, back } => {
                Ok(Taken::RolledBack { commit, to, gone, back })
            }
        }
    }

    /// The configuration of a table of the source, with its merge operator.
    fn config(
        &self,
        table: &TableName,
        mut config: TableConfig,
        merge_operator: &str,
    ) -> Result<TableConfig> {
        if config.merge_operator.name() != merge_operator {
            let given = self.merge_operators.iter().find(|given| given.name() == merge_operator);
            let missing = || Error::MergeOperatorMismatch {
                name: table.to_string(),
                stored: merge_operator.to_owned(),
                given: None,
            };
            config.merge_operator = given.cloned().ok_or_else(missing)?;
        }
        Ok(config)
    }

    /// Installs a table that the source has loaded, together with the mark, durably.
    fn install(
        &mut self,
        name: &TableName,
        loader: BulkLoader,
        commit: Option<u64>,
        sequence: u64,
    ) -> Result<Taken> {
        let table = loader.finish()?;
        let target = match self.store.table(name) {
            Err(Error::TableDoesNotExist { .. }) => Target::New,
            found => found.map(|_| Target::Existing)?,
        };
        // A commit of the source has its own number; a change of the list is that of its manifest.
        let (source, sequence) = match commit {
            Some(commit) => (commit, self.mark.sequence),
            None => (self.mark.source, self.mark.sequence.max(sequence)),
        };
        let own = self.store.last_commit() + 1;
        let mark = Mark { source, sequence, own, ..self.mark.clone() };
        let mut batch = WriteBatch::new();
        batch.insert(&self.mark_table, KEY, mark.encode());
        drop(self.store.install_at(name.as_str(), &table, target, &batch)?);
        if self.store.last_commit() != own {
            let dir = self.store.shared.inner.dir();
            return Err(refused(dir, "somebody else has committed to it"));
        }
        self.mark = mark;
        self.report.loads += 1;
        match commit {
            Some(commit) => {
                self.report.commits += 1;
                Ok(Taken::Commit(commit))
            }
            None => Ok(Taken::Done),
        }
    }

    pub(crate) fn drop_table(&self, name: &TableName) -> Result<()> {
        match self.store.drop_table(name) {
            Err(Error::TableDoesNotExist { .. }) => Ok(()),
            dropped => dropped,
        }
    }

    /// Notes a change of the list of tables, which is durable, so that it is not repeated.
    fn note_list_change(&mut self, sequence: u64) -> Result<Taken> {
        let sequence = self.mark.sequence.max(sequence);
        self.commit(&[], Mark { sequence, ..self.mark.clone() })?;
        Ok(Taken::Done)
    }

    /// Commits changes together with the mark.
    fn commit(&mut self, parts: &[(NamedTable, &[FeedUpdate])], mark: Mark) -> Result<()> {
        let mark = Mark { own: self.store.last_commit() + 1, ..mark };
        let bytes = mark.encode();
        let own: [(&[u8], Update<'_>); 1] = [(KEY, Update::Insert(&bytes))];
        let mut updates: Vec<(&NamedTable, Batch<'_>)> = parts
            .iter()
            .map(|(table, updates)| {
                let updates = updates.iter().map(|update| (update.key.as_slice(), update.update()));
                (table, updates.collect())
            })
            .collect();
        updates.push((&self.mark_table, own.to_vec()));
        let batches: Vec<_> =
            updates.iter().map(|(table, updates)| (*table, updates.as_slice())).collect();
        let ticket = self.store.commit_with(&batches, Durability::Buffered)?;
        if ticket.commit() != mark.own {
            return Err(refused(
                self.store.shared.inner.dir(),
                "somebody else has committed to it",
            ));
        }
        self.mark = mark;
        Ok(())
    }

    /// Applies a commit of the source.
    fn apply(&mut self, parts: &[FeedPart], number: u64) -> Result<()> {
        let mut batches = Vec::with_capacity(parts.len());
        for part in parts {
            batches.push((self.store.table(&part.table.name)?, part.updates.as_slice()));
            self.report.updates += part.updates.len() as u64;
            self.unsynced_bytes += part.updates.iter().map(FeedUpdate::bytes).sum::<usize>();
        }
        self.commit(&batches, Mark { source: number, ..self.mark.clone() })
    }

    /// Applies a roll-back of the source to what the copy retains as `version`.
    pub(crate) fn roll_back(
        &mut self,
        commit: u64,
        version: &Version,
        gone: &[FeedTable],
    ) -> Result<()> {
        let gone: BTreeSet<&TableName> = gone.iter().map(|table| &table.name).collect();
        let mut changes = Vec::new();
        for info in self.store.tables()? {
            if info.name.as_str() == FOLLOW_TABLE || gone.contains(&info.name) {
                continue;
            }
            let table = self.store.table(&info.name)?;
            let view = table.view()?;
            // A table that the version lacks was made behind its commit, and was empty.
            let updates = match version.table(&info.name) {
                Ok(before) => differences(self.store.session(), &view, &before)?,
                Err(Error::TableDoesNotExist { .. }) => {
                    vec![FeedUpdate { key: Vec::new(), change: FeedChange::DeleteRange(None) }]
                }
                Err(error) => return Err(error),
            };
            if !updates.is_empty() {
                changes.push((table, updates));
            }
        }
        let batches: Vec<_> =
            changes.iter().map(|(table, updates)| (table.clone(), updates.as_slice())).collect();
        for name in gone {
            self.drop_table(name)?;
        }
        self.commit(&batches, Mark { source: commit, ..self.mark.clone() })?;
        self.report.roll_backs += 1;
        Ok(())
    }

    /// Takes over a view of the source, which is that of `commit`.
    pub(crate) fn take_over_view(&mut self, reader: &StoreReader, commit: u64) -> Result<()> {
        self.report.takeovers += 1;
        self.forget_parts();
        event!(DEBUG, "follower.take_over", self.store.shared.inner.dir(), commit);

        let sequence = reader.manifest_sequence();
        let infos = reader.tables();
        let names: BTreeSet<TableName> = infos.iter().map(|info| info.name.clone()).collect();
        for info in self.store.tables()? {
            if info.name.as_str() != FOLLOW_TABLE && !names.contains(&info.name) {
                self.drop_table(&info.name)?;
            }
        }
        let mut changes = Vec::new();
        for info in infos {
            let theirs = reader.table(&info.name)?;
            let same = match self.store.table(&info.name) {
                Ok(table)
                    if table.view()?.config().merge_operator == info.config.merge_operator =>
                {
                    Some(table)
                }
                Ok(_) => {
                    self.drop_table(&info.name)?;
                    None
                }
                Err(Error::TableDoesNotExist { .. }) => None,
                Err(error) => return Err(error),
            };
            match same {
                Some(table) => {
                    let view = table.view()?;
                    let sides = (reader.session(), &*theirs);
                    let updates = compared(sides, (self.store.session(), &view))?;
                    if !updates.is_empty() {
                        changes.push((table, updates));
                    }
                }
                None => load(&self.store, reader.session(), &info.name, &theirs)?,
            }
        }
        let batches: Vec<_> =
            changes.iter().map(|(table, updates)| (table.clone(), updates.as_slice())).collect();
        self.commit(&batches, Mark { source: commit, sequence, ..self.mark.clone() })?;
        self.sync()
    }
}

fn digest(table: Result<Arc<Table>>) -> Result<Option<(u64, [u8; 32])>> {
    match table {
        Ok(table) => {
            let summary = table.export_canonical(&mut io::sink())?;
            Ok(Some((summary.count, summary.digest)))
        }
        Err(Error::TableDoesNotExist { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the blob of an entry that has one.
fn blob_of(session: &Session, blob: Option<&BlobRef>) -> Result<Option<Vec<u8>>> {
    let Some(blob) = blob else { return Ok(None) };
    Ok(session.retrieve_blobs(std::slice::from_ref(blob))?.pop())
}

fn update_to(session: &Session, key: Vec<u8>, new: &Lookup) -> Result<FeedUpdate> {
    let change = match new {
        Lookup::NotFound => FeedChange::Delete,
        Lookup::Found(value) => FeedChange::Insert(value.to_vec()),
        Lookup::FoundWithBlob(value, blob) => {
            let blob = blob_of(session, Some(blob))?;
            FeedChange::InsertWithBlob(value.to_vec(), blob.unwrap_or_default())
        }
    };
    Ok(FeedUpdate { key, change })
}

/// Returns the changes that make of one table of a session another one.
fn differences(session: &Session, from: &Table, to: &Table) -> Result<Vec<FeedUpdate>> {
    let mut updates = Vec::new();
    for change in from.diff(to)? {
        let change = change?;
        updates.push(update_to(session, change.key, &change.new)?);
    }
    Ok(updates)
}

/// Returns the changes that make of a table here the table of another session.
fn compared(theirs: (&Session, &Table), ours: (&Session, &Table)) -> Result<Vec<FeedUpdate>> {
    let mut updates = Vec::new();
    let (mut left, mut right) = (theirs.1.cursor()?, ours.1.cursor()?);
    let (mut one, mut other) = (left.next().transpose()?, right.next().transpose()?);
    loop {
        let order = match (&one, &other) {
            (None, None) => return Ok(updates),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(one), Some(other)) => one.key.cmp(&other.key),
        };
        if order.is_gt() {
            let key = other.take().map(|record| record.key).unwrap_or_default();
            updates.push(FeedUpdate { key, change: FeedChange::Delete });
            other = right.next().transpose()?;
            continue;
        }
        if let Some(record) = one.take() {
            let blob = blob_of(theirs.0, record.blob.as_ref())?;
            let is_same = match other.as_ref().filter(|_| order.is_eq()) {
                Some(other) => {
                    other.value == record.value && blob_of(ours.0, other.blob.as_ref())? == blob
                }
                None => false,
            };
            if !is_same {
                let value = record.value.into_vec();
                let change = match blob {
                    Some(blob) => FeedChange::InsertWithBlob(value, blob),
                    None => FeedChange::Insert(value),
                };
                updates.push(FeedUpdate { key: record.key, change });
            }
        }
        one = left.next().transpose()?;
        if order.is_eq() {
            other = right.next().transpose()?;
        }
    }
}

/// Makes a table here of one of another session.
fn load(store: &Store, theirs: &Session, name: &TableName, table: &Table) -> Result<()> {
    let mut loader = store.bulk_load(name, table.config())?;
    let mut cursor = table.cursor()?;
    while let Some(record) = cursor.next().transpose()? {
        let blob = blob_of(theirs, record.blob.as_ref())?;
        let update = match &blob {
            Some(blob) => Update::InsertWithBlob(&record.value, blob),
            None => Update::Insert(&record.value),
        };
        loader.write_batch(&[(&record.key, update)])?;
    }
    loader.finish().map(drop)
}
