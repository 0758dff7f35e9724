//! The digest of a state, independent of engine and platform.
//!
//! SHA-256 over the live entries in ascending order of their keys, each as
//! `u32-LE(key length) ‖ key ‖ u32-LE(value length) ‖ value`. Entries stream through; nothing but
//! the hash state is kept.

use sha2::{Digest as _, Sha256};

/// A digest under construction.
#[derive(Debug, Clone, Default)]
pub struct StateDigest {
    hash: Sha256,
    count: u64,
}

impl StateDigest {
    /// Adds an entry. Entries must come in ascending byte order of their keys.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        for bytes in [key, value] {
            // Engines refuse keys and values of 4 GiB, so the length always fits.
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.hash.update(length.to_le_bytes());
            self.hash.update(bytes);
        }
        self.count += 1;
    }

    /// Returns how many entries were added.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the digest of the entries added.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        self.hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex;

    #[test]
    fn lengths_keep_entries_apart() {
        let digest = |entries: &[(&[u8], &[u8])]| {
            let mut digest = StateDigest::default();
            for (key, value) in entries {
                digest.add(key, value);
            }
            digest.finish()
        };
        // The SHA-256 of nothing at all, as every implementation gives it.
        assert_eq!(
            hex::encode(&digest(&[])),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_ne!(digest(&[(b"ab", b"c")]), digest(&[(b"a", b"bc")]));
        assert_eq!(
            digest(&[(b"k", b"")]),
            <[u8; 32]>::from(Sha256::digest([1, 0, 0, 0, b'k', 0, 0, 0, 0]))
        );
    }
}
