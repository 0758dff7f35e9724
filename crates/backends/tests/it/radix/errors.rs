//! Errors: each of its kind, in the order of the checks, and with nothing written.

use std::collections::BTreeSet;

use terrane_kv::conformance::Subject;
use terrane_radix::{
    AddressError, Change, Committer, DryRunCommitter, Error, Order, Prefix, PruneOptions, Pruned,
    Pruner, Reader, Result, Root, RootTextError, StateChange, Store, TREE_NAME_BYTES_MAX, TextTree,
    VERSION_METADATA_BYTES_MAX, normalise,
};

use super::TREE;
use super::words::{altered, at, below, commit, content, delete, prune, run, set, tree};

type Text = StateChange<String, Vec<u8>>;

fn text_set(key: &str) -> Text {
    StateChange::Set { key: key.to_owned(), value: b"v".to_vec() }
}

fn text_delete(key: &str) -> Text {
    StateChange::Delete { key: key.to_owned() }
}

/// Does what must be refused, and leaves everything as it was.
fn refused<T: std::fmt::Debug>(store: &Store, work: impl FnOnce() -> Result<T>) -> Error {
    let before = content(&**store.database());
    let outcome = work();
    assert_eq!(content(&**store.database()), before, "something was written: {outcome:?}");
    outcome.unwrap_err()
}

/// Checks a batch as a commit, as a dry run, and within a transaction.
fn each_way(store: &Store, root: &Root, changes: &[Change], is_it: impl Fn(&Error) -> bool) {
    let tree = tree(store);
    for error in [
        refused(store, || tree.commit(root, changes)),
        refused(store, || tree.compute_root(root, changes)),
        refused(store, || store.transaction()?.compute_root(TREE, root, changes)),
        refused(store, || {
            let mut transaction = store.transaction()?;
            let outcome = transaction.commit(TREE, root, changes);
            transaction.finish().unwrap();
            outcome
        }),
    ] {
        assert!(is_it(&error), "{changes:?}: {error:?}");
        assert!(!error.to_string().is_empty());
    }
}

fn start(store: &Store) -> Root {
    commit(&tree(store), &Root::EMPTY, &[set("aa0000", "1"), set("aa0001", "2"), set("bb", "3")])
}

fn addresses_that_are_none_are_refused(store: &Store) {
    let root = start(store).to_string();
    let text = TextTree(tree(store));
    let long = "00".repeat(36);

    for (key, expected) in [
        ("", AddressError::Empty),
        ("abc", AddressError::OddLength { chars: 3 }),
        ("Ab", AddressError::UpperCase { position: 0 }),
        ("barf", AddressError::NotHex { character: 'r', position: 2 }),
        ("0é", AddressError::NotHex { character: 'é', position: 1 }),
        (&long, AddressError::TooLong { bytes: 36 }),
    ] {
        for bad in [text_set(key), text_delete(key)] {
            let changes = [text_set("cc"), bad];
            for error in [
                refused(store, || text.commit(&root, &changes)),
                refused(store, || text.dry_run_commit(&root, &changes)),
            ] {
                let is_it = matches!(
                    &error,
                    Error::InvalidAddress { text, index: Some(1), why } if text == key && *why == expected
                );
                assert!(is_it, "{key:?}: {error:?}");
            }
        }
        let keys = ["aa0000".to_owned(), key.to_owned()];
        let error = refused(store, || Reader::get(&text, &root, &keys));
        assert!(matches!(error, Error::InvalidAddress { why, .. } if why == expected), "{error:?}");
        if !key.is_empty() {
            let error = refused(store, || text.leaves_below(&root, key).map(drop));
            assert!(matches!(error, Error::InvalidAddress { why, .. } if why == expected));
        }
    }

    assert_eq!(terrane_radix::Address::new(&[]), Err(AddressError::Empty));
    let long = terrane_radix::Address::new(&[0; 36]);
    assert_eq!(long, Err(AddressError::TooLong { bytes: 36 }));
}

fn roots_that_are_none_are_refused(store: &Store) {
    let root = start(store).to_string();
    let text = TextTree(tree(store));
    let cases: [(String, RootTextError); 5] = [
        (String::new(), RootTextError::Length { chars: 0 }),
        (root[1..].to_owned(), RootTextError::Length { chars: 63 }),
        (format!("{root}0"), RootTextError::Length { chars: 65 }),
        (format!("G{}", &root[1..]), RootTextError::Character { character: 'G', position: 0 }),
        (format!("{}A", &root[1..]), RootTextError::Character { character: 'A', position: 63 }),
    ];

    for (bad, expected) in cases {
        // It is the root that is named, whatever else is wrong.
        let changes = [text_set("barf"), text_set("barf")];
        for error in [
            refused(store, || text.commit(&bad, &changes)),
            refused(store, || text.commit(&bad, &[])),
            refused(store, || text.dry_run_commit(&bad, &changes)),
            refused(store, || Reader::get(&text, &bad, &["barf".to_owned()])),
            refused(store, || text.leaves_below(&bad, "barf").map(drop)),
            refused(store, || Pruner::prune(&text, &[root.clone(), bad.clone()])),
        ] {
            let is_it = matches!(&error, Error::InvalidRoot { text, why } if *text == bad && *why == expected);
            assert!(is_it, "{bad}: {error:?}");
        }
    }
}

fn the_first_check_that_fails_is_named(store: &Store) {
    let root = start(store);
    let unknown = altered(&root);
    let text = TextTree(tree(store));

    // Unknown root before addresses.
    let error = refused(store, || text.commit(&unknown.to_string(), &[text_set("barf")]));
    assert!(matches!(error, Error::UnknownRoot { .. }), "{error:?}");

    // Addresses before duplicates.
    let changes = [text_set("aa"), text_set("aa"), text_set("barf")];
    let error = refused(store, || text.commit(&root.to_string(), &changes));
    assert!(matches!(error, Error::InvalidAddress { index: Some(2), .. }), "{error:?}");

    // An unknown root before duplicates, and for an empty batch too.
    let twice = [delete("dd"), set("aa", "1"), set("aa", "2")];
    each_way(
        store,
        &unknown,
        &twice,
        |error| matches!(error, Error::UnknownRoot { root, tree } if *root == unknown && tree == TREE),
    );
    each_way(store, &unknown, &[], |error| matches!(error, Error::UnknownRoot { .. }));

    // Duplicates before what is not there.
    each_way(
        store,
        &root,
        &twice,
        |error| matches!(error, Error::DuplicateAddress { address, first: 1, second: 2 } if *address == below("aa")),
    );
}

fn an_address_that_is_named_twice_is_refused(store: &Store) {
    let root = start(store);
    for (one, other) in [
        (set("aa0000", "x"), set("aa0000", "x")),
        (set("aa0000", "x"), delete("aa0000")),
        (delete("aa0000"), set("aa0000", "x")),
        (delete("aa0000"), delete("aa0000")),
        (Change::DeletePrefix(below("aa")), set("aa0000", "x")),
        (set("aa02", "x"), Change::DeletePrefix(below("aa"))),
        (Change::DeletePrefix(below("aa")), Change::DeletePrefix(below("aa00"))),
        (Change::DeletePrefix(below("aa")), Change::DeletePrefix(below("aa"))),
    ] {
        let changes = [set("cc", "y"), one, set("dd", "z"), other];
        each_way(store, &root, &changes, |error| {
            matches!(error, Error::DuplicateAddress { first: 1, second: 3, .. })
        });
    }
}

fn what_is_not_there_cannot_be_deleted(store: &Store) {
    let root = start(store);
    // An inner path; below a leaf; in no branch; beside a chain.
    for address in ["aa", "aa00", "bb00", "cc", "aa0002", "ab"] {
        let changes = [set("ee", "1"), delete("bb"), delete(address)];
        each_way(
            store,
            &root,
            &changes,
            |error| matches!(error, Error::AddressNotFound { address: of, index: 2 } if *of == at(address)),
        );
        each_way(store, &Root::EMPTY, &[delete(address)], |error| {
            matches!(error, Error::AddressNotFound { index: 0, .. })
        });
    }

    each_way(store, &root, &[delete("dd"), set("00", "1"), delete("cc")], |error| {
        matches!(error, Error::AddressNotFound { index: 0, .. })
    });

    for prefix in ["cc", "aa0002", "bb00", "ab", "aa000000"] {
        each_way(
            store,
            &root,
            &[Change::DeletePrefix(below(prefix))],
            |error| matches!(error, Error::PrefixNotFound { prefix: of } if *of == below(prefix)),
        );
    }

    each_way(store, &Root::EMPTY, &[Change::DeletePrefix(Prefix::EMPTY)], |error| {
        matches!(error, Error::PrefixNotFound { .. })
    });
}

fn prefixes_without_a_leaf_are_refused(store: &Store) {
    let root = start(store);
    let tree = tree(store);
    for prefix in ["cc", "aa0002", "bb00", "ab"] {
        for error in [
            refused(store, || tree.leaves(&root, &below(prefix)).map(drop)),
            refused(store, || {
                let transaction = store.transaction()?;
                transaction.leaves(TREE, &root, &below(prefix)).map(drop)
            }),
        ] {
            assert!(matches!(error, Error::PrefixNotFound { prefix: of } if of == below(prefix)));
        }
    }

    assert_eq!(tree.leaves(&Root::EMPTY, &Prefix::EMPTY).unwrap().count(), 0);
    assert_eq!(tree.leaves_from(&Root::EMPTY, None, Order::Descending).unwrap().count(), 0);
}

fn trees_that_are_not_there_or_are_there_already(store: &Store) {
    let root = start(store);
    let unknown =
        |error: &Error, of: &str| matches!(error, Error::UnknownTree { name } if name == of);
    assert!(unknown(&refused(store, || store.tree("none")), "none"));
    assert!(unknown(&refused(store, || store.rename_tree("none", "new")), "none"));
    let error = refused(store, || store.create_tree(TREE));
    assert!(matches!(error, Error::TreeExists { name } if name == TREE));
    store.create_tree("other").unwrap();
    let error = refused(store, || store.rename_tree("other", TREE));
    assert!(matches!(error, Error::TreeExists { name } if name == TREE));
    let long = "é".repeat(TREE_NAME_BYTES_MAX / 2) + "e";
    store.create_tree(&long).unwrap();
    assert_eq!(store.tree(&long).unwrap().name(), long);

    for bad in [String::new(), long + "e"] {
        for error in [
            refused(store, || store.create_tree(&bad)),
            refused(store, || store.tree_or_create(&bad)),
            refused(store, || store.rename_tree(TREE, &bad)),
            refused(store, || store.delete_tree(&bad).map(|_| ())),
        ] {
            let is_it =
                matches!(error, Error::InvalidTreeName { bytes, max: 255 } if bytes == bad.len());
            assert!(is_it, "{error:?}");
        }
    }

    // A handle on a tree that was deleted.
    let other = store.tree("other").unwrap();
    commit(&other, &Root::EMPTY, &[set("aa", "1")]);
    assert!(store.delete_tree("other").unwrap());
    assert!(!store.delete_tree("other").unwrap(), "to delete what is not there is no error");

    for error in [
        refused(store, || other.commit(&Root::EMPTY, &[set("aa", "1")]).map(drop)),
        refused(store, || other.commit(&Root::EMPTY, &[]).map(drop)),
        refused(store, || other.compute_root(&Root::EMPTY, &[set("aa", "1")]).map(drop)),
        refused(store, || other.get(&Root::EMPTY, &[]).map(drop)),
        refused(store, || other.leaves(&Root::EMPTY, &Prefix::EMPTY).map(drop)),
        refused(store, || other.prune(&root).map(drop)),
        refused(store, || other.prune_below(&root, 0).map(drop)),
        refused(store, || other.retain(&BTreeSet::new()).map(drop)),
        refused(store, || other.versions().map(drop)),
        refused(store, || other.verify(&root).map(drop)),
    ] {
        assert!(unknown(&error, "other"), "{error:?}");
    }

    // One of the same name is another tree.
    store.create_tree("other").unwrap();
    assert!(unknown(&refused(store, || other.versions()), "other"));
    let mut transaction = store.transaction().unwrap();
    for error in [
        transaction.commit("none", &root, &[]).map(drop).unwrap_err(),
        transaction.prune("none", &root, &PruneOptions::default()).map(drop).unwrap_err(),
        transaction.get("none", &root, &[]).map(drop).unwrap_err(),
        transaction.retain("none", &BTreeSet::new()).map(drop).unwrap_err(),
    ] {
        assert!(unknown(&error, "none"), "{error:?}");
    }
}

fn sizes_that_are_not_taken(store: &Store) {
    let root = start(store);
    let tree = tree(store);
    let long = vec![1; VERSION_METADATA_BYTES_MAX + 1];

    for error in [
        refused(store, || tree.commit_with(&root, &[set("aa", "1")], &long)),
        refused(store, || store.transaction()?.commit_with(TREE, &root, &[set("aa", "1")], &long)),
    ] {
        assert!(matches!(error, Error::Size { bytes, .. } if bytes == long.len()), "{error:?}");
    }

    let longest = &long[1..];
    let version = tree.commit_with(&root, &[set("aa", "1")], longest).unwrap().version;
    let info = tree.versions().unwrap().pop().unwrap();
    assert_eq!((Some(info.id), info.metadata.as_slice()), (version, longest));

    for key in [vec![], vec![1; 257]] {
        let error = refused(store, || store.set_metadata(&key, Some(b"v")));
        assert!(matches!(error, Error::Size { bytes, .. } if bytes == key.len()), "{error:?}");
    }
}

fn pruning_what_cannot_be_pruned_is_no_error(store: &Store) {
    let tree = tree(store);
    let root = start(store);
    let unknown = altered(&root);
    let before = content(&**store.database());

    for _ in 0..2 {
        assert_eq!(tree.prune(&unknown).unwrap(), Pruned::Unknown);
        assert_eq!(tree.prune(&Root::EMPTY).unwrap(), Pruned::EmptyRoot);
    }

    assert_eq!(content(&**store.database()), before);
    prune(&tree, &root);
    assert_eq!(tree.prune(&root).unwrap(), Pruned::Unknown);
    assert_eq!(tree.prune(&Root::EMPTY).unwrap(), Pruned::EmptyRoot);

    assert_eq!(tree.get_one(&Root::EMPTY, &at("aa")).unwrap(), None);
}

fn normalising_makes_a_batch_that_is_taken(store: &Store) {
    let root = start(store);
    let tree = tree(store);
    let changes = vec![
        set("aa0000", "first"),
        delete("bb"),
        set("cc", "gone"),
        set("aa0000", "last"),
        set("bb", "back"),
        set("cc", "stays"),
        delete("aa0001"),
    ];
    assert!(matches!(tree.commit(&root, &changes), Err(Error::DuplicateAddress { .. })));
    let plain = normalise(changes);
    let expected = [set("aa0000", "last"), delete("aa0001"), set("bb", "back"), set("cc", "stays")];
    assert_eq!(plain, expected);
    commit(&tree, &root, &plain);
    assert_eq!(normalise(plain.clone()), plain, "what is plain stays as it is");
    let swallowed = vec![set("aa0007", "x"), Change::DeletePrefix(below("aa")), set("bb", "y")];
    let plain = normalise(swallowed);
    assert_eq!(plain, [Change::DeletePrefix(below("aa")), set("bb", "y")]);

    commit(&tree, &root, &plain);
}

pub(super) fn check(subject: &mut dyn Subject) {
    run(
        subject,
        &[
            addresses_that_are_none_are_refused,
            roots_that_are_none_are_refused,
            the_first_check_that_fails_is_named,
            an_address_that_is_named_twice_is_refused,
            what_is_not_there_cannot_be_deleted,
            prefixes_without_a_leaf_are_refused,
            trees_that_are_not_there_or_are_there_already,
            sizes_that_are_not_taken,
            pruning_what_cannot_be_pruned_is_no_error,
            normalising_makes_a_batch_that_is_taken,
        ],
    );
}
