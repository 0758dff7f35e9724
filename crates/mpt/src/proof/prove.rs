//! Proofs of a state: updates that change nothing and keep the nodes on the paths of their keys.
//!
//! The update computes the root again. So a proof that would not fit the root of the block is found
//! here, as damage, and not by the light client.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};

use crate::base::account::{Account, EMPTY_STORAGE_ROOT};
use crate::base::error::{Error, Result};
use crate::base::path::Path;
use crate::base::workers::Workers;
use crate::proof::account_proof::{AccountProof, SlotProof};
use crate::scheme::keccak_mpt::{EMPTY_ROOT, KeccakMpt};
use crate::scheme::scheme::Scheme;
use crate::state::at::StateAt;
use crate::state::changes::{slot_leaf, slot_value};
use crate::state::node_cache::NodeCache;
use crate::state::source::{Job, Source};
use crate::state::state::State;
use crate::state::tables::{EntryKind, slot_key};
use crate::trie::update::{Change, Update};

impl State {
    /// Proves an account and some of its slots, or their absence, at the tip.
    ///
    /// Cost: a lookup for the account and a batch for the slots; a batch of lookups for each level
    /// of the two tries.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::Corruption`], [`Error::CorruptEntry`] or
    /// [`Error::CorruptAccount`] if entries, nodes and root disagree on the path.
    pub fn prove(&self, address: &Address, slots: &[B256]) -> Result<AccountProof> {
        let views = self.tables.views()?;
        let root = views.tip()?.map_or(EMPTY_ROOT, |tip| tip.root);
        prove(Source::tip(&views), root, address, slots)
    }
}

impl StateAt {
    /// Proves an account and some of its slots, or their absence, at this height.
    ///
    /// Cost: that of [`State::prove`]; below the tip a seek for each node and entry besides.
    ///
    /// # Errors
    /// The errors of [`State::prove`].
    pub fn prove(&self, address: &Address, slots: &[B256]) -> Result<AccountProof> {
        prove(self.source(), self.block.root, address, slots)
    }
}

fn prove(
    source: Source<'_>,
    root: B256,
    address: &Address,
    slots: &[B256],
) -> Result<AccountProof> {
    let hash = keccak256(address);
    let account = source.accounts(&[hash])?.pop().flatten();
    let change = Change {
        key: hash.to_vec(),
        existed: account.is_some(),
        after: account.map(|account| account.leaf_value()),
    };
    let nodes = encodings(source, None, vec![change], root)?.on_path(hash);
    let slots = prove_slots(source, hash, account, slots)?;
    Ok(AccountProof { address: *address, account, nodes, slots })
}

fn prove_slots(
    source: Source<'_>,
    owner: B256,
    account: Option<Account>,
    slots: &[B256],
) -> Result<Vec<SlotProof>> {
    let root = account.map_or(EMPTY_STORAGE_ROOT, |account| account.storage_root);
    let hashes: Vec<B256> = slots.iter().map(keccak256).collect();
    let keys: Vec<_> = hashes.iter().map(|hash| slot_key(&owner, hash)).collect();
    let found = source.entries(EntryKind::Slot, &keys)?;

    // A slot that is asked for twice is one change.
    let mut changes = BTreeMap::new();
    let mut values = Vec::with_capacity(slots.len());
    for (hash, bytes) in hashes.iter().zip(found) {
        let corrupt = || Error::corrupt_entry("the value of a slot");
        let number = bytes.as_deref().map_or(Some(U256::ZERO), slot_value).ok_or_else(corrupt)?;
        values.push(number);
        let after = bytes.as_deref().map(slot_leaf);
        changes.insert(*hash, Change { key: hash.to_vec(), existed: after.is_some(), after });
    }

    let nodes = if root == EMPTY_STORAGE_ROOT || changes.is_empty() {
        Encodings(Vec::new())
    } else {
        encodings(source, Some(owner), changes.into_values().collect(), root)?
    };
    let slots = slots.iter().zip(hashes).zip(values);
    let proof = |((slot, hash), value): ((&B256, B256), U256)| SlotProof {
        slot: *slot,
        value,
        nodes: nodes.on_path(hash),
    };
    Ok(slots.map(proof).collect())
}

/// Encodings of nodes by the paths where they begin.
#[derive(Debug, Default)]
pub(crate) struct Encodings(pub(crate) Vec<(Path, Vec<u8>)>);

impl Encodings {
    /// Those on the path of a key, from the root down.
    fn on_path(&self, key: B256) -> Vec<Bytes> {
        let key = Path::of_key(key.as_slice(), KeccakMpt::DIGIT_BITS);
        let on_path = self.0.iter().filter(|(path, _)| key.starts_with(path));
        on_path.map(|(_, encoding)| Bytes::copy_from_slice(encoding)).collect()
    }
}

/// The nodes on the paths of touched keys, of a trie that must have this root.
pub(crate) fn encodings(
    source: Source<'_>,
    owner: Option<B256>,
    changes: Vec<Change>,
    root: B256,
) -> Result<Encodings> {
    let mut all = all_encodings(source, vec![(owner, changes, root)])?;
    Ok(all.pop().unwrap_or_default())
}

/// The nodes on the paths of touched keys, of several tries: owner, keys and root. They are the
/// account trie alone, or storage tries.
///
/// Cost: that of [`Source::supply_all`].
pub(crate) fn all_encodings(
    source: Source<'_>,
    tries: Vec<(Option<B256>, Vec<Change>, B256)>,
) -> Result<Vec<Encodings>> {
    let mut jobs = Vec::with_capacity(tries.len());
    let mut roots = Vec::with_capacity(tries.len());
    for (owner, changes, root) in tries {
        let update = Update::<KeccakMpt>::new(changes)?.with_encodings();
        jobs.push(Job { owner, update });
        roots.push(root);
    }

    source.supply_all(&mut jobs, &mut NodeCache::new(0))?;
    let updates = jobs.into_iter().map(|job| job.update).collect();
    let outcomes = Update::finish_all(updates, &Workers::caller())?;
    let mut all = Vec::with_capacity(outcomes.len());
    for (outcome, root) in outcomes.into_iter().zip(roots) {
        if outcome.root != root || !outcome.nodes.is_empty() {
            let what = "nodes that are not those of the entries";
            return Err(Error::corruption(&Path::default(), what));
        }
        all.push(Encodings(outcome.encodings));
    }
    Ok(all)
}
