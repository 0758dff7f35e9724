//! LSM tables: ordered maps on disk with batched lookups, incremental merges, duplicates at no cost
//! and durable snapshots.
//!
//! A [`Session`] is a directory. It gives out [`Table`]s; a table takes [`Update`]s into a write
//! buffer, writes that out as sorted *runs* when it is full, and merges runs level by level, in
//! equal shares with the updates. A [`Table::fork`] shares everything with its original and evolves
//! apart from it. A snapshot ([`Table::save_snapshot`], [`Session::open_snapshot`]) is what
//! survives closing and crashes.
//!
//! The engine does all its I/O through [`terrane_io::Disk`] and keeps no thread running unless a
//! table's configuration asks for one; opening a snapshot reads its runs with a few threads that
//! end with the call.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
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

pub use block::index::IndexKind;
pub use block::page::PAGE_SIZE;
pub use check::inspect;
pub use check::verify;
pub use config::{
    CompactionPolicy, CompactionSchedule, CompactionThread, DiskCache, FilterPolicy, LevelFilter,
    MEMORY_BUDGET_MAX, MEMORY_BUDGET_MIN, MemoryGoal, TableConfig, WriteBuffer,
};
pub use corrupt::Corrupt;
pub use entry::digest::StateDigest;
pub use entry::entry::{BLOB_BYTES_MAX, KEY_BYTES_MAX, Update, VALUE_BYTES_MAX};
pub use entry::merge_operator::{MergeOperator, OPERATOR_NAME_BYTES_MAX};
pub use error::{Error, Result};
pub use files::reserve::{RESERVE_BYTES_MAX, RESERVE_BYTES_MIN};
pub use latency::Latencies;
pub use lookup::result::{Lookup, Record, Value};
pub use lookup::submitted::{PendingLookups, SUBMITTED_MAX};
pub use manifest::snapshot_meta::SNAPSHOT_NAME_LEN_MAX;
pub use run::blob::BlobRef;
pub use run::check::Progress;
pub use run::run::{Purpose, RunMeta};
pub use session::snapshot::{LABEL_BYTES_MAX, OpenOptions, SnapshotInfo, SnapshotName, Verify};
pub use session::transfer::{ExportReport, ImportReport, SnapshotPlace};
pub use stats::{FilterStats, LevelStats, SessionStats, TableStats};
pub use store::backup::{BackupPlace, BackupReport};
pub use store::options::{
    CheckpointThread, Durability, LOG_BYTES_MAX, LOG_BYTES_MIN, StoreOptions, TableName,
};
pub use store::reader::{ReaderOptions, StoreReader};
pub use store::store::{NamedTable, Store, TableInfo, Ticket};
pub use store::versions::{Version, VersionInfo};
pub use table::bulk_load::BulkLoader;
pub use table::canonical::CanonicalSummary;
pub use table::cursor::{Cursor, RecordRef};
pub use table::diff::{Change, Diff};
pub use table::session::{Session, SessionOptions};
pub use table::table::Table;
