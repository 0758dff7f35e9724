//! The back-ends over Terrane's own engines.
//!
//! Goal: both keep the rules of every back-end, on each kind of disk and with buffers so small that
//! all parts of the engines are at work; after a loss of power or a killed process at any call of
//! the disk there are whole commits only, and as many as the guarantee says; a full disk changes
//! nothing and passes; after a failed sync nothing is written.
//!
//! Method: the conformance suite; a script of commits run with a crash or a fault at call n, for
//! every n, and what is left opened, compared with the states between the commits, and used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use terrane_backends::{BtreeDatabase, BtreeOptions, LsmDatabase, LsmOptions};
use terrane_io::{Disk, MemoryDisk, RealDisk, SimDisk};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_kv::conformance::{Extent, Subject, check};
use terrane_kv::{Database, Durability, Error, PowerLoss, Reader, Receipt, Result, Table, Writer};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::{by_effort, places};
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Sweep};

const DIR: &str = "/store";

/// The engines under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lsm,
    Btree,
}

/// How much memory they get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// The default.
    Default,
    /// The least, so that updates reach runs and leaves at once.
    Least,
}

#[derive(Debug, Clone, Copy)]
struct Opening {
    kind: Kind,
    memory: Memory,
    durability: Durability,
}

impl Opening {
    fn open(self, disk: &Arc<dyn Disk>, dir: &Path, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        let is_least = self.memory == Memory::Least;
        let disk = disk.clone();
        Ok(match self.kind {
            Kind::Lsm => {
                let mut options = LsmOptions::default().durability(self.durability).salt(7);
                if is_least {
                    options.write_buffer_bytes = Some(2_000);
                    options.shared_memory_bytes = Some(1 << 20);
                    options.log_bytes_max = Some(64 << 10);
                }
                Arc::new(LsmDatabase::open(disk, dir, indexes, &options)?)
            }
            Kind::Btree => {
                let mut options = BtreeOptions::default().durability(self.durability);
                if is_least {
                    options.memory_bytes = 1 << 20;
                    options.buffer_bytes = Some(2_000);
                    options.log_bytes_max = 64 << 10;
                }
                Arc::new(BtreeDatabase::open(disk, dir, indexes, &options)?)
            }
        })
    }
}

const KINDS: [Kind; 2] = [Kind::Lsm, Kind::Btree];

struct OnDisk {
    opening: Opening,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    count: u32,
}

impl OnDisk {
    fn place(&self) -> PathBuf {
        self.dir.join(self.count.to_string())
    }
}

impl Subject for OnDisk {
    fn fresh(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        self.count += 1;
        self.opening.open(&self.disk, &self.place(), indexes)
    }

    fn reopen(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        self.opening.open(&self.disk, &self.place(), indexes)
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

fn keeps_the_rules(opening: Opening, disk: Arc<dyn Disk>, dir: &Path, extent: &Extent) {
    let mut subject = OnDisk { opening, disk, dir: dir.to_owned(), count: 0 };
    if let Err(failure) = check(&mut subject, extent) {
        panic!("{opening:?}: {failure} {:?}", failure.source);
    }
}

#[test]
fn both_keep_the_rules_in_memory() {
    for kind in KINDS {
        let opening = Opening { kind, memory: Memory::Default, durability: Durability::Buffered };
        let extent = by_effort(Extent::small(1), Extent::default());
        keeps_the_rules(opening, MemoryDisk::new(), Path::new("/"), &extent);
    }
}

#[test]
fn both_keep_the_rules_on_the_real_disk() {
    let all = [Durability::Buffered, Durability::Group, Durability::None, Durability::Each];
    for (number, kind) in KINDS.into_iter().enumerate() {
        for &durability in by_effort(&all[number..=number], &all) {
            let place = tempfile::tempdir().unwrap();
            let opening = Opening { kind, memory: Memory::Least, durability };
            keeps_the_rules(opening, RealDisk::auto(), place.path(), &Extent::small(3));
        }
    }
}

#[test]
fn both_keep_the_rules_with_hardly_any_memory() {
    for kind in KINDS {
        let opening = Opening { kind, memory: Memory::Least, durability: Durability::Group };
        let extent = Extent {
            histories: by_effort(3, 10),
            batch_entries: by_effort(5_000, 20_000),
            value_bytes_max: by_effort(512 << 10, 2 << 20),
            rounds: 50,
            ..Extent::default()
        };
        keeps_the_rules(opening, SimDisk::new(7), Path::new("/"), &extent);
    }
}

type Tables = [BTreeMap<Vec<u8>, Vec<u8>>; 2];

/// A change of the main table or of the index; no value removes.
type Change = (usize, Vec<u8>, Option<Vec<u8>>);

const INDEX: &str = "side";

fn table(number: usize) -> Table<'static> {
    if number == 0 { Table::Main } else { Table::Index(INDEX) }
}

fn draw_script(rng: &mut ChaCha8Rng, commits: usize) -> Vec<Vec<Change>> {
    (0..commits)
        .map(|_| {
            (0..=rng.below(6))
                .map(|_| {
                    let key = format!("key{}", rng.below(25)).into_bytes();
                    let bytes = [rng.index(40), rng.index(1_500), rng.index(6_000)][rng.index(3)];
                    let value = rng.chance(3, 4).then(|| rng.bytes(bytes));
                    (rng.index(2), key, value)
                })
                .collect()
        })
        .collect()
}

fn commit(db: &dyn Database, changes: &[Change]) -> Result<Receipt> {
    let mut writer = db.writer()?;
    for (number, key, value) in changes {
        match value {
            Some(value) => writer.overwrite(table(*number), key, value)?,
            None => writer.remove(table(*number), key)?,
        }
    }
    writer.commit()
}

fn apply(tables: &mut Tables, changes: &[Change]) {
    for (number, key, value) in changes {
        match value {
            Some(value) => drop(tables[*number].insert(key.clone(), value.clone())),
            None => drop(tables[*number].remove(key)),
        }
    }
}

fn content(reader: &dyn Reader) -> Tables {
    [0, 1].map(|number| {
        let mut cursor = reader.cursor(table(number)).unwrap();
        let mut entries = BTreeMap::new();
        while let Some((key, value)) = cursor.next().unwrap() {
            entries.insert(key, value);
        }
        assert_eq!(reader.count(table(number)).unwrap(), entries.len() as u64);
        entries
    })
}

/// The states that a database may have after a crash: those from `settled` on, if only the process
/// ends those from `committed` on.
#[derive(Debug, Clone)]
struct History {
    states: Vec<Tables>,
    settled: usize,
    committed: usize,
}

/// Runs a script until the disk fails. Every third commit is not settled.
fn run(opening: Opening, disk: &Arc<SimDisk>, script: &[Vec<Change>]) -> History {
    let shared: Arc<dyn Disk> = disk.clone();
    let mut history = History { states: vec![Tables::default()], settled: 0, committed: 0 };
    let Ok(db) = opening.open(&shared, Path::new(DIR), &[INDEX]) else { return history };
    let is_durable = db.guarantee().power_loss == PowerLoss::EveryCommit;

    for (number, changes) in script.iter().enumerate() {
        let mut state = history.states[number].clone();
        apply(&mut state, changes);
        history.states.push(state);
        let Ok(receipt) = commit(db.as_ref(), changes) else { return history };
        history.committed = number + 1;

        if !number.is_multiple_of(3) {
            if db.settle(receipt).is_err() {
                return history;
            }
            history.settled = if is_durable { number + 1 } else { history.settled };
        }

        if number == script.len() / 2 && db.compact().is_err() {
            return history;
        }
    }

    drop(db.close());
    history
}

/// Opens what is left and goes on with it.
fn check_image(opening: Opening, disk: &Arc<SimDisk>, states: &[Tables]) {
    let shared: Arc<dyn Disk> = disk.clone();
    let db = opening.open(&shared, Path::new(DIR), &[INDEX]).expect("it opens after a crash");
    let mut found = content(db.reader().unwrap().as_ref());
    assert!(states.contains(&found), "none of {} states", states.len());

    for number in 0..3_u8 {
        let changes = [
            (0, b"key1".to_vec(), Some(vec![number; 5_000])),
            (1, b"key1".to_vec(), Some(vec![number; 5])),
            (0, vec![b'k', number], Some(vec![])),
        ];
        let receipt = commit(db.as_ref(), &changes).unwrap();
        db.settle(receipt).unwrap();
        apply(&mut found, &changes);
    }

    assert!(content(db.reader().unwrap().as_ref()) == found);
    db.close().unwrap();
    drop(db);
    let db = opening.open(&shared, Path::new(DIR), &[INDEX]).unwrap();

    assert!(content(db.reader().unwrap().as_ref()) == found);
}

fn whole_commits_after_a_crash(name: &str, opening: Opening) {
    let mut images = 0;
    for_each_seed(name, 1, |rng, seed| {
        let script = draw_script(rng, 24);
        let workload = |disk: &Arc<SimDisk>| {
            let history = run(opening, disk, &script);
            assert!(disk.has_crashed() || history.committed == script.len());
            history
        };
        images += Sweep::sampled(seed, 6).crash(workload, |crash| {
            let losses = Loss::each(crash.call)
                .into_iter()
                .filter(|loss| *loss == Loss::Process || opening.durability != Durability::None);
            crash.images(losses, |image| {
                let first = match image.loss {
                    Loss::Power(_) => crash.run.settled,
                    Loss::Process => crash.run.committed,
                };
                check_image(opening, &image.disk, &crash.run.states[first..]);
            })
        });
    });

    assert!(images > by_effort(33, 200), "{images}");
}

#[test]
fn a_crash_at_any_call_leaves_whole_commits_in_lsm_tables() {
    for durability in [Durability::Group, Durability::None] {
        let opening = Opening { kind: Kind::Lsm, memory: Memory::Least, durability };
        let name = "a_crash_at_any_call_leaves_whole_commits_in_lsm_tables";
        whole_commits_after_a_crash(name, opening);
    }
}

#[test]
fn a_crash_at_any_call_leaves_whole_commits_in_a_btree() {
    for durability in [Durability::Each, Durability::Buffered, Durability::None] {
        let opening = Opening { kind: Kind::Btree, memory: Memory::Least, durability };
        let name = "a_crash_at_any_call_leaves_whole_commits_in_a_btree";
        whole_commits_after_a_crash(name, opening);
    }
}

/// A disk of any size: a commit for which there is no room has changed nothing, reads go on, and so
/// do commits once there is room.
#[test]
fn a_full_disk_changes_nothing_and_passes() {
    let mut full = 0;
    for_each_seed("a_full_disk_changes_nothing_and_passes", 1, |rng, seed| {
        let script = draw_script(rng, 60);
        for (kind, durability) in [
            (Kind::Lsm, Durability::Each),
            (Kind::Btree, Durability::Each),
            (Kind::Btree, Durability::None),
        ] {
            for pages in places(0..120, 6, seed) {
                let opening = Opening { kind, memory: Memory::Least, durability };
                let disk = SimDisk::new(seed);
                let shared: Arc<dyn Disk> = disk.clone();
                let db = opening.open(&shared, Path::new(DIR), &[INDEX]).unwrap();
                disk.set_plan(FaultPlan::capacity(pages * 4096));

                let mut state = Tables::default();
                for changes in &script {
                    if let Err(error) = commit(db.as_ref(), changes) {
                        let what = format!("{kind:?} {pages}: {error:?}");
                        assert!(matches!(error, Error::StoreFull { .. }), "{what}");
                        full += 1;
                        assert!(content(db.reader().unwrap().as_ref()) == state, "{what}");
                        disk.set_plan(FaultPlan::default());
                        let receipt = commit(db.as_ref(), changes).expect(&what);
                        db.settle(receipt).expect(&what);
                    }
                    apply(&mut state, changes);
                }

                assert!(content(db.reader().unwrap().as_ref()) == state, "{kind:?} {pages}");
                db.close().unwrap();
                drop(db);
                let db = opening.open(&shared, Path::new(DIR), &[INDEX]).unwrap();
                assert!(content(db.reader().unwrap().as_ref()) == state, "{kind:?} {pages}");
            }
        }
    });

    assert!(full > by_effort(16, 100), "{full}");
}

/// A failure of any call: a commit that failed has changed nothing, and the next one succeeds; but
/// after a failed sync, or where nobody knows what a write has left, nothing is written any more,
/// and reads go on.
#[test]
fn a_commit_that_fails_has_changed_nothing() {
    let mut failed = 0;
    let mut poisoned = 0;
    for_each_seed("a_commit_that_fails_has_changed_nothing", 1, |rng, seed| {
        let script = draw_script(rng, 24);
        for (kind, fault) in [
            (Kind::Lsm, FaultKind::Eio),
            (Kind::Lsm, FaultKind::FailedSync),
            (Kind::Btree, FaultKind::Eio),
            (Kind::Btree, FaultKind::FailedSync),
        ] {
            let opening = Opening { kind, memory: Memory::Least, durability: Durability::Each };
            let whole = SimDisk::new(seed);
            run(opening, &whole, &script);
            for call in places(0..whole.calls(), 6, seed) {
                let disk = SimDisk::new(seed);
                let shared: Arc<dyn Disk> = disk.clone();
                let db = opening.open(&shared, Path::new(DIR), &[INDEX]).unwrap();
                disk.set_plan(FaultPlan::fail(disk.calls() + call, fault, Repeat::Once));

                let mut state = Tables::default();
                for changes in &script {
                    let done = commit(db.as_ref(), changes);
                    let mut with = state.clone();
                    apply(&mut with, changes);
                    let Err(error) = done else {
                        state = with;
                        continue;
                    };

                    disk.set_plan(FaultPlan::default());
                    let found = content(db.reader().unwrap().as_ref());
                    let what = format!("{kind:?} {fault:?} {call}: {error:?}");
                    failed += 1;
                    let is_poisoned = matches!(error, Error::Poisoned { .. });
                    assert!(is_poisoned || fault != FaultKind::FailedSync, "{what}");

                    // Then it is not said whether it is visible.
                    assert!(found == state || is_poisoned && found == with, "{what}");
                    match commit(db.as_ref(), changes) {
                        Ok(receipt) => {
                            assert!(!is_poisoned, "{what}");
                            db.settle(receipt).expect(&what);
                            assert!(content(db.reader().unwrap().as_ref()) == with, "{what}");
                        }
                        Err(again) => {
                            poisoned += 1;
                            assert!(is_poisoned, "{what}");
                            assert!(matches!(again, Error::Poisoned { .. }), "{what}: {again:?}");
                            assert!(content(db.reader().unwrap().as_ref()) == found, "{what}");
                        }
                    }

                    break;
                }
            }
        }
    });

    assert!(failed > by_effort(33, 200), "{failed}");
    assert!((by_effort(6, 40)..failed).contains(&poisoned), "{poisoned}");
}

#[test]
fn options_that_cannot_be_are_refused() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let dir = Path::new(DIR);
    let refused = |result: Result<()>| {
        assert!(matches!(result, Err(Error::Unsupported { .. })), "{result:?}");
    };
    let lsm = |options: LsmOptions| LsmDatabase::open(disk.clone(), dir, &[], &options).map(drop);
    let mut options = LsmOptions::default();
    options.page_bytes = 8192;
    refused(lsm(options));
    let mut options = LsmOptions::default();
    options.compression = Some("lz4".to_owned());
    refused(lsm(options));
    let mut options = LsmOptions::default();
    options.size_ratio = 1;
    refused(lsm(options));
    let mut options = LsmOptions::default();
    (options.memory_bytes, options.write_buffer_bytes) = (Some(64 << 20), Some(1 << 20));
    refused(lsm(options));
    let options = LsmOptions::default().memory_bytes(64 << 20).shared_memory_bytes(64 << 20);
    refused(lsm(options));
    refused(lsm(LsmOptions::default().shared_memory_bytes(1000)));
    let btree =
        |options: BtreeOptions| BtreeDatabase::open(disk.clone(), dir, &[], &options).map(drop);
    let mut options = BtreeOptions::default();
    options.page_bytes = 16384;
    refused(btree(options));
    let mut options = BtreeOptions::default();
    options.memory_bytes = 1;
    refused(btree(options));

    for indexes in [&["Upper"][..], &["twice", "twice"]] {
        let lsm = LsmDatabase::open(disk.clone(), dir, indexes, &LsmOptions::default());
        refused(lsm.map(drop));
        let btree = BtreeDatabase::open(disk.clone(), dir, indexes, &BtreeOptions::default());
        refused(btree.map(drop));
    }

    assert_eq!(disk.list(Path::new("/")).unwrap().len(), 0, "nothing was made");
}

#[test]
fn a_store_that_is_open_is_locked_and_says_by_whom() {
    for kind in KINDS {
        let place = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = RealDisk::auto();
        let opening = Opening { kind, memory: Memory::Default, durability: Durability::Each };
        let db = opening.open(&disk, place.path(), &[]).unwrap();
        let error = opening.open(&disk, place.path(), &[]).unwrap_err();
        let Error::Locked { what, .. } = error else { panic!("{error:?}") };
        assert!(what.contains(&std::process::id().to_string()), "{what}");
        db.close().unwrap();
        drop(db);
        opening.open(&disk, place.path(), &[]).unwrap();
    }
}

/// The syncs of a commit are those that the durability promises, and its bytes are written once.
/// After a compaction, removed entries take no room, and neither does the log, written or reserved.
#[test]
fn what_is_compacted_takes_little_more_than_what_is_there() {
    for kind in KINDS {
        let disk = SimDisk::new(3);
        let opening = Opening { kind, memory: Memory::Default, durability: Durability::Buffered };
        let shared: Arc<dyn Disk> = disk.clone();
        let db = opening.open(&shared, Path::new(DIR), &["one"]).unwrap();
        let key = |number: u32| Sha256::digest(number.to_le_bytes())[..16].to_vec();

        for first in (0..50_000).step_by(1_000) {
            let mut writer = db.writer().unwrap();
            for number in first..first + 1_000 {
                writer.overwrite(Table::Main, &key(number), &[7; 100]).unwrap();
            }
            writer.commit().unwrap();
        }

        let reader = db.reader().unwrap();
        let mut writer = db.writer().unwrap();
        for number in 10_000..50_000 {
            writer.remove(Table::Main, &key(number)).unwrap();
        }

        writer.commit().unwrap();
        db.compact().unwrap();

        // Whoever reads keeps what it reads.
        assert_eq!(reader.count(Table::Main).unwrap(), 50_000);
        drop(reader);
        db.compact().unwrap();
        let bytes = db.disk_bytes().unwrap();
        let live = 10_000 * (16 + 100);
        assert!(bytes < live * 5 / 3, "{kind:?}: {bytes} bytes for {live}");
        assert_eq!(db.reader().unwrap().count(Table::Main).unwrap(), 10_000);
        db.close().unwrap();
        let db = opening.open(&shared, Path::new(DIR), &["one"]).unwrap();
        assert_eq!(db.reader().unwrap().count(Table::Main).unwrap(), 10_000);
    }
}

/// A commit skips the lookup of a key that its writer has read, unless the value is in pieces,
/// which would stay stored.
#[test]
fn entries_that_a_writer_has_read_are_replaced_as_others_are() {
    const LONG: usize = 300_000;
    for kind in KINDS {
        let disk: Arc<dyn Disk> = SimDisk::new(5);
        let opening = Opening { kind, memory: Memory::Default, durability: Durability::Buffered };
        let db = opening.open(&disk, Path::new(DIR), &["one"]).unwrap();
        let keys = [b"a", b"b", b"c", b"d"].map(<[u8; 1]>::as_slice);
        let values = [None, Some(10), Some(LONG), Some(LONG)];
        let table = Table::Index("one");
        let write = |writer: &mut dyn Writer, values: &[Option<usize>]| {
            for (key, len) in keys.iter().zip(values) {
                match len {
                    Some(len) => writer.overwrite(table, key, &vec![7; *len]).unwrap(),
                    None => writer.remove(table, key).unwrap(),
                }
            }
        };

        let mut writer = db.writer().unwrap();
        write(writer.as_mut(), &values);
        writer.commit().unwrap();

        for (round, after) in [
            [Some(LONG), Some(LONG), Some(20), None],
            [None, Some(0), None, Some(LONG)],
            [Some(1), None, Some(2), Some(3)],
        ]
        .iter()
        .enumerate()
        {
            let mut writer = db.writer().unwrap();
            if round == 1 {
                assert_eq!(writer.get(table, keys[0]).unwrap().map(|v| v.len()), Some(LONG));
            }

            assert_eq!(writer.get_many(table, &keys).unwrap().len(), 4);
            write(writer.as_mut(), after);
            writer.commit().unwrap();
            let reader = db.reader().unwrap();
            let found = reader.get_many(table, &keys).unwrap();
            let lens: Vec<_> = found.iter().map(|value| value.as_ref().map(Vec::len)).collect();
            assert_eq!(lens, after, "{kind:?}");
            assert_eq!(reader.count(table).unwrap(), lens.iter().flatten().count() as u64);
        }

        for _ in 0..2 {
            db.compact().unwrap();
        }

        let bytes = db.disk_bytes().unwrap();
        assert!(bytes < LONG as u64 / 2, "{kind:?}: {bytes} bytes for nothing");
    }
}

#[test]
fn a_commit_costs_what_its_durability_says() {
    for kind in KINDS {
        for (durability, committed, settled) in [
            (Durability::None, 0, 0),
            (Durability::Buffered, 0, 0),
            (Durability::Group, 0, 1),
            (Durability::Each, 1, 1),
        ] {
            let opening = Opening { kind, memory: Memory::Default, durability };
            let disk: Arc<dyn Disk> = SimDisk::new(1);
            let db = opening.open(&disk, Path::new(DIR), &[]).unwrap();
            // The first commit may begin the log.
            let first = commit(db.as_ref(), &[(0, b"a".to_vec(), Some(vec![1]))]).unwrap();
            db.settle(first).unwrap();
            let before = db.counts();
            let changes =
                [(0, b"b".to_vec(), Some(vec![2; 9_000])), (0, b"c".to_vec(), Some(vec![3; 100]))];
            let receipt = commit(db.as_ref(), &changes).unwrap();
            assert!(receipt > first);
            let after = db.counts();
            let what = format!("{kind:?} {durability:?}");
            assert_eq!(after.transactions - before.transactions, 1, "{what}");
            assert_eq!(after.syncs - before.syncs, committed, "{what}");
            let bytes = after.bytes_written - before.bytes_written;
            assert!((9_100..9_600).contains(&bytes), "{what}: {bytes} bytes");
            db.settle(receipt).unwrap();
            assert_eq!(db.counts().syncs - before.syncs, settled, "{what}");
            db.settle(receipt).unwrap();
            assert_eq!(db.counts().syncs - before.syncs, settled, "{what}");
            if durability == Durability::None {
                assert_eq!(db.counts().syncs, 0, "{what}");
                assert!(matches!(db.sync(), Err(Error::Unsupported { .. })), "{what}");
            } else {
                db.sync().unwrap();
            }
            assert!(db.disk_bytes().unwrap() >= 9_100, "{what}");
            db.close().unwrap();
            if durability == Durability::None {
                assert_eq!(db.counts().syncs, 0, "{what}");
            }
        }
    }
}
