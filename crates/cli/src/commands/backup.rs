//! `terrane backup`: copies a whole store while it is in use.
//!
//! # JSON
//!
//! `to`, `commit` (the last one in the backup), `tables`, `versions`, `snapshots`, `files_copied`,
//! `bytes_copied`, `files_shared` (there already, or by several of these), `bytes_shared`,
//! `wall_s`.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::io::files::create_dirs;
use terrane::lsm::{BackupPlace, BackupReport, Error};

use crate::commands::kv::MemoryArgs;
use crate::stores::open::{is_within, open_to_read_within};
use crate::ui::args::OutputArgs;
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::progress::ByteBar;
use crate::ui::stream::ModeArgs;
use crate::ui::text::count_of;

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane backup --store /data/ledger --to /backup/ledger
  The same again, an hour later, brings only what is new:
    terrane backup --store /data/ledger --to /backup/ledger
  In little memory:
    terrane backup --store /data/ledger --to /backup/ledger \\
      --memory-budget 16MiB
  Look at it, and restore it into an empty directory:
    terrane verify /backup/ledger
    terrane backup --store /backup/ledger --to /data/restored

A backup contains all named tables as of one commit, the retained versions and the snapshots. It \
works beside the process that has the store open and does not disturb it. Every page is checked \
on the way. If the command is interrupted, the tables of the backup are those of the previous \
one. A backup is a store: read, inspect and verify it like any other. Once something is written \
to a backup, it is an independent store, and later backups do not replace it.";

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Directory of the store
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Directory of the backup: missing, empty, or an earlier backup of this store
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Created {
    to: String,
    commit: u64,
    tables: u64,
    versions: u64,
    snapshots: u64,
    files_copied: u64,
    bytes_copied: u64,
    files_shared: u64,
    bytes_shared: u64,
    wall_s: f64,
}

impl Backup {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        if is_within(&self.to, &self.store) {
            let message = "--to is the store or lies in it; a backup needs a place of its own";
            return Err(Failure::usage(message));
        }

        let started = Instant::now();
        let mut reader = open_to_read_within(&self.store, self.memory.budget())?;
        let disk = self.mode.disk()?;

        if let Some(parent) = self.to.parent() {
            create_dirs(disk.as_ref(), parent).map_err(Error::from)?;
        }

        let mut bar = ByteBar::new("copying", self.output.quiet);
        let mut progress = |done, total| bar.set(done, total);
        let report = reader.back_up(&BackupPlace::new(&self.to).on_disk(disk), &mut progress)?;
        drop(bar);

        self.report(&report, started.elapsed().as_secs_f64())
    }

    fn report(&self, report: &BackupReport, wall_s: f64) -> Result<u8, Failure> {
        let to = self.to.display().to_string();
        let size = |files, size| format!("{}, {}", count_of(files, "file", "files"), bytes(size));
        let parts = [
            count_of(report.tables, "table", "tables"),
            count_of(report.versions, "version", "versions"),
            count_of(report.snapshots, "snapshot", "snapshots"),
        ];

        let lines = [
            ("backed up", format!("{} to {to}", parts.join(", "))),
            ("commit", report.commit.to_string()),
            ("copied", size(report.files_copied, report.bytes_copied)),
            ("there already", size(report.files_shared, report.bytes_shared)),
        ];

        let created = Created {
            to,
            commit: report.commit,
            tables: report.tables,
            versions: report.versions,
            snapshots: report.snapshots,
            files_copied: report.files_copied,
            bytes_copied: report.bytes_copied,
            files_shared: report.files_shared,
            bytes_shared: report.bytes_shared,
            wall_s,
        };

        output::report("backup", self.output.json, &created, &lines).map(|()| 0)
    }
}
