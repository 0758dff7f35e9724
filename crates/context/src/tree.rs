//! Trees: versioned directories and values in memory, loaded lazily, changed copy-on-write, hashed
//! and encoded by a commit.
//!
//! May import `base` and `object`. The tree knows no store: [`node::Source`] is where records come
//! from, [`encode::Sink`] is where records go to. `pack` and `store` implement both.
//!
//! Begin with [`tree`], the public type; then [`node`] (nodes in memory) and [`edit`] (changes of
//! nodes). A commit runs [`digest`] (hashes, from the leaves up), then [`encode`] (records,
//! children first). [`head`] keeps the nodes of the newest commit for the next block.
//!
//! Invariants:
//! - The shape of a directory is a function of its set of steps, never of its history.
//! - A node that two trees hold never changes: a change copies it first. A node that one tree holds
//!   is changed in place, and loses its hash and its place.
//! - A change that fails has changed nothing, because all reads come before the first write.
//! - Walks over whole trees keep a list on the heap: chosen names make paths of 33,000 nodes.
//!   Recursion stays within one directory, at most 64 inodes.
//!
//! Rejected:
//! - A cache of paths beside the nodes: it needs a lock, or forbids sharing a tree among threads.
//! - Removals in the [`write_buffer`]: a directory that shrinks to a leaf must be loaded, which can
//!   fail, and hashing must not fail.
//! - Flushing a tree by itself after 10,000 changes, as irmin does: binding one path would then
//!   write megabytes of blocks that are often thrown away. The caller flushes, or asks a
//!   [`Context`](crate::Context) to.
//! - Prefetching into the tree instead of the cache: a tree would hold nodes that were only
//!   guessed.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod into_value;
pub(crate) mod node;
pub(crate) mod head;
pub(crate) mod digest;
pub(crate) mod walk;
pub(crate) mod encode;
pub(crate) mod edit;
pub(crate) mod copy;
pub(crate) mod write_buffer;
pub(crate) mod tree;
pub(crate) mod of_hashes;
pub(crate) mod clear;
pub(crate) mod prefetch;
pub(crate) mod fold;
pub(crate) mod diff;
pub(crate) mod merge;
pub(crate) mod concrete;
