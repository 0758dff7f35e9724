//! One operation of a trace: what its bytes mean in each dialect.
//!
//! A body is a tag and a payload. *Text* stands for a key as the 52 characters that users know it
//! by (`Co…`): a length as varint and base58 of a prefix of two bytes, the 32 bytes of the key and
//! four of a checksum. A varint has seven bits in a byte, lowest first, the eighth says that
//! another one follows. A result is a byte, 0 for no and any other for yes.
//!
//! | operation | migration | mirage | recorder | payload of the first two        | payload of the recorder |
//! |-----------|-----------|--------|----------|---------------------------------|-------------------------|
//! | flush     | 0         | 1      | 3        |                                 |                         |
//! | mem       | 1         | 2      | 2        | text, result                    | key                     |
//! | find      | 2         | 3      | 1        | text, result                    | key                     |
//! | add       | 3         | 6      | 0        | text, offset, length, kind      | key, value              |
//! | clear     |           | 0      |          |                                 |                         |
//! | ro-mem    |           | 4      |          | text, result                    |                         |
//! | ro-find   |           | 5      |          | text, result                    |                         |
//! | remove    | 4, ours   |        |          | text                            |                         |
//!
//! Offset (i64, big-endian), length (varint) and kind (a byte) are the value: its 13 bytes are
//! offset, length as i32 and kind, all big-endian. The recorder has key and value as they are, 32
//! and 13 bytes, or as strings, each behind its length as varint; keys can be text then, too. It
//! records no results.

use bitcoin::base58;
use terrane::io::bytes::{Overrun, Reader};

use super::dialect::{Dialect, Kind};
use super::error::Malformed;
use crate::traces::varint;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Bytes of a value.
pub const VALUE_BYTES: usize = 13;

/// Prefix of a key in its text, which makes the text begin with `Co`.
const TEXT_PREFIX: [u8; 2] = [79, 199];

/// Characters of the text of a key.
const TEXT_CHARS: usize = 52;

/// An operation on an index. `expected` is whether the key was there, where that was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the same operands everywhere")]
pub enum Op {
    /// Make what was written durable.
    Flush,
    /// Remove everything.
    Clear,
    /// Ask whether a key is there.
    Mem { key: [u8; KEY_BYTES], expected: Option<bool> },
    /// Look a key up.
    Find { key: [u8; KEY_BYTES], expected: Option<bool> },
    /// `Mem` of a reader beside the writer.
    RoMem { key: [u8; KEY_BYTES], expected: Option<bool> },
    /// `Find` of a reader beside the writer.
    RoFind { key: [u8; KEY_BYTES], expected: Option<bool> },
    /// Insert or replace.
    Add { key: [u8; KEY_BYTES], value: [u8; VALUE_BYTES] },
    /// Remove a key.
    Remove { key: [u8; KEY_BYTES] },
}

impl Op {
    /// The operation that a body is.
    pub(super) fn decode(dialect: Dialect, body: &[u8]) -> Result<Self, Malformed> {
        let mut input = Reader::new(body);
        let tag = input.u8()?;
        // Each dialect numbers its operations in its own way.
        let kind = *dialect.kinds().get(usize::from(tag)).ok_or(Malformed::Tag(tag))?;

        let op = match kind {
            Kind::Flush => Self::Flush,
            Kind::Clear => Self::Clear,
            Kind::Remove => Self::Remove { key: key(dialect, &mut input)? },
            Kind::Add => {
                let key = key(dialect, &mut input)?;
                Self::Add { key, value: value(dialect, &mut input)? }
            }
            Kind::Mem | Kind::Find | Kind::RoMem | Kind::RoFind => {
                let key = key(dialect, &mut input)?;
                // Only some dialects record the answer.
                let expected = match dialect {
                    Dialect::Migration | Dialect::Mirage => Some(input.u8()? != 0),
                    Dialect::Recorder | Dialect::RecorderStrings => None,
                };
                match kind {
                    Kind::Mem => Self::Mem { key, expected },
                    Kind::Find => Self::Find { key, expected },
                    Kind::RoMem => Self::RoMem { key, expected },
                    _ => Self::RoFind { key, expected },
                }
            }
        };

        match input.rest().len() {
            0 => Ok(op),
            bytes => Err(Malformed::Excess(bytes)),
        }
    }

    /// The body in the first dialect; `None` if that has no such operation.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match self {
            Self::Flush => out.push(0),
            Self::Mem { key, expected } => {
                put_key(&mut out, 1, key);
                out.push(u8::from((*expected)?));
            }
            Self::Find { key, expected } => {
                put_key(&mut out, 2, key);
                out.push(u8::from((*expected)?));
            }
            Self::Add { key, value } => {
                put_key(&mut out, 3, key);
                let (offset, rest) = value.split_first_chunk::<8>()?;
                let (length, kind) = rest.split_first_chunk::<4>()?;
                #[expect(clippy::big_endian_bytes, reason = "the format of others")]
                let length = u64::try_from(i32::from_be_bytes(*length)).ok()?;
                out.extend_from_slice(offset);
                varint::put(&mut out, length);
                out.extend_from_slice(kind);
            }
            Self::Remove { key } => put_key(&mut out, 4, key),
            Self::Clear | Self::RoMem { .. } | Self::RoFind { .. } => return None,
        }

        Some(out)
    }
}

impl From<Overrun> for Malformed {
    fn from(_: Overrun) -> Self {
        Self::Short
    }
}

/// An unsigned number of any length that 64 bits have room for.
pub(super) fn varint(input: &mut Reader<'_>) -> Result<u64, Malformed> {
    varint::read(input)?.ok_or(Malformed::Number)
}

fn string<'a>(input: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let bytes = varint(input)?;
    Ok(input.take(usize::try_from(bytes).unwrap_or(usize::MAX))?)
}

fn key(dialect: Dialect, input: &mut Reader<'_>) -> Result<[u8; KEY_BYTES], Malformed> {
    let bytes = match dialect {
        Dialect::Recorder => input.take(KEY_BYTES)?,
        Dialect::RecorderStrings | Dialect::Migration | Dialect::Mirage => string(input)?,
    };

    // Dialects write keys as bytes or as text; the length tells which.
    match (dialect, bytes.len()) {
        (Dialect::Migration | Dialect::Mirage | Dialect::RecorderStrings, TEXT_CHARS) => {
            key_of_text(bytes)
        }
        (Dialect::Recorder | Dialect::RecorderStrings, KEY_BYTES) => {
            bytes.try_into().map_err(|_| Malformed::KeyLength(bytes.len() as u64))
        }
        (_, found) => Err(Malformed::KeyLength(found as u64)),
    }
}

/// The key that a text stands for.
fn key_of_text(text: &[u8]) -> Result<[u8; KEY_BYTES], Malformed> {
    let text = std::str::from_utf8(text).map_err(|_| Malformed::KeyChecksum)?;
    let bytes = base58::decode_check(text).map_err(|_| Malformed::KeyChecksum)?;
    let key = bytes.strip_prefix(&TEXT_PREFIX).ok_or(Malformed::KeyKind)?;
    key.try_into().map_err(|_| Malformed::KeyKind)
}

/// Appends a tag and the text of a key.
fn put_key(out: &mut Vec<u8>, tag: u8, key: &[u8; KEY_BYTES]) {
    let text = base58::encode_check(&[TEXT_PREFIX.as_slice(), key].concat());
    out.push(tag);
    varint::put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn value(dialect: Dialect, input: &mut Reader<'_>) -> Result<[u8; VALUE_BYTES], Malformed> {
    let bytes = match dialect {
        Dialect::Migration | Dialect::Mirage => return located(input),
        Dialect::Recorder => input.take(VALUE_BYTES)?,
        Dialect::RecorderStrings => string(input)?,
    };
    bytes.try_into().map_err(|_| Malformed::ValueLength(bytes.len() as u64))
}

/// A value from its parts.
fn located(input: &mut Reader<'_>) -> Result<[u8; VALUE_BYTES], Malformed> {
    let mut value = [0; VALUE_BYTES];
    value[..8].copy_from_slice(input.take(8)?);
    let length = i32::try_from(varint(input)?).map_err(|_| Malformed::Number)?;
    #[expect(clippy::big_endian_bytes, reason = "the format of others")]
    value[8..12].copy_from_slice(&length.to_be_bytes());
    value[12] = input.u8()?;
    Ok(value)
}
