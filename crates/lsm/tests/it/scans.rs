//! Cursors: their reads, the files that they keep, and the effect of faults on them.
//!
//! Goal: a cursor reads nothing before it is asked to, each page once on its way, ahead of itself
//! and never beyond its range; it keeps the files that it needs and no others; a fault comes out of
//! the read that needed the page, and again of every later one. Method: counts of the simulated
//! disk, whose keys follow from numbers; names in the directory; a fault at each call of a scan.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Counts, SimDisk};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_lsm::{
    CompactionPolicy, CompactionSchedule, Cursor, DiskCache, Error, IndexKind, Lookup, Session,
    SessionOptions, Table, TableConfig, Update,
};

use crate::{SALT, SessionDir, buffer_of, fill, key, value};

/// A key whose order is that of its number.
fn numbered(number: u64) -> Vec<u8> {
    format!("{number:010}").into_bytes()
}

/// A session that may keep all its files open.
fn open() -> (Arc<SimDisk>, Session) {
    let disk = SimDisk::new(1);
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(Arc::clone(&disk) as _, Path::new("/session"), &options).unwrap();
    (disk, session)
}

/// A table of this many entries of evenly spread keys in several runs, and its disk.
fn table_of(entries: u64, config: &TableConfig) -> (Arc<SimDisk>, Session, Table) {
    let (disk, session) = open();
    let mut table = session.new_table(config).unwrap();
    fill(&mut table, 0..entries);
    (disk, session, table)
}

fn ordinary() -> TableConfig {
    buffer_of(1_000).index(IndexKind::Ordinary).disk_cache(DiskCache::None)
}

fn spent(disk: &SimDisk, work: impl FnOnce()) -> Counts {
    let before = disk.counts();
    work();
    disk.counts() - before
}

#[test]
fn nothing_is_read_before_the_first_read() {
    let (disk, _session, table) = table_of(30_000, &ordinary());
    let before = disk.calls();
    let mut cursor = table.cursor().unwrap();
    cursor.seek(&key(7));
    cursor.seek_after(&key(8));
    cursor.seek_to_end();
    cursor.seek_to_start();
    let other = table.range::<[u8; 34], _>(key(1)..).unwrap();
    drop((table.prefix(b"a").unwrap(), other));
    assert_eq!(disk.calls(), before);
    cursor.next().transpose().unwrap().unwrap();
    assert!(disk.calls() > before);
}

/// Positioning reads one page of each run. The next entries then cost only their share of a page,
/// until the cursor leaves the pages around the position.
#[test]
fn positioning_costs_a_page_of_each_run() {
    let (disk, _session, table) = table_of(60_000, &ordinary());
    let runs = table.stats().runs();
    assert!(runs >= 8, "{runs} runs");
    let mut cursor = table.cursor().unwrap();

    let mut pages = 0;
    let mut worst = 0;
    for number in 0..300 {
        // Of keys that are there and of others.
        cursor.seek(&key(number * 997));
        let counts = spent(&disk, || {
            let record = if number % 2 == 0 { cursor.next() } else { cursor.prev() };
            assert!(record.unwrap().is_ok());
        });
        assert_eq!(counts.queued, 0, "a short range needs no queue");
        pages += counts.read_pages;
        worst = worst.max(counts.read_pages);
    }

    assert!(pages <= 300 * runs * 11 / 10, "{pages} pages for 300 positions in {runs} runs");

    // Where the position falls between two pages of a run, the next one is wanted too: two at once.
    assert!(worst <= 2 * runs, "{worst} pages for one position in {runs} runs");
}

/// Short scans at many places cost the pages that cursors cost, through the queue.
#[test]
fn short_scans_at_many_places_read_side_by_side() {
    let (disk, session, table) = table_of(60_000, &ordinary());
    let runs = table.stats().runs();
    let ranges: Vec<_> = (0..300).map(|number| key(number * 997)..).collect();
    let one_by_one = spent(&disk, || {
        for range in &ranges {
            assert!(table.range(range.clone()).unwrap().next().unwrap().is_ok());
        }
    });
    let together = spent(&disk, || {
        let found = table.scan_many(&ranges, 1).unwrap();
        assert!(found.iter().all(|records| records.len() == 1));
    });
    assert!(together.read_pages <= one_by_one.read_pages + 300, "{together:?} {one_by_one:?}");
    assert!(250 * runs <= together.queued && one_by_one.queued == 0, "{together:?}");

    // A fault of a read that is needed is an error, others change nothing.
    let expected = table.scan_many(&ranges, 1).unwrap();
    let calls = together.reads;
    let mut errors = 0;
    let kinds = [FaultKind::Eio, FaultKind::ShortRead, FaultKind::BitRot, FaultKind::Misdirected];
    for number in (0..calls).step_by(37) {
        let kind = kinds[number as usize % kinds.len()];
        disk.set_plan(FaultPlan::fail(disk.calls() + number, kind, Repeat::Once));
        match table.scan_many(&ranges, 1) {
            Ok(found) => assert!(found == expected, "{kind:?} at read {number}"),
            Err(error) => {
                assert!(matches!(error, Error::Disk(_) | Error::Corrupt { .. }), "{error:?}");
                errors += 1;
            }
        }
        disk.set_plan(FaultPlan::default());
    }
    assert!(calls < errors * 74, "{errors} errors in {} reads", calls / 37);
    assert!(table.scan_many(&ranges, 1).unwrap() == expected);
    drop(table);
    session.close().unwrap();
    assert_eq!(disk.open_files(), 0);
}

/// Short scans and lookups find each other's pages in the cache of a table with a budget.
#[test]
fn the_first_pages_of_cursors_come_from_the_cache_and_go_there() {
    let config = TableConfig::default().memory_budget(16 << 20).disk_cache(DiskCache::None);
    let (disk, _session, table) = table_of(60_000, &config);
    assert!(1 <= table.stats().runs());
    let ranges: Vec<_> = (0..2_000).map(|number| key(number * 29)..).collect();
    let scan = || {
        let counts = spent(&disk, || {
            for (number, records) in (0..).zip(table.scan_many(&ranges, 2).unwrap()) {
                assert_eq!(records[0].key, key(number * 29));
            }
            for range in &ranges[..100] {
                assert!(table.range(range.clone()).unwrap().next().unwrap().is_ok());
            }
        });
        counts.read_pages
    };
    // Two entries, so that no run is left out. Where they go on behind a page, four more pages are
    // read, which are no first ones: in one of six positions.
    let (first, second) = (scan(), scan());
    assert!(500 < first && second * 5 < first * 3, "{first} pages, then {second}");

    let keys: Vec<_> = (0..2_000).map(|number| key(number * 29)).collect();
    let lookups = spent(&disk, || {
        assert!(table.get_many(&keys).unwrap().iter().all(Lookup::is_found));
    });
    assert!(lookups.read_pages * 5 < first, "{} pages of {first}", lookups.read_pages);
    assert!(table.stats().memory_bytes() <= 16 << 20);
}

/// Pages of the data of all runs, about: their filters and indexes are small.
fn data_pages(table: &Table) -> u64 {
    table.stats().levels.iter().map(|level| level.bytes / 4096).sum()
}

#[test]
fn a_scan_reads_each_page_once_and_in_large_requests() {
    // No merge on the last level is under way, of whose inputs a part is not read any more.
    const ENTRIES: u64 = 260_000;
    let (disk, _session, table) = table_of(ENTRIES, &ordinary());

    let stats = table.stats();
    let last = stats.levels.last().unwrap();
    assert_eq!(last.merge_pages_done, last.merge_pages, "{last:?}");
    let total = data_pages(&table);
    for is_forward in [true, false] {
        let mut count = 0;
        let counts = spent(&disk, || {
            let mut cursor = table.cursor().unwrap();
            if is_forward {
                while cursor.next_ref().unwrap().is_some() {
                    count += 1;
                }
            } else {
                cursor.seek_to_end();
                while cursor.prev_ref().unwrap().is_some() {
                    count += 1;
                }
            }
        });

        assert_eq!(count, ENTRIES);
        assert!(counts.read_pages <= total, "{} pages read of {total}", counts.read_pages);
        assert!(counts.read_pages > total * 9 / 10, "{} of {total}", counts.read_pages);

        // Seven small requests on the way to the large ones, then 64 pages each, and the rest of
        // each file.
        let most = 8 * stats.runs() + stats.files() + total / 64;
        assert!(counts.reads <= most, "{} reads, {stats:?}", counts.reads);
        assert!(counts.queued >= counts.reads / 2, "{} of {} ahead", counts.queued, counts.reads);
    }
}

#[test]
fn nothing_is_read_ahead_beyond_the_range() {
    let config = ordinary().compaction_schedule(CompactionSchedule::OneShot);
    let config = config.write_buffer(buffer_of(40_000).write_buffer);
    let (disk, _session, table) = table_of(40_000, &config);
    assert_eq!(table.stats().runs(), 1);
    let mut keys: Vec<_> = (0..40_000).map(key).collect();
    keys.sort_unstable();

    // 35 entries of such keys and values stand on a page at least, at most 42.
    for (from, to) in [(0, 1_000), (10_000, 10_001), (20_000, 30_000), (39_000, 40_000)] {
        for is_forward in [true, false] {
            let counts = spent(&disk, || {
                let range = (
                    Bound::Included(keys[from]),
                    keys.get(to).map_or(Bound::Unbounded, |k| Bound::Excluded(*k)),
                );
                let mut cursor = table.range::<[u8; 34], _>(range).unwrap();
                let taken = if is_forward {
                    cursor.next_many(usize::MAX)
                } else {
                    cursor.seek_to_end();
                    cursor.prev_many(usize::MAX)
                };
                assert_eq!(taken.unwrap().len(), to - from);
            });

            let pages = (to - from) as u64 / 35 + 3;
            assert!(
                counts.read_pages <= pages,
                "{} pages read, {pages} expected",
                counts.read_pages
            );
        }
    }
}

/// A union of two tables, each with its runs, paid for in part: its slices follow each other, so a
/// reader needs one of them at a time, and the tables when it comes to the frontier.
#[test]
fn of_a_union_only_the_slice_in_turn_is_read() {
    let (disk, session) = open();

    let config = ordinary().compaction_batch_pages(1);
    let mut tables = Vec::new();
    for part in 0..2 {
        let mut table = session.new_table(&config).unwrap();
        fill(&mut table, part * 20_000..(part + 1) * 20_000);
        tables.push(table);
    }

    let mut union = session.incremental_union(&[&tables[0], &tables[1]]).unwrap();
    union.supply_union_credits(union.remaining_union_debt() / 4).unwrap();
    let mut cursor = union.cursor().unwrap();
    let counts = spent(&disk, || assert_eq!(cursor.next_many(20).unwrap().len(), 20));
    assert_eq!(counts.read_pages, 1, "of the first slice");
    let mut keys: Vec<_> = (0..40_000).map(key).collect();
    keys.sort_unstable();

    let counts = spent(&disk, || {
        cursor.seek(&keys[2_000]);
        assert_eq!(cursor.next().transpose().unwrap().unwrap().key, keys[2_000]);
        assert_eq!(cursor.prev().transpose().unwrap().unwrap().key, keys[2_000]);
        assert_eq!(cursor.prev().transpose().unwrap().unwrap().key, keys[1_999]);
    });

    assert!(counts.read_pages <= 4, "{} pages of a slice, or of two", counts.read_pages);

    // All of it, in both directions, over the frontier.
    cursor.seek_to_start();
    let forward = cursor.next_many(usize::MAX).unwrap();
    assert!(
        forward
            .iter()
            .map(|record| record.key.as_slice())
            .eq(keys.iter().map(<[u8; 34]>::as_slice))
    );

    let back = cursor.prev_many(usize::MAX).unwrap();
    assert!(forward.iter().rev().eq(&back));
}

/// Entries in the order of their keys, so that each flush is a run of its own part of them.
fn in_order(session: &Session, entries: u64, size_ratio: u32) -> Table {
    let tiering = buffer_of(100)
        .compaction_policy(CompactionPolicy::Tiering)
        .compaction_schedule(CompactionSchedule::OneShot)
        .size_ratio(size_ratio);
    let mut table = session.new_table(&tiering).unwrap();
    for number in 0..entries {
        let value = value(number, 60);
        table.write_batch(&[(numbered(number), Update::InsertWithBlob(&value, b"blob"))]).unwrap();
    }
    table
}

#[test]
fn a_cursor_keeps_the_files_of_its_range_and_no_others() {
    for place in SessionDir::both() {
        let session = place.open();

        let table = in_order(&session, 1_000, 16);
        // Each run and its blobs.
        assert_eq!((table.stats().runs(), place.runs().len()), (10, 20));
        let range =
            |from: u64, to: u64| table.range::<Vec<u8>, _>(numbered(from)..numbered(to)).unwrap();
        let mut cursor = range(250, 420);
        let middle = range(310, 320);
        let none = range(2_000, 3_000);
        drop(table);
        assert_eq!(place.runs().len(), 6, "of three runs");
        assert_eq!(cursor.next_many(usize::MAX).unwrap().len(), 170);

        // It can go back, so what it has passed stays.
        assert_eq!(place.runs().len(), 6);
        assert_eq!(cursor.prev_many(usize::MAX).unwrap().len(), 170);
        drop((cursor, none));
        assert_eq!(place.runs().len(), 2, "of the run in the middle");
        drop(middle);
        assert_eq!(place.runs().len(), 0);
    }
}

/// Reads a table to the end, entry by entry; how many came before the error.
fn read_through(cursor: &mut Cursor, is_forward: bool) -> Result<u64, (u64, Error)> {
    let mut count = 0;
    loop {
        let record = if is_forward { cursor.next_ref() } else { cursor.prev_ref() };
        match record {
            Ok(Some(_)) => count += 1,
            Ok(None) => return Ok(count),
            Err(error) => return Err((count, error)),
        }
    }
}

/// A fault at each call of a scan, most of which are reads ahead.
#[test]
fn a_fault_comes_out_of_the_read_that_needed_the_page_and_stays() {
    let (disk, session, table) = table_of(20_000, &ordinary());
    let open = |is_forward: bool| {
        let mut cursor = table.cursor().unwrap();
        if !is_forward {
            cursor.seek_to_end();
        }
        cursor
    };

    let kinds = [FaultKind::Eio, FaultKind::ShortRead, FaultKind::BitRot, FaultKind::Misdirected];
    let mut opened_again = 0;
    for is_forward in [true, false] {
        let start = disk.calls();
        assert_eq!(read_through(&mut open(is_forward), is_forward).unwrap(), 20_000);
        let calls = disk.calls() - start;
        assert!(calls > 40, "{calls} calls");

        for number in 0..calls {
            let kind = kinds[number as usize % kinds.len()];
            let at_call = disk.calls() + number;
            let faults = disk.faults();
            disk.set_plan(FaultPlan::fail(at_call, kind, Repeat::Once));
            let mut cursor = open(is_forward);
            let Err((count, error)) = read_through(&mut cursor, is_forward) else {
                // A file that could not be opened to read ahead was opened by the read that needed
                // it: an `EIO` of an opening.
                assert_eq!((kind, disk.faults()), (FaultKind::Eio, faults + 1), "call {number}");
                opened_again += 1;
                disk.set_plan(FaultPlan::default());
                continue;
            };
            assert!(count < 20_000);
            assert_eq!(disk.faults(), faults + 1, "{kind:?} at call {number}: {error}");
            assert!(matches!(error, Error::Disk(_) | Error::Corrupt { .. }), "{error:?}");

            // For good, and in both directions, although the fault is over; an iterator ends.
            assert_eq!(cursor.next_ref().unwrap_err().to_string(), error.to_string());
            assert_eq!(cursor.next().unwrap().unwrap_err().to_string(), error.to_string());
            cursor.seek_to_start();
            assert_eq!(cursor.prev().unwrap().unwrap_err().to_string(), error.to_string());
            assert!(cursor.next().is_none() && cursor.next_back().is_none());
            drop(cursor);
            disk.set_plan(FaultPlan::default());
        }
    }

    assert!(opened_again < 8, "{opened_again} openings failed to read ahead");
    assert_eq!(read_through(&mut open(true), true).unwrap(), 20_000);
    drop(table);
    session.close().unwrap();
    assert_eq!(disk.open_files(), 0);
}

/// Dropped, turned or moved with reads in flight, that fail or not: nothing of them is left.
#[test]
fn reads_in_flight_leave_nothing_behind() {
    let (disk, session, table) = table_of(40_000, &ordinary());
    for fault in [None, Some(FaultKind::Eio)] {
        for entries in [4_000, 9_000, 16_000] {
            let mut cursor = table.cursor().unwrap();
            assert_eq!(cursor.next_many(entries).unwrap().len(), entries);
            if let Some(kind) = fault {
                disk.set_plan(FaultPlan::fail(disk.calls(), kind, Repeat::Once));
                drop(cursor);
                disk.set_plan(FaultPlan::default());
                continue;
            }
            let last = cursor.prev().transpose().unwrap().unwrap();
            assert_eq!(cursor.next().transpose().unwrap(), Some(last));
            cursor.seek(&key(entries as u64));
            assert_eq!(cursor.next().transpose().unwrap().unwrap().key, key(entries as u64));
        }
    }

    drop(table);
    session.close().unwrap();
    assert_eq!(disk.open_files(), 0);
}

/// Making room for a queue closes a file, which must be synced: that it cannot be is no concern of
/// a cursor that has the pages it needs.
#[test]
fn what_is_in_the_way_of_reading_ahead_fails_no_read() {
    let disk = SimDisk::new(1);
    let options = SessionOptions::with_salt(SALT).create_dir().open_files_max(4);

    let session = Session::open(Arc::clone(&disk) as _, Path::new("/session"), &options).unwrap();
    let one_run = |entries: u64| {
        let compaction_schedule = CompactionSchedule::OneShot;
        let config = buffer_of(entries).compaction_schedule(compaction_schedule);
        let mut table = session.new_table(&config).unwrap();
        fill(&mut table, 0..entries);
        assert_eq!(table.stats().runs(), 1);
        table
    };

    let table = one_run(8_000);
    table.save_snapshot(&terrane_lsm::SnapshotName::new("saved").unwrap(), "").unwrap();
    let unsynced = [100; 3].map(one_run);
    assert_eq!(session.stats().open_files, 4);
    let syncs = disk.counts().syncs;
    disk.set_plan(FaultPlan::fail(disk.calls(), FaultKind::FailedSync, Repeat::Once));
    assert_eq!(read_through(&mut table.cursor().unwrap(), true).unwrap(), 8_000);
    assert_eq!(disk.counts().syncs, syncs + 1, "the cursor wanted to read ahead");
    drop(unsynced);
}
