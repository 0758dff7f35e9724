//! Acceptance cases of the index, which `docs/requirements.md` names.
//!
//! Goal: each case holds, at a scale that a test can bear; what needs a large machine or many
//! gigabytes is measured by the benchmarks, with the same checks. Method: each case says what it
//! does.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use terrane_btree::{
    Config, Cursor, Duplicates, Error, Index, IterRecords, Loss, SortOptions, Sorter, Update,
    check, repair,
};
use terrane_io::Survival;
use terrane_io::{CountedDisk, Disk, SimDisk};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::damage::{INNER, LEAF, Model, pages_of, ruin, shared};
use crate::model::DIR;

fn dir() -> &'static Path {
    Path::new(DIR)
}

/// Keys of 32 bytes and values of 13, as they are in the reference store.
fn reference() -> Config {
    Config::fixed(32, 13).memory_bytes(4 << 20)
}

fn hash_key(number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(32);
    let mut word = number;
    for _ in 0..4 {
        word = (word ^ word >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number;
        key.extend_from_slice(&word.to_le_bytes());
    }
    key
}

fn value(number: u64) -> Vec<u8> {
    [&number.to_le_bytes()[..], b"large"].concat()
}

fn create(disk: &Arc<SimDisk>, config: &Config) -> Index {
    Index::create(shared(disk), dir(), config).unwrap()
}

fn reopen(index: Index, disk: &Arc<SimDisk>, config: &Config) -> Index {
    index.close().unwrap();
    drop(index);
    Index::open(shared(disk), dir(), config).unwrap()
}

fn content(cursor: Cursor) -> Vec<(Vec<u8>, Vec<u8>)> {
    cursor.map(Result::unwrap).collect()
}

fn pairs(model: &Model) -> Vec<(Vec<u8>, Vec<u8>)> {
    model.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn put_all(index: &Index, entries: &[(Vec<u8>, Vec<u8>)]) {
    for chunk in entries.chunks(1_000) {
        let chunk: Vec<(&[u8], &[u8])> =
            chunk.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        index.replace_many(&chunk).unwrap();
    }
}

fn assert_whole(disk: &Arc<SimDisk>, entries: u64) {
    let report = check(&shared(disk), dir(), &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, []);
    assert_eq!(report.entries, entries);
}

/// 100 k random keys: added, found, replaced; absent keys are not there; 1,415 distinct keys are
/// 1,415 entries.
#[test]
fn keys_are_added_found_and_replaced() {
    let disk = SimDisk::new(1);
    let index = create(&disk, &reference());
    let entries: Vec<_> = (0..100_000).map(|number| (hash_key(number), value(number))).collect();
    put_all(&index, &entries);
    assert_eq!(index.len().unwrap(), 100_000);
    for chunk in entries.chunks(5_000) {
        let keys: Vec<&[u8]> = chunk.iter().map(|(key, _)| key.as_slice()).collect();
        for (found, (_, value)) in index.find_many(&keys).unwrap().iter().zip(chunk) {
            assert_eq!(found.as_ref(), Some(value));
        }
    }

    for number in (0..100_000).step_by(97) {
        assert!(index.mem(&hash_key(number)).unwrap());
        let absent = hash_key(number + 1_000_000);
        assert!(!index.mem(&absent).unwrap());
        assert_eq!(index.find(&absent).unwrap(), None);
        index.replace(&hash_key(number), &value(7)).unwrap();
        assert_eq!(index.find(&hash_key(number)).unwrap(), Some(value(7)));
    }

    assert_eq!(index.len().unwrap(), 100_000);
    index.clear().unwrap();
    for number in 0..5_000 {
        index.replace(&hash_key(number % 1_415), &value(number)).unwrap();
    }

    assert_eq!(index.len().unwrap(), 1_415);
    let index = reopen(index, &disk, &reference());
    assert_eq!(index.len().unwrap(), 1_415);
    index.close().unwrap();
    assert_whole(&disk, 1_415);
}

/// Removals leave leaves two fifths full, in neighbours that are not joined; compaction makes them
/// full, and reads them only where they are.
#[test]
fn compaction_packs_half_empty_leaves() {
    let disk = SimDisk::new(1);
    let config = Config::variable().memory_bytes(4 << 20);
    let mut index = create(&disk, &config);
    let key = |number: u64| hash_key(number)[..20].to_vec();
    let put: Vec<Vec<u8>> = (0..40_000).map(key).collect();
    let updates: Vec<_> = put.iter().map(|key| Update::Replace(key, &[7; 60])).collect();
    for batch in updates.chunks(1_000) {
        index.commit(batch).unwrap();
    }

    let gone: Vec<_> = put.iter().skip(1).step_by(2).map(|key| Update::Remove(key)).collect();
    index.commit(&gone).unwrap();
    let snapshot = index.snapshot().unwrap();
    let before = content(snapshot.range::<&[u8]>(..).unwrap());
    assert_eq!(before.len(), 20_000);
    index.checkpoint().unwrap();

    // Pages that a snapshot needs stay, so a part of the file is packed and the rest left.
    let sparse = index.stats().unwrap().file_bytes;
    index.compact().unwrap();
    let held = index.stats().unwrap().file_bytes;
    assert!(held < sparse * 3 / 2, "{held} of {sparse}");
    assert_eq!(content(snapshot.range::<&[u8]>(..).unwrap()), before);
    drop(snapshot);
    index.compact().unwrap();
    let stats = index.stats().unwrap();
    let entries: u64 = before.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();

    // Full but for what a page has besides: a tenth, and nodes, the map and superblocks.
    assert!(stats.file_bytes * 4 < entries * 5, "{} of {entries}", stats.file_bytes);
    let written = disk.counts().write_bytes;
    index.compact().unwrap();
    let again = disk.counts().write_bytes - written;
    assert!(again < stats.file_bytes / 4, "{again} of {}", stats.file_bytes);
    index = reopen(index, &disk, &config);
    assert_eq!(content(index.iter().unwrap()), before);
    index.close().unwrap();
    assert_whole(&disk, 20_000);
}

/// A damaged leaf keeps its neighbours from being packed, and the file from nothing else.
#[test]
fn compaction_goes_on_behind_a_damaged_leaf() {
    let disk = SimDisk::new(1);
    let config = Config::variable().memory_bytes(1 << 20).buffer_bytes(0);
    let index = create(&disk, &config);
    for number in 0..2_000 {
        index.replace(&hash_key(number), &[7; 100]).unwrap();
    }

    index.checkpoint().unwrap();
    for number in 0..1_000 {
        index.remove(&hash_key(number)).unwrap();
    }

    index.close().unwrap();
    let is_needed = |page: &usize| {
        let copy = disk.clone_disk();
        ruin(&copy, &[*page]);
        !check(&shared(&copy), dir(), &mut |_, _| {}).unwrap().problems.is_empty()
    };

    let page = pages_of(&disk, |kind| kind == LEAF).into_iter().find(is_needed).unwrap();
    ruin(&disk, &[page]);
    let index = Index::open(shared(&disk), dir(), &config).unwrap();
    index.compact().unwrap();
    let found = (1_000..2_000).filter(|n| matches!(index.find(&hash_key(*n)), Ok(Some(_)))).count();
    assert!((900..1_000).contains(&found), "{found}");
}

/// All added keys are removed again, odd ones at once and even ones later: nothing is left, not
/// even a level; and ten times that takes no more space than once.
#[test]
fn emptied_indexes_are_empty_and_their_space_is_used_again() {
    let disk = SimDisk::new(1);

    // Nothing waits in memory, so every update reaches the leaves.
    let config = Config::fixed(32, 13).memory_bytes(1 << 20).buffer_bytes(0);
    let mut index = create(&disk, &config);
    let mut file_bytes = Vec::new();
    for cycle in 0..10_u64 {
        for number in 0..1_000 {
            index.replace(&hash_key(number), &value(number)).unwrap();
            if number % 2 == 1 {
                assert!(index.remove(&hash_key(number)).unwrap());
            }
        }
        assert_eq!(index.len().unwrap(), 500);
        index.checkpoint().unwrap();
        for number in (0..1_000).step_by(2) {
            assert!(index.remove(&hash_key(number)).unwrap());
        }
        assert!(!index.remove(&hash_key(0)).unwrap());
        assert_eq!(index.len().unwrap(), 0);
        if cycle % 2 == 1 {
            index = reopen(index, &disk, &config);
        }
        index.flush(true).unwrap();
        // Every update applies some of those flushed before it, even one that changes nothing.
        for _ in 0..100 {
            index.remove(&hash_key(0)).unwrap();
        }
        index.checkpoint().unwrap();
        let stats = index.stats().unwrap();
        assert_eq!((stats.entries, stats.buffered_updates, stats.height), (0, 0, 0));
        assert_eq!(content(index.iter().unwrap()), []);
        file_bytes.push(stats.file_bytes);
    }

    // The first cycle has nothing yet that waits to be used again.
    assert!(file_bytes[2..].iter().all(|bytes| *bytes <= file_bytes[1]), "{file_bytes:?}");
    assert!(file_bytes[1] < 2 * file_bytes[0], "{file_bytes:?}");
    index.close().unwrap();
    assert_whole(&disk, 0);
}

/// One of 10^5 random operations on an index and a map.
fn step(index: &Index, model: &mut Model, rng: &mut ChaCha8Rng, spread: u64) {
    let key = hash_key(rng.below(spread));
    match rng.below(10) {
        0..4 => {
            let value = value(rng.below(1_000));
            index.replace(&key, &value).unwrap();
            model.insert(key, value);
        }
        4..7 => assert_eq!(index.remove(&key).unwrap(), model.remove(&key).is_some()),
        _ => assert_eq!(index.find(&key).unwrap().as_ref(), model.get(&key)),
    }
}

/// 10^5 random operations against a sorted map, growing and shrinking; order, balance, fences and
/// density are checked.
#[test]
fn operations_are_those_of_a_map() {
    for_each_seed("operations_are_those_of_a_map", 1, |rng, seed| {
        let disk = SimDisk::new(seed);
        let config = Config::fixed(32, 13).memory_bytes(1 << 20).buffer_bytes(20_000);
        let index = create(&disk, &config);
        let mut model = Model::new();
        for round in 0..20_u64 {
            let spread = [200, 4_000, 20_000][(round % 3) as usize];
            for _ in 0..5_000 {
                step(&index, &mut model, rng, spread);
            }
            assert_eq!(index.len().unwrap(), model.len() as u64);
            index.checkpoint().unwrap();
            let report = check(&shared(&disk), dir(), &mut |_, _| {}).unwrap();
            assert_eq!(report.problems, []);
            assert_eq!(report.entries, model.len() as u64);
            assert_eq!(report.sparse_leaves, 0, "round {round}");
        }
        assert_eq!(content(index.iter().unwrap()), pairs(&model));
    });
}

/// A partial merge beside a neighbour from which entries were removed before: a prototype that kept
/// the removed entries as dead ones chose its separator beyond one of these, and lost keys.
#[test]
fn a_partial_merge_beside_removed_entries_keeps_the_order() {
    let disk = SimDisk::new(1);
    let config = Config::fixed(32, 13).memory_bytes(1 << 20).buffer_bytes(0);
    let index = create(&disk, &config);
    let key = |number: u64| format!("{number:032}").into_bytes();
    let mut model: Model = (0..2_000).map(|number| (key(number), value(number))).collect();
    index.build_sorted(&mut IterRecords::new(model.clone()), 90, |_| {}).unwrap();
    let remove = |number: u64, model: &mut Model| {
        assert!(index.remove(&key(number)).unwrap());
        model.remove(&key(number));
    };

    // Every third key everywhere, which leaves every leaf above the least; then nearly all of one
    // leaf after the other.
    for number in (0..2_000).step_by(3) {
        remove(number, &mut model);
    }

    let merges = index.stats().unwrap().merges;
    for number in (0..2_000).filter(|number| number % 3 != 0 && number / 60 % 2 == 0) {
        remove(number, &mut model);
        if let Some((next, _)) = model.range(key(number)..).next() {
            assert!(index.mem(next).unwrap());
        }
    }

    assert!(index.stats().unwrap().merges > merges);
    assert_eq!(content(index.iter().unwrap()), pairs(&model));
    index.checkpoint().unwrap();
    assert_whole(&disk, model.len() as u64);
}

/// All inner pages of 10 k keys are damaged: a check says so, a repair restores every key. A
/// damaged leaf is reported, and the rest stays usable.
#[test]
fn inner_pages_are_rebuilt_from_leaves() {
    let disk = SimDisk::new(1);
    let config = reference().buffer_bytes(100_000);
    let index = create(&disk, &config);
    let mut model = Model::new();
    for number in 0..10_000_u64 {
        let number = number * 7_919 % 10_000;
        index.replace(&hash_key(number), &value(number)).unwrap();
        model.insert(hash_key(number), value(number));
    }

    index.checkpoint().unwrap();
    index.replace(&hash_key(3), &value(4)).unwrap();
    model.insert(hash_key(3), value(4));
    index.close().unwrap();
    drop(index);
    let inner = pages_of(&disk, |kind| kind == INNER);
    assert!(!inner.is_empty());
    ruin(&disk, &inner);
    let found = check(&shared(&disk), dir(), &mut |_, _| {}).unwrap();
    assert!(!found.problems.is_empty());
    let report = repair(&shared(&disk), dir(), Loss::Refused, |_, _| {}).unwrap();
    assert_eq!((report.entries, report.stale, report.lost), (10_000, vec![], vec![]));
    let index = Index::open(shared(&disk), dir(), &config).unwrap();
    assert_eq!(content(index.iter().unwrap()), pairs(&model));
    index.checkpoint().unwrap();
    index.close().unwrap();
    assert_whole(&disk, 10_000);

    let leaves = pages_of(&disk, |kind| kind == LEAF);
    ruin(&disk, &leaves[..1]);
    let index = Index::open(shared(&disk), dir(), &config).unwrap();
    let mut damaged = 0;
    for (key, value) in &model {
        match index.find(key) {
            Ok(found) => assert_eq!(found.as_ref(), Some(value)),
            Err(Error::Corrupt { what, .. }) => {
                assert_eq!(what.page, leaves[0] as u64);
                damaged += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }

    assert!(damaged < 100, "{damaged}");
}

/// Durably flushed updates survive a loss of power; others are lost from the end only; and
/// the flush callback runs before any update of its flush is on disk.
#[test]
fn flushed_updates_survive_and_the_callback_comes_first() {
    let disk = SimDisk::new(1);
    let config = Config::fixed(32, 13).memory_bytes(1 << 20).buffer_bytes(0);
    let index = create(&disk, &config);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = calls.clone();
    let on_disk = disk.clone();
    let log_bytes = move || -> usize {
        let files = on_disk.files().into_iter().filter(|path| path.extension().is_some());
        files.map(|path| on_disk.read_raw(path).unwrap().len()).sum()
    };

    let bytes_before = log_bytes.clone();
    index
        .before_flush(Box::new(move || {
            seen.lock().unwrap().push(bytes_before());
            Ok(())
        }))
        .unwrap();
    let mut after = log_bytes();
    for round in 0..30_u64 {
        for number in round * 10..round * 10 + 10 {
            index.replace(&hash_key(number), &value(number)).unwrap();
        }
        let is_durable = round % 3 == 0;
        index.flush(is_durable).unwrap();
        // Nothing of it was in the WAL when the callback ran; an apply may have sealed nothing
        // else.
        assert_eq!(calls.lock().unwrap().last().copied(), Some(after));
        assert!(log_bytes() > after);
        after = log_bytes();
        let durable = round / 3 * 30 + 10;
        for survival in [Survival::Nothing, Survival::Random(round), Survival::Torn(round)] {
            let crashed = disk.after_crash(survival);
            let index = Index::open(shared(&crashed), dir(), &config).unwrap();
            let len = index.len().unwrap();
            assert!(
                len >= durable && len <= round * 10 + 10 && len.is_multiple_of(10),
                "{len} {round}"
            );
            for number in 0..round * 10 + 10 {
                let expected = (number < len).then(|| value(number));
                assert_eq!(index.find(&hash_key(number)).unwrap(), expected);
            }
        }
    }

    assert_eq!(calls.lock().unwrap().len(), 30);
    index.before_flush(Box::new(|| Err("the data is not there".to_owned()))).unwrap();
    index.replace(&hash_key(5_000), &value(1)).unwrap();
    assert!(matches!(index.flush(true), Err(Error::FlushRefused { .. })));
    assert_eq!(log_bytes(), after);
    assert!(index.mem(&hash_key(5_000)).unwrap());
    index.before_flush(Box::new(|| Ok(()))).unwrap();
    index.flush(true).unwrap();
    assert!(log_bytes() > after);
}

/// Built trees have what inserted ones have; bad input is refused with its position; unsorted input
/// goes through a sort that keeps its memory and goes on after an interruption; pages are as full
/// as asked for.
#[test]
fn built_trees_are_those_of_insertion() {
    let disk = SimDisk::new(1);
    let model: Model = (0..20_000).map(|number| (hash_key(number), value(number))).collect();
    let inserted = Index::create(shared(&disk), Path::new("/inserted"), &reference()).unwrap();
    put_all(&inserted, &pairs(&model));
    let mut fills = Vec::new();
    for fill in [50, 70, 90, 100] {
        let at = Path::new("/").join(format!("built{fill}"));
        let built = Index::create(shared(&disk), &at, &reference()).unwrap();
        let count = built.build_sorted(&mut IterRecords::new(model.clone()), fill, |_| {}).unwrap();
        assert_eq!(count, 20_000);
        assert_eq!(content(built.iter().unwrap()), content(inserted.iter().unwrap()));
        let again = built.build_sorted(&mut IterRecords::new(model.clone()), fill, |_| {});
        assert!(matches!(again, Err(Error::NotEmpty { .. })));
        built.close().unwrap();
        let report = check(&shared(&disk), &at, &mut |_, _| {}).unwrap();
        assert_eq!(report.problems, []);
        let asked = f64::from(fill) / 100.0;
        assert!((report.leaf_fill - asked).abs() < 0.03, "{fill}: {}", report.leaf_fill);
        fills.push(report.leaves);
    }

    assert!(fills.is_sorted_by(|a, b| a > b), "{fills:?}");

    let empty = Index::create(shared(&disk), Path::new("/empty"), &reference()).unwrap();
    for (bad, expected) in [(vec![1, 2, 4, 3], "NotSorted"), (vec![1, 2, 2], "DuplicateKey")] {
        let records = bad.iter().map(|&n: &u8| (vec![n; 32], vec![n; 13]));
        let error = empty.build_sorted(&mut IterRecords::new(records), 90, |_| {}).unwrap_err();
        let position = match &error {
            Error::NotSorted { position } if expected == "NotSorted" => *position,
            Error::DuplicateKey { position } if expected == "DuplicateKey" => *position,
            other => panic!("{other}"),
        };
        assert_eq!(position, bad.len() as u64 - 1);
        assert!(empty.is_empty().unwrap());
    }

    // In any order, with duplicates of which the last wins, with little memory; given up in the
    // middle and begun anew.
    let unsorted = || {
        let early = (0..10_000).map(|number| (hash_key(number), value(0)));
        early.chain((0..20_000).rev().map(|number| (hash_key(number), value(number))))
    };

    disk.create_dir(Path::new("/sort")).unwrap();
    let mut options = SortOptions::new(Path::new("/sort"), 7);
    (options.memory_bytes, options.fan_in) = (160 << 10, 15);
    options.duplicates = Duplicates::LastWins;
    let mut sorter = Sorter::open(shared(&disk), options.clone()).unwrap();
    sorter.push_all(&mut IterRecords::new(unsorted().take(12_000)), &mut |_| {}).unwrap();
    assert!(sorter.stats().runs > 1 && sorter.stats().memory_bytes_max <= options.memory_bytes);
    drop(sorter);
    assert!(Sorter::open(shared(&disk), options.clone()).unwrap().resumes_at() > 0);
    let count =
        empty.build_unsorted(&mut IterRecords::new(unsorted()), options, 90, |_| {}).unwrap();
    assert_eq!(count, 20_000);
    assert_eq!(content(empty.iter().unwrap()), pairs(&model));
}

/// Cursors ascend or descend, give each key once, and stand still while the index changes.
#[test]
fn cursors_are_ordered_and_stand_still() {
    let disk = SimDisk::new(1);
    let config = Config::variable().memory_bytes(1 << 20).buffer_bytes(0);
    let index = create(&disk, &config);
    let key = |number: u64| format!("{}/{number:05}", number % 7).into_bytes();
    let model: Model = (0..5_000).map(|number| (key(number), value(number))).collect();
    put_all(&index, &pairs(&model));
    let mut cursor = index.iter().unwrap();
    let mut back = index.range_back::<&[u8]>(..).unwrap();
    let mut forward = Vec::new();
    let mut backward = Vec::new();
    for number in 0..5_000_u64 {
        forward.push(cursor.next_ref().unwrap().map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
        backward.push(back.next_ref().unwrap().map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
        index.replace(&key(number * 31 % 6_000), b"later").unwrap();
        index.remove(&key(number * 17 % 5_000)).unwrap();
    }

    assert!(cursor.next_ref().unwrap().is_none() && back.next_ref().unwrap().is_none());
    backward.reverse();
    assert_eq!(forward, pairs(&model));
    assert_eq!(backward, forward);
    drop((cursor, back));
    let now: Model = content(index.iter().unwrap()).into_iter().collect();
    for (low, high) in [(key(3), key(500)), (key(6), key(4)), (key(0), key(4_999))] {
        let mut expected = Vec::new();
        if low < high {
            expected = pairs(&now.range(low.clone()..high.clone()).map(owned).collect());
        }
        assert_eq!(content(index.range(low.clone()..high.clone()).unwrap()), expected);
        expected.reverse();
        assert_eq!(content(index.range_back(low..high).unwrap()), expected);
    }

    for prefix in [&b"3/"[..], b"3/01", b"9", b""] {
        let with = now.iter().filter(|(key, _)| key.starts_with(prefix)).map(owned);
        let mut expected = pairs(&with.collect());
        assert_eq!(content(index.prefix(prefix).unwrap()), expected);
        expected.reverse();
        assert_eq!(content(index.prefix_back(prefix).unwrap()), expected);
    }
}

fn owned((key, value): (&Vec<u8>, &Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    (key.clone(), value.clone())
}

/// A filter removes exactly what does not match, of leaves as of what waits above them, and what
/// was cached agrees.
#[test]
fn a_filter_keeps_exactly_what_matches() {
    let disk = SimDisk::new(1);
    let config = reference().buffer_bytes(200_000);
    let index = create(&disk, &config);
    let mut model: Model = (0..10_000).map(|number| (hash_key(number), value(number))).collect();
    put_all(&index, &pairs(&model));
    for key in model.keys() {
        assert!(index.mem(key).unwrap());
    }

    let is_kept = |_: &[u8], value: &[u8]| value[0].is_multiple_of(3);
    index.filter(is_kept).unwrap();
    let all = std::mem::take(&mut model);
    for (key, value) in all {
        let expected = is_kept(&key, &value).then(|| value.clone());
        assert_eq!(index.find(&key).unwrap(), expected);
        model.extend(expected.map(|value| (key, value)));
    }

    assert_eq!(index.len().unwrap(), model.len() as u64);
    let before = pairs(&model);
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let calls = AtomicU64::new(0);
        index.filter(|_, _| {
            assert!(calls.fetch_add(1, Ordering::Relaxed) < 500, "the filter gives up");
            false
        })
    }));

    assert!(panics.is_err());
    assert_eq!(content(index.iter().unwrap()), before);
    let index = reopen(index, &disk, &config);
    assert_eq!(content(index.iter().unwrap()), before);
    index.close().unwrap();
    assert_whole(&disk, model.len() as u64);
}

/// A filter joins a leaf that it has emptied with the next one, and comes by the joined leaf again:
/// it took what waited above the first part for entries that it removes once more, and the length
/// became too small.
#[test]
fn a_filter_counts_every_entry_once() {
    for_each_seed("a_filter_counts_every_entry_once", 4, |rng, seed| {
        let disk = SimDisk::new(seed);
        let config =
            Config::variable().memory_bytes(2 << 20).buffer_bytes(100_000).log_bytes_max(1 << 18);
        let index = create(&disk, &config);
        let mut model = Model::new();
        for _ in 0..12 {
            for _ in 0..1_500 {
                let key = hash_key(rng.below(20_000));
                let value = rng.bytes(60);
                index.replace(&key, &value).unwrap();
                model.insert(key, value);
            }
            let part = 2 + rng.below(20) as u8;
            let mut asked = 0;
            index
                .filter(|key, _| {
                    asked += 1;
                    key[0] % part == 0
                })
                .unwrap();
            assert_eq!(asked, model.len());
            model.retain(|key, _| key[0] % part == 0);
            assert_eq!(index.len().unwrap(), model.len() as u64);
            assert_eq!(content(index.iter().unwrap()), pairs(&model));
        }
    });
}

/// With all but the leaves cached a find reads one page at most, of a key that is there or not; and
/// all memory stays within the budget, on a scale model of the reference store: the same ratio of
/// memory to entries.
#[test]
fn a_find_reads_one_page_within_the_budget() {
    let disk = CountedDisk::new(SimDisk::new(1));
    let on_disk: Arc<dyn Disk> = disk.clone();

    // 291 M entries under 1 GiB are 300 k entries under 1.1 MiB.
    let budget = 1 << 20;
    let config = Config::fixed(32, 13).memory_bytes(budget);
    let index = Index::create(on_disk, dir(), &config).unwrap();
    let mut keys: Vec<Vec<u8>> = (0..100_000).map(hash_key).collect();
    keys.sort_unstable();
    let mut input = IterRecords::new(keys.iter().map(|key| (key.clone(), vec![7; 13])));
    index.build_sorted(&mut input, 70, |_| {}).unwrap();
    for number in 0..2_000 {
        index.mem(&hash_key(number)).unwrap();
    }

    for number in 0..1_000_u64 {
        for key in [hash_key(number * 89 % 100_000), hash_key(number + 1_000_000)] {
            let before = disk.counts().reads;
            let is_there = keys.binary_search(&key).is_ok();
            assert_eq!(index.mem(&key).unwrap(), is_there);
            assert!(disk.counts().reads - before <= 1);
        }
    }

    for number in 100_000..110_000_u64 {
        index.replace(&hash_key(number), &value(number)).unwrap();
        if number % 100 == 0 {
            let stats = index.stats().unwrap();
            let cached: u64 = stats.cached_pages.iter().sum();
            let memory = cached * 4096 + stats.buffer_bytes + stats.fresh_node_bytes;
            assert!(memory <= budget as u64, "{stats:?}");
        }
    }
}

/// A mix of 10 adds, 69 finds and 20 looks for presence with recorded results: all match.
#[test]
fn a_recorded_mix_is_replayed() {
    for_each_seed("a_recorded_mix_is_replayed", 1, |rng, seed| {
        let disk = SimDisk::new(seed);
        let index = create(&disk, &reference());
        let loaded: Model = (0..30_000).map(|number| (hash_key(number), value(number))).collect();
        index.build_sorted(&mut IterRecords::new(loaded.clone()), 90, |_| {}).unwrap();
        // The record: what a map said.
        let mut model = loaded;
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for number in 0..20_000 {
            let key = hash_key(rng.below(60_000));
            let kind = match rng.below(99) {
                0..10 => {
                    let value = value(number);
                    index.apply(&[Update::Replace(&key, &value)]).unwrap();
                    model.insert(key, value);
                    "add"
                }
                10..79 => {
                    assert_eq!(index.find(&key).unwrap().as_ref(), model.get(&key), "{number}");
                    "find"
                }
                _ => {
                    assert_eq!(index.mem(&key).unwrap(), model.contains_key(&key), "{number}");
                    "mem"
                }
            };
            *counts.entry(kind).or_default() += 1;
            if number % 5_000 == 0 {
                index.flush(true).unwrap();
            }
        }
        assert_eq!(counts.len(), 3);
        assert_eq!(index.len().unwrap(), model.len() as u64);
        assert!(index.stats().unwrap().syncs >= 4);
    });
}

/// Separators that are cut short must not be cut again between two separators: with `INDEX` and
/// `INODE` below `I` and `INT`, the separator above must be `INO`, not `IN`. Every key is found at
/// three levels or more, after divisions and joins.
#[test]
fn shortened_separators_lead_to_every_key() {
    let disk = SimDisk::new(1);
    let config = Config::variable().memory_bytes(1 << 20).buffer_bytes(0);
    let index = create(&disk, &config);

    // A long head makes nodes with few children; the tails differ where separators are cut.
    let words =
        ["H", "I", "IM", "IN", "INDEX", "INDIGO", "INK", "INODE", "INOX", "INT", "INTO", "J"];
    let key = |at: u64| {
        let word = words[(at % 12) as usize];
        let tail = ["", "E", "EX", "O", "T"][(at / 12 % 5) as usize];
        let head = "x".repeat(340 + (at % 12) as usize);
        format!("{}{head}{word}{tail}{:03}", at % 12 / 4, at / 60).into_bytes()
    };

    let mut model = Model::new();
    for at in 0..1_200_u64 {
        let at = at * 7 % 1_200;
        index.replace(&key(at), word_value(at)).unwrap();
        model.insert(key(at), word_value(at).to_vec());
        if at % 100 == 0 {
            find_all(&index, &model);
        }
    }

    let height = index.stats().unwrap().height;
    assert!(height >= 2, "{height}");
    find_all(&index, &model);
    for at in (0..1_200).filter(|at| at % 5 != 0) {
        assert!(index.remove(&key(at)).unwrap());
        model.remove(&key(at));
        if at % 60 == 1 {
            find_all(&index, &model);
        }
    }

    assert!(index.stats().unwrap().merges > 0);
    find_all(&index, &model);
    index.checkpoint().unwrap();
    assert_whole(&disk, model.len() as u64);
    index.close().unwrap();
}

fn word_value(at: u64) -> &'static [u8] {
    if at.is_multiple_of(2) { b"even" } else { b"odd" }
}

fn find_all(index: &Index, model: &Model) {
    for (key, value) in model {
        assert_eq!(index.find(key).unwrap().as_ref(), Some(value));
    }
}
