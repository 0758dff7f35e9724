//! LMDB and SQLite as engines of replays: all tables in one database, which a durable point changes
//! in one transaction.
//!
//! | key of the main table | value                                               |
//! |-----------------------|-----------------------------------------------------|
//! | `00 00 00 00` ‖ name  | a snapshot: number of its table, u32-LE ‖ its label |
//! | table, u32-BE ‖ key   | value                                               |
//!
//! The directory has the files of the database, `database` and others beside it, and `lock`, which
//! the writing process holds: two replays would each write the changes that they have in memory.

use std::path::Path;
use std::sync::Arc;

use terrane::io::files::create_dirs;
use terrane::io::{Disk, EntryKind, LockGuard, RealDisk};
use terrane::kv::{self, Database, Durability, KEY_BYTES_MAX, Reader, VALUE_BYTES_MAX};

use crate::engines::engine::{EngineError, Result};
use crate::engines::pending::{Saved, SingleState, SingleStateEngine, Snapshot, Stored, refused};

/// Name of the database in the directory; names of its files begin with it.
const DATABASE: &str = "database";

/// Name of the file that the writing process locks.
const LOCK: &str = "lock";

/// Bytes of a key of the database before the key of the table.
const KEY_START: usize = 4;

/// Entries that a cursor reads at once, and keys that one transaction removes.
const CHUNK: usize = 4096;

/// Database of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// LMDB.
    #[cfg(feature = "lmdb")]
    Lmdb,
    /// SQLite.
    #[cfg(feature = "sqlite")]
    Sqlite,
}

impl Kind {
    /// Returns the name on the command line and in URLs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "lmdb")]
            Self::Lmdb => "lmdb",
            #[cfg(feature = "sqlite")]
            Self::Sqlite => "sqlite",
        }
    }
}

/// Engine over a database in a directory.
pub type DatabaseTables = SingleStateEngine<Tables>;

/// Tables in a database.
pub struct Tables {
    kind: Kind,
    database: Arc<dyn Database>,
    /// Released behind the database.
    _lock: Box<dyn LockGuard>,
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").field("database", &self.database).finish_non_exhaustive()
    }
}

/// Closes the files of the database with the engine and its tables.
impl Drop for Tables {
    fn drop(&mut self) {
        // Durable points are durable without the close.
        let _ = self.database.close();
    }
}

#[expect(clippy::big_endian_bytes, reason = "so that tables lie one after the other")]
fn stored_key(table: u32, key: &[u8]) -> Vec<u8> {
    [&table.to_be_bytes(), key].concat()
}

fn snapshot_key(name: &str) -> Vec<u8> {
    stored_key(0, name.as_bytes())
}

impl DatabaseTables {
    /// Opens the database in `dir`, or creates it. One process can hold a database at a time.
    ///
    /// # Errors
    /// [`EngineError::Environment`] if another process holds the database or the system refuses a
    /// call; [`EngineError::Refused`] if the directory is something else, which is left as it is.
    pub fn open(kind: Kind, dir: &Path) -> Result<Self> {
        let disk = RealDisk::auto();
        // A directory with other files must not become a store.
        refuse_foreign(disk.as_ref(), kind, dir)?;
        let path = dir.join(DATABASE);
        let Some(path) = path.to_str() else {
            return refused(format!("{}: the path of a database is UTF-8", dir.display()));
        };

        create_dirs(disk.as_ref(), dir).map_err(of_disk)?;
        // The lock keeps out other processes, whatever the database itself allows.
        let lock = disk.lock(&dir.join(LOCK)).map_err(of_disk)?;
        let url = format!("{}:{path}", kind.name());
        let options = kv::OpenOptions::default().durability(Durability::Each);
        let database = options.open(&url, &[]).map_err(of_open)?;

        Self::over(Tables { kind, database, _lock: lock })
    }
}

fn of_disk(error: terrane::io::Error) -> EngineError {
    EngineError::Environment(Box::new(error))
}

fn of_open(error: kv::OpenError) -> EngineError {
    match error {
        kv::OpenError::Database(error) => error.into(),
        error => EngineError::Refused(Box::new(error)),
    }
}

/// Refuses a directory that holds anything but the files of such a database, before anything is
/// written to the directory.
fn refuse_foreign(disk: &dyn Disk, kind: Kind, dir: &Path) -> Result<()> {
    match disk.kind(dir).map_err(of_disk)? {
        None => return Ok(()),
        Some(EntryKind::Directory) => {}
        Some(_) => return refused(format!("{} is not a directory", dir.display())),
    }

    let entries = disk.list(dir).map_err(of_disk)?;
    let is_ours = |name: &str| name == LOCK || name.starts_with(DATABASE);
    match entries.iter().find(|entry| !is_ours(&entry.name)) {
        None => Ok(()),
        Some(entry) => {
            let name = &entry.name;
            let dir = dir.display();
            refused(format!("{dir} is not a store of engine {}: it has {name:?}", kind.name()))
        }
    }
}

impl Tables {
    /// Removes all entries of a table, a bounded number in each transaction.
    fn remove_all(&self, table: u32) -> Result<()> {
        // A table goes in chunks, so that no transaction grows without bound.
        loop {
            let reader = self.database.reader()?;
            let mut stored = StoredEntries::new(reader, table, &[])?;
            let mut keys = Vec::new();
            while keys.len() < CHUNK
                && let Some((key, _)) = stored.next()?
            {
                keys.push(stored_key(table, &key));
            }
            // The reader goes before the writer begins.
            drop(stored);
            if keys.is_empty() {
                return Ok(());
            }

            let mut writer = self.database.writer()?;
            for key in &keys {
                writer.remove(kv::Table::Main, key)?;
            }
            self.database.settle(writer.commit()?)?;
        }
    }
}

impl SingleState for Tables {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn key_bytes_max(&self) -> usize {
        KEY_BYTES_MAX - KEY_START
    }

    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }

    fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let reader = self.database.reader()?;
        let mut cursor = reader.cursor(kv::Table::Main)?;
        cursor.seek(&snapshot_key(""))?;

        let mut snapshots = Vec::new();
        while let Some((key, value)) = cursor.next()? {
            // The keys of table 0 are the names of snapshots.
            let Some(name) = key.strip_prefix(&[0; KEY_START]) else { break };
            snapshots.push(Snapshot::decode(name, &value)?);
        }

        Ok(snapshots)
    }

    fn get_many(&self, table: u32, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| stored_key(table, key)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        Ok(self.database.reader()?.get_many(kv::Table::Main, &keys)?)
    }

    fn scan(&self, table: u32, from: &[u8]) -> Result<Box<dyn Stored + '_>> {
        Ok(Box::new(StoredEntries::new(self.database.reader()?, table, from)?))
    }

    fn write(&self, saved: &[Saved], older: &[Snapshot]) -> Result<()> {
        let mut writer = self.database.writer()?;
        // A name that is saved again is written after its removal.
        for older in older {
            writer.remove(kv::Table::Main, &snapshot_key(&older.name))?;
        }
        for saved in saved {
            for (key, value) in &*saved.changes() {
                let key = stored_key(saved.table, key);
                match value {
                    Some(value) => writer.overwrite(kv::Table::Main, &key, value)?,
                    None => writer.remove(kv::Table::Main, &key)?,
                }
            }
            writer.overwrite(kv::Table::Main, &snapshot_key(&saved.name), &saved.value())?;
        }

        Ok(self.database.settle(writer.commit()?)?)
    }

    fn delete(&self, snapshot: &Snapshot) -> Result<()> {
        self.remove_all(snapshot.table)?;

        // The name goes last, so that a repeated call deletes the rest of an interrupted deletion.
        let mut writer = self.database.writer()?;
        writer.remove(kv::Table::Main, &snapshot_key(&snapshot.name))?;
        Ok(self.database.settle(writer.commit()?)?)
    }
}

/// Entries of a table in the database, read by the thousand through one reader.
struct StoredEntries {
    reader: Box<dyn Reader + Send>,
    table: u32,
    /// Key of the database from which the next entries are read.
    from: Vec<u8>,
    read: std::vec::IntoIter<kv::Entry>,
    is_at_end: bool,
}

impl StoredEntries {
    fn new(reader: Box<dyn Reader + Send>, table: u32, from: &[u8]) -> Result<Self> {
        let from = stored_key(table, from);
        let mut entries =
            Self { reader, table, from, read: Vec::new().into_iter(), is_at_end: false };
        entries.refill()?;
        Ok(entries)
    }

    fn refill(&mut self) -> Result<()> {
        // Each chunk takes a cursor of its own, since a cursor borrows the reader.
        let mut cursor = self.reader.cursor(kv::Table::Main)?;
        cursor.seek(&self.from)?;

        // All keys of a table begin with its number.
        let table = stored_key(self.table, &[]);
        let mut read = Vec::new();
        while read.len() < CHUNK {
            match cursor.next()? {
                Some(entry) if entry.0.starts_with(&table) => read.push(entry),
                _ => {
                    self.is_at_end = true;
                    break;
                }
            }
        }

        drop(cursor);
        if let Some((last, _)) = read.last() {
            // The least key above the last one.
            self.from = [last, &[0][..]].concat();
        }
        self.read = read.into_iter();
        Ok(())
    }
}

impl Stored for StoredEntries {
    fn next(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        if self.read.len() == 0 && !self.is_at_end {
            self.refill()?;
        }
        Ok(self.read.next().map(|(key, value)| (key[KEY_START..].to_vec(), value)))
    }

    fn value(&self, _: &[u8], stored: Vec<u8>) -> Result<Vec<u8>> {
        Ok(stored)
    }
}

#[cfg(test)]
mod tests;
