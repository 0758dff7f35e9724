//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod record;
pub(crate) mod pins;
pub(crate) mod cached;
