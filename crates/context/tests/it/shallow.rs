//! Shallow trees: directories of which only the hash is known, bound and committed in stores that
//! index all objects.
//!
//! Goal: however such parts are put into one another, no stored tree is higher than 512 levels, and
//! none that is lower is refused. Method: chains of directories, whose heights are counted by hand.

use std::path::Path;
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    Error, Hash, Indexing, InodeTree, Kind, KindedHash, Meta, Options, ProofTree, Rules, Store,
    Tree, produce_tree_proof,
};
use terrane_io::MemoryDisk;

const ROOT: [&str; 0] = [];

fn create(indexing: Indexing) -> Store {
    let options = Options::new(Arc::new(BtreeIndexes::new(1 << 20))).indexing(indexing);
    Store::create(MemoryDisk::new(), Path::new("store"), &options).unwrap()
}

/// Path of `levels` steps.
fn down(levels: usize) -> Vec<&'static str> {
    vec!["d"; levels]
}

/// Makes a new commit of a tree; the hash of its root.
fn commit(store: &Store, tree: &Tree) -> Result<Hash, Error> {
    let mut context = store.empty();
    context.add_tree(&ROOT, tree).unwrap();
    let date = i64::try_from(store.stats().commits).unwrap();
    store.commit(&context, &Meta::tezos(date, "")).map(|_| tree.hash())
}

/// The hash of a directory with so many levels, which is stored.
fn chain(store: &Store, levels: usize) -> Hash {
    commit(store, &store.empty().singleton(&down(levels), *b"end").unwrap()).unwrap()
}

fn shallow(store: &Store, levels: usize, hash: Hash) -> Tree {
    let mut tree = store.empty().tree().clone();
    let below = tree.shallow(Kind::Directory, hash);
    tree.add_tree(&down(levels), &below).unwrap();
    tree
}

fn levels_refused(outcome: Result<Hash, Error>) -> usize {
    match outcome {
        Err(Error::TooDeep { levels }) => levels,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_shallow_directory_counts_with_all_its_levels_once_it_is_stored() {
    let store = create(Indexing::Always);
    let low = chain(&store, 300);
    assert_eq!(levels_refused(commit(&store, &shallow(&store, 213, low))), 513);
    let high = commit(&store, &shallow(&store, 212, low)).unwrap();
    assert_eq!(levels_refused(commit(&store, &shallow(&store, 1, high))), 513);
    // Whoever loads it knows as well.
    let found = store.find_object(Kind::Directory, &high).unwrap().unwrap();
    assert!(found.mem(&down(512)).unwrap());
    let bound = store.empty().tree().clone().add_tree(&["above"], &found);
    assert!(matches!(bound, Err(Error::TooDeep { levels: 513 })), "{bound:?}");
}

/// A tree in memory does not learn of the levels that its commit has found: they are found again.
#[test]
fn what_was_committed_with_a_shallow_directory_is_checked_again_wherever_it_is_bound() {
    let store = create(Indexing::Always);
    let low = chain(&store, 300);
    let tree = shallow(&store, 100, low);
    for _ in 0..2 {
        commit(&store, &tree).unwrap();
    }

    let above = |levels: usize| {
        store.empty().singleton(&down(levels), *b"").map(|mut above| {
            above.add_tree(&down(levels), &tree).unwrap();
            above
        })
    };

    assert_eq!(levels_refused(commit(&store, &above(113).unwrap())), 513);
    let hash = commit(&store, &above(112).unwrap()).unwrap();
    assert_eq!(levels_refused(commit(&store, &shallow(&store, 1, hash))), 513);

    // Also beside others in a directory of inodes.
    let mut wide = store.empty().tree().clone();
    for number in 0..400 {
        wide.add(&[format!("{number}")], *b"value").unwrap();
    }
    wide.add_tree(&["7", "d"], &tree).unwrap();
    let hash = commit(&store, &wide).unwrap();
    commit(&store, &shallow(&store, 110, hash)).unwrap();

    assert_eq!(levels_refused(commit(&store, &shallow(&store, 111, hash))), 513);
}

#[test]
fn shallow_directories_in_one_another_are_as_high_as_they_are() {
    let store = create(Indexing::Always);
    let mut hash = chain(&store, 1);
    for _ in 1..512 {
        hash = commit(&store, &shallow(&store, 1, hash)).unwrap();
    }
    assert_eq!(levels_refused(commit(&store, &shallow(&store, 1, hash))), 513);
    let found = store.find_object(Kind::Directory, &hash).unwrap().unwrap();
    assert_eq!(found.find(&down(512)).unwrap().as_deref(), Some(b"end".as_slice()));
}

/// Inodes are indexed like directories, and are none.
#[test]
fn the_hash_of_an_inode_is_no_directory() {
    let store = create(Indexing::Always);
    let mut wide = store.empty().tree().clone();
    for number in 0..400 {
        wide.add(&[format!("{number}")], *b"value").unwrap();
    }
    let whole = commit(&store, &wide).unwrap();
    let (proof, ()) = produce_tree_proof(&wide, |tree| {
        tree.find(&["7"])?;
        Ok((tree, ()))
    })
    .unwrap();
    let verified = proof.verify(&Rules::TEZOS, KindedHash::directory(whole)).unwrap();
    let ProofTree::Inode(inode) = verified.state() else { panic!("400 steps") };

    let blinded = |(_, below): &(u8, InodeTree)| match below {
        InodeTree::BlindedInode(hash) => Some(*hash),
        _ => None,
    };

    let inode = inode.proofs.iter().find_map(blinded).unwrap();
    let outcome = commit(&store, &shallow(&store, 1, inode));
    assert!(
        matches!(outcome, Err(Error::DanglingHash { hash, .. }) if hash == inode),
        "{outcome:?}"
    );
    commit(&store, &shallow(&store, 1, whole)).unwrap();

    // A store that has no index of objects knows neither.
    let minimal = create(Indexing::Minimal);
    let outcome = commit(&minimal, &shallow(&minimal, 1, chain(&minimal, 2)));
    assert!(matches!(outcome, Err(Error::DanglingHash { .. })), "{outcome:?}");
}

/// With such rules a directory may be the only leaf of its inode.
#[test]
fn a_directory_that_is_one_leaf_is_found_by_its_hash() {
    let rules = Rules { branching: 16, flat_limit: 5, ..Rules::TEZOS };
    let options = Options::new(Arc::new(BtreeIndexes::new(1 << 20)));
    let options = options.indexing(Indexing::Always).rules(rules);
    let store = Store::create(MemoryDisk::new(), Path::new("store"), &options).unwrap();
    let mut tree = store.empty().tree().clone();
    for name in 0..10 {
        tree.add(&["d".to_owned(), name.to_string()], [name]).unwrap();
    }
    let hash = tree.find_tree(&["d"]).unwrap().unwrap().hash();
    commit(&store, &tree).unwrap();
    let found = store.find_object(Kind::Directory, &hash).unwrap().unwrap();
    assert_eq!(found.length(&ROOT).unwrap(), 10);
    let root = commit(&store, &shallow(&store, 1, hash)).unwrap();

    assert_eq!(root, tree.hash());
}
