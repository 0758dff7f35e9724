//! The witness of a block, from the state before it.
//!
//! The nodes on the paths of everything that the block has read or changes are a start. A deletion
//! may leave a branch with one child that nothing else touches; the stateless state names such
//! nodes when it applies the changes, and they are added until it names none. So what the recorder
//! gives away was tried with the code of the verifier, and gave the same root.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{B256, Bytes, keccak256};

use crate::base::account::{Account, EMPTY_CODE_HASH, EMPTY_STORAGE_ROOT};
use crate::base::error::{Error, Result};
use crate::base::path::Path;
use crate::proof::prove::{Encodings, all_encodings, encodings};
use crate::proof::range::NodeSet;
use crate::scheme::keccak_mpt::EMPTY_ROOT;
use crate::state::accesses::Accesses;
use crate::state::at::StateAt;
use crate::state::block::BlockBatch;
use crate::state::changes::{ChangeSet, slot_leaf};
use crate::state::source::{Source, value};
use crate::state::tables::{EntryKind, slot_key};
use crate::trie::update::Change;
use crate::witness::stateless::{MissingNode, StatelessState};
use crate::witness::witness::{Witness, WitnessError};

/// Rounds after which a state that still lacks nodes is damaged. A node that a deletion needs is
/// the last one that this branch needs, so two rounds are enough.
const ROUNDS_MAX: usize = 8;

impl BlockBatch<'_> {
    /// Makes the witness of what the batch has read and changes so far, with these headers, the
    /// parent's last. Reads of the state that do not go through the batch are not in it.
    ///
    /// Cost: that of a proof of all these accounts and slots; computes the root of the changes.
    ///
    /// # Errors
    /// The errors of [`commit`](Self::commit); [`Error::Corruption`] if the state is damaged on the
    /// paths of the witness.
    pub fn witness(&self, headers: &[Bytes]) -> Result<Witness> {
        let root = self.views.tip()?.map_or(EMPTY_ROOT, |tip| tip.root);
        record(Source::tip(&self.views), root, &self.reads, &self.changes, headers)
    }
}

impl StateAt {
    /// Makes the witness of reads of this state, and of changes to it, with these headers.
    ///
    /// Cost: that of [`BlockBatch::witness`]; below the tip a seek for each node and entry besides.
    ///
    /// # Errors
    /// The errors of [`BlockBatch::witness`].
    pub fn witness(
        &self,
        reads: &Accesses,
        changes: &ChangeSet,
        headers: &[Bytes],
    ) -> Result<Witness> {
        record(self.source(), self.block.root, reads, changes, headers)
    }
}

fn record(
    source: Source<'_>,
    root: B256,
    reads: &Accesses,
    changes: &ChangeSet,
    headers: &[Bytes],
) -> Result<Witness> {
    let nodes = record_nodes(source, root, reads, changes)?;
    let mut codes = Vec::new();
    for hash in reads.codes.iter().filter(|hash| **hash != EMPTY_CODE_HASH) {
        codes.extend(value(source.views.code.get(hash.as_slice())?).map(Bytes::from));
    }
    Ok(Witness::new(nodes.into_list(), codes, headers.to_vec()))
}

fn record_nodes(
    source: Source<'_>,
    root: B256,
    reads: &Accesses,
    changes: &ChangeSet,
) -> Result<NodeSet> {
    let mut nodes = NodeSet::default();
    if root != EMPTY_ROOT {
        let touched = reads.accounts.iter().chain(changes.accounts.keys());
        let touched: BTreeSet<B256> = touched.copied().collect();
        let hashes: Vec<B256> = touched.into_iter().collect();
        let accounts = source.accounts(&hashes)?;
        add_accounts(source, root, &hashes, &accounts, &mut nodes)?;
        add_slots(source, reads, changes, hashes.iter().zip(&accounts), &mut nodes)?;
    }

    // The verifier's own code says what a deletion needs besides.
    let mut stateless = StatelessState::of_nodes(root, nodes);
    let corrupt = || Error::corruption(&Path::default(), "nodes that a witness does not find");
    for _ in 0..ROUNDS_MAX {
        let mut missing = Vec::new();
        let applied = stateless.try_apply(changes, &mut missing);
        if missing.is_empty() {
            return match applied {
                Ok(_) => Ok(stateless.into_nodes()),
                Err(WitnessError::SlotWithoutAccount { account }) => {
                    Err(Error::SlotWithoutAccount { account })
                }
                Err(_) => Err(corrupt()),
            };
        }
        for node in missing {
            add_missing(source, root, &node, stateless.nodes())?;
        }
    }
    Err(corrupt())
}

/// Adds the nodes on the paths of accounts.
fn add_accounts(
    source: Source<'_>,
    root: B256,
    hashes: &[B256],
    accounts: &[Option<Account>],
    nodes: &mut NodeSet,
) -> Result<()> {
    let touch = |(hash, account): (&B256, &Option<Account>)| Change {
        key: hash.to_vec(),
        existed: account.is_some(),
        after: account.map(|account| account.leaf_value()),
    };
    let touched = hashes.iter().zip(accounts).map(touch).collect();
    add(encodings(source, None, touched, root)?, nodes);
    Ok(())
}

/// Adds the nodes on the paths of slots, of all accounts together.
fn add_slots<'a>(
    source: Source<'_>,
    reads: &Accesses,
    changes: &ChangeSet,
    accounts: impl Iterator<Item = (&'a B256, &'a Option<Account>)>,
    nodes: &mut NodeSet,
) -> Result<()> {
    let mut roots = BTreeMap::new();
    let mut touched: Vec<(B256, B256)> = Vec::new();
    for (hash, account) in accounts {
        let root = account.map_or(EMPTY_STORAGE_ROOT, |account| account.storage_root);
        if root == EMPTY_STORAGE_ROOT {
            continue;
        }
        // Slots that are set after a wipe are those of an empty trie.
        let changed = changes.accounts.get(hash).filter(|change| !change.is_wiped);
        let changed = changed.into_iter().flat_map(|change| change.slots.keys());
        let read = reads.slots.get(hash).into_iter().flatten();
        let slots: BTreeSet<B256> = changed.chain(read).copied().collect();
        if !slots.is_empty() {
            roots.insert(*hash, root);
            touched.extend(slots.into_iter().map(|slot| (*hash, slot)));
        }
    }

    let keys: Vec<_> = touched.iter().map(|(owner, slot)| slot_key(owner, slot)).collect();
    let values = source.entries(EntryKind::Slot, &keys)?;
    let mut by_owner: BTreeMap<B256, Vec<Change>> = BTreeMap::new();
    for ((owner, slot), bytes) in touched.into_iter().zip(values) {
        let after = bytes.as_deref().map(slot_leaf);
        let change = Change { key: slot.to_vec(), existed: after.is_some(), after };
        by_owner.entry(owner).or_default().push(change);
    }
    let jobs = by_owner.into_iter().map(|(owner, changes)| (Some(owner), changes, roots[&owner]));
    for found in all_encodings(source, jobs.collect())? {
        add(found, nodes);
    }
    Ok(())
}

/// Adds one node, which is found by an entry below it.
fn add_missing(
    source: Source<'_>,
    root: B256,
    node: &MissingNode,
    nodes: &mut NodeSet,
) -> Result<()> {
    let corrupt = || Error::corruption(&node.path, "a node that no entry is below");
    let root = match node.owner {
        None => root,
        Some(owner) => {
            let account = source.accounts(&[owner])?.pop().flatten();
            account.ok_or_else(corrupt)?.storage_root
        }
    };
    let leaves = source.leaves(&[(node.owner.as_ref(), &node.path)])?;
    let (key, leaf) = leaves.into_iter().flatten().next().ok_or_else(corrupt)?;
    let touch = Change { key, existed: true, after: Some(leaf) };
    let Encodings(found) = encodings(source, node.owner, vec![touch], root)?;
    let encoding = found.into_iter().find(|(_, encoding)| keccak256(encoding) == node.hash);
    let (_, encoding) = encoding.ok_or_else(corrupt)?;
    nodes.insert(Bytes::from(encoding));
    Ok(())
}

fn add(Encodings(found): Encodings, nodes: &mut NodeSet) {
    for (_, encoding) in found {
        nodes.insert(Bytes::from(encoding));
    }
}
