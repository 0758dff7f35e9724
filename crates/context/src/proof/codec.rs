//! Codec of proofs: version 1 of irmin's format (that of Tezos), for 32 buckets to an inode.
//! Numbers are big-endian.
//!
//! | what       | bytes |
//! |------------|-------|
//! | proof      | version (u16, 0) ‖ before ‖ after ‖ tree |
//! | before, after | `00` value or `01` directory ‖ hash (32) |
//! | tree       | tag ‖ `00` value: u32 length, bytes; `01` blinded value: hash; `02` directory: entries; `03` blinded directory: hash; `04` inode; `05` extender |
//! | entries    | u32 length in bytes ‖ (u8 length ‖ step ‖ tree)*, ascending |
//! | inode      | i64 length ‖ buckets |
//! | buckets    | `00` ‖ u32 length in bytes ‖ (u8 index ‖ inode tree)*, fewer than 16, ascending; or `01` ‖ 32 inode trees, 16 or more of which are not *none* |
//! | inode tree | tag ‖ `00` blinded: hash; `01` values: entries; `02` inode; `03` extender; `04` none: nothing |
//! | extender   | i64 length ‖ u8 length in bytes ‖ segment ‖ inode tree |
//! | segment    | the indices, 5 bits each, highest first, then one bit `1`, then bits `0` to the end of the byte; 1 to 406 indices |
//!
//! Invariants: a proof has one encoding, and decoding refuses every other, so decoded bytes encode
//! to the same bytes. Decoding allocates for bytes that are there only, whatever the lengths say,
//! and nests no deeper than [`NESTING_MAX`].

use crate::base::corrupt::Corrupt;
use crate::base::hash::{HASH_BYTES, Hash};
use crate::base::path::PathText;
use crate::proof::proof::{
    ExtenderProof, InodeProof, InodeTree, KindedHash, NESTING_MAX, Proof, ProofEntry, ProofError,
    ProofTree, VERSION,
};
use crate::tree::tree::Kind;

/// Buckets of the dense form.
pub(crate) const DENSE_SLOTS: usize = 32;
/// Number of buckets from which on the form is dense.
pub(crate) const DENSE_MIN: usize = 16;
/// Upper bound of the indices of a segment.
pub(crate) const SEGMENT_MAX: usize = 406;
/// Bits of an index in a segment.
pub(crate) const INDEX_BITS: usize = 5;

type Coded<T> = Result<T, ProofError>;

impl Proof {
    /// Encodes the proof.
    ///
    /// # Errors
    /// For a proof that was put together by hand: [`Shape`](ProofError::Shape) if a part of it has
    /// no form in bytes, [`TooDeep`](ProofError::TooDeep). For any:
    /// [`TooLarge`](ProofError::TooLarge).
    pub fn encode(&self) -> Coded<Vec<u8>> {
        let mut out = Vec::new();
        put_number(&mut out, VERSION.into(), 2);
        for kinded in [&self.before, &self.after] {
            out.push(u8::from(kinded.kind == Kind::Directory));
            out.extend_from_slice(&kinded.hash.0);
        }
        put_tree(&mut out, &self.state, 0)?;
        Ok(out)
    }

    /// Decodes a proof. The proof shows nothing until it is [verified](Self::verify).
    ///
    /// # Errors
    /// [`Malformed`](ProofError::Malformed),
    /// [`UnsupportedVersion`](ProofError::UnsupportedVersion), [`TooDeep`](ProofError::TooDeep).
    pub fn decode(bytes: &[u8]) -> Coded<Self> {
        let mut reader = Reader { bytes, at: 0, end: bytes.len() };
        let version = reader.number(2)? as u16;
        // Read first: what follows in another version may mean anything.
        if version != VERSION {
            return Err(ProofError::UnsupportedVersion { found: version });
        }

        let before = reader.kinded()?;
        let after = reader.kinded()?;
        let state = reader.tree(0)?;

        // One proof has one encoding.
        reader.rule(reader.is_done(), "nothing follows a proof", 0)?;
        Ok(Self { before, after, state })
    }
}

/// Writes the lowest `bytes` bytes of a number, big-endian.
fn put_number(out: &mut Vec<u8>, number: u64, bytes: u32) {
    debug_assert!(bytes >= 8 || number >> (8 * bytes) == 0, "the number fits");
    out.extend((0..bytes).rev().map(|byte| (number >> (8 * byte)) as u8));
}

fn shape<T>(rule: &'static str) -> Coded<T> {
    Err(ProofError::Shape { path: PathText::default(), rule })
}

/// Writes the bytes of `put` behind their length.
fn put_list(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>) -> Coded<()>) -> Coded<()> {
    let start = out.len();
    put_number(out, 0, 4);
    put(out)?;

    // The length was unknown before the bytes: fill it in.
    debug_assert!(out.len() >= start + 4, "a list is behind its length");
    let length = out.len() - start - 4;
    let length = u32::try_from(length).map_err(|_| ProofError::TooLarge)?;
    for (byte, slot) in (0..4).rev().zip(out.iter_mut().skip(start)) {
        *slot = (length >> (8 * byte)) as u8;
    }
    Ok(())
}

fn put_tree(out: &mut Vec<u8>, tree: &ProofTree, nesting: usize) -> Coded<()> {
    match tree {
        ProofTree::Value(bytes) => {
            out.push(0);
            put_list(out, |out| {
                out.extend_from_slice(bytes);
                Ok(())
            })
        }
        ProofTree::BlindedValue(hash) => {
            put_hash(out, 1, hash);
            Ok(())
        }
        ProofTree::Node(entries) => {
            out.push(2);
            put_entries(out, entries, nesting)
        }
        ProofTree::BlindedNode(hash) => {
            put_hash(out, 3, hash);
            Ok(())
        }
        ProofTree::Inode(inode) => {
            out.push(4);
            put_inode(out, inode, nesting)
        }
        ProofTree::Extender(chain) => {
            out.push(5);
            put_extender(out, chain, nesting)
        }
    }
}

fn put_hash(out: &mut Vec<u8>, tag: u8, hash: &Hash) {
    out.push(tag);
    out.extend_from_slice(&hash.0);
}

fn put_entries(out: &mut Vec<u8>, entries: &[ProofEntry], nesting: usize) -> Coded<()> {
    check_nesting(nesting)?;
    put_list(out, |out| {
        let mut last: &[u8] = &[];
        for (step, tree) in entries {
            let Ok(length) = u8::try_from(step.len()) else {
                return shape("a step has at most 255 bytes");
            };
            if last >= &**step {
                return shape("steps ascend, and none is empty");
            }
            out.push(length);
            out.extend_from_slice(step);
            put_tree(out, tree, nesting + 1)?;
            last = step;
        }
        Ok(())
    })
}

fn put_length(out: &mut Vec<u8>, length: u64) -> Coded<()> {
    if i64::try_from(length).is_err() {
        return shape("a length has 63 bits");
    }
    put_number(out, length, 8);
    Ok(())
}

fn put_inode(out: &mut Vec<u8>, inode: &InodeProof, nesting: usize) -> Coded<()> {
    check_nesting(nesting)?;

    let proofs = &inode.proofs;
    let ascend = proofs.windows(2).all(|pair| matches!(pair, [a, b] if a.0 < b.0));
    if !ascend || proofs.iter().any(|(index, _)| usize::from(*index) >= DENSE_SLOTS) {
        return shape("the indices of buckets ascend, below 32");
    }
    put_length(out, inode.length)?;

    // Few buckets are a list, many are 32 slots, as in the encoding of irmin.
    if proofs.len() < DENSE_MIN {
        out.push(0);
        return put_list(out, |out| {
            for (index, tree) in proofs {
                out.push(*index);
                put_inode_tree(out, Some(tree), nesting + 1)?;
            }
            Ok(())
        });
    }

    out.push(1);
    let mut proofs = proofs.iter().peekable();
    for slot in 0..DENSE_SLOTS {
        let tree = proofs.next_if(|(index, _)| usize::from(*index) == slot);
        put_inode_tree(out, tree.map(|(_, tree)| tree), nesting + 1)?;
    }

    Ok(())
}

fn put_inode_tree(out: &mut Vec<u8>, tree: Option<&InodeTree>, nesting: usize) -> Coded<()> {
    match tree {
        Some(InodeTree::BlindedInode(hash)) => {
            put_hash(out, 0, hash);
            Ok(())
        }
        Some(InodeTree::Values(entries)) => {
            out.push(1);
            put_entries(out, entries, nesting)
        }
        Some(InodeTree::Tree(inode)) => {
            out.push(2);
            put_inode(out, inode, nesting)
        }
        Some(InodeTree::Extender(chain)) => {
            out.push(3);
            put_extender(out, chain, nesting)
        }
        None => {
            out.push(4);
            Ok(())
        }
    }
}

fn put_extender(out: &mut Vec<u8>, chain: &ExtenderProof, nesting: usize) -> Coded<()> {
    check_nesting(nesting)?;
    put_length(out, chain.length)?;

    let count = chain.segment.len();
    if !(1..=SEGMENT_MAX).contains(&count) {
        return shape("a chain has 1 to 406 indices");
    }

    if chain.segment.iter().any(|&index| usize::from(index) >= DENSE_SLOTS) {
        return shape("the indices of buckets are below 32");
    }

    // Indices of 5 bits, then a bit that marks the end within the last byte.
    let mut bytes = vec![0u8; (INDEX_BITS * count + 8) / 8];
    debug_assert!(u8::try_from(bytes.len()).is_ok(), "406 indices fit into 255 bytes");
    out.push(bytes.len() as u8);
    let bits = chain
        .segment
        .iter()
        .flat_map(|&index| (0..INDEX_BITS).rev().map(move |bit| index >> bit & 1));

    for (at, bit) in bits.chain([1]).enumerate() {
        bytes[at / 8] |= bit << (7 - at % 8);
    }
    debug_assert!(bytes.last().is_some_and(|last| *last != 0), "the last byte ends the segment");
    out.extend_from_slice(&bytes);

    put_inode_tree(out, Some(&chain.proof), nesting + 1)
}

fn check_nesting(nesting: usize) -> Coded<()> {
    if nesting < NESTING_MAX { Ok(()) } else { Err(ProofError::TooDeep) }
}

/// Reader of the bytes up to the end of the innermost list.
///
/// Invariant: `at <= end <= bytes.len()`.
#[derive(Clone, Copy)]
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    fn is_done(&self) -> bool {
        self.at == self.end
    }

    /// Refuses the bytes unless the rule holds; `found` is the value in the bytes.
    fn rule(&self, holds: bool, rule: &'static str, found: u64) -> Coded<()> {
        if holds { Ok(()) } else { Err(self.malformed(Corrupt::rule(rule, 1, found))) }
    }

    fn malformed(&self, what: Corrupt) -> ProofError {
        ProofError::Malformed { offset: self.at, what }
    }

    fn take(&mut self, count: usize) -> Coded<&'a [u8]> {
        debug_assert!(
            self.at <= self.end && self.end <= self.bytes.len(),
            "the reader keeps to its list"
        );
        let rest = &self.bytes[self.at..self.end];
        let taken = rest.get(..count).ok_or_else(|| {
            let what = "what is announced is there";
            self.malformed(Corrupt { rule: what, expected: count as u64, found: rest.len() as u64 })
        })?;
        self.at += count;
        debug_assert!(self.at <= self.end, "the reader keeps to its list");
        Ok(taken)
    }

    /// Reads a number of up to 8 bytes, big-endian.
    fn number(&mut self, bytes: usize) -> Coded<u64> {
        debug_assert!(bytes <= 8, "a number has 64 bits");
        Ok(self.take(bytes)?.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn byte(&mut self) -> Coded<u8> {
        Ok(self.number(1)? as u8)
    }

    fn hash(&mut self) -> Coded<Hash> {
        let mut hash = Hash([0; HASH_BYTES]);
        hash.0.copy_from_slice(self.take(HASH_BYTES)?);
        Ok(hash)
    }

    fn kinded(&mut self) -> Coded<KindedHash> {
        let kind = match self.byte()? {
            0 => Kind::Value,
            1 => Kind::Directory,
            tag => return Err(self.tag("a value or a directory", tag)),
        };
        Ok(KindedHash { kind, hash: self.hash()? })
    }

    fn tag(&self, rule: &'static str, tag: u8) -> ProofError {
        debug_assert!(self.at > 0, "the tag was read");
        let what = Corrupt::rule(rule, 0, tag.into());
        ProofError::Malformed { offset: self.at - 1, what }
    }

    fn tree(&mut self, nesting: usize) -> Coded<ProofTree> {
        Ok(match self.byte()? {
            0 => {
                let length = self.number(4)? as usize;
                ProofTree::Value(self.take(length)?.to_vec())
            }
            1 => ProofTree::BlindedValue(self.hash()?),
            2 => ProofTree::Node(self.entries(nesting)?),
            3 => ProofTree::BlindedNode(self.hash()?),
            4 => ProofTree::Inode(self.inode(nesting)?),
            5 => ProofTree::Extender(self.extender(nesting)?),
            tag => return Err(self.tag("tag of a tree", tag)),
        })
    }

    /// Reads the length of a list; returns a reader of its bytes.
    fn list(&mut self) -> Coded<Self> {
        let length = self.number(4)? as usize;
        let start = self.at;
        self.take(length)?;
        Ok(Self { bytes: self.bytes, at: start, end: self.at })
    }

    fn entries(&mut self, nesting: usize) -> Coded<Vec<ProofEntry>> {
        check_nesting(nesting)?;

        // No capacity from the length: memory grows with the bytes that are there.
        let mut list = self.list()?;

        let mut entries = Vec::new();
        let mut last: &[u8] = &[];
        while !list.is_done() {
            let length = list.byte()?;
            let step = list.take(usize::from(length))?;
            list.rule(last < step, "steps ascend, and none is empty", length.into())?;
            entries.push((step.into(), list.tree(nesting + 1)?));
            last = step;
        }

        Ok(entries)
    }

    fn length(&mut self) -> Coded<u64> {
        let length = self.number(8)?;
        self.rule(i64::try_from(length).is_ok(), "a length is not negative", length)?;
        Ok(length)
    }

    fn inode(&mut self, nesting: usize) -> Coded<InodeProof> {
        check_nesting(nesting)?;
        let length = self.length()?;
        let proofs = match self.byte()? {
            0 => self.sparse(nesting + 1)?,
            1 => self.dense(nesting + 1)?,
            tag => return Err(self.tag("tag of the buckets of an inode", tag)),
        };
        Ok(InodeProof { length, proofs })
    }

    fn sparse(&mut self, nesting: usize) -> Coded<Vec<(u8, InodeTree)>> {
        let mut list = self.list()?;
        let mut proofs: Vec<(u8, InodeTree)> = Vec::new();
        while !list.is_done() {
            let index = list.byte()?;
            list.rule(usize::from(index) < DENSE_SLOTS, "an index is below 32", index.into())?;
            let ascends = proofs.last().is_none_or(|last| last.0 < index);
            list.rule(ascends, "the indices of buckets ascend", index.into())?;
            let Some(tree) = list.inode_tree(nesting)? else {
                return Err(list.malformed(Corrupt::rule("a bucket of a list is there", 1, 0)));
            };

            proofs.push((index, tree));
            let count = proofs.len();
            list.rule(count < DENSE_MIN, "16 buckets and more are dense", count as u64)?;
        }

        Ok(proofs)
    }

    fn dense(&mut self, nesting: usize) -> Coded<Vec<(u8, InodeTree)>> {
        let mut proofs = Vec::new();
        for slot in 0..DENSE_SLOTS {
            if let Some(tree) = self.inode_tree(nesting)? {
                proofs.push((slot as u8, tree));
            }
        }
        let count = proofs.len();
        self.rule(count >= DENSE_MIN, "fewer than 16 buckets are a list", count as u64)?;
        Ok(proofs)
    }

    fn inode_tree(&mut self, nesting: usize) -> Coded<Option<InodeTree>> {
        Ok(Some(match self.byte()? {
            0 => InodeTree::BlindedInode(self.hash()?),
            1 => InodeTree::Values(self.entries(nesting)?),
            2 => InodeTree::Tree(self.inode(nesting)?),
            3 => InodeTree::Extender(self.extender(nesting)?),
            4 => return Ok(None),
            tag => return Err(self.tag("tag of an inode", tag)),
        }))
    }

    fn extender(&mut self, nesting: usize) -> Coded<ExtenderProof> {
        check_nesting(nesting)?;
        let length = self.length()?;
        let segment = self.segment()?;
        let Some(proof) = self.inode_tree(nesting + 1)? else {
            return Err(self.malformed(Corrupt::rule("a chain ends in an inode", 1, 0)));
        };
        Ok(ExtenderProof { length, segment, proof: Box::new(proof) })
    }

    fn segment(&mut self) -> Coded<Vec<u8>> {
        let length = self.byte()?;
        let bytes = self.take(usize::from(length))?;
        let last = bytes.last().copied().unwrap_or_default();
        self.rule(last != 0, "the last byte of a segment ends it", 0)?;
        // The last bit that is set ends the segment; what follows is padding.
        let bits = bytes.len() * 8 - 1 - last.trailing_zeros() as usize;
        let count = bits / INDEX_BITS;

        self.rule(
            bits.is_multiple_of(INDEX_BITS),
            "a segment has 5 bits for an index",
            bits as u64,
        )?;

        self.rule(
            (1..=SEGMENT_MAX).contains(&count),
            "a chain has 1 to 406 indices",
            count as u64,
        )?;

        let bit = |at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
        let index = |number| {
            (0..INDEX_BITS).fold(0, |index, at| index << 1 | bit(number * INDEX_BITS + at))
        };

        Ok((0..count).map(index).collect())
    }
}
