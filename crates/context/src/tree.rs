//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod node;
pub(crate) mod edit;
pub(crate) mod digest;
pub(crate) mod encode;
pub(crate) mod walk;
pub(crate) mod copy;
pub(crate) mod write_buffer;
pub(crate) mod tree;
pub(crate) mod prefetch;
pub(crate) mod fold;
pub(crate) mod diff;
pub(crate) mod merge;
pub(crate) mod concrete;
