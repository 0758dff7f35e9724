//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod result;
pub(crate) mod plan;
pub(crate) mod lookup;
pub(crate) mod submitted;
