//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod lease;
pub(crate) mod snapshot;
pub(crate) mod scrub;
pub(crate) mod writer;
pub(crate) mod full_disk;
pub(crate) mod index;
pub(crate) mod reader;
