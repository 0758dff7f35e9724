//! A database in an SQLite file, or in SQLite's memory.
//!
//! Tables are `PREFIX_main` and `PREFIX_index_NAME`, of columns `key BLOB PRIMARY KEY` and `value
//! BLOB`, strict and without row numbers. The file may have other tables.
//!
//! Two ways of keeping snapshots, by the journal:
//!
//! * **WAL.** A snapshot has a connection of its own, in a read transaction. Snapshots and the
//!   writer wait for nobody.
//! * **Rollback journals and memory.** In these SQLite lets nobody commit while somebody reads. So
//!   there is one connection, which calls take turns with, and what a change replaces is kept in
//!   memory for the snapshots that need it (module `undo`): a writer of this database never waits
//!   for its snapshots, and they see none of what it does. A call of a snapshot waits for a call of
//!   the writer that runs, a commit and its syncs included. While a snapshot lives the file has
//!   SQLite's shared lock, so other programs cannot commit; if one slips in between two
//!   transactions of a writer, snapshots from before it fail with [`Error::Busy`] rather than give
//!   its data.
//!
//! [`Error::Busy`] of [`Database::writer`], and of commits in the second way, means that another
//! process holds a lock for longer than the time that was set. Results are told apart by SQLite's
//! codes alone.
//!
//! What settings are worth, as [`guarantee`](Database::guarantee) tells:
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
//! SQLite does not tell how many bytes it reads and writes, so [`Counts`] has none. Syncs are
//! reckoned from the mode: those of a small commit; checkpoints, and transactions that do not fit
//! in the cache, have more.

// Bottom-up: a module imports only from modules above it; `database` and the handles it gives,
// `wal` and `single_handles`, know each other.
mod undo;
mod options;
mod connection;
mod single;
mod writer_state;
mod wal;
mod single_handles;
mod database;

pub use database::SqliteDatabase;
pub use options::{AutoVacuum, JournalMode, NetworkWal, SqliteOptions, SqlitePlace, Synchronous};
