//! Frames: units of appending to a [chunk](crate::pack::chunk), and the records in them. A chunk is
//! a chain of frames; a frame counts only if it is complete.
//!
//! Each frame has the address up to which the pack was durable when the frame was written. An
//! incomplete frame is corruption if a later frame records that it was once durable; otherwise it
//! is a torn write, which no caller was told to be durable.

use terrane_io::checksum::{crc32c, crc32c_append};

use crate::base::address::{
    Address, Extent, Origin, RECORD_CRC_BYTES, UNIT_BYTES, put_leb, take_leb,
};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::hash::Hash;
use crate::base::hashing::VALUE_BYTES_MAX;
use crate::tree::encode::{Records, Sink};

pub(crate) const FRAME_HEAD_BYTES: usize = 32;
/// First bytes of a frame.
pub(crate) const FRAME_MAGIC: [u8; 4] = *b"TMF1";
/// Bytes of a head that its checksum covers.
const CHECKED_BYTES: usize = FRAME_HEAD_BYTES - RECORD_CRC_BYTES;
/// Upper bound of a frame. A larger commit is preceded by flushes.
pub(crate) const FRAME_BYTES_MAX: usize = 1 << 30;
/// Size at which a frame ends. Any value still fits behind fewer bytes.
pub(crate) const FRAME_FULL_BYTES: usize = FRAME_BYTES_MAX / 2;
const _: () = assert!(FRAME_FULL_BYTES + 1 + VALUE_BYTES_MAX <= FRAME_BYTES_MAX);

/// Content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Objects = 1,
    Commit = 2,
    Branches = 3,
    /// A commit, and the branch whose head becomes the commit.
    CommitTo = 4,
    /// Commits of an import, whose objects are in earlier frames, and the branch that is set with
    /// them, if any.
    Commits = 5,
}

/// Head of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameHead {
    pub(crate) kind: FrameKind,
    /// Length of the payload.
    pub(crate) bytes: usize,
    pub(crate) chain: u32,
    /// End of the durable part of the pack when the frame was written.
    synced: Address,
    /// Checksum of the payload.
    content: u32,
    /// Checksum of the head, to which the next frame chains.
    pub(crate) crc: u32,
}

/// Decodes the head of a frame at `at`, whatever frame it follows; `None` if the head is damaged.
pub(crate) fn any_head(at: Address, head: &[u8; FRAME_HEAD_BYTES]) -> Option<FrameHead> {
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let kind = match word(8) {
        1 => FrameKind::Objects,
        2 => FrameKind::Commit,
        3 => FrameKind::Branches,
        4 => FrameKind::CommitTo,
        5 => FrameKind::Commits,
        _ => return None,
    };

    // The checksum covers the address too: a chunk stored as a value is no chain of frames.
    let whole = head.starts_with(&FRAME_MAGIC)
        && word(4) % UNIT_BYTES as u32 == 0
        && word(28) == located_crc(at, &head[..CHECKED_BYTES]);
    let bytes = word(4) as usize;
    let chain = word(12);
    let synced = Address { chunk: word(20), unit: word(16) };

    whole.then_some(FrameHead { kind, bytes, chain, synced, content: word(24), crc: word(28) })
}

/// Decodes the head of a frame at `at` that follows a frame with the checksum `chain`.
fn parse_head(at: Address, head: &[u8; FRAME_HEAD_BYTES], chain: u32) -> Option<FrameHead> {
    any_head(at, head).filter(|frame| frame.chain == chain)
}

/// Decodes the frame at `at` from its bytes, if it follows a frame with the checksum `chain` and is
/// complete.
pub(crate) fn parse(at: Address, bytes: &[u8], chain: u32) -> Option<FrameHead> {
    let frame = parse_damaged(at, bytes, chain)?;
    let payload = bytes.get(FRAME_HEAD_BYTES..)?.get(..frame.bytes)?;
    (frame.content == crc32c(payload)).then_some(frame)
}

/// Decodes a frame like [`parse`], whose payload may be damaged.
pub(crate) fn parse_damaged(at: Address, bytes: &[u8], chain: u32) -> Option<FrameHead> {
    let (head, rest) = bytes.split_first_chunk::<FRAME_HEAD_BYTES>()?;
    parse_head(at, head, chain).filter(|frame| frame.bytes <= rest.len())
}

/// Returns the highest durable end that the frames in `bytes`, which begin at `at`, record.
///
/// Incomplete frames before that address are corruption.
pub(crate) fn newest_synced(at: Address, bytes: &[u8]) -> Option<Address> {
    // Frames begin at whole units, so every unit may begin one behind damage.
    let heads = (0..bytes.len()).step_by(UNIT_BYTES as usize).filter_map(|offset| {
        let head = bytes[offset..].first_chunk().filter(|head| head.starts_with(&FRAME_MAGIC))?;
        Some(any_head(at.plus(offset), head)?.synced)
    });
    heads.max()
}

/// Checksum of bytes with their address.
fn located_crc(at: Address, bytes: &[u8]) -> u32 {
    crc32c_append(crc32c(&at.to_u64().to_le_bytes()), bytes)
}

/// Upper bound of a record.
pub(crate) const RECORD_BYTES_MAX: u64 = FRAME_BYTES_MAX as u64;

/// Size of the record that begins with these bytes.
pub(crate) fn record_size(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;

    // Bounds the buffer that the caller allocates.
    let len = take_leb(&mut rest).ok().filter(|len| *len < RECORD_BYTES_MAX)?;
    Some(bytes.len() - rest.len() + len as usize + RECORD_CRC_BYTES)
}

/// Returns the body of the record at `at` and the number of its bytes.
pub(crate) fn open_record(
    at: Address,
    bytes: &[u8],
) -> std::result::Result<(&[u8], usize), Corrupt> {
    let mut rest = bytes;
    let len = take_leb(&mut rest)? as usize;
    let short = Corrupt::rule("length of a record", bytes.len() as u64, len as u64);
    let (body, rest) = rest.split_at_checked(len).ok_or(short)?;
    let (stored, rest) = rest.split_first_chunk::<RECORD_CRC_BYTES>().ok_or(short)?;

    let stored = u32::from_le_bytes(*stored);
    let computed = located_crc(at, body);
    if stored != computed {
        return Err(Corrupt::rule("checksum of a record", u64::from(computed), u64::from(stored)));
    }
    Ok((body, bytes.len() - rest.len()))
}

/// Returns the records of a payload at `at` in order, each with its extent, and its body if the
/// record is intact.
///
/// Records behind one with an unreadable length are left out.
pub(crate) fn records(
    at: Address,
    payload: &[u8],
) -> impl Iterator<Item = (Extent, std::result::Result<&[u8], Corrupt>)> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let bytes = payload.get(offset..).filter(|bytes| !bytes.is_empty())?;
        let at = at.plus(offset);

        // An unreadable length makes the rest of the payload one damaged record.
        let size = record_size(bytes).filter(|size| *size <= bytes.len());
        let used = size.unwrap_or(bytes.len());
        debug_assert!((1..=bytes.len()).contains(&used), "the walk over records goes on");
        offset += used.next_multiple_of(UNIT_BYTES as usize);
        let body = open_record(at, &bytes[..used]).map(|(body, _)| body);
        Some((Extent { at, bytes: used as u32 }, body))
    })
}

/// Encoder of a frame.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    /// Address of the frame.
    start: Address,
    bytes: Vec<u8>,
    body: Vec<u8>,
}

impl FrameWriter {
    pub(crate) fn new(start: Address) -> Self {
        Self::reusing(start, Vec::new())
    }

    /// Begins a frame in a buffer that was used before.
    pub(crate) fn reusing(start: Address, mut bytes: Vec<u8>) -> Self {
        bytes.clear();
        bytes.resize(FRAME_HEAD_BYTES, 0);
        Self { start, bytes, body: Vec::new() }
    }

    /// Address at which the frame was begun.
    pub(crate) fn start(&self) -> Address {
        self.start
    }

    /// Number of bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes of the frame and its checksum. The pack is durable up to `synced`.
    pub(crate) fn finish(mut self, kind: FrameKind, chain: u32, synced: Address) -> (Vec<u8>, u32) {
        debug_assert!(
            self.bytes.len().is_multiple_of(UNIT_BYTES as usize),
            "frames take whole units"
        );

        let payload = &self.bytes[FRAME_HEAD_BYTES..];

        debug_assert!(u32::try_from(payload.len()).is_ok(), "the length of a frame has 32 bits");
        let bytes = payload.len() as u32;
        let content = crc32c(payload);
        let words = [
            u32::from_le_bytes(FRAME_MAGIC),
            bytes,
            kind as u32,
            chain,
            synced.unit,
            synced.chunk,
            content,
        ];

        for (slot, word) in self.bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }

        // Over the head alone: the head has the checksum of the payload.
        let crc = located_crc(self.start, &self.bytes[..CHECKED_BYTES]);
        self.bytes[CHECKED_BYTES..FRAME_HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());

        (self.bytes, crc)
    }
}

impl Sink for FrameWriter {
    fn next(&self) -> Origin {
        Origin { at: self.start.plus(self.bytes.len()), frame: self.start }
    }

    fn put(&mut self, write: &mut dyn FnMut(&mut Vec<u8>)) -> Result<Extent> {
        let at = self.next().at;
        self.body.clear();
        write(&mut self.body);

        // Checked before the frame changes, so that a commit that is too large fails cleanly.
        if self.bytes.len() + self.body.len() > FRAME_BYTES_MAX {
            return Err(Error::CommitTooLarge { limit: FRAME_BYTES_MAX });
        }

        debug_assert!(
            self.bytes.len().is_multiple_of(UNIT_BYTES as usize),
            "records begin at units"
        );

        let start = self.bytes.len();
        put_leb(&mut self.bytes, self.body.len() as u64);
        self.bytes.extend_from_slice(&self.body);
        self.bytes.extend_from_slice(&located_crc(at, &self.body).to_le_bytes());
        let bytes = (self.bytes.len() - start) as u32;
        debug_assert_eq!(
            record_size(&self.bytes[start..]),
            Some(bytes as usize),
            "a record says its size"
        );

        // Padding to whole units, so that addresses need 32 bits.
        self.bytes.resize(self.bytes.len().next_multiple_of(UNIT_BYTES as usize), 0);

        debug_assert_eq!(
            self.next().at,
            at.plus((bytes as usize).next_multiple_of(UNIT_BYTES as usize)),
            "the next record follows this one and its padding"
        );
        debug_assert!(u64::from(bytes) <= RECORD_BYTES_MAX, "a reader takes a record of this size");

        Ok(Extent { at, bytes })
    }

    fn append(&mut self, records: &Records) -> Result<bool> {
        let end = self.bytes.len() as u64 + records.frame_bytes();
        if end > FRAME_BYTES_MAX as u64 {
            return Ok(false);
        }
        for body in records.bodies() {
            self.put(&mut |out| out.extend_from_slice(body))?;
        }
        debug_assert_eq!(self.bytes.len() as u64, end, "records take the bytes that were counted");
        Ok(true)
    }

    fn known(&mut self, _is_value: bool, _hash: &Hash) -> Result<Option<Extent>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::hashing::Rules;
    use crate::object::record::Form;
    use crate::tree::digest::Hasher;
    use crate::tree::edit::bind;
    use crate::tree::encode::{EncodedPart, Records, Written};
    use crate::tree::node::{Child, Env, Member, Node, Place, Value};
    use std::sync::Arc;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    const START: Address = Address { chunk: 1, unit: 40 };

    fn frame(synced: Address) -> Vec<u8> {
        let mut frame = FrameWriter::new(START);
        for body in [b"first".as_slice(), b"", &[9; 200]] {
            frame.put(&mut |out| out.extend_from_slice(body)).unwrap();
        }
        frame.finish(FrameKind::Objects, 5, synced).0
    }

    #[test]
    fn a_frame_is_whole_at_its_place_and_in_its_chain_only() {
        let bytes = frame(START);
        assert!(parse(START, &bytes, 5).is_some());
        assert!(parse(START, &bytes, 6).is_none());
        assert!(parse(START.plus(8), &bytes, 5).is_none());

        for len in 0..bytes.len() {
            assert!(parse(START, &bytes[..len], 5).is_none(), "{len} bytes");
        }

        for bit in 0..bytes.len() * 8 {
            let mut altered = bytes.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(START, &altered, 5).is_none(), "bit {bit}");
        }

        let bodies: Vec<Vec<u8>> =
            records(START.plus(FRAME_HEAD_BYTES), &bytes[FRAME_HEAD_BYTES..])
                .map(|(_, body)| body.unwrap().to_vec())
                .collect();

        assert_eq!(bodies, [b"first".to_vec(), Vec::new(), vec![9; 200]]);
    }

    #[test]
    fn a_later_frame_tells_what_was_durable() {
        let end = START.plus(16);
        let bytes = [[0; 16].as_slice(), &frame(end)].concat();
        let before = Address { chunk: 1, unit: START.unit - 2 };
        assert_eq!(newest_synced(before, &bytes), Some(end));
        assert_eq!(newest_synced(START, &bytes), None, "a frame knows its place");
        assert_eq!(newest_synced(before, &bytes[..40]), None);
    }

    #[test]
    fn any_bytes_are_frames_and_records_or_none() {
        let bytes = frame(START);
        for_each_seed("any_bytes_are_frames_and_records_or_none", 2_000, |rng, _| {
            let mut altered = bytes.clone();
            for _ in 0..=rng.below(4) {
                let at = rng.index(altered.len());
                altered[at] = rng.below(256) as u8;
            }
            altered.truncate(rng.index(altered.len() + 1));
            parse_damaged(START, &altered, 5);
            newest_synced(START, &altered);
            let len = rng.index(300);
            for some in [altered, rng.bytes(len)] {
                let extents: Vec<Extent> =
                    records(START, &some).map(|(extent, _)| extent).collect();
                assert!(extents.len() <= some.len().div_ceil(8));
                assert!(extents.is_sorted_by_key(|extent| extent.at));
            }
        });
    }

    /// A directory of inodes with values in place and of their own, and hashes.
    fn hashed_tree(env: &Env) -> Child {
        let mut root = Child::Dir(Arc::new(Node::empty(false)));
        for number in 0..400_u32 {
            let value = Value::new(vec![7; [9, 90][number as usize % 2]].into());
            let name = number.to_string();
            bind(env, &mut root, &[name.as_bytes()], Child::Value(Arc::new(value))).unwrap();
        }
        Hasher::new(1).hash(env, node(&root));
        root
    }

    fn node(root: &Child) -> &Arc<Node> {
        let Child::Dir(node) = root else { unreachable!("it is a directory") };
        node
    }

    #[test]
    fn a_part_that_was_encoded_makes_the_frame_that_a_commit_makes() {
        let env = Env::new(Rules::TEZOS, None, false);
        // A frame that has a record, with the tree behind it, and what was written.
        let write = |root: &Child, parts: Vec<EncodedPart>| {
            let mut frame = FrameWriter::new(START);
            frame.put(&mut |out| out.extend_from_slice(b"first")).unwrap();
            let mut written = Written::with_parts(parts);
            written.root(&env, root, &mut frame).unwrap();
            let places: Vec<_> = written.objects().collect();
            (frame.finish(FrameKind::Objects, 5, START).0, places, written)
        };

        let root = hashed_tree(&env);
        let (alone, places, written) = write(&root, Vec::new());
        let count = written.counts();
        assert!(count.0 > 32 && count.1 == 200, "{count:?}");
        drop(written);
        let encode = |root: &Child, limit| {
            let records = Records::new(limit, 0);
            EncodedPart::encode(&env, node(root), [].into_iter().collect(), records)
        };
        let part = encode(&root, 1 << 20).unwrap();
        let (taken_over, others, written) = write(&root, vec![part]);
        assert_eq!(taken_over, alone);
        assert_eq!(others, places);
        assert!(encode(&root, 1 << 20).is_none(), "what was written has another holder");
        drop(written);

        // A part that is too large, and one of which a commit has written a node.
        assert!(encode(&root, 9_000).is_none());
        let part = encode(&root, 1 << 20).unwrap();
        let Some(Member::Node(child)) = node(&root).member(0) else { unreachable!("an inode") };
        child.store_at(Place { extent: Extent { at: START, bytes: 40 }, form: Form::Full });
        let (frame, _, outdated) = write(&root, vec![part]);
        let fewer = outdated.counts();
        assert!(fewer.0 < count.0 && fewer.1 < count.1, "what is stored is not written again");
        drop(outdated);
        assert_eq!(write(&root, Vec::new()).0, frame);
    }
}
