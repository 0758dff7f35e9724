//! Says how many durable commits a second a store makes: one thread with an fsync each, several
//! threads that share them, and beside them what the device gives: as many bytes appended and
//! synced by hand.
//!
//! `cargo run --release --example commits [COMMITS [THREADS [DIR [ROUNDS]]]]`; COMMITS of one
//! update each (key of 34 bytes, value of 60) in each round and way, all counted at the end. DIR is
//! to be removed by the caller.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use terrane::io::{Access, Disk, OpenMode, RealDisk};
use terrane::lsm::{Durability, NamedTable, Store, StoreOptions, TableConfig, TableName, Update};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes that the log takes for a commit of one such update.
const RECORD_BYTES: usize = 152;

fn key(thread: u64, number: u64) -> [u8; 34] {
    let mut key = [b'='; 34];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[8..16].copy_from_slice(&thread.to_le_bytes());
    key
}

fn per_second(count: u64, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

/// Appends and syncs.
fn by_hand(dir: &Path, commits: u64) -> Outcome<f64> {
    let path = dir.join("by-hand");
    let file = RealDisk::auto().open(&path, OpenMode::Truncate, Access::Buffered)?;
    let start = Instant::now();
    for _ in 0..commits {
        file.append(&[7; RECORD_BYTES])?;
        file.sync()?;
    }
    Ok(per_second(commits, start))
}

fn commit(table: &NamedTable, store: &Store, key: [u8; 34], how: Durability) -> Outcome<()> {
    let update = [(key, Update::Insert(&[7; 60]))];
    Ok(store.commit_with(&[(table, &update[..])], how)?.wait()?)
}

fn each(store: &Store, table: &NamedTable, numbers: std::ops::Range<u64>) -> Outcome<f64> {
    let (start, count) = (Instant::now(), numbers.end - numbers.start);
    for number in numbers {
        commit(table, store, key(u64::MAX, number), Durability::Each)?;
    }
    Ok(per_second(count, start))
}

fn group(
    store: &Store,
    table: &NamedTable,
    numbers: &std::ops::Range<u64>,
    threads: u64,
) -> Outcome<f64> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut mine = numbers.clone().filter(|number| number % threads == thread);
                    mine.try_for_each(|number| {
                        commit(table, store, key(thread, number), Durability::Group)
                    })
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread failed")?)
    })?;

    Ok(per_second(numbers.end - numbers.start, start))
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let commits: u64 = args.next().map_or(Ok(2_000), |text| text.parse())?;
    let threads: u64 = args.next().map_or(Ok(8), |text| text.parse())?;
    let dir = args.next().unwrap_or_else(|| "/tmp/terrane-commits".to_owned());
    let rounds: u64 = args.next().map_or(Ok(3), |text| text.parse())?;
    if commits == 0 || threads == 0 {
        return Err("at least one commit and one thread".into());
    }

    let dir = Path::new(&dir);
    std::fs::create_dir_all(dir)?;
    let store = Store::open_dir(dir.join("store"), &StoreOptions::default().create_dir())?;
    let name = TableName::default();

    let table = match store.table(&name) {
        Ok(table) => table,
        Err(_) => store.create_table(&name, &TableConfig::default())?,
    };

    let before = table.view()?.count_exact()?;
    println!("{commits} commits of one update, {threads} threads in a group; commits a second");
    println!("round  by hand     each    group   by hand / each   group / each");

    for round in 0..rounds {
        let first = before + round * commits;
        let numbers = first..first + commits;
        let by_hand = by_hand(dir, commits)?;
        let each = each(&store, &table, numbers.clone())?;
        let group = group(&store, &table, &numbers, threads)?;
        println!(
            "{:5} {by_hand:8.0} {each:8.0} {group:8.0} {:16.2} {:14.2}",
            round + 1,
            by_hand / each,
            group / each
        );
    }

    let count = table.view()?.count_exact()?;
    if count != before + 2 * rounds * commits {
        return Err(format!("{count} entries, not {}", before + 2 * rounds * commits).into());
    }

    Ok(store.close()?)
}
