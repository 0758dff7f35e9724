//! Traits of an engine, for replays.
//!
//! A [`Table`] is an ordered map from bytes to bytes that lives as long as its handle and can be
//! duplicated; only snapshots of it, which belong to the [`Engine`] and have names, are durable.
//! Traits are used as objects: a replay does bulk calls, beside which an indirect call is nothing.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::error::Class;

/// The cause of an [`EngineError`].
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// An engine's call failed.
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
    /// How to react to it.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Corrupt(_) => Class::Check,
            Self::Refused(_) => Class::Input,
            Self::Environment(_) => Class::Environment,
        }
    }
}

/// The outcome of an engine's call.
pub type Result<T> = std::result::Result<T, EngineError>;

/// A change of one key; no value means delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its new value; `None` deletes it.
    pub value: Option<&'a [u8]>,
}

/// A live entry as a cursor gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// A store of tables and their snapshots.
pub trait Engine: Debug + Send {
    /// The name used on the command line and in reports.
    fn name(&self) -> &'static str;

    /// Whether snapshots outlive the process.
    fn is_durable(&self) -> bool;

    /// How many duplicates of a table may be alive at once at little cost; 0 if each is a full
    /// copy.
    fn forks_max(&self) -> usize;

    /// Whether a snapshot stays as it is when its table is saved again; if not, only the last one
    /// of a table is there.
    fn keeps_snapshots(&self) -> bool {
        true
    }

    /// Makes the snapshots durable that were saved since the last call, where saving does not: all
    /// of them or none.
    ///
    /// # Errors
    /// Those of the engine.
    fn commit(&self) -> Result<()> {
        Ok(())
    }

    /// Whether tables have changes in memory that are better made durable soon.
    fn wants_commit(&self) -> bool {
        false
    }

    /// The longest key that tables take, in bytes.
    fn key_bytes_max(&self) -> usize;

    /// The longest value that tables take, in bytes.
    fn value_bytes_max(&self) -> usize;

    /// Makes an empty table.
    ///
    /// # Errors
    /// Those of the engine.
    fn new_table(&self) -> Result<Box<dyn Table>>;

    /// Returns the names of all snapshots, in no particular order.
    ///
    /// # Errors
    /// Those of the engine.
    fn snapshots(&self) -> Result<Vec<String>>;

    /// Opens a snapshot as a table of its own.
    ///
    /// # Errors
    /// [`EngineError::Refused`] if it was saved under another label.
    fn open(&self, snapshot: &str, label: &str) -> Result<Box<dyn Table>>;

    /// Deletes a snapshot. Tables opened from it go on.
    ///
    /// # Errors
    /// Those of the engine.
    fn delete(&self, snapshot: &str) -> Result<()>;
}

/// An ordered map from bytes to bytes, as it is read.
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

    /// Returns the commitments that the engine makes to the content: lower-case hexadecimal by
    /// scheme. Engines without any have none.
    ///
    /// # Errors
    /// Those of the engine.
    fn roots(&self) -> Result<BTreeMap<String, String>> {
        Ok(BTreeMap::new())
    }
}

/// An ordered map from bytes to bytes.
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
