//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod frame;
pub(crate) mod chunk;
pub(crate) mod read_many;
pub(crate) mod control;
pub(crate) mod commit;
pub(crate) mod index;
pub(crate) mod handles;
pub(crate) mod marker;
pub(crate) mod archive;
pub(crate) mod locations;
pub(crate) mod pack;
pub(crate) mod marks;
