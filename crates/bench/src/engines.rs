//! The engines that replays can run on.

pub mod memory;

pub mod lsm;

pub mod btree;

pub mod context_memory;

pub mod context_store;

pub mod context_tables;
