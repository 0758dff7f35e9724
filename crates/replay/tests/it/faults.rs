//! Replays on a disk that fails.
//!
//! Goal: whatever call fails and whatever a loss of power leaves, the store opens at a state that a
//! checkpoint made durable, no earlier than the last one reported, and resuming ends where an
//! undisturbed replay ends. Method: a history of a few blocks with rollbacks and with a durable
//! point after each block; the fault strikes each call in turn.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane::io::{Disk, SimDisk, Survival};
use terrane::io::{FaultKind, FaultPlan, Repeat};
use terrane_replay::changes::{Error, Options, Report, replay};
use terrane_replay::engines::context_tables::ContextTables;
use terrane_replay::engines::engine::{self, Engine};
use terrane_replay::engines::lsm::Lsm;
use terrane_replay::error::Class;
use terrane_replay::monitor::{Monitor, Phase};
use terrane_testkit::sweep::Sweep;

/// Number of reported blocks, each of which was durable before its report.
#[derive(Default)]
struct Watcher {
    blocks: u64,
}

impl Monitor for Watcher {
    fn progress(&mut self, phase: Phase, done: u64, _: Option<u64>) {
        if phase == Phase::Replay {
            self.blocks = done;
        }
    }

    fn warn(&mut self, _: &dyn Display) {}

    fn stop(&self) -> bool {
        false
    }
}

const STRAIGHT: &str = "terrane-changes 1\n\
    begin 1\nput 01 01\nput 02 02\nend count=2\n\
    begin 2\nget 01 01\nput 01 11\ndel 02\nend count=1\n\
    begin 3\nput 03 33\nend count=2\n\
    begin 5\nget 03 33\nput - 55\nend count=3\n";

const WINDING: &str = "terrane-changes 1\n\
    begin 1\nput 01 01\nput 02 02\nend\n\
    begin 2\nput 01 11\ndel 02\nend\n\
    begin 3\nput 03 33\nend\n\
    rollback 1\nexpect count=2\n\
    begin 2\nget 02 02\nput 02 12\nend\n\
    rollback -\nexpect count=0\n\
    begin 1\nput 09 09\nend count=1\n";

type Open = fn(&Arc<dyn Disk>, &Path) -> engine::Result<Box<dyn Engine>>;

fn lsm(disk: &Arc<dyn Disk>, dir: &Path) -> engine::Result<Box<dyn Engine>> {
    Ok(Box::new(Lsm::open_on(disk, dir)?))
}

fn context(disk: &Arc<dyn Disk>, dir: &Path) -> engine::Result<Box<dyn Engine>> {
    Ok(Box::new(ContextTables::open_on(disk, dir)?))
}

/// Each history on each engine that keeps several points.
fn cases() -> impl Iterator<Item = Case> {
    let engines: [Open; 2] = [lsm, context];
    let cases = [STRAIGHT, WINDING].map(|history| engines.map(|open| Case::new(history, open)));
    cases.into_iter().flatten()
}

struct Case {
    _dir: tempfile::TempDir,
    path: PathBuf,
    history: &'static str,
    open: Open,
}

impl Case {
    fn new(history: &'static str, open: Open) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        std::fs::write(&path, history).unwrap();
        Self { _dir: dir, path, history, open }
    }

    fn run(&self, disk: &Arc<SimDisk>, watcher: &mut Watcher) -> Result<Report, Error> {
        self.run_in("/store", disk, watcher)
    }

    fn run_in(
        &self,
        store: &str,
        disk: &Arc<SimDisk>,
        watcher: &mut Watcher,
    ) -> Result<Report, Error> {
        let disk: Arc<dyn Disk> = disk.clone();
        let engine = (self.open)(&disk, Path::new(store))?;
        let options = Options { resume: true, checkpoint_every: 1, ..Options::default() };
        replay(engine, std::slice::from_ref(&self.path), &options, watcher)
    }

    /// The report of an undisturbed replay.
    fn undisturbed(&self) -> Report {
        self.run(&SimDisk::new(1), &mut Watcher::default()).unwrap()
    }

    /// Resumes on a disk after a fault.
    #[track_caller]
    fn resume(&self, disk: &Arc<SimDisk>, expected: &Report, context: &str) -> Report {
        let report = self.run(disk, &mut Watcher::default());
        let report = report.unwrap_or_else(|error| panic!("{context}: {error}"));
        let state = |report: &Report| (report.height, report.count, report.digest.clone());
        assert_eq!(state(&report), state(expected), "{context}");
        report
    }
}

#[test]
fn a_loss_of_power_at_any_call_costs_nothing_durable() {
    for case in cases() {
        let expected = case.undisturbed();
        let images = Sweep::whole(1).crash(
            |disk| {
                let mut watcher = Watcher::default();
                // Failures of the last calls may have no consequence.
                let outcome = case.run(disk, &mut watcher);
                (format!("{outcome:?}"), watcher.blocks)
            },
            |crash| {
                let survivals =
                    [Survival::Nothing, Survival::Everything, Survival::Torn(crash.call)];
                let (outcome, blocks) = crash.run;
                crash.power_losses(survivals, |image| {
                    let report = case.resume(&image.disk, &expected, outcome);
                    if case.history == STRAIGHT {
                        assert!(report.blocks + blocks <= expected.blocks, "{outcome}");
                    }
                })
            },
        );
        assert!(images > 150, "{images}");
    }
}

#[test]
fn a_failing_call_is_reported_and_costs_nothing_durable() {
    for case in cases() {
        let expected = case.undisturbed();
        for kind in FaultKind::ERRORS {
            Sweep::sampled(1, 4).fault(kind, Some(Repeat::Once), |disk, _| {
                let mut watcher = Watcher::default();
                let outcome = case.run(disk, &mut watcher);
                let context = format!("{outcome:?}");
                if let Err(error) = &outcome {
                    assert_ne!(error.class(), Class::Input, "{context}");
                }
                let disk = disk.process_kill();
                let report = case.resume(&disk, &expected, &context);
                if case.history == STRAIGHT {
                    assert!(report.blocks + watcher.blocks <= expected.blocks, "{context}");
                }
            });
        }
    }
}

#[test]
fn a_full_disk_is_the_environments_fault_and_room_mends_it() {
    let case = Case::new(STRAIGHT, lsm);
    let expected = case.undisturbed();

    let mut failed = 0;
    for blocks in 0..64 {
        let disk = SimDisk::new(1);
        disk.set_plan(FaultPlan::capacity(blocks * 4096));
        if let Err(error) = case.run(&disk, &mut Watcher::default()) {
            assert_eq!(error.class(), Class::Environment, "{error}");
            failed += 1;
        }
        disk.set_plan(FaultPlan::default());
        case.resume(&disk, &expected, &format!("{blocks} blocks of 4 KiB"));
    }

    assert!((1..64).contains(&failed), "{failed} of 64 sizes were too small");
}

/// Only the last directory on the way to a new store had its name synced; the store was gone after
/// a loss of power although its blocks had been reported as durable.
#[test]
fn a_store_is_durable_with_all_the_directories_above_it() {
    let case = Case::new(STRAIGHT, lsm);
    let disk = SimDisk::new(1);
    case.run_in("/x1/x2/x3", &disk, &mut Watcher::default()).unwrap();
    let disk = disk.after_crash(Survival::Nothing);
    assert_eq!(case.run_in("/x1/x2/x3", &disk, &mut Watcher::default()).unwrap().blocks, 0);
}
