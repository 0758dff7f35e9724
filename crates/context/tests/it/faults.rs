//! Calls on the disk that fail.
//!
//! Goal: a step whose call fails says so with a typed error and has not happened; what was there is
//! still read; once the fault is gone the step works. After a sync that failed nothing is written
//! any more, and after a loss of power every durable commit is there. Nothing panics.
//!
//! Method: a script is run with a call that fails, every call in turn, and with the other kinds of
//! faults at many calls; once or from then on.

use std::sync::Arc;

use terrane_context::{Durability, Error, Meta, Retain, Store};
use terrane_io::{Disk, ErrorKind};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_io::{SimDisk, Survival};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Note, Sweep};

use crate::script::{
    Kind, Script, State, Step, content_of, create, draw_options, go, open, options, steps_of,
};

/// Checks that an error of a failed step is one that the fault may cause.
fn check_error(error: &Error, kind: FaultKind) {
    let is_expected = match error {
        Error::Disk(_) | Error::Index { .. } | Error::Poisoned { .. } => true,
        // The end of a file that comes too early is a file that is too short.
        Error::Corrupt { .. } => kind == FaultKind::ShortRead,
        // A collection has used the reserve of the store.
        Error::OutOfSpace { .. } => kind == FaultKind::Enospc,
        _ => false,
    };
    assert!(is_expected, "{error:?}");
}

/// Opens the store after a loss of power; it has a state between two steps, none before the last
/// durable one.
fn check_after_crash(disk: &SimDisk, script: &Script, durable: usize, begun: usize) {
    for survival in [Survival::Nothing, Survival::Random(begun as u64)] {
        let crashed = disk.after_crash(survival);
        let shared: Arc<dyn Disk> = crashed.clone();
        let store = open(&shared, &script.options).expect("it opens after a fault and a crash");
        let found = script.state_of(&store).unwrap();
        let legal = &script.states[durable..=begun];
        assert!(legal.contains(&found), "{found:?} is none of {legal:?}");
        script.check_commits(&store, &found, 2);
    }
}

/// Whether what the fault touches can still be read while it lasts.
fn leaves_reads(kind: FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::Enospc | FaultKind::ShortWrite | FaultKind::TornWrite | FaultKind::FailedSync
    )
}

/// The store after a step that has failed: as before it, or, where only its durability failed, as
/// after it.
fn check_readable(script: &Script, store: &Store, number: usize) -> State {
    let found = script.state_of(store).unwrap();
    let legal = &script.states[number..number + 2];
    assert!(legal.contains(&found), "{found:?} is none of {legal:?}");
    script.check_commits(store, &found, 1);
    found
}

/// Runs a script with a fault; says whether the store ended up poisoned.
fn run(disk: &Arc<SimDisk>, script: &Script, kind: FaultKind) -> bool {
    let shared: Arc<dyn Disk> = disk.clone();
    let mut store = match create(&shared, &script.options) {
        Ok(store) => store,
        Err(error) => {
            check_error(&error, kind);
            if kind == FaultKind::FailedSync {
                return false; // what a sync has lost of a directory no later one makes durable
            }
            disk.set_plan(FaultPlan::default());
            match create(&shared, &script.options) {
                Err(Error::AlreadyExists { .. }) => open(&shared, &script.options).unwrap(),
                other => other.unwrap(),
            }
        }
    };
    let mut durable = 0;

    for (number, step) in script.steps.iter().enumerate() {
        if let Err(error) = script.take(&mut store, &shared, step) {
            assert!(disk.faults() > 0, "{step:?}: {error}");
            check_error(&error, kind);
            let is_reopening = matches!(step, Step::Reopen);
            if leaves_reads(kind) && !is_reopening {
                check_readable(script, &store, number);
            }
            disk.set_plan(FaultPlan::default());
            if !is_reopening {
                check_readable(script, &store, number);
            }
            let again = script.take(&mut store, &shared, step);
            let is_broken = matches!(again, Err(Error::Poisoned { .. } | Error::Index { .. }));
            if kind == FaultKind::FailedSync && !matches!(step, Step::Collect(_) | Step::Reopen) {
                assert!(is_broken, "{step:?}: {again:?}");
            }
            if is_broken || kind == FaultKind::FailedSync && is_reopening {
                if !is_reopening {
                    check_readable(script, &store, number);
                }
                drop(store);
                check_after_crash(disk, script, durable, number + 1);
                return true;
            }

            again.unwrap_or_else(|error| panic!("{step:?} again: {error}"));
        }

        match script.state_of(&store) {
            Ok(state) => assert_eq!(state, script.states[number + 1], "{step:?}"),
            Err(error) => assert!(disk.faults() > 0, "{error}"),
        }

        if script.is_durable(step) {
            durable = number + 1;
        }
    }

    disk.set_plan(FaultPlan::default());
    let all = script.steps.len();
    if let Err(error) = store.close() {
        assert!(matches!(error, Error::Index { .. }), "{error:?}");
    } else {
        durable = all;
    }

    drop(store);
    check_after_crash(disk, script, durable, all);
    false
}

#[test]
fn a_fault_at_any_call_changes_nothing_and_work_goes_on() {
    let name = "a_fault_at_any_call_changes_nothing_and_work_goes_on";
    sweep(name, &|rng, script| {
        script.push(Step::Collect(2));
        script.push_commit(rng);
    });
}

#[test]
fn a_fault_at_any_call_of_a_store_with_an_archive_loses_nothing() {
    let name = "a_fault_at_any_call_of_a_store_with_an_archive_loses_nothing";
    sweep(name, &|rng, script| {
        for _ in 0..2 {
            script.push(Step::AddVolume);
            script.push(Step::Collect(1));
            script.push_commit(rng);
        }
    });
}

/// Runs a script that `end` ends with a fault at each of its calls.
fn sweep(name: &str, end: &dyn Fn(&mut ChaCha8Rng, &mut Script)) {
    let mut poisoned = 0;
    for_each_seed(name, 1, |rng, seed| {
        let options = draw_options(rng);
        let kind = Kind { commits: 9, wide: 25, collects: true, reopens: true };
        let mut script = Script::draw(rng, options, kind);
        end(rng, &mut script);
        for kind in FaultKind::ERRORS {
            // Of the others many strike the same call.
            let sweep = Sweep::sampled(seed, 7).one_in(if kind == FaultKind::Eio { 1 } else { 5 });
            sweep.fault(kind, None, |disk, _| {
                poisoned += usize::from(run(disk, &script, kind));
            });
        }
    });
    assert!(poisoned > by_effort(2, 20), "{poisoned}");
}

#[test]
fn a_full_disk_is_left_as_it_was_and_goes_on_when_there_is_room() {
    let mut was_full = 0;
    for_each_seed(
        "a_full_disk_is_left_as_it_was_and_goes_on_when_there_is_room",
        3,
        |rng, seed| {
            let options = draw_options(rng);
            let kind = Kind { commits: 25, wide: 25, collects: true, reopens: true };
            let script = Script::draw(rng, options, kind);
            for kib in (200..900).step_by(by_effort(48, 16)) {
                let disk = SimDisk::new(seed);
                disk.set_plan(FaultPlan::capacity(kib << 10));
                let shared: Arc<dyn Disk> = disk.clone();
                let _note = Note(&(seed, kib));
                let Ok(mut store) = create(&shared, &script.options) else { continue };
                for (number, step) in script.steps.iter().enumerate() {
                    if let Err(error) = script.take(&mut store, &shared, step) {
                        was_full += 1;
                        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
                        if !matches!(step, Step::Reopen) {
                            check_readable(&script, &store, number);
                        }
                        disk.set_plan(FaultPlan::default());
                        script
                            .take(&mut store, &shared, step)
                            .unwrap_or_else(|error| panic!("{step:?} with room: {error}"));
                    }
                    assert_eq!(script.state_of(&store).unwrap(), script.states[number + 1]);
                }
                disk.set_plan(FaultPlan::default());
                store.close().unwrap();
            }
        },
    );
    assert!(was_full > by_effort(6, 20), "{was_full}");
}

/// A commit that fails leaves its context as it was: the same context is committed when the fault
/// is gone, with the hash that it would have had.
#[test]
fn a_commit_that_failed_is_made_of_the_same_context_again() {
    let mut failed = 0;
    let kinds = [FaultKind::Eio, FaultKind::Enospc, FaultKind::ShortWrite, FaultKind::TornWrite];
    for kind in kinds {
        for call in 0.. {
            let disk = SimDisk::new(call);
            let shared: Arc<dyn Disk> = disk.clone();
            let store = create(&shared, &options()).unwrap();
            let mut context = store.empty();
            for name in 0..300 {
                context.add(&steps_of(&format!("wide/{name}")), vec![name as u8; 60]).unwrap();
            }
            let first = store.commit(&context, &Meta::tezos(1, "")).unwrap();
            context.advance(first);

            // Larger than a chunk: several frames, and several chunks.
            for name in 0..60 {
                context.add(&steps_of(&format!("big/{name}")), vec![name as u8; 400]).unwrap();
            }

            let meta = Meta::tezos(2, "");
            let expected = store.hash(&context, &meta);
            disk.set_plan(FaultPlan::fail(disk.calls() + call, kind, Repeat::Once));
            let outcome = store.commit(&context, &meta);
            let is_over = disk.faults() == 0;
            disk.set_plan(FaultPlan::default());
            let _note = Note(&(kind, call));

            match outcome {
                Ok(hash) => assert_eq!(hash, expected),
                Err(Error::Disk(_) | Error::Index { .. }) => {
                    failed += 1;
                    assert!(!store.exists(&expected).unwrap() || kind == FaultKind::Eio);
                    assert_eq!(store.hash(&context, &meta), expected);
                    match store.commit(&context, &meta) {
                        Ok(hash) => assert_eq!(hash, expected),
                        // The call that failed was a sync, of the pack or of the index.
                        Err(Error::Poisoned { .. } | Error::Index { .. })
                            if kind == FaultKind::Eio =>
                        {
                            continue;
                        }
                        Err(error) => panic!("again: {error}"),
                    }
                }
                Err(error) => panic!("{error}"),
            }

            let content = content_of(&context).unwrap();
            drop(context);
            store.close().unwrap();
            drop(store);
            let crashed: Arc<dyn Disk> = disk.after_crash(Survival::Nothing);
            let store = open(&crashed, &options()).unwrap();
            let found = store.checkout(&expected).unwrap().expect("it was committed");
            assert!(content_of(&found).unwrap() == content);

            if is_over {
                break;
            }
        }
    }

    assert!(failed > 40, "{failed}");
}

/// After a sync that failed every call that writes is refused, reads go on, and closing gives the
/// store up; opened anew it works.
#[test]
fn a_store_is_poisoned_by_a_sync_that_failed_until_it_is_opened_anew() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let store = create(&shared, &options()).unwrap();
    let mut context = store.empty();
    context.add(&["n"], *b"1").unwrap();
    let first = store.commit(&context, &Meta::tezos(1, "")).unwrap();
    store.set_branch(b"main", &first).unwrap();
    disk.set_plan(FaultPlan::fail(disk.calls(), FaultKind::FailedSync, Repeat::Once));
    context.add(&["n"], *b"2").unwrap();
    let meta = Meta::tezos(2, "");
    assert!(matches!(store.commit(&context, &meta), Err(Error::Disk(_))));
    assert!(matches!(store.commit(&context, &meta), Err(Error::Poisoned { .. })));
    assert!(matches!(store.flush(context.tree()), Err(Error::Poisoned { .. })));
    assert!(matches!(store.set_branch(b"x", &first), Err(Error::Poisoned { .. })));
    assert!(matches!(store.remove_branch(b"main"), Err(Error::Poisoned { .. })));
    assert!(matches!(store.split(), Err(Error::Poisoned { .. })));
    assert!(matches!(store.sync(), Err(Error::Poisoned { .. })));
    let collected = store.collect(&Retain::newest(1), &mut go);
    assert!(matches!(collected, Err(Error::Poisoned { .. })));
    let read = store.checkout(&first).unwrap().unwrap();
    assert_eq!(read.find(&["n"]).unwrap().as_deref(), Some(b"1".as_slice()));
    store.close().unwrap();
    drop(store);
    let crashed: Arc<dyn Disk> = disk.after_crash(Survival::Nothing);
    let store = open(&crashed, &options()).unwrap();
    assert_eq!(store.branch(b"main"), Some(first));
    let mut context = store.checkout(&first).unwrap().unwrap();
    context.add(&["n"], *b"3").unwrap();
    store.commit(&context, &Meta::tezos(3, "")).unwrap();

    assert_eq!(options().durability, Durability::Each);
}
