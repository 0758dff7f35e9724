//! Read-only database over a B+tree that another process may write.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_btree::IndexReader;
use terrane_io::Disk;
use terrane_kv::overlay::engine::Common;
use terrane_kv::overlay::read_only::{Follow, ReadOnly};
use terrane_kv::{Database, Durability, Result};

use super::database::BtreeDatabase;
use super::options::{BtreeOptions, NAME, error};
use super::snapshot::BtreeSnapshot;

/// Opens a reader of the index in a directory.
fn open(disk: &Arc<dyn Disk>, dir: &Path, options: &BtreeOptions) -> Result<Arc<IndexReader>> {
    let reader = IndexReader::open(disk.clone(), dir, &options.config()?);
    Ok(Arc::new(reader.map_err(|failure| error("open", failure))?))
}

/// The newest reader of the index, which snapshots share.
#[derive(Debug)]
struct BtreeFollower {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    options: BtreeOptions,
    indexes: Vec<String>,
    reader: Arc<IndexReader>,
}

impl Follow for BtreeFollower {
    const NAME: &'static str = NAME;
    type Snapshot = BtreeSnapshot;

    /// A reader of the index stays at the commit where it was synced. So the newest reader catches
    /// up only if no snapshot shares it; else the follower opens another.
    fn snapshot(&mut self) -> Result<BtreeSnapshot> {
        // A snapshot in use shares the reader, which must not move on then.
        let is_alone = Arc::strong_count(&self.reader) == 1;
        let caught_up = if is_alone { self.reader.sync().map(drop) } else { Ok(()) };
        match caught_up {
            Ok(()) if is_alone => {}
            // A reader that stayed behind for too long begins anew.
            Ok(()) | Err(terrane_btree::Error::StaleReader { .. }) => {
                self.reader = open(&self.disk, &self.dir, &self.options)?;
            }
            Err(failure) => return Err(error("reader", failure)),
        }

        let indexes: Vec<&str> = self.indexes.iter().map(String::as_str).collect();
        BtreeSnapshot::of_reader(Arc::clone(&self.reader), &indexes)
    }
}

impl BtreeDatabase {
    /// Opens an existing database for reading; writers are [`Error::ReadOnly`]. Another process
    /// may write the database meanwhile.
    ///
    /// Cost: reads the log, as opening an [`IndexReader`] does, and once more for each snapshot
    /// that is made while others live.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an option or the name of an index that cannot be, and for an
    /// index that the database does not have; [`Error::Corruption`], also if the directory holds
    /// something else; [`Error::BackEnd`], also if there is no database.
    ///
    /// [`Error::ReadOnly`]: terrane_kv::Error::ReadOnly
    /// [`Error::Unsupported`]: terrane_kv::Error::Unsupported
    /// [`Error::Corruption`]: terrane_kv::Error::Corruption
    /// [`Error::BackEnd`]: terrane_kv::Error::BackEnd
    pub fn open_read_only(
        disk: Arc<dyn Disk>,
        dir: &Path,
        indexes: &[&str],
        options: &BtreeOptions,
    ) -> Result<Arc<dyn Database>> {
        let (common, disk) = Common::new(NAME, disk, dir, indexes, Durability::Each)?;
        let reader = open(&disk, dir, options)?;

        // Fails here, and not at the first reader, if a table is missing.
        BtreeSnapshot::of_reader(Arc::clone(&reader), indexes)?;

        let follower = BtreeFollower {
            disk,
            dir: dir.to_owned(),
            options: options.clone(),
            indexes: indexes.iter().map(|&name| name.to_owned()).collect(),
            reader,
        };

        Ok(Arc::new(ReadOnly::new(common, follower)))
    }
}
