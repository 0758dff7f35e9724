//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod config;
pub(crate) mod cache;
pub(crate) mod free_map;
pub(crate) mod superblock;
pub(crate) mod stats;
pub(crate) mod pager;
pub(crate) mod page_writer;
