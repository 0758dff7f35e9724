//! Forgetting of loaded nodes below a depth: what goes is read again, and no change is lost.

use std::sync::Arc;

use terrane_context::{Context, Meta, Store, Tree};
use terrane_io::{Disk, MemoryDisk};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::script::{
    Content, content_of, create, draw_options, fresh_hash, open, options, steps_of,
};

/// A store without a cache, and a context with directories at the depths 0 to 3.
fn deep_store() -> (Store, Context) {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let options = options().cache_bytes(0);
    let store = create(&disk, &options).unwrap();
    let mut context = store.empty();
    for a in 0..4 {
        for b in 0..4 {
            for c in 0..4 {
                let path = format!("{a}/{b}/{c}");
                context.add(&steps_of(&path), path.as_str()).unwrap();
            }
        }
    }
    let commit = store.commit(&context, &Meta::tezos(0, "")).unwrap();
    store.close().unwrap();
    let store = open(&disk, &options).unwrap();
    let context = store.checkout(&commit).unwrap().unwrap();
    (store, context)
}

/// Objects that a call reads.
fn reads(store: &Store, call: impl FnOnce()) -> u64 {
    let before = store.stats().reads;
    call();
    store.stats().reads - before
}

#[test]
fn directories_below_the_depth_are_read_again_and_no_others() {
    let (store, mut context) = deep_store();
    let find = |tree: &Tree| {
        assert_eq!(tree.find(&["1", "2", "3"]).unwrap().unwrap(), b"1/2/3");
    };

    // The root, and the directories 1 and 1/2; each depth that is cleared costs one read more.
    assert_eq!(reads(&store, || find(&context)), 3 - 1, "a checkout reads the root");
    for (depth, missing) in [(2, 0), (9, 0), (1, 1), (0, 2), (0, 2), (1, 1)] {
        context.clear_below(depth);
        assert_eq!(reads(&store, || find(&context)), missing, "below {depth}");
        assert_eq!(reads(&store, || find(&context)), 0, "in memory again");
    }

    // A clone keeps what it has.
    let clone = context.tree().clone();
    context.clear_below(0);
    assert_eq!(reads(&store, || find(&clone)), 0);
    assert_eq!(reads(&store, || find(&context)), 2);
    context.clear();
    assert_eq!(reads(&store, || find(&context)), 3);
}

#[test]
fn changes_stay_and_what_is_beside_them_goes() {
    let (store, mut context) = deep_store();
    context.add(&["1", "2", "new"], "new").unwrap();
    context.find(&["1", "0", "0"]).unwrap();
    context.find(&["2", "0", "0"]).unwrap();

    // In the write buffer, and in the nodes: the way to the change stays, its neighbours go.
    for round in 0..2 {
        context.clear_below(0);
        let change = || assert_eq!(context.find(&["1", "2", "new"]).unwrap().unwrap(), b"new");
        let read = reads(&store, change);
        assert_eq!(read, 0, "the change, in round {round}");
        let same = || assert_eq!(context.find(&["1", "2", "0"]).unwrap().unwrap(), b"1/2/0");
        reads(&store, same);
        assert_eq!(reads(&store, || drop(context.find(&["1", "0", "0"]).unwrap())), 1);
        assert_eq!(reads(&store, || drop(context.find(&["2", "0", "0"]).unwrap())), 2);
        // Hashing applies the write buffer.
        context.hash();
    }

    let mut unstored = Tree::new(*store.rules()).unwrap();
    unstored.add(&["a", "b"], "1").unwrap();
    unstored.clear_below(0);
    assert_eq!(unstored.find(&["a", "b"]).unwrap().unwrap(), b"1");
    let mut value = unstored.of_value("1");
    value.clear_below(0);
    assert_eq!(value.to_value().unwrap().unwrap(), b"1");
}

#[test]
fn any_history_with_clears_is_that_of_a_map() {
    for_each_seed("any_history_with_clears_is_that_of_a_map", 30, |rng, seed| {
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let options = draw_options(rng).cache_bytes(rng.index(2) << 20);
        let store = create(&disk, &options).unwrap();
        let mut context = store.empty();
        let mut content = Content::new();
        let mut clone: Option<(Tree, Content)> = None;

        for step in 0..150 {
            let path = format!("d/{}/{}/{}", rng.below(40), rng.below(3), rng.below(30));
            match rng.below(20) {
                0..10 => {
                    let value = vec![rng.below(256) as u8; [3, 60][rng.index(2)]];
                    context.add(&steps_of(&path), &value).unwrap();
                    content.insert(path, value);
                }
                10..13 => {
                    context.remove(&steps_of(&path)).unwrap();
                    content.remove(&path);
                }
                13 => store.flush(context.tree()).unwrap(),
                14 => {
                    let hash = store.commit(&context, &Meta::tezos(step, "")).unwrap();
                    if rng.chance(1, 2) {
                        context = store.checkout(&hash).unwrap().unwrap();
                    }
                }
                15 => clone = Some((context.tree().clone(), content.clone())),
                16 => drop(content_of(context.tree()).unwrap()),
                _ => context.clear_below(rng.index(4)),
            }
            let found = context.find(&steps_of("d/7/1/7")).unwrap();
            assert_eq!(found.as_ref(), content.get("d/7/1/7"), "seed {seed}");
        }

        context.clear_below(0);
        assert_eq!(content_of(context.tree()).unwrap(), content, "seed {seed}");
        assert_eq!(context.hash(), fresh_hash(store.rules(), &content), "seed {seed}");
        if let Some((clone, content)) = clone {
            assert_eq!(content_of(&clone).unwrap(), content, "seed {seed}");
            assert_eq!(clone.hash(), fresh_hash(store.rules(), &content), "seed {seed}");
        }
        let hash = store.commit(&context, &Meta::tezos(999, "")).unwrap();
        store.close().unwrap();
        let store = open(&disk, &options).unwrap();
        let context = store.checkout(&hash).unwrap().unwrap();
        assert_eq!(content_of(context.tree()).unwrap(), content, "seed {seed}");
    });
}
