//! Snapshot of a store, and the base of its transactions.

use std::ops::Bound;
use std::sync::Arc;

use terrane_kv::gap::Way;
use terrane_kv::overlay::changes::{Changes, Known};
use terrane_kv::overlay::names::IndexNames;
use terrane_kv::overlay::paging::{PagedCursor, Pages};
use terrane_kv::overlay::snapshot::Snapshot;
use terrane_kv::overlay::transaction::Base;
use terrane_kv::{Cursor, Entry, KEY_BYTES_MAX, Receipt, Result};

use crate::read::View;
use crate::store::{Inner, ReadPoint};

/// All tables at one commit.
pub(crate) struct ClusterSnapshot {
    inner: Arc<Inner>,
    point: ReadPoint,
}

impl ClusterSnapshot {
    /// A snapshot of the last commit.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn new(inner: Arc<Inner>) -> Result<Self> {
        let point = inner.begin_snapshot()?;
        Ok(Self { inner, point })
    }

    /// A table at the commit.
    pub(crate) fn view(&self, table: usize) -> View {
        View {
            cluster: self.inner.cluster.clone(),
            head: self.point.head.clone(),
            table: self.inner.tables[table].clone(),
        }
    }

    /// Entries of a table by the counts of the head.
    pub(crate) fn expected_count(&self, table: usize) -> u64 {
        let count = self.point.head.counts.get(&*self.inner.tables[table]);
        count.map_or(0, |count| (*count).max(0) as u64)
    }

    /// Reads on the thread of requests, and makes sure that the versions were still there.
    ///
    /// # Errors
    /// Those of the future; [`Error::Busy`](terrane_kv::Error::Busy) if versions have been removed.
    pub(crate) fn read<T: Send + 'static>(
        &self,
        call: &'static str,
        reading: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.inner.check_open(call)?;
        let found = self.inner.wait(call, reading);
        // Of a snapshot that is no longer whole, even an error says nothing.
        self.inner.check_whole(&self.point)?;
        found
    }
}

impl Drop for ClusterSnapshot {
    fn drop(&mut self) {
        self.inner.end_snapshot(&self.point);
    }
}

impl Snapshot for ClusterSnapshot {
    fn get(&self, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.get_many(table, &[key])?.pop().flatten())
    }

    fn get_many(&self, table: usize, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        // A key that cannot be is nowhere, and the servers refuse those that are too long.
        let can_be = |key: &&[u8]| (1..=KEY_BYTES_MAX).contains(&key.len());
        let asked: Vec<Vec<u8>> = keys.iter().copied().filter(can_be).map(<[u8]>::to_vec).collect();
        let mut found = Vec::new().into_iter();
        if asked.is_empty() {
            self.inner.check_open("get")?;
        } else {
            let view = self.view(table);
            found = self.read("get", async move { view.get_many(asked).await })?.into_iter();
        }
        let value = |key: &&[u8]| if can_be(key) { found.next().flatten() } else { None };
        Ok(keys.iter().map(value).collect())
    }

    fn cursor(&self, table: usize) -> Result<Box<dyn Cursor + '_>> {
        self.inner.check_open("cursor")?;
        Ok(Box::new(PagedCursor::new(TablePages { snapshot: self, table })))
    }

    fn count(&self, table: usize) -> Result<u64> {
        self.inner.check_open("count")?;
        Ok(self.expected_count(table))
    }
}

struct TablePages<'a> {
    snapshot: &'a ClusterSnapshot,
    table: usize,
}

impl TablePages<'_> {
    fn page(&self, way: Way, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        let view = self.snapshot.view(self.table);
        let from = from.map(<[u8]>::to_vec);
        self.snapshot.read("cursor", async move { view.page(way, from, entries).await })
    }
}

impl Pages for TablePages<'_> {
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        self.page(Way::Forward, from, entries)
    }

    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        self.page(Way::Backward, to, entries)
    }
}

/// An open store below a transaction.
pub(crate) struct Writing(pub(crate) Arc<Inner>);

impl Base for Writing {
    type Snapshot = ClusterSnapshot;

    /// Keys that are known to be new need no probe in the commit.
    const WANTS_KNOWN: bool = true;

    fn indexes(&self) -> &IndexNames {
        &self.0.indexes
    }

    fn snapshot(&self) -> Result<ClusterSnapshot> {
        ClusterSnapshot::new(self.0.clone())
    }

    fn commit(&self, changes: &[Changes], known: &[Known]) -> Result<Receipt> {
        self.0.commit(changes, known)
    }
}
