//! Blocked Bloom filter: whether a sorted run may hold a key, at one cache line per question.
//!
//! A filter is an array of 64-byte blocks. A key is known by one 64-bit hash, salted by the caller;
//! the hash names one block and a pattern of up to `probes` of its 512 bits. Adding the key sets
//! the pattern's bits; a key may be present if all of them are set. As all bits of a key lie in one
//! cache line, a question costs one memory access, and many of them are overlapped.
//!
//! # Size
//!
//! Blocks fill unevenly, so a blocked filter needs more bits than a plain one: 15.5 bits per entry
//! for a false-positive rate (FPR) of 1e-3, where a plain one needs 14.4. The tables below come
//! from the model in the tests, which takes the load of a block as Poisson-distributed and counts
//! the bits set.
//!
//! # Folding
//!
//! In memory a filter may have any part of its stored blocks: `d` neighbours are put into one,
//! which then has the bits of all of them. As blocks are numbered in the order of hashes, that is
//! the filter that would have been built with a `d`-th of the blocks. A [`Fold`] puts one number of
//! neighbours together in the first blocks, and another in the others, so that any size can be had.
//! A folded filter has as many probes as before, more than is best for so few bits. So a filter
//! that will be folded gets six probes at most, which costs little unfolded: 0.0886 instead of
//! 0.0729 at a third of 16.5 bits per entry, where eleven probes would give 0.27.

#![expect(clippy::inline_always, reason = "the call would cost a merge as much as the work")]

use std::ops::Range;

use terrane_io::Words;
use terrane_io::prefetch::prefetch;

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

/// Hashes between asking for a block and writing to it.
const WAITING: usize = 8;

/// How much memory a filter gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum BloomSize {
    /// Bits per entry; held to `1.0..=32.0`.
    BitsPerEntry(f64),
    /// Bits for this false-positive rate, which is clamped to `1e-5..=1e-1`.
    Fpr(f64),
    /// Bits per entry, of a filter that will be folded; held to `1.0..=32.0`.
    Folding(f64),
    /// One block, which soon says of every key that it may be there.
    Least,
}

impl BloomSize {
    /// Bits per entry for a FPR of 10^-1, 10^-1.5, .. 10^-5.
    const BITS_BY_HALF_DECADE: [f64; 9] =
        [4.84, 7.32, 9.92, 12.64, 15.55, 18.68, 22.03, 25.69, 29.67];

    /// Bits per entry of a filter to be folded for a FPR of 10^-1, 10^-1.5, .. 10^-4.
    const FOLDING_BITS_BY_HALF_DECADE: [f64; 7] = [4.83, 7.30, 9.90, 12.95, 16.72, 21.41, 27.30];

    /// The probes with the lowest FPR for 1, 2, .. 32 bits per entry.
    const PROBES_BY_BITS: [u8; 32] = [
        1, 1, 2, 3, 3, 4, 5, 5, 6, 6, 7, 8, 8, 9, 9, 9, 10, 10, 11, 11, 11, 12, 12, 12, 13, 13, 13,
        14, 14, 14, 14, 15,
    ];

    /// Returns this many bits per entry of a filter that will be folded, if they are enough to be
    /// of use.
    pub(crate) fn for_bits(bits: f64) -> Self {
        if bits >= 1.0 { Self::Folding(bits) } else { Self::Least }
    }

    /// About as many bits as a false-positive rate takes, which may be up to 1, in a filter that
    /// will be folded.
    pub(crate) fn for_rate(rate: f64) -> Self {
        let table = &Self::FOLDING_BITS_BY_HALF_DECADE;
        if rate <= 0.1 {
            return Self::for_bits(bits_between(table, rate));
        }
        // The table begins at a rate of 0.1; above it the bits fall to none at 1.
        Self::for_bits(table[0] * -rate.min(1.0).log10())
    }

    /// Bits per entry to allocate.
    fn bits_per_entry(self) -> f64 {
        match self {
            // The least number above zero: rounded up, it is one block.
            Self::Least => f64::MIN_POSITIVE,
            Self::BitsPerEntry(bits) | Self::Folding(bits) => bits.clamp(1.0, 32.0),
            Self::Fpr(fpr) => bits_between(&Self::BITS_BY_HALF_DECADE, fpr),
        }
    }

    /// Bits looked at per key.
    fn probes(self) -> u8 {
        let best = Self::PROBES_BY_BITS[floor_index(self.bits_per_entry().round()).max(1) - 1];
        debug_assert!((1..=PROBES_MAX).contains(&best));
        if let Self::Folding(_) = self { best.min(FOLDING_PROBES_MAX) } else { best }
    }
}

/// Bits per entry for a FPR, from a table of those for 10^-1, 10^-1.5, ..; held to its ends.
fn bits_between(table: &[f64], fpr: f64) -> f64 {
    // Straight lines between the points of a convex curve: at most 0.15 bits too many.
    let last = table.len() - 1;
    let half_decades = (fpr.max(f64::MIN_POSITIVE).log10() * -2.0 - 2.0).clamp(0.0, last as f64);
    let left = floor_index(half_decades).min(last - 1);
    debug_assert!(left < last && left as f64 <= half_decades);
    table[left] + (half_decades - left as f64) * (table[left + 1] - table[left])
}

/// The most probes of a filter that is to be folded.
const FOLDING_PROBES_MAX: u8 = 6;

/// The whole part of a small non-negative number.
fn floor_index(number: f64) -> usize {
    number as usize
}

/// The number of blocks is a multiple of one of these, so that a filter can be folded.
const BLOCKS_MULTIPLES: [usize; 7] = [48, 24, 12, 6, 4, 2, 1];

/// Number of blocks for `entries` at `bits_per_entry`. It is rounded up so that it can be folded:
/// by a thirty-second at the most.
fn block_count(entries: u64, bits_per_entry: f64) -> usize {
    let count = (entries as f64 * bits_per_entry / BLOCK_BITS).ceil() as usize;
    // Rounding up to the multiple adds less than a 32nd of the blocks.
    let fits = |multiple: &&usize| **multiple <= (count / 32).max(1);
    let blocks = BLOCKS_MULTIPLES
        .iter()
        .find(fits)
        .map_or(count, |&multiple| count.next_multiple_of(multiple));
    debug_assert!(count <= blocks && blocks - count <= count / 32);
    blocks
}

/// The FPR to expect of a filter of this many entries, blocks and probes: within 6 % up to 24 bits
/// per entry.
///
/// The number of a block's entries is Poisson-distributed; of its mean and of √3 standard
/// deviations to both sides, weighted as four to one and one, any smooth function has about the
/// same mean.
pub(crate) fn expected_rate(entries: u64, blocks: u64, probes: u8) -> f64 {
    let mean = entries as f64 / blocks.max(1) as f64;
    let claimed = |entries: f64| {
        let unset = f64::powf(1.0 - 1.0 / BLOCK_BITS, entries * f64::from(probes));
        (1.0 - unset).powi(probes.into())
    };
    let aside = (3.0 * mean).sqrt();
    (4.0 * claimed(mean) + claimed((mean - aside).max(0.0)) + claimed(mean + aside)) / 6.0
}

/// How many neighbours among a filter's stored blocks are one block in memory: `coarse` of those
/// below `until`, `fine` of the others.
///
/// Invariant: both divide `until`, and of a filter in memory the number of stored blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fold {
    coarse: u64,
    fine: u64,
    until: u64,
}

impl Fold {
    /// The whole filter, as it is stored.
    pub(crate) const WHOLE: Self = Self::uniform(1);
    /// Nothing of it: the filter says of every key that it may be there.
    pub(crate) const NOTHING: Self = Self::uniform(0);
    /// Numbers of neighbours that are put together.
    pub(crate) const FACTORS: [u64; 10] = [48, 24, 16, 12, 8, 6, 4, 3, 2, 1];

    /// Returns the fold of `neighbours` stored blocks into each block.
    pub(crate) const fn uniform(neighbours: u64) -> Self {
        Self { coarse: neighbours, fine: neighbours, until: 0 }
    }

    /// The finest mixture of two uniform folds, one coarser than the other, that has `blocks_max`
    /// blocks of `stored` at the most. These must be enough for the coarser one.
    pub(crate) fn between(coarse: Self, fine: Self, stored: u64, blocks_max: u64) -> Self {
        let coarse = coarse.fine;
        let fine = fine.fine;
        debug_assert!(0 < fine && fine < coarse, "one of the folds is coarser");
        // Both numbers of neighbours divide a unit, so `until` stays a multiple of both.
        let unit = coarse * fine;
        let excess = (stored / fine).saturating_sub(blocks_max);
        // Each unit that is folded coarsely saves this many blocks.
        let until = excess.div_ceil(coarse - fine) * unit;
        debug_assert!(until.is_multiple_of(coarse) && until.is_multiple_of(fine));
        if until >= stored { Self::uniform(coarse) } else { Self { coarse, fine, until } }
    }

    /// Blocks in memory for this many that are stored.
    pub(crate) fn blocks(self, stored: u64) -> u64 {
        let Self { coarse, fine, until } = self;
        until / coarse + (stored - until) / fine
    }

    /// Whether different numbers of neighbours are put together.
    pub(crate) fn is_uneven(self) -> bool {
        self.until > 0
    }

    /// Whether the fold can be made of this many blocks.
    pub(crate) fn divides(self, stored: u64) -> bool {
        [self.coarse, self.fine].iter().all(|fold| stored.is_multiple_of(*fold))
    }

    /// Whether what is folded in this way can be folded further, into that one.
    pub(crate) fn leads_to(self, coarser: Self) -> bool {
        let divides = |fold: u64| {
            fold > 0 && coarser.coarse.is_multiple_of(fold) && coarser.fine.is_multiple_of(fold)
        };
        self == coarser || divides(self.coarse) && divides(self.fine)
    }

    /// The place in memory of a stored block.
    fn place(self, block: u64) -> u64 {
        let Self { coarse, fine, until } = self;
        if block < until { block / coarse } else { until / coarse + (block - until) / fine }
    }

    /// The first stored block of one in memory.
    fn first_stored(self, block: u64) -> u64 {
        let Self { coarse, fine, until } = self;
        let first_fine = until / coarse;
        if block < first_fine { block * coarse } else { until + (block - first_fine) * fine }
    }
}

/// Where a hash finds its block in a filter whose fold is not uniform.
#[derive(Debug, Clone, Copy, Default)]
struct Split {
    /// The first hash of the finer part; 0 without a coarser one.
    hash: u64,
    /// Blocks that the filter would have if all of it were as coarse, or as fine, and by how much
    /// the numbers of the finer ones are smaller than they would be then.
    coarse_count: u64,
    fine_count: u64,
    fewer: u64,
}

impl Split {
    fn new(Fold { coarse, fine, until }: Fold, stored: u64) -> Self {
        if until == 0 {
            return Self::default();
        }
        // Rounded up: the first hash whose stored block is not below `until`.
        let hash = (u128::from(until) << 64).div_ceil(u128::from(stored)) as u64;
        let coarse_count = stored / coarse;
        let fine_count = stored / fine;
        Self { hash, coarse_count, fine_count, fewer: until / fine - until / coarse }
    }

    #[inline]
    fn block_index(&self, hash: u64) -> usize {
        let (count, fewer) =
            if hash < self.hash { (self.coarse_count, 0) } else { (self.fine_count, self.fewer) };
        block_index(hash, count as usize) - fewer as usize
    }
}

/// The array of blocks, each on a cache line of its own.
#[derive(Debug, Clone)]
struct Blocks {
    /// [`BLOCK_WORDS`] for each block.
    words: Words,
    count: usize,
}

impl Blocks {
    fn zeroed(count: usize) -> Self {
        Self { words: Words::zeroed(count * BLOCK_WORDS), count }
    }

    /// Folds what was folded in one way in another, to which the first leads.
    fn fold(&mut self, from: Fold, to: Fold) {
        let words = &mut self.words;
        let mut folded = 0;
        // No target lies behind its source, so the fold works in place.
        for block in 0..words.len() / BLOCK_WORDS {
            let target = to.place(from.first_stored(block as u64)) as usize;
            let at = block * BLOCK_WORDS;
            let target = target * BLOCK_WORDS;
            // The first block of a target moves there, the others add their bits.
            if target == folded * BLOCK_WORDS {
                words.copy_within(at..at + BLOCK_WORDS, target);
                folded += 1;
            } else {
                for word in 0..BLOCK_WORDS {
                    words[target + word] |= words[at + word];
                }
            }
        }

        debug_assert!(folded <= self.count, "folding makes no more blocks");
        self.count = folded;
        self.words.truncate(self.count * BLOCK_WORDS);
    }

    /// One block that has every bit.
    fn full() -> Self {
        let mut block = Self::zeroed(1);
        block.words.fill(u64::MAX);
        block
    }

    /// The block that `hash` belongs to; none if there are no blocks.
    #[inline]
    fn block(&self, hash: u64) -> Option<&[u64; BLOCK_WORDS]> {
        self.at(block_index(hash, self.count))
    }

    /// The block of that number; none if there is none of it.
    #[inline]
    fn at(&self, index: usize) -> Option<&[u64; BLOCK_WORDS]> {
        self.words.get(index * BLOCK_WORDS..)?.first_chunk()
    }

    /// Returns the words for changing them.
    #[inline]
    fn at_mut(&mut self, index: usize) -> Option<&mut [u64; BLOCK_WORDS]> {
        self.words.get_mut(index * BLOCK_WORDS..)?.first_chunk_mut()
    }
}

/// The number of the block, below `count`, that `hash` belongs to.
#[inline]
fn block_index(hash: u64, count: usize) -> usize {
    let index = ((u128::from(hash) * count as u128) >> 64) as usize;
    debug_assert!(index < count.max(1));
    index
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
        // Further draws would go unused.
        if left == 0 {
            break;
        }
    }
}

/// The bits of a block that belong to a hash.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pattern([u64; BLOCK_WORDS]);

impl Pattern {
    #[inline]
    pub(crate) fn new(hash: u64, probes: u8) -> Self {
        let mut words = [0; BLOCK_WORDS];
        each_probe(hash, probes, |word, bit| words[word] |= bit);
        Self(words)
    }

    #[inline]
    pub(crate) fn is_in(&self, block: &[u64; BLOCK_WORDS]) -> bool {
        // Without branches, which would be mispredicted for every second absent key.
        let missing =
            self.0.iter().zip(block).fold(0, |missing, (bits, word)| missing | (bits & !word));
        missing == 0
    }
}

/// Both halves of a product, folded together.
#[inline]
pub(crate) fn fold(number: u64) -> u64 {
    let product = u128::from(number) * u128::from(MULTIPLIER);
    (product >> 64) as u64 ^ product as u64
}

/// A filter that is still being filled.
#[derive(Debug)]
pub(crate) struct BloomBuilder {
    blocks: Blocks,
    probes: u8,
    /// The last hashes, whose blocks have been asked for but not written yet; 0 where there is
    /// none.
    waiting: [u64; WAITING],
    next: usize,
}

impl BloomBuilder {
    /// Adds a key by its hash.
    ///
    /// # Panics
    /// If the filter was sized for no entries.
    #[inline(always)]
    pub(crate) fn insert(&mut self, hash: u64) {
        // The block is written eight insertions later, when its cache line has come.
        if let Some(block) = self.blocks.block(hash) {
            prefetch(block);
        }

        let due = std::mem::replace(&mut self.waiting[self.next], hash);
        self.next = (self.next + 1) % WAITING;

        if due != 0 {
            self.set(due);
        }

        // A hash of 0 has to be told from no hash, so it does not wait.
        if hash == 0 {
            self.set_zero();
        }
    }

    #[inline(always)]
    fn set(&mut self, hash: u64) {
        let block = self.blocks.at_mut(block_index(hash, self.blocks.count));
        let block = block.expect("a filter sized for no entries takes none");
        each_probe(hash, self.probes, |word, bit| block[word] |= bit);
    }

    #[inline(never)]
    fn set_zero(&mut self) {
        self.set(0);
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.blocks.words)
    }

    /// Ends filling.
    pub(crate) fn finish(mut self) -> Bloom {
        // The last hashes still wait for their blocks.
        for hash in self.waiting {
            if hash != 0 {
                self.set(hash);
            }
        }
        Bloom::stored(self.blocks, self.probes)
    }
}

/// A set of hashes that may claim to hold others too.
#[derive(Debug, Clone)]
pub(crate) struct Bloom {
    blocks: Blocks,
    /// Invariant: `1..=PROBES_MAX`.
    probes: u8,
    /// Blocks that are stored.
    stored: u64,
    /// Part of the stored blocks that is in memory, and where.
    fold: Fold,
    split: Split,
}

impl Bloom {
    /// A filter as it is stored.
    fn stored(blocks: Blocks, probes: u8) -> Self {
        let stored = blocks.count as u64;
        debug_assert!((1..=PROBES_MAX).contains(&probes));
        Self { blocks, probes, stored, fold: Fold::WHOLE, split: Split::default() }
    }

    /// Returns a filter of which nothing is in memory: it claims every key.
    pub(crate) fn nothing() -> Self {
        let split = Split::default();
        Self { blocks: Blocks::full(), probes: 1, stored: 0, fold: Fold::NOTHING, split }
    }

    /// A filter with room for `entries`. More may be inserted, at the price of the FPR; into a
    /// filter for 0 entries, none.
    ///
    /// # Panics
    /// If the allocation is not a number.
    pub(crate) fn builder(entries: u64, allocation: BloomSize) -> BloomBuilder {
        let bits = allocation.bits_per_entry();
        assert!(!bits.is_nan(), "a table's configuration is checked when it is made");
        let probes = allocation.probes();
        assert!(probes <= PROBES_MAX);
        let blocks = Blocks::zeroed(block_count(entries, bits));
        BloomBuilder { blocks, probes, waiting: [0; WAITING], next: 0 }
    }

    /// The filter of no entries.
    pub(crate) fn empty() -> Self {
        Self::builder(0, BloomSize::BitsPerEntry(1.0)).finish()
    }

    /// Blocks of a filter that is built with room for `entries`.
    pub(crate) fn blocks_for(entries: u64, allocation: BloomSize) -> u64 {
        block_count(entries, allocation.bits_per_entry()) as u64
    }

    /// The block that `hash` belongs to; none if there are no blocks.
    #[inline]
    pub(crate) fn block<const SPLIT: bool>(&self, hash: u64) -> Option<&[u64; BLOCK_WORDS]> {
        // Callers that know of no split save the comparison at compile time.
        if SPLIT && self.is_split() {
            self.blocks.at(self.split.block_index(hash))
        } else {
            self.blocks.block(hash)
        }
    }

    /// Whether the fold is not uniform.
    pub(crate) fn is_split(&self) -> bool {
        self.split.hash > 0
    }

    /// Whether the key of this hash may have been inserted; if `false`, it was not.
    #[inline]
    pub(crate) fn contains(&self, hash: u64) -> bool {
        let Some(block) = self.block::<true>(hash) else { return false };
        let mut all_set = true;
        each_probe(hash, self.probes, |word, bit| all_set &= block[word] & bit != 0);
        all_set
    }

    /// Starts to load the block that [`Bloom::contains`] will look at.
    #[inline]
    pub(crate) fn prefetch<const SPLIT: bool>(&self, hash: u64) {
        if let Some(block) = self.block::<SPLIT>(hash) {
            prefetch(block);
        }
    }

    /// Returns the part of the stored filter that is in memory.
    pub(crate) fn fold(&self) -> Fold {
        self.fold
    }

    /// The next coarser fold, if there is one that is uniform.
    pub(crate) fn coarser(&self) -> Option<Fold> {
        let coarser = |fold: &Fold| {
            *fold != self.fold && self.fold.leads_to(*fold) && fold.divides(self.stored)
        };
        Fold::FACTORS.iter().rev().map(|&factor| Fold::uniform(factor)).find(coarser)
    }

    /// Folds the filter in memory, to what it [leads to](Fold::leads_to). It goes on to say yes to
    /// all of its hashes, and to more others.
    pub(crate) fn fold_to(&mut self, fold: Fold) {
        assert!(self.fold.leads_to(fold) && fold.divides(self.stored));
        if fold != self.fold {
            self.blocks.fold(self.fold, fold);
            self.split = Split::new(fold, self.stored);
            self.fold = fold;
            debug_assert_eq!(self.blocks(), fold.blocks(self.stored), "the fold says how many");
        }
    }

    /// Number of 64-byte blocks in memory; 0 for a filter of no entries.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.count as u64
    }

    /// Number of bits looked at per key.
    pub(crate) fn probes(&self) -> u8 {
        self.probes
    }

    /// The words of a range, cut off at the last one, eight per block; stored in little-endian
    /// order.
    pub(crate) fn words(&self, range: Range<usize>) -> &[u64] {
        let words = &self.blocks.words;
        let end = range.end.min(words.len());
        &words[range.start.min(end)..end]
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.blocks.words)
    }
}

/// Puts a filter together from its stored parts.
#[derive(Debug)]
pub(crate) struct BloomDecoder {
    blocks: Blocks,
    probes: u8,
    stored: u64,
    fold: Fold,
    /// Stored words taken so far.
    words_taken: u64,
}

impl BloomDecoder {
    /// Begins a filter of `blocks` stored blocks; what is allocated is known to be at most
    /// `memory_bytes_max`, which the caller takes from the size of the file.
    ///
    /// # Errors
    /// [`Corrupt`] if there are more blocks than that, or an impossible number of probes.
    ///
    /// # Panics
    /// If the blocks cannot be folded in that way.
    pub(crate) fn new(
        blocks: u64,
        probes: u8,
        memory_bytes_max: u64,
        fold: Fold,
    ) -> Result<Self, Corrupt> {
        // The number of blocks comes from the file, so it is checked before memory is allocated.
        let blocks_max = memory_bytes_max / BLOCK_BYTES as u64;
        if blocks > blocks_max {
            return Err(broken("filter: blocks fit into the file", blocks_max, blocks));
        }
        if !(1..=PROBES_MAX).contains(&probes) {
            return Err(broken("filter: probes", PROBES_MAX.into(), probes.into()));
        }
        assert!(fold.divides(blocks));
        let in_memory = Blocks::zeroed(fold.blocks(blocks) as usize);
        Ok(Self { blocks: in_memory, probes, stored: blocks, fold, words_taken: 0 })
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

        let left = self.stored * BLOCK_WORDS as u64 - self.words_taken;
        if words.len() as u64 > left {
            return Err(broken("filter: word count", left, words.len() as u64));
        }

        let fold = self.fold;
        let (blocks, _) = self.blocks.words.as_chunks_mut::<BLOCK_WORDS>();
        for (number, word) in (self.words_taken..).zip(words) {
            let block = number / BLOCK_WORDS as u64;
            let place = number as usize % BLOCK_WORDS;
            let block = if fold == Fold::WHOLE { block } else { fold.place(block) };
            blocks[block as usize][place] |= u64::from_le_bytes(*word);
        }

        self.words_taken += words.len() as u64;
        debug_assert!(self.words_taken <= self.stored * BLOCK_WORDS as u64);
        Ok(())
    }

    /// Ends the filter.
    ///
    /// # Errors
    /// [`Corrupt`] if words are missing.
    pub(crate) fn finish(self) -> Result<Bloom, Corrupt> {
        let word_count = self.stored * BLOCK_WORDS as u64;
        if self.words_taken < word_count {
            return Err(broken("filter: word count", word_count, self.words_taken));
        }
        let Self { blocks, probes, stored, fold, .. } = self;
        Ok(Bloom { blocks, probes, stored, fold, split: Split::new(fold, stored) })
    }
}

fn broken(rule: &'static str, expected: u64, found: u64) -> Corrupt {
    Corrupt { page: 0, rule, expected, found }
}

#[cfg(test)]
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers of the tests' own"
)]
pub(crate) mod tests {
    //! Goal: no false negatives, the false-positive rate that was asked for, and decoding that
    //! takes exactly what was stored. Method: hashes from SplitMix64 with fixed seeds, so that each
    //! measured rate is one number and its tolerance can be tight.

    use super::*;

    /// Numbers that look random.
    pub(crate) struct SplitMix64(pub(crate) u64);

    impl Iterator for SplitMix64 {
        type Item = u64;
        fn next(&mut self) -> Option<u64> {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            Some(mixed ^ (mixed >> 31))
        }
    }

    fn filled(entries: usize, allocation: BloomSize) -> Bloom {
        let mut builder = Bloom::builder(entries as u64, allocation);
        SplitMix64(entries as u64).take(entries).for_each(|hash| builder.insert(hash));
        builder.finish()
    }

    fn word_count(filter: &Bloom) -> usize {
        filter.words(0..usize::MAX).len()
    }

    fn measured_fpr(filter: &Bloom, questions: usize) -> f64 {
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
            let filter = filled(entries, BloomSize::Fpr(1e-3));
            assert!(SplitMix64(entries as u64).take(entries).all(|hash| filter.contains(hash)));
        }
    }

    #[test]
    fn a_filter_for_no_entries_holds_nothing_and_takes_no_blocks() {
        let filter = filled(0, BloomSize::Fpr(1e-3));
        assert_eq!((filter.blocks(), word_count(&filter)), (0, 0));
        assert!(SplitMix64(0).take(1000).chain([0, u64::MAX]).all(|hash| !filter.contains(hash)));
        filter.prefetch::<true>(0);
    }

    /// Measured against requested: within 6 % plus three standard deviations of the count, at sizes
    /// where blocks are filled as the model says; small filters may only be better.
    #[test]
    fn measured_fpr_is_the_requested_one() {
        let questions = 250_000;
        for fpr in [1e-1, 3e-2, 1e-2, 2e-3, 1e-3, 1e-4, 1e-5] {
            let slack = 3.0 * (fpr / f64::from(questions)).sqrt();
            for entries in [100, 2_500, 20_000, 100_000] {
                let filter = filled(entries, BloomSize::Fpr(fpr));
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
        let questions = 500_000;
        for bits in [2.0, 5.0, 10.0, 16.0, 24.0] {
            let filter = filled(100_000, BloomSize::BitsPerEntry(bits));
            let model = model_fpr(bits, filter.probes());
            let measured = measured_fpr(&filter, questions as usize);
            let slack = 0.03 * model + 3.0 * (model / f64::from(questions)).sqrt();
            assert!((measured - model).abs() < slack, "{bits}: {measured} against {model}");
        }
    }

    /// A filter of all the entries, built with the blocks that a fold leaves.
    fn built_folded(entries: usize, folded: &Bloom) -> Bloom {
        let mut blocks = Blocks::zeroed(folded.blocks() as usize);
        let Fold { coarse, fine, until } = folded.fold();
        for hash in SplitMix64(entries as u64).take(entries) {
            let block = block_index(hash, folded.stored as usize) as u64;
            let (first, size) = if block < until { (0, coarse) } else { (until, fine) };
            let at = (until / coarse * u64::from(first > 0) + (block - first) / size) as usize;
            each_probe(hash, folded.probes, |word, bit| {
                blocks.words[at * BLOCK_WORDS + word] |= bit;
            });
        }
        Bloom { blocks, ..folded.clone() }
    }

    /// Folding and building with this many blocks give the same words, so nothing is lost and the
    /// rate is the model's: whether it is folded in memory or when it is read, at once or by and
    /// by.
    #[test]
    fn a_folded_filter_is_the_one_built_with_the_blocks_that_are_left() {
        let entries = 60_000;
        let whole = filled(entries, BloomSize::Folding(16.5));
        let (stored, bytes) = (whole.blocks(), stored(&whole));
        assert!(stored.is_multiple_of(48), "{stored}");
        let two = Fold::uniform(2);

        let three = Fold::uniform(3);
        let four = Fold::uniform(4);
        let folds = [
            vec![two, four, Fold::uniform(48)],
            vec![Fold::between(three, two, stored, stored * 5 / 12), Fold::uniform(6)],
            vec![Fold::between(four, two, stored, stored / 3), four, Fold::uniform(12)],
            vec![Fold::between(three, Fold::WHOLE, stored, stored / 2), three],
        ];

        for fold in folds.concat() {
            assert!(fold.blocks(stored) < stored && whole.fold().leads_to(fold), "{fold:?}");
        }

        for steps in folds {
            let mut filter = whole.clone();
            for fold in steps {
                filter.fold_to(fold);
                assert_eq!((filter.fold(), filter.blocks()), (fold, fold.blocks(stored)));
                assert!(filter.memory_bytes() <= word_count(&filter) * 8 + 300);

                let all = 0..word_count(&filter);
                assert_eq!(
                    filter.words(all.clone()),
                    built_folded(entries, &filter).words(all.clone())
                );

                let mut decoder =
                    BloomDecoder::new(stored, whole.probes(), bytes.len() as u64, fold).unwrap();
                bytes.chunks(4072).for_each(|piece| decoder.push_words(piece).unwrap());
                assert_eq!(decoder.finish().unwrap().words(all.clone()), filter.words(all));
                let hashes: Vec<u64> = SplitMix64(entries as u64).take(entries).collect();
                assert!(hashes.iter().all(|&hash| filter.contains(hash)), "{fold:?}");

                let found = |hash: &u64| {
                    let block = filter.block::<true>(*hash).unwrap();
                    Pattern::new(*hash, filter.probes()).is_in(block)
                };

                assert!(hashes.iter().all(found), "{fold:?}");
            }
        }
    }

    /// Between two folds lies every size, and the rate falls with each block more.
    #[test]
    fn an_uneven_fold_has_as_many_blocks_as_are_given() {
        let stored = 48 * 40;
        for (coarse, fine) in [(2, 1), (3, 2), (4, 3), (48, 1)] {
            let coarse = Fold::uniform(coarse);
            let fine = Fold::uniform(fine);
            for blocks_max in coarse.blocks(stored)..=fine.blocks(stored) {
                let fold = Fold::between(coarse, fine, stored, blocks_max);
                let blocks = fold.blocks(stored);
                assert!(blocks <= blocks_max && blocks + 48 > blocks_max, "{fold:?} {blocks_max}");

                for block in 0..stored {
                    let place = fold.place(block);
                    let first = fold.first_stored(place);
                    assert!(first <= block && block < first + fold.coarse, "{fold:?} {block}");
                    let hash = (u128::from(block) << 64).div_ceil(u128::from(stored)) as u64;
                    let at = match Split::new(fold, stored) {
                        Split { hash: 0, .. } => block_index(hash, blocks as usize),
                        split => split.block_index(hash),
                    };
                    assert_eq!(at as u64, place, "{fold:?} {block}");
                }
            }
        }
    }

    /// The figures that memory is shared out by: of unfolded filters and of folded ones.
    #[test]
    fn the_rate_expected_is_that_of_the_model_and_the_one_measured() {
        for bits in [1.0, 2.0, 4.0, 5.0, 5.3, 6.0, 7.0, 8.0, 9.0, 10.0, 10.9, 12.0, 16.0, 24.0] {
            let entries = 51_200_u32;
            let blocks = (f64::from(entries) * bits / BLOCK_BITS) as u64;
            for probes in [1, 3, 6, 8] {
                let expected = expected_rate(entries.into(), blocks, probes);
                let model = model_fpr(bits, probes);
                assert!((expected / model - 1.0).abs() < 0.06, "{bits}: {expected}, {model}");
            }

            let mut filter = filled(entries as usize, BloomSize::Folding(bits));
            loop {
                let expected = expected_rate(entries.into(), filter.blocks(), filter.probes());
                let measured = measured_fpr(&filter, 100_000);
                let slack = 0.05 * expected + 4.0 * (expected / 100_000.0).sqrt();
                assert!((measured - expected).abs() < slack, "{bits}: {measured}, {expected}");
                match filter.coarser().filter(|_| filter.fold() == Fold::WHOLE) {
                    Some(fold) => filter.fold_to(fold),
                    None => break,
                }
            }
        }
    }

    #[test]
    fn the_number_of_blocks_is_rounded_up_by_a_thirty_second_at_the_most() {
        for wanted in 1..5_000_usize {
            let count = block_count(wanted as u64, BLOCK_BITS);
            assert!(wanted <= count && count * 32 <= wanted * 33, "{count} for {wanted}");
            assert!(wanted < 1_536 || count.is_multiple_of(48));
        }
    }

    #[test]
    fn the_least_filter_is_one_block_and_denies_no_key_in_the_end() {
        let filter = filled(10_000, BloomSize::Least);
        assert_eq!(filter.blocks(), 1);
        assert!(SplitMix64(1 << 60).take(10_000).all(|hash| filter.contains(hash)));
        assert_eq!(BloomSize::for_rate(0.9), BloomSize::Least);
        assert_eq!(BloomSize::for_bits(0.9), BloomSize::Least);
        assert_eq!(BloomSize::for_bits(3.5), BloomSize::Folding(3.5));
        assert_eq!(BloomSize::for_rate(0.01), BloomSize::Folding(9.9));

        // Without a jump where one rule ends and the other begins.
        for half_decades in 0..7 {
            let rate = 10f64.powf(-1.0 - f64::from(half_decades) / 2.0);
            let folding = BloomSize::for_rate(rate);
            let got = model_fpr(folding.bits_per_entry(), folding.probes());
            assert!(folding.probes() <= 6 && (got / rate - 1.0).abs() < 0.03, "{rate}: {got}");
        }

        let bits = BloomSize::for_rate(0.1001).bits_per_entry();
        assert!((bits - BloomSize::for_rate(0.1).bits_per_entry()).abs() < 0.01, "{bits}");
    }

    #[test]
    fn tables_are_those_of_the_model() {
        for (bits, probes) in (1u8..).zip(BloomSize::PROBES_BY_BITS) {
            let fpr = model_fpr(bits.into(), probes);
            for other in [probes - 1, probes + 1].into_iter().filter(|&other| other > 0) {
                assert!(fpr <= model_fpr(bits.into(), other), "{bits} bits, {other} probes");
            }
        }

        for half_decades in 0..=16 {
            let fpr = 10f64.powf(-1.0 - f64::from(half_decades) / 4.0);
            let bits = BloomSize::Fpr(fpr).bits_per_entry();
            let probes = BloomSize::PROBES_BY_BITS[bits.round() as usize - 1];
            let got = model_fpr(bits, probes);
            assert!(got <= fpr * 1.005 && got >= fpr * 0.95, "{fpr}: {got} at {bits} bits");
        }
    }

    #[test]
    fn sizes_out_of_range_are_held_to_the_range() {
        let bits = |allocation: BloomSize| allocation.bits_per_entry();
        for (asked, got) in [(-5.0, 1.0), (0.0, 1.0), (16.5, 16.5), (1e9, 32.0)] {
            assert_eq!(bits(BloomSize::BitsPerEntry(asked)).to_bits(), f64::to_bits(got));
        }
        for asked in [-1.0, 0.0, 1e-300, 1e-5, 1e-1, 1.0, f64::INFINITY] {
            let got = bits(BloomSize::Fpr(asked));
            assert!((4.0..=30.0).contains(&got), "{asked}: {got}");
        }
    }

    #[test]
    fn blocks_lie_on_cache_lines() {
        for entries in [1, 100, 1_000_000] {
            let filter = filled(entries, BloomSize::BitsPerEntry(10.0));
            assert_eq!(filter.blocks.words.as_ptr() as usize % BLOCK_BYTES, 0);
            assert!(filter.memory_bytes() >= word_count(&filter) * 8);
            assert!(filter.memory_bytes() <= word_count(&filter) * 8 + 4 * BLOCK_BYTES);
        }
    }

    fn stored(filter: &Bloom) -> Vec<u8> {
        filter.words(0..usize::MAX).iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_filter_stored_in_pieces_is_read_back_word_for_word() {
        for entries in [0, 1, 5000] {
            let filter = filled(entries, BloomSize::Fpr(1e-2));
            let bytes = stored(&filter);
            for piece in [8, 64, 4088, 1 << 20] {
                let limit = bytes.len() as u64;
                let mut decoder =
                    BloomDecoder::new(filter.blocks(), filter.probes(), limit, Fold::WHOLE)
                        .unwrap();
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
                BloomDecoder::new(blocks, probes, limit, Fold::WHOLE).is_err(),
                "{blocks} {probes} {limit}"
            );
        }
        assert!(BloomDecoder::new(64, 21, 4096, Fold::WHOLE).is_ok());
    }

    #[test]
    fn too_few_too_many_and_broken_words_are_refused() {
        let decoder = || BloomDecoder::new(2, 5, 128, Fold::WHOLE).unwrap();
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
        let mut builder = Bloom::builder(1000, BloomSize::BitsPerEntry(17.0));
        builder.insert(hash);
        let filter = builder.finish();
        assert_eq!((filter.blocks(), filter.probes()), (34, 10));
        let mut words = vec![0u64; word_count(&filter)];
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
