//! Results of reading a table: values, and references to blobs.

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
