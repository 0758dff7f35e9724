//! The row of a stop: what it holds, and by which chains it is reached.
//!
//! Nodes are counted as if each were stored: the nodes of a chain too, many of which can be the same as others, as equal
//! sub-trees have equal nodes wherever they are. Two chains have nodes in common exactly as far as they are equal seen from
//! their common stop upwards. So the row of a stop lists the different chains above it, reversed, and a node of a chain is
//! gone when no chain that is left begins with its part. Of each chain the row has the number of its *spans*: a span is a place
//! in a tree and a run of versions, each the neighbour of the next, that have the edge there.
//!
//! Key: the hash of the stop, all [`ROW_KEY_BYTES`] bytes of it: nobody can make two nodes that
//! have one key. Value:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | CRC-32C of the key and of all that follows |
//! | 1 | kind: 1 small value, 2 larger value, 3 whole branch, 4 difference of a branch; + [`SPILLED_FLAG`] |
//! | 1.. | number of different chains; 0 only of a branch that is the base of others |
//! | .. | the chains ascending, if they are not spilled: length (1), tokens from below, number of spans (1..) |
//! | .. | a larger value, or a branch (see `branch`) |
//!
//! Beside the row of a stop there may be others, whose key is that of the stop and more, and whose value is a CRC-32C of key and
//! number, and that number, not 0:
//!
//! | key after that of the stop | number |
//! |---|---|
//! | [`CHAIN_TAG`], a chain from below | its spans, if the chains are spilled: there are more than [`CHAINS_IN_ROW_MAX`] |
//! | [`USERS_TAG`] | rows that are a difference from this one; it is a whole branch, and stays as long as there are any |

use std::sync::Arc;

use terrane_io::checksum::{crc32c, crc32c_append};

use crate::base::address::Prefix;
use crate::base::node_hash::NodeHash;
use crate::node::branch::{Branch, base_of};
use crate::node::node::{Broken, Input, Read, common, put_chain, put_number};

/// Bytes of the key of a stop's row.
pub(crate) const ROW_KEY_BYTES: usize = 32;
/// Chains that stand in the row of their stop, at most.
pub(crate) const CHAINS_IN_ROW_MAX: usize = 8;
/// Set in the kind of a row whose chains have rows of their own.
pub(crate) const SPILLED_FLAG: u8 = 0x80;

/// Begins what is added to the key of a stop for a chain.
pub(crate) const CHAIN_TAG: u8 = 0;
/// Is added to the key of a stop for the number of its users.
pub(crate) const USERS_TAG: u8 = 1;

const CRC_BYTES: usize = 4;

/// The key of a stop's row.
pub(crate) type RowKey = [u8; ROW_KEY_BYTES];

pub(crate) fn key_of(hash: &NodeHash) -> RowKey {
    hash.0
}

/// A chain from its stop upwards.
pub(crate) fn reversed(chain: &Prefix) -> Prefix {
    let mut bytes = *chain;
    bytes.reverse();
    bytes
}

/// The key of a chain that is spilled.
pub(crate) fn chain_key(key: &RowKey, reversed: &Prefix) -> Vec<u8> {
    [key.as_slice(), &[CHAIN_TAG], reversed.as_bytes()].concat()
}

/// The chain that a key is of, if it is one of a spilled chain of this stop.
pub(crate) fn chain_of_key(key: &RowKey, of: &[u8]) -> Option<Prefix> {
    let rest = of.strip_prefix(key.as_slice())?.strip_prefix(&[CHAIN_TAG])?;
    Prefix::new(rest).ok()
}

/// The key of the number of rows that are a difference from this one.
pub(crate) fn users_key(key: &RowKey) -> [u8; ROW_KEY_BYTES + 1] {
    let mut of = [USERS_TAG; ROW_KEY_BYTES + 1];
    of[..ROW_KEY_BYTES].copy_from_slice(key);
    of
}

/// The chains above a stop, and how many spans each has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chains {
    /// All of them, ascending.
    Here(Vec<(Prefix, u64)>),
    /// They have rows of their own, so many.
    Spilled(u64),
}

impl Default for Chains {
    fn default() -> Self {
        Self::Here(Vec::new())
    }
}

/// What the row of a stop holds besides its place in the tree.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// Nothing: the value stands in the edges.
    Inline,
    /// A larger value.
    Value(Arc<[u8]>),
    /// A branch.
    Branch(Arc<Branch>),
}

/// What the content of a row is.
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

/// The row of a stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row<'a> {
    pub(crate) chains: Chains,
    pub(crate) kind: Kind,
    /// As it is stored.
    pub(crate) content: &'a [u8],
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    crc32c_append(crc32c(key), body)
}

fn seal(key: &[u8], mut row: Vec<u8>) -> Vec<u8> {
    let crc = checksum(key, &row[CRC_BYTES..]);
    row[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
    row
}

/// The body of a row, if its checksum is right.
fn open<'a>(key: &[u8], row: &'a [u8]) -> Read<Input<'a>> {
    let mut input = Input(row);
    let crc = u32::from_le_bytes(input.array()?);
    if crc == checksum(key, input.0) { Ok(input) } else { Err(Broken("checksum")) }
}

impl<'a> Row<'a> {
    pub(crate) fn encode(&self, key: &RowKey) -> Vec<u8> {
        let kind = self.kind as u8;
        let mut out = Vec::with_capacity(self.content.len() + ROW_KEY_BYTES + 40);
        out.extend_from_slice(&[0; CRC_BYTES]);
        match &self.chains {
            Chains::Here(chains) => {
                out.push(kind);
                put_number(&mut out, chains.len() as u64);
                for (chain, spans) in chains {
                    put_chain(&mut out, chain);
                    put_number(&mut out, *spans);
                }
            }
            Chains::Spilled(count) => {
                out.push(kind | SPILLED_FLAG);
                put_number(&mut out, *count);
            }
        }
        out.extend_from_slice(self.content);
        seal(key, out)
    }

    pub(crate) fn decode(key: &RowKey, row: &'a [u8]) -> Read<Self> {
        let mut input = open(key, row)?;
        let byte = input.byte()?;
        let kind = Kind::of(byte & !SPILLED_FLAG)?;
        let count = input.number()?;
        let chains = if byte & SPILLED_FLAG != 0 {
            Chains::Spilled(count)
        } else {
            let mut chains: Vec<(Prefix, u64)> = Vec::new();
            for _ in 0..count {
                let chain = input.chain()?;
                let spans = input.number()?;
                if spans == 0 || chains.last().is_some_and(|(last, _)| *last >= chain) {
                    return Err(Broken("chains do not ascend, or one has no span"));
                }
                chains.push((chain, spans));
            }
            Chains::Here(chains)
        };
        if count == 0 && (kind != Kind::Branch || chains != Chains::default()) {
            return Err(Broken("no chain leads to it"));
        }
        let content = input.0;
        if kind == Kind::Inline {
            input.end()?;
        }
        Ok(Self { chains, kind, content })
    }

    /// Of a difference, the branch that it differs from.
    pub(crate) fn base(&self) -> Read<Option<NodeHash>> {
        if self.kind == Kind::Difference { base_of(self.content).map(Some) } else { Ok(None) }
    }

    /// What it holds. `base` is the branch that a difference is from.
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
    let mut out = vec![0; CRC_BYTES];
    put_number(&mut out, number);
    seal(key, out)
}

pub(crate) fn decode_number(key: &[u8], row: &[u8]) -> Read<u64> {
    let mut input = open(key, row)?;
    let number = input.number()?;
    input.end()?;
    if number == 0 { Err(Broken("a number is 0")) } else { Ok(number) }
}

/// How many different nodes some chains have above their common stop; they ascend.
pub(crate) fn nodes_above<'a>(chains: impl Iterator<Item = &'a Prefix>) -> u64 {
    let mut nodes = 0;
    let mut last: &[u8] = &[];
    for chain in chains {
        nodes += (chain.as_bytes().len() - common(last, chain.as_bytes())) as u64;
        last = chain.as_bytes();
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(tokens: &[u8]) -> Prefix {
        Prefix::new(tokens).unwrap()
    }

    #[test]
    fn nodes_that_chains_share_from_below_count_once() {
        assert_eq!(nodes_above([].iter()), 0);
        let chains = [chain(&[]), chain(&[1, 2]), chain(&[1, 2, 3]), chain(&[1, 3]), chain(&[2])];
        assert_eq!(nodes_above(chains.iter()), 5);
    }

    #[test]
    fn every_byte_of_a_row_is_checked() {
        let key = [7; ROW_KEY_BYTES];
        let chains = Chains::Here(vec![(chain(&[1]), 1), (chain(&[1, 2]), 300)]);
        for row in [
            Row { chains: chains.clone(), kind: Kind::Value, content: &[9; 80] },
            Row { chains: Chains::Spilled(77), kind: Kind::Inline, content: &[] },
            Row { chains: Chains::default(), kind: Kind::Branch, content: &[1, 2] },
        ] {
            let bytes = row.encode(&key);
            assert_eq!(Row::decode(&key, &bytes), Ok(row));
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut bytes = bytes.clone();
                    bytes[at] ^= 1 << bit;
                    assert!(Row::decode(&key, &bytes).is_err(), "byte {at}, bit {bit}");
                }
                assert!(Row::decode(&key, &bytes[..at]).is_err(), "cut to {at}");
            }
            assert!(Row::decode(&[8; ROW_KEY_BYTES], &bytes).is_err(), "the row of another key");
        }
        let spans = encode_number(&key, 200);
        assert_eq!(decode_number(&key, &spans), Ok(200));
        assert!(decode_number(&[8], &spans).is_err());
    }
}
