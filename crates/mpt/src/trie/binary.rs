//! The binary tree of EIP-7864 in memory, by its keys of 32 bytes.

use std::collections::BTreeMap;

use alloy_primitives::{B256, Bytes};

use crate::base::error::{Error, Result};
use crate::base::path::common_prefix;
use crate::scheme::binary_tree::{BinaryTree, STEM_BYTES, StemGroup};
use crate::trie::memory::MemoryTrie;

/// A unified binary tree (EIP-7864) in memory.
///
/// ```
/// use terrane_mpt::{Address, B256, BinaryTree, MemoryBinaryTree, U256, verify_binary_proof};
///
/// let mut tree = MemoryBinaryTree::default();
/// let key = BinaryTree::slot_key(&Address::repeat_byte(1), &U256::from(7));
/// let root = tree.apply(&[(key, Some(B256::repeat_byte(2)))])?;
/// let proof = tree.prove(&key)?;
/// assert_eq!(verify_binary_proof(root, &key, &proof), Ok(Some(B256::repeat_byte(2))));
/// # Ok::<(), terrane_mpt::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct MemoryBinaryTree {
    stems: MemoryTrie<BinaryTree>,
}

impl MemoryBinaryTree {
    /// The root; zero if there are no values.
    #[must_use]
    pub fn root(&self) -> B256 {
        self.stems.root()
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &B256) -> Option<B256> {
        let (stem, index) = StemGroup::split(key);
        self.group(stem).get(index)
    }

    /// The values of a stem.
    fn group(&self, stem: [u8; STEM_BYTES]) -> StemGroup {
        let bytes = self.stems.get(&stem);
        bytes.and_then(StemGroup::from_bytes).unwrap_or_else(|| StemGroup::new(stem))
    }

    /// Sets values and takes them away (`None`), and returns the new root. Chains write zeros and
    /// take nothing away; the tree is that of the values that are left.
    ///
    /// # Errors
    /// [`Error::KeyOrder`] for a key that is named twice.
    pub fn apply(&mut self, changes: &[(B256, Option<B256>)]) -> Result<B256> {
        let mut groups: BTreeMap<[u8; STEM_BYTES], StemGroup> = BTreeMap::new();
        let mut named = BTreeMap::new();
        for (at, (key, value)) in changes.iter().enumerate() {
            if named.insert(key, at).is_some() {
                return Err(Error::KeyOrder { index: at });
            }
            let (stem, index) = StemGroup::split(key);
            groups.entry(stem).or_insert_with(|| self.group(stem)).set(index, *value);
        }
        let leaf = |(stem, group): ([u8; STEM_BYTES], StemGroup)| {
            (stem.to_vec(), (!group.is_empty()).then(|| group.to_bytes()))
        };
        let leaves: Vec<_> = groups.into_iter().map(leaf).collect();
        self.stems.apply(&leaves)
    }

    /// The nodes that prove the value of a key, or that the tree does not have the key: those on
    /// the path to the group of its stem, or of the nearest other one.
    ///
    /// # Errors
    /// None at this time.
    pub fn prove(&self, key: &B256) -> Result<Vec<Bytes>> {
        let (stem, _) = StemGroup::split(key);
        let nearest = if self.stems.get(&stem).is_some() {
            Some(&stem[..])
        } else {
            nearest(&stem, self.stems.previous_key(&stem), self.stems.next_key(&stem))
        };
        let Some(nearest) = nearest else { return Ok(Vec::new()) };
        Ok(self.stems.prove(nearest)?.into_iter().map(Bytes::from).collect())
    }

    /// Derives all nodes from the values again and compares them with the stored ones.
    ///
    /// # Errors
    /// [`Error::Corruption`] with the path of the first node that differs.
    pub fn verify(&self) -> Result<()> {
        self.stems.verify()
    }
}

/// Which of the keys before and behind a key shares more bits with the key: its path leaves that of
/// the key last.
pub(crate) fn nearest<'k>(
    key: &[u8],
    before: Option<&'k [u8]>,
    behind: Option<&'k [u8]>,
) -> Option<&'k [u8]> {
    let shared_bits = |other: &[u8]| {
        let bytes = common_prefix(key, other);
        let differing = key.get(bytes).zip(other.get(bytes));
        8 * bytes + differing.map_or(0, |(left, right)| (left ^ right).leading_zeros() as usize)
    };
    match (before, behind) {
        (Some(before), Some(behind)) => {
            Some(if shared_bits(before) < shared_bits(behind) { behind } else { before })
        }
        (before, behind) => before.or(behind),
    }
}
