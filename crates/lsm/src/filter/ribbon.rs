//! Ribbon filter: as small as a filter gets, for runs that stay. It needs 1.05 bits of memory for
//! each halving of the false-positive rate (FPR), where a blocked Bloom filter needs 1.5 and more;
//! a question takes three times the instructions (`bench/counts.txt`), and building it solves
//! linear equations.
//!
//! From P. C. Dillinger and S. Walzer, *Ribbon filter: practically smaller than Bloom and Xor*,
//! 2021. A filter is the solution of linear equations over bits, one for each key and column: in a
//! sequence of slots, the bits at those of the 64 slots from `start` on that the key's
//! `coefficients` select add up to a bit of the key's `result`; all three follow from its hash. A
//! key may be there if that is so in all columns, which half of the other keys pass in each.
//! Equations that touch 64 neighbouring slots are solved by elimination in one pass, like a band
//! matrix.
//!
//! # Segments
//!
//! Equations of all keys of a run would take nine bytes a key until they are solved. So each
//! [`SEGMENT_ENTRIES`] keys in their order are a filter of their own, solved when the last of them
//! has come; a question finds its segment by the *separators*: strings that are above all keys of
//! one segment and at most the first of the next.
//!
//! # Columns
//!
//! In memory a filter may have any number of its stored columns ([`Columns`]), and so any size:
//! with one less it is half as selective. As each segment stands alone, some can have one more than
//! the others.
//!
//! Invariant: a key that was inserted is found, whatever columns are in memory. A segment that
//! could not be solved, which no set of keys is known for, has no slots and claims every key.

use std::ops::Range;

use terrane_io::prefetch::prefetch;

use crate::corrupt::Corrupt;
use crate::filter::bloom::fold;

/// Keys of a segment, but of the last one. More need more slots each, as the band is as narrow as
/// before; with fewer, what is known of each segment weighs more: 8 % of a bit per key.
const SEGMENT_ENTRIES: usize = 8192;

/// Slots in a block, and slots that an equation touches: the bits of a word.
const BLOCK_SLOTS: usize = 64;

/// Slots for each thousand keys, rounded up to blocks: of 8192 keys, at the first try, six in ten
/// sets are solved.
const SLOTS_PER_MILLE: usize = 1035;

/// The most columns of a filter.
pub(crate) const COLUMNS_MAX: u8 = 16;

/// Seeds that are tried with one number of slots.
const SEEDS_PER_SIZE: u32 = 16;

/// Seeds that are tried in all; with the last ones there are half as many slots again.
const SEEDS_MAX: u32 = 256;

/// Constants that are mixed into the hash for start, coefficients and result: digits of pi, and a
/// step for seeds.
const COEFFICIENTS_SEED: u64 = 0x4528_21E6_38D0_1377;
const RESULT_SEED: u64 = 0xBE54_66CF_34E9_0C6C;
const SEED_STEP: u64 = 0xC0AC_29B7_C97C_50DD;

/// Columns that a question looks at before it first decides.
const COLUMNS_AT_ONCE: usize = 4;

/// How a filter is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RibbonShape {
    /// Segments, at least 1.
    pub(crate) segments: u32,
    /// Columns of each, `1..=COLUMNS_MAX`.
    pub(crate) columns: u8,
    /// Words in front of the slots: what is known of segments, and separators.
    pub(crate) directory_words: u32,
    /// Blocks of all segments; each is as many words as there are columns.
    pub(crate) blocks: u64,
}

impl RibbonShape {
    /// Words of 64 bits that are stored.
    pub(crate) fn words(self) -> u64 {
        let slots = self.blocks.saturating_mul(self.columns.into());
        slots.saturating_add(self.directory_words.into())
    }

    /// The most memory that such a part of it takes, in bytes.
    ///
    /// All segments but the last have as many blocks, unless one of them needed more than sixteen
    /// tries.
    pub(crate) fn memory_bytes(self, part: Columns) -> u64 {
        let segments = u64::from(self.segments);
        let directory = segments * SEGMENT_BYTES + u64::from(self.directory_words) * 8;
        directory + (self.blocks * u64::from(part.each) + part.wide_blocks(self)) * 8
    }

    /// The FPR to expect of such a part.
    pub(crate) fn rate(self, part: Columns) -> f64 {
        // Keys are in proportion to blocks.
        let wide = part.wide_blocks(self) as f64 / self.blocks.max(1) as f64;
        (1.0 - wide / 2.0) * f64::powi(0.5, part.each.into())
    }

    /// The largest part with `each` columns and perhaps one more that takes no more than `bytes`,
    /// which must be enough for those.
    pub(crate) fn between(self, each: u8, bytes: u64) -> Columns {
        let left = bytes.saturating_sub(self.memory_bytes(Columns::uniform(each)));
        let wide = left / 8 / block_count(SEGMENT_ENTRIES) as u64;
        // The last segment may be smaller, and is the last to get it.
        let wide = u32::try_from(wide).unwrap_or(u32::MAX).min(self.segments.saturating_sub(1));
        Columns { each, wide }
    }
}

/// Memory of a segment beside its words and separators: its fields and those of its separator, and
/// what an allocation costs.
const SEGMENT_BYTES: u64 =
    (size_of::<RibbonSegment>() + size_of::<u64>() + size_of::<u32>() + ALLOCATION_BYTES) as u64;

/// Overhead of the allocation of a segment's words.
const ALLOCATION_BYTES: usize = 16;

/// About the memory that a filter of this many entries takes, and what it takes besides while it is
/// built.
pub(crate) fn bytes_for(entries: u64, columns: u8) -> u64 {
    const SEPARATOR_BYTES: u64 = 16;
    let per_segment = block_count(SEGMENT_ENTRIES) as u64 * u64::from(columns) * 8;
    let segments = entries.div_ceil(SEGMENT_ENTRIES as u64);
    // While a segment is built, its hashes, rows and results are in memory.
    let building = SEGMENT_ENTRIES * (8 + 2 * (size_of::<u64>() + size_of::<u16>()));
    segments * (per_segment + SEGMENT_BYTES + SEPARATOR_BYTES) + building as u64
}

/// How many of a filter's columns are in memory: `each` of every segment, and one more of the first
/// `wide` ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Columns {
    /// At least 1.
    each: u8,
    wide: u32,
}

impl Columns {
    /// Returns the same number of columns of every segment.
    pub(crate) const fn uniform(each: u8) -> Self {
        Self { each, wide: 0 }
    }

    /// Columns that every segment has.
    pub(crate) fn each(self) -> u8 {
        self.each
    }

    /// Whether all segments have as many.
    pub(crate) fn is_uniform(self) -> bool {
        self.wide == 0
    }

    /// Whether no segment has more than in `other`.
    pub(crate) fn is_within(self, other: Self) -> bool {
        self.each < other.each || self.each == other.each && self.wide <= other.wide
    }

    /// The next smaller part that is uniform, down to one column.
    pub(crate) fn narrower(self) -> Option<Self> {
        let each = self.each - u8::from(self.is_uniform());
        (each > 0).then(|| Self::uniform(each))
    }

    fn of_segment(self, segment: usize) -> u8 {
        self.each + u8::from(segment < self.wide as usize)
    }

    fn wide_blocks(self, shape: RibbonShape) -> u64 {
        (u64::from(self.wide) * block_count(SEGMENT_ENTRIES) as u64).min(shape.blocks)
    }
}

/// Blocks for this many keys.
fn block_count(entries: usize) -> usize {
    (entries * SLOTS_PER_MILLE).div_ceil(1000 * BLOCK_SLOTS)
}

/// Equation that a key poses to the slots.
#[derive(Debug, Clone, Copy)]
struct Equation {
    /// The first slot.
    start: usize,
    /// Bit `i` selects slot `start + i`; bit 0 is set.
    coefficients: u64,
    /// Bit `i` is what column `i` adds up to.
    result: u64,
}

impl Equation {
    /// Returns the equation of a hash in a segment of `blocks` blocks, at least one.
    #[inline]
    fn new(hash: u64, seed: u32, blocks: usize) -> Self {
        debug_assert!(0 < blocks);
        let mixed = fold(hash ^ u64::from(seed).wrapping_mul(SEED_STEP));
        // An equation must end within the last block, so no start lies behind the first slot of
        // that block.
        let starts = (blocks - 1) * BLOCK_SLOTS + 1;
        Self {
            start: ((u128::from(mixed) * starts as u128) >> 64) as usize,
            coefficients: fold(mixed ^ COEFFICIENTS_SEED) | 1,
            result: fold(mixed ^ RESULT_SEED),
        }
    }
}

/// The solution of a segment's equations.
#[derive(Debug, Clone, Default)]
struct RibbonSegment {
    /// By block, and within a block by column: bit `i` is that of slot `i` of the block. Empty if
    /// all keys are claimed.
    words: Box<[u64]>,
    /// Blocks of the segments before.
    first_block: u64,
    seed: u32,
    /// Columns in `words`.
    columns: u8,
}

impl RibbonSegment {
    fn blocks(&self) -> usize {
        self.words.len() / usize::from(self.columns.max(1))
    }
}

/// Where one segment ends and the next one begins.
#[derive(Debug, Clone, Default)]
struct RibbonSeparators {
    /// Their first eight bytes, filled up with zeros, as big-endian numbers: they decide most
    /// comparisons.
    heads: Vec<u64>,
    /// Where each one ends in `bytes`.
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

impl RibbonSeparators {
    /// Adds one, above all earlier ones.
    fn push(&mut self, separator: &[u8]) {
        debug_assert!(self.ends.is_empty() || self.get(self.ends.len() - 1) < separator);
        self.heads.push(head(separator));
        self.bytes.extend_from_slice(separator);
        self.ends.push(self.bytes.len() as u32);
    }

    fn get(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[at] as usize]
    }

    /// How many are at most `key`: the number of the key's segment.
    #[inline]
    fn segment_of(&self, key: &[u8]) -> usize {
        let wanted = head(key);
        debug_assert_eq!(self.heads.len(), self.ends.len());
        let after = self.heads.partition_point(|&head| head <= wanted);
        if after == 0 || self.heads[after - 1] < wanted {
            return after;
        }

        // Some begin as the key does.
        let mut low = self.heads.partition_point(|&head| head < wanted);
        let mut high = after;
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.get(middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }

        debug_assert!(low <= after);
        low
    }

    fn shrink(&mut self) {
        self.heads.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.bytes.shrink_to_fit();
    }

    fn memory_bytes(&self) -> usize {
        self.heads.capacity() * size_of::<u64>()
            + self.ends.capacity() * size_of::<u32>()
            + self.bytes.capacity()
    }
}

/// The first eight bytes, filled up with zeros: compares as the whole does, or is equal.
#[inline]
#[expect(clippy::big_endian_bytes, reason = "compares as bytes do")]
fn head(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; 8];
    first[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(first)
}

/// The shortest string above `before` and at most `key`, which is above it too.
fn separator<'a>(before: &[u8], key: &'a [u8]) -> &'a [u8] {
    let common = before.iter().zip(key).take_while(|(a, b)| a == b).count();
    key.get(..=common).unwrap_or(key)
}

/// Solves equations. It keeps its memory from one segment to the next.
#[derive(Debug, Default)]
struct Band {
    /// Coefficients of the equation that begins at each slot, from that slot on; 0 where none does.
    rows: Vec<u64>,
    /// Sums that the coefficients must give.
    results: Vec<u16>,
}

impl Band {
    /// Brings the equations of the hashes into rows; false if they contradict each other.
    fn fill(&mut self, hashes: &[u64], seed: u32, blocks: usize) -> bool {
        self.rows.clear();
        self.rows.resize(blocks * BLOCK_SLOTS, 0);
        self.results.clear();
        self.results.resize(blocks * BLOCK_SLOTS, 0);
        hashes.iter().all(|&hash| self.add(Equation::new(hash, seed, blocks)))
    }

    fn add(&mut self, equation: Equation) -> bool {
        let Equation { start: mut at, mut coefficients, .. } = equation;
        let mut result = equation.result as u16;
        // Ends: each round goes on behind the slot of the round before.
        loop {
            debug_assert!(coefficients & 1 == 1, "an equation begins with its first slot");
            if self.rows[at] == 0 {
                (self.rows[at], self.results[at]) = (coefficients, result);
                return true;
            }

            coefficients ^= self.rows[at];
            result ^= self.results[at];
            if coefficients == 0 {
                // The sum of others: of two keys with one hash, say.
                return result == 0;
            }

            // The first coefficients of both were set, so this one is behind.
            let distance = coefficients.trailing_zeros();
            coefficients >>= distance;
            at += distance as usize;
        }
    }

    /// The slots of this many columns that fulfil all equations, from the last slot on; free ones
    /// are 0.
    fn solution(&self, columns: u8) -> Box<[u64]> {
        debug_assert_eq!(self.rows.len(), self.results.len());
        debug_assert!(self.rows.len().is_multiple_of(BLOCK_SLOTS));
        debug_assert!(columns <= COLUMNS_MAX);
        let columns = usize::from(columns);
        let mut words = vec![0; self.rows.len() / BLOCK_SLOTS * columns].into_boxed_slice();

        // The slots of each column from the present one on.
        let mut window = [0u64; COLUMNS_MAX as usize];
        // From the end: an equation needs the slots behind its first one.
        for slot in (0..self.rows.len()).rev() {
            let row = self.rows[slot];
            let result = self.results[slot];
            for (column, bits) in window[..columns].iter_mut().enumerate() {
                *bits <<= 1;
                *bits |= (parity(row & *bits) ^ u64::from(result >> column)) & 1;
            }
            if slot % BLOCK_SLOTS == 0 {
                let at = slot / BLOCK_SLOTS * columns;
                words[at..at + columns].copy_from_slice(&window[..columns]);
            }
        }

        words
    }

    fn memory_bytes(&self) -> usize {
        self.rows.capacity() * size_of::<u64>() + self.results.capacity() * size_of::<u16>()
    }
}

#[inline]
fn parity(bits: u64) -> u64 {
    u64::from(bits.count_ones() & 1)
}

/// A filter that is still being filled, with the keys of a run in their order.
#[derive(Debug)]
pub(crate) struct RibbonBuilder {
    columns: u8,
    /// Hashes of the segment that is being filled.
    hashes: Vec<u64>,
    /// The last key of the segment before.
    last_key: Vec<u8>,
    band: Band,
    segments: Vec<RibbonSegment>,
    separators: RibbonSeparators,
}

impl RibbonBuilder {
    /// A filter of this many columns, `1..=COLUMNS_MAX`.
    pub(crate) fn new(columns: u8) -> Self {
        assert!((1..=COLUMNS_MAX).contains(&columns), "a table's configuration is checked");
        Self {
            columns,
            hashes: Vec::new(),
            last_key: Vec::new(),
            band: Band::default(),
            segments: Vec::new(),
            separators: RibbonSeparators::default(),
        }
    }

    /// Adds a key that is above all earlier ones, and its hash.
    pub(crate) fn insert(&mut self, hash: u64, key: &[u8]) {
        // A separator needs the first key of the next segment.
        if self.hashes.is_empty() && !self.segments.is_empty() {
            self.separators.push(separator(&self.last_key, key));
        }

        // A builder without keys takes no memory for hashes.
        if self.hashes.capacity() == 0 {
            self.hashes.reserve_exact(SEGMENT_ENTRIES);
        }

        self.hashes.push(hash);
        if self.hashes.len() == SEGMENT_ENTRIES {
            // The separator of the next segment must be above this key.
            self.last_key.clear();
            self.last_key.extend_from_slice(key);
            self.end_segment();
        }
    }

    fn end_segment(&mut self) {
        debug_assert!(!self.hashes.is_empty() && self.hashes.len() <= SEGMENT_ENTRIES);
        let before = self.segments.last();
        let first_block = before.map_or(0, |last| last.first_block + last.blocks() as u64);
        let segment = RibbonSegment { first_block, ..self.solve() };
        self.segments.push(segment);
        self.hashes.clear();
    }

    fn solve(&mut self) -> RibbonSegment {
        let mut blocks = block_count(self.hashes.len());
        for seed in 0..SEEDS_MAX {
            // A few more slots make a solution likelier than more seeds do.
            if seed > 0 && seed % SEEDS_PER_SIZE == 0 {
                blocks += blocks / 32 + 1;
            }
            if self.band.fill(&self.hashes, seed, blocks) {
                let words = self.band.solution(self.columns);
                return RibbonSegment { words, seed, columns: self.columns, first_block: 0 };
            }
        }
        // No seed solves the equations: a segment without slots claims every key.
        RibbonSegment::default()
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.hashes.capacity() * size_of::<u64>()
            + self.last_key.capacity()
            + self.band.memory_bytes()
            + segment_bytes(&self.segments)
            + self.segments.capacity().saturating_sub(self.segments.len())
                * size_of::<RibbonSegment>()
            + self.separators.memory_bytes()
    }

    /// Ends filling.
    pub(crate) fn finish(mut self) -> Ribbon {
        if !self.hashes.is_empty() {
            self.end_segment();
        }
        let Self { columns, segments, mut separators, .. } = self;
        debug_assert_eq!(separators.ends.len(), segments.len().saturating_sub(1));
        separators.shrink();
        let directory_words = Directory::new(segments.len()).word_count(&separators) as u32;
        let blocks = segments.iter().map(|segment| segment.blocks() as u64).sum();
        let shape =
            RibbonShape { segments: segments.len() as u32, columns, directory_words, blocks };
        Ribbon { shape, kept: Columns::uniform(columns), segments: segments.into(), separators }
    }
}

fn segment_bytes(segments: &[RibbonSegment]) -> usize {
    let words: usize = segments.iter().map(|segment| size_of_val::<[u64]>(&segment.words)).sum();
    words + segments.len() * (size_of::<RibbonSegment>() + ALLOCATION_BYTES)
}

/// Directory in front of the slots: a word for each segment, then the ends of the separators, then
/// the separators.
#[derive(Debug, Clone, Copy)]
struct Directory {
    ends_first: usize,
    bytes_first: usize,
}

impl Directory {
    fn new(segments: usize) -> Self {
        Self {
            ends_first: segments,
            bytes_first: segments + segments.saturating_sub(1).div_ceil(2),
        }
    }

    fn word_count(self, separators: &RibbonSeparators) -> usize {
        self.bytes_first + separators.bytes.len().div_ceil(8)
    }

    /// A word of it.
    fn word(self, at: usize, segments: &[RibbonSegment], separators: &RibbonSeparators) -> u64 {
        if let Some(segment) = segments.get(at) {
            return segment.blocks() as u64 | u64::from(segment.seed) << 32;
        }

        if at < self.bytes_first {
            // Two ends share a word.
            let first = 2 * (at - self.ends_first);
            let end = |at: usize| separators.ends.get(at).copied().map_or(0, u64::from);
            return end(first) | end(first + 1) << 32;
        }

        let bytes = separators.bytes.chunks(8).nth(at - self.bytes_first).unwrap_or_default();
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }

    /// Segments without their slots, the number of blocks of each, and separators.
    fn decode(self, shape: RibbonShape, words: &[u64]) -> Result<Decoded, Corrupt> {
        let (known, rest) = words.split_at(self.ends_first);
        let mut segments = Vec::with_capacity(known.len());
        let mut blocks = Vec::new();

        let mut first_block: u64 = 0;
        for word in known {
            let count = word & u64::from(u32::MAX);
            let seed = (word >> 32) as u32;
            segments.push(RibbonSegment { first_block, seed, ..RibbonSegment::default() });
            blocks.push(count as usize);
            first_block += count;
        }

        // The counts come from the file, so their sum must match the shape before slots are
        // allocated.
        if first_block != shape.blocks {
            return Err(Corrupt::rule("filter: blocks of all segments", shape.blocks, first_block));
        }

        // There is one separator fewer than there are segments.
        let count = segments.len().saturating_sub(1);
        let (ends, bytes) = rest.split_at(self.bytes_first - self.ends_first);

        let ends: Vec<u32> =
            ends.iter().flat_map(|&word| [word as u32, (word >> 32) as u32]).collect();
        let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_le_bytes()).collect();
        let separators = decode_separators(&ends, &bytes, count).ok_or(Corrupt::rule(
            "filter: separators rise and fill their words",
            0,
            0,
        ))?;

        Ok((segments, blocks, separators))
    }
}

/// Decoded directory: segments, first words and separators.
type Decoded = (Vec<RibbonSegment>, Vec<usize>, RibbonSeparators);

fn decode_separators(ends: &[u32], bytes: &[u8], count: usize) -> Option<RibbonSeparators> {
    let (ends, filling) = ends.split_at_checked(count)?;
    let mut separators = RibbonSeparators {
        heads: Vec::with_capacity(count),
        ends: Vec::with_capacity(count),
        bytes: Vec::with_capacity(ends.last().map_or(0, |&end| end as usize).min(bytes.len())),
    };

    let mut start = 0;
    for &end in ends {
        let separator = bytes.get(start..end as usize)?;
        let before = separators.ends.len().checked_sub(1).map_or(&[][..], |at| separators.get(at));
        // Separators must rise, or the search among them would miss keys.
        if before >= separator {
            return None;
        }
        separators.push(separator);
        start = end as usize;
    }

    // The rest only fills the last words, so it is short and zero.
    let rest = bytes.get(start..)?;
    let is_filled = filling.iter().all(|&end| end == 0) && rest.iter().all(|&byte| byte == 0);
    (rest.len() < 8 && is_filled).then_some(separators)
}

/// A set of keys that may claim to hold others too.
#[derive(Debug, Clone)]
pub(crate) struct Ribbon {
    shape: RibbonShape,
    /// Stored columns that are in memory.
    kept: Columns,
    segments: Box<[RibbonSegment]>,
    separators: RibbonSeparators,
}

impl Ribbon {
    /// How it is stored.
    pub(crate) fn shape(&self) -> RibbonShape {
        self.shape
    }

    /// Returns the columns that are in memory.
    pub(crate) fn kept(&self) -> Columns {
        self.kept
    }

    /// Whether the key may have been inserted; if `false`, it was not.
    pub(crate) fn contains(&self, hash: u64, key: &[u8]) -> bool {
        self.question(hash, key).is_answered_yes()
    }

    /// The question about a key, whose slots are asked for.
    #[inline]
    pub(crate) fn question(&self, hash: u64, key: &[u8]) -> RibbonProbe<'_> {
        let segment = self.segments.get(self.separators.segment_of(key));
        segment.map_or(RibbonProbe::NOTHING, |segment| RibbonProbe::new(segment, hash))
    }

    /// Gives up all columns but those. It goes on to say yes to all of its keys, and to more
    /// others.
    ///
    /// # Panics
    /// If that would be more than there is.
    pub(crate) fn keep(&mut self, columns: Columns) {
        assert!(columns.is_within(self.kept));
        for (at, segment) in self.segments.iter_mut().enumerate() {
            let now = usize::from(segment.columns);
            let then = columns.of_segment(at);
            if usize::from(then) < now {
                let blocks = segment.words.chunks_exact(now);
                let mut words = Vec::with_capacity(blocks.len() * usize::from(then));
                blocks.for_each(|block| words.extend_from_slice(&block[..then.into()]));
                (segment.words, segment.columns) = (words.into_boxed_slice(), then);
            }
        }

        self.kept = columns;
    }

    /// Puts the stored words of a range, cut off at the last one, to the end of `out`, in
    /// little-endian order. All columns must be in memory.
    pub(crate) fn put_words(&self, range: Range<u64>, out: &mut Vec<u8>) {
        assert!(self.kept == Columns::uniform(self.shape.columns));
        let directory_end = u64::from(self.shape.directory_words);
        let directory = Directory::new(self.segments.len());

        for at in range.start..range.end.min(directory_end) {
            let word = directory.word(at as usize, &self.segments, &self.separators);
            put(&[word], out);
        }

        let at = range.start.max(directory_end);
        let columns = u64::from(self.shape.columns);
        let first_word = |segment: &RibbonSegment| directory_end + segment.first_block * columns;

        // Segments without slots begin where the next one does.
        let first = self.segments.partition_point(|segment| first_word(segment) <= at);
        // The range may begin inside the segment before.
        for segment in &self.segments[first.saturating_sub(1)..] {
            let start = first_word(segment);
            let len = segment.words.len() as u64;
            let from = at.max(start) - start;
            let until = range.end.max(start).min(start + len) - start;
            if start >= range.end {
                break;
            }
            put(segment.words.get(from as usize..until as usize).unwrap_or_default(), out);
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + segment_bytes(&self.segments) + self.separators.memory_bytes()
    }
}

fn put(words: &[u64], out: &mut Vec<u8>) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

/// Whether a key may be in a filter, on its way: what is looked at has been asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RibbonProbe<'a> {
    /// From the block of the first slot on; none if the answer is known.
    words: &'a [u64],
    columns: usize,
    coefficients: u64,
    result: u64,
    /// The first slot, in its block.
    shift: u32,
    /// The answer, if there is nothing to look at.
    claims_all: bool,
}

impl<'a> RibbonProbe<'a> {
    /// A filter of no keys.
    const NOTHING: Self =
        Self { words: &[], columns: 0, coefficients: 0, result: 0, shift: 0, claims_all: false };

    #[inline]
    fn new(segment: &'a RibbonSegment, hash: u64) -> Self {
        let columns = usize::from(segment.columns);
        // A segment that could not be solved claims every key.
        if segment.words.is_empty() {
            return Self { claims_all: true, ..Self::NOTHING };
        }

        let equation = Equation::new(hash, segment.seed, segment.words.len() / columns);
        let words = segment.words.get(equation.start / BLOCK_SLOTS * columns..);
        let words = words.unwrap_or_default();

        // The 64 slots of an equation reach into two blocks at most; both are fetched ahead.
        for block in [0, columns] {
            words.get(block).into_iter().for_each(prefetch);
        }

        Self {
            words,
            columns,
            coefficients: equation.coefficients,
            result: equation.result,
            shift: (equation.start % BLOCK_SLOTS) as u32,
            claims_all: false,
        }
    }

    /// Whether the key may have been inserted; if `false`, it was not.
    #[inline]
    pub(crate) fn is_answered_yes(&self) -> bool {
        let Some((block, rest)) = self.words.split_at_checked(self.columns) else { return false };

        // A key that begins with its block's first slot ends with the block's last slot.
        let next = rest.get(..self.columns).unwrap_or(block);
        let mut result = self.result;
        let columns = block.chunks(COLUMNS_AT_ONCE).zip(next.chunks(COLUMNS_AT_ONCE));

        // Four columns turn away 15 of 16 absent keys, so the later columns are seldom read.
        for (words, next) in columns {
            let mut wrong = 0;
            for (word, next) in words.iter().zip(next) {
                let slots = word >> self.shift | (next << 1) << (63 - self.shift);
                wrong |= parity(slots & self.coefficients) ^ result;
                result >>= 1;
            }
            if wrong & 1 == 1 {
                return false;
            }
        }

        self.columns > 0 || self.claims_all
    }
}

/// Puts a filter together from its stored words.
#[derive(Debug)]
pub(crate) struct RibbonDecoder {
    shape: RibbonShape,
    kept: Columns,
    directory: Vec<u64>,
    /// From the end of the directory on.
    segments: Vec<RibbonSegment>,
    separators: RibbonSeparators,
    /// Blocks of each segment.
    blocks: Vec<usize>,
    /// The segment that is being filled, its words so far, and what of it has passed.
    segment: usize,
    words: Vec<u64>,
    blocks_passed: usize,
    column: u8,
    /// Stored words taken so far.
    words_taken: u64,
}

impl RibbonDecoder {
    /// Begins a filter of which such a part is to be kept; what is allocated is known to be at most
    /// `memory_bytes_max`, which the caller takes from the size of the file, and what is known of
    /// segments.
    ///
    /// # Errors
    /// [`Corrupt`] if it is longer than that, or has an impossible number of columns or segments.
    ///
    /// # Panics
    /// If more columns are wanted than are stored.
    pub(crate) fn new(
        shape: RibbonShape,
        memory_bytes_max: u64,
        kept: Columns,
    ) -> Result<Self, Corrupt> {
        // All sizes come from the file, so they are checked before memory is allocated.
        check_columns(shape.columns.into())?;
        let words_max = memory_bytes_max / 8;
        if shape.words() > words_max {
            return Err(Corrupt::rule("filter: words fit into the file", words_max, shape.words()));
        }

        let least = Directory::new(shape.segments as usize).bytes_first as u64;
        if shape.segments == 0 || least > shape.directory_words.into() {
            let found = shape.directory_words.into();
            return Err(Corrupt::rule("filter: segments fit into the directory", least, found));
        }

        assert!(kept.is_within(Columns::uniform(shape.columns)));
        Ok(Self {
            shape,
            kept,
            directory: Vec::with_capacity(shape.directory_words as usize),
            segments: Vec::new(),
            separators: RibbonSeparators::default(),
            blocks: Vec::new(),
            segment: 0,
            words: Vec::new(),
            blocks_passed: 0,
            column: 0,
            words_taken: 0,
        })
    }

    /// Takes the next words, in order and in pieces of any number of whole words.
    ///
    /// # Errors
    /// [`Corrupt`] if `bytes` ends within a word, or after the last word of the filter, or the
    /// directory is broken.
    pub(crate) fn push_words(&mut self, bytes: &[u8]) -> Result<(), Corrupt> {
        let (words, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(Corrupt::rule("filter: whole words", 0, rest.len() as u64));
        }

        // A file may hold more bytes than its shape says.
        let left = self.shape.words() - self.words_taken;
        if words.len() as u64 > left {
            return Err(Corrupt::rule("filter: word count", left, words.len() as u64));
        }

        for word in words {
            let word = u64::from_le_bytes(*word);
            if self.segments.is_empty() {
                self.push_known(word)?;
            } else {
                self.push_slots(word);
            }
        }

        self.words_taken += words.len() as u64;
        Ok(())
    }

    /// Takes a word of the directory.
    fn push_known(&mut self, word: u64) -> Result<(), Corrupt> {
        self.directory.push(word);
        // The directory tells where segments begin, so slots wait until the directory is whole.
        if self.directory.len() == self.shape.directory_words as usize {
            let directory = std::mem::take(&mut self.directory);
            (self.segments, self.blocks, self.separators) =
                Directory::new(self.shape.segments as usize).decode(self.shape, &directory)?;
            self.begin_segment();
        }
        Ok(())
    }

    /// Goes on to the next segment that has slots.
    fn begin_segment(&mut self) {
        // A segment that claims every key has no slots.
        while self.blocks.get(self.segment) == Some(&0) {
            self.segment += 1;
        }
        if let Some(blocks) = self.blocks.get(self.segment) {
            let columns = usize::from(self.kept.of_segment(self.segment));
            self.words.reserve_exact(blocks * columns);
        }
    }

    /// Takes a word of slots; the directory says that there is one.
    fn push_slots(&mut self, word: u64) {
        let columns = self.kept.of_segment(self.segment);
        if self.column < columns {
            self.words.push(word);
        }

        self.column += 1;
        if self.column < self.shape.columns {
            return;
        }

        self.column = 0;
        self.blocks_passed += 1;
        if self.blocks_passed == self.blocks[self.segment] {
            let segment = &mut self.segments[self.segment];
            segment.words = std::mem::take(&mut self.words).into_boxed_slice();
            segment.columns = columns;
            self.blocks_passed = 0;
            self.segment += 1;
            self.begin_segment();
        }
    }

    /// Ends the filter.
    ///
    /// # Errors
    /// [`Corrupt`] if words are missing.
    pub(crate) fn finish(self) -> Result<Ribbon, Corrupt> {
        let word_count = self.shape.words();
        if self.words_taken < word_count {
            return Err(Corrupt::rule("filter: word count", word_count, self.words_taken));
        }
        let Self { shape, kept, segments, separators, .. } = self;
        Ok(Ribbon { shape, kept, segments: segments.into(), separators })
    }
}

/// Whether a filter may have this many columns.
///
/// # Errors
/// [`Corrupt`] if not.
pub(crate) fn check_columns(columns: u32) -> Result<(), Corrupt> {
    if (1..=u32::from(COLUMNS_MAX)).contains(&columns) {
        return Ok(());
    }
    Err(Corrupt::rule("filter: columns", COLUMNS_MAX.into(), columns.into()))
}

#[cfg(test)]
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "small numbers of the tests' own"
)]
mod tests {
    //! Goal: no false negatives for any keys and any part of the columns, the rate of false
    //! positives that the columns have, memory that is bounded, and decoding that takes exactly
    //! what was stored. Method: hashes from SplitMix64 with fixed seeds, so that each measured rate
    //! is one number and cannot change.

    use super::*;
    use crate::filter::bloom::tests::SplitMix64;

    /// Any hash of a key.
    fn hash(key: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(key, 11)
    }

    fn built(columns: u8, keys: &[Vec<u8>]) -> Ribbon {
        let mut builder = RibbonBuilder::new(columns);
        for key in keys {
            builder.insert(hash(key), key);
        }
        builder.finish()
    }

    /// Evenly spread, in order.
    fn even_keys(count: usize) -> Vec<Vec<u8>> {
        let keys = SplitMix64(count as u64).take(count);
        let mut keys: Vec<Vec<u8>> = keys.map(|number| number.to_le_bytes().to_vec()).collect();
        keys.sort_unstable();
        keys
    }

    /// In order: of one beginning longer than a head; each the beginning of the next; of zeros;
    /// next to each other.
    fn awkward_keys() -> Vec<Vec<Vec<u8>>> {
        let numbered = |prefix: &str, numbers: Range<u32>| {
            numbers.map(|n| format!("{prefix}{n:08}").into_bytes()).collect::<Vec<_>>()
        };
        let zeros = (0..400).map(|len| vec![0; len]).collect();
        let growing = (0..400).map(|len| [&[7; 8][..], &vec![9; len]].concat()).collect();
        let mut mixed = numbered("accounts/", 0..20_000);
        mixed.extend(numbered("accounts/x", 0..9_000));
        mixed.extend(numbered("b", 0..3_000));
        let short = (0..=u16::MAX).map(|number| number.swap_bytes().to_le_bytes().to_vec());
        vec![mixed, zeros, growing, short.collect()]
    }

    fn stored(ribbon: &Ribbon) -> Vec<u8> {
        let mut bytes = Vec::new();
        ribbon.put_words(0..u64::MAX, &mut bytes);
        bytes
    }

    fn decoded(ribbon: &Ribbon, bytes: &[u8], piece: usize, part: Columns) -> Ribbon {
        let mut decoder = RibbonDecoder::new(ribbon.shape(), bytes.len() as u64, part).unwrap();
        bytes.chunks(piece).for_each(|piece| decoder.push_words(piece).unwrap());
        decoder.finish().unwrap()
    }

    fn measured_rate(ribbon: &Ribbon, questions: usize) -> f64 {
        let keys = SplitMix64(1 << 60).take(questions).map(u64::to_le_bytes);
        keys.filter(|key| ribbon.contains(hash(key), key)).count() as f64 / questions as f64
    }

    #[test]
    fn inserted_keys_are_found_at_every_size() {
        let sizes = (1..200).chain([1_000, 4_096, 8_191, 8_192, 8_193, 16_384, 40_000]);
        for count in sizes {
            let keys = even_keys(count);
            let ribbon = built(5, &keys);
            assert_eq!(ribbon.shape().segments as usize, count.div_ceil(SEGMENT_ENTRIES));
            assert!(keys.iter().all(|key| ribbon.contains(hash(key), key)), "{count}");
        }
    }

    #[test]
    fn inserted_keys_are_found_whatever_they_look_like() {
        for keys in awkward_keys() {
            let ribbon = built(9, &keys);
            assert!(keys.iter().all(|key| ribbon.contains(hash(key), key)));
            let again = decoded(&ribbon, &stored(&ribbon), 4072, Columns::uniform(2));
            assert!(keys.iter().all(|key| again.contains(hash(key), key)));
        }
    }

    /// Keys of one hash give one equation twice, which contradicts nothing; more of them than there
    /// are slots too.
    #[test]
    fn keys_of_one_hash_are_found() {
        let keys = even_keys(20_000);
        for distinct in [1, 3, 100] {
            let mut builder = RibbonBuilder::new(7);
            let hash_of = |at: usize| hash(&keys[at % distinct]);
            keys.iter().enumerate().for_each(|(at, key)| builder.insert(hash_of(at), key));
            let ribbon = builder.finish();
            assert!(ribbon.segments.iter().all(|segment| segment.columns == 7));
            assert!(keys.iter().enumerate().all(|(at, key)| ribbon.contains(hash_of(at), key)));
        }
    }

    /// No set of hashes is known that no seed serves, so this one is made from what would be left.
    #[test]
    fn a_segment_without_slots_claims_every_key_and_is_stored() {
        let keys = even_keys(3 * SEGMENT_ENTRIES);
        let mut ribbon = built(12, &keys);
        let lost = ribbon.segments[1].blocks() as u64;

        ribbon.segments[1] = RibbonSegment {
            first_block: ribbon.segments[1].first_block,
            ..RibbonSegment::default()
        };

        ribbon.segments[2].first_block -= lost;
        ribbon.shape.blocks -= lost;
        let again = decoded(&ribbon, &stored(&ribbon), 800, Columns::uniform(12));
        assert_eq!(stored(&again), stored(&ribbon));
        assert!(keys.iter().all(|key| again.contains(hash(key), key)));
        let rate = measured_rate(&again, 10_000);

        assert!((0.3..0.37).contains(&rate), "{rate}");
    }

    /// Half of the keys for each column less, in as much memory as is foretold; and never is a key
    /// lost.
    #[test]
    fn rates_halve_with_each_column_and_memory_grows_by_no_more() {
        let keys = even_keys(50_000);
        let whole = built(16, &keys);
        let shape = whole.shape();
        let bytes = stored(&whole);
        assert!(shape.blocks * 64 * 100 <= 50_000 * 106, "{shape:?}");
        let parts = [(1, 0), (2, 3), (4, 0), (4, 6), (5, 1), (8, 0), (11, 5), (16, 0)];

        for (each, wide) in parts {
            let part = Columns { each, wide };
            let ribbon = decoded(&whole, &bytes, 1 << 16, part);
            assert!(keys.iter().all(|key| ribbon.contains(hash(key), key)), "{part:?}");
            let rate = shape.rate(part);
            let measured = measured_rate(&ribbon, 200_000);
            let slack = 0.02 * rate + 4.0 * (rate / 200_000.0).sqrt();
            assert!((measured - rate).abs() <= slack, "{part:?}: {measured}, {rate}");
            let held = ribbon.memory_bytes() as u64;
            let foretold = shape.memory_bytes(part) + size_of::<Ribbon>() as u64;
            assert!(held <= foretold && foretold <= held + 200, "{part:?}: {held}, {foretold}");
        }
    }

    /// Reading a part, and reducing to it what is in memory, in one step or in several, come to the
    /// same.
    #[test]
    fn columns_given_up_are_those_that_are_not_read() {
        let keys = even_keys(30_000);
        let whole = built(10, &keys);
        let bytes = stored(&whole);

        let mut reduced = whole.clone();
        for (each, wide) in [(10, 0), (9, 2), (9, 0), (6, 3), (6, 1), (2, 0), (1, 4), (1, 0)] {
            let part = Columns { each, wide };
            assert!(part.is_within(reduced.kept()) && !whole.kept().is_within(Columns::uniform(9)));
            reduced.keep(part);
            let read = decoded(&whole, &bytes, 4080, part);
            for (a, b) in reduced.segments.iter().zip(&read.segments) {
                assert_eq!((&a.words, a.seed, a.columns), (&b.words, b.seed, b.columns));
            }
            assert_eq!(reduced.memory_bytes(), read.memory_bytes());
            assert_eq!(reduced.kept(), part);
        }

        assert_eq!(reduced.kept().narrower(), None);
        assert_eq!(Columns { each: 3, wide: 2 }.narrower(), Some(Columns::uniform(3)));
        assert_eq!(Columns::uniform(3).narrower(), Some(Columns::uniform(2)));
    }

    #[test]
    fn any_size_can_be_had_within_a_column_of_a_segment() {
        let shape = built(6, &even_keys(100_000)).shape();
        for each in 1..6 {
            let step = (block_count(SEGMENT_ENTRIES) * 8) as u64;
            let least = shape.memory_bytes(Columns::uniform(each));
            let next = shape.memory_bytes(Columns::uniform(each + 1));
            for bytes in (least..next - step).step_by(997) {
                let part = shape.between(each, bytes);
                let taken = shape.memory_bytes(part);
                assert!(taken <= bytes && bytes < taken + step, "{part:?}: {taken} of {bytes}");
                assert!(part.is_within(Columns::uniform(each + 1)));
            }
        }
    }

    /// While it is built a filter takes what is solved, and the hashes and rows of one segment.
    #[test]
    fn memory_while_building_is_bounded() {
        let mut builder = RibbonBuilder::new(8);
        for (at, key) in (1u64..).zip(even_keys(100_000)) {
            builder.insert(hash(&key), &key);
            let held = builder.memory_bytes() as u64;
            assert!(held <= bytes_for(at, 8) + 1_000, "{held} after {at}");
        }
    }

    #[test]
    fn a_filter_stored_in_pieces_is_read_back_word_for_word() {
        for keys in awkward_keys().into_iter().chain([even_keys(1), even_keys(20_000)]) {
            let ribbon = built(6, &keys);
            let bytes = stored(&ribbon);
            assert_eq!(bytes.len() as u64, ribbon.shape().words() * 8);

            let mut pieces = Vec::new();
            for start in (0..ribbon.shape().words()).step_by(510) {
                ribbon.put_words(start..start + 510, &mut pieces);
            }

            assert!(pieces == bytes);
            for piece in [8, 4080, 1 << 20] {
                let again = decoded(&ribbon, &bytes, piece, Columns::uniform(6));
                assert!(stored(&again) == bytes);
                assert_eq!((again.shape(), again.kept()), (ribbon.shape(), ribbon.kept()));
            }
        }
    }

    #[test]
    fn impossible_shapes_are_refused_before_anything_is_allocated() {
        let good = RibbonShape { segments: 3, columns: 4, directory_words: 5, blocks: 6 };
        let new = |shape| RibbonDecoder::new(shape, 29 * 8, Columns::uniform(1));
        assert!(new(good).is_ok());

        for shape in [
            RibbonShape { segments: 0, ..good },
            RibbonShape { segments: 5, ..good },
            RibbonShape { segments: u32::MAX, ..good },
            RibbonShape { columns: 0, ..good },
            RibbonShape { columns: 17, ..good },
            RibbonShape { blocks: 7, ..good },
            RibbonShape { blocks: u64::MAX, ..good },
            RibbonShape { directory_words: 6, ..good },
            RibbonShape { directory_words: u32::MAX, ..good },
        ] {
            assert!(new(shape).is_err(), "{shape:?}");
        }
    }

    /// Whatever bit of the directory is changed, it is refused or decoded into something that
    /// answers.
    #[test]
    fn a_changed_directory_is_refused_or_answers() {
        let keys = even_keys(20_000);
        let ribbon = built(1, &keys);
        let shape = ribbon.shape();
        let bytes = stored(&ribbon);

        let mut refused = 0;
        for at in 0..shape.directory_words as usize * 64 {
            let mut bytes = bytes.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            let part = Columns::uniform(1);

            let mut decoder = RibbonDecoder::new(shape, bytes.len() as u64, part).unwrap();
            match decoder.push_words(&bytes) {
                Err(_) => refused += 1,
                Ok(()) => {
                    let changed = decoder.finish().unwrap();
                    keys.iter().step_by(1_000).for_each(|key| {
                        changed.contains(hash(key), key);
                    });
                }
            }
        }

        // Numbers of blocks and ends of separators; not seeds, and not all bits of separators.
        assert!(refused >= 32 * 3 + 32 * 2, "{refused}");
    }

    #[test]
    fn too_few_too_many_and_broken_words_are_refused() {
        let ribbon = built(2, &even_keys(10_000));
        let bytes = stored(&ribbon);
        let decoder =
            || RibbonDecoder::new(ribbon.shape(), bytes.len() as u64, Columns::uniform(2)).unwrap();

        for end in [0, 8, 16, bytes.len() - 8] {
            let mut short = decoder();
            short.push_words(&bytes[..end]).unwrap();
            assert_eq!(short.finish().unwrap_err().found, end as u64 / 8);
        }

        let mut long = decoder();
        long.push_words(&bytes).unwrap();
        assert!(long.push_words(&[0; 8]).is_err());
        assert!(decoder().push_words(&[0; 9]).is_err());
    }

    /// The equation of a hash, and the place of its bits, are part of the format.
    #[test]
    fn equations_are_those_of_the_format() {
        let product = |number: u64| {
            let product = u128::from(number) * 0x9E37_79B9_7F4A_7C15;
            (product >> 64) as u64 ^ product as u64
        };

        let keys = even_keys(9_000);
        let ribbon = built(3, &keys);
        let words: Vec<u64> = stored(&ribbon)
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();

        assert_eq!(ribbon.shape().segments, 2);

        // One separator, of less than a word.
        let first_blocks = words[0] & 0xFFFF_FFFF;
        let ends = words[2];
        let slots = &words[4..];
        assert!(ends <= 8);
        assert_eq!(first_blocks, 133);
        let second =
            keys.partition_point(|key| key.as_slice() < &words[3].to_le_bytes()[..ends as usize]);
        assert_eq!(second, 8192);

        for (at, key) in keys.iter().enumerate() {
            let (known, slots) = if at < second {
                (words[0], slots)
            } else {
                (words[1], &slots[first_blocks as usize * 3..])
            };

            let blocks = known & 0xFFFF_FFFF;
            let seed = known >> 32;
            let mixed = product(hash(key) ^ seed.wrapping_mul(0xC0AC_29B7_C97C_50DD));
            let starts = blocks * 64 - 63;
            let start = ((u128::from(mixed) * u128::from(starts)) >> 64) as usize;
            let coefficients = product(mixed ^ 0x4528_21E6_38D0_1377) | 1;
            let result = product(mixed ^ 0xBE54_66CF_34E9_0C6C);

            for column in 0..3 {
                let mut sum = 0;
                for slot in
                    (start..start + 64).filter(|slot| coefficients >> (slot - start) & 1 == 1)
                {
                    sum ^= slots[slot / 64 * 3 + column] >> (slot % 64) & 1;
                }
                assert_eq!(sum, result >> column & 1, "key {at}, column {column}");
            }
        }
    }
}
