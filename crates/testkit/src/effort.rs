//! Effort of long sweeps: a sample under `cargo test`, everything in CI.
//!
//! A sweep that crashes, fails or damages each of thousands of places takes minutes. Under a plain
//! `cargo test` it visits a sample of them; `TERRANE_EFFORT=full`, which `cargo xtask ci` sets,
//! makes it visit all.
//!
//! ```
//! use terrane_testkit::effort::{by_effort, places};
//! use terrane_testkit::seeds::for_each_seed;
//!
//! for_each_seed("every_call_is_tried", by_effort(1, 3), |_rng, seed| {
//!     for call in places(0..1_000, 8, seed) {
//!         assert!(call < 1_000);
//!     }
//! });
//! ```
//!
//! | `TERRANE_EFFORT` | meaning                                          |
//! |------------------|--------------------------------------------------|
//! | unset, `sample`  | the sample that `cargo test` affords             |
//! | `full`           | the whole sweep                                  |
//! | anything else    | the test fails: a typing error is no green run   |
//!
//! Invariant: the sample follows from the seed alone, so that a printed seed replays a failure.
//! `TERRANE_SEEDS` counts before the effort does.

use std::env;
use std::ops::Range;

/// The variable that asks for whole sweeps.
pub(crate) const VARIABLE: &str = "TERRANE_EFFORT";

/// The number of a series of long runs.
pub(crate) const SERIES: &str = "TERRANE_SERIES";

/// Effort of sweeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// A sample of the places.
    Sample,
    /// Every place.
    Full,
}

/// The effort that the environment asks for.
///
/// # Panics
/// When `TERRANE_EFFORT` is neither `sample` nor `full`.
#[must_use]
pub fn effort() -> Effort {
    match parse(env_value(VARIABLE).as_deref()) {
        Ok(effort) => effort,
        Err(message) => panic!("{message}"),
    }
}

/// `sample` under a plain `cargo test`, `full` where whole sweeps are asked for.
///
/// # Panics
/// Those of [`effort`].
#[must_use]
pub fn by_effort<T>(sample: T, full: T) -> T {
    match effort() {
        Effort::Sample => sample,
        Effort::Full => full,
    }
}

/// The numbers of `range` that a sweep visits, in ascending order: all of them, or as a sample a
/// number drawn from each `every` that follow one another.
///
/// The draw within each stretch keeps a sample from seeing only writes, or only syncs, of a
/// workload that alternates them.
///
/// # Panics
/// When `every` is zero, and those of [`effort`].
pub fn places(range: Range<u64>, every: u64, seed: u64) -> impl Iterator<Item = u64> {
    sample(range, by_effort(every, 1), seed)
}

pub(crate) fn sample(range: Range<u64>, every: u64, seed: u64) -> impl Iterator<Item = u64> {
    assert!(every > 0, "a stretch of no places has none to visit");
    let end = range.end;

    range.step_by(every as usize).map(move |start| {
        let count = every.min(end - start);
        start + spread(seed, start) % count
    })
}

fn parse(text: Option<&str>) -> Result<Effort, String> {
    match text {
        None | Some("sample") => Ok(Effort::Sample),
        Some("full") => Ok(Effort::Full),
        Some(text) => Err(format!("{VARIABLE}={text} is no effort; write sample or full")),
    }
}

/// The series of draws that `TERRANE_SERIES` asks for, below 2^32; series 0 is that of `cargo
/// test`.
///
/// # Panics
/// When the variable is no such number.
pub(crate) fn series() -> u64 {
    let Some(text) = env_value(SERIES) else { return 0 };
    let number: Option<u32> = text.parse().ok();
    number.unwrap_or_else(|| panic!("{SERIES}={text} is no number below 2^32")).into()
}

/// An unset variable and an empty one are the same: `SEED= cargo test` replays nothing.
pub(crate) fn env_value(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// One `SplitMix64` step: the word of `number` in the series that begins with `start`.
pub(crate) fn spread(start: u64, number: u64) -> u64 {
    let mut mixed = start.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effort_is_read_or_refused() {
        assert_eq!(parse(None), Ok(Effort::Sample));
        assert_eq!(parse(Some("sample")), Ok(Effort::Sample));
        assert_eq!(parse(Some("full")), Ok(Effort::Full));
        assert!(parse(Some("Full")).is_err());
        assert!(parse(Some("1")).is_err());
    }

    #[test]
    fn a_whole_sweep_visits_every_place() {
        assert!(sample(3..40, 1, 7).eq(3..40));
        assert_eq!(sample(5..5, 1, 7).count(), 0);
    }

    #[test]
    fn a_sample_has_one_place_of_each_stretch() {
        for seed in 0..50 {
            let found: Vec<u64> = sample(10..34, 5, seed).collect();
            assert_eq!(found.len(), 5);
            for (number, place) in (0..).zip(&found) {
                assert!((10 + number * 5..(15 + number * 5).min(34)).contains(place), "{found:?}");
            }
            assert!(sample(10..34, 5, seed).eq(found), "the same seed gives the same places");
        }
    }

    /// A sample of every other call of a workload that writes and syncs in turn would never see a
    /// sync.
    #[test]
    fn a_sample_sees_even_and_odd_places() {
        let odd = sample(0..1_000, 2, 1).filter(|place| place % 2 == 1).count();
        assert!((150..350).contains(&odd), "{odd} of 500");
    }
}
