//! Options of a store.

use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::{Access, Durability};

use crate::base::error::{Error, Result};
use crate::base::hashing::Rules;
use crate::pack::control::Indexing;
use crate::pack::index::IndexEngine;
use crate::pack::locations::Wanted;

/// Options for creating and opening a store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Hashing rules, which must be those of an existing store.
    pub rules: Rules,
    /// Set of objects that the index finds by their hashes.
    pub indexing: Indexing,
    /// Default durability of a commit. [`Group`](Durability::Group) means
    /// [`Each`](Durability::Each), and [`None`](Durability::None) means
    /// [`Buffered`](Durability::Buffered), which a crash makes lose the last commits, never one
    /// before a surviving commit.
    pub durability: Durability,
    /// Memory for decoded objects, in bytes. Seven eighths keep the nodes of the newest commit from
    /// block to block; the rest caches values, prefetched nodes, and what deltas are based on. In a
    /// store that indexes [all objects](Indexing::Always) all of it is a cache.
    pub cache_bytes: usize,
    /// Size at which a chunk ends, in bytes.
    pub chunk_bytes: u64,
    /// Threads that hash a commit, including the caller's.
    pub hash_threads: usize,
    /// Whether reads of chunks go through the page cache or directly to the device.
    ///
    /// With direct access, each read of an object takes whole pages of 4 KiB from the device,
    /// and the process uses no memory beyond its own. The chunk that is written to, and small
    /// files, always use the page cache.
    pub access: Access,
    /// Whether each node and value is hashed again when a tree loads it (`false` by default). The
    /// checksums of records find damage by chance; the hashes also find forged records.
    ///
    /// A record with another hash is [`Corrupt`](Error::Corrupt), with chunk and address. Nodes of
    /// the newest commit that stay in memory are not loaded again.
    pub verify_reads: bool,
    /// Engine of the index.
    pub index: Arc<dyn IndexEngine>,
    /// Directory elsewhere for the volumes of the archive, perhaps on another disk; created if it
    /// is missing. `None` leaves the archive where it is, at first in the store; the directory of
    /// the store moves it back.
    ///
    /// The store remembers the directory, so later opens need not name it. Opening fails if the
    /// directory is away, or belongs to another store. The user moves an archive with volumes, and
    /// then names the new directory, which must have each volume with its marker.
    pub archive_dir: Option<PathBuf>,
    /// Directory elsewhere for the index, in the same way. The index is rebuilt in a new directory.
    pub index_dir: Option<PathBuf>,
    /// Upper bound of the elements of an imported snapshot. Each element takes 128 bytes of memory
    /// until the import ends, an inode also the bytes of one step.
    pub import_elements_max: u64,
}

/// Default upper bound of the elements of an imported snapshot: 4 GiB of memory.
const IMPORT_ELEMENTS_MAX: u64 = 1 << 25;

impl Options {
    /// Options of a Tezos node: durable commits, a cache of 256 MiB, chunks of 16 MiB, two hashing
    /// threads, reads through the page cache, imports of 33,554,432 elements.
    pub fn new(index: Arc<dyn IndexEngine>) -> Self {
        Self {
            rules: Rules::TEZOS,
            indexing: Indexing::Minimal,
            durability: Durability::Each,
            cache_bytes: 256 << 20,
            chunk_bytes: 16 << 20,
            hash_threads: 2,
            access: Access::Buffered,
            verify_reads: false,
            index,
            archive_dir: None,
            index_dir: None,
            import_elements_max: IMPORT_ELEMENTS_MAX,
        }
    }

    terrane_io::setters! {
        rules: Rules,
        indexing: Indexing,
        durability: Durability,
        cache_bytes: usize,
        chunk_bytes: u64,
        hash_threads: usize,
        access: Access,
        verify_reads: bool,
        index: Arc<dyn IndexEngine>,
        archive_dir: impl Into<Option<PathBuf>>,
        index_dir: impl Into<Option<PathBuf>>,
        import_elements_max: u64,
    }

    /// Returns the locations that the options name.
    pub(crate) fn wanted(&self) -> Wanted<'_> {
        let archive = self.archive_dir.as_deref();
        let index = self.index_dir.as_deref();
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
