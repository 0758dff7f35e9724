//! Named choices that several benchmarks share.

use terrane_bench::model::Goal;
use terrane_bench::workloads::context::profile::{LIMA, LIMA_MEAN, Profile, YEAR_2021};
use terrane_bench::workloads::utxo::Shape;

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
