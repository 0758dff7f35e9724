//! SQLite back-end: a database in an SQLite file, or in SQLite's memory.
//!
//! Tables are `PREFIX_main` and `PREFIX_index_NAME`, of columns `key BLOB PRIMARY KEY` and `value
//! BLOB`, strict and without row numbers. The file may have other tables.
//!
//! Begin with `database`. The folder imports `rusqlite`, `terrane_kv` and
//! `own_file`. The journal decides between two ways of keeping snapshots:
//!
//! * **WAL** (`wal`). A snapshot has a connection of its own, in a read transaction. Snapshots and
//!   the writer wait for nobody.
//! * **Rollback journals and memory** (`single`, `single_handles`). Here SQLite lets nobody commit
//!   while a connection reads. So there is one connection, which calls take turns with, and
//!   [`Undo`] keeps the values that commits replace while snapshots need them. The writer never
//!   waits for its snapshots. A call of a snapshot waits for a running call of the writer, a commit
//!   and its syncs included. While a snapshot lives, the file has SQLite's shared lock, so other
//!   programs cannot commit. If one slips in between two transactions, earlier snapshots fail with
//!   [`Error::Busy`] rather than return its data.
//!
//! [`Error::Busy`] of a writer, or of a commit in the second way, means that another process held a
//! lock for longer than the busy timeout. Errors are told apart by SQLite's codes alone.
//!
//! Guarantee by settings, as [`guarantee`](terrane_kv::Database::guarantee) returns it:
//!
//! | journal | synchronous | killed process | loss of power |
//! |---|---|---|---|
//! | WAL | FULL, EXTRA | keeps commits | keeps every commit |
//! | WAL | NORMAL | keeps commits | consistent; commits since the last sync of the log may be lost |
//! | DELETE | EXTRA | keeps commits | keeps every commit |
//! | DELETE | FULL | keeps commits | consistent; the last commit may be undone: the directory is not synced after it |
//! | TRUNCATE, PERSIST | FULL, EXTRA | keeps commits | keeps every commit |
//! | DELETE, TRUNCATE, PERSIST | NORMAL | keeps commits | no promise: some file systems may leave damage |
//! | these four | OFF | keeps commits | no promise |
//! | MEMORY, OFF | any | a kill within a commit may damage the file | no promise |
//!
//! SQLite does not report bytes, so [`Counts`](terrane_kv::Counts) has none. Syncs are computed
//! from the mode, for a small commit. Checkpoints, and transactions that do not fit in the cache,
//! have more.
//!
//! [`Error::Busy`]: terrane_kv::Error::Busy
//! [`Undo`]: terrane_kv::overlay::undo::Undo

// Bottom-up: a module imports only from modules above it.
mod merge;
mod error;
mod options;
mod inner;
mod connection;
mod single;
mod writer_state;
mod wal;
mod single_handles;
mod database;

pub use database::SqliteDatabase;
pub use options::{AutoVacuum, JournalMode, NetworkWal, SqliteOptions, SqlitePlace, Synchronous};
