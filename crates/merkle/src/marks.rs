//! Marks: which records of the older chunks are in use, one bit for each unit of 8 bytes.
//!
//! Records point at earlier ones only. So the marks themselves are the list of what is still to be visited: the chunks are
//! swept once, from the newest to the oldest, each from its end, and whatever is found is marked further down.

use crate::address::{Address, Link, Place, UNIT_BYTES};
use crate::chunk::Chunk;
use crate::corrupt::Corrupt;
use crate::error::{Error, Result};
use crate::frame::{open_record, record_size};
use crate::pack::Pack;
use crate::record::{Decoded, ENTRIES_DELTA, FLAT, Record, RecordBody, Stored};

/// Bytes that are read at once.
const WINDOW_BYTES: u64 = 1 << 20;
/// How far a window reaches behind the record that it is read for.
const AHEAD_BYTES: u64 = 64 << 10;

/// One bit for each unit of a chunk.
#[derive(Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    /// Sets a bit; says whether it was clear.
    fn set(&mut self, unit: u32) -> bool {
        let (word, bit) = (unit as usize / 64, unit % 64);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let was_clear = self.0[word] >> bit & 1 == 0;
        self.0[word] |= 1 << bit;
        was_clear
    }

    fn has(&self, unit: u32) -> bool {
        self.0.get(unit as usize / 64).is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }

    /// The highest bit that is set below `unit`.
    fn below(&self, unit: u32) -> Option<u32> {
        let mut word = (unit as usize / 64).min(self.0.len());
        let mut part = match self.0.get(word) {
            Some(bits) => bits & ((1 << (unit % 64)) - 1),
            None => 0,
        };
        while part == 0 {
            word = word.checked_sub(1)?;
            part = self.0[word];
        }
        Some((word * 64) as u32 + part.ilog2())
    }
}

/// What is in use in the chunks from `first` on up to `end`.
#[derive(Debug)]
pub(crate) struct Marks {
    first: u32,
    end: u32,
    /// Records that are reachable.
    live: Vec<Bits>,
    /// Records that only deltas are based on: kept, but what they point at is not in use because of them.
    bases: Vec<Bits>,
}

impl Marks {
    pub(crate) fn new(first: u32, end: u32) -> Self {
        let bits = || (first..end).map(|_| Bits::default()).collect();
        Self { first, end, live: bits(), bases: bits() }
    }

    fn chunk(&self, at: Address) -> Option<usize> {
        (self.first..self.end).contains(&at.chunk).then(|| (at.chunk - self.first) as usize)
    }

    /// Whether a record is reachable.
    pub(crate) fn is_live(&self, at: Address) -> bool {
        self.chunk(at).is_some_and(|chunk| self.live[chunk].has(at.unit))
    }

    /// Whether a record of these chunks is not known to be reachable.
    pub(crate) fn lacks(&self, at: Address) -> bool {
        self.chunk(at).is_some_and(|chunk| !self.live[chunk].has(at.unit))
    }

    /// Whether a record is to be kept.
    pub(crate) fn is_kept(&self, at: Address) -> bool {
        self.chunk(at)
            .is_some_and(|chunk| self.live[chunk].has(at.unit) || self.bases[chunk].has(at.unit))
    }

    /// Marks a record; says whether it is one of these chunks that was not marked.
    pub(crate) fn mark(&mut self, at: Address) -> bool {
        self.chunk(at).is_some_and(|chunk| self.live[chunk].set(at.unit))
    }

    fn mark_base(&mut self, at: Address) {
        if let Some(chunk) = self.chunk(at) {
            self.bases[chunk].set(at.unit);
        }
    }

    /// Visits everything that is marked, from the newest chunk to the oldest; marks what that points at, but nothing below what
    /// is in a volume already. `pace` is called with the bytes of each read.
    ///
    /// Cost: reads the chunks once, as far as something is in use there, 1 MiB at a time.
    pub(crate) fn sweep(
        &mut self,
        pack: &Pack,
        pace: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        for number in (self.first..self.end).rev() {
            let chunk = (number - self.first) as usize;
            let mut window = Window::default();
            let mut unit = u32::MAX;
            while let Some(next) = self.live[chunk].below(unit) {
                unit = next;
                let open = pack.chunk(number)?;
                let at = Address { chunk: number, unit };
                if open.locate(at).is_none() && pack.archived(at)?.is_some() {
                    continue;
                }
                let (place, body) = window.record(&open, at, pace)?;
                self.visit(pack, place, &body, &mut |marks, link| {
                    marks.mark(link.place.at);
                })?;
            }
        }
        Ok(())
    }

    /// Marks what a record of newer chunks, or one that was found late, points at, and all below.
    pub(crate) fn mark_below(&mut self, pack: &Pack, place: Place, body: &[u8]) -> Result<()> {
        let mut found = Vec::new();
        self.visit(pack, place, body, &mut |_, link| found.push(link.place))?;
        self.mark_all(pack, found)
    }

    /// Marks records, and all below them but for what is in a volume already.
    pub(crate) fn mark_all(&mut self, pack: &Pack, mut found: Vec<Place>) -> Result<()> {
        while let Some(place) = found.pop() {
            if self.mark(place.at) && pack.archived(place.at)?.is_none() {
                let body = pack.body(place)?;
                self.visit(pack, place, &body, &mut |_, link| found.push(link.place))?;
            }
        }
        Ok(())
    }

    /// Calls `point` with everything that a directory record points at.
    fn visit(
        &mut self,
        pack: &Pack,
        place: Place,
        body: &[u8],
        point: &mut dyn FnMut(&mut Self, &Link),
    ) -> Result<()> {
        if !body.first().is_some_and(|kind| (FLAT..=ENTRIES_DELTA).contains(kind)) {
            return Ok(());
        }
        let fail = |what| pack.corrupt(place.at, what);
        let record = match Record::decode(place, body).map_err(fail)? {
            Decoded::Record(record) => record,
            Decoded::Delta(delta) => {
                self.mark_base(delta.full().at);
                let full = pack.record_at(delta.full())?;
                delta.apply(&full).map_err(fail)?
            }
        };
        match &record.body {
            RecordBody::Inner(inner) => inner.links.iter().for_each(|link| point(self, link)),
            RecordBody::Entries(entries) => {
                for ordinal in 0..entries.len() {
                    match entries.stored(ordinal) {
                        Stored::Inline(_) => {}
                        Stored::Value(link) | Stored::Dir(link) => point(self, &link),
                    }
                }
            }
        }
        Ok(())
    }
}

/// A piece of a chunk in memory, read for records that come in descending order.
#[derive(Debug, Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// The record at an address, whose length is not known.
    fn record(
        &mut self,
        chunk: &Chunk,
        at: Address,
        pace: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(Place, Vec<u8>)> {
        let gone = || Error::Collected { address: at };
        let (offset, room) = chunk.locate(at).ok_or_else(gone)?;
        if self.size_at(offset).is_none() {
            let len = chunk.file.len()?;
            let end = (offset + AHEAD_BYTES).min(len);
            self.start = end.saturating_sub(WINDOW_BYTES).min(offset);
            self.fill(chunk, end - self.start, pace)?;
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
        Ok((Place { at, bytes: size as u32 }, body.to_vec()))
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

    /// The size of the record at an offset, if all of it is here.
    fn size_at(&self, offset: u64) -> Option<usize> {
        let bytes = self.bytes.get(offset.checked_sub(self.start)? as usize..)?;
        record_size(bytes).filter(|size| *size <= bytes.len())
    }
}

/// Bytes of so many units.
pub(crate) fn unit_bytes(units: u64) -> u64 {
    units * UNIT_BYTES
}
