//! Single connection of a database without WAL: calls take turns with it, and its snapshots read
//! through the values that later commits replaced.

use std::ops::Bound;

use terrane_kv::overlay::undo::Undo;
use terrane_kv::{Entry, Error, Result};

use super::connection::Connected;
use super::error::{NAME, closed};
use super::merge::merged;
use super::options::{JournalMode, SqliteOptions, SqlitePlace};

/// Open transaction of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenTransaction {
    Nothing,
    /// A read transaction, which keeps other programs from committing.
    Reading,
    /// The transaction of the writer.
    Writing,
}

/// Single connection of a database without WAL. See the [module](self).
#[derive(Debug)]
pub(super) struct Single {
    /// `None` when closed.
    pub(super) connected: Option<Connected>,
    /// Old values, and the snapshots that live. The open transaction of the writer counts as a
    /// snapshot of the last commit.
    undo: Undo,
    /// The number of the last commit.
    number: u64,
    /// Snapshots below this number are broken: another program has changed the file.
    broken_below: u64,
    /// SQLite's counter of changes by other connections.
    data_version: i64,
    held: OpenTransaction,
    is_memory: bool,
    /// Whether SQLite cannot take a transaction back.
    is_journal_off: bool,
}

impl Single {
    pub(super) fn new(connected: Connected, options: &SqliteOptions) -> Result<Self> {
        let data_version = connected.pragma("data_version")?;
        Ok(Self {
            undo: Undo::new(connected.table_count()),
            connected: Some(connected),
            number: 0,
            broken_below: 0,
            data_version,
            held: OpenTransaction::Nothing,
            is_memory: matches!(options.place, SqlitePlace::Memory),
            is_journal_off: options.journal_mode == JournalMode::Off,
        })
    }

    pub(super) fn connected(&self, call: &'static str) -> Result<&Connected> {
        self.connected.as_ref().ok_or_else(|| closed(call))
    }

    /// Notices changes of other programs. A transaction is open.
    fn look_for_others(&mut self) -> Result<()> {
        let data_version = self.connected("transaction")?.pragma("data_version")?;
        if data_version != self.data_version {
            self.data_version = data_version;
            self.number += 1;
            // Older snapshots cannot be served: the undo does not have the other program's changes.
            self.broken_below = self.number;
        }
        Ok(())
    }

    /// Opens a read transaction, so that no other program commits while a snapshot lives.
    fn open_park(&mut self) -> Result<()> {
        if self.held != OpenTransaction::Nothing || self.is_memory {
            return Ok(());
        }
        let connected = self.connected("reader")?;
        connected.run("reader", "BEGIN")?;
        if let Err(error) = connected.pin() {
            connected.roll_back();
            return Err(error);
        }
        self.held = OpenTransaction::Reading;
        self.look_for_others_or_end()
    }

    /// Notices changes of other programs; ends the transaction if that fails.
    fn look_for_others_or_end(&mut self) -> Result<()> {
        let looked = self.look_for_others();
        if looked.is_err() {
            if let Some(connected) = &self.connected {
                connected.roll_back();
            }
            self.held = OpenTransaction::Nothing;
        }
        looked
    }

    /// Opens a read transaction if a snapshot lives.
    pub(super) fn park(&mut self) -> Result<()> {
        if self.undo.is_needed() { self.open_park() } else { Ok(()) }
    }

    pub(super) fn unpark(&mut self) -> Result<()> {
        if self.held == OpenTransaction::Reading {
            self.connected("transaction")?.run("transaction", "COMMIT")?;
            self.held = OpenTransaction::Nothing;
        }
        Ok(())
    }

    /// Begins a snapshot; returns its number.
    pub(super) fn enter(&mut self) -> Result<u64> {
        self.connected("reader")?;
        self.open_park()?;
        self.undo.begin(self.number);
        Ok(self.number)
    }

    pub(super) fn leave(&mut self, snapshot: u64) {
        self.undo.end(snapshot);
        if !self.undo.is_needed() {
            // If it fails, the next transaction reports the error.
            let _ = self.unpark();
        }
    }

    fn check_snapshot(&self, snapshot: u64) -> Result<()> {
        if snapshot < self.broken_below {
            return Err(Error::Busy {
                back_end: NAME,
                what: "another program has changed the file under this snapshot; take a new one, or WAL".into(),
                source: None,
            });
        }
        Ok(())
    }

    pub(super) fn begin(&mut self) -> Result<()> {
        self.unpark()?;
        if let Err(error) = self.connected("writer")?.run("writer", "BEGIN IMMEDIATE") {
            // The error at hand counts. If parking fails, changes of other programs are noticed
            // later.
            let _ = self.park();
            return Err(error);
        }
        self.held = OpenTransaction::Writing;
        self.look_for_others_or_end()?;
        self.undo.begin(self.number);
        Ok(())
    }

    /// Rolls the transaction back.
    ///
    /// # Errors
    /// [`Error::Poisoned`] alone.
    pub(super) fn take_back(&mut self) -> Result<()> {
        let taken_back = self.take_back_changes();
        if self.held == OpenTransaction::Writing {
            self.undo.forget(self.number + 1);
            self.undo.end(self.number);
        }
        self.held = OpenTransaction::Nothing;
        // The error that counts is that of what is taken back; without a park other programs are
        // noticed later.
        let _ = self.park();
        taken_back
    }

    fn take_back_changes(&self) -> Result<()> {
        let Some(connected) = &self.connected else { return Ok(()) };
        if !self.is_journal_off {
            connected.roll_back();
            return Ok(());
        }

        // Without a journal SQLite cannot roll back: the old values are written again.
        let put_back = || {
            for (table, key, old) in self.undo.noted(self.number + 1) {
                match old {
                    Some(old) => connected.put(table, key, old)?,
                    None => connected.remove(table, key).map(drop)?,
                }
            }
            connected.run("roll back", "COMMIT")
        };

        put_back().map_err(|_| {
            connected.roll_back();
            Error::Poisoned { back_end: NAME }
        })
    }

    pub(super) fn commit(&mut self) -> Result<()> {
        if let Err(error) = self.connected("commit")?.run("commit", "COMMIT") {
            self.take_back()?;
            return Err(error);
        }

        debug_assert!(self.held == OpenTransaction::Writing);
        self.undo.end(self.number);
        self.number += 1;
        self.held = OpenTransaction::Nothing;

        // The commit stands whether this works or not; without a park other programs are noticed
        // later.
        let _ = self.park();
        Ok(())
    }

    /// Changes a key, and notes what it was.
    pub(super) fn change(
        &mut self,
        table: usize,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<bool> {
        let commit = self.number + 1;
        // Only the value before the transaction's first change of a key is needed.
        if !self.undo.is_noted(commit, table, key) {
            let old = self.connected("write")?.get(table, key)?;
            self.undo.note(commit, table, key, old);
        }
        let connected = self.connected("write")?;
        match value {
            Some(value) => connected.put(table, key, value).map(|()| true),
            None => connected.remove(table, key),
        }
    }

    pub(super) fn get(&self, snapshot: u64, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_snapshot(snapshot)?;
        let connected = self.connected("get")?;
        match self.undo.value(table, key, snapshot) {
            Some(old) => Ok(old.clone()),
            None => connected.get(table, key),
        }
    }

    pub(super) fn count(&self, snapshot: u64, table: usize) -> Result<u64> {
        self.check_snapshot(snapshot)?;
        let connected = self.connected("count")?;
        let mut count = connected.count(table)?;
        for (key, old) in self.undo.range(table, snapshot, (Bound::Unbounded, Bound::Unbounded)) {
            count += u64::from(old.is_some());
            count -= u64::from(connected.get(table, key)?.is_some());
        }
        Ok(count)
    }

    pub(super) fn after(
        &self,
        snapshot: u64,
        table: usize,
        from: Bound<&[u8]>,
        entries: usize,
    ) -> Result<Vec<Entry>> {
        self.check_snapshot(snapshot)?;

        let connected = self.connected("cursor")?;
        let mut from = from.map(<[u8]>::to_vec);
        loop {
            let bound = from.as_ref().map(Vec::as_slice);
            let (page, is_last) = connected.after(table, bound, entries)?;
            let behind = page.last().map(|(key, _)| key.clone());
            let olds = self.undo.range(table, snapshot, (bound, Bound::Unbounded));
            let merged = merged(page, is_last, olds, |a, b| a < b, entries);
            match behind {
                Some(behind) if merged.is_empty() && !is_last => from = Bound::Excluded(behind),
                _ => return Ok(merged),
            }
        }
    }

    pub(super) fn before(
        &self,
        snapshot: u64,
        table: usize,
        to: Bound<&[u8]>,
        entries: usize,
    ) -> Result<Vec<Entry>> {
        self.check_snapshot(snapshot)?;

        let connected = self.connected("cursor")?;
        let mut to = to.map(<[u8]>::to_vec);
        loop {
            let bound = to.as_ref().map(Vec::as_slice);
            let (page, is_last) = connected.before(table, bound, entries)?;
            let behind = page.last().map(|(key, _)| key.clone());
            let olds = self.undo.range(table, snapshot, (Bound::Unbounded, bound)).rev();
            let merged = merged(page, is_last, olds, |a, b| a > b, entries);
            match behind {
                Some(behind) if merged.is_empty() && !is_last => to = Bound::Excluded(behind),
                _ => return Ok(merged),
            }
        }
    }
}
