//! Model of the reads of a lookup, from the memory that a table is given.
//!
//! A table is one large last run and `upper_runs` smaller ones above it, which together hold the
//! share `upper_ratio` of all entries. Memory per entry, in bytes, goes to filters of the upper
//! runs, to the index, to the filter of the last run and to a cache of pages:
//!
//! ```text
//! memory = φ·b_up/8 + ci·w/c + (1 − φ)·b_last/8 + dc·E
//! hit    = [1 + (1 − φ)·R·ε(b_up) + φ·(R/2)·ε(b_up)] · (2 − ci) · (1 − dc)
//! miss   = [R·ε(b_up) + ε(b_last)] · (2 − ci)
//! ```
//!
//! with φ = `upper_ratio`, R = `upper_runs`, w index bytes a page, c entries a page, E bytes an
//! entry, b bits of a filter per key, ε its false-positive rate, ci and dc the shares of index and
//! pages that are in memory. Not modelled: skew, merges in flight (more runs, pages that they push
//! out), a first level whose runs overlap, blobs, values of several pages, CPU.
//!
//! The best split is found by search: the filters of the upper runs are paid first, the index takes
//! what it can of the rest, and only once it fits, the filter of the last run gets something; what
//! remains is cache.

use serde::{Deserialize, Serialize};
use terrane::lsm::MemoryGoal;

/// Kind of a filter, which decides its bits and its false-positive rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterKind {
    /// `0.6185^b`.
    Bloom,
    /// `2^(−b/1.06)`.
    #[default]
    Ribbon,
    /// `2^(−b/1.13)`: binary fuse.
    Fuse,
}

impl FilterKind {
    /// False-positive rate at that many bits per key; 1 without any bits.
    #[must_use]
    pub fn false_positive_rate(self, bits: f64) -> f64 {
        match self {
            Self::Bloom => 0.6185_f64.powf(bits),
            Self::Ribbon => (-bits / 1.06).exp2(),
            Self::Fuse => (-bits / 1.13).exp2(),
        }
    }
}

/// Kind of lookups that memory is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Few reads for a key that is there.
    Hit,
    /// Few reads for one that is not.
    Miss,
    /// Both, equally often.
    #[default]
    Balanced,
}

/// A table, as far as its reads depend on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Share of the entries in runs above the last.
    pub upper_ratio: f64,
    /// Runs above the last.
    pub upper_runs: f64,
    /// Bytes of the index for each page of entries.
    pub index_bytes_per_page: f64,
    /// Entries on a page.
    pub entries_per_page: f64,
    /// Bytes of key and value.
    pub entry_bytes: f64,
    /// Kind of the filters.
    pub filter: FilterKind,
}

impl Default for Shape {
    /// Levelled with a size ratio of 10, entries of 142 bytes, an Elias–Fano index of 1.5 bytes a
    /// page.
    fn default() -> Self {
        Self {
            upper_ratio: 0.1,
            upper_runs: 4.0,
            index_bytes_per_page: 1.5,
            entries_per_page: 28.0,
            entry_bytes: 142.0,
            filter: FilterKind::default(),
        }
    }
}

/// Split of the memory, with the cost of lookups.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prediction {
    /// Memory for each byte of keys and values.
    pub memory_ratio: f64,
    /// Bits per key of the filters of the upper runs.
    pub upper_filter_bits: f64,
    /// Bits per key of the filter of the last run.
    pub last_filter_bits: f64,
    /// Share of the index that is in memory.
    pub index_cached_ratio: f64,
    /// Share of the pages that are in memory.
    pub data_cached_ratio: f64,
    /// Reads of a lookup of a key that is there.
    pub predicted_io_per_hit: f64,
    /// Reads of a lookup of a key that is not.
    pub predicted_io_per_miss: f64,
}

impl Prediction {
    /// Reads of a lookup if this share of the keys is absent.
    #[must_use]
    pub fn io_per_get(&self, absent_ratio: f64) -> f64 {
        let hit = self.predicted_io_per_hit;
        let miss = self.predicted_io_per_miss;
        hit.mul_add(1.0 - absent_ratio, miss * absent_ratio)
    }

    fn cost(&self, goal: Goal) -> f64 {
        match goal {
            Goal::Hit => self.predicted_io_per_hit,
            Goal::Miss => self.predicted_io_per_miss,
            Goal::Balanced => self.io_per_get(0.5),
        }
    }
}

/// Most bits per key that are tried for the upper runs and for the last one, in steps of the
/// search.
const UPPER_STEPS: u32 = 240;
const LAST_STEPS: u32 = 80;

/// Steps of the search for each bit.
const UPPER_STEPS_PER_BIT: f64 = 10.0;
const LAST_STEPS_PER_BIT: f64 = 5.0;

impl From<Goal> for MemoryGoal {
    fn from(goal: Goal) -> Self {
        match goal {
            Goal::Hit => Self::Hit,
            Goal::Miss => Self::Miss,
            Goal::Balanced => Self::Balanced,
        }
    }
}

impl Shape {
    /// The best split of `memory_ratio` bytes for each byte of keys and values. Of equal ones the
    /// first found: the one with the smallest filters.
    #[must_use]
    pub fn predict(&self, memory_ratio: f64, goal: Goal) -> Prediction {
        let memory = memory_ratio * self.entry_bytes;

        let mut best = self.cost(memory_ratio, [0.0, 0.0], [0.0, 0.0]);
        let mut is_first = true;
        for step in 0..=UPPER_STEPS {
            let upper_bits = f64::from(step) / UPPER_STEPS_PER_BIT;
            let rest = memory - self.upper_ratio * upper_bits / 8.0;
            if rest < 0.0 {
                break;
            }
            for split in self.splits(memory_ratio, upper_bits, rest) {
                if is_first || split.cost(goal) < best.cost(goal) {
                    (best, is_first) = (split, false);
                }
            }
        }

        best
    }

    /// Returns the candidate splits of the `rest` of the memory, in bytes per entry.
    fn splits(&self, memory_ratio: f64, upper_bits: f64, rest: f64) -> Vec<Prediction> {
        let index = self.index_bytes_per_page / self.entries_per_page;
        if rest < index {
            return vec![self.cost(memory_ratio, [upper_bits, 0.0], [rest / index, 0.0])];
        }
        let rest = rest - index;

        (0..=LAST_STEPS)
            .map(|step| f64::from(step) / LAST_STEPS_PER_BIT)
            .map(|bits| (bits, rest - (1.0 - self.upper_ratio) * bits / 8.0))
            .take_while(|&(_, rest)| rest >= 0.0)
            .map(|(bits, rest)| {
                let cached = (rest / self.entry_bytes).min(1.0);
                self.cost(memory_ratio, [upper_bits, bits], [1.0, cached])
            })
            .collect()
    }

    /// Returns the cost of lookups with these bits per key (upper runs, last run) and these shares
    /// (index, pages) in memory.
    fn cost(&self, memory_ratio: f64, bits: [f64; 2], cached: [f64; 2]) -> Prediction {
        let ([upper_bits, last_bits], [index, data]) = (bits, cached);
        let phi = self.upper_ratio;
        let runs = self.upper_runs;
        let upper = self.filter.false_positive_rate(upper_bits);
        let last = self.filter.false_positive_rate(last_bits);
        let hit = 1.0 + (1.0 - phi) * runs * upper + phi * (runs / 2.0) * upper;

        Prediction {
            memory_ratio,
            upper_filter_bits: upper_bits,
            last_filter_bits: last_bits,
            index_cached_ratio: index,
            data_cached_ratio: data,
            predicted_io_per_hit: hit * (2.0 - index) * (1.0 - data),
            predicted_io_per_miss: (runs * upper + last) * (2.0 - index),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the model is the published one. Method: its table, to the digits that it gives.

    use super::*;

    const MEMORY: [f64; 7] = [0.0005, 0.001, 0.002, 0.005, 0.009, 0.01, 0.03];

    fn levelled(index: f64) -> Shape {
        Shape { index_bytes_per_page: index, ..Shape::default() }
    }

    fn with(upper_ratio: f64, upper_runs: f64, index: f64) -> Shape {
        Shape { upper_ratio, upper_runs, ..levelled(index) }
    }

    /// Compares hits and misses with what is printed, rounded to as many digits as that has. Fewer
    /// than three digits were rounded from three: 2.0547 is printed as 2.055 and as 2.06.
    fn check(shape: Shape, goal: Goal, row: &str) {
        assert_eq!(row.split(' ').count(), MEMORY.len());
        for (memory, printed) in MEMORY.into_iter().zip(row.split(' ')) {
            let found = shape.predict(memory, goal);
            let found = [found.predicted_io_per_hit, found.predicted_io_per_miss];
            for (found, printed) in found.into_iter().zip(printed.split('/')) {
                let digits = printed.split('.').nth(1).map_or(0, str::len);
                let expected: f64 = printed.parse().unwrap();
                let unit = 10_f64.powi(-i32::try_from(digits).unwrap());
                let found = if digits < 3 { (found * 1e3).round() / 1e3 } else { found };
                assert!(
                    (found - expected).abs() <= unit * 0.501,
                    "{memory}: {found}, not {printed}"
                );
            }
        }
    }

    #[test]
    fn the_table_of_predictions_comes_out() {
        let hits = "2.06/2.08 1.039/1.04 1.000/1.00 .997/1.00 .993/1.00 .992/1.00 .972/1.00";
        check(levelled(1.5), Goal::Hit, hits);

        let bloom = Shape { filter: FilterKind::Bloom, ..levelled(1.5) };
        for (shape, row) in [
            (
                levelled(1.5),
                "2.06/2.08 1.039/1.04 1.026/.48 1.003/.052 1.000/.003 1.000/.001 .980/.001",
            ),
            (bloom, "2.48/2.51 1.132/1.14 1.042/.66 1.008/.13 1.000/.015 1.000/.009 .983/.002"),
            (
                with(0.25, 5.0, 1.5),
                "3.99/4.28 1.70/1.80 1.12/.81 1.012/.087 1.000/.005 1.000/.002 .981/.001",
            ),
            (
                with(0.37, 9.0, 1.5),
                "6.78/8.09 3.12/3.60 1.30/1.36 1.030/.145 1.002/.007 1.001/.004 .982/.001",
            ),
            (
                levelled(8.25),
                "2.19/2.20 1.886/1.89 1.383/1.39 1.006/.19 1.000/.010 1.000/.004 .982/.001",
            ),
            (
                with(0.37, 9.0, 8.25),
                "7.48/8.73 4.04/4.51 2.26/2.33 1.105/.53 1.005/.027 1.002/.013 .983/.001",
            ),
            (
                levelled(16.0),
                "2.19/2.20 1.965/1.97 1.712/1.71 1.030/.80 1.002/.040 1.001/.019 .984/.001",
            ),
            (
                levelled(25.0),
                "2.19/2.20 1.988/1.99 1.827/1.83 1.343/1.34 1.009/.22 1.007/.10 .986/.001",
            ),
        ] {
            check(shape, Goal::Balanced, row);
        }
    }

    #[test]
    fn the_finer_points_come_out() {
        for (phi, index, memory, digits, expected) in [
            (0.1, 1.3, 0.0007, 2, 1.24),
            (0.1, 1.3, 0.0008, 2, 1.12),
            (0.1, 1.3, 0.001, 3, 1.026),
            (0.13, 1.3, 0.001, 3, 1.084),
            (0.1, 1.3, 0.00158, 4, 1.0003),
            (0.13, 1.3, 0.00158, 3, 1.003),
        ] {
            let found = with(phi, 4.0, index).predict(memory, Goal::Hit).predicted_io_per_hit;
            let unit = 10_f64.powi(-digits);
            assert!((found - expected).abs() <= unit * 0.501, "{memory}: {found}, not {expected}");
        }
    }

    #[test]
    fn no_memory_reads_index_and_page_of_every_run_and_all_of_it_reads_nothing() {
        let none = Shape::default().predict(0.0, Goal::Hit);
        assert_eq!((none.upper_filter_bits, none.index_cached_ratio), (0.0, 0.0));
        let hit = 2.0 * (1.0 + 0.9 * 4.0 + 0.1 * 2.0);
        assert!((none.predicted_io_per_hit - hit).abs() < 1e-12, "{none:?}");
        assert!((none.predicted_io_per_miss - 10.0).abs() < 1e-12, "{none:?}");
        let all = Shape::default().predict(2.0, Goal::Hit);
        assert_eq!((all.data_cached_ratio, all.predicted_io_per_hit), (1.0, 0.0));
    }
}
