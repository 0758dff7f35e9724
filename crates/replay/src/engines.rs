//! Engines that a replay can run on, each behind the traits of [`engine`] or [`context`].
//!
//! [`engine`] has the traits of tables: lookups in bulk, atomic batches, forks and named snapshots.
//! [`context`] has the traits of versioned trees with hashes. The other modules are adapters, one
//! for each engine; `memory` and `context_memory` are the references that tests compare the others
//! with.
//!
//! Imports: [`error`](crate::error), [`store`](crate::store), [`hex`](crate::hex) and the facade
//! `terrane`. No adapter imports another adapter.
//!
//! Begin with [`engine`], then [`lsm`], the shortest adapter.
//!
//! * `btree` and `database_tables` have one state on disk, and keep the changes since the last
//!   durable point in memory (module `pending`).
//! * `context_tables` keeps a table as a tree and a snapshot as a branch of the context store. Its
//!   directories have no order, so a cursor holds all keys in memory and reads values one by one.
//! * Rejected: the undo log in the same tree as the state, because the root would be that of both.
//! * Rejected: a commit of the context store for each block. Branches would number thousands, and
//!   the undo record of a block exists anyway.

// Bottom-up: a module imports only from modules above it.
pub mod engine;
pub mod context;
pub mod memory;
pub mod lsm;
mod pending;
pub mod btree;
#[cfg(any(feature = "lmdb", feature = "sqlite"))]
pub mod database_tables;
pub mod context_memory;
pub mod context_store;
pub mod context_tables;
