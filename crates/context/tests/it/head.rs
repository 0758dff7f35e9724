//! The nodes of the newest commit stay in memory, and commits need not wait for their sync.
//!
//! Goal: what is kept in memory from block to block changes the cost of a call, never an answer:
//! not with other trees of the same nodes alive, not with blocks that are thrown away, not with
//! hardly any memory. Commits behind tickets are there at once, become durable in their order, and
//! are durable when a ticket says so.
//!
//! Method: random chains of blocks beside maps, with every hash compared to that of a tree that was
//! made anew; counters of reads; crashes on the simulated disk.

use std::sync::Arc;

use terrane_context::{
    CheckOptions, Context, Durability, Error, Hash, Meta, Options, Rules, Scheme, Store, check,
};
use terrane_io::{Disk, FaultKind, FaultPlan, Repeat, SimDisk, Survival};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::script::{Content, DIR, content_of, create, fresh_hash, open, options, steps_of};

fn path(rng: &mut ChaCha8Rng) -> String {
    match rng.below(4) {
        0 => format!("index/{}/balance", rng.below(60)),
        1 => format!("index/{}/storage/{}", rng.below(20), rng.below(8)),
        2 => format!("big/{}", rng.below(400)),
        _ => format!("{}", rng.below(12)),
    }
}

/// Tree with the content that it must have.
struct Open {
    context: Context,
    content: Content,
}

/// Changes a tree and its map alike.
fn change(rng: &mut ChaCha8Rng, open: &mut Open) {
    for _ in 0..=rng.below(30) {
        let path = path(rng);
        let steps = steps_of(&path);
        match rng.below(5) {
            0 => {
                let was_there = open.content.remove(&path).is_some();
                assert_eq!(open.context.remove(&steps).unwrap(), was_there, "{path}");
            }
            1 => {
                let found = open.context.find(&steps).unwrap();
                assert_eq!(found.as_ref(), open.content.get(&path), "{path}");
            }
            _ => {
                // Lengths on both sides of what an item, and what a node, has room for.
                let value = vec![rng.below(4) as u8; [0, 3, 12, 13, 48, 49, 90][rng.index(7)]];
                open.context.add(&steps, value.as_slice()).unwrap();
                open.content.insert(path, value);
            }
        }
    }
}

fn history(rng: &mut ChaCha8Rng, options: &Options) {
    let disk = SimDisk::new(rng.below(1 << 40));
    let shared: Arc<dyn Disk> = disk.clone();
    let store = create(&shared, options).unwrap();
    let mut commits: Vec<(Hash, Content)> = Vec::new();
    let mut others: Vec<Open> = Vec::new();

    let mut block = Open { context: store.empty(), content: Content::new() };
    for number in 0..30 {
        change(rng, &mut block);
        if rng.chance(1, 4) {
            store.flush(block.context.tree()).unwrap();
            change(rng, &mut block);
        }
        assert_eq!(block.context.hash(), fresh_hash(store.rules(), &block.content), "{number}");

        let tip = store.commit(&block.context, &Meta::tezos(number, "")).unwrap();
        commits.push((tip, block.content.clone()));
        let content = block.content.clone();
        match rng.below(4) {
            // The tree of the block goes on, or stays beside the next one.
            0 => block.context.advance(tip),
            1 => others.push(std::mem::replace(
                &mut block,
                Open { context: store.checkout(&tip).unwrap().unwrap(), content },
            )),
            _ => {
                drop(block);
                block = Open { context: store.checkout(&tip).unwrap().unwrap(), content };
            }
        }

        // Another tree of the newest commit, which is changed and dropped, or stays.
        if rng.chance(1, 3) {
            let context = store.checkout(&tip).unwrap().unwrap();
            let mut other = Open { context, content: block.content.clone() };
            change(rng, &mut other);
            if rng.chance(1, 2) {
                others.push(other);
            }
        }
        if rng.chance(1, 5) {
            let clone = block.context.clone();
            others.push(Open { context: clone, content: block.content.clone() });
        }
        if others.len() > 4 {
            let Open { context, content } = others.remove(0);
            assert_eq!(content_of(&context).unwrap(), content, "{number}");
            assert_eq!(context.hash(), fresh_hash(store.rules(), &content), "{number}");
        }
    }

    for Open { context, content } in others {
        assert_eq!(content_of(&context).unwrap(), content);
    }
    drop(block);
    store.close().unwrap();
    drop(store);

    let deep = CheckOptions::default().hashes(true);
    let report = check(&shared, std::path::Path::new(DIR), &deep, &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let store = open(&shared, options).unwrap();
    for (hash, content) in commits {
        let found = store.checkout(&hash).unwrap().unwrap();
        assert_eq!(content_of(&found).unwrap(), content);
    }
}

/// Whatever the memory: from none, over so little that each block trims the nodes, to enough.
#[test]
fn any_chain_of_blocks_is_that_of_a_map() {
    for_each_seed("any_chain_of_blocks_is_that_of_a_map", 24, |rng, _| {
        let small = Rules { scheme: Scheme::Tezos, branching: 4, flat_limit: 8 };
        let rules = [Rules::TEZOS, small][rng.index(2)];
        let cache_bytes = [0, 4 << 10, 40 << 10, 1 << 20][rng.index(4)];
        history(rng, &options().rules(rules).cache_bytes(cache_bytes));
    });
}

/// State of 2,000 values.
fn large(store: &Store) -> Hash {
    let mut context = store.empty();
    for number in 0..2_000 {
        let path = format!("index/{number}/balance");
        context.add(&steps_of(&path), [7; 20]).unwrap();
    }
    store.commit(&context, &Meta::tezos(0, "")).unwrap()
}

#[test]
fn a_block_reads_nothing_that_a_block_before_it_touched() {
    let shared: Arc<dyn Disk> = SimDisk::new(1);
    let store = create(&shared, &options().cache_bytes(16 << 20)).unwrap();
    large(&store);
    store.close().unwrap();
    drop(store);

    let store = open(&shared, &options().cache_bytes(16 << 20)).unwrap();
    let mut tip = store.newest().next().unwrap().unwrap().hash;
    let mut reads = Vec::new();
    for number in 1..6_u8 {
        let before = store.stats().reads;
        let mut context = store.checkout(&tip).unwrap().unwrap();
        for path in (0..50).map(|number| format!("index/{}/balance", number * 31)) {
            assert!(context.find(&steps_of(&path)).unwrap().is_some());
            context.add(&steps_of(&path), [number; 30]).unwrap();
        }
        tip = store.commit(&context, &Meta::tezos(number.into(), "")).unwrap();
        reads.push(store.stats().reads - before);
    }

    // The record of the commit itself is read by each checkout.
    assert!(reads[0] > 50, "{reads:?}");
    assert!(reads[1..].iter().all(|reads| *reads == 1), "{reads:?}");

    // A block that is thrown away takes the nodes with it, and changes nothing else.
    let mut context = store.checkout(&tip).unwrap().unwrap();
    context.add(&["index", "0", "balance"], *b"other").unwrap();
    context.hash();
    drop(context);
    let context = store.checkout(&tip).unwrap().unwrap();
    let found = context.find(&["index", "0", "balance"]).unwrap();
    assert_eq!(found.as_deref(), Some([5; 30].as_slice()));
}

/// A commit that is made a second time writes nothing, so its tree has no places. That tree took
/// the place of the head, and the next checkout read every node anew.
#[test]
fn a_commit_that_is_made_again_leaves_the_nodes_of_the_first_one() {
    let shared: Arc<dyn Disk> = SimDisk::new(1);
    let store = create(&shared, &options().cache_bytes(16 << 20)).unwrap();
    let parent = large(&store);
    let block = || {
        let mut context = store.checkout(&parent).unwrap().unwrap();
        for number in 0..50 {
            let path = format!("index/{}/balance", number * 31);
            context.add(&steps_of(&path), *b"other").unwrap();
        }
        store.commit(&context, &Meta::tezos(1, "")).unwrap()
    };
    let tip = block();
    assert_eq!(block(), tip);

    let before = store.stats().reads;
    let mut context = store.checkout(&tip).unwrap().unwrap();
    for number in 0..50 {
        let path = format!("index/{}/balance", number * 31);
        assert!(context.find(&steps_of(&path)).unwrap().is_some());
        context.add(&steps_of(&path), *b"another").unwrap();
    }
    store.commit(&context, &Meta::tezos(2, "")).unwrap();
    // The record of the commit is read by the checkout.
    assert_eq!(store.stats().reads - before, 1);
}

/// Values wait in the tree until its hash is asked for, which cannot fail: whatever of the nodes is
/// trimmed or forgotten, applying the values needs no read.
#[test]
fn values_that_wait_are_applied_without_reads() {
    for cache_bytes in [20 << 10, 100 << 10, 1 << 20] {
        for clears in [false, true] {
            let disk = SimDisk::new(1);
            let shared: Arc<dyn Disk> = disk.clone();
            let store = create(&shared, &options().cache_bytes(cache_bytes)).unwrap();
            let mut tip = large(&store);
            for number in 1..8_u8 {
                let mut context = store.checkout(&tip).unwrap().unwrap();
                for step in 0..30_u16 {
                    let path = format!("index/{}/balance", (u16::from(number) + step * 67) % 2_000);
                    context.add(&steps_of(&path), [number; 20]).unwrap();
                }
                if clears {
                    context.clear_below(1);
                }

                disk.set_plan(FaultPlan::fail(disk.calls(), FaultKind::Eio, Repeat::Forever));
                let hash = context.hash();
                disk.set_plan(FaultPlan::default());
                tip = store.commit(&context, &Meta::tezos(number.into(), "")).unwrap();
                assert_eq!(store.commit_info(&tip).unwrap().root, hash);
            }
        }
    }
}

/// The same beside other trees of the commits, whose nodes the blocks share and trim around.
#[test]
fn values_that_wait_in_other_trees_are_applied_without_reads() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let store = create(&shared, &options().cache_bytes(100 << 10)).unwrap();
    let mut tip = large(&store);
    let mut others = Vec::new();
    for number in 1..20_u8 {
        // The other tree has values in its buffer before the block takes the nodes, or after.
        let mut other = store.checkout(&tip).unwrap().unwrap();
        let mut context = store.checkout(&tip).unwrap().unwrap();
        let is_first = number % 2 == 0;
        for step in 0..30_u16 {
            let path = format!("index/{}/balance", (u16::from(number) * 7 + step * 67) % 2_000);
            let steps = steps_of(&path);
            if is_first {
                other.add(&steps, [number; 21]).unwrap();
            }
            context.add(&steps, [number; 20]).unwrap();
            if !is_first {
                other.add(&steps, [number; 21]).unwrap();
            }
        }
        tip = store.commit(&context, &Meta::tezos(number.into(), "")).unwrap();
        others.push((other, number));

        if number % 5 == 0 {
            disk.set_plan(FaultPlan::fail(disk.calls(), FaultKind::Eio, Repeat::Forever));
            let hashes: Vec<Hash> = others.iter().map(|(other, _)| other.hash()).collect();
            disk.set_plan(FaultPlan::default());
            for ((other, number), hash) in others.drain(..).zip(hashes) {
                let content = content_of(&other).unwrap();
                let changed = content.values().filter(|value| **value == [number; 21]).count();
                assert_eq!(changed, 30);
                assert_eq!(fresh_hash(store.rules(), &content), hash);
            }
        }
    }
}

#[test]
fn the_nodes_in_memory_keep_to_the_budget() {
    let shared: Arc<dyn Disk> = SimDisk::new(1);
    let budget = 200 << 10;
    let store = create(&shared, &options().cache_bytes(budget)).unwrap();
    let mut tip = large(&store);
    let mut most = 0;
    for number in 1..200_u8 {
        let mut context = store.checkout(&tip).unwrap().unwrap();
        for step in 0..20_u16 {
            let path = format!("index/{}/balance", (u16::from(number) * 37 + step * 101) % 2_000);
            context.add(&steps_of(&path), [number; 20]).unwrap();
        }
        tip = store.commit(&context, &Meta::tezos(number.into(), "")).unwrap();
        most = most.max(store.stats().cache_bytes);
    }
    // A block adds what it touches on top, until the next one trims.
    assert!(most > 50 << 10 && most < (budget as u64) * 3 / 2, "{most}");
}

/// Commits whose ticket was waited for survive a crash, and of the others a beginning.
#[test]
fn commits_become_durable_in_their_order_and_when_their_ticket_says_so() {
    for_each_seed("commits_become_durable_in_their_order", 40, |rng, _| {
        let disk = SimDisk::new(rng.below(1 << 40));
        let shared: Arc<dyn Disk> = disk.clone();
        let store = create(&shared, &options()).unwrap();
        let mut context = store.empty();
        let mut commits = Vec::new();
        let mut durable = 0;
        for number in 0..12_u8 {
            context.add(&["n"], [number]).unwrap();
            let meta = Meta::tezos(number.into(), "");
            let (hash, ticket) = store.commit_to_async(b"main", &context, &meta).unwrap();
            assert_eq!(store.branch(b"main"), Some(hash));
            assert!(store.exists(&hash).unwrap(), "it is seen at once");
            context.advance(hash);
            commits.push(hash);
            if rng.chance(1, 3) {
                ticket.wait().unwrap();
                assert!(ticket.is_durable());
                durable = commits.len();
            }
            if rng.chance(1, 6) {
                break;
            }
        }

        let survival = [Survival::Nothing, Survival::Random(rng.below(1 << 40))][rng.index(2)];
        let crashed: Arc<dyn Disk> = disk.after_crash(survival);
        drop(store);
        let store = open(&crashed, &options()).unwrap();
        let mut found: Vec<Hash> = store.newest().map(|commit| commit.unwrap().hash).collect();
        found.reverse();
        assert!(found.len() >= durable, "{} of {durable}", found.len());
        assert_eq!(found, commits[..found.len()]);
        assert_eq!(store.branch(b"main"), found.last().copied());
    });
}

#[test]
fn a_ticket_tells_of_a_sync_that_failed() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let store = create(&shared, &options()).unwrap();
    let mut context = store.empty();
    context.add(&["n"], *b"1").unwrap();
    let (first, ticket) = store.commit_async(&context, &Meta::tezos(1, "")).unwrap();
    ticket.wait().unwrap();

    disk.set_plan(FaultPlan::fail(disk.calls(), FaultKind::FailedSync, Repeat::Once));
    context.add(&["n"], *b"2").unwrap();
    let (_, ticket) = store.commit_async(&context, &Meta::tezos(2, "")).unwrap();
    let error = ticket.wait().unwrap_err();
    assert!(matches!(error, Error::Disk(_) | Error::Poisoned { .. }), "{error}");
    assert!(!ticket.is_durable());
    let error = store.commit(&context, &Meta::tezos(3, "")).unwrap_err();
    assert!(matches!(error, Error::Poisoned { .. }), "{error}");

    // The ticket outlives the store.
    drop(store);
    assert!(ticket.wait().is_err());
    let crashed: Arc<dyn Disk> = disk.after_crash(Survival::Nothing);
    let store = open(&crashed, &options().durability(Durability::Buffered)).unwrap();
    assert!(store.exists(&first).unwrap());
}
