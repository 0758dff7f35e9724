//! A database in LMDB: one memory-mapped B+tree file, changed by copying pages, read through snapshots that wait for nobody.
//!
//! Tables are named databases of LMDB: `main`, and `index_NAME` for each index.
//!
//! The map grows by itself, up to a limit. A transaction that finds it full is taken back, the map is made larger, and the
//! transaction is done again from its log, so a writer takes memory for what it writes. Snapshots live through it: growth
//! waits for calls that run and never for a snapshot. At the limit the transaction fails with [`Error::StoreFull`]. A
//! sixteenth of the limit is kept for transactions that remove more entries than they set: LMDB copies the pages that
//! it removes from, so a file that is full to the brim could not be emptied. Before it fails an empty commit is made, since LMDB
//! uses freed pages one commit later.
//!
//! A snapshot keeps the pages that were freed since from being used again; see
//! [`oldest_reader`](LmdbDatabase::oldest_reader).
//!
//! What settings are worth, as [`guarantee`](Database::guarantee) tells:
//!
//! | settings | killed process | loss of power |
//! |---|---|---|
//! | [`SyncMode::Full`] | keeps commits | keeps every commit |
//! | [`SyncMode::NoMeta`] | keeps commits | consistent; the last commit may be undone |
//! | [`SyncMode::None`] | keeps commits | no promise |
//! | [`SyncMode::MapAsync`], which is Transact's | keeps commits | no promise |
//!
//! LMDB waits for the writer of another process with no limit of time, so [`writer`](Database::writer) does so too, and
//! opening, which makes sure of the tables; neither fails with [`Error::Busy`] for it. A process that is killed gives its turn
//! up.
//!
//! LMDB does not tell how many bytes it writes, so [`Counts`] has none. Syncs are two per commit in
//! mode `Full` (data; head, by a write that is synced), one in mode `NoMeta`. Its authors advise
//! against network file systems; it works there for one process.
//!
//! LMDB trusts the bytes of its file, and one flipped bit can end the process. Opening checks the
//! heads and the length of the file. [`check_file`] checks all pages without mapping the file:
//! `terrane verify` calls it first, and whoever cannot trust a medium should do so too. Nothing
//! finds a changed value, but what has a checksum in the value itself, as rows of the radix state
//! have.
//!
//! A database is opened by one name: the path is resolved once, and a file with several names (hard
//! links), which would have a lock under each, is refused.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use terrane_kv::turn::{Turn, TurnGuard};
use terrane_kv::{
    Counts, Cursor, Database, Durability, Entry, Error, Guarantee, INDEXES_MAX, KEY_BYTES_MAX,
    PowerLoss, Reader, Receipt, Result, Source, Table, Writer, check_entry,
};
use terrane_lmdb::{
    EnvFlags, Environment, EnvironmentAccess, EnvironmentOptions, EnvironmentTable, Failure, Kind,
    PageLimit, Snapshot, Transaction, data_path, lock_path,
};

pub use terrane_lmdb::{Finding, SyncMode, check_file};

use crate::names::IndexNames;
use crate::own_file::{OwnFiles, with_suffix};
use crate::paging::{PAGE_BYTES, PagedCursor, Pages};

const NAME: &str = "lmdb";
const FILES: OwnFiles = OwnFiles(NAME);
/// The name of the main table, and what those of indexes begin with.
const MAIN: &str = "main";
const INDEX: &str = "index_";
/// Bytes of a map at least: room for the heads, the tables' roots and a few transactions.
const MAP_BYTES_MIN: u64 = 64 << 10;
/// Bytes of the part of the limit that is kept for removals, at most.
const RESERVE_BYTES_MAX: u64 = 4 << 20;
/// What sizes of maps are multiples of: the largest page of a system that LMDB runs on.
const MAP_STEP_BYTES: u64 = 64 << 10;
/// Heads of LMDB: the first bytes of a file, which change with each transaction.
const HEADS_BYTES: usize = 128 << 10;

/// How a full map grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LmdbGrowth {
    /// Not at all.
    None,
    /// To twice its size.
    Double,
    /// By so many bytes.
    Step(u64),
}

/// How an LMDB database is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LmdbOptions {
    /// Bytes of the map to start with; rounded up to 64 KiB. `None`: 1 GiB of addresses, which cost nothing; 1 MiB with a
    /// map that is written, whose file has the size of the map.
    pub map_bytes: Option<u64>,
    /// How a full map grows.
    pub growth: LmdbGrowth,
    /// Bytes of the map at most, also for one that does not grow.
    pub map_bytes_max: u64,
    /// Snapshots at a time, over all processes, at most.
    pub readers_max: u32,
    /// Whether the path names a directory, made if it is not there, or a file.
    pub directory: bool,
    /// Whether the system reads ahead. Lookups of random keys are better without.
    pub read_ahead: bool,
    /// Whether pages are changed in the map in place of being written.
    pub write_map: bool,
    /// When commits reach the disk.
    pub sync: SyncMode,
}

impl Default for LmdbOptions {
    fn default() -> Self {
        Self {
            map_bytes: None,
            growth: LmdbGrowth::Double,
            map_bytes_max: 1 << 40,
            readers_max: 126,
            directory: false,
            read_ahead: false,
            write_map: false,
            sync: SyncMode::Full,
        }
    }
}

impl LmdbOptions {
    /// The settings of Transact's back-end (`WRITEMAP`, `MAPASYNC`, `NORDAHEAD`, `NOSUBDIR`), but for its file, which grows
    /// instead of having a length of 1 TiB from the start.
    #[must_use]
    pub fn transact() -> Self {
        Self { write_map: true, sync: SyncMode::MapAsync, ..Self::default() }
    }

    fn start_bytes(&self) -> u64 {
        let bytes = self.map_bytes.unwrap_or(if self.write_map { 1 << 20 } else { 1 << 30 });
        round_up(bytes.max(MAP_BYTES_MIN)).min(self.soft_bytes())
    }

    /// The limit for transactions that add.
    fn soft_bytes(&self) -> u64 {
        round_down(self.map_bytes_max - (self.map_bytes_max / 16).min(RESERVE_BYTES_MAX))
    }

    fn check(&self) -> Result<()> {
        let refuse = |option: &str, why: String| {
            Err(Error::Unsupported { back_end: NAME, option: option.into(), why })
        };
        if self.map_bytes_max < 2 * MAP_BYTES_MIN || usize::try_from(self.map_bytes_max).is_err() {
            return refuse(
                "map_bytes_max",
                format!("at least {} and what the process can address", 2 * MAP_BYTES_MIN),
            );
        }
        if self.map_bytes.is_some_and(|bytes| bytes > self.map_bytes_max) {
            return refuse("map_bytes", format!("more than map_bytes_max, {}", self.map_bytes_max));
        }
        if self.growth == LmdbGrowth::Step(0) {
            return refuse("growth", "a step of 0 bytes; take LmdbGrowth::None".into());
        }
        if self.readers_max == 0 {
            return refuse("readers_max", "0; the database itself needs one".into());
        }
        if self.sync == SyncMode::MapAsync && !self.write_map {
            return refuse("sync", "MapAsync has no effect without write_map; set it".into());
        }
        Ok(())
    }
}

fn round_up(bytes: u64) -> u64 {
    bytes.div_ceil(MAP_STEP_BYTES) * MAP_STEP_BYTES
}

fn round_down(bytes: u64) -> u64 {
    bytes / MAP_STEP_BYTES * MAP_STEP_BYTES
}

/// A database in LMDB. See the [module](self).
#[derive(Debug)]
pub struct LmdbDatabase {
    /// From the root on and without links.
    path: PathBuf,
    options: LmdbOptions,
    access: EnvironmentAccess,
    indexes: Arc<IndexNames>,
    /// Whoever writes, grows the map, compacts or closes.
    turn: Turn,
    /// Held shared by calls that use the environment, alone by who compacts or closes. A writer, which has the turn, uses
    /// a share of the environment instead.
    state: RwLock<State>,
    readers: Arc<Readers>,
    /// Whether a sync failed.
    poisoned: AtomicBool,
    transactions: AtomicU64,
    syncs: AtomicU64,
}

#[derive(Debug)]
enum State {
    Open(Open),
    /// It was closed to be compacted and could not be opened again: the next call tries to.
    Lapsed,
    Closed,
}

/// An environment and its tables, the main one first.
#[derive(Debug, Clone)]
struct Open {
    environment: Environment,
    tables: Arc<[EnvironmentTable]>,
}

/// The snapshots of this database, by when they were made.
#[derive(Debug, Default)]
struct Readers(Mutex<(u64, BTreeMap<u64, Instant>)>);

impl Readers {
    fn enter(readers: &Arc<Self>) -> ReaderLease {
        let mut guard = lock(&readers.0);
        guard.0 += 1;
        let number = guard.0;
        guard.1.insert(number, Instant::now());
        ReaderLease { readers: Arc::clone(readers), number }
    }

    fn oldest(&self) -> Option<Duration> {
        lock(&self.0).1.first_key_value().map(|(_, since)| since.elapsed())
    }

    fn count(&self) -> usize {
        lock(&self.0).1.len()
    }
}

#[derive(Debug)]
struct ReaderLease {
    readers: Arc<Readers>,
    number: u64,
}

impl Drop for ReaderLease {
    fn drop(&mut self) {
        lock(&self.readers.0).1.remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn back_end_error(call: &'static str, source: impl Into<Source>) -> Error {
    Error::BackEnd { back_end: NAME, call, source: source.into() }
}

fn full(limit: impl Into<String>, source: Option<Source>) -> Error {
    Error::StoreFull { back_end: NAME, limit: limit.into(), source }
}

fn error_of(call: &'static str, failure: Failure) -> Error {
    match failure.kind {
        Kind::MapFull | Kind::NoRoom => full("map, disk or quota", Some(failure.into())),
        Kind::ReadersFull => Error::Busy {
            back_end: NAME,
            what: "all slots of readers are taken; give some up or raise readers_max".into(),
            source: Some(failure.into()),
        },
        Kind::OpenAlready => {
            Error::Locked { back_end: NAME, what: "this process has it open already".into() }
        }
        Kind::Corrupted => Error::Corruption {
            back_end: NAME,
            what: "the file breaks LMDB's rules of pages".into(),
            source: Some(failure.into()),
        },
        Kind::Fatal => Error::Poisoned { back_end: NAME },
        _ => back_end_error(call, failure),
    }
}

fn closed(call: &'static str) -> Error {
    back_end_error(call, "the database is closed")
}

impl LmdbDatabase {
    /// Opens a database; makes it if there is none, and the indexes that it does not have. Cost: a few pages; waits for
    /// another process that writes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for options and names that cannot be; [`Error::Locked`] if this process has it open;
    /// [`Error::Corruption`]; [`Error::StoreFull`]; those of the system.
    pub fn open(path: impl AsRef<Path>, indexes: &[&str], options: &LmdbOptions) -> Result<Self> {
        options.check()?;
        let indexes = Arc::new(IndexNames::new(NAME, indexes)?);
        let path = path.as_ref();
        if options.directory {
            std::fs::create_dir_all(path).map_err(|error| back_end_error("mkdir", error))?;
        }
        let path = FILES.canonical(path)?;
        let data = data_path(&path, options.directory);
        let is_new = !FILES.check(&data)?;
        FILES.check(&lock_path(&path, options.directory))?;
        let open = Self::open_environment(&path, &indexes, options)?;
        if is_new && matches!(options.sync, SyncMode::Full | SyncMode::NoMeta) {
            // LMDB syncs what is in the file only.
            sync_folder(&data).map_err(|error| back_end_error("sync the folder", error))?;
            if options.directory {
                sync_folder(&path).map_err(|error| back_end_error("sync the folder", error))?;
            }
        }
        Ok(Self::new(path, options, indexes, open, EnvironmentAccess::Write))
    }

    fn new(
        path: PathBuf,
        options: &LmdbOptions,
        indexes: Arc<IndexNames>,
        open: Open,
        access: EnvironmentAccess,
    ) -> Self {
        Self {
            path,
            options: options.clone(),
            access,
            indexes,
            turn: Turn::default(),
            state: RwLock::new(State::Open(open)),
            readers: Arc::default(),
            poisoned: AtomicBool::new(false),
            transactions: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        }
    }

    /// Opens a database that is there, for reading; writers are [`Error::ReadOnly`]. Other
    /// processes may write meanwhile.
    ///
    /// Where this process can write neither the file of locks nor a new one, on read-only media and
    /// in the directories of other users, snapshots are noted nowhere and nothing is written.
    /// Nobody may write the file then while it is open: the caller sees to that, as by a shared
    /// lock that writers respect.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for options and names that cannot be, and for an index that is not
    /// there; [`Error::Locked`] if this process has it open; [`Error::Corruption`]; those of the
    /// system, also if there is no such file.
    pub fn open_read_only(
        path: impl AsRef<Path>,
        indexes: &[&str],
        options: &LmdbOptions,
    ) -> Result<Self> {
        options.check()?;
        let indexes = Arc::new(IndexNames::new(NAME, indexes)?);
        let path = FILES.canonical(path.as_ref())?;
        let data = data_path(&path, options.directory);
        if !FILES.check(&data)? {
            let error = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(back_end_error("open", error));
        }

        let locks = lock_path(&path, options.directory);
        let can_lock = if FILES.check(&locks)? {
            FILES.can_write(&locks)?
        } else {
            FILES.can_write(data.parent().unwrap_or(Path::new("/")))?
        };
        let access = if can_lock { EnvironmentAccess::Read } else { EnvironmentAccess::ReadAlone };
        let open = Self::open_to_read(&path, &indexes, options, access)?;
        Ok(Self::new(path, options, indexes, open, access))
    }

    fn open_to_read(
        path: &Path,
        indexes: &IndexNames,
        options: &LmdbOptions,
        access: EnvironmentAccess,
    ) -> Result<Open> {
        let environment = Self::environment(path, options, access)?;
        let names = table_names(indexes);
        let found =
            environment.tables(&names).map_err(|failure| error_of("open tables", failure))?;
        let tables: Result<Vec<EnvironmentTable>> = names
            .into_iter()
            .zip(found)
            .map(|(name, table)| {
                let why = "the database has no such table, and is open for reading only".to_owned();
                table.ok_or(Error::Unsupported { back_end: NAME, option: name, why })
            })
            .collect();
        Ok(Open { environment, tables: tables?.into() })
    }

    fn environment(
        path: &Path,
        options: &LmdbOptions,
        access: EnvironmentAccess,
    ) -> Result<Environment> {
        let environment_options = EnvironmentOptions {
            access,
            map_bytes: options.start_bytes() as usize,
            readers_max: options.readers_max,
            tables_max: INDEXES_MAX as u32 + 1,
            directory: options.directory,
            read_ahead: options.read_ahead,
            write_map: options.write_map,
            sync: options.sync,
        };
        Environment::open(path, &environment_options).map_err(|failure| error_of("open", failure))
    }

    fn open_environment(path: &Path, indexes: &IndexNames, options: &LmdbOptions) -> Result<Open> {
        let environment = Self::environment(path, options, EnvironmentAccess::Write)?;
        let names = table_names(indexes);
        let make = || {
            let mut transaction = environment.transaction()?;
            let tables: std::result::Result<Vec<_>, Failure> =
                names.iter().map(|name| transaction.table(name)).collect();
            let tables = tables?;
            transaction.commit()?;
            Ok(tables)
        };
        let tables = loop {
            match make() {
                Ok(tables) => break tables,
                Err(Failure { kind: Kind::MapFull, .. }) => {
                    grow(&environment, options, options.soft_bytes(), None)?;
                }
                Err(failure) => return Err(error_of("open tables", failure)),
            }
        };
        Ok(Open { environment, tables: tables.into() })
    }

    /// How long the oldest snapshot of this database has been alive. What was freed since cannot be used again.
    pub fn oldest_reader(&self) -> Option<Duration> {
        self.readers.oldest()
    }

    /// Bytes of the map now.
    ///
    /// # Errors
    /// [`Error::BackEnd`] if the database is closed.
    pub fn map_bytes(&self) -> Result<u64> {
        self.with_open("map size", |open| Ok(open.environment.map_bytes()))
    }

    /// Writes a copy of the newest state, without free pages, to a new file. Cost: reads what is in use and writes it once;
    /// [`compact`](Database::compact) and [`close`](Database::close) wait for it.
    ///
    /// # Errors
    /// [`Error::StoreFull`], those of the system. There may be a part of the file then.
    pub fn copy_to(&self, file: &Path) -> Result<()> {
        self.with_open("copy", |open| {
            open.environment.copy(file).map_err(|failure| error_of("copy", failure))
        })
    }

    /// Does something with the environment, which stays open meanwhile.
    fn with_open<T>(&self, call: &'static str, act: impl FnOnce(&Open) -> Result<T>) -> Result<T> {
        loop {
            match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
                State::Open(open) => return act(open),
                State::Closed => return Err(closed(call)),
                State::Lapsed => {}
            }
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if matches!(*state, State::Lapsed) {
                *state = self.open_again()?;
            }
        }
    }

    fn open_again(&self) -> Result<State> {
        let Self { path, indexes, options, access, .. } = self;
        let open = match access {
            EnvironmentAccess::Write => Self::open_environment(path, indexes, options),
            _ => Self::open_to_read(path, indexes, options, *access),
        };
        open.map(State::Open)
    }

    fn check_writes(&self) -> Result<()> {
        match self.access {
            EnvironmentAccess::Write => Ok(()),
            _ => Err(Error::ReadOnly { back_end: NAME }),
        }
    }

    fn check_poison(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(Error::Poisoned { back_end: NAME });
        }
        Ok(())
    }

    /// Counts the syncs of a commit.
    fn count_syncs(&self) {
        let syncs = match self.options.sync {
            SyncMode::Full => 2,
            SyncMode::NoMeta => 1,
            SyncMode::MapAsync | SyncMode::None => 0,
        };
        self.syncs.fetch_add(syncs, Ordering::Relaxed);
    }

    /// What a failed sync leaves is unknown.
    fn poison(&self) -> Error {
        self.poisoned.store(true, Ordering::Release);
        Error::Poisoned { back_end: NAME }
    }

    /// Writes a copy without free pages beside the file, packed unless others have tables in it; gives the heads that the file
    /// had before.
    fn copy_compact(&self, environment: &Environment, copy: &Path) -> Result<Vec<u8>> {
        let system = |error: std::io::Error| back_end_error("compact", error);
        match std::fs::remove_file(copy) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(system(error));
            }
            _ => {}
        }
        let lmdb = |failure| error_of("compact", failure);
        let heads = {
            let _writing = environment.transaction().map_err(lmdb)?;
            read_heads(&data_path(&self.path, self.options.directory)).map_err(system)?
        };
        let is_own = |name: &[u8]| name == MAIN.as_bytes() || name.starts_with(INDEX.as_bytes());
        let bytes = environment.used_bytes();
        let full_or = |failure: Failure| match failure.kind {
            // What LMDB makes of a write that was cut short.
            Kind::Other if matches!(environment.has_room(bytes), Ok(false)) => {
                full("disk, quota or size of a file", Some(failure.into()))
            }
            _ => lmdb(failure),
        };
        let packed = environment.copy_packed(copy, is_own);
        let copied = packed.and_then(|done| if done { Ok(()) } else { environment.copy(copy) });
        copied.map_err(full_or)?;
        Ok(heads)
    }

    /// Puts the copy in the place of the file, which this process has closed, if it still has these heads.
    fn replace(&self, copy: &Path, heads: &[u8]) -> Result<()> {
        let system = |error: std::io::Error| back_end_error("compact", error);
        let data = data_path(&self.path, self.options.directory);
        // Every process that has the environment open holds a lock of this file, and one that opens it waits for it.
        let locks = lock_path(&self.path, self.options.directory);
        let locks = File::options().read(true).write(true).open(locks).map_err(system)?;
        rustix::fs::fcntl_lock(&locks, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| busy("another process has it open"))?;
        if read_heads(&data).map_err(system)? != heads {
            return Err(busy("another process has written meanwhile"));
        }
        std::fs::rename(copy, &data).map_err(system)?;
        sync_folder(&data).map_err(system)
    }
}

/// The names that LMDB knows the main table and the indexes by.
fn table_names(indexes: &IndexNames) -> Vec<String> {
    let indexes = indexes.iter().map(|name| format!("{INDEX}{name}"));
    std::iter::once(MAIN.to_owned()).chain(indexes).collect()
}

/// Makes the name of a file durable.
fn sync_folder(file: &Path) -> std::io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

fn busy(what: &str) -> Error {
    Error::Busy { back_end: NAME, what: what.into(), source: None }
}

/// The settings that LMDB tells.
fn settings_of(environment: &Environment) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("map_bytes", environment.map_bytes().to_string()),
        ("used_bytes", environment.used_bytes().to_string()),
        ("readers_max", environment.readers_max().to_string()),
    ];
    if let Ok(flags) = environment.flags() {
        let sync = if flags.contains(EnvFlags::NO_SYNC) {
            "none"
        } else if flags.contains(EnvFlags::MAP_ASYNC) {
            "map-async"
        } else if flags.contains(EnvFlags::NO_META_SYNC) {
            "no-meta"
        } else {
            "full"
        };
        settings.extend([
            ("sync", sync.to_owned()),
            ("write_map", flags.contains(EnvFlags::WRITE_MAP).to_string()),
            ("directory", (!flags.contains(EnvFlags::NO_SUB_DIR)).to_string()),
            ("read_ahead", (!flags.contains(EnvFlags::NO_READ_AHEAD)).to_string()),
        ]);
    }
    settings
}

fn read_heads(data: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut heads = Vec::new();
    File::open(data)?.take(HEADS_BYTES as u64).read_to_end(&mut heads)?;
    Ok(heads)
}

/// Makes the map larger, up to `bytes_max`.
fn grow(
    environment: &Environment,
    options: &LmdbOptions,
    bytes_max: u64,
    oldest_reader: Option<Duration>,
) -> Result<()> {
    let bytes = environment.map_bytes();
    let larger = match options.growth {
        LmdbGrowth::None => bytes_max,
        LmdbGrowth::Double => 2 * bytes,
        LmdbGrowth::Step(step) => round_up(bytes.saturating_add(step)),
    };
    let larger = round_down(larger.min(bytes_max));
    if larger <= bytes {
        let reader = oldest_reader.map_or_else(String::new, |age| {
            format!("; the oldest reader is {age:.1?} old and keeps freed pages from use")
        });
        return Err(full(
            format!("the map has {bytes} bytes, of at most {}{reader}", options.map_bytes_max),
            None,
        ));
    }
    environment.resize(larger).map_err(|failure| error_of("grow the map", failure))
}

impl Database for LmdbDatabase {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        self.with_open("reader", |Open { environment, tables }| {
            let snapshot = match environment.snapshot() {
                Err(Failure { kind: Kind::ReadersFull, .. }) => {
                    environment.free_dead_readers().and_then(|_| environment.snapshot())
                }
                snapshot => snapshot,
            };
            let snapshot = snapshot.map_err(|failure| error_of("reader", failure))?;
            Ok(Box::new(LmdbReader {
                snapshot,
                tables: Arc::clone(tables),
                indexes: Arc::clone(&self.indexes),
                _lease: Readers::enter(&self.readers),
            }) as Box<dyn Reader + Send>)
        })
    }

    /// Waits for the writer of this process or of another one, however long it takes.
    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        self.check_writes()?;
        let turn = self.turn.take(NAME)?;
        self.check_poison()?;
        let open = self.with_open("writer", |open| Ok(open.clone()))?;
        let transaction =
            open.environment.transaction().map_err(|failure| error_of("writer", failure))?;
        Ok(Box::new(LmdbWriter {
            number: transaction.number(),
            transaction: Some(transaction),
            open,
            database: self,
            log: Vec::new(),
            removed: 0,
            changed: false,
            released: false,
            full: None,
            _turn: turn,
        }))
    }

    fn last_commit(&self) -> Option<u64> {
        self.with_open("last commit", |open| Ok(open.environment.last_transaction())).ok()
    }

    fn settle(&self, _receipt: Receipt) -> Result<()> {
        self.with_open("settle", |_| self.check_poison())
    }

    fn sync(&self) -> Result<()> {
        self.check_writes()?;
        self.check_poison()?;
        self.with_open("sync", |open| open.environment.sync().map_err(|_| self.poison()))?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn guarantee(&self) -> Guarantee {
        let (durability, power_loss, text) = match self.options.sync {
            SyncMode::Full => (
                Durability::Each,
                PowerLoss::EveryCommit,
                "LMDB, data and head synced at each commit: every commit survives a loss of power",
            ),
            SyncMode::NoMeta => (
                Durability::Async,
                PowerLoss::Consistent,
                "LMDB with NOMETASYNC: consistent after a loss of power; the last commit may be undone",
            ),
            SyncMode::MapAsync => (
                Durability::None,
                PowerLoss::NoPromise,
                "LMDB with WRITEMAP and MAPASYNC: no sync; pages reach the disk in any order, so a loss of power may \
                 leave nothing that can be read",
            ),
            SyncMode::None => (
                Durability::None,
                PowerLoss::NoPromise,
                "LMDB with NOSYNC: a loss of power may leave nothing that can be read, unless the file system keeps the \
                 order of writes",
            ),
        };
        Guarantee { durability, survives_kill: true, power_loss, text: text.into() }
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("path", self.path.display().to_string()),
            (
                "growth",
                match self.options.growth {
                    LmdbGrowth::None => "none".into(),
                    LmdbGrowth::Double => "double".into(),
                    LmdbGrowth::Step(bytes) => format!("step of {bytes} bytes"),
                },
            ),
            ("map_bytes_max", self.options.map_bytes_max.to_string()),
            ("bytes_written", "not told by LMDB".into()),
        ];
        // What a closed one had is not told.
        let _ = self.with_open("settings", |open| {
            settings.extend(settings_of(&open.environment));
            Ok(())
        });
        settings
    }

    fn counts(&self) -> Counts {
        Counts {
            transactions: self.transactions.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            ..Counts::default()
        }
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.with_open("size", |_| Ok(()))?;
        let directory = self.options.directory;
        let mut bytes = 0;
        for path in [data_path(&self.path, directory), lock_path(&self.path, directory)] {
            match std::fs::metadata(path) {
                Ok(metadata) => bytes += metadata.blocks() * 512,
                // Nobody has made the file of locks of a database that is open without locks.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(back_end_error("stat", error)),
            }
        }
        Ok(bytes)
    }

    /// Replaces the file by a copy without free pages, whose other pages are full. Waits for the writer and for calls that run;
    /// needs the file alone. Whatever fails, the database goes on with the file that it had.
    ///
    /// Cost: reads what is in use, writes it once, one sync.
    ///
    /// # Errors
    /// [`Error::Busy`] while a snapshot of it lives or another process has it open; [`Error::StoreFull`]; those of the system.
    fn compact(&self) -> Result<()> {
        self.check_writes()?;
        let _turn = self.turn.take(NAME)?;
        self.check_poison()?;
        self.with_open("compact", |_| Ok(()))?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let State::Open(open) = &*state else { return Err(closed("compact")) };
        // Another process would take the same name for its copy. LMDB has no lock on this file.
        let data = File::open(data_path(&self.path, self.options.directory));
        let data = data.map_err(|error| back_end_error("compact", error))?;
        rustix::fs::flock(&data, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| busy("another process compacts it"))?;
        let readers = self.readers.count();
        if readers > 0 {
            return Err(busy(&format!("{readers} snapshots live")));
        }
        let copy = with_suffix(&data_path(&self.path, self.options.directory), "-compact");
        let replaced = self.copy_compact(&open.environment, &copy).and_then(|heads| {
            let State::Open(Open { environment, tables }) =
                std::mem::replace(&mut *state, State::Lapsed)
            else {
                return Err(closed("compact"));
            };
            if let Err(environment) = environment.close() {
                *state = State::Open(Open { environment, tables });
                return Err(busy("somebody in this process still uses it"));
            }
            let replaced = self.replace(&copy, &heads);
            // If it cannot be opened now, the next call tries to.
            *state = self.open_again()?;
            replaced
        });
        if replaced.is_err() {
            // Best effort: what is left over is removed the next time.
            let _ = std::fs::remove_file(&copy);
        }
        replaced
    }

    /// Waits for the writer and for calls that run. Snapshots that live go on, and the files are given up with the last of them.
    fn close(&self) -> Result<()> {
        let _turn = self.turn.take(NAME)?;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = State::Closed;
        Ok(())
    }
}

/// Whether a database can have a key.
fn is_key(key: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len())
}

fn limit(entries: usize) -> PageLimit {
    PageLimit { entries, bytes: PAGE_BYTES }
}

struct LmdbReader {
    /// Stands before the lease: when no lease is left no snapshot is.
    snapshot: Snapshot,
    tables: Arc<[EnvironmentTable]>,
    indexes: Arc<IndexNames>,
    _lease: ReaderLease,
}

impl LmdbReader {
    fn table(&self, table: Table<'_>) -> Result<EnvironmentTable> {
        Ok(self.tables[self.indexes.number(table)?])
    }
}

impl Reader for LmdbReader {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.table(table)?;
        if !is_key(key) {
            return Ok(None);
        }
        self.snapshot.get(table, key).map_err(|failure| error_of("get", failure))
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(PagedCursor::new(SnapshotPages(&self.snapshot, self.table(table)?))))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        self.snapshot.len(self.table(table)?).map_err(|failure| error_of("count", failure))
    }
}

struct SnapshotPages<'r>(&'r Snapshot, EnvironmentTable);

impl Pages for SnapshotPages<'_> {
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        self.0
            .page_after(self.1, from, limit(entries))
            .map_err(|failure| error_of("cursor", failure))
    }

    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        self.0
            .page_before(self.1, to, limit(entries))
            .map_err(|failure| error_of("cursor", failure))
    }
}

/// A change of a transaction, to be done again when the map has grown.
struct Change {
    table: EnvironmentTable,
    key: Vec<u8>,
    /// `None` removes.
    value: Option<Vec<u8>>,
}

struct LmdbWriter<'d> {
    /// `None` after a call that failed.
    transaction: Option<Transaction>,
    /// The number that the transaction has: another one means that another process has committed.
    number: u64,
    open: Open,
    database: &'d LmdbDatabase,
    log: Vec<Change>,
    /// Changes of the log that remove.
    removed: usize,
    /// Whether anything has changed.
    changed: bool,
    /// Whether a commit was made to free pages.
    released: bool,
    /// What was full, if that is why there is no transaction.
    full: Option<String>,
    _turn: TurnGuard<'d>,
}

impl Drop for LmdbWriter<'_> {
    fn drop(&mut self) {
        self.transaction = None;
        let soft = self.database.options.soft_bytes();
        let environment = &self.open.environment;
        if environment.map_bytes() > soft && environment.used_bytes() < environment.map_bytes() {
            // What was kept for removals is kept for the next. If it fails there is less of it.
            let _ = environment.resize(soft);
        }
    }
}

impl LmdbWriter<'_> {
    fn table(&self, table: Table<'_>) -> Result<EnvironmentTable> {
        Ok(self.open.tables[self.database.indexes.number(table)?])
    }

    fn transaction(&self) -> Result<&Transaction> {
        self.transaction.as_ref().ok_or_else(|| self.failed())
    }

    fn failed(&self) -> Error {
        match &self.full {
            Some(limit) => full(limit.clone(), None),
            None => back_end_error("transaction", "an earlier call of this writer failed"),
        }
    }

    fn change(&mut self, change: Change) -> Result<()> {
        if self.transaction.is_none() {
            return Err(self.failed());
        }
        self.removed += usize::from(change.value.is_none());
        self.log.push(change);
        match self.apply(self.log.len() - 1) {
            Err(Failure { kind: Kind::MapFull, .. }) => self.grow(),
            Err(failure) => {
                self.transaction = None;
                Err(error_of("write", failure))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Does the changes of the log from one on.
    fn apply(&mut self, first: usize) -> std::result::Result<(), Failure> {
        let Some(transaction) = &mut self.transaction else { return Ok(()) };
        for Change { table, key, value } in &self.log[first..] {
            match value {
                Some(value) => {
                    transaction.put(*table, key, value)?;
                    self.changed = true;
                }
                None => self.changed |= transaction.remove(*table, key)?,
            }
        }
        Ok(())
    }

    /// Takes the transaction back, makes the map larger, and does it again.
    fn grow(&mut self) -> Result<()> {
        let options = &self.database.options;
        let bytes_max = if 2 * self.removed > self.log.len() {
            round_down(options.map_bytes_max)
        } else {
            options.soft_bytes()
        };
        loop {
            self.transaction = None;
            let grown =
                grow(&self.open.environment, options, bytes_max, self.database.readers.oldest());
            if let Err(error) = grown
                && !self.release()
            {
                if let Error::StoreFull { limit, .. } = &error {
                    self.full = Some(limit.clone());
                }
                return Err(error);
            }
            match self.begin_again() {
                Ok(()) => return Ok(()),
                Err(None) => {}
                Err(Some(error)) => return Err(error),
            }
        }
    }

    /// Begins the transaction once more and does its changes; the error is `None` if the map is full.
    fn begin_again(&mut self) -> std::result::Result<(), Option<Error>> {
        let write_error = |failure| Some(error_of("write", failure));
        let transaction = self.open.environment.transaction().map_err(write_error)?;
        if transaction.number() != self.number {
            return Err(Some(busy("another process has committed while there was no room")));
        }
        self.transaction = Some(transaction);
        self.apply(0).map_err(|failure| {
            self.transaction = None;
            if failure.kind == Kind::MapFull { None } else { write_error(failure) }
        })
    }

    /// Commits a transaction that changes nothing, once; returns whether it did. LMDB uses the pages that a transaction has
    /// freed in the second one after it, so without this the first one after a removal would find no room.
    fn release(&mut self) -> bool {
        if std::mem::replace(&mut self.released, true) {
            return false;
        }
        let main = self.open.tables[0];
        // Longer than a key may be.
        let key = [0; KEY_BYTES_MAX + 1];
        let commit = || {
            let mut transaction = self.open.environment.transaction()?;
            if transaction.number() != self.number {
                return Ok(false);
            }
            transaction.put(main, &key, &[])?;
            transaction.remove(main, &key)?;
            transaction.commit()?;
            Ok::<bool, Failure>(true)
        };
        let is_committed = commit().unwrap_or(false);
        if is_committed {
            self.number += 1;
            self.database.count_syncs();
        }
        is_committed
    }

    /// What a failed commit means.
    fn commit_error(&self, failure: Failure) -> Error {
        let bytes: usize = self
            .log
            .iter()
            .map(|change| change.key.len() + change.value.as_ref().map_or(0, Vec::len))
            .sum();
        match failure.kind {
            Kind::NoRoom => full("disk, quota or size of a file", Some(failure.into())),
            Kind::Other => match self.open.environment.has_room(2 * bytes as u64 + (256 << 10)) {
                Ok(false) => full("disk, quota or size of a file", Some(failure.into())),
                _ if matches!(self.database.options.sync, SyncMode::Full | SyncMode::NoMeta) => {
                    self.database.poison()
                }
                _ => back_end_error("commit", failure),
            },
            Kind::Fatal => self.database.poison(),
            _ => error_of("commit", failure),
        }
    }
}

impl Reader for LmdbWriter<'_> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let (table, transaction) = (self.table(table)?, self.transaction()?);
        if !is_key(key) {
            return Ok(None);
        }
        transaction.get(table, key).map_err(|failure| error_of("get", failure))
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let pages = TransactionPages(self.transaction()?, self.table(table)?);
        Ok(Box::new(PagedCursor::new(pages)))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        let table = self.table(table)?;
        self.transaction()?.len(table).map_err(|failure| error_of("count", failure))
    }
}

struct TransactionPages<'w>(&'w Transaction, EnvironmentTable);

impl Pages for TransactionPages<'_> {
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        self.0
            .page_after(self.1, from, limit(entries))
            .map_err(|failure| error_of("cursor", failure))
    }

    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        self.0
            .page_before(self.1, to, limit(entries))
            .map_err(|failure| error_of("cursor", failure))
    }
}

impl Writer for LmdbWriter<'_> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        let table = self.table(table)?;
        check_entry(key, value)?;
        self.change(Change { table, key: key.to_vec(), value: Some(value.to_vec()) })
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        let table = self.table(table)?;
        if !is_key(key) {
            self.transaction()?;
            return Ok(());
        }
        self.change(Change { table, key: key.to_vec(), value: None })
    }

    fn commit(mut self: Box<Self>) -> Result<Receipt> {
        loop {
            let transaction = self.transaction.take().ok_or_else(|| self.failed())?;
            match transaction.commit() {
                Ok(()) => break,
                Err(Failure { kind: Kind::MapFull, .. }) => self.grow()?,
                Err(failure) => {
                    let error = self.commit_error(failure);
                    if !matches!(error, Error::StoreFull { .. }) || !self.release() {
                        return Err(error);
                    }
                    match self.begin_again() {
                        Ok(()) => {}
                        Err(None) => self.grow()?,
                        Err(Some(error)) => return Err(error),
                    }
                }
            }
        }
        if self.changed {
            self.database.count_syncs();
        }
        Ok(Receipt(self.database.transactions.fetch_add(1, Ordering::Relaxed) + 1))
    }
}
