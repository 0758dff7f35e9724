//! Writer: a transaction of LMDB, and the log to repeat it from when the map has grown.

use terrane_kv::overlay::paging::PagedCursor;
use terrane_kv::turn::TurnGuard;
use terrane_kv::{
    Cursor, Error, KEY_BYTES_MAX, Reader, Receipt, Result, Table, Writer, check_entry,
};
use terrane_lmdb::{EnvironmentTable, Failure, Kind, ReadTables as _, SyncMode, Transaction};

use super::environment::{Open, grow};
use super::failure::{back_end_error, busy, error_of, full};
use super::inner::Inner;
use super::options::round_down;
use super::pages::{TablePages, is_key};

/// Logged change of a transaction, to be repeated when the map has grown.
struct Change {
    table: EnvironmentTable,
    key: Vec<u8>,
    /// `None` removes.
    value: Option<Vec<u8>>,
}

pub(super) struct LmdbWriter<'d> {
    /// `None` after a call that failed.
    transaction: Option<Transaction>,
    /// Number of the transaction. If a repeated one has another, another process has committed.
    number: u64,
    open: Open,
    inner: &'d Inner,
    log: Vec<Change>,
    /// Number of removals in the log.
    removed: usize,
    /// Whether anything has changed.
    changed: bool,
    /// Whether [`release`](Self::release) was called.
    released: bool,
    /// Full resource, if that is why there is no transaction.
    full: Option<String>,
    _turn: TurnGuard<'d>,
}

impl Drop for LmdbWriter<'_> {
    fn drop(&mut self) {
        // Ended first: the map cannot be resized during a transaction.
        self.transaction = None;
        let soft = self.inner.options.soft_bytes();
        let environment = &self.open.environment;
        if environment.map_bytes() > soft && environment.used_bytes() < environment.map_bytes() {
            // Gives the reserve for removals back. If that fails, the next transaction has less of
            // it.
            let _ = environment.resize(soft);
        }
    }
}

impl<'d> LmdbWriter<'d> {
    /// A writer of a transaction that has just begun.
    pub(super) fn new(
        inner: &'d Inner,
        open: Open,
        transaction: Transaction,
        turn: TurnGuard<'d>,
    ) -> Self {
        Self {
            number: transaction.number(),
            transaction: Some(transaction),
            open,
            inner,
            log: Vec::new(),
            removed: 0,
            changed: false,
            released: false,
            full: None,
            _turn: turn,
        }
    }

    fn table(&self, table: Table<'_>) -> Result<EnvironmentTable> {
        Ok(self.open.tables[self.inner.indexes.number(table)?])
    }

    fn transaction(&self) -> Result<&Transaction> {
        self.transaction.as_ref().ok_or_else(|| self.failed())
    }

    fn failed(&self) -> Error {
        match &self.full {
            Some(limit) => full(limit.clone(), None),
            None => back_end_error("transaction", "an earlier call of this writer failed"),
        }
    }

    fn change(&mut self, change: Change) -> Result<()> {
        if self.transaction.is_none() {
            return Err(self.failed());
        }

        debug_assert!(self.removed <= self.log.len());
        self.removed += usize::from(change.value.is_none());
        self.log.push(change);

        match self.apply(self.log.len() - 1) {
            Err(Failure { kind: Kind::MapFull, .. }) => self.grow(),
            Err(failure) => {
                self.transaction = None;
                Err(error_of("write", failure))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Applies the changes of the log from position `first` on.
    fn apply(&mut self, first: usize) -> std::result::Result<(), Failure> {
        let Some(transaction) = &mut self.transaction else { return Ok(()) };
        for Change { table, key, value } in &self.log[first..] {
            match value {
                Some(value) => {
                    transaction.put(*table, key, value)?;
                    self.changed = true;
                }
                None => self.changed |= transaction.remove(*table, key)?,
            }
        }
        Ok(())
    }

    /// Aborts the transaction, grows the map, and repeats the transaction.
    fn grow(&mut self) -> Result<()> {
        let options = &self.inner.options;

        // The reserve of the limit is for transactions that mostly remove.
        let bytes_max = if 2 * self.removed > self.log.len() {
            round_down(options.map_bytes_max)
        } else {
            options.soft_bytes()
        };

        loop {
            // Ended first: the map cannot be resized during a transaction.
            self.transaction = None;

            let grown =
                grow(&self.open.environment, options, bytes_max, self.inner.readers.oldest());
            if let Err(error) = grown
                && !self.release()
            {
                if let Error::StoreFull { limit, .. } = &error {
                    self.full = Some(limit.clone());
                }
                return Err(error);
            }

            match self.begin_again() {
                Ok(()) => return Ok(()),
                Err(None) => {}
                Err(Some(error)) => return Err(error),
            }
        }
    }

    /// Begins the transaction again and repeats its changes; the error is `None` if the map is
    /// full.
    fn begin_again(&mut self) -> std::result::Result<(), Option<Error>> {
        let write_error = |failure| Some(error_of("write", failure));
        let transaction = self.open.environment.transaction().map_err(write_error)?;
        // With another commit in between, what was read is outdated.
        if transaction.number() != self.number {
            return Err(Some(busy("another process has committed while there was no room")));
        }
        self.transaction = Some(transaction);
        self.apply(0).map_err(|failure| {
            self.transaction = None;
            if failure.kind == Kind::MapFull { None } else { write_error(failure) }
        })
    }

    /// Commits an empty transaction, once; returns whether it did. LMDB reuses the pages that a
    /// transaction frees in the second transaction after it. Without an empty commit, the
    /// transaction after a removal would find no room.
    fn release(&mut self) -> bool {
        if std::mem::replace(&mut self.released, true) {
            return false;
        }

        let main = self.open.tables[0];

        // No entry has this key: it is longer than a key may be.
        let key = [0; KEY_BYTES_MAX + 1];
        let commit = || {
            let mut transaction = self.open.environment.transaction()?;
            if transaction.number() != self.number {
                return Ok(false);
            }
            transaction.put(main, &key, &[])?;
            transaction.remove(main, &key)?;
            transaction.commit()?;
            Ok::<bool, Failure>(true)
        };

        let is_committed = commit().unwrap_or(false);
        if is_committed {
            self.number += 1;
            self.inner.count_syncs();
        }

        is_committed
    }

    /// The error of a failed commit.
    fn commit_error(&self, failure: Failure) -> Error {
        let bytes: usize = self
            .log
            .iter()
            .map(|change| change.key.len() + change.value.as_ref().map_or(0, Vec::len))
            .sum();

        match failure.kind {
            Kind::NoRoom => full("disk, quota or size of a file", Some(failure.into())),
            Kind::Other => match self.open.environment.has_room(2 * bytes as u64 + (256 << 10)) {
                Ok(false) => full("disk, quota or size of a file", Some(failure.into())),
                _ if matches!(self.inner.options.sync, SyncMode::Full | SyncMode::NoMeta) => {
                    self.inner.poison()
                }
                _ => back_end_error("commit", failure),
            },
            Kind::Fatal => self.inner.poison(),
            _ => error_of("commit", failure),
        }
    }
}

impl Reader for LmdbWriter<'_> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.table(table)?;
        let transaction = self.transaction()?;
        // LMDB refuses such a key, and no entry has it.
        if !is_key(key) {
            return Ok(None);
        }
        transaction.get(table, key).map_err(|failure| error_of("get", failure))
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let pages = TablePages(self.transaction()?, self.table(table)?);
        Ok(Box::new(PagedCursor::new(pages)))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        let table = self.table(table)?;
        self.transaction()?.len(table).map_err(|failure| error_of("count", failure))
    }
}

impl Writer for LmdbWriter<'_> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        let table = self.table(table)?;
        check_entry(key, value)?;
        self.change(Change { table, key: key.to_vec(), value: Some(value.to_vec()) })
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        let table = self.table(table)?;
        // LMDB refuses such a key, and no entry has it.
        if !is_key(key) {
            self.transaction()?;
            return Ok(());
        }
        self.change(Change { table, key: key.to_vec(), value: None })
    }

    fn commit(mut self: Box<Self>) -> Result<Receipt> {
        loop {
            let transaction = self.transaction.take().ok_or_else(|| self.failed())?;
            match transaction.commit() {
                Ok(()) => break,
                Err(Failure { kind: Kind::MapFull, .. }) => self.grow()?,
                Err(failure) => {
                    let error = self.commit_error(failure);
                    if !matches!(error, Error::StoreFull { .. }) || !self.release() {
                        return Err(error);
                    }
                    match self.begin_again() {
                        Ok(()) => {}
                        Err(None) => self.grow()?,
                        Err(Some(error)) => return Err(error),
                    }
                }
            }
        }

        // LMDB does not write, and does not sync, for a transaction without changes.
        if self.changed {
            self.inner.count_syncs();
        }

        Ok(self.inner.count_transaction())
    }
}
