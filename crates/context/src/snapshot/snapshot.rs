//! Snapshots: the format of the stream of exported commits.
//!
//! A stream is a head, elements, and an end. An element is a commit or an object of a commit: a
//! value of more than 48 bytes, a directory, or an inode; each distinct one once, children before
//! parents, and each commit behind its objects. An element refers to an earlier one by the number
//! of elements between.
//!
//! A stream has one commit or several, parents before children. Each commit behind the first one is
//! a *slice*: it has only the objects that no commit before it in the stream has.
//!
//! Invariant: a stream is a function of its commits, and of the base of an increment: exporting
//! imported commits gives the same bytes.
//!
//! An *increment* leaves out the objects that the tree of an older commit, its base, has at the
//! same path. The importing store must have the base. All integers are little-endian; leb is
//! unsigned LEB128 in its shortest form.
//!
//! | offset | size | field       | meaning |
//! |--------|------|-------------|---------|
//! | 0      | 8    | `magic`     | `TRNMSNAP` |
//! | 8      | 4    | `version`   | format version, now 2 |
//! | 12     | 1    | `scheme`    | 1 Tezos, 2 BLAKE3 |
//! | 13     | 1    | `kind`      | 1 the first commit is whole, 2 an increment |
//! | 14     | 2    |             | zero |
//! | 16     | 4    | `branching` | buckets of an inode |
//! | 20     | 4    | `flat`      | the largest directory that is hashed flat |
//! | 24     | 32   | `commit`    | hash of the last commit |
//! | 56     | 32   | `base`      | hash of the older commit of an increment; otherwise zero |
//! | 88     | 4    | `commits`   | number of commits, at least 1 |
//! | 92     | 4    | `crc`       | CRC-32C of bytes `0..92` |
//!
//! Then each element: leb(32 + length of the body) ‖ hash ‖ body. The end: `00` ‖ how many elements
//! there are (u64) ‖ CRC-32C of everything before (u32).
//!
//! | body           | bytes |
//! |----------------|-------|
//! | value          | `01` ‖ the bytes |
//! | flat directory | `02` ‖ base ‖ leb n ‖ n × entry, ascending by step |
//! | leaf           | `03` ‖ base ‖ leb n ‖ n × entry: the steps of one inode |
//! | inner          | `04` ‖ base ‖ depth (1 byte) ‖ leb entries below ‖ mask (u32) ‖ kept (u32) ‖ one reference for each bit of the mask that is not in `kept` |
//! | root of base   | `05`: the root directory of the base |
//! | dir of base    | `06` ‖ reference ‖ length of the step (1 byte) ‖ step: the directory that a directory of the base has there |
//! | inode of base  | `07` ‖ reference ‖ bucket (1 byte): the inode that an inode of the base has there |
//! | commit         | `08` ‖ root ‖ leb parents ‖ parents × hash ‖ date (i64) ‖ leb length ‖ author ‖ leb length ‖ message |
//!
//! reference = leb of how many elements back, at least 1. `base` and `root` are a reference or 0
//! for none: a base is the directory of the base whose entries, or the inode of the base whose
//! buckets, are kept; no root is the empty directory. entry = tag ‖ length of the step (1 byte) ‖
//! step ‖ payload; tag 1: a value of at most 48 bytes (leb length, bytes), 2: a value (reference),
//! 3: a directory (reference), 4: what the base has at that step (nothing).

use std::io::{Read, Write};
use std::sync::Arc;

use terrane_io::checksum::{crc32c, crc32c_append};

use crate::base::address::{put_leb, take_bytes, take_hash, take_leb, take_u8};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::hash::{HASH_BYTES, Hash};
use crate::base::hashing::{Rules, Scheme};
use crate::object::entries::INLINE_BYTES_MAX;
use crate::pack::commit::{put_text, take_text};

pub(crate) const SNAPSHOT_MAGIC: &[u8; 8] = b"TRNMSNAP";
/// Format version of the stream.
pub(crate) const SNAPSHOT_VERSION: u32 = 2;
pub(crate) const SNAPSHOT_HEAD_BYTES: usize = 96;
/// Upper bound of an element: the longest value with its hash and its tag.
const ELEMENT_BYTES_MAX: u64 = (1 << 31) + 32;

const VALUE: u8 = 1;
const FLAT: u8 = 2;
const LEAF: u8 = 3;
const INNER: u8 = 4;
const BASE_ROOT: u8 = 5;
const BASE_DIR: u8 = 6;
const BASE_INODE: u8 = 7;
const COMMIT: u8 = 8;

const ENTRY_INLINE: u8 = 1;
const ENTRY_VALUE: u8 = 2;
const ENTRY_DIR: u8 = 3;
const ENTRY_KEPT: u8 = 4;

/// Result of an export or import.
#[doc(alias = "dump")]
#[doc(alias = "backup")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Hash of the last commit.
    pub commit: Hash,
    /// Hashes of all commits of the stream, parents before children; the last one is `commit`.
    pub commits: Vec<Hash>,
    /// Objects in the stream, with the commits.
    pub elements: u64,
    /// Bytes of the stream; 0 if no stream was used.
    pub bytes: u64,
}

/// Head of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) rules: Rules,
    /// The last commit.
    pub(crate) commit: Hash,
    /// Older commit of an increment.
    pub(crate) base: Option<Hash>,
    /// Number of commits.
    pub(crate) commits: u32,
}

/// Element without its hash; numbers of elements begin with 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Element {
    Value(Vec<u8>),
    Entries { leaf: bool, base: Option<usize>, entries: Vec<(Box<[u8]>, Bound)> },
    Inner(InnerElement),
    Base(BasePosition),
    Commit(CommitElement),
}

/// Child of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bound {
    Inline(Vec<u8>),
    Value(usize),
    Dir(usize),
    /// The base has the same child there.
    Kept,
}

/// An inode with buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InnerElement {
    pub(crate) base: Option<usize>,
    pub(crate) depth: u8,
    /// Entries below.
    pub(crate) count: u64,
    pub(crate) mask: u32,
    /// Mask of the buckets that the base has.
    pub(crate) kept: u32,
    /// Numbers of the other buckets, ascending.
    pub(crate) below: Vec<usize>,
}

/// Position of an object of the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BasePosition {
    Root,
    Step(usize, Box<[u8]>),
    Bucket(usize, u8),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommitElement {
    pub(crate) root: Option<usize>,
    pub(crate) parents: Vec<Hash>,
    pub(crate) date: i64,
    pub(crate) author: Vec<u8>,
    pub(crate) message: Vec<u8>,
}

/// Consumer of the elements of a snapshot, in their order.
pub(crate) trait Elements {
    fn element(&mut self, hash: &Hash, element: Element) -> Result<()>;
}

fn stream_error(source: std::io::Error) -> Error {
    Error::Stream { source: Arc::new(source) }
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = SNAPSHOT_MAGIC.to_vec();
        bytes.extend_from_slice(&SNAPSHOT_VERSION.to_le_bytes());
        let scheme = match self.rules.scheme {
            Scheme::Tezos => 1,
            Scheme::Blake3 => 2,
        };

        bytes.extend_from_slice(&[scheme, 1 + u8::from(self.base.is_some()), 0, 0]);
        bytes.extend_from_slice(&self.rules.branching.to_le_bytes());
        bytes.extend_from_slice(&self.rules.flat_limit.to_le_bytes());
        bytes.extend_from_slice(&self.commit.0);
        bytes.extend_from_slice(&self.base.map_or([0; HASH_BYTES], |base| base.0));
        bytes.extend_from_slice(&self.commits.to_le_bytes());
        debug_assert_eq!(bytes.len(), SNAPSHOT_HEAD_BYTES - 4, "the layout of the head");
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());

        bytes
    }

    fn decode(bytes: &[u8; SNAPSHOT_HEAD_BYTES]) -> Result<Self> {
        let damaged = |what| Error::DamagedStream { offset: SNAPSHOT_HEAD_BYTES as u64, what };
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };

        if !bytes.starts_with(SNAPSHOT_MAGIC) {
            return Err(Error::NotASnapshot);
        }
        let crc = crc32c(&bytes[..SNAPSHOT_HEAD_BYTES - 4]);

        // Checked before the version: damage must not look like another version.
        if crc != word(SNAPSHOT_HEAD_BYTES - 4) {
            let found = u64::from(word(SNAPSHOT_HEAD_BYTES - 4));
            return Err(damaged(Corrupt::rule("checksum of the head", u64::from(crc), found)));
        }

        if word(8) != SNAPSHOT_VERSION {
            return Err(Error::SnapshotVersion { found: word(8), newest: SNAPSHOT_VERSION });
        }

        let scheme = match bytes[12] {
            1 => Scheme::Tezos,
            2 => Scheme::Blake3,
            other => return Err(damaged(Corrupt::rule("scheme", 1, u64::from(other)))),
        };

        let rules = Rules { scheme, branching: word(16), flat_limit: word(20) };
        rules.check()?;
        let mut hashes = &bytes[24..];
        let commit = take_hash(&mut hashes).map_err(damaged)?;
        let base = take_hash(&mut hashes).map_err(damaged)?;
        let commits = word(88);
        if commits == 0 {
            return Err(damaged(Corrupt::rule("number of commits", 1, 0)));
        }

        // An increment must name its base, and a whole commit none.
        let base = match (bytes[13], [bytes[14], bytes[15]]) {
            (1, [0, 0]) if base.0 == [0; HASH_BYTES] => None,
            (2, [0, 0]) => Some(base),
            (kind, _) => {
                return Err(damaged(Corrupt::rule("kind of a snapshot", 1, u64::from(kind))));
            }
        };
        Ok(Self { rules, commit, base, commits })
    }
}

/// Writes a reference to `number` into the element of number `own`.
fn put_back(own: usize, number: usize, out: &mut Vec<u8>) {
    assert!(number < own, "elements refer to earlier ones");
    put_leb(out, (own - number) as u64);
}

fn put_optional(own: usize, number: Option<usize>, out: &mut Vec<u8>) {
    match number {
        Some(number) => put_back(own, number, out),
        None => out.push(0),
    }
}

fn take_optional(own: usize, bytes: &mut &[u8]) -> std::result::Result<Option<usize>, Corrupt> {
    match take_leb(bytes)? {
        0 => Ok(None),
        back => match usize::try_from(back).ok().and_then(|back| own.checked_sub(back)) {
            Some(number) => Ok(Some(number)),
            None => Err(Corrupt::rule("a reference to an earlier element", own as u64, back)),
        },
    }
}

fn take_back(own: usize, bytes: &mut &[u8]) -> std::result::Result<usize, Corrupt> {
    take_optional(own, bytes)?.ok_or(Corrupt::rule("a reference to an earlier element", 1, 0))
}

fn take_step(bytes: &mut &[u8]) -> std::result::Result<Box<[u8]>, Corrupt> {
    match usize::from(take_u8(bytes)?) {
        0 => Err(Corrupt::rule("length of a step", 1, 0)),
        len => take_bytes(bytes, len).map(Box::from),
    }
}

fn take_word(bytes: &mut &[u8]) -> std::result::Result<u32, Corrupt> {
    let (word, rest) = bytes.split_first_chunk::<4>().ok_or(Corrupt::short("a word"))?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*word))
}

impl Element {
    /// Writes the body of the element of number `own`.
    fn put(&self, own: usize, out: &mut Vec<u8>) {
        match self {
            Self::Value(bytes) => {
                out.push(VALUE);
                out.extend_from_slice(bytes);
            }
            Self::Entries { leaf, base, entries } => {
                out.push(if *leaf { LEAF } else { FLAT });
                put_optional(own, *base, out);
                put_leb(out, entries.len() as u64);
                for (step, bound) in entries {
                    put_entry(own, step, bound, out);
                }
            }
            Self::Inner(inner) => {
                debug_assert_eq!(inner.kept & !inner.mask, 0, "kept buckets are there");
                debug_assert_eq!(
                    inner.below.len(),
                    (inner.mask & !inner.kept).count_ones() as usize,
                    "each bucket that is not kept has a number"
                );
                out.push(INNER);
                put_optional(own, inner.base, out);
                out.push(inner.depth);
                put_leb(out, inner.count);
                out.extend_from_slice(&inner.mask.to_le_bytes());
                out.extend_from_slice(&inner.kept.to_le_bytes());
                inner.below.iter().for_each(|number| put_back(own, *number, out));
            }
            Self::Base(BasePosition::Root) => out.push(BASE_ROOT),
            Self::Base(BasePosition::Step(parent, step)) => {
                out.push(BASE_DIR);
                put_back(own, *parent, out);
                debug_assert!(u8::try_from(step.len()).is_ok(), "a step has at most 255 bytes");
                out.push(step.len() as u8);
                out.extend_from_slice(step);
            }
            Self::Base(BasePosition::Bucket(parent, bucket)) => {
                out.push(BASE_INODE);
                put_back(own, *parent, out);
                out.push(*bucket);
            }
            Self::Commit(commit) => {
                out.push(COMMIT);
                put_optional(own, commit.root, out);
                put_leb(out, commit.parents.len() as u64);
                commit.parents.iter().for_each(|parent| out.extend_from_slice(&parent.0));
                out.extend_from_slice(&commit.date.to_le_bytes());
                put_text(out, &commit.author);
                put_text(out, &commit.message);
            }
        }
    }

    /// Decodes the body of the element of number `own`.
    fn take(own: usize, body: &[u8]) -> std::result::Result<Self, Corrupt> {
        let mut rest = body;
        let bytes = &mut rest;
        let element = match take_u8(bytes)? {
            VALUE => Self::Value(std::mem::take(bytes).to_vec()),
            kind @ (FLAT | LEAF) => {
                let base = take_optional(own, bytes)?;
                let count = take_leb(bytes)? as usize;
                // Reserves no more than the bytes can hold: the count may be forged.
                let mut entries = Vec::with_capacity(count.min(bytes.len() / 3));
                for _ in 0..count {
                    entries.push(take_entry(own, bytes)?);
                }
                Self::Entries { leaf: kind == LEAF, base, entries }
            }
            INNER => Self::Inner(take_inner(own, bytes)?),
            BASE_ROOT => Self::Base(BasePosition::Root),
            BASE_DIR => Self::Base(BasePosition::Step(take_back(own, bytes)?, take_step(bytes)?)),
            BASE_INODE => Self::Base(BasePosition::Bucket(take_back(own, bytes)?, take_u8(bytes)?)),
            COMMIT => Self::Commit(take_commit(own, bytes)?),
            other => return Err(Corrupt::rule("kind of an element", 1, u64::from(other))),
        };

        match rest.len() {
            0 => Ok(element),
            more => Err(Corrupt::rule("nothing follows in an element", 0, more as u64)),
        }
    }
}

fn put_entry(own: usize, step: &[u8], bound: &Bound, out: &mut Vec<u8>) {
    out.push(match bound {
        Bound::Inline(_) => ENTRY_INLINE,
        Bound::Value(_) => ENTRY_VALUE,
        Bound::Dir(_) => ENTRY_DIR,
        Bound::Kept => ENTRY_KEPT,
    });

    debug_assert!(u8::try_from(step.len()).is_ok(), "a step has at most 255 bytes");
    out.push(step.len() as u8);
    out.extend_from_slice(step);

    match bound {
        Bound::Inline(value) => put_text(out, value),
        Bound::Value(number) | Bound::Dir(number) => put_back(own, *number, out),
        Bound::Kept => {}
    }
}

fn take_entry(own: usize, bytes: &mut &[u8]) -> std::result::Result<(Box<[u8]>, Bound), Corrupt> {
    let tag = take_u8(bytes)?;
    let step = take_step(bytes)?;
    let bound = match tag {
        ENTRY_INLINE => {
            let value = take_text(bytes)?;
            // A longer value has an element of its own.
            if value.len() > INLINE_BYTES_MAX {
                let most = INLINE_BYTES_MAX as u64;
                let found = value.len() as u64;
                return Err(Corrupt::rule("length of a value in its directory", most, found));
            }
            Bound::Inline(value)
        }
        ENTRY_VALUE => Bound::Value(take_back(own, bytes)?),
        ENTRY_DIR => Bound::Dir(take_back(own, bytes)?),
        ENTRY_KEPT => Bound::Kept,
        other => return Err(Corrupt::rule("tag of an entry", 1, u64::from(other))),
    };

    Ok((step, bound))
}

fn take_inner(own: usize, bytes: &mut &[u8]) -> std::result::Result<InnerElement, Corrupt> {
    let base = take_optional(own, bytes)?;
    let depth = take_u8(bytes)?;
    let count = take_leb(bytes)?;
    let mask = take_word(bytes)?;
    let kept = take_word(bytes)?;
    // A kept bucket takes its content from the base, so it must be there.
    if kept & !mask != 0 {
        return Err(Corrupt::rule("kept buckets are there", u64::from(mask), u64::from(kept)));
    }
    let below: std::result::Result<Vec<usize>, Corrupt> =
        (0..(mask & !kept).count_ones()).map(|_| take_back(own, bytes)).collect();
    Ok(InnerElement { base, depth, count, mask, kept, below: below? })
}

fn take_commit(own: usize, bytes: &mut &[u8]) -> std::result::Result<CommitElement, Corrupt> {
    let root = take_optional(own, bytes)?;
    let count = take_leb(bytes)? as usize;
    // Reserves no more than the bytes can hold: the count may be forged.
    let mut parents = Vec::with_capacity(count.min(bytes.len() / HASH_BYTES));
    for _ in 0..count {
        parents.push(take_hash(bytes)?);
    }
    let (date, rest) = bytes.split_first_chunk::<8>().ok_or(Corrupt::short("a date"))?;
    *bytes = rest;
    let date = i64::from_le_bytes(*date);
    let author = take_text(bytes)?;
    let message = take_text(bytes)?;
    Ok(CommitElement { root, parents, date, author, message })
}

/// Writer of a stream.
pub(crate) struct StreamWriter<'a> {
    out: &'a mut dyn Write,
    crc: u32,
    bytes: u64,
    elements: usize,
    body: Vec<u8>,
}

impl<'a> StreamWriter<'a> {
    pub(crate) fn begin(out: &'a mut dyn Write, header: &Header) -> Result<Self> {
        let mut stream = Self { out, crc: 0, bytes: 0, elements: 0, body: Vec::new() };
        stream.put(&header.encode())?;
        Ok(stream)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.crc = crc32c_append(self.crc, bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(stream_error)
    }

    /// Writes the end; returns the length of the stream.
    pub(crate) fn end(mut self) -> Result<u64> {
        // No element is empty, so a length of 0 stands for the end.
        let mut end = vec![0];
        end.extend_from_slice(&(self.elements as u64).to_le_bytes());
        self.put(&end)?;
        self.put(&self.crc.to_le_bytes())?;
        debug_assert!(
            self.bytes >= (SNAPSHOT_HEAD_BYTES + 1 + 8 + 4) as u64,
            "a stream has a head and an end"
        );
        self.out.flush().map_err(stream_error)?;
        Ok(self.bytes)
    }
}

impl Elements for StreamWriter<'_> {
    fn element(&mut self, hash: &Hash, element: Element) -> Result<()> {
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        body.extend_from_slice(&hash.0);
        element.put(self.elements, &mut body);
        debug_assert!(body.len() > HASH_BYTES, "no element is empty");

        let mut length = Vec::with_capacity(5);
        put_leb(&mut length, body.len() as u64);
        self.put(&length)?;
        self.put(&body)?;
        self.elements += 1;
        self.body = body;
        Ok(())
    }
}

/// Reader of a stream.
pub(crate) struct StreamReader<'a> {
    input: &'a mut dyn Read,
    crc: u32,
    pub(crate) bytes: u64,
    elements: usize,
    body: Vec<u8>,
}

impl<'a> StreamReader<'a> {
    pub(crate) fn begin(input: &'a mut dyn Read) -> Result<(Self, Header)> {
        let mut stream = Self { input, crc: 0, bytes: 0, elements: 0, body: Vec::new() };
        let header = Header::decode(&stream.take()?)?;
        Ok((stream, header))
    }

    /// Reads `len` bytes. Memory grows with the bytes that arrive, not with the length.
    fn fill(&mut self, len: u64) -> Result<()> {
        self.body.clear();
        (&mut *self.input).take(len).read_to_end(&mut self.body).map_err(stream_error)?;
        self.crc = crc32c_append(self.crc, &self.body);
        self.bytes += self.body.len() as u64;

        if (self.body.len() as u64) < len {
            return Err(Error::TruncatedStream { offset: self.bytes });
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.fill(N as u64)?;
        Ok(*self.body.first_chunk().expect("that many were read"))
    }

    fn length(&mut self) -> Result<u64> {
        let mut bytes = Vec::with_capacity(5);
        loop {
            let [byte] = self.take()?;
            bytes.push(byte);

            // At most ten bytes: a longer number has no shortest form.
            if byte & 0x80 == 0 || bytes.len() == 10 {
                let damaged = |what| Error::DamagedStream { offset: self.bytes, what };
                return take_leb(&mut bytes.as_slice()).map_err(damaged);
            }
        }
    }

    /// Returns the next element with its hash; `None` at an intact end.
    pub(crate) fn next(&mut self) -> Result<Option<(Hash, Element)>> {
        let index = self.elements as u64;
        let unexpected = |what| Error::UnexpectedElement { index, what };

        let length = self.length()?;
        if length == 0 {
            return self.end().map(|()| None);
        }

        // The length sizes a buffer.
        if length > ELEMENT_BYTES_MAX {
            return Err(unexpected(Corrupt::rule(
                "length of an element",
                ELEMENT_BYTES_MAX,
                length,
            )));
        }

        self.fill(length)?;
        let mut body = self.body.as_slice();
        let hash = take_hash(&mut body).map_err(unexpected)?;
        let element = Element::take(self.elements, body).map_err(unexpected)?;
        self.elements += 1;

        Ok(Some((hash, element)))
    }

    fn end(&mut self) -> Result<()> {
        let count = u64::from_le_bytes(self.take()?);
        let crc = self.crc;
        let stored = u32::from_le_bytes(self.take()?);

        let (rule, expected, found) = if count != self.elements as u64 {
            ("number of elements", self.elements as u64, count)
        } else if stored != crc {
            ("checksum of the stream", u64::from(crc), u64::from(stored))
        } else {
            return Ok(());
        };

        let what = Corrupt::rule(rule, expected, found);
        Err(Error::DamagedStream { offset: self.bytes, what })
    }
}
