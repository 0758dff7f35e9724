//! Read-only database over an LSM store that another process may write.

use std::path::Path;
use std::sync::Arc;

use terrane_io::Disk;
use terrane_kv::overlay::engine::Common;
use terrane_kv::overlay::read_only::{Follow, ReadOnly};
use terrane_kv::{Database, Durability, Result};
use terrane_lsm::{ReaderOptions, StoreReader, TableName};

use super::database::LsmDatabase;
use super::options::{NAME, error, table_names};
use super::snapshot::LsmSnapshot;

/// Reader of the store, which [`Follow::snapshot`] brings up to date.
#[derive(Debug)]
struct LsmFollower {
    reader: StoreReader,
    names: Vec<TableName>,
}

impl Follow for LsmFollower {
    const NAME: &'static str = NAME;
    type Snapshot = LsmSnapshot;

    fn snapshot(&mut self) -> Result<LsmSnapshot> {
        let failed = |failure| error("reader", failure);
        self.reader.refresh().map_err(failed)?;
        let tables = self.names.iter().map(|name| self.reader.table(name));
        Ok(LsmSnapshot(tables.collect::<terrane_lsm::Result<_>>().map_err(failed)?))
    }
}

impl LsmDatabase {
    /// Opens an existing database for reading; writers are [`Error::ReadOnly`]. Another process
    /// may write the database meanwhile.
    ///
    /// Cost: reads the log, as opening a [`StoreReader`] does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the name of an index that cannot be; [`Error::Corruption`], also
    /// if the directory holds something else; [`Error::BackEnd`], also if there is no database or
    /// no such index in it.
    ///
    /// [`Error::ReadOnly`]: terrane_kv::Error::ReadOnly
    /// [`Error::Unsupported`]: terrane_kv::Error::Unsupported
    /// [`Error::Corruption`]: terrane_kv::Error::Corruption
    /// [`Error::BackEnd`]: terrane_kv::Error::BackEnd
    pub fn open_read_only(
        disk: Arc<dyn Disk>,
        dir: &Path,
        indexes: &[&str],
    ) -> Result<Arc<dyn Database>> {
        let (common, disk) = Common::new(NAME, disk, dir, indexes, Durability::Each)?;
        let reader = StoreReader::open(disk, dir, &ReaderOptions::default());
        let reader = reader.map_err(|failure| error("open", failure))?;

        // The first snapshot finds out whether all tables are there.
        let mut follower = LsmFollower { reader, names: table_names(indexes)? };
        follower.snapshot()?;
        Ok(Arc::new(ReadOnly::new(common, follower)))
    }
}
