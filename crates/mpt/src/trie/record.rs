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

use std::fmt;
use std::sync::Arc;

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

/// Most bytes of a branch.
const BRANCH_BYTES_MAX: usize = BRANCH_HEAD_BYTES + CHILDREN_MAX * HASH_BYTES;

/// Places of the masks.
const STATE_AT: usize = 2;
const TREE_AT: usize = 4;
const HASH_AT: usize = 6;

/// The stored form of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A branch, at its own path.
    Branch(BranchRecord),
    /// An extension, at the path where it begins.
    Link(LinkRecord),
}

/// A branch: which children it has, and the hashes of those that have one.
///
/// It is its bytes, which caches, batches and updates share. Invariant: they are those of a record.
#[derive(Clone, PartialEq, Eq)]
pub struct BranchRecord {
    bytes: Arc<[u8]>,
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
    pub fn to_bytes(&self) -> Arc<[u8]> {
        match self {
            Self::Branch(branch) => Arc::clone(&branch.bytes),
            Self::Link(link) => {
                let mut out = Vec::with_capacity(1 + HASH_BYTES + link.digits.len());
                out.push(LINK_TAG);
                out.extend_from_slice(link.hash.as_slice());
                out.extend_from_slice(&link.digits);
                out.into()
            }
        }
    }

    /// Reads the record that stands at `path`.
    ///
    /// # Errors
    /// [`Error::Corruption`] unless these are the bytes of a record of the scheme.
    pub fn from_bytes<S: Scheme>(path: &Path, bytes: impl Into<Arc<[u8]>>) -> Result<Self> {
        let corrupt = |what| Error::corruption(path, what);
        let bytes = bytes.into();
        let (tag, rest) = bytes.split_first().ok_or_else(|| corrupt("an empty record"))?;
        match *tag {
            BRANCH_TAG => BranchRecord::read::<S>(bytes).map(Self::Branch).map_err(corrupt),
            LINK_TAG => read_link::<S>(path, rest).map(Self::Link).map_err(corrupt),
            _ => Err(corrupt("a record of unknown tag")),
        }
    }
}

impl BranchRecord {
    /// A branch of the given children.
    pub(crate) fn new(children: &[RecordedChild; CHILDREN_MAX], has_value: bool) -> Self {
        let mut bytes = [0; BRANCH_BYTES_MAX];
        let mut length = BRANCH_HEAD_BYTES;
        let (mut state, mut tree, mut hash) = (0_u16, 0_u16, 0_u16);
        for (digit, child) in children.iter().enumerate() {
            let bit = 1 << digit;
            state |= if matches!(child, RecordedChild::None) { 0 } else { bit };
            tree |= if matches!(child, RecordedChild::Stored(_)) { bit } else { 0 };
            if let RecordedChild::Leaf(stated) | RecordedChild::Stored(stated) = child {
                hash |= bit;
                bytes[length..length + HASH_BYTES].copy_from_slice(stated.as_slice());
                length += HASH_BYTES;
            }
        }
        assert!(2 <= state.count_ones() + u32::from(has_value));

        bytes[0] = BRANCH_TAG;
        bytes[1] = if has_value { VALUE_FLAG } else { 0 };
        for (at, mask) in [(STATE_AT, state), (TREE_AT, tree), (HASH_AT, hash)] {
            bytes[at..at + 2].copy_from_slice(&mask.to_le_bytes());
        }
        Self { bytes: bytes[..length].into() }
    }

    fn mask(&self, at: usize) -> u16 {
        mask_of(&self.bytes, at)
    }

    /// Whether a key ends at the branch.
    #[must_use]
    pub fn has_value(&self) -> bool {
        self.bytes[1] == VALUE_FLAG
    }

    /// The digits at which the branch has a child, as bits.
    #[must_use]
    pub fn state_mask(&self) -> u16 {
        self.mask(STATE_AT)
    }

    /// Flags and masks, as they stand in the bytes of the record behind the tag.
    pub(crate) fn shape(&self) -> [u8; BRANCH_HEAD_BYTES - 1] {
        std::array::from_fn(|at| self.bytes[1 + at])
    }

    /// The hash mask of a shape.
    pub(crate) fn hash_mask_of(shape: [u8; BRANCH_HEAD_BYTES - 1]) -> u16 {
        mask_of(&shape, HASH_AT - 1)
    }

    /// The hash of the child at `digit`, if it is stored.
    pub(crate) fn hash_at(&self, digit: u8) -> Option<B256> {
        let (bit, hash) = (1 << digit, self.mask(HASH_AT));
        let at = BRANCH_HEAD_BYTES + HASH_BYTES * (hash & (bit - 1)).count_ones() as usize;
        (hash & bit != 0).then(|| B256::from_slice(&self.bytes[at..at + HASH_BYTES]))
    }

    /// The child at `digit`.
    pub(crate) fn child(&self, digit: u8) -> RecordedChild {
        let bit = 1 << digit;
        if self.state_mask() & bit == 0 {
            return RecordedChild::None;
        }
        let Some(hash) = self.hash_at(digit) else { return RecordedChild::Flat };
        if self.mask(TREE_AT) & bit == 0 {
            RecordedChild::Leaf(hash)
        } else {
            RecordedChild::Stored(hash)
        }
    }

    /// The digits at which the branch has a child, ascending.
    pub(crate) fn digits(&self) -> impl Iterator<Item = u8> + use<> {
        let state = self.state_mask();
        (0..CHILDREN_MAX as u8).filter(move |digit| state >> digit & 1 == 1)
    }

    /// Reads a record that has the tag of a branch.
    pub(crate) fn read<S: Scheme>(bytes: Arc<[u8]>) -> std::result::Result<Self, &'static str> {
        let Some((head, hashes)) = bytes.split_at_checked(BRANCH_HEAD_BYTES) else {
            return Err("a branch that ends early");
        };
        debug_assert!(head[0] == BRANCH_TAG);
        let has_value = head[1] == VALUE_FLAG;
        let [state, tree, hash] = [STATE_AT, TREE_AT, HASH_AT].map(|at| mask_of(head, at));

        if head[1] & !VALUE_FLAG != 0 {
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
        Ok(Self { bytes })
    }
}

impl fmt::Debug for BranchRecord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let children = self.digits().map(|digit| (digit, self.child(digit)));
        let mut branch = out.debug_struct("BranchRecord");
        branch
            .field("has_value", &self.has_value())
            .field("children", &children.collect::<Vec<_>>());
        branch.finish()
    }
}

/// The mask at a place in the bytes of a branch.
fn mask_of(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
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
