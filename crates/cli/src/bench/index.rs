//! `terrane bench index`: engines side by side as an index that finds objects by their hashes.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use terrane_bench::confine::MemoryLimit;
use terrane_bench::host::Host;
use terrane_bench::workload::index::map::Engine;
use terrane_bench::workload::index::report::{CallReport, EngineReport, FindReport, MemoryReport};
use terrane_bench::workload::index::{Common, high_insert};

use super::head::{Head, Started};
use crate::args;
use crate::exit::Failure;
use crate::output;
use crate::progress::Progress;

/// What is done.
#[derive(Debug, Subcommand)]
pub(crate) enum Index {
    /// Insert random keys into an empty index
    #[command(after_help = HIGH_INSERT_EXAMPLES)]
    HighInsert(HighInsertArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane bench index high-insert --store /tmp/terrane-index --entries 1M
  terrane bench index high-insert --store /tmp/terrane-index --engine btree,lmdb --memory-limit 320MiB";

const HIGH_INSERT_EXAMPLES: &str = "\
Examples:
  50 million entries of 32 + 13 bytes, with 256 MiB:
    terrane bench index high-insert --store /tmp/terrane-index
  Beside LMDB, whose memory is the page cache, under a limit for all:
    terrane bench index high-insert --store DIR --engine btree,lmdb --memory-limit 320MiB --json
  The same and keep what was written, to look at:
    terrane bench index high-insert --store DIR --entries 1M --keep
    terrane inspect DIR/btree

Each engine works in a directory of its own below the store, which must not be there yet and is removed at the end. A
durable flush is made every so many operations. At the end a sample is found; an entry that is missing or wrong ends it
with exit code 1. After Ctrl-C the report is of what was measured until then.";

/// An engine, by its name.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum EngineArg {
    /// Terrane's B+tree
    Btree,
    /// A table of Terrane's, in a store with a log
    Lsm,
    /// LMDB, a commit for each call, synced at flushes
    Lmdb,
    /// A sorted map in memory: what the workload itself takes
    Memory,
}

impl From<EngineArg> for Engine {
    fn from(engine: EngineArg) -> Self {
        match engine {
            EngineArg::Btree => Self::Btree,
            EngineArg::Lsm => Self::Lsm,
            EngineArg::Lmdb => Self::Lmdb,
            EngineArg::Memory => Self::Memory,
        }
    }
}

/// What every workload takes.
#[derive(Debug, Args)]
struct CommonArgs {
    /// Directory to work in; made if it is missing
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// Engines, measured one after the other
    #[arg(long, value_name = "ENGINE,...", value_delimiter = ',', default_value = "btree")]
    engine: Vec<EngineArg>,
    /// Operations after which all is made durable
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "10k")]
    flush_every: u64,
    /// Finds at the end of keys that are there, and as many of others
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "100k")]
    sample: u64,
    /// Memory of each engine that has a budget
    #[arg(long, value_name = "SIZE", value_parser = args::size, default_value = "256MiB")]
    memory_budget: u64,
    /// Put this process, page cache included, under a control group with so much memory
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_limit: Option<u64>,
    /// Keep what the engines have written
    #[arg(long)]
    keep: bool,
    /// Seed of keys, values and operations
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
    /// Write one JSON object to standard output at the end
    #[arg(long)]
    json: bool,
    /// Show no progress bar
    #[arg(long)]
    quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HighInsertArgs {
    /// Entries to insert
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "50M")]
    entries: u64,
    /// Entries of a call
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1000")]
    batch: u64,
    #[command(flatten)]
    common: CommonArgs,
}

impl Index {
    fn common(&self) -> &CommonArgs {
        match self {
            Self::HighInsert(args) => &args.common,
        }
    }

    pub(crate) fn json(&self) -> bool {
        self.common().json
    }

    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::HighInsert(_) => "bench index high-insert",
        }
    }

    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match self {
            Self::HighInsert(args) => args.run(self.command()),
        }
    }
}

impl CommonArgs {
    fn common(&self) -> Common {
        Common {
            engines: self.engine.iter().copied().map(Engine::from).collect(),
            seed: self.seed,
            flush_every: self.flush_every,
            memory_budget: self.memory_budget,
            sample: self.sample,
            keep: self.keep,
        }
    }

    /// Measures under the limit.
    fn measured<T>(
        &self,
        work: impl FnOnce(Option<&MemoryLimit>, &mut Progress) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut progress = Progress::new(self.quiet)?;
        let limit = self.memory_limit.map(MemoryLimit::set).transpose()?;
        work(limit.as_ref(), &mut progress)
    }

    /// Writes a report with its head.
    fn tell<T: Serialize>(
        &self,
        command: &str,
        started: &Started,
        (report, is_interrupted): (&T, bool),
        lines: &[(&str, String)],
    ) -> Result<u8, Failure> {
        let interrupted = is_interrupted.then(|| Failure::interrupted("interrupted"));
        let head = if is_interrupted { started.head_interrupted() } else { started.head() };
        let told = Told { head, report, host: Host::of(&self.store) };
        let text = output::aligned(lines);
        output::checked(command, self.json, &told, &text, interrupted.as_ref())
    }
}

/// A report with its head.
#[derive(Serialize)]
struct Told<'a, T> {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    report: &'a T,
    host: Host,
}

impl HighInsertArgs {
    fn run(&self, command: &str) -> Result<u8, Failure> {
        let started = Started::now();
        let Self { entries, batch, .. } = *self;
        let options = high_insert::Options { entries, batch, common: self.common.common() };
        let report = self.common.measured(|limit, progress| {
            Ok(high_insert::run(&self.common.store, limit, &options, progress)?)
        })?;
        let mut lines = vec![("entries", format!("{entries}, {batch} a call"))];
        lines.extend(memory_lines(&report.memory));
        lines.extend(report.engines.iter().flat_map(engine_lines));
        lines.extend(report.warnings.iter().map(|warning| ("warning", warning.clone())));
        self.common.tell(command, &started, (&report, report.is_interrupted), &lines)
    }
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
    let (rate, us) = (find.finds_per_s, &find.latency_us);
    format!("{rate:.0}/s{pages}, p99 {:.0} us, longest {:.0}", us.p99, us.max)
}

fn engine_lines(report: &EngineReport) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("", String::new()),
        ("engine", report.engine.name().to_owned()),
        ("operations", format!("{} in {:.1} s", report.ops, report.wall_s)),
        ("speed", format!("{:.0} operations/s", report.ops_per_s)),
    ];
    // Ten of the points that the object has.
    let points = &report.curve;
    let every = points.len().div_ceil(10).max(1);
    let rates: Vec<_> = points
        .iter()
        .skip(every - 1)
        .step_by(every)
        .map(|point| format!("{:.0} k", point.ops_per_s / 1e3))
        .collect();
    lines.push(("over time", rates.join(", ")));
    if let Some(call) = &report.calls.replace {
        lines.push(("a call to replace", call_text(call)));
    }
    if let Some(call) = &report.calls.flush {
        lines.push(("a durable flush", call_text(call)));
    }
    if let (Some(read), Some(written)) = (report.io.read_bytes_per_op, report.io.write_bytes_per_op)
    {
        let times = report.io.write_amplification.unwrap_or(0.0);
        let text = format!("{read:.0} read, {written:.0} written, {times:.2} x");
        lines.push(("bytes an operation", text));
    }
    if let Some(io) = &report.io.engine {
        let (reads, writes) = (output::bytes(io.read_bytes), output::bytes(io.write_bytes));
        lines
            .push(("by the engine", format!("{reads} read, {writes} written, {} syncs", io.syncs)));
    }
    if let (Some(before), Some(peak)) = (report.rss_before_bytes, report.rss_peak_bytes) {
        let (before, peak) = (output::bytes(before), output::bytes(peak));
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
