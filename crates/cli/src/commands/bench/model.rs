//! `terrane bench model`: what a lookup should cost in reads, alone or beside what was measured.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use terrane_bench::model::{FilterKind, Goal, Prediction, Shape};

use super::choices::OptimizeForArg;
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;

pub(super) const EXAMPLES: &str = "\
Examples:
  Levels apart by ten, ribbon filters, 1.5 bytes of index a page, 0.05 to 3 %:
    terrane bench model
  The same with Bloom filters, for hits, at 0.1 and 0.2 %:
    terrane bench model --filter bloom --optimize-for hits --memory 0.1%,0.2%
  Beside what was measured:
    terrane bench kvget run --store DIR --memory-budget 0.2% --json > run.json
    terrane bench model --beside run.json

Not modelled: skew, merges in flight, a first level of overlapping runs, blobs, values of several \
pages, processor time.";

/// Name of a shape.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ShapeArg {
    /// One run on each level, levels apart by ten: a tenth of the entries in 4 runs above the last
    #[value(name = "levelled-10")]
    Levelled10,
    /// One run on each level, levels apart by four: a quarter in 5 runs above the last
    #[value(name = "levelled-4")]
    Levelled4,
    /// Several runs on each level, levels apart by four: 37 % in 9 runs above the last
    #[value(name = "lazy-4")]
    Lazy4,
}

args::choices! {
    /// Name of a kind of filter.
    enum FilterArg => FilterKind {
        Bloom => FilterKind::Bloom,
        Ribbon => FilterKind::Ribbon,
        Fuse => FilterKind::Fuse,
    }
}

#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Memory for each byte of keys and values
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', value_parser = args::ratio,
        default_value = "0.05%,0.1%,0.2%,0.5%,0.9%,1%,3%")]
    memory: Vec<f64>,
    /// Kind of lookup that the memory is spent for
    #[arg(long, alias = "goal", value_name = "LOOKUPS", default_value = "both")]
    optimize_for: OptimizeForArg,
    /// Division of the entries among runs
    #[arg(long, value_name = "SHAPE", default_value = "levelled-10")]
    shape: ShapeArg,
    /// Share of the entries in runs above the last, instead of the shape's
    #[arg(long, value_name = "PERCENT", value_parser = args::ratio)]
    upper_ratio: Option<f64>,
    /// Runs above the last, instead of the shape's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    upper_runs: Option<u32>,
    /// Bytes of the index for each page
    #[arg(long, value_name = "BYTES", value_parser = positive, default_value = "1.5")]
    index_bytes: f64,
    /// Entries on a page
    #[arg(long, value_name = "N", value_parser = positive, default_value = "28")]
    entries_per_page: f64,
    /// Bytes of a key and its value
    #[arg(long, value_name = "BYTES", value_parser = positive, default_value = "142")]
    entry_bytes: f64,
    /// Kind of the filters
    #[arg(long, value_name = "KIND", default_value = "ribbon")]
    filter: FilterArg,
    /// JSON of a `terrane bench kvget run`, whose table and memory replace all of the above
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Parses a number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.is_finite() && number > 0.0 { Ok(number) } else { Err("must be above 0".to_owned()) }
}

/// Predictions for several memory sizes.
#[derive(Serialize)]
struct Predicted {
    goal: Goal,
    upper_ratio: f64,
    upper_runs: f64,
    index_bytes_per_page: f64,
    entries_per_page: f64,
    entry_bytes: f64,
    filter: FilterKind,
    predictions: Vec<Prediction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measurement>,
}

/// Measured reads, and their distance from the prediction.
#[derive(Serialize)]
struct Measurement {
    io_per_get: f64,
    predicted_io_per_get: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_error_ratio: Option<f64>,
}

/// Fields of a report that the model needs.
#[derive(Deserialize)]
struct Beside {
    io_per_get: f64,
    model: BesideModel,
    memory: BesideMemory,
    engine: BesideEngine,
    workload: BesideWorkload,
}

#[derive(Deserialize)]
struct BesideModel {
    upper_ratio: f64,
    upper_runs: f64,
    index_bytes_per_page: f64,
    entries_per_page: f64,
    filter: FilterKind,
}

#[derive(Deserialize)]
struct BesideMemory {
    budget_ratio: Option<f64>,
}

#[derive(Deserialize)]
struct BesideEngine {
    logical_bytes: f64,
    options: BesideOptions,
}

#[derive(Deserialize)]
struct BesideOptions {
    memory_goal: Goal,
}

#[derive(Deserialize)]
struct BesideWorkload {
    entries: f64,
    absent_ratio: f64,
}

impl ModelArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let predictions = match &self.beside {
            Some(file) => beside(file)?,
            None => predictions(&self.table(), self.optimize_for.into(), &self.memory),
        };

        let mut lines = vec![(
            "memory".to_owned(),
            "per hit   per miss  bits above  bits last  index   cache".to_owned(),
        )];

        for found in &predictions.predictions {
            let row = format!(
                "{:<8.4}  {:<8.4}  {:<10.1}  {:<9.1}  {:<6.3}  {:.4}",
                found.predicted_io_per_hit,
                found.predicted_io_per_miss,
                found.upper_filter_bits,
                found.last_filter_bits,
                found.index_cached_ratio,
                found.data_cached_ratio,
            );
            lines.push((format!("{:.3} %", found.memory_ratio * 100.0), row));
        }

        if let Some(measured) = &predictions.measured {
            let found = measured.io_per_get;
            let expected = measured.predicted_io_per_get;
            let text = format!("{found:.4} reads a lookup, where {expected:.4} were predicted");
            lines.push(("measured".to_owned(), text));
        }

        let lines: Vec<_> = lines.iter().map(|(name, row)| (name.as_str(), row.clone())).collect();

        output::report(command, self.output.json, &predictions, &lines)
    }

    fn table(&self) -> Shape {
        let (upper_ratio, upper_runs) = match self.shape {
            ShapeArg::Levelled10 => (0.1, 4),
            ShapeArg::Levelled4 => (0.25, 5),
            ShapeArg::Lazy4 => (0.37, 9),
        };

        Shape {
            upper_ratio: self.upper_ratio.unwrap_or(upper_ratio),
            upper_runs: f64::from(self.upper_runs.unwrap_or(upper_runs)),
            index_bytes_per_page: self.index_bytes,
            entries_per_page: self.entries_per_page,
            entry_bytes: self.entry_bytes,
            filter: self.filter.into(),
        }
    }
}

fn predictions(shape: &Shape, goal: Goal, memory: &[f64]) -> Predicted {
    Predicted {
        goal,
        upper_ratio: shape.upper_ratio,
        upper_runs: shape.upper_runs,
        index_bytes_per_page: shape.index_bytes_per_page,
        entries_per_page: shape.entries_per_page,
        entry_bytes: shape.entry_bytes,
        filter: shape.filter,
        predictions: memory.iter().map(|&ratio| shape.predict(ratio, goal)).collect(),
        measured: None,
    }
}

/// Predicts the reads of the table of a report.
fn beside(file: &Path) -> Result<Predicted, Failure> {
    let refuse = |what: &str| Failure::usage(format!("{}: {what}", file.display()));
    let bytes = std::fs::read(file).map_err(|error| refuse(&error.to_string()))?;

    let report: Beside = serde_json::from_slice(&bytes)
        .map_err(|error| refuse(&format!("no report of `terrane bench kvget run`: {error}")))?;
    let Some(ratio) = report.memory.budget_ratio else {
        return Err(refuse("the run had no memory budget, for which alone there are predictions"));
    };

    let shape = Shape {
        upper_ratio: report.model.upper_ratio,
        upper_runs: report.model.upper_runs,
        index_bytes_per_page: report.model.index_bytes_per_page,
        entries_per_page: report.model.entries_per_page,
        entry_bytes: report.engine.logical_bytes / report.workload.entries,
        filter: report.model.filter,
    };

    let needed = [shape.index_bytes_per_page, shape.entries_per_page, shape.entry_bytes];
    if !needed.iter().all(|&number| number.is_finite() && 0.0 < number) {
        return Err(refuse("the table of that run has no pages"));
    }

    let found = predictions(&shape, report.engine.options.memory_goal, &[ratio]);
    let expected = shape
        .predict(ratio, report.engine.options.memory_goal)
        .io_per_get(report.workload.absent_ratio);

    let measured = Measurement {
        io_per_get: report.io_per_get,
        predicted_io_per_get: expected,
        model_error_ratio: (expected > 0.0)
            .then(|| (report.io_per_get - expected).abs() / expected),
    };

    Ok(Predicted { measured: Some(measured), ..found })
}
