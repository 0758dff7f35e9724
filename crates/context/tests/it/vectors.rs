//! Every published and derived hash of `tezos-context.json` and `tezos-nodes-empty-child.json`, and
//! the text form both ways.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use terrane_context::{
    CommitInfo, Error, Hash, HashTextError, Indexing, Kind, Meta, Rules, Scheme, Store, Tree,
    ocaml_hash,
};
use terrane_io::{Disk, MemoryDisk};

use crate::script::{DIR, options};

fn vectors() -> Vec<Value> {
    let file: Value = serde_json::from_str(include_str!("../vectors/tezos-context.json")).unwrap();
    file["vectors"].as_array().unwrap().clone()
}

fn text<'a>(vector: &'a Value, field: &str) -> &'a str {
    vector[field].as_str().unwrap_or_else(|| panic!("{field} of {vector}"))
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn hash_of(vector: &Value, prefix: &str) -> Hash {
    let hash: Hash = text(vector, &format!("{prefix}_b58")).parse().unwrap();
    assert_eq!(hash.as_bytes().as_slice(), bytes(text(vector, &format!("{prefix}_hex"))));
    assert_eq!(hash.to_string(), text(vector, &format!("{prefix}_b58")));
    hash
}

fn tree_of(vector: &Value) -> Tree {
    let number = |field: &str| vector[field].as_u64().unwrap() as u32;
    let rules = Rules {
        scheme: Scheme::Tezos,
        branching: number("branching"),
        flat_limit: number("flat_limit"),
    };
    let mut tree = Tree::new(rules).unwrap();
    for (path, value) in entries(vector) {
        assert!(tree.add(&path.split('/').collect::<Vec<_>>(), value).unwrap());
    }
    tree
}

/// The bindings, written out or described.
fn entries(vector: &Value) -> Vec<(String, Vec<u8>)> {
    if let Some(generated) = vector["generated"].as_object() {
        let prefix = generated.get("prefix").map_or("", |prefix| prefix.as_str().unwrap());
        let value = bytes(generated["value_hex"].as_str().unwrap());
        let names = 0..generated["count"].as_u64().unwrap();
        return names.map(|name| (format!("{prefix}{name}"), value.clone())).collect();
    }
    let map = vector["entries_hex"].as_object().unwrap_or_else(|| panic!("{vector}"));
    map.iter().map(|(path, value)| (path.clone(), bytes(value.as_str().unwrap()))).collect()
}

#[test]
fn every_vector_has_its_hash() {
    let vectors = vectors();
    assert!(vectors.len() >= 20, "{}", vectors.len());
    for vector in &vectors {
        let name = text(vector, "name");
        match text(vector, "kind") {
            "contents" => {
                let hash = Rules::TEZOS.value_hash(&bytes(text(vector, "value_hex")));
                assert_eq!(hash, hash_of(vector, "hash"), "{name}");
            }
            "node" => assert_eq!(tree_of(vector).hash(), hash_of(vector, "hash"), "{name}"),
            "commit" => {
                let root = tree_of(vector).hash();
                assert_eq!(root, hash_of(vector, "root"), "{name}");
                let parents = vector["parents_b58"].as_array().unwrap();
                let parents: Vec<Hash> = parents
                    .iter()
                    .map(|parent| parent.as_str().unwrap().parse().unwrap())
                    .collect();
                let commit = CommitInfo {
                    root: &root,
                    parents: &parents,
                    date: vector["date"].as_i64().unwrap(),
                    author: text(vector, "author").as_bytes(),
                    message: text(vector, "message").as_bytes(),
                };
                assert_eq!(Rules::TEZOS.commit_hash(&commit), hash_of(vector, "hash"), "{name}");
            }
            "ocaml_hash" => {
                let seed = vector["seed"].as_u64().unwrap() as u32;
                for (input, hash) in vector["cases"].as_object().unwrap() {
                    assert_eq!(
                        u64::from(ocaml_hash(seed, input.as_bytes())),
                        hash.as_u64().unwrap()
                    );
                }
            }
            other => panic!("a vector of an unknown kind: {other}: {vector}"),
        }
    }
}

#[test]
fn a_text_that_was_mistyped_says_how() {
    let good = "CoVdWnWTqvYLikKj8koW6zpxCvK6FzZiD31YWEpD1UNAjWn7vhch";
    let parse = |text: &str| text.parse::<Hash>();
    assert_eq!(parse(good).unwrap().to_string(), good);

    // Every character flipped in turn: most break the checksum, the first ones the prefix or the
    // length.
    let mut checksums = 0;
    for position in 0..good.len() {
        let mut text = good.as_bytes().to_vec();
        text[position] = if text[position] == b'z' { b'y' } else { b'z' };
        let error = parse(std::str::from_utf8(&text).unwrap()).unwrap_err();
        assert!(!matches!(error, HashTextError::Character { .. }), "{position}: {error}");
        checksums += usize::from(error == HashTextError::Checksum);
    }

    assert!(checksums >= 48, "{checksums}");
    assert_eq!(
        parse(&good.replace('k', "0")),
        Err(HashTextError::Character { character: '0', position: 13 })
    );
    assert_eq!(parse(&good[..51]), Err(HashTextError::Length { found: 51 }));
    assert_eq!(parse(""), Err(HashTextError::Length { found: 0 }));

    // A block hash of Tezos, which has another prefix and another length.
    let block = "BLockGenesisGenesisGenesisGenesisGenesisf79b5d1CoW2";
    assert!(matches!(parse(block), Err(HashTextError::Length { .. })), "{:?}", parse(block));
}

#[test]
fn directories_with_an_empty_directory_have_their_hashes() {
    let file = include_str!("../vectors/tezos-nodes-empty-child.json");
    let file: Value = serde_json::from_str(file).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 5);
    let empty = Rules::TEZOS.empty_hash();

    for case in cases {
        let child = |child: &Value| {
            let kind = match text(child, "kind") {
                "Tree" => Kind::Directory,
                "Contents" => Kind::Value,
                other => panic!("a child of an unknown kind: {other}"),
            };
            (text(child, "name").to_owned(), kind, text(child, "hash").parse::<Hash>().unwrap())
        };
        let children: Vec<_> = case["bindings"].as_array().unwrap().iter().map(child).collect();
        let is_empty =
            |(_, kind, hash): &&(String, Kind, Hash)| *kind == Kind::Directory && *hash == empty;
        let (name, ..) = children.iter().find(is_empty).expect("an empty directory").clone();
        let hash: Hash = text(case, "hash").parse().unwrap();

        // In any order of the children.
        let tree = Tree::of_hashes(Rules::TEZOS, children.iter().cloned()).unwrap();
        assert_eq!(tree.hash(), hash);
        let reversed = Tree::of_hashes(Rules::TEZOS, children.iter().rev().cloned()).unwrap();
        assert_eq!(reversed.hash(), hash);
        assert_eq!(tree.length::<&str>(&[]).unwrap(), children.len() as u64);
        let without = children.iter().filter(|child| child.0 != name).cloned();
        assert_ne!(Tree::of_hashes(Rules::TEZOS, without).unwrap().hash(), hash);

        // The child is known by its hash only, and cannot be read.
        let read = tree.find(&[name.as_str(), "x"]);
        assert!(matches!(read, Err(Error::DanglingHash { .. })), "{read:?}");
    }
}

#[test]
fn an_empty_directory_that_is_known_by_its_hash_is_never_stored() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    for indexing in [Indexing::Minimal, Indexing::Always] {
        let options = options().indexing(indexing);
        let dir = format!("{DIR}-{indexing:?}");
        let store = Store::create(Arc::clone(&disk), Path::new(&dir), &options).unwrap();
        let empty = Rules::TEZOS.empty_hash();
        let children = [("a", Kind::Directory, empty)];
        let tree = Tree::of_hashes(Rules::TEZOS, children).unwrap();

        // Bound in a context, and as its root.
        let mut context = store.empty();
        context.add(&["value"], *b"1").unwrap();
        context.add_tree(&["bound"], &tree).unwrap();
        let bound = store.commit(&context, &Meta::tezos(0, ""));
        assert!(matches!(bound, Err(Error::DanglingHash { hash, .. }) if hash == empty));
        *context.tree_mut() = tree;
        let root = store.commit(&context, &Meta::tezos(0, ""));
        assert!(matches!(root, Err(Error::DanglingHash { hash, .. }) if hash == empty));
        assert_eq!(store.stats().commits, 0);
    }
    let long = Tree::of_hashes(Rules::TEZOS, [(vec![0; 256], Kind::Value, Hash([1; 32]))]);
    assert!(matches!(long, Err(Error::StepSize { bytes: 256 })));
}
