//! Reader of a snapshot.

use std::sync::Arc;

use terrane_kv::overlay::names::IndexNames;
use terrane_kv::overlay::paging::PagedCursor;
use terrane_kv::{Cursor, Reader, Result, Table};
use terrane_lmdb::{EnvironmentTable, ReadTables as _, Snapshot};

use super::failure::error_of;
use super::pages::{TablePages, is_key};
use super::readers::ReaderLease;

pub(super) struct LmdbReader {
    /// Declared before the lease, so that it is dropped first: without a lease there is no
    /// snapshot.
    pub(super) snapshot: Snapshot,
    pub(super) tables: Arc<[EnvironmentTable]>,
    pub(super) indexes: Arc<IndexNames>,
    pub(super) _lease: ReaderLease,
}

impl LmdbReader {
    fn table(&self, table: Table<'_>) -> Result<EnvironmentTable> {
        Ok(self.tables[self.indexes.number(table)?])
    }
}

impl Reader for LmdbReader {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.table(table)?;
        // LMDB refuses such a key, and no entry has it.
        if !is_key(key) {
            return Ok(None);
        }
        self.snapshot.get(table, key).map_err(|failure| error_of("get", failure))
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(PagedCursor::new(TablePages(&self.snapshot, self.table(table)?))))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        self.snapshot.len(self.table(table)?).map_err(|failure| error_of("count", failure))
    }
}
