//! Defects of the original implementation, Transact, that this implementation must not have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use terrane_kv::Database;
use terrane_kv::conformance::Subject;
use terrane_radix::{
    Change, Committer, DryRunCommitter, Error, INDEXES, NodeHash, Prefix, PruneOptions, Pruned,
    Reader, Root, StateChange, Store, TextTree, Tree,
};
use terrane_testkit::effort::by_effort;

use super::faulty::{Call, Faulty};
use super::options;
use super::rules::{State, root_of};
use super::words::{
    altered, at, below, commit, content, delete, leaves, prune, read, run, set, tree,
};

/// Two addresses with equal values in one batch, so with equal sub-trees.
fn twins(tree: &Tree) -> Root {
    commit(tree, &Root::EMPTY, &[set("aa0000", "same"), set("bb0000", "same")])
}

fn equal_sub_trees_of_one_batch_survive_a_prune(store: &Store) {
    let tree = tree(store);
    let first = twins(&tree);
    let second = commit(&tree, &first, &[set("aa0000", "other")]);
    assert_eq!(prune(&tree, &first), BTreeSet::from([first]));
    assert_eq!(read(&tree, &second, "bb0000").unwrap(), b"same");
    assert_eq!(leaves(&tree, &second).len(), 2);
}

fn equal_sub_trees_are_freed_with_the_last_that_has_them(store: &Store) {
    let tree = tree(store);
    for prunes_the_tip in [false, true] {
        let first = twins(&tree);
        let second = commit(&tree, &first, &[set("aa0000", "x"), set("bb0000", "y")]);
        assert_eq!(store.node_count().unwrap(), 4 + 7 + 1);
        let (pruned, kept) = if prunes_the_tip { (second, first) } else { (first, second) };
        let before = tree.nodes(&pruned).unwrap();
        let after = tree.nodes(&kept).unwrap();
        assert_eq!(prune(&tree, &pruned), before.difference(&after).copied().collect());
        assert_eq!(store.node_count().unwrap(), after.len() as u64 + 1);
        assert_eq!(leaves(&tree, &kept).len(), 2);
        prune(&tree, &kept);
        assert_eq!(store.node_count().unwrap(), 1);
    }
}

fn a_value_that_three_addresses_use_stays_for_the_third(store: &Store) {
    let tree = tree(store);
    let mut roots = vec![Root::EMPTY];
    for changes in [
        set("aa0000", "v"),
        set("bb0000", "v"),
        set("cc0000", "v"),
        delete("aa0000"),
        delete("bb0000"),
    ] {
        roots.push(commit(&tree, roots.last().unwrap(), &[changes]));
    }

    for root in &roots[1..5] {
        prune(&tree, root);
    }

    assert_eq!(read(&tree, &roots[5], "cc0000").unwrap(), b"v");
    assert_eq!(store.node_count().unwrap(), 5);
}

fn pruning_a_predecessor_leaves_the_older_ones_complete(store: &Store) {
    let tree = tree(store);
    let n0 = commit(&tree, &Root::EMPTY, &[set("aa0000", "0"), set("bb0000", "old")]);
    let n1 = commit(&tree, &n0, &[set("aa0000", "1")]);
    let n2 = commit(&tree, &n1, &[set("aa0000", "2")]);
    let n3 = commit(&tree, &n2, &[delete("bb0000")]);
    prune(&tree, &n2);

    for (root, value) in [(n0, "0"), (n1, "1")] {
        let expected = [("aa0000", value), ("bb0000", "old")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
        assert_eq!(leaves(&tree, &root), expected);
    }

    assert_eq!(read(&tree, &n3, "bb0000"), None);
}

fn equal_values_are_listed_under_their_own_addresses(store: &Store) {
    let tree = tree(store);
    let addresses = ["aa0000", "aa0001", "aa01", "ab0000", "ab000000"];
    let changes: Vec<Change> = addresses.iter().map(|address| set(address, "same")).collect();
    let root = commit(&tree, &Root::EMPTY, &changes);
    let found: Vec<String> = leaves(&tree, &root).into_iter().map(|(key, _)| key).collect();
    assert_eq!(found, addresses);

    for (prefix, expected) in
        [("aa", &addresses[..3]), ("aa00", &addresses[..2]), ("ab0000", &addresses[3..])]
    {
        let found = tree.leaves(&root, &below(prefix)).unwrap();
        let found: Vec<String> = found.map(|leaf| leaf.unwrap().0.to_string()).collect();
        assert_eq!(found, expected);
    }
}

fn a_fork_point_can_be_pruned_when_its_other_forks_are_gone(store: &Store) {
    let tree = tree(store);
    let keeping = PruneOptions::default().keep_fork_points(true).list(true);
    for options in [PruneOptions::default().list(true), keeping] {
        let parent = commit(&tree, &Root::EMPTY, &[set("aa0000", "0"), set("bb", "1")]);
        let forks: Vec<Root> =
            (1..4).map(|n| commit(&tree, &parent, &[set("aa0000", format!("{n}"))])).collect();
        if options.keep_fork_points {
            assert_eq!(tree.prune_with(&parent, &options).unwrap(), Pruned::ForkPoint(3));
            prune(&tree, &forks[0]);
            assert_eq!(tree.prune_with(&parent, &options).unwrap(), Pruned::ForkPoint(2));
        } else {
            prune(&tree, &forks[0]);
        }

        prune(&tree, &forks[1]);
        // The root, and those down to the value that is no more.
        let own = tree.nodes(&parent).unwrap();
        let kept = tree.nodes(&forks[2]).unwrap();
        let hashes: BTreeSet<NodeHash> = own.difference(&kept).copied().collect();
        let count = hashes.len() as u64;
        assert_eq!(count, 4);
        assert_eq!(tree.prune_with(&parent, &options).unwrap(), Pruned::Removed { count, hashes });
        assert_eq!(read(&tree, &forks[2], "bb").unwrap(), b"1");
        prune(&tree, &forks[2]);
        assert_eq!(store.node_count().unwrap(), 1);
    }
}

fn versions_of_a_root_that_recurs_are_counted(store: &Store) {
    let tree = tree(store);
    let one = commit(&tree, &Root::EMPTY, &[set("aa0000", "1"), set("bb", "0")]);
    assert_eq!(commit(&tree, &one, &[set("aa0000", "1")]), one, "a commit that changes nothing");
    let two = commit(&tree, &one, &[set("aa0000", "2")]);
    assert_eq!(commit(&tree, &two, &[set("aa0000", "1")]), one, "and back again");
    assert_eq!(tree.versions().unwrap().len(), 4);
    assert_eq!(tree.prune(&one).unwrap(), Pruned::Counted(2));
    assert_eq!(tree.prune(&one).unwrap(), Pruned::Counted(1));
    assert_eq!(read(&tree, &one, "aa0000").unwrap(), b"1");
    assert_eq!(prune(&tree, &two).len(), 4);
    assert_eq!(prune(&tree, &one).len(), 5);
    assert_eq!(store.node_count().unwrap(), 1);

    assert_eq!(tree.prune(&one).unwrap(), Pruned::Unknown);
}

fn what_is_unknown_is_an_error_everywhere(store: &Store) {
    let tree = tree(store);
    let root = commit(&tree, &Root::EMPTY, &[set("aa", "1")]);
    let unknown = altered(&root);

    for refused in [
        tree.compute_root(&unknown, &[set("aa", "2")]).map(drop),
        tree.compute_root(&unknown, &[]).map(drop),
        tree.commit(&unknown, &[]).map(drop),
        tree.commit(&unknown, &[set("aa", "2")]).map(drop),
        tree.leaves(&unknown, &Prefix::EMPTY).map(drop),
        tree.leaves_from(&unknown, None, terrane_radix::Order::Ascending).map(drop),
        tree.get_one(&unknown, &at("aa")).map(drop),
        tree.get(&unknown, &[]).map(drop),
        tree.nodes(&unknown).map(drop),
        tree.verify(&unknown).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::UnknownRoot { root, .. }) if root == unknown));
    }

    for parent in [root, Root::EMPTY] {
        let refused = tree.commit(&parent, &[delete("bb")]);
        assert!(matches!(refused, Err(Error::AddressNotFound { .. })), "{refused:?}");
    }
}

fn odd_addresses_and_two_deletions_of_one_are_errors(store: &Store) {
    let tree = tree(store);
    let root = commit(&tree, &Root::EMPTY, &[set("aa", "1")]);
    let text = TextTree(tree.clone());

    for key in ["a", "", "aab"] {
        let key = key.to_owned();
        for change in [
            StateChange::Delete { key: key.clone() },
            StateChange::Set { key: key.clone(), value: Vec::new() },
        ] {
            let refused = text.commit(&root.to_string(), &[change]);
            assert!(matches!(refused, Err(Error::InvalidAddress { index: Some(0), .. })));
        }
        let refused = Reader::get(&text, &root.to_string(), &[key]);
        assert!(matches!(refused, Err(Error::InvalidAddress { index: None, .. })));
    }

    let refused = tree.commit(&root, &[delete("aa"), delete("aa")]);
    assert!(matches!(refused, Err(Error::DuplicateAddress { first: 0, second: 1, .. })));
}

fn an_address_and_what_begins_with_it_are_independent(store: &Store) {
    let tree = tree(store);
    let both = [set("ab", "outer"), set("ab00", "inner")];
    let root = commit(&tree, &Root::EMPTY, &both);
    let reversed: Vec<Change> = both.iter().rev().cloned().collect();
    let one_by_one = commit(&tree, &Root::EMPTY, &both[1..]);
    let one_by_one = tree.compute_root(&one_by_one, &both[..1]).unwrap();
    assert_eq!((tree.compute_root(&Root::EMPTY, &reversed).unwrap(), one_by_one), (root, root));
    let found = leaves(&tree, &root);
    assert_eq!(found, [("ab".into(), b"outer".to_vec()), ("ab00".into(), b"inner".to_vec())]);
    let without = commit(&tree, &root, &[delete("ab00")]);
    assert_eq!(read(&tree, &without, "ab").unwrap(), b"outer");
    assert_eq!(read(&tree, &without, "ab00"), None);
    let without = commit(&tree, &root, &[delete("ab")]);
    assert_eq!(read(&tree, &without, "ab"), None);
    assert_eq!(read(&tree, &without, "ab00").unwrap(), b"inner");
    let refused = tree.commit(&without, &[delete("ab")]);

    assert!(matches!(refused, Err(Error::AddressNotFound { .. })), "an inner path is no value");
}

fn there_is_one_rule_for_addresses(store: &Store) {
    let text = TextTree(tree(store));
    let init = Root::EMPTY.to_string();
    for key in ["AB", "aB", "zz", "a ", "é", "é1", &"00".repeat(36)] {
        let set = StateChange::Set { key: key.to_owned(), value: Vec::new() };
        for refused in [
            text.commit(&init, std::slice::from_ref(&set)).map(drop),
            text.dry_run_commit(&init, std::slice::from_ref(&set)).map(drop),
            text.commit(&init, &[StateChange::Delete { key: key.to_owned() }]).map(drop),
            Reader::get(&text, &init, &[key.to_owned()]).map(drop),
            text.leaves_below(&init, key).map(drop),
        ] {
            assert!(matches!(&refused, Err(Error::InvalidAddress { text, .. }) if text == key));
        }
    }

    let longest = "0f".repeat(35);
    let set = StateChange::Set { key: longest.clone(), value: b"v".to_vec() };
    let root = text.commit(&init, &[set]).unwrap();
    let found = Reader::get(&text, &root, std::slice::from_ref(&longest)).unwrap();

    assert_eq!(found, BTreeMap::from([(longest, b"v".to_vec())]));
}

/// A hundred thousand of them; a sample has fewer, and fewest on databases that are not in memory.
fn a_batch_may_have_many_keys(store: &Store) {
    let is_in_memory = store.database().name() == "memory";
    let keys = by_effort(if is_in_memory { 20_000 } else { 5_000 }, 100_000u32);
    let tree = tree(store);

    let mut state = State::new();
    for n in 0..keys {
        // Spread over the addresses: an odd factor takes each number to another.
        let address = n.wrapping_mul(0x9e37_79b1).to_le_bytes();
        state.insert([address.as_slice(), &[0xaa; 4]].concat(), n.to_le_bytes().to_vec());
    }

    let changes: Vec<Change> = state
        .iter()
        .map(|(key, value)| Change::Set(terrane_radix::Address::new(key).unwrap(), value.clone()))
        .collect();
    let root = commit(&tree, &Root::EMPTY, &changes);
    assert_eq!(root, root_of(&state));
    let found = tree.leaves(&root, &Prefix::EMPTY).unwrap().map(Result::unwrap);
    assert!(found.map(|(key, value)| (key.as_bytes().to_vec(), value)).eq(state.clone()));
    let deletes: Vec<Change> = changes
        .iter()
        .map(|change| match change {
            Change::Set(address, _) => Change::Delete(*address),
            other => other.clone(),
        })
        .collect();
    assert_eq!(commit(&tree, &root, &deletes[1..]), root_of(&state.into_iter().take(1).collect()));
    let pruned = tree.prune_with(&root, &PruneOptions::default()).unwrap();
    let least = 4 * u64::from(keys);

    assert!(matches!(pruned, Pruned::Removed { count, .. } if count > least), "{pruned:?}");
}

/// Pruning the previous root writes about the rows that its commit wrote, in one transaction,
/// however large the state is.
fn a_prune_writes_no_more_than_what_changed(subject: &mut dyn Subject) {
    let mut writes = Vec::new();
    for keys in [50u32, 5_000] {
        let database = Faulty::new(subject.fresh(&INDEXES).unwrap());
        let store = Store::open(Arc::clone(&database) as Arc<dyn Database>, &options()).unwrap();
        let tree = tree(&store);
        let address = |n: u32| format!("{:08x}{:056x}", n.wrapping_mul(0x9e37_79b1), n);
        let all: Vec<Change> = (0..keys).map(|n| set(&address(n), n.to_le_bytes())).collect();

        let mut root = commit(&tree, &Root::EMPTY, &all);
        for changed in [1u32, 20] {
            let counted = |work: &mut dyn FnMut()| {
                let before = [Call::Write, Call::Commit].map(|call| database.count(call));
                let rows = content(&*database)["main"].len();
                work();
                let after = [Call::Write, Call::Commit].map(|call| database.count(call));
                assert_eq!(after[1] - before[1], 1, "one transaction");
                (after[0] - before[0], content(&*database)["main"].len().abs_diff(rows))
            };

            let changes: Vec<Change> =
                (0..changed).map(|n| set(&address(n), format!("new {n}"))).collect();
            let mut next = root;
            let (of_commit, made) = counted(&mut || next = commit(&tree, &root, &changes));
            let (of_prune, gone) = counted(&mut || drop(prune(&tree, &root)));
            root = next;

            // The root and one stop for each change may be the bases of what replaced them, which
            // stay and whose users are counted, or differences from bases that go with them.
            let of_bases = 2 * (1 + changed as usize);
            assert!(made.abs_diff(gone) <= of_bases, "{made} rows came, {gone} went");

            // Beside the rows of nodes: the version, its root, and its neighbour.
            assert!(of_prune <= of_commit + 3, "{keys} keys: {of_prune} against {of_commit}");
            writes.push((keys, changed, of_commit, of_prune));
        }
    }

    // A hundred times the keys make the paths to a value one stop longer or two.
    for (small, large) in writes[..2].iter().zip(&writes[2..]) {
        assert!(large.3 <= small.3 + 2 * u64::from(large.1) + 2, "{writes:?}");
    }
}

fn the_heads_of_lengths_are_those_of_the_original_on_both_edges(store: &Store) {
    let tree = tree(store);
    for (bytes, start) in [(65_535, "32b18190"), (70_000, "2fc1c1c8"), (1_048_576, "69d04ca3")] {
        let value: Vec<u8> = (0..bytes).map(|i| ((7 * i + 3) % 256) as u8).collect();
        let root = tree.compute_root(&Root::EMPTY, &[set("ab0000", value)]).unwrap();
        assert!(root.to_string().starts_with(start), "{bytes} bytes: {root}");
    }
}

pub(super) fn check(subject: &mut dyn Subject) {
    run(
        subject,
        &[
            equal_sub_trees_of_one_batch_survive_a_prune,
            equal_sub_trees_are_freed_with_the_last_that_has_them,
            a_value_that_three_addresses_use_stays_for_the_third,
            pruning_a_predecessor_leaves_the_older_ones_complete,
            // A damaged node that reads as absent is a subject of its own: see `damage`.
            equal_values_are_listed_under_their_own_addresses,
            a_fork_point_can_be_pruned_when_its_other_forks_are_gone,
            versions_of_a_root_that_recurs_are_counted,
            what_is_unknown_is_an_error_everywhere,
            odd_addresses_and_two_deletions_of_one_are_errors,
            an_address_and_what_begins_with_it_are_independent,
            there_is_one_rule_for_addresses,
            a_batch_may_have_many_keys,
            the_heads_of_lengths_are_those_of_the_original_on_both_edges,
        ],
    );
    a_prune_writes_no_more_than_what_changed(subject);
}
