//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod options;
pub(crate) mod inner;
pub(crate) mod leaves;
pub(crate) mod transaction;
pub(crate) mod store;
pub(crate) mod diff;
