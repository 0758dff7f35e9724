//! Back-ends: adapters that give an engine the traits of a crate that knows no engine.
//!
//! [`LsmDatabase`], [`BtreeDatabase`], [`lmdb`], [`sqlite`] and [`redis`] are key-value databases
//! ([`terrane_kv::Database`]) for the radix state; [`BtreeIndexes`] keeps the index of objects of a
//! context store. Each passes the conformance suite of `terrane_kv`.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// Bottom-up: a module imports only from modules above it.
mod object_index;
mod overlay;
#[cfg(any(feature = "lmdb", feature = "sqlite"))]
mod own_file;
mod lsm;
mod btree;
#[cfg(feature = "lmdb")]
pub mod lmdb;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "redis")]
pub mod redis;

pub use btree::{BtreeDatabase, BtreeOptions};
pub use lsm::{LsmDatabase, LsmOptions};
pub use object_index::BtreeIndexes;
