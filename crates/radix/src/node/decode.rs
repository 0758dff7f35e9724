//! Reads the bytes of nodes (see `cbor`) strictly: what the encoder makes, long heads of lengths
//! included, and nothing else.

use std::sync::Arc;

use crate::base::address::ADDRESS_BYTES_MAX;
use crate::base::cbor::put_node;
use crate::base::node_hash::{NODE_HASH_BYTES, NodeHash};
use crate::node::branch::Branch;
use crate::node::node::{Broken, Input};

/// Children of a node at most.
pub(crate) const CHILDREN_MAX: usize = 256;

/// A node as it is hashed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PlainNode {
    pub(crate) value: Option<Arc<[u8]>>,
    /// Ascending by token.
    pub(crate) children: Vec<(u8, NodeHash)>,
}

fn literal(input: &mut Input<'_>, bytes: &[u8], rule: &'static str) -> Result<(), Broken> {
    if input.bytes(bytes.len())? == bytes { Ok(()) } else { Err(Broken(rule)) }
}

/// A number of `N` bytes, the highest first.
fn big_endian<const N: usize>(input: &mut Input<'_>) -> Result<u64, Broken> {
    Ok(input.array::<N>()?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// The byte that two lower-case hex digits stand for.
fn hex_byte(digits: &[u8]) -> Result<u8, Broken> {
    let digit = |at: usize| match digits.get(at) {
        Some(digit @ b'0'..=b'9') => Ok(digit - b'0'),
        Some(digit @ b'a'..=b'f') => Ok(digit - b'a' + 10),
        _ => Err(Broken("a character is no lower-case hex digit")),
    };
    Ok(digit(0)? << 4 | digit(1)?)
}

fn child(input: &mut Input<'_>) -> Result<(u8, NodeHash), Broken> {
    literal(input, &[0x62], "a token is no text of two characters")?;
    let token = hex_byte(input.bytes(2)?)?;
    literal(input, &[0x78, 0x40], "a hash is no text of 64 characters")?;
    let mut hash = NodeHash([0; NODE_HASH_BYTES]);
    let digits = input.bytes(2 * NODE_HASH_BYTES)?;
    for (byte, digits) in hash.0.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = hex_byte(digits)?;
    }
    Ok((token, hash))
}

fn value<'a>(input: &mut Input<'a>) -> Result<Option<&'a [u8]>, Broken> {
    let len = match input.byte()? {
        0xf6 => return Ok(None),
        head @ 0x40..=0x57 => u64::from(head - 0x40),
        0x58 => big_endian::<1>(input)?,
        0x59 => big_endian::<2>(input)?,
        0x5a => big_endian::<4>(input)?,
        0x5b => big_endian::<8>(input)?,
        _ => return Err(Broken("the value is neither bytes nor null")),
    };
    let len = usize::try_from(len).map_err(|_| Broken("it is cut short"))?;
    Ok(Some(input.bytes(len)?))
}

impl PlainNode {
    pub(crate) fn child(&self, token: u8) -> Option<&NodeHash> {
        let at = self.children.binary_search_by_key(&token, |(token, _)| *token).ok()?;
        Some(&self.children[at].1)
    }

    pub(crate) fn of(branch: &Branch) -> Self {
        let children = branch.hashes().map(|(token, hash)| (token, NodeHash(*hash)));
        Self { value: branch.value().map(Into::into), children: children.collect() }
    }

    /// Its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let children = self.children.iter().map(|(token, hash)| (*token, &hash.0));
        put_node(&mut bytes, self.children.len(), children, self.value.as_deref());
        bytes
    }

    /// Reads a node, behind which more may stand. Takes memory only for what is there.
    pub(crate) fn read(input: &mut Input<'_>) -> Result<Self, Broken> {
        let all = input.0;
        literal(input, &[0xa2, 0x61, b'c'], "no map of \"c\" and \"v\"")?;
        let count = match input.byte()? {
            head @ 0xa0..=0xb7 => u64::from(head - 0xa0),
            0xb8 => big_endian::<1>(input)?,
            0xb9 => big_endian::<2>(input)?,
            _ => return Err(Broken("the children are no map")),
        };

        if count > CHILDREN_MAX as u64 {
            return Err(Broken("more children than tokens"));
        }

        let mut children: Vec<(u8, NodeHash)> = Vec::new();
        for _ in 0..count {
            let child = child(input)?;
            if children.last().is_some_and(|(last, _)| *last >= child.0) {
                return Err(Broken("children do not ascend"));
            }
            children.push(child);
        }

        literal(input, &[0x61, b'v'], "no \"v\" after \"c\"")?;
        let value = value(input)?.map(Arc::from);

        let node = Self { value, children };
        let bytes = &all[..all.len() - input.0.len()];
        // A node has one encoding, so that equal nodes have equal hashes.
        if node.encode() != bytes {
            return Err(Broken("a head is not the one that the encoder gives"));
        }

        Ok(node)
    }

    /// Reads a node that nothing follows.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Broken> {
        let mut input = Input(bytes);
        let node = Self::read(&mut input)?;
        input.end()?;
        Ok(node)
    }

    /// Refuses a node that no state has so many tokens below its root.
    pub(crate) fn check(&self, depth: usize) -> Result<(), Broken> {
        if depth == 0 && self.value.is_some() {
            return Err(Broken("the empty address has a value"));
        }
        if depth > 0 && self.value.is_none() && self.children.is_empty() {
            return Err(Broken("a node below the root has neither value nor child"));
        }
        if depth >= ADDRESS_BYTES_MAX && !self.children.is_empty() {
            return Err(Broken("an address is too long"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(fan_out: usize, value: Option<usize>) -> PlainNode {
        let children = (0..fan_out).map(|token| (token as u8, NodeHash([token as u8 ^ 0x5a; 32])));
        PlainNode { value: value.map(|len| vec![7; len].into()), children: children.collect() }
    }

    #[test]
    fn every_head_is_read_back() {
        for fan_out in [0, 1, 23, 24, 255, 256] {
            for value in [None, Some(0), Some(23), Some(24), Some(255), Some(256), Some(65_535)] {
                let node = node(fan_out, value);
                assert_eq!(PlainNode::decode(&node.encode()), Ok(node));
            }
        }
        for len in [65_536, 1_048_575, 1_048_576] {
            let node = node(0, Some(len));
            assert_eq!(PlainNode::decode(&node.encode()), Ok(node));
        }
    }

    #[test]
    fn only_the_form_of_the_encoder_is_taken() {
        let head = |bytes: &[u8], len: usize| {
            let mut node = vec![0xa2, 0x61, b'c', 0xa0, 0x61, b'v'];
            node.extend_from_slice(bytes);
            node.resize(node.len() + len, 1);
            PlainNode::decode(&node).is_ok()
        };

        assert!(head(&[0x43], 3));
        assert!(!head(&[0x58, 3], 3));
        assert!(!head(&[0x59, 0, 200], 200));
        assert!(head(&[0x5b, 0, 0, 0, 0, 0, 1, 0, 0], 0x1_0000));
        assert!(!head(&[0x5a, 0, 1, 0, 0], 0x1_0000));
        assert!(head(&[0x5a, 0, 0x10, 0, 0], 0x10_0000));
        assert!(!head(&[0x5b, 0, 0, 0, 0, 0, 0x10, 0, 0], 0x10_0000));
        assert!(!head(&[0x5b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], 3));
        assert!(!head(&[0xf7], 0));

        let bytes = node(3, Some(5)).encode();
        for cut in 0..bytes.len() {
            assert!(PlainNode::decode(&bytes[..cut]).is_err(), "cut to {cut}");
        }

        assert!(PlainNode::decode(&[&bytes[..], &[0]].concat()).is_err());
        let upper = [&bytes[..5], b"A", &bytes[6..]].concat();
        assert!(PlainNode::decode(&upper).is_err());
        let mut swapped = node(3, None);
        swapped.children.swap(0, 1);

        assert_eq!(PlainNode::decode(&swapped.encode()), Err(Broken("children do not ascend")));
    }
}
