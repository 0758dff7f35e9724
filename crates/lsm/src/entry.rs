//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod digest;
pub(crate) mod entry;
pub(crate) mod key_range;
pub(crate) mod mask;
pub(crate) mod merge_operator;
