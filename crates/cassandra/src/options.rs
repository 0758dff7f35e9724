//! Options of a store in a cluster: address, credentials, times.
//!
//! Invariant: neither an address nor a report holds a password.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use terrane_kv::{Durability, Error, Result, check_indexes};

use crate::error::{NAME, unsupported};

/// Scheme of addresses.
pub const SCHEME: &str = "cassandra";
/// Most characters of a store's name.
pub const STORE_CHARS_MAX: usize = 64;
/// Most characters of a keyspace's name, by the rules of Cassandra.
const KEYSPACE_CHARS_MAX: usize = 48;
/// Most bytes of a file with a password.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// Certificates for connections over TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// File of the authorities that the nodes' certificates come from, in PEM form; those of the
    /// system if it is missing.
    pub ca_file: Option<PathBuf>,
    /// File of this client's certificate and of those between it and its authority, in PEM form.
    pub cert_file: Option<PathBuf>,
    /// File of the key of that certificate, in PEM form.
    pub key_file: Option<PathBuf>,
}

/// Options of a store in a cluster. The defaults suit three nodes on one network.
#[derive(Clone)]
#[must_use]
pub struct Options {
    pub(crate) contact_points: Vec<String>,
    pub(crate) keyspace: String,
    pub(crate) store: String,
    pub(crate) datacenter: Option<String>,
    pub(crate) replication: u32,
    pub(crate) user: Option<(String, String)>,
    pub(crate) tls: Option<Tls>,
    pub(crate) translation: HashMap<SocketAddr, SocketAddr>,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) patience: Duration,
    pub(crate) durability: Durability,
    pub(crate) read_only: bool,
    pub(crate) takes_over: bool,
    pub(crate) indexes: Vec<String>,
}

/// Without the credentials.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("contact_points", &self.contact_points)
            .field("keyspace", &self.keyspace)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Some nodes of the cluster, as `host` or `host:port`; the others are found through them.
    pub fn contact_points(points: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            contact_points: points.into_iter().map(Into::into).collect(),
            keyspace: "terrane".to_owned(),
            store: "main".to_owned(),
            datacenter: None,
            replication: 3,
            user: None,
            tls: None,
            translation: HashMap::new(),
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(60),
            request_timeout: Duration::from_secs(10),
            patience: Duration::from_secs(60),
            durability: Durability::None,
            read_only: false,
            takes_over: false,
            indexes: Vec::new(),
        }
    }

    /// Parses `cassandra://HOST[:PORT][,HOST[:PORT]..][/KEYSPACE[/STORE]][?FIELDS]`. The fields are
    /// `dc=NAME`, `replication=N` and `tls=true`, with `&` between them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the broken rule. The error does not repeat the address.
    pub fn parse(address: &str) -> Result<Self> {
        let refused = |why: &str| unsupported("the address of the cluster", why);
        let rest = address
            .strip_prefix(SCHEME)
            .and_then(|rest| rest.strip_prefix("://"))
            .ok_or_else(|| refused("begins with cassandra://"))?;

        if rest.contains(['@', '#']) {
            return Err(refused(
                "has no user, password or fragment: they come from the environment",
            ));
        }

        let (place, fields) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parts = place.split('/');
        let hosts = parts.next().unwrap_or_default();
        let mut options = Self::contact_points(hosts.split(',').filter(|host| !host.is_empty()));
        if let Some(keyspace) = parts.next().filter(|keyspace| !keyspace.is_empty()) {
            keyspace.clone_into(&mut options.keyspace);
        }
        if let Some(store) = parts.next().filter(|store| !store.is_empty()) {
            store.clone_into(&mut options.store);
        }
        if parts.next().is_some() {
            return Err(refused("has hosts, a keyspace and a store, and nothing behind them"));
        }

        for field in fields.split('&').filter(|field| !field.is_empty()) {
            match field.split_once('=') {
                Some(("dc", name)) if !name.is_empty() => {
                    options.datacenter = Some(name.to_owned());
                }
                Some(("replication", number)) => {
                    let number = number.parse().ok().filter(|number| *number > 0);
                    options.replication = number
                        .ok_or_else(|| refused("takes a positive number after replication="))?;
                }
                Some(("tls", "true")) => options.tls = Some(Tls::default()),
                _ => return Err(refused("takes the fields dc=, replication= and tls=true only")),
            }
        }

        Ok(options)
    }

    /// Takes user, password and certificates from the environment:
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `TERRANE_CASSANDRA_USER` | user |
    /// | `TERRANE_CASSANDRA_PASSWORD` | password |
    /// | `TERRANE_CASSANDRA_PASSWORD_FILE` | file whose first line is the password |
    /// | `TERRANE_CASSANDRA_TLS` | `true`: TLS, with the authorities of the system |
    /// | `TERRANE_CASSANDRA_CA_FILE` | TLS, with the authorities of this file |
    /// | `TERRANE_CASSANDRA_CERT_FILE`, `TERRANE_CASSANDRA_KEY_FILE` | certificate and key of this client |
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a password without a user, and for a file that cannot be read.
    pub fn environment(self) -> Result<Self> {
        self.variables(|name| {
            std::env::var(format!("TERRANE_CASSANDRA_{name}")).ok().filter(|text| !text.is_empty())
        })
    }

    fn variables(mut self, read: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let password = match read("PASSWORD_FILE") {
            Some(path) => Some(read_password(&PathBuf::from(path))?),
            None => read("PASSWORD"),
        };
        match (read("USER"), password) {
            (None, None) => {}
            (Some(user), password) => self.user = Some((user, password.unwrap_or_default())),
            (None, Some(_)) => {
                let why = "the environment has a password without TERRANE_CASSANDRA_USER";
                return Err(unsupported("credentials", why));
            }
        }

        let path = |name: &str| read(name).map(PathBuf::from);
        let given = Tls {
            ca_file: path("CA_FILE"),
            cert_file: path("CERT_FILE"),
            key_file: path("KEY_FILE"),
        };
        if given != Tls::default() || read("TLS").is_some_and(|text| text == "true") {
            self.tls = Some(given);
        }

        Ok(self)
    }

    /// The keyspace, `terrane` unless told. Opening for writing creates a missing one.
    pub fn keyspace(self, keyspace: impl Into<String>) -> Self {
        Self { keyspace: keyspace.into(), ..self }
    }

    /// The name of the store, `main` unless told. Stores of different names are independent.
    pub fn store(self, store: impl Into<String>) -> Self {
        Self { store: store.into(), ..self }
    }

    /// The datacenter whose nodes alone take part in reads and commits (`LOCAL_QUORUM`,
    /// `LOCAL_SERIAL`); all nodes unless told (`QUORUM`, `SERIAL`). Fixed when the store is
    /// created.
    pub fn datacenter(self, name: Option<String>) -> Self {
        Self { datacenter: name, ..self }
    }

    /// Replicas in each datacenter of a keyspace that opening creates, 3 unless told.
    pub fn replication(self, replicas: u32) -> Self {
        Self { replication: replicas, ..self }
    }

    /// User and password.
    pub fn user(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some((user.into(), password.into())), ..self }
    }

    /// Encrypts connections, and checks that each node's certificate names its IP address.
    pub fn tls(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// The address under which this client reaches a node that tells the others `node`, for
    /// clusters behind a translation of addresses. Nodes that are not named are reached as they
    /// say.
    pub fn address(mut self, node: SocketAddr, reached: SocketAddr) -> Self {
        self.translation.insert(node, reached);
        self
    }

    /// How long the right to write outlives a process that died, 30 seconds unless told. The
    /// servers count whole seconds.
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// How long a version is kept after a later commit replaced it, for readers in other processes:
    /// 60 seconds unless told, and no less than the lease.
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention, ..self }
    }

    /// How long an attempt of a request may take, 10 seconds unless told, and for how long requests
    /// are repeated while too few replicas answer, 60 seconds unless told.
    pub fn timeouts(self, request: Duration, patience: Duration) -> Self {
        Self { request_timeout: request, patience, ..self }
    }

    /// Durability that commits must have; default none. The settings of the nodes decide the
    /// durability; opening fails if they give less.
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// Opens an existing store for reading, beside a process that writes it.
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Takes the right to write away from another process without waiting for the end of its lease.
    /// The other process is fenced: none of its commits succeeds any more.
    pub fn take_over(self) -> Self {
        Self { takes_over: true, ..self }
    }

    /// The names of the indexes.
    pub fn indexes(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { indexes: names.into_iter().map(Into::into).collect(), ..self }
    }

    /// Refuses what no cluster could honour, before there is a connection.
    ///
    /// # Errors
    /// [`Error::Unsupported`], with the option and why.
    pub fn check(&self) -> Result<()> {
        if self.contact_points.is_empty() {
            return Err(unsupported("contact points", "none is given"));
        }

        let is_lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_keyspace = self.keyspace.len() <= KEYSPACE_CHARS_MAX
            && self.keyspace.starts_with(|first: char| first.is_ascii_lowercase())
            && self.keyspace.chars().all(is_lower);
        if !is_keyspace {
            let why =
                format!("takes 1 to {KEYSPACE_CHARS_MAX} of a-z, 0-9 and _, the first a letter");
            return Err(unsupported(format!("keyspace {:?}", self.keyspace), why));
        }

        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let is_store =
            (1..=STORE_CHARS_MAX).contains(&self.store.len()) && self.store.chars().all(is_name);
        if !is_store {
            let why = format!("takes 1 to {STORE_CHARS_MAX} of a-z, A-Z, 0-9, _, - and .");
            return Err(unsupported(format!("store {:?}", self.store), why));
        }

        let times = [
            ("lease", self.lease, Duration::from_secs(3)),
            ("retention", self.retention, self.lease),
            ("request timeout", self.request_timeout, Duration::from_millis(100)),
            ("patience", self.patience, Duration::from_millis(100)),
        ];
        for (option, time, min) in times {
            if !(min..=Duration::from_secs(24 * 3_600)).contains(&time) {
                let why = format!("takes {min:?} to 24 hours");
                return Err(unsupported(option, why));
            }
        }

        let indexes: Vec<&str> = self.indexes.iter().map(String::as_str).collect();
        check_indexes(NAME, &indexes)
    }
}

/// The first line of a file.
fn read_password(path: &std::path::Path) -> Result<String> {
    let refused = |why: String| -> Error {
        unsupported(format!("the file of the password {}", path.display()), why)
    };
    let bytes = fs::metadata(path).map_err(|error| refused(error.to_string()))?.len();
    if bytes > PASSWORD_BYTES_MAX {
        return Err(refused(format!("has more than {PASSWORD_BYTES_MAX} bytes")));
    }
    let text = fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
    match text.lines().next().filter(|line| !line.is_empty()) {
        Some(line) => Ok(line.to_owned()),
        None => Err(refused("has no password on its first line".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_hosts_keyspace_and_store() {
        let options = Options::parse("cassandra://a:9042,b/ledger/main-1?dc=east&replication=5");
        let options = options.unwrap();
        assert_eq!(options.contact_points, ["a:9042", "b"]);
        assert_eq!((options.keyspace.as_str(), options.store.as_str()), ("ledger", "main-1"));
        assert_eq!((options.datacenter.as_deref(), options.replication), (Some("east"), 5));
        options.check().unwrap();

        let options = Options::parse("cassandra://a").unwrap();
        assert_eq!((options.keyspace.as_str(), options.store.as_str()), ("terrane", "main"));
        assert_eq!((options.tls, options.replication), (None, 3));
    }

    #[test]
    fn what_no_cluster_could_honour_is_refused_without_repeating_the_address() {
        let addresses = [
            "cassandra:secret",
            "redis://secret",
            "cassandra://secret@host",
            "cassandra://host/a/b/secret",
            "cassandra://host?secret=1",
            "cassandra://host?replication=0",
            "cassandra://host?tls=secret",
        ];
        for address in addresses {
            let error = Options::parse(address).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{address}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }

        let base = || Options::contact_points(["a"]);
        let wrong = [
            Options::contact_points([""; 0]),
            base().keyspace("Upper"),
            base().keyspace("a; DROP"),
            base().store("a'b"),
            base().store(""),
            base().lease(Duration::from_secs(1)),
            base().lease(Duration::from_secs(90)),
            base().indexes(["No Name"]),
        ];
        for options in wrong {
            let refused = options.check();
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{options:?}: {refused:?}");
        }
    }

    #[test]
    fn credentials_and_certificates_come_from_the_environment() {
        let base = || Options::contact_points(["a"]);
        let of = |variables: &'static [(&str, &str)]| {
            base().variables(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };

        let options = of(&[]).unwrap();
        assert_eq!((options.user, options.tls), (None, None));
        let options = of(&[("USER", "me"), ("PASSWORD", "secret")]).unwrap();
        assert!(!format!("{options:?}").contains("secret"));
        assert_eq!(options.user, Some(("me".to_owned(), "secret".to_owned())));
        let options = of(&[("TLS", "true")]).unwrap();
        assert_eq!(options.tls, Some(Tls::default()));
        let options = of(&[("CA_FILE", "/ca.pem")]).unwrap();
        assert_eq!(options.tls.unwrap().ca_file, Some(PathBuf::from("/ca.pem")));
        assert!(of(&[("PASSWORD", "secret")]).is_err(), "a password of nobody");
        let error = of(&[("USER", "me"), ("PASSWORD_FILE", "/no/such/file")]).unwrap_err();
        assert!(error.to_string().contains("/no/such/file"), "{error}");
    }

    #[test]
    fn a_password_is_the_first_line_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        fs::write(&path, "secret\nmore\n").unwrap();
        assert_eq!(read_password(&path).unwrap(), "secret");
        fs::write(&path, "\n").unwrap();
        assert!(read_password(&path).is_err());
    }
}
