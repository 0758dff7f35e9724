//! Read-only database of a process that does not own the files.
//!
//! Another process may write the store meanwhile, or none. The engines have readers of their own,
//! whose leases keep the writer from freeing what a reader needs. Each [`Database::reader`] sees
//! the commits that the log had when the reader was made.
//!
//! Lock order: the reader's mutex is a leaf; no call holds it while it waits for another lock of
//! this crate.

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::database::{Counts, Database, Error, Guarantee, Reader, Receipt, Result, Writer};
use crate::overlay::engine::Common;
use crate::overlay::failure::closed;
use crate::overlay::snapshot::Snapshot;

/// Reader of an engine that can catch up with commits of another process.
pub trait Follow: Debug + Send + 'static {
    /// Name of the back-end.
    const NAME: &'static str;

    /// Snapshot of all tables.
    type Snapshot: Snapshot + 'static;

    /// Catches up, and returns a snapshot of what there is then.
    ///
    /// # Errors
    /// Those of the engine.
    fn snapshot(&mut self) -> Result<Self::Snapshot>;
}

/// See the [module](self).
#[derive(Debug)]
pub struct ReadOnly<F> {
    common: Common,
    /// `None` once closed. Snapshots that live keep the files and leases they need.
    follower: Mutex<Option<F>>,
}

impl<F: Follow> ReadOnly<F> {
    /// A database of what `follower` sees.
    pub fn new(common: Common, follower: F) -> Self {
        Self { common, follower: Mutex::new(Some(follower)) }
    }

    fn follower(&self) -> MutexGuard<'_, Option<F>> {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused<T>() -> Result<T> {
        Err(Error::ReadOnly { back_end: F::NAME })
    }
}

impl<F: Follow> Database for ReadOnly<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        self.common.check_open("reader")?;
        // Each snapshot may move the follower, so one call at a time has it.
        let mut follower = self.follower();
        let follower = follower.as_mut().ok_or_else(|| closed(F::NAME, "reader"))?;
        Ok(Box::new(self.common.reader_of(follower.snapshot()?)))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        Self::refused()
    }

    fn settle(&self, _: Receipt) -> Result<()> {
        self.common.check_open("settle")
    }

    fn sync(&self) -> Result<()> {
        Self::refused()
    }

    fn guarantee(&self) -> Guarantee {
        self.common.guarantee()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("path", self.common.dir().display().to_string()), ("access", "read-only".to_owned())]
    }

    fn counts(&self) -> Counts {
        self.common.counts()
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.common.disk_bytes()
    }

    fn compact(&self) -> Result<()> {
        Self::refused()
    }

    fn close(&self) -> Result<()> {
        if self.common.close() {
            // The follower lets go of its files.
            self.follower().take();
        }
        Ok(())
    }
}
