//! Filter of a run: a Bloom or a ribbon filter, in memory whole or in part.
//!
//! A [blocked Bloom filter](crate::filter::bloom) is fast to build and to ask; a [ribbon
//! filter](crate::filter::ribbon) is a third smaller. Less of a filter may be in memory than is
//! stored ([`FilterPortion`]). A filter with nothing in memory claims every key.

#![expect(clippy::inline_always, reason = "the call would cost a merge as much as the work")]
#![doc = include_str!("../../../../docs/format/filter.md")]

use std::ops::Range;

use crate::corrupt::Corrupt;
use crate::filter::bloom::{
    Bloom, BloomBuilder, BloomDecoder, BloomSize, Fold, Pattern, expected_rate,
};
use crate::filter::ribbon::{
    Columns, Ribbon, RibbonBuilder, RibbonDecoder, RibbonProbe, RibbonShape, bytes_for,
};

/// Pairs of key and filter whose memory [`probe_batch`] asks for before it tests the first of them.
/// Measured with 1, 8 and 40 filters far larger than the second-level cache: 64 and 128 are alike,
/// 256 costs 5 to 20 % more; without asking, a probe takes twice as long.
const PREFETCH_PAIRS: usize = 64;

/// The kind of a filter and how much memory it gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FilterAllocation {
    /// A blocked Bloom filter.
    Bloom(BloomSize),
    /// A ribbon filter of this many columns.
    Ribbon(u8),
}

impl FilterAllocation {
    /// One block, which soon says of every key that it may be there.
    pub(crate) const LEAST: Self = Self::Bloom(BloomSize::Least);

    /// The memory that the filter of this many entries takes while it is built, in bytes.
    pub(crate) fn memory_bytes(self, entries: u64) -> u64 {
        match self {
            Self::Bloom(size) => Bloom::blocks_for(entries, size) * 64,
            Self::Ribbon(columns) => bytes_for(entries, columns),
        }
    }
}

/// How a filter is stored, as its run's footer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilterShape {
    Bloom {
        /// Number of blocks of 64 bytes.
        blocks: u64,
        probes: u32,
    },
    Ribbon(RibbonShape),
}

impl FilterShape {
    /// Words of 64 bits that are stored.
    pub(crate) fn words(self) -> u64 {
        match self {
            Self::Bloom { blocks, .. } => blocks.saturating_mul(8),
            Self::Ribbon(shape) => shape.words(),
        }
    }

    /// All that is stored.
    pub(crate) fn whole(self) -> FilterPortion {
        match self {
            Self::Bloom { .. } => FilterPortion::Blocks(Fold::WHOLE),
            Self::Ribbon(shape) => FilterPortion::Columns(Columns::uniform(shape.columns)),
        }
    }

    /// Parts that can be kept, from the smallest to all of it, but none in which some places have
    /// more than others.
    pub(crate) fn uniform_parts(self) -> Vec<FilterPortion> {
        match self {
            Self::Bloom { blocks, .. } => {
                let folds = Fold::FACTORS.into_iter().map(Fold::uniform);
                folds.filter(|fold| fold.divides(blocks)).map(FilterPortion::Blocks).collect()
            }
            Self::Ribbon(shape) => (1..=shape.columns)
                .map(|each| FilterPortion::Columns(Columns::uniform(each)))
                .collect(),
        }
    }

    /// The memory that a part takes, in bytes, beside what every filter takes.
    pub(crate) fn memory_bytes(self, kept: FilterPortion) -> u64 {
        match (self, kept) {
            (Self::Bloom { blocks, .. }, FilterPortion::Blocks(fold)) => fold.blocks(blocks) * 64,
            (Self::Ribbon(shape), FilterPortion::Columns(columns)) => shape.memory_bytes(columns),
            _ => 64,
        }
    }

    /// The false-positive rate to expect of a part of the filter of this many entries.
    pub(crate) fn rate(self, kept: FilterPortion, entries: u64) -> f64 {
        match (self, kept) {
            (Self::Bloom { blocks, probes }, FilterPortion::Blocks(fold)) => {
                let probes = u8::try_from(probes).unwrap_or(u8::MAX);
                expected_rate(entries, fold.blocks(blocks), probes)
            }
            (Self::Ribbon(shape), FilterPortion::Columns(columns)) => shape.rate(columns),
            _ => 1.0,
        }
    }

    /// The largest part that is no smaller than one of two uniform ones, no larger than the other,
    /// and takes no more than `bytes`. These must be enough for the smaller one.
    pub(crate) fn between(
        self,
        less: FilterPortion,
        more: FilterPortion,
        bytes: u64,
    ) -> FilterPortion {
        match (self, less, more) {
            (
                Self::Bloom { blocks, .. },
                FilterPortion::Blocks(coarse),
                FilterPortion::Blocks(fine),
            ) => FilterPortion::Blocks(Fold::between(coarse, fine, blocks, bytes / 64)),
            (Self::Ribbon(shape), FilterPortion::Columns(less), FilterPortion::Columns(_)) => {
                FilterPortion::Columns(shape.between(less.each(), bytes))
            }
            _ => less,
        }
    }
}

/// How much of a stored filter is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilterPortion {
    /// Nothing of it: it says of every key that it may be there.
    Nothing,
    /// Folded blocks of a Bloom filter.
    Blocks(Fold),
    /// Some columns of a ribbon filter.
    Columns(Columns),
}

impl FilterPortion {
    /// Whether a filter of which this is in memory can be reduced to that.
    pub(crate) fn leads_to(self, less: Self) -> bool {
        match (self, less) {
            (_, Self::Nothing) => true,
            (Self::Blocks(fold), Self::Blocks(coarser)) => fold.leads_to(coarser),
            (Self::Columns(columns), Self::Columns(fewer)) => fewer.is_within(columns),
            _ => false,
        }
    }

    /// Whether as much is kept at all places.
    pub(crate) fn is_uniform(self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Blocks(fold) => !fold.is_uneven(),
            Self::Columns(columns) => columns.is_uniform(),
        }
    }
}

/// A filter that is still being filled.
#[derive(Debug)]
pub(crate) enum FilterBuilder {
    Bloom(BloomBuilder),
    /// Apart, so that the others are no larger for it.
    Ribbon(Box<RibbonBuilder>),
}

impl FilterBuilder {
    /// Adds a key that is above all earlier ones, by its hash.
    ///
    /// # Panics
    /// If the filter was sized for no entries.
    #[inline(always)]
    pub(crate) fn insert(&mut self, hash: u64, key: &[u8]) {
        match self {
            Self::Bloom(builder) => builder.insert(hash),
            Self::Ribbon(builder) => builder.insert(hash, key),
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Bloom(builder) => builder.memory_bytes(),
            Self::Ribbon(builder) => builder.memory_bytes(),
        }
    }

    /// Ends filling.
    pub(crate) fn finish(self) -> Filter {
        match self {
            Self::Bloom(builder) => Filter::Bloom(builder.finish()),
            Self::Ribbon(builder) => Filter::Ribbon(Box::new(builder.finish())),
        }
    }
}

/// A set of keys that may claim to hold others too.
#[derive(Debug, Clone)]
pub(crate) enum Filter {
    Bloom(Bloom),
    /// Apart, so that the others are no larger for it.
    Ribbon(Box<Ribbon>),
}

impl Filter {
    /// A filter with room for `entries`. More may be inserted, at the price of the rate of false
    /// positives; into a filter for 0 entries, none.
    ///
    /// # Panics
    /// If the allocation is not one that a checked configuration has.
    pub(crate) fn builder(entries: u64, allocation: FilterAllocation) -> FilterBuilder {
        match allocation {
            FilterAllocation::Bloom(size) => FilterBuilder::Bloom(Bloom::builder(entries, size)),
            FilterAllocation::Ribbon(columns) => {
                FilterBuilder::Ribbon(Box::new(RibbonBuilder::new(columns)))
            }
        }
    }

    /// The filter of no entries.
    pub(crate) fn empty() -> Self {
        Self::Bloom(Bloom::empty())
    }

    /// Returns a filter of which nothing is in memory: it claims every key.
    pub(crate) fn nothing() -> Self {
        Self::Bloom(Bloom::nothing())
    }

    /// Whether the key of this hash may have been inserted; if `false`, it was not.
    pub(crate) fn contains(&self, hash: u64, key: &[u8]) -> bool {
        match self {
            Self::Bloom(bloom) => bloom.contains(hash),
            Self::Ribbon(ribbon) => ribbon.contains(hash, key),
        }
    }

    /// Returns the part of the stored filter that is in memory.
    pub(crate) fn kept(&self) -> FilterPortion {
        match self {
            Self::Bloom(bloom) => match bloom.fold() {
                Fold::NOTHING => FilterPortion::Nothing,
                fold => FilterPortion::Blocks(fold),
            },
            Self::Ribbon(ribbon) => FilterPortion::Columns(ribbon.kept()),
        }
    }

    /// The next smaller part of it, if there is one that is uniform.
    pub(crate) fn smaller(&self) -> Option<FilterPortion> {
        match self {
            Self::Bloom(bloom) => bloom.coarser().map(FilterPortion::Blocks),
            Self::Ribbon(ribbon) => ribbon.kept().narrower().map(FilterPortion::Columns),
        }
    }

    /// Gives up what is in memory but for a part that it [leads to](FilterPortion::leads_to). It
    /// goes on to say yes to all of its keys, and to more others.
    pub(crate) fn keep(&mut self, part: FilterPortion) {
        match (&mut *self, part) {
            (Self::Bloom(bloom), FilterPortion::Blocks(fold)) => bloom.fold_to(fold),
            (Self::Ribbon(ribbon), FilterPortion::Columns(columns)) => ribbon.keep(columns),
            (_, part) => {
                // A filter changes its kind only by giving up everything.
                assert!(part == FilterPortion::Nothing);
                *self = Self::nothing();
            }
        }
    }

    /// How it is stored, of a filter that is whole.
    pub(crate) fn shape(&self) -> FilterShape {
        match self {
            Self::Bloom(bloom) => {
                FilterShape::Bloom { blocks: bloom.blocks(), probes: bloom.probes().into() }
            }
            Self::Ribbon(ribbon) => FilterShape::Ribbon(ribbon.shape()),
        }
    }

    /// Puts the words of a range, cut off at the last one, to the end of `out`, as they are stored;
    /// of a filter that is whole.
    pub(crate) fn put_words(&self, range: Range<u64>, out: &mut Vec<u8>) {
        match self {
            Self::Bloom(bloom) => {
                let words = bloom.words(range.start as usize..range.end as usize).iter();
                words.for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            }
            Self::Ribbon(ribbon) => ribbon.put_words(range, out),
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Bloom(bloom) => bloom.memory_bytes(),
            Self::Ribbon(ribbon) => ribbon.memory_bytes(),
        }
    }
}

/// Puts a filter together from its stored words.
#[derive(Debug)]
pub(crate) enum FilterDecoder {
    Bloom(BloomDecoder),
    Ribbon(RibbonDecoder),
}

impl FilterDecoder {
    /// Begins a filter of which such a part is to be kept; what is allocated is known to be at most
    /// `memory_bytes_max`, which the caller takes from the size of the file.
    ///
    /// # Errors
    /// [`Corrupt`] if it is larger than that, or has an impossible shape.
    ///
    /// # Panics
    /// If there is no such part of it, or it is nothing.
    pub(crate) fn new(
        shape: FilterShape,
        memory_bytes_max: u64,
        kept: FilterPortion,
    ) -> Result<Self, Corrupt> {
        match (shape, kept) {
            (FilterShape::Bloom { blocks, probes }, FilterPortion::Blocks(fold)) => {
                // More than there can be, which the decoder refuses, stays more.
                let probes = u8::try_from(probes).unwrap_or(u8::MAX);
                Ok(Self::Bloom(BloomDecoder::new(blocks, probes, memory_bytes_max, fold)?))
            }
            (FilterShape::Ribbon(shape), FilterPortion::Columns(columns)) => {
                Ok(Self::Ribbon(RibbonDecoder::new(shape, memory_bytes_max, columns)?))
            }
            _ => panic!("a part of a filter of another kind, or nothing"),
        }
    }

    /// Takes the next words, in order and in pieces of any number of whole words.
    ///
    /// # Errors
    /// [`Corrupt`] if `bytes` ends within a word, or after the last word of the filter, or its
    /// directory is broken.
    pub(crate) fn push_words(&mut self, bytes: &[u8]) -> Result<(), Corrupt> {
        match self {
            Self::Bloom(decoder) => decoder.push_words(bytes),
            Self::Ribbon(decoder) => decoder.push_words(bytes),
        }
    }

    /// Ends the filter.
    ///
    /// # Errors
    /// [`Corrupt`] if words are missing.
    pub(crate) fn finish(self) -> Result<Filter, Corrupt> {
        match self {
            Self::Bloom(decoder) => decoder.finish().map(Filter::Bloom),
            Self::Ribbon(decoder) => {
                decoder.finish().map(|ribbon| Filter::Ribbon(Box::new(ribbon)))
            }
        }
    }
}

/// A key that a filter may hold, both by their places in what is given to [`probe_batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hit {
    /// Place of the key.
    pub(crate) key: u32,
    /// Place of the filter among those that the key is asked of.
    pub(crate) filter: u32,
}

/// The filters that keys are asked of.
#[derive(Debug)]
pub(crate) struct Asked<'f, F> {
    /// The same ones for every key, or those of the first key and so on.
    pub(crate) filters: &'f [&'f F],
    /// How many a key is asked of.
    pub(crate) per_key: usize,
}

impl<F> Clone for Asked<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Asked<'_, F> {}

impl<'f, F> Asked<'f, F> {
    /// Those of a key.
    #[inline]
    fn of_key(self, key: u32) -> &'f [&'f F] {
        if self.filters.len() == self.per_key {
            return self.filters;
        }
        let first = key as usize * self.per_key;
        &self.filters[first..first + self.per_key]
    }
}

/// Appends to `hits` every pair of a key and a filter asked about it for which
/// [`Filter::contains`] holds, by rising key and then by rising filter. `key_at` gives the key of a
/// hash.
///
/// Cost: one cache line per pair, two if the filter is a ribbon, many on their way at once;
/// allocates what `hits` needs, and a few kilobytes at most.
#[inline(never)] // so that `cargo xtask counts` sees it apart
pub(crate) fn probe_batch<'k>(
    asked: Asked<'_, Filter>,
    hashes: &[u64],
    key_at: &dyn Fn(usize) -> &'k [u8],
    hits: &mut Vec<Hit>,
) {
    let Asked { filters, per_key } = asked;
    // Places of keys and filters in hits have 32 bits.
    assert!(u32::try_from(filters.len()).is_ok());
    assert!(u32::try_from(hashes.len()).is_ok());
    assert!(filters.len() == per_key || filters.len() == per_key * hashes.len());

    // Few tables have filters that are folded unevenly, or ribbons, so the others do not pay for
    // it.
    let plain = filters.iter().map(|filter| match filter {
        Filter::Bloom(bloom) if !bloom.is_split() => Some(bloom),
        Filter::Bloom(_) | Filter::Ribbon(_) => None,
    });

    match plain.collect::<Option<Vec<&Bloom>>>() {
        Some(filters) => probe_plain(Asked { filters: &filters, per_key }, hashes, hits),
        None => probe_mixed(asked, hashes, key_at, hits),
    }
}

/// Keys whose memory is asked for before the first of them is tested.
fn keys_per_group(per_key: usize) -> usize {
    (PREFETCH_PAIRS / per_key.max(1)).max(1)
}

/// Bloom filters that are not folded unevenly. The pattern of a key is the same for all that have
/// as many probes, as the filters of one table do, so it is drawn once.
fn probe_plain(asked: Asked<'_, Bloom>, hashes: &[u64], hits: &mut Vec<Hit>) {
    let mut key = 0;
    for group in hashes.chunks(keys_per_group(asked.per_key)) {
        // The memory of the whole group is asked for before its first answer waits for any.
        for (at, &hash) in (key..).zip(group) {
            for filter in asked.of_key(at) {
                filter.prefetch::<false>(hash);
            }
        }

        for &hash in group {
            let mut pattern = CachedPattern::default();
            for (index, filter) in (0u32..).zip(asked.of_key(key)) {
                if pattern.is_in::<false>(filter, hash) {
                    hits.push(Hit { key, filter: index });
                }
            }
            key += 1;
        }
    }

    debug_assert_eq!(key as usize, hashes.len(), "every key was asked about");
}

/// Filters of any kind.
fn probe_mixed<'k>(
    asked: Asked<'_, Filter>,
    hashes: &[u64],
    key_at: &dyn Fn(usize) -> &'k [u8],
    hits: &mut Vec<Hit>,
) {
    // To the ribbons, in the order in which they are answered.
    let mut questions: Vec<RibbonProbe<'_>> = Vec::new();
    let mut key = 0;
    for group in hashes.chunks(keys_per_group(asked.per_key)) {
        questions.clear();
        for (at, &hash) in (key..).zip(group) {
            for filter in asked.of_key(at) {
                match filter {
                    Filter::Bloom(bloom) => bloom.prefetch::<true>(hash),
                    Filter::Ribbon(ribbon) => {
                        questions.push(ribbon.question(hash, key_at(at as usize)));
                    }
                }
            }
        }

        // Answers come in the order of the questions.
        let mut questions = questions.iter();
        for &hash in group {
            let mut pattern = CachedPattern::default();
            for (index, filter) in (0u32..).zip(asked.of_key(key)) {
                let is_hit = match filter {
                    Filter::Bloom(bloom) => pattern.is_in::<true>(bloom, hash),
                    Filter::Ribbon(_) => questions.next().is_some_and(RibbonProbe::is_answered_yes),
                };
                if is_hit {
                    hits.push(Hit { key, filter: index });
                }
            }
            key += 1;
        }
    }

    debug_assert_eq!(key as usize, hashes.len(), "every key was asked about");
}

/// The pattern of one key that was drawn last.
#[derive(Default)]
struct CachedPattern {
    probes: u8,
    pattern: Pattern,
}

impl CachedPattern {
    #[inline]
    fn is_in<const SPLIT: bool>(&mut self, filter: &Bloom, hash: u64) -> bool {
        let Some(block) = filter.block::<SPLIT>(hash) else { return false };
        if filter.probes() != self.probes {
            self.probes = filter.probes();
            self.pattern = Pattern::new(hash, self.probes);
        }
        self.pattern.is_in(block)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: whatever the kinds of the filters and the parts of them in memory, a batch says what
    //! single questions say. Method: hashes from SplitMix64 with fixed seeds; keys are the hashes
    //! as bytes, which need not be so.

    use super::*;
    use crate::filter::bloom::tests::SplitMix64;

    fn hashes(seed: u64, count: usize) -> Vec<u64> {
        SplitMix64(seed).take(count).collect()
    }

    const BLOOM: FilterAllocation = FilterAllocation::Bloom(BloomSize::BitsPerEntry(10.0));

    fn filled(entries: usize, allocation: FilterAllocation) -> Filter {
        let mut builder = Filter::builder(entries as u64, allocation);
        let mut keys: Vec<_> = hashes(entries as u64, entries)
            .into_iter()
            .map(|hash| (hash.to_le_bytes(), hash))
            .collect();
        keys.sort_unstable();
        for (key, hash) in keys {
            builder.insert(hash, &key);
        }
        builder.finish()
    }

    fn probe(filters: &[&Filter], hashes: &[u64], hits: &mut Vec<Hit>) {
        let keys: Vec<_> = hashes.iter().map(|hash| hash.to_le_bytes()).collect();
        let asked = Asked { filters, per_key: filters.len() };
        probe_batch(asked, hashes, &|at| &keys[at], hits);
    }

    #[test]
    fn a_batch_finds_what_single_questions_find() {
        let ribbon = FilterAllocation::Ribbon;
        let mixtures = [
            [4.0, 10.0, 10.0].map(|bits| FilterAllocation::Bloom(BloomSize::BitsPerEntry(bits))),
            [BLOOM, ribbon(3), ribbon(9)],
        ];

        for allocations in mixtures {
            let filters: Vec<Filter> = (0..300)
                .map(|n| filled(if n % 7 == 6 { 0 } else { 13 * n }, allocations[n % 3]))
                .collect();

            for (filter_count, hash_count) in
                [(0, 0), (0, 9), (9, 0), (1, 1), (1, 1000), (2, 100), (40, 257), (300, 65)]
            {
                let filters: Vec<&Filter> = filters[300 - filter_count..].iter().collect();
                let hashes = hashes(13 * 299, hash_count);
                let mut expected = vec![Hit { key: 7, filter: 8 }];
                for (key, &hash) in (0..).zip(&hashes) {
                    let contains = |f: &Filter| f.contains(hash, &hash.to_le_bytes());
                    for (filter, _) in (0..).zip(&filters).filter(|(_, f)| contains(f)) {
                        expected.push(Hit { key, filter });
                    }
                }

                let mut hits = vec![Hit { key: 7, filter: 8 }];
                probe(&filters, &hashes, &mut hits);
                assert_eq!(hits, expected, "{filter_count} filters, {hash_count} hashes");
            }
        }
    }

    /// A batch of more than 2^16 hashes and filters: numbers must not wrap in any direction.
    #[test]
    fn a_batch_may_be_larger_than_any_small_integer() {
        for allocation in [BLOOM, FilterAllocation::Ribbon(12)] {
            let full = filled(1, allocation);
            let empty = filled(0, allocation);
            let hash = hashes(1, 1)[0];
            let mut filters = vec![&empty; 70_000];
            filters[69_999] = &full;
            let mut hits = Vec::new();
            probe(&filters, &[!hash, hash], &mut hits);
            assert!(hits.contains(&Hit { key: 1, filter: 69_999 }));
            let mut many = vec![!hash; 70_000];
            many[69_999] = hash;
            hits.clear();
            probe(&[&full], &many, &mut hits);
            assert!(hits.contains(&Hit { key: 69_999, filter: 0 }));
        }
    }

    #[test]
    fn a_filter_of_which_nothing_is_kept_says_yes_to_every_key() {
        for allocation in [BLOOM, FilterAllocation::Ribbon(8)] {
            let mut filter = filled(10_000, allocation);
            assert_eq!(filter.kept(), filter.shape().whole());
            let questions = hashes(1 << 60, 1_000);
            let mut hits = Vec::new();
            probe(&[&filter], &questions, &mut hits);
            assert!(hits.len() < 50, "{}", hits.len());
            hits.clear();
            filter.keep(FilterPortion::Nothing);
            assert!(filter.memory_bytes() < 400 && filter.kept() == FilterPortion::Nothing);
            assert!(questions.iter().all(|&hash| filter.contains(hash, &hash.to_le_bytes())));
            probe(&[&filter], &questions, &mut hits);
            assert_eq!(hits.len(), 1_000);
            assert_eq!(filter.smaller(), None);
        }
    }

    /// The sizes that memory is shared out by are those that filters then take, and the rates come
    /// true.
    #[test]
    fn parts_have_the_memory_and_the_rate_that_their_shape_foretells() {
        let entries = 60_000;
        for allocation in [BLOOM, FilterAllocation::Ribbon(8)] {
            let whole = filled(entries, allocation);
            let shape = whole.shape();
            assert!(allocation.memory_bytes(entries as u64) >= shape.memory_bytes(shape.whole()));

            for part in shape.uniform_parts() {
                assert!(whole.kept().leads_to(part));
                let mut filter = whole.clone();
                filter.keep(part);
                let foretold = shape.memory_bytes(part);
                let held = filter.memory_bytes() as u64;
                assert!(held <= foretold + 300, "{part:?}: {held}, {foretold}");
                assert!(foretold <= held + held / 50 + 100, "{part:?}: {held}, {foretold}");
                let questions = hashes(1 << 60, 100_000);
                let claims = |hash: &&u64| filter.contains(**hash, &hash.to_le_bytes());
                let measured = questions.iter().filter(claims).count() as f64 / 1e5;
                let rate = shape.rate(part, entries as u64);
                let slack = 0.06 * rate + 4.0 * (rate / 1e5).sqrt();
                assert!((measured - rate).abs() < slack, "{part:?}: {measured}, {rate}");
            }
        }
    }
}
