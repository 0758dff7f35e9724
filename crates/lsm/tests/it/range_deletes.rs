//! Range deletes: content compared with a model of few keys, and I/O cost.
//!
//! Goal: every kind of read finds a deleted range gone, whatever happens to the table before and
//! after, and finds newer entries of its keys. Method: random histories over a dense space of
//! 64 keys with tiny buffers, so that each range meets segments, flushes, merges under way, runs
//! and unions; counted calls of the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrane_io::{CountedDisk, Disk, SimDisk};
use terrane_lsm::inspect::{Inspection, MergeInfo, inspect};
use terrane_lsm::{
    BackupPlace, CompactionPolicy, CompactionSchedule, Cursor, Error, KEY_BYTES_MAX, Lookup,
    MergeOperator, NamedTable, ReaderOptions, Session, SessionOptions, Store, StoreOptions,
    StoreReader, Table, TableConfig, TableName, Update, WriteBuffer,
};
use terrane_testkit::RngCore;
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::store_script::Change;
use crate::{SALT, name};

const KEYS: u8 = 64;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn config(rng: &mut impl RngCore) -> TableConfig {
    TableConfig::default()
        .compaction_policy(*rng.pick(&[
            CompactionPolicy::LazyLevelling,
            CompactionPolicy::Levelling,
            CompactionPolicy::Tiering,
        ]))
        .size_ratio(2 + rng.below(3) as u32)
        .compaction_schedule(
            *rng.pick(&[CompactionSchedule::Incremental, CompactionSchedule::OneShot]),
        )
        .write_buffer(WriteBuffer::Entries(*rng.pick(&[1, 4, 9, 30])))
        .compaction_batch_pages(1)
        .merge_operator(MergeOperator::concatenate())
}

fn draw_batch(rng: &mut impl RngCore) -> Vec<(Vec<u8>, Change)> {
    let change = |rng: &mut _| {
        let from = Draw::below(rng, u64::from(KEYS)) as u8;
        let value = vec![Draw::below(rng, 256) as u8; 1 + Draw::index(rng, 30)];
        let change = match Draw::below(rng, 12) {
            0 | 1 => Change::DeleteRange(Some(vec![from + Draw::below(rng, 20) as u8])),
            2 if from > KEYS - 4 => Change::DeleteRange(None),
            2 | 3 => Change::Delete,
            4 | 5 => Change::Upsert(value),
            _ => Change::Insert(value),
        };
        (vec![from], change)
    };

    (0..=Draw::index(rng, 8)).map(|_| change(rng)).collect()
}

fn update(table: &mut Table, model: &mut Model, rng: &mut impl RngCore) {
    let batch = draw_batch(rng);
    let updates: Vec<_> = batch.iter().map(|(key, change)| (key, change.update())).collect();
    table.write_batch(&updates).unwrap();
    for (key, change) in &batch {
        change.apply(model, key);
    }
}

fn check(table: &Table, model: &Model, what: &str) {
    let expected: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();

    let mut cursor = table.cursor().unwrap();
    let mut found = Vec::new();
    while let Some(record) = cursor.next().transpose().unwrap() {
        found.push((record.key, record.value.into_vec()));
    }
    assert_eq!(found, expected, "forwards, {what}");

    let mut back = Vec::new();
    while let Some(record) = cursor.prev().transpose().unwrap() {
        back.push((record.key, record.value.into_vec()));
    }
    back.reverse();
    assert_eq!(back, expected, "backwards, {what}");

    let keys: Vec<_> = (0..KEYS + 20).map(|key| [key]).collect();
    let lookups = table.fork().unwrap().get_many(&keys).unwrap();
    for (key, found) in keys.iter().zip(&lookups) {
        let expected = model.get(&key[..]).map(Vec::as_slice);
        assert_eq!(found.value(), expected, "lookup of {key:?}, {what}");
    }

    assert_eq!(table.count_exact().unwrap(), model.len() as u64);
}

fn check_diff(older: (&Table, &Model), newer: (&Table, &Model)) {
    let mut diff = older.0.diff(newer.0).unwrap();
    let mut found = BTreeMap::new();
    while let Some(change) = diff.next().transpose().unwrap() {
        let value = |lookup: &Lookup| lookup.value().map(<[u8]>::to_vec);
        found.insert(change.key, (value(&change.old), value(&change.new)));
    }
    let keys = older.1.keys().chain(newer.1.keys());
    let both =
        keys.map(|key| (key.clone(), (older.1.get(key).cloned(), newer.1.get(key).cloned())));
    let expected: BTreeMap<_, _> = both.filter(|(_, (old, new))| old != new).collect();
    assert_eq!(found, expected);
}

/// Tables, duplicates, snapshots, diffs, compactions and unions, with ranges in a sixth of all
/// updates.
#[test]
fn histories_with_deleted_ranges_agree_with_a_model() {
    for_each_seed("range_deletes", by_effort(25, 60), |rng, seed| {
        let disk = SimDisk::new(seed);
        let options = SessionOptions::with_salt(SALT).create_dir();
        let open =
            || Session::open(Arc::clone(&disk) as _, Path::new("/session"), &options).unwrap();
        let mut session = open();
        let first = session.new_table(&config(rng)).unwrap();
        let mut tables = vec![(first, Model::new())];
        let mut saved = Vec::new();
        for step in 0..150 {
            let at = rng.index(tables.len());
            match rng.below(40) {
                0 | 1 if tables.len() < 4 => {
                    let (table, model) = &tables[at];
                    tables.push((table.fork().unwrap(), model.clone()));
                }
                2 if tables.len() > 1 => drop(tables.swap_remove(at)),
                3 | 4 => {
                    let other = rng.index(tables.len());
                    let [(older, old), (newer, new)] = [&tables[at], &tables[other]];
                    check_diff((older, old), (newer, new));
                }
                5 | 6 => {
                    let text = format!("s{step}");
                    tables[at].0.save_snapshot(&name(&text), "").unwrap();
                    saved.push((text, tables[at].1.clone()));
                }
                7 | 8 if !saved.is_empty() && tables.len() < 4 => {
                    let (text, model) = &saved[rng.index(saved.len())];
                    let table = session.open_snapshot(&name(text), "").unwrap();
                    check(&table, model, text);
                    tables.push((table, model.clone()));
                }
                9 if tables.len() < 4 => {
                    let other = rng.index(tables.len());
                    let [(left, one), (right, two)] = [&tables[at], &tables[other]];
                    let union = session.incremental_union(&[left, right]).unwrap();
                    let mut model = two.clone();
                    for (key, value) in one {
                        model.entry(key.clone()).or_default().extend_from_slice(value);
                    }
                    tables.push((union, model));
                }
                10 | 11 => drop(tables[at].0.supply_union_credits(rng.below(80)).unwrap()),
                12 => {
                    let (table, model) = &mut tables[at];
                    table.compact(&mut |_, _| {}).unwrap();
                    check(table, model, "compacted");
                }
                13 if step % 5 == 0 => {
                    tables.clear();
                    session.close().unwrap();
                    session = open();
                    let table = match saved.last() {
                        Some((text, model)) => {
                            (session.open_snapshot(&name(text), "").unwrap(), model.clone())
                        }
                        None => (session.new_table(&config(rng)).unwrap(), Model::new()),
                    };
                    tables.push(table);
                }
                14..=17 => check(&tables[at].0, &tables[at].1, "looked at"),
                _ => {
                    let (table, model) = &mut tables[at];
                    update(table, model, rng);
                }
            }
        }
        for (table, model) in &tables {
            check(table, model, "in the end");
        }
    });
}

/// A failed batch leaves neither its ranges nor its entries, whatever came first in it.
#[test]
fn a_batch_with_a_range_is_all_or_nothing() {
    let disk = SimDisk::new(1);
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(disk, Path::new("/session"), &options).unwrap();

    let combine = |newer: &[u8], older: &[u8]| {
        assert!(newer != b"panic", "as planned");
        [older, newer].concat()
    };

    let resolve = MergeOperator::new("panics", combine).unwrap();
    for buffer in [3, 100] {
        let write_buffer = WriteBuffer::Entries(buffer);
        let config =
            TableConfig::default().write_buffer(write_buffer).merge_operator(resolve.clone());

        let mut table = session.new_table(&config).unwrap();
        let mut model = Model::new();
        for key in 0..40 {
            table.insert(&[key], b"old").unwrap();
            model.insert(vec![key], b"old".to_vec());
        }

        let insert = |key| ([key], Update::Insert(b"torn"));
        let batch = [
            insert(1),
            ([5], Update::DeleteRange(Some(&[20]))),
            insert(7),
            ([2], Update::DeleteRange(None)),
            insert(8),
            insert(9),
            insert(10),
            // Wherever a flush comes in between, one of them meets the value before it.
            insert(11),
            ([11], Update::Upsert(b"panic")),
            insert(12),
            ([12], Update::Upsert(b"panic")),
            ([12], Update::Upsert(b"panic")),
            ([12], Update::Upsert(b"panic")),
        ];

        let panicked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| table.write_batch(&batch)));
        assert!(panicked.is_err(), "no function was called");
        check(&table, &model, "taken back");
        table.write_batch(&batch[..7]).unwrap();
        model.retain(|key, _| key[0] < 2);

        for key in [1, 8, 9, 10] {
            model.insert(vec![key], b"torn".to_vec());
        }
        check(&table, &model, "applied");
    }
}

fn store_on(disk: &Arc<CountedDisk>) -> Store {
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session);
    Store::open(Arc::clone(disk) as _, Path::new("/store"), &options).unwrap()
}

fn key(number: u64) -> [u8; 8] {
    format!("{number:08}").into_bytes().try_into().unwrap()
}

/// Inserts keys of these numbers, in commits of a thousand.
fn insert_all(table: &NamedTable, numbers: std::ops::Range<u64>, value: &[u8]) {
    let numbers: Vec<_> = numbers.collect();
    for part in numbers.chunks(1_000) {
        let keys: Vec<_> = part.iter().map(|&number| key(number)).collect();
        let batch: Vec<_> = keys.iter().map(|key| (key, Update::Insert(value))).collect();
        drop(table.write_batch(&batch).unwrap());
    }
}

/// A range delete used to read all keys of the range and to write a tombstone for each, under the
/// lock of the store. Whatever the range holds, it now reads nothing and writes one record, like a
/// deletion of one key.
#[test]
fn deleting_a_range_costs_the_same_whatever_it_holds() {
    let counted = CountedDisk::new(SimDisk::new(1) as Arc<dyn Disk>);
    let store = store_on(&counted);
    let write_buffer = WriteBuffer::Entries(2_000);
    let config = TableConfig::default().write_buffer(write_buffer);
    let table = store.create_table(&TableName::new("main").unwrap(), &config).unwrap();
    insert_all(&table, 0..200_000, b"value");
    store.sync().unwrap();

    let before = counted.counts();
    table.insert(&key(0), b"value").unwrap().wait().unwrap();
    let of_one = counted.counts() - before;
    let before = counted.counts();
    table.delete_range(&key(10)[..]..&key(199_990)[..]).unwrap().wait().unwrap();
    let of_range = counted.counts() - before;
    assert_eq!(of_range.reads, 0);
    assert_eq!((of_range.writes, of_range.syncs), (of_one.writes, of_one.syncs));
    assert!(of_range.write_bytes <= of_one.write_bytes + 64, "{of_range:?}");

    // The first step over the gap reads no more than a few pages of each run, forwards and
    // backwards.
    let first_steps = || {
        let view = table.view().unwrap();
        let runs = view.stats().runs().max(1);
        for (from, to) in [(9, 199_990), (199_990, 9)] {
            let before = counted.counts();
            let mut cursor = view.cursor().unwrap();
            if from < to {
                cursor.seek(&key(from));
            } else {
                cursor.seek_after(&key(from));
            }
            let next = |cursor: &mut Cursor| {
                let record = if from < to { cursor.next() } else { cursor.prev() };
                record.map(|record| record.unwrap().key)
            };
            assert_eq!(next(&mut cursor), Some(key(from).to_vec()));
            assert_eq!(next(&mut cursor), Some(key(to).to_vec()));
            let pages = (counted.counts() - before).read_bytes / 4_096;
            assert!(pages <= 12 * runs, "{pages} pages of {runs} runs");
        }
        let before = counted.counts();
        assert!(!table.get(&key(50_000)).unwrap().is_found());
        assert_eq!(counted.counts().reads, before.reads, "a lookup of a deleted key");
    };

    first_steps();

    // Merges jump over it, too.
    insert_all(&table, 200_000..240_000, b"later");
    first_steps();

    // What a compaction leaves out it does not read either.
    let before = counted.counts();
    store.compact(&mut |_, _| {}).unwrap();
    let pages = (counted.counts() - before).read_bytes / 4_096;
    let bytes = 40_020 * (8 + 5 + 8);
    assert!(pages * 4_096 <= 4 * bytes, "{pages} pages read for {bytes} bytes");
    assert_eq!(table.stats().unwrap().entries(), 40_020);
    first_steps();
    store.close().unwrap();
}

/// Above a thousand range deletes, short ranges are deleted key by key and long ranges are added,
/// so that masks stay small and no call reads more than a few thousand keys. A range delete is one
/// record whatever it covers, so other threads proceed beside it. Readers of the same table see the
/// range whole or gone, never a part; no commit to another table is lost.
#[test]
fn threads_read_and_commit_beside_deleted_ranges() {
    const RANGES: u64 = 20;
    const KEYS_OF_A_RANGE: u64 = 500;
    let disk = CountedDisk::new(SimDisk::new(7) as Arc<dyn Disk>);
    let store = store_on(&disk);
    let config = TableConfig::default().write_buffer(WriteBuffer::Entries(300));
    let wide = store.create_table(&TableName::new("wide").unwrap(), &config).unwrap();
    let other = store.create_table(&TableName::new("other").unwrap(), &config).unwrap();
    insert_all(&wide, 0..RANGES * KEYS_OF_A_RANGE, b"value");

    let is_done = AtomicBool::new(false);
    let (rounds, commits) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rounds = 0u64;
            let mut gone_before = 0;
            loop {
                let was_done = is_done.load(Ordering::Acquire);
                let view = wide.view().unwrap();
                let held = view.count_exact().unwrap();
                assert_eq!(held % KEYS_OF_A_RANGE, 0, "a part of a range is gone");

                let gone = RANGES - held / KEYS_OF_A_RANGE;
                assert!(gone >= gone_before, "a deleted range came back");
                gone_before = gone;
                for range in 0..RANGES {
                    let last = view.get(&key((range + 1) * KEYS_OF_A_RANGE - 1)).unwrap();
                    assert_eq!(last.value().is_some(), range >= gone, "range {range}");
                }
                rounds += 1;
                if was_done {
                    return rounds;
                }
            }
        });
        let writer = scope.spawn(|| {
            let mut commits = 0;
            loop {
                let was_done = is_done.load(Ordering::Acquire);
                drop(other.insert(&key(commits), b"beside").unwrap());
                commits += 1;
                if was_done {
                    return commits;
                }
            }
        });
        for range in 0..RANGES {
            let from = key(range * KEYS_OF_A_RANGE);
            let to = key((range + 1) * KEYS_OF_A_RANGE);
            drop(wide.delete_range(&from[..]..&to[..]).unwrap());
        }
        is_done.store(true, Ordering::Release);
        (reader.join().unwrap(), writer.join().unwrap())
    });

    assert!(rounds > 0 && commits > 0);
    assert_eq!(wide.view().unwrap().count_exact().unwrap(), 0);
    assert_eq!(other.view().unwrap().count_exact().unwrap(), commits);
}

#[test]
fn masks_are_bounded() {
    let counted = CountedDisk::new(SimDisk::new(1) as Arc<dyn Disk>);
    let store = store_on(&counted);
    let write_buffer = WriteBuffer::Entries(500);
    let config = TableConfig::default().write_buffer(write_buffer);
    let table = store.create_table(&TableName::default(), &config).unwrap();
    insert_all(&table, 0..30_000, b"value");
    let mut model: BTreeSet<u64> = (0..30_000).collect();
    let runs = table.stats().unwrap().runs();

    for number in (0..4_000).step_by(2) {
        drop(table.delete_range(&key(number)[..]..&key(number + 1)[..]).unwrap());
        model.remove(&number);
    }

    let stats = table.stats().unwrap();
    assert!(
        stats.buffer_entries <= 500,
        "{} entries are waiting to be flushed",
        stats.buffer_entries
    );

    assert!(stats.levels.iter().map(|level| level.deletes).sum::<u64>() > 0 && runs > 0);
    let before = counted.counts();
    drop(table.delete_range(&key(5_000)[..]..&key(25_000)[..]).unwrap());
    assert!((counted.counts() - before).read_bytes < 1 << 20, "{:?}", counted.counts());
    model.retain(|number| !(5_000..25_000).contains(number));

    // It touches another one.
    drop(table.delete_range(&key(25_000)[..]..&key(25_010)[..]).unwrap());
    model.retain(|number| !(25_000..25_010).contains(number));

    let check = |store: &Store| {
        let found = crate::content(&store.table(&TableName::default()).unwrap().view().unwrap());
        assert!(found.into_iter().map(|(key, _)| key).eq(model.iter().map(|&number| key(number))));
    };

    check(&store);
    drop(table);
    store.close().unwrap();
    let (masks, _) = deleted_ranges(&counted, "manifest.a");
    assert!(masks.iter().all(|spans| *spans <= 1_001) && masks.contains(&1_000), "{masks:?}");
    check(&store_on(&counted));
}

/// The numbers of ranges that the runs of a manifest or a snapshot are seen without; the merges
/// among its levels.
fn deleted_ranges(disk: &Arc<CountedDisk>, file: &str) -> (Vec<u64>, Vec<MergeInfo>) {
    let path = Path::new("/store").join(file);
    let shape = match inspect(&(Arc::clone(disk) as Arc<dyn Disk>), &path).unwrap() {
        Inspection::Manifest(manifest) => manifest.tables[0].shape.clone().unwrap(),
        Inspection::Snapshot(snapshot) => *snapshot,
        other => panic!("{other:?}"),
    };
    let merges = shape.levels.iter().filter_map(|level| level.merge).collect();
    let of_levels = shape.levels.iter().flat_map(|level| &level.runs);
    let runs = shape.buffer.iter().chain(&shape.flushed).chain(of_levels).chain(&shape.union);
    (runs.map(|run| run.deleted_ranges).collect(), merges)
}

/// The images of a write buffer are shared by the versions before and after a deleted range, which
/// only those after it have. A table that was opened from a masked image and saved once more used
/// to refer to it unmasked.
#[test]
fn versions_share_images_and_not_what_was_deleted() {
    let counted = CountedDisk::new(SimDisk::new(1) as Arc<dyn Disk>);
    let store = store_on(&counted);
    let table = store.create_table(&TableName::default(), &crate::buffer_of(10_000)).unwrap();
    insert_all(&table, 0..300, &[7; 1_000]);
    store.checkpoint().unwrap();
    let whole = store.retain(None).unwrap();

    let reader = StoreReader::open(
        Arc::clone(&counted) as _,
        Path::new("/store"),
        &ReaderOptions::default(),
    );

    let reader = reader.unwrap();

    let before = counted.counts();
    drop(table.delete_range(&key(20)[..]..&key(280)[..]).unwrap());
    store.checkpoint().unwrap();
    let written = (counted.counts() - before).write_bytes;
    assert!(written < 64 << 10, "{written} bytes, as if an image was written anew");
    let masked = store.retain(None).unwrap();
    drop(table.delete_prefix(&key(5)).unwrap());
    let in_log = store.retain(None).unwrap();
    drop(table.insert(&key(100), b"new").unwrap());

    let count_of = |store: &Store, number| {
        let version = store.version(number).unwrap();
        version.table(&TableName::default()).unwrap().count_exact().unwrap()
    };

    let count = |store: &Store| {
        store.table(&TableName::default()).unwrap().view().unwrap().count_exact().unwrap()
    };

    let check = |store: &Store| {
        assert_eq!([whole, masked, in_log].map(|number| count_of(store, number)), [300, 40, 39]);
    };
    check(&store);
    assert_eq!(count(&store), 40);
    assert_eq!(reader.table(&TableName::default()).unwrap().count_exact().unwrap(), 300);
    store.back_up(&BackupPlace::new(Path::new("/backup")), &mut |_, _| {}).unwrap();
    drop((table, reader));
    store.close().unwrap();

    // Twice: what is saved by whom has opened it must be the same.
    for round in 0..2 {
        let store = store_on(&counted);
        check(&store);
        assert_eq!(count(&store), 40, "round {round}");
        drop(store.table(&TableName::default()).unwrap().insert(&key(0), b"again").unwrap());
        store.checkpoint().unwrap();
        store.close().unwrap();
    }

    let store = store_on(&counted);
    for (number, expected) in [(whole, 300), (in_log, 39), (masked, 40)] {
        store.roll_back(number).unwrap();
        assert_eq!(count(&store), expected);
    }

    store.checkpoint().unwrap();
    store.close().unwrap();
    assert_eq!(count(&store_on(&counted)), 40);
    let options = StoreOptions::default();
    let backup = Store::open(Arc::clone(&counted) as _, Path::new("/backup"), &options).unwrap();
    check(&backup);
    assert_eq!(count(&backup), 40);
}

/// A merge is under way when a range is deleted: it goes on, here and where it is opened again, and
/// the table sees neither its inputs nor its output with the range.
#[test]
fn a_merge_under_way_keeps_its_progress_over_a_deleted_range() {
    let counted = CountedDisk::new(SimDisk::new(1) as Arc<dyn Disk>);
    let options = SessionOptions::with_salt(SALT).create_dir();
    let open = || Session::open(Arc::clone(&counted) as _, Path::new("/store"), &options).unwrap();
    let session = open();

    let config = TableConfig::default()
        .size_ratio(2)
        .write_buffer(WriteBuffer::Entries(200))
        .compaction_batch_pages(1);

    let mut table = session.new_table(&config).unwrap();
    let mut model = Model::new();
    let put = |table: &mut Table, model: &mut Model, number: u64| {
        table.insert(&key(number), &[number as u8; 60]).unwrap();
        model.insert(key(number).to_vec(), vec![number as u8; 60]);
    };

    let mut next = 0;
    let (merge, before) = loop {
        assert!(next < 100_000, "no merge was under way");
        (0..40).for_each(|by| put(&mut table, &mut model, (next + by) * 7_919 % 10_007));
        next += 40;
        if table.stats().merge_debt_pages < 20 {
            continue;
        }
        let before = model.clone();
        table.save_snapshot(&name("whole"), "").unwrap();
        let mut masked = table.fork().unwrap();
        masked.delete_range(&key(1_000)[..]..&key(9_000)[..]).unwrap();
        masked.save_snapshot(&name("masked"), "").unwrap();
        let (_, merges) = deleted_ranges(&counted, "snapshots/masked.snapshot");
        let half = merges.iter().find(|merge| 2 * merge.passed_pages > merge.input_pages);
        if let Some(merge) = half {
            break (*merge, before);
        }
        session.delete_snapshot(&name("whole")).unwrap();
        session.delete_snapshot(&name("masked")).unwrap();
    };

    assert_eq!(merge.deleted_ranges, 1, "{merge:?}");
    drop(table);
    session.close().unwrap();

    let session = open();
    let mut tables =
        ["masked", "whole"].map(|text| session.open_snapshot(&name(text), "").unwrap());
    let mut models = [before.clone(), before];
    models[0].retain(|found, _| found[..] < key(1_000)[..] || found[..] >= key(9_000)[..]);

    for _ in 0..4 {
        for (table, model) in tables.iter_mut().zip(&mut models) {
            assert!(crate::content(table).into_iter().eq(model.clone()));
            (0..300).for_each(|by| put(table, model, (next + by) * 7_919 % 10_007));
        }
        next += 300;
    }

    for (mut table, model) in tables.into_iter().zip(models) {
        table.compact(&mut |_, _| {}).unwrap();
        assert!(crate::content(&table).into_iter().eq(model.clone()));
        assert_eq!(table.stats().entries(), model.len() as u64);
    }
}

/// Blobs of deleted entries go with the files when a merge has left them out; a reference that is
/// held keeps its own. And an upsert combines with nothing that a range has deleted.
#[test]
fn blobs_and_old_values_under_a_range_are_gone() {
    let disk = SimDisk::new(1);
    let options = SessionOptions::with_salt(SALT).create_dir();

    let session = Session::open(Arc::clone(&disk) as _, Path::new("/session"), &options).unwrap();
    for buffer in [10, 1_000] {
        let write_buffer = WriteBuffer::Entries(buffer);
        let resolve = MergeOperator::concatenate();
        let config = TableConfig::default().write_buffer(write_buffer).merge_operator(resolve);

        let mut table = session.new_table(&config).unwrap();
        for number in 0..100 {
            let blob = [number as u8; 4_000];
            table.write_batch(&[(key(number), Update::InsertWithBlob(b"old", &blob))]).unwrap();
        }

        let view = table.fork().unwrap();
        let kept = table.get(&key(50)).unwrap();
        table.delete_range(&key(10)[..]..&key(90)[..]).unwrap();
        assert!(table.get(&key(50)).unwrap().blob().is_none());
        table.write_batch(&[(key(60), Update::Upsert(b"new"))]).unwrap();
        assert_eq!(table.get(&key(60)).unwrap().value(), Some(&b"new"[..]));
        assert_eq!(session.retrieve_blobs(&[kept.blob().unwrap().clone()]).unwrap(), [[50; 4_000]]);
        drop((view, kept));
        table.save_snapshot(&name("saved"), "").unwrap();
        drop(table);

        let mut table = session.open_snapshot(&name("saved"), "").unwrap();
        session.delete_snapshot(&name("saved")).unwrap();
        table.write_batch(&[(key(61), Update::Upsert(b"new"))]).unwrap();

        for _ in 0..2 {
            for number in 60..62 {
                assert_eq!(table.get(&key(number)).unwrap().value(), Some(&b"new"[..]));
            }
            let last = table.get(&key(95)).unwrap();
            let blob = session.retrieve_blobs(&[last.blob().unwrap().clone()]).unwrap();
            assert_eq!(blob, [[95; 4_000]]);
            assert_eq!(table.count_exact().unwrap(), 22);
            table.compact(&mut |_, _| {}).unwrap();
        }

        let files = disk.files().into_iter().filter(|path| path.starts_with("/session/active"));
        let bytes: usize = files.map(|path| disk.read_raw(&path).unwrap().len()).sum();
        if buffer == 10 {
            assert!(bytes < 160_000, "{bytes} bytes for 20 blobs of 4,000");
        }
    }
}

/// A range delete is ordered among the updates of a commit of two tables: it covers earlier updates
/// and not later ones. A bound may be longer than a key.
#[test]
fn ranges_have_their_place_in_a_commit() {
    let counted = CountedDisk::new(SimDisk::new(1) as Arc<dyn Disk>);
    let store = store_on(&counted);
    let [one, two] = ["one", "two"].map(|text| {
        store.create_table(&TableName::new(text).unwrap(), &crate::buffer_of(3)).unwrap()
    });

    let longest = [9; KEY_BYTES_MAX];
    for table in [&one, &two] {
        drop(table.insert(&longest, b"").unwrap());
        (0..9).for_each(|key| drop(table.insert(&[key], b"old").unwrap()));
    }

    let updates: [(&[u8], Update<'_>); 4] = [
        (&[1], Update::Insert(b"lost")),
        (&[1], Update::DeleteRange(Some(&[5]))),
        (&[2], Update::Upsert(b"kept")),
        (&[8], Update::DeleteRange(None)),
    ];

    let last_only: [(&[u8], Update<'_>); 1] = [(&[7], Update::DeleteRange(Some(&[8])))];
    drop(store.commit(&[(&one, &updates[..]), (&two, &last_only)]).unwrap());
    drop(
        two.delete_range::<[u8], _>((Bound::Excluded(&[8_u8][..]), Bound::Included(&longest[..])))
            .unwrap(),
    );
    let none = two.delete_range(&[5][..]..&[5][..]).unwrap();
    assert_eq!(none.commit(), store.last_commit());
    let too_long = [1; KEY_BYTES_MAX + 2];
    let refused = one.write_batch(&[(&too_long[..], Update::DeleteRange(None))]);
    assert!(matches!(refused, Err(Error::KeyTooLarge { .. })), "{refused:?}");

    let check = |store: &Store| {
        let keys = |text| {
            let table = store.table(&TableName::new(text).unwrap()).unwrap();
            let found = crate::content(&table.view().unwrap());
            found.into_iter().map(|(key, _)| key[0]).collect::<Vec<_>>()
        };
        assert_eq!(keys("one"), [0, 2, 5, 6, 7]);
        assert_eq!(keys("two"), [0, 1, 2, 3, 4, 5, 6, 8]);
        let two = store.table(&TableName::new("one").unwrap()).unwrap().get(&[2]).unwrap();
        assert_eq!(two.value(), Some(&b"kept"[..]));
    };

    check(&store);
    drop((one, two));
    store.close().unwrap();
    check(&store_on(&counted));
}
