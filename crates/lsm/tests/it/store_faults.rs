//! Stores with a fault at every disk call: every kind that makes a call fail, once and from then
//! on.
//!
//! Goal: no fault makes a store panic or lose durable data. The call in progress returns the error
//! and changes nothing; reads go on, while the fault lasts as far as the disk lets them; without
//! the fault the same call succeeds. After a failed sync the store refuses to write, and opening it
//! anew brings back the last durable state at least.
//!
//! Method: the workloads of [`crate::store_sweep`], with a fault at call n, for every n-th call of
//! each script. `cargo xtask sim --store-faults N` takes every call of N scripts of each workload.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use terrane_io::{Fault, FaultKind, FaultPlan, Repeat};
use terrane_io::{SimDisk, Survival};
use terrane_lsm::{Durability, Error, Store};
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::{for_each_seed, seed_of};
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::sim::number_in;
use crate::store_script::{
    History, Runner, Script, Step, StoreState, check_image, name, run, store_state,
};
use crate::store_sweep::{Note, WORKLOADS, Workload, calls};

/// Counts of the effects of faults.
#[derive(Debug, Default)]
struct Outcome {
    runs: u64,
    /// Steps that failed.
    errors: u64,
    poisoned: u64,
    /// Stores that could not be read whole while the fault lasted.
    unread: u64,
}

impl Outcome {
    fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.errors += other.errors;
        self.poisoned += other.poisoned;
        self.unread += other.unread;
    }
}

/// Asks for what no store grants, and a poisoned one for another reason.
fn is_poisoned(store: &Store) -> bool {
    let missing = name("missing");
    matches!(store.rename_table(&missing, &missing), Err(Error::Poisoned { .. }))
}

/// Checks that a failed step left nothing behind, unless it poisoned the store. State `base` is the
/// one before the step. Returns whether the store is still usable.
fn check_failed(runner: &Runner, history: &mut History, step: &Step, base: usize) -> bool {
    let Some(store) = &runner.store else {
        // It could not be opened.
        assert!(matches!(step, Step::Reopen) || base == 0, "{step:?}");
        history.states.truncate(base + 1);
        return true;
    };

    let is_poisoned = is_poisoned(store);
    let found = store_state(store).expect("reads go on");
    let legal = match step {
        // It was done, and could not be made durable.
        Step::Commit(_, Durability::Each) => &history.states[base..],
        _ if is_poisoned => &history.states[base..],
        _ => &history.states[base..=base],
    };

    assert!(legal.contains(&found), "after {step:?}: {found:?} is none of {legal:?}");
    if !is_poisoned {
        history.states.truncate(base + 1);
        if found != *history.last() {
            history.states.push(found);
        }
    }

    !is_poisoned
}

/// While the fault lasts: what is read is right, or the disk's error. Says whether all of
/// it was read, if it is open.
fn poke(runner: &Runner, legal: &[StoreState]) -> bool {
    let Some(store) = &runner.store else { return true };
    match store_state(store) {
        Ok(found) => {
            assert!(legal.contains(&found), "{found:?} is none of {legal:?}");
            true
        }
        // What is read too short may be damage as well.
        Err(
            Error::Disk(_)
            | Error::Corrupt { .. }
            | Error::Poisoned { .. }
            | Error::StoreCorrupted { .. },
        ) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// Runs a script with a fault. What fails changes nothing, and succeeds without the fault; after a
/// failed sync the store says that it is poisoned, and opening it again brings back what is
/// durable.
fn run_with_fault(fault: Fault, seed: u64, script: &Script) -> Outcome {
    let disk = SimDisk::new(seed);
    disk.set_plan(FaultPlan { fail: Some(fault), ..FaultPlan::default() });
    let mut history = History::new();

    let mut runner = Runner::new(&disk, script);
    let mut outcome = Outcome { runs: 1, ..Outcome::default() };
    for step in &script.steps {
        let base = history.states.len() - 1;
        history.begun(step);
        if let Err(error) = runner.step(step) {
            assert!(disk.faults() > 0, "{step:?} failed without a fault: {error}");
            outcome.errors += 1;
            outcome.unread += u64::from(!poke(&runner, &history.states[base..]));
            disk.set_plan(FaultPlan::default());

            if !check_failed(&runner, &mut history, step, base) {
                drop(runner);
                outcome.poisoned += 1;
                let durability = script.durability;
                for survival in [Survival::Nothing, Survival::Random(fault.at_call)] {
                    check_image(&disk.after_crash(survival), durability, &history, history.durable);
                }
                check_image(&disk.process_kill(), durability, &history, history.logged);
                return outcome;
            }

            if matches!(step, Step::Reopen) {
                // It is closed all the same; what was logged and not synced is there.
                runner.store = None;
            } else {
                history.begun(step);
            }

            runner.step(step).expect("the step succeeds without the fault");
        }

        history.done(step, script.durability);
        if let Some(store) = &runner.store {
            history.promised(store.durable_commit());
        }
    }

    let store = runner.store.take().unwrap();
    disk.set_plan(FaultPlan::default());
    assert_eq!(&store_state(&store).unwrap(), history.last());

    if let Err(error) = store.close() {
        // A file that could not be removed when its last user was dropped.
        assert!(outcome.errors > 0 || disk.faults() > 0, "{error}");
    }

    drop(store);
    drop(runner);
    check_image(&disk, script.durability, &history, history.durable);
    outcome
}

/// All kinds, each once and for ever.
fn kinds() -> impl Iterator<Item = (FaultKind, Repeat)> {
    let each = |kind| [(kind, Repeat::Once), (kind, Repeat::Forever)];
    FaultKind::ERRORS.into_iter().flat_map(each)
}

/// A fault at every `every`-th call of a workload, another call for each kind.
fn strike(
    workload: &Workload,
    seed: u64,
    every: u64,
    (kind, repeat): (FaultKind, Repeat),
) -> Outcome {
    let script = (workload.script)(&mut ChaCha8Rng::seed_from_u64(seed));
    let whole = SimDisk::new(seed);
    run(&whole, &script);
    let mut outcome = Outcome::default();
    for at_call in calls(seed.wrapping_add(5 * kind as u64), every, whole.calls()) {
        let fault = Fault { at_call, kind, repeat };
        let note = Note { seed, workload: workload.name, what: &fault };
        outcome.add(&run_with_fault(fault, seed, &script));
        drop(note);
    }
    outcome
}

#[test]
fn every_failing_call_is_reported_and_changes_nothing_or_poisons_the_store() {
    if let Some(scripts) = number_in("TERRANE_FAULT_SCRIPTS") {
        strike_all(scripts);
        return;
    }

    for_each_seed("store_faults", 1, |_, seed| {
        for kind in kinds() {
            let mut outcome = Outcome::default();
            for workload in &WORKLOADS {
                outcome.add(&strike(workload, seed, by_effort(157, 79), kind));
            }
            let Outcome { runs, errors, poisoned, unread } = outcome;
            assert!(runs > by_effort(5, 10), "{kind:?}: {outcome:?}");
            // What is read of a script is little, and stays in memory where that is given. A disk
            // that is full once is served by the reserve.
            let is_borne = kind == (FaultKind::Enospc, Repeat::Once);
            let least = if is_borne { 1 } else { by_effort(1, 3) };
            assert!(errors >= least || kind.0 == FaultKind::ShortRead, "{kind:?}: {outcome:?}");
            assert!(poisoned > 0 || kind.0 != FaultKind::FailedSync, "{kind:?}: {outcome:?}");
            let is_of_writes =
                matches!(kind.0, FaultKind::Enospc | FaultKind::ShortWrite | FaultKind::TornWrite);
            assert!(unread == 0 || !is_of_writes, "{kind:?}: {outcome:?}");
        }
    });
}

/// Strikes every call of `scripts` scripts of each workload, with every kind of fault.
fn strike_all(scripts: u64) {
    let units: Vec<_> = (0..scripts)
        .flat_map(|number| WORKLOADS.iter().map(move |workload| (number, workload)))
        .flat_map(|unit| kinds().map(move |kind| (unit, kind)))
        .collect();

    // Numbers of different starts do not meet.
    let start = number_in("TERRANE_SIM_START").unwrap_or(0) << 32;

    let next = AtomicU64::new(0);
    let total = Mutex::new(Outcome::default());
    let work = || {
        while let Some(&((number, workload), kind)) =
            units.get(next.fetch_add(1, Ordering::Relaxed) as usize)
        {
            let outcome = strike(workload, seed_of("store_faults", start + number), 1, kind);
            let mut total = total.lock().unwrap();
            total.add(&outcome);
            eprintln!("{}, {kind:?}: {outcome:?}", workload.name);
        }
    };

    thread::scope(|scope| {
        for _ in 0..number_in("TERRANE_SIM_JOBS").unwrap_or(1) {
            scope.spawn(work);
        }
    });

    eprintln!(
        "{scripts} scripts of each workload, series {}: {:?}",
        start >> 32,
        total.lock().unwrap()
    );
}
