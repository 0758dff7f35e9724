//! Named choices that several benchmarks share.

use clap::ValueEnum;
use terrane_bench::model::Goal;
use terrane_bench::workloads::context::profile::{LIMA, Profile, YEAR_2021};
use terrane_bench::workloads::utxo::Shape;

/// Name of a shape.
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

/// Name of a goal.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum GoalArg {
    /// Few reads for a present key
    Hit,
    /// Few reads for an absent key
    Miss,
    /// Both alike
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

/// Name of a profile.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ProfileArg {
    /// Block of the protocol Lima: 9,435 operations, 46 transactions
    Lima,
    /// Mean block of the year 2021: 386 operations
    #[value(name = "2021")]
    Year2021,
}

impl From<ProfileArg> for &'static Profile {
    fn from(profile: ProfileArg) -> Self {
        match profile {
            ProfileArg::Lima => &LIMA,
            ProfileArg::Year2021 => &YEAR_2021,
        }
    }
}
