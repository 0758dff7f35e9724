//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod bench;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod index;
pub(crate) mod kv;
pub(crate) mod table;
pub(crate) mod snapshot;
pub(crate) mod version;
pub(crate) mod radix;
pub(crate) mod backup;
pub(crate) mod compact;
pub(crate) mod replay;
