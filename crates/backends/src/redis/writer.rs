//! The writer: changes kept in memory above what the server has, and sent when they are committed.

use std::collections::BTreeMap;
use std::ops::Bound;

use terrane_kv::turn::TurnGuard;
use terrane_kv::{Cursor, Error, Reader, Receipt, Result, Table, Writer, check_entry};

use super::batches::Changes;
use super::cursor::{Above, MergedCursor, View};
use super::inner::{Inner, Page, PageRange, ReadPoint};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Transaction<'a> {
    inner: &'a Inner,
    version: u64,
    changes: Changes,
    _turn: TurnGuard<'a>,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(inner: &'a Inner) -> Result<Self> {
        let (version, turn) = inner.begin_writing()?;
        Ok(Self {
            inner,
            version,
            changes: vec![BTreeMap::new(); inner.keys.tables()],
            _turn: turn,
        })
    }

    fn point(&self) -> ReadPoint {
        ReadPoint::Own(self.version)
    }

    fn enter(&self, table: Table<'_>) -> Result<usize> {
        self.inner.is_open("transaction")?;
        self.inner.options.table(table)
    }
}

impl Reader for Transaction<'_> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.get_many(table, &[key])?.pop().flatten())
    }

    fn get_many(&self, table: Table<'_>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let table = self.enter(table)?;
        let changes = &self.changes[table];

        // Own changes hide the entries of the server.
        let asked: Vec<&[u8]> =
            keys.iter().copied().filter(|&key| !changes.contains_key(key)).collect();
        if !asked.is_empty() {
            self.inner.keep_lock()?;
        }

        let mut found = self.inner.read(&self.point(), table, &asked)?.into_iter();
        let value = |key: &&[u8]| match changes.get(*key) {
            Some(value) => value.clone(),
            None => found.next().flatten(),
        };

        Ok(keys.iter().map(value).collect())
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let table = self.enter(table)?;
        Ok(Box::new(MergedCursor::new(ChangedTable { transaction: self, table })))
    }

    /// Cost: sends the keys that were changed in the table, 10,000 in a round trip.
    fn count(&self, table: Table<'_>) -> Result<u64> {
        let table = self.enter(table)?;
        self.inner.keep_lock()?;
        let changes = &self.changes[table];
        let keys: Vec<&[u8]> = changes.keys().map(Vec::as_slice).collect();
        let (all, among) = self.inner.count(&self.point(), table, &keys)?;
        let bound = changes.values().filter(|value| value.is_some()).count() as u64;
        // Changed keys that the server has are counted as the transaction has them.
        Ok(all - among + bound)
    }
}

impl Writer for Transaction<'_> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        let table = self.enter(table)?;
        check_entry(key, value)?;
        let max = self.inner.value_bytes_max;
        if value.len() > max {
            return Err(Error::Size { what: "value", bytes: value.len(), min: 0, max });
        }
        self.changes[table].insert(key.to_vec(), Some(value.to_vec()));
        Ok(())
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        let table = self.enter(table)?;
        self.changes[table].insert(key.to_vec(), None);
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<Receipt> {
        self.inner.commit(self.version, &self.changes)
    }
}

#[derive(Debug)]
struct ChangedTable<'a> {
    transaction: &'a Transaction<'a>,
    table: usize,
}

impl View for ChangedTable<'_> {
    fn page(&self, range: &PageRange) -> Result<Page> {
        let transaction = self.transaction;
        transaction.inner.is_open("cursor")?;
        transaction.inner.keep_lock()?;
        transaction.inner.page(&transaction.point(), self.table, range)
    }

    fn above(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>), range: &PageRange) -> Above {
        let changes = self.transaction.changes[self.table].range::<[u8], _>(bounds);
        Above::take(changes.map(|(key, value)| (&key[..], value)), range)
    }
}
