//! Building a tree bottom-up from entries in ascending order.
//!
//! Leaves are filled to a chosen part and written one after the other, nodes among them as soon as they are full, so the file is
//! written once from front to back. What is left at the end of each level is divided evenly, so that no page is nearly empty.
//! Nothing refers to the pages until the tree is published.
//!
//! Memory: a megabyte of pages to be written, the entries of a few leaves, and of a few nodes for each level.

use crate::block::Block;
use crate::edit::{FILL_BYTES_MIN, sealed_leaf, take_page};
use crate::error::Result;
use crate::inner;
use crate::input::{AscendingCheck, Records};
use crate::leaf::{self, Fences};
use crate::page::{Header, Kind, PAGE_SIZE, Page, PageNo, PageRef, seal};
use crate::pager::{NewPage, Pager};
use crate::space::Space;
use crate::superblock::LevelPages;
use crate::tree::{Child, Entry};

/// Pages that are written at once.
const WRITE_PAGES: usize = 256;

/// Bytes of entries that are collected before leaves are cut off: many of them, since what is left is copied.
const COLLECTED_BYTES: usize = 128 << 10;

/// Children that are collected before a node is cut off: more than two nodes can hold.
const COLLECTED_CHILDREN: usize = 1_000;

/// Least part of a page that can be asked for, in per cent.
pub(crate) const FILL_PERCENT_MIN: u32 = 50;

/// What was built.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) root: Option<Child>,
    pub(crate) height: u8,
    pub(crate) level_pages: LevelPages,
    pub(crate) entries: u64,
}

/// A tree under construction.
pub(crate) struct Builder<'a> {
    pager: &'a Pager,
    space: &'a mut Space,
    generation: u64,
    /// Bytes that a page is filled with.
    fill: usize,
    block: Block,
    /// The fence below what is collected.
    low: Vec<u8>,
    /// Children that have no node yet, of each level from 1 up.
    children: Vec<Vec<Entry>>,
    level_pages: LevelPages,
    written: Vec<NewPage>,
    entries: u64,
}

/// Builds a tree of all entries, filling pages to so many per cent.
///
/// Cost: writes each page once, with calls of 256 KiB, four in flight.
///
/// # Errors
/// `NotSorted`, `DuplicateKey`, `KeySize`, `ValueSize`, `Disk`, `Full` of [`Error`](crate::error::Error);
/// those of the input. Pages that were taken are the caller's to give back.
pub(crate) fn build(
    pager: &Pager,
    space: &mut Space,
    generation: u64,
    fill_percent: u32,
    input: &mut dyn Records,
    progress: &mut dyn FnMut(u64),
) -> Result<Built> {
    let mut builder = Builder::new(pager, space, generation, fill_percent);
    let mut order = AscendingCheck::new();
    while let Some((key, value)) = input.next()? {
        pager.sizes.check(key, Some(value))?;
        order.check(key)?;
        builder.block.push(key, Some(value));
        builder.entries += 1;
        if builder.block.bytes() >= COLLECTED_BYTES {
            builder.cut_leaves()?;
            progress(builder.entries);
        }
    }
    builder.finish()
}

impl<'a> Builder<'a> {
    /// Nothing yet; pages are to be filled to so many per cent.
    pub(crate) fn new(
        pager: &'a Pager,
        space: &'a mut Space,
        generation: u64,
        fill_percent: u32,
    ) -> Self {
        Self {
            pager,
            space,
            generation,
            fill: PAGE_SIZE * fill_percent as usize / 100,
            block: Block::default(),
            low: Vec::new(),
            children: Vec::new(),
            level_pages: LevelPages::default(),
            written: Vec::with_capacity(WRITE_PAGES),
            entries: 0,
        }
    }

    /// Appends a leaf that is on disk already; `low` is its low fence.
    ///
    /// # Errors
    /// As [`build`].
    pub(crate) fn add_leaf(&mut self, low: Vec<u8>, page: PageRef) -> Result<()> {
        self.level_pages[0] += 1;
        self.add_child(1, Entry { low, child: Child::Stored(page) })
    }

    /// Appends as few leaves as hold some entries, which are all that there is between the fences.
    ///
    /// # Errors
    /// As [`build`].
    pub(crate) fn add_block(&mut self, block: &Block, fences: Fences<'_>) -> Result<()> {
        let parts = leaf::divide(block, self.pager.sizes, fences);
        for (number, part) in parts.iter().enumerate() {
            let high = parts.get(number + 1).map(|next| next.low.as_slice()).or(fences.high);
            self.low.clone_from(&part.low);
            self.make_leaf(block, (part.from, part.to), high)?;
        }
        Ok(())
    }

    /// Makes leaves of what is collected, but for enough to divide it evenly at the end.
    fn cut_leaves(&mut self) -> Result<()> {
        let block = std::mem::take(&mut self.block);
        let sums = leaf::sums_of(&block);
        let mut from = 0;
        while sums[block.len()] - sums[from] > 3 * PAGE_SIZE {
            let to = self.leaf_end(&block, &sums, from);
            let high = leaf::separator(block.key(to - 1), block.key(to)).to_vec();
            self.make_leaf(&block, (from, to), Some(&high))?;
            self.low = high;
            from = to;
        }
        self.block = block.slice(from, block.len());
        Ok(())
    }

    /// Where a leaf ends that begins with entry `from`.
    fn leaf_end(&self, block: &Block, sums: &[usize], from: usize) -> usize {
        let fits = |to: usize| {
            let high = leaf::separator(block.key(to - 1), block.key(to));
            let fences = Fences { low: &self.low, high: Some(high) };
            leaf::leaf_bytes(self.pager.sizes, fences, to - from, sums[to] - sums[from])
                <= self.fill
        };
        // Without a prefix the most that could fit is more than fits.
        let mut to =
            sums.partition_point(|sum| sum - sums[from].min(*sum) < self.fill).max(from + 1);
        if fits(to) {
            while to + 1 < block.len() && fits(to + 1) {
                to += 1;
            }
            return to;
        }
        let mut low = from + 1;
        while low + 1 < to {
            let middle = (low + to) / 2;
            if fits(middle) { low = middle } else { to = middle }
        }
        low
    }

    fn make_leaf(
        &mut self,
        block: &Block,
        (from, to): (usize, usize),
        high: Option<&[u8]>,
    ) -> Result<()> {
        let number = take_page(self.pager, self.space)?;
        let fences = Fences { low: &self.low, high };
        let (crc, page) =
            sealed_leaf(self.pager, self.generation, number, fences, (block, from, to));
        self.level_pages[0] += 1;
        let low = self.low.clone();
        self.keep(number, page)?;
        self.add_child(1, Entry { low, child: Child::Stored(PageRef { number, crc }) })
    }

    fn keep(&mut self, number: PageNo, page: Page) -> Result<()> {
        self.written.push((number, page));
        if self.written.len() >= WRITE_PAGES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        self.written.sort_unstable_by_key(|(number, _)| *number);
        self.pager.write(&self.written)?;
        self.written.clear();
        Ok(())
    }

    fn add_child(&mut self, level: u8, child: Entry) -> Result<()> {
        let at = usize::from(level) - 1;
        if self.children.len() <= at {
            self.children.push(Vec::with_capacity(COLLECTED_CHILDREN));
        }
        self.children[at].push(child);
        if self.children[at].len() < COLLECTED_CHILDREN {
            return Ok(());
        }
        let mut own = std::mem::take(&mut self.children[at]);
        let lows: Vec<&[u8]> = own.iter().map(|entry| entry.low.as_slice()).collect();
        let bytes =
            |to: usize| inner::node_bytes(&lows[..to], lows[..to].iter().map(|l| l.len()).sum());
        let to = (2..lows.len()).rfind(|&to| bytes(to) <= self.fill).unwrap_or(2);
        let behind = own.split_off(to);
        self.children[at] = behind;
        self.make_node(level, &own)
    }

    fn make_node(&mut self, level: u8, children: &[Entry]) -> Result<()> {
        let lows: Vec<&[u8]> = children.iter().map(|entry| entry.low.as_slice()).collect();
        let mut bytes = [0; PAGE_SIZE];
        let pages = children.iter().filter_map(|entry| match entry.child {
            Child::Stored(page) => Some(page),
            Child::Fresh(_) => None,
        });
        inner::write(&mut bytes, &lows, pages);
        let number = take_page(self.pager, self.space)?;
        let count = children.len() as u16;
        let (tree, generation) = (self.pager.tree, self.generation);
        let header = Header { kind: Kind::Inner, level, count, tree, generation, number, step: 0 };
        let crc = seal(&mut bytes, &header);
        self.level_pages[usize::from(level)] += 1;
        self.keep(number, Page::new(&bytes))?;
        let low = children[0].low.clone();
        self.add_child(level + 1, Entry { low, child: Child::Stored(PageRef { number, crc }) })
    }

    /// Makes pages of everything that is left, level by level.
    ///
    /// # Errors
    /// As [`build`].
    pub(crate) fn finish(mut self) -> Result<Built> {
        let block = std::mem::take(&mut self.block);
        if self.entries > 0 {
            let low = self.low.clone();
            self.add_block(&block, Fences { low: &low, high: None })?;
        }
        let mut level = 1;
        let (root, height) = loop {
            let Some(children) = self.children.get_mut(usize::from(level) - 1) else {
                break (None, 0);
            };
            let mut children = std::mem::take(children);
            let is_top = self.children.len() == usize::from(level);
            if is_top && children.len() == 1 {
                break (children.pop().map(|entry| entry.child), level - 1);
            }
            let lows: Vec<&[u8]> = children.iter().map(|entry| entry.low.as_slice()).collect();
            let mut from = 0;
            for to in inner::divide(&lows) {
                self.make_node(level, &children[from..to])?;
                from = to;
            }
            level += 1;
        };
        self.write()?;
        let (level_pages, entries) = (self.level_pages, self.entries);
        Ok(Built { root, height, level_pages, entries })
    }
}

const _: () = assert!(FILL_BYTES_MIN <= PAGE_SIZE * FILL_PERCENT_MIN as usize / 100);
