//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod fault;
pub(crate) mod sim;
pub(crate) mod fixed_clock;
