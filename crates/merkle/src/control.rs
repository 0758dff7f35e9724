//! The control record: the rules of a store, and where recovery begins. Two pages of 4 KiB in the file `control` are
//! written in turns; the newer one that is whole counts.
//!
//! Invariant: what a record refers to was synced before it is written.

#![doc = include_str!("../../../docs/format/context-control.md")]

use std::path::Path;

use terrane_io::checksum::crc32c;

use crate::address::{Address, Place};
use crate::corrupt::Corrupt;
use crate::error::{Error, Result};
use crate::rules::{Rules, Scheme};

/// Name of the file.
pub(crate) const CONTROL: &str = "control";
pub(crate) const CONTROL_PAGE_BYTES: usize = 4096;
/// First bytes of a page.
pub(crate) const CONTROL_MAGIC: [u8; 8] = *b"TRNMCTRL";
/// Format version of the control record.
pub(crate) const CONTROL_VERSION: u32 = 1;
/// Bytes that say something.
const CONTROL_BYTES: usize = 124;
const CRC_AT: usize = CONTROL_PAGE_BYTES - 4;

/// Which objects are found by their hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Indexing {
    /// Commits only.
    Minimal,
    /// Every object, so that none is stored twice.
    Always,
}

/// What the control record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) rules: Rules,
    pub(crate) indexing: Indexing,
    /// Volumes of the archive; without any, what is collected is removed.
    pub(crate) volumes: u16,
    pub(crate) store: u64,
    pub(crate) sequence: u64,
    pub(crate) tail: Address,
    pub(crate) chain: u32,
    pub(crate) first: u32,
    pub(crate) last: Option<Place>,
    pub(crate) branches: Option<Place>,
    pub(crate) table: Option<Place>,
    pub(crate) kept: Option<Place>,
    pub(crate) commits: u64,
    pub(crate) retained: Address,
    pub(crate) collecting: u32,
}

/// Whether pages are those of a control record, of whatever version, damaged or not.
pub(crate) fn is_control(pages: &[u8]) -> bool {
    pages.chunks(CONTROL_PAGE_BYTES).any(|page| page.starts_with(&CONTROL_MAGIC))
}

impl Control {
    /// What a collection changes: where this differs, chunks have other files.
    pub(crate) fn collection(&self) -> (u32, Address, u32, u16) {
        (self.first, self.retained, self.collecting, self.volumes)
    }

    /// Where its page begins in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.sequence % 2 * CONTROL_PAGE_BYTES as u64
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CONTROL_PAGE_BYTES);
        self.put(&mut bytes);
        bytes.resize(CRC_AT, 0);
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The control record of a copy without its checksum.
    pub(crate) fn of_copy(path: &Path, copy: &[u8]) -> Result<Self> {
        let mut page = copy.get(..CONTROL_BYTES).unwrap_or(copy).to_vec();
        page.resize(CRC_AT, 0);
        let crc = crc32c(&page);
        page.extend_from_slice(&crc.to_le_bytes());
        Self::decode(path, &page)
    }

    /// Everything but the checksum.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
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
        for place in [self.last, self.branches, self.table, self.kept] {
            let (at, len) = place.map_or((0, 0), |place| (place.at.to_u64(), place.bytes));
            bytes.extend_from_slice(&at.to_le_bytes());
            bytes.extend_from_slice(&len.to_le_bytes());
        }
        bytes.extend_from_slice(&self.commits.to_le_bytes());
        bytes.extend_from_slice(&self.retained.to_u64().to_le_bytes());
        bytes.extend_from_slice(&self.collecting.to_le_bytes());
    }

    fn decode(path: &Path, page: &[u8]) -> Result<Self> {
        let corrupt = |rule, expected, found| Error::Corrupt {
            path: path.to_owned(),
            address: None,
            what: Corrupt::rule(rule, expected, found),
        };
        let mut reader = terrane_io::bytes::Reader::new(page);
        let short =
            |_| corrupt("length of a control page", CONTROL_PAGE_BYTES as u64, page.len() as u64);
        if page.len() != CONTROL_PAGE_BYTES {
            return Err(corrupt(
                "length of a control page",
                CONTROL_PAGE_BYTES as u64,
                page.len() as u64,
            ));
        }
        let (content, stored) = page.split_at(CRC_AT);
        let computed = crc32c(content).to_le_bytes();
        if stored != computed {
            return Err(corrupt("checksum of a control page", 0, 1));
        }
        if reader.take(8).map_err(short)? != CONTROL_MAGIC {
            return Err(Error::NotAContextStore { path: path.to_owned() });
        }
        let version = reader.u32().map_err(short)?;
        if version != CONTROL_VERSION {
            let newest = CONTROL_VERSION;
            return Err(Error::UnsupportedVersion {
                path: path.to_owned(),
                found: version,
                newest,
            });
        }
        let scheme = match reader.u8().map_err(short)? {
            1 => Scheme::Tezos,
            2 => Scheme::Blake3,
            other => return Err(corrupt("scheme", 1, u64::from(other))),
        };
        let indexing = match reader.u8().map_err(short)? {
            1 => Indexing::Minimal,
            2 => Indexing::Always,
            other => return Err(corrupt("indexing", 1, u64::from(other))),
        };
        let volumes = reader.u16().map_err(short)?;
        let (branching, flat_limit) = (reader.u32().map_err(short)?, reader.u32().map_err(short)?);
        let rules = Rules { scheme, branching, flat_limit };
        rules.check()?;
        let (store, sequence) = (reader.u64().map_err(short)?, reader.u64().map_err(short)?);
        let tail = Address::from_u64(reader.u64().map_err(short)?);
        let (chain, first) = (reader.u32().map_err(short)?, reader.u32().map_err(short)?);
        let mut place = || -> Result<Option<Place>> {
            let at = Address::from_u64(reader.u64().map_err(short)?);
            let bytes = reader.u32().map_err(short)?;
            Ok((bytes > 0).then_some(Place { at, bytes }))
        };
        let (last, branches, table, kept) = (place()?, place()?, place()?, place()?);
        let commits = reader.u64().map_err(short)?;
        let retained = Address::from_u64(reader.u64().map_err(short)?);
        let collecting = reader.u32().map_err(short)?;
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

    /// The records of both pages that are whole, the newer one first; the error of the first page if none is.
    pub(crate) fn read(path: &Path, bytes: &[u8]) -> Result<Vec<Self>> {
        let pages: Vec<Result<Self>> =
            bytes.chunks(CONTROL_PAGE_BYTES).take(2).map(|page| Self::decode(path, page)).collect();
        let mut whole: Vec<Self> =
            pages.iter().filter_map(|page| page.as_ref().ok()).copied().collect();
        whole.sort_by_key(|control| std::cmp::Reverse(control.sequence));
        match pages.into_iter().next() {
            Some(Err(error)) if whole.is_empty() => Err(error),
            None => Err(Error::NotAContextStore { path: path.to_owned() }),
            _ => Ok(whole),
        }
    }
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
            last: Some(Place { at: Address { chunk: 4, unit: 50 }, bytes: 90 }),
            branches: None,
            table: Some(Place { at: Address { chunk: 3, unit: 8 }, bytes: 40 }),
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
            assert!(Control::read(path, &page[..rng.index(page.len())]).is_err());
        });
    }

    #[test]
    fn the_newer_page_that_is_whole_counts() {
        let path = Path::new("control");
        let mut pages = [control(8).encode(), control(7).encode()].concat();
        let sequences = |pages: &[u8]| -> Vec<u64> {
            Control::read(path, pages).unwrap().iter().map(|control| control.sequence).collect()
        };
        assert_eq!(sequences(&pages), [8, 7]);
        pages[3] ^= 1;
        assert_eq!(sequences(&pages), [7]);
        pages[CONTROL_PAGE_BYTES] ^= 1;
        assert!(Control::read(path, &pages).is_err());
    }
}
