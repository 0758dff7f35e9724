//! What the Merkle stores keep their data in: adapters that give an engine of Terrane the face of a trait of
//! `terrane-context`, which knows no engine itself, and the rules that every back-end of the radix state keeps.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod btree_index;
mod names;
#[cfg(any(feature = "lmdb", feature = "sqlite"))]
mod own_file;
#[cfg(any(feature = "lmdb", feature = "sqlite"))]
mod paging;

#[cfg(feature = "lmdb")]
pub mod lmdb;
#[cfg(feature = "sqlite")]
pub mod sqlite;

mod engine;

mod lsm;

mod row;

mod btree;

mod reading;

#[cfg(feature = "redis")]
pub mod redis;

pub use btree::{BtreeDatabase, BtreeOptions};
pub use btree_index::BtreeIndexes;
pub use lsm::{LsmDatabase, LsmOptions};
