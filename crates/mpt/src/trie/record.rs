//! Records of nodes, and their bytes.
//!
//! ```text
//! branch  tag 1 | flags | state mask | tree mask | hash mask | hash of each child in the hash mask
//! link    tag 2 | hash of the branch | digits of the extension
//! ```
//!
//! A mask is a u16, little-endian, with bit *d* for the child at digit *d*. Flag bit 0 says that a
//! key ends at the branch. The masks nest, and say what a child is:
//!
//! | state | hash | tree | child |
//! |---|---|---|---|
//! | 0 | 0 | 0 | none |
//! | 1 | 0 | 0 | embedded, or an extension above an embedded branch: rebuilt from its entries |
//! | 1 | 1 | 0 | a leaf |
//! | 1 | 1 | 1 | a branch or an extension above one: a record stands at its path |

use alloy_primitives::B256;

use crate::base::error::{Error, Result};
use crate::base::path::{KEY_BYTES_MAX, Path};
use crate::scheme::scheme::{CHILDREN_MAX, HASH_BYTES, Scheme};

/// Tag of the record of a branch.
pub(crate) const BRANCH_TAG: u8 = 1;

/// Tag of the record of an extension.
pub(crate) const LINK_TAG: u8 = 2;

/// Flag of a branch at which a key ends.
pub(crate) const VALUE_FLAG: u8 = 1;

/// Bytes of a branch before its hashes.
pub(crate) const BRANCH_HEAD_BYTES: usize = 8;

/// The stored form of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A branch, at its own path.
    Branch(BranchRecord),
    /// An extension, at the path where it begins.
    Link(LinkRecord),
}

/// A branch: which children it has, and the hashes of those that have one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchRecord {
    has_value: bool,
    state: u16,
    tree: u16,
    hash: u16,
    hashes: Vec<B256>,
}

/// An extension: the digits from its place to the branch below, and the hash of the branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkRecord {
    /// The digits; at least one.
    pub digits: Path,
    /// The hash of the branch.
    pub hash: B256,
}

/// A child of a branch, as the record of the branch states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordedChild {
    None,
    /// Rebuilt from its entries.
    Flat,
    /// A leaf of this hash.
    Leaf(B256),
    /// A record stands at its path; the node has this hash.
    Stored(B256),
}

impl Record {
    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Branch(branch) => branch.to_bytes(),
            Self::Link(link) => {
                let mut out = Vec::with_capacity(1 + HASH_BYTES + link.digits.len());
                out.push(LINK_TAG);
                out.extend_from_slice(link.hash.as_slice());
                out.extend_from_slice(&link.digits);
                out
            }
        }
    }

    /// Reads the record that stands at `path`.
    ///
    /// # Errors
    /// [`Error::Corruption`] unless these are the bytes of a record of the scheme.
    pub fn from_bytes<S: Scheme>(path: &Path, bytes: &[u8]) -> Result<Self> {
        let corrupt = |what| Error::corruption(path, what);
        let (tag, rest) = bytes.split_first().ok_or_else(|| corrupt("an empty record"))?;
        match *tag {
            BRANCH_TAG => BranchRecord::read::<S>(rest).map(Self::Branch).map_err(corrupt),
            LINK_TAG => read_link::<S>(path, rest).map(Self::Link).map_err(corrupt),
            _ => Err(corrupt("a record of unknown tag")),
        }
    }
}

impl BranchRecord {
    /// A branch of the given children.
    pub(crate) fn new(children: &[RecordedChild; CHILDREN_MAX], has_value: bool) -> Self {
        let mut record =
            Self { has_value, state: 0, tree: 0, hash: 0, hashes: Vec::with_capacity(16) };
        for (digit, child) in children.iter().enumerate() {
            let bit = 1 << digit;
            let hash = match child {
                RecordedChild::None => continue,
                RecordedChild::Flat => None,
                RecordedChild::Leaf(hash) | RecordedChild::Stored(hash) => Some(*hash),
            };
            record.state |= bit;
            if let Some(hash) = hash {
                record.hash |= bit;
                record.hashes.push(hash);
            }
            if matches!(child, RecordedChild::Stored(_)) {
                record.tree |= bit;
            }
        }
        assert!(2 <= record.state.count_ones() + u32::from(has_value));
        record
    }

    /// Whether a key ends at the branch.
    #[must_use]
    pub fn has_value(&self) -> bool {
        self.has_value
    }

    /// The digits at which the branch has a child, as bits.
    #[must_use]
    pub fn state_mask(&self) -> u16 {
        self.state
    }

    /// Flags and masks, as they stand in the bytes of the record behind the tag.
    pub(crate) fn shape(&self) -> [u8; BRANCH_HEAD_BYTES - 1] {
        let flags = if self.has_value { VALUE_FLAG } else { 0 };
        let [state, tree, hash] = [self.state, self.tree, self.hash].map(u16::to_le_bytes);
        [flags, state[0], state[1], tree[0], tree[1], hash[0], hash[1]]
    }

    /// The hash mask of a shape.
    pub(crate) fn hash_mask_of(shape: [u8; BRANCH_HEAD_BYTES - 1]) -> u16 {
        u16::from_le_bytes([shape[5], shape[6]])
    }

    /// The hash of the child at `digit`, if it is stored.
    pub(crate) fn hash_at(&self, digit: u8) -> Option<B256> {
        let bit = 1 << digit;
        let at = (self.hash & (bit - 1)).count_ones() as usize;
        (self.hash & bit != 0).then(|| self.hashes[at])
    }

    /// The child at `digit`.
    pub(crate) fn child(&self, digit: u8) -> RecordedChild {
        let bit = 1 << digit;
        if self.state & bit == 0 {
            return RecordedChild::None;
        }
        let Some(hash) = self.hash_at(digit) else { return RecordedChild::Flat };
        if self.tree & bit == 0 { RecordedChild::Leaf(hash) } else { RecordedChild::Stored(hash) }
    }

    /// The digits at which the branch has a child, ascending.
    pub(crate) fn digits(&self) -> impl Iterator<Item = u8> + use<> {
        let state = self.state;
        (0..CHILDREN_MAX as u8).filter(move |digit| state >> digit & 1 == 1)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BRANCH_HEAD_BYTES + HASH_BYTES * self.hashes.len());
        out.push(BRANCH_TAG);
        out.extend_from_slice(&self.shape());
        self.hashes.iter().for_each(|hash| out.extend_from_slice(hash.as_slice()));
        out
    }

    /// Reads what follows the tag.
    pub(crate) fn read<S: Scheme>(bytes: &[u8]) -> std::result::Result<Self, &'static str> {
        let Some((head, hashes)) = bytes.split_at_checked(BRANCH_HEAD_BYTES - 1) else {
            return Err("a branch that ends early");
        };
        let mask = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let has_value = head[0] == VALUE_FLAG;
        let (state, tree, hash) = (mask(1), mask(3), mask(5));

        if head[0] & !VALUE_FLAG != 0 {
            return Err("a branch with unknown flags");
        }
        if tree & !hash != 0 || hash & !state != 0 {
            return Err("masks of a branch that do not nest");
        }
        if u32::from(state) >> (1u32 << S::DIGIT_BITS) != 0 {
            return Err("a child above the arity");
        }
        if state.count_ones() + u32::from(has_value) < 2 {
            return Err("a branch with one child");
        }
        if hashes.len() != HASH_BYTES * hash.count_ones() as usize {
            return Err("hashes of a branch that do not fit its mask");
        }
        let hashes = hashes.chunks_exact(HASH_BYTES).map(B256::from_slice).collect();
        Ok(Self { has_value, state, tree, hash, hashes })
    }
}

fn read_link<S: Scheme>(
    path: &Path,
    bytes: &[u8],
) -> std::result::Result<LinkRecord, &'static str> {
    let Some((hash, digits)) = bytes.split_at_checked(HASH_BYTES) else {
        return Err("an extension that ends early");
    };
    if digits.is_empty() {
        return Err("an extension without digits");
    }
    if digits.iter().any(|digit| *digit >> S::DIGIT_BITS != 0) {
        return Err("a digit above the arity");
    }
    if KEY_BYTES_MAX * 8 < (path.len() + digits.len()) * S::DIGIT_BITS as usize {
        return Err("an extension beyond the longest key");
    }
    Ok(LinkRecord { digits: Path::new(digits), hash: B256::from_slice(hash) })
}
