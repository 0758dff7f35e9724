//! Losses of a store are reported, never passed over.
//!
//! Goal: a chunk that ends before where the pack was durable, that is shifted, missing, or of
//! another store, and an index that is lost or of another time, are reported by whoever opens the
//! store; no opener cuts anything below that end; and a repair lets go of commits only when it is
//! told to, and names them.
//!
//! Method: a closed store, and one whose process was killed, on the simulated disk; one file is
//! changed; then a reader, a check, a writer and a repair look at it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    CheckOptions, CheckReport, Context, Error, GcPace, Hash, IndexEngine, Indexing, Loss, Meta,
    Options, RepairReport, Result, Retain, Store, StoreReader, check, repair,
};
use terrane_io::{Disk, SimDisk};

use crate::script::{DIR, create, open, options};

pub(crate) fn engine() -> Arc<dyn IndexEngine> {
    Arc::new(BtreeIndexes::new(1 << 20))
}

fn commit(store: &Store, number: u8) -> Hash {
    let parent = store.branch(b"main");
    let mut context = match parent {
        Some(head) => store.checkout(&head).unwrap().unwrap(),
        None => store.empty(),
    };
    context.add(&["data", &number.to_string()], vec![number; 60]).unwrap();
    let meta = Meta::tezos(i64::from(number), "");
    store.commit_to(b"main", &context, &meta).unwrap()
}

/// A store of some commits on the branch `main`, all of them durable; closed, or left as a killed
/// process leaves it.
fn written(options: &Options, commits: u8, closes: bool) -> (Arc<SimDisk>, Vec<Hash>) {
    let disk = SimDisk::new(7);
    let shared: Arc<dyn Disk> = disk.clone();
    let store = create(&shared, options).unwrap();
    let made = (0..commits).map(|number| commit(&store, number)).collect();
    if closes {
        store.close().unwrap();
    }
    drop(store);
    (disk.process_kill(), made)
}

pub(crate) fn checked(disk: &Arc<SimDisk>) -> CheckReport {
    let shared: Arc<dyn Disk> = disk.clone();
    let engine = engine();
    let options = CheckOptions::default().index(&engine).hashes(true);
    check(&shared, Path::new(DIR), &options, &mut |_| {}).unwrap()
}

pub(crate) fn repaired(disk: &Arc<SimDisk>, loss: Loss) -> Result<RepairReport> {
    let shared: Arc<dyn Disk> = disk.clone();
    repair(&shared, Path::new(DIR), &engine(), loss, &mut |_| {})
}

fn read(disk: &Arc<SimDisk>) -> Result<StoreReader> {
    StoreReader::open(disk.clone(), Path::new(DIR), 1 << 20)
}

fn chunks(disk: &SimDisk) -> Vec<PathBuf> {
    let is_chunk = |path: &PathBuf| path.to_string_lossy().contains("/chunk-");
    disk.files().into_iter().filter(is_chunk).collect()
}

fn content(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = disk.files().into_iter();
    files.map(|path| (path.clone(), disk.read_raw(&path).unwrap())).collect()
}

/// Every opener says that the store is damaged, and nothing on the disk changes; a repair that may
/// lose nothing is refused.
fn assert_refused(disk: &Arc<SimDisk>, options: &Options, what: &str) {
    let shared: Arc<dyn Disk> = disk.clone();
    let before = content(disk);
    let is_damage =
        |error: &Error| matches!(error, Error::Corrupt { .. } | Error::ForeignChunk { .. });
    let error = read(disk).unwrap_err();
    assert!(is_damage(&error), "{what}: a reader says {error:?}");
    assert_eq!(content(disk), before, "{what}: a reader changes nothing");
    assert!(checked(disk).problem_count > 0, "{what}");
    let error = open(&shared, options).unwrap_err();
    assert!(is_damage(&error), "{what}: a writer says {error:?}");

    let chunks_of = |files: &BTreeMap<PathBuf, Vec<u8>>| -> Vec<(PathBuf, Vec<u8>)> {
        let is_kept = |path: &Path| !path.starts_with("/store/index");
        files
            .iter()
            .filter(|(path, _)| is_kept(path))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };

    assert_eq!(chunks_of(&content(disk)), chunks_of(&before), "{what}: a writer cuts nothing");
    let error = repaired(disk, Loss::Refused).unwrap_err();
    assert!(matches!(error, Error::WouldLose { .. }), "{what}: {error:?}");
    assert_eq!(
        chunks_of(&content(disk)),
        chunks_of(&before),
        "{what}: a refused repair changes nothing"
    );
}

/// A way to check a commit out.
type Checkout<'a> = &'a dyn Fn(&Hash) -> Result<Option<Context>>;

/// The last chunk of a closed store was cut by 600 bytes. A reader showed an older commit as the
/// newest, a writer cut the chunk to that, and from then on nothing told of the commits that were
/// durable once.
#[test]
fn a_chunk_that_is_shorter_than_it_was_durable_is_damage() {
    let options = options();
    let (disk, commits) = written(&options, 6, true);
    let last = chunks(&disk).pop().unwrap();
    let good = disk.read_raw(&last).unwrap();

    for cut in [1, 8, 136, 600, good.len() / 2] {
        let damaged = disk.clone_disk();
        damaged.write_raw(&last, &good[..good.len() - cut]);
        assert_refused(&damaged, &options, &format!("{cut} bytes are cut"));
    }

    // The loss is accepted, and named.
    disk.write_raw(&last, &good[..good.len() - 600]);
    let report = repaired(&disk, Loss::Accepted).unwrap();
    let lost = report.lost.expect("commits are gone");
    assert_eq!(lost.commit_count as usize, lost.commits.len());
    assert!(lost.commit_count > 0 && report.commits + lost.commit_count == 6, "{lost:?}");
    assert!(lost.commits.iter().all(|hash| commits.contains(hash)), "{lost:?}");
    assert_eq!(checked(&disk).problems, []);
    let shared: Arc<dyn Disk> = disk.clone();
    let store = open(&shared, &options).unwrap();
    assert!(lost.commits.iter().all(|hash| !store.exists(hash).unwrap()));
    let left: Vec<_> = commits.iter().filter(|hash| !lost.commits.contains(hash)).collect();
    assert_eq!(left.len() as u64, report.commits);
    assert!(left.iter().all(|hash| store.exists(hash).unwrap()));
    assert_eq!(store.branch(b"main"), left.last().map(|hash| **hash));

    commit(&store, 99);
}

#[test]
fn a_chunk_that_is_shifted_is_damage() {
    let options = options();
    let (disk, _) = written(&options, 6, true);
    let last = chunks(&disk).pop().unwrap();
    let good = disk.read_raw(&last).unwrap();

    for (at, shift) in [(64, 8), (64, 4096), (good.len() / 2, 8), (good.len() - 200, 512)] {
        let damaged = disk.clone_disk();
        let shifted = [&good[..at], &vec![0; shift], &good[at..]].concat();
        damaged.write_raw(&last, &shifted);
        assert_refused(&damaged, &options, &format!("{shift} bytes come in at {at}"));
    }

    let damaged = disk.clone_disk();
    damaged.write_raw(&last, &[&good[..64], &good[72..]].concat());
    assert_refused(&damaged, &options, "8 bytes go");
}

/// A missing last chunk was taken for one that a collection has removed. With a chunk that was just
/// begun nothing told of it at all, since the control record still named the one before.
#[test]
fn a_missing_chunk_is_damage() {
    let options = options().chunk_bytes(4 << 10);
    for closes in [true, false] {
        let (disk, commits) = written(&options, 60, closes);
        let files = chunks(&disk);
        assert!(files.len() > 3, "{files:?}");
        let damaged = disk.clone_disk();
        damaged.remove(files.last().unwrap()).unwrap();
        assert_refused(&damaged, &options, "the last chunk is missing");
        let report = repaired(&damaged, Loss::Accepted).unwrap();

        // Of a chunk that was not closed nothing else counts the commits.
        assert!(report.lost.is_some_and(|lost| lost.commit_count > 0 || !closes));
        assert_eq!(checked(&damaged).problems, []);

        // Another one: the rest is still there.
        for missing in &files[..files.len() - 1] {
            let damaged = disk.clone_disk();
            damaged.remove(missing).unwrap();
            let report = checked(&damaged);
            assert!(report.problems.iter().any(|problem| problem.path == *missing), "{missing:?}");
            let shared: Arc<dyn Disk> = damaged.clone();
            let stores: [Checkout<'_>; 2] = [&|hash| read(&damaged)?.checkout(hash), &|hash| {
                open(&shared, &options)?.checkout(hash)
            }];

            for checkout in stores {
                let mut lost = 0;
                for hash in &commits {
                    let found = checkout(hash).and_then(|context| {
                        context.expect("a lost commit is an error").find(&["data", "0"])
                    });
                    match found {
                        Ok(found) => assert_eq!(found, Some(vec![0; 60])),
                        Err(Error::Corrupt { path, .. }) if path == *missing => lost += 1,
                        Err(error) => panic!("{error:?}"),
                    }
                }
                assert!(lost > 0, "{missing:?}");
            }
        }
    }
}

/// A flipped bit in the frame that was synced last dropped an acknowledged commit as a torn end.
#[test]
fn rot_of_the_last_durable_frame_is_no_torn_write() {
    let options = options();
    for closes in [true, false] {
        let (disk, commits) = written(&options, 3, closes);
        let last = chunks(&disk).pop().unwrap();
        let good = disk.read_raw(&last).unwrap();
        let mut units = (0..good.len()).step_by(8);
        let start = units.rfind(|&at| good[at..].starts_with(b"TMF1")).unwrap();

        for byte in (start..good.len()).step_by(3) {
            let damaged = disk.clone_disk();
            damaged.flip_bit(&last, byte as u64 * 8 + 1);
            let shared: Arc<dyn Disk> = damaged.clone();
            match open(&shared, &options) {
                Ok(store) => {
                    assert_eq!(store.recovery().cut_bytes, 0, "byte {byte}");
                    assert_eq!(store.branch(b"main"), Some(commits[2]), "byte {byte}");
                    assert_eq!(store.newest().next().unwrap().unwrap().hash, commits[2]);
                }
                Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error:?}"),
            }
        }
    }
}

/// A write that the crash has cut short is no damage: what was durable before it is all there.
#[test]
fn a_torn_write_behind_the_mark_is_cut() {
    let options = options();
    let (disk, commits) = written(&options, 3, false);
    let last = chunks(&disk).pop().unwrap();
    let mut bytes = disk.read_raw(&last).unwrap();
    bytes.extend_from_slice(b"TMF1 the beginning of a frame...");
    disk.write_raw(&last, &bytes);
    let reader = read(&disk).unwrap();
    assert_eq!(reader.branch(b"main"), Some(commits[2]));
    let shared: Arc<dyn Disk> = disk.clone();
    let store = open(&shared, &options).unwrap();
    assert_eq!((store.recovery().cut_bytes, store.recovery().commits), (32, 3));
    assert_eq!(store.recovery().notes().len(), 1);

    assert_eq!(store.branch(b"main"), Some(commits[2]));
}

/// Either page of the control record, and the mark, can be lost: the others are enough, the opener
/// says so, and a writer makes them whole.
#[test]
fn a_damaged_copy_of_the_control_record_is_mended() {
    let options = options();
    let (disk, commits) = written(&options, 4, true);
    let control = Path::new(DIR).join("control");

    for at in [100, 4096 + 100, 8192 + 10] {
        let damaged = disk.clone_disk();
        damaged.flip_bit(&control, at * 8);
        assert_eq!(checked(&damaged).problem_count, 1);
        assert_eq!(read(&damaged).unwrap().recovery().damaged_copies, 1);
        let shared: Arc<dyn Disk> = damaged.clone();
        let store = open(&shared, &options).unwrap();
        assert_eq!(store.recovery().damaged_copies, 1);
        assert_eq!(store.branch(b"main"), commits.last().copied());
        drop(store);
        assert_eq!(checked(&damaged).problems, []);

        let damaged = disk.clone_disk();
        damaged.flip_bit(&control, at * 8);
        assert!(repaired(&damaged, Loss::Refused).unwrap().control);
        assert_eq!(checked(&damaged).problems, []);
    }
}

/// A store that had lost its control record was taken for a free directory, and its first chunk for
/// the rest of an interrupted creation.
#[test]
fn no_store_is_made_over_chunks() {
    let options = options();
    let (disk, commits) = written(&options, 4, true);
    disk.remove(&Path::new(DIR).join("control")).unwrap();
    let before = content(&disk);
    let shared: Arc<dyn Disk> = disk.clone();
    let errors = [
        create(&shared, &options).unwrap_err(),
        open(&shared, &options).unwrap_err(),
        read(&disk).unwrap_err(),
    ];
    assert!(errors.iter().all(|error| matches!(error, Error::LostControl { .. })), "{errors:?}");
    assert_eq!(content(&disk), before);
    assert!(checked(&disk).problem_count > 0);
    assert!(repaired(&disk, Loss::Refused).unwrap().control);
    let store = open(&shared, &options).unwrap();

    assert!(commits.iter().all(|hash| store.exists(hash).unwrap()));
}

/// Two stores of one history, with other values. A chunk, or a part in a volume, of one of them in
/// the other was read as its own: hundreds of commits had wrong content, and no error told of it.
#[test]
fn a_chunk_of_another_store_is_refused() {
    let options = options().chunk_bytes(4 << 10);
    let made = |value: u8| {
        let disk = SimDisk::new(u64::from(value));
        // The identity of a store comes of the time at which it was made.
        disk.advance(Duration::from_secs(u64::from(value)));
        let shared: Arc<dyn Disk> = disk.clone();
        let store = create(&shared, &options).unwrap();
        store.add_volume().unwrap();
        let mut context = store.empty();

        for number in 0..60u8 {
            context.add(&["data", &number.to_string()], vec![value; 60]).unwrap();
            let hash = store.commit(&context, &Meta::tezos(i64::from(number), "")).unwrap();
            context = store.checkout(&hash).unwrap().unwrap();
        }

        drop(context);
        store.collect(&Retain::newest(3), &mut |_| GcPace::Go).unwrap();
        let hashes: Vec<Hash> = store.newest().map(|commit| commit.unwrap().hash).collect();
        store.close().unwrap();
        drop(store);

        (disk, hashes)
    };

    let (ours, hashes) = made(1);
    let (theirs, _) = made(2);
    let shared_files: Vec<PathBuf> =
        chunks(&ours).into_iter().filter(|path| theirs.read_raw(path).is_some()).collect();
    assert!(shared_files.len() > 3, "{shared_files:?}");

    for path in shared_files {
        let mixed = ours.clone_disk();
        mixed.write_raw(&path, &theirs.read_raw(&path).unwrap());
        let report = checked(&mixed);
        let named = |problem: &terrane_context::Problem| problem.path == path;
        assert!(report.problems.iter().any(named), "{path:?}: {:?}", report.problems);
        let Ok(reader) = read(&mixed) else { continue };

        for hash in &hashes {
            let found =
                reader.checkout(hash).and_then(|context| context.unwrap().find(&["data", "0"]));
            match found {
                Ok(found) => assert_eq!(found, Some(vec![1; 60]), "{path:?}"),
                Err(Error::ForeignChunk { path: found }) => assert_eq!(found, path),
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

/// Without its index a store opened with none of its commits, and said nothing. So did one whose
/// index was of an earlier time.
#[test]
fn a_lost_index_is_made_again_at_once() {
    for indexing in [Indexing::Minimal, Indexing::Always] {
        let options = options().indexing(indexing);
        let (disk, commits) = written(&options, 20, true);
        let (early, _) = written(&options, 2, true);
        let of_index = |disk: &SimDisk| -> Vec<PathBuf> {
            disk.files().into_iter().filter(|path| path.starts_with("/store/index")).collect()
        };

        for is_early in [false, true] {
            let damaged = disk.clone_disk();
            for path in of_index(&damaged) {
                damaged.remove(&path).unwrap();
            }
            if is_early {
                for path in of_index(&early) {
                    damaged.write_raw(&path, &early.read_raw(&path).unwrap());
                }
            }

            assert_eq!(checked(&damaged).problem_count, 1, "{:?}", checked(&damaged).problems);
            let shared: Arc<dyn Disk> = damaged.clone();
            let store = open(&shared, &options).unwrap();
            assert!(store.recovery().indexed.is_some_and(|entries| entries >= 20));
            assert!(commits.iter().all(|hash| store.checkout(hash).unwrap().is_some()));
            drop(store);

            assert_eq!(checked(&damaged).problems, []);
        }
    }
}
