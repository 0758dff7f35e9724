//! canopydb: its page cache has half of the memory; a log only where commits are synced.

use std::path::Path;

use canopydb::{Database, DbOptions, EnvOptions};

use crate::engine::{About, Batch, Durability, Engine, IoMode, Result, Terms, of};

const NAME: &str = "canopydb";
const TREE: &[u8] = b"peers";

struct CanopyDb {
    db: Database,
    each: bool,
    cache: u64,
    dirty: u64,
}

/// Opens the database.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let each = terms.durability == Durability::FsyncEach;
    let (cache, dirty) = (terms.memory / 4, terms.memory / 8);
    let mut env = EnvOptions::new(dir);
    env.page_cache_size = cache as usize;
    let mut options = DbOptions::new();
    options.use_wal = each;
    options.default_commit_sync = each;
    options.write_txn_memory_limit = dirty as usize / 2;
    options.checkpoint_target_size = dirty as usize / 2;
    options.throttle_memory_limit = dirty as usize;
    options.stall_memory_limit = dirty as usize;
    let db = Database::with_options(env, options).map_err(of(NAME))?;
    let transaction = db.begin_write().map_err(of(NAME))?;
    transaction.get_or_create_tree(TREE).map_err(of(NAME))?;
    transaction.commit().map_err(of(NAME))?;
    Ok(Box::new(CanopyDb { db, each, cache, dirty }))
}

impl Engine for CanopyDb {
    fn about(&self) -> About {
        About::new(
            "0.2.5",
            IoMode::Buffered,
            [
                ("page_cache_size", self.cache.to_string()),
                ("throttle_memory_limit, stall_memory_limit", self.dirty.to_string()),
                ("use_wal, default_commit_sync", self.each.to_string()),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        self.write(batch)
    }

    fn settle(&self) -> Result<()> {
        self.db.checkpoint().map_err(of(NAME))
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let transaction = self.db.begin_read().map_err(of(NAME))?;
        let tree = transaction.get_tree(TREE).map_err(of(NAME))?;
        let tree = tree.ok_or_else(|| of(NAME)("the tree is missing"))?;
        for (position, key) in keys.iter().enumerate() {
            found(position, tree.get(key).map_err(of(NAME))?.as_deref())?;
        }
        Ok(())
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        let transaction = self.db.begin_write().map_err(of(NAME))?;
        {
            let mut tree = transaction.get_or_create_tree(TREE).map_err(of(NAME))?;
            for (key, value) in batch.iter() {
                match value {
                    Some(value) => tree.insert(key, value).map_err(of(NAME))?,
                    None => {
                        tree.delete(key).map_err(of(NAME))?;
                    }
                }
            }
        }
        transaction.commit().map_err(of(NAME))?;
        Ok(())
    }

    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<usize> {
        let transaction = self.db.begin_read().map_err(of(NAME))?;
        let tree = transaction.get_tree(TREE).map_err(of(NAME))?;
        let tree = tree.ok_or_else(|| of(NAME)("the tree is missing"))?;
        let mut count = 0;
        for entry in tree.range(from..).map_err(of(NAME))?.take(limit) {
            let (key, value) = entry.map_err(of(NAME))?;
            each(&key, &value)?;
            count += 1;
        }
        Ok(count)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.settle()
    }
}
