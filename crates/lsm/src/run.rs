//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod run;
pub(crate) mod blob;
pub(crate) mod writer;
pub(crate) mod check;
pub(crate) mod salvage;
pub(crate) mod prefetch;
pub(crate) mod chunk_reader;
pub(crate) mod reader;
