//! Ethereum's Merkle-Patricia trie: nibbles, RLP, Keccak-256.
//!
//! ```text
//! leaf       RLP list: hex-prefix of the suffix with the flag of a leaf, value
//! extension  RLP list: hex-prefix of the digits, reference
//! branch     RLP list: 16 references or "", value or ""
//! ```
//!
//! A reference is the hash as a string of 32 bytes, or an embedded node as it is.

use alloy_primitives::{B256, keccak256};
use alloy_rlp::{Encodable, Header};

use crate::base::account::EMPTY_STORAGE_ROOT;
use crate::scheme::scheme::{CHILDREN_MAX, HASH_BYTES, Reference, Scheme, TableScheme};

/// The root of an empty trie: the hash of the RLP of an empty string.
pub const EMPTY_ROOT: B256 = EMPTY_STORAGE_ROOT;

/// Bit of the first nibble of a hex-prefix: the node is a leaf.
const LEAF_FLAG: u8 = 2;

/// Bit of the first nibble of a hex-prefix: the count of digits is odd.
const ODD_FLAG: u8 = 1;

/// Ethereum's Merkle-Patricia trie.
#[derive(Debug, Clone, Copy)]
pub enum KeccakMpt {}

impl Scheme for KeccakMpt {
    const DIGIT_BITS: u32 = 4;
    const EMBED_BELOW: usize = HASH_BYTES;
    const EMPTY_ROOT: B256 = EMPTY_ROOT;

    fn hash(encoding: &[u8]) -> B256 {
        keccak256(encoding)
    }

    fn hash_many(encodings: &[&[u8]], hashes: &mut [[u8; HASH_BYTES]]) {
        terrane_hash::keccak256::hash_many(encodings, hashes);
    }

    fn leaf(suffix: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let prefix = hex_prefix(suffix, LEAF_FLAG);
        let payload_length = prefix.as_slice().length() + value.length();
        Header { list: true, payload_length }.encode(out);
        prefix.as_slice().encode(out);
        value.encode(out);
    }

    fn extension(digits: &[u8], child: &Reference, out: &mut Vec<u8>) {
        let prefix = hex_prefix(digits, 0);
        let payload_length = prefix.as_slice().length() + reference_length(child);
        Header { list: true, payload_length }.encode(out);
        prefix.as_slice().encode(out);
        put_reference(child, out);
    }

    fn branch(
        children: &[Option<Reference>; CHILDREN_MAX],
        value: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) {
        let value = value.unwrap_or_default();
        let lengths = children.iter().map(|child| child.as_ref().map_or(1, reference_length));
        let payload_length = lengths.sum::<usize>() + value.length();
        Header { list: true, payload_length }.encode(out);

        for child in children {
            match child {
                Some(child) => put_reference(child, out),
                None => out.push(alloy_rlp::EMPTY_STRING_CODE),
            }
        }
        value.encode(out);
    }
}

/// The secure trie: keys are hashed, values are as they are.
impl TableScheme for KeccakMpt {
    const PATH_BYTES: usize = HASH_BYTES;
    const PROVES_BY_NEIGHBOUR: bool = false;

    fn hash_key(key: &[u8]) -> B256 {
        keccak256(key)
    }

    fn leaf_value(_key: &B256, value: &[u8]) -> Vec<u8> {
        value.to_vec()
    }
}

/// The digits as bytes, after a nibble of flags and, if they are even in number, a nibble 0.
fn hex_prefix(digits: &[u8], flags: u8) -> Vec<u8> {
    let is_odd = !digits.len().is_multiple_of(2);
    let mut bytes = Vec::with_capacity(digits.len() / 2 + 1);
    let (first, rest) = if is_odd { (digits[0], &digits[1..]) } else { (0, digits) };
    let flags = flags | if is_odd { ODD_FLAG } else { 0 };
    bytes.push(flags << 4 | first);
    bytes.extend(rest.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]));
    bytes
}

fn reference_length(reference: &Reference) -> usize {
    match reference.as_hash() {
        Some(hash) => hash.length(),
        None => reference.as_bytes().len(),
    }
}

fn put_reference(reference: &Reference, out: &mut Vec<u8>) {
    match reference.as_hash() {
        Some(hash) => hash.encode(out),
        None => out.extend_from_slice(reference.as_bytes()),
    }
}
