//! The random numbers of the simulated disk: `SplitMix64` (Steele, Lea, Flood, 2014), whose stream
//! is fixed by its definition, so that a seed means the same run for ever.

/// The finaliser of `SplitMix64`: spreads every bit of `value` over the result.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number in `0..bound`. The bias is below `bound / 2^64`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing to draw from");
        u64::try_from((u128::from(self.next()) * u128::from(bound)) >> 64).expect("below the bound")
    }

    /// An index in `0..len`.
    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below len")
    }

    /// True in `count` of `of` cases.
    pub(super) fn chance(&mut self, count: u64, of: u64) -> bool {
        self.below(of) < count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers for the seed 1234567, as published with the algorithm's reference code.
    #[test]
    fn the_stream_is_that_of_the_reference() {
        let mut random = Random::new(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            drawn,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }
}
