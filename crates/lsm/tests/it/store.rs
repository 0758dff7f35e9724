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
    Durability, Error, MergePolicy, NamedTable, Resolve, Result, SessionOptions, Store,
    StoreOptions, TableConfig, TableName, Ticket, Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::gate::GateDisk;
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
            5 | 20 => steps.push(Step::Create("third")),
            8 => steps.push(Step::Commit(vec![("third", batch(rng, 12))], Durability::Group)),
            11 => steps.push(Step::Rename("third", "fourth")),
            13 => steps.push(Step::Commit(vec![("fourth", batch(rng, 12))], Durability::Group)),
            17 => steps.push(Step::Drop("fourth")),
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
    let is_poisoned = matches!(store.commit::<&[u8]>(&[]), Err(Error::Poisoned { .. }));
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

#[test]
fn commits_that_wait_together_share_an_fsync() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    let table = store.create_table(&name("main"), &TableConfig::default()).unwrap();
    table.insert(b"first", b"begins the log").unwrap().wait().unwrap();
    let before = disk.counts();
    let tickets: Vec<Ticket> =
        (0..20_u8).map(|number| table.insert(&[number], b"value").unwrap()).collect();
    assert!(tickets.iter().all(|ticket| !ticket.is_durable()));
    assert_eq!((disk.counts() - before).syncs, 0);
    tickets[10].wait().unwrap();
    assert!(tickets.iter().all(Ticket::is_durable), "one fsync is for all that is written");
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    store.sync().unwrap();
    assert_eq!((disk.counts() - before).syncs, 1);
    assert_eq!((disk.counts() - before).writes, 20);
    // Each of them asks for its own, if nobody waits at the same time.
    for number in 0..5_u8 {
        let update = (&[number][..], Update::Delete);
        store.commit_with(&[(&table, &[update][..])], Durability::Each).unwrap();
    }
    assert_eq!((disk.counts() - before).syncs, 6);
    store.close().unwrap();
}

/// Threads that wait for each other's commits: some end early, a checkpoint makes durable what they wait for, and at
/// last the store is closed. Nobody may be left waiting, and whoever was told that a commit is durable finds it.
#[test]
fn nobody_waits_for_a_sync_that_does_not_come() {
    for place in Place::both() {
        let session = SessionOptions::with_salt(SALT).create_dir();
        let options = StoreOptions::default().session(session);
        let store = Store::open(place.disk(), &place.dir(), &options).unwrap();
        let table = store.create_table(&name("main"), &config()).unwrap();
        let durable: Vec<u64> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..6_u64)
                .map(|thread| {
                    let (store, table) = (&store, &table);
                    // Two go on until the store is closed.
                    let most = if thread < 2 { u64::MAX } else { 20 * thread };
                    scope.spawn(move || {
                        let commit = |number: &u64| {
                            let value = number.to_le_bytes();
                            let ticket = table.insert(&thread.to_le_bytes(), &value)?;
                            if number.is_multiple_of(16) && thread == 3 {
                                store.checkpoint()?;
                            }
                            ticket.wait()
                        };
                        (1..=most).take_while(|number| commit(number).is_ok()).count() as u64
                    })
                })
                .collect();
            let mut workers = workers.into_iter();
            let endless: Vec<_> = workers.by_ref().take(2).collect();
            let ended: Vec<u64> = workers.map(|worker| worker.join().unwrap()).collect();
            store.close().unwrap();
            let endless = endless.into_iter().map(|worker| worker.join().unwrap());
            endless.chain(ended).collect()
        });
        assert_eq!(durable[2..], [40, 60, 80, 100]);
        drop((table, store));
        let store = Store::open(place.disk(), &place.dir(), &options).unwrap();
        let table = store.table(&name("main")).unwrap();
        for (thread, durable) in (0_u64..).zip(durable) {
            let found = table.lookup(&thread.to_le_bytes()).unwrap();
            let number = found.value().map_or(0, |v| u64::from_le_bytes(v.try_into().unwrap()));
            assert!(number >= durable, "thread {thread}: {number}, not {durable}");
        }
        store.close().unwrap();
    }
}

/// Four threads commit at the same time, each its own sequence of numbers; the power goes at some call.
#[test]
fn commits_of_several_threads_survive_in_the_order_of_their_numbers() {
    for_each_seed("store_threads", 12, |rng, seed| {
        let disk = SimDisk::new(seed);
        let store = open(&disk, Durability::Group).unwrap();
        let tables = ["a", "b"].map(|table| store.create_table(&name(table), &config()).unwrap());
        let call = disk.calls() + 1 + rng.below(400);
        disk.set_plan(FaultPlan { crash_at_call: Some(call), ..FaultPlan::default() });
        // For each thread the numbers of its commits, and how many of them are durable.
        let done: Vec<(Vec<u64>, usize)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4_u8)
                .map(|thread| {
                    let (store, tables) = (store.clone(), tables.clone());
                    scope.spawn(move || commit_until_crash(&store, &tables, thread))
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        assert!(disk.has_crashed());
        drop(tables);
        drop(store);
        let is_kill = rng.chance(1, 3);
        let survival = SURVIVALS[rng.index(SURVIVALS.len())];
        let disk = if is_kill { disk.process_kill() } else { disk.after_crash(survival) };
        let store = open(&disk, Durability::Group).unwrap();
        let last = store.last_commit();
        let (a, b) = (store.table(&name("a")).unwrap(), store.table(&name("b")).unwrap());
        for (thread, (commits, durable)) in (0..4_u8).zip(&done) {
            let newest = |table: &NamedTable| {
                let value = table.lookup(&[thread]).unwrap();
                value.value().map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
            };
            let found = newest(&a);
            assert_eq!(found, newest(&b), "a commit is whole or not there");
            let survived = commits.iter().filter(|commit| **commit <= last).count() as u64;
            // One more may be there than has returned.
            assert!((survived..=survived + 1).contains(&found), "thread {thread}: {found}");
            assert!(survived >= *durable as u64, "thread {thread} was told of {durable}");
        }
        store.close().unwrap();
    });
}

/// Commits 1, 2, 3 and so on to both tables until it fails. Returns the numbers of its commits, and how many of
/// them were durable.
fn commit_until_crash(store: &Store, tables: &[NamedTable; 2], thread: u8) -> (Vec<u64>, usize) {
    let (mut commits, mut durable) = (Vec::new(), 0);
    loop {
        let value = (commits.len() as u64 + 1).to_le_bytes();
        let update = [([thread], Update::Insert(&value))];
        let Ok(ticket) = store.commit(&[(&tables[0], &update[..]), (&tables[1], &update[..])])
        else {
            return (commits, durable);
        };
        commits.push(ticket.commit());
        if commits.len() % 3 == usize::from(thread) % 3 {
            if ticket.wait().is_err() {
                return (commits, durable);
            }
            assert!(ticket.is_durable());
            durable = commits.len();
        }
    }
}

#[test]
fn what_a_store_refuses_it_names_and_changes_nothing() {
    for place in Place::both() {
        let dir = place.dir();
        let open = |options: &StoreOptions| Store::open(place.disk(), &dir, options);
        let store = open(&options(Durability::Group)).unwrap();
        let (main, other) = (TableName::default(), name("other"));
        let table = store.create_table(&main, &config()).unwrap();
        let taken = store.create_table(&main, &config());
        assert!(matches!(taken, Err(Error::TableExists { name }) if name == "main"));
        store.create_table(&other, &config()).unwrap();
        let renamed = store.rename_table(&main, &other);
        assert!(matches!(renamed, Err(Error::TableExists { name }) if name == "other"));
        let missing = name("missing");
        for refused in [
            store.table(&missing).map(drop),
            store.drop_table(&missing),
            store.rename_table(&missing, &main),
        ] {
            assert!(matches!(refused, Err(Error::TableDoesNotExist { name }) if name == "missing"));
        }
        assert!(matches!(TableName::new("Main"), Err(Error::InvalidTableName { .. })));
        // All or nothing: the second table refuses.
        let (good, bad) = ([(vec![1], Update::Insert(b"1"))], [(vec![0; 5_000], Update::Delete)]);
        let other_table = store.table(&other).unwrap();
        let refused = store.commit(&[(&table, &good[..]), (&other_table, &bad[..])]);
        assert!(matches!(refused, Err(Error::KeyTooLarge { bytes: 5_000, .. })));
        assert_eq!(state(&store).unwrap()["main"], Content::new());
        let before = store.last_commit();
        table.insert(b"key", b"value").unwrap();
        assert_eq!(store.last_commit(), before + 1);
        store.drop_table(&other).unwrap();
        let refused = other_table.insert(b"key", b"value");
        assert!(matches!(refused, Err(Error::TableDoesNotExist { name }) if name == "other"));
        assert!(matches!(other_table.view(), Err(Error::TableDoesNotExist { .. })));
        store.close().unwrap();
        assert!(matches!(table.insert(b"key", b"value"), Err(Error::SessionClosed)));
        assert!(matches!(store.table(&main), Err(Error::SessionClosed)));
        drop((store, table, other_table));
        let refused = open(&options(Durability::Group).log_bytes_max(1));
        assert!(matches!(refused, Err(Error::InvalidConfig { option: "log_bytes_max", .. })));
        let store = open(&options(Durability::Group)).unwrap();
        let content = Content::from([(b"key".to_vec(), b"value".to_vec())]);
        assert_eq!(state(&store).unwrap(), State::from([("main".to_owned(), content)]));
        store.close().unwrap();
    }
}

/// A view stays as it is; readers and a writer at the same time.
#[test]
fn a_view_is_one_commits_whatever_comes_after() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    let table = store.create_table(&name("main"), &config()).unwrap();
    let mut views = Vec::new();
    for number in 0..100_u64 {
        table.insert(&(number % 7).to_le_bytes(), &number.to_le_bytes()).unwrap();
        views.push((number, table.view().unwrap()));
    }
    for (number, view) in views {
        for key in 0..7_u64 {
            let newest = (0..=number).rev().find(|n| n % 7 == key);
            let found = view.lookup(&key.to_le_bytes()).unwrap();
            assert_eq!(found.value(), newest.map(u64::to_le_bytes).as_ref().map(|v| &v[..]));
        }
    }
    store.drop_table(&name("main")).unwrap();
    store.close().unwrap();
}

/// Tables of own resolve functions come back with them, and not without.
#[test]
fn a_store_asks_for_the_resolve_functions_of_its_tables() {
    let disk = SimDisk::new(1);
    let newest_two = || {
        Resolve::new("newest-two", |newer: &[u8], older: &[u8]| {
            newer.iter().chain(older).take(2).copied().collect::<Vec<u8>>()
        })
        .unwrap()
    };
    let with = || options(Durability::Group).resolve(newest_two());
    let open_with = |options: &StoreOptions| {
        Store::open(Arc::clone(&disk) as Arc<dyn Disk>, Path::new("/store"), options)
    };
    let store = open_with(&with()).unwrap();
    let own = TableConfig { resolve: newest_two(), ..config() };
    let table = store.create_table(&name("own"), &own).unwrap();
    let sums = TableConfig { resolve: Resolve::add_u64_wrapping(), ..config() };
    let sum = store.create_table(&name("sum"), &sums).unwrap();
    for number in 0..30_u8 {
        let one = 1_u64.to_le_bytes();
        let updates = [(b"key", Update::Upsert(&[number]))];
        store.commit(&[(&table, &updates[..]), (&sum, &[(b"sum", Update::Upsert(&one))])]).unwrap();
    }
    store.sync().unwrap();
    drop((store, table, sum));
    let disk = disk.after_crash(Survival::Nothing);
    let open_with = |options: &StoreOptions| {
        Store::open(Arc::clone(&disk) as Arc<dyn Disk>, Path::new("/store"), options)
    };
    let refused = open_with(&options(Durability::Group));
    assert!(matches!(refused, Err(Error::ResolveNotCompatible { name, .. }) if name == "own"));
    let store = open_with(&with()).unwrap();
    let found = store.table(&name("own")).unwrap().lookup(b"key").unwrap();
    assert_eq!(found.value(), Some(&[29, 28][..]));
    let found = store.table(&name("sum")).unwrap().lookup(b"sum").unwrap();
    assert_eq!(found.value(), Some(&30_u64.to_le_bytes()[..]));
    store.close().unwrap();
}

/// The log is as long as it may be and no longer, and its files are used again.
#[test]
fn the_log_stays_within_its_bytes_and_its_segments_are_written_again() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Buffered).unwrap();
    let table = store.create_table(&name("main"), &TableConfig::default()).unwrap();
    let mut files = std::collections::BTreeSet::new();
    for number in 0..2_000_u64 {
        table.insert(&number.to_le_bytes(), &[7; 500]).unwrap();
        let log: Vec<_> =
            disk.files().into_iter().filter(|path| path.starts_with("/store/log")).collect();
        let bytes: u64 = log.iter().map(|path| disk.read_raw(path).unwrap().len() as u64).sum();
        // Half of it until a checkpoint is due, as much again of old segments, and the one that is begun.
        assert!(bytes <= 3 * (64 << 10), "{bytes} bytes in {log:?}");
        files.extend(log);
    }
    assert!(files.len() > 40, "{} segments", files.len());
    // A commit longer than a segment has one of its own.
    table.insert(b"large", &vec![1; 300_000]).unwrap().wait().unwrap();
    drop((store, table));
    let disk = disk.after_crash(Survival::Nothing);
    let store = open(&disk, Durability::Group).unwrap();
    let table = store.table(&name("main")).unwrap();
    assert_eq!(table.view().unwrap().count_exact().unwrap(), 2_001);
    store.close().unwrap();
}

/// Whole ranges go at once, or not at all; after a crash, too.
#[test]
fn a_range_is_deleted_whole_and_counted() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    let table = store.create_table(&name("main"), &config()).unwrap();
    // In the order of their numbers.
    let key = |number: u64| {
        let mut key = number.to_le_bytes();
        key.reverse();
        key
    };
    for number in 0..300 {
        table.insert(&key(number), b"value").unwrap();
    }
    let (count, _) = table.delete_range(&key(50)[..]..&key(250)[..]).unwrap();
    assert_eq!(count, 200);
    let (count, ticket) = table.delete_prefix(&key(0)[..7]).unwrap();
    // 250 to 255 have another last byte only.
    assert_eq!(count, 56);
    ticket.wait().unwrap();
    let (count, none) = table.delete_prefix(b"nothing").unwrap();
    assert_eq!((count, none.commit()), (0, ticket.commit()), "nothing is committed for nothing");
    drop((store, table));
    let store = open(&disk.after_crash(Survival::Nothing), Durability::Group).unwrap();
    let left = content(&store.table(&name("main")).unwrap()).unwrap();
    let expected: Vec<_> = (256..300).map(|number| key(number).to_vec()).collect();
    assert_eq!(left.into_keys().collect::<Vec<_>>(), expected);
    store.close().unwrap();
}

/// While a range is read, which takes as long as it takes, others commit; what is deleted is what is there
/// afterwards.
#[test]
fn commits_go_on_while_a_range_is_read_that_is_to_be_deleted() {
    for place in Place::both() {
        let disk = GateDisk::new(place.disk());
        let options = options(Durability::Group);
        let store = Store::open(Arc::clone(&disk) as _, &place.dir(), &options).unwrap();
        let many_runs = TableConfig {
            merge_policy: MergePolicy::Tiering,
            size_ratio: 16,
            write_buffer: WriteBuffer::Entries(20),
            ..TableConfig::default()
        };
        let table = store.create_table(&name("main"), &many_runs).unwrap();
        for number in 0..200_u8 {
            table.insert(&[number], b"value").unwrap();
        }
        // That of keys 60 to 79, whose file was closed for the later ones.
        disk.close("open", place.runs().remove(3));
        let (count, ticket) = std::thread::scope(|scope| {
            let deleting = scope.spawn(|| table.delete_range(&[50][..]..&[150][..]).unwrap());
            let held = disk.wait();
            table.insert(&[60, 1], b"new").unwrap();
            table.insert(&[60], b"changed").unwrap();
            table.insert(&[160, 1], b"beside it").unwrap();
            table.delete(&[70]).unwrap();
            assert_eq!(table.lookup(&[100]).unwrap().value(), Some(&b"value"[..]));
            drop(held);
            deleting.join().unwrap()
        });
        assert_eq!((count, ticket.commit()), (100, 205));
        let mut expected: Vec<Vec<u8>> = (0..50).chain(150..200).map(|key| vec![key]).collect();
        expected.insert(61, vec![160, 1]);
        assert_eq!(content(&table).unwrap().into_keys().collect::<Vec<_>>(), expected);
        store.close().unwrap();
    }
}

#[test]
fn a_changed_configuration_is_that_of_the_next_process() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    let table = store.create_table(&name("main"), &config()).unwrap();
    for number in 0..100_u8 {
        table.upsert(&[number], b"value").unwrap();
    }
    let other = TableConfig { write_buffer: WriteBuffer::Entries(33), ..config() };
    let refused = TableConfig { resolve: Resolve::add_u64_wrapping(), ..other.clone() };
    assert!(matches!(table.set_config(&refused), Err(Error::InvalidConfig { .. })));
    table.set_config(&other).unwrap();
    assert_eq!(table.view().unwrap().config(), &other);
    drop((store, table));
    let store = open(&disk.after_crash(Survival::Nothing), Durability::Group).unwrap();
    let table = store.table(&name("main")).unwrap();
    assert_eq!(table.view().unwrap().config(), &other);
    assert_eq!(store.tables().unwrap()[0].config, other);
    assert_eq!(table.view().unwrap().count_exact().unwrap(), 100);
    store.close().unwrap();
}

/// A store whose process has died with commits that no checkpoint has, one of them not durable.
fn killed(seed: u64) -> (Arc<SimDisk>, History) {
    let disk = SimDisk::new(seed);
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let mut steps = vec![Step::Create("main"), Step::Create("undo")];
    for how in [Durability::Each, Durability::Group, Durability::Each, Durability::Buffered] {
        steps.push(Step::Commit(vec![("main", batch(rng, 5)), ("undo", batch(rng, 5))], how));
    }
    let history = run(&disk, &Script { durability: Durability::Group, steps });
    (disk.process_kill(), history)
}

/// What the next process does first: a commit, or something with a table.
fn first_steps(rng: &mut ChaCha8Rng) -> [Step; 5] {
    [
        Step::Commit(vec![("main", batch(rng, 3))], Durability::Each),
        Step::Create("third"),
        Step::Rename("undo", "redo"),
        Step::Drop("undo"),
        Step::Checkpoint,
    ]
}

/// Whatever the next process begins with, and wherever it ends: the files that it has found are seen and may
/// not be durable.
#[test]
fn a_crash_in_the_first_steps_after_a_kill_loses_nothing() {
    for_each_seed("store_first_steps", 2, |rng, seed| {
        for first in first_steps(rng) {
            let second = Step::Commit(vec![("main", batch(rng, 3))], Durability::Each);
            let (found, before) = killed(seed);
            let go_on = |disk: &Arc<SimDisk>| {
                // All that was logged is there.
                let states = before.states[before.durable..].to_vec();
                let logged = before.logged - before.durable;
                let mut history = History { states, durable: 0, logged };
                let script = Script { durability: Durability::Group, steps: Vec::new() };
                let mut runner = Runner::new(disk, &script);
                for step in [&first, &second] {
                    history.states.extend(history.after(step));
                    if let Err(error) = runner.step(step) {
                        assert!(disk.has_crashed(), "{step:?}: {error}");
                        return history;
                    }
                    history.done(step, Durability::Group);
                }
                history
            };
            let whole = found.clone_disk();
            go_on(&whole);
            for call in 1..=whole.calls() {
                for survival in [Survival::Nothing, Survival::Random(call), Survival::Torn(call)] {
                    let disk = found.clone_disk();
                    let plan = FaultPlan { crash_at_call: Some(call), ..FaultPlan::default() };
                    disk.set_plan(plan);
                    let history = go_on(&disk);
                    let disk = disk.after_crash(survival);
                    check_image(&disk, Durability::Group, &history, history.durable);
                }
            }
        }
    });
}

/// The first checkpoint fails, at each of its calls; what is committed afterwards is durable all the same.
#[test]
fn nothing_is_committed_to_a_log_that_recovery_would_not_find() {
    for_each_seed("store_first_checkpoint", 1, |rng, seed| {
        let (found, before) = killed(seed);
        let step = Step::Commit(vec![("main", batch(rng, 3))], Durability::Each);
        let mut met = 0;
        for at_call in 1..200 {
            for kind in [FaultKind::Eio, FaultKind::Enospc, FaultKind::TornWrite] {
                let disk = found.clone_disk();
                let script = Script { durability: Durability::Group, steps: Vec::new() };
                let mut runner = Runner::new(&disk, &script);
                runner.store().unwrap();
                let at_call = disk.calls() + at_call;
                disk.set_plan(FaultPlan::fail(at_call, kind, Repeat::Once));
                let mut history =
                    History { states: vec![before.last().clone()], durable: 0, logged: 0 };
                let failed = runner.step(&step).is_err();
                disk.set_plan(FaultPlan::default());
                met += u64::from(failed);
                if failed && runner.step(&step).is_err() {
                    // Poisoned.
                    continue;
                }
                history.states.extend(history.after(&step));
                history.done(&step, Durability::Group);
                drop(runner);
                let disk = disk.after_crash(Survival::Nothing);
                check_image(&disk, Durability::Group, &history, history.durable);
            }
        }
        assert!(met > 20, "{met} failures");
    });
}

/// A commit that names a table more than once and fails is taken back whole, whatever was rearranged.
#[test]
fn a_commit_that_names_a_table_again_is_taken_back_whole() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    let large = TableConfig { write_buffer: WriteBuffer::Entries(100_000), ..config() };
    let table = store.create_table(&name("main"), &large).unwrap();
    let other = store.create_table(&name("other"), &config()).unwrap();
    let value = |number: u64, version: u8| vec![version ^ number as u8; 2_000];
    let updates = |version: u8| -> Vec<(Vec<u8>, Vec<u8>)> {
        (0..300_u64).map(|n| (n.to_le_bytes().to_vec(), value(n, version))).collect()
    };
    let first = updates(1);
    for (key, value) in &first {
        table.insert(key, value).unwrap();
    }
    let before = content(&table).unwrap();
    let (second, third) = (updates(2), updates(3));
    let second: Vec<_> = second.iter().map(|(k, v)| (&k[..], Update::Insert(v))).collect();
    let third: Vec<_> = third.iter().map(|(k, v)| (&k[..], Update::Insert(v))).collect();
    let long = vec![0; 5_000];
    let bad = [(&long[..], Update::Delete)];
    let refused = store.commit(&[(&table, &second[..]), (&table, &third[..]), (&other, &bad[..])]);
    assert!(matches!(refused, Err(Error::KeyTooLarge { .. })));
    assert_eq!(content(&table).unwrap(), before);
    store.commit(&[(&table, &second[..]), (&table, &third[..])]).unwrap();
    let expected: Content = updates(3).into_iter().collect();
    assert_eq!(content(&table).unwrap(), expected);
    store.close().unwrap();
}
