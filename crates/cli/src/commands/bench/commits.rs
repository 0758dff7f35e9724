//! `terrane bench commits`: latencies of small commits, alone or beside other work of the store.

use clap::Args;
use terrane::lsm::Durability;
use terrane_bench::workloads::commits::{self, Beside, Merges, Options};
use terrane_replay::latency::LatencyReport;

use super::CommonArgs;
use crate::ui::args;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  Eight threads, each with a table of its own, beside slow work:
    terrane bench commits --store /tmp/terrane-bench --threads 8 \\
      --beside compaction,checkpoint,range-delete
  Durable commits of one thread, and of eight that share their fsyncs:
    terrane bench commits --store /tmp/terrane-bench --durability each
    terrane bench commits --store /tmp/terrane-bench --durability group \\
      --threads 8
  Pages of the longest commit, with compaction in shares and at once:
    terrane bench commits --store DIR --durability none --tables 1
    terrane bench commits --store DIR --durability none --tables 1 \\
      --merges at-once";

args::choices! {
    /// Durability of the commits.
    enum DurabilityArg => Durability {
        /// The store has no WAL
        None => Durability::None,
        /// Commits survive the end of the process
        Buffered => Durability::Buffered,
        /// Commits survive a loss of power after a wait; threads that wait together share an fsync
        Group => Durability::Group,
        /// Commits survive a loss of power once their call returns
        Each => Durability::Each,
    }
}

args::choices! {
    /// Other work of the store.
    enum BesideArg => Beside {
        /// A table that flushes and compacts all the time
        Compaction => Beside::Compaction,
        /// Checkpoints, one after the other
        Checkpoint => Beside::Checkpoint,
        /// Range deletes in a second table
        RangeDelete => Beside::RangeDelete,
    }
}

args::choices! {
    /// Schedule of compaction.
    enum MergesArg => Merges {
        /// In equal shares inside the commits
        Shares => Merges::Shares,
        /// On the background thread of the session
        Background => Merges::Background,
        /// In one piece, when the compaction is due
        AtOnce => Merges::AtOnce,
    }
}

#[derive(Debug, Args)]
pub(crate) struct CommitsArgs {
    /// Threads that commit
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1")]
    threads: u64,
    /// Tables that the threads commit to
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "8")]
    tables: u64,
    /// Durability of the commits
    #[arg(long, value_name = "DURABILITY", default_value = "buffered")]
    durability: DurabilityArg,
    /// Other work of the store meanwhile
    #[arg(long, value_name = "WORK,...", value_delimiter = ',')]
    beside: Vec<BesideArg>,
    /// Schedule of compaction
    #[arg(long, value_name = "WHEN", default_value = "shares")]
    merges: MergesArg,
    /// Length of the measurement in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    seconds: f64,
    #[command(flatten)]
    common: CommonArgs,
}

impl CommitsArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        // Each kind of work once, in the order of its name.
        let kinds = [BesideArg::Compaction, BesideArg::Checkpoint, BesideArg::RangeDelete];
        let beside = kinds.into_iter().filter(|kind| self.beside.contains(kind));
        let options = Options {
            threads: self.threads,
            tables: self.tables,
            durability: self.durability.into(),
            beside: beside.map(Beside::from).collect(),
            merges: self.merges.into(),
            seconds: self.seconds,
            seed: self.common.seed,
        };

        let mut progress = Progress::new(self.common.output.quiet);
        let report = commits::run(&self.common.store, &options, &mut progress)?;
        drop(progress);

        let threads = format!("{} threads, {} tables", report.threads, report.tables);
        let mut lines = vec![
            ("commits", format!("{:.0} a second ({threads})", report.commits_per_s)),
            ("latency", shown(&report.latency_us)),
            ("idle timer, late", shown(&report.idle_late_us)),
            ("p99.99 beyond idle", format!("{:.1} us", report.p9999_beyond_idle_us)),
        ];
        lines.extend(report.by_hand_per_s.map(|rate| ("by hand", format!("{rate:.0} a second"))));
        lines.extend(report.pages_max.map(|pages| ("pages, most", pages.to_string())));
        if !report.beside.is_empty() {
            lines.push((
                "beside",
                format!(
                    "{} updates, {} checkpoints, {} ranges deleted",
                    report.compaction_updates, report.checkpoints, report.ranges_deleted
                ),
            ));
        }

        output::report(command, self.common.output.json, &report, &lines)
    }
}

fn shown(latency: &LatencyReport) -> String {
    let LatencyReport { p50, p99, p999, p9999, max, .. } = latency;
    format!("p50 {p50:.1} us, p99 {p99:.1}, p99.9 {p999:.1}, p99.99 {p9999:.1}, longest {max:.1}")
}
