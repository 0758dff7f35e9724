//! Full compaction on demand: all entries of a table become one run.
//!
//! Goal: the content stays the same whoever shares the runs, unneeded files leave the disk, other
//! threads read and commit meanwhile, and a compaction that fails leaves no work to the updates
//! that follow.
//!
//! Method: tables of a few levels, with everything that shares runs with them; a store whose merge
//! waits at a gate while others go on; a fault at each call of a compaction. Histories with
//! compactions among other things, and a crash at each of their calls, are those of [`crate::sim`]
//! and [`crate::store_sweep`].

use std::path::Path;
use std::sync::Arc;
use std::thread;

use terrane_io::files::allocated_below;
use terrane_io::{Disk, SimDisk, Survival};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_lsm::{
    CheckpointThread, CompactionPolicy, CompactionSchedule, Durability, Error, SessionOptions,
    Store, StoreOptions, Table, TableName, Update,
};

use crate::gate::GateDisk;
use crate::{SALT, SessionDir, buffer_of, clear, content, fill, key, name, value};

const DIR: &str = "/store";

fn open(disk: &Arc<impl Disk + 'static>) -> Result<Store, Error> {
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Buffered);
    let disk = Arc::clone(disk) as Arc<dyn Disk>;
    Store::open(
        disk,
        Path::new(DIR),
        &options.log_bytes_max(4 << 20).checkpoint_thread(CheckpointThread::Caller),
    )
}

fn main_table() -> TableName {
    TableName::default()
}

/// Commits insertions of keys of these numbers.
fn insert(store: &Store, numbers: std::ops::Range<u64>) -> Result<(), Error> {
    let entries: Vec<_> = numbers.map(|n| (key(n), value(n, 60))).collect();
    let batch: Vec<_> = entries.iter().map(|(k, v)| (k, Update::Insert(v))).collect();
    store.table(&main_table())?.write_batch(&batch).map(drop)
}

fn compact(table: &mut Table) {
    let mut last = (0, 0);
    table.compact(&mut |done, total| last = (done, total)).unwrap();
    assert_eq!(last.0, last.1);
}

/// Runs whose keys follow each other are no slices unless a merge has made them so.
#[test]
fn runs_of_a_small_table_that_follow_each_other_become_one() {
    let session = SessionDir::simulated(1).open();
    let mut table = session.new_table(&buffer_of(10)).unwrap();
    for letter in [b'd', b'c', b'b', b'a'] {
        for number in 0..10 {
            table.insert(&[letter, number], b"").unwrap();
        }
    }
    assert!(table.stats().files() >= 2, "{:?}", table.stats());
    compact(&mut table);
    assert_eq!((table.stats().runs(), table.stats().files()), (1, 1), "{:?}", table.stats());
    assert_eq!(content(&table).len(), 40);
}

#[test]
fn a_table_becomes_one_run_and_whatever_shares_its_runs_stays_as_it_is() {
    for compaction_policy in
        [CompactionPolicy::LazyLevelling, CompactionPolicy::Levelling, CompactionPolicy::Tiering]
    {
        for compaction_schedule in [CompactionSchedule::Incremental, CompactionSchedule::OneShot] {
            let place = SessionDir::simulated(1);
            let session = place.open();
            let config = buffer_of(50)
                .compaction_policy(compaction_policy)
                .compaction_schedule(compaction_schedule);
            let mut table = session.new_table(&config).unwrap();
            fill(&mut table, 0..2_000);
            clear(&mut table, (0..2_000).filter(|n| n % 3 > 0));
            fill(&mut table, 1_990..2_020);
            let expected = content(&table);
            let duplicate = table.fork().unwrap();
            let mut cursor = table.cursor().unwrap();
            table.save_snapshot(&name("before"), "").unwrap();

            compact(&mut table);
            assert_eq!(content(&table), expected);
            let stats = table.stats();
            assert_eq!((stats.runs(), stats.entries()), (1, expected.len() as u64), "{stats:?}");
            assert_eq!(content(&duplicate), expected);
            assert_eq!(cursor.next_many(usize::MAX).unwrap().len(), expected.len());
            let again = place.runs().len();
            compact(&mut table);
            assert_eq!(place.runs().len(), again, "there was nothing to be done");

            // It goes on from there: all levels fill again.
            fill(&mut table, 5_000..9_000);
            clear(&mut table, 5_000..9_000);
            assert_eq!(content(&table), expected);
            table.save_snapshot(&name("after"), "").unwrap();
            drop((table, duplicate, cursor));
            for saved in ["before", "after"] {
                let opened = session.open_snapshot(&name(saved), "").unwrap();
                assert_eq!(content(&opened), expected, "{saved}");
            }
        }
    }
}

/// All that was deleted goes, and the level that the run is on is that of its size.
#[test]
fn a_table_that_was_emptied_takes_nothing_and_a_small_one_is_on_a_small_level() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let mut table = session.new_table(&buffer_of(50)).unwrap();
    fill(&mut table, 0..20_000);
    clear(&mut table, 100..20_000);
    let levels = table.stats().levels.len();
    compact(&mut table);
    assert!(levels > 3 && table.stats().levels.len() <= 2, "{:?}", table.stats());
    assert_eq!(content(&table).len(), 100);
    clear(&mut table, 0..100);
    compact(&mut table);
    assert_eq!((table.stats().runs(), place.run_bytes()), (0, 0));
    fill(&mut table, 0..5_000);
    assert_eq!(content(&table).len(), 5_000);
}

/// The disk holds what is live and no more than a quarter besides (pages, filter, index), and the
/// least that a store takes.
#[test]
fn what_nobody_needs_is_gone_from_the_disk() {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    store.create_table(&main_table(), &buffer_of(1_000)).unwrap();

    for first in (0..100_000).step_by(1_000) {
        insert(&store, first..first + 1_000).unwrap();
    }

    let table = store.table(&main_table()).unwrap();
    let doomed: Vec<_> = (0..90_000).map(|n| (key(n), Update::Delete)).collect();
    for batch in doomed.chunks(1_000) {
        drop(table.write_batch(batch).unwrap());
    }
    let taken = || allocated_below(disk.as_ref(), Path::new(DIR)).unwrap();
    store.checkpoint().unwrap();
    let before = taken();
    store.compact(&mut |_, _| {}).unwrap();
    let live = 10_000 * (34 + 60);
    let most = live + live / 4 + (64 << 10) + store.session().stats().reserve_bytes;
    assert!(before > 3 * most && taken() < most, "{before}, then {} of {live} live", taken());
    let expected = content(&table.view().unwrap());
    assert_eq!(expected.len(), 10_000);
    store.close().unwrap();
    let store = open(&disk.after_crash(Survival::Nothing)).unwrap();
    assert_eq!(content(&store.table(&main_table()).unwrap().view().unwrap()), expected);
}

/// A store that was closed keeps no segments of its log to be written again.
#[test]
fn a_closed_store_keeps_the_least_of_its_log() {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    store.create_table(&main_table(), &buffer_of(1_000)).unwrap();

    for first in (0..20_000).step_by(1_000) {
        insert(&store, first..first + 1_000).unwrap();
    }
    let log = Path::new(DIR).join("log");
    assert!(allocated_below(disk.as_ref(), &log).unwrap() > 512 << 10);
    store.close().unwrap();
    assert!(allocated_below(disk.as_ref(), &log).unwrap() <= 16 << 10);
    let store = open(&disk).unwrap();
    insert(&store, 20_000..21_000).unwrap();
    let view = store.table(&main_table()).unwrap().view().unwrap();
    assert_eq!(content(&view).len(), 21_000);
}

/// A store with five thousand entries, some of them in memory.
fn five_thousand(disk: &Arc<impl Disk + 'static>) -> Store {
    let store = open(disk).unwrap();
    store.create_table(&main_table(), &buffer_of(1_000)).unwrap();
    for first in (0..5_000).step_by(500) {
        insert(&store, first..first + 500).unwrap();
    }
    insert(&store, 4_900..5_000).unwrap();
    store
}

/// The highest number of a run.
fn last_run(disk: &SimDisk) -> u64 {
    let names = disk.list(&Path::new(DIR).join("active")).unwrap().into_iter();
    names.filter_map(|entry| entry.name.strip_suffix(".run")?.parse().ok()).max().unwrap()
}

/// The gate holds the compaction at the run that it is about to write.
#[test]
fn others_read_and_commit_while_a_table_is_compacted() {
    let disk = SimDisk::new(1);
    five_thousand(&disk).compact(&mut |_, _| {}).unwrap();
    let number = last_run(&disk);

    let disk = SimDisk::new(1);
    let gate = GateDisk::new(Arc::clone(&disk) as Arc<dyn Disk>);
    let store = five_thousand(&gate);
    let table = store.table(&main_table()).unwrap();
    assert!(last_run(&disk) < number);
    gate.close("open", Path::new(DIR).join(format!("active/{number:08}.run")));

    thread::scope(|scope| {
        let compacting = scope.spawn(|| store.compact(&mut |_, _| {}));
        let held = gate.wait();
        for first in (5_000..5_900).step_by(100) {
            insert(&store, first..first + 100).unwrap();
            let views = store.views(&[&table]).unwrap();
            assert_eq!(content(&views[0]).len() as u64, first + 100);
        }
        drop(held);
        compacting.join().unwrap().unwrap();
    });

    assert_eq!(table.stats().unwrap().runs(), 1);
    assert_eq!(content(&table.view().unwrap()).len(), 5_900);
    store.close().unwrap();
    let store = open(&disk).unwrap();
    assert_eq!(content(&store.table(&main_table()).unwrap().view().unwrap()).len(), 5_900);
}

/// Updates after a compaction that failed for lack of space need no more space than without it:
/// they do not continue its work.
#[test]
fn a_compaction_that_fails_leaves_no_work_behind() {
    let make = || {
        let disk = SimDisk::new(1);
        let store = open(&disk).unwrap();
        store.create_table(&main_table(), &buffer_of(500)).unwrap();
        for first in (0..10_000).step_by(100) {
            insert(&store, first..first + 100).unwrap();
        }
        (disk, store)
    };

    let (disk, store) = make();
    let before = disk.calls();
    store.compact(&mut |_, _| {}).unwrap();

    let calls = disk.calls() - before;
    let mut failed = 0;
    for call in (0..calls).step_by(7) {
        for (kind, repeat) in [(FaultKind::Eio, Repeat::Once), (FaultKind::Enospc, Repeat::Forever)]
        {
            let (disk, store) = make();
            disk.set_plan(FaultPlan::fail(disk.calls() + call, kind, repeat));
            let compacted = store.compact(&mut |_, _| {});
            disk.set_plan(FaultPlan::default());
            let table = store.table(&main_table()).unwrap();
            let stats = table.stats().unwrap();
            if let Err(error) = compacted {
                assert!(matches!(error, Error::Disk(_) | Error::Poisoned { .. }), "{error:?}");
                failed += 1;
                assert!(stats.merge_debt_pages < 400, "call {call}, {kind:?}: {stats:?}");
            }
            assert_eq!(content(&table.view().unwrap()).len(), 10_000, "call {call}, {kind:?}");
            if store.is_poisoned() {
                continue;
            }
            insert(&store, 10_000..11_000).unwrap();
            store.compact(&mut |_, _| {}).unwrap();
            assert_eq!(table.stats().unwrap().runs(), 1);
            assert_eq!(content(&table.view().unwrap()).len(), 11_000, "call {call}, {kind:?}");
        }
    }

    assert!(failed > 10, "{failed} failed");
}

/// Each page is read and written once, and those of the merges that are due with the flush before
/// it once more.
#[test]
fn a_compaction_reads_and_writes_each_page_once() {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    let mut table = store.session().new_table(&buffer_of(1_000)).unwrap();
    fill(&mut table, 0..50_000);
    let before = (disk.counts(), table.stats());
    let pages: u64 = before.1.levels.iter().map(|level| level.bytes).sum::<u64>() / 4096;
    compact(&mut table);
    let spent = disk.counts() - before.0;
    assert!(spent.read_pages <= pages + pages / 8 + 64, "{spent:?} for {pages} pages");
    assert!(spent.write_pages <= pages + pages / 8 + 64, "{spent:?} for {pages} pages");
    assert!(spent.reads < pages / 8, "{spent:?} for {pages} pages");
}
