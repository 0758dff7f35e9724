//! From a change set to one batch of the store.
//!
//! All tries go down together, a batch of lookups for each level. They come up in two phases, since
//! the leaf of an account holds its storage root: all storage tries side by side, then the account
//! trie. Nothing is written before both have their roots.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use alloy_primitives::{B256, U256};
use terrane_lsm::WriteBatch;

use crate::base::account::{Account, EMPTY_STORAGE_ROOT};
use crate::base::error::{Error, Result};
use crate::base::path::Path;
use crate::base::workers::Workers;
use crate::scheme::keccak_mpt::KeccakMpt;
use crate::state::changes::{AccountChange, ChangeSet, slot_bytes, slot_leaf, slot_value};
use crate::state::known::Known;
use crate::state::node_cache::{NodeCache, NodeChanges, NodeKind};
use crate::state::source::{Job, Source, each_slot, read_accounts};
use crate::state::tables::{
    EntryKind, PATHS_MAX, TableSet, Tables, Views, change_key, change_value, height_key, list_key,
    node_change_value, node_history_key, node_key, node_path, put_path, slot_key,
    value_history_key,
};
use crate::trie::record::Record;
use crate::trie::update::{Change, NodeChange, Outcome, Update};

/// One change of a node in this many keeps a whole copy, so that a read at an older height goes
/// through as many differences on average.
const COPY_ONE_OF: u64 = 32;

/// Fewest visits of updates for which a thread is woken.
const SHARE_VISITS: usize = 64;

/// A change set that is ready to be written.
pub(crate) struct Prepared {
    pub(crate) root: B256,
    pub(crate) batch: WriteBatch,
    /// The nodes that the batch changes.
    pub(crate) nodes: NodeChanges,
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

impl Touched {
    /// Whether its storage trie is updated.
    fn has_storage_changes(&self) -> bool {
        self.is_wiped || !self.slots.is_empty()
    }
}

/// The stored values of a slot that changes.
#[derive(PartialEq, Eq)]
struct TouchedSlot {
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
}

/// The values before that a commit keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keep {
    /// None: the commit is a way back itself.
    Nothing,
    /// Those of entries, by height: for reorgs.
    Changes(u64),
    /// Those of entries and nodes, by height and by key: for reads and proofs as well.
    History(u64),
}

/// Computes the root and the batch of a change set, against a state at its tip, of which some
/// values are known, and of which the cache has nodes.
///
/// Cost: a batch of lookups for accounts, one for slots, and those of [`Source::supply_all`] for
/// all tries together; a cursor over the slots of each wiped account.
pub(crate) fn prepare(
    tables: &Tables,
    source: Source<'_>,
    (known, cache): (&mut Known, &mut NodeCache),
    changes: ChangeSet,
    keep: Keep,
) -> Result<Prepared> {
    let views = source.views;
    let caller = Workers::caller();
    let workers = source.workers.unwrap_or(&caller);
    let mut touched = read_before(source, known, changes.accounts)?;
    for account in &touched {
        let is_orphaned = account.slots.values().any(|slot| slot.after.is_some());
        if account.after.is_none() && is_orphaned {
            return Err(Error::SlotWithoutAccount { account: account.hash });
        }
    }
    touched.retain(|account| account.has_storage_changes() || account.before != account.after);

    // On the way down the account trie needs no storage roots, so all tries go down together.
    let mut jobs = storage_jobs(&touched)?;
    jobs.push(account_job(&touched)?);
    source.supply_all(&mut jobs, cache)?;
    let Job { update: mut account_update, .. } = jobs.pop().expect("the job of the account trie");

    let mut writer = Writer::new(tables, keep);
    let outcomes = finish_storage(jobs, workers)?;
    write_storage(views, &mut touched, outcomes, &mut writer)?;

    // On the way up it needs them: they stand in its leaves.
    let leaf = |account: &Touched| account.after.map(|account| account.leaf_value());
    account_update.replace_values(touched.iter().map(leaf));
    let outcome = Update::finish_all(vec![account_update], workers)?.pop();
    let Outcome { root, nodes, .. } = outcome.expect("the outcome of the account trie");
    writer.nodes(None, &nodes);
    // An account may have been given the storage that it had.
    for account in touched.iter().filter(|account| account.before != account.after) {
        let slim = |account: &Option<Account>| account.map(|account| account.to_slim());
        let (before, after) = (slim(&account.before), slim(&account.after));
        let key = account.hash.as_slice();
        writer.undo(EntryKind::Account, key, before.as_deref());
        writer.entry(EntryKind::Account, key, after.as_deref());
    }
    write_codes(views, changes.codes, &mut writer)?;
    Ok(Prepared { root, batch: writer.batch, nodes: writer.changed })
}

/// Reads accounts and slots as they are, and leaves out what does not change.
fn read_before(
    source: Source<'_>,
    known: &mut Known,
    changes: BTreeMap<B256, AccountChange>,
) -> Result<Vec<Touched>> {
    let hashes: Vec<B256> = changes.keys().copied().collect();
    let accounts = read_accounts(known.accounts(source, &hashes)?)?;
    let slot_keys = changes
        .iter()
        .flat_map(|(account, change)| change.slots.keys().map(|slot| slot_key(account, slot)));
    let slot_keys: Vec<_> = slot_keys.collect();
    let mut slots_before = known.slots(source, &slot_keys)?.into_iter();

    let mut touched = Vec::with_capacity(hashes.len());
    for ((hash, change), before) in changes.into_iter().zip(accounts) {
        let mut slots = BTreeMap::new();
        let has_storage = before.is_some_and(|account| account.storage_root != EMPTY_STORAGE_ROOT);
        let is_wiped = change.is_wiped && has_storage;
        if is_wiped {
            each_slot(&source.views.slots, &hash, |slot, value| {
                slots.insert(slot, TouchedSlot { before: Some(value.to_vec()), after: None });
                Ok(())
            })?;
        }
        for (slot, after) in change.slots {
            let before = slots_before.next().flatten();
            check_slot(before.as_deref())?;
            let after = (after != U256::ZERO).then(|| slot_bytes(&after));
            slots.insert(slot, TouchedSlot { before, after });
        }
        // After a wipe, a slot of the same value as before is written again.
        slots.retain(|_, slot| is_wiped || slot.before != slot.after);

        // The storage root follows from the slots.
        let root = before.map_or(EMPTY_STORAGE_ROOT, |account| account.storage_root);
        let after = change.account.after(before).map(|account| account.storage_root(root));
        touched.push(Touched { hash, before, after, slots, is_wiped });
    }
    Ok(touched)
}

fn check_slot(bytes: Option<&[u8]>) -> Result<()> {
    let is_value = bytes.is_none_or(|bytes| slot_value(bytes).is_some());
    is_value.then_some(()).ok_or(Error::corrupt_entry("the value of a slot"))
}

/// The updates of the storage tries, in the order of the accounts.
fn storage_jobs(touched: &[Touched]) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for account in touched.iter().filter(|account| account.has_storage_changes()) {
        let root = account.before.map_or(EMPTY_STORAGE_ROOT, |account| account.storage_root);
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
    Ok(jobs)
}

/// The update of the account trie, with the storage roots as they were.
fn account_job(touched: &[Touched]) -> Result<Job> {
    let change = |account: &Touched| Change {
        key: account.hash.to_vec(),
        existed: account.before.is_some(),
        after: account.after.map(|account| account.leaf_value()),
    };
    let update = Update::new(touched.iter().map(change).collect())?;
    Ok(Job { owner: None, update })
}

/// Finishes the updates of storage tries, divided among the threads; outcomes in their order.
fn finish_storage(jobs: Vec<Job>, workers: &Workers) -> Result<Vec<Outcome>> {
    let updates: Vec<_> = jobs.into_iter().map(|job| job.update).collect();
    let shares = workers.shares(updates, SHARE_VISITS, Update::visits);
    // One large trie is divided by the nodes of its levels.
    let caller = Workers::caller();
    let inner = if shares.len() == 1 { workers } else { &caller };
    let done = workers.map(shares, |share| Update::finish_all(share, inner));
    let mut outcomes = Vec::new();
    for share in done {
        outcomes.extend(share?);
    }
    Ok(outcomes)
}

/// Writes slots and nodes, and sets the storage roots of `touched`.
fn write_storage(
    views: &Views,
    touched: &mut [Touched],
    outcomes: Vec<Outcome>,
    writer: &mut Writer<'_>,
) -> Result<()> {
    let tables = writer.tables;
    let changed = touched.iter_mut().filter(|account| account.has_storage_changes());
    for (account, outcome) in changed.zip(outcomes) {
        if let Some(after) = &mut account.after {
            after.storage_root = outcome.root;
        }
        if account.is_wiped {
            writer.wipe_nodes(views, &account.hash, outcome.nodes)?;
            writer.batch.delete_prefix(&tables.slots, account.hash);
        } else {
            writer.nodes(Some(&account.hash), &outcome.nodes);
        }
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

/// A list of nodes of a trie that changed at a height, in parts of [`PATHS_MAX`].
struct PathList<'o> {
    owner: Option<&'o B256>,
    height: u64,
    /// The number of the part, and its paths.
    number: u32,
    count: usize,
    bytes: Vec<u8>,
}

impl<'o> PathList<'o> {
    fn new(owner: Option<&'o B256>, height: u64) -> Self {
        Self { owner, height, number: 0, count: 0, bytes: Vec::new() }
    }
}

/// The batch of a commit.
struct Writer<'t> {
    tables: &'t Tables,
    keep: Keep,
    /// The salt of the store.
    salt: u64,
    batch: WriteBatch,
    /// The nodes that the batch changes.
    changed: NodeChanges,
}

impl<'t> Writer<'t> {
    fn new(tables: &'t Tables, keep: Keep) -> Self {
        Self {
            tables,
            keep,
            salt: tables.store.session().salt(),
            batch: WriteBatch::new(),
            changed: NodeChanges::default(),
        }
    }

    /// Writes nodes of a trie, and keeps what leads back to their records before.
    fn nodes(&mut self, owner: Option<&B256>, changes: &[NodeChange]) {
        let TableSet { account_nodes, storage_nodes, .. } = &self.tables.handles;
        let (table, kind) = match owner {
            Some(_) => (storage_nodes, NodeKind::Storage),
            None => (account_nodes, NodeKind::Account),
        };
        for NodeChange { path, before, after } in changes {
            let key = node_key(owner, path);
            let record = after.as_ref().map(Record::to_bytes);
            match &record {
                Some(record) => self.batch.insert(table, &key, record),
                None => self.batch.delete(table, &key),
            }
            if let Keep::History(height) = self.keep {
                let is_copy = is_copy(self.salt, &key, height);
                let value = node_change_value(before.as_ref(), after.as_ref(), is_copy);
                self.undo_node(owner.is_some(), &key, height, &value);
            }
            self.changed.put(kind, key, record);
        }
        if let Keep::History(height) = self.keep {
            let mut list = PathList::new(owner, height);
            for change in changes {
                self.list(&mut list, &change.path);
            }
            self.end_list(&list);
        }
    }

    /// Deletes the nodes of a storage trie and writes those of its new entries.
    fn wipe_nodes(&mut self, views: &Views, owner: &B256, nodes: Vec<NodeChange>) -> Result<()> {
        let table = &self.tables.storage_nodes;
        self.batch.delete_prefix(table, owner);
        self.changed.wipe(*owner);
        let mut is_new: BTreeSet<Path> = BTreeSet::new();
        for NodeChange { path, after, .. } in nodes {
            if let Some(record) = after {
                let (key, record) = (node_key(Some(owner), &path), record.to_bytes());
                self.batch.insert(table, &key, &record);
                self.changed.put(NodeKind::Storage, key, Some(record));
                is_new.insert(path);
            }
        }

        // Without a history, nobody needs the old nodes, and they are not read.
        let Keep::History(height) = self.keep else { return Ok(()) };
        let mut list = PathList::new(Some(owner), height);
        let mut old = views.storage_nodes.prefix(owner.as_slice())?;
        while let Some(record) = old.next_ref()? {
            let path = record.key.strip_prefix(owner.as_slice()).and_then(node_path);
            let path = path.ok_or_else(|| Error::corrupt_entry("the key of a node"))?;
            self.undo_node(true, record.key, height, &change_value(Some(record.value)));
            self.list(&mut list, &path);
            is_new.remove(&path);
        }
        for path in is_new {
            self.undo_node(true, &node_key(Some(owner), &path), height, &change_value(None));
            self.list(&mut list, &path);
        }
        self.end_list(&list);
        Ok(())
    }

    /// Keeps what leads back to the record of a node before the block.
    fn undo_node(&mut self, has_owner: bool, key: &[u8], height: u64, value: &[u8]) {
        let TableSet { account_node_history, storage_node_history, .. } = &self.tables.handles;
        let history = if has_owner { storage_node_history } else { account_node_history };
        let key = [&node_history_key(key)[..], &height_key(height)].concat();
        self.batch.insert(history, key, value);
    }

    /// Lists a node that has an entry in the history of its trie.
    fn list(&mut self, list: &mut PathList<'_>, path: &Path) {
        if list.count == PATHS_MAX {
            self.write_list(list);
            list.bytes.clear();
            list.count = 0;
            list.number += 1;
        }
        put_path(path, &mut list.bytes);
        list.count += 1;
    }

    fn end_list(&mut self, list: &PathList<'_>) {
        if 0 < list.count {
            self.write_list(list);
        }
    }

    fn write_list(&mut self, list: &PathList<'_>) {
        let key = list_key(list.height, list.owner, list.number);
        self.batch.insert(&self.tables.changes, key, &list.bytes);
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
        let (Keep::Changes(height) | Keep::History(height)) = self.keep else { return };
        let value = change_value(before);
        self.batch.insert(&self.tables.changes, change_key(height, kind as u8, key), &value);
        if matches!(self.keep, Keep::History(_)) {
            let key = [&value_history_key(kind, key)[..], &height_key(height)].concat();
            self.batch.insert(&self.tables.value_history, key, &value);
        }
    }
}

/// Whether a change of a node keeps a whole copy: one in [`COPY_ONE_OF`].
///
/// The salt keeps callers from choosing blocks that make a long row of differences.
fn is_copy(salt: u64, key: &[u8], height: u64) -> bool {
    let mut hasher = DefaultHasher::new();
    (salt, key, height).hash(&mut hasher);
    hasher.finish().is_multiple_of(COPY_ONE_OF)
}

/// The root of the account trie in the views, from its nodes alone.
///
/// Cost: a lookup, and a cursor if the trie has no record.
pub(crate) fn stored_root(views: &Views) -> Result<B256> {
    let mut jobs = [Job { owner: None, update: Update::<KeccakMpt>::new(Vec::new())? }];
    Source::tip(views).supply_all(&mut jobs, &mut NodeCache::new(0))?;
    let [Job { update, .. }] = jobs;
    Ok(update.finish()?.root)
}
