//! The log of a store: its commits in their order, so that what no checkpoint holds yet survives.
//!
//! The log is a series of *segments*, files that get their size when they are made and are written
//! from front to back. The writer makes the next segment ahead: the file has its name and size
//! durably, and no header. The switch is one write, that of the header. The next sync makes the
//! switch durable and *seals* the old segment; no commit of the new one is acknowledged as durable
//! before. So only the last two segments can have a torn end, and of two only if the first has no
//! seal. What a checkpoint holds is not needed any more: its segments are written again under a new
//! number, which costs no allocation.
//!
//! Reading stops at the first record that is not whole. That is the torn end of the log, unless a
//! whole record behind it, or the segment's *mark*, says that what is missing had been durable:
//! then it is damage, and is reported.
//!
//! **Mark.** A caller that has synced the log writes into a sector of its own up to which commit
//! the log is durable, before any commit of that sync is acknowledged. The mark itself is not
//! synced: it survives the end of the process at once, and a loss of power from the next sync of
//! the segment on, or when the system has written it back. So whatever subset of the sectors
//! survives, a mark never says more than what was durable. What cannot be told from a torn end is
//! damage in records of which only the last sync knew, when the power went before its mark was on
//! disk.
//!
//! Invariant: a record is visible to a reader only if all records before it are.

#![doc = include_str!("../../../../docs/format/log.md")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::bytes::{Overrun, Reader, Writer};
use terrane_io::checksum::crc32c;
use terrane_io::files::create_afresh;
use terrane_io::rare;
use terrane_io::{self as io, Access, Disk, DiskFile, EntryKind, OpenMode};

use crate::block::page::PAGE_SIZE;
use crate::corrupt::Corrupt;
use crate::entry::entry::{Kind, Update};
use crate::error::{Error, Result};
use crate::files::handles::FileHandles;
use crate::manifest::snapshot_meta::{self, Refused};
use crate::trace::event;

/// The directory of the segments.
pub(crate) const LOG: &str = "log";

/// First bytes of a segment.
pub(crate) const SEGMENT_MAGIC: [u8; 8] = *b"TerraLog";

/// Version of segments.
pub(crate) const SEGMENT_VERSION: u32 = 3;

/// First bytes of a segment's seal.
pub(crate) const SEAL_MAGIC: [u8; 8] = *b"TerraEnd";

/// Where the seal of a segment stands: in a sector of its own.
pub(crate) const SEAL_OFFSET: u64 = 512;

/// First bytes of a segment's mark.
pub(crate) const MARK_MAGIC: [u8; 8] = *b"TerraDur";

/// Where the mark of a segment stands: in a sector of its own, so that writing it tears nothing
/// else.
pub(crate) const MARK_OFFSET: u64 = 1024;

/// Bytes before the first record of a segment.
pub(crate) const SEGMENT_HEADER_SIZE: u64 = 1536;

/// Bytes of a record before its tables.
pub(crate) const RECORD_HEADER_SIZE: usize = 36;

/// Where the number of the segment stands in a record.
const SEGMENT_IN_RECORD: usize = 8;

/// Records begin at multiples of this.
pub(crate) const RECORD_ALIGN: usize = 8;

/// Largest record, in bytes.
pub(crate) const RECORD_BYTES_MAX: usize = 1 << 30;

/// Upper bound of the bytes of an update in a record, without its key, value and blob.
pub(crate) const UPDATE_BYTES: usize = 16;

/// The kind of the deletion of a range, whose value is the key behind it.
pub(crate) const DELETE_RANGE_TAG: u8 = 5;

/// The kind of the deletion of all keys from one on.
pub(crate) const DELETE_FROM_TAG: u8 = 6;

/// Smallest segment that is made where there is no room for an ordinary one.
const SEGMENT_BYTES_MIN: u64 = 16 << 10;

/// Where the checksum of a header ends, in all versions.
const SEGMENT_CRC_END: usize = 32;

/// Bytes of the shortest update in a record: its kind and two lengths.
const UPDATE_BYTES_MIN: usize = 9;

/// Bytes that most records take beside header and updates. The builder reserves them, so that a
/// record is allocated once.
const RECORD_ROOM: usize = 28;

/// Bytes that are read at once.
const WINDOW_BYTES: usize = 1 << 20;

/// The largest number of a segment. No store reaches it, and there is room to count on from it.
const SEGMENT_NUMBER_MAX: u64 = 1 << 62;

/// The number of the first segment of a store.
const SEGMENT_FIRST: u64 = 1;

/// The name of segment `number`.
pub(crate) fn segment_name(number: u64) -> String {
    format!("{number:08}.log")
}

/// The number of a segment of that name.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".log")?.parse().ok()?;
    (number <= SEGMENT_NUMBER_MAX && segment_name(number) == name).then_some(number)
}

/// The checksum of a record. The salt of the session is in it, so that nobody can put bytes into a
/// value that look like a record.
fn seal(salt: u64, bytes: &[u8]) -> u32 {
    crc32c(bytes) ^ (salt >> 32) as u32 ^ salt as u32
}

/// Header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) number: u64,
    /// The number of the commit that its first record has.
    pub(crate) first: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.put(&SEGMENT_MAGIC).u32(SEGMENT_VERSION).u64(self.number).u64(self.first);
        let crc = crc32c(out.bytes());
        out.u32(crc);
        debug_assert_eq!(out.bytes().len(), SEGMENT_CRC_END, "the header ends with its checksum");
        out.into_bytes()
    }

    /// The header that stands at the beginning of these bytes. What was never finished is damaged,
    /// too.
    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Self, Refused> {
        let header = bytes.get(..SEGMENT_CRC_END).unwrap_or(bytes);
        let mut input = snapshot_meta::open(header, SEGMENT_MAGIC, SEGMENT_VERSION)?;
        Ok(Self { number: input.u64()?, first: input.u64()? })
    }
}

/// Bytes of a note behind the header of a segment: a commit number in a sector of its own.
fn note_bytes(magic: [u8; 8], number: u64, commit: u64) -> Vec<u8> {
    let mut out = Writer::new();
    out.put(&magic).u64(number).u64(commit);
    let crc = crc32c(out.bytes());
    out.u32(crc);
    debug_assert!(out.bytes().len() as u64 <= MARK_OFFSET - SEAL_OFFSET, "a note fits its sector");
    out.into_bytes()
}

/// The beginning of a segment up to its first record, without a mark.
pub(crate) fn segment_start(header: SegmentHeader, sealed: Option<u64>) -> Vec<u8> {
    let mut bytes = header.encode();
    debug_assert!(bytes.len() as u64 <= SEAL_OFFSET, "the header ends before the seal");
    bytes.resize(SEAL_OFFSET as usize, 0);
    if let Some(last) = sealed {
        bytes.extend(note_bytes(SEAL_MAGIC, header.number, last));
    }
    debug_assert!(bytes.len() as u64 <= MARK_OFFSET, "the seal ends before the mark");
    bytes.resize(SEGMENT_HEADER_SIZE as usize, 0);
    bytes
}

/// The commit that a note of segment `number` names; `None` if there is no whole one.
fn decode_note(bytes: &[u8], magic: [u8; 8], number: u64) -> Option<u64> {
    let mut input = Reader::new(bytes);
    input.take(16).ok()?;
    let commit = input.u64().ok()?;
    // Encoding the note again checks magic, number and checksum at once.
    bytes.starts_with(&note_bytes(magic, number, commit)).then_some(commit)
}

/// Notes of a segment: the sectors behind its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Notes {
    /// The seal: the commit of the last record, written once the next segment is there.
    sealed: Option<u64>,
    /// The mark: the last commit that a sync is known to have made durable.
    durable: Option<u64>,
}

impl Notes {
    /// Reads them.
    ///
    /// # Errors
    /// Those of the disk.
    fn read(file: &dyn DiskFile, number: u64) -> io::Result<Self> {
        let mut bytes = [0; (SEGMENT_HEADER_SIZE - SEAL_OFFSET) as usize];
        file.read_at(&mut bytes, SEAL_OFFSET)?;
        Ok(Self::decode(&bytes, number))
    }

    /// The notes that stand in the bytes of a segment from [`SEAL_OFFSET`] on.
    fn decode(bytes: &[u8], number: u64) -> Self {
        let mark = &bytes[(MARK_OFFSET - SEAL_OFFSET) as usize..];
        let sealed = decode_note(bytes, SEAL_MAGIC, number);
        Self { sealed, durable: decode_note(mark, MARK_MAGIC, number) }
    }
}

/// The updates of one table in a commit.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    /// The number of the table.
    pub(crate) table: u64,
    pub(crate) updates: Vec<(&'a [u8], Update<'a>)>,
}

/// A record being made: header and tables, to be finished when its place is known.
#[derive(Debug, Default)]
pub(crate) struct RecordBuilder {
    out: Writer,
    tables: u32,
}

impl RecordBuilder {
    /// One for updates that take about so many bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        let mut out = Writer::with_capacity(RECORD_HEADER_SIZE + bytes + RECORD_ROOM);
        // The header is filled in once the place of the record is known.
        out.put(&[0; RECORD_HEADER_SIZE]);
        debug_assert_eq!(out.bytes().len(), RECORD_HEADER_SIZE, "the header has its room");
        Self { out, tables: 0 }
    }

    pub(crate) fn part<K: AsRef<[u8]>>(&mut self, table: u64, updates: &[(K, Update<'_>)]) {
        debug_assert!(u32::try_from(updates.len()).is_ok(), "updates are counted by u32");
        self.tables += 1;
        self.out.u64(table).u32(updates.len() as u32);
        for (key, update) in updates {
            let (kind, value, blob) = update.parts();
            let tag = match update {
                Update::DeleteRange(Some(_)) => DELETE_RANGE_TAG,
                Update::DeleteRange(None) => DELETE_FROM_TAG,
                _ => kind as u8,
            };
            self.out.u8(tag).string(key.as_ref()).string(value);
            if let Some(blob) = blob {
                self.out.string(blob);
            }
        }
    }

    /// The bytes of the record, for its place.
    pub(crate) fn finish(self, salt: u64, segment: u64, commit: u64, durable: u64) -> Vec<u8> {
        let room = self.len();
        let mut bytes = self.out.into_bytes();
        debug_assert!(u32::try_from(bytes.len()).is_ok(), "the length of a record is a u32");
        debug_assert!(bytes.len() >= RECORD_HEADER_SIZE, "the header has its room");
        let len = bytes.len() as u32;
        // The number of the segment is in the record, so that old records in a file used again are
        // told apart.
        for (at, field) in (8..).step_by(8).zip([segment, commit, durable]) {
            bytes[at..at + 8].copy_from_slice(&field.to_le_bytes());
        }
        bytes[32..RECORD_HEADER_SIZE].copy_from_slice(&self.tables.to_le_bytes());
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        // The checksum covers what follows its own field.
        let crc = seal(salt, &bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        // The padding is written too, so no older bytes stand between records.
        bytes.resize(bytes.len().next_multiple_of(RECORD_ALIGN), 0);
        debug_assert_eq!(bytes.len(), room, "the record takes the room that was asked for");
        bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.out.bytes().len().next_multiple_of(RECORD_ALIGN)
    }
}

/// Header of a record.
#[derive(Debug, Clone, Copy)]
struct RecordHead {
    len: usize,
    commit: u64,
    /// The last commit that was known to be durable when this one was written.
    durable: u64,
}

/// A whole record, where it was read.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    file: &'a dyn DiskFile,
    /// Where it begins.
    at: u64,
    pub(crate) commit: u64,
    /// The whole of it.
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// The error of a rule that it breaks.
    pub(crate) fn damage(&self, rule: &'static str, expected: u64, found: u64) -> Error {
        damage(self.file, self.at, rule, expected, found)
    }

    /// Where it begins in its segment.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Its updates, table by table, in a store that has had so many tables.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for what are no updates, or updates of a table that there never was.
    pub(crate) fn updates(&self, next_table: u64) -> Result<Vec<Part<'a>>> {
        let Ok(parts) = self.parts() else {
            return Err(self.damage("updates of the commit", self.commit, 0));
        };
        // A table from `next_table` on never was.
        match parts.iter().find(|part| part.table >= next_table) {
            Some(part) => {
                let last = next_table.saturating_sub(1);
                Err(self.damage("number of a table", last, part.table))
            }
            None => Ok(parts),
        }
    }

    /// The next update behind a place, which moves on, with its table; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for what is no update.
    pub(crate) fn next_update(&self, place: &mut RecordPlace) -> Result<Option<TableUpdate<'a>>> {
        self.step(place).map_err(|_| self.damage("updates of the commit", self.commit, 0))
    }

    fn step(
        &self,
        place: &mut RecordPlace,
    ) -> std::result::Result<Option<TableUpdate<'a>>, Overrun> {
        let begin = if place.at == 0 { RECORD_HEADER_SIZE - 4 } else { place.at };
        let mut input = Reader::new(self.bytes);
        input.take(begin)?;
        if place.at == 0 {
            place.parts = input.u32()?;
        }
        while place.updates == 0 {
            if place.parts == 0 {
                place.at = input.offset();
                return Ok(None);
            }
            place.parts -= 1;
            place.table = input.u64()?;
            place.updates = input.u32()?;
        }
        place.updates -= 1;
        let (key, update) = take_update(&mut input)?;
        place.at = input.offset();
        Ok(Some((place.table, key, update)))
    }

    /// Its updates, table by table.
    pub(crate) fn parts(&self) -> std::result::Result<Vec<Part<'a>>, Overrun> {
        let mut input = Reader::new(self.bytes);
        input.take(RECORD_HEADER_SIZE - 4)?;

        let tables = input.u32()?;
        let mut parts = Vec::new();
        for _ in 0..tables {
            let table = input.u64()?;
            let count = input.u32()?;
            // A forged count takes no more memory than the record has room for updates.
            let fit = input.rest().len() / UPDATE_BYTES_MIN;

            let mut updates = Vec::with_capacity(fit.min(count as usize));
            for _ in 0..count {
                updates.push(take_update(&mut input)?);
            }

            parts.push(Part { table, updates });
        }

        Ok(parts)
    }
}

/// Reads an update of a record, with its key.
fn take_update<'a>(input: &mut Reader<'a>) -> std::result::Result<(&'a [u8], Update<'a>), Overrun> {
    let at = input.offset();
    let tag = input.u8()?;
    let key = input.string()?;
    let value = input.string()?;
    let update = match Kind::from_tag(tag) {
        Some(Kind::Insert) => Update::Insert(value),
        Some(Kind::InsertBlob) => Update::InsertWithBlob(value, input.string()?),
        Some(Kind::Upsert) => Update::Upsert(value),
        Some(Kind::Delete) => Update::Delete,
        None if tag == DELETE_RANGE_TAG => Update::DeleteRange(Some(value)),
        None if tag == DELETE_FROM_TAG => Update::DeleteRange(None),
        // What only merges make.
        Some(Kind::TooLarge) | None => return Err(Overrun { offset: at, wanted: 1, left: 0 }),
    };
    Ok((key, update))
}

/// The number of a table, a key, and the change of it.
type TableUpdate<'a> = (u64, &'a [u8], Update<'a>);

/// A place between two updates of a record.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecordPlace {
    /// Bytes before it; 0 for the beginning.
    at: usize,
    /// Parts that begin behind it.
    parts: u32,
    /// The part that it is in, and updates of that behind it.
    table: u64,
    updates: u32,
}

/// The error of a rule that is broken at byte `at` of a segment.
fn damage(file: &dyn DiskFile, at: u64, rule: &'static str, expected: u64, found: u64) -> Error {
    let page = (at / PAGE_SIZE as u64) as u32;
    Error::corrupt(file.path(), Corrupt { page, rule, expected, found })
}

/// The rule that the end of a log breaks where a record is missing that was durable.
const LOST_DURABLE: &str = "last commit known to be durable";

/// Reads a segment from front to back.
pub(crate) struct SegmentScan {
    file: Arc<dyn DiskFile>,
    pub(crate) header: SegmentHeader,
    notes: Notes,
    salt: u64,
    len: u64,
    /// Where the next record begins.
    at: u64,
    window: Vec<u8>,
    window_at: u64,
    /// Bytes of what looked like records.
    looked_at: u64,
    last: Option<Last>,
}

/// The record that was read last.
struct Last {
    /// Where it begins.
    at: u64,
    head: RecordHead,
    /// Its first bytes.
    bytes: [u8; RECORD_HEADER_SIZE],
}

impl SegmentScan {
    /// A segment before its first record; `None` if it was never finished.
    ///
    /// # Errors
    /// [`Error::UnknownVersion`], [`Error::Disk`].
    pub(crate) fn open(
        disk: &dyn Disk,
        store: &Path,
        salt: u64,
        number: u64,
    ) -> Result<Option<Self>> {
        let path = store.join(LOG).join(segment_name(number));
        let file = disk.open(&path, OpenMode::Read, Access::Buffered)?;
        // A shorter file was being made when its process ended.
        if file.len()? < SEGMENT_HEADER_SIZE {
            return Ok(None);
        }
        let mut bytes = vec![0; SEGMENT_HEADER_SIZE as usize];
        file.read_at(&mut bytes, 0)?;

        let header = match SegmentHeader::decode(&bytes) {
            Ok(header) => Some(header).filter(|header| header.number == number),
            Err(Refused::Damaged(_)) => None,
            Err(Refused::Version { found, newest }) => {
                return Err(Error::UnknownVersion { path, found, newest });
            }
        };

        let notes = Notes::decode(&bytes[SEAL_OFFSET as usize..], number);
        header.map(|header| Self::new(file, salt, header, notes)).transpose()
    }

    /// A segment whose header is lost, before its first record; `None` if it is too short for one.
    /// Every record says of which segment and commit it is, so that nothing but these is taken for
    /// one.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub(crate) fn open_without_header(
        disk: &dyn Disk,
        store: &Path,
        salt: u64,
        header: SegmentHeader,
    ) -> Result<Option<Self>> {
        let path = store.join(LOG).join(segment_name(header.number));
        let file = disk.open(&path, OpenMode::Read, Access::Buffered)?;
        if file.len()? < SEGMENT_HEADER_SIZE {
            return Ok(None);
        }
        // A page that cannot be read may be that of the notes: the records can still be whole.
        let notes = match Notes::read(file.as_ref(), header.number) {
            Err(error) if error.is_unreadable() => Notes { sealed: None, durable: None },
            notes => notes?,
        };
        Self::new(file, salt, header, notes).map(Some)
    }

    fn new(
        file: Arc<dyn DiskFile>,
        salt: u64,
        header: SegmentHeader,
        notes: Notes,
    ) -> Result<Self> {
        let window = Vec::new();

        let window_at = 0;
        let looked_at = 0;
        Ok(Self {
            len: file.len()?,
            file,
            header,
            notes,
            salt,
            at: SEGMENT_HEADER_SIZE,
            window,
            window_at,
            looked_at,
            last: None,
        })
    }

    /// The error of a broken rule at byte `at`.
    pub(crate) fn damage(&self, at: u64, rule: &'static str, expected: u64, found: u64) -> Error {
        damage(self.file.as_ref(), at, rule, expected, found)
    }

    /// Whether anything was ever written behind the header, whole or not, whatever the salt.
    ///
    /// # Errors
    /// [`Error::Disk`].
    fn is_written(&mut self) -> Result<bool> {
        let number = self.header.number.to_le_bytes();
        let head = self.bytes(SEGMENT_HEADER_SIZE, RECORD_HEADER_SIZE)?;
        let is_record = head.is_some_and(|head| head[SEGMENT_IN_RECORD..].starts_with(&number));
        Ok(is_record || self.notes.sealed.is_some() || self.notes.durable.is_some())
    }

    /// The last commit that its mark tells of, if it has one.
    pub(crate) fn durable(&self) -> Option<u64> {
        self.notes.durable
    }

    /// The commit of its last record, once the next segment is there.
    pub(crate) fn sealed(&self) -> Option<u64> {
        self.notes.sealed
    }

    /// The last commit that anything in this segment says was durable when it was written: its
    /// notes, or a record up to the first one that is not whole.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub(crate) fn told_durable(&mut self) -> Result<u64> {
        let mut told = self.notes.sealed.max(self.notes.durable).unwrap_or(0);
        loop {
            told = told.max(self.last.as_ref().map_or(0, |last| last.head.durable));
            if !self.advance()? {
                return Ok(told);
            }
        }
    }

    /// The same, by what was read of it so far.
    pub(crate) fn told_so_far(&self) -> u64 {
        let noted = self.notes.sealed.max(self.notes.durable).unwrap_or(0);
        noted.max(self.last.as_ref().map_or(0, |last| last.head.durable))
    }

    /// Where the record begins that was read last.
    pub(crate) fn last_at(&self) -> Option<u64> {
        self.last.as_ref().map(|last| last.at)
    }

    /// Compares what the next segment says was durable with `last`, where this one ends.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if something is missing; [`Error::Disk`].
    pub(crate) fn check_torn_before(&self, next: &mut Self, last: u64) -> Result<()> {
        let told = next.told_durable()?;
        if told > last { Err(self.damage(self.at, LOST_DURABLE, told, last)) } else { Ok(()) }
    }

    /// Looks at what has been written since: at seal and mark, and at what had been read ahead.
    pub(crate) fn look_again(&mut self) -> Result<()> {
        self.window.clear();
        self.notes = Notes::read(self.file.as_ref(), self.header.number)?;
        Ok(())
    }

    /// Whether the record that was read last still stands there: one that could not be written in
    /// full is taken back.
    pub(crate) fn is_last_there(&self) -> Result<bool> {
        let Some(last) = &self.last else { return Ok(true) };
        let mut bytes = [0; RECORD_HEADER_SIZE];
        self.file.read_at(&mut bytes, last.at)?;
        Ok(bytes == last.bytes)
    }

    /// Bytes of the file when it was opened.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.len
    }

    /// Where the next record begins.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// At least `len` bytes from `at` on, as many as are in memory; `None` if the file does not
    /// have them.
    fn bytes(&mut self, at: u64, len: usize) -> Result<Option<&[u8]>> {
        // A torn record may ask for bytes that the file does not have.
        if self.len.saturating_sub(at) < len as u64 {
            return Ok(None);
        }

        let end = self.window_at + self.window.len() as u64;
        if at < self.window_at || at + len as u64 > end {
            // A window serves many records.
            let wanted = len.max(WINDOW_BYTES).min((self.len - at) as usize);
            self.window.resize(wanted, 0);
            self.window_at = at;
            match self.file.read_at(&mut self.window, at) {
                Err(error) if error.is_unreadable() && wanted > len => {
                    // Of what lies ahead nobody may need a byte.
                    self.window.resize(len, 0);
                    self.file.read_at(&mut self.window, at).inspect_err(|_| self.window.clear())?;
                }
                read => read.inspect_err(|_| self.window.clear())?,
            }
        }

        debug_assert!(self.window_at <= at, "the window begins before what was asked for");
        let from = (at - self.window_at) as usize;
        debug_assert!(self.window.len() - from >= len, "the window holds what was asked for");
        Ok(Some(&self.window[from..]))
    }

    /// Header of the record at `at`, if the record is whole; the window then holds all of it.
    fn whole_at(&mut self, at: u64) -> Result<Option<RecordHead>> {
        let number = self.header.number;
        let salt = self.salt;
        let Some(head) = self.bytes(at, RECORD_HEADER_SIZE)? else { return Ok(None) };

        let mut head = Reader::new(head);
        let (Ok(len), Ok(crc), Ok(segment), Ok(commit), Ok(durable)) =
            (head.u32(), head.u32(), head.u64(), head.u64(), head.u64())
        else {
            return Ok(None);
        };

        let len = len as usize;
        // The number of the segment tells its records from what the file held before.
        if segment != number || !(RECORD_HEADER_SIZE..=RECORD_BYTES_MAX).contains(&len) {
            return Ok(None);
        }
        let Some(bytes) = self.bytes(at, len)? else { return Ok(None) };
        let is_whole = seal(salt, &bytes[8..len]) == crc;
        self.looked_at += len as u64;
        Ok(is_whole.then_some(RecordHead { len, commit, durable }))
    }

    /// Moves to the next record; `false` at the end.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub(crate) fn advance(&mut self) -> Result<bool> {
        let at = self.at;
        debug_assert!(at.is_multiple_of(RECORD_ALIGN as u64), "records are aligned");
        let Some(head) = self.whole_at(at)? else { return Ok(false) };
        debug_assert!((RECORD_HEADER_SIZE..=RECORD_BYTES_MAX).contains(&head.len));
        self.at += head.len.next_multiple_of(RECORD_ALIGN) as u64;
        // The first bytes tell later whether the record was taken back.
        let mut bytes = [0; RECORD_HEADER_SIZE];
        bytes.copy_from_slice(&self.window[(at - self.window_at) as usize..][..RECORD_HEADER_SIZE]);
        self.last = Some(Last { at, head, bytes });
        debug_assert!(self.at > at, "each record moves the scan on");
        Ok(true)
    }

    /// Goes back to the place before a record that it has passed.
    pub(crate) fn go_back(&mut self, at: u64) {
        debug_assert!(at <= self.at, "the scan goes back only");
        self.at = at;
        self.last = None;
    }

    /// The record that was just moved to.
    pub(crate) fn record(&self) -> Option<Record<'_>> {
        let Last { at, head, .. } = self.last.as_ref()?;
        let bytes = self.window.get(at.checked_sub(self.window_at)? as usize..)?.get(..head.len)?;
        Some(Record { file: self.file.as_ref(), at: *at, commit: head.commit, bytes })
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub(crate) fn next(&mut self) -> Result<Option<Record<'_>>> {
        Ok(if self.advance()? { self.record() } else { None })
    }

    /// The first place from `at` on where a record of this segment may stand: where its number
    /// does.
    fn next_candidate(&mut self, mut at: u64) -> Result<Option<u64>> {
        let number = self.header.number.to_le_bytes();
        loop {
            let bytes = match self.bytes(at, RECORD_HEADER_SIZE) {
                // No record can be seen there.
                Err(Error::Disk(error)) if error.is_unreadable() => {
                    // Media lose whole pages, so the search goes on behind this one.
                    at = (at + 1).next_multiple_of(PAGE_SIZE as u64);
                    continue;
                }
                bytes => bytes?,
            };

            let Some(bytes) = bytes else { return Ok(None) };
            let mut heads = bytes[SEGMENT_IN_RECORD..].chunks_exact(RECORD_ALIGN);
            if let Some(found) = heads.position(|head| head == number) {
                return Ok(Some(at + (found * RECORD_ALIGN) as u64));
            }
            let seen = (bytes.len() - SEGMENT_IN_RECORD) / RECORD_ALIGN;
            debug_assert!(seen > 0, "the search moves on");
            at += (seen * RECORD_ALIGN) as u64;
        }
    }

    /// After the last whole record, whose commit is `last`: compares it with the seal. Without one,
    /// compares it with the mark, and looks for a record behind it that says that more had been
    /// durable. Values that somebody has made to look like records, in what the segment held
    /// before, can make this long; then it ends.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if something is missing; [`Error::Disk`].
    pub(crate) fn check_end(&mut self, last: u64) -> Result<()> {
        let Notes { sealed, durable } = self.notes;
        if let Some(sealed) = sealed {
            if sealed == last {
                return Ok(());
            }
            return Err(self.damage(self.at, "last commit of the segment", sealed, last));
        }

        if let Some(durable) = durable.filter(|durable| *durable > last) {
            return Err(self.damage(self.at, LOST_DURABLE, durable, last));
        }

        let (mut at, torn_at) = (self.at, self.at);
        self.looked_at = 0;
        while self.looked_at < 4 * self.len {
            let Some(candidate) = self.next_candidate(at)? else { break };
            if let Some(record) = self.whole_at(candidate)?
                && record.durable > last
            {
                return Err(self.damage(torn_at, LOST_DURABLE, record.durable, last));
            }
            at = candidate + RECORD_ALIGN as u64;
        }

        Ok(())
    }
}

/// The numbers of the segments of a store, ascending.
pub(crate) fn segments(disk: &dyn Disk, dir: &Path) -> Result<Vec<u64>> {
    let entries = disk.list(&dir.join(LOG))?;
    let files = entries.iter().filter(|entry| entry.kind == EntryKind::File);
    let mut numbers: Vec<u64> = files.filter_map(|entry| segment_number(&entry.name)).collect();
    numbers.sort_unstable();
    debug_assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "a number is one file");
    Ok(numbers)
}

/// The first segment that tells of a manifest, if the store has any: commits were written to it, or
/// it is not the first of all. The second one is begun by a checkpoint, or behind one.
///
/// Cost: reads the beginning of each segment up to that one.
///
/// # Errors
/// [`Error::UnknownVersion`], [`Error::Disk`].
pub(crate) fn written_segment(disk: &dyn Disk, dir: &Path) -> Result<Option<u64>> {
    if disk.kind(&dir.join(LOG))? != Some(EntryKind::Directory) {
        return Ok(None);
    }
    for number in segments(disk, dir)? {
        // No record is looked at, so the salt does not matter.
        let scan = SegmentScan::open(disk, dir, 0, number)?;
        if number > SEGMENT_FIRST || scan.map_or(Ok(false), |mut scan| scan.is_written())? {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// The file of the segment that is being written, for its syncs.
#[derive(Debug, Clone)]
pub(crate) struct WalFile {
    pub(crate) file: Arc<dyn DiskFile>,
    /// The number of the segment.
    pub(crate) number: u64,
}

impl WalFile {
    /// Writes the mark: a sync has made all commits up to `commit` durable.
    ///
    /// # Errors
    /// Those of the disk; the mark is what it was then, or none.
    pub(crate) fn mark(&self, commit: u64) -> io::Result<()> {
        self.file.write_at(&note_bytes(MARK_MAGIC, self.number, commit), MARK_OFFSET)
    }
}

/// The end of the log, where records are written.
#[derive(Debug, Clone)]
pub(crate) struct WalEnd {
    files: Arc<FileHandles>,
    pub(crate) log: WalFile,
    /// Where the next record goes.
    end: u64,
    size: u64,
    is_found: bool,
}

/// Sizes and identity of a new segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    /// An old one of this number.
    Again(u64),
    /// A new file of the ordinary size.
    New,
    /// A new file that is as small as may be.
    Least,
}

/// Whether a segment is made for a commit that waits for it, or before anybody does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Now,
    /// The reserve is not touched for it.
    Ahead,
}

/// A segment that has its name and its size, durably, and no header yet: no reader takes the file
/// for a segment.
#[derive(Debug, Clone)]
pub(crate) struct BlankSegment {
    log: WalFile,
    size: u64,
}

impl BlankSegment {
    pub(crate) fn number(&self) -> u64 {
        self.log.number
    }

    /// Whether a record of so many bytes fits.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        debug_assert!(self.size >= SEGMENT_HEADER_SIZE, "a segment has its header");
        self.size - SEGMENT_HEADER_SIZE >= bytes as u64
    }

    /// Whether it is as small as may be.
    pub(crate) fn is_least(&self) -> bool {
        self.size <= SEGMENT_BYTES_MIN
    }
}

/// How segments are made.
#[derive(Debug)]
pub(crate) struct WalDir {
    files: Arc<FileHandles>,
    dir: PathBuf,
    /// Bytes of an ordinary segment.
    segment_bytes: u64,
}

impl WalDir {
    pub(crate) fn new(files: Arc<FileHandles>, store: &Path, segment_bytes: u64) -> Self {
        Self { files, dir: store.join(LOG), segment_bytes }
    }

    pub(crate) fn path(&self, number: u64) -> PathBuf {
        self.dir.join(segment_name(number))
    }

    /// Makes a segment for a record of `record` bytes; the file is durable, its name is not. An old
    /// segment that cannot be written again is removed, and a new file takes its place.
    ///
    /// # Errors
    /// Those of the disk; nothing is in the way of another attempt then.
    pub(crate) fn make(
        &self,
        number: u64,
        record: usize,
        (made, need): (Made, Need),
    ) -> io::Result<BlankSegment> {
        let reused = match made {
            Made::Again(spare) => self.reuse(number, spare, (record, need))?,
            Made::New | Made::Least => None,
        };
        if let Some(blank) = reused {
            return Ok(blank);
        }

        let (files, disk) = (&self.files, self.files.disk());
        let path = self.path(number);
        let create = || create_afresh(disk.as_ref(), &path, OpenMode::CreateNew, Access::Buffered);
        let file = self.given(need, || files.with_room(create))?;
        let blank = self.prepare(WalFile { file, number }, record, (made, need))?;
        files.synced(&path, blank.log.file.sync())?;
        Ok(blank)
    }

    /// Makes a call that may need room on the disk.
    fn given<T>(&self, need: Need, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match need {
            Need::Now => self.files.with_space(call),
            Need::Ahead => call(),
        }
    }

    /// Makes an old segment another one. `None` if the medium or its permissions refuse that: it
    /// stands in the place of the new one then, and holds nothing that is needed.
    fn reuse(
        &self,
        number: u64,
        spare: u64,
        (record, need): (usize, Need),
    ) -> io::Result<Option<BlankSegment>> {
        let (files, disk) = (&self.files, self.files.disk());
        let path = self.path(number);
        self.given(need, || disk.rename(&self.path(spare), &path))?;

        let open = || disk.open(&path, OpenMode::ReadWrite, Access::Buffered);
        let made = files.with_room(open).and_then(|file| {
            let log = WalFile { file, number };
            let blank = self.prepare(log, record, (Made::Again(spare), need))?;
            // A place that the medium refuses is found here, and not by the commit that begins the
            // segment.
            self.given(need, || blank.log.file.write_at(&[0; SEGMENT_HEADER_SIZE as usize], 0))?;
            // A failure is of this file alone, in which nothing has been promised yet.
            blank.log.file.sync()?;
            Ok(blank)
        });

        match made {
            Err(error) if error.is_unreadable() => {
                let store = self.dir.parent().unwrap_or(&self.dir);
                event!(WARN, "log.segment_unusable", store, path = %path.display(), %error);
                Ok(None)
            }
            made => made.map(Some),
        }
    }

    /// Gives the file of a segment its size.
    fn prepare(
        &self,
        log: WalFile,
        record: usize,
        (made, need): (Made, Need),
    ) -> io::Result<BlankSegment> {
        let least = (SEGMENT_HEADER_SIZE + record as u64).max(SEGMENT_BYTES_MIN);
        let size = if made == Made::Least { least } else { self.segment_bytes.max(least) };
        let size = self.make_room(log.file.as_ref(), (size, least), need)?;
        assert!(least <= size, "the record fits its new segment");
        Ok(BlankSegment { log, size })
    }

    /// Begins a segment: writes its header, which is not synced.
    ///
    /// # Errors
    /// Those of the disk; another attempt may be made then.
    pub(crate) fn begin(&self, blank: &BlankSegment, first: u64) -> io::Result<WalEnd> {
        let BlankSegment { log, size } = blank.clone();
        let header = SegmentHeader { number: log.number, first };
        self.files.with_space(|| log.file.write_at(&segment_start(header, None), 0))?;
        let files = Arc::clone(&self.files);
        Ok(WalEnd { files, log, end: SEGMENT_HEADER_SIZE, size, is_found: false })
    }

    /// Gives a segment a size; where there is no room for that, one that is smaller and no smaller
    /// than `needed`. Returns it.
    fn make_room(
        &self,
        file: &dyn DiskFile,
        (size, needed): (u64, u64),
        need: Need,
    ) -> io::Result<u64> {
        debug_assert!(needed <= size, "what is needed is a part of it");
        let len = file.len()?;
        let give = |size| {
            // Allocated first: a full disk shows before the length changes.
            file.allocate(size)?;
            file.set_len(size)
        };

        if len == size {
            return Ok(size);
        }

        let least = needed.max(len).min(size);
        match give(size) {
            Err(error) if error.is_no_space() => {
                rare::taken("a segment of the WAL gets less room than it should");
                // A part may have been allocated. The reserve is for what is needed only.
                file.set_len(len)?;
                self.given(need, || give(least))?;
                Ok(least)
            }
            given => given.map(|()| size),
        }
    }
}

impl WalEnd {
    /// The end of a log that another process has written, whose records end at byte `end`. It has
    /// room for none, so the next record goes to another segment.
    pub(crate) fn found(
        files: &Arc<FileHandles>,
        file: Arc<dyn DiskFile>,
        number: u64,
        end: u64,
    ) -> Self {
        let log = WalFile { file, number };
        Self { files: Arc::clone(files), log, end, size: end, is_found: true }
    }

    /// The number of the segment.
    pub(crate) fn number(&self) -> u64 {
        self.log.number
    }

    /// Whether half of its room is written.
    pub(crate) fn is_half_full(&self) -> bool {
        self.end >= self.size / 2
    }

    /// Whether another process has written it.
    pub(crate) fn is_found(&self) -> bool {
        self.is_found
    }

    /// Whether a record of so many bytes fits.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        debug_assert!(self.end <= self.size, "no record ends behind the segment");
        self.size - self.end >= bytes as u64
    }

    /// Writes a record, which must fit.
    ///
    /// # Errors
    /// [`Error::Disk`]: nothing, a part or all of it may have been written.
    pub(crate) fn write(&mut self, record: &[u8]) -> Result<()> {
        debug_assert!(self.has_room(record.len()), "the caller has asked for room");
        debug_assert!(self.end.is_multiple_of(RECORD_ALIGN as u64), "records are aligned");
        debug_assert!(record.len().is_multiple_of(RECORD_ALIGN), "records are padded");
        self.files.with_space(|| self.log.file.write_at(record, self.end))?;
        self.end += record.len() as u64;
        Ok(())
    }

    /// Where its records end.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Whether it has no record, and this process has made it.
    pub(crate) fn is_empty(&self) -> bool {
        self.end == SEGMENT_HEADER_SIZE && !self.is_found
    }

    /// Whether it is as small as may be.
    pub(crate) fn is_least(&self) -> bool {
        self.size <= SEGMENT_BYTES_MIN && !self.is_found
    }

    /// Notes that the next segment is there, durably, and that `last` is the last commit in this
    /// one, whose records are durable.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub(crate) fn seal(&self, last: u64) -> Result<()> {
        let seal = note_bytes(SEAL_MAGIC, self.log.number, last);
        Ok(self.files.with_space(|| self.log.file.write_at(&seal, SEAL_OFFSET))?)
    }

    /// Makes sure that a record that could not be written is not read. Where the medium refused the
    /// record, the segment takes no more of them: the place may never be writable again.
    pub(crate) fn withdraw(&mut self, error: &Error) -> Result<()> {
        let file = &self.log.file;
        // Without its length and its checksum no reader takes the bytes for a record.
        let zeroed = self.files.with_space(|| file.write_at(&[0; 8], self.end));
        if matches!(error, Error::Disk(error) if error.is_unreadable()) {
            self.size = self.end;
        }
        match zeroed {
            // A segment that ends there needs no byte of that place.
            Err(error) if error.is_unreadable() => Ok(file.set_len(self.end)?),
            zeroed => Ok(zeroed?),
        }
    }
}
