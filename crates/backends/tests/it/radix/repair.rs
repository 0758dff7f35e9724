//! Repairs: what is damaged goes, and all else stays.
//!
//! Goal: after a repair the store is whole by a check of all of it, each version that could be read
//! before can be read, none reads otherwise than it did, a second repair has nothing to do, and the
//! store can be worked with. Method: the store of `damage`, each row of it missing or altered, in
//! memory and on the back-end itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrane_kv::Memory;
use terrane_kv::conformance::Subject;
use terrane_kv::{Database, Table};
use terrane_radix::{Error, INDEXES, Loss, Options, Repaired, Root, Store, Tree, VERSIONS};

use crate::memory::InMemory;

use super::damage::{Content, State, flipped, in_memory, make, rows, write};
use super::words::{assert_whole, commit, content, leaves, prune, set};
use super::{fresh, reopened};

fn open(database: &Arc<dyn Database>) -> Result<Store, Error> {
    Store::open(Arc::clone(database), &Options::default().cache_bytes(0).threads(1))
}

/// The roots that are whole, by trees' names.
fn whole(database: &Arc<dyn Database>, states: &[State]) -> BTreeSet<(&'static str, Root)> {
    let Ok(store) = open(database) else { return BTreeSet::new() };
    let is_whole = |state: &&State| {
        let verified = store.tree(state.tree).and_then(|tree| tree.verify(&state.root));
        verified.is_ok_and(|report| report.is_clean())
    };
    states.iter().filter(is_whole).map(|state| (state.tree, state.root)).collect()
}

/// The trees that have a root: under their own name or another.
fn having(store: &Store, root: &Root) -> Vec<Tree> {
    let trees = store.trees().unwrap();
    let trees = trees.iter().map(|name| store.tree(name).unwrap());
    trees.filter(|tree| tree.has_root(root).unwrap()).collect()
}

/// Repairs a damaged store, and looks at what is left. Answers how many versions went.
fn repair(database: &Arc<dyn Database>, states: &[State], what: &str) -> usize {
    let before = whole(database, states);
    let damaged = content(&**database);
    let copy = in_memory(&damaged);
    let refused = Store::repair(&copy, Loss::Refused).unwrap();
    assert_eq!(refused.was_refused, refused.lost() + refused.unreferenced > 0, "{what}");

    if refused.was_refused {
        assert_eq!(content(&*copy), damaged, "{what}");
    } else {
        assert_eq!(whole(&copy, states).len(), states.len(), "{what}");
    }

    let repaired = Store::repair(database, Loss::Accepted).unwrap();
    assert_eq!(Repaired { was_refused: false, ..refused }, repaired, "{what}");
    assert!(!repaired.is_clean(), "{what}");
    let store = open(database).unwrap();
    assert_whole(&store);

    for state in states {
        let having = having(&store, &state.root);
        for tree in &having {
            assert_eq!(leaves(tree, &state.root), state.leaves, "{what}");
        }
        if before.contains(&(state.tree, state.root)) {
            assert!(having.iter().any(|tree| tree.name() == state.tree), "{what}");
        }
        let is_dropped = repaired.dropped.iter().any(|dropped| dropped.root == state.root);
        assert!(!(is_dropped && having.iter().any(|tree| tree.name() == state.tree)), "{what}");
    }

    for name in &repaired.named {
        assert!(!store.tree(name).unwrap().versions().unwrap().is_empty(), "{what}");
    }

    assert_eq!(store.metadata(b"key").unwrap().as_deref(), Some(&b"of the caller"[..]));
    assert!(Store::repair(database, Loss::Accepted).unwrap().is_clean(), "{what}");

    // Work goes on.
    let tree = store.tree_or_create("after").unwrap();
    let root = commit(&tree, &Root::EMPTY, &[set("aa0000", "small"), set("bb", "new")]);
    prune(&tree, &root);

    for name in store.trees().unwrap() {
        let tree = store.tree(&name).unwrap();
        for version in tree.versions().unwrap() {
            tree.prune(&version.root).unwrap();
        }
        store.delete_tree(&name).unwrap();
    }

    assert_eq!(database.reader().unwrap().count(Table::Main).unwrap(), 0, "{what}");
    states.len().saturating_sub(repaired.kept as usize)
}

pub(super) fn check(subject: &mut dyn Subject) {
    let store = fresh(subject);
    let states = make(&store);
    let store = reopened(subject, store);
    let database = Arc::clone(store.database());
    drop(store);
    let all = content(&*database);
    assert!(Store::repair(&database, Loss::Accepted).unwrap().is_clean());
    assert_eq!(content(&*database), all);

    if subject.is_persistent() {
        // The sweep of copies in memory tells the same of equal rows.
        let memory = fresh(&mut InMemory);
        make(&memory);
        assert_eq!(content(&**memory.database()), all);
    } else {
        copies_are_repaired(&all, &states);
    }

    // On the back-end itself, more than one at a time.
    for (number, (name, row)) in rows(&all).into_iter().enumerate() {
        if number % 5 == 0 {
            write(&database, name, &all[name][row].0, None);
        }
    }

    repair(&database, &states, "many rows");
}

/// Repairs copies in memory, each with one row that is missing or altered.
fn copies_are_repaired(all: &Content, states: &[State]) {
    let mut dropped = 0;
    for (name, row) in rows(all) {
        let (key, value) = &all[name][row];
        let key_text = key.escape_ascii().to_string();
        for byte in [0, value.len() / 2, value.len() - 1] {
            let damaged = flipped(all, name, row, byte, 0x10);
            let what = format!("byte {byte} of row {key_text} of {name}");
            dropped += repair(&in_memory(&damaged), states, &what);
        }
        let mut damaged = all.clone();
        damaged.get_mut(name).unwrap().remove(row);
        dropped += repair(&in_memory(&damaged), states, &format!("{key_text} of {name} is gone"));
    }

    assert!(dropped > 0);
}

#[test]
fn whatever_row_of_a_store_in_memory_is_damaged_the_rest_is_whole_again() {
    check(&mut InMemory);
}

/// A stop that many chains lead to once has rows for them; there may be few of them later.
#[test]
fn a_store_that_is_whole_is_left_as_it_is() {
    let database: Arc<dyn Database> = Arc::new(Memory::new(&INDEXES).unwrap());
    let store = open(&database).unwrap();
    let tree = store.create_tree("tree").unwrap();
    let few: Vec<_> = (0..3).map(|n| set(&format!("ee{n:02x}{n:02x}"), vec![7; 70])).collect();
    let many: Vec<_> = (3..20).map(|n| set(&format!("ee{n:02x}{n:02x}"), vec![7; 70])).collect();
    let one = commit(&tree, &Root::EMPTY, &few);
    let two = commit(&tree, &one, &many);
    let three = commit(&tree, &one, &few);
    assert_eq!(one, three);
    prune(&tree, &two);
    let before = content(&*database);
    assert!(Store::repair(&database, Loss::Accepted).unwrap().is_clean());

    assert_eq!(content(&*database), before);
}

/// Nothing names a version whose own row and that of its root are gone but its parent; and of the
/// first one only nodes are left.
#[test]
fn a_version_of_which_little_is_left_is_not_given_up_silently() {
    let database: Arc<dyn Database> = Arc::new(Memory::new(&INDEXES).unwrap());
    let store = open(&database).unwrap();
    let tree = store.create_tree("tree").unwrap();
    let one = commit(&tree, &Root::EMPTY, &[set("aa", vec![7; 70])]);
    commit(&tree, &one, &[set("bb", vec![8; 70])]);
    let whole = content(&*database);

    for last in [2, 1] {
        for (key, _) in &whole[VERSIONS] {
            let number = key.last().copied().unwrap_or_default();
            if key[0] == b'r' || key[0] == b'v' && number >= last {
                write(&database, VERSIONS, key, None);
            }
        }
        let before = content(&*database);
        let refused = Store::repair(&database, Loss::Refused).unwrap();
        assert!(refused.was_refused, "{refused:?}");
        assert_eq!((refused.lost() > 0, refused.unreferenced > 0), (last == 2, true));
        assert_eq!(content(&*database), before);
    }

    let repaired = Store::repair(&database, Loss::Accepted).unwrap();
    assert!(!repaired.was_refused && repaired.records_removed > 0, "{repaired:?}");
    assert_eq!(database.reader().unwrap().count(Table::Main).unwrap(), 0);
}

/// A name that was given and a name that was left, of one tree.
#[test]
fn a_tree_with_two_names_is_told() {
    let database: Arc<dyn Database> = Arc::new(Memory::new(&INDEXES).unwrap());
    let store = open(&database).unwrap();
    let tree = store.create_tree("old").unwrap();
    commit(&tree, &Root::EMPTY, &[set("aa", "value")]);
    let before = content(&*database);
    let row = before[VERSIONS].iter().find(|(key, _)| key[0] == b't').unwrap();
    store.rename_tree("old", "new").unwrap();
    write(&database, VERSIONS, &row.0, Some(&row.1));
    let refused = Store::repair(&database, Loss::Refused).unwrap();
    assert!(refused.was_refused && refused.lost() == 1, "{refused:?}");
}

/// A repair must not make a store out of somebody else's entries.
#[test]
fn what_is_no_radix_state_is_left_alone() {
    let database: Arc<dyn Database> = Arc::new(Memory::new(&INDEXES).unwrap());
    write(&database, "main", b"key", Some(b"value"));
    let before = content(&*database);
    let repaired = Store::repair(&database, Loss::Accepted);
    assert!(matches!(repaired, Err(Error::CorruptRecord { .. })), "{repaired:?}");
    assert_eq!(content(&*database), before);
}
