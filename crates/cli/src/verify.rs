//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod check_btree;
pub(crate) mod check_context;
pub(crate) mod check_radix;
pub(crate) mod verify;
