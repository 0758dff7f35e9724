//! Blocked Bloom filter: whether a sorted run may hold a key, at one cache line per question.
//!
//! A filter is an array of 64-byte blocks. A key is known by one 64-bit hash, salted by the caller;
//! the hash names one block and a pattern of up to `probes` of its 512 bits. Adding the key sets
//! the pattern's bits; a key may be present if all of them are set. As all bits of a key lie in one
//! cache line, a question costs one memory access, and [`probe_batch`] overlaps many of them.
//!
//! # Size
//!
//! Blocks fill unevenly, so a blocked filter needs more bits than a plain one: 15.5 bits per entry
//! for a false-positive rate (FPR) of 1e-3, where a plain one needs 14.4. The tables below come
//! from the model in the tests, which takes the load of a block as Poisson-distributed and counts the bits set.

#![doc = include_str!("../../../docs/format/filter.md")]

use std::ops::Range;

use terrane_io::hint::prefetch;

use crate::corrupt::Corrupt;

/// Words of 64 bits in a block; a block is one cache line.
const BLOCK_WORDS: usize = 8;
/// Bytes of a block.
const BLOCK_BYTES: usize = 64;
/// Bits of a block.
const BLOCK_BITS: f64 = 512.0;
/// Bits that select one of the 512 of a block.
const PROBE_BITS: u32 = 9;
/// Probes taken from one 64-bit draw.
const PROBES_PER_DRAW: u8 = 7;
/// The most probes a filter may have: three draws.
const PROBES_MAX: u8 = 21;
/// One per draw: digits of pi.
const SEEDS: [u64; 3] = [0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7344, 0xA409_3822_299F_31D0];
/// 2^64 over the golden ratio, odd.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Blocks that [`probe_batch`] asks the memory for before it tests the first of them. Measured with 1,
/// 8 and 40 filters far larger than the second-level cache: 64 and 128 are alike, 256 costs 5 to 20 %
/// more; without asking, a probe takes twice as long.
const PREFETCH_BLOCKS: usize = 64;

/// Hashes between asking for a block and writing to it.
const WAITING: usize = 8;

/// How much memory a filter gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FilterAllocation {
    /// Bits per entry; held to `1.0..=32.0`.
    BitsPerEntry(f64),
    /// As many bits as this false-positive rate takes; held to `1e-5..=1e-1`.
    Fpr(f64),
    /// One block, which soon says of every key that it may be there.
    Least,
}

impl FilterAllocation {
    /// Bits per entry for a FPR of 10^-1, 10^-1.5, .. 10^-5.
    const BITS_BY_HALF_DECADE: [f64; 9] =
        [4.84, 7.32, 9.92, 12.64, 15.55, 18.68, 22.03, 25.69, 29.67];

    /// The probes with the lowest FPR for 1, 2, .. 32 bits per entry.
    const PROBES_BY_BITS: [u8; 32] = [
        1, 1, 2, 3, 3, 4, 5, 5, 6, 6, 7, 8, 8, 9, 9, 9, 10, 10, 11, 11, 11, 12, 12, 12, 13, 13, 13,
        14, 14, 14, 14, 15,
    ];

    /// So many bits per entry, where they are enough to be of use.
    pub(crate) fn for_bits(bits: f64) -> Self {
        if bits >= 1.0 { Self::BitsPerEntry(bits) } else { Self::Least }
    }

    /// About as many bits as a false-positive rate takes, which may be up to 1.
    pub(crate) fn for_rate(rate: f64) -> Self {
        if rate <= 0.1 {
            return Self::Fpr(rate);
        }
        Self::for_bits(Self::BITS_BY_HALF_DECADE[0] * -rate.min(1.0).log10())
    }

    /// Bits per entry to allocate.
    fn bits_per_entry(self) -> f64 {
        match self {
            // As little as can be told from nothing: rounded up, it is a block.
            Self::Least => f64::MIN_POSITIVE,
            Self::BitsPerEntry(bits) => bits.clamp(1.0, 32.0),
            Self::Fpr(fpr) => {
                // Straight lines between the points of a convex curve: at most 0.1 bits too many.
                let half_decades = (fpr.clamp(1e-5, 1e-1).log10() * -2.0 - 2.0).clamp(0.0, 8.0);
                let table = &Self::BITS_BY_HALF_DECADE;
                let left = floor_index(half_decades).min(table.len() - 2);
                let share = half_decades - half_decades.floor().min(7.0);
                table[left] + share * (table[left + 1] - table[left])
            }
        }
    }
}

/// The whole part of a small non-negative number.
fn floor_index(number: f64) -> usize {
    number as usize
}

/// Blocks are a multiple of a power of two up to this, so that a filter can be halved four times.
const BLOCKS_MULTIPLE_MAX: usize = 16;

/// Number of blocks for `entries` at `bits_per_entry`. It is rounded up so that it can be halved: by a
/// thirty-second at the most.
fn block_count(entries: u64, bits_per_entry: f64) -> usize {
    let count = (entries as f64 * bits_per_entry / BLOCK_BITS).ceil() as usize;
    let multiple = (count / 32).checked_ilog2().map_or(1, |log| 1 << log);
    count.next_multiple_of(multiple.min(BLOCKS_MULTIPLE_MAX))
}

/// The array of blocks, each on a cache line of its own.
///
/// A vector of over-aligned blocks would be zeroed by writing all of it, a stall of 0.1 s for the
/// filter of 100 M entries just when a merge begins. A vector of plain words comes from the
/// operating system as untouched zero pages, so it is made a little too long and begins where a
/// cache line begins.
#[derive(Debug, Clone)]
struct Blocks {
    /// Never grows, so it never moves.
    words: Vec<u64>,
    /// Where block 0 begins, in words.
    start: usize,
    count: usize,
}

impl Blocks {
    fn zeroed(count: usize) -> Self {
        let words = vec![0u64; if count == 0 { 0 } else { (count + 1) * BLOCK_WORDS - 1 }];
        // Should the offset be unknown, speed is lost, nothing else.
        let start = words.as_ptr().align_offset(BLOCK_BYTES);
        Self { words, start: if start < BLOCK_WORDS { start } else { 0 }, count }
    }

    /// Puts each pair of neighbours into one block, which then has the bits of both. As blocks are numbered in
    /// the order of hashes, this is the filter that would have been built with half the blocks.
    fn halve(&mut self) {
        let words = self.words_mut();
        for block in 0..words.len() / BLOCK_WORDS / 2 {
            for word in 0..BLOCK_WORDS {
                let left = 2 * block * BLOCK_WORDS + word;
                words[block * BLOCK_WORDS + word] = words[left] | words[left + BLOCK_WORDS];
            }
        }
        self.count /= 2;
        self.words.truncate(self.start + self.count * BLOCK_WORDS);
        // In place as a rule; else blocks may no longer begin with a cache line, which costs speed only.
        self.words.shrink_to_fit();
    }

    /// All words of all blocks.
    fn words(&self) -> &[u64] {
        self.words.get(self.start..self.start + self.count * BLOCK_WORDS).unwrap_or_default()
    }

    fn words_mut(&mut self) -> &mut [u64] {
        self.words.get_mut(self.start..self.start + self.count * BLOCK_WORDS).unwrap_or_default()
    }

    /// The block that `hash` belongs to; none if there are no blocks.
    #[inline]
    fn block(&self, hash: u64) -> Option<&[u64; BLOCK_WORDS]> {
        let (blocks, _) = self.words().as_chunks::<BLOCK_WORDS>();
        blocks.get(block_index(hash, blocks.len()))
    }
}

/// The number of the block, below `count`, that `hash` belongs to.
#[inline]
fn block_index(hash: u64, count: usize) -> usize {
    ((u128::from(hash) * count as u128) >> 64) as usize
}

/// Calls `visit` with word and bit of each probe of a hash.
#[inline]
fn each_probe(hash: u64, probes: u8, mut visit: impl FnMut(usize, u64)) {
    let mut left = probes;
    for seed in SEEDS {
        let mut draw = fold(hash ^ seed);
        for _ in 0..left.min(PROBES_PER_DRAW) {
            visit((draw >> 6) as usize % BLOCK_WORDS, 1 << (draw % 64));
            draw >>= PROBE_BITS;
        }
        left = left.saturating_sub(PROBES_PER_DRAW);
        if left == 0 {
            break;
        }
    }
}

/// The bits of a block that belong to a hash.
#[derive(Debug, Clone, Copy)]
struct Pattern([u64; BLOCK_WORDS]);

impl Pattern {
    #[inline]
    fn new(hash: u64, probes: u8) -> Self {
        let mut words = [0; BLOCK_WORDS];
        each_probe(hash, probes, |word, bit| words[word] |= bit);
        Self(words)
    }

    #[inline]
    fn is_in(&self, block: &[u64; BLOCK_WORDS]) -> bool {
        // Without branches, which would be mispredicted for every second absent key.
        let missing =
            self.0.iter().zip(block).fold(0, |missing, (bits, word)| missing | (bits & !word));
        missing == 0
    }
}

/// Both halves of a product, folded together.
#[inline]
fn fold(number: u64) -> u64 {
    let product = u128::from(number) * u128::from(MULTIPLIER);
    (product >> 64) as u64 ^ product as u64
}

/// A filter that is still being filled.
#[derive(Debug)]
pub(crate) struct FilterBuilder {
    blocks: Blocks,
    probes: u8,
    /// The last hashes, whose blocks have been asked for but not written yet; 0 where there is none.
    waiting: [u64; WAITING],
    next: usize,
}

impl FilterBuilder {
    /// Adds a key by its hash.
    ///
    /// # Panics
    /// If the filter was sized for no entries.
    #[inline]
    pub(crate) fn insert(&mut self, hash: u64) {
        if let Some(block) = self.blocks.block(hash) {
            prefetch(block);
        }
        let due = std::mem::replace(&mut self.waiting[self.next], hash);
        self.next = (self.next + 1) % WAITING;
        // A hash of 0 has to be told from no hash, so it does not wait.
        if due != 0 {
            self.set(due);
        }
        if hash == 0 {
            self.set(0);
        }
    }

    #[inline]
    fn set(&mut self, hash: u64) {
        let (blocks, _) = self.blocks.words_mut().as_chunks_mut::<BLOCK_WORDS>();
        let index = block_index(hash, blocks.len());
        let block = blocks.get_mut(index).expect("a filter sized for no entries takes none");
        each_probe(hash, self.probes, |word, bit| block[word] |= bit);
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.blocks.words.capacity() * size_of::<u64>()
    }

    /// Ends filling.
    pub(crate) fn finish(mut self) -> Filter {
        for hash in self.waiting {
            if hash != 0 {
                self.set(hash);
            }
        }
        Filter { blocks: self.blocks, probes: self.probes }
    }
}

/// A set of hashes that may claim to hold others too.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    blocks: Blocks,
    /// Invariant: `1..=PROBES_MAX`.
    probes: u8,
}

impl Filter {
    /// A filter with room for `entries`. More may be inserted, at the price of the FPR; into a
    /// filter for 0 entries, none.
    ///
    /// # Panics
    /// If the allocation is not a number.
    pub(crate) fn builder(entries: u64, allocation: FilterAllocation) -> FilterBuilder {
        let bits = allocation.bits_per_entry();
        assert!(!bits.is_nan(), "a table's configuration is checked when it is made");
        let probes = FilterAllocation::PROBES_BY_BITS[floor_index(bits.round()).max(1) - 1];
        assert!(probes <= PROBES_MAX);
        let blocks = Blocks::zeroed(block_count(entries, bits));
        FilterBuilder { blocks, probes, waiting: [0; WAITING], next: 0 }
    }

    /// The filter of no entries.
    pub(crate) fn empty() -> Self {
        Self::builder(0, FilterAllocation::BitsPerEntry(1.0)).finish()
    }

    /// Blocks of a filter that is built with room for `entries`.
    pub(crate) fn blocks_for(entries: u64, allocation: FilterAllocation) -> u64 {
        block_count(entries, allocation.bits_per_entry()) as u64
    }

    /// Whether the key of this hash may have been inserted; if `false`, it was not.
    #[inline]
    pub(crate) fn contains(&self, hash: u64) -> bool {
        let Some(block) = self.blocks.block(hash) else { return false };
        let mut all_set = true;
        each_probe(hash, self.probes, |word, bit| all_set &= block[word] & bit != 0);
        all_set
    }

    /// Starts to load the block that [`Filter::contains`] will look at.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        if let Some(block) = self.blocks.block(hash) {
            prefetch(block);
        }
    }

    /// Whether there are two blocks to each block of a filter half as large.
    pub(crate) fn can_be_halved(&self) -> bool {
        self.blocks.count > 0 && self.blocks.count.is_multiple_of(2)
    }

    /// Halves the filter in memory. It goes on to say yes to all of its hashes, and to more others.
    pub(crate) fn halve(&mut self) {
        assert!(self.can_be_halved());
        self.blocks.halve();
    }

    /// Number of 64-byte blocks; 0 for a filter of no entries.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.count as u64
    }

    /// Number of bits looked at per key.
    pub(crate) fn probes(&self) -> u8 {
        self.probes
    }

    /// Number of 64-bit words, eight per block.
    pub(crate) fn word_count(&self) -> usize {
        self.blocks.words().len()
    }

    /// The words of a range, cut off at [`Filter::word_count`]; stored in little-endian order.
    pub(crate) fn words(&self, range: Range<usize>) -> &[u64] {
        let words = self.blocks.words();
        let end = range.end.min(words.len());
        &words[range.start.min(end)..end]
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.blocks.words.capacity() * size_of::<u64>()
    }
}

/// Puts a filter together from its stored parts.
#[derive(Debug)]
pub(crate) struct FilterDecoder {
    blocks: Blocks,
    probes: u8,
    words_filled: usize,
}

impl FilterDecoder {
    /// Begins a filter of `blocks` blocks; what is allocated is known to be at most
    /// `memory_bytes_max`, which the caller takes from the size of the file.
    ///
    /// # Errors
    /// [`Corrupt`] if there are more blocks than that, or an impossible number of probes.
    pub(crate) fn new(blocks: u64, probes: u8, memory_bytes_max: u64) -> Result<Self, Corrupt> {
        let blocks_max = memory_bytes_max / BLOCK_BYTES as u64;
        let count = usize::try_from(blocks).ok().filter(|_| blocks <= blocks_max);
        let Some(count) = count else {
            return Err(broken("filter: blocks fit into the file", blocks_max, blocks));
        };
        if !(1..=PROBES_MAX).contains(&probes) {
            return Err(broken("filter: probes", PROBES_MAX.into(), probes.into()));
        }
        Ok(Self { blocks: Blocks::zeroed(count), probes, words_filled: 0 })
    }

    /// Takes the next words, in order and in pieces of any number of whole words.
    ///
    /// # Errors
    /// [`Corrupt`] if `bytes` ends within a word, or after the last word of the filter.
    pub(crate) fn push_words(&mut self, bytes: &[u8]) -> Result<(), Corrupt> {
        let (words, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(broken("filter: whole words", 0, rest.len() as u64));
        }
        let left = self.blocks.words_mut().get_mut(self.words_filled..).unwrap_or_default();
        if words.len() > left.len() {
            return Err(broken("filter: word count", left.len() as u64, words.len() as u64));
        }
        for (to, from) in left.iter_mut().zip(words) {
            *to = u64::from_le_bytes(*from);
        }
        self.words_filled += words.len();
        Ok(())
    }

    /// Ends the filter.
    ///
    /// # Errors
    /// [`Corrupt`] if words are missing.
    pub(crate) fn finish(self) -> Result<Filter, Corrupt> {
        let word_count = self.blocks.words().len();
        if self.words_filled < word_count {
            let (expected, found) = (word_count as u64, self.words_filled as u64);
            return Err(broken("filter: word count", expected, found));
        }
        Ok(Filter { blocks: self.blocks, probes: self.probes })
    }
}

fn broken(rule: &'static str, expected: u64, found: u64) -> Corrupt {
    Corrupt { page: 0, rule, expected, found }
}

/// A key that a filter may hold, both by their places in the slices given to [`probe_batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hit {
    /// Place of the key's hash.
    pub(crate) key: u32,
    /// Place of the filter.
    pub(crate) filter: u32,
}

/// Appends to `hits` every pair of hash and filter for which [`Filter::contains`] holds, by rising
/// key and then by rising filter.
///
/// Cost: one cache line per pair, many on their way at once; allocates only what `hits` needs.
#[inline(never)] // so that `cargo xtask counts` sees it apart
pub(crate) fn probe_batch(filters: &[&Filter], hashes: &[u64], hits: &mut Vec<Hit>) {
    assert!(u32::try_from(filters.len()).is_ok());
    assert!(u32::try_from(hashes.len()).is_ok());
    let keys_per_group = (PREFETCH_BLOCKS / filters.len().max(1)).max(1);
    let mut key = 0;
    for group in hashes.chunks(keys_per_group) {
        for &hash in group {
            for filter in filters {
                filter.prefetch(hash);
            }
        }
        for &hash in group {
            probe_key(filters, key, hash, hits);
            key += 1;
        }
    }
}

/// Tests one key against all filters. Its pattern is the same for all that have as many probes, as
/// the filters of one table do, so it is drawn once.
#[inline]
fn probe_key(filters: &[&Filter], key: u32, hash: u64, hits: &mut Vec<Hit>) {
    let mut probes = 0;
    let mut pattern = Pattern([0; BLOCK_WORDS]);
    for (index, filter) in (0u32..).zip(filters) {
        let Some(block) = filter.blocks.block(hash) else { continue };
        if filter.probes != probes {
            probes = filter.probes;
            pattern = Pattern::new(hash, probes);
        }
        if pattern.is_in(block) {
            hits.push(Hit { key, filter: index });
        }
    }
}

#[cfg(test)]
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers of the tests' own"
)]
mod tests {
    //! Goal: no false negatives, the false-positive rate that was asked for, and decoding that takes
    //! exactly what was stored. Method: hashes from SplitMix64 with fixed seeds, so that each
    //! measured rate is one number and its tolerance can be tight.

    use super::*;

    struct SplitMix64(u64);

    impl Iterator for SplitMix64 {
        type Item = u64;
        fn next(&mut self) -> Option<u64> {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            Some(mixed ^ (mixed >> 31))
        }
    }

    fn filled(entries: usize, allocation: FilterAllocation) -> Filter {
        let mut builder = Filter::builder(entries as u64, allocation);
        SplitMix64(entries as u64).take(entries).for_each(|hash| builder.insert(hash));
        builder.finish()
    }

    fn measured_fpr(filter: &Filter, questions: usize) -> f64 {
        let claimed = SplitMix64(1 << 60).take(questions).filter(|&hash| filter.contains(hash));
        claimed.count() as f64 / questions as f64
    }

    /// The expected FPR. For a block with `i` entries, follows the distribution of the number of
    /// bits set through `i * probes` draws; the mean alone would be 1 % too low.
    fn model_fpr(bits_per_entry: f64, probes: u8) -> f64 {
        let load = BLOCK_BITS / bits_per_entry;
        let mut weight = (-load).exp();
        let mut set = vec![0.0; 513];
        set[0] = 1.0;
        let mut fpr = 0.0;
        for entries in 0..(load + 10.0 * load.sqrt() + 10.0) as usize {
            let claimed = |(bits, share): (usize, &f64)| {
                share * (bits as f64 / BLOCK_BITS).powi(probes.into())
            };
            fpr += weight * set.iter().enumerate().map(claimed).sum::<f64>();
            weight *= load / (entries + 1) as f64;
            for _ in 0..probes {
                for bits in (1..=512).rev() {
                    set[bits] = set[bits] * bits as f64 / BLOCK_BITS
                        + set[bits - 1] * (513 - bits) as f64 / BLOCK_BITS;
                }
                set[0] = 0.0;
            }
        }
        fpr
    }

    #[test]
    fn inserted_hashes_are_found_at_every_size() {
        for entries in [1, 2, 31, 33, 1000, 20_000] {
            let filter = filled(entries, FilterAllocation::Fpr(1e-3));
            assert!(SplitMix64(entries as u64).take(entries).all(|hash| filter.contains(hash)));
        }
    }

    #[test]
    fn a_filter_for_no_entries_holds_nothing_and_takes_no_blocks() {
        let filter = filled(0, FilterAllocation::Fpr(1e-3));
        assert_eq!((filter.blocks(), filter.word_count()), (0, 0));
        assert!(SplitMix64(0).take(1000).chain([0, u64::MAX]).all(|hash| !filter.contains(hash)));
        filter.prefetch(0);
    }

    /// Measured against requested: within 6 % plus three standard deviations of the count, at sizes
    /// where blocks are filled as the model says; small filters may only be better.
    #[test]
    fn measured_fpr_is_the_requested_one() {
        let questions = 2_000_000;
        for fpr in [1e-1, 3e-2, 1e-2, 2e-3, 1e-3, 1e-4, 1e-5] {
            let slack = 3.0 * (fpr / f64::from(questions)).sqrt();
            for entries in [100, 2_500, 20_000, 300_000] {
                let filter = filled(entries, FilterAllocation::Fpr(fpr));
                let measured = measured_fpr(&filter, questions as usize);
                assert!(measured <= fpr * 1.06 + slack, "{entries} at {fpr}: {measured}");
                if entries >= 20_000 {
                    assert!(measured >= fpr * 0.90 - slack, "{entries} at {fpr}: {measured}");
                }
            }
        }
    }

    #[test]
    fn measured_fpr_is_that_of_the_model_for_bits_per_entry() {
        let questions = 2_000_000;
        for bits in [2.0, 5.0, 10.0, 16.0, 24.0] {
            let filter = filled(100_000, FilterAllocation::BitsPerEntry(bits));
            let model = model_fpr(bits, filter.probes());
            let measured = measured_fpr(&filter, questions as usize);
            let slack = 0.03 * model + 3.0 * (model / f64::from(questions)).sqrt();
            assert!((measured - model).abs() < slack, "{bits}: {measured} against {model}");
        }
    }

    /// Halving and building with half the blocks give the same words, so nothing is lost and the rate is
    /// the model's.
    #[test]
    fn a_halved_filter_is_the_one_built_with_half_the_blocks() {
        for (entries, times) in [(2_000, 1), (20_000, 2), (60_000, 3)] {
            let mut filter = filled(entries, FilterAllocation::BitsPerEntry(20.0));
            for halvings in 1..=times {
                let before = filter.memory_bytes();
                assert!(filter.can_be_halved());
                filter.halve();
                assert!(filter.memory_bytes() <= before / 2 + 64);
                let mut builder = FilterBuilder {
                    blocks: Blocks::zeroed(filter.blocks() as usize),
                    probes: filter.probes,
                    waiting: [0; WAITING],
                    next: 0,
                };
                SplitMix64(entries as u64).take(entries).for_each(|hash| builder.insert(hash));
                let all = 0..filter.word_count();
                assert_eq!(filter.words(all.clone()), builder.finish().words(all));
                let bits = filter.word_count() as f64 * 64.0 / entries as f64;
                let model = model_fpr(bits, filter.probes());
                let measured = measured_fpr(&filter, 200_000);
                let slack = 0.05 * model + 0.002;
                assert!((measured - model).abs() < slack, "{halvings}: {measured}, model {model}");
            }
        }
    }

    #[test]
    fn the_number_of_blocks_is_rounded_up_by_a_thirty_second_at_the_most() {
        for wanted in 1..5_000_usize {
            let count = block_count(wanted as u64, BLOCK_BITS);
            assert!(wanted <= count && count * 32 <= wanted * 33, "{count} for {wanted}");
            assert!(wanted < 512 || count.is_multiple_of(16));
        }
    }

    #[test]
    fn the_least_filter_is_one_block_and_denies_no_key_in_the_end() {
        let filter = filled(10_000, FilterAllocation::Least);
        assert_eq!(filter.blocks(), 1);
        assert!(SplitMix64(1 << 60).take(10_000).all(|hash| filter.contains(hash)));
        assert_eq!(FilterAllocation::for_rate(0.9), FilterAllocation::Least);
        assert_eq!(FilterAllocation::for_bits(0.9), FilterAllocation::Least);
        assert_eq!(FilterAllocation::for_bits(3.5), FilterAllocation::BitsPerEntry(3.5));
        assert_eq!(FilterAllocation::for_rate(0.01), FilterAllocation::Fpr(0.01));
        // Without a jump where one rule ends and the other begins.
        let bits = FilterAllocation::for_rate(0.1001).bits_per_entry();
        assert!((bits - FilterAllocation::for_rate(0.1).bits_per_entry()).abs() < 0.01, "{bits}");
    }

    #[test]
    fn tables_are_those_of_the_model() {
        for (bits, probes) in (1u8..).zip(FilterAllocation::PROBES_BY_BITS) {
            let fpr = model_fpr(bits.into(), probes);
            for other in [probes - 1, probes + 1].into_iter().filter(|&other| other > 0) {
                assert!(fpr <= model_fpr(bits.into(), other), "{bits} bits, {other} probes");
            }
        }
        for half_decades in 0..=16 {
            let fpr = 10f64.powf(-1.0 - f64::from(half_decades) / 4.0);
            let bits = FilterAllocation::Fpr(fpr).bits_per_entry();
            let probes = FilterAllocation::PROBES_BY_BITS[bits.round() as usize - 1];
            let got = model_fpr(bits, probes);
            assert!(got <= fpr * 1.005 && got >= fpr * 0.95, "{fpr}: {got} at {bits} bits");
        }
    }

    #[test]
    fn sizes_out_of_range_are_held_to_the_range() {
        let bits = |allocation: FilterAllocation| allocation.bits_per_entry();
        for (asked, got) in [(-5.0, 1.0), (0.0, 1.0), (16.5, 16.5), (1e9, 32.0)] {
            assert_eq!(bits(FilterAllocation::BitsPerEntry(asked)).to_bits(), f64::to_bits(got));
        }
        for asked in [-1.0, 0.0, 1e-300, 1e-5, 1e-1, 1.0, f64::INFINITY] {
            let got = bits(FilterAllocation::Fpr(asked));
            assert!((4.0..=30.0).contains(&got), "{asked}: {got}");
        }
    }

    #[test]
    fn blocks_lie_on_cache_lines() {
        for entries in [1, 100, 1_000_000] {
            let filter = filled(entries, FilterAllocation::BitsPerEntry(10.0));
            assert_eq!(filter.blocks.words().as_ptr() as usize % BLOCK_BYTES, 0);
            assert!(filter.memory_bytes() >= filter.word_count() * 8);
            assert!(filter.memory_bytes() <= filter.word_count() * 8 + 2 * BLOCK_BYTES);
        }
    }

    #[test]
    fn a_batch_finds_what_single_questions_find() {
        let filters: Vec<Filter> = (0..300)
            .map(|n| {
                let bits = [4.0, 10.0, 10.0][n % 3];
                filled(if n % 7 == 6 { 0 } else { 40 * n }, FilterAllocation::BitsPerEntry(bits))
            })
            .collect();
        for (filter_count, hash_count) in
            [(0, 0), (0, 9), (9, 0), (1, 1), (1, 1000), (2, 100), (40, 257), (300, 65)]
        {
            let filters: Vec<&Filter> = filters[300 - filter_count..].iter().collect();
            let hashes: Vec<u64> = SplitMix64(40 * 299).take(hash_count).collect();
            let mut expected = vec![Hit { key: 7, filter: 8 }];
            for (key, &hash) in (0..).zip(&hashes) {
                for (filter, _) in (0..).zip(&filters).filter(|(_, f)| f.contains(hash)) {
                    expected.push(Hit { key, filter });
                }
            }
            let mut hits = vec![Hit { key: 7, filter: 8 }];
            probe_batch(&filters, &hashes, &mut hits);
            assert_eq!(hits, expected, "{filter_count} filters, {hash_count} hashes");
        }
    }

    /// A batch of more than 2^16 hashes and filters: numbers must not wrap in any direction.
    #[test]
    fn a_batch_may_be_larger_than_any_small_integer() {
        let full = filled(1, FilterAllocation::Fpr(1e-1));
        let empty = filled(0, FilterAllocation::Fpr(1e-1));
        let hash = SplitMix64(1).next().unwrap();
        let mut filters = vec![&empty; 70_000];
        filters[69_999] = &full;
        let mut hits = Vec::new();
        probe_batch(&filters, &[!hash, hash], &mut hits);
        assert!(hits.contains(&Hit { key: 1, filter: 69_999 }));
        let mut hashes = vec![!hash; 70_000];
        hashes[69_999] = hash;
        hits.clear();
        probe_batch(&[&full], &hashes, &mut hits);
        assert!(hits.contains(&Hit { key: 69_999, filter: 0 }));
    }

    fn stored(filter: &Filter) -> Vec<u8> {
        filter.words(0..filter.word_count()).iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_filter_stored_in_pieces_is_read_back_word_for_word() {
        for entries in [0, 1, 5000] {
            let filter = filled(entries, FilterAllocation::Fpr(1e-2));
            let bytes = stored(&filter);
            for piece in [8, 64, 4088, 1 << 20] {
                let limit = bytes.len() as u64;
                let mut decoder =
                    FilterDecoder::new(filter.blocks(), filter.probes(), limit).unwrap();
                bytes.chunks(piece).for_each(|piece| decoder.push_words(piece).unwrap());
                let again = decoder.finish().unwrap();
                assert_eq!(again.probes(), filter.probes());
                assert_eq!(stored(&again), bytes);
            }
        }
    }

    #[test]
    fn impossible_parts_are_refused_before_anything_is_allocated() {
        for (blocks, probes, limit) in
            [(u64::MAX, 5, 4096), (65, 5, 4096), (1, 5, 63), (1, 0, 4096), (1, 22, 4096)]
        {
            assert!(
                FilterDecoder::new(blocks, probes, limit).is_err(),
                "{blocks} {probes} {limit}"
            );
        }
        assert!(FilterDecoder::new(64, 21, 4096).is_ok());
    }

    #[test]
    fn too_few_too_many_and_broken_words_are_refused() {
        let decoder = || FilterDecoder::new(2, 5, 128).unwrap();
        let mut short = decoder();
        short.push_words(&[0; 120]).unwrap();
        assert_eq!(short.finish().unwrap_err().found, 15);
        let mut long = decoder();
        long.push_words(&[0; 120]).unwrap();
        assert!(long.push_words(&[0; 16]).is_err());
        assert!(decoder().push_words(&[0; 9]).is_err());
    }

    /// The bits that a hash sets are part of the format.
    #[test]
    fn bits_of_a_hash_are_those_of_the_format() {
        let hash = 0x0123_4567_89AB_CDEF;
        let mut builder = Filter::builder(1000, FilterAllocation::BitsPerEntry(17.0));
        builder.insert(hash);
        let filter = builder.finish();
        assert_eq!((filter.blocks(), filter.probes()), (34, 10));
        let mut words = vec![0u64; filter.word_count()];
        let block = ((u128::from(hash) * 34) >> 64) as usize;
        for probe in 0..10u32 {
            let seed = [0x243F_6A88_85A3_08D3_u64, 0x1319_8A2E_0370_7344][probe as usize / 7];
            let product = u128::from(hash ^ seed) * 0x9E37_79B9_7F4A_7C15;
            let draw = (product >> 64) as u64 ^ product as u64;
            let bit = (draw >> (9 * (probe % 7)) & 511) as usize;
            words[8 * block + bit / 64] |= 1 << (bit % 64);
        }
        assert_eq!(filter.words(0..usize::MAX), words);
    }
}
