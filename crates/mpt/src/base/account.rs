//! Accounts and their two encodings.
//!
//! ```text
//! leaf  RLP list: nonce, balance, storage root, code hash
//! slim  RLP list: nonce, balance, storage root or "", code hash or ""
//! ```
//!
//! The leaf form is hashed; the slim form is stored, where "" stands for the root of an empty trie
//! and for the hash of no code.

use alloy_primitives::{B256, KECCAK256_EMPTY, U256};
use alloy_rlp::{Buf, Decodable, Encodable, Header};

use crate::base::error::{Error, Result};

/// The Keccak-256 of no bytes: the code hash of an account without code.
pub const EMPTY_CODE_HASH: B256 = KECCAK256_EMPTY;

/// The root of an empty Merkle-Patricia trie.
pub(crate) const EMPTY_STORAGE_ROOT: B256 =
    alloy_primitives::b256!("56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421");

/// An account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Account {
    /// Count of transactions sent, or of contracts created.
    pub nonce: u64,
    /// Balance, in wei.
    pub balance: U256,
    /// Root of the storage trie.
    pub storage_root: B256,
    /// Keccak-256 of the code.
    pub code_hash: B256,
}

impl Default for Account {
    /// The empty account: zero nonce and balance, no storage, no code.
    fn default() -> Self {
        Self {
            nonce: 0,
            balance: U256::ZERO,
            storage_root: EMPTY_STORAGE_ROOT,
            code_hash: EMPTY_CODE_HASH,
        }
    }
}

impl Account {
    /// An account of the given nonce and balance, without storage or code.
    #[must_use]
    pub fn new(nonce: u64, balance: U256) -> Self {
        Self { nonce, balance, ..Self::default() }
    }

    terrane_io::setters! {
        nonce: u64,
        balance: U256,
        storage_root: B256,
        code_hash: B256,
    }

    /// Whether nonce and balance are zero and there is no code (EIP-161).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nonce == 0 && self.balance.is_zero() && self.code_hash == EMPTY_CODE_HASH
    }

    /// The value of its leaf in the state trie.
    #[must_use]
    pub fn leaf_value(&self) -> Vec<u8> {
        self.encode(&self.storage_root.0, &self.code_hash.0)
    }

    /// Its stored form.
    #[must_use]
    pub fn to_slim(&self) -> Vec<u8> {
        let or_none = |hash: &B256, none: B256| if *hash == none { vec![] } else { hash.to_vec() };
        self.encode(
            &or_none(&self.storage_root, EMPTY_STORAGE_ROOT),
            &or_none(&self.code_hash, EMPTY_CODE_HASH),
        )
    }

    /// Reads the stored form, and no other one.
    ///
    /// # Errors
    /// [`Error::CorruptAccount`].
    pub fn from_slim(bytes: &[u8]) -> Result<Self> {
        let account = decode(bytes, &[0, 32]).map_err(Error::CorruptAccount)?;
        let is_written_so = account.to_slim() == bytes;
        is_written_so.then_some(account).ok_or(Error::CorruptAccount(alloy_rlp::Error::Custom(
            "a hash that stands for nothing",
        )))
    }

    /// Reads the value of a leaf in the state trie.
    ///
    /// # Errors
    /// [`Error::CorruptAccount`].
    pub fn from_leaf_value(bytes: &[u8]) -> Result<Self> {
        decode(bytes, &[32]).map_err(Error::CorruptAccount)
    }

    fn encode(&self, storage_root: &[u8], code_hash: &[u8]) -> Vec<u8> {
        let payload_length = self.nonce.length()
            + self.balance.length()
            + storage_root.length()
            + code_hash.length();
        let header = Header { list: true, payload_length };

        let mut out = Vec::with_capacity(header.length() + payload_length);
        header.encode(&mut out);
        self.nonce.encode(&mut out);
        self.balance.encode(&mut out);
        storage_root.encode(&mut out);
        code_hash.encode(&mut out);
        out
    }
}

/// Reads an account whose hashes have one of the given lengths.
fn decode(mut bytes: &[u8], lengths: &[usize]) -> alloy_rlp::Result<Account> {
    let header = Header::decode(&mut bytes)?;
    if !header.list {
        return Err(alloy_rlp::Error::UnexpectedString);
    }
    if header.payload_length != bytes.remaining() {
        return Err(alloy_rlp::Error::ListLengthMismatch {
            expected: header.payload_length,
            got: bytes.remaining(),
        });
    }

    let nonce = u64::decode(&mut bytes)?;
    let balance = U256::decode(&mut bytes)?;
    let storage_root = decode_hash(&mut bytes, lengths, EMPTY_STORAGE_ROOT)?;
    let code_hash = decode_hash(&mut bytes, lengths, EMPTY_CODE_HASH)?;
    if !bytes.is_empty() {
        return Err(alloy_rlp::Error::UnexpectedLength);
    }
    Ok(Account { nonce, balance, storage_root, code_hash })
}

fn decode_hash(bytes: &mut &[u8], lengths: &[usize], none: B256) -> alloy_rlp::Result<B256> {
    let hash = Header::decode_bytes(bytes, false)?;
    if !lengths.contains(&hash.len()) {
        return Err(alloy_rlp::Error::UnexpectedLength);
    }
    Ok(if hash.is_empty() { none } else { B256::from_slice(hash) })
}
