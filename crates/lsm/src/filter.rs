//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod bloom;
pub(crate) mod ribbon;
pub(crate) mod filter;
pub(crate) mod sketch;
