//! `terrane verify ADDRESS`: every object that a backup in a bucket needs.
//!
//! Reports `bucket`, `problems` (list of `object`, `rule`, `backups`: names of those that need the
//! object), `left` (how many), `backups`, `objects`, `bytes` (read), `unreferenced_objects`,
//! `unreferenced_bytes`, `requests`, `wall_s`.

use std::time::Instant;

use serde::Serialize;
use terrane_object::{Requests, VerifyReport};

use crate::stores::bucket;
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::progress::ByteBar;
use crate::ui::text::count_of;
use crate::verify::outcome::Reporting;

#[derive(Serialize)]
struct Checked<'a> {
    bucket: &'a str,
    #[serde(flatten)]
    report: VerifyReport,
    left: u64,
    requests: Requests,
    wall_s: f64,
}

/// Checks a bucket, prints the report and returns the exit code.
///
/// # Errors
/// [`Failure`], not yet reported.
pub(super) fn verify(address: &str, quick: bool, reporting: Reporting) -> Result<u8, Failure> {
    let started = Instant::now();
    let bucket = bucket::open(address)?;
    let mut bar = ByteBar::new("checking", reporting.quiet);
    let report = bucket.verify(quick, &mut |done, total| bar.set(done, total))?;
    drop(bar);

    let checked = Checked {
        bucket: address,
        left: report.problems.len() as u64,
        requests: bucket.requests(),
        wall_s: started.elapsed().as_secs_f64(),
        report,
    };
    let report = &checked.report;
    let mut lines = Vec::new();
    for problem in &report.problems {
        let backups = problem.backups.join(", ");
        lines.push(format!("{}: {}; needed by {backups}", problem.object, problem.rule));
    }
    let problems = count_of(checked.left, "problem", "problems");
    lines.push(format!(
        "checked {}, {}, {} read in {:.3} s: {problems}",
        count_of(report.backups, "backup", "backups"),
        count_of(report.objects, "object", "objects"),
        bytes(report.bytes),
        checked.wall_s,
    ));
    if report.unreferenced_objects > 0 {
        let objects = count_of(report.unreferenced_objects, "object", "objects");
        let size = bytes(report.unreferenced_bytes);
        lines.push(format!(
            "no backup needs {objects}, {size}; next: terrane backups drop {address}"
        ));
    }

    let failure = (checked.left > 0).then(|| {
        Failure::corrupt(format!("{address}: {problems}; restore from a backup that is whole"))
    });
    output::checked(
        reporting.command,
        reporting.json,
        &checked,
        &lines.join("\n"),
        failure.as_ref(),
    )
}
