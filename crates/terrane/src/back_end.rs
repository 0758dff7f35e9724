//! Back-ends by name, and the one place where a database of any back-end is opened.
//!
//! [`kv::open`](crate::kv::open) reaches this module by URL, [`state_dir`](crate::state_dir) by the
//! marker of a directory. Both therefore give a durability and an index the same meaning.
//!
//! Invariant: no text of an error repeats a URL of a server, which may hold a password.

use std::collections::hash_map::RandomState;
use std::fmt;
#[cfg(feature = "redis")]
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_backends::{BtreeDatabase, BtreeOptions, LsmDatabase, LsmOptions};
use terrane_io::Disk;
use terrane_kv::{self as kv, Database, Durability, Memory};

/// Back-end of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackEnd {
    /// A sorted map in memory, which is gone with its last handle.
    Memory,
    /// Terrane's LSM tables.
    Lsm,
    /// Terrane's B+tree.
    Btree,
    /// LMDB.
    Lmdb,
    /// SQLite.
    Sqlite,
    /// A Redis server, or a cluster of Redis servers.
    Redis,
    /// A cluster of Apache Cassandra or ScyllaDB.
    Cassandra,
}

impl BackEnd {
    /// All back-ends, in the order of reports.
    pub const ALL: [Self; 7] = [
        Self::Memory,
        Self::Lsm,
        Self::Btree,
        Self::Lmdb,
        Self::Sqlite,
        Self::Redis,
        Self::Cassandra,
    ];

    /// Name of the back-end on the command line, in markers, in URLs and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Lsm => "lsm",
            Self::Btree => "btree",
            Self::Lmdb => "lmdb",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Cassandra => "cassandra",
        }
    }

    /// Back-end of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|back_end| back_end.name() == name)
    }

    /// Whether this build has the back-end: a cargo feature of the same name adds LMDB, SQLite,
    /// Redis and Cassandra.
    #[must_use]
    pub fn is_built(self) -> bool {
        match self {
            Self::Memory | Self::Lsm | Self::Btree => true,
            Self::Lmdb => cfg!(feature = "lmdb"),
            Self::Sqlite => cfg!(feature = "sqlite"),
            Self::Redis => cfg!(feature = "redis"),
            Self::Cassandra => cfg!(feature = "cassandra"),
        }
    }

    /// Whether the back-end keeps its data in local files.
    #[must_use]
    pub fn has_files(self) -> bool {
        !matches!(self, Self::Memory | Self::Redis | Self::Cassandra)
    }
}

impl fmt::Display for BackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Source of the password of a Redis server. Markers and reports never hold a password.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Password {
    /// The URL, if the server has a password at all.
    #[default]
    InUrl,
    /// This text.
    Text(String),
    /// The first line of a file.
    File(PathBuf),
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUrl => f.write_str("InUrl"),
            Self::Text(_) => f.write_str("Text(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// Bytes of a file with a password at most.
#[cfg(feature = "redis")]
const PASSWORD_BYTES_MAX: u64 = 4096;

#[cfg(feature = "redis")]
impl Password {
    /// Returns the password, unless the URL has it.
    fn read(&self) -> Result<Option<String>> {
        let path = match self {
            Self::InUrl => return Ok(None),
            Self::Text(text) => return Ok(Some(text.clone())),
            Self::File(path) => path,
        };

        let failed = |source| OpenError::Io { path: path.clone(), source };

        // One byte beyond the limit tells a file that is too long.
        let mut text = String::new();
        let file = fs::File::open(path).map_err(failed)?;
        let mut limited = io::Read::take(file, PASSWORD_BYTES_MAX + 1);
        io::Read::read_to_string(&mut limited, &mut text).map_err(failed)?;

        let line = text.lines().next().unwrap_or_default();

        if line.is_empty() || text.len() as u64 > PASSWORD_BYTES_MAX {
            let path = path.display();
            return Err(OpenError::Refused(format!(
                "{path} holds no password: its first line must be one, of at most {PASSWORD_BYTES_MAX} bytes"
            )));
        }

        Ok(Some(line.to_owned()))
    }
}

/// Address of a database in Redis.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedisAddress {
    /// URL of the server, or URLs of some servers of one cluster.
    pub urls: Vec<String>,
    /// Prefix of all keys of the database.
    pub prefix: String,
    /// Source of the password.
    pub password: Password,
}

impl RedisAddress {
    /// Returns an address with a random prefix, which no other database of the server has.
    #[must_use]
    pub fn new(urls: Vec<String>) -> Self {
        let random = RandomState::new().build_hasher().finish();
        let prefix = format!("terrane-{random:016x}");
        Self { urls, prefix, password: Password::InUrl }
    }
}

/// Address of a database in a cluster of Cassandra. Credentials and certificates come from the
/// environment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CassandraAddress {
    /// URL with contact points and keyspace, `cassandra://HOST,HOST/KEYSPACE`.
    pub url: String,
    /// Name of the database in the keyspace; the one of the URL if it is missing.
    pub store: Option<String>,
}

impl CassandraAddress {
    /// Returns an address with a random name, which no other database of the cluster has.
    #[must_use]
    pub fn new(url: String) -> Self {
        let random = RandomState::new().build_hasher().finish();
        Self { url, store: Some(format!("terrane-{random:016x}")) }
    }
}

/// Reason why a database of a back-end cannot be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The back-end says so.
    Database(kv::Error),
    /// This build lacks the back-end.
    #[cfg_attr(
        all(feature = "lmdb", feature = "sqlite", feature = "redis", feature = "cassandra"),
        expect(dead_code, reason = "this build has every back-end")
    )]
    NotBuilt(BackEnd),
    /// The system refuses a file.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only passwords are read here"))]
    Io { path: PathBuf, source: io::Error },
    /// The request contradicts itself.
    #[cfg_attr(
        not(any(feature = "redis", feature = "cassandra")),
        expect(dead_code, reason = "only servers have an address")
    )]
    Refused(String),
}

pub(crate) type Result<T> = std::result::Result<T, OpenError>;

impl From<kv::Error> for OpenError {
    fn from(error: kv::Error) -> Self {
        Self::Database(error)
    }
}

/// Place of a database: back-ends with files need `disk` and `path`, servers their address.
#[derive(Debug)]
pub(crate) struct Location<'a> {
    pub(crate) back_end: BackEnd,
    /// Disk of the back-ends that do not open their files by themselves.
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) path: &'a Path,
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "only the Redis back-end has an address")
    )]
    pub(crate) redis: Option<&'a RedisAddress>,
    #[cfg_attr(
        not(feature = "cassandra"),
        expect(dead_code, reason = "only the Cassandra back-end has an address")
    )]
    pub(crate) cassandra: Option<&'a CassandraAddress>,
    pub(crate) indexes: &'a [&'a str],
}

impl Location<'_> {
    /// Opens the database, or creates it if there is none.
    pub(crate) fn open(&self, durability: Durability) -> Result<Arc<dyn Database>> {
        let Self { back_end, path, indexes, .. } = *self;
        match back_end {
            BackEnd::Memory => {
                if durability != Durability::None {
                    return Err(unsupported(
                        back_end,
                        durability,
                        "memory keeps nothing; take none",
                    ));
                }
                Ok(Arc::new(Memory::new(indexes)?))
            }
            BackEnd::Lsm => {
                let options = LsmOptions::default().durability(durability);
                Ok(Arc::new(LsmDatabase::open(self.disk.clone(), path, indexes, &options)?))
            }
            BackEnd::Btree => {
                let options = BtreeOptions::default().durability(durability);
                Ok(Arc::new(BtreeDatabase::open(self.disk.clone(), path, indexes, &options)?))
            }
            #[cfg(feature = "lmdb")]
            BackEnd::Lmdb => self.open_lmdb(durability),
            #[cfg(feature = "sqlite")]
            BackEnd::Sqlite => self.open_sqlite(durability),
            #[cfg(feature = "redis")]
            BackEnd::Redis => {
                use terrane_backends::redis::Redis;
                let options = redis_options(self.redis, indexes)?.durability(durability);
                Ok(Arc::new(Redis::open(options)?))
            }
            #[cfg(feature = "cassandra")]
            BackEnd::Cassandra => {
                let options = cassandra_options(self.cassandra, indexes)?.durability(durability);
                Ok(Arc::new(terrane_cassandra::Cassandra::open(options)?))
            }
            #[cfg(not(all(
                feature = "lmdb",
                feature = "sqlite",
                feature = "redis",
                feature = "cassandra"
            )))]
            _ => Err(OpenError::NotBuilt(back_end)),
        }
    }

    /// Opens the database beside its writer, which may be another process. Nothing is created.
    pub(crate) fn open_read_only(&self) -> Result<Arc<dyn Database>> {
        let Self { back_end, path, indexes, .. } = *self;
        match back_end {
            BackEnd::Memory => {
                let option = "read-only".to_owned();
                let why = "nothing would ever be in it".to_owned();
                let back_end = back_end.name();
                Err(kv::Error::Unsupported { back_end, option, why }.into())
            }
            BackEnd::Lsm => Ok(LsmDatabase::open_read_only(self.disk.clone(), path, indexes)?),
            BackEnd::Btree => {
                let options = BtreeOptions::default();
                let disk = self.disk.clone();
                Ok(BtreeDatabase::open_read_only(disk, path, indexes, &options)?)
            }
            #[cfg(feature = "lmdb")]
            BackEnd::Lmdb => {
                use terrane_backends::lmdb::{LmdbDatabase, LmdbOptions};
                let options = LmdbOptions::default();
                Ok(Arc::new(LmdbDatabase::open_read_only(path, indexes, &options)?))
            }
            #[cfg(feature = "sqlite")]
            BackEnd::Sqlite => {
                use terrane_backends::sqlite::{SqliteDatabase, SqliteOptions};
                let options = SqliteOptions::file(path);
                Ok(Arc::new(SqliteDatabase::open_read_only(indexes, &options)?))
            }
            #[cfg(feature = "redis")]
            BackEnd::Redis => {
                use terrane_backends::redis::Redis;
                let options = redis_options(self.redis, indexes)?.read_only();
                Ok(Arc::new(Redis::open(options)?))
            }
            #[cfg(feature = "cassandra")]
            BackEnd::Cassandra => {
                let options = cassandra_options(self.cassandra, indexes)?.read_only();
                Ok(Arc::new(terrane_cassandra::Cassandra::open(options)?))
            }
            #[cfg(not(all(
                feature = "lmdb",
                feature = "sqlite",
                feature = "redis",
                feature = "cassandra"
            )))]
            _ => Err(OpenError::NotBuilt(back_end)),
        }
    }

    /// `async` has the settings of Transact: `WRITEMAP` and `MAPASYNC`.
    #[cfg(feature = "lmdb")]
    fn open_lmdb(&self, durability: Durability) -> Result<Arc<dyn Database>> {
        use terrane_backends::lmdb::{LmdbDatabase, LmdbOptions, SyncMode};
        let options = match durability {
            Durability::None => LmdbOptions::default().sync(SyncMode::None),
            Durability::Buffered => LmdbOptions::transact(),
            Durability::Each => LmdbOptions::default(),
            Durability::Group => return Err(unsupported(self.back_end, durability, NO_GROUP)),
        };
        Ok(Arc::new(LmdbDatabase::open(self.path, self.indexes, &options)?))
    }

    /// SQLite keeps a WAL at every level; the level decides when SQLite syncs it.
    #[cfg(feature = "sqlite")]
    fn open_sqlite(&self, durability: Durability) -> Result<Arc<dyn Database>> {
        use terrane_backends::sqlite::{SqliteDatabase, SqliteOptions, Synchronous};
        let synchronous = match durability {
            Durability::None => Synchronous::Off,
            Durability::Buffered => Synchronous::Normal,
            Durability::Each => Synchronous::Full,
            Durability::Group => return Err(unsupported(self.back_end, durability, NO_GROUP)),
        };
        let options = SqliteOptions::file(self.path).synchronous(synchronous);
        Ok(Arc::new(SqliteDatabase::open(self.indexes, &options)?))
    }
}

/// Reason why neither LMDB nor SQLite has the level `group`.
#[cfg(any(feature = "lmdb", feature = "sqlite"))]
const NO_GROUP: &str = "commits cannot share a sync; take each";

/// Message for a Redis back-end without a server.
pub(crate) const NO_SERVER: &str = "back-end redis needs the URL of a server: --redis-url";

/// Message for a Cassandra back-end without a cluster.
pub(crate) const NO_CLUSTER: &str = "back-end cassandra needs nodes of a cluster: --contact-points";

fn unsupported(back_end: BackEnd, durability: Durability, why: &str) -> OpenError {
    let back_end = back_end.name();
    let option = format!("durability {}", durability.name());
    kv::Error::Unsupported { back_end, option, why: why.to_owned() }.into()
}

/// Returns checked options: one URL is that of a server, several are those of a cluster.
#[cfg(feature = "redis")]
pub(crate) fn redis_options(
    address: Option<&RedisAddress>,
    indexes: &[&str],
) -> Result<terrane_backends::redis::Options> {
    use terrane_backends::redis::Options;
    let options = match address.map(|address| address.urls.as_slice()) {
        Some([url]) => Options::server(url),
        Some(urls @ [_, ..]) => Options::cluster(urls),
        _ => return Err(OpenError::Refused(NO_SERVER.to_owned())),
    };

    let prefix = address.map(|address| address.prefix.clone()).unwrap_or_default();
    let password = address.map(|address| address.password.read()).transpose()?.flatten();
    let options = options.prefix(prefix).indexes(indexes.iter().copied()).password(password);
    options.check()?;

    Ok(options)
}

/// Returns checked options, with credentials and certificates from the environment.
#[cfg(feature = "cassandra")]
pub(crate) fn cassandra_options(
    address: Option<&CassandraAddress>,
    indexes: &[&str],
) -> Result<terrane_cassandra::Options> {
    let address = address.filter(|address| !address.url.is_empty());
    let address = address.ok_or_else(|| OpenError::Refused(NO_CLUSTER.to_owned()))?;
    let mut options = terrane_cassandra::Options::parse(&address.url)?.environment()?;
    if let Some(store) = &address.store {
        options = options.store(store);
    }
    let options = options.indexes(indexes.iter().copied());
    options.check()?;

    Ok(options)
}

/// Returns a URL of a server without user and password, and without the fields of its query that
/// might hold them.
#[must_use]
pub fn without_user(url: &str) -> String {
    let url = url.split('#').next().unwrap_or_default();
    let (address, query) = url.split_once('?').unwrap_or((url, ""));

    let mut written = match address.split_once("://") {
        Some((scheme, rest)) => {
            let host_end = rest.find('/').unwrap_or(rest.len());
            let host = rest[..host_end].rfind('@').map_or(0, |at| at + 1);
            format!("{scheme}://{}", &rest[host..])
        }
        None => address.to_owned(),
    };

    // Unknown fields are left out: a field kept by mistake would show a password.
    let known = ["db=", "protocol=", "dc=", "replication=", "tls="];
    let is_public = |field: &&str| known.iter().any(|known| field.starts_with(known));
    for (number, field) in query.split('&').filter(is_public).enumerate() {
        written.push(if number == 0 { '?' } else { '&' });
        written.push_str(field);
    }

    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_passwords_are_not_written() {
        for (url, written) in [
            ("redis://user:pass@host:1/2", "redis://host:1/2"),
            ("redis://:p@ss@host", "redis://host"),
            ("redis://host:1", "redis://host:1"),
            ("redis://me:it@host?protocol=resp3", "redis://host?protocol=resp3"),
            ("redis+unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
            ("redis+unix:///run/a@b.sock", "redis+unix:///run/a@b.sock"),
            (
                "redis+unix:///a?user=me&db=3&pass=it&protocol=resp3",
                "redis+unix:///a?db=3&protocol=resp3",
            ),
            ("unix:///a?pass=it", "unix:///a"),
            ("cassandra://a:1,b/c?dc=e&pass=it&tls=true", "cassandra://a:1,b/c?dc=e&tls=true"),
            ("unix:/a?p%61ss=it#more", "unix:/a"),
        ] {
            assert_eq!(without_user(url), written);
        }
    }
}
