//! Tables that are committed to a root.
//!
//! Goal: the root is that of the secure trie over the entries as they are, whatever led to them;
//! proofs verify, of empty values too, and of absence; nodes are those of the entries. Method:
//! seeded batches against a map and the naive trie.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{Bytes, keccak256};
use terrane_io::{Disk, MemoryDisk};
use terrane_lsm::{Store, StoreOptions, WriteBatch};
use terrane_mpt::{CommittedTable, EMPTY_ROOT};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::naive::{self, Map};

fn store() -> Store {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    Store::open(disk, Path::new("/table"), &StoreOptions::default().create_dir()).unwrap()
}

#[test]
fn the_root_is_that_of_the_hashed_keys_and_values_as_they_are() {
    let name = "the_root_is_that_of_the_hashed_keys_and_values_as_they_are";
    for_each_seed(name, by_effort(4, 100), |rng, _| {
        let store = store();
        let table = CommittedTable::open(&store, "ledger").unwrap();
        assert_eq!(table.root().unwrap(), EMPTY_ROOT);
        let mut model = Map::new();
        for _ in 0..12 {
            if rng.chance(1, 3) {
                // A batch that nobody writes leaves nothing behind.
                let length = rng.index(4);
                let unwritten = [(rng.bytes(length), Some(vec![7]))];
                let _ = table.stage(&unwritten, &mut WriteBatch::new()).unwrap();
            }
            let mut changes = Map::new();
            let mut batch = Vec::new();
            for _ in 0..rng.below(20) {
                let length = rng.index(4);
                let key = rng.bytes(length);
                let length = rng.index(40);
                changes.insert(key, rng.bytes(length));
            }
            for (key, value) in changes {
                let value = (!rng.chance(1, 3)).then_some(value);
                match &value {
                    Some(value) => drop(model.insert(key.clone(), value.clone())),
                    None => drop(model.remove(&key)),
                }
                batch.push((key, value));
            }

            let mut writes = WriteBatch::new();
            let staged = table.stage(&batch, &mut writes).unwrap();
            drop(store.write_if(&writes, staged.commit).unwrap());
            let hashed = model.iter().map(|(key, value)| (keccak256(key).to_vec(), value.clone()));
            assert_eq!(staged.root, naive::root(&hashed.collect()));
            assert_eq!(table.root().unwrap(), staged.root);
            assert_eq!(table.verify().unwrap(), model.len() as u64);

            for _ in 0..20 {
                let length = rng.index(4);
                let key = rng.bytes(length);
                let mut nodes = table.prove(&key).unwrap();
                let value = CommittedTable::verify_proof(staged.root, &key, &nodes);
                assert_eq!(value.unwrap(), model.get(&key).cloned());

                if nodes.is_empty() {
                    continue;
                }
                let at = rng.index(nodes.len());
                let mut bytes = nodes[at].to_vec();
                let bit = rng.index(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                nodes[at] = Bytes::from(bytes);
                assert!(CommittedTable::verify_proof(staged.root, &key, &nodes).is_err());
            }
        }

        let mut batch = WriteBatch::new();
        let staged = table.stage_clear(&mut batch);
        drop(store.write_if(&batch, staged.commit).unwrap());
        assert_eq!((table.root().unwrap(), table.verify().unwrap()), (EMPTY_ROOT, 0));
    });
}

/// A trie of so few entries has no record, and the root follows from the entries themselves.
#[test]
fn one_empty_value_has_a_root() {
    let store = store();
    let table = CommittedTable::open(&store, "ledger").unwrap();
    for key in [b"a", b"b"] {
        let mut batch = WriteBatch::new();
        let staged = table.stage(&[(key.to_vec(), Some(Vec::new()))], &mut batch).unwrap();
        drop(store.write_if(&batch, staged.commit).unwrap());
        assert_eq!(table.root().unwrap(), staged.root);
    }
    let hashed = [b"a", b"b"].map(|key| (keccak256(key).to_vec(), Vec::new()));
    assert_eq!(table.root().unwrap(), naive::root(&hashed.into_iter().collect()));
}

#[test]
fn a_table_whose_entries_changed_without_it_is_found() {
    let store = store();
    let table = CommittedTable::open(&store, "ledger").unwrap();
    let mut batch = WriteBatch::new();
    let put = |key: &[u8], value: &[u8]| (key.to_vec(), Some(value.to_vec()));
    let changes: Vec<_> = (0..200_u8).map(|byte| put(&[byte], &[byte; 40])).collect();
    let staged = table.stage(&changes, &mut batch).unwrap();
    drop(store.write_if(&batch, staged.commit).unwrap());
    assert_eq!(table.verify().unwrap(), 200);

    table.entries().insert(&[7], b"other").unwrap().wait().unwrap();
    assert!(table.verify().is_err());
    assert!(table.prove(&[7]).is_err());
}
