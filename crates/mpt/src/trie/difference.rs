//! Differences of the records of a branch: what leads from the record after a block back to the
//! one before it.
//!
//! ```text
//! same shape   replaced mask | hash of each replaced child
//! other shape  flags | state mask | tree mask | hash mask | replaced mask | the same
//! ```
//!
//! Masks are as in a [record](crate::trie::record). A child is replaced if the record before has a
//! hash for it that the record after does not have. So a child that no difference replaces has the
//! hash that it has behind all of them.

use alloy_primitives::B256;

use crate::scheme::scheme::{CHILDREN_MAX, HASH_BYTES, Scheme};
use crate::trie::record::{BRANCH_HEAD_BYTES, BRANCH_TAG, BranchRecord};

/// Bytes of flags and masks: those of a branch without its tag.
const SHAPE_BYTES: usize = BRANCH_HEAD_BYTES - 1;

/// Bytes of a mask.
const MASK_BYTES: usize = 2;

/// Whether a difference states the flags and masks of the record before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stated {
    Hashes,
    ShapeAndHashes,
}

/// The difference that leads from `after` back to `before`.
pub(crate) fn difference(before: &BranchRecord, after: &BranchRecord) -> (Stated, Vec<u8>) {
    let mut replaced = 0_u16;
    let mut hashes = Vec::with_capacity(HASH_BYTES);
    for digit in before.digits() {
        let hash = before.hash_at(digit);
        if let Some(hash) = hash.filter(|hash| after.hash_at(digit) != Some(*hash)) {
            replaced |= 1 << digit;
            hashes.extend_from_slice(hash.as_slice());
        }
    }

    let stated =
        if before.shape() == after.shape() { Stated::Hashes } else { Stated::ShapeAndHashes };
    let mut bytes = Vec::with_capacity(SHAPE_BYTES + MASK_BYTES + hashes.len());
    if stated == Stated::ShapeAndHashes {
        bytes.extend_from_slice(&before.shape());
    }
    bytes.extend_from_slice(&replaced.to_le_bytes());
    bytes.extend_from_slice(&hashes);
    (stated, bytes)
}

/// A branch at an older height, as far as the differences after it have told.
#[derive(Debug, Default)]
pub(crate) struct Unfolding {
    shape: Option<[u8; SHAPE_BYTES]>,
    /// The children whose hashes are known, as bits.
    known: u16,
    hashes: [B256; CHILDREN_MAX],
}

impl Unfolding {
    /// Adds the next difference, in the order of heights; `None` if these are not the bytes of one.
    pub(crate) fn add(&mut self, stated: Stated, bytes: &[u8]) -> Option<()> {
        let (shape, bytes) = match stated {
            Stated::Hashes => (None, bytes),
            Stated::ShapeAndHashes => {
                let (shape, bytes) = bytes.split_first_chunk()?;
                (Some(*shape), bytes)
            }
        };
        let (replaced, bytes) = bytes.split_first_chunk::<MASK_BYTES>()?;
        let replaced = u16::from_le_bytes(*replaced);
        let (hashes, rest) = bytes.as_chunks::<HASH_BYTES>();
        if !rest.is_empty() || hashes.len() != replaced.count_ones() as usize {
            return None;
        }

        // The first difference that tells of a child tells how it was at the height.
        self.shape = self.shape.or(shape);
        let digits = (0..CHILDREN_MAX).filter(|digit| replaced >> digit & 1 == 1);
        for (digit, hash) in digits.zip(hashes) {
            if self.known >> digit & 1 == 0 {
                self.hashes[digit] = B256::new(*hash);
            }
        }
        self.known |= replaced;
        Some(())
    }

    /// The branch, if the differences tell all of it.
    pub(crate) fn whole<S: Scheme>(&self) -> Option<BranchRecord> {
        let wanted = BranchRecord::hash_mask_of(self.shape?);
        if wanted & !self.known != 0 {
            return None;
        }
        self.build::<S>(None)
    }

    /// The branch, given the record behind the differences; `None` if they contradict each other.
    pub(crate) fn over<S: Scheme>(&self, base: &BranchRecord) -> Option<BranchRecord> {
        self.build::<S>(Some(base))
    }

    fn build<S: Scheme>(&self, base: Option<&BranchRecord>) -> Option<BranchRecord> {
        let shape = self.shape.or(base.map(BranchRecord::shape))?;
        let wanted = BranchRecord::hash_mask_of(shape);
        let mut bytes = vec![BRANCH_TAG];
        bytes.extend_from_slice(&shape);
        for digit in (0..CHILDREN_MAX as u8).filter(|digit| wanted >> digit & 1 == 1) {
            let is_known = self.known >> digit & 1 == 1;
            let of_base = || base.and_then(|base| base.hash_at(digit));
            let hash = if is_known { Some(self.hashes[usize::from(digit)]) } else { of_base() };
            bytes.extend_from_slice(hash?.as_slice());
        }
        BranchRecord::read::<S>(bytes.into()).ok()
    }
}
