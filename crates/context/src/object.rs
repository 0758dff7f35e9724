//! Objects: the records of directories and values, their decoded form, and the pins that keep them.
//!
//! May import `base`. Begin with [`record`]: its header has the bytes of each kind of record.
//!
//! [`entries`] and [`inner`] are the forms in memory. A node that is loaded has its record; a
//! record that the cache of the pack has is copied into the node. [`pins`] lists the roots that
//! live trees may still read; a collection treats each pin as a root.
//!
//! Invariants:
//! - A record refers to earlier records only.
//! - A delta is based on a full record, or on a delta on one: a node costs three reads at most.
//! - A reference has the hash of its target. So hashing a changed node reads none of its siblings.
//!
//! Locks: each list of pins is a mutex. [`Pins::join`](pins::Pins) takes two lists in the order of
//! their addresses; no other lock is taken under one.
//!
//! Rejected: decoding each entry into an object of its own, since allocation was a quarter of the
//! time of a commit; inode trees for directories of 33 to 256 steps, since the flat hash of Tezos
//! needs all steps of such a directory anyway.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod entries;
pub(crate) mod inner;
pub(crate) mod record;
pub(crate) mod pins;
pub(crate) mod cached;
