//! Removal of a store.
//!
//! The rows go first and the head last, so a removal that was interrupted can be repeated. The
//! head's epoch was raised by the opening that removes, so no other process writes meanwhile.

use std::collections::BTreeSet;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use terrane_kv::Result;

use crate::body::{Content, decode};
use crate::cluster::{Applied, Cluster};
use crate::collect::collect;
use crate::error::error_of;
use crate::head::{DIVIDED, Head};
use crate::heads::fenced;
use crate::read::ScannedRow;

/// Deletions in flight.
const IN_FLIGHT: usize = 32;
/// Buckets that are listed at once.
const BUCKETS: i32 = 1000;
/// Rows that are read at once.
const ROWS: i32 = 64;

/// Removes all rows of a store that its head names, then the head.
///
/// # Errors
/// Those of the cluster; the removal may be repeated.
pub(crate) async fn remove(cluster: &Cluster, store: &str, head: &Head) -> Result<()> {
    let statements = &cluster.statements;
    // No commit has a greater number.
    let timestamp = head.next_commit();

    let mut tables: BTreeSet<&str> = head.counts.keys().map(String::as_str).collect();
    tables.insert("main");
    let has_divided = tables.remove(DIVIDED);
    // The journals tell of old versions and their divided values, as they tell the collector.
    let mut left = head.clone();
    while let Some(work) = left.work() {
        collect(cluster, head.id, work).await?;
        left.collect(work, 0);
    }

    for table in tables {
        let mut from = 0;
        loop {
            let values = (head.id, table, from, BUCKETS);
            let listed = cluster.rows::<(i32,)>("list buckets", &statements.buckets_from, values);
            let buckets = listed.await?;
            let Some(&(last,)) = buckets.last() else { break };
            stream::iter(buckets)
                .map(|(bucket,)| async move {
                    if has_divided {
                        remove_divided(cluster, head.id, table, bucket).await?;
                    }
                    let values = (timestamp, head.id, table, bucket);
                    cluster.write("remove a bucket", &statements.drop_bucket, values, 0).await
                })
                .buffer_unordered(IN_FLIGHT)
                .try_collect::<()>()
                .await?;
            from = last + 1;
        }
        let values = (timestamp, head.id, table);
        cluster.write("remove the list of buckets", &statements.buckets_drop, values, 0).await?;
    }

    let values = (store, head.id, head.epoch);
    match cluster.apply(&statements.head_remove, values).await? {
        Applied::Yes => Ok(()),
        Applied::No => Err(fenced(store, None)),
        Applied::Unknown(error) => Err(error_of("remove the head", *error)),
    }
}

/// Removes the divided values of a bucket.
async fn remove_divided(cluster: &Cluster, store: i64, table: &str, bucket: i32) -> Result<()> {
    let statements = &cluster.statements;
    let mut from = Vec::new();
    loop {
        let values = (store, table, bucket, from.as_slice(), ROWS);
        let rows = cluster.rows::<ScannedRow>("scan", &statements.scan_after, values).await?;
        let Some(last) = rows.last() else { return Ok(()) };
        // The journals have told of all versions but the newest of each key.
        from.clone_from(&last.0);
        for (key, commit, parts, _, body) in rows {
            if let Content::Divided(big, _) = decode(commit, &key, parts, body)? {
                let values = (commit, store, big.commit, big.number);
                let statement = &statements.big_delete;
                cluster.write("delete a divided value", statement, values, 0).await?;
            }
        }
    }
}
