//! The way of a key through the nodes of a proof.

use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::{EMPTY_STRING_CODE, Header, PayloadView};

use crate::base::path::Path;
use crate::scheme::keccak_mpt::{EMPTY_ROOT, KeccakMpt};
use crate::scheme::scheme::{CHILDREN_MAX, Scheme};

/// A proof that proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// A node does not have the hash that the root, or the node above it, names.
    #[error("node {index} of the proof does not have the hash that was expected")]
    WrongHash {
        /// Index of the node.
        index: usize,
    },
    /// The bytes of a node are not those of one.
    #[error("node {index} of the proof is no node")]
    NotANode {
        /// Index of the node, or of the node that it is embedded in.
        index: usize,
    },
    /// The proof ends before its key has a value or is absent.
    #[error("the proof ends after {nodes} nodes, and the path goes on")]
    TooShort {
        /// Number of nodes.
        nodes: usize,
    },
    /// The proof has nodes behind the end of its path.
    #[error("the proof has {surplus} nodes too many")]
    TooLong {
        /// Number of nodes that are not needed.
        surplus: usize,
    },
    /// The proof is sound and proves something other than it states.
    #[error("the proof states another {field} than it proves")]
    Disagrees {
        /// The field of the account, or of a slot.
        field: &'static str,
    },
    /// A text that is no proof.
    #[error("no proof: {what}")]
    InvalidJson {
        /// The field that is missing or wrong.
        what: String,
    },
}

/// A node, by its parts.
enum Node<'n> {
    Leaf { suffix: Path, value: &'n [u8] },
    Extension { digits: Path, child: Child<'n> },
    Branch { items: Vec<&'n [u8]> },
}

/// A child as its parent names it.
enum Child<'n> {
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
    // An empty trie has no nodes, or its encoding as the only one.
    let is_empty = nodes.is_empty() || (nodes.len() == 1 && nodes[0][..] == [EMPTY_STRING_CODE]);
    if root == EMPTY_ROOT && is_empty {
        return Ok(None);
    }

    let path = Path::of_key(key, KeccakMpt::DIGIT_BITS);
    let mut depth = 0;
    let mut child = Child::Hash(root);
    let mut used = 0;
    let value = loop {
        let bytes = match child {
            Child::None => break None,
            Child::Embedded(bytes) => bytes,
            Child::Hash(hash) => {
                let node = nodes.get(used).ok_or(ProofError::TooShort { nodes: nodes.len() })?;
                if keccak256(node) != hash {
                    return Err(ProofError::WrongHash { index: used });
                }
                used += 1;
                node
            }
        };

        let node = Node::read(bytes).ok_or(ProofError::NotANode { index: used - 1 })?;
        let rest = &path[depth..];
        child = match node {
            Node::Leaf { suffix, value } => break (*suffix == *rest).then(|| value.to_vec()),
            Node::Extension { digits, .. } if !rest.starts_with(&digits) => break None,
            Node::Extension { digits, child } => {
                depth += digits.len();
                child
            }
            Node::Branch { items } => {
                let item = match rest.first() {
                    Some(digit) => items[usize::from(*digit)],
                    None => items[CHILDREN_MAX],
                };
                let not_a_node = ProofError::NotANode { index: used - 1 };
                if rest.is_empty() {
                    let value = string(item).ok_or(not_a_node)?;
                    break (!value.is_empty()).then(|| value.to_vec());
                }
                depth += 1;
                Child::read(item).ok_or(not_a_node)?
            }
        };
    };

    if used < nodes.len() {
        return Err(ProofError::TooLong { surplus: nodes.len() - used });
    }
    Ok(value)
}

impl<'n> Node<'n> {
    fn read(mut bytes: &'n [u8]) -> Option<Self> {
        let PayloadView::List(items) = Header::decode_raw(&mut bytes).ok()? else { return None };
        if !bytes.is_empty() {
            return None;
        }
        let [prefix, last] = items[..] else {
            return (items.len() == CHILDREN_MAX + 1).then_some(Self::Branch { items });
        };

        let (is_leaf, digits) = read_hex_prefix(string(prefix)?)?;
        if is_leaf {
            let value = string(last)?;
            return (!value.is_empty()).then_some(Self::Leaf { suffix: digits, value });
        }
        let child = Child::read(last)?;
        let is_whole = !digits.is_empty() && !matches!(child, Child::None);
        is_whole.then_some(Self::Extension { digits, child })
    }
}

impl<'n> Child<'n> {
    fn read(item: &'n [u8]) -> Option<Self> {
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
fn string(mut item: &[u8]) -> Option<&[u8]> {
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
