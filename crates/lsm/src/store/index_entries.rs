//! Entries of a secondary index, and which indexes a store has.
//!
//! The key of an entry is the index key, escaped and ended, and behind it the key of the source's
//! entry. So entries stand in the order of their index keys, those of one index key stand together
//! in the order of the source, and no two entries of the source share one.
//!
//! The functions are known to the process only; the manifest says which table is the index of which
//! one, and of which version its function was.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use crate::entry::entry::Update;
use crate::entry::key_range::KeyRange;
use crate::error::{Error, Result};
use crate::manifest::manifest::StoreManifest;

/// Stands behind a zero byte of an index key.
const ESCAPE: u8 = 0xFF;

/// Stands behind the zero byte that ends an index key.
const END: u8 = 0;

/// A collector of what an index has for one entry of its source: the argument of the function given
/// to [`NamedTable::derive`](crate::NamedTable::derive).
#[derive(Debug)]
pub struct IndexEntries<'a> {
    key: &'a [u8],
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl IndexEntries<'_> {
    /// Adds an entry under an index key, with a value of its own, which may be empty. Of two
    /// entries under one index key the later one counts.
    ///
    /// The index key, each zero byte counted twice, two bytes, and the key of the source's entry
    /// are at most [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX) long together; else the commit is
    /// refused.
    pub fn add(&mut self, index_key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let key = compose(index_key.as_ref(), self.key);
        self.entries.insert(key, value.as_ref().to_vec());
    }
}

fn escaped(index_key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(index_key.len() + 2);
    for &byte in index_key {
        out.push(byte);
        if byte == 0 {
            out.push(ESCAPE);
        }
    }
    out
}

/// The beginning of the keys of all entries under an index key.
fn prefix_of(index_key: &[u8]) -> Vec<u8> {
    let mut out = escaped(index_key);
    out.extend([0, END]);
    out
}

/// The first key behind those of all entries under an index key.
fn behind(index_key: &[u8]) -> Vec<u8> {
    let mut out = escaped(index_key);
    out.extend([0, END + 1]);
    out
}

fn compose(index_key: &[u8], key: &[u8]) -> Vec<u8> {
    let mut out = prefix_of(index_key);
    out.extend_from_slice(key);
    out
}

/// Divides the key of an entry into the index key and the key of the source's entry; `None` if it
/// is no such key.
pub(crate) fn split(entry_key: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut index_key = Vec::new();
    let mut rest = entry_key;
    loop {
        match rest {
            [0, END, key @ ..] => return Some((index_key, key)),
            [0, ESCAPE, after @ ..] => {
                index_key.push(0);
                rest = after;
            }
            [byte @ 1..=u8::MAX, after @ ..] => {
                index_key.push(*byte);
                rest = after;
            }
            _ => return None,
        }
    }
}

/// The keys of the entries whose index keys are in a range.
pub(crate) fn keys_of(index_keys: &KeyRange) -> KeyRange {
    let from = match &index_keys.from {
        Bound::Included(key) => Bound::Included(prefix_of(key)),
        Bound::Excluded(key) => Bound::Included(behind(key)),
        Bound::Unbounded => Bound::Unbounded,
    };
    let to = match &index_keys.to {
        Bound::Included(key) => Bound::Excluded(behind(key)),
        Bound::Excluded(key) => Bound::Excluded(prefix_of(key)),
        Bound::Unbounded => Bound::Unbounded,
    };
    KeyRange { from, to }
}

/// A function that makes the entries of an index.
type Function = dyn Fn(&[u8], &[u8], &mut IndexEntries<'_>) + Send + Sync;

/// A function of an index and its version.
#[derive(Clone)]
pub(crate) struct Derivation {
    pub(crate) version: u32,
    function: Arc<Function>,
}

impl fmt::Debug for Derivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Derivation").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Derivation {
    pub(crate) fn new(
        version: u32,
        function: impl Fn(&[u8], &[u8], &mut IndexEntries<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self { version, function: Arc::new(function) }
    }

    /// The entries of the index for one entry of the source; none without an entry.
    pub(crate) fn entries(&self, key: &[u8], value: Option<&[u8]>) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut made = IndexEntries { key, entries: BTreeMap::new() };
        if let Some(value) = value {
            (self.function)(key, value, &mut made);
        }
        made.entries
    }

    /// Adds what changes in the index when an entry of the source does.
    pub(crate) fn changes(
        &self,
        key: &[u8],
        (old, new): (Option<&[u8]>, Option<&[u8]>),
        changes: &mut Vec<IndexChange>,
    ) {
        if old == new {
            return;
        }
        let mut before = self.entries(key, old);
        for (key, value) in self.entries(key, new) {
            if before.remove(&key).is_none_or(|before| before != value) {
                changes.push((key, Some(value)));
            }
        }
        changes.extend(before.into_keys().map(|key| (key, None)));
    }
}

/// A change of an index: a key, and its value or its deletion.
pub(crate) type IndexChange = (Vec<u8>, Option<Vec<u8>>);

/// A change as a batch has it.
pub(crate) fn update_of((key, value): &IndexChange) -> (&[u8], Update<'_>) {
    (key, value.as_deref().map_or(Update::Delete, Update::Insert))
}

/// An index of a store.
#[derive(Debug, Clone)]
pub(crate) struct IndexTable {
    /// Its number as a table, and its name.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) source: u64,
    /// The function, if this process has registered it in the version that made the index.
    pub(crate) derivation: Option<Derivation>,
}

/// The indexes of a store, by number. A list never changes; another one takes its place.
#[derive(Debug, Default)]
pub(crate) struct Indexes(Vec<IndexTable>);

impl Indexes {
    /// The indexes of a manifest, with the functions that are known of another list, and perhaps of
    /// one index more.
    pub(crate) fn of(
        manifest: &StoreManifest,
        known: &Self,
        added: Option<(u64, &Derivation)>,
    ) -> Self {
        let mut tables = Vec::new();
        for table in &manifest.tables {
            let Some(derived) = table.derived else { continue };
            let before = known.0.iter().find(|index| index.id == table.id);
            let derivation = added
                .filter(|(id, _)| *id == table.id)
                .map(|(_, derivation)| derivation)
                .or_else(|| before.and_then(|index| index.derivation.as_ref()))
                .filter(|derivation| derivation.version == derived.version);
            tables.push(IndexTable {
                id: table.id,
                name: table.name.clone(),
                source: derived.source,
                derivation: derivation.cloned(),
            });
        }
        Self(tables)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The indexes of a table that a commit changes.
    ///
    /// # Errors
    /// [`Error::TableIsIndex`] if the table is one itself; [`Error::IndexNotRegistered`] if this
    /// process does not know the function of one.
    pub(crate) fn changed_by(&self, table: u64) -> Result<Vec<&IndexTable>> {
        if let Some(index) = self.0.iter().find(|index| index.id == table) {
            return Err(Error::TableIsIndex { table: index.name.clone() });
        }
        let indexes: Vec<_> = self.0.iter().filter(|index| index.source == table).collect();
        match indexes.iter().find(|index| index.derivation.is_none()) {
            Some(index) => Err(Error::IndexNotRegistered { index: index.name.clone() }),
            None => Ok(indexes),
        }
    }

    /// Whether the function of an index is known.
    pub(crate) fn is_registered(&self, id: u64) -> bool {
        self.0.iter().any(|index| index.id == id && index.derivation.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Index keys sort as their entries do, no entry of one stands among those of another, and both
    /// parts are found again.
    #[test]
    fn entries_stand_in_the_order_of_their_index_keys() {
        let parts: [&[u8]; 9] =
            [b"", b"\0", b"\0\0", b"\0\xFF", b"\x01", b"a", b"a\0", b"a\0b", b"\xFF"];
        let mut all: Vec<(&[u8], &[u8])> = Vec::new();
        for index_key in parts {
            all.extend(parts.map(|key| (index_key, key)));
        }
        all.sort_unstable();
        let keys: Vec<_> = all.iter().map(|(index_key, key)| compose(index_key, key)).collect();
        assert!(keys.is_sorted_by(|one, next| one < next));

        for ((index_key, key), entry_key) in all.iter().zip(&keys) {
            assert_eq!(split(entry_key), Some((index_key.to_vec(), *key)));
            for bound in parts {
                let is_in =
                    |range: &KeyRange| !range.is_below(entry_key) && !range.is_above(entry_key);
                let bound = bound.to_vec();
                let from = KeyRange { from: Bound::Included(bound.clone()), to: Bound::Unbounded };
                assert_eq!(is_in(&keys_of(&from)), *index_key >= bound.as_slice());
                let after = KeyRange { from: Bound::Excluded(bound.clone()), to: Bound::Unbounded };
                assert_eq!(is_in(&keys_of(&after)), *index_key > bound.as_slice());
                let until = KeyRange { from: Bound::Unbounded, to: Bound::Included(bound.clone()) };
                assert_eq!(is_in(&keys_of(&until)), *index_key <= bound.as_slice());
                let below = KeyRange { from: Bound::Unbounded, to: Bound::Excluded(bound.clone()) };
                assert_eq!(is_in(&keys_of(&below)), *index_key < bound.as_slice());
            }
        }
        for broken in [&b""[..], b"a", b"\0", b"a\0\x01"] {
            assert_eq!(split(broken), None);
        }
    }

    #[test]
    fn a_change_of_an_entry_changes_only_what_differs() {
        let derivation = Derivation::new(1, |key, value, entries| {
            for word in value.split(|&byte| byte == b' ') {
                entries.add(word, key);
            }
        });
        let mut changes = Vec::new();
        derivation.changes(b"k", (Some(b"a b"), Some(b"b c c")), &mut changes);
        assert_eq!(
            changes,
            [(compose(b"c", b"k"), Some(b"k".to_vec())), (compose(b"a", b"k"), None)]
        );
        changes.clear();
        derivation.changes(b"k", (Some(b"a"), Some(b"a")), &mut changes);
        assert!(changes.is_empty());
    }
}
