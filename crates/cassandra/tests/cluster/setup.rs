//! The cluster of a run, and stores on it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use terrane_cassandra::{Cassandra, Options};
use terrane_kv::{Database, Reader, Table};

/// Variable with the addresses of the nodes.
const NODES: &str = "TERRANE_TEST_CQL";
/// Variable with the folder of a cluster whose nodes the tests may kill and start.
const FOLDER: &str = "TERRANE_TEST_CASSANDRA_DIR";
/// Keyspace of all tests.
pub(crate) const KEYSPACE: &str = "terrane_test";

/// A cluster that answers.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<SocketAddr>,
}

/// The cluster, or `None` with a printed reason.
pub(crate) fn cluster() -> Option<Cluster> {
    let Ok(text) = std::env::var(NODES) else {
        println!("skipped: no Cassandra; `cargo xtask cassandra` starts one and sets {NODES}");
        return None;
    };
    let nodes = text.split(',').map(|node| node.parse().expect("an address and a port"));
    Some(Cluster { nodes: nodes.collect() })
}

/// The folder of a cluster whose nodes may be killed.
pub(crate) fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// User and password of the cluster, if it asks for them.
pub(crate) fn credentials() -> Option<(String, String)> {
    let user = std::env::var("TERRANE_CASSANDRA_USER").ok()?;
    let file = std::env::var_os("TERRANE_CASSANDRA_PASSWORD_FILE")?;
    Some((user, std::fs::read_to_string(file).unwrap()))
}

/// A name that no other store of this run has.
pub(crate) fn store_name(test: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{test}-{}-{number}", std::process::id())
}

impl Cluster {
    /// Options with times that suit tests.
    pub(crate) fn options(&self, store: &str) -> Options {
        self.options_at(self.nodes.iter().map(ToString::to_string).collect(), store)
    }

    /// The same with other contact points; credentials are those of the environment.
    pub(crate) fn options_at(&self, points: Vec<String>, store: &str) -> Options {
        Options::contact_points(points)
            .keyspace(KEYSPACE)
            .replication(self.nodes.len().min(3) as u32)
            .store(store)
            .lease(Duration::from_secs(3))
            .retention(Duration::from_secs(3))
            .timeouts(Duration::from_secs(10), Duration::from_secs(60))
            .indexes(["log"])
            .environment()
            .unwrap()
    }

    /// A session of the driver itself, for looks at rows.
    pub(crate) async fn session(&self) -> Session {
        let mut builder = SessionBuilder::new().known_node_addr(self.nodes[0]);
        if let Some((user, password)) = credentials() {
            builder = builder.user(user, password);
        }
        builder.build().await.unwrap()
    }

    pub(crate) fn open(&self, store: &str) -> Arc<Cassandra> {
        Arc::new(Cassandra::open(self.options(store)).unwrap())
    }
}

/// All entries of a table, and that the count agrees with them.
pub(crate) fn entries(reader: &dyn Reader, table: Table<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut cursor = reader.cursor(table).unwrap();
    let mut entries = Vec::new();
    while let Some(entry) = cursor.next().unwrap() {
        entries.push(entry);
    }
    assert_eq!(reader.count(table).unwrap(), entries.len() as u64, "the count of {table}");
    entries
}

/// Commits changes of the main table.
pub(crate) fn commit(
    database: &dyn Database,
    changes: &[(&[u8], Option<&[u8]>)],
) -> terrane_kv::Result<u64> {
    let mut writer = database.writer()?;
    for (key, value) in changes {
        match value {
            Some(value) => writer.overwrite(Table::Main, key, value)?,
            None => writer.remove(Table::Main, key)?,
        }
    }
    Ok(writer.commit()?.0)
}
