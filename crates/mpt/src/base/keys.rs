//! Keys of a state: the Keccak-256 of addresses and slots, many side by side; and keys of nodes.

use alloy_primitives::{Address, B256};
use smallvec::SmallVec;
use terrane_hash::keccak256;

/// The key of a node in the table of its trie. Memory of its own is taken for long paths only.
pub(crate) type NodeKey = SmallVec<[u8; 40]>;

/// Bytes of a hash.
const HASH_BYTES: usize = keccak256::HASH_BYTES;

/// The hashes of keys, in their order.
pub(crate) fn hash_all<'k>(keys: impl Iterator<Item = &'k [u8]>) -> Vec<B256> {
    let keys: Vec<&[u8]> = keys.collect();
    let mut hashes = vec![[0; HASH_BYTES]; keys.len()];
    keccak256::hash_many(&keys, &mut hashes);
    hashes.into_iter().map(B256::new).collect()
}

/// The hashes of addresses, in their order.
pub(crate) fn hash_addresses(addresses: &[Address]) -> Vec<B256> {
    hash_all(addresses.iter().map(|address| address.as_slice()))
}

/// The hashes of the address and the slot of each pair. An address that several pairs in a row
/// share is hashed once.
pub(crate) fn hash_slots(slots: &[(Address, B256)]) -> impl Iterator<Item = (B256, B256)> {
    let mut addresses: Vec<Address> = slots.iter().map(|(address, _)| *address).collect();
    addresses.dedup();
    let owners = hash_addresses(&addresses);
    let hashes = hash_all(slots.iter().map(|(_, slot)| slot.as_slice()));

    let mut at = 0;
    slots.iter().zip(hashes).map(move |((address, _), hash)| {
        at += usize::from(addresses[at] != *address);
        (owners[at], hash)
    })
}
