//! Applied positions: how much of the WAL the leaves have, for each range of keys.
//!
//! All updates of a range up to its position are in the tree, or come again in a later frame, as
//! those of a damaged leaf do. The writer applies range by range, always the range that has waited
//! longest, so each range has a position of its own. The WAL is needed from the lowest position on.
//!
//! Invariants: there is always a range that begins with the empty key. The ranges fit into one
//! page, and there are at most [`RANGES_MAX`]. Above that, two neighbours become one with the lower
//! position, which is true for both.

use std::collections::BTreeMap;

use terrane_io::bytes::{Reader, Writer};

use crate::page::page::BODY_BYTES;

/// Most ranges.
pub(crate) const RANGES_MAX: usize = 128;

/// Positions by the first key of their range. See the [module](self).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applied {
    ranges: BTreeMap<Vec<u8>, u64>,
}

impl Applied {
    /// All keys up to one position.
    pub(crate) fn up_to(position: u64) -> Self {
        Self { ranges: BTreeMap::from([(Vec::new(), position)]) }
    }

    /// Position up to which the updates of a key have been applied.
    pub(crate) fn position(&self, key: &[u8]) -> u64 {
        let up_to = (std::ops::Bound::Unbounded, std::ops::Bound::Included(key));
        self.ranges.range::<[u8], _>(up_to).next_back().map_or(0, |(_, &position)| position)
    }

    /// The lowest position, and the first key of the first range that has it.
    pub(crate) fn oldest(&self) -> (u64, &[u8]) {
        let oldest = self.ranges.iter().min_by_key(|(_, position)| **position);
        oldest.map_or((0, &[]), |(start, &position)| (position, start))
    }

    /// The highest position.
    pub(crate) fn newest(&self) -> u64 {
        self.ranges.values().copied().max().unwrap_or(0)
    }

    /// Sets the position of the keys from `low` on and below `high`.
    pub(crate) fn set(&mut self, low: &[u8], high: Option<&[u8]>, position: u64) {
        if let Some(high) = high {
            if high <= low {
                return;
            }

            // Keys behind the range keep the position that they had.
            let after = self.position(high);
            self.ranges.insert(high.to_vec(), after);
        }

        // Ranges that begin within the new one are part of it.
        self.ranges.retain(|start, _| {
            start.as_slice() < low || high.is_some_and(|high| start.as_slice() >= high)
        });

        self.ranges.insert(low.to_vec(), position);

        self.join_equal();

        // Joining loses precision and nothing else: some updates are applied once more.
        while self.ranges.len() > RANGES_MAX || self.encoded_bytes() > BODY_BYTES {
            self.join_nearest();
        }

        debug_assert!(self.ranges.contains_key(&[][..]), "every key has a position");
    }

    /// Raises every position to at least `position`: the WAL is not needed below.
    pub(crate) fn raise(&mut self, position: u64) {
        for at in self.ranges.values_mut() {
            *at = position.max(*at);
        }
        self.join_equal();
    }

    /// Bytes of the ranges in their page.
    fn encoded_bytes(&self) -> usize {
        self.ranges.keys().map(|start| start.len() + 10).sum()
    }

    /// Joins neighbours with equal positions.
    fn join_equal(&mut self) {
        let mut previous = None;
        self.ranges.retain(|_, position| previous.replace(*position) != Some(*position));
    }

    /// Joins the two neighbours whose positions are nearest to each other.
    fn join_nearest(&mut self) {
        let neighbours = self.ranges.iter().zip(self.ranges.iter().skip(1));
        let nearest = neighbours.min_by_key(|((_, a), (_, b))| a.abs_diff(**b));
        let Some(((left, &a), (right, &b))) = nearest else { return };
        let left = left.clone();
        let right = right.clone();

        self.ranges.remove(&right);
        self.ranges.insert(left, a.min(b));
        self.join_equal();
    }

    /// The number of ranges, for the header of their page, and the body of the page.
    pub(crate) fn encode(&self) -> (u16, Vec<u8>) {
        let mut out = Writer::new();
        for (start, position) in &self.ranges {
            out.u64(*position).u16(start.len() as u16).put(start);
        }
        assert!(out.bytes().len() <= BODY_BYTES, "the ranges fit into a page");
        (self.ranges.len() as u16, out.into_bytes())
    }

    /// Reads the body of a page; `None` if it is malformed.
    pub(crate) fn decode(count: usize, body: &[u8]) -> Option<Self> {
        let mut input = Reader::new(body);
        let mut ranges = BTreeMap::new();
        for _ in 0..count {
            let position = input.u64().ok()?;
            let len = usize::from(input.u16().ok()?);
            let start = input.take(len).ok()?.to_vec();

            let ascends = ranges.last_key_value().is_none_or(|(last, _)| *last < start);
            if !ascends || (ranges.is_empty() && !start.is_empty()) {
                return None;
            }
            ranges.insert(start, position);
        }

        (!ranges.is_empty()).then_some(Self { ranges })
    }
}

#[cfg(test)]
mod tests {
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;

    #[test]
    fn positions_are_never_above_what_was_applied() {
        for_each_seed("positions_are_never_above_what_was_applied", 6, |rng, seed| {
            let mut applied = Applied::up_to(0);
            let mut model = vec![0_u64; 1_000];
            let key = |at: usize| format!("{at:03}").into_bytes();
            for position in 1..400 {
                let low = rng.index(1_000);
                let high = (rng.chance(9, 10)).then(|| (low + 1 + rng.index(40)).min(999));
                let high_key = high.map(key);
                applied.set(&key(low), high_key.as_deref(), position);
                if high.is_none_or(|high| high > low) {
                    model[low..high.unwrap_or(1_000)].fill(position);
                }
                let exact = applied.ranges.len() < RANGES_MAX && seed % 2 == 0 && position < 40;
                for (at, &expected) in model.iter().enumerate() {
                    let found = applied.position(&key(at));
                    assert!(found <= expected);
                    assert!(!exact || found == expected, "{at}: {found} of {expected}");
                }
                assert!(applied.ranges.len() <= RANGES_MAX);
                let (oldest, start) = applied.oldest();
                assert_eq!(applied.position(start), oldest);
                assert!(
                    model.iter().enumerate().all(|(at, _)| applied.position(&key(at)) >= oldest)
                );
            }
            let (count, body) = applied.encode();
            assert_eq!(Applied::decode(usize::from(count), &body), Some(applied));
            for cut in 0..body.len() {
                assert_eq!(Applied::decode(usize::from(count), &body[..cut]), None);
            }
        });
    }
}
