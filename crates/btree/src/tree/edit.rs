//! Changing a tree: the leaves of one node at a time, from the bottom up.
//!
//! A step takes the leaves of one lowest node, changes their entries, and makes new leaves of them.
//! A leaf that became too full is divided. A leaf that became too empty is joined with a neighbour
//! into one leaf (*total merge*) or two even ones (*partial merge*). Neighbours are always children
//! of one node; a node with only one leaf left takes the children of its neighbour first. The nodes
//! above are made anew in the same way, in memory. The height grows when the root is divided, and
//! shrinks when the root has one child.
//!
//! Invariants: separators between leaves are made from the keys on both sides, and nowhere else.
//! The fences of a new leaf are the ends of its range, so ranges of neighbours always meet. Pages
//! of the old tree are not touched.

use std::sync::Arc;

use crate::page::block::Block;
use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};
use crate::page::inner;
use crate::page::leaf::{self, Fences, Leaf, Part};
use crate::page::page::{Header, Kind, PAGE_SIZE, Page, PageNo, PageRef, seal};
use crate::pager::free_map::{FreeMap, PAGES_MAX};
use crate::pager::pager::{NewPage, Pager};
use crate::tree::tree::{Child, ChildEntry, Node, Tree, misplaced};

/// Fill below which a page is joined with a neighbour, in bytes.
pub(crate) const FILL_BYTES_MIN: usize = PAGE_SIZE * 2 / 5;

/// Most leaves that one step changes, besides neighbours. Bounds how long a step takes.
const STEP_LEAVES_MAX: usize = 64;

/// Least number of pages that a file grows by.
const GROWTH_PAGES_MIN: u64 = 16;

/// Part of its length that a file grows by.
const GROWTH_PART: u64 = 32;

/// The change that a step makes.
pub(crate) trait Change {
    /// Whether the leaf for a range, on that page, is to change.
    fn touches(&mut self, fences: Fences<'_>, page: PageNo) -> bool;

    /// The new entries of a leaf; `None` if the leaf stays as it is. By default the leaf is written
    /// anew with the same entries.
    fn apply(&mut self, _fences: Fences<'_>, entries: &Block) -> Option<Block> {
        (!entries.is_empty()).then(|| entries.clone())
    }

    /// Whether the node on that page is to be written anew even if no leaf below it changes.
    fn moves(&self, _page: PageNo) -> bool {
        false
    }

    /// Whether the changed leaves are packed into as few as hold their entries, and only if that
    /// saves an eighth of them.
    fn packs(&self) -> bool {
        false
    }
}

/// The result of a step.
#[derive(Debug)]
pub(crate) struct Step {
    /// The new tree.
    pub(crate) tree: Tree,
    /// The range of keys that the step looked at.
    pub(crate) low: Vec<u8>,
    pub(crate) high: Option<Vec<u8>>,
    /// Pages that the new tree does not have.
    pub(crate) gone: Vec<PageNo>,
    /// Number of leaves that were written.
    pub(crate) leaves: u64,
}

/// A node on the path from the root, and the place of the child that the path goes on with.
#[derive(Debug)]
struct PathNode {
    node: Arc<Node>,
    at: usize,
    high: Option<Vec<u8>>,
}

/// Neighbouring children of one node, or of two that were joined.
#[derive(Debug)]
struct Siblings {
    entries: Vec<ChildEntry>,
    high: Option<Vec<u8>>,
    /// The places of their nodes among the children of the parent.
    from: usize,
    to: usize,
}

/// A leaf of a step: kept as it is, or unpacked to be made anew.
#[derive(Debug)]
enum StepLeaf {
    Kept(ChildEntry),
    Made { low: Vec<u8>, block: Block },
}

impl StepLeaf {
    fn low(&self) -> &[u8] {
        match self {
            Self::Kept(entry) => &entry.low,
            Self::Made { low, .. } => low,
        }
    }
}

/// Takes a page for writing. Lets the file grow if it has no free page.
///
/// # Errors
/// [`Error::Disk`] if the disk is full; [`Error::Full`].
pub(crate) fn take_page(pager: &Pager, free_map: &mut FreeMap) -> Result<PageNo> {
    take_page_growing(pager, free_map, GROWTH_PART)
}

/// Like [`take_page`]; a full file grows by one `part`-th of its length.
///
/// # Errors
/// Those of [`take_page`].
pub(crate) fn take_page_growing(
    pager: &Pager,
    free_map: &mut FreeMap,
    part: u64,
) -> Result<PageNo> {
    if let Some(page) = free_map.take() {
        return Ok(page);
    }

    let is_full = || Error::Full { path: pager.path().to_owned() };
    let grow = |by: u64| {
        let pages = (free_map.pages() + by).min(PAGES_MAX);
        pager.file().allocate(pages * PAGE_SIZE as u64).map(|()| pages)
    };

    // If there is no room for that much, the file grows by a little.
    let by = (free_map.pages() / part).max(GROWTH_PAGES_MIN);
    let pages = grow(by).or_else(|_| grow(GROWTH_PAGES_MIN))?;

    if !free_map.grow(pages) {
        return Err(is_full());
    }

    free_map.take().ok_or_else(is_full)
}

/// A step in progress.
struct Edit<'a> {
    pager: &'a Pager,
    free_map: &'a mut FreeMap,
    generation: u64,
    tree: Tree,
    taken: Vec<PageNo>,
    gone: Vec<PageNo>,
    written: Vec<NewPage>,
    /// The leaf that was written without entries, if there is one.
    empty_leaf: Option<PageRef>,
}

/// Changes the leaves of the lowest node for `from`, from there on. If any part fails, nothing
/// changes.
///
/// Cost: reads up to 64 leaves side by side and writes as many with few calls; reads at most one
/// neighbour of each leaf, and one neighbour of each node above.
///
/// # Errors
/// [`Error::Disk`], [`Error::Corrupt`], [`Error::Full`].
pub(crate) fn step(
    pager: &Pager,
    free_map: &mut FreeMap,
    generation: u64,
    tree: &Tree,
    from: &[u8],
    change: &mut dyn Change,
) -> Result<Step> {
    let mut edit = Edit {
        pager,
        free_map,
        generation,
        tree: tree.clone(),
        taken: Vec::new(),
        gone: Vec::new(),
        written: Vec::new(),
        empty_leaf: None,
    };

    pager.begin_step();
    let done = edit.run(from, change);

    match done.and_then(|found| edit.check_gone().map(|()| found)) {
        Ok((low, high, leaves)) => {
            let Edit { tree, gone, .. } = edit;
            Ok(Step { tree, low, high, gone, leaves })
        }
        Err(error) => {
            // No tree refers to the pages of a failed step.
            for page in std::mem::take(&mut edit.taken) {
                edit.free_map.give_back(page);
            }
            Err(error)
        }
    }
}

impl Edit<'_> {
    /// Refuses to let pages go that the free map does not have, or that are referred to twice.
    fn check_gone(&self) -> Result<()> {
        let mut gone = self.gone.clone();
        gone.sort_unstable();
        let is_twice = |pair: &&[PageNo]| pair[0] == pair[1];
        let twice = gone.windows(2).find(is_twice).map(|pair| (pair[0], "referred to once"));
        let unused = gone.iter().find(|&&page| !self.free_map.is_used(page));
        match twice.or(unused.map(|&page| (page, "used in the map"))) {
            Some((page, rule)) => {
                let page = u64::from(page);
                Err(self.pager.corrupt(Corrupt { page, rule, expected: 1, found: 0 }))
            }
            None => Ok(()),
        }
    }

    /// Loads the node of a child, which must lie within the range from `low` on and below `high`.
    fn node(&self, child: &Child, level: u8, low: &[u8], high: Option<&[u8]>) -> Result<Arc<Node>> {
        let node = Tree::node(self.pager, child, level)?;
        if let Child::Stored(page) = child {
            let view = node.view();
            let last = view.separator(view.count() - 1);
            if view.separator(0) != low || high.is_some_and(|high| last.as_slice() >= high) {
                return Err(self.pager.corrupt(misplaced(*page)));
            }
        }
        Ok(node)
    }

    /// The entries of a leaf that is for these fences.
    fn block_of(&self, page: PageRef, leaf: &Page, fences: Fences<'_>) -> Result<Block> {
        let leaf = Leaf::of(leaf);
        if leaf.fences() != fences {
            return Err(self.pager.corrupt(misplaced(page)));
        }
        Ok(leaf.to_block())
    }

    /// Runs the step. Returns the range that was looked at, and the number of written leaves.
    fn run(
        &mut self,
        from: &[u8],
        change: &mut dyn Change,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>, u64)> {
        let before = self.tree.clone();
        let (mut path, mut siblings) = self.descend(from)?;
        let (mut step_leaves, low, high) = self.change_leaves(&siblings, from, change)?;

        let is_kept = |step_leaf: &StepLeaf| matches!(step_leaf, StepLeaf::Kept(_));

        // If nothing changes, the step leaves the tree and its pages as they were.
        let stays = if change.packs() {
            !self.pack(&mut step_leaves, &siblings)
        } else {
            step_leaves.iter().all(is_kept) && !self.gone.iter().any(|&page| change.moves(page))
        };

        if stays {
            self.tree = before;
            self.gone = Vec::new();
            return Ok((low, high, 0));
        }

        self.balance(&mut step_leaves, &mut siblings, &path)?;
        let leaves = self.write_leaves(step_leaves, &mut siblings)?;
        self.finish(siblings, &mut path)?;
        Ok((low, high, leaves))
    }

    /// Descends to the lowest node for a key. Returns the path above it, and its children.
    fn descend(&mut self, key: &[u8]) -> Result<(Vec<PathNode>, Siblings)> {
        let mut path = Vec::new();
        let mut low = Vec::new();

        let mut high = None;
        let Some(mut child) = self.tree.root.clone() else {
            return Ok((path, Siblings { entries: Vec::new(), high, from: 0, to: 0 }));
        };

        for level in (1..=self.tree.height).rev() {
            let node = self.node(&child, level, &low, high.as_deref())?;
            self.let_go(&child, level);
            let at = node.view().child_for(key);
            let next = node.child(at);
            low = node.view().separator(at);
            let own_high = high.clone();
            high = node.high_of(at, high);
            path.push(PathNode { node, at, high: own_high });
            child = next;
        }

        let Some(lowest) = path.pop() else {
            let entries = vec![ChildEntry { low: Vec::new(), child }];
            return Ok((path, Siblings { entries, high: None, from: 0, to: 1 }));
        };

        let (from, to) = path.last().map_or((0, 1), |parent| (parent.at, parent.at + 1));
        Ok((path, Siblings { entries: lowest.node.entries(), high: lowest.high, from, to }))
    }

    /// Notes that the new tree does not have a child.
    fn let_go(&mut self, child: &Child, level: u8) {
        let pages = &mut self.tree.level_pages[usize::from(level)];
        // A forged superblock may count fewer pages than the tree has.
        *pages = pages.saturating_sub(1);
        match child {
            Child::Stored(page) => self.gone.push(page.number),
            Child::Fresh(_) => self.tree.fresh_nodes -= 1,
        }
    }

    /// Changes the leaves that `change` touches. Returns all leaves of the node, and the range that
    /// was looked at.
    #[expect(clippy::type_complexity, reason = "the parts of one result, taken apart at once")]
    fn change_leaves(
        &mut self,
        siblings: &Siblings,
        from: &[u8],
        change: &mut dyn Change,
    ) -> Result<(Vec<StepLeaf>, Vec<u8>, Option<Vec<u8>>)> {
        if siblings.entries.is_empty() {
            let is_touched = change.touches(Fences::ALL, 0);
            let block =
                if is_touched { change.apply(Fences::ALL, &Block::default()) } else { None };
            let made = block.map(|block| StepLeaf::Made { low: Vec::new(), block });
            return Ok((made.into_iter().collect(), Vec::new(), None));
        }

        let first = siblings.entries.partition_point(|entry| entry.low.as_slice() <= from);
        let first = first.saturating_sub(1);
        let high_of = |at: usize| match siblings.entries.get(at + 1) {
            Some(next) => Some(next.low.as_slice()),
            None => siblings.high.as_deref(),
        };

        let mut touched = Vec::new();
        let mut end = first;
        while end < siblings.entries.len() && touched.len() < STEP_LEAVES_MAX {
            let fences = Fences { low: &siblings.entries[end].low, high: high_of(end) };
            if change.touches(fences, leaf_page(&siblings.entries[end]).number) {
                touched.push(end);
            }
            end += 1;
        }

        debug_assert!(first < end, "a step looks at one leaf or more");
        let low = siblings.entries[first].low.clone();
        let high = high_of(end - 1).map(<[u8]>::to_vec);

        // The touched leaves are read side by side and not put into the cache: their pages are let
        // go below.
        let pages: Vec<PageRef> =
            touched.iter().map(|&at| leaf_page(&siblings.entries[at])).collect();
        let leaves = self.pager.load_many(&pages, 0, false)?;

        let mut step_leaves: Vec<StepLeaf> =
            siblings.entries.iter().cloned().map(StepLeaf::Kept).collect();

        for (at, leaf) in touched.into_iter().zip(leaves) {
            let fences = Fences { low: &siblings.entries[at].low, high: high_of(at) };
            let entries = self.block_of(leaf_page(&siblings.entries[at]), &leaf, fences)?;
            if let Some(block) = change.apply(fences, &entries) {
                self.let_go(&siblings.entries[at].child, 0);
                step_leaves[at] = StepLeaf::Made { low: siblings.entries[at].low.clone(), block };
            }
        }

        Ok((step_leaves, low, high))
    }

    /// Joins changed neighbours into one leaf each, which is divided evenly later. Returns whether
    /// that saves an eighth of the leaves.
    fn pack(&self, step_leaves: &mut Vec<StepLeaf>, siblings: &Siblings) -> bool {
        let mut before = 0;
        let mut after = 0;
        let mut packed: Vec<StepLeaf> = Vec::with_capacity(step_leaves.len());

        for step_leaf in step_leaves.drain(..) {
            before += usize::from(matches!(step_leaf, StepLeaf::Made { .. }));
            match (packed.last_mut(), step_leaf) {
                (Some(StepLeaf::Made { block, .. }), StepLeaf::Made { block: next, .. }) => {
                    block.append(&next);
                }
                (_, step_leaf) => packed.push(step_leaf),
            }
        }

        // Counting needs the fences, which only now are final.
        *step_leaves = packed;
        for (at, step_leaf) in step_leaves.iter().enumerate() {
            let StepLeaf::Made { low, block } = step_leaf else { continue };
            let high = step_leaves.get(at + 1).map(StepLeaf::low).or(siblings.high.as_deref());
            after += leaf::divide(block, self.pager.sizes, Fences { low, high }).len();
        }

        // A smaller saving is not worth the writes.
        after < before && after * 8 <= before * 7
    }

    /// Joins leaves that became too empty with a neighbour. A leaf without a readable neighbour
    /// stays as it is.
    fn balance(
        &mut self,
        step_leaves: &mut Vec<StepLeaf>,
        siblings: &mut Siblings,
        path: &[PathNode],
    ) -> Result<()> {
        let mut at = 0;
        while at < step_leaves.len() {
            if self.bytes_of(step_leaves, at, siblings).is_none_or(|bytes| bytes >= FILL_BYTES_MIN)
            {
                at += 1;
                continue;
            }

            // The only leaf of a node has its neighbour in the next node.
            if step_leaves.len() == 1 {
                let widened = unless_damaged(self.widen(siblings, path.last(), 1))?;
                let Some(before) = widened.flatten() else { return Ok(()) };
                let mut kept: Vec<StepLeaf> =
                    siblings.entries.iter().cloned().map(StepLeaf::Kept).collect();
                kept[before] = step_leaves.remove(0);
                *step_leaves = kept;
                at = before;
                continue;
            }

            let Some(with) = self.unpack_beside(step_leaves, at, siblings.high.as_deref())? else {
                at += 1;
                continue;
            };

            let left = at.min(with);
            let right = at.max(with);
            let StepLeaf::Made { block: upper, .. } = step_leaves.remove(right) else {
                unreachable!()
            };

            let StepLeaf::Made { block: lower, .. } = &mut step_leaves[left] else {
                unreachable!()
            };
            lower.append(&upper);

            self.pager.counters.merges.add(1);
            at = left;
            if self.bytes_of(step_leaves, at, siblings).is_some_and(|bytes| bytes > PAGE_SIZE) {
                // Too large for one page: the leaf is divided evenly when it is written.
                at += 1;
            }
        }

        Ok(())
    }

    /// Bytes that a changed leaf takes if it is not divided.
    fn bytes_of(&self, step_leaves: &[StepLeaf], at: usize, siblings: &Siblings) -> Option<usize> {
        let StepLeaf::Made { low, block } = &step_leaves[at] else { return None };
        let high = step_leaves.get(at + 1).map(StepLeaf::low).or(siblings.high.as_deref());
        let bytes = block.iter().map(|(key, value)| key.len() + value.map_or(0, <[u8]>::len)).sum();
        Some(leaf::leaf_bytes(self.pager.sizes, Fences { low, high }, block.len(), bytes))
    }

    /// Unpacks the next leaf, or the one before if there is no next leaf or it is damaged. Returns
    /// its place; `None` if neither can be unpacked.
    fn unpack_beside(
        &mut self,
        step_leaves: &mut [StepLeaf],
        at: usize,
        siblings_high: Option<&[u8]>,
    ) -> Result<Option<usize>> {
        for with in [at + 1, at.wrapping_sub(1)] {
            let high =
                step_leaves.get(with.wrapping_add(1)).map(|step_leaf| step_leaf.low().to_vec());
            let Some(step_leaf) = step_leaves.get_mut(with) else { continue };
            if unless_damaged(self.unpack(step_leaf, high.as_deref().or(siblings_high)))?.is_some()
            {
                return Ok(Some(with));
            }
        }

        Ok(None)
    }

    /// Reads the entries of a kept leaf, so that they can be joined with others.
    fn unpack(&mut self, step_leaf: &mut StepLeaf, high: Option<&[u8]>) -> Result<()> {
        if let StepLeaf::Kept(entry) = step_leaf {
            let leaf = self.pager.load(leaf_page(entry), 0)?;
            let fences = Fences { low: &entry.low, high };
            let block = self.block_of(leaf_page(entry), &leaf, fences)?;
            let entry = entry.clone();
            self.let_go(&entry.child, 0);
            *step_leaf = StepLeaf::Made { low: entry.low, block };
        }
        Ok(())
    }

    /// Takes the children of a neighbour of these siblings' node, which is on `level`. Returns the
    /// number of children put before them; `None` if there is no neighbour.
    fn widen(
        &mut self,
        siblings: &mut Siblings,
        parent: Option<&PathNode>,
        level: u8,
    ) -> Result<Option<usize>> {
        let Some(parent) = parent else { return Ok(None) };
        let count = parent.node.view().count();

        let is_right = siblings.to < count;
        if !is_right && siblings.from == 0 {
            return Ok(None);
        }

        let at = if is_right { siblings.to } else { siblings.from - 1 };
        let child = parent.node.child(at);
        let low = parent.node.view().separator(at);
        let high = parent.node.high_of(at, parent.high.clone());

        let node = self.node(&child, level, &low, high.as_deref())?;
        self.let_go(&child, level);
        self.pager.counters.merges.add(1);

        let mut entries = node.entries();
        if is_right {
            siblings.entries.append(&mut entries);
            siblings.to += 1;
            siblings.high = high;
            return Ok(Some(0));
        }

        let before = entries.len();
        entries.append(&mut siblings.entries);
        siblings.entries = entries;
        siblings.from -= 1;
        Ok(Some(before))
    }

    /// Writes the new leaves, and puts them among the siblings.
    fn write_leaves(&mut self, step_leaves: Vec<StepLeaf>, siblings: &mut Siblings) -> Result<u64> {
        let lows: Vec<Vec<u8>> =
            step_leaves.iter().skip(1).map(|step_leaf| step_leaf.low().to_vec()).collect();
        let mut highs = lows.iter().map(Vec::as_slice).map(Some).chain([siblings.high.as_deref()]);

        let mut entries = Vec::with_capacity(step_leaves.len());
        for step_leaf in step_leaves {
            let high = highs.next().flatten();
            match step_leaf {
                StepLeaf::Kept(entry) => entries.push(entry),
                StepLeaf::Made { low, block } => {
                    let fences = Fences { low: &low, high };
                    self.make_leaves(&block, fences, &mut entries)?;
                }
            }
        }

        // In the order of the file, so that neighbours go with one write.
        self.written.sort_unstable_by_key(|(number, _)| *number);
        self.pager.write(&self.written)?;
        let leaves = self.written.len() as u64;

        for (number, page) in self.written.drain(..) {
            self.pager.cache.put(number, page);
        }

        debug_assert!(entries.is_sorted_by(|a, b| a.low < b.low), "separators ascend");
        siblings.entries = entries;
        Ok(leaves)
    }

    /// Makes as few leaves as hold a block.
    fn make_leaves(
        &mut self,
        block: &Block,
        fences: Fences<'_>,
        entries: &mut Vec<ChildEntry>,
    ) -> Result<()> {
        let parts = leaf::divide(block, self.pager.sizes, fences);
        debug_assert!(!parts.is_empty(), "a block has a leaf, even without entries");
        self.pager.counters.splits.add(parts.len() as u64 - 1);
        self.tree.level_pages[0] += parts.len() as u64;

        for (number, part) in parts.iter().enumerate() {
            let high = parts.get(number + 1).map(|next| next.low.as_slice()).or(fences.high);
            let page = self.make_leaf(block, part, high)?;
            if block.is_empty() {
                self.empty_leaf = Some(page);
            }
            entries.push(ChildEntry { low: part.low.clone(), child: Child::Stored(page) });
        }

        Ok(())
    }

    /// Makes a leaf with a part of a block; it is written at the end of the step.
    fn make_leaf(&mut self, block: &Block, part: &Part, high: Option<&[u8]>) -> Result<PageRef> {
        let number = take_page(self.pager, self.free_map)?;
        self.taken.push(number);
        let fences = Fences { low: &part.low, high };
        let mut bytes = [0; PAGE_SIZE];
        let place = (self.generation, number);
        let entries = (block, part.from, part.to);
        let crc = write_leaf(&mut bytes, self.pager, place, fences, entries);
        self.written.push((number, Page::new(&bytes)));
        Ok(PageRef { number, crc })
    }

    /// Makes the nodes above the siblings anew, up to the root.
    fn finish(&mut self, mut siblings: Siblings, path: &mut Vec<PathNode>) -> Result<()> {
        debug_assert!(siblings.from <= siblings.to, "places of the parent");
        let mut level = 1;
        loop {
            let parent = path.pop();
            if parent.is_none() && siblings.entries.len() == 1 {
                let only = siblings.entries.remove(0).child;
                return self.set_root(only, level - 1);
            }

            let mut nodes = self.make_nodes(&siblings.entries, level);

            // A node that became too empty takes the children of its neighbour, and is divided
            // evenly if they do not fit.
            let is_widened = is_underfull(&nodes)
                && unless_damaged(self.widen(&mut siblings, parent.as_ref(), level))?
                    .flatten()
                    .is_some();

            if is_widened {
                // No tree had these nodes: they are not counted any more.
                for node in &nodes {
                    self.let_go(&node.child, level);
                }
                nodes = self.make_nodes(&siblings.entries, level);
            }

            // The new nodes take the places of the old ones in their parent.
            siblings = match parent {
                Some(parent) => {
                    let mut entries = parent.node.entries();
                    entries.splice(siblings.from..siblings.to, nodes);
                    let (from, to) = path.last().map_or((0, 1), |above| (above.at, above.at + 1));
                    Siblings { entries, high: parent.high, from, to }
                }
                None => Siblings { entries: nodes, high: None, from: 0, to: 1 },
            };

            level += 1;
        }
    }

    /// Makes as few fresh nodes as hold the children.
    fn make_nodes(&mut self, entries: &[ChildEntry], level: u8) -> Vec<ChildEntry> {
        let lows: Vec<&[u8]> = entries.iter().map(|entry| entry.low.as_slice()).collect();
        let ends = inner::divide(&lows);
        debug_assert_eq!(ends.last(), Some(&entries.len()), "every child has a node");
        self.tree.level_pages[usize::from(level)] += ends.len() as u64;
        self.tree.fresh_nodes += ends.len() as u64;
        let mut from = 0;
        let node = |to| {
            let own = &entries[std::mem::replace(&mut from, to)..to];
            let child = Child::Fresh(Arc::new(Node::fresh(own, level)));
            ChildEntry { low: own[0].low.clone(), child }
        };
        ends.into_iter().map(node).collect()
    }

    /// Makes a child the root. A node with a single child gives way to that child.
    fn set_root(&mut self, mut root: Child, mut level: u8) -> Result<()> {
        while level > 0 {
            let node = Tree::node(self.pager, &root, level)?;
            if node.view().count() > 1 {
                break;
            }
            self.let_go(&root, level);
            root = node.child(0);
            level -= 1;
        }

        self.tree.height = level;
        self.tree.root = match (&root, self.empty_leaf) {
            // A tree without entries has no leaf.
            (Child::Stored(page), Some(empty)) if *page == empty => {
                self.let_go(&root, 0);
                None
            }
            _ => Some(root),
        };

        Ok(())
    }
}

/// Turns damage into `None`, where there is a way without the page.
fn unless_damaged<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(Error::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a level consists of one node that should be joined with a neighbour.
fn is_underfull(nodes: &[ChildEntry]) -> bool {
    match nodes {
        [ChildEntry { child: Child::Fresh(node), .. }] => node.view().used_bytes() < FILL_BYTES_MIN,
        _ => false,
    }
}

/// The page of a leaf.
fn leaf_page(entry: &ChildEntry) -> PageRef {
    match entry.child {
        Child::Stored(page) => page,
        Child::Fresh(_) => unreachable!("leaves are on disk"),
    }
}

/// Makes a leaf of a page of zeros with a part of a block. Returns its checksum.
pub(crate) fn write_leaf(
    bytes: &mut [u8],
    pager: &Pager,
    (generation, number): (u64, PageNo),
    fences: Fences<'_>,
    (block, from, to): (&Block, usize, usize),
) -> u32 {
    debug_assert!(from <= to && to <= block.len(), "a part of the block");
    leaf::write(bytes, pager.sizes, fences, (from..to).map(|at| block.get(at)));
    let count = (to - from) as u16;
    let tree = pager.tree;
    let step = pager.step();
    let header = Header { kind: Kind::Leaf, level: 0, count, tree, generation, number, step };
    seal(bytes, &header)
}
