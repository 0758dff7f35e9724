//! Bulk load: builds a tree bottom-up from entries in ascending order.
//!
//! The builder fills leaves to a chosen part and writes one after the other, with nodes among them
//! as soon as these are full. So it writes the file once, from front to back, while it makes more
//! pages. The rest at the end of each level is divided evenly, so that no page is nearly empty.
//! Nothing refers to the pages until the tree is published.
//!
//! Invariant: a leaf is cut off only once the entries of a whole leaf behind it are there.
//!
//! Memory: five batches of pages to be written (1.25 MiB), the entries of a few leaves, and those
//! of a few nodes for each level. Entries whose keys share all but a few bytes are collected whole,
//! so the entries of one leaf can take many times its size: up to 4,000 keys.

use crate::page::block::Block;
use crate::page::error::{Error, Result};
use crate::page::inner;
use crate::page::leaf::{self, Fences, Part};
use crate::page::page::{Header, Kind, PAGE_SIZE, PageRef, seal};
use crate::pager::free_map::FreeMap;
use crate::pager::page_writer::PageWriter;
use crate::pager::pager::Pager;
use crate::pager::superblock::LevelPages;
use crate::sort::input::Records;
use crate::tree::edit::{FILL_BYTES_MIN, take_page_growing, write_leaf};
use crate::tree::tree::{Child, ChildEntry};

/// Size of the entries that are collected before leaves are cut off, in bytes. Large, since the
/// rest is moved.
const COLLECTED_BYTES: usize = 128 << 10;

/// Children that are collected before a node is cut off: more than two nodes can hold.
const COLLECTED_CHILDREN: usize = 1_000;

/// Part of its length that a file grows by: growing waits for all writes in flight.
const GROWTH_PART: u64 = 8;

/// Least fill of a page that can be asked for, in per cent.
pub(crate) const FILL_PERCENT_MIN: u32 = 50;

/// The tree that was built.
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
    free_map: &'a mut FreeMap,
    generation: u64,
    /// Bytes that a page is filled with.
    fill: usize,
    block: Block,
    /// Size of the collected entries at which leaves are cut off, in bytes.
    collected_max: usize,
    /// The fence below the collected entries.
    low: Vec<u8>,
    /// Children that have no node yet, of each level from 1 up.
    children: Vec<Vec<ChildEntry>>,
    level_pages: LevelPages,
    page_writer: PageWriter<'a>,
    entries: u64,
}

/// Builds a tree of all entries of `input`, filling pages to `fill_percent`.
///
/// Cost: writes each page once, with calls of 256 KiB, four in flight.
///
/// # Errors
/// `NotSorted`, `DuplicateKey`, `KeySize`, `ValueSize`, `Disk`, `Full` of [`Error`]; those of the
/// input. The caller gives the pages back that were taken.
pub(crate) fn build(
    pager: &Pager,
    free_map: &mut FreeMap,
    generation: u64,
    fill_percent: u32,
    input: &mut dyn Records,
    progress: &mut dyn FnMut(u64),
) -> Result<Built> {
    let mut builder = Builder::new(pager, free_map, generation, fill_percent)?;
    while let Some((key, value)) = input.next_ref()? {
        pager.sizes.check(key, Some(value))?;
        builder.add(key, value)?;
        if builder.block.bytes() >= builder.collected_max {
            builder.cut_leaves()?;
            progress(builder.entries);
        }
    }

    builder.finish()
}

impl<'a> Builder<'a> {
    /// An empty tree, whose pages are to be filled to `fill_percent`.
    ///
    /// # Errors
    /// `Disk` of [`Error`].
    pub(crate) fn new(
        pager: &'a Pager,
        free_map: &'a mut FreeMap,
        generation: u64,
        fill_percent: u32,
    ) -> Result<Self> {
        Ok(Self {
            pager,
            free_map,
            generation,
            fill: PAGE_SIZE * fill_percent as usize / 100,
            block: Block::default(),
            collected_max: COLLECTED_BYTES,
            low: Vec::new(),
            children: Vec::new(),
            level_pages: LevelPages::default(),
            page_writer: PageWriter::new(pager)?,
            entries: 0,
        })
    }

    /// Collects the next entry, whose key must be above all others.
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        // The last entry is never cut off before the next entry comes, so it is there to compare
        // with.

        if let Some(last) = self.block.len().checked_sub(1).map(|last| self.block.key(last))
            && key <= last
        {
            return Err(Error::not_ascending(key == last, self.entries));
        }

        self.block.push(key, Some(value));
        self.entries += 1;
        Ok(())
    }

    /// Appends a leaf that is on disk already; `low` is its low fence.
    ///
    /// # Errors
    /// Those of [`build`].
    pub(crate) fn add_leaf(&mut self, low: Vec<u8>, page: PageRef) -> Result<()> {
        self.level_pages[0] += 1;
        self.add_child(1, ChildEntry { low, child: Child::Stored(page) })
    }

    /// Appends as few leaves as hold a block, which has all entries between the fences.
    ///
    /// # Errors
    /// Those of [`build`].
    pub(crate) fn add_block(&mut self, block: &Block, fences: Fences<'_>) -> Result<()> {
        let parts = leaf::divide(block, self.pager.sizes, fences);
        self.make_parts(block, &parts, fences.high)
    }

    /// Makes a leaf of each part.
    fn make_parts(&mut self, block: &Block, parts: &[Part], high: Option<&[u8]>) -> Result<()> {
        for (number, part) in parts.iter().enumerate() {
            let high = parts.get(number + 1).map(|next| next.low.as_slice()).or(high);
            self.low.clone_from(&part.low);
            self.make_leaf(block, (part.from, part.to), high)?;
        }
        Ok(())
    }

    /// Makes leaves of the collected entries, except for one or two leaves that are divided evenly
    /// if nothing more comes.
    fn cut_leaves(&mut self) -> Result<()> {
        let mut block = std::mem::take(&mut self.block);
        let mut from = 0;
        let mut end = self.leaf_end(&block, &self.low, from);

        while let Some(to) = end {
            let high = leaf::separator(block.key(to - 1), block.key(to)).to_vec();
            let next = self.leaf_end(&block, &high, to);
            if next.is_none() {
                break;
            }
            self.make_leaf(&block, (from, to), Some(&high))?;
            self.low = high;
            from = to;
            end = next;
        }

        block.forget_before(from);

        // If leaves hold far more than their size, as much again comes before the next cut.
        self.collected_max = COLLECTED_BYTES + 2 * block.bytes();
        self.block = block;
        Ok(())
    }

    /// The end of a leaf that begins with entry `from` above a fence; `None` if all entries from
    /// there on may fit into it.
    fn leaf_end(&self, block: &Block, low: &[u8], from: usize) -> Option<usize> {
        let bytes = |high: &[u8], to: usize| {
            leaf::part_bytes(block, self.pager.sizes, Fences { low, high: Some(high) }, (from, to))
        };

        // With the shortest possible fence above it, a leaf only grows with its entries. Their
        // common prefix is what the lower fence shares with the first key above, however long that
        // fence is.
        let may_fit = |to: usize| bytes(leaf::separator(low, block.key(to)), to) <= self.fill;
        let fits =
            |to: usize| bytes(leaf::separator(block.key(to - 1), block.key(to)), to) <= self.fill;

        let mut least = from + 1;
        let mut most = block.len();
        while least < most {
            let middle = least.midpoint(most);
            if may_fit(middle) { least = middle + 1 } else { most = middle }
        }

        if most == block.len() {
            return None;
        }

        // A large entry may not fit into the part to be filled, but always fits into a leaf of its
        // own.
        (from + 1..most).rev().find(|&to| fits(to)).or(Some(from + 1))
    }

    /// Makes leaves of all entries that are left.
    fn finish_leaves(&mut self) -> Result<()> {
        let block = std::mem::take(&mut self.block);
        let low = self.low.clone();
        let all = Fences { low: &low, high: None };
        let even = leaf::divide(&block, self.pager.sizes, all);

        // The last leaf has no fence above it, so its keys share no prefix. If that matters, the
        // last leaf takes few entries, and the others are divided without it.
        let fits = |at: &usize| {
            let low = leaf::separator(block.key(at - 1), block.key(*at));
            let own = Fences { low, high: None };
            leaf::part_bytes(&block, self.pager.sizes, own, (*at, block.len())) <= self.fill
        };

        // The most entries from the end that fit into a leaf without a fence above it.
        let last = (1..block.len()).rev().take_while(fits).last();
        let (Some(last), true) = (last, even.len() > 2) else {
            return self.make_parts(&block, &even, None);
        };

        let high = leaf::separator(block.key(last - 1), block.key(last)).to_vec();
        let mut lower = block.clone();
        let upper = lower.split_off(last);
        let below = Fences { low: &low, high: Some(&high) };

        let parts = leaf::divide(&lower, self.pager.sizes, below);
        // Without a leaf saved, the even division is better.
        if parts.len() + 1 >= even.len() {
            return self.make_parts(&block, &even, None);
        }

        self.make_parts(&lower, &parts, Some(&high))?;
        self.add_block(&upper, Fences { low: &high, high: None })
    }

    /// Makes a leaf with a part of a block.
    fn make_leaf(
        &mut self,
        block: &Block,
        (from, to): (usize, usize),
        high: Option<&[u8]>,
    ) -> Result<()> {
        let number = take_page_growing(self.pager, self.free_map, GROWTH_PART)?;
        let fences = Fences { low: &self.low, high };
        let place = (self.generation, number);
        let entries = (block, from, to);
        let page = self.page_writer.page(number)?;
        let crc = write_leaf(page, self.pager, place, fences, entries);
        self.level_pages[0] += 1;
        let low = self.low.clone();
        self.add_child(1, ChildEntry { low, child: Child::Stored(PageRef { number, crc }) })
    }

    /// Collects a child for a level, and cuts a node off once there are enough.
    fn add_child(&mut self, level: u8, child: ChildEntry) -> Result<()> {
        let at = usize::from(level) - 1;
        debug_assert!(at <= self.children.len(), "levels begin from below");
        if self.children.len() <= at {
            self.children.push(Vec::with_capacity(COLLECTED_CHILDREN));
        }

        debug_assert!(
            self.children[at].last().is_none_or(|last| last.low < child.low),
            "separators ascend"
        );
        self.children[at].push(child);
        if self.children[at].len() < COLLECTED_CHILDREN {
            return Ok(());
        }

        // More children than two nodes hold: the rest still fills a node.
        let mut own = std::mem::take(&mut self.children[at]);
        let lows: Vec<&[u8]> = own.iter().map(|entry| entry.low.as_slice()).collect();
        let to = inner::most_children(&lows, self.fill);
        let behind = own.split_off(to);
        self.children[at] = behind;
        debug_assert!(own.len() > 1, "a node has at least two children");
        self.make_node(level, &own)
    }

    /// Makes a node of the children, all of which are on disk.
    fn make_node(&mut self, level: u8, children: &[ChildEntry]) -> Result<()> {
        debug_assert!(!children.is_empty(), "a node has a child");
        let lows: Vec<&[u8]> = children.iter().map(|entry| entry.low.as_slice()).collect();
        let pages = children.iter().filter_map(|entry| match entry.child {
            Child::Stored(page) => Some(page),
            Child::Fresh(_) => None,
        });

        let number = take_page_growing(self.pager, self.free_map, GROWTH_PART)?;
        let bytes = self.page_writer.page(number)?;
        inner::write(bytes, &lows, pages);
        let count = children.len() as u16;
        let tree = self.pager.tree;
        let generation = self.generation;
        let header = Header { kind: Kind::Inner, level, count, tree, generation, number, step: 0 };
        let crc = seal(bytes, &header);

        self.level_pages[usize::from(level)] += 1;
        let low = children[0].low.clone();
        self.add_child(level + 1, ChildEntry { low, child: Child::Stored(PageRef { number, crc }) })
    }

    /// Makes pages of everything that is left, level by level.
    ///
    /// # Errors
    /// Those of [`build`].
    pub(crate) fn finish(mut self) -> Result<Built> {
        if self.entries > 0 {
            self.cut_leaves()?;
            self.finish_leaves()?;
        }

        // The last nodes of a level may fill a level above, so the loop goes up until one node is
        // left.
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

        self.page_writer.finish()?;
        let level_pages = self.level_pages;
        let entries = self.entries;
        Ok(Built { root, height, level_pages, entries })
    }
}

const _: () = assert!(FILL_BYTES_MIN <= PAGE_SIZE * FILL_PERCENT_MIN as usize / 100);
