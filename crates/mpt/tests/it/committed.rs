//! Tables that are committed to a root.
//!
//! Goal: the root is that of the secure trie over the entries as they are, whatever led to them;
//! proofs verify, of empty values too, and of absence; nodes are those of the entries; a load is
//! there with all of its tables or not at all. Method: seeded batches and loads against a map and
//! the naive trie; a crash and a fault at calls of a load.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{Bytes, keccak256};
use terrane_io::{Disk, FaultKind, FaultPlan, MemoryDisk, SimDisk, Survival};
use terrane_lsm::{SessionOptions, Store, StoreOptions, TableConfig, WriteBatch};
use terrane_mpt::{B256, BinaryTree, CommittedTable, EMPTY_ROOT, KeccakMpt, Result, TableScheme};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Sweep};

use crate::naive::{self, Map};

/// A salt of its own, so that a run makes the same calls again.
fn options() -> StoreOptions {
    StoreOptions::default().session(SessionOptions::with_salt(7).create_dir())
}

fn store() -> Store {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    Store::open(disk, Path::new("/table"), &options()).unwrap()
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

            if rng.chance(1, 2) {
                // Reads of the block, some of whose keys it changes; a commit may come between.
                let changed = batch.iter().map(|(key, _)| key.clone());
                let read: Vec<_> = changed.take(9).chain([vec![], vec![7]]).collect();
                let stored = table.entries().get_many(&read).unwrap();
                let stored = stored.iter().map(|value| value.value().map(<[u8]>::to_vec));
                assert_eq!(table.get_many(&read).unwrap(), stored.collect::<Vec<_>>());
                if rng.chance(1, 2) {
                    let mut writes = WriteBatch::new();
                    let between: Vec<_> = read[..1].iter().map(|key| (key.clone(), None)).collect();
                    let staged = table.stage(&between, &mut writes).unwrap();
                    drop(store.write_if(&writes, staged.commit).unwrap());
                }
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

/// Keys and values in any order.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Entries of a load: some keys come twice, and the later value counts.
fn draw_entries(rng: &mut impl Draw, count: u64) -> (Entries, Map) {
    let draw = |_| {
        let key = rng.below(count).to_le_bytes()[..3].to_vec();
        let length = rng.index(90);
        (key, rng.bytes(length))
    };
    let entries: Vec<_> = (0..count).map(draw).collect();
    let map = entries.iter().cloned().collect();
    (entries, map)
}

/// Loads entries, then goes on with batches, and compares with a table that had batches alone.
fn check_load<S: TableScheme>(rng: &mut impl Draw, count: u64, threads: usize) {
    let store = store();
    let (entries, mut map) = draw_entries(rng, count);
    let config = TableConfig::default();
    let mut loader = CommittedTable::<S>::bulk_load_with_scheme(&store, "loaded", &config).unwrap();
    for (key, value) in &entries {
        loader.insert(key, value).unwrap();
    }
    let (loaded, root) = loader.finish().unwrap();
    assert_eq!(loaded.root().unwrap(), root);
    assert_eq!(loaded.verify().unwrap(), map.len() as u64);
    assert!(CommittedTable::<S>::bulk_load_with_scheme(&store, "loaded", &config).is_err());

    let batched = CommittedTable::<S>::open_with_scheme(&store, "batched").unwrap().threads(1);
    let stage = |table: &CommittedTable<S>, changes: &[(Vec<u8>, Option<Vec<u8>>)]| {
        let mut batch = WriteBatch::new();
        let staged = table.stage(changes, &mut batch).unwrap();
        drop(store.write_if(&batch, staged.commit).unwrap());
        staged.root
    };
    let all = map.iter().map(|(key, value)| (key.clone(), Some(value.clone())));
    assert_eq!(stage(&batched, &all.collect::<Vec<_>>()), root);

    // Large batches, which several threads share.
    let loaded = loaded.threads(threads);
    for _ in 0..3 {
        let mut changes = Map::new();
        let mut batch = Vec::new();
        for _ in 0..600 {
            let length = rng.index(90);
            changes.insert(rng.below(2 * count).to_le_bytes()[..3].to_vec(), rng.bytes(length));
        }
        for (key, value) in changes {
            let value = (!rng.chance(1, 4)).then_some(value);
            match &value {
                Some(value) => drop(map.insert(key.clone(), value.clone())),
                None => drop(map.remove(&key)),
            }
            batch.push((key, value));
        }
        assert_eq!(stage(&loaded, &batch), stage(&batched, &batch));
        assert_eq!(loaded.verify().unwrap(), map.len() as u64);
    }
}

#[test]
fn a_load_gives_the_table_that_batches_give() {
    for_each_seed("a_load_gives_the_table_that_batches_give", by_effort(3, 40), |rng, seed| {
        let count = [0, 1, 40, 3_000][seed as usize % 4].max(rng.below(2));
        check_load::<KeccakMpt>(rng, count, 3);
        check_load::<BinaryTree>(rng, count, 2);
    });
}

/// Loads 300 entries; the root, if the load ended well.
fn load(disk: &Arc<SimDisk>, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<B256> {
    let store = Store::open(Arc::clone(disk) as _, Path::new("/table"), &options())?;
    let mut loader = CommittedTable::bulk_load(&store, "ledger", &TableConfig::default())?;
    entries.iter().try_for_each(|(key, value)| loader.insert(key, value))?;
    loader.finish().map(|(_, root)| root)
}

/// After a load that ended early there is no table, or all of it, and a second load works.
fn check_load_image(disk: &Arc<SimDisk>, entries: &[(Vec<u8>, Vec<u8>)], map: &Map, is_done: bool) {
    let hashed = map.iter().map(|(key, value)| (keccak256(key).to_vec(), value.clone()));
    let root = naive::root(&hashed.collect());
    let shared: Arc<dyn Disk> = disk.clone();
    let store = Store::open(shared, Path::new("/table"), &options()).unwrap();
    let is_there = store.table("ledger").is_ok();
    assert!(is_there || !is_done, "a load that returned is there");
    if is_there {
        let table = CommittedTable::open(&store, "ledger").unwrap();
        assert_eq!(table.root().unwrap(), root);
        assert_eq!(table.verify().unwrap(), map.len() as u64);
        return;
    }
    drop(store);
    // What an earlier load has left is in the way of nothing.
    assert_eq!(load(disk, entries).unwrap(), root);
}

#[test]
fn a_crash_or_a_fault_leaves_no_table_or_the_whole_one() {
    let mut drawn = None;
    for_each_seed("a_crash_or_a_fault_leaves_no_table", 1, |rng, _| {
        drawn = Some(draw_entries(rng, 300));
    });
    let (entries, map) = drawn.unwrap();
    let images = Sweep::sampled(31, 60).one_in(3).crash(
        |disk| load(disk, &entries).is_ok(),
        |crash| {
            crash.images(Loss::each(crash.call), |image| {
                check_load_image(&image.disk, &entries, &map, *crash.run);
            })
        },
    );
    assert!(6 <= images, "{images}");

    let struck = Sweep::sampled(32, 60).one_in(3).fault(FaultKind::Eio, None, |disk, _| {
        let is_done = load(disk, &entries).is_ok();
        disk.set_plan(FaultPlan::default());
        let after = disk.after_crash(Survival::Everything);
        check_load_image(&after, &entries, &map, is_done);
    });
    assert!(0 < struck);
}

/// The tables that an ended load has left are dropped, and one of somebody else is not.
#[test]
fn what_an_ended_load_has_left_is_dropped() {
    let store = store();
    let make = |name: &str| {
        let table = store.table_or_create(name, &TableConfig::default()).unwrap();
        table.insert(&[], b"nonsense").unwrap().wait().unwrap();
    };
    make("ledger_nodes");
    let load = |name| CommittedTable::bulk_load(&store, name, &TableConfig::default());
    assert!(load("ledger").is_err());
    assert!(store.table("ledger_nodes").unwrap().get(&[]).unwrap().is_found());

    make("ledger_load");
    let table = CommittedTable::open(&store, "ledger").unwrap();
    assert_eq!((table.root().unwrap(), table.verify().unwrap()), (EMPTY_ROOT, 0));
    assert!(store.table("ledger_load").is_err());
}
