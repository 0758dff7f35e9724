//! Hashing rules: the preimages of values, directories, inodes and commits, and the bucket of a
//! step in an inode.
//!
//! A store fixes its rules when it is created.
//!
//! **Tezos.** [`Scheme::Tezos`] is bit for bit what Octez hashes over irmin-pack: `BLAKE2b` with 32
//! bytes. `u64` is big-endian, `leb` unsigned LEB128.
//!
//! | of                   | preimage |
//! |----------------------|----------|
//! | value                | u64 length ‖ bytes |
//! | flat directory       | u64 n ‖ n × (8 bytes of kind ‖ leb length ‖ step ‖ u64 32 ‖ hash), by step; kind is `FF 00…` for a value, `00 00…` for a directory |
//! | inode with few steps | `00` ‖ leb n ‖ n × (leb length ‖ step ‖ kind ‖ hash), by step; kind is `01` for a value, `00` for a directory |
//! | inode with buckets   | `01` ‖ leb depth ‖ leb entries ‖ leb m ‖ m × (leb bucket ‖ hash), by bucket |
//! | commit               | u64 32 ‖ root ‖ u64 parents ‖ parents × (u64 32 ‖ hash), by hash ‖ u64 date ‖ u64 length ‖ author ‖ u64 length ‖ message |
//!
//! A directory of at most [`Rules::flat_limit`] steps is hashed flat; a larger one as the inode of
//! depth 0. An inode of at most [`Rules::branching`] steps lists them, a larger one divides them
//! among buckets by [`ocaml_hash`]`(depth, step) mod branching`.
//!
//! **Not Tezos.** [`Scheme::Blake3`] hashes the same preimages with BLAKE3, each behind a byte that
//! names its kind. So an empty directory and an empty value differ. The bucket at depth d is the
//! d-th group of bits of BLAKE3(step), so nobody can choose many names that share their buckets.
//!
//! Inodes end at depth 64 with a list of any length, so names chosen to share all buckets still
//! work.

use crate::base::address::put_leb;
use crate::base::error::{Error, Result};
use crate::base::hash::{HASH_BYTES, Hash};

/// The longest step, in bytes; the shortest has one.
pub(crate) const STEP_BYTES_MAX: usize = 255;
/// The longest value: a frame has room for such a value behind others.
pub(crate) const VALUE_BYTES_MAX: usize = (1 << 29) - 1;
/// Depth at which an inode lists all its steps.
pub(crate) const INODE_DEPTH_MAX: u8 = 64;
/// Upper bound of the buckets of an inode.
pub(crate) const BRANCHING_MAX: u32 = 32;

const COMMIT_TAG: u8 = 4;

/// Hash function and order of children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Scheme {
    /// The hashes of Tezos.
    Tezos,
    /// BLAKE3, for stores that need no compatibility with Tezos.
    Blake3,
}

/// The hashing rules of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rules {
    /// Hash function.
    pub scheme: Scheme,
    /// Buckets of an inode, and the largest number of steps that one inode lists; a power of two in
    /// `2..=32`.
    pub branching: u32,
    /// The largest directory that is hashed flat; at least 1.
    pub flat_limit: u32,
}

impl Rules {
    /// Rules of Tezos: 32 buckets, flat up to 256 steps.
    pub const TEZOS: Self = Self { scheme: Scheme::Tezos, branching: 32, flat_limit: 256 };

    /// Shape of Tezos with the hash function BLAKE3.
    pub const BLAKE3: Self = Self { scheme: Scheme::Blake3, branching: 32, flat_limit: 256 };

    /// Refuses rules that no store supports.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.branching.is_power_of_two() || !(2..=BRANCHING_MAX).contains(&self.branching) {
            return Err(Error::InvalidConfig {
                option: "branching",
                value: self.branching.to_string(),
                allowed: "a power of two from 2 to 32",
            });
        }

        if !(1..=65_535).contains(&self.flat_limit) {
            return Err(Error::InvalidConfig {
                option: "flat_limit",
                value: self.flat_limit.to_string(),
                allowed: "1 to 65535",
            });
        }

        Ok(())
    }

    /// Bucket of `step` in an inode of `depth`.
    pub(crate) fn bucket(&self, depth: u8, step: &[u8]) -> usize {
        match self.scheme {
            Scheme::Tezos => (ocaml_hash(u32::from(depth), step) % self.branching) as usize,
            Scheme::Blake3 => {
                // The group of bits may straddle two bytes of the digest.
                let bits = self.branching.trailing_zeros() as usize;
                let digest = blake3::hash(step);
                let first = usize::from(depth) * bits;
                let byte = |at: usize| u32::from(digest.as_bytes()[at % HASH_BYTES]);
                let pair = byte(first / 8) | byte(first / 8 + 1) << 8;
                (pair >> (first % 8) & (self.branching - 1)) as usize
            }
        }
    }

    /// Returns whether an inode of `depth` lists its `count` steps instead of dividing them.
    pub(crate) fn is_leaf(&self, depth: u8, count: u64) -> bool {
        count <= u64::from(self.branching) || depth >= INODE_DEPTH_MAX
    }

    /// Returns whether a directory of `count` steps is hashed flat.
    pub(crate) fn is_flat(&self, count: u64) -> bool {
        count <= u64::from(self.flat_limit)
    }

    fn digest(&self, tag: u8, preimage: &[u8]) -> Hash {
        match self.scheme {
            Scheme::Tezos => {
                let digest = blake2b_simd::Params::new().hash_length(HASH_BYTES).hash(preimage);
                let mut hash = Hash([0; HASH_BYTES]);
                hash.0.copy_from_slice(digest.as_bytes());
                hash
            }
            Scheme::Blake3 => {
                let mut hasher = blake3::Hasher::new();
                hasher.update(&[tag]).update(preimage);
                Hash(*hasher.finalize().as_bytes())
            }
        }
    }

    /// Hash of a value.
    pub fn value_hash(&self, value: &[u8]) -> Hash {
        let mut preimage = Preimages::new(*self);
        preimage.value(value);
        preimage.single()
    }

    /// Hashes of several values, computed side by side in the lanes of the processor.
    pub fn value_hashes(&self, values: &[&[u8]]) -> Vec<Hash> {
        let mut preimages = Preimages::new(*self);
        for value in values {
            preimages.value(value);
        }
        preimages.finish()
    }

    /// Hash of the empty directory; in [`Scheme::Tezos`] also the hash of the empty value.
    pub fn empty_hash(&self) -> Hash {
        let mut preimage = Preimages::new(*self);
        preimage.flat(0);
        preimage.single()
    }

    /// Hash of a commit.
    pub fn commit_hash(&self, commit: &CommitInfo<'_>) -> Hash {
        // Octez hashes parents in the order of their bytes, in whatever order the caller lists
        // them.
        let mut parents = commit.parents.to_vec();
        parents.sort_unstable();
        let mut out = Vec::new();
        put_hash(&mut out, commit.root);
        put_u64(&mut out, parents.len() as u64);

        for parent in &parents {
            put_hash(&mut out, parent);
        }
        put_u64(&mut out, commit.date as u64);

        for text in [commit.author, commit.message] {
            put_u64(&mut out, text.len() as u64);
            out.extend_from_slice(text);
        }

        debug_assert_eq!(
            out.len(),
            72 + 40 * parents.len() + commit.author.len() + commit.message.len(),
            "the layout of the preimage of a commit"
        );
        self.digest(COMMIT_TAG, &out)
    }
}

/// Bytes of a bucket in the preimage of an inode: its number and its hash.
pub(crate) const BUCKET_BYTES: usize = 1 + HASH_BYTES;

/// Layout of an entry in the preimage of a leaf, or of a flat directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryLayout {
    leaf: bool,
    /// Bytes between the step and the hash.
    pub(crate) between: usize,
}

impl EntryLayout {
    pub(crate) fn of(leaf: bool) -> Self {
        Self { leaf, between: if leaf { 1 } else { 8 } }
    }

    /// Bytes before a step of a length.
    pub(crate) fn before(self, step_len: usize) -> usize {
        debug_assert!(step_len <= STEP_BYTES_MAX, "a step has 1 to 255 bytes");
        let len = if step_len < 0x80 { 1 } else { 2 };
        if self.leaf { len } else { 8 + len }
    }

    /// Bytes of an entry with a step of a length.
    pub(crate) fn bytes(self, step_len: usize) -> usize {
        self.before(step_len) + step_len + self.between + HASH_BYTES
    }

    /// Byte that tells values from directories.
    pub(crate) fn kind(self, is_value: bool) -> u8 {
        match (self.leaf, is_value) {
            (true, _) => u8::from(is_value),
            (false, true) => 0xFF,
            (false, false) => 0,
        }
    }

    /// Position of this byte, given the position of the step.
    pub(crate) fn kind_at(self, start: usize, step_len: usize) -> usize {
        if self.leaf { start + step_len } else { start - self.before(step_len) }
    }

    /// Appends an entry.
    pub(crate) fn put(self, out: &mut Vec<u8>, step: &[u8], is_value: bool, hash: &Hash) {
        let at = out.len();
        out.resize(at + self.bytes(step.len()), 0);
        self.write(&mut out[at..], step, is_value, Some(hash));
    }

    /// Writes an entry into zeros; a hash that is not known yet stays zero.
    pub(crate) fn write(self, out: &mut [u8], step: &[u8], is_value: bool, hash: Option<&Hash>) {
        debug_assert!((1..=STEP_BYTES_MAX).contains(&step.len()), "a step has 1 to 255 bytes");
        debug_assert_eq!(out.len(), self.bytes(step.len()), "there is room for the entry");
        let (before, rest) = out.split_at_mut(self.before(step.len()));
        let (own, rest) = rest.split_at_mut(step.len());
        let (between, own_hash) = rest.split_at_mut(self.between);

        own.copy_from_slice(step);
        // Flat directories and leaves put the kind on different sides of the step.
        let length = if self.leaf {
            between[0] = self.kind(is_value);
            before
        } else {
            before[0] = self.kind(is_value);
            between.copy_from_slice(&be_bytes(HASH_BYTES as u64));
            &mut before[8..]
        };
        match length {
            [low, high] => (*low, *high) = (step.len() as u8 | 0x80, (step.len() >> 7) as u8),
            low => low[0] = step.len() as u8,
        }
        if let Some(hash) = hash {
            own_hash.copy_from_slice(&hash.0);
        }
    }
}

/// Preimage of the hash of a commit.
#[derive(Debug, Clone, Copy)]
pub struct CommitInfo<'a> {
    /// Hash of the root directory.
    pub root: &'a Hash,
    /// Hashes of the parents, in any order.
    pub parents: &'a [Hash],
    /// Seconds since 1970.
    pub date: i64,
    /// Author; `Tezos` in a Tezos context.
    pub author: &'a [u8],
    /// Free text.
    pub message: &'a [u8],
}

/// Preimages in one buffer, so that several are hashed at once.
#[derive(Debug)]
pub(crate) struct Preimages {
    rules: Rules,
    bytes: Vec<u8>,
    /// Kind and start of each preimage.
    starts: Vec<(u8, usize)>,
    /// Positions of the hashes to be [filled in](Self::fill_in).
    blanks: Vec<usize>,
}

impl Preimages {
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules, bytes: Vec::new(), starts: Vec::new(), blanks: Vec::new() }
    }

    /// Bytes that the buffer holds on to.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    fn begin(&mut self, tag: u8) {
        debug_assert!(
            self.starts.last().is_none_or(|last| last.1 < self.bytes.len()),
            "no preimage is empty"
        );
        self.starts.push((tag, self.bytes.len()));
    }

    pub(crate) fn value(&mut self, value: &[u8]) {
        self.begin(1);
        put_u64(&mut self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    /// Begins a flat directory; `count` calls of [`entry`](Self::entry) follow.
    pub(crate) fn flat(&mut self, count: u64) {
        self.begin(2);
        put_u64(&mut self.bytes, count);
    }

    /// Begins an inode that lists its steps; `count` calls of [`entry`](Self::entry) follow.
    pub(crate) fn leaf(&mut self, count: u64) {
        self.begin(3);
        self.bytes.push(0);
        put_leb(&mut self.bytes, count);
    }

    /// Adds an entry to a leaf or a flat directory.
    pub(crate) fn entry(&mut self, leaf: bool, step: &[u8], is_value: bool, hash: &Hash) {
        EntryLayout::of(leaf).put(&mut self.bytes, step, is_value, hash);
    }

    /// Adds entries, or buckets, as they are hashed; returns where they begin.
    pub(crate) fn list(&mut self, list: &[u8]) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(list);
        start
    }

    /// Replaces the hash at a position.
    pub(crate) fn replace(&mut self, at: usize, hash: &Hash) {
        self.bytes[at..at + HASH_BYTES].copy_from_slice(&hash.0);
    }

    /// Has the hash at a position [filled in](Self::fill_in) later.
    pub(crate) fn blank(&mut self, at: usize) {
        self.blanks.push(at);
    }

    /// Fills in the hashes that were not given, in the order of their entries.
    pub(crate) fn fill_in(&mut self, hashes: &[Hash]) {
        debug_assert_eq!(self.blanks.len(), hashes.len(), "one hash for each blank");
        for (blank, hash) in self.blanks.drain(..).zip(hashes) {
            self.bytes[blank..blank + HASH_BYTES].copy_from_slice(&hash.0);
        }
    }

    /// Begins an inode with buckets; `buckets` calls of [`bucket`](Self::bucket) follow.
    pub(crate) fn inner(&mut self, depth: u8, count: u64, buckets: u32) {
        debug_assert!(buckets <= BRANCHING_MAX, "an inode has at most 32 buckets");
        self.begin(3);
        self.bytes.push(1);
        put_leb(&mut self.bytes, u64::from(depth));
        put_leb(&mut self.bytes, count);
        put_leb(&mut self.bytes, u64::from(buckets));
    }

    pub(crate) fn bucket(&mut self, bucket: usize, hash: &Hash) {
        debug_assert!(bucket < BRANCHING_MAX as usize, "an inode has at most 32 buckets");
        put_leb(&mut self.bytes, bucket as u64);
        self.bytes.extend_from_slice(&hash.0);
    }

    /// Lengths of the collected preimages.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> {
        let ends = self.starts.iter().skip(1).map(|next| next.1).chain([self.bytes.len()]);
        self.starts.iter().zip(ends).map(|((_, start), end)| end - start)
    }

    fn preimage(&self, number: usize) -> &[u8] {
        let (_, start) = self.starts[number];
        let end = self.starts.get(number + 1).map_or(self.bytes.len(), |next| next.1);
        &self.bytes[start..end]
    }

    /// Hash of the only preimage.
    fn single(self) -> Hash {
        debug_assert_eq!(self.starts.len(), 1, "there is one preimage");
        debug_assert!(self.blanks.is_empty(), "all its hashes are there");
        self.rules.digest(self.starts[0].0, self.preimage(0))
    }

    /// Returns the hashes in the order of the preimages, and clears the buffer.
    pub(crate) fn finish(&mut self) -> Vec<Hash> {
        debug_assert!(self.blanks.is_empty(), "all blanks were filled in");
        let hashes = match self.rules.scheme {
            Scheme::Tezos => self.finish_blake2b(),
            Scheme::Blake3 => (0..self.starts.len())
                .map(|number| self.rules.digest(self.starts[number].0, self.preimage(number)))
                .collect(),
        };
        debug_assert_eq!(hashes.len(), self.starts.len(), "a hash for each preimage");
        self.bytes.clear();
        self.starts.clear();
        hashes
    }

    /// Hashes preimages of like lengths side by side, so that no lane of the processor waits for
    /// another.
    fn finish_blake2b(&self) -> Vec<Hash> {
        let mut params = blake2b_simd::Params::new();
        params.hash_length(HASH_BYTES);
        let ends = self.starts.iter().skip(1).map(|next| next.1).chain([self.bytes.len()]);
        let spans = self.starts.iter().zip(ends).map(|((_, start), end)| (*start, end));
        let mut order: Vec<(usize, (usize, usize))> = spans.enumerate().collect();

        debug_assert_eq!(order.len(), self.starts.len(), "a span for each preimage");

        // Longest first: `hash_many` fills its lanes in this order.
        order.sort_unstable_by_key(|(_, (start, end))| std::cmp::Reverse(end - start));
        let job = |(_, (start, end)): &(usize, (usize, usize))| {
            blake2b_simd::many::HashManyJob::new(&params, &self.bytes[*start..*end])
        };
        let mut jobs: Vec<_> = order.iter().map(job).collect();
        blake2b_simd::many::hash_many(jobs.iter_mut());

        // The caller gets the hashes in its own order.
        let mut hashes = vec![Hash([0; HASH_BYTES]); jobs.len()];
        for ((number, _), job) in order.iter().zip(&jobs) {
            hashes[*number].0.copy_from_slice(job.to_hash().as_bytes());
        }

        hashes
    }
}

#[expect(clippy::big_endian_bytes, reason = "the preimages of Tezos are big-endian")]
fn be_bytes(value: u64) -> [u8; 8] {
    value.to_be_bytes()
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&be_bytes(value));
}

fn put_hash(out: &mut Vec<u8>, hash: &Hash) {
    put_u64(out, HASH_BYTES as u64);
    out.extend_from_slice(&hash.0);
}

/// Seeded string hash of OCaml's `Hashtbl`, by which Tezos chooses buckets: `MurmurHash3` whose
/// tail is mixed as a full word.
pub fn ocaml_hash(seed: u32, text: &[u8]) -> u32 {
    let mix = |hash: u32, word: u32| {
        let word = word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
        (hash ^ word).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    };

    let (words, tail) = text.as_chunks::<4>();
    let mut hash = words.iter().fold(seed, |hash, word| mix(hash, u32::from_le_bytes(*word)));

    // OCaml pads the tail to a word and mixes it as one, unlike `MurmurHash3`.
    if !tail.is_empty() {
        let mut word = [0; 4];
        word[..tail.len()].copy_from_slice(tail);
        hash = mix(hash, u32::from_le_bytes(word));
    }

    // Final avalanche of `MurmurHash3`, cut to the 30 bits of OCaml's small integers.
    hash ^= text.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    (hash ^ hash >> 16) & 0x3FFF_FFFF
}
