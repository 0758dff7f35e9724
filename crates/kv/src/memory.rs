//! Reference implementation of [`Database`]: tables in memory, gone with the last handle.
//!
//! Each key has a list of versions, the newest last. A version is the value, or the removal, that
//! one commit bound the key to. A snapshot is the number of the last commit at its creation, so
//! taking a snapshot copies no map.
//!
//! Invariants:
//! * A version is kept while the present or a live snapshot sees it. A superseded version is in the
//!   waste of the newest live snapshot that sees it. When that snapshot ends, the version passes to
//!   the next older snapshot that sees it, or is freed.
//! * The oldest version of a key is a value: a removal with nothing before it is dropped. A key
//!   without a value is not in the map.
//! * While a writer lives, only its own commit changes the present.
//! * No lock is held between two calls. A commit blocks readers while it enters its changes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;
use std::mem;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use terrane_io::Durability;

use crate::database::{
    Counts, Cursor, Database, Entry, Error, Guarantee, PowerLoss, Reader, Receipt, Result, Table,
    Writer, check_entry, check_indexes,
};
use crate::gap::{Gap, GapCursor, Way};
use crate::removals::{Crossed, Removals};
use crate::turn::{Turn, TurnGuard};

const NAME: &str = "memory";
/// Bytes that a version counts for beside its key and value: an estimate of its part of the map and
/// of the two allocations.
const VERSION_BYTES: u64 = 96;

type Key = Arc<[u8]>;
type Value = Arc<[u8]>;
/// Changes of one table by a writer; `None` removes the key.
type Changes = BTreeMap<Key, Option<Value>>;

/// A database in memory. Clones are the same database. Nothing of it is ever on a disk.
///
/// Cost: a call takes O(log n) for n keys; a commit O(log n) for each key that it changes. Dropping
/// a reader takes O(log n) for each version that only it saw, and O(1) for each that only it and
/// older readers see.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

impl Memory {
    /// An empty database with these indexes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a name that cannot name an index, one that is there twice, and
    /// too many of them.
    pub fn new(indexes: &[&str]) -> Result<Self> {
        check_indexes(NAME, indexes)?;
        let tables = (0..=indexes.len()).map(|_| Entries::default()).collect();
        Ok(Self {
            shared: Arc::new(Shared {
                indexes: indexes.iter().map(|&name| name.to_owned()).collect(),
                state: RwLock::new(State { tables, ..State::default() }),
                turn: Turn::default(),
            }),
        })
    }

    /// Limits the database to `bytes`: from now on a commit that would grow it beyond the limit is
    /// [`Error::StoreFull`]. Counts as [`disk_bytes`](Database::disk_bytes) does: each key and
    /// value of the present and each older one that a live reader sees, with 96 bytes more for
    /// each.
    #[must_use]
    pub fn with_limit(self, bytes: u64) -> Self {
        self.shared.write().limit = Some(bytes);
        self
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.read();
        f.debug_struct("Memory")
            .field("indexes", &self.shared.indexes)
            .field("limit", &state.limit)
            .field("commits", &state.present)
            .field("snapshots", &state.snapshots.len())
            .field("bytes", &state.bytes)
            .finish_non_exhaustive()
    }
}

impl Database for Memory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        let mut state = self.shared.write();
        state.open("reader")?;
        // A reader sees the commits up to now.
        let number = state.present;
        state.snapshots.entry(number).or_default().readers += 1;
        // Counts are taken with the snapshot, since later commits change them.
        let counts = state.counts();
        Ok(Box::new(MemoryReader { shared: Arc::clone(&self.shared), number, counts }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        self.shared.read().open("writer")?;
        let turn = self.shared.turn.take(NAME)?;
        // It may have been closed while this call waited.
        let state = self.shared.read();
        state.open("writer")?;
        let counts = state.counts();
        let changes = vec![Changes::new(); counts.len()];
        let removals = vec![RefCell::default(); counts.len()];
        Ok(Box::new(MemoryWriter { shared: &self.shared, _turn: turn, changes, removals, counts }))
    }

    fn last_commit(&self) -> Option<u64> {
        Some(self.shared.read().present)
    }

    fn settle(&self, _: Receipt) -> Result<()> {
        self.shared.read().open("settle")
    }

    /// Always fails: memory survives no loss of power.
    fn sync(&self) -> Result<()> {
        self.shared.read().open("sync")?;
        Err(Error::Unsupported {
            back_end: NAME,
            option: "sync".to_owned(),
            why: "memory survives no loss of power; keep the data in another back-end".to_owned(),
        })
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee {
            durability: Durability::None,
            survives_kill: false,
            power_loss: PowerLoss::NoPromise,
            text: "all data is in memory, and gone when the process ends".to_owned(),
        }
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let limit = self.shared.read().limit;
        vec![("limit_bytes", limit.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string()))]
    }

    fn counts(&self) -> Counts {
        self.shared.read().done
    }

    fn disk_bytes(&self) -> Result<u64> {
        let state = self.shared.read();
        state.open("disk_bytes")?;
        Ok(state.bytes)
    }

    /// Does nothing: a version that nobody sees is freed at once.
    fn compact(&self) -> Result<()> {
        self.shared.read().open("compact")
    }

    fn close(&self) -> Result<()> {
        let mut state = self.shared.write();
        state.open("close")?;
        // The counts stay readable.
        *state = State { closed: true, done: state.done, limit: state.limit, ..State::default() };
        Ok(())
    }
}

struct Shared {
    indexes: Vec<String>,
    state: RwLock<State>,
    /// The right to write.
    turn: Turn,
}

impl Shared {
    // Takes a poisoned lock too: no code under the lock can panic half way.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a table, with which [`State::tables`] and the counts of readers are indexed.
    fn table(&self, table: Table<'_>) -> Result<usize> {
        match table {
            Table::Main => Ok(0),
            Table::Index(name) => self
                .indexes
                .iter()
                .position(|index| index == name)
                .map(|index| index + 1)
                .ok_or_else(|| Error::UnknownIndex { name: name.to_owned() }),
        }
    }
}

#[derive(Default)]
struct State {
    tables: Vec<Entries>,
    /// The number of the last commit; 0 before the first.
    present: u64,
    /// The living snapshots by the number of the commit that they see.
    snapshots: BTreeMap<u64, Snapshot>,
    /// The sum of the costs of all versions.
    bytes: u64,
    limit: Option<u64>,
    done: Counts,
    closed: bool,
}

#[derive(Default)]
struct Entries {
    versions: BTreeMap<Key, Versions>,
    /// Keys that the present binds.
    count: u64,
}

/// Versions of a key.
struct Versions {
    /// Superseded versions, by rising commit.
    older: Vec<Version>,
    newest: Version,
}

struct Version {
    /// The number of the commit that made it.
    born: u64,
    /// `None`: removed.
    value: Option<Value>,
}

#[derive(Default)]
struct Snapshot {
    readers: usize,
    waste: Vec<Waste>,
}

/// Names a superseded version, which may be freed already: a removal goes with the last version
/// before it.
struct Waste {
    table: usize,
    key: Key,
    born: u64,
}

fn cost(key: &[u8], version: &Version) -> u64 {
    let value = version.value.as_ref().map_or(0, |value| value.len());
    VERSION_BYTES + (key.len() + value) as u64
}

impl Versions {
    /// The value that the snapshot of commit `number` sees.
    fn at(&self, number: u64) -> Option<&Value> {
        // Most lookups want the newest version.
        let version = if self.newest.born <= number {
            Some(&self.newest)
        } else {
            let seen = self.older.partition_point(|version| version.born <= number);
            seen.checked_sub(1).and_then(|last| self.older.get(last))
        };
        version.and_then(|version| version.value.as_ref())
    }

    /// Whether a snapshot sees the newest version, if `snapshot` is the newest one.
    fn is_seen(&self, snapshot: Option<u64>) -> bool {
        snapshot.is_some_and(|number| self.newest.born <= number)
    }
}

/// Bytes added and freed when `next` supersedes the `versions` of a key.
fn effect(
    key: &[u8],
    versions: Option<&Versions>,
    next: &Version,
    snapshot: Option<u64>,
) -> (u64, u64) {
    // A key without versions takes room only if it gets a value.
    let Some(versions) = versions else {
        return (if next.value.is_some() { cost(key, next) } else { 0 }, 0);
    };

    // A removal of what is not there changes nothing.
    if next.value.is_none() && versions.newest.value.is_none() {
        return (0, 0);
    }

    // A version that a snapshot sees stays, whatever comes after it.
    let is_seen = versions.is_seen(snapshot);
    // A removal that no snapshot looks behind leaves nothing of the key.
    let is_gone = next.value.is_none() && !is_seen && versions.older.is_empty();
    (
        if is_gone { 0 } else { cost(key, next) },
        if is_seen { 0 } else { cost(key, &versions.newest) },
    )
}

impl State {
    fn open(&self, call: &'static str) -> Result<()> {
        if self.closed {
            let source = "the database is closed".into();
            return Err(Error::BackEnd { back_end: NAME, call, source });
        }
        Ok(())
    }

    fn counts(&self) -> Vec<u64> {
        self.tables.iter().map(|table| table.count).collect()
    }

    fn get(&self, table: usize, key: &[u8], number: u64) -> Result<Option<Value>> {
        self.open("get")?;
        let versions = self.tables.get(table).and_then(|table| table.versions.get(key));
        Ok(versions.and_then(|versions| versions.at(number)).map(Arc::clone))
    }

    /// The next entry from `gap` that the snapshot of commit `number` sees.
    fn step(
        &self,
        table: usize,
        gap: &Gap<Key>,
        way: Way,
        number: u64,
    ) -> Result<Option<(Key, Value)>> {
        self.open("cursor")?;
        Ok(self.tables.get(table).and_then(|table| {
            find(&table.versions, gap, way, |versions| versions.at(number).map(Arc::clone))
        }))
    }

    fn newest_snapshot(&self) -> Option<u64> {
        self.snapshots.last_key_value().map(|(&number, _)| number)
    }

    /// Bytes of the database after a commit of `changes`.
    fn bytes_after(&self, changes: &[Changes]) -> u64 {
        // Versions that the newest snapshot sees cannot be freed.
        let snapshot = self.newest_snapshot();
        let mut bytes = self.bytes;
        for (table, changes) in self.tables.iter().zip(changes) {
            for (key, value) in changes {
                let next = Version { born: self.present + 1, value: value.clone() };
                let (added, freed) = effect(key, table.versions.get(key), &next, snapshot);
                bytes = bytes + added - freed;
            }
        }
        bytes
    }

    fn commit(&mut self, changes: Vec<Changes>) -> Result<Receipt> {
        self.open("commit")?;
        debug_assert_eq!(changes.len(), self.tables.len(), "each table has its changes");

        // Checked before anything changes. A commit that does not grow the database always passes.
        if let Some(limit) = self.limit {
            let after = self.bytes_after(&changes);
            if limit < after && self.bytes < after {
                return Err(Error::StoreFull {
                    back_end: NAME,
                    limit: format!("{after} bytes of at most {limit}"),
                    source: None,
                });
            }
        }

        // The number of the new versions: no snapshot has it yet, so none sees them.
        self.present += 1;
        debug_assert!(self.newest_snapshot().is_none_or(|number| number < self.present));
        self.done.transactions += 1;
        let snapshot = self.newest_snapshot();

        let mut waste = Vec::new();
        for (table, (entries, changes)) in self.tables.iter_mut().zip(changes).enumerate() {
            for (key, value) in changes {
                self.done.bytes_written +=
                    (key.len() + value.as_ref().map_or(0, |value| value.len())) as u64;
                let next = Version { born: self.present, value };
                let (added, freed) = entries.bind(table, key, next, snapshot, &mut waste);
                self.bytes = self.bytes + added - freed;
            }
        }

        // The superseded versions that a snapshot sees belong to the newest one that does.
        if let Some(mut newest) = self.snapshots.last_entry() {
            newest.get_mut().waste.append(&mut waste);
        }

        Ok(Receipt(self.present))
    }

    /// Ends a reader of the snapshot of commit `number`.
    fn release(&mut self, number: u64) {
        // Closing has dropped all snapshots.
        let Slot::Occupied(mut slot) = self.snapshots.entry(number) else {
            return;
        };

        debug_assert!(0 < slot.get().readers);
        slot.get_mut().readers -= 1;
        if slot.get().readers > 0 {
            return;
        }

        // The next older snapshot inherits the versions that it sees; nobody else sees the rest.
        let waste = slot.remove().waste;
        let mut heir = self.snapshots.range_mut(..number).next_back();
        for item in waste {
            match &mut heir {
                Some((older, snapshot)) if item.born <= **older => snapshot.waste.push(item),
                _ => {
                    if let Some(entries) = self.tables.get_mut(item.table) {
                        self.bytes -= entries.free(&item);
                    }
                }
            }
        }
    }
}

impl Entries {
    /// Makes `next` the newest version of a key. Frees the superseded version, or moves it to
    /// `waste` if `snapshot`, the newest one, sees it. Returns the bytes added and freed.
    fn bind(
        &mut self,
        table: usize,
        key: Key,
        next: Version,
        snapshot: Option<u64>,
        waste: &mut Vec<Waste>,
    ) -> (u64, u64) {
        match self.versions.entry(key) {
            Slot::Vacant(slot) => {
                let effect = effect(slot.key(), None, &next, snapshot);
                if next.value.is_some() {
                    self.count += 1;
                    slot.insert(Versions { older: Vec::new(), newest: next });
                }
                effect
            }
            Slot::Occupied(mut slot) => {
                let effect = effect(slot.key(), Some(slot.get()), &next, snapshot);
                match (slot.get().newest.value.is_some(), next.value.is_some()) {
                    // A removal of an absent key changes nothing.
                    (false, false) => return effect,
                    (false, true) => self.count += 1,
                    (true, false) => self.count -= 1,
                    (true, true) => {}
                }

                // A version that a snapshot sees is kept until the snapshot goes.
                let is_seen = slot.get().is_seen(snapshot);
                if is_seen {
                    let key = Arc::clone(slot.key());
                    let born = slot.get().newest.born;
                    waste.push(Waste { table, key, born });
                }

                let versions = slot.get_mut();
                let previous = mem::replace(&mut versions.newest, next);
                // `older` stays sorted by birth, which lookups of snapshots rely on.
                debug_assert!(previous.born < versions.newest.born);
                if is_seen {
                    versions.older.push(previous);
                } else if versions.newest.value.is_none() && versions.older.is_empty() {
                    slot.remove();
                }

                effect
            }
        }
    }

    /// Frees a superseded version, and the removals that then have nothing before them. Returns the
    /// bytes freed.
    fn free(&mut self, waste: &Waste) -> u64 {
        let Some(versions) = self.versions.get_mut(&waste.key) else {
            return 0;
        };

        let Ok(index) = versions.older.binary_search_by_key(&waste.born, |version| version.born)
        else {
            return 0;
        };

        // A removal with nothing before it is dropped, so that the oldest version is a value.
        let mut bytes = cost(&waste.key, &versions.older.remove(index));
        let removals = versions.older.iter().take_while(|version| version.value.is_none()).count();
        bytes +=
            versions.older.drain(..removals).map(|version| cost(&waste.key, &version)).sum::<u64>();

        // A removal that hides nothing goes, and the key with it.
        if versions.older.is_empty() && versions.newest.value.is_none() {
            bytes += cost(&waste.key, &versions.newest);
            self.versions.remove(&waste.key);
        }

        bytes
    }
}

struct MemoryReader {
    shared: Arc<Shared>,
    /// The commit that it sees.
    number: u64,
    counts: Vec<u64>,
}

impl Drop for MemoryReader {
    fn drop(&mut self) {
        self.shared.write().release(self.number);
    }
}

impl Reader for MemoryReader {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let value = self.shared.read().get(self.shared.table(table)?, key, self.number)?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let table = self.shared.table(table)?;
        self.shared.read().open("cursor")?;
        // A cursor reads at each step and holds no lock between two steps.
        Ok(Box::new(MemoryCursor { view: self, table, gap: Gap::First }))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        let table = self.shared.table(table)?;
        self.shared.read().open("count")?;
        Ok(self.counts.get(table).copied().unwrap_or_default())
    }
}

struct MemoryWriter<'a> {
    shared: &'a Shared,
    _turn: TurnGuard<'a>,
    /// By table.
    changes: Vec<Changes>,
    /// Ranges of removals that cursors jump over, by table.
    removals: Vec<RefCell<Removals<Key>>>,
    /// Number of entries that the writer sees, by table.
    counts: Vec<u64>,
}

impl MemoryWriter<'_> {
    /// The value of a key that the writer sees.
    fn find(&self, table: usize, key: &[u8]) -> Result<Option<Value>> {
        let state = self.shared.read();
        state.open("get")?;
        match self.changes.get(table).and_then(|changes| changes.get(key)) {
            Some(change) => Ok(change.clone()),
            // Nobody else commits as long as this writer has its turn.
            None => state.get(table, key, state.present),
        }
    }

    fn change(&mut self, table: usize, key: &[u8], value: Option<Value>) -> Result<()> {
        let was = self.find(table, key)?.is_some();
        if let (Some(changes), Some(removals), Some(count)) =
            (self.changes.get_mut(table), self.removals.get_mut(table), self.counts.get_mut(table))
        {
            // A value splits the run of removals that it lies in.
            if value.is_some() {
                removals.get_mut().bind(key, changes);
            }
            // Added first, so that the sum does not fall below 0.
            *count = *count + u64::from(value.is_some()) - u64::from(was);
            changes.insert(Key::from(key), value);
        }
        Ok(())
    }
}

impl Reader for MemoryWriter<'_> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let value = self.find(self.shared.table(table)?, key)?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let table = self.shared.table(table)?;
        // A cursor reads at its first step, so the database is checked here.
        self.shared.read().open("cursor")?;
        Ok(Box::new(MemoryCursor { view: self, table, gap: Gap::First }))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        let table = self.shared.table(table)?;
        self.shared.read().open("count")?;
        Ok(self.counts.get(table).copied().unwrap_or_default())
    }
}

impl Writer for MemoryWriter<'_> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        check_entry(key, value)?;
        let table = self.shared.table(table)?;
        self.change(table, key, Some(Value::from(value)))
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        let table = self.shared.table(table)?;
        self.change(table, key, None)
    }

    fn commit(self: Box<Self>) -> Result<Receipt> {
        self.shared.write().commit(self.changes)
    }
}

/// The first entry in this direction from `gap` for which `pick` returns something.
fn find<V, T>(
    map: &BTreeMap<Key, V>,
    gap: &Gap<Key>,
    way: Way,
    pick: impl Fn(&V) -> Option<T>,
) -> Option<(Key, T)> {
    let take = |(key, value): (&Key, &V)| Some((Arc::clone(key), pick(value)?));
    let mut range = map.range::<[u8], _>(gap.ahead(way)?);
    match way {
        Way::Forward => range.find_map(take),
        Way::Backward => range.rev().find_map(take),
    }
}

/// Source of a cursor.
trait View {
    fn step(&self, table: usize, gap: &Gap<Key>, way: Way) -> Result<Option<(Key, Value)>>;
}

impl View for MemoryReader {
    fn step(&self, table: usize, gap: &Gap<Key>, way: Way) -> Result<Option<(Key, Value)>> {
        self.shared.read().step(table, gap, way, self.number)
    }
}

impl View for MemoryWriter<'_> {
    fn step(&self, table: usize, gap: &Gap<Key>, way: Way) -> Result<Option<(Key, Value)>> {
        let mut crossed = Crossed::default();
        let found = self.step_over(table, gap.clone(), way, &mut crossed);
        // Removals that were crossed are noted, so that later walks jump over them.
        if let Some(removals) = self.removals.get(table) {
            removals.borrow_mut().note(&crossed);
        }
        found
    }
}

impl MemoryWriter<'_> {
    /// The next entry from `gap`; notes the removals that the step crosses.
    fn step_over(
        &self,
        table: usize,
        mut gap: Gap<Key>,
        way: Way,
        crossed: &mut Crossed<Key>,
    ) -> Result<Option<(Key, Value)>> {
        let state = self.shared.read();
        loop {
            let committed = state.step(table, &gap, way, state.present)?;
            let changes = self.changes.get(table);

            let changed =
                changes.and_then(|own| find(own, &gap, way, |change| Some(change.clone())));
            let (key, value) = match (committed, changed) {
                (None, None) => return Ok(None),
                (Some((key, value)), None) => (key, Some(value)),
                (None, Some(changed)) => changed,
                // The nearer one; of the same key, the change.
                (Some((key, value)), Some(changed)) => {
                    let is_nearer = match way {
                        Way::Forward => key < changed.0,
                        Way::Backward => key > changed.0,
                    };
                    if is_nearer { (key, Some(value)) } else { changed }
                }
            };

            // A removal is passed at once with the known run of removals around it.
            match value {
                Some(value) => return Ok(Some((key, value))),
                None => gap = way.past(self.far_end(table, key, way, crossed)),
            }
        }
    }
}

impl MemoryWriter<'_> {
    /// The last key in this direction of the removals that are known to follow `key` without a gap.
    fn far_end(&self, table: usize, key: Key, way: Way, crossed: &mut Crossed<Key>) -> Key {
        let Some(removals) = self.removals.get(table) else { return key };
        let removals = removals.borrow();
        let Some((first, last)) = removals.range_of(&key) else {
            crossed.step(&key);
            return key;
        };

        let far = match way {
            Way::Forward => last,
            Way::Backward => first,
        };

        crossed.jump(&key, far);
        Arc::clone(far)
    }
}

struct MemoryCursor<'a> {
    view: &'a dyn View,
    table: usize,
    gap: Gap<Key>,
}

impl GapCursor for MemoryCursor<'_> {
    type Key = Key;

    fn go_to(&mut self, gap: Gap<Key>) -> Result<()> {
        self.gap = gap;
        Ok(())
    }

    fn step(&mut self, way: Way) -> Result<Option<Entry>> {
        let Some((key, value)) = self.view.step(self.table, &self.gap, way)? else {
            return Ok(None);
        };
        let entry = (key.to_vec(), value.to_vec());
        self.gap = way.past(key);
        Ok(Some(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that looked beside each of its removals crossed all of them each time.
    #[test]
    fn a_cursor_of_a_writer_notes_the_removals_that_it_crosses() {
        let memory = Memory::new(&[]).unwrap();
        let mut writer = memory.writer().unwrap();
        (1..100).for_each(|key| writer.overwrite(Table::Main, &[key], &[1]).unwrap());
        writer.commit().unwrap();

        let counts = memory.shared.read().counts();
        let mut writer = MemoryWriter {
            shared: &memory.shared,
            _turn: memory.shared.turn.take(NAME).unwrap(),
            changes: vec![Changes::new()],
            removals: vec![RefCell::default()],
            counts,
        };

        for key in 2..99 {
            writer.remove(Table::Main, &[key]).unwrap();
            let mut cursor = writer.cursor(Table::Main).unwrap();
            cursor.seek(&[key]).unwrap();
            assert_eq!(cursor.prev().unwrap().unwrap().0, [1]);
            cursor.seek(&[2]).unwrap();
            assert_eq!(cursor.next().unwrap().unwrap().0, [key + 1]);
        }

        {
            let removals = writer.removals[0].borrow();
            let (first, last) = removals.range_of(&[50]).unwrap();
            assert_eq!((&first[..], &last[..]), (&[2][..], &[98][..]));
        }

        writer.overwrite(Table::Main, &[50], &[2]).unwrap();
        let mut cursor = writer.cursor(Table::Main).unwrap();
        let keys: Vec<u8> =
            std::iter::from_fn(|| cursor.next().unwrap()).map(|(key, _)| key[0]).collect();
        assert_eq!(keys, [1, 50, 99]);
    }
}
