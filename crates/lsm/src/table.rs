//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod divergence;
pub(crate) mod cursor;
pub(crate) mod diff;
pub(crate) mod canonical;
pub(crate) mod table;
pub(crate) mod bulk_load;
pub(crate) mod session;
