//! LMDB keeps the rules, its map grows under snapshots that live, and what is full or broken is
//! told by type.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;
use terrane_backends::lmdb::{LmdbDatabase, LmdbGrowth, LmdbOptions, SyncMode, check_file};
use terrane_kv::conformance::{Extent, RULES, Subject, check};
use terrane_kv::{Database, Durability, Error, PowerLoss, Result, Table};
use terrane_lmdb::{Environment, EnvironmentAccess, EnvironmentOptions, ReadTables as _};
use terrane_testkit::effort::by_effort;

use crate::numbered::{extent, key, keys, put, setting};

/// A map that is full after a few entries.
fn tiny() -> LmdbOptions {
    LmdbOptions::default().map_bytes(1).growth(LmdbGrowth::Step(1))
}

struct InFile {
    folder: TempDir,
    files: usize,
    options: LmdbOptions,
}

impl InFile {
    fn new(options: LmdbOptions) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), files: 0, options }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(format!("{}.mdb", self.files))
    }
}

impl Subject for InFile {
    fn fresh(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        self.files += 1;
        self.reopen(indexes)
    }

    fn reopen(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        Ok(Arc::new(LmdbDatabase::open(self.path(), indexes, &self.options)?))
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

fn keeps_all_rules(options: LmdbOptions, extent: &Extent) {
    let report = check(&mut InFile::new(options), extent).unwrap();
    assert_eq!(report.kept.len(), RULES.len());
}

#[test]
fn lmdb_keeps_all_rules() {
    keeps_all_rules(LmdbOptions::default(), &extent());
}

#[test]
fn lmdb_with_a_map_that_grows_step_by_step_keeps_all_rules() {
    keeps_all_rules(tiny(), &Extent { batch_entries: 2000, ..extent() });
}

#[test]
fn lmdb_with_the_settings_of_transact_keeps_all_rules() {
    keeps_all_rules(LmdbOptions::transact(), &extent());
}

#[test]
fn lmdb_in_a_directory_keeps_all_rules() {
    let options = LmdbOptions::default().directory(true).read_ahead(true).sync(SyncMode::None);
    keeps_all_rules(options, &Extent::small(3));
}

/// Growing moves the map; a cursor that kept an address in it would read what is mapped no more.
#[test]
fn cursors_and_snapshots_live_through_many_growths_of_the_map() {
    for write_map in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let options = tiny().write_map(write_map);
        let database = LmdbDatabase::open(folder.path().join("a"), &[], &options).unwrap();
        let mut growths = 0;

        let mut readers = Vec::new();
        for round in 0..20_u32 {
            let before = database.map_bytes().unwrap();
            put(&database, round * 100..(round + 1) * 100, &[round as u8; 1000]).unwrap();
            growths += u32::from(before < database.map_bytes().unwrap());
            readers.push(database.reader().unwrap());
        }

        assert!(growths > 15, "{growths}");
        assert!(database.oldest_reader().is_some());
        let mut cursors: Vec<_> =
            readers.iter().map(|reader| reader.cursor(Table::Main).unwrap()).collect();

        for cursor in &mut cursors {
            cursor.seek(&key(50_u32)).unwrap();
            assert_eq!(cursor.next().unwrap().unwrap().0, key(50));
        }

        let before = database.map_bytes().unwrap();
        put(&database, 2000..4000, &[1; 1000]).unwrap();
        assert!(before < database.map_bytes().unwrap());

        for (round, (cursor, reader)) in cursors.iter_mut().zip(&readers).enumerate() {
            let expected: Vec<u32> = (0..(round as u32 + 1) * 100).collect();
            let rest = std::iter::from_fn(|| cursor.next().unwrap()).count();
            assert_eq!(rest, expected.len() - 51);
            assert_eq!(keys(&**reader), expected);
            assert_eq!(reader.get(Table::Main, &key(7_u32)).unwrap(), Some(vec![0; 1000]));
        }

        drop(cursors);
        drop(readers);
        assert_eq!(database.oldest_reader(), None);
    }
}

/// Snapshots that read on other threads are in the middle of calls when the map moves.
#[test]
fn the_map_grows_while_other_threads_read() {
    let folder = tempfile::tempdir().unwrap();
    let database = LmdbDatabase::open(folder.path().join("a"), &[], &tiny()).unwrap();
    put(&database, 0..50, &[9; 500]).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    let reader = database.reader().unwrap();
                    let count = reader.count(Table::Main).unwrap();
                    assert_eq!(keys(&*reader).len() as u64, count);
                    assert_eq!(count % 50, 0, "half a commit");
                }
            });
        }

        for round in 1..60 {
            put(&database, round * 50..(round + 1) * 50, &[9; 500]).unwrap();
        }

        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });

    assert_eq!(database.reader().unwrap().count(Table::Main).unwrap(), 3000);
}

fn fill(database: &dyn Database) -> u32 {
    let mut filled = 0;
    loop {
        match put(database, filled..filled + 10, &[5; 1000]) {
            Ok(()) => filled += 10,
            Err(Error::StoreFull { back_end: "lmdb", .. }) => return filled,
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_full_map_refuses_and_goes_on_once_there_is_room() {
    for write_map in [false, true] {
        for growth in [LmdbGrowth::None, LmdbGrowth::Double, LmdbGrowth::Step(100_000)] {
            let folder = tempfile::tempdir().unwrap();
            let options = LmdbOptions::default()
                .growth(growth)
                .map_bytes_max(2 << 20)
                .write_map(write_map)
                .sync(SyncMode::None);

            let path = folder.path().join("a");
            let database = LmdbDatabase::open(&path, &["one"], &options).unwrap();
            let filled = fill(&database);
            assert!(filled > 1000, "{filled} of 2 MiB");
            assert!(database.map_bytes().unwrap() <= 2 << 20);
            assert_eq!(keys(&*database.reader().unwrap()), (0..filled).collect::<Vec<_>>());

            // A failed writer says so until it is dropped.
            let mut writer = database.writer().unwrap();
            let refused = (0..2000_u32)
                .map(|number| writer.put(Table::Index("one"), &key(number), &[0; 1000]))
                .find_map(Result::err);
            assert!(matches!(refused, Some(Error::StoreFull { .. })), "{refused:?}");
            let again = writer.get(Table::Main, b"key");
            assert!(matches!(again, Err(Error::StoreFull { .. })), "{again:?}");
            assert!(matches!(writer.commit(), Err(Error::StoreFull { .. })));
            assert_eq!(database.reader().unwrap().count(Table::Index("one")).unwrap(), 0);

            // Removals find the room that was kept for them, time and again.
            for _ in 0..3 {
                let mut writer = database.writer().unwrap();
                for number in 0..filled / 2 {
                    writer.delete(Table::Main, &key(number)).unwrap();
                }
                writer.commit().unwrap();
                put(&database, 0..filled / 4, &[6; 1000]).unwrap();
                put(&database, filled / 4..filled / 2, &[6; 500]).unwrap();
                fill(&database);
            }

            drop(database);
            let database = LmdbDatabase::open(&path, &["one"], &options).unwrap();
            let reader = database.reader().unwrap();
            let first = reader.get(Table::Main, &key(0_u32)).unwrap();
            assert!(first.is_some_and(|value| value[0] >= 5));
        }
    }
}

/// Set in the process that the test below starts anew, whose files may have 4 MiB: the folder to
/// fill.
const LIMITED: &str = "TERRANE_LMDB_LIMITED";

/// A full disk cuts writes short, which LMDB calls an I/O error.
#[test]
fn a_full_disk_refuses_and_goes_on_once_there_is_room() {
    let Ok(folder) = std::env::var(LIMITED) else {
        for write_map in ["no", "yes"] {
            let folder = tempfile::tempdir().unwrap();
            let this = std::env::current_exe().unwrap();

            // Blocks of 512 bytes; a process that ignores the signal gets an error from the write.
            let script = "trap '' XFSZ && ulimit -f 8192 && exec \"$0\" --exact --nocapture \
                          lmdb::a_full_disk_refuses_and_goes_on_once_there_is_room";
            let status = Command::new("sh")
                .args(["-c", script])
                .arg(this)
                .env(LIMITED, folder.path())
                .env("TERRANE_LMDB_WRITE_MAP", write_map)
                .status()
                .unwrap();
            assert!(status.success(), "write map {write_map}: {status}");
            assert!(folder.path().join("done").exists(), "the child ran no test");
        }

        return;
    };

    let folder = Path::new(&folder);
    let write_map = std::env::var("TERRANE_LMDB_WRITE_MAP").unwrap() == "yes";
    let options = LmdbOptions::default().write_map(write_map);
    let database = LmdbDatabase::open(folder.join("a"), &[], &options).unwrap();

    let mut filled = 0;
    // Large transactions, whose writes are cut in their middle.
    loop {
        match put(&database, filled..filled + 200, &[5; 3000]) {
            Ok(()) => filled += 200,
            Err(Error::StoreFull { .. }) => break,
            Err(other) => panic!("{other:?}"),
        }
    }

    assert!(filled > 0);
    assert_eq!(keys(&*database.reader().unwrap()), (0..filled).collect::<Vec<_>>());
    if !write_map {
        let mut writer = database.writer().unwrap();
        for number in 0..filled / 2 {
            writer.delete(Table::Main, &key(number)).unwrap();
        }
        writer.commit().unwrap();
        put(&database, 0..filled / 4, &[6; 3000]).unwrap();
    }

    put(&database, 0..1, &[7; 10]).unwrap();
    database.close().unwrap();
    std::fs::write(folder.join("done"), []).unwrap();
}

#[test]
fn options_take_effect_and_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let modes = [
        (SyncMode::Full, false, "full", Durability::Each, PowerLoss::EveryCommit, 2),
        (SyncMode::NoMeta, false, "no-meta", Durability::Buffered, PowerLoss::Consistent, 1),
        (SyncMode::None, false, "none", Durability::None, PowerLoss::NoPromise, 0),
        (SyncMode::MapAsync, true, "map-async", Durability::None, PowerLoss::NoPromise, 0),
        (SyncMode::Full, true, "full", Durability::Each, PowerLoss::EveryCommit, 2),
    ];
    for (number, (sync, write_map, name, durability, power_loss, syncs)) in
        modes.into_iter().enumerate()
    {
        let directory = number % 2 == 1;
        let options = LmdbOptions::default()
            .map_bytes(300_000)
            .readers_max(9)
            .directory(directory)
            .read_ahead(directory)
            .sync(sync)
            .write_map(write_map);

        let path = folder.path().join(number.to_string());
        let database = LmdbDatabase::open(&path, &[], &options).unwrap();
        let settings = ["sync", "map_bytes", "readers_max", "directory", "read_ahead", "write_map"]
            .map(|name| setting(&database, name));
        let expected = [
            name,
            "327680",
            "9",
            &directory.to_string(),
            &directory.to_string(),
            &write_map.to_string(),
        ];
        assert_eq!(settings, expected);
        assert_eq!(path.is_dir(), directory);
        let guarantee = database.guarantee();
        assert_eq!((guarantee.durability, guarantee.power_loss), (durability, power_loss));
        put(&database, 0..1, b"value").unwrap();
        assert_eq!((database.counts().transactions, database.counts().syncs), (1, syncs));
        database.writer().unwrap().commit().unwrap();
        assert_eq!((database.counts().transactions, database.counts().syncs), (2, syncs), "empty");
        database.sync().unwrap();
        assert_eq!(database.counts().syncs, syncs + 1);

        // A map that is written has its blocks, so that a full disk is an error and no signal.
        let bytes = database.disk_bytes().unwrap();
        assert_eq!(bytes >= 327_680, write_map, "{bytes}");
    }
}

#[test]
fn options_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let default = LmdbOptions::default();
    let refused = [
        ("sync", default.clone().sync(SyncMode::MapAsync)),
        ("map_bytes", default.clone().map_bytes(2 << 20).map_bytes_max(1 << 20)),
        ("map_bytes_max", default.clone().map_bytes_max(4096)),
        ("growth", default.clone().growth(LmdbGrowth::Step(0))),
        ("readers_max", default.clone().readers_max(0)),
    ];

    for (name, options) in refused {
        match LmdbDatabase::open(folder.path().join("a"), &[], &options) {
            Err(Error::Unsupported { back_end: "lmdb", option, .. }) => assert_eq!(option, name),
            other => panic!("{name}: {other:?}"),
        }
    }

    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn too_many_readers_are_busy_and_a_second_opening_is_locked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let options = LmdbOptions::default().readers_max(3);
    let database = LmdbDatabase::open(&path, &[], &options).unwrap();
    let readers: Vec<_> = (0..3).map(|_| database.reader().unwrap()).collect();
    assert!(matches!(database.reader(), Err(Error::Busy { back_end: "lmdb", .. })));
    put(&database, 0..1, b"value").unwrap();
    drop(readers);
    database.reader().unwrap();
    let again = LmdbDatabase::open(&path, &[], &options);
    assert!(matches!(again, Err(Error::Locked { back_end: "lmdb", .. })), "{again:?}");
}

#[test]
fn what_is_no_file_of_lmdb_or_ends_too_early_is_corruption() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let open = || LmdbDatabase::open(&path, &[], &LmdbOptions::default());
    let database = open().unwrap();
    put(&database, 0..1000, &[3; 100]).unwrap();
    put(&database, 0..1000, &[4; 100]).unwrap();
    drop(database);
    let bytes = std::fs::read(&path).unwrap();

    for (length, flipped) in [(100, false), (8192, false), (9000, false), (bytes.len(), true)] {
        let mut damaged = bytes[..length].to_vec();
        if flipped {
            damaged[16] ^= 1;
        }
        std::fs::write(&path, damaged).unwrap();
        let opened = open();
        assert!(matches!(opened, Err(Error::Corruption { .. })), "{length}: {opened:?}");
    }

    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(open().unwrap().reader().unwrap().count(Table::Main).unwrap(), 1000);
}

#[test]
fn compaction_gives_the_space_of_removed_entries_back() {
    for directory in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let options = LmdbOptions::default().directory(directory);
        let database = LmdbDatabase::open(&path, &["one"], &options).unwrap();
        put(&database, 0..3000, &[1; 1000]).unwrap();
        let mut writer = database.writer().unwrap();
        writer.put(Table::Index("one"), b"key", b"value").unwrap();

        for number in 10..3000_u32 {
            writer.delete(Table::Main, &key(number)).unwrap();
        }

        writer.commit().unwrap();
        let full = database.disk_bytes().unwrap();
        let copy = folder.path().join("copy");
        database.copy_to(&copy).unwrap();
        let reader = database.reader().unwrap();
        assert!(matches!(database.compact(), Err(Error::Busy { .. })));
        drop(reader);
        database.compact().unwrap();
        let compact = database.disk_bytes().unwrap();
        assert!(compact * 10 < full, "{compact} of {full}");
        put(&database, 10..20, &[1; 1000]).unwrap();
        drop(database);
        let database = LmdbDatabase::open(&path, &["one"], &options).unwrap();
        let reader = database.reader().unwrap();
        assert_eq!(keys(&*reader), (0..20).collect::<Vec<_>>());
        assert_eq!(reader.get(Table::Index("one"), b"key").unwrap(), Some(b"value".to_vec()));
        let copied = LmdbDatabase::open(&copy, &["one"], &LmdbOptions::default()).unwrap();
        assert_eq!(keys(&*copied.reader().unwrap()), (0..10).collect::<Vec<_>>());
    }
}

/// A page that was divided has half of what it could have; LMDB's own copy leaves it so.
#[test]
fn compaction_fills_pages_unless_others_have_tables_in_the_file() {
    let mut sizes = Vec::new();
    for foreign in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let database = LmdbDatabase::open(&path, &["one"], &LmdbOptions::default()).unwrap();

        // In an order that divides every page.
        let mut writer = database.writer().unwrap();
        for number in (0..8).flat_map(|step| (step..5000_u32).step_by(8)) {
            writer.put(Table::Main, &key(number), &[1; 100]).unwrap();
        }

        writer.put(Table::Index("one"), b"key", &[7; 10_000]).unwrap();
        writer.commit().unwrap();
        drop(database);
        let options = EnvironmentOptions {
            access: EnvironmentAccess::Write,
            map_bytes: 16 << 20,
            readers_max: 8,
            tables_max: 8,
            directory: false,
            read_ahead: true,
            write_map: false,
            sync: SyncMode::Full,
        };

        if foreign {
            let environment = Environment::open(&path, &options).unwrap();
            let mut transaction = environment.transaction().unwrap();
            let table = transaction.table("of another program").unwrap();
            transaction.put(table, b"its key", b"its value").unwrap();
            transaction.commit().unwrap();
            environment.close().unwrap();
        }

        let database = LmdbDatabase::open(&path, &["one"], &LmdbOptions::default()).unwrap();
        database.compact().unwrap();
        assert_eq!(database.counts().transactions, 0);
        sizes.push(database.disk_bytes().unwrap());
        let reader = database.reader().unwrap();
        assert_eq!(keys(&*reader), (0..5000).collect::<Vec<_>>());
        assert_eq!(reader.get(Table::Index("one"), b"key").unwrap(), Some(vec![7; 10_000]));
        drop(reader);
        put(&database, 5000..5001, &[1; 100]).unwrap();
        assert_eq!(keys(&*database.reader().unwrap()).len(), 5001);
        drop(database);

        if foreign {
            let environment = Environment::open(&path, &options).unwrap();
            let mut transaction = environment.transaction().unwrap();
            let table = transaction.table("of another program").unwrap();
            let found = transaction.get(table, b"its key").unwrap();
            assert_eq!(found.as_deref(), Some(&b"its value"[..]));
        }

        let mut files: Vec<_> =
            folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["a", "a-lock"]);
    }

    assert!(sizes[0] * 4 < sizes[1] * 3, "{sizes:?}");
}

/// Compaction closes the file for a moment. A call of another thread that still used it, or a file
/// that could not be opened again, left the database closed for good.
#[test]
fn a_database_goes_on_after_a_compaction_beside_other_calls_and_one_that_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let database = LmdbDatabase::open(&path, &[], &LmdbOptions::default()).unwrap();
    put(&database, 0..100, &[1; 100]).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    database.sync().unwrap();
                    assert_eq!(setting(&database, "sync"), "full");
                    let copy = tempfile::tempdir().unwrap();
                    database.copy_to(&copy.path().join("copy")).unwrap();
                }
            });
        }

        let compacted: Result<Vec<()>> = (0..50).map(|_| database.compact()).collect();
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        compacted.unwrap();
    });

    assert_eq!(database.reader().unwrap().count(Table::Main).unwrap(), 100);

    // A directory in the place of its locks keeps it from being opened.
    let locks = folder.path().join("a-lock");
    std::fs::rename(&locks, folder.path().join("away")).unwrap();
    std::fs::create_dir(&locks).unwrap();
    database.compact().unwrap_err();
    assert!(!folder.path().join("a-compact").exists());
    database.reader().map(drop).unwrap_err();
    std::fs::remove_dir(&locks).unwrap();
    put(&database, 100..200, &[1; 100]).unwrap();
    assert_eq!(keys(&*database.reader().unwrap()), (0..200).collect::<Vec<_>>());
    database.compact().unwrap();
    database.close().unwrap();

    assert!(matches!(database.compact(), Err(Error::BackEnd { .. })), "closed");
}

/// Set in the processes that the test below starts anew: the file that they write.
const SHARED: &str = "TERRANE_LMDB_SHARED";

/// A snapshot copies a head that the transaction after the next one writes, which may be that of
/// another process.
#[test]
fn snapshots_beside_a_process_that_writes_are_whole_commits() {
    use std::io::Read as _;
    let options = LmdbOptions::default().sync(SyncMode::None);
    if let Some(path) = std::env::var_os(SHARED) {
        let database = LmdbDatabase::open(path, &["one"], &options).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            });

            let mut number = 1_u64;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let mut writer = database.writer().unwrap();
                for table in [Table::Main, Table::Index("one")] {
                    writer.overwrite(table, b"number", &number.to_le_bytes()).unwrap();
                }
                writer.commit().unwrap();
                number += 1;
            }
        });

        return;
    }

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let database = LmdbDatabase::open(&path, &["one"], &options).unwrap();
    let mut writing = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lmdb::snapshots_beside_a_process_that_writes_are_whole_commits"])
        .env(SHARED, &path)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let number = |table| {
        let found = database.reader().unwrap().get(table, b"number").unwrap();
        found.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
    };

    while number(Table::Main) == 0 {
        assert!(writing.try_wait().unwrap().is_none(), "the child ended");
    }

    let mut last = 0;
    for _ in 0..200_000 {
        let reader = database.reader().unwrap();
        let both = [Table::Main, Table::Index("one")].map(|table| {
            let found = reader.get(table, b"number").unwrap().unwrap();
            u64::from_le_bytes(found.try_into().unwrap())
        });
        assert_eq!(both[0], both[1], "half a commit");
        assert!(last <= both[0], "{last}, then {}", both[0]);
        last = both[0];
    }

    drop(writing.stdin.take());
    assert!(writing.wait().unwrap().success());
}

/// A database that was opened by two hard links had two files of locks, and so two writers at once:
/// each lost commits of the other.
#[test]
fn a_file_with_two_names_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    let database = LmdbDatabase::open(&one, &[], &LmdbOptions::default()).unwrap();
    put(&database, 0..3, b"1").unwrap();
    std::fs::hard_link(&one, &other).unwrap();
    drop(database);

    for path in [&one, &other] {
        let refused = LmdbDatabase::open(path, &[], &LmdbOptions::default());
        assert!(matches!(&refused, Err(Error::Unsupported { .. })), "{refused:?}");
        let refused = LmdbDatabase::open_read_only(path, &[], &LmdbOptions::default());
        assert!(matches!(&refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }

    std::fs::remove_file(&other).unwrap();
    let database = LmdbDatabase::open(&one, &[], &LmdbOptions::default()).unwrap();
    assert_eq!(keys(&*database.reader().unwrap()), [0, 1, 2]);
}

/// LMDB follows a link in a path and this program did not, so that the file of locks was looked for
/// beside the link.
#[test]
fn a_database_is_measured_and_compacted_through_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let [real, link] = ["real", "link"].map(|name| folder.path().join(name));
    LmdbDatabase::open(&real, &[], &LmdbOptions::default()).unwrap();
    std::os::unix::fs::symlink("real", &link).unwrap();

    let database = LmdbDatabase::open(&link, &[], &LmdbOptions::default()).unwrap();
    put(&database, 0..2_000, &[7; 100]).unwrap();
    assert!(database.disk_bytes().unwrap() > 200_000);
    database.compact().unwrap();
    assert!(link.is_symlink() && !real.is_symlink());
    assert_eq!(keys(&*database.reader().unwrap()).len(), 2_000);
}

/// LMDB makes its file of locks by name, and would write through a link.
#[test]
fn files_of_locks_that_are_links_are_refused_and_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let [path, locks, victim] =
        ["data", "data-lock", "victim"].map(|name| folder.path().join(name));
    std::fs::write(&victim, b"mine").unwrap();

    for make in
        [std::fs::hard_link, |from: &PathBuf, to: &PathBuf| std::os::unix::fs::symlink(from, to)]
    {
        make(&victim, &locks).unwrap();
        let refused = LmdbDatabase::open(&path, &[], &LmdbOptions::default());
        assert!(matches!(&refused, Err(Error::Unsupported { .. })), "{refused:?}");
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
        std::fs::remove_file(&locks).unwrap();
    }
}

/// A file with pages of every kind: branches, leaves, long values, a free list.
fn file_of_every_kind(path: &Path) -> Vec<u8> {
    let options = LmdbOptions::default().sync(SyncMode::None);
    let database = LmdbDatabase::open(path, &["one"], &options).unwrap();
    put(&database, 0..600, &[7; 60]).unwrap();
    put(&database, 0..20, &[8; 9_000]).unwrap();
    let mut writer = database.writer().unwrap();
    (10..400).for_each(|number| writer.remove(Table::Main, &key(number)).unwrap());
    writer.put(Table::Index("one"), b"key", b"value").unwrap();
    writer.commit().unwrap();
    drop(database);
    std::fs::read(path).unwrap()
}

/// One flipped bit in a page number or an offset ended the process that verified the file, by
/// SIGSEGV or SIGBUS.
#[test]
fn no_flipped_bit_that_the_check_passes_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let whole = file_of_every_kind(&path);
    assert_eq!(check_file(&path).unwrap(), []);

    let mut found = 0;
    let mut passed = 0;
    let page_bytes = 4096;

    for page in 0..whole.len() / page_bytes {
        // Headers and lists of nodes are where most damage is done; few bits of the rest.
        let rest =
            (48 * 8..8 * page_bytes).step_by(by_effort(6_733, 2_311)).map(|bit| bit + page % 64);
        for bit in (page % 11..48 * 8).step_by(by_effort(31, 11)).chain(rest) {
            let mut damaged = whole.clone();
            damaged[page * page_bytes + bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &damaged).unwrap();
            if !check_file(&path).unwrap().is_empty() {
                found += 1;
                continue;
            }

            passed += 1;
            let Ok(database) = LmdbDatabase::open(&path, &["one"], &LmdbOptions::default()) else {
                continue;
            };

            let reader = database.reader().unwrap();
            for table in [Table::Main, Table::Index("one")] {
                let mut cursor = reader.cursor(table).unwrap();
                while let Ok(Some(_)) = cursor.next() {}
            }
        }
    }

    let [least_found, least_passed] = by_effort([60, 30], [200, 100]);
    let is_enough = found > least_found && passed > least_passed;
    assert!(is_enough, "{found} found, {passed} passed");
}

/// Reads what another handle, or process, writes.
#[test]
fn a_database_is_read_without_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let options = LmdbOptions::default();
    assert!(LmdbDatabase::open_read_only(&path, &[], &options).is_err());
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is made");
    let database = LmdbDatabase::open(&path, &["one"], &options).unwrap();
    put(&database, 0..3, b"1").unwrap();
    drop(database);

    let before = std::fs::read(&path).unwrap();
    let missing = LmdbDatabase::open_read_only(&path, &["other"], &options);
    assert!(matches!(missing, Err(Error::Unsupported { .. })));
    let database = LmdbDatabase::open_read_only(&path, &["one"], &options).unwrap();
    assert_eq!(keys(&*database.reader().unwrap()), [0, 1, 2]);
    let refused = [database.writer().map(drop), database.compact(), database.sync()];
    assert!(refused.iter().all(|call| matches!(call, Err(Error::ReadOnly { .. }))), "{refused:?}");
    drop(database);

    assert_eq!(std::fs::read(&path).unwrap(), before);
}
