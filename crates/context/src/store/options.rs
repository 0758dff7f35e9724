//! Options of a store.

use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::Access;

use crate::base::error::{Error, Result};
use crate::base::hashing::Rules;
use crate::pack::control::Indexing;
use crate::pack::index::IndexEngine;
use crate::pack::locations::Wanted;

/// When a commit is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When the call returns.
    Durable,
    /// Some time later, or after [`Store::sync`](crate::Store::sync). A crash loses the last commits, never one before another
    /// that is kept.
    Relaxed,
}

/// How a store is made and opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// The hashing rules; those of a store that exists must be the same.
    pub rules: Rules,
    /// Which objects are found by their hashes.
    pub indexing: Indexing,
    /// When a commit is durable.
    pub durability: Durability,
    /// Memory for decoded objects, in bytes.
    pub cache_bytes: usize,
    /// A chunk is ended after so many bytes.
    pub chunk_bytes: u64,
    /// Threads that hash a commit, the caller's among them.
    pub hash_threads: usize,
    /// Whether chunks are read through the page cache or past it. Past it, each read of an object takes whole pages of 4 KiB from
    /// the device, and memory is what the process has and no more; the chunk that is written to, and small files, are in the page
    /// cache all the same.
    pub access: Access,
    /// What the index of commits is kept in.
    pub index: Arc<dyn IndexEngine>,
    /// Directory elsewhere for the volumes of the archive, on another disk perhaps; it is made if it is missing. The store remembers
    /// the directory, so later opens need not name it. They are refused if it is away, or another store's. `None` leaves the archive
    /// where it is, at first in the store; the directory of the store itself puts it back there. An archive with volumes is moved
    /// by its user, and then named here: each volume must be there, with its marker.
    pub archive_dir: Option<PathBuf>,
    /// Directory elsewhere for the index, in the same way. A named directory that is a new one gets an index made anew.
    pub index_dir: Option<PathBuf>,
    /// Elements of a snapshot that an import takes at most. Each takes 128 bytes of memory until
    /// the import ends, an inode those of one step more.
    pub import_elements_max: u64,
}

/// Elements of a snapshot that an import takes, unless the caller says otherwise: 4 GiB of memory.
const IMPORT_ELEMENTS_MAX: u64 = 1 << 25;

impl Options {
    /// What Tezos uses, durable, 128 MiB of decoded objects, chunks of 16 MiB, hashing on two threads, reads through
    /// the page cache, imports of 33,554,432 elements.
    pub fn new(index: Arc<dyn IndexEngine>) -> Self {
        Self {
            rules: Rules::TEZOS,
            indexing: Indexing::Minimal,
            durability: Durability::Durable,
            cache_bytes: 128 << 20,
            chunk_bytes: 16 << 20,
            hash_threads: 2,
            access: Access::Buffered,
            index,
            archive_dir: None,
            index_dir: None,
            import_elements_max: IMPORT_ELEMENTS_MAX,
        }
    }

    /// Locations that the options name.
    pub(crate) fn wanted(&self) -> Wanted<'_> {
        let (archive, index) = (self.archive_dir.as_deref(), self.index_dir.as_deref());
        Wanted { archive, index, engine: &self.index }
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.rules.check()?;
        let invalid =
            |option, value: String, allowed| Err(Error::InvalidConfig { option, value, allowed });
        if !(4 << 10..=4 << 30).contains(&self.chunk_bytes) {
            return invalid("chunk_bytes", self.chunk_bytes.to_string(), "4 KiB to 4 GiB");
        }
        if !(1..=64).contains(&self.hash_threads) {
            return invalid("hash_threads", self.hash_threads.to_string(), "1 to 64");
        }
        Ok(())
    }
}
