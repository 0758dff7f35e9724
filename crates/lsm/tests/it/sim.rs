//! The whole engine in lock-step with the model.
//!
//! Goal: any history of actions gives the answers of `testkit::model::Forest`, whatever the
//! configuration and whatever goes wrong on the way, on the real and on the simulated disk, with
//! one thread and with more; and it leaves nothing behind. Method: each seed draws what it is about
//! ([`swarm`]), then one action after the other, some with a fault ([`action`]); the engine and the
//! model do the same, and every answer is compared ([`world`]). A history that fails is cut down to
//! the steps that matter and printed with the command that runs it again.

mod action;

mod swarm;

mod compare;

mod world;

mod reads;

mod acts;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use terrane_io::Survival;
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::{for_each_seed, seed_of};
use terrane_testkit::tally;
use terrane_testkit::trial::{Failure, attempt, minimise};
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use self::action::{Mishap, Step};
use self::swarm::{Drawing, KINDS, Profile, fault_kinds};
use self::world::{Coverage, World};

/// Histories that are run to find the shortest one that fails.
const ATTEMPTS_MAX: usize = 2_000;

/// Time between two lines of progress of a long run.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// Parameters that determine a history.
#[derive(Debug, Clone, Copy)]
struct Case {
    seed: u64,
    is_real: bool,
    /// Whether the model forgets deletions, so that the history fails.
    is_model_wrong: bool,
}

/// A history that fails.
#[derive(Debug)]
struct Broken {
    steps: Vec<Step>,
    failure: Failure,
}

impl Case {
    fn new(seed: u64, is_real: bool) -> Self {
        Self { seed, is_real, is_model_wrong: false }
    }

    fn profile(self) -> Profile {
        if self.seed.is_multiple_of(4) { Profile::Deep } else { Profile::Shallow }
    }

    /// A new world, and what its history is drawn from.
    fn world(self) -> (World, ChaCha8Rng) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut world = World::new(self.is_real, self.seed, self.profile(), &mut rng);
        world.is_model_wrong = self.is_model_wrong;
        (world, rng)
    }

    /// Draws a history and runs it; returns what it did, and the hash of all calls on the disk.
    fn run(self) -> Result<(Coverage, u64), Broken> {
        let mut steps = Vec::new();
        let done = attempt(|| {
            let (mut world, mut rng) = self.world();
            for _ in 0..world.swarm.steps {
                let step = world.swarm.step(&world, &mut rng);
                steps.push(step.clone());
                world.perform(&step);
            }
            let trace = world.trace_hash();
            (world.end(), trace)
        });
        done.map_err(|failure| Broken { steps, failure })
    }

    /// Runs a given history.
    fn rerun(self, steps: &[Step]) -> Coverage {
        let (mut world, _) = self.world();
        for step in steps {
            world.perform(step);
        }
        world.end()
    }

    /// The shortest history found that fails at the same place.
    fn minimise(self, broken: &Broken) -> Broken {
        let mut least = broken.failure.clone();
        let fails = |steps: &[Step]| match attempt(|| self.rerun(steps)) {
            Err(failure) if failure.place == broken.failure.place => {
                least = failure;
                true
            }
            _ => false,
        };
        let steps = minimise(broken.steps.clone(), ATTEMPTS_MAX, Step::simpler, fails);
        Broken { steps, failure: least }
    }

    /// Formats the report of a history that fails.
    fn report(self, broken: &Broken) -> String {
        let least = self.minimise(broken);
        let disk = if self.is_real { " (real disk)" } else { "" };
        format!(
            "seed {:#018x}{disk}: step {} fails: {}\n\
             minimised to {} steps, which fail with: {}\n\
             {}\n\
             (these lines in a file: cargo xtask sim --replay FILE)",
            self.seed,
            broken.steps.len(),
            broken.failure,
            least.steps.len(),
            least.failure,
            Trace { seed: self.seed, steps: least.steps }.to_text(),
        )
    }
}

/// A history as text: a line with the seed, then one for each step. Other lines are comments.
#[derive(Debug, PartialEq)]
struct Trace {
    seed: u64,
    steps: Vec<Step>,
}

impl Trace {
    fn to_text(&self) -> String {
        let line = |step: &Step| serde_json::to_string(step).expect("a step is plain data");
        let lines: Vec<String> = self.steps.iter().map(line).collect();
        format!("trace of seed {:#018x}\n{}", self.seed, lines.join("\n"))
    }

    fn from_text(text: &str) -> Option<Self> {
        let seed = text.lines().find_map(|line| line.strip_prefix("trace of seed 0x"))?;
        let lines = text.lines().filter(|line| line.starts_with('{'));
        let steps = lines.map(|line| serde_json::from_str(line).ok()).collect::<Option<_>>()?;
        Some(Self { seed: u64::from_str_radix(seed.trim(), 16).ok()?, steps })
    }
}

/// The number in an environment variable, if it is set.
pub(crate) fn number_in(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Runs histories of a test: those of a trace, or for as long as asked, or `count` of them.
fn run_histories(test: &str, count: u64, is_real: bool) {
    if let Some(path) = env::var_os("TERRANE_SIM_TRACE") {
        let text = std::fs::read_to_string(&path).unwrap();
        let trace = Trace::from_text(&text).expect("a line with the seed, and steps");
        eprintln!("{} steps of seed {:#018x}", trace.steps.len(), trace.seed);
        Case::new(trace.seed, is_real).rerun(&trace.steps);
    } else if let Some(seconds) = number_in("TERRANE_SIM_SECONDS") {
        Soak::new(test, is_real, Duration::from_secs(seconds)).run();
    } else {
        for_each_seed(test, count, |_, seed| {
            let case = Case::new(seed, is_real);
            if let Err(broken) = case.run() {
                panic!("{}", case.report(&broken));
            }
        });
    }
}

/// Histories one after another until the time is over or one fails.
struct Soak<'a> {
    test: &'a str,
    is_real: bool,
    time: Duration,
    start: Instant,
    jobs: u64,
    next: AtomicU64,
    has_failed: AtomicBool,
    totals: Mutex<Totals>,
}

#[derive(Default)]
struct Totals {
    histories: u64,
    coverage: Coverage,
    reported: Duration,
}

impl<'a> Soak<'a> {
    fn new(test: &'a str, is_real: bool, time: Duration) -> Self {
        Self {
            test,
            is_real,
            time,
            start: Instant::now(),
            jobs: number_in("TERRANE_SIM_JOBS").unwrap_or(1),
            // Numbers of different starts do not meet.
            next: AtomicU64::new(number_in("TERRANE_SIM_START").unwrap_or(0) << 32),
            has_failed: AtomicBool::new(false),
            totals: Mutex::default(),
        }
    }

    fn run(&self) {
        thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| self.work());
            }
        });
        let totals = self.totals.lock().unwrap();
        tally::add("histories", totals.histories);
        self.tell(&totals);
    }

    fn work(&self) {
        while !self.has_failed.load(Ordering::Acquire) && self.start.elapsed() < self.time {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            // A deep one takes as long as several shallow ones.
            let seed = seed_of(self.test, number) & !3 | number & 3;
            let case = Case::new(seed, self.is_real);
            match case.run() {
                Ok((coverage, _)) => self.add(&coverage),
                Err(broken) => {
                    self.has_failed.store(true, Ordering::Release);
                    panic!("{}", case.report(&broken));
                }
            }
        }
    }

    fn add(&self, coverage: &Coverage) {
        let mut totals = self.totals.lock().unwrap();
        totals.histories += 1;
        totals.coverage.add(coverage);
        if self.start.elapsed() > totals.reported + PROGRESS_EVERY {
            totals.reported = self.start.elapsed();
            self.tell(&totals);
        }
    }

    fn tell(&self, totals: &Totals) {
        let Totals { histories, coverage, .. } = totals;
        let seconds = self.start.elapsed().as_secs_f64();
        let sum = |counts: &mut dyn Iterator<Item = &u64>| counts.sum::<u64>();
        eprintln!(
            "{seconds:5.0} s: {histories} histories ({:.1}/s), {} actions of {} kinds, {} faults in {} of \
             {} pairs of kind and action, {} power cuts within actions, {} errors, {} failed syncs",
            *histories as f64 / seconds,
            sum(&mut coverage.actions.values()),
            coverage.actions.len(),
            sum(&mut coverage.faults.values()),
            coverage.faults.len(),
            fault_kinds().len() * KINDS.len(),
            sum(&mut coverage.cuts.values()),
            coverage.errors,
            coverage.poisoned,
        );
    }
}

#[test]
fn any_history_gives_the_models_answers_on_the_simulated_disk() {
    run_histories(
        "any_history_gives_the_models_answers_on_the_simulated_disk",
        by_effort(8, 40),
        false,
    );
}

#[test]
fn any_history_gives_the_models_answers_on_the_real_disk() {
    run_histories("any_history_gives_the_models_answers_on_the_real_disk", by_effort(2, 8), true);
}

/// Actions after which there is something of everything.
const FURNITURE: [&str; 5] = ["NewTable", "Update", "NewCursor", "KeepBlobs", "Save"];

/// Each action with each kind of fault and with a loss of power, in a world that has something of
/// everything.
#[test]
fn every_action_withstands_every_fault() {
    let mut coverage = Coverage::default();
    for (number, kind) in KINDS.iter().enumerate() {
        let case = Case::new(2 * number as u64 + 1, false);
        let result = attempt(|| {
            let (mut world, mut rng) = case.world();
            world.swarm.want_everything();
            // One of an action drawn for this world.
            let perform = |world: &mut World, rng: &mut ChaCha8Rng, name: &str, mishap| {
                let mut drawing = Drawing { swarm: &world.swarm, world, rng };
                let action = drawing.action_of(name);
                assert_eq!(action.name(), name);
                world.perform(&Step { action, mishap });
            };
            // Every action meets the first fault, and in a sample a third of the others.
            let faults = fault_kinds().into_iter().enumerate();
            let step = by_effort(3, 1);
            let faults = faults.filter(|(at, _)| *at == 0 || (at + number) % step == 0);
            let faults = faults.map(|(_, kind)| Mishap::Fault {
                kind,
                call: 0,
                forever: false,
                retry: true,
            });
            let cut = Mishap::PowerCut { call: 0, survival: Survival::Torn(number as u64) };
            for mishap in faults.chain([cut]) {
                // A few times, since not every action of the kind gets to the disk.
                for _ in 0..6 {
                    for name in FURNITURE {
                        let is_there = match name {
                            "NewTable" => world.open_tables().count() > 1,
                            "NewCursor" => rng.chance(1, 2),
                            "KeepBlobs" => world.kept_slots().count() > 0,
                            "Save" => world.forest.snapshot_names().len() > 1,
                            _ => rng.chance(1, 4),
                        };
                        if !is_there {
                            perform(&mut world, &mut rng, name, None);
                        }
                    }
                    let struck = world.struck();
                    perform(&mut world, &mut rng, kind.name, Some(mishap.clone()));
                    if world.struck() > struck || !kind.is_on_disk {
                        break;
                    }
                }
            }
            world.end()
        });

        match result {
            Ok(done) => coverage.add(&done),
            Err(failure) => panic!("{} in seed {:#x}: {failure}", kind.name, case.seed),
        }
    }

    let kinds: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
    let done: BTreeSet<&str> = coverage.actions.keys().map(String::as_str).collect();
    assert_eq!(done, kinds);
    assert!(kinds.len() >= 25);
    let faults: BTreeSet<String> = fault_kinds().iter().map(|kind| format!("{kind:?}")).collect();
    assert!(coverage.fault_kinds().into_iter().eq(&faults), "{:?}", coverage.fault_kinds());
    let of_eio = coverage.faults.keys().filter(|(fault, _)| fault == "Eio");
    let struck: BTreeSet<&str> = of_eio.map(|(_, action)| action.as_str()).collect();
    assert!(struck.len() >= 25, "only {struck:?}");
    assert!(coverage.errors > 0 && coverage.poisoned > 0 && !coverage.cuts.is_empty());
}

#[test]
fn a_seed_gives_the_same_calls_each_time() {
    let mut compared = 0;
    for seed in 0..by_effort(6, 12) {
        let case = Case::new(seed, false);
        if case.world().0.swarm.is_single_threaded {
            let traces = [(); 2].map(|()| match case.run() {
                Ok((_, trace)) => trace,
                Err(broken) => panic!("{}", case.report(&broken)),
            });
            assert_eq!(traces[0], traces[1], "seed {seed}");
            compared += 1;
        }
    }

    assert!(compared >= by_effort(2, 4), "only {compared} seeds");
}

/// The model forgets deletions; what is left of a history of hundreds of steps is a table, a batch
/// with a deletion that matters, and a look at it.
#[test]
fn a_history_that_fails_is_cut_down_to_what_matters() {
    let broken =
        (0..).step_by(4).map(|seed| Case { is_model_wrong: true, ..Case::new(seed, false) });
    let found = broken.take(20).find_map(|case| Some((case, case.run().err()?)));
    let (case, broken) = found.expect("a deletion in one of twenty histories");
    let least = case.minimise(&broken);
    assert!(least.steps.len() <= 4, "{:?}", least.steps);
    let has_update = least.steps.iter().any(|step| step.action.name().starts_with("Update"));
    assert!(has_update, "{:?}", least.steps);
    let text = Trace { seed: case.seed, steps: least.steps }.to_text();
    let trace = Trace::from_text(&format!("some line\n{text}\n")).unwrap();
    assert_eq!(trace.to_text(), text);

    let again = attempt(|| {
        Case { is_model_wrong: true, ..Case::new(trace.seed, false) }.rerun(&trace.steps)
    });
    assert_eq!(again.unwrap_err().place, broken.failure.place);
    Case::new(trace.seed, false).rerun(&trace.steps);
}
