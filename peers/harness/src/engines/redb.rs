//! redb: its cache is half of the memory, since it reads through the page cache; one transaction a
//! commit.
//!
//! Without durability, `Durability::None`: such commits are lost until one with a sync follows, as
//! the class allows; every 64th is `Immediate`, because freed pages are only used again after one.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::{Database, Durability as Sync, ReadableDatabase, TableDefinition};

use crate::engine::{About, Batch, Durability, Engine, IoMode, Result, Terms, of};

const NAME: &str = "redb";
const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("peers");

/// Commits between two that are synced, where none needs to be.
const UNSYNCED: u64 = 64;

struct Redb {
    db: Database,
    each: bool,
    cache: u64,
    commits: AtomicU64,
}

/// Opens the database.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let cache = terms.cache_buffered();
    let db = Database::builder()
        .set_cache_size(cache as usize)
        .create(dir.join("peers.redb"))
        .map_err(of(NAME))?;
    let each = terms.durability == Durability::FsyncEach;
    let engine = Redb { db, each, cache, commits: AtomicU64::new(0) };
    engine.commit(&Batch::default(), true)?;
    Ok(Box::new(engine))
}

impl Redb {
    fn commit(&self, batch: &Batch, synced: bool) -> Result<()> {
        let mut transaction = self.db.begin_write().map_err(of(NAME))?;
        let sync = if synced { Sync::Immediate } else { Sync::None };
        transaction.set_durability(sync).map_err(of(NAME))?;
        {
            let mut table = transaction.open_table(TABLE).map_err(of(NAME))?;
            for (key, value) in batch.iter() {
                match value {
                    Some(value) => table.insert(key, value).map_err(of(NAME))?,
                    None => table.remove(key).map_err(of(NAME))?,
                };
            }
        }
        transaction.commit().map_err(of(NAME))
    }
}

impl Engine for Redb {
    fn about(&self) -> About {
        About::new(
            "4.6",
            IoMode::Buffered,
            [
                ("cache_size", self.cache.to_string()),
                (
                    "durability",
                    if self.each { "Immediate" } else { "None, each 64th Immediate" }.to_owned(),
                ),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        self.commit(batch, false)
    }

    fn settle(&self) -> Result<()> {
        self.commit(&Batch::default(), true)
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let transaction = self.db.begin_read().map_err(of(NAME))?;
        let table = transaction.open_table(TABLE).map_err(of(NAME))?;
        for (position, key) in keys.iter().enumerate() {
            let value = table.get(*key).map_err(of(NAME))?;
            found(position, value.as_ref().map(redb::AccessGuard::value))?;
        }
        Ok(())
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        let count = self.commits.fetch_add(1, Ordering::Relaxed) + 1;
        self.commit(batch, self.each || count.is_multiple_of(UNSYNCED))
    }

    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<usize> {
        let transaction = self.db.begin_read().map_err(of(NAME))?;
        let table = transaction.open_table(TABLE).map_err(of(NAME))?;
        let mut count = 0;
        for entry in table.range(from..).map_err(of(NAME))?.take(limit) {
            let (key, value) = entry.map_err(of(NAME))?;
            each(key.value(), value.value())?;
            count += 1;
        }
        Ok(count)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.settle()
    }
}
