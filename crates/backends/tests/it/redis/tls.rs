//! TLS, between the back-end and servers that the tests start. `cargo test` builds none of it: see
//! `docs/testing.md`.
//!
//! The certificates were made for these tests, and nothing else trusts them; they are valid from
//! 2020 to 2119. `server.pem` is of `localhost` and 127.0.0.1, `elsewhere.pem` of
//! `elsewhere.invalid`, both with `server.key` and signed by `ca.pem`, whose key was not kept.
//! `other-ca.pem` has signed neither.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use terrane_backends::redis::server::{Cluster, Server};
use terrane_backends::redis::{Options, Redis};
use terrane_kv::{Database, Error};

use super::{can_run, put, read};

const FILES: [(&str, &str); 5] = [
    ("ca.pem", include_str!("tls/ca.pem")),
    ("other-ca.pem", include_str!("tls/other-ca.pem")),
    ("server.pem", include_str!("tls/server.pem")),
    ("elsewhere.pem", include_str!("tls/elsewhere.pem")),
    ("server.key", include_str!("tls/server.key")),
];

/// How often another port is tried where somebody else took the first.
const PORTS_TRIED_MAX: usize = 5;

/// A directory with the certificates, and for what servers keep.
fn certificates() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in FILES {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// The arguments of a server that takes TLS at `port`, beside its other one.
fn arguments(dir: &Path, certificate: &str, port: u16) -> Vec<String> {
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let pairs = [
        ("--tls-port", port.to_string()),
        ("--tls-cert-file", file(certificate)),
        ("--tls-key-file", file("server.key")),
        ("--tls-ca-cert-file", file("ca.pem")),
        ("--tls-auth-clients", "no".to_owned()),
        ("--requirepass", "secret-word".to_owned()),
    ];
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

/// Starts something at a port that is free, or was a moment ago.
fn at_a_free_port<T>(start: impl Fn(u16) -> std::io::Result<T>) -> (T, u16) {
    for _ in 1..PORTS_TRIED_MAX {
        let port = free_port();
        if let Ok(started) = start(port) {
            return (started, port);
        }
    }
    let port = free_port();
    (start(port).unwrap(), port)
}

struct Encrypted {
    _server: Server,
    port: u16,
    dir: tempfile::TempDir,
}

/// Starts a server with a certificate, or says that the test is skipped.
fn start(certificate: &str) -> Option<Encrypted> {
    if !can_run() {
        return None;
    }
    let dir = certificates();
    let (server, port) = at_a_free_port(|port| {
        let arguments = arguments(dir.path(), certificate, port);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Server::start(dir.path(), &arguments)
    });
    Some(Encrypted { _server: server, port, dir })
}

impl Encrypted {
    fn url(&self, host: &str) -> String {
        format!("rediss://:secret-word@{host}:{}/", self.port)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn open(&self, host: &str, ca_file: Option<&str>) -> Result<Redis, Error> {
        let ca_file = ca_file.map(|name| self.path(name));
        Redis::open(Options::server(self.url(host)).ca_file(ca_file))
    }
}

/// That opening failed with an error that says so, and no password.
fn refused(opened: Result<Redis, Error>, says: &str) {
    let error = opened.unwrap_err();
    let mut shown = format!("{error} {error:?}");
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        shown = format!("{shown}: {error}");
        source = error.source();
    }
    assert!(matches!(error, Error::BackEnd { .. } | Error::Unsupported { .. }), "{shown}");
    assert!(shown.contains(says), "{shown}");
    assert!(!shown.contains("secret-word"), "{shown}");
}

#[test]
fn a_store_is_written_and_read_over_tls() {
    let Some(server) = start("server.pem") else { return };
    let database = server.open("127.0.0.1", Some("ca.pem")).unwrap();
    assert!(database.settings().contains(&("tls", "true".to_owned())));
    // More than a record of TLS has.
    let value: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
    put(&database, "key", &value).unwrap();
    drop(database);
    let database = server.open("localhost", Some("ca.pem")).unwrap();
    assert_eq!(read(&database, "key").unwrap().unwrap(), value);
    let shown = format!("{database:?} {:?}", database.settings());
    assert!(!shown.contains("secret-word"), "{shown}");
}

#[test]
fn a_server_of_another_authority_is_refused() {
    let Some(server) = start("server.pem") else { return };
    refused(server.open("127.0.0.1", Some("other-ca.pem")), "UnknownIssuer");
    // No authority of the system has signed it.
    assert!(matches!(server.open("127.0.0.1", None), Err(Error::BackEnd { .. })));
    server.open("127.0.0.1", Some("ca.pem")).unwrap();
}

#[test]
fn a_server_whose_certificate_is_of_another_host_is_refused() {
    let Some(server) = start("elsewhere.pem") else { return };
    refused(server.open("127.0.0.1", Some("ca.pem")), "not valid for name");
    refused(server.open("localhost", Some("ca.pem")), "not valid for name");
}

#[test]
fn a_server_that_speaks_no_tls_is_refused() {
    let Some(running) = super::start(&[]) else { return };
    let dir = certificates();
    let url = running.server.url().replace("redis://", "rediss://:secret-word@");
    let options = Options::server(url).ca_file(Some(dir.path().join("ca.pem")));
    refused(Redis::open(super::impatient(options)), "connecting");
}

#[test]
fn a_file_without_authorities_is_refused_before_anything_is_sent() {
    let dir = certificates();
    let open = |name: &str| {
        let options = Options::server("rediss://:secret-word@127.0.0.1:1/");
        Redis::open(options.ca_file(Some(dir.path().join(name))))
    };
    refused(open("absent.pem"), "absent.pem");
    refused(open("server.key"), "no certificate");
    fs::write(dir.path().join("cut.pem"), &FILES[0].1[..200]).unwrap();
    refused(open("cut.pem"), "cut.pem");
    let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(dir.path().join("zeros.pem"), text).unwrap();

    refused(open("zeros.pem"), "zeros.pem");
}

/// A cluster of one server, since each needs a port of its own for TLS.
#[test]
fn a_cluster_is_used_over_tls() {
    if !can_run() {
        return;
    }

    let dir = certificates();
    let (cluster, port) = at_a_free_port(|port| {
        let mut arguments = arguments(dir.path(), "server.pem", port);
        arguments.extend(["--tls-cluster", "yes"].map(str::to_owned));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Cluster::start(dir.path(), 1, &arguments)
    });

    let options = Options::cluster([format!("rediss://:secret-word@127.0.0.1:{port}/")]);
    let trusting = |name: &str| options.clone().ca_file(Some(dir.path().join(name)));
    let database = Redis::open(trusting("ca.pem")).unwrap();
    put(&database, "key", b"1").unwrap();
    assert_eq!(read(&database, "key").unwrap().unwrap(), b"1");
    assert!(matches!(Redis::open(trusting("other-ca.pem")), Err(Error::BackEnd { .. })));

    drop((database, cluster));
}
