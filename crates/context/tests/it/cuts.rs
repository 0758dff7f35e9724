//! Repairs of stores whose pack ends too early, or whose newest commits are damaged.
//!
//! Goal: wherever the last chunk is cut, a repair with accepted loss makes a store that opens, has
//! no problem and takes commits; what is lost is named, and counted where the count is known. A
//! repair that fails changes nothing.
//!
//! Method: stores that were closed once or often, or whose process was killed, with and without a
//! branch and a collection, on the simulated disk; the last chunk is cut at each 512 bytes, or one
//! record is damaged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_context::{Error, Hash, Indexing, Loss, Meta, Options, RepairReport, Retain, Store};
use terrane_io::{Disk, SimDisk};
use terrane_testkit::effort::places;
use terrane_testkit::seeds::for_each_seed;

use crate::losses::{checked, engine, repaired};
use crate::script::{DIR, create, go, open, options};

/// History of a store.
#[derive(Debug, Clone, Copy)]
struct History {
    /// Whether the commits move a branch.
    has_branch: bool,
    /// Whether a collection runs before the last commits.
    collects: bool,
    /// Whether the archive has a volume, which takes what is collected.
    has_volume: bool,
    indexing: Indexing,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    /// Closed and opened again after each commit.
    ClosedOften,
    Killed,
}

const COMMITS: u8 = 24;

const PLAIN: History = History {
    has_branch: false,
    collects: false,
    has_volume: false,
    indexing: Indexing::Minimal,
    end: End::Closed,
};

fn options_of(history: History) -> Options {
    options().indexing(history.indexing)
}

fn commit(store: &Store, parent: Option<Hash>, number: u8, has_branch: bool) -> Hash {
    let mut context = match parent {
        Some(parent) => store.checkout(&parent).unwrap().unwrap(),
        None => store.empty(),
    };
    context.add(&["data", &(number % 7).to_string()], vec![number; 90]).unwrap();
    context.add(&["more", &number.to_string()], vec![number; 40]).unwrap();
    let meta = Meta::tezos(i64::from(number), "");
    if has_branch {
        store.commit_to(b"main", &context, &meta).unwrap()
    } else {
        store.commit(&context, &meta).unwrap()
    }
}

/// A store of this history, and its commits: those that a collection has not taken.
fn written(history: History, commits: u8) -> (Arc<SimDisk>, Vec<Hash>) {
    let options = options_of(history);
    let disk = SimDisk::new(11);
    let shared: Arc<dyn Disk> = disk.clone();
    let mut store = create(&shared, &options).unwrap();
    let mut made: Vec<Hash> = Vec::new();
    if history.has_volume {
        store.add_volume().unwrap();
    }

    for number in 0..commits {
        if history.collects && number == commits - 6 {
            store.collect(&Retain::newest(3), &mut go).unwrap();
            let collected = if history.has_volume { 0 } else { made.len() - 3 };
            made.drain(..collected);
        }
        made.push(commit(&store, made.last().copied(), number, history.has_branch));
        if history.end == End::ClosedOften {
            store.close().unwrap();
            drop(store);
            store = open(&shared, &options).unwrap();
        }
    }

    if history.end != End::Killed {
        store.close().unwrap();
    }
    drop(store);
    (disk.process_kill(), made)
}

fn last_chunk(disk: &SimDisk) -> PathBuf {
    let is_chunk = |path: &PathBuf| path.to_string_lossy().contains("/store/chunk-");
    disk.files().into_iter().rfind(is_chunk).unwrap()
}

/// All files, without locks and leases of readers.
fn content(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = disk.files().into_iter();
    files
        .filter(|path| !path.to_string_lossy().contains("readers") && !path.ends_with("lock"))
        .map(|path| (path.clone(), disk.read_raw(&path).unwrap()))
        .collect()
}

/// Commits of a store that opens, each of them whole.
fn newest(store: &Store) -> Vec<Hash> {
    store.newest().map(|commit| commit.unwrap().hash).collect()
}

/// The store is whole, has all commits but the lost ones, and takes more. Returns what is left.
fn assert_mended(
    disk: &Arc<SimDisk>,
    history: History,
    commits: &[Hash],
    report: &RepairReport,
    what: &str,
) -> usize {
    assert_eq!(checked(disk).problems, [], "{what}");
    let shared: Arc<dyn Disk> = disk.clone();
    let store = open(&shared, &options_of(history)).unwrap();
    let mut left = newest(&store);
    left.reverse();
    assert_eq!(left.len() as u64, report.commits, "{what}");
    assert!(commits.starts_with(&left), "{what}: the commits before the damage are left");
    for hash in &left {
        let context = store.checkout(hash).unwrap().unwrap();
        assert!(context.find(&["data", "0"]).is_ok(), "{what}");
    }

    // What is lost is named and counted.
    let gone: BTreeSet<Hash> = commits[left.len()..].iter().copied().collect();
    let lost = report.lost.clone().unwrap_or_default();
    assert!(lost.commits.iter().all(|hash| gone.contains(hash)), "{what}: {lost:?}");
    assert!(lost.commit_count <= gone.len() as u64, "{what}: {lost:?}");
    if !lost.is_lower_bound {
        assert_eq!(lost.commit_count, gone.len() as u64, "{what}: {lost:?}");
    }
    if history.end != End::Killed {
        assert!(!lost.is_lower_bound, "{what}: a closed store counts its commits");
        // The index of a closed store has them all.
        assert_eq!(lost.commits.len(), gone.len(), "{what}");
    }
    assert!(gone.iter().all(|hash| !store.exists(hash).unwrap()), "{what}");
    if history.has_branch && !history.collects {
        assert_eq!(store.branch(b"main"), left.last().copied(), "{what}");
    }

    commit(&store, left.last().copied(), 200, history.has_branch);
    store.close().unwrap();
    drop(store);
    assert_eq!(checked(disk).problems, [], "{what}: with one more commit");
    left.len()
}

/// A closed store without a branch, whose last chunk was cut, could not be repaired: its newest
/// control record refers to nothing but its tail, which was taken for the end of the pack.
#[test]
fn a_cut_of_the_last_chunk_is_repaired_and_its_losses_are_named() {
    let mut kept = BTreeSet::new();
    for_each_seed("a_cut_of_the_last_chunk_is_repaired_and_its_losses_are_named", 1, |_, seed| {
        for number in 0..24 {
            let history = History {
                has_branch: number % 2 == 1,
                collects: number / 2 % 2 == 1,
                has_volume: number % 8 >= 4,
                indexing: if number < 12 { Indexing::Minimal } else { Indexing::Always },
                end: [End::Closed, End::ClosedOften, End::Killed][number / 4 % 3],
            };
            let (disk, commits) = written(history, COMMITS);
            let last = last_chunk(&disk);
            let good = disk.read_raw(&last).unwrap();
            for at in places(0..(good.len() as u64).div_ceil(512), 3, seed) {
                let len = (at * 512) as usize;
                let what = format!("{history:?}, {} cut to {len}", last.display());
                let damaged = disk.clone_disk();
                damaged.write_raw(&last, &good[..len]);

                let before = content(&damaged);
                let error = repaired(&damaged, Loss::Refused).unwrap_err();
                let is_refused = matches!(error, Error::WouldLose { .. });
                assert!(is_refused, "{what}: {error:?}");
                assert_eq!(content(&damaged), before, "{what}: a refused repair changes nothing");

                let report = repaired(&damaged, Loss::Accepted)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                kept.insert(assert_mended(&damaged, history, &commits, &report, &what));
            }
        }
    });
    assert!(kept.len() > 8, "{kept:?}");
}

/// A repair said "0 commits were lost" when the frames of three were gone: those that a killed
/// process leaves are counted by nothing but themselves.
#[test]
fn a_count_is_exact_or_named_as_a_lower_bound() {
    let history = History { end: End::Killed, ..PLAIN };
    let (disk, commits) = written(history, 4);
    let last = last_chunk(&disk);
    let good = disk.read_raw(&last).unwrap();
    let starts: Vec<usize> =
        (0..good.len()).step_by(8).filter(|at| good[*at..].starts_with(b"TMF1")).collect();
    let [.., third, fourth] = starts[..] else { panic!("{starts:?}") };

    // The head of the last frame is left, and tells that the frame has one commit and is the last.
    // Without a head, or with frames behind it, nothing tells how many there were.
    for (len, expected) in [
        (fourth + 40, (1, false)),
        (fourth + 20, (0, true)),
        (fourth, (0, true)),
        (third + 40, (1, true)),
        (starts[1], (0, true)),
    ] {
        let damaged = disk.clone_disk();
        damaged.write_raw(&last, &good[..len]);
        let error = repaired(&damaged, Loss::Refused).unwrap_err();
        let Error::WouldLose { commits: count, is_lower_bound, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!((*count, *is_lower_bound), expected, "cut to {len}");
        let text = match expected {
            (1, false) => "lost 1 durable commit from",
            (0, true) => "lost an unknown number of durable commits from",
            _ => "lost at least 1 durable commit from",
        };
        assert!(error.to_string().contains(text), "{error}");
        let report = repaired(&damaged, Loss::Accepted).unwrap();
        let lost = report.lost.clone().unwrap();
        assert_eq!((lost.commit_count, lost.is_lower_bound), expected, "cut to {len}");
        assert_mended(&damaged, history, &commits, &report, &format!("cut to {len}"));
    }
}

/// With one damaged record in a store of one commit the repair failed and left a store without an
/// index.
#[test]
fn a_damaged_record_of_the_only_commit_never_makes_the_store_worse() {
    let (mut emptied, mut left) = (0, 0);
    for_each_seed(
        "a_damaged_record_of_the_only_commit_never_makes_the_store_worse",
        1,
        |_, seed| {
            for (number, indexing) in [Indexing::Minimal, Indexing::Always].iter().enumerate() {
                let history = History { indexing: *indexing, has_branch: number == 1, ..PLAIN };
                let (disk, commits) = written(history, 1);
                let last = last_chunk(&disk);
                let good = disk.read_raw(&last).unwrap();
                for at in places(64..good.len() as u64, 5, seed) {
                    let what = format!("{indexing:?}, byte {at}");
                    let damaged = disk.clone_disk();
                    damaged.flip_bit(&last, at * 8 + 2);
                    let before = content(&damaged);
                    let problems = checked(&damaged).problem_count;

                    if repaired(&damaged, Loss::Refused).is_err() {
                        assert_eq!(content(&damaged), before, "{what}");
                    }
                    let report = match repaired(&damaged, Loss::Accepted) {
                        Ok(report) => report,
                        Err(error) => panic!("{what}: {error}"),
                    };
                    assert!(checked(&damaged).problem_count <= problems, "{what}");
                    let shared: Arc<dyn Disk> = damaged.clone();
                    let store = open(&shared, &options_of(history)).unwrap();
                    if report.lost.as_ref().is_some_and(|lost| lost.commit_count > 0) {
                        drop(store);
                        assert_eq!(assert_mended(&damaged, history, &commits, &report, &what), 0);
                        emptied += 1;
                        continue;
                    }

                    // The damage is elsewhere: the commit is found.
                    assert!(store.exists(&commits[0]).unwrap(), "{what}");
                    assert_eq!(store.recovery().indexed, None, "{what}: the index is current");
                    left += 1;
                }
            }
        },
    );
    assert!(emptied > 5 && left > 20, "{emptied} {left}");
}

/// A damaged commit ended the chain of commits: a repair made an index without all older ones.
#[test]
fn commits_before_a_damaged_one_are_still_found() {
    for (end, indexing) in [(End::Closed, Indexing::Minimal), (End::ClosedOften, Indexing::Always)]
    {
        let history = History { indexing, end, ..PLAIN };
        let (disk, commits) = written(history, 6);
        let hash = commits[2];
        let path = last_chunk(&disk);
        let good = disk.read_raw(&path).unwrap();

        // The record of the commit has the hash behind its kind; tables have it elsewhere.
        let kind_and_hash = [&[0x10][..], &hash.0].concat();
        let at = good.windows(33).position(|bytes| bytes == kind_and_hash).unwrap();
        disk.flip_bit(&path, at as u64 * 8 + 60);
        let problems = checked(&disk).problem_count;
        assert_eq!(problems, 1, "{:?}", checked(&disk).problems);

        for loses_index in [false, true] {
            let damaged = disk.clone_disk();
            let shared: Arc<dyn Disk> = damaged.clone();
            if loses_index {
                engine().remove(&*shared, &Path::new(DIR).join("index")).unwrap();
            }
            let report = repaired(&damaged, Loss::Accepted).unwrap();
            assert_eq!((report.commits, &report.lost), (5, &None));
            assert_eq!(checked(&damaged).problem_count, 1);
            let store = open(&shared, &options_of(history)).unwrap();
            assert_eq!(store.recovery().indexed, None, "the index is current");
            assert_eq!(store.newest().flatten().count(), 5);
            for other in commits.iter().filter(|other| **other != hash) {
                assert!(store.checkout(other).unwrap().is_some());
            }
            assert!(matches!(store.exists(&hash), Err(Error::Corrupt { .. })));
        }
    }
}

/// A store of which nothing is left says so, and what to do.
#[test]
fn a_repair_that_can_keep_nothing_changes_nothing() {
    let (disk, _) = written(PLAIN, 1);
    let last = last_chunk(&disk);
    let good = disk.read_raw(&last).unwrap();
    disk.write_raw(&last, &good[..40]);
    let before = content(&disk);
    for loss in [Loss::Refused, Loss::Accepted] {
        let error = repaired(&disk, loss).unwrap_err();
        assert!(matches!(error, Error::Irreparable { .. }), "{error:?}");
        assert!(error.to_string().contains("Restore a backup"), "{error}");
        assert_eq!(content(&disk), before);
    }
}
