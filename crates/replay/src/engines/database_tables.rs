//! LMDB and SQLite as engines of replays: all tables in one database, changes of a block in memory
//! until a durable point.
//!
//! A database has one state. It therefore holds the last snapshot of each table, and memory holds
//! the changes since. Before the changes take too much memory, the engine asks the replay for a
//! durable point. [`commit`](Engine::commit) writes all snapshots saved since the last one in one
//! transaction: all of them or none.
//!
//! | key of the main table | value                                               |
//! |-----------------------|-----------------------------------------------------|
//! | `00 00 00 00` ‖ name  | a snapshot: number of its table, u32-LE ‖ its label |
//! | table, u32-BE ‖ key   | value                                               |
//!
//! Invariant: a table has one snapshot, its last. Tables are numbered from 1 on.
//!
//! The directory has the files of the database, `database` and others beside it, and `lock`, which
//! the writing process holds: two replays would each write the changes that they have in memory.

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use terrane::io::files::create_dirs;
use terrane::io::{Disk, EntryKind, LockGuard, RealDisk};
use terrane::kv::{self, Database, Durability, KEY_BYTES_MAX, Reader, VALUE_BYTES_MAX};

use crate::engines::engine::{Cause, Change, Cursor, Engine, EngineError, Result, State, Table};
use crate::engines::pending::{self, CHANGES_BYTES_MAX, Changes, Merged, Stored, bytes_of, locked};

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
#[derive(Debug)]
pub struct DatabaseTables {
    kind: Kind,
    shared: Arc<Shared>,
}

struct Shared {
    database: Arc<dyn Database>,
    /// Number of the next table.
    next: AtomicU32,
    /// Memory of changes, in bytes.
    changes_bytes: AtomicUsize,
    saved: Mutex<Vec<Saved>>,
    /// Released behind the database.
    _lock: Box<dyn LockGuard>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("database", &self.database).finish_non_exhaustive()
    }
}

/// Snapshot that waits for the next commit.
#[derive(Debug)]
struct Saved {
    name: String,
    label: String,
    table: u32,
    changes: Arc<Mutex<Changes>>,
}

#[derive(Debug)]
struct DatabaseTable {
    shared: Arc<Shared>,
    number: u32,
    changes: Arc<Mutex<Changes>>,
}

fn corrupt(what: impl Into<Cause>) -> EngineError {
    EngineError::Corrupt(what.into())
}

fn refused<T>(message: String) -> Result<T> {
    Err(EngineError::Refused(message.into()))
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

        let shared = Shared {
            database,
            next: AtomicU32::new(1),
            changes_bytes: AtomicUsize::new(0),
            saved: Mutex::new(Vec::new()),
            _lock: lock,
        };
        // New tables get numbers above those of all snapshots.
        let newest = shared.snapshots()?.into_iter().map(|(_, table, _)| table).max();
        shared.next.store(newest.unwrap_or(0) + 1, Ordering::Relaxed);

        Ok(Self { kind, shared: Arc::new(shared) })
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

impl Shared {
    /// Returns names, tables and labels of all snapshots.
    fn snapshots(&self) -> Result<Vec<(String, u32, String)>> {
        let reader = self.database.reader()?;
        let mut cursor = reader.cursor(kv::Table::Main)?;
        cursor.seek(&snapshot_key(""))?;

        let mut snapshots = Vec::new();
        while let Some((key, value)) = cursor.next()? {
            // The keys of table 0 are the names of snapshots.
            let Some(name) = key.strip_prefix(&[0; KEY_START]) else { break };
            let text = |bytes: &[u8]| {
                String::from_utf8(bytes.to_vec())
                    .map_err(|_| corrupt("a snapshot's name is no text"))
            };
            let (table, label) =
                value.split_first_chunk::<4>().ok_or_else(|| corrupt("a snapshot is cut off"))?;
            snapshots.push((text(name)?, u32::from_le_bytes(*table), text(label)?));
        }

        Ok(snapshots)
    }

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

    /// Writes the changes of saved tables, and their names in place of older names.
    fn write(&self, saved: &[Saved]) -> Result<()> {
        // A table has one snapshot, so older ones go in the same transaction.
        let older = self.snapshots()?;
        let mut writer = self.database.writer()?;
        for Saved { name, label, table, changes } in saved {
            for (key, value) in &*locked(changes) {
                let key = stored_key(*table, key);
                match value {
                    Some(value) => writer.overwrite(kv::Table::Main, &key, value)?,
                    None => writer.remove(kv::Table::Main, &key)?,
                }
            }
            for (older, ..) in older.iter().filter(|(_, of, _)| of == table) {
                writer.remove(kv::Table::Main, &snapshot_key(older))?;
            }
            let value = [&table.to_le_bytes(), label.as_bytes()].concat();
            writer.overwrite(kv::Table::Main, &snapshot_key(name), &value)?;
        }

        Ok(self.database.settle(writer.commit()?)?)
    }
}

impl Engine for DatabaseTables {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn forks_max(&self) -> usize {
        0
    }

    fn keeps_snapshots(&self) -> bool {
        false
    }

    fn key_bytes_max(&self) -> usize {
        KEY_BYTES_MAX - KEY_START
    }

    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }

    fn new_table(&self) -> Result<Box<dyn Table>> {
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(DatabaseTable { shared, number, changes: Arc::default() }))
    }

    fn snapshots(&self) -> Result<Vec<String>> {
        Ok(self.shared.snapshots()?.into_iter().map(|(name, ..)| name).collect())
    }

    fn open(&self, snapshot: &str, label: &str) -> Result<Box<dyn Table>> {
        let found = self.shared.snapshots()?.into_iter().find(|(name, ..)| name == snapshot);
        match found {
            None => refused(format!("there is no snapshot {snapshot:?}")),
            Some((_, _, found)) if found != label => {
                refused(format!("snapshot {snapshot:?} has the label {found:?}, not {label:?}"))
            }
            Some((_, number, _)) => {
                let shared = Arc::clone(&self.shared);
                Ok(Box::new(DatabaseTable { shared, number, changes: Arc::default() }))
            }
        }
    }

    fn delete(&self, snapshot: &str) -> Result<()> {
        let found = self.shared.snapshots()?.into_iter().find(|(name, ..)| name == snapshot);
        let Some((_, table, _)) = found else { return Ok(()) };
        self.shared.remove_all(table)?;

        // The name goes last, so that a repeated call deletes the rest of an interrupted deletion.
        let mut writer = self.shared.database.writer()?;
        writer.remove(kv::Table::Main, &snapshot_key(snapshot))?;
        Ok(self.shared.database.settle(writer.commit()?)?)
    }

    fn commit(&self) -> Result<()> {
        // If saving fails, the next save takes another name.
        let saved = std::mem::take(&mut *locked(&self.shared.saved));
        self.shared.write(&saved)?;

        // Only durable changes leave memory.
        for Saved { changes, .. } in saved {
            let mut changes = locked(&changes);
            self.shared.changes_bytes.fetch_sub(bytes_of(&changes), Ordering::Relaxed);
            changes.clear();
        }

        Ok(())
    }

    fn wants_commit(&self) -> bool {
        self.shared.changes_bytes.load(Ordering::Relaxed) > CHANGES_BYTES_MAX
    }
}

/// Closes the files of the database with the engine; tables are not used behind it.
impl Drop for DatabaseTables {
    fn drop(&mut self) {
        // Durable points are durable without the close.
        let _ = self.shared.database.close();
    }
}

impl State for DatabaseTable {
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let changes = locked(&self.changes);
        let mut found: Vec<Option<Vec<u8>>> =
            keys.iter().map(|&key| changes.get(key).cloned().flatten()).collect();
        let missing: Vec<usize> =
            (0..keys.len()).filter(|&at| !changes.contains_key(keys[at])).collect();
        drop(changes);

        let stored: Vec<Vec<u8>> =
            missing.iter().map(|&at| stored_key(self.number, keys[at])).collect();
        let stored: Vec<&[u8]> = stored.iter().map(Vec::as_slice).collect();
        let values = self.shared.database.reader()?.get_many(kv::Table::Main, &stored)?;
        for (at, value) in missing.into_iter().zip(values) {
            found[at] = value;
        }

        Ok(found)
    }

    fn scan(&self, from: &[u8]) -> Result<Box<dyn Cursor + '_>> {
        let stored = StoredEntries::new(self.shared.database.reader()?, self.number, from)?;
        Ok(Box::new(Merged::new(stored, &locked(&self.changes), from)?))
    }
}

impl Table for DatabaseTable {
    fn update(&mut self, changes: &[Change<'_>]) -> Result<()> {
        let mut held = locked(&self.changes);
        for change in changes {
            let (new, old) = pending::add(&mut held, change);
            self.shared.changes_bytes.fetch_add(new, Ordering::Relaxed);
            self.shared.changes_bytes.fetch_sub(old, Ordering::Relaxed);
        }
        Ok(())
    }

    fn fork(&self) -> Result<Box<dyn Table>> {
        refused("a database has one state and makes no duplicates".to_owned())
    }

    fn save(&self, snapshot: &str, label: &str) -> Result<()> {
        locked(&self.shared.saved).push(Saved {
            name: snapshot.to_owned(),
            label: label.to_owned(),
            table: self.number,
            changes: Arc::clone(&self.changes),
        });
        Ok(())
    }
}

/// Uncommitted changes are dropped with the table.
impl Drop for DatabaseTable {
    fn drop(&mut self) {
        let bytes = bytes_of(&locked(&self.changes));
        self.shared.changes_bytes.fetch_sub(bytes, Ordering::Relaxed);
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
        let mut cursor = self.reader.cursor(kv::Table::Main)?;
        cursor.seek(&self.from)?;

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
