//! RocksDB, after its own tuning guide for data larger than memory: direct reads, partitioned
//! index and filters in the block cache with their top level pinned, Ribbon filters below and Bloom
//! filters above, blocks of 4 KiB, no compression because values are incompressible.
//!
//! Lookups are `multi_get` with sorted keys and asynchronous reads; the load is the ingestion of
//! sorted table files.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType,
    Direction, IteratorMode, Options, ReadOptions, SstFileWriter, WriteBatch, WriteBufferManager,
    WriteOptions,
};

use crate::engine::{About, Batch, Durability, Engine, IoMode, Result, Terms, of};

const NAME: &str = "rocksdb";

/// Bytes of one table file that the load makes.
const FILE_BYTES: u64 = 64 << 20;

struct RocksDb {
    db: DB,
    dir: PathBuf,
    options: Options,
    sync: bool,
    cache: u64,
    write_buffer: u64,
    files: Mutex<Files>,
}

/// Table files of a load under way.
#[derive(Default)]
struct Files {
    done: Vec<PathBuf>,
    batch: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: u64,
}

/// Opens the database.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let (cache, write_buffer) = (terms.cache_direct(), terms.write_buffer());
    let block_cache = Cache::new_lru_cache(cache as usize);
    let mut table = BlockBasedOptions::default();
    table.set_block_size(4096);
    table.set_block_cache(&block_cache);
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_hybrid_ribbon_filter(10.0, 1);
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    table.set_pin_top_level_index_and_filter(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(6);

    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    options.set_compression_type(DBCompressionType::None);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_write_buffer_size(write_buffer as usize / 2);
    options.set_max_write_buffer_number(3);
    options.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager_with_cache(
        write_buffer as usize,
        true,
        block_cache,
    ));
    options.set_max_background_jobs(2);
    options.set_max_open_files(-1);
    options.set_bytes_per_sync(1 << 20);

    // Lookups of many keys take a handle, which only families that are named here have.
    let family = ColumnFamilyDescriptor::new("default", options.clone());
    let db = DB::open_cf_descriptors(&options, dir.join("db"), [family]).map_err(of(NAME))?;
    let sync = terms.durability == Durability::FsyncEach;
    let files = Mutex::default();
    Ok(Box::new(RocksDb { db, dir: dir.to_owned(), options, sync, cache, write_buffer, files }))
}

impl RocksDb {
    fn write_options(&self) -> WriteOptions {
        let mut options = WriteOptions::default();
        options.set_sync(self.sync);
        options.disable_wal(!self.sync);
        options
    }

    /// Writes what waits as a table file.
    fn end_file(&self, files: &mut Files) -> Result<()> {
        if files.batch.is_empty() {
            return Ok(());
        }
        let path = self.dir.join(format!("load-{}.sst", files.done.len()));
        let mut writer = SstFileWriter::create(&self.options);
        writer.open(&path).map_err(of(NAME))?;
        for (key, value) in files.batch.drain(..) {
            writer.put(key, value).map_err(of(NAME))?;
        }
        writer.finish().map_err(of(NAME))?;
        files.done.push(path);
        files.bytes = 0;
        Ok(())
    }
}

impl Engine for RocksDb {
    fn about(&self) -> About {
        About::new(
            "crate 0.25.0",
            IoMode::Direct,
            [
                ("block_cache", self.cache.to_string()),
                (
                    "write_buffer_manager",
                    format!("{}, charged to the block cache", self.write_buffer),
                ),
                ("use_direct_reads", "true".to_owned()),
                ("use_direct_io_for_flush_and_compaction", "true".to_owned()),
                ("block_size", "4096".to_owned()),
                (
                    "index",
                    "two levels, partitioned, in the block cache, top level pinned".to_owned(),
                ),
                ("filter", "Ribbon 10 bits, Bloom before level 1, partitioned".to_owned()),
                ("compression", "none".to_owned()),
                ("max_background_jobs", "2".to_owned()),
                ("multi_get", "sorted, asynchronous reads".to_owned()),
                ("wal", if self.sync { "synced" } else { "off" }.to_owned()),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        let mut files = self.files.lock().expect("no thread panics with this lock");
        for (key, value) in batch.iter() {
            let value = value.unwrap_or_default();
            files.bytes += (key.len() + value.len()) as u64;
            files.batch.push((key.to_vec(), value.to_vec()));
        }
        if files.bytes >= FILE_BYTES {
            self.end_file(&mut files)?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        let mut files = self.files.lock().expect("no thread panics with this lock");
        self.end_file(&mut files)?;
        if !files.done.is_empty() {
            let mut ingest = rocksdb::IngestExternalFileOptions::default();
            ingest.set_move_files(true);
            self.db.ingest_external_file_opts(&ingest, files.done.clone()).map_err(of(NAME))?;
            for path in files.done.drain(..) {
                // Moved, or linked and not needed any more.
                let _ = std::fs::remove_file(path);
            }
        }
        self.db.flush().map_err(of(NAME))?;
        self.db.wait_for_compact(&rocksdb::WaitForCompactOptions::default()).map_err(of(NAME))
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        if let [key] = keys {
            let value = self.db.get_pinned(key).map_err(of(NAME))?;
            return found(0, value.as_deref());
        }
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|&position| keys[position]);
        let sorted = order.iter().map(|&position| keys[position]);
        let mut options = ReadOptions::default();
        options.set_async_io(true);
        let family = self.db.cf_handle("default").ok_or_else(|| of(NAME)("no default family"))?;
        let values = self.db.batched_multi_get_cf_opt(family, sorted, true, &options);
        for (position, value) in order.into_iter().zip(values) {
            found(position, value.map_err(of(NAME))?.as_deref())?;
        }
        Ok(())
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        let mut changes = WriteBatch::default();
        for (key, value) in batch.iter() {
            match value {
                Some(value) => changes.put(key, value),
                None => changes.delete(key),
            }
        }
        self.db.write_opt(changes, &self.write_options()).map_err(of(NAME))
    }

    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<usize> {
        let mut count = 0;
        for entry in self.db.iterator(IteratorMode::From(from, Direction::Forward)).take(limit) {
            let (key, value) = entry.map_err(of(NAME))?;
            each(&key, &value)?;
            count += 1;
        }
        Ok(count)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.flush().map_err(of(NAME))?;
        self.db.cancel_all_background_work(true);
        Ok(())
    }
}
