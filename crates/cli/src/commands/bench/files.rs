//! Files that get the report of a benchmark, beside standard output.
//!
//! `--out` gets the object that `--json` prints. `--jsonl` gets a line for each measured window,
//! then the object. `--csv` gets a row of the main figures under a line of their names. The
//! benchmark creates the files before it measures, so that an unwritable file fails at once. They
//! are empty until the end.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::ui::exit::Failure;

/// Arguments that name the files of a report.
#[derive(Debug, Args)]
pub(super) struct FileArgs {
    /// File for the JSON object
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// File for a line of JSON for each measured window, then the object
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,
    /// File for the main figures, as a row of comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Figures of a row: paths in the object, whose parts make the name of a column.
const COLUMNS: [&[&str]; 28] = [
    &["started_at"],
    &["status"],
    &["workload", "seed"],
    &["workload", "stream_hash"],
    &["workload", "entries"],
    &["workload", "distribution"],
    &["workload", "absent_ratio"],
    &["workload", "batch_size"],
    &["workload", "threads"],
    &["workload", "ops"],
    &["engine", "io_mode"],
    &["memory", "budget_bytes"],
    &["memory", "budget_ratio"],
    &["memory", "memory_enforced"],
    &["memory", "filter_bytes"],
    &["memory", "index_bytes"],
    &["memory", "cache_bytes"],
    &["memory", "rss_peak_bytes"],
    &["io_per_get"],
    &["io", "io_per_get_ci95"],
    &["io", "bytes_per_get"],
    &["lookups_per_s"],
    &["cpu_us_per_op"],
    &["speed", "eta"],
    &["speed", "latency_us", "get", "p50"],
    &["speed", "latency_us", "get", "p99"],
    &["device", "fio_read_iops"],
    &["convergence", "converged"],
];

/// Files of a report, created and still empty.
#[derive(Debug)]
pub(super) struct Files<'a> {
    out: Option<(&'a Path, File)>,
    jsonl: Option<(&'a Path, File)>,
    csv: Option<(&'a Path, File)>,
}

fn make(path: Option<&PathBuf>) -> Result<Option<(&Path, File)>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let file = File::create(path).map_err(|error| failed(path, &error))?;
    Ok(Some((path, file)))
}

fn failed(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::environment(format!("{}: {error}", path.display()))
}

fn write(file: Option<(&Path, File)>, lines: &[String]) -> Result<(), Failure> {
    let Some((path, mut file)) = file else { return Ok(()) };
    let written = lines.iter().try_for_each(|line| writeln!(file, "{line}"));
    written.map_err(|error| failed(path, &error))
}

impl FileArgs {
    /// Creates the files that the arguments name.
    pub(super) fn make(&self) -> Result<Files<'_>, Failure> {
        Ok(Files {
            out: make(self.out.as_ref())?,
            jsonl: make(self.jsonl.as_ref())?,
            csv: make(self.csv.as_ref())?,
        })
    }
}

impl Files<'_> {
    /// Writes `object`, the text of a report, and the windows that it sums up.
    pub(super) fn write<W: Serialize>(self, report: String, windows: &[W]) -> Result<(), Failure> {
        let row = row(&report).map_err(|error| invalid(&error))?;
        let lines: Result<Vec<String>, _> = windows.iter().map(serde_json::to_string).collect();
        let mut lines = lines.map_err(|error| invalid(&error))?;
        lines.push(report);
        write(self.out, &lines[lines.len() - 1..])?;
        write(self.jsonl, &lines)?;
        write(self.csv, &row)
    }
}

fn invalid(error: &serde_json::Error) -> Failure {
    Failure::environment(error.to_string())
}

/// Returns the names of the columns and their values; a missing value is empty.
fn row(report: &str) -> serde_json::Result<[String; 2]> {
    let report: Value = serde_json::from_str(report)?;
    let names = COLUMNS.map(|place| place.join("_"));
    let values = COLUMNS.map(|place| {
        let found = place.iter().try_fold(&report, |value, name| value.get(name));
        match found {
            None | Some(Value::Null) => String::new(),
            // Values are not quoted, as none has a comma or a quotation mark.
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }
    });

    Ok([names.join(","), values.join(",")])
}
