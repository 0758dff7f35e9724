//! `terrane restore`: makes a store from a backup, in a directory or in a bucket.
//!
//! # JSON
//!
//! From a bucket: `from`, `to`, `id` of the backup, `commit`, `files_written`, `bytes_downloaded`,
//! `files_kept` (whole from an interrupted restore), `requests`, `wall_s`. From a directory:
//! `from`, `to`, `commit`, `files_written`, `bytes_copied`, `wall_s`.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::io::RealDisk;

use crate::commands::backup::{copied, size};
use crate::stores::bucket;
use crate::stores::open::{is_within, open_to_read};
use crate::ui::args::OutputArgs;
use crate::ui::exit::Failure;
use crate::ui::output;

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane restore s3://ledger-backups/main /data/restored
  As of an earlier commit; `terrane backups list` has the ranges:
    terrane restore s3://ledger-backups/main /data/restored \\
      --commit 81920
  From a backup in a directory:
    terrane restore /backup/ledger /data/restored

DIR is missing, empty, or holds an interrupted restore, which goes on where it was. Each file is \
checked against its SHA-256. A restore that was interrupted is no store, so nothing opens it by \
mistake. Credentials of a bucket come from the environment: see `terrane backup --help`.";

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Backup: a directory, or the address of a bucket (s3://, gs://, az://, file://)
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// Directory of the new store
    #[arg(value_name = "DIR")]
    to: PathBuf,
    /// Number of the commit to restore; the last one if it is left out
    #[arg(long, value_name = "COMMIT")]
    commit: Option<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct RestoredCopy {
    from: String,
    to: String,
    commit: u64,
    files_written: u64,
    bytes_copied: u64,
    wall_s: f64,
}

impl Restore {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match bucket::address(&self.from) {
            Some(address) => self.download(address),
            None => self.copy_directory(),
        }
        .map(|()| 0)
    }

    fn copy_directory(&self) -> Result<(), Failure> {
        if is_within(&self.to, &self.from) {
            return Err(Failure::usage("DIR is the backup or lies in it; choose another place"));
        }

        let started = Instant::now();
        let mut reader = open_to_read(&self.from)?;
        if let Some(commit) = self.commit.filter(|commit| *commit != reader.last_commit()) {
            let last = reader.last_commit();
            let message = format!("the backup has commit {last}, and no commit {commit}");
            return Err(Failure::usage(message));
        }
        let is_empty = std::fs::read_dir(&self.to).map_or(true, |mut dir| dir.next().is_none());
        if !is_empty {
            let message = format!("{} is not empty; choose an empty directory", self.to.display());
            return Err(Failure::usage(message));
        }
        let report = copied(&mut reader, (RealDisk::auto(), &self.to), self.output.quiet)?;

        let restored = RestoredCopy {
            from: self.from.display().to_string(),
            to: self.to.display().to_string(),
            commit: report.commit,
            files_written: report.files_copied,
            bytes_copied: report.bytes_copied,
            wall_s: started.elapsed().as_secs_f64(),
        };
        let lines = [
            ("restored", format!("{} to {}", restored.from, restored.to)),
            ("commit", restored.commit.to_string()),
            ("copied", size(restored.files_written, restored.bytes_copied)),
        ];
        output::report("restore", self.output.json, &restored, &lines)
    }

    #[cfg(not(feature = "object-store"))]
    #[expect(clippy::unused_self, reason = "with the feature it has options")]
    fn download(&self, _address: &str) -> Result<(), Failure> {
        Err(Failure::not_built("object-store"))
    }

    #[cfg(feature = "object-store")]
    fn download(&self, address: &str) -> Result<(), Failure> {
        use terrane_object::{RestoreReport, Restoring};

        use crate::ui::progress::ByteBar;
        use crate::ui::text::count_of;

        #[derive(Serialize)]
        struct Restored<'a> {
            from: &'a str,
            to: String,
            #[serde(flatten)]
            report: RestoreReport,
            requests: terrane_object::Requests,
            wall_s: f64,
        }

        let (address, named) = bucket::with_commit(address)?;
        let commit = self.commit.or(named);
        let started = Instant::now();
        let bucket = bucket::open(address)?;
        let mut bar = ByteBar::new("restoring", self.output.quiet);
        let mut progress = |done, total| bar.set(done, total);
        let report = bucket.restore(&Restoring::new(&self.to).commit(commit), &mut progress)?;
        drop(bar);

        let restored = Restored {
            from: address,
            to: self.to.display().to_string(),
            requests: bucket.requests(),
            wall_s: started.elapsed().as_secs_f64(),
            report,
        };
        let report = &restored.report;
        let lines = [
            ("restored", format!("{address} to {}", restored.to)),
            ("backup", report.id.clone()),
            ("commit", report.commit.to_string()),
            ("written", size(report.files_written, report.bytes_downloaded)),
            ("there already", count_of(report.files_kept, "file", "files")),
        ];
        output::report("restore", self.output.json, &restored, &lines)
    }
}
