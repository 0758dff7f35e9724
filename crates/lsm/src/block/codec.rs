//! Codecs of compressed key pages: bytes in, bytes out; this module knows no page.
//!
//! Invariant: decompression writes into a slice of the caller and succeeds only if it fills the
//! slice exactly. So damaged or forged bytes can ask for no memory.
//!
//! LZ4 comes from `lz4_flex` in its safe form, which has no `unsafe` in encoder or decoder.
//! Zstandard is the C library that the crate `zstd` brings along. A page is one frame, without a
//! checksum of its own and without a dictionary: what a dictionary would save is in
//! `docs/design/102-runs-and-pages.md`.

use std::cell::RefCell;
use std::fmt;

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use zstd::bulk;
use zstd::zstd_safe::{CParameter, MAGICNUMBER, compress_bound, find_frame_compressed_size};

/// Effort of Zstandard, the one that its authors recommend. On values of Bitcoin level 1 saves
/// 11.8 % of a page's bytes, level 3 12.8 %, level 9 13.8 %.
const ZSTD_LEVEL: i32 = 3;

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
    /// Zstandard: also gives frequent bytes fewer bits, for up to about twice the processor time of
    /// LZ4 in lookups, and more in writing. Outside of every memory budget, each thread that reads
    /// such pages keeps a decoder, and each run that is being written an encoder, of less than
    /// 1 MiB each.
    Zstd,
}

impl Compression {
    /// The compression with this name, as [`Display`](fmt::Display) writes it: `none`, `lz4` or
    /// `zstd`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|compression| compression.name() == name)
    }

    /// All there are.
    pub(crate) const ALL: [Self; 3] = [Self::None, Self::Lz4, Self::Zstd];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => Codec::Lz4.name(),
            Self::Zstd => Codec::Zstd.name(),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Codec of a compressed page. The numbers stand in files; 0 is never valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Lz4 = 1,
    Zstd = 2,
}

thread_local! {
    /// The decoder of a thread: making one costs more than a page.
    static ZSTD_DECODER: RefCell<bulk::Decompressor<'static>> = RefCell::default();
}

impl Codec {
    /// The codec with the greatest number.
    pub(crate) const NEWEST: Self = Self::Zstd;

    /// The codec of that number.
    pub(crate) fn from_tag(tag: u8) -> Option<Self> {
        [Self::Lz4, Self::Zstd].into_iter().find(|codec| *codec as u8 == tag)
    }

    /// Name, for people to read.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Decompresses `bytes` into all of `out`; returns whether they are exactly that much.
    ///
    /// Cost: no allocation, but for the decoder of Zstandard in the first call of a thread.
    #[must_use]
    pub(crate) fn decompress(self, bytes: &[u8], out: &mut [u8]) -> bool {
        match self {
            Self::Lz4 => decompress_into(bytes, out).is_ok_and(|len| len == out.len()),
            Self::Zstd => is_one_frame(bytes) && decompress_frame(bytes, out),
        }
    }
}

/// Whether bytes are one frame of today's format: the decoder would also take several, skip those
/// of other programs, and read older formats if some crate of the build asks for them.
fn is_one_frame(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGICNUMBER.to_le_bytes())
        && find_frame_compressed_size(bytes).is_ok_and(|len| len == bytes.len())
}

/// Decompresses a frame into all of `out`. The decoder writes into the slice directly, so a frame
/// can ask for no window.
fn decompress_frame(bytes: &[u8], out: &mut [u8]) -> bool {
    let len = out.len();
    let mut decompress = |decoder: &mut bulk::Decompressor<'_>| {
        decoder.decompress_to_buffer(bytes, out).is_ok_and(|found| found == len)
    };
    match ZSTD_DECODER.try_with(|decoder| decompress(&mut decoder.borrow_mut())) {
        Ok(is_whole) => is_whole,
        // The thread is ending.
        Err(_) => decompress(&mut bulk::Decompressor::default()),
    }
}

/// A codec with its working memory.
pub(crate) enum Compressor {
    Lz4(CompressTable),
    Zstd(bulk::Compressor<'static>),
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
            Compression::Lz4 => Some(Self::Lz4(CompressTable::small())),
            Compression::Zstd => {
                let mut compressor = bulk::Compressor::default();
                // The page has a checksum.
                let parameters = [
                    CParameter::CompressionLevel(ZSTD_LEVEL),
                    CParameter::ChecksumFlag(false),
                    CParameter::DictIdFlag(false),
                ];
                for parameter in parameters {
                    compressor.set_parameter(parameter).expect("a parameter that there is");
                }
                Some(Self::Zstd(compressor))
            }
        }
    }

    pub(crate) fn codec(&self) -> Codec {
        match self {
            Self::Lz4(_) => Codec::Lz4,
            Self::Zstd(_) => Codec::Zstd,
        }
    }

    /// Compresses `bytes` into `out`, in place of what is there.
    pub(crate) fn compress(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Lz4(table) => {
                out.resize(get_maximum_output_size(bytes.len()), 0);
                let len = compress_into_with_table(bytes, out, table);
                // The output has room for the worst case, which is the only reason to fail.
                out.truncate(len.expect("room for any output"));
            }
            Self::Zstd(compressor) => {
                out.clear();
                out.reserve(compress_bound(bytes.len()));
                let len = compressor.compress_to_buffer(bytes, out);
                let len = len.expect("room for any output, and memory for the encoder");
                debug_assert_eq!(len, out.len(), "the output is what was written");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codecs, each by its configuration.
    const CODECS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

    #[test]
    fn a_codec_has_a_number_and_a_name() {
        for compression in CODECS {
            let codec = Compressor::new(compression).unwrap().codec();
            assert_eq!(Codec::from_tag(codec as u8), Some(codec));
            assert_eq!(compression.to_string(), codec.name());
            assert_eq!(Compression::by_name(codec.name()), Some(compression));
        }
        assert_eq!(Codec::from_tag(Codec::NEWEST as u8 + 1), None);
        assert_eq!(Codec::from_tag(0), None);
    }

    #[test]
    fn bytes_come_back_and_only_at_their_exact_length() {
        CODECS.into_iter().for_each(comes_back);
    }

    fn comes_back(compression: Compression) {
        let mut compressor = Compressor::new(compression).unwrap();
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
        CODECS.into_iter().for_each(is_refused_or_fills);
    }

    /// The library takes all of these; a page is one frame.
    #[test]
    fn frames_beside_each_other_are_refused() {
        let mut compressor = Compressor::new(Compression::Zstd).unwrap();
        let frame = |compressor: &mut Compressor, bytes: &[u8]| {
            let mut out = Vec::new();
            compressor.compress(bytes, &mut out);
            out
        };
        let mut out = vec![0; 200];
        let whole = frame(&mut compressor, &[7; 200]);
        let half = frame(&mut compressor, &[7; 100]);
        let empty = frame(&mut compressor, &[]);
        let skippable = [0x50, 0x2A, 0x4D, 0x18, 1, 0, 0, 0, 9];
        assert!(Codec::Zstd.decompress(&whole, &mut out));
        for parts in
            [[&half[..], &half], [&whole, &empty], [&skippable, &whole], [&whole, &skippable]]
        {
            let bytes = parts.concat();
            let mut decoder = bulk::Decompressor::default();
            assert_eq!(decoder.decompress_to_buffer(&bytes, &mut out[..]).unwrap(), 200);
            assert!(!Codec::Zstd.decompress(&bytes, &mut out), "{bytes:?}");
        }
    }

    fn is_refused_or_fills(compression: Compression) {
        let mut compressor = Compressor::new(compression).unwrap();
        let bytes: Vec<u8> = (0..2_000_u32).flat_map(|at| (at / 3).to_le_bytes()).collect();
        let mut packed = Vec::new();
        compressor.compress(&bytes, &mut packed);
        let codec = compressor.codec();
        let mut out = vec![0; bytes.len()];
        for at in 0..packed.len() {
            for bit in 0..8 {
                packed[at] ^= 1 << bit;
                let _ = codec.decompress(&packed, &mut out);
                packed[at] ^= 1 << bit;
            }
            assert!(!codec.decompress(&packed[..at], &mut out), "{at} bytes");
        }

        // What came before leaves nothing behind.
        assert!(codec.decompress(&packed, &mut out) && out == bytes);
        packed.push(0);
        assert!(!codec.decompress(&packed, &mut out), "a byte too many");
    }
}
