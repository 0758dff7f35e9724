//! Contexts that advance over their commits while older commits are collected: new records never
//! refer to collected ones.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    Context, GcPace, GcProgress, Hash, Indexing, Meta, Options, Retain, Store, StoreReader,
};
use terrane_io::{Disk, MemoryDisk};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

const DIR: &str = "store";

fn options(indexing: Indexing) -> Options {
    let options = Options::new(Arc::new(BtreeIndexes::new(1 << 20)));
    options.chunk_bytes(16 << 10).indexing(indexing)
}

fn create(disk: &Arc<dyn Disk>, indexing: Indexing) -> Store {
    Store::create(Arc::clone(disk), Path::new(DIR), &options(indexing)).unwrap()
}

fn collect(store: &Store) {
    store.collect(&Retain::newest(1), &mut |_| GcPace::Go).unwrap();
}

/// A commit as a process sees it that has nothing in memory.
fn fresh(disk: &Arc<dyn Disk>, commit: &Hash) -> Context {
    let reader = StoreReader::open(Arc::clone(disk), Path::new(DIR), 1 << 20).unwrap();
    reader.checkout(commit).unwrap().unwrap()
}

#[test]
fn no_delta_is_based_on_a_record_that_was_collected() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let store = create(&disk, Indexing::Minimal);
    let path = |kind: &str, number: u32| ["d".to_owned(), format!("{kind}{number:03}")];
    let mut context = store.empty();
    for number in 0..100 {
        context.add(&path("old", number), [1; 40]).unwrap();
    }
    let first = store.commit(&context, &Meta::tezos(1, "")).unwrap();
    let mut context = store.checkout(&first).unwrap().unwrap();

    // So many changes make a full record.
    for number in 0..20 {
        context.add(&path("new", number), [2; 40]).unwrap();
    }

    context.advance(store.commit(&context, &Meta::tezos(2, "")).unwrap());
    collect(&store);

    // From the first record the directory differs by a few steps only.
    for number in 0..15 {
        context.remove(&path("new", number)).unwrap();
    }

    let last = store.commit(&context, &Meta::tezos(3, "")).unwrap();
    assert!(fresh(&disk, &last).find(&path("old", 1)).unwrap().is_some());
    assert_eq!(fresh(&disk, &last).length(&["d"]).unwrap(), 105);
}

#[test]
fn a_node_that_takes_the_place_of_an_equal_one_has_its_children() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let store = create(&disk, Indexing::Minimal);
    let mut context = store.empty();

    for (dir, number) in [("x", "1"), ("y", "2")] {
        // Values that are equal, and stored twice, since they are not indexed.
        context.add(&[dir, "value"], [9; 3_000]).unwrap();
        context.add(&[dir, "number"], number.as_bytes()).unwrap();
    }

    let first = store.commit(&context, &Meta::tezos(1, "")).unwrap();
    store.close().unwrap();
    drop(store);
    let options = options(Indexing::Always);
    let store = Store::open(Arc::clone(&disk), Path::new(DIR), &options).unwrap();
    let mut context = store.checkout(&first).unwrap().unwrap();

    for (date, dir) in [(2, "y"), (3, "x")] {
        context.add(&[dir, "number"], *b"3").unwrap();
        context.advance(store.commit(&context, &Meta::tezos(date, "")).unwrap());
    }

    collect(&store);
    assert!(context.find(&["x", "value"]).unwrap().is_some());
    context.add(&["x", "number"], *b"4").unwrap();
    let last = store.commit(&context, &Meta::tezos(4, "")).unwrap();

    assert!(fresh(&disk, &last).find(&["x", "value"]).unwrap().is_some());
}

/// Values that no record of a directory holds.
fn block(store: &Store, number: u8) -> Hash {
    let mut context = store.empty();
    for name in 0..20 {
        context.add(&["d".to_owned(), name.to_string()], [number; 100]).unwrap();
    }
    store.commit(&context, &Meta::tezos(i64::from(number), "")).unwrap()
}

#[test]
fn an_old_tree_that_is_committed_again_during_a_collection_stays() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let store = create(&disk, Indexing::Minimal);
    let old = block(&store, 1);
    block(&store, 2);
    let mut again = None;

    let mut pace = |_: &GcProgress| {
        again.get_or_insert_with(|| {
            let context = store.checkout(&old).unwrap().unwrap();
            store.commit(&context, &Meta::tezos(3, "once more")).unwrap()
        });
        GcPace::Go
    };

    store.collect(&Retain::newest(1), &mut pace).unwrap();
    let again = again.unwrap();
    store.close().unwrap();
    assert_eq!(fresh(&disk, &again).find(&["d", "7"]).unwrap().unwrap(), [1; 100]);
}

#[test]
fn what_a_tree_shares_with_another_stays_while_either_may_be_written() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let store = create(&disk, Indexing::Minimal);
    let mut part = store.empty();
    for name in 0..20 {
        part.add(&[name.to_string()], [7; 100]).unwrap();
    }
    let mut whole = store.empty();
    whole.add_tree(&["part"], &part).unwrap();

    // Its nodes have places from now on, also those that the other tree shares.
    store.flush(&part).unwrap();
    drop(part);
    block(&store, 1);
    store.split().unwrap();
    block(&store, 2);
    collect(&store);
    let commit = store.commit(&whole, &Meta::tezos(3, "")).unwrap();
    store.close().unwrap();

    assert_eq!(fresh(&disk, &commit).find(&["part", "7"]).unwrap().unwrap(), [7; 100]);
}

#[test]
fn chains_that_advance_beside_collections_stay_whole() {
    for_each_seed("chains_that_advance_beside_collections_stay_whole", 24, |rng, _| {
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let indexing = [Indexing::Minimal, Indexing::Always][rng.index(2)];
        let store = create(&disk, indexing);
        let mut context = store.empty();
        let mut content: BTreeMap<[String; 2], Vec<u8>> = BTreeMap::new();
        for block in 0..100 {
            let removes = rng.chance(1, 2);
            for _ in 0..[1, 3, 10, 30, 60][rng.index(5)] {
                let path = [rng.below(3).to_string(), rng.below(150).to_string()];
                if removes && rng.chance(3, 4) {
                    let was_there = context.remove(&path).unwrap();
                    assert_eq!(was_there, content.remove(&path).is_some());
                } else {
                    let value = vec![rng.below(3) as u8; [4, 60][rng.index(2)]];
                    let is_new = context.add(&path, value.clone()).unwrap();
                    let before = content.insert(path, value.clone());
                    assert_eq!(is_new, before != Some(value));
                }
            }
            let commit = store.commit(&context, &Meta::tezos(block, "")).unwrap();
            if rng.chance(1, 4) {
                context = store.checkout(&commit).unwrap().unwrap();
            } else {
                context.advance(commit);
            }
            if rng.chance(1, 3) {
                collect(&store);
            }
            let seen = fresh(&disk, &commit);
            for (path, value) in &content {
                assert_eq!(seen.find(path).unwrap().as_ref(), Some(value), "{block} {path:?}");
            }
        }
    });
}
