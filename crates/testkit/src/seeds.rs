//! Replayable seed loop: a test that draws everything from one 64-bit seed, run over many seeds.
//!
//! ```
//! use terrane_testkit::draw::Draw;
//! use terrane_testkit::seeds::for_each_seed;
//!
//! for_each_seed("halves_add_up", 64, |rng, _seed| {
//!     let number = rng.below(1_000);
//!     assert_eq!(number / 2 + number.div_ceil(2), number);
//! });
//! ```
//!
//! When a case panics, a guard prints the seed and the command that replays that case alone:
//!
//! ```text
//! seed 0x1f2e3d4c failed; replay: SEED=0x1f2e3d4c cargo test -p terrane-lsm-tests halves_add_up
//! ```
//!
//! | variable          | meaning                                                             |
//! |-------------------|---------------------------------------------------------------------|
//! | `SEED=0x..`       | run this one seed (hexadecimal, or decimal without `0x`)            |
//! | `TERRANE_SEEDS=n` | run `n` seeds instead of the count that the test names; at least 1  |
//! | `TERRANE_SERIES=n`| draw other seeds, those of series `n` (set by `cargo xtask soak`)   |
//!
//! Invariant: the seeds follow from the test's name, the series and their number alone. No clock
//! and no process id: two runs of `cargo test` draw the same cases.

use std::thread;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::effort::{self, env_value, series, spread};
use crate::tally;

/// Runs `case` once for each of `count` seeds, with a generator started from the seed.
///
/// `name` is the name of the calling test: the printed command selects the test by it, and two
/// tests of different names draw different seeds.
///
/// # Panics
/// With the panic of `case`, after printing what replays it; and when `SEED` or `TERRANE_SEEDS`
/// is set to something that is not a number (a typing error must not pass for a green run).
pub fn for_each_seed(name: &str, count: u64, mut case: impl FnMut(&mut ChaCha8Rng, u64)) {
    let seeds = match plan(env_value("SEED").as_deref(), env_value("TERRANE_SEEDS").as_deref()) {
        Ok(Plan::Replay(seed)) => vec![seed],
        Ok(Plan::Count(override_count)) => {
            // Series of different numbers do not meet.
            let first = series() << 32;
            let numbers = first..first + override_count.unwrap_or(count);
            numbers.map(|number| seed_of(name, number)).collect()
        }
        Err(message) => panic!("{message}"),
    };

    assert!(!seeds.is_empty(), "{name} names no seeds, so it could not fail");
    let package = env_value("CARGO_PKG_NAME");
    // The places of a sweep follow from the seed, the effort and the series.
    let settings: String = [effort::VARIABLE, effort::SERIES]
        .into_iter()
        .filter_map(|name| Some(format!("{name}={} ", env_value(name)?)))
        .collect();

    for seed in seeds {
        let command = replay_command(package.as_deref(), name, seed, &settings);
        run_case(seed, &command, &|line| eprintln!("{line}"), &mut case);
        tally::add("cases", 1);
    }
}

/// The seed of case `number` of the test `name`.
#[must_use]
pub fn seed_of(name: &str, number: u64) -> u64 {
    // FNV-1a spreads the names, one SplitMix64 step spreads the numbers.
    let start = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    });
    spread(start, number)
}

/// Seeds that the environment asks for.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// One seed, given by hand.
    Replay(u64),
    /// That many seeds, or the number of the test.
    Count(Option<u64>),
}

fn plan(seed: Option<&str>, count: Option<&str>) -> Result<Plan, String> {
    if let Some(text) = seed {
        return parse_number(text)
            .map(Plan::Replay)
            .ok_or_else(|| format!("SEED={text} is no number; write SEED=0x1f2e or SEED=42"));
    }
    match count.map(|text| (text, parse_number(text))) {
        None => Ok(Plan::Count(None)),
        Some((_, Some(number))) if number > 0 => Ok(Plan::Count(Some(number))),
        Some((text, _)) => Err(format!("TERRANE_SEEDS={text} is no positive number")),
    }
}

fn parse_number(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

fn replay_command(package: Option<&str>, name: &str, seed: u64, settings: &str) -> String {
    let package = package.map_or_else(String::new, |package| format!(" -p {package}"));
    format!("{settings}SEED={seed:#018x} cargo test{package} {name}")
}

fn run_case(
    seed: u64,
    command: &str,
    report: &dyn Fn(&str),
    case: &mut impl FnMut(&mut ChaCha8Rng, u64),
) {
    let _guard = ReplayNote { seed, command, report };
    case(&mut ChaCha8Rng::seed_from_u64(seed), seed);
}

/// Prints what replays the running case if that case unwinds.
struct ReplayNote<'a> {
    seed: u64,
    command: &'a str,
    report: &'a dyn Fn(&str),
}

impl Drop for ReplayNote<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.report)(&format!("seed {:#018x} failed; replay: {}", self.seed, self.command));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::rand_core::RngCore;
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn one_seed_gives_one_stream() {
        let draw = |seed| {
            let mut words = Vec::new();
            run_case(seed, "", &|_| {}, &mut |rng: &mut ChaCha8Rng, _| {
                words.extend((0..8).map(|_| rng.next_u64()));
            });
            words
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    /// The stream is part of what a printed seed means; if this fails, old seeds replay nothing.
    #[test]
    fn stream_of_a_seed_never_changes() {
        assert_eq!(seed_of("stream", 0), 0x9C9C_5FB6_883A_932C);
        let mut rng = ChaCha8Rng::seed_from_u64(0x5EED);
        assert_eq!(
            [rng.next_u64(), rng.next_u64()],
            [0x99D0_65DB_10DB_E23B, 0xE569_7E06_04F8_03B8]
        );
    }

    #[test]
    fn seeds_differ_by_name_and_number() {
        let seeds: BTreeSet<u64> = ["a", "b", "ab"]
            .iter()
            .flat_map(|name| (0..100).map(move |number| seed_of(name, number)))
            .collect();
        assert_eq!(seeds.len(), 300);
    }

    #[test]
    fn every_seed_is_run_once() {
        let mut seen = Vec::new();
        for_each_seed("every_seed_is_run_once", 5, |_, seed| seen.push(seed));
        // The environment may replay one seed or ask for more of them.
        assert!(!seen.is_empty());
        assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len());
    }

    #[test]
    fn a_failing_case_prints_its_seed_and_command() {
        let lines = RefCell::new(Vec::new());
        let command = replay_command(Some("terrane-lsm-tests"), "some_test", 0xAB, "");
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            run_case(
                0xAB,
                &command,
                &|line| lines.borrow_mut().push(line.to_owned()),
                &mut |_: &mut ChaCha8Rng, _| panic!("as planned"),
            );
        }));
        assert!(outcome.is_err());
        assert_eq!(
            lines.into_inner(),
            ["seed 0x00000000000000ab failed; replay: \
              SEED=0x00000000000000ab cargo test -p terrane-lsm-tests some_test"]
        );
    }

    #[test]
    fn a_replay_of_a_whole_sweep_is_a_whole_sweep() {
        let command = replay_command(None, "sweep", 1, "TERRANE_EFFORT=full ");
        assert_eq!(command, "TERRANE_EFFORT=full SEED=0x0000000000000001 cargo test sweep");
    }

    #[test]
    fn a_passing_case_prints_nothing() {
        let lines = RefCell::new(Vec::new());
        run_case(
            1,
            "",
            &|line| lines.borrow_mut().push(line.to_owned()),
            &mut |_: &mut ChaCha8Rng, _| {},
        );
        assert!(lines.into_inner().is_empty());
    }

    #[test]
    fn environment_is_read_or_refused() {
        assert_eq!(plan(None, None), Ok(Plan::Count(None)));
        assert_eq!(plan(None, Some("1_000")), Ok(Plan::Count(Some(1_000))));
        assert_eq!(plan(Some("0xFF"), None), Ok(Plan::Replay(255)));
        assert_eq!(plan(Some("255"), Some("9")), Ok(Plan::Replay(255)));
        assert!(plan(Some("0xhello"), None).is_err());
        assert!(plan(None, Some("0")).is_err());
        assert!(plan(None, Some("many")).is_err());
    }
}
