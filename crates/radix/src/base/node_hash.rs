//! Hash of a plain node, 32 bytes, and its text, 64 lower-case hex digits. The hash of the node at
//! the empty address is the root of a state.

use std::fmt;
use std::str::FromStr;

/// Bytes of a hash.
pub const NODE_HASH_BYTES: usize = 32;
const TEXT_CHARS: usize = 2 * NODE_HASH_BYTES;

/// The hash of a node: the first 32 bytes of SHA-512 of its bytes. Ordered by its bytes, shown as
/// 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeHash(pub [u8; NODE_HASH_BYTES]);

/// The hash of a whole state, also called its state id.
pub type Root = NodeHash;

impl NodeHash {
    /// The root of the state without any value; it is in every tree.
    pub const EMPTY: Self = Self([
        0x70, 0x8c, 0xa7, 0xfb, 0xb7, 0x01, 0x79, 0x9b, 0xb3, 0x87, 0xf2, 0xe5, 0x0d, 0xea, 0xca,
        0x40, 0x2e, 0x85, 0x02, 0xab, 0xe2, 0x29, 0xf7, 0x05, 0x69, 0x3d, 0x2d, 0x4f, 0x35, 0x0e,
        0x1a, 0xd6,
    ]);
}

impl Default for NodeHash {
    /// The root of the empty state.
    fn default() -> Self {
        Self::EMPTY
    }
}

#[cfg(feature = "serde")]
terrane_io::serde_as_text!(NodeHash, |text: &str| text.parse::<NodeHash>());

impl fmt::Display for NodeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reason why a text is no root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RootTextError {
    /// Not 64 characters.
    #[error("{chars} characters; a root has {TEXT_CHARS}")]
    Length {
        /// How many.
        chars: usize,
    },
    /// A character that is no lower-case hex digit.
    #[error("character {character:?} at position {position} is no lower-case hex digit")]
    Character {
        /// The character.
        character: char,
        /// Where, counted from 0.
        position: usize,
    },
}

/// The value of a lower-case hex digit.
pub(crate) fn digit(character: char) -> Option<u8> {
    match character {
        '0'..='9' => Some(character as u8 - b'0'),
        'a'..='f' => Some(character as u8 - b'a' + 10),
        _ => None,
    }
}

impl FromStr for NodeHash {
    type Err = RootTextError;

    fn from_str(text: &str) -> Result<Self, RootTextError> {
        let chars = text.chars().count();
        if chars != TEXT_CHARS {
            return Err(RootTextError::Length { chars });
        }
        let mut bytes = [0; NODE_HASH_BYTES];
        for (position, character) in text.chars().enumerate() {
            let digit = digit(character).ok_or(RootTextError::Character { character, position })?;
            bytes[position / 2] = bytes[position / 2] << 4 | digit;
        }
        Ok(Self(bytes))
    }
}
