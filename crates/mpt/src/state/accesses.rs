//! The reads of a block, for its witness.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, B256, keccak256};

/// Accounts, slots and codes that somebody reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Hashes of addresses.
    pub(crate) accounts: BTreeSet<B256>,
    /// Hashes of slots by account. The account is in `accounts` as well.
    pub(crate) slots: BTreeMap<B256, BTreeSet<B256>>,
    pub(crate) codes: BTreeSet<B256>,
}

impl Accesses {
    /// Adds an account.
    pub fn add_account(&mut self, address: &Address) {
        self.accounts.insert(keccak256(address));
    }

    /// Adds a slot, and its account.
    pub fn add_slot(&mut self, address: &Address, slot: &B256) {
        let owner = keccak256(address);
        self.accounts.insert(owner);
        self.slots.entry(owner).or_default().insert(keccak256(slot));
    }

    /// Adds a code by its hash.
    pub fn add_code(&mut self, hash: &B256) {
        self.codes.insert(*hash);
    }
}
