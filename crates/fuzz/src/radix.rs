//! Targets of the Merkle-radix state: proofs, exported versions and trees, histories.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use terrane_kv::Memory;
use terrane_radix::{
    Address, Change, Form, INDEXES, Options, Prefix, Proof, Root, Store, Tree, verify_proof,
};

use crate::input::Input;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn tree() -> Tree {
    let database = Memory::new(&INDEXES).expect("the indexes of the state");
    let options = Options::default().cache_bytes(1 << 20).threads(1);
    let store = Store::open(Arc::new(database), &options).expect("a new store");
    store.create_tree("state").expect("a new tree")
}

/// One of 96 addresses, some of which are above others.
fn address_of(number: u8) -> Vec<u8> {
    let number = number % 96;
    let mut bytes = vec![0xab, number % 3, number / 3 % 4];
    bytes.extend(std::iter::repeat_n(number, usize::from(number % 2)));
    bytes
}

fn at(bytes: &[u8]) -> Address {
    Address::new(bytes).expect("a short address")
}

struct Honest {
    tree: Tree,
    root: Root,
    content: Content,
}

static HONEST: LazyLock<Honest> = LazyLock::new(|| {
    let tree = tree();
    let content: Content = (0..60_u8).map(|number| (address_of(number), vec![number; 3])).collect();
    let changes: Vec<_> =
        content.iter().map(|(address, value)| Change::Set(at(address), value.clone())).collect();
    let root = tree.commit(&Root::EMPTY, &changes).expect("in memory").root;
    Honest { tree, root, content }
});

/// Any bytes are decoded as a proof.
pub(crate) fn radix_proof(data: &[u8]) {
    let Ok(proof) = Proof::from_bytes(data) else { return };
    let forms = [Form::Full, Form::Compact];
    assert!(forms.iter().any(|form| proof.to_bytes(*form) == data), "a form has one encoding");
    let _ = proof.verify(&HONEST.root).map(Iterator::count);
}

/// Facts that a changed proof shows of the trusted root are so.
pub(crate) fn radix_proof_forged(data: &[u8]) {
    let mut input = Input(data);
    let honest = &*HONEST;
    let asked: Vec<_> = (0..=input.index(4)).map(|_| address_of(input.byte())).collect();
    let addresses: Vec<_> = asked.iter().map(|bytes| at(bytes)).collect();
    let proof = honest.tree.prove(&honest.root, &addresses).expect("in memory");
    let form = if input.byte().is_multiple_of(2) { Form::Full } else { Form::Compact };
    let mut bytes = proof.to_bytes(form);
    input.damage(&mut bytes);

    let Ok(values) = verify_proof(&honest.root, &bytes, &addresses) else { return };
    for (address, value) in asked.iter().zip(values) {
        assert_eq!(value.as_ref(), honest.content.get(address), "{address:?}");
    }
}

/// All values of a version.
fn content_of(tree: &Tree, root: &Root) -> Content {
    let prefix = Prefix::new(&[]).expect("the shortest prefix");
    let leaves = tree.leaves(root, &prefix).expect("a version");
    leaves
        .map(|leaf| leaf.expect("in memory"))
        .map(|(address, value)| (address.as_bytes().to_vec(), value))
        .collect()
}

/// A changed export of a version is refused, or gives the version of the root that it says.
pub(crate) fn radix_version(data: &[u8]) {
    static STREAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut stream = Vec::new();
        HONEST.tree.export(&HONEST.root, &mut stream).expect("in memory");
        stream
    });

    let mut stream = STREAM.clone();
    Input(data).damage(&mut stream);
    let tree = tree();
    let Ok(made) = tree.import(&*stream) else { return };
    let content = content_of(&tree, &made.root);
    assert!(made.root != HONEST.root || content == HONEST.content, "a root has one content");
}

/// A changed export of all versions is refused, or gives versions whose contents can be read.
pub(crate) fn radix_tree(data: &[u8]) {
    static STREAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let honest = &*HONEST;
        let changes = [Change::Delete(at(&address_of(3))), Change::Set(at(&[9]), vec![9])];
        honest.tree.commit(&honest.root, &changes).expect("in memory");
        let mut stream = Vec::new();
        honest.tree.export_all(&mut stream).expect("in memory");
        stream
    });

    let mut stream = STREAM.clone();
    Input(data).damage(&mut stream);
    let tree = tree();
    let Ok(made) = tree.import_all(&*stream) else { return };
    for version in made {
        let content = content_of(&tree, &version.root);
        assert!(version.root != HONEST.root || content == HONEST.content, "a root has one content");
    }
}

/// Commits on any version, and prunings; each version that is kept is what it was.
pub(crate) fn radix_history(data: &[u8]) {
    let mut input = Input(data);
    let tree = tree();
    let mut versions: Vec<(Root, Content)> = vec![(Root::EMPTY, Content::new())];

    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        let (parent, mut content) = versions[input.index(versions.len())].clone();
        if input.byte().is_multiple_of(8) && parent != Root::EMPTY {
            // A version that others are built on, or share a root with, may be refused.
            drop(tree.prune(&parent));
            versions.retain(|(root, _)| {
                *root == Root::EMPTY || tree.has_root(root).expect("in memory")
            });
            continue;
        }

        let mut changes: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        for _ in 0..=input.index(8) {
            let address = address_of(input.byte());
            let is_set = !input.byte().is_multiple_of(3) || !content.contains_key(&address);
            changes.insert(address, is_set.then(|| vec![input.byte(); input.index(40)]));
        }
        let batch: Vec<_> = changes
            .iter()
            .map(|(address, value)| match value {
                Some(value) => Change::Set(at(address), value.clone()),
                None => Change::Delete(at(address)),
            })
            .collect();
        for (address, value) in changes {
            match value {
                Some(value) => content.insert(address, value),
                None => content.remove(&address),
            };
        }
        let root = tree.commit(&parent, &batch).expect("in memory").root;
        assert_eq!(content_of(&tree, &root), content, "a version is what was committed");
        versions.push((root, content));
    }

    for (root, content) in versions.iter().filter(|(root, _)| *root != Root::EMPTY) {
        assert_eq!(&content_of(&tree, root), content, "a version is what it was");
    }
}
