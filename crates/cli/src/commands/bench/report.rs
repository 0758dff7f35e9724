//! `terrane bench report`: reports as one page with plots.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use terrane_bench::report::html::Input;
use terrane_bench::report::journal;
use terrane_bench::report::page::Page;
use terrane_bench::report::rivals::Comparison;

use crate::ui::args::OutputArgs;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::stream::Output;

pub(super) const EXAMPLES: &str = "\
Examples:
  Runs, with their time series, beside the model:
    terrane bench model --json > model.json
    terrane bench report run.jsonl model.json --html report.html
  All points of a sweep, and published logs:
    terrane bench report kvget.sweep pebble.json --html report.html

The page is one file without network: plots, figures with their commands, raw data. Files are JSON \
of any benchmark, `--jsonl` files, journals of sweeps, and results of `terrane-peers`.";

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// JSON of benchmarks, `--jsonl` files, journals of sweeps, or results of `terrane-peers`
    #[arg(value_name = "R.json", required = true)]
    reports: Vec<PathBuf>,
    /// File for the page; one that exists is replaced
    #[arg(long, value_name = "OUT")]
    html: PathBuf,
    /// Title of the page
    #[arg(long, value_name = "TEXT", default_value = "Terrane: benchmarks")]
    title: String,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    html: &'a Path,
    reports: usize,
    plots: usize,
    bytes: usize,
}

/// Reads the reports of a file.
fn read(path: &Path) -> Result<Vec<Input>, Failure> {
    let bytes = std::fs::read(path).map_err(|error| Failure::of_file(path, &error))?;
    let refuse = |what: &str| Failure::usage(format!("{}: {what}", path.display()));
    let text = String::from_utf8(bytes).map_err(|_| refuse("not text"))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if let Some(reports) = journal::reports(&text) {
        let inputs = reports.into_iter().map(|report| Input::new(&name, report, Vec::new()));
        return Ok(inputs.collect());
    }

    let values: Result<Vec<Value>, _> =
        serde_json::Deserializer::from_str(&text).into_iter().collect();
    let mut values = values.map_err(|error| refuse(&error.to_string()))?;
    match values.pop() {
        Some(report)
            if report.get("command").is_some_and(Value::is_string)
                || !Comparison::of([&report]).is_empty() =>
        {
            Ok(vec![Input::new(&name, report, values)])
        }
        _ => Err(refuse("not a report of a benchmark")),
    }
}

impl ReportArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let out = Output::new(&self.html, true, self.output.json)?;
        let mut inputs = Vec::new();
        for path in &self.reports {
            inputs.extend(read(path)?);
        }

        let reports = inputs.len();
        let page = Page::of(&self.title, inputs);
        let page = page.map_err(|error| Failure::environment(error.to_string()))?;
        let html = page.html().map_err(|error| Failure::environment(error.to_string()))?;
        out.write(html.as_bytes())?;

        let report = Report { html: &self.html, reports, plots: page.plots(), bytes: html.len() };
        let lines = [
            ("page", self.html.display().to_string()),
            ("reports", report.reports.to_string()),
            ("plots", report.plots.to_string()),
            ("size", output::bytes(report.bytes as u64)),
        ];
        out.report(command, &report, &output::aligned(&lines))
    }
}
