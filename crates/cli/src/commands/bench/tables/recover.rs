//! `terrane bench recover`: opening of a store whose process was killed.
//!
//! The process that is killed is this program with `--fill`, which fills the store, prints how many
//! commits it has made, and waits.

use std::io;
use std::path::Path;
use std::process::Command;

use clap::Args;
use terrane_bench::workloads::tables::recover::{self, Options};

use super::CommonArgs;
use crate::ui::args;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  A million entries, and 64 MiB of WAL since the last checkpoint:
    terrane bench recover --store /tmp/terrane-bench
  A large store, for a program to read:
    terrane bench recover --store DIR --entries 100M --json

A second process fills the store, and is killed. The store is then opened twice, with what the \
page cache holds, and goes on with commits of one update. The store is in DIR/recover, which must \
not exist, and is removed at the end. The last commit and the number of entries are checked.";

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// Entries at the last checkpoint
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1M")]
    entries: u64,
    /// WAL since the last checkpoint, about
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size, default_value = "64MiB")]
    wal_bytes: u64,
    /// Commits of one update after opening, by default as many as the WAL has updates
    #[arg(long, value_name = "N", value_parser = args::positive_count)]
    commits: Option<u64>,
    /// Fills the store DIR and waits until it is killed
    #[arg(long, hide = true)]
    fill: bool,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

impl RecoverArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let Self { entries, wal_bytes, commits, .. } = *self;
        let options = Options { entries, wal_bytes, commits, seed: self.common.seed };
        if self.fill {
            return self.fill(&options);
        }

        let program = std::env::current_exe()
            .map_err(|error| Failure::environment(format!("starting a process: {error}")))?;
        let filler = |store: &Path| {
            let mut filler = Command::new(program);
            filler.args(["bench", "recover", "--fill"]).arg("--store").arg(store);
            filler.args(["--entries", &entries.to_string()]);
            filler.args(["--wal-bytes", &wal_bytes.to_string()]);
            filler.args(["--seed", &self.common.seed.to_string()]);
            filler.args(self.common.output.quiet.then_some("--quiet"));
            filler
        };

        let mut progress = Progress::new(self.common.output.quiet);
        let report = recover::run(&self.common.store, &options, filler, &mut progress)?;
        drop(progress);

        let wal = output::bytes(report.wal_bytes);
        let open_s: Vec<_> = report.open_s.iter().map(|open_s| format!("{open_s:.3} s")).collect();
        let later = report.commits - 1;
        let later_ms = report.later_commit_ms_max;
        let lines = [
            ("entries", format!("{} and {wal} of WAL", report.entries)),
            ("commits", format!("{} until the process was killed", report.commits_before)),
            ("opened in", open_s.join(", ")),
            ("first commit", format!("{:.1} ms", report.first_commit_ms)),
            ("longest later", format!("{later_ms:.1} ms, of {later} commits")),
        ];

        output::report(command, self.common.output.json, &report, &lines)
    }

    /// Fills the store, prints the number of commits, and waits. The process that started this one
    /// kills it then; if that process ends instead, standard input does.
    fn fill(&self, options: &Options) -> Result<(), Failure> {
        let mut progress = Progress::new(self.common.output.quiet);
        let filled = recover::fill(&self.common.store, options, &mut progress)?;
        drop(progress);

        output::print(&filled.commits.to_string())?;
        let waited = io::copy(&mut io::stdin().lock(), &mut io::sink());
        waited.map(drop).map_err(|error| Failure::environment(format!("standard input: {error}")))
    }
}
