//! Passwords and TLS on a cluster that asks for them.
//!
//! A tap before each node notes what clients send. A child process has the authority of the nodes'
//! certificate from its environment alone, as a program has.

use std::error::Error as _;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use terrane_cassandra::{Cassandra, Options, Tls};
use terrane_kv::{Database, Error, Table};

use crate::setup::{Cluster, cluster, commit, credentials, folder, store_name};

/// Variables of the child: the store, and the taps.
const STORE: &str = "TERRANE_TEST_SECURE_STORE";
const TAPS: &str = "TERRANE_TEST_SECURE_TAPS";
/// First byte of a connection over TLS: the kind of its first record, a handshake.
const HANDSHAKE: u8 = 22;
/// A value that is looked for in what clients send.
const VALUE: &[u8] = b"a value that nobody between may read";

/// Passes connections on to a node, and notes what clients send.
struct Tap {
    address: SocketAddr,
    /// Bytes of clients, by connection.
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Tap {
    fn start(address: &str, node: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let sent: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let noted = sent.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(node)) else { continue };
                let number = {
                    let mut noted = noted.lock().unwrap();
                    noted.push(Vec::new());
                    noted.len() - 1
                };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let noted = noted.clone();
                thread::spawn(move || {
                    pass(from, to, |bytes| noted.lock().unwrap()[number].extend_from_slice(bytes));
                });
                thread::spawn(move || pass(server, client, |_| {}));
            }
        });
        Self { address, sent }
    }

    fn has_sent(&self, wanted: &[u8]) -> bool {
        let sent = self.sent.lock().unwrap();
        sent.iter().any(|bytes| bytes.windows(wanted.len()).any(|window| window == wanted))
    }
}

/// Passes bytes on until either side ends.
fn pass(mut from: TcpStream, mut to: TcpStream, mut note: impl FnMut(&[u8])) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        note(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The other side may be gone first.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A cluster that asks for a password and speaks TLS, and the folder of its certificates.
fn guarded() -> Option<(Cluster, PathBuf)> {
    let cluster = cluster()?;
    let folder = folder().filter(|folder| folder.join("node.pem").exists());
    if folder.is_none() || credentials().is_none() {
        println!("skipped: this cluster has no passwords and certificates of a test");
        return None;
    }
    Some((cluster, folder?))
}

/// Options of a client that reaches the nodes through addresses of this test alone.
fn through(cluster: &Cluster, taps: &[SocketAddr], store: &str) -> Options {
    let options = cluster.options_at(taps.iter().map(ToString::to_string).collect(), store);
    let pairs = cluster.nodes.iter().zip(taps);
    pairs.fold(options, |options, (&node, &tap)| options.address(node, tap))
}

/// The child: commits and reads with what its environment has.
#[test]
fn child_with_an_environment() {
    let Ok(store) = std::env::var(STORE) else { return };
    let Some(cluster) = cluster() else { return };
    let taps = std::env::var(TAPS).unwrap();
    let taps: Vec<SocketAddr> = taps.split(',').map(|tap| tap.parse().unwrap()).collect();
    let database = Cassandra::open(through(&cluster, &taps, &store)).unwrap();
    commit(&database, &[(b"key", Some(VALUE))]).unwrap();
    let found = database.reader().unwrap().get(Table::Main, b"key").unwrap();
    assert_eq!(found.as_deref(), Some(VALUE));
    database.close().unwrap();
    println!("committed");
}

#[test]
fn with_tls_of_the_environment_nobody_between_reads_values_or_passwords() {
    let Some((cluster, folder)) = guarded() else { return };
    let (_, password) = credentials().unwrap();
    for is_tls in [false, true] {
        let store = store_name("secure");
        let taps: Vec<Tap> =
            cluster.nodes.iter().map(|&node| Tap::start("127.0.0.1:0", node)).collect();
        let addresses: Vec<String> = taps.iter().map(|tap| tap.address.to_string()).collect();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["secure::child_with_an_environment", "--exact", "--nocapture"]);
        child.env(STORE, &store).env(TAPS, addresses.join(","));
        if is_tls {
            child.env("TERRANE_CASSANDRA_CA_FILE", folder.join("node.pem"));
        }
        let output = child.output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.contains("committed"), "{told}{errors}");

        // Each connection begins with a handshake, or none does. In plain text, what the child has
        // sent can be read.
        let mut firsts = Vec::new();
        for tap in &taps {
            let sent = tap.sent.lock().unwrap();
            firsts.extend(sent.iter().filter_map(|bytes| bytes.first().copied()));
        }
        assert!(!firsts.is_empty(), "the child has come through the taps");
        assert!(firsts.iter().all(|first| (*first == HANDSHAKE) == is_tls), "{firsts:?}");
        assert_eq!(taps.iter().any(|tap| tap.has_sent(VALUE)), !is_tls);
        assert_eq!(taps.iter().any(|tap| tap.has_sent(password.as_bytes())), !is_tls);
        assert_eq!(taps.iter().any(|tap| tap.has_sent(b"SELECT")), !is_tls);
    }
}

#[test]
fn another_certificate_another_address_and_a_wrong_password_are_refused() {
    let Some((cluster, folder)) = guarded() else { return };
    let store = store_name("refused");
    let tls = |name: &str| Tls { ca_file: Some(folder.join(name)), ..Tls::default() };
    Cassandra::open(cluster.options(&store).tls(tls("node.pem"))).unwrap().close().unwrap();

    // No node has a certificate of that authority.
    let refused = Cassandra::open(cluster.options(&store).tls(tls("other.pem"))).unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }), "{refused:?}");

    // The certificate is right, but not for the address that the node is reached at.
    // The driver reaches all nodes at the port of the contact point.
    let port = cluster.nodes[0].port();
    let tap = Tap::start(&format!("127.0.0.9:{port}"), cluster.nodes[0]);
    let elsewhere = cluster.options_at(vec![tap.address.to_string()], &store);
    let refused = Cassandra::open(elsewhere.clone().tls(tls("node.pem"))).unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }), "{refused:?}");
    assert!(!tap.has_sent(credentials().unwrap().1.as_bytes()));
    Cassandra::open(elsewhere).unwrap().close().unwrap();

    // The error tells everything but the password.
    let wrong = cluster.options(&store).user("cassandra", "a-wrong-password");
    let refused = Cassandra::open(wrong).unwrap_err();
    let mut texts = vec![format!("{refused} {refused:?}")];
    let mut cause = refused.source();
    while let Some(error) = cause {
        texts.push(format!("{error} {error:?}"));
        cause = error.source();
    }
    let texts = texts.join("\n");
    assert!(!texts.contains("a-wrong-password"), "{texts}");
    assert!(texts.contains("assword"), "{texts}");
}
