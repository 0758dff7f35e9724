//! Edges: the stored form of the tree.
//!
//! A *node* is a plain node with a value or at least two children. Every other plain node has one
//! child and no value; a run of them is an *extension*, which is not stored. An [`Edge`] is an
//! extension and the node at its end. A branch has an edge for each child, and a version has one
//! for its whole tree, whose root may lie in an extension. The hash of an edge is the hash of its
//! uppermost plain node.
//!
//! Small values stand in the edge itself; every other node has a record under its hash. Bytes of an
//! edge, lengths as LEB128 numbers:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | [`LEAF_FLAG`] if the node is a small value, and the length of the extension |
//! | .. | the tokens of the extension, from above |
//! | 32 | hash of the edge |
//! | 1.., .. | of a small value: its length, and the value |
//! | 32 | of another node below an extension that is not empty: its hash |

use std::sync::Arc;

use crate::base::address::{ADDRESS_BYTES_MAX, Prefix};
use crate::base::node_hash::{NODE_HASH_BYTES, NodeHash};

/// Most bytes of a value that stands in its edge.
pub(crate) const INLINE_VALUE_BYTES_MAX: usize = 64;
/// Set in the first byte of an edge whose node is a small value.
pub(crate) const LEAF_FLAG: u8 = 0x40;

/// Node at the end of an edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// A node with this small value and no children.
    Leaf(Arc<[u8]>),
    /// A node with a record of this hash: a branch, or a larger value without children.
    Stored(NodeHash),
}

/// An extension and the node at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) extension: Prefix,
    /// Hash of the uppermost plain node: of the node itself, if the extension is empty.
    pub(crate) top: NodeHash,
    pub(crate) end: Node,
}

/// Node at the end of an edge, borrowed from the bytes of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeRef<'a> {
    Leaf(&'a [u8]),
    Stored(&'a [u8; NODE_HASH_BYTES]),
}

/// An edge borrowed from the bytes of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EdgeRef<'a> {
    pub(crate) extension: &'a [u8],
    pub(crate) top: &'a [u8; NODE_HASH_BYTES],
    pub(crate) end: NodeRef<'a>,
}

impl EdgeRef<'_> {
    pub(crate) fn top(&self) -> NodeHash {
        NodeHash(*self.top)
    }

    pub(crate) fn to_edge(self) -> Edge {
        let mut extension = Prefix::EMPTY;
        extension.extend(self.extension);
        let end = match self.end {
            NodeRef::Leaf(value) => Node::Leaf(value.into()),
            NodeRef::Stored(hash) => Node::Stored(NodeHash(*hash)),
        };
        Edge { extension, top: self.top(), end }
    }
}

/// Reader of the rest of a record.
#[derive(Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

/// A record that breaks a rule of its format: the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

pub(crate) type Read<T> = Result<T, Broken>;

impl<'a> Input<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Read<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Broken("it is cut short"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Broken("it is cut short"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn byte(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn number(&mut self) -> Read<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).wrapping_shl(shift);
            if byte < 0x80 {
                let is_shortest = (byte != 0 || shift == 0) && (shift < 63 || byte == 1);
                return if is_shortest {
                    Ok(number)
                } else {
                    Err(Broken("a number is not canonical"))
                };
            }
        }

        Err(Broken("a number is not canonical"))
    }

    pub(crate) fn hash(&mut self) -> Read<&'a [u8; NODE_HASH_BYTES]> {
        self.bytes(NODE_HASH_BYTES)?.try_into().map_err(|_| Broken("it is cut short"))
    }

    pub(crate) fn sized(&mut self) -> Read<&'a [u8]> {
        let bytes = self.number()?;
        self.bytes(usize::try_from(bytes).map_err(|_| Broken("it is cut short"))?)
    }

    /// Up to 35 bytes after their length.
    pub(crate) fn extension(&mut self) -> Read<Prefix> {
        let len = self.byte()?;
        let mut extension = Prefix::EMPTY;
        extension.extend(self.tokens(len)?);
        Ok(extension)
    }

    fn tokens(&mut self, len: u8) -> Read<&'a [u8]> {
        if usize::from(len) > ADDRESS_BYTES_MAX {
            return Err(Broken("an extension is longer than an address"));
        }
        self.bytes(usize::from(len))
    }

    pub(crate) fn end(&self) -> Read<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Broken("bytes are left over")) }
    }

    pub(crate) fn edge(&mut self) -> Read<EdgeRef<'a>> {
        let head = self.byte()?;

        let extension = self.tokens(head & !LEAF_FLAG)?;
        let top = self.hash()?;
        let end = if head & LEAF_FLAG != 0 {
            let value = self.sized()?;
            if value.len() > INLINE_VALUE_BYTES_MAX {
                return Err(Broken("a value in an edge is too long"));
            }
            NodeRef::Leaf(value)
        } else if extension.is_empty() {
            // Without an extension, the top is the node itself.
            NodeRef::Stored(top)
        } else {
            NodeRef::Stored(self.hash()?)
        };

        Ok(EdgeRef { extension, top, end })
    }
}

pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn put_extension(out: &mut Vec<u8>, extension: &Prefix) {
    out.push(extension.as_bytes().len() as u8);
    out.extend_from_slice(extension.as_bytes());
}

pub(crate) fn put_edge(out: &mut Vec<u8>, edge: &Edge) {
    let flag = if matches!(edge.end, Node::Leaf(_)) { LEAF_FLAG } else { 0 };
    out.push(edge.extension.as_bytes().len() as u8 | flag);
    out.extend_from_slice(edge.extension.as_bytes());
    out.extend_from_slice(&edge.top.0);

    match &edge.end {
        Node::Leaf(value) => {
            debug_assert!(value.len() <= INLINE_VALUE_BYTES_MAX, "a longer value has a record");
            put_number(out, value.len() as u64);
            out.extend_from_slice(value);
        }
        Node::Stored(hash) if !edge.extension.as_bytes().is_empty() => {
            out.extend_from_slice(&hash.0);
        }
        Node::Stored(hash) => {
            debug_assert_eq!(*hash, edge.top, "without an extension the top is the node");
        }
    }
}

/// Length of the common prefix.
pub(crate) fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}
