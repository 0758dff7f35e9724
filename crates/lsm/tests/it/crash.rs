//! Power loss and process death at every disk call.
//!
//! Goal: whatever survives a crash, the session opens again, and each snapshot is absent or whole:
//! there if its saving had returned, gone if its deletion had, either if the call was under way;
//! under its old or its new name, but under one of them, if it was being renamed. Nothing that no
//! snapshot needs stays on the disk, and work goes on. What a session has listed after such an
//! opening holds against the next crash.
//!
//! Method: a script is run with a crash at call n, for every n; for each of several choices of what
//! survives of the unsynced sectors and names, the disk is opened again and looked through. On one
//! of these disks for each n the same is done to the recovery: a crash at one of its calls, every
//! call in turn.

use std::sync::Arc;

use terrane_io::FaultPlan;
use terrane_io::{SimDisk, Survival};
use terrane_lsm::SnapshotName;
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Crash, Loss, Note, Sweep};
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::script::{
    LABEL, Model, Runner, Script, Snapshots, Step, check_table, draw_batch, files_in, open,
    snapshot_name,
};

/// Crash images that one script must give at least: fewer mean that the script does too little.
const IMAGES_MIN: u64 = 2_000;

/// Runs a script until the disk crashes. Returns the states of the snapshots that are legal then,
/// and the steps that were completed.
fn run(disk: &Arc<SimDisk>, script: &Script, mut model: Model) -> (Vec<Snapshots>, usize) {
    let mut runner = Runner::new(disk, script);
    for (number, step) in script.steps.iter().enumerate() {
        if disk.has_crashed() {
            return (vec![model.snapshots], number);
        }
        if let Err(error) = runner.step(step, &model) {
            assert!(disk.has_crashed(), "{step:?} failed without a crash: {error}");
            let before = model.snapshots.clone();
            model.apply(step);
            return (vec![before, model.snapshots], number);
        }
        model.apply(step);
    }

    (vec![model.snapshots], script.steps.len())
}

/// [`run`] from nothing; an undisturbed run completes all steps.
fn run_whole(disk: &Arc<SimDisk>, script: &Script) -> (Vec<Snapshots>, usize) {
    let (legal, steps) = run(disk, script, Model::default());
    assert!(disk.has_crashed() || steps == script.steps.len());
    (legal, steps)
}

/// Opens the session and reads all of its snapshots.
fn list(disk: &Arc<SimDisk>, keys: &[Vec<u8>], legal: &[Snapshots]) -> Snapshots {
    let session = open(disk).expect("a session opens after a crash");
    let names = session.list_snapshots().unwrap();
    let names: Vec<&str> = names.iter().map(SnapshotName::as_str).collect();
    let found = legal.iter().find(|state| state.keys().eq(&names));
    let found = found.unwrap_or_else(|| panic!("snapshots {names:?} are not as saved"));
    for (name, content) in found {
        let table = session.open_snapshot(&snapshot_name(name), LABEL);
        let table = table.expect("a listed snapshot is whole");
        check_table(&table, content, keys).expect("a listed snapshot is whole");
    }
    found.clone()
}

/// Script of a program after a crash: opens the session, opens a snapshot, saves under the name
/// that the crash may have hit, and deletes the snapshot that it opened.
fn recovery(script: &Script, state: &Snapshots, hit: &'static str, seed: u64) -> Script {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let mut steps = vec![Step::Open];
    match state.keys().next_back() {
        Some(name) => steps.push(Step::OpenSnapshot(name.clone())),
        None => steps.push(Step::NewTable),
    }

    for _ in 0..2 {
        steps.push(Step::Updates(0, draw_batch(&script.keys, 8, rng)));
    }

    if state.contains_key(hit) {
        steps.push(Step::Delete(hit));
    }
    steps.push(Step::Save(0, hit));
    steps.push(Step::Updates(0, draw_batch(&script.keys, 8, rng)));
    steps.extend([Step::Read(0), Step::Close]);
    Script { steps, ..script.clone() }
}

/// Looks through a disk after a crash, and leaves nothing behind.
fn check_image(disk: &Arc<SimDisk>, script: &Script, legal: &[Snapshots]) {
    let snapshots = list(disk, &script.keys, legal);
    let session = open(disk).unwrap();
    for name in snapshots.keys() {
        session.delete_snapshot(&snapshot_name(name)).unwrap();
    }
    // Runs are removed when nothing refers to them, so what is left now was left by the crash.
    let left = [files_in(disk, "active"), files_in(disk, "snapshots")].concat();
    assert!(left.is_empty(), "left behind: {left:?}");
    session.close().unwrap();
    drop(session);
    assert_eq!(disk.open_files(), 0);
}

/// Checks the image after a recovery script.
fn go_on(disk: &Arc<SimDisk>, script: &Script, legal: &[Snapshots], hit: &'static str) {
    let mut model = Model { snapshots: list(disk, &script.keys, legal), ..Model::default() };
    let recovery = recovery(script, &model.snapshots, hit, 1);
    let mut runner = Runner::new(disk, &recovery);
    for step in &recovery.steps {
        runner.step(step, &model).unwrap_or_else(|error| panic!("{step:?} after a crash: {error}"));
        model.apply(step);
    }
    check_image(disk, script, &[model.snapshots]);
}

/// Several choices of what survives; one if there is nothing to choose.
fn losses(disk: &SimDisk, rng: &mut ChaCha8Rng) -> Vec<Loss> {
    let pending = disk.pending();
    if pending == 0 {
        return vec![Loss::Power(Survival::Nothing)];
    }
    let mut survivals = vec![Survival::Nothing, Survival::Everything];
    survivals.extend((0..2).map(|_| Survival::Prefix(rng.below(pending + 1))));
    survivals.extend((0..4).map(|_| Survival::Random(rng.below(u64::MAX))));
    survivals.extend((0..2).map(|_| Survival::Torn(rng.below(u64::MAX))));
    survivals.into_iter().map(Loss::Power).chain([Loss::Process]).collect()
}

/// The name that the last step of a run was about.
fn name_of(step: Option<&Step>) -> &'static str {
    match step {
        Some(Step::Save(_, name) | Step::Delete(name) | Step::Rename(_, name)) => name,
        _ => "new",
    }
}

#[test]
fn snapshots_are_absent_or_whole_after_a_crash_at_any_call() {
    let name = "snapshots_are_absent_or_whole_after_a_crash_at_any_call";
    for_each_seed(name, 2, |rng, seed| {
        let script = Script::draw(20, rng);
        let verdict = |crash: &Crash<'_, (Vec<Snapshots>, usize)>| {
            let (legal, step) = crash.run;
            let _note = Note(step);
            let hit = name_of(script.steps.get(*step));
            let losses = losses(crash.disk, rng);
            // The death of a process leaves most to the recovery.
            let last = losses.len() - 1;
            let chosen = if rng.chance(1, 2) { last } else { rng.index(losses.len()) };
            let mut again = 0;
            let images = crash.images(losses, |image| {
                check_image(&image.disk, &script, legal);
                if image.number == chosen {
                    let crashed = || image.loss.apply(crash.disk);
                    go_on(&crashed(), &script, legal, hit);
                    again += crash_again(&crashed, &script, legal, hit, crash.call);
                }
            });
            images + again
        };
        let images = Sweep::sampled(seed, 9).crash(|disk| run_whole(disk, &script), verdict);
        let least = by_effort(IMAGES_MIN / 9, IMAGES_MIN);
        assert!(images >= least, "only {images} images");
    });
}

/// A crash at each call of the creation, then at each call of the next attempt.
#[test]
fn a_session_can_be_created_after_crashes_at_any_calls() {
    for_each_seed("a_session_can_be_created_after_crashes_at_any_calls", 1, |rng, seed| {
        let script = Script { steps: vec![Step::Open], ..Script::draw(0, rng) };
        let nothing = [Snapshots::new()];
        let create = |disk: &Arc<SimDisk>| run_whole(disk, &script);
        let mut images = 0;
        Sweep::whole(seed).crash(create, |crash| {
            crash.images(losses(crash.disk, rng), |image| {
                let sweep = Sweep::whole(seed).on(&image.disk);
                images += sweep.crash(create, |again| {
                    again.images(losses(again.disk, rng), |image| {
                        check_image(&image.disk, &script, &nothing);
                    })
                });
            })
        });
        assert!(images >= IMAGES_MIN, "only {images} images");
    });
}

/// Crashes within the recovery from a crash. Returns the number of images checked.
fn crash_again(
    crashed: &dyn Fn() -> Arc<SimDisk>,
    script: &Script,
    legal: &[Snapshots],
    hit: &'static str,
    number: u64,
) -> u64 {
    let model = Model { snapshots: list(&crashed(), &script.keys, legal), ..Model::default() };
    let script = recovery(script, &model.snapshots, hit, 2);
    let whole = crashed();
    assert_eq!(run(&whole, &script, model.clone()).1, script.steps.len());
    let disk = crashed();
    let call = number % whole.calls();
    disk.set_plan(FaultPlan::crash_at(call));
    let (mut legal_now, step) = run(&disk, &script, model);

    if step == 0 {
        // Nobody has been told yet what had survived the first crash.
        legal_now.extend_from_slice(legal);
    }

    let other = [Survival::Everything, Survival::Random(number), Survival::Torn(number)];
    let survivals = [Survival::Nothing, other[(number % 3) as usize]];
    for survival in survivals {
        let at = ("again", call, survival, step);
        let _note = Note(&at);
        check_image(&disk.after_crash(survival), &script, &legal_now);
    }

    survivals.len() as u64
}
