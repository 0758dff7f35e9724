//! Conditional writes of a head, and finding out what became of them.
//!
//! If the answer of a commit is missing, a read at serial consistency tells what the head is. A
//! head without the commit proves nothing yet, since the request may still be under way. So the
//! writer raises its own epoch: from then on the request cannot apply, and the commit has not taken
//! place.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use scylla::DeserializeRow;
use terrane_kv::Result;

use crate::cluster::{Applied, Cluster};
use crate::error::{corrupt, error_of, locked, unsupported};
use crate::head::{FORMAT, Head};

/// Pause between two questions about an outcome.
const PAUSE: Duration = Duration::from_millis(100);

/// A head as it was read, with what is fixed when a store is created and what the nodes say of
/// time.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) head: Head,
    /// Name of the opening that has the epoch.
    pub(crate) writer: Option<String>,
    pub(crate) datacenter: Option<String>,
    pub(crate) retention: Duration,
    /// How long ago the last commit was made, by the clocks of the nodes.
    pub(crate) age: Duration,
}

/// Columns of a head; all that a store needs stand there from its creation.
#[derive(Debug, DeserializeRow)]
struct HeadRow {
    id: i64,
    format: i32,
    commit: i64,
    epoch: i64,
    gaps: Option<Vec<i64>>,
    counts: Option<BTreeMap<String, i64>>,
    bytes: i64,
    pruned: i64,
    collected: i64,
    closed: bool,
    writer: Option<String>,
    datacenter: Option<String>,
    retention: i64,
    written_us: i64,
    now_ms: i64,
}

/// Reads the head of a store. `is_serial` also sees what a conditional write has left half done.
///
/// # Errors
/// Those of the cluster; [`Error::Corruption`](terrane_kv::Error::Corruption);
/// [`Error::Unsupported`](terrane_kv::Error::Unsupported) for another format.
pub(crate) async fn read(cluster: &Cluster, store: &str, is_serial: bool) -> Result<Option<Found>> {
    let statements = &cluster.statements;
    let statement = if is_serial { &statements.head_read_serial } else { &statements.head_read };
    let mut rows = cluster.rows::<HeadRow>("read the head", statement, (store,)).await?;
    let Some(row) = rows.pop() else { return Ok(None) };

    if row.format != FORMAT {
        let why = format!("has format {}; this program reads {FORMAT}", row.format);
        return Err(unsupported(format!("store {store}"), why));
    }
    let head = Head {
        id: row.id,
        commit: row.commit,
        epoch: row.epoch,
        gaps: Head::gaps_of(&row.gaps.unwrap_or_default())?,
        counts: row.counts.unwrap_or_default(),
        bytes: row.bytes,
        pruned: row.pruned,
        collected: row.collected,
        is_closed: row.closed,
    };
    if head.commit < 0 || head.epoch < 0 || head.pruned > head.commit {
        return Err(corrupt(format!("the head of store {store} breaks its rules")));
    }

    let age_us = (row.now_ms.saturating_mul(1000)).saturating_sub(row.written_us);
    Ok(Some(Found {
        head,
        writer: row.writer,
        datacenter: row.datacenter,
        retention: Duration::from_millis(row.retention.max(0) as u64),
        age: Duration::from_micros(age_us.max(0) as u64),
    }))
}

/// Reads the head of a store that exists.
///
/// # Errors
/// Those of [`read`]; [`Error::Corruption`](terrane_kv::Error::Corruption) if the store is gone.
pub(crate) async fn read_existing(
    cluster: &Cluster,
    store: &str,
    is_serial: bool,
) -> Result<Found> {
    let found = read(cluster, store, is_serial).await?;
    found.ok_or_else(|| corrupt(format!("store {store} is gone: it was removed")))
}

/// Reads the head of a store, or creates the store.
///
/// # Errors
/// Those of the cluster.
pub(crate) async fn read_or_create(
    cluster: &Cluster,
    store: &str,
    id: i64,
    datacenter: Option<&str>,
    retention: Duration,
) -> Result<Found> {
    loop {
        if let Some(found) = read(cluster, store, true).await? {
            return Ok(found);
        }

        let head = Head::new(id);
        let values = (
            store,
            head.id,
            FORMAT,
            head.commit,
            head.epoch,
            head.gap_numbers(),
            &head.counts,
            head.bytes,
            head.pruned,
            head.collected,
            head.is_closed,
            datacenter,
            retention.as_millis() as i64,
        );
        // Whoever comes first has created it; a missing answer is found out by the next read.
        match cluster.apply(&cluster.statements.head_create, values).await? {
            Applied::Yes | Applied::No => {}
            Applied::Unknown(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Raises the epoch of a store, which fences all earlier writers, for the opening `token`. Returns
/// the new head.
///
/// # Errors
/// [`Error::Locked`](terrane_kv::Error::Locked) if another opening does so meanwhile;
/// [`Error::Busy`](terrane_kv::Error::Busy) if the cluster does not tell the outcome.
pub(crate) async fn raise(
    cluster: &Cluster,
    store: &str,
    token: &str,
    from: &Head,
    is_clean: bool,
    patience: Duration,
) -> Result<Head> {
    let raised = from.raised(is_clean)?;
    let start = Instant::now();
    loop {
        match send_raise(cluster, store, token, from, &raised).await? {
            Applied::Yes => return Ok(raised),
            // Either another process was first, or an attempt without an answer of this one.
            Applied::No => {
                let found = read_existing(cluster, store, true).await?;
                let is_own = found.writer.as_deref() == Some(token);
                if is_own && found.head.epoch == raised.epoch {
                    return Ok(found.head);
                }
                return Err(fenced(store, found.writer.as_deref()));
            }
            Applied::Unknown(error) if start.elapsed() >= patience => {
                return Err(error_of("raise the epoch", *error));
            }
            Applied::Unknown(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn send_raise(
    cluster: &Cluster,
    store: &str,
    token: &str,
    from: &Head,
    raised: &Head,
) -> Result<Applied> {
    let values = (
        raised.epoch,
        token,
        raised.bytes,
        raised.gap_numbers(),
        raised.pruned,
        raised.collected,
        store,
        from.epoch,
        from.commit,
        from.id,
    );
    cluster.apply(&cluster.statements.head_raise, values).await
}

/// The error of a writer that another one has replaced.
pub(crate) fn fenced(store: &str, writer: Option<&str>) -> terrane_kv::Error {
    let writer = writer.unwrap_or("another process");
    locked(format!("store {store} was taken over by {writer}; open it anew"))
}

/// Outcome of a commit.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    /// It has not taken place and never will; the head goes on from here.
    NotDone(Head),
    /// It took place, and another opening writes now.
    DoneAndFenced,
    /// It has not taken place, and another opening writes now.
    Fenced(Option<String>),
}

/// The conditional write of a commit.
#[derive(Debug, Clone)]
pub(crate) struct Publication {
    pub(crate) before: Head,
    pub(crate) after: Head,
}

impl Publication {
    /// Sends the conditional write, and finds out what became of it.
    ///
    /// # Errors
    /// [`Error::Unknown`](terrane_kv::Error::Unknown) if the cluster does not tell: ask
    /// [`outcome`](Self::outcome) later.
    pub(crate) async fn send(
        &self,
        cluster: &Cluster,
        store: &str,
        token: &str,
        patience: Duration,
    ) -> Result<Outcome> {
        let Self { before, after } = self;
        let values = (
            after.commit,
            &after.counts,
            after.bytes,
            after.gap_numbers(),
            after.pruned,
            after.collected,
            store,
            before.epoch,
            before.commit,
            before.id,
        );
        match cluster.apply(&cluster.statements.head_commit, values).await? {
            Applied::Yes => Ok(Outcome::Done),
            Applied::No | Applied::Unknown(_) => {
                self.outcome(cluster, store, token, patience).await
            }
        }
    }

    /// Finds out what became of the conditional write, and rules out that it applies later.
    ///
    /// # Errors
    /// [`Error::Unknown`](terrane_kv::Error::Unknown) if the cluster does not tell.
    pub(crate) async fn outcome(
        &self,
        cluster: &Cluster,
        store: &str,
        token: &str,
        patience: Duration,
    ) -> Result<Outcome> {
        let start = Instant::now();
        loop {
            match self.ask(cluster, store, token).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) | Err(terrane_kv::Error::Busy { .. }) if start.elapsed() < patience => {}
                Ok(None) => {
                    let source = Some("the cluster gives no answer".into());
                    return Err(terrane_kv::Error::Unknown {
                        back_end: crate::error::NAME,
                        source,
                    });
                }
                Err(terrane_kv::Error::Busy { source, .. }) => {
                    return Err(terrane_kv::Error::Unknown {
                        back_end: crate::error::NAME,
                        source,
                    });
                }
                Err(error) => return Err(error),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One question; `None` if the answer was that somebody changed the head just now.
    async fn ask(&self, cluster: &Cluster, store: &str, token: &str) -> Result<Option<Outcome>> {
        let Self { before, after } = self;
        let found = read_existing(cluster, store, true).await?;
        let head = found.head;
        let is_own = found.writer.as_deref() == Some(token);

        if head.epoch == before.epoch {
            if head.commit == after.commit {
                return Ok(Some(Outcome::Done));
            }
            debug_assert_eq!(head.commit, before.commit, "an epoch has one writer");
            // The request may still be under way: the next epoch shuts it out.
            let raised = before.raised(false)?;
            return match send_raise(cluster, store, token, before, &raised).await? {
                Applied::Yes => Ok(Some(Outcome::NotDone(raised))),
                Applied::No | Applied::Unknown(_) => Ok(None),
            };
        }

        // The epoch is closed, so the list of gaps says which numbers are commits.
        let is_done = head.gap_of(after.commit).is_none();
        if is_done && after.commit <= head.collected {
            // Cleared gaps leave the list, and then nothing tells.
            return Ok(None);
        }
        Ok(Some(match (is_done, is_own) {
            (true, _) => Outcome::DoneAndFenced,
            // An attempt to raise the epoch has applied though its answer was lost.
            (false, true) => Outcome::NotDone(head),
            (false, false) => Outcome::Fenced(found.writer),
        }))
    }
}

/// Progress of the collector as a head has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) pruned: i64,
    pub(crate) collected: i64,
}

impl Published {
    pub(crate) fn of(head: &Head) -> Self {
        Self { pruned: head.pruned, collected: head.collected }
    }
}

/// Publishes progress of the collector, and whether the store is closed.
///
/// # Errors
/// [`Error::Locked`](terrane_kv::Error::Locked) if another process writes the store;
/// [`Error::Busy`](terrane_kv::Error::Busy) if there is no answer: the progress may be published
/// again.
pub(crate) async fn tidy(
    cluster: &Cluster,
    store: &str,
    head: &Head,
    mut published: Published,
    is_closed: bool,
) -> Result<()> {
    loop {
        let values = (
            head.bytes,
            head.gap_numbers(),
            head.pruned,
            head.collected,
            is_closed,
            store,
            head.epoch,
            head.commit,
            head.id,
            published.pruned,
            published.collected,
        );
        match cluster.apply(&cluster.statements.head_tidy, values).await? {
            Applied::Yes => return Ok(()),
            Applied::Unknown(error) => return Err(error_of("publish the collection", *error)),
            Applied::No => {
                // An attempt without an answer may have applied after all.
                let found = read_existing(cluster, store, true).await?;
                let now = Published::of(&found.head);
                let is_own = (found.head.epoch, found.head.commit) == (head.epoch, head.commit);
                if !is_own || now == published {
                    return Err(fenced(store, found.writer.as_deref()));
                }
                published = now;
            }
        }
    }
}
