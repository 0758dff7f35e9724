//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod corrupt;
pub(crate) mod fast_map;
pub(crate) mod stats;
pub(crate) mod hash;
pub(crate) mod path;
pub(crate) mod address;
pub(crate) mod error;
pub(crate) mod hashing;
