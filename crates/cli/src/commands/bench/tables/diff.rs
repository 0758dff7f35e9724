//! `terrane bench diff`: pages that the difference of two versions reads.

use clap::Args;
use terrane_bench::workloads::tables::diff::{self, Diffs, Options};

use super::CommonArgs;
use crate::ui::args;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  2,500 versions of 10 million entries, 1,000 updates apart (some minutes):
    terrane bench diff --store /tmp/terrane-bench
  A small table, for a program to read:
    terrane bench diff --store DIR --entries 500k --versions 200 --json

Each version inserts new keys, replaces values and deletes keys, a third each. Neighbours are \
compared in both directions, and the first version with the last one. All changes are checked. \
Pages are counted at the disk.";

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Entries of the first version
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "10M")]
    entries: u64,
    /// Updates from one version to the next
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1000")]
    updates: u64,
    /// Versions after the first one
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "2500")]
    versions: u64,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

impl DiffArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let Self { entries, updates, versions, .. } = *self;
        let options = Options { entries, updates, versions, seed: self.common.seed };
        let mut progress = Progress::new(self.common.output.quiet);
        let report = diff::run(&self.common.store, &options, &mut progress)?;
        drop(progress);

        let stored = report.stored_entries;
        let apart = format!("{} versions, {} updates apart", report.versions, report.updates);
        let mut lines = vec![
            ("versions", apart),
            ("table", format!("{stored} stored entries in {} runs", report.runs)),
        ];
        let kinds = [
            ("neighbours, a flush between", report.flushed),
            ("neighbours, no flush", report.unflushed),
            ("first and last version", report.whole),
        ];
        lines.extend(kinds.iter().filter_map(|&(name, diffs)| Some((name, shown(&diffs?)))));
        let pages = report.compaction_pages_max;
        lines.push(("compactions at a flush", format!("up to {pages} pages")));

        output::report(command, self.common.output.json, &report, &lines)
    }
}

fn shown(diffs: &Diffs) -> String {
    let Diffs { diffs, pages_median, pages_max, wall_ms_median } = *diffs;
    format!("{pages_median} pages, {pages_max} at most, {wall_ms_median:.1} ms, of {diffs} diffs")
}
