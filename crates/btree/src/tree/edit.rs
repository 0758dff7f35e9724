//! Changing a tree: leaves of one node at a time, from the bottom up.
//!
//! A step takes the leaves of one lowest node, changes their entries, and makes new leaves of them: as many as are needed where
//! they became too full, one for two neighbours that fit together where one became too empty (*total merge*), two even ones
//! where both together do not fit (*partial merge*). Neighbours are always children of one node; if a node has only
//! one leaf left it takes the children of its neighbour first. The nodes above are made anew in the same way, in memory. Height
//! grows when the root becomes two nodes and shrinks when it has one child.
//!
//! Invariants: separators between leaves are made from the keys on both sides, and nowhere else; the fences of a new leaf are
//! those of the range that it stands for, so ranges of neighbours always meet; pages of the old tree are not touched.

use std::sync::Arc;

use crate::page::block::Block;
use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};
use crate::page::inner;
use crate::page::leaf::{self, Fences, Leaf, Part};
use crate::page::page::{Header, Kind, PAGE_SIZE, Page, PageNo, PageRef, seal};
use crate::pager::free_map::{PAGES_MAX, Space};
use crate::pager::pager::{NewPage, Pager};
use crate::tree::tree::{Child, Entry, Node, Tree, misplaced};

/// A page with fewer bytes is joined with a neighbour.
pub(crate) const FILL_BYTES_MIN: usize = PAGE_SIZE * 2 / 5;

/// Most leaves that one step changes, besides neighbours: bounds how long a step takes.
const STEP_LEAVES_MAX: usize = 64;

/// Pages that a file grows by at least, and the part of it that it grows by.
const GROWTH_PAGES_MIN: u64 = 16;
const GROWTH_PART: u64 = 32;

/// What a step is to change.
pub(crate) trait Change {
    /// Whether the leaf that is for a range, and stands on that page, is to change.
    fn touches(&mut self, fences: Fences<'_>, page: PageNo) -> bool;

    /// The new entries of a leaf; `None` if it stays as it is. Unless told otherwise it is written anew with those that it has.
    fn apply(&mut self, _fences: Fences<'_>, entries: &Block) -> Option<Block> {
        (!entries.is_empty()).then(|| entries.clone())
    }

    /// Whether the node on that page is to be written anew though no leaf below it changes.
    fn moves(&self, _page: PageNo) -> bool {
        false
    }

    /// Whether the leaves that change are to become as few as hold their entries, and to stay as they are unless these are an
    /// eighth fewer.
    fn packs(&self) -> bool {
        false
    }
}

/// What a step did.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) tree: Tree,
    /// The range of keys that was looked at.
    pub(crate) low: Vec<u8>,
    pub(crate) high: Option<Vec<u8>>,
    /// Pages that the new tree does not have.
    pub(crate) gone: Vec<PageNo>,
    /// Leaves that were written.
    pub(crate) leaves: u64,
}

/// A node on the way from the root, and the child that the way goes on with.
#[derive(Debug)]
struct Place {
    node: Arc<Node>,
    at: usize,
    high: Option<Vec<u8>>,
}

/// Neighbouring children that one or two nodes have.
#[derive(Debug)]
struct Row {
    entries: Vec<Entry>,
    high: Option<Vec<u8>>,
    /// Which children of the parent have them.
    from: usize,
    to: usize,
}

/// A leaf of a step.
#[derive(Debug)]
enum Piece {
    Kept(Entry),
    Made { low: Vec<u8>, block: Block },
}

impl Piece {
    fn low(&self) -> &[u8] {
        match self {
            Self::Kept(entry) => &entry.low,
            Self::Made { low, .. } => low,
        }
    }
}

/// Takes a page for writing, and lets the file grow if it must.
///
/// # Errors
/// [`Error::Disk`] if there is no space; [`Error::Full`].
pub(crate) fn take_page(pager: &Pager, space: &mut Space) -> Result<PageNo> {
    take_page_growing(pager, space, GROWTH_PART)
}

/// The same; a file that is full grows by a given part of it.
///
/// # Errors
/// As [`take_page`].
pub(crate) fn take_page_growing(pager: &Pager, space: &mut Space, part: u64) -> Result<PageNo> {
    if let Some(page) = space.take() {
        return Ok(page);
    }
    let is_full = || Error::Full { path: pager.path().to_owned() };
    let grow = |by: u64| {
        let pages = (space.pages() + by).min(PAGES_MAX);
        pager.file().allocate(pages * PAGE_SIZE as u64).map(|()| pages)
    };
    // If there is no room for that much, for a little.
    let by = (space.pages() / part).max(GROWTH_PAGES_MIN);
    let pages = grow(by).or_else(|_| grow(GROWTH_PAGES_MIN))?;
    if !space.grow(pages) {
        return Err(is_full());
    }
    space.take().ok_or_else(is_full)
}

/// A step under way.
struct Edit<'a> {
    pager: &'a Pager,
    space: &'a mut Space,
    generation: u64,
    tree: Tree,
    taken: Vec<PageNo>,
    gone: Vec<PageNo>,
    written: Vec<NewPage>,
    /// The leaf that was written without an entry, if one was.
    empty_leaf: Option<PageRef>,
}

/// Changes the leaves of the lowest node that is for `from`, from there on. Nothing changes unless all of it succeeds.
///
/// Cost: reads up to 64 leaves side by side and writes as many in few calls; reads at most one neighbour of each, and one
/// neighbour of each node above.
///
/// # Errors
/// [`Error::Disk`], [`Error::Corrupt`], [`Error::Full`].
pub(crate) fn step(
    pager: &Pager,
    space: &mut Space,
    generation: u64,
    tree: &Tree,
    from: &[u8],
    change: &mut dyn Change,
) -> Result<Step> {
    let mut edit = Edit {
        pager,
        space,
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
            for page in std::mem::take(&mut edit.taken) {
                edit.space.give_back(page);
            }
            Err(error)
        }
    }
}

impl Edit<'_> {
    /// Refuses to let pages go that the map does not have, or one that is referred to twice.
    fn check_gone(&self) -> Result<()> {
        let mut gone = self.gone.clone();
        gone.sort_unstable();
        let is_twice = |pair: &&[PageNo]| pair[0] == pair[1];
        let twice = gone.windows(2).find(is_twice).map(|pair| (pair[0], "referred to once"));
        let unused = gone.iter().find(|&&page| !self.space.is_used(page));
        match twice.or(unused.map(|&page| (page, "used in the map"))) {
            Some((page, rule)) => {
                let page = u64::from(page);
                Err(self.pager.corrupt(Corrupt { page, rule, expected: 1, found: 0 }))
            }
            None => Ok(()),
        }
    }

    /// The node of a child, for keys from `low` on and below `high`.
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

    fn run(
        &mut self,
        from: &[u8],
        change: &mut dyn Change,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>, u64)> {
        let before = self.tree.clone();
        let (mut path, mut row) = self.descend(from)?;
        let (mut pieces, low, high) = self.change_leaves(&row, from, change)?;
        let is_kept = |piece: &Piece| matches!(piece, Piece::Kept(_));
        let stays = if change.packs() {
            !self.pack(&mut pieces, &row)
        } else {
            pieces.iter().all(is_kept) && !self.gone.iter().any(|&page| change.moves(page))
        };
        if stays {
            (self.tree, self.gone) = (before, Vec::new());
            return Ok((low, high, 0));
        }
        self.balance(&mut pieces, &mut row, &path)?;
        let leaves = self.write_leaves(pieces, &mut row)?;
        self.finish(row, &mut path)?;
        Ok((low, high, leaves))
    }

    /// The way to the lowest node that is for a key, and its children.
    fn descend(&mut self, key: &[u8]) -> Result<(Vec<Place>, Row)> {
        let (mut path, mut low, mut high) = (Vec::new(), Vec::new(), None);
        let Some(mut child) = self.tree.root.clone() else {
            return Ok((path, Row { entries: Vec::new(), high, from: 0, to: 0 }));
        };
        for level in (1..=self.tree.height).rev() {
            let node = self.node(&child, level, &low, high.as_deref())?;
            self.let_go(&child, level);
            let at = node.view().child_for(key);
            let next = node.child(at);
            low = node.view().separator(at);
            let own_high = high.clone();
            high = node.high_of(at, high);
            path.push(Place { node, at, high: own_high });
            child = next;
        }
        let Some(lowest) = path.pop() else {
            let entries = vec![Entry { low: Vec::new(), child }];
            return Ok((path, Row { entries, high: None, from: 0, to: 1 }));
        };
        let (from, to) = path.last().map_or((0, 1), |parent| (parent.at, parent.at + 1));
        Ok((path, Row { entries: lowest.node.entries(), high: lowest.high, from, to }))
    }

    /// Notes that the new tree does not have a node or a leaf.
    fn let_go(&mut self, child: &Child, level: u8) {
        let pages = &mut self.tree.level_pages[usize::from(level)];
        *pages = pages.saturating_sub(1);
        match child {
            Child::Stored(page) => self.gone.push(page.number),
            Child::Fresh(_) => self.tree.fresh_nodes -= 1,
        }
    }

    /// The leaves of a row, changed where they are to be, and the range that was looked at.
    #[expect(clippy::type_complexity, reason = "the parts of one result, taken apart at once")]
    fn change_leaves(
        &mut self,
        row: &Row,
        from: &[u8],
        change: &mut dyn Change,
    ) -> Result<(Vec<Piece>, Vec<u8>, Option<Vec<u8>>)> {
        if row.entries.is_empty() {
            let is_touched = change.touches(Fences::ALL, 0);
            let block =
                if is_touched { change.apply(Fences::ALL, &Block::default()) } else { None };
            let made = block.map(|block| Piece::Made { low: Vec::new(), block });
            return Ok((made.into_iter().collect(), Vec::new(), None));
        }
        let first = row.entries.partition_point(|entry| entry.low.as_slice() <= from);
        let first = first.saturating_sub(1);
        let high_of = |at: usize| match row.entries.get(at + 1) {
            Some(next) => Some(next.low.as_slice()),
            None => row.high.as_deref(),
        };
        let mut touched = Vec::new();
        let mut end = first;
        while end < row.entries.len() && touched.len() < STEP_LEAVES_MAX {
            let fences = Fences { low: &row.entries[end].low, high: high_of(end) };
            if change.touches(fences, leaf_page(&row.entries[end]).number) {
                touched.push(end);
            }
            end += 1;
        }
        let low = row.entries[first].low.clone();
        let high = high_of(end - 1).map(<[u8]>::to_vec);
        let pages: Vec<PageRef> = touched.iter().map(|&at| leaf_page(&row.entries[at])).collect();
        let leaves = self.pager.load_many(&pages, 0, false)?;
        let mut pieces: Vec<Piece> = row.entries.iter().cloned().map(Piece::Kept).collect();
        for (at, leaf) in touched.into_iter().zip(leaves) {
            let fences = Fences { low: &row.entries[at].low, high: high_of(at) };
            let entries = self.block_of(leaf_page(&row.entries[at]), &leaf, fences)?;
            if let Some(block) = change.apply(fences, &entries) {
                self.let_go(&row.entries[at].child, 0);
                pieces[at] = Piece::Made { low: row.entries[at].low.clone(), block };
            }
        }
        Ok((pieces, low, high))
    }

    /// Joins neighbours that change into one piece, which is divided evenly. Returns whether that makes an eighth fewer leaves.
    fn pack(&self, pieces: &mut Vec<Piece>, row: &Row) -> bool {
        let (mut before, mut after) = (0, 0);
        let mut packed: Vec<Piece> = Vec::with_capacity(pieces.len());
        for piece in pieces.drain(..) {
            before += usize::from(matches!(piece, Piece::Made { .. }));
            match (packed.last_mut(), piece) {
                (Some(Piece::Made { block, .. }), Piece::Made { block: next, .. }) => {
                    block.append(&next);
                }
                (_, piece) => packed.push(piece),
            }
        }
        *pieces = packed;
        for (at, piece) in pieces.iter().enumerate() {
            let Piece::Made { low, block } = piece else { continue };
            let high = pieces.get(at + 1).map(Piece::low).or(row.high.as_deref());
            after += leaf::divide(block, self.pager.sizes, Fences { low, high }).len();
        }
        after < before && after * 8 <= before * 7
    }

    /// Joins leaves that became too empty with a neighbour. One with none that can be read stays as it is.
    fn balance(&mut self, pieces: &mut Vec<Piece>, row: &mut Row, path: &[Place]) -> Result<()> {
        let mut at = 0;
        while at < pieces.len() {
            if self.bytes_of(pieces, at, row).is_none_or(|bytes| bytes >= FILL_BYTES_MIN) {
                at += 1;
                continue;
            }
            if pieces.len() == 1 {
                let widened = unless_damaged(self.widen(row, path.last(), 1))?;
                let Some(before) = widened.flatten() else { return Ok(()) };
                let mut kept: Vec<Piece> = row.entries.iter().cloned().map(Piece::Kept).collect();
                kept[before] = pieces.remove(0);
                *pieces = kept;
                at = before;
                continue;
            }
            let Some(with) = self.unpack_beside(pieces, at, row.high.as_deref())? else {
                at += 1;
                continue;
            };
            let (left, right) = (at.min(with), at.max(with));
            let Piece::Made { block: upper, .. } = pieces.remove(right) else { unreachable!() };
            let Piece::Made { block: lower, .. } = &mut pieces[left] else { unreachable!() };
            lower.append(&upper);
            self.pager.counters.merges.add(1);
            at = left;
            if self.bytes_of(pieces, at, row).is_some_and(|bytes| bytes > PAGE_SIZE) {
                // It will be divided evenly.
                at += 1;
            }
        }
        Ok(())
    }

    /// What a changed leaf takes if it stays one.
    fn bytes_of(&self, pieces: &[Piece], at: usize, row: &Row) -> Option<usize> {
        let Piece::Made { low, block } = &pieces[at] else { return None };
        let high = pieces.get(at + 1).map(Piece::low).or(row.high.as_deref());
        let bytes = block.iter().map(|(key, value)| key.len() + value.map_or(0, <[u8]>::len)).sum();
        Some(leaf::leaf_bytes(self.pager.sizes, Fences { low, high }, block.len(), bytes))
    }

    /// Unpacks the next piece, or the one before if there is no next one or it is damaged; `None` if that is, too.
    fn unpack_beside(
        &mut self,
        pieces: &mut [Piece],
        at: usize,
        row_high: Option<&[u8]>,
    ) -> Result<Option<usize>> {
        for with in [at + 1, at.wrapping_sub(1)] {
            let high = pieces.get(with.wrapping_add(1)).map(|piece| piece.low().to_vec());
            let Some(piece) = pieces.get_mut(with) else { continue };
            if unless_damaged(self.unpack(piece, high.as_deref().or(row_high)))?.is_some() {
                return Ok(Some(with));
            }
        }
        Ok(None)
    }

    fn unpack(&mut self, piece: &mut Piece, high: Option<&[u8]>) -> Result<()> {
        if let Piece::Kept(entry) = piece {
            let leaf = self.pager.load(leaf_page(entry), 0)?;
            let fences = Fences { low: &entry.low, high };
            let block = self.block_of(leaf_page(entry), &leaf, fences)?;
            let entry = entry.clone();
            self.let_go(&entry.child, 0);
            *piece = Piece::Made { low: entry.low, block };
        }
        Ok(())
    }

    /// Takes the children of a neighbour node into a row whose nodes are on `level`; returns how many of them come first, or
    /// `None` if there is no neighbour.
    fn widen(&mut self, row: &mut Row, parent: Option<&Place>, level: u8) -> Result<Option<usize>> {
        let Some(parent) = parent else { return Ok(None) };
        let count = parent.node.view().count();
        let is_right = row.to < count;
        if !is_right && row.from == 0 {
            return Ok(None);
        }
        let at = if is_right { row.to } else { row.from - 1 };
        let child = parent.node.child(at);
        let low = parent.node.view().separator(at);
        let high = parent.node.high_of(at, parent.high.clone());
        let node = self.node(&child, level, &low, high.as_deref())?;
        self.let_go(&child, level);
        self.pager.counters.merges.add(1);
        let mut entries = node.entries();
        if is_right {
            row.entries.append(&mut entries);
            row.to += 1;
            row.high = high;
            return Ok(Some(0));
        }
        let before = entries.len();
        entries.append(&mut row.entries);
        row.entries = entries;
        row.from -= 1;
        Ok(Some(before))
    }

    /// Writes the leaves that were made, and puts them into the row.
    fn write_leaves(&mut self, pieces: Vec<Piece>, row: &mut Row) -> Result<u64> {
        let lows: Vec<Vec<u8>> = pieces.iter().skip(1).map(|piece| piece.low().to_vec()).collect();
        let mut highs = lows.iter().map(Vec::as_slice).map(Some).chain([row.high.as_deref()]);
        let mut entries = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let high = highs.next().flatten();
            match piece {
                Piece::Kept(entry) => entries.push(entry),
                Piece::Made { low, block } => {
                    let fences = Fences { low: &low, high };
                    self.make_leaves(&block, fences, &mut entries)?;
                }
            }
        }
        self.written.sort_unstable_by_key(|(number, _)| *number);
        self.pager.write(&self.written)?;
        let leaves = self.written.len() as u64;
        for (number, page) in self.written.drain(..) {
            self.pager.cache.put(number, page);
        }
        row.entries = entries;
        Ok(leaves)
    }

    fn make_leaves(
        &mut self,
        block: &Block,
        fences: Fences<'_>,
        entries: &mut Vec<Entry>,
    ) -> Result<()> {
        let parts = leaf::divide(block, self.pager.sizes, fences);
        self.pager.counters.splits.add(parts.len() as u64 - 1);
        self.tree.level_pages[0] += parts.len() as u64;
        for (number, part) in parts.iter().enumerate() {
            let high = parts.get(number + 1).map(|next| next.low.as_slice()).or(fences.high);
            let page = self.make_leaf(block, part, high)?;
            if block.is_empty() {
                self.empty_leaf = Some(page);
            }
            entries.push(Entry { low: part.low.clone(), child: Child::Stored(page) });
        }
        Ok(())
    }

    fn make_leaf(&mut self, block: &Block, part: &Part, high: Option<&[u8]>) -> Result<PageRef> {
        let number = take_page(self.pager, self.space)?;
        self.taken.push(number);
        let fences = Fences { low: &part.low, high };
        let mut bytes = [0; PAGE_SIZE];
        let (place, entries) = ((self.generation, number), (block, part.from, part.to));
        let crc = write_leaf(&mut bytes, self.pager, place, fences, entries);
        self.written.push((number, Page::new(&bytes)));
        Ok(PageRef { number, crc })
    }

    /// Makes the nodes above a row anew, up to the root.
    fn finish(&mut self, mut row: Row, path: &mut Vec<Place>) -> Result<()> {
        let mut level = 1;
        loop {
            let parent = path.pop();
            if parent.is_none() && row.entries.len() == 1 {
                let only = row.entries.remove(0).child;
                return self.set_root(only, level - 1);
            }
            let mut nodes = self.make_nodes(&row.entries, level);
            let is_widened = is_underfull(&nodes)
                && unless_damaged(self.widen(&mut row, parent.as_ref(), level))?
                    .flatten()
                    .is_some();
            if is_widened {
                for node in &nodes {
                    self.let_go(&node.child, level);
                }
                nodes = self.make_nodes(&row.entries, level);
            }
            row = match parent {
                Some(parent) => {
                    let mut entries = parent.node.entries();
                    entries.splice(row.from..row.to, nodes);
                    let (from, to) = path.last().map_or((0, 1), |above| (above.at, above.at + 1));
                    Row { entries, high: parent.high, from, to }
                }
                None => Row { entries: nodes, high: None, from: 0, to: 1 },
            };
            level += 1;
        }
    }

    fn make_nodes(&mut self, entries: &[Entry], level: u8) -> Vec<Entry> {
        let lows: Vec<&[u8]> = entries.iter().map(|entry| entry.low.as_slice()).collect();
        let ends = inner::divide(&lows);
        self.tree.level_pages[usize::from(level)] += ends.len() as u64;
        self.tree.fresh_nodes += ends.len() as u64;
        let mut from = 0;
        let node = |to| {
            let own = &entries[std::mem::replace(&mut from, to)..to];
            let child = Child::Fresh(Arc::new(Node::fresh(own, level)));
            Entry { low: own[0].low.clone(), child }
        };
        ends.into_iter().map(node).collect()
    }

    /// Makes a node or a leaf the root; one with a single child is none.
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
            (Child::Stored(page), Some(empty)) if *page == empty => {
                self.let_go(&root, 0);
                None
            }
            _ => Some(root),
        };
        Ok(())
    }
}

/// `None` if a page is damaged, where there is a way without it.
fn unless_damaged<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(Error::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_underfull(nodes: &[Entry]) -> bool {
    match nodes {
        [Entry { child: Child::Fresh(node), .. }] => node.view().used_bytes() < FILL_BYTES_MIN,
        _ => false,
    }
}

fn leaf_page(entry: &Entry) -> PageRef {
    match entry.child {
        Child::Stored(page) => page,
        Child::Fresh(_) => unreachable!("leaves are on disk"),
    }
}

/// Makes a leaf with a part of some entries of a page of zeros; returns its checksum.
pub(crate) fn write_leaf(
    bytes: &mut [u8],
    pager: &Pager,
    (generation, number): (u64, PageNo),
    fences: Fences<'_>,
    (block, from, to): (&Block, usize, usize),
) -> u32 {
    leaf::write(bytes, pager.sizes, fences, (from..to).map(|at| block.get(at)));
    let count = (to - from) as u16;
    let (tree, step) = (pager.tree, pager.step());
    let header = Header { kind: Kind::Leaf, level: 0, count, tree, generation, number, step };
    seal(bytes, &header)
}
