//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod args;
pub(crate) mod exit;
pub(crate) mod text;
pub(crate) mod literal;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod stream;
