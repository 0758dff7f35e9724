//! Changes of a table in memory, above entries that an engine has stored: for engines that have one
//! state on disk and write it at durable points only.
//!
//! Invariant: [`Changes`] hold the net change of each key since the durable point, so that a merge
//! of changes and stored entries is the table.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::IntoIter;

use crate::engines::engine::{Change, Cursor, Entry, Result};

/// Changes in memory beyond which a durable point is asked for, in bytes.
pub(super) const CHANGES_BYTES_MAX: usize = 64 << 20;

/// Approximate bytes of a change in memory, beside its key and value.
const CHANGE_OVERHEAD_BYTES: usize = 128;

/// Changes of a table since its snapshot; `None` deletes the key.
pub(super) type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Changed key with its value, or a removed key.
pub(super) type Changed = (Vec<u8>, Option<Vec<u8>>);

/// Locks what no thread leaves half changed.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the memory of some changes, in bytes.
pub(super) fn bytes_of(changes: &Changes) -> usize {
    changes.iter().map(change_bytes).sum()
}

fn change_bytes((key, value): (&Vec<u8>, &Option<Vec<u8>>)) -> usize {
    key.len() + value.as_ref().map_or(0, Vec::len) + CHANGE_OVERHEAD_BYTES
}

/// Adds a change; returns the memory added and the memory freed, in bytes.
pub(super) fn add(changes: &mut Changes, change: &Change<'_>) -> (usize, usize) {
    let key = change.key.to_vec();
    let value = change.value.map(<[u8]>::to_vec);
    // An older change of the key no longer counts.
    let old = changes.get_key_value(&key).map_or(0, change_bytes);
    let new = change_bytes((&key, &value));
    changes.insert(key, value);
    (new, old)
}

/// Stored entries of a table, in key order.
pub(super) trait Stored {
    /// Returns the next key and its value as it is stored.
    fn next(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>>;

    /// Returns the value of a key from its stored form.
    fn value(&self, key: &[u8], stored: Vec<u8>) -> Result<Vec<u8>>;
}

/// Stored entries with the changes above them.
pub(super) struct Merged<S> {
    stored: S,
    /// The next stored entry.
    next: Option<(Vec<u8>, Vec<u8>)>,
    changes: Peekable<IntoIter<Changed>>,
}

impl<S: Stored> Merged<S> {
    /// Merges the stored entries from a key on with the changes from this key on.
    pub(super) fn new(mut stored: S, changes: &Changes, from: &[u8]) -> Result<Self> {
        let range = (Bound::Included(from), Bound::Unbounded);
        let changes: Vec<Changed> = changes
            .range::<[u8], _>(range)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let next = stored.next()?;
        Ok(Self { stored, next, changes: changes.into_iter().peekable() })
    }
}

impl<S: Stored> Cursor for Merged<S> {
    fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            let changed = self.changes.peek().map(|(key, _)| key);
            let stored = self.next.as_ref().map(|(key, _)| key);
            let is_changed = changed.is_some_and(|key| stored.is_none_or(|stored| key <= stored));
            if is_changed && changed == stored {
                self.next = self.stored.next()?;
            }

            if is_changed {
                match self.changes.next() {
                    Some((key, Some(value))) => return Ok(Some(Entry { key, value })),
                    _ => continue,
                }
            }

            let Some((key, stored)) = self.next.take() else { return Ok(None) };
            self.next = self.stored.next()?;
            let value = self.stored.value(&key, stored)?;
            return Ok(Some(Entry { key, value }));
        }
    }
}
