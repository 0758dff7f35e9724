//! Trees: from the root to the leaves.
//!
//! A tree is a value: a change makes another tree, which shares everything that stays the same.
//! Leaves are always on disk. Inner nodes that a change made are *fresh*: in memory only, until a
//! checkpoint writes them. So a change of the leaves below one node writes no other page, and
//! whoever holds an older tree goes on reading it.
//!
//! Invariants: a node has at least two children, also the root. All leaves have the same depth. The
//! pages of a tree are not reused while the tree, or any tree of its epoch, is in use.
//!
//! Rejected: writing the path to the root with each leaf, as LMDB does (half of all that it
//! writes).

use std::sync::Arc;

use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};
use crate::page::inner::{self, Inner};
use crate::page::leaf::Leaf;
use crate::page::page::{Header, KeyRange, Kind, PAGE_SIZE, Page, PageNo, PageRef, seal};
use crate::pager::pager::{NewPage, Pager};
use crate::pager::superblock::LevelPages;

/// A child of a node.
#[derive(Debug, Clone)]
pub(crate) enum Child {
    /// A page on disk.
    Stored(PageRef),
    /// A node in memory.
    Fresh(Arc<Node>),
}

/// An inner node; some of its children may be fresh.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// The node as on disk. References of fresh children have no meaning, and neither has the
    /// header of a fresh node.
    page: Page,
    /// Fresh children by their places, ascending.
    fresh: Vec<(u16, Arc<Node>)>,
}

/// A child with its separator.
#[derive(Debug, Clone)]
pub(crate) struct ChildEntry {
    pub(crate) low: Vec<u8>,
    pub(crate) child: Child,
}

impl Node {
    /// A node on disk.
    pub(crate) fn stored(page: Page) -> Self {
        Self { page, fresh: Vec::new() }
    }

    /// A fresh node, into which the children must fit.
    pub(crate) fn fresh(entries: &[ChildEntry], level: u8) -> Self {
        assert!(u16::try_from(entries.len()).is_ok(), "the count of children fits into the header");
        let mut bytes = [0; PAGE_SIZE];
        let lows: Vec<&[u8]> = entries.iter().map(|entry| entry.low.as_slice()).collect();

        // A fresh child gets its page when it is stored.
        let unknown = PageRef { number: 0, crc: 0 };
        let children = entries.iter().map(|entry| match entry.child {
            Child::Stored(page) => page,
            Child::Fresh(_) => unknown,
        });

        inner::write(&mut bytes, &lows, children);

        // The part of the header that reading a node needs.
        bytes[4] = Kind::Inner as u8;
        bytes[5] = level;
        bytes[6..8].copy_from_slice(&(entries.len() as u16).to_le_bytes());

        let fresh = entries.iter().enumerate().filter_map(|(at, entry)| match &entry.child {
            Child::Stored(_) => None,
            Child::Fresh(node) => Some((at as u16, node.clone())),
        });

        Self { page: Page::new(&bytes), fresh: fresh.collect() }
    }

    /// The node, decoded.
    pub(crate) fn view(&self) -> Inner<'_> {
        Inner::of(&self.page)
    }

    /// Child `at`, fresh or stored.
    pub(crate) fn child(&self, at: usize) -> Child {
        match self.fresh.binary_search_by_key(&(at as u16), |(at, _)| *at) {
            Ok(found) => Child::Fresh(self.fresh[found].1.clone()),
            Err(_) => Child::Stored(self.view().child(at)),
        }
    }

    /// All children with their separators.
    pub(crate) fn entries(&self) -> Vec<ChildEntry> {
        let view = self.view();
        (0..view.count())
            .map(|at| ChildEntry { low: view.separator(at), child: self.child(at) })
            .collect()
    }

    /// Upper end of child `at`, if the node ends at `high`.
    pub(crate) fn high_of(&self, at: usize, high: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let view = self.view();
        if at + 1 < view.count() { Some(view.separator(at + 1)) } else { high }
    }
}

/// Mark of the trees between two checkpoints, by generation: their pages are kept while somebody
/// holds it.
#[derive(Debug)]
pub(crate) struct Epoch(pub(crate) u64);

/// A tree. See the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    /// The root; `None` if there is no entry.
    pub(crate) root: Option<Child>,
    /// Number of levels of inner nodes.
    pub(crate) height: u8,
    pub(crate) level_pages: LevelPages,
    /// Number of nodes that are not on disk.
    pub(crate) fresh_nodes: u64,
    pub(crate) epoch: Arc<Epoch>,
}

impl Tree {
    /// The node that a child stands for.
    pub(crate) fn node(pager: &Pager, child: &Child, level: u8) -> Result<Arc<Node>> {
        match child {
            Child::Fresh(node) => Ok(node.clone()),
            Child::Stored(page) => Ok(Arc::new(Node::stored(pager.load(*page, level)?))),
        }
    }

    /// Returns the leaf for a key; `None` if the tree is empty.
    ///
    /// Cost: a read for each level that is not cached.
    pub(crate) fn leaf_for(&self, pager: &Pager, key: &[u8]) -> Result<Option<Page>> {
        let Some(root) = &self.root else { return Ok(None) };
        let mut child = root.clone();
        for level in (1..=self.height).rev() {
            child = match &child {
                Child::Fresh(node) => node.child(node.view().child_for(key)),
                Child::Stored(page) => {
                    let page = pager.load(*page, level)?;
                    let view = Inner::of(&page);
                    Child::Stored(view.child(view.child_for(key)))
                }
            };
        }

        match child {
            Child::Stored(page) => {
                let leaf = pager.load(page, 0)?;
                check_is_for(pager, page, &leaf, key)?;
                Ok(Some(leaf))
            }
            Child::Fresh(_) => unreachable!("leaves are on disk"),
        }
    }

    /// Returns the range of a damaged page if it is a leaf beside the one for `key`. Otherwise
    /// returns the range of the leaf for `key`, or of the lowest readable node above it.
    pub(crate) fn damaged_range(
        &self,
        pager: &Pager,
        key: &[u8],
        damaged: u64,
    ) -> Result<KeyRange> {
        let mut low = Vec::new();
        let mut high = None;
        let Some(mut child) = self.root.clone() else { return Ok((low, high)) };

        for level in (1..=self.height).rev() {
            let node = match Self::node(pager, &child, level) {
                // The lowest readable node gives the range.
                Err(Error::Corrupt { .. }) => break,
                node => node?,
            };

            let view = node.view();
            let is_it = |at: &usize| u64::from(view.child(*at).number) == damaged;
            // Only the nodes right above the leaves name leaves.
            let beside = (0..view.count()).find(is_it).filter(|_| level == 1);
            let at = beside.unwrap_or_else(|| view.child_for(key));
            low = view.separator(at);
            high = node.high_of(at, high);
            child = node.child(at);
        }

        Ok((low, high))
    }

    /// Returns the leaves for ascending keys, each with the number of keys that fall into it.
    ///
    /// Cost: as [`leaf_for`](Self::leaf_for) for each leaf; the reads of a level run side by side.
    pub(crate) fn leaves_for(&self, pager: &Pager, keys: &[&[u8]]) -> Result<Vec<(Page, usize)>> {
        let Some(root) = &self.root else { return Ok(Vec::new()) };

        // Level by level: the children of a level and the number of keys that fall into each.
        let mut reached = vec![(root.clone(), keys.len())];

        for level in (1..=self.height).rev() {
            let nodes = Self::nodes(pager, &reached, level)?;
            let mut below = Vec::new();
            let mut rest = keys;
            for (node, (_, count)) in nodes.iter().zip(&reached) {
                let (own, behind) = rest.split_at(*count);
                rest = behind;
                divide_keys(node, own, &mut below);
            }
            reached = below;
        }

        let pages: Vec<PageRef> = reached.iter().filter_map(|(child, _)| stored(child)).collect();
        let leaves = pager.load_many(&pages, 0, true)?;

        debug_assert_eq!(leaves.len(), reached.len(), "a leaf for each child that was reached");
        let mut rest = keys;
        for ((page, leaf), (_, count)) in pages.iter().zip(&leaves).zip(&reached) {
            let (own, behind) = rest.split_at(*count);
            rest = behind;
            // Keys ascend, so if the first and the last are in the leaf's range, all are.
            for key in own.iter().take(1).chain(own.last()) {
                check_is_for(pager, *page, leaf, key)?;
            }
        }

        Ok(leaves.into_iter().zip(reached.iter().map(|(_, count)| *count)).collect())
    }

    /// The nodes of one level that a lookup has reached.
    fn nodes(pager: &Pager, reached: &[(Child, usize)], level: u8) -> Result<Vec<Arc<Node>>> {
        let pages: Vec<PageRef> = reached.iter().filter_map(|(child, _)| stored(child)).collect();
        let mut loaded = pager.load_many(&pages, level, true)?.into_iter();
        let node = |(child, _): &(Child, usize)| match child {
            Child::Fresh(node) => node.clone(),
            Child::Stored(_) => {
                let page = loaded.next().expect("one for each that is stored");
                Arc::new(Node::stored(page))
            }
        };
        Ok(reached.iter().map(node).collect())
    }

    /// Writes the fresh nodes. Returns the same tree without any.
    pub(crate) fn store(
        &self,
        tree: u64,
        generation: u64,
        take: &mut dyn FnMut() -> Result<PageNo>,
        written: &mut Vec<NewPage>,
    ) -> Result<Self> {
        let root = match &self.root {
            Some(Child::Fresh(node)) => {
                let page = store_node(node, self.height, (tree, generation), take, written)?;
                Some(Child::Stored(page))
            }
            other => other.clone(),
        };

        Ok(Self { root, fresh_nodes: 0, ..self.clone() })
    }
}

/// Refuses a leaf whose fences do not contain a key that the nodes above it led to.
fn check_is_for(pager: &Pager, page: PageRef, leaf: &Page, key: &[u8]) -> Result<()> {
    if Leaf::of(leaf).fences().contain(key) {
        return Ok(());
    }
    Err(pager.corrupt(misplaced(page)))
}

/// Damage: a leaf or a node has another range of keys than the node above says.
pub(crate) fn misplaced(page: PageRef) -> Corrupt {
    let page = u64::from(page.number);
    Corrupt { page, rule: "fences as in the node above", expected: 0, found: 1 }
}

/// The page of a child, unless the child is fresh.
fn stored(child: &Child) -> Option<PageRef> {
    match child {
        Child::Stored(page) => Some(*page),
        Child::Fresh(_) => None,
    }
}

/// Appends the children of a node that ascending keys fall into, with the number of keys of each.
fn divide_keys(node: &Node, keys: &[&[u8]], below: &mut Vec<(Child, usize)>) {
    let view = node.view();
    let mut rest = keys;
    while let Some(first) = rest.first() {
        let at = view.child_for(first);
        let count = match node.high_of(at, None) {
            // One key at least, so that forged separators cannot keep the loop going.
            Some(high) => rest.partition_point(|key| *key < high.as_slice()).max(1),
            None => rest.len(),
        };
        below.push((node.child(at), count));
        rest = &rest[count..];
    }
}

/// Writes a node with all fresh nodes below it, children first. Returns its reference.
fn store_node(
    node: &Node,
    level: u8,
    (tree, generation): (u64, u64),
    take: &mut dyn FnMut() -> Result<PageNo>,
    written: &mut Vec<NewPage>,
) -> Result<PageRef> {
    assert!(level > 0, "leaves are on disk already");
    let mut bytes = *node.page.bytes();
    for (at, child) in &node.fresh {
        let page = store_node(child, level - 1, (tree, generation), take, written)?;
        inner::set_child(&mut bytes, usize::from(*at), page);
    }

    let number = take()?;
    let count = node.page.count() as u16;
    let header = Header { kind: Kind::Inner, level, count, tree, generation, number, step: 0 };
    let crc = seal(&mut bytes, &header);
    written.push((number, Page::new(&bytes)));
    Ok(PageRef { number, crc })
}
