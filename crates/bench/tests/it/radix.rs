//! Radix stores by the names of their back-ends: directories that say what they are, and the loads
//! of the benchmark on each.

use std::fs;
use std::path::Path;

use terrane::kv::{Durability, PowerLoss};
use terrane::radix::{Address, Change, Root};
use terrane::state_dir::{BackEnd, Error, Marker, OpenOptions, Password, database_path, is_store};
use terrane_bench::workloads::radix::transact::TESTS;
use terrane_bench::workloads::radix::{
    Cell, Load, Outcome, Report, Sizes, append_synced, floor_of, run,
};
use terrane_replay::error::Class;
use terrane_testkit::effort::by_effort;

/// The back-ends of this build that keep their data in files.
pub(crate) fn with_files() -> Vec<BackEnd> {
    BackEnd::ALL.into_iter().filter(|one| one.has_files() && one.is_built()).collect()
}

fn opening(back_end: BackEnd) -> OpenOptions {
    OpenOptions::default().back_end(back_end)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.to_string_lossy().into_owned()).collect()
}

#[test]
fn a_directory_says_which_back_end_it_has() {
    for back_end in with_files() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("a/store");
        assert!(matches!(opening(back_end).open(&dir), Err(Error::Absent { .. })));
        let store = opening(back_end).open_or_create(&dir).unwrap();
        let address: Address = "00ff".parse().unwrap();
        let tree = store.create_tree("t").unwrap();
        let set = [Change::Set(address, b"v".to_vec())];
        let root = tree.commit(&Root::EMPTY, &set).unwrap().root;
        store.close().unwrap();
        drop((store, tree));
        assert_eq!(Marker::read(&dir).unwrap(), Marker { back_end, redis: None, cassandra: None });
        assert!(is_store(&dir).unwrap() && !is_store(place.path()).unwrap());

        let store = OpenOptions::default().open(&dir).unwrap();
        assert_eq!(store.database().name(), back_end.name());
        let found = store.tree("t").unwrap().get_one(&root, &address).unwrap();
        assert_eq!(found.as_deref(), Some(&b"v"[..]));
        store.close().unwrap();
        drop(store);

        let other = if back_end == BackEnd::Lsm { BackEnd::Btree } else { BackEnd::Lsm };
        let error = opening(other).open(&dir).unwrap_err();
        assert!(error.to_string().contains(&format!("{back_end}, not {other}")), "{error}");
        assert_eq!(Class::from(&error), Class::Input);

        let database = database_path(&dir);
        fs::rename(&database, dir.join("gone")).unwrap();
        let error = OpenOptions::default().open_or_create(&dir).unwrap_err();
        assert_eq!(Class::from(&error), Class::Check, "{error}");
        assert!(!database.exists(), "a lost database is not made anew");
    }
}

#[test]
fn a_creation_that_was_cut_short_is_done_again_and_other_directories_are_left_alone() {
    for back_end in with_files() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("store");
        opening(back_end).open_or_create(&dir).unwrap().close().unwrap();
        // The state of the directory before the last step of a creation.
        fs::rename(dir.join("radix-store"), dir.join("radix-store.new")).unwrap();
        assert!(is_store(&dir).unwrap());
        opening(back_end).open_or_create(&dir).unwrap().close().unwrap();
        assert!(dir.join("radix-store").exists() && !dir.join("radix-store.new").exists());
    }
    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("letter"), "dear").unwrap();
    let error = opening(BackEnd::Lsm).open_or_create(foreign.path()).unwrap_err();
    assert!(matches!(&error, Error::Foreign { name, .. } if name == "letter"), "{error}");
    // A store that cannot be made leaves nothing.
    let dir = foreign.path().join("new");
    let durability = Durability::Group;
    for back_end in with_files() {
        let refused = opening(back_end).durability(durability).open_or_create(&dir);
        match refused {
            Err(error) => {
                assert_eq!(Class::from(&error), Class::Input, "{error}");
                assert_eq!(names(&dir), Vec::<String>::new(), "{back_end}");
            }
            Ok(store) => {
                store.close().unwrap();
                fs::remove_dir_all(&dir).unwrap();
            }
        }
    }
}

/// Such a creation was finished with the default back-end, whatever had been begun; and a caller
/// that only opened it made it.
#[test]
fn an_interrupted_creation_is_finished_with_the_back_end_that_it_began_with() {
    for back_end in with_files() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("store");
        let marker = dir.join("radix-store");
        let begun = dir.join("radix-store.new");
        opening(back_end).open_or_create(&dir).unwrap().close().unwrap();
        fs::rename(&marker, &begun).unwrap();
        match OpenOptions::default().open(&dir).unwrap_err() {
            Error::Unfinished { back_end: found, .. } => assert_eq!(found, Some(back_end)),
            other => panic!("{other}"),
        }
        assert!(begun.exists() && !marker.exists(), "opening makes nothing");
        OpenOptions::default().open_or_create(&dir).unwrap().close().unwrap();
        assert_eq!(Marker::read(&dir).unwrap().back_end, back_end);

        // The request takes precedence over the marker, and without a whole marker nothing was
        // begun.
        let other = if back_end == BackEnd::Lsm { BackEnd::Btree } else { BackEnd::Lsm };
        fs::rename(&marker, &begun).unwrap();
        opening(other).open_or_create(&dir).unwrap().close().unwrap();
        assert_eq!(Marker::read(&dir).unwrap().back_end, other);
        fs::rename(&marker, &begun).unwrap();
        fs::write(&begun, "terrane-rad").unwrap();
        let error = OpenOptions::default().open(&dir).unwrap_err();
        assert!(matches!(error, Error::Unfinished { back_end: None, .. }), "{error}");
        fs::write(dir.join("letter"), "dear").unwrap();
        let error = opening(back_end).open_or_create(&dir).unwrap_err();
        assert!(matches!(&error, Error::Foreign { name, .. } if name == "letter"), "{error}");
        fs::remove_file(dir.join("letter")).unwrap();
        opening(back_end).open_or_create(&dir).unwrap().close().unwrap();
    }
}

#[test]
fn a_store_has_one_owner_at_a_time() {
    for back_end in with_files() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("store");
        let store = opening(back_end).open_or_create(&dir).unwrap();
        for create in [false, true] {
            let opening = opening(back_end);
            let again = if create { opening.open_or_create(&dir) } else { opening.open(&dir) };
            let error = again.unwrap_err();
            assert!(
                matches!(error, Error::Locked { pid: Some(pid), .. } if pid == std::process::id()),
                "{back_end}: {error}"
            );
            assert!(error.is_in_use() && Class::from(&error) == Class::Environment);
        }
        store.close().unwrap();
        drop(store);
        opening(back_end).open(&dir).unwrap().close().unwrap();
    }
}

/// Commands that only read opened without syncs, and what a back-end writes when it closes took
/// durable commits back.
#[test]
fn reading_leaves_durable_what_was_durable() {
    for back_end in with_files() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("store");
        opening(back_end).open_or_create(&dir).unwrap().close().unwrap();
        let reading = OpenOptions::default().is_read_only(true).durability(Durability::None);
        let store = reading.open(&dir).unwrap();
        assert_eq!(store.database().guarantee().power_loss, PowerLoss::EveryCommit, "{back_end}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn urls_that_cannot_be_are_refused_before_anything_is_made() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("store");
    for url in
        ["redis://host\nurl redis://other", "redis://host/\u{7}", "redis://:pa/ss@host", "host"]
    {
        let redis_urls = vec![url.to_owned()];
        let refused = opening(BackEnd::Redis).redis_urls(redis_urls).open_or_create(&dir);
        let error = refused.unwrap_err();
        assert_eq!(Class::from(&error), Class::Input, "{url}: {error}");
        assert!(!error.to_string().contains("ss@"), "{error}");
        assert!(!dir.exists(), "{url}");
    }
}

fn done(cell: &Cell<'_>) -> Report {
    match run(cell).unwrap() {
        Outcome::Done(report) => *report,
        Outcome::Refused(why) => panic!("{}: {why}", cell.back_end),
    }
}

/// Calls `check` with each back-end of this build and a cell on it; Redis only where a server can
/// be started.
fn on_each(load: Load, sizes: &Sizes, check: impl Fn(BackEnd, Durability, &Report)) {
    let made = |back_end, durability, redis_urls: &[String]| {
        let place = tempfile::tempdir().unwrap();
        let redis_urls = redis_urls.to_vec();
        let dir = place.path();
        let sizes = sizes.clone();
        let redis_password = Password::InUrl;
        run(&Cell {
            back_end,
            dir,
            durability,
            load,
            sizes,
            seed: 7,
            redis_urls,
            redis_password,
            starts_redis: false,
            cassandra_url: None,
        })
        .unwrap()
    };

    let report = |back_end, durability, redis_urls: &[String]| match made(
        back_end, durability, redis_urls,
    ) {
        Outcome::Done(report) => report,
        Outcome::Refused(why) => panic!("{back_end}: {why}"),
    };

    let memory = report(BackEnd::Memory, Durability::None, &[]);
    check(BackEnd::Memory, Durability::None, &memory);
    for back_end in with_files() {
        check(back_end, Durability::None, &report(back_end, Durability::None, &[]));
        // Thousands of syncs take as long as the disk likes.
        if load != Load::Tests || back_end == BackEnd::Lsm || by_effort(false, true) {
            check(back_end, Durability::Each, &report(back_end, Durability::Each, &[]));
        }
    }

    #[cfg(feature = "redis")]
    {
        use terrane::backends::redis::server::{Server, is_installed};
        if !is_installed() {
            println!("skipped: redis-server is not installed");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let server = Server::start(place.path(), &["--appendonly", "no"]).unwrap();
        let urls = [server.url()];
        check(BackEnd::Redis, Durability::None, &report(BackEnd::Redis, Durability::None, &urls));
        let refused = made(BackEnd::Redis, Durability::Each, &urls);
        assert!(matches!(refused, Outcome::Refused(_)), "{refused:?}");
    }
}

#[test]
fn the_ten_tests_pass_on_every_back_end() {
    on_each(Load::Tests, &Sizes::default(), |back_end, durability, report| {
        let found: Vec<&str> = report.tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(found, TESTS);
        assert!(report.tests.iter().all(|test| test.wall_s > 0.0));
        assert!(report.transactions > 1_001, "{report:?}");
        if back_end.has_files() {
            assert_eq!(report.syncs > 1_000, durability == Durability::Each, "{report:?}");
            assert!(report.disk_bytes > 0, "{report:?}");
        }
    });
}

#[test]
fn loads_give_equal_roots_on_every_back_end() {
    let sizes = Sizes { commits: vec![40], batches: 6, batch_keys: 50, gets: 100 };
    for load in Load::ALL.into_iter().filter(|load| *load != Load::Tests) {
        let place = tempfile::tempdir().unwrap();
        let memory = done(&Cell {
            back_end: BackEnd::Memory,
            dir: place.path(),
            durability: Durability::None,
            load,
            sizes: sizes.clone(),
            seed: 7,
            redis_urls: Vec::new(),
            redis_password: Password::InUrl,
            starts_redis: false,
            cassandra_url: None,
        });
        on_each(load, &sizes, |back_end, _, report| {
            let figures = |report: &Report| {
                let figures = report.figures.iter();
                figures
                    .map(|one| (one.name.clone(), one.count, one.root.clone()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(figures(report), figures(&memory), "{back_end}, {}", load.name());
            assert!(!report.figures.is_empty() && report.tests.is_empty());
            assert!(report.figures.iter().all(|figure| figure.count > 0), "{report:?}");
        });
        for floor in floor_of(load, &sizes, 7) {
            let figure = memory.figures.iter().find(|figure| figure.name == floor.name);
            assert!(figure.is_some(), "a floor of {:?}, which is no figure", floor.name);
            assert!(floor.floor.nodes > figure.unwrap().count && floor.floor.wall_s > 0.0);
        }
    }
}

/// Roots that `peers/transact` computes from the same keys with `transact` 0.4.7.
#[test]
fn loads_have_the_roots_of_transact() {
    const SINGLE: [&str; 2] = [
        "b21103515dbacd35666265c1a964a560c1eb22b231e62b16e2b97d48cb208128",
        "7205fb20135dc960f4745ed445408f9efd84cfd775cfa9ca20604bd34eb40101",
    ];
    const BATCHES: &str = "19e6df88dab18a04ab55072c01525b0c08da86f75370e3252f40e1a1c5eaa511";
    // A sample is of the shorter ones only.
    let counts = by_effort(vec![1_000], vec![1_000, 10_000]);
    let single = &SINGLE[..counts.len()];
    for (load, roots) in
        [(Load::Single, single), (Load::Prune, single), (Load::Batch, &[BATCHES; 2])]
    {
        let place = tempfile::tempdir().unwrap();
        let report = done(&Cell {
            back_end: BackEnd::Memory,
            dir: place.path(),
            durability: Durability::None,
            load,
            sizes: Sizes { commits: counts.clone(), batches: 100, ..Sizes::default() },
            seed: 8,
            redis_urls: Vec::new(),
            redis_password: Password::InUrl,
            starts_redis: false,
            cassandra_url: None,
        });
        let found: Vec<&str> = report.figures.iter().map(|figure| figure.root.as_str()).collect();
        assert_eq!(found, roots, "{load:?}");
    }
}

#[test]
fn a_durability_that_a_back_end_lacks_is_told_with_the_reason() {
    let place = tempfile::tempdir().unwrap();
    let outcome = run(&Cell {
        back_end: BackEnd::Memory,
        dir: place.path(),
        durability: Durability::Each,
        load: Load::Tests,
        sizes: Sizes::default(),
        seed: 7,
        redis_urls: Vec::new(),
        redis_password: Password::InUrl,
        starts_redis: false,
        cassandra_url: None,
    });

    assert_eq!(outcome.unwrap(), Outcome::Refused("memory keeps nothing; take none".to_owned()));
}

#[test]
fn the_floor_of_the_tests_has_the_nodes_of_their_commits() {
    let floor = floor_of(Load::Tests, &Sizes::default(), 7);
    // 1,000 commits of 33 nodes each, and twice those of the last batch.
    assert!((33_000..40_000).contains(&floor[0].floor.nodes), "{floor:?}");
    assert!(floor[0].floor.bytes > 10_000_000, "{floor:?}");
}

#[test]
fn appends_leave_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    assert!(append_synced(place.path(), 3, 100).unwrap() > 0.0);
    assert_eq!(names(place.path()), Vec::<String>::new());
}
