//! A naive trie: the root of a map by the definition, from all entries each time.
//!
//! It shares no code with the crate but the types of hashes.

use std::collections::BTreeMap;

use alloy_primitives::{B256, keccak256};
use alloy_rlp::{Encodable, Header};

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The root of the Merkle-Patricia trie of `map`.
pub(crate) fn root(map: &Map) -> B256 {
    let entries: Vec<(Vec<u8>, &[u8])> =
        map.iter().map(|(key, value)| (nibbles(key), value.as_slice())).collect();
    keccak256(if entries.is_empty() { vec![0x80] } else { node(&entries, 0) })
}

fn nibbles(key: &[u8]) -> Vec<u8> {
    key.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect()
}

/// The encoding of the node of `entries`, which share `depth` nibbles.
fn node(entries: &[(Vec<u8>, &[u8])], depth: usize) -> Vec<u8> {
    if let [(path, value)] = entries {
        return list(&[string(&hex_prefix(&path[depth..], true)), string(value)]);
    }
    let first = &entries[0].0;
    let is_shared = |at: usize| entries.iter().all(|(path, _)| path.get(at) == first.get(at));
    let shared = (depth..first.len()).take_while(|at| is_shared(*at)).count();
    if 0 < shared {
        let child = reference(node(entries, depth + shared));
        return list(&[string(&hex_prefix(&first[depth..depth + shared], false)), child]);
    }

    let mut items = Vec::new();
    for nibble in 0..16 {
        // The entries are sorted, so those of a nibble stand together.
        let start = entries.partition_point(|(path, _)| path.get(depth) < Some(&nibble));
        let end = entries.partition_point(|(path, _)| path.get(depth) <= Some(&nibble));
        let below = &entries[start..end];
        let is_empty = below.is_empty();
        items.push(if is_empty { string(&[]) } else { reference(node(below, depth + 1)) });
    }
    let own = entries.iter().find(|(path, _)| path.len() == depth);
    items.push(string(own.map_or(&[], |(_, value)| value)));
    list(&items)
}

fn reference(node: Vec<u8>) -> Vec<u8> {
    if node.len() < 32 { node } else { string(keccak256(node).as_slice()) }
}

fn hex_prefix(nibbles: &[u8], is_leaf: bool) -> Vec<u8> {
    let mut digits = vec![if is_leaf { 2 } else { 0 }];
    if nibbles.len() % 2 == 1 {
        digits[0] += 1;
    } else {
        digits.push(0);
    }
    digits.extend(nibbles);
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    bytes.encode(&mut out);
    out
}

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    let payload = items.concat();
    let mut out = Vec::new();
    Header { list: true, payload_length: payload.len() }.encode(&mut out);
    out.extend(payload);
    out
}
