//! Stores with their archive and their index in directories elsewhere.
//!
//! Goal: later opens find the directories without being told, whoever opens; a directory that is
//! away, or another store's, is refused; no link in it is followed; a crash at any call of making
//! or moving leaves a store that opens, or none that hinders the next attempt.
//!
//! Method: the simulated disk, with a crash at every call; links on a real disk.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    CheckOptions, CheckReport, Error, Hash, IndexEngine, Indexing, Loss, Meta, Options, Recovery,
    Result, Retain, Store, StoreReader, check, repair,
};
use terrane_io::{Disk, RealDisk};
use terrane_io::{SimDisk, Survival};
use terrane_testkit::effort::by_effort;
use terrane_testkit::sweep::{self, Sweep};

use crate::script::{DIR, create, go, open, options};

const COLD: &str = "/cold/archive";
const FAST: &str = "/fast/index-of-a";

/// Options that name both directories.
fn elsewhere() -> Options {
    let archive = Some(PathBuf::from(COLD));
    let index = Some(PathBuf::from(FAST));
    options().archive_dir(archive).index_dir(index)
}

/// Commits so many children in a row, of the newest commit or of nothing.
fn chain(store: &Store, count: usize) -> Vec<Hash> {
    let mut hashes = Vec::new();
    for number in 0..count {
        let newest = store.newest().next().transpose().unwrap();
        let mut context = match &newest {
            Some(newest) => store.checkout(&newest.hash).unwrap().unwrap(),
            None => store.empty(),
        };
        let date = newest.map_or(0, |newest| newest.date + 1);
        for name in 0..20 {
            let step = format!("{}", (number * 37 + name * 11) % 300);
            let value = vec![date as u8; [3, 60, 90][name % 3]];
            context.add(&["data", step.as_str()], value.as_slice()).unwrap();
        }
        hashes.push(store.commit(&context, &Meta::tezos(date, "")).unwrap());
    }

    hashes
}

fn files_in(disk: &SimDisk, dir: &str) -> Vec<PathBuf> {
    disk.files().into_iter().filter(|path| path.starts_with(dir)).collect()
}

fn engine() -> Arc<dyn IndexEngine> {
    Arc::new(BtreeIndexes::new(1 << 20))
}

fn checked(disk: &Arc<dyn Disk>) -> CheckReport {
    let engine = engine();
    let options = CheckOptions::default().index(&engine).hashes(true);
    check(disk, Path::new(DIR), &options, &mut |_| {}).unwrap()
}

fn has_all(store: &Store, disk: &Arc<dyn Disk>, hashes: &[Hash]) {
    let reader = StoreReader::open(Arc::clone(disk), Path::new(DIR), 1 << 20).unwrap();
    for hash in hashes {
        for context in [store.checkout(hash).unwrap(), reader.checkout(hash).unwrap()] {
            let tree = context.unwrap().tree().clone();
            assert!(tree.find(&["data", "0"]).is_ok());
            assert!(tree.list(&["data"], 0, 1000).unwrap().len() >= 20);
        }
    }
}

/// A store with 40 commits, of which a collection has archived most, and which is closed.
fn archived(disk: &Arc<SimDisk>, options: &Options) -> Vec<Hash> {
    let shared: Arc<dyn Disk> = disk.clone();
    let store = create(&shared, options).unwrap();
    let hashes = chain(&store, 40);
    store.add_volume().unwrap();
    let report = store.collect(&Retain::newest(2), &mut go).unwrap();
    assert!(report.archived_bytes > 0);
    store.close().unwrap();
    hashes
}

#[test]
fn parts_elsewhere_are_found_by_every_later_open() {
    for indexing in [Indexing::Minimal, Indexing::Always] {
        let disk = SimDisk::new(1);
        let shared: Arc<dyn Disk> = disk.clone();
        let hashes = archived(&disk, &elsewhere().indexing(indexing));
        assert!(!files_in(&disk, "/cold/archive/volume-00000000").is_empty());
        assert!(!files_in(&disk, "/fast/index-of-a/index").is_empty());
        assert!(files_in(&disk, "/store/archive").is_empty());
        assert!(files_in(&disk, "/store/index").is_empty());

        let plain = options().indexing(indexing);
        let store = open(&shared, &plain).unwrap();
        assert_eq!(store.recovery(), Recovery::default(), "the index was found");
        assert_eq!(store.volumes(), [Path::new(COLD).join("volume-00000000")]);
        has_all(&store, &shared, &hashes);

        // The next volume goes there as well.
        let more = chain(&store, 20);
        store.add_volume().unwrap();
        store.collect(&Retain::newest(2), &mut go).unwrap();
        has_all(&store, &shared, &[&hashes[..], &more[..]].concat());
        store.close().unwrap();
        drop(store);
        let report = checked(&shared);
        assert_eq!(report.problems, []);
        assert_eq!(report.commits, 60);

        // A repair makes the index where it belongs, and a lost marker of a volume.
        disk.remove(&Path::new(COLD).join("volume-00000000/volume")).unwrap();
        let damaged = files_in(&disk, "/fast/index-of-a/index");
        for path in &damaged {
            disk.write_raw(path, b"damage");
        }
        let found = checked(&shared);
        assert!(found.problem_count >= 2, "{:?}", found.problems);
        let done = repair(&shared, Path::new(DIR), &engine(), Loss::Refused, &mut |_| {}).unwrap();
        assert_eq!((done.markers, done.commits), (1, 60));
        assert_eq!(checked(&shared).problems, []);
        assert!(files_in(&disk, "/store/index").is_empty());

        assert_eq!(disk.open_files(), 0);
    }
}

#[test]
fn a_directory_elsewhere_that_is_away_is_refused() {
    for (part, dir) in [("archive", COLD), ("index", FAST)] {
        let disk = SimDisk::new(1);
        let shared: Arc<dyn Disk> = disk.clone();
        let hashes = archived(&disk, &elsewhere());
        let dir = Path::new(dir);
        let away = Path::new("/away");

        let absent = |result: Result<()>| match result {
            Err(Error::AbsentLocation { part: found, path }) => found == part && path == dir,
            other => panic!("{part}: {other:?}"),
        };

        let all_refuse = |disk: &Arc<SimDisk>| {
            let shared: Arc<dyn Disk> = disk.clone();
            let files = || -> Vec<PathBuf> {
                let is_lease = |path: &PathBuf| path.extension().is_some_and(|end| end == "lease");
                disk.files().into_iter().filter(|path| !is_lease(path)).collect()
            };

            let before = files();
            assert!(absent(open(&shared, &options()).map(drop)));
            assert!(absent(open(&shared, &elsewhere()).map(drop)));
            let reader = StoreReader::open(Arc::clone(&shared), Path::new(DIR), 1 << 20);

            if part == "archive" {
                assert!(absent(reader.map(drop)));
            } else {
                reader.expect("no reader looks into the index");
            }

            let refused = repair(&shared, Path::new(DIR), &engine(), Loss::Accepted, &mut |_| {});
            assert!(absent(refused.map(drop)));
            let problems = checked(&shared).problems;
            assert!(problems.iter().any(|problem| problem.path == dir), "{problems:?}");

            assert_eq!(files(), before, "nothing was made in its place");
        };

        disk.rename(dir, away).unwrap();
        all_refuse(&disk);

        // The mount point is there.
        disk.create_dir(dir).unwrap();
        all_refuse(&disk);
        disk.remove_dir(dir).unwrap();
        disk.rename(away, dir).unwrap();
        let store = open(&shared, &options()).unwrap();

        has_all(&store, &shared, &hashes);
    }
}

#[test]
fn a_directory_of_another_store_is_refused() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    archived(&disk, &elsewhere());

    let other = |archive: Option<&str>, index: Option<&str>| {
        let dir = |dir: Option<&str>| dir.map(PathBuf::from);
        let options = options().archive_dir(dir(archive)).index_dir(dir(index));
        Store::create(Arc::clone(&shared), Path::new("/other"), &options).map(drop)
    };

    for refused in [other(Some(COLD), None), other(None, Some(FAST))] {
        assert!(matches!(refused, Err(Error::ForeignLocation { .. })), "{refused:?}");
    }
    // One attempt that failed does not hinder the next, and two stores may share a disk.
    other(Some("/cold/other"), Some("/fast/other")).unwrap();

    // The mounts are exchanged.
    for (ours, theirs) in [(COLD, "/cold/other"), (FAST, "/fast/other")] {
        let swap = |disk: &SimDisk| {
            disk.rename(Path::new(ours), Path::new("/kept")).unwrap();
            disk.rename(Path::new(theirs), Path::new(ours)).unwrap();
            disk.rename(Path::new("/kept"), Path::new(theirs)).unwrap();
        };
        swap(&disk);
        let refused = open(&shared, &options()).map(drop);
        assert!(matches!(refused, Err(Error::ForeignLocation { .. })), "{refused:?}");
        assert!(checked(&shared).problem_count > 0);
        swap(&disk);
    }

    assert_eq!(checked(&shared).problems, []);
    // The file `locations` of another store, and one that is damaged.
    let file = Path::new(DIR).join("locations");
    let own = disk.read_raw(&file).unwrap();
    disk.write_raw(&file, &disk.read_raw(Path::new("/other/locations")).unwrap());
    assert!(matches!(open(&shared, &options()).map(drop), Err(Error::Corrupt { path, .. })
        if path == file));
    disk.write_raw(&file, &own[..own.len() - 1]);
    assert!(matches!(open(&shared, &options()).map(drop), Err(Error::Corrupt { path, .. })
        if path == file));
    assert!(checked(&shared).problems.iter().any(|problem| problem.path == file));

    // Naming the directories once more makes it again.
    open(&shared, &elsewhere()).unwrap().close().unwrap();
    assert_eq!(disk.read_raw(&file).unwrap(), own);
    assert_eq!(checked(&shared).problems, []);
}

#[test]
fn parts_move_where_an_open_says() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let hashes = archived(&disk, &options());

    // The archive does not move by itself.
    let refused = open(&shared, &elsewhere()).map(drop);
    assert!(matches!(refused, Err(Error::AbsentVolume { .. })), "{refused:?}");
    open(&shared, &options()).unwrap().close().unwrap();
    disk.rename(
        Path::new("/store/archive/volume-00000000"),
        Path::new("/cold/archive/volume-00000000"),
    )
    .unwrap();
    let store = open(&shared, &elsewhere()).unwrap();
    assert!(store.recovery().indexed.is_some());
    has_all(&store, &shared, &hashes);
    store.close().unwrap();
    assert!(files_in(&disk, "/store/index").is_empty());
    assert_eq!(checked(&shared).problems, []);

    // And back.
    disk.rename(
        Path::new("/cold/archive/volume-00000000"),
        Path::new("/store/archive/volume-00000000"),
    )
    .unwrap();
    let here = Some(PathBuf::from(DIR));
    let inside = options().archive_dir(here.clone()).index_dir(here);
    let store = open(&shared, &inside).unwrap();
    has_all(&store, &shared, &hashes);
    store.close().unwrap();
    assert!(disk.kind(Path::new("/store/locations")).unwrap().is_none());
    assert!(files_in(&disk, FAST).is_empty());
    assert_eq!(checked(&shared).problems, []);

    // A path that cannot be recorded.
    let long = Some(PathBuf::from(format!("/{}", "x".repeat(4096))));
    let refused = open(&shared, &options().index_dir(long)).map(drop);
    assert!(matches!(refused, Err(Error::InvalidConfig { option: "index_dir", .. })));
}

/// Runs `act` with a crash at each of its calls, in several ways, on a copy of `before`, and has
/// `look` look at what is left.
fn at_each_call(
    before: &Arc<SimDisk>,
    act: &dyn Fn(&Arc<dyn Disk>) -> Result<()>,
    look: &dyn Fn(&Arc<SimDisk>, u64),
) {
    let images = Sweep::sampled(1, 12).on(before).crash(
        |disk| {
            let shared: Arc<dyn Disk> = disk.clone();
            // What is given up after the last result may fail unseen.
            let done = act(&shared);
            assert!(disk.has_crashed() || done.is_ok(), "{done:?}");
        },
        |crash| {
            let survivals = [Survival::Nothing, Survival::Everything, Survival::Random(crash.call)];
            let losses =
                survivals.map(sweep::Loss::Power).into_iter().chain([sweep::Loss::Process]);
            crash.images(losses, |image| look(&image.disk, crash.call))
        },
    );
    assert!(images > by_effort(4, 80), "{images}");
}

#[test]
fn a_crash_at_any_call_of_the_making_hinders_no_second_attempt() {
    let make = |disk: &Arc<dyn Disk>| create(disk, &elsewhere())?.close();
    at_each_call(&SimDisk::new(1), &make, &|disk, call| {
        let shared: Arc<dyn Disk> = disk.clone();
        let store = match open(&shared, &options()) {
            Ok(store) => store,
            Err(Error::NotFound { .. }) => {
                create(&shared, &elsewhere()).unwrap_or_else(|error| panic!("call {call}: {error}"))
            }
            Err(error) => panic!("call {call}: {error}"),
        };
        let hashes = chain(&store, 3);
        store.add_volume().unwrap();
        store.close().unwrap();
        drop(store);
        let store = open(&shared, &options()).unwrap();
        assert_eq!(store.recovery(), Recovery::default(), "call {call}");
        has_all(&store, &shared, &hashes);
        store.close().unwrap();
        drop(store);
        assert_eq!(checked(&shared).problems, [], "call {call}");
        assert!(files_in(disk, "/store/archive").is_empty());
        assert!(files_in(disk, "/store/index").is_empty());
        let strays = disk.files().into_iter().filter(|path| path.extension().is_some());
        assert!(
            strays.eq(files_in(disk, FAST).into_iter().filter(|path| path.extension().is_some()))
        );
    });
}

#[test]
fn a_crash_at_any_call_of_a_move_leaves_a_whole_store() {
    let disk = SimDisk::new(1);
    let hashes = archived(&disk, &options());
    disk.create_dir(Path::new("/cold")).unwrap();
    disk.create_dir(Path::new(COLD)).unwrap();
    disk.rename(
        Path::new("/store/archive/volume-00000000"),
        Path::new("/cold/archive/volume-00000000"),
    )
    .unwrap();
    for dir in ["/", "/cold", COLD, "/store/archive"] {
        disk.sync_dir(Path::new(dir)).unwrap();
    }
    let relocate = |disk: &Arc<dyn Disk>| open(disk, &elsewhere())?.close();

    at_each_call(&disk, &relocate, &|disk, call| {
        let shared: Arc<dyn Disk> = disk.clone();
        open(&shared, &options()).unwrap_or_else(|error| panic!("call {call}: {error}"));
        let store = open(&shared, &elsewhere()).unwrap();
        has_all(&store, &shared, &hashes);
        store.close().unwrap();
        drop(store);
        assert_eq!(checked(&shared).problems, [], "call {call}");
    });
}

/// The directory itself may be named by a link; nothing below it may be one.
#[test]
fn no_link_is_followed_out_of_a_directory_elsewhere() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let disk: Arc<dyn Disk> = RealDisk::auto();
    let outside = path("outside");
    for dir in ["outside", "real-archive", "real-index"] {
        fs::create_dir(path(dir)).unwrap();
    }
    symlink(path("real-archive"), path("archive")).unwrap();
    symlink(path("real-index"), path("index")).unwrap();
    let named = options().archive_dir(path("archive")).index_dir(path("index"));
    let store = Store::create(Arc::clone(&disk), &path("store"), &named).unwrap();
    chain(&store, 10);
    store.close().unwrap();
    drop(store);

    // A volume.
    symlink(&outside, path("real-archive/volume-00000000")).unwrap();
    let open = || Store::open(Arc::clone(&disk), &path("store"), &options());
    let store = open().unwrap();
    let refused = store.add_volume();
    assert!(matches!(refused, Err(Error::Disk(_))), "{refused:?}");
    drop(store);
    fs::remove_file(path("real-archive/volume-00000000")).unwrap();

    // The index.
    fs::rename(path("real-index/index"), path("outside/index")).unwrap();
    symlink(path("outside/index"), path("real-index/index")).unwrap();
    let list = || fs::read_dir(path("outside/index")).unwrap().count();
    let before = list();
    assert!(open().is_err());
    assert!(repair(&disk, &path("store"), &engine(), Loss::Refused, &mut |_| {}).is_err());
    assert_eq!(list(), before);
    fs::remove_file(path("real-index/index")).unwrap();
    fs::rename(path("outside/index"), path("real-index/index")).unwrap();

    // A marker, and the file of the store that says where all this is.
    for file in ["real-index/terrane-index", "real-archive/terrane-archive", "store/locations"] {
        fs::rename(path(file), path("outside/file")).unwrap();
        symlink(path("outside/file"), path(file)).unwrap();
        assert!(matches!(open().map(drop), Err(Error::Disk(_))), "{file}");
        fs::remove_file(path(file)).unwrap();
        fs::rename(path("outside/file"), path(file)).unwrap();
    }

    open().unwrap().close().unwrap();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}
