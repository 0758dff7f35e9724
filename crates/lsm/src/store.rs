//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod options;
pub(crate) mod inner;
pub(crate) mod recovery;
pub(crate) mod backup;
pub(crate) mod store;
pub(crate) mod compact;
pub(crate) mod versions;
pub(crate) mod reader;
