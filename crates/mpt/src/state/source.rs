//! The entries and nodes of a state at its tip or at an older height, and answers to updates.
//!
//! At an older height, an entry is the value before its first change above the height, or the
//! current one if it has not changed since. Histories are sorted by key and then by height, so the
//! first change above is one seek. A node is found likewise; its changes may be differences, which
//! the whole copy or the current record behind them completes.

use std::ops::Bound;
use std::sync::Arc;

use alloy_primitives::{B256, U256};
use terrane_lsm::{Cursor, Lookup, Record, Table};

use crate::base::account::Account;
use crate::base::error::{Error, Result};
use crate::base::keys::NodeKey;
use crate::base::path::Path;
use crate::base::workers::Workers;
use crate::scheme::keccak_mpt::KeccakMpt;
use crate::scheme::scheme::{HASH_BYTES, Scheme};
use crate::state::changes::{slot_leaf, slot_value};
use crate::state::node_cache::{NodeCache, NodeKind};
use crate::state::tables::{
    EntryKind, NodeBefore, Views, height_key, node_history_key, node_key, read_before,
    read_node_before, slot_key, value_history_key,
};
use crate::trie::difference::Unfolding;
use crate::trie::record;
use crate::trie::update::{Answer, LEAVES_MAX, Update, Want};

/// Fewest answers for which a thread is woken.
const SHARE_ANSWERS: usize = 128;

/// Fewest keys of a batch of lookups for which a thread is woken. Smaller batches, such as those of
/// tests on a simulated disk, make their calls in one order.
const SHARE_KEYS: usize = 192;

/// Fewest short scans of a batch for which a thread is woken.
const SHARE_SCANS: usize = 64;

/// The bounds of a range of keys.
pub(crate) type KeyBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Keys and values of leaves, in order.
type Leaves = Vec<(Vec<u8>, Vec<u8>)>;

/// The update of one trie of a state.
pub(crate) struct Job {
    /// Whose storage it is; `None` for the account trie.
    pub(crate) owner: Option<B256>,
    pub(crate) update: Update<KeccakMpt>,
}

/// A state at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'v> {
    pub(crate) views: &'v Views,
    /// The height; `None` at the tip of the views.
    pub(crate) height: Option<u64>,
    /// Threads for large batches, if there are any beside the caller.
    pub(crate) workers: Option<&'v Workers>,
}

impl<'v> Source<'v> {
    /// The state at the tip of the views.
    pub(crate) fn tip(views: &'v Views) -> Self {
        Self { views, height: None, workers: None }
    }

    /// The source with threads for large batches.
    pub(crate) fn on(self, workers: &'v Workers) -> Self {
        Self { workers: Some(workers), ..self }
    }

    /// The stored values of flat entries, by their keys.
    ///
    /// Cost: one batch of lookups; at an older height a seek for each key besides.
    pub(crate) fn entries<K: AsRef<[u8]> + Sync>(
        &self,
        kind: EntryKind,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = self.values(self.table(kind), keys)?;
        let Some(height) = self.height else { return Ok(values) };
        let mut history = self.views.value_history.cursor()?;
        for (key, value) in keys.iter().zip(&mut values) {
            let key = value_history_key(kind, key.as_ref());
            if let Some(before) = first_above(&mut history, &key, height)? {
                *value = before;
            }
        }
        Ok(values)
    }

    fn table(&self, kind: EntryKind) -> &'v Table {
        match kind {
            EntryKind::Account => &self.views.accounts,
            EntryKind::Slot => &self.views.slots,
            EntryKind::Code => &self.views.code,
        }
    }

    /// Accounts by the hashes of their addresses.
    pub(crate) fn accounts(&self, hashes: &[B256]) -> Result<Vec<Option<Account>>> {
        read_accounts(self.entries(EntryKind::Account, hashes)?)
    }

    /// Supplies all that the updates want, of the account trie and of storage tries. The cache is
    /// at the root of the state; at an older height it is not used.
    ///
    /// Cost: for each level of the deepest trie two batches of lookups of nodes that the cache
    /// lacks, one for each table, and two batches of short scans of the places where a leaf is
    /// split or moves up. At an older height a seek for each node besides, and a cursor for each
    /// place.
    pub(crate) fn supply_all(&self, jobs: &mut [Job], cache: &mut NodeCache) -> Result<()> {
        let caller = Workers::caller();
        let workers = self.workers.unwrap_or(&caller);
        while jobs.iter().any(|job| !job.update.wanted().is_empty()) {
            let mut keys = [Vec::new(), Vec::new()];
            let mut places = [Vec::new(), Vec::new()];
            for Job { owner, update } in &*jobs {
                let (owner, of) = (owner.as_ref(), usize::from(owner.is_some()));
                for want in update.wanted() {
                    match want {
                        Want::Node(path) => keys[of].push(node_key(owner, path)),
                        Want::Leaves(path) => places[of].push((owner, path)),
                        // All keys have 32 bytes, so none ends at a branch.
                        Want::Value(path) => {
                            return Err(Error::corruption(path, "a value in a branch"));
                        }
                    }
                }
            }
            let [account_keys, storage_keys] = keys;
            let mut nodes = [
                self.nodes(NodeKind::Account, &account_keys, cache)?.into_iter(),
                self.nodes(NodeKind::Storage, &storage_keys, cache)?.into_iter(),
            ];
            let [account_places, storage_places] = places;
            let mut leaves = [
                self.leaves(&account_places)?.into_iter(),
                self.leaves(&storage_places)?.into_iter(),
            ];

            let mut answered: Vec<(&mut Job, Vec<Answer>)> = Vec::with_capacity(jobs.len());
            for job in jobs.iter_mut().filter(|job| !job.update.wanted().is_empty()) {
                let of = usize::from(job.owner.is_some());
                let answers = job.update.wanted().iter().map(|want| match want {
                    Want::Node(_) => Answer::Node(nodes[of].next().flatten()),
                    _ => Answer::Leaves(leaves[of].next().expect("the leaves of each place")),
                });
                let answers = answers.collect();
                answered.push((job, answers));
            }
            supply(answered, workers)?;
        }
        Ok(())
    }

    fn nodes(
        &self,
        kind: NodeKind,
        keys: &[NodeKey],
        cache: &mut NodeCache,
    ) -> Result<Vec<Option<Arc<[u8]>>>> {
        let (table, history) = match kind {
            NodeKind::Account => (&self.views.account_nodes, &self.views.account_node_history),
            NodeKind::Storage => (&self.views.storage_nodes, &self.views.storage_node_history),
        };
        let Some(height) = self.height else {
            return cache.read(kind, keys, |missing| self.values(table, missing));
        };
        let mut history = history.cursor()?;
        let values = self.values(table, keys)?;
        let at_height = |(key, value): (&NodeKey, Option<Vec<u8>>)| {
            node_at(&mut history, &node_history_key(key), height, value.map(Into::into))
        };
        keys.iter().zip(values).map(at_height).collect()
    }

    /// The values of keys in a table at the tip.
    fn values<K: AsRef<[u8]> + Sync>(
        &self,
        table: &Table,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let caller = Workers::caller();
        values(table, keys, self.workers.unwrap_or(&caller))
    }

    /// The leaves below paths of tries, which are all account tries or all storage tries: for each
    /// path one more than an update takes at most.
    pub(crate) fn leaves(&self, places: &[(Option<&B256>, &Path)]) -> Result<Vec<Leaves>> {
        if self.height.is_none() {
            return self.leaves_at_tip(places);
        }
        let leaves_of = |(owner, path): &(Option<&B256>, &Path)| {
            let (start, end) = path.key_range(KeccakMpt::DIGIT_BITS);
            let (kind, prefix) = kind_of(*owner);
            let mut leaves = Vec::new();
            self.scan(kind, prefix, &start, end.as_deref(), LEAVES_MAX + 1, |key, value| {
                leaves.push((key.to_vec(), leaf_value(kind, value)?));
                Ok(())
            })?;
            Ok(leaves)
        };
        places.iter().map(leaves_of).collect()
    }

    fn leaves_at_tip(&self, places: &[(Option<&B256>, &Path)]) -> Result<Vec<Leaves>> {
        let Some((owner, _)) = places.first() else { return Ok(Vec::new()) };
        let (kind, _) = kind_of(*owner);
        let bounds = |(owner, path): &(Option<&B256>, &Path)| {
            bounds_below::<KeccakMpt>(kind_of(*owner).1, path)
        };
        let ranges: Vec<KeyBounds> = places.iter().map(bounds).collect();

        let caller = Workers::caller();
        let found = scan_many(self.table(kind), &ranges, self.workers.unwrap_or(&caller))?;
        let leaves_of = |(records, (owner, _)): (Vec<Record>, &(Option<&B256>, &Path))| {
            let prefix_len = kind_of(*owner).1.len();
            let leaf = |record: Record| {
                Ok((record.key[prefix_len..].to_vec(), leaf_value(kind, &record.value)?))
            };
            records.into_iter().map(leaf).collect()
        };
        found.into_iter().zip(places).map(leaves_of).collect()
    }

    /// Reads the first `limit` entries whose keys are `prefix` and a key in a range, without the
    /// prefix. At an older height, keys that have come since are passed over.
    pub(crate) fn scan(
        &self,
        kind: EntryKind,
        prefix: &[u8],
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        mut each: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let from = [prefix, start].concat();
        let is_inside = |key: &[u8]| {
            key.strip_prefix(prefix).is_some_and(|key| end.is_none_or(|end| key < end))
        };
        let mut current = self.table(kind).cursor_at(&from)?;
        let mut history = match self.height {
            Some(height) => Some((self.views.value_history.cursor()?, height)),
            None => None,
        };
        let mut changed = match &mut history {
            Some((cursor, _)) => next_changed(cursor, kind, &value_history_key(kind, &from))?
                .filter(|key| is_inside(key)),
            None => None,
        };

        let mut count = 0;
        while count < limit {
            let record = current.peek()?.filter(|record| is_inside(record.key));
            let found = record.map(|record| (record.key.to_vec(), record.value.to_vec()));
            let (key, value) = match (found, &changed) {
                (None, None) => break,
                (Some((key, value)), other) if other.as_ref().is_none_or(|other| key < *other) => {
                    current.next_ref()?;
                    (key, Some(value))
                }
                (found, Some(key)) => {
                    let is_current = found.as_ref().is_some_and(|(found, _)| found == key);
                    if is_current {
                        current.next_ref()?;
                    }
                    let now = found.filter(|_| is_current).map(|(_, value)| value);
                    let key = key.clone();
                    let mut value = now;
                    if let Some((cursor, height)) = &mut history {
                        let prefix = value_history_key(kind, &key);
                        if let Some(before) = first_above(cursor, &prefix, *height)? {
                            value = before;
                        }
                        // Above all heights of this key, and below the next key.
                        let after = [&prefix[..], &[255; 9]].concat();
                        changed = next_changed(cursor, kind, &after)?.filter(|key| is_inside(key));
                    }
                    (key, value)
                }
                (Some(_), None) => unreachable!("the entry comes before no change"),
            };
            if let (Some(key), Some(value)) = (key.strip_prefix(prefix), value) {
                each(key, &value)?;
                count += 1;
            }
        }
        Ok(())
    }
}

/// The entries whose leaves a trie has, and what their keys begin with.
fn kind_of(owner: Option<&B256>) -> (EntryKind, &[u8]) {
    owner.map_or((EntryKind::Account, &[]), |owner| (EntryKind::Slot, owner.as_slice()))
}

/// The value of the leaf of an entry.
fn leaf_value(kind: EntryKind, value: &[u8]) -> Result<Vec<u8>> {
    match kind {
        EntryKind::Account => Ok(Account::from_slim(value)?.leaf_value()),
        _ => Ok(slot_leaf(value)),
    }
}

/// Supplies answers, the tries divided among the threads.
fn supply(answered: Vec<(&mut Job, Vec<Answer>)>, workers: &Workers) -> Result<()> {
    let weight = |(_, answers): &(&mut Job, Vec<Answer>)| answers.len();
    let shares = workers.shares(answered, SHARE_ANSWERS, weight);
    let done = workers.map(shares, |share| {
        share.into_iter().try_for_each(|(job, answers)| job.update.supply(answers))
    });
    done.into_iter().collect()
}

/// The key of the first entry at or above a place in the history, if it is of this kind.
fn next_changed(history: &mut Cursor, kind: EntryKind, place: &[u8]) -> Result<Option<Vec<u8>>> {
    history.seek(place);
    let Some(record) = history.peek()? else { return Ok(None) };
    let Some((found, rest)) = record.key.split_first() else { return Ok(None) };
    if *found != kind as u8 {
        return Ok(None);
    }
    let key = rest.len().checked_sub(8).and_then(|end| rest.get(..end));
    let key = key.ok_or_else(|| Error::corrupt_entry("a key of the history of values"))?;
    Ok(Some(key.to_vec()))
}

/// The value before the first change above `height` of what has this key in a history; `None` if
/// there is no such change.
#[expect(clippy::option_option, reason = "a value that was absent is a value before")]
fn first_above(
    history: &mut Cursor,
    prefix: &[u8],
    height: u64,
) -> Result<Option<Option<Vec<u8>>>> {
    let Some(first) = height.checked_add(1) else { return Ok(None) };
    history.seek(&[prefix, &height_key(first)].concat());
    let Some(record) = history.peek()? else { return Ok(None) };
    let is_of_key = record.key.strip_prefix(prefix).is_some_and(|rest| rest.len() == 8);
    if !is_of_key {
        return Ok(None);
    }
    let before = read_before(record.value);
    let before = before.ok_or_else(|| Error::corrupt_entry("a value of a history"))?;
    Ok(Some(before.map(<[u8]>::to_vec)))
}

/// The record of a node at a height, given its key in a history and its current record.
///
/// Cost: a seek; reads differences up to the next whole copy, or until they tell all hashes.
fn node_at(
    history: &mut Cursor,
    prefix: &[u8],
    height: u64,
    now: Option<Arc<[u8]>>,
) -> Result<Option<Arc<[u8]>>> {
    let corrupt = || Error::corrupt_entry("a difference of a node");
    let Some(first) = height.checked_add(1) else { return Ok(now) };
    history.seek(&[prefix, &height_key(first)].concat());
    let mut unfolding: Option<Unfolding> = None;
    let base = loop {
        let Some(record) = history.next_ref()? else { break now };
        if record.key.strip_prefix(prefix).is_none_or(|rest| rest.len() != 8) {
            break now;
        }
        match read_node_before(record.value).ok_or_else(corrupt)? {
            NodeBefore::Absent => break None,
            NodeBefore::Whole(bytes) => break Some(bytes.into()),
            NodeBefore::Difference(stated, bytes) => {
                let unfolding = unfolding.get_or_insert_default();
                unfolding.add(stated, bytes).ok_or_else(corrupt)?;
                if let Some(branch) = unfolding.whole::<KeccakMpt>() {
                    return Ok(Some(record::Record::Branch(branch).to_bytes()));
                }
            }
        }
    };

    let Some(unfolding) = unfolding else { return Ok(base) };
    let base = base.ok_or_else(corrupt)?;
    // Only a branch has differences, and its path is not needed to read it.
    let record::Record::Branch(base) =
        record::Record::from_bytes::<KeccakMpt>(&Path::default(), base)?
    else {
        return Err(corrupt());
    };
    let branch = unfolding.over::<KeccakMpt>(&base).ok_or_else(corrupt)?;
    Ok(Some(record::Record::Branch(branch).to_bytes()))
}

/// The values of keys in a table, by one batch of lookups for each thread.
pub(crate) fn values<K: AsRef<[u8]> + Sync>(
    table: &Table,
    keys: &[K],
    workers: &Workers,
) -> Result<Vec<Option<Vec<u8>>>> {
    workers.collect(keys, SHARE_KEYS, |keys| {
        Ok(table.get_many(keys)?.into_iter().map(value).collect())
    })
}

/// The first leaves in ranges of a table, one more than an update takes at most; by one batch of
/// scans for each thread.
pub(crate) fn scan_many(
    table: &Table,
    ranges: &[KeyBounds],
    workers: &Workers,
) -> Result<Vec<Vec<Record>>> {
    workers.collect(ranges, SHARE_SCANS, |ranges| {
        Ok(table.scan_many::<Vec<u8>, _>(ranges, LEAVES_MAX + 1)?)
    })
}

/// The bounds of the keys that are a prefix and a key of 32 bytes whose path begins with this one.
pub(crate) fn bounds_below<S: Scheme>(prefix: &[u8], path: &Path) -> KeyBounds {
    let (start, end) = path.key_range(S::DIGIT_BITS);
    let below = match end {
        Some(end) => Bound::Excluded([prefix, &end].concat()),
        None => Bound::Included([prefix, &[u8::MAX; HASH_BYTES]].concat()),
    };
    (Bound::Included([prefix, &start].concat()), below)
}

/// The accounts that stored values are.
pub(crate) fn read_accounts(values: Vec<Option<Vec<u8>>>) -> Result<Vec<Option<Account>>> {
    let read = |value: Option<Vec<u8>>| value.as_deref().map(Account::from_slim).transpose();
    values.into_iter().map(read).collect()
}

/// The numbers that stored values of slots are.
pub(crate) fn read_slots(values: Vec<Option<Vec<u8>>>) -> Result<Vec<U256>> {
    let read = |value: Option<Vec<u8>>| match value {
        Some(bytes) => slot_value(&bytes).ok_or(Error::corrupt_entry("the value of a slot")),
        None => Ok(U256::ZERO),
    };
    values.into_iter().map(read).collect()
}

/// The value of a lookup.
pub(crate) fn value(lookup: Lookup) -> Option<Vec<u8>> {
    match lookup {
        Lookup::Found(value) | Lookup::FoundWithBlob(value, _) => Some(value.into_vec()),
        _ => None,
    }
}

/// Calls `each` with the slots of an account at the tip, in order.
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
