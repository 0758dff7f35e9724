//! Interaction between the threads of a store: failures that several threads wait for, panics of
//! merge operators, closing.
//!
//! Goal: a failed fsync is told to all who wait for it; a panic in a commit or in a checkpoint
//! leaves no store that goes on with half of something, and none that stands still; when closing
//! has returned nobody writes any more, and what was acknowledged before is there.
//!
//! Method: one call on the disk waits at a gate until the others are where they are to be; nothing
//! here waits for time.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use terrane_io::{Disk, SimDisk, Survival};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_lsm::{
    CheckpointThread, Durability, Error, MergeOperator, NamedTable, Result, Store, StoreOptions,
    Ticket, Update,
};
use terrane_testkit::seeds::for_each_seed;

use crate::gate::GateDisk;
use crate::store_script::{config, content, name, open, options};

/// Commits that bring about a checkpoint, at least.
const ENOUGH_COMMITS: u64 = 10_000;

fn open_on(disk: &Arc<impl Disk + 'static>, options: &StoreOptions) -> Result<Store> {
    Store::open(Arc::clone(disk) as Arc<dyn Disk>, Path::new("/store"), options)
}

fn path(name: &str) -> PathBuf {
    Path::new("/store").join(name)
}

#[test]
fn a_failed_fsync_is_told_to_all_who_wait_for_it() {
    let disk = SimDisk::new(1);
    let gate = GateDisk::new(Arc::clone(&disk) as Arc<dyn Disk>);
    let store = open_on(&gate, &options(Durability::Group)).unwrap();
    let table = store.create_table(&name("main"), &config()).unwrap();
    table.insert(b"first", b"durable").unwrap().wait().unwrap();
    let durable = store.durable_commit();
    gate.close("sync", path("log/00000001.log"));

    thread::scope(|scope| {
        let wait = |ticket: Ticket| scope.spawn(move || (ticket.wait(), ticket));
        let first = wait(table.insert(b"key", b"1").unwrap());
        let held = gate.wait();
        // These come while the first one syncs, and wait for it, or come when it has failed.
        let others: Vec<_> =
            (2..6_u8).map(|number| wait(table.insert(b"key", &[number]).unwrap())).collect();
        disk.set_plan(FaultPlan::fail(0, FaultKind::FailedSync, Repeat::Once));
        drop(held);
        for waiting in others.into_iter().chain([first]) {
            let (waited, ticket) = waiting.join().unwrap();
            let is_told = matches!(waited, Err(Error::Disk(_) | Error::Poisoned { .. }));
            assert!(is_told, "{waited:?}");
            assert!(!ticket.is_durable());
        }
    });

    assert_eq!(disk.faults(), 1);

    // No later sync makes up for it.
    assert!(store.is_poisoned());
    assert!(matches!(store.sync(), Err(Error::Poisoned { .. })));
    assert!(matches!(table.insert(b"key", b"9"), Err(Error::Poisoned { .. })));
    assert_eq!(store.durable_commit(), durable);
    assert_eq!(table.get(b"key").unwrap().value(), Some(&[5][..]), "reads go on");
    drop((store, table));
    let store = open(&disk.after_crash(Survival::Nothing), Durability::Group).unwrap();
    assert!(store.last_commit() >= durable);
    let found = store.table(&name("main")).unwrap().get(b"first").unwrap();
    assert_eq!(found.value(), Some(&b"durable"[..]));
    store.close().unwrap();
}

/// Merge operator that appends, and panics where its flags say.
#[derive(Debug, Default)]
struct PanickingAppend {
    /// Whether a call in any thread panics.
    in_any_thread: AtomicBool,
    in_checkpoints: AtomicBool,
    panics: AtomicU64,
    /// Calls in the thread of checkpoints that returned.
    checkpoint_calls: AtomicU64,
}

impl PanickingAppend {
    fn resolve(self: &Arc<Self>) -> MergeOperator {
        let mine = Arc::clone(self);
        let function = move |newer: &[u8], older: &[u8]| {
            let is_checkpoint = thread::current().name() == Some("terrane-checkpoint");
            if mine.in_any_thread.load(Ordering::Acquire)
                || is_checkpoint && mine.in_checkpoints.load(Ordering::Acquire)
            {
                mine.panics.fetch_add(1, Ordering::AcqRel);
                panic!("as planned");
            }
            mine.checkpoint_calls.fetch_add(u64::from(is_checkpoint), Ordering::AcqRel);
            [older, newer].concat()
        };

        MergeOperator::new("mine", function).unwrap()
    }
}

/// A store with two tables of such a merge operator.
fn store_of(
    mine: &Arc<PanickingAppend>,
    disk: &Arc<SimDisk>,
    options: StoreOptions,
) -> (Store, [NamedTable; 2]) {
    let store = open_on(disk, &options.merge_operator(mine.resolve())).unwrap();
    let config = config().merge_operator(mine.resolve());
    let tables = ["main", "undo"].map(|table| store.create_table(&name(table), &config).unwrap());
    (store, tables)
}

#[test]
fn a_panic_of_a_resolve_function_in_a_commit_poisons_the_store() {
    let mine = Arc::<PanickingAppend>::default();
    let disk = SimDisk::new(1);
    let (store, [main, undo]) = store_of(&mine, &disk, options(Durability::Group));

    // Two upserts of a key are combined in the commit.
    let both = |value: &[u8]| {
        let upsert = (b"key", Update::Upsert(value));
        let insert = [(b"key", Update::Insert(value))];
        store.commit(&[(&main, &insert[..]), (&undo, &[upsert, upsert][..])])
    };

    both(b"1").unwrap().wait().unwrap();
    let seen = undo.view().unwrap();

    // The first table has its part when the second one's function panics.
    mine.in_any_thread.store(true, Ordering::Release);
    let panicked = catch_unwind(AssertUnwindSafe(|| both(b"2")));
    mine.in_any_thread.store(false, Ordering::Release);
    assert!(panicked.is_err(), "no function was called");
    let refused = both(b"3");
    let message = refused.as_ref().unwrap_err().to_string();
    assert!(matches!(refused, Err(Error::Panicked { .. })), "{refused:?}");
    assert!(message.contains("panicked") && !message.contains("fsync"), "{message}");
    assert!(matches!(store.checkpoint(), Err(Error::Panicked { .. })));

    // What was read before goes on; nobody reads a part of the commit.
    assert_eq!(seen.get(b"key").unwrap().value(), Some(&b"11"[..]));
    assert_eq!(undo.get(b"key").unwrap().value(), Some(&b"11"[..]));
    assert!(matches!(main.get(b"key"), Err(Error::Panicked { .. })));
    assert!(matches!(store.close(), Ok(()) | Err(Error::Panicked { .. })));
    drop((store, main, undo, seen));

    for disk in [disk.after_crash(Survival::Nothing), disk] {
        let store =
            open_on(&disk, &options(Durability::Group).merge_operator(mine.resolve())).unwrap();
        for (table, value) in [("main", &b"1"[..]), ("undo", b"11")] {
            let found = store.table(&name(table)).unwrap().get(b"key").unwrap();
            assert_eq!(found.value(), Some(value), "{table}");
        }
        store.close().unwrap();
    }
}

#[test]
fn a_panic_in_the_checkpoint_thread_gives_its_turn_back() {
    let mine = Arc::<PanickingAppend>::default();
    let disk = SimDisk::new(1);
    let options = options(Durability::Buffered).checkpoint_thread(CheckpointThread::Background);
    let (store, [main, _]) = store_of(&mine, &disk, options.clone());

    let mut expected = Vec::new();
    // Views freeze what is there, so that the entries of a key meet when it is written out.
    let mut commit_until = |is_met: &dyn Fn() -> bool| {
        for _ in 0..ENOUGH_COMMITS {
            if is_met() {
                return;
            }
            expected.extend([7; 20]);
            expected.truncate(20);
            drop(
                main.write_batch(&[
                    (&b"key"[..], Update::Insert(&[7; 20])),
                    (b"filler", Update::Insert(&[1; 900])),
                ])
                .unwrap(),
            );
            drop(main.view().unwrap());
            drop(main.upsert(b"key", b"+").unwrap());
            expected.push(b'+');
            drop(main.view().unwrap());
        }
        panic!("no checkpoint has called the function");
    };

    // On an idle machine a checkpoint gets the table always between the same two commits, where it
    // may have nothing to combine. Other threads that run make it come anywhere.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let spin = || {
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        for _ in 0..2 * thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(spin);
        }
        let done = catch_unwind(AssertUnwindSafe(|| {
            mine.in_checkpoints.store(true, Ordering::Release);
            commit_until(&|| mine.panics.load(Ordering::Acquire) > 0);
            mine.in_checkpoints.store(false, Ordering::Release);

            // The thread begins another one.
            commit_until(&|| mine.checkpoint_calls.load(Ordering::Acquire) > 0);
        }));
        is_over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| resume_unwind(panic));
    });
    store.checkpoint().unwrap();
    assert_eq!(main.get(b"key").unwrap().value(), Some(&expected[..]));
    store.close().unwrap();
    drop((store, main));
    let store =
        open_on(&disk.after_crash(Survival::Nothing), &options.merge_operator(mine.resolve()));
    let found = store.unwrap().table(&name("main")).unwrap().get(b"key").unwrap();
    assert_eq!(found.value(), Some(&expected[..]));
}

/// A commit is writing its record when the store is closed: closing waits for it.
#[test]
fn a_commit_that_is_being_written_is_there_after_closing() {
    let disk = SimDisk::new(1);
    let gate = GateDisk::new(Arc::clone(&disk) as Arc<dyn Disk>);
    let store = open_on(&gate, &options(Durability::Buffered)).unwrap();
    let table = store.create_table(&name("main"), &config()).unwrap();
    drop(table.insert(b"first", b"begins the log").unwrap());
    gate.close("write", path("log/00000001.log"));

    thread::scope(|scope| {
        let committing = scope.spawn(|| table.insert(b"key", b"value"));
        let held = gate.wait();
        let closing = scope.spawn(|| store.close());
        drop(held);
        drop(committing.join().unwrap().unwrap());
        closing.join().unwrap().unwrap();
    });

    assert!(matches!(table.insert(b"key", b"later"), Err(Error::SessionClosed)));
    drop((store, table));
    let store = open(&disk.after_crash(Survival::Nothing), Durability::Group).unwrap();
    let found = store.table(&name("main")).unwrap().get(b"key").unwrap();
    assert_eq!(found.value(), Some(&b"value"[..]));
    store.close().unwrap();
}

/// The thread is publishing a checkpoint when the store is closed.
#[test]
fn a_checkpoint_that_is_being_made_ends_before_closing_does() {
    let disk = SimDisk::new(1);
    let gate = GateDisk::new(Arc::clone(&disk) as Arc<dyn Disk>);
    let options = options(Durability::Buffered).checkpoint_thread(CheckpointThread::Background);
    let store = open_on(&gate, &options).unwrap();
    let table = store.create_table(&name("main"), &config()).unwrap();
    drop(table.insert(b"first", b"begins the log").unwrap());
    gate.close("rename", path("manifest.a"));

    let mut last = 0_u64;
    // Until half of the log is written, and a little more.
    while last < 40 {
        last += 1;
        drop(table.insert(b"key", &[last.to_le_bytes(); 110].concat()).unwrap());
    }

    thread::scope(|scope| {
        let held = gate.wait();
        let closing = scope.spawn(|| store.close());
        drop(held);
        closing.join().unwrap().unwrap();
    });

    let calls = disk.calls();
    drop((store, table));
    let next = open(&disk, Durability::Group).unwrap();
    let found = next.table(&name("main")).unwrap().get(b"key").unwrap();
    assert_eq!(found.value(), Some(&[last.to_le_bytes(); 110].concat()[..]));
    assert!(disk.calls() > calls);
    next.close().unwrap();
}

/// Threads commit on and on while the store is closed and opened again: each commit that was
/// acknowledged is there, and none that was refused.
#[test]
fn when_closing_has_returned_nobody_writes_any_more() {
    for_each_seed("store_close", 8, |_, seed| {
        let disk = SimDisk::new(seed);
        let background = CheckpointThread::Background;
        let options = options(Durability::Buffered).checkpoint_thread(background);
        let store = open_on(&disk, &options).unwrap();
        let table = store.create_table(&name("main"), &config()).unwrap();
        let done = AtomicU64::new(0);
        let commit_on = |thread: u64| {
            let mut acknowledged = Vec::new();
            for number in 0_u64.. {
                let key = (thread << 32 | number).to_le_bytes();
                match table.insert(&key, &[1; 200]) {
                    Ok(_) => acknowledged.push(key.to_vec()),
                    Err(Error::SessionClosed) => return acknowledged,
                    Err(error) => panic!("{error:?}"),
                }
                done.fetch_add(1, Ordering::AcqRel);
            }
            acknowledged
        };
        let acknowledged: BTreeSet<Vec<u8>> = thread::scope(|scope| {
            let workers: Vec<_> =
                (0..3_u64).map(|thread| scope.spawn(move || commit_on(thread))).collect();
            while done.load(Ordering::Acquire) < 100 + seed % 300 {
                thread::yield_now();
            }
            store.close().unwrap();
            // At once, while the others find out.
            let next = open_on(&disk, &options).unwrap();
            drop(next.table(&name("main")).unwrap().insert(b"next", b"store").unwrap());
            let all = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
            next.close().unwrap();
            all
        });
        let next = open_on(&disk, &options).unwrap();
        let mut found: BTreeSet<Vec<u8>> =
            content(&next.table(&name("main")).unwrap()).unwrap().into_keys().collect();
        assert!(found.remove(&b"next"[..]));
        assert_eq!(found.len(), acknowledged.len());
        assert_eq!(found, acknowledged);
        next.close().unwrap();
    });
}

/// Views that were taken one by one could have had a commit between them.
#[test]
fn views_of_several_tables_are_of_one_commit() {
    let store = open(&SimDisk::new(1), Durability::Buffered).unwrap();
    let [left, right] = ["left", "right"].map(|n| store.create_table(&name(n), &config()).unwrap());

    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..2_000_u32 {
                let batch = [(b"key", Update::Insert(&number.to_le_bytes()))];
                drop(store.commit(&[(&left, &batch), (&right, &batch)]).unwrap());
            }
            is_done.store(true, Ordering::Release);
        });
        let mut last = None;
        while !is_done.load(Ordering::Acquire) {
            let views = store.views(&[&left, &right]).unwrap();
            let [left, right] = [0, 1].map(|at: usize| views[at].get(b"key").unwrap());
            assert_eq!(left.value(), right.value());
            let number = left.value().map(|value| u32::from_le_bytes(value.try_into().unwrap()));
            assert!(number >= last, "{number:?} after {last:?}");
            last = number;
        }
    });

    assert!(!store.is_poisoned());
    let last = store.last_commit();
    assert_eq!((last, store.durable_commit() < last), (2_000, true));
    store.sync_to(last - 1).unwrap();

    // One that is still to come is not waited for.
    store.sync_to(u64::MAX).unwrap();
    assert_eq!(store.durable_commit(), last);
}
