//! Connection to SQLite: its settings, set and read back, and its statements.

use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::types::FromSql;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};
use terrane_kv::overlay::names::IndexNames;
use terrane_kv::overlay::paging::PAGE_BYTES;
use terrane_kv::{Entry, Error, KEY_BYTES_MAX, Result};

use super::error::{NAME, error_of};
use super::options::{AutoVacuum, JournalMode, Reading, SqliteOptions, SqlitePlace, Synchronous};

/// Prepared statements that are kept: all of all tables.
const STATEMENTS_MAX: usize = 256;

/// The statements of one table.
#[derive(Debug)]
pub(super) struct TableStatements {
    name: String,
    create: String,
    get: String,
    put: String,
    remove: String,
    count: String,
    /// Ascending: from the first, from a key, from behind a key.
    after: [String; 3],
    /// Descending: from the last, from a key, from before a key.
    before: [String; 3],
}

impl TableStatements {
    /// Statements of all tables, the main table first.
    pub(super) fn all(prefix: &str, indexes: &IndexNames) -> Arc<[Self]> {
        std::iter::once(format!("{prefix}_main"))
            .chain(indexes.iter().map(|name| format!("{prefix}_index_{name}")))
            .map(Self::new)
            .collect()
    }

    fn new(name: String) -> Self {
        let walk = |bound: &str, order: &str| {
            format!("SELECT key, value FROM \"{name}\" {bound} ORDER BY key {order} LIMIT ?1")
        };
        Self {
            create: format!(
                "CREATE TABLE IF NOT EXISTS \"{name}\" (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL) \
                 STRICT, WITHOUT ROWID"
            ),
            get: format!("SELECT value FROM \"{name}\" WHERE key = ?1"),
            put: format!("REPLACE INTO \"{name}\" (key, value) VALUES (?1, ?2)"),
            remove: format!("DELETE FROM \"{name}\" WHERE key = ?1"),
            count: format!("SELECT count(*) FROM \"{name}\""),
            after: [walk("", "ASC"), walk("WHERE key >= ?2", "ASC"), walk("WHERE key > ?2", "ASC")],
            before: [
                walk("", "DESC"),
                walk("WHERE key <= ?2", "DESC"),
                walk("WHERE key < ?2", "DESC"),
            ],
            name,
        }
    }
}

/// A connection with its statements.
#[derive(Debug)]
pub(super) struct Connected {
    connection: Connection,
    tables: Arc<[TableStatements]>,
}

fn unsupported(option: &str, why: String) -> Error {
    Error::Unsupported { back_end: NAME, option: option.into(), why }
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    Ok((row.get(0)?, row.get(1)?))
}

impl Connected {
    /// Opens a connection and sets its options, each read back. `is_first`: of this database, so
    /// that the file may be new.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an option that did not take effect; those of SQLite.
    pub(super) fn open(
        options: &SqliteOptions,
        tables: &Arc<[TableStatements]>,
        reading: Option<Reading>,
        is_first: bool,
    ) -> Result<Self> {
        let open_error = |error| error_of("open", error);
        let connection = match &options.place {
            SqlitePlace::Memory => Connection::open_in_memory(),
            SqlitePlace::File(path) if reading == Some(Reading::Immutable) => {
                Connection::open_with_flags(immutable_uri(path), open_flags(options, reading))
            }
            SqlitePlace::File(path) => {
                Connection::open_with_flags(path, open_flags(options, reading))
            }
        };

        let connection = connection.map_err(open_error)?;
        // The statements of all tables stay prepared.
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        connection.busy_timeout(options.busy_timeout).map_err(open_error)?;

        let connected = Self { connection, tables: Arc::clone(tables) };
        if reading.is_some() {
            connected.set_options_of_reading(options)?;
            return Ok(connected);
        }

        // Page size and vacuum mode belong to the file, so the first connection sets them.
        if is_first {
            connected.set_options_of_file(options)?;
        }

        connected.set_options(options)?;
        Ok(connected)
    }

    /// Sets options that a file keeps from its creation. Setting them later takes a lock.
    fn set_options_of_file(&self, options: &SqliteOptions) -> Result<()> {
        if let Some(bytes) = options.page_bytes {
            self.set("page_size", bytes)?;
        }
        if let Some(auto_vacuum) = options.auto_vacuum {
            self.set("auto_vacuum", auto_vacuum as i64)?;
        }
        Ok(())
    }

    fn set_options(&self, options: &SqliteOptions) -> Result<()> {
        self.set("journal_mode", options.journal_mode.name())?;
        // SQLite keeps its mode where it cannot set this one, so the answer is checked.
        self.check("journal_mode", &options.journal_mode.name().to_owned())?;
        self.set_checked("synchronous", options.synchronous as i64)?;
        // A negative number counts KiB, a positive one pages.
        self.set_checked("cache_size", -(options.cache_bytes / 1024).cast_signed())?;

        if matches!(options.place, SqlitePlace::File(_)) {
            self.set_checked("mmap_size", options.mmap_bytes.cast_signed())?;
        }

        if let Some(pages) = options.checkpoint_pages {
            self.set_checked("wal_autocheckpoint", i64::from(pages))?;
        }

        if let Some(pages) = options.pages_max {
            self.set_checked("max_page_count", i64::from(pages))?;
        }

        // The bytes of a file may be damaged.
        self.set_checked("cell_size_check", 1)?;
        self.set_checked("trusted_schema", 0)?;
        self.check("busy_timeout", &(options.busy_timeout.as_millis() as u64).cast_signed())?;

        // A file that exists keeps its own size of pages.
        if let Some(bytes) = options.page_bytes {
            self.check("page_size", &i64::from(bytes))?;
        }

        if let Some(auto_vacuum) = options.auto_vacuum {
            self.check("auto_vacuum", &(auto_vacuum as i64))?;
        }

        Ok(())
    }

    /// Sets the options that matter for reading.
    fn set_options_of_reading(&self, options: &SqliteOptions) -> Result<()> {
        self.set_checked("cache_size", -(options.cache_bytes / 1024).cast_signed())?;
        self.set_checked("mmap_size", options.mmap_bytes.cast_signed())?;
        self.set_checked("cell_size_check", 1)?;
        self.set_checked("trusted_schema", 0)
    }

    /// Findings of SQLite in the file, one a line.
    ///
    /// # Errors
    /// Those of SQLite.
    pub(super) fn integrity(&self) -> Result<Vec<String>> {
        let check = || -> rusqlite::Result<Vec<String>> {
            let mut statement = self.connection.prepare("PRAGMA integrity_check(1000)")?;
            let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
            lines.filter(|line| !matches!(line, Ok(line) if line == "ok")).collect()
        };
        check().map_err(|error| error_of("check", error))
    }

    fn set(&self, pragma: &str, value: impl rusqlite::ToSql) -> Result<()> {
        self.connection
            .pragma_update(None, pragma, value)
            .map_err(|error| error_of("pragma", error))
    }

    fn set_checked(&self, pragma: &str, value: i64) -> Result<()> {
        self.set(pragma, value)?;
        self.check(pragma, &value)
    }

    fn check<T: FromSql + PartialEq + std::fmt::Display>(
        &self,
        pragma: &str,
        value: &T,
    ) -> Result<()> {
        // SQLite passes over a value that it cannot take.
        let effective: T = self.pragma(pragma)?;
        if effective != *value {
            return Err(unsupported(
                pragma,
                format!("{value} was asked for and {effective} is what this database has"),
            ));
        }
        Ok(())
    }

    /// The value of a setting.
    ///
    /// # Errors
    /// Those of SQLite.
    pub(super) fn pragma<T: FromSql>(&self, pragma: &str) -> Result<T> {
        self.connection
            .pragma_query_value(None, pragma, |row| row.get(0))
            .map_err(|error| error_of("pragma", error))
    }

    /// Looks whether all tables are there with our columns.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if one is not; those of SQLite.
    pub(super) fn check_tables(&self) -> Result<()> {
        self.tables.iter().try_for_each(|table| self.check_table(table))
    }

    fn check_table(&self, table: &TableStatements) -> Result<()> {
        let shape: Option<String> = self
            .connection
            .query_row(
                "SELECT group_concat(name || ':' || type || ':' || pk, ',') FROM pragma_table_info(?1)",
                [&table.name],
                |row| row.get(0),
            )
            .map_err(|error| error_of("open tables", error))?;

        // Another program's table of this name must not be written to.
        if shape.as_deref() != Some("key:BLOB:1,value:BLOB:0") {
            let found = if shape.is_some() { "a table of other columns" } else { "no table" };
            let why =
                format!("the file has {found} of the name {}; take another prefix", table.name);
            return Err(unsupported("table_prefix", why));
        }

        Ok(())
    }

    /// Makes tables that are not there, and looks whether those that are have our columns.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if they have not; those of SQLite.
    pub(super) fn create_tables(&self) -> Result<()> {
        // All tables come in one transaction, so that a crash leaves all or none of them.
        self.run("open tables", "BEGIN IMMEDIATE")?;
        let created = self.tables.iter().try_for_each(|table| {
            self.run("open tables", &table.create)?;
            self.check_table(table)
        });
        match created.and_then(|()| self.run("open tables", "COMMIT")) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    /// Runs a statement without a result.
    ///
    /// # Errors
    /// Those of SQLite.
    pub(super) fn run(&self, call: &'static str, sql: &str) -> Result<()> {
        let run = || {
            let mut statement = self.connection.prepare_cached(sql)?;
            let mut rows = statement.query([])?;
            // A pragma may give rows, which nobody needs.
            while rows.next()?.is_some() {}
            Ok(())
        };
        run().map_err(|error| error_of(call, error))
    }

    /// Takes the transaction back, if there is one: SQLite does so itself after some errors.
    pub(super) fn roll_back(&self) {
        if !self.connection.is_autocommit() {
            // Fails only if SQLite has rolled back already.
            let _ = self.run("roll back", "ROLLBACK");
        }
    }

    /// Fixes the snapshot of the open transaction, which SQLite takes at the first read.
    ///
    /// # Errors
    /// Those of SQLite.
    pub(super) fn pin(&self) -> Result<()> {
        self.run("reader", "SELECT count(*) FROM sqlite_schema")
    }

    pub(super) fn table_count(&self) -> usize {
        self.tables.len()
    }

    pub(super) fn get(&self, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let get = || {
            let mut statement = self.connection.prepare_cached(&self.tables[table].get)?;
            statement.query_row([key], |row| row.get(0)).optional()
        };
        get().map_err(|error| error_of("get", error))
    }

    pub(super) fn put(&self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        let put = || {
            let mut statement = self.connection.prepare_cached(&self.tables[table].put)?;
            statement.execute([key, value])
        };
        put().map(drop).map_err(|error| error_of("put", error))
    }

    /// Removes a key. Returns whether it was there.
    pub(super) fn remove(&self, table: usize, key: &[u8]) -> Result<bool> {
        let remove = || {
            let mut statement = self.connection.prepare_cached(&self.tables[table].remove)?;
            statement.execute([key])
        };
        remove().map(|rows| rows > 0).map_err(|error| error_of("remove", error))
    }

    pub(super) fn count(&self, table: usize) -> Result<u64> {
        let count = || {
            let mut statement = self.connection.prepare_cached(&self.tables[table].count)?;
            statement.query_row([], |row| row.get(0))
        };
        count().map(i64::cast_unsigned).map_err(|error| error_of("count", error))
    }

    /// A page of entries, ascending, and whether it is the last.
    pub(super) fn after(
        &self,
        table: usize,
        from: Bound<&[u8]>,
        entries: usize,
    ) -> Result<(Vec<Entry>, bool)> {
        self.page(&self.tables[table].after, from, entries)
    }

    /// A page of entries, descending, and whether it is the last.
    pub(super) fn before(
        &self,
        table: usize,
        to: Bound<&[u8]>,
        entries: usize,
    ) -> Result<(Vec<Entry>, bool)> {
        self.page(&self.tables[table].before, to, entries)
    }

    fn page(
        &self,
        statements: &[String; 3],
        bound: Bound<&[u8]>,
        entries: usize,
    ) -> Result<(Vec<Entry>, bool)> {
        let [all, including, excluding] = statements;
        let page = || {
            let limit = (entries as u64).cast_signed();
            let (sql, key) = match bound {
                Bound::Unbounded => (all, None),
                Bound::Included(key) => (including, Some(key)),
                Bound::Excluded(key) => (excluding, Some(key)),
            };

            let mut statement = self.connection.prepare_cached(sql)?;
            let mut rows = match key {
                Some(key) => statement.query((limit, key))?,
                None => statement.query([limit])?,
            };

            let mut page = Vec::new();
            let mut bytes = 0;
            while let Some(row) = rows.next()? {
                let (key, value) = entry(row)?;
                bytes += key.len() + value.len();
                page.push((key, value));
                if bytes >= PAGE_BYTES {
                    return Ok((page, false));
                }
            }

            let is_last = page.len() < entries;
            Ok((page, is_last))
        };

        page().map_err(|error| error_of("cursor", error))
    }

    /// Makes all commits durable, whatever the setting of syncs, by an empty commit with every sync
    /// that SQLite has.
    ///
    /// # Errors
    /// Those of SQLite; [`Error::Busy`] also where readers keep the log of a file that was never
    /// synced.
    pub(super) fn sync(&self, options: &SqliteOptions) -> Result<()> {
        self.set_checked("synchronous", Synchronous::Extra as i64)?;
        let synced = self.run("sync", "BEGIN IMMEDIATE").and_then(|()| {
            let version: i64 = self.pragma("user_version")?;
            // SQLite writes the first page even if the version is the same, so there is a page to
            // sync.
            self.set("user_version", version)?;
            self.run("sync", "COMMIT")?;
            if options.journal_mode == JournalMode::Wal && options.synchronous == Synchronous::Off {
                self.checkpoint()?;
            }
            Ok(())
        });

        self.roll_back();
        let restored = self.set_checked("synchronous", options.synchronous as i64);
        synced.and(restored)
    }

    /// Checkpoints the log into the file, and truncates the log.
    ///
    /// # Errors
    /// [`Error::Busy`] while a reader needs it; those of SQLite.
    pub(super) fn checkpoint(&self) -> Result<()> {
        let busy: i64 = self
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            .map_err(|error| error_of("checkpoint", error))?;

        if busy != 0 {
            return Err(Error::Busy {
                back_end: NAME,
                what: "a reader keeps the log from being taken into the file".into(),
                source: None,
            });
        }

        Ok(())
    }

    /// Gives free pages back to the file system.
    ///
    /// # Errors
    /// Those of SQLite.
    pub(super) fn compact(&self, journal_mode: JournalMode) -> Result<()> {
        match self.pragma::<i64>("auto_vacuum")? {
            vacuum if vacuum == AutoVacuum::Incremental as i64 => {
                self.run("compact", "PRAGMA incremental_vacuum")?;
            }
            vacuum if vacuum == AutoVacuum::Full as i64 => {}
            _ => self.run("compact", "VACUUM")?,
        }

        if journal_mode == JournalMode::Persist {
            // Deletes the journal, which keeps its greatest length otherwise.
            self.set("journal_mode", JournalMode::Delete.name())?;
            self.set("journal_mode", journal_mode.name())?;
            self.check("journal_mode", &journal_mode.name().to_owned())?;
        }

        Ok(())
    }

    /// Closes the connection.
    ///
    /// # Errors
    /// Those of SQLite.
    pub(super) fn close(self) -> Result<()> {
        self.roll_back();
        self.connection.close().map_err(|(_, error)| error_of("close", error))
    }
}

/// URI of a file that nobody changes.
fn immutable_uri(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let name = bytes.iter().fold(String::new(), |name, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => {
            name + &char::from(*byte).to_string()
        }
        _ => name + &format!("%{byte:02X}"),
    });
    format!("file:{name}?immutable=1")
}

fn open_flags(options: &SqliteOptions, reading: Option<Reading>) -> OpenFlags {
    match reading {
        None => {}
        Some(Reading::Shared) => {
            return OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        }
        Some(Reading::Immutable) => {
            return OpenFlags::SQLITE_OPEN_READ_ONLY
                | OpenFlags::SQLITE_OPEN_NO_MUTEX
                | OpenFlags::SQLITE_OPEN_URI;
        }
    }

    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, options.create);
    flags
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn is_key(key: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len())
}
