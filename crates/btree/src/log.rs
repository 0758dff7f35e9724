//! Updates that the leaves do not have yet: in memory, in the WAL, and how far the leaves have
//! caught up.
//!
//! May import: `page`, and `pager` for the owner of a file.
//!
//! Begin with `wal` (segments, frames, group commit, recovery), then `pending` (the buffer of
//! updates) above `cow_blocks` (its copy-on-write blocks), `applied` (positions up to which each
//! range of keys is in the leaves) and `quarantine` (ranges with damaged pages).
//!
//! An update goes into the WAL and into the buffer. If either is too long, the writer applies the
//! updates of the range that has waited longest to the leaves below one node. The range comes round
//! once for about twice the size of the buffer, so a written leaf takes all updates that came in
//! between.
//!
//! Invariants: no update is in a leaf before the WAL has it. A frame is applied as a whole or not
//! at all. Nothing that a valid frame or the durable mark calls durable is ever cut off. The WAL is
//! kept from the lowest applied position on.
//!
//! Rejected: dirty leaves in memory (4,096 bytes for what takes 73); messages in inner nodes, as in
//! a Bε-tree (a find must look for them on its way down); keeping the WAL for updates of damaged
//! leaves (it would never be cut again).

// Bottom-up: a module imports only from modules above it.
pub(crate) mod cow_blocks;
pub(crate) mod pending;
pub(crate) mod quarantine;
pub(crate) mod applied;
pub(crate) mod wal;
