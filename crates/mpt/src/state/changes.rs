//! Change sets: the new values of accounts, slots and codes, by hashed keys.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, U256, keccak256};

use crate::base::account::Account;
use crate::base::keys::hash_all;

/// Changes of accounts, slots and codes, such as those of a block. The last change of an account or
/// slot counts.
#[derive(Debug, Clone, Default)]
pub struct ChangeSet {
    pub(crate) accounts: BTreeMap<B256, AccountChange>,
    /// Codes to store, or to forget.
    pub(crate) codes: BTreeMap<B256, Option<Vec<u8>>>,
    /// The address that was named last, and its hash.
    last: Option<(Address, B256)>,
}

impl ChangeSet {
    /// Sets nonce, balance and code hash of an account. Its storage root is not taken: it follows
    /// from its slots.
    pub fn set_account(&mut self, address: Address, account: &Account) {
        self.change_of(address).account = Fate::Set(*account);
    }

    /// Sets a slot; zero deletes it. The account must exist after the changes.
    pub fn set_slot(&mut self, address: Address, slot: B256, value: U256) {
        self.change_of(address).slots.insert(keccak256(slot), value);
    }

    /// Sets slots of one account, as [`set_slot`](Self::set_slot) each. Many slots are hashed
    /// faster together.
    pub fn set_slots(&mut self, address: Address, slots: &[(B256, U256)]) {
        let hashes = hash_all(slots.iter().map(|(slot, _)| slot.as_slice()));
        let values = slots.iter().map(|(_, value)| *value);
        self.change_of(address).slots.extend(hashes.into_iter().zip(values));
    }

    /// Adds code and returns its hash, which an account may name.
    pub fn set_code(&mut self, code: &[u8]) -> B256 {
        let hash = keccak256(code);
        if !code.is_empty() {
            self.codes.insert(hash, Some(code.to_vec()));
        }
        hash
    }

    /// Deletes an account with all its storage. Account and slots that are set afterwards are those
    /// of a new account.
    pub fn delete_account(&mut self, address: Address) {
        let change = self.change_of(address);
        change.is_wiped = true;
        change.account = Fate::Gone;
        change.slots.clear();
    }

    /// The change of an account. Calls for one account mostly come in a row: its address is hashed
    /// once.
    fn change_of(&mut self, address: Address) -> &mut AccountChange {
        let known = self.last.filter(|(last, _)| *last == address);
        let hash = known.map_or_else(|| keccak256(address), |(_, hash)| hash);
        self.last = Some((address, hash));
        self.accounts.entry(hash).or_default()
    }
}

/// Changes of one account.
#[derive(Debug, Clone, Default)]
pub(crate) struct AccountChange {
    /// Whether all slots go before those of `slots` are set.
    pub(crate) is_wiped: bool,
    /// The account after the block, but for its storage root.
    pub(crate) account: Fate,
    /// New values; zero deletes.
    pub(crate) slots: BTreeMap<B256, U256>,
}

/// An account after a block.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Fate {
    /// Not changed.
    #[default]
    Kept,
    Set(Account),
    Gone,
}

impl Fate {
    /// The account after the block, given the account before.
    pub(crate) fn after(self, before: Option<Account>) -> Option<Account> {
        match self {
            Self::Kept => before,
            Self::Set(account) => Some(account),
            Self::Gone => None,
        }
    }
}

/// The stored form of a slot's value, which is not zero.
pub(crate) fn slot_bytes(value: &U256) -> Vec<u8> {
    value.to_be_bytes_trimmed_vec()
}

/// The value of a slot from its stored form.
pub(crate) fn slot_value(bytes: &[u8]) -> Option<U256> {
    let is_minimal = bytes.first().is_some_and(|first| *first != 0) && bytes.len() <= 32;
    is_minimal.then(|| U256::from_be_slice(bytes))
}

/// The value of a slot's leaf, from its stored form.
pub(crate) fn slot_leaf(bytes: &[u8]) -> Vec<u8> {
    alloy_rlp::encode(bytes)
}
