//! Change feed: every commit of a store in order, with what it did to which table.
//!
//! A feed reads the WAL as recovery does, from any commit that is still there; before that, where
//! the consumer stands at a retained version, it tells the difference to the next version as one
//! commit. What the WAL has no record of (tables made, renamed, dropped or loaded, and roll-backs)
//! comes from the [history](crate::manifest::history) in the manifest. The entries of a loaded
//! table come from its files, which the history keeps for cursors. Only what is durable is told, so
//! no loss of power makes a consumer know more than the store.
//!
//! The writer and a reader in another process run the same code on the same files. They differ in
//! how they keep the WAL (a note in memory, a lease), how they learn that a commit is durable (the
//! group commit, the marks of the WAL), and how they wait (a condition variable, looking again).
//!
//! Invariants:
//! - Commits are told in order, without gaps; what cannot be told is [`Error::FeedGap`].
//! - Between an error and the next call the feed stands behind the last commit that was told in
//!   full.
//! - A change of the list of tables is told behind the commit that was the last one when it was
//!   made, and before the next one; a feed that begins there tells it again.
//!
//! *Rejected:* a second log for feeds (each byte is written twice); feeding from the commit itself
//! (a slow consumer would stall the writer or lose commits); telling commits before they are
//! durable (a follower could be ahead of its source after a loss of power); sequence numbers in
//! entries.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use terrane_io::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::config::TableConfig;
use crate::entry::entry::Update;
use crate::entry::merge_operator::MergeOperator;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::lookup::result::Lookup;
use crate::manifest::feed_cursor;
use crate::manifest::history::{HistoryEntry, HistoryEvent};
use crate::manifest::manifest::{self, NamedMeta, StoreManifest, VersionMeta};
use crate::manifest::wal::{RecordPlace, SegmentScan};
use crate::manifest::wal_reader::WalReader;
use crate::run::blob::{self, BlobRef};
use crate::session::inner::{KeptLog, SessionInner};
use crate::session::snapshot;
use crate::store::inner::{Shared, damaged};
use crate::store::options::TableName;
use crate::store::recovery::open_table;
use crate::store::store::Store;
use crate::store::versions::open_tables;
use crate::table::cursor::Cursor;
use crate::table::diff::Diff;
use crate::table::table::Table;
use crate::trace::event;

/// Bytes of keys, values and blobs in one part of a commit, unless told otherwise.
pub const FEED_PART_BYTES: usize = 4 << 20;

/// Bytes of the WAL that a cursor may hold, unless told otherwise.
pub const FEED_HELD_BYTES: u64 = 1 << 30;

/// How a feed is read.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct FeedOptions {
    /// Bytes of keys, values and blobs beyond which a commit is told in parts; [`FEED_PART_BYTES`]
    /// unless set. One update is never split.
    pub part_bytes_max: usize,
    /// How long a feed in another process waits before it looks at the WAL again; 20 ms unless set.
    pub poll_interval: Duration,
    /// For a new cursor: bytes of the WAL that it may hold, whole segments; [`FEED_HELD_BYTES`]
    /// unless set. Beyond that the store lets go of them, and the consumer finds a gap.
    pub held_bytes_max: u64,
    /// Whether the entries of tables that were installed are told, as
    /// [`FeedItem::TableEntries`]; not unless set.
    pub loaded_entries: bool,
}

impl Default for FeedOptions {
    fn default() -> Self {
        Self {
            part_bytes_max: FEED_PART_BYTES,
            poll_interval: Duration::from_millis(20),
            held_bytes_max: FEED_HELD_BYTES,
            loaded_entries: false,
        }
    }
}

impl FeedOptions {
    /// The same with another [`part_bytes_max`](Self::part_bytes_max).
    #[must_use]
    pub fn part_bytes_max(self, bytes: usize) -> Self {
        Self { part_bytes_max: bytes, ..self }
    }

    /// The same with another [`poll_interval`](Self::poll_interval).
    #[must_use]
    pub fn poll_interval(self, interval: Duration) -> Self {
        Self { poll_interval: interval, ..self }
    }

    /// The same with another [`held_bytes_max`](Self::held_bytes_max).
    #[must_use]
    pub fn held_bytes_max(self, bytes: u64) -> Self {
        Self { held_bytes_max: bytes, ..self }
    }

    /// The same with another [`loaded_entries`](Self::loaded_entries).
    #[must_use]
    pub fn loaded_entries(self, told: bool) -> Self {
        Self { loaded_entries: told, ..self }
    }
}

/// A table in a feed. Its number stays when it gets another name, and is never used again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FeedTable {
    /// Its number.
    pub id: u64,
    /// Its name at that point of the feed.
    pub name: TableName,
}

/// One thing that happened in a store.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum FeedItem {
    /// A commit, or a part of one.
    Commit(FeedCommit),
    /// An empty table was made.
    TableCreated {
        /// The table.
        table: FeedTable,
        /// Its configuration; with a merge operator that is neither built in nor given to who
        /// reads, that of the default.
        config: TableConfig,
        /// Name of its merge operator.
        merge_operator: String,
    },
    /// A table was dropped.
    TableDropped {
        /// The table.
        table: FeedTable,
    },
    /// A table got another name.
    TableRenamed {
        /// The table, with its new name.
        table: FeedTable,
        /// Its name before.
        from: TableName,
    },
    /// A table was [installed](Store::install), as a bulk load is, under a new name or in the place
    /// of what the table had.
    TableLoaded {
        /// The table.
        table: FeedTable,
        /// Its configuration; with a merge operator that is neither built in nor given to who
        /// reads, that of the default.
        config: TableConfig,
        /// Name of its merge operator.
        merge_operator: String,
        /// The number, if it was a commit, as with a batch or in the place of another table.
        commit: Option<u64>,
        /// Whether the entries come next, as [`TableEntries`](Self::TableEntries). Otherwise the
        /// feed does not tell them: read the table, or take a new copy of the store. That is so
        /// unless [`FeedOptions::loaded_entries`] is set; after
        /// [`install_with`](Store::install_with) a batch; with a merge operator that was not given;
        /// and if the store has let go of the files, which a cursor before them prevents.
        has_entries: bool,
    },
    /// Entries of the table that was loaded just before, in the order of their keys: insertions
    /// only. The commit of the installation, if it is one, is told in full with the last part.
    TableEntries {
        /// The table.
        table: FeedTable,
        /// The number of the installation, as in [`TableLoaded`](Self::TableLoaded).
        commit: Option<u64>,
        /// Whether this is the last part, which may be empty.
        is_last: bool,
        /// The entries.
        updates: Vec<FeedUpdate>,
    },
    /// A commit made all tables what they were in a retained version. The commits behind that
    /// version are on another branch from now on.
    RolledBack {
        /// The number of this commit.
        commit: u64,
        /// The number of the version.
        to: u64,
        /// Tables that went with it. One that got its earlier name back is also in `back`.
        gone: Vec<FeedTable>,
        /// Tables that came back.
        back: Vec<FeedTable>,
    },
}

/// A commit, or a part of one: parts of one commit come one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeedCommit {
    /// Its number. Applying all parts leads to the state after this commit.
    pub number: u64,
    /// The first commit that it stands for: equal to `number`, or less where only the difference
    /// between two versions is known.
    pub from: u64,
    /// Whether this is the first part.
    pub is_first: bool,
    /// Whether this is the last part, which may be empty: the commit is whole then.
    pub is_last: bool,
    /// Changes by table, in the order in which they were made.
    pub tables: Vec<FeedPart>,
}

/// Changes of one table in a part of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeedPart {
    /// The table.
    pub table: FeedTable,
    /// Its changes: of one key the last one counts, and upserts combine.
    pub updates: Vec<FeedUpdate>,
}

/// A change of one key, or of a range that begins with it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FeedUpdate {
    /// The key.
    pub key: Vec<u8>,
    /// The change.
    pub change: FeedChange,
}

/// An [`Update`] that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum FeedChange {
    /// See [`Update::Insert`].
    Insert(Vec<u8>),
    /// See [`Update::InsertWithBlob`].
    InsertWithBlob(Vec<u8>, Vec<u8>),
    /// See [`Update::Upsert`].
    Upsert(Vec<u8>),
    /// See [`Update::Delete`].
    Delete,
    /// See [`Update::DeleteRange`].
    DeleteRange(Option<Vec<u8>>),
}

impl FeedUpdate {
    fn new(key: &[u8], update: Update<'_>) -> Self {
        let change = match update {
            Update::Insert(value) => FeedChange::Insert(value.to_vec()),
            Update::InsertWithBlob(value, blob) => {
                FeedChange::InsertWithBlob(value.to_vec(), blob.to_vec())
            }
            Update::Upsert(value) => FeedChange::Upsert(value.to_vec()),
            Update::Delete => FeedChange::Delete,
            Update::DeleteRange(end) => FeedChange::DeleteRange(end.map(<[u8]>::to_vec)),
        };
        Self { key: key.to_vec(), change }
    }

    /// The change as a commit takes it.
    #[must_use]
    pub fn update(&self) -> Update<'_> {
        match &self.change {
            FeedChange::Insert(value) => Update::Insert(value),
            FeedChange::InsertWithBlob(value, blob) => Update::InsertWithBlob(value, blob),
            FeedChange::Upsert(value) => Update::Upsert(value),
            FeedChange::Delete => Update::Delete,
            FeedChange::DeleteRange(end) => Update::DeleteRange(end.as_deref()),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let (_, value, blob) = self.update().parts();
        self.key.len() + value.len() + blob.map_or(0, <[u8]>::len)
    }
}

/// Where a feed reads.
#[derive(Debug, Clone)]
pub(crate) enum FeedSource {
    /// In the process that writes the store.
    Writer(Arc<Shared>),
    /// In another one; the session is the feed's own.
    Reader(Arc<SessionInner>, Vec<MergeOperator>),
}

impl FeedSource {
    pub(crate) fn inner(&self) -> &Arc<SessionInner> {
        match self {
            Self::Writer(shared) => &shared.inner,
            Self::Reader(inner, _) => inner,
        }
    }

    fn newest(&self) -> Result<StoreManifest> {
        let inner = self.inner();
        Ok(manifest::read(inner.disk(), inner.dir())?.manifest.unwrap_or_default())
    }

    /// Keeps the WAL from a segment on, instead of what was kept before. Whether it was there then
    /// must be looked at afterwards.
    fn keep(&self, kept: &mut Option<KeptLog>, from: u64) -> Result<()> {
        let inner = self.inner();
        match self {
            Self::Writer(_) => *kept = Some(inner.keep_log(from)),
            Self::Reader(..) => {
                inner.need_log(from);
                inner.lease()?;
            }
        }
        Ok(())
    }

    /// Makes the names of manifests durable, which may just have been given, before what they say
    /// is told.
    fn sync_names(&self) -> Result<()> {
        let inner = match self {
            Self::Writer(shared) => return shared.inner.sync_root(),
            Self::Reader(inner, _) => inner,
        };
        match inner.disk().sync_dir(inner.dir()) {
            // Nobody writes there.
            Err(error) if error.cannot_write() => Ok(()),
            synced => Ok(synced?),
        }
    }

    /// Opens the tables of a version by number, if it is retained still.
    fn open_version(&self, number: u64) -> Result<(VersionMeta, BTreeMap<u64, Table>)> {
        match self {
            Self::Writer(shared) => {
                let inner = &shared.inner;
                let (version, next_table, _log, _runs) = {
                    let published = lock(&shared.published);
                    let version = published.manifest.version(number)?.clone();
                    let log = inner.keep_log(version.first_segment());
                    let runs: Vec<_> =
                        version.base.numbers().map(|run| inner.files().attach(run)).collect();
                    (version, published.manifest.next_table, log, runs)
                };
                let operators = &shared.options.merge_operators;
                let tables = open_tables(inner, &version, next_table, operators)?;
                Ok((version, tables))
            }
            // Comes to an end: a version never changes but for its name.
            Self::Reader(inner, operators) => loop {
                inner.check_open()?;
                let manifest = self.newest()?;
                let version = manifest.version(number)?.clone();
                inner.need_log(version.first_segment());
                let _held = inner.hold(version.base.numbers())?;
                if self.newest()?.version(number)? == &version {
                    let tables = open_tables(inner, &version, manifest.next_table, operators)?;
                    return Ok((version, tables));
                }
            },
        }
    }

    /// Opens a table as it was installed by the manifest of that number, if the history still has
    /// its files.
    fn open_load(&self, sequence: u64) -> Result<Option<Table>> {
        let inner = self.inner();
        let table = match self {
            Self::Writer(shared) => {
                let (table, _runs) = {
                    let published = lock(&shared.published);
                    let found = published.manifest.load(sequence).cloned();
                    let Some(table) = found else { return Ok(None) };
                    let runs = table.meta.numbers().map(|run| inner.files().attach(run));
                    let runs: Vec<_> = runs.collect();
                    (table, runs)
                };
                open_table(inner, &table, self.operators())
            }
            Self::Reader(..) => {
                inner.check_open()?;
                let found = self.newest()?.load(sequence).cloned();
                let Some(table) = found else { return Ok(None) };
                let _held = inner.hold(table.meta.numbers())?;
                // A load never comes back.
                if self.newest()?.load(sequence).is_none() {
                    return Ok(None);
                }
                open_table(inner, &table, self.operators())
            }
        };
        match table {
            Err(Error::MergeOperatorMismatch { .. }) => Ok(None),
            opened => opened.map(Some),
        }
    }

    fn operators(&self) -> &[MergeOperator] {
        match self {
            Self::Writer(shared) => &shared.options.merge_operators,
            Self::Reader(_, operators) => operators,
        }
    }
}

/// A table whose difference is being told.
#[derive(Debug)]
enum Telling {
    /// From what an older version has.
    Diff(Box<Diff>),
    /// All of it.
    All(Box<Cursor>),
}

/// The difference between two versions that is being told.
#[derive(Debug)]
struct Difference {
    version: VersionMeta,
    from: u64,
    is_begun: bool,
    telling: Option<(FeedTable, Telling)>,
    older: BTreeMap<u64, Table>,
    newer: BTreeMap<u64, Table>,
    /// Tables that are still to come.
    rest: VecDeque<FeedTable>,
}

/// A loaded table whose entries are to be told.
#[derive(Debug)]
struct Load {
    // Drops before the table.
    cursor: Box<Cursor>,
    _opened: Table,
    table: FeedTable,
    commit: Option<u64>,
}

/// A commit that is being told from the WAL.
#[derive(Debug, Clone, Copy)]
struct Partial {
    place: RecordPlace,
    is_begun: bool,
}

/// The changes of a store from some commit on, in order.
///
/// A feed is polled, or waited on. Dropping it and making another one that begins behind
/// [`position`](Self::position) goes on where it was. A consumer that is to find what it needs also
/// after a pause uses a [`Feed`](crate::Feed), which has a name.
///
/// ```
/// use terrane_lsm::{FeedItem, Store, StoreOptions, TableConfig};
///
/// # let folder = tempfile::tempdir()?;
/// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
/// let mut changes = store.changes(1)?;
/// let table = store.create_table("accounts", &TableConfig::default())?;
/// table.insert(b"alice", b"100")?.wait()?;
///
/// assert!(matches!(changes.poll()?, Some(FeedItem::TableCreated { .. })));
/// let Some(FeedItem::Commit(commit)) = changes.poll()? else { panic!("a commit") };
/// assert_eq!((commit.number, commit.is_last), (1, true));
/// assert_eq!(commit.tables[0].updates[0].key, b"alice");
/// assert!(changes.poll()?.is_none(), "nothing more so far");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Changes {
    // Readers drop before what keeps the session's lock.
    difference: Option<Difference>,
    /// Loaded tables among the items to be given, in their order.
    loads: VecDeque<Load>,
    /// Whether the first of them was given, and its entries come next.
    is_loading: bool,
    /// Whether the place in the history must be found again, after an error.
    is_lost: bool,
    wal: Option<WalReader>,
    partial: Option<Partial>,
    kept: Option<KeptLog>,
    /// Items to be given, each with the sequence number of its entry in the history, or 0.
    ready: VecDeque<(u64, FeedItem)>,
    /// That number of the item given last.
    given: u64,
    manifest: StoreManifest,
    /// The tables at the position, by number.
    tables: BTreeMap<u64, NamedMeta>,
    /// The last commit that was told in full.
    position: u64,
    /// The last entry of the history that was told.
    told: u64,
    /// Segments that the feed went through, with the first commit of each.
    passed: VecDeque<(u64, u64)>,
    options: FeedOptions,
    /// Whether commits are told that nothing says to be durable.
    tells_all: bool,
    source: FeedSource,
}

impl std::fmt::Debug for WalReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalReader").field("commit", &self.commit()).finish_non_exhaustive()
    }
}

impl Changes {
    pub(crate) fn new(source: FeedSource, position: u64, options: &FeedOptions) -> Result<Self> {
        let inner = source.inner();
        // Where nothing can be written nobody makes a table meanwhile, either.
        match feed_cursor::make_dir(inner.disk(), inner.dir()) {
            Err(Error::Disk(error)) if error.cannot_write() => {}
            made => made?,
        }
        event!(DEBUG, "feed.open", inner.dir(), position);
        let mut changes = Self {
            difference: None,
            loads: VecDeque::new(),
            is_loading: false,
            is_lost: false,
            wal: None,
            partial: None,
            kept: None,
            ready: VecDeque::new(),
            given: 0,
            manifest: StoreManifest::default(),
            tables: BTreeMap::new(),
            position,
            told: 0,
            passed: VecDeque::new(),
            options: options.clone(),
            tells_all: false,
            source,
        };
        changes.stand_at()?;
        // What is not there any more is told at once.
        changes.find_place()?;
        Ok(changes)
    }

    /// A feed of what is still to come.
    pub(crate) fn at_end(source: &FeedSource, options: &FeedOptions) -> Result<Self> {
        loop {
            let position = source.newest()?.commit;
            let begun = Self::new(source.clone(), position, options)
                .and_then(|mut changes| changes.skip_to_end().map(|()| changes));
            match begun {
                // A checkpoint came before the feed held anything: the end is further on now.
                Err(Error::FeedGap { .. }) if source.newest()?.commit > position => {}
                begun => return begun,
            }
        }
    }

    /// The last commit that was told in full; a feed from the commit behind it goes on there.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The same feed of a copy that nobody writes, as of a backup: its WAL counts as recovery
    /// counts it, to the last record, although nothing there says that the last commits are
    /// durable.
    #[must_use]
    pub fn of_copy(self) -> Self {
        Self { tells_all: true, ..self }
    }

    pub(crate) fn source(&self) -> &FeedSource {
        &self.source
    }

    /// The segment of the WAL that a consumer needs which has taken all up to `commit`; 1, the
    /// first one, before there is a WAL.
    pub(crate) fn segment_for(&mut self, commit: u64) -> u64 {
        while self.passed.get(1).is_some_and(|(first, _)| *first <= commit + 1) {
            self.passed.pop_front();
        }
        self.passed.front().map_or(1, |(_, segment)| *segment)
    }

    /// The next thing that happened and is durable; `None` if there is nothing more so far.
    ///
    /// Cost: reads the WAL once, in pieces of 1 MiB; at its end, reads the notes of the last
    /// segment and looks for the next one. Holds the record of one commit and one part in memory. A
    /// difference between versions costs what opening both and [`Table::diff`] do; entries of a
    /// loaded table, what opening and scanning it does.
    ///
    /// # Errors
    /// [`Error::FeedGap`] if the store has let go of what comes next; [`Error::StoreCorrupted`] for
    /// a damaged WAL, [`Error::Disk`], [`Error::SessionClosed`]. The commit that was being told
    /// begins anew in the next call.
    pub fn poll(&mut self) -> Result<Option<FeedItem>> {
        self.source.inner().check_open()?;
        if std::mem::take(&mut self.is_lost) {
            let stood = self.stand_at();
            self.is_lost = stood.is_err();
            stood?;
        }
        let polled = self.next_item();
        if polled.is_err() {
            self.forget_place();
            self.is_lost = true;
        }
        polled
    }

    fn forget_place(&mut self) {
        (self.wal, self.partial, self.difference) = (None, None, None);
        self.ready.clear();
        self.loads.clear();
        self.is_loading = false;
    }

    /// The same, waiting for so long at most: until the writer of this process makes something
    /// durable, or until another look at the WAL of another process finds something.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<FeedItem>> {
        let clock = |source: &FeedSource| source.inner().disk().clock().monotonic();
        let begin = clock(&self.source);
        let mut left = timeout;
        loop {
            let seen = match &self.source {
                FeedSource::Writer(shared) => shared.durable.news(),
                FeedSource::Reader(..) => 0,
            };
            let item = self.poll()?;
            if item.is_some() || left.is_zero() {
                return Ok(item);
            }
            let waited = match &self.source {
                FeedSource::Writer(shared) => shared.durable.wait_for_news(seen, left),
                FeedSource::Reader(..) => pause(left.min(self.options.poll_interval)),
            };
            let passed = clock(&self.source).saturating_sub(begin);
            left = timeout.saturating_sub(passed).min(left.saturating_sub(waited));
        }
    }

    fn next_item(&mut self) -> Result<Option<FeedItem>> {
        loop {
            if self.is_loading {
                return self.next_of_load().map(Some);
            }
            if let Some((sequence, item)) = self.ready.pop_front() {
                self.given = sequence;
                self.is_loading = matches!(&item, FeedItem::TableLoaded { has_entries: true, .. });
                return Ok(Some(item));
            }
            if self.difference.is_some() {
                return self.next_of_difference().map(Some);
            }
            if self.partial.is_some() {
                return self.next_of_record().map(Some);
            }
            self.tell_history()?;
            if self.ready.is_empty() && !self.step()? {
                return Ok(None);
            }
        }
    }

    /// Reads the manifest anew if there is another one.
    fn refresh(&mut self) -> Result<()> {
        let inner = self.source.inner();
        if manifest::peek_sequence(inner.disk(), inner.dir()) == Some(self.manifest.sequence) {
            return Ok(());
        }
        let newest = self.source.newest()?;
        if newest.sequence != self.manifest.sequence {
            self.source.sync_names()?;
            self.manifest = newest;
        }
        Ok(())
    }

    /// Takes the list of tables as it was at the position, and what of the history comes behind it.
    fn stand_at(&mut self) -> Result<()> {
        self.manifest = self.source.newest()?;
        let position = self.position;
        let StoreManifest { history, tables, .. } = &self.manifest;
        self.tables = tables.iter().map(|table| (table.id, table.clone())).collect();
        // A change without a number that was made at the position is told, perhaps again.
        let is_told = |entry: &HistoryEntry| match entry.event.segment() {
            Some(_) => entry.commit <= position,
            None => entry.commit < position,
        };
        let behind = history.partition_point(is_told);
        self.told = behind.checked_sub(1).map_or(0, |at| history[at].sequence);
        for entry in history[behind..].iter().rev() {
            entry.event.undo(&mut self.tables);
        }
        Ok(())
    }

    fn table_of(table: &NamedMeta) -> FeedTable {
        FeedTable { id: table.id, name: TableName(table.name.clone()) }
    }

    /// The configuration of a table, and the name of its merge operator: what is told does not
    /// depend on whether the operator is given.
    fn config_of(&self, table: &NamedMeta) -> (TableConfig, String) {
        let mut config = table.meta.config.clone();
        let name = table.meta.resolve.clone();
        let given = self.source.operators().iter().find(|operator| operator.name() == name);
        if let Ok(operator) = snapshot::resolve_of(&table.name, &name, given) {
            config.merge_operator = operator;
        }
        (config, name)
    }

    fn created(&self, table: &NamedMeta) -> FeedItem {
        let (config, merge_operator) = self.config_of(table);
        FeedItem::TableCreated { table: Self::table_of(table), config, merge_operator }
    }

    /// Tells that a table was installed, and opens it if its entries are to be told.
    fn loaded(
        &mut self,
        entry: &HistoryEntry,
        meta: &NamedMeta,
        commit: Option<u64>,
    ) -> Result<FeedItem> {
        let (config, merge_operator) = self.config_of(meta);
        let table = Self::table_of(meta);
        let opened = match entry.event.load() {
            Some(_) if self.options.loaded_entries => self.source.open_load(entry.sequence)?,
            _ => None,
        };
        let has_entries = opened.is_some();
        if let Some(opened) = opened {
            let cursor = Box::new(opened.cursor()?);
            self.loads.push_back(Load { cursor, _opened: opened, table: table.clone(), commit });
        }
        Ok(FeedItem::TableLoaded { table, config, merge_operator, commit, has_entries })
    }

    /// Tells changes of the list of tables that were made at the position or before.
    fn tell_history(&mut self) -> Result<()> {
        while let Some(entry) =
            self.manifest.history.iter().find(|entry| entry.sequence > self.told).cloned()
        {
            if entry.commit > self.position {
                break;
            }
            // A commit of the manifest at or before the position was told by its number.
            if entry.event.segment().is_none() {
                let item = self.item_of(&entry)?;
                // One that is known already was found in a record, before there was a history.
                let is_known = matches!(&entry.event, HistoryEvent::Created(table)
                    if self.tables.contains_key(&table.id));
                entry.event.redo(&mut self.tables);
                if !is_known {
                    self.ready.push_back((entry.sequence, item));
                }
            }
            self.told = entry.sequence;
        }
        Ok(())
    }

    fn item_of(&mut self, entry: &HistoryEntry) -> Result<FeedItem> {
        Ok(match &entry.event {
            HistoryEvent::Created(table) => self.created(table),
            HistoryEvent::Installed { table, .. } => self.loaded(entry, table, None)?,
            HistoryEvent::Loaded { table, .. } => self.loaded(entry, table, Some(entry.commit))?,
            HistoryEvent::Dropped(table) => FeedItem::TableDropped { table: Self::table_of(table) },
            HistoryEvent::Renamed { id, from, to } => FeedItem::TableRenamed {
                table: FeedTable { id: *id, name: TableName(to.clone()) },
                from: TableName(from.clone()),
            },
            HistoryEvent::RolledBack { to, gone, back, .. } => {
                let named = |tables: &[NamedMeta]| tables.iter().map(Self::table_of).collect();
                let commit = self.position + 1;
                FeedItem::RolledBack { commit, to: *to, gone: named(gone), back: named(back) }
            }
        })
    }

    /// Segments that stay as long as what is kept now does, newest first, with their first commits.
    fn kept_segments(&self) -> Result<Vec<(u64, u64)>> {
        let inner = self.source.inner();
        let (disk, dir) = (inner.disk(), inner.dir());
        let mut found: Vec<(u64, u64)> = Vec::new();
        let newest = self.manifest.segment;
        if newest == 0 {
            return Ok(found);
        }
        let open = |number| -> Result<Option<SegmentScan>> {
            match SegmentScan::open(disk, dir, inner.salt(), number) {
                Err(Error::Disk(error)) if error.is_not_found() => Ok(None),
                opened => opened,
            }
        };

        // Behind the manifest: each that follows on the seal of the one before.
        let mut before: Option<SegmentScan> = None;
        for number in newest.. {
            let Some(scan) = open(number)? else { break };
            let follows = before.as_ref().is_none_or(|before| {
                before.sealed().map(|last| last + 1) == Some(scan.header.first)
            });
            if !follows {
                break;
            }
            found.insert(0, (number, scan.header.first));
            before = Some(scan);
        }

        // Before it: what a cursor or a version keeps.
        let held = inner.cursor_needs()?.held;
        for number in (1..newest).rev() {
            if number < held && !self.manifest.needs_segment(number) {
                break;
            }
            match open(number)? {
                Some(scan)
                    if found.last().is_some_and(|(_, first)| scan.header.first <= *first) =>
                {
                    found.push((number, scan.header.first));
                }
                _ => break,
            }
        }
        Ok(found)
    }

    /// Finds what comes behind the position: a place in the WAL, or a version.
    fn find_place(&mut self) -> Result<()> {
        // Comes to an end: a checkpoint would have to come between two small calls each time.
        loop {
            self.source.inner().check_open()?;
            self.manifest = self.source.newest()?;
            let sequence = self.manifest.sequence;
            let kept = self.kept_segments()?;
            let wanted = self.position + 1;
            let place = kept.iter().find(|(_, first)| *first <= wanted).copied();
            let Some((segment, first)) = place else { return self.find_version(&kept) };

            self.source.keep(&mut self.kept, segment)?;
            if self.source.newest()?.sequence != sequence {
                continue;
            }
            return self.begin_wal(segment, first - 1);
        }
    }

    /// Goes to the position in a segment that is kept, or behind it.
    fn begin_wal(&mut self, segment: u64, before: u64) -> Result<()> {
        let inner = self.source.inner();
        let begin = (segment, before);
        let mut wal = WalReader::begin(inner.files().disk(), inner.dir(), inner.salt(), begin)
            .map_err(damaged)?;
        while wal.commit() < self.position {
            if wal.advance().map_err(damaged)? {
                continue;
            }
            wal.check_end().map_err(damaged)?;
            let newest = wal.commit();
            // Perhaps a commit of a manifest stands between, whose segment is the next one.
            return match wal.next_begun()? {
                Some((segment, first)) if first <= self.position + 1 && first > newest + 1 => {
                    self.begin_wal(segment, first - 1)
                }
                _ if self.manifest.commit >= self.position => Err(self.gap(newest + 1)),
                _ => Err(Error::FeedAhead { commit: self.position, position: newest }),
            };
        }
        self.pass(segment, before);
        self.note_segment(&wal);
        self.wal = Some(wal);
        Ok(())
    }

    /// Notes that the feed goes through a segment which follows on commit `before`.
    fn pass(&mut self, segment: u64, before: u64) {
        if self.passed.back().is_none_or(|(_, last)| *last < segment) {
            self.passed.push_back((before + 1, segment));
        }
    }

    fn note_segment(&mut self, wal: &WalReader) {
        let segment = wal.segment();
        if self.passed.back().is_none_or(|(_, last)| *last < segment) {
            self.passed.push_back((wal.commit(), segment));
        }
    }

    fn gap(&self, first: u64) -> Error {
        Error::FeedGap { wanted: self.position + 1, first }
    }

    /// Begins to tell the difference to the next version, where the WAL is gone.
    fn find_version(&mut self, kept: &[(u64, u64)]) -> Result<()> {
        let position = self.position;
        let StoreManifest { versions, commit, .. } = &self.manifest;
        let is_at = position == 0 || versions.iter().any(|version| version.number == position);
        let next = versions.iter().map(|version| version.number).find(|&number| number > position);

        let Some(number) = next.filter(|_| is_at) else {
            if *commit <= position {
                // A store without commits behind the position, and without a WAL.
                return Ok(());
            }
            let in_wal = kept.last().map_or(commit + 1, |(_, first)| *first);
            let first = next.map_or(in_wal, |number| in_wal.min(number + 1));
            return Err(self.gap(first));
        };

        let opened = self.source.open_version(number);
        let older = match opened {
            Ok(_) if position > 0 => self.source.open_version(position),
            _ => Ok((self.manifest.versions[0].clone(), BTreeMap::new())),
        };
        let ((version, newer), (_, older)) = match (opened, older) {
            (Ok(newer), Ok(older)) => (newer, older),
            // Released in between: what is there now is looked for again.
            (Err(Error::VersionDoesNotExist { .. }), _)
            | (_, Err(Error::VersionDoesNotExist { .. })) => return self.find_place(),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        self.change_tables(&version);
        let rest = version.base.tables.iter().map(Self::table_of).collect();
        let (from, telling) = (position + 1, None);
        self.difference =
            Some(Difference { version, from, is_begun: false, telling, older, newer, rest });
        Ok(())
    }

    /// Tells how the list of tables of a version differs from the one at the position.
    fn change_tables(&mut self, version: &VersionMeta) {
        let there: BTreeMap<u64, NamedMeta> =
            version.base.tables.iter().map(|table| (table.id, table.clone())).collect();
        for (id, table) in &self.tables {
            if !there.contains_key(id) {
                self.ready.push_back((0, FeedItem::TableDropped { table: Self::table_of(table) }));
            }
        }
        for (id, table) in &there {
            match self.tables.get(id) {
                Some(before) if before.name != table.name => {
                    let from = TableName(before.name.clone());
                    let table = Self::table_of(table);
                    self.ready.push_back((0, FeedItem::TableRenamed { table, from }));
                }
                Some(_) => {}
                None => self.ready.push_back((0, self.created(table))),
            }
        }
        self.tables = there;
    }

    /// The next part of the difference between two versions.
    fn next_of_difference(&mut self) -> Result<FeedItem> {
        let Some(difference) = &mut self.difference else { return Err(Error::SessionClosed) };
        let inner = self.source.inner();
        let mut tables: Vec<FeedPart> = Vec::new();
        let mut bytes = 0;
        let is_last = loop {
            if bytes >= self.options.part_bytes_max {
                break false;
            }
            let (table, telling) = match &mut difference.telling {
                Some(telling) => (&telling.0, &mut telling.1),
                none => {
                    let Some(table) = difference.rest.pop_front() else { break true };
                    let Some(newer) = difference.newer.get(&table.id) else { continue };
                    let told = match difference.older.get(&table.id) {
                        Some(older) => Telling::Diff(Box::new(older.diff(newer)?)),
                        None => Telling::All(Box::new(newer.cursor()?)),
                    };
                    let telling = none.insert((table, told));
                    (&telling.0, &mut telling.1)
                }
            };
            let update = match telling {
                Telling::Diff(diff) => match diff.next().transpose()? {
                    Some(change) => Some(update_of(inner, change.key, &change.new)?),
                    None => None,
                },
                Telling::All(cursor) => match cursor.next_ref()? {
                    Some(record) => {
                        let blob = record.blob();
                        let (key, value) = (record.key.to_vec(), record.value.to_vec());
                        Some(inserted(inner, key, value, blob.as_ref())?)
                    }
                    None => None,
                },
            };
            let Some(update) = update else {
                difference.telling = None;
                continue;
            };
            bytes += update.bytes();
            match tables.last_mut().filter(|part| part.table == *table) {
                Some(part) => part.updates.push(update),
                None => tables.push(FeedPart { table: table.clone(), updates: vec![update] }),
            }
        };

        let number = difference.version.number;
        let is_first = !std::mem::replace(&mut difference.is_begun, true);
        let commit = FeedCommit { number, from: difference.from, is_first, is_last, tables };
        if is_last {
            self.difference = None;
            self.position = number;
            self.stand_at_version()?;
        }
        Ok(FeedItem::Commit(commit))
    }

    /// Passes over what of the history a difference between versions has told already.
    fn stand_at_version(&mut self) -> Result<()> {
        let tables = std::mem::take(&mut self.tables);
        self.stand_at()?;
        self.tables = tables;
        Ok(())
    }

    /// The next part of the entries of a loaded table.
    fn next_of_load(&mut self) -> Result<FeedItem> {
        let Some(load) = self.loads.front_mut() else { return Err(Error::SessionClosed) };
        let inner = self.source.inner();
        let mut updates = Vec::new();
        let mut bytes = 0;
        let is_last = loop {
            if bytes >= self.options.part_bytes_max {
                break false;
            }
            let Some(record) = load.cursor.next_ref()? else { break true };
            let blob = record.blob();
            let (key, value) = (record.key.to_vec(), record.value.to_vec());
            let update = inserted(inner, key, value, blob.as_ref())?;
            bytes += update.bytes();
            updates.push(update);
        };

        let (table, commit) = (load.table.clone(), load.commit);
        if is_last {
            self.loads.pop_front();
            self.is_loading = false;
            if let Some(commit) = commit {
                self.position = commit;
                // After an error the place may be that before the commit.
                self.wal = self.wal.take().filter(|wal| wal.commit() == commit);
            }
        }
        Ok(FeedItem::TableEntries { table, commit, is_last, updates })
    }

    /// The next part of the record that the WAL has been moved to.
    fn next_of_record(&mut self) -> Result<FeedItem> {
        let (Some(wal), Some(partial)) = (&self.wal, &mut self.partial) else {
            return Err(Error::SessionClosed);
        };
        let Some(record) = wal.record() else { return Err(Error::SessionClosed) };
        let mut tables: Vec<FeedPart> = Vec::new();
        let mut bytes = 0;
        let is_last = loop {
            if bytes >= self.options.part_bytes_max {
                break false;
            }
            let next = record.next_update(&mut partial.place).map_err(damaged)?;
            let Some((id, key, update)) = next else { break true };
            // A table that nobody knows any more was dropped later.
            let Some(table) = self.tables.get(&id) else { continue };
            let update = FeedUpdate::new(key, update);
            bytes += update.bytes();
            match tables.last_mut().filter(|part| part.table.id == id) {
                Some(part) => part.updates.push(update),
                None => {
                    tables.push(FeedPart { table: Self::table_of(table), updates: vec![update] });
                }
            }
        };

        let number = record.commit;
        let is_first = !std::mem::replace(&mut partial.is_begun, true);
        if is_last {
            self.partial = None;
            self.position = number;
        }
        Ok(FeedItem::Commit(FeedCommit { number, from: number, is_first, is_last, tables }))
    }

    /// Moves to the next record or to the next commit that a manifest made; false if there is none
    /// so far.
    fn step(&mut self) -> Result<bool> {
        let had_place = self.wal.is_some();
        if !had_place {
            self.find_place()?;
        }
        if self.difference.is_some() || !self.ready.is_empty() {
            return Ok(true);
        }
        match self.step_in_wal() {
            // A checkpoint may have let go of what a feed without a cursor was late for, and a
            // segment that a version keeps may just have been cut off behind its records.
            Err(_) if had_place => {
                self.wal = None;
                self.find_place()?;
                if self.difference.is_some() { Ok(true) } else { self.step_in_wal() }
            }
            stepped => stepped,
        }
    }

    fn step_in_wal(&mut self) -> Result<bool> {
        let Some(wal) = &mut self.wal else { return Ok(false) };
        let segment = wal.segment();
        let mut is_there = wal.advance().map_err(damaged)?;
        if !is_there && wal.told_durable() > wal.commit() {
            // Written since the end was found, or damaged.
            wal.look_again()?;
            is_there = wal.advance().map_err(damaged)?;
            if !is_there {
                wal.check_end().map_err(damaged)?;
            }
        }
        if !is_there {
            return self.step_in_history();
        }
        if !self.is_durable()? {
            return Ok(false);
        }

        if let Some(wal) = self.wal.take() {
            self.note_segment(&wal);
            let now = wal.segment();
            self.wal = Some(wal);
            if now != segment {
                self.source.keep(&mut self.kept, now)?;
            }
        }
        // Whatever was done to the list of tables before this record is in the manifest.
        self.refresh()?;
        self.tell_history()?;
        self.find_tables()?;
        self.partial = Some(Partial { place: RecordPlace::default(), is_begun: false });
        Ok(true)
    }

    /// Whether the record that the WAL was moved to is durable; otherwise goes back before it.
    fn is_durable(&mut self) -> Result<bool> {
        let Some(wal) = &mut self.wal else { return Ok(false) };
        let commit = wal.commit();
        let is_told = match &self.source {
            FeedSource::Writer(shared) => shared.durable.commit() >= commit,
            FeedSource::Reader(..) => false,
        };
        if self.tells_all || is_told || wal.told_durable() >= commit {
            return Ok(true);
        }
        wal.look_again()?;
        let is_told = wal.told_durable() >= commit;
        wal.back_up();
        if !is_told {
            // A checkpoint holds the commit, without a word in the WAL that it was found in.
            self.refresh()?;
            if self.manifest.commit < commit {
                return Ok(false);
            }
        }
        // The record was read before its mark, and what was read ahead is gone.
        let Some(wal) = &mut self.wal else { return Ok(false) };
        wal.advance().map_err(damaged)
    }

    /// Tells tables that a record has updates for and that the history says nothing of: they were
    /// made before there was one.
    fn find_tables(&mut self) -> Result<()> {
        let Some(record) = self.wal.as_ref().and_then(WalReader::record) else { return Ok(()) };
        let mut unknown = BTreeSet::new();
        let mut place = RecordPlace::default();
        while let Some((id, ..)) = record.next_update(&mut place).map_err(damaged)? {
            if !self.tables.contains_key(&id) {
                unknown.insert(id);
            }
        }
        for id in unknown {
            let found = self.manifest.tables.iter().find(|table| table.id == id).cloned();
            if let Some(table) = found {
                self.ready.push_back((0, self.created(&table)));
                self.tables.insert(id, table);
            }
        }
        Ok(())
    }

    /// At the end of what the WAL has: tells the commit that a manifest made behind it, if one did.
    fn step_in_history(&mut self) -> Result<bool> {
        self.refresh()?;
        self.tell_history()?;
        if !self.ready.is_empty() {
            return Ok(true);
        }
        let next = self.manifest.history.iter().find(|entry| entry.sequence > self.told).cloned();
        if let Some(entry) = next
            && let Some(segment) = entry.event.segment()
            && entry.commit == self.position + 1
        {
            let item = self.item_of(&entry)?;
            entry.event.redo(&mut self.tables);
            self.told = entry.sequence;
            // Behind the entries of a loaded table, if they are told.
            if self.loads.is_empty() {
                self.position = entry.commit;
            }
            self.ready.push_back((entry.sequence, item));
            self.wal = None;
            if segment > 0 {
                self.source.keep(&mut self.kept, segment)?;
                // Where it is gone already, the next step looks for what is there.
                if let Err(error) = self.begin_wal(segment, entry.commit) {
                    event!(WARN, "feed.place_lost", self.source.inner().dir(), %error);
                }
            }
            return Ok(true);
        }

        // A commit that is neither in the WAL nor in the history.
        let Some(wal) = &self.wal else { return Ok(false) };
        match wal.next_begun()? {
            Some((segment, first)) => {
                let is_linked =
                    self.manifest.segment >= segment && self.manifest.commit + 1 >= first;
                if first > self.position + 1 && is_linked {
                    Err(self.gap(first))
                } else {
                    Ok(false)
                }
            }
            None => Ok(false),
        }
    }

    /// The sequence number of the manifest that made the change given last, if that is one of the
    /// history; else 0.
    pub(crate) fn given_sequence(&self) -> u64 {
        self.given
    }

    /// Whether the store goes back, behind the position, to the version of that number.
    pub(crate) fn goes_back_to(&self, number: u64) -> bool {
        let is_it = |event: &HistoryEvent| matches!(event, HistoryEvent::RolledBack { to, .. } if *to == number);
        self.manifest
            .history
            .iter()
            .any(|entry| entry.commit > self.position && is_it(&entry.event))
    }

    /// Goes on behind a commit, wherever that is.
    pub(crate) fn go_to(&mut self, commit: u64) -> Result<()> {
        self.forget_place();
        self.passed.clear();
        self.position = commit;
        self.is_lost = false;
        self.stand_at()
    }

    /// Passes over everything that is there.
    pub(crate) fn skip_to_end(&mut self) -> Result<()> {
        let tells = std::mem::replace(&mut self.options.loaded_entries, false);
        let skipped = loop {
            match self.poll() {
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.options.loaded_entries = tells;
        skipped
    }
}

/// Waits; returns for how long.
fn pause(time: Duration) -> Duration {
    // Nobody tells: this is how another process waits for the next look.
    let (never, pause) = (Mutex::new(()), Condvar::new());
    let waited = pause.wait_timeout(lock(&never), time);
    drop(waited.unwrap_or_else(PoisonError::into_inner));
    time
}

fn update_of(inner: &SessionInner, key: Vec<u8>, new: &Lookup) -> Result<FeedUpdate> {
    match new {
        Lookup::NotFound => Ok(FeedUpdate { key, change: FeedChange::Delete }),
        Lookup::Found(value) => inserted(inner, key, value.to_vec(), None),
        Lookup::FoundWithBlob(value, blob) => inserted(inner, key, value.to_vec(), Some(blob)),
    }
}

fn inserted(
    inner: &SessionInner,
    key: Vec<u8>,
    value: Vec<u8>,
    reference: Option<&BlobRef>,
) -> Result<FeedUpdate> {
    let change = match reference {
        None => FeedChange::Insert(value),
        Some(reference) => {
            let mut blobs = blob::retrieve(inner.disk(), 1, std::slice::from_ref(reference))?;
            FeedChange::InsertWithBlob(value, blobs.pop().unwrap_or_default())
        }
    };
    Ok(FeedUpdate { key, change })
}

impl Store {
    /// The changes of the store from a commit on, in order: 1 for everything, and
    /// [`last_commit`](Self::last_commit) + 1 for what is still to come. Only what is durable is
    /// told.
    ///
    /// The WAL stays from where the feed is, for as long as the feed lives.
    ///
    /// Cost: reads the manifest and the beginnings of the segments that are kept; then reads the
    /// WAL from the beginning of the segment that has the commit.
    ///
    /// # Errors
    /// [`Error::FeedGap`] if the commits are not there any more; [`Error::FeedAhead`] if the commit
    /// before has not been made; [`Error::StoreCorrupted`], [`Error::Disk`],
    /// [`Error::SessionClosed`].
    pub fn changes(&self, from_commit: u64) -> Result<Changes> {
        self.changes_with(from_commit, &FeedOptions::default())
    }

    /// The same, read in another way.
    ///
    /// # Errors
    /// The errors of [`changes`](Self::changes).
    pub fn changes_with(&self, from_commit: u64, options: &FeedOptions) -> Result<Changes> {
        self.shared.inner.check_open()?;
        let source = FeedSource::Writer(Arc::clone(&self.shared));
        Changes::new(source, from_commit.saturating_sub(1), options)
    }

    pub(crate) fn feed_source(&self) -> FeedSource {
        FeedSource::Writer(Arc::clone(&self.shared))
    }
}
