//! LMDB back-end: one memory-mapped B+tree file, changed by copying pages.
//!
//! Tables are named databases of LMDB: `main`, and `index_NAME` for each index. A snapshot is a
//! read transaction, which waits for nobody. Begin with `database`; `writer` has transactions,
//! `compact` the replacement of the file. The folder imports the crate `terrane_lmdb`, which has
//! the one line of unsafe code, `terrane_kv` and `own_file`.
//!
//! **Growth.** The map grows by itself up to a limit. If a transaction finds the map full, the
//! writer aborts it, grows the map, and repeats the transaction from its log; a writer takes memory
//! for the log. Growth waits for running calls and never for a snapshot. At the limit the
//! transaction fails with [`Error::StoreFull`](terrane_kv::Error::StoreFull).
//!
//! **Removal from a full file.** LMDB copies the pages that it removes from, so a file without room
//! could not be emptied. A sixteenth of the limit is kept for transactions that remove more entries
//! than they set. LMDB uses freed pages one commit later, so the writer makes an empty commit
//! before it gives up.
//!
//! **Snapshots** keep freed pages from being used again; see
//! [`oldest_reader`](LmdbDatabase::oldest_reader).
//!
//! Guarantee by settings, as [`guarantee`](terrane_kv::Database::guarantee) returns it:
//!
//! | settings | killed process | loss of power |
//! |---|---|---|
//! | [`SyncMode::Full`] | keeps commits | keeps every commit |
//! | [`SyncMode::NoMeta`] | keeps commits | consistent; the last commit may be undone |
//! | [`SyncMode::None`] | keeps commits | no promise |
//! | [`SyncMode::MapAsync`], which is Transact's | keeps commits | no promise |
//!
//! **Other processes.** LMDB waits for the writer of another process without a time limit. So do
//! [`writer`](terrane_kv::Database::writer) and opening for writing; neither is
//! [`Error::Busy`](terrane_kv::Error::Busy) because of it. A killed process gives its turn up.
//! LMDB's authors advise against network file systems; there it works for one process.
//!
//! **Counters.** LMDB does not report bytes, so [`Counts`](terrane_kv::Counts) has none. A commit
//! takes two syncs in mode `Full` (the data, and the head by a synced write), one in mode `NoMeta`.
//!
//! **Damage.** LMDB trusts the bytes of its file, and one flipped bit can end the process. Opening
//! checks the heads and the length of the file. [`check_file`] checks all pages without mapping the
//! file; `terrane verify` calls it first, and programs that do not trust a medium should too.
//! Nothing detects a changed value, except a checksum in the value, as in records of the radix
//! state.
//!
//! Rejected: files with several names. LMDB locks by name, so each hard link would have a lock of
//! its own. Rejected: LMDB's own compacting copy, which leaves half-full pages half full.

// Bottom-up: a module imports only from modules above it.
mod failure;
mod options;
mod readers;
mod inner;
mod environment;
mod pages;
mod snapshot;
mod writer;
mod compact;
mod database;

pub use database::LmdbDatabase;
pub use options::{LmdbGrowth, LmdbOptions};
pub use terrane_lmdb::{Finding, SyncMode, check_file};
