//! Readers and the writer that share one connection.

use std::ops::Bound;
use std::sync::{Arc, Mutex};

use terrane_kv::overlay::names::IndexNames;
use terrane_kv::overlay::paging::{PagedCursor, Pages};
use terrane_kv::turn::TurnGuard;
use terrane_kv::{Cursor, Entry, Reader, Receipt, Result, Table, Writer, check_entry};

use super::connection::{is_key, lock};
use super::inner::Inner;
use super::single::Single;
use super::writer_state::WriterState;

pub(super) struct SingleReader {
    pub(super) single: Arc<Mutex<Single>>,
    pub(super) indexes: Arc<IndexNames>,
    pub(super) snapshot: u64,
}

impl Drop for SingleReader {
    fn drop(&mut self) {
        lock(&self.single).leave(self.snapshot);
    }
}

impl Reader for SingleReader {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        lock(&self.single).get(self.snapshot, self.indexes.number(table)?, key)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(PagedCursor::new(SnapshotPages(self, self.indexes.number(table)?))))
    }

    /// Cost: reads the table.
    fn count(&self, table: Table<'_>) -> Result<u64> {
        lock(&self.single).count(self.snapshot, self.indexes.number(table)?)
    }
}

/// A table as a snapshot of the one connection sees it.
pub(super) struct SnapshotPages<'r>(&'r SingleReader, usize);

impl Pages for SnapshotPages<'_> {
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        lock(&self.0.single).after(self.0.snapshot, self.1, from, entries)
    }

    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        lock(&self.0.single).before(self.0.snapshot, self.1, to, entries)
    }
}

pub(super) struct SingleWriter<'d> {
    pub(super) single: &'d Mutex<Single>,
    pub(super) inner: &'d Inner,
    pub(super) state: WriterState,
    /// Whether there is a transaction to take back.
    pub(super) is_open: bool,
    pub(super) _turn: TurnGuard<'d>,
}

impl Drop for SingleWriter<'_> {
    fn drop(&mut self) {
        if self.is_open && lock(self.single).take_back().is_err() {
            // Nobody can be told, and what the file has is not known: a journal is OFF, or SQLite
            // broke its word.
            self.inner.poison();
        }
    }
}

impl SingleWriter<'_> {
    fn change(&mut self, table: Table<'_>, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let table = self.inner.indexes.number(table)?;
        self.state.check()?;
        if !is_key(key) {
            return Ok(());
        }

        let mut single = lock(self.single);
        match single.change(table, key, value) {
            Ok(changed) => {
                self.state.changed |= changed;
                Ok(())
            }
            Err(error) => {
                self.state.fail(&error);
                self.is_open = false;
                // SQLite syncs the journal also when its cache is full.
                let error = self.inner.noted(Err(error));
                self.inner.noted(single.take_back())?;
                error
            }
        }
    }
}

impl Reader for SingleWriter<'_> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.inner.indexes.number(table)?;
        self.state.check()?;
        lock(self.single).connected("get")?.get(table, key)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let table = self.inner.indexes.number(table)?;
        self.state.check()?;
        Ok(Box::new(PagedCursor::new(WriterPages(self, table))))
    }

    /// Cost: reads the table.
    fn count(&self, table: Table<'_>) -> Result<u64> {
        let table = self.inner.indexes.number(table)?;
        self.state.check()?;
        lock(self.single).connected("count")?.count(table)
    }
}

/// A table as the writer of the one connection sees it.
pub(super) struct WriterPages<'w, 'd>(&'w SingleWriter<'d>, usize);

impl Pages for WriterPages<'_, '_> {
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        Ok(lock(self.0.single).connected("cursor")?.after(self.1, from, entries)?.0)
    }

    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        Ok(lock(self.0.single).connected("cursor")?.before(self.1, to, entries)?.0)
    }
}

impl Writer for SingleWriter<'_> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        self.inner.indexes.number(table)?;
        check_entry(key, value)?;
        self.change(table, key, Some(value))
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        self.change(table, key, None)
    }

    fn commit(mut self: Box<Self>) -> Result<Receipt> {
        self.state.check()?;
        self.is_open = false;
        self.inner.noted(lock(self.single).commit())?;
        Ok(self.inner.committed(self.state.changed))
    }
}
