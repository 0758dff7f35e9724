//! Snapshot of a store: a view of each table, all of one commit.

use std::sync::Arc;

use terrane_kv::overlay::snapshot::Snapshot;
use terrane_kv::{Cursor, Entry, Result};

use super::options::error;

/// Views of all tables as of one commit.
pub struct LsmSnapshot(pub(super) Vec<Arc<terrane_lsm::Table>>);

impl Snapshot for LsmSnapshot {
    fn get(&self, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = self.0[table].get(key).map_err(|failure| error("get", failure))?;
        Ok(value_of(found))
    }

    fn get_many(&self, table: usize, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let found = self.0[table].get_many(keys).map_err(|failure| error("get_many", failure))?;
        Ok(found.into_iter().map(value_of).collect())
    }

    fn cursor(&self, table: usize) -> Result<Box<dyn Cursor + '_>> {
        let cursor = self.0[table].cursor().map_err(|failure| error("cursor", failure))?;
        Ok(Box::new(TableCursor(cursor)))
    }

    fn count(&self, table: usize) -> Result<u64> {
        // The engine knows an upper bound only, so the entries are counted one by one.
        let failed = |failure| error("count", failure);
        let mut cursor = self.0[table].cursor().map_err(failed)?;
        let mut count = 0;
        while cursor.next_ref().map_err(failed)?.is_some() {
            count += 1;
        }
        Ok(count)
    }
}

fn value_of(found: terrane_lsm::Lookup) -> Option<Vec<u8>> {
    match found {
        terrane_lsm::Lookup::Found(value) | terrane_lsm::Lookup::FoundWithBlob(value, _) => {
            Some(value.into_vec())
        }
        _ => None,
    }
}

/// Cursor over a view.
struct TableCursor(terrane_lsm::Cursor);

impl Cursor for TableCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.0.seek_to_start();
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.0.seek_to_end();
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.0.seek(key);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        let record = self.0.next().transpose().map_err(|failure| error("next", failure))?;
        Ok(record.map(|record| (record.key, record.value.into_vec())))
    }

    fn prev(&mut self) -> Result<Option<Entry>> {
        let record = self.0.prev().transpose().map_err(|failure| error("prev", failure))?;
        Ok(record.map(|record| (record.key, record.value.into_vec())))
    }
}
