//! Readers and the writer of a database in WAL mode: a connection each.

use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use terrane_kv::overlay::names::IndexNames;
use terrane_kv::overlay::paging::{PagedCursor, Pages};
use terrane_kv::turn::TurnGuard;
use terrane_kv::{Cursor, Entry, Reader, Receipt, Result, Table, Writer, check_entry};

use super::connection::{Connected, lock};
use super::error::closed;
use super::inner::Inner;
use super::writer_state::WriterState;

/// Connections of snapshots that have ended, to be used again.
#[derive(Debug)]
pub(super) struct Pool {
    /// `None` when the database is closed.
    pub(super) idle: Mutex<Option<Vec<Connected>>>,
    pub(super) size: usize,
}

impl Pool {
    pub(super) fn take(&self) -> Result<Option<Connected>> {
        Ok(lock(&self.idle).as_mut().ok_or_else(|| closed("reader"))?.pop())
    }

    pub(super) fn give_back(&self, connected: Connected) {
        // A connection inside a transaction must not be given out again.
        connected.roll_back();
        // A full pool lets the connection go.
        if let Some(idle) = lock(&self.idle).as_mut()
            && idle.len() < self.size
        {
            idle.push(connected);
        }
    }
}

pub(super) struct WalReader {
    /// Taken when it is dropped.
    pub(super) connected: Option<Connected>,
    pub(super) indexes: Arc<IndexNames>,
    pub(super) pool: Arc<Pool>,
}

impl Drop for WalReader {
    fn drop(&mut self) {
        if let Some(connected) = self.connected.take() {
            self.pool.give_back(connected);
        }
    }
}

impl WalReader {
    pub(super) fn connected(&self) -> Result<&Connected> {
        self.connected.as_ref().ok_or_else(|| closed("read"))
    }
}

impl Reader for WalReader {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.connected()?.get(self.indexes.number(table)?, key)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let pages = ConnectedPages(self.connected()?, self.indexes.number(table)?);
        Ok(Box::new(PagedCursor::new(pages)))
    }

    /// Cost: reads the table.
    fn count(&self, table: Table<'_>) -> Result<u64> {
        self.connected()?.count(self.indexes.number(table)?)
    }
}

/// A table as its connection has it.
pub(super) struct ConnectedPages<'c>(&'c Connected, usize);

impl Pages for ConnectedPages<'_> {
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        Ok(self.0.after(self.1, from, entries)?.0)
    }

    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        Ok(self.0.before(self.1, to, entries)?.0)
    }
}

/// Dropped, it takes its transaction back.
pub(super) struct WalWriter<'d> {
    pub(super) connected: MutexGuard<'d, Option<Connected>>,
    pub(super) inner: &'d Inner,
    pub(super) state: WriterState,
    pub(super) _turn: TurnGuard<'d>,
}

impl Drop for WalWriter<'_> {
    fn drop(&mut self) {
        if let Some(connected) = self.connected.as_ref() {
            connected.roll_back();
        }
    }
}

impl WalWriter<'_> {
    fn connected(&self) -> Result<&Connected> {
        self.state.check()?;
        self.connected.as_ref().ok_or_else(|| closed("transaction"))
    }

    /// Does a change; if it fails, takes the transaction back.
    fn change(&mut self, change: impl FnOnce(&Connected) -> Result<bool>) -> Result<()> {
        let connected = self.connected()?;
        match change(connected) {
            Ok(changed) => {
                self.state.changed |= changed;
                Ok(())
            }
            Err(error) => {
                connected.roll_back();
                self.state.fail(&error);
                self.inner.noted(Err(error))
            }
        }
    }
}

impl Reader for WalWriter<'_> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.connected()?.get(self.inner.indexes.number(table)?, key)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let pages = ConnectedPages(self.connected()?, self.inner.indexes.number(table)?);
        Ok(Box::new(PagedCursor::new(pages)))
    }

    /// Cost: reads the table.
    fn count(&self, table: Table<'_>) -> Result<u64> {
        self.connected()?.count(self.inner.indexes.number(table)?)
    }
}

impl Writer for WalWriter<'_> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        let table = self.inner.indexes.number(table)?;
        check_entry(key, value)?;
        self.change(|connected| connected.put(table, key, value).map(|()| true))
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        let table = self.inner.indexes.number(table)?;
        self.change(|connected| connected.remove(table, key))
    }

    fn commit(self: Box<Self>) -> Result<Receipt> {
        // Dropped after a failure, it takes the transaction back.
        self.inner.noted(self.connected()?.run("commit", "COMMIT"))?;
        Ok(self.inner.committed(self.state.changed))
    }
}
