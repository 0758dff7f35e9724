//! Tables of a keyspace, and all statements on them.
//!
//! | table | partition key | clustering key | columns |
//! |---|---|---|---|
//! | `head` | name of the store | | see [`crate::head`]; changed by conditional writes only |
//! | `lease` | name of the store | | the process that may write; a lease by time to live |
//! | `kv` | store, table, bucket | key, commit descending | kind (`parts`), size, body |
//! | `big` | store, commit, number | part | bytes of a divided value |
//! | `journal` | store, commit | part | keys that the commit changed, until it is collected |
//! | `buckets` | store, table | bucket | nothing: which buckets have ever had rows |
//!
//! The store of the last four is the number that its head has, so a store that is removed and made
//! again meets none of its old rows. A bucket is the first two bytes of the keys: buckets in their
//! order are the table in its order.
//!
//! Invariant: every plain write carries the commit number as its timestamp, and deletions the
//! greatest number they remove. Clocks of clients play no part, and a request may be repeated.

use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};
use terrane_kv::Result;

use crate::error::{error_of, error_of_prepare, unsupported};
use crate::options::Options;

/// Tables with their columns.
const TABLES: [(&str, &str); 6] = [
    (
        "head",
        "store text PRIMARY KEY, id bigint, format int, commit bigint, epoch bigint, \
         gaps frozen<list<bigint>>, counts frozen<map<text, bigint>>, bytes bigint, pruned bigint, \
         collected bigint, closed boolean, writer text, datacenter text, retention bigint",
    ),
    ("lease", "store text PRIMARY KEY, writer text"),
    (
        "kv",
        "store bigint, tab text, bucket int, key blob, commit bigint, parts int, size int, body blob, \
         PRIMARY KEY ((store, tab, bucket), key, commit)) WITH CLUSTERING ORDER BY (key ASC, commit DESC",
    ),
    (
        "big",
        "store bigint, commit bigint, number int, part int, body blob, \
         PRIMARY KEY ((store, commit, number), part)",
    ),
    (
        "journal",
        "store bigint, commit bigint, part int, body blob, PRIMARY KEY ((store, commit), part)",
    ),
    ("buckets", "store bigint, tab text, bucket int, PRIMARY KEY ((store, tab), bucket)"),
];

/// Consistency of reads and writes, and of conditional writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Levels {
    pub(crate) plain: Consistency,
    pub(crate) serial: SerialConsistency,
    pub(crate) serial_read: Consistency,
}

impl Levels {
    pub(crate) fn of(options: &Options) -> Self {
        if options.datacenter.is_some() {
            return Self {
                plain: Consistency::LocalQuorum,
                serial: SerialConsistency::LocalSerial,
                serial_read: Consistency::LocalSerial,
            };
        }
        Self {
            plain: Consistency::Quorum,
            serial: SerialConsistency::Serial,
            serial_read: Consistency::Serial,
        }
    }
}

/// Creates what the keyspace lacks, the keyspace itself included.
///
/// # Errors
/// Those of the cluster.
pub(crate) async fn create(session: &Session, options: &Options) -> Result<()> {
    let keyspace = &options.keyspace;
    let replication = options.replication;
    // Two processes that create the same table at once can leave a cluster in disagreement, so only
    // what is missing is created.
    let found = table_names(session, keyspace).await?;
    if TABLES.iter().all(|(name, _)| found.iter().any(|found| found == name)) {
        return Ok(());
    }

    let run = async |statement: String| {
        let done = session.query_unpaged(statement, ()).await;
        done.map(drop).map_err(|error| error_of("create tables", error))
    };
    let class = "'class': 'NetworkTopologyStrategy'";
    let statement = format!(
        "CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {{{class}, 'replication_factor': {replication}}}"
    );
    run(statement).await?;
    for (name, columns) in TABLES {
        run(format!("CREATE TABLE IF NOT EXISTS {keyspace}.{name} ({columns})")).await?;
    }
    Ok(())
}

/// Refuses a keyspace without the tables.
///
/// # Errors
/// [`Error::Unsupported`](terrane_kv::Error::Unsupported) if there is no store; those of the
/// cluster.
pub(crate) async fn check(session: &Session, options: &Options) -> Result<()> {
    let keyspace = &options.keyspace;
    let found = table_names(session, keyspace).await?;
    if TABLES.iter().all(|(name, _)| found.iter().any(|found| found == name)) {
        return Ok(());
    }
    let why = "has no store; open one for writing once to make it";
    Err(unsupported(format!("keyspace {keyspace:?}"), why))
}

async fn table_names(session: &Session, keyspace: &str) -> Result<Vec<String>> {
    let text = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
    let found = session.query_unpaged(text, (keyspace,)).await;
    let found = found.map_err(|error| error_of("list tables", error))?;
    let rows = found.into_rows_result().map_err(|error| error_of_rows("list tables", error))?;
    let rows = rows.rows::<(String,)>().map_err(|error| error_of_rows("list tables", error))?;
    let names = rows.map(|row| row.map(|(name,)| name));
    names
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| error_of_rows("list tables", error))
}

/// An answer of another form than the statement gives.
pub(crate) fn error_of_rows(
    call: &'static str,
    error: impl std::error::Error + Send + Sync + 'static,
) -> terrane_kv::Error {
    crate::error::failed(call, error)
}

/// Statements on one keyspace.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) head_read: PreparedStatement,
    pub(crate) head_read_serial: PreparedStatement,
    pub(crate) head_create: PreparedStatement,
    pub(crate) head_raise: PreparedStatement,
    pub(crate) head_commit: PreparedStatement,
    pub(crate) head_tidy: PreparedStatement,
    pub(crate) head_remove: PreparedStatement,
    pub(crate) lease_read: PreparedStatement,
    pub(crate) lease_take: PreparedStatement,
    pub(crate) lease_seize: PreparedStatement,
    pub(crate) lease_renew: PreparedStatement,
    pub(crate) lease_release: PreparedStatement,
    pub(crate) get: PreparedStatement,
    pub(crate) probe: PreparedStatement,
    pub(crate) write: PreparedStatement,
    pub(crate) delete_up_to: PreparedStatement,
    pub(crate) delete_one: PreparedStatement,
    pub(crate) drop_bucket: PreparedStatement,
    pub(crate) scan_from: PreparedStatement,
    pub(crate) scan_after: PreparedStatement,
    pub(crate) scan_to: PreparedStatement,
    pub(crate) scan_before: PreparedStatement,
    pub(crate) big_read: PreparedStatement,
    pub(crate) big_write: PreparedStatement,
    pub(crate) big_delete: PreparedStatement,
    pub(crate) journal_read: PreparedStatement,
    pub(crate) journal_write: PreparedStatement,
    pub(crate) journal_delete: PreparedStatement,
    pub(crate) buckets_from: PreparedStatement,
    pub(crate) buckets_to: PreparedStatement,
    pub(crate) bucket_write: PreparedStatement,
    pub(crate) buckets_drop: PreparedStatement,
}

impl Statements {
    /// Prepares all statements.
    ///
    /// # Errors
    /// Those of the cluster.
    #[expect(clippy::too_many_lines, reason = "a list of statements")]
    pub(crate) async fn prepare(session: &Session, keyspace: &str, levels: Levels) -> Result<Self> {
        let one = async |text: &str| {
            let text = text.replace('$', &format!("{keyspace}."));
            let prepared = session.prepare(text).await;
            let mut prepared = prepared.map_err(error_of_prepare)?;
            prepared.set_consistency(levels.plain);
            prepared.set_serial_consistency(Some(levels.serial));
            prepared.set_is_idempotent(true);
            prepared.set_use_cached_result_metadata(true);
            Result::Ok(prepared)
        };
        // A conditional write that is repeated may answer for its first attempt.
        let conditional = async |text: &str| {
            let mut prepared = one(text).await?;
            prepared.set_is_idempotent(false);
            prepared.set_use_cached_result_metadata(false);
            Result::Ok(prepared)
        };
        let serial = async |text: &str| {
            let mut prepared = one(text).await?;
            prepared.set_consistency(levels.serial_read);
            Result::Ok(prepared)
        };

        let head = "SELECT id, format, commit, epoch, gaps, counts, bytes, pruned, collected, closed, writer, \
                    datacenter, retention, WRITETIME(commit) AS written_us, toUnixTimestamp(now()) AS now_ms FROM $head WHERE store = ?";
        let scan = |range: &str| {
            format!(
                "SELECT key, commit, parts, size, body FROM $kv \
                 WHERE store = ? AND tab = ? AND bucket = ? AND key {range} LIMIT ?"
            )
        };

        Ok(Self {
            head_read: one(head).await?,
            head_read_serial: serial(head).await?,
            head_create: conditional(
                "INSERT INTO $head (store, id, format, commit, epoch, gaps, counts, bytes, pruned, collected, \
                 closed, datacenter, retention) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS",
            )
            .await?,
            head_raise: conditional(
                "UPDATE $head SET epoch = ?, writer = ?, closed = false, bytes = ?, gaps = ?, pruned = ?, collected = ? \
                 WHERE store = ? IF epoch = ? AND commit = ? AND id = ?",
            )
            .await?,
            head_commit: conditional(
                "UPDATE $head SET commit = ?, counts = ?, bytes = ?, gaps = ?, pruned = ?, collected = ? \
                 WHERE store = ? IF epoch = ? AND commit = ? AND id = ?",
            )
            .await?,
            head_tidy: conditional(
                "UPDATE $head SET bytes = ?, gaps = ?, pruned = ?, collected = ?, closed = ? \
                 WHERE store = ? IF epoch = ? AND commit = ? AND id = ? AND pruned = ? AND collected = ?",
            )
            .await?,
            head_remove: conditional("DELETE FROM $head WHERE store = ? IF id = ? AND epoch = ?")
                .await?,
            lease_read: serial("SELECT writer FROM $lease WHERE store = ?").await?,
            lease_take: conditional(
                "UPDATE $lease USING TTL ? SET writer = ? WHERE store = ? IF writer = null",
            )
            .await?,
            lease_seize: conditional(
                "UPDATE $lease USING TTL ? SET writer = ? WHERE store = ? IF writer != ?",
            )
            .await?,
            lease_renew: conditional(
                "UPDATE $lease USING TTL ? SET writer = ? WHERE store = ? IF writer = ?",
            )
            .await?,
            lease_release: conditional("DELETE writer FROM $lease WHERE store = ? IF writer = ?")
                .await?,
            get: one(
                "SELECT commit, parts, size, body FROM $kv \
                 WHERE store = ? AND tab = ? AND bucket = ? AND key = ? AND commit <= ? LIMIT 1",
            )
            .await?,
            probe: one(
                "SELECT commit, parts, size FROM $kv \
                 WHERE store = ? AND tab = ? AND bucket = ? AND key = ? AND commit <= ? LIMIT 1",
            )
            .await?,
            write: one(
                "INSERT INTO $kv (store, tab, bucket, key, commit, parts, size, body) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
            )
            .await?,
            delete_up_to: one(
                "DELETE FROM $kv USING TIMESTAMP ? \
                 WHERE store = ? AND tab = ? AND bucket = ? AND key = ? AND commit <= ?",
            )
            .await?,
            delete_one: one(
                "DELETE FROM $kv USING TIMESTAMP ? \
                 WHERE store = ? AND tab = ? AND bucket = ? AND key = ? AND commit = ?",
            )
            .await?,
            drop_bucket: one(
                "DELETE FROM $kv USING TIMESTAMP ? WHERE store = ? AND tab = ? AND bucket = ?",
            )
            .await?,
            scan_from: one(&scan(">= ?")).await?,
            scan_after: one(&scan("> ?")).await?,
            scan_to: one(&scan("<= ? ORDER BY key DESC, commit ASC")).await?,
            scan_before: one(&scan("< ? ORDER BY key DESC, commit ASC")).await?,
            big_read: one(
                "SELECT body FROM $big WHERE store = ? AND commit = ? AND number = ? AND part = ?",
            )
            .await?,
            big_write: one(
                "INSERT INTO $big (store, commit, number, part, body) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
            )
            .await?,
            big_delete: one(
                "DELETE FROM $big USING TIMESTAMP ? WHERE store = ? AND commit = ? AND number = ?",
            )
            .await?,
            journal_read: one(
                "SELECT part, body FROM $journal WHERE store = ? AND commit = ? AND part >= ? LIMIT ?",
            )
            .await?,
            journal_write: one(
                "INSERT INTO $journal (store, commit, part, body) VALUES (?, ?, ?, ?) USING TIMESTAMP ?",
            )
            .await?,
            journal_delete: one(
                "DELETE FROM $journal USING TIMESTAMP ? WHERE store = ? AND commit = ?",
            )
            .await?,
            buckets_from: one(
                "SELECT bucket FROM $buckets WHERE store = ? AND tab = ? AND bucket >= ? LIMIT ?",
            )
            .await?,
            buckets_to: one(
                "SELECT bucket FROM $buckets WHERE store = ? AND tab = ? AND bucket <= ? \
                 ORDER BY bucket DESC LIMIT ?",
            )
            .await?,
            bucket_write: one(
                "INSERT INTO $buckets (store, tab, bucket) VALUES (?, ?, ?) USING TIMESTAMP ?",
            )
            .await?,
            buckets_drop: one("DELETE FROM $buckets USING TIMESTAMP ? WHERE store = ? AND tab = ?")
                .await?,
        })
    }
}
