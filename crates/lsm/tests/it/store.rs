//! Named tables, commits, checkpoints and recovery.
//!
//! Goal: whatever survives a crash, a store opens with all commits up to some number that is not below the last
//! durable one, each whole over all its tables; tables are made, renamed and dropped whole; and work goes on.
//! A call that fails changes nothing.
//!
//! Method: a script is run with a crash, or a fault, at call n, for every n; the state that is found must be one
//! that the store went through, not older than the last one that was told to be durable. On some of these
//! disks the same is done to the opening.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_io::Disk;
use terrane_io::fault::{Fault, FaultKind, FaultPlan, Repeat};
use terrane_io::sim::{SimDisk, Survival};
use terrane_lsm::{
    Durability, Error, NamedTable, Result, SessionOptions, Store, StoreOptions, TableConfig,
    TableName, Ticket, Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::{FEW_OPEN_FILES, Place, SALT};

/// A table by key.
type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// The tables of a store by name.
type State = BTreeMap<String, Content>;

/// Keys with their new values, or none to delete them.
type Batch = Vec<(Vec<u8>, Option<Vec<u8>>)>;

#[derive(Debug, Clone)]
enum Step {
    Create(&'static str),
    Rename(&'static str, &'static str),
    Drop(&'static str),
    Commit(Vec<(&'static str, Batch)>, Durability),
    /// Waits for the last commit.
    Sync,
    Checkpoint,
    Reopen,
}

#[derive(Debug, Clone)]
struct Script {
    durability: Durability,
    steps: Vec<Step>,
}

fn name(text: &str) -> TableName {
    TableName::new(text).unwrap()
}

fn options(durability: Durability) -> StoreOptions {
    let session = SessionOptions::with_salt(SALT).create_dir().open_files_max(FEW_OPEN_FILES);
    let options = StoreOptions::default().session(session).durability(durability);
    // Segments of 16 KiB: a script fills several.
    options.log_bytes_max(64 << 10)
}

fn config() -> TableConfig {
    TableConfig { write_buffer: WriteBuffer::Entries(8), ..TableConfig::default() }
}

fn open(disk: &Arc<SimDisk>, durability: Durability) -> Result<Store> {
    let disk = Arc::clone(disk) as Arc<dyn Disk>;
    Store::open(disk, Path::new("/store"), &options(durability))
}

/// What happened so far, and what must be left of it.
#[derive(Debug)]
struct History {
    /// After each step that changed something; the last one may belong to a step under way.
    states: Vec<State>,
    /// The state that survives a loss of power at least.
    durable: usize,
    /// The state that survives the end of the process at least.
    logged: usize,
}

impl History {
    fn new() -> Self {
        Self { states: vec![State::new()], durable: 0, logged: 0 }
    }

    fn last(&self) -> &State {
        self.states.last().unwrap()
    }

    /// The state after a step, or none if it changes nothing.
    fn after(&self, step: &Step) -> Option<State> {
        let mut state = self.last().clone();
        match step {
            Step::Create(name) => {
                assert!(state.insert((*name).to_owned(), Content::new()).is_none());
            }
            Step::Rename(from, to) => {
                let content = state.remove(*from).unwrap();
                assert!(state.insert((*to).to_owned(), content).is_none());
            }
            Step::Drop(name) => drop(state.remove(*name).unwrap()),
            Step::Commit(batches, _) => {
                for (name, batch) in batches {
                    let content = state.get_mut(*name).unwrap();
                    for (key, value) in batch {
                        match value {
                            Some(value) => drop(content.insert(key.clone(), value.clone())),
                            None => drop(content.remove(key)),
                        }
                    }
                }
            }
            Step::Sync | Step::Checkpoint | Step::Reopen => return None,
        }
        Some(state)
    }

    /// A step has returned; `default` is the durability of the store.
    fn done(&mut self, step: &Step, default: Durability) {
        let last = self.states.len() - 1;
        let is_logged = default > Durability::SnapshotOnly;
        match step {
            // All of these make durable what was before them, too.
            Step::Create(_) | Step::Rename(..) | Step::Drop(_) => self.durable = last,
            Step::Commit(_, Durability::Each) | Step::Sync | Step::Checkpoint => {
                self.durable = last;
            }
            Step::Commit(..) => {}
            Step::Reopen => {
                if is_logged {
                    self.durable = last;
                } else {
                    self.states.truncate(self.durable + 1);
                }
            }
        }
        if is_logged {
            self.logged = self.states.len() - 1;
        }
        self.logged = self.logged.max(self.durable);
    }
}

struct Runner {
    disk: Arc<SimDisk>,
    script: Script,
    store: Option<Store>,
    last: Option<Ticket>,
}

impl Runner {
    fn new(disk: &Arc<SimDisk>, script: &Script) -> Self {
        Self { disk: Arc::clone(disk), script: script.clone(), store: None, last: None }
    }

    fn store(&mut self) -> Result<&Store> {
        if self.store.is_none() {
            self.store = Some(open(&self.disk, self.script.durability)?);
        }
        Ok(self.store.as_ref().unwrap())
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let store = self.store()?.clone();
        match step {
            Step::Create(table) => drop(store.create_table(&name(table), &config())?),
            Step::Rename(from, to) => store.rename_table(&name(from), &name(to))?,
            Step::Drop(table) => store.drop_table(&name(table))?,
            Step::Commit(batches, durability) => {
                let ticket = commit(&store, batches, *durability)?;
                assert_eq!(ticket.commit(), store.last_commit());
                if *durability == Durability::Each {
                    assert!(ticket.is_durable());
                }
                self.last = Some(ticket);
            }
            Step::Sync => match self.last.take() {
                Some(ticket) => ticket.wait()?,
                None => store.sync()?,
            },
            Step::Checkpoint => store.checkpoint()?,
            Step::Reopen => {
                self.last = None;
                let closed = store.close();
                self.store = None;
                closed?;
                self.store()?;
            }
        }
        Ok(())
    }
}

fn update_of(value: Option<&[u8]>) -> Update<'_> {
    value.map_or(Update::Delete, Update::Insert)
}

fn commit(
    store: &Store,
    batches: &[(&'static str, Batch)],
    durability: Durability,
) -> Result<Ticket> {
    let tables = batches.iter().map(|(table, _)| store.table(&name(table)));
    let tables: Vec<NamedTable> = tables.collect::<Result<_>>()?;
    let updates: Vec<Vec<(&[u8], Update<'_>)>> = batches
        .iter()
        .map(|(_, batch)| {
            batch.iter().map(|(key, value)| (key.as_slice(), update_of(value.as_deref()))).collect()
        })
        .collect();
    let parts: Vec<_> =
        tables.iter().zip(&updates).map(|(table, updates)| (table, updates.as_slice())).collect();
    store.commit_with(&parts, durability)
}

fn content(table: &NamedTable) -> Result<Content> {
    let records = table.cursor()?.take(usize::MAX)?;
    Ok(records.into_iter().map(|r| (r.key, r.value.as_ref().to_vec())).collect())
}

/// All that a store holds.
fn state(store: &Store) -> Result<State> {
    let mut state = State::new();
    for info in store.tables()? {
        state.insert(info.name.to_string(), content(&store.table(&info.name)?)?);
    }
    Ok(state)
}

fn batch(rng: &mut ChaCha8Rng, len: usize) -> Batch {
    (0..len)
        .map(|_| {
            let key = vec![b'k', rng.index(40) as u8];
            let len = if rng.chance(1, 8) { 3_000 } else { rng.index(60) };
            let value = (!rng.chance(1, 4)).then(|| vec![rng.index(256) as u8; len]);
            (key, value)
        })
        .collect()
}

/// Two tables from the beginning, a third that comes and goes.
fn script(rng: &mut ChaCha8Rng, durability: Durability) -> Script {
    let mut steps = vec![Step::Create("main"), Step::Create("undo")];
    for round in 0..30 {
        let len = 1 + rng.index(6);
        let how = [Durability::Buffered, Durability::Group, Durability::Each][rng.index(3)];
        let how = if durability == Durability::SnapshotOnly && !rng.chance(1, 5) {
            Durability::SnapshotOnly
        } else {
            how
        };
        let mut batches = vec![("main", batch(rng, len))];
        if rng.chance(1, 2) {
            let len = 1 + rng.index(6);
            batches.insert(rng.index(2), ("undo", batch(rng, len)));
        }
        if rng.chance(1, 6) {
            batches.push(("main", batch(rng, 1)));
        }
        steps.push(Step::Commit(batches, how));
        match round {
            5 => steps.push(Step::Create("third")),
            8 => steps.push(Step::Commit(vec![("third", batch(rng, 12))], Durability::Group)),
            11 => steps.push(Step::Rename("third", "fourth")),
            13 => steps.push(Step::Commit(vec![("fourth", batch(rng, 12))], Durability::Group)),
            17 => steps.push(Step::Drop("fourth")),
            20 => steps.push(Step::Create("third")),
            9 | 16 => steps.push(Step::Checkpoint),
            12 | 24 => steps.push(Step::Reopen),
            4 | 19 => steps.push(Step::Sync),
            _ => {}
        }
    }
    Script { durability, steps }
}

/// Runs a script until the end or a crash; returns what is legal then.
fn run(disk: &Arc<SimDisk>, script: &Script) -> History {
    let mut history = History::new();
    let mut runner = Runner::new(disk, script);
    for step in &script.steps {
        if disk.has_crashed() {
            break;
        }
        let next = history.after(step);
        history.states.extend(next);
        if let Err(error) = runner.step(step) {
            assert!(disk.has_crashed(), "{step:?} failed without a crash: {error}");
            break;
        }
        history.done(step, script.durability);
    }
    history
}

/// Opens a store after a crash and compares it with what is legal; goes on with it, and comes again.
fn check_image(disk: &Arc<SimDisk>, durability: Durability, history: &History, floor: usize) {
    let store = open(disk, durability).expect("a store opens after a crash");
    let found = state(&store).unwrap();
    let legal = &history.states[floor..];
    assert!(legal.contains(&found), "{found:?} is none of {legal:?}");
    let tables = store.tables().unwrap();
    let expected = match tables.first() {
        Some(info) => {
            let table = store.table(&info.name).unwrap();
            let update = (b"after", Update::Insert(b"the crash"));
            let ticket = store.commit_with(&[(&table, &[update][..])], Durability::Each).unwrap();
            assert!(ticket.is_durable());
            let mut expected = found;
            let content = expected.get_mut(info.name.as_str()).unwrap();
            content.insert(b"after".to_vec(), b"the crash".to_vec());
            expected
        }
        None => found,
    };
    drop(store);
    let disk = disk.after_crash(Survival::Nothing);
    let store = open(&disk, durability).unwrap();
    assert_eq!(state(&store).unwrap(), expected);
    store.checkpoint().unwrap();
    store.close().unwrap();
    // Without the log, as a plain session sees it: all files are where the manifest says.
    let store = open(&disk, Durability::SnapshotOnly).unwrap();
    assert_eq!(state(&store).unwrap(), expected);
    store.close().unwrap();
}

const SURVIVALS: [Survival; 6] = [
    Survival::Nothing,
    Survival::Everything,
    Survival::Prefix(1),
    Survival::Random(1),
    Survival::Random(2),
    Survival::Torn(3),
];

fn crash_everywhere(durability: Durability, seed: u64, every: u64) -> u64 {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let script = script(rng, durability);
    let whole = SimDisk::new(seed);
    run(&whole, &script);
    let calls = whole.calls();
    let mut images = 0;
    for call in (1 + seed % every..=calls).step_by(every as usize) {
        let disk = SimDisk::new(seed);
        disk.set_plan(FaultPlan { crash_at_call: Some(call), ..FaultPlan::default() });
        let history = run(&disk, &script);
        let survival = SURVIVALS[(call % SURVIVALS.len() as u64) as usize];
        for survival in [survival, Survival::Random(call)] {
            check_image(&disk.after_crash(survival), durability, &history, history.durable);
            images += 1;
        }
        check_image(&disk.process_kill(), durability, &history, history.logged);
        images += 1;
        // A crash while it is opened, too.
        let again = disk.after_crash(survival);
        let opening = again.clone_disk();
        drop(open(&opening, durability));
        let at = 1 + call % opening.calls().max(1);
        again.set_plan(FaultPlan { crash_at_call: Some(at), ..FaultPlan::default() });
        drop(open(&again, durability));
        check_image(
            &again.after_crash(Survival::Random(at)),
            durability,
            &history,
            history.durable,
        );
        images += 1;
    }
    images
}

#[test]
fn after_a_crash_at_any_call_the_durable_commits_are_there_and_then_a_prefix_of_the_rest() {
    for durability in [Durability::Group, Durability::Buffered, Durability::SnapshotOnly] {
        for_each_seed(&format!("store_crash_{durability:?}"), 1, |_, seed| {
            let images = crash_everywhere(durability, seed, 11);
            assert!(images > 100, "{images} images");
        });
    }
}

/// What a failed step must have left behind: nothing of itself, unless the store is poisoned.
fn check_failed(runner: &mut Runner, history: &mut History, step: &Step, changes: bool) -> bool {
    let Some(store) = runner.store.clone() else {
        assert!(matches!(step, Step::Reopen) || history.states.len() <= 2, "{step:?}");
        return true;
    };
    let nothing: [(&NamedTable, &[(&[u8], Update<'_>)]); 0] = [];
    let is_poisoned = matches!(store.commit(&nothing), Err(Error::Poisoned { .. }));
    let found = state(&store).expect("reads go on");
    // It was done, and could not be made durable.
    let is_each = matches!(step, Step::Commit(_, Durability::Each));
    let is_seen = is_each && &found == history.last();
    if changes && !is_poisoned && !is_seen {
        history.states.pop();
    }
    let legal = if changes && is_poisoned { 2 } else { 1 };
    let legal = &history.states[history.states.len() - legal..];
    assert!(legal.contains(&found), "after {step:?}: {found:?} is none of {legal:?}");
    !is_poisoned
}

/// Runs a script with a fault. What fails changes nothing, and succeeds without the fault; after a failed sync
/// the store says that it is poisoned, and opening it again brings back what is durable. Returns whether
/// anything failed.
fn run_with_fault(fault: Fault, seed: u64, script: &Script) -> bool {
    let disk = SimDisk::new(seed);
    disk.set_plan(FaultPlan { fail: Some(fault), ..FaultPlan::default() });
    let mut history = History::new();
    let mut runner = Runner::new(&disk, script);
    let mut failed = false;
    for step in &script.steps {
        let next = history.after(step);
        let changes = next.is_some();
        history.states.extend(next.clone());
        if let Err(error) = runner.step(step) {
            assert!(disk.faults() > 0, "{step:?} failed without a fault: {error}");
            failed = true;
            disk.set_plan(FaultPlan::default());
            if !check_failed(&mut runner, &mut history, step, changes) {
                drop(runner);
                let survival = Survival::Random(fault.at_call);
                let durability = script.durability;
                check_image(&disk.after_crash(survival), durability, &history, history.durable);
                check_image(&disk.process_kill(), durability, &history, history.logged);
                return true;
            }
            if matches!(step, Step::Reopen) {
                // It is closed all the same; what was logged and not synced is there.
                runner.store = None;
            } else if changes {
                history.states.extend(next);
            }
            runner.step(step).expect("the step succeeds without the fault");
        }
        history.done(step, script.durability);
    }
    let store = runner.store.take().unwrap();
    disk.set_plan(FaultPlan::default());
    assert_eq!(&state(&store).unwrap(), history.last());
    if let Err(error) = store.close() {
        // A file that could not be removed when its last user was dropped.
        assert!(failed || disk.faults() > 0, "{error}");
    }
    drop(store);
    drop(runner);
    check_image(&disk, script.durability, &history, history.durable);
    failed
}

#[test]
fn every_failing_call_is_reported_and_changes_nothing_or_poisons_the_store() {
    for durability in [Durability::Group, Durability::SnapshotOnly] {
        for_each_seed(&format!("store_faults_{durability:?}"), 1, |_, seed| {
            let script = script(&mut ChaCha8Rng::seed_from_u64(seed), durability);
            let whole = SimDisk::new(seed);
            run(&whole, &script);
            let every = 41;
            let mut faults = 0;
            for (at, kind) in FaultKind::ERRORS.into_iter().enumerate() {
                for repeat in [Repeat::Once, Repeat::Forever] {
                    let first = 1 + (seed + 5 * at as u64) % every;
                    for at_call in (first..=whole.calls()).step_by(every as usize) {
                        let fault = Fault { at_call, kind, repeat };
                        let note = Note(fault);
                        faults += u64::from(run_with_fault(fault, seed, &script));
                        drop(note);
                    }
                }
            }
            assert!(faults > 100, "{faults} of the faults were met");
        });
    }
}

/// Prints what was tried when it fails.
struct Note(Fault);

impl Drop for Note {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}", self.0);
        }
    }
}
