//! `terrane bench forks`: rate and memory with a fork of a table for each block.

use clap::Args;
use terrane_bench::workloads::tables::forks::{self, Options};

use super::CommonArgs;
use crate::ui::args;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  The newest 2,160 forks of a ledger of 500,000 entries:
    terrane bench forks --store /tmp/terrane-bench
  Fewer forks and blocks, for a program to read:
    terrane bench forks --store DIR --forks 100 --blocks 640 --json

Each block looks up 256 keys, deletes them and inserts 256 others. A table without forks gets the \
same blocks in turns. All lookups and some of the old forks are checked. Memory is what the \
process has resident; measure it with the default of entries or more.";

#[derive(Debug, Args)]
pub(crate) struct ForksArgs {
    /// Forks to keep
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "2160")]
    forks: u64,
    /// Blocks to time, after as many as there are forks
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "6480")]
    blocks: u64,
    /// Entries of the tables
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "500k")]
    entries: u64,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

impl ForksArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let Self { forks, blocks, entries, .. } = *self;
        let options = Options { forks, blocks, entries, seed: self.common.seed };
        let mut progress = Progress::new(self.common.output.quiet);
        let report = forks::run(&self.common.store, &options, &mut progress)?;
        drop(progress);

        let mut lines = vec![
            ("forks", format!("{} of {} entries", report.forks, report.entries)),
            ("without forks", format!("{:.0} updates/s", report.plain_updates_per_s)),
            ("with forks", format!("{:.0} updates/s", report.forked_updates_per_s)),
            ("ratio", format!("{:.3}", report.rate_ratio)),
        ];

        let memory = report.forks_memory_bytes.zip(report.forks_memory_bytes_per_update);
        if let Some((bytes, each)) = memory {
            let megabytes = bytes as f64 / 1e6;
            lines
                .push(("memory of forks", format!("{megabytes:.1} MB, {each:.1} bytes an update")));
        }
        if let Some(bytes) = report.table_memory_bytes {
            lines.push(("memory of a table", format!("{:.1} MB", bytes as f64 / 1e6)));
        }
        if let Some(files) = report.open_files {
            lines.push(("open files", files.to_string()));
        }
        lines.push(("checked", format!("{} old forks, all lookups", report.checked_forks)));

        output::report(command, self.common.output.json, &report, &lines)
    }
}
