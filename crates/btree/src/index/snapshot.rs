//! Snapshots: an index as it was at a moment, for as long as somebody wants it.
//!
//! A snapshot holds a tree and the updates above it, which nobody changes: who changes an update
//! copies it while a snapshot has it. Pages of the tree are not written again meanwhile, so a
//! snapshot that lives long keeps the file from reusing what was changed since.

use std::ops::RangeBounds;
use std::sync::Arc;

use crate::page::error::{Error, Result};
use crate::tree::cursor::{Cursor, bounds_of};
use crate::tree::state::{Core, State};

/// An index as it was when [`Index::snapshot`](crate::Index::snapshot) was called. Threads may
/// share it.
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
        if self.core.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    /// The value of a key. Cost as of [`Index::find`](crate::Index::find); waits for nobody.
    ///
    /// # Errors
    /// [`Error::Closed`] once the index is closed or dropped, as its pages are not kept then;
    /// [`Error::Disk`], [`Error::Corrupt`].
    pub fn find(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_open()?;
        self.core.find_in(&self.state, key)
    }

    /// The value of each key, in their order, as [`Index::find_many`](crate::Index::find_many).
    ///
    /// # Errors
    /// As [`find`](Self::find); no partial result.
    pub fn find_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        self.check_open()?;
        self.core.find_many_in(&self.state, keys)
    }

    /// How many entries there are. Costs nothing.
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
    /// As [`find`](Self::find).
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        self.check_open()?;
        Cursor::ascending_in(&self.core, &self.state, bounds_of(&range))
    }

    /// The entries of a range, descending. The cursor may outlive the snapshot.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn range_back<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Cursor> {
        self.check_open()?;
        Cursor::descending_in(&self.core, &self.state, bounds_of(&range))
    }
}
