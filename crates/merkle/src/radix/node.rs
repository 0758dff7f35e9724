//! The tree as it is stored: stops, joined by edges.
//!
//! A *stop* is a node that has a value or at least two children. All other nodes have one child and no value; a run of them
//! is a *chain*, and is not stored. An [`Edge`] is a chain and the stop that it ends at; a branch has an edge for each of
//! its children, a version has one for its whole tree, whose root may lie in a chain like any other node. The hash of an edge
//! is that of its uppermost node.
//!
//! Small values stand in the edge itself. All else is a row of the store, by its hash; here is what the content of a branch
//! looks like, lengths as LEB128 numbers:
//!
//! | bytes | field |
//! |---|---|
//! | 1.. | length of the value + 1, or 0 for none |
//! | .. | the value |
//! | 1.. | number of children |
//! | .. | the children, ascending by token: token (1), edge |
//!
//! and an edge:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | [`LEAF_FLAG`] if the stop is a small value, and the length of the chain |
//! | .. | the tokens of the chain, from above |
//! | 32 | hash of the edge |
//! | 1.., .. | of a small value: its length, and the value |
//! | 32 | of another stop below a chain that is not empty: its hash |

use std::ops::Range;
use std::sync::Arc;

use crate::radix::address::{ADDRESS_BYTES_MAX, Prefix};
use crate::radix::node_hash::{NODE_HASH_BYTES, NodeHash};

/// Bytes of a value that stands in its edge, at most.
pub(crate) const INLINE_VALUE_BYTES_MAX: usize = 64;
/// Set in the first byte of an edge whose stop is a small value.
pub(crate) const LEAF_FLAG: u8 = 0x40;

/// The end of an edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A node with this small value and no children.
    Leaf(Arc<[u8]>),
    /// A row of this hash: a branch, or a node with a larger value and no children.
    Row(NodeHash),
}

/// A chain and the stop that it ends at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) chain: Prefix,
    /// The hash of the uppermost node: of the stop, if the chain is empty.
    pub(crate) top: NodeHash,
    pub(crate) stop: Stop,
}

/// The end of an edge, in the bytes of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopRef<'a> {
    Leaf(&'a [u8]),
    Row(&'a [u8; NODE_HASH_BYTES]),
}

/// An edge in the bytes of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EdgeRef<'a> {
    pub(crate) chain: &'a [u8],
    pub(crate) top: &'a [u8; NODE_HASH_BYTES],
    pub(crate) stop: StopRef<'a>,
}

impl EdgeRef<'_> {
    pub(crate) fn top(&self) -> NodeHash {
        NodeHash(*self.top)
    }

    pub(crate) fn to_edge(self) -> Edge {
        let mut chain = Prefix::EMPTY;
        chain.extend(self.chain);
        let stop = match self.stop {
            StopRef::Leaf(value) => Stop::Leaf(value.into()),
            StopRef::Row(hash) => Stop::Row(NodeHash(*hash)),
        };
        Edge { chain, top: self.top(), stop }
    }
}

/// A node with at least two children, or with a value and at least one; kept as the bytes that are stored.
///
/// Invariant: the bytes follow the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Branch {
    bytes: Box<[u8]>,
    /// Where the value is.
    value: Option<Range<usize>>,
    /// Where each child begins; ascending, as their tokens are.
    starts: Box<[u32]>,
    /// Tokens of the longest chain of a child.
    chain_max: usize,
}

impl Branch {
    /// Reads the content of a branch, which is all that is left of `input`.
    fn read(input: &mut Input<'_>) -> Read<Self> {
        let bytes = input.0;
        let at = |input: &Input<'_>| bytes.len() - input.0.len();
        let value = match input.number()? {
            0 => None,
            more => {
                let start = at(input);
                input.bytes(usize::try_from(more - 1).map_err(|_| Broken("it is cut short"))?)?;
                Some(start..at(input))
            }
        };
        let count = input.number()?;
        if count == 0 || count > 256 || count + u64::from(value.is_some()) < 2 {
            return Err(Broken("number of children"));
        }
        let mut starts = Vec::with_capacity(count as usize);
        let mut last = None;
        let mut chain_max = 0;
        for _ in 0..count {
            let start = u32::try_from(at(input)).map_err(|_| Broken("it is too long"))?;
            starts.push(start);
            let token = input.byte()?;
            if last.is_some_and(|last| last >= token) {
                return Err(Broken("children do not ascend"));
            }
            last = Some(token);
            chain_max = input.edge()?.chain.len().max(chain_max);
        }
        input.end()?;
        Ok(Self { bytes: bytes.into(), value, starts: starts.into(), chain_max })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.value.clone().map(|range| &self.bytes[range])
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// How many tokens below it the deepest stop of a child lies.
    pub(crate) fn depth(&self) -> usize {
        1 + self.chain_max
    }

    /// The token of the child at a place among them.
    pub(crate) fn token_at(&self, at: usize) -> u8 {
        self.bytes[self.starts[at] as usize]
    }

    /// The bytes of a child: token and edge.
    pub(crate) fn bytes_at(&self, at: usize) -> &[u8] {
        let end = self.starts.get(at + 1).map_or(self.bytes.len(), |end| *end as usize);
        &self.bytes[self.starts[at] as usize..end]
    }

    pub(crate) fn edge_at(&self, at: usize) -> EdgeRef<'_> {
        let mut input = Input(&self.bytes_at(at)[1..]);
        input.edge().unwrap_or(EdgeRef {
            // Never: the bytes were checked when they were read.
            chain: &[],
            top: &NodeHash::EMPTY.0,
            stop: StopRef::Row(&NodeHash::EMPTY.0),
        })
    }

    /// The place of a token's child.
    pub(crate) fn find(&self, token: u8) -> Option<usize> {
        if self.len() == 256 {
            return Some(usize::from(token));
        }
        self.starts.binary_search_by_key(&token, |start| self.bytes[*start as usize]).ok()
    }

    pub(crate) fn child(&self, token: u8) -> Option<EdgeRef<'_>> {
        self.find(token).map(|at| self.edge_at(at))
    }

    pub(crate) fn children(&self) -> impl ExactSizeIterator<Item = (u8, EdgeRef<'_>)> {
        (0..self.len()).map(|at| (self.token_at(at), self.edge_at(at)))
    }

    /// Tokens and hashes of the children.
    pub(crate) fn hashes(&self) -> impl ExactSizeIterator<Item = (u8, &[u8; NODE_HASH_BYTES])> {
        self.children().map(|(token, edge)| (token, edge.top))
    }

    /// Bytes of memory.
    pub(crate) fn weight(&self) -> usize {
        size_of::<Self>() + self.bytes.len() + size_of_val(&*self.starts)
    }
}

/// Makes the bytes of a branch, child by child.
#[derive(Debug)]
pub(crate) struct BranchWriter {
    bytes: Vec<u8>,
    value: Option<Range<usize>>,
    starts: Vec<u32>,
    chain_max: usize,
}

impl BranchWriter {
    pub(crate) fn new(value: Option<&[u8]>, children: usize, bytes: usize) -> Self {
        let mut out = Vec::with_capacity(bytes + value.map_or(0, <[u8]>::len) + 12);
        let range = value.map(|value| {
            put_number(&mut out, value.len() as u64 + 1);
            out.extend_from_slice(value);
            out.len() - value.len()..out.len()
        });
        if value.is_none() {
            put_number(&mut out, 0);
        }
        put_number(&mut out, children as u64);
        Self { bytes: out, value: range, starts: Vec::with_capacity(children), chain_max: 0 }
    }

    /// Takes a child over from another branch.
    pub(crate) fn copy(&mut self, from: &Branch, at: usize) {
        self.starts.push(self.bytes.len() as u32);
        let child = from.bytes_at(at);
        self.chain_max = self.chain_max.max(usize::from(child[1] & !LEAF_FLAG));
        self.bytes.extend_from_slice(child);
    }

    pub(crate) fn push(&mut self, token: u8, edge: &Edge) {
        self.starts.push(self.bytes.len() as u32);
        self.bytes.push(token);
        self.chain_max = self.chain_max.max(edge.chain.as_bytes().len());
        put_edge(&mut self.bytes, edge);
    }

    pub(crate) fn finish(self) -> Branch {
        Branch {
            bytes: self.bytes.into(),
            value: self.value,
            starts: self.starts.into(),
            chain_max: self.chain_max,
        }
    }
}

/// What the row of a stop holds besides its place in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing: the value stands in the edges.
    Inline,
    /// A larger value.
    Value(Arc<[u8]>),
    /// A branch.
    Branch(Arc<Branch>),
}

/// Reads rows from their first byte on.
#[derive(Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

/// A row that does not follow its format: which rule it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

type Read<T> = Result<T, Broken>;

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
    pub(crate) fn chain(&mut self) -> Read<Prefix> {
        let len = self.byte()?;
        let mut chain = Prefix::EMPTY;
        chain.extend(self.tokens(len)?);
        Ok(chain)
    }

    fn tokens(&mut self, len: u8) -> Read<&'a [u8]> {
        if usize::from(len) > ADDRESS_BYTES_MAX {
            return Err(Broken("a chain is longer than an address"));
        }
        self.bytes(usize::from(len))
    }

    pub(crate) fn end(&self) -> Read<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Broken("bytes are left over")) }
    }

    pub(crate) fn edge(&mut self) -> Read<EdgeRef<'a>> {
        let head = self.byte()?;
        let chain = self.tokens(head & !LEAF_FLAG)?;
        let top = self.hash()?;
        let stop = if head & LEAF_FLAG != 0 {
            let value = self.sized()?;
            if value.len() > INLINE_VALUE_BYTES_MAX {
                return Err(Broken("a value in an edge is too long"));
            }
            StopRef::Leaf(value)
        } else if chain.is_empty() {
            StopRef::Row(top)
        } else {
            StopRef::Row(self.hash()?)
        };
        Ok(EdgeRef { chain, top, stop })
    }

    /// A branch, which is all that is left.
    pub(crate) fn branch(&mut self) -> Read<Branch> {
        let branch = Branch::read(self)?;
        self.0 = &[];
        Ok(branch)
    }
}

pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn put_chain(out: &mut Vec<u8>, chain: &Prefix) {
    out.push(chain.as_bytes().len() as u8);
    out.extend_from_slice(chain.as_bytes());
}

pub(crate) fn put_edge(out: &mut Vec<u8>, edge: &Edge) {
    let flag = if matches!(edge.stop, Stop::Leaf(_)) { LEAF_FLAG } else { 0 };
    out.push(edge.chain.as_bytes().len() as u8 | flag);
    out.extend_from_slice(edge.chain.as_bytes());
    out.extend_from_slice(&edge.top.0);
    match &edge.stop {
        Stop::Leaf(value) => {
            put_number(out, value.len() as u64);
            out.extend_from_slice(value);
        }
        Stop::Row(hash) if !edge.chain.as_bytes().is_empty() => out.extend_from_slice(&hash.0),
        Stop::Row(_) => {}
    }
}

/// How many bytes two texts have in common at their beginnings.
pub(crate) fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}
