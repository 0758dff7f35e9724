//! What the back-ends over Terrane's own engines have in common: tables by name, the changes of a writer, cursors over these,
//! and the disk that the engine works on.
//!
//! A writer keeps its changes in memory, in order, and gives them to the engine as one commit. It reads its own changes first
//! and then a snapshot, which it takes when it first needs it and lets go of before it commits.
//!
//! Invariant: while a writer lives nothing is committed but by it, so its snapshot, whenever it was taken, is what there was
//! when it was made.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrane_io::EntryKind;
use terrane_io::files::allocated_below;
use terrane_io::{CountedDisk, Disk, NoSyncDisk};
use terrane_kv::removals::{Crossed, Removals};
use terrane_kv::turn::{Turn, TurnGuard};
use terrane_kv::{
    Counts, Cursor, Durability, Entry, Error, Guarantee, PowerLoss, Reader, Receipt, Result, Table,
    Writer, check_entry,
};

use crate::names::IndexNames;

/// What a writer binds the keys of one table to; `None` removes.
pub(crate) type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Keys of one table that a writer has read below its changes: how long the value is, if there is one.
pub(crate) type Known = HashMap<Vec<u8>, Option<usize>>;

/// Keys that a writer remembers of each table, at most: some megabytes.
const KNOWN_MAX: usize = 1 << 16;

/// All tables of an engine at one moment, by number: 0 is the main one, the others are the indexes in their order.
pub(crate) trait Snapshot: Send {
    fn get(&self, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>>;
    fn get_many(&self, table: usize, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>>;
    fn cursor(&self, table: usize) -> Result<Box<dyn Cursor + '_>>;
    fn count(&self, table: usize) -> Result<u64>;
}

/// An engine that keeps tables.
pub(crate) trait Engine {
    type Snapshot: Snapshot + 'static;

    /// Whether a commit is faster if it is known what some of its keys had before.
    const WANTS_KNOWN: bool;

    fn snapshot(&self) -> Result<Self::Snapshot>;

    /// Commits the changes of each table, all or nothing. The caller sees to it that there is one commit at a time. What is
    /// known of keys, of each table, is what the commit finds.
    fn commit(&self, changes: &[Changes], known: &[Known]) -> Result<Receipt>;
}

/// The system's answer to a call of the disk, in terms of a back-end.
pub(crate) fn disk_error(
    back_end: &'static str,
    call: &'static str,
    error: terrane_io::Error,
) -> Error {
    match error {
        error if error.is_no_space() => {
            let limit = "the disk or the quota is full; make room and try again".to_owned();
            Error::StoreFull { back_end, limit, source: Some(error.into()) }
        }
        terrane_io::Error::Locked { path, pid } => locked(back_end, &path, pid),
        error @ (terrane_io::Error::WrongKind { .. } | terrane_io::Error::ShortRead { .. }) => {
            Error::Corruption { back_end, what: error.to_string(), source: Some(error.into()) }
        }
        error if call == "open" && error.is_not_found() => Error::Corruption {
            back_end,
            what: format!(
                "a part of the database is missing; put it back, restore a copy, or try `terrane verify --repair` on the \
                 directory: {error}"
            ),
            source: Some(error.into()),
        },
        error => Error::BackEnd { back_end, call, source: error.into() },
    }
}

/// Refuses a file in the place of a database's directory. Answers the name of the call that opens
/// the database: "open", or "create" if there is no directory.
///
/// # Errors
/// [`Error::Unsupported`], those of the system.
pub(crate) fn check_dir(
    back_end: &'static str,
    disk: &dyn Disk,
    dir: &Path,
) -> Result<&'static str> {
    let kind = disk.kind(dir).map_err(|error| disk_error(back_end, "stat", error))?;
    match kind {
        None => Ok("create"),
        Some(EntryKind::Directory) => Ok("open"),
        Some(found) => {
            let why =
                format!("{} is a {}; this back-end takes a directory", dir.display(), found.name());
            Err(Error::Unsupported { back_end, option: "path".to_owned(), why })
        }
    }
}

/// That another process has a store open.
pub(crate) fn locked(back_end: &'static str, path: &Path, pid: Option<u32>) -> Error {
    let by = pid.map_or(String::new(), |pid| format!(" by process {pid}"));
    Error::Locked { back_end, what: format!("{} is in use{by}", path.display()) }
}

/// A call after the database was closed.
#[derive(Debug, thiserror::Error)]
#[error("the database is closed")]
struct Closed;

/// What every back-end over an engine has beside it.
#[derive(Debug)]
pub(crate) struct Common {
    back_end: &'static str,
    indexes: Arc<IndexNames>,
    durability: Durability,
    counted: Arc<CountedDisk>,
    transactions: AtomicU64,
    /// Commits that have returned, with whatever result.
    commits: AtomicU64,
    is_closed: AtomicBool,
    /// Held by the writer.
    turn: Turn,
}

impl Common {
    /// Also gives the disk that the engine is to work on: it is counted, and asks for no sync where none is to be asked for.
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

    pub(crate) fn indexes(&self) -> Arc<IndexNames> {
        self.indexes.clone()
    }

    pub(crate) fn durability(&self) -> Durability {
        self.durability
    }

    pub(crate) fn reader<E: Engine>(&self, engine: &E) -> Result<Box<dyn Reader + Send>> {
        self.check_open("reader")?;
        let (indexes, snapshot) = (self.indexes.clone(), engine.snapshot()?);
        Ok(Box::new(EngineReader { indexes, snapshot }))
    }

    pub(crate) fn writer<'a, E: Engine>(&'a self, engine: &'a E) -> Result<Box<dyn Writer + 'a>> {
        self.check_open("writer")?;
        let turn = self.turn.take(self.back_end)?;
        // It may have been closed meanwhile.
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
            let source = Box::new(Closed);
            return Err(Error::BackEnd { back_end: self.back_end, call, source });
        }
        Ok(())
    }

    /// Notes that it is closed; whether it was open.
    pub(crate) fn close(&self) -> bool {
        !self.is_closed.swap(true, Ordering::AcqRel)
    }

    /// Refuses to make commits durable where no sync is ever asked for.
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

    /// For [`last_commit`](terrane_kv::Database::last_commit): nobody else has the files open.
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
            Durability::Async => (
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

pub(crate) struct EngineReader<S> {
    pub(crate) indexes: Arc<IndexNames>,
    pub(crate) snapshot: S,
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

struct EngineWriter<'a, E: Engine> {
    common: &'a Common,
    engine: &'a E,
    snapshot: OnceCell<E::Snapshot>,
    changes: Vec<Changes>,
    /// Invariant: what the snapshot says.
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

    /// Remembers what was read below the changes.
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
        let (changes, removals) = (&self.changes[table], &self.removals[table]);
        Ok(Box::new(ChangedCursor { below, changes, removals, gap: Gap::First, ahead: None }))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        let table = self.number(table)?;
        let (snapshot, changes) = (self.snapshot()?, &self.changes[table]);
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
        // What nobody else has, the engine need not copy to change it.
        self.snapshot.take();
        let committed = self.engine.commit(&self.changes, self.known.get_mut());
        self.common.commits.fetch_add(1, Ordering::Release);
        let receipt = committed?;
        self.common.transactions.fetch_add(1, Ordering::Relaxed);
        Ok(receipt)
    }
}

/// Where a cursor stands.
#[derive(Debug)]
pub(crate) enum Gap {
    /// Before all entries.
    First,
    /// Behind all entries.
    Last,
    /// Before this key.
    Before(Vec<u8>),
    /// Behind this key.
    After(Vec<u8>),
}

/// Which way a cursor goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Forward,
    Backward,
}

impl Way {
    /// Beyond a key, for a cursor that goes this way.
    fn past(self, key: Vec<u8>) -> Gap {
        match self {
            Self::Forward => Gap::After(key),
            Self::Backward => Gap::Before(key),
        }
    }
}

/// A cursor over the changes of a writer and what is below them.
///
/// Invariant: the cursor below stands at the same gap, but for the entry that it has given ahead.
///
/// Cost: a step crosses removals of the writer one by one once; later steps jump over them.
struct ChangedCursor<'a> {
    below: Box<dyn Cursor + 'a>,
    changes: &'a Changes,
    removals: &'a RefCell<Removals<Vec<u8>>>,
    gap: Gap,
    /// What the cursor below has given, and which way it went for that.
    ahead: Option<(Way, Option<Entry>)>,
}

impl ChangedCursor<'_> {
    /// Makes the entry of the cursor below the one ahead.
    fn look_ahead(&mut self, way: Way) -> Result<()> {
        match &self.ahead {
            Some((looked, _)) if *looked == way => return Ok(()),
            // It turns, and has to go back over the entry first.
            Some((Way::Forward, Some(_))) => drop(self.below.prev()?),
            Some((Way::Backward, Some(_))) => drop(self.below.next()?),
            _ => {}
        }
        self.ahead = None;
        let entry = match way {
            Way::Forward => self.below.next()?,
            Way::Backward => self.below.prev()?,
        };
        self.ahead = Some((way, entry));
        Ok(())
    }

    /// The change that comes next.
    fn change(&self, way: Way) -> Option<(&Vec<u8>, &Option<Vec<u8>>)> {
        let from = match &self.gap {
            Gap::First => Bound::Unbounded,
            Gap::Last => return self.changes.iter().next_back().filter(|_| way == Way::Backward),
            Gap::Before(key) if way == Way::Forward => Bound::Included(key.as_slice()),
            Gap::After(key) if way == Way::Backward => Bound::Included(key.as_slice()),
            Gap::Before(key) | Gap::After(key) => Bound::Excluded(key.as_slice()),
        };
        match (way, &self.gap) {
            (Way::Forward, _) => self.changes.range::<[u8], _>((from, Bound::Unbounded)).next(),
            (Way::Backward, Gap::First) => None,
            (Way::Backward, _) => {
                self.changes.range::<[u8], _>((Bound::Unbounded, from)).next_back()
            }
        }
    }

    fn step(&mut self, way: Way) -> Result<Option<Entry>> {
        let mut crossed = Crossed::default();
        let found = self.step_over(way, &mut crossed);
        self.removals.borrow_mut().note(&crossed);
        found
    }

    /// Goes to the next entry, and notes the removals that it crosses.
    fn step_over(&mut self, way: Way, crossed: &mut Crossed<Vec<u8>>) -> Result<Option<Entry>> {
        loop {
            self.look_ahead(way)?;
            let below = self.ahead.as_ref().and_then(|(_, entry)| entry.as_ref());
            let change = self.change(way);
            let order = match (below, change) {
                (None, None) => return Ok(None),
                (Some((key, _)), Some((changed, _))) => match way {
                    Way::Forward => key.cmp(changed),
                    Way::Backward => changed.cmp(key),
                },
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
            };

            if let (Some((key, None)), true) = (change, order.is_ge()) {
                let key = key.clone();
                if !self.jump(way, &key, crossed)? {
                    crossed.step(&key);
                    if order.is_eq() {
                        self.ahead = None;
                    }
                    self.gap = way.past(key);
                }
                continue;
            }
            if let (Some((key, Some(value))), true) = (change, order.is_ge()) {
                let entry = (key.clone(), value.clone());
                if order.is_eq() {
                    self.ahead = None;
                }
                self.gap = way.past(entry.0.clone());
                return Ok(Some(entry));
            }

            let entry = self.ahead.take().and_then(|(_, entry)| entry);
            if let Some((key, _)) = &entry {
                self.gap = way.past(key.clone());
            }
            return Ok(entry);
        }
    }

    /// Goes to the far end of the range of removals that `key` is in, without crossing the key at
    /// that end. Answers whether there was anything to jump over.
    fn jump(&mut self, way: Way, key: &Vec<u8>, crossed: &mut Crossed<Vec<u8>>) -> Result<bool> {
        let removals = self.removals.borrow();
        let Some((first, last)) = removals.range_of(key) else { return Ok(false) };
        let far = match way {
            Way::Forward => last,
            Way::Backward => first,
        };
        if far == key {
            return Ok(false);
        }

        crossed.jump(key, far);
        self.below.seek(far)?;
        (self.gap, self.ahead) = (Gap::Before(far.clone()), None);
        Ok(true)
    }
}

impl Cursor for ChangedCursor<'_> {
    fn seek_first(&mut self) -> Result<()> {
        (self.gap, self.ahead) = (Gap::First, None);
        self.below.seek_first()
    }

    fn seek_last(&mut self) -> Result<()> {
        (self.gap, self.ahead) = (Gap::Last, None);
        self.below.seek_last()
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        (self.gap, self.ahead) = (Gap::Before(key.to_vec()), None);
        self.below.seek(key)
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        self.step(Way::Forward)
    }

    fn prev(&mut self) -> Result<Option<Entry>> {
        self.step(Way::Backward)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A sorted list, which counts what is asked of its cursor.
    struct Listed<'a> {
        entries: &'a [Entry],
        at: usize,
        calls: &'a Cell<u64>,
    }

    impl Listed<'_> {
        fn call(&self) {
            self.calls.set(self.calls.get() + 1);
        }
    }

    impl Cursor for Listed<'_> {
        fn seek_first(&mut self) -> Result<()> {
            self.call();
            self.at = 0;
            Ok(())
        }

        fn seek_last(&mut self) -> Result<()> {
            self.call();
            self.at = self.entries.len();
            Ok(())
        }

        fn seek(&mut self, key: &[u8]) -> Result<()> {
            self.call();
            self.at = self.entries.partition_point(|(other, _)| other.as_slice() < key);
            Ok(())
        }

        fn next(&mut self) -> Result<Option<Entry>> {
            self.call();
            let entry = self.entries.get(self.at).cloned();
            self.at += usize::from(entry.is_some());
            Ok(entry)
        }

        fn prev(&mut self) -> Result<Option<Entry>> {
            self.call();
            let Some(at) = self.at.checked_sub(1) else { return Ok(None) };
            self.at = at;
            Ok(Some(self.entries[at].clone()))
        }
    }

    /// A writer that removes all keys but the first and the last, and looks at both neighbours of
    /// each removed key, asked its snapshot for a number of entries that grew with the square of
    /// the removals: each look crossed all of them.
    #[test]
    fn looking_beside_each_of_many_removals_takes_steps_in_proportion_to_them() {
        let key = |number: u32| format!("{number:08}").into_bytes();
        let steps = |count: u32| {
            let entries: Vec<Entry> = (0..count).map(|number| (key(number), vec![1])).collect();
            let calls = Cell::new(0);
            let removals = RefCell::default();
            let mut changes = Changes::new();
            for number in 1..count - 1 {
                changes.insert(key(number), None);
                let below = Box::new(Listed { entries: &entries, at: 0, calls: &calls });
                let (changes, removals) = (&changes, &removals);
                let mut cursor =
                    ChangedCursor { below, changes, removals, gap: Gap::First, ahead: None };
                cursor.seek(&key(number)).unwrap();
                let after = cursor.next().unwrap().unwrap();
                assert_eq!(after.0, key(number + 1));
                cursor.seek(&key(number)).unwrap();
                assert_eq!(cursor.prev().unwrap().unwrap().0, key(0));
            }
            calls.get()
        };
        let (few, many) = (steps(200), steps(2_000));
        assert!(many < 12 * few, "{many} steps for ten times what took {few}");
    }
}
