//! Records of nodes that updates have visited, in memory.
//!
//! A record follows from the entries of its trie, so the records of a state follow from its root.
//! The cache names the root of its records, and gives them up when it is asked about another one.
//!
//! Records have two generations. One that is used joins the young one. When the young one has half
//! of the budget, the old one goes, and the young one becomes the old one.
//!
//! Invariants: a record is the one that the tables had at the root. The bytes of both generations
//! stay within the budget, but for one record.

use std::collections::HashMap;
use std::sync::Arc;

use alloy_primitives::B256;

use crate::base::error::Result;
use crate::base::keys::NodeKey;

/// Bytes of the cache unless asked for otherwise.
pub(crate) const NODE_CACHE_BYTES: u64 = 64 << 20;

/// Bytes that a record takes beside its key and itself: a place in a map, a block with counts.
const ENTRY_BYTES: usize = 96;

/// The bytes of a record, shared with the batch and the update.
type RecordBytes = Arc<[u8]>;

/// The table of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeKind {
    /// A node of the account trie, or of the one trie of a table.
    Account,
    /// A node of a storage trie; the key begins with the hash of its account.
    Storage,
}

/// The records of a state at one root, as far as they fit.
#[derive(Debug)]
pub(crate) struct NodeCache {
    /// Most bytes of a generation.
    half: usize,
    root: B256,
    young: Generation,
    old: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    /// By kind, and by key.
    records: [HashMap<NodeKey, RecordBytes>; 2],
    bytes: usize,
}

/// Nodes that a batch changes.
#[derive(Debug, Default)]
pub(crate) struct NodeChanges {
    /// Accounts whose nodes all go before the others come.
    wiped: Vec<B256>,
    records: Vec<(NodeKind, NodeKey, Option<RecordBytes>)>,
}

impl NodeChanges {
    /// Deletes the nodes of a storage trie, and what was written of it before.
    pub(crate) fn wipe(&mut self, account: B256) {
        debug_assert!(
            !self.records.iter().any(|(_, key, _)| key.starts_with(account.as_slice())),
            "nodes are written after the wipe"
        );
        self.wiped.push(account);
    }

    /// Writes a record, or deletes it.
    pub(crate) fn put(&mut self, kind: NodeKind, key: NodeKey, record: Option<RecordBytes>) {
        self.records.push((kind, key, record));
    }
}

impl NodeCache {
    /// A cache of at most so many bytes; of 0 bytes it keeps nothing.
    pub(crate) fn new(bytes: u64) -> Self {
        let half = usize::try_from(bytes / 2).unwrap_or(usize::MAX);
        Self { half, root: B256::ZERO, young: Generation::default(), old: Generation::default() }
    }

    /// The cache at a root: without the records of another one.
    pub(crate) fn at(&mut self, root: B256) -> &mut Self {
        if self.root != root {
            self.clear();
            self.root = root;
        }
        self
    }

    /// Gives up all records.
    pub(crate) fn clear(&mut self) {
        *self = Self { half: self.half, ..Self::new(0) };
    }

    /// The records of keys; those that the cache lacks are read, and kept.
    pub(crate) fn read(
        &mut self,
        kind: NodeKind,
        keys: &[NodeKey],
        read: impl FnOnce(&[&NodeKey]) -> Result<Vec<Option<Vec<u8>>>>,
    ) -> Result<Vec<Option<RecordBytes>>> {
        let mut found: Vec<_> = keys.iter().map(|key| self.get(kind, key)).collect();
        let lacks = |(_, found): &(&NodeKey, &Option<RecordBytes>)| found.is_none();
        let missing: Vec<&NodeKey> =
            keys.iter().zip(&found).filter(lacks).map(|(key, _)| key).collect();
        if missing.is_empty() {
            return Ok(found);
        }

        let records = read(&missing)?;
        debug_assert_eq!(records.len(), missing.len(), "an answer for each key");
        let places = found.iter_mut().filter(|found| found.is_none());
        for ((place, key), record) in places.zip(missing).zip(records) {
            let record: Option<RecordBytes> = record.map(Into::into);
            if let Some(record) = &record {
                self.insert(kind, key.clone(), Arc::clone(record));
            }
            *place = record;
        }
        Ok(found)
    }

    /// Follows a batch that was written: the records are those of the root `after` from now on.
    pub(crate) fn advance(&mut self, before: B256, changes: NodeChanges, after: B256) {
        self.at(before).root = after;
        let NodeChanges { wiped, records } = changes;
        if !wiped.is_empty() {
            let is_wiped = |key: &[u8]| wiped.iter().any(|account| key.starts_with(&account[..]));
            self.young.retain(|key| !is_wiped(key));
            self.old.retain(|key| !is_wiped(key));
        }
        for (kind, key, record) in records {
            // Mostly the batch has read the record that it changes, which is young.
            match record {
                Some(record) if self.young.replace(kind, &key, &record) => {}
                record => {
                    self.young.remove(kind, &key);
                    self.old.remove(kind, &key);
                    if let Some(record) = record {
                        self.insert(kind, key, record);
                    }
                }
            }
        }
    }

    /// A record that the cache has, which is young from then on.
    fn get(&mut self, kind: NodeKind, key: &[u8]) -> Option<RecordBytes> {
        if let Some(record) = self.young.records[kind as usize].get(key) {
            return Some(Arc::clone(record));
        }
        let (key, record) = self.old.remove(kind, key)?;
        self.insert(kind, key, Arc::clone(&record));
        Some(record)
    }

    fn insert(&mut self, kind: NodeKind, key: NodeKey, record: RecordBytes) {
        let bytes = bytes_of(&key, &record);
        if self.half < bytes {
            return;
        }
        if self.half < self.young.bytes + bytes {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.bytes += bytes;
        let before = self.young.records[kind as usize].insert(key, record);
        debug_assert!(before.is_none(), "a record stands once");
    }
}

impl Generation {
    /// Puts a record in the place of one of the same length; says whether there was one.
    fn replace(&mut self, kind: NodeKind, key: &[u8], record: &RecordBytes) -> bool {
        let place = self.records[kind as usize].get_mut(key);
        let place = place.filter(|place| place.len() == record.len());
        place.map(|place| *place = Arc::clone(record)).is_some()
    }

    fn remove(&mut self, kind: NodeKind, key: &[u8]) -> Option<(NodeKey, RecordBytes)> {
        let (key, record) = self.records[kind as usize].remove_entry(key)?;
        self.bytes -= bytes_of(&key, &record);
        Some((key, record))
    }

    /// Keeps storage nodes of some keys.
    fn retain(&mut self, keep: impl Fn(&[u8]) -> bool) {
        let bytes = &mut self.bytes;
        self.records[NodeKind::Storage as usize].retain(|key, record| {
            let is_kept = keep(key);
            if !is_kept {
                *bytes -= bytes_of(key, record);
            }
            is_kept
        });
    }
}

fn bytes_of(key: &[u8], record: &[u8]) -> usize {
    key.len() + record.len() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOTS: [B256; 3] = [B256::ZERO, B256::repeat_byte(1), B256::repeat_byte(2)];

    fn key(account: u8, number: u8) -> NodeKey {
        NodeKey::from_vec([B256::repeat_byte(account).as_slice(), &[number]].concat())
    }

    /// Reads keys of storage nodes; the tables answer with `table`. Returns the keys that were
    /// looked up, and the answers.
    fn read(
        cache: &mut NodeCache,
        keys: &[NodeKey],
        table: &HashMap<NodeKey, Vec<u8>>,
    ) -> (usize, Vec<Option<Vec<u8>>>) {
        let mut asked = 0;
        let found = cache.read(NodeKind::Storage, keys, |missing| {
            asked = missing.len();
            Ok(missing.iter().map(|key| table.get(*key).cloned()).collect())
        });
        let found = found.unwrap().into_iter();
        (asked, found.map(|record| record.map(|record| record.to_vec())).collect())
    }

    #[test]
    fn a_record_is_read_once_until_the_root_is_another_one() {
        let mut cache = NodeCache::new(1 << 20);
        let table = HashMap::from([(key(1, 1), vec![11]), (key(1, 2), vec![12])]);
        let keys = [key(1, 1), key(9, 9), key(1, 2)];
        let expected = vec![Some(vec![11]), None, Some(vec![12])];
        assert_eq!(read(cache.at(ROOTS[1]), &keys, &table), (3, expected.clone()));
        assert_eq!(read(cache.at(ROOTS[1]), &keys, &table), (1, expected.clone()));
        assert_eq!(read(cache.at(ROOTS[2]), &keys, &table), (3, expected.clone()));
        // An account node of the same key is another record.
        let other = cache.read(NodeKind::Account, &keys[..1], |_| Ok(vec![None])).unwrap();
        assert_eq!(other, [None]);
        cache.clear();
        assert_eq!(read(cache.at(ROOTS[2]), &keys, &table), (3, expected));
    }

    #[test]
    fn changes_of_a_batch_take_the_place_of_what_was_there() {
        let mut cache = NodeCache::new(1 << 20);
        let table = HashMap::from([
            (key(1, 1), vec![11]),
            (key(1, 2), vec![12]),
            (key(2, 1), vec![21]),
            (key(2, 2), vec![22]),
        ]);
        let keys = [key(1, 1), key(1, 2), key(2, 1), key(2, 2)];
        read(cache.at(ROOTS[0]), &keys, &table);

        let mut changes = NodeChanges::default();
        changes.wipe(B256::repeat_byte(1));
        changes.put(NodeKind::Storage, key(1, 2), Some([112].into()));
        changes.put(NodeKind::Storage, key(2, 1), None);
        changes.put(NodeKind::Storage, key(2, 2), Some([122].into()));
        cache.advance(ROOTS[0], changes, ROOTS[1]);
        let expected = vec![None, Some(vec![112]), None, Some(vec![122])];
        assert_eq!(read(cache.at(ROOTS[1]), &keys, &HashMap::new()), (2, expected));

        // A batch on another root tells nothing of the records that are there.
        let mut changes = NodeChanges::default();
        changes.put(NodeKind::Storage, key(2, 2), Some([7].into()));
        cache.advance(ROOTS[2], changes, ROOTS[0]);
        let expected = vec![None, None, None, Some(vec![7])];
        assert_eq!(read(cache.at(ROOTS[0]), &keys, &HashMap::new()), (3, expected));
    }

    #[test]
    fn what_is_used_stays_within_the_budget() {
        let most = 10 * bytes_of(&key(0, 0), &[0]);
        let mut cache = NodeCache::new(most as u64);
        let table: HashMap<_, _> = (0..=255).map(|number| (key(1, number), vec![number])).collect();
        for number in 1..=255 {
            let (_, found) = read(cache.at(ROOTS[1]), &[key(1, 0), key(1, number)], &table);
            assert_eq!(found, [Some(vec![0]), Some(vec![number])]);
            assert!(cache.young.bytes + cache.old.bytes <= most, "{number}");
            let bytes = |generation: &Generation| -> usize {
                let records = generation.records.iter().flatten();
                records.map(|(key, record)| bytes_of(key, record)).sum()
            };
            assert_eq!(bytes(&cache.young), cache.young.bytes);
            assert_eq!(bytes(&cache.old), cache.old.bytes);
            // The first key was used each time.
            assert_eq!(read(cache.at(ROOTS[1]), &[key(1, 0)], &HashMap::new()).0, 0);
        }
        assert_eq!(read(cache.at(ROOTS[1]), &[key(1, 1)], &table).0, 1, "it had to go");

        let mut none = NodeCache::new(0);
        for _ in 0..2 {
            assert_eq!(read(none.at(ROOTS[1]), &[key(1, 1)], &table), (1, vec![Some(vec![1])]));
        }
    }
}
