//! Concurrent operations on snapshots.
//!
//! Goal: no operation waits for another's saving, every listed name stands for a whole snapshot,
//! and closing leaves each snapshot whole or absent. Method: a gate holds one operation at a chosen
//! disk call while the test tries others; besides, threads do everything at once, on both disks.

use std::sync::Arc;
use std::thread;

use terrane_lsm::{Error, Result, Session, SessionOptions, Table};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::gate::GateDisk;
use crate::{SALT, SessionDir, buffer_of, content, fill, name};

const LABEL: &str = "ledger";

/// A session on a disk with a gate, with a table of 50 entries saved as `there`.
fn session(place: &SessionDir) -> (Arc<GateDisk>, Session, Table) {
    let gate = GateDisk::new(place.disk());
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(Arc::clone(&gate) as _, &place.dir(), &options).unwrap();
    let mut table = session.new_table(&buffer_of(7)).unwrap();
    fill(&mut table, 0..50);
    table.save_snapshot(&name("there"), LABEL).unwrap();
    (gate, session, table)
}

#[track_caller]
fn is_missing<T>(result: Result<T>, name: &str) {
    assert!(matches!(result, Err(Error::SnapshotDoesNotExist { name: found }) if found == name));
}

#[track_caller]
fn is_taken<T>(result: Result<T>, name: &str) {
    assert!(matches!(result, Err(Error::SnapshotExists { name: found }) if found == name));
}

#[test]
fn nobody_waits_for_a_save_and_nobody_sees_its_snapshot_before_the_end() {
    for place in SessionDir::both() {
        let (gate, session, table) = session(&place);
        let saved = content(&table);
        let slow = name("slow");
        gate.close("rename", place.dir().join("snapshots/slow.snapshot"));

        thread::scope(|scope| {
            let saving = scope.spawn(|| table.save_snapshot(&slow, LABEL));
            let held = gate.wait();
            assert_eq!(session.list_snapshots().unwrap(), [name("there")]);
            assert!(!session.snapshot_exists(&slow).unwrap());
            is_missing(session.open_snapshot(&slow, LABEL), "slow");
            is_missing(session.snapshot_info(&slow), "slow");
            is_missing(session.delete_snapshot(&slow), "slow");
            assert!(!session.delete_snapshot_if_exists(&slow).unwrap());
            is_missing(session.rename_snapshot(&slow, &name("other")), "slow");
            is_taken(session.rename_snapshot(&name("there"), &slow), "slow");
            is_taken(table.save_snapshot(&slow, LABEL), "slow");
            // All that concerns other names goes on, other saves of the same table included.
            table.save_snapshot(&name("quick"), LABEL).unwrap();
            session.rename_snapshot(&name("there"), &name("moved")).unwrap();
            assert_eq!(content(&session.open_snapshot(&name("moved"), LABEL).unwrap()), saved);
            session.delete_snapshot(&name("moved")).unwrap();
            assert_eq!(session.list_snapshots().unwrap(), [name("quick")]);
            drop(held);
            saving.join().unwrap().unwrap();
        });

        assert_eq!(session.list_snapshots().unwrap(), [name("quick"), slow.clone()]);
        assert_eq!(content(&session.open_snapshot(&slow, LABEL).unwrap()), saved);
    }
}

#[test]
fn closing_waits_for_a_save_which_is_whole_then() {
    for place in SessionDir::both() {
        let (gate, session, table) = session(&place);
        let saved = content(&table);
        gate.close("rename", place.dir().join("snapshots/slow.snapshot"));

        thread::scope(|scope| {
            let saving = scope.spawn(|| table.save_snapshot(&name("slow"), LABEL));
            let held = gate.wait();
            let closing = scope.spawn(|| session.close());
            while session.list_snapshots().is_ok() {
                thread::yield_now();
            }
            let refused = table.save_snapshot(&name("late"), LABEL);
            assert!(matches!(refused, Err(Error::SessionClosed)), "{refused:?}");
            // Until the save has ended nobody else gets the directory.
            for _ in 0..200 {
                let refused = place.try_open(SALT).map(drop);
                assert!(matches!(refused, Err(Error::SessionDirLocked { .. })), "{refused:?}");
                thread::yield_now();
            }
            drop(held);
            saving.join().unwrap().unwrap();
            closing.join().unwrap().unwrap();
        });

        drop((table, session));
        let session = place.open();
        assert_eq!(session.list_snapshots().unwrap(), [name("slow"), name("there")]);
        assert_eq!(content(&session.open_snapshot(&name("slow"), LABEL).unwrap()), saved);
    }
}

#[test]
fn a_snapshot_deleted_or_renamed_while_it_is_opened_opens_all_the_same() {
    for place in SessionDir::both() {
        for is_deleted in [true, false] {
            let (gate, session, mut table) = session(&place);
            let saved = content(&table);

            // Nobody but the snapshot has its oldest run then.
            fill(&mut table, 1_000..1_200);
            drop(table);
            let run = place.runs().into_iter().max().unwrap();
            gate.close("open", run);

            thread::scope(|scope| {
                let opening = scope.spawn(|| session.open_snapshot(&name("there"), LABEL));
                let held = gate.wait();
                if is_deleted {
                    session.delete_snapshot(&name("there")).unwrap();
                } else {
                    session.rename_snapshot(&name("there"), &name("moved")).unwrap();
                }
                drop(held);
                let table = opening.join().unwrap().unwrap();
                assert_eq!(content(&table), saved);
            });

            // A table that was opened holds the runs, and nothing else does any more.
            assert_eq!(place.runs().is_empty(), is_deleted, "{:?}", place.runs());
            session.delete_snapshot_if_exists(&name("moved")).unwrap();
            assert!(place.runs().is_empty(), "{:?}", place.runs());
        }
    }
}

#[test]
fn closing_gives_up_an_opening_that_is_under_way() {
    for place in SessionDir::both() {
        let (gate, session, table) = session(&place);
        drop(table);
        let run = place.runs().into_iter().min().unwrap();
        gate.close("open", run);

        thread::scope(|scope| {
            let opening = scope.spawn(|| session.open_snapshot(&name("there"), LABEL));
            let held = gate.wait();
            let closing = scope.spawn(|| session.close());
            while session.list_snapshots().is_ok() {
                thread::yield_now();
            }
            drop(held);
            let opened = opening.join().unwrap().map(drop);
            assert!(matches!(opened, Err(Error::SessionClosed)), "{opened:?}");
            closing.join().unwrap().unwrap();
        });
    }
}

/// Threads save, open, rename and delete under few names; whatever the order, each call succeeds or
/// says that a name is missing or taken, and what is listed at the end is whole.
#[test]
fn all_operations_at_once_leave_whole_snapshots() {
    for_each_seed("all_operations_at_once_leave_whole_snapshots", 2, |_, seed| {
        for place in SessionDir::both() {
            let (_, session, table) = session(&place);
            let saved = content(&table);
            thread::scope(|scope| {
                for number in 0..4 {
                    let session = &session;
                    let table = &table;
                    let saved = &saved;
                    let rng = ChaCha8Rng::seed_from_u64(seed + number);
                    scope.spawn(move || work(session, table, saved, rng));
                }
            });
            let names = session.list_snapshots().unwrap();
            session.close().unwrap();
            drop((table, session));
            let session = place.open();
            assert_eq!(session.list_snapshots().unwrap(), names);
            for name in names {
                assert_eq!(content(&session.open_snapshot(&name, LABEL).unwrap()), saved);
                session.delete_snapshot(&name).unwrap();
            }
            assert!(place.runs().is_empty(), "{:?}", place.runs());
            session.close().unwrap();
        }
    });
}

fn work(session: &Session, table: &Table, saved: &[(Vec<u8>, Vec<u8>)], mut rng: ChaCha8Rng) {
    for _ in 0..30 {
        let names = ["a", "b", "c"].map(name);
        let one = rng.pick(&names).clone();
        let other = rng.pick(&names).clone();
        let result = match rng.below(5) {
            0 | 1 => table.save_snapshot(&one, LABEL),
            2 => session.rename_snapshot(&one, &other),
            3 => session.delete_snapshot(&one),
            _ => session.open_snapshot(&one, LABEL).map(|table| assert_eq!(content(&table), saved)),
        };
        match result {
            Ok(()) | Err(Error::SnapshotExists { .. } | Error::SnapshotDoesNotExist { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
