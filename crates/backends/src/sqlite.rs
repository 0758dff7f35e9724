//! A database in an SQLite file, or in SQLite's memory.
//!
//! Tables are `PREFIX_main` and `PREFIX_index_NAME`, of columns `key BLOB PRIMARY KEY` and `value BLOB`, strict and without
//! row numbers. The file may have other tables.
//!
//! Two ways of keeping snapshots, by the journal:
//!
//! * **WAL.** A snapshot has a connection of its own, in a read transaction. Snapshots and the writer wait for nobody.
//! * **Rollback journals and memory.** In these SQLite lets nobody commit while somebody reads. So there is one connection,
//!   which calls take turns with, and what a change replaces is kept in memory for the snapshots that need it
//!   ([`undo`]): a writer of this database never waits for its snapshots, and they see none of what it does. A call of a
//!   snapshot waits for a call of the writer that runs, a commit and its syncs included. While a snapshot lives the file has
//!   SQLite's shared lock, so other programs cannot commit; if one slips in between two transactions of a writer, snapshots
//!   from before it fail with [`Error::Busy`] rather than give its data.
//!
//! [`Error::Busy`] of [`Database::writer`], and of commits in the second way, means that another process holds a lock for
//! longer than the time that was set. Results are told apart by SQLite's codes alone.
//!
//! What settings are worth, as [`guarantee`](Database::guarantee) tells:
//!
//! | journal | synchronous | killed process | loss of power |
//! |---|---|---|---|
//! | WAL | FULL, EXTRA | keeps commits | keeps every commit |
//! | WAL | NORMAL | keeps commits | consistent; commits since the last sync of the log may be lost |
//! | DELETE | EXTRA | keeps commits | keeps every commit |
//! | DELETE | FULL | keeps commits | consistent; the last commit may be undone: the directory is not synced after it |
//! | TRUNCATE, PERSIST | FULL, EXTRA | keeps commits | keeps every commit |
//! | DELETE, TRUNCATE, PERSIST | NORMAL | keeps commits | no promise: some file systems may leave damage |
//! | these four | OFF | keeps commits | no promise |
//! | MEMORY, OFF | any | a kill within a commit may damage the file | no promise |
//!
//! SQLite does not tell how many bytes it reads and writes, so [`Counts`] has none. Syncs are reckoned from the mode: those of
//! a small commit; checkpoints, and transactions that do not fit in the cache, have more.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use terrane_merkle::backend::{
    Counts, Cursor, Database, Durability, Entry, Error, Guarantee, KEY_BYTES_MAX, PowerLoss,
    Reader, Receipt, Result, Table, Writer, check_entry, is_index_name,
};

use crate::names::IndexNames;
use crate::paging::{PagedCursor, Pages};

mod connection;
mod undo;

use connection::{BUSY_TIMEOUT_MAX, Connected, TableStatements, back_end_error};
use undo::{Undo, merged};

const NAME: &str = "sqlite";
/// Connections that are kept for snapshots when none is asked for; Transact's figure.
const POOL_DEFAULT: usize = 10;

/// Where a database is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SqlitePlace {
    /// In a file.
    File(PathBuf),
    /// In memory; gone when it is closed.
    Memory,
}

/// How a commit is made atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JournalMode {
    /// Old pages in a file that is deleted.
    Delete,
    /// Old pages in a file that is cut.
    Truncate,
    /// Old pages in a file whose head is cleared.
    Persist,
    /// Old pages in memory: a kill within a commit may damage the file.
    Memory,
    /// New pages in a log.
    Wal,
    /// Not at all; see [`SqliteOptions::unsafe_journal_off`].
    Off,
}

impl JournalMode {
    fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Truncate => "truncate",
            Self::Persist => "persist",
            Self::Memory => "memory",
            Self::Wal => "wal",
            Self::Off => "off",
        }
    }
}

/// How much SQLite syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Synchronous {
    /// Never.
    Off = 0,
    /// At the critical moments.
    Normal = 1,
    /// At each commit.
    Full = 2,
    /// At each commit, the directory too.
    Extra = 3,
}

/// What becomes of free pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AutoVacuum {
    /// They are used again; [`Database::compact`] copies the whole file.
    None = 0,
    /// Each commit gives them back.
    Full = 1,
    /// [`Database::compact`] gives them back, without a copy.
    Incremental = 2,
}

/// What to do about a log on a network file system, where it does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NetworkWal {
    /// Refuse to open.
    #[default]
    Refuse,
    /// Use [`JournalMode::Delete`] there.
    FallBack,
}

/// How an SQLite database is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteOptions {
    /// Where it is.
    pub place: SqlitePlace,
    /// Whether to make a file that is not there.
    pub create: bool,
    /// What names of tables begin with; as names of indexes are.
    pub table_prefix: String,
    /// Connections that are kept for snapshots; with more snapshots more are opened. `None`: 10, or 1 without a log, where there
    /// is no more than that.
    pub pool: Option<usize>,
    /// Bytes of the file that are read through a memory map.
    pub mmap_bytes: u64,
    /// Bytes of a page, of a file that is made: a power of two, 512 to 65,536. `None`: 4,096, or what the file has.
    pub page_bytes: Option<u32>,
    /// Bytes of the cache of each connection.
    pub cache_bytes: u64,
    /// How a commit is made atomic.
    pub journal_mode: JournalMode,
    /// How much is synced.
    pub synchronous: Synchronous,
    /// How long to wait for locks of other processes.
    pub busy_timeout: Duration,
    /// Pages of the log after which a commit takes it into the file; 0: never. `None`: 1,000.
    pub checkpoint_pages: Option<u32>,
    /// What becomes of free pages, of a file that is made. `None`: [`AutoVacuum::None`], or what the file has.
    pub auto_vacuum: Option<AutoVacuum>,
    /// Pages of the file at most.
    pub pages_max: Option<u32>,
    /// What to do about a log on a network file system.
    pub network_wal: NetworkWal,
    /// Allows [`JournalMode::Off`]: a kill, or an error within a commit, may leave a file that cannot be read.
    pub unsafe_journal_off: bool,
}

impl SqliteOptions {
    /// A file, with a log that is synced at each commit.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self {
            place: SqlitePlace::File(path.into()),
            create: true,
            table_prefix: "terrane".into(),
            pool: None,
            mmap_bytes: 100 << 20,
            page_bytes: None,
            cache_bytes: 8 << 20,
            journal_mode: JournalMode::Wal,
            synchronous: Synchronous::Full,
            busy_timeout: Duration::from_secs(5),
            checkpoint_pages: None,
            auto_vacuum: None,
            pages_max: None,
            network_wal: NetworkWal::Refuse,
            unsafe_journal_off: false,
        }
    }

    /// In memory.
    pub fn memory() -> Self {
        Self {
            place: SqlitePlace::Memory,
            mmap_bytes: 0,
            journal_mode: JournalMode::Memory,
            synchronous: Synchronous::Off,
            ..Self::file("")
        }
    }

    fn is_wal(&self) -> bool {
        self.journal_mode == JournalMode::Wal
    }

    /// The options that take effect, or why some cannot.
    fn resolved(&self) -> Result<Self> {
        let refuse = |option: &str, why: &str| {
            Err(Error::Unsupported { back_end: NAME, option: option.into(), why: why.into() })
        };
        let mut options = self.clone();
        if !is_index_name(&options.table_prefix) {
            return refuse("table_prefix", "take lower-case letters, digits and _, a letter first");
        }
        if options.journal_mode == JournalMode::Off && !options.unsafe_journal_off {
            return refuse(
                "journal_mode",
                "OFF cannot take a transaction back and leaves damage after a kill; set unsafe_journal_off if that will do",
            );
        }
        if options.busy_timeout > BUSY_TIMEOUT_MAX {
            return refuse("busy_timeout", "SQLite counts to 2,147,483,647 milliseconds");
        }
        if !options.busy_timeout.subsec_nanos().is_multiple_of(1_000_000) {
            return refuse("busy_timeout", "SQLite counts milliseconds");
        }
        if !options.cache_bytes.is_multiple_of(1024) || options.cache_bytes / 1024 > i32::MAX as u64
        {
            return refuse("cache_bytes", "SQLite counts KiB, to 2,147,483,647");
        }
        if i64::try_from(options.mmap_bytes).is_err() {
            return refuse("mmap_bytes", "more than SQLite can map");
        }
        match &options.place {
            SqlitePlace::Memory => {
                if options.mmap_bytes != 0 {
                    return refuse("mmap_bytes", "there is no file to map; take 0");
                }
            }
            SqlitePlace::File(path) => {
                let file_system = network_file_system(path)?;
                options.journal_mode =
                    journal_on(options.journal_mode, file_system, options.network_wal)?;
            }
        }
        if !options.is_wal() {
            if options.pool.is_some_and(|pool| pool > 1) {
                return refuse("pool", "without a log there is one connection; take 1 or WAL");
            }
            if options.checkpoint_pages.is_some() {
                return refuse("checkpoint_pages", "without a log there is nothing to take over");
            }
        }
        Ok(options)
    }

    fn guarantee(&self) -> Guarantee {
        let every =
            (Durability::Each, PowerLoss::EveryCommit, "every commit survives a loss of power");
        let nothing = (Durability::None, PowerLoss::NoPromise, "a loss of power may leave damage");
        let memory = matches!(self.place, SqlitePlace::Memory);
        let survives_kill =
            !memory && !matches!(self.journal_mode, JournalMode::Memory | JournalMode::Off);
        let (durability, power_loss, what) = match (self.journal_mode, self.synchronous) {
            _ if memory => (
                Durability::None,
                PowerLoss::NoPromise,
                "the database is in memory and gone with the process",
            ),
            (JournalMode::Memory | JournalMode::Off, synchronous) => (
                match synchronous {
                    Synchronous::Off => Durability::None,
                    _ => Durability::Async,
                },
                PowerLoss::NoPromise,
                "a kill or a loss of power within a commit may leave damage",
            ),
            (_, Synchronous::Off) => nothing,
            (JournalMode::Wal, Synchronous::Normal) => (
                Durability::Async,
                PowerLoss::Consistent,
                "consistent after a loss of power; commits since the last sync of the log may be lost",
            ),
            (JournalMode::Wal, _) => every,
            (_, Synchronous::Normal) => (
                Durability::Async,
                PowerLoss::NoPromise,
                "nearly always consistent after a loss of power; some file systems may leave damage",
            ),
            (JournalMode::Delete, Synchronous::Full) => (
                Durability::Async,
                PowerLoss::Consistent,
                "synced at each commit and consistent after a loss of power; the last commit may be undone, since the \
                 directory is not synced after it (EXTRA does)",
            ),
            (JournalMode::Delete | JournalMode::Truncate | JournalMode::Persist, _) => every,
        };
        let text = format!(
            "SQLite, journal {}, synchronous {}: {what}",
            self.journal_mode.name(),
            format!("{:?}", self.synchronous).to_lowercase()
        );
        Guarantee { durability, survives_kill, power_loss, text }
    }

    /// Syncs of a small commit, as they were seen in traces of system calls.
    fn syncs_per_commit(&self) -> u64 {
        if matches!(self.place, SqlitePlace::Memory) || self.synchronous == Synchronous::Off {
            return 0;
        }
        let is_normal = self.synchronous == Synchronous::Normal;
        match self.journal_mode {
            // The log.
            JournalMode::Wal => u64::from(!is_normal),
            // The file.
            JournalMode::Memory | JournalMode::Off => 1,
            // The journal, the directory with its name, the file; then the journal's head, and the directory without it.
            JournalMode::Delete => match self.synchronous {
                Synchronous::Off | Synchronous::Normal => 3,
                Synchronous::Full => 4,
                Synchronous::Extra => 5,
            },
            // The journal, the file; then the journal's head, and its end.
            JournalMode::Truncate | JournalMode::Persist => {
                if is_normal {
                    2
                } else {
                    4
                }
            }
        }
    }
}

/// The name of the network file system that a path is on, if it is on one.
fn network_file_system(path: &Path) -> Result<Option<&'static str>> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let status = rustix::fs::statfs(folder).map_err(|error| back_end_error("statfs", error))?;
    Ok(network_name(status.f_type as u64))
}

/// The name of a file system that other hosts share, by the number that `statfs` gives for it.
fn network_name(magic: u64) -> Option<&'static str> {
    Some(match magic & 0xFFFF_FFFF {
        0x6969 => "NFS",
        0x517B => "SMB",
        0xFF53_4D42 => "CIFS",
        0xFE53_4D42 => "SMB2",
        0x5346_414F | 0x6B41_4653 => "AFS",
        0x00C3_6400 => "Ceph",
        0x0102_1997 => "9P",
        0x0116_1970 => "GFS2",
        0x7461_636F => "OCFS2",
        0x0BD0_0BD0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x7375_7245 => "Coda",
        0x564C => "NCP",
        _ => return None,
    })
}

/// The journal to use on a file system.
fn journal_on(
    asked: JournalMode,
    network: Option<&'static str>,
    network_wal: NetworkWal,
) -> Result<JournalMode> {
    match (asked, network, network_wal) {
        (JournalMode::Wal, Some(network), NetworkWal::Refuse) => Err(Error::Unsupported {
            back_end: NAME,
            option: "journal_mode".into(),
            why: format!(
                "WAL needs memory that all users of the file share, which {network} does not give; take DELETE, or have \
                 it taken by NetworkWal::FallBack"
            ),
        }),
        (JournalMode::Wal, Some(_), NetworkWal::FallBack) => Ok(JournalMode::Delete),
        _ => Ok(asked),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn closed(call: &'static str) -> Error {
    back_end_error(call, "the database is closed")
}

fn is_key(key: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len())
}

/// A database in SQLite. See the [module](self).
#[derive(Debug)]
pub struct SqliteDatabase {
    /// Those in effect.
    options: SqliteOptions,
    settings: Vec<(&'static str, String)>,
    indexes: Arc<IndexNames>,
    tables: Arc<[TableStatements]>,
    access: Access,
    is_closed: AtomicBool,
    poisoned: AtomicBool,
    /// Number of the last commit.
    commits: AtomicU64,
    syncs: AtomicU64,
}

/// How snapshots are kept.
#[derive(Debug)]
enum Access {
    Wal {
        /// The connection that writes; `None` when closed.
        writer: Mutex<Option<Connected>>,
        pool: Arc<Pool>,
    },
    Single {
        /// Whoever writes, compacts or closes.
        turn: Mutex<()>,
        single: Arc<Mutex<Single>>,
    },
}

impl SqliteDatabase {
    /// Opens a database; makes it if there is none and it may, and the tables that it does not have. Cost: some pages, and
    /// the syncs of a commit.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for options and names that cannot be; [`Error::Busy`]; [`Error::Corruption`];
    /// [`Error::StoreFull`]; those of SQLite.
    pub fn open(indexes: &[&str], options: &SqliteOptions) -> Result<Self> {
        let options = options.resolved()?;
        let indexes = Arc::new(IndexNames::new(NAME, indexes)?);
        let tables = TableStatements::all(&options.table_prefix, &indexes);
        let connected = Connected::open(&options, &tables)?;
        connected.create_tables()?;
        let settings = settings(&connected, &options)?;
        let access = if options.is_wal() {
            let pool = Pool {
                idle: Mutex::new(Some(Vec::new())),
                size: options.pool.unwrap_or(POOL_DEFAULT),
            };
            Access::Wal { writer: Mutex::new(Some(connected)), pool: Arc::new(pool) }
        } else {
            let single = Single::new(connected, &options)?;
            Access::Single { turn: Mutex::new(()), single: Arc::new(Mutex::new(single)) }
        };
        Ok(Self {
            options,
            settings,
            indexes,
            tables,
            access,
            is_closed: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        })
    }

    fn check_poison(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(Error::Poisoned { back_end: NAME });
        }
        Ok(())
    }

    fn check_open(&self, call: &'static str) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed(call));
        }
        Ok(())
    }

    /// Remembers a failed sync.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        if matches!(result, Err(Error::Poisoned { .. })) {
            self.poisoned.store(true, Ordering::Release);
        }
        result
    }

    fn committed(&self, changed: bool) -> Receipt {
        if changed {
            self.syncs.fetch_add(self.options.syncs_per_commit(), Ordering::Relaxed);
        }
        Receipt(self.commits.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Does something with the connection that writes, while nobody writes.
    fn with_writer<T>(
        &self,
        call: &'static str,
        act: impl FnOnce(&Connected) -> Result<T>,
    ) -> Result<T> {
        let result = match &self.access {
            Access::Wal { writer, .. } => act(lock(writer).as_ref().ok_or_else(|| closed(call))?),
            Access::Single { turn, single } => {
                let _turn = lock(turn);
                let mut single = lock(single);
                single.unpark()?;
                let result = act(single.connected(call)?);
                single.park()?;
                result
            }
        };
        self.noted(result)
    }
}

/// The settings in effect, read back.
fn settings(connected: &Connected, options: &SqliteOptions) -> Result<Vec<(&'static str, String)>> {
    let number = |pragma| connected.pragma::<i64>(pragma).map(|value| value.to_string());
    let pool = if options.is_wal() { options.pool.unwrap_or(POOL_DEFAULT) } else { 1 };
    let mut settings = vec![
        (
            "path",
            match &options.place {
                SqlitePlace::File(path) => path.display().to_string(),
                SqlitePlace::Memory => ":memory:".into(),
            },
        ),
        ("table_prefix", options.table_prefix.clone()),
        ("pool", pool.to_string()),
        ("journal_mode", connected.pragma("journal_mode")?),
        (
            "synchronous",
            match connected.pragma("synchronous")? {
                0 => "off".into(),
                1 => "normal".into(),
                2 => "full".into(),
                3 => "extra".into(),
                other => i64::to_string(&other),
            },
        ),
        (
            "auto_vacuum",
            match connected.pragma("auto_vacuum")? {
                0 => "none".into(),
                1 => "full".into(),
                2 => "incremental".into(),
                other => i64::to_string(&other),
            },
        ),
        ("page_bytes", number("page_size")?),
        ("cache_bytes", connected.pragma::<i64>("cache_size")?.saturating_mul(-1024).to_string()),
        ("busy_timeout_ms", number("busy_timeout")?),
        ("pages_max", number("max_page_count")?),
        ("sqlite_version", rusqlite::version().into()),
        ("bytes_written", "not told by SQLite".into()),
        ("syncs", "reckoned from the mode; those of checkpoints are not seen".into()),
    ];
    if matches!(options.place, SqlitePlace::File(_)) {
        settings.push(("mmap_bytes", number("mmap_size")?));
    }
    if options.is_wal() {
        settings.push(("checkpoint_pages", number("wal_autocheckpoint")?));
    }
    Ok(settings)
}

impl Database for SqliteDatabase {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        match &self.access {
            Access::Wal { pool, .. } => {
                let connected = match pool.take()? {
                    Some(connected) => connected,
                    None => Connected::open(&self.options, &self.tables)?,
                };
                connected.run("reader", "BEGIN")?;
                connected.pin()?;
                Ok(Box::new(WalReader {
                    connected: Some(connected),
                    indexes: Arc::clone(&self.indexes),
                    pool: Arc::clone(pool),
                }))
            }
            Access::Single { single, .. } => {
                let snapshot = lock(single).enter()?;
                Ok(Box::new(SingleReader {
                    single: Arc::clone(single),
                    indexes: Arc::clone(&self.indexes),
                    snapshot,
                }))
            }
        }
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        match &self.access {
            Access::Wal { writer, .. } => {
                let connected = lock(writer);
                self.check_poison()?;
                connected
                    .as_ref()
                    .ok_or_else(|| closed("writer"))?
                    .run("writer", "BEGIN IMMEDIATE")?;
                Ok(Box::new(WalWriter { connected, database: self, state: WriterState::new() }))
            }
            Access::Single { turn, single } => {
                let turn = lock(turn);
                self.check_poison()?;
                lock(single).begin()?;
                Ok(Box::new(SingleWriter {
                    single,
                    database: self,
                    state: WriterState::new(),
                    is_open: true,
                    _turn: turn,
                }))
            }
        }
    }

    fn settle(&self, _receipt: Receipt) -> Result<()> {
        self.check_open("settle")?;
        self.check_poison()
    }

    fn sync(&self) -> Result<()> {
        if matches!(self.options.place, SqlitePlace::Memory) {
            return Err(Error::Unsupported {
                back_end: NAME,
                option: "sync".into(),
                why: "the database is in memory; take a file".into(),
            });
        }
        self.check_poison()?;
        self.with_writer("sync", |connected| connected.sync(&self.options))?;
        let synced = SqliteOptions { synchronous: Synchronous::Extra, ..self.options.clone() };
        self.syncs.fetch_add(synced.syncs_per_commit(), Ordering::Relaxed);
        Ok(())
    }

    fn guarantee(&self) -> Guarantee {
        self.options.guarantee()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        self.settings.clone()
    }

    fn counts(&self) -> Counts {
        Counts {
            transactions: self.commits.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            ..Counts::default()
        }
    }

    fn disk_bytes(&self) -> Result<u64> {
        let SqlitePlace::File(path) = &self.options.place else {
            return self.with_writer("size", |connected| {
                let pages: i64 = connected.pragma("page_count")?;
                let page_bytes: i64 = connected.pragma("page_size")?;
                Ok((pages * page_bytes).cast_unsigned())
            });
        };
        self.check_open("size")?;
        let mut bytes = 0;
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let mut name = path.clone().into_os_string();
            name.push(suffix);
            match std::fs::metadata(name) {
                Ok(metadata) => bytes += metadata.blocks() * 512,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(back_end_error("stat", error)),
            }
        }
        Ok(bytes)
    }

    /// Gives free pages back: by [`AutoVacuum::Incremental`] those alone are moved, otherwise the file is copied. Then the log
    /// is taken over and made empty, as far as snapshots let it. Waits for the writer.
    fn compact(&self) -> Result<()> {
        self.check_poison()?;
        self.with_writer("compact", |connected| {
            connected.compact(self.options.journal_mode)?;
            match self.options.is_wal().then(|| connected.checkpoint()) {
                None | Some(Ok(()) | Err(Error::Busy { .. })) => Ok(()),
                Some(Err(error)) => Err(error),
            }
        })
    }

    /// Waits for the writer. In WAL mode snapshots that live go on, and the files are given up with the last of them; otherwise
    /// they fail.
    fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        match &self.access {
            Access::Wal { writer, pool } => {
                let writer = lock(writer).take();
                let idle = lock(&pool.idle).take().unwrap_or_default();
                let closed: Vec<Result<()>> =
                    idle.into_iter().chain(writer).map(Connected::close).collect();
                closed.into_iter().collect()
            }
            Access::Single { turn, single } => {
                let _turn = lock(turn);
                let connected = lock(single).connected.take();
                connected.map_or(Ok(()), Connected::close)
            }
        }
    }
}

/// Connections that read and are not in use.
#[derive(Debug)]
struct Pool {
    /// `None` when the database is closed.
    idle: Mutex<Option<Vec<Connected>>>,
    size: usize,
}

impl Pool {
    fn take(&self) -> Result<Option<Connected>> {
        Ok(lock(&self.idle).as_mut().ok_or_else(|| closed("reader"))?.pop())
    }

    fn give_back(&self, connected: Connected) {
        connected.roll_back();
        if let Some(idle) = lock(&self.idle).as_mut()
            && idle.len() < self.size
        {
            idle.push(connected);
        }
    }
}

struct WalReader {
    /// Taken when it is dropped.
    connected: Option<Connected>,
    indexes: Arc<IndexNames>,
    pool: Arc<Pool>,
}

impl Drop for WalReader {
    fn drop(&mut self) {
        if let Some(connected) = self.connected.take() {
            self.pool.give_back(connected);
        }
    }
}

impl WalReader {
    fn connected(&self) -> Result<&Connected> {
        self.connected.as_ref().ok_or_else(|| closed("read"))
    }
}

impl Reader for WalReader {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.connected()?.get(self.indexes.number(table)?, key)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let pages = ConnectedPages(self.connected()?, self.indexes.number(table)?);
        Ok(Box::new(PagedCursor::new(pages)))
    }

    /// Cost: reads the table.
    fn count(&self, table: Table<'_>) -> Result<u64> {
        self.connected()?.count(self.indexes.number(table)?)
    }
}

/// A table as its connection has it.
struct ConnectedPages<'c>(&'c Connected, usize);

impl Pages for ConnectedPages<'_> {
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        Ok(self.0.after(self.1, from, entries)?.0)
    }

    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        Ok(self.0.before(self.1, to, entries)?.0)
    }
}

/// Whether a transaction has changed anything, and whether it can go on.
struct WriterState {
    changed: bool,
    /// `Some` after a call that failed; what of it still can be told.
    failed: Option<Failed>,
}

#[derive(Clone, Copy)]
enum Failed {
    Full,
    Other,
}

impl WriterState {
    fn new() -> Self {
        Self { changed: false, failed: None }
    }

    fn check(&self) -> Result<()> {
        match self.failed {
            None => Ok(()),
            Some(Failed::Full) => Err(Error::StoreFull {
                back_end: NAME,
                limit: "an earlier call of this writer found no room".into(),
                source: None,
            }),
            Some(Failed::Other) => {
                Err(back_end_error("transaction", "an earlier call of this writer failed"))
            }
        }
    }

    fn fail(&mut self, error: &Error) {
        self.failed = Some(match error {
            Error::StoreFull { .. } => Failed::Full,
            _ => Failed::Other,
        });
    }
}

/// Dropped, it takes its transaction back.
struct WalWriter<'d> {
    connected: MutexGuard<'d, Option<Connected>>,
    database: &'d SqliteDatabase,
    state: WriterState,
}

impl Drop for WalWriter<'_> {
    fn drop(&mut self) {
        if let Some(connected) = self.connected.as_ref() {
            connected.roll_back();
        }
    }
}

impl WalWriter<'_> {
    fn connected(&self) -> Result<&Connected> {
        self.state.check()?;
        self.connected.as_ref().ok_or_else(|| closed("transaction"))
    }

    /// Does a change; if it fails, takes the transaction back.
    fn change(&mut self, change: impl FnOnce(&Connected) -> Result<bool>) -> Result<()> {
        let connected = self.connected()?;
        match change(connected) {
            Ok(changed) => {
                self.state.changed |= changed;
                Ok(())
            }
            Err(error) => {
                connected.roll_back();
                self.state.fail(&error);
                Err(error)
            }
        }
    }
}

impl Reader for WalWriter<'_> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.connected()?.get(self.database.indexes.number(table)?, key)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let pages = ConnectedPages(self.connected()?, self.database.indexes.number(table)?);
        Ok(Box::new(PagedCursor::new(pages)))
    }

    /// Cost: reads the table.
    fn count(&self, table: Table<'_>) -> Result<u64> {
        self.connected()?.count(self.database.indexes.number(table)?)
    }
}

impl Writer for WalWriter<'_> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        let table = self.database.indexes.number(table)?;
        check_entry(key, value)?;
        self.change(|connected| connected.put(table, key, value).map(|()| true))
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        let table = self.database.indexes.number(table)?;
        self.change(|connected| connected.remove(table, key))
    }

    fn commit(self: Box<Self>) -> Result<Receipt> {
        // Dropped after a failure, it takes the transaction back.
        self.database.noted(self.connected()?.run("commit", "COMMIT"))?;
        Ok(self.database.committed(self.state.changed))
    }
}

/// What transaction of SQLite is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Nothing,
    /// One that reads, which keeps other programs from committing.
    Reading,
    /// That of the writer.
    Writing,
}

/// The one connection of a database without a log. See the [module](self).
#[derive(Debug)]
struct Single {
    /// `None` when closed.
    connected: Option<Connected>,
    undo: Undo,
    /// Snapshots that live, by their number, and how many of each.
    readers: BTreeMap<u64, usize>,
    /// The number of the last commit.
    number: u64,
    /// Snapshots below this number are broken: another program has changed the file.
    broken_below: u64,
    /// What SQLite counts up when another connection changes the file.
    data_version: i64,
    held: Held,
    is_memory: bool,
    /// Whether SQLite cannot take a transaction back.
    is_journal_off: bool,
}

impl Single {
    fn new(connected: Connected, options: &SqliteOptions) -> Result<Self> {
        let data_version = connected.pragma("data_version")?;
        Ok(Self {
            connected: Some(connected),
            undo: Undo::default(),
            readers: BTreeMap::new(),
            number: 0,
            broken_below: 0,
            data_version,
            held: Held::Nothing,
            is_memory: matches!(options.place, SqlitePlace::Memory),
            is_journal_off: options.journal_mode == JournalMode::Off,
        })
    }

    fn connected(&self, call: &'static str) -> Result<&Connected> {
        self.connected.as_ref().ok_or_else(|| closed(call))
    }

    /// Notices changes of other programs. A transaction is open.
    fn look_for_others(&mut self) -> Result<()> {
        let data_version = self.connected("transaction")?.pragma("data_version")?;
        if data_version != self.data_version {
            self.data_version = data_version;
            self.number += 1;
            self.broken_below = self.number;
        }
        Ok(())
    }

    /// Opens a read transaction, so that no other program commits while a snapshot lives.
    fn open_park(&mut self) -> Result<()> {
        if self.held != Held::Nothing || self.is_memory {
            return Ok(());
        }
        let connected = self.connected("reader")?;
        connected.run("reader", "BEGIN")?;
        if let Err(error) = connected.pin() {
            connected.roll_back();
            return Err(error);
        }
        self.held = Held::Reading;
        self.look_for_others()
    }

    /// The same if a snapshot lives.
    fn park(&mut self) -> Result<()> {
        if self.readers.is_empty() { Ok(()) } else { self.open_park() }
    }

    fn unpark(&mut self) -> Result<()> {
        if self.held == Held::Reading {
            self.connected("transaction")?.run("transaction", "COMMIT")?;
            self.held = Held::Nothing;
        }
        Ok(())
    }

    /// A snapshot: its number.
    fn enter(&mut self) -> Result<u64> {
        self.connected("reader")?;
        self.open_park()?;
        *self.readers.entry(self.number).or_default() += 1;
        Ok(self.number)
    }

    fn leave(&mut self, snapshot: u64) {
        let was_oldest =
            self.readers.first_key_value().is_some_and(|(&oldest, _)| oldest == snapshot);
        if let Some(count) = self.readers.get_mut(&snapshot) {
            *count -= 1;
            if *count == 0 {
                self.readers.remove(&snapshot);
            }
        }
        if was_oldest && !self.readers.contains_key(&snapshot) {
            self.undo.forget(self.oldest());
        }
        if self.readers.is_empty() {
            // If it fails the next transaction says so.
            let _ = self.unpark();
        }
    }

    /// The oldest number that a snapshot has or could get.
    fn oldest(&self) -> u64 {
        self.readers.first_key_value().map_or(self.number, |(&oldest, _)| oldest)
    }

    fn check_snapshot(&self, snapshot: u64) -> Result<()> {
        if snapshot < self.broken_below {
            return Err(Error::Busy {
                back_end: NAME,
                what: "another program has changed the file under this snapshot; take a new one, or WAL".into(),
                source: None,
            });
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        self.unpark()?;
        if let Err(error) = self.connected("writer")?.run("writer", "BEGIN IMMEDIATE") {
            // The error that counts is the one at hand; without a park other programs are noticed later.
            let _ = self.park();
            return Err(error);
        }
        self.held = Held::Writing;
        self.look_for_others()
    }

    fn take_back(&mut self) -> Result<()> {
        let taken_back = self.take_back_changes();
        self.undo.taken_back();
        self.held = Held::Nothing;
        let parked = self.park();
        taken_back.and(parked)
    }

    fn take_back_changes(&self) -> Result<()> {
        let Some(connected) = &self.connected else { return Ok(()) };
        if !self.is_journal_off {
            connected.roll_back();
            return Ok(());
        }
        let put_back = || {
            for (table, key, old) in self.undo.pending() {
                match old {
                    Some(old) => connected.put(table, key, old)?,
                    None => connected.remove(table, key).map(drop)?,
                }
            }
            connected.run("roll back", "COMMIT")
        };
        put_back().map_err(|_| {
            connected.roll_back();
            Error::Poisoned { back_end: NAME }
        })
    }

    fn commit(&mut self) -> Result<()> {
        if let Err(error) = self.connected("commit")?.run("commit", "COMMIT") {
            self.take_back()?;
            return Err(error);
        }
        self.undo.committed();
        self.number += 1;
        self.held = Held::Nothing;
        self.undo.forget_if_unread(self.readers.is_empty());
        // The commit stands whether this works or not; without a park other programs are noticed later.
        let _ = self.park();
        Ok(())
    }

    /// Changes a key, and notes what it was.
    fn change(&mut self, table: usize, key: &[u8], value: Option<&[u8]>) -> Result<bool> {
        let commit = self.number + 1;
        if !self.undo.has_pending(commit, table, key) {
            let old = self.connected("write")?.get(table, key)?;
            self.undo.note(commit, table, key, old);
        }
        let connected = self.connected("write")?;
        match value {
            Some(value) => connected.put(table, key, value).map(|()| true),
            None => connected.remove(table, key),
        }
    }

    fn get(&self, snapshot: u64, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_snapshot(snapshot)?;
        let connected = self.connected("get")?;
        match self.undo.seen(snapshot, table, key) {
            Some(old) => Ok(old.value.clone()),
            None => connected.get(table, key),
        }
    }

    fn count(&self, snapshot: u64, table: usize) -> Result<u64> {
        self.check_snapshot(snapshot)?;
        let connected = self.connected("count")?;
        let mut count = connected.count(table)?;
        for (key, old) in self.undo.after(snapshot, table, Bound::Unbounded) {
            count += u64::from(old.is_some());
            count -= u64::from(connected.get(table, key)?.is_some());
        }
        Ok(count)
    }

    fn after(
        &self,
        snapshot: u64,
        table: usize,
        from: Bound<&[u8]>,
        entries: usize,
    ) -> Result<Vec<Entry>> {
        self.check_snapshot(snapshot)?;
        let connected = self.connected("cursor")?;
        let mut from = from.map(<[u8]>::to_vec);
        loop {
            let bound = from.as_ref().map(Vec::as_slice);
            let (page, is_last) = connected.after(table, bound, entries)?;
            let behind = page.last().map(|(key, _)| key.clone());
            let olds = self.undo.after(snapshot, table, bound);
            let merged = merged(page, is_last, olds, |a, b| a < b, entries);
            match behind {
                Some(behind) if merged.is_empty() && !is_last => from = Bound::Excluded(behind),
                _ => return Ok(merged),
            }
        }
    }

    fn before(
        &self,
        snapshot: u64,
        table: usize,
        to: Bound<&[u8]>,
        entries: usize,
    ) -> Result<Vec<Entry>> {
        self.check_snapshot(snapshot)?;
        let connected = self.connected("cursor")?;
        let mut to = to.map(<[u8]>::to_vec);
        loop {
            let bound = to.as_ref().map(Vec::as_slice);
            let (page, is_last) = connected.before(table, bound, entries)?;
            let behind = page.last().map(|(key, _)| key.clone());
            let olds = self.undo.before(snapshot, table, bound);
            let merged = merged(page, is_last, olds, |a, b| a > b, entries);
            match behind {
                Some(behind) if merged.is_empty() && !is_last => to = Bound::Excluded(behind),
                _ => return Ok(merged),
            }
        }
    }
}

struct SingleReader {
    single: Arc<Mutex<Single>>,
    indexes: Arc<IndexNames>,
    snapshot: u64,
}

impl Drop for SingleReader {
    fn drop(&mut self) {
        lock(&self.single).leave(self.snapshot);
    }
}

impl Reader for SingleReader {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        lock(&self.single).get(self.snapshot, self.indexes.number(table)?, key)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(PagedCursor::new(SnapshotPages(self, self.indexes.number(table)?))))
    }

    /// Cost: reads the table.
    fn count(&self, table: Table<'_>) -> Result<u64> {
        lock(&self.single).count(self.snapshot, self.indexes.number(table)?)
    }
}

/// A table as a snapshot of the one connection sees it.
struct SnapshotPages<'r>(&'r SingleReader, usize);

impl Pages for SnapshotPages<'_> {
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        lock(&self.0.single).after(self.0.snapshot, self.1, from, entries)
    }

    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        lock(&self.0.single).before(self.0.snapshot, self.1, to, entries)
    }
}

struct SingleWriter<'d> {
    single: &'d Mutex<Single>,
    database: &'d SqliteDatabase,
    state: WriterState,
    /// Whether there is a transaction to take back.
    is_open: bool,
    _turn: MutexGuard<'d, ()>,
}

impl Drop for SingleWriter<'_> {
    fn drop(&mut self) {
        if self.is_open && lock(self.single).take_back().is_err() {
            // Nobody can be told, and what the file has is not known: a journal is OFF, or SQLite broke its word.
            self.database.poisoned.store(true, Ordering::Release);
        }
    }
}

impl SingleWriter<'_> {
    fn change(&mut self, table: Table<'_>, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let table = self.database.indexes.number(table)?;
        self.state.check()?;
        if !is_key(key) {
            return Ok(());
        }
        let mut single = lock(self.single);
        match single.change(table, key, value) {
            Ok(changed) => {
                self.state.changed |= changed;
                Ok(())
            }
            Err(error) => {
                self.state.fail(&error);
                self.is_open = false;
                self.database.noted(single.take_back())?;
                Err(error)
            }
        }
    }
}

impl Reader for SingleWriter<'_> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.database.indexes.number(table)?;
        self.state.check()?;
        lock(self.single).connected("get")?.get(table, key)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let table = self.database.indexes.number(table)?;
        self.state.check()?;
        Ok(Box::new(PagedCursor::new(WriterPages(self, table))))
    }

    /// Cost: reads the table.
    fn count(&self, table: Table<'_>) -> Result<u64> {
        let table = self.database.indexes.number(table)?;
        self.state.check()?;
        lock(self.single).connected("count")?.count(table)
    }
}

/// A table as the writer of the one connection sees it.
struct WriterPages<'w, 'd>(&'w SingleWriter<'d>, usize);

impl Pages for WriterPages<'_, '_> {
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        Ok(lock(self.0.single).connected("cursor")?.after(self.1, from, entries)?.0)
    }

    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        Ok(lock(self.0.single).connected("cursor")?.before(self.1, to, entries)?.0)
    }
}

impl Writer for SingleWriter<'_> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        self.database.indexes.number(table)?;
        check_entry(key, value)?;
        self.change(table, key, Some(value))
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        self.change(table, key, None)
    }

    fn commit(mut self: Box<Self>) -> Result<Receipt> {
        self.state.check()?;
        self.is_open = false;
        self.database.noted(lock(self.single).commit())?;
        Ok(self.database.committed(self.state.changed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_on_a_network_file_system_is_refused_unless_told_to_fall_back() {
        let nfs = network_name(0x6969);
        assert_eq!(nfs, Some("NFS"));
        assert_eq!(network_name(0xEF53), None, "ext4");
        let on = |asked, network, policy| journal_on(asked, network, policy);
        assert!(matches!(
            on(JournalMode::Wal, nfs, NetworkWal::Refuse),
            Err(Error::Unsupported { option, .. }) if option == "journal_mode"
        ));
        let fallen_back = on(JournalMode::Wal, nfs, NetworkWal::FallBack).unwrap();
        assert_eq!(fallen_back, JournalMode::Delete);
        let local = on(JournalMode::Wal, None, NetworkWal::Refuse).unwrap();
        assert_eq!(local, JournalMode::Wal);
        let kept = on(JournalMode::Persist, nfs, NetworkWal::Refuse).unwrap();
        assert_eq!(kept, JournalMode::Persist);
    }
}
