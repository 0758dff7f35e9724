//! Superblocks: the switch that publishes a tree.
//!
//! The first two pages of a tree file are superblocks, written in turn: the superblock of
//! generation `g` is page `g mod 2`. The valid superblock of the higher generation counts. All of
//! its fields lie in one sector of 512 bytes.
//!
//! Invariant: everything that a superblock refers to is durable before the superblock is written.
//!
//! Rejected: pages changed in place behind a log of pages (readers in other processes would have to
//! stop, or to copy everything).

#![doc = include_str!("../../../../docs/format/btree.md")]

use std::path::Path;

use terrane_io::bytes::Writer;
use terrane_io::checksum::crc32c;
use terrane_io::rare;
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

/// Upper bound of generations, positions of the WAL and numbers of entries: sums of them do not
/// overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// Offset of the references of the list pages.
const LISTS_OFFSET: usize = 240;

/// Most list pages: enough for a file of 2^32 pages.
pub(crate) const LISTS_MAX: usize = (1 << 32) / MAP_PAGES / LIST_MAPS + 1;

const _: () = assert!(LISTS_OFFSET + 8 * LISTS_MAX <= PAGE_SIZE);

/// Number of pages of each level, from the leaves up.
pub(crate) type LevelPages = [u64; LEVELS_MAX + 1];

/// Common mark of all files of one index: the number of its tree, and the sizes of its keys and
/// values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) tree: u64,
    pub(crate) sizes: Sizes,
}

/// The content of a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) tree: u64,
    pub(crate) generation: u64,
    pub(crate) oldest: u64,
    pub(crate) sizes: Sizes,
    pub(crate) height: u8,
    pub(crate) root: Option<PageRef>,
    pub(crate) applied: Option<PageRef>,
    pub(crate) pages: u64,
    pub(crate) entries: u64,
    pub(crate) log_start: u64,
    pub(crate) log_end: u64,
    /// Position at which all entries were last replaced at once. A reader with an older one must
    /// forget all its updates.
    pub(crate) replaced: u64,
    pub(crate) level_pages: LevelPages,
    pub(crate) lists: Vec<PageRef>,
}

/// Reason why a page is not a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The page has other first bytes.
    NotOurs,
    /// The page has another version.
    Version(u32),
    /// The page is damaged, or was never written.
    Corrupt(Corrupt),
}

impl Superblock {
    /// The first superblock of a new index.
    pub(crate) fn first(Owner { tree, sizes }: Owner) -> Self {
        Self {
            tree,
            generation: 1,
            oldest: 1,
            sizes,
            height: 0,
            root: None,
            applied: None,
            pages: 0,
            entries: 0,
            log_start: 0,
            log_end: 0,
            replaced: 0,
            level_pages: LevelPages::default(),
            lists: Vec::new(),
        }
    }

    /// The page, 0 or 1, of this superblock.
    pub(crate) fn page(&self) -> u64 {
        self.generation % 2
    }

    /// The bytes of the page.
    pub(crate) fn encode(&self) -> Vec<u8> {
        assert!(usize::from(self.height) < LEVELS_MAX, "a reader takes the height");
        assert!(self.lists.len() <= LISTS_MAX, "the lists fit into the page");
        debug_assert!(self.oldest <= self.generation, "the newest tree can be read");
        debug_assert!(self.log_start <= self.log_end, "the log does not end before it starts");
        debug_assert!(self.replaced <= self.log_end, "a replacement lies within the log");

        let mut out = Writer::with_capacity(PAGE_SIZE);
        out.put(&SUPERBLOCK_MAGIC).u32(TREE_VERSION).u32(0);
        out.u64(self.tree).u64(self.generation).u64(self.oldest);
        out.u16(self.sizes.key.unwrap_or(NONE)).u16(self.sizes.value.unwrap_or(NONE));
        out.u16(u16::from(self.height)).u16(self.lists.len() as u16);

        for page in [self.root, self.applied] {
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

        debug_assert_eq!(out.bytes().len(), LISTS_OFFSET + 8 * self.lists.len(), "the format");
        let mut bytes = out.into_bytes();
        bytes.resize(PAGE_SIZE, 0);
        let crc = crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes page 0 or 1 of a tree file.
    pub(crate) fn decode(bytes: &[u8; PAGE_SIZE], page: u64) -> Result<Self, Refusal> {
        let broken = |rule, expected: u64, found: u64| {
            Refusal::Corrupt(Corrupt { page, rule, expected, found })
        };

        if bytes[..8] != SUPERBLOCK_MAGIC {
            let is_unwritten = bytes.iter().all(|&byte| byte == 0);
            return Err(if is_unwritten { broken(UNWRITTEN, 1, 0) } else { Refusal::NotOurs });
        }

        // The checksum spans the whole page, with zeros in its own place.
        let mut without_crc = *bytes;
        without_crc[12..16].fill(0);

        let crc = crc32c(&without_crc);
        let found = u32_at(bytes, 12);
        if crc != found {
            return Err(broken("crc", u64::from(crc), u64::from(found)));
        }

        let version = u32_at(bytes, 8);
        // Checked behind the checksum, so that a damaged version counts as damage.
        if version != TREE_VERSION {
            return Err(Refusal::Version(version));
        }

        let page_ref = |at| PageRef { number: u32_at(bytes, at), crc: u32_at(bytes, at + 4) };
        let height = u16_at(bytes, 44);
        let lists = usize::from(u16_at(bytes, 46));

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
            // Page 0 is a superblock, so number 0 stands for no page.
            root: Some(page_ref(48)).filter(|page| page.number != 0),
            applied: Some(page_ref(56)).filter(|page| page.number != 0),
            pages: u64_at(bytes, 64),
            entries: u64_at(bytes, 72),
            log_start: u64_at(bytes, 80),
            log_end: u64_at(bytes, 88),
            replaced: u64_at(bytes, 96),
            level_pages,
            lists: (0..lists).map(|at| page_ref(LISTS_OFFSET + 8 * at)).collect(),
        };

        superblock.check(page)?;
        Ok(superblock)
    }

    /// Checks that the fields agree with each other and with the place of the page.
    fn check(&self, page: u64) -> Result<(), Refusal> {
        let broken = |rule, expected: u64, found: u64| {
            Err(Refusal::Corrupt(Corrupt { page, rule, expected, found }))
        };

        if self.page() != page || !(1..=NUMBER_MAX).contains(&self.generation) {
            return broken("generation", page, self.generation);
        }

        if self.oldest > self.generation {
            return broken("oldest", self.generation, self.oldest);
        }

        let [key, value] = [self.sizes.key, self.sizes.value].map(|is| is.map(usize::from));
        if let Some(bytes) = key.filter(|bytes| !(1..=KEY_BYTES_MAX).contains(bytes)) {
            return broken("key_bytes", KEY_BYTES_MAX as u64, bytes as u64);
        }

        if let Some(bytes) = value.filter(|&bytes| bytes > VALUE_BYTES_MAX) {
            return broken("value_bytes", VALUE_BYTES_MAX as u64, bytes as u64);
        }

        // Below these bounds no sum of two of them overflows.
        for (rule, most, found) in [
            ("entries", NUMBER_MAX, self.entries),
            ("log_end", NUMBER_MAX, self.log_end),
            ("replaced", self.log_end, self.replaced),
            ("pages", PAGES_MAX, self.pages),
        ] {
            if found > most {
                return broken(rule, most, found);
            }
        }

        let of_levels =
            self.level_pages.iter().fold(0, |sum: u64, &pages| sum.saturating_add(pages));
        if of_levels > self.pages {
            return broken("level_pages", self.pages, of_levels);
        }

        if self.log_end < self.log_start {
            return broken("log_end", self.log_start, self.log_end);
        }

        let pages = self.lists.iter().chain(&self.root).chain(&self.applied);
        let mut numbers = pages.map(|page| u64::from(page.number));
        if let Some(number) = numbers.find(|&number| number >= self.pages) {
            return broken("pages", self.pages, number);
        }

        if self.root.is_none() && self.height != 0 {
            return broken("root", 1, 0);
        }

        Ok(())
    }
}

/// Rule that a superblock breaks if it was never written.
const UNWRITTEN: &str = "magic";

/// Rule that a superblock breaks if it cannot be read.
const READABLE: &str = "the superblock can be read";

/// Reads both superblocks of a tree file. A superblock that the device does not give is damaged.
///
/// Cost: one read; two more if that fails.
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

    // Bytes behind the end of the file count as zero.
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

/// The damage of the copies beside the newest superblock. The second page stays unwritten until the
/// second checkpoint.
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

/// The error for two pages of which none is a superblock of this version.
pub(crate) fn refused(path: &Path, both: &[Result<Superblock, Refusal>]) -> Error {
    let path = path.to_owned();
    let refusals = || both.iter().filter_map(|found| found.as_ref().err());

    // The program of another version can tell more of the file than this one.
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
/// [`Error::NotAnIndex`], [`Error::UnsupportedVersion`]; [`Error::Corrupt`] if neither superblock
/// is whole; [`Error::Disk`].
pub(crate) fn read(disk: &dyn Disk, path: &Path) -> Result<Superblock, Error> {
    let mut both = read_both(disk, path)?;
    let is_damaged = |found: &Result<Superblock, Refusal>| matches!(found, Err(Refusal::Corrupt(what)) if what.rule != UNWRITTEN);

    if both.iter().any(is_damaged) {
        // A read may be wrong once, or may have met a write. Without a second look the older
        // superblock would count.
        both = read_both(disk, path)?;
    }

    // Beside a superblock of a newer version, the readable one may be outdated.
    let is_newer_version = both.iter().any(|found| matches!(found, Err(Refusal::Version(_))));
    let newest = both.iter().flatten().max_by_key(|superblock| superblock.generation);

    match newest {
        Some(newest) if !is_newer_version => {
            for what in damaged_copies(&both) {
                rare::taken("one superblock of two is damaged");
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
            applied: None,
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
