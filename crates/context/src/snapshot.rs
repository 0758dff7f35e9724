//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod snapshot;
pub(crate) mod export;
pub(crate) mod import;
