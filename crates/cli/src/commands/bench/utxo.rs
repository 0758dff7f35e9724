//! `terrane bench utxo`: the workload of a set of unspent outputs.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use terrane::lsm::Compression;
use terrane_bench::instruments::device::{Beside, Pattern, Yardstick};
use terrane_bench::instruments::host::Host;
use terrane_bench::instruments::limits::MemoryLimit;
use terrane_bench::workloads::utxo::Prepared;
use terrane_bench::workloads::utxo::draws::{Draws, Kind};
use terrane_bench::workloads::utxo::run::{self, Mode, Report};
use terrane_bench::workloads::utxo::setup::{self, Loading};

use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

use super::choices::{OptimizeForArg, ShapeArg};
use super::head::{Head, Started, beside_writes_of, yardstick_of};

/// Sub-commands of the benchmark.
#[derive(Debug, Subcommand)]
pub(crate) enum Utxo {
    /// Creates the table that runs work on
    #[command(after_help = SETUP_EXAMPLES)]
    Setup(SetupArgs),
    /// Measures on a fork of the table, which is dropped afterwards
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Draws the operations of a run without applying them, and measures the draws
    #[command(after_help = DRY_RUN_EXAMPLES)]
    DryRun(DryRunArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane bench utxo setup --store /tmp/terrane-utxo --entries 10M
  terrane bench utxo run --store /tmp/terrane-utxo --mode sequential --calibrate
  terrane bench utxo dry-run --entries 10M";

const SETUP_EXAMPLES: &str = "\
Examples:
  10 million entries of 34 + 60 bytes, a fifth of them replaced:
    terrane bench utxo setup --store /tmp/terrane-utxo --entries 10M
  100 million entries within a memory budget (minutes, 30 GB of disk):
    terrane bench utxo setup --store DIR --entries 100M --memory-budget 350MiB \\
      --json";

const RUN_EXAMPLES: &str = "\
Examples:
  Look up, delete and insert 256 entries at a time, and measure the device:
    terrane bench utxo run --store /tmp/terrane-utxo --calibrate
  Lookups only, eight batches in flight:
    terrane bench utxo run --store /tmp/terrane-utxo --mode lookup-only \\
      --in-flight 8
  Lookups ahead of updates, two threads, and compare the whole table at the end:
    terrane bench utxo run --store /tmp/terrane-utxo --mode pipelined --check
  What the engine costs without a device:
    terrane bench utxo run --in-memory --entries 1M --mode lookup-only";

const DRY_RUN_EXAMPLES: &str = "\
Example:
  terrane bench utxo dry-run --entries 100M --batches 10000";

args::choices! {
    enum ModeArg => Mode {
        /// A batch of lookups, then its updates, then the next batch
        Sequential => Mode::Sequential,
        /// Lookups of later batches beside the updates of earlier ones
        Pipelined => Mode::Pipelined,
        /// No updates
        LookupOnly => Mode::LookupOnly,
        /// No lookups; ends when the merge debt is no larger than at the start
        UpdateOnly => Mode::UpdateOnly,
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LoadArg {
    /// Sorted outside memory, and written once
    Bulk,
    /// Batches of updates, like a ledger
    Updates,
}

#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// Directory of the store; created if it is missing
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Returns the setup of the table.
#[derive(Debug, Args)]
struct TableArgs {
    /// Entries of the table
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "10M")]
    entries: u64,
    /// Way of loading the entries
    #[arg(long, value_name = "WAY", default_value = "updates")]
    load: LoadArg,
    /// Share of the entries to replace after loading, which gives the levels the shape of use
    #[arg(long, value_name = "PERCENT", default_value = "20",
        value_parser = clap::value_parser!(u64).range(0..=100))]
    churn: u64,
    /// Shape of the levels
    #[arg(long, value_name = "SHAPE", default_value = "default")]
    shape: ShapeArg,
    /// Compression of the table's pages: none, lz4 or zstd
    #[arg(long, value_name = "CODEC", value_parser = args::compression, default_value = "none")]
    compression: Compression,
    /// Seed of keys, values and operations
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
}

#[derive(Debug, Args)]
struct EngineArgs {
    /// Memory for memtables, filters, indexes and cached pages
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_budget: Option<u64>,
    /// Kind of lookup that memory is spent on first: present keys, absent keys, or both alike
    #[arg(long, alias = "goal", value_name = "LOOKUPS", default_value = "hits")]
    optimize_for: OptimizeForArg,
    /// Threads; with 2, compaction has a thread of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=2))]
    threads: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Directory of the store in which the table was set up
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Sets a table up in memory instead, to measure the engine without a device
    #[arg(long, conflicts_with_all = ["store", "calibrate"])]
    in_memory: bool,
    #[command(flatten)]
    table: TableArgs,
    /// Kinds of operations, and their order
    #[arg(long, value_name = "MODE", default_value = "sequential")]
    mode: ModeArg,
    /// Batches
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "10k")]
    batches: u64,
    /// Operations in a batch
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "256")]
    batch_size: u64,
    /// Batches of lookups in flight, for lookup-only (default 1) and pipelined (default 4)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    in_flight: Option<u64>,
    /// Reads that a batch of lookups keeps in flight
    #[arg(long, value_name = "N", default_value = "256",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    queue_depth: u32,
    /// Reads the whole table at the end and compares it with the expected content
    #[arg(long)]
    check: bool,
    /// Measures the device too, before and after the run; in a mode with lookups and updates also
    /// beside writes at the rate of the run, if fio is installed
    #[arg(long)]
    calibrate: bool,
    /// Memory limit of a control group for this process, page cache included
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_limit: Option<u64>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DryRunArgs {
    /// Entries of the table
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "10M")]
    entries: u64,
    /// Batches
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "10k")]
    batches: u64,
    /// Operations in a batch
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "256")]
    batch_size: u64,
    /// Seed of keys, values and operations
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

impl Utxo {
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::Setup(_) => "bench utxo setup",
            Self::Run(_) => "bench utxo run",
            Self::DryRun(_) => "bench utxo dry-run",
        }
    }

    pub(crate) fn run(&self) -> Result<(), Failure> {
        match self {
            Self::Setup(setup) => setup.run(self.command()),
            Self::Run(run) => run.run(self.command()),
            Self::DryRun(dry_run) => dry_run.run(self.command()),
        }
    }
}

impl TableArgs {
    fn options(&self, engine: &EngineArgs) -> setup::Options {
        setup::Options {
            entries: self.entries,
            loading: match self.load {
                LoadArg::Bulk => Loading::Bulk,
                LoadArg::Updates => Loading::Updates,
            },
            churn_percent: self.churn,
            seed: self.seed,
            shape: self.shape.into(),
            compression: self.compression,
            memory_budget: engine.memory_budget,
            memory_goal: engine.optimize_for.into(),
            background_merges: engine.threads != Some(1),
        }
    }
}

impl SetupArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let started = Started::now();
        let mut progress = Progress::new(self.output.quiet);
        let report = setup::run(&self.store, &self.table.options(&self.engine), &mut progress)?;
        drop(progress);

        let lines = [
            ("entries", report.entries.to_string()),
            ("loading", format!("{:.1} s, {:.0}/s", report.load_s, report.inserts_per_s)),
            ("replacing", format!("{:.1} s", report.churn_s)),
            ("written", format!("{:.2} x while loading", report.write_amplification)),
            ("runs", report.runs.to_string()),
            ("entries by level", format!("{:?}", report.levels)),
            ("merge work left", output::bytes(report.merge_debt_bytes)),
            ("store", output::bytes(report.store_bytes)),
        ];

        let host = Host::of(&self.store);
        let made = Created { head: started.head_without_time(), report: &report, host };

        output::report(command, self.output.json, &made, &lines)
    }
}

/// Report of a setup.
#[derive(Serialize)]
struct Created<'a> {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    report: &'a setup::Report,
    host: Host,
}

/// Report of a run, with the measurements of the device.
#[derive(Serialize)]
struct Measurement<'a> {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    fio_read_iops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fio_read_iops_spread_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fio_measured_by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eta: Option<f64>,
    #[serde(flatten)]
    beside_writes: Option<DeviceRates>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_limit_bytes: Option<u64>,
    enforced_by: &'static str,
    host: &'a Host,
    warnings: &'a [&'static str],
}

/// Rate of the device for reads like those of the run, beside writes at the rate of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct DeviceRates {
    fio_beside_writes_pattern: Pattern,
    fio_beside_writes_read_iops: f64,
    fio_beside_writes_write_bytes_per_s: f64,
    /// Lookups of the run for each of these reads.
    eta_beside_writes: f64,
}

impl DeviceRates {
    fn new(pattern: Pattern, beside: &Beside, lookups_per_s: f64) -> Self {
        Self {
            fio_beside_writes_pattern: pattern,
            fio_beside_writes_read_iops: beside.read_iops,
            fio_beside_writes_write_bytes_per_s: beside.write_bytes_per_s,
            eta_beside_writes: lookups_per_s / beside.read_iops,
        }
    }
}

/// Returns the kind of device reads that a mode is compared with, beside writes at its own rate in
/// bytes per second. Awaited batches are bursts. Returns `None` for a mode without reads or without
/// writes.
fn beside(report: &Report) -> Option<(Pattern, u64)> {
    let pattern = match report.mode {
        Mode::Sequential => Pattern::Bursts,
        Mode::Pipelined => Pattern::Steady,
        Mode::LookupOnly | Mode::UpdateOnly => return None,
    };
    Some((pattern, (report.device_write_bytes as f64 / report.wall_s) as u64))
}

/// Ratio that two measurements of the device in one run may differ by.
const SPREAD_MAX: f64 = 0.1;

impl RunArgs {
    fn options(&self) -> run::Options {
        let (in_flight, threads) = match self.mode {
            ModeArg::LookupOnly | ModeArg::Sequential => (1, 1),
            ModeArg::Pipelined => (4, 2),
            ModeArg::UpdateOnly => (1, 2),
        };

        run::Options {
            mode: self.mode.into(),
            batches: self.batches,
            batch_size: self.batch_size,
            in_flight: self.in_flight.unwrap_or(in_flight),
            threads: self.engine.threads.unwrap_or(threads),
            queue_depth: self.queue_depth,
            check: self.check,
            memory_budget: self.engine.memory_budget,
            memory_goal: self.engine.optimize_for.into(),
        }
    }

    /// Returns the store to measure; `None` if the table is in memory, also where the environment
    /// names a store.
    fn stored(&self) -> Option<&PathBuf> {
        self.store.as_ref().filter(|_| !self.in_memory)
    }

    fn run(&self, command: &str) -> Result<(), Failure> {
        if self.stored().is_none() && !self.in_memory {
            return Err(Failure::no_store("--store DIR or --in-memory"));
        }

        let started = Started::now();
        let mut progress = Progress::new(self.output.quiet);
        let limit = self.memory_limit.map(MemoryLimit::set).transpose()?;
        let dir = self.stored().cloned().unwrap_or_else(|| PathBuf::from("."));
        let before = self.yardstick(&mut progress)?;

        let report = match self.stored() {
            Some(store) => run::run(store, &self.options(), &mut progress)?,
            None => {
                let setup = self.table.options(&self.engine);
                run::run_in_memory(&setup, &self.options(), &mut progress)?
            }
        };

        let after = self.yardstick(&mut progress)?;
        let beside_writes = self.beside_writes(&report, &mut progress)?;
        drop(progress);

        let both = before.as_ref().zip(after.as_ref());
        let iops = both.map(|(before, after)| (before.read_iops + after.read_iops) / 2.0);
        let spread = both
            .zip(iops)
            .map(|((before, after), iops)| (before.read_iops - after.read_iops).abs() / iops);

        let mut warnings = Vec::new();
        if spread.is_some_and(|spread| spread > SPREAD_MAX) {
            warnings.push("unstable_device");
        }

        let measured = Measurement {
            head: started.head_without_time(),
            report: &report,
            fio_read_iops: iops,
            fio_read_iops_spread_ratio: spread,
            fio_measured_by: before.as_ref().map(|yardstick| yardstick.measured_by),
            eta: iops.zip(report.lookups_per_s).map(|(iops, lookups)| lookups / iops),
            beside_writes,
            memory_limit_bytes: self.memory_limit,
            enforced_by: limit.as_ref().map_or("direct_io", |limit| limit.enforced_by()),
            host: &Host::of(&dir),
            warnings: &warnings,
        };

        output::report(command, self.output.json, &measured, &lines(&measured))
    }

    fn yardstick(&self, progress: &mut Progress) -> Result<Option<Yardstick>, Failure> {
        yardstick_of(self.stored().filter(|_| self.calibrate), progress)
    }

    fn beside_writes(
        &self,
        report: &Report,
        progress: &mut Progress,
    ) -> Result<Option<DeviceRates>, Failure> {
        let Some(wanted) = beside(report) else { return Ok(None) };
        let store = self.stored().filter(|_| self.calibrate);
        let measured = beside_writes_of(store, wanted, progress)?.zip(report.lookups_per_s);
        Ok(measured.map(|(beside, lookups)| DeviceRates::new(wanted.0, &beside, lookups)))
    }
}

fn lines(measured: &Measurement<'_>) -> Vec<(&'static str, String)> {
    let report = measured.report;
    let mut lines = vec![
        ("entries", report.entries.to_string()),
        ("batches", format!("{} of {}", report.batches, report.batch_size)),
        ("opened in", format!("{:.3} s", report.open_s)),
        ("time", format!("{:.2} s", report.wall_s)),
        ("operations", format!("{:.0}/s", report.ops_per_s)),
    ];

    if let Some(reads) = report.lookup_io_per_op {
        lines.push(("reads", format!("{reads:.4} a lookup, {} missing", report.missing)));
    }

    if let (Some(iops), Some(eta)) = (measured.fio_read_iops, measured.eta) {
        let by = measured.fio_measured_by.unwrap_or_default();
        lines.push(("device", format!("{iops:.0} reads/s of 4 KiB by {by}: eta {eta:.3}")));
    }

    if let Some(beside) = &measured.beside_writes {
        let iops = beside.fio_beside_writes_read_iops;
        let eta = beside.eta_beside_writes;
        let written = output::bytes(beside.fio_beside_writes_write_bytes_per_s as u64);
        let text = format!("{iops:.0} reads/s beside {written}/s: {eta:.3} of it");
        lines.push(("device, written to", text));
    }

    let cpu = (report.cpu_us_per_op, report.cpu_user_us_per_op, report.cpu_system_us_per_op);
    lines.push(("processor", format!("{:.2} us an operation, {:.2} + {:.2}", cpu.0, cpu.1, cpu.2)));

    for (name, latency) in
        [("lookup batch", &report.lookup_latency_us), ("update batch", &report.update_latency_us)]
    {
        if let Some(l) = latency {
            let shown = (l.p50, l.p99, l.p999, l.max);
            let text = format!(
                "{:.0} us, p99 {:.0}, p99.9 {:.0}, longest {:.0}",
                shown.0, shown.1, shown.2, shown.3
            );
            lines.push((name, text));
        }
    }

    lines.push(("memory", format!("{} at most", output::bytes(report.rss_peak_bytes))));
    let debt = (report.merge_debt_before_bytes, report.merge_debt_after_bytes);
    let debt = (output::bytes(debt.0), output::bytes(debt.1));
    lines.push(("merge work left", format!("{} before, {} after", debt.0, debt.1)));
    lines.push(("runs", format!("{}, entries by level {:?}", report.runs, report.levels)));
    lines.push(("result", report.result_hash.clone()));
    lines.extend(measured.warnings.iter().map(|&warning| ("warning", warning.to_owned())));

    lines
}

/// Report of a dry run.
#[derive(Serialize)]
struct Drawn {
    entries: u64,
    batches: u64,
    batch_size: u64,
    seed: u64,
    duplicates: u64,
    draw_us_per_op: f64,
    generate_us_per_op: f64,
    stream_hash: String,
}

impl DryRunArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let mut progress = Progress::new(self.output.quiet);
        let prepared = Prepared { seed: self.seed, entries: self.entries, first: 0 };
        let count = (self.batches, self.batch_size);
        let dir = std::env::temp_dir();
        let draws = Draws::new(&dir, (prepared, Kind::Replaced), count, &mut progress)?;
        drop(progress);

        let ops = (self.batches * self.batch_size) as f64;
        let drawn = Drawn {
            entries: self.entries,
            batches: self.batches,
            batch_size: self.batch_size,
            seed: self.seed,
            duplicates: draws.duplicates,
            draw_us_per_op: draws.draw_s * 1e6 / ops,
            generate_us_per_op: draws.generate_s * 1e6 / ops,
            stream_hash: draws.stream_hash.to_hex().to_string(),
        };

        let lines = [
            ("operations", format!("{ops}")),
            ("drawn twice", drawn.duplicates.to_string()),
            ("drawing", format!("{:.3} us an operation", drawn.draw_us_per_op)),
            ("making and hashing", format!("{:.3} us an operation", drawn.generate_us_per_op)),
            ("stream", drawn.stream_hash.clone()),
        ];

        output::report(command, self.output.json, &drawn, &lines)
    }
}
