//! Disk faults at every call, one kind after another, once or from then on.
//!
//! Goal: no fault makes the engine panic, lose data, or keep silent. The call in progress returns
//! the error; the tables are as before it; reads go on as far as the disk lets them;
//! without the fault the same call succeeds. After a failed sync nothing more is promised, and
//! opening the session anew gives back the snapshots. Wrong bytes are found out, never returned. No
//! handle leaks.
//!
//! Method: a script is run with a fault at call n, for n = 0, 1, 2, ... until a run ends without
//! one. What fails outside any call, that is the removal of a file by the drop of its last user, is
//! to be reported by the closing of the session; so each fault must show up as an error of some
//! step.

use std::sync::Arc;

use terrane_io::Disk;
use terrane_io::{Fault, FaultKind, FaultPlan, Repeat};
use terrane_io::{SimDisk, Survival};
use terrane_lsm::{Error, SnapshotName, Table};
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Note;

use crate::script::{
    DIR, LABEL, Model, Runner, Script, Step, check_table, files_in, open, snapshot_name, update,
};

/// Result of a run with a fault.
#[derive(Debug, Default)]
struct Outcome {
    /// Steps that failed.
    errors: u64,
    poisoned: bool,
}

fn is_poisoned(table: &mut Table) -> bool {
    let nothing: [(&[u8], terrane_lsm::Update<'_>); 0] = [];
    matches!(table.write_batch(&nothing), Err(Error::Poisoned { .. }))
}

/// Whether a deletion took effect although it failed: the name is gone, a run was not removed.
fn took_effect(runner: &Runner<'_>, step: &Step) -> bool {
    match step {
        Step::Delete(name) => {
            let exists = runner.session().and_then(|s| s.snapshot_exists(&snapshot_name(name)));
            !exists.unwrap()
        }
        _ => false,
    }
}

/// Runs a script on a disk whose plan has faults in it. At the first error the faults are lifted
/// and everything is checked; then the run goes on.
fn run(disk: &Arc<SimDisk>, script: &Script, is_silent: bool) -> Outcome {
    let mut outcome = Outcome::default();
    let mut model = Model::default();
    let mut runner = Runner::new(disk, script);
    for step in &script.steps {
        let Err(error) = runner.step(step, &model) else {
            model.apply(step);
            continue;
        };

        outcome.errors += 1;
        assert!(disk.faults() > 0, "{step:?} failed without a fault: {error}");
        check_error(&error, is_silent);

        if matches!(step, Step::Close) {
            // It is closed all the same; the error is about a file that could not be removed.
            disk.set_plan(FaultPlan::default());
            model.apply(step);
            continue;
        }

        if !is_silent {
            poke(&mut runner, step, &model);
        }
        disk.set_plan(FaultPlan::default());
        runner.check_tables(&model).expect("reads go on");

        if runner.tables.iter_mut().any(is_poisoned) {
            outcome.poisoned = true;
            assert!(!is_silent);
            check_poisoned(disk, runner, step, model);
            return outcome;
        }

        if !took_effect(&runner, step) {
            runner.step(step, &model).unwrap_or_else(|error| panic!("{step:?} again: {error}"));
        }
        model.apply(step);
        runner.check_tables(&model).unwrap();
    }

    drop(runner);
    assert_eq!(disk.open_files(), 0);
    disk.set_plan(FaultPlan::default());

    // All that was saved is durable.
    check_snapshots(&disk.after_crash(Survival::Nothing), script, &model);
    check_snapshots(disk, script, &model);
    outcome
}

/// Each fault shows as the error that it is documented to give.
fn check_error(error: &Error, is_silent: bool) {
    let is_found_out = matches!(
        error,
        Error::Corrupt { .. } | Error::SnapshotCorrupted { .. } | Error::SessionDirCorrupted { .. }
    );
    let is_expected = match error {
        // A file that ends early may be a fault of the disk or damage.
        Error::Disk(_) => !is_silent,
        Error::SnapshotCorrupted { .. } => true,
        Error::Corrupt { what, .. } if what.rule == "the file ends early" => true,
        _ => is_silent && is_found_out,
    };
    assert!(is_expected, "{error:?}");
}

/// While the fault lasts: the step once more, and reads, which fail or are right.
fn poke(runner: &mut Runner<'_>, step: &Step, model: &Model) {
    if matches!(step, Step::Updates(..)) {
        let mut after = model.clone();
        after.apply(step);
        if runner.step(step, model).is_ok() {
            // The fault struck once; the same updates again change nothing any more. They are
            // undone by what the model held, so that the run goes on from there.
            runner.check_tables(&after).unwrap();
            restore(runner, step, model);
        }
    }

    for (table, content) in runner.tables.iter().zip(&model.tables) {
        let _ = check_table(table, content, &[]);
    }
}

/// Takes a batch back by updates.
fn restore(runner: &mut Runner<'_>, step: &Step, model: &Model) {
    let Step::Updates(table, batch) = step else { return };
    let content = &model.tables[*table];
    let back = batch.iter().map(|(key, _)| (key.clone(), content.get(key).cloned())).collect();
    update(&mut runner.tables[*table], &back).unwrap();
}

/// Checks a session after a failed sync: updates and saves are refused, reads go on, and every
/// snapshot is there when the session is opened again, with or without a power loss.
fn check_poisoned(disk: &Arc<SimDisk>, mut runner: Runner<'_>, step: &Step, mut model: Model) {
    let script_keys = runner.script().keys.clone();
    for (table, content) in runner.tables.iter_mut().zip(&model.tables) {
        let refused = table.insert(b"key", b"value");
        assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
        let refused = table.save_snapshot(&snapshot_name("other"), LABEL);
        assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
        check_table(table, content, &script_keys).expect("reads go on");
        check_table(&table.fork().unwrap(), content, &script_keys).expect("reads go on");
    }

    // The name that the step was about may be there or not.
    let before = model.clone();
    model.apply(step);

    let session = runner.session().unwrap();
    for name in session.list_snapshots().unwrap() {
        let refused = session.delete_snapshot(&name);
        assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
        let refused = session.rename_snapshot(&name, &snapshot_name("other"));
        assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
        let table = session.open_snapshot(&name, LABEL).expect("reads go on");
        let content = before.snapshots.get(name.as_str()).or(model.snapshots.get(name.as_str()));
        check_table(&table, content.unwrap(), &script_keys).expect("reads go on");
    }

    let script = runner.script();
    let crashed: Vec<_> =
        [Survival::Nothing, Survival::Everything, Survival::Torn(1), Survival::Random(2)]
            .map(|survival| disk.after_crash(survival))
            .into();

    if let Err(error) = runner.step(&Step::Close, &before) {
        // A file that could not be removed while the fault lasted.
        assert!(
            matches!(error, Error::Disk(terrane_io::Error::Io { call: "unlink", .. })),
            "{error:?}"
        );
    }

    drop(runner);
    assert_eq!(disk.open_files(), 0);
    for disk in crashed.iter().chain([disk]) {
        let session = open(disk).unwrap();
        let names = session.list_snapshots().unwrap();
        let found = [&before, &model]
            .into_iter()
            .find(|model| model.snapshots.keys().eq(names.iter().map(SnapshotName::as_str)));
        let found = found.unwrap_or_else(|| panic!("{names:?} are not as saved"));
        drop(session);
        check_snapshots(disk, script, found);
    }
}

/// Opens the session anew: the snapshots are those of the model, and nothing else is there.
fn check_snapshots(disk: &Arc<SimDisk>, script: &Script, model: &Model) {
    let session = open(disk).unwrap();
    let names = session.list_snapshots().unwrap();
    assert!(model.snapshots.keys().eq(names.iter().map(SnapshotName::as_str)), "{names:?}");

    for name in &names {
        let table = session.open_snapshot(name, LABEL).unwrap();
        check_table(&table, &model.snapshots[name.as_str()], &script.keys).unwrap();
    }

    for name in &names {
        session.delete_snapshot(name).unwrap();
    }
    let left = files_in(disk, "active");
    assert!(left.is_empty(), "left behind: {left:?}");
    session.close().unwrap();
    drop(session);
    assert_eq!(disk.open_files(), 0);
}

/// Runs the script with a fault of `kind` at each call; returns how many struck.
fn strike_each_call(script: &Script, seed: u64, kind: FaultKind, repeat: Repeat) -> (u64, u64) {
    let is_silent = FaultKind::SILENT.contains(&kind);
    let mut struck = 0;
    let mut poisoned = 0;
    let mut unnoticed = 0;

    // A sample strikes other calls with each kind.
    let every = by_effort(13, 1);
    let mut at_call = (seed + 3 * kind as u64) % every;
    loop {
        let disk = SimDisk::new(seed);
        let fault = Fault { at_call, kind, repeat };
        let _note = Note(&fault);
        disk.set_plan(FaultPlan { fail: Some(fault), ..FaultPlan::default() });
        let outcome = run(&disk, script, is_silent);

        if disk.faults() == 0 {
            assert!(unnoticed * 10 <= struck, "{unnoticed} of {struck} faults were swallowed");
            return (struck, poisoned);
        }

        if outcome.errors == 0 {
            // A page that is read instead of itself is no damage, so silent faults may have no
            // effect. What a merge had written, and a snapshot found, may end early: the merge does
            // without, and begins anew. The file of a snapshot that cannot be read when the session
            // is opened is damaged until the next time.
            let is_borne = matches!(kind, FaultKind::ShortRead | FaultKind::Eio);
            assert!(is_silent || is_borne, "a fault was swallowed");
            unnoticed += u64::from(!is_silent);
        }

        struck += 1;
        poisoned += u64::from(outcome.poisoned);
        at_call += every;
    }
}

#[test]
fn every_failing_call_is_reported_and_changes_nothing() {
    for_each_seed("every_failing_call_is_reported_and_changes_nothing", 1, |rng, seed| {
        let script = Script::draw(14, rng);
        for kind in FaultKind::ERRORS {
            for repeat in [Repeat::Once, Repeat::Forever] {
                let (struck, poisoned) = strike_each_call(&script, seed, kind, repeat);
                assert!(struck > by_effort(2, 20), "only {struck} runs with {kind:?}");
                if kind == FaultKind::FailedSync {
                    assert!(poisoned > by_effort(0, 5), "only {poisoned} failed syncs");
                }
            }
        }
    });
}

#[test]
fn wrong_bytes_are_found_out_and_never_returned() {
    for_each_seed("wrong_bytes_are_found_out_and_never_returned", 1, |rng, seed| {
        let script = Script::draw(14, rng);
        for kind in FaultKind::SILENT {
            let (struck, _) = strike_each_call(&script, seed, kind, Repeat::Once);
            assert!(struck > by_effort(2, 20), "only {struck} runs with {kind:?}");
        }
    });
}

/// A disk of every size from nothing to enough.
#[test]
fn a_full_disk_loses_nothing_and_work_goes_on_when_there_is_room() {
    let name = "a_full_disk_loses_nothing_and_work_goes_on_when_there_is_room";
    for_each_seed(name, 2, |rng, seed| {
        let script = Script::draw(30, rng);
        let mut in_updates = 0;
        for capacity_bytes in (0..).step_by(by_effort(3, 1) * 4096) {
            let disk = SimDisk::new(seed);
            let _note = Note(&capacity_bytes);
            disk.set_plan(FaultPlan {
                capacity_bytes: Some(capacity_bytes),
                ..FaultPlan::default()
            });
            let mut model = Model::default();
            let mut runner = Runner::new(&disk, &script);
            let mut was_full = false;
            for step in &script.steps {
                if let Err(error) = runner.step(step, &model) {
                    assert!(
                        matches!(&error, Error::Disk(error) if error.is_no_space()),
                        "{error:?}"
                    );
                    was_full = true;
                    match step {
                        Step::Updates(..) => in_updates += 1,
                        _ => assert!(matches!(step, Step::Open | Step::Save(..)), "{step:?}"),
                    }
                    runner.check_tables(&model).expect("reads go on");
                    // Again, with the disk as full as before, but for what the failure gave back.
                    if runner.step(step, &model).is_err() {
                        runner.check_tables(&model).expect("reads go on");
                        disk.set_plan(FaultPlan::default());
                        runner.step(step, &model).expect("there is room now");
                    }
                }
                model.apply(step);
            }
            drop(runner);
            assert_eq!(disk.open_files(), 0);
            check_snapshots(&disk, &script, &model);
            if !was_full {
                break;
            }
        }
        assert!(in_updates > 0, "no flush or merge met a full disk");
    });
}

/// No room at all whenever a snapshot is saved.
#[test]
fn saving_on_a_full_disk_fails_and_succeeds_when_there_is_room() {
    let name = "saving_on_a_full_disk_fails_and_succeeds_when_there_is_room";
    for_each_seed(name, 4, |rng, seed| {
        let script = Script::draw(30, rng);
        let disk = SimDisk::new(seed);
        let mut model = Model::default();
        let mut runner = Runner::new(&disk, &script);
        for step in &script.steps {
            if let Step::Save(table, name) = step {
                let before = disk.files();
                // Saving finishes the flush under way, which keeps what it has written for the next
                // attempt.
                let mut kept = None;
                for _ in 0..2 {
                    disk.set_plan(FaultPlan { capacity_bytes: Some(0), ..FaultPlan::default() });
                    let refused = runner.tables[*table].save_snapshot(&snapshot_name(name), LABEL);
                    disk.set_plan(FaultPlan::default());
                    assert!(
                        matches!(&refused, Err(Error::Disk(error)) if error.is_no_space()),
                        "{refused:?}"
                    );
                    runner.check_tables(&model).unwrap();
                    let files = disk.files();
                    assert!(files.len() <= before.len() + 1, "{files:?} after {before:?}");
                    assert_eq!(
                        *kept.get_or_insert(files.clone()),
                        files,
                        "a second failure adds none"
                    );
                }
            }
            runner.step(step, &model).unwrap();
            model.apply(step);
        }
        drop(runner);
        check_snapshots(&disk, &script, &model);
    });
}

/// The metadata of a snapshot is read wrongly when the session is opened, and rightly later: what
/// the session took for damaged is whole, and its runs, shared or not, must not have been removed.
#[test]
fn a_snapshot_that_only_seemed_damaged_keeps_its_runs() {
    for_each_seed("a_snapshot_that_only_seemed_damaged_keeps_its_runs", 2, |rng, seed| {
        let mut script = Script::draw(30, rng);
        let saved = script.steps.iter().position(|step| matches!(step, Step::Delete(_))).unwrap();
        script.steps.truncate(saved);
        script.steps.push(Step::Close);
        let disk = SimDisk::new(seed);
        let mut model = Model::default();
        let mut runner = Runner::new(&disk, &script);
        for step in &script.steps {
            runner.step(step, &model).unwrap();
            model.apply(step);
        }
        let path = std::path::Path::new(DIR).join("snapshots/a.snapshot");
        disk.flip_bit(&path, 100);
        let session = open(&disk).unwrap();
        disk.flip_bit(&path, 100);
        // Shares runs with the other one, and is deleted; then the other one is opened and dropped.
        session.delete_snapshot(&snapshot_name("b")).unwrap();
        model.snapshots.remove("b");
        for _ in 0..2 {
            let table = session.open_snapshot(&snapshot_name("a"), LABEL).unwrap();
            check_table(&table, &model.snapshots["a"], &script.keys).unwrap();
        }
        session.close().unwrap();
        drop(session);
        check_snapshots(&disk, &script, &model);
        assert!(disk.kind(&path).unwrap().is_none());
    });
}
