//! Stores after a crash at every disk call: many workloads, many images.
//!
//! Goal: after a loss of power, or the death of the process, at any call of any workload, a store
//! opens with exactly the commits that were durable and then a prefix of the rest, each whole; and
//! goes on.
//!
//! Method: each of the [`WORKLOADS`] draws a script from a seed. It is run with a crash at each of
//! its calls, and of each of these disks several images are made: nothing, everything, prefixes and
//! subsets of what was not synced, names in directories included, and what the death of the process
//! leaves. The test opens each image, compares it and continues with it, on some images with a
//! second power loss. Everything follows from the seed.
//!
//! `cargo xtask sim --crash-images N` continues with further seeds until the test has checked N
//! distinct images.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, thread};

use terrane_io::FaultPlan;
use terrane_io::{SimDisk, Survival};
use terrane_lsm::{CheckpointThread, Durability};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::{for_each_seed, seed_of};
use terrane_testkit::sweep::Loss;
use terrane_testkit::tally;
use terrane_testkit::{ChaCha8Rng, SeedableRng};
use xxhash_rust::xxh3::Xxh3;

use crate::sim::number_in;
use crate::store_script::{
    Batch, Change, History, Runner, Script, Step, StoreState, batch, check_found, check_image,
    go_on, open, run, run_on, store_state,
};

/// The names of all tables.
const TABLES: [&str; 8] = ["a", "b", "c", "d", "main", "undo", "third", "fourth"];

/// Time between two lines of progress of a long run.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// Kind of script for a store, drawn from a seed.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) script: fn(&mut ChaCha8Rng) -> Script,
}

/// Each kind of thing that can be cut short.
pub(crate) const WORKLOADS: [Workload; 12] = [
    Workload { name: "single commits", script: single_commits },
    Workload { name: "group commits of four", script: group_commits },
    Workload { name: "flushes", script: flushes },
    Workload { name: "merges", script: merges },
    Workload { name: "compactions", script: compactions },
    Workload { name: "tables", script: tables },
    Workload { name: "commits of two tables", script: two_tables },
    Workload { name: "recycling of the log", script: recycling },
    Workload { name: "checkpoints without a log", script: without_log },
    Workload { name: "versions and backups", script: versions },
    Workload { name: "installed tables", script: installs },
    Workload { name: "everything", script: |rng| everything(rng, Durability::Group) },
];

fn how(rng: &mut ChaCha8Rng) -> Durability {
    *rng.pick(&[Durability::Buffered, Durability::Group, Durability::Each])
}

fn small_batch(rng: &mut ChaCha8Rng, len_max: usize) -> Batch {
    let len = 1 + rng.index(len_max);
    batch(rng, len)
}

/// One table, all of it in the write buffer and the log.
fn single_commits(rng: &mut ChaCha8Rng) -> Script {
    let mut steps = vec![Step::Create("main")];
    for _ in 0..12 {
        steps.push(Step::Commit(vec![("main", small_batch(rng, 3))], how(rng)));
        if rng.chance(1, 6) {
            steps.push(Step::Sync);
        }
    }
    Script { durability: Durability::Group, buffer: 1_000, steps }
}

/// Script of four writers that commit and wait in any order. One thread plays all four, so that the
/// seed determines the order.
fn group_commits(rng: &mut ChaCha8Rng) -> Script {
    let mut steps = vec![Step::Create("main"), Step::Create("undo")];
    let mut waiting = 0;
    for _ in 0..30 {
        if waiting == 4 || waiting > 0 && rng.chance(2, 5) {
            steps.push(Step::Wait(rng.index(waiting)));
            waiting -= 1;
        } else {
            let table = if rng.chance(1, 2) { "main" } else { "undo" };
            steps.push(Step::Commit(vec![(table, small_batch(rng, 3))], Durability::Group));
            waiting += 1;
        }
    }

    Script { durability: Durability::Group, buffer: 1_000, steps }
}

/// Write buffers of a few entries: commits flush.
fn flushes(rng: &mut ChaCha8Rng) -> Script {
    let mut steps = vec![Step::Create("main")];
    for round in 0..12 {
        steps.push(Step::Commit(vec![("main", small_batch(rng, 6))], how(rng)));
        if round == 8 {
            steps.push(Step::Checkpoint);
        }
    }
    Script { durability: Durability::Group, buffer: 6, steps }
}

/// Write buffers of two entries: levels fill, and merges begin, go on over checkpoints, and end.
fn merges(rng: &mut ChaCha8Rng) -> Script {
    let mut steps = vec![Step::Create("main")];
    for round in 0..16 {
        steps.push(Step::Commit(vec![("main", small_batch(rng, 5))], how(rng)));
        match round {
            4 | 9 => steps.push(Step::Checkpoint),
            12 => steps.push(Step::Reopen),
            _ => {}
        }
    }
    Script { durability: Durability::Group, buffer: 2, steps }
}

/// Tables that come, go, and change names, commits in between.
fn tables(rng: &mut ChaCha8Rng) -> Script {
    let mut steps = Vec::new();
    let mut there: Vec<&'static str> = Vec::new();
    for _ in 0..14 {
        let free: Vec<_> =
            TABLES[..4].iter().copied().filter(|name| !there.contains(name)).collect();

        let draw = rng.index(8);
        if there.is_empty() || draw < 2 && !free.is_empty() {
            let name = *rng.pick(&free);
            steps.push(Step::Create(name));
            there.push(name);
        } else if draw == 2 && !free.is_empty() {
            let at = rng.index(there.len());
            let to = *rng.pick(&free);
            steps.push(Step::Rename(there[at], to));
            there[at] = to;
        } else if draw == 3 {
            steps.push(Step::Drop(there.remove(rng.index(there.len()))));
        } else {
            let parts = there.iter().map(|name| (*name, small_batch(rng, 3))).collect();
            steps.push(Step::Commit(parts, how(rng)));
        }
    }

    Script { durability: Durability::Group, buffer: 4, steps }
}

/// Two tables that become one run each, after a flush and in the middle of merges, with a version
/// that needs what was before.
fn compactions(rng: &mut ChaCha8Rng) -> Script {
    let mut steps = vec![Step::Create("main"), Step::Create("undo")];
    for round in 0..14 {
        let parts = vec![("main", small_batch(rng, 5)), ("undo", small_batch(rng, 2))];
        steps.push(Step::Commit(parts, how(rng)));
        match round {
            4 => steps.push(Step::Retain),
            2 | 7 | 13 => steps.push(Step::Compact),
            10 => steps.push(Step::Reopen),
            _ => {}
        }
    }
    Script { durability: Durability::Group, buffer: 3, steps }
}

/// Commits of two tables that take several sectors each.
fn two_tables(rng: &mut ChaCha8Rng) -> Script {
    let mut steps = vec![Step::Create("main"), Step::Create("undo")];
    for _ in 0..10 {
        let mut parts = vec![("main", small_batch(rng, 8)), ("undo", small_batch(rng, 8))];
        let value = vec![rng.index(256) as u8; 700];
        parts[rng.index(2)].1.push((b"long".to_vec(), Change::Insert(value)));
        if rng.chance(1, 2) {
            parts.swap(0, 1);
        }
        steps.push(Step::Commit(parts, how(rng)));
    }
    Script { durability: Durability::Group, buffer: 20, steps }
}

/// Long values, so that checkpoints come by themselves, segments are sealed and written again.
fn recycling(rng: &mut ChaCha8Rng) -> Script {
    let mut steps = vec![Step::Create("main")];
    for round in 0..16 {
        let mut batch = small_batch(rng, 2);
        let value = vec![rng.index(256) as u8; 4_000 + rng.index(8_000)];
        batch.push((vec![b'k', rng.index(3) as u8], Change::Insert(value)));
        steps.push(Step::Commit(vec![("main", batch)], how(rng)));
        match round {
            4 | 11 => steps.push(Step::Checkpoint),
            8 => steps.push(Step::Reopen),
            _ => {}
        }
    }

    Script { durability: Durability::Group, buffer: 8, steps }
}

/// A store without a log: what it keeps it keeps by checkpoints.
fn without_log(rng: &mut ChaCha8Rng) -> Script {
    let mut steps = vec![Step::Create("main"), Step::Create("undo")];
    for round in 0..14 {
        let how = if rng.chance(1, 4) { Durability::Each } else { Durability::None };
        let parts = vec![("main", small_batch(rng, 4)), ("undo", small_batch(rng, 4))];
        steps.push(Step::Commit(parts, how));
        match round {
            3 => steps.push(Step::Checkpoint),
            6 => steps.push(Step::Sync),
            10 => steps.push(Step::Reopen),
            _ => {}
        }
    }

    Script { durability: Durability::None, buffer: 4, steps }
}

/// Versions that are retained, gone back to and released, and backups, the later ones over the
/// earlier ones.
fn versions(rng: &mut ChaCha8Rng) -> Script {
    let mut steps = vec![Step::Create("main"), Step::Create("undo")];
    let mut retained = 0;
    for round in 0..6 {
        for _ in 0..=rng.index(2) {
            let parts = vec![("main", small_batch(rng, 4)), ("undo", small_batch(rng, 2))];
            steps.push(Step::Commit(parts, how(rng)));
        }

        match round {
            0 | 2 | 4 => {
                steps.push(Step::Retain);
                retained += 1;
            }
            1 | 5 => steps.push(Step::BackUp),
            _ => {
                steps.push(Step::RollBack(rng.index(retained)));
                if rng.chance(1, 2) {
                    steps.push(Step::Release);
                    retained -= 1;
                }
            }
        }
    }

    Script { durability: Durability::Group, buffer: 4, steps }
}

/// Tables that are installed, alone and with a commit, and replaced, between commits, a version and
/// a rollback over them.
fn installs(rng: &mut ChaCha8Rng) -> Script {
    let mut steps = vec![Step::Create("main")];
    let commit = |rng: &mut ChaCha8Rng, steps: &mut Vec<Step>, names: &[&'static str]| {
        let parts = names.iter().map(|name| (*name, small_batch(rng, 4))).collect();
        steps.push(Step::Commit(parts, how(rng)));
    };

    commit(rng, &mut steps, &["main"]);
    steps.push(Step::Install("undo", small_batch(rng, 12)));
    commit(rng, &mut steps, &["main", "undo"]);
    steps.push(Step::Retain);
    let both = vec![("undo", small_batch(rng, 4)), ("main", small_batch(rng, 3))];
    steps.push(Step::InstallWith("third", small_batch(rng, 12), both));
    commit(rng, &mut steps, &["third", "undo"]);
    steps.push(Step::Replace("main", small_batch(rng, 9)));
    commit(rng, &mut steps, &["main", "third"]);
    steps.push(Step::Reopen);
    steps.push(Step::Replace("third", small_batch(rng, 2)));
    steps.push(Step::RollBack(0));
    steps.push(Step::InstallWith("fourth", small_batch(rng, 3), Vec::new()));
    commit(rng, &mut steps, &["fourth", "main"]);
    Script { durability: Durability::Group, buffer: 4, steps }
}

/// Two tables from the beginning, a third that comes and goes.
pub(crate) fn everything(rng: &mut ChaCha8Rng, durability: Durability) -> Script {
    let mut steps = vec![Step::Create("main"), Step::Create("undo")];
    for round in 0..30 {
        let len = 1 + rng.index(6);
        let how = [Durability::Buffered, Durability::Group, Durability::Each][rng.index(3)];
        let how = if durability == Durability::None && !rng.chance(1, 5) {
            Durability::None
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

    Script { durability, buffer: 8, steps }
}

/// Counts of crashes and of the images that were checked.
#[derive(Debug, Default)]
struct ImageCounts {
    crashes: u64,
    images: u64,
    /// A hash of each image.
    distinct: BTreeSet<u64>,
}

impl ImageCounts {
    fn add(&mut self, other: &Self) {
        self.crashes += other.crashes;
        self.images += other.images;
        self.distinct.extend(&other.distinct);
    }
}

/// A hash of all that is on a disk: names of files, lengths, bytes.
fn hash_of(disk: &SimDisk) -> u64 {
    let mut hasher = Xxh3::new();
    for path in disk.files() {
        let bytes = disk.read_raw(&path).unwrap();
        hasher.update(path.as_os_str().as_encoded_bytes());
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(&bytes);
    }
    hasher.digest()
}

/// Prints the failing case and its replay command when a check panics.
pub(crate) struct Note<'a> {
    pub(crate) seed: u64,
    pub(crate) workload: &'a str,
    pub(crate) what: &'a dyn Debug,
}

impl Drop for Note<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self { seed, workload, what } = self;
            eprintln!(
                "{workload}, {what:?}; replay: SEED={seed:#018x} cargo test -p terrane-lsm-tests store_"
            );
        }
    }
}

/// Returns every `every`-th call, from one that the seed chooses. A seed given by hand must fail
/// again, so then it returns all calls.
pub(crate) fn calls(seed: u64, every: u64, calls: u64) -> impl Iterator<Item = u64> {
    let every = if env::var_os("SEED").is_some_and(|seed| !seed.is_empty()) { 1 } else { every };
    (seed % every..calls).step_by(every as usize)
}

/// Draws losses at a crash: a few fixed ones, and some prefixes, subsets, and subsets of sectors.
fn losses(disk: &SimDisk, rng: &mut ChaCha8Rng) -> Vec<Loss> {
    let pending = disk.pending();
    let mut survivals = vec![Survival::Nothing];
    if pending > 0 {
        survivals.push(Survival::Everything);
        survivals.extend((0..3).map(|_| Survival::Torn(rng.below(u64::MAX))));
    }
    if pending > 1 {
        survivals.extend((0..3).map(|_| Survival::Prefix(1 + rng.below(pending - 1))));
        survivals.extend((0..4).map(|_| Survival::Random(rng.below(u64::MAX))));
    }
    survivals.into_iter().map(Loss::Power).chain([Loss::Process]).collect()
}

/// A script that is crashed.
struct Sweep {
    seed: u64,
    workload: &'static str,
    script: Script,
    rng: ChaCha8Rng,
    /// Images with what was expected of them: not opened a second time.
    seen: BTreeSet<(u64, bool, usize, usize)>,
    counts: ImageCounts,
}

impl Sweep {
    fn new(workload: &Workload, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let script = (workload.script)(&mut rng);
        let seen = BTreeSet::new();
        let counts = ImageCounts::default();
        Self { seed, workload: workload.name, script, rng, seen, counts }
    }

    /// Crashes at every `every`-th call.
    fn run(mut self, every: u64) -> ImageCounts {
        let whole = SimDisk::new(self.seed);
        run(&whole, &self.script);

        let mut before = None;
        for call in calls(self.seed, every, whole.calls()) {
            let disk = SimDisk::new(self.seed);
            disk.set_plan(FaultPlan::crash_at(call));
            let history = run(&disk, &self.script);
            assert!(disk.has_crashed());
            self.counts.crashes += 1;
            let seen = hash_of(&disk);

            let now = (seen, disk.pending(), history.durable, history.logged, history.states.len());
            if before.replace(now) == Some(now) {
                // Nothing was done to the disk since the call before, and nothing promised.
                continue;
            }

            // Of the call alone, so that a seed replays it whichever calls were tried before.
            self.rng = ChaCha8Rng::seed_from_u64(self.seed ^ call.rotate_left(32));

            let losses = losses(&disk, &mut self.rng);
            let chosen = self.rng.index(losses.len());
            for (at, loss) in losses.into_iter().enumerate() {
                let note = Note { seed: self.seed, workload: self.workload, what: &(call, loss) };
                let image = loss.apply(&disk);
                let is_new = self.is_new(&image, loss, &history);
                if at == chosen {
                    self.crash_again(&image.clone_disk(), loss, &history);
                    check_image(&image, self.script.durability, &history, floor(loss, &history));
                } else if is_new {
                    check_found(&image, self.script.durability, &history, floor(loss, &history));
                }
                drop(note);
            }
        }

        self.counts
    }

    /// Counts an image. Says whether it is another one than before, or more is expected of it.
    fn is_new(&mut self, image: &SimDisk, loss: Loss, history: &History) -> bool {
        let hash = hash_of(image);
        self.counts.images += 1;
        self.counts.distinct.insert(hash);
        let is_process = matches!(loss, Loss::Process);
        self.seen.insert((hash, is_process, floor(loss, history), history.states.len()))
    }

    /// A crash in the first steps after a crash.
    fn crash_again(&mut self, image: &Arc<SimDisk>, loss: Loss, history: &History) {
        let script = &self.script;
        let store = open(&image.clone_disk(), script.durability).unwrap();
        let found = store_state(&store).unwrap();
        drop(store);

        let last = history.states.iter().rposition(|state| *state == found).unwrap();
        // What a dead process has left is seen, and need not be durable.
        let first = if matches!(loss, Loss::Process) { history.durable.min(last) } else { last };

        let steps = self.first_steps(&found);
        let script = &self.script;
        let crash = |disk: &Arc<SimDisk>| {
            let states = history.states[first..=last].to_vec();
            let mut history = History::from(states, last - first);
            let mut runner = Runner::new(disk, script);
            go_on(disk, &mut runner, &mut history, &steps);
            history
        };

        let whole = image.clone_disk();
        crash(&whole);
        let call = self.rng.below(whole.calls());
        image.set_plan(FaultPlan::crash_at(call));
        let history = crash(image);
        self.counts.crashes += 1;

        let survival = Survival::Random(self.rng.below(u64::MAX));
        for loss in [Loss::Power(Survival::Nothing), Loss::Power(survival), Loss::Process] {
            let note =
                Note { seed: self.seed, workload: self.workload, what: &("again", call, loss) };
            let image = loss.apply(image);
            if self.is_new(&image, loss, &history) {
                check_found(&image, self.script.durability, &history, floor(loss, &history));
            }
            drop(note);
        }
    }

    /// Draws the first steps of the next process.
    fn first_steps(&mut self, found: &StoreState) -> Vec<Step> {
        let rng = &mut self.rng;
        let is_there = |name: &&str| found.tables.contains_key(*name);
        let (mut there, mut free): (Vec<_>, Vec<_>) = TABLES.into_iter().partition(is_there);

        let other_at = rng.index(3);
        let mut steps = Vec::new();
        for at in 0..3 {
            steps.push(match (there.last_mut(), rng.index(5)) {
                (Some(_), _) if at != other_at => {
                    let parts = there.iter().map(|name| (*name, small_batch(rng, 3))).collect();
                    Step::Commit(parts, how(rng))
                }
                (None, _) | (_, 0) => {
                    there.push(free.remove(0));
                    Step::Create(there[there.len() - 1])
                }
                (Some(last), 1) => {
                    let from = std::mem::replace(last, free.remove(0));
                    Step::Rename(from, last)
                }
                _ => Step::Checkpoint,
            });
        }

        steps
    }
}

/// The oldest state that is legal.
fn floor(loss: Loss, history: &History) -> usize {
    match loss {
        Loss::Power(_) => history.durable,
        Loss::Process => history.logged,
    }
}

#[test]
fn after_a_crash_at_any_call_the_durable_commits_are_there_and_then_a_prefix_of_the_rest() {
    match Soak::from_environment() {
        Some(soak) => soak.run(),
        None => for_each_seed("store_sweep", 1, |_, seed| {
            let mut all = ImageCounts::default();
            for workload in &WORKLOADS {
                all.add(&Sweep::new(workload, seed).run(by_effort(67, 23)));
            }
            assert!(all.distinct.len() > by_effort(100, 300), "{} images", all.distinct.len());
        }),
    }
}

/// Checkpoints, segments made ahead and seals come from threads, in any order of calls: whichever
/// call is the last, what is there then is legal.
#[test]
fn a_crash_at_any_call_of_any_thread_leaves_a_legal_store() {
    let workload = Workload { name: "threads", script: recycling };
    for_each_seed("store_threads_crash", 1, |_, seed| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let script = (workload.script)(&mut rng);
        let whole = SimDisk::new(seed);
        run_on(&whole, &script, CheckpointThread::Background);

        let mut crashes = 0;
        for call in calls(seed, by_effort(13, 3), whole.calls()) {
            let disk = SimDisk::new(seed);
            disk.set_plan(FaultPlan::crash_at(call));
            let history = run_on(&disk, &script, CheckpointThread::Background);
            // Another order may have taken fewer calls.
            if !disk.has_crashed() {
                continue;
            }
            crashes += 1;
            for loss in losses(&disk, &mut rng) {
                let note = Note { seed, workload: workload.name, what: &(call, loss) };
                let image = loss.apply(&disk);
                check_found(&image, script.durability, &history, floor(loss, &history));
                drop(note);
            }
        }
        assert!(crashes > 10, "{crashes} crashes");
    });
}

/// Runs workload after workload until this many distinct images have been checked.
struct Soak {
    images: usize,
    /// Time after which it is over, too.
    seconds: Option<u64>,
    /// The number of the first seed.
    start: u64,
    jobs: u64,
    next: AtomicU64,
    has_failed: AtomicBool,
    totals: Mutex<Totals>,
    begun: Instant,
}

/// Counts over scripts of consecutive numbers: a run with more threads counts the same.
#[derive(Default)]
struct Totals {
    /// Scripts that an earlier one is still missing for.
    waiting: BTreeMap<u64, ImageCounts>,
    scripts: u64,
    by_workload: [ImageCounts; WORKLOADS.len()],
    all: ImageCounts,
    reported: Duration,
}

impl Soak {
    fn from_environment() -> Option<Self> {
        Some(Self {
            images: number_in("TERRANE_CRASH_IMAGES")? as usize,
            seconds: number_in("TERRANE_SIM_SECONDS"),
            // Numbers of different starts do not meet.
            start: number_in("TERRANE_SIM_START").unwrap_or(0) << 32,
            jobs: number_in("TERRANE_SIM_JOBS").unwrap_or(1),
            next: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            totals: Mutex::default(),
            begun: Instant::now(),
        })
    }

    fn run(&self) {
        thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| self.work());
            }
        });

        let totals = self.totals.lock().unwrap();
        for (workload, counts) in WORKLOADS.iter().zip(&totals.by_workload) {
            let ImageCounts { crashes, images, distinct } = counts;
            let name = workload.name;
            eprintln!(
                "{name:28} {crashes:7} crashes {images:8} images {:8} distinct",
                distinct.len()
            );
        }

        self.tell(&totals);
        let distinct = totals.all.distinct.len();
        tally::add("crash images", totals.all.images);
        tally::add("distinct crash images", distinct as u64);
        assert!(distinct >= self.images || self.is_time_over());
    }

    fn is_over(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
            || self.is_time_over()
            || self.totals.lock().unwrap().all.distinct.len() >= self.images
    }

    fn is_time_over(&self) -> bool {
        self.seconds.is_some_and(|seconds| self.begun.elapsed() >= Duration::from_secs(seconds))
    }

    fn work(&self) {
        while !self.is_over() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let seed = seed_of("store_sweep", self.start + number / WORKLOADS.len() as u64);
            let workload = &WORKLOADS[(number % WORKLOADS.len() as u64) as usize];
            let failed = Failed(&self.has_failed);
            let counts = Sweep::new(workload, seed).run(1);
            std::mem::forget(failed);
            self.add(number, counts);
        }
    }

    fn add(&self, number: u64, counts: ImageCounts) {
        let mut totals = self.totals.lock().unwrap();
        let totals = &mut *totals;
        totals.waiting.insert(number, counts);

        while totals.all.distinct.len() < self.images
            && let Some(counts) = totals.waiting.remove(&totals.scripts)
        {
            totals.by_workload[(totals.scripts % WORKLOADS.len() as u64) as usize].add(&counts);
            totals.all.add(&counts);
            totals.scripts += 1;
        }

        if self.begun.elapsed() > totals.reported + PROGRESS_EVERY {
            totals.reported = self.begun.elapsed();
            self.tell(totals);
        }
    }

    fn tell(&self, totals: &Totals) {
        let ImageCounts { crashes, images, distinct } = &totals.all;
        let seconds = self.begun.elapsed().as_secs_f64();
        eprintln!(
            "{seconds:5.0} s, series {}: {} scripts, {crashes} crashes, {images} images, {} distinct",
            self.start >> 32,
            totals.scripts,
            distinct.len(),
        );
    }
}

/// Tells the other threads to stop if it is dropped.
struct Failed<'a>(&'a AtomicBool);

impl Drop for Failed<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
