//! Divided values, collection, readers of other processes, removal of stores.

use std::sync::Arc;

use terrane_cassandra::{Cassandra, Options};
use terrane_kv::{Database, Error, Table};

use crate::setup::{cluster, commit, entries, store_name};

#[test]
fn a_second_process_is_locked_out_until_the_store_is_closed() {
    let Some(cluster) = cluster() else { return };
    let store = store_name("locked");
    let database = cluster.open(&store);
    let refused = Cassandra::open(cluster.options(&store)).unwrap_err();
    assert!(matches!(refused, Error::Locked { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
    database.close().unwrap();
    let database = cluster.open(&store);
    commit(&*database, &[(b"key", Some(b"value"))]).unwrap();

    // One that takes it over shuts the other out for good.
    let second = Cassandra::open(cluster.options(&store).take_over()).unwrap();
    commit(&second, &[(b"key", Some(b"second"))]).unwrap();
    let refused = commit(&*database, &[(b"key", Some(b"first"))]).unwrap_err();
    assert!(matches!(refused, Error::Locked { .. }), "{refused}");
    assert!(matches!(database.writer().err(), Some(Error::Locked { .. })));
    let found = second.reader().unwrap().get(Table::Main, b"key").unwrap();
    assert_eq!(found.as_deref(), Some(&b"second"[..]));
}

#[test]
fn a_reader_of_another_process_sees_whole_commits_and_writes_nothing() {
    let Some(cluster) = cluster() else { return };
    let store = store_name("reader");
    let absent = Cassandra::open(cluster.options(&store).read_only());
    assert!(matches!(absent, Err(Error::Unsupported { .. })));

    let database = cluster.open(&store);
    commit(&*database, &[(b"a", Some(b"1")), (b"b", Some(b"1"))]).unwrap();
    let reading = Cassandra::open(cluster.options(&store).read_only()).unwrap();
    assert!(matches!(reading.writer().err(), Some(Error::ReadOnly { .. })));
    let before = reading.reader().unwrap();
    commit(&*database, &[(b"a", Some(b"2")), (b"b", None)]).unwrap();
    assert_eq!(before.get(Table::Main, b"b").unwrap().as_deref(), Some(&b"1"[..]));
    let after = reading.reader().unwrap();
    assert_eq!(entries(&*after, Table::Main), [(b"a".to_vec(), b"2".to_vec())]);
}

/// A snapshot of another process is refused once versions that it needs are gone, and of a value
/// that was replaced it never gives another.
#[test]
fn a_reader_that_is_too_old_is_told_so() {
    let Some(cluster) = cluster() else { return };
    let store = store_name("old-reader");
    let database = cluster.open(&store);
    commit(&*database, &[(b"key", Some(b"0"))]).unwrap();
    let reading = Cassandra::open(cluster.options(&store).read_only()).unwrap();
    let old = reading.reader().unwrap();

    for number in 1..u8::MAX {
        commit(&*database, &[(b"key", Some(&[number]))]).unwrap();
        database.compact().unwrap();
        match old.get(Table::Main, b"key") {
            Ok(found) => assert_eq!(found.as_deref(), Some(&b"0"[..])),
            Err(error) => {
                assert!(matches!(error, Error::Busy { .. }), "{error}");
                println!("after {number} commits");
                return;
            }
        }
    }
    panic!("nothing was collected");
}

/// A snapshot of the writing process keeps what it sees, however long it lives.
#[test]
fn a_snapshot_of_the_writer_holds_the_collector_back() {
    let Some(cluster) = cluster() else { return };
    let store = store_name("snapshot");
    let database = cluster.open(&store);
    let big = vec![7; 700_000];
    commit(&*database, &[(b"key", Some(b"0")), (b"gone", Some(&big))]).unwrap();
    let old = database.reader().unwrap();
    commit(&*database, &[(b"gone", None)]).unwrap();
    let bytes = database.disk_bytes().unwrap();

    let start = std::time::Instant::now();
    for number in 1.. {
        commit(&*database, &[(b"key", Some(&[number as u8]))]).unwrap();
        database.compact().unwrap();
        assert_eq!(old.get(Table::Main, b"key").unwrap().as_deref(), Some(&b"0"[..]));
        assert_eq!(old.get(Table::Main, b"gone").unwrap().as_deref(), Some(big.as_slice()));
        // Three times the retention.
        if start.elapsed().as_secs() >= 9 {
            break;
        }
    }
    drop(old);
    while database.disk_bytes().unwrap() > bytes / 2 {
        database.compact().unwrap();
    }
    assert_eq!(database.reader().unwrap().count(Table::Main).unwrap(), 1);
}

#[test]
fn divided_values_of_all_sizes_come_back() {
    let Some(cluster) = cluster() else { return };
    let database = cluster.open(&store_name("big"));
    let part = 256 << 10;
    for size in [64 << 10, (64 << 10) + 1, part - 1, part, part + 1, 3 * part, 20 << 20] {
        let value: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
        commit(&*database, &[(b"big", Some(&value)), (b"small", Some(b"s"))]).unwrap();
        let reader = database.reader().unwrap();
        assert!(
            reader.get(Table::Main, b"big").unwrap().as_deref() == Some(value.as_slice()),
            "{size}"
        );
        let found = entries(&*reader, Table::Main);
        assert!(found[0].1 == value && found.len() == 2);
    }
    commit(&*database, &[(b"big", None)]).unwrap();
    assert_eq!(entries(&*database.reader().unwrap(), Table::Main).len(), 1);
}

#[test]
fn stores_of_a_keyspace_are_independent_and_one_can_be_removed() {
    let Some(cluster) = cluster() else { return };
    let (kept, removed) = (store_name("kept"), store_name("removed"));
    for store in [&kept, &removed] {
        let database = cluster.open(store);
        let big = vec![1; 400_000];
        commit(&*database, &[(b"name", Some(store.as_bytes())), (b"big", Some(&big))]).unwrap();
        commit(&*database, &[(b"name", Some(store.as_bytes()))]).unwrap();
    }

    Cassandra::remove(cluster.options(&removed)).unwrap();
    let absent = Cassandra::open(cluster.options(&removed).read_only());
    assert!(matches!(absent, Err(Error::Unsupported { .. })));
    let database = cluster.open(&removed);
    assert_eq!(entries(&*database.reader().unwrap(), Table::Main), [], "made anew");

    let database: Arc<dyn Database> = cluster.open(&kept);
    let found = database.reader().unwrap().get(Table::Main, b"name").unwrap();
    assert_eq!(found.as_deref(), Some(kept.as_bytes()));
}

#[test]
fn what_the_store_or_the_nodes_cannot_give_is_refused() {
    let Some(cluster) = cluster() else { return };
    let store = store_name("refused");
    drop(cluster.open(&store));
    let is_refused = |options: Options| {
        let refused = Cassandra::open(options);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    };
    is_refused(cluster.options(&store).datacenter(Some("elsewhere".to_owned())));
    is_refused(
        cluster
            .options(&store)
            .lease(std::time::Duration::from_secs(4))
            .retention(std::time::Duration::from_secs(4)),
    );

    let database = cluster.open(&store);
    let is_durable = database.guarantee().durability == terrane_kv::Durability::Each;
    println!("{}", database.guarantee().text);
    drop(database);
    let durable = Cassandra::open(cluster.options(&store).durability(terrane_kv::Durability::Each));
    assert_eq!(durable.is_ok(), is_durable);
}
