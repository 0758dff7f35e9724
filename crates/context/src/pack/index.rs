//! Index of objects by their hashes: the interface of an ordered map on disk. The map is another
//! crate's; `terrane-backends` has one over the B+tree.
//!
//! The index is derived from the pack. A commit that the index names is compared with its record.
//! Other objects are trusted only below the tail of the control record, and not where a collection
//! may have removed an object that the index still has.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use terrane_io::Disk;

use crate::base::address::{Address, Extent};
use crate::base::hash::{HASH_BYTES, Hash};

/// Bytes of a key: kind of the object, and its hash.
pub const INDEX_KEY_BYTES: usize = 1 + HASH_BYTES;
/// Bytes of a value: address and length.
pub const INDEX_VALUE_BYTES: usize = 12;

/// A key of the index.
pub type IndexKey = [u8; INDEX_KEY_BYTES];
/// A value of the index.
pub type IndexValue = [u8; INDEX_VALUE_BYTES];

/// Kind of an indexed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Object {
    Commit = 1,
    Dir = 2,
    Value = 3,
}

pub(crate) fn key(object: Object, hash: &Hash) -> IndexKey {
    // The kind of object stands first, so that equal hashes of two kinds do not meet.
    let mut key = [object as u8; INDEX_KEY_BYTES];
    key[1..].copy_from_slice(&hash.0);
    debug_assert!(key > STATE_KEY, "the state of the index comes before all objects");
    key
}

pub(crate) fn value(extent: Extent) -> IndexValue {
    let mut value = [0; INDEX_VALUE_BYTES];
    value[..8].copy_from_slice(&extent.at.to_u64().to_le_bytes());
    value[8..].copy_from_slice(&extent.bytes.to_le_bytes());
    debug_assert_eq!(self::extent(value), extent, "a value says the extent");
    value
}

/// Key of the entry with the state of the index, before the keys of all objects.
pub(crate) const STATE_KEY: IndexKey = [0; INDEX_KEY_BYTES];

/// Value of [`STATE_KEY`]: the number of indexed commits, and the identity of the store.
pub(crate) fn state_value(commits: u64, store: u64) -> IndexValue {
    let mut value = [0; INDEX_VALUE_BYTES];
    value[..8].copy_from_slice(&commits.to_le_bytes());
    value[8..].copy_from_slice(&(store as u32).to_le_bytes());
    value
}

pub(crate) fn extent(value: IndexValue) -> Extent {
    let at = value.first_chunk().map_or(0, |at| u64::from_le_bytes(*at));
    let bytes = value.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    Extent { at: Address::from_u64(at), bytes }
}

/// Result of an index; the error is shown as text.
pub type IndexResult<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Ordered map from [`IndexKey`] to [`IndexValue`].
pub trait ObjectIndex: Send + Sync + Debug {
    /// Returns the value of a key.
    ///
    /// # Errors
    /// Errors of the map.
    fn find(&self, key: &IndexKey) -> IndexResult<Option<IndexValue>>;

    /// Binds keys atomically, and replaces earlier bindings.
    ///
    /// # Errors
    /// Errors of the map.
    fn insert(&self, entries: &[(IndexKey, IndexValue)]) -> IndexResult<()>;

    /// Removes keys atomically, and ignores absent keys.
    ///
    /// # Errors
    /// Errors of the map.
    fn remove(&self, keys: &[IndexKey]) -> IndexResult<()>;

    /// Calls `visit` with each entry from the key `first` on, in order of the keys, until `visit`
    /// returns false.
    ///
    /// # Errors
    /// Errors of the map.
    fn each_from(
        &self,
        first: &IndexKey,
        visit: &mut dyn FnMut(&IndexKey, &IndexValue) -> bool,
    ) -> IndexResult<()>;

    /// Makes all insertions durable.
    ///
    /// # Errors
    /// Errors of the map.
    fn flush(&self) -> IndexResult<()>;

    /// Releases files and locks.
    ///
    /// # Errors
    /// Errors of the map.
    fn close(&self) -> IndexResult<()>;
}

/// Engine of indexes: opens and removes them.
pub trait IndexEngine: Send + Sync + Debug {
    /// Opens the index in `dir` for writing; creates it if it is missing.
    ///
    /// # Errors
    /// Errors of the map.
    fn open(&self, disk: Arc<dyn Disk>, dir: &Path) -> IndexResult<Box<dyn ObjectIndex>>;

    /// Opens the index in `dir` for reading; `None` if it is missing.
    ///
    /// Nothing on the disk changes, except that the reader may hold a lease.
    ///
    /// # Errors
    /// Errors of the map.
    fn read(&self, disk: Arc<dyn Disk>, dir: &Path) -> IndexResult<Option<Box<dyn ObjectIndex>>>;

    /// Removes the index in `dir`, if there is one, however damaged. Only files of the index are
    /// removed.
    ///
    /// After a crash the index is complete or gone. No link is followed.
    ///
    /// # Errors
    /// Errors of the disk.
    fn remove(&self, disk: &dyn Disk, dir: &Path) -> IndexResult<()>;
}
