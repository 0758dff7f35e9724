//! B+tree back-end: all tables of a database in one index, as ranges of its keys.
//!
//! A key of the index begins with the number of its table; [`row`] has the bytes, which
//! `docs/format/tables.md` describes. A value that is too long for a row is kept in pieces under a
//! number of its own. A commit of the database is one commit of the index, and a snapshot is one
//! snapshot of the index.
//!
//! Begin with [`database`]; [`changes`] turns a transaction into updates, [`snapshot`] reads,
//! [`read_only`] opens the index of another process. The folder imports `terrane_btree` and
//! [`terrane_kv::overlay`].
//!
//! Invariant: the number of the next value in pieces is above the number of each piece that the
//! index has.

// Bottom-up: a module imports only from modules above it.
mod options;
mod row;
mod tables;
mod changes;
mod snapshot;
mod database;
mod read_only;

pub use database::BtreeDatabase;
pub use options::BtreeOptions;
