//! Keys, values and operations of the benchmark of random reads: functions of their numbers and of
//! a seed.
//!
//! | what | function |
//! |------|----------|
//! | key of number i | Keccak-256 (the original padding) of 24 zero bytes and i as big-endian u64 |
//! | value of number i | by default 110 bytes of a `SplitMix64` stream that begins at mix(mix(seed,
//! i), version); others in [`values`](crate::workloads::values) |
//! | operation n | outputs 2n (present or absent) and 2n + 1 (which number) of the stream at
//! mix(seed, stream) |
//!
//! Numbers below the number of keys are in the table, those above are absent. Because operation n
//! follows from the seed and n alone, it does not matter which thread carries it out.

use sha3::{Digest, Keccak256};

pub use crate::workloads::draws::Distribution;
use crate::workloads::draws::{Draws, Stream, below, mix};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Bytes of a value.
pub const VALUE_BYTES: usize = 110;

/// Bytes of an entry, without what the engine adds.
pub const ENTRY_BYTES: u64 = (KEY_BYTES + VALUE_BYTES) as u64;

/// The key of a number.
#[must_use]
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut counter = [0; KEY_BYTES];
    #[expect(clippy::big_endian_bytes, reason = "the published workload has it so")]
    counter[24..].copy_from_slice(&number.to_be_bytes());
    Keccak256::digest(counter).into()
}

/// Returns the incompressible value of a number after that many changes, which tables have by
/// default.
#[must_use]
pub fn value(seed: u64, number: u64, version: u64) -> [u8; VALUE_BYTES] {
    let stream = Stream { start: mix(mix(seed, number), version) };
    let mut value = [0; VALUE_BYTES];
    for (at, part) in (0..).zip(value.chunks_mut(8)) {
        part.copy_from_slice(&stream.output(at).to_le_bytes()[..part.len()]);
    }
    value
}

/// A read of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The key's number.
    pub number: u64,
    /// Whether it is in the table.
    pub is_present: bool,
}

/// The operations of a run.
#[derive(Debug, Clone, Copy)]
pub struct Operations {
    /// Keys in the table.
    pub keys: u64,
    /// Share of operations for absent keys, in per cent, on average.
    pub absent_percent: u64,
    draws: Draws,
    stream: Stream,
}

impl Operations {
    /// The operations of `stream` of a seed; streams have nothing to do with each other.
    #[must_use]
    pub fn new(
        (seed, stream): (u64, u64),
        keys: u64,
        absent_percent: u64,
        distribution: Distribution,
    ) -> Self {
        let stream = Stream { start: mix(seed, stream) };
        Self { keys, absent_percent, draws: distribution.draws(keys), stream }
    }

    /// Operation `n`.
    #[must_use]
    pub fn operation(&self, n: u64) -> Operation {
        let is_present = below(self.stream.output(2 * n), 100) >= self.absent_percent;
        let number = self.draws.number(n, self.stream.output(2 * n + 1));
        Operation { number: if is_present { number } else { self.keys + number }, is_present }
    }
}

/// A hash of what is done: of each operation its kind, its key and the value that belongs to it.
#[derive(Debug, Default)]
pub struct StreamHash(blake3::Hasher);

impl StreamHash {
    /// Adds that a key was given a value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.update(b"p").update(key).update(value);
    }

    /// Adds that a key was deleted.
    pub fn delete(&mut self, key: &[u8]) {
        self.0.update(b"d").update(key);
    }

    /// Adds that a key was read, and must have this value or none.
    pub fn get(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.0.update(if value.is_some() { b"g" } else { b"a" });
        self.0.update(key).update(value.unwrap_or_default());
    }

    /// The hash so far, in lower-case hex.
    #[must_use]
    pub fn finish(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use terrane_replay::hex;

    #[test]
    fn keys_and_random_numbers_are_the_published_ones() {
        for (number, expected) in [
            (0, "290decd9548b62a8d60345a988386fc84ba6bc95484008f6362f93160ef3e563"),
            (1, "b10e2d527612073b26eecdfd717e6a320cf44b4afac2b0732d9fcbe2b7fa0cf6"),
            (2, "405787fa12a823e0f2b7631cc41b3ba8828b3321ca811111fa75cd3aa3bb5ace"),
            (199_999_999, "d8b5672702afdc91a5df83de43487ede52643115c983ab1e4411d40c26ee17d1"),
        ] {
            assert_eq!(hex::encode(&key(number)), expected, "{number}");
        }

        let outputs = [0, 1, 2].map(|at| Stream { start: 0 }.output(at));
        let expected = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        assert_eq!(outputs, expected);
    }

    #[test]
    fn values_depend_on_seed_number_and_version_and_do_not_compress() {
        let mut seen = BTreeMap::new();
        for (seed, number, version) in [(1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1), (1, 2, 0)] {
            let value = value(seed, number, version);
            assert_eq!(seen.insert(value, (seed, number, version)), None);
        }

        // 256 byte values, each as often as any other.
        let mut counts = [0_u32; 256];
        (0..10_000).flat_map(|number| value(7, number, 0)).for_each(|byte| {
            counts[usize::from(byte)] += 1;
        });
        let mean = 1_100_000 / 256;

        assert!(counts.iter().all(|&count| count.abs_diff(mean) < mean / 10), "{counts:?}");
    }

    #[test]
    fn operations_are_drawn_from_all_keys_and_absent_ones_as_often_as_asked_for() {
        let operations = Operations::new((3, 0), 1_000, 25, Distribution::Uniform);
        let mut absent = 0;
        let mut numbers = vec![0; 2_000];

        for n in 0..100_000 {
            let Operation { number, is_present } = operations.operation(n);
            assert_eq!(is_present, number < 1_000);
            absent += u32::from(!is_present);
            numbers[usize::try_from(number).unwrap()] += 1;
        }

        assert!((24_000..26_000).contains(&absent), "{absent}");
        assert!(numbers.iter().all(|&count| count > 0));
        let every = Operations::new((3, 0), 1_000, 0, Distribution::Every);
        let numbers: Vec<u64> = (0..1_001).map(|n| every.operation(n).number).collect();

        assert!(numbers.iter().enumerate().all(|(at, &number)| at as u64 % 1_000 == number));
    }
}
