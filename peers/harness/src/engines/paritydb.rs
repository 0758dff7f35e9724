//! ParityDB: one hashed column, no compression. Lookups by key are what it is made for; its keys
//! have no order.

use std::path::Path;

use parity_db::{CompressionType, Db, Options};

use crate::engine::{About, Batch, Durability, Engine, Error, IoMode, Result, Terms, of};

const NAME: &str = "paritydb";

/// Bytes of the keys that it takes as they are.
const UNIFORM_ENTRY: u64 = 32 + 110;

struct ParityDb {
    db: Db,
    each: bool,
    uniform: bool,
}

/// Opens the database.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let each = terms.durability == Durability::FsyncEach;
    let uniform = terms.entry_bytes == UNIFORM_ENTRY;
    let mut options = Options::with_columns(&dir.join("db"), 1);
    // Keys of other lengths are hashed first.
    options.columns[0].uniform = uniform;
    options.columns[0].compression = CompressionType::NoCompression;
    options.stats = false;
    options.sync_wal = each;
    options.sync_data = each;
    let db = Db::open_or_create(&options).map_err(of(NAME))?;
    Ok(Box::new(ParityDb { db, each, uniform }))
}

impl Engine for ParityDb {
    fn about(&self) -> About {
        About::new(
            "0.5.7",
            IoMode::Mmap,
            [
                ("column", if self.uniform { "hashed, uniform keys" } else { "hashed" }.to_owned()),
                ("compression", "none".to_owned()),
                ("sync_wal, sync_data", self.each.to_string()),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        let changes = batch.iter().map(|(key, value)| (0, key.to_vec(), value.map(<[u8]>::to_vec)));
        self.db.commit(changes).map_err(of(NAME))
    }

    /// Its log is worked off by threads of its own, for which a new open waits.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        for (position, key) in keys.iter().enumerate() {
            found(position, self.db.get(0, key).map_err(of(NAME))?.as_deref())?;
        }
        Ok(())
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        if self.each {
            return Err(Error::Cannot(
                "a commit returns before its log is written, and no call waits for that",
            ));
        }
        self.load(batch)
    }

    fn scan(
        &self,
        _from: &[u8],
        _limit: usize,
        _each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<usize> {
        Err(Error::Cannot("keys of a hashed column have no order"))
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
