//! The model of the tables: a forest of sorted maps with duplicates, unions, cursors and snapshots.
//!
//! The model says in the plainest way what the engine must answer: a table is a `BTreeMap`, a fork
//! shares the map until one side changes it, a snapshot is a map with a name and a label, an export
//! is a directory of snapshots, a cursor is a list and a place in it. It knows nothing of runs,
//! merges, buffers or files, and that is its worth: a test drives the engine and the model side by
//! side and compares every answer.
//!
//! [`Forest::crash`] is what is left after the process died: no table and no cursor, every
//! snapshot.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Keys and values alone, for tests of tables without blobs.
pub type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// The live entries of a table, in the order of their keys.
pub type Entries = BTreeMap<Vec<u8>, Stored>;

/// Value and blob of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The value.
    pub value: Vec<u8>,
    /// The blob, if there is one.
    pub blob: Option<Vec<u8>>,
}

/// A key and what it has.
pub type Entry = (Vec<u8>, Stored);

/// Merge operator: how an upsert combines the newer value with the older one. Named like the
/// engine's functions, but for [`Xor`](MergeOperator::Xor), which stands for a function of the
/// user's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeOperator {
    /// The newer one.
    Newest,
    /// The older one.
    Oldest,
    /// The sum of 8 bytes, little-endian, modulo 2⁶⁴.
    AddU64Wrapping,
    /// The sum of 8 bytes, little-endian, at most 2⁶⁴ - 1.
    AddU64Saturating,
    /// The sum of 16 bytes in two's complement, little-endian, modulo 2¹²⁸.
    AddI128Wrapping,
    /// The greater one in the order of bytes.
    Max,
    /// The smaller one in the order of bytes.
    Min,
    /// The older one followed by the newer one.
    Concatenate,
    /// Byte by byte, the shorter one filled up with zeros.
    Xor,
}

impl MergeOperator {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Newest,
        Self::Oldest,
        Self::AddU64Wrapping,
        Self::AddU64Saturating,
        Self::AddI128Wrapping,
        Self::Max,
        Self::Min,
        Self::Concatenate,
        Self::Xor,
    ];

    /// The name of the engine's function.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Newest => "terrane.newest",
            Self::Oldest => "terrane.oldest",
            Self::AddU64Wrapping => "terrane.add-u64-wrapping",
            Self::AddU64Saturating => "terrane.add-u64-saturating",
            Self::AddI128Wrapping => "terrane.add-i128-wrapping",
            Self::Max => "terrane.max",
            Self::Min => "terrane.min",
            Self::Concatenate => "terrane.concatenate",
            Self::Xor => "xor",
        }
    }

    /// Combines two values.
    #[must_use]
    pub fn apply(self, newer: &[u8], older: &[u8]) -> Vec<u8> {
        match self {
            Self::Newest => newer.to_vec(),
            Self::Oldest => older.to_vec(),
            Self::AddU64Wrapping => add(newer, older, 8, 0, None),
            Self::AddU64Saturating => add(newer, older, 8, 0, Some(0xFF)),
            Self::AddI128Wrapping => add(newer, older, 16, 0x80, None),
            Self::Max => newer.max(older).to_vec(),
            Self::Min => newer.min(older).to_vec(),
            Self::Concatenate => [older, newer].concat(),
            Self::Xor => {
                let byte = |bytes: &[u8], at| bytes.get(at).copied().unwrap_or(0);
                let len = newer.len().max(older.len());
                (0..len).map(|at| byte(newer, at) ^ byte(older, at)).collect()
            }
        }
    }
}

/// Adds the first `len` bytes of two little-endian numbers as on paper. A shorter number is filled
/// up: with ones if its last byte has a bit of `sign`, otherwise with zeros. `full` is what every
/// byte becomes when a carry is left over; without it the carry is dropped.
fn add(left: &[u8], right: &[u8], len: usize, sign: u8, full: Option<u8>) -> Vec<u8> {
    let digit = |bytes: &[u8], at: usize| match bytes.get(at) {
        Some(&byte) => u16::from(byte),
        None if bytes.last().is_some_and(|last| last & sign != 0) => 0xFF,
        None => 0,
    };

    let mut sum = Vec::with_capacity(len);
    let mut carry = 0;
    for at in 0..len {
        let total = digit(left, at) + digit(right, at) + carry;
        sum.push((total & 0xFF) as u8);
        carry = total >> 8;
    }

    match full {
        Some(byte) if carry > 0 => vec![byte; len],
        _ => sum,
    }
}

/// Names an open table of a [`Forest`]; never reused, so a closed one stays recognisable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(u64);

/// Names a cursor of a [`Forest`]; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CursorId(u64);

/// Refusal of an operation; each variant stands for the error of that name in the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The table was closed, or lost in a crash.
    TableClosed,
    /// The cursor was closed, or lost in a crash.
    CursorClosed,
    /// The tables of a union have different merge operators.
    TableUnionNotCompatible,
    /// A snapshot of that name is there already.
    SnapshotExists(String),
    /// There is no snapshot of that name.
    SnapshotDoesNotExist(String),
    /// There is no directory to import from.
    SnapshotImportDirDoesNotExist,
    /// The snapshot carries another label.
    SnapshotNotCompatible {
        /// The name of the snapshot.
        name: String,
        /// The label asked for.
        expected: String,
        /// The label that it does carry.
        actual: String,
    },
}

/// One change of a table, as the engine's batches take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sets the value of the key, whatever was there.
    Insert(Vec<u8>),
    /// Sets the value and the blob of the key, whatever was there.
    InsertWithBlob(Vec<u8>, Vec<u8>),
    /// Removes the key; nothing happens if it is absent.
    Delete,
    /// Sets the value of an absent key, otherwise combines it with the old one; removes the blob.
    Upsert(Vec<u8>),
}

#[derive(Debug, Clone)]
struct Table {
    resolve: MergeOperator,
    entries: Arc<Entries>,
}

#[derive(Debug, Clone)]
struct Snapshot {
    label: String,
    table: Table,
}

/// A gap between two of the entries that a table had: before the one of index `gap`.
#[derive(Debug, Clone)]
struct Cursor {
    entries: Vec<Entry>,
    gap: usize,
}

/// Tables, cursors, snapshots and exports of one session.
#[derive(Debug, Clone, Default)]
pub struct Forest {
    tables: BTreeMap<TableId, Table>,
    cursors: BTreeMap<CursorId, Cursor>,
    snapshots: BTreeMap<String, Snapshot>,
    /// Directories outside of the session, by their names.
    exports: BTreeMap<String, BTreeMap<String, Snapshot>>,
    ids_given: u64,
}

/// Tables.
impl Forest {
    /// A new, empty table.
    pub fn new_table(&mut self, resolve: MergeOperator) -> TableId {
        self.add_table(Table { resolve, entries: Arc::default() })
    }

    /// Closes a table; its content is lost. Closing twice is harmless.
    pub fn close_table(&mut self, table: TableId) {
        self.tables.remove(&table);
    }

    /// Content of a table.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn content(&self, table: TableId) -> Result<&Entries, Refused> {
        Ok(&self.table(table)?.entries)
    }

    /// The merge operator of a table.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn resolve(&self, table: TableId) -> Result<MergeOperator, Refused> {
        Ok(self.table(table)?.resolve)
    }

    /// Returns the value and blob of a key, if the key is present.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn get(&self, table: TableId, key: &[u8]) -> Result<Option<&Stored>, Refused> {
        Ok(self.content(table)?.get(key))
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
    ) -> Result<Vec<Entry>, Refused> {
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

        let entries = self.content(table)?.iter().filter(|(key, _)| inside(key));
        Ok(entries.map(|(key, stored)| (key.clone(), stored.clone())).collect())
    }

    /// The entries with keys that begin with `prefix`, in key order.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn prefix(&self, table: TableId, prefix: &[u8]) -> Result<Vec<Entry>, Refused> {
        let entries = self.content(table)?.iter().filter(|(key, _)| key.starts_with(prefix));
        Ok(entries.map(|(key, stored)| (key.clone(), stored.clone())).collect())
    }

    /// Applies one change. A batch is its changes one after another.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn update(&mut self, table: TableId, key: &[u8], change: Change) -> Result<(), Refused> {
        let Table { resolve, entries } = self.tables.get_mut(&table).ok_or(Refused::TableClosed)?;
        let entries = Arc::make_mut(entries);
        let stored = match change {
            Change::Delete => {
                entries.remove(key);
                return Ok(());
            }
            Change::Insert(value) => Stored { value, blob: None },
            Change::InsertWithBlob(value, blob) => Stored { value, blob: Some(blob) },
            Change::Upsert(newer) => {
                let value = match entries.get(key) {
                    Some(older) => resolve.apply(&newer, &older.value),
                    None => newer,
                };
                Stored { value, blob: None }
            }
        };

        entries.insert(key.to_vec(), stored);
        Ok(())
    }

    /// An independent table with the same content.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn fork(&mut self, table: TableId) -> Result<TableId, Refused> {
        let copy = self.table(table)?.clone();
        Ok(self.add_table(copy))
    }

    /// A new table with the same content, but a merge operator of its own.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn copy_content(
        &mut self,
        table: TableId,
        resolve: MergeOperator,
    ) -> Result<TableId, Refused> {
        let copy = Table { resolve, ..self.table(table)?.clone() };
        Ok(self.add_table(copy))
    }

    /// A new table with what any of the tables holds. Where several have a key, their values are
    /// combined, and the blob is that of the leftmost of them or none.
    ///
    /// # Errors
    /// [`Refused::TableClosed`], [`Refused::TableUnionNotCompatible`].
    ///
    /// # Panics
    /// Without any table: there is no such union.
    pub fn union(&mut self, tables: &[TableId]) -> Result<TableId, Refused> {
        let inputs: Vec<&Table> =
            tables.iter().map(|&table| self.table(table)).collect::<Result<_, _>>()?;

        let resolve = inputs.last().expect("a union of nothing").resolve;
        if inputs.iter().any(|input| input.resolve != resolve) {
            return Err(Refused::TableUnionNotCompatible);
        }

        let mut union = Entries::new();
        for input in inputs {
            for (key, right) in input.entries.iter() {
                match union.get_mut(key) {
                    Some(left) => left.value = resolve.apply(&left.value, &right.value),
                    None => drop(union.insert(key.clone(), right.clone())),
                }
            }
        }

        Ok(self.add_table(Table { resolve, entries: Arc::new(union) }))
    }

    fn table(&self, table: TableId) -> Result<&Table, Refused> {
        self.tables.get(&table).ok_or(Refused::TableClosed)
    }

    fn add_table(&mut self, content: Table) -> TableId {
        self.ids_given += 1;
        let table = TableId(self.ids_given);
        self.tables.insert(table, content);
        table
    }
}

fn missing(name: &str) -> Refused {
    Refused::SnapshotDoesNotExist(name.to_owned())
}

/// Snapshots and exports.
impl Forest {
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
        let table = self.table(table)?.clone();
        self.add_snapshot(name, Snapshot { label: label.to_owned(), table })
    }

    /// A new table with the content of a snapshot.
    ///
    /// # Errors
    /// [`Refused::SnapshotDoesNotExist`], [`Refused::SnapshotNotCompatible`].
    pub fn open_snapshot(&mut self, name: &str, label: &str) -> Result<TableId, Refused> {
        let snapshot = self.snapshot(name)?;
        if snapshot.label != label {
            return Err(Refused::SnapshotNotCompatible {
                name: name.to_owned(),
                expected: label.to_owned(),
                actual: snapshot.label.clone(),
            });
        }
        let table = snapshot.table.clone();
        Ok(self.add_table(table))
    }

    /// Forgets a snapshot; tables opened from it go on.
    ///
    /// # Errors
    /// [`Refused::SnapshotDoesNotExist`].
    pub fn delete_snapshot(&mut self, name: &str) -> Result<(), Refused> {
        self.snapshots.remove(name).map(|_| ()).ok_or_else(|| missing(name))
    }

    /// Gives a snapshot another name.
    ///
    /// # Errors
    /// [`Refused::SnapshotDoesNotExist`], [`Refused::SnapshotExists`].
    pub fn rename_snapshot(&mut self, from: &str, to: &str) -> Result<(), Refused> {
        let snapshot = self.snapshot(from)?.clone();
        self.add_snapshot(to, snapshot)?;
        self.delete_snapshot(from)
    }

    /// Copies a snapshot into a directory outside of the session.
    ///
    /// # Errors
    /// [`Refused::SnapshotDoesNotExist`]; [`Refused::SnapshotExists`] for one of that name in the
    /// directory.
    pub fn export_snapshot(&mut self, name: &str, directory: &str) -> Result<(), Refused> {
        let snapshot = self.snapshot(name)?.clone();
        let exported = self.exports.entry(directory.to_owned()).or_default();
        if exported.contains_key(name) {
            return Err(Refused::SnapshotExists(name.to_owned()));
        }
        exported.insert(name.to_owned(), snapshot);
        Ok(())
    }

    /// Takes a snapshot of such a directory in, under a name of its own.
    ///
    /// # Errors
    /// [`Refused::SnapshotExists`]; [`Refused::SnapshotImportDirDoesNotExist`] if nothing was
    /// exported there; [`Refused::SnapshotDoesNotExist`] if the directory has none of the name
    /// `from`.
    pub fn import_snapshot(
        &mut self,
        directory: &str,
        from: &str,
        to: &str,
    ) -> Result<(), Refused> {
        let exported = self.exports.get(directory).ok_or(Refused::SnapshotImportDirDoesNotExist)?;
        let snapshot = exported.get(from).ok_or_else(|| missing(from))?.clone();
        self.add_snapshot(to, snapshot)
    }

    /// The names and contents of what was exported to a directory, by name.
    #[must_use]
    pub fn exported(&self, directory: &str) -> Vec<(&str, &Entries)> {
        let exported = self.exports.get(directory).into_iter().flatten();
        exported.map(|(name, snapshot)| (name.as_str(), &*snapshot.table.entries)).collect()
    }

    /// Forgets what was exported to a directory, as if another one had its name from now on.
    pub fn forget_exports(&mut self, directory: &str) {
        self.exports.remove(directory);
    }

    /// The names of all snapshots, sorted.
    #[must_use]
    pub fn snapshot_names(&self) -> Vec<&str> {
        self.snapshots.keys().map(String::as_str).collect()
    }

    /// The label of a snapshot.
    ///
    /// # Errors
    /// [`Refused::SnapshotDoesNotExist`].
    pub fn snapshot_label(&self, name: &str) -> Result<&str, Refused> {
        Ok(&self.snapshot(name)?.label)
    }

    /// The merge operator of a snapshot's table.
    ///
    /// # Errors
    /// [`Refused::SnapshotDoesNotExist`].
    pub fn snapshot_resolve(&self, name: &str) -> Result<MergeOperator, Refused> {
        Ok(self.snapshot(name)?.table.resolve)
    }

    /// Content of a snapshot.
    ///
    /// # Errors
    /// [`Refused::SnapshotDoesNotExist`].
    pub fn snapshot_content(&self, name: &str) -> Result<&Entries, Refused> {
        Ok(&self.snapshot(name)?.table.entries)
    }

    /// The session after the process died and it was opened again: snapshots and exports only.
    pub fn crash(&mut self) {
        self.tables.clear();
        self.cursors.clear();
    }

    fn snapshot(&self, name: &str) -> Result<&Snapshot, Refused> {
        self.snapshots.get(name).ok_or_else(|| missing(name))
    }

    fn add_snapshot(&mut self, name: &str, snapshot: Snapshot) -> Result<(), Refused> {
        if self.snapshots.contains_key(name) {
            return Err(Refused::SnapshotExists(name.to_owned()));
        }
        self.snapshots.insert(name.to_owned(), snapshot);
        Ok(())
    }
}

/// Cursors. Each is a gap between two entries of what its table had when it was made, within
/// bounds.
impl Forest {
    /// A cursor before the first entry within the bounds.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn new_cursor(
        &mut self,
        table: TableId,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Result<CursorId, Refused> {
        let entries = self.range(table, from, to)?;
        Ok(self.add_cursor(entries))
    }

    /// A cursor before the first entry whose key begins with `prefix`.
    ///
    /// # Errors
    /// [`Refused::TableClosed`].
    pub fn new_prefix_cursor(
        &mut self,
        table: TableId,
        prefix: &[u8],
    ) -> Result<CursorId, Refused> {
        let entries = self.prefix(table, prefix)?;
        Ok(self.add_cursor(entries))
    }

    fn add_cursor(&mut self, entries: Vec<Entry>) -> CursorId {
        self.ids_given += 1;
        let cursor = CursorId(self.ids_given);
        self.cursors.insert(cursor, Cursor { entries, gap: 0 });
        cursor
    }

    /// Passes the entry after the gap and gives it.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn next(&mut self, cursor: CursorId) -> Result<Option<Entry>, Refused> {
        let cursor = self.cursor_mut(cursor)?;
        let entry = cursor.entries.get(cursor.gap).cloned();
        cursor.gap += usize::from(entry.is_some());
        Ok(entry)
    }

    /// Passes the entry before the gap and gives it.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn prev(&mut self, cursor: CursorId) -> Result<Option<Entry>, Refused> {
        let entry = self.peek_prev(cursor)?;
        self.cursor_mut(cursor)?.gap -= usize::from(entry.is_some());
        Ok(entry)
    }

    /// The entry after the gap.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn peek(&self, cursor: CursorId) -> Result<Option<Entry>, Refused> {
        let cursor = self.cursor(cursor)?;
        Ok(cursor.entries.get(cursor.gap).cloned())
    }

    /// The entry before the gap.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn peek_prev(&self, cursor: CursorId) -> Result<Option<Entry>, Refused> {
        let cursor = self.cursor(cursor)?;
        Ok(cursor.entries[..cursor.gap].last().cloned())
    }

    /// Goes before the first entry whose key is at least `key`.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn seek(&mut self, cursor: CursorId, key: &[u8]) -> Result<(), Refused> {
        self.move_behind(cursor, |other| other < key)
    }

    /// Goes behind the last entry whose key is at most `key`.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn seek_after(&mut self, cursor: CursorId, key: &[u8]) -> Result<(), Refused> {
        self.move_behind(cursor, |other| other <= key)
    }

    /// Goes before all entries.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn seek_to_start(&mut self, cursor: CursorId) -> Result<(), Refused> {
        self.move_behind(cursor, |_| false)
    }

    /// Goes behind all entries.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn seek_to_end(&mut self, cursor: CursorId) -> Result<(), Refused> {
        self.move_behind(cursor, |_| true)
    }

    /// Up to `count` further entries; fewer only at the end.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn take(&mut self, cursor: CursorId, count: usize) -> Result<Vec<Entry>, Refused> {
        self.take_while(cursor, count, |_| true)
    }

    /// Further entries, up to `count`, as long as `wanted` holds; the first other one is not
    /// passed.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn take_while(
        &mut self,
        cursor: CursorId,
        count: usize,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Result<Vec<Entry>, Refused> {
        let mut taken = Vec::new();
        while taken.len() < count && self.peek(cursor)?.is_some_and(|entry| wanted(&entry)) {
            taken.extend(self.next(cursor)?);
        }
        Ok(taken)
    }

    /// The entries before the gap, the nearest first, up to `count`, as long as `wanted` holds; the
    /// first other one is not passed.
    ///
    /// # Errors
    /// [`Refused::CursorClosed`].
    pub fn take_while_back(
        &mut self,
        cursor: CursorId,
        count: usize,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Result<Vec<Entry>, Refused> {
        let mut taken = Vec::new();
        while taken.len() < count && self.peek_prev(cursor)?.is_some_and(|entry| wanted(&entry)) {
            taken.extend(self.prev(cursor)?);
        }
        Ok(taken)
    }

    /// Closes a cursor. Closing twice is harmless.
    pub fn close_cursor(&mut self, cursor: CursorId) {
        self.cursors.remove(&cursor);
    }

    /// Puts the gap behind the entries whose keys are `behind` it.
    fn move_behind(
        &mut self,
        cursor: CursorId,
        behind: impl Fn(&[u8]) -> bool,
    ) -> Result<(), Refused> {
        let cursor = self.cursor_mut(cursor)?;
        cursor.gap = cursor.entries.iter().filter(|(key, _)| behind(key)).count();
        Ok(())
    }

    fn cursor(&self, cursor: CursorId) -> Result<&Cursor, Refused> {
        self.cursors.get(&cursor).ok_or(Refused::CursorClosed)
    }

    fn cursor_mut(&mut self, cursor: CursorId) -> Result<&mut Cursor, Refused> {
        self.cursors.get_mut(&cursor).ok_or(Refused::CursorClosed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

    fn exists(name: &str) -> Refused {
        Refused::SnapshotExists(name.to_owned())
    }

    fn insert(forest: &mut Forest, table: TableId, key: &[u8], value: &[u8]) {
        forest.update(table, key, Change::Insert(value.to_vec())).unwrap();
    }

    fn value<'a>(forest: &'a Forest, table: TableId, key: &[u8]) -> Option<&'a [u8]> {
        forest.get(table, key).unwrap().map(|stored| stored.value.as_slice())
    }

    fn keys(entries: &[Entry]) -> Vec<&[u8]> {
        entries.iter().map(|(key, _)| key.as_slice()).collect()
    }

    fn key(entry: Option<Entry>) -> Option<Vec<u8>> {
        entry.map(|(key, _)| key)
    }

    #[test]
    fn resolve_functions_give_what_their_names_say() {
        let one = 1u64.to_le_bytes();
        assert_eq!(MergeOperator::AddU64Wrapping.apply(&one, &[0xFF; 8]), [0; 8]);
        assert_eq!(MergeOperator::AddU64Wrapping.apply(&[0x80], &[0x80]), [0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(MergeOperator::AddU64Saturating.apply(&one, &[0xFF; 8]), [0xFF; 8]);
        assert_eq!(MergeOperator::AddU64Saturating.apply(&one, &one), 2u64.to_le_bytes());
        assert_eq!(MergeOperator::AddI128Wrapping.apply(&one, &[0xFF; 3]), [0; 16]);
        assert_eq!(MergeOperator::AddI128Wrapping.apply(&[], &[0xFE; 20]), [0xFE; 16]);
        assert_eq!(MergeOperator::Newest.apply(b"n", b"o"), b"n");
        assert_eq!(MergeOperator::Oldest.apply(b"n", b"o"), b"o");
        assert_eq!(MergeOperator::Max.apply(b"a", b"aa"), b"aa");
        assert_eq!(MergeOperator::Min.apply(b"a", b"aa"), b"a");
        assert_eq!(MergeOperator::Concatenate.apply(b"new", b"old "), b"old new");
        assert_eq!(MergeOperator::Xor.apply(&[1, 2, 3], &[1, 1]), [0, 3, 3]);
    }

    #[test]
    fn upserts_combine_and_drop_the_blob() {
        let mut forest = Forest::default();
        let table = forest.new_table(MergeOperator::Concatenate);
        let change = Change::InsertWithBlob(b"a".to_vec(), b"blob".to_vec());
        forest.update(table, b"k", change).unwrap();
        assert_eq!(forest.get(table, b"k").unwrap().unwrap().blob.as_deref(), Some(&b"blob"[..]));
        forest.update(table, b"k", Change::Upsert(b"b".to_vec())).unwrap();
        let stored = Stored { value: b"ab".to_vec(), blob: None };
        assert_eq!(forest.get(table, b"k"), Ok(Some(&stored)));

        forest.update(table, b"k", Change::Delete).unwrap();
        forest.update(table, b"k", Change::Upsert(b"c".to_vec())).unwrap();
        assert_eq!(value(&forest, table, b"k"), Some(&b"c"[..]));
    }

    #[test]
    fn duplicates_evolve_apart() {
        let mut forest = Forest::default();
        let left = forest.new_table(MergeOperator::Newest);
        insert(&mut forest, left, b"a", b"1");
        let right = forest.fork(left).unwrap();
        let copy = forest.copy_content(left, MergeOperator::Max).unwrap();
        insert(&mut forest, left, b"b", b"2");
        assert_eq!(value(&forest, copy, b"a"), Some(&b"1"[..]));
        assert_eq!(forest.resolve(copy), Ok(MergeOperator::Max));

        forest.update(right, b"a", Change::Delete).unwrap();
        assert_eq!(value(&forest, left, b"a"), Some(&b"1"[..]));
        assert_eq!(value(&forest, left, b"b"), Some(&b"2"[..]));
        assert_eq!(forest.content(right).unwrap().len(), 0);
        forest.close_table(left);
        forest.close_table(left);
        assert_eq!(forest.get(left, b"a"), Err(Refused::TableClosed));
        assert_eq!(forest.get(right, b"a"), Ok(None));
    }

    /// Every case of the table in the reference.
    #[test]
    fn unions_combine_from_left_to_right() {
        let mut forest = Forest::default();
        let [left, middle, right] = [(); 3].map(|()| forest.new_table(MergeOperator::Concatenate));
        let with_blob = Change::InsertWithBlob(b"L".to_vec(), b"blob".to_vec());
        forest.update(left, b"blob", with_blob.clone()).unwrap();
        insert(&mut forest, middle, b"blob", b"M");
        insert(&mut forest, right, b"blob", b"R");
        insert(&mut forest, left, b"none", b"L");
        forest.update(right, b"none", with_blob.clone()).unwrap();
        forest.update(right, b"only", with_blob).unwrap();
        insert(&mut forest, middle, b"gone", b"M");
        forest.update(middle, b"gone", Change::Delete).unwrap();
        insert(&mut forest, left, b"gone", b"L");

        let union = forest.union(&[left, middle, right]).unwrap();
        let found = |key: &[u8]| {
            let stored = forest.get(union, key).unwrap().unwrap();
            (stored.value.as_slice(), stored.blob.is_some())
        };

        assert_eq!(found(b"blob"), (&b"RML"[..], true));
        assert_eq!(found(b"none"), (&b"LL"[..], false));
        assert_eq!(found(b"only"), (&b"L"[..], true));
        assert_eq!(found(b"gone"), (&b"L"[..], false));
        let other = forest.new_table(MergeOperator::Newest);

        assert_eq!(forest.union(&[left, other]), Err(Refused::TableUnionNotCompatible));
    }

    #[test]
    fn snapshots_outlive_a_crash_and_tables_do_not() {
        let mut forest = Forest::default();
        let table = forest.new_table(MergeOperator::Max);
        insert(&mut forest, table, b"a", b"1");
        forest.save_snapshot(table, "one", "ledger").unwrap();
        insert(&mut forest, table, b"a", b"2");
        assert_eq!(forest.save_snapshot(table, "one", "ledger"), Err(exists("one")));
        forest.crash();
        assert_eq!(forest.content(table), Err(Refused::TableClosed));
        assert_eq!(forest.snapshot_names(), ["one"]);

        assert_eq!(
            forest.open_snapshot("one", "other"),
            Err(Refused::SnapshotNotCompatible {
                name: "one".to_owned(),
                expected: "other".to_owned(),
                actual: "ledger".to_owned()
            })
        );

        let opened = forest.open_snapshot("one", "ledger").unwrap();
        assert_eq!(forest.resolve(opened), Ok(MergeOperator::Max));
        forest.delete_snapshot("one").unwrap();
        assert_eq!(forest.delete_snapshot("one"), Err(missing("one")));
        assert_eq!(forest.open_snapshot("one", "ledger"), Err(missing("one")));
        assert_eq!(value(&forest, opened, b"a"), Some(&b"1"[..]));
    }

    #[test]
    fn snapshots_are_renamed_and_exported_and_imported() {
        let mut forest = Forest::default();
        let table = forest.new_table(MergeOperator::Newest);
        insert(&mut forest, table, b"a", b"1");
        forest.save_snapshot(table, "one", "ledger").unwrap();
        forest.save_snapshot(table, "two", "ledger").unwrap();
        assert_eq!(forest.rename_snapshot("one", "two"), Err(exists("two")));
        assert_eq!(forest.rename_snapshot("none", "two"), Err(missing("none")));
        forest.rename_snapshot("one", "three").unwrap();
        assert_eq!(forest.snapshot_names(), ["three", "two"]);
        forest.export_snapshot("three", "out").unwrap();
        assert_eq!(forest.export_snapshot("three", "out"), Err(exists("three")));
        forest.delete_snapshot("three").unwrap();
        forest.crash();
        let nowhere = forest.import_snapshot("in", "three", "four");
        assert_eq!(nowhere, Err(Refused::SnapshotImportDirDoesNotExist));
        assert_eq!(forest.import_snapshot("out", "two", "four"), Err(missing("two")));
        assert_eq!(forest.import_snapshot("out", "three", "two"), Err(exists("two")));
        forest.import_snapshot("out", "three", "four").unwrap();
        assert_eq!(forest.exported("out")[0].0, "three");
        assert_eq!(forest.exported("out").len(), 1);
        assert_eq!(forest.snapshot_label("four"), Ok("ledger"));
        assert_eq!(forest.snapshot_content("four").unwrap().len(), 1);
        forest.forget_exports("out");
        assert_eq!(forest.exported("out").len(), 0);
    }

    #[test]
    fn cursors_are_gaps_in_a_stable_copy() {
        let mut forest = Forest::default();
        let table = forest.new_table(MergeOperator::Newest);
        for key in [b"a".as_slice(), b"aa", b"b", b"c"] {
            insert(&mut forest, table, key, key);
        }
        let upper = Bound::Excluded(b"c".as_slice());
        let cursor = forest.new_cursor(table, Bound::Included(b"a"), upper).unwrap();
        insert(&mut forest, table, b"ab", b"later");
        forest.close_table(table);
        assert_eq!(forest.peek_prev(cursor), Ok(None));
        assert_eq!(forest.take(cursor, 0), Ok(vec![]));
        assert_eq!(key(forest.next(cursor).unwrap()).unwrap(), b"a");
        assert_eq!(key(forest.peek(cursor).unwrap()).unwrap(), b"aa");
        assert_eq!(key(forest.peek_prev(cursor).unwrap()).unwrap(), b"a");
        assert_eq!(keys(&forest.take(cursor, 9).unwrap()), [b"aa".as_slice(), b"b"]);
        assert_eq!(forest.next(cursor), Ok(None));
        assert_eq!(forest.next(cursor), Ok(None));
        assert_eq!(key(forest.prev(cursor).unwrap()).unwrap(), b"b");
        forest.seek(cursor, b"a\0").unwrap();
        assert_eq!(key(forest.peek(cursor).unwrap()).unwrap(), b"aa");
        forest.seek_after(cursor, b"aa").unwrap();
        assert_eq!(key(forest.peek(cursor).unwrap()).unwrap(), b"b");
        forest.seek(cursor, b"z").unwrap();
        assert_eq!(key(forest.prev(cursor).unwrap()).unwrap(), b"b");
        forest.seek_to_start(cursor).unwrap();
        assert_eq!(forest.prev(cursor), Ok(None));
        let taken = forest.take_while(cursor, 9, |(key, _)| key.len() < 2).unwrap();
        assert_eq!(keys(&taken), [b"a".as_slice()]);
        assert_eq!(key(forest.peek(cursor).unwrap()).unwrap(), b"aa");
        forest.seek_to_end(cursor).unwrap();
        assert_eq!(key(forest.peek_prev(cursor).unwrap()).unwrap(), b"b");
        let taken = forest.take_while_back(cursor, 9, |(key, _)| key.len() < 2).unwrap();
        assert_eq!(keys(&taken), [b"b".as_slice()]);
        assert_eq!(key(forest.peek_prev(cursor).unwrap()).unwrap(), b"aa");
        forest.close_cursor(cursor);
        assert_eq!(forest.next(cursor), Err(Refused::CursorClosed));
    }

    #[test]
    fn ranges_take_bounds_of_every_kind() {
        let mut forest = Forest::default();
        let table = forest.new_table(MergeOperator::Newest);
        for key in [b"".as_slice(), b"a", b"aa", b"b"] {
            insert(&mut forest, table, key, b"x");
        }

        let keys = |from, to| -> Vec<Vec<u8>> {
            forest.range(table, from, to).unwrap().into_iter().map(|(key, _)| key).collect()
        };

        let a = b"a".as_slice();
        let b = b"b".as_slice();
        assert_eq!(keys(Bound::Included(a), Bound::Excluded(b)), [b"a".to_vec(), b"aa".to_vec()]);
        assert_eq!(keys(Bound::Excluded(a), Bound::Included(b)), [b"aa".to_vec(), b"b".to_vec()]);
        assert_eq!(keys(Bound::Included(a), Bound::Excluded(a)), Vec::<Vec<u8>>::new());
        assert_eq!(keys(Bound::Included(a), Bound::Included(a)), [b"a".to_vec()]);
        assert_eq!(keys(Bound::Included(b), Bound::Included(a)), Vec::<Vec<u8>>::new());
        assert_eq!(keys(ALL.0, ALL.1).len(), 4);
        assert_eq!(forest.prefix(table, b"a").unwrap().len(), 2);
        assert_eq!(forest.prefix(table, b"").unwrap().len(), 4);
    }
}
