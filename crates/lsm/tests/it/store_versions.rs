//! Retained versions, rollback and backups of a store.
//!
//! Goal: a version holds the tables as of its commit, whatever happens later, in this process and
//! in others; a rollback restores the tables of a version, all or nothing; a backup is the store as
//! of one commit, with its versions and snapshots, and copies only what is missing.
//!
//! Method: random steps against a model that keeps all states; then a crash and a fault at every
//! call of retaining, going back, releasing and backing up, after which the state must be the one
//! before or after.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{Access, CountedDisk, Disk, EntryKind, MemoryDisk, OpenMode};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_io::{SimDisk, Survival};
use terrane_lsm::{
    BackupPlace, BackupReport, Change, CheckpointThread, Durability, Error, MergeOperator,
    ReaderOptions, Result, SessionOptions, SnapshotName, Store, StoreOptions, StoreReader, Table,
    TableConfig, TableName, Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::script::updates;
use crate::{FEW_OPEN_FILES, SALT, SessionDir};

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// The tables of a store by name.
type State = BTreeMap<String, Content>;

const NAMES: [&str; 3] = ["main", "other", "third"];

fn name(text: &str) -> TableName {
    TableName::new(text).unwrap()
}

fn label(text: &str) -> SnapshotName {
    SnapshotName::new(text).unwrap()
}

fn open_at(disk: &Arc<dyn Disk>, dir: &Path, durability: Durability) -> Store {
    let session = SessionOptions::with_salt(SALT).create_dir().open_files_max(FEW_OPEN_FILES);
    let options = StoreOptions::default().session(session).durability(durability);
    let options = options.log_bytes_max(64 << 10).checkpoint_thread(CheckpointThread::Caller);
    Store::open(Arc::clone(disk), dir, &options).unwrap()
}

fn content(table: &Table) -> Content {
    let records = table.cursor().unwrap().next_many(usize::MAX).unwrap();
    records.into_iter().map(|record| (record.key, record.value.into_vec())).collect()
}

fn state(store: &Store) -> State {
    let view = |name: &TableName| content(&store.table(name).unwrap().view().unwrap());
    let tables = store.tables().unwrap();
    tables.iter().map(|info| (info.name.to_string(), view(&info.name))).collect()
}

fn state_of_reader(disk: &Arc<dyn Disk>, dir: &Path) -> (u64, State) {
    let reader = StoreReader::open(Arc::clone(disk), dir, &ReaderOptions::default()).unwrap();
    let table = |name: &TableName| content(&reader.table(name).unwrap());
    let tables = reader.tables();
    let state = tables.iter().map(|info| (info.name.to_string(), table(&info.name))).collect();
    (reader.last_commit(), state)
}

fn state_of_version(version: &terrane_lsm::Version) -> State {
    let table = |name: &TableName| content(&version.table(name).unwrap());
    version.tables().iter().map(|name| (name.to_string(), table(name))).collect()
}

/// Commits to some of the tables.
fn put(store: &Store, rng: &mut ChaCha8Rng, model: &mut State) {
    let Some(at) = (!model.is_empty()).then(|| rng.index(model.len())) else { return };
    let (table, content) = model.iter_mut().nth(at).unwrap();
    let mut batch = Vec::new();

    if rng.chance(1, 6) {
        let from = rng.below(80) as u8;
        let end = from + rng.below(20) as u8;
        content.retain(|key, _| !(from..end).contains(&key[0]));
        drop(store.table(&name(table)).unwrap().delete_range(&[from][..]..&[end][..]).unwrap());
        return;
    }

    for _ in 0..=rng.index(15) {
        let key = vec![rng.below(80) as u8];
        let value_len = rng.index(200);
        let value = (!rng.chance(1, 3)).then(|| rng.bytes(value_len));
        match &value {
            Some(value) => drop(content.insert(key.clone(), value.clone())),
            None => drop(content.remove(&key)),
        }
        batch.push((key, value));
    }

    let updates = updates(&batch);
    drop(store.table(&name(table)).unwrap().write_batch(&updates).unwrap());
}

fn config() -> TableConfig {
    TableConfig::default().write_buffer(WriteBuffer::Entries(8))
}

/// Checks that a diff equals the difference of the models.
fn check_diff(old: &Table, new: &Table, models: (&Content, &Content)) {
    let mut undone = content(new);

    let mut diff = old.diff(new).unwrap();
    let mut count = 0;
    while let Some(Change { key, old, .. }) = diff.next().transpose().unwrap() {
        count += 1;
        match old.value() {
            Some(value) => drop(undone.insert(key, value.to_vec())),
            None => drop(undone.remove(&key)),
        }
    }

    assert!(undone == *models.0);
    let (one, other) = models;
    let differ = |key: &&Vec<u8>| one.get(*key) != other.get(*key);
    let keys: std::collections::BTreeSet<_> = one.keys().chain(other.keys()).collect();
    assert_eq!(count, keys.iter().filter(|key| differ(key)).count());
}

#[test]
fn versions_are_what_the_tables_were_and_can_be_gone_back_to() {
    for_each_seed("versions of a store", by_effort(1, 4), |rng, _| {
        for place in SessionDir::both() {
            let disk = place.disk();
            let dir = place.dir();
            let durability = [Durability::Group, Durability::None][rng.index(2)];
            let mut store = open_at(&disk, &dir, durability);
            let mut model = State::new();
            let mut versions: BTreeMap<u64, (Option<String>, State)> = BTreeMap::new();
            for step in 0..120 {
                match rng.below(20) {
                    0..9 => put(&store, rng, &mut model),
                    9 => {
                        let table = NAMES[rng.index(3)];
                        if model.remove(table).is_some() {
                            store.drop_table(&name(table)).unwrap();
                        } else {
                            store.create_table(&name(table), &config()).unwrap();
                            model.insert(table.to_owned(), Content::new());
                        }
                    }
                    10..13 => {
                        // A commit of its own, so that the number tells the states apart.
                        put(&store, rng, &mut model);
                        let text = rng.chance(1, 2).then(|| format!("step-{step}"));
                        let named = text.as_deref().map(label);
                        let number = store.last_commit();
                        if versions.contains_key(&number) {
                            continue;
                        }
                        assert_eq!(store.retain(named.as_ref()).unwrap(), number);
                        assert_eq!(store.retain(None).unwrap(), number);
                        versions.insert(number, (text, model.clone()));
                    }
                    13..16 if !versions.is_empty() => {
                        let at = rng.index(versions.len());
                        let (&number, (_, old)) = versions.iter().nth(at).unwrap();
                        let before = store.last_commit();
                        assert_eq!(store.roll_back(number).unwrap(), before + 1);
                        model.clone_from(old);
                    }
                    16 if !versions.is_empty() => {
                        let at = rng.index(versions.len());
                        let number = *versions.keys().nth(at).unwrap();
                        versions.remove(&number);
                        store.release(number).unwrap();
                        let error = store.version(number).unwrap_err();
                        assert!(matches!(error, Error::VersionDoesNotExist { .. }), "{error}");
                    }
                    17 => {
                        store.sync().unwrap();
                        if rng.chance(1, 2) {
                            store.close().unwrap();
                        }
                        drop(store);
                        store = open_at(&disk, &dir, durability);
                    }
                    _ => {
                        store.sync().unwrap();
                        let (commit, found) = state_of_reader(&disk, &dir);
                        assert_eq!(commit, store.last_commit());
                        assert!(found == model, "step {step}");
                    }
                }
                assert!(state(&store) == model, "step {step}");
                if let Some(at) = (!versions.is_empty()).then(|| rng.index(versions.len())) {
                    let (&number, (text, old)) = versions.iter().nth(at).unwrap();
                    let version = match text {
                        Some(text) => store.version_named(&label(text)).unwrap(),
                        None => store.version(number).unwrap(),
                    };
                    assert_eq!(version.number(), number);
                    assert!(state_of_version(&version) == *old, "version {number}");
                    for (table, now) in &model {
                        let Some(then) = old.get(table) else { continue };
                        let present = store.table(&name(table)).unwrap().view().unwrap();
                        let old = version.table(&name(table)).unwrap();
                        check_diff(&old, &present, (then, now));
                    }
                }
                let listed: Vec<_> =
                    store.versions().unwrap().into_iter().map(|info| info.number).collect();
                assert!(listed.iter().eq(versions.keys()));
            }
            let options = ReaderOptions::default();
            let reader = StoreReader::open(Arc::clone(&disk), &dir, &options).unwrap();
            for (&number, (text, old)) in &versions {
                let version = match text {
                    Some(text) => reader.version_named(&label(text)).unwrap(),
                    None => reader.version(number).unwrap(),
                };
                store.release(number).unwrap();
                assert!(state_of_version(&version) == *old, "version {number} of a reader");
            }
            drop(reader);
            store.close().unwrap();
            let report = terrane_lsm::verify::verify(&disk, &dir, &mut |_, _| {}).unwrap();
            assert!(report.problems.is_empty(), "{report:?}");
            assert!(report.notes.iter().all(|note| note.contains("lost+found")), "{report:?}");
        }
    });
}

#[test]
fn names_of_versions_are_given_once() {
    let place = SessionDir::simulated(1);
    let store = open_at(&place.disk(), &place.dir(), Durability::Group);
    let table = store.create_table(&name("main"), &config()).unwrap();
    drop(table.insert(b"k", b"1").unwrap());
    let [one, two] = ["one", "two"].map(label);

    let number = store.retain(None).unwrap();
    // It gets a name later, but only one.
    assert_eq!(store.retain(Some(&one)).unwrap(), number);
    assert_eq!(store.retain(Some(&one)).unwrap(), number);
    let taken =
        |error: Error| matches!(error, Error::VersionExists { number: at, .. } if at == number);
    assert!(taken(store.retain(Some(&two)).unwrap_err()));
    drop(table.insert(b"k", b"2").unwrap());
    assert!(taken(store.retain(Some(&one)).unwrap_err()));
    assert_eq!(store.retain(Some(&two)).unwrap(), number + 1);
    let names: Vec<_> = store.versions().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, [Some(one.clone()), Some(two)]);
    store.release(number).unwrap();
    drop(table.insert(b"k", b"3").unwrap());
    assert_eq!(store.retain(Some(&one)).unwrap(), number + 2);
    let error = store.version_named(&label("three")).unwrap_err();
    assert!(error.to_string().contains("three"), "{error}");
}

/// No commit in between, but tables were made and configured: no two versions share a number.
#[test]
fn versions_differ_in_number_where_tables_differ() {
    let place = SessionDir::simulated(1);
    let store = open_at(&place.disk(), &place.dir(), Durability::Group);
    let main = store.create_table(&name("main"), &config()).unwrap();
    let first = store.retain(None).unwrap();
    store.create_table(&name("other"), &config()).unwrap();
    let second = store.retain(Some(&label("second"))).unwrap();
    assert!(first < second);
    let larger = config().write_buffer(WriteBuffer::Entries(9));
    main.set_config(&larger).unwrap();
    let third = store.retain(None).unwrap();
    assert!(second < third);
    assert_eq!(store.version(first).unwrap().tables(), [name("main")]);
    let version = store.version_named(&label("second")).unwrap();
    assert_eq!(version.tables(), [name("main"), name("other")]);
    assert_eq!(*version.table(&name("main")).unwrap().config(), config());
    assert_eq!(*store.version(third).unwrap().table(&name("main")).unwrap().config(), larger);
    store.roll_back(first).unwrap();
    assert_eq!(store.tables().unwrap().len(), 1);
}

/// A process that writes puts what it applies of a long WAL into runs; a reader has no file for
/// them.
#[test]
fn a_version_behind_more_of_the_log_than_stays_in_memory_is_opened_by_writers_and_readers() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let dir = Path::new("/store");
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Buffered);
    let options = options.log_bytes_max(1 << 30).checkpoint_thread(CheckpointThread::Caller);
    let store = Store::open(Arc::clone(&disk), dir, &options).unwrap();
    let table = store.create_table(&name("main"), &config()).unwrap();

    // No checkpoint comes between, so the version is based on the beginning of the log.
    let value = vec![7; 8 << 20]; // 144 MiB in all; 128 stay in memory
    for number in 0..18_u8 {
        drop(table.insert(&[number], &value).unwrap());
    }
    let number = store.retain(None).unwrap();

    let check = |table: &Table| {
        for number in 0..18_u8 {
            assert_eq!(table.get(&[number]).unwrap().value(), Some(&value[..]), "{number}");
        }
    };
    let written = store.version(number).unwrap().table(&name("main")).unwrap();
    assert!(written.stats().merge_debt_pages > 0, "a flush of what was applied is due");
    check(&written);
    drop(written);

    let reader = StoreReader::open(Arc::clone(&disk), dir, &ReaderOptions::default()).unwrap();
    let read = reader.version(number).unwrap().table(&name("main")).unwrap();
    assert_eq!(read.stats().merge_debt_pages, 0, "a reader has memory alone");
    check(&read);
    store.close().unwrap();
}

fn back_up(store: &Store, dir: &Path) -> Result<BackupReport> {
    store.back_up(&BackupPlace::new(dir), &mut |done, total| assert!(done <= total))
}

#[test]
fn a_backup_is_the_store_as_of_a_commit_and_brings_only_what_is_new() {
    for_each_seed("backup of a store", by_effort(1, 3), |rng, _| {
        for place in SessionDir::both() {
            let disk = place.disk();
            let dir = place.dir();
            let there: PathBuf = dir.with_extension("backup");
            let store = open_at(&disk, &dir, Durability::Group);
            let mut model = State::new();
            for table in NAMES {
                store.create_table(&name(table), &config()).unwrap();
                model.insert(table.to_owned(), Content::new());
            }
            let mut snapshots: BTreeMap<String, Content> = BTreeMap::new();
            let mut versions: BTreeMap<u64, State> = BTreeMap::new();
            for round in 0..6 {
                (0..40).for_each(|_| put(&store, rng, &mut model));
                let saved = store.table(&name("main")).unwrap();
                let text = format!("round-{round}");
                saved.save_snapshot(&label(&text), "label").unwrap();
                snapshots.insert(text, model["main"].clone());
                if round > 2 {
                    let old = format!("round-{}", round - 3);
                    store.session().delete_snapshot(&label(&old)).unwrap();
                    snapshots.remove(&old);
                }
                versions.insert(store.retain(None).unwrap(), model.clone());
                if versions.len() > 2 {
                    let (number, _) = versions.pop_first().unwrap();
                    store.release(number).unwrap();
                }
                put(&store, rng, &mut model);
                let from_reader = rng.chance(1, 2);
                let report = if from_reader {
                    store.sync().unwrap();
                    let options = ReaderOptions::default();
                    let mut reader = StoreReader::open(Arc::clone(&disk), &dir, &options).unwrap();
                    reader.back_up(&BackupPlace::new(&there), &mut |_, _| {}).unwrap()
                } else {
                    back_up(&store, &there).unwrap()
                };
                assert_eq!(report.commit, store.last_commit());
                assert_eq!((report.tables, report.versions), (3, versions.len() as u64));
                assert_eq!(report.snapshots, snapshots.len() as u64);
                if !from_reader {
                    // Nothing has changed since, whoever makes it.
                    let options = ReaderOptions::default();
                    let again = if rng.chance(1, 2) {
                        back_up(&store, &there).unwrap()
                    } else {
                        let mut reader =
                            StoreReader::open(Arc::clone(&disk), &dir, &options).unwrap();
                        reader.back_up(&BackupPlace::new(&there), &mut |_, _| {}).unwrap()
                    };
                    assert_eq!((again.files_copied, again.bytes_copied), (0, 0));
                    assert!(again.files_shared > 0);
                }
                let (commit, found) = state_of_reader(&disk, &there);
                assert_eq!(commit, store.last_commit());
                assert!(found == model, "round {round}");
                let options = ReaderOptions::default();
                let copy = StoreReader::open(Arc::clone(&disk), &there, &options).unwrap();
                for (number, old) in &versions {
                    assert!(state_of_version(&copy.version(*number).unwrap()) == *old);
                }
                let names = copy.session().list_snapshots().unwrap();
                assert!(names.iter().map(SnapshotName::as_str).eq(snapshots.keys()));
                for (text, old) in &snapshots {
                    let table = copy.session().open_snapshot(&label(text), "label").unwrap();
                    assert!(content(&table) == *old);
                }
                drop(copy);
                let report = terrane_lsm::verify::verify(&disk, &there, &mut |_, _| {}).unwrap();
                assert!(report.problems.is_empty(), "{report:?}");
                assert!(report.notes.iter().all(|note| note.contains("lost+found")), "{report:?}");
            }
            store.close().unwrap();

            // It is a store, and once it has been committed to, one of its own.
            let copy = open_at(&disk, &there, Durability::Group);
            assert!(state(&copy) == model);
            copy.table(&name("main")).unwrap().insert(b"own", b"").unwrap().wait().unwrap();
            copy.close().unwrap();
            let store = open_at(&disk, &dir, Durability::Group);
            let error = back_up(&store, &there).unwrap_err();
            assert!(matches!(error, Error::NotABackup { .. }), "{error}");
            assert_eq!(state_of_reader(&disk, &there).1["main"][&b"own"[..]], b"");
        }
    });
}

/// A snapshot saved again under its name shares runs with the one before, which only that one
/// pinned in the backup; of a table with everything that a table can have.
#[test]
fn snapshots_saved_again_or_renamed_are_whole_in_the_backup() {
    let place = SessionDir::simulated(1);
    let (disk, dir, there) = (place.disk(), place.dir(), Path::new("/backup"));
    let store = open_at(&disk, &dir, Durability::Group);
    let resolve = MergeOperator::concatenate();

    let config = TableConfig::default().merge_operator(resolve).memory_budget(1 << 20);
    let session = store.session();
    let table = |from: u8| {
        let mut table = session.new_table(&config).unwrap();
        for key in from..from + 60 {
            table.insert_with_blob(&[key], b"v", &[key; 300]).unwrap();
            table.upsert(&[key / 2], b"u").unwrap();
        }
        table
    };

    let mut united = session.incremental_union(&[&table(0), &table(100)]).unwrap();
    united.supply_union_credits(40).unwrap();
    let [saved, renamed] = ["saved", "renamed"].map(label);

    let check = |table: &Table| {
        back_up(&store, there).unwrap();
        let report = terrane_lsm::verify::verify(&disk, there, &mut |_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
        assert!(report.notes.iter().all(|note| note.contains("lost+found")), "{report:?}");
        let options = ReaderOptions::default();
        let copy = StoreReader::open(Arc::clone(&disk), there, &options).unwrap();
        let names = copy.session().list_snapshots().unwrap();
        assert_eq!(names.len(), 1);
        let copied = copy.session().open_snapshot(&names[0], "").unwrap();
        assert!(content(&copied) == content(table));
        let found = copied.get_many(&(150..160_u8).map(|key| [key]).collect::<Vec<_>>()).unwrap();
        let refs: Vec<_> = found.iter().map(|found| found.blob().unwrap().clone()).collect();
        let blobs = copy.session().retrieve_blobs(&refs).unwrap();
        assert!(blobs.iter().zip(150..).all(|(blob, key)| *blob == [key; 300]));
    };

    united.save_snapshot(&saved, "").unwrap();
    check(&united);

    // Saved again, with most runs as before.
    session.delete_snapshot(&saved).unwrap();
    united.insert(&[250], b"more").unwrap();
    united.save_snapshot(&saved, "").unwrap();
    check(&united);
    session.rename_snapshot(&saved, &renamed).unwrap();
    let again = back_up(&store, there).unwrap();
    assert_eq!((again.files_copied, again.snapshots), (0, 1), "a renamed one is there already");
    check(&united);
}

#[test]
fn other_directories_are_not_taken_for_a_backup() {
    let place = SessionDir::simulated(1);
    let disk = place.disk();
    let dir = place.dir();
    let store = open_at(&disk, &dir, Durability::Group);
    let table = store.create_table(&name("main"), &config()).unwrap();
    drop(table.insert(b"k", b"v").unwrap());

    let refused = |there: &str| {
        let error = back_up(&store, Path::new(there)).unwrap_err();
        assert!(matches!(error, Error::NotABackup { .. }), "{there}: {error}");
    };

    disk.create_dir(Path::new("/foreign")).unwrap();
    disk.create_dir(Path::new("/foreign/something")).unwrap();
    refused("/foreign");

    // A store of its own salt, and one to which snapshots were exported.
    let options = StoreOptions::default().session(SessionOptions::with_salt(1).create_dir());
    Store::open(Arc::clone(&disk), Path::new("/other"), &options).unwrap().close().unwrap();
    refused("/other");
    table.save_snapshot(&label("s"), "").unwrap();
    store.session().export_snapshot(&label("s"), "/exported").unwrap();
    refused("/exported");

    // The store itself is in use.
    let error = back_up(&store, &dir).unwrap_err();
    assert!(matches!(error, Error::SessionDirLocked { .. }), "{error}");

    // A backup that is ahead: the store was put back to an earlier state.
    let earlier = Path::new("/earlier");
    back_up(&store, earlier).unwrap();
    let restored = open_at(&disk, earlier, Durability::Group);
    drop(table.insert(b"k", b"w").unwrap());
    back_up(&store, Path::new("/backup")).unwrap();
    let error = back_up(&restored, Path::new("/backup")).unwrap_err();
    assert!(error.to_string().contains("commit 2"), "{error}");
}

/// Retaining wrote the whole write buffer and both manifests anew: 2.4 MiB for a commit of nine
/// bytes, and 5 GB for a version after each of 2,160 blocks. What a version needs is in the log
/// already, so retaining must add next to nothing to what is written, and keep hardly more than the
/// updates in between. One tenth of those blocks, with a log and a write buffer of a tenth of the
/// ordinary size.
#[test]
fn a_version_of_each_block_costs_little_more_than_its_updates() {
    const BLOCKS: u64 = 216;
    const UPDATES: u64 = 512;

    let dir = Path::new("/store");
    let run = |is_retained: bool| {
        let disk = CountedDisk::new(MemoryDisk::new());
        let shared = Arc::clone(&disk) as Arc<dyn Disk>;
        let options = StoreOptions::default().session(SessionOptions::with_salt(SALT).create_dir());
        let options = options.log_bytes_max((64 << 20) / 10).durability(Durability::Group);
        let store = Store::open(Arc::clone(&shared), dir, &options).unwrap();
        let write_buffer = WriteBuffer::Bytes((4 << 20) / 10);
        let config = TableConfig::default().write_buffer(write_buffer);
        let table = store.create_table(&name("main"), &config).unwrap();
        let mut keys = ChaCha8Rng::seed_from_u64(7);
        let mut bytes = 0;
        let mut numbers = Vec::new();
        for block in 0..BLOCKS {
            let value = [block as u8; 60];
            let entries: Vec<_> = (0..UPDATES).map(|_| keys.bytes(34)).collect();
            let batch: Vec<_> = entries.iter().map(|key| (key, Update::Insert(&value))).collect();
            bytes += UPDATES * (34 + 60);
            table.write_batch(&batch).unwrap().wait().unwrap();
            if is_retained {
                numbers.push(store.retain(None).unwrap());
            }
        }
        (store, disk.counts().write_bytes, stored_bytes(&*shared, dir), bytes, numbers)
    };

    let (_plain, plain_written, plain_stored, ..) = run(false);
    let (store, written, stored, bytes, numbers) = run(true);

    let kept = stored.saturating_sub(plain_stored);
    assert!(10 * kept <= 13 * bytes, "{kept} bytes kept for {bytes} bytes of updates");
    assert!(written <= 2 * plain_written, "{written} instead of {plain_written} bytes written");

    for at in [0, BLOCKS / 2, BLOCKS - 1] {
        let version = store.version(numbers[at as usize]).unwrap();
        let table = version.table(&name("main")).unwrap();
        assert_eq!(table.count_exact().unwrap(), (at + 1) * UPDATES);
    }

    for number in &numbers[..numbers.len() - 1] {
        store.release(*number).unwrap();
    }
    assert_eq!(store.roll_back(numbers[numbers.len() - 1]).unwrap(), BLOCKS + 1);
}

/// Bytes of all files below a directory.
fn stored_bytes(disk: &dyn Disk, dir: &Path) -> u64 {
    let mut sum = 0;
    for entry in disk.list(dir).unwrap() {
        let path = dir.join(&entry.name);
        sum += match entry.kind {
            EntryKind::Directory => stored_bytes(disk, &path),
            _ => disk.open(&path, OpenMode::Read, Access::Buffered).unwrap().len().unwrap(),
        };
    }
    sum
}

/// The log that versions need stays while checkpoints recycle the rest, and goes with the last
/// version; so do the runs of their bases. Reopened now and then, as no base lasts longer than the
/// process that made it.
#[test]
fn what_versions_need_stays_and_goes_with_them() {
    let disk: Arc<dyn Disk> = SimDisk::new(5);
    let dir = Path::new("/store");
    let mut store = open_at(&disk, dir, Durability::Group);
    store.create_table(&name("main"), &config()).unwrap();
    let segments = || disk.list(&dir.join("log")).unwrap().len();

    let mut kept: BTreeMap<u64, Content> = BTreeMap::new();
    let mut model = Content::new();
    for block in 0..90_u64 {
        let table = store.table(&name("main")).unwrap();
        for entry in 0..6 {
            let key = vec![(block * 7 + entry) as u8];
            let value = vec![block as u8; 500];
            drop(table.insert(&key, &value).unwrap());
            model.insert(key, value);
        }

        if block % 3 == 0 || block > 60 {
            kept.insert(store.retain(None).unwrap(), model.clone());
        }

        if block % 17 == 5 {
            let at = block as usize % kept.len();
            let number = *kept.keys().nth(at).unwrap();
            store.release(number).unwrap();
            kept.remove(&number);
        }

        if block % 29 == 11 {
            drop(table);
            store.close().unwrap();
            store = open_at(&disk, dir, Durability::Group);
        }
    }

    let report = terrane_lsm::verify::verify;
    for (number, expected) in &kept {
        let version = store.version(*number).unwrap();
        assert!(content(&version.table(&name("main")).unwrap()) == *expected, "version {number}");
    }

    for number in kept.keys() {
        store.release(*number).unwrap();
    }
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    assert!(segments() <= 6, "{} segments", segments());
    store.close().unwrap();
    let report = report(&disk, dir, &mut |_, _| {}).unwrap();
    assert!(report.problems.is_empty() && report.notes.is_empty(), "{report:?}");
}

/// Operation on a store with two retained versions.
#[derive(Debug, Clone, Copy)]
enum Act {
    Retain,
    Release,
    RollBack,
    BackUp,
    BackUpByReader,
}

const ACTS: [Act; 5] = [Act::Retain, Act::Release, Act::RollBack, Act::BackUp, Act::BackUpByReader];

/// Distance between the calls that one seed tries; acts of few calls have all of them tried.
const CALLS_SKIPPED: u64 = 13;

impl Act {
    fn calls_skipped(self) -> u64 {
        if matches!(self, Self::Retain | Self::Release) { 1 } else { CALLS_SKIPPED }
    }
}

/// Directory of the backup.
const BACKUP: &str = "/backup";

struct Scene {
    disk: Arc<SimDisk>,
    store: Store,
    /// The versions, and the present.
    states: Vec<(u64, State)>,
    backup: State,
}

fn scene(act: Act) -> Scene {
    let disk = SimDisk::new(7);
    let shared = Arc::clone(&disk) as Arc<dyn Disk>;
    let store = open_at(&shared, Path::new("/store"), Durability::Each);
    let rng = &mut ChaCha8Rng::seed_from_u64(3);
    let mut model = State::new();
    let mut states = Vec::new();

    for table in ["main", "other"] {
        store.create_table(&name(table), &config()).unwrap();
        model.insert(table.to_owned(), Content::new());
    }

    for _ in 0..2 {
        (0..12).for_each(|_| put(&store, rng, &mut model));
        states.push((store.retain(None).unwrap(), model.clone()));
    }

    let backup = model.clone();
    if matches!(act, Act::BackUp | Act::BackUpByReader) {
        back_up(&store, Path::new(BACKUP)).unwrap();
    }
    (0..12).for_each(|_| put(&store, rng, &mut model));
    let saved = store.table(&name("main")).unwrap();
    saved.save_snapshot(&label("saved"), "label").unwrap();
    states.push((store.last_commit(), model));
    Scene { disk, store, states, backup }
}

impl Scene {
    fn act(&self, act: Act) -> Result<()> {
        let oldest = self.states[0].0;
        match act {
            Act::Retain => self.store.retain(Some(&label("new"))).map(drop),
            Act::Release => self.store.release(oldest),
            Act::RollBack => self.store.roll_back(oldest).map(drop),
            Act::BackUp => back_up(&self.store, Path::new(BACKUP)).map(drop),
            Act::BackUpByReader => {
                let disk = Arc::clone(&self.disk) as Arc<dyn Disk>;
                let options = ReaderOptions::default();
                let mut reader = StoreReader::open(disk, Path::new("/store"), &options)?;
                reader.back_up(&BackupPlace::new(BACKUP), &mut |_, _| {}).map(drop)
            }
        }
    }

    /// Checks the content of the open store after the act.
    fn check_here(&self, act: Act, is_done: bool) {
        let (oldest, first) = &self.states[0];
        let (commit, present) = &self.states[2];
        let is_back = is_done && matches!(act, Act::RollBack);
        let (commit, expected) = if is_back { (commit + 1, first) } else { (*commit, present) };
        assert!(state(&self.store) == *expected, "{act:?}");
        assert_eq!(self.store.last_commit(), commit);
        let numbers: Vec<u64> =
            self.store.versions().unwrap().into_iter().map(|info| info.number).collect();
        assert_eq!(numbers.contains(oldest), !(is_done && matches!(act, Act::Release)));
    }

    /// Checks that a disk holds the state before the act or the state after it.
    fn check(&self, disk: &Arc<dyn Disk>, act: Act, is_done: bool) {
        let store = open_at(disk, Path::new("/store"), Durability::Each);
        let found = state(&store);
        let [(oldest, first), (newer, second), (_, present)] = self.states.as_slice() else {
            panic!("three states")
        };
        let is_back = matches!(act, Act::RollBack) && found == *first;
        assert!(is_back || (found == *present && !(is_done && matches!(act, Act::RollBack))));

        // One number, one state, whoever looks.
        let commit = self.states[2].0 + u64::from(is_back);
        assert_eq!(store.last_commit(), commit);
        assert!(state_of_reader(disk, Path::new("/store")) == (commit, found.clone()));

        let versions: Vec<u64> =
            store.versions().unwrap().into_iter().map(|info| info.number).collect();
        let mut before = vec![*oldest, *newer];
        match act {
            Act::Retain if is_done || versions.len() == 3 => before.push(self.states[2].0),
            Act::Release if is_done || versions.len() == 1 => drop(before.remove(0)),
            _ => {}
        }

        assert_eq!(versions, before, "{act:?}");
        for (number, expected) in self.states.iter().filter(|(number, _)| versions.contains(number))
        {
            assert!(state_of_version(&store.version(*number).unwrap()) == *expected);
        }

        assert!(state_of_version(&store.version(*newer).unwrap()) == *second);

        // It goes on.
        drop(store.table(&name("main")).unwrap().insert(b"more", b"").unwrap());
        store.close().unwrap();
        if matches!(act, Act::BackUp | Act::BackUpByReader) {
            let (_, found) = state_of_reader(disk, Path::new(BACKUP));
            assert!(found == *present || (found == self.backup && !is_done), "{act:?}");
            let dir = Path::new(BACKUP);
            let report = terrane_lsm::verify::verify(disk, dir, &mut |_, _| {}).unwrap();
            assert!(report.problems.is_empty(), "{report:?}");
            // And is renewed all the same.
            let store = open_at(disk, Path::new("/store"), Durability::Each);
            back_up(&store, dir).unwrap();
            assert!(state_of_reader(disk, dir).1 == state(&store));
        }
    }
}

#[test]
fn a_crash_at_any_call_leaves_the_state_before_or_after() {
    for_each_seed("crash of versions", 1, |rng, _| {
        for act in ACTS {
            // Other calls with every seed.
            let skipped = act.calls_skipped() * by_effort(2, 1);
            for call in (1 + rng.below(skipped)..).step_by(skipped as usize) {
                let scene = scene(act);
                let base = scene.disk.calls();
                scene.disk.set_plan(FaultPlan::crash_at(base + call));
                let done = scene.act(act);
                if !scene.disk.has_crashed() {
                    done.unwrap();
                    let disk = scene.disk.process_kill() as Arc<dyn Disk>;
                    scene.check(&disk, act, true);
                    break;
                }
                for survival in
                    [Survival::Nothing, Survival::Everything, Survival::Random(rng.below(1 << 40))]
                {
                    let disk = scene.disk.after_crash(survival) as Arc<dyn Disk>;
                    scene.check(&disk, act, false);
                }
                let disk = scene.disk.process_kill() as Arc<dyn Disk>;
                scene.check(&disk, act, false);
            }
        }
    });
}

#[test]
fn a_fault_at_any_call_is_reported_and_changes_nothing_or_all() {
    for_each_seed("faults of versions", 1, |rng, _| {
        for act in ACTS {
            for kind in
                [FaultKind::Eio, FaultKind::Enospc, FaultKind::FailedSync, FaultKind::TornWrite]
            {
                for repeat in [Repeat::Once, Repeat::Forever] {
                    let skipped = act.calls_skipped() * by_effort(11, 5);
                    for call in (1 + rng.below(skipped)..).step_by(skipped as usize) {
                        let scene = scene(act);
                        let base = scene.disk.calls();
                        scene.disk.set_plan(FaultPlan::fail(base + call, kind, repeat));
                        let done = scene.act(act);
                        let is_over = scene.disk.calls() < base + call;
                        scene.disk.set_plan(FaultPlan::default());
                        if let Err(error) = &done {
                            assert!(!is_over, "{act:?}: {error}");
                        }
                        // What it says it did.
                        scene.check_here(act, done.is_ok());
                        let disk = scene.disk.process_kill() as Arc<dyn Disk>;
                        scene.check(&disk, act, done.is_ok());
                        if is_over {
                            break;
                        }
                    }
                }
            }
        }
    });
}
