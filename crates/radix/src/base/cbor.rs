//! The bytes of a node, of which its hash is taken: a CBOR map of the children and the value.
//!
//! | bytes | field |
//! |---|---|
//! | `a2 61 63` | a map of two, "c" |
//! | map head of the number of children | |
//! | `62` token, `78 40` hash, each as lower-case hex text | for each child, ascending by its token |
//! | `61 76` | "v" |
//! | `f6`, or the bytes head of the length, and the value | none, or some |
//!
//! Heads are the shortest, with one exception that all roots depend on: the length of a value of
//! 65,536 to 1,048,575 bytes takes 8 bytes (`5b`) and not 4, since the library of the original
//! compares with `0x10_0000` where `0x1_0000` is meant. This is why the encoder is written by hand.

use crate::base::node_hash::NODE_HASH_BYTES;
use terrane_hash::sha512::write_hex;

/// Bytes of a child.
const CHILD_BYTES: usize = 3 + 2 + 2 * NODE_HASH_BYTES;
/// Most bytes besides children and value.
const FRAME_BYTES: usize = 6 + 2 + 9;
/// The value that takes the long head from here on.
const LONG_HEAD_FROM: u64 = 0x1_0000;
/// The value that takes the short head again from here on.
const LONG_HEAD_UNTIL: u64 = 0x10_0000;

const HEX: &[u8; 16] = b"0123456789abcdef";

#[expect(clippy::big_endian_bytes, reason = "CBOR is big-endian")]
fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    let Some(value) = value else { return out.push(0xf6) };
    match value.len() as u64 {
        len @ ..24 => out.push(0x40 + len as u8),
        len @ ..0x100 => out.extend_from_slice(&[0x58, len as u8]),
        len @ ..LONG_HEAD_FROM => {
            out.push(0x59);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len @ LONG_HEAD_UNTIL..0x1_0000_0000 => {
            out.push(0x5a);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
        len => {
            out.push(0x5b);
            out.extend_from_slice(&len.to_be_bytes());
        }
    }

    out.extend_from_slice(value);
}

#[expect(clippy::big_endian_bytes, reason = "CBOR is big-endian")]
fn put_map_head(out: &mut Vec<u8>, entries: usize) {
    match entries {
        0..24 => out.push(0xa0 + entries as u8),
        24..0x100 => out.extend_from_slice(&[0xb8, entries as u8]),
        _ => {
            out.push(0xb9);
            out.extend_from_slice(&(entries as u16).to_be_bytes());
        }
    }
}

/// Bytes of a node at most.
pub(crate) fn node_bytes_max(children: usize, value: Option<&[u8]>) -> usize {
    FRAME_BYTES + children * CHILD_BYTES + value.map_or(0, <[u8]>::len)
}

/// Appends the bytes of a node: its children, so many, ascending by their tokens, and its value.
pub(crate) fn put_node<'a>(
    out: &mut Vec<u8>,
    count: usize,
    children: impl Iterator<Item = (u8, &'a [u8; NODE_HASH_BYTES])>,
    value: Option<&[u8]>,
) {
    out.reserve(node_bytes_max(count, value));
    out.extend_from_slice(&[0xa2, 0x61, b'c']);
    put_map_head(out, count);

    for (token, hash) in children {
        let mut child = [0; CHILD_BYTES];
        child[0] = 0x62;
        child[1] = HEX[usize::from(token >> 4)];
        child[2] = HEX[usize::from(token & 15)];
        child[3] = 0x78;
        child[4] = 0x40;
        if let Some(digits) = child[5..].first_chunk_mut() {
            write_hex(hash, digits);
        }
        out.extend_from_slice(&child);
    }

    out.extend_from_slice(&[0x61, b'v']);
    put_value(out, value);
}
