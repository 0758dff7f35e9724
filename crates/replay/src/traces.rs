//! Traces that other programs recorded, read and replayed with every recorded answer checked.
//!
//! | module        | does                                                                          |
//! |---------------|-------------------------------------------------------------------------------|
//! | [`index`]     | reads and writes traces of an index of objects, in four dialects              |
//! | [`container`] | reads and writes the container and the events of traces of versioned trees    |
//! | [`irmin`]     | replays the benchmark of irmin on any engine of versioned trees               |
//! | [`octez`]     | replays traces of Octez on the context store, with trees, folds and hashes    |
//!
//! Imports: [`engines`](crate::engines), and [`latency`](crate::latency) for the times of blocks.
//! Begin with [`container`].
//!
//! * One row is in memory at a time, and decoded rows borrow its bytes. Lists are counted and
//!   checked once, so a damaged count or length costs no memory; trees are decoded to a bounded
//!   depth.
//! * Rejected: events as owned values. A block of one-byte events would take a hundred times its
//!   bytes.
//! * Rejected: decoding from the stream. A cut block would be noticed after half of it was
//!   executed.
//! * Rejected: the operations of Octez in the trait of engines. Other engines would have trees for
//!   no other use.
//! * Rejected: a list of the visits of a fold, to be executed afterwards. All trees would be in
//!   memory at once, and changes of the callback would come too late.
//! * Rejected: taking the first dialect that reads some records of an index. A question of one
//!   dialect has the same bytes as a question of the next.

// Bottom-up: a module imports only from modules above it.
mod varint;
pub mod index;
pub mod container;
pub mod irmin;
pub mod octez;
