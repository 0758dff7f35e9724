//! Stores and B+trees as arguments: what a path or a name on the command line leads to.
//!
//! The folder imports `ui` and the libraries. Commands, `inspect` and `verify` import it, so that a
//! store is opened, refused and listed in one way everywhere.
//!
//! Begin with [`open`], which opens a store for reading or writing, or creates it. [`index_path`]
//! recognises B+trees, [`version_ref`] finds retained versions, and [`source`] reads a table and a
//! B+tree through one interface. [`back_ends`] has the options of radix stores, [`listed`] the rows
//! of tables, versions and snapshots that several commands print.
//!
//! # Invariants
//!
//! - A command that ends with exit code 2 has changed nothing on disk. Opening a store for writing
//!   recovers it, which writes. So the checks of names ([`open::check_table`],
//!   [`open::check_snapshot`]) read the store before a command opens it for writing.
//! - A directory that a command created for its work is gone again if the work fails.
//! - A command that only reads opens a `StoreReader`, which takes no lock.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod back_ends;
pub(crate) mod listed;
pub(crate) mod index_path;
pub(crate) mod bucket;
pub(crate) mod open;
pub(crate) mod version_ref;
pub(crate) mod source;
