//! Statistics: each figure against what can be counted from outside.
//!
//! Method: histories whose counts are known, on a simulated disk whose clock moves with its calls,
//! so that times are the same in every run; filters small enough to be wrong often.

use std::sync::Arc;
use std::time::Duration;

use terrane_lsm::{
    CompactionPolicy, CompactionSchedule, CompactionThread, FilterPolicy, LevelFilter, Session,
    Table, TableConfig, TableStats,
};

use crate::{SessionDir, buffer_of, clear, content, fill, key, name};

fn with_filter(filter: FilterPolicy) -> TableConfig {
    buffer_of(500).filter(filter)
}

fn keys(numbers: impl Iterator<Item = u64>) -> Vec<[u8; 34]> {
    numbers.map(key).collect()
}

#[test]
fn exact_counts_are_those_of_a_scan_and_entries_are_above_them() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut table = session.new_table(&buffer_of(100)).unwrap();
        assert_eq!(table.count_exact().unwrap(), 0);
        fill(&mut table, 0..2_000);
        fill(&mut table, 0..500);
        clear(&mut table, (0..2_000).step_by(3));
        let live = 2_000 - 667;
        assert_eq!(table.count_exact().unwrap(), live);
        assert_eq!(content(&table).len() as u64, live);
        let stats = table.stats();
        assert!(stats.entries() > live, "{stats:?}");
        let in_levels: u64 = stats.levels.iter().map(|level| level.entries).sum();
        assert_eq!(stats.entries(), in_levels + stats.buffer_entries);
    }
}

#[test]
fn lookups_are_counted_by_what_became_of_them() {
    let session = SessionDir::simulated(1).open();
    let mut table = session.new_table(&buffer_of(1_000)).unwrap();
    fill(&mut table, 0..10_500);
    clear(&mut table, 10_400..10_450);
    let before = table.stats();
    assert_eq!((before.lookups, before.found, before.read_amplification()), (0, 0, None));

    // Decided by the write buffer or by the one that is being flushed: present and deleted.
    table.get_many(&keys(10_000..10_500)).unwrap();
    let stats = table.stats();
    assert_eq!((stats.lookups, stats.found, stats.memory_hits), (500, 450, 500));
    assert_eq!(stats.lookup_reads, 0);
    table.get_many(&keys(0..1_000)).unwrap();
    table.get_many(&keys(1 << 40..(1 << 40) + 1_000)).unwrap();
    let stats = table.stats();
    assert_eq!((stats.lookups, stats.found, stats.memory_hits), (2_500, 1_450, 500));
    let expected = stats.lookup_reads as f64 / 1_450.0;
    assert!((stats.read_amplification().unwrap() - expected).abs() < 1e-9);
    assert_eq!(stats.lookup_times.count(), 3);

    // A duplicate begins to count anew.
    assert_eq!(table.fork().unwrap().stats().lookups, 0);
}

/// The rate measured is the rate configured, level by level; and no question is forgotten: each key
/// asks each run that no newer one has answered for.
#[test]
fn filters_false_positive_rates_are_measured_level_by_level() {
    let rates = [0.1, 0.02, 0.004];
    let filter = FilterPolicy::PerLevel(rates.map(LevelFilter::Fpr).to_vec());
    let config = with_filter(filter)
        .compaction_policy(CompactionPolicy::Tiering)
        .compaction_schedule(CompactionSchedule::OneShot);

    let session = SessionDir::simulated(1).open();
    let mut table = session.new_table(&config).unwrap();
    fill(&mut table, 0..500 * 60);
    let shape = table.stats();
    assert!(shape.levels.len() >= 3 && shape.runs() >= 5, "{shape:?}");
    let absent = 40_000;
    table.get_many(&keys(1 << 40..(1 << 40) + absent)).unwrap();

    let stats = table.stats();
    let mut false_positives = 0;
    for (level, rate) in stats.levels.iter().zip(rates) {
        let filter = level.filter;
        let questions = filter.denied + filter.found + filter.false_positives;
        assert_eq!(questions, absent * level.runs, "{level:?}");
        assert_eq!(filter.found, 0);
        let Some(measured) = filter.false_positive_rate() else { continue };
        // A run that is small for its last block of filter does better.
        assert!((0.7 * rate..1.15 * rate).contains(&measured), "{measured}, {rate} wanted");
        false_positives += filter.false_positives;
    }

    assert_eq!(stats.filter.false_positives, false_positives);

    // All but the few that lie outside a run's range of keys were read.
    let reads = stats.lookup_reads as f64 / false_positives as f64;
    assert!((0.95..=1.01).contains(&reads), "{reads} reads for a false positive");

    // Keys that are there: found once each, and older runs are not asked. So those of the newest
    // run, which are the last ones that no write buffer has, are asked of this run alone.
    let in_vain = |stats: &TableStats| stats.filter.denied + stats.filter.false_positives;

    let mut before = in_vain(&stats);
    let mut has_met_newest = false;
    for flush in (0..60).rev() {
        let hits = table.stats().memory_hits;
        table.get_many(&keys(500 * flush..500 * (flush + 1))).unwrap();
        let after = table.stats();
        assert_eq!(after.filter.found, after.found - after.memory_hits);
        if after.memory_hits == hits && !has_met_newest {
            has_met_newest = true;
            assert_eq!(in_vain(&after), before);
        }
        before = in_vain(&after);
    }

    assert!(has_met_newest && before > in_vain(&stats), "older runs are asked in vain");
}

/// The sum of what the disk was told to write, in the session's count; and, for a table alone, in
/// its own.
#[test]
fn bytes_written_by_flushes_and_merges_are_those_that_the_disk_was_given() {
    for compaction_schedule in [CompactionSchedule::Incremental, CompactionSchedule::OneShot] {
        let place = SessionDir::simulated(1);
        let session = place.open();
        let SessionDir::Simulated { disk } = &place else { panic!("simulated") };
        let before = disk.counts();
        let mut table =
            session.new_table(&buffer_of(300).compaction_schedule(compaction_schedule)).unwrap();
        assert_eq!(table.stats().write_amplification(), None);
        fill(&mut table, 0..300 * 65);
        let stats = table.stats();
        assert_eq!((stats.updates, stats.update_bytes), (300 * 65, 300 * 65 * 94));
        let written = (disk.counts() - before).write_pages * 4_096;
        let of_session = session.stats().written_bytes;

        // What merges under way have written is on disk and not counted.
        let unfinished: u64 = stats.levels.iter().map(|level| level.merge_pages_done).sum();
        assert!(of_session <= written, "{of_session} of {written}");
        assert!(of_session + 2 * 4_096 * unfinished + 400_000 >= written);
        assert!(stats.written_bytes <= of_session);
        assert!(stats.written_bytes >= of_session / 2);
        let amplification = stats.write_amplification().unwrap();
        assert!((2.0..6.0).contains(&amplification), "{amplification}");

        // So that the write buffer is not empty.
        fill(&mut table, 300 * 65..=300 * 65);
        let images = session.stats().image_bytes;
        table.save_snapshot(&name("one"), "").unwrap();
        assert!(session.stats().image_bytes > images);
        assert_eq!(session.stats().save_times.count(), 1);
    }
}

#[test]
fn a_merge_that_tables_share_is_written_and_counted_once() {
    let written_by = |copies: u64| {
        let session = SessionDir::simulated(1).open();
        let mut table = session.new_table(&buffer_of(200)).unwrap();
        fill(&mut table, 0..200 * 40);
        let alone = session.stats().written_bytes;
        let mut copies: Vec<Table> = (0..copies).map(|_| table.fork().unwrap()).collect();
        for copy in &mut copies {
            fill(copy, 200 * 40..200 * 42);
        }
        session.stats().written_bytes - alone
    };

    // What each further one adds is its own flush, of 200 entries of 94 bytes, and no merge.
    let one = written_by(1);
    let flush = written_by(2) - written_by(1);
    assert!((200 * 94..2 * 200 * 94).contains(&flush), "{flush}");
    assert!(one > 3 * flush, "{one}: no merge was completed");
    assert_eq!(written_by(10), one + 9 * flush);
}

#[test]
fn a_session_counts_what_is_open_and_each_run_once() {
    let session = SessionDir::simulated(1).open();
    let shape = |session: &Session| {
        let stats = session.stats();
        (stats.tables, stats.cursors, stats.runs, stats.entries, stats.bytes)
    };

    assert_eq!(shape(&session), (0, 0, 0, 0, 0));
    let mut table = session.new_table(&buffer_of(200)).unwrap();
    fill(&mut table, 0..200 * 40);
    let alone = session.stats();
    let levels = table.stats().levels;
    assert_eq!(alone.runs, levels.iter().map(|level| level.files).sum::<u64>());
    assert_eq!(alone.entries, levels.iter().map(|level| level.entries).sum::<u64>());
    assert_eq!(alone.bytes, levels.iter().map(|level| level.bytes).sum::<u64>());
    assert_eq!(alone.filter_bytes, table.stats().filter_bytes);
    assert_eq!(alone.index_bytes, table.stats().index_bytes);
    let copies: Vec<Table> = (0..5).map(|_| table.fork().unwrap()).collect();
    let cursor = table.cursor().unwrap();
    let with_copies = session.stats();
    assert_eq!((with_copies.tables, with_copies.cursors), (6, 1));
    assert_eq!((with_copies.runs, with_copies.bytes), (alone.runs, alone.bytes));
    table.save_snapshot(&name("kept"), "").unwrap();
    let opened = session.open_snapshot(&name("kept"), "").unwrap();
    assert_eq!((session.stats().tables, session.stats().snapshots), (7, 1));
    drop((table, copies, opened));
    assert!(session.stats().runs > 0, "the cursor has them");
    drop(cursor);
    assert_eq!(shape(&session), (0, 0, 0, 0, 0));
    session.close().unwrap();
}

/// Filters that a memory budget has halved are counted as they are now.
#[test]
fn halved_filters_are_taken_off_the_sums_of_the_session() {
    let session = SessionDir::simulated(1).open();
    let config = with_filter(FilterPolicy::BitsPerEntry(20.0));
    let mut table = session.new_table(&config).unwrap();
    fill(&mut table, 0..100_000);
    let budget = TableConfig::default().memory_budget(256 << 10);
    table.set_config(&budget).unwrap();
    fill(&mut table, 100_000..101_000);
    assert_eq!(session.stats().filter_bytes, table.stats().filter_bytes);
    drop(table);
    assert_eq!(session.stats().filter_bytes, 0);
}

#[test]
fn times_are_those_of_the_disks_clock_and_the_same_in_every_run() {
    let run = || {
        let place = SessionDir::simulated(7);
        let session = place.open();
        let mut table = session.new_table(&buffer_of(100)).unwrap();
        fill(&mut table, 0..5_000);
        table.get_many(&keys(0..500)).unwrap();
        table.get(&key(3)).unwrap();
        table.save_snapshot(&name("one"), "").unwrap();
        (table.stats(), session.stats())
    };

    let (table, of_session) = run();
    assert_eq!(run(), (table.clone(), of_session.clone()));
    assert_eq!((table.lookup_times.count(), table.update_times.count()), (2, 5));
    assert_eq!(of_session.lookup_times, table.lookup_times);
    assert!(table.update_times.max() > Duration::ZERO, "calls on the simulated disk take time");
    assert!(table.save_times.quantile(0.5) >= table.save_times.mean() * 7 / 8);
    assert!(table.lookup_times.quantile(0.0) <= table.lookup_times.max());
}

#[test]
fn many_threads_count_into_the_same_sums() {
    let place = SessionDir::real();
    let session = place.open();
    let config = buffer_of(500).compaction_thread(CompactionThread::Background);
    let mut table = session.new_table(&config).unwrap();
    fill(&mut table, 0..10_000);

    let table = Arc::new(table);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (table, mut copy) = (Arc::clone(&table), table.fork().unwrap());
            scope.spawn(move || {
                fill(&mut copy, thread * 2_000..(thread + 1) * 2_000);
                table.get_many(&keys(0..1_000)).unwrap();
            });
        }
    });

    let stats = table.stats();
    assert_eq!((stats.lookups, stats.found), (4_000, 4_000));
    let filter = stats.filter;
    assert_eq!(filter.found + stats.memory_hits, 4_000);
    let of_session = session.stats();
    assert_eq!((of_session.lookups, of_session.updates), (4_000, 18_000));
    assert!(of_session.open_files <= 128);
    drop(table);
    session.close().unwrap();
    assert_eq!(session.stats().tables, 0);
}
