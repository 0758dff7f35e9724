//! Populations of distinct keys in the shapes that break indexes, and draws from them.
//!
//! A model test needs keys that come back: it draws from a population instead of inventing a fresh
//! key each time. Each shape exists because some structure has a special case there:
//!
//! | shape          | what it exercises                                                       |
//! |----------------|-------------------------------------------------------------------------|
//! | `Uniform`      | the ordinary case: hashes, 34 bytes                                     |
//! | `Clustered`    | neighbours in few places: an index that assumes an even spread          |
//! | `SharedPrefix` | equal first 8 bytes: every clash of a 64-bit prefix index               |
//! | `AnyLength`    | 0 to 4,000 bytes: the empty key, keys that prefix one another, full pages |
//! | `Mixed`        | all of them in one table                                                |

use std::collections::BTreeSet;

use rand_chacha::rand_core::RngCore;

use crate::draw::Draw;

/// Longest key drawn, in bytes; what the tables promise to take at least.
pub const KEY_BYTES_MAX: usize = 4_000;

/// Shape of the keys of a population; the header of the module has the purpose of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// 34 random bytes.
    Uniform,
    /// Consecutive numbers after one of four random stems.
    Clustered,
    /// 8 bytes out of four choices, then up to 12 more bytes; the 8 bytes alone are a key too.
    SharedPrefix,
    /// Random bytes of every length up to [`KEY_BYTES_MAX`], short ones more often.
    AnyLength,
    /// Each key of a shape drawn anew.
    Mixed,
}

impl Shape {
    /// Every shape, for tests that run over all of them.
    pub const ALL: [Self; 5] =
        [Self::Uniform, Self::Clustered, Self::SharedPrefix, Self::AnyLength, Self::Mixed];
}

/// A population of distinct keys, in no particular order.
#[derive(Debug, Clone)]
pub struct Keys {
    /// Invariant: not empty, no key twice.
    keys: Vec<Vec<u8>>,
}

impl Keys {
    /// `count` distinct keys of one shape.
    ///
    /// # Panics
    /// When `count` is zero.
    #[must_use]
    pub fn new(shape: Shape, count: usize, rng: &mut impl RngCore) -> Self {
        assert!(count > 0, "a population of nothing");
        let stems: Vec<Vec<u8>> = (0..4).map(|_| rng.bytes(8)).collect();

        let mut seen = BTreeSet::new();
        let mut keys = Vec::with_capacity(count);
        while keys.len() < count {
            let number = u64::try_from(keys.len()).expect("a length fits 64 bits");
            let mut key = one_key(shape, number, &stems, rng);
            // A short key may be taken; two bytes more make a fresh one soon, within the limit.
            while seen.contains(&key) {
                key.truncate(KEY_BYTES_MAX - 2);
                key.extend_from_slice(&rng.bytes(2));
            }
            seen.insert(key.clone());
            keys.push(key);
        }

        Self { keys }
    }

    /// Every key of the population.
    #[must_use]
    pub fn all(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// Any key, each as likely as the others.
    pub fn uniform(&self, rng: &mut impl RngCore) -> &[u8] {
        rng.pick::<Vec<u8>>(&self.keys)
    }

    /// A hot key in 7 of 8 cases, a cold one otherwise. One key in 16 is hot, and at least one.
    pub fn hot_or_cold(&self, rng: &mut impl RngCore) -> &[u8] {
        let hot_count = (self.keys.len() / 16).max(1);
        if rng.chance(7, 8) {
            rng.pick::<Vec<u8>>(&self.keys[..hot_count])
        } else {
            self.uniform(rng)
        }
    }
}

fn one_key(shape: Shape, number: u64, stems: &[Vec<u8>], rng: &mut impl RngCore) -> Vec<u8> {
    match shape {
        Shape::Uniform => rng.bytes(34),
        Shape::Clustered => {
            let mut key = rng.pick(stems).clone();
            key.extend_from_slice(&rng.bytes(2));
            key.truncate(9);
            #[expect(clippy::big_endian_bytes, reason = "key order is to be number order")]
            key.extend_from_slice(&number.to_be_bytes());
            key
        }
        Shape::SharedPrefix => {
            let mut key = rng.pick(stems).clone();
            let rest_bytes = rng.index(13);
            key.extend_from_slice(&rng.bytes(rest_bytes));
            key
        }
        Shape::AnyLength => {
            let key_bytes = match rng.below(8) {
                0 => *rng.pick(&[0, 1, 7, 8, 9, KEY_BYTES_MAX - 1, KEY_BYTES_MAX]),
                1 => rng.index(KEY_BYTES_MAX + 1),
                2 | 3 => rng.index(256),
                _ => rng.index(16),
            };
            rng.bytes(key_bytes)
        }
        Shape::Mixed => {
            let shape = *rng.pick(&Shape::ALL[..4]);
            one_key(shape, number, stems, rng)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::for_each_seed;
    use std::collections::BTreeMap;

    #[test]
    fn keys_are_distinct_and_within_the_limit() {
        for_each_seed("keys_are_distinct_and_within_the_limit", 8, |rng, _| {
            for shape in Shape::ALL {
                let keys = Keys::new(shape, 1_000, rng);
                let distinct: BTreeSet<_> = keys.all().iter().collect();
                assert_eq!(distinct.len(), 1_000, "{shape:?}");
                assert!(keys.all().iter().all(|key| key.len() <= KEY_BYTES_MAX), "{shape:?}");
            }
        });
    }

    #[test]
    fn shared_prefixes_clash_in_their_first_eight_bytes() {
        for_each_seed("shared_prefixes_clash_in_their_first_eight_bytes", 4, |rng, _| {
            let keys = Keys::new(Shape::SharedPrefix, 400, rng);
            let prefixes: BTreeSet<&[u8]> = keys.all().iter().map(|key| &key[..8]).collect();
            assert_eq!(prefixes.len(), 4);
            assert!(keys.all().iter().any(|key| key.len() == 8), "a key that prefixes the others");
        });
    }

    #[test]
    fn any_length_includes_both_ends() {
        for_each_seed("any_length_includes_both_ends", 4, |rng, _| {
            let keys = Keys::new(Shape::AnyLength, 2_000, rng);
            let lengths: BTreeSet<usize> = keys.all().iter().map(Vec::len).collect();
            assert!(lengths.contains(&0) && lengths.contains(&KEY_BYTES_MAX));
        });
    }

    #[test]
    fn hot_keys_are_drawn_more_often() {
        for_each_seed("hot_keys_are_drawn_more_often", 4, |rng, _| {
            let keys = Keys::new(Shape::Uniform, 160, rng);
            let mut counts: BTreeMap<&[u8], u32> = BTreeMap::new();
            for _ in 0..10_000 {
                *counts.entry(keys.hot_or_cold(rng)).or_default() += 1;
            }
            let hot: u32 = keys.all()[..10].iter().map(|key| counts[key.as_slice()]).sum();
            assert!((8_500..9_200).contains(&hot), "{hot}");
        });
    }
}
