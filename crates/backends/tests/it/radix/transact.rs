//! The ten tests that Transact runs of each of its back-ends, by their numbers, and those that its
//! other tests add.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use sha2::{Digest, Sha512};
use terrane_kv::conformance::Subject;
use terrane_radix::{
    Change, Committer, DryRunCommitter, Error, Prefix, Pruned, Root, StateChange, Store, TextTree,
    Tree,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use super::rules::root_of;
use super::words::{
    altered, assert_whole, at, below, commit, content, delete, hex, leaves, prune, reached, read,
    run, set, tree,
};
use super::{TREE, fresh};

const SIX: [(&str, &str); 6] = [
    ("e5542002d3e2892516fa461cde69e05880609fbad3d38ab69435a189e126de672b620c", "asdfg"),
    ("c946ee72d38b8c51328f1a5f31eb5bd3300362ad0ca69dab54eff996775c7069216bda", "qwert"),
    ("487a6a63c71c9b7b63146ef68858e5d010b4978fd70dda0404d4fad5e298ccc9a560eb", "zxcvb"),
    ("e55420c026596ee643e26fd93927249ea28fb5f359ddbd18bc02562dc7e8dbc93e89b9", "yuiop"),
    ("cc1370ce67aa16c89721ee947e9733b2a3d2460db5b0ea6410288f426ad8d8040ea641", "hjklk"),
    ("d07e69664286712c3d268ca71464f2b3b2604346f833106f3e0f6a72276e57a16f3e0f", "bnmvc"),
];
const ROOT_OF_SIX: &str = "9eb5a1068e1496425b56c428255dfcb95f81470eb7856187303f4b0c521a2aac";

fn empty_changes_1(store: &Store) {
    let tree = tree(store);
    assert_eq!(tree.compute_root(&Root::EMPTY, &[]).unwrap(), Root::EMPTY);
    let root = commit(&tree, &Root::EMPTY, &[set("abcd", "data_value")]);
    assert_eq!(tree.compute_root(&root, &[]).unwrap(), root);
}

fn root_advance_2(store: &Store) {
    let tree = tree(store);
    assert!(tree.versions().unwrap().is_empty(), "the empty root has no version, nor a parent");
    let first = tree.commit(&Root::EMPTY, &[set("abcd", "data_value")]).unwrap();
    assert!(first.root.to_string().starts_with("4c5116ae4e7439e4"));
    assert_eq!(first.added, 3);
    let second = tree.commit(&first.root, &[set("abcd", "other")]).unwrap();
    assert_eq!(second.added, 3);
    let [one, two] = tree.versions().unwrap().try_into().unwrap();
    assert_eq!((Some(one.id), one.parent, one.root), (first.version, None, first.root));
    assert_eq!((Some(two.id), two.parent, two.root), (second.version, Some(one.id), second.root));
    assert_eq!((one.children, two.children), (vec![two.id], vec![]));
    assert_eq!(read(&tree, &Root::EMPTY, "abcd"), None, "the older roots stay as they are");
    assert_eq!(read(&tree, &first.root, "abcd").unwrap(), b"data_value");

    assert_eq!(read(&tree, &second.root, "abcd").unwrap(), b"other");
}

fn delete_3(store: &Store) {
    let tree = tree(store);
    let root = commit(&tree, &Root::EMPTY, &[set("1234", "deletable")]);
    let text = TextTree(tree.clone());
    let barf = [StateChange::Delete { key: "barf".to_owned() }];
    let refused = text.commit(&root.to_string(), &barf);
    assert!(matches!(refused, Err(Error::InvalidAddress { index: Some(0), .. })), "{refused:?}");
    let refused = tree.commit(&root, &[delete("5678")]);
    assert!(matches!(refused, Err(Error::AddressNotFound { index: 0, .. })), "{refused:?}");
    let after = commit(&tree, &root, &[delete("1234")]);
    assert_eq!(read(&tree, &root, "1234").unwrap(), b"deletable");
    assert_eq!(read(&tree, &after, "1234"), None);
}

/// The address of a text: the first 32 bytes of its hash.
fn address_of(text: &str) -> String {
    hex(&Sha512::digest(text)[..32])
}

fn update_4(store: &Store) {
    let tree = tree(store);
    let mut state: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut root = Root::EMPTY;
    let mut addresses = Vec::new();
    let texts: Vec<String> = (0..1000).map(|i| format!("{i:016x}")).collect();

    let mut versions = 0;
    for part in texts.chunks(by_effort(10, 1)) {
        versions += 1;
        let of_part: Vec<String> = part.iter().map(|text| address_of(text)).collect();
        let changes: Vec<Change> =
            of_part.iter().zip(part).map(|(address, text)| set(address, text)).collect();
        root = commit(&tree, &root, &changes);
        state
            .extend(of_part.iter().cloned().zip(part.iter().map(|text| text.clone().into_bytes())));
        addresses.extend(of_part);
    }

    for_each_seed("radix_update", 1, |rng, _| {
        let mut state = state.clone();
        let (mut to_set, mut to_delete): (Vec<usize>, Vec<usize>) =
            ((0..500).collect(), (500..1000).collect());
        rng.shuffle(&mut to_set);
        rng.shuffle(&mut to_delete);

        let mut changes = Vec::new();
        for (&set_at, &delete_at) in to_set.iter().zip(&to_delete).take(50) {
            changes.push(set(&addresses[set_at], "5.0"));
            changes.push(delete(&addresses[delete_at]));
            state.insert(addresses[set_at].clone(), b"5.0".to_vec());
            state.remove(&addresses[delete_at]);
        }

        let before = content(&**store.database());
        let dry = tree.compute_root(&root, &changes).unwrap();
        assert_eq!(content(&**store.database()), before, "a dry run leaves no bytes behind");
        assert!(!tree.has_root(&dry).unwrap());
        let unknown = tree.get_one(&dry, &at(&addresses[0]));
        assert!(matches!(unknown, Err(Error::UnknownRoot { root, .. }) if root == dry));
        let after = commit(&tree, &root, &changes);
        assert_eq!(after, dry);
        let bytes = state.iter().map(|(key, value)| (at(key).as_bytes().to_vec(), value.clone()));
        assert_eq!(after, root_of(&bytes.collect()));

        for address in &addresses {
            assert_eq!(read(&tree, &after, address).as_ref(), state.get(address));
        }

        let all: Vec<_> = addresses.iter().map(|address| at(address)).collect();
        let expected: Vec<_> =
            addresses.iter().map(|address| state.get(address).cloned()).collect();
        assert_eq!(tree.get(&after, &all).unwrap(), expected);
        assert_eq!(leaves(&tree, &after), state.into_iter().collect::<Vec<_>>());
        prune(&tree, &after);
    });

    // Walking so many versions node by node would take long.
    assert_eq!(tree.retain(&BTreeSet::from([root])).unwrap(), versions - 1);
}

/// Commits some of the six addresses, one after the other.
fn six(tree: &Tree, count: usize) -> Root {
    SIX[..count]
        .iter()
        .fold(Root::EMPTY, |root, (address, value)| commit(tree, &root, &[set(address, value)]))
}

fn update_same_address_space_5(store: &Store) {
    let tree = tree(store);
    let root = six(&tree, 6);
    assert_eq!(root.to_string(), ROOT_OF_SIX);
    let in_one: Vec<Change> =
        SIX.iter().rev().map(|(address, value)| set(address, value)).collect();
    assert_eq!(tree.compute_root(&Root::EMPTY, &in_one).unwrap(), root);

    let sets = SIX.iter().map(|(address, _)| set(address, "2.0"));
    let deletes: Vec<Change> = SIX[3..].iter().map(|(address, _)| delete(address)).collect();
    let overlapping: Vec<Change> = sets.clone().chain(deletes.iter().cloned()).collect();

    for refused in [
        tree.compute_root(&root, &overlapping).unwrap_err(),
        tree.commit(&root, &overlapping).unwrap_err(),
    ] {
        let is_it = matches!(refused, Error::DuplicateAddress { first: 3, second: 6, .. });
        assert!(is_it, "{refused}");
    }

    let plain: Vec<Change> = sets.take(3).chain(deletes).collect();
    let dry = tree.compute_root(&root, &plain).unwrap();
    assert!(!tree.has_root(&dry).unwrap());
    let after = commit(&tree, &root, &plain);
    assert_eq!(after, dry);

    for (number, (address, value)) in SIX.iter().enumerate() {
        let expected = (number < 3).then(|| b"2.0".to_vec());
        assert_eq!(read(&tree, &after, address), expected);
        assert_eq!(read(&tree, &root, address).unwrap(), value.as_bytes());
    }
}

fn update_same_address_space_with_no_children_6(store: &Store) {
    let tree = tree(store);
    // All but the second one under e55420.
    let others = SIX.iter().enumerate().filter(|(number, _)| *number != 3);
    let root = others.fold(Root::EMPTY, |root, (_, (address, value))| {
        commit(&tree, &root, &[set(address, value)])
    });
    let changes = [
        set(SIX[3].0, "2.0"),
        delete(SIX[0].0),
        set(SIX[1].0, "2.0"),
        set(SIX[2].0, "2.0"),
        delete(SIX[4].0),
        delete(SIX[5].0),
    ];
    let dry = tree.compute_root(&root, &changes).unwrap();
    let after = commit(&tree, &root, &changes);
    assert_eq!(after, dry);
    let mut expected: Vec<(String, Vec<u8>)> =
        SIX[1..4].iter().map(|(address, _)| ((*address).to_owned(), b"2.0".to_vec())).collect();
    expected.sort();

    assert_eq!(leaves(&tree, &after), expected);
}

/// The state that the tests of pruning begin with.
fn three(tree: &Tree) -> Root {
    commit(
        tree,
        &Root::EMPTY,
        &[set("ab0000", "0001"), set("ab0a01", "0002"), set("abff00", "0003")],
    )
}

fn assert_gone(tree: &Tree, root: &Root) {
    assert!(!tree.has_root(root).unwrap());
    for refused in [
        tree.get_one(root, &at("ab0000")).map(drop),
        tree.leaves(root, &Prefix::EMPTY).map(drop),
        tree.commit(root, &[]).map(drop),
        tree.compute_root(root, &[set("ab", "")]).map(drop),
    ] {
        let is_it = matches!(&refused, Err(Error::UnknownRoot { root: of, .. }) if of == root);
        assert!(is_it, "{refused:?}");
    }
}

fn pruning_parent_7(store: &Store) {
    let tree = tree(store);
    let parent = three(&tree);
    let successor = commit(&tree, &parent, &[set("ab0000", "test")]);
    let [older, newer] = tree.versions().unwrap().try_into().unwrap();
    assert_eq!((newer.parent, older.children), (Some(older.id), vec![newer.id]));
    let before = tree.nodes(&parent).unwrap();
    let own = tree.nodes(&successor).unwrap();
    let gone = prune(&tree, &parent);
    assert_eq!(gone.len(), 4);
    assert_eq!(gone, before.difference(&own).copied().collect());
    assert_gone(&tree, &parent);
    assert_eq!(read(&tree, &successor, "ab0000").unwrap(), b"test");
    assert_eq!(tree.versions().unwrap()[0].parent, None);

    // What is left is what a store holds in which the pruned root never was.
    assert_eq!(store.node_count().unwrap(), own.len() as u64 + 1);
    let rows = content(&**store.database())["main"].len();
    let other = store.create_tree("other").unwrap();
    commit(
        &other,
        &Root::EMPTY,
        &[set("ab0000", "test"), set("ab0a01", "0002"), set("abff00", "0003")],
    );
    assert_eq!(content(&**store.database())["main"].len(), rows, "no row of the parent is left");

    assert!(store.delete_tree("other").unwrap());
}

fn pruning_successors_8(store: &Store) {
    let tree = tree(store);
    let parent = three(&tree);
    let left = commit(&tree, &parent, &[set("ab0000", "left")]);
    let right = commit(&tree, &parent, &[set("ab0a01", "right")]);
    assert_eq!(prune(&tree, &left).len(), 4);
    assert_gone(&tree, &left);
    let [parent_info, right_info] = tree.versions().unwrap().try_into().unwrap();
    assert_eq!(parent_info.children, [right_info.id]);
    assert_eq!(read(&tree, &parent, "ab0000").unwrap(), b"0001");
    assert_eq!(read(&tree, &right, "ab0a01").unwrap(), b"right");
}

/// The parent, and two commits of which the second sets a value of the parent again.
fn duplicate_leaves(tree: &Tree) -> [Root; 3] {
    let parent = three(tree);
    let middle = commit(tree, &parent, &[set("ab0000", "change0"), set("ab0001", "change1")]);
    let last = commit(tree, &middle, &[set("ab0000", "0001")]);
    [parent, middle, last]
}

fn pruning_duplicate_leaves_9(store: &Store) {
    let tree = tree(store);
    let [parent, middle, last] = duplicate_leaves(&tree);
    assert_eq!(prune(&tree, &parent).len(), 3);
    assert_eq!(read(&tree, &last, "ab0000").unwrap(), b"0001");
    assert_eq!(read(&tree, &middle, "ab0000").unwrap(), b"change0");
}

fn pruning_successor_duplicate_leaves_10(store: &Store) {
    let tree = tree(store);
    let [parent, middle, last] = duplicate_leaves(&tree);
    assert_eq!(prune(&tree, &last).len(), 3);
    assert_gone(&tree, &last);
    assert_eq!(read(&tree, &parent, "ab0000").unwrap(), b"0001");
    assert_eq!(read(&tree, &middle, "ab0001").unwrap(), b"change1");
}

fn leaves_come_in_order_and_below_a_prefix(store: &Store) {
    let tree = tree(store);
    assert!(leaves(&tree, &Root::EMPTY).is_empty());
    let refused = tree.leaves(&Root::EMPTY, &below("ab"));
    assert!(matches!(refused, Err(Error::PrefixNotFound { prefix }) if prefix == below("ab")));
    let root =
        commit(&tree, &Root::EMPTY, &[set("012345", "2"), set("ab0000", "1"), set("ab0a01", "3")]);
    let keys: Vec<String> = leaves(&tree, &root).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["012345", "ab0000", "ab0a01"]);

    for (prefix, expected) in [
        ("ab", vec!["ab0000", "ab0a01"]),
        ("ab0a", vec!["ab0a01"]),
        ("ab0000", vec!["ab0000"]),
        ("01", vec!["012345"]),
    ] {
        let found = tree.leaves(&root, &below(prefix)).unwrap();
        let found: Vec<String> = found.map(|leaf| leaf.unwrap().0.to_string()).collect();
        assert_eq!(found, expected, "{prefix}");
    }

    for prefix in ["ac", "ab01", "01234500", "ab000000"] {
        let refused = tree.leaves(&root, &below(prefix));
        assert!(matches!(refused, Err(Error::PrefixNotFound { .. })), "{prefix}: {refused:?}");
    }

    let refused = tree.leaves(&altered(&root), &Prefix::EMPTY);
    assert!(matches!(refused, Err(Error::UnknownRoot { .. })));
}

/// Roots, removed nodes and what is stored do not depend on the back-end: they are compared with
/// those of a store in memory.
fn back_ends_agree(subject: &mut dyn Subject) {
    let histories = |store: &Store| {
        let tree = tree(store);
        let mut found = Vec::new();
        let first = three(&tree);
        let second = commit(&tree, &first, &[set("ab0000", "1"), set("cd", "0002")]);
        let third = commit(&tree, &second, &[delete("ab0a01")]);
        let fork = commit(&tree, &first, &[delete("ab0000"), delete("ab0a01"), delete("abff00")]);
        assert_eq!(fork, Root::EMPTY);
        found.push((first, second, third));
        let removed: Vec<_> = [second, first].iter().map(|root| prune(&tree, root)).collect();
        (found, removed, store.node_count().unwrap(), content(&**store.database()))
    };

    let own = {
        let store = fresh(subject);
        histories(&store)
    };

    assert_eq!(own, histories(&fresh(&mut super::InMemory)));
}

/// Ten threads, each of which reads and commits ten times on a fork of its own.
fn ten_threads_on_forks_of_one_root(store: &Store) {
    let tree = tree(store);
    let start = commit(&tree, &Root::EMPTY, &[set("aa", "start"), set("bb00", "other")]);
    let tips: Vec<(u8, Root)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..10u8)
            .map(|number| {
                let tree = tree.clone();
                scope.spawn(move || {
                    let mut root = start;
                    for round in 0..10u8 {
                        let address = format!("aa{number:02x}{round:02x}");
                        assert_eq!(read(&tree, &root, &address), None);
                        root = commit(&tree, &root, &[set(&address, [number, round])]);
                        assert_eq!(read(&tree, &root, &address).unwrap(), [number, round]);
                        assert_eq!(read(&tree, &root, "aa").unwrap(), b"start");
                    }
                    (number, root)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });

    for (number, tip) in tips {
        let mut expected = vec![("aa".to_owned(), b"start".to_vec())];
        let own =
            (0..10u8).map(|round| (format!("aa{number:02x}{round:02x}"), vec![number, round]));
        expected.extend(own);
        expected.push(("bb00".to_owned(), b"other".to_vec()));
        assert_eq!(leaves(&tree, &tip), expected);
    }

    assert_eq!(tree.versions().unwrap().len(), 101);
    assert_eq!(tree.versions().unwrap()[0].children.len(), 10);
}

/// A successor tree in which each commit is followed by a prune, with a commit that changes nothing
/// as the last.
fn prune_after_every_commit_with_a_no_op_last(store: &Store) {
    let tree = tree(store);
    let mut root = three(&tree);
    for round in 0..20 {
        let next = commit(&tree, &root, &[set("ab0000", format!("{round}")), set("cc", "same")]);
        assert!(!prune(&tree, &root).is_empty());
        assert_gone(&tree, &root);
        root = next;
    }

    assert_eq!(commit(&tree, &root, &[set("cc", "same")]), root);
    assert_eq!(tree.prune(&root).unwrap(), Pruned::Counted(1));
    assert_eq!(read(&tree, &root, "ab0000").unwrap(), b"19");
    assert_eq!(store.node_count().unwrap(), tree.nodes(&root).unwrap().len() as u64 + 1);
    prune(&tree, &root);
    assert_eq!(store.node_count().unwrap(), 1);

    assert!(content(&**store.database())["main"].is_empty());
}

/// Predecessors are pruned late, and the newest of them first.
fn late_pruning_newest_predecessor_first(store: &Store) {
    let tree = tree(store);
    let mut roots = vec![three(&tree)];
    for round in 0..6 {
        let change = set(&format!("ab{:02x}00", round % 3), format!("{round}"));
        roots.push(commit(&tree, &roots[round], &[change]));
    }

    let tip = roots.pop().unwrap();
    let expected = leaves(&tree, &tip);
    while let Some(root) = roots.pop() {
        let before = reached(store);
        let gone = prune(&tree, &root).len() as u64;
        assert_eq!(reached(store), before - gone);
        assert_eq!(leaves(&tree, &tip), expected);
        for root in &roots {
            assert!(!leaves(&tree, root).is_empty());
        }
    }

    assert_whole(store);
}

/// The traits of Transact on text.
fn text_commits_as_transact_does(store: &Store) {
    store.create_tree(TREE).unwrap();
    let text = TextTree(tree(store));
    let changes: Vec<_> = SIX
        .iter()
        .map(|(key, value)| StateChange::Set {
            key: (*key).to_owned(),
            value: value.as_bytes().to_vec(),
        })
        .collect();
    let init = Root::EMPTY.to_string();
    assert_eq!(text.dry_run_commit(&init, &changes).unwrap(), ROOT_OF_SIX);

    assert_eq!(text.commit(&init, &changes).unwrap(), ROOT_OF_SIX);
}

pub(super) fn check(subject: &mut dyn Subject) {
    run(
        subject,
        &[
            empty_changes_1,
            root_advance_2,
            delete_3,
            update_4,
            update_same_address_space_5,
            update_same_address_space_with_no_children_6,
            pruning_parent_7,
            pruning_successors_8,
            pruning_duplicate_leaves_9,
            pruning_successor_duplicate_leaves_10,
            leaves_come_in_order_and_below_a_prefix,
            ten_threads_on_forks_of_one_root,
            prune_after_every_commit_with_a_no_op_last,
            late_pruning_newest_predecessor_first,
            text_commits_as_transact_does,
        ],
    );
    back_ends_agree(subject);
}
