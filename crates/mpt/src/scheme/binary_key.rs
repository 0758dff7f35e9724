//! Keys and values of an Ethereum state in the binary tree (EIP-7864, tree embedding).
//!
//! ```text
//! key    first 31 bytes of BLAKE3(address as 32 bytes, tree index u256 LE), sub-index
//! basic  version 0, 4 bytes 0, code size u24 BE, nonce u64 BE, balance u128 BE
//! chunk  leading bytes that are push data, 31 bytes of code
//! ```
//!
//! The first stem of an account has its basic data, its code hash, its first 64 slots and its first
//! 128 chunks of code. Keys follow from addresses and not from their hashes, so the flat entries of
//! a [`State`](crate::State), whose keys are hashes, do not give them.

use alloy_primitives::{Address, B256, U256};

use crate::scheme::binary_tree::{BinaryTree, STEM_BYTES};

/// Sub-index of the basic data.
const BASIC_DATA: u8 = 0;

/// Sub-index of the code hash.
const CODE_HASH: u8 = 1;

/// Position of slot 0 in the stems of an account.
const HEADER_STORAGE: u64 = 64;

/// Position of chunk 0 of the code; the slots before it are in the first stem.
const CODE: u64 = 128;

/// Keys of a stem.
const STEM_KEYS: u64 = 256;

/// Bytes of code in a chunk.
const CHUNK_BYTES: usize = 31;

/// The opcode that pushes one byte; the 31 after it push one more each.
const PUSH1: u8 = 0x60;

/// The opcode that pushes 32 bytes.
const PUSH32: u8 = 0x7f;

/// Largest size of code, which has three bytes.
const CODE_SIZE_MAX: u32 = (1 << 24) - 1;

impl BinaryTree {
    /// The key of nonce, balance and code size of an account.
    #[must_use]
    pub fn basic_data_key(address: &Address) -> B256 {
        tree_key(address, U256::ZERO, BASIC_DATA)
    }

    /// The key of the code hash of an account.
    #[must_use]
    pub fn code_hash_key(address: &Address) -> B256 {
        tree_key(address, U256::ZERO, CODE_HASH)
    }

    /// The key of a chunk of the code of an account.
    #[must_use]
    pub fn code_chunk_key(address: &Address, chunk: u32) -> B256 {
        let position = CODE + u64::from(chunk);
        tree_key(address, U256::from(position / STEM_KEYS), (position % STEM_KEYS) as u8)
    }

    /// The key of a slot of an account.
    #[must_use]
    pub fn slot_key(address: &Address, slot: &U256) -> B256 {
        if *slot < U256::from(CODE - HEADER_STORAGE) {
            return tree_key(address, U256::ZERO, HEADER_STORAGE as u8 + slot.byte(0));
        }
        // 256^31 and the slot, divided by the keys of a stem.
        let main_storage = U256::from(1) << (8 * 30);
        tree_key(address, main_storage + (*slot >> 8_usize), slot.byte(0))
    }

    /// The value of the basic data; `None` if the balance or the code is too large for it.
    #[must_use]
    #[expect(clippy::big_endian_bytes, reason = "the specification is big-endian")]
    pub fn basic_data(nonce: u64, balance: &U256, code_size: u32) -> Option<B256> {
        let balance = u128::try_from(*balance).ok()?;
        let code_size = Some(code_size).filter(|size| *size <= CODE_SIZE_MAX)?;
        let mut value = B256::ZERO;
        value[4..8].copy_from_slice(&code_size.to_be_bytes());
        value[8..16].copy_from_slice(&nonce.to_be_bytes());
        value[16..].copy_from_slice(&balance.to_be_bytes());
        Some(value)
    }

    /// The chunks of code: 31 bytes each, behind the number of leading bytes that an instruction of
    /// an earlier chunk pushes.
    #[must_use]
    pub fn code_chunks(code: &[u8]) -> Vec<B256> {
        let mut chunks = Vec::with_capacity(code.len().div_ceil(CHUNK_BYTES));
        // Bytes pushed by the instructions so far that are still to come.
        let mut pushed = 0;
        for part in code.chunks(CHUNK_BYTES) {
            let mut chunk = B256::ZERO;
            chunk[0] = pushed.min(CHUNK_BYTES) as u8;
            chunk[1..=part.len()].copy_from_slice(part);
            chunks.push(chunk);
            for opcode in part {
                pushed = match *opcode {
                    _ if 0 < pushed => pushed - 1,
                    opcode @ PUSH1..=PUSH32 => usize::from(opcode - PUSH1) + 1,
                    _ => 0,
                };
            }
        }
        chunks
    }
}

/// The key at a sub-index of a stem of an account.
fn tree_key(address: &Address, tree_index: U256, sub_index: u8) -> B256 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&address.into_word().0);
    hasher.update(&tree_index.to_le_bytes::<32>());
    let mut key = B256::from(*hasher.finalize().as_bytes());
    key[STEM_BYTES] = sub_index;
    key
}
