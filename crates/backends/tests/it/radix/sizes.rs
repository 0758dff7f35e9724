//! Roots of values of every class of lengths and of nodes with every class of numbers of children,
//! against the rules.

use std::collections::BTreeMap;

use terrane_kv::conformance::Subject;
use terrane_radix::{Address, Change, Root, Store};

use super::rules::{State, root_of};
use super::words::{at, commit, read, run, set, tree};

fn changes(state: &State) -> Vec<Change> {
    state
        .iter()
        .map(|(key, value)| Change::Set(Address::new(key).unwrap(), value.clone()))
        .collect()
}

/// On both sides of each boundary of heads, and of what is stored in an edge.
const LENGTHS: [usize; 20] = [
    0, 1, 22, 23, 24, 25, 63, 64, 65, 254, 255, 256, 257, 65_534, 65_535, 65_536, 65_537,
    1_048_574, 1_048_575, 1_048_576,
];

fn values_of_every_class_of_lengths(store: &Store) {
    let tree = tree(store);
    for length in LENGTHS {
        let value: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        // As a leaf; and as the value of a node that has children.
        for others in [vec![], vec!["ab000000", "ac"]] {
            let mut state: State = others
                .iter()
                .map(|address| (at(address).as_bytes().to_vec(), b"other".to_vec()))
                .collect();
            state.insert(at("ab0000").as_bytes().to_vec(), value.clone());
            let root = commit(&tree, &Root::EMPTY, &changes(&state));
            assert_eq!(root, root_of(&state), "{length} bytes beside {others:?}");
            assert!(read(&tree, &root, "ab0000").unwrap() == value, "{length} bytes");
            assert!(tree.verify(&root).unwrap().is_clean());
        }
    }
}

fn nodes_of_every_class_of_children(store: &Store) {
    let tree = tree(store);
    for fan_out in [1usize, 2, 22, 23, 24, 25, 254, 255, 256] {
        for (above, value) in
            [(vec![], None), (vec![0xab], None), (vec![0xab, 0], Some(b"v".to_vec()))]
        {
            let mut state: State = (0..fan_out)
                .map(|token| ([above.as_slice(), &[token as u8]].concat(), vec![token as u8; 3]))
                .collect();
            state.extend(value.map(|value| (above.clone(), value)));
            let root = commit(&tree, &Root::EMPTY, &changes(&state));
            assert_eq!(root, root_of(&state), "{fan_out} children below {above:?}");
            let all = changes(&state);

            // The same one by one, first half and second half.
            let (first, second) = all.split_at(all.len() / 2);
            let half = tree.commit(&Root::EMPTY, second).unwrap().root;
            assert_eq!(tree.compute_root(&half, first).unwrap(), root);
            let found: BTreeMap<_, _> = tree
                .leaves(&root, &terrane_radix::Prefix::EMPTY)
                .unwrap()
                .map(Result::unwrap)
                .map(|(address, value)| (address.as_bytes().to_vec(), value))
                .collect();
            assert_eq!(found, state);
        }
    }
}

/// One address of each length, each the beginning of the next.
fn addresses_of_every_length(store: &Store) {
    let tree = tree(store);
    let state: State = (1..=35).map(|len| (vec![0xa0; len], vec![len as u8])).collect();
    let root = commit(&tree, &Root::EMPTY, &changes(&state));
    assert_eq!(root, root_of(&state));
    let mut tip = root;

    let mut left = state.clone();
    for len in (1..=35).rev().step_by(2) {
        let address = Address::new(&vec![0xa0; len]).unwrap();
        left.remove(address.as_bytes());
        tip = commit(&tree, &tip, &[Change::Delete(address)]);
        assert_eq!(tip, root_of(&left));
    }

    let all: Vec<Address> = state.keys().map(|key| Address::new(key).unwrap()).collect();
    let expected: Vec<Option<Vec<u8>>> = state.keys().map(|key| left.get(key).cloned()).collect();
    assert_eq!(tree.get(&tip, &all).unwrap(), expected);
}

pub(super) fn check(subject: &mut dyn Subject) {
    run(
        subject,
        &[
            values_of_every_class_of_lengths,
            nodes_of_every_class_of_children,
            addresses_of_every_length,
        ],
    );
}

/// Values that no row can hold were hashed first, and then a failure of the back-end without an
/// address.
#[test]
fn a_value_that_is_too_large_is_refused_with_its_address() {
    use terrane_radix::{Change, Error, VALUE_BYTES_MAX};

    let store = super::fresh(&mut crate::memory::InMemory);
    let tree = super::tree(&store);
    let large = Change::Set(at("bb"), vec![0; VALUE_BYTES_MAX + 1]);
    let changes = [set("aa", "small"), large];

    for refused in [
        tree.commit(&Root::EMPTY, &changes).unwrap_err(),
        tree.compute_root(&Root::EMPTY, &changes).unwrap_err(),
    ] {
        match refused {
            Error::ValueTooLarge { address, index, bytes, max } => {
                assert_eq!((address, index), (at("bb"), Some(1)));
                assert_eq!((bytes, max), (VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX));
            }
            other => panic!("{other:?}"),
        }
    }

    assert_eq!(tree.versions().unwrap(), []);
}
