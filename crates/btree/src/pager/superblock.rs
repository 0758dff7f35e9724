//! Superblocks: which tree is the published one.
//!
//! The first two pages of a tree file are superblocks, written in turn: the superblock of generation `g` is page `g mod 2`.
//! The valid one of the higher generation counts. All of it lies in one sector of 512 bytes.
//!
//! Invariant: everything a superblock leads to is durable before it is written.

#![doc = include_str!("../../../../docs/format/btree.md")]

use std::path::Path;

use terrane_io::bytes::Writer;
use terrane_io::checksum::crc32c;
use terrane_io::{Access, AlignedBuf, Disk, OpenMode};

use crate::page::block::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::page::corrupt::Corrupt;
use crate::page::error::Error;
use crate::page::leaf::{NONE, Sizes};
use crate::page::page::{PAGE_SIZE, PageRef, u16_at, u32_at, u64_at};
use crate::pager::cache::LEVELS_MAX;
use crate::pager::free_map::{LIST_MAPS, MAP_PAGES, PAGES_MAX};

/// First bytes of a tree file.
pub(crate) const SUPERBLOCK_MAGIC: [u8; 8] = *b"TerraBTr";

/// Version of tree files.
pub(crate) const TREE_VERSION: u32 = 2;

/// No generation, position of the log or number of entries is above.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// Where the list pages stand.
const LISTS_OFFSET: usize = 240;

/// Most list pages: enough for a file of 2^32 pages.
pub(crate) const LISTS_MAX: usize = (1 << 32) / MAP_PAGES / LIST_MAPS + 1;

const _: () = assert!(LISTS_OFFSET + 8 * LISTS_MAX <= PAGE_SIZE);

/// Levels that are counted: leaves and inner nodes.
pub(crate) type LevelPages = [u64; LEVELS_MAX + 1];

/// What files of one index have in common: the number of the tree, and the sizes of its keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) tree: u64,
    pub(crate) sizes: Sizes,
}

/// What a superblock says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) tree: u64,
    pub(crate) generation: u64,
    pub(crate) oldest: u64,
    pub(crate) sizes: Sizes,
    pub(crate) height: u8,
    pub(crate) root: Option<PageRef>,
    pub(crate) drained: Option<PageRef>,
    pub(crate) pages: u64,
    pub(crate) entries: u64,
    pub(crate) log_start: u64,
    pub(crate) log_end: u64,
    /// Readers that know an older one must forget all updates that they have.
    pub(crate) replaced: u64,
    pub(crate) level_pages: LevelPages,
    pub(crate) lists: Vec<PageRef>,
}

/// Why a page is no superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has other first bytes.
    NotOurs,
    /// It is of another version.
    Version(u32),
    /// It is damaged, or was never written.
    Corrupt(Corrupt),
}

impl Superblock {
    /// What a new index begins with.
    pub(crate) fn first(Owner { tree, sizes }: Owner) -> Self {
        Self {
            tree,
            generation: 1,
            oldest: 1,
            sizes,
            height: 0,
            root: None,
            drained: None,
            pages: 0,
            entries: 0,
            log_start: 0,
            log_end: 0,
            replaced: 0,
            level_pages: LevelPages::default(),
            lists: Vec::new(),
        }
    }

    /// Which of the two pages it belongs into.
    pub(crate) fn page(&self) -> u64 {
        self.generation % 2
    }

    /// The bytes of the page.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(PAGE_SIZE);
        out.put(&SUPERBLOCK_MAGIC).u32(TREE_VERSION).u32(0);
        out.u64(self.tree).u64(self.generation).u64(self.oldest);
        out.u16(self.sizes.key.unwrap_or(NONE)).u16(self.sizes.value.unwrap_or(NONE));
        out.u16(u16::from(self.height)).u16(self.lists.len() as u16);
        for page in [self.root, self.drained] {
            let page = page.unwrap_or(PageRef { number: 0, crc: 0 });
            out.u32(page.number).u32(page.crc);
        }
        out.u64(self.pages).u64(self.entries).u64(self.log_start).u64(self.log_end);
        out.u64(self.replaced);
        for pages in self.level_pages {
            out.u64(pages);
        }
        for list in &self.lists {
            out.u32(list.number).u32(list.crc);
        }
        let mut bytes = out.into_bytes();
        bytes.resize(PAGE_SIZE, 0);
        let crc = crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads page 0 or 1 of a tree file.
    pub(crate) fn decode(bytes: &[u8; PAGE_SIZE], page: u64) -> Result<Self, Refusal> {
        let broken = |rule, expected: u64, found: u64| {
            Refusal::Corrupt(Corrupt { page, rule, expected, found })
        };
        if bytes[..8] != SUPERBLOCK_MAGIC {
            let is_unwritten = bytes.iter().all(|&byte| byte == 0);
            return Err(if is_unwritten { broken(UNWRITTEN, 1, 0) } else { Refusal::NotOurs });
        }
        let mut without_crc = *bytes;
        without_crc[12..16].fill(0);
        let (crc, found) = (crc32c(&without_crc), u32_at(bytes, 12));
        if crc != found {
            return Err(broken("crc", u64::from(crc), u64::from(found)));
        }
        let version = u32_at(bytes, 8);
        if version != TREE_VERSION {
            return Err(Refusal::Version(version));
        }
        let page_ref = |at| PageRef { number: u32_at(bytes, at), crc: u32_at(bytes, at + 4) };
        let (height, lists) = (u16_at(bytes, 44), usize::from(u16_at(bytes, 46)));
        if usize::from(height) >= LEVELS_MAX {
            return Err(broken("height", LEVELS_MAX as u64, u64::from(height)));
        }
        if lists > LISTS_MAX {
            return Err(broken("map_lists", LISTS_MAX as u64, lists as u64));
        }
        let fixed = |at| Some(u16_at(bytes, at)).filter(|&size| size != NONE);
        let mut level_pages = [0; LEVELS_MAX + 1];
        for (at, pages) in level_pages.iter_mut().enumerate() {
            *pages = u64_at(bytes, 104 + 8 * at);
        }
        let superblock = Self {
            tree: u64_at(bytes, 16),
            generation: u64_at(bytes, 24),
            oldest: u64_at(bytes, 32),
            sizes: Sizes { key: fixed(40), value: fixed(42) },
            height: height as u8,
            root: Some(page_ref(48)).filter(|page| page.number != 0),
            drained: Some(page_ref(56)).filter(|page| page.number != 0),
            pages: u64_at(bytes, 64),
            entries: u64_at(bytes, 72),
            log_start: u64_at(bytes, 80),
            log_end: u64_at(bytes, 88),
            replaced: u64_at(bytes, 96),
            level_pages,
            lists: (0..lists).map(|at| page_ref(LISTS_OFFSET + 8 * at)).collect(),
        };
        let generation = superblock.generation;
        if superblock.page() != page || !(1..=NUMBER_MAX).contains(&generation) {
            return Err(broken("generation", page, generation));
        }
        if superblock.oldest > generation {
            return Err(broken("oldest", generation, superblock.oldest));
        }
        let [key, value] =
            [superblock.sizes.key, superblock.sizes.value].map(|is| is.map(usize::from));
        if key.is_some_and(|bytes| !(1..=KEY_BYTES_MAX).contains(&bytes)) {
            return Err(broken("key_bytes", KEY_BYTES_MAX as u64, u64::from(u16_at(bytes, 40))));
        }
        if value.is_some_and(|bytes| bytes > VALUE_BYTES_MAX) {
            return Err(broken(
                "value_bytes",
                VALUE_BYTES_MAX as u64,
                u64::from(u16_at(bytes, 42)),
            ));
        }
        // Sums with them do not overflow then.
        for (rule, most, found) in [
            ("entries", NUMBER_MAX, superblock.entries),
            ("log_end", NUMBER_MAX, superblock.log_end),
            ("replaced", superblock.log_end, superblock.replaced),
            ("pages", PAGES_MAX, superblock.pages),
        ] {
            if found > most {
                return Err(broken(rule, most, found));
            }
        }
        let of_levels = level_pages.iter().fold(0, |sum: u64, pages| sum.saturating_add(*pages));
        if of_levels > superblock.pages {
            return Err(broken("level_pages", superblock.pages, of_levels));
        }
        if superblock.log_end < superblock.log_start {
            return Err(broken("log_end", superblock.log_start, superblock.log_end));
        }
        let pages = superblock.lists.iter().chain(&superblock.root).chain(&superblock.drained);
        if let Some(page) =
            pages.map(|page| page.number).find(|&n| u64::from(n) >= superblock.pages)
        {
            return Err(broken("pages", superblock.pages, u64::from(page)));
        }
        if superblock.root.is_none() && superblock.height != 0 {
            return Err(broken("root", 1, 0));
        }
        Ok(superblock)
    }
}

/// The rule that a superblock breaks which was not written yet.
const UNWRITTEN: &str = "magic";

/// The rule that a superblock breaks which cannot be read.
const READABLE: &str = "the superblock can be read";

/// Reads both superblocks of a tree file, as they stand. One that the device does not give is damaged.
///
/// Cost: one read, two more where it fails.
///
/// # Errors
/// [`Error::Disk`] if the file cannot be opened.
pub(crate) fn read_both(
    disk: &dyn Disk,
    path: &Path,
) -> Result<Vec<Result<Superblock, Refusal>>, Error> {
    let file = disk.open(path, OpenMode::Read, Access::Direct)?;
    let mut buffer = AlignedBuf::zeroed(2 * PAGE_SIZE);
    let len = file.len()?.min(2 * PAGE_SIZE as u64) as usize;
    let mut unreadable = [false; 2];
    // What is not there is zero.
    if let Err(error) = file.read_at(&mut buffer[..len], 0) {
        if !error.is_unreadable() {
            return Err(error.into());
        }
        for (page, is_unreadable) in unreadable.iter_mut().enumerate() {
            let part = page * PAGE_SIZE..len.min((page + 1) * PAGE_SIZE).max(page * PAGE_SIZE);
            let at = part.start as u64;
            if let Err(error) = file.read_at(&mut buffer[part], at) {
                tracing::warn!(path = %path.display(), page, %error, "superblock.unreadable");
                *is_unreadable = true;
            }
        }
    }

    let decode = |(bytes, page): (&[u8], u64)| {
        if unreadable[page as usize] {
            let what = Corrupt { page, rule: READABLE, expected: 1, found: 0 };
            return Err(Refusal::Corrupt(what));
        }
        Superblock::decode(bytes.try_into().expect("a page"), page)
    };
    Ok(buffer.chunks_exact(PAGE_SIZE).zip(0..).map(decode).collect())
}

/// What is wrong with the copies beside the newest superblock; the second page is written by the second checkpoint.
pub(crate) fn damaged_copies(both: &[Result<Superblock, Refusal>]) -> Vec<Corrupt> {
    let newest = both.iter().flatten().map(|superblock| superblock.generation).max();
    let is_first = newest == Some(1);
    let damaged = |(page, found): (u64, &Result<Superblock, Refusal>)| match found {
        Ok(_) => None,
        Err(Refusal::Corrupt(what)) if is_first && what.rule == UNWRITTEN => None,
        Err(Refusal::Corrupt(what)) => Some(*what),
        Err(Refusal::NotOurs | Refusal::Version(_)) => {
            Some(Corrupt { page, rule: "magic of a superblock", expected: 1, found: 0 })
        }
    };
    (0..).zip(both).filter_map(damaged).collect()
}

/// Why there is no superblock of this version among those read.
pub(crate) fn refused(path: &Path, both: &[Result<Superblock, Refusal>]) -> Error {
    let path = path.to_owned();
    let refusals = || both.iter().filter_map(|found| found.as_ref().err());
    if let Some(Refusal::Version(found)) = refusals().find(|is| matches!(is, Refusal::Version(_))) {
        return Error::UnsupportedVersion { path, found: *found, newest: TREE_VERSION };
    }
    match refusals().next() {
        Some(Refusal::Corrupt(what)) => Error::Corrupt { path, what: *what },
        _ => Error::NotAnIndex { path },
    }
}

/// Reads the newest superblock of a tree file.
///
/// # Errors
/// [`Error::NotAnIndex`], [`Error::UnsupportedVersion`]; [`Error::Corrupt`] if neither is whole; [`Error::Disk`].
pub(crate) fn read(disk: &dyn Disk, path: &Path) -> Result<Superblock, Error> {
    let mut both = read_both(disk, path)?;
    let is_damaged = |found: &Result<Superblock, Refusal>| matches!(found, Err(Refusal::Corrupt(what)) if what.rule != UNWRITTEN);
    if both.iter().any(is_damaged) {
        // A read may be wrong once, or have met a write; the older one of the two is not to be taken for that.
        both = read_both(disk, path)?;
    }
    let is_newer_version = both.iter().any(|found| matches!(found, Err(Refusal::Version(_))));
    let newest = both.iter().flatten().max_by_key(|superblock| superblock.generation);
    match newest {
        Some(newest) if !is_newer_version => {
            for what in damaged_copies(&both) {
                tracing::warn!(path = %path.display(), %what, "superblock.damaged");
            }
            Ok(newest.clone())
        }
        _ => Err(refused(path, &both)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(generation: u64) -> Superblock {
        Superblock {
            tree: 0x1122_3344_5566_7788,
            generation,
            oldest: 1,
            sizes: Sizes { key: Some(32), value: None },
            height: 2,
            root: Some(PageRef { number: 77, crc: 0xDEAD_BEEF }),
            drained: None,
            pages: 4_000,
            entries: 1_234_567,
            log_start: 512,
            log_end: 99_999,
            replaced: 400,
            level_pages: [7; LEVELS_MAX + 1],
            lists: vec![PageRef { number: 5, crc: 6 }],
        }
    }

    fn bytes_of(superblock: &Superblock) -> [u8; PAGE_SIZE] {
        superblock.encode().try_into().unwrap()
    }

    #[test]
    fn a_superblock_survives_encoding_in_its_own_page_only() {
        for generation in [1, 2, 77] {
            let superblock = sample(generation);
            let bytes = bytes_of(&superblock);
            assert_eq!(Superblock::decode(&bytes, generation % 2), Ok(superblock));
            assert!(Superblock::decode(&bytes, (generation + 1) % 2).is_err());
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let bytes = bytes_of(&sample(3));
        for bit in (0..512 * 8).chain((512 * 8..PAGE_SIZE * 8).step_by(61)) {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bytes, 1).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn others_unwritten_pages_and_newer_versions_are_told_apart() {
        assert!(matches!(Superblock::decode(&[0; PAGE_SIZE], 0), Err(Refusal::Corrupt(_))));
        assert_eq!(Superblock::decode(&[7; PAGE_SIZE], 0), Err(Refusal::NotOurs));
        let mut bytes = bytes_of(&sample(2));
        bytes[8] = 9;
        bytes[12..16].fill(0);
        let crc = crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Superblock::decode(&bytes, 0), Err(Refusal::Version(9)));
    }
}
