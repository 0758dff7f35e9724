//! The row of a stop: what it holds, and by which chains it is reached.
//!
//! Nodes are counted as if each were stored: the nodes of a chain too, many of which can be the same as others, as equal
//! sub-trees have equal nodes wherever they are. Two chains have nodes in common exactly as far as they are equal seen from
//! their common stop upwards. So the row of a stop lists the different chains above it, reversed, and a node of a chain is
//! gone when no chain that is left begins with its part. Of each chain the row has the number of its *spans*: a span is a place
//! in a tree and a run of versions, each the neighbour of the next, that have the edge there.
//!
//! Key: the first [`ROW_KEY_BYTES`] bytes of the hash of the stop; finding two nodes that agree in them takes some 2^80
//! hashes. Value:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | CRC-32C of the key and of all that follows |
//! | 1 | kind: 1 small value, 2 larger value, 3 branch; + [`SPILLED_FLAG`] |
//! | 1.. | number of different chains, not 0 |
//! | .. | the chains ascending, if they are not spilled: length (1), tokens from below, number of spans (1..) |
//! | .. | a larger value, or a branch (see `node`) |
//!
//! More than [`CHAINS_IN_ROW_MAX`] chains are spilled: each is a row of its own, whose key is that of the stop, a zero byte
//! and the chain from below, and whose value is a CRC-32C of key and number of spans, and that number.

use std::sync::Arc;

use terrane_io::checksum::{crc32c, crc32c_append};

use crate::radix::address::Prefix;
use crate::radix::node::{Broken, Content, Input, common, put_chain, put_number};
use crate::radix::node_hash::NodeHash;

/// Bytes of the key of a stop's row.
pub(crate) const ROW_KEY_BYTES: usize = 20;
/// Chains that stand in the row of their stop, at most.
pub(crate) const CHAINS_IN_ROW_MAX: usize = 8;
/// Set in the kind of a row whose chains have rows of their own.
pub(crate) const SPILLED_FLAG: u8 = 0x80;

const KIND_INLINE: u8 = 1;
const KIND_VALUE: u8 = 2;
const KIND_BRANCH: u8 = 3;
const CRC_BYTES: usize = 4;

/// The key of a stop's row.
pub(crate) type RowKey = [u8; ROW_KEY_BYTES];

pub(crate) fn key_of(hash: &NodeHash) -> RowKey {
    hash.0.first_chunk().copied().unwrap_or([0; ROW_KEY_BYTES])
}

/// A chain from its stop upwards.
pub(crate) fn reversed(chain: &Prefix) -> Prefix {
    let mut bytes = *chain;
    bytes.reverse();
    bytes
}

/// The key of a chain that is spilled.
pub(crate) fn chain_key(key: &RowKey, reversed: &Prefix) -> Vec<u8> {
    [key.as_slice(), &[0], reversed.as_bytes()].concat()
}

/// The chain that a key is of, if it is one of a spilled chain of this stop.
pub(crate) fn chain_of_key(key: &RowKey, of: &[u8]) -> Option<Prefix> {
    let rest = of.strip_prefix(key.as_slice())?.strip_prefix(&[0])?;
    Prefix::new(rest).ok()
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

/// The row of a stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) chains: Chains,
    pub(crate) content: Content,
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
fn open<'a>(key: &[u8], row: &'a [u8]) -> Result<Input<'a>, Broken> {
    let mut input = Input(row);
    let crc = u32::from_le_bytes(input.array()?);
    if crc == checksum(key, input.0) { Ok(input) } else { Err(Broken("checksum")) }
}

impl Row {
    pub(crate) fn encode(&self, key: &RowKey) -> Vec<u8> {
        let kind = match self.content {
            Content::Inline => KIND_INLINE,
            Content::Value(_) => KIND_VALUE,
            Content::Branch(_) => KIND_BRANCH,
        };
        let content = match &self.content {
            Content::Inline => 0,
            Content::Value(value) => value.len(),
            Content::Branch(branch) => branch.as_bytes().len(),
        };
        let mut out = Vec::with_capacity(content + ROW_KEY_BYTES + 40);
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
        match &self.content {
            Content::Inline => {}
            Content::Value(value) => out.extend_from_slice(value),
            Content::Branch(branch) => out.extend_from_slice(branch.as_bytes()),
        }
        seal(key, out)
    }

    pub(crate) fn decode(key: &RowKey, row: &[u8]) -> Result<Self, Broken> {
        let mut input = open(key, row)?;
        let kind = input.byte()?;
        let count = input.number()?;
        if count == 0 {
            return Err(Broken("no chain leads to it"));
        }
        let chains = if kind & SPILLED_FLAG != 0 {
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
        let content = match kind & !SPILLED_FLAG {
            KIND_INLINE => Content::Inline,
            KIND_VALUE => Content::Value(std::mem::take(&mut input.0).into()),
            KIND_BRANCH => Content::Branch(Arc::new(input.branch()?)),
            _ => return Err(Broken("unknown kind")),
        };
        input.end()?;
        Ok(Self { chains, content })
    }
}

pub(crate) fn encode_spans(key: &[u8], spans: u64) -> Vec<u8> {
    let mut out = vec![0; CRC_BYTES];
    put_number(&mut out, spans);
    seal(key, out)
}

pub(crate) fn decode_spans(key: &[u8], row: &[u8]) -> Result<u64, Broken> {
    let mut input = open(key, row)?;
    let spans = input.number()?;
    input.end()?;
    if spans == 0 { Err(Broken("a chain has no span")) } else { Ok(spans) }
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
            Row { chains: chains.clone(), content: Content::Value([9; 80].as_slice().into()) },
            Row { chains: Chains::Spilled(77), content: Content::Inline },
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
        let spans = encode_spans(&key, 200);
        assert_eq!(decode_spans(&key, &spans), Ok(200));
        assert!(decode_spans(&[8], &spans).is_err());
    }
}
