//! Merkle hashes of 32 bytes and their text form, that of context hashes of Tezos: base58check of
//! 52 characters that begin with `Co`.
//!
//! Text: base58 (Bitcoin's digits) of `4F C7` ‖ hash ‖ the first 4 bytes of SHA-256(SHA-256(`4F C7`
//! ‖ hash)).

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// Bytes of a hash.
pub(crate) const HASH_BYTES: usize = 32;

const PREFIX: [u8; 2] = [0x4F, 0xC7];
const CHECKSUM_BYTES: usize = 4;
const TEXT_BYTES: usize = PREFIX.len() + HASH_BYTES + CHECKSUM_BYTES;
/// Characters of the text form.
const TEXT_CHARS: usize = 52;

/// A 32-byte Merkle hash. Ordered by its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub [u8; HASH_BYTES]);

/// Reason why a text is not a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HashTextError {
    /// A character that is not a base58 digit.
    #[error("character {character:?} at position {position} is not a base58 digit")]
    Character {
        /// The character.
        character: char,
        /// Position, counted from 0.
        position: usize,
    },
    /// The text does not have 52 characters, or the digits do not have 38 bytes.
    #[error("{found} characters; a context hash has {TEXT_CHARS}")]
    Length {
        /// Number of characters of the text.
        found: usize,
    },
    /// The text does not begin with `Co`.
    #[error("a context hash begins with Co; the text does not")]
    Prefix,
    /// The checksum is wrong: a character was mistyped.
    #[error("the checksum is wrong; a character was mistyped")]
    Checksum,
}

impl Hash {
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8; HASH_BYTES] {
        &self.0
    }

    /// Returns the text form, 52 characters.
    pub fn to_base58(&self) -> String {
        let text = base58check(&PREFIX, &self.0);
        debug_assert_eq!(text.len(), TEXT_CHARS, "38 bytes behind this prefix take 52 digits");
        debug_assert!(text.starts_with("Co"), "the prefix shows in the text");
        text
    }
}

/// Base58check of bytes behind a prefix.
pub(crate) fn base58check(prefix: &[u8], bytes: &[u8]) -> String {
    let mut all = [prefix, bytes].concat();
    all.extend_from_slice(&checksum(&all));
    bs58::encode(all).into_string()
}

/// First bytes of the double SHA-256.
fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest: [u8; 32] = Sha256::digest(Sha256::digest(bytes)).into();
    let [a, b, c, d, ..] = digest;
    [a, b, c, d]
}

impl FromStr for Hash {
    type Err = HashTextError;

    fn from_str(text: &str) -> Result<Self, HashTextError> {
        let found = text.chars().count();
        let bytes = bs58::decode(text).into_vec().map_err(|error| match error {
            bs58::decode::Error::InvalidCharacter { character, index } => {
                HashTextError::Character { character, position: index }
            }
            bs58::decode::Error::NonAsciiCharacter { index } => HashTextError::Character {
                character: text.get(index..).and_then(|rest| rest.chars().next()).unwrap_or('?'),
                position: index,
            },
            _ => HashTextError::Length { found },
        })?;

        // Base58 has no fixed length, so both the digits and the decoded bytes are counted.
        let (body, sum) =
            bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(HashTextError::Length { found })?;
        if found != TEXT_CHARS || bytes.len() != TEXT_BYTES {
            return Err(HashTextError::Length { found });
        }
        let (prefix, hash) =
            body.split_first_chunk::<2>().ok_or(HashTextError::Length { found })?;

        if *prefix != PREFIX {
            return Err(HashTextError::Prefix);
        }

        // Last, so that a text of another kind is named as such and not as mistyped.
        if checksum(body) != *sum {
            return Err(HashTextError::Checksum);
        }

        hash.try_into().map(Self).map_err(|_| HashTextError::Length { found })
    }
}

#[cfg(feature = "serde")]
terrane_io::serde_as_text!(Hash, |text: &str| text.parse::<Hash>());

impl fmt::Display for Hash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&self.to_base58())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.to_base58())
    }
}
