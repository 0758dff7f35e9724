//! Files that went missing, files of others, and the end of the log.
//!
//! Goal: nothing that an index needs is removed or cut off because another of its files is missing
//! or damaged; a repair brings back what is left and names what is not. Method: small indexes on
//! the simulated disk, with one file changed at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_btree::{Config, Error, Index, IndexReader, Loss, RepairReport, Update, check, repair};
use terrane_io::Survival;
use terrane_io::{Disk, SimDisk};

use crate::damage::{Model, shared, tree_path};
use crate::model::DIR;
use terrane_testkit::sweep::Sweep;

fn config() -> Config {
    Config::fixed(4, 8).memory_bytes(1 << 20).log_bytes_max(1 << 16)
}

fn path(file: &str) -> PathBuf {
    Path::new(DIR).join(file)
}

fn key(number: u64) -> [u8; 4] {
    (number as u32).to_le_bytes()
}

/// Durable commits that only the log has.
fn put(index: &Index, model: &mut Model, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let key = key(number);
        let value = number.to_le_bytes();
        let position = index.commit(&[Update::Replace(&key, &value)]).unwrap();
        index.sync_to(position).unwrap();
        model.insert(key.to_vec(), value.to_vec());
    }
}

/// An index with entries in its leaves and in its log, whose process was killed.
fn killed() -> (Arc<SimDisk>, Model) {
    let disk = SimDisk::new(7);
    let index = Index::create(shared(&disk), Path::new(DIR), &config()).unwrap();
    let mut model = Model::new();
    put(&index, &mut model, 0..300);
    index.compact().unwrap();
    put(&index, &mut model, 300..320);
    (disk.process_kill(), model)
}

fn open(disk: &Arc<SimDisk>) -> Result<Index, Error> {
    Index::open(shared(disk), Path::new(DIR), &config())
}

fn content(index: &Index) -> Model {
    index.iter().unwrap().map(Result::unwrap).collect()
}

fn mend(disk: &Arc<SimDisk>, loss: Loss) -> Result<RepairReport, Error> {
    repair(&shared(disk), Path::new(DIR), loss, |_, _| {})
}

/// The files of the log, ascending.
fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    disk.files().into_iter().filter(|file| file.starts_with(path("log"))).collect()
}

/// All files but the lock.
fn snapshot(disk: &SimDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let files = disk.files().into_iter().filter(|file| *file != path("lock"));
    files.map(|file| (file.clone(), disk.read_raw(&file).unwrap())).collect()
}

/// An index whose tree file was moved away was made anew, and its log deleted: the file put back
/// then had no entry.
#[test]
fn an_index_without_its_tree_file_is_neither_made_anew_nor_changed() {
    let (disk, model) = killed();
    let tree = disk.read_raw(tree_path()).unwrap();
    disk.remove(&tree_path()).unwrap();
    let before = snapshot(&disk);
    let dir = Path::new(DIR);
    let errors = [
        Index::open_or_create(shared(&disk), dir, &config()).unwrap_err(),
        Index::create(shared(&disk), dir, &config()).unwrap_err(),
        Index::open(shared(&disk), dir, &config()).unwrap_err(),
        IndexReader::open(shared(&disk), dir, &config()).unwrap_err(),
        check(&shared(&disk), dir, &mut |_, _| {}).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(&error, Error::TreeMissing { path, .. } if path == dir), "{error}");
        assert!(error.to_string().contains("terrane verify --repair --accept-loss"), "{error}");
    }

    assert_eq!(snapshot(&disk), before);
    disk.write_raw(tree_path(), &tree);
    assert_eq!(content(&open(&disk).unwrap()), model);
}

#[test]
fn a_directory_with_the_log_or_the_readers_of_something_else_is_refused_and_left_alone() {
    for file in ["log/00000005.log", "log/notes", "readers/12.lease", "log/1.log"] {
        let disk = SimDisk::new(1);
        disk.write_raw(path(file), b"not ours");
        let error = Index::open_or_create(shared(&disk), Path::new(DIR), &config()).unwrap_err();
        assert!(matches!(error, Error::DirectoryInUse { .. }), "{file}: {error}");
        assert_eq!(snapshot(&disk), [(path(file), b"not ours".to_vec())]);
    }
}

#[test]
fn a_repair_without_the_tree_file_brings_back_what_the_log_has_if_the_loss_is_accepted() {
    let (disk, model) = killed();
    disk.remove(&tree_path()).unwrap();
    let refused = mend(&disk, Loss::Refused).unwrap();
    assert!(refused.was_refused && refused.tree_lost, "{refused:?}");
    assert!(disk.read_raw(tree_path()).is_none());
    let report = mend(&disk, Loss::Accepted).unwrap();
    assert_eq!((report.tree_lost, report.entries), (true, 20));
    assert_eq!(report.lost, [(Vec::new(), None)]);
    let index = open(&disk).unwrap();
    let numbers: Vec<[u8; 4]> = (300..320).map(key).collect();
    let is_in_log = |entry: &[u8]| numbers.iter().any(|number| *number == entry);
    let in_log: Model = model.into_iter().filter(|(entry, _)| is_in_log(entry)).collect();
    assert_eq!((content(&index), index.len().unwrap()), (in_log, 20));
    index.close().unwrap();
    assert!(mend(&disk, Loss::Refused).unwrap().was_whole);
}

/// Files with names of numbers were taken for old segments and removed, whatever they were.
#[test]
fn files_of_others_among_the_segments_stay_or_are_named() {
    let (disk, model) = killed();
    let first = segments(&disk)[0].clone();
    let other = SimDisk::new(8);
    drop(Index::create(shared(&other), Path::new(DIR), &config()).unwrap());
    let foreign = other.read_raw(path("log/00000000000000000000.log")).unwrap();
    for content_of_file in [&b"not ours"[..], &foreign] {
        // Below the first segment: they do not matter.
        let disk = disk.clone_disk();
        for name in ["log/00000000000000000001.log", "log/2.log", "log/0000000000000000000000.log"]
        {
            disk.write_raw(path(name), content_of_file);
        }
        let index = open(&disk).unwrap();
        assert_eq!(content(&index), model);
        index.compact().unwrap();
        index.close().unwrap();
        assert_eq!(segments(&disk).len(), 4);
        // In the place of a segment, and behind the last.
        let next = path("log/00000000009999999992.log");
        for place in [&first, &next] {
            let disk = disk.process_kill();
            disk.write_raw(place, content_of_file);
            if *place == first {
                for newer in segments(&disk).into_iter().filter(|file| *file > first) {
                    disk.remove(&newer).unwrap();
                }
            }
            let before = snapshot(&disk);
            let error = open(&disk).unwrap_err();
            assert!(matches!(&error, Error::Corrupt { path, .. } if path == place), "{error}");
            assert_eq!(snapshot(&disk), before);
        }
    }
}

#[test]
fn a_log_that_is_missing_or_cut_is_reported_and_repaired_only_with_loss_accepted() {
    let (disk, model) = killed();
    let last = segments(&disk).pop().unwrap();
    let bytes = disk.read_raw(&last).unwrap();
    for cut in [None, Some(0), Some(20), Some(32), Some(100), Some(bytes.len() - 8)] {
        let disk = disk.clone_disk();
        match cut {
            None => disk.remove(&last).unwrap(),
            Some(len) => disk.write_raw(&last, &bytes[..len]),
        }
        let what = format!("{cut:?}");
        let dir = Path::new(DIR);
        assert!(matches!(open(&disk), Err(Error::Corrupt { .. })), "{what}");
        let reader = IndexReader::open(shared(&disk), dir, &config());
        assert!(reader.is_err(), "{what}");
        let problems = check(&shared(&disk), dir, &mut |_, _| {}).unwrap().problems;
        assert!(!problems.is_empty(), "{what}");
        let before = snapshot(&disk);
        assert!(mend(&disk, Loss::Refused).unwrap().was_refused, "{what}");
        assert_eq!(snapshot(&disk), before, "{what}");
        let report = mend(&disk, Loss::Accepted).unwrap();
        assert_eq!(report.log_lost.len(), 1, "{what}: {report:?}");
        let index = open(&disk).unwrap();
        let found = content(&index);
        assert!(found.iter().all(|(key, value)| model.get(key) == Some(value)), "{what}");
        assert!(found.len() >= 300 && found.len() < model.len(), "{what}");
        assert_eq!(
            (index.len().unwrap(), report.entries),
            (found.len() as u64, found.len() as u64)
        );
        index.close().unwrap();
        assert!(mend(&disk, Loss::Refused).unwrap().was_whole, "{what}");
    }
}

/// One wrong bit in the record of the last commit, which was durable, passed for a torn end: the
/// commit was gone without a word. The mark behind each sync tells the two apart.
#[test]
fn a_wrong_bit_in_the_last_durable_record_is_damage_and_no_torn_end() {
    let (disk, model) = killed();
    let last = segments(&disk).pop().unwrap();
    let bytes = disk.read_raw(&last).unwrap();

    // Key and value are fixed, so each record has 56 bytes.
    for bit in (bytes.len() - 56) * 8..bytes.len() * 8 {
        let damaged = disk.clone_disk();
        damaged.flip_bit(&last, bit as u64);
        match open(&damaged) {
            Ok(index) => assert_eq!(content(&index), model, "bit {bit}"),
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "bit {bit}: {error}"),
        }
        assert_eq!(damaged.read_raw(&last).unwrap().len(), bytes.len());
    }

    // Once another one is durable, or the index closed, that holds without the mark, too.
    for closes in [false, true] {
        let disk = disk.clone_disk();
        let index = open(&disk).unwrap();
        if closes {
            index.close().unwrap();
        } else {
            put(&index, &mut model.clone(), 320..321);
        }
        let disk = disk.process_kill();
        disk.remove(&path("synced")).unwrap();
        disk.flip_bit(&last, (bytes.len() - 20) as u64 * 8);
        assert!(matches!(open(&disk), Err(Error::Corrupt { .. })));
    }
}

/// The mark is behind the sync and not synced itself: it never asks for more than survived.
#[test]
fn the_mark_never_asks_for_more_than_a_loss_of_power_leaves() {
    let disk = SimDisk::new(3);
    let index = Index::create(shared(&disk), Path::new(DIR), &config()).unwrap();
    let mut model = Model::new();
    for round in 0..20 {
        put(&index, &mut model, round..round + 1);
        let unsynced = key(1_000 + round);
        index.commit(&[Update::Replace(&unsynced, &[0; 8])]).unwrap();
        for seed in 0..6 {
            for survival in [Survival::Nothing, Survival::Random(seed), Survival::Torn(seed)] {
                let found = content(&open(&disk.after_crash(survival)).unwrap());
                assert!(model.iter().all(|(key, value)| found.get(key) == Some(value)), "{round}");
            }
        }
        assert!(index.remove(&unsynced).unwrap());
    }
}

/// A crash at any call of the creation leaves no index or an empty one; a creation then goes
/// through.
#[test]
fn an_interrupted_creation_can_be_done_again() {
    Sweep::whole(1).crash(
        |disk| Index::create(shared(disk), Path::new(DIR), &config()).is_ok(),
        |crash| {
            let survivals = [Survival::Nothing, Survival::Everything, Survival::Random(crash.call)];
            crash.power_losses(survivals, |image| {
                let index = Index::open_or_create(shared(&image.disk), Path::new(DIR), &config());
                let index = index.unwrap_or_else(|error| panic!("{}: {error}", crash.run));
                put(&index, &mut Model::new(), 0..2);
                index.close().unwrap();
            })
        },
    );
}
