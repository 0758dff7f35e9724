//! Quarantine: ranges of keys whose updates cannot be applied, as a page that they need is damaged.
//!
//! Their updates stay in the buffer. The writer appends them to the WAL again once the WAL has
//! grown by several times as much, so that its old part can go. All other ranges go on. A repair or
//! a scrub that mends the page ends the quarantine. A leaf that should be joined with a damaged one
//! stays alone.
//!
//! Invariant: there are at most [`RANGES_MAX`] ranges.
//!
//! Rejected: keeping the WAL for these updates (it would never be cut again); refusing all updates
//! until a repair (for one leaf of millions).

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::log::pending::UpdateBuffer;

/// Most ranges. An index with more damage is not worth going on with.
const RANGES_MAX: usize = 1_000;

/// Ends of the ranges by their first keys. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    ranges: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Quarantine {
    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Adds a range. Returns false if there are too many.
    pub(crate) fn note(&mut self, low: &[u8], high: Option<&[u8]>) -> bool {
        if self.ranges.len() >= RANGES_MAX && !self.ranges.contains_key(low) {
            return false;
        }
        self.ranges.insert(low.to_vec(), high.map(<[u8]>::to_vec));
        debug_assert!(self.ranges.len() <= RANGES_MAX, "the ranges are bounded");
        true
    }

    /// Removes the ranges that begin from `low` on and below `high`.
    pub(crate) fn forget(&mut self, low: &[u8], high: Option<&[u8]>) {
        self.ranges.retain(|start, _| {
            start.as_slice() < low || high.is_some_and(|high| start.as_slice() >= high)
        });
    }

    /// Whether a range begins at this key.
    pub(crate) fn begins_at(&self, low: &[u8]) -> bool {
        self.ranges.contains_key(low)
    }

    /// End of an apply that begins at `key`: the end of the range around the key, or the start of
    /// the next range.
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
    pub(crate) fn first_outside(&self, updates: &UpdateBuffer) -> Option<Vec<u8>> {
        let first = |low: &[u8], high: Option<&[u8]>| {
            updates.range(low, high).next().map(|(key, _)| key.to_vec())
        };

        let mut from: &[u8] = &[];
        for (low, high) in &self.ranges {
            if let Some(found) = first(from, Some(low)) {
                return Some(found);
            }
            // A range without an end leaves no key behind it.
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
        let mut quarantine = Quarantine::default();
        assert!(quarantine.note(b"d", Some(b"f")) && quarantine.note(b"m", None));
        assert_eq!(quarantine.end_from(b"a"), Some(b"d".to_vec()));
        assert_eq!(quarantine.end_from(b"d"), Some(b"f".to_vec()));
        assert_eq!(quarantine.end_from(b"e"), Some(b"f".to_vec()));
        assert_eq!(quarantine.end_from(b"f"), Some(b"m".to_vec()));
        assert_eq!(quarantine.end_from(b"z"), None);

        let mut updates = UpdateBuffer::default();
        for (key, expected) in [(b"n", None), (b"d", None), (b"g", Some(b"g")), (b"c", Some(b"c"))]
        {
            updates.insert(key, None);
            assert_eq!(quarantine.first_outside(&updates), expected.map(|key| key.to_vec()));
        }

        quarantine.forget(b"a", Some(b"m"));
        assert_eq!(quarantine.len(), 1);
        assert!(quarantine.begins_at(b"m") && !quarantine.begins_at(b"d"));

        for number in 0..2 * RANGES_MAX as u64 {
            quarantine.note(&number.to_le_bytes(), None);
        }

        assert_eq!(quarantine.len(), RANGES_MAX);
        assert!(quarantine.note(b"m", Some(b"n")));
    }
}
