//! Leaves while commits and prunes go on, the traits by which a state is read and changed, and
//! `verify`.

use std::collections::{BTreeMap, BTreeSet};

use terrane_kv::conformance::Subject;
use terrane_radix::{
    Address, Change, Committer, DryRunCommitter, LeafReader, Leaves, Order, Prefix, Pruner, Reader,
    Root, State, StateChange, Store, TextTree, Tree,
};

use super::TREE;
use super::words::{at, below, commit, delete, prune, read, run, set, tree};

fn rest(leaves: Leaves<'_>) -> Vec<(String, Vec<u8>)> {
    leaves.map(Result::unwrap).map(|(address, value)| (address.to_string(), value)).collect()
}

/// More values than the cache holds.
fn large(tree: &Tree) -> (Root, Vec<(String, Vec<u8>)>) {
    let values: BTreeMap<String, Vec<u8>> = (0..400u32)
        .map(|n| (format!("{:04x}{:04x}", n * 7 % 401, n), vec![n as u8; 300 + n as usize]))
        .collect();
    let changes: Vec<Change> = values.iter().map(|(key, value)| set(key, value)).collect();
    (commit(tree, &Root::EMPTY, &changes), values.into_iter().collect())
}

fn leaves_stay_as_they_are_while_their_root_goes(store: &Store) {
    let tree = tree(store);
    let (root, expected) = large(&tree);

    // Several at once, each half way when the state changes under it.
    let mut all = tree.leaves(&root, &Prefix::EMPTY).unwrap();
    let mut found: Vec<(String, Vec<u8>)> = all
        .by_ref()
        .take(200)
        .map(Result::unwrap)
        .map(|(address, value)| (address.to_string(), value))
        .collect();
    let mut backwards = tree.leaves_from(&root, None, Order::Descending).unwrap();
    let last = backwards.next().unwrap().unwrap();
    assert_eq!(last.0.to_string(), expected[399].0);
    let part = tree.leaves(&root, &below("00")).unwrap();

    let next = commit(&tree, &root, &[delete(&expected[200].0), set(&expected[201].0, "changed")]);
    prune(&tree, &root);
    assert!(!tree.has_root(&root).unwrap());
    let mut of_next = tree.leaves(&next, &Prefix::EMPTY).unwrap();
    assert!(of_next.next().is_some());

    // Everything goes, and other values take the addresses.
    prune(&tree, &next);
    for round in 0..5 {
        let changes: Vec<Change> =
            expected.iter().map(|(key, _)| set(key, format!("other {round}"))).collect();
        let other = commit(&tree, &Root::EMPTY, &changes);
        prune(&tree, &other);
    }

    // What snapshots hold is in its way on some back-ends, which say so.
    match store.database().compact() {
        Ok(()) | Err(terrane_kv::Error::Busy { .. }) => {}
        Err(error) => panic!("{error}"),
    }

    found.extend(rest(all));
    assert_eq!(found, expected);
    let mut reversed = rest(backwards);
    reversed.reverse();
    assert_eq!(reversed, expected[..399]);
    let of_part: Vec<_> =
        expected.iter().filter(|(key, _)| key.starts_with("00")).cloned().collect();
    assert_eq!(rest(part), of_part);
    assert!(!of_part.is_empty());
    let of_next = rest(of_next);
    assert_eq!(of_next.len(), 398);

    assert_eq!(of_next[199], (expected[201].0.clone(), b"changed".to_vec()));
}

fn leaves_stay_as_they_are_while_their_tree_is_deleted(store: &Store) {
    let tree = tree(store);
    let (root, expected) = large(&tree);
    let mut all = tree.leaves(&root, &Prefix::EMPTY).unwrap();
    let first = all.next().unwrap().unwrap();
    assert_eq!(first.1, expected[0].1);
    assert!(store.delete_tree(TREE).unwrap());
    assert_eq!(rest(all), expected[1..]);
}

fn values_are_found_in_any_order_and_more_than_once(store: &Store) {
    let tree = tree(store);
    let (root, expected) = large(&tree);
    let mut asked: Vec<Address> = expected.iter().map(|(key, _)| at(key)).collect();
    let mut values: Vec<Option<Vec<u8>>> =
        expected.into_iter().map(|(_, value)| Some(value)).collect();
    asked.reverse();
    values.reverse();
    asked.extend([asked[7], at("ffff"), asked[7], at("00")]);
    values.extend([values[7].clone(), None, values[7].clone(), None]);
    assert_eq!(tree.get(&root, &asked).unwrap(), values);

    for (address, value) in asked.iter().zip(&values) {
        assert_eq!(tree.get_one(&root, address).unwrap(), *value);
        assert_eq!(tree.contains(&root, address).unwrap(), value.is_some());
    }
}

/// Works with a state by its traits alone.
fn by_traits<S>(state: &S, init: &S::StateId, keys: &[S::Key; 3], all: &S::Prefix)
where
    S: Committer + DryRunCommitter + Reader + LeafReader + Pruner + State<Value = Vec<u8>>,
    S::StateId: PartialEq + std::fmt::Debug + Clone + Ord,
    S::Key: Ord + Clone + std::fmt::Debug,
{
    let set = |key: &S::Key, value: &str| StateChange::Set {
        key: key.clone(),
        value: value.as_bytes().to_vec(),
    };
    let changes = [set(&keys[1], "1"), set(&keys[0], "0"), set(&keys[2], "2")];
    let dry = state.dry_run_commit(init, &changes).unwrap();
    let first = state.commit(init, &changes).unwrap();
    assert_eq!(first, dry);
    assert_eq!(state.commit(&first, &[]).unwrap(), first);
    let second = state
        .commit(&first, &[StateChange::Delete { key: keys[0].clone() }, set(&keys[1], "new")])
        .unwrap();
    let expected = [(keys[1].clone(), b"new".to_vec()), (keys[2].clone(), b"2".to_vec())];

    // Those that are absent are missing.
    assert_eq!(state.get(&second, keys).unwrap(), BTreeMap::from(expected.clone()));
    let found: Vec<_> = state.leaves(&second, all).unwrap().map(Result::unwrap).collect();
    assert_eq!(found, expected);

    // As in the original, fork points stay and what is unknown is passed over.
    let fork = state.commit(&first, &[set(&keys[2], "fork")]).unwrap();
    assert_eq!(state.prune(std::slice::from_ref(&first)).unwrap(), []);
    assert!(state.get(&first, keys).is_ok());
    let removed = state.prune(&[fork.clone(), first.clone(), first.clone()]).unwrap();
    assert!(removed.contains(&fork) && removed.contains(&first));
    assert!(state.get(&first, keys).is_err());
    let left = state.prune(std::slice::from_ref(&second)).unwrap();
    assert!(left.contains(&second));
    let unique: BTreeSet<_> = removed.iter().chain(&left).collect();

    assert_eq!(unique.len(), removed.len() + left.len(), "no node goes twice");
}

fn the_traits_do_the_same_on_bytes_and_on_text(store: &Store) {
    let tree = tree(store);
    let keys = ["aa0000", "aa0001", "bb"];
    by_traits(&tree, &Root::EMPTY, &keys.map(at), &Prefix::EMPTY);
    assert_eq!(store.node_count().unwrap(), 1);
    let text = TextTree(tree);
    by_traits(&text, &Root::EMPTY.to_string(), &keys.map(str::to_owned), "");
    assert_eq!(store.node_count().unwrap(), 1);
}

fn verify_counts_what_nodes_lists(store: &Store) {
    let tree = tree(store);
    let (root, _) = large(&tree);
    let next = commit(&tree, &root, &[set("00", "x")]);
    for root in [root, next, Root::EMPTY] {
        let report = tree.verify(&root).unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        assert_eq!((report.nodes, report.versions), (tree.nodes(&root).unwrap().len() as u64, 1));
    }
    assert_eq!(store.verify().unwrap().versions, 2);
    assert_eq!(read(&tree, &next, "00").unwrap(), b"x");
}

pub(super) fn check(subject: &mut dyn Subject) {
    run(
        subject,
        &[
            leaves_stay_as_they_are_while_their_root_goes,
            leaves_stay_as_they_are_while_their_tree_is_deleted,
            values_are_found_in_any_order_and_more_than_once,
            the_traits_do_the_same_on_bytes_and_on_text,
            verify_counts_what_nodes_lists,
        ],
    );
}
