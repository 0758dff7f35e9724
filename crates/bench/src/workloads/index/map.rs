//! What the workloads of the index ask of an engine: an ordered map from keys of 32 bytes to values of 13.

use std::fmt::Debug;
use std::path::Path;

use serde::Serialize;
use terrane::btree::Stats;
use terrane::io::Counts;

use super::maps::btree::BtreeMap;
use super::maps::lsm::LsmMap;
use super::maps::memory::MemoryMap;
use super::{Key, Result, Value};

/// The engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// Terrane's B+tree.
    Btree,
    /// A table of Terrane's, in a store with a log.
    Lsm,
    /// LMDB.
    Lmdb,
    /// A sorted map in memory: what the workload itself takes.
    Memory,
}

impl Engine {
    /// The name used on the command line, in reports and of the directory below the store.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Btree => "btree",
            Self::Lsm => "lsm",
            Self::Lmdb => "lmdb",
            Self::Memory => "memory",
        }
    }

    /// Makes an empty map in a directory that is not there yet, with a memory budget in bytes for those engines that
    /// have one.
    ///
    /// # Errors
    /// As the engine says; [`Error::Options`](super::Error::Options) if the program was built without it.
    pub fn make(self, dir: &Path, memory_budget: u64) -> Result<Box<dyn Map>> {
        match self {
            Self::Btree => Ok(Box::new(BtreeMap::make(dir, memory_budget)?)),
            Self::Lsm => Ok(Box::new(LsmMap::make(dir, memory_budget)?)),
            Self::Lmdb => make_lmdb(dir),
            Self::Memory => Ok(Box::new(MemoryMap::default())),
        }
    }
}

#[cfg(feature = "lmdb")]
fn make_lmdb(dir: &Path) -> Result<Box<dyn Map>> {
    Ok(Box::new(super::maps::lmdb::LmdbMap::make(dir)?))
}

#[cfg(not(feature = "lmdb"))]
fn make_lmdb(_: &Path) -> Result<Box<dyn Map>> {
    let message = "this program was built without LMDB; build it with the feature `lmdb`";
    Err(super::Error::Options(message.to_owned()))
}

/// A map that an engine holds.
///
/// What was replaced is found at once; it survives a loss of power after a [`flush`](Self::flush).
pub trait Map: Debug {
    /// The value of a key.
    ///
    /// # Errors
    /// As the engine says.
    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>>;

    /// Sets the values of some keys, all or none.
    ///
    /// # Errors
    /// As the engine says.
    fn replace_many(&mut self, entries: &[(Key, Value)]) -> Result<()>;

    /// The value of a key as a reader sees it that is as far as the last flush, where the engine has such readers.
    ///
    /// # Errors
    /// As the engine says.
    fn find_as_reader(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.find(key)
    }

    /// Fills an empty map with entries in the order of their keys.
    ///
    /// # Errors
    /// As the engine says.
    fn load(&mut self, sorted: &mut dyn Iterator<Item = (Key, Value)>) -> Result<()>;

    /// Removes a key, if it is there.
    ///
    /// # Errors
    /// As the engine says.
    fn remove(&mut self, key: &Key) -> Result<()>;

    /// Removes all entries.
    ///
    /// # Errors
    /// As the engine says.
    fn clear(&mut self) -> Result<()>;

    /// Makes what was done durable.
    ///
    /// # Errors
    /// As the engine says.
    fn flush(&mut self) -> Result<()>;

    /// Entries; `None` if the engine would have to read them all to tell.
    ///
    /// # Errors
    /// As the engine says.
    fn entries(&self) -> Result<Option<u64>>;

    /// What the engine has asked of its disk; `None` if it does not go through one that counts.
    fn counts(&self) -> Option<Counts>;

    /// The B+tree's own counts.
    ///
    /// # Errors
    /// As the engine says.
    fn stats(&self) -> Result<Option<Stats>> {
        Ok(None)
    }

    /// Ends it, with everything durable.
    ///
    /// # Errors
    /// As the engine says.
    fn close(self: Box<Self>) -> Result<()>;
}
