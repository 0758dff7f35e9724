//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod corrupt;
pub(crate) mod error;
pub(crate) mod page;
pub(crate) mod block;
pub(crate) mod leaf;
pub(crate) mod inner;
