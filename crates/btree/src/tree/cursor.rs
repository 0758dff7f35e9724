//! Cursors: the entries of a range in order, ascending or descending.
//!
//! A cursor is a consistent snapshot: it holds a tree, and the updates of its range that the tree
//! does not have. Later changes of the index do not change it. Meanwhile the pages of that tree are
//! not reused.

use std::collections::VecDeque;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use crate::log::pending::UpdateBuffer;
use crate::page::error::Result;
use crate::page::leaf::{Fences, Leaf};
use crate::page::page::{KeyRange, Page, PageRef};
use crate::sort::input::Records;
use crate::tree::state::{Core, State};
use crate::tree::tree::{Child, Node, Tree, misplaced};

/// Most leaves that are read ahead.
const AHEAD_MAX: usize = 32;

/// The bounds of a range of keys.
pub(crate) fn bounds_of<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> KeyRange {
    // No key lies between a key and that key with a zero byte behind it.
    let just_above = |key: &K| [key.as_ref(), &[0]].concat();
    let low = match range.start_bound() {
        Bound::Included(key) => key.as_ref().to_vec(),
        Bound::Excluded(key) => just_above(key),
        Bound::Unbounded => Vec::new(),
    };
    let high = match range.end_bound() {
        Bound::Included(key) => Some(just_above(key)),
        Bound::Excluded(key) => Some(key.as_ref().to_vec()),
        Bound::Unbounded => None,
    };
    (low, high)
}

/// The bounds of the keys that begin with a prefix.
pub(crate) fn bounds_of_prefix(prefix: &[u8]) -> KeyRange {
    let mut high = prefix.to_vec();
    // The highest byte has no next one, so the byte before it is raised.
    while let Some(last) = high.pop() {
        if last < u8::MAX {
            high.push(last + 1);
            return (prefix.to_vec(), Some(high));
        }
    }
    (prefix.to_vec(), None)
}

/// Direction of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Ascending,
    Descending,
}

/// The entries of a tree in order.
#[derive(Debug)]
struct TreeCursor {
    tree: Arc<Tree>,
    direction: Direction,
    /// The path to the lowest node: each node, and the place of the child that comes next.
    path: Vec<(Arc<Node>, usize)>,
    /// Leaves that were read ahead.
    ahead: VecDeque<Page>,
    /// Number of leaves to be read ahead next.
    window: usize,
    leaf: Option<Page>,
    /// Entries of the leaf that are still to come: from here on if the cursor ascends, below if it
    /// descends.
    at: usize,
    key: Vec<u8>,
    /// The fence towards the next leaf.
    edge: Option<Vec<u8>>,
}

impl TreeCursor {
    /// A cursor before the first entry of a range.
    fn new(core: &Core, tree: Arc<Tree>, direction: Direction, bounds: &KeyRange) -> Result<Self> {
        let mut cursor = Self {
            tree,
            direction,
            path: Vec::new(),
            ahead: VecDeque::new(),
            window: 1,
            leaf: None,
            at: 0,
            key: Vec::new(),
            edge: None,
        };

        let (low, high) = bounds;

        // A descending cursor without an upper bound begins in the last child of each node.
        let start = if direction == Direction::Ascending { Some(low) } else { high.as_ref() };
        cursor.descend(core, start.map(Vec::as_slice))?;

        if let Some(page) = &cursor.leaf {
            let leaf = Leaf::of(page);
            let fences = leaf.fences();
            if start.map_or(fences.high.is_some(), |start| !fences.contain(start)) {
                // The path was chosen by separators, which a forged node may have wrong.
                return Err(core.pager.corrupt(misplaced(page.reference())));
            }
            cursor.edge = cursor.edge_of(fences);
            cursor.at = match start {
                Some(start) => leaf.search(start).unwrap_or_else(|at| at),
                None => leaf.count(),
            };
        }

        Ok(cursor)
    }

    /// Goes down to the leaf for a key, or to the last leaf.
    fn descend(&mut self, core: &Core, key: Option<&[u8]>) -> Result<()> {
        let Some(mut child) = self.tree.root.clone() else { return Ok(()) };
        for level in (1..=self.tree.height).rev() {
            let node = Tree::node(&core.pager, &child, level)?;
            let view = node.view();
            let at = key.map_or(view.count() - 1, |key| view.child_for(key));
            child = node.child(at);
            self.path.push((node, at));
        }
        if let Child::Stored(page) = child {
            self.leaf = Some(core.pager.load(page, 0)?);
        }
        Ok(())
    }

    /// The next place in a node, if there is one.
    fn step(direction: Direction, node: &Node, at: usize) -> Option<usize> {
        match direction {
            Direction::Ascending => Some(at.wrapping_add(1)).filter(|&at| at < node.view().count()),
            Direction::Descending => at.checked_sub(1),
        }
    }

    /// The fence of a leaf that the next leaf must share.
    fn edge_of(&self, fences: Fences<'_>) -> Option<Vec<u8>> {
        match self.direction {
            Direction::Ascending => fences.high.map(<[u8]>::to_vec),
            Direction::Descending => Some(fences.low.to_vec()),
        }
    }

    /// Goes on to the next leaf. Returns whether there is one.
    fn next_leaf(&mut self, core: &Core) -> Result<bool> {
        if self.ahead.is_empty() && !self.read_ahead(core)? {
            self.leaf = None;
            return Ok(false);
        }

        self.leaf = self.ahead.pop_front();

        // Neighbours meet; otherwise a range of keys would be missing or come twice.
        if let Some(page) = &self.leaf {
            let fences = Leaf::of(page).fences();
            let meets = match self.direction {
                Direction::Ascending => Some(fences.low),
                Direction::Descending => fences.high,
            };
            if meets != self.edge.as_deref() {
                return Err(core.pager.corrupt(misplaced(page.reference())));
            }
            self.edge = self.edge_of(fences);
        }

        let count = self.leaf.as_ref().map_or(0, Page::count);
        self.at = if self.direction == Direction::Ascending { 0 } else { count };
        Ok(true)
    }

    /// Reads the next leaves of the lowest node, or the first leaves of the next node.
    fn read_ahead(&mut self, core: &Core) -> Result<bool> {
        let Some(level) = self.next_node(core)? else { return Ok(false) };
        debug_assert_eq!(level, 1, "the parents of leaves are on level 1");
        let Some((node, at)) = self.path.last_mut() else { return Ok(false) };
        let mut pages: Vec<PageRef> = Vec::with_capacity(self.window);

        // The place is that of the leaf read last.
        while pages.len() < self.window {
            let Some(next) = Self::step(self.direction, node, *at) else { break };
            *at = next;
            if let Child::Stored(page) = node.child(next) {
                pages.push(page);
            }
        }

        // The window doubles, so that a short range reads little and a long one many leaves at
        // once.
        self.ahead = core.pager.load_many(&pages, 0, false)?.into();
        self.window = (self.window * 2).min(AHEAD_MAX);
        Ok(!self.ahead.is_empty())
    }

    /// Goes up until a node has a next child, and down again to a lowest node, whose place is then
    /// before its first child.
    fn next_node(&mut self, core: &Core) -> Result<Option<u8>> {
        let mut level: u8 = 1;
        loop {
            let Some((node, at)) = self.path.last_mut() else { return Ok(None) };
            if let Some(next) = Self::step(self.direction, node, *at) {
                if level == 1 {
                    return Ok(Some(1));
                }
                *at = next;
                break;
            }
            self.path.pop();
            level += 1;
        }

        // Down again along the first children of the new path.
        while level > 1 {
            let Some((node, at)) = self.path.last() else { return Ok(None) };
            let child = node.child(*at);
            level -= 1;
            let below = Tree::node(&core.pager, &child, level)?;
            let count = below.view().count();
            let first = match (self.direction, level) {
                // One before the first, so that the first comes next.
                (Direction::Ascending, 1) => usize::MAX,
                (Direction::Descending, 1) => count,
                (Direction::Ascending, _) => 0,
                (Direction::Descending, _) => count - 1,
            };
            self.path.push((below, first));
        }

        Ok(Some(1))
    }

    /// Moves to the next entry. Writes its key over `self.key`, and its value over `value`.
    fn next(&mut self, core: &Core, value: &mut Vec<u8>) -> Result<bool> {
        loop {
            let Some(page) = &self.leaf else { return Ok(false) };
            let leaf = Leaf::of(page);

            let at = match self.direction {
                Direction::Ascending => Some(self.at).filter(|&at| at < leaf.count()),
                Direction::Descending => self.at.checked_sub(1),
            };

            if let Some(at) = at {
                self.at = if self.direction == Direction::Ascending { at + 1 } else { at };
                value.clear();
                value.extend_from_slice(leaf.read(at, &mut self.key));
                return Ok(true);
            }

            if !self.next_leaf(core)? {
                return Ok(false);
            }
        }
    }
}

/// An update of a buffer.
type Update = (Vec<u8>, Option<Vec<u8>>);

/// The entries of a range in order, as of the moment when the cursor was made: a double-ended
/// iterator of `Result<(Vec<u8>, Vec<u8>)>`.
///
/// Later changes of the index do not change the cursor; the pages of its tree are kept meanwhile.
/// `next_back` (and `rev`) reads from the other end of the range. The two ends meet, and no entry
/// comes twice. The iterator gives an error once and ends.
///
/// ```
/// # use terrane_btree::{Config, Index, Result};
/// # let folder = tempfile::tempdir()?;
/// # let disk = terrane_io::RealDisk::auto();
/// # let index = Index::create(disk, &folder.path().join("index"), &Config::variable())?;
/// index.replace_many(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])?;
/// for entry in index.iter()? {
///     let (key, value) = entry?;
///     println!("{key:?} {value:?}");
/// }
/// let last: Vec<_> = index.iter()?.rev().take(2).collect::<Result<_>>()?;
/// assert_eq!(last[1].0, b"b");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "iterator")]
#[derive(Debug)]
pub struct Cursor {
    core: Arc<Core>,
    direction: Direction,
    /// The keys that are still to come, of either end.
    bounds: KeyRange,
    tree: TreeCursor,
    /// The value of the next entry of the tree, whose key is in the tree's cursor.
    tree_value: Vec<u8>,
    /// Whether the tree has a next entry.
    has_tree: bool,
    /// The unflushed and the pending updates, the newer first.
    buffers: [UpdateBuffer; 2],
    /// The next update of each buffer.
    next: [Option<Update>; 2],
    /// Reads from the other end, once that has been asked for.
    back: Option<Box<Cursor>>,
    is_done: bool,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Cursor {
    /// The entries of a range of the visible state, ascending.
    pub(crate) fn ascending(core: &Arc<Core>, bounds: KeyRange) -> Result<Self> {
        Self::new(core, bounds, Direction::Ascending)
    }

    /// The entries of a range of the visible state, descending.
    pub(crate) fn descending(core: &Arc<Core>, bounds: KeyRange) -> Result<Self> {
        Self::new(core, bounds, Direction::Descending)
    }

    /// The entries of a range of a snapshot, ascending.
    pub(crate) fn ascending_in(core: &Arc<Core>, state: &State, bounds: KeyRange) -> Result<Self> {
        Self::of_state(core, state.clone(), bounds, Direction::Ascending)
    }

    /// The entries of a range of a snapshot, descending.
    pub(crate) fn descending_in(core: &Arc<Core>, state: &State, bounds: KeyRange) -> Result<Self> {
        Self::of_state(core, state.clone(), bounds, Direction::Descending)
    }

    fn new(core: &Arc<Core>, bounds: KeyRange, direction: Direction) -> Result<Self> {
        let state = core.state()?.clone();
        Self::of_state(core, state, bounds, direction)
    }

    fn of_state(
        core: &Arc<Core>,
        state: State,
        bounds: KeyRange,
        direction: Direction,
    ) -> Result<Self> {
        Self::over(core, state.tree, [state.unflushed, state.pending], bounds, direction)
    }

    /// A cursor over a tree and the updates above it, the newer first.
    fn over(
        core: &Arc<Core>,
        tree: Arc<Tree>,
        buffers: [UpdateBuffer; 2],
        bounds: KeyRange,
        direction: Direction,
    ) -> Result<Self> {
        let tree = TreeCursor::new(core, tree, direction, &bounds)?;
        let mut cursor = Self {
            core: core.clone(),
            direction,
            is_done: bounds.1.as_ref().is_some_and(|high| *high <= bounds.0),
            bounds,
            tree,
            tree_value: Vec::new(),
            has_tree: false,
            buffers,
            next: [None, None],
            back: None,
            key: Vec::new(),
            value: Vec::new(),
        };

        cursor.advance_tree()?;
        cursor.advance_buffer(0);
        cursor.advance_buffer(1);
        Ok(cursor)
    }

    /// Moves to the next entry of the tree, unless it is out of bounds.
    fn advance_tree(&mut self) -> Result<()> {
        self.has_tree = self.tree.next(&self.core, &mut self.tree_value)? && {
            let key = &self.tree.key;
            // The cursor began at one bound, so only the other one can be passed.
            match self.direction {
                Direction::Ascending => self.bounds.1.as_ref().is_none_or(|high| key < high),
                Direction::Descending => *key >= self.bounds.0,
            }
        };
        Ok(())
    }

    /// Takes the next update of a buffer within the bounds.
    fn advance_buffer(&mut self, which: usize) {
        let (low, high) = &self.bounds;
        let mut range = self.buffers[which].range(low, high.as_deref());
        let next = match self.direction {
            Direction::Ascending => range.next(),
            Direction::Descending => range.next_back(),
        };
        self.next[which] = next.map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec)));
    }

    /// The key that comes first, of the next entry and the next updates.
    fn first_key(&self) -> Option<&[u8]> {
        let updates = self.next.iter().flatten().map(|(key, _)| key.as_slice());
        let keys = updates.chain(self.has_tree.then_some(self.tree.key.as_slice()));
        match self.direction {
            Direction::Ascending => keys.min(),
            Direction::Descending => keys.max(),
        }
    }

    /// Whether a key is within the bounds, which either end may have narrowed.
    fn is_left(&self, key: &[u8]) -> bool {
        let (low, high) = &self.bounds;
        key >= low.as_slice() && high.as_ref().is_none_or(|high| key < high.as_slice())
    }

    /// Returns the next entry, key and value, without an allocation; `None` at the end, and from
    /// then on.
    ///
    /// Cost: one read of 4 KiB for each leaf, up to 32 leaves ahead and side by side.
    ///
    /// # Errors
    /// [`Closed`](crate::Error::Closed) once the index or reader is closed or dropped, as its pages
    /// are not kept any longer; [`Disk`](crate::Error::Disk), [`Corrupt`](crate::Error::Corrupt):
    /// the cursor ends.
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let found = self.advance();
        self.is_done |= !matches!(found, Ok(true));
        Ok(found?.then_some((&self.key, &self.value)))
    }

    /// A cursor over the same state and bounds in the other direction.
    fn opposite(&self) -> Result<Self> {
        let direction = match self.direction {
            Direction::Ascending => Direction::Descending,
            Direction::Descending => Direction::Ascending,
        };
        let tree = Arc::clone(&self.tree.tree);
        Self::over(&self.core, tree, self.buffers.clone(), self.bounds.clone(), direction)
    }

    /// Reads the next entry of the other end.
    fn read_back(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let mut back = match self.back.take() {
            Some(back) => back,
            None => Box::new(self.opposite()?),
        };

        // Each end tells the other one how far it has come.
        back.bounds.clone_from(&self.bounds);
        let entry = back.next_ref()?.map(|(key, value)| (key.to_vec(), value.to_vec()));
        self.bounds.clone_from(&back.bounds);
        self.back = Some(back);
        Ok(entry)
    }

    /// Merges the buffers with the tree up to the next entry. Returns whether there is one.
    fn advance(&mut self) -> Result<bool> {
        while !self.is_done {
            self.core.check_open()?;

            // The key that comes first counts, and the bounds shrink past it.
            let mut key = std::mem::take(&mut self.key);
            let Some(first) = self.first_key().filter(|key| self.is_left(key)) else {
                return Ok(false);
            };
            key.clear();
            key.extend_from_slice(first);
            self.key = key;

            if self.direction == Direction::Ascending {
                self.bounds.0.clear();
                self.bounds.0.extend_from_slice(&self.key);
                self.bounds.0.push(0);
            } else {
                self.bounds.1 = Some(self.key.clone());
            }

            // The newest update of the key decides: unflushed before pending, both before the tree.
            let mut is_there = None;
            for which in 0..2 {
                if self.next[which].as_ref().is_some_and(|(key, _)| *key == self.key) {
                    let value = self.next[which].take().and_then(|(_, value)| value);
                    if is_there.is_none() {
                        is_there = Some(value.is_some());
                        self.value = value.unwrap_or_default();
                    }
                    self.advance_buffer(which);
                }
            }

            if self.has_tree && self.tree.key == self.key {
                if is_there.is_none() {
                    is_there = Some(true);
                    std::mem::swap(&mut self.value, &mut self.tree_value);
                }
                self.advance_tree()?;
            }

            if is_there == Some(true) {
                return Ok(true);
            }
        }

        Ok(false)
    }
}

/// Owned entries: as [`Cursor::next_ref`], with an allocation for each key and value.
impl Iterator for Cursor {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.next_ref().transpose()?;
        Some(entry.map(|(key, value)| (key.to_vec(), value.to_vec())))
    }
}

impl DoubleEndedIterator for Cursor {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let entry = self.read_back();
        self.is_done |= !matches!(entry, Ok(Some(_)));
        entry.transpose()
    }
}

impl Records for Cursor {
    fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        Cursor::next_ref(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_ranges_and_prefixes() {
        let of = |low: &[u8], high: Option<&[u8]>| (low.to_vec(), high.map(<[u8]>::to_vec));
        assert_eq!(bounds_of::<&str>(&(..)), of(b"", None));
        assert_eq!(bounds_of(&("a".."c")), of(b"a", Some(b"c")));
        assert_eq!(bounds_of(&("a"..="c")), of(b"a", Some(b"c\0")));
        let above: (Bound<&str>, Bound<&str>) = (Bound::Excluded("a"), Bound::Unbounded);
        assert_eq!(bounds_of::<&str>(&above), of(b"a\0", None));
        assert_eq!(bounds_of_prefix(b"ab"), of(b"ab", Some(b"ac")));
        assert_eq!(bounds_of_prefix(b"a\xFF\xFF"), of(b"a\xFF\xFF", Some(b"b")));
        assert_eq!(bounds_of_prefix(b"\xFF"), of(b"\xFF", None));
        assert_eq!(bounds_of_prefix(b""), of(b"", None));
    }
}
