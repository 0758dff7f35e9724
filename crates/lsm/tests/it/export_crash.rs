//! Crashes and faults at every call of exports and imports.
//!
//! Goal: after a power loss or the death of the process at any call, each directory concerned has
//! each snapshot absent or whole: there if the call had returned, either if it was under way; what
//! was there before is whole; nothing that no snapshot needs stays; the same can be done again. A
//! call on the disk that fails comes out as an error, leaves the snapshot absent or whole in the
//! same way, and no handle open.
//!
//! Method: a list of copies (into a new directory, from there into a session of another salt, into
//! the directory that has most of it, and back) is made with a crash or a fault at call n, for
//! every n.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Disk, EntryKind};
use terrane_io::{Fault, FaultKind, FaultPlan, Repeat};
use terrane_io::{SimDisk, Survival};
use terrane_lsm::{Error, Result, Session, SessionOptions, SnapshotPlace};
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Note, Sweep};
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::buffer_of;
use crate::script::{
    LABEL, Model, Runner, Script, Snapshots, Step, check_table, draw_batch, snapshot_name,
};

/// The session that is exported from, and what is exported to and imported into.
const HOME: &str = crate::script::DIR;
const COPY: &str = "/copy";
/// A session of another salt.
const OTHER: &str = "/other";

const DIRS: [&str; 3] = [HOME, COPY, OTHER];

/// A copy to be made.
#[derive(Debug, Clone, Copy)]
enum CopyStep {
    /// Copies a snapshot from [`HOME`] under the same name.
    Export(&'static str),
    /// Copies a snapshot from [`COPY`] to a session under another name.
    Import(&'static str, &'static str, &'static str),
}

const COPIES: [CopyStep; 4] = [
    CopyStep::Export("a"),
    CopyStep::Import(OTHER, "a", "salted"),
    CopyStep::Export("b"),
    CopyStep::Import(HOME, "b", "back"),
];

/// The snapshots in each directory.
type State = BTreeMap<&'static str, Snapshots>;

impl CopyStep {
    /// Returns how many files were copied.
    fn run(self, disk: &Arc<SimDisk>) -> Result<u64> {
        match self {
            Self::Export(name) => {
                let session = open(disk, HOME)?;
                let place = SnapshotPlace::new(COPY, snapshot_name(name));
                let report =
                    session.export_snapshot_to(&snapshot_name(name), &place, &mut |_, _| {})?;
                session.close().map(|()| report.files_copied)
            }
            Self::Import(dir, from, to) => {
                let session = open(disk, dir)?;
                let from = snapshot_name(from);
                let to = snapshot_name(to);
                let report = session.import_snapshot(COPY, &from, &to)?;
                session.close().map(|()| report.files_copied)
            }
        }
    }

    fn apply(self, state: &mut State) {
        let (from, from_name, to, to_name) = match self {
            Self::Export(name) => (HOME, name, COPY, name),
            Self::Import(dir, from, to) => (COPY, from, dir, to),
        };
        let content = state[from][from_name].clone();
        state.get_mut(to).unwrap().insert(to_name.to_owned(), content);
    }
}

fn open(disk: &Arc<SimDisk>, dir: &'static str) -> Result<Session> {
    let salt = if dir == OTHER { 2 } else { 1 };
    let options = SessionOptions::with_salt(salt).create_dir();
    Session::open(Arc::clone(disk) as _, Path::new(dir), &options)
}

/// A disk with home, which has two snapshots that share runs, and an empty other session.
fn prepare(rng: &mut ChaCha8Rng, seed: u64) -> (Arc<SimDisk>, Vec<Vec<u8>>, State) {
    let disk = SimDisk::new(seed);
    let keys: Vec<Vec<u8>> = (0..12u8).map(|number| vec![b'k', number]).collect();

    // Few runs, on two levels, with a merge under way, and a write buffer that holds something.
    let config = buffer_of(9).size_ratio(2);
    let script = Script { config, keys: keys.clone(), steps: Vec::new() };
    let steps = [
        Step::Open,
        Step::NewTable,
        Step::Updates(0, draw_batch(&keys, 25, rng)),
        Step::Save(0, "a"),
        Step::Updates(0, draw_batch(&keys, 5, rng)),
        Step::Save(0, "b"),
        Step::Close,
    ];

    let mut model = Model::default();
    let mut runner = Runner::new(&disk, &script);
    for (number, step) in steps.iter().enumerate() {
        runner.step(step, &model).unwrap();
        model.apply(step);
        if number == 2 {
            runner.tables[0].insert_with_blob(b"blob", b"value", &[7; 5_000]).unwrap();
            model.tables[0].insert(b"blob".to_vec(), b"value".to_vec());
        }
    }

    drop(runner);
    open(&disk, OTHER).unwrap().close().unwrap();
    let state = DIRS.map(|dir| (dir, Snapshots::new()));
    let mut state = State::from(state);
    state.insert(HOME, model.snapshots);
    (disk, keys, state)
}

/// Makes copies until one fails; returns the states that are legal then, and which copies were
/// made.
fn run(disk: &Arc<SimDisk>, mut state: State) -> (Vec<State>, Result<u64>) {
    let mut files_copied = 0;
    for copying in COPIES {
        match copying.run(disk) {
            Ok(files) => files_copied += files,
            Err(error) => {
                let before = state.clone();
                copying.apply(&mut state);
                return (vec![before, state], Err(error));
            }
        }
        copying.apply(&mut state);
    }

    (vec![state], Ok(files_copied))
}

/// Opens all sessions and reads all snapshots; deletes them, and nothing is left.
fn check(disk: &Arc<SimDisk>, keys: &[Vec<u8>], legal: &[State]) {
    for dir in DIRS {
        let is_there = disk.kind(Path::new(dir)).unwrap() == Some(EntryKind::Directory);
        if !is_there {
            assert!(legal.iter().any(|state| state[dir].is_empty()), "{dir} is gone");
            continue;
        }

        let session = open(disk, dir).expect("a session opens");
        let names = session.list_snapshots().unwrap();
        let names: Vec<&str> = names.iter().map(terrane_lsm::SnapshotName::as_str).collect();

        let found = legal.iter().find(|state| state[dir].keys().eq(&names));
        let found = found.unwrap_or_else(|| panic!("{dir}: {names:?} are not as copied"));
        for (name, content) in &found[dir] {
            let table = session.open_snapshot(&snapshot_name(name), LABEL);
            check_table(&table.expect("a listed snapshot is whole"), content, keys).unwrap();
            session.delete_snapshot(&snapshot_name(name)).unwrap();
        }

        session.close().unwrap();
        drop(session);
        let active = disk.list(&Path::new(dir).join("active")).unwrap();
        assert!(active.is_empty(), "left behind in {dir}: {active:?}");
    }

    assert_eq!(disk.open_files(), 0);
}

/// Makes the copies again that are not there, as one does after a failure.
fn go_on(disk: &Arc<SimDisk>, keys: &[Vec<u8>], mut state: State) {
    for copying in COPIES {
        match copying.run(disk) {
            Ok(_) | Err(Error::SnapshotExists { .. }) => {}
            Err(error) => panic!("{copying:?} again: {error}"),
        }
        copying.apply(&mut state);
    }
    check(disk, keys, &[state]);
}

#[test]
fn exports_and_imports_are_absent_or_whole_after_a_crash_at_any_call() {
    let name = "exports_and_imports_are_absent_or_whole_after_a_crash_at_any_call";
    for_each_seed(name, 1, |rng, seed| {
        let (base, keys, state) = prepare(rng, seed);
        let workload = |disk: &Arc<SimDisk>| {
            let (legal, result) = run(disk, state.clone());
            assert!(disk.has_crashed() || result.is_ok(), "{result:?}");
            legal
        };
        let images = Sweep::sampled(seed, 5).on(&base.process_kill()).crash(workload, |crash| {
            let call = crash.call;
            let some = if call % 2 == 0 { Survival::Random } else { Survival::Torn };
            let survivals = [Survival::Nothing, Survival::Everything, some(seed ^ call)];
            let losses = survivals.map(Loss::Power).into_iter().chain([Loss::Process]);
            crash.images(losses, |image| {
                check(&image.disk, &keys, crash.run);
                // The death of a process leaves most to whoever goes on.
                if image.loss == Loss::Process || call as usize % 9 == image.number {
                    go_on(&image.loss.apply(crash.disk), &keys, state.clone());
                }
            })
        });
        assert!(images > by_effort(180, 900), "only {images} images");
    });
}

#[test]
fn a_fault_at_any_call_of_an_export_or_import_is_reported_and_leaves_nothing_half() {
    let kinds = [
        (FaultKind::Eio, Repeat::Once),
        (FaultKind::Eio, Repeat::Forever),
        (FaultKind::Enospc, Repeat::Once),
        (FaultKind::ShortRead, Repeat::Once),
        (FaultKind::FailedSync, Repeat::Once),
    ];

    let rng = &mut ChaCha8Rng::seed_from_u64(1);
    let (base, keys, state) = prepare(rng, 1);

    let undisturbed = run(&base.process_kill(), state.clone()).1.unwrap();
    for (kind, repeat) in kinds {
        let mut struck = 0;

        // A sample strikes other calls with each kind.
        let every = by_effort(11, 1);
        for at_call in (kind as u64 % every..).step_by(every as usize) {
            let disk = base.process_kill();
            let fault = Fault { at_call, kind, repeat };
            let _note = Note(&fault);
            disk.set_plan(FaultPlan { fail: Some(fault), ..FaultPlan::default() });
            let (legal, result) = run(&disk, state.clone());

            if disk.faults() == 0 {
                result.unwrap();
                break;
            }

            struck += 1;
            let error = match result {
                Err(error) => error,
                Ok(files_copied) => {
                    // A run that was there already is brought again. The file of another snapshot
                    // that cannot be read is damaged as long as its session is open. A disk that
                    // was full for one call has room once what was left of a crash is gone.
                    let kinds = [FaultKind::Eio, FaultKind::Enospc, FaultKind::ShortRead];
                    assert!(repeat == Repeat::Once && kinds.contains(&kind), "swallowed");
                    assert!(files_copied >= undisturbed, "{files_copied} files");
                    check(&disk, &keys, &legal);
                    continue;
                }
            };

            let is_expected = match &error {
                Error::Disk(_) => true,
                // A file that ends early may be a fault of the disk or damage.
                Error::Corrupt { .. } => kind == FaultKind::ShortRead,
                Error::SnapshotCorrupted { .. } => {
                    matches!(kind, FaultKind::ShortRead | FaultKind::Eio)
                }
                _ => false,
            };

            assert!(is_expected, "{error:?}");
            disk.set_plan(FaultPlan::default());
            assert_eq!(disk.open_files(), 0);

            if repeat == Repeat::Once {
                go_on(&disk.clone_disk(), &keys, state.clone());
            }
            check(&disk, &keys, &legal);
        }

        assert!(struck > by_effort(3, 20), "only {struck} runs with {kind:?}");
    }
}
