//! State that a database shares with its writer: options, live snapshots, counters, and poison.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrane_kv::overlay::names::IndexNames;
use terrane_kv::{Counts, Error, Receipt, Result};
use terrane_lmdb::SyncMode;

use super::failure::NAME;
use super::options::LmdbOptions;
use super::readers::Readers;

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) options: LmdbOptions,
    pub(super) indexes: Arc<IndexNames>,
    pub(super) readers: Arc<Readers>,
    /// Whether a sync failed.
    poisoned: AtomicBool,
    transactions: AtomicU64,
    syncs: AtomicU64,
}

impl Inner {
    pub(super) fn new(options: LmdbOptions, indexes: Arc<IndexNames>) -> Self {
        Self {
            options,
            indexes,
            readers: Arc::default(),
            poisoned: AtomicBool::new(false),
            transactions: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        }
    }

    pub(super) fn check_poison(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(Error::Poisoned { back_end: NAME });
        }
        Ok(())
    }

    /// Poisons the database: after a failed sync the state of the file is unknown.
    pub(super) fn poison(&self) -> Error {
        self.poisoned.store(true, Ordering::Release);
        Error::Poisoned { back_end: NAME }
    }

    /// Counts a transaction.
    pub(super) fn count_transaction(&self) -> Receipt {
        Receipt(self.transactions.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Counts the syncs of a commit.
    pub(super) fn count_syncs(&self) {
        let syncs = match self.options.sync {
            SyncMode::Full => 2,
            SyncMode::NoMeta => 1,
            SyncMode::MapAsync | SyncMode::None => 0,
        };
        self.syncs.fetch_add(syncs, Ordering::Relaxed);
    }

    /// Counts the sync of a request for one.
    pub(super) fn count_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            transactions: self.transactions.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            ..Counts::default()
        }
    }
}
