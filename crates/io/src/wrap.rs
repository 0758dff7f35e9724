//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod forward_queue;
pub(crate) mod counted;
pub(crate) mod no_sync;
