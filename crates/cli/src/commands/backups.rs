//! `terrane backups`: lists and drops the backups in a bucket.
//!
//! # JSON
//!
//! | command | fields |
//! |---------|--------|
//! | `list`  | `bucket`, `backups`: list of `id`, `base_commit`, `commit` (each commit from the one to the other can be restored), `created_unix_s`, `bytes`, `files`, `manifest`, `manifest_sha256`; `requests` |
//! | `drop`  | `bucket`, `dropped` (list of names), `left`, `uploads_given_up`, `objects_deleted`, `bytes_deleted`, `requests` |

use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use serde::Serialize;
use terrane_object::{ABANDONED_AFTER_S, BackupInfo, DropReport, Requests, Retention};

use crate::stores::bucket;
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::text::{count_of, grouped};

/// Sub-commands of `terrane backups`.
#[derive(Debug, Subcommand)]
pub(crate) enum Backups {
    /// Lists the backups in a bucket, and the commits that they can restore
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Drops backups, and deletes the objects that no other backup needs
    #[command(aliases = ["delete", "remove", "prune"], after_help = DROP_EXAMPLES)]
    Drop(DropArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane backups list s3://ledger-backups/main
  terrane backups drop s3://ledger-backups/main --keep-last 30";

const LIST_EXAMPLES: &str = "\
Example:
  terrane backups list s3://ledger-backups/main --json";

const DROP_EXAMPLES: &str = "\
Examples:
  terrane backups drop s3://ledger-backups/main 3f9c0e5a17b2d468
  Keep the newest 30, and those of the last 90 days:
    terrane backups drop s3://ledger-backups/main --keep-last 30
    terrane backups drop s3://ledger-backups/main --older-than-days 90
  Delete what interrupted uploads have left, at once:
    terrane backups drop s3://ledger-backups/main --abandoned-after 0

Safe while backups are made: an object of a running upload is never deleted. An upload that began \
longer ago than --abandoned-after (a day) is given up; if it still runs, it ends with an error.";

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Address of the bucket: s3://, gs://, az:// or file://
    #[arg(value_name = "ADDRESS")]
    address: String,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    /// Address of the bucket: s3://, gs://, az:// or file://
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// Names of backups to drop
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Drops all but so many of the newest
    #[arg(long, value_name = "COUNT", value_parser = args::positive_count)]
    keep_last: Option<u64>,
    /// Drops those whose base was uploaded so many days ago; the newest stays
    #[arg(long, value_name = "DAYS", value_parser = args::count)]
    older_than_days: Option<u64>,
    /// Gives up uploads that began so many seconds ago
    #[arg(long, value_name = "SECONDS", value_parser = args::count, default_value_t = ABANDONED_AFTER_S)]
    abandoned_after: u64,
    #[command(flatten)]
    output: OutputArgs,
}

impl Backups {
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::List(_) => "backups list",
            Self::Drop(_) => "backups drop",
        }
    }

    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match self {
            Self::List(args) => args.run(),
            Self::Drop(args) => args.run(),
        }
        .map(|()| 0)
    }
}

#[derive(Serialize)]
struct Listed<'a> {
    bucket: &'a str,
    backups: Vec<BackupInfo>,
    requests: Requests,
}

impl ListArgs {
    fn run(&self) -> Result<(), Failure> {
        let bucket = bucket::open(&self.address)?;
        let backups = bucket.backups()?;
        let listed = Listed { bucket: &self.address, backups, requests: bucket.requests() };
        if self.output.json {
            return output::report("backups list", true, &listed, &[]);
        }
        if listed.backups.is_empty() {
            return output::print("no backups");
        }
        let commits = |info: &BackupInfo| {
            format!("{} to {}", grouped(info.base_commit), grouped(info.commit))
        };
        let width = listed.backups.iter().map(|info| commits(info).len()).max().unwrap_or(0);
        let width = width.max("COMMITS".len());
        let header = format!("{:16}  {:width$}  {:>10}  AGE", "BACKUP", "COMMITS", "BYTES");
        let mut lines = vec![header];
        for info in &listed.backups {
            let age = age(info.created_unix_s);
            lines.push(format!(
                "{:16}  {:width$}  {:>10}  {age}",
                info.id,
                commits(info),
                bytes(info.bytes)
            ));
        }
        output::print(&lines.join("\n"))
    }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Age of a backup in its largest unit.
fn age(created_unix_s: u64) -> String {
    let seconds = now_unix_s().saturating_sub(created_unix_s);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[derive(Serialize)]
struct Dropped<'a> {
    bucket: &'a str,
    #[serde(flatten)]
    report: DropReport,
    requests: Requests,
}

impl DropArgs {
    fn run(&self) -> Result<(), Failure> {
        let mut retention = Retention::new().abandoned_after(self.abandoned_after);
        for id in &self.ids {
            retention = retention.drop(id);
        }
        if let Some(count) = self.keep_last {
            retention = retention.keep_last(count);
        }
        if let Some(days) = self.older_than_days {
            retention = retention.before(now_unix_s().saturating_sub(days.saturating_mul(86_400)));
        }

        let bucket = bucket::open(&self.address)?;
        let report = bucket.drop_backups(&retention)?;
        let dropped = Dropped { bucket: &self.address, report, requests: bucket.requests() };
        let report = &dropped.report;
        let objects = count_of(report.objects_deleted, "object", "objects");
        let lines = [
            ("dropped", count_of(report.dropped.len() as u64, "backup", "backups")),
            ("left", count_of(report.left, "backup", "backups")),
            ("deleted", format!("{objects}, {}", bytes(report.bytes_deleted))),
            ("uploads given up", report.uploads_given_up.to_string()),
        ];
        output::report("backups drop", self.output.json, &dropped, &lines)
    }
}
