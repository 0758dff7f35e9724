//! Followers: a copy of a store that takes over its commits, one for one, from the change feed.
//!
//! A follower begins as a backup and then commits what the feed of its source tells. The number of
//! the source's commit is in a table of the copy, [`FOLLOW_TABLE`], and is written in the same
//! commit as the changes; so after a crash nothing is repeated and nothing is missing. A named feed
//! of the source keeps the WAL while the follower is away.
//!
//! **Roll-backs.** The copy retains the versions that its source does, under names of their own. A
//! roll-back becomes one commit: the difference to that version. Where the copy lacks the version,
//! or the feed names a table whose entries it does not tell (a bulk load), or the source has let go
//! of commits, the follower takes over a whole view of its source: it compares all tables with
//! those of the view, and commits the differences.
//!
//! Invariants:
//! - Between two calls the tables of the copy are those of the source after the commit that the
//!   copy names, but for tables that were made or dropped since.
//! - A commit of the source is acknowledged to its feed only when the copy has it durably.
//!
//! *Rejected:* copying files of runs (each compaction of the source would be copied); applying the
//! WAL's segments as files (tables of both would have to flush alike); rolling the copy back (the
//! number of the source's commit would go back with it).

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrane_io::{Disk, Durability};

use crate::entry::entry::Update;
use crate::entry::merge_operator::MergeOperator;
use crate::error::{Error, Result};
use crate::lookup::result::Lookup;
use crate::manifest::manifest::StoreManifest;
use crate::run::blob::BlobRef;
use crate::run::check::Progress;
use crate::session::snapshot::SnapshotName;
use crate::store::backup::BackupPlace;
use crate::store::feed::{FeedChange, FeedItem, FeedOptions, FeedPart, FeedTable, FeedUpdate};
use crate::store::feed_cursor::Feed;
use crate::store::options::{StoreOptions, TableName};
use crate::store::reader::{ReaderOptions, StoreReader};
use crate::store::store::{NamedTable, Store};
use crate::table::session::Session;
use crate::table::table::Table;
use crate::trace::event;

/// The table in which a follower keeps up to which commit of its source it is.
pub const FOLLOW_TABLE: &str = "terrane-follow";

/// The key of its only entry.
const KEY: &[u8] = b"source";

/// Bytes of changes that are committed before the copy is synced and the source is told.
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
    /// How often a whole view of the source was taken over, as after a bulk load.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    source: u64,
    /// The manifest of the source whose change of the list of tables the copy has.
    sequence: u64,
    /// The copy's own commit that wrote this.
    own: u64,
}

impl Mark {
    fn encode(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        for (place, number) in bytes.chunks_exact_mut(8).zip([self.source, self.sequence, self.own])
        {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (source, rest) = bytes.split_first_chunk::<8>()?;
        let (sequence, own) = rest.split_first_chunk::<8>()?;
        let own = own.try_into().ok()?;
        Some(Self {
            source: u64::from_le_bytes(*source),
            sequence: u64::from_le_bytes(*sequence),
            own: u64::from_le_bytes(own),
        })
    }
}

/// A copy of a store that follows it.
///
/// ```no_run
/// use std::time::Duration;
/// use terrane_lsm::{FollowOptions, Follower};
///
/// let options = FollowOptions::default();
/// let mut follower =
///     Follower::open_dir("/data/ledger", "/copy/ledger", &options, &mut |_, _| {})?;
/// loop {
///     follower.catch_up()?;
///     follower.wait(Duration::from_secs(1))?;
/// #   break;
/// }
/// # Ok::<(), terrane_lsm::Error>(())
/// ```
pub struct Follower {
    reader: StoreReader,
    feed: Feed,
    store: Store,
    mark_table: NamedTable,
    mark: Mark,
    /// An item that was waited for.
    waiting: Option<FeedItem>,
    /// Parts of the commit that is being told.
    parts: Vec<FeedPart>,
    /// Versions that the source had when the copy last caught up.
    versions: BTreeSet<u64>,
    unsynced_bytes: usize,
    merge_operators: Vec<MergeOperator>,
    report: FollowReport,
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("report", &self.report).finish_non_exhaustive()
    }
}

/// Changes of one table.
type Batch<'a> = Vec<(&'a [u8], Update<'a>)>;

/// A place on a disk.
type Site<'a> = (&'a Arc<dyn Disk>, &'a Path);

fn refused(dir: &Path, reason: impl Into<String>) -> Error {
    Error::NotAFollower { path: dir.to_owned(), reason: reason.into() }
}

impl Follower {
    /// Follows a store on the real disk: [`open`](Self::open).
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_dir(
        source: impl AsRef<Path>,
        copy: impl AsRef<Path>,
        options: &FollowOptions,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let disk: Arc<dyn Disk> = terrane_io::RealDisk::auto();
        Self::open((&disk, source.as_ref()), (&disk, copy.as_ref()), options, progress)
    }

    /// Opens the copy of a store that another process may write, or makes it: a backup in a
    /// directory that is missing (its parent must exist) or empty. `progress` is told of the bytes
    /// of the backup.
    ///
    /// Cost: that of opening both; the first time, of a backup and of a feed with a name in the
    /// source.
    ///
    /// # Errors
    /// [`Error::NotAFollower`] if something else is in the directory, or a copy that was changed;
    /// those of [`StoreReader::back_up`], [`StoreReader::feed`] and [`Store::open`].
    pub fn open(
        source: Site<'_>,
        copy: Site<'_>,
        options: &FollowOptions,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let mut reader_options = ReaderOptions::default();
        reader_options.merge_operators.clone_from(&options.merge_operators);
        let mut reader = StoreReader::open(Arc::clone(source.0), source.1, &reader_options)?;
        if reader.table(FOLLOW_TABLE).is_ok() {
            return Err(refused(source.1, format!("it has a table `{FOLLOW_TABLE}` itself")));
        }
        let (disk, dir) = copy;
        let mut feed = match reader.feed_with(&options.feed, &options.feed_options) {
            Err(Error::FeedDoesNotExist { .. }) => {
                reader.create_feed(&options.feed, None, &options.feed_options)?
            }
            // What the feed lacks is taken over from a view.
            Err(Error::FeedGap { .. }) => {
                reader.drop_feed(&options.feed)?;
                reader.create_feed(&options.feed, None, &options.feed_options)?
            }
            feed => feed?,
        };

        let mut store_options = options.store.clone();
        store_options.merge_operators.extend(options.merge_operators.iter().cloned());
        let is_begun = disk.kind(dir)?.is_some()
            && StoreReader::open(Arc::clone(disk), dir, &reader_options)
                .is_ok_and(|copy| copy.table(FOLLOW_TABLE).is_ok());
        if !is_begun {
            let place = BackupPlace::new(dir).on_disk(Arc::clone(disk));
            let commit = reader.back_up(&place, progress)?.commit;
            // A backup may hold what is not durable yet in its source. Only when it is, the copy
            // is a follower.
            wait_until_told(&mut feed, commit)?;
            begin(copy, &store_options, (commit, reader.manifest_sequence()))?;
        }

        let store = Store::open(Arc::clone(disk), dir, &store_options)?;
        let mark_table = store.table(FOLLOW_TABLE)?;
        let entry = mark_table.get(KEY)?;
        let mark = entry.value().and_then(Mark::decode);
        let mark = mark.ok_or_else(|| refused(dir, "its mark is not one"))?;
        if store.session().salt() != reader.session().salt() {
            return Err(refused(dir, "it follows another store"));
        }
        if mark.own != store.last_commit() {
            return Err(refused(dir, "somebody else has committed to it"));
        }
        if feed.position() != mark.source {
            // The copy is behind what was acknowledged, as one that was restored: what the source
            // has let go of is taken over from a view.
            feed.go_to(mark.source)?;
        }
        event!(DEBUG, "follower.open", dir, source = mark.source);
        let report = FollowReport { source_commit: mark.source, ..FollowReport::default() };
        Ok(Self {
            reader,
            feed,
            store,
            mark_table,
            mark,
            waiting: None,
            parts: Vec::new(),
            versions: BTreeSet::new(),
            unsynced_bytes: 0,
            merge_operators: options.merge_operators.clone(),
            report,
        })
    }

    /// The copy, for reading. Whoever commits to it ends its following.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where the copy is, and what was done.
    #[must_use]
    pub fn report(&self) -> FollowReport {
        FollowReport { source_commit: self.mark.source, ..self.report }
    }

    /// Applies everything durable that the source has, and makes it durable here. Returns where the
    /// copy is then.
    ///
    /// Cost: reads the WAL of the source once, and commits as much here.
    ///
    /// # Errors
    /// Those of [`Feed::poll`] and [`Store::commit`]. The copy is at some commit of its source; the
    /// call may be repeated.
    pub fn catch_up(&mut self) -> Result<FollowReport> {
        self.catch_up_to(u64::MAX)
    }

    /// The same up to a commit of the source.
    fn catch_up_to(&mut self, last: u64) -> Result<FollowReport> {
        self.versions = self.reader.versions()?.iter().map(|version| version.number).collect();
        while self.mark.source < last {
            let told = match self.waiting.take() {
                Some(item) => Ok(Some(item)),
                None => self.feed.poll(),
            };
            match told {
                Ok(Some(item)) => self.take(item)?,
                Ok(None) if self.mark.source > self.feed.position() => {
                    return Err(Error::FeedAhead {
                        commit: self.mark.source,
                        position: self.feed.position(),
                    });
                }
                Ok(None) => break,
                Err(Error::FeedGap { .. }) => self.take_over()?,
                Err(error) => return Err(error),
            }
        }
        self.retain()?;
        self.settle()?;
        Ok(self.report())
    }

    /// Waits until there is something to apply, for so long at most.
    ///
    /// # Errors
    /// The errors of [`Feed::wait`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        if self.waiting.is_none() {
            match self.feed.wait(timeout) {
                Ok(item) => self.waiting = item,
                // The next call of `catch_up` takes a view over.
                Err(Error::FeedGap { .. }) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(self.waiting.is_some())
    }

    /// Takes the newest view of the source, catches up to it, and compares all tables by their
    /// digests.
    ///
    /// Cost: a scan of all tables on both sides.
    ///
    /// # Errors
    /// The errors of [`catch_up`](Self::catch_up) and of scans. Tables that differ are no error.
    pub fn verify(&mut self) -> Result<Vec<FollowedTable>> {
        loop {
            let commit = self.reader.refresh()?;
            // What is not durable yet is waited for.
            while self.mark.source < commit {
                self.catch_up_to(commit)?;
                if self.mark.source < commit {
                    self.wait(Duration::from_secs(1))?;
                }
            }
            if self.mark.source == commit {
                break;
            }
        }
        let tables = self.reader.tables().into_iter().map(|info| info.name);
        let own = self.store.tables()?.into_iter().map(|info| info.name);
        let mut names: BTreeSet<TableName> = tables.chain(own).collect();
        names.retain(|name| name.as_str() != FOLLOW_TABLE);
        let mut compared = Vec::new();
        for name in names {
            let of_source = self.reader.table(&name);
            let of_copy = self.store.table(&name).and_then(|table| table.view());
            let digests = [digest(of_source)?, digest(of_copy)?];
            compared.push(FollowedTable { name, digests });
        }
        Ok(compared)
    }

    /// Ends the following for now: makes everything durable and closes the copy.
    ///
    /// # Errors
    /// Those of [`Store::close`].
    pub fn close(mut self) -> Result<()> {
        self.settle()?;
        self.store.close()
    }

    /// Applies an item of the feed.
    fn take(&mut self, item: FeedItem) -> Result<()> {
        // What the copy has already is told again: the feed goes on behind what was acknowledged.
        let is_list_change = match &item {
            FeedItem::Commit(commit) if commit.number <= self.mark.source => return Ok(()),
            FeedItem::RolledBack { commit, .. }
            | FeedItem::TableLoaded { commit: Some(commit), .. }
                if *commit <= self.mark.source =>
            {
                return Ok(());
            }
            FeedItem::Commit(_)
            | FeedItem::RolledBack { .. }
            | FeedItem::TableLoaded { commit: Some(_), .. } => false,
            _ => true,
        };
        if is_list_change {
            if self.feed.position() < self.mark.source {
                return Ok(());
            }
            // What the copy has already.
            if (1..=self.mark.sequence).contains(&self.feed.given_sequence()) {
                return Ok(());
            }
        }

        match item {
            FeedItem::Commit(commit) => {
                if commit.is_first {
                    self.parts.clear();
                }
                self.parts.extend(commit.tables);
                if commit.is_last {
                    let parts = std::mem::take(&mut self.parts);
                    self.report.commits += 1;
                    self.apply(&parts, commit.number)?;
                }
                Ok(())
            }
            FeedItem::TableCreated { table, mut config, merge_operator } => {
                if config.merge_operator.name() != merge_operator {
                    let given =
                        self.merge_operators.iter().find(|given| given.name() == merge_operator);
                    let missing = || Error::MergeOperatorMismatch {
                        name: table.name.to_string(),
                        stored: merge_operator.clone(),
                        given: None,
                    };
                    config.merge_operator = given.cloned().ok_or_else(missing)?;
                }
                match self.store.create_table(&table.name, &config) {
                    // Made before a crash, or part of the backup.
                    Err(Error::TableExists { .. }) => {}
                    made => drop(made?),
                }
                self.note_list_change()
            }
            FeedItem::TableDropped { table } => {
                self.drop_table(&table.name)?;
                self.note_list_change()
            }
            FeedItem::TableRenamed { table, from } => {
                match self.store.rename_table(&from, &table.name) {
                    // Done before a crash.
                    Err(Error::TableDoesNotExist { .. })
                        if self.store.table(&table.name).is_ok() => {}
                    renamed => renamed?,
                }
                self.note_list_change()
            }
            FeedItem::TableLoaded { .. } => self.take_over(),
            FeedItem::RolledBack { commit, to, gone, back } => {
                self.roll_back(commit, to, (&gone, &back))
            }
        }
    }

    fn drop_table(&self, name: &TableName) -> Result<()> {
        match self.store.drop_table(name) {
            Err(Error::TableDoesNotExist { .. }) => Ok(()),
            dropped => dropped,
        }
    }

    /// Notes a change of the list of tables, which is durable, so that it is not repeated.
    fn note_list_change(&mut self) -> Result<()> {
        let sequence = self.mark.sequence.max(self.feed.given_sequence());
        self.commit(&[], Mark { sequence, ..self.mark })
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
        self.commit(&batches, Mark { source: number, ..self.mark })?;
        self.retain_if_wanted(number)?;
        if self.unsynced_bytes >= SYNC_BYTES { self.settle() } else { Ok(()) }
    }

    /// Makes everything durable, and acknowledges it to the source.
    fn settle(&mut self) -> Result<()> {
        self.store.sync()?;
        self.unsynced_bytes = 0;
        self.feed.acknowledge(self.mark.source.min(self.feed.position()))
    }

    /// The name of the copy's version of a version of the source.
    fn version_name(number: u64) -> Result<SnapshotName> {
        SnapshotName::new(&format!("source-{number}"))
    }

    /// Retains what the source has retained at this commit, or will go back to.
    fn retain_if_wanted(&mut self, number: u64) -> Result<()> {
        if !self.versions.contains(&number) && !self.feed.goes_back_to(number) {
            return Ok(());
        }
        match self.store.retain(Some(&Self::version_name(number)?)) {
            // It is there since an earlier run.
            Err(Error::VersionExists { .. }) => Ok(()),
            retained => retained.map(drop),
        }
    }

    /// Retains the present commit, if the source has done so meanwhile, and lets go of versions
    /// that the source has no more.
    fn retain(&mut self) -> Result<()> {
        let there: BTreeSet<u64> =
            self.reader.versions()?.iter().map(|version| version.number).collect();
        if there.contains(&self.mark.source)
            && self.mark.own == self.store.last_commit()
            && self.store.version_number(&Self::version_name(self.mark.source)?).is_none()
        {
            match self.store.retain(Some(&Self::version_name(self.mark.source)?)) {
                Err(Error::VersionExists { .. }) => {}
                retained => drop(retained?),
            }
        }
        for version in self.store.versions()? {
            let name = version.name.as_ref().map(SnapshotName::as_str);
            let number = name.and_then(|name| name.strip_prefix("source-")?.parse().ok());
            let is_gone = number.is_some_and(|number: u64| {
                !there.contains(&number) && !self.feed.goes_back_to(number)
            });
            if is_gone {
                self.store.release(version.number)?;
            }
        }
        Ok(())
    }

    /// Applies a roll-back of the source.
    fn roll_back(
        &mut self,
        commit: u64,
        to: u64,
        (gone, back): (&[FeedTable], &[FeedTable]),
    ) -> Result<()> {
        let version = match self.store.version_number(&Self::version_name(to)?) {
            Some(number) => Some(self.store.version(number)?),
            None => None,
        };
        let Some(version) = version.filter(|_| back.is_empty()) else { return self.take_over() };

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
        self.commit(&batches, Mark { source: commit, ..self.mark })?;
        self.report.roll_backs += 1;
        self.retain_if_wanted(commit)
    }

    /// Takes over a whole view of the source.
    ///
    /// Cost: a scan of all tables on both sides.
    fn take_over(&mut self) -> Result<()> {
        self.report.takeovers += 1;
        self.parts.clear();
        // A view may hold what is not durable yet, and the feed must go on behind it.
        let commit = loop {
            let commit = self.reader.refresh()?;
            match wait_until_told(&mut self.feed, commit) {
                Err(Error::FeedGap { first, .. }) => self.feed.go_to(first - 1)?,
                waited => waited?,
            }
            if self.feed.position() == commit {
                break commit;
            }
        };
        event!(DEBUG, "follower.take_over", self.store.shared.inner.dir(), commit);

        let sequence = self.reader.manifest_sequence();
        let infos = self.reader.tables();
        let names: BTreeSet<TableName> = infos.iter().map(|info| info.name.clone()).collect();
        for info in self.store.tables()? {
            if info.name.as_str() != FOLLOW_TABLE && !names.contains(&info.name) {
                self.drop_table(&info.name)?;
            }
        }
        let mut changes = Vec::new();
        for info in infos {
            let theirs = self.reader.table(&info.name)?;
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
                    let sides = (self.reader.session(), &*theirs);
                    let updates = compared(sides, (self.store.session(), &view))?;
                    if !updates.is_empty() {
                        changes.push((table, updates));
                    }
                }
                None => load(&self.store, self.reader.session(), &info.name, &theirs)?,
            }
        }
        let batches: Vec<_> =
            changes.iter().map(|(table, updates)| (table.clone(), updates.as_slice())).collect();
        self.commit(&batches, Mark { source: commit, sequence, ..self.mark })?;
        self.settle()
    }
}

/// Passes over what a feed tells, until a commit was told.
fn wait_until_told(feed: &mut Feed, commit: u64) -> Result<()> {
    while feed.position() < commit {
        feed.wait(Duration::from_secs(1))?;
    }
    Ok(())
}

/// Makes a follower of a backup of commit `commit`, atomically.
fn begin(
    (disk, dir): Site<'_>,
    options: &StoreOptions,
    (commit, sequence): (u64, u64),
) -> Result<()> {
    let store = Store::open(Arc::clone(disk), dir, options)?;
    let mark = Mark { source: commit, sequence, own: store.last_commit() };
    let mut table = store.new_volatile_table(&crate::config::TableConfig::default())?;
    table.insert(KEY, &mark.encode())?;
    // The copy gets the changes of indexes from its source, as those of any table.
    let installed = store.install_changing(FOLLOW_TABLE, &table, StoreManifest::forget_indexes);
    drop(table);
    let closed = store.close();
    installed.map(drop).and(closed)
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
