//! `terrane bench compare`: the difference of two results, with rules that it must keep.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;
use terrane_bench::report::compare::{self, Comparison, Measured, Rule};

use crate::ui::args::OutputArgs;
use crate::ui::exit::Failure;
use crate::ui::output;

pub(super) const EXAMPLES: &str = "\
Examples:
  What has changed between two runs:
    terrane bench compare before.json after.json
  For a test: exit code 1 if reads grow by 3 %, or the rate falls by 5 %:
    terrane bench compare before.json after.json \\
      --fail-if 'io_per_get>+3%' --fail-if 'lookups_per_s<-5%'
  Three runs of each, from whose spread the intervals come:
    terrane bench compare b1.json,b2.json,b3.json a1.json,a2.json,a3.json

The files are objects of `--json` or `--out`. A rule fails if its bound is crossed and the intervals \
of 95 % do not overlap. A metric is a field, by its path: `io_per_get`, `latency_us.get.p99`.";

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Result of the old runs, as files of JSON
    #[arg(value_name = "OLD,…", value_parser = files)]
    old: Files,
    /// Result of the new runs, as files of JSON
    #[arg(value_name = "NEW,…", value_parser = files)]
    new: Files,
    /// Rule whose failure is exit code 1: METRIC>+N%, METRIC<-N%, or the same without % for a
    /// difference
    #[arg(long, value_name = "RULE", value_parser = rule)]
    fail_if: Vec<Rule>,
    /// Compares results of unlike work, too
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Names of files, divided by commas.
#[derive(Debug, Clone)]
struct Files(Vec<PathBuf>);

fn files(text: &str) -> Result<Files, String> {
    let names: Vec<PathBuf> = text.split(',').map(PathBuf::from).collect();
    if names.iter().any(|name| name.as_os_str().is_empty()) {
        return Err("a name of a file is empty".to_owned());
    }
    Ok(Files(names))
}

fn rule(text: &str) -> Result<Rule, String> {
    Rule::parse(text).map_err(|error| error.to_string())
}

/// Reads the reports in files.
pub(super) fn reports(files: &[PathBuf]) -> Result<Vec<Value>, Failure> {
    let read = |file: &PathBuf| {
        let refuse = |what: &str| Failure::usage(format!("{}: {what}", file.display()));
        let bytes = std::fs::read(file).map_err(|error| refuse(&error.to_string()))?;
        let report: Value = serde_json::from_slice(&bytes)
            .map_err(|error| refuse(&format!("no report of `terrane bench`: {error}")))?;
        if report.get("command").is_none_or(|command| !command.is_string()) {
            return Err(refuse("no report of `terrane bench`: it names no command"));
        }
        Ok(report)
    };
    files.iter().map(read).collect()
}

impl CompareArgs {
    pub(super) fn run(&self, command: &str) -> Result<u8, Failure> {
        let [old, new] = [reports(&self.old.0)?, reports(&self.new.0)?];
        let found = compare::compare((&old, &new), &self.fail_if, self.force)
            .map_err(|error| Failure::usage(error.to_string()))?;

        let regressions = found.regressions();
        let failure = (!regressions.is_empty())
            .then(|| Failure::check(format!("worse: {}", regressions.join("; "))));
        let text = text(&found, (&self.old.0, &self.new.0));
        output::checked(command, self.output.json, &found, &text, failure.as_ref())
    }
}

/// Returns the table for people.
fn text(found: &Comparison, (old, new): (&[PathBuf], &[PathBuf])) -> String {
    let names = |files: &[PathBuf]| {
        let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        names.join(", ")
    };
    let mut lines = vec![("old", names(old)), ("new", names(new))];
    lines.extend(found.unlike.iter().map(|difference| ("unlike", difference.clone())));
    lines.extend(found.metrics.iter().map(|metric| {
        let change =
            metric.change_ratio.map_or(String::new(), |ratio| format!(", {:+.2} %", ratio * 100.0));
        let verdict = if metric.broken.is_empty() { "" } else { "  WORSE" };
        let [old, new] = [&metric.old, &metric.new].map(shown);
        (metric.metric.as_str(), format!("{old} -> {new}{change}{verdict}"))
    }));
    output::aligned(&lines)
}

fn shown(measured: &Measured) -> String {
    let digits = if measured.value.abs() < 100.0 { 4 } else { 0 };
    let interval = measured.ci95.map_or(String::new(), |ci95| format!(" ± {ci95:.digits$}"));
    format!("{:.digits$}{interval}", measured.value)
}

/// Name of a file without its folder.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
