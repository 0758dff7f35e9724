//! `terrane bench disk`: the device alone.

use std::path::PathBuf;

use clap::Args;
use terrane_bench::workloads::disk::{self, Options, Report};

use super::head::Started;
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  Random reads at seven depths, sequential reads, appends (about a minute):
    terrane bench disk --dir /tmp/terrane-bench
  A short look, for a program to read:
    terrane bench disk --dir DIR --depths 1,96 --seconds 1 --json

The files are made in DIR and removed at the end. Other work on the device changes every figure.";

#[derive(Debug, Args)]
pub(crate) struct DiskArgs {
    /// Directory for the files; created if it is missing
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Numbers of random reads in flight
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = args::positive_count,
        default_value = "1,4,16,32,64,96,256")]
    depths: Vec<u64>,
    /// Time of each point and of each yardstick
    #[arg(long, value_name = "SECONDS", value_parser = args::seconds, default_value = "3")]
    seconds: std::time::Duration,
    /// Size of the files that are read, in whole MiB
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size, default_value = "1GiB")]
    file_bytes: u64,
    /// Size of an append
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size, default_value = "4KiB")]
    append_bytes: u64,
    /// Appends, 500 at most
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "500")]
    appends: u64,
    #[command(flatten)]
    output: OutputArgs,
}

impl DiskArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let started = Started::now();
        let options = Options {
            depths: self.depths.clone(),
            seconds: self.seconds.as_secs_f64(),
            file_bytes: self.file_bytes,
            append_bytes: self.append_bytes,
            appends: self.appends,
        };
        let mut progress = Progress::new(self.output.quiet);
        let report = disk::run(&self.dir, &options, &mut progress)?;
        drop(progress);

        let measured = started.report(&report, &self.dir, false);
        let text = lines(&report);
        let lines: Vec<_> = text.iter().map(|(name, value)| (&**name, value.clone())).collect();
        output::report(command, self.output.json, &measured, &lines)
    }
}

fn lines(report: &Report) -> Vec<(String, String)> {
    let mut lines = vec![(
        "yardstick".to_owned(),
        format!(
            "{:.0} reads/s by {}, before and after differ by {:.1} %",
            report.fio_read_iops,
            report.measured_by,
            report.fio_read_iops_spread_ratio * 100.0
        ),
    )];

    lines.extend(report.depths.iter().map(|point| {
        let threads =
            if point.threads == 1 { String::new() } else { format!(" x {}", point.threads) };
        let latency = &point.latency_us;
        let value = format!(
            "{:.0} reads/s, {:.0} / {:.0} / {:.0} us (p50, p99, p99.99), {:.2} us of processor",
            point.reads_per_s, latency.p50, latency.p99, latency.p9999, point.cpu_us_per_read
        );
        (format!("{} in flight{threads}", point.depth), value)
    }));

    let sequential = output::bytes(report.sequential_read_bytes_per_s as u64);
    let bare = &report.bare;
    let (append, idle) = (&bare.append_sync_ms, &bare.idle_late_ms);
    lines.extend([
        ("sequential reads".to_owned(), format!("{sequential}/s")),
        (
            format!("append of {}", output::bytes(bare.append_bytes)),
            format!("{:.2} / {:.2} / {:.2} ms (p50, p99, max)", append.p50, append.p99, append.max),
        ),
        (
            "idle timer".to_owned(),
            format!(
                "late by {:.2} / {:.2} / {:.2} ms (p50, p99, max)",
                idle.p50, idle.p99, idle.max
            ),
        ),
    ]);
    lines
}
