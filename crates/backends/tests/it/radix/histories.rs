//! Random histories of commits, forks and prunes against a model.
//!
//! Goal: whatever is committed and pruned in whatever order, every retained version reads as its
//! map, its root and its nodes are those that the rules give, and what is stored is exactly what
//! retained versions reach. Method: few addresses of few bytes, and few values, so that values,
//! sub-trees and whole states recur; the model hashes every node of every state without sharing
//! anything; a number of versions is counted for each node. Every outcome of a prune is compared
//! with it.

use std::collections::{BTreeSet, HashMap};

use terrane_kv::conformance::Subject;
use terrane_radix::{
    Address, Change, Error, NodeHash, Order, Prefix, PruneOptions, Pruned, Root, Store, Tree,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::memory::InMemory;

use super::rules::{State, nodes_of};
use super::{fresh, reopened};

#[derive(Debug, Clone)]
pub(super) struct Version {
    pub(super) root: Root,
    pub(super) tree: usize,
    pub(super) state: State,
    nodes: BTreeSet<NodeHash>,
}

/// Retained versions, and how many of them have each node.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    /// In the order of their commits.
    pub(super) versions: Vec<Version>,
    counts: HashMap<NodeHash, usize>,
}

impl Model {
    pub(super) fn add(&mut self, tree: usize, state: State) -> Root {
        let mut nodes = BTreeSet::new();
        let root = nodes_of(&state, &[], &mut nodes);
        if root != Root::EMPTY {
            for node in &nodes {
                *self.counts.entry(*node).or_default() += 1;
            }
            self.versions.push(Version { root, tree, state, nodes });
        }
        root
    }

    /// Removes the oldest version of a root; answers what is gone.
    pub(super) fn remove(&mut self, tree: usize, root: &Root) -> BTreeSet<NodeHash> {
        let is_it = |version: &Version| version.tree == tree && version.root == *root;
        let at = self.versions.iter().position(is_it).unwrap();
        let version = self.versions.remove(at);

        let mut gone = BTreeSet::new();
        for node in version.nodes {
            let count = self.counts.get_mut(&node).unwrap();
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&node);
                gone.insert(node);
            }
        }

        gone
    }

    pub(super) fn has(&self, tree: usize, root: &Root) -> usize {
        let of = |version: &&Version| version.tree == tree && version.root == *root;
        self.versions.iter().filter(of).count()
    }
}

pub(super) fn address(rng: &mut impl Draw) -> Vec<u8> {
    let token = |rng: &mut dyn FnMut() -> u64| [0x00, 0x01, 0xab, 0xff][rng() as usize];
    let len = [1, 2, 2, 3, 3, 3, 4, 7][rng.below(8) as usize];
    let mut draw = || rng.below(4);
    let mut address: Vec<u8> = (0..len).map(|_| token(&mut draw)).collect();
    // Long chains with few ends, as the addresses of real ledgers have.
    if len == 7 {
        address.extend([0x11; 28]);
    }
    address
}

fn value(rng: &mut impl Draw) -> Vec<u8> {
    let number = rng.below(4) as u8;
    match rng.below(12) {
        0 => Vec::new(),
        1 => vec![number; 64],
        2 => vec![number; 65],
        3 => vec![number; 300],
        4 => rng.below(1 << 20).to_le_bytes().to_vec(),
        _ => vec![b'v', number],
    }
}

/// A batch that is allowed on a state, and the state after it.
pub(super) fn batch(rng: &mut impl Draw, state: &State) -> (Vec<Change>, State) {
    let mut after = state.clone();
    let mut changes = Vec::new();
    let mut named = BTreeSet::new();
    let count = if rng.below(20) == 0 { 60 } else { 1 + rng.below(8) };

    if rng.below(15) == 0 && !state.is_empty() {
        let at = rng.below(state.len() as u64) as usize;
        let whole = state.keys().nth(at).unwrap();
        let prefix = whole[..rng.below(whole.len() as u64 + 1) as usize].to_vec();
        after.retain(|address, _| !address.starts_with(&prefix));
        changes.push(Change::DeletePrefix(Prefix::new(&prefix).unwrap()));
        named.insert(prefix);
    }

    let prefix = named.first().cloned();
    for _ in 0..count {
        let is_known = rng.below(3) != 0 && !state.is_empty();
        let address = if is_known {
            state.keys().nth(rng.below(state.len() as u64) as usize).unwrap().clone()
        } else {
            address(rng)
        };

        if prefix.as_ref().is_some_and(|prefix| address.starts_with(prefix))
            || !named.insert(address.clone())
        {
            continue;
        }

        let at = Address::new(&address).unwrap();
        if state.contains_key(&address) && rng.below(2) == 0 {
            after.remove(&address);
            changes.push(Change::Delete(at));
        } else {
            let value = value(rng);
            after.insert(address, value.clone());
            changes.push(Change::Set(at, value));
        }
    }

    rng.shuffle(&mut changes);
    (changes, after)
}

/// Compares a version with its map.
fn compare(tree: &Tree, version: &Version) {
    let leaves = tree.leaves(&version.root, &Prefix::EMPTY).unwrap();
    let found: Vec<(Vec<u8>, Vec<u8>)> = leaves
        .map(|leaf| leaf.map(|(address, value)| (address.as_bytes().to_vec(), value)).unwrap())
        .collect();
    assert!(found.iter().map(|(a, v)| (a, v)).eq(version.state.iter()), "{found:?}");
    assert_eq!(tree.nodes(&version.root).unwrap(), version.nodes);
}

fn read(rng: &mut impl Draw, tree: &Tree, version: &Version) {
    let addresses: Vec<Vec<u8>> = (0..=rng.below(6)).map(|_| address(rng)).collect();
    let asked: Vec<Address> = addresses.iter().map(|a| Address::new(a).unwrap()).collect();
    let expected: Vec<Option<Vec<u8>>> =
        addresses.iter().map(|address| version.state.get(address).cloned()).collect();
    assert_eq!(tree.get(&version.root, &asked).unwrap(), expected);

    let prefix = &addresses[0][..rng.below(addresses[0].len() as u64 + 1) as usize];
    let below: Vec<&Vec<u8>> =
        version.state.keys().filter(|address| address.starts_with(prefix)).collect();
    match tree.leaves(&version.root, &Prefix::new(prefix).unwrap()) {
        Err(Error::PrefixNotFound { .. }) => assert!(below.is_empty() && !prefix.is_empty()),
        leaves => {
            let found: Vec<Vec<u8>> =
                leaves.unwrap().map(|leaf| leaf.unwrap().0.as_bytes().to_vec()).collect();
            assert!(found.iter().eq(below));
            assert!(!found.is_empty() || prefix.is_empty());
        }
    }

    let from = Some(&asked[0]);
    let order = if rng.below(2) == 0 { Order::Ascending } else { Order::Descending };
    let found = tree.leaves_from(&version.root, from, order).unwrap();
    let found: Vec<Vec<u8>> = found.map(|leaf| leaf.unwrap().0.as_bytes().to_vec()).collect();

    let mut expected: Vec<Vec<u8>> = version.state.keys().cloned().collect();
    if order == Order::Ascending {
        expected.retain(|address| *address >= addresses[0]);
    } else {
        expected.retain(|address| *address <= addresses[0]);
        expected.reverse();
    }

    assert_eq!(found, expected);

    // Both ends in random turns give each leaf once.
    let mut leaves = tree.leaves_from(&version.root, from, order).unwrap();
    let mut rest = expected.iter();
    loop {
        let (leaf, wanted) = if rng.below(2) == 0 {
            (leaves.next(), rest.next())
        } else {
            (leaves.next_back(), rest.next_back())
        };
        assert_eq!(leaf.map(|leaf| leaf.unwrap().0.as_bytes().to_vec()).as_ref(), wanted);
        if wanted.is_none() {
            break;
        }
    }
    assert!(leaves.next().is_none() && leaves.next_back().is_none());
}

pub(super) fn check(subject: &mut dyn Subject, operations: u64) {
    for_each_seed("radix_histories", 1, |rng, _| {
        let mut store: Store = fresh(subject);
        let names = ["one", "two"];
        let mut model = Model::default();
        let mut done = 0;

        let mut steps = 0;
        while done < operations {
            steps += 1;
            let which = usize::from(rng.below(4) == 0);
            let tree = store.tree_or_create(names[which]).unwrap();
            let own: Vec<usize> =
                (0..model.versions.len()).filter(|at| model.versions[*at].tree == which).collect();
            let picked = (!own.is_empty() && rng.below(30) != 0)
                .then(|| own[rng.below(own.len() as u64) as usize]);
            let prunes = rng.below(100) < 30 + own.len() as u64;

            match picked {
                Some(at) if prunes => {
                    let root = model.versions[at].root;
                    let pruned = tree.prune(&root).unwrap();
                    let gone = model.remove(which, &root);
                    let expected = match model.has(which, &root) {
                        0 => Pruned::Removed { count: gone.len() as u64, hashes: gone },
                        left => Pruned::Counted(left),
                    };
                    assert_eq!(pruned, expected, "step {steps}, root {root}");
                    done += 1;
                }
                _ => {
                    let (parent, state) = match picked {
                        Some(at) => (model.versions[at].root, model.versions[at].state.clone()),
                        None => (Root::EMPTY, State::new()),
                    };

                    let (changes, after) = batch(rng, &state);
                    done += changes.len() as u64;
                    let dry = tree.compute_root(&parent, &changes).unwrap();
                    let committed = tree.commit(&parent, &changes).unwrap();
                    let known = model.counts.len();
                    if changes.is_empty() {
                        assert_eq!(committed.root, parent);
                        continue;
                    }

                    let root = model.add(which, after);
                    assert_eq!((committed.root, dry), (root, root), "step {steps}: {changes:?}");
                    assert_eq!(
                        committed.added,
                        (model.counts.len() - known) as u64,
                        "step {steps}"
                    );
                    assert_eq!(committed.version.is_some(), root != Root::EMPTY);
                }
            }

            if let Some(version) = model.versions.last() {
                read(rng, &store.tree(names[version.tree]).unwrap(), version);
                done += 1;
            }

            if steps % 64 == 0 {
                store = reopened(subject, store);
                check_all(&store, &model, &names);
            }
        }

        // Everything goes, in random order.
        rng.shuffle(model.versions.as_mut_slice());
        let roots: Vec<(usize, Root)> = model.versions.iter().map(|v| (v.tree, v.root)).collect();
        for (tree, root) in roots {
            let options = PruneOptions::default();
            let pruned = store.tree(names[tree]).unwrap().prune_with(&root, &options).unwrap();
            assert!(matches!(pruned, Pruned::Removed { .. } | Pruned::Counted(_)));
        }

        check_all(&store, &Model::default(), &names);
    });
}

#[test]
fn random_operations_on_memory_agree_with_a_model() {
    check(&mut InMemory, by_effort(5_000, 100_000));
}

/// Compares all versions and all nodes with the model.
pub(super) fn check_all(store: &Store, model: &Model, names: &[&str]) {
    assert_eq!(store.node_count().unwrap(), model.counts.len() as u64 + 1);
    let report = store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.nodes, model.counts.len() as u64 + 1);
    assert_eq!(report.versions, model.versions.len() as u64);
    for version in &model.versions {
        compare(&store.tree(names[version.tree]).unwrap(), version);
    }
}
