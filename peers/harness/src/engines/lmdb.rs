//! LMDB through `heed`: a map of fixed size without read-ahead, since lookups are random; entries
//! of the load are appended. Its cache is the page cache.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, PutFlags, WithoutTls};

use crate::engine::{About, Batch, Durability, Engine, IoMode, Result, Terms, of};

const NAME: &str = "lmdb";

struct Lmdb {
    env: Env<WithoutTls>,
    db: Database<Bytes, Bytes>,
    each: bool,
    map: u64,
}

/// Opens the environment.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let each = terms.durability == Durability::FsyncEach;
    let map = terms.map_bytes();
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(map as usize);
    let mut flags = EnvFlags::NO_READ_AHEAD;
    if !each {
        flags |= EnvFlags::NO_SYNC;
    }
    #[expect(unsafe_code, reason = "heed has no safe call that maps a file")]
    // SAFETY: the folder is this process's own, nothing else maps its files; with NO_SYNC a loss of
    // power may destroy them, which the class of durability allows.
    let env = unsafe {
        options.flags(flags);
        options.open(dir)
    }
    .map_err(of(NAME))?;
    let mut transaction = env.write_txn().map_err(of(NAME))?;
    let db = env.create_database(&mut transaction, None).map_err(of(NAME))?;
    transaction.commit().map_err(of(NAME))?;
    Ok(Box::new(Lmdb { env, db, each, map }))
}

impl Engine for Lmdb {
    fn about(&self) -> About {
        let heed::LmdbVersion { major, minor, patch, .. } = heed::lmdb_version();
        About::new(
            &format!("{major}.{minor}.{patch}, heed 0.22"),
            IoMode::Mmap,
            [
                ("map_size", self.map.to_string()),
                ("flags", if self.each { "NORDAHEAD" } else { "NORDAHEAD, NOSYNC" }.to_owned()),
                ("load", "APPEND".to_owned()),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        let mut transaction = self.env.write_txn().map_err(of(NAME))?;
        for (key, value) in batch.iter() {
            let value = value.unwrap_or_default();
            let flags = PutFlags::APPEND;
            self.db.put_with_flags(&mut transaction, flags, key, value).map_err(of(NAME))?;
        }
        transaction.commit().map_err(of(NAME))
    }

    fn settle(&self) -> Result<()> {
        self.env.force_sync().map_err(of(NAME))
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let transaction = self.env.read_txn().map_err(of(NAME))?;
        for (position, key) in keys.iter().enumerate() {
            found(position, self.db.get(&transaction, key).map_err(of(NAME))?)?;
        }
        Ok(())
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        let mut transaction = self.env.write_txn().map_err(of(NAME))?;
        for (key, value) in batch.iter() {
            match value {
                Some(value) => self.db.put(&mut transaction, key, value).map_err(of(NAME))?,
                None => {
                    self.db.delete(&mut transaction, key).map_err(of(NAME))?;
                }
            }
        }
        transaction.commit().map_err(of(NAME))
    }

    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<usize> {
        let transaction = self.env.read_txn().map_err(of(NAME))?;
        let range = (Bound::Included(from), Bound::Unbounded);
        let mut count = 0;
        for entry in self.db.range(&transaction, &range).map_err(of(NAME))?.take(limit) {
            let (key, value) = entry.map_err(of(NAME))?;
            each(key, value)?;
            count += 1;
        }
        Ok(count)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.settle()
    }
}
