//! Automatic flushes of a context: by number and by bytes of its changes.

use std::sync::Arc;

use terrane_context::{AutoFlush, Error, Meta, Retain, Store, TezosContext};
use terrane_io::{Disk, MemoryDisk};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::script::{
    Content, content_of, create, draw_options, fresh_hash, go, open, options, steps_of,
};

fn new_store() -> Arc<Store> {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    Arc::new(create(&disk, &options().chunk_bytes(1 << 20)).unwrap())
}

#[test]
fn a_context_is_flushed_after_so_many_changes_or_bytes() {
    let store = new_store();
    let frames = || store.stats().frames;
    let mut context = store.empty();
    context.set_auto_flush(&store, AutoFlush { mutations: 10, bytes: u64::MAX }).unwrap();
    let before = frames();
    for number in 0..35 {
        context.add(&["a", &number.to_string()], "value").unwrap();
        assert_eq!(frames() - before, (number + 1) / 10, "after change {number}");
    }

    // An equal binding and an absent path change nothing, so they do not count.
    for _ in 0..20 {
        context.add(&["a", "1"], "value").unwrap();
        context.remove(&["b"]).unwrap();
    }
    assert_eq!(frames() - before, 3);
    context.remove(&["a", "1"]).unwrap();
    context.update(&["a", "2"], |_| Some(vec![1])).unwrap();
    let tree = context.of_value("tree");
    context.add_tree(&["c"], &tree).unwrap();
    context.update_tree(&["d"], |_| Some(tree.clone())).unwrap();
    assert_eq!(frames() - before, 3);
    context.add(&["e"], "the tenth").unwrap();
    assert_eq!(frames() - before, 4);

    // By bytes of paths and values.
    context.set_auto_flush(&store, AutoFlush { mutations: u64::MAX, bytes: 100 }).unwrap();
    context.add(&["f"], [1; 98]).unwrap();
    assert_eq!(frames() - before, 4, "99 bytes");
    context.remove(&["e"]).unwrap();
    assert_eq!(frames() - before, 5, "100 bytes");

    // A clone counts on its own; `advance` begins anew; `None` ends it.
    context.add(&["f"], [2; 98]).unwrap();
    let mut clone = context.clone();
    clone.add(&["g"], "").unwrap();
    assert_eq!(frames() - before, 6);
    let commit = store.commit(&context, &Meta::tezos(0, "")).unwrap();
    let before = frames();
    context.advance(commit);
    context.add(&["f"], [3; 98]).unwrap();
    assert_eq!(frames(), before, "the commit wrote the rest");
    context.set_auto_flush(&store, None).unwrap();
    context.add(&["f"], [4; 500]).unwrap();
    assert_eq!(frames(), before);
}

#[test]
fn a_change_whose_flush_fails_is_made_and_tried_again() {
    let store = new_store();
    let other = new_store();
    let mut context = store.empty();
    let limits = AutoFlush { mutations: 1, bytes: u64::MAX };
    assert!(matches!(context.set_auto_flush(&other, limits), Err(Error::ForeignTree)));
    context.set_auto_flush(&store, limits).unwrap();
    context.add(&["a"], "1").unwrap();
    store.close().unwrap();
    assert!(matches!(context.add(&["b"], "2"), Err(Error::Closed)));
    assert_eq!(context.find(&["b"]).unwrap().unwrap(), b"2", "the change was made");
    assert!(matches!(context.add(&["c"], "3"), Err(Error::Closed)));

    // The context does not keep the store open.
    assert_eq!(Arc::strong_count(&store), 1);
    drop(store);
    assert!(matches!(context.add(&["d"], "4"), Err(Error::Closed)));
    assert_eq!(context.length::<&str>(&[]).unwrap(), 4);

    // A tree that is a value waits until it is a directory.
    let mut context = other.empty();
    context.set_auto_flush(&other, limits).unwrap();
    context.add::<&str>(&[], "value").unwrap();
    context.add(&["a"], "1").unwrap();
    assert_eq!(context.length::<&str>(&[]).unwrap(), 1);
}

#[test]
fn flushes_are_garbage_until_a_commit_reaches_them() {
    let store = new_store();
    let mut kept = TezosContext::from(store.empty());
    let mut dropped = store.empty();
    for context in [kept.context_mut(), &mut dropped] {
        context.set_auto_flush(&store, AutoFlush { mutations: 50, bytes: u64::MAX }).unwrap();
    }
    for number in 0..500_u32 {
        let name = number.to_string();
        kept.add(&[&name], number.to_le_bytes()).unwrap();
        dropped.add(&["dropped", &name], [number as u8; 100]).unwrap();
    }
    drop(dropped);
    let commit = store.commit_tezos(&kept, 0, "").unwrap();
    drop(kept);
    let report = store.collect(&Retain::everything(), &mut go).unwrap();
    assert_eq!((report.kept, report.collected), (1, 0));
    assert!(report.freed_bytes > 50_000, "the dropped context went: {report:?}");
    let context = store.checkout_tezos(&commit).unwrap().unwrap();
    for number in 0..500_u32 {
        let found = context.find(&[number.to_string()]).unwrap();
        assert_eq!(found.unwrap(), number.to_le_bytes());
    }
}

#[test]
fn any_history_with_automatic_flushes_is_that_of_a_map() {
    for_each_seed("any_history_with_automatic_flushes_is_that_of_a_map", 20, |rng, seed| {
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let options = draw_options(rng);
        let store = Arc::new(create(&disk, &options).unwrap());
        let limits = AutoFlush { mutations: 1 + rng.below(30), bytes: 1 + rng.below(2_000) };
        let mut context = store.empty();
        context.set_auto_flush(&store, limits).unwrap();
        let mut content = Content::new();

        for _ in 0..300 {
            let path = format!("d/{}/{}", rng.below(30), rng.below(9));
            if rng.chance(3, 4) {
                let value = vec![rng.below(256) as u8; [3, 60][rng.index(2)]];
                context.add(&steps_of(&path), &value).unwrap();
                content.insert(path, value);
            } else {
                context.remove(&steps_of(&path)).unwrap();
                content.remove(&path);
            }
        }

        assert_eq!(context.hash(), fresh_hash(store.rules(), &content), "seed {seed}");
        let commit = store.commit(&context, &Meta::tezos(0, "")).unwrap();
        store.close().unwrap();
        let store = open(&disk, &options).unwrap();
        let context = store.checkout(&commit).unwrap().unwrap();
        assert_eq!(content_of(context.tree()).unwrap(), content, "seed {seed}");
    });
}
