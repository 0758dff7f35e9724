//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
mod mounts;
pub mod meter;
pub mod host;
pub mod limits;
pub mod device;
