//! `terrane bench ingest`: rates of inserts, deletes and lookups.

use clap::Args;
use terrane_bench::workloads::tables::ingest::{self, Options};

use super::CommonArgs;
use crate::ui::args;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  A million entries on one core, compaction included:
    taskset -c 1 terrane bench ingest --store /tmp/terrane-bench
  Larger batches, for a program to read:
    terrane bench ingest --store /tmp/terrane-bench --batch 5k --json

All entries are inserted. Then every second one is deleted, with as many deletions of keys that \
never existed, and all keys are looked up. Keys have 34 bytes and values 60. Every result is \
compared with its expected value.";

#[derive(Debug, Args)]
pub(crate) struct IngestArgs {
    /// Entries to insert, and the number of deletions and lookups
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1M")]
    entries: u64,
    /// Updates in a batch
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "500")]
    batch: u64,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

impl IngestArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let options = Options { entries: self.entries, batch: self.batch, seed: self.common.seed };
        let mut progress = Progress::new(self.common.output.quiet);
        let report = ingest::run(&self.common.store, &options, &mut progress)?;
        drop(progress);

        let reads = report.reads_per_lookup;
        let lines = [
            ("entries", format!("{} ({} a batch)", report.entries, report.batch)),
            ("inserts", format!("{:.0}/s", report.inserts_per_s)),
            ("deletes", format!("{:.0}/s", report.deletes_per_s)),
            ("updates", format!("{:.0}/s", report.updates_per_s)),
            ("lookups", format!("{:.0}/s, {} found", report.lookups_per_s, report.found)),
            ("reads", format!("{reads:.3} a lookup")),
            ("runs", format!("{}, {} stored entries", report.runs, report.stored_entries)),
        ];

        output::report(command, self.common.output.json, &report, &lines)
    }
}
