//! The index of objects by their hashes: what the pack needs of an ordered map on disk. The map itself is another
//! crate's; `terrane-backends` has one over the B+tree.
//!
//! The index is derived: everything in it can be found in the pack. What it says about a commit is compared with the record
//! there. About other objects it is believed, but only where it was brought up to date: below the tail of the control
//! record, and not where a collection has taken objects away that it may still have.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use terrane_io::Disk;

use crate::base::address::{Address, Extent};
use crate::base::hash::{HASH_BYTES, Hash};

/// Bytes of a key: what the object is, and its hash.
pub const INDEX_KEY_BYTES: usize = 1 + HASH_BYTES;
/// Bytes of a value: address and length.
pub const INDEX_VALUE_BYTES: usize = 12;

/// A key of the index.
pub type IndexKey = [u8; INDEX_KEY_BYTES];
/// A value of the index.
pub type IndexValue = [u8; INDEX_VALUE_BYTES];

/// What is indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Object {
    Commit = 1,
    Dir = 2,
    Value = 3,
}

pub(crate) fn key(object: Object, hash: &Hash) -> IndexKey {
    let mut key = [object as u8; INDEX_KEY_BYTES];
    key[1..].copy_from_slice(&hash.0);
    key
}

pub(crate) fn value(extent: Extent) -> IndexValue {
    let mut value = [0; INDEX_VALUE_BYTES];
    value[..8].copy_from_slice(&extent.at.to_u64().to_le_bytes());
    value[8..].copy_from_slice(&extent.bytes.to_le_bytes());
    value
}

/// The key of the entry that says what the index knows: before those of all objects.
pub(crate) const STATE_KEY: IndexKey = [0; INDEX_KEY_BYTES];

/// The value of [`STATE_KEY`]: how many commits the index knows, and of which store.
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

/// What goes wrong in an index, as text.
pub type IndexResult<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// An ordered map from [`IndexKey`] to [`IndexValue`].
pub trait ObjectIndex: Send + Sync + Debug {
    /// The value of a key.
    ///
    /// # Errors
    /// Those of the map.
    fn find(&self, key: &IndexKey) -> IndexResult<Option<IndexValue>>;

    /// Binds keys, atomically; an earlier binding is replaced.
    ///
    /// # Errors
    /// Those of the map.
    fn insert(&self, entries: &[(IndexKey, IndexValue)]) -> IndexResult<()>;

    /// Removes keys, atomically; those that are not there do not matter.
    ///
    /// # Errors
    /// Those of the map.
    fn remove(&self, keys: &[IndexKey]) -> IndexResult<()>;

    /// Calls `visit` with every entry from the key `first` on, in the order of the keys, until it says no.
    ///
    /// # Errors
    /// Those of the map.
    fn each_from(
        &self,
        first: &IndexKey,
        visit: &mut dyn FnMut(&IndexKey, &IndexValue) -> bool,
    ) -> IndexResult<()>;

    /// Makes what was inserted durable.
    ///
    /// # Errors
    /// Those of the map.
    fn flush(&self) -> IndexResult<()>;

    /// Gives up files and locks.
    ///
    /// # Errors
    /// Those of the map.
    fn close(&self) -> IndexResult<()>;
}

/// Opens indexes.
pub trait IndexEngine: Send + Sync + Debug {
    /// Opens the index in `dir` for writing, and makes one if there is none.
    ///
    /// # Errors
    /// Those of the map.
    fn open(&self, disk: Arc<dyn Disk>, dir: &Path) -> IndexResult<Box<dyn ObjectIndex>>;

    /// Opens the index in `dir` for looking at it; none if there is none. What is opened is not written to, and nothing changes on
    /// the disk but that the reader may hold a lease meanwhile.
    ///
    /// # Errors
    /// Those of the map.
    fn read(&self, disk: Arc<dyn Disk>, dir: &Path) -> IndexResult<Option<Box<dyn ObjectIndex>>>;

    /// Removes the index in `dir`, if there is one, however damaged it is; of its files only those of the index. After a crash it is
    /// there or it is gone. No link is followed.
    ///
    /// # Errors
    /// Those of the disk.
    fn remove(&self, disk: &dyn Disk, dir: &Path) -> IndexResult<()>;
}
