//! SQLite: a table without row numbers, pages of 4 KiB, write-ahead log, no memory map, prepared
//! statements, a connection for each thread that reads. Each connection has a cache of its own, so
//! they share the memory of one. It reads through the page cache.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rusqlite::{Connection, params};

use crate::engine::{About, Batch, Durability, Engine, IoMode, Result, Terms, of};

const NAME: &str = "sqlite";

struct Sqlite {
    path: PathBuf,
    cache: u64,
    each: bool,
    writer: Mutex<Connection>,
    /// Connections that no thread uses now.
    readers: Mutex<Vec<Connection>>,
}

/// Opens the database.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let path = dir.join("peers.sqlite");
    // The connection that writes reads nothing beside the others.
    let cache = terms.cache_buffered() / terms.threads;
    let each = terms.durability == Durability::FsyncEach;
    let writer = connect(&path, cache, each)?;
    writer
        .execute_batch(
            "CREATE TABLE IF NOT EXISTS t (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID",
        )
        .map_err(of(NAME))?;
    let readers = Mutex::default();
    Ok(Box::new(Sqlite { path, cache, each, writer: Mutex::new(writer), readers }))
}

fn connect(path: &Path, cache: u64, each: bool) -> Result<Connection> {
    let connection = Connection::open(path).map_err(of(NAME))?;
    let synchronous = if each { "FULL" } else { "OFF" };
    connection
        .execute_batch(&format!(
            "PRAGMA page_size=4096; PRAGMA journal_mode=WAL; PRAGMA mmap_size=0; \
             PRAGMA synchronous={synchronous}; PRAGMA cache_size=-{};",
            cache / 1024
        ))
        .map_err(of(NAME))?;
    Ok(connection)
}

impl Sqlite {
    fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let idle = self.readers.lock().expect("no thread panics with this lock").pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.path, self.cache, self.each)?,
        };
        let result = read(&connection);
        self.readers.lock().expect("no thread panics with this lock").push(connection);
        result
    }
}

impl Engine for Sqlite {
    fn about(&self) -> About {
        About::new(
            rusqlite::version(),
            IoMode::Buffered,
            [
                ("cache_size", format!("{} for each connection", self.cache)),
                ("journal_mode", "WAL".to_owned()),
                ("synchronous", if self.each { "FULL" } else { "OFF" }.to_owned()),
                ("mmap_size", "0".to_owned()),
                ("table", "WITHOUT ROWID, pages of 4096".to_owned()),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        self.write(batch)
    }

    fn settle(&self) -> Result<()> {
        let writer = self.writer.lock().expect("no thread panics with this lock");
        writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(of(NAME))
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        self.read(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT v FROM t WHERE k = ?1").map_err(of(NAME))?;
            for (position, key) in keys.iter().enumerate() {
                let mut rows = statement.query(params![key]).map_err(of(NAME))?;
                match rows.next().map_err(of(NAME))? {
                    Some(row) => {
                        let value = row.get_ref(0).map_err(of(NAME))?;
                        found(position, Some(value.as_blob().map_err(of(NAME))?))?;
                    }
                    None => found(position, None)?,
                }
            }
            Ok(())
        })
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        let mut writer = self.writer.lock().expect("no thread panics with this lock");
        let transaction = writer.transaction().map_err(of(NAME))?;
        {
            let mut put = transaction
                .prepare_cached("INSERT OR REPLACE INTO t VALUES (?1, ?2)")
                .map_err(of(NAME))?;
            let mut delete =
                transaction.prepare_cached("DELETE FROM t WHERE k = ?1").map_err(of(NAME))?;
            for (key, value) in batch.iter() {
                match value {
                    Some(value) => put.execute(params![key, value]),
                    None => delete.execute(params![key]),
                }
                .map_err(of(NAME))?;
            }
        }
        transaction.commit().map_err(of(NAME))
    }

    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<usize> {
        self.read(|connection| {
            let mut statement = connection
                .prepare_cached("SELECT k, v FROM t WHERE k >= ?1 ORDER BY k LIMIT ?2")
                .map_err(of(NAME))?;
            let mut rows = statement.query(params![from, limit as i64]).map_err(of(NAME))?;
            let mut count = 0;
            while let Some(row) = rows.next().map_err(of(NAME))? {
                let key = row.get_ref(0).map_err(of(NAME))?;
                let value = row.get_ref(1).map_err(of(NAME))?;
                each(key.as_blob().map_err(of(NAME))?, value.as_blob().map_err(of(NAME))?)?;
                count += 1;
            }
            Ok(count)
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.settle()
    }
}
