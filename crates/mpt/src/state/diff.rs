//! The difference of a state between two heights.
//!
//! `changes` has, for each block, the value before of each entry that the block changed. So the
//! value of an entry at a height is that before its first change above the height, or the current
//! one, and the entries that may differ between two heights are those that changed between them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use alloy_primitives::{B256, U256};

use crate::base::account::Account;
use crate::base::error::{Error, Result};
use crate::state::changes::slot_value;
use crate::state::source::Source;
use crate::state::state::State;
use crate::state::tables::{EntryKind, Views, height_key, height_of, is_of_nodes, read_change};

/// The accounts and slots that differ between two heights, in the order of their keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateDiff {
    /// The accounts. One whose slots differ is among them, since its storage root differs.
    pub accounts: Vec<AccountDiff>,
    /// The slots.
    pub slots: Vec<SlotDiff>,
}

/// An account that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccountDiff {
    /// Hash of its address.
    pub account: B256,
    /// The account at the first height; `None` if it does not exist there.
    pub before: Option<Account>,
    /// The account at the second height.
    pub after: Option<Account>,
}

/// A slot that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotDiff {
    /// Hash of the address.
    pub account: B256,
    /// Hash of the slot.
    pub slot: B256,
    /// The value at the first height; zero if it has no entry.
    pub before: U256,
    /// The value at the second height.
    pub after: U256,
}

/// Kind and key of an entry.
type Key = (EntryKind, Vec<u8>);

impl State {
    /// The accounts and slots that differ between the states after two blocks, in any order.
    ///
    /// Cost: reads the changes of the blocks above the lower height, and looks up the entries that
    /// no block above the higher one changed. Memory for what changed between the heights.
    ///
    /// # Errors
    /// [`Error::UnknownHeight`] for a height above the tip, below the first block, or below what a
    /// prune has left; [`Error::Store`], [`Error::CorruptEntry`], [`Error::CorruptAccount`].
    pub fn diff(&self, from: u64, to: u64) -> Result<StateDiff> {
        diff(&self.tables.views()?, from, to)
    }
}

pub(crate) fn diff(views: &Views, from: u64, to: u64) -> Result<StateDiff> {
    let low = from.min(to);
    let high = from.max(to);
    let tip = views.tip()?.ok_or(Error::UnknownHeight { height: high })?;
    let floor = views.reorg_floor()?.unwrap_or(0);
    for height in [low, high] {
        let is_kept = floor <= height && height <= tip.height;
        if !is_kept || views.block(height)?.is_none() {
            return Err(Error::UnknownHeight { height });
        }
    }

    let first = first_changes(views, low, high, None)?;
    let later = first_changes(views, high, tip.height, Some(&first))?;
    let mut values = values_now(views, first.keys().filter(|key| !later.contains_key(*key)))?;
    values.extend(later);

    let mut diff = StateDiff::default();
    for (key, before) in first {
        let after = values.remove(&key).flatten();
        let (before, after) = if from <= to { (before, after) } else { (after, before) };
        diff.add(&key, before.as_deref(), after.as_deref())?;
    }
    Ok(diff)
}

impl StateDiff {
    fn add(
        &mut self,
        (kind, key): &Key,
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Result<()> {
        if before == after {
            return Ok(());
        }
        let (account, slot) = key.split_at(B256::len_bytes());
        let account = B256::from_slice(account);
        match kind {
            EntryKind::Account => {
                let read = |bytes: Option<&[u8]>| bytes.map(Account::from_slim).transpose();
                let (before, after) = (read(before)?, read(after)?);
                self.accounts.push(AccountDiff { account, before, after });
            }
            EntryKind::Slot => {
                let corrupt = || Error::corrupt_entry("the value of a slot");
                let read = |bytes: Option<&[u8]>| match bytes {
                    Some(bytes) => slot_value(bytes).ok_or_else(corrupt),
                    None => Ok(U256::ZERO),
                };
                let slot = B256::from_slice(slot);
                let (before, after) = (read(before)?, read(after)?);
                self.slots.push(SlotDiff { account, slot, before, after });
            }
            EntryKind::Code => {}
        }
        Ok(())
    }
}

/// The values before of the first changes of entries above a height, up to another one. With
/// `among`, of these entries only.
fn first_changes(
    views: &Views,
    above: u64,
    up_to: u64,
    among: Option<&BTreeMap<Key, Option<Vec<u8>>>>,
) -> Result<BTreeMap<Key, Option<Vec<u8>>>> {
    let corrupt = || Error::corrupt_entry("a change of a block");
    let mut found = BTreeMap::new();
    let Some(start) = above.checked_add(1) else { return Ok(found) };
    let mut cursor = views.changes.cursor_at(&height_key(start))?;
    while let Some(record) = cursor.next_ref()? {
        let (height, key) = height_of(record.key).ok_or_else(corrupt)?;
        if up_to < height {
            break;
        }
        if is_of_nodes(key) {
            continue;
        }
        let (kind, key, before) = read_change(key, record.value).ok_or_else(corrupt)?;
        let key = (kind, key.to_vec());
        if kind == EntryKind::Code || among.is_some_and(|among| !among.contains_key(&key)) {
            continue;
        }
        if let Entry::Vacant(entry) = found.entry(key) {
            entry.insert(before.map(<[u8]>::to_vec));
        }
    }
    Ok(found)
}

/// The values of entries at the tip.
fn values_now<'k>(
    views: &Views,
    keys: impl Iterator<Item = &'k Key>,
) -> Result<BTreeMap<Key, Option<Vec<u8>>>> {
    let keys: Vec<&Key> = keys.collect();
    let mut values = BTreeMap::new();
    for kind in [EntryKind::Account, EntryKind::Slot] {
        let own = keys.iter().filter(|key| key.0 == kind).map(|key| &key.1);
        let own: Vec<&Vec<u8>> = own.collect();
        let found = Source::tip(views).entries(kind, &own)?;
        values.extend(own.into_iter().cloned().map(|key| (kind, key)).zip(found));
    }
    Ok(values)
}
