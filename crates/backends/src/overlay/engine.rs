//! Database over an engine: tables by name, one writer at a time, one commit for each transaction.
//!
//! An engine gives snapshots and atomic batches ([`Engine`]). [`Common`] adds the rest of a
//! [`Database`](terrane_kv::Database): names of indexes, the turn of the writer, counters, the
//! guarantee, and the disk that the engine works on.
//!
//! A writer takes its snapshot when it first reads, and drops the snapshot before it commits: the
//! engine need not copy pages that no snapshot holds.

use std::cell::{OnceCell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrane_io::files::allocated_below;
use terrane_io::{CountedDisk, Disk, NoSyncDisk};
use terrane_kv::removals::Removals;
use terrane_kv::turn::{Turn, TurnGuard};
use terrane_kv::{
    Counts, Cursor, Durability, Error, Guarantee, PowerLoss, Reader, Receipt, Result, Table,
    Writer, check_entry,
};

use crate::overlay::changes::{ChangedCursor, Changes, Known};
use crate::overlay::failure::{closed, disk_error};
use crate::overlay::names::IndexNames;

/// Most keys that a writer remembers of each table: some megabytes.
const KNOWN_MAX: usize = 1 << 16;

/// All tables of an engine at one moment, by number: 0 is the main table, the indexes follow.
pub(crate) trait Snapshot: Send {
    fn get(&self, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>>;
    fn get_many(&self, table: usize, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>>;
    fn cursor(&self, table: usize) -> Result<Box<dyn Cursor + '_>>;
    fn count(&self, table: usize) -> Result<u64>;
}

/// An engine that can take snapshots and commit atomically.
pub(crate) trait Engine {
    type Snapshot: Snapshot + 'static;

    /// Whether a commit is faster if it knows the old values' lengths of some of its keys.
    const WANTS_KNOWN: bool;

    fn snapshot(&self) -> Result<Self::Snapshot>;

    /// Commits the changes of each table, all or nothing. The caller makes one commit at a time.
    /// `known` holds for the state that the commit finds.
    fn commit(&self, changes: &[Changes], known: &[Known]) -> Result<Receipt>;
}

/// State that every database over an engine has beside the engine.
#[derive(Debug)]
pub(crate) struct Common {
    back_end: &'static str,
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
    pub(crate) fn new(
        back_end: &'static str,
        indexes: &[&str],
        durability: Durability,
        disk: Arc<dyn Disk>,
    ) -> Result<(Self, Arc<dyn Disk>)> {
        let indexes = Arc::new(IndexNames::new(back_end, indexes)?);
        let counted = CountedDisk::new(disk);
        let disk: Arc<dyn Disk> = match durability {
            Durability::None => NoSyncDisk::new(counted.clone()),
            _ => counted.clone(),
        };

        let common = Self {
            back_end,
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
    pub(crate) fn reader_of<S>(&self, snapshot: S) -> EngineReader<S> {
        EngineReader { indexes: self.indexes.clone(), snapshot }
    }

    pub(crate) fn durability(&self) -> Durability {
        self.durability
    }

    pub(crate) fn reader<E: Engine>(&self, engine: &E) -> Result<Box<dyn Reader + Send>> {
        self.check_open("reader")?;
        Ok(Box::new(self.reader_of(engine.snapshot()?)))
    }

    pub(crate) fn writer<'a, E: Engine>(&'a self, engine: &'a E) -> Result<Box<dyn Writer + 'a>> {
        self.check_open("writer")?;
        let turn = self.turn.take(self.back_end)?;

        // Another thread may have closed the database while this call waited.
        self.check_open("writer")?;
        let tables = self.indexes.iter().len() + 1;
        Ok(Box::new(EngineWriter {
            common: self,
            engine,
            snapshot: OnceCell::new(),
            changes: vec![Changes::new(); tables],
            known: RefCell::new(vec![Known::new(); tables]),
            removals: vec![RefCell::default(); tables],
            _turn: turn,
        }))
    }

    /// # Errors
    /// [`Error::BackEnd`] if it is closed.
    pub(crate) fn check_open(&self, call: &'static str) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed(self.back_end, call));
        }
        Ok(())
    }

    /// Marks the database closed; returns whether it was open.
    pub(crate) fn close(&self) -> bool {
        !self.is_closed.swap(true, Ordering::AcqRel)
    }

    /// Refuses a sync if the disk drops all syncs.
    pub(crate) fn check_syncs(&self) -> Result<()> {
        if self.durability == Durability::None {
            return Err(Error::Unsupported {
                back_end: self.back_end,
                option: "sync".to_owned(),
                why: "with durability none nothing is ever synced; open it with async".to_owned(),
            });
        }
        Ok(())
    }

    /// For [`last_commit`](terrane_kv::Database::last_commit). Counting commits of this process is
    /// enough, since no other process writes the files.
    pub(crate) fn last_commit(&self) -> u64 {
        self.commits.load(Ordering::Acquire)
    }

    pub(crate) fn counts(&self) -> Counts {
        let counts = self.counted.counts();
        Counts {
            transactions: self.transactions.load(Ordering::Relaxed),
            syncs: counts.syncs + counts.dir_syncs,
            bytes_written: counts.write_bytes,
            bytes_read: counts.read_bytes,
        }
    }

    pub(crate) fn disk_bytes(&self, dir: &Path) -> Result<u64> {
        self.check_open("disk_bytes")?;
        let bytes = allocated_below(self.counted.as_ref(), dir);
        bytes.map_err(|error| disk_error(self.back_end, "disk_bytes", error))
    }

    pub(crate) fn guarantee(&self) -> Guarantee {
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
pub(crate) struct EngineReader<S> {
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
    common: &'a Common,
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
        self.common.indexes.number(table)
    }

    fn snapshot(&self) -> Result<&E::Snapshot> {
        if let Some(snapshot) = self.snapshot.get() {
            return Ok(snapshot);
        }
        let snapshot = self.engine.snapshot()?;
        Ok(self.snapshot.get_or_init(|| snapshot))
    }

    /// Remembers the length of a value that was read from the snapshot.
    fn note(&self, table: usize, key: &[u8], value: Option<&Vec<u8>>) {
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
        let others: Vec<&[u8]> =
            keys.iter().copied().filter(|key| !changes.contains_key(*key)).collect();
        let found = self.snapshot()?.get_many(table, &others)?;

        for (key, value) in others.iter().zip(&found) {
            self.note(table, key, value.as_ref());
        }

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
        self.common.check_open("commit")?;
        // Pages that no snapshot holds the engine can change without a copy.
        self.snapshot.take();
        let committed = self.engine.commit(&self.changes, self.known.get_mut());
        self.common.commits.fetch_add(1, Ordering::Release);
        let receipt = committed?;
        self.common.transactions.fetch_add(1, Ordering::Relaxed);
        Ok(receipt)
    }
}
