//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod tree;
pub(crate) mod edit;
pub(crate) mod state;
pub(crate) mod cursor;
pub(crate) mod bulk;
