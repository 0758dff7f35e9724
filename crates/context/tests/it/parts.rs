//! Commits of many changes: threads apply, hash and encode them part by part.
//!
//! Goal: whoever encodes a node, the store is whole, and what a map says. Method: random blocks
//! that are large enough to be divided, on trees with nodes and values at several paths, beside
//! contexts that share their nodes. Frames have room for all parts, for some, or for none.

use std::sync::Arc;

use terrane_context::{Context, Hash, Indexing, Meta, Retain, Rules, Store, Tree};
use terrane_io::{Disk, FaultPlan, SimDisk};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::losses::checked;
use crate::script::{Change, Content, content_of, create, fresh_hash, go, open, options, steps_of};

/// A wide directory, one that leads to others, and copies of both.
fn draw_path(rng: &mut ChaCha8Rng) -> String {
    match rng.below(8) {
        0..4 => format!("wide/{}", rng.below(900)),
        4..7 => format!("dirs/{}/{}", rng.below(60), rng.below(30)),
        _ => format!("copies/{}/{}", rng.below(3), rng.below(900)),
    }
}

/// Binds values at paths that no value is on the way of. These wait for the commit.
fn add_many(rng: &mut ChaCha8Rng, context: &mut Context, content: &mut Content) {
    for _ in 0..300 + rng.index(300) {
        let path = draw_path(rng);
        let value = vec![rng.below(5) as u8; [0, 9, 48, 49, 300][rng.index(5)]];
        context.add(&steps_of(&path), value.as_slice()).unwrap();
        content.insert(path, value);
    }
}

/// Changes that do not wait: removals, and a tree bound once more, whose nodes and values then
/// stand at two paths.
fn change(rng: &mut ChaCha8Rng, context: &mut Context, content: &mut Content) {
    if rng.chance(1, 2) {
        for _ in 0..rng.index(20) {
            let path = draw_path(rng);
            context.remove(&steps_of(&path)).unwrap();
            content.remove(&path);
        }
        return;
    }

    let from = if rng.chance(1, 2) { "wide".to_owned() } else { format!("dirs/{}", rng.below(60)) };
    let to = format!("copies/{}", rng.below(3));
    let Some(tree) = context.find_tree(&steps_of(&from)).unwrap() else { return };
    context.add_tree(&steps_of(&to), &tree).unwrap();
    Change::Remove(to.clone()).apply(content);
    let prefix = format!("{from}/");
    let below = content.iter().filter_map(|(path, value)| {
        Some((format!("{to}/{}", path.strip_prefix(&prefix)?), value.clone()))
    });
    let below: Content = below.collect();
    content.extend(below);
}

fn check_newest(store: &Store, made: &[(Hash, Content)], count: usize) {
    for (hash, content) in made.iter().rev().take(count) {
        let context = store.checkout(hash).unwrap().unwrap();
        assert!(content_of(&context).unwrap() == *content, "{hash}");
        assert_eq!(context.tree().hash(), fresh_hash(store.rules(), content));
    }
}

#[test]
fn blocks_that_threads_encode_are_what_a_map_says() {
    let mut refused = 0;
    for_each_seed("blocks_that_threads_encode_are_what_a_map_says", 10, |rng, seed| {
        let rules = if rng.chance(1, 3) {
            Rules { branching: 2, flat_limit: 3, ..Rules::BLAKE3 }
        } else {
            Rules::TEZOS
        };
        let indexing = if rng.chance(1, 5) { Indexing::Always } else { Indexing::Minimal };
        let options = options()
            .rules(rules)
            .indexing(indexing)
            .hash_threads(2 + rng.index(2))
            .chunk_bytes([16 << 10, 64 << 10, 1 << 20][rng.index(3)])
            .cache_bytes([0, 1 << 20][rng.index(2)]);
        let disk = SimDisk::new(seed);
        let shared: Arc<dyn Disk> = disk.clone();
        let mut store = create(&shared, &options).unwrap();

        let mut made: Vec<(Hash, Content)> = Vec::new();
        let mut older: Vec<(Context, Content)> = Vec::new();
        for block in 0..10 {
            let (mut context, mut content) = match made.last() {
                Some((hash, content)) => {
                    let mut context = store.checkout(hash).unwrap().unwrap();
                    context.set_parents(vec![*hash]);
                    (context, content.clone())
                }
                None => (store.empty(), Content::new()),
            };
            if rng.chance(1, 3) {
                change(rng, &mut context, &mut content);
            }
            add_many(rng, &mut context, &mut content);
            if rng.chance(1, 4) {
                store.flush(context.tree()).unwrap();
                add_many(rng, &mut context, &mut content);
            }

            let meta = Meta::tezos(block, "parts");
            if rng.chance(1, 3) {
                // The values are in the nodes then, and what was encoded is dropped.
                disk.set_plan(FaultPlan::capacity(1));
                refused += u32::from(store.commit(&context, &meta).is_err());
                disk.set_plan(FaultPlan::default());
            }
            let hash = store.commit(&context, &meta).unwrap();
            made.push((hash, content.clone()));
            // What shares the nodes of the commit, and goes on from them.
            match rng.below(4) {
                0 => older.push((context, content)),
                1 => {
                    add_many(rng, &mut context, &mut content);
                    let hash = store.commit(&context, &meta).unwrap();
                    made.push((hash, content));
                }
                _ => {}
            }

            match rng.below(5) {
                0 => {
                    let retain = Retain::newest(2);
                    store.collect(&retain, &mut go).unwrap();
                    made.drain(..made.len().saturating_sub(2));
                }
                1 => {
                    older.clear();
                    store.close().unwrap();
                    store = open(&shared, &options).unwrap();
                }
                _ => {}
            }
            check_newest(&store, &made, 2);
        }

        // They go on, though their commits may be gone.
        for (mut context, mut content) in older {
            assert!(content_of(&context).unwrap() == content);
            add_many(rng, &mut context, &mut content);
            let hash = store.commit(&context, &Meta::tezos(100, "older")).unwrap();
            made.push((hash, content));
        }
        check_newest(&store, &made, usize::MAX);
        store.close().unwrap();
        let report = checked(&disk);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    });
    assert!(refused > 5, "{refused} commits found no room");
}

/// Commits `tree` at many paths below a wide directory, in all buckets, with many values beside;
/// returns the numbers of nodes and values that are written.
fn written(threads: usize, tree: impl Fn(&Store) -> Tree) -> (u64, u64) {
    let shared: Arc<dyn Disk> = SimDisk::new(1);
    let options = options().rules(Rules::TEZOS).hash_threads(threads).chunk_bytes(1 << 20);
    let store = create(&shared, &options).unwrap();
    let mut context = store.empty();
    for number in 0..900 {
        context.add(&["wide", &number.to_string()], [7; 9]).unwrap();
    }
    let first = store.commit(&context, &Meta::tezos(1, "parts")).unwrap();

    let mut context = store.checkout(&first).unwrap().unwrap();
    let tree = tree(&store);
    for number in 0..60 {
        context.add_tree(&["wide", &format!("copy{number}")], &tree).unwrap();
    }
    for number in 0..300 {
        let bytes = vec![3; [9, 300][number % 2]];
        context.add(&["wide", &format!("own{number}")], bytes).unwrap();
    }
    let before = store.stats().committed;
    store.commit(&context, &Meta::tezos(2, "parts")).unwrap();
    let after = store.stats().committed;
    (after.nodes - before.nodes, after.values - before.values)
}

#[test]
fn what_stands_at_several_paths_is_written_once() {
    let large = |store: &Store| store.empty().tree().of_value([1; 300]);
    let dir = |store: &Store| {
        let mut dir = store.empty().tree().empty();
        dir.add(&["small"], [2; 3]).unwrap();
        dir
    };
    let values = [1, 2, 3].map(|threads| written(threads, large));
    let dirs = [1, 2, 3].map(|threads| written(threads, dir));
    assert_eq!(values[0].1, 150 + 1, "one for each large value");
    assert_eq!(dirs[0].1, 150);
    assert_eq!((values, dirs), ([values[0]; 3], [dirs[0]; 3]));
}
