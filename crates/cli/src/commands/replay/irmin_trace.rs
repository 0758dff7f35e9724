//! `terrane replay irmin-trace`: replays operations on versioned trees, recorded by irmin's
//! benchmark or by Octez, over the context store.
//!
//! # JSON
//!
//! | field               | meaning                                                                    |
//! |---------------------|----------------------------------------------------------------------------|
//! | `trace`             | which kind the trace is of: `IrmRepBT`, `TezosRep`, `TezosRaw`             |
//! | `commits`, `ops`    | commits, and operations of all kinds                                       |
//! | `operations`        | operations by kind: `checkouts`, `adds`, `removes`, `copies`, `finds`, `mems`, `mem_trees`, `commits`, `find_trees`, `add_trees`, `folds`, `others` |
//! | `checks_passed`     | answers and hashes that were compared                                      |
//! | `tps`, `transactions` | transactions a second of `wall_s`, and how many; only `TezosRep` counts them: else a commit is taken to have `transactions_per_block`, which is null otherwise, and `transactions_assumed` is true |
//! | `block_latency_ms`  | building a block and committing it: `mean`, `stddev`, `p50`, `p90`, `p99`, `p999`, `max` |
//! | `commit_latency_ms` | the commits alone                                                          |
//! | `collections`, `collection_ms` | how often old commits were collected, and how long that took    |
//! | `last_commit`       | its hash; null if there was none                                           |
//! | `truncated_at`      | offset of the row that the trace ends in, if it is cut; else null          |
//! | `wall_s`, `cpu_s`   | of the replay, in seconds; `cpu_s` of all threads                          |
//! | `rss_bytes`, `rss_peak_bytes`, `store_bytes` | memory and files at the end                       |
//! | `read_bytes`, `write_bytes` | that this process made block devices read and write                |

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use terrane_bench::instruments::meter::{self, Usage};
use terrane_replay::engines::context::ContextEngine;
use terrane_replay::engines::context_store::{ContextStore, Settings};
use terrane_replay::latency::SpreadReport;
use terrane_replay::traces::container::Family;
use terrane_replay::traces::irmin::{self, Collection, Options, Report};
use terrane_replay::traces::octez;

use super::check_inputs;
use crate::commands::context;
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

/// Examples at the end of the help.
pub(super) const EXAMPLES: &str = "\
Examples:
  Replay a trace into a new store, comparing every answer and every hash:
    terrane replay irmin-trace tezos.repbt --store /tmp/context
  Its beginning, with a collection of old commits after every 1,000 blocks:
    terrane replay irmin-trace tezos.repbt --store DIR --until 10k \\
      --gc-every 1000 --gc-distance 100

The first bytes tell three kinds of traces apart: IrmRepBT, of irmin's benchmark; TezosRep, of \
Octez, for replays; TezosRaw, of Octez, as recorded, without the operations that it records \
incompletely. The first answer or hash that differs from the recorded one ends the replay with \
exit code 1; the message names the block, its level, and row or event, counted from 0. A trace \
that is cut in its last row is replayed up to there. A trace that begins in the middle of a chain \
needs a store with the commits before it: see `terrane context import`.";

/// Length of the magic bytes that tell the kinds of traces apart.
const MAGIC_BYTES: u64 = 8;

#[derive(Debug, Args)]
pub(crate) struct IrminTraceArgs {
    /// File of the trace
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// Directory of the context store; created if it is missing
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Maximum number of commits; for traces of Octez, of blocks
    #[arg(long, value_name = "N", value_parser = args::count)]
    until: Option<u64>,
    /// Skips the comparison of commit hashes with the recorded ones
    #[arg(long)]
    no_check: bool,
    /// Commits between two collections of old commits
    #[arg(long, value_name = "N", value_parser = args::positive_count)]
    gc_every: Option<u64>,
    /// Number of the newest commits that a collection keeps
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1000",
        requires = "gc_every")]
    gc_distance: u64,
    /// Memory for decoded objects
    #[arg(long, value_name = "SIZE", value_parser = args::size, default_value = "256MiB")]
    memory_budget: u64,
    /// Makes commits durable some time later, not before the call returns
    #[arg(long)]
    relaxed: bool,
    /// Transactions of a commit, if the trace does not count them; 46 are those of a block of the
    /// protocol Lima
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "46")]
    transactions: u64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct ReplayReport {
    engine: &'static str,
    trace: String,
    commits: u64,
    ops: u64,
    operations: irmin::Counts,
    checks_passed: u64,
    tps: f64,
    transactions: u64,
    transactions_per_block: Option<u64>,
    transactions_assumed: bool,
    ops_per_s: f64,
    block_latency_ms: SpreadReport,
    commit_latency_ms: SpreadReport,
    collections: u64,
    collection_ms: SpreadReport,
    last_commit: Option<String>,
    truncated_at: Option<u64>,
    wall_s: f64,
    cpu_s: Option<f64>,
    rss_bytes: Option<u64>,
    rss_peak_bytes: Option<u64>,
    store_bytes: u64,
    read_bytes: Option<u64>,
    write_bytes: Option<u64>,
}

impl IrminTraceArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        check_inputs(std::slice::from_ref(&self.trace))?;
        let shown = self.trace.display();
        let failed = |error| Failure::of_file(&self.trace, &error);
        let mut file = BufReader::new(File::open(&self.trace).map_err(failed)?);
        let mut start = Vec::new();
        (&mut file).take(MAGIC_BYTES).read_to_end(&mut start).map_err(failed)?;

        let family = Family::of(&start);
        if family.is_none() && start.len() as u64 == MAGIC_BYTES {
            let found = String::from_utf8_lossy(&start);
            let message = format!("not a trace of irmin or Octez: the file begins with {found:?}");
            return Err(Failure::usage(message).about(&shown.to_string()));
        }

        // The reader of a trace refuses a file that is too short for any kind.
        let family = family.unwrap_or(Family::Irmin);
        let input = start.as_slice().chain(file);
        let settings = Settings {
            cache_bytes: usize::try_from(self.memory_budget).unwrap_or(usize::MAX),
            is_durable: !self.relaxed,
            ..Settings::default()
        };

        let distance = self.gc_distance;
        let options = Options {
            until: self.until,
            ignores_hashes: self.no_check,
            collection: self.gc_every.map(|every| Collection { every, distance }),
        };

        let mut progress = Progress::new(self.output.quiet);
        let mut engine = ContextStore::open(&self.store, settings)?;
        context::note(&self.store, engine.store().recovery());
        let before = Usage::now();

        let replayed =
            match family {
                Family::Irmin => irmin::replay(input, &mut engine, &options, &mut progress)
                    .map_err(Failure::from),
                Family::Replayable => octez::replay(input, engine.store(), &options, &mut progress)
                    .map_err(Failure::from),
                Family::Raw => octez::replay_raw(input, engine.store(), &options, &mut progress)
                    .map_err(Failure::from),
            };

        drop(progress);

        // Blocks before the failed one are good, and stay.
        let closed = engine.close();
        let report = replayed.map_err(|failure| failure.about(&shown.to_string()))?;
        closed?;
        let usage = Usage::now().zip(before).map(|(now, before)| now.since(&before));
        let summary = self.summary(family, &report, usage)?;

        output::report(command, self.output.json, &summary, &summary.lines())
    }

    fn summary(
        &self,
        family: Family,
        report: &Report,
        usage: Option<Usage>,
    ) -> Result<ReplayReport, Failure> {
        let store_bytes = meter::store_bytes(&self.store)
            .map_err(|error| Failure::of_file(&self.store, &error))?;
        let each_s = |count: u64| count as f64 / report.wall_s.max(f64::MIN_POSITIVE);
        let commits = report.counts.commits;
        let ops = report.counts.total();
        let assumed = commits.saturating_mul(self.transactions);
        let transactions = report.transactions.unwrap_or(assumed);

        Ok(ReplayReport {
            engine: "context",
            trace: family.to_string(),
            commits,
            ops,
            operations: report.counts,
            checks_passed: report.checks_passed,
            tps: each_s(transactions),
            transactions,
            transactions_per_block: report.transactions.is_none().then_some(self.transactions),
            transactions_assumed: report.transactions.is_none(),
            ops_per_s: each_s(ops),
            block_latency_ms: report.blocks.spread(),
            commit_latency_ms: report.commits.spread(),
            collections: report.collections.report().ops,
            collection_ms: report.collections.spread(),
            last_commit: report.last_commit.map(|commit| commit.to_string()),
            truncated_at: report.truncated_at,
            wall_s: report.wall_s,
            cpu_s: usage.map(|usage| usage.cpu_s),
            rss_bytes: meter::rss_bytes(),
            rss_peak_bytes: meter::rss_peak_bytes(),
            store_bytes,
            read_bytes: usage.map(|usage| usage.read_bytes),
            write_bytes: usage.map(|usage| usage.write_bytes),
        })
    }
}

impl ReplayReport {
    fn lines(&self) -> Vec<(&'static str, String)> {
        let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), output::bytes);
        let spread = |ms: &SpreadReport| {
            let SpreadReport { mean, stddev, p50, p99, max, .. } = ms;
            format!("{mean:.2} ± {stddev:.2} ms, p50 {p50:.2}, p99 {p99:.2}, longest {max:.2}")
        };

        let transactions = match self.transactions_per_block {
            Some(count) => format!("{count} a block assumed"),
            None => format!("{} in all", self.transactions),
        };

        let mut lines = vec![
            ("trace", self.trace.clone()),
            ("last commit", self.last_commit.clone().unwrap_or("none".to_owned())),
            ("blocks", self.commits.to_string()),
            ("operations", format!("{} ({:.0}/s)", self.ops, self.ops_per_s)),
            ("checks passed", self.checks_passed.to_string()),
            ("transactions", format!("{:.0}/s, {transactions}", self.tps)),
            ("block", spread(&self.block_latency_ms)),
            ("commit", spread(&self.commit_latency_ms)),
        ];

        if self.collections > 0 {
            lines.push(("collection", spread(&self.collection_ms)));
        }

        if let Some(offset) = self.truncated_at {
            lines.push(("cut", format!("the trace ends in a row that begins at byte {offset}")));
        }

        lines.extend([
            ("time", format!("{:.3} s", self.wall_s)),
            ("memory", known(self.rss_bytes)),
            ("store", output::bytes(self.store_bytes)),
            (
                "device",
                format!("{} read, {} written", known(self.read_bytes), known(self.write_bytes)),
            ),
        ]);

        lines
    }
}
