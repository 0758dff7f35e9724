//! Versions and pruning: what goes, what stays, and who is whose parent then.

use std::collections::{BTreeMap, BTreeSet};

use terrane_kv::conformance::Subject;
use terrane_radix::{
    Change, INDEXES, PruneOptions, Pruned, Root, Store, Tree, VersionId, VersionInfo,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::memory::InMemory;

use super::faulty::{Call, Faulty};
use super::options;
use super::words::{
    assert_whole, commit, content, delete, leaves, prune, reached, read, run, set, tree,
};

/// Twenty commits, each of which sets one of seven addresses.
fn chain(tree: &Tree) -> Vec<Root> {
    let mut roots = Vec::new();
    for i in 0..20 {
        let parent = roots.last().copied().unwrap_or(Root::EMPTY);
        roots.push(commit(tree, &parent, &[set(&format!("ab{:04x}", i % 7), format!("v{i}"))]));
    }
    roots
}

fn a_chain_of_twenty_pruned_oldest_first(store: &Store) {
    let tree = tree(store);
    let roots = chain(&tree);
    let counts: Vec<usize> = roots[..19].iter().map(|root| prune(&tree, root).len()).collect();
    assert_eq!(counts, [[3; 6].as_slice(), &[4; 13]].concat());
    assert_eq!(leaves(&tree, &roots[19]).len(), 7);
}

fn a_chain_of_twenty_abandoned_from_the_tip(store: &Store) {
    let tree = tree(store);
    let roots = chain(&tree);
    for (number, root) in roots.iter().enumerate().rev() {
        assert_eq!(prune(&tree, root).len(), 4, "commit {number}");
    }
    assert_eq!(store.node_count().unwrap(), 1);
}

fn a_chain_of_twenty_pruned_in_any_order(store: &Store) {
    let tree = tree(store);
    for_each_seed("radix_any_order", by_effort(2, 4), |rng, _| {
        let mut roots = chain(&tree);
        rng.shuffle(&mut roots);
        while let Some(root) = roots.pop() {
            let before = reached(store);
            let own: BTreeSet<_> = tree.nodes(&root).unwrap();
            let others: BTreeSet<_> =
                roots.iter().flat_map(|root| tree.nodes(root).unwrap()).collect();
            let gone = prune(&tree, &root);
            assert_eq!(gone, own.difference(&others).copied().collect());
            assert_eq!(reached(store), before - gone.len() as u64);
        }

        assert!(content(&**store.database())["main"].is_empty());
    });
}

fn the_same_batch_twice_gives_two_versions(store: &Store) {
    let tree = tree(store);
    let batch = [set("aa0000", "1"), set("bb", "2")];
    let first = tree.commit_with(&Root::EMPTY, &batch, b"height 1").unwrap();
    let second = tree.commit_with(&Root::EMPTY, &batch, b"height 2").unwrap();
    assert_eq!(first.root, second.root);
    assert_eq!((first.added, second.added), (5, 0));
    let found: Vec<(Option<VersionId>, Vec<u8>)> =
        tree.versions().unwrap().into_iter().map(|info| (Some(info.id), info.metadata)).collect();
    let expected = [(first.version, b"height 1".to_vec()), (second.version, b"height 2".to_vec())];
    assert_eq!(found, expected);

    // The oldest goes first.
    assert_eq!(tree.prune(&first.root).unwrap(), Pruned::Counted(1));
    assert_eq!(tree.versions().unwrap()[0].metadata, b"height 2");
    assert_eq!(read(&tree, &first.root, "bb").unwrap(), b"2");
    assert_eq!(prune(&tree, &first.root).len(), 5);
}

fn an_empty_batch_makes_no_version_and_one_that_changes_nothing_does(store: &Store) {
    let tree = tree(store);
    let root = commit(&tree, &Root::EMPTY, &[set("aa0000", "1")]);
    let before = content(&**store.database());
    let nothing = tree.commit(&root, &[]).unwrap();
    assert_eq!((nothing.root, nothing.version, nothing.added), (root, None, 0));
    assert_eq!(content(&**store.database()), before);
    let same = tree.commit(&root, &[set("aa0000", "1")]).unwrap();
    assert_eq!((same.root, same.version.is_some(), same.added), (root, true, 0));
    assert_eq!(tree.versions().unwrap().len(), 2);
    assert_eq!(store.node_count().unwrap(), reached(store));
    assert_eq!(tree.prune(&root).unwrap(), Pruned::Counted(1));

    assert_eq!(prune(&tree, &root).len(), 4);
}

fn deleting_the_last_address_gives_the_empty_root(store: &Store) {
    let tree = tree(store);
    let root = commit(&tree, &Root::EMPTY, &[set("aa0000", "1")]);
    let empty = tree.commit(&root, &[delete("aa0000")]).unwrap();
    assert_eq!((empty.root, empty.version, empty.added), (Root::EMPTY, None, 0));
    let again = commit(&tree, &empty.root, &[set("aa0000", "1")]);
    assert_eq!(again, root);
    assert_eq!(tree.prune(&root).unwrap(), Pruned::Counted(1));
    prune(&tree, &root);
    assert_eq!(leaves(&tree, &Root::EMPTY), []);
}

/// The versions of a tree with their parents, as they were committed.
struct Forest {
    parents: BTreeMap<VersionId, Option<VersionId>>,
    roots: BTreeMap<VersionId, Root>,
}

impl Forest {
    /// The nearest ancestor that is retained.
    fn parent(&self, id: VersionId) -> Option<VersionId> {
        let mut parent = self.parents[&id];
        while let Some(id) = parent.filter(|id| !self.roots.contains_key(id)) {
            parent = self.parents[&id];
        }
        parent
    }

    fn compare(&self, tree: &Tree) {
        let found = tree.versions().unwrap();
        let expected: Vec<VersionInfo> = self
            .roots
            .iter()
            .map(|(&id, &root)| VersionInfo {
                id,
                root,
                parent: self.parent(id),
                children: self
                    .roots
                    .keys()
                    .copied()
                    .filter(|child| self.parent(*child) == Some(id))
                    .collect(),
                metadata: root.to_string().into_bytes(),
            })
            .collect();
        assert_eq!(found, expected);
    }
}

fn parents_are_the_nearest_retained_ancestors(store: &Store) {
    let tree = tree(store);
    for_each_seed("radix_forest", by_effort(1, 3), |rng, seed| {
        let mut forest = Forest { parents: BTreeMap::new(), roots: BTreeMap::new() };
        for step in 0..120u64 {
            if !forest.roots.is_empty() && rng.below(100) < 40 {
                let ids: Vec<VersionId> = forest.roots.keys().copied().collect();
                let id = *rng.pick(&ids);
                let children =
                    ids.iter().filter(|child| forest.parent(**child) == Some(id)).count();
                let keep_fork_points = rng.chance(1, 2);
                let options =
                    PruneOptions::default().keep_fork_points(keep_fork_points).list(false);
                let pruned = tree.prune_with(&forest.roots[&id], &options).unwrap();

                if keep_fork_points && children > 1 {
                    assert_eq!(pruned, Pruned::ForkPoint(children));
                } else {
                    assert!(matches!(pruned, Pruned::Removed { .. }), "{pruned:?}");
                    forest.roots.remove(&id);
                }
            } else {
                let ids: Vec<VersionId> = forest.roots.keys().copied().collect();
                let parent = (!ids.is_empty() && rng.chance(9, 10)).then(|| *rng.pick(&ids));
                let root = parent.map_or(Root::EMPTY, |id| forest.roots[&id]);
                // Each root is another: the value is found nowhere else.
                let change = set(&format!("aa{:02x}", rng.below(4)), format!("{seed} {step}"));
                let computed = tree.compute_root(&root, std::slice::from_ref(&change)).unwrap();
                let metadata = computed.to_string();
                let made = tree.commit_with(&root, &[change], metadata.as_bytes()).unwrap();
                let id = made.version.unwrap();
                forest.parents.insert(id, parent);
                forest.roots.insert(id, made.root);
            }

            forest.compare(&tree);
        }

        assert_whole(store);
        assert_eq!(tree.retain(&BTreeSet::new()).unwrap(), forest.roots.len() as u64);
        assert!(tree.versions().unwrap().is_empty());
    });
}

/// A chain of some versions with a fork on the third.
fn forked(tree: &Tree) -> (Vec<Root>, Root) {
    let mut roots = vec![Root::EMPTY];
    for number in 1..=6 {
        roots.push(commit(tree, &roots[number - 1], &[set("aa", format!("{number}"))]));
    }
    let fork = commit(tree, &roots[3], &[set("bb", "fork")]);
    (roots, fork)
}

fn known(tree: &Tree, roots: &[Root]) -> Vec<bool> {
    roots.iter().map(|root| tree.has_root(root).unwrap()).collect()
}

fn pruning_below_a_tip_keeps_so_many_ancestors(store: &Store) {
    let tree = tree(store);
    let (roots, fork) = forked(&tree);
    assert_eq!(tree.prune_below(&roots[6], 10).unwrap(), 0);
    assert_eq!(tree.prune_below(&roots[6], 2).unwrap(), 3);
    assert_eq!(known(&tree, &roots[1..]), [false, false, false, true, true, true]);
    assert_eq!(read(&tree, &fork, "aa").unwrap(), b"3", "forks are left alone");
    assert_eq!(tree.prune_below(&roots[6], 0).unwrap(), 2);
    assert_eq!(known(&tree, &roots[1..]), [false, false, false, false, false, true]);
    assert_eq!(tree.prune_below(&Root::EMPTY, 0).unwrap(), 0);
    let refused = tree.prune_below(&roots[1], 0);
    assert!(matches!(refused, Err(terrane_radix::Error::UnknownRoot { .. })));

    assert_whole(store);
}

fn pruning_below_a_tip_whose_root_recurs(store: &Store) {
    let tree = tree(store);
    let one = commit(&tree, &Root::EMPTY, &[set("aa", "1")]);
    let two = commit(&tree, &one, &[set("aa", "2")]);
    assert_eq!(commit(&tree, &two, &[set("aa", "1")]), one);
    // The newest version of the root is the tip; the older one is an ancestor like others.
    assert_eq!(tree.prune_below(&one, 0).unwrap(), 2);
    let [left] = tree.versions().unwrap().try_into().unwrap();
    assert_eq!((left.root, left.parent), (one, None));
}

fn retaining_some_roots_prunes_all_others(store: &Store) {
    let tree = tree(store);
    let (roots, fork) = forked(&tree);
    let kept = BTreeSet::from([roots[2], fork, super::words::altered(&fork)]);
    assert_eq!(tree.retain(&kept).unwrap(), 5);
    assert_eq!(known(&tree, &roots[1..]), [false, true, false, false, false, false]);
    assert_eq!(read(&tree, &fork, "aa").unwrap(), b"3");
    let [older, newer] = tree.versions().unwrap().try_into().unwrap();
    assert_eq!((newer.root, newer.parent, older.children), (fork, Some(older.id), vec![newer.id]));
}

fn a_handle_of_a_renamed_tree_prunes_its_own(store: &Store) {
    let tree = tree(store);
    let (roots, _) = forked(&tree);
    store.rename_tree(super::TREE, "renamed").unwrap();
    let other = store.create_tree(super::TREE).unwrap();
    let (same_roots, _) = forked(&other);
    assert_eq!(tree.prune_below(&roots[6], 0).unwrap(), 5);
    assert_eq!(tree.retain(&BTreeSet::from([roots[6]])).unwrap(), 1);
    assert_eq!(tree.versions().unwrap().len(), 1);
    assert_eq!(known(&other, &same_roots), [true; 7]);
    assert_eq!(store.tree("renamed").unwrap().versions().unwrap().len(), 1);
}

/// One value at hundreds of addresses, short and long ones: so many chains lead to its stop that
/// they have rows of their own.
fn a_value_at_hundreds_of_addresses(store: &Store) {
    let tree = tree(store);
    for_each_seed("radix_spilled", by_effort(1, 2), |rng, _| {
        let addresses: Vec<String> = (0..300u32)
            .map(|n| match n % 4 {
                0 => format!("{:02x}{:02x}", n % 7, n / 2),
                1 => format!("a{:03x}{:02x}", n, n % 3),
                // Long ones, some of which are alike from below for a long way.
                2 => format!("{n:04x}{}", "77".repeat(33)),
                _ => format!("{:04x}{}{:02x}{}", n, "55".repeat(16), n % 5, "66".repeat(16)),
            })
            .collect();
        for value in ["same".repeat(2), "same".repeat(40)] {
            let mut left = addresses.clone();
            rng.shuffle(&mut left);
            let mut roots = vec![Root::EMPTY];
            for part in left.chunks(37) {
                let changes: Vec<Change> =
                    part.iter().map(|address| set(address, &value)).collect();
                roots.push(commit(&tree, roots.last().unwrap(), &changes));
            }

            // A fork on half of them, which takes some away again and moves others.
            let mut fork = roots[4];
            for part in left[..100].chunks(9) {
                let changes: Vec<Change> = part
                    .iter()
                    .enumerate()
                    .map(
                        |(n, address)| if n % 2 == 0 { delete(address) } else { set(address, "x") },
                    )
                    .collect();
                fork = commit(&tree, &fork, &changes);
                roots.push(fork);
            }

            assert_whole(store);
            roots.remove(0);
            rng.shuffle(&mut roots);

            while let Some(root) = roots.pop() {
                if roots.len() % by_effort(5, 1) != 0 {
                    prune(&tree, &root);
                    continue;
                }
                let own = tree.nodes(&root).unwrap();
                let others: BTreeSet<_> =
                    roots.iter().flat_map(|root| tree.nodes(root).unwrap()).collect();
                assert_eq!(prune(&tree, &root), own.difference(&others).copied().collect());
                let report = store.verify().unwrap();
                assert!(report.is_clean(), "{:?}", report.problems);
                assert_eq!(report.nodes, others.len() as u64 + 1);
            }

            assert!(content(&**store.database())["main"].is_empty());
        }
    });
}

/// Sub-trees with branches that are equal at many places of one state and of others.
fn equal_sub_trees_at_many_places(store: &Store) {
    let tree = tree(store);
    let below = |prefix: &str, value: &str| -> Vec<Change> {
        ["00", "01", "0100", "ff0000", "ff00ff"]
            .iter()
            .map(|rest| set(&format!("{prefix}{rest}"), format!("{rest} {value}")))
            .collect()
    };

    for_each_seed("radix_equal_sub_trees", by_effort(1, 2), |rng, _| {
        let mut roots: Vec<Root> = Vec::new();
        for _ in 0..14 {
            let parent = if roots.is_empty() { Root::EMPTY } else { *rng.pick(&roots) };
            let mut prefixes: Vec<String> =
                (0..12).map(|n| format!("{:02x}{}", n / 2, "cd".repeat(n % 3))).collect();
            rng.shuffle(&mut prefixes);

            // Prefixes of each other must not be in one batch: their addresses could be the same.
            let mut changes: BTreeMap<_, Change> = BTreeMap::new();
            for prefix in &prefixes[..4] {
                let value = ["one", "two"][rng.index(2)];
                changes.extend(below(prefix, value).into_iter().map(|c| (c.prefix(), c)));
            }

            let changes: Vec<Change> = changes.into_values().collect();
            let root = tree.compute_root(&parent, &changes).unwrap();
            if !roots.contains(&root) {
                roots.push(commit(&tree, &parent, &changes));
            }
        }

        assert_whole(store);
        rng.shuffle(&mut roots);
        while let Some(root) = roots.pop() {
            let own = tree.nodes(&root).unwrap();
            let others: BTreeSet<_> =
                roots.iter().flat_map(|root| tree.nodes(root).unwrap()).collect();
            assert_eq!(prune(&tree, &root), own.difference(&others).copied().collect());
            assert_eq!(store.node_count().unwrap(), others.len() as u64 + 1);
        }

        assert!(content(&**store.database())["main"].is_empty());
    });
}

/// A prune that removed all holders of one value looked at the neighbours of each of them, with a
/// cursor of its own, among more and more removals: the square of their number, with the writer
/// held. Holders that go together are neighbours of each other, so one walk over them is enough.
#[test]
fn removing_all_holders_of_a_value_walks_over_them_once() {
    const HOLDERS: u64 = 1_000;

    let database = Faulty::new(InMemory.fresh(&INDEXES).unwrap());
    let store = Store::open(database.clone(), &options()).unwrap();
    let tree = tree(&store);
    let changes = |value: &str| -> Vec<Change> {
        (0..HOLDERS)
            .map(|n| set(&format!("{:016x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15)), value))
            .collect()
    };
    let first = commit(&tree, &Root::EMPTY, &changes("same"));
    let second = commit(&tree, &first, &changes("other"));

    for root in [first, second] {
        let before = database.count(Call::Cursor);
        prune(&tree, &root);
        let calls = database.count(Call::Cursor) - before;
        assert!(calls < HOLDERS + 100, "{calls} calls of cursors for {HOLDERS} holders");
    }

    assert!(content(&**store.database())["main"].is_empty());
}

/// Holders go one by one in one transaction: each version has taken one away.
fn a_tree_whose_versions_each_take_a_holder_of_one_value(store: &Store) {
    let tree = tree(store);
    let addresses: Vec<String> = (0..60).map(|n| format!("{n:02x}{n:02x}77")).collect();
    let all: Vec<Change> = addresses.iter().map(|address| set(address, "same")).collect();

    let mut root = commit(&tree, &Root::EMPTY, &all);
    for address in &addresses[1..] {
        root = commit(&tree, &root, &[delete(address)]);
    }

    assert_whole(store);

    let mut transaction = store.transaction().unwrap();
    assert_eq!(transaction.prune_below(super::TREE, &root, 20).unwrap(), 39);
    transaction.commit(super::TREE, &root, &all[5..30]).unwrap();
    transaction.finish().unwrap();
    assert_whole(store);
    assert!(store.delete_tree(super::TREE).unwrap());

    assert!(content(&**store.database())["main"].is_empty());
}

pub(super) fn check(subject: &mut dyn Subject) {
    run(
        subject,
        &[
            a_chain_of_twenty_pruned_oldest_first,
            a_chain_of_twenty_abandoned_from_the_tip,
            a_chain_of_twenty_pruned_in_any_order,
            the_same_batch_twice_gives_two_versions,
            an_empty_batch_makes_no_version_and_one_that_changes_nothing_does,
            deleting_the_last_address_gives_the_empty_root,
            parents_are_the_nearest_retained_ancestors,
            pruning_below_a_tip_keeps_so_many_ancestors,
            pruning_below_a_tip_whose_root_recurs,
            retaining_some_roots_prunes_all_others,
            a_handle_of_a_renamed_tree_prunes_its_own,
            a_value_at_hundreds_of_addresses,
            equal_sub_trees_at_many_places,
            a_tree_whose_versions_each_take_a_holder_of_one_value,
        ],
    );
}
