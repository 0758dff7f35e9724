//! Results of reading a table: values, and references to blobs. The answers of a batch are a result
//! for each key, or values one behind the other.
//!
//! Invariant: the places of [`Values`] lie in its bytes, in any order, and do not overlap.

use std::fmt;
use std::ops::Deref;

use crate::entry::entry::Kind;
use crate::entry::merge_operator::TooLarge;
use crate::error::Result;
use crate::run::blob::{Blob, BlobRef};

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

/// Result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lookup {
    /// The key is absent.
    NotFound,
    /// The key has this value.
    Found(Value),
    /// The key has this value, and a blob.
    FoundWithBlob(Value, BlobRef),
}

impl Lookup {
    /// Converts an entry of a key that has no older entry to combine with.
    ///
    /// # Errors
    /// [`Error::UpsertTooLarge`](crate::Error::UpsertTooLarge).
    pub(crate) fn from_entry(
        key: &[u8],
        (kind, value): (Kind, &[u8]),
        blob: Option<&Blob>,
    ) -> Result<Self> {
        match (kind, blob) {
            (Kind::Delete, _) => Ok(Self::NotFound),
            (Kind::TooLarge, _) => Err(TooLarge::error(key, value)),
            (_, Some(blob)) => Ok(Self::FoundWithBlob(value.into(), blob.downgrade())),
            (_, None) => Ok(Self::Found(value.into())),
        }
    }

    /// The value, if the key is present.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Found(value) | Self::FoundWithBlob(value, _) => Some(value),
            Self::NotFound => None,
        }
    }

    /// The blob, if the key is present and has one.
    #[must_use]
    pub fn blob(&self) -> Option<&BlobRef> {
        match self {
            Self::FoundWithBlob(_, blob) => Some(blob),
            Self::Found(_) | Self::NotFound => None,
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
    /// Its blob, if it has one.
    pub blob: Option<BlobRef>,
}

/// Answers of a batch of lookups, by the place of their keys in it.
pub(crate) trait Answers {
    /// Answers the next key by an entry that has no older one to combine with.
    ///
    /// # Errors
    /// [`Error::UpsertTooLarge`](crate::Error::UpsertTooLarge).
    fn push_entry(&mut self, key: &[u8], entry: (Kind, &[u8]), blob: Option<&Blob>) -> Result<()>;

    /// Answers the next key: absent, as far as is known.
    fn push_absent(&mut self);

    /// Answers a key that was taken for absent.
    fn set(&mut self, at: usize, answer: Lookup);

    /// Keys answered.
    fn len(&self) -> usize;

    /// Keys that are present.
    fn found(&self) -> usize;
}

impl Answers for Vec<Lookup> {
    fn push_entry(&mut self, key: &[u8], entry: (Kind, &[u8]), blob: Option<&Blob>) -> Result<()> {
        self.push(Lookup::from_entry(key, entry, blob)?);
        Ok(())
    }

    fn push_absent(&mut self) {
        self.push(Lookup::NotFound);
    }

    fn set(&mut self, at: usize, answer: Lookup) {
        self[at] = answer;
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn found(&self) -> usize {
        self.iter().filter(|answer| answer.is_found()).count()
    }
}

/// Values of a batch of lookups, in memory that the next batch uses again
/// ([`Table::get_many_into`](crate::Table::get_many_into)).
#[derive(Debug, Clone, Default)]
pub struct Values {
    bytes: Vec<u8>,
    /// Start and length of each value; values that were read come behind those of the memtable.
    places: Vec<Option<(usize, usize)>>,
}

impl Values {
    /// No values.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// No values, with memory for those of so many keys, which have so many bytes together.
    #[must_use]
    pub fn with_capacity(keys: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), places: Vec::with_capacity(keys) }
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The value of the key at a place of the batch; `None` if it is absent, or beyond the batch.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&[u8]> {
        let (start, len) = (*self.places.get(at)?)?;
        Some(&self.bytes[start..][..len])
    }

    /// The values in the order of the keys, `None` for one that is absent.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<&[u8]>> + Clone {
        self.places.iter().map(|place| place.map(|(start, len)| &self.bytes[start..][..len]))
    }

    /// The bytes of all values in the order of their keys. They are moved, not copied, if the
    /// memtable has decided all keys.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        let mut end = 0;
        let mut is_next = |(start, len)| {
            let is_next = start == end;
            end += len;
            is_next
        };
        if self.places.iter().flatten().all(|place| is_next(*place)) {
            return self.bytes;
        }
        self.iter().flatten().collect::<Vec<_>>().concat()
    }

    /// Forgets all values, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    /// Adds a value to the bytes; returns its place.
    fn add(&mut self, value: &[u8]) -> (usize, usize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        (start, value.len())
    }
}

impl Answers for &mut Values {
    fn push_entry(
        &mut self,
        key: &[u8],
        (kind, value): (Kind, &[u8]),
        _: Option<&Blob>,
    ) -> Result<()> {
        let place = match kind {
            Kind::Delete => None,
            Kind::TooLarge => return Err(TooLarge::error(key, value)),
            _ => Some(self.add(value)),
        };
        self.places.push(place);
        Ok(())
    }

    fn push_absent(&mut self) {
        self.places.push(None);
    }

    fn set(&mut self, at: usize, answer: Lookup) {
        debug_assert!(self.places[at].is_none(), "a key is answered once");
        self.places[at] = answer.value().map(|value| self.add(value));
    }

    fn len(&self) -> usize {
        self.places.len()
    }

    fn found(&self) -> usize {
        self.places.iter().flatten().count()
    }
}
