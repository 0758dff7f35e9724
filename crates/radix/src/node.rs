//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod node;
pub(crate) mod branch;
pub(crate) mod decode;
