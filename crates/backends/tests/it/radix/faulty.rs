//! A database that counts what is asked of it, and fails when it is told to.
//!
//! It stands before another one. A call that fails does not reach the other, but for a commit that
//! fails after it took place. A row of its main table can be such that the database itself finds it
//! damaged, whoever reads it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use terrane_kv::{
    Counts, Cursor, Database, Entry, Error, Guarantee, Reader, Receipt, Result, Table, Writer,
};

const NAME: &str = "faulty";

/// Kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Reader,
    Writer,
    Get,
    Cursor,
    Write,
    Commit,
}

pub(super) const CALLS: [Call; 6] =
    [Call::Reader, Call::Writer, Call::Get, Call::Cursor, Call::Write, Call::Commit];

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    BackEnd,
    StoreFull,
    Busy,
    /// A write fails: the record is too large for this database.
    Size,
    /// A commit does not take place, and the caller cannot tell.
    UnknownNotDone,
    /// A commit takes place, and the caller cannot tell.
    UnknownDone,
}

impl Fault {
    pub(super) fn error(self) -> Error {
        match self {
            Self::BackEnd => {
                Error::BackEnd { back_end: NAME, call: "a call", source: "it was told to".into() }
            }
            Self::StoreFull => {
                Error::StoreFull { back_end: NAME, limit: "it was told so".into(), source: None }
            }
            Self::Busy => {
                Error::Busy { back_end: NAME, what: "it was told so".into(), source: None }
            }
            Self::Size => Error::Size { what: "value", bytes: 900, min: 0, max: 800 },
            Self::UnknownNotDone | Self::UnknownDone => {
                Error::Unknown { back_end: NAME, source: None }
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    counts: [u64; CALLS.len()],
    /// Which call fails next, after so many that do not, and how.
    next: Option<(Call, u64, Fault)>,
    /// The key of the row that cannot be read.
    damaged: Option<Vec<u8>>,
}

/// State that the handles share.
#[derive(Debug, Default)]
struct Plan {
    state: Mutex<State>,
    lingers: AtomicBool,
}

impl Plan {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call; the fault if it is to fail.
    fn fault(&self, call: Call) -> Option<Fault> {
        let mut state = self.state();
        state.counts[call as usize] += 1;
        let (of, left, fault) = state.next.filter(|(of, ..)| *of == call)?;
        state.next = left.checked_sub(1).map(|left| (of, left, fault));
        (left == 0).then_some(fault)
    }

    /// Fails if one of some rows cannot be read.
    fn check_rows(&self, table: Table<'_>, keys: &[&[u8]]) -> Result<()> {
        let state = self.state();
        match &state.damaged {
            Some(damaged) if table == Table::Main && keys.contains(&damaged.as_slice()) => {
                let what = "page 7".to_owned();
                let source = Some("checksum".into());
                Err(Error::Corruption { back_end: NAME, what, source })
            }
            _ => Ok(()),
        }
    }

    fn check(&self, call: Call) -> Result<()> {
        self.fault(call).map_or(Ok(()), |fault| Err(fault.error()))
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Faulty {
    inner: Arc<dyn Database>,
    plan: Arc<Plan>,
}

impl Faulty {
    pub(super) fn new(inner: Arc<dyn Database>) -> Arc<Self> {
        Arc::new(Self { inner, plan: Arc::default() })
    }

    /// Lets a call fail, after so many of its kind that do not.
    pub(super) fn fail(&self, call: Call, after: u64, fault: Fault) {
        self.plan.state().next = Some((call, after, fault));
    }

    /// From now on this row of the main table cannot be read.
    pub(super) fn damage(&self, key: &[u8]) {
        self.plan.state().damaged = Some(key.to_vec());
    }

    /// Fails no more. Answers whether there was a call that failed.
    pub(super) fn heal(&self) -> bool {
        self.plan.state().next.take().is_none()
    }

    /// Commits return late: when another has come that far, or the others had many turns.
    pub(super) fn linger(&self) {
        self.plan.lingers.store(true, Ordering::Relaxed);
    }

    /// How many calls there were of a kind.
    pub(super) fn count(&self, call: Call) -> u64 {
        self.plan.state().counts[call as usize]
    }
}

struct FaultyCursor<'a> {
    inner: Box<dyn Cursor + 'a>,
    table: Table<'a>,
    plan: &'a Plan,
}

impl FaultyCursor<'_> {
    fn found(&self, entry: Option<Entry>) -> Result<Option<Entry>> {
        if let Some((key, _)) = &entry {
            self.plan.check_rows(self.table, &[key])?;
        }
        Ok(entry)
    }
}

impl Cursor for FaultyCursor<'_> {
    fn seek_first(&mut self) -> Result<()> {
        self.plan.check(Call::Cursor)?;
        self.inner.seek_first()
    }

    fn seek_last(&mut self) -> Result<()> {
        self.plan.check(Call::Cursor)?;
        self.inner.seek_last()
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.plan.check(Call::Cursor)?;
        self.inner.seek(key)
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        self.plan.check(Call::Cursor)?;
        let entry = self.inner.next()?;
        self.found(entry)
    }

    fn prev(&mut self) -> Result<Option<Entry>> {
        self.plan.check(Call::Cursor)?;
        let entry = self.inner.prev()?;
        self.found(entry)
    }
}

/// A reader or a writer.
struct Handle<T> {
    inner: T,
    plan: Arc<Plan>,
}

impl<R: Reader + ?Sized> Reader for Handle<Box<R>> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.plan.check(Call::Get)?;
        self.plan.check_rows(table, &[key])?;
        self.inner.get(table, key)
    }

    fn get_many(&self, table: Table<'_>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        self.plan.check(Call::Get)?;
        self.plan.check_rows(table, keys)?;
        self.inner.get_many(table, keys)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        self.plan.check(Call::Cursor)?;
        let of = match table {
            Table::Main => Table::Main,
            // Only rows of the main table are damaged.
            Table::Index(_) => Table::Index(""),
        };
        let inner = self.inner.cursor(table)?;
        Ok(Box::new(FaultyCursor { inner, table: of, plan: &self.plan }))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        self.plan.check(Call::Get)?;
        self.inner.count(table)
    }
}

impl Writer for Handle<Box<dyn Writer + '_>> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        self.plan.check(Call::Write)?;
        self.inner.overwrite(table, key, value)
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        self.plan.check(Call::Write)?;
        self.inner.remove(table, key)
    }

    fn commit(self: Box<Self>) -> Result<Receipt> {
        let Self { inner, plan } = *self;
        match plan.fault(Call::Commit) {
            None => {
                let receipt = inner.commit()?;
                let before = plan.state().counts[Call::Commit as usize];
                let mut turns = 0;
                while plan.lingers.load(Ordering::Relaxed)
                    && turns < 1000
                    && plan.state().counts[Call::Commit as usize] == before
                {
                    thread::yield_now();
                    turns += 1;
                }
                Ok(receipt)
            }
            Some(fault) => {
                if fault == Fault::UnknownDone {
                    inner.commit()?;
                }
                Err(fault.error())
            }
        }
    }
}

impl Database for Faulty {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        self.plan.check(Call::Reader)?;
        let inner = self.inner.reader()?;
        Ok(Box::new(Handle { inner, plan: Arc::clone(&self.plan) }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        self.plan.check(Call::Writer)?;
        let inner = self.inner.writer()?;
        Ok(Box::new(Handle { inner, plan: Arc::clone(&self.plan) }))
    }

    fn last_commit(&self) -> Option<u64> {
        self.inner.last_commit()
    }

    fn settle(&self, receipt: Receipt) -> Result<()> {
        self.inner.settle(receipt)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn guarantee(&self) -> Guarantee {
        self.inner.guarantee()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        self.inner.settings()
    }

    fn counts(&self) -> Counts {
        self.inner.counts()
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.inner.disk_bytes()
    }

    fn compact(&self) -> Result<()> {
        self.inner.compact()
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }
}
