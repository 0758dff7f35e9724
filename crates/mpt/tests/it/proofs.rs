//! Proofs of accounts and slots.
//!
//! Goal: published answers of `eth_getProof` verify against the roots of their blocks; proofs of
//! random states verify here and with `alloy-trie`, present or absent; and no change of a proof
//! verifies a false fact. Method: the published files, random states, and seeded mutations of
//! nodes, fields and their order, several at once.

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_rlp::{Header, PayloadView};
use alloy_trie::proof::verify_proof as verify_with_alloy;
use nybbles::Nibbles;
use serde_json::Value;
use terrane_mpt::{Account, AccountProof, EMPTY_ROOT, ProofError, verify_proof};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::chain::{Model, ModelAccount, apply, commit, draw_block, memory_state, root};

/// Hashes and state roots of the blocks of the published chain.
fn published_blocks() -> Vec<(B256, B256)> {
    let mut bytes = &include_bytes!("../vectors/chain.rlp")[..];
    let mut blocks = Vec::new();
    let items = |mut item: &'static [u8]| match Header::decode_raw(&mut item).unwrap() {
        PayloadView::List(items) => items,
        PayloadView::String(_) => panic!("a string in the place of a list"),
    };
    while !bytes.is_empty() {
        let start = bytes;
        let header = Header::decode(&mut bytes).unwrap();
        bytes = &bytes[header.payload_length..];
        let block = &start[..start.len() - bytes.len()];
        let head = items(block)[0];
        let root = items(head)[3];
        blocks.push((keccak256(head), B256::from_slice(&root[1..])));
    }
    blocks
}

/// Checks a proof with `alloy-trie`.
fn check_with_alloy(proof: &AccountProof, root: B256) {
    let check = |root: B256, key: B256, value: Option<Vec<u8>>, nodes: &[Bytes]| {
        verify_with_alloy(root, Nibbles::unpack(key), value, nodes).unwrap();
    };
    let leaf = proof.account.map(|account| account.leaf_value());
    check(root, keccak256(proof.address), leaf, &proof.nodes);
    let storage_root = proof.account.map_or(EMPTY_ROOT, |account| account.storage_root);
    for slot in &proof.slots {
        let value = (!slot.value.is_zero()).then(|| alloy_rlp::encode(slot.value));
        check(storage_root, keccak256(slot.slot), value, &slot.nodes);
    }
}

#[test]
fn published_answers_verify_against_the_roots_of_their_blocks() {
    let blocks = published_blocks();
    let files = [
        include_str!("../vectors/eth_getProof/get-account-proof-blockhash.io"),
        include_str!("../vectors/eth_getProof/get-account-proof-default-block.io"),
        include_str!("../vectors/eth_getProof/get-account-proof-latest.io"),
        include_str!("../vectors/eth_getProof/get-account-proof-with-storage.io"),
    ];
    for file in files {
        let line = |mark: &str| file.lines().find_map(|line| line.strip_prefix(mark)).unwrap();
        let request: Value = serde_json::from_str(line(">> ")).unwrap();
        let answer: Value = serde_json::from_str(line("<< ")).unwrap();
        let hash = request["params"][2].as_str().and_then(|text| text.parse::<B256>().ok());
        let block = match hash {
            Some(hash) => blocks.iter().find(|block| block.0 == hash).unwrap(),
            None => blocks.last().unwrap(),
        };

        let proof = AccountProof::from_json(&answer["result"]).unwrap();
        proof.verify(block.1).unwrap();
        check_with_alloy(&proof, block.1);
        assert!(matches!(proof.verify(blocks[0].1), Err(ProofError::WrongHash { index: 0 })));
        // Numbers of slots have leading zeros in one answer.
        let mut written = proof.to_json();
        let mut read = answer["result"].clone();
        for json in [&mut written, &mut read] {
            for slot in json["storageProof"].as_array_mut().unwrap() {
                let key = slot["key"].as_str().unwrap()[2..].trim_start_matches('0').to_owned();
                slot["key"] = Value::String(key);
            }
        }
        assert_eq!(written, read);
    }
}

fn draw_model(rng: &mut impl Draw) -> Model {
    let mut model = Model::new();
    for _ in 0..=rng.below(5) {
        let steps = draw_block(rng, &model);
        apply(&mut model, &steps);
    }
    model
}

/// Whether all that a proof states is so.
fn is_true(proof: &AccountProof, model: &Model) -> bool {
    let account = model.get(&proof.address);
    proof.account == account.map(ModelAccount::account)
        && proof.slots.iter().all(|slot| {
            let value = account.and_then(|account| account.slots.get(&slot.slot));
            value.copied().unwrap_or_default() == slot.value
        })
}

#[test]
fn proofs_of_random_states_verify_and_changed_ones_prove_nothing_false() {
    let name = "proofs_of_random_states_verify_and_changed_ones_prove_nothing_false";
    for_each_seed(name, by_effort(4, 100), |rng, _| {
        let model = draw_model(rng);
        let mut state = memory_state();
        let steps = crate::chain::difference(&Model::new(), &model);
        drop(commit(&mut state, &steps, 0).unwrap());
        let root = root(&model);
        let slots: Vec<B256> = (0..14_u64).map(|slot| B256::from(U256::from(slot))).collect();

        let mut proofs = Vec::new();
        for address in (0..44).map(Address::repeat_byte) {
            let proof = state.prove(&address, &slots).unwrap();
            proof.verify(root).unwrap();
            check_with_alloy(&proof, root);
            assert!(is_true(&proof, &model));
            assert_eq!(AccountProof::from_json(&proof.to_json()).unwrap(), proof);
            proofs.push(proof);
        }

        for _ in 0..by_effort(400, 2_000) {
            let mut proof = rng.pick(&proofs).clone();
            let other = rng.pick(&proofs).clone();
            for _ in 0..=rng.below(3) {
                mutate(rng, &mut proof, &other);
            }
            if proof.verify(root).is_ok() {
                assert!(is_true(&proof, &model), "{proof:?}");
            }
        }
    });
}

/// Changes one thing of a proof.
fn mutate(rng: &mut impl Draw, proof: &mut AccountProof, other: &AccountProof) {
    let slot = rng.index(proof.slots.len());
    match rng.below(9) {
        0 => proof.address = Address::repeat_byte(rng.below(44) as u8),
        1 => proof.account = other.account,
        2 => {
            let account = proof.account.unwrap_or_default();
            proof.account = Some(Account::new(account.nonce + rng.below(2), account.balance));
        }
        3 => proof.slots[slot].value = U256::from(rng.below(3)),
        4 => proof.slots[slot].slot = B256::from(U256::from(rng.below(14))),
        5 => proof.slots[slot].nodes = rng.pick(&other.slots).nodes.clone(),
        6 => mutate_nodes(rng, &mut proof.nodes, &other.nodes),
        _ => {
            let others = rng.pick(&other.slots).nodes.clone();
            mutate_nodes(rng, &mut proof.slots[slot].nodes, &others);
        }
    }
}

fn mutate_nodes(rng: &mut impl Draw, nodes: &mut Vec<Bytes>, others: &[Bytes]) {
    if nodes.is_empty() {
        nodes.extend_from_slice(others);
        return;
    }
    let at = rng.index(nodes.len());
    match rng.below(6) {
        0 => drop(nodes.remove(at)),
        1 => nodes.insert(at, nodes[at].clone()),
        2 => nodes.truncate(at),
        3 if !others.is_empty() => nodes[at] = rng.pick(others).clone(),
        4 => nodes.swap(0, at),
        _ => {
            let mut bytes = nodes[at].to_vec();
            let bit = rng.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            nodes[at] = bytes.into();
        }
    }
}

#[test]
fn a_state_without_accounts_proves_absence() {
    let state = memory_state();
    let proof = state.prove(&Address::ZERO, &[B256::ZERO]).unwrap();
    proof.verify(EMPTY_ROOT).unwrap();
    assert_eq!((proof.account, proof.nodes.len()), (None, 0));
    assert!(matches!(proof.verify(B256::ZERO), Err(ProofError::TooShort { nodes: 0 })));
}

/// The list of these items, which are encoded already.
fn list_of(items: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let payload: Vec<u8> = items.iter().flat_map(AsRef::as_ref).copied().collect();
    let mut out = Vec::new();
    Header { list: true, payload_length: payload.len() }.encode(&mut out);
    out.extend(payload);
    out
}

#[test]
fn bytes_that_are_no_nodes_are_refused() {
    // Nodes by their own hash, so that only their form is wrong.
    let list = |items: &[&[u8]]| list_of(&items.iter().map(alloy_rlp::encode).collect::<Vec<_>>());
    let key = [0x12; 32];
    let mut trailing = list(&[&[0x20; 33], b"value"]);
    trailing.push(0);
    for node in [
        vec![],
        list(&[]),
        list(&[b"one"]),
        list(&[b"one", b"two", b"three"]),
        list(&[&[0x40], b"value"]),
        list(&[&[0x21; 33], b"value"])[1..].to_vec(),
        list(&[&[0x20, 0x12], b""]),
        list(&[&[0x00], &[7; 32]]),
        list(&[&[0x11], &[7; 31]]),
        list(&[&[0x11], b""]),
        list(&[&[7; 5][..]; 17]),
        trailing,
    ] {
        let root = keccak256(&node);
        let proof = [Bytes::from(node.clone())];
        let refused = verify_proof(root, &key, &proof);
        assert!(matches!(refused, Err(ProofError::NotANode { index: 0 })), "{node:02x?}");
    }
    let leaf = list(&[&[&[0x20], &key[..]].concat(), b"value"]);
    let proof = [Bytes::from(leaf.clone())];
    let value = verify_proof(keccak256(&leaf), &key, &proof).unwrap();
    assert_eq!(value.as_deref(), Some(&b"value"[..]));
    let twice = [proof[0].clone(), proof[0].clone()];
    let refused = verify_proof(keccak256(&leaf), &key, &twice);
    assert!(matches!(refused, Err(ProofError::TooLong { surplus: 1 })));
}

/// A node of 32 bytes or more stands in its parent by its hash, or the trie is another one's.
#[test]
fn a_node_that_is_too_long_to_stand_in_its_parent_is_refused_there() {
    let branch = |digit: usize, child: &[u8]| {
        let mut items = [&[alloy_rlp::EMPTY_STRING_CODE][..]; 17];
        items[digit] = child;
        list_of(&items)
    };

    let key = [0x12; 32];
    for (value, len) in [(&[7_u8; 11][..], 31), (&[7; 12], 32), (&[7; 13], 33)] {
        let leaf = list_of(&[&[0x3f], &alloy_rlp::encode(value)[..]]);
        let child = branch(5, &leaf);
        assert_eq!(child.len(), len);
        let node = branch(1, &child);
        let found = verify_proof(keccak256(&node), &key, &[Bytes::from(node)]);
        if len < 32 {
            assert_eq!(found.unwrap(), None);
        } else {
            assert!(matches!(found, Err(ProofError::NotANode { index: 0 })));
        }
    }
}
