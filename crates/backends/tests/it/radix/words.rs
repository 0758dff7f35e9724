//! The words that the tests of the radix state are written in.

use std::collections::{BTreeMap, BTreeSet};

use terrane_kv::conformance::Subject;
use terrane_kv::{Database, Entry, Table};
use terrane_radix::{Address, Change, INDEXES, NodeHash, Prefix, Pruned, Root, Store, Tree};

use super::{TREE, fresh, reopened};

pub(super) fn at(text: &str) -> Address {
    text.parse().unwrap()
}

pub(super) fn below(text: &str) -> Prefix {
    text.parse().unwrap()
}

pub(super) fn set(address: &str, value: impl AsRef<[u8]>) -> Change {
    Change::Set(at(address), value.as_ref().to_vec())
}

pub(super) fn delete(address: &str) -> Change {
    Change::Delete(at(address))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// The tree that most tests work on.
pub(super) fn tree(store: &Store) -> Tree {
    store.tree_or_create(TREE).unwrap()
}

pub(super) fn commit(tree: &Tree, parent: &Root, changes: &[Change]) -> Root {
    tree.commit(parent, changes).unwrap().root
}

pub(super) fn read(tree: &Tree, root: &Root, address: &str) -> Option<Vec<u8>> {
    tree.get_one(root, &at(address)).unwrap()
}

/// All leaves of a root, addresses as text.
pub(super) fn leaves(tree: &Tree, root: &Root) -> Vec<(String, Vec<u8>)> {
    let leaves = tree.leaves(root, &Prefix::EMPTY).unwrap();
    leaves.map(Result::unwrap).map(|(address, value)| (address.to_string(), value)).collect()
}

/// A root that no tree has.
pub(super) fn altered(root: &Root) -> Root {
    let mut other = *root;
    other.0[31] ^= 1;
    other
}

/// Prunes the last version of a root; the nodes that are gone.
pub(super) fn prune(tree: &Tree, root: &Root) -> BTreeSet<NodeHash> {
    match tree.prune(root).unwrap() {
        Pruned::Removed { count, hashes } => {
            assert_eq!(count, hashes.len() as u64);
            hashes
        }
        other => panic!("pruning {root}: {other:?}"),
    }
}

/// Content of a table.
fn entries(database: &dyn Database, table: Table<'_>) -> Vec<Entry> {
    let reader = database.reader().unwrap();
    let mut cursor = reader.cursor(table).unwrap();
    std::iter::from_fn(|| cursor.next().unwrap()).collect()
}

/// Everything that a database holds, by table.
pub(super) fn content(database: &dyn Database) -> BTreeMap<&'static str, Vec<Entry>> {
    let mut tables = BTreeMap::from([("main", entries(database, Table::Main))]);
    tables.extend(INDEXES.map(|index| (index, entries(database, Table::Index(index)))));
    tables
}

/// How many nodes the retained versions reach, the empty one included: the union of what walking
/// them finds.
pub(super) fn reached(store: &Store) -> u64 {
    let mut nodes = BTreeSet::from([NodeHash::EMPTY]);
    for name in store.trees().unwrap() {
        let tree = store.tree(&name).unwrap();
        for version in tree.versions().unwrap() {
            nodes.extend(tree.nodes(&version.root).unwrap());
        }
    }
    nodes.len() as u64
}

/// Nothing is damaged, missing or too much.
pub(super) fn assert_whole(store: &Store) {
    let report = store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let reached = reached(store);
    assert_eq!((report.nodes, store.node_count().unwrap()), (reached, reached));
}

/// Runs tests, each on a store that holds nothing. What they leave is whole, and so it is when it
/// is opened again.
pub(super) fn run(subject: &mut dyn Subject, tests: &[fn(&Store)]) {
    for test in tests {
        let store = fresh(subject);
        test(&store);
        assert_whole(&store);
        assert_whole(&reopened(subject, store));
    }
}
