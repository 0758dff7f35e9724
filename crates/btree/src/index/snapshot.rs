//! Snapshots: views of an index as of a moment, in the process of the writer.
//!
//! A snapshot holds a tree and the buffers above it. An update of a block that a snapshot shares
//! copies the block first. The pages of the snapshot's tree are not reused meanwhile, so a snapshot
//! that lives long makes the file grow.

use std::ops::RangeBounds;
use std::sync::Arc;

use crate::page::error::Result;
use crate::tree::cursor::{Cursor, bounds_of};
use crate::tree::state::{Core, State};

/// A view of the index as of the call of [`Index::snapshot`](crate::Index::snapshot). Threads may
/// share it.
///
/// The view is not durable: it ends with the index that it was taken from.
#[derive(Debug, Clone)]
pub struct Snapshot {
    core: Arc<Core>,
    state: State,
}

impl Snapshot {
    pub(crate) fn new(core: Arc<Core>, state: State) -> Self {
        Self { core, state }
    }

    fn check_open(&self) -> Result<()> {
        self.core.check_open()
    }

    /// Returns the value of a key. Cost as of [`Index::find`](crate::Index::find); never waits.
    ///
    /// # Errors
    /// [`Closed`](crate::Error::Closed) once the index is closed or dropped, as its pages are not
    /// kept any longer; [`Disk`](crate::Error::Disk), [`Corrupt`](crate::Error::Corrupt).
    pub fn find(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_open()?;
        self.core.find_in(&self.state, key)
    }

    /// Returns the value of each key, in the order of `keys`, as
    /// [`Index::find_many`](crate::Index::find_many).
    ///
    /// # Errors
    /// Those of [`find`](Self::find); no partial result.
    pub fn find_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        self.check_open()?;
        self.core.find_many_in(&self.state, keys)
    }

    /// Number of entries. Costs nothing.
    pub fn len(&self) -> u64 {
        self.state.entries
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries of a range, ascending. The cursor may outlive the snapshot.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        self.check_open()?;
        Cursor::ascending_in(&self.core, &self.state, bounds_of(&range))
    }

    /// The entries of a range, descending. The cursor may outlive the snapshot.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub fn range_back<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        self.check_open()?;
        Cursor::descending_in(&self.core, &self.state, bounds_of(&range))
    }
}
