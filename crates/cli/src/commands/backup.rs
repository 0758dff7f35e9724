//! `terrane backup`: copies a whole store while it is in use.
//!
//! # JSON
//!
//! `to`, `commit` (the last one in the backup), `tables`, `versions`, `snapshots`, `files_copied`,
//! `bytes_copied`, `files_shared` (there already, or by several of these), `bytes_shared`,
//! `wall_s`. In a bucket: `to`, `id` of the backup, `base_commit`, `commit` (each commit from the
//! one to the other can be restored), `contiguous` (no commit since the last backup is left out),
//! `files_uploaded`, `bytes_uploaded`, `files_shared`, `bytes_shared`, `requests`, `wall_s`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::io::Disk;
use terrane::io::files::create_parents;
use terrane::lsm::{BackupPlace, BackupReport, Error, StoreReader};

use crate::commands::kv::MemoryArgs;
use crate::stores::bucket;
use crate::stores::open::{is_within, open_to_read_within};
use crate::ui::args::{self, OutputArgs};
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
    terrane restore /backup/ledger /data/restored
  To a bucket, with credentials from the environment:
    terrane backup --store /data/ledger --to s3://ledger-backups/main
  The same, and every commit from now on, until Ctrl-C:
    terrane backup --store /data/ledger --to s3://ledger-backups/main \\
      --follow

A backup contains all named tables as of one commit, the retained versions and the snapshots. It \
works beside the process that has the store open and does not disturb it. Every page is checked \
on the way. If the command is interrupted, the tables of the backup are those of the previous \
one. A backup is a store: read, inspect and verify it like any other. Once something is written \
to a backup, it is an independent store, and later backups do not replace it.

In a bucket, a backup is one or more bases and the log behind each: any commit in between can be \
restored. A backup uploads what is new and overwrites nothing. With --follow the command stays, \
keeps the log of the store from being removed, and ships new commits every --every seconds; so no \
commit is left out. Environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, \
AWS_ENDPOINT_URL for s3://; GOOGLE_APPLICATION_CREDENTIALS for gs://; \
AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY for az://. The store's salt, a secret, is \
part of a backup: keep the bucket private.";

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Directory of the store
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Directory of the backup: missing, empty, or an earlier backup of this store; or the address
    /// of a bucket
    #[arg(long, value_name = "DIR|ADDRESS")]
    to: PathBuf,
    /// Ships new commits to the bucket until Ctrl-C
    #[arg(long)]
    follow: bool,
    /// Seconds between two looks at the store
    #[arg(long, value_name = "SECONDS", value_parser = args::positive_count, default_value_t = 10,
        requires = "follow")]
    every: u64,
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
        if let Some(address) = bucket::address(&self.to) {
            return self.to_bucket(address).map(|()| 0);
        }
        if self.follow {
            let message = "--follow is for buckets; give --to s3://BUCKET/PREFIX";
            return Err(Failure::usage(message));
        }
        if is_within(&self.to, &self.store) {
            let message = "--to is the store or lies in it; a backup needs a place of its own";
            return Err(Failure::usage(message));
        }

        let started = Instant::now();
        let mut reader = open_to_read_within(&self.store, self.memory.budget())?;
        let disk = self.mode.disk()?;

        let report = copied(&mut reader, (disk, &self.to), self.output.quiet)?;

        self.report(&report, started.elapsed().as_secs_f64())
    }

    fn report(&self, report: &BackupReport, wall_s: f64) -> Result<u8, Failure> {
        let to = self.to.display().to_string();
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

/// Backs a store up into a directory whose parents may be missing, with a progress bar.
pub(super) fn copied(
    reader: &mut StoreReader,
    (disk, to): (Arc<dyn Disk>, &Path),
    quiet: bool,
) -> Result<BackupReport, Failure> {
    create_parents(disk.as_ref(), to).map_err(Error::from)?;
    let mut bar = ByteBar::new("copying", quiet);
    let mut progress = |done, total| bar.set(done, total);
    Ok(reader.back_up(&BackupPlace::new(to).on_disk(disk), &mut progress)?)
}

/// Number of files and their bytes, for people.
pub(super) fn size(files: u64, size: u64) -> String {
    format!("{}, {}", count_of(files, "file", "files"), bytes(size))
}

#[cfg(not(feature = "object-store"))]
impl Backup {
    #[expect(clippy::unused_self, reason = "with the feature it has options")]
    fn to_bucket(&self, _address: &str) -> Result<(), Failure> {
        Err(Failure::not_built("object-store"))
    }
}

#[cfg(feature = "object-store")]
mod shipping {
    use std::thread;
    use std::time::{Duration, Instant};

    use serde::Serialize;
    use terrane_object::{Requests, UploadReport};
    use terrane_replay::monitor::Monitor as _;

    use super::Backup;
    use crate::stores::bucket;
    use crate::stores::open::open_to_read_within;
    use crate::ui::exit::Failure;
    use crate::ui::output::{self, bytes};
    use crate::ui::progress::{ByteBar, Progress};
    use crate::ui::text::{count_of, grouped};

    /// Longest wait before a Ctrl-C is noticed.
    const NOTICE: Duration = Duration::from_millis(100);

    #[derive(Serialize)]
    struct Uploaded<'a> {
        to: &'a str,
        #[serde(flatten)]
        report: UploadReport,
        requests: Requests,
        wall_s: f64,
    }

    impl Backup {
        pub(super) fn to_bucket(&self, address: &str) -> Result<(), Failure> {
            let started = Instant::now();
            let mut reader = open_to_read_within(&self.store, self.memory.budget())?;
            let bucket = bucket::open(address)?;
            // What was shipped last leads up to what is shipped now, if it is still there.
            // Behind a first backup the log is kept whole until it is known what was shipped: a
            // checkpoint in between would leave a gap.
            let keep = bucket.log_to_keep()?.or(self.follow.then_some(1));
            reader.keep_log_from(keep)?;

            let mut bar = ByteBar::new("uploading", self.output.quiet);
            let mut progress = |done, total| bar.set(done, total);
            let report = bucket.back_up(&mut reader, &mut progress)?;
            drop(bar);

            if !self.follow {
                let wall_s = started.elapsed().as_secs_f64();
                let requests = bucket.requests();
                return self.uploaded(&Uploaded { to: address, report, requests, wall_s });
            }

            let mut monitor = Progress::new(self.output.quiet);
            let mut shipped = report.commit;
            reader.keep_log_from(bucket.log_to_keep()?)?;
            loop {
                let until = Instant::now() + Duration::from_secs(self.every);
                while Instant::now() < until {
                    if monitor.stop() {
                        let message =
                            format!("interrupted; commits up to {shipped} are in {address}");
                        return Err(Failure::interrupted(message));
                    }
                    thread::sleep(NOTICE);
                }
                if reader.refresh()? == shipped {
                    continue;
                }
                let made = bucket.back_up(&mut reader, &mut |_, _| {});
                let made = made.and_then(|report| Ok((report.commit, bucket.log_to_keep()?)));
                match made {
                    Ok((commit, keep)) => {
                        shipped = commit;
                        reader.keep_log_from(keep)?;
                    }
                    // The bucket is away: the log waits for it.
                    Err(error) if bucket::is_passing(&error) => {
                        monitor.warn(&format!("{error}; trying again in {} s", self.every));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }

        fn uploaded(&self, uploaded: &Uploaded<'_>) -> Result<(), Failure> {
            let size =
                |files, size| format!("{}, {}", count_of(files, "file", "files"), bytes(size));
            let report = &uploaded.report;
            let commits = format!("{} to {}", grouped(report.base_commit), grouped(report.commit));
            let mut lines = vec![
                ("backed up", uploaded.to.to_owned()),
                ("backup", report.id.clone()),
                ("commits", commits),
                ("uploaded", size(report.files_uploaded, report.bytes_uploaded)),
                ("there already", size(report.files_shared, report.bytes_shared)),
            ];
            if !report.contiguous {
                let note = "between the backup before and this one; --follow leaves none out";
                lines.push(("not restorable", note.to_owned()));
            }
            output::report("backup", self.output.json, uploaded, &lines)
        }
    }
}
