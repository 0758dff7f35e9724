//! Optimistic transactions: reads at a view, writes in a batch, validation at the commit.
//!
//! A transaction takes no lock while it lives. It notes what it reads: keys, and the parts of
//! ranges that its iterators go through, gaps included. The commit compares that with the write
//! sets of all commits since the view, those of plain batches included. If nothing that was read
//! has changed, the transaction is committed as if it had run at its commit: transactions are
//! serialisable in the order of their commits. A transaction that wrote nothing is serialisable at
//! its view, whatever came since, so it is not validated.
//!
//! Updates are blind: two transactions that only write a key do not conflict, and the later commit
//! counts. So a counter that is only upserted never conflicts.

use std::collections::BTreeMap;
use std::iter::FusedIterator;
use std::ops::RangeBounds;
use std::time::Duration;

use crate::entry::key_range::KeyRange;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::lookup::result::{Lookup, Record};
use crate::store::inner::Shared;
use crate::store::reads::{Passed, Reads, ScanId};
use crate::store::store::{NamedTable, Store, Ticket};
use crate::store::write_batch::WriteBatch;
use crate::table::cursor::Cursor;
use crate::table::table::Table;
use crate::trace::event;
use terrane_io::Durability;
use terrane_io::rare;
use terrane_io::sync::thread;
use terrane_io::sync::{Arc, Mutex};

/// Attempts of [`Store::transact`].
pub const TRANSACT_ATTEMPTS: u32 = 64;

/// Attempts after which the next one waits for more than its turn.
const EAGER_ATTEMPTS: u32 = 4;

/// Shortest and longest pause before another attempt.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// An optimistic transaction: reads see all tables as of one commit, with the transaction's own
/// writes; the commit is refused with [`Error::Conflict`] if another commit has changed what was
/// read. Made by [`Store::transaction`].
///
/// Dropping a transaction rolls it back. All methods take `&self`, so an iterator may be used while
/// the transaction writes; the iterator gives what was there when it was made.
#[derive(Debug)]
pub struct Transaction {
    store: Store,
    /// The commit that the reads see.
    view: u64,
    tables: BTreeMap<u64, Arc<Table>>,
    own: Mutex<Own>,
    // Ends last: until then the write sets since the view are kept.
    live: Live,
}

/// Reads and writes of a transaction.
#[derive(Debug, Default)]
struct Own {
    batch: WriteBatch,
    reads: Reads,
}

/// A transaction in the list of those that write sets are kept for.
#[derive(Debug)]
struct Live {
    shared: Arc<Shared>,
    moment: u64,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.shared.write_sets.end(self.moment);
    }
}

impl Transaction {
    /// The number of the commit that the reads see.
    #[must_use]
    pub fn view_commit(&self) -> u64 {
        self.view
    }

    /// A table as the transaction saw it when it began.
    fn view(&self, table: &NamedTable) -> Result<&Arc<Table>> {
        let view = self.tables.get(&table.key.id);
        view.filter(|_| Arc::ptr_eq(&table.shared, &self.store.shared))
            .ok_or_else(|| Error::TableDoesNotExist { name: table.key.name.to_string() })
    }

    /// Looks up a key: the transaction's own last write of the key counts, else the view.
    ///
    /// Cost: as [`NamedTable::get`]; notes the key.
    ///
    /// # Errors
    /// The errors of [`Table::get_many`]; [`Error::TableDoesNotExist`] for a table that was made
    /// after the transaction, or of another store.
    pub fn get(&self, table: &NamedTable, key: impl AsRef<[u8]>) -> Result<Lookup> {
        let mut results = self.get_many(table, &[key])?;
        Ok(results.pop().unwrap_or(Lookup::NotFound))
    }

    /// Looks up a batch of keys, whose reads run side by side: see [`get`](Self::get).
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    #[doc(alias("multi_get"))]
    pub fn get_many<K: AsRef<[u8]>>(&self, table: &NamedTable, keys: &[K]) -> Result<Vec<Lookup>> {
        let view = self.view(table)?;
        let mut own = lock(&self.own);
        own.reads.add_keys(table.key.id, &table.key.name, keys);
        own.batch.read_over(table, view, |merged| merged.get_many(keys))
    }

    /// Whether a key is present. No blob is read.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub fn contains(&self, table: &NamedTable, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(table, key)?.is_found())
    }

    /// Entries of a range in key order, and from the back against it, with the transaction's own
    /// writes so far.
    ///
    /// Only the part of the range counts as read that the iterator goes through, with the gaps
    /// between the entries.
    ///
    /// Cost: that of two cursors; see [`Cursor`].
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub fn range<K: AsRef<[u8]> + ?Sized, R: RangeBounds<K>>(
        &self,
        table: &NamedTable,
        range: R,
    ) -> Result<TransactionRange<'_>> {
        self.range_over(table, KeyRange::new(&range))
    }

    /// Entries whose keys begin with `prefix`: as [`range`](Self::range).
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub fn prefix(
        &self,
        table: &NamedTable,
        prefix: impl AsRef<[u8]>,
    ) -> Result<TransactionRange<'_>> {
        self.range_over(table, KeyRange::prefix(prefix.as_ref()))
    }

    fn range_over(&self, table: &NamedTable, range: KeyRange) -> Result<TransactionRange<'_>> {
        let view = self.view(table)?;
        let mut own = lock(&self.own);
        let scan = own.reads.add_scan(table.key.id, &table.key.name, &range);
        let [front, mut back] = own.batch.read_over(table, view, |merged| {
            Ok([merged.cursor_over(range.clone())?, merged.cursor_over(range)?])
        })?;
        back.seek_to_end();
        let ends = Ends::default();
        Ok(TransactionRange { transaction: self, scan, front, back, ends, is_over: false })
    }

    /// Does something to the batch, if the transaction sees the table.
    fn write(&self, table: &NamedTable, write: impl FnOnce(&mut WriteBatch)) -> Result<()> {
        self.view(table)?;
        write(&mut lock(&self.own).batch);
        Ok(())
    }

    /// Sets the value of a key. Nothing is read, and nobody else sees it before the commit.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`] for a table that was made after the transaction, or of another
    /// store.
    #[doc(alias("put"))]
    pub fn insert(
        &self,
        table: &NamedTable,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.write(table, |batch| batch.insert(table, key, value))
    }

    /// Sets the value of a key and its blob.
    ///
    /// # Errors
    /// The errors of [`insert`](Self::insert).
    pub fn insert_with_blob(
        &self,
        table: &NamedTable,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        blob: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.write(table, |batch| batch.insert_with_blob(table, key, value, blob))
    }

    /// Combines a value with the older one by the table's merge operator, without reading: upserts
    /// alone never conflict.
    ///
    /// # Errors
    /// The errors of [`insert`](Self::insert).
    #[doc(alias("merge"))]
    pub fn upsert(
        &self,
        table: &NamedTable,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.write(table, |batch| batch.upsert(table, key, value))
    }

    /// Removes a key.
    ///
    /// # Errors
    /// The errors of [`insert`](Self::insert).
    #[doc(alias("remove"))]
    pub fn delete(&self, table: &NamedTable, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(table, |batch| batch.delete(table, key))
    }

    /// Removes all keys in a range, without reading: also those that other transactions insert
    /// there before this one commits.
    ///
    /// # Errors
    /// The errors of [`insert`](Self::insert).
    pub fn delete_range<K: AsRef<[u8]> + ?Sized, R: RangeBounds<K>>(
        &self,
        table: &NamedTable,
        range: R,
    ) -> Result<()> {
        self.write(table, |batch| batch.delete_range(table, range))
    }

    /// Removes all keys that begin with `prefix`: as [`delete_range`](Self::delete_range).
    ///
    /// # Errors
    /// The errors of [`insert`](Self::insert).
    pub fn delete_prefix(&self, table: &NamedTable, prefix: impl AsRef<[u8]>) -> Result<()> {
        self.write(table, |batch| batch.delete_prefix(table, prefix))
    }

    /// Commits with the durability of the store. With [`Durability::Group`], the default, the
    /// commit is written to the log when this returns, and durable when [`Ticket::wait`] returns.
    ///
    /// A transaction that has written nothing makes no commit: its ticket is that of the commit
    /// that it has read.
    ///
    /// Cost: as [`Store::write`]; each key that other commits wrote since the view is looked up in
    /// the read set, most of them before the commit's turn comes.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a commit has changed what was read, or if the transaction is older
    /// than the [write sets](crate::StoreOptions::write_set_bytes_max) that are kept; the errors of
    /// [`Store::commit_with`]. Nothing was committed then, but see there.
    pub fn commit(self) -> Result<Ticket> {
        let durability = self.store.shared.options.durability;
        self.commit_with(durability)
    }

    /// The same with a durability of its own.
    ///
    /// # Errors
    /// The errors of [`commit`](Self::commit).
    pub fn commit_with(self, durability: Durability) -> Result<Ticket> {
        let shared = &self.store.shared;
        let Own { batch, reads } = std::mem::take(&mut *lock(&self.own));
        if batch.is_empty() {
            let ticket = Ticket::new(shared, self.view);
            if durability == Durability::Each {
                ticket.wait()?;
            }
            return Ok(ticket);
        }

        // Most of the work is done here; what came meanwhile is left for the turn of the commit.
        let reads = reads.finish();
        let check = |checked| {
            if reads.is_empty() {
                return Ok(checked);
            }
            shared.write_sets.check(&reads, checked, self.view)
        };
        let checked = check(self.live.moment)?;
        let batches = batch.batches(shared)?;
        self.store.commit_batches(batches, durability, |_| check(checked).map(drop))
    }

    /// Gives the transaction up: nothing of it was or will be committed. Dropping does the same.
    pub fn rollback(self) {}
}

/// The last keys from both sides.
#[derive(Debug, Default)]
struct Ends {
    front: Option<Vec<u8>>,
    back: Option<Vec<u8>>,
}

/// Entries of a range as a transaction sees them; made by [`Transaction::range`].
///
/// ```
/// use terrane_lsm::{Store, StoreOptions, TableConfig};
///
/// # let folder = tempfile::tempdir()?;
/// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
/// let table = store.create_table("queue", &TableConfig::default())?;
/// table.insert(b"job-1", b"")?.wait()?;
///
/// let tx = store.transaction()?;
/// tx.insert(&table, "job-2", "")?;
/// let last = tx.prefix(&table, "job-")?.next_back().transpose()?;
/// assert_eq!(last.map(|record| record.key), Some(b"job-2".to_vec()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// After an error the iterator ends.
#[derive(Debug)]
pub struct TransactionRange<'tx> {
    transaction: &'tx Transaction,
    scan: ScanId,
    front: Cursor,
    back: Cursor,
    ends: Ends,
    is_over: bool,
}

impl TransactionRange<'_> {
    fn pass(&self, passed: Passed<'_>) {
        lock(&self.transaction.own).reads.pass(self.scan, passed);
    }

    /// Ends the iterator. Without an error nothing is left between both sides, which counts as
    /// read.
    fn end(&mut self, end: Result<Option<Record>>) -> Option<Result<Record>> {
        self.is_over = true;
        match end {
            Ok(_) => {
                self.pass(Passed::Whole);
                None
            }
            Err(error) => Some(Err(error)),
        }
    }
}

impl Iterator for TransactionRange<'_> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let is_free = |key: &Vec<u8>| self.ends.back.as_ref().is_none_or(|back| key < back);
        match self.front.next().transpose() {
            Ok(Some(record)) if is_free(&record.key) => {
                debug_assert!(
                    self.ends.front.as_ref().is_none_or(|front| *front < record.key),
                    "keys rise"
                );
                self.pass(Passed::Front(&record.key));
                self.ends.front = Some(record.key.clone());
                Some(Ok(record))
            }
            end => self.end(end),
        }
    }
}

impl DoubleEndedIterator for TransactionRange<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let is_free = |key: &Vec<u8>| self.ends.front.as_ref().is_none_or(|front| front < key);
        match self.back.prev().transpose() {
            Ok(Some(record)) if is_free(&record.key) => {
                debug_assert!(
                    self.ends.back.as_ref().is_none_or(|back| record.key < *back),
                    "keys fall"
                );
                self.pass(Passed::Back(&record.key));
                self.ends.back = Some(record.key.clone());
                Some(Ok(record))
            }
            end => self.end(end),
        }
    }
}

impl FusedIterator for TransactionRange<'_> {}

impl Store {
    /// Begins an optimistic transaction at the last commit. The transaction does not see tables
    /// that are made later.
    ///
    /// ```
    /// use terrane_lsm::{Store, StoreOptions, TableConfig};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
    /// let accounts = store.create_table("accounts", &TableConfig::default())?;
    /// accounts.insert(b"alice", b"7")?.wait()?;
    ///
    /// let tx = store.transaction()?;
    /// if tx.contains(&accounts, "alice")? {
    ///     tx.delete(&accounts, "alice")?;
    ///     tx.insert(&accounts, "bob", "7")?;
    /// }
    /// accounts.insert(b"alice", b"8")?.wait()?; // somebody else
    ///
    /// let refused = tx.commit().unwrap_err(); // alice was read, and has changed
    /// assert!(refused.is_conflict());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Cost: one [view](NamedTable::view) for each table; no I/O. While any transaction lives, each
    /// commit copies its keys, up to
    /// [`write_set_bytes_max`](crate::StoreOptions::write_set_bytes_max) in all.
    ///
    /// # Errors
    /// The errors of [`NamedTable::view`].
    pub fn transaction(&self) -> Result<Transaction> {
        let shared = &self.shared;
        shared.inner.check_open()?;

        // With all tables locked no commit comes between the views and the beginning.
        let slots = shared.slots();
        let locked: Vec<_> = slots.iter().map(|(_, slot)| lock(&slot.table)).collect();
        shared.check_whole()?;
        let (moment, view) = {
            let _state = lock(&shared.state);
            shared.write_sets.begin()
        };
        let live = Live { shared: Arc::clone(shared), moment };

        let mut tables = BTreeMap::new();
        for ((id, slot), named) in slots.iter().zip(&locked) {
            // A table that was dropped meanwhile is not seen.
            if let Some(named) = &**named {
                tables.insert(*id, slot.view_of(named)?);
            }
        }
        drop(locked);

        let own = Mutex::default();
        Ok(Transaction { store: self.clone(), view, tables, own, live })
    }

    /// Runs `body` in a transaction and commits, again and again while other commits get in the
    /// way: up to [`TRANSACT_ATTEMPTS`] times. If the durability of the store is
    /// [`Durability::Group`], the default, or higher, the commit is durable when this returns.
    ///
    /// ```
    /// use terrane_lsm::{Store, StoreOptions, TableConfig};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
    /// let counters = store.create_table("counters", &TableConfig::default())?;
    ///
    /// let height = store.transact(|tx| {
    ///     let old = tx.get(&counters, "height")?;
    ///     let new = old.value().map_or(1, |value| value[0] + 1);
    ///     tx.insert(&counters, "height", [new])?;
    ///     Ok(new)
    /// })?;
    /// assert_eq!(height, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// If `body` fails, the transaction is rolled back. Do nothing in `body` that must not be
    /// repeated. Between two attempts the thread gives its turn away, later up to 2 ms, under no
    /// lock.
    ///
    /// # Errors
    /// The errors of `body`, and of [`Transaction::commit`]: the last [`Error::Conflict`] if every
    /// attempt met one.
    pub fn transact<T>(&self, mut body: impl FnMut(&Transaction) -> Result<T>) -> Result<T> {
        let mut attempt = 0;
        loop {
            let transaction = self.transaction()?;
            let done = body(&transaction);
            let done = done.and_then(|value| Ok((value, transaction.commit()?)));
            attempt += 1;
            debug_assert!(attempt <= TRANSACT_ATTEMPTS, "attempts come to an end");
            match done {
                Err(Error::Conflict(conflict)) if attempt < TRANSACT_ATTEMPTS => {
                    rare::taken("a transaction is refused and tried again");
                    event!(DEBUG, "transaction.conflict", self.shared.inner.dir(), %conflict);
                    back_off(attempt);
                }
                Err(error) => return Err(error),
                Ok((value, ticket)) => {
                    if self.shared.options.durability >= Durability::Group {
                        ticket.wait()?;
                    }
                    return Ok(value);
                }
            }
        }
    }
}

/// Lets others go first: the longer, the more attempts have failed.
fn back_off(attempt: u32) {
    debug_assert!(0 < attempt && attempt < TRANSACT_ATTEMPTS);
    if attempt <= EAGER_ATTEMPTS {
        thread::yield_now();
        return;
    }
    let doublings = (attempt - EAGER_ATTEMPTS).min(16);
    thread::sleep((PAUSE_MIN * (1 << doublings)).min(PAUSE_MAX));
}
