//! CRC-32C (Castagnoli) with the processor's instructions.
//!
//! Long inputs, as pages are, go through the carry-less multiplications of the `crc-fast` crate,
//! which take a third of the time of the CRC instruction; shorter ones, for which setting that up
//! does not pay, through the `crc32c` crate; and few bytes, as the address of a page, through
//! tables, four bytes at a time.
//!
//! Programs of fuzzing are built with `cfg(fuzzing)`. There every checksum is zero, so that changed
//! bytes reach the code behind it.

use crc_fast::{CrcAlgorithm, Digest};

/// From this length on multiplications are faster.
const LONG: usize = 512;

/// Up to this length looking up costs less than setting up anything.
const FEW: usize = 16;

/// The polynomial of CRC-32C, its bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// Remainders of each byte in front of no, one, two and three further bytes.
static REMAINDERS: [[u32; 256]; 4] = remainders();

const fn remainders() -> [[u32; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    let mut behind = 0;
    while behind < 4 {
        let mut byte = 0;
        while byte < 256 {
            let mut remainder = byte as u32;
            let mut bits = 0;
            while bits < 8 * (behind + 1) {
                let is_odd = remainder & 1 == 1;
                remainder = (remainder >> 1) ^ if is_odd { POLYNOMIAL } else { 0 };
                bits += 1;
            }
            tables[behind][byte] = remainder;
            byte += 1;
        }
        behind += 1;
    }
    tables
}

/// The CRC-32C of some earlier bytes followed by a few.
#[inline]
fn append_few(crc: u32, bytes: &[u8]) -> u32 {
    let remainder = |behind: usize, byte: u32| REMAINDERS[behind][(byte & 0xFF) as usize];
    let (words, last) = bytes.as_chunks::<4>();

    let mut state = !crc;
    for word in words {
        let mixed = state ^ u32::from_le_bytes(*word);
        let high = remainder(1, mixed >> 16) ^ remainder(0, mixed >> 24);
        state = remainder(3, mixed) ^ remainder(2, mixed >> 8) ^ high;
    }
    for byte in last {
        state = (state >> 8) ^ remainder(0, state ^ u32::from(*byte));
    }
    !state
}

/// The CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The CRC-32C of some earlier bytes followed by `bytes`, where `crc` is that of the earlier ones.
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    if cfg!(fuzzing) {
        return 0;
    }
    if bytes.len() <= FEW {
        return append_few(crc, bytes);
    }
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
        for end in [FEW, FEW + 1, LONG - 1, LONG, LONG + 1, 2 * LONG + 13, bytes.len()] {
            let whole = ::crc32c::crc32c(&bytes[..end]);
            assert_eq!(crc32c(&bytes[..end]), whole);
            for cut in [0, 1, 3, 12, FEW, LONG - 1, end].into_iter().filter(|cut| *cut <= end) {
                let (front, back) = bytes[..end].split_at(cut);
                assert_eq!(crc32c_append(crc32c(front), back), whole, "{end} bytes cut at {cut}");
            }
        }
    }
}
