//! Database over an engine: tables by name, one writer at a time, one commit for each transaction.
//!
//! An engine gives snapshots, atomic batches and syncs ([`Engine`]). [`Common`] adds the rest:
//! names of indexes, the turn of the writer, counters, the guarantee, and the disk that the engine
//! works on. Every engine is a [`Database`].
//!
//! A writer takes its snapshot when it first reads, and drops the snapshot before it commits: the
//! engine need not copy pages that no snapshot holds.

use std::cell::{OnceCell, RefCell};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrane_io::files::allocated_below;
use terrane_io::{CountedDisk, Disk, Durability, NoSyncDisk};

use crate::database::{
    Counts, Cursor, Database, Error, Guarantee, PowerLoss, Reader, Receipt, Result, Table, Writer,
    check_entry,
};
use crate::overlay::changes::{ChangedCursor, Changes, Known};
use crate::overlay::failure::{closed, disk_error};
use crate::overlay::names::IndexNames;
use crate::removals::Removals;
use crate::turn::{Turn, TurnGuard};

/// Most keys that a writer remembers of each table: some megabytes.
const KNOWN_MAX: usize = 1 << 16;

/// All tables of an engine at one moment, by number: 0 is the main table, the indexes follow. The
/// methods are those of [`Reader`], and so are their errors.
pub trait Snapshot: Send {
    /// See [`Reader::get`].
    ///
    /// # Errors
    /// Those of the engine.
    fn get(&self, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// See [`Reader::get_many`].
    ///
    /// # Errors
    /// Those of the engine.
    fn get_many(&self, table: usize, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>>;
    /// See [`Reader::cursor`].
    ///
    /// # Errors
    /// Those of the engine.
    fn cursor(&self, table: usize) -> Result<Box<dyn Cursor + '_>>;
    /// See [`Reader::count`].
    ///
    /// # Errors
    /// Those of the engine.
    fn count(&self, table: usize) -> Result<u64>;
}

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
        let tables = common.indexes.iter().len() + 1;
        Ok(Box::new(EngineWriter {
            engine: self,
            snapshot: OnceCell::new(),
            changes: vec![Changes::new(); tables],
            known: RefCell::new(vec![Known::new(); tables]),
            removals: vec![RefCell::default(); tables],
            _turn: turn,
        }))
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
    pub fn reader_of<S>(&self, snapshot: S) -> EngineReader<S> {
        EngineReader { indexes: self.indexes.clone(), snapshot }
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

/// Reader of a snapshot, by the names of its tables.
pub struct EngineReader<S> {
    indexes: Arc<IndexNames>,
    snapshot: S,
}

impl<S: Snapshot> Reader for EngineReader<S> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.snapshot.get(self.indexes.number(table)?, key)
    }

    fn get_many(&self, table: Table<'_>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        self.snapshot.get_many(self.indexes.number(table)?, keys)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        self.snapshot.cursor(self.indexes.number(table)?)
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        self.snapshot.count(self.indexes.number(table)?)
    }
}

/// Writer over an engine: its changes, and the snapshot below them.
struct EngineWriter<'a, E: Engine> {
    engine: &'a E,
    snapshot: OnceCell<E::Snapshot>,
    changes: Vec<Changes>,
    /// Invariant: agrees with the snapshot.
    known: RefCell<Vec<Known>>,
    /// Ranges of removals that cursors jump over, by table.
    removals: Vec<RefCell<Removals<Vec<u8>>>>,
    _turn: TurnGuard<'a>,
}

impl<E: Engine> EngineWriter<'_, E> {
    fn number(&self, table: Table<'_>) -> Result<usize> {
        self.engine.common().indexes.number(table)
    }

    fn snapshot(&self) -> Result<&E::Snapshot> {
        // The snapshot is made with the first read, so a writer that only writes needs none.
        if let Some(snapshot) = self.snapshot.get() {
            return Ok(snapshot);
        }
        let snapshot = self.engine.snapshot()?;
        Ok(self.snapshot.get_or_init(|| snapshot))
    }

    /// Remembers the length of a value that was read from the snapshot.
    fn note(&self, table: usize, key: &[u8], value: Option<&Vec<u8>>) {
        // Some engines commit faster if they know which keys exist. The number of notes is bounded.
        if E::WANTS_KNOWN {
            let known = &mut self.known.borrow_mut()[table];
            if known.len() < KNOWN_MAX {
                known.insert(key.to_vec(), value.map(Vec::len));
            }
        }
    }
}

impl<E: Engine> Reader for EngineWriter<'_, E> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.number(table)?;
        match self.changes[table].get(key) {
            Some(value) => Ok(value.clone()),
            None => {
                let value = self.snapshot()?.get(table, key)?;
                self.note(table, key, value.as_ref());
                Ok(value)
            }
        }
    }

    fn get_many(&self, table: Table<'_>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let table = self.number(table)?;
        let changes = &self.changes[table];
        // Own changes hide the snapshot, so only the other keys are asked for.
        let others: Vec<&[u8]> =
            keys.iter().copied().filter(|key| !changes.contains_key(*key)).collect();
        let found = self.snapshot()?.get_many(table, &others)?;
        debug_assert_eq!(found.len(), others.len(), "an answer for each key");

        for (key, value) in others.iter().zip(&found) {
            self.note(table, key, value.as_ref());
        }

        // Answers come in the order of the keys that were asked for.
        let mut found = found.into_iter();
        let value = |key: &&[u8]| match changes.get(*key) {
            Some(value) => value.clone(),
            None => found.next().flatten(),
        };

        Ok(keys.iter().map(value).collect())
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let table = self.number(table)?;
        let below = self.snapshot()?.cursor(table)?;
        Ok(Box::new(ChangedCursor::new(below, &self.changes[table], &self.removals[table])))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        let table = self.number(table)?;
        let snapshot = self.snapshot()?;
        let changes = &self.changes[table];
        let keys: Vec<&[u8]> = changes.keys().map(Vec::as_slice).collect();

        // Each changed key corrects the count of the snapshot.
        let mut count = snapshot.count(table)?;
        for (before, after) in snapshot.get_many(table, &keys)?.iter().zip(changes.values()) {
            match (before, after) {
                (None, Some(_)) => count += 1,
                (Some(_), None) => count -= 1,
                _ => {}
            }
        }

        Ok(count)
    }
}

impl<E: Engine> Writer for EngineWriter<'_, E> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        check_entry(key, value)?;
        let table = self.number(table)?;
        self.removals[table].get_mut().bind(key, &self.changes[table]);
        self.changes[table].insert(key.to_vec(), Some(value.to_vec()));
        Ok(())
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        let table = self.number(table)?;
        self.changes[table].insert(key.to_vec(), None);
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<Receipt> {
        let common = self.engine.common();
        common.check_open("commit")?;
        // Pages that no snapshot holds the engine can change without a copy.
        self.snapshot.take();
        let committed = self.engine.commit(&self.changes, self.known.get_mut());
        // Counted also if it failed: the commit may have taken place.
        common.commits.fetch_add(1, Ordering::Release);
        let receipt = committed?;
        common.transactions.fetch_add(1, Ordering::Relaxed);
        Ok(receipt)
    }
}
