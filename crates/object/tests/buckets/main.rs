//! Backups in a bucket in memory, whose requests fail in turn.
//!
//! Goal: whatever request fails, before or after its effect, the bucket has the earlier backup or
//! the new one, whole, and the next call goes on. Restores of any reachable commit equal the model,
//! and so does a store that is read in the bucket.
//!
//! Method: a wrapper around the store of `object_store` in memory counts requests and fails one of
//! them. Each sweep repeats a scenario with the n-th request failing, n = 1, 2, 3 … until a run
//! completes. The model of commit n follows from n alone.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod follow;
mod requests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use terrane_io::{Disk, FaultPlan, MemoryDisk, SimDisk, Survival};
use terrane_lsm::{
    CheckpointThread, Durability, ReaderOptions, SessionOptions, SnapshotName, Store, StoreOptions,
    StoreReader, Table, TableConfig, TableName, Update, WriteBuffer,
};
use terrane_object::{Bucket, Error, Restoring, Retention};

use crate::faults::{FaultyStore, When};

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

const STORE: &str = "/store";
const KEYS: u64 = 40;

fn options() -> StoreOptions {
    let session = SessionOptions::with_salt(7).create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Each);
    options.log_bytes_max(64 << 10).checkpoint_thread(CheckpointThread::Caller)
}

/// A store whose commit n is a function of n.
struct Ledger {
    disk: Arc<dyn Disk>,
    store: Option<Store>,
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:03}").into_bytes()
}

/// Long values fill the log, so that checkpoints come.
fn value(commit: u64, number: u64) -> Vec<u8> {
    format!("{commit}-{number}-").repeat(40).into_bytes()
}

fn changes(commit: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    (0..6)
        .map(|at| {
            let number = (commit * 7 + at * 5) % KEYS;
            (key(number), (at != 3).then(|| value(commit, number)))
        })
        .collect()
}

/// State after a commit.
fn model(commit: u64) -> Content {
    let mut content = Content::new();
    for (key, value) in (1..=commit).flat_map(changes) {
        match value {
            Some(value) => drop(content.insert(key, value)),
            None => drop(content.remove(&key)),
        }
    }
    content
}

impl Ledger {
    fn new() -> Self {
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let store = Store::open(Arc::clone(&disk), Path::new(STORE), &options()).unwrap();
        let config = TableConfig::default().write_buffer(WriteBuffer::Entries(16));
        store.create_table(&TableName::new("main").unwrap(), &config).unwrap();
        Self { disk, store: Some(store) }
    }

    fn commit(&self, count: u64) -> u64 {
        let store = self.store.as_ref().unwrap();
        let table = store.table("main").unwrap();
        for _ in 0..count {
            let batch = changes(store.last_commit() + 1);
            let updates: Vec<(&[u8], Update<'_>)> = batch
                .iter()
                .map(|(key, value)| {
                    let update = value.as_deref().map_or(Update::Delete, Update::Insert);
                    (key.as_slice(), update)
                })
                .collect();
            table.write_batch(&updates).unwrap().wait().unwrap();
        }
        store.last_commit()
    }

    fn reader(&self) -> StoreReader {
        let disk = Arc::clone(&self.disk);
        StoreReader::open(disk, Path::new(STORE), &ReaderOptions::default()).unwrap()
    }
}

fn bucket(store: Arc<dyn ObjectStore>) -> Bucket {
    Bucket::of_store(store, "ledger/main", "mem://ledger/main").unwrap()
}

fn back_up(bucket: &Bucket, reader: &mut StoreReader) -> Result<u64, Error> {
    Ok(bucket.back_up(reader, &mut |_, _| {})?.commit)
}

fn content_of(reader: &StoreReader) -> Content {
    entries(&reader.table("main").unwrap())
}

fn entries(table: &Table) -> Content {
    let mut cursor = table.cursor().unwrap();
    let records = cursor.next_many(usize::MAX).unwrap();
    records.into_iter().map(|record| (record.key, record.value.into_vec())).collect()
}

fn content_in(disk: Arc<dyn Disk>, dir: &Path) -> (u64, Content) {
    let reader = StoreReader::open(disk, dir, &ReaderOptions::default()).unwrap();
    (reader.last_commit(), content_of(&reader))
}

/// Restores a commit and opens it for writing; it equals the model.
fn assert_restores(bucket: &Bucket, commit: Option<u64>) -> u64 {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let restoring = Restoring::new("/restored").on_disk(Arc::clone(&disk)).commit(commit);
    let report = bucket.restore(&restoring, &mut |_, _| {}).unwrap();
    let dir = Path::new("/restored");
    let (found, content) = content_in(Arc::clone(&disk), dir);
    assert_eq!((found, commit.unwrap_or(found)), (report.commit, found));
    assert!(content == model(found), "commit {found}");

    let store = Store::open(Arc::clone(&disk), dir, &options()).unwrap();
    assert_eq!(store.last_commit(), found);
    store.close().unwrap();
    let read = bucket.open_disk(commit, 1 << 20).unwrap();
    let (at, content) = content_in(read.clone(), read.dir());
    assert_eq!(at, found);
    assert!(content == model(found), "commit {found} in the bucket");
    found
}

#[test]
fn every_commit_since_the_first_backup_can_be_restored_if_the_log_is_kept() {
    let ledger = Ledger::new();
    let bucket = bucket(Arc::new(InMemory::new()));
    let mut reader = ledger.reader();
    let first = ledger.commit(5);
    for _ in 0..6 {
        let report = bucket.back_up(&mut reader, &mut |_, _| {}).unwrap();
        assert!(report.contiguous, "{report:?}");
        reader.keep_log_from(bucket.log_to_keep().unwrap()).unwrap();
        ledger.commit(17);
    }
    assert!(bucket.backups().unwrap().len() > 1, "checkpoints came in between");
    let last = first + 5 * 17;
    for commit in first..=last {
        assert_restores(&bucket, Some(commit));
    }
    assert_eq!(assert_restores(&bucket, None), last);
    let beyond = Restoring::new("/x").on_disk(MemoryDisk::new()).commit(last + 1);
    let refused = bucket.restore(&beyond, &mut |_, _| {});
    assert!(matches!(refused, Err(Error::Unreachable { .. })), "{refused:?}");
    assert!(bucket.verify(false, &mut |_, _| {}).unwrap().problems.is_empty());
}

#[test]
fn a_second_backup_uploads_only_what_is_new_and_gaps_are_told() {
    let ledger = Ledger::new();
    let bucket = bucket(Arc::new(InMemory::new()));
    let mut reader = ledger.reader();
    ledger.commit(60);
    ledger.store.as_ref().unwrap().table("main").unwrap();
    let first = bucket.back_up(&mut reader, &mut |_, _| {}).unwrap();
    let again = bucket.back_up(&mut reader, &mut |_, _| {}).unwrap();
    assert_eq!((again.files_uploaded, &again.id), (0, &first.id));
    assert_eq!(again.commit, first.commit);

    // Nobody keeps the log here.
    ledger.commit(200);
    let later = bucket.back_up(&mut reader, &mut |_, _| {}).unwrap();
    assert!(!later.contiguous && later.files_shared > 0, "{later:?}");
    let between = Restoring::new("/x").on_disk(MemoryDisk::new()).commit(first.commit + 1);
    let refused = bucket.restore(&between, &mut |_, _| {});
    assert!(matches!(refused, Err(Error::Unreachable { .. })), "{refused:?}");
    assert_restores(&bucket, Some(first.commit));
    assert_restores(&bucket, Some(later.commit));
}

#[test]
fn tables_versions_snapshots_and_rollbacks_are_those_of_the_commit() {
    let ledger = Ledger::new();
    let bucket = bucket(Arc::new(InMemory::new()));
    let mut reader = ledger.reader();
    let store = ledger.store.as_ref().unwrap();
    let start = ledger.commit(10);
    store.retain(None).unwrap();
    let monday = SnapshotName::new("monday").unwrap();
    store.table("main").unwrap().save_snapshot(&monday, "").unwrap();
    back_up(&bucket, &mut reader).unwrap();
    reader.keep_log_from(bucket.log_to_keep().unwrap()).unwrap();
    let before = ledger.commit(5);
    back_up(&bucket, &mut reader).unwrap();

    let other = TableName::new("other").unwrap();
    let table = store.create_table(&other, &TableConfig::default()).unwrap();
    table.write_batch(&[(b"x", Update::Insert(b"1"))]).unwrap().wait().unwrap();
    let made = bucket.back_up(&mut reader, &mut |_, _| {}).unwrap();
    assert!(!made.contiguous, "records of a table are not applied without it: {made:?}");

    let disk = bucket.open_disk(None, 1 << 20).unwrap();
    let read = StoreReader::open(disk.clone(), disk.dir(), &ReaderOptions::default()).unwrap();
    assert_eq!(read.tables().len(), 2);
    assert_eq!(read.versions().unwrap().len(), 1);
    assert!(read.session().snapshot_exists(&monday).unwrap());
    let old = read.version(start).unwrap();
    let old = old.table("main").unwrap();
    assert!(entries(&old) == model(start));
    assert_restores(&bucket, Some(before));

    store.roll_back(start).unwrap();
    let back = bucket.back_up(&mut reader, &mut |_, _| {}).unwrap();
    assert!(!back.contiguous, "{back:?}");
    let disk = bucket.open_disk(None, 1 << 20).unwrap();
    assert!(content_in(disk.clone(), disk.dir()).1 == model(start));
}

/// Makes two backups, the n-th request of the second failing.
fn sweep(when: When) -> u64 {
    let mut runs = 0;
    for nth in 1.. {
        let ledger = Ledger::new();
        let faulty = FaultyStore::new(Arc::new(InMemory::new()));
        let bucket = bucket(faulty.clone());
        let mut reader = ledger.reader();
        let first = ledger.commit(30);
        back_up(&bucket, &mut reader).unwrap();
        reader.keep_log_from(bucket.log_to_keep().unwrap()).unwrap();
        let second = ledger.commit(40);

        faulty.fail(nth, when);
        let made = back_up(&bucket, &mut reader);
        let has_failed = faulty.heal();
        let there = assert_restores(&bucket, None);
        assert!(there == first || there == second, "request {nth}: commit {there}");
        if let Ok(made) = made {
            assert_eq!((made, there), (second, second), "request {nth}");
        }
        assert_restores(&bucket, Some(first));
        let verified = bucket.verify(false, &mut |_, _| {}).unwrap();
        assert!(verified.problems.is_empty(), "request {nth}: {verified:?}");

        // The next backup goes on, and a drop leaves nothing behind.
        assert_eq!(back_up(&bucket, &mut reader).unwrap(), second);
        let retention = Retention::new().keep_last(1).abandoned_after(0);
        bucket.drop_backups(&retention).unwrap();
        let verified = bucket.verify(false, &mut |_, _| {}).unwrap();
        assert_eq!(verified.unreferenced_objects, 0, "request {nth}");
        assert_restores(&bucket, Some(second));
        assert_eq!(faulty.overwritten(), 0, "request {nth}");

        runs += 1;
        if !has_failed {
            break;
        }
    }
    runs
}

#[test]
fn a_request_that_fails_before_its_effect_leaves_one_of_two_backups() {
    assert!(sweep(When::Before) > 15);
}

#[test]
fn a_request_whose_answer_is_lost_leaves_one_of_two_backups() {
    assert!(sweep(When::After) > 15);
}

#[test]
fn a_process_that_ends_at_any_request_leaves_one_of_two_backups() {
    assert!(sweep(When::FromThenOn) > 15);
}

#[test]
fn a_drop_that_fails_at_any_request_loses_no_backup_that_is_kept() {
    for when in [When::Before, When::After, When::FromThenOn] {
        for nth in 1.. {
            let ledger = Ledger::new();
            let faulty = FaultyStore::new(Arc::new(InMemory::new()));
            let bucket = bucket(faulty.clone());
            let mut reader = ledger.reader();
            ledger.commit(30);
            back_up(&bucket, &mut reader).unwrap();
            let last = ledger.commit(90);
            back_up(&bucket, &mut reader).unwrap();
            let retention = Retention::new().keep_last(1);
            faulty.fail(nth, when);
            let dropped = bucket.drop_backups(&retention);
            let has_failed = faulty.heal();
            assert_restores(&bucket, Some(last));
            assert!(dropped.is_ok() || has_failed);
            assert_eq!(bucket.drop_backups(&retention).unwrap().left, 1);
            let verified = bucket.verify(false, &mut |_, _| {}).unwrap();
            assert_eq!((verified.problems.len(), verified.unreferenced_objects), (0, 0));
            if !has_failed {
                break;
            }
        }
    }
}

#[test]
fn two_uploaders_and_a_drop_between_any_two_requests_agree() {
    for nth in 1.. {
        let ledger = Ledger::new();
        let faulty = FaultyStore::new(Arc::new(InMemory::new()));
        let one = bucket(faulty.clone());
        let mut reader = ledger.reader();
        ledger.commit(30);
        back_up(&one, &mut reader).unwrap();
        let second = ledger.commit(90);

        // The other works as the one waits before a request.
        let inner = faulty.inner();
        let disk = Arc::clone(&ledger.disk);
        let other = move || {
            let other = bucket(inner.clone());
            let options = ReaderOptions::default();
            let mut reader = StoreReader::open(disk.clone(), Path::new(STORE), &options).unwrap();
            back_up(&other, &mut reader).unwrap();
            other.drop_backups(&Retention::new().keep_last(1).abandoned_after(0)).unwrap();
        };
        faulty.interrupt(nth, Box::new(other));
        let made = back_up(&one, &mut reader);
        let was_interrupted = faulty.heal();

        match made {
            Ok(commit) => assert_eq!(commit, second),
            // The drop has given the upload up, or let go of what it used.
            Err(Error::UploadRevoked { .. }) => assert!(was_interrupted),
            Err(error) => panic!("request {nth}: {error}"),
        }
        assert_eq!(assert_restores(&one, None), second, "request {nth}");
        let verified = one.verify(false, &mut |_, _| {}).unwrap();
        assert!(verified.problems.is_empty(), "request {nth}: {verified:?}");
        assert_eq!(faulty.overwritten(), 0, "request {nth}");
        if !was_interrupted {
            break;
        }
    }
}

#[test]
fn stale_lists_hide_no_backup_and_are_told_where_they_could() {
    let ledger = Ledger::new();
    let faulty = FaultyStore::new(Arc::new(InMemory::new()));
    let bucket = bucket(faulty.clone());
    let mut reader = ledger.reader();
    let mut last = 0;
    for age in 0..4 {
        last = ledger.commit(20);
        // Lists show the bucket as it was before this backup and those of later rounds.
        faulty.freeze_lists(age % 2 == 1);
        assert_eq!(back_up(&bucket, &mut reader).unwrap(), last);
        assert_eq!(assert_restores(&bucket, None), last);
    }
    faulty.freeze_lists(false);
    assert_eq!(assert_restores(&bucket, None), last);
    faulty.empty_lists();
    let refused = bucket.backups();
    assert!(
        refused.is_ok_and(|backups| backups.last().is_some_and(|last_one| last_one.commit == last))
    );
}

#[test]
fn damaged_and_missing_objects_are_found_and_never_restored() {
    let ledger = Ledger::new();
    let memory = Arc::new(InMemory::new());
    let faulty = FaultyStore::new(memory);
    let bucket = bucket(faulty.clone());
    let mut reader = ledger.reader();
    let last = ledger.commit(60);
    back_up(&bucket, &mut reader).unwrap();
    for name in faulty.names() {
        if name.contains("catalog/") && !name.ends_with("3.json") || name.ends_with("terrane.json")
        {
            continue;
        }
        let whole = faulty.read(&name);
        let mut flipped = whole.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        for damaged in [Some(flipped), Some(whole[..whole.len() - 1].to_vec()), None] {
            faulty.replace(&name, damaged.as_deref());
            let disk: Arc<dyn Disk> = MemoryDisk::new();
            let restoring = Restoring::new("/restored").on_disk(Arc::clone(&disk));
            let restored = bucket.restore(&restoring, &mut |_, _| {});
            let is_older = damaged.is_none() && name.contains("catalog/");
            if !is_older {
                assert!(restored.is_err(), "{name}: {restored:?}");
            }
            assert!(disk.kind(Path::new("/restored/metadata")).unwrap().is_none(), "{name}");
            let verified = bucket.verify(false, &mut |_, _| {});
            let is_found = verified.as_ref().map_or(true, |report| !report.problems.is_empty());
            assert!(is_found || is_older, "{name}");

            // The restore goes on when the object is there again.
            faulty.replace(&name, Some(&whole));
            bucket.restore(&restoring, &mut |_, _| {}).unwrap();
            assert_eq!(content_in(disk, Path::new("/restored")).0, last);
        }
    }
}

#[test]
fn a_restore_that_crashes_at_any_call_leaves_no_store_or_the_whole_one() {
    let ledger = Ledger::new();
    let bucket = bucket(Arc::new(InMemory::new()));
    let mut reader = ledger.reader();
    let last = ledger.commit(40);
    back_up(&bucket, &mut reader).unwrap();
    let dir = Path::new("/restored");

    for call in 0.. {
        let sim = SimDisk::new(call);
        sim.set_plan(FaultPlan::crash_at(call));
        let restoring = Restoring::new(dir).on_disk(sim.clone());
        let restored = bucket.restore(&restoring, &mut |_, _| {});
        let has_crashed = sim.has_crashed();
        let survival = [Survival::Nothing, Survival::Everything, Survival::Random(call)];
        let disk = sim.after_crash(survival[call as usize % 3]);
        disk.set_plan(FaultPlan::default());
        let disk: Arc<dyn Disk> = disk;
        let is_store = disk.kind(&dir.join("metadata")).unwrap().is_some();
        assert!(is_store || restored.is_err());
        if is_store {
            assert!(content_in(Arc::clone(&disk), dir) == (last, model(last)), "call {call}");
        } else {
            let again = Restoring::new(dir).on_disk(Arc::clone(&disk));
            bucket.restore(&again, &mut |_, _| {}).unwrap();
            assert!(content_in(Arc::clone(&disk), dir) == (last, model(last)), "call {call}");
        }
        if !has_crashed {
            restored.unwrap();
            break;
        }
    }
}

#[test]
fn foreign_and_older_stores_are_refused_and_nothing_is_overwritten() {
    let faulty = FaultyStore::new(Arc::new(InMemory::new()));
    let bucket = bucket(faulty.clone());
    let refused = bucket.restore(&Restoring::new("/x").on_disk(MemoryDisk::new()), &mut |_, _| {});
    assert!(matches!(refused, Err(Error::NoBackup { .. })), "{refused:?}");

    let ledger = Ledger::new();
    let mut reader = ledger.reader();
    let early = ledger.commit(10);
    back_up(&bucket, &mut reader).unwrap();
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let restoring = Restoring::new("/old").on_disk(Arc::clone(&disk)).commit(early);
    bucket.restore(&restoring, &mut |_, _| {}).unwrap();
    let again = bucket.restore(&restoring, &mut |_, _| {});
    assert!(matches!(again, Err(Error::TargetNotEmpty { .. })), "{again:?}");
    ledger.commit(10);
    back_up(&bucket, &mut reader).unwrap();
    let mut old = StoreReader::open(disk, Path::new("/old"), &ReaderOptions::default()).unwrap();
    let refused = back_up(&bucket, &mut old);
    assert!(matches!(refused, Err(Error::StoreIsOlder { .. })), "{refused:?}");

    let stranger: Arc<dyn Disk> = MemoryDisk::new();
    let other = SessionOptions::with_salt(8).create_dir();
    let store = Store::open(stranger.clone(), Path::new(STORE), &options().session(other)).unwrap();
    store.create_table(&TableName::new("main").unwrap(), &TableConfig::default()).unwrap();
    let mut stranger =
        StoreReader::open(stranger, Path::new(STORE), &ReaderOptions::default()).unwrap();
    let refused = back_up(&bucket, &mut stranger);
    assert!(matches!(refused, Err(Error::ForeignStore { .. })), "{refused:?}");
    assert_eq!(faulty.overwritten(), 0);
}
