//! Tables that are installed in a store under a name.
//!
//! Goal: any table of the session can be installed, alone, with a commit, or in the place of a
//! named table; afterwards it is a named table like any other, and nothing was written to the log
//! for it.
//!
//! Method: one table of each origin and state, compared before and after, also after a loss of
//! power and with later commits; counted bytes; a crash and a failure at every call. The workload
//! `installed tables` of [`store_sweep`](crate::store_sweep) and
//! [`store_faults`](crate::store_faults) has installations among commits, versions and rollbacks.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrane_io::{CountedDisk, Disk, FaultKind, FaultPlan, Repeat, SimDisk, Survival};
use terrane_lsm::{
    BackupPlace, Durability, Error, MergeOperator, ReaderOptions, Session, SessionOptions,
    SnapshotName, SnapshotPlace, Store, StoreOptions, StoreReader, Table, TableConfig, Update,
    WriteBatch, WriteBuffer,
};
use terrane_testkit::effort::by_effort;

use crate::store_script::{options, state};
use crate::{FEW_OPEN_FILES, SALT, content, fill, key, value};

fn config(entries: u64) -> TableConfig {
    TableConfig::default()
        .write_buffer(WriteBuffer::Entries(entries))
        .merge_operator(MergeOperator::concatenate())
}

fn open(disk: &Arc<dyn Disk>) -> Store {
    Store::open(Arc::clone(disk), Path::new("/store"), &options(Durability::Group)).unwrap()
}

fn sim() -> (Arc<SimDisk>, Arc<dyn Disk>) {
    let disk = SimDisk::new(1);
    (Arc::clone(&disk), disk as Arc<dyn Disk>)
}

/// A table of each kind that a session gives out, by what it is.
fn tables_of(store: &Store) -> BTreeMap<&'static str, Table> {
    let session = store.session();
    let of = |entries: u64, numbers: std::ops::Range<u64>| {
        let mut table = session.new_table(&config(entries)).unwrap();
        fill(&mut table, numbers);
        table
    };
    let mut tables = BTreeMap::new();
    tables.insert("empty", session.new_table(&config(8)).unwrap());
    tables.insert("memtable", of(10_000, 0..100));
    tables.insert("memtable and a compaction under way", of(7, 0..300));

    let mut loader = session.bulk_load(&config(8)).unwrap();
    for number in (0..200).rev() {
        loader.write_batch(&[(key(number), Update::Insert(&value(number, 30)))]).unwrap();
    }
    tables.insert("bulk load", loader.finish().unwrap());

    let mut debt = session.incremental_union(&[&of(9, 0..90), &of(9, 60..150)]).unwrap();
    debt.supply_union_credits(2).unwrap();
    assert!(debt.remaining_union_debt() > 0, "the union has a debt");
    tables.insert("union with a debt", debt);

    let mut blobs = of(1_000, 0..20);
    for number in 0..20 {
        blobs.insert_with_blob(&key(number), b"with a blob", &value(number, 5_000)).unwrap();
    }
    tables.insert("blobs", blobs);

    let mut deleted = of(40, 0..200);
    deleted.delete_range(&key(3)[..]..).unwrap();
    tables.insert("deleted ranges", deleted);

    let name = SnapshotName::new("saved").unwrap();
    of(11, 0..123).save_snapshot(&name, "").unwrap();
    tables.insert("snapshot", session.open_snapshot(&name, "").unwrap());
    session.delete_snapshot(&name).unwrap();
    tables.insert("fork", tables["memtable"].fork().unwrap());
    tables
}

#[test]
fn a_table_of_any_origin_can_be_installed() {
    let (disk, shared) = sim();
    let store = open(&shared);
    let other = store.create_table("other", &config(8)).unwrap();

    let mut expected = BTreeMap::new();
    for (number, (what, table)) in tables_of(&store).into_iter().enumerate() {
        let before = content(&table);
        let name = format!("table-{number}");
        let commit = store.last_commit();

        let named = if number % 2 == 0 {
            store.install(&name, &table).unwrap()
        } else {
            let mut batch = WriteBatch::new();
            batch.upsert(&other, "with", "+");
            let named = store.install_with(&name, &table, &batch).unwrap();
            assert_eq!((store.last_commit(), store.durable_commit()), (commit + 1, commit + 1));
            named
        };
        drop(table);

        // The named table goes on by itself; its flushes and merges come due.
        let mut content_now = content(&named.view().unwrap());
        assert_eq!(content_now, before, "{what}");
        for number in 1_000..1_020 {
            named.insert(&key(number), b"later").unwrap().wait().unwrap();
            content_now.push((key(number).to_vec(), b"later".to_vec()));
        }
        content_now.sort();
        assert_eq!(content(&named.view().unwrap()), content_now, "{what}");
        expected.insert(name, (what, content_now));
    }

    assert_eq!(other.get(b"with").unwrap().value(), Some(&b"++++"[..]));
    let all = state(&store).unwrap();
    for closed in [false, true] {
        if closed {
            store.close().unwrap();
        }
        let store = open(&(disk.after_crash(Survival::Nothing) as Arc<dyn Disk>));
        assert_eq!(state(&store).unwrap(), all);
        for (name, (what, content_now)) in &expected {
            assert_eq!(
                content(&store.table(name).unwrap().view().unwrap()),
                *content_now,
                "{what}"
            );
        }
        let blobs = store.table("table-0").unwrap();
        let found = blobs.get(&key(7)).unwrap();
        let blob = found.blob().unwrap().clone();
        assert_eq!(store.session().retrieve_blobs(&[blob]).unwrap(), [value(7, 5_000)]);
        store.compact(&mut |_, _| {}).unwrap();
        assert_eq!(state(&store).unwrap(), all);
    }
}

/// A view of a named table under another name: a fork that lasts. The table it was made from goes
/// on apart from it.
#[test]
fn a_view_of_a_named_table_can_be_installed() {
    let (_, shared) = sim();
    let store = open(&shared);
    let table = store.create_table("one", &config(8)).unwrap();
    for number in 0..50 {
        table.insert(&key(number), b"both").unwrap().wait().unwrap();
    }
    let other = store.install("other", &table.view().unwrap()).unwrap();
    table.insert(b"key", b"one").unwrap().wait().unwrap();
    other.insert(b"key", b"other").unwrap().wait().unwrap();
    assert_eq!(table.get(b"key").unwrap().value(), Some(&b"one"[..]));
    assert_eq!(other.get(b"key").unwrap().value(), Some(&b"other"[..]));
    assert_eq!(content(&other.view().unwrap()).len(), 51);
}

/// Views, forks, snapshots, versions, readers and backups keep the old content.
#[test]
fn a_replaced_table_stays_for_those_who_have_it() {
    let (disk, shared) = sim();
    let store = open(&shared);
    let table = store.create_table("main", &config(8)).unwrap();
    let undo = store.create_table("undo", &config(8)).unwrap();
    for number in 0..60 {
        table.insert(&key(number), b"old").unwrap().wait().unwrap();
    }
    undo.insert(b"undo", b"1").unwrap().wait().unwrap();
    let version = store.retain(None).unwrap();
    table.insert(&key(60), b"old").unwrap().wait().unwrap();
    let old = content(&table.view().unwrap());
    let view = table.view().unwrap();
    let mut cursor = table.cursor().unwrap();
    let name = SnapshotName::new("old").unwrap();
    table.save_snapshot(&name, "").unwrap();
    let mut reader =
        StoreReader::open(Arc::clone(&shared), Path::new("/store"), &ReaderOptions::default())
            .unwrap();
    let read = reader.table("main").unwrap();

    let mut new = store.new_volatile_table(&config(5)).unwrap();
    fill(&mut new, 100..140);
    let commit = store.last_commit();
    let handle = store.replace("main", &new).unwrap();
    assert_eq!((store.last_commit(), store.durable_commit()), (commit + 1, commit + 1));

    // The handle from before reads and writes the new content.
    assert_eq!(content(&table.view().unwrap()), content(&new));
    table.insert(b"by", b"the old handle").unwrap().wait().unwrap();
    assert!(handle.get(b"by").unwrap().is_found());
    assert!(!new.get(b"by").unwrap().is_found(), "the table that was given is independent");
    assert_eq!(handle.view().unwrap().config(), &config(5));

    let snapshot = store.session().open_snapshot(&name, "").unwrap();
    assert_eq!(cursor.next_many(usize::MAX).unwrap().len(), 61);
    for kept in [&view, &read, &Arc::new(snapshot)] {
        assert_eq!(content(kept), old);
    }
    reader.refresh().unwrap();
    assert_eq!(content(&reader.table("main").unwrap()), content(&table.view().unwrap()));
    assert_eq!(
        content(&store.version(version).unwrap().table("main").unwrap()),
        old[..].iter().filter(|(found, _)| *found != key(60)).cloned().collect::<Vec<_>>()
    );

    // A version of the new content, a backup, and back to the old one.
    let after = store.retain(None).unwrap();
    let now = state(&store).unwrap();
    store.back_up(&BackupPlace::new("/backup"), &mut |_, _| {}).unwrap();
    store.roll_back(version).unwrap();
    assert_eq!(content(&table.view().unwrap()).len(), 60);
    assert_eq!(table.view().unwrap().config(), &config(8));
    store.roll_back(after).unwrap();
    assert_eq!(state(&store).unwrap(), now);
    drop(store);

    let disk = disk.after_crash(Survival::Nothing) as Arc<dyn Disk>;
    let store = open(&disk);
    assert_eq!(state(&store).unwrap(), now);
    assert_eq!(content(&store.version(version).unwrap().table("main").unwrap()).len(), 60);
    let backup = Store::open(disk, Path::new("/backup"), &options(Durability::Group)).unwrap();
    assert_eq!(state(&backup).unwrap(), now);
}

#[test]
fn versions_before_an_installation_do_not_have_the_table() {
    let (_, shared) = sim();
    let store = open(&shared);
    let other = store.create_table("other", &config(8)).unwrap();
    other.insert(b"a", b"1").unwrap().wait().unwrap();
    let before = store.retain(None).unwrap();

    let mut table = store.new_volatile_table(&config(8)).unwrap();
    fill(&mut table, 0..30);
    let installed = store.install("installed", &table).unwrap();
    let after = store.retain(None).unwrap();
    assert!(after > before, "another list of tables is another version");

    let mut batch = WriteBatch::new();
    batch.insert(&installed, "key", "");
    batch.insert(&other, "b", "");
    let second = store.install_with("second", &table, &batch).unwrap();
    let last = store.retain(None).unwrap();

    let names = |version| -> Vec<String> {
        let tables = store.version(version).unwrap().tables();
        tables.iter().map(ToString::to_string).collect()
    };
    assert_eq!(names(before), ["other"]);
    assert_eq!(names(after), ["installed", "other"]);
    assert_eq!(names(last), ["installed", "other", "second"]);
    let of = |version, table| content(&store.version(version).unwrap().table(table).unwrap()).len();
    assert_eq!((of(after, "installed"), of(last, "installed"), of(last, "second")), (30, 31, 30));

    store.roll_back(before).unwrap();
    assert!(matches!(second.get(b"key"), Err(Error::TableDoesNotExist { .. })));
    assert!(matches!(store.table("installed"), Err(Error::TableDoesNotExist { .. })));
    store.roll_back(last).unwrap();
    assert_eq!(content(&second.view().unwrap()).len(), 30);
}

/// Each refusal leaves the store as it was.
#[test]
fn what_cannot_be_installed_is_refused() {
    let (_, shared) = sim();
    let store = open(&shared);
    let other = store.create_table("other", &config(8)).unwrap();
    let table = store.new_volatile_table(&config(8)).unwrap();
    let mut batch = WriteBatch::new();
    batch.insert(&other, "key", "");
    let before = (state(&store).unwrap(), store.last_commit());

    // The name.
    let refused = store.install("other", &table);
    assert!(matches!(refused, Err(Error::TableExists { name }) if name == "other"));
    let refused = store.install_with("other", &table, &batch);
    assert!(matches!(refused, Err(Error::TableExists { .. })));
    assert!(matches!(store.bulk_load("other", &config(8)), Err(Error::TableExists { .. })));
    let refused = store.replace("absent", &table);
    assert!(matches!(refused, Err(Error::TableDoesNotExist { name }) if name == "absent"));
    assert!(matches!(store.install("No", &table), Err(Error::InvalidTableName { .. })));

    // Another session, and one that is read only.
    let open_session = |dir: &str| {
        let options = SessionOptions::with_salt(SALT).create_dir().open_files_max(FEW_OPEN_FILES);
        Session::open(Arc::clone(&shared), Path::new(dir), &options).unwrap()
    };
    let session = open_session("/session");
    let foreign = session.new_table(&config(8)).unwrap();
    let is_foreign = |refused| matches!(refused, Err(Error::TableOfOtherSession { .. }));
    assert!(is_foreign(store.install("new", &foreign).map(drop)));
    assert!(is_foreign(store.replace("other", &foreign).map(drop)));
    let reader =
        StoreReader::open(Arc::clone(&shared), Path::new("/store"), &ReaderOptions::default());
    let read = reader.unwrap().table("other").unwrap();
    assert!(is_foreign(store.install_with("new", &read, &batch).map(drop)));

    // A merge operator that the store would not be opened with, and one that it would.
    let mine = MergeOperator::new("mine", |newer, older| [older, newer].concat()).unwrap();
    let unknown = config(8).merge_operator(mine.clone());
    let refused = store.install("new", &store.new_volatile_table(&unknown).unwrap());
    assert!(
        matches!(refused, Err(Error::MergeOperatorMismatch { stored, .. }) if stored == "mine")
    );

    // A batch that cannot be committed: neither is there.
    batch.insert(&other, [0; 5_000], "");
    let refused = store.install_with("new", &table, &batch);
    assert!(matches!(refused, Err(Error::KeyTooLarge { .. })));
    assert_eq!((state(&store).unwrap(), store.last_commit()), before);

    store.close().unwrap();
    assert!(matches!(store.install("new", &table), Err(Error::SessionClosed)));
    let known = options(Durability::Group).merge_operator(mine);
    let store = Store::open(Arc::clone(&shared), Path::new("/store"), &known).unwrap();
    let table = store.new_volatile_table(&unknown).unwrap();
    drop(store.install("new", &table).unwrap());
    drop(store.replace("other", &table).unwrap());
    let other = store.table("other").unwrap();
    other.insert(b"key", b"1").unwrap().wait().unwrap();
    other.upsert(b"key", b"2").unwrap().wait().unwrap();
    let all = state(&store).unwrap();
    drop((store, other, table));
    let store = Store::open(shared, Path::new("/store"), &known).unwrap();
    assert_eq!(state(&store).unwrap(), all);
    assert_eq!(store.table("other").unwrap().get(b"key").unwrap().value(), Some(&b"12"[..]));
}

/// A table of another session comes by its snapshot.
#[test]
fn an_imported_snapshot_can_be_installed() {
    let (_, shared) = sim();
    let options = SessionOptions::with_salt(SALT).create_dir().open_files_max(FEW_OPEN_FILES);
    let session = Session::open(Arc::clone(&shared), Path::new("/session"), &options).unwrap();
    let mut table = session.new_table(&config(8)).unwrap();
    fill(&mut table, 0..50);
    let name = SnapshotName::new("exported").unwrap();
    table.save_snapshot(&name, "").unwrap();
    let exported = content(&table);
    session.close().unwrap();

    let store = open(&shared);
    let place = SnapshotPlace::new("/session", name.clone());
    store.session().import_snapshot_from(&place, &name, &mut |_, _| {}).unwrap();
    let imported = store.session().open_snapshot(&name, "").unwrap();
    let named = store.install("imported", &imported).unwrap();
    assert_eq!(content(&named.view().unwrap()), exported);
    store.session().delete_snapshot(&name).unwrap();
    drop((imported, named));
    store.close().unwrap();
    let store = open(&shared);
    assert_eq!(content(&store.table("imported").unwrap().view().unwrap()), exported);
}

/// Sorted pairs into a named table, a million with full effort: each byte is written once beyond
/// the last level, and none to the log.
#[test]
fn a_bulk_load_into_a_named_table_writes_no_log_and_each_byte_once_beyond_the_last_level() {
    let disk = CountedDisk::new(SimDisk::new(1) as Arc<dyn Disk>);
    let shared = Arc::clone(&disk) as Arc<dyn Disk>;
    let store = Store::open(
        Arc::clone(&shared),
        Path::new("/store"),
        &StoreOptions::default().session(SessionOptions::with_salt(SALT).create_dir()),
    )
    .unwrap();
    let other = store.create_table("other", &TableConfig::default()).unwrap();
    other.insert(b"key", b"").unwrap().wait().unwrap();
    let segments = || shared.list(Path::new("/store/log")).unwrap().len();

    let segments_before = segments();
    let before = disk.counts();
    // Memory for a part of the data only, so that it takes several runs.
    let config = TableConfig::default().memory_budget(8 << 20);
    let count = by_effort(100_000, 1_000_000);
    let mut loader = store.bulk_load("accounts", &config).unwrap();
    let mut pairs = 0;
    for first in (0..count).step_by(1_000) {
        let keys: Vec<_> = (first..first + 1_000).map(u64::to_be_bytes).collect();
        let batch: Vec<_> = keys.iter().map(|key| (key, Update::Insert(&[7; 60]))).collect();
        loader.write_batch(&batch).unwrap();
        pairs += batch.len();
    }
    let table = loader.finish().unwrap();

    let written = disk.counts().write_bytes - before.write_bytes;
    let stats = table.stats().unwrap();
    assert_eq!((stats.runs(), stats.buffer_entries), (1, 0), "one run, all of it");
    let last: u64 = stats.levels.iter().map(|level| level.bytes).sum();
    let data = pairs as u64 * 68;
    let beyond = written - last;
    assert!(beyond * 10 <= data * 12, "{written} bytes for {last} of the run and {data} of data");
    assert_eq!(segments(), segments_before, "no segment was made");
    assert_eq!(store.last_commit(), 1, "no commit");

    drop(table);
    store.close().unwrap();
    let store = Store::open(shared, Path::new("/store"), &StoreOptions::default()).unwrap();
    assert_eq!(store.table("accounts").unwrap().view().unwrap().count_exact().unwrap(), count);
}

/// Commits of other threads go on while tables are installed and replaced, and are all there.
#[test]
fn commits_go_on_beside_installations() {
    let (disk, shared) = sim();
    let store = open(&shared);
    let other = store.create_table("other", &config(8)).unwrap();
    let mut table = store.new_volatile_table(&config(8)).unwrap();
    fill(&mut table, 0..20);

    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let other = &other;
            scope.spawn(move || {
                for number in 0..60_u8 {
                    other.insert(&[thread, number], b"").unwrap().wait().unwrap();
                }
            });
        }
        for number in 0..6 {
            let mut batch = WriteBatch::new();
            batch.insert(&other, [9, number], "");
            drop(store.install_with(&format!("with-{number}"), &table, &batch).unwrap());
            drop(store.install(&format!("alone-{number}"), &table).unwrap());
            drop(store.replace("with-0", &table).unwrap());
        }
    });

    let all = state(&store).unwrap();
    assert_eq!((all["other"].len(), all.len()), (246, 13));
    assert_eq!(store.last_commit(), 240 + 12);
    let store = open(&(disk.after_crash(Survival::Nothing) as Arc<dyn Disk>));
    assert_eq!(state(&store).unwrap(), all);
}

/// A store without a log installs by the same manifests.
#[test]
fn a_store_without_a_log_installs_with_a_commit() {
    let (disk, shared) = sim();
    let open = |disk: &Arc<dyn Disk>| {
        let options = options(Durability::None);
        Store::open(Arc::clone(disk), Path::new("/store"), &options).unwrap()
    };
    let store = open(&shared);
    let other = store.create_table("other", &config(8)).unwrap();
    drop(other.insert(b"a", b"1").unwrap());
    let mut table = store.new_volatile_table(&config(8)).unwrap();
    fill(&mut table, 0..20);
    let mut batch = WriteBatch::new();
    batch.upsert(&other, "a", "2");
    drop(store.install_with("new", &table, &batch).unwrap());
    let all = state(&store).unwrap();
    assert_eq!(all["other"][&b"a"[..]], b"12");
    let store = open(&(disk.after_crash(Survival::Nothing) as Arc<dyn Disk>));
    assert_eq!((state(&store).unwrap(), store.last_commit()), (all, 2));
}

/// One of the three calls.
#[derive(Debug, Clone, Copy)]
enum Call {
    Install,
    InstallWith,
    Replace,
}

/// A store with two tables, one of them with updates since the last checkpoint.
fn prepared(disk: &Arc<SimDisk>) -> (Store, Table, WriteBatch) {
    let store = open(&(Arc::clone(disk) as Arc<dyn Disk>));
    let main = store.create_table("main", &config(8)).unwrap();
    let other = store.create_table("other", &config(8)).unwrap();
    for number in 0..20_u8 {
        main.insert(&[number], b"old").unwrap().wait().unwrap();
    }
    store.checkpoint().unwrap();
    other.insert(b"other", b"1").unwrap().wait().unwrap();

    let mut table = store.new_volatile_table(&config(5)).unwrap();
    fill(&mut table, 0..13);
    let mut batch = WriteBatch::new();
    batch.upsert(&other, "other", "2");
    batch.delete_range(&main, &[3][..]..&[7][..]);
    (store, table, batch)
}

impl Call {
    fn run(self, store: &Store, table: &Table, batch: &WriteBatch) -> terrane_lsm::Result<()> {
        match self {
            Self::Install => store.install("new", table).map(drop),
            Self::InstallWith => store.install_with("new", table, batch).map(drop),
            Self::Replace => store.replace("main", table).map(drop),
        }
    }
}

/// State and number of the last commit.
fn found(store: &Store) -> (crate::store_script::State, u64) {
    (state(store).unwrap(), store.last_commit())
}

/// A loss of power, the end of the process, and a failure, at every call on the disk.
#[test]
fn a_table_is_installed_or_not_after_a_crash_or_a_failure_at_any_call() {
    for call in [Call::Install, Call::InstallWith, Call::Replace] {
        let disk = SimDisk::new(1);
        let (store, table, batch) = prepared(&disk);
        let old = found(&store);
        let first = disk.calls();
        call.run(&store, &table, &batch).unwrap();
        let calls = disk.calls() - first;
        let new = found(&store);
        assert_ne!(old, new);
        assert!(calls > 10, "{call:?}: {calls} calls");

        for at in 0..calls {
            let disk = SimDisk::new(1);
            let (store, table, batch) = prepared(&disk);
            disk.set_plan(FaultPlan::crash_at(disk.calls() + at));
            // The last calls clean up, and their failure is none of the installation.
            let is_done = call.run(&store, &table, &batch).is_ok();
            assert!(disk.has_crashed());
            let images = [
                disk.after_crash(Survival::Nothing),
                disk.after_crash(Survival::Everything),
                disk.after_crash(Survival::Random(at)),
                disk.after_crash(Survival::Torn(at)),
                disk.process_kill(),
            ];
            for image in images {
                let store = open(&(Arc::clone(&image) as Arc<dyn Disk>));
                let mut expected = found(&store);
                let is_legal = expected == new || expected == old && !is_done;
                assert!(is_legal, "{call:?}, call {at}: {expected:?}");

                // The store goes on from there.
                let other = store.table("other").unwrap();
                other.insert(b"after", b"").unwrap().wait().unwrap();
                expected.0.get_mut("other").unwrap().insert(b"after".to_vec(), Vec::new());
                expected.1 += 1;
                drop((store, other));
                let store = open(&(image.after_crash(Survival::Nothing) as Arc<dyn Disk>));
                assert_eq!(found(&store), expected, "{call:?}, call {at}");
            }
        }

        for at in 0..calls {
            let disk = SimDisk::new(1);
            let (store, table, batch) = prepared(&disk);
            disk.set_plan(FaultPlan::fail(disk.calls() + at, FaultKind::Eio, Repeat::Once));
            let done = call.run(&store, &table, &batch);
            disk.set_plan(FaultPlan::default());
            let expected = if done.is_ok() { &new } else { &old };
            assert_eq!(found(&store), *expected, "{call:?}, call {at}: {done:?}");
            if done.is_err() && !store.is_poisoned() {
                call.run(&store, &table, &batch).unwrap();
                assert_eq!(found(&store), new, "{call:?}, call {at}, the second time");
            }
            drop((store, table, batch));
            let store = open(&(disk.after_crash(Survival::Nothing) as Arc<dyn Disk>));
            let expected = found(&store);
            assert!(expected == old || expected == new, "{call:?}, call {at}: {expected:?}");
        }
    }
}

/// A merge operator that panics in the batch of an installation panics in a fork: the store goes on
/// without the table and without the batch.
#[test]
fn a_panic_in_the_batch_of_an_installation_leaves_the_store_as_it_was() {
    let is_panicking = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_panicking);
    let mine = MergeOperator::new("mine", move |newer, older| {
        assert!(!flag.load(Ordering::Acquire), "as planned");
        [older, newer].concat()
    })
    .unwrap();

    let disk = SimDisk::new(1) as Arc<dyn Disk>;
    let options = options(Durability::Group).merge_operator(mine.clone());
    let store = Store::open(disk, Path::new("/store"), &options).unwrap();
    let config = config(100).merge_operator(mine);
    let main = store.create_table("main", &config).unwrap();
    main.insert(b"key", b"1").unwrap().wait().unwrap();
    let table = store.new_volatile_table(&config).unwrap();
    let mut batch = WriteBatch::new();
    batch.insert(&main, "other", "");
    batch.upsert(&main, "key", "2");
    batch.upsert(&main, "key", "3");

    let before = found(&store);
    is_panicking.store(true, Ordering::Release);
    let panicked = catch_unwind(AssertUnwindSafe(|| store.install_with("new", &table, &batch)));
    is_panicking.store(false, Ordering::Release);
    assert!(panicked.is_err());
    assert_eq!(found(&store), before);
    drop(store.install_with("new", &table, &batch).unwrap());
    assert_eq!(main.get(b"key").unwrap().value(), Some(&b"123"[..]));
    store.close().unwrap();
}

/// Counters of a table go on when a batch comes with an installation.
#[test]
fn statistics_of_a_table_go_on_over_an_installation() {
    let (_, shared) = sim();
    let store = open(&shared);
    let main = store.create_table("main", &config(8)).unwrap();
    for number in 0..30_u8 {
        main.insert(&[number], b"").unwrap().wait().unwrap();
    }
    let before = main.stats().unwrap();
    let mut batch = WriteBatch::new();
    batch.insert(&main, "key", "");
    let table = store.new_volatile_table(&config(8)).unwrap();
    drop(store.install_with("new", &table, &batch).unwrap());
    let after = main.stats().unwrap();
    assert!(after.updates >= before.updates && after.written_bytes >= before.written_bytes);
    assert!(before.updates == 30 && before.written_bytes > 0);
}
