//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub mod index;
pub mod container;
pub mod irmin;
pub mod octez;
