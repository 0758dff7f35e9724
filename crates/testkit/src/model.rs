//! The model of the tables: a forest of sorted maps with duplicates, cursors and named snapshots.
//!
//! It says what the engine must answer, in the plainest way: a table is a `BTreeMap`, a duplicate
//! is a clone, a snapshot is a clone with a name and a label, a cursor is a copy of what is left.
//! It knows nothing of runs, merges, buffers or files, and that is its worth: a test drives the
//! engine and the model side by side and compares every answer.
//!
//! [`Forest::crash`] is what is left after the process died: no table and no cursor, every snapshot.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// The live entries of a table, in the order of their keys.
pub type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// A key and its value, taken out of a table.
pub type Entry = (Vec<u8>, Vec<u8>);

/// A key and its value, as they lie in a table.
pub type EntryRef<'a> = (&'a [u8], &'a [u8]);

/// Names an open table of a [`Forest`]; never reused, so a closed one stays recognisable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(u64);

/// Names a cursor of a [`Forest`]; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CursorId(u64);

/// What an operation is refused with; each stands for the error of that name in the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The table was closed, or lost in a crash.
    TableClosed,
    /// The cursor was closed, or lost in a crash.
    CursorClosed,
    /// A snapshot of that name is there already.
    SnapshotExists,
    /// There is no snapshot of that name.
    SnapshotDoesNotExist,
    /// The snapshot carries another label.
    SnapshotNotCompatible {
        /// The label that it does carry.
        actual: String,
    },
}

/// One change of a table, as the engine's batches take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sets the value of the key, whatever was there.
    Insert(Vec<u8>),
    /// Removes the key; nothing happens if it is absent.
    Delete,
}

#[derive(Debug, Clone)]
struct Snapshot {
    label: String,
    content: Content,
}

/// Tables, cursors and snapshots of one session.
#[derive(Debug, Clone, Default)]
pub struct Forest {
    tables: BTreeMap<TableId, Content>,
    cursors: BTreeMap<CursorId, VecDeque<Entry>>,
    snapshots: BTreeMap<String, Snapshot>,
    ids_given: u64,
}

impl Forest {
    /// A new, empty table.
    pub fn new_table(&mut self) -> TableId {
        self.add_table(Content::new())
    }

    /// Closes a table; its content is lost. Closing twice is harmless.
    pub fn close_table(&mut self, table: TableId) {
        self.tables.remove(&table);
    }

    /// The tables that are open, oldest first.
    #[must_use]
    pub fn open_tables(&self) -> Vec<TableId> {
        self.tables.keys().copied().collect()
    }

    /// What a table holds.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn content(&self, table: TableId) -> Result<&Content, Refused> {
        self.tables.get(&table).ok_or(Refused::TableClosed)
    }

    /// The value of a key, if it has one.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn lookup(&self, table: TableId, key: &[u8]) -> Result<Option<&[u8]>, Refused> {
        Ok(self.content(table)?.get(key).map(Vec::as_slice))
    }

    /// The entries with keys within the bounds, in key order; none when the bounds cross.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn range(
        &self,
        table: TableId,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Result<Vec<EntryRef<'_>>, Refused> {
        // Filtered, because `BTreeMap::range` panics on bounds that cross.
        let inside = |key: &[u8]| {
            let after = match from {
                Bound::Included(low) => low <= key,
                Bound::Excluded(low) => low < key,
                Bound::Unbounded => true,
            };
            let before = match to {
                Bound::Included(high) => key <= high,
                Bound::Excluded(high) => key < high,
                Bound::Unbounded => true,
            };
            after && before
        };
        let entries = self.content(table)?.iter();
        Ok(entries
            .map(|(key, value)| (key.as_slice(), value.as_slice()))
            .filter(|(key, _)| inside(key))
            .collect())
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn insert(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        self.update(table, key, Change::Insert(value.to_vec()))
    }

    /// Removes a key; an absent one changes nothing.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn delete(&mut self, table: TableId, key: &[u8]) -> Result<(), Refused> {
        self.update(table, key, Change::Delete)
    }

    /// Applies one change. A batch is its changes one after another, so the last one of a key wins.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn update(&mut self, table: TableId, key: &[u8], change: Change) -> Result<(), Refused> {
        let content = self.tables.get_mut(&table).ok_or(Refused::TableClosed)?;
        match change {
            Change::Insert(value) => content.insert(key.to_vec(), value),
            Change::Delete => content.remove(key),
        };
        Ok(())
    }

    /// An independent table with the same content.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn duplicate(&mut self, table: TableId) -> Result<TableId, Refused> {
        let content = self.content(table)?.clone();
        Ok(self.add_table(content))
    }

    /// Keeps the content of a table under a name that survives a crash.
    ///
    /// # Errors
    /// [`Refused::TableClosed`], [`Refused::SnapshotExists`].
    pub fn save_snapshot(
        &mut self,
        table: TableId,
        name: &str,
        label: &str,
    ) -> Result<(), Refused> {
        let content = self.content(table)?.clone();
        if self.snapshots.contains_key(name) {
            return Err(Refused::SnapshotExists);
        }
        self.snapshots.insert(name.to_owned(), Snapshot { label: label.to_owned(), content });
        Ok(())
    }

    /// A new table with the content of a snapshot.
    ///
    /// # Errors
    /// [`Refused::SnapshotDoesNotExist`], [`Refused::SnapshotNotCompatible`].
    pub fn open_snapshot(&mut self, name: &str, label: &str) -> Result<TableId, Refused> {
        let snapshot = self.snapshots.get(name).ok_or(Refused::SnapshotDoesNotExist)?;
        if snapshot.label != label {
            return Err(Refused::SnapshotNotCompatible { actual: snapshot.label.clone() });
        }
        let content = snapshot.content.clone();
        Ok(self.add_table(content))
    }

    /// Forgets a snapshot; tables opened from it go on.
    ///
    /// # Errors
    /// [`Refused::SnapshotDoesNotExist`].
    pub fn delete_snapshot(&mut self, name: &str) -> Result<(), Refused> {
        self.snapshots.remove(name).map(|_| ()).ok_or(Refused::SnapshotDoesNotExist)
    }

    /// The names of all snapshots, sorted.
    #[must_use]
    pub fn snapshot_names(&self) -> Vec<&str> {
        self.snapshots.keys().map(String::as_str).collect()
    }

    /// A cursor over what the table holds now, from the first key that is not below `from`.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn new_cursor(&mut self, table: TableId, from: &[u8]) -> Result<CursorId, Refused> {
        let entries = self.range(table, Bound::Included(from), Bound::Unbounded)?;
        let left = entries.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        self.ids_given += 1;
        let cursor = CursorId(self.ids_given);
        self.cursors.insert(cursor, left);
        Ok(cursor)
    }

    /// Up to `count` further entries; fewer only at the end of the table.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn take(&mut self, cursor: CursorId, count: usize) -> Result<Vec<Entry>, Refused> {
        let left = self.cursors.get_mut(&cursor).ok_or(Refused::CursorClosed)?;
        let count = count.min(left.len());
        Ok(left.drain(..count).collect())
    }

    /// Closes a cursor. Closing twice is harmless.
    pub fn close_cursor(&mut self, cursor: CursorId) {
        self.cursors.remove(&cursor);
    }

    /// The session after the process died and it was opened again: snapshots only.
    pub fn crash(&mut self) {
        self.tables.clear();
        self.cursors.clear();
    }

    fn add_table(&mut self, content: Content) -> TableId {
        self.ids_given += 1;
        let table = TableId(self.ids_given);
        self.tables.insert(table, content);
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_evolve_apart() {
        let mut forest = Forest::default();
        let left = forest.new_table();
        forest.insert(left, b"a", b"1").unwrap();
        let right = forest.duplicate(left).unwrap();
        forest.insert(left, b"b", b"2").unwrap();
        forest.delete(right, b"a").unwrap();
        assert_eq!(forest.lookup(left, b"a"), Ok(Some(b"1".as_slice())));
        assert_eq!(forest.lookup(left, b"b"), Ok(Some(b"2".as_slice())));
        assert_eq!(forest.content(right).unwrap().len(), 0);
        forest.close_table(left);
        forest.close_table(left);
        assert_eq!(forest.lookup(left, b"a"), Err(Refused::TableClosed));
        assert_eq!(forest.lookup(right, b"a"), Ok(None));
    }

    #[test]
    fn snapshots_outlive_a_crash_and_tables_do_not() {
        let mut forest = Forest::default();
        let table = forest.new_table();
        forest.insert(table, b"a", b"1").unwrap();
        forest.save_snapshot(table, "one", "ledger").unwrap();
        forest.insert(table, b"a", b"2").unwrap();
        assert_eq!(forest.save_snapshot(table, "one", "ledger"), Err(Refused::SnapshotExists));
        forest.crash();
        assert_eq!(forest.content(table), Err(Refused::TableClosed));
        assert_eq!(forest.snapshot_names(), ["one"]);
        assert_eq!(
            forest.open_snapshot("one", "other"),
            Err(Refused::SnapshotNotCompatible { actual: "ledger".to_owned() })
        );
        let opened = forest.open_snapshot("one", "ledger").unwrap();
        forest.delete_snapshot("one").unwrap();
        assert_eq!(forest.delete_snapshot("one"), Err(Refused::SnapshotDoesNotExist));
        assert_eq!(forest.open_snapshot("one", "ledger"), Err(Refused::SnapshotDoesNotExist));
        assert_eq!(forest.lookup(opened, b"a"), Ok(Some(b"1".as_slice())));
    }

    #[test]
    fn cursors_keep_their_view() {
        let mut forest = Forest::default();
        let table = forest.new_table();
        for key in [b"a".as_slice(), b"aa", b"b"] {
            forest.insert(table, key, key).unwrap();
        }
        let cursor = forest.new_cursor(table, b"a\0").unwrap();
        forest.insert(table, b"ab", b"later").unwrap();
        forest.close_table(table);
        assert_eq!(forest.take(cursor, 0), Ok(vec![]));
        assert_eq!(forest.take(cursor, 1), Ok(vec![(b"aa".to_vec(), b"aa".to_vec())]));
        assert_eq!(forest.take(cursor, 9), Ok(vec![(b"b".to_vec(), b"b".to_vec())]));
        assert_eq!(forest.take(cursor, 9), Ok(vec![]));
        forest.close_cursor(cursor);
        assert_eq!(forest.take(cursor, 1), Err(Refused::CursorClosed));
    }

    #[test]
    fn ranges_take_bounds_of_every_kind() {
        let mut forest = Forest::default();
        let table = forest.new_table();
        for key in [b"".as_slice(), b"a", b"aa", b"b"] {
            forest.insert(table, key, b"x").unwrap();
        }
        let keys = |from: Bound<&[u8]>, to: Bound<&[u8]>| -> Vec<Vec<u8>> {
            forest.range(table, from, to).unwrap().iter().map(|(key, _)| key.to_vec()).collect()
        };
        let (a, b) = (b"a".as_slice(), b"b".as_slice());
        assert_eq!(keys(Bound::Included(a), Bound::Excluded(b)), [b"a".to_vec(), b"aa".to_vec()]);
        assert_eq!(keys(Bound::Excluded(a), Bound::Included(b)), [b"aa".to_vec(), b"b".to_vec()]);
        assert_eq!(keys(Bound::Included(a), Bound::Excluded(a)), Vec::<Vec<u8>>::new());
        assert_eq!(keys(Bound::Included(a), Bound::Included(a)), [b"a".to_vec()]);
        assert_eq!(keys(Bound::Included(b), Bound::Included(a)), Vec::<Vec<u8>>::new());
        assert_eq!(keys(Bound::Unbounded, Bound::Unbounded).len(), 4);
    }
}
