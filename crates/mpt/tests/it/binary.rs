//! The binary tree of EIP-7864.
//!
//! Goal: the root is that of the specification, whatever led to the values; proofs verify, and no
//! changed or forged proof verifies a false fact; a committed table has the root of its hashed
//! entries. Method: seeded changes against a map and a naive tree, which follows the text of the
//! specification and shares no code with the crate; stems with few set bits, so that shared
//! prefixes are long.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256, b256};
use terrane_io::{Disk, MemoryDisk};
use terrane_lsm::{Store, StoreOptions, WriteBatch};
use terrane_mpt::{
    BinaryTree, CommittedTable, Error, MemoryBinaryTree, StemGroup, TableScheme,
    verify_binary_proof,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

type Map = BTreeMap<B256, B256>;

/// The hash of the specification.
fn hash(bytes: &[u8]) -> B256 {
    if bytes == [0; 64] {
        return B256::ZERO;
    }
    B256::from(*blake3::hash(bytes).as_bytes())
}

/// The root of the stems of `values`, which share `depth` bits.
fn naive_node(values: &Map, depth: usize) -> B256 {
    let Some(first) = values.keys().next() else { return B256::ZERO };
    if values.keys().all(|key| key[..31] == first[..31]) {
        let mut level: Vec<B256> = (0..=255)
            .map(|index| {
                let mut key = *first;
                key[31] = index;
                values.get(&key).map_or(B256::ZERO, |value| hash(value.as_slice()))
            })
            .collect();
        while level.len() > 1 {
            level = level.chunks(2).map(|pair| hash(&[pair[0].0, pair[1].0].concat())).collect();
        }
        return hash(&[&first[..31], &[0], level[0].as_slice()].concat());
    }
    let has_bit = |key: &B256| key[depth / 8] >> (7 - depth % 8) & 1 == 1;
    let (right, left): (Map, Map) = values.iter().partition(|(key, _)| has_bit(key));
    hash(&[naive_node(&left, depth + 1).0, naive_node(&right, depth + 1).0].concat())
}

fn naive_root(values: &Map) -> B256 {
    naive_node(values, 0)
}

/// A key whose stem has few set bits.
fn key(rng: &mut impl Draw) -> B256 {
    let mut key = B256::ZERO;
    for _ in 0..rng.below(3) {
        key[*rng.pick(&[0, 0, 1, 14, 30])] ^= *rng.pick(&[1, 2, 0x80, 0xff]);
    }
    key[31] = *rng.pick(&[0, 1, 2, 64, 127, 128, 255]);
    key
}

fn value(rng: &mut impl Draw) -> B256 {
    let value = B256::from_slice(&rng.bytes(32));
    // Zero is a value, and not its absence.
    if rng.chance(1, 8) { B256::ZERO } else { value }
}

#[test]
fn the_published_root_is_computed() {
    let mut tree = MemoryBinaryTree::default();
    let mut values = Map::new();
    for (number, first) in (1..).zip([0x00, 0x80, 0x01, 0x81]) {
        let mut key = B256::ZERO;
        key[0] = first;
        let mut value = B256::ZERO;
        value[0] = number;
        values.insert(key, value);
        tree.apply(&[(key, Some(value))]).unwrap();
    }
    let expected = b256!("e93c209026b8b00d76062638102ece415028bd104e1d892d5399375a323f2218");
    assert_eq!(naive_root(&values), expected);
    assert_eq!(tree.root(), expected);
}

#[test]
fn the_root_is_that_of_the_values_whatever_led_to_them() {
    let name = "the_root_is_that_of_the_values_whatever_led_to_them";
    for_each_seed(name, by_effort(6, 200), |rng, _| {
        let mut tree = MemoryBinaryTree::default();
        let mut model = Map::new();
        for _ in 0..10 {
            let mut changes = BTreeMap::new();
            for _ in 0..rng.below(12) {
                let value = (!rng.chance(1, 3)).then(|| value(rng));
                changes.insert(key(rng), value);
            }
            for (key, value) in &changes {
                match value {
                    Some(value) => drop(model.insert(*key, *value)),
                    None => drop(model.remove(key)),
                }
            }
            let changes: Vec<_> = changes.into_iter().collect();
            let root = tree.apply(&changes).unwrap();
            assert_eq!(root, naive_root(&model));
            assert_eq!(root, tree.root());
            tree.verify().unwrap();
            check_proofs(rng, &tree, &model);
        }

        let all: Vec<_> = model.keys().map(|key| (*key, None)).collect();
        assert_eq!(tree.apply(&all).unwrap(), B256::ZERO);
        assert!(tree.prove(&B256::ZERO).unwrap().is_empty());
    });
    let twice = [(B256::ZERO, None), (B256::ZERO, Some(B256::ZERO))];
    let refused = MemoryBinaryTree::default().apply(&twice);
    assert!(matches!(refused, Err(Error::KeyOrder { index: 1 })));
}

/// Proofs of present and absent keys, and the same with changes.
fn check_proofs(rng: &mut impl Draw, tree: &MemoryBinaryTree, model: &Map) {
    for _ in 0..8 {
        let (asked, other) = (key(rng), key(rng));
        let proof = tree.prove(&asked).unwrap();
        let fact = model.get(&asked).copied();
        assert_eq!(tree.get(&asked), fact);
        assert_eq!(verify_binary_proof(tree.root(), &asked, &proof), Ok(fact));

        // The proof of another key proves a true fact of this one, or nothing.
        if let Ok(found) = verify_binary_proof(tree.root(), &other, &proof) {
            assert_eq!(found, model.get(&other).copied());
        }
        for _ in 0..8 {
            let forged = changed(rng, &proof);
            if let Ok(found) = verify_binary_proof(tree.root(), &asked, &forged) {
                assert_eq!(found, fact, "{forged:?}");
            }
        }
    }
}

/// A proof with one to three changes: bits, nodes that are left out, doubled, swapped or cut.
fn changed(rng: &mut impl Draw, proof: &[Bytes]) -> Vec<Bytes> {
    let mut nodes: Vec<Vec<u8>> = proof.iter().map(|node| node.to_vec()).collect();
    for _ in 0..=rng.below(3) {
        if nodes.is_empty() {
            break;
        }
        let at = rng.index(nodes.len());
        match rng.below(6) {
            0 => drop(nodes.remove(at)),
            1 => nodes.insert(at, nodes[at].clone()),
            2 => nodes.truncate(at),
            3 => {
                let length = rng.index(nodes[at].len() + 1);
                nodes[at].truncate(length);
            }
            4 => {
                let with = rng.index(nodes.len());
                nodes.swap(at, with);
            }
            _ if nodes[at].is_empty() => {}
            _ => {
                let bit = rng.index(nodes[at].len() * 8);
                nodes[at][bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
    nodes.into_iter().map(Bytes::from).collect()
}

/// Goal: the nodes of a group are no internal nodes of the tree. Method: the proof of one that
/// reads the stem node, and the nodes of its values, as nodes with an empty side.
#[test]
fn nodes_inside_a_group_prove_no_absence() {
    let mut group = StemGroup::new([0; 31]);
    group.set(0, Some(B256::repeat_byte(7)));
    let mut tree = MemoryBinaryTree::default();
    let mut present = B256::ZERO;
    let root = tree.apply(&[(present, Some(B256::repeat_byte(7)))]).unwrap();
    assert_eq!(root, group.hash());

    // The stem node has a zero on the left, as an internal node with one child would.
    let mut level = hash(B256::repeat_byte(7).as_slice());
    let mut nodes = vec![Bytes::from(group.to_bytes())];
    for _ in 0..9 {
        let node = [level.as_slice(), &[0; 32]].concat();
        level = hash(&node);
        nodes.insert(0, node.into());
    }
    present[0] = 0x80;
    for first in 0..nodes.len() {
        let found = verify_binary_proof(root, &present, &nodes[first..]);
        assert!(matches!(found, Err(_) | Ok(None)), "{found:?}");
        let found = verify_binary_proof(root, &B256::ZERO, &nodes[first..]);
        assert!(matches!(found, Err(_) | Ok(Some(_))), "{found:?}");
    }
}

#[test]
fn groups_are_read_back_and_nothing_else_is() {
    for_each_seed("groups_are_read_back_and_nothing_else_is", 20, |rng, _| {
        let (stem, _) = StemGroup::split(&B256::from_slice(&rng.bytes(32)));
        let mut group = StemGroup::new(stem);
        assert!(group.is_empty() && StemGroup::from_bytes(&group.to_bytes()).is_none());
        for _ in 0..=rng.below(20) {
            group.set(rng.bytes(1)[0], Some(value(rng)));
        }
        let bytes = group.to_bytes();
        assert_eq!(StemGroup::from_bytes(&bytes), Some(group.clone()));
        assert_eq!(group.stem(), &stem);
        for length in 0..bytes.len() {
            let cut = StemGroup::from_bytes(&bytes[..length]);
            assert!(cut.is_none_or(|cut| cut.to_bytes().len() == length && 33 < length));
        }
        let mut doubled = bytes.clone();
        doubled.extend_from_slice(&bytes[bytes.len() - 33..]);
        assert_eq!(StemGroup::from_bytes(&doubled), None);
    });
}

/// The layout of an account in the tree, from the text of the specification.
#[test]
fn keys_and_values_of_accounts_are_laid_out_as_specified() {
    let address = Address::repeat_byte(0x42);
    let stem = |index: &[u8; 32]| {
        let mut bytes = [[0; 12].as_slice(), address.as_slice()].concat();
        bytes.extend_from_slice(index);
        hash(&bytes)
    };
    let expect = |key: B256, index: [u8; 32], sub_index: u8| {
        assert_eq!((&key[..31], key[31]), (&stem(&index)[..31], sub_index));
    };
    let header = [0; 32];
    expect(BinaryTree::basic_data_key(&address), header, 0);
    expect(BinaryTree::code_hash_key(&address), header, 1);
    expect(BinaryTree::slot_key(&address, &U256::ZERO), header, 64);
    expect(BinaryTree::slot_key(&address, &U256::from(63)), header, 127);
    expect(BinaryTree::code_chunk_key(&address, 0), header, 128);
    expect(BinaryTree::code_chunk_key(&address, 127), header, 255);

    let mut second = [0; 32];
    second[0] = 1;
    expect(BinaryTree::code_chunk_key(&address, 128), second, 0);
    let mut main = [0; 32];
    main[30] = 1;
    expect(BinaryTree::slot_key(&address, &U256::from(64)), main, 64);
    main[0] = 1;
    expect(BinaryTree::slot_key(&address, &U256::from(256)), main, 0);
    let mut last = [255; 32];
    last[30] = 0;
    last[31] = 1;
    expect(BinaryTree::slot_key(&address, &U256::MAX), last, 255);

    let basic = BinaryTree::basic_data(0x0102, &U256::from(0x0304), 0x05_0607).unwrap();
    let mut expected = B256::ZERO;
    expected[5..8].copy_from_slice(&[5, 6, 7]);
    expected[14..16].copy_from_slice(&[1, 2]);
    expected[30..].copy_from_slice(&[3, 4]);
    assert_eq!(basic, expected);
    assert_eq!(BinaryTree::basic_data(0, &U256::ZERO, 1 << 24), None);
    assert_eq!(BinaryTree::basic_data(0, &(U256::from(1) << 128), 0), None);

    // PUSH4 over the border of a chunk, and PUSH32 over more than one.
    let mut code = vec![0; 28];
    code.extend([0x63, 0x99, 0x98, 0x97, 0x96, 0x60, 128, 0x53]);
    let chunks = BinaryTree::code_chunks(&code);
    assert_eq!((chunks[0][0], &chunks[1][..6]), (0, &[2, 0x97, 0x96, 0x60, 128, 0x53][..]));
    let mut code = vec![0; 30];
    code.push(0x7f);
    code.extend([0x60; 33]);
    let pushed: Vec<u8> = BinaryTree::code_chunks(&code).iter().map(|chunk| chunk[0]).collect();
    assert_eq!(pushed, [0, 31, 1]);
    assert!(BinaryTree::code_chunks(&[]).is_empty());
}

#[test]
fn a_committed_table_has_the_root_of_its_hashed_entries() {
    for_each_seed(
        "a_committed_table_has_the_root_of_its_hashed_entries",
        by_effort(3, 60),
        |rng, _| {
            let disk: Arc<dyn Disk> = MemoryDisk::new();
            let options = StoreOptions::default().create_dir();
            let store = Store::open(disk, Path::new("/table"), &options).unwrap();
            let table = CommittedTable::<BinaryTree>::open_with_scheme(&store, "ledger").unwrap();
            assert_eq!(table.root().unwrap(), B256::ZERO);
            assert!(table.prove(b"nothing").unwrap().is_empty());

            let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            for _ in 0..8 {
                let mut changes = BTreeMap::new();
                for _ in 0..rng.below(20) {
                    let length = rng.index(3);
                    let key = rng.bytes(length);
                    let length = rng.index(40);
                    changes.insert(key, (!rng.chance(1, 3)).then(|| rng.bytes(length)));
                }
                for (key, value) in &changes {
                    match value {
                        Some(value) => drop(model.insert(key.clone(), value.clone())),
                        None => drop(model.remove(key)),
                    }
                }
                let mut batch = WriteBatch::new();
                let changes: Vec<_> = changes.into_iter().collect();
                let staged = table.stage(&changes, &mut batch).unwrap();
                drop(store.write_if(&batch, staged.commit).unwrap());

                let hashed: Map =
                    model.iter().map(|(key, value)| (hash(key), hash(value))).collect();
                assert_eq!(staged.root, naive_root(&hashed));
                assert_eq!(table.root().unwrap(), staged.root);
                assert_eq!(table.verify().unwrap(), model.len() as u64);
                for _ in 0..20 {
                    let length = rng.index(3);
                    let key = rng.bytes(length);
                    let proof = table.prove(&key).unwrap();
                    let fact = model.get(&key).map(|value| hash(value));
                    let hash = BinaryTree::hash_key(&key);
                    assert_eq!(verify_binary_proof(staged.root, &hash, &proof), Ok(fact));
                    let forged = changed(rng, &proof);
                    if let Ok(found) = verify_binary_proof(staged.root, &hash, &forged) {
                        assert_eq!(found, fact);
                    }
                }
            }
            let mut batch = WriteBatch::new();
            assert_eq!(table.stage_clear(&mut batch).root, B256::ZERO);
        },
    );
}
