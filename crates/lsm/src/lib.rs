//! LSM tables: ordered maps on disk with batched lookups, incremental merges, duplicates at no cost and
//! durable snapshots.
//!
//! A [`Session`] is a directory. It gives out [`Table`]s; a table takes [`Update`]s into a write buffer,
//! writes that out as sorted *runs* when it is full, and merges runs level by level, in equal shares with
//! the updates. A [`Table::duplicate`] shares everything with its original and evolves apart from it. A
//! snapshot ([`Table::save_snapshot`], [`Session::open_snapshot`]) is what survives closing and crashes.
//!
//! The engine does all its I/O through [`terrane_io::Disk`] and keeps no thread running unless a table's
//! configuration asks for one; opening a snapshot reads its runs with a few threads that end with the call.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod corrupt;

mod trace;

mod latency;

mod error;

mod digest;

mod entry;

mod key_range;

mod mask;

mod resolve;

mod stats;

mod page;

mod bloom;

mod ribbon;

mod filter;

mod index;

mod config;

mod reserve;

mod sweeper;

mod open_files;

mod write_behind;

mod files;

mod lost_found;

mod run;

mod memory;

mod page_cache;

mod blob;

mod answer;

mod run_builder;

mod parallel;

mod run_check;

mod salvage;

mod read_ahead;

mod chunks;

mod run_reader;

mod rereading;

mod segment;

mod sketch;

mod write_buffer;

mod kmerge;

mod handover;

mod merging;

mod sources;

mod layers;

mod value_room;

mod union;

mod levels;

mod plan;

mod lookup;

mod lookup_thread;

mod worker;

mod manifest;

mod log;

mod log_walk;

mod log_salvage;

mod store_manifest;

mod registry;

mod lease;

mod session_core;

mod published;

mod durable;

mod snapshot;

mod exchange;

mod cursor;

mod diff;

mod canonical;

mod table;

mod bulk;

mod session;

mod store_options;

mod store_core;

mod recovery;

mod backup;

mod store;

mod compaction;

mod store_versions;

mod reader;

mod store_check;

pub mod inspect;

pub mod verify;

pub use answer::{Lookup, Record, Value};
pub use backup::{BackupPlace, BackupReport};
pub use blob::BlobRef;
pub use bulk::BulkLoader;
pub use canonical::CanonicalSummary;
pub use config::{
    DiskCache, FilterPolicy, LevelFilter, MEMORY_BUDGET_MAX, MEMORY_BUDGET_MIN, MemoryGoal,
    MergePolicy, MergeSchedule, MergeThread, TableConfig, WriteBuffer,
};
pub use corrupt::Corrupt;
pub use cursor::{Cursor, RecordRef};
pub use diff::{Change, Diff};
pub use digest::StateDigest;
pub use entry::{BLOB_BYTES_MAX, KEY_BYTES_MAX, Update, VALUE_BYTES_MAX};
pub use error::{Error, Result};
pub use exchange::{ExportReport, ImportReport, SnapshotPlace};
pub use index::IndexKind;
pub use latency::Latencies;
pub use lookup_thread::{PendingLookups, SUBMITTED_MAX};
pub use manifest::SNAPSHOT_NAME_LEN_MAX;
pub use page::PAGE_SIZE;
pub use reader::{ReaderOptions, StoreReader};
pub use reserve::{RESERVE_BYTES_MAX, RESERVE_BYTES_MIN};
pub use resolve::{RESOLVE_NAME_BYTES_MAX, Resolve};
pub use run::{Purpose, RunMeta};
pub use run_check::Progress;
pub use session::{Session, SessionOptions};
pub use snapshot::{LABEL_BYTES_MAX, OpenOptions, SnapshotInfo, SnapshotName, Verify};
pub use stats::{FilterStats, LevelStats, SessionStats, TableStats};
pub use store::{NamedTable, Store, TableInfo, Ticket};
pub use store_options::{
    CheckpointThread, Durability, LOG_BYTES_MAX, LOG_BYTES_MIN, StoreOptions, TableName,
};
pub use store_versions::{Version, VersionInfo};
pub use table::Table;
