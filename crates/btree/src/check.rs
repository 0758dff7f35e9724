//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod check;
pub(crate) mod salvage;
pub(crate) mod repair;
pub mod inspect;
