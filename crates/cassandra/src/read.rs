//! Reads at a commit: single keys, many side by side, and pages of a table.
//!
//! A read takes the newest row of a key whose number is no later than the commit and in no gap.

use std::ops::Bound;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use scylla::statement::prepared::PreparedStatement;
use terrane_kv::gap::Way;
use terrane_kv::overlay::paging::PAGE_BYTES;
use terrane_kv::{Entry, KEY_BYTES_MAX, Result};

use crate::body::{self, Big, Content, Previous, REMOVED};
use crate::cluster::Cluster;
use crate::error::corrupt;
use crate::head::Head;

/// Most requests of one call that are in flight.
pub(crate) const IN_FLIGHT: usize = 256;
/// Most parts of one value that are read side by side.
const PARTS_IN_FLIGHT: usize = 16;
/// Most buckets of a page that are read side by side.
const BUCKETS_IN_FLIGHT: usize = 16;
/// Rows of a page beside those asked for: old versions of the keys.
const SPARE_ROWS: usize = 16;

/// Bucket of a key: its first two bytes.
pub(crate) fn bucket_of(key: &[u8]) -> i32 {
    let byte = |at: usize| i32::from(key.get(at).copied().unwrap_or(0));
    (byte(0) << 8) | byte(1)
}

/// A table of a store at a commit.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) cluster: Arc<Cluster>,
    /// The head whose commit is read. Later heads have at least its gaps that are not cleared.
    pub(crate) head: Arc<Head>,
    pub(crate) table: Arc<str>,
}

/// Row of an entry as a scan returns it: key, commit, kind, size, body.
pub(crate) type ScannedRow = (Vec<u8>, i64, i32, i32, Vec<u8>);

/// Newest visible row of a key: its commit, kind, size and body.
type FoundRow = (i64, i32, i32, Vec<u8>);

impl View {
    /// The value of a key.
    ///
    /// # Errors
    /// Those of the cluster, and [`Error::Corruption`](terrane_kv::Error::Corruption).
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.row(key).await? {
            Some(row) => self.value(key, row).await,
            None => Ok(None),
        }
    }

    /// The values of many keys, in their order.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub(crate) async fn get_many(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>> {
        let values = stream::iter(keys).map(|key| async move { self.get(&key).await });
        values.buffered(IN_FLIGHT).try_collect().await
    }

    /// The newest visible row of a key.
    async fn row(&self, key: &[u8]) -> Result<Option<FoundRow>> {
        let mut up_to = self.head.commit;
        loop {
            let values = (self.head.id, &*self.table, bucket_of(key), key, up_to);
            let rows = self.cluster.rows::<FoundRow>("get", &self.cluster.statements.get, values);
            let Some(row) = rows.await?.pop() else { return Ok(None) };
            match self.head.gap_of(row.0) {
                None => return Ok(Some(row)),
                // A dead writer left the row; older ones are below the gap.
                Some(gap) => up_to = gap.from - 1,
            }
        }
    }

    /// The value that a commit on top of this view replaces under a key.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub(crate) async fn previous(&self, key: &[u8]) -> Result<Option<Previous>> {
        let mut up_to = self.head.commit;
        let (commit, parts, size) = loop {
            let values = (self.head.id, &*self.table, bucket_of(key), key, up_to);
            let statement = &self.cluster.statements.probe;
            let rows = self.cluster.rows::<(i64, i32, i32)>("probe", statement, values);
            let Some(row) = rows.await?.pop() else { return Ok(None) };
            match self.head.gap_of(row.0) {
                None => break row,
                Some(gap) => up_to = gap.from - 1,
            }
        };

        if parts == REMOVED {
            return Ok(None);
        }
        let bytes = body::row_bytes(key, size_of(size)?);
        if parts == 0 {
            return Ok(Some(Previous { bytes, big: None }));
        }

        // The number of a divided value stands in the body.
        let Some(row) = self.row(key).await? else {
            return Err(corrupt(format!("the row of a divided value of commit {commit} is gone")));
        };
        match body::decode(row.0, key, row.1, row.3)? {
            Content::Divided(big, _) => Ok(Some(Previous { bytes, big: Some(big) })),
            _ => Err(corrupt(format!("a row of commit {commit} has two kinds"))),
        }
    }

    /// The value of a row.
    async fn value(&self, key: &[u8], row: FoundRow) -> Result<Option<Vec<u8>>> {
        let (commit, parts, size, bytes) = row;
        let size = size_of(size)?;
        match body::decode(commit, key, parts, bytes)? {
            Content::Removed => Ok(None),
            Content::Value(value) if value.len() == size => Ok(Some(value)),
            Content::Value(_) => Err(corrupt(format!("a row of commit {commit} has a wrong size"))),
            Content::Divided(big, checksum) => {
                let parts = stream::iter(0..big.parts).map(|part| self.part(big, part));
                let parts = parts.buffered(PARTS_IN_FLIGHT).try_collect::<Vec<_>>().await?;
                body::join(big, size, checksum, &parts).map(Some)
            }
        }
    }

    async fn part(&self, big: Big, part: i32) -> Result<Vec<u8>> {
        let values = (self.head.id, big.commit, big.number, part);
        let statement = &self.cluster.statements.big_read;
        let mut rows = self.cluster.rows::<(Vec<u8>,)>("get", statement, values).await?;
        let commit = big.commit;
        let gone = || corrupt(format!("part {part} of a divided value of commit {commit} is gone"));
        rows.pop().map(|(bytes,)| bytes).ok_or_else(gone)
    }

    /// Entries of a page from a bound on, in the direction; empty only if there are no more.
    ///
    /// Cost: a request for the list of buckets, and one or more for each bucket that the page
    /// reaches into.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub(crate) async fn page(
        &self,
        way: Way,
        from: Bound<Vec<u8>>,
        entries: usize,
    ) -> Result<Vec<Entry>> {
        let from = match (from, way) {
            (Bound::Unbounded, Way::Forward) => Bound::Included(Vec::new()),
            (Bound::Unbounded, Way::Backward) => Bound::Included(vec![u8::MAX; KEY_BYTES_MAX + 1]),
            (from, _) => from,
        };
        let (Bound::Included(key) | Bound::Excluded(key)) = &from else { return Ok(Vec::new()) };
        let mut bucket = bucket_of(key);
        let mut page = Vec::new();
        let mut page_bytes = 0;
        let mut width = 1;

        loop {
            let buckets = self.buckets(way, bucket, width).await?;
            let (Some(&last), count) = (buckets.last(), buckets.len()) else { return Ok(page) };

            // Buckets come in their order, and those behind a full page are not waited for.
            let wanted = entries - page.len();
            let found = stream::iter(buckets)
                .map(|bucket| self.bucket(way, bucket, &from, wanted))
                .buffered(BUCKETS_IN_FLIGHT);
            let mut found = std::pin::pin!(found);
            while let Some(found) = found.next().await {
                for (key, value) in found? {
                    page_bytes += key.len() + value.len();
                    page.push((key, value));
                    if page.len() == entries || page_bytes >= PAGE_BYTES {
                        return Ok(page);
                    }
                }
            }

            // Where buckets are nearly empty, more of them are asked at once.
            if count < width {
                return Ok(page);
            }
            width = (2 * width).min(BUCKETS_IN_FLIGHT);
            let next = match way {
                Way::Forward => last.checked_add(1),
                Way::Backward => last.checked_sub(1),
            };
            match next.filter(|next| *next >= 0) {
                Some(next) => bucket = next,
                None => return Ok(page),
            }
        }
    }

    /// Buckets from one on that have ever had rows.
    async fn buckets(&self, way: Way, from: i32, count: usize) -> Result<Vec<i32>> {
        let statements = &self.cluster.statements;
        let statement = match way {
            Way::Forward => &statements.buckets_from,
            Way::Backward => &statements.buckets_to,
        };
        let values = (self.head.id, &*self.table, from, count as i32);
        let rows = self.cluster.rows::<(i32,)>("list buckets", statement, values).await?;
        Ok(rows.into_iter().map(|(bucket,)| bucket).collect())
    }

    /// Up to `entries` entries of a bucket from a bound on.
    async fn bucket(
        &self,
        way: Way,
        bucket: i32,
        from: &Bound<Vec<u8>>,
        entries: usize,
    ) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        let mut found_bytes = 0;
        let mut from = from.clone();
        while found.len() < entries && found_bytes < PAGE_BYTES {
            let limit = entries - found.len() + SPARE_ROWS;
            let rows = self.scan(way, bucket, &from, limit).await?;
            let is_last = rows.len() < limit;
            let Some(last_key) = rows.last().map(|row| row.0.clone()) else { break };

            for versions in rows.chunk_by(|a, b| a.0 == b.0) {
                let key = &versions[0].0;
                let is_whole = is_last || *key != last_key;
                // Of the last key of a full answer, versions may be missing.
                let newest = if is_whole { self.newest(versions) } else { self.row(key).await? };
                let Some(newest) = newest else { continue };
                if let Some(value) = self.value(key, newest).await? {
                    found_bytes += key.len() + value.len();
                    found.push((key.clone(), value));
                    if found.len() == entries || found_bytes >= PAGE_BYTES {
                        break;
                    }
                }
            }

            if is_last {
                break;
            }
            from = Bound::Excluded(last_key);
        }
        Ok(found)
    }

    /// The newest visible one of all versions of a key.
    fn newest(&self, versions: &[ScannedRow]) -> Option<FoundRow> {
        let is_visible =
            |commit: i64| commit <= self.head.commit && self.head.gap_of(commit).is_none();
        let visible = versions.iter().filter(|row| is_visible(row.1));
        let newest = visible.max_by_key(|row| row.1)?;
        Some((newest.1, newest.2, newest.3, newest.4.clone()))
    }

    async fn scan(
        &self,
        way: Way,
        bucket: i32,
        from: &Bound<Vec<u8>>,
        limit: usize,
    ) -> Result<Vec<ScannedRow>> {
        let statements = &self.cluster.statements;
        let statement: &PreparedStatement = match (way, from) {
            (Way::Forward, Bound::Excluded(_)) => &statements.scan_after,
            (Way::Forward, _) => &statements.scan_from,
            (Way::Backward, Bound::Excluded(_)) => &statements.scan_before,
            (Way::Backward, _) => &statements.scan_to,
        };
        let (Bound::Included(key) | Bound::Excluded(key)) = from else { return Ok(Vec::new()) };
        let values = (self.head.id, &*self.table, bucket, key.as_slice(), limit as i32);
        self.cluster.rows("scan", statement, values).await
    }
}

fn size_of(size: i32) -> Result<usize> {
    usize::try_from(size).map_err(|_| corrupt("a row has a negative size"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_the_order_of_their_keys() {
        let keys: [&[u8]; 7] = [b"\0", b"\0\0", b"\0\x01", b"\x01", b"\x01\0z", b"a", b"\xff\xff"];
        assert!(keys.is_sorted());
        assert!(keys.map(bucket_of).is_sorted());
        assert_eq!(bucket_of(&[u8::MAX; KEY_BYTES_MAX + 1]), 65_535);
        assert_eq!(bucket_of(b""), 0);
    }
}
