//! `cargo xtask soak`: the random searches of the workspace, each for a share of the time, with
//! draws that no run before had.
//!
//! A **part** is a kind of search; a **step** is one program that a part runs for some seconds. The
//! next step is always that of the part that is most behind its share. Tests count what they do in
//! a file ([`TALLY`]); each step's counts are added to the report at once, so an interrupted run
//! loses no more than the counts of its last step, and the next run adds those that had been
//! written.
//!
//! The first failure ends the run, with the command that repeats the step.

mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use self::report::{Counts, Report};
use crate::fuzz;
use crate::schedules;
use crate::sim;
use crate::sweeps::Sweeps;
use crate::workspace::{Workspace, package_name};

/// The recorded runs.
const REPORT: &str = "bench/results/soak.txt";

/// Folder of the counts and of the output of the step in progress.
const FOLDER: &str = "target/soak";

/// Names the file of counts for the tests (`terrane_testkit::tally`).
const TALLY: &str = "TERRANE_TALLY";

/// Shortest and longest time of a step that can be told its time, in seconds.
const STEP_SECONDS: (u64, u64) = (5, 60);

/// Time of a run within `cargo xtask ci`, in minutes.
const SHARE_MINUTES: u64 = 3;

/// Schedules of each kind of a test in a step.
const SCHEDULES: u32 = 500;

/// Lines of a failed step's output that are printed.
const TAIL_LINES: usize = 60;

/// The package whose tests run the targets of fuzzing.
const FUZZ: &str = "terrane-fuzz";

/// Duration of a run, its draws and its report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    time: Duration,
    /// Optimised builds, and a report by default.
    is_long: bool,
    report: Option<PathBuf>,
    /// By default the number of runs in the report.
    seed: Option<u16>,
}

impl Options {
    /// Reads the words of a command line; `None` if they mean nothing.
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let (mut hours, mut minutes, mut report, mut seed) = (None, None, None, None);
        let number = |word: &str| word.parse().ok().filter(|&number: &f64| number > 0.0);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--hours" => hours = Some(number(words.next()?)?),
                "--minutes" => minutes = Some(number(words.next()?)?),
                "--report" => report = Some(PathBuf::from(words.next()?)),
                "--seed" => seed = Some(words.next()?.parse().ok()?),
                _ => return None,
            }
        }

        let seconds = match (hours, minutes) {
            (Some(hours), None) => hours * 3_600.0,
            (None, Some(minutes)) => minutes * 60.0,
            _ => return None,
        };
        let is_long = hours.is_some();
        let report = report.or_else(|| is_long.then(|| REPORT.into()));
        Some(Self { time: Duration::try_from_secs_f64(seconds).ok()?, is_long, report, seed })
    }

    /// A share of some minutes without a report, as in `cargo xtask ci`.
    fn share(minutes: u64) -> Self {
        let time = Duration::from_secs(60 * minutes);
        Self { time, is_long: false, report: None, seed: None }
    }

    /// Time of a step that can be told its time.
    fn step_seconds(&self) -> u64 {
        (self.time.as_secs() / 20).clamp(STEP_SECONDS.0, STEP_SECONDS.1)
    }
}

/// Kind of search, with its share of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// Drawn inputs for the targets of fuzzing.
    Inputs,
    /// libFuzzer on the targets, where `cargo xtask fuzz` has built it.
    LibFuzzer,
    /// The crash, fault and damage sweeps of all engines.
    Sweeps,
    /// Histories of the tables in lock-step with their model.
    Histories,
    /// Crashes at every call of workloads on stores.
    CrashImages,
    /// Threads under many schedules.
    Schedules,
    /// Killed processes.
    Kills,
}

impl Part {
    const ALL: [Self; 7] = [
        Self::Inputs,
        Self::LibFuzzer,
        Self::Sweeps,
        Self::Histories,
        Self::CrashImages,
        Self::Schedules,
        Self::Kills,
    ];

    /// Share of the time, in hundredths.
    fn share(self) -> u32 {
        match self {
            Self::Inputs => 20,
            Self::LibFuzzer | Self::Histories => 10,
            Self::Sweeps => 25,
            Self::CrashImages | Self::Kills => 15,
            Self::Schedules => 5,
        }
    }
}

/// Program of tests, as cargo built it.
struct Program {
    file: PathBuf,
    /// The package's folder, where cargo would run the program.
    dir: PathBuf,
    package: String,
}

/// Program to run, with the reading of its output.
struct Step {
    name: String,
    command: Command,
    /// The target, if the program is libFuzzer, which counts by itself.
    fuzzed: Option<String>,
}

/// State of a run.
struct Soak<'a> {
    workspace: &'a Workspace,
    options: &'a Options,
    programs: BTreeMap<String, Program>,
    modules: Vec<String>,
    targets: Vec<String>,
    seed: u16,
    tally: PathBuf,
}

/// The share of `cargo xtask ci`.
pub(crate) fn run_share(workspace: &Workspace) -> Result<(), String> {
    run(workspace, &Options::share(SHARE_MINUTES))
}

/// Runs steps until the time is over or one fails.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    let folder = workspace.root.join(FOLDER);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let tally = folder.join("tally");
    let mut report = match &options.report {
        Some(path) => Report::open(&workspace.root.join(path))?,
        None => Report::unwritten(),
    };
    report.add_to_last(&take_counts(&tally)?);

    let files = workspace.files()?;
    report.expect_branches(rare_branches(files.iter().filter_map(|file| file.rust())));
    let sweeps = Sweeps::of(&files)?;
    let soak = Soak {
        workspace,
        options,
        programs: build(workspace, &sweeps, options.is_long)?,
        modules: sweeps.modules().map(str::to_owned).collect(),
        targets: fuzz::targets(workspace)?,
        seed: options.seed.unwrap_or_else(|| u16::try_from(report.runs()).unwrap_or(u16::MAX)),
        tally,
    };
    report.begin(&soak.title()?);

    let begun = Instant::now();
    let mut spent: BTreeMap<Part, (u32, Duration)> =
        Part::ALL.into_iter().map(|part| (part, Default::default())).collect();
    let mut failure = None;
    while begun.elapsed() < options.time && failure.is_none() && !spent.is_empty() {
        let behind = |(part, (_, time)): &(&Part, &(u32, Duration))| *time / part.share();
        let Some((&part, &(turn, time))) = spent.iter().min_by_key(behind) else { break };
        // A part without programs, as libFuzzer where it was not built, has no share.
        let Some(step) = soak.step(part, turn) else {
            println!("soak: {part:?}: left out, it is not built");
            spent.remove(&part);
            continue;
        };

        let start = Instant::now();
        let (counts, outcome) = soak.take(step)?;
        let took = start.elapsed();
        spent.insert(part, (turn + 1, time + took));
        report.add(&counts, begun.elapsed());
        failure = outcome.err();
        report.write(failure.as_deref())?;
    }

    println!("soak: {}", report.summary());
    failure.map_or(Ok(()), Err)
}

impl Soak<'_> {
    /// Line that begins the run in the report.
    fn title(&self) -> Result<String, String> {
        let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processors = file("/proc/cpuinfo");
        let processor = processors
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or("unknown processor", |(_, name)| name);
        let amount = if self.options.is_long { "--hours" } else { "--minutes" };
        let unit = if self.options.is_long { 3_600.0 } else { 60.0 };
        Ok(format!(
            "cargo xtask soak {amount} {} --seed {}; {}, {}, Linux {}, {processor}",
            self.options.time.as_secs_f64() / unit,
            self.seed,
            self.workspace.revision(),
            self.workspace.compiler()?.version,
            file("/proc/sys/kernel/osrelease").trim(),
        ))
    }

    /// Number of a series of draws that no other step of any run has.
    fn series(&self, part: Part, turn: u32) -> u64 {
        let number = turn * Part::ALL.len() as u32 + part as u32;
        // Series 0 is that of `cargo test`.
        (u64::from(self.seed) << 16) + u64::from(number % 0xffff) + 1
    }

    /// The step of a part's turn; `None` if the part has no program here.
    fn step(&self, part: Part, turn: u32) -> Option<Step> {
        let series = self.series(part, turn);
        let seconds = self.options.step_seconds();
        let mut step = match part {
            Part::Inputs => {
                let mut step = self.test(FUZZ, &["corpus::every_target_holds_on_drawn_inputs"])?;
                step.command.env("TERRANE_FUZZ_MILLIS", (1_000 * seconds).to_string());
                step
            }
            Part::LibFuzzer => {
                let target = &self.targets[turn as usize % self.targets.len()];
                let command = fuzz::long_run(self.workspace, target, seconds, series)?;
                Step { name: format!("libFuzzer {target}"), command, fuzzed: Some(target.clone()) }
            }
            Part::Sweeps => {
                let packages: Vec<_> = self.programs.keys().collect();
                let package = packages[turn as usize % packages.len()];
                let modules: Vec<_> = self.modules.iter().map(String::as_str).collect();
                self.test(package, &modules)?
            }
            Part::Histories => {
                let mut step = self.test(sim::TABLES, &[sim::HISTORIES])?;
                step.command.env("TERRANE_SIM_SECONDS", seconds.to_string());
                step
            }
            Part::CrashImages => {
                let mut step = self.test(sim::TABLES, &[sim::CRASH_IMAGES])?;
                step.command.env("TERRANE_SIM_SECONDS", seconds.to_string());
                step.command.env("TERRANE_CRASH_IMAGES", u32::MAX.to_string());
                step
            }
            // A build of its own, which CI has no time for.
            Part::Schedules if !self.options.is_long => return None,
            Part::Schedules => {
                let package = schedules::PACKAGES[turn as usize % schedules::PACKAGES.len()];
                let command = schedules::tests(self.workspace, package, SCHEDULES);
                Step { name: format!("{package} schedules"), command, fuzzed: None }
            }
            Part::Kills => {
                let (package, test) = sim::KILLS[turn as usize % sim::KILLS.len()];
                let mut step = self.test(package, &[test])?;
                step.command.env("TERRANE_KILL_CYCLES", seconds.to_string());
                step
            }
        };

        step.command.env("TERRANE_SERIES", series.to_string());
        step.command.env("TERRANE_SIM_START", series.to_string());
        Some(step)
    }

    /// Tests of a package, by the beginnings of their names; on one core.
    fn test(&self, package: &str, names: &[&str]) -> Option<Step> {
        let program = self.programs.get(package)?;
        let mut command = Command::new(&program.file);
        command.args(["--test-threads=1", "--nocapture"]).args(names);
        command.current_dir(&program.dir);
        command.env("CARGO_MANIFEST_DIR", &program.dir).env("CARGO_PKG_NAME", &program.package);
        let what = names.first().copied().filter(|_| names.len() == 1).unwrap_or("sweeps");
        Some(Step { name: format!("{package} {what}"), command, fuzzed: None })
    }

    /// Runs a step; returns its counts, and the failure if it failed.
    fn take(&self, mut step: Step) -> Result<(Counts, Result<(), String>), String> {
        println!("soak: {}", step.name);
        let output = step.command.env(TALLY, &self.tally).output();
        let output = output.map_err(|error| format!("{}: {error}", step.name))?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));

        let mut counts = take_counts(&self.tally)?;
        if let Some(target) = &step.fuzzed {
            let executions = fuzz::executions(&text);
            *counts.entry(format!("executions of {target}")).or_default() += executions;
        }
        if output.status.success() {
            return Ok((counts, Ok(())));
        }

        let log = self.tally.with_file_name("failed.log");
        fs::write(&log, &text).map_err(|error| format!("{}: {error}", log.display()))?;
        let lines: Vec<_> = text.lines().collect();
        println!("{}", lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"));
        let command = repeat_command(&step.command, &self.workspace.root);
        Ok((counts, Err(format!("{} failed; repeat: {command}", step.name))))
    }
}

/// Names of the branches that tell when they are taken (`terrane_io::rare`).
fn rare_branches<'a>(sources: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    // Divided, so that this line is no call.
    let calls = sources.flat_map(|text| text.split(concat!("rare::", "taken(")).skip(1));
    let names = calls.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    names.map(str::to_owned).collect()
}

/// The command as a shell reads it, with its variables, from the root of the workspace.
fn repeat_command(command: &Command, root: &Path) -> String {
    let dir = command.get_current_dir().unwrap_or(root);
    let relative = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
    let mut words = vec!["env".to_owned(), format!("-C ./{}", relative(dir))];
    for (name, value) in command.get_envs() {
        let Some(value) = value.filter(|_| name != TALLY && name != "CARGO_MANIFEST_DIR") else {
            continue;
        };
        words.push(format!("{}={}", name.display(), value.display()));
    }
    words.push(format!("\"$PWD\"/{}", relative(Path::new(command.get_program()))));
    let arguments = command.get_args().map(|word| word.to_string_lossy());
    words.extend(arguments.map(|word| relative(Path::new(&*word))));
    words.join(" ")
}

/// Reads and removes the file of counts.
fn take_counts(tally: &Path) -> Result<Counts, String> {
    let text = match fs::read_to_string(tally) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Counts::new()),
        Err(error) => return Err(format!("{}: {error}", tally.display())),
    };

    let mut counts = Counts::new();
    for line in text.lines() {
        if let Some((name, count)) = line.rsplit_once(' ')
            && let Ok(count) = count.parse::<u64>()
        {
            *counts.entry(name.to_owned()).or_default() += count;
        }
    }

    fs::remove_file(tally).map_err(|error| format!("{}: {error}", tally.display()))?;
    Ok(counts)
}

/// Builds the tests; returns the program of each package.
fn build(
    workspace: &Workspace,
    sweeps: &Sweeps,
    is_long: bool,
) -> Result<BTreeMap<String, Program>, String> {
    // A share in CI uses what `cargo test` has built.
    let profile = if is_long { "sim" } else { "dev" };
    let mut cargo = workspace.cargo(&["test", "--no-run", "--profile", profile]);
    cargo.args(["--message-format=json-render-diagnostics", "--test", "it"]);
    if is_long {
        cargo.arg("--all-features");
    }
    let packages: Vec<&str> = sweeps.packages().collect();
    for package in &packages {
        cargo.args(["-p", package]);
    }

    println!("soak: building the tests");
    let output = cargo.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo test: {error}"))?;
    if !output.status.success() {
        return Err("the tests cannot be built, see above".to_owned());
    }

    let mut programs = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let value = |key: &str| line.split_once(&format!("\"{key}\":\""))?.1.split('"').next();
        let (Some(file), Some(manifest)) = (value("executable"), value("manifest_path")) else {
            continue;
        };
        let text = fs::read_to_string(manifest).map_err(|error| format!("{manifest}: {error}"))?;
        let Some(package) = package_name(&text).filter(|name| packages.contains(name)) else {
            continue;
        };
        let dir = Path::new(manifest).parent().unwrap_or(&workspace.root).to_owned();
        let program = Program { file: file.into(), dir, package: package.to_owned() };
        programs.insert(package.to_owned(), program);
    }

    match packages.iter().find(|package| !programs.contains_key(**package)) {
        Some(package) => Err(format!("cargo has built no tests of {package}")),
        None => Ok(programs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_or_refused() {
        let hours = Options::parse(&["--hours", "0.5", "--seed", "7"]).unwrap();
        assert_eq!((hours.time.as_secs(), hours.is_long, hours.seed), (1_800, true, Some(7)));
        assert_eq!(hours.report, Some(REPORT.into()));
        let minutes = Options::parse(&["--minutes", "3"]).unwrap();
        assert_eq!(minutes, Options::share(3));
        assert_eq!((hours.step_seconds(), minutes.step_seconds()), (60, 9));
        for wrong in [
            &[][..],
            &["--hours"],
            &["--hours", "0"],
            &["--hours", "1", "--minutes", "1"],
            &["--minutes", "NaN"],
            &["--seed", "1"],
            &["--hours", "1", "--seed", "65536"],
        ] {
            assert_eq!(Options::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn rare_branches_are_found_by_their_calls() {
        let call = concat!("rare::", "taken(");
        let source = format!("a(); {call}\"one\"); {call}\n    \"two\",\n); {call}name); b()");
        let found = rare_branches([source.as_str(), ""].into_iter());
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["one", "two"]);
    }

    #[test]
    fn shares_are_the_whole() {
        assert_eq!(Part::ALL.iter().map(|part| part.share()).sum::<u32>(), 100);
    }

    #[test]
    fn counts_of_one_name_are_added_and_torn_lines_left_out() {
        let file = std::env::temp_dir().join(format!("terrane-tally-{}", std::process::id()));
        fs::write(&file, "kills 3\ncrash images 10\nkills 4\ncra").unwrap();
        let counts = take_counts(&file).unwrap();
        let expected = [("crash images", 10), ("kills", 7)].map(|(name, n)| (name.to_owned(), n));
        assert!(counts.into_iter().eq(expected));
        assert!(take_counts(&file).unwrap().is_empty(), "they were taken");
    }

    #[test]
    fn a_step_is_repeated_by_its_variables_and_words() {
        let mut command = Command::new("/here/target/it-1");
        command.arg("crash::").env("TERRANE_SERIES", "5").env(TALLY, "x");
        command.current_dir("/here/crates/a");
        assert_eq!(
            repeat_command(&command, Path::new("/here")),
            "env -C ./crates/a TERRANE_SERIES=5 \"$PWD\"/target/it-1 crash::"
        );
    }
}
