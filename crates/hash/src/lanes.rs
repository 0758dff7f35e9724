//! Lanes of the processor's vectors, which hash several messages side by side.
//!
//! A lane that is done takes the next message, the longest first, so that the lanes end together.
//!
//! Invariant: no word of a lane reaches another lane.

#![cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "lanes are not used elsewhere")
)]
#![expect(
    clippy::inline_always,
    reason = "only what is inlined into `vectorize` is compiled with the processor's vectors"
)]

use std::cmp::Reverse;
use std::vec;

#[cfg(target_arch = "x86_64")]
use fearless_simd::{
    Level,
    x86::{Avx2, Avx512},
};
use fearless_simd::{Simd, SimdInt};

/// Instructions that hash several messages.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Engine {
    /// Eight lanes, or four for few messages.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// Four lanes.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// One message after the other.
    Single,
}

impl Engine {
    /// Returns the fastest engine of this processor.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        match Level::new() {
            Level::Avx512(simd) => return Self::Avx512(simd),
            Level::Avx2(simd) => return Self::Avx2(simd),
            _ => {}
        }
        Self::Single
    }
}

/// Returns the indexes of lengths, longest first.
pub(crate) fn longest_first(lengths: impl Iterator<Item = usize>) -> vec::IntoIter<usize> {
    let lengths: Vec<usize> = lengths.collect();
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&index| Reverse(lengths[index]));
    order.into_iter()
}

/// Returns the number of used lanes, and the fewest blocks that any of them has left; `None` if no
/// lane is used.
pub(crate) fn active<T>(
    lanes: &[Option<T>],
    blocks_left: impl Fn(&T) -> usize,
) -> Option<(usize, usize)> {
    let used = lanes.iter().flatten();
    Some((used.clone().count(), used.map(blocks_left).min()?))
}

/// Writes the words of one lane.
pub(crate) fn set_lane<const WORDS: usize, const LANES: usize>(
    words: &mut [[u64; LANES]; WORDS],
    at: usize,
    values: [u64; WORDS],
) {
    for (word, value) in words.iter_mut().zip(values) {
        word[at] = value;
    }
}

/// Words of the lanes as vectors.
#[inline(always)]
pub(crate) fn load<
    S: Simd,
    V: SimdInt<S, Element = u64>,
    const WORDS: usize,
    const LANES: usize,
>(
    simd: S,
    words: &[[u64; LANES]; WORDS],
) -> [V; WORDS] {
    std::array::from_fn(
        #[inline(always)]
        |at| V::from_slice(simd, &words[at]),
    )
}

/// Vectors as words of the lanes.
#[inline(always)]
pub(crate) fn store<
    S: Simd,
    V: SimdInt<S, Element = u64>,
    const WORDS: usize,
    const LANES: usize,
>(
    vectors: [V; WORDS],
    words: &mut [[u64; LANES]; WORDS],
) {
    for (vector, word) in vectors.iter().zip(words) {
        vector.store_slice(word);
    }
}

/// Rotates a word. The compiler emits one instruction where the processor has one.
#[inline(always)]
pub(crate) fn rotate<S: Simd, V: SimdInt<S, Element = u64>>(word: V, bits: u32) -> V {
    word >> bits | word << (64 - bits)
}

/// All engines of this processor, for tests.
#[cfg(test)]
pub(crate) fn engines() -> Vec<Engine> {
    let mut engines = vec![Engine::Single];
    #[cfg(target_arch = "x86_64")]
    {
        engines.extend(Level::new().as_avx2().map(Engine::Avx2));
        engines.extend(Level::new().as_avx512().map(Engine::Avx512));
    }
    engines
}
