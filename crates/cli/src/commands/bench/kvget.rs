//! `terrane bench kvget`: what a lookup of a random key costs in reads, by memory.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use terrane::lsm::Compression;
use terrane_bench::instruments::device::Yardstick;
use terrane_bench::instruments::limits::MemoryLimit;
use terrane_bench::workloads::draws::Distribution;
use terrane_bench::workloads::kvget::report::Report;
use terrane_bench::workloads::kvget::run::{self, Budget, Options, WarmUp};
use terrane_bench::workloads::kvget::setup;
use terrane_bench::workloads::values::Values;

use super::choices::{OptimizeForArg, ShapeArg, budget, distribution, values};
use super::files::FileArgs;
use super::head::{Started, yardstick_of};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

/// Sub-commands of the benchmark.
#[derive(Debug, Subcommand)]
pub(crate) enum Kvget {
    /// Creates the table that runs read
    #[command(after_help = SETUP_EXAMPLES)]
    Setup(SetupArgs),
    /// Reads the table with a memory budget, and counts the reads of the device
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane bench kvget setup --store /tmp/terrane-kvget --keys 10M
  terrane bench kvget run --store /tmp/terrane-kvget --memory-budget 0.2% \\
    --optimize-for hits
  terrane bench model --memory 0.2% --optimize-for hits";

const SETUP_EXAMPLES: &str = "\
Examples:
  10 million keys of 32 bytes with values of 110, in a table for reading:
    terrane bench kvget setup --store /tmp/terrane-kvget --keys 10M
  Values like unspent outputs of Bitcoin:
    terrane bench kvget setup --store DIR --keys 10M --values bitcoin
  The shape that tables have by default:
    terrane bench kvget setup --store DIR --keys 10M --shape default --json";

const RUN_EXAMPLES: &str = "\
Examples:
  Hits with memory for 0.2 % of the data:
    terrane bench kvget run --store /tmp/terrane-kvget --memory-budget 0.2% \\
      --optimize-for hits
  Keys that are absent, beside the rate of the device:
    terrane bench kvget run --store DIR --memory-budget 1% --absent 100 \\
      --calibrate
  Some keys far more often than others:
    terrane bench kvget run --store DIR --distribution zipf:0.99
  One key at a time, by 16 threads:
    terrane bench kvget run --store DIR --batch 1 --threads 16 --json
  What the engine costs without a device:
    terrane bench kvget run --in-memory --keys 1M
  The report in a file, and the time series of its windows in another:
    terrane bench kvget run --store DIR --out run.json --jsonl windows.jsonl \\
      --quiet

A run changes nothing and can be repeated. Every result is checked: a missing key, a wrong value, \
or an absent key that is found ends the run with exit code 1. After Ctrl-C the report covers the \
measurement until then.";

/// Parses the length of the warm-up.
fn warm_up(text: &str) -> Result<WarmUp, String> {
    match text.strip_prefix("fixed:") {
        Some(ratio) => args::ratio(ratio).map(WarmUp::Fixed),
        None if text == "steady" => Ok(WarmUp::Steady),
        None => Err("write `steady`, or `fixed:0.05%` for a share of the keys".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// Directory of the store; created if it is missing
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Keys of the table
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "10M")]
    keys: u64,
    /// Shape of the levels
    #[arg(long, value_name = "SHAPE", default_value = "levelled-10")]
    shape: ShapeArg,
    /// Values: random:BYTES, uniform:LEAST..MOST, dict:COUNT, hist:FILE (lines of size and weight),
    /// bitcoin (unspent outputs) or ethereum (accounts and slots)
    #[arg(long, value_name = "VALUES", value_parser = values, default_value = "random:110")]
    values: Values,
    /// Compression of the table's pages: none, lz4 or zstd
    #[arg(long, value_name = "CODEC", value_parser = args::compression, default_value = "none")]
    compression: Compression,
    /// Seed of values and operations
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Directory of the store in which the table was set up
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Sets a table up in memory instead, to measure the engine without a device
    #[arg(long, conflicts_with_all = ["store", "calibrate", "buffered", "memory_limit"])]
    in_memory: bool,
    /// Keys of the table in memory, by default 1M
    #[arg(long, value_name = "N", value_parser = args::positive_count, requires = "in_memory")]
    keys: Option<u64>,
    /// Shape of the table in memory, by default levelled-10
    #[arg(long, value_name = "SHAPE", requires = "in_memory")]
    shape: Option<ShapeArg>,
    /// Values of the table in memory, by default random:110
    #[arg(long, value_name = "VALUES", value_parser = values, requires = "in_memory")]
    values: Option<Values>,
    /// Compression of the table in memory, by default none
    #[arg(long, value_name = "CODEC", value_parser = args::compression, requires = "in_memory")]
    compression: Option<Compression>,
    /// Seed of the table in memory, by default 1337
    #[arg(long, value_name = "N", value_parser = args::count, requires = "in_memory")]
    seed: Option<u64>,
    /// Memory budget of the table: a share of the bytes of all keys and values, or bytes. Without
    /// it the table has its filters and index in memory, and no cache
    #[arg(long, value_name = "PERCENT|SIZE", value_parser = budget)]
    memory_budget: Option<Budget>,
    /// Kind of lookup that the memory is spent for
    #[arg(long, alias = "goal", value_name = "LOOKUPS", default_value = "both")]
    optimize_for: OptimizeForArg,
    /// Keys to read
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "500k")]
    reads: u64,
    /// Per cent of the keys that are absent
    #[arg(long, value_name = "PERCENT", default_value = "0",
        value_parser = clap::value_parser!(u64).range(0..=100))]
    absent: u64,
    /// Choice of the keys: uniform, every (each once), zipf:θ, latest:θ, or hotset:P,Q (P per cent
    /// of the keys get Q per cent of the reads)
    #[arg(long, alias = "dist", value_name = "DISTRIBUTION", value_parser = distribution,
        default_value = "uniform")]
    distribution: Distribution,
    /// Keys of each call, which change the speed and not the number of reads
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "64")]
    batch: u64,
    /// Threads that read
    #[arg(long, value_name = "N", default_value = "1",
        value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: u64,
    /// Length of the warm-up, which is not measured: until the cost of reads is `steady`, or
    /// `fixed:PERCENT` of the keys
    #[arg(long, value_name = "WHEN", value_parser = warm_up, default_value = "steady")]
    warm: WarmUp,
    /// Reads through the page cache of the system, outside every memory budget
    #[arg(long)]
    buffered: bool,
    /// Measures the device too, before and after the run
    #[arg(long)]
    calibrate: bool,
    /// Memory limit of a control group for this process, page cache included
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_limit: Option<u64>,
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl Kvget {
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::Setup(_) => "bench kvget setup",
            Self::Run(_) => "bench kvget run",
        }
    }

    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match self {
            Self::Setup(setup) => setup.run(self.command()).map(|()| 0),
            Self::Run(run) => run.run(self.command()),
        }
    }
}

impl SetupArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let started = Started::now();
        let mut progress = Progress::new(self.output.quiet);
        let Self { keys, seed, .. } = *self;
        let options = setup::Options {
            keys,
            seed,
            shape: self.shape.into(),
            values: self.values.clone(),
            compression: self.compression,
        };
        let report = setup::run(&self.store, &options, &mut progress)?;
        drop(progress);

        let lines = [
            ("keys", report.keys.to_string()),
            ("loading", format!("{:.1} s, {:.0}/s", report.load_s, report.inserts_per_s)),
            ("written", format!("{:.2} x", report.write_amplification)),
            ("runs", report.runs.to_string()),
            ("entries by level", format!("{:?}", report.levels)),
            ("keys and values", output::bytes(report.logical_bytes)),
            ("values", report.values.clone()),
            ("compression", report.compression.clone()),
            ("store", output::bytes(report.store_bytes.unwrap_or(0))),
            ("stream", report.stream_hash.clone()),
        ];

        let measured = started.report(&report, &self.store, false);

        output::report(command, self.output.json, &measured, &lines)
    }
}

impl RunArgs {
    fn options(&self) -> Options {
        Options {
            memory_budget: self.memory_budget,
            goal: self.optimize_for.into(),
            reads: self.reads,
            absent_percent: self.absent,
            distribution: self.distribution,
            batch: self.batch,
            threads: self.threads,
            warm_up: self.warm,
            buffered: self.buffered,
        }
    }

    /// Returns the setup of the table in memory.
    fn table(&self) -> setup::Options {
        setup::Options {
            keys: self.keys.unwrap_or(1_000_000),
            seed: self.seed.unwrap_or(1337),
            shape: self.shape.unwrap_or(ShapeArg::Levelled10).into(),
            values: self.values.clone().unwrap_or_default(),
            compression: self.compression.unwrap_or_default(),
        }
    }

    /// Returns the store to measure; `None` if the table is in memory, also where the environment
    /// names a store.
    fn stored(&self) -> Option<&PathBuf> {
        self.store.as_ref().filter(|_| !self.in_memory)
    }

    fn run(&self, command: &str) -> Result<u8, Failure> {
        if self.stored().is_none() && !self.in_memory {
            return Err(Failure::no_store("--store DIR or --in-memory"));
        }

        let started = Started::now();
        let files = self.files.make()?;
        let mut progress = Progress::new(self.output.quiet);
        let before = self.yardstick(&mut progress)?;

        let limit = self.memory_limit.map(MemoryLimit::set).transpose()?;
        let options = self.options();
        let mut report = match self.stored() {
            Some(store) => run::run(store, limit.as_ref(), &options, &mut progress)?,
            None => run::run_in_memory(&self.table(), &options, &mut progress)?,
        };

        drop(limit);

        // After Ctrl-C the device is not measured, which takes seconds.
        let after = if report.is_interrupted { None } else { self.yardstick(&mut progress)? };
        drop(progress);

        if let Some((before, after)) = before.zip(after) {
            report.calibrate(&before, &after);
        }

        let interrupted = report.is_interrupted.then(|| Failure::interrupted("interrupted"));
        let dir = self.stored().cloned().unwrap_or_else(std::env::temp_dir);
        let measured = started.report(&report, &dir, report.is_interrupted);
        let failure = interrupted.as_ref();
        files.write(output::object(command, &measured, failure)?, &report.windows)?;
        let text = output::aligned(&lines(&report));

        output::checked(command, self.output.json, &measured, &text, failure)
    }

    fn yardstick(&self, progress: &mut Progress) -> Result<Option<Yardstick>, Failure> {
        yardstick_of(self.stored().filter(|_| self.calibrate), progress)
    }
}

/// Returns a share as text in per cent.
fn percent(ratio: f64) -> String {
    format!("{:.3} %", ratio * 100.0)
}

fn lines(report: &Report) -> Vec<(&'static str, String)> {
    let Report { workload, engine, memory, io, convergence, speed, .. } = report;
    let ci = io.io_per_get_ci95.map_or(String::new(), |ci| format!(" ± {ci:.4}"));

    let mut lines = vec![
        ("keys", format!("{}, {}", workload.entries, output::bytes(engine.logical_bytes))),
        ("shape", format!("{}, {} runs", engine.options.shape, engine.runs)),
        ("reads", format!("{} found, {} absent, 0 missing", workload.found, workload.absent)),
        ("I/O per GET", format!("{:.4}{ci}, {:.0} bytes", report.io_per_get, io.bytes_per_get)),
    ];

    if let Some(prediction) = &report.model.prediction {
        let expected = prediction.io_per_get(workload.absent_ratio);
        lines.push(("by the model", format!("{expected:.4}")));
    }

    let steady = if convergence.converged { "steady" } else { "not steady" };
    lines.push(("warm-up", format!("{steady} after {} reads", convergence.warmup_ops)));

    let budget = memory.budget_bytes.zip(memory.budget_ratio).filter(|_| memory.memory_enforced);
    lines.push((
        "memory budget",
        match budget {
            Some((bytes, ratio)) => {
                format!("{}, {} of the data", output::bytes(bytes), percent(ratio))
            }
            None => memory.budget_bytes.map_or("none".to_owned(), output::bytes),
        },
    ));

    let parts = [memory.filter_bytes, memory.index_bytes, memory.cache_bytes].map(output::bytes);
    lines.push((
        "in memory",
        format!("filters {}, index {}, cache {}", parts[0], parts[1], parts[2]),
    ));

    lines.push((
        "reads by engine",
        format!("{}, {}", io.engine.read_requests, output::bytes(io.engine.read_bytes)),
    ));

    if let Some(process) = &io.process {
        let differs = io.process_difference_ratio.map_or(String::new(), |ratio| {
            let verdict = if io.process_agrees == Some(true) { "agrees" } else { "does not agree" };
            format!(", {verdict}: differs by {}", percent(ratio))
        });
        lines.push(("by the process", format!("{}{differs}", output::bytes(process.read_bytes))));
    }

    if let Some(device) = &io.device {
        let foreign = io
            .device_foreign_ratio
            .map_or(String::new(), |ratio| format!(", {} for others", percent(ratio)));
        let bytes = output::bytes(device.read_bytes);
        lines.push(("by the device", format!("{}, {bytes}{foreign}", device.read_requests)));
    }

    lines.push(("speed", format!("{:.0} lookups/s", report.lookups_per_s)));
    if let (Some(device), Some(eta)) = (&report.device, speed.eta) {
        let iops = device.fio_read_iops;
        let by = device.measured_by;
        lines.push(("device", format!("{iops:.0} reads/s of 4 KiB by {by}: eta {eta:.3}")));
    }

    if let Some(cpu) = report.cpu_us_per_op {
        lines.push(("processor", format!("{cpu:.2} us a lookup")));
    }

    let call = &speed.latency_us.get;
    let text = format!(
        "{:.0} us, p99 {:.0}, p99.9 {:.0}, longest {:.0}",
        call.p50, call.p99, call.p999, call.max
    );

    lines.push(("a call", text));
    lines.push(("stream", workload.stream_hash.clone()));
    lines.extend(report.warnings.iter().map(|warning| ("warning", warning.text.clone())));

    lines
}
