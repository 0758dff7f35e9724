//! Database over an engine: tables by name, one writer at a time, one commit for each transaction.
//!
//! An engine gives snapshots, atomic batches and syncs ([`Engine`]). [`Common`] adds the rest:
//! names of indexes, the turn of the writer, counters, the guarantee, and the disk that the engine
//! works on. Every engine is a [`Database`].
//!
//! A writer drops its snapshot before it commits: the engine need not copy pages that no snapshot
//! holds.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrane_io::files::allocated_below;
use terrane_io::{CountedDisk, Disk, Durability, NoSyncDisk};

use crate::database::{
    Counts, Database, Error, Guarantee, PowerLoss, Reader, Receipt, Result, Writer,
};
use crate::overlay::changes::{Changes, Known};
use crate::overlay::failure::{closed, disk_error};
use crate::overlay::names::IndexNames;
use crate::overlay::snapshot::{Snapshot, SnapshotReader};
use crate::overlay::transaction::{Base, Transaction};
use crate::turn::Turn;

/// An engine that can take snapshots and commit atomically: a [`Database`] by the methods that all
/// of them share.
pub trait Engine: Debug + Send + Sync {
    /// Name of the back-end.
    const NAME: &'static str;

    /// Snapshot of all tables.
    type Snapshot: Snapshot + 'static;

    /// Whether a commit is faster if it knows the old values' lengths of some of its keys.
    const WANTS_KNOWN: bool;

    /// State beside the engine.
    fn common(&self) -> &Common;

    /// Takes a snapshot of the last commit.
    ///
    /// # Errors
    /// Those of the engine.
    fn snapshot(&self) -> Result<Self::Snapshot>;

    /// Whether a sync has failed, so that nothing is written any more.
    fn is_poisoned(&self) -> bool;

    /// Commits the changes of each table, all or nothing. The caller makes one commit at a time.
    /// `known` holds for the state that the commit finds.
    ///
    /// # Errors
    /// Those of the engine; the commit has not taken place.
    fn commit(&self, changes: &[Changes], known: &[Known]) -> Result<Receipt>;

    /// Syncs all commits up to this one.
    ///
    /// # Errors
    /// Those of the engine; a failed sync poisons it.
    fn sync_to(&self, receipt: Receipt) -> Result<()>;

    /// Syncs all commits.
    ///
    /// # Errors
    /// Those of [`sync_to`](Self::sync_to).
    fn sync_all(&self) -> Result<()>;

    /// Settings of the engine, which follow path and durability.
    fn own_settings(&self) -> Vec<(&'static str, String)>;

    /// See [`Database::compact`].
    ///
    /// # Errors
    /// Those of the engine.
    fn compact_files(&self) -> Result<()>;

    /// Closes the engine. The caller calls it once.
    ///
    /// # Errors
    /// Those of the engine, which is closed in any case.
    fn close_files(&self) -> Result<()>;
}

impl<E: Engine> Database for E {
    fn name(&self) -> &'static str {
        E::NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        self.common().check_open("reader")?;
        Ok(Box::new(self.common().reader_of(self.snapshot()?)))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        // After a failed sync no engine promises anything for new commits.
        if self.is_poisoned() {
            return Err(Error::Poisoned { back_end: E::NAME });
        }

        let common = self.common();
        common.check_open("writer")?;
        // There is one writer at a time; other threads wait for their turn.
        let turn = common.turn.take(E::NAME)?;

        // Another thread may have closed the database while this call waited.
        common.check_open("writer")?;
        Ok(Box::new(Transaction::new(OverEngine(self), turn)))
    }

    /// Counting commits of this process is enough, since no other process writes the files.
    fn last_commit(&self) -> Option<u64> {
        Some(self.common().commits.load(Ordering::Acquire))
    }

    fn settle(&self, receipt: Receipt) -> Result<()> {
        self.common().check_open("settle")?;
        // Levels without a sync promise nothing that a caller could wait for.
        match self.common().durability {
            Durability::None | Durability::Buffered => Ok(()),
            Durability::Each | Durability::Group => self.sync_to(receipt),
        }
    }

    fn sync(&self) -> Result<()> {
        self.common().check_open("sync")?;
        self.common().check_syncs()?;
        self.sync_all()
    }

    fn guarantee(&self) -> Guarantee {
        self.common().guarantee()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let common = self.common();
        let mut settings = vec![
            ("path", common.dir.display().to_string()),
            ("durability", common.durability.name().to_owned()),
        ];
        settings.extend(self.own_settings());
        settings
    }

    fn counts(&self) -> Counts {
        self.common().counts()
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.common().disk_bytes()
    }

    fn compact(&self) -> Result<()> {
        self.common().check_open("compact")?;
        self.compact_files()
    }

    fn close(&self) -> Result<()> {
        // Only the first call closes the files.
        if self.common().close() { self.close_files() } else { Ok(()) }
    }
}

/// State that every database over an engine has beside the engine.
#[derive(Debug)]
pub struct Common {
    back_end: &'static str,
    dir: PathBuf,
    indexes: Arc<IndexNames>,
    durability: Durability,
    counted: Arc<CountedDisk>,
    transactions: AtomicU64,
    /// Number of commits that have returned, also with an error.
    commits: AtomicU64,
    is_closed: AtomicBool,
    /// Held by the writer.
    turn: Turn,
}

impl Common {
    /// Returns also the disk for the engine: it counts calls, and drops syncs if the durability is
    /// `None`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for names of indexes that cannot be.
    pub fn new(
        back_end: &'static str,
        disk: Arc<dyn Disk>,
        dir: &Path,
        indexes: &[&str],
        durability: Durability,
    ) -> Result<(Self, Arc<dyn Disk>)> {
        let indexes = Arc::new(IndexNames::new(back_end, indexes)?);
        let counted = CountedDisk::new(disk);
        // Without durability the engine may ask for syncs, which go nowhere.
        let disk: Arc<dyn Disk> = match durability {
            Durability::None => NoSyncDisk::new(counted.clone()),
            _ => counted.clone(),
        };

        let common = Self {
            back_end,
            dir: dir.to_owned(),
            indexes,
            durability,
            counted,
            transactions: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            turn: Turn::default(),
        };

        Ok((common, disk))
    }

    /// A reader of a snapshot, whose tables go by the names of this database.
    pub fn reader_of<S>(&self, snapshot: S) -> SnapshotReader<S> {
        SnapshotReader::new(self.indexes.clone(), snapshot)
    }

    /// Directory of the database.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Refuses a call after the close.
    ///
    /// # Errors
    /// [`Error::BackEnd`] if it is closed.
    pub fn check_open(&self, call: &'static str) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed(self.back_end, call));
        }
        Ok(())
    }

    /// Marks the database closed; returns whether it was open.
    pub fn close(&self) -> bool {
        !self.is_closed.swap(true, Ordering::AcqRel)
    }

    /// Refuses a sync if the disk drops all syncs.
    fn check_syncs(&self) -> Result<()> {
        if self.durability == Durability::None {
            return Err(Error::Unsupported {
                back_end: self.back_end,
                option: "sync".to_owned(),
                why: "with durability none nothing is ever synced; open it with async".to_owned(),
            });
        }
        Ok(())
    }

    /// Counters since the database was opened.
    pub fn counts(&self) -> Counts {
        // The engine does its I/O on the counted disk alone.
        let counts = self.counted.counts();
        Counts {
            transactions: self.transactions.load(Ordering::Relaxed),
            syncs: counts.syncs + counts.dir_syncs,
            bytes_written: counts.write_bytes,
            bytes_read: counts.read_bytes,
        }
    }

    /// See [`Database::disk_bytes`].
    ///
    /// # Errors
    /// Those of the disk.
    pub fn disk_bytes(&self) -> Result<u64> {
        self.check_open("disk_bytes")?;
        let bytes = allocated_below(self.counted.as_ref(), &self.dir);
        bytes.map_err(|error| disk_error(self.back_end, "disk_bytes", error))
    }

    /// Promise under the durability of this opening.
    pub fn guarantee(&self) -> Guarantee {
        let (power_loss, text) = match self.durability {
            Durability::None => (
                PowerLoss::NoPromise,
                "no sync is ever asked for: commits survive a killed process; after a loss of power the store may be \
                 damaged",
            ),
            Durability::Buffered => (
                PowerLoss::Consistent,
                "each commit is in the log, which is synced at checkpoints: commits survive a killed process; a loss of \
                 power takes the last ones",
            ),
            Durability::Each => (
                PowerLoss::EveryCommit,
                "the log is synced in each commit: every commit survives a loss of power",
            ),
            Durability::Group => (
                PowerLoss::EveryCommit,
                "settling a commit syncs the log, once for all that wait: every settled commit survives a loss of power",
            ),
        };

        Guarantee {
            durability: self.durability,
            survives_kill: true,
            power_loss,
            text: text.to_owned(),
        }
    }
}

/// An engine below a transaction.
struct OverEngine<'a, E>(&'a E);

impl<E: Engine> Base for OverEngine<'_, E> {
    type Snapshot = E::Snapshot;

    const WANTS_KNOWN: bool = E::WANTS_KNOWN;

    fn indexes(&self) -> &IndexNames {
        &self.0.common().indexes
    }

    fn snapshot(&self) -> Result<E::Snapshot> {
        self.0.snapshot()
    }

    fn commit(&self, changes: &[Changes], known: &[Known]) -> Result<Receipt> {
        let common = self.0.common();
        // Another thread may close the database while a writer is open.
        common.check_open("commit")?;
        let committed = self.0.commit(changes, known);
        // Counted also if it failed: the commit may have taken place.
        common.commits.fetch_add(1, Ordering::Release);
        let receipt = committed?;
        common.transactions.fetch_add(1, Ordering::Relaxed);
        Ok(receipt)
    }
}
