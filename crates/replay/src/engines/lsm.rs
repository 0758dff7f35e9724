//! Terrane's table engine: a session on disk, one table per table, snapshots as they are.

use std::path::Path;
use std::sync::Arc;

use terrane::io::{Disk, RealDisk};
use terrane::lsm::{KEY_BYTES_MAX, Session, SnapshotName, TableConfig, Update, VALUE_BYTES_MAX};

use crate::engines::engine::{
    Cause, Change, Cursor, Engine, EngineError, Entry, Result, State, Table,
};
use crate::error::Class;
use crate::store;

/// Duplicates alive at once. Each one pins the runs and the write buffer of its time.
const DUPLICATES_MAX: usize = 16;

/// A session in a directory.
#[derive(Debug)]
pub struct Lsm {
    session: Session,
    config: TableConfig,
}

impl Lsm {
    /// Opens the session in `dir`, which is made if it is missing. Only one process can hold it.
    ///
    /// # Errors
    /// [`EngineError::Environment`] if another process holds it or the system does not let us,
    /// [`EngineError::Refused`] if the directory is something else, which is left as it is.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::open_within(dir, None)
    }

    /// Opens like [`open`](Self::open), with a memory budget for all tables and caches together.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); [`EngineError::Refused`] for a budget that is too small.
    pub fn open_within(dir: &Path, memory_budget: Option<u64>) -> Result<Self> {
        let disk: Arc<dyn Disk> = RealDisk::auto();
        let session = store::open_within(&disk, dir, memory_budget)?;
        Ok(Self { session, config: TableConfig::default() })
    }

    /// Opens the session in `dir` of a disk; what is missing of the way to it is made, durably.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_on(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Self> {
        let session = store::open(disk, dir)?;
        Ok(Self { session, config: TableConfig::default() })
    }
}

impl Engine for Lsm {
    fn name(&self) -> &'static str {
        "lsm"
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn forks_max(&self) -> usize {
        DUPLICATES_MAX
    }

    fn key_bytes_max(&self) -> usize {
        KEY_BYTES_MAX
    }

    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }

    fn new_table(&self) -> Result<Box<dyn Table>> {
        Ok(Box::new(LsmTable(self.session.new_table(&self.config)?)))
    }

    fn snapshots(&self) -> Result<Vec<String>> {
        let names = self.session.list_snapshots()?;
        Ok(names.iter().map(|name| name.as_str().to_owned()).collect())
    }

    fn open(&self, snapshot: &str, label: &str) -> Result<Box<dyn Table>> {
        let table = self.session.open_snapshot(&SnapshotName::new(snapshot)?, label)?;
        Ok(Box::new(LsmTable(table)))
    }

    fn delete(&self, snapshot: &str) -> Result<()> {
        Ok(self.session.delete_snapshot(&SnapshotName::new(snapshot)?)?)
    }
}

#[derive(Debug)]
struct LsmTable(terrane::lsm::Table);

impl State for LsmTable {
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let found = self.0.get_many(keys)?.into_iter();
        Ok(found.map(|lookup| lookup.value().map(<[u8]>::to_vec)).collect())
    }

    fn scan(&self, from: &[u8]) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(LsmCursor(self.0.cursor_at(from)?)))
    }
}

impl Table for LsmTable {
    fn update(&mut self, changes: &[Change<'_>]) -> Result<()> {
        let update = |value: Option<_>| value.map_or(Update::Delete, Update::Insert);
        let batch: Vec<_> =
            changes.iter().map(|change| (change.key, update(change.value))).collect();
        Ok(self.0.write_batch(&batch)?)
    }

    fn fork(&self) -> Result<Box<dyn Table>> {
        Ok(Box::new(Self(self.0.fork()?)))
    }

    fn save(&self, snapshot: &str, label: &str) -> Result<()> {
        Ok(self.0.save_snapshot(&SnapshotName::new(snapshot)?, label)?)
    }
}

struct LsmCursor(terrane::lsm::Cursor);

impl Cursor for LsmCursor {
    fn next(&mut self) -> Result<Option<Entry>> {
        let record = self.0.next().transpose()?;
        Ok(record.map(|record| Entry { key: record.key, value: record.value.into_vec() }))
    }
}

impl From<terrane::lsm::Error> for EngineError {
    fn from(error: terrane::lsm::Error) -> Self {
        let class: fn(Cause) -> Self = match Class::from(&error) {
            Class::Check => Self::Corrupt,
            Class::Input => Self::Refused,
            Class::Environment | Class::Interrupted => Self::Environment,
        };
        class(Box::new(error))
    }
}
