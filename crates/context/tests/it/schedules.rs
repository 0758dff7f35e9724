//! Threads of a context store under many schedules (`cargo xtask schedules`).
//!
//! Goal: whatever thread runs next, nobody waits for ever, a collection takes no commit that is to
//! stay, and what a ticket called durable is there after a loss of power at any moment. Method:
//! [`explore`](terrane_testkit::schedules::explore).

use std::sync::Arc;

use terrane_context::{Durability, Hash, Meta, Retain, Store};
use terrane_io::sync::{Mutex, thread};
use terrane_io::{Disk, SimDisk, Survival};
use terrane_testkit::schedules::explore;

use crate::script::{create, go, open, options};

fn meta(number: u8) -> Meta<'static> {
    Meta::tezos(i64::from(number), "")
}

/// Commits `number` behind a commit.
fn add(store: &Store, parent: Option<&Hash>, number: u8) -> Hash {
    let mut context = match parent {
        Some(parent) => store.checkout(parent).unwrap().unwrap(),
        None => store.empty(),
    };
    context.add(&["data", &number.to_string()], vec![number; 60]).unwrap();
    store.commit(&context, &meta(number)).unwrap()
}

fn has(store: &Store, commit: &Hash, number: u8) -> bool {
    let context = store.checkout(commit).unwrap().expect("a commit that is to stay");
    context.find(&["data", &number.to_string()]).unwrap().as_deref() == Some(&[number; 60][..])
}

#[test]
fn a_collection_beside_commits_and_readers_leaves_what_is_to_stay() {
    explore("schedules_collection", || {
        let disk: Arc<dyn Disk> = SimDisk::new(1);
        let store = Arc::new(create(&disk, &options()).unwrap());
        let mut commits = vec![add(&store, None, 0)];
        for number in 1..6 {
            commits.push(add(&store, commits.last(), number));
        }

        let collector = thread::spawn({
            let (store, oldest) = (Arc::clone(&store), commits[3]);
            move || store.collect(&Retain::since(oldest), &mut go).map(drop)
        });
        let reader = thread::spawn({
            let (store, newest) = (Arc::clone(&store), commits[5]);
            move || (0..=5).for_each(|number| assert!(has(&store, &newest, number)))
        });
        for number in 6..9 {
            commits.push(add(&store, commits.last(), number));
        }
        collector.join().unwrap().unwrap();
        reader.join().unwrap();

        for newest in [5, 8] {
            for number in 0..=newest {
                assert!(has(&store, &commits[usize::from(newest)], number));
            }
        }
        store.close().unwrap();
        drop(store);
        let store = open(&disk, &options()).unwrap();
        assert!((0..9).all(|number| has(&store, &commits[8], number)));
    });
}

#[test]
fn pipelined_commits_are_durable_in_their_order_when_their_tickets_say_so() {
    explore("schedules_pipelined", || {
        let disk = SimDisk::new(1);
        let shared: Arc<dyn Disk> = disk.clone();
        let store = create(&shared, &options()).unwrap();
        let durable = Arc::new(Mutex::new(Vec::new()));

        let writer = thread::spawn({
            let durable = Arc::clone(&durable);
            move || {
                let mut context = store.empty();
                let mut waiting = Vec::new();
                for number in 0..4_u8 {
                    context.add(&["data", &number.to_string()], vec![number; 60]).unwrap();
                    waiting.push(store.commit_async(&context, &meta(number)).unwrap());
                    context.advance(waiting[usize::from(number)].0);
                }
                for (hash, ticket) in waiting {
                    ticket.wait().unwrap();
                    durable.lock().unwrap().push(hash);
                }
                store.close().unwrap();
            }
        });
        let before: Vec<Hash> = durable.lock().unwrap().clone();
        let crashed: Arc<dyn Disk> = disk.after_crash(Survival::Nothing);
        writer.join().unwrap();

        // A loss of power before the store was whole leaves none.
        if before.is_empty() {
            return;
        }
        let store = open(&crashed, &options().durability(Durability::Buffered)).unwrap();
        for (number, hash) in (0..).zip(&before) {
            assert!(has(&store, hash, number), "commit {number} was durable");
        }
    });
}

#[test]
fn two_threads_commit_to_branches_of_their_own() {
    explore("schedules_branches", || {
        let disk: Arc<dyn Disk> = SimDisk::new(1);
        let store = Arc::new(create(&disk, &options()).unwrap());
        let writers: Vec<_> = ["left", "right"]
            .into_iter()
            .enumerate()
            .map(|(side, branch)| {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    let mut context = store.empty();
                    for number in 0..3_u8 {
                        let value = vec![number + 10 * side as u8; 60];
                        context.add(&["data", &number.to_string()], value).unwrap();
                        let hash = store.commit_to(branch.as_bytes(), &context, &meta(number));
                        context.advance(hash.unwrap());
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        for (side, branch) in ["left", "right"].into_iter().enumerate() {
            let head = store.branch(branch.as_bytes()).unwrap();
            let context = store.checkout(&head).unwrap().unwrap();
            let found = context.find(&["data", "2"]).unwrap().unwrap();
            assert_eq!(found, vec![2 + 10 * side as u8; 60]);
        }
        store.close().unwrap();
    });
}
