//! Random histories of a trie.
//!
//! Goal: after each batch the root is that of a naive trie and of `alloy-trie`, the stored records
//! are exactly those that the entries determine, and each key has a proof that `alloy-trie`
//! accepts. Method: seeded batches of insertions, changes and deletions, over keys that make
//! embedded nodes, values of branches, extensions and collapses likely.

use alloy_trie::{HashBuilder, proof::verify_proof};
use nybbles::Nibbles;
use terrane_mpt::{B256, KeccakMpt, MemoryTrie};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::naive::{self, Map};

/// The shapes of keys and values of a history.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Keys of one to four bytes, some of which are prefixes of others, with short values.
    Ragged,
    /// Keys of two bytes with short values: embedded nodes.
    Short,
    /// Hashes that share many leading digits, as an attacker chooses them.
    Close,
}

fn key(shape: Shape, rng: &mut impl Draw) -> Vec<u8> {
    let digit = |rng: &mut dyn FnMut(u64) -> u64| (rng(3) * 0x10 + rng(2)) as u8;
    let mut below = |bound| rng.below(bound);
    match shape {
        Shape::Ragged => {
            let length = 1 + below(4);
            (0..length).map(|_| digit(&mut below)).collect()
        }
        Shape::Short => vec![digit(&mut below), below(256) as u8],
        Shape::Close => {
            let mut key = vec![0xab; 32];
            let at = below(32) as usize;
            key[at] = below(4) as u8 * 0x11;
            key[31] = below(8) as u8;
            key
        }
    }
}

fn value(shape: Shape, rng: &mut impl Draw) -> Vec<u8> {
    let length = match shape {
        Shape::Close => 1 + rng.below(70),
        _ if rng.chance(1, 8) => 40,
        _ => 1 + rng.below(4),
    };
    (0..length).map(|_| 1 + rng.below(255) as u8).collect()
}

fn alloy_root(map: &Map) -> B256 {
    let mut builder = HashBuilder::default();
    for (key, value) in map {
        builder.add_leaf(Nibbles::unpack(key), value);
    }
    builder.root()
}

/// Checks the proof of a key, and, where no key is a prefix of another, with `alloy-trie`, which
/// knows no values of branches.
fn check_proof(trie: &MemoryTrie<KeccakMpt>, shape: Shape, key: &[u8]) {
    let proof: Vec<_> = trie.prove(key).unwrap().into_iter().map(Into::into).collect();
    let value = trie.get(key).map(<[u8]>::to_vec);
    assert_eq!(terrane_mpt::verify_proof(trie.root(), key, &proof).unwrap(), value);
    // A root that is so short that it would be embedded is hashed all the same, which `alloy-trie`
    // does not know.
    if matches!(shape, Shape::Ragged)
        || proof.first().is_some_and(|node: &alloy_primitives::Bytes| node.len() < 32)
    {
        return;
    }
    verify_proof(trie.root(), Nibbles::unpack(key), value, &proof)
        .unwrap_or_else(|error| panic!("proof of {key:02x?}: {error}"));
}

fn run(name: &str, shape: Shape) {
    for_each_seed(name, by_effort(12, 200), |rng, _seed| {
        let mut trie = MemoryTrie::<KeccakMpt>::default();
        let mut map = Map::new();
        let most = 1 + rng.below(20);
        for _ in 0..12 {
            let mut batch = Map::new();
            let deletes = rng.below(10);
            for _ in 0..=rng.below(most) {
                let fresh = key(shape, rng);
                let present = (!map.is_empty()).then(|| map.keys().nth(rng.index(map.len())));
                let key = if rng.chance(1, 2) { present.flatten().cloned() } else { None };
                let value = value(shape, rng);
                let value = if rng.below(10) < deletes { Vec::new() } else { value };
                batch.insert(key.unwrap_or(fresh), value);
            }

            let changes: Vec<_> = batch
                .into_iter()
                .map(|(key, value)| (key, (!value.is_empty()).then_some(value)))
                .collect();
            for (key, value) in changes.clone() {
                match value {
                    Some(value) => drop(map.insert(key, value)),
                    None => drop(map.remove(&key)),
                }
            }
            let root = trie.apply(&changes).unwrap();
            assert_eq!(root, naive::root(&map));
            trie.verify().unwrap();

            if !matches!(shape, Shape::Ragged) {
                assert_eq!(root, alloy_root(&map));
            }
            for (key, _) in &changes {
                check_proof(&trie, shape, key);
            }
            check_proof(&trie, shape, &key(shape, rng));
        }
    });
}

#[test]
fn keys_that_are_prefixes_of_others() {
    run("keys_that_are_prefixes_of_others", Shape::Ragged);
}

#[test]
fn embedded_nodes() {
    run("embedded_nodes", Shape::Short);
}

#[test]
fn keys_that_share_many_digits() {
    run("keys_that_share_many_digits", Shape::Close);
}
