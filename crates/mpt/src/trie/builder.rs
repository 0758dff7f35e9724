//! The bottom-up builder: sorted leaves and subtrees to nodes.
//!
//! The builder keeps the branches that are open on the path of the last item. An item that shares
//! fewer digits with the last one closes the branches below the shared digits, and each closed
//! branch is encoded and hashed once. So memory is proportional to the depth, not to the count.

use alloy_primitives::B256;

use crate::base::error::{Error, Result};
use crate::base::path::{KEY_BYTES_MAX, Path, common_prefix};
use crate::scheme::scheme::{CHILDREN_MAX, Reference, Scheme};
use crate::trie::record::{BranchRecord, LinkRecord, Record, RecordedChild};

/// A part of a trie, whatever its place: the place decides only how it is encoded.
#[derive(Debug, Clone)]
pub(crate) enum Subtree {
    Empty,
    /// One entry.
    Leaf {
        path: Path,
        value: Vec<u8>,
    },
    /// Two entries or more, which share the digits of `path` and no more. The reference is by hash
    /// exactly if a record of the branch is stored.
    Branch {
        path: Path,
        reference: Reference,
    },
}

/// A child of a branch that is being closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pub(crate) reference: Reference,
    pub(crate) recorded: RecordedChild,
}

/// The nodes that a builder or an update has made: records to write, and encodings if they are
/// wanted. Later ones of the same path replace earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    pub(crate) records: Vec<(Path, Option<Record>)>,
    /// The encodings of hashed nodes with the paths where they begin.
    pub(crate) encodings: Option<Vec<(Path, Vec<u8>)>>,
    scratch: Vec<u8>,
}

impl Nodes {
    /// Turns a subtree into the child at `region`, a prefix of its path: a leaf with the digits
    /// that are left, a branch, or an extension above one. Empty subtrees are no child.
    pub(crate) fn attach<S: Scheme>(&mut self, subtree: &Subtree, region: &[u8]) -> Option<Child> {
        self.scratch.clear();
        match subtree {
            Subtree::Empty => None,
            Subtree::Leaf { path, value } => {
                debug_assert!(path.starts_with(region));
                S::leaf(&path[region.len()..], value, &mut self.scratch);
                let reference = self.refer::<S>(region);
                let recorded = reference.as_hash().map_or(RecordedChild::Flat, RecordedChild::Leaf);
                Some(Child { reference, recorded })
            }
            Subtree::Branch { path, reference } if path.len() == region.len() => {
                let recorded =
                    reference.as_hash().map_or(RecordedChild::Flat, RecordedChild::Stored);
                Some(Child { reference: *reference, recorded })
            }
            Subtree::Branch { path, reference: branch } => {
                debug_assert!(path.starts_with(region));
                let digits = &path[region.len()..];
                S::extension(digits, branch, &mut self.scratch);
                let reference = self.refer::<S>(region);
                if let Some(encodings) = &mut self.encodings {
                    S::inner_nodes(digits, branch, &mut |above, encoding| {
                        let path = Path::new(&path[..region.len() + above]);
                        encodings.push((path, encoding.to_vec()));
                    });
                }

                let Some(hash) = branch.as_hash() else {
                    return Some(Child { reference, recorded: RecordedChild::Flat });
                };
                let link = LinkRecord { digits: Path::new(digits), hash };
                self.records.push((Path::new(region), Some(Record::Link(link))));
                let hash = reference.as_hash().expect("a node that holds a hash is hashed");
                Some(Child { reference, recorded: RecordedChild::Stored(hash) })
            }
        }
    }

    /// Encodes and hashes a branch of at least two children, one of which may be its value.
    pub(crate) fn close<S: Scheme>(
        &mut self,
        path: Path,
        children: &[Option<Child>; CHILDREN_MAX],
        value: Option<&[u8]>,
    ) -> Subtree {
        self.scratch.clear();
        let references = children.map(|child| child.map(|child| child.reference));
        S::branch(&references, value, &mut self.scratch);
        let reference = self.refer::<S>(&path);

        if reference.as_hash().is_some() {
            let recorded =
                children.map(|child| child.map_or(RecordedChild::None, |child| child.recorded));
            let record = BranchRecord::new(&recorded, value.is_some());
            self.records.push((path.clone(), Some(Record::Branch(record))));
        }
        Subtree::Branch { path, reference }
    }

    /// The root of a trie that is `subtree`.
    pub(crate) fn root<S: Scheme>(&mut self, subtree: &Subtree) -> B256 {
        let Some(child) = self.attach::<S>(subtree, &[]) else { return S::EMPTY_ROOT };
        if let Some(hash) = child.reference.as_hash() {
            return hash;
        }
        // The root has a hash even if it is so short that it would be embedded.
        let encoding = child.reference.as_bytes().to_vec();
        let hash = S::hash(&encoding);
        if let Some(encodings) = &mut self.encodings {
            encodings.push((Path::default(), encoding));
        }
        hash
    }

    /// The reference to the node that was just encoded, which begins at `path`.
    fn refer<S: Scheme>(&mut self, path: &[u8]) -> Reference {
        let reference = Reference::of::<S>(&self.scratch);
        if let (Some(encodings), Some(_)) = (&mut self.encodings, reference.as_hash()) {
            encodings.push((Path::new(path), self.scratch.clone()));
        }
        reference
    }
}

/// A branch on the path of the last item.
#[derive(Debug)]
struct OpenBranch {
    depth: usize,
    children: [Option<Child>; CHILDREN_MAX],
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
    pub(crate) fn push<S: Scheme>(&mut self, item: Subtree, nodes: &mut Nodes) {
        let Some(path) = path_of(&item) else { return };
        if let Some(last) = self.last.take() {
            let last_path = path_of(&last).expect("an empty item is never the last one");
            debug_assert!(last_path < path);
            let depth = common_prefix(last_path, path);

            let last = self.close_below::<S>(last, depth, nodes);
            if self.open.last().is_none_or(|branch| branch.depth < depth) {
                self.open.push(OpenBranch { depth, children: [None; CHILDREN_MAX], value: None });
            }
            let branch = self.open.last_mut().expect("a branch was opened at this depth");
            branch.add::<S>(last, nodes);
        }
        self.last = Some(item);
    }

    /// The subtree of all items.
    pub(crate) fn finish<S: Scheme>(&mut self, nodes: &mut Nodes) -> Subtree {
        let mut last = self.last.take().unwrap_or(Subtree::Empty);
        while let Some(mut branch) = self.open.pop() {
            let path = branch.path(&last);
            branch.add::<S>(last, nodes);
            last = nodes.close::<S>(path, &branch.children, branch.value.as_deref());
        }
        last
    }

    /// Closes the branches deeper than `depth` with `last` as their last child.
    fn close_below<S: Scheme>(
        &mut self,
        mut last: Subtree,
        depth: usize,
        nodes: &mut Nodes,
    ) -> Subtree {
        while let Some(mut branch) = self.open.pop_if(|branch| depth < branch.depth) {
            let path = branch.path(&last);
            branch.add::<S>(last, nodes);
            last = nodes.close::<S>(path, &branch.children, branch.value.as_deref());
        }
        last
    }
}

impl OpenBranch {
    /// Its path, given a subtree in it.
    fn path(&self, inside: &Subtree) -> Path {
        let path = path_of(inside).expect("an open branch has items");
        Path::new(&path[..self.depth])
    }

    fn add<S: Scheme>(&mut self, subtree: Subtree, nodes: &mut Nodes) {
        let path = path_of(&subtree).expect("an open branch has items");
        let Some(digit) = path.get(self.depth).copied() else {
            let Subtree::Leaf { value, .. } = subtree else {
                unreachable!("a branch in an open branch is deeper")
            };
            self.value = Some(value);
            return;
        };
        let child = nodes.attach::<S>(&subtree, &path[..=self.depth]);
        self.children[usize::from(digit)] = child;
    }
}

pub(crate) fn path_of(subtree: &Subtree) -> Option<&Path> {
    match subtree {
        Subtree::Empty => None,
        Subtree::Leaf { path, .. } | Subtree::Branch { path, .. } => Some(path),
    }
}

/// Makes a whole trie from entries in ascending order of their keys, without I/O.
///
/// Cost: each node is encoded and hashed once; memory for the nodes that
/// [`take_nodes`](Self::take_nodes) has not taken, and for one path.
#[derive(Debug)]
pub struct TrieBuilder<S> {
    stack: Stack,
    nodes: Nodes,
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
        self.stack.push::<S>(leaf, &mut self.nodes);
        let last = self.last_key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        self.count += 1;
        Ok(())
    }

    /// The records of the nodes that are finished and were not taken before, each path once.
    /// Children come before their parents.
    pub fn take_nodes(&mut self) -> Vec<(Path, Record)> {
        let records = std::mem::take(&mut self.nodes.records);
        records.into_iter().filter_map(|(path, record)| Some((path, record?))).collect()
    }

    /// The root of all entries, and the records that were not taken before.
    #[must_use]
    pub fn finish(mut self) -> (B256, Vec<(Path, Record)>) {
        let subtree = self.stack.finish::<S>(&mut self.nodes);
        let root = self.nodes.root::<S>(&subtree);
        (root, self.take_nodes())
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
