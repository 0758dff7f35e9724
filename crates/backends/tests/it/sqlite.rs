//! SQLite keeps the rules under every journal; options are those in effect; what is busy, full or
//! broken is told by type.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use terrane_backends::sqlite::{
    AutoVacuum, JournalMode, SqliteDatabase, SqliteOptions, SqlitePlace, Synchronous,
};
use terrane_kv::conformance::{Extent, RULES, Subject, check};
use terrane_kv::{Database, Durability, Error, PowerLoss, Result, Table};
use terrane_testkit::effort::by_effort;

use crate::numbered::{extent, key, keys, put, setting};

const JOURNALS: [JournalMode; 6] = [
    JournalMode::Delete,
    JournalMode::Truncate,
    JournalMode::Persist,
    JournalMode::Memory,
    JournalMode::Wal,
    JournalMode::Off,
];

struct InFile {
    folder: TempDir,
    files: usize,
    options: SqliteOptions,
}

impl InFile {
    fn new(options: SqliteOptions) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), files: 0, options }
    }
}

impl Subject for InFile {
    fn fresh(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        self.files += 1;
        self.reopen(indexes)
    }

    fn reopen(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        if self.options.place != SqlitePlace::Memory {
            let path = self.folder.path().join(format!("{}.sqlite", self.files));
            self.options.place = SqlitePlace::File(path);
        }
        Ok(Arc::new(SqliteDatabase::open(indexes, &self.options)?))
    }

    fn is_persistent(&self) -> bool {
        // What a kill may damage is no promise.
        self.options.place != SqlitePlace::Memory
    }
}

fn in_mode(journal_mode: JournalMode) -> SqliteOptions {
    // A compaction in whose way snapshots are waits so long.
    let busy_timeout = Duration::from_millis(50);
    SqliteOptions::file("")
        .journal_mode(journal_mode)
        .unsafe_journal_off(true)
        .busy_timeout(busy_timeout)
}

#[test]
fn sqlite_with_a_log_keeps_all_rules() {
    let report =
        check(&mut InFile::new(in_mode(JournalMode::Wal)), &by_effort(extent(), Extent::default()))
            .unwrap();
    assert_eq!(report.kept.len(), RULES.len());
}

#[test]
fn sqlite_with_a_deleted_journal_keeps_all_rules() {
    let report = check(
        &mut InFile::new(in_mode(JournalMode::Delete)),
        &by_effort(Extent::small(1), extent()),
    )
    .unwrap();
    assert_eq!(report.kept.len(), RULES.len());
}

/// A sample leaves out the two that have tests of their own.
#[test]
fn sqlite_with_the_other_journals_keeps_all_rules() {
    let others =
        [JournalMode::Truncate, JournalMode::Persist, JournalMode::Memory, JournalMode::Off];
    for &journal_mode in by_effort(&others[..], &JOURNALS) {
        let options = in_mode(journal_mode)
            .synchronous(Synchronous::Off)
            .auto_vacuum(AutoVacuum::Incremental);
        let extent = Extent::small(by_effort(1, 5));
        let report = check(&mut InFile::new(options), &extent);
        assert_eq!(report.unwrap().kept.len(), RULES.len(), "{journal_mode:?}");
    }
}

#[test]
fn sqlite_in_memory_keeps_all_rules_but_those_of_opening_again() {
    let report = check(&mut InFile::new(SqliteOptions::memory()), &extent()).unwrap();
    assert_eq!(report.skipped, ["reopening", "indexes at reopening"]);
}

fn count(database: &dyn Database) -> u64 {
    database.reader().unwrap().count(Table::Main).unwrap()
}

fn in_folder(folder: &Path, journal_mode: JournalMode) -> SqliteOptions {
    in_mode(journal_mode)
        .place(SqlitePlace::File(folder.join("a.sqlite")))
        .busy_timeout(Duration::from_millis(1))
}

#[test]
fn options_take_effect_and_are_read_back() {
    for journal_mode in JOURNALS {
        for (synchronous, name) in [
            (Synchronous::Off, "off"),
            (Synchronous::Normal, "normal"),
            (Synchronous::Full, "full"),
            (Synchronous::Extra, "extra"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let options = in_folder(folder.path(), journal_mode)
                .synchronous(synchronous)
                .table_prefix("mine")
                .mmap_bytes(1 << 20)
                .page_bytes(8192)
                .cache_bytes(64 << 10)
                .auto_vacuum(AutoVacuum::Full)
                .pages_max(500)
                .checkpoint_pages((journal_mode == JournalMode::Wal).then_some(7))
                .pool((journal_mode == JournalMode::Wal).then_some(3));
            let database = SqliteDatabase::open(&["one"], &options).unwrap();
            let settings = [
                "synchronous",
                "table_prefix",
                "mmap_bytes",
                "page_bytes",
                "cache_bytes",
                "auto_vacuum",
                "pages_max",
                "busy_timeout_ms",
            ]
            .map(|name| setting(&database, name));
            assert_eq!(settings, [name, "mine", "1048576", "8192", "65536", "full", "500", "1"]);
            let journal = setting(&database, "journal_mode");
            assert_eq!(journal, format!("{journal_mode:?}").to_lowercase());
            if journal_mode == JournalMode::Wal {
                assert_eq!(setting(&database, "checkpoint_pages"), "7");
                assert_eq!(setting(&database, "pool"), "3");
            }
            put(&database, 0..10, b"value").unwrap();
            database.sync().unwrap();
            assert_eq!(setting(&database, "synchronous"), name);
            database.close().unwrap();
            let other = Connection::open(folder.path().join("a.sqlite")).unwrap();
            let mut tables = other.prepare("SELECT name FROM sqlite_schema ORDER BY 1").unwrap();
            let tables: Vec<String> =
                tables.query_map([], |row| row.get(0)).unwrap().map(|name| name.unwrap()).collect();
            assert_eq!(tables, ["mine_index_one", "mine_main"]);
            let kinds: String = other
                .query_row(
                    "SELECT group_concat(DISTINCT typeof(key) || typeof(value)) FROM mine_main",
                    [],
                    |row| row.get(0),
                )
                .unwrap();
            assert_eq!(kinds, "blobblob");
        }
    }
}

#[test]
fn guarantees_are_those_of_the_journal_and_the_syncs() {
    let folder = tempfile::tempdir().unwrap();
    let expected = [
        (JournalMode::Wal, Synchronous::Full, Durability::Each, PowerLoss::EveryCommit, true),
        (JournalMode::Wal, Synchronous::Normal, Durability::Buffered, PowerLoss::Consistent, true),
        (JournalMode::Wal, Synchronous::Off, Durability::None, PowerLoss::NoPromise, true),
        (JournalMode::Delete, Synchronous::Extra, Durability::Each, PowerLoss::EveryCommit, true),
        (JournalMode::Delete, Synchronous::Full, Durability::Buffered, PowerLoss::Consistent, true),
        (JournalMode::Persist, Synchronous::Full, Durability::Each, PowerLoss::EveryCommit, true),
        (
            JournalMode::Truncate,
            Synchronous::Normal,
            Durability::Buffered,
            PowerLoss::NoPromise,
            true,
        ),
        (JournalMode::Memory, Synchronous::Full, Durability::Buffered, PowerLoss::NoPromise, false),
        (JournalMode::Off, Synchronous::Off, Durability::None, PowerLoss::NoPromise, false),
    ];
    for (number, (journal_mode, synchronous, durability, power_loss, survives_kill)) in
        expected.into_iter().enumerate()
    {
        let path: PathBuf = folder.path().join(number.to_string());
        let options = in_mode(journal_mode).place(SqlitePlace::File(path)).synchronous(synchronous);
        let guarantee = SqliteDatabase::open(&[], &options).unwrap().guarantee();
        let found = (guarantee.durability, guarantee.power_loss, guarantee.survives_kill);
        assert_eq!(found, (durability, power_loss, survives_kill), "{}", guarantee.text);
    }
}

#[test]
fn options_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |journal_mode| in_folder(folder.path(), journal_mode);
    let refused = [
        ("journal_mode", file(JournalMode::Off).unsafe_journal_off(false)),
        ("journal_mode", SqliteOptions::memory().journal_mode(JournalMode::Wal)),
        ("mmap_bytes", SqliteOptions::memory().mmap_bytes(1)),
        ("mmap_size", file(JournalMode::Wal).mmap_bytes(1 << 50)),
        ("pool", file(JournalMode::Delete).pool(2)),
        ("checkpoint_pages", file(JournalMode::Delete).checkpoint_pages(1)),
        ("table_prefix", file(JournalMode::Wal).table_prefix("a\"b")),
        ("page_size", file(JournalMode::Wal).page_bytes(1000)),
        ("cache_bytes", file(JournalMode::Wal).cache_bytes(1)),
        ("busy_timeout", file(JournalMode::Wal).busy_timeout(Duration::MAX)),
    ];

    for (name, options) in refused {
        match SqliteDatabase::open(&[], &options) {
            Err(Error::Unsupported { back_end: "sqlite", option, .. }) => assert_eq!(option, name),
            other => panic!("{name}: {other:?}"),
        }
    }

    let missing = file(JournalMode::Wal)
        .create(false)
        .place(SqlitePlace::File(folder.path().join("missing")));

    assert!(matches!(SqliteDatabase::open(&[], &missing), Err(Error::BackEnd { .. })));
    assert!(!folder.path().join("missing").exists());

    // A page size that the file does not have, and a table that is somebody else's.
    let path = folder.path().join("b.sqlite");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE terrane_main (a, b)").unwrap();
    let place = SqlitePlace::File(path);
    let options = file(JournalMode::Wal).place(place).page_bytes(8192);
    let opened = SqliteDatabase::open(&[], &options);
    assert!(
        matches!(&opened, Err(Error::Unsupported { option, .. }) if option == "page_size"),
        "{opened:?}"
    );
    let options = options.page_bytes(None);
    let opened = SqliteDatabase::open(&[], &options);

    assert!(
        matches!(&opened, Err(Error::Unsupported { option, .. }) if option == "table_prefix"),
        "{opened:?}"
    );
}

#[test]
fn a_lock_of_another_connection_is_busy_until_it_goes() {
    for journal_mode in JOURNALS {
        let folder = tempfile::tempdir().unwrap();
        let database = SqliteDatabase::open(&[], &in_folder(folder.path(), journal_mode)).unwrap();
        put(&database, 0..10, b"value").unwrap();
        let reader = database.reader().unwrap();
        let other = Connection::open(folder.path().join("a.sqlite")).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let busy = database.writer().map(drop);
        assert!(matches!(busy, Err(Error::Busy { back_end: "sqlite", .. })), "{busy:?}");
        assert_eq!(reader.count(Table::Main).unwrap(), 10, "a reader waits for nobody");
        assert_eq!(count(&database), 10);
        other.execute_batch("ROLLBACK").unwrap();
        put(&database, 10..20, b"value").unwrap();
        assert_eq!((reader.count(Table::Main).unwrap(), count(&database)), (10, 20));
        drop(reader);

        // Without a journal there is no way back from a commit that fails.
        if !matches!(journal_mode, JournalMode::Wal | JournalMode::Off) {
            // One that reads lets nobody commit.
            other.execute_batch("BEGIN; SELECT count(*) FROM terrane_main").unwrap();
            let busy = put(&database, 20..30, b"value");
            assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
            other.execute_batch("COMMIT").unwrap();
            assert_eq!(count(&database), 20, "nothing was changed");
        }

        put(&database, 20..30, b"value").unwrap();
        assert_eq!(count(&database), 30);
    }
}

/// Without a log, a snapshot of ours is a row of SQLite's shared locks: another program can commit
/// only in the moment between two transactions of a writer. It is made to last here by a snapshot
/// that begins within a writer.
#[test]
fn another_program_cannot_change_what_a_snapshot_sees() {
    let folder = tempfile::tempdir().unwrap();
    let database =
        SqliteDatabase::open(&[], &in_folder(folder.path(), JournalMode::Delete)).unwrap();
    put(&database, 0..10, b"value").unwrap();
    let other = Connection::open(folder.path().join("a.sqlite")).unwrap();
    other.busy_timeout(Duration::ZERO).unwrap();
    let reader = database.reader().unwrap();
    assert!(other.execute_batch("DELETE FROM terrane_main").is_err(), "locked");
    let writer = database.writer().unwrap();
    assert!(other.execute_batch("DELETE FROM terrane_main").is_err(), "locked");
    drop(writer);
    assert!(other.execute_batch("DELETE FROM terrane_main").is_err(), "locked");
    assert_eq!(reader.count(Table::Main).unwrap(), 10);
    drop(reader);
    other.execute_batch("DELETE FROM terrane_main").unwrap();

    assert_eq!(count(&database), 0);
}

#[test]
fn a_full_file_refuses_and_goes_on_once_there_is_room() {
    for journal_mode in JOURNALS {
        if journal_mode == JournalMode::Off {
            continue; // An error within a commit may leave damage: that is what OFF means.
        }

        let folder = tempfile::tempdir().unwrap();
        let options = in_folder(folder.path(), journal_mode).pages_max(100);
        let database = SqliteDatabase::open(&[], &options).unwrap();
        let reader = database.reader().unwrap();
        let mut filled = 0;
        let full = loop {
            match put(&database, filled..filled + 10, &[1; 1000]) {
                Ok(()) => filled += 10,
                Err(error) => break error,
            }
        };

        assert!(matches!(full, Error::StoreFull { back_end: "sqlite", .. }), "{full:?}");
        assert!(filled > 50, "{filled}");
        assert_eq!((count(&database), reader.count(Table::Main).unwrap()), (u64::from(filled), 0));
        let mut writer = database.writer().unwrap();
        let refused = (0..1000_u32)
            .map(|number| writer.overwrite(Table::Main, &key(number + 5000), &[1; 1000]))
            .find_map(Result::err);
        assert!(matches!(refused, Some(Error::StoreFull { .. })), "{refused:?}");
        assert!(matches!(writer.get(Table::Main, b"key"), Err(Error::StoreFull { .. })));
        assert!(matches!(writer.commit(), Err(Error::StoreFull { .. })));
        drop(reader);

        let mut writer = database.writer().unwrap();
        for number in 0..filled / 2 {
            writer.delete(Table::Main, &key(number)).unwrap();
        }

        writer.commit().unwrap();
        put(&database, 0..filled / 4, &[2; 1000]).unwrap();
        assert_eq!(count(&database), u64::from(filled / 4 + filled.div_ceil(2)));
    }
}

#[test]
fn what_is_no_file_of_sqlite_is_corruption() {
    let folder = tempfile::tempdir().unwrap();
    let options = in_folder(folder.path(), JournalMode::Wal);
    let path = folder.path().join("a.sqlite");
    let database = SqliteDatabase::open(&[], &options).unwrap();
    put(&database, 0..1000, &[1; 100]).unwrap();
    database.close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, [7; 5000]).unwrap();
    let opened = SqliteDatabase::open(&[], &options);
    assert!(matches!(opened, Err(Error::Corruption { back_end: "sqlite", .. })), "{opened:?}");
    let mut damaged = bytes.clone();
    damaged[3 * 4096..].fill(0xEE);
    std::fs::write(&path, damaged).unwrap();
    let database = SqliteDatabase::open(&[], &options).unwrap();
    let read = database.reader().unwrap().count(Table::Main);

    assert!(matches!(read, Err(Error::Corruption { .. })), "{read:?}");
}

#[test]
fn compaction_gives_the_space_of_removed_entries_back() {
    for journal_mode in JOURNALS {
        for auto_vacuum in [AutoVacuum::None, AutoVacuum::Full, AutoVacuum::Incremental] {
            let folder = tempfile::tempdir().unwrap();
            let options = in_folder(folder.path(), journal_mode)
                .auto_vacuum(auto_vacuum)
                .synchronous(Synchronous::Off);

            let database = SqliteDatabase::open(&[], &options).unwrap();
            put(&database, 0..2000, &[1; 1000]).unwrap();
            let mut writer = database.writer().unwrap();
            for number in 10..2000_u32 {
                writer.delete(Table::Main, &key(number)).unwrap();
            }

            let snapshot = database.reader().unwrap();
            writer.commit().unwrap();
            database.compact().unwrap();
            assert_eq!(snapshot.count(Table::Main).unwrap(), 2000);
            drop(snapshot);
            database.compact().unwrap();
            let bytes = database.disk_bytes().unwrap();
            assert!(bytes < 200_000, "{journal_mode:?} {auto_vacuum:?}: {bytes}");
            assert_eq!(keys(&*database.reader().unwrap()), (0..10).collect::<Vec<_>>());
        }
    }
}

/// SQLite names its log and its locks by the path: a file with two names would have two of each.
#[test]
fn a_file_with_two_names_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    SqliteDatabase::open(&[], &SqliteOptions::file(&one)).unwrap().close().unwrap();
    std::fs::hard_link(&one, &other).unwrap();

    for path in [&one, &other] {
        let refused = SqliteDatabase::open(&[], &SqliteOptions::file(path));
        assert!(matches!(&refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }

    std::fs::remove_file(&other).unwrap();
    std::os::unix::fs::symlink(&one, &other).unwrap();
    let database = SqliteDatabase::open(&[], &SqliteOptions::file(&other)).unwrap();
    put(&database, 0..3, b"1").unwrap();
    assert!(database.disk_bytes().unwrap() > 0);

    let victim = folder.path().join("victim");
    std::fs::write(&victim, b"mine").unwrap();
    let log = folder.path().join("new-wal");
    std::os::unix::fs::symlink(&victim, &log).unwrap();
    let refused = SqliteDatabase::open(&[], &SqliteOptions::file(folder.path().join("new")));
    assert!(matches!(&refused, Err(Error::Unsupported { .. })), "{refused:?}");

    assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
}

#[test]
fn a_database_is_read_without_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a %?#b");
    let options = SqliteOptions::file(&path);
    assert!(SqliteDatabase::open_read_only(&[], &options).is_err());
    assert!(!path.exists(), "nothing is made");
    let database = SqliteDatabase::open(&["one"], &options).unwrap();
    put(&database, 0..3, b"1").unwrap();

    let beside = SqliteDatabase::open_read_only(&["one"], &options).unwrap();
    assert_eq!(keys(&*beside.reader().unwrap()), [0, 1, 2]);
    put(&database, 3..4, b"1").unwrap();
    assert_eq!(keys(&*beside.reader().unwrap()), [0, 1, 2, 3]);
    let refused = [beside.writer().map(drop), beside.compact(), beside.sync()];
    assert!(refused.iter().all(|call| matches!(call, Err(Error::ReadOnly { .. }))), "{refused:?}");
    let missing = SqliteDatabase::open_read_only(&["other"], &options);

    assert!(matches!(missing, Err(Error::Unsupported { .. })));
}

/// Reading all entries shows no damage of a page that no entry is on.
#[test]
fn damage_that_sqlite_finds_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let options = SqliteOptions::file(&path).journal_mode(JournalMode::Delete);
    let database = SqliteDatabase::open(&[], &options).unwrap();
    put(&database, 0..4_000, &[7; 60]).unwrap();
    let mut writer = database.writer().unwrap();
    (0..3_900).for_each(|number| writer.remove(Table::Main, &key(number)).unwrap());
    writer.commit().unwrap();
    assert_eq!(database.check().unwrap(), [""; 0]);
    database.close().unwrap();

    let mut bytes = std::fs::read(&path).unwrap();
    // How many free pages there are.
    bytes[39] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let database = SqliteDatabase::open(&[], &options).unwrap();
    assert_eq!(keys(&*database.reader().unwrap()).len(), 100);

    assert!(!database.check().unwrap().is_empty());
}
