//! Ordered key-value databases: the traits of the back-ends of a radix state, and opening a
//! database by URL.
//!
//! A [`Database`] has a main table and named indexes, consistent snapshots ([`Reader`]), and one
//! atomic [`Writer`] at a time. Programs that use these traits run unchanged on every back-end:
//!
//! | URL                                                  | database                         | cargo feature |
//! |------------------------------------------------------|----------------------------------|---------------|
//! | `memory:`                                            | memory, gone with its last handle | |
//! | `lsm:PATH`                                           | Terrane's LSM tables             | |
//! | `btree:PATH`                                         | Terrane's B+tree                 | |
//! | `lmdb:PATH`                                          | LMDB                             | `lmdb`        |
//! | `sqlite:PATH`                                        | SQLite                           | `sqlite`      |
//! | `redis://HOST[:PORT][/NUMBER]`, `redis+unix:///PATH` | a Redis server                   | `redis`       |
//! | `rediss://HOST[:PORT][/NUMBER]`                      | the same over TLS                | `redis-tls`   |
//! | `cassandra://HOST[:PORT][,HOST..][/KEYSPACE[/STORE]]` | a cluster of Cassandra or ScyllaDB | `cassandra` |
//!
//! A path is taken as it stands, without percent-decoding; `lsm:///path` means `lsm:/path`. The
//! parent directory of a path must exist.
//!
//! Behind a URL of Cassandra, `?dc=NAME`, `replication=N` and `tls=true` name the datacenter, the
//! replicas of a keyspace to be made, and TLS. Its user, password and certificates come from the
//! environment: `TERRANE_CASSANDRA_USER`, `TERRANE_CASSANDRA_PASSWORD`, `TERRANE_CASSANDRA_CA_FILE`
//! and others.
//!
//! ```
//! use terrane::kv::{self, Table};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("btree:{}/ledger", dir.path().display());
//! // The URL decides where the data go, as in "btree:/var/lib/node/ledger" or "memory:".
//! let database = kv::open(&url, &["owners"])?;
//!
//! let mut writer = database.writer()?;
//! writer.put(Table::Main, b"alice", b"100")?;
//! writer.overwrite(Table::Index("owners"), b"100", b"alice")?;
//! let receipt = writer.commit()?;
//! database.settle(receipt)?; // durable from here on
//!
//! assert_eq!(database.reader()?.get(Table::Main, b"alice")?.as_deref(), Some(&b"100"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! A directory that holds a radix state is opened by [`state_dir`](crate::state_dir) instead, which
//! knows the back-end of the directory and takes its lock.

use std::path::Path;
use std::sync::Arc;

use terrane_io::{ErrorKind, RealDisk};

pub use terrane_kv::{
    Counts, Cursor, Database, Durability, Entry, Error, Guarantee, INDEX_NAME_CHARS_MAX,
    INDEXES_MAX, KEY_BYTES_MAX, Memory, PowerLoss, Reader, Receipt, Result, Source, Table,
    VALUE_BYTES_MAX, Writer, check_entry, check_indexes, conformance, is_index_name, removals,
    turn,
};

pub use crate::back_end::Password;
use crate::back_end::{self, BackEnd, CassandraAddress, Location, RedisAddress};

/// Scheme of URLs for Redis over TLS.
const TLS_SCHEME: &str = "rediss";
/// Characters of a scheme at most that an error repeats; more are not a scheme.
const SCHEME_CHARS_MAX: usize = 16;

/// Reason why [`open`] cannot open a database. No message repeats a URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No back-end has this scheme.
    #[error("no database has the scheme {scheme:?}; this build knows {}", .known.join(", "))]
    UnknownScheme {
        /// The scheme, without its colon.
        scheme: String,
        /// Schemes that this build can open.
        known: Vec<&'static str>,
    },
    /// This build lacks the back-end of the scheme.
    #[error(
        "this program was built without {scheme}; build it with `--features {feature}`. It knows {}",
        .known.join(", ")
    )]
    NotBuilt {
        /// The scheme, without its colon.
        scheme: String,
        /// Cargo feature that adds the back-end.
        feature: &'static str,
        /// Schemes that this build can open.
        known: Vec<&'static str>,
    },
    /// The URL lacks a part that its scheme needs, or has one that its scheme does not take.
    #[error("the URL of the database: {rule}")]
    Address {
        /// The rule that the URL breaks.
        rule: String,
    },
    /// The file with the password cannot be read.
    #[error("{}", .path.display())]
    PasswordFile {
        /// The file.
        path: std::path::PathBuf,
        /// Answer of the system.
        source: std::io::Error,
    },
    /// The back-end refuses or fails to open the database.
    #[error(transparent)]
    Database(#[from] Error),
}

impl OpenError {
    /// Returns what a caller can do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownScheme { .. } | Self::Address { .. } => ErrorKind::InvalidInput,
            Self::NotBuilt { .. } => ErrorKind::Unsupported,
            Self::PasswordFile { path, source } => {
                let source = std::io::Error::from(source.kind());
                terrane_io::Error::io("open", path, source).kind()
            }
            Self::Database(error) => error.kind(),
        }
    }
}

terrane_io::error_kind_questions!(OpenError);

/// Opens the database of a URL with these indexes, or creates it if there is none.
///
/// Indexes that the database lacks are added, and others that it has are left alone. Commits are
/// as durable as [`OpenOptions`] says by default. The [module](self) has the table of URLs.
///
/// # Errors
/// [`OpenError::UnknownScheme`] and [`OpenError::NotBuilt`], which list the known schemes;
/// [`OpenError::Address`]; and [`OpenError::Database`] with the error of the back-end.
#[doc(alias = "connect")]
pub fn open(url: &str, indexes: &[&str]) -> std::result::Result<Arc<dyn Database>, OpenError> {
    OpenOptions::default().open(url, indexes)
}

/// Options of opening a database by URL.
///
/// ```no_run
/// use terrane::kv::{Durability, OpenOptions};
///
/// let options = OpenOptions::default().durability(Durability::Group);
/// let database = options.open("lsm:/var/lib/node/ledger", &[])?;
/// println!("{}", database.guarantee().text);
/// # Ok::<(), terrane::kv::OpenError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct OpenOptions {
    durability: Option<Durability>,
    is_read_only: bool,
    redis_prefix: Option<String>,
    redis_password: Password,
}

impl OpenOptions {
    /// Sets the durability of commits. A back-end that lacks the level refuses to open.
    ///
    /// Default: [`Durability::Each`] for databases in files. In memory, and in Redis and Cassandra,
    /// where the settings of the servers decide, it is [`Durability::None`].
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability: Some(durability), ..self }
    }

    /// Opens an existing database for reading, beside a process that writes it. Nothing is created.
    pub fn read_only(self) -> Self {
        Self { is_read_only: true, ..self }
    }

    /// Sets the prefix of the keys in Redis, `terrane` by default. Databases of different prefixes
    /// in one server are independent.
    pub fn redis_prefix(self, prefix: impl Into<String>) -> Self {
        Self { redis_prefix: Some(prefix.into()), ..self }
    }

    /// Sets the source of the password of a Redis server. It takes precedence over a password in
    /// the URL, which other users of the machine may see among the arguments of the process.
    pub fn redis_password(self, password: Password) -> Self {
        Self { redis_password: password, ..self }
    }

    /// Opens the database of a URL; see [`open`].
    ///
    /// # Errors
    /// Those of [`open`].
    pub fn open(
        &self,
        url: &str,
        indexes: &[&str],
    ) -> std::result::Result<Arc<dyn Database>, OpenError> {
        let address = Address::parse(url)?;
        let path = address.path.unwrap_or_default();
        let redis = (address.back_end == BackEnd::Redis).then(|| RedisAddress {
            urls: vec![url.to_owned()],
            prefix: self.redis_prefix.clone().unwrap_or_else(|| "terrane".to_owned()),
            password: self.redis_password.clone(),
        });

        let cassandra = (address.back_end == BackEnd::Cassandra)
            .then(|| CassandraAddress { url: url.to_owned(), store: None });

        let location = Location {
            back_end: address.back_end,
            disk: RealDisk::auto(),
            path: Path::new(path),
            redis: redis.as_ref(),
            cassandra: cassandra.as_ref(),
            indexes,
        };

        let opened = if self.is_read_only {
            location.open_read_only()
        } else {
            location.open(self.durability.unwrap_or(address.default_durability()))
        };

        opened.map_err(|error| match error {
            back_end::OpenError::Database(error) => error.into(),
            back_end::OpenError::NotBuilt(back_end) => not_built(back_end.name(), back_end.name()),
            back_end::OpenError::Io { path, source } => OpenError::PasswordFile { path, source },
            back_end::OpenError::Refused(rule) => OpenError::Address { rule },
        })
    }
}

/// Parts of a URL.
struct Address<'a> {
    back_end: BackEnd,
    /// Path of the database, for back-ends with files.
    path: Option<&'a str>,
}

impl<'a> Address<'a> {
    fn parse(url: &'a str) -> std::result::Result<Self, OpenError> {
        let address = |rule: String| OpenError::Address { rule };
        let Some((scheme, rest)) = url.split_once(':').filter(|(scheme, _)| is_scheme(scheme))
        else {
            let known = known_schemes().join(":, ");
            return Err(address(format!("begin it with the scheme of a database: {known}:")));
        };

        let is_tls = scheme == TLS_SCHEME;
        let back_end = match scheme {
            TLS_SCHEME | "redis+unix" => Some(BackEnd::Redis),
            _ => BackEnd::named(scheme),
        };

        let Some(back_end) = back_end else {
            return Err(OpenError::UnknownScheme {
                scheme: scheme.to_owned(),
                known: known_schemes(),
            });
        };

        if is_tls && !cfg!(feature = "redis-tls") {
            return Err(not_built(scheme, "redis-tls"));
        }

        if !back_end.is_built() {
            return Err(not_built(scheme, back_end.name()));
        }

        match back_end {
            BackEnd::Memory if rest.is_empty() => Ok(Self { back_end, path: None }),
            BackEnd::Memory => Err(address("nothing follows memory:".to_owned())),
            BackEnd::Redis | BackEnd::Cassandra => Ok(Self { back_end, path: None }),
            BackEnd::Lsm | BackEnd::Btree | BackEnd::Lmdb | BackEnd::Sqlite => {
                let path = match rest.strip_prefix("//") {
                    None => rest,
                    Some(path) if path.starts_with('/') => path,
                    Some(_) => {
                        let rule = format!("{scheme}: takes a path and no host");
                        return Err(address(rule));
                    }
                };
                if path.is_empty() {
                    return Err(address(format!("{scheme}: needs a path, as in {scheme}:/path")));
                }
                Ok(Self { back_end, path: Some(path) })
            }
        }
    }

    fn default_durability(&self) -> Durability {
        if self.back_end.has_files() { Durability::Each } else { Durability::None }
    }
}

/// Whether a text has the form of a scheme. Anything else before a colon may be part of a password,
/// and no error repeats it.
fn is_scheme(text: &str) -> bool {
    let is_known_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.chars().all(is_known_char)
        && text.len() <= SCHEME_CHARS_MAX
}

/// Schemes that this build can open.
fn known_schemes() -> Vec<&'static str> {
    let built = BackEnd::ALL.into_iter().filter(|back_end| back_end.is_built());
    let mut known: Vec<&'static str> = built.map(BackEnd::name).collect();
    if cfg!(feature = "redis") {
        known.push("redis+unix");
    }
    if cfg!(feature = "redis-tls") {
        known.push(TLS_SCHEME);
    }
    known
}

fn not_built(scheme: &str, feature: &'static str) -> OpenError {
    OpenError::NotBuilt { scheme: scheme.to_owned(), feature, known: known_schemes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes through one handle and reads through another.
    fn check_file_scheme(scheme: &str) {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("{scheme}:{}/database", dir.path().display());
        let database = open(&url, &["owners"]).unwrap();
        assert_eq!(database.name(), scheme);
        assert_eq!(database.guarantee().durability, Durability::Each);

        let mut writer = database.writer().unwrap();
        writer.put(Table::Main, b"alice", b"100").unwrap();
        writer.put(Table::Index("owners"), b"100", b"alice").unwrap();
        let receipt = writer.commit().unwrap();
        database.settle(receipt).unwrap();
        database.close().unwrap();

        // Three slashes are the same path.
        let url = format!("{scheme}://{}/database", dir.path().display());
        let database = OpenOptions::default().read_only().open(&url, &["owners"]).unwrap();
        let reader = database.reader().unwrap();
        assert_eq!(reader.get(Table::Main, b"alice").unwrap().as_deref(), Some(&b"100"[..]));
        assert_eq!(reader.count(Table::Index("owners")).unwrap(), 1);
        assert!(matches!(database.writer().err(), Some(Error::ReadOnly { .. })));
    }

    #[test]
    fn memory_holds_what_is_written_and_promises_nothing() {
        let database = open("memory:", &[]).unwrap();
        let mut writer = database.writer().unwrap();
        writer.put(Table::Main, b"alice", b"100").unwrap();
        writer.commit().unwrap();
        assert_eq!(database.reader().unwrap().count(Table::Main).unwrap(), 1);
        assert_eq!(database.guarantee().durability, Durability::None);

        let options = OpenOptions::default();
        let durable = options.clone().durability(Durability::Each).open("memory:", &[]);
        assert!(matches!(durable.unwrap_err(), OpenError::Database(Error::Unsupported { .. })));
        let read = options.read_only().open("memory:", &[]);
        assert!(matches!(read.unwrap_err(), OpenError::Database(Error::Unsupported { .. })));
    }

    #[test]
    fn an_lsm_database_opens_by_url() {
        check_file_scheme("lsm");
    }

    #[test]
    fn a_btree_database_opens_by_url() {
        check_file_scheme("btree");
    }

    #[test]
    fn an_lmdb_database_opens_by_url_if_it_is_built() {
        check_built_scheme("lmdb", cfg!(feature = "lmdb"));
    }

    #[test]
    fn an_sqlite_database_opens_by_url_if_it_is_built() {
        check_built_scheme("sqlite", cfg!(feature = "sqlite"));
    }

    fn check_built_scheme(scheme: &str, is_built: bool) {
        if is_built {
            return check_file_scheme(scheme);
        }
        let error = open(&format!("{scheme}:/nowhere"), &[]).unwrap_err();
        assert!(
            matches!(&error, OpenError::NotBuilt { feature, .. } if *feature == scheme),
            "{error}"
        );
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("It knows memory, lsm, btree"), "{error}");
    }

    #[test]
    fn bad_addresses_of_redis_are_refused_before_any_connection() {
        for url in ["redis:", "redis://", "redis:host", "redis+unix:", "rediss://h#insecure"] {
            let error = open(url, &[]).unwrap_err();
            let is_refused = match &error {
                OpenError::NotBuilt { .. } => {
                    !cfg!(feature = "redis")
                        || (url.starts_with("rediss") && !cfg!(feature = "redis-tls"))
                }
                OpenError::Database(_) => cfg!(feature = "redis"),
                _ => false,
            };
            assert!(is_refused, "{url}: {error:?}");
        }
    }

    #[test]
    fn bad_addresses_of_cassandra_are_refused_before_any_connection() {
        for url in ["cassandra:secret", "cassandra://", "cassandra://secret@h", "cassandra://h/A"] {
            let error = open(url, &[]).unwrap_err();
            let is_refused = match &error {
                OpenError::NotBuilt { feature, .. } => {
                    !cfg!(feature = "cassandra") && *feature == "cassandra"
                }
                OpenError::Database(Error::Unsupported { .. }) => cfg!(feature = "cassandra"),
                _ => false,
            };
            assert!(is_refused, "{url}: {error:?}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn an_unknown_scheme_is_told_with_the_known_ones() {
        let error = open("rocksdb:/var/lib/node", &[]).unwrap_err();
        let OpenError::UnknownScheme { scheme, known } = &error else { panic!("{error:?}") };
        assert_eq!(scheme, "rocksdb");
        assert_eq!(known[..3], ["memory", "lsm", "btree"]);
        assert_eq!(known.contains(&"lmdb"), cfg!(feature = "lmdb"));
        assert_eq!(known.contains(&"rediss"), cfg!(feature = "redis-tls"));
        assert!(error.to_string().contains("memory, lsm, btree"), "{error}");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn urls_without_a_scheme_or_a_path_are_refused_and_not_repeated() {
        let cases =
            ["", "/var/lib/secret", "Secret:/x", "se cret@host:1", "lsm:", "btree://secret/x"];
        for url in cases.into_iter().chain(["memory:/secret", "lsm://", "btree://"]) {
            let error = open(url, &[]).unwrap_err();
            assert!(matches!(error, OpenError::Address { .. }), "{url}: {error:?}");
            assert!(!error.to_string().to_lowercase().contains("secret"), "{error}");
        }
    }

    #[test]
    fn an_option_that_the_back_end_lacks_is_refused() {
        let error = open("memory:", &["No Name"]).unwrap_err();
        assert!(matches!(error, OpenError::Database(Error::Unsupported { .. })), "{error:?}");
    }
}
