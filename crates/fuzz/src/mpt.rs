//! Targets of the Ethereum state: nodes and proofs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use terrane_mpt::{AccountProof, B256, Bytes, KeccakMpt, MemoryTrie, Path, Record, verify_proof};

use crate::input::Input;

/// A trie with short keys, so that leaves are embedded and keys end on the way to others' parents.
struct Honest {
    trie: MemoryTrie<KeccakMpt>,
    root: B256,
    content: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// One of 200 keys of one length, whose paths share much.
fn key_of(number: u8) -> Vec<u8> {
    vec![0x11 * (number % 5), number / 5 % 8, 0x10 | (number / 40 % 5)]
}

static HONEST: LazyLock<Honest> = LazyLock::new(|| {
    let content: BTreeMap<_, _> =
        (0..120_u8).map(|n| (key_of(n), vec![n; 1 + usize::from(n) % 40])).collect();
    let changes: Vec<_> =
        content.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    let mut trie = MemoryTrie::default();
    let root = trie.apply(&changes).expect("a trie in memory");
    Honest { trie, root, content }
});

/// Splits bytes into nodes, each behind its length.
fn nodes_of(input: &mut Input<'_>) -> Vec<Bytes> {
    let mut nodes = Vec::new();
    while !input.is_empty() && nodes.len() < 64 {
        let count = input.byte().into();
        nodes.push(Bytes::copy_from_slice(input.bytes(count)));
    }
    nodes
}

/// Any nodes are walked, from the hash of the first.
pub(crate) fn mpt_proof(data: &[u8]) {
    let mut input = Input(data);
    let key = input.bytes(3).to_vec();
    let nodes = nodes_of(&mut input);
    let Some(first) = nodes.first() else { return };
    let root = alloy_primitives::keccak256(first);
    drop(verify_proof(root, &key, &nodes));
    let honest = &*HONEST;
    if let Ok(value) = verify_proof(honest.root, &key, &nodes) {
        assert_eq!(value.as_ref(), honest.content.get(&key), "{key:?}");
    }
}

/// Facts that a changed proof shows of the trusted root are so.
pub(crate) fn mpt_proof_forged(data: &[u8]) {
    let mut input = Input(data);
    let honest = &*HONEST;
    let key = key_of(input.byte());
    let mut nodes = honest.trie.prove(&key).expect("a trie in memory");
    // Nodes of another path beside, instead, or none.
    if input.byte().is_multiple_of(2) {
        let others = honest.trie.prove(&key_of(input.byte())).expect("a trie in memory");
        let from = input.index(nodes.len() + 1);
        nodes.splice(from.., others.into_iter().skip(from.saturating_sub(input.index(2))));
    }
    if input.byte().is_multiple_of(2) && !nodes.is_empty() {
        let at = input.index(nodes.len());
        input.damage(&mut nodes[at]);
    }
    let asked = if input.byte().is_multiple_of(2) { key } else { key_of(input.byte()) };

    let nodes: Vec<_> = nodes.into_iter().map(Bytes::from).collect();
    if let Ok(value) = verify_proof(honest.root, &asked, &nodes) {
        assert_eq!(value.as_ref(), honest.content.get(&asked), "{asked:?}");
    }
}

/// Any text is read as an answer of `eth_getProof`.
pub(crate) fn mpt_proof_json(data: &[u8]) {
    let Ok(value) = serde_json::from_slice(data) else { return };
    let Ok(proof) = AccountProof::from_json(&value) else { return };
    let written = AccountProof::from_json(&proof.to_json()).expect("what was written");
    assert_eq!(written, proof, "a proof is read as it was written");
    drop(proof.verify(HONEST.root));
}

/// Any bytes are read as the record of a node.
pub(crate) fn mpt_record(data: &[u8]) {
    let mut input = Input(data);
    let path = Path::of_key(input.bytes(3), 4);
    let rest = input.0;
    let Ok(record) = Record::from_bytes::<KeccakMpt>(&path, rest) else { return };
    assert_eq!(&record.to_bytes()[..], rest, "a record has one encoding");
}
