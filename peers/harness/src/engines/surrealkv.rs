//! SurrealKV: its block cache has half of the memory, blocks of 4 KiB. Commits are asynchronous, so
//! each waits on a runtime of one thread.

use std::path::Path;

use surrealkv::{Durability as Sync, LSMIterator, Mode, Tree, TreeBuilder};
use tokio::runtime::Runtime;

use crate::engine::{About, Batch, Durability, Engine, IoMode, Result, Terms, of};

const NAME: &str = "surrealkv";

struct SurrealKv {
    tree: Tree,
    runtime: Runtime,
    each: bool,
    cache: u64,
    memtable: u64,
}

/// Opens the tree.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let (cache, memtable) = (terms.cache_buffered(), terms.write_buffer());
    // Its background tasks run on the runtime that opens it.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(of(NAME))?;
    let tree = runtime.block_on(async {
        TreeBuilder::new()
            .with_path(dir.to_owned())
            .with_block_cache_capacity(cache)
            .with_block_size(4096)
            .with_max_memtable_size(memtable as usize)
            .build()
    });
    let each = terms.durability == Durability::FsyncEach;
    Ok(Box::new(SurrealKv { tree: tree.map_err(of(NAME))?, runtime, each, cache, memtable }))
}

impl Engine for SurrealKv {
    fn about(&self) -> About {
        About::new(
            "1.2",
            IoMode::Buffered,
            [
                ("block_cache_capacity", self.cache.to_string()),
                ("max_memtable_size", self.memtable.to_string()),
                ("block_size", "4096".to_owned()),
                ("durability", if self.each { "Immediate" } else { "Eventual" }.to_owned()),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        self.write(batch)
    }

    /// It flushes when it is closed, which ends a load.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let transaction = self.tree.begin_with_mode(Mode::ReadOnly).map_err(of(NAME))?;
        for (position, key) in keys.iter().enumerate() {
            found(position, transaction.get(*key).map_err(of(NAME))?.as_deref())?;
        }
        Ok(())
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        let mut transaction = self.tree.begin().map_err(of(NAME))?;
        transaction.set_durability(if self.each { Sync::Immediate } else { Sync::Eventual });
        for (key, value) in batch.iter() {
            match value {
                Some(value) => transaction.set(key, value),
                None => transaction.delete(key),
            }
            .map_err(of(NAME))?;
        }
        self.runtime.block_on(transaction.commit()).map_err(of(NAME))
    }

    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<usize> {
        let transaction = self.tree.begin_with_mode(Mode::ReadOnly).map_err(of(NAME))?;
        let mut entries = transaction.scan(from..).map_err(of(NAME))?;
        entries.seek_first().map_err(of(NAME))?;
        let mut count = 0;
        while entries.valid() && count < limit {
            each(entries.key().user_key(), &entries.value().map_err(of(NAME))?)?;
            entries.next().map_err(of(NAME))?;
            count += 1;
        }
        Ok(count)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.runtime.block_on(self.tree.close()).map_err(of(NAME))
    }
}
