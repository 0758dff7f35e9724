//! State that a database shares with its writer: options, counters, and poison.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrane_kv::overlay::names::IndexNames;
use terrane_kv::{Counts, Error, Receipt, Result};

use super::error::NAME;
use super::options::{SqliteOptions, Synchronous};

#[derive(Debug)]
pub(super) struct Inner {
    /// Options in effect.
    pub(super) options: SqliteOptions,
    pub(super) indexes: Arc<IndexNames>,
    poisoned: AtomicBool,
    /// Number of the last commit.
    commits: AtomicU64,
    syncs: AtomicU64,
}

impl Inner {
    pub(super) fn new(options: SqliteOptions, indexes: Arc<IndexNames>) -> Self {
        Self {
            options,
            indexes,
            poisoned: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        }
    }

    pub(super) fn check_poison(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(Error::Poisoned { back_end: NAME });
        }
        Ok(())
    }

    /// Poisons the database: the state of the file is unknown.
    pub(super) fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
    }

    /// Poisons the database if `result` is the error of a failed sync.
    pub(super) fn noted<T>(&self, result: Result<T>) -> Result<T> {
        if matches!(result, Err(Error::Poisoned { .. })) {
            self.poison();
        }
        result
    }

    /// Counts a commit, and its syncs if it changed anything.
    pub(super) fn committed(&self, changed: bool) -> Receipt {
        if changed {
            self.syncs.fetch_add(self.options.syncs_per_commit(), Ordering::Relaxed);
        }
        Receipt(self.commits.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Counts the syncs of a commit with every sync that SQLite has.
    pub(super) fn count_full_sync(&self) {
        let synced = SqliteOptions { synchronous: Synchronous::Extra, ..self.options.clone() };
        self.syncs.fetch_add(synced.syncs_per_commit(), Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            transactions: self.commits.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            ..Counts::default()
        }
    }
}
