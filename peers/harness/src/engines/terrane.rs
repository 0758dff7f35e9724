//! Terrane's tables: one named table of a store, as a user of the crate would have it.
//!
//! Settings: the memory budget of the store, direct reads, and no log where commits need not
//! survive anything.

use std::path::Path;
use std::sync::{Mutex, OnceLock};

use terrane::lsm::{
    DiskCache, Durability as Log, Lookup, NamedTable, Store, StoreLoader, StoreOptions,
    TableConfig, Update,
};

use crate::engine::{About, Batch, Durability, Engine, Error, IoMode, Result, Terms, of};

const NAME: &str = "terrane";
const TABLE: &str = "peers";

struct Terrane {
    store: Store,
    table: OnceLock<NamedTable>,
    loader: Mutex<Option<StoreLoader>>,
    budget: u64,
    log: Log,
}

/// Opens the store.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let log = match terms.durability {
        Durability::None => Log::None,
        Durability::FsyncEach => Log::Each,
    };
    // What is not in the budget: code, stacks, and the workload's own.
    let budget = terms.memory * 3 / 4;
    let options = StoreOptions::default().durability(log).memory_budget(budget).create_dir();
    let store = Store::open_dir(dir, &options).map_err(of(NAME))?;
    let exists = store.tables().map_err(of(NAME))?.iter().any(|info| info.name.as_str() == TABLE);
    let table = OnceLock::new();
    if exists {
        let _ = table.set(store.table(TABLE).map_err(of(NAME))?);
    }
    Ok(Box::new(Terrane { store, table, loader: Mutex::new(None), budget, log }))
}

impl Terrane {
    fn config() -> TableConfig {
        TableConfig::default().disk_cache(DiskCache::None)
    }

    /// The table; a load, or the first open without one, has made it.
    fn table(&self) -> Result<&NamedTable> {
        self.table.get().ok_or_else(|| Error::Options("nothing was loaded".to_owned()))
    }
}

impl Engine for Terrane {
    fn about(&self) -> About {
        About::new(
            env!("CARGO_PKG_VERSION"),
            IoMode::Direct,
            [
                ("memory_budget", self.budget.to_string()),
                ("disk_cache", "none".to_owned()),
                ("durability", self.log.name().to_owned()),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        let mut loader = self.loader.lock().expect("no thread panics with this lock");
        if loader.is_none() {
            *loader = Some(self.store.bulk_load(TABLE, &Self::config()).map_err(of(NAME))?);
        }
        let Some(loader) = loader.as_mut() else { return Ok(()) };
        for (key, value) in batch.iter() {
            loader.insert(key, value.unwrap_or_default()).map_err(of(NAME))?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        let loader = self.loader.lock().expect("no thread panics with this lock").take();
        if let Some(loader) = loader {
            let table = loader.finish().map_err(of(NAME))?;
            let _ = self.table.set(table);
        }
        self.store.checkpoint().map_err(of(NAME))
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let values = self.table()?.get_many(keys).map_err(of(NAME))?;
        for (position, value) in values.iter().enumerate() {
            match value {
                Lookup::Found(value) => found(position, Some(value))?,
                _ => found(position, None)?,
            }
        }
        Ok(())
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        let updates: Vec<_> = batch
            .iter()
            .map(|(key, value)| (key, value.map_or(Update::Delete, Update::Insert)))
            .collect();
        let ticket = self.table()?.write_batch(&updates).map_err(of(NAME))?;
        // Without a log, waiting would be a checkpoint, which no engine of that class does.
        if self.log == Log::None { Ok(()) } else { ticket.wait().map_err(of(NAME)) }
    }

    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<usize> {
        let view = self.table()?.view().map_err(of(NAME))?;
        let mut cursor = view.range(from..).map_err(of(NAME))?;
        let mut count = 0;
        while count < limit
            && let Some(record) = cursor.next_ref().map_err(of(NAME))?
        {
            each(record.key, record.value)?;
            count += 1;
        }
        Ok(count)
    }

    fn close(self: Box<Self>) -> Result<()> {
        // Without a log, a store keeps what the last checkpoint had.
        self.store.checkpoint().map_err(of(NAME))?;
        self.store.close().map_err(of(NAME))
    }
}
