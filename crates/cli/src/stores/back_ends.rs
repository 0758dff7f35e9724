//! Arguments of commands on radix stores: back-end, durability, and addresses of servers.

use std::path::PathBuf;

use clap::Args;
use terrane::kv::Durability;
use terrane::state_dir::{BackEnd, OpenOptions, Password};

use crate::ui::args;

args::choices! {
    /// Name of a back-end.
    pub(crate) enum BackEndArg => BackEnd {
        /// Sorted map in memory; keeps nothing
        Memory => BackEnd::Memory,
        /// Terrane's table engine
        Lsm => BackEnd::Lsm,
        /// Terrane's B+tree
        Btree => BackEnd::Btree,
        /// LMDB
        Lmdb => BackEnd::Lmdb,
        #[value(help = "SQLite")]
        Sqlite => BackEnd::Sqlite,
        /// Redis server, or a cluster
        Redis => BackEnd::Redis,
        /// Cluster of Apache Cassandra or ScyllaDB
        Cassandra => BackEnd::Cassandra,
    }
}

args::choices! {
    /// Name of a durability.
    pub(crate) enum DurabilityArg => Durability {
        /// No syncs
        None => Durability::None,
        /// Commits reach the disk when the system writes them
        Async => Durability::Buffered,
        /// Each commit is synced: once it returned, it survives a loss of power
        Each => Durability::Each,
        /// Group commit: like each, but concurrent commits share a sync
        Group => Durability::Group,
    }
}

/// Arguments about the servers of Redis and Cassandra.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// URL of a Redis server, such as `redis://host:6379`; several for a cluster. Needed for a new
    /// store; else replaces the URLs in the store, which have no passwords. `rediss://` is TLS, in
    /// builds with the feature `redis-tls`; its certificate authorities are those of the system, or
    /// of the file in the variable `SSL_CERT_FILE`
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) redis_url: Vec<String>,
    /// File whose first line is the password of the Redis servers; without it, the variable
    /// `TERRANE_REDIS_PASSWORD` has the password. Every user of the machine can see a password in a
    /// URL
    #[arg(long, value_name = "FILE")]
    pub(crate) redis_password_file: Option<PathBuf>,
    /// Nodes of a Cassandra or ScyllaDB cluster, `HOST` or `HOST:PORT`, in builds with the feature
    /// `cassandra`. Needed for a new store; else replaces the address in the store. User, password
    /// and certificates come from `TERRANE_CASSANDRA_USER`, `TERRANE_CASSANDRA_PASSWORD` or
    /// `TERRANE_CASSANDRA_PASSWORD_FILE`, `TERRANE_CASSANDRA_CA_FILE`,
    /// `TERRANE_CASSANDRA_CERT_FILE` and `TERRANE_CASSANDRA_KEY_FILE`;
    /// `TERRANE_CASSANDRA_TLS=true` is TLS with the authorities of the system
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) contact_points: Vec<String>,
    /// Keyspace in the cluster; created if it is missing
    #[arg(long, value_name = "NAME", default_value = "terrane", requires = "contact_points")]
    pub(crate) keyspace: String,
    /// Datacenter whose nodes alone take part in reads and commits
    #[arg(long, value_name = "NAME", requires = "contact_points")]
    pub(crate) datacenter: Option<String>,
    /// Replicas in each datacenter of a keyspace that is created
    #[arg(long, value_name = "N", default_value = "3", requires = "contact_points")]
    pub(crate) replication: u32,
}

/// Environment variable with the password of Redis.
const PASSWORD_VARIABLE: &str = "TERRANE_REDIS_PASSWORD";

impl ServerArgs {
    /// Returns the source of the password.
    pub(crate) fn password(&self) -> Password {
        if let Some(path) = &self.redis_password_file {
            return Password::File(path.clone());
        }
        let variable = std::env::var(PASSWORD_VARIABLE).ok().filter(|text| !text.is_empty());
        variable.map_or(Password::InUrl, Password::Text)
    }

    /// Returns the URL of the Cassandra cluster, if contact points are given.
    pub(crate) fn cassandra_url(&self) -> Option<String> {
        if self.contact_points.is_empty() {
            return None;
        }
        let hosts = self.contact_points.join(",");
        let mut url =
            format!("cassandra://{hosts}/{}?replication={}", self.keyspace, self.replication);
        if let Some(datacenter) = &self.datacenter {
            url = format!("{url}&dc={datacenter}");
        }
        Some(url)
    }

    /// Returns the options to open a store with this back-end, or with any.
    pub(crate) fn opening(
        &self,
        back_end: Option<BackEndArg>,
        durability: DurabilityArg,
    ) -> OpenOptions {
        OpenOptions::default()
            .back_end(back_end.map(BackEnd::from))
            .redis_urls(self.redis_url.clone())
            .redis_password(self.password())
            .cassandra_url(self.cassandra_url())
            .durability(durability.into())
    }

    /// How a store is opened that is only read.
    pub(crate) fn reading(&self) -> OpenOptions {
        OpenOptions::default()
            .redis_urls(self.redis_url.clone())
            .redis_password(self.password())
            .cassandra_url(self.cassandra_url())
            .is_read_only(true)
    }
}
