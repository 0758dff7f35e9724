//! Inode with buckets, in memory.
//!
//! One buffer has the *list* of the buckets exactly as it is hashed, and behind it their extents. A
//! change of a bucket overwrites 32 bytes. As with [entries](crate::object::entries), a *stale*
//! bucket has another hash than the list says, and a *changed* one differs from the full record
//! that later deltas are based on; a *recent* one differs from the delta on the full record that
//! they are based on.
//!
//! Invariant: buckets ascend, and each has a hash and an extent.

use crate::base::address::{Extent, Link, NOWHERE};
use crate::base::hash::{HASH_BYTES, Hash};
use crate::base::hashing::BUCKET_BYTES;
use crate::object::entries::{hash_in, make_room, open_gap};

/// An inode with buckets. See the [module](self).
///
/// The fields stand in the order in which a path through the node meets them.
#[derive(Debug, Clone)]
#[repr(C)]
pub(crate) struct Inner {
    /// Bit mask of the buckets that are not empty.
    mask: u32,
    /// Mask of the buckets whose hash in the list is not that of the inode.
    stale: u32,
    /// Entries below the inode.
    pub(crate) count: u64,
    /// Buckets as they are hashed, and their extents.
    bytes: Vec<u8>,
    pub(crate) depth: u8,
    /// Mask of the buckets that differ from the full record.
    pub(super) changed: u32,
    /// Mask of the buckets that differ from the middle delta.
    pub(super) recent: u32,
    /// Full record that a delta can be based on.
    pub(super) full: Option<Extent>,
    /// Delta on the full record that a delta can be based on.
    pub(super) middle: Option<Extent>,
}

impl Inner {
    /// Creates an inode of a depth without buckets, below which are `count` entries. It has room
    /// for `buckets` of them.
    pub(crate) fn new(depth: u8, count: u64, buckets: usize) -> Self {
        Self {
            mask: 0,
            stale: 0,
            count,
            bytes: Vec::with_capacity(buckets * (BUCKET_BYTES + Extent::BYTES)),
            depth,
            changed: 0,
            recent: 0,
            full: None,
            middle: None,
        }
    }

    /// Creates an inode of the buckets of a record, whose links `link` gives in ascending order.
    pub(super) fn of_links<E>(
        (depth, count, mask): (u8, u64, u32),
        mut link: impl FnMut(usize) -> Result<Link, E>,
    ) -> Result<Self, E> {
        let bytes = vec![0; mask.count_ones() as usize * (BUCKET_BYTES + Extent::BYTES)];
        let mut inner = Self { mask, bytes, ..Self::new(depth, count, 0) };
        for (rank, bucket) in inner.buckets().enumerate() {
            let link = link(bucket)?;
            inner.bytes[rank * BUCKET_BYTES] = bucket as u8;
            inner.put_extent(rank, link.extent);
            inner.put_hash(rank, &link.hash);
        }
        inner.check();
        Ok(inner)
    }

    /// Number of buckets that are not empty.
    pub(crate) fn len(&self) -> usize {
        self.mask.count_ones() as usize
    }

    /// Position of the extents in the buffer.
    fn extents_at(&self) -> usize {
        self.len() * BUCKET_BYTES
    }

    /// Buckets as they are hashed.
    pub(crate) fn list(&self) -> &[u8] {
        &self.bytes[..self.extents_at()]
    }

    /// Mask of the buckets that are not empty.
    pub(super) fn mask(&self) -> u32 {
        self.mask
    }

    /// Mask of the buckets whose hash in the list is not that of the inode.
    pub(crate) fn stale(&self) -> u32 {
        self.stale
    }

    /// Buckets that are not empty, ascending.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = usize> + use<> {
        let mask = self.mask;
        (0..32).filter(move |bucket| mask >> bucket & 1 == 1)
    }

    /// Number of the bucket among those that are not empty.
    pub(crate) fn rank(&self, bucket: usize) -> Option<usize> {
        let bit = 1u32 << bucket;
        (self.mask & bit != 0).then(|| self.rank_of(bucket))
    }

    fn rank_of(&self, bucket: usize) -> usize {
        debug_assert!(bucket < 32, "an inode has at most 32 buckets");
        (self.mask & ((1u32 << bucket) - 1)).count_ones() as usize
    }

    /// Position of the hash of a rank in the list.
    pub(crate) fn hash_at(rank: usize) -> usize {
        rank * BUCKET_BYTES + 1
    }

    /// Hash of a rank in the list.
    pub(crate) fn hash(&self, rank: usize) -> Hash {
        hash_in(self.list(), Self::hash_at(rank))
    }

    /// Extent of a rank; [`NOWHERE`] if the inode is not stored.
    pub(crate) fn extent(&self, rank: usize) -> Extent {
        let at = self.extents_at() + rank * Extent::BYTES;
        Extent::read(self.bytes[at..].first_chunk().expect("an extent each"))
    }

    fn put_extent(&mut self, rank: usize, extent: Extent) {
        let at = self.extents_at() + rank * Extent::BYTES;
        self.bytes[at..at + Extent::BYTES].copy_from_slice(&extent.write());
    }

    /// Returns the link of a rank, if the inode is stored.
    pub(crate) fn link(&self, rank: usize) -> Option<Link> {
        let extent = self.extent(rank);
        (extent != NOWHERE).then(|| Link { extent, hash: self.hash(rank) })
    }

    /// Adds a bucket that was empty, of a child that is in memory or blinded; returns its rank.
    pub(crate) fn insert(&mut self, bucket: usize, hash: Option<&Hash>) -> usize {
        let rank = self.open(bucket);
        if let Some(hash) = hash {
            self.put_hash(rank, hash);
        } else {
            self.stale |= 1 << bucket;
        }
        self.changed |= 1 << bucket;
        self.recent |= 1 << bucket;
        self.check();
        rank
    }

    /// Makes a place for a bucket that was empty; returns its rank.
    fn open(&mut self, bucket: usize) -> usize {
        debug_assert_eq!(self.mask >> bucket & 1, 0, "the bucket was empty");
        let rank = self.rank_of(bucket);
        make_room(&mut self.bytes, BUCKET_BYTES + Extent::BYTES);
        let extent_at = self.extents_at() + rank * Extent::BYTES;
        open_gap(&mut self.bytes, extent_at, Extent::BYTES);
        open_gap(&mut self.bytes, rank * BUCKET_BYTES, BUCKET_BYTES);
        self.bytes[rank * BUCKET_BYTES] = bucket as u8;
        self.mask |= 1 << bucket;
        debug_assert_eq!(self.extent(rank), NOWHERE, "a gap of zeros is no place");
        rank
    }

    fn put_hash(&mut self, rank: usize, hash: &Hash) {
        let at = Self::hash_at(rank);
        self.bytes[at..at + HASH_BYTES].copy_from_slice(&hash.0);
    }

    /// Notes that the inode of a bucket changed.
    pub(crate) fn change(&mut self, bucket: usize) {
        self.put_extent(self.rank_of(bucket), NOWHERE);
        self.stale |= 1 << bucket;
        self.changed |= 1 << bucket;
        self.recent |= 1 << bucket;
        self.check();
    }

    /// Stores the link of a bucket.
    pub(crate) fn settle(&mut self, bucket: usize, link: &Link) {
        let rank = self.rank_of(bucket);
        self.put_extent(rank, link.extent);
        self.put_hash(rank, &link.hash);
        self.stale &= !(1 << bucket);
        self.check();
    }

    /// Empties a bucket; returns the rank that it had.
    pub(crate) fn remove(&mut self, bucket: usize) -> usize {
        let rank = self.rank_of(bucket);
        let extent_at = self.extents_at() + rank * Extent::BYTES;
        self.bytes.drain(extent_at..extent_at + Extent::BYTES);
        self.bytes.drain(rank * BUCKET_BYTES..(rank + 1) * BUCKET_BYTES);
        let bit = 1 << bucket;
        self.mask &= !bit;
        self.changed &= !bit;
        self.recent &= !bit;
        self.stale &= !bit;
        self.check();
        rank
    }

    pub(super) fn check(&self) {
        let bytes = self.len() * (BUCKET_BYTES + Extent::BYTES);
        debug_assert_eq!(self.bytes.len(), bytes, "a hash and an extent each");
        let flagged = self.stale | self.changed | self.recent;
        debug_assert_eq!(flagged & !self.mask, 0, "buckets that are there");
    }

    /// Bases later deltas on a full record of this content, or on none.
    pub(crate) fn rebase(&mut self, full: Option<Extent>) {
        self.full = full;
        self.changed = if full.is_some() { 0 } else { self.mask };
        (self.middle, self.recent) = (None, self.changed);
    }

    /// Bases later deltas on a delta of this content, which is based on the full record.
    pub(crate) fn rebase_middle(&mut self, middle: Extent) {
        debug_assert!(self.full.is_some(), "a delta is based on a full record");
        (self.middle, self.recent) = (Some(middle), 0);
    }

    /// Returns whether the node is as its full record, or its middle one, has it.
    pub(super) fn is_base(&self) -> bool {
        self.full.is_some() && (self.changed == 0 || self.middle.is_some() && self.recent == 0)
    }

    /// Approximate size in memory beside the node itself, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.bytes.capacity()
    }
}
