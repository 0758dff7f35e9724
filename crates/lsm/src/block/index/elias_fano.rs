//! Elias–Fano sequence: rising numbers in about two bits each beyond what tells neighbours apart.
//!
//! A sequence of `count` numbers in `0..=value_max`, never falling, is kept in two parts (P. Elias,
//! 1974; R. Fano, 1971). The lowest `low_bits` bits of each number stand packed in `lows`. The rest
//! of the number is its *bucket*: `highs` has, bucket by bucket, a one bit for each number in it
//! and then a zero bit. With `low_bits` chosen so that there are once to twice as many buckets as
//! numbers, a number takes `low_bits + 2` to `low_bits + 3` bits.
//!
//! The format is in `docs/format/index.md`.
//!
//! # Search
//!
//! The numbers of bucket `b` begin after zero bit `b - 1` of `highs`. A directory (in memory only)
//! finds a zero: for each 512 bits how many zeros come before, and for each 256th zero which 512
//! bits hold it. It adds 3 % to a sequence. The bucket itself is searched by halving, so a long
//! stretch of equal numbers costs its logarithm.

use super::grow;
use crate::corrupt::Corrupt;
use std::ops::Range;
use terrane_io::bytes::{Reader, Writer};

/// Words of `highs` that share an entry of the directory; one cache line.
const GROUP_WORDS: usize = 8;
/// Zeros of `highs` from one sample to the next.
const SAMPLE_ZEROS: usize = 256;

/// A vector of bits that only grows.
#[derive(Debug, Default)]
struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// Appends the lowest `width <= 63` bits of `value`, whose other bits are zero.
    #[inline]
    fn push(&mut self, value: u64, width: u32) {
        let used = self.len % 64;
        self.len += width as usize;
        debug_assert!(width <= 63 && value <= mask(width), "the other bits are zero");
        // A value may straddle two words: its lower bits go to the word that is not full.
        if used > 0
            && let Some(last) = self.words.last_mut()
        {
            *last |= value << used;
        }
        if self.len.div_ceil(64) > self.words.len() {
            grow(&mut self.words, 1);
            self.words.push(if used == 0 { value } else { value >> (64 - used) });
        }
        debug_assert_eq!(self.words.len(), self.len.div_ceil(64));
    }

    fn push_zeros(&mut self, count: usize) {
        self.len += count;
        let words = self.len.div_ceil(64);
        let more = words.saturating_sub(self.words.len());
        grow(&mut self.words, more);
        self.words.resize(words, 0);
    }

    /// The `width <= 63` bits from `offset`; zeros beyond the end.
    #[inline]
    fn get(&self, offset: usize, width: u32) -> u64 {
        let word = |index: usize| self.words.get(index).copied().unwrap_or(0);
        let used = offset % 64;
        let mut value = word(offset / 64) >> used;
        if used + width as usize > 64 {
            value |= word(offset / 64 + 1) << (64 - used);
        }
        value & mask(width)
    }

    fn encode(&self, writer: &mut Writer) {
        for &word in &self.words {
            writer.u64(word);
        }
    }

    /// The next `len` bits.
    fn decode(reader: &mut Reader<'_>, len: u64) -> Result<Self, Corrupt> {
        let left = reader.rest().len() as u64;
        // The length is compared with the bytes that are there before any memory is allocated.
        let bytes = len.div_ceil(64) * 8;
        let too_short = broken("fences: bytes of a bit vector", bytes, left);
        let bytes = reader.take(usize::try_from(bytes).map_err(|_| too_short)?);
        let (words, _) = bytes.map_err(|_| too_short)?.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        // Padding must be 0, so that equal sequences have equal bytes.
        let padding = words.last().map_or(0, |last| last & !mask_of_rest(len));
        if padding != 0 {
            return Err(broken("fences: padding of a bit vector", 0, padding));
        }
        Ok(Self { words, len: usize::try_from(len).map_err(|_| too_short)? })
    }
}

/// The lowest `width <= 63` bits.
#[inline]
fn mask(width: u32) -> u64 {
    (1 << width) - 1
}

/// The bits of the last word that belong to a vector of `len` bits.
fn mask_of_rest(len: u64) -> u64 {
    if len.is_multiple_of(64) { u64::MAX } else { (1 << (len % 64)) - 1 }
}

fn broken(rule: &'static str, expected: u64, found: u64) -> Corrupt {
    Corrupt { page: 0, rule, expected, found }
}

/// The `low_bits` that make a sequence of `count` numbers up to `value_max` smallest.
fn best_low_bits(value_max: u64, count: u64) -> u32 {
    let smallest = (value_max / count.max(1)).checked_ilog2().unwrap_or(0);
    // Fewer than 2^32 buckets.
    let bits = u64::BITS - value_max.leading_zeros();
    smallest.max(bits.saturating_sub(31))
}

/// A sequence that is still growing.
#[derive(Debug)]
pub(super) struct SequenceBuilder {
    value_max: u64,
    low_bits: u32,
    count_expected: u64,
    count: u32,
    last: u64,
    lows: Bits,
    highs: Bits,
}

impl SequenceBuilder {
    /// A sequence of numbers up to `value_max`, about `count_expected` of them. With fewer it takes
    /// as much memory as if there were a quarter of them, until the end; with more it grows beyond
    /// the smallest size possible.
    pub(super) fn new(value_max: u64, count_expected: u64) -> Self {
        let low_bits = best_low_bits(value_max, count_expected);
        let lows = Bits::default();
        let highs = Bits::default();
        Self { value_max, low_bits, count_expected, count: 0, last: 0, lows, highs }
    }

    /// Appends a number, at least the one before and at most `value_max`.
    pub(super) fn push(&mut self, value: u64) {
        assert!(self.last <= value, "keys come in order");
        assert!(value <= self.value_max, "keys lie within their bounds");
        self.skip_buckets(value >> self.low_bits);
        self.highs.push(1, 1);
        self.lows.push(value & mask(self.low_bits), self.low_bits);
        self.last = value;
        self.count = self.count.checked_add(1).expect("pages are numbered with 32 bits");
    }

    /// Memory held, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        (self.lows.words.capacity() + self.highs.words.capacity()) * size_of::<u64>()
    }

    /// Closes all buckets before `bucket`.
    fn skip_buckets(&mut self, bucket: u64) {
        // Each number is a one bit, and each closed bucket a zero bit.
        let closed = self.highs.len as u64 - u64::from(self.count);
        debug_assert!(closed <= bucket, "numbers never fall");
        self.highs.push_zeros(to_usize(bucket - closed));
    }

    /// Ends the sequence, in which nothing above `value_max` will be looked for.
    pub(super) fn finish(mut self, value_max: u64) -> Sequence {
        assert!(self.last <= value_max && value_max <= self.value_max);
        self.skip_buckets((value_max >> self.low_bits) + 1);
        let low_bits = self.low_bits;
        let count = self.count;
        self.lows.words.shrink_to_fit();
        self.highs.words.shrink_to_fit();
        let sequence = Sequence::new(low_bits, count, self.lows, self.highs);

        // Down to a quarter of the expected count the size is at most a bit per number off.
        if u64::from(count) >= self.count_expected / 4 {
            return sequence;
        }

        let mut smaller = Self::new(value_max, u64::from(count));
        sequence.iter().for_each(|value| smaller.push(value));
        smaller.finish(value_max)
    }
}

/// A number whose bits count things in memory.
#[inline]
fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("counts things in memory")
}

/// Where a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    /// Index of the last number that is at most the one looked for.
    pub(super) index: u32,
    /// Whether it is equal.
    pub(super) equal: bool,
}

/// A complete sequence.
///
/// Invariant: for the `value_max` that searches keep to, `highs` has `count` ones and
/// `(value_max >> low_bits) + 1` zeros, the last bit being a zero, and the numbers never fall.
/// [`SequenceBuilder`] and [`Sequence::decode`] see to it.
#[derive(Debug)]
pub(super) struct Sequence {
    low_bits: u32,
    count: u32,
    lows: Bits,
    highs: Bits,
    /// For each group of words in `highs`, the zeros before it.
    zeros_before: Vec<u32>,
    /// For zero 0, 256, 512, .. of `highs`, the group that holds it.
    samples: Vec<u32>,
}

impl Sequence {
    fn new(low_bits: u32, count: u32, lows: Bits, highs: Bits) -> Self {
        let groups = highs.words.len().div_ceil(GROUP_WORDS);
        let mut zeros_before = Vec::with_capacity(groups);
        let mut samples = Vec::with_capacity((highs.len - count as usize) / SAMPLE_ZEROS + 1);

        let mut zeros = 0u32;
        for (group, words) in (0u32..).zip(highs.words.chunks(GROUP_WORDS)) {
            zeros_before.push(zeros);
            for word in words {
                zeros = zeros.saturating_add(word.count_zeros());
            }
            // One group of words may hold several samples.
            while samples.len() * SAMPLE_ZEROS < zeros as usize {
                samples.push(group);
            }
        }

        Self { low_bits, count, lows, highs, zeros_before, samples }
    }

    /// How many numbers there are.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// How many of the lowest bits of each number stand apart.
    pub(super) fn low_bits(&self) -> u32 {
        self.low_bits
    }

    /// Memory held, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        (self.lows.words.capacity() + self.highs.words.capacity()) * size_of::<u64>()
            + (self.zeros_before.capacity() + self.samples.capacity()) * size_of::<u32>()
    }

    /// The last number that is at most `value <= value_max`; none if all are greater.
    #[inline]
    pub(super) fn last_at_most(&self, value: u64) -> Option<Position> {
        let low = value & mask(self.low_bits);
        let bucket = self.bucket(value >> self.low_bits);
        let mut left = bucket.start;

        let mut right = bucket.end;
        while left < right {
            let middle = left + (right - left) / 2;
            if self.low(middle) <= low {
                left = middle + 1;
            } else {
                right = middle;
            }
        }

        // If all numbers of the bucket are greater, the last number of an earlier bucket is the
        // answer.
        let index = left.checked_sub(1)?;
        let equal = bucket.contains(&index) && self.low(index) == low;
        debug_assert!(index < self.count as usize);
        Some(Position { index: u32::try_from(index).ok()?, equal })
    }

    /// Whether number `index` is `value <= value_max`.
    pub(super) fn is_at(&self, index: u32, value: u64) -> bool {
        self.bucket(value >> self.low_bits).contains(&(index as usize))
            && self.low(index as usize) == value & mask(self.low_bits)
    }

    /// All numbers in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let words = self.highs.words.iter().enumerate();
        let ones = words.flat_map(|(index, &word)| {
            std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)))
                .take_while(|&rest| rest != 0)
                .map(move |rest| index * 64 + rest.trailing_zeros() as usize)
        });
        ones.enumerate().map(|(index, position)| {
            let bucket = (position - index) as u64;
            bucket << self.low_bits | self.low(index)
        })
    }

    #[inline]
    fn low(&self, index: usize) -> u64 {
        self.lows.get(index * self.low_bits as usize, self.low_bits)
    }

    /// The indexes of the numbers in a bucket.
    #[inline]
    fn bucket(&self, bucket: u64) -> Range<usize> {
        let bucket = to_usize(bucket);
        let first = if bucket == 0 { 0 } else { self.select_zero(bucket - 1) + 1 };
        let word = self.highs.words.get(first / 64).copied().unwrap_or(0) >> (first % 64);
        let ones = word.trailing_ones() as usize;
        // Where the ones reach the end of the word there may be any number more of them.
        let end = if first % 64 + ones < 64 { first + ones } else { self.select_zero(bucket) };
        first - bucket..end - bucket
    }

    /// The position in `highs` of its zero number `rank`.
    #[inline]
    fn select_zero(&self, rank: usize) -> usize {
        let sample = |index: usize| self.samples.get(index).map(|&group| group as usize);
        let first = sample(rank / SAMPLE_ZEROS).unwrap_or(0);
        // Behind the last sample, the number of groups bounds the search.
        let last = sample(rank / SAMPLE_ZEROS + 1).unwrap_or(self.zeros_before.len());
        let groups = self.zeros_before.get(first + 1..=last).or(self.zeros_before.get(first + 1..));
        let skipped = groups.unwrap_or_default().partition_point(|&zeros| zeros as usize <= rank);
        let group = first + skipped;
        let mut left = rank - self.zeros_before.get(group).map_or(0, |&zeros| zeros as usize);

        let mut position = group * GROUP_WORDS * 64;
        for word in self.highs.words.get(group * GROUP_WORDS..).unwrap_or_default() {
            let zeros = word.count_zeros() as usize;
            if left < zeros {
                return position + select_one(!word, left);
            }
            left -= zeros;
            position += 64;
        }

        position
    }

    /// Appends `lows` and `highs`.
    pub(super) fn encode(&self, writer: &mut Writer) {
        self.lows.encode(writer);
        self.highs.encode(writer);
    }

    /// Reads what [`Sequence::encode`] wrote. Allocates no more than `reader` has bytes, and the
    /// directory.
    ///
    /// # Errors
    /// [`Corrupt`] if the invariant does not hold or bytes are missing.
    pub(super) fn decode(
        reader: &mut Reader<'_>,
        value_max: u64,
        low_bits: u32,
        count: u32,
    ) -> Result<Self, Corrupt> {
        if low_bits > 63 {
            return Err(broken("fences: low_bits", 63, low_bits.into()));
        }

        let buckets = (value_max >> low_bits).saturating_add(1);
        if buckets > u64::from(u32::MAX) {
            return Err(broken("fences: buckets", u32::MAX.into(), buckets));
        }

        let lows = Bits::decode(reader, u64::from(count) * u64::from(low_bits))?;
        let highs = Bits::decode(reader, u64::from(count) + buckets)?;

        let ones: u64 = highs.words.iter().map(|word| u64::from(word.count_ones())).sum();
        if ones != u64::from(count) {
            return Err(broken("fences: one bits", count.into(), ones));
        }

        let sequence = Self::new(low_bits, count, lows, highs);
        let mut least = 0;
        for value in sequence.iter() {
            if value < least {
                return Err(broken("fences: order", least, value));
            }
            if value > value_max {
                return Err(broken("fences: greatest value", value_max, value));
            }
            least = value;
        }

        Ok(sequence)
    }
}

/// The position of one bit number `rank` of a word that has more than `rank` ones. Adding up the
/// ones of all bytes side by side, to skip whole bytes, was measured and is no faster here.
#[inline]
fn select_one(mut word: u64, rank: usize) -> usize {
    for _ in 0..rank {
        word &= word.wrapping_sub(1);
    }
    word.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    //! Goal: a sequence answers as a sorted vector does, whatever the spread of its numbers.

    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn built(values: &[u64], value_max: u64, count_expected: u64) -> Sequence {
        let mut builder = SequenceBuilder::new(value_max, count_expected);
        for &value in values {
            builder.push(value);
        }
        builder.finish(value_max)
    }

    fn check(sequence: &Sequence, values: &[u64], value_max: u64) {
        assert_eq!(sequence.count() as usize, values.len());
        assert_eq!(sequence.iter().collect::<Vec<_>>(), values);
        let near = |&value: &u64| [value.saturating_sub(1), value, value.saturating_add(1)];
        let asked = values.iter().flat_map(near).chain([0, value_max / 2, value_max]);

        for value in asked.filter(|&value| value <= value_max) {
            let index = values.partition_point(|&other| other <= value).checked_sub(1);
            let expected = index.map(|index| Position {
                index: u32::try_from(index).unwrap(),
                equal: values[index] == value,
            });
            assert_eq!(sequence.last_at_most(value), expected, "{value}");
            let near = index.unwrap_or(0).saturating_sub(2);
            for (index, &other) in values.iter().enumerate().skip(near).take(4) {
                let is_at = sequence.is_at(u32::try_from(index).unwrap(), value);
                assert_eq!(is_at, other == value, "{value} at {index}");
            }
        }
    }

    proptest! {
        #[test]
        fn searches_agree_with_a_sorted_vector(
            mut values in vec(any::<u64>(), 0..400),
            bits in 0..=64u32,
            repeats in 1..300usize,
            count_expected in 0..2000u64,
        ) {
            let value_max = u64::MAX.checked_shr(64 - bits).unwrap_or(0);
            for value in &mut values {
                *value &= value_max;
            }

            // A long stretch of one number.
            if let Some(&first) = values.first() {
                values.extend(std::iter::repeat_n(first, repeats));
            }

            values.sort_unstable();

            // The number of buckets must stay small: memory is bounded by it.
            let count_expected = count_expected.min(4 * values.len() as u64 + 8);
            prop_assume!(value_max >> best_low_bits(value_max, count_expected) < 1 << 16);
            let sequence = built(&values, value_max, count_expected);
            check(&sequence, &values, value_max);
            let mut writer = Writer::new();
            sequence.encode(&mut writer);
            let bytes = writer.into_bytes();
            let mut reader = Reader::new(&bytes);
            let again = Sequence::decode(&mut reader, value_max, sequence.low_bits(), sequence.count());
            check(&again.unwrap(), &values, value_max);

            prop_assert!(reader.rest().is_empty());
        }
    }

    #[test]
    fn select_one_counts_from_the_lowest_bit() {
        for word in [1, 1 << 63, u64::MAX, 0x8000_0000_0000_0001, 0x0123_4567_89AB_CDEF, 0xFF00] {
            let ones = (0..64).filter(|position| word >> position & 1 == 1);
            for (rank, position) in ones.enumerate() {
                assert_eq!(select_one(word, rank), position, "{word:x}");
            }
        }
    }

    /// A stretch of equal numbers over many words and groups of `highs`, between others.
    #[test]
    fn long_stretches_and_gaps_are_searched_right() {
        let mut values: Vec<u64> = (0..3000).map(|n| n * 7).collect();
        values.extend(std::iter::repeat_n(30_000, 20_000));
        values.extend([900_000; 3]);
        check(&built(&values, 1_000_000, 30_000), &values, 1_000_000);
        check(&built(&values, 1_000_000, 100), &values, 1_000_000);
    }

    /// A merge may drop nearly all entries it was sized for.
    #[test]
    fn a_sequence_much_shorter_than_expected_is_small() {
        let values = [5, 1 << 30, (1 << 40) - 1];
        let sequence = built(&values, (1 << 40) - 1, 1_000_000);
        check(&sequence, &values, (1 << 40) - 1);
        assert!(sequence.memory_bytes() < 100, "{}", sequence.memory_bytes());
    }

    #[test]
    #[should_panic(expected = "keys come in order")]
    fn falling_numbers_are_a_bug_of_the_caller() {
        built(&[2, 1], 10, 2);
    }
}
