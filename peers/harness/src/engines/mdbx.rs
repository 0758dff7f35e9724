//! libmdbx through `signet-libmdbx`: a map of fixed size without read-ahead; entries of the load
//! are appended. Its cache is the page cache.

use std::borrow::Cow;
use std::path::Path;

use signet_libmdbx::{
    DatabaseFlags, Environment, EnvironmentFlags, Geometry, Mode, SyncMode, WriteFlags,
};

use crate::engine::{About, Batch, Durability, Engine, IoMode, Result, Terms, of};

const NAME: &str = "mdbx";

struct Mdbx {
    env: Environment,
    each: bool,
    map: u64,
}

/// Opens the environment.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let each = terms.durability == Durability::FsyncEach;
    let map = terms.map_bytes();
    let sync_mode = if each { SyncMode::Durable } else { SyncMode::UtterlyNoSync };
    let mut builder = Environment::builder();
    builder
        .set_geometry(Geometry {
            size: Some(0..map as usize),
            growth_step: Some(256 << 20),
            shrink_threshold: None,
            page_size: None,
        })
        .set_max_readers(64)
        .set_flags(EnvironmentFlags {
            mode: Mode::ReadWrite { sync_mode },
            no_rdahead: true,
            ..EnvironmentFlags::default()
        });
    let env = builder.open(dir).map_err(of(NAME))?;
    let transaction = env.begin_rw_unsync().map_err(of(NAME))?;
    transaction.create_db(None, DatabaseFlags::empty()).map_err(of(NAME))?;
    transaction.commit().map_err(of(NAME))?;
    Ok(Box::new(Mdbx { env, each, map }))
}

impl Mdbx {
    fn put(&self, batch: &Batch, appended: bool) -> Result<()> {
        let transaction = self.env.begin_rw_unsync().map_err(of(NAME))?;
        let db = transaction.open_db(None).map_err(of(NAME))?;
        for (key, value) in batch.iter() {
            match value {
                Some(value) if appended => transaction.append(db, key, value),
                Some(value) => transaction.put(db, key, value, WriteFlags::UPSERT),
                None => transaction.del(db, key, None).map(|_| ()),
            }
            .map_err(of(NAME))?;
        }
        transaction.commit().map_err(of(NAME))
    }
}

impl Engine for Mdbx {
    fn about(&self) -> About {
        About::new(
            "signet-libmdbx 0.8.3",
            IoMode::Mmap,
            [
                ("map_size", self.map.to_string()),
                ("sync_mode", if self.each { "Durable" } else { "UtterlyNoSync" }.to_owned()),
                ("no_rdahead", "true".to_owned()),
                ("load", "APPEND".to_owned()),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        self.put(batch, true)
    }

    fn settle(&self) -> Result<()> {
        self.env.sync(true).map(|_| ()).map_err(of(NAME))
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let transaction = self.env.begin_ro_unsync().map_err(of(NAME))?;
        let db = transaction.open_db(None).map_err(of(NAME))?;
        for (position, key) in keys.iter().enumerate() {
            let value: Option<Cow<'_, [u8]>> = transaction.get(db.dbi(), key).map_err(of(NAME))?;
            found(position, value.as_deref())?;
        }
        Ok(())
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        self.put(batch, false)
    }

    fn scan(
        &self,
        from: &[u8],
        limit: usize,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<usize> {
        let transaction = self.env.begin_ro_unsync().map_err(of(NAME))?;
        let db = transaction.open_db(None).map_err(of(NAME))?;
        let mut cursor = transaction.cursor(db).map_err(of(NAME))?;
        let mut entry = cursor.set_range::<Cow<'_, [u8]>, Cow<'_, [u8]>>(from).map_err(of(NAME))?;
        let mut count = 0;
        while let Some((key, value)) = entry {
            each(&key, &value)?;
            count += 1;
            if count == limit {
                break;
            }
            entry = cursor.next().map_err(of(NAME))?;
        }
        Ok(count)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.settle()
    }
}
