//! fjall: filters and index partitioned and in its cache, blocks of 4 KiB, no compression, no
//! key-value separation, bulk ingestion for the load. It reads through the page cache.

use std::path::Path;
use std::sync::Mutex;

use fjall::config::{BlockSizePolicy, CompressionPolicy, PartitioningPolicy, PinningPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use crate::engine::{About, Batch, Durability, Engine, IoMode, Result, Terms, of};

const NAME: &str = "fjall";

struct Fjall {
    db: Database,
    keyspace: Keyspace,
    persist: Option<PersistMode>,
    cache: u64,
    write_buffer: u64,
    /// Entries of the load, which ends with one ingestion.
    loaded: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
}

/// Opens the database.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let (cache, write_buffer) = (terms.cache_buffered(), terms.write_buffer());
    let db = Database::builder(dir)
        .cache_size(cache)
        .journal_compression(CompressionType::None)
        .worker_threads(2)
        .open()
        .map_err(of(NAME))?;
    let options = || {
        KeyspaceCreateOptions::default()
            .data_block_size_policy(BlockSizePolicy::all(4096))
            .data_block_compression_policy(CompressionPolicy::disabled())
            .index_block_compression_policy(CompressionPolicy::disabled())
            .index_block_partitioning_policy(PartitioningPolicy::all(true))
            .filter_block_partitioning_policy(PartitioningPolicy::all(true))
            .index_block_pinning_policy(PinningPolicy::all(false))
            .filter_block_pinning_policy(PinningPolicy::all(false))
            .max_memtable_size(write_buffer)
    };
    let keyspace = db.keyspace("peers", options).map_err(of(NAME))?;
    let persist = (terms.durability == Durability::FsyncEach).then_some(PersistMode::SyncData);
    Ok(Box::new(Fjall { db, keyspace, persist, cache, write_buffer, loaded: Mutex::default() }))
}

impl Engine for Fjall {
    fn about(&self) -> About {
        About::new(
            "3.1",
            IoMode::Buffered,
            [
                ("cache_size", self.cache.to_string()),
                ("max_memtable_size", self.write_buffer.to_string()),
                ("data_block_size", "4096".to_owned()),
                ("index and filters", "partitioned, in the cache".to_owned()),
                ("compression", "none".to_owned()),
                ("worker_threads", "2".to_owned()),
                (
                    "journal",
                    if self.persist.is_some() { "synced" } else { "not synced" }.to_owned(),
                ),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        let mut loaded = self.loaded.lock().expect("no thread panics with this lock");
        let entries =
            batch.iter().map(|(key, value)| (key.to_vec(), value.unwrap_or_default().to_vec()));
        loaded.extend(entries);
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        let loaded =
            std::mem::take(&mut *self.loaded.lock().expect("no thread panics with this lock"));
        if !loaded.is_empty() {
            let mut ingestion = self.keyspace.start_ingestion().map_err(of(NAME))?;
            for (key, value) in loaded {
                ingestion.write(key, value).map_err(of(NAME))?;
            }
            ingestion.finish().map_err(of(NAME))?;
        }
        self.keyspace.rotate_memtable_and_wait().map_err(of(NAME))?;
        while self.db.outstanding_flushes() + self.db.active_compactions() > 0 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        self.db.persist(PersistMode::SyncAll).map_err(of(NAME))
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        for (position, key) in keys.iter().enumerate() {
            found(position, self.keyspace.get(key).map_err(of(NAME))?.as_deref())?;
        }
        Ok(())
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        let mut changes = self.db.batch().durability(self.persist);
        for (key, value) in batch.iter() {
            match value {
                Some(value) => changes.insert(&self.keyspace, key, value),
                None => changes.remove(&self.keyspace, key),
            }
        }
        changes.commit().map_err(of(NAME))
    }

    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<usize> {
        let mut count = 0;
        for entry in self.keyspace.range(from..).take(limit) {
            let (key, value) = entry.into_inner().map_err(of(NAME))?;
            each(&key, &value)?;
            count += 1;
        }
        Ok(count)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.persist(PersistMode::SyncAll).map_err(of(NAME))
    }
}
