//! The whole comparison, unattended.
//!
//! * Main engines run on `--entries`, the others on `--entries-rest`; every workload, `--rounds`
//!   times. In each round the order of engines is turned by one, so that none is always first.
//! * Each point is a process of its own in an empty folder, which goes afterwards.
//! * Each outcome is a line of `journal.jsonl`, synced. The first line says what is compared, on
//!   which host. The same command on the same host goes on where the journal ends; with other
//!   options, or on another host, it refuses and names what differs.
//! * A line that was cut by a kill is the last one, and is dropped with a notice.
//! * A point whose root differs from that of an earlier point of the same scheme has failed.
//! * At the end, `results.json` has the host and all points, and the tables are printed.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use terrane_bench::instruments::host::Host;

use crate::arguments::{bytes, count};
use crate::engine::{Error, Result};
use crate::kind::Kind;
use crate::report::{Outcome, Plan};
use crate::table;
use crate::work::Workload;

/// Times the logical bytes that an engine may take on disk while a point runs.
const SPACE: u64 = 6;

/// Options of the comparison.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Entries for the main engines, as 10M.
    #[arg(long, value_parser = count, default_value = "10M")]
    entries: u64,
    /// Entries for the other engines.
    #[arg(long, value_parser = count, default_value = "1M")]
    entries_rest: u64,
    /// Memory of process and page cache together, as 256MiB.
    #[arg(long, value_parser = bytes, default_value = "256MiB")]
    memory: u64,
    /// The same for the other engines.
    #[arg(long, value_parser = bytes, default_value = "64MiB")]
    memory_rest: u64,
    /// Engines that run on all entries.
    #[arg(long, value_delimiter = ',', default_values_t = main_engines())]
    main: Vec<Kind>,
    /// Engines that run on fewer entries; Terrane runs on both.
    #[arg(long, value_delimiter = ',', default_values_t = rest())]
    rest: Vec<Kind>,
    /// Workloads.
    #[arg(long, value_delimiter = ',', default_values_t = Workload::ALL)]
    workloads: Vec<Workload>,
    /// Repetitions, of which tables show the median and the range.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Seconds of warm-up of a point.
    #[arg(long, default_value_t = 5.0)]
    warm: f64,
    /// Seconds of a point that are measured.
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
    /// Seed of keys, values and draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the journal and the results.
    #[arg(long)]
    out: PathBuf,
    /// Folder for stores, on the device that is measured; a new one below `--out` by default.
    #[arg(long)]
    work: Option<PathBuf>,
    /// Print points and the estimate of time and disk, and run nothing.
    #[arg(long)]
    dry_run: bool,
}

const MAIN: [&str; 9] =
    ["terrane", "rocksdb", "fjall", "redb", "lmdb", "sqlite", "nomt", "qmdb", "pathdb"];

fn main_engines() -> Vec<Kind> {
    let is_main = |kind: &Kind| MAIN.contains(&name(*kind).as_str());
    Kind::value_variants().iter().copied().filter(is_main).collect()
}

fn rest() -> Vec<Kind> {
    let is_rest = |kind: &Kind| *kind == Kind::Terrane || !MAIN.contains(&name(*kind).as_str());
    Kind::value_variants().iter().copied().filter(is_rest).collect()
}

/// The name on the command line.
fn name<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Workload::name(*self))
    }
}

/// The first line of a journal.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    /// Kernel, processor and device, as reports have them.
    host: serde_json::Value,
    /// Versions and options that all points share.
    harness: String,
    /// Points, in the order in which they run.
    points: Vec<Plan>,
}

fn plans(options: &Options) -> Vec<Plan> {
    let mut plans = Vec::new();
    for round in 0..options.rounds {
        let groups = [
            (&options.main, options.entries, options.memory),
            (&options.rest, options.entries_rest, options.memory_rest),
        ];
        for (engines, entries, memory_bytes) in groups {
            // A group of Terrane alone compares nothing.
            if engines.iter().all(|kind| *kind == Kind::Terrane) && options.main != *engines {
                continue;
            }
            for &workload in &options.workloads {
                for i in 0..engines.len() {
                    plans.push(Plan {
                        engine: engines[(i + round as usize) % engines.len()],
                        workload,
                        entries,
                        memory_bytes,
                        warm_s: options.warm,
                        seconds: options.seconds,
                        seed: options.seed,
                        round,
                    });
                }
            }
        }
    }
    plans
}

/// Seconds that a point takes, before any was measured: loads do about 150,000 entries a second.
fn estimate_s(plan: &Plan) -> f64 {
    if plan.engine.cannot(plan.workload.has_root()).is_some() {
        return 0.1;
    }
    let load = if plan.workload.loads() { plan.entries as f64 / 150e3 } else { 1.0 };
    load + plan.warm_s + plan.seconds + 2.0
}

/// Runs the comparison.
///
/// # Errors
/// Those of the system, and a journal that belongs to another comparison.
pub fn run(options: &Options) -> Result<()> {
    let system = |what: &str, path: &Path| {
        let what = format!("{what} {}", path.display());
        move |source| Error::System { what, source }
    };
    let plans = plans(options);
    let needed =
        plans.iter().map(|p| p.entries * p.workload.entry_bytes()).max().unwrap_or(0) * SPACE;
    let all_s: f64 = plans.iter().map(estimate_s).sum();
    eprintln!(
        "{} points, about {:.0} minutes, up to {:.1} GiB of disk",
        plans.len(),
        all_s / 60.0,
        needed as f64 / f64::from(1 << 30)
    );
    if options.dry_run {
        for plan in &plans {
            eprintln!("round {} {} {} {}", plan.round, plan.workload, plan.engine, plan.entries);
        }
        return Ok(());
    }

    std::fs::create_dir_all(&options.out).map_err(system("make", &options.out))?;
    let work = options.work.clone().unwrap_or_else(|| options.out.join("work"));
    std::fs::create_dir_all(&work).map_err(system("make", &work))?;
    let free = rustix::fs::statvfs(&work).map_or(u64::MAX, |fs| fs.f_bavail * fs.f_frsize);
    if free < needed {
        return Err(Error::Options(format!(
            "{} has {free} bytes free and up to {needed} are needed; take --work on another device, or fewer --entries",
            work.display()
        )));
    }

    let head = Head {
        host: serde_json::to_value(Host::of(&work)).unwrap_or_default(),
        harness: env!("CARGO_PKG_VERSION").to_owned(),
        points: plans,
    };
    let mut journal = Journal::open(&options.out.join("journal.jsonl"), &head)?;
    let bar = ProgressBar::new(head.points.len() as u64).with_style(
        ProgressStyle::with_template("{elapsed_precise} {bar:30} {pos}/{len} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );

    let (begun, mut estimated, mut spent) = (Instant::now(), 0.0, 0.0);
    for (position, plan) in head.points.iter().enumerate() {
        bar.set_position(position as u64);
        if journal.outcomes.iter().any(|outcome| outcome.plan == *plan) {
            continue;
        }
        // What is left, by how the points so far compare with their estimates.
        let left: f64 = head.points[position..].iter().map(estimate_s).sum();
        let scale = if estimated > 0.0 { spent / estimated } else { 1.0 };
        bar.set_message(format!(
            "{} {} round {}, about {:.0} min left",
            plan.workload,
            plan.engine,
            plan.round,
            left * scale / 60.0
        ));
        bar.enable_steady_tick(Duration::from_secs(1));
        let start = begun.elapsed().as_secs_f64();
        let dir = work.join("point");
        remove(&dir)?;
        std::fs::create_dir_all(&dir).map_err(system("make", &dir))?;
        let mut outcome = child(plan, &dir)?;
        remove(&dir)?;
        let differs = journal.outcomes.iter().find_map(|other| outcome.differing_root(other));
        if let Some(differs) = differs {
            outcome.failed = Some(differs);
            outcome.figures = None;
        }
        if let Some(why) = outcome.failed.as_ref().or(outcome.cannot.as_ref()) {
            bar.println(format!("{} {}: {why}", plan.workload, plan.engine));
        }
        journal.append(outcome)?;
        estimated += estimate_s(plan);
        spent += begun.elapsed().as_secs_f64() - start;
    }
    bar.finish_and_clear();

    let results = serde_json::json!({
        "schema_version": 1,
        "host": head.host,
        "harness": head.harness,
        "command_line": std::env::args().collect::<Vec<_>>(),
        "points": journal.outcomes,
    });
    let path = options.out.join("results.json");
    let text =
        serde_json::to_vec_pretty(&results).map_err(|error| Error::Options(error.to_string()))?;
    let temporary = options.out.join("results.json.tmp");
    std::fs::write(&temporary, text).map_err(system("write", &temporary))?;
    std::fs::rename(&temporary, &path).map_err(system("rename", &temporary))?;
    table::print(&options.out)
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::System { what: format!("remove {}", dir.display()), source })
        }
        _ => Ok(()),
    }
}

/// Runs a point in a process of its own. A process that dies (an engine may abort, or be killed
/// because it takes more memory than it was given) is the engine's failure.
fn child(plan: &Plan, dir: &Path) -> Result<Outcome> {
    let system = |source| Error::System { what: "start a point".to_owned(), source };
    let program = std::env::current_exe().map_err(system)?;
    let output = Command::new(program)
        .arg("run")
        .args(["--engine", &name(plan.engine), "--workload", plan.workload.name()])
        .args(["--entries", &plan.entries.to_string(), "--memory", &plan.memory_bytes.to_string()])
        .args(["--warm", &plan.warm_s.to_string(), "--seconds", &plan.seconds.to_string()])
        .args(["--seed", &plan.seed.to_string(), "--round", &plan.round.to_string()])
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(system)?;
    if output.status.success() {
        let outcome = serde_json::from_slice(&output.stdout);
        return outcome
            .map_err(|error| Error::Options(format!("a point printed no report: {error}")));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let failed = format!("{}: {}", output.status, said.lines().last().unwrap_or("it said nothing"));
    // Without a limit nothing can be compared, so that is not the engine's failure.
    if output.status.code() == Some(3) {
        return Err(Error::Options(said.trim().to_owned()));
    }
    Ok(Outcome {
        plan: plan.clone(),
        about: None,
        cannot: None,
        failed: Some(failed),
        figures: None,
    })
}

/// The file of outcomes.
struct Journal {
    file: File,
    path: PathBuf,
    outcomes: Vec<Outcome>,
}

impl Journal {
    fn open(path: &Path, head: &Head) -> Result<Self> {
        let system = |source| Error::System { what: format!("open {}", path.display()), source };
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(path).map_err(system)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(system)?;

        // What was cut by a kill has no end of line.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            eprintln!("{}: the last line is cut and dropped", path.display());
            file.set_len(whole as u64).map_err(system)?;
        }
        let mut lines = text[..whole].lines();
        let damaged = |error: serde_json::Error| {
            Error::Options(format!(
                "{} is damaged: {error}; remove it to begin anew",
                path.display()
            ))
        };
        let mut journal = Self { file, path: path.to_owned(), outcomes: Vec::new() };
        match lines.next() {
            None => journal.line(&serde_json::to_string(head).map_err(damaged)?)?,
            Some(line) => differs(path, &serde_json::from_str(line).map_err(damaged)?, head)?,
        }
        for line in lines {
            journal.outcomes.push(serde_json::from_str(line).map_err(damaged)?);
        }
        Ok(journal)
    }

    fn append(&mut self, outcome: Outcome) -> Result<()> {
        let text =
            serde_json::to_string(&outcome).map_err(|error| Error::Options(error.to_string()))?;
        self.line(&text)?;
        self.outcomes.push(outcome);
        Ok(())
    }

    fn line(&mut self, text: &str) -> Result<()> {
        let system =
            |source| Error::System { what: format!("write {}", self.path.display()), source };
        self.file.write_all(format!("{text}\n").as_bytes()).map_err(system)?;
        self.file.sync_data().map_err(system)
    }
}

/// Refuses a journal of another comparison.
fn differs(path: &Path, found: &Head, head: &Head) -> Result<()> {
    let mut fields = Vec::new();
    if found.host != head.host {
        fields.push("the host");
    }
    if found.harness != head.harness {
        fields.push("the version of this program");
    }
    if found.points != head.points {
        fields.push("the options");
    }
    if fields.is_empty() {
        return Ok(());
    }
    let what = fields.join(", ");
    Err(Error::Options(format!(
        "{} is of another comparison ({what} differ); take another --out",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(entries: u64) -> Head {
        let plan = Plan {
            engine: Kind::Terrane,
            workload: Workload::Utxo,
            entries,
            memory_bytes: 1 << 26,
            warm_s: 1.0,
            seconds: 1.0,
            seed: 1,
            round: 0,
        };
        Head { host: serde_json::json!({"os": "x"}), harness: "0".to_owned(), points: vec![plan] }
    }

    fn outcome(head: &Head) -> Outcome {
        let plan = head.points[0].clone();
        Outcome { plan, about: None, cannot: Some("no".to_owned()), failed: None, figures: None }
    }

    #[test]
    fn a_journal_goes_on_and_drops_a_cut_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let head = head(1_000);
        Journal::open(&path, &head).unwrap().append(outcome(&head)).unwrap();
        let whole = std::fs::read(&path).unwrap();

        // Cut at every byte of a second record: the first one stays.
        Journal::open(&path, &head).unwrap().append(outcome(&head)).unwrap();
        let both = std::fs::read(&path).unwrap();
        for cut in whole.len()..both.len() {
            std::fs::write(&path, &both[..cut]).unwrap();
            let journal = Journal::open(&path, &head).unwrap();
            assert_eq!(journal.outcomes, [outcome(&head)], "cut at {cut}");
            drop(journal);
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn a_journal_of_another_comparison_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        Journal::open(&path, &head(1_000)).unwrap();
        let error = Journal::open(&path, &head(2_000)).err().unwrap().to_string();
        assert!(error.contains("the options differ"), "{error}");
        let other = Head { host: serde_json::json!({"os": "y"}), ..head(1_000) };
        let error = Journal::open(&path, &other).err().unwrap().to_string();
        assert!(error.contains("the host differ"), "{error}");
    }
}
