//! Database over a store: opening, commits, and the rest of the contract.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::Disk;
use terrane_kv::{Counts, Database, Durability, Error, Guarantee, Reader, Receipt, Result, Writer};
use terrane_lsm::{NamedTable, PAGE_SIZE, Store, Update};

use super::options::{LsmOptions, NAME, error, table_names};
use super::snapshot::LsmSnapshot;
use crate::overlay::changes::{Changes, Known};
use crate::overlay::engine::{Common, Engine};
use crate::overlay::failure::check_dir;

/// Database in an LSM store: each table is a named table, and a commit is one record of the WAL.
///
/// Cost: `overwrite` and `remove` read nothing; `put`, `delete` and `get` look one key up; `count`
/// scans the table. A commit writes its keys and values once to the WAL, and does its share of
/// compaction and checkpoints; with [`Durability::Each`] it syncs the WAL.
#[derive(Debug)]
pub struct LsmDatabase {
    common: Common,
    engine: Lsm,
    options: LsmOptions,
    dir: PathBuf,
}

#[derive(Debug)]
struct Lsm {
    store: Store,
    tables: Vec<NamedTable>,
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
        let (common, disk) = Common::new(NAME, indexes, options.durability, disk)?;
        let call = check_dir(NAME, disk.as_ref(), dir)?;
        let count = indexes.len() + 1;
        let failed = |failure| error(call, failure);
        let names = table_names(indexes)?;

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

        let options = options.clone();
        let dir = dir.to_owned();
        Ok(Self { common, engine: Lsm { store, tables }, options, dir })
    }
}

impl Lsm {
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

impl Engine for Lsm {
    type Snapshot = LsmSnapshot;

    const WANTS_KNOWN: bool = false;

    fn snapshot(&self) -> Result<LsmSnapshot> {
        let tables: Vec<&NamedTable> = self.tables.iter().collect();
        Ok(LsmSnapshot(self.store.views(&tables).map_err(|failure| error("reader", failure))?))
    }

    fn commit(&self, changes: &[Changes], _known: &[Known]) -> Result<Receipt> {
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
}

impl Database for LsmDatabase {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        self.common.reader(&self.engine)
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        if self.engine.store.is_poisoned() {
            return Err(Error::Poisoned { back_end: NAME });
        }
        self.common.writer(&self.engine)
    }

    fn last_commit(&self) -> Option<u64> {
        Some(self.common.last_commit())
    }

    fn settle(&self, receipt: Receipt) -> Result<()> {
        self.common.check_open("settle")?;
        match self.common.durability() {
            Durability::None | Durability::Buffered => Ok(()),
            Durability::Each | Durability::Group => {
                let settled = self.engine.store.sync_to(receipt.0);
                settled.map_err(|failure| self.engine.error("settle", failure))
            }
        }
    }

    fn sync(&self) -> Result<()> {
        self.common.check_open("sync")?;
        self.common.check_syncs()?;
        self.engine.store.sync().map_err(|failure| self.engine.error("sync", failure))
    }

    fn guarantee(&self) -> Guarantee {
        self.common.guarantee()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let options = &self.options;
        let config = options.table(self.engine.tables.len(), true);
        let mut settings = vec![
            ("path", self.dir.display().to_string()),
            ("durability", options.durability.name().to_owned()),
            ("write_buffer", format!("{:?}", config.effective_write_buffer())),
            ("page_bytes", PAGE_SIZE.to_string()),
            ("compression", "none".to_owned()),
            ("filter", format!("{:?}", options.filter)),
            ("merge_policy", format!("{:?}", options.compaction_policy)),
            ("size_ratio", options.size_ratio.to_string()),
            ("background", options.background.to_string()),
        ];

        settings.extend(options.memory_bytes.map(|bytes| ("memory_bytes", bytes.to_string())));
        settings.extend(options.log_bytes_max.map(|bytes| ("log_bytes_max", bytes.to_string())));

        settings
    }

    fn counts(&self) -> Counts {
        self.common.counts()
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.common.disk_bytes(&self.dir)
    }

    /// Merges each table into one run, and removes all but the smallest segment of the WAL.
    fn compact(&self) -> Result<()> {
        self.common.check_open("compact")?;
        let compacted = self.engine.store.compact(&mut |_, _| {});
        compacted.map_err(|failure| self.engine.error("compact", failure))
    }

    fn close(&self) -> Result<()> {
        if !self.common.close() {
            return Ok(());
        }
        self.engine.store.close().map_err(|failure| self.engine.error("close", failure))
    }
}
