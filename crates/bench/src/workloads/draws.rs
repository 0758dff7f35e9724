//! Random numbers of a workload that are read at any place, and the distributions of its keys.
//!
//! Operation n follows from a seed and n alone, so it does not matter which thread carries it out.
//! A draw that needs several random numbers takes them from a generator of its own, which begins
//! at the operation's output of the stream.
//!
//! The ranks of Zipf's law come from the crate `rand_distr`, whose powers are those of the system's
//! library. Machines whose libraries differ in the last digit may draw other ranks; the hash of a
//! run's stream shows it.

use std::convert::Infallible;

use rand_core::TryRng;
use rand_distr::{Distribution as _, Zipf};

use super::{SPLITMIX_STEP, splitmix};

/// Largest exponent of Zipf's law: nearly all draws are the first rank there.
pub const EXPONENT_MAX: f64 = 10.0;

/// A start for a stream that has nothing to do with those of other seeds and numbers.
#[must_use]
pub fn mix(seed: u64, number: u64) -> u64 {
    splitmix(splitmix(seed).wrapping_add(number))
}

/// A `SplitMix64` stream that is read at any place.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    /// State before the first output.
    pub start: u64,
}

impl Stream {
    /// The output at a place.
    #[must_use]
    pub fn output(self, at: u64) -> u64 {
        splitmix(self.start.wrapping_add(at.wrapping_mul(SPLITMIX_STEP)))
    }
}

/// Maps a random number to one below `bound`, evenly but for one part in 2^64 / `bound`.
#[must_use]
pub fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

/// The outputs of a stream, one after the other, for what draws several.
struct Generator {
    stream: Stream,
    at: u64,
}

impl TryRng for Generator {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.try_next_u64()? >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.at += 1;
        Ok(self.stream.output(self.at - 1))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.try_next_u64()?.to_le_bytes()[..part.len()]);
        }
        Ok(())
    }
}

/// Distribution of the keys of operations.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Distribution {
    /// Drawn at random, each as likely as any other.
    #[default]
    Uniform,
    /// One after the other by their numbers, from the first again after the last; so as many
    /// operations as there are keys take each of them once.
    Every,
    /// By Zipf's law with this exponent, 0 to [`EXPONENT_MAX`]: the first number is the most
    /// frequent one. Keys are hashes of their numbers, so frequent keys lie everywhere in a table.
    Zipf(f64),
    /// By Zipf's law with this exponent, counted from the last number: what is newest is the most
    /// frequent.
    Latest(f64),
    /// A share of the keys, the first ones, gets a share of the operations. Both are from 0 to 1,
    /// and keys are even within both parts.
    HotSet {
        /// Share of the keys.
        keys: f64,
        /// Share of the operations.
        operations: f64,
    },
}

/// Form of a distribution as text.
pub const DISTRIBUTIONS: &str =
    "uniform, every, zipf:0.99, latest:0.99, or hotset:20,80 (per cent of keys and operations)";

impl Distribution {
    /// The name used in reports and on the command line.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Uniform => "uniform".to_owned(),
            Self::Every => "every".to_owned(),
            Self::Zipf(exponent) => format!("zipf:{exponent}"),
            Self::Latest(exponent) => format!("latest:{exponent}"),
            Self::HotSet { keys, operations } => {
                format!("hotset:{},{}", keys * 100.0, operations * 100.0)
            }
        }
    }

    /// Parses a [`name`](Self::name); `None` if it is not one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let number = |text: &str, most: f64| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            text.parse().ok().filter(|number| is_plain && (0.0..=most).contains(number))
        };
        match name.split_once(':') {
            None if name == "uniform" => Some(Self::Uniform),
            None if name == "every" => Some(Self::Every),
            Some(("zipf", exponent)) => Some(Self::Zipf(number(exponent, EXPONENT_MAX)?)),
            Some(("latest", exponent)) => Some(Self::Latest(number(exponent, EXPONENT_MAX)?)),
            Some(("hotset", shares)) => {
                let (keys, operations) = shares.split_once(',')?;
                let share = |text| number(text, 100.0).map(|share: f64| share / 100.0);
                let (keys, operations) = (share(keys)?, share(operations)?);
                Some(Self::HotSet { keys, operations })
            }
            _ => None,
        }
    }

    /// Returns what draws numbers below `keys`, which is at least 1.
    ///
    /// # Panics
    /// If there are no keys, or an exponent is negative.
    #[must_use]
    pub fn draws(self, keys: u64) -> Draws {
        assert!(0 < keys, "there are keys to draw");
        let ranks =
            |exponent| Zipf::new(keys as f64, exponent).expect("an exponent is not negative");
        Draws {
            keys,
            kind: match self {
                Self::Uniform => Kind::Uniform,
                Self::Every => Kind::Every,
                Self::Zipf(exponent) => Kind::Zipf(ranks(exponent)),
                Self::Latest(exponent) => Kind::Latest(ranks(exponent)),
                Self::HotSet { keys: share, operations } => {
                    let hot = ((keys as f64 * share).round() as u64).clamp(1, keys);
                    Kind::HotSet { hot, threshold: (operations * 2_f64.powi(64)) as u64 }
                }
            },
        }
    }
}

/// A distribution over a number of keys.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    keys: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Uniform,
    Every,
    Zipf(Zipf<f64>),
    Latest(Zipf<f64>),
    /// Operations whose first random number is below the threshold take one of the `hot` keys.
    HotSet {
        hot: u64,
        threshold: u64,
    },
}

impl Draws {
    /// The number of operation `n`, whose output of the stream of operations is `random`.
    #[must_use]
    pub fn number(&self, n: u64, random: u64) -> u64 {
        let rank = |zipf: &Zipf<f64>| {
            let rank = zipf.sample(&mut Generator { stream: Stream { start: random }, at: 0 });
            // Ranks begin at 1, and rounding may take one beyond the last.
            (rank as u64).clamp(1, self.keys) - 1
        };
        match &self.kind {
            Kind::Uniform => below(random, self.keys),
            Kind::Every => n % self.keys,
            Kind::Zipf(zipf) => rank(zipf),
            Kind::Latest(zipf) => self.keys - 1 - rank(zipf),
            &Kind::HotSet { hot, threshold } => {
                let place = splitmix(random);
                let cold = self.keys - hot;
                if random < threshold || cold == 0 {
                    below(place, hot)
                } else {
                    hot + below(place, cold)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 100_000;

    fn counts(distribution: Distribution, keys: u64) -> Vec<u64> {
        let draws = distribution.draws(keys);
        let stream = Stream { start: 7 };
        let mut counts = vec![0; usize::try_from(keys).unwrap()];
        for n in 0..DRAWS {
            counts[usize::try_from(draws.number(n, stream.output(n))).unwrap()] += 1;
        }
        counts
    }

    /// Goal: draws follow Zipf's law. Method: the counts of the first ranks beside the harmonic
    /// sum, within five standard deviations.
    #[test]
    fn ranks_are_as_frequent_as_the_law_says() {
        for exponent in [0.0, 0.5, 0.99, 1.0, 1.3] {
            let found = counts(Distribution::Zipf(exponent), 1_000);
            let weights: Vec<f64> =
                (1..=1_000).map(|rank| f64::from(rank).powf(-exponent)).collect();
            let sum: f64 = weights.iter().sum();
            for rank in [0, 1, 2, 9, 99, 999] {
                let expected = weights[rank] / sum * DRAWS as f64;
                let far = 5.0 * expected.sqrt() + 1.0;
                let difference = (found[rank] as f64 - expected).abs();
                assert!(difference < far, "{exponent} {rank}: {} {expected}", found[rank]);
            }

            let latest = counts(Distribution::Latest(exponent), 1_000);
            assert!(latest.iter().rev().eq(&found), "the same ranks from the other end");
        }
    }

    #[test]
    fn a_hot_set_gets_its_share_and_is_even() {
        let found = counts(Distribution::HotSet { keys: 0.2, operations: 0.8 }, 100);
        let hot: u64 = found[..20].iter().sum();
        assert!(hot.abs_diff(80_000) < 700, "{hot}");
        assert!(found[..20].iter().all(|&count| count.abs_diff(4_000) < 350), "{found:?}");
        assert!(found[20..].iter().all(|&count| count.abs_diff(250) < 90), "{found:?}");

        // All keys are hot, and one key is all there is.
        assert_eq!(counts(Distribution::HotSet { keys: 1.0, operations: 0.0 }, 1), [DRAWS]);
        assert_eq!(counts(Distribution::Zipf(0.99), 1), [DRAWS]);
    }

    #[test]
    fn names_are_read_back_and_nothing_else_is() {
        for name in ["uniform", "every", "zipf:0.99", "latest:1.2", "hotset:20,80", "zipf:0"] {
            assert_eq!(Distribution::from_name(name).unwrap().name(), name);
        }
        for name in [
            "",
            "zipf",
            "zipf:",
            "zipf:-1",
            "zipf:nan",
            "zipf:11",
            "zipf:1e1",
            "latest:inf",
            "hotset:20",
            "hotset:20,101",
            "hotset:,",
            "uniform:1",
            "normal",
        ] {
            assert_eq!(Distribution::from_name(name), None, "{name}");
        }
    }
}
