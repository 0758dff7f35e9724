//! A commit: rows under a new number, then one conditional write of the head.
//!
//! | step | requests | after a crash |
//! |---|---|---|
//! | find out which keys had values | a probe for each that the writer has not read | nothing |
//! | journal | one for each 128 KiB of keys | the gap names the number; the collector reads the journal |
//! | rows | one for each change, each 256 KiB of long values, each new bucket; up to 256 in flight | so too |
//! | head | one lightweight transaction: the commit point ([`crate::heads`]) | committed, or not at all |
//!
//! All requests but the last are repeated as they are until enough replicas answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use terrane_kv::Result;
use terrane_kv::overlay::changes::{Changes, Known};
use tokio::sync::Semaphore;

use crate::body::{self, Change, INLINE_BYTES_MAX, PART_BYTES, Previous};
use crate::cluster::Cluster;
use crate::head::{DIVIDED, Head};
use crate::read::{IN_FLIGHT, View, bucket_of};

/// Most bytes of rows that are in flight, in KiB.
const KIB_IN_FLIGHT: usize = 8 << 10;
/// Timestamp of rows that never change.
const CONSTANT: i64 = 1;

/// Buckets of a table that are known to be listed.
#[derive(Debug, Clone)]
pub(crate) struct Listed(Vec<u64>);

impl Default for Listed {
    fn default() -> Self {
        // One bit for each bucket of two bytes.
        Self(vec![0; (1 << 16) / 64])
    }
}

impl Listed {
    pub(crate) fn has(&self, bucket: i32) -> bool {
        let bucket = bucket as usize;
        self.0[bucket / 64] >> (bucket % 64) & 1 > 0
    }

    pub(crate) fn insert(&mut self, bucket: i32) {
        let bucket = bucket as usize;
        self.0[bucket / 64] |= 1 << (bucket % 64);
    }
}

/// A row to write.
enum Row {
    Entry { table: Arc<str>, key: Vec<u8>, parts: i32, size: i32, body: Vec<u8> },
    Part { number: i32, part: i32, body: Vec<u8> },
    Bucket { table: Arc<str>, bucket: i32 },
}

/// A change of a transaction with what it replaces.
struct Planned {
    table: usize,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    previous: Option<Previous>,
}

/// Rows of a commit, ready to be written.
pub(crate) struct Plan {
    pub(crate) commit: i64,
    journal: Vec<Vec<u8>>,
    rows: Vec<Row>,
    /// Buckets that get their first rows.
    pub(crate) buckets: Vec<(usize, i32)>,
    /// Entries and bytes of the store after the commit.
    pub(crate) counts: BTreeMap<String, i64>,
    pub(crate) bytes: i64,
}

/// Plans a commit on top of a head: finds out what it replaces, and makes its rows.
///
/// `listed` tells which buckets of each table are known to have had rows.
///
/// # Errors
/// Those of the cluster. Nothing is written.
pub(crate) async fn plan(
    cluster: &Arc<Cluster>,
    head: &Arc<Head>,
    names: &[Arc<str>],
    changes: Vec<Changes>,
    known: Vec<Known>,
    listed: &[Listed],
) -> Result<Plan> {
    let commit = head.next_commit();
    let planned = with_previous(cluster, head, names, changes, known).await?;

    let mut counts = head.counts.clone();
    let mut bytes = head.bytes;
    let mut journals: Vec<Vec<Change>> = names.iter().map(|_| Vec::new()).collect();
    let mut rows = Vec::with_capacity(planned.len());
    let mut buckets: Vec<(usize, i32)> = Vec::new();
    let mut number = 0;

    for Planned { table, key, value, previous } in planned {
        let count = counts.entry(names[table].to_string()).or_default();
        *count += i64::from(value.is_some()) - i64::from(previous.is_some());
        debug_assert!(*count >= 0, "a count of a table is its entries");

        let (parts, body) = body::encode(commit, &key, value.as_deref(), number);
        let size = value.as_ref().map_or(0, Vec::len);
        let is_divided = parts > 0;
        journals[table].push(Change {
            key: key.clone(),
            is_removed: value.is_none(),
            big: is_divided.then_some((number, parts)),
            previous,
        });

        if let Some(value) = &value {
            bytes += i64::from(body::row_bytes(&key, size));
            if is_divided {
                let pieces = value.chunks(PART_BYTES).zip(0..);
                rows.extend(pieces.map(|(piece, part)| Row::Part {
                    number,
                    part,
                    body: piece.to_vec(),
                }));
                number += 1;
            }
        }

        let bucket = bucket_of(&key);
        // Changes of a table come in the order of their keys, so equal buckets follow each other.
        if buckets.last() != Some(&(table, bucket)) && !listed[table].has(bucket) {
            buckets.push((table, bucket));
        }
        rows.push(Row::Entry { table: names[table].clone(), key, parts, size: size as i32, body });
    }

    if number > 0 {
        *counts.entry(DIVIDED.to_owned()).or_default() += i64::from(number);
    }
    rows.extend(
        buckets.iter().map(|&(table, bucket)| Row::Bucket { table: names[table].clone(), bucket }),
    );
    let journal = journals
        .iter()
        .zip(names)
        .flat_map(|(changes, name)| body::encode_journal(name, changes))
        .collect();
    Ok(Plan { commit, journal, rows, buckets, counts, bytes })
}

/// The changes with what they replace, without removals of keys that are not there.
async fn with_previous(
    cluster: &Arc<Cluster>,
    head: &Arc<Head>,
    names: &[Arc<str>],
    changes: Vec<Changes>,
    mut known: Vec<Known>,
) -> Result<Vec<Planned>> {
    let views: Vec<View> = names
        .iter()
        .map(|table| View { cluster: cluster.clone(), head: head.clone(), table: table.clone() })
        .collect();

    let mut all = Vec::new();
    for (table, changes) in changes.into_iter().enumerate() {
        for (key, value) in changes {
            let known = known[table].remove(&key);
            all.push((table, key, value, known));
        }
    }

    let planned = stream::iter(all).map(|(table, key, value, known)| {
        let view = &views[table];
        async move {
            let previous = match known {
                Some(None) => None,
                // The place of a divided value has to be read.
                Some(Some(size)) if size <= INLINE_BYTES_MAX => {
                    Some(Previous { bytes: body::row_bytes(&key, size), big: None })
                }
                _ => view.previous(&key).await?,
            };
            Result::Ok(Planned { table, key, value, previous })
        }
    });
    let planned: Vec<Planned> = planned.buffered(IN_FLIGHT).try_collect().await?;
    let is_change = |planned: &Planned| planned.value.is_some() || planned.previous.is_some();
    Ok(planned.into_iter().filter(is_change).collect())
}

impl Plan {
    /// Whether writing the plan leaves rows behind.
    pub(crate) fn is_empty(&self) -> bool {
        self.journal.is_empty()
    }

    /// Writes the journal, then the rows.
    ///
    /// # Errors
    /// Those of the cluster. Some of the rows may have been written.
    pub(crate) async fn write(&mut self, cluster: &Cluster, store: i64) -> Result<()> {
        let commit = self.commit;
        let statements = &cluster.statements;
        let room = Semaphore::new(KIB_IN_FLIGHT);
        let room = &room;

        // No row is written before the journal names it: else nobody would find it after a crash.
        let journal = std::mem::take(&mut self.journal);
        stream::iter(journal.into_iter().zip(0_i32..))
            .map(|(body, part)| async move {
                let bytes = body.len();
                let _room = take_room(room, bytes).await;
                let values = (store, commit, part, body, commit);
                cluster.write("write the journal", &statements.journal_write, values, bytes).await
            })
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<()>()
            .await?;

        let rows = std::mem::take(&mut self.rows);
        stream::iter(rows)
            .map(|row| async move {
                let bytes = row.bytes();
                let _room = take_room(room, bytes).await;
                row.write(cluster, store, commit, bytes).await
            })
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<()>()
            .await
    }
}

/// Waits until a request of this size may be sent.
async fn take_room(room: &Semaphore, bytes: usize) -> Option<tokio::sync::SemaphorePermit<'_>> {
    let kib = bytes.div_ceil(1 << 10).clamp(1, KIB_IN_FLIGHT);
    // The semaphore is never closed.
    room.acquire_many(kib as u32).await.ok()
}

impl Row {
    fn bytes(&self) -> usize {
        match self {
            Self::Entry { key, body, .. } => key.len() + body.len(),
            Self::Part { body, .. } => body.len(),
            Self::Bucket { .. } => 0,
        }
    }

    async fn write(self, cluster: &Cluster, store: i64, commit: i64, bytes: usize) -> Result<()> {
        let statements = &cluster.statements;
        let call = "write a row";
        match self {
            Self::Entry { table, key, parts, size, body } => {
                let bucket = bucket_of(&key);
                let values = (store, &*table, bucket, key, commit, parts, size, body, commit);
                cluster.write(call, &statements.write, values, bytes).await
            }
            Self::Part { number, part, body } => {
                let values = (store, commit, number, part, body, commit);
                cluster.write(call, &statements.big_write, values, bytes).await
            }
            Self::Bucket { table, bucket } => {
                let values = (store, &*table, bucket, CONSTANT);
                cluster.write(call, &statements.bucket_write, values, bytes).await
            }
        }
    }
}
