//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod node_hash;
pub(crate) mod address;
pub(crate) mod error;
pub(crate) mod change;
pub(crate) mod cbor;
