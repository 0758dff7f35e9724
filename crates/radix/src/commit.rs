//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod hashing;
pub(crate) mod build;
pub(crate) mod record_changes;
pub(crate) mod bulk;
