//! Values that a block has read: its commit does not look them up again.

use std::collections::HashMap;
use std::hash::Hash;

use alloy_primitives::B256;

use crate::base::error::Result;
use crate::scheme::scheme::HASH_BYTES;
use crate::state::source::Source;
use crate::state::tables::EntryKind;

/// Key of a slot in its table.
pub(crate) type SlotKey = [u8; 2 * HASH_BYTES];

/// The stored values of accounts and slots, as the views have them that they were read from.
#[derive(Debug, Default)]
pub(crate) struct Known {
    accounts: HashMap<B256, Option<Vec<u8>>>,
    slots: HashMap<SlotKey, Option<Vec<u8>>>,
}

impl Known {
    /// The stored values of accounts, in their order; those that are not known are read, in one
    /// batch of lookups, and known from then on.
    pub(crate) fn accounts(
        &mut self,
        source: Source<'_>,
        hashes: &[B256],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        complete(&mut self.accounts, source, EntryKind::Account, hashes)
    }

    /// The stored values of slots, as [`accounts`](Self::accounts).
    pub(crate) fn slots(
        &mut self,
        source: Source<'_>,
        keys: &[SlotKey],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        complete(&mut self.slots, source, EntryKind::Slot, keys)
    }
}

fn complete<K: Copy + Eq + Hash + AsRef<[u8]> + Sync>(
    known: &mut HashMap<K, Option<Vec<u8>>>,
    source: Source<'_>,
    kind: EntryKind,
    keys: &[K],
) -> Result<Vec<Option<Vec<u8>>>> {
    let missing: Vec<K> = keys.iter().filter(|key| !known.contains_key(*key)).copied().collect();
    let found = source.entries(kind, &missing)?;
    known.extend(missing.into_iter().zip(found));
    Ok(keys.iter().map(|key| known[key].clone()).collect())
}
