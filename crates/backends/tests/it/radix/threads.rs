//! Several threads: whatever the schedule, each reads what is retained, and what they leave is
//! whole.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use terrane_kv::Database;
use terrane_kv::conformance::Subject;
use terrane_radix::{Error, INDEXES, Prefix, Pruned, Root, Store, Tree};

use super::faulty::Faulty;
use super::words::{assert_whole, at, commit, leaves, run, set, tree};
use super::{TREE, options};

/// Roots that the writer has not begun to prune.
type Retained = Mutex<VecDeque<(u32, Root)>>;

fn retained(roots: &Retained) -> std::sync::MutexGuard<'_, VecDeque<(u32, Root)>> {
    roots.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a root that may be pruned at any time: it is whole, or unknown. Answers whether it was
/// there.
fn read_whole(tree: &Tree, round: u32, root: &Root) -> bool {
    let values = match tree.get(root, &[at("aa0000"), at("bb0000")]) {
        Ok(values) => values,
        Err(Error::UnknownRoot { .. }) => return false,
        Err(error) => panic!("{error:?}"),
    };

    let own = round.to_string().into_bytes();
    assert_eq!(values, [Some(own.clone()), Some(b"same".to_vec())]);
    match tree.leaves(root, &Prefix::EMPTY) {
        Ok(leaves) => {
            let found: Vec<_> = leaves.map(|leaf| leaf.unwrap().1).collect();
            assert_eq!(found[0], own);
            assert_eq!(found.len(), 3 + (round % 5) as usize);
            true
        }
        Err(Error::UnknownRoot { .. }) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// A call that needs a transaction of its own waited for ever for the transaction of the same
/// thread.
fn a_thread_with_a_transaction_is_told_and_others_wait(store: &Store) {
    let tree = tree(store);
    let root = commit(&tree, &Root::EMPTY, &[set("aa", "1")]);
    let mut transaction = store.transaction().unwrap();
    let next = transaction.commit(TREE, &root, &[set("bb", "2")]).unwrap().root;
    let busy = [
        tree.commit(&root, &[set("cc", "3")]).map(drop),
        tree.prune(&root).map(drop),
        store.create_tree("other").map(drop),
        store.set_metadata(b"key", Some(b"value")),
        store.transaction().map(drop),
    ];
    assert!(busy.iter().all(|call| matches!(call, Err(Error::Busy(_)))), "{busy:?}");

    // Another store of the same database has a turn of its own, and meets the writer of the
    // database.
    let other = Store::open(Arc::clone(store.database()), &options()).unwrap();
    assert!(matches!(other.transaction(), Err(Error::Busy(_))));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| commit(&tree, &root, &[set("cc", "3")]));
        transaction.finish().unwrap();
        waiting.join().unwrap();
    });

    assert_eq!(tree.versions().unwrap().len(), 3);
    assert!(tree.has_root(&next).unwrap());
}

fn one_writer_that_prunes_and_many_readers(store: &Store) {
    let tree = tree(store);
    let roots = Retained::default();
    let is_done = AtomicBool::new(false);
    let start = commit(&tree, &Root::EMPTY, &[set("bb0000", "same"), set("cc", vec![1; 100])]);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|number| {
                let tree = tree.clone();
                let roots = &roots;
                let is_done = &is_done;
                scope.spawn(move || {
                    let mut reads = 0u64;
                    let mut at = number;
                    while !is_done.load(Ordering::Acquire) || reads == 0 {
                        let picked = {
                            let roots = retained(roots);
                            (!roots.is_empty()).then(|| roots[at % roots.len()])
                        };
                        at += 1;
                        if let Some((round, root)) = picked {
                            read_whole(&tree, round, &root);
                            reads += 1;
                        }
                    }
                })
            })
            .collect();
        for round in 0..200u32 {
            let mut changes = vec![set("aa0000", round.to_string())];
            changes.extend((0..round % 5).map(|n| set(&format!("dd{n:02x}00"), round.to_string())));
            let root = commit(&tree, &start, &changes);
            retained(&roots).push_back((round, root));

            if round >= 8 {
                // Readers that picked it before may still read it.
                let (_, oldest) = retained(&roots).pop_front().unwrap();
                assert!(matches!(tree.prune(&oldest).unwrap(), Pruned::Removed { .. }));
            }

            for (round, root) in retained(&roots).clone() {
                assert!(read_whole(&tree, round, &root), "a retained root is read");
            }
        }

        is_done.store(true, Ordering::Release);
        for reader in readers {
            reader.join().unwrap();
        }
    });

    assert_eq!(tree.versions().unwrap().len(), 9);
}

/// A transaction once noted its outcome in memory after the next transaction had begun. The next
/// one then took a pruned root for retained, built upon it, and counted references against a
/// missing version; or it committed to a deleted tree.
fn no_transaction_relies_on_what_the_one_before_took_away(subject: &mut dyn Subject) {
    let database = Faulty::new(subject.fresh(&INDEXES).unwrap());
    let store = Store::open(Arc::clone(&database) as Arc<dyn Database>, &options()).unwrap();
    database.linger();
    let batch = [set("aa0000", "1"), set("bb0000", "2"), set("cc", vec![3; 100])];

    for round in 0..100 {
        let tree = store.tree_or_create(TREE).unwrap();
        let root = commit(&tree, &Root::EMPTY, &batch);
        let (taken, committed) = thread::scope(|scope| {
            let one = scope.spawn(|| {
                if round % 2 == 0 {
                    tree.prune(&root).map(drop)
                } else {
                    store.delete_tree(TREE).map(drop)
                }
            });
            let other = tree.clone();
            let parent = if round % 4 < 2 { root } else { Root::EMPTY };
            let two = scope.spawn(move || other.commit(&parent, &[set("aa0000", "other")]));
            (one.join().unwrap(), two.join().unwrap())
        });

        taken.unwrap();
        match committed {
            Ok(made) if round % 2 == 0 => {
                assert!(!leaves(&tree, &made.root).is_empty());
                tree.prune(&made.root).unwrap();
            }
            Ok(_) | Err(Error::UnknownRoot { .. } | Error::UnknownTree { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }

        let report = store.verify().unwrap();
        assert!(report.is_clean(), "round {round}: {:?}", report.problems);
        assert_eq!((report.versions, report.nodes), (0, 1), "round {round}");
    }
}

/// Trees of their own, made, filled, pruned and deleted side by side.
fn threads_on_trees_of_their_own(store: &Store) {
    thread::scope(|scope| {
        for number in 0..4u8 {
            scope.spawn(move || {
                let name = format!("tree {number}");
                for round in 0..10u8 {
                    let tree = store.create_tree(&name).unwrap();
                    let first =
                        commit(&tree, &Root::EMPTY, &[set("aa0000", [round]), set("bb", "same")]);
                    let next = commit(&tree, &first, &[set("aa0000", "same")]);
                    tree.prune(&first).unwrap();
                    assert_eq!(leaves(&tree, &next).len(), 2);
                    assert!(store.delete_tree(&name).unwrap());
                }
            });
        }
    });

    assert_eq!(store.node_count().unwrap(), 1);
    assert_whole(store);
}

pub(super) fn check(subject: &mut dyn Subject) {
    run(
        subject,
        &[
            a_thread_with_a_transaction_is_told_and_others_wait,
            one_writer_that_prunes_and_many_readers,
            threads_on_trees_of_their_own,
        ],
    );
    no_transaction_relies_on_what_the_one_before_took_away(subject);
}
