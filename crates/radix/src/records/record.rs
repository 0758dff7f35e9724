//! The record of a node: what it holds, and by which extensions it is reached.
//!
//! Plain nodes are counted as if each were stored, those of extensions too. Equal sub-trees have
//! equal nodes wherever they are, so two extensions above one node share plain nodes exactly as far
//! as both are equal from below. The record of a node therefore lists its different extensions,
//! reversed: a plain node is gone when no listed extension begins with its part.
//!
//! The record counts the *references* of each extension. A reference is a place in a tree and a run
//! of versions, each the neighbour of the next, that have the edge at this place.
//!
//! Key: all [`ROW_KEY_BYTES`] bytes of the node's hash, so that nobody can prepare two nodes with
//! one key. Value:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | CRC-32C of the key and of all that follows |
//! | 1 | kind: 1 small value, 2 larger value, 3 whole branch, 4 difference of a branch; + [`SPILLED_FLAG`] |
//! | 1.. | number of different extensions; 0 only of a branch that is the base of others |
//! | .. | the extensions ascending, if they are not spilled: length (1), tokens from below, number of references (1..) |
//! | .. | a larger value, or a branch (see `branch`) |
//!
//! Further records of a node have its key and more as their key. The value is a CRC-32C of key and
//! number, and the number, which is not 0:
//!
//! | key after that of the node | number |
//! |---|---|
//! | [`CHAIN_TAG`], an extension from below | its references, if the extensions are spilled: there are more than [`CHAINS_IN_ROW_MAX`] |
//! | [`USERS_TAG`] | records that are a difference from this one; it is a whole branch, and stays as long as there are any |

use std::sync::Arc;

use terrane_io::checksum::{crc32c, crc32c_append};

use crate::base::address::Prefix;
use crate::base::node_hash::NodeHash;
use crate::node::branch::{Branch, base_of};
use crate::node::node::{Broken, Input, Read, common, put_extension, put_number};

/// Bytes of the key of a node's record.
pub(crate) const ROW_KEY_BYTES: usize = 32;
/// Extensions that stand in the record of their node, at most.
pub(crate) const CHAINS_IN_ROW_MAX: usize = 8;
/// Set in the kind of a record whose extensions have records of their own.
pub(crate) const SPILLED_FLAG: u8 = 0x80;

/// Begins what is added to the key of a node for an extension.
pub(crate) const CHAIN_TAG: u8 = 0;
/// Is added to the key of a node for the number of its users.
pub(crate) const USERS_TAG: u8 = 1;

const CRC_BYTES: usize = 4;

/// The key of a node's record.
pub(crate) type RecordKey = [u8; ROW_KEY_BYTES];

pub(crate) fn key_of(hash: &NodeHash) -> RecordKey {
    hash.0
}

/// An extension read upwards, from its node.
pub(crate) fn reversed(extension: &Prefix) -> Prefix {
    let mut bytes = *extension;
    bytes.reverse();
    bytes
}

/// The key of an extension that is spilled.
pub(crate) fn extension_key(key: &RecordKey, reversed: &Prefix) -> Vec<u8> {
    let of = [key.as_slice(), &[CHAIN_TAG], reversed.as_bytes()].concat();
    debug_assert_eq!(extension_of_key(key, &of), Some(*reversed), "the key names the extension");
    of
}

/// The spilled extension of this node that a key belongs to, if any.
pub(crate) fn extension_of_key(key: &RecordKey, of: &[u8]) -> Option<Prefix> {
    let rest = of.strip_prefix(key.as_slice())?.strip_prefix(&[CHAIN_TAG])?;
    Prefix::new(rest).ok()
}

/// The key of the number of records that are a difference from this one.
pub(crate) fn users_key(key: &RecordKey) -> [u8; ROW_KEY_BYTES + 1] {
    let mut of = [USERS_TAG; ROW_KEY_BYTES + 1];
    of[..ROW_KEY_BYTES].copy_from_slice(key);
    debug_assert_eq!(extension_of_key(key, &of), None, "no extension has this key");
    of
}

/// Extensions above a node, each with its number of references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Extensions {
    /// All of them, ascending.
    Here(Vec<(Prefix, u64)>),
    /// Number of the extensions, each of which has a record of its own.
    Spilled(u64),
}

impl Default for Extensions {
    fn default() -> Self {
        Self::Here(Vec::new())
    }
}

/// Content of a record: the part that does not depend on the extensions above the node.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// Nothing: the value stands in the edges.
    Inline,
    /// A larger value.
    Value(Arc<[u8]>),
    /// A branch.
    Branch(Arc<Branch>),
}

/// Kind of the content of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Inline = 1,
    Value = 2,
    Branch = 3,
    Difference = 4,
}

impl Kind {
    fn of(byte: u8) -> Read<Self> {
        [Self::Inline, Self::Value, Self::Branch, Self::Difference]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
            .ok_or(Broken("unknown kind"))
    }
}

/// The record of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) extensions: Extensions,
    pub(crate) kind: Kind,
    /// Stored bytes of the content.
    pub(crate) content: &'a [u8],
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    crc32c_append(crc32c(key), body)
}

fn seal(key: &[u8], mut record: Vec<u8>) -> Vec<u8> {
    debug_assert!(record.len() > CRC_BYTES, "a record has a body");
    let crc = checksum(key, &record[CRC_BYTES..]);
    record[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
    record
}

/// The body of a record, if its checksum is right.
fn open<'a>(key: &[u8], record: &'a [u8]) -> Read<Input<'a>> {
    let mut input = Input(record);
    let crc = u32::from_le_bytes(input.array()?);
    if crc == checksum(key, input.0) { Ok(input) } else { Err(Broken("checksum")) }
}

impl<'a> Record<'a> {
    pub(crate) fn encode(&self, key: &RecordKey) -> Vec<u8> {
        let kind = self.kind as u8;
        let mut out = Vec::with_capacity(self.content.len() + ROW_KEY_BYTES + 40);
        out.extend_from_slice(&[0; CRC_BYTES]);

        match &self.extensions {
            Extensions::Here(extensions) => {
                debug_assert!(
                    extensions.is_sorted_by(|one, other| one.0 < other.0),
                    "extensions ascend"
                );
                out.push(kind);
                put_number(&mut out, extensions.len() as u64);
                for (extension, references) in extensions {
                    debug_assert!(*references > 0, "an extension without references is gone");
                    put_extension(&mut out, extension);
                    put_number(&mut out, *references);
                }
            }
            Extensions::Spilled(count) => {
                debug_assert!(*count > 0, "no extension leads to it");
                out.push(kind | SPILLED_FLAG);
                put_number(&mut out, *count);
            }
        }

        out.extend_from_slice(self.content);
        debug_assert!(out[CRC_BYTES] & !SPILLED_FLAG == kind);
        seal(key, out)
    }

    pub(crate) fn decode(key: &RecordKey, record: &'a [u8]) -> Read<Self> {
        let mut input = open(key, record)?;
        let byte = input.byte()?;
        let kind = Kind::of(byte & !SPILLED_FLAG)?;

        let count = input.number()?;
        let extensions = if byte & SPILLED_FLAG != 0 {
            Extensions::Spilled(count)
        } else {
            let mut extensions: Vec<(Prefix, u64)> = Vec::new();
            for _ in 0..count {
                let extension = input.extension()?;
                let references = input.number()?;
                if references == 0 || extensions.last().is_some_and(|(last, _)| *last >= extension)
                {
                    return Err(Broken("extensions do not ascend, or one has no reference"));
                }
                extensions.push((extension, references));
            }
            Extensions::Here(extensions)
        };

        // Only the base of other branches may stay without an extension above it.
        if count == 0 && (kind != Kind::Branch || extensions != Extensions::default()) {
            return Err(Broken("no extension leads to it"));
        }

        let content = input.0;
        // A small value stands in the edges, so the record has nothing more.
        if kind == Kind::Inline {
            input.end()?;
        }

        Ok(Self { extensions, kind, content })
    }

    /// The base, if the content is a difference.
    pub(crate) fn base(&self) -> Read<Option<NodeHash>> {
        if self.kind == Kind::Difference { base_of(self.content).map(Some) } else { Ok(None) }
    }

    /// Decodes the content. `base` is the base of a difference.
    pub(crate) fn read(&self, base: Option<&Branch>) -> Read<Content> {
        Ok(match (self.kind, base) {
            (Kind::Inline, _) => Content::Inline,
            (Kind::Value, _) => Content::Value(self.content.into()),
            (Kind::Branch, _) => Content::Branch(Arc::new(Branch::read(self.content)?)),
            (Kind::Difference, Some(base)) => {
                Content::Branch(Arc::new(base.read_difference(self.content)?))
            }
            (Kind::Difference, None) => return Err(Broken("its base is missing")),
        })
    }
}

pub(crate) fn encode_number(key: &[u8], number: u64) -> Vec<u8> {
    debug_assert!(number != 0, "a counter of 0 has no record");
    let mut out = vec![0; CRC_BYTES];
    put_number(&mut out, number);
    seal(key, out)
}

pub(crate) fn decode_number(key: &[u8], record: &[u8]) -> Read<u64> {
    let mut input = open(key, record)?;
    let number = input.number()?;
    input.end()?;
    if number == 0 { Err(Broken("a number is 0")) } else { Ok(number) }
}

/// Number of different plain nodes of extensions above one node; the extensions ascend.
pub(crate) fn nodes_above<'a>(extensions: impl Iterator<Item = &'a Prefix>) -> u64 {
    // Extensions ascend from the node upwards, so each shares most with the one before.
    let mut nodes = 0;
    let mut last: &[u8] = &[];
    for extension in extensions {
        nodes += (extension.as_bytes().len() - common(last, extension.as_bytes())) as u64;
        last = extension.as_bytes();
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(tokens: &[u8]) -> Prefix {
        Prefix::new(tokens).unwrap()
    }

    #[test]
    fn plain_nodes_that_extensions_share_from_below_count_once() {
        assert_eq!(nodes_above([].iter()), 0);
        let extensions = [
            extension(&[]),
            extension(&[1, 2]),
            extension(&[1, 2, 3]),
            extension(&[1, 3]),
            extension(&[2]),
        ];
        assert_eq!(nodes_above(extensions.iter()), 5);
    }

    #[test]
    fn every_byte_of_a_record_is_checked() {
        let key = [7; ROW_KEY_BYTES];
        let extensions = Extensions::Here(vec![(extension(&[1]), 1), (extension(&[1, 2]), 300)]);
        for record in [
            Record { extensions: extensions.clone(), kind: Kind::Value, content: &[9; 80] },
            Record { extensions: Extensions::Spilled(77), kind: Kind::Inline, content: &[] },
            Record { extensions: Extensions::default(), kind: Kind::Branch, content: &[1, 2] },
        ] {
            let bytes = record.encode(&key);
            assert_eq!(Record::decode(&key, &bytes), Ok(record));
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut bytes = bytes.clone();
                    bytes[at] ^= 1 << bit;
                    assert!(Record::decode(&key, &bytes).is_err(), "byte {at}, bit {bit}");
                }
                assert!(Record::decode(&key, &bytes[..at]).is_err(), "cut to {at}");
            }
            assert!(
                Record::decode(&[8; ROW_KEY_BYTES], &bytes).is_err(),
                "the record of another key"
            );
        }

        let references = encode_number(&key, 200);
        assert_eq!(decode_number(&key, &references), Ok(200));
        assert!(decode_number(&[8], &references).is_err());
    }
}
