//! Snapshot of all tables, by their numbers, and the reader that gives them their names.

use std::sync::Arc;

use crate::database::{Cursor, Reader, Result, Table};
use crate::overlay::names::IndexNames;

/// All tables of a database at one moment, by number: 0 is the main table, the indexes follow. The
/// methods are those of [`Reader`], and so are their errors.
pub trait Snapshot: Send {
    /// See [`Reader::get`].
    ///
    /// # Errors
    /// Those of the engine.
    fn get(&self, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// See [`Reader::get_many`].
    ///
    /// # Errors
    /// Those of the engine.
    fn get_many(&self, table: usize, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>>;
    /// See [`Reader::cursor`].
    ///
    /// # Errors
    /// Those of the engine.
    fn cursor(&self, table: usize) -> Result<Box<dyn Cursor + '_>>;
    /// See [`Reader::count`].
    ///
    /// # Errors
    /// Those of the engine.
    fn count(&self, table: usize) -> Result<u64>;
}

/// Reader of a snapshot, by the names of its tables.
pub struct SnapshotReader<S> {
    indexes: Arc<IndexNames>,
    snapshot: S,
}

impl<S> SnapshotReader<S> {
    /// A reader of `snapshot`, whose tables have these names.
    pub fn new(indexes: Arc<IndexNames>, snapshot: S) -> Self {
        Self { indexes, snapshot }
    }
}

impl<S: Snapshot> Reader for SnapshotReader<S> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.snapshot.get(self.indexes.number(table)?, key)
    }

    fn get_many(&self, table: Table<'_>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        self.snapshot.get_many(self.indexes.number(table)?, keys)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        self.snapshot.cursor(self.indexes.number(table)?)
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        self.snapshot.count(self.indexes.number(table)?)
    }
}
