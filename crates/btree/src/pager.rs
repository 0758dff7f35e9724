//! The tree file: which pages it has, how they are read, cached and written, and which tree is
//! published.
//!
//! May import: `page`.
//!
//! Begin with `superblock` (the switch between two trees), then `free_map` (used, held and free
//! pages), `pager` (reads and writes), `cache` and `page_writer` (writes of a bulk load). `config`
//! has the limits that all of them keep to.
//!
//! Invariants: everything that a superblock refers to is durable before the superblock is written.
//! A page is reused only after a checkpoint without it is durable and nobody can read an older
//! tree. The cache never holds more pages than its capacity.
//!
//! A checkpoint writes new nodes, the changed parts of the free map and the applied positions; then
//! it syncs, writes the superblock in the place of the older one, and syncs. Applies move along the
//! keys, so the changed nodes are neighbours and checkpoints can be frequent.
//!
//! Rejected: pages changed in place behind a log of pages (readers in other processes would have to
//! stop, or to copy everything); a list of free pages (as long as they are scattered); a walk of
//! the tree at every opening to find them.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod config;
pub(crate) mod cache;
pub(crate) mod free_map;
pub(crate) mod superblock;
pub(crate) mod stats;
pub(crate) mod pager;
pub(crate) mod page_writer;
