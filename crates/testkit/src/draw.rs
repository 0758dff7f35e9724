//! The few draws that tests need, on top of any stable generator.
//!
//! Invariant: every method consumes a number of words that depends on its arguments alone, never
//! on earlier draws, so that adding a draw at the end of a test leaves the earlier ones as they
//! were.

use rand_chacha::rand_core::RngCore;

/// Draws in the words of a test: a number below a bound, a coin, some bytes, one of several.
pub trait Draw: RngCore {
    /// A number in `0..bound`, uniform up to a bias of `bound / 2^64`.
    ///
    /// # Panics
    /// When `bound` is zero: there is no such number.
    fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number lies below zero");
        let product = u128::from(self.next_u64()) * u128::from(bound);
        // The upper half of a product of two 64-bit numbers fits 64 bits.
        u64::try_from(product >> 64).expect("upper half of a 128-bit product")
    }

    /// An index into something of `count` elements.
    ///
    /// # Panics
    /// When `count` is zero.
    fn index(&mut self, count: usize) -> usize {
        let bound = u64::try_from(count).expect("a length fits 64 bits");
        usize::try_from(self.below(bound)).expect("below a usize")
    }

    /// True in `numerator` of `denominator` cases.
    fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// `count` random bytes.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill_bytes(&mut bytes);
        bytes
    }

    /// Draws one of `choices`.
    ///
    /// # Panics
    /// When `choices` is empty.
    fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// Brings `items` into a random order.
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// A number in `0.0..1.0`, with 53 random bits.
    fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
        let numerator = (self.next_u64() >> 11) as f64;
        numerator / 9_007_199_254_740_992.0
    }
}

impl<R: RngCore + ?Sized> Draw for R {}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    #[test]
    fn below_reaches_every_number_and_no_other() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut seen = [0u32; 7];
        for _ in 0..7_000 {
            seen[rng.index(7)] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1_200).contains(&count)), "{seen:?}");
    }

    #[test]
    fn chance_of_none_and_all_is_certain() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        for _ in 0..100 {
            assert!(!rng.chance(0, 5));
            assert!(rng.chance(5, 5));
        }
    }

    #[test]
    fn unit_stays_in_its_interval() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let sum: f64 = (0..10_000)
            .map(|_| {
                let draw = rng.unit();
                assert!((0.0..1.0).contains(&draw));
                draw
            })
            .sum();
        assert!((4_800.0..5_200.0).contains(&sum), "{sum}");
    }

    #[test]
    #[should_panic(expected = "no number lies below zero")]
    fn below_zero_is_refused() {
        ChaCha8Rng::seed_from_u64(4).below(0);
    }
}
