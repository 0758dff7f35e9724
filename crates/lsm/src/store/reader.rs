//! A store read by another process than the one that holds it.
//!
//! A reader opens the tables that the newest manifest names, applies the log to them in memory, and
//! has a view of all tables as one commit left them. [`StoreReader::refresh`] goes on in the log;
//! where the manifest has changed, tables are opened again from there, and share the runs that both
//! have. Nothing but its [lease](crate::manifest::lease) is written, and the writer waits for
//! nothing.
//!
//! Invariant: a view holds all commits up to its number and none after it. Files that it needs are
//! leased for as long as any table or cursor here uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use terrane_io::rare;
use terrane_io::{Disk, RealDisk};

use crate::entry::merge_operator::MergeOperator;
use crate::error::{Error, Result};
use crate::files::file_set::FileHandle;
use crate::files::handles::OPEN_FILES_DEFAULT;
use crate::manifest::feed_cursor;
use crate::manifest::manifest::{self, StoreManifest};
use crate::manifest::wal_reader::WalReader;
use crate::run::check::Progress;
use crate::session::inner::SessionInner;
use crate::session::snapshot::SnapshotName;
use crate::store::backup::{self, BackupPlace, BackupReport, Source};
use crate::store::feed::{Changes, FeedOptions, FeedSource};
use crate::store::feed_cursor::{Feed, FeedInfo, list};
use crate::store::inner::damaged;
use crate::store::options::TableName;
use crate::store::recovery::open_table;
use crate::store::store::{Store, TableInfo};
use crate::store::versions::{Version, VersionInfo, open_version};
use crate::table::session::{Session, SessionOptions};
use crate::table::table::Table;
use crate::trace::event;

/// How a store is opened for reading.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReaderOptions {
    /// Like [`SessionOptions::open_files_max`].
    pub open_files_max: usize,
    /// Like [`SessionOptions::memory_budget`], for what this reader has in memory.
    pub memory_budget: Option<u64>,
    /// Merge operators of the tables that are not built in: the store knows their
    /// names.
    pub merge_operators: Vec<MergeOperator>,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        let open_files_max = OPEN_FILES_DEFAULT;
        Self { open_files_max, memory_budget: None, merge_operators: Vec::new() }
    }
}

impl ReaderOptions {
    /// The same, keeping up to so many files of runs open.
    #[must_use]
    pub fn open_files_max(self, open_files_max: usize) -> Self {
        Self { open_files_max, ..self }
    }

    /// The same with a [`memory_budget`](Self::memory_budget), in bytes.
    #[must_use]
    pub fn memory_budget(self, memory_budget: impl Into<Option<u64>>) -> Self {
        Self { memory_budget: memory_budget.into(), ..self }
    }

    /// The same with one more merge operator.
    #[must_use]
    pub fn merge_operator(mut self, operator: MergeOperator) -> Self {
        self.merge_operators.push(operator);
        self
    }
}

/// A store that is open for reading, while another process may write it, or nobody.
///
/// Its view changes only by [`refresh`](Self::refresh); tables that were taken before stay as they
/// are, and keep the files that they need. A process that is killed lets go of them.
///
/// ```no_run
/// use terrane_lsm::{ReaderOptions, StoreReader};
///
/// let mut reader = StoreReader::open_dir("/data/ledger", &ReaderOptions::default())?;
/// let before = reader.table("accounts")?;
/// reader.refresh()?;
/// let now = reader.table("accounts")?;
/// for change in before.diff(&now)? {
///     let change = change?; // committed in between
///     println!("{:?}: {:?} -> {:?}", change.key, change.old, change.new);
/// }
/// # Ok::<(), terrane_lsm::Error>(())
/// ```
#[derive(Debug)]
pub struct StoreReader {
    session: Session,
    merge_operators: Vec<MergeOperator>,
    /// Where to go on; `None` after an error.
    place: Option<Place>,
    view: View,
    /// The log is leased from this segment on, whatever the view needs; `u64::MAX` for no more.
    log_floor: u64,
}

impl Store {
    /// Opens the store in `dir` for reading only, also beside the process that writes it, on
    /// read-only media, and for users who may not write there: the same as [`StoreReader::open`].
    ///
    /// Cost: see [`StoreReader::refresh`].
    ///
    /// # Errors
    /// The errors of [`StoreReader::open`].
    pub fn open_read_only(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &ReaderOptions,
    ) -> Result<StoreReader> {
        StoreReader::open(disk, dir, options)
    }
}

/// Tables as of one commit, by name; those that cannot be opened with the reason.
#[derive(Debug, Default)]
struct View {
    commit: u64,
    tables: BTreeMap<String, Result<Arc<Table>>>,
}

/// The tables of a manifest, with the log applied up to some commit.
struct Place {
    manifest: StoreManifest,
    tables: BTreeMap<u64, Result<Table>>,
    /// Those that the log has updates for.
    ahead: BTreeSet<u64>,
    /// `None` in a store without a log.
    log: Option<WalReader>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("sequence", &self.manifest.sequence).finish_non_exhaustive()
    }
}

impl StoreReader {
    /// Opens a store on the real disk: [`open`](Self::open) with [`RealDisk::auto`].
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_dir(dir: impl AsRef<Path>, options: &ReaderOptions) -> Result<Self> {
        Self::open(RealDisk::auto(), dir.as_ref(), options)
    }

    /// Opens the store in `dir`, which any process may hold, and [refreshes](Self::refresh) it. For
    /// its lease the reader makes and writes a small file there. Where it cannot, on a read-only
    /// medium or in somebody else's directory, it reads under a shared lock, which keeps writers
    /// out as long as the reader lives; where there is nothing to lock, it reads without one, and
    /// nobody may write. On a full disk the lease says that everything is needed.
    ///
    /// # Errors
    /// [`Error::SessionDirLocked`] if no lease can be written and somebody has the store open for
    /// writing; [`Error::SessionDirDoesNotExist`], [`Error::NotTerrane`],
    /// [`Error::SessionDirCorrupted`], [`Error::UnknownVersion`], [`Error::InvalidConfig`], and
    /// those of [`refresh`](Self::refresh).
    #[expect(clippy::needless_pass_by_value, reason = "a reader keeps its disk")]
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: &ReaderOptions) -> Result<Self> {
        let ReaderOptions { open_files_max, memory_budget, .. } = *options;
        let session = SessionOptions::default().open_files_max(open_files_max);
        session.memory_budget(memory_budget).validate()?;
        event!(DEBUG, "reader.open", dir);
        let inner = SessionInner::open_read_only(&disk, dir, open_files_max, memory_budget)?;
        let session = Session::of(inner);
        let merge_operators = options.merge_operators.clone();
        let view = View::default();
        let mut reader = Self { session, merge_operators, place: None, view, log_floor: u64::MAX };
        reader.refresh()?;
        Ok(reader)
    }

    /// Moves the view to a commit that is not older than the last one that was durable when this
    /// was called; returns its number. It may hold commits that are not durable yet, which the same
    /// loss of power takes from the writer.
    ///
    /// Cost: reads the manifest twice and the log that was written since, and up to 1 MiB behind
    /// it; if the writer made a checkpoint since, the whole log behind it, and footers, filters and
    /// indexes of the runs that are new, as opening a snapshot does. What the log holds is in
    /// memory: up to [`StoreOptions::log_bytes_max`](crate::StoreOptions::log_bytes_max) of the
    /// writer, and as much again. No merge and no flush.
    ///
    /// # Errors
    /// [`Error::StoreCorrupted`] if manifest or log are damaged, [`Error::TooManyReaders`],
    /// [`Error::Disk`], [`Error::SessionClosed`]. The view stays what it was.
    pub fn refresh(&mut self) -> Result<u64> {
        self.inner().check_open()?;
        let mut place = self.place.take();
        if let Some(at) = &mut place
            // Whatever goes wrong here, a newer manifest may be the reason.
            && !(matches!(at.go_on(), Ok(true)) && self.is_newest(at.manifest.sequence)?)
        {
            place = None;
        }

        let found = place.map_or_else(|| self.find_place(), Ok);
        let shown = found.and_then(|place| {
            self.view = place.view()?;
            self.place = Some(place);
            Ok(self.view.commit)
        });

        // The files of the view before are not needed any more, either.
        self.let_log_go();
        let commit = shown?;
        event!(DEBUG, "reader.refreshed", self.inner().dir(), commit);
        Ok(commit)
    }

    pub(crate) fn inner(&self) -> &Arc<SessionInner> {
        self.session.inner()
    }

    fn newest(&self) -> Result<StoreManifest> {
        let inner = self.inner();
        let read = || manifest::read(inner.disk(), inner.dir());
        Ok(read()?.manifest.unwrap_or_default())
    }

    fn is_newest(&self, sequence: u64) -> Result<bool> {
        Ok(self.newest()?.sequence == sequence)
    }

    /// Opens the tables of the newest manifest and applies the log to them, which is leased then,
    /// too.
    fn find_place(&self) -> Result<Place> {
        let inner = self.inner();

        // Comes to an end: it goes on only where a table was made, renamed or dropped meanwhile, a
        // commit was taken back, or a checkpoint came between two small calls.
        loop {
            inner.check_open()?;
            let manifest = self.newest()?;
            let sequence = manifest.sequence;
            let segment = if manifest.segment == 0 { u64::MAX } else { manifest.segment };
            inner.need_log(segment.min(self.log_floor));
            let _held = inner.hold(manifest.numbers())?;

            if !self.is_newest(sequence)? {
                rare::taken("a reader meets a new manifest and begins again");
                continue;
            }

            let opened = Place::open(inner, &self.merge_operators, manifest);
            let newest = self.newest()?;
            match opened {
                // The log may have gone on over a change of the tables.
                Ok(place) if !place.manifest.has_tables_of(&newest) || !place.is_there()? => {}
                Err(_) if newest.sequence != sequence => {}
                opened => return opened,
            }
        }
    }

    /// The number of the last commit that the view holds.
    #[must_use]
    pub fn last_commit(&self) -> u64 {
        self.view.commit
    }

    /// The named tables of the view that can be opened, sorted by name. Cost: no I/O.
    #[must_use]
    pub fn tables(&self) -> Vec<TableInfo> {
        let tables = self.view.tables.iter();
        let opened = tables.filter_map(|(name, table)| Some((name, table.as_ref().ok()?)));
        let info = |(name, table): (&String, &Arc<Table>)| TableInfo {
            name: TableName(name.clone()),
            config: table.config().clone(),
        };
        opened.map(info).collect()
    }

    /// A named table as the view has it. Whatever changes it is refused with [`Error::ReadOnly`].
    /// Cost: no I/O.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`]; for this table only [`Error::MergeOperatorMismatch`] and
    /// [`Error::StoreCorrupted`].
    pub fn table(&self, name: &(impl AsRef<str> + ?Sized)) -> Result<Arc<Table>> {
        let name = name.as_ref();
        match self.view.tables.get(name) {
            Some(table) => table.clone(),
            None => Err(Error::TableDoesNotExist { name: name.to_owned() }),
        }
    }

    /// The retained versions that the store has now, oldest first. Cost: reads the manifest.
    ///
    /// # Errors
    /// The errors of [`refresh`](Self::refresh).
    pub fn versions(&self) -> Result<Vec<VersionInfo>> {
        self.inner().check_open()?;
        Ok(self.newest()?.version_infos())
    }

    /// Opens a retained version. Cost: as [`Store::version`](crate::Store::version); reads the
    /// manifest twice.
    ///
    /// # Errors
    /// [`Error::VersionDoesNotExist`], [`Error::MergeOperatorMismatch`], and as
    /// [`refresh`](Self::refresh).
    pub fn version(&self, number: u64) -> Result<Version> {
        let opened = self.open_version(number);
        self.let_log_go();
        opened
    }

    fn open_version(&self, number: u64) -> Result<Version> {
        let inner = self.inner();
        // Comes to an end: a version never changes but for its name.
        loop {
            inner.check_open()?;
            let manifest = self.newest()?;
            let version = manifest.version(number)?;
            inner.need_log(version.first_segment().min(self.log_floor));
            let _held = inner.hold(version.base.numbers())?;
            if self.newest()?.version(number)? == version {
                return open_version(inner, version, manifest.next_table, &self.merge_operators);
            }
        }
    }

    /// Leases the log only from the floor on, since what was read of it is in memory. Until that is
    /// written, too much is leased.
    pub(crate) fn let_log_go(&self) {
        self.inner().need_log(self.log_floor);
        if let Err(error) = self.inner().lease() {
            event!(WARN, "cleanup.failed", self.inner().dir(), %error);
        }
    }

    /// Opens the retained version of that name.
    ///
    /// # Errors
    /// The errors of [`version`](Self::version).
    pub fn version_named(&self, name: &SnapshotName) -> Result<Version> {
        self.version(self.newest()?.version_named(name)?)
    }

    /// [Refreshes](Self::refresh) the view and copies the store as it is then to the directory of a
    /// backup: see [`Store::back_up`](crate::Store::back_up). The process that writes the store is
    /// not disturbed. The backup may hold commits that are not durable yet; if a loss of power
    /// takes them from the store, it is older than its backup until it has made as many again, and
    /// is refused there as long.
    ///
    /// # Errors
    /// The errors of [`Store::back_up`](crate::Store::back_up) and [`refresh`](Self::refresh);
    /// those of [`table`](Self::table) for tables that were changed since the last checkpoint.
    pub fn back_up(&mut self, place: &BackupPlace, progress: Progress<'_>) -> Result<BackupReport> {
        let made = self.back_up_leased(place, progress);
        self.let_log_go();
        made
    }

    fn back_up_leased(
        &mut self,
        place: &BackupPlace,
        progress: Progress<'_>,
    ) -> Result<BackupReport> {
        let (commit, _held) = self.refresh_whole()?;
        let Some(Place { manifest, tables, ahead, .. }) = &self.place else {
            return Err(Error::SessionClosed);
        };
        let mut changed = BTreeMap::new();
        for id in ahead {
            if let Some(table) = tables.get(id) {
                changed.insert(*id, table.as_ref().map_err(Clone::clone)?);
            }
        }
        let source = Source { inner: self.inner(), manifest, commit, changed };
        backup::back_up(&source, place, progress)
    }

    /// Keeps the writer from removing segments of the log from this number on, until this is called
    /// again, or the reader goes: [`files`](Self::files) lists them. `None` keeps none. The log of
    /// the store grows as long, so call it with a later number as soon as the earlier ones are
    /// copied. Cost: writes the lease.
    ///
    /// # Errors
    /// [`Error::TooManyReaders`], [`Error::Disk`], [`Error::SessionClosed`].
    pub fn keep_log_from(&mut self, segment: Option<u64>) -> Result<()> {
        self.log_floor = segment.unwrap_or(u64::MAX);
        self.inner().need_log(self.log_floor);
        self.inner().lease()
    }

    pub(crate) fn log_floor(&self) -> u64 {
        self.log_floor
    }

    /// Refreshes the view and pins what its manifest names, with the whole log behind it. Returns
    /// the commit, the pins, the manifest, and the segment that the commit is in.
    pub(crate) fn refresh_pinned(
        &mut self,
    ) -> Result<(u64, Vec<FileHandle>, StoreManifest, Option<u64>)> {
        let (commit, held) = self.refresh_whole()?;
        let Some(Place { manifest, log, .. }) = &self.place else {
            return Err(Error::SessionClosed);
        };
        Ok((commit, held, manifest.clone(), log.as_ref().map(WalReader::segment)))
    }

    /// Refreshes the view, and leases what its manifest names beside the tables, too: also the log
    /// behind it and the log that versions need.
    fn refresh_whole(&mut self) -> Result<(u64, Vec<FileHandle>)> {
        loop {
            let commit = self.refresh()?;
            let newest = self.newest()?;
            let segment = if newest.segment == 0 { u64::MAX } else { newest.segment };
            let log_from = newest.first_segment_of_versions().min(segment);
            self.inner().need_log(log_from.min(self.log_floor));
            let held = self.inner().hold(newest.numbers())?;
            let age = newest.age();

            // A version that was retained since belongs to a later commit.
            let is_of_view = newest.versions.last().is_none_or(|last| last.number <= commit);
            if let Some(place) = self.place.as_mut()
                && place.manifest.sequence == newest.sequence
                && is_of_view
            {
                // Versions may have been retained since the tables were read.
                place.manifest = newest;
                if self.newest()?.age() == age {
                    return Ok((commit, held));
                }
            }
        }
    }

    /// The sequence number of the manifest that the view is of.
    pub(crate) fn manifest_sequence(&self) -> u64 {
        self.place.as_ref().map_or(0, |place| place.manifest.sequence)
    }

    /// The store's session, for its snapshots and for blobs. What changes anything is refused with
    /// [`Error::ReadOnly`].
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }
}

impl Place {
    fn open(
        inner: &Arc<SessionInner>,
        merge_operators: &[MergeOperator],
        manifest: StoreManifest,
    ) -> Result<Self> {
        let mut tables = BTreeMap::new();
        for named in &manifest.tables {
            let table = match open_table(inner, named, merge_operators) {
                // The others can be read all the same.
                Err(
                    error @ (Error::MergeOperatorMismatch { .. } | Error::StoreCorrupted { .. }),
                ) => Err(error),
                table => Ok(table?),
            };
            tables.insert(named.id, table);
        }

        let from = (manifest.segment, manifest.commit);
        let begin = || WalReader::begin(inner.files().disk(), inner.dir(), inner.salt(), from);
        let log = if manifest.segment == 0 { None } else { Some(begin()?) };
        let mut place = Self { manifest, tables, ahead: BTreeSet::new(), log };
        place.catch_up()?;
        Ok(place)
    }

    /// Applies the log up to its end, which is looked at.
    fn catch_up(&mut self) -> Result<()> {
        loop {
            self.apply_rest()?;
            let Some(log) = &mut self.log else { return Ok(()) };
            let Err(error) = log.check_end().map_err(damaged) else { return Ok(()) };
            // What is behind the end may have been written since the end was found.
            log.look_again()?;
            if !log.advance().map_err(damaged)? {
                return Err(error);
            }
            rare::taken("a reader finds more behind the end of the WAL");
            self.apply()?;
        }
    }

    /// Applies what was written since. Says whether what was applied before is still so.
    fn go_on(&mut self) -> Result<bool> {
        if let Some(log) = &mut self.log {
            log.look_again()?;
        }
        if !self.is_there()? {
            return Ok(false);
        }
        self.apply_rest()?;
        self.is_there()
    }

    /// Whether the last record that was applied still stands where it was: one that could not be
    /// written in full is taken back.
    fn is_there(&self) -> Result<bool> {
        self.log.as_ref().map_or(Ok(true), WalReader::is_last_there)
    }

    fn apply_rest(&mut self) -> Result<()> {
        while let Some(log) = &mut self.log
            && log.advance().map_err(damaged)?
        {
            self.apply()?;
        }
        Ok(())
    }

    /// Applies the record that the log has been moved to.
    fn apply(&mut self) -> Result<()> {
        let Some(record) = self.log.as_ref().and_then(WalReader::record) else { return Ok(()) };
        for part in record.updates(self.manifest.next_table).map_err(damaged)? {
            // A table that is not there was dropped since.
            self.ahead.insert(part.table);
            if let Some(Ok(table)) = self.tables.get_mut(&part.table) {
                table.replay(&part.updates, None)?;
            }
        }
        Ok(())
    }

    fn view(&self) -> Result<View> {
        let mut tables = BTreeMap::new();
        for named in &self.manifest.tables {
            let table = match &self.tables[&named.id] {
                Ok(table) => Ok(Arc::new(table.fork()?)),
                Err(error) => Err(error.clone()),
            };
            tables.insert(named.name.clone(), table);
        }
        let commit = self.log.as_ref().map_or(self.manifest.commit, WalReader::commit);
        Ok(View { commit, tables })
    }
}

impl StoreReader {
    /// The changes of the store from a commit on, as its writer makes them: see
    /// [`Store::changes`]. The feed has a lease of its own and does not move this reader's view.
    ///
    /// # Errors
    /// The errors of [`Changes::open`].
    pub fn changes(&self, from_commit: u64) -> Result<Changes> {
        self.changes_with(from_commit, &FeedOptions::default())
    }

    /// The same, read in another way.
    ///
    /// # Errors
    /// The errors of [`Changes::open`].
    pub fn changes_with(&self, from_commit: u64, options: &FeedOptions) -> Result<Changes> {
        Changes::new(self.feed_source()?, from_commit.saturating_sub(1), options)
    }

    fn feed_source(&self) -> Result<FeedSource> {
        let inner = self.session().inner();
        let merge_operators = self.merge_operators.clone();
        let options = ReaderOptions { merge_operators, ..ReaderOptions::default() };
        feed_source(inner.files().disk(), inner.dir(), &options)
    }
}

impl StoreReader {
    /// Makes a feed with a name in a store that another process may write: as
    /// [`Store::create_feed`]. It takes the right to write in the directory of the store.
    ///
    /// # Errors
    /// The errors of [`Store::create_feed`].
    pub fn create_feed(
        &self,
        name: &str,
        from_commit: Option<u64>,
        options: &FeedOptions,
    ) -> Result<Feed> {
        Feed::create(self.feed_source()?, name, from_commit, options)
    }

    /// Opens a feed: as [`Store::feed`].
    ///
    /// # Errors
    /// The errors of [`Store::feed`].
    pub fn feed(&self, name: &str) -> Result<Feed> {
        self.feed_with(name, &FeedOptions::default())
    }

    /// The same, read in another way.
    ///
    /// # Errors
    /// The errors of [`Store::feed`].
    pub fn feed_with(&self, name: &str, options: &FeedOptions) -> Result<Feed> {
        Feed::open(self.feed_source()?, name, options)
    }

    /// The feeds with a name, sorted: as [`Store::feeds`].
    ///
    /// # Errors
    /// The errors of [`Store::feeds`].
    pub fn feeds(&self) -> Result<Vec<FeedInfo>> {
        let inner = self.session().inner();
        inner.check_open()?;
        list(inner.disk(), inner.dir())
    }

    /// Removes a feed, durably, that nobody has open: as [`Store::drop_feed`].
    ///
    /// # Errors
    /// The errors of [`Store::drop_feed`].
    pub fn drop_feed(&self, name: &str) -> Result<()> {
        let inner = self.session().inner();
        inner.check_open()?;
        feed_cursor::remove(inner.disk(), inner.dir(), name)
    }
}

impl Changes {
    /// Opens the store in `dir` for reading, beside the process that writes it, and gives its
    /// changes from a commit on: as [`Store::changes`].
    ///
    /// # Errors
    /// The errors of [`StoreReader::open`] and [`Store::changes`].
    #[expect(clippy::needless_pass_by_value, reason = "a feed keeps its disk")]
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &ReaderOptions,
        from_commit: u64,
        feed: &FeedOptions,
    ) -> Result<Self> {
        let dir = disk.absolute(dir)?;
        Self::new(feed_source(&disk, &dir, options)?, from_commit.saturating_sub(1), feed)
    }
}

/// Where a feed reads beside the writer, with a session of its own.
fn feed_source(disk: &Arc<dyn Disk>, dir: &Path, options: &ReaderOptions) -> Result<FeedSource> {
    let ReaderOptions { open_files_max, memory_budget, .. } = *options;
    let inner = SessionInner::open_read_only(disk, dir, open_files_max, memory_budget)?;
    Ok(FeedSource::Reader(inner, options.merge_operators.clone()))
}
