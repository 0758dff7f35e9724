//! Database over a cluster: opening, readers, the writer, and the rest of the contract.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrane_kv::gap::Way;
use terrane_kv::overlay::snapshot::SnapshotReader;
use terrane_kv::overlay::transaction::Transaction;
use terrane_kv::{Counts, Database, Durability, Error, Guarantee, Reader, Receipt, Result, Writer};

use crate::error::{NAME, unsupported};
use crate::options::Options;
use crate::read::View;
use crate::remove;
use crate::snapshot::{ClusterSnapshot, Writing};
use crate::store::Inner;

/// Entries of a page of [`Database::check`].
const CHECK_ENTRIES: usize = 1000;

/// An open store in a cluster. Readers keep it open; when it and they are gone, the right to write
/// is given up.
#[derive(Debug)]
pub struct Cassandra {
    inner: Arc<Inner>,
}

impl Cassandra {
    /// Opens a store. Creates missing keyspace, tables and store, unless the options ask for
    /// reading only.
    ///
    /// Cost: a connection to each node, some 40 statements to prepare, and for writing four
    /// conditional writes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for options that cannot be honoured, also a durability that the nodes
    /// do not give; [`Error::Locked`] while another process writes the store;
    /// [`Error::Corruption`] if the rows are not those of a store; [`Error::Busy`] if too few nodes
    /// answer; [`Error::BackEnd`].
    pub fn open(options: Options) -> Result<Self> {
        Ok(Self { inner: Arc::new(Inner::open(options)?) })
    }

    /// Removes a store with all its rows. Other stores of the keyspace stay.
    ///
    /// Cost: a deletion for each bucket that has ever had rows.
    ///
    /// # Errors
    /// Those of [`open`](Self::open). If the call fails half way, the store can be opened no more,
    /// and the call may be made again with the same effect as long as the head is there.
    pub fn remove(options: Options) -> Result<()> {
        let database = Self::open(options)?;
        let inner = &database.inner;
        let _turn = inner.turn.take(NAME)?;
        let cluster = inner.cluster.clone();
        let (store, head) = inner.head_to_remove()?;
        inner.wait("remove", async move { remove::remove(&cluster, &store, &head).await })
    }
}

impl Database for Cassandra {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Cost: nothing while the lease is trusted; else, and for reading only, a read of the head.
    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        let snapshot = ClusterSnapshot::new(Arc::clone(&self.inner))?;
        Ok(Box::new(SnapshotReader::new(Arc::clone(&self.inner.indexes), snapshot)))
    }

    /// Cost: nothing, unless an earlier commit has failed or its outcome is open.
    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        self.inner.check_open("writer")?;
        if self.inner.options.read_only {
            return Err(Error::ReadOnly { back_end: NAME });
        }
        let turn = self.inner.turn.take(NAME)?;
        // Another thread may have closed the database while this call waited.
        self.inner.check_open("writer")?;
        self.inner.prepare_to_write()?;
        Ok(Box::new(Transaction::new(Writing(Arc::clone(&self.inner)), turn)))
    }

    fn last_commit(&self) -> Option<u64> {
        self.inner.last_commit()
    }

    /// Cost: nothing, since a commit is on a majority of the replicas when it returns.
    fn settle(&self, _receipt: Receipt) -> Result<()> {
        self.inner.check_open("settle")
    }

    /// Nodes sync their logs by their own settings, and no client can ask for it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless the nodes sync before they answer.
    fn sync(&self) -> Result<()> {
        self.inner.check_open("sync")?;
        if self.inner.guarantee.durability == Durability::Each {
            return Ok(());
        }
        let why = "the nodes sync their logs periodically; set commitlog_sync to batch or group";
        Err(unsupported("sync", why))
    }

    fn guarantee(&self) -> Guarantee {
        self.inner.guarantee.clone()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let options = &self.inner.options;
        let (nodes, connected) = self.inner.cluster.nodes();
        let datacenter = options.datacenter.clone();
        vec![
            ("contact_points", options.contact_points.join(",")),
            ("keyspace", options.keyspace.clone()),
            ("store", options.store.clone()),
            ("datacenter", datacenter.unwrap_or_else(|| "all".to_owned())),
            ("nodes", nodes.to_string()),
            ("nodes_connected", connected.to_string()),
            ("tls", options.tls.is_some().to_string()),
            ("lease", format!("{:?}", options.lease)),
            ("retention", format!("{:?}", self.inner.retention)),
            ("request_timeout", format!("{:?}", options.request_timeout)),
            ("patience", format!("{:?}", options.patience)),
            ("read_only", options.read_only.to_string()),
        ]
    }

    /// Bytes are those of keys, values and answers, without what the protocol adds; syncs are
    /// conditional writes that took effect, if the nodes sync before they answer.
    fn counts(&self) -> Counts {
        let cluster = &self.inner.cluster;
        let syncs = match self.inner.guarantee.durability {
            Durability::Each => cluster.conditional.load(Ordering::Relaxed),
            _ => 0,
        };
        Counts {
            transactions: self.inner.transactions.load(Ordering::Relaxed),
            syncs,
            bytes_written: cluster.bytes_written.load(Ordering::Relaxed),
            bytes_read: cluster.bytes_read.load(Ordering::Relaxed),
        }
    }

    /// Bytes of keys and values in one replica, old versions that are not collected included. The
    /// nodes compress rows, and keep deleted ones until their compaction.
    fn disk_bytes(&self) -> Result<u64> {
        self.inner.bytes()
    }

    /// Counts the entries of each table, and compares them with the counts of the head. Cost: reads
    /// everything.
    fn check(&self) -> Result<Vec<String>> {
        let snapshot = ClusterSnapshot::new(Arc::clone(&self.inner))?;
        let mut problems = Vec::new();
        for (number, table) in self.inner.tables.iter().enumerate() {
            let view = snapshot.view(number);
            let found = snapshot.read("check", async move { count(&view).await })?;
            let expected = snapshot.expected_count(number);
            if found != expected {
                problems.push(format!("{table} has {found} entries, its count is {expected}"));
            }
        }
        Ok(problems)
    }

    /// Removes what no snapshot needs and the retention has passed. The nodes give the space back
    /// by their compaction.
    fn compact(&self) -> Result<()> {
        self.inner.check_open("compact")?;
        if self.inner.options.read_only {
            return Err(Error::ReadOnly { back_end: NAME });
        }
        let _turn = self.inner.turn.take(NAME)?;
        self.inner.collect_all()
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }
}

/// Entries of a table, counted one by one.
async fn count(view: &View) -> Result<u64> {
    let mut count = 0;
    let mut from = Bound::Unbounded;
    loop {
        let page = view.page(Way::Forward, from, CHECK_ENTRIES).await?;
        let Some((last, _)) = page.last() else { return Ok(count) };
        count += page.len() as u64;
        from = Bound::Excluded(last.clone());
    }
}
