//! The bytes and hashes of nodes, written from the rules alone: a map is hashed node by node, and
//! nothing is shared.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha512};
use terrane_radix::{NodeHash, Root};

/// Values by address.
pub(super) type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// The head of a value. Values of 65,536 to 1,048,575 bytes have one that is longer than need be.
fn value_head(len: usize) -> Vec<u8> {
    let number = |first: u8, bytes: usize| {
        let mut head = vec![first];
        head.extend((0..bytes).rev().map(|byte| (len >> (8 * byte)) as u8));
        head
    };
    match len {
        0..24 => vec![0x40 + len as u8],
        24..256 => number(0x58, 1),
        256..65_536 => number(0x59, 2),
        1_048_576..4_294_967_296 => number(0x5a, 4),
        // From 65,536 to 1,048,575, and from 2^32 on.
        _ => number(0x5b, 8),
    }
}

/// The bytes of a node: its children in the order of their tokens, and its value.
pub(super) fn node_bytes(children: &[(u8, NodeHash)], value: Option<&[u8]>) -> Vec<u8> {
    let mut out = vec![0xa2, 0x61, b'c'];
    match children.len() {
        n @ 0..24 => out.push(0xa0 + n as u8),
        n @ 24..256 => out.extend([0xb8, n as u8]),
        _ => out.extend([0xb9, 1, 0]),
    }

    for (token, hash) in children {
        out.push(0x62);
        out.extend(format!("{token:02x}").bytes());
        out.extend([0x78, 0x40]);
        out.extend(hash.to_string().bytes());
    }

    out.extend([0x61, b'v']);
    match value {
        None => out.push(0xf6),
        Some(value) => {
            out.extend(value_head(value.len()));
            out.extend(value);
        }
    }

    out
}

/// The hash of the node at `path`; it and all below it go to `nodes`.
pub(super) fn nodes_of(state: &State, path: &[u8], nodes: &mut BTreeSet<NodeHash>) -> NodeHash {
    let mut tokens = BTreeSet::new();
    for address in state.range(path.to_vec()..).map(|(address, _)| address) {
        if !address.starts_with(path) {
            break;
        }
        tokens.extend(address.get(path.len()).copied());
    }

    let children: Vec<(u8, NodeHash)> = tokens
        .into_iter()
        .map(|token| (token, nodes_of(state, &[path, &[token]].concat(), nodes)))
        .collect();
    let digest = Sha512::digest(node_bytes(&children, state.get(path).map(Vec::as_slice)));
    let hash = NodeHash(digest[..32].try_into().unwrap());
    nodes.insert(hash);

    hash
}

/// The root of a map.
pub(super) fn root_of(state: &State) -> Root {
    nodes_of(state, &[], &mut BTreeSet::new())
}
