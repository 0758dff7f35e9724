//! Traits of an engine, for replays.
//!
//! A [`Table`] is an ordered map from bytes to bytes that lives as long as its handle and can be
//! forked. Only named snapshots, which belong to the [`Engine`], are durable.
//!
//! Replays use the traits as objects: beside a bulk call, an indirect call costs nothing.

use std::collections::BTreeMap;
use std::fmt::Debug;

use terrane::io::ErrorKind;

use crate::error::{Class, kind_of};

/// The cause of an [`EngineError`].
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Reason why a call of an engine failed, by what the caller can do.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Stored bytes are not what the engine wrote.
    #[error(transparent)]
    Corrupt(Cause),
    /// The engine does not accept the request or the store.
    #[error(transparent)]
    Refused(Cause),
    /// The system failed, or another process is in the way.
    #[error(transparent)]
    Environment(Cause),
}

impl EngineError {
    /// Returns the class of the error, from which the exit code follows.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Corrupt(_) => Class::Check,
            Self::Refused(_) => Class::Input,
            Self::Environment(_) => Class::Environment,
        }
    }
}

impl EngineError {
    /// Returns the kind of the engine's own error, if it has one.
    #[must_use]
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Corrupt(cause) | Self::Refused(cause) | Self::Environment(cause) => {
                kind_of(&**cause)
            }
        }
    }
}

/// Result of a call of an engine.
pub type Result<T> = std::result::Result<T, EngineError>;

/// Change of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    /// The key.
    pub key: &'a [u8],
    /// New value; `None` deletes the key.
    pub value: Option<&'a [u8]>,
}

/// Live entry, as a cursor returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// Value of the key.
    pub value: Vec<u8>,
}

/// Store of tables and of their snapshots.
pub trait Engine: Debug + Send {
    /// Name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// Whether snapshots outlive the process.
    fn is_durable(&self) -> bool;

    /// Number of forks of a table that may be alive at once at little cost; 0 if a fork is a full
    /// copy.
    fn forks_max(&self) -> usize;

    /// Whether a snapshot survives when its table is saved again. If not, a table has one snapshot,
    /// its last.
    fn keeps_snapshots(&self) -> bool {
        true
    }

    /// Makes all snapshots durable that were saved since the last call, or none. Engines whose
    /// `save` is durable do nothing here.
    ///
    /// # Errors
    /// Those of the engine.
    fn commit(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the changes in memory are so large that a durable point is due.
    fn wants_commit(&self) -> bool {
        false
    }

    /// Bytes of a key of a table at most.
    fn key_bytes_max(&self) -> usize;

    /// Bytes of a value of a table at most.
    fn value_bytes_max(&self) -> usize;

    /// Creates an empty table.
    ///
    /// # Errors
    /// Those of the engine.
    fn new_table(&self) -> Result<Box<dyn Table>>;

    /// Returns the names of all snapshots, in no particular order.
    ///
    /// # Errors
    /// Those of the engine.
    fn snapshots(&self) -> Result<Vec<String>>;

    /// Opens a snapshot as an independent table.
    ///
    /// # Errors
    /// [`EngineError::Refused`] if the snapshot was saved under another label.
    fn open(&self, snapshot: &str, label: &str) -> Result<Box<dyn Table>>;

    /// Deletes a snapshot. Tables that were opened from the snapshot stay usable.
    ///
    /// # Errors
    /// Those of the engine.
    fn delete(&self, snapshot: &str) -> Result<()>;
}

/// Read side of an ordered map from bytes to bytes.
pub trait State: Debug + Send {
    /// Returns the value of each of `keys`, in their order; `None` where a key is absent.
    ///
    /// # Errors
    /// Those of the engine.
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>>;

    /// Returns a cursor over the live entries with keys `>= from`, in key order.
    ///
    /// # Errors
    /// Those of the engine.
    fn scan(&self, from: &[u8]) -> Result<Box<dyn Cursor + '_>>;

    /// Returns the commitments of the engine to the content, in lower-case hexadecimal by scheme;
    /// empty for engines without commitments.
    ///
    /// # Errors
    /// Those of the engine.
    fn roots(&self) -> Result<BTreeMap<String, String>> {
        Ok(BTreeMap::new())
    }
}

/// Ordered map from bytes to bytes.
pub trait Table: State {
    /// Applies all of `changes` or, on error, none.
    ///
    /// # Errors
    /// Those of the engine.
    fn update(&mut self, changes: &[Change<'_>]) -> Result<()>;

    /// Returns an independent writable copy.
    ///
    /// # Errors
    /// Those of the engine.
    fn fork(&self) -> Result<Box<dyn Table>>;

    /// Makes the content durable under a free name. A label is checked when the snapshot is opened.
    ///
    /// # Errors
    /// Those of the engine.
    fn save(&self, snapshot: &str, label: &str) -> Result<()>;
}

/// Reads entries in key order.
pub trait Cursor {
    /// Returns the next entry; `None` at the end and ever after.
    ///
    /// # Errors
    /// Those of the engine.
    fn next(&mut self) -> Result<Option<Entry>>;
}
