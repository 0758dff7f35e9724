//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod input;
mod manifest;
mod run;
mod arena;
mod merge;
pub(crate) mod sort;
pub(crate) mod migrate;
