//! The radix state on a back-end: what every back-end must give, by subjects of the conformance
//! suite.

mod back_ends;
mod behaviours;
mod crash;
mod damage;
mod defects;
mod diffs;
mod errors;
mod exchange;
mod faults;
mod faulty;
mod golden;
mod histories;
mod media;
mod proofs;
mod pruning;
mod reading;
mod repair;
mod rules;
mod shared;
mod sizes;
mod threads;
mod transact;
mod trees;
mod vectors;
mod words;

use terrane_kv::conformance::Subject;
use terrane_radix::{INDEXES, Options, Store, Tree};

use crate::memory::InMemory;

/// The name of the tree of a test that has one.
const TREE: &str = "state";

/// A store that holds nothing.
fn fresh(subject: &mut dyn Subject) -> Store {
    Store::open(subject.fresh(&INDEXES).unwrap(), &options()).unwrap()
}

/// The store of the last call of [`fresh`] once more, if the back-end is persistent.
fn reopened(subject: &mut dyn Subject, store: Store) -> Store {
    if !subject.is_persistent() {
        return store;
    }
    store.close().unwrap();
    drop(store);
    Store::open(subject.reopen(&INDEXES).unwrap(), &options()).unwrap()
}

/// A small memory for nodes, so that they are read again.
fn options() -> Options {
    Options::default().cache_bytes(64 << 10).threads(2)
}

fn tree(store: &Store) -> Tree {
    store.tree_or_create(TREE).unwrap()
}

#[test]
fn vectors_on_memory() {
    vectors::check(&mut InMemory);
}

#[test]
fn behaviours_on_memory() {
    behaviours::check(&mut InMemory);
}
