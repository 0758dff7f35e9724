//! The free map: which pages of a tree file are in use, held, or free.
//!
//! The map has a bit for each page of the file. Pages of its own store it ([`MAP_PAGES`] bits
//! each), and a checkpoint writes only the changed ones. A list page has up to [`LIST_MAPS`] of
//! their references; the superblock has those of the list pages.
//!
//! A page that the newest tree does not need is *held* until a checkpoint without it is durable and
//! nobody, in this process or another, can still read an older tree.
//!
//! Invariant: the stored map has exactly the pages that the tree of its checkpoint reaches, the map
//! itself, and the two superblocks.
//!
//! Rejected: a list of free pages (as long as they are scattered); a walk of the tree at every
//! opening.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::page::page::{BODY_BYTES, PageNo, SUPERBLOCKS};

/// Pages of the file per page of the map.
pub(crate) const MAP_PAGES: usize = BODY_BYTES * 8;

/// References of map pages in a list page.
pub(crate) const LIST_MAPS: usize = BODY_BYTES / 8;

/// Most pages of a file: 16 TiB.
pub(crate) const PAGES_MAX: u64 = 1 << 32;

/// The pages of a file. See the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct FreeMap {
    /// A bit for each page; bits from `pages` on are 0.
    used: Vec<u64>,
    /// Length of the file.
    pages: u64,
    used_pages: u64,
    /// No page of a word before this one is free.
    first_word: usize,
    /// Pages that trees up to an epoch need, by epoch, ascending. Their bits are 1 here and 0 in
    /// the stored map.
    held: VecDeque<(u64, Vec<PageNo>)>,
    held_pages: u64,
    /// Whether each page of the map differs from the stored one.
    changed: Vec<bool>,
}

impl FreeMap {
    /// The map of a file with only the superblocks.
    pub(crate) fn new() -> Self {
        let mut free_map = Self {
            used: Vec::new(),
            pages: 0,
            used_pages: 0,
            first_word: 0,
            held: VecDeque::new(),
            held_pages: 0,
            changed: Vec::new(),
        };

        free_map.grow(u64::from(SUPERBLOCKS));
        for page in 0..SUPERBLOCKS {
            free_map.mark(page);
        }

        free_map
    }

    /// Decodes the map of a file of `pages` pages; `None` if there are too few or too many map
    /// pages, or one has a page behind the end.
    pub(crate) fn from_maps<'a>(pages: u64, maps: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut free_map = Self::new();
        free_map.grow(pages);
        let mut words = free_map.used.len();
        let mut at = 0;

        for map in maps {
            for word in map.chunks_exact(8).take(words) {
                free_map.used[at] = crate::page::page::u64_at(word, 0);
                at += 1;
            }
            words = free_map.used.len() - at;
        }

        // A bit behind the end would later give out a page that the file does not have.
        let beyond =
            (pages..free_map.used.len() as u64 * 64).any(|page| free_map.is_used(page as PageNo));
        // The count follows from the bits, so no stored count can contradict them.
        free_map.used_pages = free_map.used.iter().map(|word| u64::from(word.count_ones())).sum();
        free_map.changed.fill(false);
        // Superblocks are always in use.
        (words == 0 && !beyond && free_map.is_used(0) && free_map.is_used(1)).then_some(free_map)
    }

    /// Length of the file, in pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Pages in use, held pages included.
    pub(crate) fn used_pages(&self) -> u64 {
        self.used_pages
    }

    /// Pages that are held.
    pub(crate) fn held_pages(&self) -> u64 {
        self.held_pages
    }

    /// Pages that are held for the trees up to `epoch`, if that is the newest epoch.
    pub(crate) fn held_pages_of(&self, epoch: u64) -> u64 {
        let last = self.held.back().filter(|(held, _)| *held == epoch);
        last.map_or(0, |(_, pages)| pages.len() as u64)
    }

    /// Whether a page is in use or held.
    pub(crate) fn is_used(&self, page: PageNo) -> bool {
        let word = self.used.get(page as usize / 64).copied().unwrap_or_default();
        word >> (page % 64) & 1 == 1
    }

    /// Makes the file longer; returns false if it would be too long.
    pub(crate) fn grow(&mut self, pages: u64) -> bool {
        if pages > PAGES_MAX {
            return false;
        }
        self.pages = self.pages.max(pages);
        self.used.resize(self.pages.div_ceil(64) as usize, 0);
        self.changed.resize((self.pages as usize).div_ceil(MAP_PAGES), true);
        debug_assert!(self.used.len() * 64 >= self.pages as usize, "a bit for each page");
        true
    }

    /// Marks a free page as used.
    fn mark(&mut self, page: PageNo) {
        debug_assert!(!self.is_used(page), "a page is taken once");
        debug_assert!(u64::from(page) < self.pages, "a page of the file");
        self.used[page as usize / 64] |= 1 << (page % 64);
        self.used_pages += 1;
        debug_assert!(self.used_pages <= self.pages, "no more pages are used than there are");
        self.changed[page as usize / MAP_PAGES] = true;
    }

    /// Marks a page as free.
    fn unmark(&mut self, page: PageNo) {
        debug_assert!(SUPERBLOCKS <= page, "superblocks are never freed");
        if !self.is_used(page) {
            // A forged tree may refer to a page twice; the page is freed once.
            return;
        }
        self.used[page as usize / 64] &= !(1 << (page % 64));
        self.used_pages -= 1;
        self.changed[page as usize / MAP_PAGES] = true;
        // The search for a free page begins at the lowest word that may have one.
        self.first_word = self.first_word.min(page as usize / 64);
    }

    /// Takes the lowest free page; `None` if there is none.
    pub(crate) fn take(&mut self) -> Option<PageNo> {
        while let Some(&word) = self.used.get(self.first_word) {
            let page = self.first_word as u64 * 64 + u64::from(word.trailing_ones());
            if word != u64::MAX && page < self.pages {
                self.mark(page as PageNo);
                return Some(page as PageNo);
            }
            // No page of this word is free before one is given back.
            self.first_word += 1;
        }
        self.first_word = self.first_word.min(self.used.len().saturating_sub(1));
        None
    }

    /// Gives back a page to which no tree refers yet.
    pub(crate) fn give_back(&mut self, page: PageNo) {
        debug_assert!(self.is_used(page), "only a page that was taken can be given back");
        self.unmark(page);
    }

    /// Holds pages that only trees up to `epoch` have.
    pub(crate) fn hold(&mut self, epoch: u64, mut pages: Vec<PageNo>) {
        let is_newer = self.held.back().is_none_or(|(last, _)| *last <= epoch);
        debug_assert!(is_newer, "epochs ascend, so the front is the first to be released");

        self.held_pages += pages.len() as u64;
        // Stored maps count held pages as free, so the maps of these pages differ now.
        for &page in &pages {
            self.changed[page as usize / MAP_PAGES] = true;
        }

        match self.held.back_mut() {
            Some((last, held)) if *last == epoch => held.append(&mut pages),
            _ => self.held.push_back((epoch, pages)),
        }
    }

    /// Holds all free pages for readers of trees up to `epoch`, any of whose pages they may be.
    pub(crate) fn hold_all_free(&mut self, epoch: u64) {
        let mut free = Vec::new();
        while let Some(page) = self.take() {
            free.push(page);
        }
        self.hold(epoch, free);
    }

    /// Takes all free pages, so that the next page taken is new.
    pub(crate) fn take_all(&mut self) {
        while self.take().is_some() {}
    }

    /// Frees and returns the pages held for trees of epochs below `epoch`.
    pub(crate) fn release(&mut self, epoch: u64) -> Vec<PageNo> {
        let mut released = Vec::new();
        while self.held.front().is_some_and(|(held, _)| *held < epoch) {
            let Some((_, pages)) = self.held.pop_front() else { break };
            for &page in &pages {
                self.unmark(page);
            }
            debug_assert!(pages.len() as u64 <= self.held_pages, "each held page counts once");
            self.held_pages -= pages.len() as u64;
            released.extend(pages);
        }
        released
    }

    /// Numbers of the map pages that differ from the stored ones.
    pub(crate) fn changed_maps(&self) -> impl Iterator<Item = usize> {
        self.changed.iter().enumerate().filter(|(_, changed)| **changed).map(|(at, _)| at)
    }

    /// Number of map pages.
    pub(crate) fn map_count(&self) -> usize {
        self.changed.len()
    }

    /// The bodies of map pages. Held pages count as free there: they are, as soon as the bodies are
    /// durable.
    pub(crate) fn write_maps(&self, maps: impl Iterator<Item = usize>) -> Vec<Vec<u8>> {
        let mut places = HashMap::new();
        let mut bodies = Vec::new();
        for map in maps {
            let words = self.used.iter().skip(map * MAP_PAGES / 64).take(MAP_PAGES / 64);
            let mut body: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
            body.resize(BODY_BYTES, 0);
            places.insert(map, bodies.len());
            bodies.push(body);
        }

        for page in self.held.iter().flat_map(|(_, pages)| pages) {
            let map = *page as usize / MAP_PAGES;
            let bit = *page as usize % MAP_PAGES;
            if let Some(&place) = places.get(&map) {
                bodies[place][bit / 8] &= !(1 << (bit % 8));
            }
        }

        bodies
    }

    /// Marks all map pages as changed.
    pub(crate) fn change_all(&mut self) {
        self.changed.fill(true);
    }

    /// Pages in use that are neither held nor among `others`.
    pub(crate) fn all_but(&self, others: &[PageNo]) -> Vec<PageNo> {
        let held = self.held.iter().flat_map(|(_, pages)| pages);
        let others: HashSet<PageNo> = held.chain(others).copied().collect();
        let in_use = (SUPERBLOCKS..self.pages as PageNo).filter(|&page| self.is_used(page));
        in_use.filter(|page| !others.contains(page)).collect()
    }

    /// Marks all map pages as stored.
    pub(crate) fn set_stored(&mut self) {
        self.changed.fill(false);
    }

    /// Length of the file without the free pages at its end, in pages.
    pub(crate) fn needed_pages(&self) -> u64 {
        debug_assert!(self.is_used(0), "the superblocks are always in use");
        let last = self.used.iter().rposition(|&word| word != 0).unwrap_or(0);
        last as u64 * 64 + 64 - u64::from(self.used[last].leading_zeros())
    }

    /// Cuts the file; the pages behind its new end are free.
    pub(crate) fn cut(&mut self, pages: u64) {
        assert!(self.needed_pages() <= pages, "no page in use is cut off");
        self.pages = pages;
        self.used.truncate(pages.div_ceil(64) as usize);
        self.changed.truncate((pages as usize).div_ceil(MAP_PAGES));
        // The lowest word with a free page may lie behind the new end.
        self.first_word = self.first_word.min(self.used.len().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;

    #[test]
    fn pages_are_given_out_once_and_again_when_nobody_needs_them() {
        for_each_seed("pages_are_given_out_once_and_again", 20, |rng, _| {
            let mut free_map = FreeMap::new();
            let mut used = BTreeSet::from([0, 1]);
            let mut held = Vec::new();
            for epoch in 1..60 {
                for _ in 0..rng.below(80) {
                    let page = free_map.take().unwrap_or_else(|| {
                        assert!(free_map.grow(free_map.pages() + 37));
                        free_map.take().unwrap()
                    });
                    assert!(used.insert(page), "page {page} twice");
                }
                let gone: Vec<PageNo> =
                    used.iter().copied().filter(|&page| page > 1 && rng.chance(1, 3)).collect();
                let gone: Vec<PageNo> =
                    gone.into_iter().filter(|page| !held.iter().any(|(_, p)| p == page)).collect();
                held.extend(gone.iter().map(|&page| (epoch, page)));
                free_map.hold(epoch, gone);
                let until = epoch.saturating_sub(rng.below(3));
                let released = free_map.release(until);
                for page in &released {
                    assert!(used.remove(page));
                }
                held.retain(|(epoch, _)| *epoch >= until);
                assert_eq!(free_map.held_pages() as usize, held.len());
                assert_eq!(free_map.used_pages() as usize, used.len());
                assert_eq!(free_map.needed_pages(), u64::from(*used.last().unwrap()) + 1);
                // The stored map has neither free nor held pages.
                let map = free_map.write_maps(std::iter::once(0)).remove(0);
                let again =
                    FreeMap::from_maps(free_map.pages(), std::iter::once(map.as_slice())).unwrap();
                for page in 0..free_map.pages() as PageNo {
                    let is_held = held.iter().any(|(_, held)| *held == page);
                    assert_eq!(again.is_used(page), used.contains(&page) && !is_held);
                }
            }
        });
    }

    #[test]
    fn a_map_that_is_too_short_or_says_too_much_is_refused() {
        let map = vec![0xFF; BODY_BYTES];
        let one = || std::iter::once(map.as_slice());
        assert!(FreeMap::from_maps(MAP_PAGES as u64, one()).is_some());
        assert!(FreeMap::from_maps(MAP_PAGES as u64 + 1, one()).is_none());
        assert!(FreeMap::from_maps(100, one()).is_none());
        assert!(FreeMap::from_maps(2, std::iter::empty()).is_none());
    }

    #[test]
    fn a_cut_file_grows_again() {
        let mut free_map = FreeMap::new();
        free_map.grow(1_000);
        let pages: Vec<PageNo> = (0..500).map(|_| free_map.take().unwrap()).collect();
        free_map.hold(1, pages[10..].to_vec());
        assert_eq!(free_map.needed_pages(), 502);
        free_map.release(2);
        assert_eq!(free_map.needed_pages(), 12);
        free_map.cut(12);
        assert_eq!(free_map.take(), None);
        free_map.grow(20);
        assert_eq!(free_map.take(), Some(12));
    }
}
