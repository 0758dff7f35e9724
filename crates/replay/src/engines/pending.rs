//! Engine over a store with one state: the store has the last snapshot of each table, and memory
//! the changes since.
//!
//! Before the changes take too much memory, the engine asks the replay for a durable point.
//! [`commit`](Engine::commit) writes all snapshots saved since the last one: all of them or none.
//!
//! Invariant: a table has one snapshot, its last. Tables are numbered from 1 on.
//!
//! Invariant: [`Changes`] hold the net change of each key since the durable point, so that a merge
//! of changes and stored entries is the table.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::IntoIter;

use crate::engines::engine::{
    Cause, Change, Cursor, Engine, EngineError, Entry, Result, State, Table,
};

/// Changes in memory beyond which a durable point is asked for, in bytes.
const CHANGES_BYTES_MAX: usize = 64 << 20;

/// Approximate bytes of a change in memory, beside its key and value.
const CHANGE_OVERHEAD_BYTES: usize = 128;

/// Changes of a table since its snapshot; `None` deletes the key.
pub(super) type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Changed key with its value, or a removed key.
pub(super) type Changed = (Vec<u8>, Option<Vec<u8>>);

/// Snapshot in a store.
pub struct Snapshot {
    pub(super) name: String,
    pub(super) table: u32,
    pub(super) label: String,
}

impl Snapshot {
    /// Decodes a snapshot from its name and its value: the number of its table, u32-LE ‖ its label.
    pub(super) fn decode(name: &[u8], value: &[u8]) -> Result<Self> {
        let text = |bytes: &[u8]| {
            String::from_utf8(bytes.to_vec())
                .map_err(|_| corrupt("the name of a snapshot is not UTF-8"))
        };
        let (table, label) =
            value.split_first_chunk::<4>().ok_or_else(|| corrupt("a snapshot is cut off"))?;

        Ok(Self { name: text(name)?, table: u32::from_le_bytes(*table), label: text(label)? })
    }
}

/// Snapshot that waits for the next commit.
#[derive(Debug)]
pub struct Saved {
    pub(super) name: String,
    pub(super) table: u32,
    label: String,
    changes: Arc<Mutex<Changes>>,
}

impl Saved {
    /// Returns the value that [`Snapshot::decode`] takes.
    pub(super) fn value(&self) -> Vec<u8> {
        [&self.table.to_le_bytes(), self.label.as_bytes()].concat()
    }

    /// Returns the changes of the table since its last snapshot.
    pub(super) fn changes(&self) -> MutexGuard<'_, Changes> {
        locked(&self.changes)
    }
}

/// Store with one state, below an engine.
pub trait SingleState: Debug + Send + Sync {
    /// Name of the engine.
    fn name(&self) -> &'static str;

    /// Bytes of a key of a table at most.
    fn key_bytes_max(&self) -> usize;

    /// Bytes of a value of a table at most.
    fn value_bytes_max(&self) -> usize;

    /// Returns all snapshots.
    fn snapshots(&self) -> Result<Vec<Snapshot>>;

    /// Returns the stored value of each of `keys` of a table.
    fn get_many(&self, table: u32, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>>;

    /// Returns the stored entries of a table with keys `>= from`.
    fn scan(&self, table: u32, from: &[u8]) -> Result<Box<dyn Stored + '_>>;

    /// Writes the changes of saved tables, and their names in place of their `older` snapshots: all
    /// or none, durably.
    fn write(&self, saved: &[Saved], older: &[Snapshot]) -> Result<()>;

    /// Removes the entries of a snapshot's table, then the snapshot.
    fn delete(&self, snapshot: &Snapshot) -> Result<()>;
}

/// Engine over a store with one state.
#[derive(Debug)]
pub struct SingleStateEngine<S>(pub(super) Arc<Shared<S>>);

#[derive(Debug)]
pub(super) struct Shared<S> {
    pub(super) store: S,
    /// Number of the next table.
    next: AtomicU32,
    /// Memory of changes, in bytes.
    pub(super) changes_bytes: AtomicUsize,
    saved: Mutex<Vec<Saved>>,
}

#[derive(Debug)]
struct SingleStateTable<S: SingleState> {
    shared: Arc<Shared<S>>,
    number: u32,
    changes: Arc<Mutex<Changes>>,
}

pub(super) fn corrupt(what: impl Into<Cause>) -> EngineError {
    EngineError::Corrupt(what.into())
}

pub(super) fn refused<T>(message: String) -> Result<T> {
    Err(EngineError::Refused(message.into()))
}

impl<S: SingleState + 'static> SingleStateEngine<S> {
    /// Returns the engine over an open store.
    pub(super) fn over(store: S) -> Result<Self> {
        // New tables get numbers above those of all snapshots.
        let newest = store.snapshots()?.into_iter().map(|snapshot| snapshot.table).max();
        Ok(Self(Arc::new(Shared {
            store,
            next: AtomicU32::new(newest.unwrap_or(0) + 1),
            changes_bytes: AtomicUsize::new(0),
            saved: Mutex::new(Vec::new()),
        })))
    }

    fn find(&self, name: &str) -> Result<Option<Snapshot>> {
        Ok(self.0.store.snapshots()?.into_iter().find(|snapshot| snapshot.name == name))
    }

    fn table(&self, number: u32) -> Box<dyn Table> {
        let shared = Arc::clone(&self.0);
        Box::new(SingleStateTable { shared, number, changes: Arc::default() })
    }
}

impl<S: SingleState + 'static> Engine for SingleStateEngine<S> {
    fn name(&self) -> &'static str {
        self.0.store.name()
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn forks_max(&self) -> usize {
        0
    }

    fn keeps_snapshots(&self) -> bool {
        false
    }

    fn key_bytes_max(&self) -> usize {
        self.0.store.key_bytes_max()
    }

    fn value_bytes_max(&self) -> usize {
        self.0.store.value_bytes_max()
    }

    fn new_table(&self) -> Result<Box<dyn Table>> {
        Ok(self.table(self.0.next.fetch_add(1, Ordering::Relaxed)))
    }

    fn snapshots(&self) -> Result<Vec<String>> {
        Ok(self.0.store.snapshots()?.into_iter().map(|snapshot| snapshot.name).collect())
    }

    fn open(&self, snapshot: &str, label: &str) -> Result<Box<dyn Table>> {
        match self.find(snapshot)? {
            None => refused(format!("there is no snapshot {snapshot:?}")),
            Some(Snapshot { label: found, .. }) if found != label => {
                refused(format!("snapshot {snapshot:?} has the label {found:?}, not {label:?}"))
            }
            Some(Snapshot { table, .. }) => Ok(self.table(table)),
        }
    }

    fn delete(&self, snapshot: &str) -> Result<()> {
        self.find(snapshot)?.map_or(Ok(()), |found| self.0.store.delete(&found))
    }

    fn commit(&self) -> Result<()> {
        // If saving fails, the next save takes another name.
        let saved = std::mem::take(&mut *locked(&self.0.saved));
        // A table has one snapshot, so its older names go.
        let mut older = self.0.store.snapshots()?;
        older.retain(|snapshot| saved.iter().any(|saved| saved.table == snapshot.table));
        self.0.store.write(&saved, &older)?;

        // Only durable changes leave memory.
        for saved in saved {
            let mut changes = saved.changes();
            self.0.changes_bytes.fetch_sub(bytes_of(&changes), Ordering::Relaxed);
            changes.clear();
        }

        Ok(())
    }

    fn wants_commit(&self) -> bool {
        self.0.changes_bytes.load(Ordering::Relaxed) > CHANGES_BYTES_MAX
    }
}

impl<S: SingleState> State for SingleStateTable<S> {
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        // Changes in memory hide what is stored.
        let changes = locked(&self.changes);
        let mut found: Vec<Option<Vec<u8>>> =
            keys.iter().map(|&key| changes.get(key).cloned().flatten()).collect();
        let missing: Vec<usize> =
            (0..keys.len()).filter(|&at| !changes.contains_key(keys[at])).collect();
        drop(changes);

        let stored: Vec<&[u8]> = missing.iter().map(|&at| keys[at]).collect();
        let values = self.shared.store.get_many(self.number, &stored)?;
        for (at, value) in missing.into_iter().zip(values) {
            found[at] = value;
        }

        Ok(found)
    }

    fn scan(&self, from: &[u8]) -> Result<Box<dyn Cursor + '_>> {
        let stored = self.shared.store.scan(self.number, from)?;
        Ok(Box::new(Merged::new(stored, &locked(&self.changes), from)?))
    }
}

impl<S: SingleState> Table for SingleStateTable<S> {
    fn update(&mut self, changes: &[Change<'_>]) -> Result<()> {
        let mut held = locked(&self.changes);
        for change in changes {
            let (new, old) = add(&mut held, change);
            self.shared.changes_bytes.fetch_add(new, Ordering::Relaxed);
            self.shared.changes_bytes.fetch_sub(old, Ordering::Relaxed);
        }

        Ok(())
    }

    fn fork(&self) -> Result<Box<dyn Table>> {
        let name = self.shared.store.name();
        refused(format!("engine {name} has one state and makes no forks"))
    }

    fn save(&self, snapshot: &str, label: &str) -> Result<()> {
        locked(&self.shared.saved).push(Saved {
            name: snapshot.to_owned(),
            label: label.to_owned(),
            table: self.number,
            changes: Arc::clone(&self.changes),
        });
        Ok(())
    }
}

/// Uncommitted changes are dropped with the table.
impl<S: SingleState> Drop for SingleStateTable<S> {
    fn drop(&mut self) {
        // Changes of a table that goes no longer count.
        let bytes = bytes_of(&locked(&self.changes));
        self.shared.changes_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Locks what no thread leaves half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the memory of some changes, in bytes.
fn bytes_of(changes: &Changes) -> usize {
    changes.iter().map(change_bytes).sum()
}

fn change_bytes((key, value): (&Vec<u8>, &Option<Vec<u8>>)) -> usize {
    key.len() + value.as_ref().map_or(0, Vec::len) + CHANGE_OVERHEAD_BYTES
}

/// Adds a change; returns the memory added and the memory freed, in bytes.
fn add(changes: &mut Changes, change: &Change<'_>) -> (usize, usize) {
    let key = change.key.to_vec();
    let value = change.value.map(<[u8]>::to_vec);
    // An older change of the key no longer counts.
    let old = changes.get_key_value(&key).map_or(0, change_bytes);
    let new = change_bytes((&key, &value));
    changes.insert(key, value);
    (new, old)
}

/// Stored entries of a table, in key order.
pub trait Stored {
    /// Returns the next key and its value as it is stored.
    fn next(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>>;

    /// Returns the value of a key from its stored form.
    fn value(&self, key: &[u8], stored: Vec<u8>) -> Result<Vec<u8>>;
}

/// Stored entries with the changes above them.
struct Merged<'a> {
    stored: Box<dyn Stored + 'a>,
    /// The next stored entry.
    next: Option<(Vec<u8>, Vec<u8>)>,
    changes: Peekable<IntoIter<Changed>>,
}

impl<'a> Merged<'a> {
    /// Merges the stored entries from a key on with the changes from this key on.
    fn new(mut stored: Box<dyn Stored + 'a>, changes: &Changes, from: &[u8]) -> Result<Self> {
        let range = (Bound::Included(from), Bound::Unbounded);
        let changes: Vec<Changed> = changes
            .range::<[u8], _>(range)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        // The first stored entry is read ahead, to be compared with the first change.
        let next = stored.next()?;
        Ok(Self { stored, next, changes: changes.into_iter().peekable() })
    }
}

impl Cursor for Merged<'_> {
    fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            let changed = self.changes.peek().map(|(key, _)| key);
            let stored = self.next.as_ref().map(|(key, _)| key);
            // At an equal key the change comes first and hides the stored entry.
            let is_changed = changed.is_some_and(|key| stored.is_none_or(|stored| key <= stored));
            if is_changed && changed == stored {
                self.next = self.stored.next()?;
            }

            if is_changed {
                // A removal gives no entry.
                match self.changes.next() {
                    Some((key, Some(value))) => return Ok(Some(Entry { key, value })),
                    _ => continue,
                }
            }

            let Some((key, stored)) = self.next.take() else { return Ok(None) };
            self.next = self.stored.next()?;
            let value = self.stored.value(&key, stored)?;
            return Ok(Some(Entry { key, value }));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    //! A sorted map beside a table, for the tests of the engines.

    use super::*;

    pub(in crate::engines) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

    /// Returns the entries of a table with keys `>= from`, whose order is checked.
    pub(in crate::engines) fn content(table: &dyn State, from: &[u8]) -> Model {
        let mut cursor = table.scan(from).unwrap();
        let mut model = Model::new();
        while let Some(Entry { key, value }) = cursor.next().unwrap() {
            assert!(model.last_key_value().is_none_or(|(last, _)| *last < key));
            model.insert(key, value);
        }
        model
    }

    /// Returns the entries of a model with keys `>= from`.
    pub(in crate::engines) fn range(model: &Model, from: &[u8]) -> Model {
        model.range(from.to_vec()..).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Puts or removes a value in a table and its model.
    pub(in crate::engines) fn put(
        table: &mut dyn Table,
        model: &mut Model,
        key: &[u8],
        value: Option<&[u8]>,
    ) {
        table.update(&[Change { key, value }]).unwrap();
        match value {
            Some(value) => model.insert(key.to_vec(), value.to_vec()),
            None => model.remove(key),
        };
    }
}
