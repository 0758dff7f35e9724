//! The entries and nodes of a state at its tip or at an older height, and answers to updates.
//!
//! At an older height, an entry or node is the value before its first change above the height, or
//! the current one if it has not changed since. Histories are sorted by key and then by height, so
//! the first change above is one seek.

use alloy_primitives::B256;
use terrane_lsm::{Cursor, Lookup, Table};

use crate::base::account::Account;
use crate::base::error::{Error, Result};
use crate::base::path::Path;
use crate::scheme::keccak_mpt::KeccakMpt;
use crate::scheme::scheme::Scheme;
use crate::state::changes::slot_leaf;
use crate::state::tables::{
    EntryKind, Views, height_key, node_key, read_before, slot_key, value_history_key,
};
use crate::trie::update::{Answer, LEAVES_MAX, Update, Want};

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
}

impl<'v> Source<'v> {
    /// The state at the tip of the views.
    pub(crate) fn tip(views: &'v Views) -> Self {
        Self { views, height: None }
    }

    /// The stored values of flat entries, by their keys.
    ///
    /// Cost: one batch of lookups; at an older height a seek for each key besides.
    pub(crate) fn entries<K: AsRef<[u8]>>(
        &self,
        kind: EntryKind,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = values(self.table(kind), keys)?;
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

    /// An account by the hash of its address, and accounts.
    pub(crate) fn accounts(&self, hashes: &[B256]) -> Result<Vec<Option<Account>>> {
        let values = self.entries(EntryKind::Account, hashes)?;
        let read = |value: Option<Vec<u8>>| value.as_deref().map(Account::from_slim).transpose();
        values.into_iter().map(read).collect()
    }

    /// Supplies all that the updates want. The jobs are of the account trie or of storage tries,
    /// not of both.
    ///
    /// Cost: for each level of the deepest trie one batch of lookups; a cursor for each place where
    /// a leaf is split or moves up. At an older height a seek for each node besides.
    pub(crate) fn supply_all(&self, jobs: &mut [Job]) -> Result<()> {
        while jobs.iter().any(|job| !job.update.wanted().is_empty()) {
            let mut keys = Vec::new();
            for job in &*jobs {
                for want in job.update.wanted() {
                    if let Want::Node(path) = want {
                        keys.push(node_key(job.owner.as_ref(), path));
                    }
                }
            }
            let has_owner = jobs.first().is_some_and(|job| job.owner.is_some());
            let mut nodes = self.nodes(has_owner, &keys)?.into_iter();

            for Job { owner, update } in jobs.iter_mut() {
                if update.wanted().is_empty() {
                    continue;
                }
                let answers = update.wanted().iter().map(|want| match want {
                    Want::Node(_) => Ok(Answer::Node(nodes.next().flatten())),
                    Want::Leaves(path) => self.leaves(owner.as_ref(), path),
                    // All keys have 32 bytes, so none ends at a branch.
                    Want::Value(path) => Err(Error::corruption(path, "a value in a branch")),
                });
                let answers = answers.collect::<Result<Vec<_>>>()?;
                update.supply(answers)?;
            }
        }
        Ok(())
    }

    fn nodes(&self, has_owner: bool, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>> {
        let (table, history) = if has_owner {
            (&self.views.storage_nodes, &self.views.storage_node_history)
        } else {
            (&self.views.account_nodes, &self.views.account_node_history)
        };
        let mut values = values(table, keys)?;
        let Some(height) = self.height else { return Ok(values) };
        let mut history = history.cursor()?;
        for (key, value) in keys.iter().zip(&mut values) {
            let key = crate::state::tables::node_history_key(key);
            if let Some(before) = first_above(&mut history, &key, height)? {
                *value = before;
            }
        }
        Ok(values)
    }

    /// The leaves below a path, one more than an update takes at most.
    pub(crate) fn leaves(&self, owner: Option<&B256>, path: &Path) -> Result<Answer> {
        let (start, end) = path.key_range(KeccakMpt::DIGIT_BITS);
        let mut leaves = Vec::new();
        match owner {
            None => {
                let kind = EntryKind::Account;
                self.scan(kind, &[], &start, end.as_deref(), LEAVES_MAX + 1, |key, value| {
                    leaves.push((key.to_vec(), Account::from_slim(value)?.leaf_value()));
                    Ok(())
                })?;
            }
            Some(owner) => {
                let (kind, prefix) = (EntryKind::Slot, owner.as_slice());
                self.scan(kind, prefix, &start, end.as_deref(), LEAVES_MAX + 1, |key, value| {
                    leaves.push((key.to_vec(), slot_leaf(value)));
                    Ok(())
                })?;
            }
        }
        Ok(Answer::Leaves(leaves))
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

fn values<K: AsRef<[u8]>>(table: &Table, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    Ok(table.get_many(keys)?.iter().map(value).collect())
}

/// The value of a lookup in memory of its own.
pub(crate) fn value(lookup: &Lookup) -> Option<Vec<u8>> {
    lookup.value().map(<[u8]>::to_vec)
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
