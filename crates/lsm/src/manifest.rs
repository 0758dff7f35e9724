//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod snapshot_meta;
pub(crate) mod wal;
pub(crate) mod wal_reader;
pub(crate) mod wal_salvage;
pub(crate) mod manifest;
pub(crate) mod lease;
