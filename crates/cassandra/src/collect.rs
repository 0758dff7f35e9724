//! Collection: removing what commits replaced, and what dead writers left.
//!
//! The journal of a commit names its keys and says which had a value before. Only those get a
//! deletion: a range of versions inside one partition, so a store that only grows has no
//! tombstones. A deletion carries the greatest commit that it removes as its timestamp, so rows of
//! a dead writer that arrive late are removed too, for as long as the nodes keep tombstones.
//!
//! Work may be repeated: the journal goes last.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use terrane_kv::Result;

use crate::body::{Change, decode_journal};
use crate::cluster::Cluster;
use crate::head::Work;
use crate::read::bucket_of;

/// Deletions in flight.
const IN_FLIGHT: usize = 32;
/// Journal rows that are read at once.
const JOURNAL_ROWS: i32 = 8;

/// Does work of the collector; returns how many bytes the store counts less.
///
/// # Errors
/// Those of the cluster; the work may be done again.
pub(crate) async fn collect(cluster: &Cluster, store: i64, work: Work) -> Result<i64> {
    let commit = match work {
        Work::Commit(commit) => commit,
        Work::Gap(gap) if gap.is_dirty => gap.from,
        Work::Gap(_) => return Ok(0),
    };

    let mut freed = 0;
    let mut part = 0;
    let mut is_empty = true;
    loop {
        let statement = &cluster.statements.journal_read;
        let values = (store, commit, part, JOURNAL_ROWS);
        let rows = cluster.rows::<(i32, Vec<u8>)>("read the journal", statement, values).await?;
        let Some(&(last, _)) = rows.last() else { break };
        is_empty = false;
        part = last + 1;

        for (_, row) in rows {
            let (table, changes) = decode_journal(&row)?;
            let table: Arc<str> = table.into();
            if matches!(work, Work::Commit(_)) {
                let bytes = changes.iter().filter_map(|change| change.previous);
                freed += bytes.map(|previous| i64::from(previous.bytes)).sum::<i64>();
            }
            stream::iter(changes)
                .map(|change| remove(cluster, store, work, commit, table.clone(), change))
                .buffer_unordered(IN_FLIGHT)
                .try_collect::<()>()
                .await?;
        }
    }

    if !is_empty {
        let statement = &cluster.statements.journal_delete;
        cluster.write("delete the journal", statement, (commit, store, commit), 0).await?;
    }
    Ok(freed)
}

/// Removes what a change replaced, or in a gap the change itself.
async fn remove(
    cluster: &Cluster,
    store: i64,
    work: Work,
    commit: i64,
    table: Arc<str>,
    change: Change,
) -> Result<()> {
    let statements = &cluster.statements;
    let key = change.key.as_slice();
    let bucket = bucket_of(key);

    let big = match work {
        Work::Gap(_) => {
            let values = (commit, store, &*table, bucket, key, commit);
            cluster.write("delete a row", &statements.delete_one, values, key.len()).await?;
            change.big.map(|(number, _)| (commit, number))
        }
        Work::Commit(_) => {
            // A removal goes with all that it hides; a value stays.
            let up_to = if change.is_removed { commit } else { commit - 1 };
            if change.is_removed || change.previous.is_some() {
                let values = (up_to, store, &*table, bucket, key, up_to);
                cluster.write("delete rows", &statements.delete_up_to, values, key.len()).await?;
            }
            let old = change.previous.and_then(|previous| previous.big);
            old.map(|big| (big.commit, big.number))
        }
    };

    if let Some((commit, number)) = big {
        let values = (commit, store, commit, number);
        cluster.write("delete a divided value", &statements.big_delete, values, 0).await?;
    }
    Ok(())
}
