//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod back_ends;
pub(crate) mod listed;
pub(crate) mod index_path;
pub(crate) mod open;
pub(crate) mod version_ref;
pub(crate) mod source;
