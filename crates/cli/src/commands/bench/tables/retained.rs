//! `terrane bench retained`: cost of a retained version for each block, beside undo records.

use clap::Args;
use terrane_bench::workloads::tables::retained::{self, Cost, Options, Ratios};

use super::CommonArgs;
use crate::ui::args;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  A version for each of 2,160 blocks of 512 updates:
    terrane bench retained --store /tmp/terrane-bench
  Fewer blocks, for a program to read:
    terrane bench retained --store /tmp/terrane-bench --blocks 200 --json

Three stores get the same blocks, each a durable commit: one as it is, one with undo records in \
the same commit, and one that retains a version after each block. The stores are in DIR/retained, \
which must not exist, and are removed at the end. Undo records and versions are checked.";

#[derive(Debug, Args)]
pub(crate) struct RetainedArgs {
    /// Blocks of each store
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "2160")]
    blocks: u64,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

impl RetainedArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let options = Options { blocks: self.blocks, seed: self.common.seed };
        let mut progress = Progress::new(self.common.output.quiet);
        let report = retained::run(&self.common.store, &options, &mut progress)?;
        drop(progress);

        let updates = output::bytes(report.update_bytes);
        let mut lines = vec![
            ("blocks", format!("{}, {updates} of updates", report.blocks)),
            ("plain", cost(&report.plain)),
            ("undo records", cost(&report.undo_records)),
            ("versions", cost(&report.versions)),
            ("undo records, beside plain", ratios(&report.undo_records_to_plain)),
            ("versions, beside plain", ratios(&report.versions_to_plain)),
        ];

        for opened in &report.opened {
            let retained::Opened { block, open_s, entries } = opened;
            lines.push(("opened", format!("block {block}: {open_s:.3} s, {entries} entries")));
        }
        let back = format!("{} blocks in {:.3} s", report.roll_back_blocks, report.roll_back_s);
        lines.push(("back", back));

        output::report(command, self.common.output.json, &report, &lines)
    }
}

fn cost(cost: &Cost) -> String {
    let written = output::bytes(cost.write_bytes);
    let kept = output::bytes(cost.disk_bytes);
    let Cost { wall_s, block_ms, .. } = cost;
    format!("{wall_s:.2} s, {block_ms:.2} ms a block, {written} written, {kept} on the disk")
}

fn ratios(ratios: &Ratios) -> String {
    format!(
        "{:.2} x the bytes of the updates kept, {:.2} x the bytes written, {:.2} x the time",
        ratios.kept_bytes_per_update_byte, ratios.write_ratio, ratios.time_ratio
    )
}
