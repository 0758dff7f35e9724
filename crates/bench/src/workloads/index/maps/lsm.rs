//! A named table of a Terrane store as a map of the workloads.
//!
//! A batch is a commit that is in the log and not synced, a flush syncs the log. Pages are read
//! past the page cache, as those of the B+tree are.

use std::path::Path;
use std::sync::Arc;

use terrane::io::{CountedDisk, Counts};
use terrane::lsm::{
    Durability, NamedTable, SessionOptions, Store, StoreOptions, TableName, Update,
};

use super::super::map::Map;
use super::super::{Key, Result, Value};
use super::counted_disk;
use crate::workloads::utxo::{Shape, table_config};

/// Entries that are loaded with one commit.
const LOADED_ENTRIES: usize = 10_000;

/// A table, its store, and the disk that counts for it.
#[derive(Debug)]
pub(in super::super) struct LsmMap {
    store: Store,
    table: NamedTable,
    disk: Arc<CountedDisk>,
}

impl LsmMap {
    pub(in super::super) fn create(dir: &Path, memory_budget: u64) -> Result<Self> {
        let disk = counted_disk(dir)?;
        let options = StoreOptions::default()
            .session(SessionOptions::default().create_dir())
            .durability(Durability::Buffered);
        let store = Store::open(disk.clone(), dir, &options)?;
        let config = table_config(Shape::Default, Some(memory_budget));
        let table = store.create_table(&TableName::default(), &config)?;
        Ok(Self { store, table, disk })
    }
}

impl Map for LsmMap {
    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.table.get(key)?.value().map(<[u8]>::to_vec))
    }

    fn replace_many(&mut self, entries: &[(Key, Value)]) -> Result<()> {
        let batch: Vec<_> =
            entries.iter().map(|(key, value)| (key, Update::Insert(value))).collect();
        // `flush` makes all of them durable.
        drop(self.table.write_batch(&batch)?);
        Ok(())
    }

    fn load(&mut self, sorted: &mut dyn Iterator<Item = (Key, Value)>) -> Result<()> {
        loop {
            let part: Vec<(Key, Value)> = sorted.take(LOADED_ENTRIES).collect();
            if part.is_empty() {
                return Ok(self.store.checkpoint()?);
            }
            self.replace_many(&part)?;
        }
    }

    fn remove(&mut self, key: &Key) -> Result<()> {
        drop(self.table.delete(key)?);
        Ok(())
    }

    fn clear(&mut self) -> Result<()> {
        drop(self.table.delete_prefix(&[])?);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.store.sync()?)
    }

    fn entries(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    fn counts(&self) -> Option<Counts> {
        Some(self.disk.counts())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.store.close()?)
    }
}
