//! Masks: the ranges of keys that range deletions have removed from a source.
//!
//! A range deletion writes no tombstones. It gives each source that a table has at that moment,
//! segments of the memtable, runs, merges under way and a union, a *mask*: a view of the source
//! in which the keys of the range are not there. Sources that come later have no such mask, so
//! newer entries of these keys are seen. A merge reads its inputs through their masks, and jumps
//! over what these cover; its output needs none of them.
//!
//! Invariant: the spans of a mask are in key order, and between two of them stands at least one
//! possible key. A range deletion masks all sources of a table that are older than it. So if two
//! tables have a source in common under the same mask, what is older than the source amounts to the
//! same in both.

use std::ops::{Bound, Range};
use std::sync::Arc;

use terrane_io::bytes::{Overrun, Reader, Writer};

use crate::entry::entry::KEY_BYTES_MAX;
use crate::entry::key_range::KeyRange;

/// Spans that a mask has, unless each further one removes many keys. A mask is copied with each
/// deleted range, and written with each snapshot and checkpoint.
const MASK_SPANS_MAX: usize = 1_000;

/// Longest bound of a span: the key behind the longest one.
pub(crate) const SPAN_KEY_BYTES_MAX: usize = KEY_BYTES_MAX + 1;

/// The keys from one on, up to but not including another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) from: Vec<u8>,
    /// `None`: to the last key.
    pub(crate) end: Option<Vec<u8>>,
}

impl Span {
    /// The span of a range; `None` if the range has no key.
    pub(crate) fn of(range: &KeyRange) -> Option<Self> {
        let behind = |key: &[u8]| [key, &[0]].concat();
        let from = match &range.from {
            Bound::Included(key) => key.clone(),
            Bound::Excluded(key) => behind(key),
            Bound::Unbounded => Vec::new(),
        };

        let end = match &range.to {
            Bound::Included(key) => Some(behind(key)),
            Bound::Excluded(key) => Some(key.clone()),
            Bound::Unbounded => None,
        };

        let span = Self { from: clipped(from), end: end.map(clipped) };
        (!span.is_empty()).then_some(span)
    }

    /// The span as a range.
    pub(crate) fn range(&self) -> KeyRange {
        let to = self.end.clone().map_or(Bound::Unbounded, Bound::Excluded);
        KeyRange { from: Bound::Included(self.from.clone()), to }
    }

    /// Whether it has no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.from)
    }

    /// Whether it has every key.
    pub(crate) fn is_everything(&self) -> bool {
        self.from.is_empty() && self.end.is_none()
    }

    /// Whether all of it is at or below `key`.
    fn ends_by(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_some_and(|end| end.as_slice() <= key)
    }

    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        self.from.as_slice() <= key && !self.ends_by(key)
    }
}

/// A bound that as many keys are below as are below `key`, and that is not too long.
fn clipped(mut key: Vec<u8>) -> Vec<u8> {
    // No key is longer than `KEY_BYTES_MAX`, so the cut bound with a 0 behind it divides the same
    // keys.
    if key.len() > SPAN_KEY_BYTES_MAX {
        key.truncate(KEY_BYTES_MAX);
        key.push(0);
    }
    debug_assert!(key.len() <= SPAN_KEY_BYTES_MAX);
    key
}

/// The spans of keys that a source is read without. Clones share them.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mask {
    /// `None` for no spans, so that sources without a mask cost nothing.
    spans: Option<Arc<Vec<Span>>>,
}

impl Mask {
    pub(crate) fn spans(&self) -> &[Span] {
        self.spans.as_ref().map_or(&[], |spans| spans.as_slice())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_none()
    }

    /// The span that covers a key.
    pub(crate) fn span_of(&self, key: &[u8]) -> Option<&Span> {
        let spans = self.spans();
        // Spans are in key order, so the first span that does not end by the key is the only
        // candidate.
        let at = spans.partition_point(|span| span.ends_by(key));
        spans.get(at).filter(|span| span.covers(key))
    }

    #[inline]
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        !self.is_empty() && self.span_of(key).is_some()
    }

    /// Whether one span covers all keys from `min` to `max`.
    pub(crate) fn covers_all(&self, min: &[u8], max: &[u8]) -> bool {
        self.span_of(min).is_some_and(|span| span.covers(max))
    }

    /// The spans that one more span overlaps or touches.
    fn joining(&self, span: &Span) -> Range<usize> {
        let spans = self.spans();
        let is_before = |old: &Span| old.end.as_ref().is_some_and(|end| *end < span.from);
        let is_not_behind = |old: &Span| span.end.as_ref().is_none_or(|end| old.from <= *end);
        let first = spans.partition_point(is_before);
        first..spans.partition_point(is_not_behind).max(first)
    }

    /// Whether the mask with one more span has no more than it may have, or no more than now.
    pub(crate) fn has_room_for(&self, span: &Span) -> bool {
        // A span that joins others adds none to the mask.
        self.spans().len() < MASK_SPANS_MAX || !self.joining(span).is_empty()
    }

    /// The mask with one more span. Spans that overlap it or touch it become one with it.
    ///
    /// Cost: that of copying the mask.
    pub(crate) fn with(&self, span: &Span) -> Self {
        if span.is_empty() {
            return self.clone();
        }

        let (spans, Range { start: first, end }) = (self.spans(), self.joining(span));
        debug_assert!(first <= end && end <= spans.len());
        let mut joined = span.clone();
        for old in &spans[first..end] {
            if old.from < joined.from {
                joined.from.clone_from(&old.from);
            }
            let reaches_further = match (&old.end, &joined.end) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(old), Some(joined)) => old > joined,
            };
            if reaches_further {
                joined.end.clone_from(&old.end);
            }
        }

        debug_assert!(joined.from <= span.from && !joined.is_empty(), "a span only grows");
        let all = [&spans[..first], std::slice::from_ref(&joined), &spans[end..]].concat();
        debug_assert!(is_in_order(&all));
        debug_assert!(all.len() <= spans.len() + 1, "a span adds at most itself");
        Self { spans: Some(Arc::new(all)) }
    }

    /// The mask of what either mask covers.
    pub(crate) fn union(&self, other: &Self) -> Self {
        if self.is_empty() || self == other {
            return other.clone();
        }
        other.spans().iter().fold(self.clone(), |all, span| all.with(span))
    }

    /// Memory of the spans, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let bytes = |span: &Span| span.from.len() + span.end.as_ref().map_or(0, Vec::len);
        self.spans().iter().map(|span| size_of::<Span>() + bytes(span)).sum()
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u32(self.spans().len() as u32);
        for Span { from, end } in self.spans() {
            out.string(from).u8(end.is_some().into());
            if let Some(end) = end {
                out.string(end);
            }
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` for what is no mask.
    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Option<Self>, Overrun> {
        let count = input.u32()?;

        // Not allocated ahead: the count has not been checked against the bytes that are there.
        let mut spans = Vec::new();
        for _ in 0..count {
            let from = input.string()?.to_vec();
            let end = match input.u8()? {
                0 => None,
                1 => Some(input.string()?.to_vec()),
                _ => return Ok(None),
            };
            spans.push(Span { from, end });
        }

        let is_short = |span: &Span| {
            span.from.len().max(span.end.as_ref().map_or(0, Vec::len)) <= SPAN_KEY_BYTES_MAX
        };

        if !is_in_order(&spans) || !spans.iter().all(is_short) {
            return Ok(None);
        }

        Ok(Some(Self { spans: (!spans.is_empty()).then(|| Arc::new(spans)) }))
    }
}

/// Whether spans can be those of a mask.
fn is_in_order(spans: &[Span]) -> bool {
    let follows = |pair: &[Span]| pair[0].end.as_ref().is_some_and(|end| *end < pair[1].from);
    spans.iter().all(|span| !span.is_empty()) && spans.windows(2).all(follows)
}

/// Adds one span to masks. Sources that shared a mask share the new one.
#[derive(Debug)]
pub(crate) struct Masking<'a> {
    pub(crate) span: &'a Span,
    done: Vec<(Mask, Mask)>,
}

impl<'a> Masking<'a> {
    pub(crate) fn new(span: &'a Span) -> Self {
        Self { span, done: Vec::new() }
    }

    pub(crate) fn on(&mut self, mask: &Mask) -> Mask {
        // Addresses suffice: sources that were masked together share the allocation.
        let are_same = |old: &Mask| match (&old.spans, &mask.spans) {
            (Some(old), Some(mask)) => Arc::ptr_eq(old, mask),
            (None, None) => true,
            _ => false,
        };
        if let Some((_, new)) = self.done.iter().find(|(old, _)| are_same(old)) {
            return new.clone();
        }
        let new = mask.with(self.span);
        debug_assert!(self.span.is_empty() || !new.is_empty());
        self.done.push((mask.clone(), new.clone()));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from: u8, end: u8) -> Span {
        Span { from: vec![from], end: (end < 16).then(|| vec![end]) }
    }

    /// All pairs of spans on top of a third: the mask covers what any of them covers, in as few
    /// spans as can be.
    #[test]
    fn a_mask_covers_what_its_spans_cover() {
        for first in 0..256_u32 {
            for second in (first % 251..65_536_u32).step_by(251) {
                let numbers = [first, second & 0xFF, second >> 8];

                let spans = numbers.map(|n| span((n & 15) as u8, (n >> 4) as u8 + 1));
                let mut mask = Mask::default();
                for span in &spans {
                    mask = mask.with(span);
                }

                assert!(is_in_order(mask.spans()), "{spans:?}: {mask:?}");
                for key in 0..17 {
                    let expected = spans.iter().any(|span| span.covers(&[key]));
                    assert_eq!(mask.covers(&[key]), expected, "{spans:?}, key {key}: {mask:?}");
                }

                let halves = [&spans[..1], &spans[1..]];
                let [one, other] = halves
                    .map(|spans| spans.iter().fold(Mask::default(), |mask, span| mask.with(span)));
                assert_eq!(one.union(&other), mask);
                let mut out = Writer::new();
                mask.encode(&mut out);
                let decoded = Mask::decode(&mut Reader::new(out.bytes())).unwrap();
                assert_eq!(decoded.unwrap_or_default(), mask);
            }
        }
    }

    #[test]
    fn spans_are_those_of_ranges_with_bounds_of_all_kinds() {
        let of = |from, to| Span::of(&KeyRange { from, to });
        let key = |key: &[u8]| key.to_vec();
        assert!(of(Bound::Unbounded, Bound::Unbounded).unwrap().is_everything());
        assert_eq!(of(Bound::Included(key(b"b")), Bound::Excluded(key(b"b"))), None);
        assert_eq!(of(Bound::Excluded(key(b"b")), Bound::Included(key(b"b"))), None);
        assert_eq!(of(Bound::Included(key(b"c")), Bound::Included(key(b"b"))), None);
        let one = of(Bound::Included(key(b"b")), Bound::Included(key(b"b"))).unwrap();
        assert!(one.covers(b"b") && !one.covers(b"a") && !one.covers(b"b\0"));

        // Longer than any key: what begins with it is nothing, what is above it is not.
        let long = vec![1; KEY_BYTES_MAX + 5];
        assert_eq!(of(Bound::Included(long.clone()), Bound::Included(long.clone())), None);
        let below = of(Bound::Unbounded, Bound::Excluded(long.clone())).unwrap();
        let above = of(Bound::Excluded(long.clone()), Bound::Unbounded).unwrap();
        let longest = &long[..KEY_BYTES_MAX];
        assert!(below.covers(longest) && !above.covers(longest));

        assert!(above.covers(&[2]) && !below.covers(&[2]));
    }

    /// Spans out of order, empty, touching, too long, or of an unknown tag are refused, and bytes
    /// that end too early.
    #[test]
    fn what_is_no_mask_is_refused() {
        let decode = |spans: &[Span]| {
            let mask = Mask { spans: Some(Arc::new(spans.to_vec())) };
            let mut out = Writer::new();
            mask.encode(&mut out);
            Mask::decode(&mut Reader::new(out.bytes())).unwrap()
        };

        let long = Span { from: vec![1; SPAN_KEY_BYTES_MAX], end: None };
        assert!(decode(&[span(1, 2), span(3, 16)]).is_some() && decode(&[long]).is_some());
        let too_long = Span { from: vec![1; SPAN_KEY_BYTES_MAX + 1], end: None };

        for refused in [
            &[span(3, 4), span(1, 2)][..],
            &[span(1, 2), span(2, 3)],
            &[span(2, 2)],
            &[span(1, 16), span(3, 4)],
            &[too_long],
        ] {
            assert_eq!(decode(refused), None, "{refused:?}");
        }

        let mut out = Writer::new();
        Mask::default().with(&span(1, 2)).encode(&mut out);

        let mut bytes = out.bytes().to_vec();
        (0..bytes.len()).for_each(|end| {
            Mask::decode(&mut Reader::new(&bytes[..end])).unwrap_err();
        });

        bytes[9] = 2;
        assert_eq!(Mask::decode(&mut Reader::new(&bytes)), Ok(None));
    }
}
