//! The tree: lookups, cursors, changes, and bulk loads.
//!
//! May import: `page`, `pager`, `log` for the buffers above a tree, and `sort` for the input of a
//! bulk load.
//!
//! Begin with `tree` (nodes on disk and in memory, lookups), then `edit` (one step of a change),
//! `state` (the visible state: a tree below two buffers), `cursor` and `bulk`.
//!
//! Invariants: a tree is a value. A change makes another tree, which shares everything that stays
//! the same; whoever holds the old root goes on reading it: a lookup, a cursor, a reader in another
//! process. Leaves are always on disk. New inner nodes are in memory until a checkpoint writes each
//! of them once. A lookup, a step of a cursor and an apply check that a leaf has the range that the
//! node above it says.
//!
//! Lock order: the visible state is locked for microseconds, to take its tree and to ask its
//! buffers. Pages are read without any lock but that of a cache shard.
//!
//! Rejected: writing the path to the root with each leaf, as LMDB does (half of all that it
//! writes); marks for deleted entries.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod tree;
pub(crate) mod edit;
pub(crate) mod state;
pub(crate) mod cursor;
pub(crate) mod bulk;
