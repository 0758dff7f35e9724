//! Power loss and sudden death at every call on the disk.
//!
//! Goal: after a crash an index opens with the state after some step of its history: not before the
//! last step that was durable, and not in the middle of a step, whichever of the unsynced writes
//! survived; its files are consistent; and work goes on. The scripts are small and have buffers so
//! small that leaves and nodes are divided and joined, the root grows and collapses, segments of
//! the log are sealed, pages are used again.
//!
//! Method: a script is run with a crash at call n, for every n; for each of several choices of what
//! survives, the index is opened, compared and used. The opening is itself crashed at one of its
//! calls, every call in turn.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_btree::{Config, Error, Index, IterRecords, Update, check};
use terrane_io::{CountedDisk, Disk};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_io::{SimDisk, Survival};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Note, Sweep};

use crate::model::DIR;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// One step of a script.
#[derive(Debug, Clone)]
enum Step {
    Apply(Vec<(Vec<u8>, Option<Vec<u8>>)>),
    /// Appends updates to the WAL, durably or not.
    Commit(Vec<(Vec<u8>, Option<Vec<u8>>)>, bool),
    Flush(bool),
    Checkpoint,
    Filter(usize),
    Clear,
    Build(Model),
    Compact,
    Reopen,
}

fn is_kept(key: &[u8], modulus: usize) -> bool {
    key.iter().map(|&byte| usize::from(byte)).sum::<usize>() % modulus != 0
}

impl Step {
    fn apply(&self, model: &mut Model) {
        match self {
            Self::Apply(batch) | Self::Commit(batch, _) => {
                for (key, value) in batch {
                    match value {
                        Some(value) => {
                            model.insert(key.clone(), value.clone());
                        }
                        None => {
                            model.remove(key);
                        }
                    }
                }
            }
            Self::Filter(modulus) => model.retain(|key, _| is_kept(key, *modulus)),
            Self::Clear => model.clear(),
            Self::Build(built) => model.clone_from(built),
            Self::Flush(_) | Self::Checkpoint | Self::Compact | Self::Reopen => {}
        }
    }

    /// Whether everything before it is durable once it has returned.
    fn is_durable(&self) -> bool {
        !matches!(self, Self::Apply(_) | Self::Flush(false) | Self::Commit(_, false))
    }

    /// Whether everything before it outlives the process once it has returned.
    fn is_written(&self) -> bool {
        !matches!(self, Self::Apply(_))
    }
}

fn config() -> Config {
    Config::variable().memory_bytes(1 << 20).buffer_bytes(0).log_bytes_max(1 << 16)
}

fn open(disk: &Arc<dyn Disk>) -> Result<Index, Error> {
    Index::open_or_create(disk.clone(), Path::new(DIR), &config())
}

fn updates(batch: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<Update<'_>> {
    batch
        .iter()
        .map(|(key, value)| match value {
            Some(value) => Update::Replace(key, value),
            None => Update::Remove(key),
        })
        .collect()
}

fn take(index: &mut Index, disk: &Arc<dyn Disk>, step: &Step) -> Result<(), Error> {
    match step {
        Step::Apply(batch) => index.apply(&updates(batch)).map(|_| ()),
        Step::Commit(batch, sync) => {
            let position = index.commit(&updates(batch))?;
            if *sync { index.sync_to(position) } else { Ok(()) }
        }
        Step::Flush(sync) => index.flush(*sync),
        Step::Checkpoint => index.checkpoint(),
        Step::Filter(modulus) => index.filter(|key, _| is_kept(key, *modulus)),
        Step::Clear => index.clear(),
        Step::Build(model) => {
            index.build_sorted(&mut IterRecords::new(model.clone()), 90, |_| {}).map(|_| ())
        }
        Step::Compact => index.compact().map(|_| ()),
        Step::Reopen => {
            index.close()?;
            *index = open(disk)?;
            Ok(())
        }
    }
}

fn long_key(number: u64) -> Vec<u8> {
    // Separators as long as this make nodes with few children.
    format!("{:>200}{:04}", if number.is_multiple_of(2) { "INDEX" } else { "INODE" }, number)
        .into_bytes()
}

fn draw_script(rng: &mut ChaCha8Rng, count: usize) -> Vec<Step> {
    let spread = 40 + rng.below(400);
    let mut steps = Vec::new();
    for at in 0..count {
        let is_growing = at * 2 < count;
        steps.push(match rng.below(20) {
            0..10 => {
                let batch: Vec<_> = (0..=rng.below(30))
                    .map(|_| {
                        let key = long_key(rng.below(spread));
                        let is_put = rng.chance(if is_growing { 5 } else { 1 }, 6);
                        (key, is_put.then(|| vec![at as u8; rng.index(300)]))
                    })
                    .collect();
                match rng.below(4) {
                    0 => Step::Commit(batch, false),
                    1 => Step::Commit(batch, true),
                    _ => Step::Apply(batch),
                }
            }
            10..13 => Step::Flush(false),
            13..16 => Step::Flush(true),
            16 => Step::Checkpoint,
            17 if rng.chance(1, 3) => Step::Filter(2 + rng.index(4)),
            18 if rng.chance(1, 3) => Step::Clear,
            18 if rng.chance(1, 2) => Step::Compact,
            _ => Step::Reopen,
        });
        if matches!(steps.last(), Some(Step::Clear)) {
            let built = (0..rng.below(200)).map(|number| (long_key(number), vec![7; 40]));
            steps.push(Step::Build(built.collect()));
        }
    }

    steps
}

/// Leaves become half empty, and are packed.
fn packing() -> [Step; 3] {
    let put = (0..120).map(|number| (long_key(number), Some(vec![5; 250])));
    let removed = (0..120).filter(|number| number % 4 > 1).map(|number| (long_key(number), None));
    [Step::Apply(put.collect()), Step::Apply(removed.collect()), Step::Compact]
}

/// States that the index may have: those after each step, from the last durable one on; if only the
/// process ends, from the last one on that was written.
struct History {
    states: Vec<Model>,
    durable: usize,
    written: usize,
}

impl History {
    /// The states that may be found after a loss.
    fn legal(&self, loss: Loss) -> &[Model] {
        match loss {
            Loss::Power(_) => &self.states[self.durable..],
            Loss::Process => &self.states[self.written..],
        }
    }
}

/// Runs a script until the disk fails; returns what the index may have then.
fn run(disk: &Arc<SimDisk>, script: &[Step]) -> History {
    let shared: Arc<dyn Disk> = disk.clone();
    let mut history = History { states: vec![Model::new()], durable: 0, written: 0 };
    let Ok(mut index) = open(&shared) else { return history };
    for step in script {
        let mut state = history.states[history.states.len() - 1].clone();
        step.apply(&mut state);
        history.states.push(state);
        if take(&mut index, &shared, step).is_err() {
            assert!(disk.has_crashed());
            return history;
        }
        if step.is_durable() {
            history.durable = history.states.len() - 1;
        }
        if step.is_written() {
            history.written = history.states.len() - 1;
        }
    }

    history
}

fn content(index: &Index) -> Model {
    index.iter().unwrap().map(|entry| entry.unwrap()).collect()
}

/// Opens what is left, compares it, and goes on with it.
fn check_image(disk: &Arc<SimDisk>, legal: &[Model]) {
    let shared: Arc<dyn Disk> = disk.clone();
    let mut index = open(&shared).expect("an index opens after a crash");
    let mut found = content(&index);
    assert!(legal.contains(&found), "{} entries are none of {} states", found.len(), legal.len());
    assert_eq!(index.len().unwrap(), found.len() as u64);
    for step in [
        Step::Apply((0..60).map(|number| (long_key(number), Some(vec![1; 99]))).collect()),
        Step::Flush(true),
        Step::Apply((20..50).map(|number| (long_key(number), None)).collect()),
        Step::Checkpoint,
    ] {
        take(&mut index, &shared, &step).unwrap();
        step.apply(&mut found);
        assert!(content(&index) == found);
    }

    let report = check(&shared, Path::new(DIR), &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, []);
    index.close().unwrap();
    drop(index);
    assert_eq!(disk.open_files(), 0);
}

#[test]
fn a_crash_at_any_call_leaves_a_state_between_two_steps() {
    let mut images = 0;
    for_each_seed("a_crash_at_any_call_leaves_a_state_between_two_steps", 3, |rng, seed| {
        let mut script = draw_script(rng, 24);
        script.extend(packing());
        let workload = |disk: &Arc<SimDisk>| {
            let history = run(disk, &script);
            assert!(disk.has_crashed() || history.states.len() == script.len() + 1);
            history
        };
        images += Sweep::sampled(seed, 8).crash(workload, |crash| {
            crash.images(Loss::each(crash.call), |image| {
                check_image(&image.disk, crash.run.legal(image.loss));
            })
        });
    });

    assert!(images > by_effort(250, 2_000), "{images}");
}

#[test]
fn a_crash_while_opening_after_a_crash_loses_nothing_more() {
    for_each_seed("a_crash_while_opening_after_a_crash_loses_nothing_more", 3, |rng, seed| {
        let script = draw_script(rng, 20);
        let whole = SimDisk::new(seed);
        run(&whole, &script);
        for number in 0..by_effort(5, 40) {
            let call = rng.below(whole.calls());
            let disk = SimDisk::new(seed);
            disk.set_plan(FaultPlan::crash_at(call));
            let history = run(&disk, &script);
            let crashed = disk.after_crash(Survival::Random(number));
            let before = crashed.calls();
            let shared: Arc<dyn Disk> = crashed.clone_disk();
            drop(open(&shared));
            let calls = 60;
            for call in before..before + calls {
                let again = crashed.clone_disk();
                again.set_plan(FaultPlan::crash_at(again.calls() + call - before));
                let shared: Arc<dyn Disk> = again.clone();
                drop(open(&shared));
                again.set_plan(FaultPlan {
                    crash_at_call: Some(again.calls()),
                    ..FaultPlan::default()
                });
                let _note = Note(&(seed, number, call));
                let loss = Loss::Power(Survival::Torn(call));
                check_image(&loss.apply(&again), history.legal(loss));
            }
        }
    });
}

/// A fault of any kind at any call: the step says so and has not happened, unless it is one that
/// went on; everything is there; and once the fault is gone so does the work.
#[test]
fn a_fault_at_any_call_changes_nothing_and_work_goes_on() {
    for_each_seed("a_fault_at_any_call_changes_nothing_and_work_goes_on", 2, |rng, seed| {
        let script = draw_script(rng, 24);
        for kind in FaultKind::ERRORS {
            let sweep = Sweep::sampled(seed, 7).one_in(3);
            sweep.fault(kind, None, |disk, _| run_with_fault(disk, &script, kind));
        }
    });
}

fn run_with_fault(disk: &Arc<SimDisk>, script: &[Step], kind: FaultKind) {
    let shared: Arc<dyn Disk> = disk.clone();
    let mut index = match open(&shared) {
        Ok(index) => index,
        // After a failed sync of a directory, no later sync makes its names durable.
        Err(_) if kind == FaultKind::FailedSync => return,
        Err(_) => {
            disk.set_plan(FaultPlan::default());
            open(&shared).expect("it opens without the fault")
        }
    };

    let mut model = Model::new();
    let mut before = Model::new();
    for step in script {
        before.clone_from(&model);
        step.apply(&mut model);
        let Err(error) = take(&mut index, &shared, step) else { continue };
        assert!(disk.faults() > 0, "{error}");
        disk.set_plan(FaultPlan::default());
        let is_poisoned = matches!(index.flush(true), Err(Error::Poisoned { .. }));
        if is_poisoned || matches!(step, Step::Reopen) {
            drop(index);
            let crashed = disk.after_crash(Survival::Random(1));
            let shared: Arc<dyn Disk> = crashed.clone();
            let index = open(&shared).expect("it opens after a failed sync");
            let report = check(&shared, Path::new(DIR), &mut |_, _| {}).unwrap();
            assert_eq!(report.problems, []);
            drop(index);
            return;
        }
        let found = content(&index);
        assert!(found == before || found == model, "{step:?}: {error}");
        if matches!(step, Step::Commit(_, false)) {
            assert!(found == before, "{error}");
        }
        if found == before && found != model {
            take(&mut index, &shared, step)
                .unwrap_or_else(|error| panic!("{step:?} again: {error}"));
        }
        assert!(content(&index) == model);
    }

    disk.set_plan(FaultPlan::default());
    if index.checkpoint().is_ok() {
        assert!(content(&index) == model);
        let report = check(&shared, Path::new(DIR), &mut |_, _| {}).unwrap();
        assert_eq!(report.problems, []);
        index.close().unwrap();
        let after: Arc<dyn Disk> = disk.after_crash(Survival::Nothing);
        assert!(content(&open(&after).unwrap()) == model);
    }
}

/// Wrong bytes of a read are found out, and never come out as entries.
#[test]
fn wrong_bytes_are_found_out() {
    let mut found_out = 0;
    for_each_seed("wrong_bytes_are_found_out", 2, |rng, seed| {
        let script = draw_script(rng, 24);
        for kind in FaultKind::SILENT {
            Sweep::sampled(seed, 12).fault(kind, Some(Repeat::Once), |disk, _| {
                let shared: Arc<dyn Disk> = disk.clone();
                let Ok(mut index) = open(&shared) else { return };
                let mut model = Model::new();
                for step in &script {
                    let mut next = model.clone();
                    step.apply(&mut next);
                    match take(&mut index, &shared, step) {
                        Ok(()) => model = next,
                        Err(
                            Error::Corrupt { .. }
                            | Error::NotAnIndex { .. }
                            | Error::UnsupportedVersion { .. },
                        ) => {
                            found_out += 1;
                            break;
                        }
                        Err(error) => panic!("{error:?}"),
                    }
                }
                let found: Result<Model, Error> = match index.iter() {
                    Ok(cursor) => cursor.collect(),
                    Err(error) => Err(error),
                };
                assert!(found.is_err() || found.is_ok_and(|found| found == model));
            });
        }
    });

    assert!(found_out > by_effort(3, 10), "{found_out}");
}

/// The calls on the disk are counted and bounded.
#[test]
fn lookups_read_what_is_promised() {
    let disk = CountedDisk::new(SimDisk::new(1));
    let shared: Arc<dyn Disk> = disk.clone();
    let dir = Path::new(DIR);
    let config = Config::fixed(32, 13).memory_bytes(1 << 20);
    let index = Index::create(shared.clone(), dir, &config).unwrap();
    let key = |number: u64| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes());
        key
    };

    let model: Model = (0..60_000).map(|number| (key(number).to_vec(), vec![1; 13])).collect();
    index.build_sorted(&mut IterRecords::new(model), 90, |_| {}).unwrap();
    let stats = index.stats().unwrap();
    assert_eq!((stats.height, stats.entries), (2, 60_000));
    index.close().unwrap();
    let index = Index::open(shared, dir, &config).unwrap();
    let reads = || disk.counts().reads;

    // Cold: a page for each level.
    let before = reads();
    assert!(index.mem(&key(7)).unwrap());
    assert_eq!(reads() - before, u64::from(stats.height) + 1);
    for number in 0..3_000 {
        index.mem(&key(number * 17)).unwrap();
    }

    for number in 0..500 {
        let before = reads();
        assert!(index.mem(&key(number * 31)).unwrap());
        assert!(reads() - before <= 1);
        let before = reads();
        assert!(!index.mem(&key(100_000 + number)).unwrap());
        assert!(reads() - before <= 1);
    }
}
