//! The bottom-up builder: sorted leaves and subtrees to nodes.
//!
//! The builder keeps the branches that are open on the path of the last item. An item that shares
//! fewer digits with the last one closes the branches below the shared digits, and each closed
//! branch is planned once. Plans are hashed many at a time, those of several tries together. So
//! memory is proportional to the depth and to [`HASHED_TOGETHER`], not to the count.

use std::ops::Range;

use alloy_primitives::B256;

use crate::base::error::{Error, Result};
use crate::base::path::{KEY_BYTES_MAX, Path, common_prefix};
use crate::base::workers::Workers;
use crate::scheme::scheme::{CHILDREN_MAX, Scheme};
use crate::trie::nodes::{Child, Children, Nodes, Subtree};
use crate::trie::record::Record;

/// Nodes that wait before they are hashed, so that levels fill the lanes of the processor.
const HASHED_TOGETHER: usize = 2048;

/// A branch on the path of the last item.
#[derive(Debug)]
struct OpenBranch {
    depth: usize,
    children: Box<[Option<Child>; CHILDREN_MAX]>,
    value: Option<Vec<u8>>,
}

/// Makes the subtree of sorted items.
#[derive(Debug, Default)]
pub(crate) struct Stack {
    /// Invariant: depths ascend, and each is below the length of the last item's path.
    open: Vec<OpenBranch>,
    last: Option<Subtree>,
}

impl Stack {
    /// Adds an item whose path is above that of the item before. Empty subtrees add nothing.
    pub(crate) fn push(&mut self, item: Subtree, nodes: &mut Nodes) {
        let Some(path) = path_of(&item) else { return };
        if let Some(last) = self.last.take() {
            let last_path = path_of(&last).expect("an empty item is never the last one");
            debug_assert!(last_path < path);
            let depth = common_prefix(last_path, path);

            let last = self.close_below(last, depth, nodes);
            if self.open.last().is_none_or(|branch| branch.depth < depth) {
                let children = Box::new([None; CHILDREN_MAX]);
                self.open.push(OpenBranch { depth, children, value: None });
            }
            let branch = self.open.last_mut().expect("a branch was opened at this depth");
            branch.add(last, nodes);
        }
        self.last = Some(item);
    }

    /// The subtree of all items.
    pub(crate) fn finish(&mut self, nodes: &mut Nodes) -> Subtree {
        let mut last = self.last.take().unwrap_or(Subtree::Empty);
        while let Some(mut branch) = self.open.pop() {
            let path = branch.path(&last);
            branch.add(last, nodes);
            last = nodes.close(path, Children::All(branch.children), branch.value);
        }
        last
    }

    /// Closes the branches deeper than `depth` with `last` as their last child.
    fn close_below(&mut self, mut last: Subtree, depth: usize, nodes: &mut Nodes) -> Subtree {
        while let Some(mut branch) = self.open.pop_if(|branch| depth < branch.depth) {
            let path = branch.path(&last);
            branch.add(last, nodes);
            last = nodes.close(path, Children::All(branch.children), branch.value);
        }
        last
    }

    /// Puts the nodes in the place of their plans, which are hashed.
    fn settle(&mut self, nodes: &Nodes) {
        let open = self.open.iter_mut().flat_map(|branch| branch.children.iter_mut().flatten());
        let last = match &mut self.last {
            Some(Subtree::Branch { node, .. }) => Some(node),
            _ => None,
        };
        for child in open.chain(last) {
            *child = nodes.resolve(*child);
        }
    }
}

impl OpenBranch {
    /// Its path, given a subtree in it.
    fn path(&self, inside: &Subtree) -> Path {
        let path = path_of(inside).expect("an open branch has items");
        Path::new(&path[..self.depth])
    }

    fn add(&mut self, subtree: Subtree, nodes: &mut Nodes) {
        let path = path_of(&subtree).expect("an open branch has items");
        let Some(digit) = path.get(self.depth).copied() else {
            let Subtree::Leaf { value, .. } = subtree else {
                unreachable!("a branch in an open branch is deeper")
            };
            self.value = Some(value);
            return;
        };
        self.children[usize::from(digit)] = nodes.attach(subtree, self.depth + 1);
    }
}

pub(crate) fn path_of(subtree: &Subtree) -> Option<&Path> {
    match subtree {
        Subtree::Empty => None,
        Subtree::Leaf { path, .. } | Subtree::Branch { path, .. } => Some(path),
    }
}

/// A trie that was built: its root, and the records that were not taken before.
pub(crate) type Built = (B256, Vec<(Path, Record)>);

/// A trie of which all entries have come, and whose last nodes are not hashed.
#[derive(Debug)]
struct Ended {
    top: Option<Child>,
    plans: Range<usize>,
}

/// Makes a whole trie from entries in ascending order of their keys, without I/O.
///
/// Cost: each node is encoded and hashed once, many at a time; memory for the nodes that
/// [`take_nodes`](Self::take_nodes) has not taken, and for one path.
///
/// Within the crate, one builder makes many tries, one after another, whose nodes fill the lanes of
/// the processor together: most storage tries have fewer nodes than there are lanes.
#[derive(Debug)]
pub struct TrieBuilder<S> {
    stack: Stack,
    nodes: Nodes,
    /// Tries before the one under way, in their order. Invariant: their plans come first.
    ended: Vec<Ended>,
    built: Vec<Built>,
    /// Records of the trie under way whose nodes are hashed.
    ready: Vec<(Path, Record)>,
    last_key: Option<Vec<u8>>,
    count: usize,
    /// Whether entries may have empty values.
    is_of_any_values: bool,
    scheme: std::marker::PhantomData<S>,
}

impl<S: Scheme> Default for TrieBuilder<S> {
    fn default() -> Self {
        Self {
            stack: Stack::default(),
            nodes: Nodes::default(),
            ended: Vec::new(),
            built: Vec::new(),
            ready: Vec::new(),
            last_key: None,
            count: 0,
            is_of_any_values: false,
            scheme: std::marker::PhantomData,
        }
    }
}

impl<S: Scheme> TrieBuilder<S> {
    /// A builder for keys of one length, whose values may be empty.
    pub(crate) fn of_any_values() -> Self {
        Self { is_of_any_values: true, ..Self::default() }
    }

    /// Adds the next entry.
    ///
    /// # Errors
    /// [`Error::KeyOrder`], [`Error::KeyTooLong`], [`Error::EmptyValue`]. The builder is as before.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let index = self.count;
        check_entry(index, key, Some(value).filter(|_| !self.is_of_any_values))?;
        if self.last_key.as_deref().is_some_and(|last| key <= last) {
            return Err(Error::KeyOrder { index });
        }

        let leaf = Subtree::Leaf { path: Path::of_key(key, S::DIGIT_BITS), value: value.to_vec() };
        self.stack.push(leaf, &mut self.nodes);
        if HASHED_TOGETHER <= self.nodes.count() {
            self.hash();
        }
        let last = self.last_key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        self.count += 1;
        Ok(())
    }

    /// The number of nodes that are finished and were not taken, leaves included.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.nodes.count() + self.ready.len()
    }

    /// The records of the nodes that are finished and were not taken before, each path once.
    /// Children come before their parents.
    ///
    /// Cost: hashes the nodes that wait, the faster the more there are: take them only if many are
    /// [`waiting`](Self::waiting).
    pub fn take_nodes(&mut self) -> Vec<(Path, Record)> {
        debug_assert!(self.ended.is_empty(), "tries that ended are taken before");
        self.hash();
        std::mem::take(&mut self.ready)
    }

    /// Ends the trie under way: the next entry begins another one.
    pub(crate) fn end_trie(&mut self) {
        let first = self.ended.last().map_or(0, |ended| ended.plans.end);
        let subtree = self.stack.finish(&mut self.nodes);
        let top = self.nodes.attach(subtree, 0);
        self.ended.push(Ended { top, plans: first..self.nodes.count() });
        self.last_key = None;
    }

    /// The number of tries that ended and were not taken.
    pub(crate) fn waiting_tries(&self) -> usize {
        self.built.len() + self.ended.len()
    }

    /// The tries that ended and were not taken before, in their order.
    ///
    /// Cost: as [`take_nodes`](Self::take_nodes).
    pub(crate) fn take_tries(&mut self) -> Vec<Built> {
        self.hash();
        std::mem::take(&mut self.built)
    }

    /// The root of all entries, and the records that were not taken before.
    #[must_use]
    pub fn finish(mut self) -> (B256, Vec<(Path, Record)>) {
        debug_assert_eq!(self.waiting_tries(), 0, "tries that ended are taken before");
        self.end_trie();
        self.take_tries().pop().expect("the trie that ended")
    }

    /// Hashes the nodes that wait.
    fn hash(&mut self) {
        self.nodes.hash::<S>(&Workers::caller());
        let mut first = 0;
        for Ended { top, plans } in self.ended.drain(..) {
            first = plans.end;
            let (root, _) = self.nodes.root::<S>(top);
            // Earlier records are those of the first trie: it was under way when they were hashed.
            let mut records = std::mem::take(&mut self.ready);
            records.extend(self.nodes.take_records(plans));
            self.built.push((root, records));
        }
        self.stack.settle(&self.nodes);
        self.ready.extend(self.nodes.take_records(first..self.nodes.count()));
        self.nodes.clear();
    }
}

/// Refuses an entry that no trie has. `value` is `None` where the entry is deleted.
pub(crate) fn check_entry(index: usize, key: &[u8], value: Option<&[u8]>) -> Result<()> {
    if KEY_BYTES_MAX < key.len() {
        return Err(Error::KeyTooLong { bytes: key.len(), max: KEY_BYTES_MAX });
    }
    if value.is_some_and(<[u8]>::is_empty) {
        return Err(Error::EmptyValue { index });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::keccak_mpt::KeccakMpt;

    /// Entries of a trie, in order: keys are hashes.
    fn entries(trie: u32, count: u32) -> Vec<(B256, [u8; 4])> {
        let entry = |number: u32| {
            let seed = [trie.to_le_bytes(), number.to_le_bytes()].concat();
            (alloy_primitives::keccak256(seed), number.to_le_bytes())
        };
        let mut entries: Vec<_> = (0..count).map(entry).collect();
        entries.sort_unstable();
        entries
    }

    #[test]
    fn tries_of_one_builder_are_those_of_a_builder_each() {
        let below = HASHED_TOGETHER as u32 - 1;
        let sizes = [0, 1, 2, 3 * below, 0, 1, 17, below, 1, 300, 2 * below, 0];
        let mut together = TrieBuilder::<KeccakMpt>::default();
        // The records of the trie under way that were taken before it ended.
        let mut early = Vec::new();
        let mut expected = Vec::new();
        for (trie, size) in (0..).zip(sizes) {
            let mut alone = TrieBuilder::<KeccakMpt>::default();
            for (key, value) in entries(trie, size) {
                together.push(key.as_slice(), &value).unwrap();
                alone.push(key.as_slice(), &value).unwrap();
            }
            if trie == 3 {
                assert_eq!(together.take_tries().len(), 3);
                early = together.take_nodes();
                assert!(!early.is_empty());
            }
            together.end_trie();
            expected.push(alone.finish());
        }
        assert_eq!(together.waiting_tries(), sizes.len() - 3);

        let mut built = together.take_tries();
        early.append(&mut built[0].1);
        built[0].1 = early;
        let sorted = |(root, mut nodes): Built| {
            nodes.sort_unstable_by(|left, right| left.0.cmp(&right.0));
            (root, nodes)
        };
        let expected = expected.into_iter().skip(3).map(sorted);
        assert!(built.into_iter().map(sorted).eq(expected));
        assert_eq!((together.waiting(), together.waiting_tries()), (0, 0));
    }
}
