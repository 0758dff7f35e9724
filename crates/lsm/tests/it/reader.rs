//! Readers of a store that another handle, or another process, writes.
//!
//! Goal: a view is the state of all tables after one commit, not older than the last durable commit
//! when the reader refreshed; no file that a reader uses is removed; and the writer is never
//! refused.
//!
//! Method: on both disks readers and a writer take random turns, on small files that compactions
//! replace all the time, and each view, kept views included, is compared with the model of its
//! commit. Then
//! real processes: a writer and readers that are killed at random, see [`processes`]. Commit n
//! follows from n alone, as in [`crate::kill`].

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use terrane_io::Disk;
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_lsm::{
    CheckpointThread, Durability, Error, Lookup, MergeOperator, NamedTable, ReaderOptions, Session,
    SessionOptions, SnapshotName, Store, StoreOptions, StoreReader, Table, TableConfig, TableName,
    Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::script::updates;
use crate::{FEW_OPEN_FILES, SALT, SessionDir};

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn name(text: &str) -> TableName {
    TableName::new(text).unwrap()
}

fn options(durability: Durability) -> StoreOptions {
    let session = SessionOptions::with_salt(SALT).create_dir().open_files_max(FEW_OPEN_FILES);
    let options = StoreOptions::default().session(session).durability(durability);
    options.log_bytes_max(64 << 10).checkpoint_thread(CheckpointThread::Caller)
}

fn config() -> TableConfig {
    TableConfig::default().write_buffer(WriteBuffer::Entries(8))
}

fn reader(place: &SessionDir) -> StoreReader {
    let options = ReaderOptions::default().open_files_max(FEW_OPEN_FILES);
    StoreReader::open(place.disk(), &place.dir(), &options).unwrap()
}

fn content(table: &Table) -> Content {
    let mut cursor = table.cursor().unwrap();
    let records = cursor.next_many(usize::MAX).unwrap();
    records.into_iter().map(|record| (record.key, record.value.into_vec())).collect()
}

/// The tables of a view.
fn contents(reader: &StoreReader) -> BTreeMap<String, Content> {
    let table = |name: &TableName| content(&reader.table(name).unwrap());
    reader.tables().iter().map(|info| (info.name.to_string(), table(&info.name))).collect()
}

fn put(table: &NamedTable, rng: &mut ChaCha8Rng, model: &mut Content) {
    let mut batch = Vec::new();
    if rng.chance(1, 6) {
        let from = rng.below(60) as u8;
        let end = from + rng.below(20) as u8;
        model.retain(|key, _| !(from..end).contains(&key[0]));
        drop(table.delete_range(&[from][..]..&[end][..]).unwrap());
        return;
    }

    for _ in 0..=rng.index(12) {
        let key = (rng.below(60) as u8).to_le_bytes().to_vec();
        let value_len = rng.index(300);
        let value = (!rng.chance(1, 3)).then(|| rng.bytes(value_len));
        match &value {
            Some(value) => drop(model.insert(key.clone(), value.clone())),
            None => drop(model.remove(&key)),
        }
        batch.push((key, value));
    }

    let updates = updates(&batch);
    drop(table.write_batch(&updates).unwrap());
}

#[test]
fn views_are_what_a_commit_left_whatever_the_writer_does() {
    for_each_seed("reader", by_effort(1, 3), |rng, _| {
        for place in SessionDir::both() {
            let durability = [Durability::Group, Durability::Each, Durability::None];
            let durability = durability[rng.index(3)];
            let open = || Store::open(place.disk(), &place.dir(), &options(durability)).unwrap();
            let mut store = open();
            let mut model = BTreeMap::from([("main".to_owned(), Content::new())]);
            let mut table = store.create_table(&name("main"), &config()).unwrap();
            // By commit; a change of the tables' names counts for the commit that was the last one
            // then.
            let mut history = BTreeMap::from([(0, vec![model.clone()])]);
            let mut readers = vec![reader(&place)];
            let mut kept: Vec<(Arc<Table>, Content)> = Vec::new();
            for _ in 0..250 {
                match rng.below(40) {
                    0..20 => put(&table, rng, model.get_mut("main").unwrap()),
                    20 => store.checkpoint().unwrap(),
                    21 => {
                        let other = name("other");
                        if model.remove("other").is_some() {
                            store.drop_table(&other).unwrap();
                        } else {
                            let other = store.create_table(&other, &config()).unwrap();
                            model.insert("other".to_owned(), Content::new());
                            history.entry(store.last_commit()).or_default().push(model.clone());
                            put(&other, rng, model.entry("other".to_owned()).or_default());
                        }
                    }
                    22 if readers.len() < 8 => readers.push(reader(&place)),
                    23 if readers.len() > 1 => {
                        let at = rng.index(readers.len());
                        drop(readers.swap_remove(at));
                    }
                    24 => {
                        drop(table);
                        if durability == Durability::None {
                            store.checkpoint().unwrap();
                        }
                        if rng.chance(1, 2) {
                            store.close().unwrap();
                        }
                        drop(store);
                        store = open();
                        table = store.table(&name("main")).unwrap();
                    }
                    25 => kept.clear(),
                    _ => {
                        let at = rng.index(readers.len());
                        let reader = &mut readers[at];
                        let durable = store.durable_commit();
                        let commit = reader.refresh().unwrap();
                        assert!(commit >= durable, "{commit} after {durable} was durable");
                        assert_eq!(reader.last_commit(), commit);
                        let found = contents(reader);
                        assert!(history[&commit].contains(&found), "after commit {commit}");
                        let main = reader.table(&name("main")).unwrap();
                        kept.push((main, found["main"].clone()));
                    }
                }
                history.entry(store.last_commit()).or_default().push(model.clone());
                if !kept.is_empty() {
                    let (table, expected) = &kept[rng.index(kept.len())];
                    assert_eq!(content(table), *expected, "a table that was kept");
                }
            }
            for reader in &mut readers {
                store.sync().unwrap();
                assert_eq!(reader.refresh().unwrap(), store.last_commit());
                assert_eq!(contents(reader), model);
            }
            // With the readers goes what only they needed.
            drop((readers, kept, table));
            store.close().unwrap();
            let report =
                terrane_lsm::verify::verify(&place.disk(), &place.dir(), &mut |_, _| {}).unwrap();
            assert!(report.problems.is_empty(), "{report:?}");
            assert!(report.notes.iter().all(|note| note.contains("lost+found")), "{report:?}");
        }
    });
}

/// A reader keeps what it uses over everything that a writer may do, its death included.
#[test]
fn a_writer_that_opens_the_store_keeps_what_readers_use() {
    for place in SessionDir::both() {
        let open = || Store::open(place.disk(), &place.dir(), &options(Durability::Group)).unwrap();
        let store = open();
        let mut model = Content::new();
        let table = store.create_table(&name("main"), &config()).unwrap();
        let rng = &mut ChaCha8Rng::seed_from_u64(1);
        (0..100).for_each(|_| put(&table, rng, &mut model));
        store.checkpoint().unwrap();
        let reader = reader(&place);
        let old = model.clone();

        let runs = |place: &SessionDir| {
            let active = place.disk().list(&place.dir().join("active")).unwrap();
            active.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
        };

        let leased = runs(&place);
        drop((table, store));
        for _ in 0..3 {
            let store = open();
            let table = store.table(&name("main")).unwrap();
            (0..100).for_each(|_| put(&table, rng, &mut model));
            store.drop_table(&name("main")).unwrap();
            drop(table);
            store.create_table(&name("main"), &config()).unwrap();
            model.clear();
            store.close().unwrap();
            let view = reader.table(&name("main")).unwrap();
            assert_eq!(content(&view), old);
        }

        let kept = runs(&place);
        assert!(leased.iter().any(|name| kept.contains(name)), "{leased:?}, {kept:?}");
        drop(reader);
        drop(open());
        let left = runs(&place);
        assert!(!leased.iter().any(|name| left.contains(name)), "{leased:?}, {left:?}");
    }
}

#[test]
fn snapshots_are_read_beside_a_writer_that_deletes_them() {
    for place in SessionDir::both() {
        let session = Session::open(
            place.disk(),
            &place.dir(),
            &SessionOptions::with_salt(SALT).create_dir(),
        );

        let session = session.unwrap();
        let mut table = session.new_table(&config()).unwrap();
        let saved = SnapshotName::new("saved").unwrap();

        for number in 0..100_u64 {
            table.insert(&number.to_le_bytes(), b"value").unwrap();
        }
        table.insert_with_blob(b"k", b"v", b"blob").unwrap();
        table.save_snapshot(&saved, "label").unwrap();
        drop(table);

        // A session that never had a named table.
        let reader = reader(&place);
        assert!(reader.tables().is_empty());
        assert_eq!(reader.session().list_snapshots().unwrap(), std::slice::from_ref(&saved));
        assert!(reader.session().snapshot_exists(&saved).unwrap());
        assert_eq!(reader.session().snapshot_info(&saved).unwrap().label, "label");
        let opened = reader.session().open_snapshot(&saved, "label").unwrap();
        session.delete_snapshot(&saved).unwrap();
        assert!(!reader.session().snapshot_exists(&saved).unwrap());
        let error = reader.session().open_snapshot(&saved, "label").unwrap_err();
        assert!(matches!(error, Error::SnapshotDoesNotExist { .. }), "{error}");

        // Of which nothing was in memory.
        for number in 0..100_u64 {
            assert!(opened.get(&number.to_le_bytes()).unwrap().is_found());
        }
        let Lookup::FoundWithBlob(_, blob) = opened.get(b"k").unwrap() else { panic!() };
        assert_eq!(reader.session().retrieve_blobs(&[blob]).unwrap(), [b"blob"]);
        drop(opened);
        session.close().unwrap();
    }
}

fn assert_send<T: Send + Sync>(_: &T) {}

#[test]
fn a_reader_changes_nothing() {
    let place = SessionDir::simulated(1);
    let store = Store::open(place.disk(), &place.dir(), &options(Durability::Group)).unwrap();
    let table = store.create_table(&name("main"), &config()).unwrap();
    drop(table.insert(b"k", b"v").unwrap());
    let reader = reader(&place);
    let table = reader.table(&name("main")).unwrap();
    let mut copy = table.fork().unwrap();

    let saved = SnapshotName::new("saved").unwrap();
    let session = reader.session();
    for refused in [
        copy.insert(b"k", b"w"),
        copy.delete_prefix(b"k"),
        copy.supply_union_credits(1).map(drop),
        copy.save_snapshot(&saved, ""),
        session.new_table(&config()).map(drop),
        session.delete_snapshot(&saved),
        session.rename_snapshot(&saved, &saved),
        session.import_snapshot("/elsewhere", &saved, &saved).map(drop),
        session.union(&[&copy]).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::ReadOnly { .. })), "{refused:?}");
    }

    assert_eq!(copy.get(b"k").unwrap().value(), Some(&b"v"[..]));
    session.close().unwrap();
    assert!(matches!(table.get(b"k"), Err(Error::SessionClosed)));
    assert_send(&reader);
}

#[test]
fn directories_that_cannot_be_read_are_refused() {
    for place in SessionDir::both() {
        let open = || {
            StoreReader::open(place.disk(), &place.dir(), &ReaderOptions::default()).unwrap_err()
        };
        assert!(matches!(open(), Error::SessionDirDoesNotExist { .. }));
        place.disk().create_dir(&place.dir()).unwrap();
        assert!(matches!(open(), Error::NotTerrane { .. }));
        assert!(place.disk().list(&place.dir()).unwrap().is_empty());
    }
}

/// One table that cannot be opened does not keep the others from being read.
#[test]
fn tables_are_refused_one_by_one() {
    let place = SessionDir::simulated(1);
    let resolve = MergeOperator::new("own", |newer, older| [older, newer].concat()).unwrap();
    let with = options(Durability::Group).merge_operator(resolve.clone());
    let store = Store::open(place.disk(), &place.dir(), &with).unwrap();
    let own = config().merge_operator(resolve.clone());

    let main = store.create_table(&name("main"), &config()).unwrap();
    let own = store.create_table(&name("own"), &own).unwrap();
    for number in 0..50_u8 {
        drop(main.insert(&[number], b"v").unwrap());
        drop(own.upsert(&[number % 5], &[number]).unwrap());
    }

    let without = reader(&place);
    assert_eq!(without.tables().len(), 1);
    assert_eq!(content(&without.table(&name("main")).unwrap()).len(), 50);
    let error = without.table(&name("own")).unwrap_err();
    assert!(matches!(error, Error::MergeOperatorMismatch { .. }), "{error}");
    let options = ReaderOptions::default().merge_operator(resolve);
    let with = StoreReader::open(place.disk(), &place.dir(), &options).unwrap();
    let value = with.table(&name("own")).unwrap().get(&[3]).unwrap();
    assert_eq!(value.value(), Some(&[3, 8, 13, 18, 23, 28, 33, 38, 43, 48][..]));
}

/// Whatever call of a refresh fails: the view stays, the writer does not notice, and the next
/// refresh is right.
#[test]
fn a_refresh_that_fails_leaves_the_view() {
    let mut call = 0;
    loop {
        let place = SessionDir::simulated(1);
        let SessionDir::Simulated { disk } = &place else { unreachable!() };
        let store = Store::open(place.disk(), &place.dir(), &options(Durability::Group)).unwrap();
        let mut model = Content::new();
        let rng = &mut ChaCha8Rng::seed_from_u64(call);
        let table = store.create_table(&name("main"), &config()).unwrap();
        put(&table, rng, &mut model);
        let mut reader = reader(&place);
        let old = model.clone();

        for _ in 0..60 {
            put(&table, rng, &mut model);
        }
        store.checkpoint().unwrap();
        put(&table, rng, &mut model);
        let kinds = [FaultKind::Eio, FaultKind::Enospc, FaultKind::Eagain];
        let kind = kinds[call as usize % kinds.len()];
        let before = disk.calls();
        disk.set_plan(FaultPlan::fail(before + 1 + call, kind, Repeat::Once));
        let refreshed = reader.refresh();
        disk.set_plan(FaultPlan::default());
        let took = disk.calls() - before;

        let view = content(&reader.table(&name("main")).unwrap());
        match refreshed {
            Ok(_) => assert_eq!(view, model),
            Err(error) => {
                assert!(matches!(error, Error::Disk(_)), "{error}");
                assert_eq!(view, old);
            }
        }

        put(&table, rng, &mut model);
        store.checkpoint().unwrap();
        reader.refresh().unwrap();
        assert_eq!(content(&reader.table(&name("main")).unwrap()), model);
        drop((reader, table));
        store.close().unwrap();

        if call > took {
            assert!(call > 20, "{call} calls");
            break;
        }

        call += 1;
    }
}

/// Names the store in a process of this test, and what the process is to do.
const CHILD: [&str; 2] = ["TERRANE_READERS_DIR", "TERRANE_READERS_ROLE"];

/// Seconds that the processes run; `cargo xtask readers` sets it.
const SECONDS: &str = "TERRANE_READERS_SECONDS";

const TEST: &str = "reader::processes_agree_when_they_are_killed_at_random";

/// File beside the store where the writer records its last durable commit, in 8 bytes.
fn durable_path(dir: &Path) -> PathBuf {
    dir.with_extension("durable")
}

/// Whether commit `number` is going back to the one before.
fn goes_back(number: u64) -> bool {
    number > 1 && number % 70 == 1
}

/// Updates of commit `number`: those of the writer of [`crate::kill`], on fewer keys.
fn batch(number: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let rng = &mut ChaCha8Rng::seed_from_u64(number);
    let len = 1 + rng.index(20);
    let update = |_| {
        let key = rng.below(5_000).to_le_bytes().to_vec();
        let value_len = rng.index(200);
        (key, (!rng.chance(1, 4)).then(|| rng.bytes(value_len)))
    };
    (0..len).map(update).collect()
}

/// Commits, makes and drops tables, and is killed.
fn write_until_killed(dir: &Path) {
    let options = StoreOptions::default().create_dir().log_bytes_max(1 << 20);
    let options = options.checkpoint_thread(CheckpointThread::Background);

    let store = Store::open_dir(dir, &options).unwrap();
    let config = TableConfig::default().write_buffer(WriteBuffer::Entries(500));
    let table = |text: &str| {
        let name = name(text);
        store.table(&name).or_else(|_| store.create_table(&name, &config)).unwrap()
    };

    let (main, sums) = (table("main"), table("sums"));
    let mut durable = std::fs::OpenOptions::new();
    let durable = durable.write(true).create(true).truncate(false).open(durable_path(dir)).unwrap();

    let mut out = std::io::stdout();
    let mut extra = store.table(&name("extra")).ok();
    for number in store.last_commit() + 1.. {
        if goes_back(number) {
            let present = store.retain(None).unwrap();
            assert_eq!((present, store.roll_back(present).unwrap()), (number - 1, number));
            store.release(present).unwrap();
            continue;
        }

        let batch = batch(number);
        let updates = updates(&batch);
        let last = number.to_le_bytes();
        let note = [(&b"last"[..], Update::Insert(&last))];
        let mut batches = vec![(&main, &updates[..]), (&sums, &note[..])];
        batches.extend(extra.as_ref().map(|extra| (extra, &note[..])));
        assert_eq!(store.commit(&batches).unwrap().commit(), number);

        if number % 100 == 0 {
            store.sync().unwrap();
            std::os::unix::fs::FileExt::write_all_at(&durable, &last, 0).unwrap();
            writeln!(out, "commits").unwrap();
        }

        if number % 300 == 0 {
            if extra.take().is_some() {
                store.drop_table(&name("extra")).unwrap();
            } else {
                extra = Some(table("extra"));
            }
        }
    }
}

/// Reads and compares, and is killed.
fn read_until_killed(dir: &Path) {
    let mut reader = StoreReader::open_dir(dir, &ReaderOptions::default()).unwrap();

    let mut model = Content::new();
    let mut known = 0;
    let mut out = std::io::stdout();
    for round in 0_u64.. {
        let durable = std::fs::read(durable_path(dir)).unwrap();
        let durable = durable.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let old = reader.table(&name("main")).unwrap();
        let commit = reader.refresh().unwrap();
        assert!(commit >= durable, "{commit}, and {durable} was durable");
        assert!(commit >= known, "{commit} after {known}");
        let main = reader.table(&name("main")).unwrap();

        for name in ["sums", "extra"].map(name) {
            // Over all tables the same commit, but for one that was made or dropped just then.
            let last = match reader.table(&name) {
                Err(Error::TableDoesNotExist { .. }) if name.as_str() == "extra" => None,
                table => {
                    let last = table.unwrap().get(b"last").unwrap();
                    last.value().map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
                }
            };
            let expected = commit - u64::from(goes_back(commit));
            assert!(last.is_none_or(|last| last == expected), "{name}: {last:?} of {commit}");
        }

        if round % 3 == 1 {
            // The view before is what it was.
            assert!(content(&old) == model, "after commit {known}, kept over {commit}");
        }

        for number in (known + 1..=commit).filter(|number| !goes_back(*number)) {
            for (key, value) in batch(number) {
                match value {
                    Some(value) => drop(model.insert(key, value)),
                    None => drop(model.remove(&key)),
                }
            }
        }

        known = commit;
        assert!(content(&main) == model, "after commit {commit}");
        writeln!(out, "reads").unwrap();
    }
}

/// A process of the test, and its number.
struct Process {
    child: Child,
    number: u64,
}

/// Message from a process: its number, and whether it has ended.
type ProcessEvent = (u64, bool);

fn start(dir: &Path, role: &str, number: u64, said: &Sender<ProcessEvent>) -> Process {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", TEST, "--nocapture"]);
    command.env(CHILD[0], dir).env(CHILD[1], role);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();

    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = said.clone();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if ["commits", "reads"].contains(&line.as_str()) {
                let _ = said.send((number, false));
            }
        }
        let _ = said.send((number, true));
    });

    Process { child, number }
}

/// Eight readers beside a writer that commits, flushes, merges, makes and drops tables; one of them
/// all is killed whenever the processes have said as much as the seed says, and is started again.
#[test]
fn processes_agree_when_they_are_killed_at_random() {
    if let [Ok(dir), Ok(role)] = CHILD.map(env::var) {
        match role.as_str() {
            "write" => write_until_killed(Path::new(&dir)),
            _ => read_until_killed(Path::new(&dir)),
        }
        return;
    }

    let seconds: Option<u64> = env::var(SECONDS).ok().map(|text| text.parse().unwrap());
    for_each_seed("readers", 1, |rng, _| {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("store");
        let (sender, said) = channel();
        let mut processes = vec![start(&dir, "write", 0, &sender)];
        // Until there is something to read.
        assert_eq!(said.recv().unwrap(), (0, false));
        for number in 1..=8 {
            processes.push(start(&dir, "read", number, &sender));
        }
        let clock = terrane_io::RealDisk::auto();
        let begun = clock.clock().monotonic();
        let (mut next_number, mut kills, mut reads, mut commits) = (9, 0, 0_u64, 0_u64);
        let mut goes_on = true;
        while goes_on {
            for _ in 0..=rng.index(40) {
                let (number, has_ended) = said.recv().unwrap();
                let of = processes.iter().position(|process| process.number == number);
                // Of those that were killed the end is expected.
                let Some(at) = of else { continue };
                assert!(!has_ended, "process {at} of {} has failed", processes.len());
                if at == 0 { commits += 100 } else { reads += 1 }
            }
            let at = rng.index(processes.len());
            let role = if at == 0 { "write" } else { "read" };
            processes[at].child.kill().unwrap();
            processes[at].child.wait().unwrap();
            processes[at] = start(&dir, role, next_number, &sender);
            next_number += 1;
            kills += 1;
            let elapsed = clock.clock().monotonic().saturating_sub(begun).as_secs();
            goes_on = seconds.map_or(kills < 8, |seconds| elapsed < seconds);
        }
        eprintln!("{kills} kills, {reads} views checked, {commits} commits or more");
        for mut process in processes {
            process.child.kill().unwrap();
            process.child.wait().unwrap();
        }
        let store = Store::open_dir(&dir, &StoreOptions::default()).unwrap();
        store.close().unwrap();
        let disk: Arc<dyn Disk> = terrane_io::RealDisk::auto();
        let report = terrane_lsm::verify::verify(&disk, &dir, &mut |_, _| {}).unwrap();
        // A writer that was killed between the two copies of the manifest may have left one behind,
        // which is a note.
        assert!(report.problems.is_empty(), "{report:?}");
    });
}
