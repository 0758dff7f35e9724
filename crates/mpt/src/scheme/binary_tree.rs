//! The unified binary tree of EIP-7864, with BLAKE3.
//!
//! Keys and values have 32 bytes. The first 31 bytes of a key are its *stem*; the 256 keys of a
//! stem are one leaf of the tree, a [`StemGroup`]. The path of a leaf is the bits of its stem.
//!
//! ```text
//! internal node  left hash, right hash
//! stem node      stem, 0, hash of the subtree of its 256 values
//! ```
//!
//! The hash of 64 zero bytes is zero, as is that of a value that is not there. The specification
//! has a node for each bit of a shared prefix, so the encoding of an extension is the first of a
//! chain of nodes with one child.
//!
//! A stem node and an internal node have the same length, so bytes alone do not tell them apart.
//! The encoding of a leaf is therefore the whole group, from which its hash is computed: a proof
//! that ends in a group shows at which depth the group stands.

use alloy_primitives::{B256, Bytes};

use crate::base::path::{Path, common_prefix};
use crate::base::proof_error::ProofError;
use crate::scheme::scheme::{CHILDREN_MAX, HASH_BYTES, Reference, Scheme, TableScheme};

/// Bytes of a stem.
pub const STEM_BYTES: usize = 31;

/// First byte of a group. With it no group is as long as an internal node.
pub(crate) const GROUP_TAG: u8 = 1;

/// Bytes of an internal node, and of a stem node.
const NODE_BYTES: usize = 2 * HASH_BYTES;

/// Bytes of a value in a group: its index and itself.
const ENTRY_BYTES: usize = 1 + HASH_BYTES;

/// Bits of the index of a value in its group.
const INDEX_BITS: u32 = 8;

/// The unified binary tree of EIP-7864.
#[derive(Debug, Clone, Copy)]
pub enum BinaryTree {}

/// The values of the keys of one stem: a leaf of the [`BinaryTree`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StemGroup {
    stem: [u8; STEM_BYTES],
    /// Invariant: indexes ascend.
    values: Vec<(u8, B256)>,
}

impl StemGroup {
    /// A group without values.
    #[must_use]
    pub fn new(stem: [u8; STEM_BYTES]) -> Self {
        Self { stem, values: Vec::new() }
    }

    /// The stem and the index of a key.
    #[must_use]
    pub fn split(key: &B256) -> ([u8; STEM_BYTES], u8) {
        let mut stem = [0; STEM_BYTES];
        stem.copy_from_slice(&key[..STEM_BYTES]);
        (stem, key[STEM_BYTES])
    }

    /// The stem.
    #[must_use]
    pub fn stem(&self) -> &[u8; STEM_BYTES] {
        &self.stem
    }

    /// Whether no key of the stem has a value. The tree has no such group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The value at an index.
    #[must_use]
    pub fn get(&self, index: u8) -> Option<B256> {
        let at = self.values.binary_search_by_key(&index, |(index, _)| *index).ok()?;
        self.values.get(at).map(|(_, value)| *value)
    }

    /// Sets the value at an index; `None` takes it away. A zero is a value like any other.
    pub fn set(&mut self, index: u8, value: Option<B256>) {
        let found = self.values.binary_search_by_key(&index, |(index, _)| *index);
        match (found, value) {
            (Ok(at), Some(value)) => self.values[at].1 = value,
            (Ok(at), None) => drop(self.values.remove(at)),
            (Err(at), Some(value)) => self.values.insert(at, (index, value)),
            (Err(_), None) => {}
        }
    }

    /// The bytes of the group: the value of its leaf. A tag, the stem, and for each value its index
    /// and itself.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + STEM_BYTES + ENTRY_BYTES * self.values.len());
        out.push(GROUP_TAG);
        out.extend_from_slice(&self.stem);
        for (index, value) in &self.values {
            out.push(*index);
            out.extend_from_slice(value.as_slice());
        }
        out
    }

    /// Reads [`to_bytes`](Self::to_bytes), and no other bytes; `None` for a group without values.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (stem, entries) = bytes.strip_prefix(&[GROUP_TAG])?.split_first_chunk()?;
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        let values: Vec<(u8, B256)> =
            entries.iter().map(|entry| (entry[0], B256::from_slice(&entry[1..]))).collect();
        let is_sorted = values.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let is_group = rest.is_empty() && !values.is_empty() && is_sorted;
        is_group.then_some(Self { stem: *stem, values })
    }

    /// The hash of the stem node.
    #[must_use]
    pub fn hash(&self) -> B256 {
        let mut stem = [0; HASH_BYTES];
        stem[..STEM_BYTES].copy_from_slice(&self.stem);
        hash_pair(&B256::from(stem), &subtree(&self.values, INDEX_BITS))
    }
}

/// The root of the values whose indexes share all but the last `bits` bits.
fn subtree(values: &[(u8, B256)], bits: u32) -> B256 {
    let Some((index, value)) = values.first() else { return B256::ZERO };
    if bits == 0 {
        return B256::from(*blake3::hash(value.as_slice()).as_bytes());
    }
    let bit = 1 << (bits - 1);
    debug_assert!(values.last().is_some_and(|(last, _)| (last ^ index) >> (bits - 1) <= 1));
    let right = values.partition_point(|(index, _)| index & bit == 0);
    let (left, right) = values.split_at(right);
    hash_pair(&subtree(left, bits - 1), &subtree(right, bits - 1))
}

/// The hash of two hashes; zero if both are zero.
fn hash_pair(left: &B256, right: &B256) -> B256 {
    hash_node(&pair(left, right))
}

fn pair(left: &B256, right: &B256) -> [u8; NODE_BYTES] {
    let mut bytes = [0; NODE_BYTES];
    bytes[..HASH_BYTES].copy_from_slice(left.as_slice());
    bytes[HASH_BYTES..].copy_from_slice(right.as_slice());
    bytes
}

fn hash_node(bytes: &[u8; NODE_BYTES]) -> B256 {
    if *bytes == [0; NODE_BYTES] {
        return B256::ZERO;
    }
    B256::from(*blake3::hash(bytes).as_bytes())
}

/// A node with one child, at `digit`.
fn lone(digit: u8, child: &B256) -> [u8; NODE_BYTES] {
    if digit == 0 { pair(child, &B256::ZERO) } else { pair(&B256::ZERO, child) }
}

/// The hash that a reference names. All references of the scheme are by hash.
fn hash_of(reference: Option<&Reference>) -> B256 {
    reference.and_then(Reference::as_hash).unwrap_or_default()
}

impl Scheme for BinaryTree {
    const DIGIT_BITS: u32 = 1;
    const EMBED_BELOW: usize = 0;
    const EMPTY_ROOT: B256 = B256::ZERO;

    fn hash(encoding: &[u8]) -> B256 {
        match (encoding.try_into(), StemGroup::from_bytes(encoding)) {
            (Ok(node), _) => hash_node(node),
            (_, Some(group)) => group.hash(),
            // The value of a leaf that is not a group: no tree of the specification has this hash.
            _ => B256::from(*blake3::hash(encoding).as_bytes()),
        }
    }

    fn leaf(_suffix: &[u8], value: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(value);
    }

    fn extension(digits: &[u8], child: &Reference, out: &mut Vec<u8>) {
        let mut hash = hash_of(Some(child));
        let Some((first, below)) = digits.split_first() else { return };
        for digit in below.iter().rev() {
            hash = hash_node(&lone(*digit, &hash));
        }
        out.extend_from_slice(&lone(*first, &hash));
    }

    fn inner_nodes(digits: &[u8], child: &Reference, each: &mut dyn FnMut(usize, &[u8])) {
        let mut hash = hash_of(Some(child));
        for (above, digit) in digits.iter().enumerate().skip(1).rev() {
            let node = lone(*digit, &hash);
            each(above, &node);
            hash = hash_node(&node);
        }
    }

    fn branch(
        children: &[Option<Reference>; CHILDREN_MAX],
        _value: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) {
        let [left, right, ..] = children;
        out.extend_from_slice(&pair(&hash_of(left.as_ref()), &hash_of(right.as_ref())));
    }
}

impl TableScheme for BinaryTree {
    const PATH_BYTES: usize = STEM_BYTES;
    const PROVES_BY_NEIGHBOUR: bool = true;

    fn hash_key(key: &[u8]) -> B256 {
        B256::from(*blake3::hash(key).as_bytes())
    }

    fn leaf_value(key: &B256, value: &[u8]) -> Vec<u8> {
        let (stem, index) = StemGroup::split(key);
        let mut group = StemGroup::new(stem);
        group.set(index, Some(B256::from(*blake3::hash(value).as_bytes())));
        group.to_bytes()
    }
}

/// Returns the value of a key in the binary tree of `root`, or `None` if the nodes prove that the
/// tree does not have the key.
///
/// The nodes lead from the root to a group: that of the key's stem, or another one, at whose path
/// the key's stem is seen not to be. The group is whole, so the depth at which it stands is proved:
/// values are hashed as 32 bytes, and nodes as 64.
///
/// Cost: no I/O; hashes each node once.
///
/// # Errors
/// [`ProofError`] if the nodes prove neither.
pub fn verify_binary_proof(
    root: B256,
    key: &B256,
    nodes: &[Bytes],
) -> Result<Option<B256>, ProofError> {
    let Some((last, internal)) = nodes.split_last() else {
        let too_short = ProofError::TooShort { nodes: 0 };
        return (root == B256::ZERO).then_some(None).ok_or(too_short);
    };
    let group = StemGroup::from_bytes(last);
    let group = group.ok_or(ProofError::NotANode { index: internal.len() })?;
    let path = Path::of_key(&group.stem, BinaryTree::DIGIT_BITS);
    let (stem, index) = StemGroup::split(key);
    let shared = common_prefix(&path, &Path::of_key(&stem, BinaryTree::DIGIT_BITS));

    let mut expected = root;
    for (depth, node) in internal.iter().enumerate() {
        let not_a_node = ProofError::NotANode { index: depth };
        let bytes: &[u8; NODE_BYTES] = node[..].try_into().map_err(|_| not_a_node.clone())?;
        if hash_node(bytes) != expected {
            return Err(ProofError::WrongHash { index: depth });
        }
        let digit = *path.get(depth).ok_or(not_a_node)?;
        let (left, right) = bytes.split_at(HASH_BYTES);
        let (own, other) = if digit == 0 { (left, right) } else { (right, left) };
        // The key leaves the path here, and its side must be empty.
        if depth == shared && *other != [0; HASH_BYTES] {
            return Err(ProofError::TooShort { nodes: nodes.len() });
        }
        expected = B256::from_slice(own);
    }
    if group.hash() != expected {
        return Err(ProofError::WrongHash { index: internal.len() });
    }
    Ok(if group.stem == stem { group.get(index) } else { None })
}
