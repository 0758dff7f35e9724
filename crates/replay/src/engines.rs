//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub mod engine;
pub mod context;
pub mod memory;
pub mod lsm;
pub mod btree;
pub mod context_memory;
pub mod context_store;
pub mod context_tables;
