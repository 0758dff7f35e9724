//! Followers of a bucket: copies that take over what is shipped.
//!
//! Goal: whatever a store does between two uploads (commits, checkpoints, tables made, renamed and
//! dropped, roll-backs, bulk loads), and whatever happens to the bucket (backups dropped, another
//! branch of the store shipped), the copy is the store as of the last commit that was shipped; also
//! when it begins late, or any request or any call on its disk fails.

use std::path::Path;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use terrane_io::{Disk, FaultPlan, MemoryDisk, SimDisk, Survival};
use terrane_lsm::{Error as StoreError, FollowOptions, FollowReport, Store, TableConfig};
use terrane_object::{Bucket, BucketFollower, Error, Restoring, Retention};

use crate::faults::{FaultyStore, When};
use crate::{Ledger, STORE, back_up, bucket, content_in, model, options};

const COPY: &str = "/copies/ledger";

fn follow_options() -> FollowOptions {
    FollowOptions::default().store(options())
}

fn follow(bucket: &Bucket, disk: &Arc<dyn Disk>) -> Result<BucketFollower, Error> {
    BucketFollower::open(bucket, (disk, Path::new(COPY)), &follow_options(), &mut |_, _| {})
}

/// Catches up, compares, and closes.
fn assert_follows(bucket: &Bucket, disk: &Arc<dyn Disk>, commit: u64) -> FollowReport {
    let mut follower = follow(bucket, disk).unwrap();
    let report = follower.catch_up().unwrap();
    assert_eq!(report.source_commit, commit);
    let compared = follower.verify().unwrap();
    assert!(!compared.is_empty() && compared.iter().all(terrane_lsm::FollowedTable::is_equal));
    follower.close().unwrap();
    report
}

#[test]
fn a_follower_takes_over_each_commit_that_is_shipped() {
    let ledger = Ledger::new();
    let bucket = bucket(Arc::new(InMemory::new()));
    let mut reader = ledger.reader();
    ledger.commit(5);
    back_up(&bucket, &mut reader).unwrap();
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    assert_eq!(assert_follows(&bucket, &disk, 5).commits, 0);

    // Checkpoints come in between, and so do later bases.
    let mut applied = 0;
    for _ in 0..6 {
        reader.keep_log_from(bucket.log_to_keep().unwrap()).unwrap();
        let last = ledger.commit(37);
        back_up(&bucket, &mut reader).unwrap();
        let report = assert_follows(&bucket, &disk, last);
        assert_eq!((report.takeovers, report.commits), (0, 37));
        applied += report.commits;
        assert!(content_in(Arc::clone(&disk), Path::new(COPY)).1 == model(last));
    }
    assert!(bucket.backups().unwrap().len() > 1, "{applied}");

    // Another one that begins late, and one that was away for all of it.
    let late: Arc<dyn Disk> = MemoryDisk::new();
    assert_follows(&bucket, &late, ledger.commit(0));
}

#[test]
fn a_follower_that_was_away_goes_from_backup_to_backup() {
    let ledger = Ledger::new();
    let bucket = bucket(Arc::new(InMemory::new()));
    let mut reader = ledger.reader();
    ledger.commit(5);
    back_up(&bucket, &mut reader).unwrap();
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    assert_follows(&bucket, &disk, 5);
    for _ in 0..6 {
        reader.keep_log_from(bucket.log_to_keep().unwrap()).unwrap();
        ledger.commit(37);
        back_up(&bucket, &mut reader).unwrap();
    }
    let report = assert_follows(&bucket, &disk, 5 + 6 * 37);
    assert_eq!((report.takeovers, report.commits), (0, 6 * 37));
}

#[test]
fn what_the_log_does_not_tell_is_taken_over_from_a_view() {
    let ledger = Ledger::new();
    let bucket = bucket(Arc::new(InMemory::new()));
    let store = ledger.store.as_ref().unwrap();
    let mut reader = ledger.reader();
    ledger.commit(20);
    back_up(&bucket, &mut reader).unwrap();
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    assert_follows(&bucket, &disk, 20);

    let mut takeovers = 0;
    for step in 0..7 {
        match step {
            // A change of the list of tables alone makes no commit.
            0 => drop(store.create_table("other", &TableConfig::default()).unwrap()),
            1 => {
                let other = store.table("other").unwrap();
                other.insert(b"k", b"v").unwrap().wait().unwrap();
            }
            2 => {
                let mut loader = store.bulk_load("loaded", &TableConfig::default()).unwrap();
                loader.insert(b"bulk", b"entry").unwrap();
                loader.finish().unwrap();
            }
            3 => store.rename_table("loaded", "renamed").unwrap(),
            4 => {
                let version = store.retain(None).unwrap();
                store.table("other").unwrap().insert(b"gone", b"soon").unwrap().wait().unwrap();
                store.roll_back(version).unwrap();
            }
            // A gap: nobody has kept the log.
            5 => {
                ledger.commit(60);
                store.checkpoint().unwrap();
                store.table("other").unwrap().insert(b"k", b"w").unwrap().wait().unwrap();
            }
            _ => store.drop_table("renamed").unwrap(),
        }
        back_up(&bucket, &mut reader).unwrap();
        takeovers += assert_follows(&bucket, &disk, store.last_commit()).takeovers;
        // Nothing is taken over twice.
        assert_eq!(assert_follows(&bucket, &disk, store.last_commit()).takeovers, 0);
    }
    assert!((5..=7).contains(&takeovers), "{takeovers}");
}

#[test]
fn another_branch_of_the_store_and_dropped_backups_lead_to_no_wrong_copy() {
    let ledger = Ledger::new();
    let bucket = bucket(Arc::new(InMemory::new()));
    let mut reader = ledger.reader();
    ledger.commit(30);
    back_up(&bucket, &mut reader).unwrap();
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    reader.keep_log_from(bucket.log_to_keep().unwrap()).unwrap();
    let last = ledger.commit(4);
    back_up(&bucket, &mut reader).unwrap();
    assert_follows(&bucket, &disk, last);

    // Somebody restores an earlier commit, goes on with other commits, and ships these.
    let restoring = Restoring::new(STORE).on_disk(MemoryDisk::new()).commit(31);
    let restored: Arc<dyn Disk> = MemoryDisk::new();
    let restoring = restoring.on_disk(Arc::clone(&restored));
    bucket.restore(&restoring, &mut |_, _| {}).unwrap();
    let store = Store::open(Arc::clone(&restored), Path::new(STORE), &options()).unwrap();
    let table = store.table("main").unwrap();
    for number in 0..8_u8 {
        table.insert(&[number], b"another branch").unwrap().wait().unwrap();
    }
    let branch = Ledger { disk: restored, store: Some(store) };
    let mut branch_reader = branch.reader();
    back_up(&bucket, &mut branch_reader).unwrap();
    let report = assert_follows(&bucket, &disk, 39);
    assert_eq!(report.takeovers, 1);

    // The backup that the copy is from is dropped.
    branch
        .store
        .as_ref()
        .unwrap()
        .table("main")
        .unwrap()
        .insert(b"x", b"y")
        .unwrap()
        .wait()
        .unwrap();
    branch.store.as_ref().unwrap().checkpoint().unwrap();
    let last = branch.store.as_ref().unwrap();
    last.table("main").unwrap().insert(b"y", b"z").unwrap().wait().unwrap();
    back_up(&bucket, &mut branch_reader).unwrap();
    bucket.drop_backups(&Retention::new().keep_last(1)).unwrap();
    assert_follows(&bucket, &disk, 41);
}

#[test]
fn a_request_that_fails_at_any_time_is_told_and_repeated() {
    for when in [When::Before, When::FromThenOn] {
        let mut failures = 0;
        for nth in 1.. {
            let ledger = Ledger::new();
            let faulty = FaultyStore::new(Arc::new(InMemory::new()) as Arc<dyn ObjectStore>);
            let bucket = bucket(faulty.clone());
            let mut reader = ledger.reader();
            ledger.commit(20);
            back_up(&bucket, &mut reader).unwrap();
            let disk: Arc<dyn Disk> = MemoryDisk::new();
            reader.keep_log_from(bucket.log_to_keep().unwrap()).unwrap();

            // The copy begins, ...
            faulty.fail(nth, when);
            let begun = follow(&bucket, &disk).and_then(BucketFollower::close);
            let has_failed = faulty.heal();
            assert!(begun.is_ok() || has_failed, "request {nth}: {begun:?}");
            assert_follows(&bucket, &disk, 20);

            // ... and goes on.
            let last = ledger.commit(45);
            back_up(&bucket, &mut reader).unwrap();
            faulty.fail(nth, when);
            let followed = follow(&bucket, &disk).and_then(|mut follower| {
                let followed = follower.catch_up();
                follower.close()?;
                followed
            });
            let has_failed_again = faulty.heal();
            if let Err(error) = &followed {
                assert!(has_failed_again, "request {nth}: {error}");
                assert!(matches!(error, Error::Request { .. }), "request {nth}: {error:?}");
                failures += 1;
            }
            assert_follows(&bucket, &disk, last);
            assert!(content_in(Arc::clone(&disk), Path::new(COPY)).1 == model(last));
            if !has_failed && !has_failed_again {
                break;
            }
        }
        assert!(failures > 8, "{failures} failures");
    }
}

#[test]
fn a_follower_that_crashes_at_any_call_goes_on_where_it_was() {
    let ledger = Ledger::new();
    let bucket = bucket(Arc::new(InMemory::new()));
    let mut reader = ledger.reader();
    ledger.commit(20);
    back_up(&bucket, &mut reader).unwrap();
    reader.keep_log_from(bucket.log_to_keep().unwrap()).unwrap();

    // One that begins, and one that goes on with news.
    let begun = SimDisk::new(0);
    let first: Arc<dyn Disk> = begun.clone();
    let empty = SimDisk::new(0);
    follow(&bucket, &first).unwrap().close().unwrap();
    let last = ledger.commit(9);
    back_up(&bucket, &mut reader).unwrap();
    for start in [empty, begun] {
        let base = start.calls();
        // Each seventh call, another one in each kind of run.
        for call in (base % 7..).step_by(7) {
            let sim = start.clone_disk();
            sim.set_plan(FaultPlan::crash_at(sim.calls() + call));
            let disk: Arc<dyn Disk> = sim.clone();
            let followed = follow(&bucket, &disk).and_then(|mut follower| {
                follower.catch_up()?;
                follower.close()
            });
            let has_crashed = sim.has_crashed();
            assert!(followed.is_ok() || has_crashed, "{followed:?}");
            let survival = [Survival::Nothing, Survival::Everything, Survival::Random(call)];
            let after = sim.after_crash(survival[call as usize % 3]);
            after.set_plan(FaultPlan::default());
            let disk: Arc<dyn Disk> = after;
            assert_follows(&bucket, &disk, last);
            assert!(content_in(disk, Path::new(COPY)).1 == model(last), "call {call}");
            if !has_crashed {
                break;
            }
        }
    }
}

#[test]
fn what_is_no_copy_of_the_bucket_is_refused() {
    let ledger = Ledger::new();
    let bucket = bucket(Arc::new(InMemory::new()));
    let mut reader = ledger.reader();
    ledger.commit(10);
    back_up(&bucket, &mut reader).unwrap();
    let refused = |disk: &Arc<dyn Disk>| {
        let refused = follow(&bucket, disk).map(drop).unwrap_err();
        let Error::Store(StoreError::NotAFollower { reason, .. }) = refused else {
            panic!("{refused:?}");
        };
        reason
    };

    // A store that was restored is one of its own.
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let restoring = Restoring::new(COPY).on_disk(Arc::clone(&disk));
    disk.create_dir(Path::new("/copies")).unwrap();
    bucket.restore(&restoring, &mut |_, _| {}).unwrap();
    assert!(refused(&disk).contains("something else"));

    // A copy that somebody has committed to.
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let follower = follow(&bucket, &disk).unwrap();
    follower.store().table("main").unwrap().insert(b"own", b"change").unwrap().wait().unwrap();
    follower.close().unwrap();
    assert!(refused(&disk).contains("somebody else"));

    // The copy of another store.
    let other = crate::bucket(Arc::new(InMemory::new()));
    let stranger: Arc<dyn Disk> = MemoryDisk::new();
    let salt = terrane_lsm::SessionOptions::with_salt(8).create_dir();
    let store = Store::open(stranger.clone(), Path::new(STORE), &options().session(salt)).unwrap();
    store
        .create_table("main", &TableConfig::default())
        .unwrap()
        .insert(b"k", b"v")
        .unwrap()
        .wait()
        .unwrap();
    let stranger = Ledger { disk: stranger, store: Some(store) };
    back_up(&other, &mut stranger.reader()).unwrap();
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    follow(&other, &disk).unwrap().close().unwrap();
    assert!(refused(&disk).contains("no copy of the store"));
}
