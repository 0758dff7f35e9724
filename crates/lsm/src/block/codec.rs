//! Codecs of compressed key pages: bytes in, bytes out; this module knows no page.
//!
//! Invariant: decompression writes into a slice of the caller and succeeds only if it fills the
//! slice exactly. So damaged or forged bytes can ask for no memory.
//!
//! LZ4 comes from `lz4_flex` in its safe form, which has no `unsafe` in encoder or decoder.

use std::fmt;

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

/// Compression of the key pages of a table's runs.
///
/// A compressed page takes 4 KiB on disk, as any page does, and holds up to 16 KiB of keys and
/// values. A lookup reads one page of it, as ever, and decompresses that page. Hashes do not
/// compress, as keys or in values; zeros, constants and text do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[doc(alias("CompressionType", "compression_per_level"))]
pub enum Compression {
    /// Pages are written as they are.
    #[default]
    None,
    /// LZ4: finds repeated bytes, and decompresses fast.
    Lz4,
}

impl Compression {
    /// The compression with this name, as [`Display`](fmt::Display) writes it: `none` or `lz4`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "lz4" => Some(Self::Lz4),
            _ => None,
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Lz4 => f.write_str("lz4"),
        }
    }
}

/// Codec of a compressed page. The numbers stand in files; 0 is never valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Lz4 = 1,
}

impl Codec {
    /// The codec of that number.
    pub(crate) fn from_tag(tag: u8) -> Option<Self> {
        (tag == Self::Lz4 as u8).then_some(Self::Lz4)
    }

    /// Name, for people to read.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
        }
    }

    /// Decompresses `bytes` into all of `out`; returns whether they are exactly that much.
    ///
    /// Cost: no allocation.
    #[must_use]
    pub(crate) fn decompress(self, bytes: &[u8], out: &mut [u8]) -> bool {
        match self {
            Self::Lz4 => decompress_into(bytes, out).is_ok_and(|len| len == out.len()),
        }
    }
}

/// A codec with its working memory.
pub(crate) struct Compressor {
    table: CompressTable,
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor").field("codec", &self.codec()).finish_non_exhaustive()
    }
}

impl Compressor {
    /// The codec of a configuration; `None` if that is to compress nothing.
    pub(crate) fn new(compression: Compression) -> Option<Self> {
        match compression {
            Compression::None => None,
            Compression::Lz4 => Some(Self { table: CompressTable::small() }),
        }
    }

    #[expect(clippy::unused_self, reason = "there may be more than one codec")]
    pub(crate) fn codec(&self) -> Codec {
        Codec::Lz4
    }

    /// Compresses `bytes` into `out`, in place of what is there.
    pub(crate) fn compress(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.resize(get_maximum_output_size(bytes.len()), 0);
        let len = compress_into_with_table(bytes, out, &mut self.table);
        // The output has room for the worst case, which is the only reason to fail.
        out.truncate(len.expect("room for any output"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_only_at_their_exact_length() {
        let mut compressor = Compressor::new(Compression::Lz4).unwrap();
        let mut packed = Vec::new();
        for len in [0, 1, 12, 100, 4_080, 16_368] {
            let bytes: Vec<u8> = (0..len).map(|at| (at / 7 % 5) as u8).collect();
            compressor.compress(&bytes, &mut packed);
            let mut out = vec![1; len];
            assert!(compressor.codec().decompress(&packed, &mut out) && out == bytes, "{len}");
            // A longer or shorter image than was compressed is refused.
            assert!(!compressor.codec().decompress(&packed, &mut vec![0; len + 1]), "{len}");
            if len > 0 {
                assert!(!compressor.codec().decompress(&packed, &mut vec![0; len - 1]), "{len}");
            }
        }
    }

    #[test]
    fn damaged_bytes_are_refused_or_fill_the_slice_that_is_there() {
        let mut compressor = Compressor::new(Compression::Lz4).unwrap();
        let bytes: Vec<u8> = (0..2_000_u32).flat_map(|at| (at / 3).to_le_bytes()).collect();
        let mut packed = Vec::new();
        compressor.compress(&bytes, &mut packed);
        let mut out = vec![0; bytes.len()];
        for at in 0..packed.len() {
            for bit in 0..8 {
                packed[at] ^= 1 << bit;
                let _ = compressor.codec().decompress(&packed, &mut out);
                packed[at] ^= 1 << bit;
            }
        }
    }
}
