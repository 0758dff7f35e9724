//! Threads of a store under many schedules (`cargo xtask schedules`).
//!
//! Goal: whatever thread runs next, nobody waits for ever; a reader sees whole commits; what was
//! acknowledged is there after a loss of power at any moment; and a panic of one thread leaves the
//! others with an error. Method: each test is run under some hundred schedules of
//! [`explore`](terrane_testkit::schedules::explore).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrane_io::sync::Mutex;
use terrane_io::sync::atomic::{AtomicBool, Ordering};
use terrane_io::sync::thread;
use terrane_io::{Disk, FaultKind, FaultPlan, Repeat, SimDisk, Survival};
use terrane_lsm::{
    CheckpointThread, Durability, Error, FeedItem, MergeOperator, NamedTable, ReaderOptions,
    Session, Store, StoreReader, Ticket, Update, WriteBatch,
};
use terrane_testkit::schedules::explore;

use crate::content;
use crate::store_script::{config, name, open, options};

/// Opens a store, with a thread of checkpoints that begins one after little.
fn open_with_thread(disk: &Arc<SimDisk>) -> Store {
    let options = options(Durability::Group).checkpoint_thread(CheckpointThread::Background);
    Store::open(Arc::clone(disk) as Arc<dyn Disk>, Path::new("/store"), &options).unwrap()
}

fn two_tables(store: &Store) -> [NamedTable; 2] {
    ["main", "undo"].map(|table| store.create_table(&name(table), &config()).unwrap())
}

/// Commits the same entry to both tables.
fn put_both(store: &Store, tables: &[NamedTable; 2], key: u8, value: &[u8]) -> Ticket {
    let mut batch = WriteBatch::new();
    for table in tables {
        batch.insert(table, [key], value);
    }
    store.write(&batch).unwrap()
}

#[test]
fn acknowledged_commits_of_three_threads_survive_a_loss_of_power_at_any_moment() {
    explore("schedules_group_commit", || {
        let disk = SimDisk::new(1);
        let store = open(&disk, Durability::Group).unwrap();
        let table = store.create_table(&name("main"), &config()).unwrap();
        store.sync().unwrap();
        let acknowledged = Arc::new(Mutex::new(Vec::new()));

        let writers: Vec<_> = (0..3_u8)
            .map(|writer| {
                let (table, acknowledged) = (table.clone(), Arc::clone(&acknowledged));
                thread::spawn(move || {
                    for number in 0..3_u8 {
                        let key = [writer, number];
                        table.insert(&key, b"value").unwrap().wait().unwrap();
                        acknowledged.lock().unwrap().push(key);
                    }
                })
            })
            .collect();
        let before = acknowledged.lock().unwrap().clone();
        let crashed = disk.after_crash(Survival::Nothing);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        store.close().unwrap();

        let store = open(&crashed, Durability::Group).unwrap();
        let table = store.table(&name("main")).unwrap();
        for key in before {
            assert!(table.get(&key).unwrap().value().is_some(), "{key:?} was acknowledged");
        }
    });
}

#[test]
fn views_beside_commits_and_checkpoints_show_whole_commits() {
    explore("schedules_views", || {
        let disk = SimDisk::new(1);
        let store = Arc::new(open_with_thread(&disk));
        let [main, undo] = two_tables(&store);

        let writer = thread::spawn({
            let (store, tables) = (Arc::clone(&store), [main.clone(), undo.clone()]);
            move || {
                for number in 0..12_u8 {
                    drop(put_both(&store, &tables, number % 4, &[number; 40]));
                }
            }
        });
        let checkpoints = thread::spawn({
            let store = Arc::clone(&store);
            move || (0..2).for_each(|_| store.checkpoint().unwrap())
        });
        for _ in 0..3 {
            let views = store.views(&[&main, &undo]).unwrap();
            assert_eq!(content(&views[0]), content(&views[1]), "a part of a commit");
        }
        writer.join().unwrap();
        checkpoints.join().unwrap();

        let expected = content(&main.view().unwrap());
        assert_eq!(expected.len(), 4);
        drop((main, undo));
        Arc::into_inner(store).unwrap().close().unwrap();
        let store = open(&disk.after_crash(Survival::Nothing), Durability::Group).unwrap();
        let main = store.table(&name("main")).unwrap();
        assert_eq!(content(&main.view().unwrap()), expected, "closing makes all durable");
    });
}

#[test]
fn closing_and_dropping_beside_commits_end_and_lose_nothing_acknowledged() {
    explore("schedules_close", || {
        let disk = SimDisk::new(1);
        let store = Arc::new(open_with_thread(&disk));
        let table = store.create_table(&name("main"), &config()).unwrap();
        let writers: Vec<_> = (0..2_u8)
            .map(|writer| {
                let table = table.clone();
                thread::spawn(move || {
                    let wait = |number: u8| {
                        let waited = table.insert(&[writer, number], &[0; 200]);
                        waited.and_then(|ticket| ticket.wait()).is_ok()
                    };
                    (0..8).take_while(|number| wait(*number)).count() as u8
                })
            })
            .collect();
        let closer = thread::spawn({
            let store = Arc::clone(&store);
            move || store.close()
        });
        // One of them closes the store; the other one may find it closed.
        let closed = [store.close(), closer.join().unwrap()];
        let is_right =
            |closed: &Result<(), Error>| matches!(closed, Ok(()) | Err(Error::SessionClosed));
        assert!(closed.iter().all(is_right) && closed.iter().any(Result::is_ok), "{closed:?}");
        let durable: Vec<u8> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        drop((table, store));

        let store = open(&disk.after_crash(Survival::Nothing), Durability::Group).unwrap();
        let table = store.table(&name("main")).unwrap();
        for (writer, count) in durable.into_iter().enumerate() {
            for number in 0..count {
                let found = table.get(&[writer as u8, number]).unwrap();
                assert!(found.value().is_some(), "{writer}, {number} was acknowledged");
            }
        }
    });
}

#[test]
fn readers_beside_a_writer_see_whole_commits_while_files_go() {
    explore("schedules_readers", || {
        let disk = SimDisk::new(1);
        let store = Arc::new(open_with_thread(&disk));
        let tables = two_tables(&store);
        put_both(&store, &tables, 0, b"first").wait().unwrap();

        let writer = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                for number in 0..24_u8 {
                    let ticket = put_both(&store, &tables, number % 6, &[number; 40]);
                    if number % 8 == 7 {
                        ticket.wait().unwrap();
                        store.checkpoint().unwrap();
                    }
                }
            }
        });
        let shared: Arc<dyn Disk> = disk.clone();
        let options = ReaderOptions::default();
        let mut reader = StoreReader::open(shared, Path::new("/store"), &options).unwrap();
        for _ in 0..3 {
            reader.refresh().unwrap();
            let [main, undo] = ["main", "undo"].map(|table| reader.table(&name(table)).unwrap());
            assert_eq!(content(&main), content(&undo), "a part of a commit");
        }
        writer.join().unwrap();
        drop(reader);
        Arc::into_inner(store).unwrap().close().unwrap();
    });
}

#[test]
fn lookups_submitted_by_two_threads_beside_updates_answer_as_of_their_submission() {
    explore("schedules_submitted", || {
        let disk: Arc<dyn Disk> = SimDisk::new(1);
        let session = terrane_lsm::SessionOptions::with_salt(crate::SALT).create_dir();
        let session = Session::open(disk, Path::new("/session"), &session).unwrap();
        let mut table = session.new_table(&config()).unwrap();
        for number in 0..40_u8 {
            table.insert(&[number], &[0]).unwrap();
        }
        let askers: Vec<_> = (0..2_u8)
            .map(|asker| {
                let table = table.fork().unwrap();
                thread::spawn(move || {
                    let keys: Vec<_> = (0..40_u8).map(|number| [number]).collect();
                    let first = table.submit(&keys[..20]).unwrap();
                    let second = table.submit(&keys[20..]).unwrap();
                    // In either order of taking.
                    let batches = if asker == 0 { [first, second] } else { [second, first] };
                    for batch in batches {
                        for found in batch.wait().unwrap() {
                            assert_eq!(found.value(), Some(&[0][..]));
                        }
                    }
                })
            })
            .collect();
        for number in 0..40_u8 {
            table.insert(&[number], &[1]).unwrap();
        }
        askers.into_iter().for_each(|asker| asker.join().unwrap());
        assert_eq!(table.get(&[7]).unwrap().value(), Some(&[1][..]));
    });
}

#[test]
fn increments_by_transactions_of_three_threads_are_all_counted() {
    explore("schedules_transactions", || {
        let disk = SimDisk::new(1);
        let store = Arc::new(open(&disk, Durability::Buffered).unwrap());
        let table = store.create_table(&name("main"), &config()).unwrap();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (store, table) = (Arc::clone(&store), table.clone());
                thread::spawn(move || {
                    loop {
                        let transaction = store.transaction().unwrap();
                        let found = transaction.get(&table, b"sum").unwrap();
                        let sum = found.value().map_or(0, |value| value[0]);
                        transaction.insert(&table, b"sum", [sum + 1]).unwrap();
                        match transaction.commit() {
                            Ok(_) => break,
                            Err(Error::Conflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(table.get(b"sum").unwrap().value(), Some(&[3][..]));
    });
}

#[test]
fn a_panic_in_one_commit_leaves_the_other_threads_with_an_error() {
    explore("schedules_panics", || {
        let is_armed = Arc::new(AtomicBool::new(false));
        let function = {
            let is_armed = Arc::clone(&is_armed);
            move |newer: &[u8], older: &[u8]| {
                assert!(!is_armed.load(Ordering::SeqCst), "as planned");
                [older, newer].concat()
            }
        };
        let operator = MergeOperator::new("mine", function).unwrap();
        let disk = SimDisk::new(1);
        let opened = options(Durability::Group).merge_operator(operator.clone());
        let opened = opened.checkpoint_thread(CheckpointThread::Background);
        let shared: Arc<dyn Disk> = disk.clone();
        let store = Store::open(shared, Path::new("/store"), &opened).unwrap();
        let table = store.create_table(&name("main"), &config().merge_operator(operator)).unwrap();
        table.insert(b"first", b"durable").unwrap().wait().unwrap();

        let writer = thread::spawn({
            let table = table.clone();
            move || {
                for number in 0..4_u8 {
                    // An error is what the writer may get; waiting for ever is not.
                    match table.insert(&[number], b"value") {
                        Ok(ticket) => drop(ticket.wait()),
                        Err(Error::Panicked { .. }) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        is_armed.store(true, Ordering::SeqCst);
        let both = [(b"key", Update::Upsert(&b"1"[..])), (b"key", Update::Upsert(b"2"))];
        let commit = std::panic::AssertUnwindSafe(|| drop(table.write_batch(&both)));
        assert!(std::panic::catch_unwind(commit).is_err(), "no function was called");
        is_armed.store(false, Ordering::SeqCst);
        writer.join().unwrap();
        drop((table, store));

        let store = Store::open(disk.after_crash(Survival::Nothing), Path::new("/store"), &opened);
        let found = store.unwrap().table(&name("main")).unwrap().get(b"first").unwrap();
        assert_eq!(found.value(), Some(&b"durable"[..]));
    });
}

#[test]
fn a_failed_fsync_is_told_to_every_thread_and_takes_nothing_acknowledged() {
    explore("schedules_failed_fsync", || {
        let disk = SimDisk::new(1);
        let store = open(&disk, Durability::Group).unwrap();
        let table = store.create_table(&name("main"), &config()).unwrap();
        store.sync().unwrap();
        disk.set_plan(FaultPlan::fail(disk.calls() + 4, FaultKind::FailedSync, Repeat::Once));

        let writers: Vec<_> = (0..3_u8)
            .map(|writer| {
                let table = table.clone();
                thread::spawn(move || {
                    let wait = |number: &u8| {
                        let ticket = table.insert(&[writer, *number], b"value");
                        match ticket.and_then(|ticket| ticket.wait()) {
                            Ok(()) => true,
                            Err(Error::Disk(_) | Error::Poisoned { .. }) => false,
                            Err(error) => panic!("{error}"),
                        }
                    };
                    (0..4).take_while(wait).count() as u8
                })
            })
            .collect();
        let counts: Vec<u8> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        if disk.faults() > 0 {
            assert!(store.is_poisoned());
            assert!(matches!(table.insert(b"more", b""), Err(Error::Poisoned { .. })));
        }
        drop((table, store));

        let store = open(&disk.after_crash(Survival::Nothing), Durability::Group).unwrap();
        let table = store.table(&name("main")).unwrap();
        for (writer, count) in counts.into_iter().enumerate() {
            for number in 0..count {
                let found = table.get(&[writer as u8, number]).unwrap();
                assert!(found.value().is_some(), "{writer}, {number} was acknowledged");
            }
        }
    });
}

#[test]
fn a_feed_that_waits_beside_two_writers_tells_every_durable_commit_in_order() {
    explore("schedules_feed", || {
        let disk = SimDisk::new(1);
        let store = Arc::new(open_with_thread(&disk));
        let table = store.create_table(&name("main"), &config()).unwrap();
        table.insert(b"first", b"").unwrap().wait().unwrap();
        let mut changes = store.changes(store.durable_commit() + 1).unwrap();
        let writers: Vec<_> = (0..2_u8)
            .map(|writer| {
                let table = table.clone();
                thread::spawn(move || {
                    for number in 0..3_u8 {
                        table.insert(&[writer, number], b"value").unwrap().wait().unwrap();
                    }
                })
            })
            .collect();

        let (mut told, mut last) = (Vec::new(), 0);
        while told.len() < 6 {
            let Some(item) = changes.wait(Duration::from_secs(1)).unwrap() else { continue };
            if let FeedItem::Commit(item) = item {
                assert!(last <= item.number, "commits come in their order");
                last = item.number;
                let updates = item.tables.into_iter().flat_map(|part| part.updates);
                told.extend(updates.map(|update| update.key));
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        told.sort();
        let expected = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]];
        assert!(told.iter().eq(expected.iter()), "{told:?}");
    });
}
