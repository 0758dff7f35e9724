//! Commits whose conditional write is lost, or whose answer is: each is found to be done or not
//! done, and never both.

use std::time::Duration;

use terrane_cassandra::Cassandra;
use terrane_kv::{Database, Error, Table};

use crate::proxy::{Policy, Proxies};
use crate::setup::{Cluster, cluster, commit, store_name};

fn open(cluster: &Cluster, proxies: &Proxies, patience: Duration) -> Cassandra {
    let options = cluster.options_at(proxies.points(), &store_name("outcome"));
    let options = options.timeouts(Duration::from_millis(700), patience);
    Cassandra::open(proxies.through(options)).unwrap()
}

fn value(database: &dyn Database) -> Option<Vec<u8>> {
    database.reader().unwrap().get(Table::Main, b"key").unwrap()
}

#[test]
fn a_commit_whose_answer_is_lost_is_found_to_be_done() {
    let Some(cluster) = cluster() else { return };
    let proxies = Proxies::start(&cluster.nodes);
    let database = open(&cluster, &proxies, Duration::from_secs(20));
    let mut last = 0;
    for number in 0..5_u8 {
        proxies.set(Policy::LoseAnswer);
        let receipt = commit(&database, &[(b"key", Some(&[number]))]).unwrap();
        assert!(last < receipt);
        last = receipt;
        assert_eq!(proxies.faults(), u32::from(number) + 1);
        assert_eq!(value(&database).as_deref(), Some(&[number][..]));
    }
    assert_eq!(database.counts().transactions, 5);
}

#[test]
fn a_commit_that_is_lost_has_not_taken_place_and_the_next_one_does() {
    let Some(cluster) = cluster() else { return };
    let proxies = Proxies::start(&cluster.nodes);
    let database = open(&cluster, &proxies, Duration::from_secs(20));
    commit(&database, &[(b"key", Some(b"0"))]).unwrap();
    for number in 1..5_u8 {
        proxies.set(Policy::LoseCommit);
        let error = commit(&database, &[(b"key", Some(b"lost")), (b"other", Some(b"lost"))]);
        assert!(matches!(error, Err(Error::BackEnd { .. })), "{error:?}");
        assert_ne!(value(&database).as_deref(), Some(&b"lost"[..]));

        commit(&database, &[(b"key", Some(&[number]))]).unwrap();
        assert_eq!(value(&database).as_deref(), Some(&[number][..]));
        assert_eq!(database.reader().unwrap().count(Table::Main).unwrap(), 1);
    }
    assert_eq!(database.counts().transactions, 5);
}

/// The node gets the request only after the writer was told that the commit has not taken place.
#[test]
fn a_commit_that_arrives_late_does_not_apply() {
    let Some(cluster) = cluster() else { return };
    let proxies = Proxies::start(&cluster.nodes);
    let database = open(&cluster, &proxies, Duration::from_secs(20));
    for number in 0..5_u8 {
        proxies.set(Policy::HoldCommit);
        let error = commit(&database, &[(b"key", Some(b"late"))]);
        assert!(matches!(error, Err(Error::BackEnd { .. })), "{error:?}");
        assert_eq!(proxies.release(), 1);
        assert_ne!(value(&database).as_deref(), Some(&b"late"[..]));
        commit(&database, &[(b"key", Some(&[number]))]).unwrap();

        // Another process sees the same.
        let reading = cluster.options(database_store(&database).as_str()).read_only();
        let reading = Cassandra::open(reading).unwrap();
        assert_eq!(value(&reading).as_deref(), Some(&[number][..]));
    }
}

fn database_store(database: &Cassandra) -> String {
    let settings = database.settings();
    let store = settings.into_iter().find(|(name, _)| *name == "store");
    store.unwrap().1
}

#[test]
fn an_outcome_that_cannot_be_found_is_unknown_until_the_cluster_is_back() {
    let Some(cluster) = cluster() else { return };
    let proxies = Proxies::start(&cluster.nodes);
    let database = open(&cluster, &proxies, Duration::from_secs(1));
    commit(&database, &[(b"key", Some(b"before"))]).unwrap();

    proxies.set(Policy::LoseAnswerAndCut);
    let error = commit(&database, &[(b"key", Some(b"after"))]).unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert!(database.last_commit().is_none(), "nobody knows");
    assert!(database.reader().is_err(), "the cluster is away");

    // The first reader after it finds out.
    proxies.set(Policy::Open);
    let found = loop {
        match database.reader() {
            Ok(reader) => break reader.get(Table::Main, b"key").unwrap(),
            Err(Error::Unknown { .. } | Error::Busy { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(found.as_deref(), Some(&b"after"[..]));
    assert_eq!(database.counts().transactions, 2);
    commit(&database, &[(b"key", Some(b"next"))]).unwrap();
    assert_eq!(value(&database).as_deref(), Some(&b"next"[..]));
}
