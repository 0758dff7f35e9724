//! Answers to updates: records and entries of a state, one batch for each level of all tries.

use alloy_primitives::B256;
use terrane_lsm::{Lookup, Table};

use crate::base::account::Account;
use crate::base::error::{Error, Result};
use crate::base::path::Path;
use crate::scheme::keccak_mpt::KeccakMpt;
use crate::scheme::scheme::Scheme;
use crate::state::changes::slot_leaf;
use crate::state::tables::{Views, slot_key, storage_node_key};
use crate::trie::update::{Answer, LEAVES_MAX, Update, Want};

/// The update of one trie of a state.
pub(crate) struct Job {
    /// Whose storage it is; `None` for the account trie.
    pub(crate) owner: Option<B256>,
    pub(crate) update: Update<KeccakMpt>,
}

/// Supplies all that the updates want. The jobs are of the account trie or of storage tries, not of
/// both.
///
/// Cost: for each level of the deepest trie one batch of lookups; a cursor for each place where a
/// leaf is split or moves up.
pub(crate) fn supply_all(views: &Views, jobs: &mut [Job]) -> Result<()> {
    loop {
        let wants =
            || jobs.iter().flat_map(|job| job.update.wanted().iter().map(|want| (job.owner, want)));
        let node_keys: Vec<Vec<u8>> = wants()
            .filter_map(|(owner, want)| match want {
                Want::Node(path) => Some(node_key(owner.as_ref(), path)),
                _ => None,
            })
            .collect();
        if wants().next().is_none() {
            return Ok(());
        }

        let nodes = match jobs.first() {
            Some(Job { owner: Some(_), .. }) => &views.storage_nodes,
            _ => &views.account_nodes,
        };
        let mut found = nodes.get_many(&node_keys)?.into_iter();
        for job in jobs.iter_mut() {
            let answers: Result<Vec<Answer>> = job
                .update
                .wanted()
                .iter()
                .map(|want| match want {
                    Want::Node(_) => Ok(Answer::Node(found.next().as_ref().and_then(value))),
                    Want::Leaves(path) => leaves(views, job.owner.as_ref(), path),
                    // All keys have 32 bytes, so none ends at a branch.
                    Want::Value(path) => Err(Error::corruption(path, "a value in a branch")),
                })
                .collect();
            if !job.update.wanted().is_empty() {
                job.update.supply(answers?)?;
            }
        }
    }
}

/// The value of a lookup in memory of its own.
pub(crate) fn value(lookup: &Lookup) -> Option<Vec<u8>> {
    lookup.value().map(<[u8]>::to_vec)
}

fn node_key(owner: Option<&B256>, path: &Path) -> Vec<u8> {
    match owner {
        Some(owner) => storage_node_key(owner, path),
        None => path.to_vec(),
    }
}

/// The leaves below a path.
fn leaves(views: &Views, owner: Option<&B256>, path: &Path) -> Result<Answer> {
    let (start, end) = path.key_range(KeccakMpt::DIGIT_BITS);
    let mut leaves = Vec::new();
    match owner {
        None => scan(&views.accounts, &[], &start, end.as_deref(), |key, value| {
            leaves.push((key.to_vec(), Account::from_slim(value)?.leaf_value()));
            Ok(())
        })?,
        Some(owner) => {
            scan(&views.slots, owner.as_slice(), &start, end.as_deref(), |key, value| {
                leaves.push((key.to_vec(), slot_leaf(value)));
                Ok(())
            })?;
        }
    }
    Ok(Answer::Leaves(leaves))
}

/// Reads the first entries whose keys are `prefix` and a key in a range, without the prefix.
fn scan(
    table: &Table,
    prefix: &[u8],
    start: &[u8],
    end: Option<&[u8]>,
    mut each: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let mut cursor = table.cursor_at(&[prefix, start].concat())?;
    for _ in 0..=LEAVES_MAX {
        let Some(record) = cursor.next_ref()? else { return Ok(()) };
        let Some(key) = record.key.strip_prefix(prefix) else { return Ok(()) };
        if end.is_some_and(|end| end <= key) {
            return Ok(());
        }
        each(key, record.value)?;
    }
    Ok(())
}

/// Calls `each` with the slots of an account, in order.
///
/// Cost: a cursor over the slots.
pub(crate) fn each_slot(
    slots: &Table,
    account: &B256,
    mut each: impl FnMut(B256, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut cursor = slots.cursor_at(&slot_key(account, &B256::ZERO))?;
    while let Some(record) = cursor.next_ref()? {
        let Some(slot) = record.key.strip_prefix(account.as_slice()) else { break };
        let slot = B256::try_from(slot).map_err(|_| Error::corrupt_entry("the key of a slot"))?;
        each(slot, record.value)?;
    }
    Ok(())
}
