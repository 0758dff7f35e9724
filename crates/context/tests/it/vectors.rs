//! Every published and derived hash of `tezos-context.json`, and the text form both ways.

use serde_json::Value;
use terrane_context::{CommitInfo, Hash, HashTextError, Rules, Scheme, Tree, ocaml_hash};

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
