//! Slices of a last level, while they are made one after the other.
//!
//! Goal: however far a merge on the last level has come, a table, its forks and its snapshots have
//! what a map of the same entries has; after a crash, a kill or a fault at any call, too; what is
//! in a slice is not read from the inputs again, and a diff of two moments of one merge reads what
//! differs.
//!
//! Method: tables of a few memtables of eight entries whose oldest entries are replaced, so that
//! the last level, of up to 16 slices, merges most of the time. Snapshots are looked through for
//! merges that have some slices and not all.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Disk, FaultKind, FaultPlan, Repeat, SimDisk};
use terrane_lsm::verify::verify;
use terrane_lsm::{Session, SessionOptions, Table, TableConfig, Update};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Loss;

use crate::progress::look;
use crate::{SALT, buffer_of, content, fill, key, name, value};

const DIR: &str = "/session";

/// Live entries.
const ENTRIES: u64 = 240;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn config() -> TableConfig {
    buffer_of(8).size_ratio(2).compaction_batch_pages(1)
}

fn open(disk: &Arc<SimDisk>) -> Session {
    try_open(disk).unwrap()
}

fn try_open(disk: &Arc<SimDisk>) -> Result<Session, terrane_lsm::Error> {
    let options = SessionOptions::with_salt(SALT).create_dir();
    Session::open(Arc::clone(disk) as _, Path::new(DIR), &options)
}

/// A table and what it has to hold.
struct Held {
    table: Table,
    model: Model,
    /// Numbers of its keys.
    oldest: u64,
    next: u64,
}

impl Held {
    fn new(session: &Session) -> Self {
        let mut table = session.new_table(&config()).unwrap();
        fill(&mut table, 0..ENTRIES);
        let model = (0..ENTRIES).map(|n| (key(n).to_vec(), value(n, 60))).collect();
        Self { table, model, oldest: 0, next: ENTRIES }
    }

    /// Opens a snapshot of another such table.
    fn opened(session: &Session, text: &str, of: &Self) -> Self {
        Self::of(session.open_snapshot(&name(text), "").unwrap(), of)
    }

    fn of(table: Table, of: &Self) -> Self {
        Self { table, model: of.model.clone(), oldest: of.oldest, next: of.next }
    }

    /// Replaces the oldest entries; if that fails, nothing has changed.
    fn replace(&mut self, count: u64) -> Result<(), terrane_lsm::Error> {
        let gone: Vec<_> = (self.oldest..self.oldest + count).map(key).collect();
        let new: Vec<_> = (self.next..self.next + count).map(|n| (key(n), value(n, 60))).collect();
        let mut batch: Vec<_> = gone.iter().map(|key| (key, Update::Delete)).collect();
        batch.extend(new.iter().map(|(key, value)| (key, Update::Insert(value))));
        self.table.write_batch(&batch)?;

        for key in &gone {
            self.model.remove(key.as_slice());
        }
        self.model.extend(new.into_iter().map(|(key, value)| (key.to_vec(), value)));
        self.oldest += count;
        self.next += count;
        Ok(())
    }

    /// Compares everything, both ways, and lookups of keys that are there and that are not.
    fn check(&self) {
        let expected: Vec<_> = self.model.clone().into_iter().collect();
        assert_eq!(content(&self.table), expected);

        let mut cursor = self.table.cursor().unwrap();
        cursor.seek_to_end();
        for (key, value) in expected.iter().rev() {
            let found = cursor.prev().unwrap().unwrap();
            assert_eq!((&found.key, found.value.into_vec()), (key, value.clone()));
        }
        assert!(cursor.prev().is_none());

        let keys: Vec<_> = (self.oldest.saturating_sub(40)..self.next + 20).map(key).collect();
        let found = self.table.get_many(&keys).unwrap();
        for (key, found) in keys.iter().zip(&found) {
            let expected = self.model.get(key.as_slice()).map(Vec::as_slice);
            assert_eq!(found.value(), expected);
        }
    }
}

/// How many slices the merges of a snapshot have made so far.
fn slices(disk: &Arc<SimDisk>, text: &str) -> u64 {
    let merges = look(disk, text).levels.into_iter().filter_map(|level| level.merge);
    merges.map(|merge| merge.slices).sum()
}

/// A disk with a snapshot `a` of a merge that has at least two slices and is not complete.
fn halfway(rng: &mut ChaCha8Rng) -> (Arc<SimDisk>, Session, Held) {
    let disk = SimDisk::new(rng.below(1 << 32));
    let session = open(&disk);
    let mut held = Held::new(&session);
    held.replace(rng.below(80)).unwrap();
    loop {
        held.replace(1).unwrap();
        held.table.save_snapshot(&name("a"), "").unwrap();
        if slices(&disk, "a") >= 2 {
            return (disk, session, held);
        }
        session.delete_snapshot(&name("a")).unwrap();
    }
}

/// Forks, snapshots of this and of another process, and what they go on to.
#[test]
fn a_table_has_its_entries_at_every_slice() {
    let mut met = 0;
    for_each_seed("a_table_has_its_entries_at_every_slice", 3, |rng, _| {
        let disk = SimDisk::new(rng.below(1 << 32));
        let session = open(&disk);
        let mut held = Held::new(&session);
        let mut before = 0;
        for _ in 0..240 {
            held.replace(1 + rng.below(3)).unwrap();
            held.table.save_snapshot(&name("a"), "").unwrap();
            let now = slices(&disk, "a");
            if now > 0 && now != before {
                met += 1;
                held.check();
                let mut fork = Held::of(held.table.fork().unwrap(), &held);
                let mut opened = Held::opened(&session, "a", &held);
                let killed = disk.process_kill();
                let other = open(&killed);
                let mut reopened = Held::opened(&other, "a", &held);
                for table in [&mut fork, &mut opened, &mut reopened] {
                    table.check();
                    for _ in 0..20 {
                        table.replace(2).unwrap();
                    }
                    table.check();
                }
                reopened.table.save_snapshot(&name("b"), "").unwrap();
                let again = Held::opened(&other, "b", &reopened);
                again.check();
                drop((reopened, again));
                other.close().unwrap();
                let killed = Arc::clone(&killed) as Arc<dyn Disk>;
                let report = verify(&killed, Path::new(DIR), &mut |_, _| {}).unwrap();
                assert!(report.problems.is_empty(), "{report:?}");
            }
            before = now;
            session.delete_snapshot(&name("a")).unwrap();
        }
    });
    println!("{met} moments");
    assert!(met >= 15, "{met} moments with some slices");
}

/// Crashes at the calls of who opens such a snapshot, goes on, and saves another one.
#[test]
fn a_crash_at_any_call_leaves_every_snapshot_whole() {
    for_each_seed("a_crash_at_any_call_leaves_every_snapshot_whole", 1, |rng, _| {
        let (disk, session, held) = halfway(rng);
        session.close().unwrap();
        let work = |disk: &Arc<SimDisk>| -> Result<Held, terrane_lsm::Error> {
            let session = try_open(disk)?;
            let mut opened = Held::of(session.open_snapshot(&name("a"), "")?, &held);
            for _ in 0..60 {
                opened.replace(1)?;
            }
            opened.table.save_snapshot(&name("b"), "")?;
            Ok(opened)
        };

        let whole = disk.clone_disk();
        let first = whole.calls();
        let done = work(&whole).unwrap();
        let calls = whole.calls() - first;
        assert!(calls > 200, "{calls} calls");

        for call in (0..calls).step_by(by_effort(9, 1)) {
            let crashed = disk.clone_disk();
            crashed.set_plan(FaultPlan::crash_at(crashed.calls() + call));
            let run = work(&crashed);
            assert!(crashed.has_crashed() || run.is_ok());
            for loss in Loss::each(call) {
                let session = open(&loss.apply(&crashed));
                let names = session.list_snapshots().unwrap();
                assert!(names.contains(&name("a")), "{call}, {loss:?}: {names:?}");
                Held::opened(&session, "a", &held).check();
                if names.contains(&name("b")) {
                    Held::opened(&session, "b", &done).check();
                } else {
                    assert!(run.is_err(), "{call}, {loss:?}: a saved snapshot is lost");
                }
            }
        }
    });
}

/// Calls that fail once, or until somebody looks.
#[test]
fn a_fault_at_any_call_changes_nothing() {
    for_each_seed("a_fault_at_any_call_changes_nothing", 1, |rng, _| {
        let (disk, session, held) = halfway(rng);
        session.close().unwrap();
        let mut failed = 0;
        for kind in [FaultKind::Eio, FaultKind::Enospc] {
            for repeat in [Repeat::Once, Repeat::Forever] {
                for call in (0..by_effort(300, 400)).step_by(by_effort(7, 1)) {
                    let disk = disk.clone_disk();
                    let session = open(&disk);
                    let mut opened = Held::opened(&session, "a", &held);
                    disk.set_plan(FaultPlan::fail(disk.calls() + call, kind, repeat));
                    for _ in 0..60 {
                        if opened.replace(1).is_err() {
                            failed += 1;
                            disk.set_plan(FaultPlan::default());
                            opened.check();
                            opened.replace(1).unwrap();
                        }
                    }
                    disk.set_plan(FaultPlan::default());
                    opened.check();
                }
            }
        }
        println!("{failed} updates failed");
        assert!(failed > 50, "{failed} updates failed");
    });
}

/// Two moments of one merge have its first slices, or what they are made of, in common.
#[test]
fn a_diff_of_two_moments_of_a_merge_reads_what_differs() {
    let disk = SimDisk::new(1);
    let session = open(&disk);
    let mut table = session.new_table(&buffer_of(500).size_ratio(2)).unwrap();
    fill(&mut table, 0..20_000);
    let pages = |table: &Table| {
        let bytes = table.stats().levels.iter().map(|level| level.bytes).sum::<u64>();
        bytes / 4_096
    };

    let mut compared = 0;
    let mut read = 0;
    for round in 0..60_u64 {
        let older = table.fork().unwrap();
        let first = 20_000 + 100 * round;
        fill(&mut table, first..first + 100);
        crate::clear(&mut table, 100 * round..100 * (round + 1));
        let before = disk.counts();
        let changes: Vec<_> =
            older.diff(&table).unwrap().map(|change| change.unwrap().key).collect();
        let spent = (disk.counts() - before).read_pages;
        let mut expected: Vec<_> = (first..first + 100).map(|n| key(n).to_vec()).collect();
        expected.extend((100 * round..100 * (round + 1)).map(|n| key(n).to_vec()));
        expected.sort();
        assert_eq!(changes, expected, "round {round}");
        compared += pages(&table);
        read += spent;
    }

    println!("{read} pages read, of {compared}");
    assert!(read * 4 < compared, "{read} pages read, of {compared}");
}

/// Memtables of high keys only, and of deletions of low ones: an input of a merge may lie behind
/// what the slices have, while those that are older do not.
#[test]
fn a_diff_tells_what_a_slice_has_dropped() {
    let mut compared = 0;
    for_each_seed("a_diff_tells_what_a_slice_has_dropped", 12, |rng, _| {
        let disk = SimDisk::new(rng.below(1 << 32));
        let session = open(&disk);
        let mut table = session.new_table(&config()).unwrap();
        let mut model = Model::new();
        let mut kept: Vec<(String, Model)> = Vec::new();
        for round in 0..160_u32 {
            // In pairs, as level 2 has runs of two memtables.
            let kind = if round < 60 { rng.below(2) } else { (u64::from(round) / 2) % 3 };
            let first = if kind == 0 { 200 } else { 0 };
            let numbers: Vec<u32> = (0..8).map(|_| first + rng.below(200) as u32).collect();
            let is_deletion = kind == 1 && round >= 60;
            for number in numbers {
                let (key, value) = ([(number >> 8) as u8, number as u8], round.to_le_bytes());
                if is_deletion {
                    table.delete(&key).unwrap();
                    model.remove(key.as_slice());
                } else {
                    table.insert(&key, &value).unwrap();
                    model.insert(key.to_vec(), value.to_vec());
                }
            }

            let text = format!("s{round}");
            table.save_snapshot(&name(&text), "").unwrap();
            kept.push((text, model.clone()));
            if kept.len() > 8 {
                session.delete_snapshot(&name(&kept.remove(0).0)).unwrap();
            }
            if round < 60 || round % 4 > 0 {
                continue;
            }

            // Nothing is known of what the runs were merged from.
            let other = open(&disk.process_kill());
            let newer = other.open_snapshot(&name(&kept[kept.len() - 1].0), "").unwrap();
            for (text, before) in &kept[..kept.len() - 1] {
                let older = other.open_snapshot(&name(text), "").unwrap();
                let found: Vec<_> =
                    older.diff(&newer).unwrap().map(|change| change.unwrap().key).collect();
                let keys = before.keys().chain(model.keys());
                let mut expected: Vec<_> =
                    keys.filter(|key| before.get(*key) != model.get(*key)).cloned().collect();
                expected.sort();
                expected.dedup();
                assert_eq!(found, expected, "round {round}, {text}");
                compared += 1;
            }
        }
    });
    assert!(compared > 500, "{compared}");
}

/// Opened again when half of its slices are there, a merge must not be done within one update.
#[test]
fn a_merge_that_goes_on_behind_its_slices_keeps_its_pace() {
    let disk = SimDisk::new(1);
    let session = open(&disk);
    let config = buffer_of(200).compaction_batch_pages(1);
    let mut table = session.new_table(&config).unwrap();
    fill(&mut table, 0..40_000);
    let mut next = 40_000;
    loop {
        fill(&mut table, next..next + 50);
        crate::clear(&mut table, next - 40_000..next - 39_950);
        next += 50;
        table.save_snapshot(&name("a"), "").unwrap();
        let output = look(&disk, "a").levels.pop().and_then(|level| level.output);
        if slices(&disk, "a") >= 6 && output.is_some_and(|output| output.pages > 20) {
            break;
        }
        session.delete_snapshot(&name("a")).unwrap();
    }
    drop(table);
    session.close().unwrap();

    let session = open(&disk);
    let mut table = session.open_snapshot(&name("a"), "").unwrap();
    let pages = || {
        let counts = disk.counts();
        counts.read_pages + counts.write_pages
    };
    let mut worst = 0;
    for number in next..next + 4_000 {
        let before = pages();
        table.insert(&key(number), &value(number, 60)).unwrap();
        worst = worst.max(pages() - before);
    }
    let levels = table.stats().levels.len() as u64;
    println!("{worst} pages in one update, {levels} levels");
    assert!(worst <= 128 * levels, "{worst} pages in one update, {levels} levels");
}
