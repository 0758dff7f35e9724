//! Named trees, and transactions over several of them.

use std::collections::BTreeSet;

use terrane_kv::conformance::Subject;
use terrane_radix::{Change, Error, Order, Prefix, PruneOptions, Pruned, Root, Store, Tree};

use super::words::{
    assert_whole, at, below, commit, content, delete, leaves, prune, read, run, set,
};

/// One history in each tree: three versions, of which the second is a fork point.
fn history(tree: &Tree) -> [Root; 3] {
    let first =
        commit(tree, &Root::EMPTY, &[set("aa0000", "1"), set("bb0000", "1"), set("cc", "x")]);
    let second = commit(tree, &first, &[set("aa0000", "2"), delete("cc")]);
    [first, second, commit(tree, &second, &[set("dd", vec![3; 100])])]
}

fn trees_of_equal_content_do_not_touch_each_other(store: &Store) {
    let names: Vec<String> = (0..64).map(|n| format!("tree {n:02}")).collect();
    let trees: Vec<Tree> =
        names.iter().rev().map(|name| store.create_tree(name).unwrap()).collect();
    assert_eq!(store.trees().unwrap(), names, "in the order of their names");

    let mut roots = Vec::new();
    for tree in &trees {
        roots.push(history(tree));
    }

    assert!(roots.iter().all(|of_tree| *of_tree == roots[0]), "the same roots everywhere");
    let [first, second, third] = roots[0];
    let nodes = store.node_count().unwrap();
    let stored = content(&**store.database())["main"].len();

    // Each way of changing one tree; the others read as before.
    let expected: Vec<_> = roots[0].iter().map(|root| leaves(&trees[9], root)).collect();
    let others_are_as_before = |changed: &[usize]| {
        for (number, tree) in trees.iter().enumerate() {
            if !changed.contains(&number) {
                let found: Vec<_> = roots[0].iter().map(|root| leaves(tree, root)).collect();
                assert_eq!(found, expected, "tree {number}");
                assert_eq!(tree.versions().unwrap().len(), 3);
            }
        }
        assert_whole(store);
    };

    assert_eq!(
        trees[0].prune(&first).unwrap(),
        Pruned::Removed { count: 0, hashes: BTreeSet::new() },
        "other trees have all its nodes"
    );
    let refused = trees[0].get_one(&first, &at("cc"));
    assert!(matches!(refused, Err(Error::UnknownRoot { tree, .. }) if tree == "tree 63"));
    let own = commit(&trees[1], &third, &[set("ee", "own")]);
    let unknown = trees[2].has_root(&own).unwrap();
    assert!(!unknown, "the root of one tree is unknown in another");
    trees[2].retain(&BTreeSet::from([second])).unwrap();
    assert!(store.delete_tree(trees[3].name()).unwrap());
    store.rename_tree(trees[4].name(), "another name").unwrap();
    let changed = [0, 1, 2, 3];
    others_are_as_before(&changed);
    assert_eq!(store.trees().unwrap().len(), 63);

    for (number, tree) in trees.iter().enumerate() {
        if !changed.contains(&number) && number != 40 {
            let name = if number == 4 { "another name" } else { tree.name() };
            assert!(store.delete_tree(name).unwrap());
        }
    }

    for number in changed.iter().filter(|number| **number != 3) {
        assert!(store.delete_tree(trees[*number].name()).unwrap());
    }

    assert_eq!(store.trees().unwrap(), [trees[40].name()]);
    assert_eq!(
        (store.node_count().unwrap(), content(&**store.database())["main"].len()),
        (nodes, stored)
    );
    for (root, expected) in roots[0].iter().zip(expected) {
        assert_eq!(leaves(&trees[40], root), expected);
    }

    store.delete_tree(trees[40].name()).unwrap();
    assert!(content(&**store.database())["main"].is_empty());
}

fn two_trees(store: &Store) -> (Root, Root) {
    let [one, two] = ["one", "two"].map(|name| store.create_tree(name).unwrap());
    store.set_metadata(b"height", Some(b"1")).unwrap();
    (
        commit(&one, &Root::EMPTY, &[set("aa0000", "1"), set("bb", "b")]),
        commit(&two, &Root::EMPTY, &[set("aa0000", "1")]),
    )
}

/// Commits to two trees, prunes, and enters metadata; the new roots.
fn step(transaction: &mut terrane_radix::Transaction<'_>, one: &Root, two: &Root) -> (Root, Root) {
    let first = transaction.commit("one", one, &[set("aa0000", "2")]).unwrap().root;
    let last = transaction.commit_with("one", &first, &[set("cc", "c")], b"height 3").unwrap().root;
    let of_two = transaction.commit("two", two, &[delete("aa0000"), set("dd", "d")]).unwrap().root;
    let options = PruneOptions::default().list(true);

    for (root, count) in [(one, 1), (&first, 1)] {
        // The leaf of `one` is in `two` as well, and so are the nodes above it but the root.
        let pruned = transaction.prune("one", root, &options).unwrap();
        assert!(matches!(pruned, Pruned::Removed { count: of, .. } if of == count), "{pruned:?}");
    }

    transaction.set_metadata(b"height", Some(b"2")).unwrap();
    transaction.set_metadata(b"hash", Some(last.to_string().as_bytes())).unwrap();
    (last, of_two)
}

fn a_transaction_sees_its_own_and_is_seen_as_a_whole(store: &Store) {
    let (one, two) = two_trees(store);
    let trees = ["one", "two"].map(|name| store.tree(name).unwrap());
    let before = content(&**store.database());
    let mut transaction = store.transaction().unwrap();
    let (last, of_two) = step(&mut transaction, &one, &two);

    // Inside.
    let found: Vec<_> = transaction
        .leaves("one", &last, &Prefix::EMPTY)
        .unwrap()
        .map(|leaf| leaf.unwrap().0.to_string())
        .collect();
    assert_eq!(found, ["aa0000", "bb", "cc"]);
    let found: Vec<_> = transaction
        .leaves_from("one", &last, Some(&at("bb")), Order::Descending)
        .unwrap()
        .map(|leaf| leaf.unwrap().0.to_string())
        .collect();
    assert_eq!(found, ["bb", "aa0000"]);
    assert_eq!(
        transaction.get("two", &of_two, &[at("dd"), at("aa0000")]).unwrap(),
        [Some(b"d".to_vec()), None]
    );
    let dry = transaction.compute_root("one", &last, &[delete("cc")]).unwrap();
    assert!(matches!(transaction.get("one", &dry, &[]), Err(Error::UnknownRoot { .. })));
    assert!(matches!(transaction.get("one", &one, &[]), Err(Error::UnknownRoot { .. })));
    assert!(matches!(transaction.get("two", &last, &[]), Err(Error::UnknownRoot { .. })));
    assert_eq!(transaction.metadata(b"height").unwrap().unwrap(), b"2");

    // Outside.
    assert_eq!(content(&**store.database()), before);
    assert_eq!(read(&trees[0], &one, "aa0000").unwrap(), b"1");
    assert!(!trees[0].has_root(&last).unwrap());
    assert!(!trees[1].has_root(&of_two).unwrap());
    assert_eq!(store.metadata(b"height").unwrap().unwrap(), b"1");

    transaction.finish().unwrap();
    assert!(!trees[0].has_root(&one).unwrap());
    assert!(matches!(trees[0].get(&one, &[at("aa0000")]), Err(Error::UnknownRoot { .. })));
    assert_eq!(read(&trees[0], &last, "cc").unwrap(), b"c");
    assert_eq!(read(&trees[1], &of_two, "dd").unwrap(), b"d");
    assert_eq!(read(&trees[1], &two, "aa0000").unwrap(), b"1");
    assert_eq!(store.metadata(b"hash").unwrap().unwrap(), last.to_string().as_bytes());
    let [version] = trees[0].versions().unwrap().try_into().unwrap();

    assert_eq!(
        (version.root, version.parent, version.metadata),
        (last, None, b"height 3".to_vec())
    );
}

fn a_transaction_that_is_dropped_has_done_nothing(store: &Store) {
    let (one, two) = two_trees(store);
    let trees = ["one", "two"].map(|name| store.tree(name).unwrap());
    let before = content(&**store.database());
    let mut transaction = store.transaction().unwrap();
    let (last, of_two) = step(&mut transaction, &one, &two);
    transaction.create_tree("three").unwrap();
    let three = transaction.commit("three", &Root::EMPTY, &[set("aa", "3")]).unwrap().root;
    assert!(transaction.delete_tree("two").unwrap());
    transaction.rename_tree("one", "two").unwrap();
    assert_eq!(transaction.trees().unwrap(), ["three", "two"]);
    assert!(matches!(transaction.get("one", &last, &[]), Err(Error::UnknownTree { .. })));
    drop(transaction);

    assert_eq!(content(&**store.database()), before);
    assert_eq!(store.trees().unwrap(), ["one", "two"]);
    assert!(matches!(store.tree("three"), Err(Error::UnknownTree { .. })));

    for (tree, root, is_there) in [
        (&trees[0], one, true),
        (&trees[0], last, false),
        (&trees[1], two, true),
        (&trees[1], of_two, false),
        (&trees[1], three, false),
    ] {
        assert_eq!(tree.has_root(&root).unwrap(), is_there);
        assert_eq!(tree.get(&root, &[at("aa0000")]).is_ok(), is_there);
        assert_eq!(tree.commit(&root, &[]).is_ok(), is_there);
    }

    // The numbers of versions that came to nothing are not used again.
    let newest = trees[0].versions().unwrap()[0].id;
    assert!(trees[0].commit(&one, &[set("aa", "1")]).unwrap().version.unwrap() > newest);

    // The same work goes through afterwards.
    let mut transaction = store.transaction().unwrap();
    let again = step(&mut transaction, &one, &two);
    transaction.finish().unwrap();
    assert_eq!(again, (last, of_two));
}

fn many_prunes_and_commits_in_one_transaction(store: &Store) {
    let tree = store.create_tree("one").unwrap();
    let mut root = commit(&tree, &Root::EMPTY, &[set("aa0000", "0"), set("bb0000", "0")]);
    let transactions = store.database().counts().transactions;

    let mut transaction = store.transaction().unwrap();
    for round in 1..30u8 {
        let value = vec![round; if round % 2 == 0 { 3 } else { 90 }];
        let next = transaction.commit("one", &root, &[set("aa0000", &value)]).unwrap().root;
        let options = PruneOptions::default().keep_fork_points(true).list(false);
        let pruned = transaction.prune("one", &root, &options).unwrap();
        assert!(matches!(pruned, Pruned::Removed { .. }), "{pruned:?}");
        assert_eq!(transaction.prune("one", &root, &options).unwrap(), Pruned::Unknown);
        root = next;
    }

    let fork = transaction.commit("one", &root, &[set("cc", "1")]).unwrap().root;
    transaction.commit("one", &root, &[set("cc", "2")]).unwrap();
    let options = PruneOptions::default().keep_fork_points(true).list(false);
    assert_eq!(transaction.prune("one", &root, &options).unwrap(), Pruned::ForkPoint(2));
    assert_eq!(transaction.prune_below("one", &fork, 0).unwrap(), 1);
    assert_eq!(transaction.retain("one", &BTreeSet::from([fork])).unwrap(), 1);
    transaction.finish().unwrap();
    assert_eq!(store.database().counts().transactions, transactions + 1);
    assert_eq!(tree.versions().unwrap().len(), 1);

    assert_eq!(read(&tree, &fork, "aa0000").unwrap(), [29; 90]);
}

fn a_root_that_goes_and_comes_back_in_one_transaction(store: &Store) {
    let tree = store.create_tree("one").unwrap();
    let root = commit(&tree, &Root::EMPTY, &[set("aa0000", "1")]);
    let mut transaction = store.transaction().unwrap();
    transaction.prune("one", &root, &PruneOptions::default()).unwrap();
    assert!(transaction.commit("one", &root, &[]).is_err());
    assert_eq!(transaction.commit("one", &Root::EMPTY, &[set("aa0000", "1")]).unwrap().root, root);
    transaction.finish().unwrap();
    assert_eq!(read(&tree, &root, "aa0000").unwrap(), b"1");
    let mut transaction = store.transaction().unwrap();
    transaction.commit("one", &Root::EMPTY, &[set("bb0000", "1")]).unwrap();
    transaction.delete_tree("one").unwrap();
    transaction.create_tree("one").unwrap();
    assert!(matches!(transaction.get("one", &root, &[]), Err(Error::UnknownRoot { .. })));
    assert_eq!(transaction.commit("one", &Root::EMPTY, &[set("aa0000", "1")]).unwrap().root, root);
    transaction.finish().unwrap();
    assert!(matches!(tree.has_root(&root), Err(Error::UnknownTree { .. })), "it is another tree");

    assert!(store.tree("one").unwrap().has_root(&root).unwrap());
}

fn renamed_trees_keep_their_versions(store: &Store) {
    let tree = store.create_tree("old").unwrap();
    let [first, second, third] = history(&tree);
    store.rename_tree("old", "new").unwrap();
    assert!(matches!(store.tree("old"), Err(Error::UnknownTree { .. })));
    assert_eq!(store.trees().unwrap(), ["new"]);
    let renamed = store.tree("new").unwrap();

    for handle in [&tree, &renamed] {
        assert_eq!(leaves(handle, &third).len(), 3);
        assert_eq!(handle.versions().unwrap().len(), 3);
    }

    prune(&tree, &first);
    assert!(!renamed.has_root(&first).unwrap());
    let fork = commit(&tree, &second, &[set("ee", "e")]);
    assert_eq!(read(&renamed, &fork, "ee").unwrap(), b"e");
}

fn metadata_is_a_map(store: &Store) {
    for (key, value) in [("a", "1"), ("a/x", "2"), ("a/y", ""), ("b", "4"), ("\u{ff}", "5")] {
        store.set_metadata(key.as_bytes(), Some(value.as_bytes())).unwrap();
    }

    let keys = |prefix: &[u8]| -> Vec<String> {
        let entries = store.metadata_entries(prefix).unwrap();
        entries.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
    };
    assert_eq!(keys(b""), ["a", "a/x", "a/y", "b", "\u{ff}"]);
    assert_eq!(keys(b"a/"), ["a/x", "a/y"]);
    assert_eq!(keys(b"c"), [""; 0]);
    assert_eq!(store.metadata(b"a/y").unwrap(), Some(Vec::new()), "an empty value is one");
    store.set_metadata(b"a", None).unwrap();
    store.set_metadata(b"none", None).unwrap();
    store.set_metadata(b"b", Some(b"new")).unwrap();
    assert_eq!(store.metadata(b"a").unwrap(), None);

    assert_eq!(store.metadata(b"b").unwrap().unwrap(), b"new");
}

/// Leaves of all that begins with a prefix go in one change, and nothing else does.
fn deleted_prefixes(store: &Store) {
    let tree = store.create_tree("one").unwrap();
    let all = ["aa", "aa00", "aa0001", "aa01", "ab00", "ab0000", "bb"];
    let changes: Vec<Change> = all.iter().map(|address| set(address, "v")).collect();
    let root = commit(&tree, &Root::EMPTY, &changes);

    for (prefix, count) in [("aa", 3), ("aa00", 5), ("ab", 5), ("ab00", 5), ("aa0001", 6), ("", 0)]
    {
        let committed = tree.commit(&root, &[Change::DeletePrefix(below(prefix))]).unwrap();
        let left: Vec<&str> =
            all.iter().copied().filter(|address| !address.starts_with(prefix)).collect();
        let found = leaves(&tree, &committed.root);
        assert_eq!(found.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), left);
        assert_eq!(left.len(), count);
        let one_by_one: Vec<Change> = all
            .iter()
            .filter(|address| address.starts_with(prefix))
            .map(|address| delete(address))
            .collect();
        assert_eq!(tree.compute_root(&root, &one_by_one).unwrap(), committed.root);
    }

    let beside = [Change::DeletePrefix(below("aa")), set("ab", "w"), delete("ab0000")];
    let root = commit(&tree, &root, &beside);
    let found: Vec<String> = leaves(&tree, &root).into_iter().map(|(key, _)| key).collect();
    assert_eq!(found, ["ab", "ab00", "bb"]);
}

pub(super) fn check(subject: &mut dyn Subject) {
    run(
        subject,
        &[
            trees_of_equal_content_do_not_touch_each_other,
            a_transaction_sees_its_own_and_is_seen_as_a_whole,
            a_transaction_that_is_dropped_has_done_nothing,
            many_prunes_and_commits_in_one_transaction,
            a_root_that_goes_and_comes_back_in_one_transaction,
            renamed_trees_keep_their_versions,
            metadata_is_a_map,
            deleted_prefixes,
        ],
    );
}
