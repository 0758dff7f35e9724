//! Varints of traces: seven bits in a byte, lowest first; the eighth says that another one follows.

use terrane::io::bytes::{Overrun, Reader};

/// Reads a number; `None` if 64 bits have no room for it.
pub(super) fn read(input: &mut Reader<'_>) -> Result<Option<u64>, Overrun> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = input.u8()?;
        let bits = u64::from(byte & 0x7F);
        // The last byte has room for one bit.
        if bits << shift >> shift != bits {
            return Ok(None);
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(Some(number));
        }
    }

    Ok(None)
}

/// Appends a number.
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
