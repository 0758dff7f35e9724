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

/// Lookups that memory is spent for.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum OptimizeForArg {
    /// Few reads for a present key
    #[value(alias = "hit")]
    Hits,
    /// Few reads for an absent key
    #[value(alias = "miss")]
    Misses,
    /// Both alike
    #[value(alias = "balanced")]
    Both,
}

impl From<OptimizeForArg> for Goal {
    fn from(lookups: OptimizeForArg) -> Self {
        match lookups {
            OptimizeForArg::Hits => Self::Hit,
            OptimizeForArg::Misses => Self::Miss,
            OptimizeForArg::Both => Self::Balanced,
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
