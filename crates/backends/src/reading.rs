//! Databases of Terrane's own engines that this process only reads, while another process writes
//! them, or nobody.
//!
//! The engines have readers of their own, whose leases keep what a reader needs from being given
//! away by the writer. Each [`Database::reader`] sees what the writer had made visible to other
//! processes when the reader was made: commits that are in the log.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrane_btree::IndexReader;
use terrane_io::Disk;
use terrane_kv::{Counts, Database, Durability, Error, Guarantee, Reader, Receipt, Result, Writer};
use terrane_lsm::{ReaderOptions, StoreReader, TableName};

use crate::btree::{self, BtreeDatabase, BtreeOptions, Rooted};
use crate::engine::{Common, EngineReader, Snapshot};
use crate::lsm::{self, LsmDatabase, Views};

/// An engine's reader that goes on to what was committed since.
trait Follow: Debug + Send + Sync + 'static {
    const NAME: &'static str;
    type Snapshot: Snapshot + 'static;

    fn snapshot(&self) -> Result<Self::Snapshot>;

    /// Gives up files and leases; those of snapshots that live are kept by them.
    fn close(&self);
}

/// See the [module](self).
#[derive(Debug)]
struct Reading<F> {
    common: Common,
    follower: F,
    dir: PathBuf,
}

impl<F: Follow> Reading<F> {
    fn refused<T>() -> Result<T> {
        Err(Error::ReadOnly { back_end: F::NAME })
    }
}

impl<F: Follow> Database for Reading<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        self.common.check_open("reader")?;
        let (indexes, snapshot) = (self.common.indexes(), self.follower.snapshot()?);
        Ok(Box::new(EngineReader { indexes, snapshot }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        Self::refused()
    }

    fn settle(&self, _: Receipt) -> Result<()> {
        self.common.check_open("settle")
    }

    fn sync(&self) -> Result<()> {
        Self::refused()
    }

    fn guarantee(&self) -> Guarantee {
        self.common.guarantee()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("path", self.dir.display().to_string()), ("access", "read-only".to_owned())]
    }

    fn counts(&self) -> Counts {
        self.common.counts()
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.common.disk_bytes(&self.dir)
    }

    fn compact(&self) -> Result<()> {
        Self::refused()
    }

    fn close(&self) -> Result<()> {
        if self.common.close() {
            self.follower.close();
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn closed(back_end: &'static str) -> Error {
    Error::BackEnd { back_end, call: "reader", source: "the database is closed".into() }
}

/// An LSM store that another process may write.
#[derive(Debug)]
struct LsmFollower {
    /// `None` when it is closed.
    reader: Mutex<Option<StoreReader>>,
    names: Vec<TableName>,
}

impl Follow for LsmFollower {
    const NAME: &'static str = lsm::NAME;
    type Snapshot = Views;

    fn snapshot(&self) -> Result<Views> {
        let failed = |failure| lsm::error("reader", failure);
        let mut reader = lock(&self.reader);
        let reader = reader.as_mut().ok_or_else(|| closed(lsm::NAME))?;
        reader.refresh().map_err(failed)?;
        let tables = self.names.iter().map(|name| reader.table(name));
        Ok(Views(tables.collect::<terrane_lsm::Result<_>>().map_err(failed)?))
    }

    fn close(&self) {
        lock(&self.reader).take();
    }
}

impl LsmDatabase {
    /// Opens a database that is there, for reading; writers are [`Error::ReadOnly`]. Another
    /// process may write it meanwhile.
    ///
    /// Cost: as of opening a [`StoreReader`]: the log is read.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the name of an index that cannot be; [`Error::Corruption`], also
    /// if something else is there; [`Error::BackEnd`], also if there is no database or an index is
    /// not in it.
    pub fn open_read_only(
        disk: Arc<dyn Disk>,
        dir: &Path,
        indexes: &[&str],
    ) -> Result<Arc<dyn Database>> {
        let (common, disk) = Common::new(lsm::NAME, indexes, Durability::Each, disk)?;
        let reader = StoreReader::open(disk, dir, &ReaderOptions::default());
        let reader = Mutex::new(Some(reader.map_err(|failure| lsm::error("open", failure))?));
        let follower = LsmFollower { reader, names: lsm::table_names(indexes)? };
        follower.snapshot()?;
        Ok(Arc::new(Reading { common, follower, dir: dir.to_owned() }))
    }
}

/// A B+tree that another process may write.
#[derive(Debug)]
struct BtreeFollower {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    options: BtreeOptions,
    indexes: Vec<String>,
    /// The newest reader of the index, which snapshots share; `None` when it is closed.
    reader: Mutex<Option<Arc<IndexReader>>>,
}

impl BtreeFollower {
    fn open(&self) -> Result<Arc<IndexReader>> {
        let reader = IndexReader::open(self.disk.clone(), &self.dir, &self.options.config()?);
        Ok(Arc::new(reader.map_err(|failure| btree::error("open", failure))?))
    }
}

impl Follow for BtreeFollower {
    const NAME: &'static str = btree::NAME;
    type Snapshot = Rooted;

    /// A reader of the index stands where it was synced. So it goes on only when no snapshot has it
    /// any more; else a new one is opened.
    fn snapshot(&self) -> Result<Rooted> {
        let mut known = lock(&self.reader);
        let known = known.as_mut().ok_or_else(|| closed(btree::NAME))?;
        let is_alone = Arc::strong_count(known) == 1;
        let caught_up = if is_alone { known.sync().map(drop) } else { Ok(()) };
        match caught_up {
            Ok(()) if is_alone => {}
            // It stayed behind for too long, and begins anew.
            Ok(()) | Err(terrane_btree::Error::StaleReader { .. }) => *known = self.open()?,
            Err(failure) => return Err(btree::error("reader", failure)),
        }

        let indexes: Vec<&str> = self.indexes.iter().map(String::as_str).collect();
        Rooted::of_reader(Arc::clone(known), &indexes)
    }

    fn close(&self) {
        lock(&self.reader).take();
    }
}

impl BtreeDatabase {
    /// Opens a database that is there, for reading; writers are [`Error::ReadOnly`]. Another
    /// process may write it meanwhile.
    ///
    /// Cost: as of opening an [`IndexReader`]: the log is read, and once more for each snapshot
    /// that is made while others live.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an option or the name of an index that cannot be, and for an
    /// index that is not there; [`Error::Corruption`], also if something else is there;
    /// [`Error::BackEnd`], also if there is no database.
    pub fn open_read_only(
        disk: Arc<dyn Disk>,
        dir: &Path,
        indexes: &[&str],
        options: &BtreeOptions,
    ) -> Result<Arc<dyn Database>> {
        let (common, disk) = Common::new(btree::NAME, indexes, Durability::Each, disk)?;
        let mut follower = BtreeFollower {
            disk,
            dir: dir.to_owned(),
            options: options.clone(),
            indexes: indexes.iter().map(|&name| name.to_owned()).collect(),
            reader: Mutex::new(None),
        };
        let reader = follower.open()?;
        Rooted::of_reader(Arc::clone(&reader), indexes)?;
        follower.reader = Mutex::new(Some(reader));
        Ok(Arc::new(Reading { common, follower, dir: dir.to_owned() }))
    }
}
