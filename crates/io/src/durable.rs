//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub mod checksum;
pub(crate) mod reserve;
