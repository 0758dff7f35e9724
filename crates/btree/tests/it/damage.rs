//! Damaged files: bit rot, zeroed, swapped and missing pages, cut files; and what a repair makes of
//! them.
//!
//! Goal: whatever single damage there is, opening, lookups, cursors and checks give the right
//! entries or say what is damaged, and never panic; a damaged leaf hides its own keys only; a
//! repair brings back all keys but those that it names. Method: the files of small indexes are
//! damaged at many places in turn, and everything is compared with a sorted map.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_btree::{
    Config, Error, Index, IndexReader, IterRecords, Loss, PAGE_SIZE, RepairReport, check, repair,
};
use terrane_io::Survival;
use terrane_io::{Disk, SimDisk};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Sweep;

use crate::model::DIR;

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys from the first on, and below the second.
type Range = (Vec<u8>, Option<Vec<u8>>);

/// Kinds of pages, as the format has them.
pub(crate) const LEAF: u8 = 1;
pub(crate) const INNER: u8 = 2;

pub(crate) fn tree_path() -> PathBuf {
    Path::new(DIR).join("tree")
}

fn config() -> Config {
    Config::variable().memory_bytes(1 << 20).buffer_bytes(0).log_bytes_max(1 << 16)
}

/// Entries with long keys, so that a few hundred make a tree of three levels.
fn key(number: u64) -> Vec<u8> {
    format!("{:>180}{number:04}", if number.is_multiple_of(2) { "INDEX" } else { "INODE" })
        .into_bytes()
}

pub(crate) fn shared(disk: &Arc<SimDisk>) -> Arc<dyn Disk> {
    disk.clone()
}

/// An index that was changed many times, so that older leaves stand in free pages, with updates in
/// its log. Closed.
fn changed_index(seed: u64) -> (Arc<SimDisk>, Model) {
    let disk = SimDisk::new(seed);
    let index = Index::create(shared(&disk), Path::new(DIR), &config()).unwrap();
    let mut model = Model::new();
    for round in 0..6_u64 {
        for number in (0..90).filter(|number| (number + round) % 3 != 0) {
            let key = key(number);
            let value = vec![round as u8; 20];
            index.replace(&key, &value).unwrap();
            model.insert(key, value);
        }
        index.remove(&key(round * 7)).unwrap();
        model.remove(&key(round * 7));
        if round % 2 == 0 {
            index.checkpoint().unwrap();
        }
    }

    index.close().unwrap();
    (disk, model)
}

/// An index whose pages are all those of its tree. Closed.
fn built_index(entries: u64) -> (Arc<SimDisk>, Model) {
    let disk = SimDisk::new(1);
    let index = Index::create(shared(&disk), Path::new(DIR), &config()).unwrap();
    let model: Model = (0..entries).map(|number| (key(number), vec![number as u8; 30])).collect();
    index.build_sorted(&mut IterRecords::new(model.clone()), 90, |_| {}).unwrap();
    index.close().unwrap();
    (disk, model)
}

/// Numbers of the pages of a kind.
pub(crate) fn pages_of(disk: &SimDisk, is_it: impl Fn(u8) -> bool) -> Vec<usize> {
    let bytes = disk.read_raw(tree_path()).unwrap();
    let pages = bytes.chunks_exact(PAGE_SIZE).enumerate().skip(2);
    pages.filter(|(_, page)| is_it(page[4])).map(|(number, _)| number).collect()
}

/// Writes over pages what no page looks like.
pub(crate) fn ruin(disk: &SimDisk, pages: &[usize]) {
    let mut bytes = disk.read_raw(tree_path()).unwrap();
    for &page in pages {
        bytes[page * PAGE_SIZE..(page + 1) * PAGE_SIZE].fill(0xA5);
    }
    disk.write_raw(tree_path(), &bytes);
}

fn is_typed(error: &Error) -> bool {
    matches!(
        error,
        Error::Corrupt { .. }
            | Error::NotAnIndex { .. }
            | Error::UnsupportedVersion { .. }
            | Error::ConfigMismatch { .. }
            | Error::Disk(_)
    )
}

fn content(index: &Index) -> Result<Model, Error> {
    index.iter()?.collect()
}

/// Everything that can be asked of a damaged index is right or refused; returns whether something
/// was refused.
fn look_at(disk: &Arc<SimDisk>, model: &Model, what: &str) -> bool {
    let mut is_refused = false;
    let mut note = |error: Error| {
        assert!(is_typed(&error), "{what}: {error}");
        is_refused = true;
    };

    match IndexReader::open(shared(disk), Path::new(DIR), &config()) {
        Err(error) => note(error),
        Ok(reader) => match reader.iter().and_then(Iterator::collect::<Result<Model, Error>>) {
            Ok(found) => assert!(found == *model, "{what}: a reader has other entries"),
            Err(error) => note(error),
        },
    }

    match Index::open(shared(disk), Path::new(DIR), &config()) {
        Err(error) => note(error),
        Ok(index) => {
            for (key, value) in model.iter().step_by(7) {
                match index.find(key) {
                    Ok(found) => assert_eq!(found.as_ref(), Some(value), "{what}"),
                    Err(error) => note(error),
                }
            }
            match content(&index) {
                Ok(found) => assert!(found == *model, "{what}: other entries"),
                Err(error) => note(error),
            }
            // Nothing is to be written for closing.
            index.close().unwrap_or_else(&mut note);
        }
    }

    is_refused
}

fn is_in(key: &[u8], ranges: &[Range]) -> bool {
    let is_above = |high: &Vec<u8>| key < high.as_slice();
    ranges.iter().any(|(low, high)| low.as_slice() <= key && high.as_ref().is_none_or(is_above))
}

/// Repairs, and compares all but what the repair names.
fn repair_and_compare(disk: &Arc<SimDisk>, model: &Model, what: &str) -> Option<RepairReport> {
    let report = match repair(&shared(disk), Path::new(DIR), Loss::Accepted, |_, _| {}) {
        Ok(report) => report,
        Err(error) => {
            assert!(is_typed(&error), "{what}: {error}");
            return None;
        }
    };

    let checked = check(&shared(disk), Path::new(DIR), &mut |_, _| {}).unwrap();
    assert_eq!(checked.problems, [], "{what}");
    let index = Index::open(shared(disk), Path::new(DIR), &config()).unwrap();
    let found = content(&index).unwrap();
    assert_eq!(index.len().unwrap(), found.len() as u64, "{what}");
    assert_eq!(report.entries, found.len() as u64, "{what}");
    let is_named = |key: &[u8]| is_in(key, &report.stale) || is_in(key, &report.lost);
    let sure = |model: &Model| -> Model {
        model.clone().into_iter().filter(|(key, _)| !is_named(key)).collect()
    };

    // Which keys a lost part of the log had, nothing tells.
    if report.log_lost.is_empty() {
        assert!(sure(&found) == sure(model), "{what}: {report:?}");
    }

    for (key, value) in &found {
        assert_eq!(index.find(key).unwrap().as_ref(), Some(value), "{what}");
    }

    // And work goes on.
    index.replace(b"after", b"the repair").unwrap();
    index.checkpoint().unwrap();
    index.close().unwrap();
    let again = repair(&shared(disk), Path::new(DIR), Loss::Accepted, |_, _| {}).unwrap();
    assert!(again.was_whole, "{what}");
    Some(report)
}

/// One wrong bit in every place that matters: all of each header, and some of the rest of each
/// page.
#[test]
fn a_flipped_bit_never_gives_a_wrong_entry() {
    let (disk, model) = changed_index(1);
    assert!(!look_at(&disk.clone_disk(), &model, "whole"));
    let mut refused = 0;
    let mut exact = 0;
    let mut partly = 0;
    let log: Vec<PathBuf> =
        disk.files().into_iter().filter(|path| !path.ends_with("lock")).collect();
    for path in log {
        let len = disk.read_raw(&path).unwrap().len();
        let step = if path == tree_path() { by_effort(397, 97) } else { by_effort(19, 7) };
        for at in
            (0..len).filter(|at| (at % PAGE_SIZE).is_multiple_of(step) || at % PAGE_SIZE == 33)
        {
            let what = format!("{} at {at}", path.display());
            let damaged = disk.clone_disk();
            damaged.flip_bit(&path, (at * 8 + at % 8) as u64);
            let problems = check(&shared(&damaged), Path::new(DIR), &mut |_, _| {});
            let is_found =
                problems.is_err() || problems.is_ok_and(|found| !found.problems.is_empty());
            if !look_at(&damaged.clone_disk(), &model, &what) {
                continue;
            }
            refused += 1;
            assert!(is_found, "{what}: the check found nothing");
            match repair_and_compare(&damaged, &model, &what) {
                Some(report)
                    if report.stale.is_empty()
                        && report.lost.is_empty()
                        && report.log_lost.is_empty() =>
                {
                    exact += 1;
                }
                Some(_) => partly += 1,
                None => {}
            }
        }
    }

    println!("{refused} refused, {exact} repaired, {partly} in part");
    let least = by_effort(5, 20);
    assert!(
        refused > by_effort(30, 100) && exact > least && partly > least,
        "{refused} {exact} {partly}"
    );
}

/// Pages of zeros, pages in the place of others, and files that end early.
#[test]
fn zeroed_swapped_and_missing_pages_are_found_out() {
    let (disk, model) = changed_index(2);
    let bytes = disk.read_raw(tree_path()).unwrap();
    let pages = bytes.len() / PAGE_SIZE;
    let mut trials: Vec<(String, Vec<u8>)> = Vec::new();
    for page in 0..pages {
        let range = page * PAGE_SIZE..(page + 1) * PAGE_SIZE;
        let mut zeroed = bytes.clone();
        zeroed[range.clone()].fill(0);
        trials.push((format!("page {page} zeroed"), zeroed));
        let mut swapped = bytes.clone();
        let other = (page + 3) % pages * PAGE_SIZE;
        let copy = swapped[range.clone()].to_vec();
        swapped.copy_within(other..other + PAGE_SIZE, range.start);
        swapped[other..other + PAGE_SIZE].copy_from_slice(&copy);
        trials.push((format!("page {page} swapped"), swapped));
        for cut in [range.start, range.start + 1_000] {
            trials.push((format!("cut at {cut}"), bytes[..cut].to_vec()));
        }
    }

    let mut refused = 0;
    for (what, bytes) in trials {
        let damaged = disk.clone_disk();
        damaged.write_raw(tree_path(), &bytes);
        if look_at(&damaged.clone_disk(), &model, &what) {
            refused += 1;
            repair_and_compare(&damaged, &model, &what);
        }
    }

    assert!(refused > pages, "{refused}");
}

#[test]
fn a_damaged_leaf_hides_only_its_own_keys() {
    let (disk, model) = built_index(2_000);
    for &page in pages_of(&disk, |kind| kind == LEAF).iter().step_by(3) {
        let damaged = disk.clone_disk();
        damaged.flip_bit(tree_path(), (page * PAGE_SIZE + 2_000) as u64 * 8);
        let report = check(&shared(&damaged), Path::new(DIR), &mut |_, _| {}).unwrap();
        assert_eq!(report.problems.len(), 1);
        assert_eq!(report.problems[0].what.page, page as u64);
        let hidden = vec![report.problems[0].keys.clone().unwrap()];
        let index = Index::open(shared(&damaged), Path::new(DIR), &config()).unwrap();
        let mut missed = 0;
        for (key, value) in &model {
            match index.find(key) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value)),
                Err(Error::Corrupt { path, what }) => {
                    assert_eq!((path, what.page), (tree_path(), page as u64));
                    assert!(is_in(key, &hidden));
                    missed += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(missed > 1 && missed < 150, "{missed}");
        drop(index);
        let repaired = repair_and_compare(&damaged, &model, "a leaf").unwrap();
        assert_eq!((repaired.lost, repaired.stale), (hidden, vec![]));
        assert_eq!((repaired.pages_damaged, repaired.entries), (1, 2_000 - missed));
    }
}

/// With room for some updates, and little of a log.
fn buffered() -> Config {
    Config::variable().memory_bytes(1 << 20).buffer_bytes(48 << 10).log_bytes_max(1 << 16)
}

/// The keys that some leaves are for.
fn leaf_ranges(disk: &Arc<SimDisk>, pages: &[usize]) -> Vec<Range> {
    let damaged = disk.clone_disk();
    ruin(&damaged, pages);
    let report = check(&shared(&damaged), Path::new(DIR), &mut |_, _| {}).unwrap();
    let named = report.problems.into_iter().filter(|problem| problem.what.rule == "crc");
    named.map(|problem| problem.keys.unwrap()).collect()
}

/// A built index with pending updates of the first keys of some leaves, which are damaged
/// then.
fn damaged_below_updates(which: &[usize]) -> (Arc<SimDisk>, Model, Vec<Range>) {
    let (disk, mut model) = built_index(2_000);
    let leaves = pages_of(&disk, |kind| kind == LEAF);
    let pages: Vec<usize> = which.iter().map(|&at| leaves[at]).collect();
    let hidden = leaf_ranges(&disk, &pages);
    assert_eq!(hidden.len(), which.len());
    let index = Index::open(shared(&disk), Path::new(DIR), &buffered()).unwrap();
    for range in &hidden {
        let keys: Vec<Vec<u8>> = model
            .keys()
            .filter(|key| is_in(key, std::slice::from_ref(range)))
            .take(5)
            .cloned()
            .collect();
        for key in keys {
            index.replace(&key, b"above damage").unwrap();
            model.insert(key, b"above damage".to_vec());
        }
    }

    assert_eq!(index.stats().unwrap().drained_updates, 0);
    index.close().unwrap();
    drop(index);
    ruin(&disk, &pages);
    (disk, model, hidden)
}

/// Once the buffer was full, a damaged leaf kept all others from being applied, and with it all
/// updates.
#[test]
fn updates_go_on_beside_damaged_leaves() {
    // Neighbours among them, the first and the last leaf too.
    for which in [&[7][..], &[3, 9, 10], &[0, 1], &[17, 21]] {
        let (disk, mut model, hidden) = damaged_below_updates(which);
        let index = Index::open(shared(&disk), Path::new(DIR), &buffered()).unwrap();
        let mut log_bytes_max = 0;
        for round in 0..6_u64 {
            // Leaves beside them become empty in the end.
            for number in 0..2_000 {
                let key = key(number);
                if is_in(&key, &hidden) {
                    continue;
                }
                if round < 4 {
                    let value = vec![round as u8; 10 + (number % 50) as usize];
                    index.replace(&key, &value).unwrap();
                    model.insert(key, value);
                } else if (number + round) % 2 == 0 {
                    assert!(index.remove(&key).unwrap());
                    model.remove(&key);
                }
            }
            index.flush(true).unwrap();
            log_bytes_max = log_bytes_max.max(index.stats().unwrap().log_bytes);
        }
        index.checkpoint().unwrap();
        let stats = index.stats().unwrap();
        assert!(stats.damaged_ranges >= 1, "{stats:?}");
        assert!(stats.drained_updates > 6_000, "{stats:?}");
        // The WAL is not kept for the quarantined ranges.
        assert!(log_bytes_max < 3 << 16, "{log_bytes_max}");
        let compare = |index: &Index| {
            for number in 0..2_000 {
                let key = key(number);
                match index.find(&key) {
                    Ok(found) => assert_eq!(found.as_ref(), model.get(&key), "{which:?} {number}"),
                    Err(Error::Corrupt { .. }) => assert!(is_in(&key, &hidden), "{number}"),
                    Err(error) => panic!("{error}"),
                }
            }
        };
        compare(&index);
        index.close().unwrap();
        drop(index);
        // The state after a crash: the WAL has updates that the leaves do not have.
        let index = Index::open(shared(&disk), Path::new(DIR), &buffered()).unwrap();
        compare(&index);
        assert_eq!(index.len().unwrap(), model.len() as u64);
        drop(index);
        let report = repair(&shared(&disk), Path::new(DIR), Loss::Accepted, |_, _| {}).unwrap();
        assert!(report.stale.is_empty() && !report.lost.is_empty(), "{report:?}");
        let index = Index::open(shared(&disk), Path::new(DIR), &buffered()).unwrap();
        let expected: Model = model
            .iter()
            .filter(|(key, value)| !is_in(key, &hidden) || *value == b"above damage")
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        assert!(content(&index).unwrap() == expected, "{which:?}");
    }
}

/// If nothing else can be applied, an update names the damaged page; flushes and what can
/// be read go on.
#[test]
fn an_update_names_the_damaged_page_when_nothing_else_can_be_applied() {
    let (disk, model, hidden) = damaged_below_updates(&[7]);
    let page = pages_of(&disk, |kind| kind == 0xA5)[0] as u64;
    let index = Index::open(shared(&disk), Path::new(DIR), &config()).unwrap();
    let elsewhere = key(0);
    assert!(!is_in(&elsewhere, &hidden));
    let error = index.replace(&elsewhere, b"no room").unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { path, what } if *path == tree_path() && what.page == page),
        "{error}"
    );
    assert_eq!(index.find(&elsewhere).unwrap().as_ref(), model.get(&elsewhere));
    index.flush(true).unwrap();
    index.checkpoint().unwrap();
    index.close().unwrap();
}

/// Where the file still has an older leaf for the keys of a damaged one, these come back as they
/// were, and are named.
#[test]
fn keys_of_a_damaged_leaf_come_back_from_an_older_one() {
    let mut stale = 0;
    let mut back = 0;
    for_each_seed("keys_of_a_damaged_leaf_come_back_from_an_older_one", 4, |rng, seed| {
        let (disk, model) = changed_index(seed);
        for _ in 0..6 {
            let leaves = pages_of(&disk, |kind| kind == LEAF);
            let damaged = disk.clone_disk();
            ruin(&damaged, &[*rng.pick(&leaves)]);
            let Some(report) = repair_and_compare(&damaged, &model, "a leaf") else { continue };
            stale += usize::from(!report.stale.is_empty());
            let index = Index::open(shared(&damaged), Path::new(DIR), &config()).unwrap();
            let is_back = |key: &&Vec<u8>| is_in(key, &report.stale) && index.mem(key).unwrap();
            back += model.keys().filter(is_back).count();
        }
    });

    assert!(stale > 0 && back > 0, "{stale} {back}");
}

/// Nothing but leaves and the log is left, in a tree that was changed often: all of it comes back.
#[test]
fn leaves_and_the_log_are_enough() {
    for_each_seed("leaves_and_the_log_are_enough", 4, |_, seed| {
        let (disk, model) = changed_index(seed);
        let others = pages_of(&disk, |kind| kind != LEAF && kind != 0);
        ruin(&disk, &others);
        ruin(&disk, &[0, 1]);
        assert!(Index::open(shared(&disk), Path::new(DIR), &config()).is_err());
        let report = repair_and_compare(&disk, &model, "leaves only").unwrap();
        assert_eq!((report.stale, report.lost), (vec![], vec![]));
        assert!(report.maps_lost > 0);
    });
}

/// A crash at any call of a repair: the next repair does the whole of it.
#[test]
fn an_interrupted_repair_has_done_nothing() {
    let (disk, model) = changed_index(3);
    ruin(&disk, &pages_of(&disk, |kind| kind == INNER));
    let whole = disk.clone_disk();
    let before = whole.calls();
    let expected = repair(&shared(&whole), Path::new(DIR), Loss::Accepted, |_, _| {}).unwrap();
    assert_eq!((&expected.stale, &expected.lost), (&vec![], &vec![]));
    let calls = whole.calls() - before;
    Sweep::sampled(3, 6).on(&disk).crash(
        |disk| repair(&shared(disk), Path::new(DIR), Loss::Accepted, |_, _| {}).is_ok(),
        |crash| {
            // A failure behind the last sync is no failure of the repair.
            assert!(!crash.run || crash.call + 10 > calls, "call {} of {calls}", crash.call);
            let survivals = [Survival::Nothing, Survival::Everything, Survival::Torn(crash.call)];
            crash.power_losses(survivals, |image| {
                let report = repair_and_compare(&image.disk, &model, "interrupted").unwrap();
                assert_eq!((report.stale, report.lost), (vec![], vec![]));
            })
        },
    );
}

#[test]
fn a_whole_index_is_left_alone_and_a_missing_or_locked_one_is_refused() {
    let (disk, model) = changed_index(4);
    let before = disk.read_raw(tree_path()).unwrap();
    let report = repair(&shared(&disk), Path::new(DIR), Loss::Accepted, |_, _| {}).unwrap();
    assert!(report.was_whole);
    assert_eq!(report.entries, model.len() as u64);
    assert_eq!(disk.read_raw(tree_path()).unwrap(), before);
    let elsewhere = repair(&shared(&disk), Path::new("/elsewhere"), Loss::Accepted, |_, _| {});
    assert!(matches!(elsewhere, Err(Error::NotFound { .. })));
    let index = Index::open(shared(&disk), Path::new(DIR), &config()).unwrap();
    let locked = repair(&shared(&disk), Path::new(DIR), Loss::Accepted, |_, _| {});
    assert!(matches!(locked, Err(Error::Locked { .. })));
    drop(index);

    // Without a single leaf nothing is known of it.
    ruin(&disk, &(0..before.len() / PAGE_SIZE).collect::<Vec<_>>());
    let hopeless = repair(&shared(&disk), Path::new(DIR), Loss::Accepted, |_, _| {});
    assert!(matches!(hopeless, Err(Error::NotAnIndex { .. })), "{hopeless:?}");
}
