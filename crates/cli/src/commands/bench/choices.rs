//! Named choices that several benchmarks share, and parsers of shared options.

use terrane_bench::model::Goal;
use terrane_bench::workloads::context::profile::{LIMA, LIMA_MEAN, Profile, YEAR_2021};
use terrane_bench::workloads::draws::{DISTRIBUTIONS, Distribution};
use terrane_bench::workloads::kvget::run::Budget;
use terrane_bench::workloads::utxo::Shape;
use terrane_bench::workloads::values::{HISTOGRAM_ROWS_MAX, VALUE_BYTES_MAX, Values};

use crate::ui::args;

args::choices! {
    /// Name of a shape.
    pub(super) enum ShapeArg => Shape {
        /// One run on each level, each ten times the one above
        #[value(name = "levelled-10")]
        Levelled10 => Shape::Levelled10,
        /// Lazy levelling, each level four times the one above
        Default => Shape::Default,
    }
}

args::choices! {
    /// Lookups that memory is spent for.
    pub(super) enum OptimizeForArg => Goal {
        /// Few reads for a present key
        #[value(alias = "hit")]
        Hits => Goal::Hit,
        /// Few reads for an absent key
        #[value(alias = "miss")]
        Misses => Goal::Miss,
        /// Both alike
        #[value(alias = "balanced")]
        Both => Goal::Balanced,
    }
}

args::choices! {
    /// Name of a profile.
    pub(crate) enum ProfileArg => &'static Profile {
        /// Block of the protocol Lima: 9,435 operations, 46 transactions
        Lima => &LIMA,
        /// Mean block of the protocol Lima: 2,508 operations, 46 transactions
        LimaMean => &LIMA_MEAN,
        /// Mean block of the year 2021: 386 operations
        #[value(name = "2021")]
        Year2021 => &YEAR_2021,
    }
}

/// Parses a distribution.
pub(super) fn distribution(text: &str) -> Result<Distribution, String> {
    Distribution::from_name(text).ok_or_else(|| format!("write {DISTRIBUTIONS}"))
}

/// Parses a memory budget: a percentage of the data, or bytes.
pub(super) fn budget(text: &str) -> Result<Budget, String> {
    if text.ends_with('%') {
        args::ratio(text).map(Budget::Ratio)
    } else {
        args::size(text).map(Budget::Bytes)
    }
}

/// Parses kinds of values. The rows of a histogram come out of a file.
pub(super) fn values(text: &str) -> Result<Values, String> {
    let Some(file) = text.strip_prefix("hist:") else {
        let forms = "random:110, uniform:50..300, dict:32, hist:FILE, bitcoin or ethereum";
        let bounds = format!("a size is at most {VALUE_BYTES_MAX}");
        return Values::from_name(text).ok_or_else(|| format!("write {forms}; {bounds}"));
    };

    let rows = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let lines = (1..).zip(rows.lines()).filter(|(_, line)| !line.trim().is_empty());
    let rows: Result<Vec<_>, String> = lines
        .map(|(number, line)| {
            let row = line.trim().split_once(' ');
            let row = row.and_then(|(bytes, weight)| {
                Some((bytes.parse().ok()?, weight.trim_start().parse().ok()?))
            });
            row.ok_or_else(|| format!("{file}:{number}: write a size, a space and a weight"))
        })
        .collect();
    Values::histogram(&rows?).ok_or_else(|| {
        format!(
            "{file}: 1 to {HISTOGRAM_ROWS_MAX} rows, sizes to {VALUE_BYTES_MAX}, a weight above 0"
        )
    })
}
