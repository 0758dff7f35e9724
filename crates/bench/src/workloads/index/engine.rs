//! Engines of the workloads by name, and the factory of their maps.

use std::path::Path;

use serde::Serialize;

use super::Result;
use super::map::Map;
use super::maps::btree::BtreeMap;
use super::maps::lsm::LsmMap;
use super::maps::memory::MemoryMap;

/// Engine that holds the map of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// Terrane's B+tree.
    Btree,
    /// A table of Terrane's LSM store, with its WAL.
    Lsm,
    /// LMDB.
    Lmdb,
    /// A sorted map in memory, which shows the cost of the workload itself.
    Memory,
}

impl Engine {
    /// Name on the command line, in reports, and of the directory below the store.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Btree => "btree",
            Self::Lsm => "lsm",
            Self::Lmdb => "lmdb",
            Self::Memory => "memory",
        }
    }

    /// Creates an empty map in a new directory. Engines with a memory budget stay within
    /// `memory_budget` bytes.
    ///
    /// # Errors
    /// Those of the engine; [`Error::Options`](super::Error::Options) if the program was built
    /// without it.
    pub fn create(self, dir: &Path, memory_budget: u64) -> Result<Box<dyn Map>> {
        match self {
            Self::Btree => Ok(Box::new(BtreeMap::create(dir, memory_budget)?)),
            Self::Lsm => Ok(Box::new(LsmMap::create(dir, memory_budget)?)),
            Self::Lmdb => create_lmdb(dir),
            Self::Memory => Ok(Box::new(MemoryMap::default())),
        }
    }
}

#[cfg(feature = "lmdb")]
fn create_lmdb(dir: &Path) -> Result<Box<dyn Map>> {
    Ok(Box::new(super::maps::lmdb::LmdbMap::create(dir)?))
}

#[cfg(not(feature = "lmdb"))]
fn create_lmdb(_: &Path) -> Result<Box<dyn Map>> {
    let message = "this program was built without LMDB; build it with the feature `lmdb`";
    Err(super::Error::Options(message.to_owned()))
}
