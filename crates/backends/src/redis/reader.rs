//! Reader: a snapshot of a store.

use std::ops::Bound;
use std::sync::Arc;

use terrane_kv::overlay::undo::Old;
use terrane_kv::{Cursor, Reader, Result, Table};

use super::cursor::{Above, MergedCursor, View};
use super::inner::{Inner, Page, PageRange, ReadPoint};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Snapshot {
    inner: Arc<Inner>,
    point: ReadPoint,
}

impl Snapshot {
    pub(crate) fn new(inner: Arc<Inner>) -> Result<Self> {
        let point = inner.begin_snapshot()?;
        Ok(Self { inner, point })
    }

    /// The table's number, if reading may go on.
    fn enter(&self, table: Table<'_>) -> Result<usize> {
        self.inner.is_open("read")?;
        let table = self.inner.options.table(table)?;
        if let ReadPoint::Own(_) = self.point {
            // Without the lock, another writer may have changed what this snapshot shows.
            self.inner.keep_lock()?;
        }
        Ok(table)
    }

    /// The values of the keys that later commits changed.
    fn undone(&self, table: usize, keys: &[&[u8]]) -> Vec<Option<Old>> {
        let ReadPoint::Own(version) = self.point else { return vec![None; keys.len()] };
        self.inner.with_undo(|undo| {
            if undo.is_empty(table) {
                return vec![None; keys.len()];
            }
            keys.iter().map(|key| undo.value(table, key, version).cloned()).collect()
        })
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.inner.end_snapshot(&self.point);
    }
}

impl Reader for Snapshot {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.get_many(table, &[key])?.pop().flatten())
    }

    fn get_many(&self, table: Table<'_>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let table = self.enter(table)?;
        // Old values of keys that were changed since are known without the server.
        let mut values = self.undone(table, keys);
        let missing: Vec<usize> = (0..keys.len()).filter(|&at| values[at].is_none()).collect();
        let asked: Vec<&[u8]> = missing.iter().map(|&at| keys[at]).collect();
        let found = self.inner.read(&self.point, table, &asked)?;
        // Asked after the server: a commit in between has noted the old values before it was sent.
        let undone = self.undone(table, &asked);
        for ((at, found), undone) in missing.into_iter().zip(found).zip(undone) {
            values[at] = Some(undone.unwrap_or(found));
        }
        Ok(values.into_iter().map(Option::flatten).collect())
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let table = self.enter(table)?;
        Ok(Box::new(MergedCursor::new(SnapshotTable { snapshot: self, table })))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        let table = self.enter(table)?;
        let (count, _) = self.inner.count(&self.point, table, &[])?;
        let ReadPoint::Own(version) = self.point else { return Ok(count) };
        Ok(self.inner.with_undo(|undo| undo.count(table, version)).unwrap_or(count))
    }
}

#[derive(Debug)]
struct SnapshotTable<'a> {
    snapshot: &'a Snapshot,
    table: usize,
}

impl View for SnapshotTable<'_> {
    fn page(&self, range: &PageRange) -> Result<Page> {
        let Snapshot { inner, point } = self.snapshot;
        inner.is_open("cursor")?;
        if let ReadPoint::Own(_) = point {
            inner.keep_lock()?;
        }
        inner.page(point, self.table, range)
    }

    fn above(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>), range: &PageRange) -> Above {
        let ReadPoint::Own(version) = self.snapshot.point else {
            return Above::take([].into_iter(), range);
        };
        self.snapshot
            .inner
            .with_undo(|undo| Above::take(undo.range(self.table, version, bounds), range))
    }
}
