//! Values: every type that a value is taken from, and reads without a copy.

use std::borrow::Cow;
use std::sync::Arc;

use terrane_context::{Context, Error, Kind, Meta, Rules, Tree};
use terrane_io::{Disk, MemoryDisk};

use crate::script::{create, open, options};

#[test]
fn a_value_is_taken_from_any_bytes() {
    let mut tree = Tree::new(Rules::TEZOS).unwrap();
    let owned = b"bytes".to_vec();
    let text = "bytes".to_owned();
    tree.add(&["0"], "bytes").unwrap();
    tree.add(&["1"], b"bytes").unwrap();
    tree.add(&["2"], *b"bytes").unwrap();
    tree.add(&["3"], owned.as_slice()).unwrap();
    tree.add(&["4"], &owned).unwrap();
    tree.add(&["5"], owned.clone()).unwrap();
    tree.add(&["6"], owned.clone().into_boxed_slice()).unwrap();
    tree.add(&["7"], Cow::Borrowed(owned.as_slice())).unwrap();
    tree.add(&["8"], Arc::<[u8]>::from(owned)).unwrap();
    tree.add(&["9"], &text).unwrap();
    tree.add(&["a"], text).unwrap();
    assert_eq!(tree.length::<&str>(&[]).unwrap(), 11);

    for (step, child) in tree.list::<&str>(&[], 0, 11).unwrap() {
        assert_eq!(child, tree.of_value("bytes"), "{step:?}");
    }
}

/// Address and bytes of a value, read in place.
fn seen(context: &Context, path: &[&str]) -> Option<(usize, Vec<u8>)> {
    context.find_with(path, |bytes| (bytes.as_ptr().addr(), bytes.to_vec())).unwrap()
}

#[test]
fn a_value_is_read_in_place_wherever_it_is() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let store = create(&disk, &options()).unwrap();
    let mut context = store.empty();
    let values = [("small", vec![1; 48]), ("large", vec![2; 400]), ("empty", vec![])];
    for (step, value) in &values {
        context.add(&["a", "b", step], value).unwrap();
    }

    // In the write buffer, in nodes in memory, in a commit, and read back from the disk.
    let check = |context: &Context, place: &str| {
        for (step, value) in &values {
            let path = ["a", "b", step];
            let first = seen(context, &path).unwrap();
            assert_eq!(&first.1, value, "{place}");
            assert_eq!(seen(context, &path).unwrap(), first, "the same bytes in place, {place}");
            assert_eq!(context.find(&path).unwrap().as_ref(), Some(value), "{place}");
        }
        for absent in [&["a", "b"][..], &["a", "x"], &["a", "b", "small", "x"], &[]] {
            assert_eq!(seen(context, absent), None, "{absent:?}, {place}");
        }
    };
    check(&context, "buffer");
    context.hash();
    check(&context, "nodes");
    let commit = store.commit(&context, &Meta::tezos(0, "")).unwrap();
    check(&context, "committed");
    store.close().unwrap();
    let store = open(&disk, &options()).unwrap();
    check(&store.checkout(&commit).unwrap().unwrap(), "read");

    let shallow = context.shallow(Kind::Value, context.hash());
    let error = shallow.find_with(&[] as &[&str], <[u8]>::len).unwrap_err();
    assert!(matches!(error, Error::DanglingHash { .. }));
}
