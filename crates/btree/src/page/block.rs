//! Sorted entries in memory, packed: the raw material of leaves and of the buffer of updates.
//!
//! An entry is a key with a value or without. In the buffer an entry without a value removes its
//! key. Entries stand back to back: length of the key (2 bytes), length of the value (2 bytes,
//! `0xFFFF` for none), key, value.
//!
//! Invariant: keys ascend strictly; `starts[i]` is the offset of entry `i`.

use terrane_io::key_order::compare_keys;

/// Longest key, in bytes. Two entries of any sizes fit into a leaf.
pub const KEY_BYTES_MAX: usize = 512;

/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 768;

/// Stored length of a missing value.
pub(crate) const REMOVED: u16 = u16::MAX;

/// Bytes of an entry besides its key and value.
pub(crate) const ENTRY_HEAD_BYTES: usize = 4;

/// A key with its value, or without one.
pub(crate) type EntryRef<'a> = (&'a [u8], Option<&'a [u8]>);

/// Sorted entries. See the [module](self).
#[derive(Debug, Clone, Default)]
pub(crate) struct Block {
    data: Vec<u8>,
    starts: Vec<u32>,
}

impl Block {
    /// An empty block with room for `bytes` bytes in `entries` entries.
    pub(crate) fn with_capacity(bytes: usize, entries: usize) -> Self {
        Self { data: Vec::with_capacity(bytes), starts: Vec::with_capacity(entries) }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Bytes of keys, values and lengths.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Bytes of the keys and values of a range of entries.
    pub(crate) fn content_bytes(&self, from: usize, to: usize) -> usize {
        debug_assert!(from <= to && to <= self.len(), "a range of entries");
        let start_of = |at: usize| self.starts.get(at).map_or(self.data.len(), |&s| s as usize);
        start_of(to) - start_of(from) - (to - from) * ENTRY_HEAD_BYTES
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.data.capacity() + self.starts.capacity() * size_of::<u32>()
    }

    /// Entry `at`.
    pub(crate) fn get(&self, at: usize) -> EntryRef<'_> {
        let entry = &self.data[self.starts[at] as usize..];
        let key_len = usize::from(u16::from_le_bytes([entry[0], entry[1]]));
        let value_len = u16::from_le_bytes([entry[2], entry[3]]);
        let (key, rest) = entry[ENTRY_HEAD_BYTES..].split_at(key_len);
        let value = (value_len != REMOVED).then(|| &rest[..usize::from(value_len)]);
        (key, value)
    }

    pub(crate) fn key(&self, at: usize) -> &[u8] {
        self.get(at).0
    }

    /// The place of `key`, or the place where it would be.
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let mut low = 0;
        let mut high = self.len();
        while low < high {
            let middle = (low + high) / 2;
            match compare_keys(self.key(middle), key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = EntryRef<'_>> {
        (0..self.len()).map(|at| self.get(at))
    }

    /// Appends an entry whose key is above all others.
    pub(crate) fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        debug_assert!(self.is_empty() || self.key(self.len() - 1) < key);
        self.starts.push(self.data.len() as u32);
        let head = head(key, value);
        self.data.extend_from_slice(&head);
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value.unwrap_or_default());
    }

    /// Sets the entry of a key.
    pub(crate) fn insert(&mut self, key: &[u8], value: Option<&[u8]>) {
        let (at, old_bytes) = match self.search(key) {
            Ok(at) => (at, self.entry_bytes(at)),
            Err(at) if at == self.len() => return self.push(key, value),
            Err(at) => {
                // The new entry begins where the one behind it did.
                self.starts.insert(at, self.starts[at]);
                (at, 0)
            }
        };

        let start = self.starts[at] as usize;
        let new_bytes = entry_bytes(key, value);
        self.resize_at(start, old_bytes, new_bytes);

        // Entries behind this one have moved.
        for later in &mut self.starts[at + 1..] {
            *later = *later + new_bytes as u32 - old_bytes as u32;
        }

        let entry = &mut self.data[start..start + new_bytes];
        entry[..ENTRY_HEAD_BYTES].copy_from_slice(&head(key, value));
        entry[ENTRY_HEAD_BYTES..][..key.len()].copy_from_slice(key);
        entry[ENTRY_HEAD_BYTES + key.len()..].copy_from_slice(value.unwrap_or_default());
    }

    /// Replaces `old` bytes at `start` by room for `new` bytes.
    fn resize_at(&mut self, start: usize, old: usize, new: usize) {
        let end = self.data.len();
        debug_assert!(start + old <= end, "the bytes are there");
        if new > old {
            self.data.resize(end + new - old, 0);
        }
        self.data.copy_within(start + old..end, start + new);
        self.data.truncate(end + new - old);
    }

    fn entry_bytes(&self, at: usize) -> usize {
        self.end_of(at) - self.starts[at] as usize
    }

    fn end_of(&self, at: usize) -> usize {
        self.starts.get(at + 1).map_or(self.data.len(), |&start| start as usize)
    }

    /// Splits the entries from `at` on off into a block of their own.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        debug_assert!(at <= self.len(), "a place among the entries");
        let cut = self.starts.get(at).map_or(self.data.len(), |&start| start as usize);
        // Both parts go on growing.
        let mut upper = Self::with_capacity(self.data.capacity(), self.starts.capacity());
        upper.data.extend_from_slice(&self.data[cut..]);
        upper.starts.extend(self.starts[at..].iter().map(|&start| start - cut as u32));
        self.data.truncate(cut);
        self.starts.truncate(at);
        upper
    }

    /// Removes the entries before `at`, and keeps the memory.
    pub(crate) fn forget_before(&mut self, at: usize) {
        debug_assert!(at <= self.len(), "a place among the entries");
        let cut = self.starts.get(at).map_or(self.data.len(), |&start| start as usize);
        self.data.drain(..cut);
        self.starts.drain(..at);
        for start in &mut self.starts {
            *start -= cut as u32;
        }
    }

    /// The entries of a range, as a block of their own.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Self {
        debug_assert!(to <= self.len(), "a range of entries");
        let mut slice = Self::with_capacity(0, to.saturating_sub(from));
        for at in from..to {
            let (key, value) = self.get(at);
            slice.push(key, value);
        }
        slice
    }

    /// Appends all entries of another block, which must be above all of this one.
    pub(crate) fn append(&mut self, other: &Self) {
        let base = self.data.len() as u32;
        let ascends =
            self.is_empty() || other.is_empty() || self.key(self.len() - 1) < other.key(0);
        debug_assert!(ascends, "blocks are appended in order");
        self.starts.extend(other.starts.iter().map(|start| start + base));
        self.data.extend_from_slice(&other.data);
    }
}

/// Bytes of an entry.
pub(crate) fn entry_bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    ENTRY_HEAD_BYTES + key.len() + value.map_or(0, <[u8]>::len)
}

/// The two lengths that an entry begins with.
fn head(key: &[u8], value: Option<&[u8]>) -> [u8; ENTRY_HEAD_BYTES] {
    let [k0, k1] = (key.len() as u16).to_le_bytes();
    let [v0, v1] = value.map_or(REMOVED, |value| value.len() as u16).to_le_bytes();
    [k0, k1, v0, v1]
}

/// Applies the entries of a buffer to those of the tree below: the buffer's entries win, and
/// removed keys are gone.
pub(crate) fn apply<'a>(below: &Block, above: impl Iterator<Item = EntryRef<'a>>) -> Block {
    let mut merged = Block::with_capacity(below.bytes() + 512, below.len() + 16);
    let mut at = 0;

    for (key, value) in above {
        while at < below.len() && below.key(at) < key {
            let (key, value) = below.get(at);
            merged.push(key, value);
            at += 1;
        }
        if at < below.len() && below.key(at) == key {
            at += 1;
        }
        if value.is_some() {
            merged.push(key, value);
        }
    }

    for at in at..below.len() {
        let (key, value) = below.get(at);
        merged.push(key, value);
    }

    merged
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;

    #[test]
    fn a_block_is_a_sorted_map() {
        for_each_seed("a_block_is_a_sorted_map", 40, |rng, _| {
            let mut block = Block::default();
            let mut model = BTreeMap::new();
            for _ in 0..300 {
                let key = rng.below(100).to_string().into_bytes();
                let value = (!rng.below(4).eq(&0)).then(|| vec![7; rng.below(20) as usize]);
                block.insert(&key, value.as_deref());
                model.insert(key, value);
            }
            let expected: Vec<_> =
                model.iter().map(|(k, v)| (k.as_slice(), v.as_deref())).collect();
            assert_eq!(block.iter().collect::<Vec<_>>(), expected);
            let cut = rng.below(block.len() as u64 + 1) as usize;
            let mut lower = block.clone();
            let upper = lower.split_off(cut);
            assert_eq!(upper.iter().collect::<Vec<_>>(), expected[cut..]);
            assert_eq!(block.slice(0, cut).iter().collect::<Vec<_>>(), expected[..cut]);
            let content = |(key, value): &EntryRef<'_>| key.len() + value.map_or(0, <[u8]>::len);
            let sum = |from: usize, to: usize| expected[from..to].iter().map(content).sum();
            assert_eq!(block.content_bytes(0, cut), sum(0, cut));
            assert_eq!(block.content_bytes(cut, block.len()), sum(cut, expected.len()));
            let mut rest = block.clone();
            rest.forget_before(cut);
            assert_eq!(rest.iter().collect::<Vec<_>>(), expected[cut..]);
            lower.append(&upper);
            assert_eq!(lower.iter().collect::<Vec<_>>(), expected);
        });
    }

    #[test]
    fn what_is_above_wins_and_removes() {
        let of = |entries: &[(&'static str, Option<&'static str>)]| {
            let mut block = Block::default();
            for (key, value) in entries {
                block.push(key.as_bytes(), value.map(str::as_bytes));
            }
            block
        };
        let below = of(&[("b", Some("1")), ("c", Some("2")), ("e", Some("3"))]);
        let above = of(&[("a", None), ("b", Some("")), ("c", None), ("d", Some("4")), ("f", None)]);
        let expected = of(&[("b", Some("")), ("d", Some("4")), ("e", Some("3"))]);
        let merged = apply(&below, above.iter());
        assert_eq!(merged.iter().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    }
}
