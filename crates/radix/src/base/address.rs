//! Addresses of 1 to 35 bytes, and prefixes of addresses, which may be empty.
//!
//! The text of an address is an even number of lower-case hex digits. Parsing refuses everything
//! else and converts nothing silently.

use std::fmt;
use std::str::FromStr;

use crate::base::node_hash::digit;

/// Most bytes of an address.
pub const ADDRESS_BYTES_MAX: usize = 35;

/// Reason why bytes or a text are no address or prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Nothing at all.
    #[error("it is empty")]
    Empty,
    /// An odd number of characters.
    #[error("{chars} characters, an odd number")]
    OddLength {
        /// How many.
        chars: usize,
    },
    /// A character that is no hex digit.
    #[error("character {character:?} at position {position} is no hex digit")]
    NotHex {
        /// The character.
        character: char,
        /// Where, counted from 0.
        position: usize,
    },
    /// A hex digit in upper case.
    #[error("an upper-case digit at position {position}; addresses are lower-case")]
    UpperCase {
        /// Where, counted from 0.
        position: usize,
    },
    /// Longer than an address can be.
    #[error("{bytes} bytes; an address has at most {ADDRESS_BYTES_MAX}")]
    TooLong {
        /// How many bytes.
        bytes: usize,
    },
}

/// Up to 35 bytes of an address. Ordered by the bytes, the shorter first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// Invariant: zero from `len` on.
    bytes: [u8; ADDRESS_BYTES_MAX],
    len: u8,
}

impl Prefix {
    /// The prefix of every address.
    pub const EMPTY: Self = Self { bytes: [0; ADDRESS_BYTES_MAX], len: 0 };

    /// A prefix of these bytes.
    ///
    /// # Errors
    /// [`AddressError::TooLong`].
    pub fn new(bytes: &[u8]) -> Result<Self, AddressError> {
        if bytes.len() > ADDRESS_BYTES_MAX {
            return Err(AddressError::TooLong { bytes: bytes.len() });
        }
        let mut prefix = Self::EMPTY;
        prefix.extend(bytes);
        Ok(prefix)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Appends bytes; the result must not be longer than an address.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        let len = usize::from(self.len);
        debug_assert!(len + bytes.len() <= ADDRESS_BYTES_MAX, "not longer than an address");
        self.bytes[len..len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    pub(crate) fn reverse(&mut self) {
        self.bytes[..usize::from(self.len)].reverse();
    }

    /// The rest after the first `count` bytes.
    pub(crate) fn after(&self, count: usize) -> Self {
        let mut rest = Self::EMPTY;
        rest.extend(&self.as_bytes()[count..]);
        rest
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        // Zero from the end on, so that equal prefixes are equal in all bytes.
        self.bytes[len..].fill(0);
        self.len = self.len.min(len as u8);
    }
}

impl AsRef<[u8]> for Prefix {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialOrd for Prefix {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Prefix {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Prefix {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let mut bytes = Vec::with_capacity(text.len() / 2);
        let mut chars = 0;
        for (position, character) in text.chars().enumerate() {
            if character.is_ascii_uppercase() && character.is_ascii_hexdigit() {
                return Err(AddressError::UpperCase { position });
            }
            let digit = digit(character).ok_or(AddressError::NotHex { character, position })?;
            match bytes.last_mut() {
                Some(last) if position % 2 == 1 => *last |= digit,
                _ => bytes.push(digit << 4),
            }
            chars = position + 1;
        }

        if chars % 2 == 1 {
            return Err(AddressError::OddLength { chars });
        }

        Self::new(&bytes)
    }
}

/// The address of a value: 1 to 35 bytes. Ordered by the bytes, the shorter first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(Prefix);

impl Address {
    /// An address of these bytes.
    ///
    /// # Errors
    /// [`AddressError::Empty`], [`AddressError::TooLong`].
    pub fn new(bytes: &[u8]) -> Result<Self, AddressError> {
        Prefix::new(bytes)?.try_into()
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl AsRef<[u8]> for Address {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl TryFrom<&[u8]> for Address {
    type Error = AddressError;

    fn try_from(bytes: &[u8]) -> Result<Self, AddressError> {
        Self::new(bytes)
    }
}

impl TryFrom<&[u8]> for Prefix {
    type Error = AddressError;

    fn try_from(bytes: &[u8]) -> Result<Self, AddressError> {
        Self::new(bytes)
    }
}

#[cfg(feature = "serde")]
terrane_io::serde_as_text!(Address, |text: &str| text.parse::<Address>());
#[cfg(feature = "serde")]
terrane_io::serde_as_text!(Prefix, |text: &str| text.parse::<Prefix>());

impl From<Address> for Prefix {
    fn from(address: Address) -> Self {
        address.0
    }
}

impl TryFrom<Prefix> for Address {
    type Error = AddressError;

    fn try_from(prefix: Prefix) -> Result<Self, AddressError> {
        if prefix.len == 0 { Err(AddressError::Empty) } else { Ok(Self(prefix)) }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        text.parse::<Prefix>()?.try_into()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_lower_case_hex_of_up_to_35_bytes_and_nothing_else() {
        for text in ["00", "ab", "abcd", &"7f".repeat(35)] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }

        for (text, error) in [
            ("", AddressError::Empty),
            ("abc", AddressError::OddLength { chars: 3 }),
            ("aB", AddressError::UpperCase { position: 1 }),
            ("barf", AddressError::NotHex { character: 'r', position: 2 }),
            ("aé", AddressError::NotHex { character: 'é', position: 1 }),
            ("a ", AddressError::NotHex { character: ' ', position: 1 }),
            (&"00".repeat(36), AddressError::TooLong { bytes: 36 }),
        ] {
            assert_eq!(text.parse::<Address>(), Err(error), "{text:?}");
        }

        let bytes: &[u8] = &[0xAB, 0xCD];
        assert_eq!(Address::try_from(bytes), "abcd".parse());
        assert_eq!(Address::try_from(&[][..]), Err(AddressError::Empty));
        assert_eq!(Prefix::try_from(&[0; 36][..]), Err(AddressError::TooLong { bytes: 36 }));
        assert_eq!("".parse::<Prefix>(), Ok(Prefix::EMPTY));
        assert_eq!("a".parse::<Prefix>(), Err(AddressError::OddLength { chars: 1 }));
    }

    #[test]
    fn order_is_that_of_the_bytes_with_the_shorter_first() {
        let texts = ["00", "0000", "0001", "01", "ff", "ff00"];
        let mut addresses: Vec<Address> = texts.iter().rev().map(|t| t.parse().unwrap()).collect();
        addresses.sort();
        assert_eq!(addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), texts);
    }
}
