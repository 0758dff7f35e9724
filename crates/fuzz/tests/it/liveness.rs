//! Stores while every call fails, and after that.
//!
//! Goal: whatever kind of store, a call returns while the disk refuses everything. Once the faults
//! stop, the store opens. Commits, works and closing then take a bounded number of disk calls:
//! nothing is tried for ever, and no work has piled up. Nothing acknowledged is lost. Method: a
//! store on the simulated disk, whose calls fail from a drawn one on; the calls of the same work on
//! a store that met no fault are the measure.

use std::path::Path;
use std::sync::Arc;

use terrane_io::{FaultKind, FaultPlan, Repeat, SimDisk};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Note;

use crate::places::{COMMITS, DIR, fill, shared};
use crate::stores::Kind;
use crate::writers::assert_last;

/// Calls of a store that the disk refuses everything.
const TRIES: u64 = 30;

/// Disk calls of a piece of work after faults, as a multiple of those without any, and some more: a
/// log is read, remains are moved away, a merge begins anew.
const FACTOR: u64 = 2;
const MORE: u64 = 100;

/// A store with some commits, whose process has ended.
fn store(kind: Kind, settings: u64) -> Arc<SimDisk> {
    let sim = SimDisk::new(settings);
    fill(kind, &sim, settings, |_| ()).unwrap();
    sim.process_kill()
}

/// Opens the store after the faults, and does what a process does; returns the disk calls of that.
fn go_on(kind: Kind, sim: &Arc<SimDisk>, settings: u64, durable: u64) -> u64 {
    let disk = shared(sim);
    let before = sim.calls();
    let mut store = kind.open(&disk, Path::new(DIR), settings).unwrap();
    let last = store.check().unwrap();
    assert_last(durable, last);
    for number in last + 1..last + 6 {
        store.commit(number).unwrap();
        store.maintain(number).unwrap();
    }
    store.close().unwrap();
    let calls = sim.calls() - before;
    kind.verify(&disk, Path::new(DIR)).unwrap();
    calls
}

/// Works on a store all of whose disk calls fail from a drawn one on; returns the disk without
/// faults after the end of the process, and its last durable commit.
fn suffer(
    kind: Kind,
    sim: &Arc<SimDisk>,
    settings: u64,
    rng: &mut ChaCha8Rng,
    most: u64,
) -> (Arc<SimDisk>, u64) {
    let disk = shared(sim);
    let mut store = kind.open(&disk, Path::new(DIR), settings).unwrap();
    let mut durable = store.check().unwrap();
    let faults = [FaultKind::Eio, FaultKind::Enospc, FaultKind::FailedSync];
    let fault = *rng.pick(&faults);
    sim.set_plan(FaultPlan::fail(sim.calls() + rng.below(60), fault, Repeat::Forever));

    for _ in 0..TRIES {
        let before = sim.calls();
        match rng.below(3) {
            0 => drop(store.check()),
            1 => drop(store.maintain(rng.below(100))),
            _ => {
                // A commit that failed may be there all the same: the next one finds out.
                if store.commit(durable + 1).is_ok() {
                    durable += 1;
                }
            }
        }
        let calls = sim.calls() - before;
        assert!(calls <= most, "{fault:?}: {calls} calls of one attempt, {most} are enough");
    }

    assert!(sim.faults() > 0, "{fault:?} struck no call");
    let ended = sim.process_kill();
    ended.set_plan(FaultPlan::default());
    drop(store);
    (ended, durable)
}

#[test]
fn work_ends_while_every_call_fails_and_after_that() {
    for_each_seed("liveness", by_effort(3, 40), |rng, _| {
        for kind in Kind::ON_DISK {
            let settings = rng.below(1 << 16);
            let place = (kind, settings);
            let _note = Note(&place);
            let untroubled = go_on(kind, &store(kind, settings), settings, COMMITS);

            let sim = store(kind, settings);
            let most = FACTOR * untroubled + MORE;
            let (sim, durable) = suffer(kind, &sim, settings, rng, most);
            let calls = go_on(kind, &sim, settings, durable);
            assert!(calls <= most, "{calls} calls after faults, {untroubled} without any");
        }
    });
}
