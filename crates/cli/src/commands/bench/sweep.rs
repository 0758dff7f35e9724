//! `terrane bench sweep`: a benchmark once for every combination of the values of some options.
//!
//! Each point is a process of this program, so no point sees memory or files of the one before. The
//! object that it prints becomes a record of the [journal](terrane_bench::report::journal), durable
//! before the next point begins. `--resume` runs what has no record yet.
//!
//! * Invariant: a journal holds points of one sweep: the same command, options, values, program,
//!   and prepared table. Anything else is refused by the name of what differs.
//! * A point that ends with exit code 1 or 3 ends the sweep; its failure is no record, so
//!   `--resume` runs it again. One that refuses its options (exit code 2) ends it likewise.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use terrane_bench::instruments::host;
use terrane_bench::report::journal::{self, Journal, Opened};
use terrane_replay::monitor::{Monitor, Phase};

use super::head::Started;
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::{Failure, STORE_VARIABLE};
use crate::ui::output;
use crate::ui::progress::Progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  Reads of a lookup by memory, with and without absent keys: ten points:
    terrane bench sweep --journal memory.jsonl \\
      --vary memory-budget=0.1%,0.2%,0.5%,1%,3% --vary absent=0,100 \\
      -- kvget run --store /tmp/terrane-kvget --reads 500k
  The rest of it, after any interruption:
    terrane bench sweep --journal memory.jsonl --resume \\
      --vary memory-budget=0.1%,0.2%,0.5%,1%,3% --vary absent=0,100 \\
      -- kvget run --store /tmp/terrane-kvget --reads 500k
  Values with commas are divided by semicolons:
    terrane bench sweep --journal mix.jsonl --dry-run \\
      --vary 'mix=get:95,put:5;get:50,put:50' -- mixed --store DIR

Every point is a process of its own. The journal is a line of JSON for each point.";

/// Version of the header of a journal.
const JOURNAL_VERSION: u64 = 1;

/// Points of a sweep at most.
const POINTS_MAX: usize = 100_000;

/// Between two looks at whether a point has ended.
const PATIENCE: Duration = Duration::from_millis(20);

/// Time in which a point that was asked to stop closes its store.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Bytes on disk for each byte of keys and values while a table is filled, at most: inputs and
/// output of a last merge, and what came in meanwhile. The benchmarks ask for as much free space.
const SPACE_AMPLIFICATION_MAX: u64 = 3;

/// Bytes of a key and its value, of the benchmarks whose options name a number of them.
const ENTRY_BYTES: [(&str, u64); 3] =
    [("kvget", 142), ("mixed", 142), ("utxo", terrane_bench::workloads::utxo::ENTRY_SIZE)];

/// Directory of a store whose files say which table was prepared.
const SNAPSHOTS: &str = "snapshots";

#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// File with a record of each point; created, unless --resume is given
    #[arg(long, value_name = "FILE")]
    journal: PathBuf,
    /// Option to vary, with its values: NAME=A,B,C or NAME=A;B;C. Several options give every
    /// combination
    #[arg(long, value_name = "NAME=VALUES", value_parser = varied, required = true)]
    vary: Vec<Varied>,
    /// Goes on with a journal: runs the points that have no record
    #[arg(long)]
    resume: bool,
    /// Lists the points with estimates of time, disk and memory, and runs none
    #[arg(long)]
    dry_run: bool,
    /// Ends after this time. The point under way stops between two of its windows and has no record
    #[arg(long, value_name = "SECONDS", value_parser = args::seconds)]
    max_seconds: Option<Duration>,
    /// Benchmark with the options that all points share
    #[arg(value_name = "BENCHMARK", last = true, required = true)]
    benchmark: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// An option with its values.
#[derive(Debug, Clone, Serialize)]
struct Varied {
    name: String,
    values: Vec<String>,
}

fn varied(text: &str) -> Result<Varied, String> {
    let message = || "write NAME=A,B,C, or NAME=A;B;C for values with commas".to_owned();
    let (name, values) = text.split_once('=').ok_or_else(message)?;
    let name = name.trim_start_matches('-');
    let divider = if values.contains(';') { ';' } else { ',' };
    let values: Vec<String> = values.split(divider).map(str::to_owned).collect();
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if name.is_empty() || !is_word || values.iter().any(String::is_empty) {
        return Err(message());
    }
    let mut sorted = values.clone();
    sorted.sort();
    sorted.dedup();
    if sorted.len() < values.len() {
        return Err("a value stands twice".to_owned());
    }
    Ok(Varied { name: name.to_owned(), values })
}

/// Values of a point, by the names of their options.
type Point = Vec<(String, String)>;

/// A point with its outcome.
#[derive(Serialize)]
struct PointReport {
    options: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimate: Option<Estimate>,
}

/// Estimate of what a point without a record takes, as far as its options say it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Estimate {
    /// The most that its table takes on disk while it is filled; 0 in memory.
    disk_bytes: u64,
    /// Memory of its table: the budget, or all bytes of a table in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    head: super::head::Head,
    journal: String,
    /// Points of the sweep, with a record, and run by this call.
    points: usize,
    done: usize,
    run: usize,
    /// Time left by the mean of the finished points; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    estimated_left_s: Option<f64>,
    results: Vec<PointReport>,
}

impl SweepArgs {
    pub(super) fn run(&self, command: &str) -> Result<u8, Failure> {
        let started = Started::now();
        let points = self.points()?;
        let header = self.header();
        let mut results: Vec<Option<Value>> = vec![None; points.len()];

        let mut progress = Progress::new(self.output.quiet);
        let mut journal = if self.resume {
            Some(self.resumed(&header, (&points, &mut results), &mut progress)?)
        } else if self.dry_run {
            None
        } else {
            Some(Journal::create(&self.journal, &header).map_err(|error| refused(&error))?)
        };

        let mut run = 0;
        let mut end = End::Complete;
        let moment = Instant::now();
        if let Some(journal) = journal.as_mut().filter(|_| !self.dry_run) {
            for (at, point) in points.iter().enumerate() {
                if results[at].is_some() {
                    continue;
                }
                let done = results.iter().flatten().count() as u64;
                progress.progress(Phase::Measure, done, Some(points.len() as u64));
                end = self.end(moment, &progress);
                if end != End::Complete {
                    break;
                }

                let deadline = self.max_seconds.map(|most| moment + most);
                let Some(report) = self.measure(point, deadline, &progress)? else {
                    end = if progress.stop() { End::Interrupted } else { End::TimeLimit };
                    break;
                };
                let record = json!({"options": object(point), "report": report});
                journal.append(&record).map_err(|error| refused(&error))?;
                results[at] = Some(report);
                run += 1;
            }
        }
        drop(progress);

        let report = self.report(&started, &points, results, (run, end));
        let failure = (end == End::Interrupted).then(|| Failure::interrupted("interrupted"));
        let text = output::aligned(&lines(&report));
        output::checked(command, self.output.json, &report, &text, failure.as_ref())
    }

    /// Returns every combination of the values, the last option changing fastest.
    fn points(&self) -> Result<Vec<Point>, Failure> {
        let names: Vec<&str> = self.vary.iter().map(|varied| varied.name.as_str()).collect();
        let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
        if let Some((_, name)) = twice {
            return Err(Failure::usage(format!("--vary {name} stands twice")));
        }
        let count = self.vary.iter().try_fold(1_usize, |count, varied| {
            count.checked_mul(varied.values.len()).filter(|&count| count <= POINTS_MAX)
        });
        if count.is_none() {
            return Err(Failure::usage(format!("more than {POINTS_MAX} points")));
        }

        let mut points: Vec<Point> = vec![Vec::new()];
        for Varied { name, values } in &self.vary {
            let with = |point: &Point, value: &String| {
                [&point[..], &[(name.clone(), value.clone())]].concat()
            };
            points = points
                .iter()
                .flat_map(|point| values.iter().map(move |value| with(point, value)))
                .collect();
        }
        Ok(points)
    }

    /// Returns the header of the journal of this sweep.
    fn header(&self) -> Value {
        let mut header = json!({
            "journal_version": JOURNAL_VERSION,
            "terrane": env!("CARGO_PKG_VERSION"),
            "git_revision": host::revision(),
            "benchmark": self.benchmark,
            "vary": self.vary,
        });
        if let Some(hash) = self.store().and_then(|store| prepared_hash(&store)) {
            header["prepared"] = hash.into();
        }
        header
    }

    /// Returns the store of the benchmark: of its options, or of the environment.
    fn store(&self) -> Option<PathBuf> {
        let named = self.shared("store").map(PathBuf::from);
        named.or_else(|| std::env::var_os(STORE_VARIABLE).map(PathBuf::from))
    }

    /// Estimates what a point takes; `None` unless its options name its entries.
    fn estimate(&self, point: &[(String, String)]) -> Option<Estimate> {
        let option = |name: &str| {
            let of_point = point.iter().find(|(known, _)| known == name);
            of_point.map(|(_, value)| value.as_str()).or_else(|| self.shared(name))
        };
        let entries = option("keys").or_else(|| option("entries"))?;
        let benchmark = self.benchmark.first()?;
        let (_, entry_bytes) = ENTRY_BYTES.iter().find(|(name, _)| name == benchmark)?;
        let bytes = args::count(entries).ok()?.checked_mul(*entry_bytes)?;

        let budget = option("memory-budget").and_then(|text| super::choices::budget(text).ok());
        let in_memory = self.benchmark.iter().any(|word| word == "--in-memory");
        let filled = bytes.checked_mul(SPACE_AMPLIFICATION_MAX)?;
        let of_table = if in_memory { filled } else { 0 };
        let memory_bytes = match budget {
            Some(budget) => Some(budget.bytes(bytes).saturating_add(of_table)),
            None => in_memory.then_some(filled),
        };
        Some(Estimate { disk_bytes: if in_memory { 0 } else { filled }, memory_bytes })
    }

    /// Value of an option that all points share.
    fn shared(&self, name: &str) -> Option<&str> {
        let option = format!("--{name}");
        let words = self.benchmark.iter();
        let mut pairs = words.clone().zip(words.skip(1).map(Some).chain([None]));
        pairs.find_map(|(word, next)| match word.strip_prefix(&option)?.strip_prefix('=') {
            Some(joined) => Some(joined),
            None if *word == option => next.map(String::as_str),
            None => None,
        })
    }

    /// Opens the journal again and puts its results into their places.
    fn resumed(
        &self,
        header: &Value,
        (points, results): (&[Point], &mut [Option<Value>]),
        progress: &mut Progress,
    ) -> Result<Journal, Failure> {
        let Opened { journal, header: found, records, is_cut } =
            Journal::open(&self.journal).map_err(|error| refused(&error))?;
        if is_cut {
            let notice = "a half-written last record was cut off; its point runs again";
            progress.warn(&format!("{}: {notice}", self.journal.display()));
        }

        let names: Vec<&String> =
            header.as_object().into_iter().flat_map(|fields| fields.keys()).collect();
        let gone = found.as_object().into_iter().flat_map(|fields| fields.keys());
        let gone = gone.filter(|name| !names.contains(name));
        let differing: Vec<_> = names
            .iter()
            .copied()
            .chain(gone)
            .filter(|name| header.get(name.as_str()) != found.get(name.as_str()))
            .map(String::as_str)
            .collect();
        if !differing.is_empty() {
            let message = format!("{}: another sweep: it differs in", self.journal.display());
            return Err(Failure::usage(format!("{message} {}", differing.join(", "))));
        }

        for record in records {
            let at = points.iter().position(|point| record["options"] == object(point));
            let Some(at) = at else {
                let message = "a record of no point of this sweep";
                return Err(Failure::check(format!("{}: {message}", self.journal.display())));
            };
            results[at] = Some(record["report"].clone());
        }
        Ok(journal)
    }

    /// Returns whether another point may begin.
    fn end(&self, moment: Instant, progress: &Progress) -> End {
        if progress.stop() {
            End::Interrupted
        } else if self.max_seconds.is_some_and(|most| moment.elapsed() >= most) {
            End::TimeLimit
        } else {
            End::Complete
        }
    }

    /// Runs a point and returns its object; `None` if it was interrupted, or the deadline passed.
    fn measure(
        &self,
        point: &[(String, String)],
        deadline: Option<Instant>,
        progress: &Progress,
    ) -> Result<Option<Value>, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::environment(format!("this program: {error}")))?;
        let mut command = Command::new(program);
        command.arg("bench").args(&self.benchmark);
        for (name, value) in point {
            command.arg(format!("--{name}={value}"));
        }
        command.args(["--json", "--quiet"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Ctrl-C at the terminal comes to this process alone, which asks the point once.
        command.process_group(0);
        let mut child = command
            .spawn()
            .map_err(|error| Failure::environment(format!("the process of a point: {error}")))?;

        // The pipe is read while the point runs; otherwise a long report would block it.
        let mut pipe = child.stdout.take();
        let (ended, text) = thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut text = String::new();
                // What came before an error is judged as text below.
                let _ = pipe.as_mut().map(|pipe| pipe.read_to_string(&mut text));
                text
            });
            let ended = wait(&mut child, || {
                progress.stop() || deadline.is_some_and(|deadline| Instant::now() >= deadline)
            });
            (ended, reader.join().unwrap_or_default())
        });
        let Some(status) = ended? else { return Ok(None) };

        let report: Option<Value> = serde_json::from_str(&text).ok();
        match (status.code(), report) {
            (Some(0), Some(report)) => Ok(Some(report)),
            (Some(130), _) => Ok(None),
            (code, report) => Err(failed(point, code, report.as_ref())),
        }
    }

    fn report(
        &self,
        started: &Started,
        points: &[Point],
        results: Vec<Option<Value>>,
        (run, end): (usize, End),
    ) -> Report {
        let done = results.iter().flatten().count();
        let times = results.iter().flatten().filter_map(|report| report["wall_s"].as_f64());
        let (count, sum) = times.fold((0_u32, 0.0), |(count, sum), time| (count + 1, sum + time));
        let left = (points.len() - done) as f64;

        Report {
            head: started.head_of(end.status()),
            journal: self.journal.display().to_string(),
            points: points.len(),
            done,
            run,
            estimated_left_s: (count > 0).then(|| sum / f64::from(count) * left),
            results: points
                .iter()
                .zip(results)
                .map(|(point, report)| PointReport {
                    options: object(point),
                    estimate: self.estimate(point).filter(|_| report.is_none()),
                    report,
                })
                .collect(),
        }
    }
}

/// Reason why a sweep ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Complete,
    TimeLimit,
    Interrupted,
}

impl End {
    fn status(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::TimeLimit => "time_limit",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Waits for a point and returns how it ended; `None` if it was to stop.
///
/// A point that is to stop is asked first, so that it closes its store. After [`STOP_PATIENCE`] it
/// is killed.
fn wait(child: &mut Child, stop: impl Fn() -> bool) -> Result<Option<ExitStatus>, Failure> {
    let failed = |error| Failure::environment(format!("the process of a point: {error}"));
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(asked.is_none().then_some(status));
        }
        match asked {
            None if stop() => {
                // A process that has ended in between is seen above.
                let _ = rustix::process::kill_process(pid(child), rustix::process::Signal::INT);
                asked = Some(Instant::now());
            }
            Some(at) if at.elapsed() >= STOP_PATIENCE => {
                // Stores recover from this like from a crash.
                let _ = child.kill();
                let _ = child.wait();
                return Ok(None);
            }
            _ => thread::sleep(PATIENCE),
        }
    }
}

fn pid(child: &Child) -> rustix::process::Pid {
    rustix::process::Pid::from_child(child)
}

/// Failure of a point, with the exit code of its process.
fn failed(point: &[(String, String)], code: Option<i32>, report: Option<&Value>) -> Failure {
    let reason = report.and_then(|report| report["error"]["message"].as_str());
    let message = format!("{}: {}", shown(point), reason.unwrap_or("ended without a report"));
    match code {
        Some(1) => Failure::check(message),
        Some(2) => Failure::usage(message),
        _ => Failure::environment(message),
    }
}

fn refused(error: &journal::Error) -> Failure {
    match error {
        journal::Error::Io { .. } | journal::Error::Locked(_) => {
            Failure::environment(error.to_string())
        }
        journal::Error::Exists(_) | journal::Error::NoHeader(_) => {
            Failure::usage(error.to_string())
        }
        journal::Error::Damaged { .. } => Failure::check(error.to_string()),
    }
}

/// Hash of what a store has prepared: names and bytes of its snapshots, which name all runs of a
/// table; `None` without snapshots.
fn prepared_hash(store: &Path) -> Option<String> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(store.join(SNAPSHOTS))
        .ok()?
        .map(|entry| Some(entry.ok()?.path()))
        .collect::<Option<_>>()?;
    files.sort();
    journal::hash_of_files(&files)
}

fn object(point: &[(String, String)]) -> Value {
    point.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect()
}

fn shown(point: &[(String, String)]) -> String {
    let options: Vec<_> = point.iter().map(|(name, value)| format!("--{name}={value}")).collect();
    options.join(" ")
}

/// Main figures of the results, for people: the first that a report has of each row.
const FIGURES: [&str; 5] =
    ["io_per_get", "ops_per_s", "lookups_per_s", "reads_per_s", "cpu_us_per_op"];

fn lines(report: &Report) -> Vec<(&'static str, String)> {
    let mut lines = vec![(
        "points",
        format!("{} of {} done, {} by this call", report.done, report.points, report.run),
    )];
    if let Some(left) = report.estimated_left_s.filter(|_| report.done < report.points) {
        lines.push(("left", format!("about {left:.0} s")));
    }
    lines.extend(report.results.iter().map(|result| {
        let options = result.options.as_object().into_iter().flatten();
        let options: Vec<_> = options
            .map(|(name, value)| format!("--{name}={}", value.as_str().unwrap_or_default()))
            .collect();
        let figures = FIGURES.iter().filter_map(|name| {
            let figure = result.report.as_ref()?.get(name)?.as_f64()?;
            Some(format!("{name} {figure:.4}"))
        });
        let name = if result.report.is_some() { "done" } else { "open" };
        let estimate = result.estimate.iter().map(|&Estimate { disk_bytes, memory_bytes }| {
            let memory = memory_bytes
                .map_or(String::new(), |bytes| format!(", {} in memory", output::bytes(bytes)));
            format!("up to {} on disk{memory}", output::bytes(disk_bytes))
        });
        let figures: Vec<_> = figures.chain(estimate).collect();
        (name, format!("{}  {}", options.join(" "), figures.join(", ")).trim_end().to_owned())
    }));
    lines
}
