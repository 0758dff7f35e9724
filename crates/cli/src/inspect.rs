//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod inspect;
