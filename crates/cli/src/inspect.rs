//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod btree;
pub(crate) mod context;
pub(crate) mod radix;
pub(crate) mod lsm;
pub(crate) mod inspect;
