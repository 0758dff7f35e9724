//! What the radix state keeps its data in: an ordered map of bytes with tables, snapshots and
//! atomic commits.
//!
//! A [`Database`] has one main table and any number of named indexes, tables like it, given when it
//! is opened. Keys are ordered by their bytes, the shorter first. Contract, which the conformance
//! suite of `this crate` checks of every back-end:
//!
//! * A [`Reader`] is a snapshot: it answers as of the moment it was made, for as long as it lives,
//!   whatever is committed meanwhile. Readers wait for nobody.
//! * There is one [`Writer`] at a time; making another waits for it, and fails where the calling
//!   thread itself has it. A writer reads its own changes. What it changed appears as a whole when
//!   [`Writer::commit`] returns, and not at all if it is dropped instead or the commit fails.
//! * A commit is as durable as the [`Guarantee`] of the database says once [`Database::settle`] has
//!   returned for it.
//! * After an error whose cause has gone (a full disk, a busy or stopped server) the same database
//!   goes on; after a failed fsync it refuses to write and says so.
//!
//! Back-ends differ in what they can do. What one cannot is refused when it is opened, as
//! [`Error::Unsupported`], and never ignored.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod database;
pub mod gap;
pub mod removals;
pub mod turn;
mod memory;
pub mod conformance;

pub use database::{
    Counts, Cursor, Database, Durability, Entry, Error, Guarantee, INDEX_NAME_CHARS_MAX,
    INDEXES_MAX, KEY_BYTES_MAX, PowerLoss, Reader, Receipt, Result, Source, Table, VALUE_BYTES_MAX,
    Writer, check_entry, check_indexes, is_index_name,
};
pub use memory::Memory;
