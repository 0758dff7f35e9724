//! LSM tables: ordered maps on disk with batched lookups, incremental compaction, forks at no cost
//! and durable snapshots.
//!
//! A [`Session`] is a directory, and it gives out [`Table`]s. A table puts each [`Update`] into a
//! memtable, writes a full memtable as a sorted *run*, and merges runs level by level, in equal
//! shares with the updates. A [`Table::fork`] shares all data with its original and evolves apart
//! from it. A *snapshot* ([`Table::save_snapshot`], [`Session::open_snapshot`]) survives closing
//! and crashes. A [`Store`] is named tables with a write-ahead log (WAL) over the same runs.
//!
//! Where to begin reading, from a lookup down: `lookup`, `memtable`, `run`, `block`. From an update
//! down: `table`, `compaction::levels`, `compaction`. From a commit down: `store`,
//! `session::group_commit`, `manifest::wal`. Each folder's module file says what it is, what it may
//! import and what was rejected.
//!
//! Invariants of the whole crate: a run never changes once it is written; no configuration option
//! and no progress of a compaction changes a logical result; a decoder returns [`Corrupt`] for bad
//! bytes and never panics.
//!
//! The engine does all its I/O through [`terrane_io::Disk`]. It keeps a thread only if a table's
//! configuration asks for one, or for tasks that no call should wait for (removing large files,
//! submitted lookups); opening a snapshot reads its runs with a few threads that end with the call.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod conflict;
mod corrupt;
mod latency;
mod trace;
mod error;
mod stats;
mod filter;
mod entry;
mod files;
mod block;
mod config;
mod run;
mod memory;
mod memtable;
mod compaction;
mod lookup;
mod manifest;
mod session;
mod table;
mod store;
mod check;

pub use block::codec::Compression;
pub use block::index::IndexKind;
pub use block::page::PAGE_SIZE;
pub use check::inspect;
pub use check::salvage;
pub use check::verify;
pub use config::{
    CompactionPolicy, CompactionSchedule, CompactionThread, CompressedLevels, DiskCache,
    FilterPolicy, LevelFilter, MEMORY_BUDGET_MAX, MEMORY_BUDGET_MIN, MemoryGoal, TableConfig,
    WriteBuffer,
};
pub use conflict::{Conflict, ConflictCause};
pub use corrupt::Corrupt;
pub use entry::digest::StateDigest;
pub use entry::entry::{BLOB_BYTES_MAX, KEY_BYTES_MAX, Update, VALUE_BYTES_MAX};
pub use entry::merge_operator::{MergeOperator, OPERATOR_NAME_BYTES_MAX};
pub use error::{Error, Result};
pub use files::reserve::{RESERVE_BYTES_MAX, RESERVE_BYTES_MIN};
pub use latency::Latencies;
pub use lookup::result::{Lookup, Record, Value, Values};
pub use lookup::submitted::{PendingLookups, SUBMITTED_MAX};
pub use manifest::snapshot_meta::SNAPSHOT_NAME_LEN_MAX;
pub use memory::grants::SESSION_MEMORY_BUDGET_MIN;
pub use run::blob::BlobRef;
pub use run::check::Progress;
pub use run::run::{Purpose, RunMeta};
pub use session::snapshot::{LABEL_BYTES_MAX, OpenOptions, SnapshotInfo, SnapshotName, Verify};
pub use session::transfer::{ExportReport, ImportReport, SnapshotPlace};
pub use stats::{FilterStats, LevelStats, MemoryStats, SessionStats, TableStats};
pub use store::backup::{BackupPlace, BackupReport};
pub use store::derive::{DerivedIndex, DerivedIndexInfo, IndexCheck, IndexRange, IndexRecord};
pub use store::files::{
    LOG_RECORDS_OFFSET, StoreFile, StoreFileKind, StoreFiles, TableSet, cut_log, manifest_until,
};
pub use store::index_entries::IndexEntries;
pub use store::install::StoreLoader;
pub use store::options::{
    CheckpointThread, LOG_BYTES_MAX, LOG_BYTES_MIN, StoreOptions, TableName, WRITE_SET_BYTES,
};
pub use store::reader::{ReaderOptions, StoreReader};
pub use store::store::{NamedTable, Store, TableInfo, Ticket};
pub use store::transaction::{TRANSACT_ATTEMPTS, Transaction, TransactionRange};
pub use store::versions::{Version, VersionInfo};
pub use store::write_batch::WriteBatch;
pub use table::bulk_load::BulkLoader;
pub use table::canonical::CanonicalSummary;
pub use table::cursor::{Cursor, RecordRef};
pub use table::diff::{Change, Diff};
pub use table::session::{Session, SessionOptions};
pub use table::table::Table;
pub use terrane_io::{Durability, ErrorKind};

// The change feed.
pub use store::feed::{
    Changes, FEED_HELD_BYTES, FEED_PART_BYTES, FeedChange, FeedCommit, FeedItem, FeedOptions,
    FeedPart, FeedTable, FeedUpdate,
};
pub use store::feed_cursor::{Feed, FeedInfo};
pub use store::followed_copy::{
    FOLLOW_TABLE, FollowOptions, FollowReport, FollowedCopy, FollowedTable,
};
pub use store::follower::Follower;
