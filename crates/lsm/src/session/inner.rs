//! State that the handles of one session share: directory, lock, files, snapshots, background
//! thread.
//!
//! The directory is described in `docs/format/session.md`, which the module `manifest` includes.
//!
//! Invariant: `metadata`, each `.snapshot` file, and every run that one refers to, are durable
//! before their name is visible under its final form.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use terrane_io::Anchor;
use terrane_io::files::{create_afresh, read_file};
use terrane_io::process::Process;
use terrane_io::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrane_io::sync::{Arc, Mutex, MutexGuard, Weak};
use terrane_io::{Access, Disk, Entry, EntryKind, LockGuard, OpenMode};

use crate::compaction::background::Worker;
use crate::compaction::compaction::{Compaction, CompactionSpec};
use crate::compaction::resume::ResumedPages;
use crate::config::TableConfig;
use crate::entry::entry::Update;
use crate::entry::mask::Mask;
use crate::error::{Error, Result, unreadable};
use crate::files::file_set::{
    FileHandle, FileSet, Partial, RunRef, blobs_number, file_number, lock,
};
use crate::files::handles::FileHandles;
use crate::files::lost_found::{self, LOST_FOUND};
use crate::files::reserve::{Reserve, WantedReserve};
use crate::lookup::spare_pages::SparePages;
use crate::lookup::submitted::LookupThread;
use crate::manifest::feed_cursor::{self, CursorNeeds};
use crate::manifest::lease::{self, Lease};
use crate::manifest::manifest::{self, StoreManifest};
use crate::manifest::snapshot_meta::{
    MANIFEST_BYTES_MAX, Refused, SessionMeta, SnapshotMeta, is_name,
};
use crate::memory::grants::SessionMemory;
use crate::run::prefetch::Prefetcher;
use crate::run::run::Run;
use crate::session::registry::{Registry, Stored};
use crate::stats::{Counters, FilterStats, SessionStats};
use crate::trace::event;

const LOCK: &str = "lock";
pub(crate) const METADATA: &str = "metadata";
const METADATA_TMP: &str = "metadata.tmp";
pub(crate) const ACTIVE: &str = "active";
pub(crate) const SNAPSHOTS: &str = "snapshots";
pub(crate) const SNAPSHOT_SUFFIX: &str = ".snapshot";
pub(crate) const TMP_SUFFIX: &str = ".tmp";

/// Shared by all handles of a session.
#[derive(Debug)]
pub(crate) struct SessionInner {
    // Dropped first: its thread holds merges, whose files are removed under the lock.
    worker: Worker,
    lookups: LookupThread,
    files: Arc<FileSet>,
    /// `None` without a memory budget.
    memory: Option<Arc<SessionMemory>>,
    dir: PathBuf,
    salt: u64,
    /// The process that opened the session, and may use it.
    process: Process,
    closed: AtomicBool,
    /// Page buffers of lookups, to be used again.
    spare_pages: SparePages,
    /// Open runs by number, so that tables opened from one snapshot share them.
    runs: Mutex<BTreeMap<u64, Weak<Run>>>,
    /// Held by who decides how much of filters to have in memory that nobody has read so far.
    filters: Mutex<()>,
    /// Merges that snapshots refer to, by the number of their output, so that tables share them.
    merges: Mutex<BTreeMap<u64, Weak<Compaction>>>,
    snapshots: Registry,
    lock: Mutex<Option<Box<dyn LockGuard>>>,
    /// Keeps every call in the directory, whatever links are put into it.
    _anchor: Box<dyn Anchor>,
    /// Lease of a reader.
    lease: Mutex<Option<Lease>>,
    /// Files that are pinned, once, for readers only.
    leased: Mutex<BTreeSet<u64>>,
    /// First WAL segment that a reader needs; `u64::MAX` for none.
    log_from: AtomicU64,
    /// Calls of a writer that read the log: the first segment that each of them needs.
    logs_kept: Mutex<Vec<u64>>,
    counters: Counters,
    /// The number of the next table or cursor.
    next_id: AtomicU64,
    tables: AtomicU64,
    cursors: AtomicU64,
    /// Calls that hold runs and belong to no table or cursor.
    calls: AtomicU64,
}

/// Owner of run files.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Holder {
    Table,
    Cursor,
    Call,
}

/// A place among the open tables, cursors and calls of a session, and the session itself; given up
/// on drop.
#[derive(Debug)]
pub(crate) struct Registered {
    inner: Arc<SessionInner>,
    holder: Holder,
    id: u64,
}

impl Registered {
    /// A number that no other table or cursor of the session has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

impl Deref for Registered {
    type Target = Arc<SessionInner>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        match self.holder {
            Holder::Table => event!(DEBUG, "table.closed", self.inner.dir, table = self.id),
            Holder::Cursor => event!(DEBUG, "cursor.closed", self.inner.dir, cursor = self.id),
            Holder::Call => {}
        }
        let before = self.inner.count(self.holder).fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "each holder was counted once");
    }
}

/// Segments of the log that a call or a feed needs; see [`SessionInner::keep_log`].
#[derive(Debug)]
pub(crate) struct KeptLog {
    inner: Arc<SessionInner>,
    from: u64,
}

impl Drop for KeptLog {
    fn drop(&mut self) {
        let mut kept = lock(&self.inner.logs_kept);
        debug_assert!(kept.contains(&self.from), "each kept log is noted once");
        if let Some(at) = kept.iter().position(|&from| from == self.from) {
            kept.swap_remove(at);
        }
    }
}

fn corrupted<T>(dir: &Path, reason: impl Into<String>) -> Result<T> {
    Err(Error::SessionDirCorrupted { path: dir.to_owned(), reason: reason.into() })
}

/// Entries found in the directory of a session.
enum Found {
    Nothing,
    Session,
}

fn look(disk: &dyn Disk, dir: &Path) -> Result<Found> {
    let entries = disk.list(dir)?;
    let has = |name: &str, kind| entries.iter().any(|e| e.name == name && e.kind == kind);
    if has(METADATA, EntryKind::File) {
        for name in [ACTIVE, SNAPSHOTS] {
            if !has(name, EntryKind::Directory) {
                return corrupted(dir, format!("missing {name} directory"));
            }
        }
        return Ok(Found::Session);
    }

    if entries.iter().all(|entry| entry.name == LOCK) {
        return Ok(Found::Nothing);
    }

    // What an unfinished creation has left may be made anew.
    let ours = [LOCK, METADATA_TMP, ACTIVE, SNAPSHOTS];
    if has(METADATA_TMP, EntryKind::File)
        && entries.iter().all(|e| ours.contains(&&*e.name))
        && (!has(SNAPSHOTS, EntryKind::Directory) || disk.list(&dir.join(SNAPSHOTS))?.is_empty())
    {
        return Ok(Found::Nothing);
    }

    if has(ACTIVE, EntryKind::Directory) || has(SNAPSHOTS, EntryKind::Directory) {
        return corrupted(dir, "missing metadata file");
    }
    let names: Vec<&str> = entries.iter().take(3).map(|entry| entry.name.as_str()).collect();
    corrupted(dir, format!("not empty, and not a session: it holds {}", names.join(", ")))
}

/// Checks that a session can be opened or made in a directory, as far as the names in it tell.
pub(crate) fn check_dir(disk: &dyn Disk, dir: &Path) -> Result<()> {
    look(disk, dir).map(drop)
}

/// Makes a directory for a session, durably, unless it is there.
pub(crate) fn make_dir(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let is_missing = disk.kind(dir)?.is_none();
    if is_missing {
        disk.create_dir(dir)?;
    }

    // Even if it was there: an earlier attempt may have ended before the name was durable.
    if let Some(parent) = dir.parent() {
        let synced = disk.sync_dir(parent);
        if synced.is_err() && is_missing {
            // No later sync can be trusted with this name; the next attempt makes a new one.
            if let Err(error) = disk.remove_dir(dir) {
                event!(WARN, "cleanup.failed", dir, %error);
            }
        }
        synced?;
    }

    Ok(())
}

/// Name of a session in errors about something else in its place.
pub(crate) const STORE: &str = "a store (a directory of `metadata`, `active` and `snapshots`)";

/// Whether the directory holds so many parts of a session that it is one, whole or damaged.
pub(crate) fn is_session_like(disk: &dyn Disk, dir: &Path) -> Result<bool> {
    let parts = [
        (METADATA, EntryKind::File),
        (ACTIVE, EntryKind::Directory),
        (SNAPSHOTS, EntryKind::Directory),
    ];
    let entries = disk.list(dir)?;
    let is_part = |entry: &&Entry| parts.contains(&(&*entry.name, entry.kind));
    Ok(entries.iter().filter(is_part).count() >= 2)
}

/// Refuses a directory that is no session, saying what is there.
pub(crate) fn foreign_dir<T>(disk: &dyn Disk, dir: &Path) -> Result<T> {
    let entries = disk.list(dir)?;
    let names: Vec<&str> = entries.iter().take(3).map(|entry| entry.name.as_str()).collect();
    let found = match names.as_slice() {
        [] => "an empty directory".to_owned(),
        names => format!("a directory that holds {}", names.join(", ")),
    };
    Err(Error::NotTerrane { path: dir.to_owned(), expected: STORE, found })
}

/// Makes a session of a directory that holds nothing, or what an unfinished creation left.
fn create(disk: &dyn Disk, dir: &Path, meta: SessionMeta) -> Result<()> {
    take_back(disk, dir)?;
    let created = create_parts(disk, dir, meta);
    if created.is_err() {
        // No later sync can be trusted with names whose sync has failed, so the next attempt makes
        // new ones. What cannot be removed now it removes first; the error to report is the earlier
        // one.
        if let Err(error) = take_back(disk, dir) {
            event!(WARN, "cleanup.failed", dir, %error);
        }
    }
    created
}

/// Removes what [`create_parts`] makes, as far as it is there: backwards, so that a crash on the
/// way leaves an unfinished creation again.
fn take_back(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let entries = disk.list(dir)?;

    let has = |name: &str| entries.iter().any(|entry| entry.name == name);
    let temporary = dir.join(METADATA_TMP);
    if has(METADATA) {
        disk.rename(&dir.join(METADATA), &temporary)?;
        disk.sync_dir(dir)?;
    } else if !has(METADATA_TMP) {
        return Ok(());
    }

    for name in [ACTIVE, SNAPSHOTS].into_iter().filter(|name| has(name)) {
        match disk.remove_dir(&dir.join(name)) {
            Err(error) if error.system_kind() == Some(std::io::ErrorKind::DirectoryNotEmpty) => {
                return corrupted(dir, format!("missing metadata file, and {name} is not empty"));
            }
            removed => removed?,
        }
    }

    disk.sync_dir(dir)?;
    Ok(disk.remove(&temporary)?)
}

fn create_parts(disk: &dyn Disk, dir: &Path, meta: SessionMeta) -> Result<()> {
    let temporary = dir.join(METADATA_TMP);
    let file = disk.open(&temporary, OpenMode::CreatePrivate, Access::Buffered)?;
    file.write_at(&meta.encode(), 0)?;
    file.sync()?;
    // Durable before the directories, which would look like a damaged session without it.
    disk.sync_dir(dir)?;
    disk.create_dir(&dir.join(ACTIVE))?;
    disk.create_dir(&dir.join(SNAPSHOTS))?;
    // The directories are durable before the name that promises them.
    disk.sync_dir(dir)?;
    disk.rename(&temporary, &dir.join(METADATA))?;
    disk.sync_dir(dir)?;
    Ok(())
}

fn read_metadata(disk: &dyn Disk, dir: &Path) -> Result<SessionMeta> {
    let path = dir.join(METADATA);
    let bytes = read_file(disk, &path, MANIFEST_BYTES_MAX)?;
    SessionMeta::decode(&bytes).map_err(|refused| match refused {
        Refused::Damaged(reason) => Error::SessionDirCorrupted {
            path: dir.to_owned(),
            reason: format!("metadata: {reason}"),
        },
        Refused::Version { found, newest } => Error::UnknownVersion { path, found, newest },
    })
}

/// Anchors the directory of a session: no link in it leads anywhere as long as the anchor is kept.
pub(crate) fn anchor_dir(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn Anchor>> {
    if disk.kind(dir)? != Some(EntryKind::Directory) {
        return Err(Error::SessionDirDoesNotExist { path: dir.to_owned() });
    }
    Ok(disk.anchor(dir)?)
}

/// Takes the lock of the session in `dir`, which is anchored.
pub(crate) fn lock_dir(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn LockGuard>> {
    disk.lock(&dir.join(LOCK)).map_err(|error| match error {
        terrane_io::Error::Locked { pid, .. } => {
            Error::SessionDirLocked { path: dir.to_owned(), pid }
        }
        error => error.into(),
    })
}

/// Keeps writers out of the session in `dir` where nothing can be written: by a shared lock, which
/// needs no right but to read. `None` if there is nothing to lock, as on a medium that a copy was
/// made on.
///
/// # Errors
/// [`Error::SessionDirLocked`] if somebody holds the session for writing.
pub(crate) fn lock_dir_shared(disk: &dyn Disk, dir: &Path) -> Result<Option<Box<dyn LockGuard>>> {
    match disk.lock_shared(&dir.join(LOCK)) {
        Ok(guard) => Ok(Some(guard)),
        Err(terrane_io::Error::Locked { pid, .. }) => {
            Err(Error::SessionDirLocked { path: dir.to_owned(), pid })
        }
        Err(error) if error.is_not_found() || error.is_permission() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The file of a snapshot of the session in `dir`.
pub(crate) fn snapshot_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(SNAPSHOTS).join(format!("{name}{SNAPSHOT_SUFFIX}"))
}

/// Reads a snapshot's metadata.
pub(crate) fn read_snapshot(disk: &dyn Disk, dir: &Path, name: &str) -> Result<SnapshotMeta> {
    let path = snapshot_path(dir, name);
    let read = read_file(disk, &path, MANIFEST_BYTES_MAX);
    decode_snapshot(path, name, read)
}

fn decode_snapshot(
    path: PathBuf,
    name: &str,
    read: terrane_io::Result<Vec<u8>>,
) -> Result<SnapshotMeta> {
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) => {
            let reason = match error.system_kind() {
                Some(std::io::ErrorKind::FileTooLarge) => {
                    format!("larger than any snapshot: {MANIFEST_BYTES_MAX} bytes")
                }
                _ => match unreadable(&error) {
                    Some(reason) => reason,
                    None => return Err(error.into()),
                },
            };
            return Err(Error::SnapshotCorrupted { name: name.to_owned(), path, reason });
        }
    };

    SnapshotMeta::decode(&bytes).map_err(|refused| match refused {
        Refused::Damaged(reason) => {
            Error::SnapshotCorrupted { name: name.to_owned(), path, reason }
        }
        Refused::Version { found, newest } => Error::UnknownVersion { path, found, newest },
    })
}

/// The name of the snapshot whose file has this name.
pub(crate) fn snapshot_name(file_name: &str) -> Option<&str> {
    file_name.strip_suffix(SNAPSHOT_SUFFIX).filter(|name| is_name(name))
}

/// Names of the snapshots in `dir`, sorted; other files are passed over.
pub(crate) fn snapshot_names(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>> {
    let entries = disk.list(&dir.join(SNAPSHOTS))?;
    let names = entries.iter().filter(|entry| entry.kind == EntryKind::File);
    Ok(names.filter_map(|entry| snapshot_name(&entry.name).map(str::to_owned)).collect())
}

/// Moves runs that nothing names to `lost+found`, in place of those that stand there if it
/// `is_known` what snapshots and tables need. On a full disk they stay where they are, and go with
/// those when room is needed.
fn keep_orphans(
    files: &FileSet,
    dir: &Path,
    orphans: &[String],
    lost: &[String],
    is_known: bool,
) -> Result<()> {
    let disk = files.disk().as_ref();
    let active = dir.join(ACTIVE);
    if orphans.is_empty() {
        if is_known {
            files.handles().note_dispensable(lost_found::runs_in(dir, lost));
        }
        return Ok(());
    }

    event!(WARN, "orphans.kept", dir, count = orphans.len());

    let kept = lost_found::keep(disk, dir, &active, orphans);
    let is_full = kept.as_ref().is_err_and(terrane_io::Error::is_no_space);
    if !is_full {
        kept?;
    }

    if !is_known {
        return Ok(());
    }

    // The remains of one crash are kept, so those of earlier openings go.
    for path in lost_found::runs_in(dir, lost) {
        disk.remove(&path)?;
    }
    let places =
        orphans.iter().flat_map(|name| [active.join(name), dir.join(LOST_FOUND).join(name)]);
    files.handles().note_dispensable(places);
    Ok(())
}

/// How a session is opened for writing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenSettings {
    /// Salt of a session that is created.
    pub(crate) salt: u64,
    /// Run files that are kept open.
    pub(crate) open_files_max: usize,
    /// Reserve that the session is to have.
    pub(crate) reserve: WantedReserve,
    /// Memory budget of the session, in bytes.
    pub(crate) memory_budget: Option<u64>,
}

impl OpenSettings {
    /// Settings of a session that keeps the reserve that it has, without a memory budget.
    pub(crate) fn new(salt: u64, open_files_max: usize) -> Self {
        Self { salt, open_files_max, reserve: WantedReserve::AsItIs, memory_budget: None }
    }
}

/// Makes the session if the directory holds none, else makes the names in its directory durable.
/// Returns whether the session is new.
fn create_or_restore(disk: &dyn Disk, dir: &Path, salt: u64) -> Result<bool> {
    if matches!(look(disk, dir)?, Found::Nothing) {
        event!(DEBUG, "session.new", dir);
        let created_ns = disk.clock().wall().as_nanos() as u64;
        create(disk, dir, SessionMeta { salt, created_ns })?;
        return Ok(true);
    }

    event!(DEBUG, "session.restore", dir);
    // A process that died may have left names that are seen but not durable yet. From here on they
    // are relied on: nothing is removed, and nothing new built, on what a loss of power would undo.
    disk.sync_dir(dir)?;
    disk.sync_dir(&dir.join(SNAPSHOTS))?;
    Ok(false)
}

/// Files that snapshots and named tables refer to.
#[derive(Debug, Default)]
struct Referenced {
    snapshots: BTreeMap<String, Stored>,
    /// Numbers of all files; those of several snapshots as often.
    pins: Vec<u64>,
    /// Runs that are whole.
    runs: Vec<RunRef>,
    /// Outputs of unfinished compactions.
    partials: Vec<Partial>,
    /// Whether a snapshot or the manifest cannot be read, so that nobody knows all references.
    damaged: bool,
    /// Whether the session has neither snapshots nor named tables.
    is_rootless: bool,
}

impl Referenced {
    /// Reads the metadata of all snapshots and the manifest.
    fn read(disk: &dyn Disk, dir: &Path) -> Result<Self> {
        let mut found = Self::default();
        for name in snapshot_names(disk, dir)? {
            let stored = match read_snapshot(disk, dir, &name) {
                Ok(meta) => {
                    found.add(&meta);
                    Stored::whole(&meta)
                }
                Err(error @ (Error::SnapshotCorrupted { .. } | Error::UnknownVersion { .. })) => {
                    event!(WARN, "session.damaged", dir, %error);
                    found.damaged = true;
                    Stored::Damaged
                }
                Err(error) => return Err(error),
            };
            found.snapshots.insert(name, stored);
        }

        let manifests: Vec<StoreManifest> = match manifest::read(disk, dir) {
            Ok(read) => read.manifests().cloned().collect(),
            Err(error @ (Error::StoreCorrupted { .. } | Error::UnknownVersion { .. })) => {
                event!(WARN, "session.damaged", dir, %error);
                found.damaged = true;
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let tables = manifests.iter().flat_map(StoreManifest::all_tables);
        tables.for_each(|table| found.add(&table.meta));

        found.is_rootless = found.snapshots.is_empty() && manifests.is_empty();
        Ok(found)
    }

    fn add(&mut self, meta: &SnapshotMeta) {
        self.pins.extend(meta.numbers());
        self.runs.extend(meta.runs().copied());
        self.partials.extend(meta.partials().copied());
    }

    /// Pins the files, and notes how far they can be relied on.
    fn note_in(&self, files: &FileSet) {
        files.pin(self.pins.iter().copied());
        self.runs.iter().for_each(|run| files.note_whole(run.number));
        // Another snapshot, which cannot be read, may rely on more of these files than is known.
        if !self.damaged {
            self.partials.iter().for_each(|&partial| files.note_durable(partial));
        }
    }
}

fn run_number(name: &str) -> Option<u64> {
    file_number(name).or_else(|| blobs_number(name))
}

fn run_numbers(active: &[Entry]) -> impl Iterator<Item = u64> {
    active.iter().filter_map(|entry| run_number(&entry.name))
}

/// The number of the next run.
fn next_number(active: &[Entry], pins: &[u64], lost: &[String]) -> u64 {
    // Numbers in `lost+found` count too: a new run must not take a name that may come back.
    let lost = lost.iter().filter_map(|name| lost_found::run_number(name));
    let last = run_numbers(active).chain(pins.iter().copied()).chain(lost).max();
    last.map_or(0, |number| number.saturating_add(1))
}

/// Removes the files that a process has left that died while it saved a snapshot.
fn remove_unfinished(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let snapshots = dir.join(SNAPSHOTS);
    for entry in disk.list(&snapshots)? {
        if entry.name.ends_with(TMP_SUFFIX) {
            disk.remove(&snapshots.join(&entry.name))?;
        }
    }
    Ok(())
}

/// Names of the runs in `active` that nothing pins. Removes files that were never finished.
fn find_orphans(files: &FileSet, dir: &Path, active: Vec<Entry>) -> Result<Vec<String>> {
    let mut orphans = Vec::new();
    for entry in active {
        match run_number(&entry.name) {
            Some(number) if !files.is_pinned(number) => orphans.push(entry.name),
            None if entry.name.ends_with(TMP_SUFFIX) => {
                files.disk().remove(&dir.join(ACTIVE).join(&entry.name))?;
            }
            Some(_) | None => {}
        }
    }
    Ok(orphans)
}

impl SessionInner {
    /// Opens the session in `dir`, creating it if the directory is empty.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        settings: OpenSettings,
    ) -> Result<Arc<Self>> {
        let dir = &disk.absolute(dir)?;
        let anchor = anchor_dir(disk.as_ref(), dir)?;
        // Before the lock too, which makes a file: a foreign directory is to stay as it is.
        look(disk.as_ref(), dir)?;
        let guard = lock_dir(disk.as_ref(), dir)?;

        let is_new = create_or_restore(disk.as_ref(), dir, settings.salt)?;
        let meta = read_metadata(disk.as_ref(), dir)?;
        let referenced = Referenced::read(disk.as_ref(), dir)?;
        let lost = Self::take_back_lost(disk.as_ref(), dir, &referenced.pins)?;
        let active = disk.list(&dir.join(ACTIVE))?;
        let needs = lease::needs(disk.as_ref(), dir)?;
        let leased: BTreeSet<u64> =
            run_numbers(&active).filter(|&number| needs.has_run(number)).collect();
        let next_number = next_number(&active, &referenced.pins, &lost);

        let wanted = settings.reserve.bytes(disk.as_ref(), dir, is_new)?;
        let reserve = Reserve::open(disk.as_ref(), dir, wanted)?;
        let open = FileHandles::with_reserve(Arc::clone(disk), settings.open_files_max, reserve);
        let files = Arc::new(FileSet::new(open, dir.join(ACTIVE), next_number));
        referenced.note_in(&files);
        files.pin(leased.iter().copied());

        remove_unfinished(disk.as_ref(), dir)?;
        if referenced.damaged {
            // Nobody knows which of them it needs; no deletion of another snapshot may take them
            // away.
            files.pin(active.iter().filter_map(|entry| file_number(&entry.name)));
        }
        let blobs = active.iter().filter_map(|entry| blobs_number(&entry.name));
        blobs.filter(|&number| files.is_pinned(number)).for_each(|number| files.note_blobs(number));

        let orphans = find_orphans(&files, dir, active)?;
        let is_known = !referenced.damaged && !referenced.is_rootless;
        keep_orphans(&files, dir, &orphans, &lost, is_known)?;

        let mut inner = Self::new(files, dir, meta.salt, anchor);
        inner.set_memory_budget(settings.memory_budget);
        inner.snapshots = Registry::new(referenced.snapshots);
        inner.leased = Mutex::new(leased);
        inner.lock = Mutex::new(Some(guard));
        Ok(Arc::new(inner))
    }

    /// Opens the session in `dir`, which another process may hold, for reading only.
    pub(crate) fn open_read_only(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        open_files_max: usize,
        memory_budget: Option<u64>,
    ) -> Result<Arc<Self>> {
        let dir = &disk.absolute(dir)?;
        let anchor = anchor_dir(disk.as_ref(), dir)?;
        if let Found::Nothing = look(disk.as_ref(), dir)? {
            return foreign_dir(disk.as_ref(), dir);
        }
        let meta = read_metadata(disk.as_ref(), dir)?;
        let open = FileHandles::new(Arc::clone(disk), open_files_max);
        let files = Arc::new(FileSet::read_only(open, dir.join(ACTIVE)));
        let mut inner = Self::new(files, dir, meta.salt, anchor);
        inner.set_memory_budget(memory_budget);
        Ok(Arc::new(inner))
    }

    fn set_memory_budget(&mut self, budget: Option<u64>) {
        self.memory = budget.map(|budget| SessionMemory::new(&self.files, budget));
    }

    /// Takes back from `lost+found` what a snapshot or a table names again. Returns the names of
    /// the files that stay.
    fn take_back_lost(disk: &dyn Disk, dir: &Path, pins: &[u64]) -> Result<Vec<String>> {
        let lost = lost_found::names(disk, dir)?;
        let is_wanted =
            |name: &String| run_number(name).is_some_and(|number| pins.contains(&number));
        let (wanted, lost): (Vec<_>, Vec<_>) = lost.into_iter().partition(is_wanted);
        if !wanted.is_empty() {
            event!(WARN, "orphans.taken_back", dir, count = wanted.len());
            lost_found::take_back(disk, dir, &dir.join(ACTIVE), &wanted)?;
        }
        Ok(lost)
    }

    fn new(files: Arc<FileSet>, dir: &Path, salt: u64, anchor: Box<dyn Anchor>) -> Self {
        Self {
            worker: Worker::default(),
            lookups: LookupThread::default(),
            files,
            memory: None,
            dir: dir.to_owned(),
            salt,
            process: Process::current(),
            closed: AtomicBool::new(false),
            spare_pages: SparePages::default(),
            runs: Mutex::default(),
            filters: Mutex::default(),
            merges: Mutex::default(),
            snapshots: Registry::new(BTreeMap::new()),
            lock: Mutex::default(),
            _anchor: anchor,
            lease: Mutex::default(),
            leased: Mutex::default(),
            log_from: AtomicU64::new(u64::MAX),
            logs_kept: Mutex::default(),
            counters: Counters::default(),
            next_id: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            cursors: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.files.is_read_only()
    }

    /// Sets from which segment on a reader needs the log; the next [`lease`](Self::lease) says so.
    pub(crate) fn need_log(&self, from: u64) {
        self.log_from.store(from, Ordering::Release);
    }

    /// Leases all files that somebody here has a handle on, and the log that is needed, and nothing
    /// else any more. Where no lease can be written, keeps writers out by a shared lock instead.
    /// Whether they were there then must be looked at afterwards.
    pub(crate) fn lease(&self) -> Result<()> {
        // While it is held, so that nothing is leased by who knows less.
        let mut lease = lock(&self.lease);
        self.check_open()?;
        if lock(&self.lock).is_some() {
            // No writer can come, so nothing goes.
            return Ok(());
        }

        let segment = self.log_from.load(Ordering::Acquire);
        let lease = match &mut *lease {
            Some(lease) => lease,
            none => match Lease::take(self.disk(), &self.dir) {
                Err(Error::Disk(error)) if error.cannot_write() => {
                    event!(WARN, "reader.unleased", self.dir, %error);
                    *lock(&self.lock) = lock_dir_shared(self.disk(), &self.dir)?;
                    return Ok(());
                }
                taken => none.insert(taken?),
            },
        };

        lease.renew(&self.files.held(), segment)
    }

    /// Handles on files of another process, leased.
    ///
    /// # Errors
    /// The errors of [`lease`](Self::lease).
    pub(crate) fn hold(&self, numbers: impl Iterator<Item = u64>) -> Result<Vec<FileHandle>> {
        // Attached first, so that the lease names them.
        let held = numbers.map(|number| self.files.attach(number)).collect();
        self.lease()?;
        Ok(held)
    }

    /// The first segment of the log that a reader needs, or a call that reads the log here;
    /// `u64::MAX` for none.
    pub(crate) fn leased_segment(&self) -> Result<u64> {
        let kept = lock(&self.logs_kept).iter().copied().min().unwrap_or(u64::MAX);
        Ok(lease::needs(self.disk(), &self.dir)?.segment.min(kept))
    }

    /// Keeps the segments of the log from this one on, as long as the guard lives.
    pub(crate) fn keep_log(self: &Arc<Self>, from: u64) -> KeptLog {
        lock(&self.logs_kept).push(from);
        KeptLog { inner: Arc::clone(self), from }
    }

    /// Returns what the cursors of feeds need of the log.
    pub(crate) fn cursor_needs(&self) -> Result<CursorNeeds> {
        feed_cursor::needs(self.disk(), &self.dir)
    }

    /// Whether the store keeps a history for feeds.
    pub(crate) fn has_feeds(&self) -> Result<bool> {
        feed_cursor::has_feeds(self.disk(), &self.dir)
    }

    /// Takes a pin off each of these files, which nothing on disk leads to any more, as soon as no
    /// reader needs it.
    pub(crate) fn let_go(&self, numbers: impl IntoIterator<Item = u64>) -> Result<()> {
        let mut leased = lock(&self.leased);
        // One pin is enough.
        let known =
            numbers.into_iter().filter(|&number| !leased.insert(number)).collect::<Vec<_>>();
        let unpinned = self.files.unpin(known);
        let needs = lease::needs(self.disk(), &self.dir)?;
        let (kept, free): (BTreeSet<u64>, BTreeSet<u64>) =
            leased.iter().partition(|number| needs.has_run(**number));
        *leased = kept;
        unpinned.and(self.files.unpin(free))
    }

    fn count(&self, holder: Holder) -> &AtomicU64 {
        match holder {
            Holder::Table => &self.tables,
            Holder::Cursor => &self.cursors,
            Holder::Call => &self.calls,
        }
    }

    /// Enters a table, a cursor or a call. To be kept for longer than the runs that it holds.
    pub(crate) fn register(self: &Arc<Self>, holder: Holder) -> Registered {
        self.count(holder).fetch_add(1, Ordering::AcqRel);
        let id = match holder {
            Holder::Table | Holder::Cursor => self.next_id.fetch_add(1, Ordering::Relaxed),
            Holder::Call => 0,
        };
        Registered { inner: Arc::clone(self), holder, id }
    }

    /// Counters of all handles.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Statistics of the session and of its handles.
    pub(crate) fn stats(&self) -> SessionStats {
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        let sums = self.files.sums();
        let activity = self.counters.activity();

        let filters = self.counters.filters().into_iter();
        SessionStats {
            tables: read(&self.tables),
            cursors: read(&self.cursors),
            snapshots: self.snapshots.names().map_or(0, |names| names.len() as u64),
            open_files: self.files.handles().count() as u64,
            reserve_bytes: self.files.handles().disk_reserve().bytes(),
            is_full: self.files.handles().disk_reserve().is_full(),
            runs: read(&sums.runs),
            entries: read(&sums.entries),
            deletes: read(&sums.deletes),
            bytes: read(&sums.bytes),
            filter_bytes: read(&sums.filter_bytes),
            index_bytes: read(&sums.index_bytes),
            memory: self.memory.as_ref().map(|memory| memory.stats()),
            lookups: activity.lookups,
            found: activity.found,
            memory_hits: activity.memory_hits,
            lookup_reads: activity.lookup_reads,
            cache_hits: activity.cache_hits,
            filter: filters.fold(FilterStats::default(), FilterStats::plus),
            updates: activity.updates,
            update_bytes: activity.update_bytes,
            written_bytes: read(&sums.written_bytes),
            image_bytes: read(&sums.image_bytes),
            lookup_times: activity.lookup_times,
            update_times: activity.update_times,
            save_times: activity.save_times,
        }
    }

    /// In builds with debug assertions: where nobody is left who could hold a run, nobody does.
    fn check_for_leaks(&self) {
        let holders = [&self.tables, &self.cursors, &self.calls];
        let is_idle = holders.iter().all(|count| count.load(Ordering::Acquire) == 0);
        if self.is_read_only() {
            // Nothing of it is removed, whoever holds it.
            return;
        }
        if cfg!(debug_assertions) && is_idle && !std::thread::panicking() {
            let held = self.files.held();
            assert!(held.is_empty(), "no table or cursor is open, and yet runs {held:?} are held");
        }
    }

    pub(crate) fn files(&self) -> &Arc<FileSet> {
        &self.files
    }

    /// The memory budget of the session, if it has one.
    pub(crate) fn memory(&self) -> Option<&Arc<SessionMemory>> {
        self.memory.as_ref()
    }

    /// Refuses a configuration whose own memory budget the session has no room for; `had` is the
    /// budget that it takes the place of, 0 for none. Where nothing can be written, tables are as
    /// their writer has them.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub(crate) fn check_own_budget(&self, config: &TableConfig, had: u64) -> Result<()> {
        match (&self.memory, config.memory_budget) {
            (Some(memory), Some(budget)) if !self.is_read_only() => {
                memory.check_own_budget(budget, had)
            }
            _ => Ok(()),
        }
    }

    /// A prefetcher for a cursor or a diff.
    pub(crate) fn prefetcher(&self) -> Arc<Prefetcher> {
        let allowance = self.memory.as_ref().map(|memory| memory.read_ahead());
        Prefetcher::of_scan(self.files.handles(), allowance)
    }

    pub(crate) fn disk(&self) -> &dyn Disk {
        self.files.disk().as_ref()
    }

    pub(crate) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The thread for lookups that are taken later.
    pub(crate) fn lookup_thread(&self) -> &LookupThread {
        &self.lookups
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn spare_pages(&self) -> &SparePages {
        &self.spare_pages
    }

    pub(crate) fn salt(&self) -> u64 {
        self.salt
    }

    /// Refuses a call in a child of the process that opened the session.
    pub(crate) fn check_process(&self) -> Result<()> {
        Ok(self.process.check(&self.dir)?)
    }

    /// The same, and refuses a call on a closed session.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_process()?;
        if self.closed.load(Ordering::Acquire) { Err(Error::SessionClosed) } else { Ok(()) }
    }

    /// Before a call that may make the session larger: takes the reserve back, if it was let go.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`] if there is not enough room for it, [`Error::Disk`],
    /// [`Error::SessionClosed`].
    pub(crate) fn check_room(&self) -> Result<()> {
        let open = self.files.handles();
        if !open.disk_reserve().is_full() {
            return Ok(());
        }
        let _right = open.may_write()?;
        open.take_reserve_back()
    }

    /// The same for a batch of updates: deletions go on.
    ///
    /// # Errors
    /// The errors of [`check_room`](Self::check_room).
    pub(crate) fn check_room_for<K>(&self, batch: &[(K, Update<'_>)]) -> Result<()> {
        let is_growing = |(_, update): &(K, Update<'_>)| {
            !matches!(update, Update::Delete | Update::DeleteRange(_))
        };
        let is_full = self.files.handles().disk_reserve().is_full();
        if is_full && batch.iter().any(is_growing) { self.check_room() } else { Ok(()) }
    }

    /// Also fails for a reader, and after a failed sync.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.is_read_only() {
            return Err(Error::ReadOnly { path: self.dir.clone() });
        }
        self.files.check_poisoned()
    }

    pub(crate) fn snapshots(&self) -> &Registry {
        &self.snapshots
    }

    /// Ends the session for all of its handles and releases the lock. Operations on snapshots that
    /// are under way end first; the long ones ask [`check_open`](Self::check_open) now and then.
    pub(crate) fn close(&self) -> Result<()> {
        self.check_process()?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        event!(DEBUG, "session.close", self.dir);
        // The threads end first, because they hold runs.
        self.worker.stop();
        self.lookups.stop();
        self.snapshots.close();
        self.files.reclaimer().wait();
        self.check_for_leaks();

        // What readers needed until now.
        let left = if self.is_read_only() { Ok(()) } else { self.let_go([]) };
        let result = left.and(self.files.close());
        // The lock goes last, when no file is written or removed any more.
        lock(&self.lock).take();
        lock(&self.lease).take();

        if result.is_ok() {
            event!(DEBUG, "session.closed", self.dir);
        }
        result
    }

    /// The run of that number, shared with whoever has it open.
    pub(crate) fn run(&self, number: u64, access: Access) -> Result<Arc<Run>> {
        self.run_opened(number, access, Run::open)
    }

    /// The same, without its filter unless somebody has it open.
    pub(crate) fn run_without_filter(&self, number: u64, access: Access) -> Result<Arc<Run>> {
        self.run_opened(number, access, Run::open_without_filter)
    }

    /// The turn of who reads filters of runs that were opened without them. Others that share these
    /// runs wait for it, and so know what is there when they decide what they have room for.
    pub(crate) fn reading_filters(&self) -> MutexGuard<'_, ()> {
        lock(&self.filters)
    }

    fn run_opened(
        &self,
        number: u64,
        access: Access,
        open: impl Fn(&Arc<FileSet>, u64, Access) -> Result<Run>,
    ) -> Result<Arc<Run>> {
        let shared = |runs: &mut BTreeMap<u64, Weak<Run>>| {
            let run = runs.get(&number).and_then(Weak::upgrade)?;
            // What another table has deleted is its own matter.
            let run = run.with_mask(&Mask::default()).with_access(access);
            runs.insert(number, Arc::downgrade(&run));
            Some(run)
        };

        if let Some(run) = shared(&mut lock(&self.runs)) {
            return Ok(run);
        }

        // Without the lock, so that several can be opened at once; of one run the first is kept.
        let run = Arc::new(open(&self.files, number, access)?);
        let mut runs = lock(&self.runs);
        if let Some(run) = shared(&mut runs) {
            return Ok(run);
        }
        // The map keeps no run open, so entries of closed runs are swept here.
        runs.retain(|_, run| run.strong_count() > 0);
        runs.insert(number, Arc::downgrade(&run));
        Ok(run)
    }

    /// The merge that `spec` describes, which had written `output`: shared with whoever has it
    /// under way, or resumed; `None` if neither can be. Cost: no I/O.
    pub(crate) fn compaction(
        &self,
        spec: &CompactionSpec,
        output: &Partial,
    ) -> Option<Arc<Compaction>> {
        let mut merges = lock(&self.merges);
        if let Some(compaction) = merges.get(&output.number).and_then(Weak::upgrade)
            && compaction.access() == spec.access
        {
            return Some(compaction);
        }
        let (handle, partial) = self.files.take_over(output)?;
        let taken = ResumedPages { partial, handle };
        let compaction = Arc::new(Compaction::resumed(&self.files, spec.clone(), taken));
        merges.retain(|_, compaction| compaction.strong_count() > 0);
        merges.insert(output.number, Arc::downgrade(&compaction));
        Some(compaction)
    }

    /// Lets tables that are opened from a snapshot share these merges, each with the number of its
    /// output.
    pub(crate) fn share_merges<'a>(
        &self,
        shared: impl Iterator<Item = (u64, &'a Arc<Compaction>)>,
    ) {
        let mut merges = lock(&self.merges);
        merges.retain(|_, compaction| compaction.strong_count() > 0);
        merges.extend(shared.map(|(number, compaction)| (number, Arc::downgrade(compaction))));
    }

    /// Lets tables that are opened from a snapshot share these runs.
    pub(crate) fn share(&self, shared: &[Arc<Run>]) {
        let mut runs = lock(&self.runs);
        runs.retain(|_, run| run.strong_count() > 0);
        runs.extend(shared.iter().map(|run| (run.number(), Arc::downgrade(run))));
    }

    /// Reads a snapshot's metadata.
    pub(crate) fn read_snapshot(&self, name: &str) -> Result<SnapshotMeta> {
        let path = snapshot_path(&self.dir, name);
        let read = || read_file(self.disk(), &path, MANIFEST_BYTES_MAX);
        let read = self.files.handles().with_room(read);
        decode_snapshot(path, name, read)
    }

    /// Writes a file of `snapshots` under its final name, durably.
    pub(crate) fn write_snapshot(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.write_whole(path, bytes)?;
        self.sync_dir(SNAPSHOTS)
    }

    /// Writes a file under its final name, which is durable after a sync of the directory.
    pub(crate) fn write_whole(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let disk = self.disk();
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(TMP_SUFFIX);

        let temporary = PathBuf::from(temporary);
        let written = (|| {
            let files = self.files.handles();
            let open = || create_afresh(disk, &temporary, OpenMode::CreateNew, Access::Buffered);
            let file = files.with_space(|| files.with_room(open))?;
            files.with_space(|| file.write_at(bytes, 0))?;
            self.files.synced(&temporary, file.sync())?;
            Ok(files.with_space(|| disk.rename(&temporary, path))?)
        })();

        if written.is_err() {
            // The first error is the one to report; the next opening removes what is left.
            if let Err(error) = disk.remove(&temporary) {
                event!(WARN, "cleanup.failed", self.dir, %error);
            }
        }

        written
    }

    /// After a failure that leaves it open what is on disk: as after a failed sync.
    pub(crate) fn poison(&self, path: &Path, error: Error) -> Result<()> {
        event!(WARN, "cleanup.failed", self.dir, %error);
        match error {
            Error::Disk(error) => self.files.synced(path, Err(error)),
            error => Err(error),
        }
    }

    /// Makes the names in a directory of the session durable.
    pub(crate) fn sync_dir(&self, name: &str) -> Result<()> {
        self.sync_names(&self.dir.join(name))
    }

    /// Makes the names in the session's own directory durable.
    pub(crate) fn sync_root(&self) -> Result<()> {
        self.sync_names(&self.dir)
    }

    fn sync_names(&self, path: &Path) -> Result<()> {
        self.files.check_poisoned()?;
        let synced = self.files.handles().with_room(|| self.disk().sync_dir(path));
        self.files.synced(path, synced)
    }
}

impl Drop for SessionInner {
    fn drop(&mut self) {
        // A child has no part in what is under way.
        if !self.process.is_current() {
            return;
        }
        // Its thread may hold a merge for a moment longer than all tables.
        self.worker.stop();
        self.lookups.stop();
        // The next session must not find files that are on their way out.
        self.files.reclaimer().wait();
        self.check_for_leaks();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use terrane_io::SimDisk;

    use super::*;

    /// A handle that nobody answers for is found when the session is closed; one that belongs to a
    /// table, a cursor or a call is none of its business. (Without debug assertions nothing is
    /// looked for.)
    #[test]
    fn a_run_that_is_held_without_a_holder_is_a_leak() {
        for (holder, is_leak) in [
            (None, true),
            (Some(Holder::Table), false),
            (Some(Holder::Cursor), false),
            (Some(Holder::Call), false),
        ] {
            let disk: Arc<dyn Disk> = SimDisk::new(1);
            disk.create_dir(Path::new("/session")).unwrap();
            let inner =
                SessionInner::open(&disk, Path::new("/session"), OpenSettings::new(1, 4)).unwrap();
            let registered = holder.map(|holder| inner.register(holder));
            let (handle, file) = inner.files().create(Access::Buffered).unwrap();
            let closed = catch_unwind(AssertUnwindSafe(|| inner.close().unwrap()));
            match closed {
                Ok(()) => assert!(!(is_leak && cfg!(debug_assertions)), "{holder:?}"),
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().unwrap();
                    assert!(is_leak && text.contains("runs [0] are held"), "{text}");
                }
            }
            drop((file, handle, registered));
            // Whole again, so the last handle on the session finds nothing.
            drop(inner);
        }
    }
}
