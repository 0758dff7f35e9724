//! Proofs of ranges: all entries of a trie between two keys, and no others.
//!
//! The verifier goes down from the root through *regions*, the keys that share a path. It opens a
//! node only if a bound of the range lies inside its region, and the node has the hash that its
//! parent states. Such a node says what its children are:
//!
//! * A child outside the range proves nothing and is not opened.
//! * A child inside the range is computed from the entries of the range alone, and must be what the
//!   node states. So an entry that is missing, surplus or changed has another hash.
//! * A child in which a bound lies is opened.
//!
//! Nothing is inserted or removed, so no state of the verifier depends on the order of entries.
//! Keys have 32 bytes: a leaf ends at digit 64, and a branch has no value.
//!
//! Rejected: inserting the entries between two paths of a partial trie from which everything inside
//! was cut. Such verifiers have accepted ranges with gaps, where a cut node took a neighbour with
//! it.

use std::collections::BTreeMap;

use alloy_primitives::{B256, Bytes, keccak256};

use crate::base::path::Path;
use crate::base::proof_error::ProofError;
use crate::base::workers::Workers;
use crate::proof::walk::{Child, Node, string};
use crate::scheme::keccak_mpt::{EMPTY_ROOT, KeccakMpt};
use crate::scheme::scheme::{CHILDREN_MAX, HASH_BYTES, Scheme};
use crate::trie::builder::Stack;
use crate::trie::nodes::{Nodes, Subtree};

/// Digits of a key.
pub(crate) const KEY_DIGITS: usize = 2 * HASH_BYTES;

/// Nodes by their hashes. Nothing is trusted: each node is hashed when it comes in.
#[derive(Debug, Clone, Default)]
pub struct NodeSet(BTreeMap<B256, Bytes>);

impl NodeSet {
    /// The nodes of a list, hashed once each.
    #[must_use]
    pub fn of(nodes: &[Bytes]) -> Self {
        Self(nodes.iter().map(|node| (keccak256(node), node.clone())).collect())
    }

    /// The node of a hash.
    pub(crate) fn get(&self, hash: B256) -> Result<&[u8], ProofError> {
        self.0.get(&hash).map(|node| &node[..]).ok_or(ProofError::MissingNode { hash })
    }

    /// Adds a node; returns whether it is new.
    pub(crate) fn insert(&mut self, node: Bytes) -> bool {
        self.0.insert(keccak256(&node), node).is_none()
    }

    /// The nodes, in the order of their hashes.
    pub(crate) fn into_list(self) -> Vec<Bytes> {
        self.0.into_values().collect()
    }
}

/// A claim about a trie of keys of 32 bytes: the entries from `start` to `end`, both included, are
/// these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrieRange<'c> {
    /// The first key that belongs to the range.
    pub start: B256,
    /// The last key that belongs to the range.
    pub end: B256,
    /// Keys and values of leaves, ascending.
    pub entries: &'c [(B256, Vec<u8>)],
}

impl TrieRange<'_> {
    /// Checks the claim against the root of a trie. On success the entries are exactly those of the
    /// range. Returns whether the trie has entries above the end.
    ///
    /// Nodes that are not needed are not looked at.
    ///
    /// Cost: no I/O; hashes the nodes that only the range has.
    ///
    /// # Errors
    /// [`ProofError`] unless the nodes prove the claim.
    pub fn verify(&self, root: B256, nodes: &NodeSet) -> Result<bool, ProofError> {
        check_order(self)?;
        let path = |key: &B256| Path::of_key(key.as_slice(), KeccakMpt::DIGIT_BITS);
        let leaves = self.entries.iter().map(|(key, value)| (path(key), value.as_slice()));
        let mut walk = Walk {
            start: path(&self.start),
            end: path(&self.end),
            leaves: leaves.collect(),
            nodes,
            has_more: false,
        };

        let all = Path::default();
        if walk.place(&all) == Place::Inside {
            // The root has a hash even if its node is so short that it would be embedded.
            let computed = walk.root();
            return if computed == root { Ok(false) } else { Err(DISAGREES) };
        }
        let child = if root == EMPTY_ROOT { Child::None } else { Child::Hash(root) };
        walk.region(&all, &child)?;
        Ok(walk.has_more)
    }
}

const DISAGREES: ProofError = ProofError::Disagrees { field: "entry of the range" };

/// Refuses entries that are not in order, outside the bounds, or empty.
fn check_order(claim: &TrieRange<'_>) -> Result<(), ProofError> {
    if claim.end < claim.start {
        return Err(ProofError::InvalidRange { index: 0, what: "is beyond the end of the range" });
    }
    let mut last: Option<&B256> = None;
    for (index, (key, value)) in claim.entries.iter().enumerate() {
        let refuse = |what| Err(ProofError::InvalidRange { index, what });
        if last.is_some_and(|last| key <= last) {
            return refuse("is not above the entry before it");
        }
        if *key < claim.start || claim.end < *key {
            return refuse("is outside its bounds");
        }
        if value.is_empty() {
            return refuse("has no value");
        }
        last = Some(key);
    }
    Ok(())
}

/// A region, as it lies to the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Before,
    /// A bound lies in the region, and keys of the region are outside the range.
    Edge,
    Inside,
    After,
}

struct Walk<'c> {
    start: Path,
    end: Path,
    /// In order.
    leaves: Vec<(Path, &'c [u8])>,
    nodes: &'c NodeSet,
    has_more: bool,
}

impl<'c> Walk<'c> {
    /// How the region of a path lies to the range.
    fn place(&self, path: &Path) -> Place {
        debug_assert!(path.len() <= KEY_DIGITS);
        let depth = path.len();
        let (from, from_rest) = self.start.split_at(depth);
        let (to, to_rest) = self.end.split_at(depth);
        if path[..] < *from {
            return Place::Before;
        }
        if *to < path[..] {
            return Place::After;
        }
        let is_cut_below = path[..] == *from && from_rest.iter().any(|digit| *digit != 0);
        let is_cut_above = path[..] == *to && to_rest.iter().any(|digit| *digit != 15);
        if is_cut_below || is_cut_above { Place::Edge } else { Place::Inside }
    }

    /// The claimed entries of a region.
    fn leaves_of(&self, path: &Path) -> &[(Path, &'c [u8])] {
        let start = self.leaves.partition_point(|(leaf, _)| leaf < path);
        let rest = &self.leaves[start..];
        &rest[..rest.partition_point(|(leaf, _)| leaf.starts_with(path))]
    }

    /// Checks a region whose parent states this child.
    fn region(&mut self, path: &Path, child: &Child<'_>) -> Result<(), ProofError> {
        match self.place(path) {
            Place::Before => Ok(()),
            Place::After => {
                self.has_more |= !matches!(*child, Child::None);
                Ok(())
            }
            Place::Inside => self.compare(path, child),
            Place::Edge => match *child {
                Child::None if self.leaves_of(path).is_empty() => Ok(()),
                Child::None => Err(DISAGREES),
                Child::Hash(hash) => {
                    let nodes = self.nodes;
                    self.open(path, nodes.get(hash)?, hash)
                }
                Child::Embedded(bytes) => self.open(path, bytes, keccak256(bytes)),
            },
        }
    }

    /// Checks the region of a node that was found by its hash, or in its parent.
    fn open(&mut self, path: &Path, bytes: &[u8], hash: B256) -> Result<(), ProofError> {
        let malformed = || ProofError::MalformedNode { hash };
        match Node::read(bytes).ok_or_else(malformed)? {
            Node::Leaf { suffix, value } => {
                let key = joined(path, &suffix);
                if key.len() != KEY_DIGITS || value.is_empty() {
                    return Err(malformed());
                }
                self.has_more |= self.end < key;
                let is_in_range = self.start <= key && key <= self.end;
                match (self.leaves_of(path), is_in_range) {
                    ([], false) => Ok(()),
                    ([(claimed, stated)], true) if *claimed == key && *stated == value => Ok(()),
                    _ => Err(DISAGREES),
                }
            }
            Node::Extension { digits, child } => {
                let below = joined(path, &digits);
                if KEY_DIGITS <= below.len() {
                    return Err(malformed());
                }
                // Beside the digits of an extension there is nothing.
                if self.leaves_of(path).len() != self.leaves_of(&below).len() {
                    return Err(DISAGREES);
                }
                self.region(&below, &child)
            }
            Node::Branch { items } => {
                let has_value = string(items[CHILDREN_MAX]).is_none_or(|value| !value.is_empty());
                if KEY_DIGITS <= path.len() || has_value {
                    return Err(malformed());
                }
                for digit in 0..CHILDREN_MAX as u8 {
                    let child = Child::read(items[usize::from(digit)]).ok_or_else(malformed)?;
                    self.region(&path.child(digit), &child)?;
                }
                Ok(())
            }
        }
    }

    /// Compares what a node states of a region with the entries that are claimed for it.
    fn compare(&self, path: &Path, stated: &Child<'_>) -> Result<(), ProofError> {
        let mut nodes = Nodes::default();
        let subtree = self.subtree(path, &mut nodes);
        let own = nodes.attach(subtree, path.len());
        nodes.hash::<KeccakMpt>(&Workers::caller());
        let own = own.map(|child| nodes.resolve(child).reference());
        let is_same = match (own, stated) {
            (None, Child::None) => true,
            (Some(own), Child::Hash(hash)) => own.as_hash() == Some(*hash),
            (Some(own), Child::Embedded(bytes)) => {
                own.as_hash().is_none() && own.as_bytes() == *bytes
            }
            _ => false,
        };
        if is_same { Ok(()) } else { Err(DISAGREES) }
    }

    /// The root of all claimed entries.
    fn root(&self) -> B256 {
        let mut nodes = Nodes::default();
        let subtree = self.subtree(&Path::default(), &mut nodes);
        let top = nodes.attach(subtree, 0);
        nodes.hash::<KeccakMpt>(&Workers::caller());
        nodes.root::<KeccakMpt>(top).0
    }

    /// The trie of the claimed entries of a region.
    fn subtree(&self, path: &Path, nodes: &mut Nodes) -> Subtree {
        let mut stack = Stack::default();
        for (path, value) in self.leaves_of(path) {
            stack.push(Subtree::Leaf { path: path.clone(), value: value.to_vec() }, nodes);
        }
        stack.finish(nodes)
    }
}

fn joined(path: &[u8], digits: &[u8]) -> Path {
    Path::new(&[path, digits].concat())
}
