//! A trie of which some nodes are known by their hashes only, and its root after changes.
//!
//! Nodes are read from a set when a change reaches them. Insertions go before deletions: then a
//! branch is left with one child, which has to be read, exactly where it is so at the end.
//! Keys have 32 bytes, which bounds every recursion.

use alloy_primitives::B256;

use crate::base::path::{Path, common_prefix};
use crate::proof::range::{KEY_DIGITS, NodeSet};
use crate::proof::walk::{Child, Node, string};
use crate::scheme::keccak_mpt::{EMPTY_ROOT, KeccakMpt};
use crate::scheme::scheme::{CHILDREN_MAX, Reference, Scheme};

/// A change of a partial trie reached a node that is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartialTrieError {
    /// The set does not have the node.
    #[error("node {hash} at path {path} is missing")]
    Missing {
        /// Where the node begins.
        path: Path,
        /// Its hash.
        hash: B256,
    },
    /// The bytes of the node are not those of a node there.
    #[error("node {hash} is no node of the trie")]
    Malformed {
        /// Its hash.
        hash: B256,
    },
}

/// A part of a trie.
#[derive(Debug, Default)]
enum Part {
    #[default]
    Empty,
    /// Not read yet.
    Hashed(B256),
    Leaf {
        suffix: Vec<u8>,
        value: Vec<u8>,
    },
    Extension {
        digits: Vec<u8>,
        child: Box<Self>,
    },
    Branch(Box<[Self; CHILDREN_MAX]>),
}

/// A trie of keys of 32 bytes, of which only the nodes of a set are known.
///
/// Deletions come behind insertions: then a change that the set suffices for never fails.
#[derive(Debug)]
pub struct PartialTrie<'n> {
    nodes: &'n NodeSet,
    root: Part,
}

impl<'n> PartialTrie<'n> {
    /// The trie of a root, whose nodes are in the set as far as they are known.
    #[must_use]
    pub fn new(nodes: &'n NodeSet, root: B256) -> Self {
        let root = if root == EMPTY_ROOT { Part::Empty } else { Part::Hashed(root) };
        Self { nodes, root }
    }

    /// Sets the value of a key, which is not empty.
    ///
    /// # Errors
    /// [`PartialTrieError`]; later roots have no meaning then.
    pub fn insert(&mut self, key: &B256, value: Vec<u8>) -> Result<(), PartialTrieError> {
        debug_assert!(!value.is_empty());
        let path = Path::of_key(key.as_slice(), KeccakMpt::DIGIT_BITS);
        insert(self.nodes, &mut self.root, &path, 0, value)
    }

    /// Removes a key, which need not be there.
    ///
    /// # Errors
    /// [`PartialTrieError`]; later roots have no meaning then.
    pub fn remove(&mut self, key: &B256) -> Result<(), PartialTrieError> {
        let path = Path::of_key(key.as_slice(), KeccakMpt::DIGIT_BITS);
        remove(self.nodes, &mut self.root, &path, 0).map(drop)
    }

    /// The root. Cost: encodes and hashes the nodes that changes have reached.
    #[must_use]
    pub fn root(&self) -> B256 {
        match &self.root {
            Part::Empty => EMPTY_ROOT,
            Part::Hashed(hash) => *hash,
            // The root has a hash even if it is so short that it would be embedded.
            part => KeccakMpt::hash(&encode(part)),
        }
    }
}

impl Part {
    /// Reads the node that begins at `depth`, and the nodes embedded in it.
    fn read(bytes: &[u8], depth: usize) -> Option<Self> {
        match Node::read(bytes)? {
            Node::Leaf { suffix, value } => {
                let is_whole = depth + suffix.len() == KEY_DIGITS && !value.is_empty();
                let suffix = suffix.to_vec();
                is_whole.then(|| Self::Leaf { suffix, value: value.to_vec() })
            }
            Node::Extension { digits, child } => {
                let below = depth + digits.len();
                let child = Self::of_child(&child, below)?;
                let may_be_branch = matches!(child, Self::Branch(_) | Self::Hashed(_));
                let digits = digits.to_vec();
                let is_inside = may_be_branch && below < KEY_DIGITS;
                is_inside.then(|| Self::Extension { digits, child: Box::new(child) })
            }
            Node::Branch { items } => {
                if KEY_DIGITS <= depth || !string(items[CHILDREN_MAX])?.is_empty() {
                    return None;
                }
                let mut children: Box<[Self; CHILDREN_MAX]> = Box::default();
                for (child, item) in children.iter_mut().zip(items) {
                    *child = Self::of_child(&Child::read(item)?, depth + 1)?;
                }
                let count = children.iter().filter(|child| !matches!(child, Self::Empty)).count();
                (2 <= count).then_some(Self::Branch(children))
            }
        }
    }

    fn of_child(child: &Child<'_>, depth: usize) -> Option<Self> {
        match child {
            Child::None => Some(Self::Empty),
            Child::Hash(hash) => Some(Self::Hashed(*hash)),
            Child::Embedded(bytes) => Self::read(bytes, depth),
        }
    }

    /// Reads the node here, if only its hash is known. `path` is where it begins.
    fn resolve(&mut self, nodes: &NodeSet, path: &[u8]) -> Result<(), PartialTrieError> {
        let Self::Hashed(hash) = *self else { return Ok(()) };
        let missing = |_| PartialTrieError::Missing { path: Path::new(path), hash };
        let bytes = nodes.get(hash).map_err(missing)?;
        *self = Self::read(bytes, path.len()).ok_or(PartialTrieError::Malformed { hash })?;
        Ok(())
    }

    /// Reads the branch below an extension, where there is no other node.
    fn resolve_branch(&mut self, nodes: &NodeSet, path: &[u8]) -> Result<(), PartialTrieError> {
        let Self::Hashed(hash) = *self else { return Ok(()) };
        self.resolve(nodes, path)?;
        let is_branch = matches!(self, Self::Branch(_));
        if is_branch { Ok(()) } else { Err(PartialTrieError::Malformed { hash }) }
    }
}

/// Digits above a part.
fn extended(digits: &[u8], part: Part) -> Part {
    match part {
        part if digits.is_empty() => part,
        Part::Empty => Part::Empty,
        Part::Leaf { suffix, value } => Part::Leaf { suffix: [digits, &suffix].concat(), value },
        Part::Extension { digits: more, child } => {
            Part::Extension { digits: [digits, &more].concat(), child }
        }
        part => Part::Extension { digits: digits.to_vec(), child: Box::new(part) },
    }
}

/// A branch of a part and a new leaf, which part after `shared` digits, at the place of both.
fn parted(shared: &[u8], old: (u8, Part), new: (u8, Part)) -> Part {
    debug_assert!(old.0 != new.0);
    let mut children: Box<[Part; CHILDREN_MAX]> = Box::default();
    children[usize::from(old.0)] = old.1;
    children[usize::from(new.0)] = new.1;
    extended(shared, Part::Branch(children))
}

fn insert(
    nodes: &NodeSet,
    part: &mut Part,
    path: &[u8],
    depth: usize,
    value: Vec<u8>,
) -> Result<(), PartialTrieError> {
    part.resolve(nodes, &path[..depth])?;
    let rest = &path[depth..];
    let leaf = |from: usize, value| Part::Leaf { suffix: rest[from..].to_vec(), value };
    match std::mem::take(part) {
        Part::Empty => *part = leaf(0, value),
        Part::Leaf { suffix, .. } if suffix == rest => *part = leaf(0, value),
        Part::Leaf { suffix, value: old } => {
            // Both have as many digits left, so both go on behind the shared ones.
            let shared = common_prefix(&suffix, rest);
            let old = Part::Leaf { suffix: suffix[shared + 1..].to_vec(), value: old };
            let old = (suffix[shared], old);
            *part = parted(&rest[..shared], old, (rest[shared], leaf(shared + 1, value)));
        }
        Part::Extension { digits, mut child } if rest.starts_with(&digits) => {
            let below = depth + digits.len();
            let done = child
                .resolve_branch(nodes, &path[..below])
                .and_then(|()| insert(nodes, &mut child, path, below, value));
            *part = Part::Extension { digits, child };
            return done;
        }
        Part::Extension { digits, child } => {
            let shared = common_prefix(&digits, rest);
            let old = (digits[shared], extended(&digits[shared + 1..], *child));
            *part = parted(&rest[..shared], old, (rest[shared], leaf(shared + 1, value)));
        }
        Part::Branch(mut children) => {
            let child = &mut children[usize::from(rest[0])];
            let done = insert(nodes, child, path, depth + 1, value);
            *part = Part::Branch(children);
            return done;
        }
        Part::Hashed(_) => unreachable!("the part was read"),
    }
    Ok(())
}

/// Returns whether the key was there.
fn remove(
    nodes: &NodeSet,
    part: &mut Part,
    path: &[u8],
    depth: usize,
) -> Result<bool, PartialTrieError> {
    part.resolve(nodes, &path[..depth])?;
    let rest = &path[depth..];
    match part {
        Part::Empty => Ok(false),
        Part::Leaf { suffix, .. } => {
            let is_here = suffix[..] == *rest;
            if is_here {
                *part = Part::Empty;
            }
            Ok(is_here)
        }
        Part::Extension { digits, child } => {
            if !rest.starts_with(digits) {
                return Ok(false);
            }
            let below = depth + digits.len();
            child.resolve_branch(nodes, &path[..below])?;
            if !remove(nodes, child, path, below)? {
                return Ok(false);
            }
            // The branch may be a leaf or an extension now.
            let digits = std::mem::take(digits);
            *part = extended(&digits, std::mem::take(&mut **child));
            Ok(true)
        }
        Part::Branch(children) => {
            let digit = rest[0];
            if !remove(nodes, &mut children[usize::from(digit)], path, depth + 1)? {
                return Ok(false);
            }
            let mut left = (0..CHILDREN_MAX).filter(|at| !matches!(children[*at], Part::Empty));
            match (left.next(), left.next()) {
                (None, _) => *part = Part::Empty,
                (Some(only), None) => {
                    let place = [&path[..depth], &[only as u8]].concat();
                    children[only].resolve(nodes, &place)?;
                    let child = std::mem::take(&mut children[only]);
                    *part = extended(&[only as u8], child);
                }
                _ => {}
            }
            Ok(true)
        }
        Part::Hashed(_) => unreachable!("the part was read"),
    }
}

fn encode(part: &Part) -> Vec<u8> {
    let mut out = Vec::new();
    match part {
        Part::Leaf { suffix, value } => KeccakMpt::leaf(suffix, value, &mut out),
        Part::Extension { digits, child } => {
            let child = reference(child).expect("an extension has a child");
            KeccakMpt::extension(digits, &child, &mut out);
        }
        Part::Branch(children) => {
            let children = std::array::from_fn(|digit| reference(&children[digit]));
            KeccakMpt::branch(&children, None, &mut out);
        }
        Part::Empty | Part::Hashed(_) => unreachable!("only nodes are encoded"),
    }
    out
}

fn reference(part: &Part) -> Option<Reference> {
    match part {
        Part::Empty => None,
        Part::Hashed(hash) => Some(Reference::hash(*hash)),
        part => Some(Reference::of::<KeccakMpt>(&encode(part))),
    }
}
