//! The rules that all back-ends keep.

use std::sync::Arc;

use terrane_backends::redis::server::{Cluster, Server};
use terrane_backends::redis::{Options, Redis};
use terrane_kv::conformance::{Extent, Subject, check};
use terrane_kv::{Database, Durability, Result};
use terrane_testkit::effort::by_effort;

use super::{can_run, shared, start};

/// Stores of one server or cluster, each under a prefix of its own.
struct Stores<'a> {
    options: Options,
    server: &'a Server,
    number: usize,
}

impl Stores<'_> {
    fn open(&self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        let prefix = format!("store-{}", self.number);
        let options = self.options.clone().indexes(indexes.iter().copied());
        Ok(shared(Redis::open(options.prefix(prefix))?))
    }
}

impl Subject for Stores<'_> {
    fn fresh(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        self.server.command(&["FLUSHALL"]).unwrap();
        self.number += 1;
        self.open(indexes)
    }

    fn reopen(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        self.open(indexes)
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

fn conforms(options: Options, server: &Server, extent: &Extent) {
    let report = check(&mut Stores { options, server, number: 0 }, extent);
    let report = report.unwrap_or_else(|failure| panic!("{failure}: {failure:?}"));
    assert!(report.skipped.is_empty(), "{:?}", report.skipped);
}

#[test]
fn a_server_without_a_log_conforms() {
    let Some(running) = start(&[]) else { return };
    let options = Options::server(running.server.url());
    // Histories go entry by entry, each a round trip.
    let whole = Extent { histories: 3, rounds: 40, ..Extent::default() };
    let extent = by_effort(Extent::small(1), whole);
    conforms(options, &running.server, &extent);
}

#[test]
fn a_server_that_syncs_every_commit_conforms() {
    let Some(running) = start(&["--appendonly", "yes", "--appendfsync", "always"]) else { return };
    let options = Options::server(running.server.url()).durability(Durability::Each);
    conforms(options, &running.server, &Extent::small(2));
}

#[test]
fn a_cluster_conforms() {
    if !can_run() {
        return;
    }

    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), 3, &[]).unwrap();
    let mut used: Vec<u16> = Vec::new();
    // A store of its own prefix is in a slot of its own: between them they use all servers.
    for number in 0..8 {
        let prefix = format!("spread-{number}");
        let options = Options::cluster(cluster.urls()).prefix(prefix.clone());
        let database = Redis::open(options).unwrap();
        super::put(&database, "key", b"value").unwrap();
        assert_eq!(super::read(&database, "key").unwrap().unwrap(), b"value");
        for server in cluster.servers() {
            // Only who has the slot answers without an error.
            if server.command(&["HLEN", &format!("{{{prefix}}}:v")]).is_ok() {
                used.push(server.port());
            }
        }
    }

    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 3, "stores on every server");
    let options = Options::cluster([cluster.urls()[0].clone()]);

    for server in cluster.servers() {
        server.command(&["FLUSHALL"]).unwrap();
    }

    conforms(options, &cluster.servers()[0], &Extent::small(3));
}
