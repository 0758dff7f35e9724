//! Control record: the rules of a store, and the address at which recovery begins.
//!
//! The file `control` has two pages of 4 KiB that are written in turns; the newer intact page
//! counts. The durable mark follows, which the writer moves after each sync of the pack.
//!
//! Invariant: all that a control record refers to, and all bytes before the mark, were synced
//! before the record or the mark is written. So the tail of the newest intact record and the mark
//! are lower bounds of the durable end: a pack that ends before either is damaged.

#![doc = include_str!("../../../../docs/format/context-control.md")]

use std::path::Path;

use terrane_io::checksum::crc32c;
use terrane_io::{Access, Disk, OpenMode};

use crate::base::address::{Address, Extent};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::hashing::{Rules, Scheme};

/// Name of the file.
pub(crate) const CONTROL: &str = "control";
pub(crate) const CONTROL_PAGE_BYTES: usize = 4096;
/// First bytes of a page.
pub(crate) const CONTROL_MAGIC: [u8; 8] = *b"TRNMCTRL";
/// Format version of the control record.
pub(crate) const CONTROL_VERSION: u32 = 2;
/// Length of the file.
pub(crate) const CONTROL_FILE_BYTES: usize = 3 * CONTROL_PAGE_BYTES;
/// First bytes of the durable mark.
pub(crate) const MARK_MAGIC: [u8; 8] = *b"TRNMMARK";
/// Offset of the mark in the file: a sector of its own, so that a torn write leaves the old mark or
/// the new one.
pub(crate) const MARK_AT: u64 = 2 * CONTROL_PAGE_BYTES as u64;
pub(crate) const MARK_BYTES: usize = 32;
/// Bytes of a page that are not padding.
const CONTROL_BYTES: usize = 124;
/// Length of the record with a copy of the control record: length, kind, copy and checksum.
pub(crate) const STATE_BYTES: u32 = 1 + 1 + CONTROL_BYTES as u32 + 4;
const CRC_AT: usize = CONTROL_PAGE_BYTES - 4;

/// Set of objects that the index finds by their hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Indexing {
    /// Commits only.
    Minimal,
    /// All objects, so that no object is stored twice.
    Always,
}

/// Content of a control record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) rules: Rules,
    pub(crate) indexing: Indexing,
    /// Number of volumes of the archive. Without volumes a collection removes what it collects.
    pub(crate) volumes: u16,
    pub(crate) store: u64,
    pub(crate) sequence: u64,
    pub(crate) tail: Address,
    pub(crate) chain: u32,
    pub(crate) first: u32,
    pub(crate) last: Option<Extent>,
    pub(crate) branches: Option<Extent>,
    pub(crate) table: Option<Extent>,
    pub(crate) kept: Option<Extent>,
    pub(crate) commits: u64,
    pub(crate) retained: Address,
    pub(crate) collecting: u32,
}

/// Returns whether the bytes have a page of a control record, of any version, damaged or not.
pub(crate) fn is_control(pages: &[u8]) -> bool {
    pages.chunks(CONTROL_PAGE_BYTES).any(|page| page.starts_with(&CONTROL_MAGIC))
}

fn scheme_of(tag: u8) -> Option<Scheme> {
    match tag {
        1 => Some(Scheme::Tezos),
        2 => Some(Scheme::Blake3),
        _ => None,
    }
}

fn indexing_of(tag: u8) -> Option<Indexing> {
    match tag {
        1 => Some(Indexing::Minimal),
        2 => Some(Indexing::Always),
        _ => None,
    }
}

/// Refuses a page of another length, or with a wrong checksum.
fn check_page(page: &[u8]) -> std::result::Result<(), Corrupt> {
    if page.len() != CONTROL_PAGE_BYTES {
        let found = page.len() as u64;
        return Err(Corrupt::rule("length of a control page", CONTROL_PAGE_BYTES as u64, found));
    }
    let (content, stored) = page.split_at(CRC_AT);
    if stored != crc32c(content).to_le_bytes() {
        return Err(Corrupt::rule("checksum of a control page", 0, 1));
    }
    Ok(())
}

impl Control {
    /// Fields that a collection changes: if they differ, chunks have other files.
    pub(crate) fn collection(&self) -> (u32, Address, u32, u16) {
        (self.first, self.retained, self.collecting, self.volumes)
    }

    /// Offset of the page of this record in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.sequence % 2 * CONTROL_PAGE_BYTES as u64
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CONTROL_PAGE_BYTES);
        self.put(&mut bytes);

        // The rest of the page is zero, and the checksum covers it.
        bytes.resize(CRC_AT, 0);
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        assert_eq!(bytes.len(), CONTROL_PAGE_BYTES, "a control record fills its page");
        bytes
    }

    /// Decodes a copy of a control record, which has no checksum.
    pub(crate) fn of_copy(path: &Path, copy: &[u8]) -> Result<Self> {
        let mut page = copy.get(..CONTROL_BYTES).unwrap_or(copy).to_vec();

        // The frame around the copy has a checksum; the page gets its own to pass the decoder.
        page.resize(CRC_AT, 0);
        let crc = crc32c(&page);
        page.extend_from_slice(&crc.to_le_bytes());
        Self::decode(path, &page)
    }

    /// Writes the record without its checksum.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        assert!(self.first <= self.tail.chunk, "the last chunk is kept");
        let start = bytes.len();

        bytes.extend_from_slice(&CONTROL_MAGIC);
        bytes.extend_from_slice(&CONTROL_VERSION.to_le_bytes());
        bytes.push(match self.rules.scheme {
            Scheme::Tezos => 1,
            Scheme::Blake3 => 2,
        });

        bytes.push(match self.indexing {
            Indexing::Minimal => 1,
            Indexing::Always => 2,
        });

        bytes.extend_from_slice(&self.volumes.to_le_bytes());
        for word in [self.rules.branching, self.rules.flat_limit] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }

        for word in [self.store, self.sequence, self.tail.to_u64()] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }

        for word in [self.chain, self.first] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }

        for extent in [self.last, self.branches, self.table, self.kept] {
            let (at, len) = extent.map_or((0, 0), |extent| (extent.at.to_u64(), extent.bytes));
            bytes.extend_from_slice(&at.to_le_bytes());
            bytes.extend_from_slice(&len.to_le_bytes());
        }

        bytes.extend_from_slice(&self.commits.to_le_bytes());
        bytes.extend_from_slice(&self.retained.to_u64().to_le_bytes());
        bytes.extend_from_slice(&self.collecting.to_le_bytes());
        assert_eq!(bytes.len() - start, CONTROL_BYTES, "the layout of the format document");
    }

    fn decode(path: &Path, page: &[u8]) -> Result<Self> {
        let corrupt = |rule, expected, found| Error::Corrupt {
            path: path.to_owned(),
            address: None,
            what: Corrupt::rule(rule, expected, found),
        };

        check_page(page).map_err(|what| Error::Corrupt {
            path: path.to_owned(),
            address: None,
            what,
        })?;

        let mut reader = terrane_io::bytes::Reader::new(page);

        let short =
            |_| corrupt("length of a control page", CONTROL_PAGE_BYTES as u64, page.len() as u64);
        if reader.take(8).map_err(short)? != CONTROL_MAGIC {
            return Err(Error::NotAContextStore { path: path.to_owned() });
        }

        // Only after the checksum: a damaged version must not look like a newer program's file.
        let found = reader.u32().map_err(short)?;
        if found != CONTROL_VERSION {
            let path = path.to_owned();
            let newest = CONTROL_VERSION;
            return Err(Error::UnsupportedVersion { path, found, newest });
        }

        let scheme = reader.u8().map_err(short)?;
        let scheme = scheme_of(scheme).ok_or_else(|| corrupt("scheme", 1, scheme.into()))?;
        let indexing = reader.u8().map_err(short)?;
        let indexing =
            indexing_of(indexing).ok_or_else(|| corrupt("indexing", 1, indexing.into()))?;
        let volumes = reader.u16().map_err(short)?;
        let branching = reader.u32().map_err(short)?;
        let flat_limit = reader.u32().map_err(short)?;
        let rules = Rules { scheme, branching, flat_limit };
        rules.check()?;
        let store = reader.u64().map_err(short)?;
        let sequence = reader.u64().map_err(short)?;
        let tail = Address::from_u64(reader.u64().map_err(short)?);
        let chain = reader.u32().map_err(short)?;
        let first = reader.u32().map_err(short)?;

        let mut extent = || -> Result<Option<Extent>> {
            let at = Address::from_u64(reader.u64().map_err(short)?);
            let bytes = reader.u32().map_err(short)?;
            Ok((bytes > 0).then_some(Extent { at, bytes }))
        };

        let last = extent()?;
        let branches = extent()?;
        let table = extent()?;
        let kept = extent()?;
        let commits = reader.u64().map_err(short)?;
        let retained = Address::from_u64(reader.u64().map_err(short)?);
        let collecting = reader.u32().map_err(short)?;

        // A collection keeps the chunk that is written to.
        if first > tail.chunk {
            return Err(corrupt("the first chunk", u64::from(tail.chunk), u64::from(first)));
        }

        Ok(Self {
            rules,
            indexing,
            volumes,
            store,
            sequence,
            tail,
            chain,
            first,
            last,
            branches,
            table,
            kept,
            commits,
            retained,
            collecting,
        })
    }
}

/// Durable mark: lower bound of the durable end of the pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) store: u64,
    pub(crate) end: Address,
}

impl Mark {
    pub(crate) fn encode(&self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        bytes[..8].copy_from_slice(&MARK_MAGIC);
        bytes[8..16].copy_from_slice(&self.store.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.end.to_u64().to_le_bytes());
        let crc = crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a mark; `None` if no mark was ever written.
    fn decode(path: &Path, bytes: &[u8; MARK_BYTES]) -> Result<Option<Self>> {
        if *bytes == [0; MARK_BYTES] {
            return Ok(None);
        }
        let long =
            |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let mark = Self { store: long(8), end: Address::from_u64(long(16)) };

        // Comparing encodings also refuses bytes that should be zero.
        if *bytes != mark.encode() {
            let what = Corrupt::rule("checksum of the durable mark", 0, 1);
            return Err(Error::Corrupt { path: path.to_owned(), address: None, what });
        }

        Ok(Some(mark))
    }
}

/// Content of the file `control`.
#[derive(Debug)]
pub(crate) struct ControlFile {
    /// Records of the intact pages, at least one, newest first.
    pub(crate) whole: Vec<Control>,
    /// Reasons why the other page, or the mark, does not count: damage, or an unreadable sector.
    pub(crate) damaged: Vec<Error>,
    mark: Option<Mark>,
}

impl ControlFile {
    /// Reads the file. A damaged or unreadable page does not count; the other page does.
    ///
    /// Cost: three reads.
    ///
    /// # Errors
    /// The error of the first page if neither page is whole; [`Disk`](Error::Disk) if the file
    /// cannot be opened.
    pub(crate) fn read(disk: &dyn Disk, path: &Path) -> Result<Self> {
        let file = disk.open(path, OpenMode::Read, Access::Buffered)?;
        let len = file.len()?;

        let page = |number: usize| -> Result<Control> {
            let at = (number * CONTROL_PAGE_BYTES) as u64;
            let mut bytes = vec![0; len.saturating_sub(at).min(CONTROL_PAGE_BYTES as u64) as usize];
            file.read_at(&mut bytes, at)?;
            Control::decode(path, &bytes)
        };

        let mut whole = Vec::new();
        let mut damaged = Vec::new();
        for number in 0..2 {
            match page(number) {
                Ok(control) => whole.push(control),
                Err(error) => damaged.push(error),
            }
        }

        // Newest first: its record, and its store, count.
        whole.sort_by_key(|control| std::cmp::Reverse(control.sequence));
        debug_assert_eq!(whole.len() + damaged.len(), 2, "each page is whole or damaged");
        let Some(newest) = whole.first() else {
            let blank = Error::NotAContextStore { path: path.to_owned() };
            return Err(damaged.into_iter().next().unwrap_or(blank));
        };

        // A bad mark is no error: the tails of the records still bound the durable end.
        let mut bytes = [0; MARK_BYTES];
        let read = file.read_at(&mut bytes, MARK_AT).map_err(Error::from);
        let mark = match read.and_then(|()| Mark::decode(path, &bytes)) {
            Ok(mark) if mark.is_none_or(|mark| mark.store == newest.store) => mark,
            Ok(_) => {
                let what = Corrupt::rule("store of the durable mark", newest.store, 0);
                damaged.push(Error::Corrupt { path: path.to_owned(), address: None, what });
                None
            }
            Err(error) => {
                damaged.push(error);
                None
            }
        };

        Ok(Self { whole, damaged, mark })
    }

    /// Reads the mark alone, from a file whose records may be damaged.
    pub(crate) fn mark_of(disk: &dyn Disk, path: &Path) -> Option<Mark> {
        let file = disk.open(path, OpenMode::Read, Access::Buffered).ok()?;
        let mut bytes = [0; MARK_BYTES];
        file.read_at(&mut bytes, MARK_AT).ok()?;
        Mark::decode(path, &bytes).ok()?
    }

    pub(crate) fn newest(&self) -> &Control {
        &self.whole[0]
    }

    /// Lower bound of the durable end. An incomplete frame before it is corruption, never a torn
    /// write.
    pub(crate) fn durable(&self) -> Address {
        let tails = self.whole.iter().map(|control| control.tail);
        let marks = self.mark.iter().map(|mark| mark.end);
        tails.chain(marks).max().unwrap_or(self.newest().tail)
    }
}

/// Returns the bytes of a file with this record in both pages, under successive numbers, and a
/// mark.
pub(crate) fn encode_file(control: &Control, mark: Mark) -> Vec<u8> {
    debug_assert_eq!(control.store, mark.store, "record and mark are of one store");
    let mut bytes = vec![0; CONTROL_FILE_BYTES];

    // Both pages, so that the loss of one page brings no older record back.
    for record in [*control, Control { sequence: control.sequence + 1, ..*control }] {
        let at = record.offset() as usize;
        bytes[at..at + CONTROL_PAGE_BYTES].copy_from_slice(&record.encode());
    }
    bytes[MARK_AT as usize..][..MARK_BYTES].copy_from_slice(&mark.encode());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    fn control(sequence: u64) -> Control {
        Control {
            rules: Rules::TEZOS,
            indexing: Indexing::Always,
            volumes: 2,
            store: 0x1234,
            sequence,
            tail: Address { chunk: 4, unit: 100 },
            chain: 77,
            first: 2,
            last: Some(Extent { at: Address { chunk: 4, unit: 50 }, bytes: 90 }),
            branches: None,
            table: Some(Extent { at: Address { chunk: 3, unit: 8 }, bytes: 40 }),
            kept: None,
            commits: 12,
            retained: Address { chunk: 3, unit: 0 },
            collecting: 3,
        }
    }

    #[test]
    fn any_page_is_a_control_record_or_an_error() {
        let path = Path::new("control");
        let page = control(6).encode();
        assert_eq!(Control::decode(path, &page).unwrap(), control(6));

        for at in 0..page.len() {
            let mut altered = page.clone();
            altered[at] ^= 0x10;
            assert!(Control::decode(path, &altered).is_err(), "byte {at}");
        }

        for_each_seed("any_page_is_a_control_record_or_an_error", 500, |rng, _| {
            let mut altered = page.clone();
            for _ in 0..=rng.below(4) {
                altered[rng.index(124)] = rng.below(256) as u8;
            }
            let crc = crc32c(&altered[..CRC_AT]);
            altered[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
            if let Ok(decoded) = Control::decode(path, &altered) {
                assert!(decoded.first <= decoded.tail.chunk);
                assert!(decoded.rules.check().is_ok());
            }
            assert!(Control::decode(path, &rng.bytes(CONTROL_PAGE_BYTES)).is_err());
            assert!(Control::decode(path, &page[..rng.index(page.len())]).is_err());
        });
    }

    fn read(bytes: &[u8]) -> Result<ControlFile> {
        let disk = terrane_io::MemoryDisk::new();
        let path = Path::new("control");
        disk.open(path, OpenMode::CreateNew, Access::Buffered)?.write_at(bytes, 0)?;
        ControlFile::read(&*disk, path)
    }

    #[test]
    fn the_newer_page_that_is_whole_counts() {
        let mut bytes = [control(8).encode(), control(7).encode()].concat();
        bytes.resize(CONTROL_FILE_BYTES, 0);
        let sequences = |bytes: &[u8]| -> (Vec<u64>, usize) {
            let file = read(bytes).unwrap();
            (file.whole.iter().map(|control| control.sequence).collect(), file.damaged.len())
        };
        assert_eq!(sequences(&bytes), (vec![8, 7], 0));
        bytes[3] ^= 1;
        assert_eq!(sequences(&bytes), (vec![7], 1));
        bytes[CONTROL_PAGE_BYTES] ^= 1;
        assert!(read(&bytes).is_err());
    }

    #[test]
    fn the_mark_and_the_tails_bound_what_was_durable() {
        let newest = control(8);
        let later = Address { chunk: 4, unit: 130 };
        let mut bytes = encode_file(&newest, Mark { store: newest.store, end: later });
        assert_eq!(read(&bytes).unwrap().durable(), later);
        assert_eq!(read(&bytes).unwrap().newest().sequence, 9);

        for bit in 0..MARK_BYTES * 8 {
            let mut altered = bytes.clone();
            altered[MARK_AT as usize + bit / 8] ^= 1 << (bit % 8);
            let file = read(&altered).unwrap();
            assert_eq!((file.durable(), file.damaged.len()), (newest.tail, 1), "bit {bit}");
        }

        let foreign = Mark { store: newest.store + 1, end: later };
        bytes[MARK_AT as usize..][..MARK_BYTES].copy_from_slice(&foreign.encode());
        assert_eq!(read(&bytes).unwrap().durable(), newest.tail);
        bytes[MARK_AT as usize..].fill(0);

        assert_eq!(read(&bytes).unwrap().damaged.len(), 0, "a store without any sync");
    }
}
