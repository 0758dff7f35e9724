//! Options of a store in Redis.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::redis::IntoConnectionInfo as _;
use terrane_kv::{Durability, Result, Table, check_indexes};

use super::error::{NAME, error_of, unsupported};
use super::tls;
use crate::overlay::names::number;

/// Most characters of a prefix.
pub const PREFIX_CHARS_MAX: usize = 64;

/// Options of a store in Redis. The defaults suit one server on the local network.
#[derive(Clone)]
pub struct Options {
    pub(crate) urls: Vec<String>,
    pub(crate) cluster: bool,
    pub(crate) prefix: String,
    pub(crate) password: Option<String>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) database: Option<i64>,
    pub(crate) pool: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) read_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) lease: Duration,
    pub(crate) durability: Durability,
    pub(crate) read_only: bool,
    pub(crate) indexes: Vec<String>,
}

/// Without the URLs, which may have passwords.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Options {
    fn new(urls: Vec<String>, cluster: bool) -> Self {
        Self {
            urls,
            cluster,
            prefix: "terrane".to_owned(),
            password: None,
            ca_file: None,
            database: None,
            pool: 8,
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            lease: Duration::from_secs(30),
            durability: Durability::None,
            read_only: false,
            indexes: Vec::new(),
        }
    }

    /// One server: `redis://[user:password@]host[:port][/database]`, `rediss://` for the same over
    /// TLS (cargo feature `redis-tls`), or `redis+unix:///path`.
    #[must_use]
    pub fn server(url: impl Into<String>) -> Self {
        Self::new(vec![url.into()], false)
    }

    /// A cluster, by the URLs of some of its servers, all with TLS or all without. The whole store
    /// is in one hash slot, thus on one of them. Over TLS the servers must tell each other's TLS
    /// ports (`tls-cluster yes`).
    #[must_use]
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::new(urls.into_iter().map(Into::into).collect(), true)
    }

    /// The prefix of the keys, `terrane` unless told: 1 to [`PREFIX_CHARS_MAX`] characters, without
    /// braces. Stores of different prefixes in one server have nothing to do with each other.
    #[must_use]
    pub fn with_prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// The password, which goes before those that the URLs have: a URL may be seen by others, as in
    /// the arguments of a process.
    #[must_use]
    pub fn with_password(self, password: Option<String>) -> Self {
        Self { password, ..self }
    }

    /// For `rediss://`: a file of certificates in PEM form, of the authorities that the server's
    /// certificate may come from, and of no others. Without it they are those of the system, or of
    /// the file that the variable `SSL_CERT_FILE` of the environment names. The file is read when
    /// the store is opened.
    #[must_use]
    pub fn with_ca_file(self, path: Option<PathBuf>) -> Self {
        Self { ca_file: path, ..self }
    }

    /// The number of the database, which goes before the one that the URL names. A cluster has
    /// number 0 only.
    #[must_use]
    pub fn with_database(self, number: i64) -> Self {
        Self { database: Some(number), ..self }
    }

    /// How many connections there are at most, 8 unless told. A call that finds all in use waits
    /// for the read timeout.
    #[must_use]
    pub fn with_pool(self, connections: usize) -> Self {
        Self { pool: connections, ..self }
    }

    /// How long connecting, an answer, and sending may take: 5, 30 and 30 seconds unless told. An
    /// answer includes what the server does for it, also writing a large commit.
    #[must_use]
    pub fn with_timeouts(self, connect: Duration, read: Duration, write: Duration) -> Self {
        Self { connect_timeout: connect, read_timeout: read, write_timeout: write, ..self }
    }

    /// How long the lock of a writing process outlives its last use, 30 seconds unless told. See
    /// [`Redis::renew`](super::Redis::renew).
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Durability that commits must have; default none. The server's settings decide the
    /// durability; opening fails if they give less.
    #[must_use]
    pub fn with_durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// For reading beside a process that writes: takes no lock and promises less, see the
    /// [module](super).
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// The names of the indexes.
    #[must_use]
    pub fn with_indexes(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { indexes: names.into_iter().map(Into::into).collect(), ..self }
    }

    /// Refuses what no server could honour, before there is one.
    ///
    /// # Errors
    /// `Unsupported`, with the option and why; it does not repeat a URL, which may have a password.
    pub fn check(&self) -> Result<()> {
        if self.urls.is_empty() {
            return Err(unsupported("url", "none is given"));
        }

        for url in &self.urls {
            tls::check(url)?;
            url.as_str().into_connection_info().map_err(|error| error_of("the URL", error))?;
        }

        if self.ca_file.is_some() && !self.urls.iter().any(|url| tls::is_asked(url)) {
            return Err(unsupported(
                "the file of authorities",
                "is for TLS, which only URLs that begin with rediss:// ask for",
            ));
        }

        let length = self.prefix.chars().count();
        if !(1..=PREFIX_CHARS_MAX).contains(&length) || self.prefix.contains(['{', '}']) {
            return Err(unsupported(
                format!("prefix {:?}", self.prefix),
                format!("takes 1 to {PREFIX_CHARS_MAX} characters other than braces"),
            ));
        }

        if self.cluster && self.database.is_some_and(|number| number != 0) {
            return Err(unsupported("database", "a cluster has number 0 only"));
        }

        if self.pool == 0 {
            return Err(unsupported("pool", "takes at least one connection"));
        }

        let times = [
            ("connect timeout", self.connect_timeout),
            ("read timeout", self.read_timeout),
            ("write timeout", self.write_timeout),
            ("lease", self.lease),
        ];

        for (option, time) in times {
            if !(Duration::from_millis(1)..=Duration::from_secs(24 * 3_600)).contains(&time) {
                return Err(unsupported(option, "takes 1 millisecond to 24 hours"));
            }
        }

        let indexes: Vec<&str> = self.indexes.iter().map(String::as_str).collect();
        check_indexes(NAME, &indexes)
    }

    /// The number of a table: 0 for the main table, then the indexes in their order.
    pub(crate) fn table(&self, table: Table<'_>) -> Result<usize> {
        number(&self.indexes, table)
    }
}
