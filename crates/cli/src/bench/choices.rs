//! What several benchmarks let their callers choose, by name.

use clap::ValueEnum;
use terrane_bench::model::Goal;
use terrane_bench::workload::utxo::Shape;

/// A shape, by its name.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum ShapeArg {
    /// One run on each level, each ten times the one above
    #[value(name = "levelled-10")]
    Levelled10,
    /// Lazy levelling, each level four times the one above
    Default,
}

impl From<ShapeArg> for Shape {
    fn from(shape: ShapeArg) -> Self {
        match shape {
            ShapeArg::Levelled10 => Self::Levelled10,
            ShapeArg::Default => Self::Default,
        }
    }
}

/// A goal, by its name.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum GoalArg {
    /// Few reads for a key that is there
    Hit,
    /// Few reads for a key that is absent
    Miss,
    /// Both
    Balanced,
}

impl From<GoalArg> for Goal {
    fn from(goal: GoalArg) -> Self {
        match goal {
            GoalArg::Hit => Self::Hit,
            GoalArg::Miss => Self::Miss,
            GoalArg::Balanced => Self::Balanced,
        }
    }
}
