//! Physical entries: their kinds and limits, and how two entries of one key combine.
//!
//! A newer entry hides an older one, except that an *upsert* combines with it. Inside one table,
//! with the table's merge operator *f*, whose first argument is the newer value:
//!
//! | newer      | nothing older | delete     | insert *v*, with or without blob | upsert *v*      |
//! |------------|---------------|------------|----------------------------------|-----------------|
//! | upsert *u* | upsert *u*    | insert *u* | insert *f*(*u*, *v*), no blob    | upsert *f*(*u*, *v*) |
//! | any other  | itself        | itself     | itself                           | itself          |
//!
//! Where *f* makes a value that is too long, the entry becomes a *too large* one, which says so and
//! hides what is older: an upsert on it leaves it as it is, and an insert or a delete takes its
//! place.
//!
//! This is associative if and only if *f* is, so that merges may be made in any order.

/// Longest key, in bytes: a little less than a page, so that a page holds any key whole, with what
/// it has to say of the entry.
pub const KEY_BYTES_MAX: usize = 4000;

/// Longest value, in bytes; of an insert with blob 12 bytes less.
pub const VALUE_BYTES_MAX: usize = u32::MAX as usize;

/// Longest blob, in bytes.
pub const BLOB_BYTES_MAX: usize = u32::MAX as usize;

/// Weight of an entry in a memtable beside its key and value, in bytes.
pub(crate) const ENTRY_OVERHEAD_BYTES: u64 = 40;

/// Kind of an entry: its effect on older entries of its key. The numbers stand in files; 0 is never
/// valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The key has this value.
    Insert = 1,
    /// The key is absent.
    Delete = 2,
    /// The key's older value, if any, combines with this one.
    Upsert = 3,
    /// The key has this value, and a blob.
    InsertBlob = 4,
    /// Upserts of the key made a value that is too long to be stored: what they came to, a
    /// [`TooLarge`](crate::entry::merge_operator::TooLarge). Numbers 5 and 6 stand for deleted
    /// ranges in the log.
    TooLarge = 7,
}

impl Kind {
    /// The kind of that number.
    pub(crate) fn from_tag(tag: u8) -> Option<Self> {
        match tag {
            1 => Some(Self::Insert),
            2 => Some(Self::Delete),
            3 => Some(Self::Upsert),
            4 => Some(Self::InsertBlob),
            7 => Some(Self::TooLarge),
            _ => None,
        }
    }

    /// Whether nothing older of the key matters.
    pub(crate) fn is_decisive(self) -> bool {
        self != Self::Upsert
    }

    /// The kind of an upsert combined with an older entry of this kind.
    pub(crate) fn under_upsert(self) -> Self {
        // The result of an upsert has no blob, and over a deletion it is its operand.
        let combined = match self {
            Self::Upsert => Self::Upsert,
            Self::Insert | Self::InsertBlob | Self::Delete => Self::Insert,
            Self::TooLarge => Self::TooLarge,
        };
        debug_assert_eq!(combined.is_decisive(), self.is_decisive());
        combined
    }
}

/// In which order keys are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Ascending,
    Descending,
}

/// Where a blob stands among the blobs of its run or of its memtable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub(crate) struct BlobSpan {
    /// In a run: its first byte in the blob stream. In a memtable: its place in the list of
    /// blobs.
    pub(crate) offset: u64,
    /// Its length.
    pub(crate) len: u32,
}

/// Bytes of a [`BlobSpan`] in a page: offset (u64), length (u32).
pub(crate) const BLOB_SPAN_SIZE: usize = 12;

/// A physical entry, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryRef<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) kind: Kind,
    /// Empty for a [`Kind::Delete`].
    pub(crate) value: &'a [u8],
    /// Blob of a [`Kind::InsertBlob`], in the source that the entry was read from; otherwise zero.
    pub(crate) blob: BlobSpan,
}

#[cfg(test)]
impl<'a> EntryRef<'a> {
    /// An entry without a blob.
    pub(crate) fn plain(key: &'a [u8], kind: Kind, value: &'a [u8]) -> Self {
        Self { key, kind, value, blob: BlobSpan::default() }
    }
}

/// A change of one key, or the deletion of a range of keys, which begins with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias("WriteBatch", "put"))]
pub enum Update<'a> {
    /// Sets the value, whatever was there.
    Insert(&'a [u8]),
    /// Sets the value and the blob, whatever was there.
    InsertWithBlob(&'a [u8], &'a [u8]),
    /// Removes the key; no effect if it is absent.
    Delete,
    /// Sets the value if the key is absent; otherwise replaces it by what the table's merge
    /// function makes of this value and the old one. Removes the key's blob.
    Upsert(&'a [u8]),
    /// Removes all keys from this one on that are below the other one, or to the last one if there
    /// is no other; none if the other one is not above it. Either bound may be a byte longer than a
    /// key. Cost: that of [`Table::delete_range`](crate::Table::delete_range).
    DeleteRange(Option<&'a [u8]>),
}

impl<'a> Update<'a> {
    /// The kind, the value, and the blob; of a range a deletion with its end.
    pub(crate) fn parts(self) -> (Kind, &'a [u8], Option<&'a [u8]>) {
        match self {
            Self::Insert(value) => (Kind::Insert, value, None),
            Self::InsertWithBlob(value, blob) => (Kind::InsertBlob, value, Some(blob)),
            Self::Delete => (Kind::Delete, &[], None),
            Self::Upsert(value) => (Kind::Upsert, value, None),
            Self::DeleteRange(end) => (Kind::Delete, end.unwrap_or_default(), None),
        }
    }
}

/// The hash of a key that filters and memtables use; each session has its own salt, so that no
/// attacker can choose keys that collide in a given store.
pub(crate) fn key_hash(salt: u64, key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(key, salt)
}

/// The hash by which a filter holds a prefix of keys: not that of a key of the same bytes.
pub(crate) fn prefix_hash(salt: u64, prefix: &[u8]) -> u64 {
    key_hash(!salt, prefix)
}
