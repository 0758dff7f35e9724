//! Metadata on disk: the manifest and the snapshot files, the write-ahead log (WAL), the leases of
//! readers, and the cursors of change feeds.
//!
//! Imports: `entry`, `files`, `block`, `run`, `compaction` (the shapes of levels and unions) and
//! the root modules. Begin with [`manifest`], which says what a store names, then [`wal`], which
//! says what a commit writes.
//!
//! Invariants:
//! - The manifest has two copies. A checkpoint writes each copy beside the old one and renames it.
//!   Files that either copy names stay until both copies are new.
//! - A commit is one WAL record. A record is durable once a sync has returned; the writer then
//!   writes a *mark* into a sector of its own, before it acknowledges any commit of that sync. A
//!   WAL that ends before its mark is corrupt; a WAL that ends elsewhere is torn, and recovery
//!   truncates it.
//! - What a feed tells and the WAL has no record of stands in the manifest that made it.
//! - A reader keeps its lease locked for as long as it lives. The writer removes no file that a
//!   lease names.
//!
//! Rejected:
//! - One copy of the manifest: one damaged sector loses the store.
//! - A second fsync for the mark: it doubles the cost of a commit. The mark behind the last record:
//!   a torn record would take the mark with it.
//! - A WAL for each table: no commit could span tables.
//! - Sequence numbers in entries: eight bytes each, and no reader needs them, because views are
//!   forks.
//! - Leases with a time-out: a paused reader would lose its files, and a dead one would pin them.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod snapshot_meta;
pub(crate) mod wal;
pub(crate) mod wal_reader;
pub(crate) mod wal_salvage;
pub(crate) mod named_meta;
pub(crate) mod history;
pub(crate) mod manifest;
pub(crate) mod lease;
pub(crate) mod feed_cursor;
