//! Values that wait in a tree, and removals beside them.
//!
//! Goal: whether values wait or are in the nodes changes the cost of a call, never an answer: not
//! at the sizes where directories change their shape, not where removals empty directories, not in
//! trees that share nodes. Method: the same random changes of two trees, of which one applies what
//! waits after each change; limits of shape on both sides; counters of reads.

use std::sync::Arc;

use terrane_context::{Context, Meta, Rules, Scheme, Tree};
use terrane_io::{Disk, FaultKind, FaultPlan, Repeat, SimDisk};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::script::{content_of, create, fresh_hash, open, options, steps_of};

/// Paths of directories of few steps and of one that is as wide as the flat limit.
fn draw_path(rng: &mut ChaCha8Rng, wide: u64) -> String {
    match rng.below(6) {
        0..3 => format!("wide/{}", rng.below(wide)),
        3 => format!("deep/{}/{}/{}", rng.below(2), rng.below(2), rng.below(3)),
        4 => format!("wide/{}/below/{}", rng.below(wide), rng.below(2)),
        _ => rng.below(3).to_string(),
    }
}

/// Path of a directory, which may be bound.
fn draw_dir(rng: &mut ChaCha8Rng, wide: u64) -> String {
    match rng.below(8) {
        0..3 => format!("deep/{}", rng.below(2)),
        3..6 => format!("deep/{}/{}", rng.below(2), rng.below(2)),
        6 => format!("wide/{}/below", rng.below(wide)),
        _ => ["wide", "deep"][rng.index(2)].to_owned(),
    }
}

/// Makes the same random change of both trees, and compares what the calls return.
fn change(rng: &mut ChaCha8Rng, waiting: &mut Tree, applied: &mut Tree, wide: u64) {
    let path = draw_path(rng, wide);
    let steps = steps_of(&path);
    match rng.below(40) {
        0..22 => {
            let value = vec![rng.below(3) as u8; [0, 12, 48, 60][rng.index(4)]];
            let changed = waiting.add(&steps, value.as_slice()).unwrap();
            assert_eq!(changed, applied.add(&steps, value.as_slice()).unwrap(), "{path}");
        }
        22..36 => {
            let changed = waiting.remove(&steps).unwrap();
            assert_eq!(changed, applied.remove(&steps).unwrap(), "{path}");
        }
        36 => {
            let path = draw_dir(rng, wide);
            let steps = steps_of(&path);
            let changed = waiting.remove(&steps).unwrap();
            assert_eq!(changed, applied.remove(&steps).unwrap(), "{path}");
        }
        37 => {
            let (from, to) = (draw_dir(rng, wide), draw_dir(rng, wide));
            let copy = |tree: &mut Tree| match tree.find_tree(&steps_of(&from)).unwrap() {
                Some(found) => tree.add_tree(&steps_of(&to), &found).unwrap(),
                None => false,
            };
            copy(waiting);
            copy(applied);
        }
        _ => {
            let found = waiting.find(&steps).unwrap();
            assert_eq!(found, applied.find(&steps).unwrap(), "{path}");
            assert_eq!(waiting.mem_tree(&steps).unwrap(), applied.mem_tree(&steps).unwrap());
        }
    }
    // Hashing applies what waits.
    applied.hash();
}

fn draw_rules(rng: &mut ChaCha8Rng) -> (Rules, u64) {
    let small = Rules { scheme: Scheme::Tezos, branching: 2, flat_limit: 3 };
    [(small, 5), (small, 12), (Rules { scheme: Scheme::Blake3, ..small }, 12)][rng.index(3)]
}

#[test]
fn a_tree_whose_values_wait_is_the_one_that_applies_each() {
    for_each_seed("a_tree_whose_values_wait_is_the_one_that_applies_each", 60, |rng, _| {
        let (rules, wide) = draw_rules(rng);
        let mut waiting = Tree::new(rules).unwrap();
        let mut applied = Tree::new(rules).unwrap();
        for _ in 0..8 {
            for _ in 0..rng.below(60) {
                change(rng, &mut waiting, &mut applied, wide);
            }
            assert_eq!(waiting.hash(), applied.hash());
        }
        let content = content_of(&waiting).unwrap();
        assert_eq!(waiting.hash(), fresh_hash(&rules, &content));
    });
}

/// The same around 256 steps, where a directory of Tezos changes its shape.
#[test]
fn a_tree_whose_values_wait_is_the_one_that_applies_each_at_the_flat_limit() {
    let name = "a_tree_whose_values_wait_is_the_one_that_applies_each_at_the_flat_limit";
    for_each_seed(name, 4, |rng, _| {
        let mut waiting = Tree::new(Rules::TEZOS).unwrap();
        for number in 0..254 {
            waiting.add(&steps_of(&format!("wide/{number}")), *b"first").unwrap();
        }
        let mut applied = waiting.clone();
        for _ in 0..4 {
            for _ in 0..rng.below(60) {
                change(rng, &mut waiting, &mut applied, 320);
            }
            assert_eq!(waiting.hash(), applied.hash());
        }
    });
}

/// Contexts of one commit share its nodes, and take them from the store in turns.
#[test]
fn contexts_that_share_nodes_do_not_see_what_waits_in_each_other() {
    for_each_seed("contexts_that_share_nodes", 12, |rng, _| {
        let shared: Arc<dyn Disk> = SimDisk::new(rng.below(1 << 40));
        let (rules, wide) = draw_rules(rng);
        let options = options().rules(rules).cache_bytes([0, 8 << 10, 1 << 20][rng.index(3)]);
        let store = create(&shared, &options).unwrap();
        let mut waiting = store.empty();
        let mut applied = store.empty();
        for number in 0..10 {
            for _ in 0..rng.below(40) {
                change(rng, waiting.tree_mut(), applied.tree_mut(), wide);
            }
            waiting.add(&["date"], [number]).unwrap();
            let content = content_of(&waiting.clone()).unwrap();
            let tip = store.commit(&waiting, &Meta::tezos(number.into(), "")).unwrap();

            // A third context changes the same nodes, and is dropped or outlives the next block.
            let checkout = || -> Context { store.checkout(&tip).unwrap().unwrap() };
            let mut third = checkout();
            (waiting, applied) = (checkout(), checkout());
            let mut other = third.clone();
            for _ in 0..rng.below(10) {
                change(rng, third.tree_mut(), other.tree_mut(), wide);
            }
            assert_eq!(third.hash(), other.hash());
            assert_eq!(waiting.hash(), applied.hash());
            assert_eq!(waiting.hash(), fresh_hash(&rules, &content));
        }
    });
}

/// A removal at a limit of shape reads a whole directory. With a new value in the buffer the nodes
/// have one step less than the tree, so the directory stays as it is.
#[test]
fn a_removal_beside_a_new_value_does_not_read_the_directory() {
    let shared: Arc<dyn Disk> = SimDisk::new(1);
    let store = create(&shared, &options()).unwrap();
    let mut context = store.empty();
    for number in 0..257 {
        context.add(&steps_of(&format!("wide/{number}")), [7; 20]).unwrap();
    }
    store.commit(&context, &Meta::tezos(1, "")).unwrap();
    drop(context);
    store.close().unwrap();
    drop(store);

    let reads = |is_new: bool| {
        let store = open(&shared, &options()).unwrap();
        let tip = store.newest().next().unwrap().unwrap().hash;
        let mut context = store.checkout(&tip).unwrap().unwrap();
        context.add(&["wide", if is_new { "new" } else { "7" }], *b"waits").unwrap();
        let before = store.stats().reads;
        assert!(context.remove(&["wide", "8"]).unwrap());
        let reads = store.stats().reads - before;

        let content = content_of(&context).unwrap();
        assert_eq!(content.len(), if is_new { 257 } else { 256 });
        assert_eq!(context.hash(), fresh_hash(store.rules(), &content));
        reads
    };
    // The inodes of one path at most, or all of the directory.
    assert!(reads(true) <= 2, "{}", reads(true));
    assert!(reads(false) > 10, "{}", reads(false));
}

/// A removal that cannot read what it must gather changes nothing, and lets all values wait on.
#[test]
fn a_removal_that_fails_to_read_loses_no_value_that_waits() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let store = create(&shared, &options()).unwrap();
    let mut context = store.empty();
    for number in 0..257 {
        context.add(&steps_of(&format!("wide/{number}")), [7; 20]).unwrap();
    }
    let tip = store.commit(&context, &Meta::tezos(1, "")).unwrap();
    drop(context);
    let expected = content_of(&store.checkout(&tip).unwrap().unwrap()).unwrap();
    store.close().unwrap();
    drop(store);

    for call in 0..200 {
        let store = open(&shared, &options()).unwrap();
        let mut context = store.checkout(&tip).unwrap().unwrap();
        context.add(&["wide", "7"], *b"waits").unwrap();
        let faults = disk.faults();
        disk.set_plan(FaultPlan::fail(disk.calls() + call, FaultKind::Eio, Repeat::Once));
        let outcome = context.remove(&["wide", "8"]);
        let has_failed = disk.faults() > faults;
        disk.set_plan(FaultPlan::default());

        let mut content = expected.clone();
        content.insert("wide/7".to_owned(), b"waits".to_vec());
        match outcome {
            Ok(changed) => {
                assert!(changed && !has_failed, "{call}");
                content.remove("wide/8");
            }
            Err(error) => assert!(has_failed, "{error}"),
        }
        assert_eq!(context.hash(), fresh_hash(store.rules(), &content), "{call}");
        if has_failed {
            assert!(context.remove(&["wide", "8"]).unwrap());
            content.remove("wide/8");
            assert_eq!(context.hash(), fresh_hash(store.rules(), &content), "{call}");
        } else {
            assert!(call > 3, "some calls failed");
            return;
        }
    }
    panic!("a removal makes fewer calls");
}
