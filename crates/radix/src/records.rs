//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod record;
pub(crate) mod node_store;
pub(crate) mod ref_counts;
pub(crate) mod versions;
