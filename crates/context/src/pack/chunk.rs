//! Chunks: the files of the pack. A chunk is a head of 64 bytes and a chain of
//! [frames](crate::pack::frame). A chunk that a collection compacted is a head, the kept records,
//! and a map of the runs that they had.
//!
//! Invariant: addresses are offsets in the chunk as it was first written, also after compaction.

#![doc = include_str!("../../../../docs/format/context-chunk.md")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::checksum::crc32c;
use terrane_io::files::create_afresh;
use terrane_io::{Access, Disk, DiskFile, OpenMode};

use crate::base::address::{Address, Extent, UNIT_BYTES};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::pack::frame::{
    FRAME_HEAD_BYTES, FRAME_MAGIC, FrameHead, RECORD_BYTES_MAX, any_head, open_record, record_size,
};
use crate::pack::run_map::{Run, RunMap};

pub(crate) const CHUNK_HEAD_BYTES: usize = 64;
/// First bytes of a chunk.
pub(crate) const CHUNK_MAGIC: [u8; 8] = *b"TRNMPACK";
/// Format version of chunks.
pub(crate) const CHUNK_VERSION: u32 = 7;
/// Oldest format version of chunks that are read. Nothing is appended to one before the newest.
pub(crate) const CHUNK_VERSION_OLDEST: u32 = 5;
const NAME: &str = "chunk-";

/// First unit behind the head.
pub(crate) const FIRST_UNIT: u32 = (CHUNK_HEAD_BYTES as u64 / UNIT_BYTES) as u32;

/// Head of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkHead {
    pub(crate) version: u32,
    pub(crate) number: u32,
    pub(crate) store: u64,
    /// End of the previous chunk, in units.
    pub(crate) before: u32,
    pub(crate) chain: u32,
    /// Number of runs and offset of the map, if the chunk is compacted.
    pub(crate) map: Option<(u32, u64)>,
}

/// Callback for the extent and the body of a record.
pub(crate) type VisitRecord<'a> =
    dyn FnMut(Extent, std::result::Result<&[u8], Corrupt>) -> Result<()> + 'a;

pub(crate) const RUN_BYTES: usize = 12;

impl ChunkHead {
    pub(crate) fn encode(&self) -> [u8; CHUNK_HEAD_BYTES] {
        let mut bytes = [0; CHUNK_HEAD_BYTES];
        bytes[..8].copy_from_slice(&CHUNK_MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.store.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.before.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.chain.to_le_bytes());
        let (kind, (runs, map)) = if let Some(map) = self.map { (2u32, map) } else { (1, (0, 0)) };
        bytes[32..36].copy_from_slice(&kind.to_le_bytes());
        bytes[36..40].copy_from_slice(&runs.to_le_bytes());
        bytes[40..48].copy_from_slice(&map.to_le_bytes());
        let crc = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());

        bytes
    }

    fn decode(path: &Path, bytes: &[u8; CHUNK_HEAD_BYTES]) -> Result<Self> {
        let corrupt = |what| Error::Corrupt { path: path.to_owned(), address: None, what };
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };

        // The magic comes first: a foreign file is named as such, not as damage.
        if bytes[..8] != CHUNK_MAGIC {
            return Err(Error::NotAContextStore { path: path.to_owned() });
        }
        let stored = word(60);
        let computed = crc32c(&bytes[..60]);

        if stored != computed {
            let what = Corrupt::rule("checksum of a head", u64::from(computed), u64::from(stored));
            return Err(corrupt(what));
        }

        // Only after the checksum: a damaged version must not look like a newer program's file.
        if !(CHUNK_VERSION_OLDEST..=CHUNK_VERSION).contains(&word(8)) {
            return Err(Error::UnsupportedVersion {
                path: path.to_owned(),
                found: word(8),
                newest: CHUNK_VERSION,
            });
        }

        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let map = match word(32) {
            1 => None,
            2 => Some((word(36), long(40))),
            other => return Err(corrupt(Corrupt::rule("kind of a chunk", 1, u64::from(other)))),
        };

        let [version, number, before, chain] = [8, 12, 24, 28].map(word);
        Ok(Self { version, number, store: long(16), before, chain, map })
    }
}

/// Path of a chunk.
pub(crate) fn chunk_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{NAME}{number:08x}"))
}

/// Number of the chunk whose file has this name.
pub(crate) fn chunk_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(NAME).filter(|digits| digits.len() == 8)?;
    u32::from_str_radix(digits, 16).ok()
}

/// Open file of a chunk, or of a part of a chunk in a volume.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) head: ChunkHead,
    pub(crate) file: Arc<dyn DiskFile>,
    /// Kept runs, ascending, if the chunk is compacted.
    pub(crate) runs: Option<RunMap>,
}

impl Chunk {
    /// Creates a chunk. Name and head are durable after a sync of the directory and of the file.
    pub(crate) fn create(disk: &dyn Disk, dir: &Path, head: ChunkHead) -> Result<Self> {
        let path = chunk_path(dir, head.number);
        let file = create_afresh(disk, &path, OpenMode::CreateNew, Access::Buffered)?;
        file.write_at(&head.encode(), 0)?;
        Ok(Self { head, file, runs: None })
    }

    /// Opens a chunk, or a part of a chunk, also for writing if `mode` says so.
    ///
    /// `store` is the identity of the store that the chunk must belong to, if the caller knows
    /// it.
    ///
    /// # Errors
    /// [`ForeignChunk`](Error::ForeignChunk), [`Corrupt`](Error::Corrupt),
    /// [`NotAContextStore`](Error::NotAContextStore),
    /// [`UnsupportedVersion`](Error::UnsupportedVersion), [`Disk`](Error::Disk).
    pub(crate) fn open(
        disk: &dyn Disk,
        path: &Path,
        (number, store): (u32, Option<u64>),
        mode: OpenMode,
        access: Access,
    ) -> Result<Self> {
        let file = disk.open(path, mode, access)?;
        let mut bytes = [0; CHUNK_HEAD_BYTES];
        file.read_at(&mut bytes, 0).map_err(|error| match error {
            terrane_io::Error::ShortRead { .. } => {
                let what = Corrupt::short("a chunk has a head");
                Error::Corrupt { path: path.to_owned(), address: None, what }
            }
            other => other.into(),
        })?;

        let head = ChunkHead::decode(path, &bytes)?;

        // Before its number: a chunk of another store may have any.
        if store.is_some_and(|store| store != head.store) {
            return Err(Error::ForeignChunk { path: path.to_owned() });
        }

        if head.number != number {
            let what =
                Corrupt::rule("number of a chunk", u64::from(number), u64::from(head.number));
            return Err(Error::Corrupt { path: path.to_owned(), address: None, what });
        }

        // The map is checked once, so that lookups cannot fail.
        let runs = head.map.map(|map| read_map(&*file, map)).transpose()?;
        Ok(Self { head, file, runs })
    }

    /// Drops the pages of the chunk, which must be clean, from the page cache.
    pub(crate) fn forget(&self) {
        self.file.forget(0, self.file.len().unwrap_or(0));
    }

    pub(crate) fn corrupt(&self, at: Address, what: Corrupt) -> Error {
        Error::Corrupt { path: self.file.path().to_owned(), address: Some(at), what }
    }

    /// Returns the offset of a record in the file, and the number of bytes that can be read from
    /// there; `None` if the record was collected.
    pub(crate) fn locate(&self, at: Address) -> Option<(u64, u64)> {
        debug_assert_eq!(at.chunk, self.head.number, "an address of this chunk");
        let Some(runs) = &self.runs else { return Some((at.offset(), u64::MAX)) };

        // The last run that begins at or before the record.
        let run = runs.find(at.unit)?;
        debug_assert!(run.unit <= at.unit, "the run begins at or before the record");
        let skipped = at.unit - run.unit;
        (skipped < run.units).then(|| {
            let stored = u64::from(run.stored + skipped) * UNIT_BYTES;
            (stored, u64::from(run.units - skipped) * UNIT_BYTES)
        })
    }

    /// Returns the offset of a record in the file; `None` if the record was collected.
    pub(crate) fn offset_of(&self, extent: Extent) -> Result<Option<u64>> {
        let Some((offset, room)) = self.locate(extent.at) else { return Ok(None) };

        // The length comes from a reference on the disk, and sizes a buffer: bound it by the run.
        if u64::from(extent.bytes) > room.min(RECORD_BYTES_MAX) {
            return Err(self.short(extent));
        }
        Ok(Some(offset))
    }

    fn short(&self, extent: Extent) -> Error {
        self.corrupt(extent.at, Corrupt::short("a record lies in its chunk"))
    }

    /// Returns the body of the record whose bytes are `bytes`.
    pub(crate) fn open_body<'a>(&self, extent: Extent, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let (body, used) =
            open_record(extent.at, bytes).map_err(|what| self.corrupt(extent.at, what))?;
        if used != bytes.len() {
            let what = Corrupt::rule("length of a record", bytes.len() as u64, used as u64);
            return Err(self.corrupt(extent.at, what));
        }
        Ok(body)
    }

    /// Reads a record, and calls `read` with its body; `None` if the record was collected. A small
    /// record needs no buffer on the heap.
    ///
    /// Cost: one read of the record's length.
    pub(crate) fn read<R>(
        &self,
        extent: Extent,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        /// Largest record that is read on the stack, in bytes; most are shorter.
        const NEAR_BYTES: usize = 512;

        let Some(offset) = self.offset_of(extent)? else { return Ok(None) };
        let len = extent.bytes as usize;
        let mut near = [0; NEAR_BYTES];
        let mut far;
        let bytes = match near.get_mut(..len) {
            Some(bytes) => bytes,
            None => {
                // The length may be damaged: zeros of a new vector take no memory yet.
                far = vec![0; len];
                far.as_mut_slice()
            }
        };
        self.file.read_at(bytes, offset).map_err(|error| match error {
            terrane_io::Error::ShortRead { .. } => self.short(extent),
            other => other.into(),
        })?;
        Ok(Some(read(self.open_body(extent, bytes)?)))
    }

    /// Returns the runs of a chunk that ends at `end` or later: the payloads of its frames, or the
    /// kept runs.
    ///
    /// Also returns the unit of the first damage, if that is before `end`.
    pub(crate) fn all_runs(&self, end: u32) -> Result<(Vec<Run>, Option<u32>)> {
        if let Some(runs) = &self.runs {
            return Ok((runs.as_slice().to_vec(), None));
        }
        let runs: Vec<Run> = self.frames()?.into_iter().map(|(run, _)| run).collect();
        let reached = runs.last().map_or(FIRST_UNIT, |run| run.unit + run.units);
        Ok((runs, (reached < end).then_some(reached)))
    }

    /// Returns the frames up to the first damaged head, each with the run of its payload; none for
    /// a compacted chunk.
    ///
    /// Cost: one read for each.
    pub(crate) fn frames(&self) -> Result<Vec<(Run, FrameHead)>> {
        let len = if self.runs.is_some() { 0 } else { self.file.len()? };
        let mut offset = CHUNK_HEAD_BYTES as u64;
        let mut chain = self.head.chain;
        let mut frames = Vec::new();

        // A frame that chains to another one is of an older life of the file.
        while let Some((run, frame)) = self.frame_at(offset, len)?
            && frame.chain == chain
        {
            debug_assert!(u64::from(run.unit) * UNIT_BYTES > offset, "a payload follows its head");
            offset = u64::from(run.unit + run.units) * UNIT_BYTES;
            chain = frame.crc;
            frames.push((run, frame));
        }

        Ok(frames)
    }

    /// Reads the head of the frame at an offset of a chunk of `len` bytes, if the chunk has all of
    /// the frame.
    fn frame_at(&self, offset: u64, len: u64) -> Result<Option<(Run, FrameHead)>> {
        let frame = self.begun_frame_at(offset, len)?;
        let end = |run: &Run| (u64::from(run.unit) + u64::from(run.units)) * UNIT_BYTES;
        Ok(frame.filter(|(run, _)| end(run) <= len))
    }

    /// Reads the head of the frame at an offset of a chunk of `len` bytes, which may end within the
    /// frame.
    pub(crate) fn begun_frame_at(&self, offset: u64, len: u64) -> Result<Option<(Run, FrameHead)>> {
        debug_assert!(offset.is_multiple_of(UNIT_BYTES), "frames begin at units");
        let payload = offset + FRAME_HEAD_BYTES as u64;
        if payload > len {
            return Ok(None);
        }
        let mut head = [0; FRAME_HEAD_BYTES];
        self.file.read_at(&mut head, offset)?;
        let at = Address { chunk: self.head.number, unit: (offset / UNIT_BYTES) as u32 };
        let frame = any_head(at, &head);
        let unit = (payload / UNIT_BYTES) as u32;

        Ok(frame.map(|frame| {
            let units = (frame.bytes as u64 / UNIT_BYTES) as u32;
            (Run { unit, stored: unit, units }, frame)
        }))
    }

    /// Returns the payloads of all frames with intact heads, also behind damage and unreadable
    /// sectors; or the runs of a compacted chunk.
    ///
    /// Cost: one read for each frame; behind damage all bytes up to the next one.
    pub(crate) fn whole_runs(&self) -> Result<Vec<Run>> {
        match &self.runs {
            Some(runs) => Ok(runs.as_slice().to_vec()),
            None => Ok(self.whole_frames()?.into_iter().map(|(run, _)| run).collect()),
        }
    }

    /// Returns all frames with intact heads, also behind damage and unreadable sectors, each with
    /// the run of its payload; none for a compacted chunk.
    ///
    /// Cost: that of [`whole_runs`](Self::whole_runs).
    pub(crate) fn whole_frames(&self) -> Result<Vec<(Run, FrameHead)>> {
        if self.runs.is_some() {
            return Ok(Vec::new());
        }
        let len = self.file.len()?;
        let mut offset = CHUNK_HEAD_BYTES as u64;
        let mut frames = Vec::new();

        while offset < len {
            if let Ok(Some((run, head))) = self.frame_at(offset, len) {
                debug_assert!(
                    u64::from(run.unit) * UNIT_BYTES > offset,
                    "a payload follows its head"
                );
                offset = u64::from(run.unit + run.units) * UNIT_BYTES;
                frames.push((run, head));
                continue;
            }

            // Damage: search the next frame, since the length of this one cannot be trusted.
            let Some(next) = self.next_magic(offset + UNIT_BYTES, len) else { break };
            offset = next;
        }

        Ok(frames)
    }

    /// Returns the next offset at which a frame may begin.
    fn next_magic(&self, mut offset: u64, len: u64) -> Option<u64> {
        let mut window = vec![0; SEARCH_BYTES];
        while offset < len {
            let some = (len - offset).min(SEARCH_BYTES as u64) as usize;
            if self.file.read_at(&mut window[..some], offset).is_ok() {
                let mut units = window[..some].chunks(UNIT_BYTES as usize);
                if let Some(unit) = units.position(|unit| unit.starts_with(&FRAME_MAGIC)) {
                    return Some(offset + unit as u64 * UNIT_BYTES);
                }
            }
            offset += some as u64;
        }
        None
    }

    /// Calls `visit` with the extent of each record of a run, and its body if the record is intact.
    ///
    /// If the length of a record is unreadable, the rest of the run is left out after a call
    /// with an error.
    ///
    /// Cost: reads the run, 1 MiB at a time.
    pub(crate) fn each_record(&self, run: Run, visit: &mut VisitRecord<'_>) -> Result<()> {
        let total = run.units as usize * UNIT_BYTES as usize;
        let mut done = 0;

        let mut window = Vec::new();
        let mut used = 0;
        while done < total {
            let unit = run.unit + (done as u64 / UNIT_BYTES) as u32;
            let at = Address { chunk: self.head.number, unit };
            debug_assert!(used <= window.len(), "the records that were visited are in the window");
            debug_assert!((done as u64).is_multiple_of(UNIT_BYTES), "records begin at units");
            let mut size = window_record(&window[used..]);
            let mut rule = "a record lies in its frame";

            if size.is_none() {
                let wanted = self.first_record(run, done, total).unwrap_or(0).max(WINDOW_BYTES);
                window = vec![0; wanted.min(total - done)];
                used = 0;
                let offset = u64::from(run.stored) * UNIT_BYTES + done as u64;
                if self.file.read_at(&mut window, offset).is_err() {
                    rule = "a record can be read";
                    let readable = self.readable(&mut window, offset);
                    window.truncate(readable);
                }
                size = window_record(&window);
            }

            // Without a length, the next record cannot be found.
            let Some(size) = size else {
                return visit(Extent { at, bytes: 0 }, Err(Corrupt::short(rule)));
            };
            let body = open_record(at, &window[used..used + size]).map(|(body, _)| body);
            visit(Extent { at, bytes: size as u32 }, body)?;

            // Records are padded to whole units.
            let step = size.next_multiple_of(UNIT_BYTES as usize);
            used = (used + step).min(window.len());

            done += step;
        }

        debug_assert_eq!(done, total, "records and their padding fill a run");
        Ok(())
    }

    /// Reads up to the first unreadable page; returns the number of bytes.
    fn readable(&self, window: &mut [u8], offset: u64) -> usize {
        let mut done = 0;
        for piece in window.chunks_mut(SEARCH_BYTES) {
            if self.file.read_at(piece, offset + done as u64).is_err() {
                break;
            }
            done += piece.len();
        }
        done
    }

    /// Returns the size of the record at an offset of a run, as the length of the record says.
    fn first_record(&self, run: Run, done: usize, total: usize) -> Result<usize> {
        let mut head = [0; 10];
        let some = head.len().min(total - done);
        self.file.read_at(&mut head[..some], u64::from(run.stored) * UNIT_BYTES + done as u64)?;
        Ok(record_size(&head[..some]).unwrap_or(0))
    }
}

/// Bytes that one read takes when a whole chunk is read.
const WINDOW_BYTES: usize = 1 << 20;
/// Bytes that one search step reads: a page, so that an unreadable sector hides no more than its
/// page.
const SEARCH_BYTES: usize = 4 << 10;
const CRC_BYTES: usize = 4;
/// Unsynced bytes of a copy, at most: the fsync of a commit may have to wait for bytes that others
/// wrote.
const UNSYNCED_BYTES_MAX: usize = 2 << 20;

/// Returns the size of the record at the beginning of a window, if the window has all of the
/// record.
fn window_record(window: &[u8]) -> Option<usize> {
    record_size(window).filter(|size| *size <= window.len())
}

fn read_map(file: &dyn DiskFile, (count, offset): (u32, u64)) -> Result<RunMap> {
    let corrupt = |what| Error::Corrupt { path: file.path().to_owned(), address: None, what };

    let bytes_expected = count as usize * RUN_BYTES + CRC_BYTES;
    let len = file.len()?;
    if offset.checked_add(bytes_expected as u64) != Some(len) {
        return Err(corrupt(Corrupt::rule("length of a compacted chunk", offset, len)));
    }
    let mut bytes = vec![0; bytes_expected];
    file.read_at(&mut bytes, offset)?;

    let (content, stored) = bytes.split_at(bytes_expected - CRC_BYTES);
    if *stored != crc32c(content).to_le_bytes() {
        return Err(corrupt(Corrupt::rule("checksum of a map", 0, 1)));
    }

    let word = |run: &[u8], at: usize| {
        u32::from_le_bytes([run[at], run[at + 1], run[at + 2], run[at + 3]])
    };

    // Runs ascend, and are stored without gaps, so each address maps to one offset.
    let mut runs = Vec::with_capacity(count as usize);
    let mut unit = FIRST_UNIT;
    let mut stored = FIRST_UNIT;

    for bytes in content.chunks_exact(RUN_BYTES) {
        let run = Run { unit: word(bytes, 0), stored: word(bytes, 4), units: word(bytes, 8) };
        let ends = run.unit.checked_add(run.units).zip(run.stored.checked_add(run.units));
        let Some(ends) = ends.filter(|_| unit <= run.unit && stored == run.stored) else {
            let what = Corrupt::rule("runs ascend", u64::from(unit), u64::from(run.unit));
            return Err(corrupt(what));
        };
        (unit, stored) = ends;
        runs.push(run);
    }

    debug_assert_eq!(runs.len(), count as usize, "a map has as many runs as its head says");
    if u64::from(stored) * UNIT_BYTES != offset {
        let what = Corrupt::rule("offset of a map", u64::from(stored) * UNIT_BYTES, offset);
        return Err(corrupt(what));
    }

    Ok(RunMap::new(runs))
}

/// Writer of the records of a copy: writes 1 MiB at a time, and syncs every 2 MiB.
struct CopyWriter<'a> {
    file: &'a dyn DiskFile,
    /// Bytes to be written, and their offset.
    ready: Vec<u8>,
    at: u64,
    unsynced: usize,
    pace: &'a mut dyn FnMut(u64) -> Result<()>,
}

impl<'a> CopyWriter<'a> {
    fn new(file: &'a dyn DiskFile, at: u64, pace: &'a mut dyn FnMut(u64) -> Result<()>) -> Self {
        Self { file, ready: Vec::new(), at, unsynced: 0, pace }
    }

    /// Takes bytes up to the end of the window; returns their number.
    fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        debug_assert!(self.ready.len() < WINDOW_BYTES, "a full window was written");
        let some = bytes.len().min(WINDOW_BYTES - self.ready.len());
        self.ready.extend_from_slice(&bytes[..some]);
        if self.ready.len() == WINDOW_BYTES {
            self.write()?;
        }
        debug_assert!(some > 0 || bytes.is_empty(), "each call takes bytes");
        debug_assert!(self.ready.len() < WINDOW_BYTES, "a full window was written");
        Ok(some)
    }

    /// Writes the bytes that are ready.
    fn write(&mut self) -> Result<()> {
        debug_assert!(self.ready.len() <= WINDOW_BYTES, "a window is written when it is full");
        if self.ready.is_empty() {
            return Ok(());
        }
        self.file.write_at(&self.ready, self.at)?;
        self.at += self.ready.len() as u64;
        self.unsynced += self.ready.len();

        // The sync of a commit may have to wait for these bytes: keep them few.
        if self.unsynced >= UNSYNCED_BYTES_MAX {
            self.file.sync()?;
            self.unsynced = 0;
        }

        debug_assert!(self.unsynced < UNSYNCED_BYTES_MAX, "few bytes are unsynced");
        (self.pace)(self.ready.len() as u64)?;
        self.ready.clear();
        Ok(())
    }
}

/// Writes a copy of a chunk with only `runs`, ascending runs of `source`, to a new synced file.
///
/// Cost: reads and writes the runs, 1 MiB at a time, with what is between them if it is little;
/// `pace` is called with the bytes of each write. A sync for every 2 MiB.
pub(crate) fn write_compacted(
    disk: &dyn Disk,
    path: &Path,
    source: &Chunk,
    runs: &[Run],
    pace: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    debug_assert!(runs.windows(2).all(|pair| pair[0].unit + pair[0].units <= pair[1].unit));
    let file = create_afresh(disk, path, OpenMode::CreateNew, Access::Buffered)?;
    let mut next = FIRST_UNIT;
    let mut map = Vec::with_capacity(runs.len() * RUN_BYTES + CRC_BYTES);
    let end = runs.last().map_or(0, |run| u64::from(run.stored + run.units) * UNIT_BYTES);

    // Small runs share reads and writes of 1 MiB, with the garbage between them.
    let mut read = Vec::new();

    let mut read_at = 0;
    let mut copy = CopyWriter::new(&*file, u64::from(next) * UNIT_BYTES, pace);
    for run in runs {
        for word in [run.unit, next, run.units] {
            map.extend_from_slice(&word.to_le_bytes());
        }
        next += run.units;
        let mut from = u64::from(run.stored) * UNIT_BYTES;
        let mut left = run.units as usize * UNIT_BYTES as usize;

        while left > 0 {
            debug_assert!(from < end, "runs of a chunk ascend in its file too");
            debug_assert!(read_at <= from, "reads go forward");
            if from >= read_at + read.len() as u64 {
                read.resize((end - from).min(WINDOW_BYTES as u64) as usize, 0);
                source.file.read_at(&mut read, from)?;
                read_at = from;
            }
            let there = &read[(from - read_at) as usize..];
            let some = copy.put(&there[..there.len().min(left)])?;
            from += some as u64;
            left -= some;
        }
    }

    copy.write()?;
    debug_assert_eq!(copy.at, u64::from(next) * UNIT_BYTES, "runs are stored without gaps");

    // The map and the head come last: a copy without them is no chunk.
    debug_assert_eq!(map.len(), runs.len() * RUN_BYTES);
    let crc = crc32c(&map);
    map.extend_from_slice(&crc.to_le_bytes());
    let map_at = u64::from(next) * UNIT_BYTES;
    file.write_at(&map, map_at)?;
    let head = ChunkHead { map: Some((runs.len() as u32, map_at)), ..source.head };
    file.write_at(&head.encode(), 0)?;

    Ok(file.sync()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_io::MemoryDisk;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    fn put(disk: &dyn Disk, head: &ChunkHead, runs: &[[u32; 3]]) -> Result<Chunk> {
        let path = chunk_path(Path::new(""), head.number);
        let file = disk.open(&path, OpenMode::Truncate, Access::Buffered)?;
        let mut map = Vec::new();
        runs.iter().flatten().for_each(|word| map.extend_from_slice(&word.to_le_bytes()));
        map.extend_from_slice(&crc32c(&map).to_le_bytes());
        file.write_at(&head.encode(), 0)?;
        file.write_at(&map, head.map.map_or(CHUNK_HEAD_BYTES as u64, |(_, at)| at))?;
        let id = (head.number, Some(head.store));
        Chunk::open(disk, &path, id, OpenMode::Read, Access::Buffered)
    }

    fn head(runs: u32, map_at: u64) -> ChunkHead {
        let map = Some((runs, map_at));
        ChunkHead { version: CHUNK_VERSION, number: 5, store: 1, before: 9, chain: 3, map }
    }

    #[test]
    fn a_map_leads_to_the_records_that_are_kept() {
        let disk = MemoryDisk::new();
        let chunk = put(&*disk, &head(2, 15 * 8), &[[10, 8, 4], [20, 12, 3]]).unwrap();
        let locate = |unit| chunk.locate(Address { chunk: 5, unit });
        assert_eq!(locate(9), None);
        assert_eq!(locate(10), Some((64, 32)));
        assert_eq!(locate(13), Some((88, 8)));
        assert_eq!(locate(14), None);
        assert_eq!(locate(22), Some((112, 8)));
        assert_eq!(locate(23), None);
        assert_eq!(locate(u32::MAX), None);
    }

    #[test]
    fn any_map_is_sound_or_an_error() {
        let disk = MemoryDisk::new();
        for (runs, map_at) in [
            ([[10, 8, 4], [13, 12, 3]], 15 * 8),        // overlap
            ([[10, 8, 4], [20, 13, 3]], 16 * 8),        // a gap in the file
            ([[10, 8, 4], [20, 12, 3]], 16 * 8),        // ends before the map
            ([[10, 8, u32::MAX], [20, 12, 3]], 15 * 8), // beyond any chunk
        ] {
            assert!(put(&*disk, &head(2, map_at), &runs).is_err(), "{runs:?}");
        }

        assert!(put(&*disk, &head(u32::MAX, 64), &[]).is_err(), "longer than the file");
        assert!(put(&*disk, &head(1, u64::MAX), &[]).is_err());
        for_each_seed("any_map_is_sound_or_an_error", 500, |rng, _| {
            let mut word = || [0, 1, 8, 9, 10, u32::MAX - 1, u32::MAX][rng.index(7)];
            let runs = [[word(), word(), word()], [word(), word(), word()]];
            if let Ok(chunk) = put(&*disk, &head(2, 80), &runs) {
                for unit in [0, 8, 9, 10, u32::MAX] {
                    chunk.locate(Address { chunk: 5, unit });
                }
            }
        });
    }

    #[test]
    fn any_head_is_one_or_an_error() {
        let path = Path::new("chunk");
        let bytes = head(2, 80).encode();
        assert_eq!(ChunkHead::decode(path, &bytes).unwrap(), head(2, 80));
        for at in 0..bytes.len() {
            let mut altered = bytes;
            altered[at] ^= 4;
            assert!(ChunkHead::decode(path, &altered).is_err(), "byte {at}");
        }
    }

    /// Any runs, with gaps of any size: the copy has their bytes, back to back, and small runs
    /// share reads and writes.
    #[test]
    fn a_compacted_copy_has_the_runs_and_takes_few_calls() {
        let mut largest = 0;
        for_each_seed("a_compacted_copy_has_the_runs_and_takes_few_calls", 20, |rng, seed| {
            let disk = terrane_io::SimDisk::new(seed);
            let shared: &dyn Disk = &*disk;
            let chunk = Chunk::create(shared, Path::new(""), head_of(0)).unwrap();
            let mut runs = Vec::new();
            let mut unit = FIRST_UNIT;
            let mut content = Vec::new();
            for _ in 0..=rng.below(500) {
                let scale = if rng.chance(1, 100) { 200_000 } else { 30 };
                unit += rng.below(scale) as u32;
                let units = 1 + rng.below(scale) as u32;
                runs.push(Run { unit, stored: unit, units });
                let bytes: Vec<u8> = (0..units * 8).map(|_| rng.below(256) as u8).collect();
                chunk.file.write_at(&bytes, u64::from(unit) * UNIT_BYTES).unwrap();
                content.extend_from_slice(&bytes);
                unit += units;
            }
            let calls = disk.calls();
            let mut paced = 0;
            chunk.file.sync().unwrap();
            let before = disk.pending();
            let mut pace = |bytes: u64| {
                paced += bytes;
                let writes = disk.pending() - before;
                assert!(writes <= 3, "{writes} writes wait to be synced");
                Ok(())
            };
            write_compacted(shared, Path::new("copy"), &chunk, &runs, &mut pace).unwrap();
            let windows = (u64::from(unit) * UNIT_BYTES).div_ceil(WINDOW_BYTES as u64);
            assert!(disk.calls() - calls < 20 + 3 * windows, "{}", disk.calls() - calls);
            assert_eq!(paced, content.len() as u64);
            let mode = OpenMode::Read;
            let access = Access::Buffered;
            let copy = Chunk::open(shared, Path::new("copy"), (0, None), mode, access).unwrap();
            let kept = copy.runs.as_ref().unwrap().as_slice();
            assert!(
                kept.iter()
                    .map(|run| (run.unit, run.units))
                    .eq(runs.iter().map(|run| (run.unit, run.units)))
            );
            let mut copied = vec![0; content.len()];
            copy.file.read_at(&mut copied, CHUNK_HEAD_BYTES as u64).unwrap();
            assert!(copied == content);
            largest = largest.max(content.len());
        });

        assert!(largest > 2 * UNSYNCED_BYTES_MAX, "{largest}");
    }

    fn head_of(number: u32) -> ChunkHead {
        ChunkHead { version: CHUNK_VERSION, number, store: 1, before: 0, chain: 0, map: None }
    }
}
