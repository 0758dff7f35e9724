//! Writer that keeps its changes in memory above a snapshot, and hands all of them over as one
//! commit.
//!
//! A writer takes its snapshot when it first reads, and drops the snapshot before it commits.

use std::cell::{OnceCell, RefCell};

use crate::database::{Cursor, Reader, Receipt, Result, Table, Writer, check_entry};
use crate::overlay::changes::{ChangedCursor, Changes, Known};
use crate::overlay::names::IndexNames;
use crate::overlay::snapshot::Snapshot;
use crate::removals::Removals;
use crate::turn::TurnGuard;

/// Most keys that a writer remembers of each table: some megabytes.
const KNOWN_MAX: usize = 1 << 16;

/// Database below a transaction.
pub trait Base {
    /// Snapshot of all tables.
    type Snapshot: Snapshot;

    /// Whether a commit is faster if it knows the old values' lengths of some of its keys.
    const WANTS_KNOWN: bool;

    /// Names of the indexes.
    fn indexes(&self) -> &IndexNames;

    /// Takes a snapshot of the last commit.
    ///
    /// # Errors
    /// Those of the back-end.
    fn snapshot(&self) -> Result<Self::Snapshot>;

    /// Commits the changes of each table, all or nothing. `known` holds for the state that the
    /// commit finds.
    ///
    /// # Errors
    /// Those of the back-end.
    fn commit(&self, changes: &[Changes], known: &[Known]) -> Result<Receipt>;
}

/// A writer: its changes, and the snapshot below them.
pub struct Transaction<'a, B: Base> {
    base: B,
    snapshot: OnceCell<B::Snapshot>,
    changes: Vec<Changes>,
    /// Invariant: agrees with the snapshot.
    known: RefCell<Vec<Known>>,
    /// Ranges of removals that cursors jump over, by table.
    removals: Vec<RefCell<Removals<Vec<u8>>>>,
    _turn: TurnGuard<'a>,
}

impl<'a, B: Base> Transaction<'a, B> {
    /// A writer without changes, which keeps the turn until it is dropped.
    pub fn new(base: B, turn: TurnGuard<'a>) -> Self {
        let tables = base.indexes().iter().len() + 1;
        Self {
            base,
            snapshot: OnceCell::new(),
            changes: vec![Changes::new(); tables],
            known: RefCell::new(vec![Known::new(); tables]),
            removals: vec![RefCell::default(); tables],
            _turn: turn,
        }
    }

    fn number(&self, table: Table<'_>) -> Result<usize> {
        self.base.indexes().number(table)
    }

    fn snapshot(&self) -> Result<&B::Snapshot> {
        // The snapshot is made with the first read, so a writer that only writes needs none.
        if let Some(snapshot) = self.snapshot.get() {
            return Ok(snapshot);
        }
        let snapshot = self.base.snapshot()?;
        Ok(self.snapshot.get_or_init(|| snapshot))
    }

    /// Remembers the length of a value that was read from the snapshot.
    fn note(&self, table: usize, key: &[u8], value: Option<&Vec<u8>>) {
        // Some engines commit faster if they know which keys exist. The number of notes is bounded.
        if B::WANTS_KNOWN {
            let known = &mut self.known.borrow_mut()[table];
            if known.len() < KNOWN_MAX {
                known.insert(key.to_vec(), value.map(Vec::len));
            }
        }
    }
}

impl<B: Base> Reader for Transaction<'_, B> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.number(table)?;
        // Own changes hide the snapshot.
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

impl<B: Base> Writer for Transaction<'_, B> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        check_entry(key, value)?;
        let table = self.number(table)?;
        // A value splits the run of removals that it lies in.
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
        // What no snapshot holds, an engine can change without a copy.
        self.snapshot.take();
        self.base.commit(&self.changes, self.known.get_mut())
    }
}
