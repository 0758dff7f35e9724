//! How many requests operations make, as `docs/design/405-object-storage.md` and
//! `docs/operations.md` tell.
//!
//! Two counters must agree: that of the bucket, which reports show, and that of the store below it.

use std::path::Path;
use std::sync::Arc;

use object_store::memory::InMemory;
use terrane_io::{Disk, MemoryDisk};
use terrane_lsm::FollowOptions;
use terrane_object::{Bucket, BucketFollower, Restoring, Retention};

use crate::faults::FaultyStore;
use crate::{Ledger, back_up, bucket, content_in, options};

/// Puts, gets, lists and deletions.
type Counts = [u64; 4];

fn counts(bucket: &Bucket) -> Counts {
    let requests = bucket.requests();
    [requests.puts, requests.gets, requests.lists, requests.deletes]
}

/// Requests of an operation, and its result.
fn of<T>((bucket, store): (&Bucket, &FaultyStore), operation: impl FnOnce() -> T) -> (Counts, T) {
    let before = (counts(bucket), store.requests());
    let result = operation();
    let after = (counts(bucket), store.requests());
    let made = |before: Counts, after: Counts| {
        let [puts, gets, lists, deletes] =
            [0, 1, 2, 3].map(|kind: usize| after[kind] - before[kind]);
        [puts, gets, lists, deletes]
    };
    let told = made(before.0, after.0);
    assert_eq!(told, made(before.1, after.1), "the bucket counts other requests than it makes");
    (told, result)
}

#[test]
fn operations_make_as_many_requests_as_documented() {
    let ledger = Ledger::new();
    let store = FaultyStore::new(Arc::new(InMemory::new()));
    let bucket = bucket(store.clone());
    let on = (&bucket, &*store);
    let mut reader = ledger.reader();
    ledger.commit(20);
    back_up(&bucket, &mut reader).unwrap();

    let (quiet, _) = of(on, || back_up(&bucket, &mut reader).unwrap());
    assert_eq!(quiet, [3, 10, 3, 0]);
    for backups in 1..9 {
        let (keep, from) = of(on, || bucket.log_to_keep().unwrap());
        assert_eq!(keep, [0, 3, 1, 0]);
        reader.keep_log_from(from).unwrap();
        ledger.commit(37);
        let (made, report) = of(on, || bucket.back_up(&mut reader, &mut |_, _| {}).unwrap());
        // Each file is shorter than a part.
        assert_eq!(made, [4 + report.files_uploaded, 8 + 2 * backups, 3, 0], "{report:?}");
        assert_eq!(bucket.backups().unwrap().len() as u64, backups + 1);
    }

    let (listed, _) = of(on, || bucket.backups().unwrap());
    assert_eq!(listed, [0, 2, 1, 0]);
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let restoring = Restoring::new("/restored").on_disk(Arc::clone(&disk));
    let (restored, report) = of(on, || bucket.restore(&restoring, &mut |_, _| {}).unwrap());
    assert_eq!(restored, [0, 4 + report.files_written, 1, 0], "{report:?}");
    for is_quick in [false, true] {
        let (verified, report) = of(on, || bucket.verify(is_quick, &mut |_, _| {}).unwrap());
        assert_eq!(verified, [0, 2 + report.objects, 2, 0], "{report:?}");
    }

    let copy: Arc<dyn Disk> = MemoryDisk::new();
    let site = (&copy, Path::new("/copies/ledger"));
    let follow_options = FollowOptions::default().store(options());
    let open = || BucketFollower::open(&bucket, site, &follow_options, &mut |_, _| {}).unwrap();
    let (begun, follower) = of(on, open);
    assert_eq!(begun, [0, restored[1] + 2, 2, 0]);
    follower.close().unwrap();
    let (opened, mut follower) = of(on, open);
    assert_eq!(opened, [0, 2, 1, 0]);
    for _ in 0..2 {
        let (idle, _) = of(on, || follower.catch_up().unwrap());
        assert_eq!(idle, [0, 2, 1, 0]);
    }
    // Some of these come with a new base, so that the end of the WAL is compared.
    for commits in [1, 5, 37, 37, 37, 37] {
        reader.keep_log_from(bucket.log_to_keep().unwrap()).unwrap();
        ledger.commit(commits);
        back_up(&bucket, &mut reader).unwrap();
        let (made, report) = of(on, || follower.catch_up().unwrap());
        assert_eq!(report.takeovers, 0);
        let [puts, gets, lists, deletes] = made;
        assert!((10..=25).contains(&gets), "{made:?}");
        assert_eq!([puts, lists, deletes], [0, 2, 0]);
    }

    let disk = bucket.open_disk(None, 1 << 20).unwrap();
    let (read, _) = of(on, || content_in(disk.clone(), disk.dir()));
    let [puts, gets, lists, deletes] = read;
    assert!(gets <= restored[1], "a read for each 64 KiB, of less than all files: {read:?}");
    assert_eq!([puts, lists, deletes], [0; 3]);

    let retention = Retention::new().keep_last(1);
    let (dropped, report) = of(on, || bucket.drop_backups(&retention).unwrap());
    assert_eq!(dropped, [1, 8, 6, report.objects_deleted], "{report:?}");
}
