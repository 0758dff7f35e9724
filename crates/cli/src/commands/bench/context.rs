//! `terrane bench context`: blocks of operations on versioned trees of the context store, one
//! commit each.
//!
//! The JSON object is described in `docs/schema/bench-context.json`, and field by field in
//! `terrane_bench::workloads::context::report`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use terrane::io::Access;
use terrane_bench::instruments::host::Host;
use terrane_bench::instruments::limits::MemoryLimit;
use terrane_bench::workloads::context::report::{
    InMemoryPhase, InMemoryReport, PhaseReport, Report,
};
use terrane_bench::workloads::context::run::{self, Collection, Options};
use terrane_replay::engines::context_store::Settings;
use terrane_replay::latency::SpreadReport;

use super::choices::ProfileArg;
use super::head::{Head, Started};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;
use crate::ui::text::grouped;

pub(super) const EXAMPLES: &str = "\
Examples:
  1,000 blocks of the protocol Lima over a million values, each commit durable:
    terrane bench context --store /tmp/terrane-context
  The same, then again while a second thread collects old commits:
    terrane bench context --store /tmp/terrane-context --gc
  What hashes and versions cost: the same blocks in memory, and on a sorted map:
    terrane bench context --store /tmp/terrane-context --in-memory
  A large state, loaded once and used again, for a program to read:
    terrane bench context --store DIR --values 10M --keep --json
    terrane bench context --store DIR --values 10M --profile 2021 \\
      --blocks 5000 --json

The store is DIR/context. It is created if it is missing, and removed at the end unless --keep is \
given or it existed before. The first blocks warm up and are not measured. Every read is compared \
with its expected value; a wrong value ends the run with exit code 1. The hashing floor is the \
time to hash as many preimages of the same sizes as a block changes. After Ctrl-C the report \
covers the measurement until then.";

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub(crate) struct ContextArgs {
    /// Directory to work in; created if it is missing
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Operations of a block
    #[arg(long, value_enum, default_value_t = ProfileArg::Lima)]
    profile: ProfileArg,
    /// Values of the starting state
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1M")]
    values: u64,
    /// Blocks to measure; --gc measures the same number again
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1000")]
    blocks: u64,
    /// Blocks to warm up with, which are not measured
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "100")]
    warm_up: u64,
    /// Measures a second time, while a second thread collects old commits
    #[arg(long)]
    gc: bool,
    /// Blocks between the beginnings of two collections, by default 100; a collection waits for the
    /// end of the one before. Implies --gc
    #[arg(long, value_name = "N", value_parser = args::positive_count)]
    gc_every: Option<u64>,
    /// Number of the newest commits that a collection keeps
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "100")]
    gc_distance: u64,
    /// Maximum bytes that a collection reads and writes in a second
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    gc_rate: Option<u64>,
    /// Memory for decoded objects
    #[arg(long, value_name = "SIZE", value_parser = args::size, default_value = "256MiB")]
    memory_budget: u64,
    /// Memory limit of a control group for this process, page cache included
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_limit: Option<u64>,
    /// Threads that hash a commit
    #[arg(long, value_name = "N", default_value = "2",
        value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Prefetches the nodes on the paths of a block before its operations
    #[arg(long)]
    prefetch: bool,
    /// Reads with direct I/O, past the page cache
    #[arg(long)]
    direct: bool,
    /// Makes commits durable after the call returns, some time later
    #[arg(long)]
    relaxed: bool,
    /// Builds a block while the one before becomes durable
    #[arg(long, conflicts_with = "relaxed")]
    pipelined: bool,
    /// Then builds the same blocks without a disk, on a context tree in memory and on a sorted map
    /// from whole paths to values
    #[arg(long)]
    in_memory: bool,
    /// Keeps the store
    #[arg(long)]
    keep: bool,
    /// Seed of values and blocks
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Default number of blocks between two collections.
const GC_EVERY: u64 = 100;

/// Report with its header.
#[derive(Serialize)]
struct ContextReport {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    report: Report,
    memory_enforced: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_cache_peak_bytes: Option<u64>,
    host: Host,
}

impl ContextArgs {
    fn options(&self) -> Options {
        let every = self.gc_every.or(self.gc.then_some(GC_EVERY));
        let collection = every.map(|every| Collection {
            every,
            distance: self.gc_distance,
            bytes_per_s: self.gc_rate,
        });

        let settings = Settings {
            cache_bytes: usize::try_from(self.memory_budget).unwrap_or(usize::MAX),
            is_durable: !self.relaxed,
            hash_threads: usize::from(self.threads),
            access: if self.direct { Access::Direct } else { Access::Buffered },
        };

        Options {
            seed: self.seed,
            values: self.values,
            profile: self.profile.into(),
            warm_up: self.warm_up,
            blocks: self.blocks,
            settings,
            pipelined: self.pipelined,
            prefetch: self.prefetch,
            collection,
            in_memory: self.in_memory,
            keep: self.keep,
        }
    }

    pub(super) fn run(&self, command: &str) -> Result<u8, Failure> {
        let started = Started::now();
        let mut progress = Progress::new(self.output.quiet);
        let limit = self.memory_limit.map(MemoryLimit::set).transpose()?;
        let report = run::run(&self.store, &self.options(), &mut progress)?;
        drop(progress);
        let interrupted = report.is_interrupted.then(|| Failure::interrupted("interrupted"));

        let head = if report.is_interrupted { started.head_interrupted() } else { started.head() };
        let whole = ContextReport {
            head,
            memory_enforced: limit.is_some(),
            page_cache_peak_bytes: limit.as_ref().and_then(MemoryLimit::page_cache_peak_bytes),
            host: Host::of(&self.store),
            report,
        };

        let text = output::aligned(&lines(&whole.report));

        output::checked(command, self.output.json, &whole, &text, interrupted.as_ref())
    }
}

fn lines(report: &Report) -> Vec<(&'static str, String)> {
    let load = &report.load;
    let loaded = if load.reused { "found" } else { "loaded" };
    let mut lines = vec![
        ("profile", report.profile.to_owned()),
        (
            "state",
            format!(
                "{} values {loaded} in {:.1} s, {} after a collection of {:.1} s",
                report.values,
                load.wall_s,
                output::bytes(load.store_bytes),
                load.collect_s
            ),
        ),
    ];

    lines.extend(report.phases.iter().flat_map(phase_lines));

    if let Some(InMemoryReport { tree, map }) = &report.in_memory {
        lines.push(("", String::new()));
        lines.extend(in_memory_lines("tree in memory", tree));
        lines.extend(in_memory_lines("sorted map", map));
        let ratio = map.ops_per_s / tree.ops_per_s.max(f64::MIN_POSITIVE);
        let whole = map.blocks_per_s / tree.blocks_per_s.max(f64::MIN_POSITIVE);
        lines.push((
            "map to tree",
            format!("{ratio:.1} times the operations/s, {whole:.1} times the blocks/s"),
        ));
    }

    let bare = &report.bare;
    lines.extend([
        ("", String::new()),
        (
            "bare host",
            format!(
                "append of {} with fdatasync {}",
                output::bytes(bare.append_bytes),
                spread(&bare.append_sync_ms)
            ),
        ),
        ("", format!("idle timer late by {}", spread(&bare.idle_late_ms))),
        ("", format!("16 MiB of BLAKE2b on one core {:.1} ms", bare.loop_ms)),
    ]);

    let files = &report.files;
    let chunks = format!("{} in {} chunks", output::bytes(files.chunk_bytes), files.chunks);
    lines.extend([
        ("", String::new()),
        ("files", format!("{chunks}, index {}", output::bytes(files.index_bytes))),
        ("last commit", report.last_commit.clone()),
    ]);

    lines
}

fn in_memory_lines(
    name: &'static str,
    phase: &InMemoryPhase,
) -> impl Iterator<Item = (&'static str, String)> {
    let speed = format!(
        "{} operations/s, {:.1} blocks/s; loaded in {:.1} s",
        grouped(phase.ops_per_s as u64),
        phase.blocks_per_s,
        phase.load_s
    );
    let operations = ("operations", spread(&phase.operations_latency_ms));
    let commit = phase.commit_latency_ms.as_ref().map(|commit| ("commit", spread(commit)));
    [(name, speed), operations].into_iter().chain(commit)
}

/// Latencies of long operations.
pub(super) fn spread(ms: &SpreadReport) -> String {
    let SpreadReport { mean, stddev, p50, p99, p999, max, .. } = ms;
    format!(
        "{mean:.2} ± {stddev:.2} ms, p50 {p50:.2}, p99 {p99:.2}, p99.9 {p999:.2}, longest {max:.2}"
    )
}

fn phase_lines(phase: &PhaseReport) -> Vec<(&'static str, String)> {
    let size = |bytes: f64| output::bytes(bytes as u64);
    let known = |bytes: Option<f64>| bytes.map_or("unknown".to_owned(), size);
    let with = if phase.collecting { ", with collections" } else { "" };
    let split = &phase.split_ms;
    let floor = &phase.hashing_floor;
    let each = &phase.per_block;
    let tps = phase.tps.map_or(String::new(), |tps| format!("{tps:.0} transactions/s, "));
    let tps_cpu = phase
        .tps_cpu
        .map_or(String::new(), |tps| format!("; {tps:.0} transactions a second of processor time"));

    let mut lines = vec![
        ("", String::new()),
        ("blocks", format!("{} in {:.1} s{with}", phase.blocks, phase.wall_s)),
        ("speed", format!("{tps}{:.1} blocks/s{tps_cpu}", phase.blocks_per_s)),
        ("block", spread(&phase.block_latency_ms)),
        ("operations", spread(&phase.operations_latency_ms)),
        ("commit", spread(&phase.commit_latency_ms)),
        (
            "of a block",
            format!(
                "operations {:.2} ms, hashing {:.2}, encoding {:.2}, writing {:.2}, syncing {:.2}, rest {:.2}",
                split.operations, split.hash, split.encode, split.write, split.sync, split.rest
            ),
        ),
        (
            "hashing floor",
            format!(
                "{:.2} ms on {} threads, {:.2} on one, for {:.0} preimages; a block takes {:.2} times as long",
                floor.all_threads_ms,
                floor.threads,
                floor.one_thread_ms,
                floor.preimages,
                phase.over_floor
            ),
        ),
        (
            "written",
            format!(
                "{:.0} nodes and {:.0} values, {} a block; {} to the device",
                each.nodes,
                each.values,
                size(each.appended_bytes),
                known(each.write_bytes)
            ),
        ),
        (
            "read",
            format!(
                "{:.1} objects, {:.1} batches ahead, {} a block; {} from the device",
                each.object_reads,
                each.read_batches,
                size(each.object_read_bytes),
                known(each.read_bytes)
            ),
        ),
    ];

    if let Some(peak) = phase.rss_peak_bytes {
        lines.push(("resident", format!("{} at most", output::bytes(peak))));
    }

    if let Some(gc) = &phase.collections {
        let freed = format!("{} commits, {} freed", gc.commits, output::bytes(gc.freed_bytes));
        let text =
            format!("{} in {:.1} s, longest {:.1}; {freed}", gc.count, gc.wall_s, gc.longest_s);
        lines.push(("collections", text));
        let live = output::bytes(gc.live_bytes);
        let peak = output::bytes(gc.store_peak_bytes);
        lines.push(("on disk", format!("{peak} at most, {live} of older chunks in use")));
    }

    lines.push(("store", output::bytes(phase.store_bytes)));

    lines
}
