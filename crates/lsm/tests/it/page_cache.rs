//! Page cache: memory that is left of a memory budget caches pages and saves reads, and the cache
//! never exceeds the budget by one byte.
//!
//! Method: tables opened with budgets of a part of their size, looked up at random in every way
//! that there is; each value is compared. Then the same while tables and their duplicates are
//! updated.

use std::path::Path;
use std::sync::Arc;

use terrane_io::Disk;
use terrane_lsm::{
    CompactionPolicy, CompactionSchedule, CompactionThread, DiskCache, Error, Lookup,
    MEMORY_BUDGET_MIN, MemoryGoal, OpenOptions, Session, Table, TableConfig,
};

use crate::{SessionDir, buffer_of, clear, content, fill, key, name, spread, value};

const ENTRIES: u64 = 60_000;

/// A session with a snapshot of a table of 6 MB, in few runs.
fn session(place: &SessionDir) -> Session {
    let session = place.open();
    let config = buffer_of(2_000).compaction_policy(CompactionPolicy::Levelling);
    let mut table = session.new_table(&config).unwrap();
    fill(&mut table, 0..ENTRIES);
    table.save_snapshot(&name("full"), "").unwrap();
    session
}

fn open(session: &Session, budget: u64, goal: MemoryGoal) -> Table {
    let options = OpenOptions::default().memory_budget(budget).memory_goal(goal);
    let options = options.disk_cache(DiskCache::None);
    session.open_snapshot_with(&name("full"), "", &options).unwrap()
}

/// Looks up keys at random, in all ways, and compares.
fn look_up(table: &Table, seed: u64, count: u64, entries: u64) {
    let numbers: Vec<u64> = (0..count).map(|n| spread(seed << 32 | n) % entries).collect();
    for (at, numbers) in numbers.chunks(100).enumerate() {
        let keys: Vec<_> = numbers.iter().map(|&number| key(number)).collect();
        let found: Vec<Lookup> = match at % 3 {
            0 => table.get_many(&keys).unwrap(),
            1 => table.submit(&keys).unwrap().wait().unwrap(),
            _ => keys.iter().map(|key| table.get(key).unwrap()).collect(),
        };
        for (number, found) in numbers.iter().zip(found) {
            assert_eq!(found.value(), Some(&*value(*number, 60)), "key {number}");
        }
    }
}

#[test]
fn what_is_left_of_a_budget_saves_as_many_reads_as_it_holds_pages() {
    for place in SessionDir::both() {
        let session = session(&place);
        for budget in [MEMORY_BUDGET_MIN, 1 << 20, 3 << 20, 16 << 20] {
            let table = open(&session, budget, MemoryGoal::Hit);
            look_up(&table, 1, 6_000, ENTRIES);
            let before = table.stats();
            let data_bytes: u64 = before.levels.iter().map(|level| level.bytes).sum();
            look_up(&table, 2, 6_000, ENTRIES);
            let stats = table.stats();
            assert!(stats.memory_bytes() <= budget, "{budget}: {stats:?}");
            let reads = (stats.lookup_reads - before.lookup_reads) as f64 / 6_000.0;
            let hits = (stats.cache_hits - before.cache_hits) as f64 / 6_000.0;
            let share = (stats.cache_bytes as f64 / data_bytes as f64).min(1.0);
            assert!((reads + hits - 1.0).abs() < 0.1, "{budget}: {reads} and {hits}");
            assert!((hits - share).abs() < 0.1, "{budget}: {hits} of {share}");
            assert!(session.stats().cache_hits >= stats.cache_hits);

            // Whatever was not read before comes in; with room for all of it everything is here in
            // the end.
            if budget == 16 << 20 {
                assert!(reads < 0.05 && table.contains(&[key(ENTRIES)]).unwrap() == [false]);
            } else {
                assert!(stats.cache_bytes * 10 >= (budget - 256_000) * 8, "{budget}: {stats:?}");
            }

            // A scan neither uses the cache nor fills it.
            let before = table.stats();
            assert_eq!(content(&table).len() as u64, ENTRIES);

            let after = table.stats();
            assert_eq!(
                (before.cache_hits, before.cache_bytes),
                (after.cache_hits, after.cache_bytes)
            );
        }
    }
}

#[test]
fn without_a_budget_or_with_the_page_cache_of_the_system_there_is_no_cache() {
    let session = session(&SessionDir::simulated(1));
    for options in [
        OpenOptions::default().disk_cache(DiskCache::None),
        OpenOptions::default().memory_budget(16 << 20),
    ] {
        let table = session.open_snapshot_with(&name("full"), "", &options).unwrap();
        look_up(&table, 1, 3_000, ENTRIES);
        look_up(&table, 1, 3_000, ENTRIES);
        let stats = table.stats();
        assert_eq!((stats.cache_bytes, stats.cache_hits), (0, 0));
        assert!(stats.lookup_reads >= 6_000, "{stats:?}");
    }
}

/// The cache is full before every batch, and each batch may begin a merge.
#[test]
fn the_cache_gives_way_to_write_buffers_and_merges_at_once() {
    const BUDGET: u64 = 512 << 10;
    for (compaction_schedule, compaction_thread) in [
        (CompactionSchedule::Incremental, CompactionThread::Background),
        (CompactionSchedule::OneShot, CompactionThread::Caller),
    ] {
        let session = SessionDir::simulated(1).open();
        let config = TableConfig::default()
            .compaction_schedule(compaction_schedule)
            .compaction_thread(compaction_thread)
            .memory_budget(BUDGET)
            .disk_cache(DiskCache::None);
        let check = |table: &Table, what: &str| {
            let stats = table.stats();
            assert!(stats.memory_bytes() <= BUDGET, "{compaction_schedule:?}, {what}: {stats:?}");
        };
        let mut table = session.new_table(&config).unwrap();
        let mut kept = Vec::new();
        let mut hits = 0;
        for round in 0..150_u64 {
            let first = round * 200;
            fill(&mut table, first..first + 200);
            check(&table, "updated");
            look_up(&table, round, 100, first + 200);
            check(&table, "looked up");
            hits = hits.max(table.stats().cache_hits);
            if round % 40 == 20 {
                let mut duplicate = table.fork().unwrap();
                look_up(&duplicate, round, 100, first + 200);
                fill(&mut duplicate, 1 << 40..(1 << 40) + 2_000);
                check(&duplicate, "duplicate");
                kept.push((duplicate, first + 200));
            }
            for (duplicate, _) in &kept {
                check(duplicate, "kept");
            }
        }
        assert!(hits > 1_000 && table.stats().cache_bytes > 0, "{hits}: {:?}", table.stats());
        for (mut duplicate, entries) in kept {
            look_up(&duplicate, 7, 300, entries);
            clear(&mut duplicate, 0..entries);
            assert_eq!(content(&duplicate).len(), 2_000);
            check(&duplicate, "cleared");
        }
        assert_eq!(content(&table).len(), 30_000);
        table.set_config(&config.clone().memory_budget(1 << 20)).unwrap();
        look_up(&table, 8, 3_000, 30_000);
        assert!(table.stats().memory_bytes() > BUDGET && table.stats().memory_bytes() <= 1 << 20);
        table.set_config(&config.disk_cache(DiskCache::All)).unwrap();
        assert_eq!(table.stats().cache_bytes, 0);
    }
}

/// A damaged page is found each time, and once the disk is mended so is what it holds.
#[test]
fn what_is_damaged_does_not_come_into_the_cache() {
    let place = SessionDir::simulated(1);
    let session = session(&place);
    let SessionDir::Simulated { disk } = &place else { unreachable!() };
    let paths = place.runs();
    let whole: Vec<Vec<u8>> = paths.iter().map(|path| disk.read_raw(path).unwrap()).collect();
    let table = open(&session, 16 << 20, MemoryGoal::Balanced);

    let write = |alter: &dyn Fn(&mut Vec<u8>)| {
        for (path, bytes) in paths.iter().zip(&whole) {
            let mut bytes = bytes.clone();
            alter(&mut bytes);
            write_raw(disk, path, &bytes);
        }
    };

    write(&|bytes| bytes[2_000] ^= 1);

    let keys: Vec<_> = (0..ENTRIES).map(key).collect();
    let mut damaged = 0;
    for _ in 0..2 {
        for keys in keys.chunks(40) {
            match table.get_many(keys) {
                Err(Error::Corrupt { .. }) => damaged += 1,
                other => drop(other.unwrap()),
            }
        }
    }

    assert!(damaged >= 20, "{damaged}");
    write(&|_| ());
    look_up(&table, 1, 5_000, ENTRIES);
}

fn write_raw(disk: &Arc<terrane_io::SimDisk>, path: &Path, bytes: &[u8]) {
    assert!(disk.kind(path).unwrap().is_some());
    disk.write_raw(path, bytes);
}
