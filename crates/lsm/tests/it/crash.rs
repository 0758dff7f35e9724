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

use std::fmt::Debug;
use std::sync::Arc;
use std::thread;

use terrane_io::FaultPlan;
use terrane_io::{SimDisk, Survival};
use terrane_lsm::SnapshotName;
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::{by_effort, places};
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::script::{
    LABEL, Model, Runner, Script, Snapshots, Step, check_table, draw_batch, files_in, open,
    snapshot_name,
};

/// Crash images that one script must give at least: fewer mean that the script does too little.
const IMAGES_MIN: u64 = 2_000;

/// End of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loss {
    Power(Survival),
    /// The process dies; what it wrote is seen, but not durable yet.
    Process,
}

impl Loss {
    pub(crate) fn apply(self, disk: &SimDisk) -> Arc<SimDisk> {
        match self {
            Self::Power(survival) => disk.after_crash(survival),
            Self::Process => disk.process_kill(),
        }
    }
}

/// Prints where a run was when it fails.
pub(crate) struct Note<'a>(pub(crate) &'a dyn Debug);

impl Drop for Note<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("crash: {:?}", self.0);
        }
    }
}

/// Runs a script up to a crash at `call` of `disk`. Returns the states of the snapshots that are
/// legal then, and the steps that were completed.
fn run_into_crash(
    disk: &Arc<SimDisk>,
    script: &Script,
    mut model: Model,
    call: u64,
) -> (Vec<Snapshots>, usize) {
    disk.set_plan(FaultPlan { crash_at_call: Some(call), ..FaultPlan::default() });
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

/// The calls of a whole run.
fn count_calls(disk: &Arc<SimDisk>, script: &Script, model: Model) -> u64 {
    let (_, steps) = run_into_crash(disk, script, model, u64::MAX);
    assert_eq!(steps, script.steps.len());
    disk.calls()
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
        let calls = count_calls(&SimDisk::new(seed), &script, Model::default());
        let mut images = 0;
        for call in places(0..calls, 9, seed) {
            let disk = SimDisk::new(seed);
            let (legal, step) = run_into_crash(&disk, &script, Model::default(), call);
            assert!(disk.has_crashed());
            let hit = name_of(script.steps.get(step));
            let losses = losses(&disk, rng);
            // The death of a process leaves most to the recovery.
            let last = losses.len() - 1;
            let chosen = if rng.chance(1, 2) { last } else { rng.index(losses.len()) };
            for (number, &loss) in losses.iter().enumerate() {
                let at = (call, loss, step);
                let _note = Note(&at);
                check_image(&loss.apply(&disk), &script, &legal);
                images += 1;
                if number == chosen {
                    go_on(&loss.apply(&disk), &script, &legal, hit);
                    images += crash_again(&|| loss.apply(&disk), &script, &legal, hit, call);
                }
            }
        }
        let least = by_effort(IMAGES_MIN / 9, IMAGES_MIN);
        assert!(images >= least, "only {images} images from {calls} calls");
    });
}

/// A crash at each call of the creation, then at each call of the next attempt.
#[test]
fn a_session_can_be_created_after_crashes_at_any_calls() {
    for_each_seed("a_session_can_be_created_after_crashes_at_any_calls", 1, |rng, seed| {
        let script = Script { steps: vec![Step::Open], ..Script::draw(0, rng) };
        let nothing = [Snapshots::new()];
        let mut images = 0;
        for call in 0..count_calls(&SimDisk::new(seed), &script, Model::default()) {
            let disk = SimDisk::new(seed);
            run_into_crash(&disk, &script, Model::default(), call);
            for loss in losses(&disk, rng) {
                for call_again in 0..count_calls(&loss.apply(&disk), &script, Model::default()) {
                    let again = loss.apply(&disk);
                    run_into_crash(&again, &script, Model::default(), call_again);
                    for loss_again in losses(&again, rng) {
                        let at = (call, loss, call_again, loss_again);
                        let _note = Note(&at);
                        check_image(&loss_again.apply(&again), &script, &nothing);
                        images += 1;
                    }
                }
            }
        }
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
    let calls = count_calls(&crashed(), &script, model.clone());
    let disk = crashed();
    let call = number % calls;
    let (mut legal_now, step) = run_into_crash(&disk, &script, model, call);

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
