//! `terrane bench scan`: rates of a cursor over whole tables.

use clap::Args;
use terrane_bench::workloads::tables::scan::{self, Options, Scan};

use super::CommonArgs;
use crate::ui::args;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  Tables of a million entries, three times forward and backward:
    terrane bench scan --store /tmp/terrane-bench
  Large tables, built once and used again, beside the rate of the device:
    terrane bench scan --store DIR --entries 20M --rounds 5 --keep --calibrate

One table is a single run, made by a bulk load. The other has the levels of a table in use. Reads \
go past the page cache, and rates count the bytes read. Order, count and content are checked. The \
tables are deleted at the end unless --keep is given or they were there before. With --calibrate \
each round begins with a sequential read of a file of 1 GiB, by fio if it is installed.";

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// Entries of each table
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1M")]
    entries: u64,
    /// Times to read each table in each direction
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "3")]
    rounds: u64,
    /// Measures the device too, before each round
    #[arg(long)]
    calibrate: bool,
    /// Keeps the tables as snapshots, for later runs with the same entries and seed
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

impl ScanArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let options = Options {
            entries: self.entries,
            rounds: self.rounds,
            calibrate: self.calibrate,
            keep: self.keep,
            seed: self.common.seed,
        };
        let mut progress = Progress::new(self.common.output.quiet);
        let report = scan::run(&self.common.store, &options, &mut progress)?;
        drop(progress);

        let built = if report.is_reused { "found" } else { "built" };
        let mut lines = vec![("entries", format!("{} in each table, {built}", report.entries))];
        for round in &report.rounds {
            if let Some(rate) = round.device_read_bytes_per_s {
                let by = report.device_measured_by.unwrap_or_default();
                lines.push(("device", format!("{:.0} MB/s by {by}", rate / 1e6)));
            }
            lines.extend(round.scans.iter().map(|scan| (title(scan), shown(scan))));
        }

        output::report(command, self.common.output.json, &report, &lines)
    }
}

fn title(scan: &Scan) -> &'static str {
    match (scan.table, scan.direction) {
        ("one_run", "forward") => "one run, forward",
        ("one_run", _) => "one run, backward",
        (_, "forward") => "levels, forward",
        _ => "levels, backward",
    }
}

fn shown(scan: &Scan) -> String {
    let share = scan.ratio_to_device.map(|ratio| format!(", {ratio:.2} of the device"));
    format!(
        "{:.0} MB/s, {:.0} entries/s, {:.0} ns of processor each, {} runs{}",
        scan.read_bytes_per_s / 1e6,
        scan.entries_per_s,
        scan.cpu_ns_per_entry,
        scan.runs,
        share.unwrap_or_default()
    )
}
