//! Marks: the set of live records of the older chunks during a collection. A set takes 2 bytes of
//! memory for each record, or a bit for each unit of 8 bytes where records are dense.
//!
//! Records refer to earlier records only, so the marks are also the list of records still to be
//! visited: a sweep reads the chunks once, from the newest to the oldest, each from its end, and
//! marks further down.

use crate::base::address::{Address, Extent, Link, UNIT_BYTES};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::object::cached::Cached;
use crate::object::entries::Stored;
use crate::object::record::{Decoded, ENTRIES_DELTA, FLAT, Record, RecordBody};
use crate::pack::chunk::Chunk;
use crate::pack::frame::{open_record, record_size};
use crate::pack::pack::Pack;
use terrane_io::cache::Cache;

/// Bytes of one read.
const WINDOW_BYTES: u64 = 1 << 20;
/// Bytes that a window reaches beyond its record.
const AHEAD_BYTES: u64 = 64 << 10;
/// Memory for the bases of deltas, in bytes.
const RECORDS_BYTES: usize = 4 << 20;

/// Units of a page of a set: 32 KiB of a chunk.
const PAGE_UNITS: u32 = 4096;
const PAGE_WORDS: usize = PAGE_UNITS as usize / 64;
/// Most units that a page lists; this list takes as much memory as the bits of a page.
const LISTED_MAX: usize = PAGE_UNITS as usize / 16;

/// Units of a page that are in a set.
#[derive(Debug)]
enum MarkPage {
    /// Units in the set, ascending.
    Listed(Vec<u16>),
    /// A bit for each unit.
    Bits(Box<[u64; PAGE_WORDS]>),
}

impl Default for MarkPage {
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

impl MarkPage {
    /// Adds a unit; says whether it was missing.
    fn add(&mut self, unit: u16) -> bool {
        debug_assert!(u32::from(unit) < PAGE_UNITS, "a unit of the page");
        match self {
            Self::Listed(listed) => {
                let Err(at) = listed.binary_search(&unit) else { return false };
                debug_assert!(listed.len() <= LISTED_MAX, "a longer list becomes bits");
                if listed.len() < LISTED_MAX {
                    listed.insert(at, unit);
                    return true;
                }

                // The list is full: bits take as much memory from here on, and never more.
                let mut bits = Box::new([0; PAGE_WORDS]);
                for unit in listed.iter().chain([&unit]) {
                    bits[usize::from(unit / 64)] |= 1 << (unit % 64);
                }
                *self = Self::Bits(bits);
                true
            }
            Self::Bits(bits) => {
                let word = &mut bits[usize::from(unit / 64)];
                let was_missing = *word >> (unit % 64) & 1 == 0;
                *word |= 1 << (unit % 64);
                was_missing
            }
        }
    }

    fn has(&self, unit: u16) -> bool {
        debug_assert!(u32::from(unit) < PAGE_UNITS, "a unit of the page");
        match self {
            Self::Listed(listed) => listed.binary_search(&unit).is_ok(),
            Self::Bits(bits) => bits[usize::from(unit / 64)] >> (unit % 64) & 1 == 1,
        }
    }

    /// Returns the highest unit below `unit`, which is at most the number of units of a page.
    fn below(&self, unit: u32) -> Option<u32> {
        debug_assert!(unit <= PAGE_UNITS, "a unit of the page, or its end");
        match self {
            Self::Listed(listed) => {
                let above = listed.partition_point(|listed| u32::from(*listed) < unit);
                listed[..above].last().map(|listed| u32::from(*listed))
            }
            Self::Bits(bits) => {
                let mut word = unit as usize / 64;
                let mut part = bits.get(word).map_or(0, |bits| bits & ((1 << (unit % 64)) - 1));
                while part == 0 {
                    word = word.checked_sub(1)?;
                    part = bits[word];
                }
                Some((word * 64) as u32 + part.ilog2())
            }
        }
    }
}

/// Set of units of a chunk. Takes at most 2 bytes for each unit in the set, and at most a bit for
/// each unit of the chunk.
#[derive(Debug, Default)]
struct Units(Vec<MarkPage>);

impl Units {
    /// Adds a unit; says whether it was missing.
    fn add(&mut self, unit: u32) -> bool {
        let page = (unit / PAGE_UNITS) as usize;
        if self.0.len() <= page {
            self.0.resize_with(page + 1, MarkPage::default);
        }
        self.0[page].add((unit % PAGE_UNITS) as u16)
    }

    fn has(&self, unit: u32) -> bool {
        let page = self.0.get((unit / PAGE_UNITS) as usize);
        page.is_some_and(|page| page.has((unit % PAGE_UNITS) as u16))
    }

    /// Returns the highest unit below `unit`.
    fn below(&self, unit: u32) -> Option<u32> {
        // First the page of the unit, up to it; then whole pages below.
        let number = ((unit / PAGE_UNITS) as usize).min(self.0.len());
        let first = self.0.get(number).and_then(|page| page.below(unit % PAGE_UNITS));
        if let Some(first) = first {
            debug_assert!(number as u32 * PAGE_UNITS + first < unit, "a lower unit");
            return Some(number as u32 * PAGE_UNITS + first);
        }
        let mut pages = self.0[..number].iter().enumerate().rev();
        pages.find_map(|(number, page)| Some(number as u32 * PAGE_UNITS + page.below(PAGE_UNITS)?))
    }
}

/// Live records of the chunks `first..end`.
#[derive(Debug)]
pub(crate) struct Marks {
    first: u32,
    end: u32,
    /// Reachable records.
    live: Vec<Units>,
    /// Records that only deltas are based on. The collection keeps them, but not their targets.
    bases: Vec<Units>,
    /// Cache of bases, apart from the cache of the store, which a sweep would flush.
    records: Cache<Address, Cached>,
}

impl Marks {
    pub(crate) fn new(first: u32, end: u32) -> Self {
        let none = || (first..end).map(|_| Units::default()).collect();
        Self { first, end, live: none(), bases: none(), records: Cache::new(RECORDS_BYTES) }
    }

    fn chunk(&self, at: Address) -> Option<usize> {
        (self.first..self.end).contains(&at.chunk).then(|| (at.chunk - self.first) as usize)
    }

    /// Returns whether a record is reachable.
    pub(crate) fn is_live(&self, at: Address) -> bool {
        self.chunk(at).is_some_and(|chunk| self.live[chunk].has(at.unit))
    }

    /// Returns whether a record lies in these chunks and is not known to be reachable.
    pub(crate) fn lacks(&self, at: Address) -> bool {
        self.chunk(at).is_some_and(|chunk| !self.live[chunk].has(at.unit))
    }

    /// Returns whether the collection keeps a record.
    pub(crate) fn is_kept(&self, at: Address) -> bool {
        self.chunk(at)
            .is_some_and(|chunk| self.live[chunk].has(at.unit) || self.bases[chunk].has(at.unit))
    }

    /// Marks a record; returns whether it lies in these chunks and was not marked.
    pub(crate) fn mark(&mut self, at: Address) -> bool {
        self.chunk(at).is_some_and(|chunk| self.live[chunk].add(at.unit))
    }

    fn mark_base(&mut self, at: Address) {
        if let Some(chunk) = self.chunk(at) {
            self.bases[chunk].add(at.unit);
        }
    }

    /// Visits all marked records, from the newest chunk to the oldest, and marks their targets;
    /// skips records that are in a volume.
    ///
    /// Calls `pace` with the bytes of each read.
    ///
    /// Cost: reads the chunks once, as far as something is in use there, 1 MiB at a time.
    pub(crate) fn sweep(
        &mut self,
        pack: &Pack,
        pace: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        for number in (self.first..self.end).rev() {
            let chunk = (number - self.first) as usize;
            if self.live[chunk].below(u32::MAX).is_none() {
                continue;
            }

            // Not through the set of open files: a sweep would evict those that readers use.
            let open = pack.chunk_aside(number)?;
            let mut window = Window::default();
            let mut unit = u32::MAX;

            while let Some(next) = self.live[chunk].below(unit) {
                debug_assert!(next < unit, "a sweep goes down");
                unit = next;

                // Targets have lower addresses, so they are marked before the sweep comes to them.
                let at = Address { chunk: number, unit };
                if open.locate(at).is_none() && pack.archived(at)?.is_some() {
                    continue;
                }
                let (extent, body) = window.record(&open, at, pace)?;
                self.visit(pack, extent, &body, &mut |marks, link| {
                    marks.mark(link.extent.at);
                })?;
            }
        }

        Ok(())
    }

    /// Marks all that a record of a newer chunk, or one found late, reaches.
    pub(crate) fn mark_below(&mut self, pack: &Pack, extent: Extent, body: &[u8]) -> Result<()> {
        let mut found = Vec::new();
        self.visit(pack, extent, body, &mut |_, link| found.push(link.extent))?;
        self.mark_all(pack, found)
    }

    /// Marks records and all that they reach, except below records that are in a volume.
    pub(crate) fn mark_all(&mut self, pack: &Pack, mut found: Vec<Extent>) -> Result<()> {
        while let Some(extent) = found.pop() {
            if self.mark(extent.at) && pack.archived(extent.at)?.is_none() {
                pack.with_body(extent, |body| {
                    self.visit(pack, extent, body, &mut |_, link| found.push(link.extent))
                })??;
            }
        }
        Ok(())
    }

    /// Calls `point` with each reference of a directory record.
    fn visit(
        &mut self,
        pack: &Pack,
        extent: Extent,
        body: &[u8],
        point: &mut dyn FnMut(&mut Self, &Link),
    ) -> Result<()> {
        if !body.first().is_some_and(|kind| (FLAT..=ENTRIES_DELTA).contains(kind)) {
            return Ok(());
        }
        let fail = |what| pack.corrupt(extent.at, what);

        // The base is kept, but its targets are live only if the delta still has them.
        let record = match Record::decode(extent, body).map_err(fail)? {
            Decoded::Record(record) => record,
            Decoded::Delta(delta) => {
                self.mark_base(delta.base().at);
                let base = pack.record_aside(delta.base(), &self.records)?;
                if let Some(full) = base.body.full() {
                    // The base may be a delta in turn.
                    self.mark_base(full.at);
                }
                delta.apply(&base).map_err(fail)?
            }
        };

        match &record.body {
            RecordBody::Inner(inner) => {
                (0..inner.len()).filter_map(|rank| inner.link(rank)).for_each(|link| {
                    point(self, &link);
                });
            }
            RecordBody::Entries(entries) => {
                for ordinal in 0..entries.len() {
                    match entries.stored(ordinal) {
                        Stored::Inline(_) | Stored::Nowhere { .. } => {}
                        Stored::Value(link) | Stored::Dir(link) => point(self, &link),
                    }
                }
            }
        }

        Ok(())
    }
}

/// Part of a chunk in memory, for reads of records in descending order.
#[derive(Debug, Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// Reads the record at an address, whose length is unknown.
    fn record(
        &mut self,
        chunk: &Chunk,
        at: Address,
        pace: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(Extent, Vec<u8>)> {
        let gone = || Error::Collected { address: at };
        let (offset, room) = chunk.locate(at).ok_or_else(gone)?;
        if self.size_at(offset).is_none() {
            // Records come in descending order: read a window that ends a little behind this one.
            let len = chunk.file.len()?;
            let end = (offset + AHEAD_BYTES).min(len);
            self.start = end.saturating_sub(WINDOW_BYTES).min(offset);
            debug_assert!(self.start <= end, "a window ends behind its start");
            debug_assert!(end - self.start <= WINDOW_BYTES, "a window has a bound");
            self.fill(chunk, end - self.start, pace)?;

            // A record longer than the rest of the window is read by itself.
            let wanted = self.bytes.get((offset - self.start) as usize..).and_then(record_size);
            if let Some(wanted) = wanted.filter(|wanted| offset + *wanted as u64 > end) {
                self.start = offset;
                self.fill(chunk, (wanted as u64).min(len - offset).min(room), pace)?;
            }
        }

        let size = self
            .size_at(offset)
            .ok_or_else(|| chunk.corrupt(at, Corrupt::short("a record lies in its chunk")))?;
        let start = (offset - self.start) as usize;
        let (body, _) = open_record(at, &self.bytes[start..start + size])
            .map_err(|what| chunk.corrupt(at, what))?;
        Ok((Extent { at, bytes: size as u32 }, body.to_vec()))
    }

    fn fill(
        &mut self,
        chunk: &Chunk,
        bytes: u64,
        pace: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        pace(bytes)?;
        self.bytes.resize(bytes as usize, 0);
        Ok(chunk.file.read_at(&mut self.bytes, self.start)?)
    }

    /// Size of the record at an offset, if the window has all of it.
    fn size_at(&self, offset: u64) -> Option<usize> {
        let bytes = self.bytes.get(offset.checked_sub(self.start)? as usize..)?;
        record_size(bytes).filter(|size| *size <= bytes.len())
    }
}

/// Bytes of `units` units.
pub(crate) fn unit_bytes(units: u64) -> u64 {
    units * UNIT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    /// Against a sorted set, with pages that are empty, listed and full of bits.
    #[test]
    fn units_are_a_set() {
        for_each_seed("units_are_a_set", 30, |rng, _| {
            let mut units = Units::default();
            let mut model = BTreeSet::new();
            let end = 1 + rng.below(u64::from(PAGE_UNITS) * 6) as u32;
            let dense = rng.below(u64::from(end)) as u32;
            for _ in 0..rng.below(3000) {
                let near = dense + rng.below(1000) as u32;
                let unit = if rng.chance(1, 2) { near } else { rng.below(u64::from(end)) as u32 };
                assert_eq!(units.add(unit), model.insert(unit));
            }
            for unit in 0..end + 2000 {
                assert_eq!(units.has(unit), model.contains(&unit), "{unit}");
                assert_eq!(units.below(unit), model.range(..unit).next_back().copied(), "{unit}");
            }
            let mut descending = Vec::new();
            let mut unit = u32::MAX;
            while let Some(next) = units.below(unit) {
                descending.push(next);
                unit = next;
            }
            assert!(descending.iter().eq(model.iter().rev()));
        });
    }

    /// One record in 4 KiB, as a chunk has that was compacted often, takes 2 bytes and no page of
    /// bits; no chunk takes more than a bit for each unit and a little.
    #[test]
    fn few_units_take_little_memory() {
        let heap_bytes = |units: &Units| -> usize {
            let pages = units.0.capacity() * size_of::<MarkPage>();
            let of_page = |page: &MarkPage| match page {
                MarkPage::Listed(listed) => listed.capacity() * 2,
                MarkPage::Bits(_) => PAGE_WORDS * 8,
            };
            pages + units.0.iter().map(of_page).sum::<usize>()
        };

        let chunk_units = (16 << 20) / UNIT_BYTES as u32;
        let mut few = Units::default();
        let mut all = Units::default();
        (0..chunk_units).rev().step_by(512).for_each(|unit| assert!(few.add(unit)));
        assert!(heap_bytes(&few) < 32 << 10, "{}", heap_bytes(&few));
        (0..chunk_units).rev().for_each(|unit| assert!(all.add(unit)));

        assert!(heap_bytes(&all) < 300 << 10, "{}", heap_bytes(&all));
    }
}
