//! Power loss and sudden death at every call on the disk.
//!
//! Goal: after a crash a store opens with the state after some step of its history: not before the
//! last step that was durable, and not in the middle of one, whichever of the unsynced writes
//! survived. So no commit is there without those before it, a branch names only commits that are
//! there, a collection has happened or has not, and what was lost gives the same hashes when it is
//! done again.
//!
//! Method: a script is run with a crash at call n, for every n; for each of several choices of what
//! survives, the store is opened, compared, and the rest of the script is run. The opening is
//! itself crashed at one of its calls, every call in turn.

use std::sync::Arc;

use terrane_context::{Durability, Error, Recovery, Retain};
use terrane_io::Disk;
use terrane_io::FaultPlan;
use terrane_io::{SimDisk, Survival};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Note, Sweep};

use crate::script::{Kind, Script, Step, create, draw_options, go, open};

/// How far a run came: the numbers of steps that were durable, and that may have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Progress {
    durable: usize,
    done: usize,
    begun: usize,
    /// The store itself was made.
    is_created: bool,
    /// The call with which the first collection began, or the first volume was made.
    collection: u64,
}

impl Progress {
    /// The progress that counts after a loss: the death of the process takes nothing back.
    fn after(self, loss: Loss) -> Self {
        match loss {
            Loss::Power(_) => self,
            Loss::Process => Self { durable: self.done, ..self },
        }
    }
}

/// Runs a script from a step on until the disk fails.
fn run(disk: &Arc<SimDisk>, script: &Script) -> Progress {
    let shared: Arc<dyn Disk> = disk.clone();
    let mut progress = Progress { durable: 0, done: 0, begun: 0, is_created: false, collection: 0 };
    let Ok(mut store) = create(&shared, &script.options) else { return progress };
    progress.is_created = true;

    for step in &script.steps {
        progress.begun += 1;
        if matches!(step, Step::Collect(_) | Step::AddVolume) && progress.collection == 0 {
            progress.collection = disk.calls();
        }
        if let Err(error) = script.take(&mut store, &shared, step) {
            assert!(disk.has_crashed(), "{step:?}: {error}");
            return progress;
        }
        progress.done += 1;
        if script.is_durable(step) {
            progress.durable = progress.done;
        }
    }

    if store.close().is_ok() {
        progress.durable = progress.done;
    }
    progress
}

fn strays(disk: &SimDisk) -> Vec<std::path::PathBuf> {
    disk.files().into_iter().filter(|path| path.to_string_lossy().ends_with(".new")).collect()
}

/// Opens what is left, finds the state that it is in, compares it, and does up to `rest` of what
/// follows.
fn check_image(disk: &Arc<SimDisk>, script: &Script, progress: Progress, rest: usize) {
    let shared: Arc<dyn Disk> = disk.clone();
    let mut store = match open(&shared, &script.options) {
        Ok(store) => store,
        Err(Error::NotFound { .. }) if !progress.is_created => {
            create(&shared, &script.options).expect("what creation has left is no hindrance")
        }
        Err(error) => panic!("a store opens after a crash: {error}"),
    };
    assert_eq!(strays(disk), Vec::<std::path::PathBuf>::new());
    let found = script.state_of(&store).unwrap();
    let legal = progress.durable..=progress.begun;
    let at = legal.clone().rev().find(|&at| script.states[at] == found);
    let at = at.unwrap_or_else(|| panic!("{found:?} is none of the states {legal:?}"));
    script.check_commits(&store, &found, 2);
    assert!(store.recovery().commits <= store.stats().commits);

    for (number, step) in script.steps.iter().enumerate().skip(at).take(rest) {
        script.take(&mut store, &shared, step).unwrap_or_else(|error| panic!("{step:?}: {error}"));
        assert_eq!(script.state_of(&store).unwrap(), script.states[number + 1]);
    }

    if rest > 2 {
        store.collect(&Retain::everything(), &mut go).unwrap();
        assert!(!store.has_unfinished_collection());
    }

    let last = script.state_of(&store).unwrap();
    store.sync().unwrap();
    let crashed: Arc<dyn Disk> = disk.after_crash(Survival::Nothing);
    store.close().unwrap();
    drop(store);
    let store = open(&shared, &script.options).unwrap();
    assert_eq!(store.recovery(), Recovery::default(), "it was closed");
    script.check_commits(&store, &last, 1);
    drop(store);
    assert_eq!(disk.open_files(), 0);

    // The power goes after the store was opened once: what was there then is durable.
    let store = open(&crashed, &script.options).unwrap();
    assert_eq!(script.state_of(&store).unwrap(), last);
}

/// Crashes a script at every call, or from the first collection or volume on, and looks at so many
/// of the six losses. How many images were looked at.
fn sweep(script: &Script, seed: u64, kinds: usize, collection_only: bool) -> u64 {
    let whole = SimDisk::new(seed);
    let all = run(&whole, script);
    assert_eq!(all.durable, script.steps.len());
    let first = if collection_only { all.collection } else { 0 };

    let sweep = Sweep::sampled(seed, 6).from_call(first);
    sweep.crash(
        |disk| run(disk, script),
        |crash| {
            let call = crash.call;
            let rest = if call % 16 == 0 { usize::MAX } else { (call % 3) as usize };
            let losses = Loss::each(call).into_iter().cycle().skip((call % 6) as usize);
            crash.images(losses.take(kinds), |image| {
                check_image(&image.disk, script, crash.run.after(image.loss), rest);
            })
        },
    )
}

#[test]
fn a_crash_at_any_call_leaves_a_state_between_two_steps() {
    let mut images = 0;
    let name = "a_crash_at_any_call_leaves_a_state_between_two_steps";
    for_each_seed(name, 1, |rng, seed| {
        let mut options = draw_options(rng);
        options.durability = match seed % 2 {
            0 => Durability::Each,
            _ => Durability::Buffered,
        };
        let kind = Kind { commits: 100, wide: 270, collects: false, reopens: false };
        let script = Script::draw(rng, options, kind);
        images += sweep(&script, seed, 1, false);
    });
    assert!(images > by_effort(83, 500), "{images}");
}

#[test]
fn small_histories_survive_in_every_way() {
    let mut images = 0;
    for_each_seed("small_histories_survive_in_every_way", 3, |rng, seed| {
        let kind = Kind { commits: 10, wide: 30, collects: true, reopens: true };
        let options = draw_options(rng);
        let script = Script::draw(rng, options, kind);
        images += sweep(&script, seed, 6, false);
    });
    assert!(images > by_effort(166, 1_000), "{images}");
}

#[test]
fn a_crash_at_any_call_of_a_collection_leaves_all_or_what_is_kept() {
    let mut images = 0;
    let name = "a_crash_at_any_call_of_a_collection_leaves_all_or_what_is_kept";
    for_each_seed(name, 2, |rng, seed| {
        let options = draw_options(rng);
        let kind = Kind { commits: 30, wide: 60, collects: false, reopens: false };
        let mut script = Script::draw(rng, options, kind);
        let known = script.states[script.states.len() - 1].commits.clone();
        script.push(Step::Branch("x", Some(known[2])));
        script.push(Step::Collect(4));
        for _ in 0..2 {
            script.push_commit(rng);
        }
        script.push(Step::Branch("x", None));
        script.push(Step::Collect(1));
        images += sweep(&script, seed, 3, true);
    });
    assert!(images > by_effort(66, 400), "{images}");
}

/// A17: two collections into two volumes, with a crash at every call from the first volume on.
#[test]
fn a_crash_at_any_call_of_archiving_loses_no_commit() {
    let mut images = 0;
    let name = "a_crash_at_any_call_of_archiving_loses_no_commit";
    for_each_seed(name, 2, |rng, seed| {
        let options = draw_options(rng);
        let kind = Kind { commits: 20, wide: 60, collects: false, reopens: false };
        let mut script = Script::draw(rng, options, kind);
        script.push(Step::AddVolume);
        script.push(Step::Collect(3));
        for _ in 0..4 {
            script.push_commit(rng);
        }
        script.push(Step::AddVolume);
        script.push(Step::Collect(1));
        script.push_commit(rng);
        assert_eq!(script.states[script.states.len() - 1].commits.len(), 25, "none is lost");
        images += sweep(&script, seed, 3, true);
    });
    assert!(images > by_effort(66, 400), "{images}");
}

#[test]
fn a_crash_while_opening_after_a_crash_loses_nothing_more() {
    let mut images = 0;
    let name = "a_crash_while_opening_after_a_crash_loses_nothing_more";
    for_each_seed(name, 2, |rng, seed| {
        let options = draw_options(rng);
        let kind = Kind { commits: 16, wide: 30, collects: true, reopens: true };
        let script = Script::draw(rng, options, kind);
        let whole = SimDisk::new(seed);
        run(&whole, &script);
        for number in 0..by_effort(3, 12) {
            let call = rng.below(whole.calls());
            let disk = SimDisk::new(seed);
            disk.set_plan(FaultPlan::crash_at(call));
            let mut progress = run(&disk, &script);
            let crashed = match number % 3 {
                0 => {
                    progress.durable = progress.done;
                    disk.process_kill()
                }
                _ => disk.after_crash(Survival::Random(number)),
            };
            // What the process alone has lost, the loss of power may still take from it.
            let trial = crashed.clone_disk();
            let shared: Arc<dyn Disk> = trial.clone();
            drop(open(&shared, &script.options));
            if number % 3 == 0 {
                progress.durable = 0;
            }
            for call in 0..trial.calls() {
                let again = crashed.clone_disk();
                again.set_plan(FaultPlan::crash_at(call));
                let shared: Arc<dyn Disk> = again.clone();
                drop(open(&shared, &script.options));
                let _note = Note(&(seed, number, call));
                check_image(&again.after_crash(Survival::Torn(call)), &script, progress, 1);
                images += 1;
            }
        }
    });
    assert!(images > by_effort(100, 400), "{images}");
}

/// With few writes under way every choice among them is drawn.
#[test]
fn small_histories_survive_whatever_is_left_of_them() {
    for_each_seed("small_histories_survive_whatever_is_left_of_them", 2, |rng, seed| {
        let mut options = draw_options(rng);
        options.durability = [Durability::Buffered, Durability::Each][(seed % 2) as usize];
        let kind = Kind { commits: 4, wide: 20, collects: true, reopens: false };
        let script = Script::draw(rng, options, kind);
        let sweep = Sweep::sampled(seed, 6);
        sweep.crash(
            |disk| run(disk, &script),
            |crash| {
                let prefixes = (0..crash.disk.pending()).map(Survival::Prefix);
                let drawn =
                    (0..12).flat_map(|number| [Survival::Random(number), Survival::Torn(number)]);
                crash.power_losses(prefixes.chain(drawn), |image| {
                    check_image(&image.disk, &script, *crash.run, 0);
                })
            },
        );
    });
}
