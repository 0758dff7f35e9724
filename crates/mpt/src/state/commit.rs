//! From a change set to one batch of the store.
//!
//! Two phases, since the leaf of an account holds its storage root: all storage tries side by side,
//! then the account trie. Nothing is written before both have their roots.

use std::collections::BTreeMap;

use alloy_primitives::{B256, U256};
use terrane_lsm::{NamedTable, WriteBatch};

use crate::base::account::{Account, EMPTY_STORAGE_ROOT};
use crate::base::error::{Error, Result};
use crate::base::path::Path;
use crate::scheme::keccak_mpt::KeccakMpt;
use crate::state::changes::{AccountChange, ChangeSet, slot_bytes, slot_leaf, slot_value};
use crate::state::source::{Job, each_slot, supply_all, value};
use crate::state::tables::{
    EntryKind, Tables, Views, change_key, change_value, slot_key, storage_node_key,
};
use crate::trie::record::Record;
use crate::trie::update::{Change, Outcome, Update};

/// A change set that is ready to be written.
pub(crate) struct Prepared {
    pub(crate) root: B256,
    pub(crate) batch: WriteBatch,
}

/// An account on its way through the phases.
struct Touched {
    hash: B256,
    before: Option<Account>,
    after: Option<Account>,
    slots: BTreeMap<B256, TouchedSlot>,
    /// Whether all slots and nodes go first.
    is_wiped: bool,
}

/// The stored values of a slot that changes.
#[derive(PartialEq, Eq)]
struct TouchedSlot {
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
}

/// Computes the root and the batch of a change set, against the views. With `height`, the batch
/// keeps the values before, for a way back over this height.
///
/// Cost: a batch of lookups for accounts, one for slots, and those of
/// [`supply_all`] for the storage tries and for the account trie; a cursor over the slots of each
/// wiped account.
pub(crate) fn prepare(
    tables: &Tables,
    views: &Views,
    changes: ChangeSet,
    height: Option<u64>,
) -> Result<Prepared> {
    let mut writer = Writer { tables, height, batch: WriteBatch::new() };
    let mut touched = read_before(views, changes.accounts)?;
    update_storage(views, &mut touched, &mut writer)?;

    for account in &touched {
        let is_orphaned = account.slots.values().any(|slot| slot.after.is_some());
        if account.after.is_none() && is_orphaned {
            return Err(Error::SlotWithoutAccount { account: account.hash });
        }
    }
    touched.retain(|account| account.before != account.after);

    let change = |account: &Touched| Change {
        key: account.hash.to_vec(),
        existed: account.before.is_some(),
        after: account.after.map(|account| account.leaf_value()),
    };
    let update = Update::new(touched.iter().map(change).collect())?;
    let mut jobs = [Job { owner: None, update }];
    supply_all(views, &mut jobs)?;
    let [Job { update, .. }] = jobs;
    let outcome = update.finish()?;

    writer.nodes(&tables.account_nodes, outcome.nodes, |path| path.to_vec());
    for account in &touched {
        let slim = |account: &Option<Account>| account.map(|account| account.to_slim());
        let (before, after) = (slim(&account.before), slim(&account.after));
        let key = account.hash.as_slice();
        writer.undo(EntryKind::Account, key, before.as_deref());
        writer.entry(EntryKind::Account, key, after.as_deref());
    }
    write_codes(views, changes.codes, &mut writer)?;
    Ok(Prepared { root: outcome.root, batch: writer.batch })
}

/// Reads accounts and slots as they are, and leaves out what does not change.
fn read_before(views: &Views, changes: BTreeMap<B256, AccountChange>) -> Result<Vec<Touched>> {
    let hashes: Vec<B256> = changes.keys().copied().collect();
    let accounts = views.accounts.get_many(&hashes)?;
    let slot_keys = changes
        .iter()
        .flat_map(|(account, change)| change.slots.keys().map(|slot| slot_key(account, slot)));
    let slot_keys: Vec<_> = slot_keys.collect();
    let mut slots_before = views.slots.get_many(&slot_keys)?.into_iter();

    let mut touched = Vec::with_capacity(hashes.len());
    for ((hash, change), before) in changes.into_iter().zip(accounts) {
        let before = before.value().map(Account::from_slim).transpose()?;
        let mut slots = BTreeMap::new();
        let has_storage = before.is_some_and(|account| account.storage_root != EMPTY_STORAGE_ROOT);
        let is_wiped = change.is_wiped && has_storage;
        if is_wiped {
            each_slot(&views.slots, &hash, |slot, value| {
                slots.insert(slot, TouchedSlot { before: Some(value.to_vec()), after: None });
                Ok(())
            })?;
        }
        for (slot, after) in change.slots {
            let before = slots_before.next().as_ref().and_then(value);
            check_slot(before.as_deref())?;
            let after = (after != U256::ZERO).then(|| slot_bytes(&after));
            slots.insert(slot, TouchedSlot { before, after });
        }
        // After a wipe, a slot of the same value as before is written again.
        slots.retain(|_, slot| is_wiped || slot.before != slot.after);

        let after = change.account.after(before);
        touched.push(Touched { hash, before, after, slots, is_wiped });
    }
    Ok(touched)
}

fn check_slot(bytes: Option<&[u8]>) -> Result<()> {
    let is_value = bytes.is_none_or(|bytes| slot_value(bytes).is_some());
    is_value.then_some(()).ok_or(Error::corrupt_entry("the value of a slot"))
}

/// Updates the storage tries, writes slots and nodes, and sets the storage roots of `touched`.
fn update_storage(views: &Views, touched: &mut [Touched], writer: &mut Writer<'_>) -> Result<()> {
    let tables = writer.tables;
    let mut jobs = Vec::new();
    for account in &mut *touched {
        let root = account.before.map_or(EMPTY_STORAGE_ROOT, |account| account.storage_root);
        if let Some(after) = &mut account.after {
            after.storage_root = root;
        }
        if account.slots.is_empty() && !account.is_wiped {
            continue;
        }
        let is_new = account.is_wiped || root == EMPTY_STORAGE_ROOT;
        let changes = account.slots.iter().filter_map(|(slot, TouchedSlot { before, after })| {
            let existed = before.is_some() && !is_new;
            let after = after.as_ref().map(|value| slot_leaf(value));
            let is_change = existed || after.is_some();
            is_change.then(|| Change { key: slot.to_vec(), existed, after })
        });
        let changes = changes.collect();
        let update = if is_new { Update::on_empty(changes)? } else { Update::new(changes)? };
        jobs.push(Job { owner: Some(account.hash), update });
    }

    supply_all(views, &mut jobs)?;
    let mut outcomes: BTreeMap<B256, Outcome> = BTreeMap::new();
    for Job { owner, update } in jobs {
        let owner = owner.expect("a storage trie has an owner");
        outcomes.insert(owner, update.finish()?);
    }

    for account in touched {
        let Some(outcome) = outcomes.remove(&account.hash) else { continue };
        if let Some(after) = &mut account.after {
            after.storage_root = outcome.root;
        }
        if account.is_wiped {
            writer.batch.delete_prefix(&tables.slots, account.hash);
            writer.batch.delete_prefix(&tables.storage_nodes, account.hash);
        }
        let key = |path: &Path| storage_node_key(&account.hash, path);
        writer.nodes(&tables.storage_nodes, outcome.nodes, key);
        for (slot, TouchedSlot { before, after }) in &account.slots {
            let key = slot_key(&account.hash, slot);
            writer.undo(EntryKind::Slot, &key, before.as_deref());
            // The deleted range covers the slots that go with a wipe.
            if after.is_some() || !account.is_wiped {
                writer.entry(EntryKind::Slot, &key, after.as_deref());
            }
        }
    }
    Ok(())
}

fn write_codes(
    views: &Views,
    codes: BTreeMap<B256, Option<Vec<u8>>>,
    writer: &mut Writer<'_>,
) -> Result<()> {
    let hashes: Vec<B256> = codes.keys().copied().collect();
    let found = views.code.get_many(&hashes)?;
    for ((hash, code), before) in codes.into_iter().zip(found) {
        let before = before.value();
        if before.is_some() != code.is_some() {
            writer.undo(EntryKind::Code, hash.as_slice(), before);
            writer.entry(EntryKind::Code, hash.as_slice(), code.as_deref());
        }
    }
    Ok(())
}

/// The batch of a commit.
struct Writer<'t> {
    tables: &'t Tables,
    height: Option<u64>,
    batch: WriteBatch,
}

impl Writer<'_> {
    fn nodes(
        &mut self,
        table: &NamedTable,
        nodes: Vec<(Path, Option<Record>)>,
        key: impl Fn(&Path) -> Vec<u8>,
    ) {
        for (path, record) in nodes {
            match record {
                Some(record) => self.batch.insert(table, key(&path), record.to_bytes()),
                None => self.batch.delete(table, key(&path)),
            }
        }
    }

    /// Writes a flat entry.
    fn entry(&mut self, kind: EntryKind, key: &[u8], after: Option<&[u8]>) {
        let table = match kind {
            EntryKind::Account => &self.tables.accounts,
            EntryKind::Slot => &self.tables.slots,
            EntryKind::Code => &self.tables.code,
        };
        match after {
            Some(value) => self.batch.insert(table, key, value),
            None => self.batch.delete(table, key),
        }
    }

    /// Keeps the value of an entry before the block.
    fn undo(&mut self, kind: EntryKind, key: &[u8], before: Option<&[u8]>) {
        if let Some(height) = self.height {
            let key = change_key(height, kind, key);
            self.batch.insert(&self.tables.changes, key, change_value(before));
        }
    }
}

/// The root of the account trie in the views, from its nodes alone.
///
/// Cost: a lookup, and a cursor if the trie has no record.
pub(crate) fn stored_root(views: &Views) -> Result<B256> {
    let mut jobs = [Job { owner: None, update: Update::<KeccakMpt>::new(Vec::new())? }];
    supply_all(views, &mut jobs)?;
    let [Job { update, .. }] = jobs;
    Ok(update.finish()?.root)
}
