//! Golden files of a session and a store, and the refusal of files of other versions.
//!
//! Goal: a test fails for a change of any byte of any format, and files of a released version stay
//! readable for ever. Method: a small session with one snapshot in the middle of a merge is
//! written to a simulated disk whose clock stands still; its files are the golden files. They are
//! then planted on an empty disk and opened.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::checksum::{crc32c, crc32c_append};
use terrane_io::{Access, Disk, FixedClockDisk, OpenMode, SimDisk};
use terrane_lsm::inspect::{Inspection, inspect};
use terrane_lsm::{
    CheckpointThread, CompressedLevels, Compression, DiskCache, Error, FilterPolicy, IndexKind,
    LevelFilter, MergeOperator, PAGE_SIZE, ReaderOptions, Session, SessionOptions, Store,
    StoreOptions, StoreReader, Table, TableConfig, TableName, Update, WriteBuffer,
};
use terrane_testkit::golden;
use terrane_testkit::model::Content;

use crate::{SALT, content, name, value};

// Of the change feed.
use terrane_lsm::{FeedItem, FeedOptions};

const CRATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const DIR: &str = "/session";

/// Golden files, with the files of the session that they are.
const FILES: [(&str, &str); 9] = [
    ("session.metadata", "metadata"),
    ("snapshot.mid-merge", "snapshots/mid-merge.snapshot"),
    ("run.large-value", "active/00000001.run"),
    ("run.last-level", "active/00000002.run"),
    ("run.resident", "active/00000003.run"),
    ("run.incoming", "active/00000004.run"),
    ("run.unfinished", "active/00000005.run"),
    ("run.flushed", "active/00000006.run"),
    ("run.buffer-image", "active/00000007.run"),
];

/// Golden files of what the first session has none of.
const MORE_FILES: [&str; 4] =
    ["blobs.small", "run.with-blobs", "snapshot.union", "snapshot.memory-budget"];

/// Golden files of a store with named tables, with the files that they are.
const STORE_FILES: [(&str, &str); 3] = [
    ("store.manifest", "manifest.a"),
    ("log.sealed", "log/00000001.log"),
    ("log.last", "log/00000002.log"),
];

fn config() -> TableConfig {
    TableConfig::default()
        .size_ratio(2)
        .write_buffer(WriteBuffer::Entries(4))
        .filter(FilterPolicy::TotalFpr(0.02))
        .index(IndexKind::Auto)
        .compaction_batch_pages(1)
        .queue_depth(7)
}

/// The updates behind the golden files: fresh keys, overwritten ones, deletions, a value of several
/// pages, the empty key and the empty value. A deletion has no value.
fn updates() -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let update = |n: u64| {
        let key = match n {
            5 => Vec::new(),
            _ => format!("account/{:04}", n * 37 % 17).into_bytes(),
        };
        let value = match n {
            6 => value(n, 9_000),
            7 => Vec::new(),
            _ => value(n, 12),
        };
        (key, (n % 6 != 3).then_some(value))
    };

    (0..22).map(update).collect()
}

fn apply(table: &mut Table) {
    for (key, value) in updates() {
        let update = value.as_deref().map_or(Update::Delete, Update::Insert);
        table.write_batch(&[(key, update)]).unwrap();
    }
}

/// The keys from the first one on up to the second, deleted before the table is saved.
const DELETED: [&[u8]; 2] = [b"account/0009", b"account/0012"];

/// Content of the snapshot.
fn saved() -> Content {
    let mut content = applied();
    content.retain(|key, _| key.as_slice() < DELETED[0] || key.as_slice() >= DELETED[1]);
    content
}

/// Content after all updates.
fn applied() -> Content {
    let mut content = Content::new();
    for (key, value) in updates() {
        match value {
            Some(value) => content.insert(key, value),
            None => content.remove(&key),
        };
    }
    content
}

/// A disk with the session of the golden files.
fn write() -> Arc<SimDisk> {
    let disk = SimDisk::new(1);
    let still = FixedClockDisk::new(disk.clone());
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(still, Path::new(DIR), &options).unwrap();
    let mut table = session.new_table(&config()).unwrap();
    apply(&mut table);
    table.delete_range(DELETED[0]..DELETED[1]).unwrap();
    assert!(table.stats().merge_debt_pages > 0, "a merge is under way");
    table.save_snapshot(&name("mid-merge"), "accounts").unwrap();
    drop(table);
    session.close().unwrap();
    disk
}

/// Files of the session, without the lock.
fn files(disk: &SimDisk) -> Vec<PathBuf> {
    let mut files = disk.files();
    files.retain(|path| !path.ends_with("lock"));
    files
}

fn open(disk: &Arc<SimDisk>) -> terrane_lsm::Result<Session> {
    Session::open(Arc::clone(disk) as _, Path::new(DIR), &SessionOptions::default())
}

#[test]
fn golden_files_are_what_is_written_and_are_read() {
    let disk = write();
    let mut expected: Vec<_> = FILES.iter().map(|(_, file)| Path::new(DIR).join(file)).collect();
    expected.sort();
    assert_eq!(files(&disk), expected);

    for (golden, file) in FILES {
        golden::check(CRATE, golden, &disk.read_raw(Path::new(DIR).join(file)).unwrap());
    }

    let planted = SimDisk::new(2);
    for (golden, file) in FILES {
        planted.write_raw(Path::new(DIR).join(file), &golden::read(CRATE, golden));
    }
    let session = open(&planted).unwrap();
    assert_eq!(session.salt(), SALT);
    assert_eq!(session.list_snapshots().unwrap(), [name("mid-merge")]);
    let mut table = session.open_snapshot(&name("mid-merge"), "accounts").unwrap();
    assert_eq!(table.config(), &config());
    assert!(content(&table).into_iter().eq(saved()));

    let keys: Vec<_> = updates().into_iter().map(|(key, _)| key).collect();
    for (key, result) in keys.iter().zip(table.get_many(&keys).unwrap()) {
        assert_eq!(result.value(), saved().get(key).map(Vec::as_slice));
    }

    // And it can be gone on with.
    apply(&mut table);
    assert!(content(&table).into_iter().eq(applied()));
    assert!(files(&planted).len() > FILES.len());
}

/// The table's content with its blobs.
fn content_with_blobs(session: &Session, table: &Table) -> Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let mut cursor = table.cursor().unwrap();
    let records = cursor.next_many(100).unwrap().into_iter();
    let blob = |blob| session.retrieve_blobs(&[blob]).unwrap().remove(0);
    records.map(|r| (r.key, r.value.into_vec(), r.blob.map(blob).unwrap_or_default())).collect()
}

/// Upserts, deletions, blobs within a page and across pages; filters and the page cache by level; a
/// union whose debt is paid in part; a memory budget.
#[test]
fn golden_files_of_blobs_unions_and_budgets_are_what_is_written_and_are_read() {
    let filters = vec![LevelFilter::BitsPerEntry(12.0), LevelFilter::Fpr(0.02)];
    let config = config()
        .filter(FilterPolicy::PerLevel(filters))
        .disk_cache(DiskCache::LevelsUpTo(1))
        .merge_operator(MergeOperator::concatenate());

    let budget = TableConfig::default().memory_budget(256 << 10);
    let disk = SimDisk::new(1);
    let still = FixedClockDisk::new(disk.clone());
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(still, Path::new(DIR), &options).unwrap();

    let mut inputs: [Table; 2] = [(); 2].map(|()| session.new_table(&config).unwrap());
    for (at, table) in (0..).zip(&mut inputs) {
        for n in 0..50 {
            let (key, text) = (format!("account/{:02}", (n + 3 * at) % 50), value(n, 12));
            let blob = value(n + 1, if n == 4 { 5_000 } else { 17 });
            let update = match n % 4 {
                0 => Update::InsertWithBlob(&text, &blob),
                3 => Update::Delete,
                1 => Update::Insert(&text),
                _ => Update::Upsert(&text),
            };
            table.write_batch(&[(key, update)]).unwrap();
        }
    }

    let mut union = session.incremental_union(&[&inputs[0], &inputs[1]]).unwrap();
    union.supply_union_credits(1).unwrap();
    union.upsert(b"account/02", b"newer").unwrap();
    assert!(union.remaining_union_debt() > 0);
    let saved = content_with_blobs(&session, &union);
    assert!(saved.len() > 5 && saved.iter().any(|(.., blob)| blob.len() == 5_000));
    union.save_snapshot(&name("union"), "").unwrap();
    let mut table = session.new_table(&budget).unwrap();
    table.insert(b"key", b"value").unwrap();
    table.save_snapshot(&name("budget"), "").unwrap();
    drop((inputs, union, table));
    session.close().unwrap();
    let blobs = files(&disk).into_iter().find(|path| path.extension() == Some("blobs".as_ref()));
    let blobs = blobs.unwrap();
    let snapshot = |name: &str| Path::new(DIR).join(format!("snapshots/{name}.snapshot"));
    let run = blobs.with_extension("run");

    let paths = [blobs, run, snapshot("union"), snapshot("budget")];
    for (golden, path) in MORE_FILES.iter().zip(&paths) {
        golden::check(CRATE, golden, &disk.read_raw(path).unwrap());
        disk.write_raw(path, &golden::read(CRATE, golden));
    }

    let session = open(&disk).unwrap();
    let union = session.open_snapshot(&name("union"), "").unwrap();
    assert_eq!(union.config(), &config);
    assert!(union.remaining_union_debt() > 0);
    assert_eq!(content_with_blobs(&session, &union), saved);
    let table = session.open_snapshot(&name("budget"), "").unwrap();
    assert_eq!(table.config(), &budget);
    assert_eq!(content(&table), [(b"key".to_vec(), b"value".to_vec())]);
}

const RIBBON: &str = "run.ribbon";

/// A run whose filter is a ribbon, which is of version 2; all others are of version 1.
#[test]
fn golden_file_of_a_ribbon_is_what_is_written_and_is_read() {
    let filter = FilterPolicy::PerLevel(vec![LevelFilter::Ribbon(5)]);
    let config = config().filter(filter);
    let disk = SimDisk::new(1);
    let still = FixedClockDisk::new(disk.clone());
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(still, Path::new(DIR), &options).unwrap();
    let mut table = session.new_table(&config).unwrap();

    let mut expected = Vec::new();
    let mut number = 0;
    while table.stats().levels.iter().all(|level| level.runs == 0) {
        let key = format!("key{number:04}").into_bytes();
        table.insert(&key, &value(number, 8)).unwrap();
        expected.push((key, value(number, 8)));
        number += 1;
    }

    table.save_snapshot(&name("ribbon"), "").unwrap();
    drop(table);
    session.close().unwrap();

    let has_ribbon = |path: &PathBuf| {
        let disk: Arc<dyn Disk> = Arc::clone(&disk) as Arc<_>;
        matches!(inspect(&disk, path).unwrap(), Inspection::Run(run)
            if run.meta.has_ribbon() && run.meta.format_version() == 2)
    };

    let mut paths = files(&disk);
    paths.retain(|path| path.extension() == Some("run".as_ref()));
    let path = paths.iter().find(|path| has_ribbon(path)).unwrap();
    golden::check(CRATE, RIBBON, &disk.read_raw(path).unwrap());
    disk.write_raw(path, &golden::read(CRATE, RIBBON));

    let session = open(&disk).unwrap();
    let table = session.open_snapshot(&name("ribbon"), "").unwrap();
    assert_eq!(content(&table), expected);

    let keys: Vec<_> = expected.iter().map(|(key, _)| key).collect();
    for (found, (_, value)) in table.get_many(&keys).unwrap().iter().zip(&expected) {
        assert_eq!(found.value(), Some(value.as_slice()));
    }
}

const COMPRESSED: &str = "run.compressed";
const ZSTD: &str = "run.zstd";

/// A run of compressed pages, which is of version 3, for each codec.
#[test]
fn golden_file_of_compressed_pages_is_what_is_written_and_is_read() {
    check_compressed(Compression::Lz4, COMPRESSED);
    check_compressed(Compression::Zstd, ZSTD);
}

fn check_compressed(compression: Compression, file: &str) {
    let config = config()
        .compression(compression)
        .compressed_levels(CompressedLevels::From(1))
        .write_buffer(WriteBuffer::Entries(60));
    let disk = SimDisk::new(1);
    let still = FixedClockDisk::new(disk.clone());
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(still, Path::new(DIR), &options).unwrap();
    let mut table = session.new_table(&config).unwrap();

    let mut expected = Vec::new();
    while table.stats().levels.iter().all(|level| level.runs == 0) {
        let number = expected.len() as u64;
        let key = format!("key{number:04}").into_bytes();
        table.insert(&key, &value(number, 150)).unwrap();
        expected.push((key, value(number, 150)));
    }
    table.save_snapshot(&name("compressed"), "").unwrap();
    drop(table);
    session.close().unwrap();

    let is_compressed = |path: &PathBuf| {
        let disk: Arc<dyn Disk> = Arc::clone(&disk) as Arc<_>;
        matches!(inspect(&disk, path).unwrap(), Inspection::Run(run)
            if run.meta.compressed_pages > 0 && run.meta.format_version() == 3)
    };

    let mut paths = files(&disk);
    paths.retain(|path| path.extension() == Some("run".as_ref()));
    let path = paths.iter().find(|path| is_compressed(path)).unwrap();
    golden::check(CRATE, file, &disk.read_raw(path).unwrap());
    disk.write_raw(path, &golden::read(CRATE, file));

    let session = open(&disk).unwrap();
    let table = session.open_snapshot(&name("compressed"), "").unwrap();
    assert_eq!(table.config(), &config);
    assert_eq!(content(&table), expected);
}

const PREFIXES: &str = "run.prefixes";

/// A run whose filter holds prefixes, which is of version 4.
#[test]
fn golden_file_of_prefixes_is_what_is_written_and_is_read() {
    let config = config().prefix_bytes(5).write_buffer(WriteBuffer::Entries(60));
    let disk = SimDisk::new(1);
    let still = FixedClockDisk::new(disk.clone());
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(still, Path::new(DIR), &options).unwrap();
    let mut table = session.new_table(&config).unwrap();

    let mut expected = Vec::new();
    while table.stats().levels.iter().all(|level| level.runs == 0) {
        let number = expected.len() as u64;
        let key = format!("key{number:04}").into_bytes();
        table.insert(&key, &value(number, 8)).unwrap();
        expected.push((key, value(number, 8)));
    }
    table.save_snapshot(&name("prefixes"), "").unwrap();
    drop(table);
    session.close().unwrap();

    let has_prefixes = |path: &PathBuf| {
        let disk: Arc<dyn Disk> = Arc::clone(&disk) as Arc<_>;
        matches!(inspect(&disk, path).unwrap(), Inspection::Run(run)
            if run.meta.prefixes == 1 && run.meta.format_version() == 4)
    };

    let mut paths = files(&disk);
    paths.retain(|path| path.extension() == Some("run".as_ref()));
    let path = paths.iter().find(|path| has_prefixes(path)).unwrap();
    golden::check(CRATE, PREFIXES, &disk.read_raw(path).unwrap());
    disk.write_raw(path, &golden::read(CRATE, PREFIXES));

    let session = open(&disk).unwrap();
    let table = session.open_snapshot(&name("prefixes"), "").unwrap();
    assert_eq!(table.config(), &config);
    assert_eq!(content(&table), expected);
    // Keys 60 to 119 are in the memtable, or its image.
    assert_eq!(table.prefix(b"key00").unwrap().count(), 100);
    assert_eq!(table.prefix(b"key01").unwrap().count(), 20);
    assert_eq!(table.prefix(b"key02").unwrap().count(), 0);
}

const LEASE: &str = "lease.reader";

/// Content of table `main` in the golden store. Table `sums` has the sum of 3 and 4.
fn content_of_main() -> Content {
    let entries = [("blob", value(1, 10)), ("large", value(3, 9_000)), ("upserted", value(2, 10))];
    entries.map(|(key, value)| (key.as_bytes().to_vec(), value)).into()
}

/// Two tables, between which a third one was, and a log of all kinds of updates in two segments.
fn write_store() -> Arc<SimDisk> {
    let disk = SimDisk::new(1);
    let still = FixedClockDisk::new(disk.clone());
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session).log_bytes_max(64 << 10);
    let options = options.checkpoint_thread(CheckpointThread::Caller);

    let store = Store::open(still, Path::new(DIR), &options).unwrap();
    let table = |text: &str, config: &TableConfig| {
        store.create_table(&TableName::new(text).unwrap(), config).unwrap()
    };
    let main = table("main", &config());
    table("dropped", &config());
    let adding = TableConfig::default().merge_operator(MergeOperator::add_u64_wrapping());
    let sums = table("sums", &adding);
    store.drop_table(&TableName::new("dropped").unwrap()).unwrap();
    let large = [value(2, 9_000), value(3, 9_000)];
    let [three, four] = [3_u64, 4].map(u64::to_le_bytes);
    let small = value(1, 10);

    let blob = value(4, 20);
    let upserted = value(2, 10);
    let updates = [
        ("gone", Update::Insert(b"")),
        ("blob", Update::InsertWithBlob(&small, &blob)),
        ("upserted", Update::Upsert(&upserted)),
        ("gone", Update::Delete),
        ("gone", Update::DeleteRange(Some(b"large"))),
        ("v", Update::DeleteRange(None)),
    ];

    let sum = |number| [("sum", Update::Upsert(number))];
    drop(store.commit(&[(&main, &updates[..]), (&sums, &sum(&three))]).unwrap());
    store.retain(Some(&name("first"))).unwrap();

    for large in &large {
        drop(store.commit(&[(&main, &[("large", Update::Insert(large))])]).unwrap());
    }
    store.commit(&[(&sums, &sum(&four))]).unwrap().wait().unwrap();
    assert_eq!(store.retain(None).unwrap(), 4);
    let killed = disk.process_kill();
    drop((main, sums, store));
    killed
}

#[test]
fn golden_files_of_a_store_are_what_is_written_and_are_read() {
    let disk = write_store();
    for (golden, file) in STORE_FILES {
        golden::check(CRATE, golden, &disk.read_raw(Path::new(DIR).join(file)).unwrap());
    }
    let copies = ["manifest.a", "manifest.b"].map(|name| disk.read_raw(Path::new(DIR).join(name)));
    assert_eq!(copies[0], copies[1]);

    // That of a reader while it reads the log, behind the number of its process.
    let options = ReaderOptions::default();
    drop(StoreReader::open(Arc::clone(&disk) as _, Path::new(DIR), &options).unwrap());
    let lease = disk.read_raw(Path::new(DIR).join("readers/1.lease")).unwrap();
    golden::check(CRATE, LEASE, &lease[16..]);

    let planted = SimDisk::new(2);
    for (golden, file) in STORE_FILES.into_iter().chain([("session.metadata", "metadata")]) {
        planted.write_raw(Path::new(DIR).join(file), &golden::read(CRATE, golden));
    }

    for dir in ["active", "snapshots"] {
        planted.create_dir(&Path::new(DIR).join(dir)).unwrap();
    }

    let opened = |disk: &Arc<SimDisk>| {
        Store::open(Arc::clone(disk) as _, Path::new(DIR), &StoreOptions::default())
    };
    let store = opened(&planted).unwrap();
    assert_eq!(store.last_commit(), 4);
    let names: Vec<_> = store.tables().unwrap().into_iter().map(|table| table.name).collect();
    assert_eq!(names, ["main", "sums"].map(|text| TableName::new(text).unwrap()));
    let main = store.table(&TableName::default()).unwrap();
    assert_eq!(store.tables().unwrap()[0].config, config());
    assert!(content(&main.view().unwrap()).into_iter().eq(content_of_main()));
    let found = main.get(b"blob").unwrap();
    let blob = store.session().retrieve_blobs(&[found.blob().unwrap().clone()]).unwrap();
    assert_eq!(blob, [value(4, 20)]);
    let sum = store.table(&names[1]).unwrap().get(b"sum").unwrap();
    assert_eq!(sum.value(), Some(&7_u64.to_le_bytes()[..]));
    let first = store.version_named(&name("first")).unwrap();
    let of_first = first.table(&TableName::default()).unwrap();
    assert_eq!((first.number(), of_first.count_exact().unwrap()), (1, 2));
    let versions: Vec<_> = store.versions().unwrap().iter().map(|info| info.number).collect();
    assert_eq!(versions, [1, 4]);
    drop((first, of_first));

    // And it can be gone on with.
    main.insert(b"more", b"").unwrap().wait().unwrap();
    assert_eq!(store.last_commit(), 5);
    drop((found, main));
    store.close().unwrap();

    // Another version is refused by name, also if only one copy has it.
    let manifest = Path::new(DIR).join("manifest.b");
    let mut bytes = planted.read_raw(&manifest).unwrap();
    set_version(&mut bytes, 8, 7);
    planted.write_raw(&manifest, &bytes);

    let error = opened(&planted).unwrap_err();
    assert!(
        matches!(&error, Error::UnknownVersion { path, found: 7, newest: 5 }
        if *path == manifest),
        "{error:?}"
    );
}

/// Golden files of a store with a feed, with the files that they are.
const FEED_FILES: [(&str, &str); 2] =
    [("store.manifest-loads", "manifest.a"), ("feed.cursor", "feeds/indexer.cursor")];

/// Golden file of that manifest without loads, as a checkpoint behind all cursors leaves it.
const HISTORY: &str = "store.manifest-history";

/// A history of changes of each kind, and a cursor that was moved once.
#[test]
fn golden_files_of_a_feed_are_what_is_written_and_are_read() {
    let disk = SimDisk::new(1);
    let still = FixedClockDisk::new(disk.clone());
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session).log_bytes_max(64 << 10);
    let options = options.checkpoint_thread(CheckpointThread::Caller);
    let store = Store::open(still, Path::new(DIR), &options).unwrap();

    let mut feed = store.create_feed("indexer", Some(1), &FeedOptions::default()).unwrap();
    let main = store.create_table("main", &config()).unwrap();
    main.insert(b"one", b"1").unwrap().wait().unwrap();
    while feed.poll().unwrap().is_some() {}
    feed.acknowledge(1).unwrap();
    let version = store.retain(None).unwrap();
    store.create_table("other", &config()).unwrap();
    store.rename_table("other", "another").unwrap();
    main.insert(b"two", b"2").unwrap().wait().unwrap();
    store.roll_back(version).unwrap();
    let loaded = store.session().new_table(&config()).unwrap();
    store.install("loaded", &loaded).unwrap();
    store.replace("loaded", &loaded).unwrap();
    store.drop_table("loaded").unwrap();
    let killed = disk.process_kill();
    drop((feed, main, loaded, store));

    for (golden, file) in FEED_FILES {
        let path = Path::new(DIR).join(file);
        golden::check(CRATE, golden, &killed.read_raw(&path).unwrap());
        killed.write_raw(&path, &golden::read(CRATE, golden));
    }
    let told = |disk: &Arc<SimDisk>| {
        let store = Store::open(Arc::clone(disk) as _, Path::new(DIR), &options).unwrap();
        let feed_options = FeedOptions::default().loaded_entries(true);
        let mut feed = store.feed_with("indexer", &feed_options).unwrap();
        assert_eq!(feed.acknowledged(), 1);
        let mut told = String::new();
        while let Some(item) = feed.poll().unwrap() {
            told += match item {
                FeedItem::TableCreated { .. } => "created ",
                FeedItem::TableRenamed { .. } => "renamed ",
                FeedItem::Commit(_) => "commit ",
                FeedItem::RolledBack { .. } => "back ",
                FeedItem::TableLoaded { .. } => "loaded ",
                FeedItem::TableEntries { .. } => "entries ",
                FeedItem::TableDropped { .. } => "dropped ",
                other => panic!("{other:?}"),
            };
        }
        drop(feed);
        store.close().unwrap();
        told
    };
    let without = killed.process_kill();
    let expected = "created renamed commit back loaded entries loaded entries dropped ";
    assert_eq!(told(&killed), expected);
    for copy in ["manifest.a", "manifest.b"] {
        without.write_raw(Path::new(DIR).join(copy), &golden::read(CRATE, HISTORY));
    }
    assert_eq!(told(&without), "created renamed commit back loaded loaded dropped ");
}

/// Golden file of the manifest of a store with an index.
const INDEXES: &str = "store.manifest-indexes";

/// An index beside its table, in the manifest and in the base of a version.
#[test]
fn golden_file_of_a_manifest_with_an_index_is_what_is_written_and_is_read() {
    let disk = SimDisk::new(1);
    let still = FixedClockDisk::new(disk.clone());
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session).log_bytes_max(64 << 10);
    let options = options.checkpoint_thread(CheckpointThread::Caller);
    let store = Store::open(still, Path::new(DIR), &options).unwrap();
    let main = store.create_table("main", &config()).unwrap();
    main.insert(b"one", b"1").unwrap().wait().unwrap();
    let by_value = |table: &terrane_lsm::NamedTable| {
        table.derive("by-value", 7, |_, value, entries| entries.add(value, b"")).unwrap()
    };
    let index = by_value(&main);
    let version = store.retain(None).unwrap();
    main.insert(b"two", b"2").unwrap().wait().unwrap();
    store.checkpoint().unwrap();
    let killed = disk.process_kill();
    drop((index, main, store));

    let path = Path::new(DIR).join("manifest.a");
    golden::check(CRATE, INDEXES, &killed.read_raw(&path).unwrap());
    killed.write_raw(&path, &golden::read(CRATE, INDEXES));
    let store = Store::open(Arc::clone(&killed) as _, Path::new(DIR), &options).unwrap();
    for commit in [None, Some(version)] {
        if let Some(version) = commit {
            store.roll_back(version).unwrap();
        }
        let infos = store.indexes().unwrap();
        assert_eq!((infos[0].name.as_str(), infos[0].version), ("by-value", 7));
        let index = by_value(&store.table("main").unwrap());
        let check = index.verify().unwrap();
        assert!(check.is_equal(), "{check:?}");
        assert_eq!(check.entries, if commit.is_none() { 2 } else { 1 });
    }
    store.close().unwrap();
}

#[test]
fn golden_folder_is_complete() {
    let mut expected = FILES.map(|(golden, _)| golden).to_vec();
    expected.extend(FEED_FILES.map(|(golden, _)| golden));
    expected.extend(MORE_FILES);
    expected.extend(STORE_FILES.map(|(golden, _)| golden));
    expected.extend([
        "canonical.small",
        "session.reserve",
        LEASE,
        RIBBON,
        COMPRESSED,
        ZSTD,
        PREFIXES,
        INDEXES,
        HISTORY,
    ]);
    golden::check_complete(CRATE, &expected);
}

/// Sets the format version at `offset` of a file that ends with its checksum.
fn set_version(bytes: &mut [u8], offset: usize, version: u32) {
    bytes[offset..offset + 4].copy_from_slice(&version.to_le_bytes());
    let (content, crc) = bytes.split_last_chunk_mut::<4>().unwrap();
    *crc = crc32c(content).to_le_bytes();
}

/// The golden file of a reserve is its header.
#[test]
fn golden_file_of_a_reserve_is_what_is_written_and_is_read() {
    let disk = write();
    let path = Path::new(DIR).join("reserve");
    let open = |options: &SessionOptions| {
        let disk = Arc::clone(&disk) as Arc<dyn Disk>;
        Session::open(disk, Path::new(DIR), options).unwrap().stats().reserve_bytes
    };

    let bytes = 3 << 16;
    assert_eq!(open(&SessionOptions::default().reserve_bytes(bytes)), bytes);
    let written = disk.read_raw(&path).unwrap();
    assert_eq!(written.len() as u64, bytes);
    golden::check(CRATE, "session.reserve", &written[..24]);
    disk.write_raw(&path, &golden::read(CRATE, "session.reserve"));
    assert_eq!(open(&SessionOptions::default()), bytes);
    assert_eq!(disk.read_raw(&path).unwrap(), written);
}

/// Versions 5 and 6 of a snapshot without a merge differ in their number alone.
#[test]
fn a_snapshot_of_an_older_version_is_shown_as_such() {
    let disk = SimDisk::new(1);
    let session = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(Arc::clone(&disk) as _, Path::new(DIR), &session).unwrap();
    let mut table = session.new_table(&config()).unwrap();
    table.insert(b"key", b"value").unwrap();
    table.save_snapshot(&name("small"), "").unwrap();
    session.close().unwrap();

    let path = Path::new(DIR).join("snapshots/small.snapshot");
    let mut bytes = disk.read_raw(&path).unwrap();
    let disk: Arc<dyn Disk> = Arc::clone(&disk) as _;
    let version = || match inspect(&disk, &path).unwrap() {
        Inspection::Snapshot(info) => info.version,
        other => panic!("{other:?}"),
    };
    assert_eq!(version(), 6);
    set_version(&mut bytes, 8, 5);
    disk.open(&path, OpenMode::ReadWrite, Access::Buffered).unwrap().write_at(&bytes, 0).unwrap();
    assert_eq!(version(), 5);
}

#[test]
fn golden_files_of_an_unknown_version_are_refused_by_name() {
    let disk = write();
    let altered = |file: &str, alter: &dyn Fn(&mut [u8])| {
        let disk = disk.process_kill();
        let path = Path::new(DIR).join(file);
        let mut bytes = disk.read_raw(&path).unwrap();
        alter(&mut bytes);
        disk.write_raw(&path, &bytes);
        (disk, path)
    };

    let is_refused = |error: &Error, path: &Path| {
        // Snapshots are at version 6, runs at 4, the others at 1.
        let reads = match path.extension().and_then(OsStr::to_str) {
            Some("snapshot") => 6,
            Some("run") => 4,
            _ => 1,
        };
        assert!(
            matches!(error, Error::UnknownVersion { path: found, found: 7, newest }
                if found == path && *newest == reads),
            "{error:?}"
        );
        let path = path.display();
        let text = format!("{path}: format version 7; this program reads {reads}");
        assert_eq!(error.to_string(), text);
    };

    let (disk_altered, path) = altered("metadata", &|bytes| set_version(bytes, 8, 7));
    let before = files(&disk_altered);
    is_refused(&open(&disk_altered).unwrap_err(), &path);
    assert_eq!(files(&disk_altered), before);

    let snapshot = "snapshots/mid-merge.snapshot";
    let (disk_altered, path) = altered(snapshot, &|bytes| set_version(bytes, 8, 7));
    let before = files(&disk_altered);
    let session = open(&disk_altered).unwrap();
    is_refused(&session.open_snapshot(&name("mid-merge"), "accounts").unwrap_err(), &path);

    // It is there, its runs stay for a program that can read it, and the session works on.
    assert!(session.snapshot_exists(&name("mid-merge")).unwrap());
    session.new_table(&config()).unwrap().insert(b"key", b"value").unwrap();
    session.close().unwrap();
    assert_eq!(files(&disk_altered), before);

    // A page's checksum covers its place: the identity in the footer, and its number.
    let (disk_altered, path) = altered("active/00000006.run", &|bytes| {
        let number = (bytes.len() / PAGE_SIZE - 1) as u32;
        let footer = &mut bytes[number as usize * PAGE_SIZE..];
        footer[24..28].copy_from_slice(&7_u32.to_le_bytes());
        let place = [&footer[32..40], &number.to_le_bytes()].concat();
        let crc = crc32c_append(crc32c(&place), &footer[4..]);
        footer[..4].copy_from_slice(&crc.to_le_bytes());
    });

    let session = open(&disk_altered).unwrap();
    is_refused(&session.open_snapshot(&name("mid-merge"), "accounts").unwrap_err(), &path);
}

#[test]
fn golden_directories_of_others_are_refused_and_not_touched() {
    for foreign in ["letters.txt", "metadata.txt", "active/letters.txt", "snapshots/old.snapshot"] {
        let disk = SimDisk::new(1);
        disk.write_raw(Path::new(DIR).join(foreign), b"dear");
        let before = disk.files();
        let names = disk.list(Path::new(DIR)).unwrap();
        let error = open(&disk).unwrap_err();
        assert!(
            matches!(&error, Error::SessionDirCorrupted { path, .. } if path == Path::new(DIR)),
            "{foreign}: {error}"
        );
        assert_eq!(disk.files(), before);
        assert_eq!(disk.list(Path::new(DIR)).unwrap(), names);
    }

    // A file called `metadata` that is not ours, with everything else in its place.
    let disk = SimDisk::new(1);
    for file in ["metadata", "active/a", "snapshots/b"] {
        disk.write_raw(Path::new(DIR).join(file), b"the metadata of something else");
    }
    let before = files(&disk);

    let error = open(&disk).unwrap_err();
    assert!(
        matches!(&error, Error::SessionDirCorrupted { reason, .. } if reason.contains("magic")),
        "{error}"
    );

    assert_eq!(files(&disk), before);
}
