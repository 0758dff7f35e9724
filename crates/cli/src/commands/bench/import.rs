//! `terrane bench import-bench-kvdb`: the published logs of `bench_kvdb` as results.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use terrane_bench::report::bench_kvdb::{self, Imported};
use terrane_bench::report::text::grouped;

use super::compare::file_name;
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;

pub(super) const EXAMPLES: &str = "\
Examples:
  All logs of a copy of the repository, as a table:
    terrane bench import-bench-kvdb logs/RadmonRead_*.log
  One log of another name, for a program to read:
    terrane bench import-bench-kvdb run.log --cache-mb 45 --json

The figures count what the engine asked for, of a page cache that was free to use all memory. A log \
whose printed reads per GET are not those of its counters is refused.";

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Logs
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// Megabytes of the cache, of logs whose names do not say it
    #[arg(long, value_name = "N", value_parser = args::positive_count)]
    cache_mb: Option<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report {
    source: &'static str,
    imported: Vec<Imported>,
}

impl ImportArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let import = |log: &PathBuf| {
            // The logs are text of a program that does not check its bytes.
            let bytes = std::fs::read(log)
                .map_err(|error| Failure::usage(format!("{}: {error}", log.display())))?;
            let text = String::from_utf8_lossy(&bytes);
            bench_kvdb::import(&file_name(log), &text, self.cache_mb)
                .map_err(|error| Failure::usage(error.to_string()))
        };
        let imported: Result<Vec<Imported>, Failure> = self.logs.iter().map(import).collect();
        let mut imported = imported?;
        imported.sort_by_key(|result| (result.entries, result.cache_bytes));

        let lines: Vec<_> = imported.iter().map(line).collect();
        let lines: Vec<_> =
            lines.iter().map(|(name, text)| (name.as_str(), text.clone())).collect();
        let report = Report { source: "imported", imported };
        output::report(command, self.output.json, &report, &lines)
    }
}

fn line(result: &Imported) -> (String, String) {
    let name = format!("{} keys, {}", grouped(result.entries), output::bytes(result.cache_bytes));
    let figures = format!(
        "{:.4} reads, {:.2} block lookups per GET, {:.2} GETs/s",
        result.io_per_get, result.block_lookups_per_get, result.ops_per_s
    );
    (name, figures)
}
