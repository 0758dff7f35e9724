//! Physical entries: what a table stores for a key, and their limits.

use std::fmt;
use std::ops::Deref;

/// Longest key, in bytes: one page less its header.
pub const KEY_BYTES_MAX: usize = 4000;

/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = u32::MAX as usize;

/// Weight of an entry in a write buffer beside its key and value, in bytes.
pub(crate) const ENTRY_OVERHEAD_BYTES: u64 = 40;

/// What an entry does to older entries of its key. The numbers stand in files; 0 is never valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The key has this value.
    Insert = 1,
    /// The key is absent.
    Delete = 2,
}

impl Kind {
    /// The kind of that number. 3 (upsert) and 4 (insert with blob) are reserved and not yet written.
    pub(crate) fn from_tag(tag: u8) -> Option<Self> {
        match tag {
            1 => Some(Self::Insert),
            2 => Some(Self::Delete),
            _ => None,
        }
    }
}

/// A physical entry in somebody else's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryRef<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) kind: Kind,
    /// Empty for a [`Kind::Delete`].
    pub(crate) value: &'a [u8],
}

impl EntryRef<'_> {
    /// What the entry counts for in a buffer bounded in bytes.
    pub(crate) fn weight_bytes(&self) -> u64 {
        weight_bytes(self.key.len(), self.value.len())
    }
}

/// What an entry of such a key and value counts for in a buffer bounded in bytes.
pub(crate) fn weight_bytes(key_len: usize, value_len: usize) -> u64 {
    key_len as u64 + value_len as u64 + ENTRY_OVERHEAD_BYTES
}

/// First eight bytes of a key, so that their order is that of the keys as far as they go.
#[expect(clippy::big_endian_bytes, reason = "the order of keys is that of their bytes")]
pub(crate) fn key_prefix(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            (0..8).fold(0, |prefix, at| prefix << 8 | u64::from(key.get(at).copied().unwrap_or(0)))
        }
    }
}

/// A change of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Update<'a> {
    /// Sets the value, whatever was there.
    Insert(&'a [u8]),
    /// Removes the key; no effect if it is absent.
    Delete,
}

impl<'a> Update<'a> {
    pub(crate) fn parts(self) -> (Kind, &'a [u8]) {
        match self {
            Self::Insert(value) => (Kind::Insert, value),
            Self::Delete => (Kind::Delete, &[]),
        }
    }
}

/// A value read from a table. Dereferences to its bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Value(Box<[u8]>);

impl Value {
    /// The bytes themselves.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.0.into_vec()
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({:02x?})", &self.0)
    }
}

/// What a lookup found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lookup {
    /// The key is absent.
    NotFound,
    /// The key has this value.
    Found(Value),
}

impl Lookup {
    pub(crate) fn from_entry(kind: Kind, value: &[u8]) -> Self {
        match kind {
            Kind::Insert => Self::Found(value.into()),
            Kind::Delete => Self::NotFound,
        }
    }

    /// The value, if the key is present.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Found(value) => Some(value),
            Self::NotFound => None,
        }
    }

    /// Whether the key is present.
    #[must_use]
    pub fn is_found(&self) -> bool {
        self.value().is_some()
    }
}

/// A live entry, as a cursor gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Value,
}

/// The hash of a key that filters and write buffers use; each session has its own salt, so that nobody
/// can choose keys that collide in a given store.
pub(crate) fn key_hash(salt: u64, key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(key, salt)
}
