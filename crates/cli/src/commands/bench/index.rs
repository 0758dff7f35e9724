//! `terrane bench index`: engines side by side as an index that finds objects by their hashes.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use terrane_bench::instruments::limits::MemoryLimit;
use terrane_bench::workloads::index::engine::Engine;
use terrane_bench::workloads::index::report::{
    CallReport, EngineReport, EnginesReport, FindReport, MemoryReport,
};
use terrane_bench::workloads::index::{Common, bootstrap, high_insert, replay};
use terrane_replay::traces::index::Dialect;

use super::head::Started;
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

/// Sub-commands of the benchmark.
#[derive(Debug, Subcommand)]
pub(crate) enum Index {
    /// Inserts random keys into an empty index
    #[command(after_help = HIGH_INSERT_EXAMPLES)]
    HighInsert(HighInsertArgs),
    /// Adds, finds and tests entries of a large index, like a node that starts
    #[command(after_help = BOOTSTRAP_EXAMPLES)]
    Bootstrap(BootstrapArgs),
    /// Replays a recorded trace of an index
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane bench index high-insert --store /tmp/terrane-index --entries 1M
  terrane bench index high-insert --store /tmp/terrane-index \\
    --engine btree,lmdb --memory-limit 320MiB
  terrane bench index bootstrap --store /tmp/terrane-index --entries 1M --ops 1M
  terrane bench index replay migration.trace --store /tmp/terrane-index";

const HIGH_INSERT_EXAMPLES: &str = "\
Examples:
  50 million entries of 32 + 13 bytes, with 256 MiB:
    terrane bench index high-insert --store /tmp/terrane-index
  Beside LMDB, whose memory is the page cache, under a limit for all:
    terrane bench index high-insert --store DIR --engine btree,lmdb \\
      --memory-limit 320MiB --json
  A small map, whose files stay for `terrane inspect`:
    terrane bench index high-insert --store DIR --entries 1M --keep
    terrane inspect DIR/btree

Each engine works in its own directory below the store. The directory must not exist yet, and is \
removed at the end. The workload makes its writes durable at regular intervals, and looks up a \
sample at the end. If an entry is missing or wrong, the exit code is 1. After Ctrl-C the report \
covers the measurement until then.";

const BOOTSTRAP_EXAMPLES: &str = "\
Examples:
  10 million operations on 10 million entries:
    terrane bench index bootstrap --store /tmp/terrane-index
  At the size of the original trace, beside LMDB (hours, about 100 GB of disk):
    terrane bench index bootstrap --store DIR --entries 291M --ops 100M \\
      --memory-budget 1GiB --engine btree,lmdb

10 of 99 operations add an entry, 69 find an entry, and 20 ask whether a key is present. Each \
operation is one call, and the workload compares every answer with the expected answer. Loading the \
first entries, in key order, is not measured. Directories, flushes and exit codes are those of \
high-insert.";

const REPLAY_EXAMPLES: &str = "\
Examples:
  A trace of cactus or mirage/index, whose dialect the command detects:
    terrane bench index replay migration.trace --store /tmp/terrane-index
  The first 10 million operations, with a flush after every 10,000:
    terrane bench index replay migration.trace --store DIR --limit 10M \\
      --flush-every 10k

The first answer that differs from the recorded one ends the replay with exit code 1; the message \
names record and key. Directories are those of high-insert.";

args::choices! {
    /// Name of an engine.
    enum EngineArg => Engine {
        /// Terrane's B+tree
        Btree => Engine::Btree,
        /// Table of Terrane, in a store with a WAL
        Lsm => Engine::Lsm,
        /// LMDB, one commit for each call, synced at flushes
        Lmdb => Engine::Lmdb,
        /// Sorted map in memory: the cost of the workload itself
        Memory => Engine::Memory,
    }
}

/// Default number of operations between two durable flushes.
const FLUSH_EVERY: u64 = 10_000;

args::choices! {
    /// Name of a dialect of traces.
    enum DialectArg => Dialect {
        /// Traces of the migration of cactus, and of Terrane
        Migration => Dialect::Migration,
        /// Traces of the benchmark of mirage/index
        Mirage => Dialect::Mirage,
        /// Traces of cactus with keys and values of fixed sizes
        Recorder => Dialect::Recorder,
        /// Traces of cactus with keys and values as strings
        RecorderStrings => Dialect::RecorderStrings,
    }
}

/// Arguments of every workload.
#[derive(Debug, Args)]
struct CommonArgs {
    /// Directory to work in; created if it is missing
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Engines, measured one after the other
    #[arg(long, value_name = "ENGINE,...", value_delimiter = ',', default_value = "btree")]
    engine: Vec<EngineArg>,
    /// Operations between two durable flushes, by default 10k; by default a trace keeps the flushes
    /// that it has
    #[arg(long, value_name = "N", value_parser = args::positive_count)]
    flush_every: Option<u64>,
    /// Lookups of present keys at the end, and the number of lookups of absent keys
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "100k")]
    sample: u64,
    /// Memory of each engine that has a budget
    #[arg(long, value_name = "SIZE", value_parser = args::size, default_value = "256MiB")]
    memory_budget: u64,
    /// Memory limit of a control group for this process, page cache included
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_limit: Option<u64>,
    /// Keeps the files of the engines
    #[arg(long)]
    keep: bool,
    /// Seed of keys, values and operations
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HighInsertArgs {
    /// Entries to insert
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "50M")]
    entries: u64,
    /// Entries of one call
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1000")]
    batch: u64,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BootstrapArgs {
    /// Entries to load first
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "10M")]
    entries: u64,
    /// Operations
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "10M")]
    ops: u64,
    /// Per cent of the looked-up keys that are absent
    #[arg(long, value_name = "PERCENT", default_value = "10",
        value_parser = clap::value_parser!(u64).range(0..=100))]
    absent: u64,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// File of the trace
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// Program that wrote the trace; by default the only one whose dialect reads the first records
    #[arg(long, value_name = "DIALECT")]
    dialect: Option<DialectArg>,
    /// Maximum number of operations
    #[arg(long, value_name = "N", value_parser = args::count)]
    limit: Option<u64>,
    /// Skips the comparison of answers with the recorded ones
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    common: CommonArgs,
}

impl Index {
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::HighInsert(_) => "bench index high-insert",
            Self::Bootstrap(_) => "bench index bootstrap",
            Self::Replay(_) => "bench index replay",
        }
    }

    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match self {
            Self::HighInsert(args) => args.run(self.command()),
            Self::Bootstrap(args) => args.run(self.command()),
            Self::Replay(args) => args.run(self.command()),
        }
    }
}

impl CommonArgs {
    fn common(&self) -> Common {
        Common {
            engines: self.engine.iter().copied().map(Engine::from).collect(),
            seed: self.seed,
            flush_every: self.flush_every.unwrap_or(FLUSH_EVERY),
            memory_budget: self.memory_budget,
            sample: self.sample,
            keep: self.keep,
        }
    }

    /// Runs `work` under the memory limit.
    fn measured<T>(
        &self,
        work: impl FnOnce(Option<&MemoryLimit>, &mut Progress) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut progress = Progress::new(self.output.quiet);
        let limit = self.memory_limit.map(MemoryLimit::set).transpose()?;
        work(limit.as_ref(), &mut progress)
    }

    /// Prints a report with its header.
    fn report<T: Serialize>(
        &self,
        command: &str,
        started: &Started,
        (report, is_interrupted): (&T, bool),
        lines: &[(&str, String)],
    ) -> Result<u8, Failure> {
        let interrupted = is_interrupted.then(|| Failure::interrupted("interrupted"));
        let headed = started.report(report, &self.store, is_interrupted);
        let text = output::aligned(lines);
        output::checked(command, self.output.json, &headed, &text, interrupted.as_ref())
    }
}

impl HighInsertArgs {
    fn run(&self, command: &str) -> Result<u8, Failure> {
        let started = Started::now();
        let Self { entries, batch, .. } = *self;
        let options = high_insert::Options { entries, batch, common: self.common.common() };
        let report = self.common.measured(|limit, progress| {
            Ok(high_insert::run(&self.common.store, limit, &options, progress)?)
        })?;
        let lines = vec![("entries", format!("{entries}, {batch} a call"))];
        let lines = lines_of(lines, &report.run);
        self.common.report(command, &started, (&report, report.run.is_interrupted), &lines)
    }
}

impl BootstrapArgs {
    fn run(&self, command: &str) -> Result<u8, Failure> {
        let started = Started::now();
        let Self { entries, ops, absent, .. } = *self;
        let common = self.common.common();
        let options = bootstrap::Options { entries, ops, absent_percent: absent, common };
        let report = self.common.measured(|limit, progress| {
            Ok(bootstrap::run(&self.common.store, limit, &options, progress)?)
        })?;
        let lines = vec![("entries", format!("{entries}, {absent} % of lookups absent"))];
        let lines = lines_of(lines, &report.run);
        self.common.report(command, &started, (&report, report.run.is_interrupted), &lines)
    }
}

impl ReplayArgs {
    fn run(&self, command: &str) -> Result<u8, Failure> {
        let started = Started::now();
        if !self.trace.exists() {
            return Err(Failure::usage(format!("{}: no such file", self.trace.display())));
        }

        let options = replay::Options {
            dialect: self.dialect.map(Dialect::from),
            limit: self.limit,
            check: !self.no_check,
            trace_flushes: self.common.flush_every.is_none(),
            common: self.common.common(),
        };

        let report = self.common.measured(|limit, progress| {
            Ok(replay::run(&self.common.store, &self.trace, limit, &options, progress)?)
        })?;
        let lines = vec![("dialect", report.dialect.to_owned())];
        let lines = lines_of(lines, &report.run);

        self.common.report(command, &started, (&report, report.run.is_interrupted), &lines)
    }
}

/// Lines of the report that all workloads share, for people.
fn lines_of(
    mut lines: Vec<(&'static str, String)>,
    run: &EnginesReport,
) -> Vec<(&'static str, String)> {
    lines.extend(memory_lines(&run.memory));
    lines.extend(run.engines.iter().flat_map(engine_lines));
    lines.extend(run.warnings.iter().map(|warning| ("warning", warning.clone())));
    lines
}

fn memory_lines(memory: &MemoryReport) -> Vec<(&'static str, String)> {
    let by = memory.enforced_by.map_or("as a whole not enforced".to_owned(), |by| {
        let cache = memory.page_cache_peak_bytes.unwrap_or(0);
        format!("enforced by {by}, page cache up to {}", output::bytes(cache))
    });
    vec![("memory budget", format!("{}, {by}", output::bytes(memory.budget_bytes)))]
}

fn call_text(call: &CallReport) -> String {
    let CallReport { ops_per_call, latency_us: us } = call;
    let quantiles = format!("p99 {:.0}, p99.9 {:.0}, p99.99 {:.0}", us.p99, us.p999, us.p9999);
    let calls = format!("{} of {ops_per_call}", us.ops);
    format!("{:.0} us, {quantiles}, longest {:.0} ({calls})", us.p50, us.max)
}

fn find_text(find: &FindReport) -> String {
    let pages = find
        .page_reads_per_find
        .map_or(String::new(), |pages| format!(", {pages:.3} pages read each"));
    let rate = find.finds_per_s;
    let us = &find.latency_us;
    format!("{rate:.0}/s{pages}, p99 {:.0} us, longest {:.0}", us.p99, us.max)
}

fn engine_lines(report: &EngineReport) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("", String::new()),
        ("engine", report.engine.name().to_owned()),
        ("operations", format!("{} in {:.1} s", report.ops, report.wall_s)),
        ("speed", format!("{:.0} operations/s", report.ops_per_s)),
    ];

    // The text shows ten points of the object.
    let points = &report.curve;
    let every = points.len().div_ceil(10).max(1);
    let rates: Vec<_> = points
        .iter()
        .skip(every - 1)
        .step_by(every)
        .map(|point| format!("{:.0} k", point.ops_per_s / 1e3))
        .collect();

    lines.push(("over time", rates.join(", ")));

    if let Some(load_s) = report.load_s {
        lines.push(("loading", format!("{load_s:.1} s")));
    }

    let calls = &report.calls;
    for (name, call) in [
        ("a call to replace", &calls.replace),
        ("a call to remove", &calls.remove),
        ("a call to find", &calls.find),
        ("a call to ask", &calls.mem),
        ("a durable flush", &calls.flush),
    ] {
        lines.extend(call.as_ref().map(|call| (name, call_text(call))));
    }

    if let (Some(read), Some(written)) = (report.io.read_bytes_per_op, report.io.write_bytes_per_op)
    {
        let times = report.io.write_amplification.unwrap_or(0.0);
        let text = format!("{read:.0} read, {written:.0} written, {times:.2} x");
        lines.push(("bytes an operation", text));
    }

    if let Some(io) = &report.io.engine {
        let reads = output::bytes(io.read_bytes);
        let writes = output::bytes(io.write_bytes);
        lines
            .push(("by the engine", format!("{reads} read, {writes} written, {} syncs", io.syncs)));
    }

    if let (Some(before), Some(peak)) = (report.rss_before_bytes, report.rss_peak_bytes) {
        let before = output::bytes(before);
        let peak = output::bytes(peak);
        lines.push(("resident", format!("{peak} at most, {before} before")));
    }

    let fill = report.fill.unwrap_or(0.0) * 100.0;
    lines.push(("store", format!("{}, {fill:.0} % full", output::bytes(report.store_bytes))));

    if let Some(tree) = &report.tree {
        let text = format!("height {}, pages by level {:?}", tree.height, tree.level_pages);
        lines.push(("tree", text));
    }

    if let Some(check) = &report.check {
        lines.push(("find", find_text(&check.present)));
        lines.push(("find, absent", find_text(&check.absent)));
    }

    lines.push(("results", report.result_hash.clone()));

    lines
}
