//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod cow_blocks;
pub(crate) mod pending;
pub(crate) mod quarantine;
pub(crate) mod applied;
pub(crate) mod wal;
