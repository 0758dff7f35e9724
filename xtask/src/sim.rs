//! Long runs of tests: random histories of the whole engine in lock-step with its model, crashes
//! and faults at every call of workloads on stores, and processes that are killed.
//!
//! The tests do the work (`crates/lsm/tests/it/{sim,store_sweep,store_faults,kill*}.rs`), optimised
//! but with all assertions of the engine; this sets what they take from the environment, and passes
//! their outcome on.

use std::path::PathBuf;
use std::process::Command;
use std::thread;

use crate::workspace::Workspace;

/// The package of the tests of the tables.
pub(crate) const TABLES: &str = "terrane-lsm-tests";

/// The test of random histories on the simulated disk.
pub(crate) const HISTORIES: &str =
    "sim::any_history_gives_the_models_answers_on_the_simulated_disk";

/// The test of crashes at every call of workloads.
pub(crate) const CRASH_IMAGES: &str = "store_sweep::after_a_crash_at_any_call_the_durable_commits_are_there_and_then_a_prefix_of_the_rest";

/// Tests that kill processes `TERRANE_KILL_CYCLES` times, with their packages: of every kind of
/// store, also on full disks and with calls that fail, of the tables, of followers beside their
/// source, of the index and of the context store. The last two have readers, too.
pub(crate) const KILLS: [(&str, &str); 7] = [
    ("terrane-fuzz", "kills::no_acknowledged_commit_is_lost_whatever_is_killed"),
    ("terrane-fuzz", "full::a_disk_that_is_full_costs_no_acknowledged_commit"),
    ("terrane-fuzz", "injected::a_system_call_that_fails_costs_no_acknowledged_commit"),
    (TABLES, "kill::nothing_durable_is_lost_when_the_process_is_killed"),
    (TABLES, "kill_followers::a_follower_and_an_indexer_agree_with_their_source_whoever_is_killed"),
    ("terrane-btree-tests", "processes::readers_see_what_a_writer_flushed_whoever_is_killed"),
    ("terrane-context-tests", "processes::readers_see_whole_commits_whoever_is_killed"),
];

/// Tests to run, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    kind: Kind,
    /// Number of a series of histories; each number has a series of its own.
    seed: u32,
    /// Number of concurrent histories or scripts; by default one history, or one script per core.
    jobs: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Histories {
        minutes: u64,
        is_real: bool,
    },
    /// Replays a file with the lines that a failure has printed.
    Replay {
        file: PathBuf,
        is_real: bool,
    },
    /// Runs until this many distinct images have been checked.
    CrashImages(u64),
    /// Runs this many scripts of each workload.
    StoreFaults(u64),
}

impl Options {
    /// Reads the words of a command line; `None` if they mean nothing.
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let mut minutes = None;
        let mut is_real = false;
        let mut replay = None;
        let (mut crash_images, mut store_faults, mut seed, mut jobs) = (None, None, None, None);

        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--minutes" => minutes = Some(words.next()?.parse().ok()?),
                "--seed" => seed = Some(words.next()?.parse().ok()?),
                "--jobs" => jobs = Some(words.next()?.parse().ok().filter(|&jobs| jobs > 0)?),
                "--real" => is_real = true,
                "--replay" => replay = Some(words.next()?.into()),
                "--crash-images" => crash_images = Some(words.next()?.parse().ok()?),
                "--store-faults" => store_faults = Some(words.next()?.parse().ok()?),
                _ => return None,
            }
        }

        let kind = match (replay, crash_images, store_faults, minutes, is_real) {
            (Some(file), None, None, None, is_real) => Kind::Replay { file, is_real },
            (None, Some(images), None, None, false) => Kind::CrashImages(images),
            (None, None, Some(scripts), None, false) => Kind::StoreFaults(scripts),
            (None, None, None, minutes, is_real) => {
                Kind::Histories { minutes: minutes.unwrap_or(10), is_real }
            }
            _ => return None,
        };

        Some(Self { kind, seed: seed.unwrap_or(0), jobs })
    }

    /// The test that does it.
    fn test(&self) -> &'static str {
        match self.kind {
            Kind::Histories { is_real: false, .. } | Kind::Replay { is_real: false, .. } => {
                HISTORIES
            }
            Kind::Histories { is_real: true, .. } | Kind::Replay { is_real: true, .. } => {
                "sim::any_history_gives_the_models_answers_on_the_real_disk"
            }
            Kind::CrashImages(_) => CRASH_IMAGES,
            Kind::StoreFaults(_) => {
                "store_faults::every_failing_call_is_reported_and_changes_nothing_or_poisons_the_store"
            }
        }
    }

    fn jobs(&self) -> usize {
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        self.jobs.unwrap_or_else(|| match self.kind {
            Kind::Histories { .. } | Kind::Replay { .. } => 1,
            Kind::CrashImages(_) | Kind::StoreFaults(_) => cores(),
        })
    }
}

/// A command that runs one test of an engine, optimised.
fn test_command(workspace: &Workspace, package: &str, test: &str) -> Command {
    let mut command = workspace.cargo(&["test", "-q", "--profile", "sim", "-p", package]);
    command.args(["--test", "it", test, "--", "--exact", "--nocapture"]);
    command
}

/// Runs the tests until the time is over, all is done, or one fails.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    let mut command = test_command(workspace, TABLES, options.test());
    command.env("TERRANE_SIM_START", options.seed.to_string());
    command.env("TERRANE_SIM_JOBS", options.jobs().to_string());

    match &options.kind {
        Kind::Histories { minutes, .. } => {
            command.env("TERRANE_SIM_SECONDS", (minutes * 60).to_string());
        }
        Kind::Replay { file, .. } => {
            let file =
                file.canonicalize().map_err(|error| format!("{}: {error}", file.display()))?;
            command.env("TERRANE_SIM_TRACE", file);
        }
        Kind::CrashImages(images) => {
            command.env("TERRANE_CRASH_IMAGES", images.to_string());
        }
        Kind::StoreFaults(scripts) => {
            command.env("TERRANE_FAULT_SCRIPTS", scripts.to_string());
        }
    }

    let status = command.status().map_err(|error| format!("cargo test: {error}"))?;
    if status.success() { Ok(()) } else { Err("sim: a history failed, see above".to_owned()) }
}

/// Kills processes that commit to stores of every kind `cycles` times, then as often a process that
/// writes many tables, one of a writer and its followers, one that writes an index, and one that
/// writes a context store.
pub(crate) fn kill(workspace: &Workspace, cycles: u64) -> Result<(), String> {
    KILLS.iter().try_for_each(|(package, test)| {
        run_test(workspace, package, test, &[("TERRANE_KILL_CYCLES", cycles)])
    })
}

/// Runs readers of a store beside its writer for `seconds` seconds and kills them at random; then
/// repeats this with an index and a context store.
pub(crate) fn readers(workspace: &Workspace, seconds: u64) -> Result<(), String> {
    let test = "reader::processes_agree_when_they_are_killed_at_random";
    let seconds = ("TERRANE_READERS_SECONDS", seconds);
    run_test(workspace, TABLES, test, &[seconds])?;
    let variables = [seconds, ("TERRANE_KILL_CYCLES", 100)];
    let with_readers = &KILLS[KILLS.len() - 2..];
    with_readers
        .iter()
        .try_for_each(|(package, test)| run_test(workspace, package, test, &variables))
}

fn run_test(
    workspace: &Workspace,
    package: &str,
    test: &str,
    variables: &[(&str, u64)],
) -> Result<(), String> {
    let mut command = test_command(workspace, package, test);
    command.envs(variables.iter().map(|(name, value)| (name, value.to_string())));
    let status = command.status().map_err(|error| format!("cargo test: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{test} failed, see above")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_or_refused() {
        let read = |words: &[&str]| Options::parse(words).unwrap();
        let default = read(&[]);
        assert_eq!(default.kind, Kind::Histories { minutes: 10, is_real: false });
        assert_eq!((default.seed, default.jobs()), (0, 1));
        let options = read(&["--seed", "7", "--real", "--minutes", "1"]);
        assert_eq!(options.kind, Kind::Histories { minutes: 1, is_real: true });
        assert_eq!(options.seed, 7);
        let options = read(&["--replay", "trace.txt"]);
        assert_eq!(options.kind, Kind::Replay { file: "trace.txt".into(), is_real: false });
        let options = read(&["--crash-images", "9", "--jobs", "3"]);
        assert_eq!((&options.kind, options.jobs()), (&Kind::CrashImages(9), 3));
        assert_eq!(read(&["--store-faults", "2"]).kind, Kind::StoreFaults(2));

        for words in [
            ["--minutes"].as_slice(),
            &["--minutes", "x"],
            &["--jobs", "0"],
            &["seed"],
            &["--crash-images", "1", "--minutes", "1"],
            &["--store-faults", "1", "--real"],
        ] {
            assert_eq!(Options::parse(words), None, "{words:?}");
        }
    }
}
