//! The order of keys: that of their bytes as unsigned numbers.

use std::cmp::Ordering;

/// The first eight bytes of a key as a number that orders as the bytes do; missing bytes count as
/// zeros.
#[expect(clippy::big_endian_bytes, reason = "the order of keys is that of their bytes")]
#[inline]
#[must_use]
pub fn key_prefix(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            (0..8).fold(0, |prefix, at| prefix << 8 | u64::from(key.get(at).copied().unwrap_or(0)))
        }
    }
}

/// Compares two keys. Nearly always their first bytes decide, in registers.
#[inline]
#[must_use]
pub fn compare_keys(left: &[u8], right: &[u8]) -> Ordering {
    key_prefix(left).cmp(&key_prefix(right)).then_with(|| left.cmp(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_their_bytes() {
        let keys: [&[u8]; 10] = [
            b"",
            b"\0",
            b"\0\0\0\0\0\0\0\0\0",
            b"a",
            b"a\0",
            b"abcdefg",
            b"abcdefgh",
            b"abcdefgh\0",
            b"abcdefghi",
            b"\xFF",
        ];

        for (left, one) in keys.iter().enumerate() {
            for (right, other) in keys.iter().enumerate() {
                assert_eq!(compare_keys(one, other), left.cmp(&right), "{one:?}, {other:?}");
                assert!(left > right || key_prefix(one) <= key_prefix(other));
            }
        }

        assert!(key_prefix(b"abcdefg") < key_prefix(b"abcdefgh"));
    }
}
