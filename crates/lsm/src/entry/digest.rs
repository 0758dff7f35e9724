//! The digest of a state, independent of engine, history and platform.
//!
//! SHA-256 over the live entries in ascending order of their keys, each as `u32-LE(key length) ‖
//! key ‖ u32-LE(value length) ‖ value`, and for an entry with a blob `u32-LE(blob length) ‖ blob`
//! after it. Entries stream through; nothing but the hash's state is kept.

use sha2::{Digest as _, Sha256};

/// A digest under construction.
#[derive(Debug, Clone, Default)]
pub struct StateDigest {
    hash: Sha256,
    count: u64,
}

impl StateDigest {
    /// Adds an entry. Entries must come in ascending byte order of their keys.
    pub fn add(&mut self, key: &[u8], value: &[u8], blob: Option<&[u8]>) {
        for bytes in [Some(key), Some(value), blob].into_iter().flatten() {
            // Nothing is as long as 4 GiB, so the length always fits.
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.hash.update(length.to_le_bytes());
            self.hash.update(bytes);
        }
        self.count += 1;
    }

    /// How many entries were added.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The digest of the entries added.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        self.hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Entry<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>);

    fn digest(entries: &[Entry<'_>]) -> [u8; 32] {
        let mut digest = StateDigest::default();
        for (key, value, blob) in entries {
            digest.add(key, value, *blob);
        }
        assert_eq!(digest.count(), entries.len() as u64);
        digest.finish()
    }

    #[test]
    fn lengths_keep_entries_apart() {
        // The SHA-256 of nothing at all, as every implementation gives it.
        let nothing = digest(&[]).map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(nothing, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_ne!(digest(&[(b"ab", b"c", None)]), digest(&[(b"a", b"bc", None)]));
        let plain = [1, 0, 0, 0, b'k', 0, 0, 0, 0];
        assert_eq!(digest(&[(b"k", b"", None)]), <[u8; 32]>::from(Sha256::digest(plain)));
        let with_blob = [&plain[..], &[2, 0, 0, 0, 7, 8]].concat();
        let expected = <[u8; 32]>::from(Sha256::digest(with_blob));
        assert_eq!(digest(&[(b"k", b"", Some(&[7, 8]))]), expected);
        // An empty blob is a blob.
        assert_ne!(digest(&[(b"k", b"", Some(b""))]), digest(&[(b"k", b"", None)]));
    }
}
