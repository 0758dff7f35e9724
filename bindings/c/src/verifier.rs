//! Proofs, checked against a root that the caller trusts. No store is needed, and no I/O is done.

use terrane::mpt::{B256, Bytes};
use terrane::radix::{Address, NodeHash};

use crate::bytes::{Rows, slice};
use crate::error::{Failure, guard, terrane_code};
use crate::view::answer_rows;

/// Bytes of a root of the Ethereum state.
const MPT_ROOT_BYTES: usize = 32;

/// Checks a proof of a radix state against `root` and gives the values of `count` addresses, which
/// must be those of the proof: rows, as keys of `terrane_view_get_many`. Answers are as there;
/// an address without a value is not found. A proof of anything else is `TERRANE_INVALID_PROOF`.
///
/// # Safety
/// The contract of `terrane_view_get_many`; `root` is valid for `root_len` bytes, `proof` for
/// `proof_len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_radix_verify(
    root: *const u8,
    root_len: usize,
    proof: *const u8,
    proof_len: usize,
    count: usize,
    addresses: *const u8,
    address_offsets: *const usize,
    values: *mut u8,
    capacity: usize,
    value_offsets: *mut usize,
    found: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let root = unsafe { slice(root, root_len) }?;
        let root = <[u8; 32]>::try_from(root).map(NodeHash);
        let root = root.map_err(|_| Failure::bad_input("a radix root has 32 bytes"))?;
        // SAFETY: the caller keeps the contract.
        let proof = unsafe { slice(proof, proof_len) }?;
        // SAFETY: the caller keeps the contract.
        let rows = unsafe { Rows::new(count, addresses, address_offsets) }?;
        let addresses: Result<Vec<Address>, _> = rows.iter().map(Address::new).collect();
        let addresses = addresses.map_err(|error| Failure::bad_input(error.to_string()))?;
        let proven = terrane::radix::verify_proof(&root, proof, &addresses);
        let proven = proven.map_err(|error| Failure::proof(&error))?;
        // SAFETY: the caller keeps the contract.
        unsafe { answer_rows(&proven, (values, capacity), value_offsets, found) }
    })
}

/// Checks the nodes on the path of a key of a Merkle-Patricia trie, from the root down, against
/// `root` of 32 bytes, and gives the value of the key: answers as of one key of
/// `terrane_view_get_many`. Nodes are rows. Keys are those of the trie: a secure trie has hashed
/// ones. Nodes that prove neither a value nor its absence are `TERRANE_INVALID_PROOF`.
///
/// # Safety
/// The contract of `terrane_view_get_many`; `root` is valid for 32 bytes, `key` for `key_len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_mpt_verify(
    root: *const u8,
    key: *const u8,
    key_len: usize,
    node_count: usize,
    nodes: *const u8,
    node_offsets: *const usize,
    value: *mut u8,
    capacity: usize,
    value_offsets: *mut usize,
    found: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let root = B256::from_slice(unsafe { slice(root, MPT_ROOT_BYTES) }?);
        // SAFETY: the caller keeps the contract.
        let key = unsafe { slice(key, key_len) }?;
        // SAFETY: the caller keeps the contract.
        let rows = unsafe { Rows::new(node_count, nodes, node_offsets) }?;
        let nodes: Vec<Bytes> = rows.iter().map(Bytes::copy_from_slice).collect();
        let proven = terrane::mpt::verify_proof(root, key, &nodes);
        let proven = proven.map_err(|error| Failure::proof(&error))?;
        // SAFETY: the caller keeps the contract.
        unsafe { answer_rows(&[proven], (value, capacity), value_offsets, found) }
    })
}
