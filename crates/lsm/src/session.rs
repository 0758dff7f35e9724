//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod registry;
pub(crate) mod inner;
pub(crate) mod current_manifest;
pub(crate) mod group_commit;
pub(crate) mod snapshot;
pub(crate) mod transfer;
