//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod reserve;
pub(crate) mod reclaim;
pub(crate) mod handles;
pub(crate) mod write_queue;
pub(crate) mod file_set;
pub(crate) mod lost_found;
pub(crate) mod parallel;
