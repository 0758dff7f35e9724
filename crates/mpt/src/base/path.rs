//! Paths of nodes: the digits of a key from the root on, one digit a byte.
//!
//! A digit has as many bits as the scheme says (4 or 1), most significant first. In this form a
//! prefix of a path is a prefix of its bytes, and the order of paths is the order of keys.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

/// Most bytes of a key. A path is the key's digits, so it has up to eight times as many bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// Digits that a path holds without memory of its own: those of nodes, and not of whole keys.
const INLINE_DIGITS: usize = 24;

/// The digits from the root to a node, one a byte. The root's path is empty.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(SmallVec<[u8; INLINE_DIGITS]>);

impl Path {
    /// The path of the given digits. A digit above 15 belongs to no scheme and is found by none.
    #[must_use]
    pub fn new(digits: &[u8]) -> Self {
        Self(SmallVec::from_slice(digits))
    }

    /// The whole path of `key`, with digits of `digit_bits` bits.
    #[must_use]
    pub fn of_key(key: &[u8], digit_bits: u32) -> Self {
        debug_assert!(digit_bits == 4 || digit_bits == 1);
        let mut digits = SmallVec::with_capacity(key.len() * (8 / digit_bits) as usize);
        for byte in key {
            match digit_bits {
                4 => digits.extend([byte >> 4, byte & 15]),
                _ => digits.extend((0..8).rev().map(|bit| byte >> bit & 1)),
            }
        }
        Self(digits)
    }

    /// The path of the child at `digit`.
    #[must_use]
    pub fn child(&self, digit: u8) -> Self {
        let mut digits = SmallVec::with_capacity(self.0.len() + 1);
        digits.extend_from_slice(&self.0);
        digits.push(digit);
        Self(digits)
    }

    /// The path that goes on with these digits.
    pub(crate) fn join(&self, more: &[u8]) -> Self {
        let mut digits = SmallVec::with_capacity(self.0.len() + more.len());
        digits.extend_from_slice(&self.0);
        digits.extend_from_slice(more);
        Self(digits)
    }

    /// The key whose whole path this is, if it ends at the border of a byte.
    #[must_use]
    pub fn key(&self, digit_bits: u32) -> Option<Vec<u8>> {
        let digits = (8 / digit_bits) as usize;
        self.0.len().is_multiple_of(digits).then(|| self.packed(digit_bits))
    }

    /// The bounds of the keys whose paths begin with this one: the first key that may, and the
    /// first after them, if there is one.
    #[must_use]
    pub fn key_range(&self, digit_bits: u32) -> (Vec<u8>, Option<Vec<u8>>) {
        let arity = 1 << digit_bits;
        let mut next = self.0.clone();
        while next.last().is_some_and(|digit| digit + 1 >= arity) {
            next.pop();
        }
        let end = next.last_mut().map(|digit| *digit += 1);
        (self.packed(digit_bits), end.map(|()| Self(next).packed(digit_bits)))
    }

    /// The digits as bits of bytes, the last byte filled up with zeros.
    fn packed(&self, digit_bits: u32) -> Vec<u8> {
        let chunk = (8 / digit_bits) as usize;
        let pack = |digits: &[u8]| {
            let bits = digits.iter().fold(0, |byte, digit| byte << digit_bits | u32::from(*digit));
            (bits << ((chunk - digits.len()) as u32 * digit_bits)) as u8
        };
        self.0.chunks(chunk).map(pack).collect()
    }
}

impl Deref for Path {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Path {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return out.write_str("(root)");
        }
        self.0.iter().try_for_each(|digit| write!(out, "{digit:x}"))
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Path({self})")
    }
}

/// How many leading digits two paths share.
pub(crate) fn common_prefix(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}
