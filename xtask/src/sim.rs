//! Long runs of tests: random histories of the whole engine in lock-step with its model, and processes that
//! are killed.
//!
//! The tests do the work (`crates/lsm/tests/it/sim.rs` and `kill.rs`), optimised but with all assertions of the engine;
//! this sets what they take from the environment, and passes their outcome on.

use std::path::PathBuf;

use crate::workspace::Workspace;

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    minutes: u64,
    /// Which of the endless series of histories: one for each number.
    seed: u32,
    /// Histories at the same time.
    jobs: u64,
    is_real: bool,
    /// A file with the lines that a failure has printed, to be run instead.
    replay: Option<PathBuf>,
}

impl Options {
    /// Reads the words of a command line; `None` if they mean nothing.
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let mut options = Self { minutes: 10, seed: 0, jobs: 1, is_real: false, replay: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--minutes" => options.minutes = words.next()?.parse().ok()?,
                "--seed" => options.seed = words.next()?.parse().ok()?,
                "--jobs" => options.jobs = words.next()?.parse().ok().filter(|&jobs| jobs > 0)?,
                "--real" => options.is_real = true,
                "--replay" => options.replay = Some(words.next()?.into()),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Runs the tests until the time is over or one fails.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    let disk = if options.is_real { "real" } else { "simulated" };
    let test = format!("sim::any_history_gives_the_models_answers_on_the_{disk}_disk");
    let mut command = workspace.cargo(&["test", "-q", "--profile", "sim", "-p", "terrane-lsm"]);
    command.args(["--test", "it", &test, "--", "--exact", "--nocapture"]);
    match &options.replay {
        Some(file) => {
            let file =
                file.canonicalize().map_err(|error| format!("{}: {error}", file.display()))?;
            command.env("TERRANE_SIM_TRACE", file);
        }
        None => {
            command.env("TERRANE_SIM_SECONDS", (options.minutes * 60).to_string());
            command.env("TERRANE_SIM_START", options.seed.to_string());
            command.env("TERRANE_SIM_JOBS", options.jobs.to_string());
        }
    }
    let status = command.status().map_err(|error| format!("cargo test: {error}"))?;
    if status.success() { Ok(()) } else { Err("sim: a history failed, see above".to_owned()) }
}

/// Kills a process that commits to a store so many times.
pub(crate) fn kill(workspace: &Workspace, cycles: u64) -> Result<(), String> {
    let test = "kill::nothing_durable_is_lost_when_the_process_is_killed";
    run_test(workspace, test, ("TERRANE_KILL_CYCLES", cycles))
}

/// Runs readers of a store beside its writer for so long, and kills them at random.
pub(crate) fn readers(workspace: &Workspace, seconds: u64) -> Result<(), String> {
    let test = "reader::processes_agree_when_they_are_killed_at_random";
    run_test(workspace, test, ("TERRANE_READERS_SECONDS", seconds))
}

fn run_test(workspace: &Workspace, test: &str, (name, value): (&str, u64)) -> Result<(), String> {
    let mut command = workspace.cargo(&["test", "-q", "--profile", "sim", "-p", "terrane-lsm"]);
    command.args(["--test", "it", test, "--", "--exact", "--nocapture"]);
    command.env(name, value.to_string());
    let status = command.status().map_err(|error| format!("cargo test: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{test} failed, see above")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_or_refused() {
        let default = Options::parse(&[]).unwrap();
        assert_eq!((default.minutes, default.seed, default.jobs), (10, 0, 1));
        let options = Options::parse(&["--seed", "7", "--real", "--minutes", "1"]).unwrap();
        assert_eq!(options, Options { minutes: 1, seed: 7, is_real: true, ..default.clone() });
        let replay = Options::parse(&["--replay", "trace.txt"]).unwrap();
        assert_eq!(replay, Options { replay: Some("trace.txt".into()), ..default });
        for words in [["--minutes"].as_slice(), &["--minutes", "x"], &["--jobs", "0"], &["seed"]] {
            assert_eq!(Options::parse(words), None, "{words:?}");
        }
    }
}
