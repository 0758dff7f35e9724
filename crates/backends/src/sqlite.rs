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
//!   (module `undo`): a writer of this database never waits for its snapshots, and they see none of what it does. A call of a
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

use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrane_kv::turn::{Turn, TurnGuard};
use terrane_kv::{
    Counts, Cursor, Database, Entry, Error, Guarantee, KEY_BYTES_MAX, Reader, Receipt, Result,
    Table, Writer, check_entry,
};

use crate::names::IndexNames;
use crate::own_file::{OwnFiles, with_suffix};
use crate::paging::{PagedCursor, Pages};

mod connection;
mod options;
mod single;
mod undo;

use connection::{Connected, TableStatements, back_end_error};
use options::{POOL_DEFAULT, Reading};
use single::Single;

pub use options::{AutoVacuum, JournalMode, NetworkWal, SqliteOptions, SqlitePlace, Synchronous};

const NAME: &str = "sqlite";
const FILES: OwnFiles = OwnFiles(NAME);

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
    /// How the file is read, if it is open for reading only.
    reading: Option<Reading>,
    /// The right to write, compact or close.
    turn: Turn,
    is_closed: AtomicBool,
    poisoned: AtomicBool,
    /// Number of the last commit.
    commits: AtomicU64,
    syncs: AtomicU64,
}

/// How snapshots are kept.
#[derive(Debug)]
enum Access {
    /// By connections of their own; also where this database only reads.
    Wal {
        /// The connection that writes; `None` when closed.
        writer: Mutex<Option<Connected>>,
        pool: Arc<Pool>,
    },
    Single {
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
        Self::open_as(indexes, options, None)
    }

    fn open_as(
        indexes: &[&str],
        options: &SqliteOptions,
        reading: Option<Reading>,
    ) -> Result<Self> {
        let options = options.resolved()?;
        let indexes = Arc::new(IndexNames::new(NAME, indexes)?);
        let tables = TableStatements::all(&options.table_prefix, &indexes);
        let connected = Connected::open(&options, &tables, reading, true)?;
        if reading.is_some() {
            connected.check_tables()?;
        } else {
            connected.create_tables()?;
        }
        let settings = settings(&connected, &options)?;
        let access = if options.is_wal() || reading.is_some() {
            let pool = Pool {
                idle: Mutex::new(Some(Vec::new())),
                size: options.pool.unwrap_or(POOL_DEFAULT),
            };
            Access::Wal { writer: Mutex::new(Some(connected)), pool: Arc::new(pool) }
        } else {
            let single = Single::new(connected, &options)?;
            Access::Single { single: Arc::new(Mutex::new(single)) }
        };
        Ok(Self {
            options,
            settings,
            indexes,
            tables,
            access,
            reading,
            turn: Turn::default(),
            is_closed: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        })
    }

    /// Opens a database that is there, for reading; writers are [`Error::ReadOnly`]. Other
    /// processes may write meanwhile.
    ///
    /// Where this process cannot write beside the file, and the file has no log beside it, SQLite
    /// takes the file as one that nobody changes (`immutable`). Nobody may write the file then
    /// while it is open: the caller sees to that, as by a shared lock that writers respect.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Unsupported`] also for a log that cannot be read without
    /// writing beside it: copy the files to a directory that can be written.
    pub fn open_read_only(indexes: &[&str], options: &SqliteOptions) -> Result<Self> {
        Self::open_as(indexes, options, Some(options.reading()?))
    }

    fn check_poison(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(Error::Poisoned { back_end: NAME });
        }
        Ok(())
    }

    fn check_writes(&self) -> Result<()> {
        if self.reading.is_some() {
            return Err(Error::ReadOnly { back_end: NAME });
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

    /// Does something with the connection that writes, while nobody writes. What that says goes before all that comes after.
    fn with_writer<T>(
        &self,
        call: &'static str,
        act: impl FnOnce(&Connected) -> Result<T>,
    ) -> Result<T> {
        let _turn = self.turn.take(NAME)?;
        match &self.access {
            Access::Wal { writer, .. } => {
                self.noted(act(lock(writer).as_ref().ok_or_else(|| closed(call))?))
            }
            Access::Single { single } => {
                let mut single = lock(single);
                self.noted(single.unpark())?;
                let result = self.noted(act(single.connected(call)?));
                // Without a park other programs are noticed later.
                let _ = single.park();
                result
            }
        }
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
                    None => Connected::open(&self.options, &self.tables, self.reading, false)?,
                };
                connected.run("reader", "BEGIN")?;
                connected.pin()?;
                Ok(Box::new(WalReader {
                    connected: Some(connected),
                    indexes: Arc::clone(&self.indexes),
                    pool: Arc::clone(pool),
                }))
            }
            Access::Single { single } => {
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
        self.check_writes()?;
        let turn = self.turn.take(NAME)?;
        match &self.access {
            Access::Wal { writer, .. } => {
                let connected = lock(writer);
                self.check_poison()?;
                connected
                    .as_ref()
                    .ok_or_else(|| closed("writer"))?
                    .run("writer", "BEGIN IMMEDIATE")?;
                let state = WriterState::new();
                Ok(Box::new(WalWriter { connected, database: self, state, _turn: turn }))
            }
            Access::Single { single } => {
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
        self.check_writes()?;
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
            match std::fs::metadata(with_suffix(path, suffix)) {
                Ok(metadata) => bytes += metadata.blocks() * 512,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(back_end_error("stat", error)),
            }
        }
        Ok(bytes)
    }

    /// Findings of SQLite in its file (`PRAGMA integrity_check`). Cost: reads the file.
    fn check(&self) -> Result<Vec<String>> {
        self.with_writer("check", Connected::integrity)
    }

    /// Gives free pages back: by [`AutoVacuum::Incremental`] those alone are moved, otherwise the file is copied. Then the log
    /// is taken over and made empty, as far as snapshots let it. Waits for the writer.
    fn compact(&self) -> Result<()> {
        self.check_writes()?;
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
        let _turn = self.turn.take(NAME)?;
        self.is_closed.store(true, Ordering::Release);
        match &self.access {
            Access::Wal { writer, pool } => {
                let writer = lock(writer).take();
                let idle = lock(&pool.idle).take().unwrap_or_default();
                let closed: Vec<Result<()>> =
                    idle.into_iter().chain(writer).map(Connected::close).collect();
                closed.into_iter().collect()
            }
            Access::Single { single } => {
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
    Poisoned,
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
            Some(Failed::Poisoned) => Err(Error::Poisoned { back_end: NAME }),
            Some(Failed::Other) => {
                Err(back_end_error("transaction", "an earlier call of this writer failed"))
            }
        }
    }

    fn fail(&mut self, error: &Error) {
        self.failed = Some(match error {
            Error::StoreFull { .. } => Failed::Full,
            Error::Poisoned { .. } => Failed::Poisoned,
            _ => Failed::Other,
        });
    }
}

/// Dropped, it takes its transaction back.
struct WalWriter<'d> {
    connected: MutexGuard<'d, Option<Connected>>,
    database: &'d SqliteDatabase,
    state: WriterState,
    _turn: TurnGuard<'d>,
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
                self.database.noted(Err(error))
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
    _turn: TurnGuard<'d>,
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
                // SQLite syncs the journal also when its cache is full.
                let error = self.database.noted(Err(error));
                self.database.noted(single.take_back())?;
                error
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

    /// A failed sync was forgotten where what came after it failed as well: another program that held its lock made the error
    /// `Busy`, and the next transaction went on.
    #[test]
    fn a_failed_sync_is_remembered_whatever_fails_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let options = SqliteOptions {
            journal_mode: JournalMode::Delete,
            busy_timeout: std::time::Duration::from_millis(1),
            ..SqliteOptions::file(&path)
        };
        let database = SqliteDatabase::open(&[], &options).unwrap();
        let other = rusqlite::Connection::open(&path).unwrap();
        let _snapshot = database.reader().unwrap();
        let synced: Result<()> = database.with_writer("sync", |_| {
            other.execute_batch("BEGIN EXCLUSIVE").unwrap();
            Err(Error::Poisoned { back_end: NAME })
        });
        assert!(matches!(synced, Err(Error::Poisoned { .. })), "{synced:?}");
        other.execute_batch("ROLLBACK").unwrap();
        let next = database.writer().map(drop);
        assert!(matches!(next, Err(Error::Poisoned { .. })), "{next:?}");
    }

    #[test]
    fn what_failed_in_a_writer_says_so_to_its_later_calls() {
        let mut state = WriterState::new();
        assert!(state.check().is_ok());
        state.fail(&Error::Poisoned { back_end: NAME });
        assert!(matches!(state.check(), Err(Error::Poisoned { .. })));
    }
}
