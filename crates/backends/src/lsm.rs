//! LSM back-end: each table of a database is a named table of one LSM store.
//!
//! The tables are `main`, and `index-` with the name of each index. A commit is one record of the
//! store's WAL, whatever tables it changes. Values of any size are values of the engine, stored as
//! they are. A snapshot is a view of each table, all of one commit.
//!
//! Begin with [`database`]; [`snapshot`] reads, [`read_only`] opens the store of another process.
//! The folder imports `terrane_lsm` and [`terrane_kv::overlay`].
//!
//! Pages have 4 KiB and values are not compressed. The options for both exist so that another
//! setting is refused by name and never ignored.

// Bottom-up: a module imports only from modules above it.
mod options;
mod snapshot;
mod database;
mod read_only;

pub use database::LsmDatabase;
pub use options::LsmOptions;
