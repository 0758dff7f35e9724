//! Database over a store: opening, commits, and the rest of the contract.

use std::path::Path;
use std::sync::Arc;

use terrane_io::Disk;
use terrane_kv::overlay::changes::{Changes, Known};
use terrane_kv::overlay::engine::{Common, Engine};
use terrane_kv::overlay::failure::check_dir;
use terrane_kv::{Error, Receipt, Result};
use terrane_lsm::{NamedTable, PAGE_SIZE, Store, Update};

use super::options::{LsmOptions, NAME, error, table_names};
use super::snapshot::LsmSnapshot;

/// Database in an LSM store: each table is a named table, and a commit is one record of the WAL.
///
/// Cost: `overwrite` and `remove` read nothing; `put`, `delete` and `get` look one key up; `count`
/// scans the table. A commit writes its keys and values once to the WAL, and does its share of
/// compaction and checkpoints; with [`Durability::Each`] it syncs the WAL.
///
/// [`Durability::Each`]: terrane_kv::Durability::Each
#[derive(Debug)]
pub struct LsmDatabase {
    common: Common,
    store: Store,
    tables: Vec<NamedTable>,
    options: LsmOptions,
}

impl LsmDatabase {
    /// Opens the database in a directory with these indexes. Creates the directory (its parent must
    /// exist) and the indexes that are missing; leaves other indexes alone.
    ///
    /// Cost: in proportion to the WAL, as of opening a store.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an option or the name of an index that cannot be;
    /// [`Error::Locked`]; [`Error::Corruption`], also if the directory holds something else;
    /// [`Error::StoreFull`], [`Error::BackEnd`].
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        indexes: &[&str],
        options: &LsmOptions,
    ) -> Result<Self> {
        options.check()?;
        let (common, disk) = Common::new(NAME, disk, dir, indexes, options.durability)?;
        let call = check_dir(NAME, disk.as_ref(), dir)?;
        let count = indexes.len() + 1;
        let failed = |failure| error(call, failure);
        let names = table_names(indexes)?;

        // Checked before anything is created.
        for is_main in [true, false] {
            options.table(count.max(2), is_main).validate().map_err(failed)?;
        }

        let store = Store::open(disk, dir, &options.store()).map_err(failed)?;
        let known = store.tables().map_err(failed)?;

        // Creates missing tables, and adapts existing ones to the options.
        let mut tables = Vec::with_capacity(count);
        for (number, name) in names.iter().enumerate() {
            let config = options.table(count, number == 0);
            let table = match known.iter().find(|table| table.name == *name) {
                None => store.create_table(name, &config).map_err(failed)?,
                Some(info) => {
                    let table = store.table(name).map_err(failed)?;
                    if info.config != config {
                        table.set_config(&config).map_err(failed)?;
                    }
                    table
                }
            };

            tables.push(table);
        }

        Ok(Self { common, store, tables, options: options.clone() })
    }

    /// An error of a write: [`Error::Poisoned`] if a sync failed.
    fn error(&self, call: &'static str, failure: terrane_lsm::Error) -> Error {
        match failure {
            terrane_lsm::Error::Disk(_) if self.store.is_poisoned() => {
                Error::Poisoned { back_end: NAME }
            }
            failure => error(call, failure),
        }
    }
}

impl Engine for LsmDatabase {
    const NAME: &'static str = NAME;

    type Snapshot = LsmSnapshot;

    const WANTS_KNOWN: bool = false;

    fn common(&self) -> &Common {
        &self.common
    }

    fn is_poisoned(&self) -> bool {
        self.store.is_poisoned()
    }

    fn snapshot(&self) -> Result<LsmSnapshot> {
        let tables: Vec<&NamedTable> = self.tables.iter().collect();
        Ok(LsmSnapshot(self.store.views(&tables).map_err(|failure| error("reader", failure))?))
    }

    fn commit(&self, changes: &[Changes], _known: &[Known]) -> Result<Receipt> {
        // One commit takes the changes of all tables, so that a crash keeps all or none of them.
        let mut batches = Vec::with_capacity(changes.len());
        for (table, changes) in self.tables.iter().zip(changes).filter(|(_, c)| !c.is_empty()) {
            let updates = changes
                .iter()
                .map(|(key, value)| (key, value.as_deref().map_or(Update::Delete, Update::Insert)));
            batches.push((table, updates.collect::<Vec<_>>()));
        }
        let batches: Vec<_> =
            batches.iter().map(|(table, updates)| (*table, updates.as_slice())).collect();
        let ticket = self.store.commit(&batches);
        Ok(Receipt(ticket.map_err(|failure| self.error("commit", failure))?.commit()))
    }

    fn sync_to(&self, receipt: Receipt) -> Result<()> {
        self.store.sync_to(receipt.0).map_err(|failure| self.error("settle", failure))
    }

    fn sync_all(&self) -> Result<()> {
        self.store.sync().map_err(|failure| self.error("sync", failure))
    }

    fn own_settings(&self) -> Vec<(&'static str, String)> {
        let options = &self.options;
        let config = options.table(self.tables.len(), true);
        let mut settings = vec![
            ("write_buffer", format!("{:?}", config.effective_write_buffer())),
            ("page_bytes", PAGE_SIZE.to_string()),
            ("compression", "none".to_owned()),
            ("filter", format!("{:?}", options.filter)),
            ("merge_policy", format!("{:?}", options.compaction_policy)),
            ("size_ratio", options.size_ratio.to_string()),
            ("background", options.background.to_string()),
        ];

        settings.extend(options.memory_bytes.map(|bytes| ("memory_bytes", bytes.to_string())));
        let shared = options.shared_memory_bytes;
        settings.extend(shared.map(|bytes| ("shared_memory_bytes", bytes.to_string())));
        settings.extend(options.log_bytes_max.map(|bytes| ("log_bytes_max", bytes.to_string())));

        settings
    }

    /// Merges each table into one run, and removes all but the smallest segment of the WAL.
    fn compact_files(&self) -> Result<()> {
        self.store.compact(&mut |_, _| {}).map_err(|failure| self.error("compact", failure))
    }

    fn close_files(&self) -> Result<()> {
        self.store.close().map_err(|failure| self.error("close", failure))
    }
}
