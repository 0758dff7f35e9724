//! Proofs of an account and some of its slots (EIP-1186).

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_rlp::Decodable;

use crate::base::account::{Account, EMPTY_STORAGE_ROOT};
use crate::base::proof_error::ProofError;
use crate::proof::walk::verify_proof;

/// A proof of an account, or of its absence, and of some of its slots.
///
/// The fields are what the proof states; [`verify`](Self::verify) says whether it proves them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccountProof {
    /// The address.
    pub address: Address,
    /// The account; `None` if it does not exist.
    pub account: Option<Account>,
    /// The nodes of the account trie on its path, from the root down.
    pub nodes: Vec<Bytes>,
    /// The slots, in the order in which they were asked for.
    pub slots: Vec<SlotProof>,
}

/// A proof of a slot, or of its absence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotProof {
    /// The slot.
    pub slot: B256,
    /// Its value; zero if it has no entry.
    pub value: U256,
    /// The nodes of the storage trie on its path, from the root down.
    pub nodes: Vec<Bytes>,
}

impl AccountProof {
    /// Checks the proof against the root of a state. On success, every field is a fact of that
    /// state.
    ///
    /// Cost: no I/O; hashes each node once.
    ///
    /// # Errors
    /// [`ProofError`].
    pub fn verify(&self, root: B256) -> Result<(), ProofError> {
        let value = verify_proof(root, keccak256(self.address).as_slice(), &self.nodes)?;
        let account = value
            .map(|value| Account::from_leaf_value(&value))
            .transpose()
            .map_err(|_| ProofError::NotANode { index: self.nodes.len().saturating_sub(1) })?;
        if account != self.account {
            return Err(ProofError::Disagrees { field: "account" });
        }

        let storage_root = account.map_or(EMPTY_STORAGE_ROOT, |account| account.storage_root);
        for slot in &self.slots {
            let value = verify_proof(storage_root, keccak256(slot.slot).as_slice(), &slot.nodes)?;
            if slot_of_leaf(value.as_deref()) != Some(slot.value) {
                return Err(ProofError::Disagrees { field: "value of a slot" });
            }
        }
        Ok(())
    }
}

/// The value of a leaf of a storage trie. A zero has no leaf.
pub(crate) fn slot_of_leaf(leaf: Option<&[u8]>) -> Option<U256> {
    let Some(mut leaf) = leaf else { return Some(U256::ZERO) };
    let value = U256::decode(&mut leaf).ok()?;
    (leaf.is_empty() && !value.is_zero()).then_some(value)
}
