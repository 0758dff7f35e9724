//! A run: an immutable sorted file with at most one entry for each key (`SSTable` in `RocksDB`).
//!
//! A run is one file of key pages, filter, index and footer, and a second file if it has blobs.
//! This folder imports `block`, `filter`, `files`, `entry` and what stands below; it knows no
//! table.
//!
//! Begin with [`run`](self::run::Run): an open run, and how a key is found in it with one read.
//! [`writer`] makes a run, in steps. [`reader`] goes through one in key order, over the chunks of
//! [`chunk_reader`] and the reads ahead of [`prefetch`]; [`slices`] are runs that are read as one.
//! [`page_cache`] keeps pages that were read (RocksDB: the block cache). [`blob`] is values kept
//! apart. [`check`] walks through a run and reports damage; [`salvage`] writes what is whole as a
//! new run.
//!
//! Invariants: a page that was written is never written again; key pages come first, so page *n* is
//! at `n * 4096` and a lookup is one aligned read; one writer at a time has the file.
//!
//! Rejected:
//! - a file for each part of a run: five descriptors, and five syncs for a snapshot;
//! - synchronous reads and writes of compactions: 256 KiB take 1.3 ms, in which a thread that also
//!   looks up does nothing;
//! - reading ahead through the page cache: megabytes in bursts that lookups wait behind;
//! - a cursor with a thread for each run; reading ahead at once, for which short ranges pay;
//! - blobs in a log that compactions leave in place: space comes back only through a collector.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod run;
pub(crate) mod blob;
pub(crate) mod writer;
pub(crate) mod check;
pub(crate) mod salvage;
pub(crate) mod page_cache;
pub(crate) mod prefetch;
pub(crate) mod chunk_reader;
pub(crate) mod reader;
pub(crate) mod slices;
