//! A database in LMDB: one memory-mapped B+tree file, changed by copying pages, read through
//! snapshots that wait for nobody.
//!
//! Tables are named databases of LMDB: `main`, and `index_NAME` for each index.
//!
//! The map grows by itself, up to a limit. A transaction that finds it full is taken back, the map
//! is made larger, and the transaction is done again from its log, so a writer takes memory for
//! what it writes. Snapshots live through it: growth waits for calls that run and never for a
//! snapshot. At the limit the transaction fails with [`Error::StoreFull`]. A sixteenth of the limit
//! is kept for transactions that remove more entries than they set: LMDB copies the pages that it
//! removes from, so a file that is full to the brim could not be emptied. Before it fails an empty
//! commit is made, since LMDB uses freed pages one commit later.
//!
//! A snapshot keeps the pages that were freed since from being used again; see
//! [`oldest_reader`](LmdbDatabase::oldest_reader).
//!
//! What settings are worth, as [`guarantee`](Database::guarantee) tells:
//!
//! | settings | killed process | loss of power |
//! |---|---|---|
//! | [`SyncMode::Full`] | keeps commits | keeps every commit |
//! | [`SyncMode::NoMeta`] | keeps commits | consistent; the last commit may be undone |
//! | [`SyncMode::None`] | keeps commits | no promise |
//! | [`SyncMode::MapAsync`], which is Transact's | keeps commits | no promise |
//!
//! LMDB waits for the writer of another process with no limit of time, so
//! [`writer`](Database::writer) does so too, and opening, which makes sure of the tables; neither
//! fails with [`Error::Busy`] for it. A process that is killed gives its turn up.
//!
//! LMDB does not tell how many bytes it writes, so [`Counts`] has none. Syncs are two per commit in
//! mode `Full` (data; head, by a write that is synced), one in mode `NoMeta`. Its authors advise
//! against network file systems; it works there for one process.
//!
//! LMDB trusts the bytes of its file, and one flipped bit can end the process. Opening checks the
//! heads and the length of the file. [`check_file`] checks all pages without mapping the file:
//! `terrane verify` calls it first, and whoever cannot trust a medium should do so too. Nothing
//! finds a changed value, but what has a checksum in the value itself, as rows of the radix state
//! have.
//!
//! A database is opened by one name: the path is resolved once, and a file with several names (hard
//! links), which would have a lock under each, is refused.

// Bottom-up: a module imports only from modules above it; `database` and its two halves, `compact`
// and `writer`, know each other.
mod failure;
mod options;
mod readers;
mod environment;
mod pages;
mod snapshot;
mod writer;
mod compact;
mod database;

pub use database::LmdbDatabase;
pub use options::{LmdbGrowth, LmdbOptions};
pub use terrane_lmdb::{Finding, SyncMode, check_file};
