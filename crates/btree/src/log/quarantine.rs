//! Ranges of keys that draining leaves out, as a page that they need is damaged.
//!
//! Their updates stay in the buffer, and are written to the log again when it would have to be kept for them, until a repair or
//! a scrub has mended the page; all other ranges go on.
//!
//! Invariant: there are at most [`LEFT_OUT_MAX`] of them.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::log::pending::Deltas;

/// Most ranges: beyond that an index is too damaged to go on with.
const LEFT_OUT_MAX: usize = 1_000;

/// Ranges by their first key: where each ends. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    ranges: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl LeftOut {
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Notes a range; whether there was room for it.
    pub(crate) fn note(&mut self, low: &[u8], high: Option<&[u8]>) -> bool {
        if self.ranges.len() >= LEFT_OUT_MAX && !self.ranges.contains_key(low) {
            return false;
        }
        self.ranges.insert(low.to_vec(), high.map(<[u8]>::to_vec));
        true
    }

    /// Forgets the ranges that begin between two keys.
    pub(crate) fn forget(&mut self, low: &[u8], high: Option<&[u8]>) {
        self.ranges.retain(|start, _| {
            start.as_slice() < low || high.is_some_and(|high| start.as_slice() >= high)
        });
    }

    pub(crate) fn begins_at(&self, low: &[u8]) -> bool {
        self.ranges.contains_key(low)
    }

    /// Where draining from a key on ends: with the range that the key is in, or before the next one.
    pub(crate) fn end_from(&self, key: &[u8]) -> Option<Vec<u8>> {
        let up_to = (Bound::Unbounded, Bound::Included(key));
        let own = self.ranges.range::<[u8], _>(up_to).next_back();
        if let Some((_, high)) = own
            && high.as_ref().is_none_or(|high| key < high.as_slice())
        {
            return high.clone();
        }
        let above = (Bound::Excluded(key), Bound::Unbounded);
        self.ranges.range::<[u8], _>(above).next().map(|(low, _)| low.clone())
    }

    /// The first update that is in none of the ranges.
    pub(crate) fn first_outside(&self, updates: &Deltas) -> Option<Vec<u8>> {
        let first = |low: &[u8], high: Option<&[u8]>| {
            updates.range(low, high).next().map(|(key, _)| key.to_vec())
        };
        let mut from: &[u8] = &[];
        for (low, high) in &self.ranges {
            if let Some(found) = first(from, Some(low)) {
                return Some(found);
            }
            from = from.max(high.as_deref()?);
        }
        first(from, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_outside_are_found_and_ranges_end_what_begins_before_or_in_them() {
        let mut left_out = LeftOut::default();
        assert!(left_out.note(b"d", Some(b"f")) && left_out.note(b"m", None));
        assert_eq!(left_out.end_from(b"a"), Some(b"d".to_vec()));
        assert_eq!(left_out.end_from(b"d"), Some(b"f".to_vec()));
        assert_eq!(left_out.end_from(b"e"), Some(b"f".to_vec()));
        assert_eq!(left_out.end_from(b"f"), Some(b"m".to_vec()));
        assert_eq!(left_out.end_from(b"z"), None);
        let mut updates = Deltas::default();
        for (key, expected) in [(b"n", None), (b"d", None), (b"g", Some(b"g")), (b"c", Some(b"c"))]
        {
            updates.insert(key, None);
            assert_eq!(left_out.first_outside(&updates), expected.map(|key| key.to_vec()));
        }
        left_out.forget(b"a", Some(b"m"));
        assert_eq!(left_out.len(), 1);
        assert!(left_out.begins_at(b"m") && !left_out.begins_at(b"d"));
        for number in 0..2 * LEFT_OUT_MAX as u64 {
            left_out.note(&number.to_le_bytes(), None);
        }
        assert_eq!(left_out.len(), LEFT_OUT_MAX);
        assert!(left_out.note(b"m", Some(b"n")));
    }
}
