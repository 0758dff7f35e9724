//! Database over SQLite: opening, closing, and the rest of the contract.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use terrane_kv::overlay::names::IndexNames;
use terrane_kv::turn::Turn;
use terrane_kv::{Counts, Database, Error, Guarantee, Reader, Receipt, Result, Writer};

use super::connection::{Connected, TableStatements, lock};
use super::error::{NAME, back_end_error, closed};
use super::inner::Inner;
use super::options::{POOL_DEFAULT, Reading, SqliteOptions, SqlitePlace};
use super::single::Single;
use super::single_handles::{SingleReader, SingleWriter};
use super::wal::{Pool, WalReader, WalWriter};
use super::writer_state::WriterState;
use crate::own_file::with_suffix;

/// Database in SQLite. See the [module](super).
#[derive(Debug)]
pub struct SqliteDatabase {
    inner: Inner,
    settings: Vec<(&'static str, String)>,
    tables: Arc<[TableStatements]>,
    access: Access,
    /// Mode of reading, if the database is open for reading only.
    reading: Option<Reading>,
    /// The right to write, compact or close.
    turn: Turn,
    is_closed: AtomicBool,
}

/// Way of keeping snapshots.
#[derive(Debug)]
enum Access {
    /// A connection for each snapshot; also for read-only databases.
    Wal {
        /// The connection of the writer; `None` when closed.
        writer: Mutex<Option<Connected>>,
        pool: Arc<Pool>,
    },
    Single {
        single: Arc<Mutex<Single>>,
    },
}

impl SqliteDatabase {
    /// Opens a database; creates missing tables, and the file if the options allow it. Cost: some
    /// pages, and the syncs of a commit.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for options and names that cannot be; [`Error::Busy`];
    /// [`Error::Corruption`]; [`Error::StoreFull`]; those of SQLite.
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

        // A database that is only read gets no tables.
        if reading.is_some() {
            connected.check_tables()?;
        } else {
            connected.create_tables()?;
        }

        let settings = settings(&connected, &options)?;
        // Only beside a WAL do readers and the writer not wait for each other.
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
            inner: Inner::new(options, indexes),
            settings,
            tables,
            access,
            reading,
            turn: Turn::default(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Opens an existing database for reading; writers are [`Error::ReadOnly`]. Other processes may
    /// write meanwhile.
    ///
    /// If this process cannot write beside the file and no log lies beside it, SQLite opens the
    /// file as `immutable`. The caller must then keep writers away while the database is open, for
    /// example by a shared lock that writers respect.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); [`Error::Unsupported`] also for a log that cannot be read
    /// without writing beside it: copy the files to a writable directory.
    pub fn open_read_only(indexes: &[&str], options: &SqliteOptions) -> Result<Self> {
        Self::open_as(indexes, options, Some(options.reading()?))
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

    /// Runs `act` on the writer's connection while nobody writes. Its error counts, not one of the
    /// steps after it.
    fn with_writer<T>(
        &self,
        call: &'static str,
        act: impl FnOnce(&Connected) -> Result<T>,
    ) -> Result<T> {
        // The turn waits where SQLite would answer that it is busy.
        let _turn = self.turn.take(NAME)?;
        match &self.access {
            Access::Wal { writer, .. } => {
                self.inner.noted(act(lock(writer).as_ref().ok_or_else(|| closed(call))?))
            }
            Access::Single { single } => {
                let mut single = lock(single);
                self.inner.noted(single.unpark())?;
                let result = self.inner.noted(act(single.connected(call)?));
                // If parking fails, changes of other programs are noticed later.
                let _ = single.park();
                result
            }
        }
    }
}

/// Settings in effect, read back from SQLite.
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
                    None => {
                        Connected::open(&self.inner.options, &self.tables, self.reading, false)?
                    }
                };
                connected.run("reader", "BEGIN")?;
                // SQLite takes the snapshot at the first read, not at `BEGIN`.
                connected.pin()?;
                Ok(Box::new(WalReader {
                    connected: Some(connected),
                    indexes: Arc::clone(&self.inner.indexes),
                    pool: Arc::clone(pool),
                }))
            }
            Access::Single { single } => {
                let snapshot = lock(single).enter()?;
                Ok(Box::new(SingleReader {
                    single: Arc::clone(single),
                    indexes: Arc::clone(&self.inner.indexes),
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
                self.inner.check_poison()?;
                connected
                    .as_ref()
                    .ok_or_else(|| closed("writer"))?
                    .run("writer", "BEGIN IMMEDIATE")?;
                let state = WriterState::new();
                Ok(Box::new(WalWriter { connected, inner: &self.inner, state, _turn: turn }))
            }
            Access::Single { single } => {
                self.inner.check_poison()?;
                lock(single).begin()?;
                Ok(Box::new(SingleWriter {
                    single,
                    inner: &self.inner,
                    state: WriterState::new(),
                    is_open: true,
                    _turn: turn,
                }))
            }
        }
    }

    fn settle(&self, _receipt: Receipt) -> Result<()> {
        self.check_open("settle")?;
        self.inner.check_poison()
    }

    fn sync(&self) -> Result<()> {
        if matches!(self.inner.options.place, SqlitePlace::Memory) {
            return Err(Error::Unsupported {
                back_end: NAME,
                option: "sync".into(),
                why: "the database is in memory; take a file".into(),
            });
        }

        self.check_writes()?;
        self.inner.check_poison()?;
        self.with_writer("sync", |connected| connected.sync(&self.inner.options))?;
        self.inner.count_full_sync();
        Ok(())
    }

    fn guarantee(&self) -> Guarantee {
        self.inner.options.guarantee()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        self.settings.clone()
    }

    fn counts(&self) -> Counts {
        self.inner.counts()
    }

    fn disk_bytes(&self) -> Result<u64> {
        let SqlitePlace::File(path) = &self.inner.options.place else {
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

    /// Gives free pages back: moves only them with [`AutoVacuum::Incremental`](super::AutoVacuum),
    /// else copies the file. Then checkpoints and truncates the log, as far as snapshots allow.
    /// Waits for the writer.
    fn compact(&self) -> Result<()> {
        self.check_writes()?;
        self.inner.check_poison()?;
        self.with_writer("compact", |connected| {
            connected.compact(self.inner.options.journal_mode)?;
            // A reader that keeps the log is no failure of the compaction.
            match self.inner.options.is_wal().then(|| connected.checkpoint()) {
                None | Some(Ok(()) | Err(Error::Busy { .. })) => Ok(()),
                Some(Err(error)) => Err(error),
            }
        })
    }

    /// Waits for the writer. In WAL mode live snapshots go on, and the last one gives the files up.
    /// In other modes they fail.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::JournalMode;

    /// A failed sync was forgotten where what came after it failed as well: another program that
    /// held its lock made the error `Busy`, and the next transaction went on.
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
}
