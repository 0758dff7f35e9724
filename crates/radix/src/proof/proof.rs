//! Proof of the values of addresses, or of their absence, in the state of a root. Verification
//! takes the root and the bytes of the proof, and no store.
//!
//! A proof names its addresses and holds the plain nodes on their paths. An address has no value if
//! the last node of its path has none, or if a node above has no child of the next token.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | [`PROOF_VERSION`] |
//! | 1 | form: 1 full, 2 compact |
//! | 1.. | number of addresses (LEB128) |
//! | .. | the addresses ascending, none twice: length (1), bytes |
//! | .. | the nodes |
//!
//! **Full form**: the nodes as they are hashed (see `cbor`), one behind the other: the root, then
//! what is below each child that an address leads to, children ascending; a node that comes again
//! is left out.
//!
//! **Compact form**: binary, and without hashes that follow from nodes below. An *extension* is a
//! run of nodes with one child and no value, whose child all longer addresses lead to. It is
//! written as a [`CHAIN_TAG`], the number of its nodes (1), and the node below, which is no
//! extension. Any other node is a [`NODE_TAG`] and:
//!
//! | bytes | field |
//! |---|---|
//! | 1.., .. | 0 for no value, or its length + 1 (LEB128); the value |
//! | 1.. | number of children (LEB128) |
//! | .. | fewer than [`BITMAP_FROM`]: their tokens, ascending; else 32 bytes, bit *t* mod 8 of byte *t* / 8 for token *t* |
//! | .. | the children ascending: one that an address leads to as an extension or node, any other as its hash (32) |
//!
//! Each form has one encoding for a root and a set of addresses; the decoder refuses all others.
//!
//! Invariant: the hashes of a [`Proof`] agree with each other, so it proves values of the one root
//! that its nodes hash to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::base::address::Address;
use crate::base::node_hash::{NodeHash, Root};
use crate::commit::hashing::hash_node;
use crate::node::decode::{CHILDREN_MAX, PlainNode};
use crate::node::node::{Broken, Input, put_number};

/// Version of the format.
pub(crate) const PROOF_VERSION: u8 = 1;
/// The full form.
pub(crate) const FULL_FORM: u8 = 1;
/// The compact form.
pub(crate) const COMPACT_FORM: u8 = 2;
/// Nodes of one child and no value.
pub(crate) const CHAIN_TAG: u8 = 1;
/// Any other node.
pub(crate) const NODE_TAG: u8 = 2;
/// Number of children from which on the tokens are a bitmap.
pub(crate) const BITMAP_FROM: usize = 32;

const BITMAP_BYTES: usize = CHILDREN_MAX / 8;

/// Encoding of a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The bytes of the nodes as they are hashed, which other implementations of Transact know.
    Full,
    /// Smaller: binary hashes, without those that follow from other nodes.
    Compact,
}

/// Reason to refuse a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// Another version of the format, or no proof at all.
    #[error("version {found} of proofs; this program reads {PROOF_VERSION}")]
    UnsupportedVersion {
        /// The version.
        found: u8,
    },
    /// Bytes that break the format, or that are not the one encoding of their content.
    #[error("malformed at byte {at}: {rule}")]
    Malformed {
        /// Where it was noticed.
        at: usize,
        /// Which rule is broken.
        rule: &'static str,
    },
    /// A node that is not the one that the node above it names.
    #[error("the node before byte {at} hashes to {found}, and the node above it names {expected}")]
    Node {
        /// Where the node ends.
        at: usize,
        /// Hash that the node above names.
        expected: NodeHash,
        /// Hash of the node's bytes.
        found: NodeHash,
    },
    /// A proof of another root.
    #[error("the proof is one of root {found}, not of {expected}")]
    Root {
        /// The root that was asked for.
        expected: Root,
        /// The root that the nodes hash to.
        found: Root,
    },
    /// A proof of other addresses than the caller asked for, of fewer, or of more.
    #[error("the proof is one of other addresses than those asked for")]
    Addresses,
}

type Proven<T> = Result<T, ProofError>;

/// Proof of the values of addresses, or of their absence. It proves nothing until it is
/// [verified](Self::verify) against a trusted root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// Ascending, none twice.
    addresses: Vec<Address>,
    /// Value of each address.
    values: Vec<Option<Arc<[u8]>>>,
    /// Nodes on the paths of the addresses, each with its hash, before the nodes below it. A node
    /// that recurs is listed at each of its places.
    nodes: Vec<(NodeHash, Arc<PlainNode>)>,
}

/// Place of a node in the tree of paths.
#[derive(Debug, Clone)]
pub(crate) struct ProofPlace {
    /// Tokens above it.
    pub(crate) depth: usize,
    /// Which addresses lead to it; only the first can end here.
    range: Range<usize>,
}

/// Verifies a proof and returns the value of each of `addresses`, in their order; `None` if the
/// proof shows that the address has no value. The proof must be of exactly these addresses; their
/// order and repetitions do not matter.
///
/// Cost: hashes each node of the proof once, no I/O. Memory: some multiple of the bytes, and at
/// most 6 KB for each address that is asked for, besides the answer.
///
/// # Errors
/// [`ProofError`]. No bytes make it panic.
pub fn verify_proof(
    root: &Root,
    bytes: &[u8],
    addresses: &[Address],
) -> Result<Vec<Option<Vec<u8>>>, ProofError> {
    let proof = Proof::parse(bytes, Some(&distinct(addresses)))?;
    proof.check_root(root)?;
    let value = |address: &Address| {
        let at = proof.addresses.binary_search(address).map_err(|_| ProofError::Addresses)?;
        Ok(proof.values[at].as_ref().map(|value| value.to_vec()))
    };
    addresses.iter().map(value).collect()
}

fn distinct(addresses: &[Address]) -> Vec<Address> {
    let mut distinct = addresses.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}

impl Proof {
    /// Begins a proof without nodes; returns it and the place of its root.
    pub(crate) fn begin(addresses: &[Address]) -> (Self, ProofPlace) {
        let addresses = distinct(addresses);
        let place = ProofPlace { depth: 0, range: 0..addresses.len() };
        let values = vec![None; addresses.len()];
        (Self { addresses, values, nodes: Vec::new() }, place)
    }

    /// Adds a node, before the nodes below it.
    pub(crate) fn push(&mut self, place: &ProofPlace, hash: NodeHash, node: Arc<PlainNode>) {
        self.note_value(place, &node);
        self.nodes.push((hash, node));
    }

    fn note_value(&mut self, place: &ProofPlace, node: &PlainNode) {
        debug_assert!(
            place.range.end <= self.addresses.len(),
            "a place is reached by addresses of the proof"
        );
        let Range { start, end } = place.range;
        // Addresses ascend, so only the first one can end where all of them lead.
        if start < end && self.addresses[start].as_bytes().len() == place.depth {
            self.values[start].clone_from(&node.value);
        }
    }

    /// The tokens by which addresses go on below a place, ascending, and the places there.
    pub(crate) fn below(&self, place: &ProofPlace) -> Vec<(u8, ProofPlace)> {
        let mut below: Vec<(u8, ProofPlace)> = Vec::new();
        for at in place.range.clone() {
            let Some(&token) = self.addresses[at].as_bytes().get(place.depth) else { continue };
            match below.last_mut() {
                Some((last, place)) if *last == token => place.range.end = at + 1,
                _ => below.push((token, ProofPlace { depth: place.depth + 1, range: at..at + 1 })),
            }
        }
        below
    }

    /// Addresses of the proof, ascending.
    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    fn check_root(&self, root: &Root) -> Proven<()> {
        let found = self.nodes.first().map_or(NodeHash::EMPTY, |(hash, _)| *hash);
        if found == *root { Ok(()) } else { Err(ProofError::Root { expected: *root, found }) }
    }

    /// Checks the proof against a root that the caller trusts, and returns the addresses with their
    /// values, ascending; `None` for an address without a value. No other method shows values.
    ///
    /// # Errors
    /// [`ProofError::Root`].
    pub fn verify(
        &self,
        root: &Root,
    ) -> Result<impl ExactSizeIterator<Item = (Address, Option<&[u8]>)>, ProofError> {
        self.check_root(root)?;
        let pairs = self.addresses.iter().zip(&self.values);
        Ok(pairs.map(|(address, value)| (*address, value.as_deref())))
    }

    /// The bytes of the proof.
    #[must_use]
    pub fn to_bytes(&self, form: Form) -> Vec<u8> {
        let tag = match form {
            Form::Full => FULL_FORM,
            Form::Compact => COMPACT_FORM,
        };

        let mut out = vec![PROOF_VERSION, tag];
        put_number(&mut out, self.addresses.len() as u64);
        for address in &self.addresses {
            out.push(address.as_bytes().len() as u8);
            out.extend_from_slice(address.as_bytes());
        }

        match form {
            Form::Full => {
                // The reader keeps the nodes that it has read, so a node that recurs is written
                // once.
                let mut known = BTreeSet::new();
                for (hash, node) in &self.nodes {
                    if known.insert(hash) {
                        out.extend_from_slice(&node.encode());
                    }
                }
            }
            Form::Compact => {
                let place = ProofPlace { depth: 0, range: 0..self.addresses.len() };
                self.put_compact(&mut out, &mut 0, place);
            }
        }

        out
    }

    /// Writes node number `at` and all nodes below it. At most 36 deep.
    fn put_compact(&self, out: &mut Vec<u8>, at: &mut usize, mut place: ProofPlace) {
        let mut extension = 0;
        let (node, below) = loop {
            let (_, node) = &self.nodes[*at];
            *at += 1;
            let below = self.below(&place);
            // Addresses tell the tokens of an extension, so its nodes need no bytes.
            match extension_below(node, &below) {
                Some(next) => place = next,
                None => break (node, below),
            }
            extension += 1;
        };

        if extension > 0 {
            out.extend_from_slice(&[CHAIN_TAG, extension]);
        }

        out.push(NODE_TAG);
        match &node.value {
            None => put_number(out, 0),
            Some(value) => {
                put_number(out, value.len() as u64 + 1);
                out.extend_from_slice(value);
            }
        }

        put_number(out, node.children.len() as u64);
        if node.children.len() < BITMAP_FROM {
            out.extend(node.children.iter().map(|(token, _)| token));
        } else {
            let mut bitmap = [0; BITMAP_BYTES];
            for (token, _) in &node.children {
                bitmap[usize::from(token / 8)] |= 1 << (token % 8);
            }
            out.extend_from_slice(&bitmap);
        }

        let mut below = below.into_iter().peekable();
        for (token, hash) in &node.children {
            match place_of(&mut below, *token) {
                Some(place) => self.put_compact(out, at, place),
                None => out.extend_from_slice(&hash.0),
            }
        }
    }

    /// Reads a proof in either form.
    ///
    /// Cost: hashes each node once. Memory: some multiple of the bytes, and at most 6 KB for each
    /// address that the proof names. Give untrusted bytes to [`verify_proof`], which checks the
    /// addresses first.
    ///
    /// # Errors
    /// All of [`ProofError`] but [`Root`](ProofError::Root) and
    /// [`Addresses`](ProofError::Addresses). No bytes make it panic.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ProofError> {
        Self::parse(bytes, None)
    }

    /// Reads a proof, if it is one of exactly the addresses asked for, which ascend.
    fn parse(bytes: &[u8], asked: Option<&[Address]>) -> Proven<Self> {
        let mut input = Input(bytes);
        let malformed = |input: &Input<'_>, rule| ProofError::Malformed {
            at: bytes.len() - input.0.len(),
            rule,
        };

        let (form, addresses) = match head(&mut input) {
            Ok((PROOF_VERSION, form, addresses)) => (form, addresses),
            Ok((found, ..)) => return Err(ProofError::UnsupportedVersion { found }),
            Err(Broken(rule)) => return Err(malformed(&input, rule)),
        };

        // Checked before any node is read: the addresses that are asked for bound the memory.
        if asked.is_some_and(|asked| asked != addresses) {
            return Err(ProofError::Addresses);
        }

        let (proof, place) = Self::begin(&addresses);
        let mut parser = Parser { bytes: bytes.len(), input, proof, known: BTreeMap::new() };
        match form {
            FULL_FORM => parser.full(None, &place)?,
            COMPACT_FORM => drop(parser.compact(place, true)?),
            _ => return Err(parser.malformed("unknown form")),
        }

        parser.input.end().map_err(|Broken(rule)| parser.malformed(rule))?;
        Ok(parser.proof)
    }
}

/// The place below a node of an extension; `None` for any other node.
fn extension_below(node: &PlainNode, below: &[(u8, ProofPlace)]) -> Option<ProofPlace> {
    match (&node.value, node.children.as_slice(), below) {
        (None, [(child, _)], [(token, place)]) if child == token => Some(place.clone()),
        _ => None,
    }
}

/// The place of a token; tokens are asked for in ascending order.
fn place_of(
    below: &mut std::iter::Peekable<impl Iterator<Item = (u8, ProofPlace)>>,
    token: u8,
) -> Option<ProofPlace> {
    while below.next_if(|(other, _)| *other < token).is_some() {}
    below.next_if(|(other, _)| *other == token).map(|(_, place)| place)
}

/// Reads version, form and addresses; only the version if it is unknown.
fn head(input: &mut Input<'_>) -> Result<(u8, u8, Vec<Address>), Broken> {
    let version = input.byte()?;
    // What follows in another version may mean anything.
    if version != PROOF_VERSION {
        return Ok((version, 0, Vec::new()));
    }

    let form = input.byte()?;
    // Grows as addresses come, since a forged count can be huge.
    let mut addresses: Vec<Address> = Vec::new();
    for _ in 0..input.number()? {
        let len = input.byte()?;
        let address = Address::new(input.bytes(usize::from(len))?)
            .map_err(|_| Broken("length of an address"))?;
        if addresses.last().is_some_and(|last| *last >= address) {
            return Err(Broken("addresses do not ascend"));
        }
        addresses.push(address);
    }

    Ok((version, form, addresses))
}

/// Reader of a proof.
struct Parser<'a> {
    bytes: usize,
    input: Input<'a>,
    proof: Proof,
    /// Nodes of the full form so far.
    known: BTreeMap<NodeHash, Arc<PlainNode>>,
}

impl<'a> Parser<'a> {
    fn at(&self) -> usize {
        self.bytes - self.input.0.len()
    }

    fn malformed(&self, rule: &'static str) -> ProofError {
        ProofError::Malformed { at: self.at(), rule }
    }

    /// Calls a reader of the input.
    fn read<T>(&mut self, read: impl FnOnce(&mut Input<'a>) -> Result<T, Broken>) -> Proven<T> {
        read(&mut self.input).map_err(|Broken(rule)| self.malformed(rule))
    }

    /// Reads a node of the full form and all below it; at most 36 deep.
    fn full(&mut self, expected: Option<NodeHash>, place: &ProofPlace) -> Proven<()> {
        // A node that recurs stands in the bytes once.
        let known = expected.and_then(|hash| Some((hash, Arc::clone(self.known.get(&hash)?))));
        let (hash, node) = match known {
            Some(known) => known,
            None => {
                let rest = self.input.0;
                let node = Arc::new(self.read(PlainNode::read)?);
                let found = hash_node(&rest[..rest.len() - self.input.0.len()]);
                if let Some(expected) = expected
                    && expected != found
                {
                    return Err(ProofError::Node { at: self.at(), expected, found });
                }
                self.known.insert(found, Arc::clone(&node));
                (found, node)
            }
        };

        // Checked also if it is known: its rules depend on the depth.
        node.check(place.depth).map_err(|Broken(rule)| self.malformed(rule))?;
        self.proof.push(place, hash, Arc::clone(&node));
        for (token, below) in self.proof.below(place) {
            if let Some(hash) = node.child(token) {
                self.full(Some(*hash), &below)?;
            }
        }

        Ok(())
    }

    /// Reads an extension or node of the compact form and all below it, and returns its hash. At
    /// most 36 deep.
    fn compact(&mut self, place: ProofPlace, may_be_extension: bool) -> Proven<NodeHash> {
        match self.read(Input::byte)? {
            CHAIN_TAG if may_be_extension => self.extension(place),
            NODE_TAG => self.node(&place),
            _ => Err(self
                .malformed("neither an extension nor a node, or an extension below an extension")),
        }
    }

    fn extension(&mut self, mut place: ProofPlace) -> Proven<NodeHash> {
        let count = self.read(Input::byte)?;
        if count == 0 {
            return Err(self.malformed("an extension of no nodes"));
        }

        let first = self.proof.nodes.len();
        let mut tokens = Vec::new();
        for _ in 0..count {
            let mut below = self.proof.below(&place);
            // The token of the node is known only where all addresses go on by one.
            let (Some((token, next)), true) = (below.pop(), below.is_empty()) else {
                return Err(self.malformed("an extension where addresses end or part"));
            };
            // Its hash follows from the node below, which comes later.
            self.proof.nodes.push((NodeHash::EMPTY, Arc::default()));
            tokens.push(token);
            place = next;
        }

        let mut hash = self.compact(place, false)?;
        for (at, token) in tokens.into_iter().enumerate().rev() {
            let node = PlainNode { value: None, children: vec![(token, hash)] };
            hash = hash_node(&node.encode());
            self.proof.nodes[first + at] = (hash, Arc::new(node));
        }

        Ok(hash)
    }

    fn node(&mut self, place: &ProofPlace) -> Proven<NodeHash> {
        let (value, tokens) = self.read(value_and_tokens)?;
        let hash_to_come = |token| (token, NodeHash::EMPTY);
        let mut node =
            PlainNode { value, children: tokens.into_iter().map(hash_to_come).collect() };
        node.check(place.depth).map_err(|Broken(rule)| self.malformed(rule))?;

        let below = self.proof.below(place);
        // A proof has one encoding, so what can be left out must be.
        if extension_below(&node, &below).is_some() {
            return Err(self.malformed("a node of an extension stands for itself"));
        }

        let at = self.proof.nodes.len();
        // It stands before the nodes below it, although its hash follows from theirs.
        self.proof.nodes.push((NodeHash::EMPTY, Arc::default()));

        let mut below = below.into_iter().peekable();
        for (token, hash) in &mut node.children {
            *hash = match place_of(&mut below, *token) {
                Some(place) => self.compact(place, true)?,
                None => NodeHash(*self.read(Input::hash)?),
            };
        }

        self.proof.note_value(place, &node);
        let hash = hash_node(&node.encode());
        self.proof.nodes[at] = (hash, Arc::new(node));
        Ok(hash)
    }
}

type ValueAndTokens = (Option<Arc<[u8]>>, Vec<u8>);

fn value_and_tokens(input: &mut Input<'_>) -> Result<ValueAndTokens, Broken> {
    let value = match input.number()?.checked_sub(1) {
        None => None,
        Some(len) => {
            let len = usize::try_from(len).map_err(|_| Broken("it is cut short"))?;
            Some(input.bytes(len)?.into())
        }
    };

    let count = input.number()?;
    if count > CHILDREN_MAX as u64 {
        return Err(Broken("more children than tokens"));
    }

    let count = count as usize;
    if count < BITMAP_FROM {
        let tokens = input.bytes(count)?;
        if !tokens.is_sorted_by(|one, other| one < other) {
            return Err(Broken("children do not ascend"));
        }
        return Ok((value, tokens.to_vec()));
    }

    let bitmap = input.array::<BITMAP_BYTES>()?;
    let is_set = |token: &u8| bitmap[usize::from(token / 8)] & 1 << (token % 8) != 0;

    let tokens: Vec<u8> = (0..=u8::MAX).filter(is_set).collect();
    if tokens.len() != count {
        return Err(Broken("number of children"));
    }

    Ok((value, tokens))
}
