//! Batches that own their entries and span tables, and the commits of such batches.
//!
//! Keys, values and blobs stand one behind the other in one arena; an entry is an offset and three
//! lengths. So a batch that is cleared and filled again allocates nothing.
//!
//! Reading through a batch (read-your-writes) applies the entries of a table to a fork of the
//! table's view, as recovery applies the log: in memory, without a flush and without compaction.
//! The fork stays, so each entry is applied once as long as the view stays the same.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeBounds;

use crate::conflict::ConflictCause;
use crate::entry::entry::Update;
use crate::entry::key_range::KeyRange;
use crate::entry::mask::Span;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::lookup::result::Lookup;
use crate::store::inner::{Batch, Shared};
use crate::store::store::{NamedTable, Store, Ticket};
use crate::store::write_sets::conflict;
use crate::table::table::Table;
use terrane_io::Durability;
use terrane_io::sync::{Arc, Mutex};

/// A batch of updates of any tables of one store, which owns its entries.
/// [`Store::write`] commits the batch: all of it or nothing.
///
/// Keys and values are anything that gives bytes, of a different type in each call. The entries of
/// one table are applied in their order.
///
/// ```
/// use terrane_lsm::{Store, StoreOptions, TableConfig, WriteBatch};
///
/// # let folder = tempfile::tempdir()?;
/// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
/// let accounts = store.create_table("accounts", &TableConfig::default())?;
/// let blocks = store.create_table("blocks", &TableConfig::default())?;
///
/// let mut batch = WriteBatch::new();
/// batch.insert(&accounts, "alice", "100");
/// batch.insert(&blocks, 1_u64.to_be_bytes(), b"header");
/// batch.delete(&accounts, b"bob");
/// assert_eq!(batch.get(&accounts, "alice")?.value(), Some(&b"100"[..]));
/// assert!(!accounts.get(b"alice")?.is_found(), "not committed yet");
///
/// store.write(&batch)?.wait()?; // atomic over both tables; durable when `wait` returns
/// assert!(accounts.get(b"alice")?.is_found());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A batch that holds entries keeps their store open, as handles on its tables do.
#[derive(Default)]
pub struct WriteBatch {
    /// Key, value and blob of each entry.
    arena: Vec<u8>,
    parts: BTreeMap<TableAddress, Part>,
    overlays: Mutex<BTreeMap<TableAddress, Overlay>>,
}

/// A table of a store: the address of the store's state, and the number of the table.
type TableAddress = (usize, u64);

/// The entries of one table.
struct Part {
    table: NamedTable,
    entries: Vec<Entry>,
}

/// A fork of a view with the first entries of the table applied.
struct Overlay {
    view: Arc<Table>,
    table: Table,
    applied: usize,
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Insert,
    InsertWithBlob,
    Upsert,
    Delete,
    /// The value is the end of the range.
    DeleteRange,
    /// To the last key.
    DeleteFrom,
}

/// An entry: its key, its value and its blob stand in the arena, one behind the other.
#[derive(Debug, Clone, Copy)]
struct Entry {
    operation: Operation,
    start: usize,
    key_bytes: usize,
    value_bytes: usize,
    blob_bytes: usize,
}

impl Entry {
    fn read<'a>(&self, arena: &'a [u8]) -> (&'a [u8], Update<'a>) {
        let key_end = self.start + self.key_bytes;
        let value_end = key_end + self.value_bytes;
        debug_assert!(value_end + self.blob_bytes <= arena.len(), "the arena has every entry");
        let value = &arena[key_end..value_end];
        let update = match self.operation {
            Operation::Insert => Update::Insert(value),
            Operation::InsertWithBlob => {
                Update::InsertWithBlob(value, &arena[value_end..value_end + self.blob_bytes])
            }
            Operation::Upsert => Update::Upsert(value),
            Operation::Delete => Update::Delete,
            Operation::DeleteRange => Update::DeleteRange(Some(value)),
            Operation::DeleteFrom => Update::DeleteRange(None),
        };
        (&arena[self.start..key_end], update)
    }
}

fn address(table: &NamedTable) -> TableAddress {
    (Arc::as_ptr(&table.shared).addr(), table.key.id)
}

impl WriteBatch {
    /// An empty batch. Cost: no allocation.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the value of a key.
    #[doc(alias("put", "set"))]
    pub fn insert(&mut self, table: &NamedTable, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.add(table, Operation::Insert, [key.as_ref(), value.as_ref(), &[]]);
    }

    /// Sets the value of a key and its blob, which lookups refer to but do not read.
    pub fn insert_with_blob(
        &mut self,
        table: &NamedTable,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        blob: impl AsRef<[u8]>,
    ) {
        let parts = [key.as_ref(), value.as_ref(), blob.as_ref()];
        self.add(table, Operation::InsertWithBlob, parts);
    }

    /// Combines a value with the older one by the table's merge operator; sets the value if the key
    /// is absent. Removes the key's blob.
    #[doc(alias("merge"))]
    pub fn upsert(&mut self, table: &NamedTable, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.add(table, Operation::Upsert, [key.as_ref(), value.as_ref(), &[]]);
    }

    /// Removes a key; no effect if it is absent.
    #[doc(alias("remove"))]
    pub fn delete(&mut self, table: &NamedTable, key: impl AsRef<[u8]>) {
        self.add(table, Operation::Delete, [key.as_ref(), &[], &[]]);
    }

    /// Removes all keys in a range, those that this batch inserted before included.
    pub fn delete_range<K: AsRef<[u8]> + ?Sized, R: RangeBounds<K>>(
        &mut self,
        table: &NamedTable,
        range: R,
    ) {
        self.delete_over(table, &KeyRange::new(&range));
    }

    /// Removes all keys that begin with `prefix`: as [`delete_range`](Self::delete_range).
    pub fn delete_prefix(&mut self, table: &NamedTable, prefix: impl AsRef<[u8]>) {
        self.delete_over(table, &KeyRange::prefix(prefix.as_ref()));
    }

    pub(crate) fn delete_over(&mut self, table: &NamedTable, range: &KeyRange) {
        match Span::of(range) {
            Some(Span { from, end: Some(end) }) => {
                self.add(table, Operation::DeleteRange, [&from, &end, &[]]);
            }
            Some(Span { from, end: None }) => {
                self.add(table, Operation::DeleteFrom, [&from, &[], &[]]);
            }
            // An entry all the same, so that the batch is a commit.
            None => self.add(table, Operation::DeleteRange, [&[], &[], &[]]),
        }
    }

    fn add(&mut self, table: &NamedTable, operation: Operation, parts: [&[u8]; 3]) {
        let [key, value, blob] = parts;
        let entry = Entry {
            operation,
            start: self.arena.len(),
            key_bytes: key.len(),
            value_bytes: value.len(),
            blob_bytes: blob.len(),
        };
        for bytes in parts {
            self.arena.extend_from_slice(bytes);
        }
        debug_assert_eq!(
            self.arena.len() - entry.start,
            entry.key_bytes + entry.value_bytes + entry.blob_bytes,
            "an entry has its place in the arena"
        );

        let new = || Part { table: table.clone(), entries: Vec::new() };
        self.parts.entry(address(table)).or_insert_with(new).entries.push(entry);
    }

    /// Number of entries. A deleted range is one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.values().map(|part| part.entries.len()).sum()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.values().all(|part| part.entries.is_empty())
    }

    /// Bytes of keys, values and blobs. A record of the log has some 10 more for each entry.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.arena.len()
    }

    /// Removes all entries and keeps the memory for others.
    pub fn clear(&mut self) {
        self.arena.clear();
        for part in self.parts.values_mut() {
            part.entries.clear();
        }
        lock(&self.overlays).clear();
    }

    /// The entries with their tables, table by table, those of one table in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&NamedTable, &[u8], Update<'_>)> {
        self.parts.values().flat_map(|part| {
            part.entries.iter().map(|entry| {
                let (key, update) = entry.read(&self.arena);
                (&part.table, key, update)
            })
        })
    }

    /// Looks up a key as it will be if the batch is committed now (read-your-writes).
    ///
    /// The last entry of the key decides. Upserts combine with what the table has by the table's
    /// merge operator, and deleted ranges count. The reference to a blob is valid until the next
    /// read through this batch.
    ///
    /// Cost: that of [`NamedTable::get`]; each entry of the table is applied once to a fork in
    /// memory, and once more after each commit to the table that comes in between.
    ///
    /// # Errors
    /// The errors of [`NamedTable::get`]; [`Error::KeyTooLarge`] and the like for entries that
    /// could not be committed.
    pub fn get(&self, table: &NamedTable, key: impl AsRef<[u8]>) -> Result<Lookup> {
        let mut results = self.get_many(table, &[key])?;
        Ok(results.pop().unwrap_or(Lookup::NotFound))
    }

    /// Looks up several keys of a table as [`get`](Self::get) does, all at the same commit.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    #[doc(alias("multi_get"))]
    pub fn get_many<K: AsRef<[u8]>>(&self, table: &NamedTable, keys: &[K]) -> Result<Vec<Lookup>> {
        self.read_over(table, &table.view()?, |overlay| overlay.get_many(keys))
    }

    /// Reads a view of a table with the entries of the batch applied.
    pub(crate) fn read_over<T>(
        &self,
        table: &NamedTable,
        view: &Arc<Table>,
        read: impl FnOnce(&Table) -> Result<T>,
    ) -> Result<T> {
        let address = address(table);
        let part = self.parts.get(&address).filter(|part| !part.entries.is_empty());
        let Some(part) = part else { return read(view) };

        let mut overlays = lock(&self.overlays);
        let found = overlays.remove(&address).filter(|overlay| Arc::ptr_eq(&overlay.view, view));
        let mut overlay = match found {
            Some(overlay) => overlay,
            None => Overlay { view: Arc::clone(view), table: view.fork()?, applied: 0 },
        };

        // After an error the overlay holds nobody knows what part of them, and is dropped.
        debug_assert!(overlay.applied <= part.entries.len(), "entries are only added");
        let rest: Vec<_> =
            part.entries[overlay.applied..].iter().map(|entry| entry.read(&self.arena)).collect();
        overlay.table.replay(&rest, None)?;
        overlay.applied = part.entries.len();

        let result = read(&overlay.table);
        overlays.insert(address, overlay);
        result
    }

    /// The entries as a commit takes them.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`] for a table of another store.
    pub(crate) fn batches(&self, shared: &Arc<Shared>) -> Result<Vec<Batch<'_>>> {
        let mut batches = Vec::with_capacity(self.parts.len());
        for Part { table, entries } in self.parts.values() {
            if entries.is_empty() {
                continue;
            }
            if !Arc::ptr_eq(&table.shared, shared) {
                return Err(Error::TableDoesNotExist { name: table.key.name.to_string() });
            }
            let updates = entries.iter().map(|entry| entry.read(&self.arena)).collect();
            batches.push(Batch { key: &table.key, slot: &table.slot, updates });
        }
        debug_assert!(
            batches.iter().all(|batch| !batch.updates.is_empty()),
            "a batch of nothing is none"
        );
        Ok(batches)
    }
}

impl fmt::Debug for WriteBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes();
        f.debug_struct("WriteBatch").field("len", &self.len()).field("bytes", &bytes).finish()
    }
}

impl Store {
    /// Commits a batch, all or nothing, with the durability of the store. The batch stays as it is,
    /// so a commit that failed can be repeated.
    ///
    /// With [`Durability::Group`], the default, the commit is written to the log when this returns,
    /// and durable when [`Ticket::wait`] returns. An empty batch is a commit, too.
    ///
    /// Cost: as [`commit_with`](Self::commit_with).
    ///
    /// # Errors
    /// The errors of [`commit_with`](Self::commit_with).
    pub fn write(&self, batch: &WriteBatch) -> Result<Ticket> {
        self.write_with(batch, self.shared.options.durability)
    }

    /// The same with a durability of its own: with [`Durability::Each`] the commit is durable when
    /// this returns.
    ///
    /// # Errors
    /// The errors of [`commit_with`](Self::commit_with).
    pub fn write_with(&self, batch: &WriteBatch, durability: Durability) -> Result<Ticket> {
        self.commit_batches(batch.batches(&self.shared)?, durability, |_| Ok(()))
    }

    /// Commits a batch as [`write`](Self::write) does if the last commit of the store is still
    /// `last_commit`: compare and set for the whole store.
    ///
    /// ```
    /// use terrane_lsm::{Store, StoreOptions, TableConfig, WriteBatch};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
    /// let table = store.create_table("counters", &TableConfig::default())?;
    ///
    /// let read_at = store.last_commit();
    /// let mut batch = WriteBatch::new();
    /// batch.insert(&table, "height", "1");
    /// store.write_if(&batch, read_at)?.wait()?;
    ///
    /// let refused = store.write_if(&batch, read_at).unwrap_err();
    /// assert!(refused.is_conflict());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Conflict`] if another commit came in between; those of
    /// [`commit_with`](Self::commit_with).
    #[doc(alias("commit_if", "compare_and_set"))]
    pub fn write_if(&self, batch: &WriteBatch, last_commit: u64) -> Result<Ticket> {
        let batches = batch.batches(&self.shared)?;
        self.commit_batches(batches, self.shared.options.durability, |last| {
            if last == last_commit {
                return Ok(());
            }
            Err(conflict(last, ConflictCause::LastCommit { expected: last_commit }))
        })
    }
}
