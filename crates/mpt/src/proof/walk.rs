//! The way of a key through the nodes of a proof.

use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::{EMPTY_STRING_CODE, Header, PayloadView};

use crate::base::path::Path;
use crate::base::proof_error::ProofError;
use crate::scheme::keccak_mpt::{EMPTY_ROOT, KeccakMpt};
use crate::scheme::scheme::{CHILDREN_MAX, Scheme};

/// A node, by its parts.
pub(crate) enum Node<'n> {
    Leaf { suffix: Path, value: &'n [u8] },
    Extension { digits: Path, child: Child<'n> },
    Branch { items: Vec<&'n [u8]> },
}

/// A child as its parent names it.
pub(crate) enum Child<'n> {
    None,
    Hash(B256),
    Embedded(&'n [u8]),
}

/// Returns the value of a key in the trie of `root`, or `None` if the nodes prove that it does
/// not have the key. Keys are those of the trie: a secure trie has hashed ones.
///
/// Cost: no I/O; hashes each node once.
///
/// # Errors
/// [`ProofError`] if the nodes prove neither.
pub fn verify_proof(
    root: B256,
    key: &[u8],
    nodes: &[Bytes],
) -> std::result::Result<Option<Vec<u8>>, ProofError> {
    verify(root, key, nodes, EmptyValues::Refused)
}

/// Verifies like [`verify_proof`], also for tries whose values may be empty.
pub(crate) fn verify(
    root: B256,
    key: &[u8],
    nodes: &[Bytes],
    empty_values: EmptyValues,
) -> std::result::Result<Option<Vec<u8>>, ProofError> {
    // An empty trie has no nodes, or its encoding as the only one.
    let is_empty = nodes.is_empty() || (nodes.len() == 1 && nodes[0][..] == [EMPTY_STRING_CODE]);
    if root == EMPTY_ROOT && is_empty {
        return Ok(None);
    }

    let mut used = 0;
    let value = walk(root, key, empty_values, &mut |hash| {
        let node = nodes.get(used).ok_or(ProofError::TooShort { nodes: nodes.len() })?;
        if keccak256(node) != hash {
            return Err(ProofError::WrongHash { index: used });
        }
        used += 1;
        Ok(node)
    });
    let value = match value {
        Err(ProofError::MalformedNode { .. }) => {
            return Err(ProofError::NotANode { index: used - 1 });
        }
        value => value?,
    };

    if used < nodes.len() {
        return Err(ProofError::TooLong { surplus: nodes.len() - used });
    }
    Ok(value)
}

/// Whether the leaves of a trie may have empty values. Those of Ethereum's tries have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmptyValues {
    Refused,
    Taken,
}

/// Follows a key through nodes that `node` finds by their hashes and has checked against them. The
/// trie of `root` has at least one node.
///
/// Returns the value of the key, or `None` if the trie does not have it.
///
/// # Errors
/// [`ProofError::MalformedNode`], and the errors of `node`.
pub(crate) fn walk<'n>(
    root: B256,
    key: &[u8],
    empty_values: EmptyValues,
    node: &mut dyn FnMut(B256) -> std::result::Result<&'n [u8], ProofError>,
) -> std::result::Result<Option<Vec<u8>>, ProofError> {
    let path = Path::of_key(key, KeccakMpt::DIGIT_BITS);
    let mut depth = 0;
    let mut child = Child::Hash(root);
    let mut last = root;
    loop {
        let bytes = match child {
            Child::None => return Ok(None),
            Child::Embedded(bytes) => bytes,
            Child::Hash(hash) => {
                last = hash;
                node(hash)?
            }
        };

        let malformed = ProofError::MalformedNode { hash: last };
        let Some(node) = Node::read(bytes) else { return Err(malformed) };
        let rest = &path[depth..];
        child = match node {
            Node::Leaf { value: [], .. } if empty_values == EmptyValues::Refused => {
                return Err(malformed);
            }
            Node::Leaf { suffix, value } => {
                return Ok((*suffix == *rest).then(|| value.to_vec()));
            }
            Node::Extension { digits, .. } if !rest.starts_with(&digits) => return Ok(None),
            Node::Extension { digits, child } => {
                depth += digits.len();
                child
            }
            Node::Branch { items } => {
                let Some(digit) = rest.first() else {
                    let value = string(items[CHILDREN_MAX]).ok_or(malformed)?;
                    return Ok((!value.is_empty()).then(|| value.to_vec()));
                };
                depth += 1;
                Child::read(items[usize::from(*digit)]).ok_or(malformed)?
            }
        };
    }
}

impl<'n> Node<'n> {
    /// Reads a node. The items of a branch are still to be read.
    pub(crate) fn read(mut bytes: &'n [u8]) -> Option<Self> {
        let PayloadView::List(items) = Header::decode_raw(&mut bytes).ok()? else { return None };
        if !bytes.is_empty() {
            return None;
        }
        let [prefix, last] = items[..] else {
            return (items.len() == CHILDREN_MAX + 1).then_some(Self::Branch { items });
        };

        let (is_leaf, digits) = read_hex_prefix(string(prefix)?)?;
        if is_leaf {
            return Some(Self::Leaf { suffix: digits, value: string(last)? });
        }
        let child = Child::read(last)?;
        let is_whole = !digits.is_empty() && !matches!(child, Child::None);
        is_whole.then_some(Self::Extension { digits, child })
    }
}

impl<'n> Child<'n> {
    /// Reads an item of a branch, or the second one of an extension.
    pub(crate) fn read(item: &'n [u8]) -> Option<Self> {
        if alloy_rlp::EMPTY_LIST_CODE <= *item.first()? {
            return (item.len() < KeccakMpt::EMBED_BELOW).then_some(Self::Embedded(item));
        }
        match string(item)? {
            [] => Some(Self::None),
            hash => B256::try_from(hash).ok().map(Self::Hash),
        }
    }
}

/// The bytes of an item that is a string.
pub(crate) fn string(mut item: &[u8]) -> Option<&[u8]> {
    let bytes = Header::decode_bytes(&mut item, false).ok()?;
    item.is_empty().then_some(bytes)
}

/// The flag and the digits of a hex-prefix.
fn read_hex_prefix(bytes: &[u8]) -> Option<(bool, Path)> {
    let digits = Path::of_key(bytes, 4);
    let (flags, rest) = digits.split_first()?;
    let rest = match flags & 1 {
        1 => rest,
        _ => rest.strip_prefix(&[0])?,
    };
    (*flags < 4).then(|| (flags & 2 == 2, Path::new(rest)))
}
