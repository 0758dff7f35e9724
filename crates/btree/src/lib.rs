//! The B+tree index: an ordered map on disk for one writer and many reader processes, in bounded
//! memory.
//!
//! An [`Index`] is a directory. Updates go into a WAL and a buffer in memory. The writer applies
//! the buffer to the leaves range by range, so that many updates of one leaf cost one page write.
//! Pages are never changed in place, and two superblocks in turn publish the tree. An
//! [`IndexReader`], in any process, sees the writer's last flush as of its own last
//! [`sync`](IndexReader::sync).
//!
//! ```
//! use terrane_btree::{Config, Index, IndexReader};
//! use terrane_io::RealDisk;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let place = tempfile::tempdir()?;
//! # let dir = place.path().join("index");
//! let config = Config::variable().memory_bytes(64 << 20);
//! let index = Index::create(RealDisk::auto(), &dir, &config)?;
//! index.replace(b"alice", b"100")?;
//! index.replace_many(&[(b"bob", b"7"), (b"carol", b"20")])?; // all or none
//! index.flush(true)?; // durable, and there for readers
//! assert_eq!(index.find(b"alice")?, Some(b"100".to_vec()));
//!
//! let reader = IndexReader::open(RealDisk::auto(), &dir, &config)?; // in this process or another
//! index.remove(b"bob")?;
//! let mut cursor = index.range("b"..)?;
//! assert_eq!(cursor.next_ref()?, Some((b"carol".as_slice(), b"20".as_slice())));
//! assert_eq!(cursor.next_ref()?, None);
//! assert!(reader.mem(b"bob")?, "nothing was flushed since");
//!
//! index.flush(false)?;
//! assert!(reader.sync()?);
//! assert_eq!((reader.mem(b"bob")?, reader.len()?), (false, 2));
//! index.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! All I/O goes through [`terrane_io::Disk`]. The index starts no thread.
//!
//! Begin with the folder `index`, or bottom-up: `page`, `pager`, `sort`, `log`, `tree`, `index`,
//! `check`. Each folder's header says what it may import, its invariants, and what was rejected.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod page;
mod pager;
mod sort;
mod log;
mod tree;
mod index;
mod check;

pub use check::check::{CheckReport, check};
pub use check::inspect;
pub use check::repair::{RepairReport, repair};
pub use index::index::{Index, Update};
pub use index::reader::IndexReader;
pub use index::scrub::ScrubReport;
pub use index::snapshot::Snapshot;
pub use page::block::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use page::corrupt::{Corrupt, Problem};
pub use page::error::{Error, Result};
pub use page::page::PAGE_SIZE;
pub use pager::config::{Config, LOG_BYTES_MIN, MEMORY_BYTES_MIN};
pub use pager::stats::Stats;
pub use sort::input::{AscendingCheck, FileInput, FixedRecords, IterRecords, Records};
pub use sort::migrate::MirageIndex;
pub use sort::sort::{Duplicates, SortOptions, SortStats, SortedRecords, Sorter};
pub use terrane_io::Loss;
pub use tree::cursor::Cursor;
