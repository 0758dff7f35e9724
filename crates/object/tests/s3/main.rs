//! Backups over the S3 protocol, to a server that the test starts.
//!
//! Goal: with the real client, its retries and its signatures, a request that fails, or whose
//! answer is lost, costs nothing, and no object is overwritten. A store of a million entries is
//! backed up while it is written to, and restored at three commits.
//!
//! Method: `s3s` serves a temporary directory on the loopback address, behind a layer that answers
//! the n-th request with "internal error", before or after its effect. The model of a commit
//! follows from its number.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::{BackoffConfig, RetryConfig};
use terrane_io::{Disk, MemoryDisk};
use terrane_lsm::{
    Durability, ReaderOptions, SessionOptions, Store, StoreOptions, StoreReader, TableConfig,
    TableName, Update,
};
use terrane_object::{Bucket, Restoring, Retention};

use crate::server::{ACCESS_KEY, BUCKET, SECRET_KEY, Server, When};

const STORE: &str = "/store";

fn bucket(server: &Server) -> Bucket {
    // The client wants one, though the server speaks without TLS. Another test may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(2),
        base: 2.0,
    };
    let retry = RetryConfig { backoff, max_retries: 3, retry_timeout: Duration::from_secs(60) };
    let store = AmazonS3Builder::new()
        .with_endpoint(server.address())
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(BUCKET)
        .with_access_key_id(ACCESS_KEY)
        .with_secret_access_key(SECRET_KEY)
        .with_retry(retry)
        .build()
        .unwrap();
    Bucket::of_store(Arc::new(store), "ledger/main", "s3://bucket/ledger/main").unwrap()
}

fn open(disk: &Arc<dyn Disk>, dir: &str) -> Store {
    let session = SessionOptions::with_salt(7).create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Buffered);
    Store::open(Arc::clone(disk), Path::new(dir), &options.log_bytes_max(4 << 20)).unwrap()
}

fn reader(disk: &Arc<dyn Disk>, dir: &str) -> StoreReader {
    StoreReader::open(Arc::clone(disk), Path::new(dir), &ReaderOptions::default()).unwrap()
}

/// Commit n sets the keys from `(n - 1) * batch` on, and a counter to n.
fn commit(store: &Store, batch: u64) -> u64 {
    let table = store.table("main").unwrap();
    let number = store.last_commit() + 1;
    let mut entries = vec![(b"counter".to_vec(), number.to_string().into_bytes())];
    for at in (number - 1) * batch..number * batch {
        // The multiplier is odd, so no two numbers have one key.
        let key = at.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        entries.push((format!("k{key:016x}").into_bytes(), at.to_string().into_bytes()));
    }
    entries.sort();
    let updates: Vec<(&[u8], Update<'_>)> =
        entries.iter().map(|(key, value)| (key.as_slice(), Update::Insert(value))).collect();
    table.write_batch(&updates).unwrap().wait().unwrap();
    number
}

/// Makes so many commits; returns the number of the last one.
fn commits(store: &Store, count: u64, batch: u64) -> u64 {
    for _ in 0..count {
        commit(store, batch);
    }
    store.last_commit()
}

/// Checks that a store is as of a commit: count, counter, and each entry.
fn assert_is(disk: &Arc<dyn Disk>, dir: &str, commit: u64, batch: u64) {
    let reader = reader(disk, dir);
    assert_eq!(reader.last_commit(), commit);
    let table = reader.table("main").unwrap();
    let mut cursor = table.cursor().unwrap();
    let mut count = 0;
    let mut sum = 0_u64;
    loop {
        let records = cursor.next_many(4096).unwrap();
        if records.is_empty() {
            break;
        }
        for record in &records {
            let value = std::str::from_utf8(&record.value).unwrap();
            let value: u64 = value.parse().unwrap();
            if record.key.as_slice() == b"counter" {
                assert_eq!(value, commit);
                continue;
            }
            let key = value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            assert_eq!(record.key.as_slice(), format!("k{key:016x}").as_bytes());
            count += 1;
            sum += value;
        }
    }
    let entries = commit * batch;
    assert_eq!((count, sum), (entries, entries * (entries - 1) / 2), "commit {commit}");
}

fn assert_restores(bucket: &Bucket, commit: Option<u64>, batch: u64) -> u64 {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let restoring = Restoring::new("/restored").on_disk(Arc::clone(&disk)).commit(commit);
    let report = bucket.restore(&restoring, &mut |_, _| {}).unwrap();
    assert_is(&disk, "/restored", report.commit, batch);
    report.commit
}

#[test]
fn requests_that_fail_once_are_made_again_and_lost_answers_are_resolved() {
    const BATCH: u64 = 20;
    for when in [When::Before, When::After] {
        for nth in 1.. {
            let server = Server::start();
            let bucket = bucket(&server);
            let disk: Arc<dyn Disk> = MemoryDisk::new();
            let store = open(&disk, STORE);
            let main = TableName::new("main").unwrap();
            store.create_table(&main, &TableConfig::default()).unwrap();
            let mut reader = reader(&disk, STORE);
            let first = commits(&store, 5, BATCH);
            bucket.back_up(&mut reader, &mut |_, _| {}).unwrap();
            reader.keep_log_from(bucket.log_to_keep().unwrap()).unwrap();
            let last = commits(&store, 5, BATCH);
            store.checkpoint().unwrap();

            server.fail(nth, when);
            let report = bucket.back_up(&mut reader, &mut |_, _| {}).unwrap();
            let has_failed = server.heal();
            assert!(report.commit == last && report.contiguous, "request {nth}: {report:?}");
            assert_eq!(assert_restores(&bucket, None, BATCH), last, "request {nth}");
            assert_restores(&bucket, Some(first), BATCH);
            assert_restores(&bucket, Some(first + 1), BATCH);
            let verified = bucket.verify(false, &mut |_, _| {}).unwrap();
            assert!(verified.problems.is_empty(), "request {nth}: {verified:?}");
            assert_eq!(server.overwritten(), 0, "request {nth}");
            if !has_failed {
                assert!(nth > 15, "only {nth} requests");
                break;
            }
        }
    }
}

#[test]
fn a_million_entries_are_backed_up_while_written_and_restored_at_three_commits() {
    const BATCH: u64 = 5_000;
    let server = Server::start();
    let bucket = bucket(&server);
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let store = open(&disk, STORE);
    let main = TableName::new("main").unwrap();
    store.create_table(&main, &TableConfig::default()).unwrap();
    while commit(&store, BATCH) < 150 {}

    let mut shipping = reader(&disk, STORE);
    // Which segments are shipped is not known before the first backup.
    shipping.keep_log_from(Some(1)).unwrap();
    let is_done = AtomicBool::new(false);
    let mut shipped = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            while commit(&store, BATCH) < 200 {}
            is_done.store(true, Ordering::Release);
        });
        loop {
            let was_done = is_done.load(Ordering::Acquire);
            let report = bucket.back_up(&mut shipping, &mut |_, _| {}).unwrap();
            assert!(report.contiguous, "{report:?}");
            shipping.keep_log_from(bucket.log_to_keep().unwrap()).unwrap();
            shipped.push(report.commit);
            if was_done {
                break;
            }
        }
    });
    assert_eq!(shipped.last(), Some(&200));

    let first = shipped[0];
    for at in [first, u64::midpoint(first, 200), 200] {
        assert_eq!(assert_restores(&bucket, Some(at), BATCH), at);
    }
    let read = bucket.open_disk(Some(first), 16 << 20).unwrap();
    let dir = read.dir().to_str().unwrap().to_owned();
    let read: Arc<dyn Disk> = read;
    assert_is(&read, &dir, first, BATCH);
    bucket.drop_backups(&Retention::new().keep_last(1).abandoned_after(0)).unwrap();
    assert_restores(&bucket, None, BATCH);
    assert_eq!(server.overwritten(), 0);
}
