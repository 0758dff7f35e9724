//! Ranges of accounts and of slots, and their proofs.
//!
//! A range goes from its start to its last entry, or to the last key of all if it has no entries or
//! no nodes. A range without nodes is the whole trie, so it needs no proof beside its entries.

use alloy_primitives::{B256, Bytes, U256};

use crate::base::account::{Account, EMPTY_STORAGE_ROOT};
use crate::base::error::{Error, Result};
use crate::base::proof_error::ProofError;
use crate::proof::prove::{Encodings, encodings};
use crate::proof::range::{NodeSet, TrieRange};
use crate::state::at::StateAt;
use crate::state::changes::{slot_bytes, slot_leaf, slot_value};
use crate::state::tables::EntryKind;
use crate::trie::update::Change;

/// All accounts of a state from one hash of an address on, up to some account or to the last one.
///
/// The fields are what the range states; [`verify`](Self::verify) says whether it proves them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccountRange {
    /// The first hash of an address that belongs to the range, whether or not it is of an account.
    pub start: B256,
    /// The accounts by the hashes of their addresses, ascending.
    pub accounts: Vec<(B256, Account)>,
    /// The nodes of the account trie in which the bounds lie, in the order of their hashes.
    pub nodes: Vec<Bytes>,
}

/// All slots of an account from one hash of a slot on, up to some slot or to the last one.
///
/// The fields are what the range states; [`verify`](Self::verify) says whether it proves them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageRange {
    /// Hash of the address. No part of what is proved: the storage root is.
    pub account: B256,
    /// The first hash of a slot that belongs to the range, whether or not it has a value.
    pub start: B256,
    /// The values by the hashes of their slots, ascending; none is zero.
    pub slots: Vec<(B256, U256)>,
    /// The nodes of the storage trie in which the bounds lie, in the order of their hashes.
    pub nodes: Vec<Bytes>,
}

impl AccountRange {
    /// Makes a range of what somebody states.
    #[must_use]
    pub fn new(start: B256, accounts: Vec<(B256, Account)>, nodes: Vec<Bytes>) -> Self {
        Self { start, accounts, nodes }
    }

    /// Checks the range against the root of a state. On success the accounts are exactly those of
    /// the state from the start to the last one. Returns whether the state has accounts above.
    /// If it does not, or if the range has no accounts, the range ends with the last account of
    /// all. Nodes that are not needed are not looked at.
    ///
    /// Cost: no I/O; hashes each node once, and the nodes that only the range has.
    ///
    /// # Errors
    /// [`ProofError`].
    pub fn verify(&self, root: B256) -> std::result::Result<bool, ProofError> {
        let leaf = |(hash, account): &(B256, Account)| (*hash, account.leaf_value());
        let entries: Vec<_> = self.accounts.iter().map(leaf).collect();
        verify_entries(root, self.start, &entries, &self.nodes)
    }
}

impl StorageRange {
    /// Makes a range of what somebody states.
    #[must_use]
    pub fn new(account: B256, start: B256, slots: Vec<(B256, U256)>, nodes: Vec<Bytes>) -> Self {
        Self { account, start, slots, nodes }
    }

    /// Checks the range against the root of a storage trie, as [`AccountRange::verify`] does.
    ///
    /// Cost: that of [`AccountRange::verify`].
    ///
    /// # Errors
    /// [`ProofError`].
    pub fn verify(&self, storage_root: B256) -> std::result::Result<bool, ProofError> {
        // A slot of value zero has no entry, so a range that states one is refused as empty.
        let leaf = |(slot, value): &(B256, U256)| {
            let leaf = if value.is_zero() { Vec::new() } else { slot_leaf(&slot_bytes(value)) };
            (*slot, leaf)
        };
        let entries: Vec<_> = self.slots.iter().map(leaf).collect();
        verify_entries(storage_root, self.start, &entries, &self.nodes)
    }
}

fn verify_entries(
    root: B256,
    start: B256,
    entries: &[(B256, Vec<u8>)],
    nodes: &[Bytes],
) -> std::result::Result<bool, ProofError> {
    let end = match entries.last() {
        Some((last, _)) if !nodes.is_empty() => *last,
        _ => B256::repeat_byte(0xff),
    };
    TrieRange { start, end, entries }.verify(root, &NodeSet::of(nodes))
}

impl StateAt {
    /// The accounts from `start` on, at most `limit` and at least one if there is one, with their
    /// proof.
    ///
    /// Cost: a cursor over the range; the nodes on the paths of its bounds, as for two proofs.
    ///
    /// # Errors
    /// The errors of [`State::prove`](crate::State::prove).
    pub fn account_range(&self, start: B256, limit: usize) -> Result<AccountRange> {
        let mut accounts = Vec::new();
        let limit = limit.max(1);
        let scanned = limit.saturating_add(1);
        self.source().scan(
            EntryKind::Account,
            &[],
            start.as_slice(),
            None,
            scanned,
            |key, bytes| {
                let hash = B256::try_from(key);
                let hash = hash.map_err(|_| Error::corrupt_entry("the key of an account"))?;
                accounts.push((hash, Account::from_slim(bytes)?));
                Ok(())
            },
        )?;

        let is_whole = start == B256::ZERO && accounts.len() <= limit;
        accounts.truncate(limit);
        let leaves = [accounts.first(), accounts.last()].map(|bound| {
            bound.map(|(hash, account): &(B256, Account)| (*hash, account.leaf_value()))
        });
        let nodes = if is_whole {
            Vec::new()
        } else {
            self.bound_nodes(None, start, leaves, self.block.root)?
        };
        Ok(AccountRange { start, accounts, nodes })
    }

    /// The slots of an account from `start` on, at most `limit` and at least one if there is one,
    /// with their proof against the storage root of the account.
    ///
    /// Cost: that of [`account_range`](Self::account_range), and a lookup of the account.
    ///
    /// # Errors
    /// The errors of [`State::prove`](crate::State::prove).
    pub fn storage_range(&self, account: B256, start: B256, limit: usize) -> Result<StorageRange> {
        let found = self.source().accounts(&[account])?.pop().flatten();
        let root = found.map_or(EMPTY_STORAGE_ROOT, |account| account.storage_root);
        let mut slots = Vec::new();
        let limit = limit.max(1);
        let scanned = limit.saturating_add(1);
        let (prefix, first) = (account.as_slice(), start.as_slice());
        self.source().scan(EntryKind::Slot, prefix, first, None, scanned, |key, bytes| {
            let corrupt = || Error::corrupt_entry("a slot");
            let slot = B256::try_from(key).map_err(|_| corrupt())?;
            slots.push((slot, slot_value(bytes).ok_or_else(corrupt)?));
            Ok(())
        })?;

        let is_whole = start == B256::ZERO && slots.len() <= limit;
        slots.truncate(limit);
        let leaves = [slots.first(), slots.last()].map(|bound| {
            bound.map(|(slot, value): &(B256, U256)| (*slot, slot_leaf(&slot_bytes(value))))
        });
        let nodes = if is_whole {
            Vec::new()
        } else {
            self.bound_nodes(Some(account), start, leaves, root)?
        };
        Ok(StorageRange { account, start, slots, nodes })
    }

    /// The nodes on the paths of the start and of the last entry of a range. `bounds` are its first
    /// and its last entry.
    fn bound_nodes(
        &self,
        owner: Option<B256>,
        start: B256,
        [first, last]: [Option<(B256, Vec<u8>)>; 2],
        root: B256,
    ) -> Result<Vec<Bytes>> {
        if root == EMPTY_STORAGE_ROOT {
            return Ok(Vec::new());
        }
        let touch = |(key, leaf): (B256, Option<Vec<u8>>)| Change {
            key: key.to_vec(),
            existed: leaf.is_some(),
            after: leaf,
        };
        let at_start = first.filter(|(key, _)| *key == start).map(|(_, leaf)| leaf);
        let mut touched = vec![touch((start, at_start))];
        if let Some((key, leaf)) = last.filter(|(key, _)| *key != start) {
            touched.push(touch((key, Some(leaf))));
        }

        let Encodings(found) = encodings(self.source(), owner, touched, root)?;
        let mut nodes = NodeSet::default();
        for (_, encoding) in found {
            nodes.insert(Bytes::from(encoding));
        }
        Ok(nodes.into_list())
    }
}
