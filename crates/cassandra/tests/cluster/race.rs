//! Two writers that take a store from each other again and again, beside a reader.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use terrane_cassandra::Cassandra;
use terrane_kv::{Database, Error, Table};

use crate::setup::{Cluster, cluster, entries, store_name};

/// Keys that each commit sets to the same value.
const KEYS: u8 = 6;
/// Seconds of the race: variable of the environment, and the default.
const SECONDS: (&str, u64) = ("TERRANE_TEST_RACE_SECONDS", 60);

/// Outcomes of the commits of a writer.
#[derive(Default)]
struct Commits {
    acknowledged: Vec<u64>,
    /// By slow nodes: the caller was told that the commit has not taken place.
    refused: Vec<u64>,
    fenced: u64,
}

/// Commits of one writer until the end; takes the store again whenever it was fenced.
fn write(cluster: &Cluster, store: &str, name: u8, is_done: &AtomicBool) -> Commits {
    let mut commits = Commits::default();
    let mut number = 0_u64;
    while !is_done.load(Ordering::Acquire) {
        let database = match Cassandra::open(cluster.options(store).take_over()) {
            Ok(database) => database,
            Err(Error::Locked { .. } | Error::Busy { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        loop {
            number += 1;
            match commit(&database, name, number) {
                Ok(()) => commits.acknowledged.push(number),
                Err(Error::Locked { .. }) => {
                    commits.fenced += 1;
                    break;
                }
                Err(Error::BackEnd { .. } | Error::Busy { .. }) => commits.refused.push(number),
                Err(error) => panic!("writer {name}, commit {number}: {error}"),
            }
            if is_done.load(Ordering::Acquire) {
                break;
            }
        }
    }
    commits
}

fn commit(database: &dyn Database, name: u8, number: u64) -> terrane_kv::Result<()> {
    let mut writer = database.writer()?;
    let value = [&[name][..], &number.to_le_bytes()].concat();
    for key in 0..KEYS {
        writer.overwrite(Table::Main, &[key, 200, key], &value)?;
    }
    // Every commit that took place stays visible by a key of its own.
    writer.put(Table::Index("log"), &value, &[])?;
    writer.commit().map(drop)
}

#[test]
fn of_two_writers_one_is_fenced_and_no_commit_is_torn_or_lost() {
    let Some(cluster) = cluster() else { return };
    let seconds = std::env::var(SECONDS.0).ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(SECONDS.1));
    let store = store_name("race");
    drop(cluster.open(&store));

    let is_done = AtomicBool::new(false);
    let looks = AtomicU64::new(0);
    let [first, second] = thread::scope(|scope| {
        let writers = [1, 2].map(|name| {
            scope.spawn({
                let (cluster, store, is_done) = (&cluster, &store, &is_done);
                move || write(cluster, store, name, is_done)
            })
        });

        let reading = Cassandra::open(cluster.options(&store).read_only()).unwrap();
        let start = Instant::now();
        while start.elapsed() < time {
            let reader = reading.reader().unwrap();
            let values = entries(&*reader, Table::Main);
            assert!(values.iter().all(|(_, value)| *value == values[0].1), "a torn commit");
            assert!(values.is_empty() || values.len() == usize::from(KEYS));
            if let Some((_, value)) = values.first() {
                let logged = reader.get(Table::Index("log"), value).unwrap();
                assert!(logged.is_some(), "the log of the commit is missing");
            }
            looks.fetch_add(1, Ordering::Relaxed);
        }
        is_done.store(true, Ordering::Release);
        writers.map(|writer| writer.join().unwrap())
    });

    // All that was acknowledged is there, and nothing that was refused.
    let database = Cassandra::open(cluster.options(&store).take_over()).unwrap();
    let logged = entries(&*database.reader().unwrap(), Table::Index("log"));
    for (name, commits) in [(1_u8, &first), (2, &second)] {
        let is_logged = |number: &u64| {
            let key = [&[name][..], &number.to_le_bytes()].concat();
            logged.iter().any(|(found, _)| *found == key)
        };
        let lost = commits.acknowledged.iter().find(|number| !is_logged(number));
        assert_eq!(lost, None, "a commit of writer {name} that was acknowledged");
        let found = commits.refused.iter().find(|number| is_logged(number));
        assert_eq!(found, None, "a commit of writer {name} that was refused");
    }
    assert!(database.check().unwrap().is_empty());
    for Commits { acknowledged, refused, fenced } in [&first, &second] {
        let (acknowledged, refused) = (acknowledged.len(), refused.len());
        println!("{acknowledged} commits acknowledged, {refused} refused; fenced {fenced} times");
    }
    println!("{} found, {} looks", logged.len(), looks.load(Ordering::Relaxed));
    assert!(first.fenced + second.fenced > 0);
    assert!(!first.acknowledged.is_empty() && !second.acknowledged.is_empty());
}
