//! Proofs, checked against a root that the caller trusts. No store is needed, and no I/O is done.

use terrane::context::{Hash, KindedHash, Proof, Rules};
use terrane::mpt::{B256, Bytes, CommittedTable};
use terrane::radix::{Address, NodeHash};

use crate::bytes::{Rows, answer_rows, hash, slice};
use crate::error::{Failure, Outcome, guard, terrane_code};

/// Addresses of a radix state.
pub fn radix_addresses(rows: Rows<'_>) -> Outcome<Vec<Address>> {
    let addresses: Result<_, _> = rows.iter().map(Address::new).collect();
    addresses.map_err(|error| Failure::bad_input(error.to_string()))
}

/// Steps of a path such as `data/contracts/a`.
pub fn steps(path: &[u8]) -> Vec<&[u8]> {
    path.split(|byte| *byte == b'/').filter(|step| !step.is_empty()).collect()
}

/// Checks a proof of a radix state against `root` and gives the values of `count` addresses, which
/// must be those of the proof, as rows. An address without a value is not found. A proof of
/// anything else is `TERRANE_INVALID_PROOF`. `root_len` is 32.
///
/// # Safety
/// Pointers are valid as their types, lengths and counts say, or null.
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
        let proven = terrane::radix::verify_proof(&root, proof, &radix_addresses(rows)?);
        let proven = proven.map_err(|error| Failure::proof(&error))?;
        // SAFETY: the caller keeps the contract.
        unsafe { answer_rows(proven, (values, capacity), value_offsets, found) }
    })
}

/// Checks the nodes on the path of a key of a Merkle-Patricia trie, from the root down, against
/// `root` of 32 bytes, and gives the value of the key: answers for one key. Nodes are rows. Keys
/// are those of the trie: a secure trie has hashed ones. Nodes that prove neither a value nor its
/// absence are `TERRANE_INVALID_PROOF`.
///
/// # Safety
/// Pointers are valid as their types, lengths and counts say, or null; `root` for 32 bytes.
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
        let root = B256::from(unsafe { hash(root) }?);
        // SAFETY: the caller keeps the contract.
        let key = unsafe { slice(key, key_len) }?;
        // SAFETY: the caller keeps the contract.
        let rows = unsafe { Rows::new(node_count, nodes, node_offsets) }?;
        let nodes: Vec<Bytes> = rows.iter().map(Bytes::copy_from_slice).collect();
        let proven = terrane::mpt::verify_proof(root, key, &nodes);
        let proven = proven.map_err(|error| Failure::proof(&error))?;
        // SAFETY: the caller keeps the contract.
        unsafe { answer_rows([proven], (value, capacity), value_offsets, found) }
    })
}

/// Checks a proof of a table with a root, `terrane_committed_prove`, and gives the value of the
/// key: as `terrane_mpt_verify`, but for a key as the table has it.
///
/// # Safety
/// The contract of `terrane_mpt_verify`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_committed_verify(
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
        let root = B256::from(unsafe { hash(root) }?);
        // SAFETY: the caller keeps the contract.
        let key = unsafe { slice(key, key_len) }?;
        // SAFETY: the caller keeps the contract.
        let rows = unsafe { Rows::new(node_count, nodes, node_offsets) }?;
        let nodes: Vec<Bytes> = rows.iter().map(Bytes::copy_from_slice).collect();
        let proven = CommittedTable::verify_proof(root, key, &nodes);
        let proven = proven.map_err(|error| Failure::proof(&error))?;
        // SAFETY: the caller keeps the contract.
        unsafe { answer_rows([proven], (value, capacity), value_offsets, found) }
    })
}

/// Checks a proof of a context tree, `terrane_context_prove`, against `root` of 32 bytes and gives
/// the values of `count` paths such as `data/contracts/a`, which are rows. A path that the proof
/// does not show, and a proof of anything else, are `TERRANE_INVALID_PROOF`.
///
/// # Safety
/// Pointers are valid as their types, lengths and counts say, or null; `root` for 32 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_context_verify(
    root: *const u8,
    proof: *const u8,
    proof_len: usize,
    count: usize,
    paths: *const u8,
    path_offsets: *const usize,
    values: *mut u8,
    capacity: usize,
    value_offsets: *mut usize,
    found: *mut u8,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let root = KindedHash::directory(Hash(unsafe { hash(root) }?));
        // SAFETY: the caller keeps the contract.
        let proof = unsafe { slice(proof, proof_len) }?;
        // SAFETY: the caller keeps the contract.
        let paths = unsafe { Rows::new(count, paths, path_offsets) }?;
        let proof = Proof::decode(proof).map_err(|error| Failure::proof(&error))?;
        let verified = proof.verify(&Rules::TEZOS, root).map_err(|error| Failure::proof(&error))?;
        let find = |path: &[u8]| {
            verified.tree().find(&steps(path)).map_err(|error| Failure::proof(&error))
        };
        let proven = paths.iter().map(find).collect::<Outcome<Vec<_>>>()?;
        // SAFETY: the caller keeps the contract.
        unsafe { answer_rows(proven, (values, capacity), value_offsets, found) }
    })
}
