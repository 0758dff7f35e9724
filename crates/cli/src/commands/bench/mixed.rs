//! `terrane bench mixed`: reads beside writes.

use std::path::PathBuf;

use clap::Args;
use terrane::lsm::Compression;
use terrane_bench::workloads::draws::Distribution;
use terrane_bench::workloads::mixed::{self, Mix, Options, Report};
use terrane_bench::workloads::values::Values;

use super::choices::{ShapeArg, distribution, values};
use super::head::{Started, yardstick_of};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  Four lookups of five, by one thread beside the one that writes:
    terrane bench mixed --store /tmp/terrane-bench --keys 10M
  Half of the operations write, a few keys are hot, for a program to read:
    terrane bench mixed --store DIR --mix get:50,put:40,delete:10 \\
      --distribution zipf:0.99 --values bitcoin --memory-budget 64MiB --json

The table is filled first, and gone at the end. Every result is checked: a \
lookup that does not find what was last written ends the run with exit code 1.";

/// Parses a mix.
fn mix(text: &str) -> Result<Mix, String> {
    let message = || "write shares that add up to 100: get:80,put:15,delete:5".to_owned();
    let mut mix = Mix { get: 0, put: 0, delete: 0 };
    for part in text.split(',') {
        let (kind, share) = part.split_once(':').ok_or_else(message)?;
        let share: u64 = share.parse().ok().filter(|&share| share <= 100).ok_or_else(message)?;
        match kind {
            "get" => mix.get += share,
            "put" => mix.put += share,
            "delete" | "del" => mix.delete += share,
            _ => return Err(message()),
        }
    }
    if mix.get + mix.put + mix.delete == 100 { Ok(mix) } else { Err(message()) }
}

#[derive(Debug, Args)]
pub(crate) struct MixedArgs {
    /// Directory of the store to work in; created if it is missing
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Keys of the table
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1M")]
    keys: u64,
    /// Values: random:BYTES, uniform:LEAST..MOST, dict:COUNT, hist:FILE (lines of size and weight),
    /// bitcoin (unspent outputs) or ethereum (accounts and slots)
    #[arg(long, value_name = "VALUES", value_parser = values, default_value = "random:110")]
    values: Values,
    /// Shape of the levels
    #[arg(long, value_name = "SHAPE", default_value = "default")]
    shape: ShapeArg,
    /// Compression of the table's pages: none, lz4 or zstd
    #[arg(long, value_name = "CODEC", value_parser = args::compression, default_value = "none")]
    compression: Compression,
    /// Size of a memtable, instead of the engine's
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size)]
    write_buffer: Option<u64>,
    /// Seed of values and operations
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
    /// Shares of lookups, puts and deletes, in per cent
    #[arg(long, value_name = "MIX", value_parser = mix, default_value = "get:80,put:15,delete:5")]
    mix: Mix,
    /// Operations
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1M")]
    ops: u64,
    /// Operations of a round, whose lookups see the state before its writes
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "4096")]
    round: u64,
    /// Keys of each call
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "64")]
    batch: u64,
    /// Threads that look up, beside the one that writes
    #[arg(long, value_name = "N", default_value = "1",
        value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: u64,
    /// Choice of the keys: uniform, every (one after the other), zipf:θ, latest:θ, or hotset:P,Q (P
    /// per cent of the keys get Q per cent of the operations)
    #[arg(long, value_name = "DISTRIBUTION", value_parser = distribution, default_value = "uniform")]
    distribution: Distribution,
    /// Memory budget of the table
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_budget: Option<u64>,
    /// Measures the device too, before the run
    #[arg(long)]
    calibrate: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl MixedArgs {
    pub(super) fn run(&self, command: &str) -> Result<u8, Failure> {
        let started = Started::now();
        let options = Options {
            keys: self.keys,
            values: self.values.clone(),
            seed: self.seed,
            shape: self.shape.into(),
            compression: self.compression,
            write_buffer_bytes: self.write_buffer,
            mix: self.mix,
            ops: self.ops,
            round: self.round,
            batch: self.batch,
            threads: self.threads,
            distribution: self.distribution,
            memory_budget: self.memory_budget,
        };
        let mut progress = Progress::new(self.output.quiet);
        let device = yardstick_of(Some(&self.store).filter(|_| self.calibrate), &mut progress)?;
        let mut report = mixed::run(&self.store, &options, &mut progress)?;
        drop(progress);
        if let Some(device) = device {
            report.calibrate(device.read_iops);
        }

        let interrupted = report.is_interrupted.then(|| Failure::interrupted("interrupted"));
        let measured = started.report(&report, &self.store, report.is_interrupted);
        let text = output::aligned(&lines(&report));
        output::checked(command, self.output.json, &measured, &text, interrupted.as_ref())
    }
}

fn lines(report: &Report) -> Vec<(&'static str, String)> {
    let workload = &report.workload;
    let Report { latency_us, .. } = report;
    let latency = |latency: &terrane_replay::latency::LatencyReport| {
        format!(
            "{:.0} / {:.0} / {:.0} / {:.0} us (p50, p99, p99.99, longest)",
            latency.p50, latency.p99, latency.p9999, latency.max
        )
    };

    let mut lines = vec![
        ("keys", format!("{}, {}", workload.entries, workload.distribution)),
        (
            "operations",
            format!(
                "{} lookups, {} puts, {} deletes",
                workload.gets, workload.puts, workload.deletes
            ),
        ),
        ("results", format!("{} found, {} absent, 0 missing", workload.found, workload.absent)),
        ("operations", format!("{:.0}/s", report.ops_per_s)),
        ("lookups", format!("{:.0}/s, {:.4} reads each", report.lookups_per_s, report.io_per_get)),
        ("updates", format!("{:.0}/s", report.updates_per_s)),
        ("call of lookups", latency(&latency_us.get)),
        ("call of writes", latency(&latency_us.write)),
    ];
    if let Some(cpu) = report.cpu_us_per_op {
        lines.push(("processor", format!("{cpu:.2} us per operation")));
    }
    if let Some(eta) = report.eta {
        lines.push(("lookups / device", format!("{eta:.2}")));
    }
    if let Some(written) = report.write_amplification {
        lines.push(("written", format!("{written:.2} bytes per byte")));
    }
    let [before, after] = [report.merge_debt_before_bytes, report.merge_debt_after_bytes];
    lines.push(("merge debt", format!("{} to {}", output::bytes(before), output::bytes(after))));
    lines
}
