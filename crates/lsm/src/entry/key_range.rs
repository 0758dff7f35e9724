//! Key ranges: the keys between two bounds of any kind.

use std::ops::{Bound, RangeBounds};

/// The keys from one bound to another; none if the bounds cross.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) from: Bound<Vec<u8>>,
    pub(crate) to: Bound<Vec<u8>>,
}

/// The bytes of a bound, if it is one.
pub(crate) fn bound_key(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

impl KeyRange {
    /// All keys.
    pub(crate) const ALL: Self = Self { from: Bound::Unbounded, to: Bound::Unbounded };

    /// The keys of a range of Rust.
    pub(crate) fn new<K: AsRef<[u8]> + ?Sized>(range: &impl RangeBounds<K>) -> Self {
        let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Self { from: owned(range.start_bound()), to: owned(range.end_bound()) }
    }

    /// The keys that begin with `prefix`.
    pub(crate) fn prefix(prefix: &[u8]) -> Self {
        let last = prefix.iter().rposition(|&byte| byte < u8::MAX);
        let to = last.map_or(Bound::Unbounded, |last| {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            debug_assert!(prefix < end.as_slice(), "the end is above all keys of the prefix");
            Bound::Excluded(end)
        });
        Self { from: Bound::Included(prefix.to_vec()), to }
    }

    /// The first `len` bytes, at least one, that all keys of the range have; `None` if they differ,
    /// or one may be shorter.
    pub(crate) fn shared_prefix(&self, len: usize) -> Option<&[u8]> {
        let prefix = bound_key(&self.from)?.get(..len)?;
        // The keys are at or above the prefix, so they have it if they are below its end.
        let is_within = match (&self.to, Self::prefix(prefix).to) {
            (Bound::Included(to), Bound::Excluded(end)) => *to < end,
            (Bound::Excluded(to), Bound::Excluded(end)) => *to <= end,
            (Bound::Unbounded, Bound::Excluded(_)) => false,
            // No key without a prefix of the largest bytes alone is above it.
            (_, Bound::Unbounded | Bound::Included(_)) => true,
        };
        is_within.then_some(prefix)
    }

    /// Those of the keys that are at or above `from`, or just above it.
    pub(crate) fn from(&self, from: Bound<Vec<u8>>) -> Self {
        let is_narrower = match &from {
            Bound::Included(key) => !self.is_below(key),
            Bound::Excluded(key) => {
                !matches!(&self.from, Bound::Included(own) | Bound::Excluded(own) if own > key)
            }
            Bound::Unbounded => false,
        };
        let from = if is_narrower { from } else { self.from.clone() };
        Self { from, to: self.to.clone() }
    }

    /// Those of the keys that are at or below `to`, or just below it.
    pub(crate) fn to(&self, to: Bound<Vec<u8>>) -> Self {
        let is_narrower = match &to {
            Bound::Included(key) => !self.is_above(key),
            Bound::Excluded(key) => {
                !matches!(&self.to, Bound::Included(own) | Bound::Excluded(own) if own < key)
            }
            Bound::Unbounded => false,
        };
        let to = if is_narrower { to } else { self.to.clone() };
        Self { from: self.from.clone(), to }
    }

    /// Whether `key` comes before the range.
    pub(crate) fn is_below(&self, key: &[u8]) -> bool {
        match &self.from {
            Bound::Included(from) => key < from.as_slice(),
            Bound::Excluded(from) => key <= from.as_slice(),
            Bound::Unbounded => false,
        }
    }

    /// Whether `key` comes after the range.
    pub(crate) fn is_above(&self, key: &[u8]) -> bool {
        match &self.to {
            Bound::Included(to) => key > to.as_slice(),
            Bound::Excluded(to) => key >= to.as_slice(),
            Bound::Unbounded => false,
        }
    }

    /// Whether no key from `min` to `max` is in the range.
    pub(crate) fn misses(&self, min: &[u8], max: &[u8]) -> bool {
        self.is_below(max) || self.is_above(min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_string_of_its_length_or_shorter() {
        let end = |prefix: &[u8]| KeyRange::prefix(prefix).to;
        assert_eq!(end(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(end(b"a\xFF\xFF"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(end(b"\xFF\xFF"), Bound::Unbounded);
        assert_eq!(end(b""), Bound::Unbounded);
    }

    /// All pairs of bounds over short keys of three different bytes: what is called shared is that
    /// of every key in between, and a range of one prefix is known as such.
    #[test]
    fn the_prefix_of_a_range_is_that_of_all_its_keys() {
        let bytes = [0, 7, u8::MAX];
        let mut keys: Vec<Vec<u8>> = vec![Vec::new()];
        for len in 0..3 {
            let longest: Vec<_> = keys.iter().filter(|key| key.len() == len).cloned().collect();
            let longer = |key: &Vec<u8>| bytes.map(|byte| [key.as_slice(), &[byte]].concat());
            keys.extend(longest.iter().flat_map(longer));
        }
        let mut bounds = vec![Bound::Unbounded];
        for key in &keys {
            bounds.extend([Bound::Included(key.clone()), Bound::Excluded(key.clone())]);
        }

        let mut shared = 0;
        for from in &bounds {
            for to in &bounds {
                let range = KeyRange { from: from.clone(), to: to.clone() };
                let Some(prefix) = range.shared_prefix(2) else { continue };
                let mut within =
                    keys.iter().filter(|key| !range.is_below(key) && !range.is_above(key));
                assert!(within.all(|key| key.starts_with(prefix)), "{range:?}");
                shared += 1;
            }
        }
        assert!(shared > 100, "{shared}");

        for prefix in keys.iter().filter(|key| key.len() >= 2) {
            assert_eq!(KeyRange::prefix(prefix).shared_prefix(2), Some(&prefix[..2]));
            assert_eq!(KeyRange::prefix(prefix).shared_prefix(4), None);
        }
        assert_eq!(KeyRange::ALL.shared_prefix(1), None);
    }

    /// All pairs of bounds over a few keys: what is left has exactly the keys that both ranges
    /// have.
    #[test]
    fn narrowing_leaves_the_keys_that_meet_both_bounds() {
        let keys: Vec<Vec<u8>> = (0..=4).map(|n| vec![n]).collect();
        let mut bounds = vec![Bound::Unbounded];
        for key in &keys {
            bounds.extend([Bound::Included(key.clone()), Bound::Excluded(key.clone())]);
        }

        let holds = |range: &KeyRange, key: &[u8]| !range.is_below(key) && !range.is_above(key);
        for first in &bounds {
            for second in &bounds {
                let above = KeyRange { from: first.clone(), to: Bound::Unbounded };
                let below = KeyRange { from: Bound::Unbounded, to: first.clone() };
                let above_both = above.from(second.clone());
                let below_both = below.to(second.clone());
                let above_second = KeyRange { from: second.clone(), to: Bound::Unbounded };
                let below_second = KeyRange { from: Bound::Unbounded, to: second.clone() };

                for key in &keys {
                    let both = holds(&above, key) && holds(&above_second, key);
                    assert_eq!(holds(&above_both, key), both, "{first:?} {second:?} {key:?}");
                    let both = holds(&below, key) && holds(&below_second, key);
                    assert_eq!(holds(&below_both, key), both, "{first:?} {second:?} {key:?}");
                }
            }
        }
    }
}
