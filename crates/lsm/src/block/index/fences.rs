//! Compact index: the first key of each page, cut to a few bits, as an Elias–Fano sequence.
//!
//! All keys lie between two bounds. What the bounds have in common at the front is dropped; the
//! next eight bytes of a key are read as a number, counted from that of the lower bound; and of its
//! bits only the top `ceil(log2(entries)) + 3` are kept, so that for evenly spread keys a value
//! belongs to an eighth of a key or less. The *fence* of a page is the value of its first key. That
//! is 1.3 bytes per page, against 8 and more for keys that are kept whole.
//!
//! Cutting keeps the order of keys but lets different keys have equal values. A key whose value is
//! below the fence of a page is in none of the pages from there on. A key whose value *equals* the
//! fence of its candidate page may still come before that page's first key, and then belongs to the
//! page before; this is [`PageCandidate::earlier`]. For evenly spread keys it costs 0.1 to 0.2 %
//! more reads; for others it is counted exactly while building, see [`Fences::extra_reads`].
//!
//! The format is in `docs/format/index.md`.

use super::elias_fano::{Sequence, SequenceBuilder};
use super::{Bounds, KIND_COMPACT, PageCandidate, eight_bytes};
use crate::corrupt::Corrupt;
use std::cmp::Ordering;
use terrane_io::bytes::{Reader, Writer};

/// Bits kept beyond those that number the entries. Each costs a bit per page and halves the pages
/// that are read in vain: 0.22 % of all reads for 3.
const EXTRA_BITS: u32 = 3;

/// How a key is cut to its value.
#[derive(Debug)]
struct Cut {
    prefix: Vec<u8>,
    base: u64,
    /// Invariant: `0..=63`.
    shift: u32,
    value_max: u64,
}

impl Cut {
    fn new(bounds: &Bounds<'_>, entries_max: u64) -> Self {
        let prefix = bounds.common_prefix();
        let number = |key: &[u8]| eight_bytes(key.get(prefix.len()..).unwrap_or_default());
        // Values begin at the smallest key, so that none is lost on what all keys have in common.
        let base = number(bounds.lower);
        let span = number(bounds.upper).saturating_sub(base);
        let entry_bits = u64::BITS - entries_max.max(1).saturating_sub(1).leading_zeros();
        let span_bits = u64::BITS - span.leading_zeros();
        // A few bits more than the entries need keep neighbours apart; more would cost memory.
        let shift = span_bits.saturating_sub(entry_bits + EXTRA_BITS);
        debug_assert!(shift <= 63, "some bits are kept of each number");
        Self { prefix: prefix.to_vec(), base, shift, value_max: span >> shift }
    }

    /// The value of a key that lies within the bounds.
    #[inline]
    fn value_within(&self, key: &[u8]) -> u64 {
        let number = eight_bytes(key.get(self.prefix.len()..).unwrap_or_default());
        number.saturating_sub(self.base) >> self.shift
    }

    /// The value of any key.
    #[inline]
    fn value(&self, key: &[u8]) -> u64 {
        let front = key.get(..self.prefix.len()).unwrap_or(key);
        match front.cmp(&self.prefix) {
            Ordering::Less => 0,
            Ordering::Equal => self.value_within(key).min(self.value_max),
            Ordering::Greater => self.value_max,
        }
    }
}

/// Fences of a run that is still being written.
#[derive(Debug)]
pub(super) struct FencesBuilder {
    cut: Cut,
    sequence: SequenceBuilder,
    /// The value of the last key.
    value: u64,
    /// How many keys have had that value.
    equal_count: u64,
    extra_reads: u64,
}

impl FencesBuilder {
    pub(super) fn new(bounds: &Bounds<'_>, entries_max: u64, pages_max: u64) -> Self {
        let cut = Cut::new(bounds, entries_max);
        let sequence = SequenceBuilder::new(cut.value_max, pages_max);
        Self { cut, sequence, value: 0, equal_count: 0, extra_reads: 0 }
    }

    #[inline]
    pub(super) fn entry(&mut self, key: &[u8], starts_page: bool) {
        let value = self.cut.value_within(key);
        // Keys of one value cannot be told apart by the index.
        if value != self.value {
            self.value = value;
            self.equal_count = 0;
        }
        if starts_page {
            self.sequence.push(value);
            // The search for each key before with this value will now begin one page later.
            self.extra_reads = self.extra_reads.saturating_add(self.equal_count);
        }
        self.equal_count += 1;
    }

    /// Pages stepped back if each key so far is looked up once.
    pub(super) fn extra_reads(&self) -> u64 {
        self.extra_reads
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.cut.prefix.capacity() + self.sequence.memory_bytes()
    }

    pub(super) fn finish(self) -> Fences {
        let Self { mut cut, sequence, value, extra_reads, .. } = self;
        // Nothing lies between the last key and the upper bound.
        cut.value_max = value;
        Fences { cut, sequence: sequence.finish(value), extra_reads }
    }
}

/// Fences of a complete run.
#[derive(Debug)]
pub(super) struct Fences {
    cut: Cut,
    sequence: Sequence,
    extra_reads: u64,
}

impl Fences {
    pub(super) fn pages(&self) -> u32 {
        self.sequence.count()
    }

    /// Pages stepped back if each key of the run is looked up once.
    pub(super) fn extra_reads(&self) -> u64 {
        self.extra_reads
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.cut.prefix.capacity() + self.sequence.memory_bytes()
    }

    #[inline]
    pub(super) fn search(&self, key: &[u8]) -> PageCandidate {
        match self.sequence.last_at_most(self.cut.value(key)) {
            Some(found) => {
                // If the value is that of a fence, earlier pages may end with the same value.
                PageCandidate { ordinal: found.index, earlier: found.equal && found.index > 0 }
            }
            None => PageCandidate { ordinal: 0, earlier: false },
        }
    }

    pub(super) fn previous(&self, ordinal: u32, key: &[u8]) -> Option<PageCandidate> {
        let value = self.cut.value(key);
        // The key is in an earlier page only if this page begins with the same value.
        if !self.sequence.is_at(ordinal, value) {
            return None;
        }
        let ordinal = ordinal.checked_sub(1)?;
        debug_assert!(ordinal < self.pages());
        let earlier = ordinal > 0 && self.sequence.is_at(ordinal, value);
        Some(PageCandidate { ordinal, earlier })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let low_bits = u8::try_from(self.sequence.low_bits()).expect("at most 63");
        let shift = u8::try_from(self.cut.shift).expect("at most 63");
        writer.u8(KIND_COMPACT).u8(shift).u8(low_bits).u8(0).u32(self.pages());
        writer.u64(self.extra_reads).u64(self.cut.base).u64(self.cut.value_max);
        writer.string(&self.cut.prefix);
        self.sequence.encode(&mut writer);
        writer.into_bytes()
    }

    /// Reads what [`Fences::encode`] wrote, from after `kind`.
    pub(super) fn decode(reader: &mut Reader<'_>, pages: u32) -> Result<Self, Corrupt> {
        let too_short = |left: u64| broken("fences: header", left + 1, left);
        let left = reader.rest().len() as u64;
        let mut header = || {
            let bytes = (reader.u8()?, reader.u8()?, reader.u8()?);
            Ok((
                bytes,
                reader.u32()?,
                reader.u64()?,
                reader.u64()?,
                reader.u64()?,
                reader.string()?,
            ))
        };

        let header = header().map_err(|_: terrane_io::bytes::Overrun| too_short(left))?;
        let ((shift, low_bits, zero), count, extra_reads, base, value_max, prefix) = header;
        // A shift of 64 would overflow.
        if shift > 63 {
            return Err(broken("fences: shift", 63, shift.into()));
        }

        if zero != 0 {
            return Err(broken("fences: byte 3", 0, zero.into()));
        }

        if count != pages {
            return Err(broken("fences: pages", pages.into(), count.into()));
        }

        let sequence = Sequence::decode(reader, value_max, low_bits.into(), pages)?;
        let cut = Cut { prefix: prefix.to_vec(), base, shift: shift.into(), value_max };
        Ok(Self { cut, sequence, extra_reads })
    }
}

fn broken(rule: &'static str, expected: u64, found: u64) -> Corrupt {
    Corrupt { page: 0, rule, expected, found }
}
