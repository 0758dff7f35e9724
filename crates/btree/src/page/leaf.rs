//! Leaves: the pages that hold the entries.
//!
//! Entries are stored in the order of their keys, without the prefix that both fences share; see
//! `docs/format/btree.md`.
//!
//! Invariants: keys ascend strictly and lie between the fences. The fences of neighbours are equal,
//! so the leaves alone tell the whole tree. Fences are as short as the *keys* on both sides allow.

use terrane_io::key_order::compare_keys;

use crate::page::block::{Block, EntryRef, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::page::corrupt::Corrupt;
use crate::page::page::{BODY_OFFSET, PAGE_SIZE, Page, common_prefix, u16_at};

/// Offset of the fences.
pub(crate) const FENCES_OFFSET: usize = 44;

/// Stored length of a missing high fence, and stored size if sizes vary.
pub(crate) const NONE: u16 = u16::MAX;

/// The sizes of keys and values, where they are fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) key: Option<u16>,
    pub(crate) value: Option<u16>,
}

impl Sizes {
    fn are_fixed(self) -> bool {
        self.key.is_some() && self.value.is_some()
    }

    /// Bytes of an entry besides its key and value.
    pub(crate) fn overhead(self) -> usize {
        match (self.key, self.value) {
            (Some(_), Some(_)) => 0,
            (Some(_), None) => 2,
            (None, _) => 4,
        }
    }
}

/// The range of keys of a page: from `low` on, and below `high` if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fences<'a> {
    pub(crate) low: &'a [u8],
    pub(crate) high: Option<&'a [u8]>,
}

impl<'a> Fences<'a> {
    pub(crate) const ALL: Self = Self { low: &[], high: None };

    /// Whether a key lies between the fences.
    pub(crate) fn contain(&self, key: &[u8]) -> bool {
        self.low <= key && self.high.is_none_or(|high| key < high)
    }

    /// The common prefix of all keys between the fences.
    fn prefix(&self) -> &'a [u8] {
        &self.low[..self.high.map_or(0, |high| common_prefix(self.low, high))]
    }

    fn bytes(&self) -> usize {
        self.low.len() + self.high.map_or(0, <[u8]>::len)
    }
}

/// The shortest key above `below` that is not above `key`.
pub(crate) fn separator<'a>(below: &[u8], key: &'a [u8]) -> &'a [u8] {
    debug_assert!(below < key, "there is a separator only between keys that ascend");
    &key[..=common_prefix(below, key)]
}

/// A leaf whose header and offsets have been checked; reading from it cannot fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaf<'a> {
    bytes: &'a [u8; PAGE_SIZE],
    count: usize,
    fences: Fences<'a>,
    prefix: &'a [u8],
    entries_at: usize,
    sizes: Sizes,
}

impl<'a> Leaf<'a> {
    /// Reads a leaf that was checked, or that this program made.
    pub(crate) fn of(page: &'a Page) -> Self {
        let bytes = page.bytes();
        Self::parse(bytes, page.count()).expect("a page in memory has been checked")
    }

    /// The sizes of its tree that a leaf records.
    pub(crate) fn stored_sizes(bytes: &[u8; PAGE_SIZE]) -> Sizes {
        let fixed = |at| Some(u16_at(bytes, at)).filter(|&size| size != NONE);
        Sizes { key: fixed(38), value: fixed(40) }
    }

    /// Reads the bytes of a leaf that was checked.
    pub(crate) fn of_bytes(bytes: &'a [u8; PAGE_SIZE]) -> Self {
        Self::parse(bytes, usize::from(u16_at(bytes, 6))).expect("a leaf that was checked")
    }

    /// Finds the parts of a leaf; `None` if one lies outside of its page.
    fn parse(bytes: &'a [u8; PAGE_SIZE], count: usize) -> Option<Self> {
        let [low_len, high_len, prefix_len] = [32, 34, 36].map(|at| usize::from(u16_at(bytes, at)));
        let sizes = Self::stored_sizes(bytes);
        let low = bytes.get(FENCES_OFFSET..FENCES_OFFSET + low_len)?;
        let low_end = FENCES_OFFSET + low_len;

        let (high, entries_at) = if high_len == usize::from(NONE) {
            (None, low_end)
        } else {
            (Some(bytes.get(low_end..low_end + high_len)?), low_end + high_len)
        };

        let fences = Fences { low, high };
        let prefix = fences.prefix();
        // The fences give the prefix, so its stored length is a check.
        (prefix.len() == prefix_len).then_some(Self {
            bytes,
            count,
            fences,
            prefix,
            entries_at,
            sizes,
        })
    }

    /// Checks that a leaf lies within its page, and that its keys ascend between its fences.
    ///
    /// # Errors
    /// [`Corrupt`] with the broken rule.
    pub(crate) fn check(bytes: &'a [u8; PAGE_SIZE], sizes: Sizes) -> Result<(), Corrupt> {
        Self::check_layout(bytes, sizes)?;
        Self::of_bytes(bytes).check_order()
    }

    /// Checks that a leaf lies within its page.
    fn check_layout(bytes: &[u8; PAGE_SIZE], sizes: Sizes) -> Result<(), Corrupt> {
        let broken = |rule| Corrupt::rule(rule, 0, 0);
        let count = usize::from(u16_at(bytes, 6));
        let leaf = Leaf::parse(bytes, count).ok_or_else(|| broken("fences"))?;

        let [key, value] = [sizes.key, sizes.value].map(|size| size.map(usize::from));

        let is_too_large = key.is_some_and(|bytes| !(1..=KEY_BYTES_MAX).contains(&bytes))
            || value.is_some_and(|bytes| bytes > VALUE_BYTES_MAX);
        if leaf.sizes != sizes || is_too_large {
            return Err(broken("sizes"));
        }

        let Fences { low, high } = leaf.fences;
        if low.len().max(high.map_or(0, <[u8]>::len)) > KEY_BYTES_MAX {
            return Err(broken("length of a fence"));
        }

        // With fixed sizes the ends of entries are not stored: the count alone gives them.
        if let (Some(key), Some(value)) = (sizes.key, sizes.value) {
            let each = (usize::from(key).checked_sub(leaf.prefix.len()))
                .ok_or_else(|| broken("prefix_len"))?
                + usize::from(value);
            let end = leaf.entries_at + count * each;
            return if end <= PAGE_SIZE { Ok(()) } else { Err(broken("entries")) };
        }

        leaf.check_entries()
    }

    /// Checks that entries of varying sizes lie within the page, one behind the other.
    fn check_entries(&self) -> Result<(), Corrupt> {
        let broken = |rule| Corrupt::rule(rule, 0, 0);
        let head = if self.sizes.key.is_some() { 0 } else { 2 };

        let mut start = self.entries_at + 2 * self.count;
        if start > PAGE_SIZE {
            return Err(broken("ends"));
        }

        for at in 0..self.count {
            let end = usize::from(u16_at(self.bytes, self.entries_at + 2 * at));
            if end > PAGE_SIZE || end < start + head {
                return Err(broken("ends"));
            }

            let suffix = match self.sizes.key {
                Some(key) => usize::from(key).checked_sub(self.prefix.len()),
                None => Some(usize::from(u16_at(self.bytes, start))),
            };

            let rest = suffix.and_then(|suffix| (end - start - head).checked_sub(suffix));
            let key_bytes = suffix.map_or(0, |suffix| suffix + self.prefix.len());
            match (rest, self.sizes.value) {
                (Some(rest), Some(value)) if rest == usize::from(value) => {}
                (Some(rest), None) if rest <= VALUE_BYTES_MAX => {}
                _ => return Err(broken("entry")),
            }

            if key_bytes > KEY_BYTES_MAX {
                return Err(broken("length of a key"));
            }
            start = end;
        }

        Ok(())
    }

    /// Checks that keys ascend and lie between the fences, comparing keys without their common
    /// prefix.
    ///
    /// Cost: a comparison for each entry.
    fn check_order(&self) -> Result<(), Corrupt> {
        let Fences { low, high } = self.fences;
        if high.is_some_and(|high| high <= low) {
            return Err(Corrupt::rule("fences ascend", 0, 0));
        }

        let prefix_len = self.prefix.len();
        let mut previous = &low[prefix_len..];
        let mut ascends = |at: usize, suffix: &'a [u8]| {
            let order = compare_keys(previous, suffix);
            previous = suffix;
            // The first key may be equal to the low fence.
            if order.is_gt() || (order.is_eq() && at > 0) {
                return Err(Corrupt::rule("keys ascend", at as u64, at as u64));
            }
            Ok(())
        };

        match (self.sizes.key, self.sizes.value) {
            // Entries of one size are walked without looking each of them up.
            (Some(key), Some(value)) if usize::from(key) > prefix_len => {
                let suffix_len = usize::from(key) - prefix_len;
                let each = suffix_len + usize::from(value);
                let entries = &self.bytes[self.entries_at..][..self.count * each];
                for (at, entry) in entries.chunks_exact(each).enumerate() {
                    ascends(at, &entry[..suffix_len])?;
                }
            }
            _ => (0..self.count).try_for_each(|at| ascends(at, self.entry(at).0))?,
        }

        match high {
            Some(high) if self.count > 0 && previous >= &high[prefix_len..] => {
                let last = self.count as u64 - 1;
                Err(Corrupt::rule("key between fences", last, last))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn fences(&self) -> Fences<'a> {
        self.fences
    }

    /// The key without the prefix, and the value, of entry `at`.
    fn entry(&self, at: usize) -> (&'a [u8], &'a [u8]) {
        debug_assert!(at < self.count, "an entry of this leaf");
        let prefix_len = self.prefix.len();
        if let (Some(key), Some(value)) = (self.sizes.key, self.sizes.value) {
            let suffix = usize::from(key) - prefix_len;
            let each = suffix + usize::from(value);
            return self.bytes[self.entries_at + at * each..][..each].split_at(suffix);
        }

        let end_of = |at: usize| usize::from(u16_at(self.bytes, self.entries_at + 2 * at));
        let start = if at == 0 { self.entries_at + 2 * self.count } else { end_of(at - 1) };

        let entry = &self.bytes[start..end_of(at)];
        match self.sizes.key {
            Some(key) => entry.split_at(usize::from(key) - prefix_len),
            None => entry[2..].split_at(usize::from(u16_at(entry, 0))),
        }
    }

    /// The whole key of entry `at`.
    #[cfg(test)]
    fn key(&self, at: usize) -> Vec<u8> {
        [self.prefix, self.entry(at).0].concat()
    }

    /// Writes the whole key of entry `at` over `key`. Returns the value.
    pub(crate) fn read(&self, at: usize, key: &mut Vec<u8>) -> &'a [u8] {
        let (suffix, value) = self.entry(at);
        key.clear();
        key.extend_from_slice(self.prefix);
        key.extend_from_slice(suffix);
        value
    }

    /// The place of `key`, or the place where it would be.
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        // A key without the common prefix lies before or behind all keys of the leaf.
        let Some(suffix) = key.strip_prefix(self.prefix) else {
            return Err(if key < self.prefix { 0 } else { self.count });
        };

        let mut low = 0;
        let mut high = self.count;
        while low < high {
            let middle = (low + high) / 2;
            match compare_keys(self.entry(middle).0, suffix) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }

        Err(low)
    }

    /// The value of a key, if the leaf has it.
    pub(crate) fn find(&self, key: &[u8]) -> Option<&'a [u8]> {
        self.search(key).ok().map(|at| self.entry(at).1)
    }

    /// All entries, unpacked.
    pub(crate) fn to_block(self) -> Block {
        let mut block = Block::with_capacity(PAGE_SIZE + self.count * 8, self.count);
        let mut key = Vec::new();
        for at in 0..self.count {
            let value = self.read(at, &mut key);
            block.push(&key, Some(value));
        }
        block
    }

    /// Bytes in use, of [`PAGE_SIZE`].
    pub(crate) fn used_bytes(&self) -> usize {
        let Some(last) = self.count.checked_sub(1) else { return self.entries_at };
        match (self.sizes.key, self.sizes.value) {
            (Some(key), Some(value)) => {
                let each = usize::from(key) - self.prefix.len() + usize::from(value);
                self.entries_at + self.count * each
            }
            _ => usize::from(u16_at(self.bytes, self.entries_at + 2 * last)),
        }
    }
}

/// Bytes of a leaf with `count` entries whose keys and values add up to `bytes`.
pub(crate) fn leaf_bytes(sizes: Sizes, fences: Fences<'_>, count: usize, bytes: usize) -> usize {
    let each = sizes.overhead();
    FENCES_OFFSET + fences.bytes() + bytes + count * each - count * fences.prefix().len()
}

/// Bytes of a leaf with a part of a block.
pub(crate) fn part_bytes(
    block: &Block,
    sizes: Sizes,
    fences: Fences<'_>,
    (from, to): (usize, usize),
) -> usize {
    leaf_bytes(sizes, fences, to - from, block.content_bytes(from, to))
}

/// A part of a block that makes a leaf, and the fence below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) low: Vec<u8>,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// Divides a block among as few leaves as hold it, as evenly as the sizes of its entries allow.
pub(crate) fn divide(block: &Block, sizes: Sizes, fences: Fences<'_>) -> Vec<Part> {
    let whole = part_bytes(block, sizes, fences, (0, block.len()));

    // The least number of leaves may not do: each leaf has its own fences and prefix.
    let least = whole.div_ceil(PAGE_SIZE).max(1);
    for parts in least..=block.len().max(1) {
        if let Some(parts) = divide_into(parts, block, sizes, fences) {
            return parts;
        }
    }
    unreachable!("an entry fits into a leaf of its own")
}

/// Divides a block among `parts` leaves; `None` if one of them would not fit into its page.
fn divide_into(parts: usize, block: &Block, sizes: Sizes, fences: Fences<'_>) -> Option<Vec<Part>> {
    let weigh = |at: usize| block.content_bytes(0, at) + at * sizes.overhead();
    let whole = weigh(block.len());
    let mut divided: Vec<Part> = Vec::with_capacity(parts);
    let mut low = fences.low;
    let mut from = 0;

    for part in 1..=parts {
        let goal = whole * part / parts;
        let left = parts - part;
        let to = if left == 0 {
            block.len()
        } else {
            // The cut nearest to the goal that leaves an entry for each part to come.
            let mut low_at = from + 1;
            let mut high_at = block.len() - left;
            while low_at < high_at {
                let middle = (low_at + high_at) / 2;
                if weigh(middle) < goal { low_at = middle + 1 } else { high_at = middle }
            }
            if low_at > from + 1 && weigh(low_at) - goal > goal.saturating_sub(weigh(low_at - 1)) {
                low_at - 1
            } else {
                low_at
            }
        };

        let high = match left {
            0 => fences.high,
            _ => Some(separator(block.key(to - 1), block.key(to))),
        };

        let own = Fences { low, high };
        if part_bytes(block, sizes, own, (from, to)) > PAGE_SIZE {
            return None;
        }
        divided.push(Part { low: low.to_vec(), from, to });
        low = high.unwrap_or_default();
        from = to;
    }

    debug_assert_eq!(from, block.len(), "every entry has a leaf");
    Some(divided)
}

/// Writes the body of a leaf into a page of zeros, into which the entries must fit.
pub(crate) fn write<'a>(
    bytes: &mut [u8],
    sizes: Sizes,
    fences: Fences<'_>,
    entries: impl ExactSizeIterator<Item = EntryRef<'a>>,
) {
    let prefix_len = fences.prefix().len();
    let high_len = fences.high.map_or(NONE, |high| high.len() as u16);
    let fields = [
        fences.low.len() as u16,
        high_len,
        prefix_len as u16,
        sizes.key.unwrap_or(NONE),
        sizes.value.unwrap_or(NONE),
        0,
    ];

    for (at, field) in fields.into_iter().enumerate() {
        bytes[BODY_OFFSET + 2 * at..][..2].copy_from_slice(&field.to_le_bytes());
    }

    debug_assert!(fences.high.is_none_or(|high| fences.low < high), "fences ascend");
    let mut end = FENCES_OFFSET;
    let mut put = |bytes: &mut [u8], what: &[u8]| {
        bytes[end..end + what.len()].copy_from_slice(what);
        end += what.len();
        end
    };

    put(bytes, fences.low);
    let entries_at = put(bytes, fences.high.unwrap_or_default());
    if !sizes.are_fixed() {
        // Room for the ends of the entries, which are known only behind them.
        for _ in 0..entries.len() {
            put(bytes, &[0; 2]);
        }
    }

    for (at, (key, value)) in entries.enumerate() {
        let suffix = &key[prefix_len..];
        if sizes.key.is_none() {
            put(bytes, &(suffix.len() as u16).to_le_bytes());
        }
        put(bytes, suffix);
        let end = put(bytes, value.unwrap_or_default());
        if !sizes.are_fixed() {
            bytes[entries_at + 2 * at..][..2].copy_from_slice(&(end as u16).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrane_testkit::ChaCha8Rng;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;
    use crate::page::page::{Header, Kind, seal};

    fn page_of(block: &Block, sizes: Sizes, fences: Fences<'_>, part: (usize, usize)) -> Page {
        let mut bytes = [0; PAGE_SIZE];
        let entries = (part.0..part.1).map(|at| block.get(at)).collect::<Vec<_>>();
        write(&mut bytes, sizes, fences, entries.into_iter());

        let count = (part.1 - part.0) as u16;
        let header = Header {
            kind: Kind::Leaf,
            level: 0,
            count,
            tree: 1,
            generation: 1,
            number: 2,
            step: 0,
        };

        seal(&mut bytes, &header);
        Leaf::check(&bytes, sizes).unwrap();
        Page::new(&bytes)
    }

    fn draw_entries(rng: &mut ChaCha8Rng, sizes: Sizes) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let shared = rng.bytes(rng.clone().below(24) as usize);
        let count = rng.below(300);
        (0..count)
            .map(|_| {
                let key_len = sizes.key.map_or_else(|| rng.below(60) as usize, usize::from);
                let mut key = [&shared[..], &rng.bytes(64)].concat();
                key.truncate(key_len);
                let value_len = sizes.value.map_or_else(|| rng.below(200) as usize, usize::from);
                (key, rng.bytes(value_len))
            })
            .collect()
    }

    #[test]
    fn leaves_hold_what_was_divided_among_them() {
        let shapes = [(Some(32), Some(13)), (Some(32), None), (None, Some(8)), (None, None)];
        for_each_seed("leaves_hold_what_was_divided_among_them", 60, |rng, seed| {
            let (key, value) = shapes[(seed % 4) as usize];
            let sizes = Sizes { key, value };
            let model = draw_entries(rng, sizes);
            let mut block = Block::default();
            for (key, value) in &model {
                block.push(key, Some(value));
            }
            let parts = divide(&block, sizes, Fences::ALL);
            let mut found = BTreeMap::new();
            for (number, part) in parts.iter().enumerate() {
                let high = parts.get(number + 1).map(|next| next.low.as_slice());
                let fences = Fences { low: &part.low, high };
                let page = page_of(&block, sizes, fences, (part.from, part.to));
                let leaf = Leaf::of(&page);
                assert_eq!(leaf.fences(), fences);
                leaf.check_order().unwrap();
                for (key, value) in leaf.to_block().iter() {
                    assert_eq!(leaf.find(key), value);
                    found.insert(key.to_vec(), value.unwrap().to_vec());
                    let mut other = key.to_vec();
                    other.push(0);
                    assert_eq!(leaf.find(&other).is_some(), model.contains_key(&other));
                }
            }
            assert_eq!(found, model);
        });
    }

    #[test]
    fn two_of_the_largest_entries_fit_between_the_longest_fences() {
        let sizes = Sizes { key: None, value: None };
        let entry = KEY_BYTES_MAX + VALUE_BYTES_MAX;
        let low = vec![1; KEY_BYTES_MAX];
        let high = vec![2; KEY_BYTES_MAX];
        let fences = Fences { low: &low, high: Some(&high) };
        assert!(leaf_bytes(sizes, fences, 2, 2 * entry) <= PAGE_SIZE);
    }

    #[test]
    fn separators_are_as_short_as_the_keys_allow() {
        assert_eq!(separator(b"abcdefg", b"accdefg"), b"ac");
        assert_eq!(separator(b"INDEX", b"INODE"), b"INO");
        assert_eq!(separator(b"", b"x"), b"x");
        assert_eq!(separator(b"a", b"ab"), b"ab");
    }

    #[test]
    fn no_bytes_of_a_leaf_can_hurt() {
        for_each_seed("no_bytes_of_a_leaf_can_hurt", 300, |rng, seed| {
            let sizes = Sizes { key: None, value: (seed % 2 == 0).then_some(4) };
            let mut bytes = [0; PAGE_SIZE];
            let mut block = Block::default();
            for (key, value) in draw_entries(rng, sizes).iter().take(20) {
                block.push(key, Some(value));
            }
            let part = &divide(&block, sizes, Fences::ALL)[0];
            let page = page_of(&block, sizes, Fences::ALL, (0, part.to));
            bytes.copy_from_slice(page.bytes());
            for _ in 0..=rng.below(3) {
                let at = 6 + rng.below(200) as usize;
                bytes[at] = rng.below(256) as u8;
            }
            if Leaf::check(&bytes, sizes).is_ok() {
                let page = Page::new(&bytes);
                let leaf = Leaf::of(&page);
                let _ = leaf.check_order();
                for at in 0..leaf.count() {
                    let _ = leaf.search(&leaf.key(at));
                }
                assert!(leaf.used_bytes() <= PAGE_SIZE);
            }
        });
    }
}
