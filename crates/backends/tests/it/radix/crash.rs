//! The radix state on a disk that fails.
//!
//! Goal: after a loss of power or a killed process at any call of the disk, in a commit, a prune or
//! a transaction over two trees and the metadata map, each step that returned is there as a whole
//! and the one that was under way is there or not; what is stored is exactly what the retained
//! versions reach, and work goes on to the same end. A call that fails, and a full disk, give a
//! typed error and change nothing; the same store goes on when the cause has gone, or says that it
//! is poisoned and goes on when it is opened anew.
//!
//! Method: a script, drawn from the seed, whose outcome after each step is known from the model of
//! `histories`, which hashes every node by itself. It is run with a crash or fault at call n, for
//! every n, and some of the ways in which unsynced writes may survive; then the store is opened,
//! compared with the model, and the rest of the script is run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_backends::{BtreeDatabase, BtreeOptions, LsmDatabase, LsmOptions};
use terrane_io::{Disk, SimDisk, Survival};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_kv::{Database, Durability, PowerLoss};
use terrane_radix::{
    Address, Change, Error, INDEXES, Options, Prefix, PruneOptions, Pruned, Result, Root, Store,
    Tree,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Sweep};
use terrane_testkit::{ChaCha8Rng, RngCore};

use super::histories::{Model, batch, check_all};

const DIR: &str = "/store";
const NAMES: [&str; 2] = ["one", "two"];
/// The keys of the metadata map.
const KEYS: [&[u8]; 2] = [b"height", b"tip"];

/// A pruning that keeps no fork points and lists what it removes.
fn prune_options() -> PruneOptions {
    PruneOptions::default().keep_fork_points(false).list(true)
}

/// An engine with buffers so small that each step goes on to runs or leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    LsmGroup,
    LsmEach,
    Btree,
}

impl Engine {
    const ALL: [Self; 3] = [Self::LsmGroup, Self::LsmEach, Self::Btree];

    fn database(self, disk: Arc<dyn Disk>) -> terrane_kv::Result<Arc<dyn Database>> {
        let dir = Path::new(DIR);
        let durability = if self == Self::LsmGroup { Durability::Group } else { Durability::Each };
        if self == Self::Btree {
            let mut options = BtreeOptions::default().durability(durability);
            options.memory_bytes = 1 << 20;
            options.buffer_bytes = Some(2_000);
            options.log_bytes_max = 64 << 10;
            return Ok(Arc::new(BtreeDatabase::open(disk, dir, &INDEXES, &options)?));
        }

        let mut options = LsmOptions::default().durability(durability).salt(7);
        options.write_buffer_bytes = Some(2_000);
        options.log_bytes_max = Some(64 << 10);
        Ok(Arc::new(LsmDatabase::open(disk, dir, &INDEXES, &options)?))
    }

    /// Opens the store with so little memory for nodes that they are read again.
    fn open(self, disk: &Arc<SimDisk>) -> Result<Store> {
        let database = self.database(disk.clone())?;
        assert_eq!(database.guarantee().power_loss, PowerLoss::EveryCommit);
        Store::open(database, &Options::default().cache_bytes(1 << 10).threads(1))
    }
}

/// A change of the store.
#[derive(Debug)]
enum Operation {
    Create(usize),
    Commit { tree: usize, parent: Root, changes: Vec<Change>, root: Root },
    Prune { tree: usize, root: Root, outcome: Pruned },
    Metadata { key: usize, value: Option<Vec<u8>> },
}

#[derive(Debug)]
enum Step {
    /// By the call that does just this.
    Alone(Operation),
    /// In one transaction.
    Together(Vec<Operation>),
    /// Reads all values of a version: its place in the model.
    Read(usize),
    Compact,
}

/// Content of the store between two steps.
#[derive(Debug, Clone, Default)]
struct Moment {
    trees: usize,
    model: Model,
    metadata: [Option<Vec<u8>>; 2],
}

impl Moment {
    fn versions(&self) -> Vec<(usize, Root)> {
        self.model.versions.iter().map(|version| (version.tree, version.root)).collect()
    }

    /// Whether the store says that it holds this.
    fn is_in(&self, store: &Store) -> bool {
        let mut versions = Vec::new();
        let names = store.trees().unwrap();
        for (tree, name) in names.iter().enumerate() {
            let infos = store.tree(name).unwrap().versions().unwrap();
            versions.extend(infos.iter().map(|info| (info.id, (tree, info.root))));
        }
        versions.sort_unstable_by_key(|(id, _)| *id);
        let metadata = KEYS.map(|key| store.metadata(key).unwrap());
        names == NAMES[..self.trees]
            && versions.iter().map(|(_, version)| *version).eq(self.versions())
            && metadata == self.metadata
    }
}

/// Steps, and what there is before each of them and at the end.
struct Script {
    steps: Vec<Step>,
    moments: Vec<Moment>,
}

impl Script {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        let mut draft = Draft { now: Moment::default(), rng };
        let mut script = Self { steps: Vec::new(), moments: vec![Moment::default()] };
        let mut add = |draft: &Draft<'_>, step| {
            script.steps.push(step);
            script.moments.push(draft.now.clone());
        };
        let step = Step::Alone(draft.create());
        add(&draft, step);
        let step = Step::Alone(draft.wide(0));
        add(&draft, step);

        for _ in 0..4 {
            let step = Step::Alone(draft.commit(0));
            add(&draft, step);
        }

        let step = Step::Alone(draft.prune(0));
        add(&draft, step);
        let create = draft.create();
        let one = draft.commit(0);
        let other = draft.commit(1);
        let prune = draft.prune(0);
        let tip = draft.metadata(1, true);
        let height = draft.metadata(0, true);
        let step = Step::Together(vec![create, one, other, prune, tip, height]);
        add(&draft, step);
        let step = Step::Read(draft.now.model.versions.len() - 1);
        add(&draft, step);
        let step = Step::Alone(draft.commit(1));
        add(&draft, step);
        add(&draft, Step::Compact);
        let step = Step::Alone(draft.metadata(0, true));
        add(&draft, step);
        let first = draft.prune(1);
        let one = draft.commit(1);
        let other = draft.commit(0);
        let second = draft.prune(0);
        let tip = draft.metadata(1, false);
        let height = draft.metadata(0, true);
        let step = Step::Together(vec![first, one, other, second, tip, height]);
        add(&draft, step);

        for tree in [0, 1] {
            let step = Step::Alone(draft.prune(tree));
            add(&draft, step);
            let step = Step::Alone(draft.commit(tree));
            add(&draft, step);
        }

        let step = Step::Read(0);
        add(&draft, step);
        script
    }

    fn perform(&self, number: usize, store: &Store) -> Result<()> {
        match &self.steps[number] {
            Step::Alone(operation) => perform_alone(store, operation),
            Step::Together(operations) => perform_together(store, operations),
            Step::Read(at) => {
                let version = &self.moments[number].model.versions[*at];
                let tree = store.tree(NAMES[version.tree])?;
                let mut values = version.state.iter();
                for leaf in tree.leaves(&version.root, &Prefix::EMPTY)? {
                    let (address, value) = leaf?;
                    assert_eq!(values.next(), Some((&address.as_bytes().to_vec(), &value)));
                }
                assert_eq!(values.next(), None);
                Ok(())
            }
            Step::Compact => Ok(store.database().compact()?),
        }
    }

    /// Performs the steps from `first` on; answers how many are behind when the disk fails.
    fn run(&self, engine: Engine, disk: &Arc<SimDisk>, first: usize) -> usize {
        let Ok(store) = engine.open(disk) else { return first };
        for number in first..self.steps.len() {
            if self.perform(number, &store).is_err() {
                return number;
            }
        }
        drop(store.close());
        self.steps.len()
    }

    /// Checks that the store holds exactly what there is after so many steps, down to the last
    /// node, and no root besides.
    fn check(&self, store: &Store, number: usize) {
        let moment = &self.moments[number];
        assert!(moment.is_in(store), "{number} steps");
        check_all(store, &moment.model, &NAMES);

        for (tree, root) in self.moments.iter().flat_map(Moment::versions) {
            if tree < moment.trees {
                let tree_of_root = store.tree(NAMES[tree]).unwrap();
                let is_there = moment.model.has(tree, &root) > 0;
                // What is in memory of roots answers the first.
                match tree_of_root.get(&root, &[]) {
                    Ok(_) => assert!(is_there, "{number} steps, {root}"),
                    Err(Error::UnknownRoot { .. }) => assert!(!is_there, "{number} steps, {root}"),
                    Err(other) => panic!("{other:?}"),
                }
                assert_eq!(tree_of_root.has_root(&root).unwrap(), is_there, "{number}, {root}");
            }
        }
    }

    /// How many steps are behind, of which `done` surely are, in a store that was opened after a
    /// crash.
    fn find(&self, store: &Store, done: usize) -> usize {
        let last = (done + 1).min(self.steps.len());
        let found = (done..=last).rev().find(|at| self.moments[*at].is_in(store));
        let found = found.expect("the steps that returned, and the next as a whole or not at all");
        self.check(store, found);
        found
    }

    /// Opens what a crash left, compares it, and goes on to the end.
    fn check_image(&self, engine: Engine, disk: &Arc<SimDisk>, done: usize) {
        let store = engine.open(disk).expect("it opens after a crash");
        let found = self.find(&store, done);
        self.finish(engine, disk, store, found);
    }

    fn finish(&self, engine: Engine, disk: &Arc<SimDisk>, store: Store, first: usize) {
        for number in first..self.steps.len() {
            self.perform(number, &store).unwrap();
        }
        store.close().unwrap();
        drop(store);
        self.check(&engine.open(disk).unwrap(), self.steps.len());
    }
}

fn tree_of(store: &Store, tree: usize) -> Result<Tree> {
    store.tree(NAMES[tree])
}

fn perform_alone(store: &Store, operation: &Operation) -> Result<()> {
    match operation {
        Operation::Create(tree) => store.create_tree(NAMES[*tree]).map(drop),
        Operation::Commit { tree, parent, changes, root } => {
            let committed = tree_of(store, *tree)?.commit(parent, changes)?;
            assert_eq!(committed.root, *root);
            Ok(())
        }
        Operation::Prune { tree, root, outcome } => {
            assert_eq!(tree_of(store, *tree)?.prune(root)?, *outcome);
            Ok(())
        }
        Operation::Metadata { key, value } => store.set_metadata(KEYS[*key], value.as_deref()),
    }
}

fn perform_together(store: &Store, operations: &[Operation]) -> Result<()> {
    let mut transaction = store.transaction()?;
    for operation in operations {
        match operation {
            Operation::Create(tree) => transaction.create_tree(NAMES[*tree])?,
            Operation::Commit { tree, parent, changes, root } => {
                let committed = transaction.commit(NAMES[*tree], parent, changes)?;
                assert_eq!(committed.root, *root);
            }
            Operation::Prune { tree, root, outcome } => {
                assert_eq!(transaction.prune(NAMES[*tree], root, &prune_options())?, *outcome);
            }
            Operation::Metadata { key, value } => {
                transaction.set_metadata(KEYS[*key], value.as_deref())?;
            }
        }
    }

    transaction.finish()
}

/// Draws operations and knows what they come to.
struct Draft<'a> {
    now: Moment,
    rng: &'a mut ChaCha8Rng,
}

impl Draft<'_> {
    /// One of the retained versions of a tree, mostly the last one; `None` if there is none.
    fn version(&mut self, tree: usize) -> Option<usize> {
        let versions = &self.now.model.versions;
        let own: Vec<usize> = (0..versions.len()).filter(|at| versions[*at].tree == tree).collect();
        let last = own.last().copied()?;
        Some(if self.rng.chance(2, 3) { last } else { *self.rng.pick(&own) })
    }

    fn create(&mut self) -> Operation {
        self.now.trees += 1;
        Operation::Create(self.now.trees - 1)
    }

    /// A commit to a tree, with some values of which the nodes have rows of their own. Its state is
    /// not empty.
    fn commit(&mut self, tree: usize) -> Operation {
        let parent = self.version(tree).map(|at| self.now.model.versions[at].clone());
        let (parent, state) = parent
            .map_or((Root::EMPTY, BTreeMap::default()), |version| (version.root, version.state));
        loop {
            let (mut changes, mut after) = batch(self.rng, &state);
            for change in &mut changes {
                if let Change::Set(address, value) = change
                    && self.rng.chance(1, 5)
                {
                    let bytes = self.rng.index(1_500);
                    *value = self.rng.bytes(bytes);
                    after.insert(address.as_bytes().to_vec(), value.clone());
                }
            }

            if !after.is_empty() {
                let root = self.now.model.add(tree, after);
                return Operation::Commit { tree, parent, changes, root };
            }
        }
    }

    /// A commit that makes a branch so wide that later ones are stored as differences from it.
    fn wide(&mut self, tree: usize) -> Operation {
        let address = |token: u8| [&[token * 7][..], &[token; 30]].concat();
        let after: BTreeMap<Vec<u8>, Vec<u8>> =
            (0..32).map(|token| (address(token), vec![token; 20])).collect();
        let set = |(address, value): (&Vec<u8>, &Vec<u8>)| {
            Change::Set(Address::new(address).unwrap(), value.clone())
        };
        let changes = after.iter().map(set).collect();
        let root = self.now.model.add(tree, after);
        Operation::Commit { tree, parent: Root::EMPTY, changes, root }
    }

    fn prune(&mut self, tree: usize) -> Operation {
        let at = self.version(tree).expect("there are more commits than prunes");
        let root = self.now.model.versions[at].root;
        let gone = self.now.model.remove(tree, &root);
        let outcome = match self.now.model.has(tree, &root) {
            0 => Pruned::Removed { count: gone.len() as u64, hashes: gone },
            left => Pruned::Counted(left),
        };
        Operation::Prune { tree, root, outcome }
    }

    fn metadata(&mut self, key: usize, is_bound: bool) -> Operation {
        let value = is_bound.then(|| self.rng.bytes(8));
        self.now.metadata[key].clone_from(&value);
        Operation::Metadata { key, value }
    }
}

/// The survivals of which one is drawn, besides those that are tried at each call.
fn survival(rng: &mut ChaCha8Rng, disk: &SimDisk) -> Survival {
    let drawn = rng.next_u64();
    match rng.below(4) {
        0 => Survival::Everything,
        1 => Survival::Prefix(drawn % (disk.pending() + 1)),
        2 => Survival::Random(drawn),
        _ => Survival::Torn(drawn),
    }
}

fn crash_at_each_call(name: &str, engine: Engine) {
    let mut images = 0;
    for_each_seed(name, 1, |rng, seed| {
        let script = Script::draw(rng);
        let workload = |disk: &Arc<SimDisk>| {
            let done = script.run(engine, disk, 0);
            assert!(disk.has_crashed() || done == script.steps.len());
            done
        };
        images += Sweep::sampled(seed, 12).crash(workload, |crash| {
            let [one, other] = [(); 2].map(|()| survival(rng, crash.disk));
            let power = [Survival::Nothing, one, other].map(Loss::Power);
            let process = rng.chance(1, 3).then_some(Loss::Process);
            crash.images(power.into_iter().chain(process), |image| {
                script.check_image(engine, &image.disk, *crash.run);
            })
        });
    });

    assert!(images > by_effort(25, 300), "{images}");
}

#[test]
fn a_crash_at_any_call_leaves_whole_steps_in_lsm_tables() {
    let name = "a_crash_at_any_call_leaves_whole_steps_in_lsm_tables";
    crash_at_each_call(name, Engine::LsmGroup);
}

#[test]
fn a_crash_at_any_call_leaves_whole_steps_in_lsm_tables_synced_each() {
    let name = "a_crash_at_any_call_leaves_whole_steps_in_lsm_tables_synced_each";
    crash_at_each_call(name, Engine::LsmEach);
}

#[test]
fn a_crash_at_any_call_leaves_whole_steps_in_a_btree() {
    crash_at_each_call("a_crash_at_any_call_leaves_whole_steps_in_a_btree", Engine::Btree);
}

/// Also while it is opened after the crash before.
#[test]
fn crashes_one_after_another_leave_whole_steps() {
    let mut crashes = 0;
    let seeds = by_effort(1, 8);
    for_each_seed("crashes_one_after_another_leave_whole_steps", seeds, |rng, seed| {
        let script = Script::draw(rng);
        for engine in Engine::ALL {
            let mut disk = SimDisk::new(seed);
            let mut done = 0;
            while done < script.steps.len() {
                // An opening and the longest step behind it fit into this many.
                let calls = rng.below(300);
                disk.set_plan(FaultPlan::crash_at(disk.calls() + calls));
                done = script.run(engine, &disk, done);
                disk = disk.after_crash(survival(rng, &disk));
                crashes += 1;
                // What is compared is a copy, so that the next opening is the first one.
                done = script.find(&engine.open(&disk.clone_disk()).unwrap(), done);
            }
        }
    });

    assert!(crashes > by_effort(6, 50), "{crashes}");
}

/// Checks that a failure is of a kind that a failing disk causes; whether it says that the store
/// must be opened anew.
fn is_poisoned(fault: &FaultPlan, error: &Error) -> bool {
    let is_full = fault.fail.is_none_or(|fault| fault.kind == FaultKind::Enospc);
    match error {
        Error::StoreFull(terrane_kv::Error::StoreFull { .. }) if is_full => false,
        Error::BackEnd(terrane_kv::Error::BackEnd { .. }) if !is_full => false,
        Error::BackEnd(terrane_kv::Error::Poisoned { .. }) => true,
        other => panic!("{fault:?}: {other:?}"),
    }
}

impl Script {
    /// Runs the script under a plan until a step fails, then without; answers whether a step
    /// failed, and whether the store was poisoned by it.
    fn run_under(&self, plan: FaultPlan, engine: Engine, disk: &Arc<SimDisk>) -> (bool, bool) {
        disk.set_plan(plan);
        let store = engine.open(disk);
        if let Err(error) = &store {
            assert!(matches!(error, Error::StoreFull(_) | Error::BackEnd(_)), "{error:?}");
            disk.set_plan(FaultPlan::default());
            self.check_image(engine, disk, 0);
            return (true, false);
        }

        let store = store.unwrap();
        let mut failed = false;
        for number in 0..self.steps.len() {
            let Err(error) = self.perform(number, &store) else { continue };
            assert!(!failed, "the cause has gone: {error:?}");
            failed = true;
            disk.set_plan(FaultPlan::default());

            if !is_poisoned(&plan, &error) {
                self.check(&store, number);
                self.perform(number, &store).expect("the cause has gone");
                continue;
            }

            self.find(&store, number);
            let again = store.set_metadata(KEYS[0], None).unwrap_err();
            assert!(is_poisoned(&plan, &again), "{again:?}");
            drop(store.close());
            drop(store);

            for survival in [Survival::Nothing, Survival::Torn(disk.calls())] {
                self.check_image(engine, &disk.after_crash(survival), number);
            }

            self.check_image(engine, disk, number);
            return (true, true);
        }

        // What fails in closing is not what was committed.
        if store.close().is_err() {
            failed = true;
        }

        disk.set_plan(FaultPlan::default());
        drop(store);
        self.check_image(engine, disk, self.steps.len());
        (failed, false)
    }
}

#[test]
fn a_step_that_fails_has_changed_nothing() {
    for_each_seed("a_step_that_fails_has_changed_nothing", 1, |rng, seed| {
        let script = Script::draw(rng);
        for (engine, every) in [(Engine::LsmGroup, 3), (Engine::LsmEach, 3), (Engine::Btree, 1)] {
            for kind in [FaultKind::Eio, FaultKind::Enospc, FaultKind::FailedSync] {
                let mut failed = 0;
                let mut poisoned = 0;
                let sweep = Sweep::sampled(seed, 16).one_in(every);
                sweep.fault(kind, Some(Repeat::Once), |disk, fault| {
                    let plan = FaultPlan { fail: fault, ..FaultPlan::default() };
                    let outcome = script.run_under(plan, engine, disk);
                    failed += u32::from(outcome.0);
                    poisoned += u32::from(outcome.1);
                });

                assert!(failed > by_effort(1, 20), "{engine:?} {kind:?}: {failed}");
                let is_common = kind == FaultKind::FailedSync;
                let least = by_effort(0, 10);
                assert!(poisoned > least || !is_common, "{engine:?} {kind:?}: {poisoned}");
            }
        }
    });
}

/// A disk of any size, in which there is room later.
#[test]
fn a_full_disk_changes_nothing_and_passes() {
    for_each_seed("a_full_disk_changes_nothing_and_passes", 1, |rng, seed| {
        let script = Script::draw(rng);
        for engine in [Engine::LsmGroup, Engine::Btree] {
            let mut pages = 0;
            loop {
                let plan = FaultPlan::capacity(pages * 4096);
                let (failed, poisoned) = script.run_under(plan, engine, &SimDisk::new(seed));
                assert!(!poisoned, "{engine:?} {pages}");
                if !failed {
                    break;
                }
                pages += by_effort(8, 1);
                assert!(pages < 1_000, "{engine:?}: there is room");
            }

            assert!(pages > 20, "{engine:?} {pages}");
        }
    });
}
