//! Key-value databases: ordered maps of bytes with tables, snapshots and atomic commits.
//!
//! A [`Database`] has one main table and up to [`INDEXES_MAX`] named indexes, further tables that
//! are named when it is opened. Keys are ordered by their bytes, the shorter first. Begin with
//! [`Database`]; [`Memory`] is the reference implementation, [`conformance`] the suite that every
//! back-end passes. [`gap`], [`removals`] and [`turn`] are parts that back-ends share. [`overlay`]
//! makes a database of an engine.
//!
//! Contract:
//!
//! * A [`Reader`] is a snapshot: for as long as it lives, it answers as of the moment it was made.
//!   Readers wait for nobody.
//! * There is one [`Writer`] at a time. A call for another waits, and fails if the calling thread
//!   has the writer. A writer reads its own changes. They become visible together when
//!   [`Writer::commit`] returns, and never if the writer is dropped or the commit fails.
//! * A commit is as durable as the [`Guarantee`] of the database says once [`Database::settle`] has
//!   returned for it.
//! * When the cause of an error is gone (a full disk, a busy or stopped server), the same database
//!   goes on. After a failed fsync it refuses to write ([`Error::Poisoned`]).
//!
//! Back-ends differ in what they can do. An option that a back-end cannot honour is refused when
//! the database is opened, as [`Error::Unsupported`], and never ignored.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod database;
mod entries;
pub mod gap;
pub mod removals;
pub mod turn;
pub mod overlay;
mod memory;
pub mod conformance;

pub use database::{
    Counts, Cursor, Database, Entry, Error, Guarantee, INDEX_NAME_CHARS_MAX, INDEXES_MAX,
    KEY_BYTES_MAX, PowerLoss, Reader, Receipt, Result, Source, Table, VALUE_BYTES_MAX, Writer,
    check_entry, check_indexes, is_index_name,
};
pub use entries::Entries;
pub use memory::Memory;
pub use terrane_io::{Durability, ErrorKind};
