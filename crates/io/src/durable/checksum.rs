//! CRC-32C (Castagnoli) with the processor's instructions.
//!
//! Long inputs, as pages are, go through the carry-less multiplications of the `crc-fast` crate,
//! which take a third of the time of the CRC instruction; short ones, for which setting that up
//! does not pay, through the `crc32c` crate.

use crc_fast::{CrcAlgorithm, Digest};

/// From this length on multiplications are faster.
const LONG: usize = 512;

/// The CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The CRC-32C of some earlier bytes followed by `bytes`, where `crc` is that of the earlier ones.
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LONG {
        return ::crc32c::crc32c_append(crc, bytes);
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4, and the usual check value.
    #[test]
    fn published_check_values() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), 0x46DD_794E);
        assert_eq!(crc32c_append(crc32c(b"12345"), b"6789"), 0xE306_9283);
    }

    #[test]
    fn long_and_short_inputs_agree_wherever_they_are_cut() {
        let bytes: Vec<u8> = (0..3 * LONG).map(|at| (at * at / 7).to_le_bytes()[0]).collect();
        for end in [LONG - 1, LONG, LONG + 1, 2 * LONG + 13, bytes.len()] {
            let whole = ::crc32c::crc32c(&bytes[..end]);
            assert_eq!(crc32c(&bytes[..end]), whole);
            for cut in [0, 1, 12, LONG - 1, end] {
                let (front, back) = bytes[..end].split_at(cut);
                assert_eq!(crc32c_append(crc32c(front), back), whole, "{end} bytes cut at {cut}");
            }
        }
    }
}
