//! Live snapshots of a database, by the moment they were made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Live snapshots of a database: a counter, and the moment of each by its number.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<(u64, BTreeMap<u64, Instant>)>);

impl Readers {
    pub(super) fn enter(readers: &Arc<Self>) -> ReaderLease {
        let mut guard = lock(&readers.0);
        guard.0 += 1;
        let number = guard.0;
        guard.1.insert(number, Instant::now());
        ReaderLease { readers: Arc::clone(readers), number }
    }

    pub(super) fn oldest(&self) -> Option<Duration> {
        // Numbers ascend with time, so the first reader is the oldest.
        lock(&self.0).1.first_key_value().map(|(_, since)| since.elapsed())
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.0).1.len()
    }
}

#[derive(Debug)]
pub(super) struct ReaderLease {
    readers: Arc<Readers>,
    number: u64,
}

impl Drop for ReaderLease {
    fn drop(&mut self) {
        lock(&self.readers.0).1.remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
