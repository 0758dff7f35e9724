//! The trait of schemes, and references to nodes.

use std::fmt;

use alloy_primitives::B256;

/// Bytes of the hash of a node.
pub const HASH_BYTES: usize = 32;

/// Most children of a branch, over all schemes.
pub const CHILDREN_MAX: usize = 16;

/// The way in which a node names its child: by hash, or, if the encoding of the child is short, by
/// the encoding itself (an embedded node).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// Invariant: 32 for a hash, less for an embedded node.
    length: u8,
    bytes: [u8; HASH_BYTES],
}

impl Reference {
    /// A reference by hash.
    #[must_use]
    pub fn hash(hash: B256) -> Self {
        Self { length: HASH_BYTES as u8, bytes: hash.0 }
    }

    /// The reference to a node of this encoding.
    #[must_use]
    pub fn of<S: Scheme>(encoding: &[u8]) -> Self {
        if S::EMBED_BELOW <= encoding.len() {
            return Self::hash(S::hash(encoding));
        }
        Self::embedded(encoding)
    }

    /// The reference to a node of this encoding, which has fewer bytes than a hash.
    pub(crate) fn embedded(encoding: &[u8]) -> Self {
        assert!(encoding.len() < HASH_BYTES, "a longer node is named by its hash");
        let mut bytes = [0; HASH_BYTES];
        bytes[..encoding.len()].copy_from_slice(encoding);
        Self { length: encoding.len() as u8, bytes }
    }

    /// The hash, unless the node is embedded.
    #[must_use]
    pub fn as_hash(&self) -> Option<B256> {
        (usize::from(self.length) == HASH_BYTES).then_some(B256::new(self.bytes))
    }

    /// The hash, or the encoding of an embedded node.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.as_hash().is_some() { "hash" } else { "embedded" };
        write!(out, "{kind} {}", alloy_primitives::hex::encode(self.as_bytes()))
    }
}

/// The hash and the encoding of the nodes of a trie.
///
/// All functions are pure. A scheme is a type without values, so that the compiler makes one trie
/// for each.
pub trait Scheme {
    /// Bits of a digit of a path: 4 (sixteen children) or 1 (two children).
    const DIGIT_BITS: u32;

    /// A node whose encoding has fewer bytes stands in its parent instead of its hash. At most 32.
    const EMBED_BELOW: usize;

    /// The root of a trie without entries.
    const EMPTY_ROOT: B256;

    /// Hashes the encoding of a node.
    fn hash(encoding: &[u8]) -> B256;

    /// Hashes independent encodings: `hashes[i]` becomes the hash of `encodings[i]`.
    fn hash_many(encodings: &[&[u8]], hashes: &mut [[u8; HASH_BYTES]]) {
        debug_assert_eq!(encodings.len(), hashes.len());
        for (encoding, hash) in encodings.iter().zip(hashes) {
            *hash = Self::hash(encoding).0;
        }
    }

    /// Appends the encoding of a leaf: the digits of its key from its place in the trie on, which
    /// may be none, and its value.
    fn leaf(suffix: &[u8], value: &[u8], out: &mut Vec<u8>);

    /// Appends the encoding of a path of single-child nodes above a branch; `digits` is not empty.
    fn extension(digits: &[u8], child: &Reference, out: &mut Vec<u8>);

    /// Calls `each` with the nodes of an extension below its first one, from the lowest up, in a
    /// scheme that has one node for each digit: the digits above the node, and its encoding.
    fn inner_nodes(_digits: &[u8], _child: &Reference, _each: &mut dyn FnMut(usize, &[u8])) {}

    /// Appends the encoding of a branch: its children by digit, and the value of the key that ends
    /// at the branch.
    fn branch(
        children: &[Option<Reference>; CHILDREN_MAX],
        value: Option<&[u8]>,
        out: &mut Vec<u8>,
    );
}

/// A scheme that commits a plain table, see [`CommittedTable`](crate::CommittedTable).
pub trait TableScheme: Scheme {
    /// Bytes of the hash of a key that are its path, from the first one on.
    const PATH_BYTES: usize;

    /// Whether a proof leads to an entry in any case: that of its key, or the nearest other one.
    const PROVES_BY_NEIGHBOUR: bool;

    /// Hashes a key of the table.
    fn hash_key(key: &[u8]) -> B256;

    /// The value of the leaf of an entry, whose key has this hash.
    fn leaf_value(key: &B256, value: &[u8]) -> Vec<u8>;
}
