//! The control record: the rules of a store, and where recovery begins. Two pages of 4 KiB in the file `control` are
//! written in turns; the newer one that is whole counts.
//!
//! It is written when a chunk is begun and when the store is closed, always after what it refers to was synced; commits
//! in between are found by following the frames from its tail on. All integers are little-endian.
//!
//! | offset | size | field       | meaning |
//! |--------|------|-------------|---------|
//! | 0      | 8    | `magic`     | `TRNMCTRL` |
//! | 8      | 4    | `version`   | format version, now 1 |
//! | 12     | 1    | `scheme`    | 1 Tezos, 2 BLAKE3 |
//! | 13     | 1    | `indexing`  | 1 minimal, 2 always |
//! | 14     | 2    |             | zero |
//! | 16     | 4    | `branching` | buckets of an inode |
//! | 20     | 4    | `flat`      | the largest directory that is hashed flat |
//! | 24     | 8    | `store`     | identity of the store |
//! | 32     | 8    | `sequence`  | number of this record; page `sequence mod 2` holds it |
//! | 40     | 8    | `tail`      | address behind the last frame |
//! | 48     | 4    | `chain`     | what the next frame chains to |
//! | 52     | 4    | `first`     | number of the first chunk that is kept |
//! | 56     | 12   | `last`      | place of the last commit: address and length; zero if there is none |
//! | 68     | 12   | `branches`  | place of the table of branches; zero if there is none |
//! | 80     | 12   | `table`     | place of the last table of commits; zero if there is none |
//! | 92     | 12   | `kept`      | place of the table of commits below `retained` that are kept; zero if there is none |
//! | 104    | 8    | `commits`   | how many commits were made |
//! | 112    | 8    | `retained`  | address of the first commit that is kept with all that follow |
//! | 120    | 4    | `collecting`| chunks below this one may hold objects that are lost in part: a collection has not ended; 0 if none runs |
//! | 4092   | 4    | `crc`       | CRC-32C of bytes `0..4092` |
//!
//! A copy of bytes `0..124`, all but the tail, stands in the frame before each tail, from which a lost file is made again.

use std::path::Path;

use terrane_io::checksum::crc32c;

use crate::address::{Address, Place};
use crate::corrupt::Corrupt;
use crate::error::{Error, Result};
use crate::rules::{Rules, Scheme};

/// Name of the file.
pub(crate) const CONTROL: &str = "control";
pub(crate) const CONTROL_PAGE_BYTES: usize = 4096;
const MAGIC: &[u8; 8] = b"TRNMCTRL";
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
    pages.chunks(CONTROL_PAGE_BYTES).any(|page| page.starts_with(MAGIC))
}

impl Control {
    /// What a collection changes: where this differs, chunks have other files.
    pub(crate) fn collection(&self) -> (u32, Address, u32) {
        (self.first, self.retained, self.collecting)
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
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&CONTROL_VERSION.to_le_bytes());
        bytes.push(match self.rules.scheme {
            Scheme::Tezos => 1,
            Scheme::Blake3 => 2,
        });
        bytes.push(match self.indexing {
            Indexing::Minimal => 1,
            Indexing::Always => 2,
        });
        bytes.extend_from_slice(&[0; 2]);
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
        if reader.take(8).map_err(short)? != MAGIC {
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
        reader.u16().map_err(short)?;
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
        Ok(Self {
            rules,
            indexing,
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
