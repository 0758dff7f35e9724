//! Batches for the indexes of the tables that a commit changes.
//!
//! A commit with indexes holds the writers of its tables and of their indexes. So between the look
//! at the old entries and the record nobody changes either. The batches of the indexes are parts of
//! the same record; recovery, feeds, versions and readers see ordinary tables.
//!
//! Invariants:
//! - The list of indexes changes only while the writers of the tables that it concerns are held. A
//!   commit looks at the list before it takes its writers, and once more behind.
//! - Each index has its slot in the state.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::entry::entry::Update;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::manifest::manifest::StoreManifest;
use crate::manifest::wal::RECORD_BYTES_MAX;
use crate::store::index_entries::{Derivation, IndexChange, Indexes, update_of};
use crate::store::inner::{Batch, Shared, Slot, State, TableKey};
use crate::store::options::TableName;
use crate::table::table::Table;

/// An index of a table, in its place.
#[derive(Debug)]
struct ChangedIndex {
    key: TableKey,
    slot: Arc<Slot>,
    source: u64,
    derivation: Derivation,
}

/// The indexes of the tables of a commit, as the store had them at one moment.
#[derive(Debug)]
pub(crate) struct ChangedIndexes {
    indexes: Vec<ChangedIndex>,
    list: Arc<Indexes>,
}

/// Changes of one index, which are committed with those of its source.
#[derive(Debug)]
pub(crate) struct IndexBatch {
    key: TableKey,
    slot: Arc<Slot>,
    changes: Vec<IndexChange>,
}

impl IndexBatch {
    pub(crate) fn batch(&self) -> Batch<'_> {
        let updates = self.changes.iter().map(update_of).collect();
        Batch { key: &self.key, slot: &self.slot, updates }
    }
}

impl ChangedIndexes {
    pub(crate) fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }

    /// The slots of the indexes, by number.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u64, &Arc<Slot>)> {
        self.indexes.iter().map(|index| (index.key.id, &index.slot))
    }

    /// Reads the entries that the batches change, and makes the batches of the indexes from them.
    /// The caller holds the writers of all these tables.
    ///
    /// Cost: looks up each key of the batches; a batch with upserts or deleted ranges is applied to
    /// a fork in memory, and what the fork differs in is read.
    ///
    /// # Errors
    /// Those of lookups; [`Error::CommitTooLarge`], [`Error::TableDoesNotExist`].
    pub(crate) fn batches(&self, batches: &[Batch<'_>]) -> Result<Vec<IndexBatch>> {
        let new = |index: &ChangedIndex| IndexBatch {
            key: index.key.clone(),
            slot: Arc::clone(&index.slot),
            changes: Vec::new(),
        };
        let mut made: Vec<IndexBatch> = self.indexes.iter().map(new).collect();
        let mut bytes = 0;
        for batch in batches {
            if !self.indexes.iter().any(|index| index.source == batch.key.id) {
                continue;
            }
            for_each_change(batch, &mut |key, old, new| {
                for (index, made) in self.indexes.iter().zip(&mut made) {
                    if index.source != batch.key.id {
                        continue;
                    }
                    let before = made.changes.len();
                    index.derivation.changes(key, (old, new), &mut made.changes);
                    bytes += made.changes[before..].iter().map(bytes_of).sum::<usize>();
                }
                // A deleted range may have any number of entries.
                if bytes > RECORD_BYTES_MAX {
                    return Err(Error::CommitTooLarge { bytes, limit: RECORD_BYTES_MAX });
                }
                Ok(())
            })?;
        }
        made.retain(|batch| !batch.changes.is_empty());
        Ok(made)
    }
}

fn bytes_of((key, value): &IndexChange) -> usize {
    key.len() + value.as_ref().map_or(0, Vec::len)
}

/// Is told the key of a changed entry, and its value before and after.
type TellChange<'a> = &'a mut dyn FnMut(&[u8], Option<&[u8]>, Option<&[u8]>) -> Result<()>;

/// Tells which entries of its table a batch changes, each once.
fn for_each_change(batch: &Batch<'_>, tell: TellChange<'_>) -> Result<()> {
    let missing = || Error::TableDoesNotExist { name: batch.key.name.to_string() };
    let view = batch.slot.view_of(lock(&batch.slot.table).as_ref().ok_or_else(missing)?)?;

    let is_simple = |update: &Update<'_>| {
        matches!(update, Update::Insert(_) | Update::InsertWithBlob(..) | Update::Delete)
    };
    if !batch.updates.iter().all(|(_, update)| is_simple(update)) {
        let mut after = view.fork()?;
        after.replay(&batch.updates, None)?;
        return tell_differences(&view, &after, tell);
    }

    // The last update of a key counts.
    let mut last: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
    for (key, update) in &batch.updates {
        let value = match update {
            Update::Insert(value) | Update::InsertWithBlob(value, _) => Some(*value),
            _ => None,
        };
        last.insert(*key, value);
    }
    let keys: Vec<&[u8]> = last.keys().copied().collect();
    let found = view.get_many(&keys)?;
    for ((key, new), old) in last.iter().zip(&found) {
        tell(key, old.value(), *new)?;
    }
    Ok(())
}

/// Tells in what one table differs from another one.
pub(crate) fn tell_differences(before: &Table, after: &Table, tell: TellChange<'_>) -> Result<()> {
    for change in before.diff(after)? {
        let change = change?;
        tell(&change.key, change.old.value(), change.new.value())?;
    }
    Ok(())
}

impl Shared {
    /// The indexes of the store.
    pub(crate) fn indexes(&self) -> Arc<Indexes> {
        Arc::clone(&lock(&self.indexes))
    }

    /// Takes the list of indexes from a manifest, with the function of one perhaps; the caller
    /// holds the state, and the writers of all tables that the change concerns.
    pub(crate) fn renew_indexes(
        &self,
        _state: &State,
        manifest: &StoreManifest,
        added: Option<(u64, &Derivation)>,
    ) {
        let mut indexes = lock(&self.indexes);
        let next = Indexes::of(manifest, &indexes, added);
        // Commits that come in between look at the list again, so an equal one stays.
        if !(next.is_empty() && indexes.is_empty()) {
            *indexes = Arc::new(next);
        }
    }

    /// The indexes that a commit to these tables changes.
    ///
    /// # Errors
    /// [`Error::TableIsIndex`], [`Error::IndexNotRegistered`].
    pub(crate) fn changed_indexes(
        &self,
        tables: impl Iterator<Item = u64>,
    ) -> Result<ChangedIndexes> {
        let list = self.indexes();
        if list.is_empty() {
            return Ok(ChangedIndexes { indexes: Vec::new(), list });
        }

        // The list and the slots change at the same moment.
        let state = lock(&self.state);
        let list = self.indexes();
        let mut indexes = Vec::new();
        for table in tables {
            for index in list.changed_by(table)? {
                let (Some(derivation), Some(slot)) =
                    (&index.derivation, state.tables.get(&index.id))
                else {
                    return Err(Error::IndexNotRegistered { index: index.name.clone() });
                };
                indexes.push(ChangedIndex {
                    key: TableKey { id: index.id, name: TableName(index.name.clone()) },
                    slot: Arc::clone(slot),
                    source: index.source,
                    derivation: derivation.clone(),
                });
            }
        }
        Ok(ChangedIndexes { indexes, list })
    }

    /// Whether the indexes are still those of that moment.
    pub(crate) fn are_current(&self, indexes: &ChangedIndexes) -> bool {
        Arc::ptr_eq(&indexes.list, &self.indexes())
    }
}
